"""The networks of the project and of the papers, at any size.

Each is a function that takes whole numbers and gives an ``nn.Module``, which maps floats ``(N, channels, H, W)`` to
logits ``(N, classes)``; its weights are random, from torch's global generator. Modules have the names that a reader
expects (``stage2.relu``, ``layer2.0``, ``blocks.5``), and cuts are named by them. A bad argument is a ``NetworkError``.

``convnet`` is the demo's. ``mlp`` and ``cnn`` are oxford2025's, ``myrtle`` is bansal2021's and ``vgg19`` smith2024's.
``resnet`` and ``resnet50`` (He et al. 2016, *Deep Residual Learning for Image Recognition*, arXiv:1512.03385) are
composed of torchvision's blocks under torchvision's names, so their state dicts fit a torchvision ``ResNet``; the stem
of ``3x3`` is the usual one for 32x32 images. ``resnet164`` is timm's, with the blocks of He et al. 2016, *Identity
Mappings in Deep Residual Networks*, arXiv:1603.05027, and ``vit`` is timm's (Dosovitskiy et al. 2021,
arXiv:2010.11929).

Images of one channel are normalised by MNIST's mean and standard deviation, those of three by CIFAR-10's; so are the
colour variants of MNIST, of which smith2024 says no more than "normalised". oxford2025 says nothing of it, but its
code follows PyTorch's tutorial *Training a Classifier*, which takes 0.5 for both: so do ``cnn`` and ``mlp``. The
networks for the 8x8 digits normalise nothing. VGG19 halves the side five times, so it resizes to 32 pixels.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import isqrt
from typing import Any

from torch import nn

from suture import Preprocess
from suture.common.errors import NetworkError

_NORMALISATIONS: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    1: ((0.1307,), (0.3081,)),
    3: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean and standard deviation by the number of channels: MNIST's and CIFAR-10's, of the training images in [0, 1]."""

_DIGITS = 16  #: pixels; the networks for images with a smaller side normalise nothing
_STEMS = ("3x3", "7x7")


# --- each layer reads the one before it -------------------------------------------------------------------------------


def convnet(width: int = 16, classes: int = 10, channels: int = 1) -> nn.Module:
    """Build three 3x3 convolution stages, global average pooling and a linear head.

    The stages have ``width``, ``2 * width`` and ``4 * width`` channels; the last two halve the side, so
    images need at least 4x4 pixels. The demo's network for the 8x8 digits.
    """
    _require("convnet", width=width, classes=classes, channels=channels)
    return _name_in_a_row(
        stage1=_convolution(channels, width),
        stage2=_convolution(width, 2 * width, pool=nn.AvgPool2d(2)),
        stage3=_convolution(2 * width, 4 * width, pool=nn.AvgPool2d(2)),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(4 * width, classes),
    )


def mlp(width: int = 64, depth: int = 4, classes: int = 10, inputs: int = 64) -> nn.Module:
    """Build ``depth`` Linear-ReLU blocks of ``width`` units on flattened images, and a linear head.

    ``inputs`` is the number of values in an image (channels x height x width): 64 for the 8x8 digits, 784 for MNIST,
    3072 for CIFAR-10. The weights are PyTorch's default.
    oxford2025, section 2.2: uniform width of 64, a depth of 4 to 10.
    """
    _require("mlp", width=width, classes=classes, inputs=inputs)
    _require("mlp", least=0, depth=depth)
    sizes = [inputs] + [width] * depth
    blocks: dict[str, nn.Module] = {
        f"block{i}": _name_in_a_row(linear=nn.Linear(before, after), relu=nn.ReLU())
        for i, (before, after) in enumerate(pairwise(sizes), start=1)
    }
    return _name_in_a_row(flatten=nn.Flatten(), **blocks, head=nn.Linear(sizes[-1], classes))


def cnn(dense: int = 3, image: tuple[int, int] = (32, 32), classes: int = 10, channels: int = 3) -> nn.Module:
    """Build two 5x5 convolutions (6 and 16 channels), each with ReLU and pooling, and ``dense`` fully connected layers.

    ``image`` is height and width in pixels, at least 16 each; (64, 32) for MNIST-CIFAR, which leaves maps of 13x5
    before ``fc1``. The layers ``fc1``, ``fc2`` … have 120, 84 and then ``classes`` outputs. oxford2025 has networks of
    3 to 5 fully connected layers, but gives their widths (in the code of its appendix 2) for 3 alone; here those
    between the second and the last repeat the 84. Parameters have the names of that code, and PyTorch's default values.
    """
    _require("cnn", least=2, dense=dense)
    _require("cnn", classes=classes, channels=channels)
    _require_each("cnn", "image", image, (32, 32), least=16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in image)
    sizes = [16 * height * width, 120, *[84] * (dense - 2), classes]
    layers: dict[str, nn.Module] = {}
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        layers |= {f"fc{i}": nn.Linear(before, after), f"fc{i}_relu": nn.ReLU()}
    del layers[f"fc{dense}_relu"]
    return _name_in_a_row(
        conv1=nn.Conv2d(channels, 6, 5),
        conv1_relu=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        conv2_relu=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        **layers,
    )


def myrtle(
    width: int = 64, pools: tuple[int, int, int, int] = (1, 2, 2, 8), classes: int = 10, channels: int = 3
) -> nn.Module:
    """Build Myrtle-CNN: four stages of 3x3 convolution, BatchNorm, ReLU and max-pooling, and a linear layer.

    The stages have ``width`` times 1, 2, 4 and 8 channels; ``pools`` are their pooling windows, of which 1 is none. The
    windows have to shrink the image to one pixel, so images have the product of ``pools`` as their side: 32.
    bansal2021, appendix A.1, gives neither channels nor windows. They are those of Nakkiran et al. 2020, *Deep Double
    Descent*, arXiv:1912.02292, which describes its network in the same words (after Page 2018) and shares authors; so
    are the biases of the convolutions, and PyTorch's default weights. Smaller windows early make it cheaper:
    ``pools=(2, 2, 2, 4)`` costs a quarter.
    """
    _require("myrtle", width=width, classes=classes, channels=channels)
    _require_each("myrtle", "pools", pools, (1, 2, 2, 8))
    widths = [channels, *(width * 2**i for i in range(4))]
    stages: dict[str, nn.Module] = {
        f"stage{i + 1}": _convolution(before, after, bias=True, **({"pool": nn.MaxPool2d(p)} if p > 1 else {}))
        for i, ((before, after), p) in enumerate(zip(pairwise(widths), pools, strict=True))
    }
    return _name_in_a_row(**stages, flatten=nn.Flatten(), fc=nn.Linear(8 * width, classes))


def vgg19(
    width: int = 64, hidden: int = 4096, pool: int = 7, classes: int = 10, channels: int = 3, dropout: float = 0.5
) -> nn.Module:
    """Build torchvision's VGG19 without BatchNorm, at any width, under its names.

    The five groups of convolutions have ``width`` times 1, 2, 4, 8 and 8 channels, the first two layers of the
    classifier ``hidden`` units. Each group halves the side, so a 32x32 image ends as one pixel, which the adaptive
    pooling to ``pool`` x ``pool`` then only repeats: at 7 the first linear layer reads 49 copies of each value, as
    torchvision's does at this size; 1 leaves them out. Weights are torchvision's; the spread of the linear layers
    grows as the square root of what they read shrinks, from 0.01 at the full size, so that narrow ones give outputs
    of the same size. Simonyan and Zisserman 2015, arXiv:1409.1556; smith2024, appendix C.2.
    """
    from torchvision.models.vgg import cfgs, make_layers

    _require("vgg19", width=width, hidden=hidden, pool=pool, classes=classes, channels=channels)
    features = make_layers([c if c == "M" else c * width // 64 for c in cfgs["E"]])
    if channels != 3:
        features[0] = nn.Conv2d(channels, width, 3, padding=1)
    flat = 8 * width * pool**2
    classifier = nn.Sequential(
        *(nn.Linear(flat, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        nn.Linear(hidden, classes),
    )
    for layer, published in zip(classifier[::3], (512 * 7 * 7, 4096, 4096), strict=True):
        assert isinstance(layer, nn.Linear)
        nn.init.normal_(layer.weight, std=0.01 * (published / layer.in_features) ** 0.5)
        nn.init.zeros_(layer.bias)
    return _name_in_a_row(
        features=features.apply(_init_kaiming),
        avgpool=nn.AdaptiveAvgPool2d(pool),
        flatten=nn.Flatten(),
        classifier=classifier,
    )


def _convolution(inputs: int, outputs: int, bias: bool = False, **pool: nn.Module) -> nn.Sequential:
    return _name_in_a_row(
        conv=nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
        norm=nn.BatchNorm2d(outputs),
        relu=nn.ReLU(),
        **pool,
    )


# --- residual ---------------------------------------------------------------------------------------------------------


def resnet(
    blocks: tuple[int, ...] = (1, 1, 1, 1), width: int = 16, classes: int = 10, channels: int = 3, stem: str = "3x3"
) -> nn.Module:
    """Build a residual network of basic blocks.

    ``blocks`` counts the blocks of each stage; stage ``i`` (from 0) has ``width * 2**i`` channels, and all
    but the first halve the side. The ``stem`` is ``3x3``, which keeps the side, or ``7x7``, whose stride and max-pool
    quarter it. ``resnet((2, 2, 2, 2), width=64)`` is the ResNet-18 of the CIFAR literature, with ``stem="7x7"`` the
    standard one (smith2024: a 28x28 image is 64 maps of 7x7 before ``layer2``), and ``(3, 4, 6, 3)`` ResNet-34.
    """
    return _residual("resnet", blocks, width, classes, channels, stem)


def resnet50(
    width: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3), classes: int = 10, channels: int = 3, stem: str = "3x3"
) -> nn.Module:
    """Build a residual network of bottlenecks, ResNet-50 at the defaults.

    Stage ``i`` (from 0) has ``4 * width * 2**i`` channels; the stride is that of torchvision, in the 3x3 convolution.
    ``stem="7x7"`` is the standard network. Otherwise as ``resnet``.
    """
    return _residual("resnet50", blocks, width, classes, channels, stem)


def _residual(name: str, blocks: tuple[int, ...], width: int, classes: int, channels: int, stem: str) -> nn.Module:
    """Return the tree of torchvision's ``ResNet``, of basic blocks or (``resnet50``) of bottlenecks."""
    from torchvision.models.resnet import BasicBlock, Bottleneck

    _require_each(name, "blocks", blocks, (1, 1, 1, 1))
    _require(name, width=width, classes=classes, channels=channels)
    if stem not in _STEMS:
        raise NetworkError(f"{name} cannot have stem={stem!r}; give one of {', '.join(map(repr, _STEMS))}")
    block: type[BasicBlock | Bottleneck] = Bottleneck if name == "resnet50" else BasicBlock
    first = _conv3x3(channels, width) if stem == "3x3" else nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    layers: dict[str, nn.Module] = {"conv1": first, "bn1": nn.BatchNorm2d(width), "relu": nn.ReLU()}
    if stem == "7x7":
        layers["maxpool"] = nn.MaxPool2d(3, 2, 1)
    inputs = width
    for i, depth in enumerate(blocks):
        planes, stride = width * 2**i, 1 if i == 0 else 2
        outputs, shortcut = planes * block.expansion, None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        entry = block(inputs, planes, stride, shortcut)
        layers[f"layer{i + 1}"] = nn.Sequential(entry, *(block(outputs, planes) for _ in range(depth - 1)))
        inputs = outputs
    network = _name_in_a_row(
        **layers, avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(inputs, classes)
    )
    return network.apply(_init_kaiming)


def resnet164(width: int = 16, blocks: int = 18, classes: int = 10, channels: int = 3) -> nn.Module:
    """Build the pre-activation bottleneck ResNet of 9 x ``blocks`` + 2 layers for 32x32 images: by default ResNet-164.

    timm's ``ResNetV2`` behind a 3x3 convolution of ``width`` channels; its three stages have 4, 8 and 16 times as
    many, and the last two halve the side. timm rounds the widths of bottlenecks to multiples of 8, so ``width`` has to
    be one.
    """
    from timm.layers.create_conv2d import create_conv2d
    from timm.layers.norm_act import BatchNormAct2d
    from timm.models.resnetv2 import ResNetV2

    _require("resnet164", width=width, blocks=blocks, classes=classes, channels=channels)
    if width % 8:
        raise NetworkError(f"resnet164 cannot have width={width}; give a multiple of 8, such as 8, or the paper's 16")
    network = ResNetV2(
        layers=[blocks] * 3,
        channels=(4 * width, 8 * width, 16 * width),
        num_classes=classes,
        in_chans=channels,
        stem_chs=width,
        norm_layer=partial(BatchNormAct2d, eps=1e-5),
        conv_layer=create_conv2d,
    )
    network.stem = _name_in_a_row(conv=_conv3x3(channels, width)).apply(_init_kaiming)
    return network


def _conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


# --- of tokens --------------------------------------------------------------------------------------------------------


def vit(
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
    patch: int = 4,
    size: int = 32,
    classes: int = 10,
    channels: int = 3,
) -> nn.Module:
    """Build timm's vision transformer with a class token, on images of ``size`` x ``size`` pixels.

    ``patch`` is the side of a patch in pixels, ``dim`` the width of a token, ``depth`` the number of blocks. The
    defaults are bansal2021's (appendix A.1).
    """
    from timm.models.vision_transformer import VisionTransformer

    _require("vit", dim=dim, depth=depth, heads=heads, patch=patch, size=size, classes=classes, channels=channels)
    if dim % heads:
        raise NetworkError(f"vit cannot share dim={dim} between heads={heads}; give a multiple of the heads")
    if size % patch:
        raise NetworkError(f"vit cannot fill size={size} with patch={patch}; give a multiple of the patch")
    network: nn.Module = VisionTransformer(
        img_size=size,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
    )
    return network


# --- what they are made of --------------------------------------------------------------------------------------------


def _name_in_a_row(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def _init_kaiming(module: nn.Module) -> None:
    """Give a convolution the weights of He et al. 2015, by its outputs, as torchvision's networks have them."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


_DEEPEST = 1_000  #: layers, or blocks, of any network; cutting takes longer than linear in them


def _require(network: str, least: int = 1, **values: object) -> None:
    """Refuse arguments that are not whole numbers of at least ``least``, by ``NetworkError``."""
    for key, value in values.items():
        if type(value) is not int or value < least:
            raise NetworkError(f"{network} cannot have {key}={value!r}; give a whole number of at least {least}")
        if key in ("depth", "dense", "blocks") and value > _DEEPEST:
            raise NetworkError(f"{network} cannot have {key}={value:,}; give at most {_DEEPEST:,}")


def _require_each(network: str, key: str, values: object, such_as: tuple[int, ...], least: int = 1) -> None:
    """Refuse anything but a tuple like ``such_as``; ``blocks`` may count fewer stages."""
    numbers = values if isinstance(values, tuple | list) else ()
    right = 1 <= len(numbers) <= len(such_as) if key == "blocks" else len(numbers) == len(such_as)
    if not right or not all(type(number) is int and number >= least for number in numbers):
        raise NetworkError(
            f"{network} cannot have {key}={values!r}; give whole numbers of at least {least}, such as {key}={such_as}"
        )


# --- by name ----------------------------------------------------------------------------------------------------------

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    network.__name__: network for network in (cnn, convnet, mlp, myrtle, resnet, resnet164, resnet50, vgg19, vit)
}
"""The networks that ``zoo:name`` can name."""


def images_of(name: str, arguments: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the shape (C, H, W) of the images that a network with these arguments is made for.

    ``None`` if it is open.
    """
    defaults = {p.name: p.default for p in inspect.signature(NETWORKS[name]).parameters.values()}
    given = {**defaults, **arguments}
    channels = given.get("channels", 1)
    match name:
        case "convnet":
            return channels, 8, 8
        case "mlp":
            return _square_of(given["inputs"])
        case "cnn":
            return (channels, *given["image"])
        case "resnet" | "resnet50" if given["stem"] == "7x7":
            return channels, 28, 28
        case "vit":
            return channels, given["size"], given["size"]
    return channels, 32, 32


def preprocess_of(name: str, arguments: Mapping[str, Any]) -> Preprocess:
    """Return how a network with these arguments wants its images."""
    images = images_of(name, arguments)
    if images is None or min(images[1:]) < _DIGITS:
        return Preprocess()
    if name in ("cnn", "mlp"):
        return Preprocess(mean=(0.5,), std=(0.5,))
    mean, std = _NORMALISATIONS.get(images[0], ((0.0,), (1.0,)))
    return Preprocess(size=32 if name == "vgg19" else None, mean=mean, std=std)


def _square_of(inputs: int) -> tuple[int, int, int] | None:
    """Return the shape (C, H, W) of square images, of one channel or else three, with so many values."""
    for channels in (1, 3):
        side = isqrt(inputs // channels)
        if channels * side**2 == inputs:
            return channels, side, side
    return None

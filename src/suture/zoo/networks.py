"""The small networks of the project, for small images.

They are trees of named ``nn.Sequential``, so that their cuts have the names a reader expects
(``stage2.relu``, ``block3``, ``layer2.0``). Each takes floats ``(N, channels, H, W)``, gives logits
``(N, classes)`` and wants no preprocessing of its own; the weights are random, from torch's global generator.

The residual network is that of He et al. 2016, *Deep Residual Learning for Image Recognition*,
arXiv:1512.03385, with the usual stem for 32x32 images: a 3x3 convolution and no pooling. It is composed of
torchvision's ``BasicBlock`` under torchvision's names, so its state dict fits a torchvision ``ResNet``.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import nn

from suture.errors import NetworkError


def convnet(width: int = 16, classes: int = 10, channels: int = 1) -> nn.Module:
    """Three 3x3 convolution stages, global average pooling and a linear head.

    The stages have ``width``, ``2 * width`` and ``4 * width`` channels; the last two halve the side, so
    images need at least 4x4 pixels. The demo's network for the 8x8 digits.
    """
    return _named(
        stage1=_convolution(channels, width),
        stage2=_convolution(width, 2 * width, pool=nn.AvgPool2d(2)),
        stage3=_convolution(2 * width, 4 * width, pool=nn.AvgPool2d(2)),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(4 * width, classes),
    )


def mlp(width: int = 64, depth: int = 4, classes: int = 10, inputs: int = 64) -> nn.Module:
    """``depth`` Linear-ReLU blocks of ``width`` units on flattened images, and a linear head.

    ``inputs`` is the number of values in an image (channels x height x width; 64 for the 8x8 digits).
    """
    sizes = [inputs] + [width] * depth
    blocks: dict[str, nn.Module] = {
        f"block{i}": _named(linear=nn.Linear(before, after), relu=nn.ReLU())
        for i, (before, after) in enumerate(pairwise(sizes), start=1)
    }
    return _named(flatten=nn.Flatten(), **blocks, head=nn.Linear(sizes[-1], classes))


def resnet(blocks: tuple[int, ...] = (1, 1, 1, 1), width: int = 16, classes: int = 10, channels: int = 3) -> nn.Module:
    """A basic-block residual network of one to four stages, with a 3x3 stem for small images.

    ``blocks`` counts the blocks of each stage; stage ``i`` (from 0) has ``width * 2**i`` channels, and all
    but the first halve the side. ``resnet((2, 2, 2, 2), width=64)`` is the ResNet-18 of the CIFAR
    literature. Raises ``NetworkError`` when ``blocks`` does not describe one to four stages of at least one
    block.
    """
    if not isinstance(blocks, tuple | list) or not 1 <= len(blocks) <= 4 or min(blocks) < 1:
        raise NetworkError(
            f"resnet cannot have blocks={blocks!r}; give one to four stages of at least one block each, "
            "such as blocks=(1, 1, 1), or blocks=(2,) for a single stage"
        )
    widths = [width * 2**i for i in range(len(blocks))]
    stages = {
        f"layer{i + 1}": _residual_stage(widths[max(i - 1, 0)], widths[i], depth, stride=1 if i == 0 else 2)
        for i, depth in enumerate(blocks)
    }
    network = _named(
        conv1=_conv3x3(channels, width),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(),
        **stages,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(widths[-1], classes),
    )
    return network.apply(_kaiming)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"convnet": convnet, "mlp": mlp, "resnet": resnet}
"""The networks that ``zoo:name`` can name."""


def _named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def _convolution(inputs: int, outputs: int, **pool: nn.Module) -> nn.Sequential:
    return _named(
        conv=_conv3x3(inputs, outputs),
        norm=nn.BatchNorm2d(outputs),
        relu=nn.ReLU(),
        **pool,
    )


def _conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def _residual_stage(inputs: int, outputs: int, depth: int, stride: int) -> nn.Sequential:
    from torchvision.models.resnet import BasicBlock

    same = stride == 1 and inputs == outputs
    shortcut = None
    if not same:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    first = BasicBlock(inputs, outputs, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs) for _ in range(depth - 1)))


def _kaiming(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

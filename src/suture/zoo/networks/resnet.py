"""Residual networks: He et al. 2016, *Deep Residual Learning for Image Recognition*, arXiv:1512.03385.

``resnet`` and ``resnet50`` are composed of torchvision's blocks under torchvision's names, so their state dicts fit a
torchvision ``ResNet``; the stem of ``3x3`` is the usual one for 32x32 images. ``resnet164`` is timm's, with the blocks
of He et al. 2016, *Identity Mappings in Deep Residual Networks*, arXiv:1603.05027.
"""

from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from suture.common.errors import NetworkError
from suture.zoo.networks.blocks import init_kaiming, name_in_a_row, require_stages, require_whole

if TYPE_CHECKING:
    from torchvision.models.resnet import BasicBlock, Bottleneck

STEMS = ("3x3", "7x7")


def resnet(
    blocks: tuple[int, ...] = (1, 1, 1, 1), width: int = 16, classes: int = 10, channels: int = 3, stem: str = "3x3"
) -> nn.Module:
    """Build a basic-block residual network of one to four stages.

    ``blocks`` counts the blocks of each stage; stage ``i`` (from 0) has ``width * 2**i`` channels, and all
    but the first halve the side. The ``stem`` is ``3x3``, which keeps the side, or ``7x7``, whose stride and max-pool
    quarter it. ``resnet((2, 2, 2, 2), width=64)`` is the ResNet-18 of the CIFAR literature, with ``stem="7x7"`` the
    standard one (smith2024: a 28x28 image is 64 maps of 7x7 before ``layer2``), and ``(3, 4, 6, 3)`` ResNet-34.
    Raises ``NetworkError`` when ``blocks`` does not describe one to four stages of at least one block, or there is no
    such stem.
    """
    return _residual("resnet", blocks, width, classes, channels, stem)


def resnet50(
    width: int = 64,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    classes: int = 10,
    channels: int = 3,
    stem: str = "3x3",
) -> nn.Module:
    """Build a bottleneck residual network of one to four stages, ResNet-50 at the defaults.

    Stage ``i`` (from 0) has ``4 * width * 2**i`` channels; the stride is that of torchvision, in the 3x3 convolution.
    ``stem="7x7"`` is the standard network. Otherwise as ``resnet``.
    """
    return _residual("resnet50", blocks, width, classes, channels, stem)


def resnet164(width: int = 16, blocks: int = 18, classes: int = 10, channels: int = 3) -> nn.Module:
    """Build the pre-activation bottleneck ResNet of 9 x ``blocks`` + 2 layers for 32x32 images: by default ResNet-164.

    timm's ``ResNetV2`` behind a 3x3 convolution of ``width`` channels; its three stages have 4, 8 and 16 times as
    many, and the last two halve the side. timm rounds the widths of bottlenecks to multiples of 8, so ``width`` has to
    be one, which ``NetworkError`` says if it is not.
    """
    from timm.layers.create_conv2d import create_conv2d
    from timm.layers.norm_act import BatchNormAct2d
    from timm.models.resnetv2 import ResNetV2

    require_whole("resnet164", width=width, blocks=blocks, classes=classes, channels=channels)
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
    network.stem = name_in_a_row(conv=_conv3x3(channels, width)).apply(init_kaiming)
    return network


def _residual(name: str, blocks: tuple[int, ...], width: int, classes: int, channels: int, stem: str) -> nn.Module:
    """Return the tree of torchvision's ``ResNet``, of basic blocks or (``resnet50``) of bottlenecks."""
    from torchvision.models.resnet import BasicBlock, Bottleneck

    require_stages(name, blocks)
    require_whole(name, width=width, classes=classes, channels=channels)
    if stem not in STEMS:
        raise NetworkError(f"{name} cannot have stem={stem!r}; give one of {', '.join(map(repr, STEMS))}")
    block: type[BasicBlock | Bottleneck] = Bottleneck if name == "resnet50" else BasicBlock
    stages, inputs = {}, width
    for i, depth in enumerate(blocks):
        stages[f"layer{i + 1}"] = _stage(block, inputs, width * 2**i, depth, stride=1 if i == 0 else 2)
        inputs = width * 2**i * block.expansion
    network = name_in_a_row(
        **_stem(stem, channels, width),
        **stages,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(inputs, classes),
    )
    return network.apply(init_kaiming)


def _stem(stem: str, channels: int, width: int) -> dict[str, nn.Module]:
    small = stem == "3x3"
    convolution = _conv3x3(channels, width) if small else nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    layers: dict[str, nn.Module] = {"conv1": convolution, "bn1": nn.BatchNorm2d(width), "relu": nn.ReLU()}
    return layers if small else layers | {"maxpool": nn.MaxPool2d(3, 2, 1)}


def _conv3x3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def _stage(block: "type[BasicBlock | Bottleneck]", inputs: int, planes: int, depth: int, stride: int) -> nn.Sequential:
    outputs = planes * block.expansion
    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    first = block(inputs, planes, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, planes) for _ in range(depth - 1)))

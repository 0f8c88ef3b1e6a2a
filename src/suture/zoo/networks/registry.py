"""The networks by name: how each is built, which images it is made for, and how it wants them.

Images of one channel are normalised by MNIST's mean and standard deviation, those of three by CIFAR-10's; so are the
colour variants of MNIST, of which smith2024 says no more than "normalised". oxford2025 says nothing of it, but its
code follows PyTorch's tutorial *Training a Classifier*, which takes 0.5 for both: so do ``cnn`` and ``mlp``. The
networks for the 8x8 digits take images as they are. VGG19 halves the side five times, so it resizes to 32 pixels.
"""

import inspect
from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

from torch import nn

from suture.data.samples import Preprocess
from suture.zoo.networks.plain import cnn, convnet, mlp, myrtle, vgg19
from suture.zoo.networks.resnet import resnet, resnet50, resnet164
from suture.zoo.networks.vit import vit

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "convnet": convnet,
    "mlp": mlp,
    "myrtle": myrtle,
    "resnet": resnet,
    "resnet164": resnet164,
    "resnet50": resnet50,
    "vgg19": vgg19,
    "vit": vit,
}
"""The networks that ``zoo:name`` can name."""

NORMALISATIONS: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    1: ((0.1307,), (0.3081,)),
    3: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
"""Mean and standard deviation by the number of channels: MNIST's and CIFAR-10's, of the training images in [0, 1]."""

_DIGITS = 16  #: pixels; the networks for images with a smaller side normalise nothing


def images_of(name: str, arguments: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the shape (C, H, W) of the images that a network with these arguments is made for.

    ``None`` if it is open.
    """
    given = {**_defaults_of(name), **arguments}
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
    mean, std = NORMALISATIONS.get(images[0], ((0.0,), (1.0,)))
    return Preprocess(size=32 if name == "vgg19" else None, mean=mean, std=std)


def _square_of(inputs: int) -> tuple[int, int, int] | None:
    """Square images of one channel, else of three, with so many values."""
    for channels in (1, 3):
        side = isqrt(inputs // channels)
        if channels * side**2 == inputs:
            return channels, side, side
    return None


def _defaults_of(name: str) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(NETWORKS[name]).parameters.values()}

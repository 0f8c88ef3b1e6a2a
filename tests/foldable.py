"""Small networks of the kinds that stitches melt into, or do not."""

from collections import OrderedDict
from itertools import pairwise

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from suture_papers.networks.architectures import mlp, resnet


def myrtle(width):
    """Conv-BatchNorm-ReLU-MaxPool four times and a linear layer (Page 2018), narrow."""
    sizes = [3, width, width + 1, width + 2, width]
    blocks = [
        nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        for a, b in pairwise(sizes)
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(width, 7))


def vgg(width):
    """Zero-padded convolutions and ReLUs, and a head with dropout."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width + 1, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(width + 1, width, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        *(nn.Linear(width * 16, 20), nn.ReLU(True), nn.Dropout(), nn.Linear(20, 7)),
    )


def vit(width):
    """A vision transformer of one block with 16 tokens."""
    shape = {"embed_dim": 2 * width, "depth": 1, "num_heads": 2, "class_token": False, "global_pool": "avg"}
    return VisionTransformer(16, 4, num_classes=7, **shape)


def bold(model, factor):
    """Make matrices and kernels larger, so that images matter as much as biases do."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor if parameter.ndim > 1 else 1)
    return model


def vgg11(width):
    """The convolutions of VGG-11 without BatchNorm, narrow, and one linear layer, for images of 32×32 pixels."""
    layers, before = [], 3
    for n in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        conv = [] if n == "M" else [nn.Conv2d(before, width * n, 3, padding=1), nn.ReLU(inplace=True)]
        before = before if n == "M" else width * n
        layers += conv or [nn.MaxPool2d(2)]
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), flatten=nn.Flatten(), head=nn.Linear(before, 7)))


MODELS = {
    "mlp": lambda width: mlp(width, depth=2, classes=7, inputs=3 * 16 * 16),
    "vgg": lambda width: bold(vgg(width), 3),
    "myrtle": lambda width: bold(myrtle(width), 3),
    "resnet": lambda width: resnet((2, 2), width=width, classes=7),
    "vit": lambda width: bold(vit(width), 10),
}
"""Each by its width, for images of 3 channels and 16×16 pixels; 7 outputs."""

PAGE = {
    "MLP": (lambda: mlp(4, depth=2, inputs=3 * 16 * 16), 16),
    "Myrtle-CNN": (lambda: myrtle(4), 16),
    "VGG-11": (lambda: vgg11(1), 32),
    "ResNet-18": (lambda: resnet((2, 2, 2, 2), width=2), 32),
    "ViT, 1 block": (lambda: vit(4), 16),
}
"""The networks of the page on folding, and the side of their images in pixels."""

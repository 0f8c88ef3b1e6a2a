"""The papers' networks at any size, the recipes that train them, and base models: networks with known histories."""

from suture_papers.networks.architectures import (
    NETWORKS,
    cnn,
    convnet,
    mlp,
    myrtle,
    resnet,
    resnet50,
    resnet164,
    vgg19,
    vit,
)
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import RECIPES

__all__ = [
    "NETWORKS",
    "RECIPES",
    "BaseModel",
    "cnn",
    "convnet",
    "mlp",
    "myrtle",
    "resnet",
    "resnet50",
    "resnet164",
    "vgg19",
    "vit",
]

"""The project's small networks, and the models that strings name."""

from suture.zoo.bases import BaseModel
from suture.zoo.building import Built, resolve
from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.loading import load_network, load_stitched
from suture.zoo.networks import NETWORKS, cnn, convnet, mlp, myrtle, resnet, resnet50, resnet164, vgg19, vit
from suture.zoo.recipes import RECIPES
from suture.zoo.sources import Source, parse_source

__all__ = [
    "NETWORKS",
    "RECIPES",
    "BaseModel",
    "Built",
    "Source",
    "cnn",
    "convnet",
    "load_checkpoint",
    "load_network",
    "load_stitched",
    "mlp",
    "myrtle",
    "parse_source",
    "resnet",
    "resnet50",
    "resnet164",
    "resolve",
    "vgg19",
    "vit",
]

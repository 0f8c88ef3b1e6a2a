"""Models by name: model strings, the papers' small networks, checkpoints and training."""

from suture.zoo.base_model import BaseModel
from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.models import Built, load_network, load_stitched, resolve
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

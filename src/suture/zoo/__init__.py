"""Models by name: model strings, the papers' small networks, checkpoints and training."""

from suture.zoo.base_model import BaseModel
from suture.zoo.models import Built, Source, load_checkpoint, load_network, load_stitched, parse_source, resolve
from suture.zoo.networks import NETWORKS, cnn, convnet, mlp, myrtle, resnet, resnet50, resnet164, vgg19, vit
from suture.zoo.recipes import RECIPES

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

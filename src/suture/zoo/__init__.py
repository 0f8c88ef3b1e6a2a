"""The project's small networks, and the models that strings name."""

from suture.zoo.bases import BaseModel
from suture.zoo.building import Built, resolve
from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.loading import load_network, load_stitched
from suture.zoo.networks import NETWORKS, convnet, mlp, resnet
from suture.zoo.sources import Source, parse_source

__all__ = [
    "NETWORKS",
    "BaseModel",
    "Built",
    "Source",
    "convnet",
    "load_checkpoint",
    "load_network",
    "load_stitched",
    "mlp",
    "parse_source",
    "resnet",
    "resolve",
]

"""Models by name: model strings and checkpoints."""

from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.models import Built, resolve
from suture.zoo.sources import ModelKind, Shelf, Source, parse_source

__all__ = [
    "Built",
    "ModelKind",
    "Shelf",
    "Source",
    "load_checkpoint",
    "parse_source",
    "resolve",
]

"""Training networks by fixed recipes."""

from suture.zoo.training.augment import Augmentation, CropFlip, SimCLRView, Unchanged
from suture.zoo.training.checkpoints import Checkpoints, Progress, newest_step
from suture.zoo.training.freeze import Parts
from suture.zoo.training.loop import Training, train
from suture.zoo.training.objectives import CrossEntropy, Objective, SimCLR
from suture.zoo.training.penalties import L1, L2, Penalty, Prune
from suture.zoo.training.plateau import Plateau
from suture.zoo.training.recipe import Recipe

__all__ = [
    "L1",
    "L2",
    "Augmentation",
    "Checkpoints",
    "CropFlip",
    "CrossEntropy",
    "Objective",
    "Parts",
    "Penalty",
    "Plateau",
    "Progress",
    "Prune",
    "Recipe",
    "SimCLR",
    "SimCLRView",
    "Training",
    "Unchanged",
    "newest_step",
    "train",
]

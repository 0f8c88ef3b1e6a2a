"""Training networks by fixed recipes."""

from suture.zoo.training.augment import Augmentation, CropFlip, SimCLRView, Unchanged
from suture.zoo.training.loop import Training, train
from suture.zoo.training.objectives import CrossEntropy, Objective, SimCLR
from suture.zoo.training.parts import Parts
from suture.zoo.training.penalties import L1, L2, Penalty, Prune
from suture.zoo.training.recipe import Recipe
from suture.zoo.training.states import Checkpoints, Progress, newest_step
from suture.zoo.training.stopping import Plateau

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

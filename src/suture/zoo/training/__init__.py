"""Training networks by fixed recipes."""

from suture.zoo.training.augment import Augmentation, CropFlip, SimCLRView, Unchanged
from suture.zoo.training.checkpoints import Checkpoints, TrainingProgress, find_newest_step
from suture.zoo.training.freeze import Parts
from suture.zoo.training.loop import Training, train
from suture.zoo.training.objectives import LabelCrossEntropy, Objective, SimCLR
from suture.zoo.training.penalties import L1, L2, Penalty, Prune
from suture.zoo.training.recipe import Plateau, Recipe

__all__ = [
    "L1",
    "L2",
    "Augmentation",
    "Checkpoints",
    "CropFlip",
    "LabelCrossEntropy",
    "Objective",
    "Parts",
    "Penalty",
    "Plateau",
    "Prune",
    "Recipe",
    "SimCLR",
    "SimCLRView",
    "Training",
    "TrainingProgress",
    "Unchanged",
    "find_newest_step",
    "train",
]

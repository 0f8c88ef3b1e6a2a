"""Training networks by fixed recipes."""

from suture_papers.training.augment import Augmentation, CropFlip, SimCLRView, Unchanged
from suture_papers.training.loop import Checkpoints, Training, TrainingProgress, Watch, find_checkpoints, train
from suture_papers.training.recipe import (
    L1,
    L2,
    LabelCrossEntropy,
    Objective,
    Parts,
    Penalty,
    Plateau,
    Prune,
    Recipe,
    SimCLR,
)
from suture_papers.training.run import TrainingTask, Untrained, train_networks

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
    "TrainingTask",
    "Unchanged",
    "Untrained",
    "Watch",
    "find_checkpoints",
    "train",
    "train_networks",
]

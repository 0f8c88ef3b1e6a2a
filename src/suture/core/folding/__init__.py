"""The stitch melted into a neighbouring layer: when it can be, and the plain model that is left."""

from suture.core.folding.folds import fold_of, foldable_cuts, folded
from suture.core.folding.merging import Fold

__all__ = ["Fold", "fold_of", "foldable_cuts", "folded"]

"""The stitch folded into a neighbouring layer: when it can be, and the plain model that is left."""

from suture.core.folding.folds import Fold, fold, fold_of, foldable_cuts

__all__ = ["Fold", "fold", "fold_of", "foldable_cuts"]

"""Measures of the complexity of a network, over all of its parameters, frozen or not."""

from suture.complexity.base import Complexity
from suture.complexity.curvature import HessianTrace, TopEigenvalue
from suture.complexity.landscape import GradientNorm, MeanSharpness, WorstSharpness
from suture.complexity.ranks import EffectiveRank, NumericalRank, at_first_layer, effective_rank, numerical_rank
from suture.complexity.rows import COLUMNS, CURVATURE, LANDSCAPE, RANKS, SIZE, complexity, seam_labels
from suture.complexity.size import Flops, GzipSize, Parameters

__all__ = [
    "COLUMNS",
    "CURVATURE",
    "LANDSCAPE",
    "RANKS",
    "SIZE",
    "Complexity",
    "EffectiveRank",
    "Flops",
    "GradientNorm",
    "GzipSize",
    "HessianTrace",
    "MeanSharpness",
    "NumericalRank",
    "Parameters",
    "TopEigenvalue",
    "WorstSharpness",
    "at_first_layer",
    "complexity",
    "effective_rank",
    "numerical_rank",
    "seam_labels",
]

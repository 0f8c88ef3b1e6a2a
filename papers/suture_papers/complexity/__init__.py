"""Measures of the complexity of a network, over all of its parameters, frozen or not."""

from suture_papers.complexity.base import Complexity
from suture_papers.complexity.measures import (
    CURVATURE,
    LANDSCAPE,
    SIZE,
    Flops,
    GradientNorm,
    GzipSize,
    HessianTrace,
    MeanSharpness,
    Parameters,
    TopEigenvalue,
    WorstSharpness,
)
from suture_papers.complexity.pictures import plot
from suture_papers.complexity.rank import (
    RANKS,
    EffectiveRank,
    NumericalRank,
    at_first_layer,
    effective_rank,
    numerical_rank,
)
from suture_papers.complexity.table import COLUMNS, complexity

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
    "plot",
]

"""Measures of the complexity of a network, over all of its parameters, frozen or not."""

from suture.measurement.complexity.base import Complexity
from suture.measurement.complexity.hessian import HessianTrace, TopEigenvalue
from suture.measurement.complexity.rank import (
    EffectiveRank,
    NumericalRank,
    at_first_layer,
    effective_rank,
    numerical_rank,
)
from suture.measurement.complexity.sharpness import GradientNorm, MeanSharpness, WorstSharpness
from suture.measurement.complexity.size import Flops, GzipSize, Parameters
from suture.measurement.complexity.table import COLUMNS, CURVATURE, LANDSCAPE, RANKS, SIZE, complexity

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
]

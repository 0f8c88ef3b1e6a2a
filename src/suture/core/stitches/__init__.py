"""The small maps in the seam: families of stitches."""

from suture.core.stitches.base import AffineMap, AffineStitch, Conv, Identity, Linear, Moments, Part, Shape, Stitch
from suture.core.stitches.constrained import Diagonal, LowRank, Orthogonal, Permutation
from suture.core.stitches.flattened import ConvLinear, FullLinear, Probe
from suture.core.stitches.layers import Layers
from suture.core.stitches.pooled_linear import PooledLinear
from suture.core.stitches.registry import FAMILIES, stitch_for
from suture.core.stitches.resampled import MapsToTokens, StridedConv, TokensToMaps, TokensToTokens, UpsampledConv
from suture.core.stitches.two_layer import TwoLayer

__all__ = [
    "FAMILIES",
    "AffineMap",
    "AffineStitch",
    "Conv",
    "ConvLinear",
    "Diagonal",
    "FullLinear",
    "Identity",
    "Layers",
    "Linear",
    "LowRank",
    "MapsToTokens",
    "Moments",
    "Orthogonal",
    "Part",
    "Permutation",
    "PooledLinear",
    "Probe",
    "Shape",
    "Stitch",
    "StridedConv",
    "TokensToMaps",
    "TokensToTokens",
    "TwoLayer",
    "UpsampledConv",
    "stitch_for",
]

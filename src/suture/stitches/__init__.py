"""The small maps in the seam: families of stitches."""

from suture.stitches.base import AffineMap, AffineStitch, Moments, Part, Shape, Stitch
from suture.stitches.choice import FAMILIES, stitch_for
from suture.stitches.constrained import Diagonal, LowRank, Orthogonal, Permutation
from suture.stitches.flattened import ConvLinear, FullLinear
from suture.stitches.layers import Layers
from suture.stitches.positionwise import Conv, Identity, Linear
from suture.stitches.probes import Probe
from suture.stitches.regridded import MapsToTokens, StridedConv, TokensToMaps, TokensToTokens, UpsampledConv

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
    "Probe",
    "Shape",
    "Stitch",
    "StridedConv",
    "TokensToMaps",
    "TokensToTokens",
    "UpsampledConv",
    "stitch_for",
]

"""The default family for two shapes, and the names of families on the command line."""

from suture.common.errors import ShapeError
from suture.core.network.layouts import TokenShape
from suture.core.stitches.base import MEMBERS, Conv, Identity, Linear, Shape, Stitch, say_families, spell_shape
from suture.core.stitches.constrained import Diagonal, LowRank, Orthogonal, Permutation
from suture.core.stitches.flattened import ConvLinear, FullLinear
from suture.core.stitches.pooled_linear import PooledLinear
from suture.core.stitches.resampled import MapsToTokens, StridedConv, TokensToMaps, TokensToTokens, UpsampledConv
from suture.core.stitches.two_layer import TwoLayer

FAMILIES: dict[str, type[Stitch]] = {
    "identity": Identity,
    "linear": Linear,
    "conv": Conv,
    "low-rank": LowRank,
    "orthogonal": Orthogonal,
    "permutation": Permutation,
    "diagonal": Diagonal,
    "two-layer": TwoLayer,
    "strided-conv": StridedConv,
    "upsampled-conv": UpsampledConv,
    "conv-linear": ConvLinear,
    "full-linear": FullLinear,
    "pooled-linear": PooledLinear,
    "maps-to-tokens": MapsToTokens,
    "tokens-to-maps": TokensToMaps,
    "tokens-to-tokens": TokensToTokens,
}
"""Every family, by its name on the command line."""

MEMBERS.extend(LowRank(rank=1) if family is LowRank else family() for family in FAMILIES.values())

_DEFAULTS: tuple[Stitch, ...] = (
    Conv(),
    StridedConv(),
    UpsampledConv(),
    ConvLinear(),
    MapsToTokens(),
    TokensToMaps(),
    Linear(),
    TokensToTokens(),
)


def stitch_for(sender: Shape, receiver: Shape) -> Stitch:
    """Return the default family for two shapes (without the batch).

    ==========  ====================================  ======================  ==================
    from \\ to   maps                                  tokens                  vector
    ==========  ====================================  ======================  ==================
    maps        ``Conv``, of equal size; to shrink    ``MapsToTokens``        ``ConvLinear``
                ``StridedConv``, to grow
                ``UpsampledConv``
    tokens      ``TokensToMaps``                      ``TokensToTokens``; of  ``ConvLinear``
                                                      as many ``Linear``, if
                                                      a side has no prefix
    vector      ``UpsampledConv``                     ``MapsToTokens``        ``Linear``
    ==========  ====================================  ======================  ==================

    A side has a prefix if its shape is that of a cut whose class token or registers are known. Sources: bansal2021
    (``Conv``, ``Linear``), hernandez2022 (``StridedConv``, ``UpsampledConv``), oxford2025 (``ConvLinear``); of the
    others, ours. Raises ``ShapeError`` if no family can.
    """
    if all(isinstance(shape, TokenShape) and shape.prefix for shape in (sender, receiver)):
        return TokensToTokens()
    for family in _DEFAULTS:
        if family.accepts(sender, receiver):
            return family
    raise ShapeError(
        f"no default stitch joins the sender's {spell_shape(sender)} to the receiver's {spell_shape(receiver)}; "
        f"{say_families(sender, receiver)}"
    )

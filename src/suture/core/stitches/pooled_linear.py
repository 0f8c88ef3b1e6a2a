"""A family that reads one vector of a sample: the mean of its positions, or the first or the last token.

Two networks of which each reads its own view of a sample, such as an image and its caption, have samples for pairs and
no positions. So what passes a cut is pooled before it is mapped. Where sequences are padded, a pooling over tokens
needs their mask, which is not part of the tensor at a cut. So what feeds a stitch pools for it (``pool_sent``), and a
stitch that is given tokens nonetheless takes them all for real ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Literal, cast, final, get_args

import torch
from torch import Tensor, nn

from suture.common.constants import CHUNK
from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.core.stitches.base import AffineStitch, Part, Shape, features_last, loader, width

By = Literal["mean", "first", "last"]


@keyed_as("PooledLinear")
@final
@dataclass(frozen=True)
class PooledLinear(AffineStitch):
    """A linear map of one vector of a sample to a vector: of the ``mean`` of its positions or tokens, or of one token.

    ``first`` is where a class token stands, ``last`` the last token that a mask counts, in which a causal language
    model has read the whole text. Raises ``ShapeError`` for other words.
    """

    by: By = "mean"
    joins: ClassVar[str] = "vectors, tokens (T, D) or maps (C, H, W) to vectors (D,); 'first' and 'last' no maps"
    reads_raw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ShapeError(f"PooledLinear(by={self.by!r}): give one of {', '.join(map(repr, get_args(By)))}")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether something is to become a vector that has a place to be read at, or positions to average."""
        return len(receiver) == 1 and len(sender) in ((1, 2, 3) if self.by == "mean" else (1, 2))

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the pooling and an ``nn.Linear``."""
        self.check(sender, receiver)
        return nn.Sequential(Pooling(self.by), nn.Linear(width(sender), receiver[0]))

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return the map; rows are samples."""
        pooling, layer = cast("tuple[Pooling, nn.Linear]", tuple(cast(nn.Sequential, stitch)))
        return [Part(lambda x: pooling(x.double()), features_last, loader(layer))]


@keyed_as("Pooling")
class Pooling(nn.Module):
    """Makes one vector ``(n, D)`` of tokens ``(n, T, D)`` or maps ``(n, D, H, W)``; vectors stay."""

    def __init__(self, by: By) -> None:
        super().__init__()
        self.by: By = by

    def forward(self, x: Tensor) -> Tensor:
        """Pool over all positions."""
        return pool_positions(x, self.by)

    def extra_repr(self) -> str:
        """Name the vector."""
        return self.by


def pool_positions(x: Tensor, by: By, counted: Tensor | None = None) -> Tensor:
    """Return one vector of each sample, ``(n, D)``: of tokens ``(n, T, D)``, or maps ``(n, D, H, W)``, or vectors.

    Of tokens those that are ``counted``, bool ``(n, T)``.
    """
    if x.ndim == 2:
        return x
    if x.ndim == 4:
        return x.mean((2, 3))
    if by != "mean":
        return pick_token(x, by, counted)
    if counted is None or x.shape[:2] != counted.shape:
        return x.mean(1)
    there = counted.to(x.device)[..., None]
    return torch.where(there, x, 0.0).sum(1) / there.sum(1)


def pick_token(x: Tensor, by: By, counted: Tensor | None = None) -> Tensor:
    """Return the ``first`` or the ``last`` token of each sample that is counted, ``(n, D)`` of ``(n, T, D)``."""
    if counted is None or x.shape[:2] != counted.shape:
        return x[:, 0 if by == "first" else -1]
    there = counted.to(x.device)
    places = torch.arange(1, x.shape[1] + 1, device=x.device) * there
    at = there.int().argmax(1) if by == "first" else places.argmax(1)
    return x[torch.arange(len(x), device=x.device), at]


def pool_sent(stitch: nn.Module, sent: Tensor, counted: Tensor | None) -> Tensor:
    """Return the sender's tensors ``(n, …)`` as a stitch reads them: pooled over the tokens that count, if it pools.

    ``sent`` may be a stand-in that computes a few rows at a time.
    """
    pooling = next((module for module in stitch.modules() if isinstance(module, Pooling)), None)
    if pooling is None:
        return sent
    masks = repeat(None) if counted is None else counted.split(CHUNK)  # type: ignore[no-untyped-call]
    parts = zip(sent.split(CHUNK), masks, strict=False)  # type: ignore[no-untyped-call]
    return torch.cat([pool_positions(part, pooling.by, there) for part, there in parts])

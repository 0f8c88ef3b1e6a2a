"""A stitch that bends: two linear layers with a ReLU between.

Whether a stitch may bend is a choice with consequences: the more it can compute by itself, the less a low penalty says
of what the sender represents (bansal2021, section 2, keeps stitches simple for this reason). Beside a linear stitch it
shows what the linear one leaves: information that is there, in a form that the receiver cannot read.

Its closed form is that of its affine members. A pair of units passes a direction on as it is, relu(z) − relu(−z) = z,
so ``width`` units hold every linear map of rank width / 2. That is a start, which a descent can only better.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.common.scaling import without_constant
from suture.core.stitches.base import AffineMap, Moments, assign
from suture.core.stitches.constrained import PerPosition, reduced_regressions


@keyed_as("TwoLayer")
@final
@dataclass(frozen=True)
class TwoLayer(PerPosition):
    """Two linear layers of the features at every position, with a ReLU between: ``W₂ relu(W₁ x + b₁) + b₂``.

    ``width`` is the number of units between, by default twice the smaller number of features, with which it holds
    every linear map. Least squares gives its best affine member, of rank width / 2 at most: a start for a descent, and
    not the closest member. It cannot be folded once it bends. Raises ``ShapeError`` for a width below 2.
    """

    width: int | None = None
    joins: ClassVar[str] = "vectors, tokens or maps to as many positions"
    reads_raw: ClassVar[bool] = True
    only_affine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 2:
            raise ShapeError(f"TwoLayer(width={self.width}): give at least 2, since a direction takes two units")

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Give the regression of the rank that pairs of units can pass on, for every ridge."""
        rank = self._width(*known.xy.shape) // 2
        full = rank >= min(known.xy.shape)
        yield from known.regressions(ridges) if full else reduced_regressions(known, ridges, rank)

    def _width(self, inputs: int, outputs: int) -> int:
        return 2 * min(inputs, outputs) if self.width is None else self.width

    def _joins(self, inputs: int, outputs: int) -> bool:
        return True

    def _core(self, inputs: int, outputs: int) -> nn.Module:
        between = self._width(inputs, outputs)
        return nn.Sequential(nn.Linear(inputs, between), nn.ReLU(), nn.Linear(between, outputs))

    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        """Pass each singular direction on by a pair of units, which bend at the mean; other units give nothing yet."""
        first, _, second = cast(tuple[nn.Linear, nn.ReLU, nn.Linear], tuple(cast(nn.Sequential, core)))
        std = without_constant(affine.variance.sqrt(), 1e-6)
        left, values, right = torch.linalg.svd(affine.weight * std, full_matrices=False)
        rank = min(len(values), first.out_features // 2)
        reading, giving = right[:rank] / std, left[:, :rank] * values[:rank]
        others = slice(2 * rank, None)
        reads, shifts = first.weight.detach().double().cpu(), first.bias.detach().double().cpu()
        assign(first, "weight", torch.cat([reading, -reading, reads[others]]))
        assign(first, "bias", torch.cat([-reading @ affine.mean, reading @ affine.mean, shifts[others]]))
        nothing = giving.new_zeros(len(giving), first.out_features - 2 * rank)
        assign(second, "weight", torch.cat([giving, -giving, nothing], 1))
        assign(second, "bias", affine.bias + affine.weight @ affine.mean)

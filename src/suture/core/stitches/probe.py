"""The linear probe: from the tensor at a cut straight to the outputs.

A probe is a linear classifier of everything that passes through a cut (Alain & Bengio 2016, section 3; bansal2021,
section 2, where it is one of the extremes that stitching lies between). As a stitch it joins a sender's cut to
``OUTPUT``, behind all of a receiver's layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.core.stitches.base import AffineMap, AffineStitch, Part, Shape, assign, width
from suture.core.stitches.flattened import averaged_to, channels_first
from suture.core.stitches.positionwise import FEATURES, features_last


@keyed_as("Probe")
@final
@dataclass(frozen=True)
class Probe(AffineStitch):
    """A linear map of a whole tensor to a vector, such as outputs.

    A tensor of more than ``features`` numbers is averaged over neighbouring positions, height and width (or the number
    of tokens) halved until it has no more, which leaves at least a number for every channel: ``features=1`` averages
    over all positions, ``None`` over none. The averaging is ours; of the 1,024 by default a convex fit is soon solved,
    and a layer of 64 channels keeps 4×4 positions. Raises ``ShapeError`` for ``features`` below 1.
    """

    features: int | None = FEATURES
    joins: ClassVar[str] = "any shape to a vector (D,)"
    suggested: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise ShapeError(f"Probe(features={self.features}): give at least 1, or None for everything at the cut")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether something is to become a vector."""
        return bool(sender) and len(receiver) == 1

    def reads(self, sender: Shape) -> int:
        """How many numbers of a sample are left to be mapped."""
        return Averaging(sender, self.features).left

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the averaging, ``Flatten`` and an ``nn.Linear``."""
        self.check(sender, receiver)
        averaging = Averaging(sender, self.features)
        return nn.Sequential(averaging, nn.Flatten(), nn.Linear(averaging.left, receiver[0]))

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the map; rows are samples."""
        averaging, _, layer = cast("tuple[Averaging, nn.Module, nn.Linear]", tuple(cast(nn.Sequential, stitch)))

        def load(affine: AffineMap) -> None:
            assign(layer, "weight", affine.weight)
            assign(layer, "bias", affine.bias)

        return [Part(lambda x: averaging(x.double()).flatten(1), features_last, load)]

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear]:
        """The map."""
        return [cast(nn.Linear, cast(nn.Sequential, stitch)[2])]


@keyed_as("Averaging")
class Averaging(nn.Module):
    """Averages tensors of a shape over neighbouring positions; ``left`` is how many numbers of a sample are left."""

    def __init__(self, shape: Shape, most: int | None) -> None:
        super().__init__()
        channels = width(shape)
        first = channels_first(torch.empty(1, *shape, device="meta")).shape[2:]
        self.places = tuple(first) if len(first) < 3 else (prod(first),)
        self.grid = self.places if most is None else averaged_to(self.places, channels, most)
        self.left = channels * prod(self.grid)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to ``(n, channels, *grid)``; as it is where nothing is averaged."""
        if self.grid == self.places:
            return x
        x = channels_first(x)
        pool = nn.functional.adaptive_avg_pool2d if len(self.grid) == 2 else nn.functional.adaptive_avg_pool1d
        return pool(x.reshape(*x.shape[:2], *self.places), self.grid)  # type: ignore[arg-type]

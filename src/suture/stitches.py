"""The small maps in the seam.

A *family* (``Identity()``, ``Linear()``, ``Conv()``) says what kind of stitch may join two tensors; ``build`` makes
one, untrained, as a plain module. Shapes are without the batch: maps ``(C, H, W)``, tokens ``(T, D)``, vectors
``(D,)``.

Families that act on each position alone are *affine*: they see their tensor as rows (pixels, tokens or samples) of
features and map ``row ↦ W·row + b``. This is what least squares fits in closed form; the BatchNorms that bansal2021
(section 2) puts around the 1×1 convolution add nothing to what the family can express and only help optimisation.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from suture.errors import ShapeError

Shape = tuple[int, ...]


class Stitch(ABC):
    """A family of stitches: which shapes it joins, and how one is made."""

    joins: ClassVar[str]  #: in words, for messages

    @abstractmethod
    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether a stitch of this family can join the two shapes (without the batch)."""

    @abstractmethod
    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make a stitch at its default initialisation; shapes are without the batch."""

    def check(self, sender: Shape, receiver: Shape) -> None:
        """Raise ``ShapeError`` where the family cannot join the two shapes."""
        if not self.accepts(sender, receiver):
            raise ShapeError(
                f"{self} cannot join the sender's {_spell(sender)} to the receiver's {_spell(receiver)}; "
                f"it joins {self.joins}"
            )


@dataclass(frozen=True)
class AffineMap:
    """``row ↦ weight · row + bias``, with the first two moments of the rows that it was fitted on.

    ``weight`` is (out, in), ``bias`` (out,), ``mean`` and ``variance`` of the sender's rows (in,), ``out_variance`` of
    the mapped rows (out,); all in float64.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    out_variance: Tensor


class AffineStitch(Stitch):
    """A family whose stitches map every row of features by the same affine map."""

    @abstractmethod
    def rows(self, x: Tensor) -> Tensor:
        """See a batch of tensors as rows of features, ``(rows, features)``."""

    @abstractmethod
    def input_layer(self, stitch: nn.Module) -> nn.Linear | nn.Conv2d | None:
        """The affine layer that reads the sender's features as they are; ``None`` where a norm comes first."""

    @abstractmethod
    def load(self, stitch: nn.Module, affine: AffineMap) -> None:
        """Give a built stitch the parameters and buffers by which it computes the affine map in evaluation mode."""


@dataclass(frozen=True)
class Identity(Stitch):
    """No stitch: plugs the sender into the receiver as it is (bansal2021, section 2, "direct plugging in")."""

    joins: ClassVar[str] = "equal shapes"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether the shapes are equal."""
        return sender == receiver

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make a module without parameters."""
        self.check(sender, receiver)
        return nn.Identity()


@dataclass(frozen=True)
class Linear(AffineStitch):
    """A linear map of the last dimension with a bias: vectors, or every token or pixel by the same map.

    Maps whose features come last, ``(H, W, D)`` as in Swin, cannot be told from ``(C, H, W)`` by their shape; name this
    family for them. bansal2021, appendix A (ViT: token-wise 768 → 768); oxford2025 (between fully connected layers).
    """

    joins: ClassVar[str] = "vectors (D,) to vectors, and tokens (T, D) or maps (H, W, D) to as many"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are vectors, or all dimensions but the last agree."""
        return len(sender) == len(receiver) >= 1 and sender[:-1] == receiver[:-1]

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make an ``nn.Linear``."""
        self.check(sender, receiver)
        return nn.Linear(sender[-1], receiver[-1])

    def rows(self, x: Tensor) -> Tensor:
        """``(n, …, D)`` as ``(n · …, D)``."""
        return x.reshape(-1, x.shape[-1])

    def input_layer(self, stitch: nn.Module) -> nn.Linear:
        """The stitch itself."""
        return cast(nn.Linear, stitch)

    def load(self, stitch: nn.Module, affine: AffineMap) -> None:
        """Set weight and bias."""
        _set(stitch, "weight", affine.weight)
        _set(stitch, "bias", affine.bias)


@dataclass(frozen=True)
class Conv(AffineStitch):
    """A 1×1 convolution, with a BatchNorm before and after unless ``batchnorm=False``.

    Joins maps ``(C, H, W)`` to maps of the same height and width. bansal2021, section 2; without, hernandez2022.
    """

    batchnorm: bool = True
    joins: ClassVar[str] = "maps (C, H, W) to maps of the same height and width"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are maps of the same height and width."""
        return len(sender) == len(receiver) == 3 and sender[1:] == receiver[1:]

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the convolution, or ``BatchNorm(in) → Conv1×1(in → out, no bias) → BatchNorm(out)``."""
        self.check(sender, receiver)
        if not self.batchnorm:
            return nn.Conv2d(sender[0], receiver[0], 1)
        return nn.Sequential(
            nn.BatchNorm2d(sender[0]),
            nn.Conv2d(sender[0], receiver[0], 1, bias=False),
            nn.BatchNorm2d(receiver[0]),
        )

    def rows(self, x: Tensor) -> Tensor:
        """``(n, C, H, W)`` as ``(n · H · W, C)``: every pixel a row."""
        return x.movedim(1, -1).reshape(-1, x.shape[1])

    def input_layer(self, stitch: nn.Module) -> nn.Conv2d | None:
        """The convolution, unless a BatchNorm comes first."""
        return None if self.batchnorm else cast(nn.Conv2d, stitch)

    def load(self, stitch: nn.Module, affine: AffineMap) -> None:
        """Set the convolution; with BatchNorms, their running statistics are those of the rows fitted on."""
        if not self.batchnorm:
            _set(stitch, "weight", affine.weight[:, :, None, None])
            _set(stitch, "bias", affine.bias)
            return
        before, conv, after = cast(
            "tuple[nn.BatchNorm2d, nn.Conv2d, nn.BatchNorm2d]", tuple(cast(nn.Sequential, stitch))
        )
        spread = (affine.variance + before.eps).sqrt()
        out_spread = (affine.out_variance + after.eps).sqrt()
        _set_norm(before, affine.mean, affine.variance, torch.ones_like(spread), torch.zeros_like(spread))
        _set(conv, "weight", (affine.weight * spread)[:, :, None, None])
        middle = affine.weight @ affine.mean + affine.bias
        _set_norm(after, torch.zeros_like(middle), affine.out_variance, out_spread, middle)


def stitch_for(sender: Shape, receiver: Shape) -> Stitch:
    """The family that joins two shapes (without the batch) by default.

    ``Conv()`` for maps, ``Linear()`` for vectors and tokens. Raises ``ShapeError`` where neither can.
    """
    for family in (Conv(), Linear()):
        if family.accepts(sender, receiver) and (len(sender) != 3 or isinstance(family, Conv)):
            return family
    raise ShapeError(
        f"no stitch joins the sender's {_spell(sender)} to the receiver's {_spell(receiver)}; Conv joins {Conv.joins}, "
        f"Linear joins {Linear.joins}"
    )


def _spell(shape: Shape) -> str:
    kind = {1: "vector", 2: "tokens", 3: "maps"}.get(len(shape), "tensor")
    return f"{kind} {'×'.join(map(str, shape))}"


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    with torch.no_grad():
        getattr(module, name).copy_(value)


def _set_norm(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> None:
    for name, value in (
        ("running_mean", mean),
        ("running_var", variance),
        ("weight", scale),
        ("bias", shift),
    ):
        _set(norm, name, value)

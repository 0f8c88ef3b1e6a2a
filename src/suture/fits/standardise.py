"""Descending on standardised features.

How far a step of gradient descent moves a linear stitch depends on the scale of what it reads: an untrained sender's
features may be a hundredfold smaller than a trained one's, and a short fit would then report the learning rate instead
of the representation. A layer of the stitch that reads the sender's features as they are is therefore rewritten, for
the time of the descent, to read ``(x − mean) / std`` with the feature means and deviations of the fit data, and
rewritten back afterwards. Both are exact changes of coordinates within the family; a zero-padded convolution, to which
a shift is no such thing at the border, only has its features scaled. A stitch that is still random is taken as drawn
for the standardised features, and only rewritten back: else its first outputs, too, would be in the sender's units.
"""

from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from suture.core.stitches import AffineStitch
from suture.core.stitches.base import RawLayer, ScaleAndShift
from suture.fits.base import Problem

_CHUNK = 256
_LEAST = 1e-6  #: features whose deviation is below this share of the largest count as constant


class Standardised:
    """While entered, the stitch's layers read standardised features.

    Does nothing where ``wanted`` is false or the family takes care of it. With ``rewrite=False`` the stitch is taken to
    read standardised features already.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, wanted: bool, *, rewrite: bool = True) -> None:
        family = problem.family
        self.stitch, self.rewrite = stitch, rewrite
        layers = family.raw_layers(stitch) if isinstance(family, AffineStitch) and wanted else ()
        self.read = _measured(stitch, layers, problem.fit.activations) if layers else []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Standardised":
        for layer, mean, std in self.read:
            if self.rewrite:
                _rebase(layer, mean, std)
            self._hooks.append(layer.register_forward_pre_hook(_standardising(layer, mean, std)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for layer, mean, std in self.read:
            _rebase(layer, -mean / std, 1 / std)
        self.stitch.eval()


class _Measured(Exception):
    """Raised to leave a forward pass once every layer has seen its input."""


class _Sums:
    """Sums of the features that a layer reads, about the means of the first chunk."""

    def __init__(self, layer: RawLayer) -> None:
        self.layer, self.count = layer, 0
        self.shift = self.total = self.square = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        rows = (x.movedim(1, -1) if isinstance(self.layer, nn.Conv2d) else x).flatten(0, -2).cpu().double()
        self.shift = self.shift if self.count else rows.mean(0)
        rows = rows - self.shift
        self.total, self.square = self.total + rows.sum(0), self.square + rows.square().sum(0)
        self.count += len(rows)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the features, as the layer's own numbers."""
        mean = self.total / self.count
        std = (self.square / self.count - mean.square()).clamp(min=0).sqrt()
        std = torch.where(std > _LEAST * std.max(), std, 1.0)
        padded = isinstance(self.layer, nn.Conv2d) and any(cast("tuple[int, int]", self.layer.padding))
        shift = torch.zeros_like(mean) if padded else self.shift + mean
        return shift.to(self.layer.weight), std.to(self.layer.weight)


def _measured(stitch: nn.Module, layers: Any, activations: Tensor) -> list[tuple[RawLayer, Tensor, Tensor]]:
    """Every layer with the means and deviations of the features that it reads on these activations."""
    sums = [_Sums(layer) for layer in layers]
    seen: set[int] = set()

    def reading(own: _Sums) -> Any:
        def hook(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            own.add(given[0])
            seen.add(id(own))
            if len(seen) == len(sums):
                raise _Measured

        return hook

    hooks = [own.layer.register_forward_pre_hook(reading(own)) for own in sums]
    device = next(stitch.parameters()).device
    stitch.eval()
    try:
        for part in torch.split(activations, _CHUNK):
            seen.clear()
            try:
                with torch.no_grad():
                    stitch(part.to(device, copy=True))  # into which a stitch may write
            except _Measured:
                pass
    finally:
        for handle in hooks:
            handle.remove()
    return [(own.layer, *own.moments()) for own in sums]


def _standardising(layer: RawLayer, mean: Tensor, std: Tensor) -> Any:
    """A hook by which a layer reads ``(x − mean) / std``."""
    if isinstance(layer, nn.Conv2d):
        mean, std = mean[:, None, None], std[:, None, None]
    return lambda _, given: ((given[0] - mean) / std,)


def _rebase(layer: RawLayer, mean: Tensor, std: Tensor) -> None:
    """Make the layer do to ``(x − mean) / std`` what it did to ``x``."""
    weight = layer.weight.detach().double()
    assert layer.bias is not None
    by_feature = weight.flatten(2).sum(2) if isinstance(layer, nn.Conv2d) else weight
    shifted = weight * mean.double() if isinstance(layer, ScaleAndShift) else by_feature @ mean.double()
    with torch.no_grad():
        layer.bias.copy_(layer.bias.double() + shifted)
        layer.weight.copy_(weight * std.double().reshape(-1, *[1] * (weight.ndim - 2)))

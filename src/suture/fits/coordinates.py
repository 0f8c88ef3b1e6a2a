"""Coordinates in which gradient descent on a stitch goes well, whatever the scale of what it reads.

How far a step of gradient descent moves a stitch depends on the units of what it reads: an untrained sender's features
may be a hundredfold smaller than a trained one's, and a short fit would then report the learning rate instead of the
representation. So a layer ``y = W·x + b`` is descended on in other coordinates than its own weights. All changes of
coordinates are exact and stay within the family. A zero-padded convolution is scaled but not centred, because at the
border a shift of what it reads is not a shift of what it gives.

``Standardised`` serves the fits whose optimiser the user chooses (``TaskLoss``, ``MatchActivations``). For the time of
the descent a layer that reads the sender's features reads ``(x − μ_x) / σ_x`` instead, with the means and deviations of
each feature over the fit data; it is rewritten to do the same to these, and rewritten back afterwards. A stitch that is
still random is taken as drawn for the standardised features, and only rewritten back: else its first outputs, too,
would be in the sender's units.

``Coordinates`` serves ``Fast``, whose optimiser is its own, and goes further, so that one rate suits nearly all seams:

    W = σ_y · U / σ_x        b = σ_y · v − W·μ_x

with ``σ_y`` the deviation of each feature that the layer gives, all as they are where the descent begins, and a step on
``U`` and ``v`` is ``rate / √(features read)``. A BatchNorm, in evaluation mode, is such a layer of one feature each, of
what it has standardised. Other parameters are taken as they are, in units of 1.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from suture.core.stitches import AffineStitch
from suture.core.stitches.base import RawLayer, ScaleAndShift
from suture.fits.base import Problem

CHUNK = 256  #: samples of a pass; fixed, since sums depend on their grouping
PROBED = 256  #: samples whose means and deviations ``Coordinates`` take
LEAST = 1e-3  #: for ``Coordinates``, deviations below this share of the largest count as this
CONSTANT = 1e-6  #: for ``Standardised``, features whose deviation is below this share of the largest count as constant
OTHERS = 0.2  #: the step, relative to the rate, of parameters in units of 1, and of BatchNorms

Norm = nn.BatchNorm1d | nn.BatchNorm2d
Layer = nn.Linear | nn.Conv2d | ScaleAndShift | Norm


class Standardised:
    """While entered, the stitch's layers read standardised features.

    Does nothing if ``wanted`` is false or the family takes care of it. With ``rewrite=False`` the stitch is taken to
    read standardised features already.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, wanted: bool, *, rewrite: bool = True) -> None:
        family = problem.family
        self.stitch, self.rewrite = stitch, rewrite
        layers = family.raw_layers(stitch) if isinstance(family, AffineStitch) and wanted else ()
        sums = {layer: _Sums(layer) for layer in layers}
        if sums:
            see = lambda layer, given, out: sums[layer].add(given[0])  # noqa: E731
            _run_watched(stitch, layers, problem.fit.activations, see)
        self.read = [(layer, *own.moments()) for layer, own in sums.items()]
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Standardised":
        for layer, mean, std in self.read:
            if self.rewrite:
                _rebase(layer, mean, std)
            self._hooks.append(layer.register_forward_pre_hook(_make_standardising(layer, mean, std)))
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


class _Sums:
    """Sums of the features that a layer reads, in float64, about the means of the first chunk."""

    def __init__(self, layer: RawLayer) -> None:
        self.layer, self.count = layer, 0
        self.shift = self.total = self.square = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        rows = _rows(self.layer, x).cpu().double()
        self.shift = self.shift if self.count else rows.mean(0)
        rows = rows - self.shift
        self.total, self.square = self.total + rows.sum(0), self.square + rows.square().sum(0)
        self.count += len(rows)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the features, in the layer's own floating type."""
        mean = self.total / self.count
        std = (self.square / self.count - mean.square()).clamp(min=0).sqrt()
        std = torch.where(std > CONSTANT * std.max(), std, 1.0)
        shift = torch.zeros_like(mean) if _is_padded(self.layer) else self.shift + mean
        return shift.to(self.layer.weight), std.to(self.layer.weight)


def _make_standardising(layer: RawLayer, mean: Tensor, std: Tensor) -> Any:
    """Make the hook by which a layer reads ``(x − mean) / std``."""
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


@dataclass(frozen=True, eq=False)
class _Read:
    """What one layer reads and gives: means and deviations of its features."""

    mean: Tensor
    std: Tensor
    out_std: Tensor


class Coordinates:
    """The parameters of a stitch, as free tensors to be descended on and as what the stitch computes with.

    ``sent`` are activations ``(n, *sender shape)`` of the type that the stitch reads. Nothing is written into the
    stitch before ``write``.
    """

    def __init__(self, stitch: nn.Module, sent: Tensor) -> None:
        self.stitch = stitch
        self.free: dict[str, Tensor] = {}
        self.steps: dict[str, float] = {}
        self._made: list[Callable[[], Iterator[tuple[str, Tensor]]]] = []
        known: set[int] = set()
        reads = _measure_layers(stitch, sent[:PROBED])
        with torch.no_grad():
            for path, layer in stitch.named_modules():
                own = {id(p) for p in layer.parameters()} if isinstance(layer, Layer) else set()
                if isinstance(layer, Layer) and layer in reads and _is_plain(layer) and own.isdisjoint(known):
                    self._add_layer(f"{path}." if path else "", layer, reads[layer])
                    known |= own
            for name, parameter in stitch.named_parameters():
                if id(parameter) not in known:
                    self._add_other(name, parameter)
        for tensor in self.free.values():
            tensor.requires_grad_()

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the stitch, made of the free tensors."""
        return {name: tensor for make in self._made for name, tensor in make()}

    def __call__(self, sent: Tensor) -> Tensor:
        """Return what the stitch gives for activations, with gradients to the free tensors."""
        return cast(Tensor, functional_call(self.stitch, self.parameters(), (sent,)))

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Return the free tensors as an optimiser takes them, each with its own rate."""
        return [{"params": [tensor], "lr": rate * self.steps[name]} for name, tensor in self.free.items()]

    def state(self) -> dict[str, Tensor]:
        """Return copies of the free tensors."""
        return {name: tensor.detach().clone() for name, tensor in self.free.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to an earlier state."""
        with torch.no_grad():
            for name, tensor in self.free.items():
                tensor.copy_(state[name])

    def write(self) -> None:
        """Write what the free tensors mean into the stitch."""
        own = dict(self.stitch.named_parameters())
        with torch.no_grad():
            for name, tensor in self.parameters().items():
                own[name].copy_(tensor)

    def _add_layer(self, prefix: str, layer: Layer, read: _Read) -> None:
        weight = layer.weight.detach()
        ends = [1] * (weight.ndim - 2)
        if isinstance(layer, ScaleAndShift | Norm):
            unit, step = read.out_std / read.std, 1.0 if isinstance(layer, ScaleAndShift) else OTHERS
            taps: Callable[[Tensor], Tensor] = lambda w: w * read.mean  # noqa: E731
        else:
            unit = read.out_std.reshape(-1, 1, *ends) / read.std.reshape(1, -1, *ends)
            step = weight[0].numel() ** -0.5
            taps = lambda w: w.flatten(2).sum(2) @ read.mean if w.ndim == 4 else w @ read.mean  # noqa: E731
        names = f"{prefix}weight", f"{prefix}bias"
        self._add(names[0], weight / unit, step)
        if layer.bias is not None:
            self._add(names[1], (layer.bias.detach() + taps(weight)) / read.out_std, step)

        def make() -> Iterator[tuple[str, Tensor]]:
            made = self.free[names[0]] * unit
            yield names[0], made
            if layer.bias is not None:
                yield names[1], self.free[names[1]] * read.out_std - taps(made)

        self._made.append(make)

    def _add_other(self, name: str, parameter: Tensor) -> None:
        self._add(name, parameter.detach().clone(), OTHERS)
        self._made.append(lambda: iter([(name, self.free[name])]))

    def _add(self, name: str, value: Tensor, step: float) -> None:
        self.free[name], self.steps[name] = value.contiguous(), step


def _is_plain(layer: nn.Module) -> bool:
    """Whether every output of a layer reads every feature, or its own alone, by a weight that is a parameter."""
    if hasattr(layer, "parametrizations"):
        return False
    return layer.affine and layer.track_running_stats if isinstance(layer, Norm) else getattr(layer, "groups", 1) == 1


def _measure_layers(stitch: nn.Module, sent: Tensor) -> dict[nn.Module, _Read]:
    """Measure what every layer of a stitch, in evaluation mode, reads and gives on some activations."""
    found: dict[nn.Module, _Read] = {}

    def see(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        read, gave = _rows(layer, given[0]).float(), _rows(layer, out).float()
        mean = torch.zeros_like(read[0]) if _is_padded(layer) else read.mean(0)
        found[layer] = _Read(mean, _deviation(read), _deviation(gave))
        if isinstance(layer, Norm) and _is_plain(layer):  # what it scales and shifts is already standardised
            running, variance = (cast(Tensor, each).float() for each in (layer.running_mean, layer.running_var))
            spread = (variance + layer.eps).sqrt()
            found[layer] = _Read((mean - running) / spread, found[layer].std / spread, found[layer].out_std)

    _run_watched(stitch, [layer for layer in stitch.modules() if isinstance(layer, Layer)], sent, see)
    return found


def _run_watched(stitch: nn.Module, layers: Iterable[nn.Module], activations: Tensor, see: Any) -> None:
    """Run a stitch in evaluation mode over activations, and call ``see(layer, inputs, output)`` in every layer."""
    handles = [layer.register_forward_hook(see) for layer in layers]
    device = next(stitch.parameters()).device
    stitch.eval()
    try:
        with torch.no_grad():
            for part in torch.split(activations, CHUNK):
                stitch(part.to(device, copy=True))  # a copy, since a stitch may write into what it is given
    finally:
        for handle in handles:
            handle.remove()


def _rows(layer: nn.Module, x: Tensor) -> Tensor:
    """The features that a layer reads or gives, one row for every sample and position."""
    return (x.movedim(1, -1) if isinstance(layer, nn.Conv2d | Norm) else x).flatten(0, -2)


def _deviation(rows: Tensor) -> Tensor:
    """The deviations of features, none much below the largest; 1 if nothing varies."""
    std = rows.std(0, correction=0)
    largest = std.max()
    return std.clamp(min=float(LEAST * largest)) if largest > 0 else torch.ones_like(std)


def _is_padded(layer: nn.Module) -> bool:
    """Whether a layer is a convolution that pads what it reads."""
    return isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or any(layer.padding))

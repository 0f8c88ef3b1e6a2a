"""A stitch in the coordinates that a short descent takes.

How far a step of Adam moves a stitch depends on the units of what it reads and of what it gives, and on how many
features it reads. A layer ``y = W·x + b`` is therefore written as

    W = σ_y · U / σ_x        b = σ_y · v − W·μ_x

with the means ``μ_x`` and deviations ``σ_x`` of each feature that it reads and ``σ_y`` of each that it gives, as they
are where the descent begins, and a step on ``U`` and ``v`` is ``rate / √(features read)``. One rate then serves nearly
all seams. A BatchNorm, in evaluation mode, is such a layer of one feature each, of what it has standardised. The
changes of coordinates are exact and stay within the family; a zero-padded convolution is not centred, since at the
border a shift is none. Other parameters are taken as they are, in units of 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suture.core.stitches.base import ScaleAndShift

PROBED = 256  #: samples whose means and deviations are taken
LEAST = 1e-3  #: deviations below this share of the largest count as this
OTHERS = 0.2  #: the step, relative to the rate, of parameters in units of 1, and of BatchNorms

Norm = nn.BatchNorm1d | nn.BatchNorm2d
Layer = nn.Linear | nn.Conv2d | ScaleAndShift | Norm


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
        with torch.no_grad():
            reads = _measured(stitch, sent[:PROBED].clone())  # into which a stitch may write
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
        """The parameters of the stitch, made of the free tensors."""
        return {name: tensor for make in self._made for name, tensor in make()}

    def __call__(self, sent: Tensor) -> Tensor:
        """What the stitch gives for activations, with gradients to the free tensors."""
        return cast(Tensor, functional_call(self.stitch, self.parameters(), (sent,)))

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """The free tensors as an optimiser takes them, each with its own rate."""
        return [{"params": [tensor], "lr": rate * self.steps[name]} for name, tensor in self.free.items()]

    def state(self) -> dict[str, Tensor]:
        """Copies of the free tensors."""
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


def _measured(stitch: nn.Module, sent: Tensor) -> dict[nn.Module, _Read]:
    """What every layer of a stitch, in evaluation mode, reads and gives on some activations."""
    found: dict[nn.Module, _Read] = {}

    def hook(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        read, gave = (_rows(layer, x) for x in (given[0], out))
        mean = torch.zeros_like(read[0]) if isinstance(layer, nn.Conv2d) and any(_padding(layer)) else read.mean(0)
        made = _Read(mean, _deviation(read), _deviation(gave))
        found[layer] = _standardised(layer, made) if isinstance(layer, Norm) and _is_plain(layer) else made

    layers = [layer for layer in stitch.modules() if isinstance(layer, Layer)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        stitch.eval()(sent)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _standardised(layer: Norm, read: _Read) -> _Read:
    """What a BatchNorm scales and shifts: what it reads, by its running statistics."""
    mean, variance = (cast(Tensor, each).float() for each in (layer.running_mean, layer.running_var))
    spread = (variance + layer.eps).sqrt()
    return _Read((read.mean - mean) / spread, read.std / spread, read.out_std)


def _rows(layer: nn.Module, x: Tensor) -> Tensor:
    return (x.movedim(1, -1) if isinstance(layer, nn.Conv2d | Norm) else x).flatten(0, -2).float()


def _deviation(rows: Tensor) -> Tensor:
    """The deviations of features, none much below the largest; 1 where nothing varies."""
    std = rows.std(0, correction=0)
    largest = std.max()
    return std.clamp(min=float(LEAST * largest)) if largest > 0 else torch.ones_like(std)


def _padding(layer: nn.Conv2d) -> Sequence[int]:
    return (1,) if isinstance(layer.padding, str) else layer.padding

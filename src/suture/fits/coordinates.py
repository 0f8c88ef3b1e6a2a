"""Coordinates of a descent in which one rate suits nearly all seams.

All changes of coordinates are exact and stay within the family. *Whitened* ones are

    W = σ_y · U · Vᵀ / σ_x        b = σ_y · v − W·μ_x

with ``μ_x`` the mean of what a layer ``y = W·x + b`` reads and ``V`` the eigenvectors of its covariance, along which
Adam then steps; ``σ_y`` the size of the deviations of all that it gives where the descent begins, and ``σ_x`` the
deviation along each direction, whose variance ``ridge`` times the mean variance is added to. Whitening fits sooner what
directions of little variance hold, be it what the receiver needs or noise. *Plain* ones have no ``V``, no ``μ_x`` and
one ``σ_x``, the root mean square of all that is read: directions of little variance hardly move. Which is better
depends on the seam.

A step on ``U`` and ``v`` is ``rate / √(features read)``. A layer that reads more channels than ``ROTATED`` has no
``V``, and one size. A BatchNorm, in evaluation mode, is such a layer of one feature each, of what it has standardised.
A zero-padded convolution is not centred (see ``fits.descent``). Other parameters are taken as they are, in units of 1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suture.common.scaling import deviation, unit_of
from suture.core.stitches.base import ScaleAndShift
from suture.fits.base import State
from suture.fits.descent import is_padded, rows_of, run_watched

MEASURED = 256  #: samples whose means, deviations and covariances are taken, at least
ROTATED = 1024  #: channels that are rotated, at most; the eigenvectors of more take seconds
ROTATED_BY = 2**16  #: positions whose covariance is taken, at most, unless samples are few
WHITE = 0.01  #: a ridge by which each direction has its own size
LEAST = 1e-3  #: deviations below this share of the largest count as this
OTHERS = 0.2  #: the step, relative to the rate, of parameters in units of 1, and of BatchNorms

Norm = nn.BatchNorm1d | nn.BatchNorm2d
Layer = nn.Linear | nn.Conv2d | ScaleAndShift | Norm


@dataclass(frozen=True, eq=False)
class _Read:
    """The statistics of one layer's inputs and outputs: means and deviations of its features.

    ``into`` maps weights of channels to those of rotated channels ``(channels, channels)``, and ``back`` back.
    """

    mean: Tensor
    std: Tensor
    out_std: Tensor
    into: Tensor | None = None
    back: Tensor | None = None


Reads = Mapping[nn.Module, _Read]
"""The means and deviations of the features that every layer of a stitch reads and gives."""


class Coordinates:
    """The parameters of a stitch, as free tensors for the descent and as the tensors that the stitch uses.

    ``reads`` holds the statistics of each layer's inputs and outputs (``measure_layers``). Nothing is written into the
    stitch before ``write``.
    """

    def __init__(self, stitch: nn.Module, reads: Reads) -> None:
        self.stitch = stitch
        self.free: State = {}
        self.steps: dict[str, float] = {}
        self._made: list[Callable[[State], Iterator[tuple[str, Tensor]]]] = []
        self._freed: list[Callable[[State], Iterator[tuple[str, Tensor]]]] = []
        known: set[int] = set()
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

    def parameters(self) -> State:
        """Return the parameters of the stitch, made of the free tensors."""
        return {name: tensor for make in self._made for name, tensor in make(self.free)}

    def __call__(self, sent: Tensor) -> Tensor:
        """Return the stitch's outputs for activations, with gradients to the free tensors."""
        return cast(Tensor, functional_call(self.stitch, self.parameters(), (sent,)))

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Return the free tensors as an optimiser takes them, each with its own rate."""
        return [{"params": [tensor], "lr": rate * self.steps[name]} for name, tensor in self.free.items()]

    def load(self, parameters: State) -> None:
        """Set the free tensors so that the stitch has these parameters, given by name."""
        with torch.no_grad():
            for free in self._freed:
                for name, tensor in free(parameters):
                    self.free[name].copy_(tensor)

    def mean(self, state: Sequence[Tensor]) -> State:
        """Return the parameters of the stitch at values of the free tensors, which are in their order."""
        with torch.no_grad():
            given = dict(zip(self.free, state, strict=True))
            return {name: tensor.contiguous() for make in self._made for name, tensor in make(given)}

    def _add_layer(self, prefix: str, layer: Layer, read: _Read) -> None:
        weight = layer.weight.detach()
        ends = [1] * (weight.ndim - 2)
        if isinstance(layer, ScaleAndShift | Norm):
            unit, step = read.out_std / read.std, 1.0 if isinstance(layer, ScaleAndShift) else OTHERS
            taps: Callable[[Tensor], Tensor] = lambda w: w * read.mean  # noqa: E731
        else:
            unit = read.out_std.reshape(-1, 1, *ends)
            unit = unit / read.std.reshape(1, -1, *ends) if read.into is None else unit
            step = weight[0].numel() ** -0.5
            taps = lambda w: w.flatten(2).sum(2) @ read.mean if w.ndim == 4 else w @ read.mean  # noqa: E731
        names = f"{prefix}weight", f"{prefix}bias"

        def free(own: State) -> Iterator[tuple[str, Tensor]]:
            yield names[0], _mix(own[names[0]] / unit, read.into)
            if layer.bias is not None:
                yield names[1], (own[names[1]] + taps(own[names[0]])) / read.out_std

        self._freed.append(free)
        for name, value in free({f"{prefix}{name}": each.detach() for name, each in layer.named_parameters()}):
            self._add(name, value, step)

        def make(given: State) -> Iterator[tuple[str, Tensor]]:
            made = _mix(given[names[0]], read.back) * unit
            yield names[0], made
            if layer.bias is not None:
                yield names[1], given[names[1]] * read.out_std - taps(made)

        self._made.append(make)

    def _add_other(self, name: str, parameter: Tensor) -> None:
        self._add(name, parameter.detach().clone(), OTHERS)
        self._made.append(lambda given: iter([(name, given[name])]))
        self._freed.append(lambda own: iter([(name, own[name].detach().clone())]))

    def _add(self, name: str, value: Tensor, step: float) -> None:
        self.free[name], self.steps[name] = value.contiguous(), step


def _is_plain(layer: nn.Module) -> bool:
    """Return whether every output of a layer reads every feature, or its own alone, by a weight that is a parameter."""
    if hasattr(layer, "parametrizations"):
        return False
    return layer.affine and layer.track_running_stats if isinstance(layer, Norm) else getattr(layer, "groups", 1) == 1


def _mix(weight: Tensor, by: Tensor | None) -> Tensor:
    """Map the channels that a weight ``(out, in, …)`` reads, if they are to be mapped."""
    return weight if by is None else torch.einsum("oc...,cj->oj...", weight, by)


def measure_layers(stitch: nn.Module, sent: Tensor, ridge: float | None) -> Reads:
    """Measure the features that every layer of a stitch, in evaluation mode, reads and gives on activations ``(n, …)``.

    Without a ``ridge`` the units are plain: a layer's parameters are only scaled, by one number each, the size of what
    it reads, and what it gives varies by.
    """
    positions = max(1, prod(sent.shape[2:]) if sent.ndim == 4 else prod(sent.shape[1:-1]))
    some = max(MEASURED, min(ROTATED_BY // positions, 4 * MEASURED))
    given = sent[:some].to(next(stitch.parameters()).device)
    rows: dict[nn.Module, tuple[list[Tensor], list[Tensor]]] = {}

    def see(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        read, gave = rows.setdefault(layer, ([], []))
        read.append(rows_of(layer, given[0]).float())
        gave.append(rows_of(layer, out).float())

    run_watched(stitch, [layer for layer in stitch.modules() if isinstance(layer, Layer)], given, see)
    return {layer: _measure(ridge, layer, torch.cat(read), torch.cat(gave)) for layer, (read, gave) in rows.items()}


def _measure(ridge: float | None, layer: nn.Module, read: Tensor, gave: Tensor) -> _Read:
    mean = torch.zeros_like(read[0]) if is_padded(layer) else read.mean(0)
    std, out_std = _deviation(read), _deviation(gave)
    if isinstance(layer, Norm) and _is_plain(layer):  # what it scales and shifts is already standardised
        running, variance = (cast(Tensor, each).float() for each in (layer.running_mean, layer.running_var))
        spread = (variance + layer.eps).sqrt()
        return _Read((mean - running) / spread, std / spread, out_std)
    if isinstance(layer, ScaleAndShift | Norm):
        return _Read(mean, std, out_std)
    out_std = _alike(out_std)
    if ridge is None:
        size = _root_mean_square(read)
        size = size if size > 0 else torch.ones_like(size)
        return _Read(torch.zeros_like(mean), size.expand(mean.shape), out_std)
    if len(mean) > ROTATED:
        return _Read(mean, _alike(std), out_std)
    centred = (read - mean).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    values = values.clamp(min=0)
    softened = (values + ridge * values.mean()) / (1 + ridge)
    # Times two, because the rates were tuned in units of variance + mean variance: twice that of a typical direction.
    scale = (2 * softened).sqrt() if values.mean() > 0 else torch.ones_like(values)
    return _Read(mean, std, out_std, (vectors * scale).to(read), (vectors / scale).T.contiguous().to(read))


def _alike(deviations: Tensor) -> Tensor:
    """Return the root of the mean square of deviations, for each of them."""
    return _root_mean_square(deviations).expand(deviations.shape)


def _root_mean_square(values: Tensor) -> Tensor:
    unit = unit_of(values)
    return (values / unit).square().mean().sqrt() * unit


def _deviation(rows: Tensor) -> Tensor:
    """Return the deviations of features, none much below the largest; 1 if nothing varies."""
    std = deviation(rows)
    largest = std.max()
    return std.clamp(min=float(LEAST * largest)) if largest > 0 else torch.ones_like(std)

"""The default fit: the closed form, then a short descent on the task loss; nothing to be set.

1. The closed form of ``LeastSquares``, each output channel rescaled to the receiver's deviation, from as many samples
   as a map of so many features needs (``ROWS``).
2. If only pooling and a linear layer follow, the task loss is convex, and its minimum is computed (``fits.convex``).
3. Else Adam descends from there on the task loss, in coordinates in which one rate suits nearly all seams
   (``Coordinates``), through the receiver's fused suffix if that was seen to agree (``choose_suffix``). A few steps at
   each of several rates tell which to take; the steps then come in rounds, each annealed to a rate of zero and three
   times as long as the one before, the last as long as steps are left. A round, other than the first, that lowers the
   validation loss by less than ``WORTH`` of it was the last. The best parameters seen, the start's included, are kept.

bansal2021, section 2, defines the penalty by the smallest task loss over the family; all this is a way towards it, and
like any descent ends above it. ``BestOf`` tries several starts. The constants were set on the seams of two CIFAR-10
networks, the sharing of steps among rounds on those of two others; ``docs/speed.md`` says what was in sight meanwhile.

Coordinates. All changes of coordinates are exact and stay within the family:

    W = σ_y · U / σ_x        b = σ_y · v − W·μ_x

with ``μ_x`` and ``σ_x`` the means and deviations of what a layer ``y = W·x + b`` reads and ``σ_y`` the deviation of
each feature that it gives, all as they are where the descent begins, and a step on ``U`` and ``v`` is
``rate / √(features read)``. A BatchNorm, in evaluation mode, is such a layer of one feature each, of what it has
standardised. A zero-padded convolution is not centred (see ``fits.descent``). Other parameters are taken as they are,
in units of 1.

Which suffix. A fused suffix (``suture.core.fused``) is compared with the eager one on a probe before it is used. What
it may differ by depends on its use: a descent only needs a direction, and takes outputs that are off by a twentieth of
what they vary by. A score needs more: see ``measurement.trials.measure``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.processor import half_precision
from suture.common.seeds import drawing
from suture.common.validation import check_whole
from suture.core.fused import Fused
from suture.core.network.network import Frozen
from suture.core.stitches import (
    AffineMap,
    AffineStitch,
    Conv,
    Linear,
    Moments,
    Part,
    Stitch,
    StridedConv,
    UpsampledConv,
)
from suture.core.stitches.base import ScaleAndShift, Shape
from suture.fits import convex
from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.descent import draw_batches, is_padded, rows_of, run_watched
from suture.fits.least_squares import accumulate_moments, solve_closed_form

ROWS = 2**15  #: positions from which the closed form's moments are taken
WORK = 5e9  #: multiply-adds for them, at most, unless samples are few
SAMPLES = 1024  #: samples that are not few
RIDGES = (1e-5, 1e-3, 1e-1)  #: candidates, relative to the mean variance of the sender's features
MORE = 4  #: times as many steps through a short suffix, at most
FIRST = 30  #: steps of the first round
LONGER = 3  #: times as long as a round is the next
RATE = 0.03  #: of Adam, in the coordinates of the descent, at least
RATES = 3.0  #: the factor between the rates that are tried, and between the best of a few steps and that of many
PROBES = 6  #: steps that each is tried for
REACH = 4  #: of them, at most
BETAS = (0.8, 0.95)  #: of Adam; shorter memories than its defaults, because a round may have but 30 steps
WORTH = 0.03  #: the share of the validation loss that a round must take off for another to follow
RETREAT = 4.0  #: the rate is divided by this, and the round begun again, if it made the validation loss worse
RETREATS = 1  #: so often
HELD_OUT = 1024  #: validation samples that are looked at, at most
CHUNK = 256
PROBED = 256  #: samples whose means and deviations ``Coordinates`` take
WHITENED = 1024  #: channels that are whitened, at most; the eigenvectors of more take seconds
WHITENED_BY = 2**16  #: positions whose covariance whitens, at most, unless samples are few
LEAST = 1e-3  #: deviations below this share of the largest count as this
OTHERS = 0.2  #: the step, relative to the rate, of parameters in units of 1, and of BatchNorms
ALLOWED = {torch.float32: 1e-3}  #: root mean square by which a fused suffix may be off, if outputs vary by 1
ALLOWED_HALF = 0.05

Norm = nn.BatchNorm1d | nn.BatchNorm2d
Layer = nn.Linear | nn.Conv2d | ScaleAndShift | Norm
MakeFused = Callable[[torch.dtype], Fused | None]
"""Makes the fused suffix in a floating type, if there is one."""


@keyed_as("Fast")
@final
@dataclass(frozen=True)
class Fast(Fit):
    """The closed form, then a short descent on the task loss until the validation loss no longer falls.

    ``steps`` is the most steps that are taken, of ``batch`` samples each, through a whole receiver; through a suffix,
    which costs less, more (see ``most``). 0 leaves it at the closed form. A family that has no closed form begins at
    random. Raises ``FitError`` if the loss is not finite at any rate.
    """

    steps: int = 240
    batch: int = 32

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            check_whole(f"Fast: {name}", getattr(self, name), FitError)
        if self.steps < 0 or self.batch < 1:
            raise FitError(f"{self}: steps must be at least 0, and batch at least 1")

    def reads(self, shape: Shape) -> float:
        """Return the number of samples whose receiver activations the closed form needs."""
        return count_samples(shape)

    def most(self, share: float) -> int:
        """Return the most steps through a suffix that is this share of the receiver's operations.

        They grow by the square root of what a step saves, so that the cost of the seam falls by it; at most ``MORE``
        times ``steps``.
        """
        return round(self.steps / math.sqrt(max(share, MORE**-2)))

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""

        def descend(stitch: nn.Module, suffix: nn.Module) -> FitReport:
            descent = AnnealedRounds(problem, stitch, suffix, self.batch)
            steps, converged = descent.run(self.most(problem.share))
            return FitReport(steps, converged, tuple(descent.curve))

        return fit_from_closed_form(problem, stitch, descend if self.steps else None)


Descend = Callable[[nn.Module, nn.Module], FitReport]
"""Lowers the task loss of a stitch, in place, through a suffix ``(n, *receiver shape)`` → outputs."""


def fit_from_closed_form(problem: Problem, stitch: nn.Module, descend: Descend | None) -> FitReport:
    """Load the closed form; go on to the minimum of the task loss if that is convex, else by a descent if there is one.

    Leaves the stitch in evaluation mode.
    """
    stitch.eval()
    if next(stitch.parameters(), None) is None:
        return FitReport(gap=0.0)
    bare = _without_batchnorms(problem, stitch)
    maps = _load_closed_forms(problem, bare)
    start = "closed form" if maps else "random"
    report = FitReport(converged=False) if descend is None else _lower(problem, bare, maps, descend)
    bare.write_back(maps)
    return replace(report, start=start)


def _lower(problem: Problem, bare: "_Bare", maps: list[AffineMap], descend: Descend) -> FitReport:
    """Lower the task loss from the closed form on: to its minimum if it is convex, else by gradient descent."""
    with torch.no_grad():  # of a copy, since a stitch may write into what it is given
        device = next(bare.stitch.parameters()).device
        probe = bare.stitch(problem.fit.activations[:PROBED].to(device, copy=True))
    chosen = choose_suffix(problem.suffix, problem.fused, probe)
    notes = (chosen.note,) if chosen.note else ()
    if chosen.only_head and _is_one_map(bare.family):
        head = convex.read_head(chosen.run, tuple(probe.shape[1:]), bare.parts[0], probe)
        if head is not None:
            return replace(_solve_convex(problem, bare, maps, head), notes=notes)
    return replace(descend(bare.stitch, chosen.run), notes=notes)


@dataclass(frozen=True, eq=False)
class _Bare:
    """The stitch that is fitted: the one given or, if that has BatchNorms that add nothing, one like it without them.

    A BatchNorm before or after a map of single pixels is itself such a map, so the family is the same without it, and
    descends faster.
    """

    family: Stitch
    stitch: nn.Module
    parts: Sequence[Part]
    given: Sequence[Part] | None  #: of the stitch that was given, if it is another

    def write_back(self, maps: list[AffineMap]) -> None:
        """Give the stitch that was given what this one computes; ``maps`` hold the moments of its rows."""
        if self.given is not None:
            conv = next(module for module in self.stitch.modules() if isinstance(module, nn.Conv2d))
            assert conv.bias is not None
            weight, bias = conv.weight.detach().double().flatten(1), conv.bias.detach().double()
            self.given[0].load(replace(maps[0], weight=weight.cpu(), bias=bias.cpu()))


def _without_batchnorms(problem: Problem, stitch: nn.Module) -> _Bare:
    family, sent = problem.family, problem.fit.activations
    if not isinstance(family, AffineStitch):
        return _Bare(family, stitch, (), None)
    parts = family.parts(stitch, sent)
    pixelwise = isinstance(family, StridedConv | UpsampledConv) or (isinstance(family, Conv) and family.kernel == 1)
    if not (pixelwise and family.batchnorm):  # type: ignore[attr-defined]
        return _Bare(family, stitch, parts, None)
    bare: AffineStitch = replace(family, batchnorm=False)  # type: ignore[type-var]
    device = next(stitch.parameters()).device
    with drawing(device):
        other = bare.build(tuple(sent.shape[1:]), tuple(problem.fit.expected().shape[1:])).to(device).eval()
    return _Bare(bare, other, bare.parts(other, sent), parts)


def _is_one_map(family: Stitch) -> bool:
    """Whether its stitches are one map of rows, which may be any."""
    single = isinstance(family, Conv) and family.kernel == 1
    return single or isinstance(family, Linear | StridedConv | UpsampledConv)


def _load_closed_forms(problem: Problem, bare: _Bare) -> list[AffineMap]:
    """Load the closed form of every affine map of the stitch and return them; none if the family has none."""
    maps = []
    family = bare.family
    for part in bare.parts:
        assert isinstance(family, AffineStitch)
        known, held_out = (_some_moments(side, part) for side in (problem.fit, problem.validation))
        maps.append(solve_closed_form(family, known, held_out, RIDGES, rescale=True))
        part.load(maps[-1])
    return maps


def count_samples(shape: Shape) -> int:
    """Return how many samples tell a map to tensors of a shape: ``ROWS`` positions, but not few samples."""
    return max(SAMPLES, ROWS // prod(shape[1:] if len(shape) > 2 else shape[:-1]))


def count_sufficient(shape: Shape, rows: int, features: int) -> int:
    """Return how many samples moments are taken from, if each has so many rows of so many features."""
    return min(count_samples(shape), max(SAMPLES, int(WORK / (rows * features**2))))


def _some_moments(side: Side, part: Part) -> Moments:
    """Moments from as many samples as a map of so many features needs; products in float32."""
    x, expected = side.activations, side.expected()
    rows, features = part.reads(x[:1]).shape
    some = count_sufficient(tuple(expected.shape[1:]), rows, features)
    made = accumulate_moments(x[:some], expected[:some].to(x.device), part, torch.float32)
    return Moments(*(getattr(made, each.name).cpu() for each in fields(made)))


def _solve_convex(problem: Problem, bare: _Bare, maps: list[AffineMap], head: convex.Head) -> FitReport:
    """Solve the convex problem and load its solution."""
    fit, held_out = ((side.activations.cpu(), side.labels.cpu()) for side in (problem.fit, problem.validation))
    found = convex.solve(head, bare.parts[0], maps[0], fit, held_out)
    maps[0] = found.affine
    bare.parts[0].load(found.affine)
    curve = (CurvePoint(0, math.nan, found.start_loss), CurvePoint(found.iterations, found.fit_loss, found.loss))
    return FitReport(found.iterations, True, curve, gap=0.0)


class AnnealedRounds:
    """Adam from where the stitch is, in rounds, until the validation loss no longer falls.

    ``suffix`` maps represented tensors ``(n, *receiver shape)`` to outputs.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, suffix: nn.Module, batch: int) -> None:
        self.problem, self.suffix = problem, suffix
        self.device = next(stitch.parameters()).device
        self.coordinates = Coordinates(stitch, problem.fit.activations[:PROBED].to(self.device))
        self.batches = draw_batches(len(problem.fit.labels), batch, problem.seed)
        self.curve: list[CurvePoint] = []

    def run(self, most: int) -> tuple[int, bool]:
        """Take at most so many steps; return how many, and whether it converged."""
        self.best, self.losses = self.coordinates.state(), self._held_out()
        self._note(0, math.nan)
        rate, done = self._find_rate(most)
        length, converged, retreats = _plan_round(FIRST, most - done), False, 0
        adam = self._adam(rate)
        while done < most and not converged:
            fit_loss = self._round(adam, rate, length)
            done += length
            fallen = self._keep_if_better()
            self._note(done, fit_loss)
            if fallen < 0 and retreats < RETREATS:
                retreats, rate = retreats + 1, rate / RETREAT
                self.coordinates.restore(self.best)
                adam = self._adam(rate)
            else:
                converged, length = fallen < WORTH and length > FIRST, LONGER * length
            length = _plan_round(length, most - done)
        if not math.isfinite(float(self.losses.mean())):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        self.coordinates.restore(self.best)
        self.coordinates.write()
        return done, converged

    def _adam(self, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(self.coordinates.groups(rate), betas=BETAS)

    def _find_rate(self, most: int) -> tuple[float, int]:
        """Return the rate for many steps, and the steps taken to find it; the usual rate if there are few steps.

        Of a few steps at each rate, all on the same batches, the best tells: many annealed steps bear a larger rate.
        """
        if most <= 2 * FIRST:
            return RATE, 0
        drawn = [next(self.batches) for _ in range(PROBES)]
        best, tried, least = 0, 0, self._try(RATE / RATES, drawn)
        for tried in range(1, REACH + 1):
            loss = self._try(RATE * RATES ** (tried - 1), drawn)
            if loss >= least:
                break
            best, least = tried, loss
        return RATE * RATES**best, PROBES * (tried + 1)

    def _try(self, rate: float, drawn: list[Tensor]) -> float:
        """Return the loss that steps at this rate end at, infinite if they diverge, and go back to the start."""
        adam = self._adam(rate)
        losses = [self._step(adam, batch) for batch in drawn]
        self.coordinates.restore(self.best)
        return sum(losses[PROBES // 2 :]) if math.isfinite(sum(losses)) else math.inf

    def _round(self, adam: torch.optim.Adam, rate: float, length: int) -> float:
        """Take steps that anneal from the rate to zero; return the mean loss of the batches."""
        total = 0.0
        whole = [group["lr"] for group in self.coordinates.groups(rate)]
        for step in range(length):
            for group, lr in zip(adam.param_groups, whole, strict=True):
                group["lr"] = lr * (1 + math.cos(math.pi * step / length)) / 2
            total += self._step(adam, next(self.batches))
        return total / length

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> float:
        """Take a step on a batch; return the loss before it."""
        loss = self._sample_losses(self.problem.fit, chosen).mean()
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=list(self.coordinates.free.values()))
        adam.step()
        return float(loss.detach())

    def _held_out(self) -> Tensor:
        """Return the loss of every validation sample that is looked at."""
        side = self.problem.validation
        chunks = torch.arange(min(HELD_OUT, len(side.labels))).split(CHUNK)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return torch.cat([self._sample_losses(side, chosen).double().cpu() for chosen in chunks])

    def _sample_losses(self, side: Side, chosen: Tensor) -> Tensor:
        """Return the cross-entropy of each of these samples, in nats."""
        sent = side.activations[chosen].to(self.device)
        if sent.ndim == 4:
            sent = sent.contiguous(memory_format=torch.channels_last)
        labels = side.labels[chosen].to(self.device)
        return nn.functional.cross_entropy(self.suffix(self.coordinates(sent)), labels, reduction="none")

    def _keep_if_better(self) -> float:
        """Return the share by which the validation loss has fallen below the best; if it has, keep what gave it."""
        losses = self._held_out()
        fallen = 1 - float(losses.mean() / self.losses.mean())
        if fallen > 0:
            self.best, self.losses = self.coordinates.state(), losses
        return fallen if math.isfinite(fallen) else -1.0

    def _note(self, step: int, fit_loss: float) -> None:
        self.curve.append(CurvePoint(step, fit_loss, float(self.losses.mean())))


def _plan_round(planned: int, left: int) -> int:
    """The steps of a round: what is planned, or all that are left if the next could not be ``LONGER`` in turn."""
    return planned if left - planned >= LONGER * planned else left


# --- coordinates -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Read:
    """What one layer reads and gives: means and deviations of its features.

    ``into`` maps weights of channels to those of whitened channels ``(channels, channels)``, and ``back`` back.
    """

    mean: Tensor
    std: Tensor
    out_std: Tensor
    into: Tensor | None = None
    back: Tensor | None = None


class Coordinates:
    """The parameters of a stitch, as free tensors to be descended on and as what the stitch computes with.

    ``sent`` are activations ``(n, *sender shape)`` of the type that the stitch reads. With ``whiten`` the channels that
    a layer reads are whitened (see ``fits.converged``), of at most ``WHITENED``. Nothing is written into the stitch
    before ``write``.
    """

    def __init__(self, stitch: nn.Module, sent: Tensor, whiten: bool = False) -> None:
        self.stitch = stitch
        self.free: dict[str, Tensor] = {}
        self.steps: dict[str, float] = {}
        self._made: list[Callable[[], Iterator[tuple[str, Tensor]]]] = []
        known: set[int] = set()
        positions = max(1, prod(sent.shape[2:]) if sent.ndim == 4 else prod(sent.shape[1:-1]))
        some = max(PROBED, min(WHITENED_BY // positions, 4 * PROBED)) if whiten else PROBED
        reads = _measure_layers(stitch, sent[:some], whiten)
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
            unit = read.out_std.reshape(-1, 1, *ends)
            unit = unit / read.std.reshape(1, -1, *ends) if read.into is None else unit
            step = weight[0].numel() ** -0.5
            taps = lambda w: w.flatten(2).sum(2) @ read.mean if w.ndim == 4 else w @ read.mean  # noqa: E731
        names = f"{prefix}weight", f"{prefix}bias"
        self._add(names[0], _mix(weight / unit, read.into), step)
        if layer.bias is not None:
            self._add(names[1], (layer.bias.detach() + taps(weight)) / read.out_std, step)

        def make() -> Iterator[tuple[str, Tensor]]:
            made = _mix(self.free[names[0]], read.back) * unit
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


def _mix(weight: Tensor, by: Tensor | None) -> Tensor:
    """Map the channels that a weight ``(out, in, …)`` reads, if they are to be mapped."""
    return weight if by is None else torch.einsum("oc...,cj->oj...", weight, by)


def _measure_layers(stitch: nn.Module, sent: Tensor, whiten: bool) -> dict[nn.Module, _Read]:
    """Measure what every layer of a stitch, in evaluation mode, reads and gives on some activations."""
    rows: dict[nn.Module, tuple[list[Tensor], list[Tensor]]] = {}

    def see(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        read, gave = rows.setdefault(layer, ([], []))
        read.append(rows_of(layer, given[0]).float())
        gave.append(rows_of(layer, out).float())

    run_watched(stitch, [layer for layer in stitch.modules() if isinstance(layer, Layer)], sent, see)
    return {layer: _measure(layer, torch.cat(read), torch.cat(gave), whiten) for layer, (read, gave) in rows.items()}


def _measure(layer: nn.Module, read: Tensor, gave: Tensor, whiten: bool) -> _Read:
    mean = torch.zeros_like(read[0]) if is_padded(layer) else read.mean(0)
    std, out_std = _deviation(read), _deviation(gave)
    if isinstance(layer, Norm) and _is_plain(layer):  # what it scales and shifts is already standardised
        running, variance = (cast(Tensor, each).float() for each in (layer.running_mean, layer.running_var))
        spread = (variance + layer.eps).sqrt()
        return _Read((mean - running) / spread, std / spread, out_std)
    if not whiten or isinstance(layer, ScaleAndShift | Norm) or len(mean) > WHITENED:
        return _Read(mean, std, out_std)
    centred = (read - mean).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    values = values.clamp(min=0)
    scale = (values + values.mean()).sqrt() if values.mean() > 0 else torch.ones_like(values)
    return _Read(mean, std, out_std, (vectors * scale).to(read), (vectors / scale).T.contiguous().to(read))


def _deviation(rows: Tensor) -> Tensor:
    """The deviations of features, none much below the largest; 1 if nothing varies."""
    std = rows.std(0, correction=0)
    largest = std.max()
    return std.clamp(min=float(LEAST * largest)) if largest > 0 else torch.ones_like(std)


# --- which suffix ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Chosen:
    """A suffix to descend through, and why it is not the cheapest."""

    run: nn.Module
    note: str = ""

    @property
    def only_head(self) -> bool:
        """Whether nothing but pooling and a linear layer follows the cut, or nothing at all."""
        if isinstance(self.run, Fused):
            return self.run.only_head
        return isinstance(self.run, Frozen) and not self.run.segments


def list_precisions(device: torch.device) -> list[torch.dtype]:
    """Return the floating types to try on a device, the fastest first."""
    half = half_precision(device)
    return [torch.float32] if half is None else [half, torch.float32]


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of the type, without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def choose_suffix(own: nn.Module, fused: MakeFused | None, probe: Tensor) -> Chosen:
    """Return the cheapest suffix that agrees with the receiver's own on a probe of represented tensors ``(n, …)``."""
    if fused is None:
        return Chosen(own)
    with torch.no_grad():
        wanted = own(probe).float()
        unit = float((wanted - wanted.mean(0)).square().mean().sqrt())
        refused: list[str] = []
        for dtype in list_precisions(probe.device):
            made = fused(dtype)
            if made is None:
                return Chosen(own)
            off = _off(made, probe, wanted)
            if off <= ALLOWED.get(dtype, ALLOWED_HALF) * unit:
                return Chosen(made, _explain(refused, name_dtype(dtype)))
            refused.append(f"in {name_dtype(dtype)} by {off / unit if unit else float('inf'):.2g}")
    return Chosen(own, _explain(refused, "the receiver itself"))


def _off(made: nn.Module, probe: Tensor, wanted: Tensor) -> float:
    try:
        return float((made(probe) - wanted).square().mean().sqrt())
    except Exception:  # a user's layer may refuse another memory layout or floating type
        return float("inf")


def _explain(refused: list[str], instead: str) -> str:
    if not refused:
        return ""
    return f"the fused suffix differs {' and '.join(refused)} of what the outputs vary by: fitted through {instead}"

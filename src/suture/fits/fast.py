"""The default fit: the closed form, then a short descent on the task loss; nothing to be set.

1. The closed form of ``LeastSquares``, each output channel rescaled to the receiver's deviation, from as many samples
   as such a map of features needs (``ROWS``).
2. Where only pooling and a linear layer follow, the task loss is convex, and its minimum is computed (``fits.convex``).
3. Else Adam descends from there on the task loss, in coordinates in which one rate suits nearly all seams
   (``fits.coordinates``), through the receiver's fused suffix where that was seen to agree (``fits.suffixes``). A few
   steps at each of some rates tell which to take; the steps then come in rounds, each annealed to a rate of zero and
   three times as long as the one before, the last as long as steps are left. A round, other than the first, that lowers
   the validation loss by less than ``WORTH`` of it was the last. The best parameters seen, the start's included, are
   kept.

bansal2021, section 2, defines the penalty by the smallest task loss over the family; all this is a way towards it, and
like any descent ends above it. ``BestOf`` tries several starts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import final

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.validation import whole_number
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
from suture.core.stitches.base import Shape
from suture.fits import convex
from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.descent import batches
from suture.fits.least_squares import closed_form, moments
from suture.fits.preconditioning import PROBED, Coordinates
from suture.fits.suffix import Ask, Asking, choose, driven

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
BETAS = (0.8, 0.95)  #: of Adam
WORTH = 0.03  #: the share of the validation loss that a round must take off for another to follow
RETREAT = 4.0  #: the rate is divided by this, and the round begun again, where it made the validation loss worse
RETREATS = 1  #: so often
HELD_OUT = 1024  #: validation samples that are looked at, at most
CHUNK = 256


@keyed_as("Fast")
@final
@dataclass(frozen=True)
class Fast(Fit):
    """The closed form, then a short descent on the task loss until the validation loss no longer falls.

    ``steps`` is the most steps that are taken, of ``batch`` samples each, through a whole receiver; through a suffix,
    which costs less, more (see ``most``). 0 leaves it at the closed form. A family that has no closed form begins at
    random. Raises ``FitError`` where the loss is not finite at any rate.
    """

    steps: int = 240
    batch: int = 32

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            whole_number(f"Fast: {name}", getattr(self, name), FitError)
        if self.steps < 0 or self.batch < 1:
            raise FitError(f"{self}: steps must be at least 0, and batch at least 1")

    def reads(self, shape: Shape) -> float:
        """Enough for the closed form."""
        return enough(shape)

    def most(self, share: float) -> int:
        """The most steps through a suffix that is this share of the receiver's operations.

        They grow by the square root of what a step saves, so that the cost of the seam falls by it; at most ``MORE``
        times ``steps``.
        """
        return round(self.steps / math.sqrt(max(share, MORE**-2)))

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""
        begun = self.begin(problem, stitch)
        return begun if isinstance(begun, FitReport) else driven(begun.rest, begun.through)

    def begin(self, problem: Problem, stitch: nn.Module) -> "FitReport | Begun":
        """Do all that comes before a descent; the report, where none follows."""
        stitch.eval()
        if next(stitch.parameters(), None) is None:
            return FitReport()
        plain = _plain(problem, stitch)
        maps = _closed_forms(problem, plain)
        begun = self._begun(problem, plain, maps) if self.steps else FitReport(converged=False)
        if isinstance(begun, FitReport):
            plain.write(maps)
        return begun

    def _begun(self, problem: Problem, plain: "_Plain", maps: list[AffineMap]) -> "FitReport | Begun":
        sent = problem.fit.activations
        device = next(plain.stitch.parameters()).device
        with torch.no_grad():
            probe = plain.stitch(sent[:PROBED].to(device, copy=True))  # into which a stitch may write
        through = choose(problem.suffix, problem.fused, probe)
        notes = (through.note,) if through.note else ()
        if through.only_head and _is_free(plain.family):
            head = convex.head_of(through.run, tuple(probe.shape[1:]), plain.parts[0], probe)
            if head is not None:
                return replace(_solved(problem, plain, maps, head), notes=notes)
        return Begun(through.run, self._descend(problem, plain, maps, notes))

    def _descend(
        self, problem: Problem, plain: "_Plain", maps: list[AffineMap], notes: tuple[str, ...]
    ) -> Asking[FitReport]:
        descent = _Descent(problem, plain.stitch, self.batch)
        steps, converged = yield from descent.run(self.most(problem.share))
        plain.write(maps)
        return FitReport(steps, converged, tuple(descent.curve), notes=notes)


@dataclass(frozen=True, eq=False)
class Begun:
    """A fit whose descent is left, and the suffix through which it asks for its losses."""

    through: nn.Module
    rest: Asking[FitReport]


@dataclass(frozen=True, eq=False)
class _Plain:
    """The stitch that is fitted: the one given or, without BatchNorms that add nothing, one like it."""

    family: Stitch
    stitch: nn.Module
    parts: Sequence[Part]
    given: Sequence[Part] | None  #: of the stitch that was given, where it is another

    def write(self, maps: list[AffineMap]) -> None:
        """Give the stitch that was given what this one computes; ``maps`` hold the moments of its rows."""
        if self.given is not None:
            conv = next(module for module in self.stitch.modules() if isinstance(module, nn.Conv2d))
            assert conv.bias is not None
            weight, bias = conv.weight.detach().double().flatten(1), conv.bias.detach().double()
            self.given[0].load(replace(maps[0], weight=weight.cpu(), bias=bias.cpu()))


def _plain(problem: Problem, stitch: nn.Module) -> _Plain:
    family, sent = problem.family, problem.fit.activations
    if not isinstance(family, AffineStitch):
        return _Plain(family, stitch, (), None)
    parts = family.parts(stitch, sent)
    bare = _bare(family)
    if bare is family:
        return _Plain(family, stitch, parts, None)
    device = next(stitch.parameters()).device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        other = bare.build(tuple(sent.shape[1:]), tuple(problem.fit.expected().shape[1:])).to(device).eval()
    return _Plain(bare, other, bare.parts(other, sent), parts)


def _bare(family: AffineStitch) -> AffineStitch:
    """The family without BatchNorms, where these add nothing to what it can express: before and after single pixels."""
    pixelwise = isinstance(family, StridedConv | UpsampledConv) or (isinstance(family, Conv) and family.kernel == 1)
    return replace(family, batchnorm=False) if pixelwise and family.batchnorm else family  # type: ignore[attr-defined, type-var]


def _is_free(family: Stitch) -> bool:
    """Whether its stitches are one map of rows, which may be any."""
    single = isinstance(family, Conv) and family.kernel == 1
    return single or isinstance(family, Linear | StridedConv | UpsampledConv)


def _closed_forms(problem: Problem, plain: _Plain) -> list[AffineMap]:
    """Load the closed form of every affine map of the stitch; none where the family has none."""
    maps = []
    family = plain.family
    for part in plain.parts:
        assert isinstance(family, AffineStitch)
        known, held_out = (_moments(side, part) for side in (problem.fit, problem.validation))
        maps.append(closed_form(family, known, held_out, RIDGES, rescale=True))
        part.load(maps[-1])
    return maps


def enough(shape: Shape) -> int:
    """Samples from which a map to tensors of a shape is told: ``ROWS`` positions, but not few samples."""
    return max(SAMPLES, ROWS // prod(shape[1:] if len(shape) > 2 else shape[:-1]))


def sufficient(shape: Shape, rows: int, features: int) -> int:
    """Samples that moments are taken from, of each of which there are so many rows of so many features."""
    return min(enough(shape), max(SAMPLES, int(WORK / (rows * features**2))))


def _moments(side: Side, part: Part) -> Moments:
    """Moments from as many samples as a map of so many features needs; products in float32."""
    x, expected = side.activations, side.expected()
    rows, features = part.reads(x[:1]).shape
    some = sufficient(tuple(expected.shape[1:]), rows, features)
    made = moments(x[:some], expected[:some].to(x.device), part, torch.float32)
    return Moments(*(getattr(made, each.name).cpu() for each in fields(made)))


def _solved(problem: Problem, plain: _Plain, maps: list[AffineMap], head: convex.Head) -> FitReport:
    """Solve the convex problem and load its solution."""
    fit, held_out = ((side.activations.cpu(), side.labels.cpu()) for side in (problem.fit, problem.validation))
    found = convex.solve(head, plain.parts[0], maps[0], fit, held_out)
    maps[0] = found.affine
    plain.parts[0].load(found.affine)
    curve = (CurvePoint(0, math.nan, found.start_loss), CurvePoint(found.iterations, found.fit_loss, found.loss))
    return FitReport(found.iterations, True, curve)


def _length(planned: int, left: int) -> int:
    """The steps of a round: what is planned, or all that are left where the next could not be ``LONGER`` in turn."""
    return planned if left - planned >= LONGER * planned else left


class _Descent:
    """Adam from where the stitch is, in rounds, until the validation loss no longer falls.

    It asks for losses instead of computing them, so that several can share one pass through a suffix.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, batch: int) -> None:
        self.problem = problem
        self.device = next(stitch.parameters()).device
        self.coordinates = Coordinates(stitch, problem.fit.activations[:PROBED].to(self.device))
        self.batches = batches(len(problem.fit.labels), batch, problem.seed)
        self.curve: list[CurvePoint] = []

    def run(self, most: int) -> Asking[tuple[int, bool]]:
        """Take at most so many steps; how many, and whether it converged."""
        self.best, self.losses = self.coordinates.state(), (yield from self._held_out())
        self._note(0, math.nan)
        rate, done = yield from self._probed(most)
        length, converged, backed = _length(FIRST, most - done), False, 0
        adam = self._adam(rate)
        while done < most and not converged:
            fit_loss = yield from self._round(adam, rate, length)
            done += length
            fallen = yield from self._kept()
            self._note(done, fit_loss)
            if fallen < 0 and backed < RETREATS:
                backed, rate = backed + 1, rate / RETREAT
                self.coordinates.restore(self.best)
                adam = self._adam(rate)
            else:
                converged, length = fallen < WORTH and length > FIRST, LONGER * length
            length = _length(length, most - done)
        if not math.isfinite(float(self.losses.mean())):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        self.coordinates.restore(self.best)
        self.coordinates.write()
        return done, converged

    def _adam(self, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(self.coordinates.groups(rate), betas=BETAS)

    def _probed(self, most: int) -> Asking[tuple[float, int]]:
        """The rate for many steps, and the steps taken to find it; the usual one where there are few.

        Of a few steps at each rate, all on the same batches, the best tells: many annealed steps bear a larger rate.
        """
        if most <= 2 * FIRST:
            return RATE, 0
        drawn = [next(self.batches) for _ in range(PROBES)]
        best, tried, least = 0, 0, (yield from self._tried(RATE / RATES, drawn))
        for tried in range(1, REACH + 1):
            loss = yield from self._tried(RATE * RATES ** (tried - 1), drawn)
            if loss >= least:
                break
            best, least = tried, loss
        return RATE * RATES**best, PROBES * (tried + 1)

    def _tried(self, rate: float, drawn: list[Tensor]) -> Asking[float]:
        """The loss that steps at this rate end at; infinite where they diverge. Goes back to the start."""
        adam, losses = self._adam(rate), []
        for batch in drawn:
            losses.append((yield from self._step(adam, batch)))
        self.coordinates.restore(self.best)
        return sum(losses[PROBES // 2 :]) if math.isfinite(sum(losses)) else math.inf

    def _round(self, adam: torch.optim.Adam, rate: float, length: int) -> Asking[float]:
        """Take steps that anneal from the rate to zero; the mean loss of the batches."""
        total = 0.0
        whole = [group["lr"] for group in self.coordinates.groups(rate)]
        for step in range(length):
            for group, lr in zip(adam.param_groups, whole, strict=True):
                group["lr"] = lr * (1 + math.cos(math.pi * step / length)) / 2
            total += yield from self._step(adam, next(self.batches))
        return total / length

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> Asking[float]:
        given = self.coordinates(self._sent(self.problem.fit, chosen))
        answer = yield Ask(given.detach(), self._labels(self.problem.fit, chosen), gradient=True)
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward([given], [answer.gradient], inputs=list(self.coordinates.free.values()))
        adam.step()
        return float(answer.losses.mean())

    def _held_out(self) -> Asking[Tensor]:
        """The loss of every validation sample that is looked at."""
        side = self.problem.validation
        losses = []
        for chosen in torch.arange(min(HELD_OUT, len(side.labels))).split(CHUNK):  # type: ignore[no-untyped-call]
            with torch.no_grad():
                given = self.coordinates(self._sent(side, chosen))
            answer = yield Ask(given, self._labels(side, chosen), gradient=False)
            losses.append(answer.losses.double().cpu())
        return torch.cat(losses)

    def _sent(self, side: Side, chosen: Tensor) -> Tensor:
        sent = side.activations[chosen].to(self.device)
        return sent.contiguous(memory_format=torch.channels_last) if sent.ndim == 4 else sent

    def _labels(self, side: Side, chosen: Tensor) -> Tensor:
        return side.labels[chosen].to(self.device)

    def _kept(self) -> Asking[float]:
        """The share by which the validation loss has fallen below the best; where it has, this is kept."""
        losses = yield from self._held_out()
        fallen = 1 - float(losses.mean() / self.losses.mean())
        if fallen > 0:
            self.best, self.losses = self.coordinates.state(), losses
        return fallen if math.isfinite(fallen) else -1.0

    def _note(self, step: int, fit_loss: float) -> None:
        self.curve.append(CurvePoint(step, fit_loss, float(self.losses.mean())))

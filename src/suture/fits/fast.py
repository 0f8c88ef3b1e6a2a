"""The default fit: the closed form, then a short descent on the task loss; nothing to be set.

1. The closed form of ``LeastSquares``, each output channel rescaled to the receiver's deviation, from as many samples as
   such a map of features needs (``ROWS``).
2. Where only pooling and a linear layer follow, the task loss is convex, and its minimum is computed (``fits.convex``).
3. Else Adam descends from there on the task loss, in coordinates in which one rate suits nearly all seams
   (``fits.coordinates``), through the receiver's lean suffix where that was seen to agree (``fits.suffixes``). A few
   steps at each of some rates tell which to take; the steps then come in rounds, each twice as long as the one before
   and annealed to a rate of zero. A round that lowers the validation loss by less than ``WORTH`` of it, or by less than
   the standard error of that fall, was the last. The best parameters seen, the start's included, are kept.

bansal2021, section 2, defines the penalty by the smallest task loss over the family; all this is a way towards it, and
like any descent ends above it. ``BestOf`` tries several starts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from suture.errors import FitError
from suture.fits import convex
from suture.fits.coordinates import PROBED, Coordinates
from suture.fits.descent import batches
from suture.fits.least_squares import closed_form, moments
from suture.fits.problem import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.suffixes import Chosen, choose
from suture.stitches import AffineMap, AffineStitch, Conv, Moments, Part, Stitch, StridedConv, UpsampledConv

ROWS = 2**20  #: positions from which the closed form's moments are taken, at most
WORK = 1e10  #: multiply-adds for them, at most
SAMPLES = 1024  #: samples that they are taken from in any case, if there are so many
RIDGES = (1e-5, 1e-3, 1e-1)  #: candidates, relative to the mean variance of the sender's features
FIRST = 30  #: steps of the first round
RATE = 0.03  #: of Adam, in the coordinates of the descent, unless probes say otherwise
RATES = 3.0  #: the factor between the rates that are tried
PROBES = 6  #: steps that each is tried for
REACH = 3  #: factors up or down, at most
BETAS = (0.8, 0.95)  #: of Adam
WORTH = 0.03  #: the share of the validation loss that a round must take off for another to follow
RETREATS = 3  #: times that a round which made it worse is begun again, at a quarter of the rate
HELD_OUT = 1024  #: validation samples that are looked at, at most
CHUNK = 256


@final
@dataclass(frozen=True)
class Fast(Fit):
    """The closed form, then a short descent on the task loss until the validation loss no longer falls.

    ``steps`` is the most steps that are taken, of ``batch`` samples each; 0 leaves it at the closed form. A family that
    has no closed form begins at random. Raises ``FitError`` where the loss is not finite at any rate.
    """

    steps: int = 450
    batch: int = 32

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1:
            raise FitError(f"{self}: steps must be at least 0, and batch at least 1")

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""
        stitch.eval()
        if next(stitch.parameters(), None) is None:
            return FitReport()
        plain = _plain(problem, stitch)
        maps = _closed_forms(problem, plain)
        report = self._descend(problem, plain, maps) if self.steps else FitReport(converged=False)
        plain.write(maps)
        return report

    def _descend(self, problem: Problem, plain: "_Plain", maps: list[AffineMap]) -> FitReport:
        sent = problem.fit.activations
        device = next(plain.stitch.parameters()).device
        with torch.no_grad():
            probe = plain.stitch(sent[:PROBED].to(device))
        through = choose(problem.suffix, problem.lean, probe)
        notes = (through.note,) if through.note else ()
        if through.only_head and len(plain.parts) == 1:
            head = convex.head_of(through.run, tuple(probe.shape[1:]), plain.parts[0], probe)
            if head is not None:
                return replace(_solved(problem, plain, maps, head), notes=notes)
        descent = _Descent(problem, plain.stitch, through, self.batch)
        steps, converged = descent.run(self.steps)
        return FitReport(steps, converged, tuple(descent.curve), notes=notes)


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


def _moments(side: Side, part: Part) -> Moments:
    """Moments from as many samples as a map of so many features needs; products in float32."""
    x = side.activations
    rows, features = part.reads(x[:1]).shape
    some = max(SAMPLES, min(ROWS // rows, int(WORK / (rows * features**2))))
    return moments(x[:some], side.expected()[:some], part, torch.float32)


def _solved(problem: Problem, plain: _Plain, maps: list[AffineMap], head: convex.Head) -> FitReport:
    """Solve the convex problem and load its solution."""
    sides = ((side.activations, side.labels) for side in (problem.fit, problem.validation))
    found = convex.solve(head, plain.parts[0], maps[0], (next(sides), next(sides)))
    maps[0] = found.affine
    plain.parts[0].load(found.affine)
    curve = (CurvePoint(0, math.nan, found.start_loss), CurvePoint(found.iterations, found.fit_loss, found.loss))
    return FitReport(found.iterations, True, curve)


class _Descent:
    """Adam from where the stitch is, in rounds, until the validation loss no longer falls."""

    def __init__(self, problem: Problem, stitch: nn.Module, through: Chosen, batch: int) -> None:
        self.problem, self.through = problem, through
        self.device = next(stitch.parameters()).device
        self.coordinates = Coordinates(stitch, problem.fit.activations[:PROBED].to(self.device))
        self.labels = problem.fit.labels.to(self.device)
        self.batches = batches(len(self.labels), batch, problem.seed)
        self.curve: list[CurvePoint] = []

    def run(self, most: int) -> tuple[int, bool]:
        """Take at most so many steps; how many, and whether it converged."""
        self.best, self.losses = self.coordinates.state(), self._held_out()
        self._note(0, math.nan)
        rate, done = self._probed(most)
        length, converged, backed = FIRST, False, 0
        adam = self._adam(rate)
        while done < most and not converged:
            length = min(length, most - done)
            fit_loss = self._round(adam, rate, length)
            done += length
            fallen = self._kept()
            self._note(done, fit_loss)
            if fallen < 0 and backed < RETREATS:
                backed, rate = backed + 1, rate / 4
                self.coordinates.restore(self.best)
                adam = self._adam(rate)
            else:
                converged, length = fallen < WORTH, 2 * length
        if not math.isfinite(float(self.losses.mean())):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        self.coordinates.restore(self.best)
        self.coordinates.write()
        return done, converged

    def _adam(self, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(self.coordinates.groups(rate), betas=BETAS)

    def _probed(self, most: int) -> tuple[float, int]:
        """The rate at which a few steps lower the loss most, and the steps taken; the usual one where few are left."""
        if most <= 2 * FIRST:
            return RATE, 0
        batches = [next(self.batches) for _ in range(PROBES)]
        losses = {power: self._tried(RATE * RATES**power, batches) for power in (0, 1)}
        up = losses[1] < losses[0]
        best = 1 if up else 0
        while abs(best) < REACH:
            other = best + 1 if up else best - 1
            losses[other] = self._tried(RATE * RATES**other, batches)
            if losses[other] >= losses[best]:
                break
            best = other
        return RATE * RATES**best, PROBES * len(losses)

    def _tried(self, rate: float, batches: list[Tensor]) -> float:
        """The loss that steps at this rate end at; infinite where they diverge. Goes back to the start."""
        adam = self._adam(rate)
        losses = [self._step(adam, batch) for batch in batches]
        self.coordinates.restore(self.best)
        return sum(losses[PROBES // 2 :]) if math.isfinite(sum(losses)) else math.inf

    def _round(self, adam: torch.optim.Adam, rate: float, length: int) -> float:
        """Take steps that anneal from the rate to zero; the mean loss of the batches."""
        total = 0.0
        whole = [group["lr"] for group in self.coordinates.groups(rate)]
        for step in range(length):
            for group, lr in zip(adam.param_groups, whole, strict=True):
                group["lr"] = lr * (1 + math.cos(math.pi * step / length)) / 2
            total += self._step(adam, next(self.batches))
        return total / length

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> float:
        sent = self.problem.fit.activations[chosen].to(self.device)
        loss = nn.functional.cross_entropy(self.through.run(self.coordinates(_laid_out(sent))), self.labels[chosen])
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=list(self.coordinates.free.values()))
        adam.step()
        return float(loss.detach())

    def _held_out(self) -> Tensor:
        """The loss of every validation sample that is looked at, in float64."""
        side = self.problem.validation
        losses = []
        with torch.no_grad():
            for start in range(0, min(HELD_OUT, len(side.labels)), CHUNK):
                chosen = slice(start, min(start + CHUNK, HELD_OUT))
                out = self.through.run(self.coordinates(_laid_out(side.activations[chosen].to(self.device))))
                labels = side.labels[chosen].to(self.device)
                losses.append(nn.functional.cross_entropy(out.double(), labels, reduction="none").cpu())
        return torch.cat(losses)

    def _kept(self) -> float:
        """The share by which the validation loss has fallen below the best; if it has, keep this.

        0 where it fell by less than the standard error of the fall, -1 where it rose.
        """
        losses = self._held_out()
        fall = self.losses - losses
        mean, before = float(fall.mean()), float(self.losses.mean())
        if not mean > 0:
            return -1.0
        self.best, self.losses = self.coordinates.state(), losses
        error = float(fall.std(correction=0)) / math.sqrt(len(fall))
        return mean / before if mean > error else 0.0

    def _note(self, step: int, fit_loss: float) -> None:
        self.curve.append(CurvePoint(step, fit_loss, float(self.losses.mean())))


def _laid_out(sent: Tensor) -> Tensor:
    return sent.contiguous(memory_format=torch.channels_last) if sent.ndim == 4 else sent


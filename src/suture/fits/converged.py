"""The default fit, which continues until more steps do not help, and its short form.

1. The closed form of ``LeastSquares``, each output channel rescaled to the receiver's deviation, from as many samples
   as a map of so many features needs (``ROWS``).
2. If only pooling and a linear layer follow, the task loss is convex, and its minimum is computed (``fits.convex``).
3. Else Adam descends from there on the task loss (``fits.averaged``), through the receiver's fused suffix if that was
   seen to agree (``fits.suffix``).

bansal2021, section 2, defines the penalty by the smallest task loss over the family. ``Converged`` descends until a
doubling of the work gains nothing, ``Quick`` takes a fixed number of steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.phases import say_phase
from suture.common.seeds import derive_seed, drawing
from suture.common.validation import check_whole
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
from suture.data.tasks import Classification
from suture.fits import convex
from suture.fits.averaged import FIRST, RACED, Ground, race, run_briefly, settle, start_slowly
from suture.fits.base import Fit, FitReport, Gained, Problem, Side, State
from suture.fits.least_squares import accumulate_moments, solve_closed_form
from suture.fits.restarts import DRAWS, Draw, begin_again, displace
from suture.fits.suffix import choose_suffix

ROWS = 2**15  #: positions from which the closed form's moments are taken
WORK = 5e9  #: multiply-adds for them, at most, unless samples are few
SAMPLES = 1024  #: samples that are not few
RIDGES = (1e-5, 1e-3, 1e-1)  #: candidates, relative to the mean variance of the sender's features
PROBED = 256  #: samples on which suffixes are compared
CAP = 128 * FIRST  #: steps, of the arm that is left and after it
DEEPER = 4  #: times as large is the next cap
DEEPEST = 16 * CAP  #: steps of the largest
#: The tenth and the ninetieth percentile of the steps in the mean of so many fits: of the 36 seams of
#: ``benchmarks/results/reference``, drawn with replacement. Fits of one plan are alike, so it ends at eight.
STEPS = {1: (275, 4606), 3: (368, 2474), 8: (586, 2009)}


@keyed_as("Converged")
@final
@dataclass(frozen=True)
class Converged(Fit):
    """The closed form, then a descent on the task loss until a doubling of the work gains nothing.

    Four arms begin it, of which the best goes on (``fits.averaged``). It ends after ``patience`` doublings in a row
    that gain nothing, first at the rate of that arm, then at a fifth of it. Into tokens a second, slow descent may
    follow. The fit has converged if the last doubling gained less than half a point, its standard error included
    (``gained`` of the report). ``cap`` is the most steps of ``batch`` samples from each start, those of the other arms
    left out; a fit that reaches it has not converged. A family that has no closed form begins at random. While a class
    is hardly ever named in the end, the fit begins again, up to three times: first where the receiver names that class,
    if such a place is found, then at random. The best of all starts is kept. Raises ``FitError`` if the loss is not
    finite at any rate.
    """

    cap: int = CAP
    batch: int = 256
    patience: int = 1
    version: ClassVar[int] = 4

    def __post_init__(self) -> None:
        _check_steps(self, "cap", 2 * FIRST)
        if check_whole("Converged: patience", self.patience, FitError) < 1:
            raise FitError(f"Converged(patience={self.patience}): patience must be at least 1")

    def reads(self, shape: Shape) -> float:
        """Return the number of samples whose receiver activations the closed form needs."""
        return count_samples(shape)

    @property
    def drawn_as(self) -> Fit:
        """The same without its limits, whatever the default ones are: a deepened fit draws the same batches."""
        return Converged(cap=2 * FIRST, batch=self.batch)

    def deepened(self) -> Fit | None:
        """Return the same with ``DEEPER`` times the cap and the patience for as much; ``None`` beyond ``DEEPEST``."""
        if DEEPER * self.cap > DEEPEST:
            return None
        return replace(self, cap=DEEPER * self.cap, patience=self.patience + int(math.log2(DEEPER)))

    def count_steps(self, fits: int) -> tuple[float, float]:
        """Return the steps that most fits took where the fit was judged, at most those that the cap allows."""
        least, most = STEPS[max(number for number in STEPS if number <= max(fits, 1))]
        limit = float(RACED + (1 + DRAWS) * self.cap)
        return min(float(least), limit), min(float(most), limit)

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""

        def descend(ground: Ground, draw: Draw) -> FitReport:
            ground.most = RACED + (1 + DRAWS) * self.cap
            arm = race(ground)
            trail = settle(ground, arm, self.cap, self.patience)
            trail = start_slowly(ground, trail, arm.ridge, self.cap, self.patience)
            trail, start = begin_again(ground, trail, draw, self.cap, self.patience)
            return replace(ground.report(trail, claims=True), start=start)

        return _fit(problem, stitch, descend, self.batch)


@keyed_as("Quick")
@final
@dataclass(frozen=True)
class Quick(Fit):
    """The arms of ``Converged`` for a fixed number of ``steps`` in all, for maps of thousands of seams.

    It cannot say whether it has converged, unless the seam is convex. 0 steps leave it at the closed form.
    """

    steps: int = 420
    batch: int = 128
    fitted_on: ClassVar[int | None] = (
        10_000  #: it is meant to be quick, and what more of them cost is their activations
    )
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_steps(self, "steps", 0)

    def reads(self, shape: Shape) -> float:
        """Return the number of samples whose receiver activations the closed form needs."""
        return count_samples(shape)

    def count_steps(self, fits: int) -> tuple[float, float]:
        """Return its number of steps, twice."""
        del fits
        return float(self.steps), float(self.steps)

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""

        def descend(ground: Ground, _draw: Draw) -> FitReport:
            ground.most = self.steps
            return ground.report(run_briefly(ground, self.steps), claims=False)

        return _fit(problem, stitch, descend if self.steps else None, self.batch)


def _check_steps(fit: Converged | Quick, name: str, least: int) -> None:
    kind = type(fit).__name__
    if check_whole(f"{kind}: {name}", getattr(fit, name), FitError) < least:
        raise FitError(f"{kind}({name}={getattr(fit, name)}): {name} must be at least {least}")
    if check_whole(f"{kind}: batch", fit.batch, FitError) < 1:
        raise FitError(f"{kind}(batch={fit.batch}): batch must be at least 1")


# --- the closed form, and the convex problem --------------------------------------------------------------------------

Descend = Callable[[Ground, Draw], FitReport]
"""Lowers the task loss of a stitch, in place."""


def _fit(problem: Problem, stitch: nn.Module, descend: Descend | None, batch: int) -> FitReport:
    """Load the closed form; go on to the minimum of the task loss if that is convex, else by a descent if there is one.

    Leaves the stitch in evaluation mode.
    """
    stitch.eval()
    if next(stitch.parameters(), None) is None:
        return FitReport(converged=True, gained=Gained(0.0, 0.0))
    say_phase("closed form")
    bare = _without_batchnorms(problem, stitch)
    maps = _load_closed_forms(problem, bare)
    report = FitReport()
    if descend is not None:
        with torch.no_grad():  # of a copy, since a stitch may write into what it is given
            device = next(bare.stitch.parameters()).device
            probe = bare.stitch(problem.fit.activations[: min(PROBED, problem.rows)].to(device, copy=True))
        chosen = choose_suffix(problem.suffix, problem.fused, probe)
        head = None
        if chosen.only_head and is_one_map(bare.family) and problem.task == Classification():
            head = convex.read_head(chosen.run, tuple(probe.shape[1:]), bare.parts[0], probe)
        if head is not None:
            report = _solve_convex(problem, bare, maps, head)
        else:
            report = descend(Ground(problem, bare.stitch, chosen.run, batch), partial(bare.draw, problem))
        report = replace(report, notes=(*([chosen.note] if chosen.note else []), *report.notes))
    bare.write_back(maps)
    return replace(report, start=report.start or ("closed form" if maps else "random"))


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

    def draw(self, problem: Problem, which: int, displacements: Mapping[int, Tensor] | None = None) -> State:
        """Return the parameters of such a stitch at one of several random starts, its default initialisation.

        With ``displacements`` they are those of the closed form to the receiver's activations displaced so.
        """
        sent = problem.fit.activations
        with drawing(torch.device("cpu"), derive_seed("start", problem.seed, which)):
            made = self.family.build(*problem.shapes)
        if displacements:
            assert isinstance(self.family, AffineStitch)
            made = made.to(next(self.stitch.parameters()).device).eval()
            parts = self.family.parts(made, sent)
            _load_closed_forms(displace(problem, displacements), _Bare(self.family, made, parts, None))
        return dict(made.named_parameters())

    def write_back(self, maps: list[AffineMap]) -> None:
        """Copy the result into the stitch that was given; ``maps`` hold the moments of its rows."""
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
        other = bare.build(*problem.shapes).to(device).eval()
    return _Bare(bare, other, bare.parts(other, sent), parts)


def is_one_map(family: Stitch) -> bool:
    """Return whether its stitches are one map of rows, which may be any."""
    single = isinstance(family, Conv) and family.kernel == 1
    return single or isinstance(family, Linear | StridedConv | UpsampledConv)


def _load_closed_forms(problem: Problem, bare: _Bare) -> list[AffineMap]:
    """Load the closed form of every affine map of the stitch and return them; none if the family has none."""
    maps = []
    family = bare.family
    for part in bare.parts:
        assert isinstance(family, AffineStitch)
        known, held_out = (_some_moments(side, part) for side in (problem.fit, problem.validation))
        maps.append(part.whole(solve_closed_form(family, known, held_out, RIDGES, rescale=True)))
        part.load(maps[-1])
    return maps


def count_samples(shape: Shape) -> int:
    """Return how many samples the closed form takes: those that give ``ROWS`` positions, at least ``SAMPLES``."""
    return max(SAMPLES, ROWS // prod(shape[1:] if len(shape) > 2 else shape[:-1]))


def count_sufficient(shape: Shape, rows: int, features: int) -> int:
    """Return the same, lowered until the moments cost at most ``WORK`` multiply-adds, never below ``SAMPLES``."""
    return min(count_samples(shape), max(SAMPLES, int(WORK / (rows * features**2))))


def _some_moments(side: Side, part: Part) -> Moments:
    """Compute moments from as many samples as a map of so many features needs; products in float32."""
    x, expected = side.activations, side.expected()
    rows, features = part.solved(x[:1]).shape
    some = count_sufficient(tuple(expected.shape[1:]), rows, features)
    x, expected = (rows.narrow(0, 0, min(some, len(rows))) for rows in (x, expected))
    made = accumulate_moments(x, expected, part, torch.float32, side.counted)
    return Moments(*(getattr(made, each.name).cpu() for each in fields(made)))


def _solve_convex(problem: Problem, bare: _Bare, maps: list[AffineMap], head: convex.Head) -> FitReport:
    """Solve the convex problem and load its solution."""
    say_phase("convex problem")
    fit, held_out = ((side.activations.cpu(), side.labels.cpu()) for side in (problem.fit, problem.validation))
    found = convex.solve(head, bare.parts[0], maps[0], fit, held_out)
    maps[0] = found.affine
    bare.parts[0].load(found.affine)
    return replace(found.report, gained=Gained(0.0, 0.0) if found.converged else None)

"""The descent of the default fit: arms that race, a constant rate, and the average of where the best arm was.

**An average.** What counts is not where a descent is but the average of where it was during the last half of its steps
(Polyak and Juditsky 1992, *Acceleration of Stochastic Approximation by Averaging*). That needs no schedule that knows
its end: the rate is constant, and after ``FIRST``, twice, four times … as many steps the average is looked at on the
validation data.

**Arms.** Which units of the parameters and which rate suit a seam, a few steps tell. So several *arms* race on the
same batches, in plain and in whitened units (``fits.coordinates``), at rates that rise and fall while that helps. The
one with the fewest errors and the one with the lowest loss are compared once more, since either alone may choose
wrongly: where the receiver cannot name a class, errors choose right and the loss does not; where chance does not tell
errors apart, the loss does. All arms are of the same trial, so a trial's bits are its own.

**An end.** A rate is done with at the first doubling of the steps that lowers neither the loss by ``STILL`` nor, while
the loss does not rise, the errors by more than chance would; or halfway there, if the loss has risen by then. Errors
that fall while the loss rises do not keep it going: networks know the images that they were trained on, and name them
better and better by a growing margin. If the last doubling gained too much for the fit to claim that it has converged,
the descent goes on from its best look at a rate ``LOWER`` times as low.

**A slow start.** Into sequences of tokens, whitened units lead for some hundred steps and may end far behind plain ones
at a low rate. A race is too short to see that. So where whitened units won it, a second descent begins at the closed
form, in plain units at the rate ``SLOW``. While it is behind, it goes on only as long as the pace of its last doubling
would take it past the first descent.

**A choice.** Of all looks, the closed form among them, those are equally good whose errors chance does not tell from
the fewest, and of these the one with the lowest loss is kept. Errors come first, because where a receiver cannot name a
class a lower loss can go with more errors. If not even the fewest are clearly fewer than a constant would make, the
lowest loss of all is kept: else a fit to shuffled pairs would keep its closed form, which still names classes.

**A statement.** ``Gained`` is by how much the best look of the last half of all steps has fewer errors than the best
one before: what the last doubling of the work gained, with its uncertainty.

If a class is hardly ever named in the end, it begins again (``fits.restarts``).

The constants were set on seams of small networks of several kinds (``benchmarks/tuned.py``), none of which is in
the reference table of ``benchmarks/reference.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suture.common.constants import CHUNK
from suture.common.errors import FitError
from suture.data.tasks import Classification
from suture.fits.base import CurvePoint, FitReport, Gained, Problem, State
from suture.fits.coordinates import WHITE, Coordinates, Reads, measure_layers
from suture.fits.steps import Batches, StaticSteps, in_layout

FIRST = 35  #: steps before the first look, which doubles
ARMS = ((None, 0.1), (WHITE, 0.1))  #: units and rates that begin the race; others follow
APART = 3.0  #: the factor between rates
LADDER = 3  #: further arms in the same units, at most
RACED = (len(ARMS) + 2 * LADDER + 2) * FIRST  #: steps of a race, at most: all arms, and two that are compared again
BETWEEN = 49  #: steps of a look between the first and the second
DOUBLINGS = [FIRST * 2**k for k in range(24)]
MARKS = {*DOUBLINGS, *(BETWEEN * 2**k for k in range(24))}  #: steps at which the last half of some may begin
LONGER = 16 * FIRST  #: steps at a lower rate, or as many as at the first, at most, for the fit to be able to claim
SURE = 4.0  #: deviations by which an error that chance does not explain lies below a constant's
LIKE = 1.5  #: deviations by which errors may differ for looks to be equally good
CLEAR = 2.0  #: deviations by which errors must differ for the units or the rate to be chosen by them
SLOW = 0.01  #: the rate of a second descent into tokens, in plain units
LOWER = 5.0  #: the factor by which the rate falls when it is done with
HELD_OUT = 10_000  #: validation samples that are looked at, at most
GLANCE = 2048  #: of them, after ``FIRST`` steps
DONE = 0.005  #: a fit has converged if its last doubling gained less, as a share of the validation samples
LITTLE = 2  #: or less than so many samples, if that is more
STILL = 0.005  #: nats; while a doubling lowers the validation loss by more, it goes on
UNKNOWN = Gained(math.inf, math.inf)  #: where the looks before had no finite loss


@dataclass(frozen=True, eq=False)
class Look:
    """A check of parameters on validation samples: which ones are wrong, or by how much, and the mean loss.

    ``steps`` are those that led there from a start, ``constant`` is the error of naming the commonest class always.
    """

    state: State
    wrong: Tensor
    loss: float
    steps: int
    constant: float = 1.0

    @property
    def error(self) -> float:
        """The share of wrong samples, or their mean error."""
        return float(self.wrong.double().mean())

    @property
    def is_of_use(self) -> bool:
        """Whether its error is clearly below that of a constant answer."""
        deviation = math.sqrt(self.constant * (1 - self.constant) / len(self.wrong))
        return self.constant - self.error > SURE * deviation

    @property
    def rank(self) -> tuple[float, float]:
        """The error and, of equals, the loss: less is better."""
        return self.error, self.loss

    def is_like(self, other: "Look", deviations: float = LIKE) -> bool:
        """Return whether chance explains the difference of their errors: so many standard errors, or fewer."""
        return abs(self.error - other.error) <= deviations * self.chance(other)

    def chance(self, other: "Look") -> float:
        """Return the standard error of the difference between the two error rates, over the same images."""
        return float((self.wrong.double() - other.wrong.double()).std()) / math.sqrt(len(self.wrong))


class Best:
    """The look with the ``least`` error so far, and the look to be ``kept``.

    That has the lowest loss among those whose errors chance does not tell from the least; of all, if not even the least
    is clearly less wrong than a constant.
    """

    def __init__(self, first: Look) -> None:
        self.least = self.lowest = self.likely = first

    @property
    def kept(self) -> Look:
        """The look to be kept."""
        return self.likely if self.least.is_of_use else self.lowest

    def add(self, found: Look) -> None:
        """Take one more look into account."""
        if found.rank < self.least.rank:
            self.least = found
        if not self.likely.is_like(self.least):
            self.likely = self.least
        if found.loss < self.likely.loss and found.is_like(self.least):
            self.likely = found
        if found.loss < self.lowest.loss:
            self.lowest = found


def find_best(looks: Sequence[Look]) -> Look:
    """Return the look to be kept, of several."""
    best = Best(looks[0])
    for look in looks[1:]:
        best.add(look)
    return best.kept


def validate(
    problem: Problem, suffix: nn.Module, represent: Callable[[Tensor], Tensor], most: int, device: torch.device
) -> tuple[Tensor, float]:
    """Return the errors on the first validation samples, ``(most,)`` on the CPU, and their mean loss.

    ``represent`` is a stitch on the device, and maps the sender's activations ``(n, …)``.
    """
    side, losses, wrong = problem.validation, list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for chosen in torch.arange(most).split(min(CHUNK, problem.rows)):  # type: ignore[no-untyped-call]
            outputs = side.run(suffix, represent(side.activations[chosen].to(device)), chosen)
            labels = side.labels[chosen].to(device)
            losses.append(problem.task.losses(outputs, labels).double())
            wrong.append(problem.task.errors(outputs, labels))
    return torch.cat(wrong).cpu(), float(torch.cat(losses).mean())


def err_always(problem: Problem, most: int) -> float:
    """Return the error of always naming the commonest class, on so many validation samples; 1 without classes."""
    if problem.task != Classification():
        return 1.0
    labels = problem.validation.labels[:most].cpu()
    return 1 - float(torch.bincount(labels).max()) / len(labels)


class Ground:
    """Everything that the arms of one fit have in common: the problem, its batches, the looks and the steps so far.

    ``suffix`` maps represented tensors ``(n, *receiver shape)`` to outputs. ``scale`` is the unit of the task's
    losses and errors; ``little`` is the share of the validation samples that a fit may have gained last and yet have
    converged. ``start`` is the look at the stitch as it was, ``best`` the best of all looks, and ``steps`` counts all
    that were taken, of at most ``most``.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, suffix: nn.Module, batch: int) -> None:
        self.problem, self.stitch, self.suffix = problem, stitch, suffix
        self.device = next(stitch.parameters()).device
        self.batches = Batches(problem, batch, self.device)
        self.held_out = min(HELD_OUT, len(problem.validation.labels))
        self.constant = err_always(problem, self.held_out)
        self.little = max(DONE, LITTLE / self.held_out)
        self.scale = problem.task.scale(problem.validation.labels)
        self.curve: list[CurvePoint] = []
        self.notes: list[str] = []
        self.steps = self.most = 0
        self._reads: dict[float | None, Reads] = {}
        own = {name: tensor.detach().clone() for name, tensor in stitch.named_parameters()}
        self.start = self.look(own, math.nan, 0)
        self.best = Best(self.start)

    def place(self, ridge: float | None) -> Coordinates:
        """Return coordinates at the stitch's present parameters, in units of a ridge."""
        if ridge not in self._reads:
            self._reads[ridge] = measure_layers(self.stitch, self.problem.fit.activations, ridge)
        return Coordinates(self.stitch, self._reads[ridge])

    def look(self, state: State, fit_loss: float, steps: int, most: int = HELD_OUT) -> Look:
        """Evaluate parameters of the stitch, so many steps from a start, on at most so many validation samples."""

        def represent(sent: Tensor) -> Tensor:
            return torch.func.functional_call(self.stitch, state, (in_layout(sent),))  # type: ignore[no-any-return]

        errors, loss = validate(self.problem, self.suffix, represent, min(most, self.held_out), self.device)
        if not math.isfinite(loss):
            loss, errors = math.inf, torch.full(errors.shape, math.inf)
        self.curve.append(CurvePoint(self.steps, fit_loss, loss))
        return Look(state, errors, loss, steps, self.constant)

    def report(self, trail: "Trail", claims: bool) -> FitReport:
        """Load the best look into the stitch, and return the report of the fit, by the trail that led there.

        If it ``claims`` anything, it has converged if the trail ended by itself and gained ``little`` in the end.
        """
        best = self.best.kept
        if not math.isfinite(best.loss):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        with torch.no_grad():
            for name, parameter in self.stitch.named_parameters():
                parameter.copy_(best.state[name])
        gained = self.gained(trail.looks)
        converged = trail.ended and gained.most < self.little if claims else None
        said = gained if math.isfinite(gained.most) else None
        curve, notes = tuple(self.curve), tuple(dict.fromkeys(self.notes))
        return FitReport(self.steps, converged, curve, said, notes=notes, validation_loss=best.loss)

    def gained(self, looks: Sequence[Look]) -> Gained:
        """Return the gain of the last doubling of the steps of some looks, as a share of the validation samples."""
        late = [2 * look.steps > looks[-1].steps for look in looks]
        if not any(late):
            return Gained(0.0, 0.0)
        halves = [
            [look for look, is_late in zip(looks, late, strict=True) if is_late == half] for half in (False, True)
        ]
        before, after = (find_best(half) for half in halves)
        if not math.isfinite(before.error + after.error):
            return UNKNOWN
        return Gained((before.error - after.error) / self.scale, before.chance(after) / self.scale)


@dataclass(frozen=True, eq=False)
class Trail:
    """The looks on the way from a start, the start's own first, and whether it ``ended`` before its cap of steps."""

    looks: Sequence[Look]
    ended: bool


class Arm:
    """A descent in units of one kind, at one rate, from a look: by default that at the stitch as it was.

    ``looks`` are those on the way to it, from the start on, ``seen`` is its last one, be it only a glance, and
    ``taken`` are its own steps.
    """

    def __init__(self, ground: Ground, ridge: float | None, rate: float, trail: Sequence[Look] = ()) -> None:
        self.ground, self.ridge, self.rate = ground, ridge, rate
        self.looks = [*(trail or (ground.start,))]
        self.seen = find_best(self.looks)
        self.begun = self.looks[-1].steps
        coordinates = ground.place(ridge)
        coordinates.load(self.seen.state)
        self.steps = StaticSteps(ground.problem, coordinates, ground.suffix, ground.batches, rate, self.begun)

    @property
    def taken(self) -> int:
        """The number of steps that it has taken."""
        return self.steps.taken

    def glance(self) -> Look:
        """Take ``FIRST`` steps, and evaluate the average over the last half of them, to compare arms."""
        self.seen = self.ground.look(*self._average(FIRST), FIRST, GLANCE)
        return self.seen

    def go_to(self, steps: int) -> Look:
        """Continue until it has taken so many steps, and evaluate the average over the last half of them."""
        self.seen = self.ground.look(*self._average(steps), self.begun + steps)
        self.ground.best.add(self.seen)
        self.looks.append(self.seen)
        return self.seen

    def _average(self, steps: int) -> tuple[State, float]:
        """Continue until it has taken so many steps; return the average over the last half, and their mean loss."""
        half = steps // 2
        for mark in sorted({half, steps} | {mark for mark in MARKS if mark < steps}):  # where later halves may begin
            if mark > self.taken:
                self.ground.steps += mark - self.taken
                self.steps.take(mark - self.taken, self.ground.steps, self.ground.most)
        if self.steps.note:
            self.ground.notes.append(self.steps.note)
        return self.steps.mean(steps - half)


class Race:
    """Arms that are ``left``, of all that were tried so far, whose losses by ridge and rate are in ``tried``.

    Further ones than the first are tried while all have taken no more than ``budget`` steps.
    """

    def __init__(self, ground: Ground, budget: float) -> None:
        self.ground, self.budget = ground, budget
        self.left: list[Arm] = []
        self.tried: dict[float | None, dict[float, float]] = {}

    def enter(self, ridge: float | None, rate: float) -> None:
        """Let one more arm take ``FIRST`` steps; it stays, or another, if it is among the best (``select``)."""
        arm = Arm(self.ground, ridge, rate)
        self.tried.setdefault(ridge, {})[rate] = arm.glance().loss
        self.left.append(arm)
        self.select()

    def climb(self, ridge: float | None) -> None:
        """Enter higher rates while the highest has the lowest loss, then lower ones while the lowest has.

        At most ``LADDER``; only lower ones while no loss is finite.
        """
        tried = self.tried[ridge]
        for _ in range(LADDER):
            best = min(tried, key=lambda rate: (tried[rate], rate))
            if self.ground.steps + FIRST > self.budget:
                break
            if best == max(tried) and math.isfinite(tried[best]):
                self.enter(ridge, best * APART)
            elif best == min(tried):
                self.enter(ridge, best / APART)
            else:
                break

    def select(self) -> None:
        """Leave the arm with the fewest errors and the one with the lowest loss."""
        self.left = list(dict.fromkeys((self.likely, self.lowest)))

    @property
    def likely(self) -> Arm:
        """The arm with the fewest errors."""
        return min(self.left, key=lambda arm: arm.seen.rank)

    @property
    def best(self) -> Arm:
        """The arm with the lowest loss, unless the one with the fewest errors has clearly fewer; else that one."""
        return self.lowest if self.lowest.seen.is_like(self.likely.seen, CLEAR) else self.likely

    @property
    def lowest(self) -> Arm:
        """The arm with the lowest loss."""
        return min(self.left, key=lambda arm: arm.seen.loss)


def race(ground: Ground, budget: float = math.inf) -> Arm:
    """Let arms race, and return the best.

    After ``FIRST`` steps the units of the best arms try higher or lower rates, none that would make all arms take more
    than ``budget`` steps. The arm with the fewest errors and the one with the lowest loss then take as many again, if
    they are not the same. Errors decide between two arms if chance does not explain how they differ, else the loss.
    """
    raced = Race(ground, budget)
    for ridge, rate in ARMS:
        raced.enter(ridge, rate)
    for ridge in dict.fromkeys((raced.lowest.ridge, raced.best.ridge)):
        raced.climb(ridge)
    if len(raced.left) > 1:
        for arm in raced.left:
            arm.go_to(2 * FIRST)
    return raced.best


def settle(ground: Ground, arm: Arm, cap: int, patience: int = 1) -> Trail:
    """Descend until a rate gains nothing more, or until the ``cap`` of steps.

    If the last doubling gained too much for the fit to have converged, go on from the best look at a lower rate until
    that is done with and the last doubling gained little, or ``LONGER`` and as many steps as at the first were taken.
    """
    if not exhaust(ground, arm, cap, patience):
        return Trail(arm.looks, ended=False)
    if ground.gained(arm.looks).most < ground.little:
        return Trail(arm.looks, ended=True)
    lower = Arm(ground, arm.ridge, arm.rate / LOWER, arm.looks)
    while exhaust(ground, lower, cap - arm.taken, patience):
        if lower.taken >= max(arm.taken, LONGER) or ground.gained(lower.looks).most < ground.little:
            return Trail(lower.looks, ended=True)
    return Trail(lower.looks, ended=False)


def start_slowly(ground: Ground, first: Trail, ridge: float | None, cap: int, patience: int) -> Trail:
    """Return the better of a first trail, in units of ``ridge``, and a second one in plain units at the rate ``SLOW``.

    The second begins where the first did. It is for tokens, after whitened units. While it is behind, it goes on as
    long as the pace of its last doubling would take it past the first within the ``cap``.
    """
    if ridge is None or len(ground.problem.shapes[1]) != len(("tokens", "width")):
        return first
    ground.most += cap
    best = ground.best.kept
    arm = Arm(ground, None, SLOW, [ground.start])
    found = arm.go_to(2 * FIRST)
    while ground.best.kept is best:
        if 2 * arm.taken > cap:
            return replace(first, ended=False)
        last, found = found, arm.go_to(2 * arm.taken)
        if found.loss - (last.loss - found.loss) * math.log2(cap / arm.taken) >= best.loss:
            break
    if ground.best.kept is best:
        return first
    second = settle(ground, arm, cap, patience)
    return second if ground.best.kept is not best else replace(first, ended=first.ended and second.ended)


def run_briefly(ground: Ground, most: int) -> Trail:
    """Take so many steps in all: half of them in a race, if that allows one, else by the first arm alone."""
    raced = most // 2 >= (len(ARMS) + 2) * FIRST
    arm = race(ground, most // 2 - 2 * FIRST) if raced else Arm(ground, *ARMS[0])
    arm.go_to(arm.taken + most - ground.steps)
    return Trail(arm.looks, ended=True)


def exhaust(ground: Ground, arm: Arm, cap: int, patience: int) -> bool:
    """Descend until ``patience`` doublings in a row gain nothing; return whether the ``cap`` of steps allowed it.

    It looks twice a doubling. One that has lowered neither the loss nor, by more than chance, the errors by its first
    look has gained nothing, and ends there if it is the last to be waited for.
    """
    idle = 0
    while idle < patience:
        ahead = next(mark for mark in DOUBLINGS if mark > max(arm.taken, FIRST))
        if ahead > cap:
            return False
        before, between = tuple(arm.looks), ahead // 2 * BETWEEN // FIRST
        if 2 * FIRST <= arm.taken < between and idle == patience - 1:
            found = arm.go_to(between)
            if not is_better(found, before, 0.0):
                return True
        found = arm.go_to(ahead)
        idle = 0 if is_better(found, before, STILL * ground.scale) else idle + 1
    return True


def is_better(found: Look, before: Sequence[Look], least: float) -> bool:
    """Return whether a look lowers the loss by more than ``least``, or the errors beyond chance without raising it."""
    best, lowest = min(before, key=lambda look: look.rank), min(look.loss for look in before)
    fewer = best.error - found.error > found.chance(best)
    return lowest - found.loss > least or (fewer and found.loss <= lowest)

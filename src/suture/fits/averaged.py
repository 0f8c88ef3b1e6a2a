"""The descent of the default fit, which is judged by the average of where it was.

What counts is not where the descent is but the average of where it was during the last half of its steps (Polyak and
Juditsky 1992, *Acceleration of Stochastic Approximation by Averaging*). That needs no schedule that knows its end: the
rate is constant at first and then falls by the root of the steps, and after ``FIRST``, twice, four times … as many
steps the average is looked at on the validation data. A few steps at each of several rates tell which to take.

Two descents begin, on the same batches: in units of one size, and in whitened ones (``fits.coordinates``). The one with
fewer errors after ``BEGUN`` looks goes on; while chance does not tell their errors apart, both do, for ``RACED`` steps
at most. Whitening fits sooner what directions of little variance hold, be it what the receiver needs or noise.

Of the averages, and the closed form, the one with the fewest wrong validation images is kept. The loss is descended on
and the error chosen by, because where a receiver cannot name a class, a lower loss can go with a higher error, and
because a loss that rises as a network grows too sure of itself would choose one that is not done. If none is clearly
better than to name the commonest class always, those whose error chance would not tell from the least are equally good,
and the lowest loss chooses: fitted to shuffled pairs, it leaves what a constant does.

A doubling of the work is idle if it gained less than the tolerance, or no more than chance would (the paired deviation
over validation images), and did not lower the least loss by ``STILL``. A rate is done with after ``IDLE`` of them in a
row: with many parameters the error may rise for a while and fall again. The descent then goes on from the best at a
rate ``LOWER`` times as low, since where little is to be gained a high one only leads away, and has converged when that
is done with. If a class is hardly ever named then, it begins again: at the closed form to where the receiver names that
class (``fits.displaced``), if such a place is found, and at random while the class stays lost.

The constants were set on seams of small networks of several kinds (docs/fit-judged.md names them), none of which is in
the reference table of ``benchmarks/reference.py``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.core.stitches import AffineStitch
from suture.data.tasks import Classification
from suture.fits.base import CurvePoint, FitReport, Problem, Side, State
from suture.fits.coordinates import ALIKE, WHITE, Coordinates
from suture.fits.descent import differentiate, draw_batches
from suture.fits.displaced import find_displacements

FIRST = 70  #: steps before the first look, which doubles
BEGUN = 2  #: looks, after which the units are chosen if chance tells their errors apart
RACED = 16 * FIRST  #: steps after which they are chosen whether it does or not
RATE = 0.1  #: of Adam, in the coordinates of the descent; three times less or more is worse at most tuned seams
RATES = 3.0  #: the factor between the rates that are tried
LADDER = 4  #: times that the rate may be multiplied, or divided, by it
TRIED = 35  #: steps that each rate is tried for
BETTER = 1.1  #: times as far must the loss fall at another rate
STEADY = 140  #: steps at the whole rate
LOWER = 5.0  #: the factor by which the rate falls when it is done with
LOWERED = 1  #: times
IDLE = 2  #: doublings in a row that are no better, after which a rate is done with
BETAS = (0.9, 0.99)  #: of Adam
HELD_OUT = 10_000  #: validation samples that are looked at, at most
GLANCE = 1024  #: of them, to choose a rate
LOST = 0.1  #: a class whose share of right images is below this share of all classes' is hardly ever named
DRAWS = 3  #: other starts, at most, while a class is lost
ABOVE = 2.0  #: times the share of the commonest class must be right, for that to be the stitch's doing
SURE = 4.0  #: deviations by which an error that chance does not explain lies below a constant's
STILL = 0.005  #: nats; while a doubling lowers the validation loss by more, it goes on
CHUNK = 256
COUNTS = ("step", "taken", "steps", "idle", "lowered", "look", "draws", "again", "displaced")
"""Of a descent, what its state keeps beside tensors."""
AGAIN = "a class was hardly ever named after the first descent: begun again at random"
DISPLACED = "a class was hardly ever named after the first descent: begun again where the receiver names it"
SOUGHT = f"a class is hardly ever named, from the closed form or from {DRAWS} other starts"
LOST_ALONE = "a class is hardly ever named, from the closed form; this family has no other start"


@dataclass(frozen=True, eq=False)
class Look:
    """What validation says of parameters: which samples are wrong, or how wrong, and the mean loss."""

    state: State
    wrong: Tensor
    loss: float
    draw: int = 0  #: the start that it comes from: 0 is the first, others are in plain coordinates

    @property
    def error(self) -> float:
        """The share of wrong samples, or their mean error."""
        return float(self.wrong.double().mean())

    @property
    def rank(self) -> tuple[float, float]:
        """The error and, of equals, the loss: less is better."""
        return self.error, self.loss

    def is_like(self, other: "Look") -> bool:
        """Whether chance would explain by how much their errors differ."""
        return abs(self.error - other.error) <= self.chance(other)

    def chance(self, other: "Look") -> float:
        """Return what the images that are right in one and wrong in the other would add by chance to either's error."""
        return float((self.wrong.double() - other.wrong.double()).std()) / math.sqrt(len(self.wrong))


class Best:
    """Of looks the ``least`` wrong one; the ``kept`` one is the same, if it is clearly less wrong than a ``constant``.

    Else it is the one with the lowest loss among those whose error chance does not tell from the least.
    """

    def __init__(self, first: Look, constant: float) -> None:
        self.least = self.kept = first
        self.constant = constant

    def add(self, found: Look) -> None:
        """Look at one more."""
        if found.rank < self.least.rank:
            self.least = found
        if not self._is_as_good(self.kept):
            self.kept = self.least
        if found.loss < self.kept.loss and self._is_as_good(found):
            self.kept = found

    def _is_as_good(self, look: Look) -> bool:
        least = self.least.error
        if self.constant - least > SURE * math.sqrt(self.constant * (1 - self.constant) / len(look.wrong)):
            return look.error <= least
        return look.is_like(self.least)


def err_always(problem: Problem, most: int) -> float:
    """Return the error of naming the commonest class always, on so many validation samples; 0 if it is no class."""
    if problem.task != Classification():
        return 0.0
    labels = problem.validation.labels[:most].cpu()
    return 1 - float(torch.bincount(labels).max()) / len(labels)


Draw = Callable[[int, Mapping[int, Tensor]], State]
"""Gives the parameters of another start: the closed form with some classes displaced, if any, else a random one."""


class AveragedDescent:
    """Adam from where the stitch is, judged by the average of where it was during the last half of its steps.

    ``suffix`` maps represented tensors ``(n, *receiver shape)`` to outputs; ``draw`` gives another start;
    ``ridge`` is that of the coordinates, if the problem has no ``begun`` that has its own.
    ``step`` counts steps at this rate, ``taken`` those at the rates before as well, and ``steps`` all, those too that
    other rates were tried for. ``draws`` counts the other starts, ``again`` is ``taken`` at the last of them, or 0,
    ``before`` is what was best until then, and ``displaced`` whether the first of them was.
    """

    def __init__(
        self,
        problem: Problem,
        stitch: nn.Module,
        suffix: nn.Module,
        batch: int,
        draw: Draw,
        ridge: float = ALIKE,
    ) -> None:
        self.problem, self.suffix, self.draw = problem, suffix, draw
        self.device, self.stitch = next(stitch.parameters()).device, stitch
        self.ridge = float(problem.begun["numbers"][0]) if problem.begun else ridge
        self.coordinates = self.near = Coordinates(stitch, problem.fit.activations.to(self.device), self.ridge)
        self.batches = draw_batches(len(problem.fit.labels), batch, problem.seed)
        self.held_out = min(HELD_OUT, len(problem.validation.labels))
        self.scale = problem.task.scale(problem.validation.labels)
        self.constant = err_always(problem, self.held_out)
        self.curve: list[CurvePoint] = []
        self.gains: list[float] = []
        self.step = self.taken = self.steps = self.idle = self.lowered = self.draws = self.again = self.displaced = 0
        self.look = FIRST  #: the step at which the average is looked at next
        self.least_loss = math.inf
        self.before: Best | None = None
        # a start is parameters alone: a rotation or a norm that a stitch keeps in buffers would stay that of the first
        self.most_draws = 0 if any(buffer.is_floating_point() for buffer in stitch.buffers()) else DRAWS

    def begin(self, tolerance: float) -> bool:
        """Find a rate and take the first looks; or go back to the problem's ``begun``, and return ``False``."""
        if self.problem.begun:
            self._restore(self.problem.begun)
            return False
        self._set_out(LADDER, turn=True)
        for _ in range(BEGUN):
            self.double(tolerance)
        return True

    def double(self, tolerance: float) -> None:
        """Go on to the next look, and count it if it is idle and not the first."""
        better = self._go_on(self.look - self.step, tolerance)
        self.idle = 0 if better or self.step == FIRST else self.idle + 1

    def run(self, cap: int, tolerance: float) -> FitReport:
        """Descend until a doubling of the steps gains less than the tolerance, or the next would exceed the cap.

        Begins, if it has not begun.
        """
        if not self.curve:
            self.begin(tolerance)
        converged = False
        while not converged and self.taken - self.again + self.look - self.step <= cap:
            if self.idle < IDLE:  # else a race of two descents ended there
                self.double(tolerance)
            if self.idle == IDLE:
                converged = self.lowered == LOWERED
                self._lower_rate()
            if converged and self.draws < self.most_draws and (lost := self._lost()):
                converged = False
                self._begin_again(lost)
        report = self._end(converged)
        return report if converged else replace(report, state=self._state())

    def run_briefly(self, most: int) -> FitReport:
        """Take just so many steps, those among them that other rates are tried for."""
        self._set_out(min(LADDER, (most - FIRST) // TRIED - 1), turn=False)
        while self.steps < most:
            self._go_on(min(self.look - self.step, most - self.steps), 0.0)
        return self._end(None)

    def _set_out(self, tries: int, turn: bool) -> None:
        """Look at the start, and find a rate by so many tries of another, if any."""
        start = self._look(self.coordinates.state())
        self.best = Best(start, self.constant)
        self.curve.append(CurvePoint(0, math.nan, start.loss))
        self.least_loss, self.rate = start.loss, RATE
        self.adam = self._adam(RATE)
        if tries > 0:
            self._find_rate(tries, turn)

    def _go_on(self, ahead: int, tolerance: float) -> bool:
        """Take steps and look at their average, keeping the best; say if error or loss got better."""
        average, fit_loss = self._average(ahead)
        found = self._look(average)
        self.curve.append(CurvePoint(self.steps, fit_loss, found.loss))
        gain = self.best.least.error - found.error
        least = max(tolerance * self.scale, found.chance(self.best.least))
        better = gain >= least or self.least_loss - found.loss > STILL * self.scale
        self.gains.append(gain)
        self.least_loss, self.look = min(self.least_loss, found.loss), 2 * self.look
        self.best.add(found)
        return better

    def _lower_rate(self) -> None:
        """Go back to the best, to descend from there at a lower rate."""
        self.coordinates.restore(self.best.kept.state)
        self.rate, self.lowered = self.rate / LOWER, self.lowered + 1
        self.adam = self._adam(self.rate)
        self.step, self.idle, self.look, self.least_loss = 0, 0, BEGUN * FIRST, self.best.kept.loss

    def _best_of_all(self) -> Best:
        """Return what is best from this start and those before."""
        if self.before is None:
            return self.best
        best = Best(self.before.least, self.constant)
        for look in (self.before.kept, self.best.least, self.best.kept):
            best.add(look)
        return best

    def _lost(self) -> list[int]:
        """Return the classes that are hardly ever named, though more are right than any constant reaches."""
        if self.problem.task != Classification():
            return []
        wrong = self._best_of_all().least.wrong
        labels = self.problem.validation.labels[: self.held_out].cpu()
        counts = torch.bincount(labels)
        right = torch.bincount(labels, weights=1 - wrong.double()) / counts
        share = 1 - float(wrong.double().mean())
        if share < ABOVE * float(counts.max()) / len(labels):
            return []
        taught = torch.bincount(self.problem.fit.labels.cpu(), minlength=len(counts))[: len(counts)] > 0
        return [int(label) for label in ((counts > 0) & taught & (right < LOST * share)).nonzero()]

    def _begin_again(self, lost: Sequence[int]) -> None:
        """Begin once more: first where the receiver names the lost classes, if that is found, then at random."""
        displacements: dict[int, Tensor] = {}
        if self.draws == 0 and isinstance(self.problem.family, AffineStitch):
            displacements, taken = find_displacements(self.problem, self.suffix, lost, self.device)
            self.displaced, self.steps = int(bool(displacements)), self.steps + taken
        self.before, self.again, self.coordinates = self._best_of_all(), self.taken, self._plain()
        own = self.draw(self.draws, displacements)
        drawn = {name: tensor.detach().to(self.device) for name, tensor in own.items()}
        self.draws += 1
        self.coordinates.restore(self.coordinates.express(drawn))
        start = self._look(self.coordinates.state())
        self.best = Best(start, self.constant)
        self.curve.append(CurvePoint(self.steps, math.nan, start.loss))
        self.rate, self.least_loss, self.gains = RATE, start.loss, []
        self.adam = self._adam(RATE)
        self.step, self.idle, self.lowered, self.look = 0, 0, 0, FIRST

    def _plain(self) -> Coordinates:
        return Coordinates(self.stitch, self.problem.fit.activations.to(self.device), ridge=None)

    def _end(self, converged: bool | None) -> FitReport:
        best = self._best_of_all()
        others = ("", "displaced" if self.displaced else "random", *["random"] * DRAWS)
        start = others[best.kept.draw]
        notes = {"": (), "displaced": (DISPLACED,), "random": (AGAIN,)}[start]
        notes += (SOUGHT if self.draws else LOST_ALONE,) * bool(converged and self._lost())
        coordinates = self.coordinates if start else self.near
        if not math.isfinite(best.kept.loss):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        here = coordinates.state()
        coordinates.restore(best.kept.state)
        coordinates.write()
        coordinates.restore(here)
        gap, curve, loss = _extrapolate(self.gains), tuple(self.curve), best.kept.loss
        return FitReport(self.steps, converged, curve, notes=notes, gap=gap, start=start, validation_loss=loss)

    def _state(self) -> State:
        """Everything that a larger cap needs to go on, as tensors by name."""
        counts = [getattr(self, name) for name in COUNTS]
        looks = {"kept": self.best.kept, "least": self.best.least}
        if self.before:
            looks |= {"kept before": self.before.kept, "least before": self.before.least}
        numbers = [self.ridge, *counts, self.rate, self.least_loss, *(look.loss for look in looks.values())]
        points = [(point.step, point.fit_loss, point.validation_loss) for point in self.curve]
        made = {
            "numbers": torch.tensor(numbers, dtype=torch.float64),
            "gains": torch.tensor(self.gains, dtype=torch.float64),
            "curve": torch.tensor(points, dtype=torch.float64),
        }
        for which, look in looks.items():
            made |= {f"{which}.{name}": tensor for name, tensor in look.state.items()} | {f"wrong {which}": look.wrong}
            made[f"draw {which}"] = torch.tensor(look.draw)
        for name, tensor in self.coordinates.free.items():
            made[f"here.{name}"] = tensor
            made |= {f"{entry}.{name}": value for entry, value in self.adam.state.get(tensor, {}).items()}
        return {name: tensor.detach().cpu().clone() for name, tensor in made.items()}

    def _restore(self, state: State) -> None:
        """Go back to where another descent on the same problem ended."""
        _, *numbers = state["numbers"].tolist()
        for name in COUNTS:
            setattr(self, name, int(numbers.pop(0)))
        self.rate, self.least_loss, *losses = numbers
        self.gains = state["gains"].tolist()
        self.curve = [CurvePoint(int(at), fit, held) for at, fit, held in state["curve"].tolist()]

        def restored(which: str, loss: float) -> Look:
            tensors = {name: state[f"{which}.{name}"].to(self.device) for name in self.coordinates.free}
            return Look(tensors, state[f"wrong {which}"], loss, int(state[f"draw {which}"]))

        self.best = Best(restored("least", losses[1]), self.constant)
        self.best.kept = restored("kept", losses[0])
        if self.draws:
            self.coordinates = self._plain()
            self.before = Best(restored("least before", losses[3]), self.constant)
            self.before.kept = restored("kept before", losses[2])
        self.coordinates.restore({name: state[f"here.{name}"] for name in self.coordinates.free})
        self.adam = self._adam(self.rate)
        for name, tensor in self.coordinates.free.items():
            if f"step.{name}" in state:  # else the rate was lowered just now
                entries = {entry: state[f"{entry}.{name}"].clone() for entry in ("step", "exp_avg", "exp_avg_sq")}
                moments = {entry: value.to(self.device) for entry, value in entries.items() if entry != "step"}
                self.adam.state[tensor] = {"step": entries["step"]} | moments
        for _ in range(self.taken):
            next(self.batches)

    def _find_rate(self, tries: int, turn: bool) -> None:
        """Try rates for a few steps each, on the same batches, and go on from the best.

        A higher rate is taken while the loss falls farther by it. Where not even the first of them is better, or the
        loss rises, a lower one is taken in the same way; with ``turn`` false, only where it rises.
        """
        drawn = [next(self.batches) for _ in range(TRIED)]
        begun = self.coordinates.state()
        before = float(self._losses(GLANCE)[0].mean())

        def attempt(rate: float) -> tuple[float, State, torch.optim.Adam]:
            self.coordinates.restore(begun)
            adam, total = self._adam(rate), _Sum()
            for i, batch in enumerate(drawn):
                self._step(adam, batch)
                if i >= TRIED // 2:
                    total.add(self.coordinates.free)
            self.steps += TRIED
            ended = self.coordinates.state()
            self.coordinates.restore(total.mean())
            fallen = before - float(self._losses(GLANCE)[0].mean())
            self.coordinates.restore(ended)
            return fallen if math.isfinite(fallen) else -math.inf, ended, adam

        fallen, ended, self.adam = attempt(RATE)
        factor, needed = (RATES, BETTER * fallen) if fallen > 0 else (1 / RATES, fallen)
        for _ in range(tries):
            other, state, its_adam = attempt(self.rate * factor)
            if other > needed:
                self.rate, fallen, ended, self.adam = self.rate * factor, other, state, its_adam
                needed = BETTER * fallen if factor > 1 else fallen
            elif turn and factor > 1 and self.rate == RATE:
                factor = 1 / RATES
            else:
                break
        self.coordinates.restore(ended)
        self.step = self.taken = TRIED

    def _adam(self, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(self.coordinates.groups(rate), betas=BETAS)

    def _average(self, ahead: int) -> tuple[State, float]:
        """Take steps; return the average of the parameters after each of them, and the mean loss of the batches."""
        total, losses = _Sum(), 0.0
        groups = self.coordinates.groups(self.rate)
        steady = math.inf if self.draws else STEADY
        for _ in range(ahead):
            self.step, self.taken, self.steps = self.step + 1, self.taken + 1, self.steps + 1
            for group, whole in zip(self.adam.param_groups, groups, strict=True):
                group["lr"] = whole["lr"] * math.sqrt(min(1.0, steady / self.step))
            losses += self._step(self.adam, next(self.batches))
            total.add(self.coordinates.free)
        return total.mean(), losses / ahead

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> float:
        """Take a step on a batch; return the loss before it."""
        outputs, labels = self._outputs(self.problem.fit, chosen)
        loss = self.problem.task.loss(outputs, labels)
        adam.zero_grad(set_to_none=True)
        differentiate(loss, list(self.coordinates.free.values()), self.problem.where)
        adam.step()
        return float(loss.detach())

    def _look(self, state: State) -> Look:
        """Look at parameters on the validation data, and come back to where the descent is."""
        here = self.coordinates.state()
        self.coordinates.restore(state)
        losses, wrong = self._losses(self.held_out)
        self.coordinates.restore(here)
        loss = float(losses.mean())
        if math.isfinite(loss):
            return Look(state, wrong, loss, self.draws)
        return Look(state, torch.full(wrong.shape, math.inf), math.inf, self.draws)

    def _losses(self, most: int) -> tuple[Tensor, Tensor]:
        """Return the loss of every validation sample that is looked at, and how wrong it is."""
        chunks = torch.arange(min(most, self.held_out)).split(CHUNK)  # type: ignore[no-untyped-call]
        losses, wrong, task = [], [], self.problem.task
        with torch.no_grad():
            for chosen in chunks:
                outputs, labels = self._outputs(self.problem.validation, chosen)
                losses.append(task.losses(outputs, labels).double().cpu())
                wrong.append(task.errors(outputs, labels).cpu())
        return torch.cat(losses), torch.cat(wrong)

    def _outputs(self, side: Side, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and labels of samples."""
        sent = side.activations[chosen].to(self.device)
        if sent.ndim == 4:
            sent = sent.contiguous(memory_format=torch.channels_last)
        return side.run(self.suffix, self.coordinates(sent), chosen), side.labels[chosen].to(self.device)


Make = Callable[[float], AveragedDescent]
"""Makes a descent in coordinates of a ridge."""


def choose_units(make: Make, tolerance: float) -> AveragedDescent:
    """Begin a descent in units of one size, and one in whitened ones; return the one that gets farther.

    Both go on while chance does not tell their errors apart, whatever the cap, until one is done with its rate.
    """
    descent = make(ALIKE)
    if descent.begin(tolerance) and descent.coordinates.rotated:
        other = make(WHITE)
        other.begin(tolerance)
        while (
            descent.look <= RACED
            and max(descent.idle, other.idle) < IDLE
            and descent.best.least.is_like(other.best.least)
        ):
            descent.double(tolerance)
            other.double(tolerance)
        steps = descent.steps + other.steps
        if other.best.least.rank < descent.best.least.rank:
            descent = other
        descent.steps = steps
    return descent


class _Sum:
    """A sum of parameters, in float64."""

    def __init__(self) -> None:
        self.total: State = {}
        self.count = 0

    def add(self, free: State) -> None:
        for name, tensor in free.items():
            value = tensor.detach().double()
            self.total[name] = self.total[name] + value if self.count else value
        self.count += 1

    def mean(self) -> State:
        return {name: (total / self.count).float() for name, total in self.total.items()}


def _extrapolate(gains: Sequence[float]) -> float | None:
    """Estimate what further doublings would gain, if each gains by the ratio of the last two of what came before it."""
    if len(gains) < 2:
        return None
    last = max(gains[-1], 0.0)
    ratio = min(max(last / gains[-2], 0.25), 0.75) if gains[-2] > 0 else 0.5
    return last * ratio / (1 - ratio)

"""The fit that goes on until more of it does not help; not yet the default, which is ``fits.fast``.

It begins as ``Fast`` does (closed form; the convex problem solved if only pooling and a linear layer follow) and then
lowers the task loss by Adam in coordinates in which one rate suits nearly all seams, through the receiver's fused
suffix. Three things differ:

- What counts is not where the descent is but the average of where it was during the last half of its steps (Polyak and
  Juditsky 1992, *Acceleration of Stochastic Approximation by Averaging*). That needs no schedule that knows its end:
  the rate is constant at first and then falls by the root of the steps, and after ``FIRST``, twice, four times … as
  many steps the average is looked at on the validation data. A few steps at each of several rates tell which to take.
- The channels that a layer reads are whitened, softly: ``W = σ_y · U · (C + r·I)^-½`` with their covariance ``C`` and
  their mean variance ``r``, without which directions of little variance would be blown up, and over-fit.
- The average with the fewest wrong validation images is kept, the closed form included; of equals the one with the
  lowest loss. The loss is descended on and the error chosen by, because where a receiver cannot name a class, a lower
  loss can go with a higher error.

``Converged`` ends when a doubling of the work gained less than its tolerance, or no more than chance would (the paired
deviation over validation images), and lowered the loss by less than ``STILL``; or when two in a row gained no more.
``Quick`` takes a fixed number of steps.
The constants were set on seams of two small ResNets and two MLPs for CIFAR-10 (docs/fits.md names them), none of which
is in the reference table of ``benchmarks/reference.py``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.validation import check_whole
from suture.core.stitches.base import Shape
from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.descent import draw_batches
from suture.fits.fast import CHUNK, Coordinates, count_samples, fit_from_closed_form

FIRST = 70  #: steps before the first look, which doubles
RATE = 0.1  #: of Adam, in the coordinates of the descent; three times less or more is worse at most tuned seams
RATES = 3.0  #: the factor between the rates that are tried
LADDER = 4  #: times that the rate may be multiplied, or divided, by it
TRIED = 35  #: steps that each rate is tried for
BETTER = 1.1  #: times as far must the loss fall at another rate
STEADY = 140  #: steps at the whole rate
BETAS = (0.9, 0.99)  #: of Adam
HELD_OUT = 10_000  #: validation samples that are looked at, at most
GLANCE = 1024  #: of them, to choose a rate
STILL = 0.005  #: nats; while a doubling lowers the validation loss by more, it goes on
State = dict[str, Tensor]
"""Free parameters by name."""


@keyed_as("Converged")
@final
@dataclass(frozen=True)
class Converged(Fit):
    """The closed form, then a descent on the task loss until a doubling of the work gains less than ``tolerance``.

    ``tolerance`` is a share of the validation images; what fewer than one image would decide counts as one image.
    ``cap`` is the most steps of ``batch`` samples; a fit that reaches it says that it has not converged. Steps do not
    depend on the cap: a larger one goes on where a smaller one ends. A family that has no closed form begins at random.
    Raises ``FitError`` if the loss is not finite at any rate.
    """

    tolerance: float = 0.001
    cap: int = 8960
    batch: int = 64

    def __post_init__(self) -> None:
        _check_steps(self, "cap", FIRST * 2)
        if not 0 < self.tolerance < 1:
            raise FitError(f"{self}: tolerance must lie between 0 and 1; 0.001 is a tenth of a percentage point")

    def reads(self, shape: Shape) -> float:
        """Return the number of samples whose receiver activations the closed form needs."""
        return count_samples(shape)

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""
        return _fit(problem, stitch, self.batch, self.cap, self.tolerance)


@keyed_as("Quick")
@final
@dataclass(frozen=True)
class Quick(Fit):
    """The descent of ``Converged`` for a fixed number of ``steps``, for maps of thousands of seams.

    It never says that it has converged, unless the seam is convex. 0 steps leave it at the closed form.
    """

    steps: int = 280
    batch: int = 64

    def __post_init__(self) -> None:
        _check_steps(self, "steps", 0)

    def reads(self, shape: Shape) -> float:
        """Return the number of samples whose receiver activations the closed form needs."""
        return count_samples(shape)

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit the stitch in place and leave it in evaluation mode."""
        return _fit(problem, stitch, self.batch, self.steps, None)


def _check_steps(fit: Converged | Quick, name: str, least: int) -> None:
    kind = type(fit).__name__
    if check_whole(f"{kind}: {name}", getattr(fit, name), FitError) < least:
        raise FitError(f"{kind}({name}={getattr(fit, name)}): {name} must be at least {least}")
    if check_whole(f"{kind}: batch", fit.batch, FitError) < 1:
        raise FitError(f"{kind}(batch={fit.batch}): batch must be at least 1")


def _fit(problem: Problem, stitch: nn.Module, batch: int, most: int, tolerance: float | None) -> FitReport:
    """Fit a stitch by at most so many steps; stop where a doubling gains less than the tolerance, if there is one."""

    def descend(stitch: nn.Module, suffix: nn.Module) -> FitReport:
        return AveragedDescent(problem, stitch, suffix, batch).run(most, tolerance)

    return fit_from_closed_form(problem, stitch, descend if most else None)


@dataclass(frozen=True, eq=False)
class _Look:
    """What validation says of parameters: the share of wrong images, and the mean loss in nats."""

    step: int
    state: State
    wrong: Tensor
    error: float
    loss: float

    def is_better(self, other: "_Look") -> bool:
        """Whether it names more images right, or as many at a lower loss."""
        return (self.error, self.loss) < (other.error, other.loss)


class AveragedDescent:
    """Adam from where the stitch is, judged by the average of where it was during the last half of its steps.

    ``suffix`` maps represented tensors ``(n, *receiver shape)`` to outputs.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, suffix: nn.Module, batch: int) -> None:
        self.problem, self.suffix = problem, suffix
        self.device = next(stitch.parameters()).device
        self.coordinates = Coordinates(stitch, problem.fit.activations.to(self.device), whiten=True)
        self.batches = draw_batches(len(problem.fit.labels), batch, problem.seed)
        self.held_out = min(HELD_OUT, len(problem.validation.labels))
        self.curve: list[CurvePoint] = []

    def run(self, most: int, tolerance: float | None) -> FitReport:
        """Take at most so many steps, fewer if a doubling of them gains less than the tolerance; keep the best."""
        best = last = self._look(0, self.coordinates.state())
        done, rate, adam = self._find_rate(most)
        gains: list[float] = []
        step, look, idle = TRIED if done else 0, FIRST, 0
        steps, converged = done, False
        while not converged and steps < most:
            ahead = min(look - step, most - steps)
            average, fit_loss = self._average(adam, rate, step, ahead)
            step, steps, look = step + ahead, steps + ahead, 2 * look
            found = self._look(steps, average)
            self.curve.append(CurvePoint(steps, fit_loss, found.loss))
            gains.append(best.error - found.error)
            idle = 0 if self._gains(best, found, tolerance or 0.0) else idle + 1
            if tolerance is not None and step >= 2 * FIRST:
                converged = idle > 1 or (idle == 1 and last.loss - found.loss <= STILL)
            best, last = found if found.is_better(best) else best, found
        if not math.isfinite(best.loss):
            raise FitError(f"the validation loss of {self.problem.where} is not finite at any rate that was tried")
        self.coordinates.restore(best.state)
        self.coordinates.write()
        return FitReport(steps, converged, tuple(self.curve), gap=_extrapolate(gains))

    def _gains(self, best: _Look, found: _Look, tolerance: float) -> bool:
        """Whether a doubling gained at least the tolerance, one image, and what chance would."""
        chance = float((best.wrong.double() - found.wrong.double()).std()) / math.sqrt(self.held_out)
        return best.error - found.error >= max(tolerance, 1 / self.held_out, chance)

    def _find_rate(self, most: int) -> tuple[int, float, torch.optim.Adam]:
        """Try rates for a few steps each, on the same batches, and go on from the best; return all steps taken.

        A higher rate is taken while the loss falls farther by it, a lower one while the loss rises.
        """
        if most < FIRST + 2 * TRIED:
            return 0, RATE, self._adam(RATE)
        drawn = [next(self.batches) for _ in range(TRIED)]
        begun = self.coordinates.state()
        before = float(self._losses(GLANCE)[0].mean())
        tried = 0

        def attempt(rate: float) -> tuple[float, State, torch.optim.Adam]:
            nonlocal tried
            self.coordinates.restore(begun)
            adam, total = self._adam(rate), _Sum()
            for i, batch in enumerate(drawn):
                self._step(adam, batch)
                if i >= TRIED // 2:
                    total.add(self.coordinates.free)
            tried += TRIED
            ended = self.coordinates.state()
            self.coordinates.restore(total.mean())
            fallen = before - float(self._losses(GLANCE)[0].mean())
            self.coordinates.restore(ended)
            return fallen if math.isfinite(fallen) else -math.inf, ended, adam

        rate, (fallen, ended, adam) = RATE, attempt(RATE)
        factor = RATES if fallen > 0 else 1 / RATES
        for _ in range(LADDER):
            if tried + TRIED + FIRST > most:
                break
            other, state, its_adam = attempt(rate * factor)
            if other <= (BETTER * fallen if factor > 1 else fallen):
                break
            rate, fallen, ended, adam = rate * factor, other, state, its_adam
        self.coordinates.restore(ended)
        return tried, rate, adam

    def _adam(self, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(self.coordinates.groups(rate), betas=BETAS)

    def _average(self, adam: torch.optim.Adam, rate: float, step: int, ahead: int) -> tuple[State, float]:
        """Take steps; return the average of the parameters after each of them, and the mean loss of the batches."""
        total, losses = _Sum(), 0.0
        groups = self.coordinates.groups(rate)
        for i in range(step + 1, step + ahead + 1):
            for group, whole in zip(adam.param_groups, groups, strict=True):
                group["lr"] = whole["lr"] * math.sqrt(min(1.0, STEADY / i))
            losses += self._step(adam, next(self.batches))
            total.add(self.coordinates.free)
        return total.mean(), losses / ahead

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> float:
        """Take a step on a batch; return the loss before it."""
        outputs, labels = self._outputs(self.problem.fit, chosen)
        loss = nn.functional.cross_entropy(outputs, labels)
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=list(self.coordinates.free.values()))
        adam.step()
        return float(loss.detach())

    def _look(self, step: int, state: State) -> _Look:
        """Look at parameters on the validation data, and come back to where the descent is."""
        here = self.coordinates.state()
        self.coordinates.restore(state)
        losses, wrong = self._losses(self.held_out)
        self.coordinates.restore(here)
        loss = float(losses.mean())
        if step == 0:
            self.curve.append(CurvePoint(0, math.nan, loss))
        return _Look(step, state, wrong, float(wrong.double().mean()), loss if math.isfinite(loss) else math.inf)

    def _losses(self, most: int) -> tuple[Tensor, Tensor]:
        """Return the loss of every validation sample that is looked at, and whether its class is named wrong."""
        chunks = torch.arange(min(most, self.held_out)).split(CHUNK)  # type: ignore[no-untyped-call]
        losses, wrong = [], []
        with torch.no_grad():
            for chosen in chunks:
                outputs, labels = self._outputs(self.problem.validation, chosen)
                losses.append(nn.functional.cross_entropy(outputs, labels, reduction="none").double().cpu())
                wrong.append((outputs.argmax(1) != labels).cpu())
        return torch.cat(losses), torch.cat(wrong)

    def _outputs(self, side: Side, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and labels of samples."""
        sent = side.activations[chosen].to(self.device)
        if sent.ndim == 4:
            sent = sent.contiguous(memory_format=torch.channels_last)
        return self.suffix(self.coordinates(sent)), side.labels[chosen].to(self.device)


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

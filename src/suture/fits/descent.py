"""Gradient descent of a stitch: steps on the fit data, stopped and chosen by validation data.

The frozen prefix has been run once for all, so a step costs the stitch and whatever of the receiver the loss needs.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.common.validation import check_whole
from suture.core.stitches.base import Shape
from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.coordinates import Standardised
from suture.fits.least_squares import LeastSquares
from suture.fits.optimisers import Adam, Cosine, Optimiser, Schedule, set_rate

EVALUATION_CHUNK = 256

Loss = Callable[[Tensor, Tensor], Tensor]
"""What a descent lowers: the mean loss of the stitch's outputs ``(n, *receiver shape)`` for the samples ``(n,)``."""


@keyed_as("Random")
@dataclass(frozen=True)
class Random(Fit):
    """Leaves the stitch at its random initialisation; the start of the published recipes."""

    @property
    def reads_receiver(self) -> bool:
        """It reads nothing."""
        return False

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Do nothing."""
        return FitReport()


@keyed_as("Descending")
@dataclass(frozen=True)
class GradientDescent(Fit):
    """A fit by gradient descent from any other fit.

    ``steps`` is the most steps that a descent takes, of ``batch`` samples each, drawn without replacement epoch by
    epoch. Every ``check`` steps the validation loss is taken; the best parameters so far, the start's included, are
    what remains. After ``patience`` checks without a better one the fit has converged; a descent that never got better
    than its start is begun again at a tenth of the rate, at most ``retries`` times, so that a rate too large for one
    seam is not taken for its answer; a loss that is no longer finite ends a descent as well. ``patience=None`` takes
    all steps once and keeps the last parameters, as the published recipes do. ``standardise`` lets a stitch without a
    norm of its own descend on standardised features, whatever the sender's scale (see ``fits.coordinates``), and a
    random start is then drawn for those; the family stays the same. Raises ``FitError`` if the loss is not finite:
    ever, with ``patience=None``; else at the start, or soon at every rate that was tried.
    """

    start: Fit = LeastSquares()
    optimiser: Optimiser = Adam(lr=1e-2)
    schedule: Schedule = Cosine()
    steps: int = 300
    batch: int = 64
    check: int = 50
    patience: int | None = 2
    retries: int = 2
    standardise: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check", "patience"):
            value = getattr(self, name)
            if value is not None and check_whole(f"{type(self).__name__}: {name}", value, FitError) < 1:
                raise FitError(f"{type(self).__name__}({name}={value}): {name} must be at least 1")
        if self.retries < 0:
            raise FitError(f"{type(self).__name__}(retries={self.retries}): retries must be at least 0")

    @property
    def reads_receiver(self) -> bool:
        """Whether its start does."""
        return self.start.reads_receiver

    def reads(self, shape: Shape) -> float:
        """As many as its start reads."""
        return self.start.reads(shape)

    @abstractmethod
    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Give the loss on one side of the problem, for a stitch on this device."""

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Train the stitch in place and leave it in evaluation mode."""
        begun = self.start.fit(problem, stitch)
        parameters = list(stitch.parameters())
        if not parameters:
            return begun
        started = copy.deepcopy(stitch.state_dict()) if self.start.is_floor else None
        device = parameters[0].device
        losses = {side: self.loss(problem, side, device) for side in (problem.fit, problem.validation)}
        with Standardised(problem, stitch, self.standardise, rewrite=not isinstance(self.start, Random)):
            report = begun
            for retry in range(self.retries + 1):
                descent = _Descent(self, problem, stitch, losses, pace=0.1**retry)
                report = _add_report(report, descent, *descent.run(parameters))
                if self.patience is None or descent.improved:
                    break
            if descent.diverged and not descent.improved:
                raise descent.not_finite
        if started is not None:
            _keep_the_better(descent, stitch, started)
        return report


def _keep_the_better(descent: "_Descent", stitch: nn.Module, started: dict[str, Tensor]) -> None:
    """Go back to the start if the end is worse on the fit data."""
    fit = descent.problem.fit
    end, ended = descent.mean_loss(fit), copy.deepcopy(stitch.state_dict())
    stitch.load_state_dict(started)
    if end <= descent.mean_loss(fit):
        stitch.load_state_dict(ended)


def _add_report(before: FitReport, descent: "_Descent", steps: int, converged: bool) -> FitReport:
    """Add the report of a descent to that of what came before it."""
    curve = [replace(point, step=before.steps + point.step) for point in descent.curve]
    return FitReport(before.steps + steps, converged, (*before.curve, *curve))


class _Descent:
    """One run of gradient descent: where it is, and the best it has seen."""

    def __init__(
        self, recipe: GradientDescent, problem: Problem, stitch: nn.Module, losses: dict[Side, Loss], pace: float
    ) -> None:
        self.recipe, self.problem, self.stitch, self.losses, self.pace = recipe, problem, stitch, losses, pace
        self.device = next(stitch.parameters()).device
        self.curve: list[CurvePoint] = []
        self.best = math.inf
        self.best_state: dict[str, Tensor] = {}
        self.checks_since_best = 0
        self.diverged = False

    def run(self, parameters: list[nn.Parameter]) -> tuple[int, bool]:
        """Take the steps; return how many, and whether it converged."""
        recipe = self.recipe
        optimiser = recipe.optimiser.over(parameters)
        drawn = draw_batches(len(self.problem.fit.labels), recipe.batch, self.problem.seed)
        running: list[float] = []
        self._check(0, math.nan)
        for step in range(recipe.steps):
            set_rate(optimiser, recipe.optimiser, recipe.schedule, step, recipe.steps, self.pace)
            running.append(self._step(optimiser, next(drawn)))
            self.diverged = not math.isfinite(running[-1])
            if (step + 1) % recipe.check == 0 or step + 1 == recipe.steps or self.diverged:
                self._check(step + 1, sum(running) / len(running))
                running.clear()
                if self.diverged or (recipe.patience is not None and self.checks_since_best >= recipe.patience):
                    break
        kept = self.curve[-1].validation_loss if recipe.patience is None else self.best
        if not math.isfinite(kept) or (self.diverged and recipe.patience is None):
            raise self.not_finite
        if recipe.patience is None:
            return step + 1, False
        self.stitch.load_state_dict(self.best_state)
        return step + 1, self.checks_since_best >= recipe.patience

    @property
    def improved(self) -> bool:
        """Whether any check was better than the start."""
        return self.best < self.curve[0].validation_loss

    @property
    def not_finite(self) -> FitError:
        """What is said of a loss that is not finite."""
        return FitError(f"the loss of {self.problem.where} is not finite; try a smaller learning rate")

    def mean_loss(self, side: Side) -> float:
        """Return the loss on all samples of a side, in evaluation mode; infinite if it is not finite."""
        self.stitch.eval()
        total = 0.0
        with torch.no_grad():
            for chosen in torch.arange(len(side.labels)).split(EVALUATION_CHUNK):  # type: ignore[no-untyped-call]
                given = side.activations[chosen].to(self.device)
                total += float(self.losses[side](self.stitch(given), chosen)) * len(chosen)
        return total / len(side.labels) if math.isfinite(total) else math.inf

    def _step(self, optimiser: torch.optim.Optimizer, chosen: Tensor) -> float:
        """Take a step and return the loss before it; if that is not finite, take none."""
        self.stitch.train()
        side = self.problem.fit
        loss = self.losses[side](self.stitch(side.activations[chosen].to(self.device)), chosen)
        if not loss.isfinite():
            return math.nan
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=list(self.stitch.parameters()))
        optimiser.step()
        return float(loss.detach())

    def _check(self, step: int, fit_loss: float) -> None:
        loss = self.mean_loss(self.problem.validation)
        self.curve.append(CurvePoint(step, fit_loss, loss))
        if loss < self.best:
            self.best, self.checks_since_best = loss, 0
            self.best_state = copy.deepcopy(self.stitch.state_dict())
        else:
            self.checks_since_best += 1


def draw_batches(n: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Endless mini-batches of indices; every epoch is a new permutation, and its remainder is left out."""
    random = generator("batches", seed)
    while True:
        order = torch.randperm(n, generator=random)
        yield from order[: n - n % min(batch, n)].split(min(batch, n))  # type: ignore[no-untyped-call]

"""Gradient descent of a stitch, as a paper would write it down: an optimiser, a schedule, a loss.

Steps on the fit data, stopped and chosen by validation data. The frozen prefix has been run once for all, so a step
costs the stitch and whatever of the receiver the loss needs.

``TaskLoss`` trains the stitch to make the stitched network right: bansal2021, section 2 and appendix A, approximates
the infimum of the task loss over the family by Adam with a cosine schedule. The labels are the data's, or the
receiver's own outputs for each image. ``MatchActivations`` trains it to give the receiver's own activations:
hernandez2022, "copying", transforms "the prefix's cached outputs into the suffix's expected inputs" by mean squared
error, and never sees the task. Least squares reaches the same end at once; descent is the published experiment, and
serves families that have no closed form.

How far a step moves a stitch depends on the units of what it reads: an untrained sender's features may be a hundredfold
smaller than a trained one's, and a short fit would then report the learning rate instead of the representation. So, if
it is to ``standardise``, for the time of the descent a layer that reads the sender's features reads ``(x − μ_x) / σ_x``
instead, with the means and deviations of each feature over the fit data; it is rewritten to do the same to these, and
rewritten back afterwards. A stitch that is still random is taken as drawn for the standardised features, and only
rewritten back: else its first outputs, too, would be in the sender's units. This is exact and stays within the family.
A zero-padded convolution is scaled but not centred, because at the border a shift of what it reads is not a shift of
what it gives.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from suture.common.constants import CHUNK
from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.mapped import empty, fill, pieces
from suture.common.phases import say_step
from suture.common.scaling import without_constant
from suture.common.seeds import generator
from suture.common.validation import check_whole
from suture.core.stitches import AffineStitch
from suture.core.stitches.base import RawLayer, ScaleAndShift, Shape
from suture.data.tasks import Classification, OwnOutputs, Task
from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side, mean_loss
from suture.fits.least_squares import LeastSquares
from suture.fits.optimisers import Adam, Cosine, Optimiser, Schedule, set_rate

CONSTANT = 1e-6  #: features whose deviation is below this share of the largest count as constant
Loss = Callable[[Tensor, Tensor], Tensor]
"""What a descent lowers: the mean loss of the stitch's outputs ``(n, *receiver shape)`` for the samples ``(n,)``."""


@keyed_as("Random")
@dataclass(frozen=True)
class Random(Fit):
    """Leaves the stitch at its random initialisation; the start of the published recipes."""

    def reads(self, shape: Shape) -> float:
        """Return 0: it reads nothing."""
        return 0

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Do nothing."""
        return FitReport()


@keyed_as("Descending")
@dataclass(frozen=True)
class GradientDescent(Fit):
    """A fit by gradient descent from any other fit.

    A descent takes at most ``steps`` steps, of ``batch`` samples each, drawn without replacement epoch by epoch. Every
    ``check`` steps the validation loss is computed; the best parameters so far, the start's included, are kept. After
    ``patience`` checks without a better one the fit has converged; a descent that never got better than its start is
    begun again at a tenth of the rate, at most ``retries`` times, so that a rate too large for one seam is not taken
    for its answer; a loss that is no longer finite ends a descent as well. ``patience=None`` takes all steps once and
    keeps the last parameters, as the published recipes do. ``standardise`` lets a stitch without a norm of its own
    descend on standardised features, whatever the scale of the sender's, and a random start is then drawn for those;
    the family stays the same. Raises ``FitError`` if the loss is not finite: ever, with ``patience=None``; else at the
    start, or soon at every rate that was tried.
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
    def parts(self) -> tuple[Fit, ...]:
        """Its start."""
        return (self.start,)

    @abstractmethod
    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Return the loss on one side of the problem, for a stitch on this device."""

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Train the stitch in place and leave it in evaluation mode."""
        begun = self.start.fit(problem, stitch)
        parameters = list(stitch.parameters())
        if not parameters:
            return begun
        started = copy.deepcopy(stitch.state_dict()) if self.start.is_floor else None
        device = parameters[0].device
        losses = {side: self.loss(problem, side, device) for side in (problem.fit, problem.validation)}
        with standardised(problem, stitch, self.standardise, rewrite=not isinstance(self.start, Random)):
            report = begun
            for retry in range(self.retries + 1):
                descent = _Descent(self, problem, stitch, losses, pace=0.1**retry)
                steps, converged = descent.run(parameters)
                curve = (replace(point, step=report.steps + point.step) for point in descent.curve)
                report = FitReport(report.steps + steps, converged, (*report.curve, *curve))
                if self.patience is None or descent.improved:
                    break
            if descent.diverged and not descent.improved:
                raise descent.not_finite
        if started is not None:
            _keep_the_better(descent, stitch, started)
        looks = [point.validation_loss for point in descent.curve]
        return replace(report, validation_loss=looks[-1] if self.patience is None else min(looks))


def _keep_the_better(descent: "_Descent", stitch: nn.Module, started: dict[str, Tensor]) -> None:
    """Go back to the start if the end is worse on the fit data."""
    fit = descent.problem.fit
    end, ended = descent.mean_loss(fit), copy.deepcopy(stitch.state_dict())
    stitch.load_state_dict(started)
    if end <= descent.mean_loss(fit):
        stitch.load_state_dict(ended)


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

    def run(self, parameters: list[nn.Parameter]) -> tuple[int, bool | None]:
        """Take the steps; return how many, and whether it converged, ``None`` if it takes all of them anyway."""
        recipe = self.recipe
        optimiser = recipe.optimiser.over(parameters)
        drawn = draw_batches(len(self.problem.fit.labels), recipe.batch, self.problem.seed)
        running: list[float] = []
        self._check(0, math.nan)
        for step in range(recipe.steps):
            set_rate(optimiser, recipe.optimiser, recipe.schedule, step, recipe.steps, self.pace)
            running.append(self._step(optimiser, next(drawn)))
            say_step(step + 1, recipe.steps)
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
            return step + 1, None
        self.stitch.load_state_dict(self.best_state)
        return step + 1, self.checks_since_best >= recipe.patience

    @property
    def improved(self) -> bool:
        """Whether any check was better than the start."""
        return self.best < self.curve[0].validation_loss

    @property
    def not_finite(self) -> FitError:
        """The error for a loss that is not finite."""
        return FitError(f"the loss of {self.problem.where} is not finite; try a smaller learning rate")

    def mean_loss(self, side: Side) -> float:
        """Return the loss on all samples of a side, in evaluation mode; infinite if it is not finite."""
        self.stitch.eval()
        total = 0.0
        with torch.no_grad():
            for chosen in torch.arange(len(side.labels)).split(CHUNK):  # type: ignore[no-untyped-call]
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
        differentiate(loss, list(self.stitch.parameters()), self.problem.where)
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


def differentiate(loss: Tensor, parameters: Sequence[Tensor], where: str) -> None:
    """Put the gradient of a loss into a stitch's parameters. Raises ``FitError`` if the receiver lets none pass."""
    if not loss.requires_grad:
        raise FitError(
            f"no gradient passes the receiver's layers {where}: they detach their input, or compute under "
            "no_grad; change that in the model, stitch at a later cut, or fit by LeastSquares()"
        )
    torch.autograd.backward(loss, inputs=list(parameters))


def draw_batches(n: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield mini-batches of indices without end; every epoch is a new permutation, and its remainder is left out."""
    random = generator("batches", seed)
    while True:
        order = torch.randperm(n, generator=random)
        yield from order[: n - n % min(batch, n)].split(min(batch, n))  # type: ignore[no-untyped-call]


@keyed_as("Targets")
class Targets(ABC):
    """The targets of the stitched network for every image, from the data or from the receiver."""

    @abstractmethod
    def of(self, side: Side) -> Tensor:
        """Return targets of the task, or probabilities (n, classes)."""

    def task(self, task: Task) -> Task:
        """Return the task that the targets are for."""
        return task


@keyed_as("HardLabels")
@final
@dataclass(frozen=True)
class HardLabels(Targets):
    """The labels of the data."""

    def of(self, side: Side) -> Tensor:
        """Return the labels (n,)."""
        return side.labels


@keyed_as("SoftLabels")
@final
@dataclass(frozen=True)
class SoftLabels(Targets):
    """The receiver's own probabilities, ``softmax(outputs / temperature)`` (Hinton et al. 2015, section 2).

    The stitched network is then fitted to do the same as the receiver, errors included, and no label is used. Raises
    ``FitError`` for a temperature that is not above 0.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise FitError(f"SoftLabels(temperature={self.temperature}): the temperature must be above 0")

    def of(self, side: Side) -> Tensor:
        """Return the probabilities (n, classes)."""
        own = side.outputs()
        parts = ((part.float() / self.temperature).softmax(1) for part in pieces(own))
        return fill(empty(own.shape, torch.float32, own.device), parts)

    def task(self, task: Task) -> Task:
        """Return classification, whose loss takes probabilities as well as labels.

        Raises ``FitError`` for outputs that are not one logit for each class of a sample.
        """
        if task not in (Classification(), OwnOutputs("logits")):
            raise FitError(
                f"{self} takes outputs for logits of one class per sample, and those of {task} are not; use "
                "TaskLoss() with the labels, MatchActivations(), or data with task=OwnOutputs()"
            )
        return Classification()


@keyed_as("TaskLoss")
@final
@dataclass(frozen=True)
class TaskLoss(GradientDescent):
    """The task's loss with the labels, or cross-entropy with ``SoftLabels`` of the receiver; by gradient descent.

    The settings are those of ``GradientDescent``.
    """

    targets: Targets = HardLabels()

    def reads(self, shape: Shape) -> float:
        """Return the number of samples that its start reads."""
        return self.start.reads(shape)

    def check_task(self, task: Task) -> None:
        """Raise ``FitError`` if the targets are not for a task, or the start is not."""
        self.targets.task(task)
        super().check_task(task)

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Return the mean loss of the stitched network's outputs."""
        task, targets = self.targets.task(problem.task), self.targets.of(side)

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            inputs = side.inputs_of(chosen, represented.device)
            return mean_loss(problem, problem.suffix, represented, targets[chosen].to(device), inputs, task)

        return of


@keyed_as("MatchActivations")
@final
@dataclass(frozen=True)
class MatchActivations(GradientDescent):
    """Mean squared error to the receiver's own activations at the cut, by gradient descent.

    The loss is in units of the variance of those activations on the fit data, so that the learning rate means the same
    at every cut. The settings are those of ``GradientDescent``; it starts at random, as published.
    """

    start: Fit = Random()

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Return the mean squared error of the stitch's outputs."""
        expected = side.expected()
        own, there = problem.fit.expected()[:], problem.fit.counted
        unit = float((own if there is None else own[there]).float().var(0, correction=0).mean()) or 1.0

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            off = (represented - expected[chosen].to(represented)).square()
            return (off if side.counted is None else off[side.counted[chosen]]).mean() / unit

        return of


@contextmanager
def standardised(problem: Problem, stitch: nn.Module, wanted: bool, *, rewrite: bool = True) -> Iterator[None]:
    """Let the stitch's layers read standardised features within.

    Does nothing if ``wanted`` is false or the family takes care of it. With ``rewrite=False`` the stitch is taken to
    read standardised features already.
    """
    family = problem.family
    layers = family.raw_layers(stitch) if isinstance(family, AffineStitch) and wanted else ()
    sums = {layer: _Sums(layer) for layer in layers}
    if sums:
        run_watched(stitch, layers, problem.fit.activations, lambda layer, given, out: sums[layer].add(given[0]))
    read = [(layer, *own.moments()) for layer, own in sums.items()]
    hooks: list[RemovableHandle] = []
    for layer, mean, std in read:
        if rewrite:
            _rebase(layer, mean, std)
        hooks.append(layer.register_forward_pre_hook(_make_standardising(layer, mean, std)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mean, std in read:
            _rebase(layer, -mean / std, 1 / std)
        stitch.eval()


class _Sums:
    """Sums of the features that a layer reads, in float64, about the means of the first chunk."""

    def __init__(self, layer: RawLayer) -> None:
        self.layer, self.count = layer, 0
        self.shift = self.total = self.square = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        rows = rows_of(self.layer, x).cpu().double()
        self.shift = self.shift if self.count else rows.mean(0)
        rows = rows - self.shift
        self.total, self.square = self.total + rows.sum(0), self.square + rows.square().sum(0)
        self.count += len(rows)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the features, in the layer's own floating type."""
        mean = self.total / self.count
        std = (self.square / self.count - mean.square()).clamp(min=0).sqrt()
        std = without_constant(std, CONSTANT)
        shift = torch.zeros_like(mean) if is_padded(self.layer) else self.shift + mean
        return shift.to(self.layer.weight), std.to(self.layer.weight)


def _make_standardising(layer: RawLayer, mean: Tensor, std: Tensor) -> Any:
    """Make the hook by which a layer reads ``(x − mean) / std``."""
    if isinstance(layer, nn.Conv2d):
        mean, std = mean[:, None, None], std[:, None, None]
    return lambda _, given: ((given[0] - mean) / std,)


def _rebase(layer: RawLayer, mean: Tensor, std: Tensor) -> None:
    """Make the layer map ``(x − mean) / std`` to its former outputs for ``x``."""
    weight = layer.weight.detach().double()
    assert layer.bias is not None
    by_feature = weight.flatten(2).sum(2) if isinstance(layer, nn.Conv2d) else weight
    shifted = weight * mean.double() if isinstance(layer, ScaleAndShift) else by_feature @ mean.double()
    with torch.no_grad():
        layer.bias.copy_(layer.bias.double() + shifted)
        layer.weight.copy_(weight * std.double().reshape(-1, *[1] * (weight.ndim - 2)))


def run_watched(stitch: nn.Module, layers: Iterable[nn.Module], activations: Tensor, see: Any) -> None:
    """Run a stitch in evaluation mode over activations, and call ``see(layer, inputs, output)`` in every layer."""
    handles = [layer.register_forward_hook(see) for layer in layers]
    device = next(stitch.parameters()).device
    stitch.eval()
    try:
        with torch.no_grad():
            for part in activations.split(CHUNK):  # type: ignore[no-untyped-call]
                stitch(part.to(device, copy=True))  # a copy, since a stitch may write into what it is given
    finally:
        for handle in handles:
            handle.remove()


def rows_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the features that a layer reads or gives, one row for every sample and position."""
    return (x.movedim(1, -1) if isinstance(layer, nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d) else x).flatten(0, -2)


def is_padded(layer: nn.Module) -> bool:
    """Return whether a layer is a convolution that pads its input."""
    return isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or any(layer.padding))

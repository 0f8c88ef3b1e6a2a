"""The task loss if only pooling and a linear layer follow the cut: it is convex, and solved as such.

A stitch ``y = W·x + b`` of every position, then the mean over the positions and a linear layer ``V·y + c``, give

    outputs = V·(W·z + b) + c        z: the mean of the rows x of an image

so the images enter by ``z`` alone, and the cross-entropy is convex in ``M = V·W``. The penalised loss

    mean cross-entropy + λ ‖M·σ_z‖²

is minimised by L-BFGS for each λ, the largest first; the validation data chooses among them, the closed form included.
Of the ``W`` that give this ``M`` the one nearest to the closed form's ``W₀`` is taken, ``W₀ + V⁺(M − V·W₀)``.

``Logistic``, the fit of a linear probe, is the same if no layer follows: the stitch's outputs ``W·z + b`` are then the
network's, ``V`` is the identity, and nothing is read of the receiver, not even its outputs. Alain & Bengio 2016,
section 3.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from suture.common.constants import CHUNK, OUTPUT
from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.scaling import without_constant
from suture.core.stitches import AffineMap, Part
from suture.core.stitches.base import Shape, is_affine
from suture.data.tasks import Classification, Task
from suture.fits.base import CurvePoint, Fit, FitReport, Problem

PENALTIES = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)  #: candidates for λ, as they are solved
ITERATIONS = 1_000  #: of L-BFGS, at most, for each
FALLEN = 1e-6  #: of the loss: an iteration that lowers it by less is the last
LITTLE = 1e-4  #: nats: a λ that lowers the validation loss by less is the last
_RANK = 1e-6  #: directions of V weaker than this share of the strongest reach no output


@dataclass(frozen=True, eq=False)
class Head:
    """Pooling and a linear layer: ``outputs = weight · mean of the rows + bias``, float64."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class Solved:
    """The solution: the map of rows, its mean validation loss and the closed form's, and the iterations taken.

    ``converged`` is whether every minimum was reached, and the last λ gained less than ``LITTLE``, or nothing.
    """

    affine: AffineMap
    loss: float
    start_loss: float
    fit_loss: float
    iterations: int
    converged: bool

    @property
    def report(self) -> FitReport:
        """The report of a fit that this is: steps are iterations."""
        curve = CurvePoint(0, math.nan, self.start_loss), CurvePoint(self.iterations, self.fit_loss, self.loss)
        return FitReport(self.iterations, self.converged, curve, validation_loss=self.loss)


def read_head(run: nn.Module, shape: tuple[int, ...], part: Part, probe: Tensor) -> Head | None:
    """Read the linear layer off a suffix of tensors ``(n, *shape)``; ``None`` if it is not a mean and a linear layer.

    ``probe`` are such tensors, on which the two must agree to 1e-4 of the outputs' variation.
    """
    features = part.gives(probe[:1]).shape[-1]
    axis = next((i for i in (0, len(shape) - 1) if shape[i] == features), None)
    if axis is None:
        return None
    basis = torch.cat([torch.zeros(1, features), torch.eye(features)]).to(probe)
    ends = [1] * (len(shape) - 1)
    spread = basis.reshape(-1, features, *ends).movedim(1, axis + 1).expand(-1, *shape)
    with torch.no_grad():
        out = run(spread.contiguous()).double()
        head = Head((out[1:] - out[0]).T.cpu(), out[0].cpu())
        wanted = run(probe).double().cpu()
    off = (_means(probe, part.gives).double().cpu() @ head.weight.T + head.bias - wanted).abs().max()
    return head if off <= 1e-4 * (wanted - wanted.mean(0)).square().mean().sqrt() else None


Flat = NDArray[np.float64]
Labelled = tuple[Tensor, Tensor]


def solve(
    head: Head,
    part: Part,
    start: AffineMap,
    fit: Labelled,
    held_out: Labelled,
    penalties: Sequence[float] | None = None,
    iterations: int = ITERATIONS,
) -> Solved:
    """Minimise the task loss over the map of rows, on activations and labels to fit and others to choose by.

    ``penalties`` are the candidates for λ, by default ``PENALTIES``, in the order in which they are solved, each with
    at most so many iterations.
    """
    (z, labels), (held, held_labels) = [(_means(x, part.reads).double(), y) for x, y in (fit, held_out)]
    mean, std = z.mean(0), without_constant(z.std(0, correction=0), 1e-6)
    left, strengths, _ = torch.linalg.svd(head.weight, full_matrices=False)
    basis = left[:, strengths > _RANK * strengths.max()]
    sides = ((z - mean) / std, labels), ((held - mean) / std, held_labels)
    problem, held_problem = (_Softmax(z, y, basis, head.bias) for z, y in sides)
    first = basis.T @ head.weight @ torch.cat([start.weight * std, (start.weight @ mean + start.bias)[:, None]], 1)
    best, loss = first, held_problem.loss(first)
    start_loss, steps, current = loss, 0, torch.zeros_like(first)
    reached, gained = True, 0.0  # by the last λ: if much, a smaller one might gain more
    for penalty in PENALTIES if penalties is None else penalties:
        current, taken, there = problem.minimised(current, penalty, iterations)
        steps, reached = steps + taken, reached and there
        now = held_problem.loss(current)
        gained = loss - now
        if gained > 0:
            best, loss = current, now
        if gained < LITTLE and best is not first:
            break
    back = torch.linalg.pinv(head.weight) @ basis
    change = back @ (best - first)
    weight = start.weight + change[:, :-1] / std
    bias = start.bias + change[:, -1] - (weight - start.weight) @ mean
    affine = AffineMap(weight, bias, start.mean, start.variance, start.out_variance)
    return Solved(affine, loss, start_loss, problem.loss(best), steps, reached and gained < LITTLE)


class _Softmax:
    """Cross-entropy of ``basis · (map · z + shift) + bias`` on standardised means ``z``; in float64."""

    def __init__(self, z: Tensor, labels: Tensor, basis: Tensor, bias: Tensor) -> None:
        self.z, self.basis, self.bias, self.labels = z, basis, bias, labels.cpu()
        self.right = nn.functional.one_hot(self.labels, len(bias)).double()

    def _log_probabilities(self, mapped: Tensor) -> Tensor:
        moved = torch.addmm(mapped[:, -1], self.z, mapped[:, :-1].T)
        return torch.addmm(self.bias, moved, self.basis.T).log_softmax(1)

    def loss(self, mapped: Tensor) -> float:
        """Return the mean cross-entropy in nats, for a map and its shift ``(rank, features + 1)``."""
        return _cross_entropy(self._log_probabilities(mapped), self.labels)

    def minimised(self, start: Tensor, penalty: float, most: int) -> tuple[Tensor, int, bool]:
        """Return the penalised minimum, the iterations taken, and whether it was reached."""
        from scipy.optimize import minimize  # half a second; before the limit, which holds for what is loaded

        def objective(flat: Flat) -> tuple[float, Flat]:
            mapped = torch.from_numpy(flat).reshape(start.shape)
            logs = self._log_probabilities(mapped)
            through = (logs.exp() - self.right) @ self.basis / len(logs)
            gradient = torch.cat([through.T @ self.z, through.sum(0)[:, None]], 1)
            gradient[:, :-1] += 2 * penalty * mapped[:, :-1]
            value = _cross_entropy(logs, self.labels) + penalty * float(mapped[:, :-1].square().sum())
            return value, gradient.flatten().numpy()

        options: Any = {"maxiter": most, "maxfun": 2 * most, "ftol": FALLEN, "gtol": 1e-6}
        begin: Any = start.flatten().numpy()
        with threadpool_limits(limits=1, user_api="blas"):  # scipy's own sums, of which torch's threads know nothing
            found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
        return torch.from_numpy(found.x).reshape(start.shape), int(found.nit), bool(found.success)


def _cross_entropy(logs: Tensor, labels: Tensor) -> float:
    return float(-logs.gather(1, labels[:, None]).mean())


def _means(x: Tensor, rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean of the rows of every sample ``(n, features)``."""
    return torch.cat([rows(part).reshape(len(part), -1, rows(part[:1]).shape[-1]).mean(1) for part in x.split(CHUNK)])  # type: ignore[no-untyped-call]


@keyed_as("Logistic")
@final
@dataclass(frozen=True)
class Logistic(Fit):
    """Multinomial logistic regression on the labels, of a stitch that gives the outputs itself.

    ``penalties`` are the candidates for λ, in units of squared deviations of the features, each solved by at most
    ``iterations`` of L-BFGS; the first that is no better on the validation data ends the search. ``steps`` of the
    report are iterations. Raises ``FitError`` if layers follow the stitch, or it is not one affine map of a sample,
    and for penalties below 0 or none.
    """

    penalties: tuple[float, ...] = PENALTIES
    iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        if not self.penalties or min(self.penalties) < 0 or self.iterations < 1:
            raise FitError(f"{self}: name penalties of at least 0, for instance penalties=(1e-3,), and iterations ≥ 1")

    def reads(self, shape: Shape) -> float:
        """Return 0: it reads the labels alone."""
        return 0

    def check_task(self, task: Task) -> None:
        """Raise ``FitError`` unless every sample has one class."""
        if task != Classification():
            raise FitError(f"Logistic() needs a class for each sample, and the task is {task.name}; use TaskLoss()")

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Solve for the map and load it."""
        family, sent = problem.family, problem.fit.activations
        alone = not problem.suffix.segments
        parts = family.parts(stitch, sent) if is_affine(family) and alone else ()
        if len(parts) != 1:
            raise FitError(
                f"Logistic fits what gives the outputs by one affine map of a sample, as Probe() does at '{OUTPUT}', "
                f"and {problem.where} has {family}; use TaskLoss()"
            )
        with torch.no_grad():
            outputs = stitch.eval()(sent[:1].to(next(stitch.parameters()).device)).shape[1]
        part = parts[0]
        features = part.reads(sent[:1]).shape[1]
        none = torch.zeros(features, dtype=torch.float64)
        start = AffineMap(none.expand(outputs, -1), torch.zeros(outputs, dtype=torch.float64), none, none, none)
        head = Head(torch.eye(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64))
        fit, held_out = ((side.activations.cpu(), side.labels.cpu()) for side in (problem.fit, problem.validation))
        found = solve(head, part, start, fit, held_out, self.penalties, self.iterations)
        part.load(found.affine)
        return found.report

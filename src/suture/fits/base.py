"""The inputs of a fit: the seam as data, and a stitch to change in place."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suture.common.constants import CHUNK
from suture.common.formatting import spell
from suture.common.hashing import keyed_as
from suture.core.fused import Fused
from suture.core.network.segments import Frozen
from suture.core.stitches import Stitch
from suture.core.stitches.base import Shape
from suture.data.tasks import Classification, Task

State = dict[str, Tensor]
"""Parameters by name."""


@dataclass(frozen=True, eq=False)
class Side:
    """One data role seen from the seam.

    ``activations`` are the sender's at its cut, ``(n, *sender shape)``, or what stands for them if they are too large
    to be kept (``core.activations.cache.Recomputed``): take rows; ``labels`` are the task's targets, ``(n,)`` or ``(n,
    …)``; ``expected()`` gives the receiver's own activations at its cut, ``(n, *receiver shape)``, of the first samples
    if the fit ``reads`` no more, and ``outputs()`` its own outputs ``(n, …)``, in the same order. ``inputs`` are the
    inputs that the suffix reads beside the tensor that passes, such as masks; ``counted`` marks the tokens that count,
    bool ``(n, T)``, if the seam joins tokens to tokens and not all do.
    """

    activations: Tensor
    labels: Tensor
    expected: Callable[[], Tensor]
    outputs: Callable[[], Tensor]
    inputs: Tensor | None = None
    counted: Tensor | None = None

    def run(self, suffix: nn.Module, represented: Tensor, chosen: Tensor) -> Tensor:
        """Return a suffix's outputs for chosen samples, which a stitch has represented."""
        return run_suffix(suffix, represented, self.inputs_of(chosen, represented.device))

    def inputs_of(self, chosen: Tensor, device: torch.device) -> Tensor | None:
        """Return the inputs that a suffix reads of chosen samples, on a device; ``None`` if it reads none."""
        return None if self.inputs is None else self.inputs[chosen.to(self.inputs.device)].to(device)


def run_suffix(suffix: nn.Module, represented: Tensor, inputs: Tensor | None) -> Tensor:
    """Return the outputs of a suffix for represented tensors and the inputs that it reads beside them, if any."""
    out: Tensor = suffix(represented) if inputs is None else suffix(represented, inputs)
    return out


@dataclass(frozen=True, eq=False)
class Problem:
    """One seam to be fitted: the data that trains the stitch, and the data that stops and chooses."""

    family: Stitch
    suffix: Frozen  #: the receiver after its cut
    fit: Side
    validation: Side
    seed: int
    where: str  #: in words, for messages
    fused: "Callable[[torch.dtype], Fused | None] | None" = None  #: makes the fused suffix, if there may be one
    task: Task = Classification()  #: what outputs and labels mean
    shapes: tuple[Shape, Shape] = None  # type: ignore[assignment]  # of sender and receiver; by default the sides'
    rows: int = CHUNK  #: samples that pass through the suffix at once, at most

    def __post_init__(self) -> None:
        if self.shapes is None:
            shapes = [tuple(each.shape[1:]) for each in (self.fit.activations, self.fit.expected())]
            object.__setattr__(self, "shapes", tuple(shapes))


def mean_loss(
    problem: Problem, suffix: nn.Module, represented: Tensor, labels: Tensor, inputs: Tensor | None, task: Task
) -> Tensor:
    """Return the mean loss of a suffix's outputs for represented tensors, a scalar to descend on.

    Of more samples than pass at once, outputs are never held together: they are computed again on the way back.
    """
    if len(labels) <= problem.rows:
        return task.loss(run_suffix(suffix, represented, inputs), labels)

    def losses(represented: Tensor, labels: Tensor, inputs: Tensor | None) -> Tensor:
        return task.losses(run_suffix(suffix, represented, inputs), labels)

    found = []
    for start in range(0, len(labels), problem.rows):
        some = slice(start, start + problem.rows)
        given = represented[some], labels[some], None if inputs is None else inputs[some]
        found.append(checkpoint(losses, *given, use_reentrant=False, preserve_rng_state=False))
    counts = task.positions(labels).to(represented.device)
    loss: Tensor = (torch.cat(found) * counts).sum() / counts.sum().clamp(min=1)
    return loss


@dataclass(frozen=True)
class CurvePoint:
    """The fit at one moment: its losses, averaged over the batches since the last point, and on validation data.

    In nats for the task, in units of the receiver's variance for the match of activations.
    """

    step: int
    fit_loss: float
    validation_loss: float


@dataclass(frozen=True)
class Gained:
    """The gain of the last doubling of a fit's work: ``value`` ± ``error``, as a share of the validation samples.

    ``error`` is the standard error of the paired difference.
    """

    value: float
    error: float

    @property
    def most(self) -> float:
        """The value plus its error."""
        return self.value + self.error


@dataclass(frozen=True)
class FitReport:
    """The report of a fit.

    ``steps`` counts the steps of gradient descent, those of its start included, and so do the points of the curve.
    ``converged`` is whether it ended because nothing got better, ``None`` if the fit cannot say: a closed form, or one
    that takes all its steps anyway. ``gained`` is the gain of the last doubling of the work, ``None`` if the fit does
    not report it. ``start`` says where a descent began. ``kept`` says which of several fits gave the stitch, if there
    were several. ``notes`` describe deviations from the usual course. ``validation_loss`` is that of the parameters
    that were kept, nan if the fit did not look.
    """

    steps: int = 0
    converged: bool | None = None
    curve: tuple[CurvePoint, ...] = ()
    gained: Gained | None = None
    start: str = ""
    kept: str = ""
    notes: tuple[str, ...] = ()
    validation_loss: float = math.nan


PUBLISHED: "dict[str, Fit]" = {}
"""Fits that go by a name wherever they are spelled, which ``suture_papers.recipes`` fills; keys do not depend on it."""


@keyed_as("Fit")
class Fit(ABC):
    """How a stitch gets its parameters. Fits are frozen dataclasses; equal settings are equal fits."""

    is_floor: ClassVar[bool] = False
    """Whether a descent from here must not end worse on the fit data, beside the validation data."""

    fitted_on: ClassVar[int | None] = None
    """How many samples a plan fits it on if the data do not say; ``None`` leaves it to the plan."""

    def reads(self, shape: Shape) -> float:
        """Return the number of samples, from the first on, whose receiver activations ``(n, *shape)`` it needs.

        They are computed before the fit. Return infinity if unsure.
        """
        return math.inf

    @property
    def parts(self) -> "tuple[Fit, ...]":
        """The fits that it is made of, such as its start."""
        return ()

    def count_steps(self, fits: int) -> tuple[float, float] | None:
        """Return the least and the most steps of gradient descent that it probably takes, in the mean of so many fits.

        Both are the same if the number is fixed, and 0 without a descent. ``None`` if it is not known.
        """
        del fits
        return None

    def check_task(self, task: Task) -> None:
        """Raise ``FitError`` if the fit, or one that it is made of, is not for a task."""
        for part in self.parts:
            part.check_task(task)

    @property
    def drawn_as(self) -> "Fit":
        """The fit from which random numbers derive: the same, except for settings that only limit its length."""
        return self

    def deepened(self) -> "Fit | None":
        """Return the same fit with more work allowed, to be begun anew; ``None`` if there is none."""
        return None

    @abstractmethod
    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Set the parameters and buffers of the stitch in place; leave everything else bit for bit as it was."""

    def __str__(self) -> str:
        """Return the name of a published fit, with its steps if only they differ; else the call that makes it.

        A call is spelled without the settings that are default.
        """
        return _published(self) or spell(self)


def _published(fit: Fit) -> str:
    """Return the name that a fit goes by, if it does."""
    for name, known in PUBLISHED.items():
        if type(known) is type(fit) and is_dataclass(fit):
            differ = [f.name for f in fields(fit) if getattr(known, f.name) != getattr(fit, f.name)]
            if differ == ["steps"]:
                return f"{name}(steps={vars(fit)['steps']})"
            if not differ:
                return name
    return ""

"""How flat the loss is around a network: gradient norm and sharpness (oxford2025, section 2.3, equations 2 and 3).

Equation 3 is a maximum over perturbations of norm ≤ ε; what the paper ran (its appendix 1) is the mean rise under
Gaussian noise of standard deviation ε on every parameter, which has norm ε√P. Both are here, by name. Its gradient norm
was the mean over batches of each batch's norm, which depends on the batch size; ``GradientNorm(batch=…)`` is that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from suture.common.hashing import keyed_as
from suture.measurement.complexity.base import Complexity, Subject, Tensors, check_positive, norm_of

LENGTH = 10  #: radii; of 0.3 to 10 and no bound, what was nearest to the maximum of real networks after 10 steps


@keyed_as("GradientNorm")
@final
@dataclass(frozen=True)
class GradientNorm(Complexity):
    """``‖∇θ L‖₂``, of the loss over all samples, or the mean over batches of each batch's own (oxford2025, eq. 2).

    ``batch`` is the number of images in one, taken in order (the last may have fewer); ``None`` is the loss over all.
    In nats per unit of parameter, or normalised ``√Σ ‖w‖²‖∂L/∂w‖²`` over the tensors w. Raises ``DataError`` for a
    batch of none.
    """

    batch: int | None = None
    normalised: bool = False

    name: ClassVar[str] = "gradient norm"

    def __post_init__(self) -> None:
        if self.batch is not None:
            check_positive(self, batch=self.batch)

    def of(self, subject: Subject) -> float:
        """Return the norm, or the mean norm."""
        units = subject.units(self.normalised)
        parts = list(subject.batches(self.batch or len(subject)))
        return sum(norm_of(subject.gradient(subject.theta, part)[1], units) for part in parts) / len(parts)


@keyed_as("MeanSharpness")
@final
@dataclass(frozen=True)
class MeanSharpness(Complexity):
    """The mean rise of the loss under Gaussian noise on every parameter, in nats (oxford2025, appendix 1).

    The standard deviation is ``epsilon``; normalised ``epsilon · ‖w‖ / √numel(w)`` in tensor w, which so moves by about
    ``epsilon`` of its norm. ``draws`` perturbations, derived from ``seed``; each is tried on all samples (the paper
    draws another for each batch). May be below 0. Raises ``DataError`` for settings that are not above 0.
    """

    epsilon: float = 1e-3
    draws: int = 10
    seed: int = 0
    normalised: bool = False

    name: ClassVar[str] = "mean sharpness"

    def __post_init__(self) -> None:
        check_positive(self, epsilon=self.epsilon, draws=self.draws)

    def of(self, subject: Subject) -> float:
        """Return the mean over the draws of ``L(θ + ε·noise) − L(θ)``."""
        units = {name: self.epsilon * unit for name, unit in subject.units(self.normalised).items()}
        if self.normalised:
            units = {name: unit / max(subject.theta[name].numel(), 1) ** 0.5 for name, unit in units.items()}
        noise = (subject.gaussian(self.seed, draw) for draw in range(self.draws))
        return sum(subject.loss(subject.move(each, units)) - subject.base for each in noise) / self.draws


@keyed_as("WorstSharpness")
@final
@dataclass(frozen=True)
class WorstSharpness(Complexity):
    """The largest rise of the loss over perturbations of norm ≤ ``epsilon``, in nats (oxford2025, eq. 3, less L(θ)).

    Normalised, the norm is ``√Σ ‖δw‖²/‖w‖²`` over the tensors w. The maximum is approached from below, by projected
    gradient ascent: from the best of ``draws`` random perturbations of norm ``epsilon`` and the one along the gradient,
    ``steps`` steps along the gradient, ``LENGTH`` times ``epsilon`` long and projected back, so that it is sought on
    the sphere. The largest loss met on the way counts: never below 0, nor below the best random one. Raises
    ``DataError`` for settings not above 0.
    """

    epsilon: float = 0.05
    steps: int = 20
    draws: int = 10
    seed: int = 0
    normalised: bool = False

    name: ClassVar[str] = "worst sharpness"

    def __post_init__(self) -> None:
        check_positive(self, epsilon=self.epsilon, steps=self.steps, draws=self.draws)

    def of(self, subject: Subject) -> float:
        """Return the largest ``L(θ + δ) − L(θ)`` that was met."""
        units = subject.units(self.normalised)
        start, best = self._start(subject, units)
        return max(best, self._climb(subject, units, start)) - subject.base

    def _start(self, subject: Subject, units: Mapping[str, float]) -> tuple[Tensors, float]:
        """Return the best perturbation to begin with, and the loss there."""
        _, slope = subject.gradient(subject.theta)
        found = self._within({name: unit * slope[name] for name, unit in units.items()}, True)
        best = subject.loss(subject.move(found, units))
        for draw in range(self.draws):
            noise = subject.gaussian(self.seed, draw)
            tried = self._within({name: noise[name] * (unit > 0) for name, unit in units.items()}, True)
            loss = subject.loss(subject.move(tried, units))
            if loss > best:
                found, best = tried, loss
        return found, best

    def _climb(self, subject: Subject, units: Mapping[str, float], at: Tensors) -> float:
        """Return the largest loss on the way up, or of the network itself."""
        best = subject.base
        for _ in range(self.steps):
            loss, slope = subject.gradient(subject.move(at, units))
            best = max(best, loss)
            step = self._within({name: unit * slope[name] for name, unit in units.items()}, True)
            at = self._within({name: at[name] + LENGTH * step[name] for name in at}, False)
        return max(best, subject.loss(subject.move(at, units)))

    def _within(self, step: Mapping[str, Tensor], onto: bool) -> Tensors:
        """Return a perturbation brought to norm ``epsilon``; if not ``onto``, only one that is longer."""
        length = norm_of(step, dict.fromkeys(step, 1.0))
        scale = self.epsilon / length if length > (0 if onto else self.epsilon) else 1.0
        return {name: part * scale for name, part in step.items()}

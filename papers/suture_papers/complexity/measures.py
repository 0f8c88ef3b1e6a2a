"""The measures of complexity: how flat the loss is around a network, how it curves, and how large the network is.

*Flatness* is gradient norm and sharpness (oxford2025, section 2.3, equations 2 and 3). Equation 3 is a maximum over
perturbations of norm ≤ ε; what the paper ran (its appendix 1) is the mean rise under Gaussian noise of standard
deviation ε on every parameter, which has norm ε√P. Both are here, by name. Its gradient norm was the mean over batches
of each batch's norm, which depends on the batch size; ``GradientNorm(batch=…)`` is that.

*Curvature* is the Hessian's largest eigenvalue and trace (future work in oxford2025, section 5). The Hessian H of ``L``
by all parameters is never formed: ``H v = ∇(∇L · v)``, differentiated backwards twice. This is what ``curvlinops``
computes by forward over backward; but in torch 2.14 the forward derivative of LayerNorm's backward pass is wrong,
without an error (pytorch issue 198017: 6 % of ``H v`` for a small network, where backward over backward agrees with
finite differences to 3e-9). Normalised, H is that of ``L`` in the coordinates ``u = w/‖w‖``: ``D H D`` with
``D = diag(‖w‖)``.

*Size*, compressed, in parameters and in FLOPs, needs no more than an image.
"""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import isfinite
from statistics import fmean, stdev
from typing import Any, ClassVar, final

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from suture.common.errors import DataError, NetworkError
from suture.extend import attention_as_products, generator, keyed_as
from suture_papers.complexity.base import Complexity, Subject, Tensors, slopes

_PAIRS = 10  #: of draws, the fewest from which a standard error is believed
_LENGTH = 10  #: radii; of 0.3 to 10 and no bound, what was nearest to the maximum of real networks after 10 steps
_TWICE = 64  #: images differentiated twice at a time, since two backward passes are held in memory
_LEVEL = 9  #: of gzip, fixed


def _norm(tensors: Mapping[str, Tensor], units: Mapping[str, float]) -> float:
    """Return the length of all tensors together, each in its units."""
    return float(sum((units[name] * float(t.norm())) ** 2 for name, t in tensors.items()) ** 0.5)


def _check_positive(of: Complexity, **settings: float) -> None:
    """Raise ``DataError`` naming the first setting that is not above 0."""
    for name, value in settings.items():
        if not value > 0 or not isfinite(value):
            raise DataError(f"{type(of).__name__}({name}={value}): {name} must be above 0")


# --- flatness ---------------------------------------------------------------------------------------------------------


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
            _check_positive(self, batch=self.batch)

    def of(self, subject: Subject) -> float:
        """Return the norm, or the mean norm."""
        units = subject.units(self.normalised)
        parts = list(subject.batches(self.batch or len(subject)))
        return sum(_norm(subject.gradient(subject.theta, part)[1], units) for part in parts) / len(parts)


@keyed_as("MeanSharpness")
@final
@dataclass(frozen=True)
class MeanSharpness(Complexity):
    """The mean rise of the loss under Gaussian noise on every parameter, in nats (oxford2025, appendix 1).

    The standard deviation is ``epsilon``; normalised ``epsilon · ‖w‖ / √numel(w)`` in tensor w, which so moves by about
    ``epsilon`` of its norm. Perturbations are tried on all samples (the paper draws another for each batch), each with
    its opposite, since the slope, which is many times the rise, cancels in the mean of the two. There are ``draws`` at
    most, derived from ``seed``, and no more once the standard error is ``tolerance`` of the mean. May be below 0.
    Raises ``DataError`` for settings that are not above 0.
    """

    epsilon: float = 1e-3
    draws: int = 400
    seed: int = 0
    normalised: bool = False
    tolerance: float = 0.05

    name: ClassVar[str] = "mean sharpness"

    def __post_init__(self) -> None:
        _check_positive(self, epsilon=self.epsilon, draws=self.draws)

    def of(self, subject: Subject) -> float:
        """Return the mean over the draws of ``L(θ + ε·noise) − L(θ)``."""
        return self.estimate(subject)[0]

    def estimate(self, subject: Subject) -> tuple[float, float]:
        """Return the mean and its standard error, over pairs of opposite draws."""
        units = {name: self.epsilon * unit for name, unit in subject.units(self.normalised).items()}
        if self.normalised:
            units = {name: unit / max(subject.theta[name].numel(), 1) ** 0.5 for name, unit in units.items()}

        def rise(pair: int) -> float:
            noise = subject.gaussian(self.seed, pair)
            ends = (
                subject.loss(subject.move(noise, {n: sign * unit for n, unit in units.items()})) for sign in (1, -1)
            )
            return sum(ends) / 2 - subject.base

        pairs = max(2, self.draws // 2)  # fewer have no standard error
        return _mean_until(rise, min(_PAIRS, pairs), pairs, self.tolerance)


@keyed_as("WorstSharpness")
@final
@dataclass(frozen=True)
class WorstSharpness(Complexity):
    """The largest rise of the loss over perturbations of norm ≤ ``epsilon``, in nats (oxford2025, eq. 3, less L(θ)).

    Normalised, the norm is ``√Σ ‖δw‖²/‖w‖²`` over the tensors w. The maximum is approached from below, by projected
    gradient ascent: from the best of ``draws`` random perturbations of norm ``epsilon`` and the one along the gradient,
    ``steps`` steps along the gradient, ``_LENGTH`` times ``epsilon`` long and projected back, so that it is sought on
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
        _check_positive(self, epsilon=self.epsilon, steps=self.steps, draws=self.draws)

    def of(self, subject: Subject) -> float:
        """Return the largest ``L(θ + δ) − L(θ)`` that was met."""
        units = subject.units(self.normalised)

        def along(slope: Tensors) -> Tensors:
            return self._within({name: unit * slope[name] for name, unit in units.items()}, True)

        _, slope = subject.gradient(subject.theta)
        at = along(slope)
        highest = subject.loss(subject.move(at, units))
        for draw in range(self.draws):
            noise = subject.gaussian(self.seed, draw)
            tried = self._within({name: noise[name] * (unit > 0) for name, unit in units.items()}, True)
            loss = subject.loss(subject.move(tried, units))
            if loss > highest:
                at, highest = tried, loss

        highest = max(highest, subject.base)
        for _ in range(self.steps):
            loss, slope = subject.gradient(subject.move(at, units))
            highest = max(highest, loss)
            step = along(slope)
            at = self._within({name: at[name] + _LENGTH * step[name] for name in at}, False)
        return max(highest, subject.loss(subject.move(at, units))) - subject.base

    def _within(self, step: Mapping[str, Tensor], onto: bool) -> Tensors:
        """Return a perturbation brought to norm ``epsilon``; if not ``onto``, only one that is longer."""
        length = _norm(step, dict.fromkeys(step, 1.0))
        scale = self.epsilon / length if length > (0 if onto else self.epsilon) else 1.0
        return {name: part * scale for name, part in step.items()}


def _mean_until(
    draw: Callable[[int], float], least: int, most: int, tolerance: float, known: float = 0.0
) -> tuple[float, float]:
    """Return ``known`` plus the mean of draws, as many as make its standard error small beside it, and that error."""
    drawn: list[float] = []
    while True:
        drawn.append(draw(len(drawn)))
        if len(drawn) >= max(2, least):
            found, error = known + fmean(drawn), stdev(drawn) / len(drawn) ** 0.5
            if error <= tolerance * abs(found) or len(drawn) >= most:
                return found, error


# --- curvature --------------------------------------------------------------------------------------------------------


Product = Callable[[Tensor], Tensor]
"""``v ↦ H v``, float64 of shape (parameters,), on the CPU."""


@keyed_as("TopEigenvalue")
@final
@dataclass(frozen=True)
class TopEigenvalue(Complexity):
    """The largest eigenvalue of the Hessian (not the largest in size), in nats per squared unit of parameter.

    By Lanczos iteration with implicit restarts, to a relative ``tolerance``, from a vector derived from ``seed``.
    Raises ``NetworkError`` if it does not converge within ``restarts``, ``DataError`` for settings not above 0.
    """

    tolerance: float = 1e-3
    restarts: int = 50
    seed: int = 0
    normalised: bool = False

    name: ClassVar[str] = "hessian top eigenvalue"

    def __post_init__(self) -> None:
        _check_positive(self, tolerance=self.tolerance, restarts=self.restarts)

    def of(self, subject: Subject) -> float:
        """Return the eigenvalue."""
        product, size = hessian(subject, self.normalised), subject.dimensions
        start = torch.randn(size, generator=generator("top eigenvalue", self.seed), dtype=torch.float64)
        given: dict[str, Any] = {"rng": 0} if "rng" in signature(eigsh).parameters else {}
        operator = LinearOperator(
            (size, size), matvec=lambda v: product(torch.from_numpy(np.ravel(v))).numpy(), dtype=np.float64
        )
        given |= {"v0": start.numpy(), "tol": self.tolerance, "maxiter": self.restarts, "return_eigenvectors": False}
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                return float(eigsh(operator, k=1, which="LA", **given)[0])
        except ArpackNoConvergence as error:
            raise NetworkError(
                f"the largest eigenvalue of the Hessian of {subject.name} did not converge in {self.restarts} "
                "restarts; allow more, or a larger tolerance"
            ) from error


@keyed_as("HessianTrace")
@final
@dataclass(frozen=True)
class HessianTrace(Complexity):
    """The trace of the Hessian, estimated by Hutch++ from ``products`` products with random signs, or more.

    A third of them finds the directions in which H is large, where the trace is taken exactly; the rest of it is
    Hutchinson's estimate (Meyer et al. 2021, algorithm 1), which goes on until the standard error is ``tolerance`` of
    the trace, or there are ``most`` products. It is unbiased, and exact if H has no more directions than a third of the
    products. Raises ``DataError`` for fewer than 3 products.
    """

    products: int = 30
    seed: int = 0
    normalised: bool = False
    tolerance: float = 0.05
    most: int = 400

    name: ClassVar[str] = "hessian trace"

    def __post_init__(self) -> None:
        if self.products < 3:
            raise DataError(f"HessianTrace(products={self.products}): products must be 3 or more")

    def of(self, subject: Subject) -> float:
        """Return the trace, or its estimate."""
        return self.estimate(subject)[0]

    def estimate(self, subject: Subject) -> tuple[float, float]:
        """Return the estimate and the standard error of its part that is not exact."""
        product, size, third = hessian(subject, self.normalised), subject.dimensions, self.products // 3
        random = generator("hessian trace", self.seed)

        def draw() -> Tensor:
            return torch.randint(0, 2, (size,), generator=random).double() * 2 - 1

        basis, _ = torch.linalg.qr(torch.stack([product(draw()) for _ in range(third)], 1))
        exactly = sum(float(q @ product(q)) for q in basis.T)

        def rest(_: int) -> float:
            signs = draw()
            signs -= basis @ (basis.T @ signs)
            return float(signs @ product(signs))

        return _mean_until(rest, third, self.most - 2 * third, self.tolerance, exactly)


def hessian(subject: Subject, normalised: bool = False) -> Product:
    """Make the product with the Hessian; the vector has the parameters in their order."""
    units = subject.units(normalised)
    shapes = [p.shape for p in subject.theta.values()]
    sizes = [shape.numel() for shape in shapes]
    each = torch.tensor(list(units.values()), dtype=torch.float64).repeat_interleave(torch.tensor(sizes))

    def product(vector: Tensor) -> Tensor:
        pieces = torch.split((each * vector).to(subject.device), sizes)
        along = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        total = torch.zeros(len(each), dtype=torch.float64)
        for part in subject.batches(_TWICE):
            total += _multiply_part(subject, along, part)
        return each * total / len(subject)

    return product


def _multiply_part(subject: Subject, along: list[Tensor], part: slice) -> Tensor:
    """Return the Hessian of the summed loss of some samples times a vector, in one piece."""
    free = {name: p.detach().requires_grad_() for name, p in subject.theta.items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        first = slopes(subject.sum_losses(free, part), free, again=True)
        slope = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
        try:
            second = slopes(slope, free)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise NetworkError(
                f"{subject.name} has no second derivative in torch ({error}); leave out the measures of its Hessian"
            ) from error
    return torch.cat([h.detach().double().flatten() for h in second]).cpu()


# --- size -------------------------------------------------------------------------------------------------------------


@keyed_as("GzipSize")
@final
@dataclass(frozen=True)
class GzipSize(Complexity):
    """The size of the parameters once compressed by gzip, in bits; normalised, in bits per parameter.

    An upper bound of their Kolmogorov complexity (oxford2025, section 2.3). What is compressed are the parameters as
    little-endian float32, one tensor after another in the network's order, without names or shapes, at level 9 and
    without a time. Its length may differ by little between builds of zlib. Without parameters it is that of nothing.
    """

    normalised: bool = False

    name: ClassVar[str] = "gzip size"
    unit: ClassVar[str] = "bits"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the size in bits."""
        tensors = (p.detach().float().cpu().contiguous().numpy() for p in subject.module.parameters())
        content = b"".join(tensor.astype("<f4").tobytes() for tensor in tensors)
        bits = 8.0 * len(gzip.compress(content, _LEVEL, mtime=0))
        return bits / max(subject.count, 1) if self.normalised else bits


@keyed_as("Parameters")
@final
@dataclass(frozen=True)
class Parameters(Complexity):
    """The number of parameters: those of the prefix, of the stitch and of the suffix."""

    normalised: ClassVar[bool] = False  # type: ignore[misc]
    name: ClassVar[str] = "parameters"
    unit: ClassVar[str] = "raw"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the number."""
        return float(subject.count)


@keyed_as("Flops")
@final
@dataclass(frozen=True)
class Flops(Complexity):
    """The FLOPs of one image, counted as those of cuts are (``network.flops``): a multiply-add is two."""

    normalised: ClassVar[bool] = False  # type: ignore[misc]
    name: ClassVar[str] = "flops"
    unit: ClassVar[str] = "raw"
    uses_samples: ClassVar[bool] = False

    def of(self, subject: Subject) -> float:
        """Return the number."""
        image = subject.samples.images[:1].to(subject.device)
        with attention_as_products(), FlopCounterMode(display=False) as counter:
            subject.module(image)
        return float(counter.get_total_flops())


LANDSCAPE: tuple[Complexity, ...] = (
    *(GradientNorm(), GradientNorm(normalised=True), GradientNorm(batch=128)),
    *(MeanSharpness(), MeanSharpness(0.01, normalised=True)),
    *(WorstSharpness(), WorstSharpness(0.01, normalised=True)),
)
CURVATURE: tuple[Complexity, ...] = (
    *(TopEigenvalue(), TopEigenvalue(normalised=True)),
    *(HessianTrace(), HessianTrace(normalised=True)),
)  #: dozens of passes each
SIZE: tuple[Complexity, ...] = (GzipSize(), GzipSize(normalised=True), Parameters(), Flops())

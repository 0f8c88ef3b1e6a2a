"""How the loss curves at a network: its Hessian's largest eigenvalue and trace (future work in oxford2025, section 5).

The Hessian H of ``L`` by all parameters is never formed: ``H v = ∇(∇L · v)``, differentiated backwards twice. This is
what ``curvlinops`` computes by forward over backward; but in torch 2.14 the forward derivative of LayerNorm's backward
pass is wrong, without an error (pytorch issue 198017: 6 % of ``H v`` for a small network, where backward over backward
agrees with finite differences to 3e-9).

Normalised, H is that of ``L`` in the coordinates ``u = w/‖w‖``: ``D H D`` with ``D = diag(‖w‖)``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, final

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from suture.common.errors import DataError, NetworkError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.measurement.complexity.base import Complexity, Subject, check_positive, slopes

CHUNK = 64  #: images at a time, since two backward passes are held in memory
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
        check_positive(self, tolerance=self.tolerance, restarts=self.restarts)

    def of(self, subject: Subject) -> float:
        """Return the eigenvalue."""
        product, size = hessian(subject, self.normalised), _size(subject)
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
    """The trace of the Hessian, estimated by Hutch++ from ``products`` products with random signs.

    A third of them finds the directions in which H is large, where the trace is taken exactly; the rest of it is
    Hutchinson's estimate (Meyer et al. 2021, algorithm 1). It is unbiased, and exact if H has no more directions than
    a third of the products. Raises ``DataError`` for fewer than 3 products.
    """

    products: int = 30
    seed: int = 0
    normalised: bool = False

    name: ClassVar[str] = "hessian trace"

    def __post_init__(self) -> None:
        if self.products < 3:
            raise DataError(f"HessianTrace(products={self.products}): products must be 3 or more")

    def of(self, subject: Subject) -> float:
        """Return the trace, or its estimate."""
        product, size, third = hessian(subject, self.normalised), _size(subject), self.products // 3
        random = generator("hessian trace", self.seed)
        signs = torch.randint(0, 2, (2, third, size), generator=random).double() * 2 - 1
        basis, _ = torch.linalg.qr(torch.stack([product(v) for v in signs[0]], 1))
        exactly = sum(float(q @ product(q)) for q in basis.T)
        rest = signs[1].T - basis @ (basis.T @ signs[1].T)
        return exactly + sum(float(v @ product(v)) for v in rest.T) / third


def hessian(subject: Subject, normalised: bool = False) -> Product:
    """Make the product with the Hessian; the vector has the parameters in their order."""
    units = subject.units(normalised)
    shapes = {name: p.shape for name, p in subject.theta.items()}
    each = torch.tensor(list(units.values()), dtype=torch.float64)
    each = each.repeat_interleave(torch.tensor([shape.numel() for shape in shapes.values()], dtype=torch.int64))

    def product(vector: Tensor) -> Tensor:
        pieces = torch.split((each * vector).to(subject.device), [shape.numel() for shape in shapes.values()])
        along = [piece.reshape(shape) for piece, shape in zip(pieces, shapes.values(), strict=True)]
        total = torch.zeros(len(each), dtype=torch.float64)
        for part in subject.batches(CHUNK):
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


def _size(subject: Subject) -> int:
    return sum(p.numel() for p in subject.theta.values())

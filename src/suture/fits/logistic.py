"""Logistic regression: the fit of a linear probe.

Where no layer follows, the stitch's outputs ``W·z + b`` are the network's, and the penalised task loss

    mean cross-entropy + λ ‖W·σ_z‖²

is convex in ``W`` and ``b``; ``z`` are the features that the stitch reads and ``σ_z`` their deviations. It is minimised
by L-BFGS for each λ, the largest first, as in ``fits.convex``; the validation data chooses among them. Nothing is read
of the receiver, not even its outputs. Alain & Bengio 2016, section 3.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import OUTPUT
from suture.core.stitches import AffineMap, AffineStitch
from suture.fits import convex
from suture.fits.base import CurvePoint, Fit, FitReport, Problem


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

    penalties: tuple[float, ...] = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
    iterations: int = 200

    def __post_init__(self) -> None:
        if not self.penalties or min(self.penalties) < 0 or self.iterations < 1:
            raise FitError(f"{self}: name penalties of at least 0, for instance penalties=(1e-3,), and iterations ≥ 1")

    @property
    def reads_receiver(self) -> bool:
        """It reads the labels alone."""
        return False

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Solve for the map and load it."""
        family, sent = problem.family, problem.fit.activations
        alone = not problem.suffix.segments
        parts = family.parts(stitch, sent) if isinstance(family, AffineStitch) and alone else ()
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
        head = convex.Head(torch.eye(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64))
        fit, held_out = ((side.activations.cpu(), side.labels.cpu()) for side in (problem.fit, problem.validation))
        found = convex.solve(head, part, start, fit, held_out, self.penalties, self.iterations)
        part.load(found.affine)
        curve = [(0, float("nan"), found.start_loss), (found.iterations, found.fit_loss, found.loss)]
        return FitReport(found.iterations, True, tuple(CurvePoint(*point) for point in curve))

"""Matching the receiver's own activations, by gradient descent.

hernandez2022, "copying": the stitch is trained to transform "the prefix's cached outputs into the suffix's expected
inputs", by mean squared error, and never sees the task. A least-squares fit is at its end at once; by descent it is
the published experiment, and serves families that have no closed form.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from suture.common.hashing import keyed_as
from suture.core.stitches.base import Shape
from suture.fits.base import Fit, Problem, Side
from suture.fits.descent import GradientDescent, Loss, Random


@keyed_as("MatchActivations")
@final
@dataclass(frozen=True)
class MatchActivations(GradientDescent):
    """Mean squared error to the receiver's own activations at the cut, by gradient descent.

    The loss is in units of the variance of those activations on the fit data, so that the learning rate means the same
    at every cut. The settings are those of ``GradientDescent``; it starts at random, as published.
    """

    start: Fit = Random()

    @property
    def reads_receiver(self) -> bool:
        """True: it matches them."""
        return True

    def reads(self, shape: Shape) -> float:
        """Return infinity: all samples are matched."""
        return math.inf

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Return the mean squared error of what the stitch gives."""
        expected = side.expected()
        unit = float(problem.fit.expected().float().var(0, correction=0).mean()) or 1.0

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            return (represented - expected[chosen].to(represented)).square().mean() / unit

        return of

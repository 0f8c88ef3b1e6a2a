"""How a stitch gets its parameters: closed form, gradient descent, the published recipes."""

from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.best_of import BestOf
from suture.fits.descent import GradientDescent, Random
from suture.fits.fast import Fast
from suture.fits.least_squares import LeastSquares
from suture.fits.logistic import Logistic
from suture.fits.match_activations import MatchActivations
from suture.fits.narrower import Narrower
from suture.fits.task_loss import HardLabels, SoftLabels, Targets, TaskLoss

__all__ = [
    "BestOf",
    "CurvePoint",
    "Fast",
    "Fit",
    "FitReport",
    "GradientDescent",
    "HardLabels",
    "LeastSquares",
    "Logistic",
    "MatchActivations",
    "Narrower",
    "Problem",
    "Random",
    "Side",
    "SoftLabels",
    "Targets",
    "TaskLoss",
]

"""How a stitch gets its parameters: closed form, gradient descent, the published recipes."""

from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.best_of import BestOf
from suture.fits.converged import Converged, Quick
from suture.fits.convex import Logistic
from suture.fits.descent import GradientDescent, HardLabels, MatchActivations, Random, SoftLabels, Targets, TaskLoss
from suture.fits.downstream import FunctionalLatentAlignment, MatchPenultimate, RelativeRepresentations
from suture.fits.least_squares import LeastSquares, Narrower

__all__ = [
    "BestOf",
    "Converged",
    "CurvePoint",
    "Fit",
    "FitReport",
    "FunctionalLatentAlignment",
    "GradientDescent",
    "HardLabels",
    "LeastSquares",
    "Logistic",
    "MatchActivations",
    "MatchPenultimate",
    "Narrower",
    "Problem",
    "Quick",
    "Random",
    "RelativeRepresentations",
    "Side",
    "SoftLabels",
    "Targets",
    "TaskLoss",
]

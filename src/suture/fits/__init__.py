"""How a stitch gets its parameters: closed form, gradient descent, and the default fit."""

from suture.fits.base import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.best_of import BestOf
from suture.fits.converged import Converged, Quick
from suture.fits.convex import Logistic
from suture.fits.descent import GradientDescent, HardLabels, MatchActivations, Random, SoftLabels, Targets, TaskLoss
from suture.fits.least_squares import LeastSquares, Narrower
from suture.fits.optimisers import SGD, Adam, AdamW, Constant, Cosine, OneCycle, Optimiser, Schedule, Steps

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "BestOf",
    "Constant",
    "Converged",
    "Cosine",
    "CurvePoint",
    "Fit",
    "FitReport",
    "GradientDescent",
    "HardLabels",
    "LeastSquares",
    "Logistic",
    "MatchActivations",
    "Narrower",
    "OneCycle",
    "Optimiser",
    "Problem",
    "Quick",
    "Random",
    "Schedule",
    "Side",
    "SoftLabels",
    "Steps",
    "Targets",
    "TaskLoss",
]

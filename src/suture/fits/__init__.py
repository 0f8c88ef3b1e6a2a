"""How a stitch gets its parameters: in closed form, or by gradient descent on the task."""

from suture.fits.least_squares import LeastSquares
from suture.fits.problem import CurvePoint, Fit, FitReport, Problem, Side
from suture.fits.task_loss import Random, TaskLoss

__all__ = ["CurvePoint", "Fit", "FitReport", "LeastSquares", "Problem", "Random", "Side", "TaskLoss"]

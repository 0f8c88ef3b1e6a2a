"""Suture: an instrument for model stitching.

``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, only the stitch trains, and the penalty of the stitched
network tells what the sender's representation is worth to the receiver. Always measured beside controls.
"""

from suture import controls, errors, fits, recipes, scores, stitches
from suture.cuts import Cut
from suture.data import Data, Samples, load_data, variants
from suture.depth import by_depth, profiles
from suture.errors import SutureError
from suture.folding import foldable_cuts
from suture.forecasts import Forecast, forecast
from suture.network import Network
from suture.noise import ClusteredNoise
from suture.plans import Plan, curve, matrix
from suture.preprocess import Preprocess
from suture.runners import Local, Ray, run, stitch
from suture.stitched import Stitched, can_fold
from suture.stitches import stitch_for
from suture.store import Store
from suture.table import summary
from suture.trial import Failure, Measurement, Trial, measure
from suture.zoo import load_network, load_stitched

__version__ = "0.1.0"

__all__ = [
    "ClusteredNoise",
    "Cut",
    "Data",
    "Failure",
    "Forecast",
    "Local",
    "Measurement",
    "Network",
    "Plan",
    "Preprocess",
    "Ray",
    "Samples",
    "Stitched",
    "Store",
    "SutureError",
    "Trial",
    "by_depth",
    "can_fold",
    "controls",
    "curve",
    "errors",
    "fits",
    "foldable_cuts",
    "forecast",
    "load_data",
    "load_network",
    "load_stitched",
    "matrix",
    "measure",
    "profiles",
    "recipes",
    "run",
    "scores",
    "stitch",
    "stitch_for",
    "stitches",
    "summary",
    "variants",
]

"""Suture: an instrument for model stitching.

``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, only the stitch trains, and the penalty of the stitched
network tells what the sender's representation is worth to the receiver. Always measured beside controls.
"""

from suture import controls, errors, fits, recipes, scores, stitches
from suture.cuts import Cut
from suture.data import Data, Samples, load_data
from suture.errors import SutureError
from suture.network import Network
from suture.plans import Plan, curve
from suture.preprocess import Preprocess
from suture.runners import run, stitch
from suture.stitched import Stitched
from suture.stitches import stitch_for
from suture.table import summary
from suture.trial import Failure, Measurement, Trial, measure
from suture.zoo import load_network

__version__ = "0.1.0"

__all__ = [
    "Cut",
    "Data",
    "Failure",
    "Measurement",
    "Network",
    "Plan",
    "Preprocess",
    "Samples",
    "Stitched",
    "SutureError",
    "Trial",
    "controls",
    "curve",
    "errors",
    "fits",
    "load_data",
    "load_network",
    "measure",
    "recipes",
    "run",
    "scores",
    "stitch",
    "stitch_for",
    "stitches",
    "summary",
]

"""Suture: an instrument for model stitching.

``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, only the stitch trains, and the penalty of the stitched
network tells what the sender's representation is worth to the receiver. Always measured beside controls.
"""

import typing

from suture.lazily import make_lazy as _make_lazy

if typing.TYPE_CHECKING:  # imported when asked for: see suture.lazily, which reads these lines
    from suture import baselines, complexity, controls, errors, fits, indices, recipes, scores, stitches, traits, zoo
    from suture.compare import beside, compare
    from suture.cuts import Cut
    from suture.data import Data, Samples, load_data, variants
    from suture.depth import by_depth, profiles
    from suture.errors import SutureError
    from suture.explain import explain
    from suture.folding import foldable_cuts
    from suture.forecasts.forecast import Forecast, forecast
    from suture.localise import localise
    from suture.measuring import measure
    from suture.network import Network
    from suture.noise import ClusteredNoise
    from suture.onsets import onset
    from suture.plans import Plan, curve, matrix
    from suture.preprocess import Preprocess
    from suture.runners import Local, Ray, run, stitch
    from suture.stitched import Stitched, can_fold
    from suture.stitches import stitch_for
    from suture.store import Store
    from suture.table import summary
    from suture.traits import Trait
    from suture.trial import Failure, Measurement, Trial
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
    "Trait",
    "Trial",
    "baselines",
    "beside",
    "by_depth",
    "can_fold",
    "compare",
    "complexity",
    "controls",
    "curve",
    "errors",
    "explain",
    "fits",
    "foldable_cuts",
    "forecast",
    "indices",
    "load_data",
    "load_network",
    "load_stitched",
    "localise",
    "matrix",
    "measure",
    "onset",
    "profiles",
    "recipes",
    "run",
    "scores",
    "stitch",
    "stitch_for",
    "stitches",
    "summary",
    "traits",
    "variants",
    "zoo",
]

_make_lazy(__name__)

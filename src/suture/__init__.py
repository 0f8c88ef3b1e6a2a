"""Suture: an instrument for model stitching.

``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, only the stitch trains, and the penalty of the stitched
network shows how useful the sender's representation is to the receiver. Always measured beside controls.
"""

import typing as _typing

from suture.common.lazily import lazily as _lazily
from suture.common.plugins import PAPERS as _PAPERS

if _typing.TYPE_CHECKING:  # imported when asked for, see below
    from suture import fits, zoo
    from suture.common import errors
    from suture.common.errors import SutureError
    from suture.core import stitches
    from suture.core.folding import foldable_cuts
    from suture.core.network.network import Network
    from suture.core.stitched import Seam, Stitched, can_fold
    from suture.data import Data, Samples, changes, load_data, load_views, tasks
    from suture.data.preprocess import Preprocess
    from suture.measurement import features, indices
    from suture.measurement.compare import beside, compare
    from suture.measurement.scores import scores, traits
    from suture.measurement.tables.by_depth import by_depth, profiles
    from suture.measurement.tables.explain import explain
    from suture.measurement.tables.onset import onset
    from suture.measurement.tables.over_networks import over_networks
    from suture.measurement.tables.table import summary
    from suture.measurement.trials import baselines, controls
    from suture.measurement.trials.localise import localise
    from suture.measurement.trials.measure import measure
    from suture.measurement.trials.plans import Plan, curve, matrix
    from suture.measurement.trials.trial import Measurement, Trial
    from suture.reports.show import plot, report
    from suture.runs.forecast import forecast
    from suture.runs.runners import Local, Ray, run, stitch
    from suture.runs.store.store import Store
    from suture.zoo.models import load_network, load_stitched

__version__ = "0.1.0"

__all__ = [
    "Data",
    "Local",
    "Measurement",
    "Network",
    "Plan",
    "Preprocess",
    "Ray",
    "Samples",
    "Seam",
    "Stitched",
    "Store",
    "SutureError",
    "Trial",
    "baselines",
    "beside",
    "by_depth",
    "can_fold",
    "changes",
    "compare",
    "controls",
    "curve",
    "errors",
    "explain",
    "features",
    "fits",
    "foldable_cuts",
    "forecast",
    "indices",
    "load_data",
    "load_network",
    "load_stitched",
    "load_views",
    "localise",
    "matrix",
    "measure",
    "onset",
    "over_networks",
    "plot",
    "profiles",
    "report",
    "run",
    "scores",
    "stitch",
    "stitches",
    "summary",
    "tasks",
    "traits",
    "zoo",
]

#: Public names that went to the papers' package.
_MOVED = {
    "complexity": "suture_papers.complexity",
    "recipes": "suture_papers.recipes",
    "variants": "suture_papers.variants",
}

if not _typing.TYPE_CHECKING:
    _find = _lazily(globals())

    def __getattr__(name: str) -> object:
        if name in _MOVED:
            raise ImportError(f"suture.{name} is now {_MOVED[name]}, in {_PAPERS}")
        return _find(name)

    def __dir__() -> list[str]:
        return __all__

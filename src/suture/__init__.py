"""Suture: an instrument for model stitching.

``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, only the stitch trains, and the penalty of the stitched
network tells what the sender's representation is worth to the receiver. Always measured beside controls.
"""

import ast as _ast
import importlib as _importlib
import pathlib as _pathlib
import typing as _typing

if _typing.TYPE_CHECKING:  # imported when asked for, see below
    from suture import fits, zoo
    from suture.common import errors
    from suture.common.errors import SutureError
    from suture.core import stitches
    from suture.core.folding import foldable_cuts
    from suture.core.network.network import Network
    from suture.core.stitched import Seam, Stitched, can_fold
    from suture.data import Data, Samples, load_data, tasks, variants
    from suture.data.preprocess import Preprocess
    from suture.fits import recipes
    from suture.measurement import complexity, indices
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
    from suture.zoo import load_network, load_stitched

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
    "over_networks",
    "plot",
    "profiles",
    "recipes",
    "report",
    "run",
    "scores",
    "stitch",
    "stitches",
    "summary",
    "tasks",
    "traits",
    "variants",
    "zoo",
]

if not _typing.TYPE_CHECKING:
    # Importing torch takes seconds, which the help of the command line, its refusals and its completion need not wait
    # for: a name is imported when it is first asked for (PEP 562), from where the lines for type checkers say.
    _PLACES = {
        alias.name: node.module
        for node in _ast.walk(_ast.parse(_pathlib.Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, _ast.ImportFrom)
        for alias in node.names
    }

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        place = _PLACES[name]
        found = vars(_importlib.import_module(place)).get(name) or _importlib.import_module(f"{place}.{name}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return __all__

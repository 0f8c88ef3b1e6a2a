"""The four papers: the ledger of networks, plans of trials, and claims that a program decides."""

from suture.studies.base.cells import Where
from suture.studies.base.claims import Claim, Decided, Roles, verdict_of
from suture.studies.base.quantities import (
    AtCuts,
    Difference,
    Extreme,
    Figure,
    Mean,
    Quantity,
    Ratio,
    Slope,
    Spread,
    Trend,
    Worst,
)
from suture.studies.base.run import Result, load_result, run_study
from suture.studies.base.scale import SCALES, Scale, scale_named
from suture.studies.base.study import Beside, Panel, Study
from suture.studies.registry import STUDIES, study_named

__all__ = [
    "SCALES",
    "STUDIES",
    "AtCuts",
    "Beside",
    "Claim",
    "Decided",
    "Difference",
    "Extreme",
    "Figure",
    "Mean",
    "Panel",
    "Quantity",
    "Ratio",
    "Result",
    "Roles",
    "Scale",
    "Slope",
    "Spread",
    "Study",
    "Trend",
    "Where",
    "Worst",
    "load_result",
    "run_study",
    "scale_named",
    "study_named",
    "verdict_of",
]

"""The four papers: the ledger of networks, plans of trials, and claims that a program decides."""

from suture.studies.base.cells import Where
from suture.studies.base.claims import Claim, Decided, Roles, verdict_of
from suture.studies.base.quantities import Figure
from suture.studies.base.run import Result, load_result, run_study
from suture.studies.base.scale import SCALES, Scale, scale_named
from suture.studies.base.study import Beside, Panel, Study
from suture.studies.registry import STUDIES, study_named

__all__ = [
    "SCALES",
    "STUDIES",
    "Beside",
    "Claim",
    "Decided",
    "Figure",
    "Panel",
    "Result",
    "Roles",
    "Scale",
    "Study",
    "Where",
    "load_result",
    "run_study",
    "scale_named",
    "study_named",
    "verdict_of",
]

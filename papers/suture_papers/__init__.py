"""Four papers on model stitching, run by name: networks, recipes, data sets, experiments and claims.

``suture run bansal-2A`` runs an experiment, ``suture claims`` decides a paper's claims from measurements. This
package uses the public names of ``suture`` and adds itself to it by entry points.
"""

import typing as _typing

from suture.common.lazily import lazily as _lazily

if _typing.TYPE_CHECKING:  # imported when asked for
    from suture_papers import complexity, networks, recipes, training, variants
    from suture_papers.base.cells import Where
    from suture_papers.base.claims import Claim, Decided, Roles, verdict_of
    from suture_papers.base.quantities import Figure
    from suture_papers.base.run import Result, load_result, run_study
    from suture_papers.base.scale import SCALES, Scale, scale_named
    from suture_papers.base.study import Beside, Panel, Study
    from suture_papers.registry import STUDIES, study_named

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
    "complexity",
    "load_result",
    "networks",
    "recipes",
    "run_study",
    "scale_named",
    "study_named",
    "training",
    "variants",
    "verdict_of",
]

if not _typing.TYPE_CHECKING:
    __getattr__ = _lazily(globals())

    def __dir__() -> list[str]:
        return __all__

"""How bansal2021's tables are read: which rows, which cuts, and the lines of its figures."""

from dataclasses import replace
from functools import partial

from suture_papers.base.cells import FOLDS, NETWORKS, SIMILARITIES, TRIALS, Where
from suture_papers.base.claims import Claim, Roles
from suture_papers.base.quantities import AtCuts, Extreme, Mean
from suture_papers.base.study import Panel

ALL = Where()
UNTRAINED = Where(control="untrained sender")
EARLY, LATE = "layer1.?|layer2.?", "layer3.?|layer4.?"  #: the halves of ResNet-18's blocks
CKA = partial(Where, SIMILARITIES, index="linear_cka")
NETWORK = partial(Where, NETWORKS)
FOLD = partial(Where, FOLDS)
BOTH = (TRIALS, SIMILARITIES)
OWN_IMAGES = Roles(fitted="the training images of the receiver")
SAMPLED = "the published fit is cut to 312 of its 120,000 steps, and joins one pair after blocks 1, 4 and 7"
DEFAULT_ALONE = "the default fit alone"
FEW_SEEDS = "fewer than five networks decide nothing"

_LABELS = {"penalty": "penalty [pp]", "value": "linear CKA", "stitched": "test accuracy [%]"}


def report_published(where: Where = ALL) -> Claim:
    """Return how far the published fit is from the default one at the same seams: a report."""
    more = AtCuts("penalty", replace(where, fit="published"), minus=("penalty", where))
    statement = (
        "the published fit's penalty minus the default fit's, where that is largest among the cuts that have both"
    )
    return Claim(statement, "appendix A.4", Extreme((more,)), fit="published and default")


def worst_of(where: Where = ALL) -> Extreme:
    """Return the penalty at the worst cut."""
    return Extreme((AtCuts("penalty", where),))


def draw_lines(
    *groups: tuple[str, Where], level: float | None = None, column: str = "penalty", title: str = ""
) -> Panel:
    """Return a panel of lines along the receiver's cuts."""
    return Panel("lines", column, _LABELS[column], groups, level=level, title=title)


def mean_at(where: Where, cuts: str) -> Mean:
    """Return the mean penalty at some of the receiver's cuts."""
    return Mean("penalty", replace(where, receiver_cut=cuts))

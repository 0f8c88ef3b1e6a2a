"""hernandez2022: Exploring Neural Network Modularity Using Model Stitching.

The paper stitches every layer of one network into every layer of another, on CIFAR-10, across architectures: the
ResNets of one or two basic blocks a stage, ResNet(a,b,c,d), all 256 ordered pairs of the 16, and ResNet-18 with itself
and with ResNet-34 (section 1.5). It finds triangles: a late layer of the sender serves an early layer of the receiver,
and not the other way round. Networks that were not trained, on either side or both, are its controls. A *cell* of a
matrix is one sender cut into one receiver cut; cells are compared by depth, as ``tables.by_depth`` does.

Its stitch (section 1.2) is a 1×1 convolution; to shrink, a convolution whose stride equals its kernel; to grow,
nearest up-sampling and a 1×1 convolution. No BatchNorm is named, so none is here: ``Conv(batchnorm=False)``,
``StridedConv()``, ``UpsampledConv()``.

Deviations at every scale. The text does not say which layers it cuts behind: here it is the basic blocks. Nor does it
name an optimiser: the published fit is ``recipes.hernandez2022``, the settings of the authors' code. Sender and
receiver are of different seeds, since networks of one seed may begin with the same weights; so the pairs of one shape
are of two networks, where the paper says both "itself" and "varied through the random seed".

Intervals are over networks (``tables.over_networks``). Networks of unequal shapes are joined so that no network meets
two others; of one shape all ordered pairs are.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from suture.measurement.trials.controls import untrained_both, untrained_receiver, untrained_sender
from suture_papers.base.cells import Where
from suture_papers.base.claims import Claim, Roles, formerly
from suture_papers.base.contrasts import Above, ByDepth, Contrast, ShareOfAxis, ShareOfLower
from suture_papers.base.quantities import AtCuts, Difference, Extreme, Mean, Quantity, Spread, Worst
from suture_papers.base.study import Panel, Study
from suture_papers.hernandez2022.plans import (
    SHAPES,
    name_of,
    plan_copies,
    plan_diagonals,
    plan_larger,
    plan_triangles,
    plan_untrained,
)
from suture_papers.hernandez2022.triangle import TRIANGLE

_ALWAYS = (
    "Cuts are behind the basic blocks; the paper does not name its layers.",
    "Sender and receiver are of different seeds.",
    "The published fit leaves out the warm-up of the authors' code.",
)
_EVERYWHERE = ("Five networks make five pairs, so the interval over networks is wide.", *_ALWAYS)
_STAGES_TOO = "Depth counts blocks; the triangle by stage is a report."
_FEW = "Stitches are fitted and scored on 5,000 images each."
_ONE_BLOCK = (
    "ResNet(1,1,1,1) for ResNet-18: 4 × 4 cells, by Quick, and by the default fit at the corners. The published fit "
    "has its full 780 steps in the first pair."
)
_SOME = "Networks are cut behind their first block and the last of each stage: 5 × 5 cells."
_PUBLISHED = Where(fit="published")
_BOTH, _RECEIVER, _SENDER = (Where(control=f"untrained {role}") for role in ("both", "receiver", "sender"))
_LATE, _EARLY = (2 / 3, 1.0), (0.0, 1 / 3)
_AUTHORS = "hernandez2022"
_ROLES = Roles("training images of CIFAR-10", "test images of CIFAR-10", "none: accuracies are compared")
_BY_STAGE = "the same by stage: mean accuracy where the sender's stage is the receiver's or a later one, above the rest"
_DEEPER = "mean accuracy where the sender's cut is at least as deep as the receiver's"


def _tell_small(which: str) -> tuple[str, ...]:
    return (
        _FEW,
        f"The published fit is planned with its full 780 steps at the ends of the stages (4 × 4 cuts) of {which}.",
    )


def _draw_maps(where: Where, *named: tuple[str, str, str], title: str = "") -> Panel:
    """Return heat maps of accuracy, one for each pair that is named: its label, sender and receiver."""
    lines = tuple((label, replace(where, sender=sender, receiver=receiver)) for label, sender, receiver in named)
    return Panel("map", "stitched", "accuracy", lines, title=title)


def _report(statement: str, source: str, quantity: Quantity, fit: str = "default", unit: str = "pp") -> Claim:
    return Claim(statement, source, quantity, fit=fit, unit=unit, roles=_ROLES)


def _claim_at_least(
    statement: str,
    source: str,
    quantity: Quantity,
    least: float,
    paper: str,
    fit: str = "default",
    reading: str = "",
    unit: str = "pp",
) -> Claim:
    ours = least != 0
    settings: dict[str, Any] = {"paper": paper, "fit": fit, "roles": _ROLES, "reading": reading, "unit": unit}
    return Claim(statement, source, quantity, "≥" if ours else ">", least, ours=ours, **settings)


def _report_too(*figures: tuple[str, Quantity, str]) -> tuple[Claim, ...]:
    return tuple(_report(words, "section 1.5", quantity, _AUTHORS, unit) for words, quantity, unit in figures)


_NAMES = tuple(map(name_of, SHAPES))
_UNEQUAL = Where(sender=_NAMES[0], receiver=_NAMES[1], sender_cut="layer?.1")  #: at the ends of the stages of both


def _claim_triangles() -> tuple[Claim, ...]:
    """Return the claims of late cuts into early ones."""
    higher = _claim_at_least(
        f"{_DEEPER} is above the rest",
        "section 1.5",
        ByDepth("difference"),
        0.0,
        _TRIANGLE,
        "default",
        "the paper states an order of the triangles, without a distance: 20 pp were too strict",
    )
    high = _claim_at_least(
        "at least 80 % of the cells of the lower triangle are within 10 pp of the receiver",
        "section 1.5",
        ShareOfLower(10.0),
        80.0,
        _TRIANGLE,
        "default",
        "“all layers in the lower triangle have high stitching accuracy” is about those cells too",
        unit="%",
    )
    return higher, high, formerly(higher, higher.quantity, "the same to be at least 20 pp")


def _claim_diagonals(name: str) -> tuple[Claim, ...]:
    """Return the claims of networks of one shape."""
    same = Where(sender=name, receiver=f"another {name}")
    near, other = (ByDepth("near_difference", where, lower=True) for where in (same, _UNEQUAL))
    wide, reading = (
        "within one cut of the diagonal and on it",
        ("cells near the diagonal, and on it, are compared with those of the lower triangle"),
    )
    above = _claim_at_least(
        f"accuracy {wide} is above that of the lower triangle: {name}",
        *("section 1.5", near, 0.0, "more of a diagonal pattern", "default", reading),
    )
    more = _claim_at_least(
        f"and more so than between unequal shapes: {name}",
        *("section 1.5", Contrast(near, other), 0.0, "more of a diagonal pattern", "default", reading),
    )
    before = Contrast(*(ByDepth("near_difference", where, ties=False) for where in (same, _UNEQUAL)))
    return (
        above,
        more,
        formerly(more, before, f"within one cut of the diagonal, not on it, minus all others, against unequal: {name}"),
        _claim_at_least(
            f"{_DEEPER} is above the rest, in equal shapes: {name}",
            "section 1.5",
            ByDepth("difference", same),
            0.0,
            "the lower left hand triangle had higher accuracy than the top right hand triangle",
        ),
    )


def _compare_late(where: Where) -> Above:
    return Above("stitched", replace(where, sender_depth=_LATE, receiver_depth=_LATE), where)


def _compare_early(where: Where) -> Difference:
    """Return the best cell into early receiver cuts minus the best into late ones."""
    early, late = (Worst("stitched", replace(where, receiver_depth=depths)) for depths in (_EARLY, _LATE))
    return Difference(early, late)


def _draw_both_fits(where: Where) -> tuple[Panel, ...]:
    """Return a control's matrices, by either fit."""
    kinds = ((where, "default fit"), (replace(where, fit="published"), "published fit, first pair"))
    named = (f"sender → receiver, {where.control}", "resnet*", "another resnet*")
    return tuple(_draw_maps(which, named, title=title) for which, title in kinds)


_TRIANGLE = "all layers in the lower left hand triangle have high stitching accuracy"
_LARGER = (("resnet18", "another resnet18"), ("resnet18", "resnet34"), ("resnet34", "resnet18"))
_COPIES = (
    ("the default fit on the task", "default", Where()),
    ("the published fit on the task", _AUTHORS, Where(fit=f"TaskLoss*|{_AUTHORS}")),
    ("the published fit to the representation", f"{_AUTHORS}-copy", Where(fit=f"MatchActivations*|{_AUTHORS}-copy")),
    ("least squares to the representation", "least squares", Where(fit="LeastSquares*")),
)

_UNIFORM = Claim(
    "the standard deviation of accuracy over cells is below that of the same networks trained",
    "section 1.5",
    Difference(Spread("stitched", _BOTH), Spread("stitched", Where(receiver="another *"))),
    "<",
    0.0,
    paper="a rather uniform distribution",
    roles=_ROLES,
    reading="“rather uniform” is compared with the trained matrices",
)
_SERVED = _claim_at_least(
    "the best cell into early receiver cuts (depth at most 1/3) is above the best into late ones (at least 2/3)",
    "section 1.5",
    _compare_early(_SENDER),
    0.0,
    "only stitches into the early layers of the receiver have high accuracy",
    reading="“only early receivers” does not mean that every early cell has a high accuracy",
)
_BEFORE = Above("stitched", replace(_SENDER, receiver_depth=_EARLY), _SENDER)

STUDIES: tuple[Study, ...] = (
    Study(
        "hernandez-2",
        "Triangles",
        "Do late layers of a network serve early layers of another shape, and not the other way round?",
        "section 1.5, figure 2",
        plan_triangles,
        (
            *_claim_triangles(),
            _report(
                f"{_DEEPER}, above the rest, at the cells that the published fit has",
                "section 1.5",
                ByDepth("difference", like=_PUBLISHED),
            ),
            _report(_BY_STAGE, "section 1.5", ByDepth("difference", stages=True)),
            _report(_BY_STAGE, "section 1.5", ByDepth("difference", _PUBLISHED, stages=True), _AUTHORS),
        ),
        (
            *(
                _draw_maps(
                    where,
                    *((f"{a} → {b}", a, b) for a, b in pairs),
                    title=title,
                )
                for where, title, pairs in (
                    (Where(), "default fit", (_NAMES, _NAMES[::-1])),
                    (_PUBLISHED, "published fit", (_NAMES,)),
                )
            ),
        ),
        (
            *_ALWAYS,
            _STAGES_TOO,
        ),
        (
            "Two of the 16 shapes, five networks each, in both directions, at the ends of the stages.",
            *_tell_small("the pairs of one direction"),
        ),
    ),
    Study(
        "hernandez-2d",
        "Diagonals",
        "Are networks of one shape, of two seeds, more diagonal than networks of unequal shapes?",
        "section 1.5",
        plan_diagonals,
        tuple(claim for name in _NAMES for claim in _claim_diagonals(name)),
        (_draw_maps(Where(), *((name_of(a), name_of(a), f"another {name_of(a)}") for a in SHAPES)),),
        (
            *_ALWAYS,
            "“Within one cut” is at most the larger step in depth of the two networks.",
            "Equal and unequal shapes are compared by the jackknife over the networks that are in both.",
        ),
        (
            "Two of the 16 shapes, five networks each, at the ends of the stages, beside hernandez-2's unequal pairs.",
            _FEW,
            "The default fit alone.",
        ),
    ),
    Study(
        "hernandez-3",
        "Larger ResNets",
        "Are ResNet-18 and ResNet-34 triangular too?",
        "section 1.5, figure 3",
        plan_larger,
        tuple(
            _report(
                f"{_DEEPER}, above the rest: {a} → {b}",
                "figure 3",
                ByDepth("difference", Where(sender=a, receiver=b, fit=kind)),
                fit,
            )
            for kind, fit in (("default", "default"), ("published", _AUTHORS))
            for a, b in _LARGER
        ),
        (_draw_maps(Where(), *((f"{a} → {b}", a, b) for a, b in _LARGER)),),
        _EVERYWHERE,
        (
            "ResNet-34 has one seed.",
            _SOME,
            *_tell_small("the first pair of each kind"),
        ),
    ),
    Study(
        "hernandez-random-both",
        "Untrained networks",
        "What can a stitch do between two networks that have never seen data?",
        "section 1.5",
        partial(plan_untrained, control=untrained_both, trained=True),
        (
            Claim(
                "accuracy is at most 50 % in every cell",
                "section 1.5",
                Extreme((AtCuts("stitched", _BOTH),)),
                "≤",
                50.0,
                unit="%",
                ours=True,
                paper="all possible stitches have low accuracy",
                roles=_ROLES,
            ),
            _UNIFORM,
            formerly(_UNIFORM, Spread("stitched", _BOTH), "standard deviation over cells, to be at most 10 pp"),
            *_report_too(
                (
                    "share of the variance over cells between sender cuts",
                    ShareOfAxis("stitched", "sender_cut", _BOTH),
                    "%",
                ),
                ("the same between receiver cuts", ShareOfAxis("stitched", "receiver_cut", _BOTH), "%"),
            ),
            *_report_too(
                ("largest accuracy of a cell", Extreme((AtCuts("stitched", replace(_BOTH, fit="published")),)), "%"),
                ("standard deviation over cells", Spread("stitched", replace(_BOTH, fit="published")), "pp"),
            ),
        ),
        _draw_both_fits(_BOTH),
        _EVERYWHERE,
        (_FEW, _ONE_BLOCK),
    ),
    Study(
        "hernandez-random-receiver",
        "Untrained receiver",
        "Where does a trained sender serve a receiver that has never seen data?",
        "section 1.5",
        partial(plan_untrained, control=untrained_receiver),
        (
            _claim_at_least(
                "mean accuracy of late → late (both depths at least 2/3) is above the others by at least 20 pp",
                "section 1.5",
                _compare_late(_RECEIVER),
                20.0,
                "only stitches from the later layers into the later layers have high accuracy",
            ),
            *_report_too(("late → late, above the others", _compare_late(replace(_RECEIVER, fit="published")), "pp")),
        ),
        _draw_both_fits(_RECEIVER),
        _EVERYWHERE,
        (_FEW, _ONE_BLOCK),
    ),
    Study(
        "hernandez-random-sender",
        "Untrained sender",
        "Where does a sender that has never seen data serve a trained receiver?",
        "section 1.5",
        partial(plan_untrained, control=untrained_sender),
        (
            _SERVED,
            formerly(_SERVED, _BEFORE, "mean accuracy into early cuts above the others, to be at least 20 pp"),
            *_report_too(("best early minus best late", _compare_early(replace(_SENDER, fit="published")), "pp")),
        ),
        _draw_both_fits(_SENDER),
        _EVERYWHERE,
        (_FEW, _ONE_BLOCK),
    ),
    Study(
        "hernandez-copy",
        "Copying",
        "Does a stitch that serves the task give the receiver the activations that it expects?",
        "sections 1.2 and 1.5",
        plan_copies,
        (
            *(
                _report(f"mean accuracy by {words}", "section 1.5", Mean("stitched", where), fit, "%")
                for words, fit, where in _COPIES
            ),
            *(
                _report(
                    f"mean squared error to the expected representation, as a share of its variance, by {words}",
                    "section 1.5",
                    Mean("representation_error", where),
                    fit,
                    "of the variance",
                )
                for words, fit, where in _COPIES
            ),
            *(
                _report(f"{_DEEPER}, above the rest, by {words}", "section 1.5", ByDepth("difference", where), fit)
                for words, fit, where in _COPIES
            ),
        ),
        (
            *(
                Panel("map", column, label, tuple((words, where) for words, _, where in _COPIES))
                for column, label in (("stitched", "accuracy"), ("representation_error", "error / variance"))
            ),
        ),
        (
            *_EVERYWHERE,
            "The error is divided by the variance of the expected representation: 0 is a copy, 1 the mean.",
            "Least squares is the exact minimum of the error of the published copying, on the images of the fit.",
        ),
        (_FEW, "Cuts are the ends of the stages (4 × 4); published fits have their full 780 steps."),
    ),
    TRIANGLE,
)

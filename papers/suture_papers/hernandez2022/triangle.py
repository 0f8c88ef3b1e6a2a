"""Whose is the triangle? The finding of section 1.5, by fits that ask a stitch for something else.

hernandez2022 reads from its triangles that late layers of one network can stand in for early ones of another, and not
the other way round. Its stitches lower the task loss, which a late layer serves by naming the class, whatever the
receiver expects. So the same cells are fitted by what looks at the receiver's representation instead: at the cut
(least squares, the exact minimum of the error that its copying descends on), at every cut behind it (functional latent
alignment), and before the head (penultimate match). The part of the triangle that is left needs no labels.

Stitches from a late cut into an earlier one up-sample, so least squares cannot reach what the receiver has within a
pixel of the sender's. What that bounds is measured beside it, by ``benchmarks/resolution.py``.
"""

from typing import Any

from suture.fits import LeastSquares
from suture_papers.base.cells import Where, number_pair
from suture_papers.base.claims import Claim, Roles
from suture_papers.base.contrasts import ByDepth
from suture_papers.base.plans import FitAtSeams, pair_in_circle, plan_pair
from suture_papers.base.quantities import Difference, Mean
from suture_papers.base.scale import Scale
from suture_papers.base.study import Panel, Part, Study
from suture_papers.fits_of_others import FunctionalLatentAlignment, MatchPenultimate
from suture_papers.hernandez2022.plans import SHAPES, cross, data_of, name_of

STEPS, CHECK = 400, 200  #: of the descents on the receiver's representation
_ROLES = Roles("training images of CIFAR-10", "test images of CIFAR-10", "none: accuracies are compared")
_TASK = "task loss, by the default fit"
_FITS: tuple[tuple[str, str, Where], ...] = (
    (_TASK, "default", Where()),
    ("least squares at the cut", "least squares", Where(fit="LeastSquares*")),
    ("alignment at all cuts behind", "functional latent alignment", Where(fit="FunctionalLatentAlignment*")),
    ("match before the head", "penultimate match", Where(fit="MatchPenultimate*")),
)


def plan_triangle(scale: Scale) -> list[Part]:
    """Plan every block of ResNets (1,1,1,1) into every block of another, by every fit."""
    descents = (
        FunctionalLatentAlignment(steps=STEPS, check=CHECK),
        MatchPenultimate(start=LeastSquares(), steps=STEPS, check=CHECK),
    )
    fits = (scale.fit, LeastSquares(rescale=False), *(scale.published(fit, whole=True) for fit in descents))
    runs, name = [FitAtSeams(fit, cross(scale)) for fit in fits], name_of(SHAPES[1])
    return [
        plan_pair(number_pair(start, end), (scale.base(name, start), scale.base(name, end)), data_of(scale), runs)
        for start, end in pair_in_circle(scale, name)
    ]


def claim_triangle() -> tuple[Claim, ...]:
    """Return the claims: is the triangle larger, and the diagonal less, by the task loss than by each other fit?"""
    made = list[Claim]()
    for words, fit, where in _FITS:
        deeper, near = ByDepth("difference", where, ties=False), ByDepth("near_difference", where, lower=True)
        made += [
            _claim(f"mean accuracy by {words}", Mean("stitched", where), fit, unit="%"),
            _claim(f"mean accuracy late to early, above early to late, without equal depths, by {words}", deeper, fit),
            _claim(f"within one cut of the diagonal on either side, above the rest of the lower triangle, by {words}",
                   near, fit),
            _claim(f"mean squared error to the expected representation, as a share of its variance, by {words}",
                   Mean("representation_error", where), fit, unit="of the variance"),
        ]  # fmt: skip
    task = _FITS[0][2]
    for words, fit, where in _FITS[1:]:
        larger = Difference(ByDepth("difference", task, ties=False), ByDepth("difference", where, ties=False))
        nearer = Difference(ByDepth("near_difference", where, lower=True), ByDepth("near_difference", task, lower=True))
        made += [
            _claim(f"late to early above early to late is more by {_TASK}, than by {words}", larger, fit, decided=True),
            _claim(f"within one cut of the diagonal, above the rest of the lower triangle, is less by {_TASK}, than by "
                   f"{words}", nearer, fit, decided=True),
        ]  # fmt: skip
    return tuple(made)


def _claim(
    statement: str, quantity: Mean | ByDepth | Difference, fit: str, decided: bool = False, unit: str = "pp"
) -> Claim:
    decides: dict[str, Any] = {"direction": ">", "threshold": 0.0, "ours": True} if decided else {}
    return Claim(statement, "section 1.5; ours", quantity, unit=unit, fit=fit, roles=_ROLES, **decides)


TRIANGLE = Study(
    "hernandez-triangle",
    "Whose is the triangle?",
    "Is it the networks or the task loss that lets late layers stand in for early ones, and not the other way round?",
    "section 1.5",
    plan_triangle,
    claim_triangle(),
    tuple(
        Panel("map", column, label, tuple((words, where) for words, _, where in _FITS))
        for column, label in (("stitched", "accuracy"), ("representation_error", "error / variance"))
    ),
    (
        "A question of ours about the paper's finding; stitches are the paper's.",
        "Both networks are of one shape and differ in their seeds; there the paper finds the triangle weaker.",
        "Least squares is ridge regression, its penalty chosen by validation.",
        "Functional latent alignment and penultimate match begin at least squares, and "
        f"take {STEPS:,} steps of 64 images. They are not followed to convergence.",
        "The authors' own recipe is left to hernandez-2 and hernandez-copy.",
    ),
    (
        "The shape with one block a stage, cut behind every block (4 × 4 cuts).",
        "Stitches are fitted and scored on 5,000 images each.",
    ),
)

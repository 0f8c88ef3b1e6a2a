"""Whether the stitch alone can learn the trait: the control of section 3, and its effect on sections 4.2 and 4.3.

oxford2025 stitches untrained networks, finds that they "cannot learn the traits", and attributes the knowledge of
stitched networks to their halves. That control is as good as the fit of its stitch. So the same seams of the same
untrained networks are fitted by the paper's recipe at its full length, at ``TIMES`` as many steps where much was to be
had, and until the fit has converged; and the traits are located once more by what trained networks know *beyond*
untrained ones fitted alike.
"""

from dataclasses import replace
from typing import Any

from suture.measurement.scores.scores import Accuracy
from suture.measurement.scores.traits import knows
from suture.measurement.trials.controls import untrained_both
from suture_papers.base.cells import Where
from suture_papers.base.claims import Claim
from suture_papers.base.plans import plan_curves
from suture_papers.base.quantities import AtCuts, Difference, Extreme, Mean, PerUnit
from suture_papers.base.scale import Scale
from suture_papers.base.study import Panel, Part, Study
from suture_papers.oxford2025 import plans
from suture_papers.oxford2025.claims import AFTER, BEFORE, CHANCE, NARROW, ON_TRUCKS, ROLES, TRUE
from suture_papers.recipes import oxford2025 as PUBLISHED

TIMES = 4  #: as many steps as the paper's recipe has
SEAM = "fc1_relu"  #: where untrained networks gain most

_UNTRAINED = Where(score=ON_TRUCKS, fit_data=TRUE, receiver_cut=NARROW, control="untrained both")
_RECIPE = "the paper's recipe"
_WHOLE = "oxford2025|*steps=2,*"  #: the recipe as the table spells it, and at tiny scale
_LONGER = f"oxford2025(steps={TIMES * PUBLISHED.steps})|*steps={TIMES * 2},*"
_STEPS = f"{PUBLISHED.steps:,}"


def plan_alone(scale: Scale) -> list[Part]:
    """Plan untrained networks at the seams of 4.2 and 4.3a by three lengths of fit, and trained ones beside them."""
    data = scale.data("cifar10")
    scores = (Accuracy(), knows(data, plans.CARS), knows(data, plans.TRUCKS))
    seams, control = (*plans.LINE, plans.DENSE), (untrained_both,)
    settings: dict[str, Any] = {"instead": control, "every": True}
    parts = list[Part](
        plans.plan_seams(
            scale, "cnn", plans.RECEIVER, data, seams, scores, range(len(seams)), **settings
        )  # oxford-control's
    )
    recipe = scale.published(PUBLISHED, whole=True)
    longer = replace(recipe, steps=TIMES * recipe.steps)
    settings = {"also": control, "only": True, "every": True, "scores": scores, "sample": (0,)}
    parts += plan_curves(scale, "cnn", plans.RECEIVER, data, cuts=((SEAM, None),), published=longer, **settings)
    trained = (Accuracy(), knows(data, plans.TRUCKS), plans.trait_of_others(data, plans.TRUCKS))
    parts += plans.plan_seams(scale, "cnn", plans.RECEIVER, data, seams, trained, range(len(plans.LINE)), every=True)
    for sender in plans.SPECIAL:  # oxford-4.2's
        parts += plans.plan_seams(scale, sender, plans.RECEIVER, data, seams, trained, range(len(seams)), every=True)
    return parts


def claim_alone() -> tuple[Claim, ...]:
    """Return the claims on untrained networks' learning, and on the knowledge of trained ones beyond it."""
    of_stitch = (
        ("at all cuts", _UNTRAINED, "default", True),
        (f"by the paper's recipe of {TIMES} times {_STEPS} steps, at {SEAM}", _at_seam(_LONGER), _RECIPE, False),
    )
    made = [_claim_nothing(words, where, fit, decided) for words, where, fit, decided in of_stitch]
    grows = Difference(Mean("stitched", _at_seam(_LONGER)), Mean("stitched", _at_seam(_WHOLE)))
    words = f"untrained networks, at {SEAM}: {TIMES} times as many steps of the recipe give more truck accuracy"
    made.append(Claim(words, "section 3", grows, ">", 0.0, roles=ROLES[TRUE], fit=_RECIPE))
    beyond = AtCuts("stitched", _trained("cnn", "default"), minus=("stitched", _UNTRAINED))
    words = "trained networks know trucks better than untrained ones at every cut"
    settings: dict[str, Any] = {"roles": ROLES[TRUE], "ours": True, "counts": True}
    made.append(Claim(words, "section 4.3", Extreme((beyond,), smallest=True), ">", 0.0, **settings))
    for layer in AFTER:
        located = Difference(_beyond(layer, AFTER[layer]), _beyond(layer, BEFORE[layer]))
        words = f"beyond untrained networks, trucks in {layer} are known better from {layer} on than before it"
        made.append(Claim(words, "section 4.2", located, ">", 0.0, roles=ROLES[TRUE], ours=True, counts=True))
    return tuple(made)


def _claim_nothing(words: str, where: Where, fit: str, decided: bool) -> Claim:
    worst = Extreme((AtCuts("stitched", where, least=("stitched", replace(where, score="accuracy"))),))
    words = f"untrained networks: accuracy on trucks, or on all classes where that is less, {words}"
    if not decided:
        return Claim(words, "section 3", worst, unit="%", roles=ROLES[TRUE], fit=fit)
    settings: dict[str, Any] = {"unit": "%", "ours": True, "paper": "cannot learn the traits", "roles": ROLES[TRUE]}
    return Claim(f"{words}: at most {CHANCE:g} %", "section 3", worst, "≤", CHANCE, fit=fit, **settings)


def _at_seam(fit: str) -> Where:
    return replace(_UNTRAINED, receiver_cut=SEAM, fit=fit)


def _trained(sender: str, fit: str) -> Where:
    return replace(_UNTRAINED, sender=sender, control="", fit=fit)


def _beyond(layer: str, cuts: str) -> PerUnit:
    """Return the share of trucks that a network trained in one layer conveys beyond an untrained one, at some cuts."""
    known = replace(_trained(f"cnn trucks in {layer}", "default"), receiver_cut=cuts)
    return Difference(Mean("stitched", known), Mean("stitched", replace(_UNTRAINED, receiver_cut=cuts)))


ALONE = Study(
    "oxford-alone",
    "Can the stitch alone learn the trait?",
    "What do untrained networks learn of trucks if fitted for longer, and what remains of locating them?",
    "sections 3, 4.2 and 4.3",
    plan_alone,
    claim_alone(),
    (
        Panel(
            "lines",
            "stitched",
            "accuracy on trucks [%]",
            (
                ("trained, default fit", _trained("cnn", "default")),
                (f"trained, the recipe's {_STEPS} steps", _trained("cnn", _WHOLE)),
                ("untrained, default fit", _UNTRAINED),
                (f"untrained, the recipe's {_STEPS} steps", replace(_UNTRAINED, fit=_WHOLE)),
                (f"untrained, {TIMES} times as many", replace(_UNTRAINED, fit=_LONGER)),
            ),
            along="sender_cut",
            title="trained on everything → without trucks",
        ),
        *(
            Panel(
                "lines",
                "stitched",
                "accuracy on trucks [%]",
                (("trained", _trained(f"cnn trucks in {layer}", "default")), ("untrained", _UNTRAINED)),
                along="sender_cut",
                title=f"trucks in {layer}, default fit",
            )
            for layer in AFTER
        ),
    ),
    (
        "a question of ours; its networks and seams are the paper's",
        "the stitch between untrained networks is fitted on the true labels of all classes",
        f"the recipe has its full {_STEPS} steps on 10,000 images, at {SEAM} also {TIMES} times as many",
    ),
)

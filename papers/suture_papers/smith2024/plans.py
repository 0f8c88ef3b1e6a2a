"""The plans of the studies of smith2024: curves over its five cuts, of networks that see colours, digits or both."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from suture import Data, Network, Trial
from suture.data.changes import Variant
from suture.fits import Fit
from suture.measurement.trials.controls import Control, clustered_noise, itself, shuffled_pairs, untrained_sender
from suture_papers import recipes
from suture_papers.base.cells import number_pair
from suture_papers.base.plans import (
    FitAtSeams,
    Joined,
    join_at,
    pair_in_circle,
    pair_seeds,
    plan_accuracy,
    plan_complexities,
    plan_curves,
    plan_pair,
)
from suture_papers.base.scale import PAPER, TINY, Scale
from suture_papers.base.study import Deferred, Part
from suture_papers.complexity import NumericalRank
from suture_papers.variants import Colour, ColourOnly, Correlated, Digit, Grey3

CUTS = ("maxpool", "layer1.1", "layer2.1", "layer3.1", "avgpool")
"""What comes before Layer 1, 2, 3, 4 and Linear; behind the pooling, since a map of one pixel takes the paper's stitch,
which has BatchNorms, as every other cut does, and a vector would not."""
VGG_CUTS = ("features.1", "features.9", "features.22", "features.29", "avgpool")
"""What comes before features.2, .10, .23, .30 and classifier.0, the last behind the pooling likewise."""
COLOURS: dict[str, Variant] = {
    "correlated": Correlated(),
    "digit": Digit(),
    "colour": Colour(),
    "colour-only": ColourOnly(),
}
DIGIT = "resnet18 digit"
GAINING = ("correlated", "colour")  #: into which Digit gains "for particular layers" (section 4.3)
RANKED = CUTS[1:3]  #: the cuts before Layers 2 and 3
SCALES = (0.02, 0.5)  #: of the noise, beside the default
STITCHES = 5  #: seeds of stitches at features.2 of VGG19
AGAIN = "clustered noise, again"


def plan_compatible(scale: Scale) -> list[Part]:
    """Plan every kind of sender into the Digit network, at every cut, fitted and scored on Correlated."""
    made: list[Part] = []
    for kind in COLOURS:
        controls = (untrained_sender, shuffled_pairs) if kind == "colour-only" else ()
        made += _plan_published(scale, f"resnet18 {kind}", DIGIT, Correlated(), controls=controls)
    return made


def _plan_published(
    scale: Scale,
    sender: str,
    receiver: str,
    on: Variant,
    cuts: Sequence[str] | Sequence[Joined] = CUTS,
    controls: Sequence[Control] = (),
) -> list[Deferred]:
    """Plan curves on a variant of MNIST, by the default and by the published fit."""
    return plan_curves(
        scale,
        sender,
        receiver,
        scale.data("mnist", on),
        cuts=cuts,
        controls=controls,
        published=scale.published(recipes.smith2024, whole=True),
        sample=range(len(cuts)),
        every=True,
        seeds=pair_seeds(scale, sender, receiver)[: 1 if scale.name == TINY else None],
    )


def plan_ranks(scale: Scale) -> list[Part]:
    """Plan the trials of smith-4.1 by the default fit, and the ranks of the stitched score data."""
    data = scale.data("mnist", Correlated())
    made: list[Part] = []
    for kind in COLOURS:
        cuts = RANKED if scale.name == TINY else CUTS
        published = recipes.smith2024 if scale.name == PAPER else None
        name = f"resnet18 {kind}"
        pairs = pair_in_circle(scale, name, DIGIT)  # a standardised difference takes its units for independent
        parts = plan_curves(scale, name, DIGIT, data, cuts=cuts, published=published, seeds=pairs)
        made += parts
        for number, part in enumerate(parts):
            plan = partial(_keep_default_fit, scale, part)
            made.append(plan_complexities(f"{kind}, {number}", part.bases, plan, data, (NumericalRank(),), 10_000))
    return made


def _keep_default_fit(scale: Scale, part: Deferred, *networks: Network) -> list[Trial]:
    return [trial for trial in part.make(*networks) if trial.fit == scale.fit]


def plan_without_digits(scale: Scale) -> list[Part]:
    """Plan Colour-only networks into grey ones, on plain colours, and score the grey ones on grey digits."""
    of_digits, grey = scale.data("mnist", Grey3()).score, "resnet18 grey"
    made: list[Part] = list(_plan_published(scale, "resnet18 colour-only", grey, ColourOnly()))
    for start, end in pair_seeds(scale, "resnet18 colour-only", grey)[: 1 if scale.name == TINY else None]:
        made.append(plan_accuracy(f"receiver {end}", scale.base(grey, end), of_digits, number_pair(start, end, False)))
    return made


def plan_reversed(scale: Scale) -> list[Part]:
    """Plan every kind into Digit, and Digit into every kind, before Layer 1; two of these at every cut."""
    made: list[Part] = []
    for kind in COLOURS:
        made += _plan_published(scale, f"resnet18 {kind}", DIGIT, Correlated(), CUTS[:1])
    for kind in COLOURS:
        # Seams that are listed are all measured at tiny scale, too: of some a claim speaks.
        cuts: Sequence[Joined] = [(cut, None) for cut in (CUTS if kind in GAINING else CUTS[:1])]
        made += _plan_published(scale, DIGIT, f"resnet18 {kind}", Correlated(), cuts) if kind != "digit" else []
    return made


def plan_to_itself(scale: Scale) -> list[Part]:
    """Plan each kind of network stitched to itself, on Correlated."""
    made: list[Part] = []
    for kind in COLOURS:
        published = scale.published(recipes.smith2024, whole=True) if kind == "digit" else None
        made += _plan_alone(scale, f"resnet18 {kind}", Correlated(), (itself,), published)
    return made


def plan_noise(scale: Scale) -> list[Part]:
    """Plan clustered noise into every network, labelled as its own data is; Digit as Correlated, by three scales."""
    controls: tuple[Control, ...] = (clustered_noise, *(partial(clustered_noise, scale=size) for size in SCALES))
    published = scale.published(recipes.smith2024_noise, whole=True)
    made: list[Part] = list(_plan_alone(scale, DIGIT, Correlated(), controls, published))
    for kind, variant in COLOURS.items():
        if kind != "digit":
            made += _plan_alone(scale, f"resnet18 {kind}", variant, (clustered_noise,), published)
    return made


def _plan_alone(
    scale: Scale, name: str, on: Variant, controls: Sequence[Control], published: Fit | None
) -> list[Deferred]:
    """Plan controls of networks that need no other, in place of the plain trials, by the default and published fits.

    Of several controls the published fit takes the first.
    """
    data, made = scale.data("mnist", on), list[Deferred]()
    for seed in scale.seeds(name):
        runs = [FitAtSeams(scale.fit, join_at(scale, CUTS), controls, only=True)]
        if published is not None:
            runs.append(FitAtSeams(published, join_at(scale, CUTS), controls[:1], only=True))
        made.append(plan_pair(seed, (scale.base(name, seed),), data, runs))
    return made


def plan_vgg(scale: Scale) -> list[Part]:
    """Plan clustered noise into VGG19s of every kind, labelled as their own data is, and stitches of other seeds."""
    published, first = scale.published(recipes.smith2024_vgg), join_at(scale, VGG_CUTS[:1])
    every = join_at(scale, VGG_CUTS)
    runs = [
        FitAtSeams(scale.fit, every, (clustered_noise,), only=True),
        FitAtSeams(published, every if scale.name == PAPER else first, (clustered_noise,), only=True),
    ]
    again = FitAtSeams(scale.fit, first, (_repeat_noise,), only=True, seeds=2 if scale.name == TINY else STITCHES)
    made: list[Part] = []
    for kind, variant in COLOURS.items():
        data: Data = scale.data("mnist", variant)
        for seed in scale.seeds(f"vgg19 {kind}"):
            also = [again] if kind.startswith("colour") else []
            made.append(plan_pair(seed, (scale.base(f"vgg19 {kind}", seed),), data, [*runs, *also]))
    return made


def _repeat_noise(trial: Trial) -> Trial:
    """Return clustered noise under another name, so that claims of the first stitch read no other seed."""
    return replace(clustered_noise(trial), control=AGAIN)

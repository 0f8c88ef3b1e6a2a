"""What the studies of smith2024 measure: curves over its five cuts, of networks that see colours, digits or both."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from suture.core.network.network import Network
from suture.core.stitched import At
from suture.data import Data, Samples
from suture.data.variants import Colour, ColourOnly, Correlated, Digit, Grey3, Variant
from suture.fits import Fit, recipes
from suture.measurement.complexity import NumericalRank
from suture.measurement.scores.scores import Accuracy
from suture.measurement.trials.controls import Control, clustered_noise, itself, shuffled_pairs, untrained_sender
from suture.measurement.trials.plans import curve
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Deferred, TrainingTask
from suture.studies.base.plans import ACCURACY, find_cuts, pair_seeds, plan_complexities, plan_curves, predict
from suture.studies.base.quantities import NETWORKS
from suture.studies.base.scale import PAPER, SMALL, TINY, Scale
from suture.studies.base.study import Beside, Made, Part

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
RANKED = CUTS[1:3]  #: the cuts before Layers 2 and 3
SCALES = (0.02, 0.5)  #: of the noise, beside the default
STITCHES = 5  #: seeds of stitches at features.2 of VGG19
AGAIN = "clustered noise, again"


def plan_compatible(scale: Scale) -> list[Part]:
    """Every kind of sender into the Digit network, at every cut, fitted and scored on Correlated."""
    made: list[Part] = []
    for kind in COLOURS:
        made += plan_curves(
            *(scale, f"resnet18 {kind}", DIGIT, scale.data("mnist", Correlated())),
            cuts=CUTS,
            controls=(untrained_sender, shuffled_pairs) if kind == "colour-only" else (),
            published=scale.published(recipes.smith2024),
            sample=(0, 2, 4),
            seeds=_pair_few_seeds(scale, f"resnet18 {kind}"),
        )
    return made


def _pair_few_seeds(scale: Scale, sender: str) -> list[tuple[int, int]]:
    return pair_seeds(scale, sender, DIGIT, 1 if scale.name == TINY else None)


def plan_ranks(scale: Scale) -> list[Part]:
    """Return the trials of ``compatible`` by the default fit, and the ranks of what they make of the score data."""
    data = scale.data("mnist", Correlated())
    made: list[Part] = []
    for kind in COLOURS:
        cuts = RANKED if scale.name == TINY else CUTS
        published = recipes.smith2024 if scale.name == PAPER else None
        parts = plan_curves(scale, f"resnet18 {kind}", DIGIT, data, cuts=cuts, published=published)
        made += parts
        for number, part in enumerate(parts):
            plan = partial(_keep_default_fit, scale, part)
            made.append(plan_complexities(f"{kind}, {number}", part.bases, plan, data, (NumericalRank(),), 10_000))
    return made


def _keep_default_fit(scale: Scale, part: Deferred, *networks: Network) -> list[Trial]:
    return [trial for trial in part.make(*networks) if trial.fit == scale.fit]


def plan_without_digits(scale: Scale) -> list[Part]:
    """Colour-only networks into grey ones, on plain colours; and how the grey ones do on grey digits."""
    grey = "resnet18 grey"
    sent = "resnet18 colour-only"
    trials = plan_curves(
        *(scale, sent, grey, scale.data("mnist", ColourOnly())),
        cuts=CUTS,
        published=scale.published(recipes.smith2024),
        sample=(0, 2, 4),
    )
    of_digits = scale.data("mnist", Grey3()).score
    ends = [end for _, end in pair_seeds(scale, sent, grey)]
    return [*trials, *(_plan_accuracy(scale.base(grey, end), of_digits, number) for number, end in enumerate(ends))]


def _plan_accuracy(base: TrainingTask, samples: Samples, number: int) -> Beside:
    """Return the accuracy of a network as it is, in the row of its pair."""

    def make(stitched: Made, network: Network) -> pd.DataFrame:
        right = Accuracy().per_sample(predict(network, samples), samples.labels)
        row = {"network_seed": number, "receiver": network.name, "accuracy": float(right.double().mean())}
        return pd.DataFrame([row | {"unit": "fraction", "score_data": samples.name, "n": len(samples)}])

    return Beside(NETWORKS, f"receiver {number}", (base,), make, (samples,))


def plan_reversed(scale: Scale) -> list[Part]:
    """Every kind into Digit, and Digit into every kind, before Layer 1."""
    ways = [(f"resnet18 {kind}", DIGIT) for kind in COLOURS]
    ways += [(DIGIT, f"resnet18 {kind}") for kind in COLOURS if kind != "digit"]
    made: list[Part] = []
    for sender, receiver in ways:
        made += plan_curves(
            *(scale, sender, receiver, scale.data("mnist", Correlated())),
            cuts=CUTS[:1],
            published=scale.published(recipes.smith2024),
            sample=(0,),
        )
    return made


def plan_to_itself(scale: Scale) -> list[Part]:
    """Each kind of network stitched to itself, on Correlated."""
    data, published = scale.data("mnist", Correlated()), scale.published(recipes.smith2024)
    made: list[Part] = []
    for kind in COLOURS:
        for seed in scale.seeds(f"resnet18 {kind}")[: 1 if scale.name == TINY and kind != "digit" else None]:
            fits: list[tuple[Fit, Sequence[str]]] = [(scale.fit, CUTS)]
            if kind == "digit" and (seed == 0 or scale.name != SMALL):
                fits.append((published, CUTS[::2] if scale.name == SMALL else CUTS))
            made.append(_plan_alone(scale, f"resnet18 {kind}", seed, data, fits, (itself,)))
    return made


def plan_noise(scale: Scale) -> list[Part]:
    """Clustered noise of three scales into the Digit network, labelled as Correlated is."""
    data = scale.data("mnist", Correlated())
    controls: tuple[Control, ...] = (clustered_noise, *(partial(clustered_noise, scale=size) for size in SCALES))
    made: list[Part] = []
    for seed in scale.seeds(DIGIT):
        fits: list[tuple[Fit, Sequence[str]]] = [(scale.fit, CUTS)]
        if seed == 0 or scale.name != SMALL:
            fits.append((scale.published(recipes.smith2024_noise), CUTS[::2] if scale.name == SMALL else CUTS))
        made.append(_plan_alone(scale, DIGIT, seed, data, fits, controls))
    return made


def plan_vgg(scale: Scale) -> list[Part]:
    """Clustered noise into VGG19s of every kind, labelled as their own data is; stitches of other seeds too."""
    published = scale.published(recipes.smith2024_vgg)
    made: list[Part] = []
    for kind, variant in COLOURS.items():
        data = scale.data("mnist", variant)
        for seed in scale.seeds(f"vgg19 {kind}"):
            fits: list[tuple[Fit, Sequence[str]]] = [(scale.fit, VGG_CUTS)]
            fits.append((published, VGG_CUTS[:1] if scale.name != "paper" else VGG_CUTS))
            again = STITCHES if kind.startswith("colour") else 0
            made.append(_plan_alone(scale, f"vgg19 {kind}", seed, data, fits, (clustered_noise,), again))
    return made


def _repeat_noise(trial: Trial) -> Trial:
    """Clustered noise under another name, to keep the stitches of other seeds out of what is read of the first."""
    return replace(clustered_noise(trial), control=AGAIN)


def _plan_alone(
    scale: Scale,
    name: str,
    seed: int,
    data: Data,
    fits: Sequence[tuple[Fit, Sequence[str]]],
    controls: Sequence[Control],
    again: int = 0,
) -> Deferred:
    """Trials of one network that need no other: controls at cuts, in place of the plain trials.

    ``again`` is how many stitches the first cut gets by the first fit, of noise of their own.
    """

    def make(network: Network) -> list[Trial]:
        made: list[Trial] = []
        for fit, cuts in fits:
            at = _thin(scale, find_cuts(network, cuts))
            planned = curve(
                *(network, network), at=at, data=data, fit=fit, scores=ACCURACY, controls=controls, network_seed=seed
            )
            made += [trial for trial in planned if trial.control]
        if again:
            stitches = 2 if scale.name == TINY else again
            fit, cuts = fits[0]
            plan = partial(curve, network, network, data=data, fit=fit, scores=ACCURACY, network_seed=seed)
            planned = plan(at=find_cuts(network, cuts)[:1], controls=(_repeat_noise,), seeds=stitches)
            made += [trial for trial in planned if trial.control]
        return made

    return Deferred((scale.base(name, seed),), make)


def _thin(scale: Scale, names: list[str]) -> Sequence[At]:
    """Return the cuts; at tiny scale the first and the last."""
    return [names[0], names[-1]] if scale.name == TINY and len(names) > 2 else names

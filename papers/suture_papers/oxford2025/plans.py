"""The plans of oxford2025: its lines of cuts, its stitches and its data.

The *line* of a network are the cuts behind its layers that have weights, behind ReLU and pooling: the paper's axis. On
it a 1×1 convolution without BatchNorm joins maps and a linear map vectors. Behind the convolutions there is a second
stitch, beside the line: from the maps to the flattened vector, "both a 1x1 convolutional and a fully connected layer"
(section 3), or one linear map of everything, the "high capacity" stitch (section 4.3). As functions they are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from suture import Data, Network, Trial
from suture.core.stitches import Conv, FullLinear
from suture.data.changes import vary
from suture.extend import At
from suture.measurement.scores.scores import Accuracy, Score
from suture.measurement.scores.traits import Trait, confuses, knows
from suture.measurement.trials.controls import Control, untrained_both
from suture_papers.base.cells import COMPLEXITIES
from suture_papers.base.plans import (
    ACCURACY,
    Joined,
    Pair,
    pair_in_circle,
    plan_accuracy,
    plan_complexities,
    plan_curves,
)
from suture_papers.base.scale import SMALL, TINY, Scale
from suture_papers.base.study import Beside, Deferred, Made, Part
from suture_papers.complexity import Complexity, GradientNorm, GzipSize, MeanSharpness, WorstSharpness, complexity
from suture_papers.recipes import oxford2025 as PUBLISHED
from suture_papers.variants import BlackedOut, Grey3, Relabelled, Without

CARS, CATS, TRUCKS = "automobile", "cat", "truck"
OTHERS = "accuracy on the other nine"
DIGITS, PICTURES = "stacked cnn digits", "stacked cnn pictures"
SIMPLE, COMPLEX = "resnet18 simple", "resnet18 complex"

NARROW = Conv(batchnorm=False)
MIDDLE: tuple[Joined, ...] = (("block5.relu", None),)
MAPS: tuple[Joined, ...] = (("pool1", NARROW), ("pool2", NARROW))
BLIND, IN_CONV, RECEIVER = "cnn no trucks A", "cnn trucks in convolutions", "cnn no trucks B"
SPECIAL = ("cnn trucks in fc1", "cnn trucks in fc2", "cnn trucks in fc3")
LINE: tuple[Joined, ...] = (*MAPS, ("fc1_relu", None), ("fc2_relu", None), ("fc3_relu", None))
STACKED: tuple[Joined, ...] = LINE[:-1]
BETWEEN: At = ("pool2", "flatten")
DENSE: Joined = (BETWEEN, None)
HIGH: Joined = (BETWEEN, FullLinear())
BLOCKS: tuple[Joined, ...] = tuple((f"layer{stage}.{block}", None) for stage in range(1, 5) for block in range(2))

BATCHES = "gradient norm, batches of 4"
DRAWS = 2_500  #: of noise, about as many as the paper's


def plan_seams(
    scale: Scale,
    sender: str,
    receiver: str,
    data: Data,
    seams: Sequence[Joined],
    scores: tuple[Score, ...] = ACCURACY,
    sample: Sequence[int] = (),
    instead: tuple[Control, ...] = (),
    every: bool = False,
    seeds: Sequence[Pair] | None = None,
) -> list[Deferred]:
    """Plan seams, each with its own stitch, of all pairs of two networks.

    The paper's recipe, at its full length, fits those numbered in ``sample`` of the first pair, with ``every`` of every
    pair, at the paper's scale all of all pairs. Controls that are given come ``instead`` of the plain trials.
    """
    published = scale.published(PUBLISHED, whole=True)
    settings: dict[str, Any] = {
        "scores": scores,
        "also": instead,
        "only": bool(instead),
        "every": every,
        "seeds": seeds,
    }
    return plan_curves(scale, sender, receiver, data, cuts=seams, published=published, sample=sample, **settings)


def trait_of_others(data: Data, name: str) -> Trait:
    """Return the trait of accuracy on all classes but one."""
    return Trait(OTHERS, Accuracy(tuple(label for label, held in enumerate(data.classes) if held != name)))


# --- sections 4.1 to 4.3 ----------------------------------------------------------------------------------------------


def plan_inherited(scale: Scale, network: str, seams: Sequence[Joined]) -> list[Part]:
    """Plan 4.1: a network and one to which cars are cats, both ways, fitted on the true and on the altered labels."""
    blind, parts = f"{network} cars as cats", list[Part]()
    for variants in ((Relabelled(CARS, CATS),), ()):
        data = scale.data("cifar10", *variants)
        scores = (Accuracy(), knows(data, CARS), trait_of_others(data, CARS), confuses(data, CARS, CATS))
        for sender, receiver in ((network, blind), (blind, network)):
            parts += plan_seams(scale, sender, receiver, data, seams, scores, range(len(seams)), every=True)
    return parts


def plan_both_inherited(scale: Scale) -> list[Part]:
    """Plan 4.1 of CNNs, beside MLPs: the paper's two statements are of one set of labels."""
    cnns = plan_inherited(scale, "cnn", (DENSE, ("pool2", NARROW)))
    return cnns + plan_inherited(scale, "mlp", MIDDLE)


def plan_special(scale: Scale) -> list[Part]:
    """Plan 4.2: each special layer, the network without any, and one with special convolutions by itself.

    A network with trucks in one layer is the blind one before that layer, so the blind sender at every cut says what
    the layer adds.
    """
    data = scale.data("cifar10")
    scores = (Accuracy(), knows(data, TRUCKS), trait_of_others(data, TRUCKS))
    trucks = data.score.take(
        torch.where(data.score.labels == data.classes.index(TRUCKS))[0], f"{data.score.name} {TRUCKS}"
    )
    seams = (*LINE, DENSE)
    return [
        *plan_located(scale, SPECIAL),
        *plan_seams(scale, BLIND, RECEIVER, data, seams, scores, range(len(seams)), every=True),
        *(
            plan_accuracy(f"{IN_CONV}, {seed}", scale.base(IN_CONV, seed), trucks, seed)
            for seed in scale.seeds(IN_CONV)
        ),
    ]


def plan_located(scale: Scale, senders: Sequence[str]) -> list[Part]:
    """Plan 4.2 and 4.3a: senders that know trucks into one that does not, fitted with trucks and without."""
    parts = list[Part]()
    for variants in ((), (Without(TRUCKS),)):
        data = scale.data("cifar10", *variants)
        scores = (Accuracy(), knows(data, TRUCKS), trait_of_others(data, TRUCKS))
        for sender in senders:
            seams = (*LINE, DENSE)
            sample = range(len(seams)) if not variants else ()
            parts += plan_seams(scale, sender, RECEIVER, data, seams, scores, sample, every=True)
    return parts


def sides_of(scale: Scale) -> tuple[Data, Data, Data]:
    """Return MNIST-CIFAR scored on both sides, on digits alone, on pictures alone; fitted on paired digits."""
    whole = scale.data("mnist+cifar10")
    scored = (whole, vary(whole, BlackedOut("cifar10")), vary(whole, BlackedOut("mnist")))
    both, digits, pictures = (replace(whole, score=data.score) for data in scored)
    return both, digits, pictures


def plan_distributed(scale: Scale) -> list[Part]:
    """Plan 4.3b: a network of digits into one of pictures, scored on either side; pictures into pictures beside it."""
    parts = list[Part]()
    for data in sides_of(scale):
        parts += plan_seams(scale, DIGITS, PICTURES, data, (*STACKED, HIGH), sample=range(len(STACKED)), every=True)
    alike = pair_in_circle(scale, PICTURES)
    return parts + plan_seams(scale, PICTURES, PICTURES, sides_of(scale)[2], STACKED, seeds=alike)


def plan_robust(scale: Scale) -> list[Part]:
    """Plan 6.1: the high-capacity stitch."""
    return [p for data in sides_of(scale) for p in plan_seams(scale, DIGITS, PICTURES, data, (HIGH,), sample=(0,))]


# --- section 4.4 ------------------------------------------------------------------------------------------------------


def _most_samples(scale: Scale, small: int) -> int:
    return {TINY: 8, SMALL: small}.get(scale.name, 10_000)


def _measures(scale: Scale, sharpness: MeanSharpness) -> tuple[Complexity, ...]:
    sharpness = replace(sharpness, draws=2) if scale.name == TINY else sharpness
    return (GradientNorm(), GradientNorm(batch=4), sharpness, GzipSize())


def plan_dominated(scale: Scale) -> list[Part]:
    """Plan figure 5: the complexity of the stitched networks of 4.3b, and of the two that they are made of."""
    data = sides_of(scale)[0]
    by = (*_measures(scale, MeanSharpness(draws=DRAWS)), WorstSharpness())
    laters = plan_seams(scale, DIGITS, PICTURES, data, (*STACKED, HIGH))
    return [*laters, *_measure_each(scale, laters, data, by, _most_samples(scale, 1_000))]


def plan_simplified(scale: Scale) -> list[Part]:
    """Plan figure 6: a simple ResNet-18 into a complex one, behind every block."""
    data = scale.data("mnist", Grey3())
    laters = plan_seams(scale, SIMPLE, COMPLEX, data, BLOCKS)
    return [*laters, *_measure_each(scale, laters, data, _measures(scale, MeanSharpness()), _most_samples(scale, 500))]


def _measure_each(
    scale: Scale, laters: list[Deferred], data: Data, by: Sequence[Complexity], most: int
) -> list[Beside]:
    """Measure the plain trials by the default fit, and the two networks of each pair at no cut."""
    parts = []
    for number, later in enumerate(laters):
        plan = partial(_keep_plain, scale, later)
        stitched = plan_complexities(f"stitched, {number}", later.bases, plan, data, by, most)
        parents = partial(_measure_parents, data, by, most, number)
        settings = (tuple(by), most, data.score)
        parts += [
            replace(stitched, make=partial(_name_batches, stitched.make)),
            Beside(COMPLEXITIES, f"parents, {number}", later.bases, partial(_name_batches, parents), settings),
        ]
    return parts


def _keep_plain(scale: Scale, later: Deferred, *networks: Network) -> list[Trial]:
    return [trial for trial in later.make(*networks) if not trial.control and trial.fit == scale.fit]


def _measure_parents(
    data: Data, by: Sequence[Complexity], most: int, number: int, stitched: Made, *networks: Network
) -> pd.DataFrame:
    """Return the measures of two networks, each as sender and receiver of itself."""
    samples = data.score.first(min(most, len(data.score)))
    labels = {"network_seed": number, "control": "", "sender_cut": "", "receiver_cut": ""}
    labels |= {"sender_depth": np.nan, "receiver_depth": np.nan}
    rows = [
        complexity(network, samples, by, labels | {"sender": network.name, "receiver": network.name})
        for network in networks
    ]
    return pd.concat(rows, ignore_index=True)


def _name_batches(make: Callable[..., pd.DataFrame], stitched: Made, *networks: Network) -> pd.DataFrame:
    """Return the rows with another name for the gradient norm of batches."""
    rows = make(stitched, *networks)
    of_batches = (rows["measure"] == GradientNorm.name) & (rows["settings"] == GradientNorm(batch=4).settings)
    return rows.assign(measure=rows["measure"].where(~of_batches, BATCHES))


# --- the control ------------------------------------------------------------------------------------------------------


def plan_controlled(scale: Scale) -> list[Part]:
    """Plan untrained into untrained, at the seams of 4.1 to 4.3 and 6.1, fitted on the true labels of all classes."""
    data = scale.data("cifar10")
    scores, untrained = (Accuracy(), knows(data, CARS), knows(data, TRUCKS)), (untrained_both,)
    line, stacked = (*LINE, DENSE), (*STACKED, HIGH)
    parts = list[Part]()
    settings: dict[str, Any] = {"instead": untrained, "every": True}
    parts += plan_seams(scale, "mlp", "mlp cars as cats", data, MIDDLE, scores, (0,), **settings)
    parts += plan_seams(scale, "cnn", RECEIVER, data, line, scores, range(len(line)), **settings)
    for side in sides_of(scale)[1:]:
        parts += plan_seams(scale, DIGITS, PICTURES, side, stacked, sample=range(len(STACKED)), **settings)
    return parts

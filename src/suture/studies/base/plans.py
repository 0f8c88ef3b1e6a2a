"""What studies are made of: curves of the ledger's networks, and what is computed beside them.

A *pair* is a seed of the sender's network and one of the receiver's. Networks of one architecture and seed begin with
the same weights, so those of two seeds are joined: seed *i* to the next one, round in a circle. The pair's number is
the ``network_seed`` of its rows, over which intervals are taken.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from suture.common.seeds import derive_seed, undisturbed
from suture.core.network.network import Network
from suture.core.stitched import At
from suture.core.stitches import Stitch
from suture.data import Data, Samples
from suture.fits import Fit
from suture.measurement.compare import compare
from suture.measurement.complexity import Complexity, complexity
from suture.measurement.indices import Index, linear_cka
from suture.measurement.scores.scores import Accuracy
from suture.measurement.trials.controls import Control
from suture.measurement.trials.plans import Scores, curve, cuts_of
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Deferred, TrainingTask
from suture.studies.base.quantities import COMPLEXITIES, SIMILARITIES
from suture.studies.base.scale import PAPER, SMALL, TINY, Scale
from suture.studies.base.study import Beside, Made

BLOCKS = ("layer?.?",)
ACCURACY: Scores = (Accuracy(),)
CHUNK = 256  #: images at a time
Pair = tuple[int, int]


def pair_seeds(scale: Scale, sender: str, receiver: str, most: int | None = None) -> list[Pair]:
    """Seeds of the two networks, round in a circle: no network twice on one side, and at most ``most`` pairs.

    The network with fewer seeds thus says how many pairs there are, so that an interval over pairs is one over as many
    networks on either side.
    """
    starts, ends = scale.seeds(sender), scale.seeds(receiver)
    if len(ends) == 1:
        return [(starts[0], ends[0])]
    joined = [(seed, ends[(i + 1) % len(ends)]) for i, seed in enumerate(starts)]
    return joined[: min(len(starts), len(ends))][:most]


def rename(network: Network, name: str) -> Network:
    """Return the same network under another name."""
    if network.name == name:
        return network
    other = copy.copy(network)
    other.name = name
    return other


def predict(network: Network, samples: Samples) -> Tensor:
    """Return a network's outputs on samples, (n, classes), on the processor."""
    # Chunks of one size, since their size decides the last bits of the outputs.
    with undisturbed(), torch.no_grad():
        return torch.cat([network(images).cpu() for images in torch.split(samples.images, CHUNK)])


def untrain(sender: Network) -> Network:
    """Return the untrained sender that ``controls.untrained_sender`` puts into trials of seed 0."""
    return sender.untrained(derive_seed("untrained", sender.fingerprint, "sender", 0))


def tell_apart(sender: Network, receiver: Network) -> tuple[Network, Network]:
    """Two networks whose names tell them apart."""
    return sender, rename(receiver, f"another {receiver.name}") if sender.name == receiver.name else receiver


def find_cuts(network: Network, patterns: Sequence[str]) -> list[str]:
    """Return the names of a network's cuts that suit patterns, from input to output."""
    return list(cuts_of([network], tuple(patterns))[network.name])


def thin(scale: Scale, at: Sequence[At]) -> list[At]:
    """Return the seams of a scale: all of them, or at tiny scale the first, the middle and the last."""
    if scale.name != TINY or len(at) <= 3:
        return list(at)
    return [at[0], at[len(at) // 2], at[-1]]


Cuts = Sequence[str] | Callable[[Network, Network], Sequence[At]]


def plan_curves(
    scale: Scale,
    sender: str,
    receiver: str,
    data: Data,
    *,
    cuts: Cuts = BLOCKS,
    controls: Sequence[Control] = (),
    also: Sequence[Control] = (),
    published: Fit | None = None,
    sample: Sequence[int] = (0, 3, 6),
    stitch: Stitch | None = None,
    scores: Scores = ACCURACY,
    seeds: Sequence[Pair] | None = None,
    names: tuple[str, str] | None = None,
) -> list[Deferred]:
    """Curves of all pairs of two networks, at the receiver's cuts of some patterns, or at what ``cuts`` makes.

    ``controls`` go with the first pair, ``also`` with every pair. The ``published`` fit takes the cuts numbered in
    ``sample``, of the first pair, plain; at the paper's scale it takes every seam of every pair, with the controls of
    ``also``. ``names`` are what sender and receiver are called.
    """
    made = []
    for number, (start, end) in enumerate(seeds if seeds is not None else pair_seeds(scale, sender, receiver)):

        def make(a: Network, b: Network, number: int = number) -> list[Trial]:
            a, b = (rename(a, names[0]), rename(b, names[1])) if names is not None else tell_apart(a, b)
            at = thin(scale, cuts(a, b) if callable(cuts) else find_cuts(b, cuts))
            settings: dict[str, Any] = {"data": data, "stitch": stitch, "scores": scores, "network_seed": number}
            beside = (*also, *(controls if number == 0 else ()))
            trials = list(curve(a, b, at=at, fit=scale.fit, controls=beside, **settings))
            if published is not None and (number == 0 or scale.name != SMALL):
                chosen = [at[i] for i in sample if i < len(at)] if scale.name == SMALL else at
                with_these = also if scale.name == PAPER else ()
                by_recipe = curve(a, b, at=chosen, fit=published, controls=with_these, **settings)
                trials += [trial for trial in by_recipe if trial.fit == published]  # a baseline has a fit of its own
            return trials

        made.append(Deferred((scale.base(sender, start), scale.base(receiver, end)), make))
    return made


def plan_similarities(
    scale: Scale,
    sender: str,
    receiver: str,
    data: Data,
    *,
    by: Sequence[Index] = (linear_cka,),
    cuts: Sequence[str] = BLOCKS,
    untrained: bool = False,
    seeds: Sequence[Pair] | None = None,
) -> list[Beside]:
    """Similarity of the same pairs at equal cuts; ``untrained`` takes the sender as it is before training."""
    made = []
    for number, (start, end) in enumerate(seeds if seeds is not None else pair_seeds(scale, sender, receiver)):

        def make(stitched: Made, a: Network, b: Network, number: int = number) -> pd.DataFrame:
            a, b = tell_apart(a, b)
            if untrained:
                a = rename(untrain(a), f"untrained {a.name}")
            rows = compare(a, b, data=data, by=tuple(by), cuts=tuple(cuts))
            equal = rows["sender_cut"] == rows["receiver_cut"]
            return rows[equal].assign(network_seed=number).reset_index(drop=True)

        bases = (scale.base(sender, start), scale.base(receiver, end))
        settings = (tuple(by), tuple(cuts), untrained, data.score)
        made.append(Beside(SIMILARITIES, f"{sender}, {receiver}, {number}", bases, make, settings))
    return made


def plan_complexities(
    name: str,
    bases: tuple[TrainingTask, ...],
    plan: Callable[..., Sequence[Trial]],
    data: Data,
    by: Sequence[Complexity],
    most: int,
) -> Beside:
    """Measures of the stitched networks of the trials that ``plan(*networks)`` gives, on ``most`` score samples."""

    def make(stitched: Made, *networks: Network) -> pd.DataFrame:
        samples = data.score.first(min(most, len(data.score)))
        tables = []
        for trial in plan(*networks):
            labels: Mapping[str, object] = {
                "network_seed": trial.network_seed,
                "control": trial.control,
                **(joined := stitched(trial)).seam.labels,
            }
            tables.append(complexity(joined, samples, by, labels))
        return pd.concat(tables, ignore_index=True)

    return Beside(COMPLEXITIES, name, bases, make, (tuple(by), most, data.fit, data.score), plan)

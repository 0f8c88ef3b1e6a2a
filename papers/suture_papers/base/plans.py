"""The parts of studies: curves of the ledger's networks, and tables computed beside them.

A *pair* is a seed of the sender's network and one of the receiver's. Networks of one architecture and seed begin with
the same weights, so those of two seeds are joined. The pair's number (``number_pair``) is the ``network_seed`` of its
rows.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import final

import pandas as pd
import torch
from torch import Tensor

from suture import Data, Network, Samples, Seam, Trial, compare
from suture.core.stitches import Stitch
from suture.extend import (
    At,
    Settings,
    cuts_of,
    derive_seed,
    plan_seam,
    undisturbed,
)
from suture.fits import Fit
from suture.measurement.indices import Index, linear_cka
from suture.measurement.scores.scores import Accuracy, Score, estimate
from suture.measurement.trials.controls import Control
from suture_papers.base.cells import COMPLEXITIES, NETWORKS, SIMILARITIES, number_pair
from suture_papers.base.scale import PAPER, TINY, Scale
from suture_papers.base.study import Beside, Deferred, Made
from suture_papers.complexity import Complexity, complexity
from suture_papers.training import TrainingTask

BLOCKS = ("layer?.?",)
Scores = tuple[Score, ...]
ACCURACY: Scores = (Accuracy(),)
CHUNK = 256  #: images at a time
Pair = tuple[int, int]


def pair_seeds(scale: Scale, sender: str, receiver: str) -> list[Pair]:
    """Pair the seeds of two networks: of one kind all ordered pairs, of two kinds pairs without a network in common.

    Networks of two kinds are joined seed *i* to the next one, round in a circle.
    """
    if sender == receiver:
        return list(permutations(scale.seeds(sender), 2))
    return pair_in_circle(scale, sender, receiver)


def pair_in_circle(scale: Scale, sender: str, receiver: str = "") -> list[Pair]:
    """Pair each seed with the next one, round in a circle: no network twice on one side.

    Five networks of one kind make five pairs, which are independent only if one side of them is untrained: else each
    network is in two of them, and the interval is 1.6 times that of five disjoint pairs (benchmarks/evidence.py); two
    circles have less (``in_circles``).
    """
    starts, ends = scale.seeds(sender), scale.seeds(receiver or sender)
    if len(ends) == 1:
        return [(starts[0], ends[0])]
    return [(seed, ends[(i + 1) % len(ends)]) for i, seed in enumerate(starts)][: len(ends)]


def in_circles(seeds: Sequence[int], steps: Sequence[int] = (1, 2)) -> list[Pair]:
    """Join each of some networks of one kind to those so many places on, round in circles.

    Two circles of five have intervals of 0.8 times the width of one, all twenty pairs of 0.7 (benchmarks/evidence.py).
    """
    return [(seed, seeds[(i + step) % len(seeds)]) for step in steps for i, seed in enumerate(seeds)]


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
    """Return two networks whose names tell them apart."""
    return sender, rename(receiver, f"another {receiver.name}") if sender.name == receiver.name else receiver


def find_cuts(network: Network, patterns: Sequence[str]) -> list[str]:
    """Return the names of a network's cuts that suit patterns, from input to output."""
    return list(cuts_of([network], tuple(patterns))[network.name])


def thin(scale: Scale, at: Sequence[At]) -> list[At]:
    """Return the seams of a scale: all of them, or at tiny scale the first, the middle and the last."""
    if scale.name != TINY or len(at) <= 3:
        return list(at)
    return [at[0], at[len(at) // 2], at[-1]]


Joined = tuple[At, Stitch | None]
"""A seam and its stitch, or none for the one that the shapes suggest."""

Cuts = Sequence[str] | Sequence[Joined] | Callable[[Network, Network], Sequence[At]]
"""Patterns of the receiver's cuts, seams with their stitches, or what gives the seams of two networks."""

Joining = Callable[[Network, Network], Sequence[Joined]]


def join_at(scale: Scale, cuts: Cuts, stitch: Stitch | None = None) -> Joining:
    """Return a function that finds the seams of two networks; at tiny scale three, unless seams are listed."""

    def find(a: Network, b: Network) -> Sequence[Joined]:
        if callable(cuts):
            return [(at, stitch) for at in thin(scale, cuts(a, b))]
        patterns = [cut for cut in cuts if isinstance(cut, str)]
        seams = [cut for cut in cuts if not isinstance(cut, str)]
        return seams or [(at, stitch) for at in thin(scale, find_cuts(b, patterns))]

    return find


@final
@dataclass(frozen=True)
class FitAtSeams:
    """A fit at some seams of a pair of networks.

    ``controls`` are planned beside the plain trials, or with ``only`` in their place; ``seeds`` is how many stitches
    each seam gets.
    """

    fit: Fit
    seams: Joining | Sequence[Joined]
    controls: Sequence[Control] = ()
    only: bool = False
    seeds: int = 1


def plan_runs(
    a: Network, b: Network, number: int, data: Data, runs: Sequence[FitAtSeams], scores: Scores
) -> list[Trial]:
    """Plan several fits of one pair of networks, one after the other; ``number`` is their unit."""
    trials: list[Trial] = []
    for run in runs:
        for at, stitch in run.seams(a, b) if callable(run.seams) else run.seams:
            settings = Settings(stitch, run.fit, scores, tuple(run.controls), run.seeds, number)
            # A baseline has a fit of its own, by which the first run has measured it already.
            trials += [
                trial
                for trial in plan_seam(Seam.at(a, b, at), data, settings)
                if (trial.control or not run.only) and (run is runs[0] or trial.fit == run.fit)
            ]
    return trials


def plan_pair(
    number: int,
    bases: Sequence[TrainingTask],
    data: Data,
    runs: Sequence[FitAtSeams],
    scores: Scores = ACCURACY,
    names: tuple[str, str] | None = None,
) -> Deferred:
    """Plan several fits of a pair that is yet to be trained, or of one network with itself.

    ``names`` are the names of sender and receiver.
    """

    def make(a: Network, b: Network | None = None) -> list[Trial]:
        if b is None:
            return plan_runs(a, a, number, data, runs, scores)
        a, b = (rename(a, names[0]), rename(b, names[1])) if names is not None else tell_apart(a, b)
        return plan_runs(a, b, number, data, runs, scores)

    return Deferred(tuple(bases), make)


def plan_curves(
    scale: Scale,
    sender: str,
    receiver: str,
    data: Data,
    *,
    cuts: Cuts = BLOCKS,
    controls: Sequence[Control] = (),
    also: Sequence[Control] = (),
    only: bool = False,
    published: Fit | None = None,
    sample: Sequence[int] = (0, 3, 6),
    stitch: Stitch | None = None,
    scores: Scores = ACCURACY,
    seeds: Sequence[Pair] | None = None,
    names: tuple[str, str] | None = None,
    alike: bool | None = None,
    every: bool = False,
) -> list[Deferred]:
    """Plan curves of all pairs of two networks, at some cuts.

    ``controls`` go with the first pair, ``also`` with every pair; with ``only`` they take the place of the plain
    trials. The ``published`` fit takes the seams numbered in ``sample``, of the first pair, plain; at the paper's scale
    it takes every seam of every pair, with the controls of ``also``, and with ``every`` those of every pair. ``names``
    are the names of sender and receiver; they are ``alike``, so that one network may be both, if they have one name in
    the ledger, unless told otherwise.
    """
    seams = join_at(scale, cuts, stitch)
    whole = scale.name == PAPER

    def pick(a: Network, b: Network) -> Sequence[Joined]:
        return [one for i, one in enumerate(seams(a, b)) if whole or i in sample]

    made = []
    for place, (start, end) in enumerate(seeds if seeds is not None else pair_seeds(scale, sender, receiver)):
        number = number_pair(start, end, alike if alike is not None else sender == receiver or start == end)
        runs = [FitAtSeams(scale.fit, seams, (*also, *(controls if place == 0 else ())), only)]
        if published is not None and (whole or every or place == 0):
            runs.append(FitAtSeams(published, pick, also if whole or only else (), only))
        bases = (scale.base(sender, start), scale.base(receiver, end))
        made.append(plan_pair(number, bases, data, runs, scores, names))
    return made


def plan_accuracy(name: str, base: TrainingTask, on: Samples, number: int) -> Beside:
    """Measure a network by itself on samples: one row, in which it is the sender and the receiver."""

    def make(stitched: Made, network: Network) -> pd.DataFrame:
        return pd.DataFrame([{"network_seed": number, **measure_accuracy(network, on)}])

    return Beside(NETWORKS, name, (base,), make, (on,))


def measure_accuracy(network: Network, on: Samples) -> dict[str, object]:
    """Return the accuracy of a network, a fraction, with its interval over test images, as a row."""
    found = estimate(Accuracy(), Accuracy().per_sample(predict(network, on), on.labels), seed=0)
    names = {"name": network.name, "sender": network.name, "receiver": network.name, "score_data": on.name}
    return names | {"accuracy": found.value, "low": found.low, "high": found.high, "unit": found.unit, "n": found.n}


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
    """Compare the same pairs at equal cuts by an index; ``untrained`` takes the sender before its training."""
    made = []
    for start, end in seeds if seeds is not None else pair_seeds(scale, sender, receiver):
        number = number_pair(start, end, not untrained and (sender == receiver or start == end))

        def make(stitched: Made, a: Network, b: Network, number: int = number) -> pd.DataFrame:
            a, b = tell_apart(a, b)
            if untrained:
                a = rename(untrain(a), f"untrained {a.name}")
            rows = compare(a, b, data=data, by=tuple(by), cuts=tuple(cuts), permutations=0)
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
    """Measure the stitched networks of the trials that ``plan(*networks)`` gives, on ``most`` score samples."""

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

"""What the studies of hernandez2022 measure: every sender cut into every receiver cut, of pairs of networks.

The unit of an interval, ``network_seed``, is the number of the pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

from suture.core.network.network import Network
from suture.core.stitched import Seam
from suture.core.stitches import Conv, Stitch, stitch_for
from suture.data import Data
from suture.fits import Fit, LeastSquares, recipes
from suture.measurement.trials.controls import Control
from suture.measurement.trials.plans import Settings, plan_seam
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Deferred, TrainingTask
from suture.studies.base.plans import ACCURACY, BLOCKS, Pair, find_cuts, pair_seeds, tell_apart
from suture.studies.base.scale import PAPER, SMALL, TINY, Scale
from suture.studies.base.study import Part

STAGE_ENDS = ("layer1", "layer2", "layer3", "layer4")
Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = ((2, 2, 2, 2), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 1, 1))
"""At tiny and small scale. For the published fit each sends to the next one."""


def pair_in_circle(shapes: Sequence[Shape] = SHAPES) -> Sequence[tuple[Shape, Shape]]:
    """Each shape with the one that it sends to if the published fit is a sample."""
    return tuple(zip(shapes, (*shapes[1:], shapes[0]), strict=True))


@final
@dataclass(frozen=True)
class _Fitted:
    """A fit, the patterns of the cuts between which it is run, and the controls in place of the plain trials."""

    fit: Fit
    cuts: tuple[str, ...] = BLOCKS
    receiver_cuts: tuple[str, ...] | None = None
    only: tuple[Control, ...] = ()


def _plan_matrix(
    number: int, bases: tuple[TrainingTask, TrainingTask], data: Data, fits: Sequence[_Fitted], scale: Scale
) -> Deferred:
    """Return the matrices of a pair of networks, one by each of some fits; ``number`` is their unit."""

    def make(a: Network, b: Network) -> list[Trial]:
        a, b = tell_apart(a, b)
        made: list[Trial] = []
        for one in fits:
            starts, ends = _find_cuts(scale, a, one.cuts), _find_cuts(scale, b, one.receiver_cuts or one.cuts)
            for start, end in product(starts, ends):
                stitch = _choose_stitch(a.cuts.find(start).shape, b.cuts.find(end).shape)
                settings = Settings(stitch, one.fit, ACCURACY, one.only, network_seed=number)
                trials = plan_seam(Seam(a, b, start, end), data, settings)
                made += trials[1:] if one.only else trials
        return made

    return Deferred(bases, make)


def _find_cuts(scale: Scale, network: Network, patterns: tuple[str, ...]) -> list[str]:
    """Return the cuts of some patterns.

    At tiny scale ends of stages: three for all blocks, two of them for a sample.
    """
    if scale.name != TINY:
        return find_cuts(network, patterns)
    first, _, third, last = find_cuts(network, STAGE_ENDS)
    return [first, last] if patterns == STAGE_ENDS else [first, third, last]


def _choose_stitch(sender: tuple[int, ...], receiver: tuple[int, ...]) -> Stitch:
    """Return the paper's: no BatchNorm, whichever way the size changes."""
    plain = Conv(batchnorm=False)
    return plain if plain.accepts(sender, receiver) else stitch_for(sender, receiver)


def _publish(scale: Scale) -> _Fitted:
    """Return the authors' recipe, between the ends of the stages below the paper's scale."""
    cuts = BLOCKS if scale.name == PAPER else STAGE_ENDS
    return _Fitted(scale.published(recipes.hernandez2022, few=True), cuts)


def _network_of(scale: Scale, shape: Shape, seed: int) -> TrainingTask:
    """Return the network of a shape.

    The ledger's, or at the paper's scale one of the twelve that are none of the ledger's.
    """
    if shape in SHAPES:
        return scale.base(name_of(shape), seed)
    like = scale.base(name_of(SHAPES[1]), seed)
    blocks = ",".join(map(str, shape))
    return replace(like, source=like.source.replace("(1,1,1,1)", f"({blocks})"), name=name_of(shape))


def name_of(shape: Shape) -> str:
    """Return what the ledger calls the network of a shape, or would."""
    return "resnet18" if shape == SHAPES[0] else f"resnet({','.join(map(str, shape))})"


def _shapes_of(scale: Scale) -> Sequence[Shape]:
    if scale.name == TINY:
        return SHAPES[:2]
    return SHAPES if scale.name == SMALL else [(a, b, c, d) for a, b, c, d in product((1, 2), repeat=4)]


def _plan_across(scale: Scale, data: Data, equal: bool, published: bool = False) -> list[Part]:
    """Return all ordered pairs of shapes, a seed of one into the other seed of the other. Units come from 0 on.

    At small scale the published fit is run for a circle of the shapes alone.
    """
    circle = pair_in_circle()
    ordered = [(a, b) for a, b in product(_shapes_of(scale), repeat=2) if equal or a != b]
    made: list[Part] = []
    for number, (a, b) in enumerate(ordered):
        fits = [_Fitted(scale.fit)]
        if published and (scale.name != SMALL or (a, b) in circle):
            fits.append(_publish(scale))
        made.append(_plan_matrix(number, (_network_of(scale, a, 0), _network_of(scale, b, 1)), data, fits, scale))
    return made


def plan_triangles(scale: Scale) -> list[Part]:
    """Return all pairs of shapes; equal ones at the paper's scale alone, as its 256 pairs have them."""
    return _plan_across(scale, scale.data("cifar10", few=True), scale.name == PAPER, published=True)


def plan_diagonals(scale: Scale) -> list[Part]:
    """Equal shapes in both directions, after the unequal ones, which cost nothing in the store of hernandez-2."""
    data = scale.data("cifar10", few=True)
    made = _plan_across(scale, data, equal=False, published=scale.name == PAPER)
    fits = [_Fitted(scale.fit), *([_publish(scale)] if scale.name == PAPER else [])]
    for shape, (start, end) in product(_shapes_of(scale), ((0, 1), (1, 0))[: 1 if scale.name == TINY else 2]):
        bases = (_network_of(scale, shape, start), _network_of(scale, shape, end))
        made.append(_plan_matrix(len(made), bases, data, fits, scale))
    return made


def _pair_unequal_seeds(scale: Scale, sender: str, receiver: str) -> list[Pair]:
    """Return the pairs of unequal seeds, so that nothing begins with the same weights."""
    if sender == receiver:
        return pair_seeds(scale, sender, receiver, 1 if scale.name == TINY else None)
    return [pair for pair in product(scale.seeds(sender), scale.seeds(receiver)) if pair[0] != pair[1]]


def plan_larger(scale: Scale) -> list[Part]:
    """ResNet-18 ↔ ResNet-18 and ResNet-18 ↔ ResNet-34."""
    data = scale.data("cifar10", few=True)
    made: list[Part] = []
    for sender, receiver in (("resnet18", "resnet18"), ("resnet18", "resnet34"), ("resnet34", "resnet18")):
        for number, (start, end) in enumerate(_pair_unequal_seeds(scale, sender, receiver)):
            fits = [_Fitted(scale.fit, _cuts_of_blocks(scale))]
            if number == 0 or scale.name != SMALL:
                fits.append(_publish(scale))
            bases = (scale.base(sender, start), scale.base(receiver, end))
            made.append(_plan_matrix(number, bases, data, fits, scale))
    return made


def _cuts_of_blocks(scale: Scale) -> tuple[str, ...]:
    """Return the cuts of ResNet-18 and -34: at small scale the first block and the last of each stage."""
    return ("layer1.0", *STAGE_ENDS) if scale.name == SMALL else BLOCKS


def plan_untrained(scale: Scale, control: Control) -> list[Part]:
    """ResNet-18 → ResNet-18 with a control in place of every trial."""
    data = scale.data("cifar10", few=True)
    made: list[Part] = []
    for number, (start, end) in enumerate(pair_seeds(scale, "resnet18", "resnet18", 1 if scale.name == TINY else None)):
        fits = [_Fitted(scale.fit, _cuts_of_blocks(scale), only=(control,))]
        if number == 0 or scale.name != SMALL:
            fits.append(replace(_publish(scale), only=(control,)))
        bases = (scale.base("resnet18", start), scale.base("resnet18", end))
        made.append(_plan_matrix(number, bases, data, fits, scale))
    return made


def plan_copies(scale: Scale) -> list[Part]:
    """Return the stitch trained on the task, and to copy, by the default and the published fits."""
    data = scale.data("cifar10", few=True)
    copying = scale.published(recipes.hernandez2022_copy, few=True)
    closest = LeastSquares(rescale=False)  # rescaled to the receiver's spread it is no longer the least error
    fits = (scale.fit, scale.published(recipes.hernandez2022, few=True), copying, closest)
    cuts = BLOCKS if scale.name == PAPER else STAGE_ENDS
    made: list[Part] = []
    for number, (start, end) in enumerate(pair_seeds(scale, "resnet18", "resnet18")):
        bases = (scale.base("resnet18", start), scale.base("resnet18", end))
        made.append(_plan_matrix(number, bases, data, [_Fitted(fit, cuts) for fit in fits], scale))
    return made

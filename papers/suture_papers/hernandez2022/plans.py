"""The plans of the studies of hernandez2022: every sender cut into every receiver cut, of pairs of networks.

A network's number in pairs is 20 × the place of its shape + its seed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

from suture import Data, Network
from suture.core.stitches import Conv, Stitch, stitch_for
from suture.fits import LeastSquares, Quick
from suture.measurement.trials.controls import Control
from suture_papers import recipes
from suture_papers.base.cells import number_pair
from suture_papers.base.plans import (
    BLOCKS,
    FitAtSeams,
    Joined,
    Joining,
    Pair,
    find_cuts,
    in_circles,
    pair_in_circle,
    plan_pair,
)
from suture_papers.base.scale import PAPER, SMALL, TINY, Scale
from suture_papers.base.study import Deferred, Part
from suture_papers.training import TrainingTask

STAGE_ENDS = ("layer1", "layer2", "layer3", "layer4")
Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = ((2, 2, 2, 2), (1, 1, 1, 1))
"""At tiny and small scale."""
EVERY: tuple[Shape, ...] = (
    *SHAPES,
    *((a, b, c, d) for a, b, c, d in product((1, 2), repeat=4) if len({a, b, c, d}) > 1),
)
"""The 16 shapes of the paper."""


def cross(scale: Scale, cuts: tuple[str, ...] = BLOCKS) -> Joining:
    """Return a function that joins every cut of the sender to every cut of the receiver."""

    def find(a: Network, b: Network) -> list[Joined]:
        pairs = product(_find_cuts(scale, a, cuts), _find_cuts(scale, b, cuts))
        return [((s, r), _choose_stitch(a.cuts.find(s).shape, b.cuts.find(r).shape)) for s, r in pairs]

    return find


def _find_cuts(scale: Scale, network: Network, patterns: tuple[str, ...]) -> list[str]:
    """Return the cuts of some patterns.

    At tiny scale ends of stages: three for all blocks, two of them for a sample.
    """
    if scale.name != TINY:
        return find_cuts(network, patterns)
    first, _, third, last = find_cuts(network, STAGE_ENDS)
    return [first, last] if patterns == STAGE_ENDS else [first, third, last]


def _choose_stitch(sender: tuple[int, ...], receiver: tuple[int, ...]) -> Stitch:
    """Return the paper's stitch: no BatchNorm, whichever way the size changes."""
    plain = Conv(batchnorm=False)
    return plain if plain.accepts(sender, receiver) else stitch_for(sender, receiver)


def _plan_matrix(
    scale: Scale,
    number: int,
    bases: tuple[TrainingTask, TrainingTask],
    published: bool,
    cuts: tuple[str, ...] = BLOCKS,
    only: tuple[Control, ...] = (),
) -> Deferred:
    """Plan the matrices of a pair of networks; ``number`` is their unit, ``only`` are controls in the trials' place.

    The ``published`` fit is the authors' recipe, between the ends of the stages below the paper's scale.
    """
    runs = [FitAtSeams(scale.fit, cross(scale, cuts), only, bool(only))]
    if published:
        ends = cross(scale, BLOCKS if scale.name == PAPER else STAGE_ENDS)
        runs.append(FitAtSeams(scale.published(recipes.hernandez2022, whole=True), ends, only, bool(only)))
    return plan_pair(number, bases, data_of(scale), runs)


def data_of(scale: Scale) -> Data:
    """Return the data that fit and score the cells of a matrix."""
    return scale.data("cifar10", few=True)


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
    """Return the ledger's name for the network of a shape, whether the ledger has it or not."""
    return "resnet18" if shape == SHAPES[0] else f"resnet({','.join(map(str, shape))})"


def _shapes_of(scale: Scale) -> Sequence[Shape]:
    return EVERY if scale.name == PAPER else SHAPES


def _plan_pair(
    scale: Scale,
    sender: tuple[Shape, int],
    receiver: tuple[Shape, int],
    published: bool,
    cuts: tuple[str, ...] = BLOCKS,
) -> Deferred:
    """Plan the matrix of two networks, each given by its shape and its seed."""
    start, end = (20 * EVERY.index(shape) + seed for shape, seed in (sender, receiver))
    bases = (_network_of(scale, *sender), _network_of(scale, *receiver))
    return _plan_matrix(scale, number_pair(start, end), bases, published, cuts)


def plan_triangles(scale: Scale, published: bool = True) -> list[Part]:
    """Plan all ordered pairs of unequal shapes: of each two networks of two shapes both directions, and no others.

    So the networks fall into as many groups as there are seeds. At the paper's scale the 256 pairs have two networks of
    each shape, and equal shapes are among them. Below it, the ``published`` fit is run one way.
    """
    pairs = pair_in_circle(scale, *map(name_of, SHAPES))[: None if scale.name == SMALL else 1]
    made: list[Part] = []
    for (place, a), (other, b) in product(enumerate(_shapes_of(scale)), repeat=2):
        if place == other and scale.name != PAPER:
            continue
        for first, second in pairs:
            start, end = (first, second) if place <= other else (second, first)
            both = published and (scale.name == PAPER or place < other)
            cuts = STAGE_ENDS if scale.name == SMALL else BLOCKS
            made.append(_plan_pair(scale, (a, start), (b, end), both, cuts))
    return made


def plan_diagonals(scale: Scale) -> list[Part]:
    """Plan equal shapes beside the unequal ones of hernandez-2: at small scale their networks in two circles."""
    cuts = STAGE_ENDS if scale.name == SMALL else BLOCKS
    made = plan_triangles(scale, published=scale.name == PAPER)
    seeds = scale.seeds(name_of(SHAPES[0]))
    for shape in _shapes_of(scale):
        circles = (1, 2) if shape == SHAPES[0] else (1,)  # the second shape's are those of hernandez-triangle
        for start, end in in_circles(seeds, circles) if scale.name == SMALL else permutations(seeds[:2], 2):
            made.append(_plan_pair(scale, (shape, start), (shape, end), scale.name == PAPER, cuts))
    return made


def _plan_resnets(
    scale: Scale,
    sender: str,
    receiver: str,
    pairs: Sequence[Pair],
    only: tuple[Control, ...] = (),
    alike: bool = True,
) -> list[Part]:
    """Plan ResNet-18s and -34s, cut at small scale behind the first block and the last of each stage.

    They are not ``alike`` if a control makes one of two ResNet-18s another network.
    """
    cuts = ("layer1.0", *STAGE_ENDS) if scale.name == SMALL else BLOCKS
    made: list[Part] = []
    for place, (start, end) in enumerate(pairs):
        bases = (scale.base(sender, start), scale.base(receiver, end))
        number = number_pair(start, end, alike and sender == receiver)
        made.append(_plan_matrix(scale, number, bases, scale.name == PAPER or place == 0, cuts, only))
    return made


def plan_larger(scale: Scale) -> list[Part]:
    """Plan ResNet-18 ↔ ResNet-18 and ↔ ResNet-34, of unequal seeds, so that none begin with the same weights."""
    made = _plan_resnets(scale, "resnet18", "resnet18", pair_in_circle(scale, "resnet18"))
    for sender, receiver in (("resnet18", "resnet34"), ("resnet34", "resnet18")):
        pairs = [pair for pair in product(scale.seeds(sender), scale.seeds(receiver)) if pair[0] != pair[1]]
        made += _plan_resnets(scale, sender, receiver, pairs)
    return made


def plan_untrained(scale: Scale, control: Control, trained: bool = False) -> list[Part]:
    """Plan ResNet-18 → ResNet-18 with a control in place of every trial; with ``trained``, the trials beside it.

    At small scale it is ResNet(1,1,1,1), by ``Quick`` at every cell and by the default fit at the four corners; the
    trained trials are those of hernandez-triangle.
    """
    if scale.name == SMALL:
        return _plan_small_untrained(scale, control, trained)
    pairs = pair_in_circle(scale, "resnet18")
    made = _plan_resnets(scale, "resnet18", "resnet18", pairs, (control,), alike=trained)
    return made + (_plan_resnets(scale, "resnet18", "resnet18", pairs) if trained else [])


def _plan_small_untrained(scale: Scale, control: Control, trained: bool) -> list[Part]:
    name, every, made = name_of(SHAPES[1]), cross(scale), list[Part]()
    ends = cross(scale, ("layer1", "layer4"))
    for place, (start, end) in enumerate(pair_in_circle(scale, name)):
        bases = (scale.base(name, start), scale.base(name, end))
        runs = [FitAtSeams(Quick(), every, (control,), only=True), FitAtSeams(scale.fit, ends, (control,), only=True)]
        if place == 0:
            recipe = scale.published(recipes.hernandez2022, whole=True)
            runs.append(FitAtSeams(recipe, every, (control,), only=True))
        made.append(plan_pair(number_pair(start, end, trained), bases, data_of(scale), runs))
        if trained:
            made.append(plan_pair(number_pair(start, end), bases, data_of(scale), [FitAtSeams(scale.fit, every)]))
    return made


def plan_copies(scale: Scale) -> list[Part]:
    """Plan stitches that are trained on the task, and to copy, by the default and the published fits."""
    published = [scale.published(recipe, whole=True) for recipe in (recipes.hernandez2022, recipes.hernandez2022_copy)]
    closest = LeastSquares(rescale=False)  # rescaled to the receiver's spread it is no longer the least error
    seams = cross(scale, BLOCKS if scale.name == PAPER else STAGE_ENDS)
    runs = [FitAtSeams(fit, seams) for fit in (scale.fit, *published, closest)]
    return [
        plan_pair(
            number_pair(start, end), (scale.base("resnet18", start), scale.base("resnet18", end)), data_of(scale), runs
        )
        for start, end in pair_in_circle(scale, "resnet18")
    ]

"""What the studies of hernandez2022 measure: every sender cut into every receiver cut, of pairs of networks.

The unit of an interval, ``network_seed``, is the number of the pair.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from suture.core.network.network import Network
from suture.core.stitches import Conv, Stitch, stitch_for
from suture.data import Data
from suture.fits import LeastSquares, recipes
from suture.measurement.trials.controls import Control
from suture.runs.runners import Deferred, TrainingTask
from suture.studies.base.plans import BLOCKS, FitAtSeams, Joined, Joining, Pair, find_cuts, pair_seeds, plan_pair
from suture.studies.base.scale import PAPER, SMALL, TINY, Scale
from suture.studies.base.study import Part

STAGE_ENDS = ("layer1", "layer2", "layer3", "layer4")
Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = ((2, 2, 2, 2), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 1, 1))
"""At tiny and small scale. For the published fit each sends to the next one."""


def pair_in_circle(shapes: Sequence[Shape] = SHAPES) -> Sequence[tuple[Shape, Shape]]:
    """Pair each shape with the one that it sends to if the published fit is a sample."""
    return tuple(zip(shapes, (*shapes[1:], shapes[0]), strict=True))


def _cross(scale: Scale, cuts: tuple[str, ...] = BLOCKS) -> Joining:
    """Return what joins every cut of the sender to every cut of the receiver."""

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
    runs = [FitAtSeams(scale.fit, _cross(scale, cuts), only, bool(only))]
    if published:
        ends = _cross(scale, BLOCKS if scale.name == PAPER else STAGE_ENDS)
        runs.append(FitAtSeams(scale.published(recipes.hernandez2022, few=True), ends, only, bool(only)))
    return plan_pair(number, bases, _data_of(scale), runs)


def _data_of(scale: Scale) -> Data:
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
    """Return what the ledger calls the network of a shape, or would."""
    return "resnet18" if shape == SHAPES[0] else f"resnet({','.join(map(str, shape))})"


def _shapes_of(scale: Scale) -> Sequence[Shape]:
    if scale.name == TINY:
        return SHAPES[:2]
    return SHAPES if scale.name == SMALL else [(a, b, c, d) for a, b, c, d in product((1, 2), repeat=4)]


def _plan_across(scale: Scale, equal: bool, published: bool) -> list[Part]:
    """Plan all ordered pairs of shapes, a seed of one into the other seed of the other. Units come from 0 on.

    Below the paper's scale the published fit is run for a circle of the shapes alone.
    """
    made: list[Part] = []
    for a, b in product(_shapes_of(scale), repeat=2):
        if equal or a != b:
            bases = (_network_of(scale, a, 0), _network_of(scale, b, 1))
            sampled = scale.name == PAPER or (a, b) in pair_in_circle()
            made.append(_plan_matrix(scale, len(made), bases, published and sampled))
    return made


def plan_triangles(scale: Scale) -> list[Part]:
    """Plan all pairs of shapes; equal ones only at the paper's scale, whose 256 pairs include them."""
    return _plan_across(scale, scale.name == PAPER, published=True)


def plan_diagonals(scale: Scale) -> list[Part]:
    """Plan equal shapes in both directions, after the unequal ones, which the store of hernandez-2 already has."""
    published = scale.name == PAPER
    made = _plan_across(scale, equal=False, published=published)
    for shape, (start, end) in product(_shapes_of(scale), ((0, 1), (1, 0))[: 1 if scale.name == TINY else 2]):
        bases = (_network_of(scale, shape, start), _network_of(scale, shape, end))
        made.append(_plan_matrix(scale, len(made), bases, published))
    return made


def _plan_resnets(
    scale: Scale, sender: str, receiver: str, pairs: Sequence[Pair], only: tuple[Control, ...] = ()
) -> list[Part]:
    """Plan ResNet-18s and -34s, cut at small scale behind the first block and the last of each stage."""
    cuts = ("layer1.0", *STAGE_ENDS) if scale.name == SMALL else BLOCKS
    made: list[Part] = []
    for number, (start, end) in enumerate(pairs):
        bases = (scale.base(sender, start), scale.base(receiver, end))
        made.append(_plan_matrix(scale, number, bases, scale.name == PAPER or number == 0, cuts, only))
    return made


def _pair_few_seeds(scale: Scale) -> list[Pair]:
    return pair_seeds(scale, "resnet18", "resnet18", 1 if scale.name == TINY else None)


def plan_larger(scale: Scale) -> list[Part]:
    """Plan ResNet-18 ↔ ResNet-18 and ↔ ResNet-34, of unequal seeds, so that none begin with the same weights."""
    made = _plan_resnets(scale, "resnet18", "resnet18", _pair_few_seeds(scale))
    for sender, receiver in (("resnet18", "resnet34"), ("resnet34", "resnet18")):
        pairs = [pair for pair in product(scale.seeds(sender), scale.seeds(receiver)) if pair[0] != pair[1]]
        made += _plan_resnets(scale, sender, receiver, pairs)
    return made


def plan_untrained(scale: Scale, control: Control) -> list[Part]:
    """Plan ResNet-18 → ResNet-18 with a control in place of every trial."""
    return _plan_resnets(scale, "resnet18", "resnet18", _pair_few_seeds(scale), (control,))


def plan_copies(scale: Scale) -> list[Part]:
    """Plan stitches that are trained on the task, and to copy, by the default and the published fits."""
    published = [scale.published(recipe, few=True) for recipe in (recipes.hernandez2022, recipes.hernandez2022_copy)]
    closest = LeastSquares(rescale=False)  # rescaled to the receiver's spread it is no longer the least error
    seams = _cross(scale, BLOCKS if scale.name == PAPER else STAGE_ENDS)
    runs = [FitAtSeams(fit, seams) for fit in (scale.fit, *published, closest)]
    return [
        plan_pair(number, (scale.base("resnet18", start), scale.base("resnet18", end)), _data_of(scale), runs)
        for number, (start, end) in enumerate(pair_seeds(scale, "resnet18", "resnet18"))
    ]

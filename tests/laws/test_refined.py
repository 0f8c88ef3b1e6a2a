"""The law of refinement: a descent moves within its family, can repair what is wrong, and never leaves.

Members are planted by hand with a fault, so that there is a known place to go: two units swapped, a rotation off by a
bit, a map of the right rank but wrong, scales that are off. Membership is read off what the stitch computes, by feeding
it basis vectors, not off its parameters.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from loops import each
from problems import affine, built, named, problem, side
from suture.core.stitches import AffineMap, Diagonal, LowRank, Orthogonal, Permutation
from suture.core.stitches.base import AffineStitch
from suture.fits import (
    SGD,
    Adam,
    Constant,
    Fit,
    FitReport,
    LeastSquares,
    MatchActivations,
    Problem,
    Random,
    SoftLabels,
    TaskLoss,
)

SIZE, RANK = 6, 2
SHAPES = [(SIZE,), (3, SIZE), (SIZE, 2, 2)]
FAMILIES = [Orthogonal(), Permutation(), LowRank(RANK), Diagonal()]


@dataclass(frozen=True, eq=False)
class Given(Fit):
    """Starts at a matrix, with no shift."""

    weight: Tensor

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        assert isinstance(problem.family, AffineStitch)
        ones = torch.ones(SIZE, dtype=torch.float64)
        [part] = problem.family.parts(stitch, problem.fit.activations)
        part.load(AffineMap(self.weight.double(), 0 * ones, 0 * ones, ones, ones))
        return FitReport()


def applied(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("oc,nc...->no...", weight, x) if x.ndim == 4 else x @ weight.T


def posed(family: AffineStitch, weight: Tensor, shape: tuple[int, ...], seed: int = 0, n: int = 512) -> Problem:
    """The receiver's features are ``weight`` times the sender's; its suffix tells four classes by all of them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn((n, *shape), generator=random)
    y = applied(x, weight)
    flat = nn.Linear(y[0].numel(), 4)
    with torch.no_grad():
        flat.weight.copy_(3 * torch.randn(flat.weight.shape, generator=random) / flat.weight.shape[1] ** 0.5)
        flat.bias.zero_()
    suffix = nn.Sequential(nn.Flatten(), flat)
    logits = suffix(y).detach()
    sides = [side(x[s], logits[s].argmax(1), y[s], logits[s]) for s in (slice(0, n // 2), slice(n // 2, n))]
    return problem(sides[0], sides[1], family, suffix)


def rotation(size: int = SIZE, seed: int = 0) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)))[0]


def permutation(size: int = SIZE, seed: int = 0) -> Tensor:
    return torch.eye(size)[torch.randperm(size, generator=torch.Generator().manual_seed(seed))]


def turned(weight: Tensor, angle: float) -> Tensor:
    """The first two units turned by an angle."""
    turn = torch.eye(len(weight))
    turn[:2, :2] = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return turn @ weight


def swapped(weight: Tensor, i: int, j: int) -> Tensor:
    wrong = weight.clone()
    wrong[[i, j]] = wrong[[j, i]]
    return wrong


def check_member(family: AffineStitch, stitch: nn.Module) -> np.ndarray:
    """Whether what a stitch computes is in its family; its matrix."""
    weight, bias = affine(stitch, SIZE)
    if isinstance(family, Orthogonal):
        np.testing.assert_allclose(weight.T @ weight, np.eye(SIZE), atol=1e-5)
    elif isinstance(family, Permutation):
        assert sorted(map(tuple, weight)) == sorted(map(tuple, np.eye(SIZE)))
        assert not bias.any()
    elif isinstance(family, LowRank):
        values = np.linalg.svd(weight, compute_uv=False)
        assert values[family.rank] < 1e-5 * values[0]
        assert values[family.rank - 1] > 1e-3 * values[0]
    else:
        assert np.array_equal(weight, np.diag(np.diag(weight)))
    return weight


TARGET = {Orthogonal(): rotation(), Permutation(): permutation(), Diagonal(): torch.arange(1.0, 1.0 + SIZE).diag()}
TARGET[LowRank(RANK)] = rotation()[:, :RANK] @ rotation(seed=1)[:RANK]
STARTS = {"random": Random(), "closed": LeastSquares(), "trained": TaskLoss(start=Random(), steps=5)}
STARTS["matched"] = MatchActivations(steps=5)
ROUGH = {"optimiser": Adam(0.1), "steps": 12, "check": 12, "patience": None}


CASES = [  # every family from every start in both ways, at one shape after another
    (family, SHAPES[number % len(SHAPES)], way, start)
    for number, (family, start, way) in enumerate(itertools.product(FAMILIES, STARTS, [TaskLoss, MatchActivations]))
]


@each(("family", "shape", "way", "start"), CASES)
def test_a_descent_moves_and_stays_in_its_family(family, shape, way, start):
    """At a large rate, on a target outside the family."""
    target = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    p = posed(family, target, shape)
    stitch = built(family, shape, shape)
    STARTS[start].fit(p, stitch)
    before = check_member(family, stitch)
    stitch = built(family, shape, shape)
    way(start=STARTS[start], **ROUGH).fit(p, stitch)
    after = check_member(family, stitch)
    if not isinstance(family, Permutation):  # which has nowhere to go by small steps
        assert np.abs(before - after).max() > 1e-2


@each("optimiser", [Adam(0.1), SGD(0.3)], ids=["Adam", "SGD"])
@each("family", FAMILIES, ids=str)
def test_a_long_and_rough_descent_does_not_wear_the_family_out(family, optimiser):
    """150 steps at a constant rate: errors of rounding do not add up."""
    p = posed(family, TARGET[family], (SIZE,))
    stitch = built(family, (SIZE,), (SIZE,))
    MatchActivations(optimiser=optimiser, schedule=Constant(), steps=150, check=150, patience=None).fit(p, stitch)
    check_member(family, stitch)


DESCENTS = {
    "task": TaskLoss(optimiser=SGD(0.1), check=20, steps=200),
    "match": MatchActivations(optimiser=Adam(0.05), check=20),
}


@each(("i", "j"), list(itertools.combinations(range(SIZE), 2)), few=3)
@each("way", DESCENTS)
def test_two_swapped_units_are_swapped_back(way, i, j):
    """By the task alone, and by the receiver's activations."""
    right = permutation()
    p = posed(Permutation(), right, (SIZE,))
    stitch = built(Permutation(), (SIZE,), (SIZE,))
    replace(DESCENTS[way], start=Given(swapped(right, i, j))).fit(p, stitch)
    assert np.array_equal(check_member(Permutation(), stitch), right.numpy())


@each(("seed", "shape"), list(enumerate(SHAPES)))
@each("way", DESCENTS)
def test_a_permutation_is_found_from_any_other(way, seed, shape):
    right = permutation(seed=seed)
    p = posed(Permutation(), right, shape, seed)
    stitch = built(Permutation(), shape, shape, seed)
    assert (affine(stitch, SIZE)[0] != right.numpy()).any()
    replace(DESCENTS[way], start=Random()).fit(p, stitch)
    assert np.array_equal(check_member(Permutation(), stitch), right.numpy())


@each("way", [TaskLoss, MatchActivations], ids=["task", "match"])
@each("shape", SHAPES, ids=named, few=1)
def test_a_rotation_off_by_a_bit_is_turned_back(shape, way):
    right, start = rotation(), turned(rotation(), 0.5)
    p = posed(Orthogonal(), right, shape)
    stitch = built(Orthogonal(), shape, shape)
    way(start=Given(start), check=20).fit(p, stitch)
    found = check_member(Orthogonal(), stitch)
    before, after = (np.abs(weight - right.numpy()).max() for weight in (start.numpy(), found))
    assert after < (0.3 if way is TaskLoss else 0.02) * before


@each("family", [LowRank(RANK), Diagonal()], ids=str)
@each("shape", SHAPES, ids=named, few=1)
def test_a_wrong_member_comes_closer_to_the_right_one(family, shape):
    right = TARGET[family]
    start = (torch.ones(SIZE).diag() if isinstance(family, Diagonal) else right.flip(0)).float()
    p = posed(family, right, shape)
    stitch = built(family, shape, shape)
    MatchActivations(start=Given(start), optimiser=Adam(0.1)).fit(p, stitch)
    found = check_member(family, stitch)
    assert np.abs(found - right.numpy()).max() < 0.05 * np.abs(start.numpy() - right.numpy()).max()


@each("targets", [None, SoftLabels(2.0)], ids=["hard", "soft"])
@each("family", FAMILIES, ids=str)
def test_a_refined_closed_form_does_not_do_worse_on_validation_data(family, targets):
    p = posed(family, TARGET[family], (SIZE,))
    more = {} if targets is None else {"targets": targets}
    report = TaskLoss(optimiser=Adam(0.5), steps=60, check=10, **more).fit(p, built(family, (SIZE,), (SIZE,)))
    losses = [point.validation_loss for point in report.curve]
    assert min(losses) <= losses[0]

"""A wider family that starts from a narrower one's solution: it does the same, and never ends worse.

The losses are taken here, by hand, on all samples of each side.
"""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from test_least_squares import Deep
from torch import nn

from loops import each
from problems import affine, built, matching, named, problem, side
from suture.common.errors import FitError, ShapeError
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Identity,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    Shape,
    Stitch,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    TwoLayer,
    UpsampledConv,
)
from suture.fits import (
    SGD,
    Adam,
    Constant,
    Fit,
    FitReport,
    LeastSquares,
    MatchActivations,
    Narrower,
    Problem,
    Random,
    Side,
    TaskLoss,
)

VECTOR, TOKENS, MAPS = (6,), (5, 6), (6, 4, 4)
CHAINS: list[tuple[Shape, Shape, list[Stitch]]] = [
    (VECTOR, VECTOR, [Identity(), Permutation(), Orthogonal(), Linear()]),
    (TOKENS, TOKENS, [Permutation(), Orthogonal(), Linear(), TokensToTokens(), FullLinear()]),
    (MAPS, MAPS, [Permutation(), Orthogonal(), Conv(), Conv(3), Conv(5), FullLinear()]),
    (VECTOR, VECTOR, [Diagonal(), Linear()]),
    (MAPS, MAPS, [Diagonal(), Conv(batchnorm=False), Conv(3, batchnorm=False), FullLinear()]),
    (VECTOR, (5,), [LowRank(2), LowRank(4), Linear(), FullLinear()]),
    (VECTOR, (5,), [LowRank(2), TwoLayer(width=4)]),
    (TOKENS, (5, 7), [Linear(), TwoLayer()]),
    (MAPS, (5, 4, 4), [LowRank(2), LowRank(4), Conv(), Conv(batchnorm=False)]),
    (MAPS, (3, 2, 2), [StridedConv(), FullLinear()]),
    (MAPS, (3, 5, 3), [StridedConv(batchnorm=True), StridedConv(), FullLinear()]),
    (VECTOR, (3, 2, 2), [UpsampledConv(), FullLinear()]),
    (MAPS, (5,), [ConvLinear(channels=2), ConvLinear(), FullLinear()]),
    (TOKENS, (5,), [ConvLinear(), FullLinear()]),
    (MAPS, TOKENS, [MapsToTokens(), FullLinear()]),
    (TOKENS, (3, 2, 2), [TokensToMaps(), FullLinear()]),
    ((5, 16, 16), (2, 16, 16), [Conv(), FullLinear()]),  # more features than its closed form takes
]
STEPS = [
    (sender, receiver, narrow, wide) for sender, receiver, chain in CHAINS for narrow, wide in itertools.pairwise(chain)
]


def posed(sender: Shape, receiver: Shape, n: int = 400, seed: int = 0) -> Problem:
    """Features that predict each other in part, and classes that the receiver tells from its own."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn((n, *sender), generator=random)
    way = torch.randn(math.prod(sender), math.prod(receiver), generator=random) / math.prod(sender) ** 0.5
    y = x.flatten(1) @ way + 0.5 * torch.randn((n, math.prod(receiver)), generator=random) + 0.3
    torch.manual_seed(seed)
    suffix = nn.Sequential(nn.Flatten(), nn.Linear(y.shape[1], 3))
    suffix[1].weight.data.mul_(4)
    with torch.no_grad():
        logits = suffix(y)
    y = y.reshape(n, *receiver)
    parts = (slice(0, n // 2), slice(n // 2, n))
    sides = [side(x[part], logits[part].argmax(1), y[part], logits[part]) for part in parts]
    return problem(sides[0], sides[1], Linear(), suffix)


def task(p: Problem, s: Side, stitch: nn.Module) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(p.suffix(stitch.eval()(s.activations)), s.labels))


def match(p: Problem, s: Side, stitch: nn.Module) -> float:
    with torch.no_grad():
        return float((stitch.eval()(s.activations) - s.expected()).square().mean())


def alone(p: Problem, family: Stitch, sender: Shape, receiver: Shape, by=LeastSquares()) -> nn.Module:  # noqa: B008
    stitch = built(family, sender, receiver)
    by.fit(replace(p, family=family), stitch)
    return stitch.eval()


@each(("sender", "receiver", "narrow", "wide"), STEPS, ids=named)
def test_what_is_contained_is_copied(sender, receiver, narrow, wide):
    """The wider stitch then does what the narrower one does, for images that neither has seen as well."""
    p = replace(posed(sender, receiver), family=wide)
    stitch = built(wide, sender, receiver)
    Narrower(narrow).fit(p, stitch)
    other = alone(p, narrow, sender, receiver)
    new = 2 * torch.randn((50, *sender), generator=torch.Generator().manual_seed(9)) + 0.5
    with torch.no_grad():
        for x in (p.fit.activations, p.validation.activations, new):
            wanted, found = other(x), stitch.eval()(x)
            assert float((found - wanted).square().mean()) < 1e-8 * float(wanted.var())


RATES = {"usual": Adam(1e-2), "large": Adam(1.0), "absurd": Adam(100.0)}


@pytest.mark.slow
@each("rate", RATES)
@each(("sender", "receiver", "narrow", "wide"), STEPS, ids=named)
def test_a_wider_family_never_ends_worse(sender, receiver, narrow, wide, rate):
    """Neither on the data it is fitted to nor on those that choose, whatever the rate."""
    p = replace(posed(sender, receiver), family=wide)
    other = alone(p, narrow, sender, receiver)
    for way, loss in ((TaskLoss, task), (MatchActivations, match)):
        stitch = built(wide, sender, receiver)
        way(start=Narrower(narrow), optimiser=RATES[rate], steps=12, check=4, retries=1).fit(p, stitch)
        for s in (p.fit, p.validation):
            assert loss(p, s, stitch) <= loss(p, s, other) * (1 + 1e-5)


@each("wide", [Linear(), LowRank(4)], ids=str)
def test_it_ends_better_where_there_is_more_to_gain(wide):
    p = replace(posed(VECTOR, VECTOR), family=wide)
    narrow = LowRank(1)
    stitch = built(wide, VECTOR, VECTOR)
    TaskLoss(start=Narrower(narrow)).fit(p, stitch)
    other = alone(p, narrow, VECTOR, VECTOR)
    assert task(p, p.fit, stitch) < 0.8 * task(p, p.fit, other)


@dataclass(frozen=True)
class Unheld(Fit):
    """The same start, of which a descent does not know that it is a floor."""

    start: Narrower

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        return self.start.fit(problem, stitch)


def test_the_start_comes_back_where_the_best_check_is_worse_on_the_fit_data():
    """Few validation data and rough steps: what they like best is now and then worse for the fit data."""
    worse = []
    for seed in range(4):
        p = replace(posed(VECTOR, VECTOR, seed=seed), family=Linear())
        p = replace(p, validation=side(p.validation.activations[:6], p.validation.labels[:6]))
        start = Narrower(Linear(), by=TaskLoss(steps=100, patience=None))
        before, held, unheld = (built(Linear(), VECTOR, VECTOR) for _ in range(3))
        start.fit(p, before)
        rough = TaskLoss(start=start, optimiser=SGD(0.3), schedule=Constant(), steps=20, batch=4, check=1, patience=20)
        rough.fit(p, held)
        replace(rough, start=Unheld(start)).fit(p, unheld)
        first, *ends = (task(p, p.fit, stitch) for stitch in (before, held, unheld))
        assert ends[0] <= first * (1 + 1e-6)
        worse.append(ends[1] > first * 1.01)
    assert any(worse), "there is something to hold"


def test_the_solution_may_come_by_any_fit():
    p = replace(posed(VECTOR, VECTOR), family=Linear())
    by = TaskLoss(start=Random(), steps=20, check=5)
    torch.manual_seed(0)
    stitch = Linear().build(VECTOR, VECTOR)
    torch.manual_seed(1)
    report = Narrower(Orthogonal(), by=by).fit(p, stitch)
    other = alone(p, Orthogonal(), VECTOR, VECTOR, by)  # drawn from seed 0
    torch.manual_seed(1)
    same = Orthogonal().build(VECTOR, VECTOR)
    by.fit(replace(p, family=Orthogonal()), same)
    assert report.steps == 20
    assert len(report.curve) == 5
    assert abs(affine(stitch, 6)[0] - affine(same, 6)[0]).max() < 1e-5
    assert abs(affine(stitch, 6)[0] - affine(other, 6)[0]).max() > 1e-2


def test_the_steps_and_curves_of_both_are_counted():
    p = replace(posed(VECTOR, VECTOR), family=Linear())
    start = Narrower(LowRank(2), by=TaskLoss(steps=6, check=3, patience=None))
    report = TaskLoss(start=start, steps=8, check=4, patience=None).fit(p, built(Linear(), VECTOR, VECTOR))
    assert report.steps == 14
    assert [point.step for point in report.curve] == [0, 3, 6, 6, 10, 14]


def test_a_family_that_is_not_narrower_gives_the_closest_member():
    """The rotation closest to what a linear stitch gives, by Procrustes on all of it."""
    p = replace(posed(VECTOR, VECTOR), family=Orthogonal())
    stitch = built(Orthogonal(), VECTOR, VECTOR)
    Narrower(Linear()).fit(p, stitch)
    x, y = p.fit.activations.double(), alone(p, Linear(), VECTOR, VECTOR)(p.fit.activations).detach().double()
    left, _, right = torch.linalg.svd((y - y.mean(0)).T @ (x - x.mean(0)))
    assert abs(affine(stitch, 6)[0] - (left @ right).numpy()).max() < 1e-5


@each(("sender", "narrow", "wide"), [((10, 8), Linear(), FullLinear()), ((80,), Orthogonal(), Linear())], ids=named)
def test_fewer_samples_than_features_still_give_the_same_map_everywhere(sender, narrow, wide):
    """80 features, 50 samples: for others, too, the wider stitch must do what the narrower one does."""
    x = torch.randn((100, *sender), generator=torch.Generator().manual_seed(0))
    y = torch.randn((100, *sender), generator=torch.Generator().manual_seed(1)) + x
    p = matching(wide, x, y, held=50)
    stitch, other = built(wide, sender, sender), alone(p, narrow, sender, sender)
    Narrower(narrow).fit(p, stitch)
    new = torch.randn((50, *sender), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert float((stitch(new) - other(new)).abs().max()) < 1e-3


def test_a_family_that_is_not_affine_cannot_start_from_another():
    p = replace(posed(VECTOR, VECTOR), family=Deep())
    with pytest.raises(FitError, match=r"Deep\(\) cannot start from Linear\(\): it is not affine"):
        Narrower(Linear()).fit(p, Deep().build(VECTOR, VECTOR))


def test_another_that_cannot_join_the_shapes_is_refused_with_both():
    p = replace(posed(MAPS, VECTOR), family=FullLinear())
    words = r"Permutation\(\) cannot join the sender's maps 6×4×4 to the receiver's vector 6; .*families that can: "
    with pytest.raises(ShapeError, match=words):
        Narrower(Permutation()).fit(p, built(FullLinear(), MAPS, VECTOR))


def test_it_is_spelt_as_the_call_that_makes_it():
    fit = TaskLoss(start=Narrower(LowRank(2), by=MatchActivations(steps=5)))
    assert str(fit) == "TaskLoss(start=Narrower(family=LowRank(rank=2), by=MatchActivations(steps=5)))"


@each("batchnorm", [True, False])
@each(("small", "large"), [(1, 3), (3, 3), (3, 5)])
def test_a_kernel_that_has_descended_is_copied_as_it_is(small, large, batchnorm):
    """Its BatchNorm then no longer has the channels' means, and zeros beyond the border stand for something else."""
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, channels, 6, 6, generator=random).relu() for channels in (6, 5))
    narrow, wide = (built(Conv(kernel, batchnorm), (6, 6, 6), (5, 6, 6)).eval() for kernel in (small, large))
    for module in narrow.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                nn.init.uniform_(tensor, 0.5, 2)

    @dataclass(frozen=True)
    class Given(Fit):
        def fit(self, problem, stitch):
            stitch.load_state_dict(narrow.state_dict())
            return FitReport()

    Narrower(Conv(small, batchnorm), by=Given()).fit(matching(Conv(large, batchnorm), x, y), wide)
    torch.testing.assert_close(wide.eval()(x), narrow(x), rtol=1e-5, atol=1e-5)

"""The family that bends: where it starts, what it reaches and no linear map does, and what is refused of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import suture
from loops import each
from problems import built, matching, named, problem, side
from suture import Seam, Stitched
from suture.common.errors import FitError, FoldError
from suture.common.names import make
from suture.core.folding import read_feature_map
from suture.core.network.segments import Frozen
from suture.core.stitches import Conv, FullLinear, Linear, LowRank, Shape, Stitch, TwoLayer
from suture.fits import Adam, Converged, LeastSquares, Logistic, MatchActivations, Narrower
from suture.fits.least_squares import STRAIGHT
from trained import digits, hybrids

EXACT = LeastSquares(ridges=(1e-12,), rescale=False)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@each(
    ("family", "straight", "sender", "receiver"),
    [
        (TwoLayer(), Linear(), (5,), (3,)),
        (TwoLayer(), Linear(), (4, 5), (4, 7)),
        (TwoLayer(width=17), Linear(), (5,), (5,)),
        (TwoLayer(), Conv(batchnorm=False), (5, 3, 3), (3, 3, 3)),
        (TwoLayer(width=4), LowRank(2), (5,), (4,)),
        (TwoLayer(width=5), LowRank(2), (5, 3, 3), (4, 3, 3)),
    ],
    ids=named,
)
@each("fit", [EXACT, LeastSquares()])
def test_it_starts_as_the_best_affine_member(
    family: Stitch, straight: Stitch, sender: Shape, receiver: Shape, fit: LeastSquares
) -> None:
    x, y = 3 * drawn(200, *sender) + 2, drawn(200, *receiver, seed=1) + 7
    mixed = y + 0.5 * x.flatten(1).mean(1).reshape(-1, *[1] * len(receiver))
    stitch, other = built(family, sender, receiver), built(straight, sender, receiver)
    report = fit.fit(matching(family, x, mixed), stitch)
    assert fit.fit(matching(straight, x, mixed), other).notes == ()
    assert report.notes == (STRAIGHT,)
    with torch.no_grad():
        torch.testing.assert_close(stitch(10 * x), other(10 * x), rtol=1e-4, atol=1e-4)


def test_it_reaches_what_no_linear_map_does() -> None:
    x = drawn(600, 4)
    way = drawn(4, 4, seed=1)
    y = (x @ way).abs()
    fit = MatchActivations(start=LeastSquares(), optimiser=Adam(0.03), steps=800, patience=None, check=800, batch=200)
    family = TwoLayer(width=16)
    stitch, linear = built(family, (4,), (4,)), built(Linear(), (4,), (4,))
    fit.fit(matching(family, x, y, held=200), stitch)
    EXACT.fit(matching(Linear(), x, y, held=200), linear)
    with torch.no_grad():
        new = drawn(500, 4, seed=2)
        wanted = (new @ way).abs()
        off, straight = (float((s(new) - wanted).square().mean() / wanted.var()) for s in (stitch, linear))
    assert straight > 0.9
    assert off < 0.05


def bent_problem(family: Stitch):
    """Two classes, that the sender's two features tell by whether their signs agree, which no linear map shows."""
    x = drawn(1200, 2)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    suffix = nn.Linear(2, 2)
    with torch.no_grad():
        suffix.weight.copy_(torch.tensor([[0.0, -8.0], [0.0, 8.0]]))
        suffix.bias.zero_()
    own = torch.stack([drawn(1200, seed=3), 2.0 * labels - 1], 1)
    sides = [side(x[part], labels[part], own[part]) for part in (slice(0, 900), slice(900, 1200))]
    return problem(*sides, family, suffix)


def test_the_default_fit_goes_on_from_its_closed_form() -> None:
    right = {}
    for family in (Linear(), TwoLayer(width=12)):
        posed = bent_problem(family)
        stitch = built(family, (2,), (2,))
        Converged(cap=512).fit(posed, stitch)
        with torch.no_grad():
            given = posed.suffix(stitch(posed.validation.activations))
        right[family] = float((given.argmax(1) == posed.validation.labels).float().mean())
    assert right[Linear()] < 0.7
    assert right[TwoLayer(width=12)] > 0.95


def test_wider_families_that_are_affine_copy_no_bend() -> None:
    """``FullLinear`` reads an affine stitch off; of this one it takes the closest member."""
    x = drawn(400, 3)
    narrow = MatchActivations(steps=150, check=50, optimiser=Adam(0.03))
    stitch = built(FullLinear(), (3,), (3,))
    y = x.abs() + 0.5 * x
    Narrower(TwoLayer(width=12), by=narrow).fit(matching(FullLinear(), x, y), stitch)
    with torch.no_grad():
        design = torch.cat([x, torch.ones(len(x), 1)], 1)
        best = design @ torch.linalg.lstsq(design, y).solution
        assert float((stitch(x) - best).square().mean() / best.var()) < 0.05


def test_a_fit_for_one_affine_map_refuses_it() -> None:
    posed = replace(bent_problem(TwoLayer()), suffix=Frozen([]))
    with pytest.raises(FitError, match=r"by one affine map of a sample, .* has TwoLayer"):
        Logistic().fit(posed, built(TwoLayer(), (2,), (2,)))


def test_folding_refuses_it_with_the_reason_however_far_the_bend() -> None:
    a, b = hybrids()
    family = TwoLayer()
    stitch = family.build(a.cuts.find("hidden").shape, b.cuts.find("hidden").shape)
    with torch.no_grad():
        stitch[0].bias.add_(1e6)  # all units are on one side for whatever a probe would send
    stitched = Stitched(Seam(a, b, "hidden", "hidden"), stitch.eval(), family)
    said = suture.can_fold(stitched)
    assert not said
    assert str(said) == "no: the stitch has a nonlinearity (ReLU), and only an affine map folds"
    with pytest.raises(FoldError, match=r"nonlinearity \(ReLU\).* keep the stitched network"):
        stitched.folded()
    assert read_feature_map(nn.Linear(3, 2), (3,), (2,)).weight.shape == (2, 3)


def test_it_is_measured_like_any_other_and_named_on_the_command_line() -> None:
    a, b = hybrids()
    assert make("stitch", "two-layer,width=8") == TwoLayer(width=8)
    few = digits().limited(fit=200, score=100)
    plan = suture.curve(a, b, at=["hidden"], data=few, stitch="two-layer,width=8", fit="quick,steps=40", controls=())
    table = suture.run(plan, on=suture.Local(workers=1))
    assert (set(table["status"]), set(table["stitch"])) == ({"ok"}, {"TwoLayer(width=8)"})

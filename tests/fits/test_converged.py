"""The converging fit: it comes as near the best as a much longer run, knows when, and does not depend on its cap."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from test_fast import posed
from torch import nn

from loops import each
from problems import SOME, built, named, planted, problem, real, state, validation_loss
from suture.common.errors import FitError
from suture.core.stitches import Conv, Identity, Linear
from suture.fits import Converged, Fit, FitReport, LeastSquares, Quick, TaskLoss, converged
from suture.fits.optimisers import Adam

SEAMS = [("conv", Conv()), ("embed", Linear())]


def error(p, stitch):
    """The share of validation images that a stitched network names wrong."""
    with torch.no_grad():
        out = p.suffix(stitch.eval()(p.validation.activations))
    return float((out.argmax(1) != p.validation.labels).double().mean())


# --- laws -------------------------------------------------------------------------------------------------------------


@each(("scale", "mean"), [(1.0, 0.0), (1e-3, 0.0), (1e3, 0.0), (1.0, 30.0)])
def test_it_finds_what_is_planted_whatever_the_sender_s_units(scale, mean):
    p, stitch, accuracy = planted(scale=scale, mean=mean)
    report = Converged().fit(p, stitch)
    assert accuracy(stitch) > 0.95
    assert report.converged
    assert report.start == "closed form"


@each(("family", "sender", "receiver"), SOME, ids=named)
def test_no_family_ends_with_more_errors_than_it_began(family, sender, receiver):
    p = posed(family, sender, receiver)
    start, stitch = (built(family, sender, receiver) for _ in range(2))
    Quick(steps=0).fit(p, start)
    Quick(steps=150).fit(p, stitch)
    ended, begun = ((error(p, each), validation_loss(p, each)) for each in (stitch, start))
    assert ended[0] < begun[0] or ended[1] <= begun[1] * (1 + 1e-4) + 1e-6
    assert not any(module.training for module in stitch.modules())


@pytest.mark.slow
@each(("cut", "family"), SEAMS, ids=lambda given: str(given))
def test_a_much_longer_descent_by_other_means_is_not_better(cut, family):
    """Plain Adam at three rates, ten times as long, each with its best checkpoint chosen on the very images judged."""
    p, stitch = real(cut, family)
    report = Converged().fit(p, stitch)
    others = []
    for rate in (1e-2, 3e-3, 1e-3):
        other = built(family, *(tuple(t.shape[1:]) for t in (p.fit.activations, p.fit.expected())))
        TaskLoss(start=LeastSquares(), optimiser=Adam(lr=rate), steps=2000, check=100, patience=20).fit(p, other)
        others.append(error(p, other))
    images = 1 / len(p.validation.labels)
    assert report.converged
    assert error(p, stitch) <= min(others) + 2 * images


def test_the_cap_changes_nothing_before_it() -> None:
    """Looks, losses and stitches of a short cap are the first of those of a longer one."""
    curves = []
    for cap in (140, 280, 1120):
        p, stitch = real("conv", Conv(), fit=300)
        curves.append(replace(Converged(tolerance=1e-6), cap=cap + 2 * converged.TRIED).fit(p, stitch).curve)
    shortest, middle, longest = curves
    assert middle[: len(shortest) - 1] == shortest[:-1]
    assert longest[: len(middle) - 1] == middle[:-1]


def test_the_same_problem_gives_the_same_bits_and_another_seed_others() -> None:
    found = []
    for seed in (0, 0, 1):
        p, stitch = real("conv", Conv(), fit=300)
        torch.rand(3)
        report = Quick(steps=100).fit(replace(p, seed=seed), stitch)
        found.append((state(stitch), repr(report)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


# --- when it stops ----------------------------------------------------------------------------------------------------


def test_a_fit_that_reaches_its_cap_says_so_and_how_much_is_left() -> None:
    p, stitch = real("conv", Conv(), fit=300)
    found = Converged(cap=140).fit(p, stitch)
    assert found.steps == 140
    assert not found.converged
    assert found.gap is not None
    assert 0 <= found.gap < 1


def test_quick_never_says_that_it_has_converged() -> None:
    p, stitch = real("conv", Conv(), fit=300)
    report = Quick(steps=150).fit(p, stitch)
    assert (report.steps, report.converged) == (150, False)
    assert report.gap is not None


def test_labels_that_no_stitch_gets_right_leave_the_closed_form() -> None:
    p, stitch, _ = planted()
    wrong = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    closed = copy.deepcopy(stitch)
    Quick(steps=0).fit(wrong, closed)
    report = Converged().fit(wrong, stitch)
    assert report.converged
    assert error(p, stitch) <= error(p, closed)


def test_a_stitch_without_parameters_has_converged_by_definition() -> None:
    p, _, _ = planted()
    assert Converged().fit(replace(p, family=Identity()), nn.Identity()) == FitReport(gap=0.0)


def test_a_loss_that_is_not_finite_is_named() -> None:
    p, stitch, _ = planted()

    class Broken(nn.Module):
        def forward(self, x):
            return x * math.nan

    with pytest.raises(FitError, match="validation loss of A → B at middle is not finite"):
        Converged().fit(replace(p, suffix=problem(p.fit, p.validation, Linear(), Broken()).suffix), stitch)


@each(
    ("fit", "settings", "message"),
    [
        (Converged, {"cap": 100}, "cap must be at least 140"),
        (Converged, {"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
        (Converged, {"batch": 0}, "batch must be at least 1"),
        (Quick, {"steps": -1}, "steps must be at least 0"),
    ],
)
def test_settings_that_are_none_are_refused(fit: type[Fit], settings, message):
    with pytest.raises(FitError, match=message):
        fit(**settings)


@each(
    ("gains", "left"),
    [
        ([0.1], None),
        ([0.08, 0.04], 0.04),
        ([0.04, 0.04], 0.12),
        ([0.04, -0.01], 0.0),
        ([-0.01, 0.02], 0.02),
    ],
)
def test_what_is_left_is_extrapolated_from_two_doublings(gains, left):
    found = converged._extrapolate(gains)
    assert found == (None if left is None else pytest.approx(left))

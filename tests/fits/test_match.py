"""Matching activations, soft labels, and fits that start from other fits.

Evidence: the closed form's own optimum, losses and single steps worked out by hand with numpy and autograd.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from loops import each
from problems import TINY, affine, built, matching, planted, real, state, validation_loss
from suture.common.errors import FitError
from suture.core.stitches import Conv, Diagonal, Linear, LowRank, Orthogonal, TokensToTokens
from suture.data import tasks
from suture.fits import (
    SGD,
    Adam,
    BestOf,
    Constant,
    HardLabels,
    LeastSquares,
    MatchActivations,
    Random,
    SoftLabels,
    TaskLoss,
)

EXACT = LeastSquares(ridges=TINY, rescale=False)


def noisy(family, sender, receiver, scale=1.0, n=300):
    """Features of a receiver that those of the sender predict in part."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn((n, *sender), generator=random), torch.randn((n, *receiver), generator=random)
    if sender == receiver:
        y = y + 2 * x.roll(1, 1) + x + 0.5
    return matching(family, x, scale * y)


def error(p, stitch) -> float:
    """The mean squared error, in units of the variance about the mean of every number."""
    x, y = p.fit.activations, p.fit.expected()
    with torch.no_grad():
        return float((stitch.eval()(x) - y).square().mean()) / float(y.var(0, correction=0).mean())


# --- matching ---------------------------------------------------------------------------------------------------------


@each(
    ("family", "sender", "receiver"),
    [
        (Linear(), (4,), (4,)),
        (Conv(), (3, 4, 4), (3, 4, 4)),
        (Conv(3, batchnorm=False), (2, 4, 4), (2, 4, 4)),
        (LowRank(2), (4,), (4,)),
        (Orthogonal(), (4,), (4,)),
        (Diagonal(), (3, 4), (3, 4)),
        (TokensToTokens(), (5, 3), (5, 3)),
    ],
    ids=str,
    few=3,
)
def test_matching_ends_where_least_squares_is_at_once(family, sender, receiver):
    p = noisy(family, sender, receiver)
    best, found = built(family, sender, receiver), built(family, sender, receiver, seed=1)
    EXACT.fit(p, best)
    if isinstance(family, Orthogonal) and side_of(best) != side_of(found):
        with torch.no_grad():
            found.weight = found.weight[[1, 0, 2, 3]]
    report = MatchActivations(optimiser=Adam(0.05), steps=300, batch=100, check=30).fit(p, found)
    assert error(p, best) * (1 - 1e-6) < error(p, found) < 1.02 * error(p, best)
    assert report.curve[0].validation_loss > 1.02 * report.curve[-1].validation_loss


def side_of(stitch) -> float:
    """Of a rotation 1, of a reflection -1."""
    return round(float(np.linalg.det(affine(stitch, 4)[0])))


@pytest.mark.slow
@each("seed", range(4))
def test_from_a_reflection_a_descent_comes_to_no_rotation(seed):
    """Orthogonal maps are two islands; where it starts on the other one it cannot end where least squares does."""
    p = noisy(Orthogonal(), (4,), (4,))
    best, found = built(Orthogonal(), (4,), (4,)), built(Orthogonal(), (4,), (4,), seed)
    EXACT.fit(p, best)
    before = side_of(found)
    MatchActivations(optimiser=Adam(0.05), steps=300, batch=100, check=30).fit(p, found)
    assert side_of(found) == before
    assert (error(p, found) < 1.02 * error(p, best)) == (before == side_of(best))


@each("scale", [1e-3, 1.0, 1e3])
def test_its_losses_are_in_units_of_the_receivers_variance(scale):
    """At rate zero, on all samples at once: the error of the random stitch as it is."""
    p = noisy(Linear(), (4,), (4,), scale)
    stitch = built(Linear(), (4,), (4,))
    still = MatchActivations(optimiser=SGD(0.0), steps=1, batch=300, patience=None, standardise=False)
    first, last = still.fit(p, stitch).curve
    assert [first.validation_loss, last.fit_loss, last.validation_loss] == pytest.approx([error(p, stitch)] * 3)


def test_the_same_rate_means_the_same_whatever_the_receivers_units():
    curves = []
    for scale in (1.0, 1e3):
        stitch = built(Linear(), (4,), (4,))
        with torch.no_grad():
            stitch.weight.mul_(scale)
            stitch.bias.mul_(scale)
        recipe = MatchActivations(optimiser=SGD(0.1 * scale**2), schedule=Constant(), steps=30, check=10)
        curves.append([point.validation_loss for point in recipe.fit(noisy(Linear(), (4,), (4,), scale), stitch).curve])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


def test_one_step_of_matching_is_the_gradient_of_the_error():
    p = noisy(Linear(), (4,), (4,), n=64)
    stitch = built(Linear(), (4,), (4,))
    x, y = p.fit.activations.numpy(), p.fit.expected().numpy()
    weight, bias = affine(stitch, 4)
    off = (x @ weight.T + bias - y) * 2 / y.size / y.var(0).mean()
    recipe = MatchActivations(
        optimiser=SGD(0.5), schedule=Constant(), steps=1, batch=64, patience=None, standardise=False
    )
    recipe.fit(p, stitch)
    np.testing.assert_allclose(affine(stitch, 4)[0], weight - 0.5 * off.T @ x, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(affine(stitch, 4)[1], bias - 0.5 * off.sum(0), rtol=1e-4, atol=1e-6)


def test_a_receiver_that_never_varies_is_matched_all_the_same():
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    p = matching(Linear(), x, torch.full((100, 2), 3.0))
    stitch = built(Linear(), (3,), (2,))
    MatchActivations(optimiser=Adam(0.1)).fit(p, stitch)
    with torch.no_grad():
        assert float((stitch(x) - 3).abs().max()) < 0.05


def test_matching_never_sees_the_task():
    """Other labels, another suffix, other outputs: the same bits."""
    found = []
    for change in (False, True):
        p, stitch, _ = planted()
        if change:
            sides = [replace(s, labels=(s.labels + 1) % 4, outputs=lambda: torch.zeros(300, 4)) for s in sides_of(p)]
            p = replace(p, suffix=nn.Identity(), fit=sides[0], validation=sides[1])
        MatchActivations(steps=10, check=5).fit(p, stitch)
        found.append(state(stitch))
    assert found[0] == found[1]


def sides_of(p):
    return p.fit, p.validation


def test_the_validation_data_choose_for_a_match_too():
    p, stitch, _ = planted()
    report = MatchActivations(optimiser=SGD(3.0), schedule=Constant(), steps=40, check=4, patience=100).fit(p, stitch)
    losses = [point.validation_loss for point in report.curve]
    x, y = p.validation.activations, p.validation.expected()
    with torch.no_grad():
        unit = float(p.fit.expected().var(0, correction=0).mean())
        assert float((stitch(x) - y).square().mean()) / unit == pytest.approx(min(losses), rel=1e-3, abs=1e-9)


@each("setting", ["steps", "batch", "check", "patience"])
def test_settings_below_one_are_refused_with_the_fits_own_name(setting):
    with pytest.raises(FitError, match=rf"MatchActivations\({setting}=0\): {setting} must be at least 1"):
        MatchActivations(**{setting: 0})


# --- soft labels ------------------------------------------------------------------------------------------------------


@each("temperature", [0.5, 1.0, 4.0])
def test_soft_labels_are_the_receivers_own_probabilities(temperature):
    p, _, _ = planted()
    found = SoftLabels(temperature).of(p.fit).double().numpy()
    logits = p.fit.outputs().double().numpy() / temperature
    wanted = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True), atol=1e-6)
    assert torch.equal(HardLabels().of(p.fit), p.fit.labels)


@each("temperature", [1.0, 3.0])
def test_one_step_on_soft_labels_is_the_gradient_of_their_cross_entropy(temperature):
    p, stitch, _ = planted(n=64)
    reference = copy.deepcopy(stitch)
    logits = p.suffix(reference(p.fit.activations)).log_softmax(1)
    wanted = (p.fit.outputs() / temperature).softmax(1)
    loss = -(wanted * logits).sum(1).mean()
    loss.backward()
    stepped = {name: value - 0.5 * value.grad for name, value in reference.named_parameters()}
    recipe = TaskLoss(
        start=Random(),
        targets=SoftLabels(temperature),
        optimiser=SGD(0.5),
        schedule=Constant(),
        steps=1,
        batch=1000,
        patience=None,
        standardise=False,
    )
    report = recipe.fit(p, stitch)
    assert report.curve[-1].fit_loss == pytest.approx(loss.item(), rel=1e-5)
    for name, value in stitch.named_parameters():
        torch.testing.assert_close(value.detach(), stepped[name].detach(), rtol=1e-5, atol=1e-6)


def test_on_soft_labels_the_stitched_network_comes_to_say_what_the_receiver_says():
    """The least cross-entropy is the entropy of the labels, where both say the same."""
    p, stitch, _ = planted()
    TaskLoss(start=Random(), targets=SoftLabels(), optimiser=Adam(0.05), steps=400).fit(p, stitch)
    with torch.no_grad():
        said = p.suffix(stitch(p.fit.activations)).softmax(1)
    assert float((said - p.fit.outputs().softmax(1)).abs().mean()) < 0.02


def test_soft_labels_ask_for_no_label_and_hard_ones_for_no_output():
    for targets, change in (
        (SoftLabels(), lambda s: replace(s, labels=(s.labels + 1) % 4)),
        (HardLabels(), lambda s: replace(s, outputs=lambda: torch.zeros(300, 4))),
    ):
        found = []
        for changed in (False, True):
            p, stitch, _ = planted()
            if changed:
                p = replace(p, fit=change(p.fit), validation=change(p.validation))
            TaskLoss(targets=targets, steps=10, check=5).fit(p, stitch)
            found.append(state(stitch))
        assert found[0] == found[1]


@each("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_none_is_refused_at_once(temperature):
    with pytest.raises(FitError, match=rf"SoftLabels\(temperature={temperature}\): the temperature must be above 0"):
        SoftLabels(temperature)


@each("task", [tasks.MultiLabel(), tasks.Regression(), tasks.NextToken(), tasks.OwnOutputs()], ids=str)
def test_soft_labels_are_refused_if_outputs_are_no_logits_of_one_class_per_sample(task):
    soft = TaskLoss(targets=SoftLabels())
    for fit in (soft, BestOf((LeastSquares(), soft)), MatchActivations(start=soft)):
        with pytest.raises(FitError, match="takes outputs for logits of one class per sample"):
            fit.check_task(task)
        fit.check_task(tasks.OwnOutputs("logits"))


# --- starts -----------------------------------------------------------------------------------------------------------


@each("targets", [HardLabels(), SoftLabels()], ids=str)
@each(
    "start",
    [Random(), LeastSquares(), MatchActivations(steps=7, check=7), MatchActivations(LeastSquares(), steps=7, check=7)],
    ids=str,
)
def test_a_descent_begins_where_its_start_ended(start, targets):
    """Its first validation loss is that of the start alone, taken by hand."""
    p, stitch, _ = planted()
    alone = copy.deepcopy(stitch)
    start.fit(p, alone)
    recipe = TaskLoss(start=start, targets=targets, steps=4, check=4, patience=None, standardise=False)
    report = recipe.fit(p, stitch)
    first = [point for point in report.curve if np.isnan(point.fit_loss)][-1]
    with torch.no_grad():
        logits = p.suffix(alone(p.validation.activations))
    wanted = float(nn.functional.cross_entropy(logits, targets.of(p.validation)))
    assert first.validation_loss == pytest.approx(wanted, rel=1e-4)


def test_the_steps_and_curves_of_a_chain_add_up():
    p, stitch, _ = planted()
    matched = MatchActivations(start=LeastSquares(), steps=6, check=3, patience=None)
    fit = TaskLoss(start=TaskLoss(start=matched, steps=4, check=4, patience=None), steps=8, check=4, patience=None)
    report = fit.fit(p, stitch)
    assert report.steps == 18
    assert [point.step for point in report.curve] == [0, 3, 6, 6, 10, 10, 14, 18]
    assert [np.isnan(point.fit_loss) for point in report.curve] == [step in (0, 3, 5) for step in range(8)]
    assert report.converged is None


@each("cut", ["conv", "hidden"])
def test_on_real_networks_the_task_gains_over_the_match_it_starts_from(cut):
    p, stitch = real(cut, Conv() if cut == "conv" else Linear())
    matched = MatchActivations(start=LeastSquares(), steps=50, check=25)
    matched.fit(p, stitch)
    before, off = validation_loss(p, stitch), error(p, stitch)
    p, stitch = real(cut, Conv() if cut == "conv" else Linear())
    TaskLoss(start=matched, steps=100).fit(p, stitch)
    assert validation_loss(p, stitch) < before
    assert error(p, stitch) > off, "what works better matches less"


def test_fits_are_spelt_with_their_starts():
    fit = TaskLoss(start=MatchActivations(start=LeastSquares()), targets=SoftLabels(temperature=2.0))
    assert str(fit) == "TaskLoss(start=MatchActivations(start=LeastSquares()), targets=SoftLabels(temperature=2.0))"
    assert str(MatchActivations()) == "MatchActivations()"
    assert str(TaskLoss(targets=HardLabels())) == "TaskLoss()"

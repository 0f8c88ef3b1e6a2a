"""Gradient descent on the task against solutions known by construction, against autograd and against its own record."""

import copy
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from test_least_squares import Deep
from torch import Tensor, nn

from loops import each
from problems import Spied, affine, planted, real, state, validation_loss
from suture.common.errors import FitError
from suture.core.network.segments import Frozen, Segment
from suture.core.stitches import Conv, Identity, Linear
from suture.fits import (
    SGD,
    Adam,
    BestOf,
    Constant,
    Converged,
    Cosine,
    Fit,
    FitReport,
    LeastSquares,
    Narrower,
    OneCycle,
    Random,
    TaskLoss,
)
from suture_papers.recipes import bansal2021, hernandez2022_copy, smith2024


@each("optimiser", [Adam(1e-2), SGD(0.1)], ids=["Adam", "SGD"], few=1)
@each("start", [Random(), LeastSquares()], ids=str)
def test_the_task_loss_finds_what_is_planted(start, optimiser):
    p, stitch, accuracy = planted()
    assert accuracy(stitch) < 0.7
    report = TaskLoss(start=start, optimiser=optimiser, steps=600).fit(p, stitch)
    assert accuracy(stitch) > 0.93
    assert report.curve[-1].validation_loss < 0.5 * math.log(4)


def test_a_deep_stitch_can_be_fitted_from_a_random_start():
    p, _, accuracy = planted()
    stitch = Deep().build((6,), (6,))
    TaskLoss(start=Random(), steps=600, patience=None).fit(replace(p, family=Deep()), stitch)
    assert accuracy(stitch) > 0.9


def test_what_is_kept_has_the_least_validation_loss():
    """A rate so large that the loss jumps about: the best check is seldom the last."""
    p, stitch, _ = planted()
    report = TaskLoss(optimiser=SGD(30.0), schedule=Constant(), steps=40, check=4, patience=100).fit(p, stitch)
    losses = [point.validation_loss for point in report.curve]
    assert min(losses) < losses[-1]
    assert validation_loss(p, stitch) == pytest.approx(min(losses), rel=1e-4)


def test_where_every_step_does_harm_the_start_is_kept_bit_for_bit():
    p, stitch, _ = planted()
    wrong = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    LeastSquares().fit(wrong, stitch)
    start = affine(stitch, 6)
    report = TaskLoss(steps=100, check=5, patience=3, retries=0).fit(wrong, stitch)
    np.testing.assert_allclose(affine(stitch, 6)[0], start[0], rtol=1e-6, atol=1e-7)
    assert report.steps == 15
    assert report.converged
    assert [point.step for point in report.curve] == [0, 5, 10, 15]


@each("patience", [1, 3, 4])
def test_it_stops_after_so_many_checks_without_a_better_one(patience):
    """The rule, applied by hand to the checks of a fit that does not stop."""
    restless = TaskLoss(
        start=Random(), optimiser=SGD(1.0), schedule=Constant(), steps=60, batch=16, check=1, patience=60, retries=0
    )
    p, stitch, _ = planted()
    losses = [point.validation_loss for point in restless.fit(p, stitch).curve]
    bests = [step for step, loss in enumerate(losses) if loss < min([math.inf, *losses[:step]])]
    stop = next(step for step in range(len(losses)) if step - max(b for b in bests if b <= step) == patience)
    p, stitch, _ = planted()
    report = replace(restless, patience=patience).fit(p, stitch)
    assert report.converged
    assert report.steps == stop
    assert [point.validation_loss for point in report.curve] == losses[: stop + 1]
    assert patience == 1 or any(after - before > 1 for before, after in itertools.pairwise(bests) if after < stop)


def test_a_rate_too_large_is_tried_again_at_a_tenth():
    p, stitch, _ = planted()
    LeastSquares().fit(p, stitch)
    start = validation_loss(p, stitch)
    spied = Spied(SGD(3.0))
    recipe = TaskLoss(optimiser=spied, schedule=Constant(), steps=6, check=3)
    once = replace(recipe, retries=0).fit(p, stitch)
    assert (once.steps, validation_loss(p, stitch)) == (6, pytest.approx(start, rel=1e-4))
    spied.rates.clear()
    report = recipe.fit(p, stitch)
    assert spied.rates == pytest.approx([3.0] * 6 + [0.3] * 6 + [0.03] * 6)
    assert report.steps == 18
    assert [point.step for point in report.curve] == [0, 3, 6, 6, 9, 12, 12, 15, 18]
    assert validation_loss(p, stitch) == pytest.approx(min(point.validation_loss for point in report.curve), rel=1e-4)
    assert validation_loss(p, stitch) < start


def test_nothing_is_tried_again_where_it_got_better_or_where_all_steps_are_wanted():
    for recipe in (TaskLoss(start=Random(), steps=6, check=3), TaskLoss(optimiser=SGD(30.0), steps=6, patience=None)):
        p, stitch, _ = planted()
        assert recipe.fit(p, stitch).steps == 6


def test_without_patience_all_steps_are_taken_and_the_last_parameters_kept():
    p, stitch, _ = planted()
    wrong = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    report = TaskLoss(steps=23, check=5, patience=None).fit(wrong, stitch)
    assert report.steps == 23
    assert report.converged is None
    assert [point.step for point in report.curve] == [0, 5, 10, 15, 20, 23]
    losses = [point.validation_loss for point in report.curve]
    assert losses[-1] > 1.5 * losses[0]
    assert validation_loss(wrong, stitch) == pytest.approx(losses[-1], rel=1e-4)


def test_a_fit_that_cannot_know_whether_it_has_converged_does_not_say():
    """A closed form, a random stitch, all steps taken anyway, and the best of several of which one cannot know."""
    all_steps = TaskLoss(steps=4, check=4, patience=None)
    silent = (
        LeastSquares(),
        Random(),
        all_steps,
        Narrower(Linear()),
        BestOf((LeastSquares(), TaskLoss())),
    )
    for fit in (*silent, *(replace(recipe, steps=2) for recipe in (bansal2021, hernandez2022_copy, smith2024))):
        p, stitch, _ = planted()
        assert fit.fit(p, stitch).converged is None, fit
    knowing = (TaskLoss(start=all_steps), BestOf((TaskLoss(), Converged(cap=280))), Narrower(Linear(), by=TaskLoss()))
    for fit in knowing:
        p, stitch, _ = planted()
        assert fit.fit(p, stitch).converged is not None, fit


def test_a_fit_that_runs_out_of_steps_has_not_converged():
    p, stitch, _ = planted()
    report = TaskLoss(start=Random(), optimiser=Adam(1e-4), steps=30, check=10, patience=2).fit(p, stitch)
    assert report.steps == 30
    assert report.converged is False


def test_the_curve_tells_the_losses_as_they_were():
    """At rate zero nothing moves: an epoch's mean loss is that of all samples, each drawn once."""
    p, stitch, _ = planted(n=600)
    frozen = TaskLoss(start=Random(), optimiser=SGD(0.0), steps=10, batch=60, check=5, patience=None)
    report = frozen.fit(p, stitch)
    with torch.no_grad():
        logits = p.suffix(stitch(p.fit.activations))
    whole = float(nn.functional.cross_entropy(logits, p.fit.labels))
    first, *epochs = report.curve
    assert math.isnan(first.fit_loss)
    assert first.validation_loss == pytest.approx(validation_loss(p, stitch), rel=1e-4)
    assert [point.step for point in epochs] == [5, 10], "300 samples in batches of 60"
    for point in epochs:
        assert point.fit_loss == pytest.approx(whole, rel=1e-4)


def test_a_loss_on_the_fit_data_is_that_of_the_batches_since_the_last_check():
    """With one batch of everything, and validation on the same, each step's loss is the check before."""
    p, stitch, _ = planted(n=200)
    recipe = TaskLoss(start=Random(), steps=7, batch=1000, check=1, patience=None)
    curve = recipe.fit(replace(p, validation=p.fit), stitch).curve
    assert [after.fit_loss for after in curve[1:]] == pytest.approx([before.validation_loss for before in curve[:-1]])
    assert len({round(point.validation_loss, 6) for point in curve}) == 8


def test_a_start_that_descends_counts_and_its_curve_goes_on():
    p, stitch, _ = planted()
    first = TaskLoss(start=Random(), steps=6, check=3, patience=None)
    report = TaskLoss(start=first, steps=8, check=4, patience=None).fit(p, stitch)
    assert report.steps == 14
    assert [point.step for point in report.curve] == [0, 3, 6, 6, 10, 14]


def test_the_task_loss_of_a_stitch_without_parameters_is_that_of_its_start():
    p, stitch = real("hidden", Identity())
    assert repr(TaskLoss().fit(p, stitch)) == repr(FitReport(steps=0, converged=None, curve=()))


def test_the_same_seed_gives_the_same_stitch_and_another_another():
    found = []
    for seed in (0, 0, 1):
        p, stitch, _ = planted()
        TaskLoss(start=Random(), steps=9, check=3).fit(replace(p, seed=seed), stitch)
        found.append(state(stitch))
    assert found[0] == found[1] != found[2]


@each(
    ("schedule", "wanted"),
    [
        (Constant(), [1.0] * 8),
        (Cosine(), [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]),
        (OneCycle(0.25), [1 / 2, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]),
    ],
    ids=["constant", "cosine", "one cycle"],
)
@each("real_one", [Adam(0.01), SGD(0.2)], ids=["Adam", "SGD"])
def test_the_rates_really_used_are_those_of_the_schedule(real_one, schedule, wanted):
    p, stitch, _ = planted()
    spied = Spied(real_one)
    TaskLoss(start=Random(), optimiser=spied, schedule=schedule, steps=8, check=3, patience=None).fit(p, stitch)
    assert spied.rates == pytest.approx([real_one.lr * factor for factor in wanted])


def test_one_step_of_sgd_is_the_gradient_of_the_task_loss():
    """By hand, with autograd on an unfrozen copy: one batch of everything, no norm, no standardising."""
    p, stitch, _ = planted(n=64)
    reference = copy.deepcopy(stitch)
    loss = nn.functional.cross_entropy(p.suffix(reference(p.fit.activations)), p.fit.labels)
    loss.backward()
    wanted = {name: value - 0.5 * value.grad for name, value in reference.named_parameters()}
    recipe = TaskLoss(
        start=Random(), optimiser=SGD(0.5), schedule=Constant(), steps=1, batch=1000, patience=None, standardise=False
    )
    report = recipe.fit(p, stitch)
    assert report.curve[-1].fit_loss == pytest.approx(loss.item(), rel=1e-5)
    for name, value in stitch.named_parameters():
        torch.testing.assert_close(value.detach(), wanted[name].detach(), rtol=1e-5, atol=1e-6)


def test_validation_data_choose_and_train_nothing():
    """With nothing to choose (``patience=None``), other validation data change no bit of the stitch."""
    found = []
    for shift in (0, 1):
        p, stitch, _ = planted()
        other = replace(p.validation, labels=(p.validation.labels + shift) % 4)
        TaskLoss(start=Random(), steps=20, check=5, patience=None).fit(replace(p, validation=other), stitch)
        found.append(state(stitch))
    assert found[0] == found[1]


def test_validation_data_choose_when_to_stop():
    p, stitch, _ = planted()
    wrong = replace(p.validation, labels=(p.validation.labels + 1) % 4)
    report = TaskLoss(steps=100, check=5, patience=2).fit(replace(p, validation=wrong), stitch)
    assert report.converged
    assert report.steps < 100


def test_the_stitch_is_left_in_evaluation_mode():
    p, stitch = real("conv", Conv())
    TaskLoss(steps=2, check=1).fit(p, stitch)
    assert not any(module.training for module in stitch.modules())


@each(("setting", "least"), [("steps", 1), ("batch", 1), ("check", 1), ("patience", 1), ("retries", 0)])
def test_settings_below_their_least_are_refused_at_once(setting, least):
    TaskLoss(**{setting: least})
    with pytest.raises(FitError, match=f"TaskLoss\\({setting}={least - 1}\\): {setting} must be at least {least}"):
        TaskLoss(**{setting: least - 1})


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Overflowing(nn.Module):
    """A suffix whose outputs are finite for modest inputs only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().exp()


@each("patience", [None, 2])
def test_a_loss_that_is_not_finite_names_the_seam(patience):
    p, stitch, _ = planted()
    recipe = TaskLoss(start=Random(), optimiser=SGD(3e38), steps=30, check=10, patience=patience)
    with pytest.raises(FitError, match=r"the loss of A → B at middle is not finite; try a smaller learning rate"):
        recipe.fit(p, stitch)


@each("patience", [None, 2])
def test_a_last_step_that_diverges_is_noticed_too(patience):
    """After it there is a loss on the validation data only."""
    p, stitch, _ = planted()
    p = replace(p, suffix=Frozen([Segment(Overflowing())]))
    recipe = TaskLoss(start=Huge(), optimiser=SGD(1e-3), steps=1, patience=patience, standardise=False)
    with pytest.raises(FitError, match="A → B at middle is not finite"):
        recipe.fit(p, stitch)


class Bounded(nn.Module):
    """A suffix whose outputs are no numbers where its inputs are large."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * torch.where(x.abs() > 300, torch.inf, 0)


def test_a_rate_that_makes_the_loss_infinite_is_tried_again_at_a_tenth():
    """At 100 a step is lost; a tenth of it is left as if nothing had been before."""
    kept, reports = [], []
    for recipe in (TaskLoss(optimiser=SGD(100.0), retries=1), TaskLoss(optimiser=SGD(10.0))):
        p, stitch, _ = planted()
        p = replace(p, suffix=Frozen([Segment(Bounded())]))
        short = replace(recipe, start=Random(), schedule=Constant(), steps=30, check=10)
        reports.append(short.fit(p, stitch))
        kept.append(state(stitch))
        if recipe.retries == 1:
            with pytest.raises(FitError, match="is not finite; try a smaller learning rate"):
                replace(short, retries=0).fit(p, stitch)
    assert kept[0] == kept[1]
    lost = reports[0].curve[1]
    assert math.isnan(lost.fit_loss)
    assert lost.step < 10
    again = [replace(point, step=point.step + lost.step) for point in reports[1].curve]
    assert str(reports[0].curve[2:]) == str(tuple(again))


@dataclass(frozen=True)
class Huge(Fit):
    """A start from which only the validation loss is not finite."""

    def fit(self, problem, stitch):
        with torch.no_grad():
            stitch.weight.fill_(1e3)
            problem.fit.activations.zero_()
            stitch.bias.zero_()
        return FitReport()


# --- how fits are called ----------------------------------------------------------------------------------------------


def test_a_fit_is_spelt_as_the_call_that_makes_it():
    assert str(LeastSquares()) == "LeastSquares()"
    assert str(LeastSquares(ridges=(1e-6,))) == "LeastSquares(ridges=(1e-06,))"
    assert str(TaskLoss()) == "TaskLoss()"
    fit = TaskLoss(start=Random(), optimiser=Adam(lr=0.1), steps=5, patience=None)
    assert str(fit) == "TaskLoss(start=Random(), optimiser=Adam(lr=0.1), steps=5, patience=None)"


def test_a_fit_that_holds_a_tensor_can_be_spelt():
    @dataclass(frozen=True)
    class Given(Fit):
        weight: Tensor

        def fit(self, problem, stitch):
            return FitReport()

    assert str(Given(torch.zeros(2))) == "Given(weight=tensor([0., 0.]))"

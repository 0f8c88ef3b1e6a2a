"""The fits against solutions known by construction, and against numpy and scikit-learn."""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from suture.errors import FitError
from suture.fits import Fit, FitReport, LeastSquares, Problem, Random, Side, TaskLoss
from suture.fits.standardised import Standardised
from suture.network import Frozen
from suture.recipes import SGD, Adam, Constant, Cosine, OneCycle
from suture.stitches import AffineStitch, Conv, Identity, Linear, Stitch
from test_recipes import Spied
from trained import digits, hybrids, tensor_bits

TINY = (1e-12,)


# --- problems ---------------------------------------------------------------------------------------------------------


def side(activations: Tensor, labels: Tensor, own: Tensor | None = None) -> Side:
    expected: Callable[[], Tensor] = lambda: own if own is not None else activations  # noqa: E731
    return Side(activations, labels, expected)


def problem(fit: Side, validation: Side, family: Stitch, suffix: nn.Module, seed: int = 0) -> Problem:
    return Problem(family, Frozen([suffix.requires_grad_(False)]), fit, validation, seed, "A → B at middle")


def planted(
    n: int = 600, features: int = 6, classes: int = 4, scale: float = 1.0, mean: float = 0.0, seed: int = 0
) -> tuple[Problem, nn.Module, Callable[[nn.Module], float]]:
    """Vectors that one linear map makes right: the problem, an unfitted stitch, and the accuracy of one on new data.

    ``scale`` and ``mean`` say in which units the sender speaks; the problem is the same in all of them.
    """
    random = torch.Generator().manual_seed(seed)
    h = torch.randn(2 * n, features, generator=random)
    way = torch.linalg.qr(torch.randn(features, features, generator=random))[0]
    torch.manual_seed(seed)
    suffix = nn.Linear(features, classes)
    labels = (6 * suffix(h)).argmax(1).detach()
    suffix.weight.data.mul_(6)
    suffix.bias.data.mul_(6)
    sent = scale * (h @ way.T + mean)
    fit, validation, new = slice(0, n // 2), slice(n // 2, n), slice(n, 2 * n)

    def accuracy(stitch: nn.Module) -> float:
        with torch.no_grad():
            return float((suffix(stitch(sent[new])).argmax(1) == labels[new]).float().mean())

    sides = [side(sent[part], labels[part], h[part]) for part in (fit, validation)]
    torch.manual_seed(seed + 100)
    return problem(sides[0], sides[1], Linear(), suffix), Linear().build((features,), (features,)), accuracy


def real(cut: str, family: Stitch, fit: int = 1080) -> tuple[Problem, nn.Module]:
    """A seam of two trained networks on the digits, and an unfitted stitch."""
    a, b = hybrids()
    roles = digits().limited(fit=fit)

    def seen(samples) -> Side:
        with torch.no_grad():
            return side(
                a.upto(cut)(samples.images).contiguous(), samples.labels, b.upto(cut)(samples.images).contiguous()
            )

    torch.manual_seed(0)
    stitch = family.build(a.cuts.find(cut).shape, b.cuts.find(cut).shape)
    posed = Problem(family, b.after(cut), seen(roles.fit), seen(roles.validation), 0, f"A → B at {cut}")
    return posed, stitch


def rows(x: Tensor) -> np.ndarray:
    """All pixels, tokens or samples of a tensor as rows, in float64."""
    x = x.movedim(1, -1) if x.ndim == 4 else x
    return x.reshape(-1, x.shape[-1]).double().numpy()


def affine(stitch: nn.Module, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Weight (out, in) and bias of what a stitch computes."""
    stitch = copy.deepcopy(stitch).double().eval()
    basis = torch.cat([torch.zeros(1, features), torch.eye(features)]).double()
    with torch.no_grad():
        out = stitch(basis) if isinstance(stitch, nn.Linear) else stitch(basis[:, :, None, None])[:, :, 0, 0]
    return (out[1:] - out[0]).T.numpy(), out[0].numpy()


def validation_loss(p: Problem, stitch: nn.Module) -> float:
    with torch.no_grad():
        logits = p.suffix(copy.deepcopy(stitch).eval()(p.validation.activations))
    return float(nn.functional.cross_entropy(logits, p.validation.labels))


def state(stitch: nn.Module) -> dict[str, str]:
    return {name: tensor_bits(tensor) for name, tensor in stitch.state_dict().items()}


SEAMS = {"maps": ("conv", Conv()), "maps, no norm": ("norm", Conv(batchnorm=False)), "tokens": ("embed", Linear())}
SEAMS["vectors"] = ("hidden", Linear())


# --- least squares ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_least_squares_is_numpys_on_all_rows_at_once(cut, family):
    p, stitch = real(cut, family)
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    wanted = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0].T
    weight, bias = affine(stitch, x.shape[1])
    np.testing.assert_allclose(weight, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(bias, y.mean(0) - wanted @ x.mean(0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_a_ridge_is_scikit_learns(cut, family, ridge):
    p, stitch = real(cut, family)
    LeastSquares(ridges=(ridge,), rescale=False).fit(p, stitch)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    wanted = Ridge(alpha=ridge * x.var(0).mean() * len(x)).fit(x, y)
    weight, bias = affine(stitch, x.shape[1])
    np.testing.assert_allclose(weight, wanted.coef_, rtol=0, atol=1e-5 * np.abs(wanted.coef_).max())
    np.testing.assert_allclose(bias, wanted.intercept_, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_it_is_not_the_mean_of_the_solutions_of_batches(cut, family):
    """What published code computes; this test shows that the tests above would notice."""
    p, stitch = real(cut, family)
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    parts = zip(p.fit.activations.split(256), p.fit.expected().split(256), strict=True)
    solutions = []
    for a, b in parts:
        x, y = rows(a), rows(b)
        solutions.append(np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0].T)
    weight, _ = affine(stitch, x.shape[1])
    assert np.abs(np.mean(solutions, 0) - weight).max() > 1e-3 * np.abs(weight).max()


def test_the_validation_data_choose_the_ridge():
    """Recomputed by scikit-learn for every candidate, on few samples, so that neither end of the scale wins."""
    ridges = (1e-6, 1e-4, 1e-2, 3e-2, 1e-1, 1.0, 10.0)
    p, stitch = real("hidden", Linear(), fit=60)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    held = rows(digits_at("hidden", 0)), rows(digits_at("hidden", 1))
    p = replace(
        p, validation=side(torch.from_numpy(held[0]).float(), digits().validation.labels, digits_at("hidden", 1))
    )
    models = [Ridge(alpha=ridge * x.var(0).mean() * len(x)).fit(x, y) for ridge in ridges]
    errors = [((model.predict(held[0]) - held[1]) ** 2).sum() for model in models]
    best = int(np.argmin(errors))
    assert 0 < best < len(ridges) - 1
    LeastSquares(ridges=ridges, rescale=False).fit(p, stitch)
    weight, _ = affine(stitch, 24)
    np.testing.assert_allclose(weight, models[best].coef_, rtol=0, atol=1e-5)
    assert np.abs(models[best - 1].coef_ - models[best].coef_).max() > 1e-3


def digits_at(cut: str, which: int) -> Tensor:
    with torch.no_grad():
        return hybrids()[which].upto(cut)(digits().validation.images)


@pytest.mark.parametrize(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_rescaled_each_channel_has_the_receivers_mean_and_deviation_on_the_fit_data(cut, family):
    p, stitch = real(cut, family)
    LeastSquares().fit(p, stitch)
    with torch.no_grad():
        out = rows(stitch.eval()(p.fit.activations))
    wanted = rows(p.fit.expected())
    np.testing.assert_allclose(out.std(0), wanted.std(0), rtol=1e-4)
    np.testing.assert_allclose(out.mean(0), wanted.mean(0), atol=1e-4 * wanted.std())
    LeastSquares(rescale=False).fit(p, stitch)
    with torch.no_grad():
        shrunken = rows(stitch.eval()(p.fit.activations)).std(0)
    assert (shrunken < 0.99 * wanted.std(0)).any(), "there is something to rescale"


@pytest.mark.parametrize("family", [Linear(), Conv(), Conv(batchnorm=False)], ids=str)
def test_large_means_cost_no_digits(family):
    """A mean of 10⁶ deviations: sums of squares would lose the covariance, in float64 too."""
    random = torch.Generator().manual_seed(0)
    shape = (2000, 5) if isinstance(family, Linear) else (500, 5, 2, 2)
    x = (1e6 + torch.randn(shape, generator=random)).float()
    y = torch.randn(5, 5, generator=random).double()
    way, x_rows = y.numpy(), rows(x)
    own_rows = (x_rows - x_rows.mean(0)) @ way.T + 3
    own = torch.from_numpy(own_rows).reshape(2000, 5) if x.ndim == 2 else unrowed(own_rows, (500, 2, 2, 5))
    p = problem(side(x, torch.zeros(1), own), side(x, torch.zeros(1), own), family, nn.Identity())
    stitch = family.build(tuple(shape[1:]), tuple(shape[1:]))
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    np.testing.assert_allclose(affine(stitch, 5)[0], way, rtol=1e-5, atol=1e-5)


def unrowed(values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(values).reshape(shape).movedim(-1, 1)


@pytest.mark.parametrize("family", [Linear(), Conv(), Conv(batchnorm=False)], ids=str)
def test_dead_features_do_no_harm(family):
    """A channel of the sender, and one of the receiver, that never fire (a ReLU's fate)."""
    random = torch.Generator().manual_seed(0)
    shape = (400, 4) if isinstance(family, Linear) else (100, 4, 2, 2)
    x, y = torch.rand(shape, generator=random), torch.rand(shape, generator=random)
    x[:, 1] = 0
    y[:, 2] = 0
    p = problem(side(x, torch.zeros(1), y), side(x, torch.zeros(1), y), family, nn.Identity())
    stitch = family.build(tuple(shape[1:]), tuple(shape[1:]))
    LeastSquares().fit(p, stitch)
    with torch.no_grad():
        out = stitch.eval()(x)
    assert out.isfinite().all()
    assert float(out[:, 2].abs().max()) < 1e-6
    weight, _ = affine(stitch, 4)
    assert np.abs(weight[:, 1]).max() < 1e-6


def test_a_stitch_without_parameters_stays_as_it_is():
    p, stitch = real("hidden", Identity())
    assert LeastSquares().fit(p, stitch) == FitReport(steps=0, converged=True, curve=())


@dataclass(frozen=True)
class Deep(Stitch):
    """A family that is not affine."""

    joins: ClassVar[str] = "vectors"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        return nn.Sequential(nn.Linear(sender[0], 16), nn.ReLU(), nn.Linear(16, receiver[0]))


def test_a_family_that_is_not_affine_has_no_closed_form():
    p, _, _ = planted()
    with pytest.raises(FitError, match=r"no closed form for Deep\(\); use TaskLoss\(start=Random\(\)\)"):
        LeastSquares().fit(replace(p, family=Deep()), Deep().build((6,), (6,)))


@pytest.mark.parametrize("ridges", [(), (0.0,), (-1.0, 1.0), (math.nan,)])
def test_ridges_that_are_none_are_refused_at_once(ridges):
    with pytest.raises(FitError, match="ridges"):
        LeastSquares(ridges=ridges)


# --- the task loss ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", [Adam(1e-2), SGD(0.1)], ids=["Adam", "SGD"])
@pytest.mark.parametrize("start", [Random(), LeastSquares()], ids=str)
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


@pytest.mark.parametrize("patience", [1, 3, 4])
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
    assert not report.converged
    assert [point.step for point in report.curve] == [0, 5, 10, 15, 20, 23]
    losses = [point.validation_loss for point in report.curve]
    assert losses[-1] > 1.5 * losses[0]
    assert validation_loss(wrong, stitch) == pytest.approx(losses[-1], rel=1e-4)


def test_a_fit_that_runs_out_of_steps_has_not_converged():
    p, stitch, _ = planted()
    report = TaskLoss(start=Random(), optimiser=Adam(1e-4), steps=30, check=10, patience=2).fit(p, stitch)
    assert report.steps == 30
    assert not report.converged


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
    assert TaskLoss().fit(p, stitch) == FitReport(steps=0, converged=True, curve=())


def test_the_same_seed_gives_the_same_stitch_and_another_another():
    found = []
    for seed in (0, 0, 1):
        p, stitch, _ = planted()
        TaskLoss(start=Random(), steps=9, check=3).fit(replace(p, seed=seed), stitch)
        found.append(state(stitch))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Constant(), [1.0] * 8),
        (Cosine(), [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]),
        (OneCycle(0.25), [1 / 2, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]),
    ],
    ids=["constant", "cosine", "one cycle"],
)
@pytest.mark.parametrize("real_one", [Adam(0.01), SGD(0.2)], ids=["Adam", "SGD"])
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


@pytest.mark.parametrize(
    ("setting", "least"), [("steps", 1), ("batch", 1), ("check", 1), ("patience", 1), ("retries", 0)]
)
def test_settings_below_their_least_are_refused_at_once(setting, least):
    TaskLoss(**{setting: least})
    with pytest.raises(FitError, match=f"TaskLoss\\({setting}={least - 1}\\): {setting} must be at least {least}"):
        TaskLoss(**{setting: least - 1})


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Overflowing(nn.Module):
    """A suffix whose outputs are finite for modest inputs only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().exp()


@pytest.mark.parametrize("patience", [None, 2])
def test_a_loss_that_is_not_finite_names_the_seam(patience):
    p, stitch, _ = planted()
    recipe = TaskLoss(start=Random(), optimiser=SGD(3e38), steps=30, check=10, patience=patience)
    with pytest.raises(FitError, match=r"the loss of A → B at middle is not finite; try a smaller learning rate"):
        recipe.fit(p, stitch)


@pytest.mark.parametrize("patience", [None, 2])
def test_a_last_step_that_diverges_is_noticed_too(patience):
    """After it there is a loss on the validation data only."""
    p, stitch, _ = planted()
    p = replace(p, suffix=Frozen([Overflowing()]))
    recipe = TaskLoss(start=Huge(), optimiser=SGD(1e-3), steps=1, patience=patience, standardise=False)
    with pytest.raises(FitError, match="A → B at middle is not finite"):
        recipe.fit(p, stitch)


@dataclass(frozen=True)
class Huge(Fit):
    """A start from which only the validation loss is not finite."""

    def fit(self, problem, stitch):
        with torch.no_grad():
            stitch.weight.fill_(1e3)
            problem.fit.activations.zero_()
            stitch.bias.zero_()
        return FitReport()


# --- standardising ----------------------------------------------------------------------------------------------------


class Standardising(nn.Module):
    """The stitch as it is trained: on standardised features."""

    def __init__(self, entering: Standardised, stitch: nn.Module) -> None:
        super().__init__()
        self.entering, self.stitch = entering, stitch

    def forward(self, x: Tensor) -> Tensor:
        return self.stitch(self.entering(x))


@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize(
    ("family", "shape"),
    [(Linear(), (7,)), (Linear(), (5, 7)), (Conv(batchnorm=False), (7, 3, 3)), (Conv(), (7, 3, 3))],
    ids=["vectors", "tokens", "maps, no norm", "maps"],
)
def test_rewriting_for_standardised_features_and_back_changes_nothing(family, shape, mean):
    random = torch.Generator().manual_seed(0)
    spread = torch.logspace(-2, 1, 7).reshape((7, 1, 1) if len(shape) == 3 else (7,))
    x = mean + spread * torch.randn((600, *shape), generator=random)
    stitch = family.build(shape, (4, *shape[1:]) if len(shape) == 3 else (*shape[:-1], 4)).eval()
    p = problem(side(x, torch.zeros(600)), side(x, torch.zeros(600)), family, nn.Identity())
    with torch.no_grad():
        wanted = stitch(x)
        close = {"rtol": 1e-4, "atol": 1e-4 * float(wanted.abs().max())}
        with Standardised(p, stitch, wanted=True) as entering:
            torch.testing.assert_close(stitch(entering(x)), wanted, **close)
            if isinstance(family, AffineStitch) and family.input_layer(stitch) is not None:
                seen = rows(entering(x))
                np.testing.assert_allclose(seen.mean(0), 0, atol=1e-3)
                np.testing.assert_allclose(seen.std(0), 1, rtol=1e-3)
        torch.testing.assert_close(stitch(x), wanted, **close)
        with Standardised(p, stitch, wanted=False) as entering:
            assert entering(x) is x


def test_constant_features_are_left_in_place():
    x = torch.randn(300, 3)
    x[:, 1] = 5
    stitch = nn.Linear(3, 2)
    p = problem(side(x, torch.zeros(300)), side(x, torch.zeros(300)), Linear(), nn.Identity())
    with torch.no_grad():
        wanted = stitch(x)
        with Standardised(p, stitch, wanted=True) as entering:
            assert entering(x).isfinite().all()
            torch.testing.assert_close(stitch(entering(x)), wanted)
        torch.testing.assert_close(stitch(x), wanted)


@pytest.mark.parametrize("start", [LeastSquares(), Random()], ids=str)
@pytest.mark.parametrize(("scale", "mean"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 20.0), (1e-2, 20.0)])
def test_the_result_does_not_depend_on_the_units_of_the_sender(scale, mean, start):
    recipe = TaskLoss(start=start, optimiser=SGD(0.1), steps=60, check=10)
    usual, stitch, accuracy = planted()
    wanted = recipe.fit(usual, stitch)
    least = accuracy(stitch)
    scaled, stitch, accuracy = planted(scale=scale, mean=mean)
    found = recipe.fit(scaled, stitch)
    assert [point.validation_loss for point in found.curve] == pytest.approx(
        [point.validation_loss for point in wanted.curve], rel=0.02
    )
    assert accuracy(stitch) == pytest.approx(least, abs=0.01)


def test_without_standardising_it_does():
    """The reason for it."""
    recipe = TaskLoss(start=Random(), optimiser=SGD(0.1), steps=60, check=10, standardise=False)
    losses = []
    for scale in (1.0, 1e-3):
        p, stitch, _ = planted(scale=scale)
        losses.append(recipe.fit(p, stitch).curve[-1].validation_loss)
    assert losses[1] > 1.5 * losses[0]


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

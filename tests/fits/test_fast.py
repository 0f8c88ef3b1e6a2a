"""The default fit: it finds what is planted, ends no worse than it began, and looks at nothing that it should not."""

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from test_least_squares import Deep
from torch import Tensor, nn

from loops import each
from problems import SOME, affine, built, matching, named, planted, problem, real, side, state, validation_loss
from suture import Seam, Trial, measure
from suture.common.errors import FitError
from suture.core.stitches import Conv, Identity, Linear, Shape, Stitch, StridedConv, UpsampledConv
from suture.core.stitches.base import Part
from suture.fits import Fast, FitReport, LeastSquares, Problem, Random, TaskLoss, fast
from suture.fits.least_squares import accumulate_moments
from trained import bits, convnets, few_digits, hybrids, tensor_bits

SEAMS = [("conv", Conv()), ("norm", Conv(3)), ("embed", Linear()), ("hidden", Linear())]


def bent(shape: Shape, classes: int = 4) -> nn.Module:
    """A suffix that is not linear."""
    torch.manual_seed(1)
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(size, classes)).requires_grad_(False)


def posed(family: Stitch, sender: Shape, receiver: Shape, n: int = 300) -> Problem:
    """A planted stitch, noise on what the receiver shows of itself, and labels that only the stitch gets right."""
    random = torch.Generator().manual_seed(3)
    suffix = bent(receiver)
    x = torch.randn(n, *sender, generator=random) + 1
    with torch.no_grad():
        own = built(family, sender, receiver, seed=9).eval()(x)
        out = suffix(own)
        labels = (out - out.mean(0)).argmax(1)
        own = own + 0.5 * own.std() * torch.randn(own.shape, generator=random)
    parts = [side(x[part], labels[part], own[part]) for part in (slice(n // 2), slice(n // 2, n))]
    return problem(*parts, family, suffix)


# --- laws -------------------------------------------------------------------------------------------------------------


@each(("scale", "mean"), [(1.0, 0.0), (1e-3, 0.0), (1e3, 0.0), (1.0, 30.0)])
def test_it_finds_what_is_planted_whatever_the_sender_s_units(scale, mean):
    p, stitch, accuracy = planted(scale=scale, mean=mean)
    Fast().fit(p, stitch)
    assert accuracy(stitch) > 0.93


@each(("family", "sender", "receiver"), SOME, ids=named)
def test_no_family_ends_worse_than_it_began(family, sender, receiver):
    p = posed(family, sender, receiver)
    start, stitch = (built(family, sender, receiver) for _ in range(2))
    Fast(steps=0).fit(p, start)
    report = Fast().fit(p, stitch)
    assert validation_loss(p, stitch) <= validation_loss(p, start) * (1 + 1e-4) + 1e-6
    assert report.curve[-1].validation_loss == pytest.approx(validation_loss(p, stitch), rel=1e-3)
    assert not any(module.training for module in stitch.modules())


@each(("cut", "family"), SEAMS, ids=lambda given: str(given))
def test_at_a_real_seam_it_is_better_than_the_closed_form(cut, family):
    p, stitch = real(cut, family)
    closed = copy.deepcopy(stitch)
    Fast(steps=0).fit(p, closed)
    report = Fast().fit(p, stitch)
    assert validation_loss(p, stitch) < validation_loss(p, closed)
    losses = [point.validation_loss for point in report.curve]
    assert losses == sorted(losses, reverse=True)
    assert math.isnan(report.curve[0].fit_loss)
    assert report.curve[0].step == 0


def test_features_with_one_direction_and_the_rounding_of_float32_are_solved() -> None:
    """As behind the pooling of a network that learned one thing: the covariance is indefinite by its rounding."""
    random = torch.Generator().manual_seed(0)
    features, samples = 512, 3000
    along = torch.randn(samples, 1, generator=random) * torch.ones(1, features)
    p = matching(Linear(), along, torch.randn(samples, 4, generator=random) + along[:, :4], held=500)
    stitch = built(Linear(), (features,), (4,))
    known = accumulate_moments(p.fit.activations, p.fit.expected(), _part(stitch, p.fit.activations), torch.float32)
    assert float(torch.linalg.eigvalsh(known.xx)[0]) < 0
    indefinite = replace(known, xx=known.xx - 1e-4 * known.scale * torch.eye(features).double())
    weights = torch.stack(list(indefinite.regressions(fast.RIDGES)))
    torch.testing.assert_close(weights.sum(2), torch.ones_like(weights.sum(2)), rtol=0, atol=0.15)
    Fast(steps=0).fit(p, stitch)
    with torch.no_grad():
        out = stitch.eval()(along)
    torch.testing.assert_close(out, math.sqrt(2) * along[:, :4], rtol=0, atol=0.2)  # rescaled to the noisy variance


def _part(stitch: nn.Module, x: Tensor) -> Part:
    (part,) = Linear().parts(stitch, x)
    return part


@each(("family", "sender", "receiver"), SOME, ids=named)
def test_without_steps_it_is_the_closed_form(family, sender, receiver):
    random = torch.Generator().manual_seed(4)
    x = torch.randn(90, *sender, generator=random) + 0.5
    p = matching(family, x, torch.randn(90, *receiver, generator=random), held=30)
    wanted, stitch = (built(family, sender, receiver) for _ in range(2))
    LeastSquares(ridges=fast.RIDGES).fit(p, wanted)
    report = Fast(steps=0).fit(p, stitch)
    with torch.no_grad():
        out = wanted.eval()(x)
        torch.testing.assert_close(stitch(x), out, rtol=1e-3, atol=1e-3 * float(out.abs().max()))
    assert (report.steps, report.converged, report.curve) == (0, False, ())


@each(
    ("family", "sender", "receiver"),
    [
        (Conv(), (5, 3, 3), (4, 3, 3)),
        (StridedConv(batchnorm=True), (3, 4, 4), (4, 2, 2)),
        (UpsampledConv(batchnorm=True), (5, 2, 2), (4, 4, 4)),
    ],
    ids=named,
)
def test_batchnorms_that_add_nothing_change_nothing(family, sender, receiver):
    p = posed(family, sender, receiver)
    bare = replace(family, batchnorm=False)
    normed, plain = built(family, sender, receiver), built(bare, sender, receiver)
    assert any(isinstance(module, nn.BatchNorm2d) for module in normed.modules())
    reports = [Fast().fit(p, normed), Fast().fit(replace(p, family=bare), plain)]
    assert reports[0] == replace(reports[1], curve=reports[0].curve)
    x = p.validation.activations
    with torch.no_grad():
        out = plain(x)
        torch.testing.assert_close(normed(x), out, rtol=1e-3, atol=1e-4 * float(out.abs().max()))


def test_a_batchnorm_that_adds_something_is_kept():
    p, stitch = real("conv", Conv(3))
    Fast().fit(p, stitch)
    assert any(isinstance(module, nn.BatchNorm2d) for module in stitch.modules())


@each(("cut", "family"), SEAMS, ids=lambda given: str(given))
def test_the_same_problem_gives_the_same_bits(cut, family):
    found = []
    for draws in (0, 3):
        p, stitch = real(cut, family, fit=300)
        torch.rand(draws)
        report = Fast().fit(p, stitch)
        found.append((state(stitch), repr(report)))
    assert found[0] == found[1]


def test_nobody_else_s_random_numbers_are_taken():
    p, stitch = real("conv", Conv(), fit=300)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    Fast().fit(p, stitch)
    assert torch.equal(torch.rand(3), wanted)


def test_another_seed_draws_other_batches():
    p, stitch = real("conv", Conv(), fit=300)
    other = copy.deepcopy(stitch)
    Fast().fit(p, stitch)
    Fast().fit(replace(p, seed=1), other)
    assert state(stitch) != state(other)


# --- what it looks at -------------------------------------------------------------------------------------------------


def test_the_validation_data_decide_and_may_keep_the_closed_form():
    p, stitch, _ = planted()
    wrong = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    closed = copy.deepcopy(stitch)
    Fast(steps=0).fit(wrong, closed)
    report = Fast().fit(wrong, stitch)
    np.testing.assert_allclose(affine(stitch, 6)[0], affine(closed, 6)[0], rtol=1e-4, atol=1e-5)
    assert report.steps > 0
    assert {point.validation_loss for point in report.curve} == {report.curve[0].validation_loss}


def test_test_data_never_enter():
    a, b = convnets()
    roles = few_digits()
    trials = [
        Trial(Seam.at(a, b, "stage1.relu"), roles.fit, roles.validation, score)
        for score in (roles.score, roles.score.first(40))
    ]
    first, second = (measure(trial) for trial in trials)
    assert first.trial.fit == Fast()
    assert trials[0].key != trials[1].key
    assert [tensor_bits(t) for t in first.stitch.state_dict().values()] == [
        tensor_bits(t) for t in second.stitch.state_dict().values()
    ]
    assert (first.steps, first.curve) == (second.steps, second.curve)


@each("cut", ["relu", "transpose_2", "hidden"])
def test_a_trial_is_the_same_again(cut):
    a, b = hybrids()
    roles = few_digits()
    trial = Trial(Seam.at(a, b, cut), roles.fit, roles.validation, roles.score)
    assert bits(measure(trial)) == bits(measure(trial))


# --- rates and rounds -------------------------------------------------------------------------------------------------


def test_a_rate_that_diverges_retreats(monkeypatch):
    monkeypatch.setattr(fast, "RATE", 1e4)
    p, stitch, _ = planted()
    closed = copy.deepcopy(stitch)
    Fast(steps=0).fit(p, closed)
    report = Fast(steps=400).fit(p, stitch)
    assert report.converged
    assert all(tensor.isfinite().all() for tensor in stitch.state_dict().values())
    assert validation_loss(p, stitch) <= validation_loss(p, closed) * (1 + 1e-4)


def test_a_round_that_does_harm_is_begun_again_with_a_smaller_rate(monkeypatch):
    monkeypatch.setattr(fast, "RATE", 30.0)
    monkeypatch.setattr(fast, "REACH", 1)
    monkeypatch.setattr(fast, "RETREATS", 12)
    rates = []
    whole = fast.Coordinates.groups
    monkeypatch.setattr(fast.Coordinates, "groups", lambda self, rate: rates.append(rate) or whole(self, rate))
    p, stitch, accuracy = planted()
    Fast(steps=900).fit(p, stitch)
    assert min(rates) <= max(rates) / fast.RETREAT
    assert accuracy(stitch) > 0.9


def rates_of_the_steps(monkeypatch: pytest.MonkeyPatch, steps: int) -> list[float]:
    """The rates of Adam's first group, a number for each step of a fit to labels that no map gets right."""
    rates, step = [], torch.optim.Adam.step
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
        p, stitch, _ = planted(n=80)
        Fast(steps=steps).fit(replace(p, fit=replace(p.fit, labels=p.fit.labels.flip(0))), stitch)
    return rates


def test_a_round_anneals_its_rate_along_half_a_cosine(monkeypatch):
    rates = np.array(rates_of_the_steps(monkeypatch, 20))
    np.testing.assert_allclose(rates / rates[0], (1 + np.cos(np.pi * np.arange(20) / 20)) / 2, rtol=1e-9)


def test_many_steps_take_the_rate_after_the_best_of_a_few(monkeypatch):
    monkeypatch.setattr(fast, "RATES", 1e4)
    monkeypatch.setattr(fast, "RATE", 30.0)
    best, larger, taken, *_ = rates_of_the_steps(monkeypatch, 2 * fast.FIRST + 1)[:: fast.PROBES]
    assert taken == larger == pytest.approx(best * 1e4)


@each("steps", [1, 7, 30, 61, 95, 300])
def test_it_takes_no_more_steps_than_it_may(steps):
    p, stitch = real("conv", Conv(), fit=300)
    report = Fast(steps=steps).fit(p, stitch)
    assert 0 < report.steps <= steps
    assert [point.step for point in report.curve] == sorted({point.step for point in report.curve})
    assert report.curve[-1].step == report.steps


def test_a_short_suffix_may_take_more_of_them():
    p, stitch = real("conv", Conv(), fit=300)
    taken = []
    for share in (1.0, 0.25, 0.01):
        monkey = copy.deepcopy(stitch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast, "WORTH", -1.0)
            taken.append(Fast(steps=20).fit(replace(p, share=share), monkey).steps)
    assert taken == [20, 40, 20 * fast.MORE]


def test_few_samples_are_enough():
    p, stitch, _ = planted(n=12)
    report = Fast(steps=20).fit(p, stitch)
    assert report.steps > 0
    assert all(tensor.isfinite().all() for tensor in stitch.state_dict().values())


# --- families that are otherwise --------------------------------------------------------------------------------------


def test_a_family_without_a_closed_form_begins_at_random():
    p, _, accuracy = planted()
    torch.manual_seed(0)
    stitch = Deep().build((6,), (6,))
    before = accuracy(stitch)
    Fast(steps=600).fit(replace(p, family=Deep()), stitch)
    assert accuracy(stitch) > max(0.8, before)


def test_a_stitch_without_parameters_stays_as_it_is():
    p, _, _ = planted()
    assert Fast().fit(replace(p, family=Identity()), nn.Identity()) == FitReport(gap=0.0)


def test_a_loss_that_is_not_finite_is_named():
    p, stitch, _ = planted()

    class Broken(nn.Module):
        def forward(self, x):
            return x * math.nan

    with pytest.raises(FitError, match="validation loss of A → B at middle is not finite"):
        Fast().fit(replace(p, suffix=problem(p.fit, p.validation, Linear(), Broken()).suffix), stitch)


@each("settings", [{"steps": -1}, {"batch": 0}])
def test_settings_that_are_none_are_refused(settings):
    with pytest.raises(FitError, match="steps must be at least 0, and batch at least 1"):
        Fast(**settings)


def test_it_is_spelled_as_it_is_called():
    assert (str(Fast()), str(Fast(steps=0))) == ("Fast()", "Fast(steps=0)")


# --- what it reads of the receiver ------------------------------------------------------------------------------------


@each(("shape", "samples"), [((4, 32, 32), 1024), ((4, 4, 4), 2048), ((64, 8), 1024), ((9,), 2**15)])
def test_a_map_of_many_positions_needs_few_samples(shape, samples):
    assert Fast().reads(shape) == samples


def test_it_is_given_no_more_of_the_receiver_s_activations_than_it_reads(monkeypatch):
    monkeypatch.setattr(fast, "SAMPLES", 64)
    monkeypatch.setattr(fast, "ROWS", 0)
    sender, receiver = hybrids()
    data = few_digits()
    trial = Trial(Seam.at(sender, receiver, "conv"), data.fit, data.validation, data.score, fit=Fast(steps=5))
    read = [need for need in trial.needs if need.network is receiver and need.index <= len(receiver.cuts)]
    assert {len(need.samples) for need in read} == {64, len(data.validation), len(data.score)}
    few = measure(trial)
    monkeypatch.setattr(Fast, "reads", lambda self, shape: math.inf)
    assert bits(measure(trial)) == bits(few)


class Writes(nn.Module):
    """A stitch that writes into what it reads."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x.sub_(1.0))


@dataclass(frozen=True)
class Writing(Stitch):
    joins = "vectors"

    def accepts(self, sender, receiver):
        return len(sender) == len(receiver) == 1

    def build(self, sender, receiver):
        return Writes(*sender, *receiver)


@each("fit", [Fast(steps=20), TaskLoss(start=Random(), steps=20)], ids=str)
def test_a_stitch_may_write_into_what_it_reads(fit):
    posed, _, _ = planted()
    before = [posed.fit.activations.clone(), posed.validation.activations.clone()]
    fit.fit(replace(posed, family=Writing()), Writing().build((6,), (6,)))
    assert torch.equal(posed.fit.activations, before[0])
    assert torch.equal(posed.validation.activations, before[1])

"""The frozen law: no fit changes a network, not a parameter and not a buffer, by a bit; and who does is caught."""

import copy
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn

from loops import each
from suture import Network, Seam, Trial, measure
from suture.common.errors import FrozenError
from suture.core.stitches import Conv, Identity, Linear, Stitch
from suture.fits import SGD, Fit, FitReport, LeastSquares, OneCycle, Random, TaskLoss
from trained import Hybrid, few_digits, hybrid, hybrids, state_bits, wrap

FITS = {
    "least squares": LeastSquares(),
    "nothing": Random(),
    "task loss": TaskLoss(steps=6, check=3),
    "task loss, published": TaskLoss(start=Random(), steps=6, check=3, patience=None),
    "task loss, SGD": TaskLoss(optimiser=SGD(lr=0.1, weight_decay=1e-3), schedule=OneCycle(), steps=6, check=3),
}
SEAMS = {
    "maps": ("conv", Conv()),
    "maps, no norm": ("drop", Conv(batchnorm=False)),
    "tokens": ("transpose_2", Linear()),
    "vector": ("hidden", Linear()),
    "no stitch": ("relu", Identity()),
}


def trial_of(sender: Network, receiver: Network, cut: str, **settings) -> Trial:
    data = few_digits()
    return Trial(Seam.at(sender, receiver, cut), data.fit, data.validation, data.score, **settings)


@cache
def shared() -> tuple[list[nn.Module], list[Network], list[dict[str, str]]]:
    """Models, networks that share their tensors (``copy=False``), and the bits of the models before any fit."""
    models = [copy.deepcopy(hybrid(seed)).train() for seed in (0, 1)]
    networks = [
        Network(model, example=few_digits().example, name=name, copy=False)
        for model, name in zip(models, "AB", strict=True)
    ]
    return models, networks, [state_bits(model) for model in models]


@each("fit", FITS.values(), ids=FITS)
@each(("cut", "stitch"), SEAMS.values(), ids=SEAMS, few=2)
def test_no_bit_of_a_network_changes(cut, stitch, fit):
    """Nor do all fits one after another change one; the test holds the models in its hand."""
    models, (a, b), before = shared()
    measurement = measure(trial_of(a, b, cut, stitch=stitch, fit=fit))
    assert [state_bits(model) for model in models] == before

    images = few_digits().fit.images[:32]
    stitched = measurement.stitched.train()
    stitched.stitch.requires_grad_(True)
    stitched(images).square().mean().backward() if list(stitched.stitch.parameters()) else stitched(images)
    assert [state_bits(model) for model in models] == before
    assert all(p.grad is None for model in models for p in model.parameters())
    stitched.eval()(images)
    assert [state_bits(model) for model in models] == before


def test_only_the_stitch_trains_and_only_the_stitch_is_in_training_mode():
    a, b = hybrids()
    measurement = measure(trial_of(a, b, "conv", stitch=Conv(), fit=TaskLoss(steps=6, check=3)))
    stitched = measurement.stitched.train()
    training = {name for name, module in stitched.named_modules() if module.training and name}
    assert training == {"stitch"}, "a convolution, which has its norms in it"
    drops = [m for m in stitched.modules() if isinstance(m, nn.Dropout | nn.BatchNorm2d) and not m.training]
    assert len(drops) == 2, "the receiver's own BatchNorm and Dropout, both in evaluation mode"


def test_the_users_model_is_left_alone():
    model = copy.deepcopy(hybrid(0)).train()
    model.drop.eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.hidden.bias.requires_grad_(False)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    modes = {name: module.training for name, module in model.named_modules()}
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    before = state_bits(model)

    network = Network(model, example=few_digits().example)
    measure(trial_of(network, hybrids()[1], "conv", fit=TaskLoss(steps=2)))

    assert state_bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: p.requires_grad for name, p in model.named_parameters()} == wanted
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    calls.clear()
    model(few_digits().example.float())
    assert calls == [1]


def test_training_the_users_model_on_changes_no_measurement():
    model = copy.deepcopy(hybrid(0))
    network = Network(model, example=few_digits().example)
    trial = trial_of(network, hybrids()[1], "hidden", fit=LeastSquares())
    before = measure(trial).scores.loss
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert measure(trial).scores.loss == before


@dataclass(frozen=True)
class CheatsTheSuffix(Fit):
    """Trains what is frozen."""

    what: str

    def fit(self, problem, stitch):
        tensors = dict(problem.suffix.named_parameters()) | dict(problem.suffix.named_buffers())
        name = next(name for name in tensors if name.endswith(self.what))
        tensors[name].data.add_(1e-3 if tensors[name].is_floating_point() else 1)
        return FitReport()


@dataclass(frozen=True)
class RunsInTrainingMode(Fit):
    """Lets the BatchNorms of the suffix see the data, as published code does."""

    def fit(self, problem, stitch):
        for module in problem.suffix.modules():
            module.training = True
        problem.suffix(problem.fit.activations[:64])
        for module in problem.suffix.modules():
            module.training = False
        return FitReport()


@dataclass(frozen=True)
class CheatsTheSender(Stitch):
    """A stitch that works on the network behind it."""

    sender: Network
    joins = "anything"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        weights = next(self.sender.whole().parameters())

        class Cheating(nn.Module):
            def forward(self, x):
                weights.data.mul_(1.001)
                return x

        return Cheating()


@each("what", ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"])
def test_a_fit_that_changes_a_network_is_caught(what):
    receiver = wrap(hybrid(1), "the receiver")
    trial = trial_of(hybrids()[0], receiver, "conv", fit=CheatsTheSuffix(what))
    with pytest.raises(FrozenError, match="changed the frozen network the receiver"):
        measure(trial)


def test_a_fit_that_updates_batch_statistics_is_caught():
    trial = trial_of(hybrids()[0], wrap(hybrid(1), "the receiver"), "conv", fit=RunsInTrainingMode())
    with pytest.raises(FrozenError, match="the receiver"):
        measure(trial)


def test_a_stitch_that_changes_the_sender_is_caught():
    sender = wrap(hybrid(0), "the sender")
    trial = trial_of(sender, hybrids()[1], "conv", stitch=CheatsTheSender(sender), fit=Random())
    with pytest.raises(FrozenError, match="changed the frozen network the sender"):
        measure(trial)


def test_what_was_changed_stays_refused():
    """A caught network is spoilt: nothing more is measured with it, by whatever fit."""
    receiver = wrap(hybrid(1), "the receiver")
    trial = trial_of(hybrids()[0], receiver, "conv", fit=CheatsTheSuffix("weight"))
    with pytest.raises(FrozenError):
        measure(trial)
    with pytest.raises(FrozenError, match="the receiver changed after it was made a Network"):
        measure(replace(trial, fit=LeastSquares()))


def test_a_shared_model_that_was_trained_on_is_refused():
    model = Hybrid()
    shared = Network(model, example=few_digits().example, name="shared", copy=False)
    trial = trial_of(shared, hybrids()[1], "conv", fit=LeastSquares())
    with torch.no_grad():
        model.norm.running_mean.add_(1)
    with pytest.raises(FrozenError, match="shared changed after it was made a Network; make it again"):
        measure(trial)


def test_a_preprocessing_that_reads_what_changed_is_refused():
    """A function reads outer variables when it runs, as in a loop of a notebook; the key is of what they were."""
    shift = 0.0
    sender = wrap(hybrid(0), "the sender", preprocess=lambda x: x - shift)
    trial = trial_of(sender, hybrids()[1], "conv", fit=LeastSquares())
    before = measure(trial).penalty
    shift = 0.5
    with pytest.raises(FrozenError, match=r"the preprocessing of the sender changed after .*lambda x, mean=mean: x"):
        measure(trial)
    shift = 0.0
    assert measure(trial).penalty == before


def test_a_preprocessing_that_changes_while_a_trial_runs_is_caught():
    shifts = [0.0]
    sender = wrap(hybrid(0), "the sender", preprocess=lambda x: x - shifts[0])

    class Changes(LeastSquares):
        def fit(self, problem, stitch):
            shifts[0] = 0.5
            return super().fit(problem, stitch)

    with pytest.raises(FrozenError, match="the preprocessing of the sender changed"):
        measure(trial_of(sender, hybrids()[1], "conv", fit=Changes()))


def test_a_stage_that_reads_what_changed_is_refused():
    factor = 1.0
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    stages = ["0", ("scaled", lambda x: x * factor), "1"]
    sender = Network(model, example=few_digits().example, name="staged", stages=stages)
    trial = trial_of(sender, sender, "0", fit=LeastSquares())
    measure(trial)
    factor = 2.0
    with pytest.raises(FrozenError, match="a function or hook in staged changed after it was made a Network"):
        measure(trial)

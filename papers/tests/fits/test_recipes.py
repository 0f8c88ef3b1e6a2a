"""Schedules have the shape they promise, optimisers the settings they are given, and rates are set once a step; the
published fits are what their papers say, and do what a plain loop with the same settings does.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from loops import each
from problems import planted, real
from suture import Samples
from suture.common.errors import FitError
from suture.common.hashing import identity
from suture.common.seeds import generator
from suture.core.stitches import Conv
from suture.fits import (
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    Fit,
    GradientDescent,
    LeastSquares,
    OneCycle,
    Problem,
    Quick,
    Random,
    Schedule,
    Steps,
    TaskLoss,
)
from suture.fits import base as problem
from suture_papers import recipes
from suture_papers.fits_of_others import MatchPenultimate
from suture_papers.networks import base_model as bases
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import RECIPES as TRAININGS
from suture_papers.recipes import RECIPES, for_epochs, set_rate

STEPS = (1, 2, 3, 7, 10, 100, 391)


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


@each("steps", STEPS)
def test_a_constant_rate_is_constant(steps):
    assert factors(Constant(), steps) == [1.0] * steps


@each("steps", STEPS)
def test_the_cosine_falls_from_the_full_rate_to_zero(steps):
    assert Cosine().factor(0, steps) == 1
    assert Cosine().factor(steps, steps) == pytest.approx(0, abs=1e-15)
    found = factors(Cosine(), steps)
    assert found == sorted(found, reverse=True)
    assert all(0 < factor <= 1 for factor in found)


def test_the_cosine_is_torchs():
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=20)
    for factor in factors(Cosine(), 20):
        assert 0.1 * factor == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()


@each("steps", STEPS)
@each("warmup", [0.0, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_one_cycle_is_a_triangle_with_its_peak_at_the_end_of_warmup(steps, warmup):
    triangle = np.interp(np.arange(1, steps + 1), [0, max(1, warmup * steps), steps + 1], [0, 1, 0])
    assert factors(OneCycle(warmup), steps) == pytest.approx(triangle)
    assert triangle.min() > 0, "no step is lost to a rate of zero"


def test_one_cycle_reaches_the_full_rate_where_the_peak_is_a_whole_step():
    found = factors(OneCycle(0.2), 100)
    assert found[19] == 1
    assert found[0] == pytest.approx(1 / 20)
    assert found[99] == pytest.approx(1 / 81)


@each("recipe", [Adam(0.02), SGD(0.3)], ids=["Adam", "SGD"])
def test_a_rate_is_the_optimisers_times_the_schedules_in_every_group(recipe):
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimiser = recipe.over(parameters)
    optimiser.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 5.0})
    set_rate(optimiser, recipe, Cosine(), 5, 20)
    for group in optimiser.param_groups:
        assert group["lr"] == pytest.approx(recipe.lr * (1 + math.cos(math.pi / 4)) / 2)


def test_optimisers_get_the_settings_of_their_recipe():
    parameters = [nn.Parameter(torch.zeros(2))]
    adam = Adam(0.01, betas=(0.8, 0.9), weight_decay=0.1).over(parameters)
    assert type(adam) is torch.optim.Adam
    assert adam.defaults["lr"] == 0.01
    assert adam.defaults["betas"] == (0.8, 0.9)
    assert adam.defaults["weight_decay"] == 0.1
    sgd = SGD(0.2, momentum=0.5, nesterov=True, weight_decay=0.01).over(parameters)
    assert type(sgd) is torch.optim.SGD
    chosen = {name: sgd.defaults[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}
    assert chosen == {"lr": 0.2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01}


# --- published fits ---------------------------------------------------------------------------------------------------


def rates(fit: GradientDescent, *shares: float) -> list[float]:
    """The learning rate after these shares of all steps."""
    return [fit.optimiser.lr * fit.schedule.factor(round(share * fit.steps), fit.steps) for share in shares]


def sgd(fit: GradientDescent) -> tuple[float, float, float, bool]:
    assert isinstance(fit.optimiser, SGD)
    assert isinstance(fit.schedule, Constant)
    return fit.optimiser.lr, fit.optimiser.momentum, fit.optimiser.weight_decay, fit.optimiser.nesterov


def test_bansal2021():
    """Appendix A.4: "All stitching layers were optimized with Adam cosine learning rate schedule and initial learning
    rate 0.001". Its authors' scripts: batchsize 128, beta1 0.9, beta2 0.999, total_iterations 120000.
    """
    fit = recipes.bansal2021
    assert (fit.start, fit.optimiser) == (Random(), Adam(lr=0.001, betas=(0.9, 0.999), weight_decay=0.0))
    assert rates(fit, 0, 0.25, 0.5, 1) == pytest.approx([1e-3, 1e-3 * (2 + 2**0.5) / 4, 5e-4, 0])
    assert (fit.batch, fit.steps) == (128, 120_000)


def test_hernandez2022():
    """Section 1.2: "it is learned with gradient descent (or some other optimizer) on a frozen prefix/suffix pair", and
    "the copying task: training a stitch to transform the prefix's cached outputs into the suffix's expected inputs
    using a similarity metric like mean squared error". Its authors' code: bsz 256, lr 0.01, epochs 4, wd 0.01,
    momentum 0.9.
    """
    for fit in (recipes.hernandez2022, recipes.hernandez2022_copy):
        assert fit.start == Random()
        assert sgd(fit) == (0.01, 0.9, 0.01, False)
        assert (fit.batch, fit.steps) == (256, 4 * 195)


def test_oxford2025():
    """Section 3: "a batch size of 4, an initial learning rate of 10^{-3} , and a momentum of 0.9"; its listing: "epochs
    = 7"."""
    fit = recipes.oxford2025
    assert fit.start == Random()
    assert sgd(fit) == (1e-3, 0.9, 0, False)
    assert (fit.batch, fit.steps) == (4, 7 * 12_500)


def test_smith2024():
    """Appendix B.1: "Model Stitching batch_size=128, 10 Epochs, SGD, lr=1e-4, momentum=0.9, weight_decay=1e-2" and
    "Noise Stitching batch_size=64, 4 Epochs, SGD, lr=1e-4, momentum=0.9, weight_decay=1e-2", of "SamplesPerClass
    6000". C.2: "50 Epochs for model and stitch training: batch_size=64, SGD, lr=1e-2, momentum=0.9,
    weight_decay=1e-4".
    """
    fits = (recipes.smith2024, recipes.smith2024_noise, recipes.smith2024_vgg)
    assert {fit.start for fit in fits} == {Random()}
    assert [sgd(fit) for fit in fits] == [(1e-4, 0.9, 1e-2, False)] * 2 + [(1e-2, 0.9, 1e-4, False)]
    assert [(fit.batch, fit.steps) for fit in fits] == [(128, 10 * 468), (64, 4 * 937), (64, 50 * 937)]


def test_csiszarik2021():
    """Its authors' stitch_nets.py: optimizer adam, lr 1e-3, weight-decay 0, batch-size 128, epochs 30; "-i ps_inv"; and
    trainer.py: lr_schedule [(0.333, 0.1), (0.666, 0.1)] by epoch / epochs.
    """
    fit = recipes.csiszarik2021
    assert isinstance(fit.start, LeastSquares)
    assert (fit.start.rescale, len(fit.start.ridges)) == (False, 1)
    assert fit.optimiser == Adam(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    assert (fit.batch, fit.steps) == (128, 30 * 390)
    by_epoch = [fit.optimiser.lr * fit.schedule.factor(390 * epoch, fit.steps) for epoch in range(30)]
    assert by_epoch == pytest.approx([1e-3] * 10 + [1e-4] * 10 + [1e-5] * 10)


def test_athanasiadis2025():
    """Its authors' configs/…/low_resolution/resnet18/…/cifar/FuLA.yaml: optimizer adam, lr 0.001, wd 1e-4, lr_decay
    0.1, epochs 30, batch 128, init_transform pinv; and train_stithching.py: steps at 1/3 and 2/3 of the epochs.
    """
    fit = recipes.athanasiadis2025
    assert (fit.start.rescale, fit.start.ridges) == (False, (1e-8,))
    assert fit.optimiser == Adam(lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-4)
    assert (fit.batch, fit.steps) == (128, 30 * 390)
    by_epoch = [fit.optimiser.lr * fit.schedule.factor(390 * epoch, fit.steps) for epoch in range(30)]
    assert by_epoch == pytest.approx([1e-3] * 10 + [1e-4] * 10 + [1e-5] * 10)


def test_mai2026():
    """Abstract: "a simple feature-matching loss at the target model's penultimate layer", then the task's."""
    fit = recipes.mai2026
    assert isinstance(fit, TaskLoss)
    assert isinstance(fit.start, MatchPenultimate)
    assert fit.start.start == Random()


@each("name", RECIPES)
def test_nothing_of_ours_is_in_a_published_fit(name):
    fit = RECIPES[name]
    assert isinstance(fit, GradientDescent)
    assert (fit.patience, fit.retries, fit.standardise) == (None, 0, False)
    assert getattr(recipes, name.replace("-", "_")) is fit


PLAIN = {
    "bansal2021": (lambda p: torch.optim.Adam(p), lambda s: 1e-3 * (1 + math.cos(math.pi * s / 6)) / 2),
    "hernandez2022": (lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-2), lambda s: 1e-2),
    "hernandez2022-copy": (lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-2), lambda s: 1e-2),
    "oxford2025": (lambda p: torch.optim.SGD(p, momentum=0.9), lambda s: 1e-3),
    "smith2024": (lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-2), lambda s: 1e-4),
    "smith2024-noise": (lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-2), lambda s: 1e-4),
    "smith2024-vgg": (lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=1e-4), lambda s: 1e-2),
    "csiszarik2021": (lambda p: torch.optim.Adam(p), lambda s: 1e-3 * 0.1 ** (s // 2)),
    "athanasiadis2025": (lambda p: torch.optim.Adam(p, weight_decay=1e-4), lambda s: 1e-3 * 0.1 ** (s // 2)),
    "mai2026": (lambda p: torch.optim.Adam(p), lambda s: 1e-3 * (1 + math.cos(math.pi * s / 6)) / 2),
}
"""Every published fit of six steps as torch's optimiser, and its learning rate at a step."""


def drawn(p: Problem, batch: int) -> Iterator[Tensor]:
    """The batches of a fit: epoch by epoch without replacement, whole ones only."""
    random, n = generator("batches", p.seed), len(p.fit.labels)
    while True:
        order = torch.randperm(n, generator=random)
        yield from (order[at : at + batch] for at in range(0, n - batch + 1, batch))


def hints(suffix: nn.Module, represented: Tensor, own: Tensor) -> Tensor:
    """The mean relative distance at the cut and behind each layer but the last: of hybrids, from the maps on."""
    seen: list[list[Tensor]] = []
    for x in (represented, own):
        seen.append([x])
        for segment in suffix.segments:
            seen[-1].append(segment(seen[-1][-1]))
    pairs = list(zip(*seen, strict=True))[:-1]
    return sum(torch.dist(a, b) / b.norm() for a, b in pairs) / len(pairs)


@each("name", RECIPES)
def test_a_published_fit_is_a_plain_loop(name):
    fit = RECIPES[name]
    assert isinstance(fit, GradientDescent)
    p, stitch = real("conv", Conv(), fit=600)
    by_hand = copy.deepcopy(stitch)
    short = replace(fit, steps=6)
    if name == "mai2026":
        short = replace(short, start=replace(fit.start, steps=6))
        short.start.fit(p, by_hand)
    short.fit(p, stitch)

    if name in ("csiszarik2021", "athanasiadis2025"):
        LeastSquares(ridges=(1e-8,), rescale=False).fit(p, by_hand)
    make, rate = PLAIN[name]
    optimiser = make(by_hand.parameters())
    expected = p.fit.expected()
    by_hand.train()
    for step, chosen in zip(range(6), drawn(p, fit.batch), strict=False):
        optimiser.param_groups[0]["lr"] = rate(step)
        represented = by_hand(p.fit.activations[chosen])
        if name == "hernandez2022-copy":
            loss = (represented - expected[chosen]).square().mean() / expected.var(0, correction=0).mean()
        elif name == "athanasiadis2025":
            loss = hints(p.suffix, represented, expected[chosen])
        else:
            loss = nn.functional.cross_entropy(p.suffix(represented), p.fit.labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for key, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(stitch.state_dict()[key], tensor, rtol=1e-4, atol=1e-6, msg=key)


@each("name", RECIPES)
def test_a_published_fit_goes_by_its_name(name):
    fit = RECIPES[name]
    assert isinstance(fit, GradientDescent)
    assert str(fit) == str(copy.deepcopy(fit)) == name
    assert str(replace(fit, steps=40)) == f"{name}(steps=40)"
    assert str(replace(fit, steps=40, batch=7)).startswith(f"{type(fit).__name__}(")


def test_a_fit_of_ones_own_is_spelled_as_a_call():
    assert str(TaskLoss(steps=120_000)) == "TaskLoss(steps=120000)"
    assert str(Random()) == "Random()"


@pytest.mark.parametrize("fit", RECIPES.values(), ids=str)
def test_a_name_is_no_part_of_what_a_fit_is(fit: Fit, monkeypatch):
    known = identity(fit)
    monkeypatch.setattr(problem, "PUBLISHED", {})
    assert identity(fit) == identity(copy.deepcopy(fit)) == known
    assert str(fit).startswith(type(fit).__name__)


def test_published_fits_are_told_apart():
    assert len({identity(fit) for fit in RECIPES.values()}) == len(RECIPES) == len(set(RECIPES.values()))
    assert [name for name in RECIPES if "_" in name] == []


@each(("samples", "epoch"), [(1000, 7), (128, 1), (127, 1), (1, 1), (383, 2)])
def test_so_many_epochs(samples, epoch):
    fit = for_epochs(recipes.bansal2021, 3, samples)
    assert (fit.steps, fit.check) == (3 * epoch, epoch)
    assert replace(fit, steps=120_000, check=390) == recipes.bansal2021


def test_an_epoch_sees_every_sample_once():
    """Within the first epoch of a fit no check is made, and then one."""
    p, stitch, _ = planted(n=600)
    report = for_epochs(replace(recipes.smith2024, batch=60), 2, len(p.fit.labels)).fit(p, stitch)
    assert [point.step for point in report.curve] == [0, 5, 10]


@each("rate", [-1e-3, float("nan")])
@each("optimiser", [Adam, AdamW, SGD])
def test_rates_below_0_and_no_numbers_are_refused(optimiser, rate):
    with pytest.raises(FitError, match=rf"{optimiser.__name__}\(lr={rate}\): the learning rate must be at least 0"):
        optimiser(lr=rate)


@each("settings", [{"steps": 1.5}, {"batch": 1.5}], ids=str)
@each("fit", [TaskLoss, Quick])
def test_numbers_of_steps_and_samples_are_whole(fit, settings):
    with pytest.raises(FitError, match=rf"{fit.__name__}: {next(iter(settings))}=1.5 is not a whole number"):
        fit(**settings)


@each(("epochs", "samples"), [(0, 10), (1, 0), (-1, 10)])
def test_fewer_epochs_than_one_are_refused(epochs, samples):
    with pytest.raises(FitError, match="both must be at least 1"):
        for_epochs(recipes.smith2024, epochs, samples)


# --- keys of what was made when every class got its registered name ---------------------------------------------------

MADE = {
    SGD(lr=0.05, momentum=0.9): "70ccaace0404",
    Adam(): "d08a4272b378",
    AdamW(): "cc84870a06c0",
    Constant(): "2adfeab3162b",
    Steps(): "b180e450a3c9",
    Cosine(): "c8bb90243d80",
    OneCycle(): "7ec8be67f574",
    TRAININGS["bansal2021"]: "5a36a7822c5e",
}


@each(("thing", "known"), MADE.items(), ids=lambda of: str(of).partition("(")[0])
def test_optimisers_are_what_they_were(thing, known):
    assert identity(thing).startswith(known)
    assert type(thing).__module__ != "suture_papers.recipes", "it moved"


def test_a_trained_network_is_found_again(monkeypatch):
    monkeypatch.setattr(bases, "VERSION", 2)
    images = torch.arange(6 * 3 * 8 * 8, dtype=torch.uint8).reshape(6, 3, 8, 8)
    samples = Samples("some", images, torch.arange(6) % 3, tuple("abc"))
    made = {"bansal2021": "292287372969704b58b7", "bansal2021-vit": "bace64c03a4efe195ebd"}
    assert {name: BaseModel("zoo:mlp,width=6,classes=3", samples, TRAININGS[name]).key for name in made} == made

"""Training by recipe: reproducible, augmented as asked, and as good as it says."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from problems import Spied
from suture import Samples
from suture.cli import demo
from suture.common.errors import FitError
from suture.data.preprocess import Preprocess
from suture.fits import SGD, Adam, Constant, OneCycle
from suture_papers.networks.architectures import convnet
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import CropFlip, Recipe, train
from suture_papers.training.loop import choose_layout
from trained import Hybrid, accuracy, digits, state_bits

SHORT = Recipe(epochs=2, batch=64, augment=CropFlip(1))


def narrow() -> nn.Module:
    """With dropout, which draws from the global generator."""
    return nn.Sequential(convnet(width=2), nn.Dropout(0.2))


def few() -> Samples:
    return digits().fit.take(torch.arange(150), "few")


# --- reproducible -----------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_weights_whatever_the_threads_and_the_global_generator():
    found = []
    before = torch.get_num_threads()
    for threads, noise in ((1, 0), (2, 1), (1, 2)):
        torch.set_num_threads(threads)
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        found.append(state_bits(train(narrow, few(), SHORT, seed=5)))
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_another_seed_gives_other_weights():
    one, two = (state_bits(train(narrow, few(), SHORT, seed=seed)) for seed in (0, 1))
    assert all(one[name] != two[name] for name in one if name.endswith("conv.weight"))


def test_initialisation_and_batches_both_come_from_the_seed():
    still = replace(SHORT, optimiser=SGD(0.0), epochs=1)
    one, two = (train(narrow, few(), still, seed=seed) for seed in (0, 1))
    assert not torch.equal(one[0].head.weight, two[0].head.weight)

    def alike() -> nn.Module:
        torch.manual_seed(0)
        return convnet(width=2)

    one, two = (train(alike, few(), SHORT, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.head.weight, two.head.weight)


def test_the_network_is_handed_over_in_evaluation_mode_and_trainable():
    model = train(narrow, few(), replace(SHORT, epochs=1), 0)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


# --- as asked ---------------------------------------------------------------------------------------------------------


def test_the_rates_really_used_are_one_cycle_over_all_steps():
    spied = Spied(SGD(0.5))
    train(narrow, few(), Recipe(epochs=5, batch=30, optimiser=spied, schedule=OneCycle(0.4)), 0)
    up = [0.05 * step for step in range(1, 11)]
    down = [0.5 * left / 16 for left in range(15, 0, -1)]
    assert spied.rates == pytest.approx(up + down), "25 steps, the peak at the tenth"


class Seeing(nn.Module):
    """Writes down the batches that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.head(x.flatten(1))


def test_every_epoch_shows_every_sample_once_in_another_order():
    recipe = Recipe(epochs=3, batch=50, optimiser=Adam(0.0), schedule=Constant())
    seen = train(Seeing, few(), recipe, 0).seen
    assert [len(batch) for batch in seen] == [50] * 9
    epochs = [torch.cat(seen[3 * i : 3 * i + 3]) for i in range(3)]
    wanted = sorted((few().images.float() / 255).flatten(1).tolist())
    for epoch in epochs:
        assert sorted(epoch.flatten(1).tolist()) == wanted
    assert not torch.equal(epochs[0], epochs[1])


def test_networks_are_trained_on_preprocessed_images():
    preprocess = Preprocess(mean=(0.5,), std=(0.25,))
    plain, prepared = (
        torch.cat(train(Seeing, few(), Recipe(epochs=1, batch=50), 0, preprocess=p).seen) for p in (None, preprocess)
    )
    torch.testing.assert_close(prepared, (plain - 0.5) / 0.25)


def test_whoever_watches_sees_the_mean_loss_of_each_epoch():
    told: list[tuple[int, float]] = []
    recipe = Recipe(epochs=2, batch=50, optimiser=SGD(0.0))
    model = train(Seeing, few(), recipe, 0, watch=lambda step, _, losses: told.append((step, *losses)))
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(few().images.float() / 255), few().labels)
    mean = pytest.approx(float(loss), rel=1e-5)
    assert told == [(1,), (2,), (3, mean), (4, mean), (5, mean), (6, mean, mean)]


def test_a_loss_that_is_not_finite_is_an_error_that_names_epoch_and_rate():
    recipe = Recipe(epochs=3, batch=30, optimiser=SGD(3e38), schedule=Constant())
    with pytest.raises(FitError, match=r"training diverged in epoch 1; try a smaller learning rate than 3e\+38"):
        train(Seeing, few(), recipe, 0)


# --- augmentation -----------------------------------------------------------------------------------------------------


def test_augmentation_is_drawn_anew_for_every_batch_of_every_epoch():
    recipe = Recipe(epochs=2, batch=150, augment=CropFlip(2), optimiser=SGD(0.0))
    first, second = train(Seeing, few(), recipe, 0).seen
    assert not torch.equal(first.flatten(1).sum(1).sort().values, second.flatten(1).sum(1).sort().values)


# --- as good as it says -----------------------------------------------------------------------------------------------


def test_the_digits_recipe_reads_digits():
    model = train(lambda: convnet(width=8), digits().fit, DIGITS, seed=0)
    assert accuracy(model, digits().score.images.float() / 255, digits().score.labels) > 0.95


# --- in memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "capability", "layout"),
    [
        (4, 1, 2, "AVX2", torch.contiguous_format),
        (4, 1, 2, "DEFAULT", torch.contiguous_format),
        (4, 1, 2, "AVX512", torch.channels_last),
        (1, 1, 2, "AVX2", torch.channels_last),
        (8, 1, 2, "AVX2", torch.channels_last),
        (4, 3, 2, "AVX2", torch.channels_last),
        (4, 1, 1, "AVX2", torch.channels_last),
    ],
)
def test_channels_are_last_but_where_a_gradient_would_overrun_its_memory(
    channels, kernel, stride, capability, layout, monkeypatch
):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    model = nn.Sequential(nn.Conv2d(channels, 16, kernel, stride))
    assert choose_layout(model, torch.device("cpu")) == layout
    assert choose_layout(model, torch.device("cuda")) == torch.channels_last


@pytest.mark.slow
def test_a_narrow_residual_network_trains_to_the_weights_that_plain_pytorch_reaches():
    """In a process of its own, since what this guards against ends the process."""
    done = subprocess.run([sys.executable, "-c", _NARROW], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


_NARROW = """
import copy
import torch
from torch import nn
from suture import Samples
from suture.fits import SGD, Constant
from suture_papers.networks import NETWORKS
from suture_papers.training import Recipe, train

made = torch.Generator().manual_seed(0)
images = torch.rand(32, 3, 16, 16, generator=made)
labels = torch.randint(0, 10, (32,), generator=made)
samples = Samples("noise", images, labels, tuple(map(str, range(10))))
kept = []

def build():
    kept.append(NETWORKS["resnet"](blocks=(1, 1, 1), width=4))
    kept.append(copy.deepcopy(kept[0]).double().train())
    return kept[0]

trained = train(build, samples, Recipe(steps=3, batch=32, optimiser=SGD(lr=0.1), schedule=Constant()), seed=0)
plain = kept[1]
descent = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=SGD(lr=0.1).momentum)
for _ in range(3):
    descent.zero_grad()
    nn.functional.cross_entropy(plain(images.double()), labels).backward()
    descent.step()
for ours, theirs in zip(trained.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4)
"""


def test_the_demo_trains_its_networks_as_the_recipe_does() -> None:
    """In a few lines of its own, since it needs no package of the papers."""
    fit = digits().fit
    for build, name in ((demo.convnet, "convnet"), (Hybrid, "with a dropout")):
        ours, recipe = demo.train(build, fit, 3, epochs=1), Recipe(epochs=1, batch=demo.BATCH)
        theirs = train(partial(convnet, demo.WIDTH) if build is demo.convnet else build, fit, recipe, 3)
        assert state_bits(ours) == state_bits(theirs), name

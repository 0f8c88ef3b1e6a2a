"""Training on a GPU: what is drawn is what the CPU draws, the result is as good, and killed or not it is the same."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suture.common.seeds import generator
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import Checkpoints, CropFlip, Prune, Recipe, SimCLR, SimCLRView, Training
from trained import digits, state_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]
RECIPES = {
    "float32": Recipe(epochs=2, batch=100, augment=CropFlip(1)),
    "bfloat16": Recipe(epochs=2, batch=100, augment=CropFlip(1), precision="fast"),
    "pruned": Recipe(epochs=2, batch=100, prune=Prune(0.1, 3)),
    "simclr": Recipe(epochs=2, batch=100, objective=SimCLR(projection=8), augment=SimCLRView()),
}


@pytest.mark.parametrize("augment", [CropFlip(2), SimCLRView()])
def test_draws_are_the_cpus(augment) -> None:
    images = digits().fit.images[:64]
    here = augment(images, generator("draws"))
    there = augment(images.cuda(), generator("draws")).cpu()
    torch.testing.assert_close(there, here)


def model(recipe: Recipe, device: str = "cuda") -> BaseModel:
    return BaseModel("zoo:convnet,width=4", digits().fit, recipe, 1, scored_on=(digits().score,), device=device)


def test_it_is_as_good_as_on_the_cpu_and_the_same_network_by_its_key() -> None:
    there, here = model(DIGITS).train().record, model(DIGITS, "cpu").train().record
    assert there["network"] == here["network"]
    assert there["device"] == "cuda"
    a, b = (each["scores"][0]["accuracy"]["value"] for each in (there, here))
    assert abs(a - b) < 0.02
    assert a > 0.95


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_seed_gives_the_same_bits(recipe: Recipe, tmp_path: Path) -> None:
    whole = model(recipe).train()
    assert not whole.failed
    assert whole.tensors == model(recipe).train().tensors

    def watch(step: int, *_: object) -> None:
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Training(*_arguments(recipe), device="cuda", watch=watch).run(Checkpoints(tmp_path, {}), every=0)
    resumed = Training(*_arguments(recipe), device="cuda").run(Checkpoints(tmp_path, {}))
    assert state_bits(resumed) == state_bits(Training(*_arguments(recipe), device="cuda").run())


def _arguments(recipe: Recipe):
    from suture_papers.networks.architectures import convnet

    return (lambda: convnet(width=4)), digits().fit, replace(recipe), 1

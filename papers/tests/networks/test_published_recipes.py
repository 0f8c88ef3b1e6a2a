"""The recipes of the papers, against their texts."""

import pytest

from suture.fits import Adam, AdamW, Optimiser, Steps
from suture_papers.networks.recipes import RECIPES
from suture_papers.training import L1, L2, CropFlip, Recipe, SimCLR, SimCLRView, Unchanged


def rate(recipe: Recipe, step: int, samples: int = 50_000) -> float:
    return recipe.optimiser.lr * recipe.schedule.factor(step, recipe.count_steps(samples))


def settings(optimiser: Optimiser) -> tuple[float, float, float]:
    assert not isinstance(optimiser, Adam | AdamW)
    return optimiser.lr, optimiser.momentum, optimiser.weight_decay  # type: ignore[attr-defined]


def test_bansal2021_appendix_a2() -> None:
    resnets = RECIPES["bansal2021"]
    assert resnets.count_steps(50_000) == resnets.count_steps(5_000) == 64_000
    assert settings(resnets.optimiser) == (0.05, 0.9, 1e-4)
    steps = (0, 31_999, 32_000, 47_999, 48_000, 63_999)
    assert [rate(resnets, step) for step in steps] == pytest.approx([0.05, 0.05, 0.01, 0.01, 0.002, 0.002])
    assert (resnets.batch, resnets.augment, resnets.precision) == (128, CropFlip(crop=4, flip=True), "float32")
    myrtle = RECIPES["bansal2021-myrtle"]
    assert [rate(myrtle, step) for step in (0, 40_000, 79_999)] == [1, 1, 1]
    assert myrtle.count_steps(50_000) == 80_000


def test_oxford2025_section_3() -> None:
    for name in ("oxford2025", "oxford2025-simple", "oxford2025-complex"):
        recipe = RECIPES[name]
        assert settings(recipe.optimiser) == (1e-3, 0.9, 0.0)
        assert (recipe.batch, recipe.augment) == (4, Unchanged())
        assert rate(recipe, 10**5) == 1e-3
        assert recipe.stop is not None
    assert isinstance(RECIPES["oxford2025-simple"].penalty, L1)
    assert RECIPES["oxford2025-simple"].prune is not None
    assert isinstance(RECIPES["oxford2025-complex"].penalty, L2)


def test_smith2024_appendices_b1_and_c2() -> None:
    resnet, vgg = RECIPES["smith2024"], RECIPES["smith2024-vgg"]
    assert (settings(resnet.optimiser), resnet.batch, resnet.epochs) == ((0.1, 0.9, 1e-4), 128, 4)
    assert (settings(vgg.optimiser), vgg.batch, vgg.epochs) == ((1e-2, 0.9, 1e-4), 64, 50)
    assert rate(resnet, 1000) == 0.1


def test_simclr_appendix_b9() -> None:
    for name in ("simclr", "simclr-small"):
        assert RECIPES[name].objective == SimCLR(temperature=0.5)
        assert RECIPES[name].augment == SimCLRView(strength=0.5)


def test_the_stepped_recipe_is_bansals_in_a_tenth_of_its_steps() -> None:
    whole, tenth = RECIPES["bansal2021"], RECIPES["stepped"]
    assert tenth.count_steps(50_000) == pytest.approx(whole.count_steps(50_000) / 10, rel=0.03)
    for share in (0, 0.49, 0.51, 0.74, 0.76, 0.99):
        steps = (int(share * each.count_steps(50_000)) for each in (whole, tenth))
        assert len({rate(recipe, step) for recipe, step in zip((whole, tenth), steps, strict=True)}) == 1
    assert whole.schedule == tenth.schedule == Steps((0.5, 0.75), 0.2)

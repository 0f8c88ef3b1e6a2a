"""Scales: the ledger's networks and data at tiny, small and the papers' sizes."""

from dataclasses import replace

import pytest
import torch

from suture.common.errors import SutureError
from suture.data import Data
from suture.fits import Converged, Quick
from suture.zoo.models import resolve
from suture_papers import Scale, recipes, scale_named
from suture_papers.base.plans import pair_seeds
from suture_papers.base.scale import EPOCHS, MANY, PAPER, SCALES, SMALL, TINY, Name, find_entry, scale_entry, stand_in
from suture_papers.ledger import LEDGER, make_models
from suture_papers.networks.recipes import RECIPES
from suture_papers.variants import Half, Subset

NAMES = [known.name for known in LEDGER]


@pytest.fixture(scope="module")
def tiny() -> Scale:
    return scale_named("tiny")


# Networks


def test_every_network_is_built_for_its_data_at_tiny(tiny: Scale) -> None:
    for known in LEDGER:
        base = tiny.base(known.name, known.seeds[0])
        built = resolve(base.source)
        outputs = built.model.eval()(built.preprocess(base.samples.images[:2].float() / 255))
        assert outputs.shape == (2, len(base.samples.classes)), known.name
        assert sum(p.numel() for p in built.model.parameters()) < 300_000, known.name
        assert (base.recipe.steps, base.recipe.epochs, base.recipe.stop) == (2, None, None), known.name


def test_every_network_resolves_at_the_papers_sizes() -> None:
    for known in LEDGER:
        paper = scale_entry(known, PAPER)
        with torch.device("meta"):
            sizes = [sum(p.numel() for p in resolve(one.source).model.parameters()) for one in (known, paper)]
        assert sizes[1] >= sizes[0], known.name
        assert paper.settings == RECIPES[paper.recipe], known.name
        assert paper.epochs is None, known.name
        assert ("small" in paper.recipe, "fast" in paper.recipe) == (False, False), known.name


def test_the_papers_widths() -> None:
    sources = {name: scale_entry(find_entry(name), PAPER).source for name in NAMES}
    assert sources["resnet18"] == "zoo:resnet,blocks=(2,2,2,2),width=64"
    assert sources["resnet18 w0.25"] == "zoo:resnet,blocks=(2,2,2,2),width=16"
    assert sources["resnet18 objects-animals"] == "zoo:resnet,blocks=(2,2,2,2),width=64,classes=2"
    assert sources["resnet18 digit"] == "zoo:resnet,blocks=(2,2,2,2),width=64,stem=7x7"
    assert (sources["vit"], sources["resnet164"]) == ("zoo:vit", "zoo:resnet164")


def test_epochs_on_the_way_are_those_of_their_names_in_the_paper() -> None:
    untils = [scale_entry(find_entry(f"resnet18 epoch {epoch}"), PAPER).until for epoch in ("40", "80", "160")]
    assert untils == [40, 80, None]


def test_small_scale_is_the_ledger(tiny: Scale) -> None:
    small = Scale("small", lambda name: stand_in(name).limited())
    (made,) = make_models([replace(find_entry("mlp"), seeds=(11,))], stand_in)
    assert small.base("mlp", 11).key == made.key
    assert all(scale_entry(known, SMALL) is known for known in LEDGER)
    assert small.base("mlp", 11) is small.base("mlp", 11)
    assert tiny.base("mlp", 11).key != made.key


def test_what_a_network_starts_from_is_of_the_same_scale(tiny: Scale) -> None:
    base = tiny.base("resnet18 freeze B.4", 11)
    assert base.start is not None
    assert base.start.key == tiny.base("resnet18 5000 samples", 11).key


def test_seeds() -> None:
    small, tiny = (scale_named(name, stand_in) for name in ("small", "tiny"))
    assert small.seeds("cnn") == (10, 11, 12, 13, 14)
    assert small.seeds("cnn", "resnet18 w2") == (10, 11, 12)
    assert small.seeds("cnn no trucks B", "cnn") == ()
    assert tiny.seeds("cnn no trucks B") == (15, 16)


def test_no_network_that_decides_was_seen_before_the_readings_were_chosen() -> None:
    assert all(seed >= 10 for known in LEDGER for seed in known.seeds)


def test_the_papers_scale_has_seeds_enough_for_an_interval() -> None:
    small, paper = (scale_named(name, stand_in) for name in ("small", "paper"))
    assert (small.seeds("resnet18 w2"), paper.seeds("resnet18 w2")) == ((10, 11, 12), (10, 11, 12, 13, 14))
    assert paper.seeds("cnn") == (10, 11, 12, 13, 14)


@pytest.mark.parametrize(
    ("sender", "receiver", "joined"),
    [
        ("resnet18 w2", "resnet18 w2", [(10, 11), (10, 12), (11, 10), (11, 12), (12, 10), (12, 11)]),
        ("resnet18 w0.25", "resnet18 w2", [(10, 11), (11, 12), (12, 10)]),
        ("resnet18 w2", "resnet18 w0.25", [(10, 11), (11, 12), (12, 13)]),
        ("resnet18", "resnet34", [(10, 10)]),
    ],
)
def test_networks_of_one_kind_meet_each_other_and_those_of_two_kinds_one(
    sender: str, receiver: str, joined: list[tuple[int, int]]
) -> None:
    assert pair_seeds(scale_named("small", stand_in), sender, receiver) == joined


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(SutureError, match="no network 'resnet19' in the ledger"):
        find_entry("resnet19")
    with pytest.raises(SutureError, match="no scale 'huge'; valid: tiny, small, paper"):
        scale_named("huge")


# Data


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32)), ("mnist+cifar10", (3, 64, 32))]
)
def test_what_stands_in_has_the_shape_of_the_data(name: str, shape: tuple[int, ...]) -> None:
    data = stand_in(name)
    assert data.example.shape[1:] == shape
    assert data.example.dtype == torch.uint8
    assert len(data.score.classes) == 10
    if name == "cifar10":
        assert {"automobile", "cat", "truck"} < set(data.score.classes)


def test_subsets_shrink_where_small_images_stand_in() -> None:
    def training(scale: Scale) -> int:
        return len(scale.data("cifar10", Subset(5_000)).training)

    assert training(scale_named("tiny")) == training(Scale("small", stand_in)) == 10
    with pytest.raises(SutureError, match="cannot take 5000 training samples"):
        Scale("small", lambda name: stand_in(name)).data("cifar10", Subset(5_000))


def test_small_scale_fits_and_scores_on_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suture_papers.base.scale.MANY", (50, 30))
    monkeypatch.setattr("suture_papers.base.scale.FEW", (20, 10))
    small, paper = Scale("small", stand_in), Scale("paper", stand_in)

    def sizes(data: Data) -> tuple[int, int]:
        return len(data.fit), len(data.score)

    assert sizes(small.data("cifar10")) == (50, 30)
    assert sizes(small.data("cifar10", few=True)) == (20, 10)
    assert sizes(paper.data("cifar10", few=True)) == sizes(stand_in("cifar10"))
    assert small.asked == (("cifar10", (), False), ("cifar10", (), True))


def test_data_is_loaded_once() -> None:
    asked: list[str] = []

    def load(name: str) -> Data:
        asked.append(name)
        return stand_in(name)

    small = Scale("small", load)
    assert small.data("mnist", Half(0)) is small.data("mnist", Half(0))
    small.base("mnist cnn", 10), small.base("mnist cnn", 11)
    assert asked == ["mnist"]


# Fits


@pytest.mark.parametrize("name", SCALES)
def test_the_default_fit(name: Name) -> None:
    assert Scale(name, stand_in).fit == (Quick(steps=2) if name == TINY else Converged())


@pytest.mark.parametrize("recipe", [recipes.bansal2021, recipes.hernandez2022, recipes.smith2024], ids=str)
def test_a_published_fit_is_the_papers_for_fewer_epochs(recipe: recipes.TaskLoss) -> None:
    small, paper = Scale("small", stand_in), Scale("paper", stand_in)
    assert paper.published(recipe) is recipe
    fit = small.published(recipe)
    assert fit.steps == EPOCHS * (MANY[0] // recipe.batch)
    assert replace(fit, steps=recipe.steps, check=recipe.check) == recipe
    assert small.published(recipe, whole=True) is recipe
    assert scale_named("tiny").published(recipe).steps == 2

"""Variants that take from the data or relabel them: exact counts, what stays, and every refusal with its remedy."""

import ast
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from loops import each
from suture.common.errors import DataError
from suture.data import Data, Samples
from suture.data.changes import Variant, vary
from suture.data.tasks import DenseClassification, MultiLabel
from suture_papers.variants import (
    OBJECTS_ANIMALS,
    VARIANTS,
    Correlated,
    Grey3,
    Half,
    RandomLabels,
    Relabelled,
    Subset,
    SuperClasses,
    Without,
)

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def make(fit: int = 60, validation: int = 12, score: int = 40, classes: Sequence[str] = CIFAR) -> Data:
    """Images that are all different: their first pixels count them, through all roles."""
    count = fit + validation + score
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(count) % 256, torch.arange(count) // 256
    labels = torch.arange(count) * 7 % len(classes)
    parts = zip(images.split([fit, validation, score]), labels.split([fit, validation, score]), strict=True)  # type: ignore[no-untyped-call]
    roles = [Samples(f"toy/{role}", *part, tuple(classes)) for role, part in zip(ROLES, parts, strict=True)]
    return Data("toy", *roles)


ROLES = ("fit", "validation", "score")
TOY = make()


def ids(samples: Samples) -> list[int]:
    return [int(first) + 256 * int(second) for first, second in samples.images[:, 0, 0]]


def training(data: Data) -> list[int]:
    return ids(data.fit) + ids(data.validation)


def counts(samples: Samples) -> dict[str, int]:
    return dict(
        zip(samples.classes, torch.bincount(samples.labels, minlength=len(samples.classes)).tolist(), strict=True)
    )


def test_training_is_fit_and_validation() -> None:
    assert TOY.training.name == "toy/training"
    assert ids(TOY.training) == training(TOY) == list(range(72))
    assert TOY.training.labels.tolist() == TOY.fit.labels.tolist() + TOY.validation.labels.tolist()
    assert TOY.training is TOY.training
    with pytest.raises(DataError, match="pairs are broken"):
        _ = replace(TOY, fit=TOY.fit.shuffled(0)).training


TRAINING_ONLY = [
    Subset(20),
    Half(),
    Half(1, seed=3),
    Without("truck"),
    Relabelled("automobile", "cat"),
    RandomLabels(0.5),
]
EVERY_ROLE = [
    Relabelled("automobile", "cat", everywhere=True),
    RandomLabels(0.5, everywhere=True),
    OBJECTS_ANIMALS,
    Grey3(),
    Correlated(),
]


@each("variant", TRAINING_ONLY, ids=str)
def test_what_a_network_is_taught_may_be_spoilt_and_what_it_is_scored_on_not(variant: Variant) -> None:
    varied = variant(TOY)
    assert varied.score is TOY.score
    assert varied.name == f"toy {variant.summary}"
    for role in ("fit", "validation"):
        assert getattr(varied, role).name == f"toy {variant.summary}/{role}"
        assert getattr(varied, role).fingerprint != getattr(TOY, role).fingerprint


@each("variant", EVERY_ROLE, ids=str)
def test_another_task_or_kind_of_image_is_that_of_every_role(variant: Variant) -> None:
    varied = variant(TOY)
    for role in ROLES:
        assert getattr(varied, role).name == f"toy {variant.summary}/{role}"
        assert getattr(varied, role).fingerprint != getattr(TOY, role).fingerprint


def test_what_is_given_stays_as_it_is() -> None:
    before = [getattr(make(), role).fingerprint for role in ROLES]
    for variant in TRAINING_ONLY + EVERY_ROLE:
        variant(TOY)
    assert [_fresh(getattr(TOY, role)) for role in ROLES] == before


def _fresh(samples: Samples) -> str:
    return replace(samples).fingerprint


def test_variants_apply_in_order() -> None:
    first, second = Relabelled("cat", "dog"), Without("dog")
    once, other = vary(TOY, first, second), vary(TOY, second, first)
    assert once.name == "toy cat as dog without dog"
    assert once.fit.name == "toy cat as dog without dog/fit"
    assert (counts(once.fit)["cat"], counts(once.fit)["dog"]) == (0, 0)
    assert (counts(other.fit)["cat"], counts(other.fit)["dog"]) == (0, 6)
    assert vary(TOY) is TOY


def test_names_of_what_was_limited_keep_their_ending() -> None:
    assert Without("truck")(TOY.limited(fit=30)).fit.name == "toy without truck/fit[:30]"


# --- subsets and halves -------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.integers(2, 40), st.data())
def test_a_subset_has_exactly_n_in_proportion_and_holds_the_smaller_ones(f: int, v: int, more: st.DataObject) -> None:
    data = make(f, v, 2)
    n = more.draw(st.integers(4, f + v))
    seed = more.draw(st.integers(0, 3))
    subset, smaller = Subset(n, seed)(data), Subset(more.draw(st.integers(4, n)), seed)(data)
    assert len(subset.fit) + len(subset.validation) == n
    assert abs(len(subset.validation) - n * v / (f + v)) <= 0.5 or 2 in (len(subset.fit), len(subset.validation))
    for role in ("fit", "validation"):
        kept = ids(getattr(subset, role))
        assert kept == sorted(set(kept))
        assert set(ids(getattr(smaller, role))) <= set(kept) <= set(ids(getattr(data, role)))


def test_all_samples_are_a_subset_and_seeds_differ() -> None:
    assert training(Subset(72)(TOY)) == training(TOY)
    assert training(Subset(20)(TOY)) == training(Subset(20)(make()))
    assert training(Subset(20)(TOY)) != training(Subset(20, seed=1)(TOY))
    assert Subset(20, seed=1)(TOY).name == "toy 20 samples (seed 1)"
    assert [len(getattr(Subset(30)(TOY), role)) for role in ROLES] == [25, 5, 40]


@given(st.integers(4, 40), st.integers(4, 40), st.integers(0, 3))
def test_halves_are_disjoint_and_together_all(f: int, v: int, seed: int) -> None:
    data = make(f, v, 2)
    halves = [Half(which, seed)(data) for which in (0, 1)]
    for role in ("fit", "validation"):
        assert sorted(ids(getattr(halves[0], role)) + ids(getattr(halves[1], role))) == ids(getattr(data, role))
    assert abs(len(training(halves[0])) - len(training(halves[1]))) <= 1


def test_samples_are_chosen_by_their_images_whatever_their_labels() -> None:
    for chosen in (Half(1), Subset(30)):
        assert training(vary(TOY, RandomLabels(1.0), chosen)) == training(chosen(TOY))


# --- labels -------------------------------------------------------------------------------------------------


def test_a_class_is_relabelled_and_keeps_its_place() -> None:
    varied = Relabelled("automobile", "cat")(TOY)
    assert counts(varied.fit) == counts(TOY.fit) | {"automobile": 0, "cat": 12}
    assert varied.classes == TOY.classes
    was, now = TOY.fit.labels, varied.fit.labels
    assert torch.equal(now != was, was == 1)
    assert set(now[was == 1].tolist()) == {3}
    everywhere = Relabelled("automobile", "cat", everywhere=True)(TOY)
    assert counts(everywhere.score) == counts(TOY.score) | {"automobile": 0, "cat": 8}
    assert everywhere.fit.images is TOY.fit.images


def test_classes_left_out_are_gone_and_keep_their_place() -> None:
    varied = Without("truck | bird")(TOY)
    assert counts(varied.fit) == counts(TOY.fit) | {"truck": 0, "bird": 0}
    assert varied.classes == TOY.classes
    assert ids(varied.fit) == [i for i in range(60) if TOY.fit.labels[i] not in (2, 9)]
    assert Without("truck")(TOY).fit.name == "toy without truck/fit"


@given(st.floats(0, 1), st.integers(0, 5))
def test_at_most_a_share_of_labels_is_random(p: float, seed: int) -> None:
    varied, all_random = RandomLabels(p, seed)(TOY), RandomLabels(1.0, seed)(TOY)
    new, old, drawn = (data.training.labels for data in (varied, TOY, all_random))
    assert int((new != old).sum()) <= round(72 * p)
    assert bool(((new == old) | (new == drawn)).all())
    assert training(varied) == training(TOY)


@each("p", [0.1, 0.5, 1.0])
def test_exactly_that_share_of_labels_is_drawn_from_all_classes(p: float) -> None:
    data = make(9000, 1000, 2000)
    # A class that no sample has, in the place of the true one, shows which labels were drawn.
    marked = _marked(data)
    drawn = RandomLabels(p, seed=1)(marked).training.labels
    touched = drawn != 10
    again = RandomLabels(p, seed=1)(data)
    expected = round(10_000 * p)
    kept_by_chance = expected / 11  # drawn as the eleventh class
    assert abs(int(touched.sum()) - (expected - kept_by_chance)) < 5 * (kept_by_chance**0.5)
    assert chisquare(torch.bincount(drawn[touched], minlength=10).numpy()).pvalue > 1e-3
    wrong = float((again.training.labels != data.training.labels).float().mean())
    assert abs(wrong - p * 0.9) < 5 * (p * 0.9 * 0.1 / 10_000) ** 0.5
    assert again.score is data.score
    everywhere = RandomLabels(p, seed=1, everywhere=True)(data)
    scored = float((everywhere.score.labels != data.score.labels).float().mean())
    assert abs(scored - p * 0.9) < 5 * (p * 0.9 * 0.1 / 2000) ** 0.5
    assert torch.equal(everywhere.training.labels, again.training.labels)


def _marked(data: Data) -> Data:
    """Every label an eleventh class; but the first, because data of one class are refused."""

    def label(samples: Samples) -> torch.Tensor:
        labels = torch.full_like(samples.labels, 10)
        labels[:1] = 0
        return labels

    return Data("toy", *(replace(s, labels=label(s), classes=(*CIFAR, "none")) for s in _roles(data)))


def _roles(data: Data) -> list[Samples]:
    return [getattr(data, role) for role in ROLES]


def test_the_count_of_random_labels_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.randint

    def never_an_old_label(high: int, size: Any, **more: Any) -> torch.Tensor:
        return draw(high, size, **more).fill_(10)

    monkeypatch.setattr(torch, "randint", never_an_old_label)
    data = Data("toy", *(replace(s, classes=(*CIFAR, "none")) for s in _roles(TOY)))
    for p in (0.0, 0.1, 0.25, 0.5, 0.99, 1.0):
        labels = RandomLabels(p)(data).training.labels
        assert int((labels == 10).sum()) == round(72 * p)


def test_objects_and_animals_are_all_ten_classes() -> None:
    varied = OBJECTS_ANIMALS(TOY)
    assert varied.classes == ("animal", "object")
    assert varied.name == "toy as animal or object"
    animals = {"bird", "cat", "deer", "dog", "frog", "horse"}
    for role in ROLES:
        was, now = getattr(TOY, role), getattr(varied, role)
        assert now.images is was.images
        assert [CIFAR[label] not in animals for label in was.labels] == now.labels.bool().tolist()


def test_super_classes_are_read_from_text_as_from_a_mapping() -> None:
    groups = {"b": ["one", "three"], "a": ["two"]}
    data = make(classes=("one", "two", "three"))
    assert SuperClasses("b: one | three;a:two")(data).fit.fingerprint == SuperClasses.of(groups)(data).fit.fingerprint
    assert SuperClasses.of(groups)(data).classes == ("b", "a")
    assert SuperClasses.of(groups)(data).fit.labels.tolist() == [int(label == 1) for label in data.fit.labels]


# --- bad input ----------------------------------------------------------------------------------------------


@each(
    ("make_it", "says"),
    [
        (
            lambda: Without("trucks")(TOY),
            "without trucks: toy has no class 'trucks'; did you mean 'truck'. its classes",
        ),
        (lambda: Without("truck|lorry")(TOY), "toy has no class 'lorry'; its classes: 'airplane', 'automobile'"),
        (lambda: Without("")(TOY), "no class ''"),
        (lambda: Without("|".join(CIFAR))(TOY), r"leaves 0 samples in toy/fit, and 2 are needed; leave out fewer"),
        (lambda: Relabelled("car", "cat")(TOY), "toy has no class 'car'; did you mean 'cat'"),
        (lambda: Relabelled("cat", "automobil")(TOY), "did you mean 'automobile'"),
        (lambda: Relabelled("cat", "cat"), "'cat' is relabelled as itself"),
        (lambda: Subset(73)(TOY), r"cannot take 73 .* of toy; valid: 4 to 72, .* fit \(60\) and validation \(12\)"),
        (lambda: Subset(3)(TOY), "cannot take 3 .* valid: 4 to 72"),
        (lambda: Half(2), "no half 2 of the data; valid: 0 and 1"),
        (lambda: Half()(make(60, 3)), "cannot halve toy/validation: it has 3 samples, and each half needs 2"),
        (lambda: RandomLabels(-0.1), "share of random labels is -0.1; valid: 0 to 1"),
        (lambda: RandomLabels(10), "share of random labels is 10; valid: 0 to 1"),
        (lambda: RandomLabels(float("nan")), "share of random labels is nan"),
        (lambda: SuperClasses("a: cat; b: dog")(TOY), "of toy miss 'airplane', 'automobile', 'bird', .* of 'a', 'b'"),
        (lambda: SuperClasses("a: cat|dog; b: dog")(TOY), "name 'dog' twice; put it into one group"),
        (
            lambda: SuperClasses("a: cat|hog; b: dog")(TOY),
            "super-class 'a': toy has no class 'hog'; did you mean 'dog'",
        ),
        (lambda: SuperClasses("a: cat"), "give at least two, each once"),
        (lambda: SuperClasses("a: cat; a: dog"), "give at least two, each once"),
        (lambda: SuperClasses("cat; dog"), "with the classes they are made of, as in 'animal: bird|cat"),
        (lambda: SuperClasses("a: cat|; b: dog"), "with the classes they are made of"),
        (lambda: Grey3()(Correlated()(TOY)), "has 3 channels; grey3 is for grey images of 1"),
    ],
)
def test_what_cannot_be_is_refused(make_it: Callable[[], object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        make_it()


def test_taking_from_broken_pairs_is_refused() -> None:
    with pytest.raises(DataError, match="its pairs are broken"):
        Half()(replace(TOY, fit=TOY.fit.shuffled(0)))


# --- by name, and the same everywhere -----------------------------------------------------------------------


def test_every_variant_has_a_name_and_settings_that_a_command_line_can_write() -> None:
    plain = (bool, int, float, str)
    for variant in VARIANTS.values():
        cls = variant if isinstance(variant, type) else type(variant)
        hints = get_type_hints(cls)
        assert all(hints[field.name] in plain for field in fields(cls) if field.init)
    own = [cls for cls in Variant.__subclasses__() if cls.__module__ == "suture_papers.variants"]
    kinds = {cls for cls in own if not cls.__name__.startswith("_")}
    assert kinds <= set(VARIANTS.values())
    assert len(set(VARIANTS.values())) == len(VARIANTS) == 14


#: What changes here changes every result measured on the variant, and makes base networks be trained anew.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "subset": ({"n": 500}, "681557158ec053dcef"),
    "half": ({"which": 1}, "2297a92200c553dcef"),
    "without": ({"classes": "3"}, "0bee379d57e753dcef"),
    "relabelled": ({"label": "1", "to": "7"}, "c9c87073f84e53dcef"),
    "random-labels": ({"p": 0.1}, "164f32e7e25053dcef"),
    "super-classes": ({"groups": "even: 0|2|4|6|8; odd: 1|3|5|7|9"}, "fc2304c3bd34eb28a5"),
    "grey3": ({}, "329694551f61197e29"),
    "correlated": ({}, "6e1fe7b853b241220b"),
    "digit": ({}, "3dfcc7f052fdf31aec"),
    "colour": ({}, "c007a2bc259847a952"),
    "colour-only": ({}, "2f696262e8d174971d"),
    "decorrelated": ({}, "4c8c1b172443e57bf8"),
    "blacked-out": ({"side": "lower"}, "b94f424024b3703d2e"),
    "covered": ({"top": 0, "left": 0, "height": 4, "width": 8}, "55266be92983af56b4"),
}
PROGRAM = """
from suture.data import load_data
from suture.data.changes import VARIANTS as CHANGES
from suture_papers.variants import VARIANTS
found = {}
for name, settings in reversed(CASES.items()):
    source = "digits+digits" if name in ("decorrelated", "blacked-out") else "digits"
    data = {**CHANGES, **VARIANTS}[name](**settings)(load_data(source))
    found[name] = "".join(samples.fingerprint[:6] for samples in (data.fit, data.validation, data.score))
"""


@pytest.mark.slow
def test_a_variant_is_the_same_in_every_process() -> None:
    cases = {name: settings for name, (settings, _) in CASES.items()}
    here: dict[str, Any] = {"CASES": cases}
    exec(PROGRAM, here)
    program = f"CASES = {cases!r}\n{PROGRAM}\nprint(found)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ast.literal_eval(other.stdout) == here["found"] == {name: pinned for name, (_, pinned) in CASES.items()}


@each("variant", [Without("dog"), Relabelled("dog", "cat"), RandomLabels(0.5), SuperClasses("a: cat; b: dog")])
def test_labels_that_are_no_classes_are_not_changed_as_if_they_were(variant: Variant) -> None:
    toy, marks = make(classes=("cat", "dog")), torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])
    marked = (
        replace(one, labels=marks.repeat(len(one) // 4, 1), task=MultiLabel())
        for one in (toy.fit, toy.validation, toy.score)
    )
    with pytest.raises(DataError, match="needs a class for each sample, and the task of toy is multi-label"):
        variant(Data("toy", *marked))


def test_classes_of_pixels_are_relabelled() -> None:
    toy = make(classes=("cat", "dog"))
    roles = (toy.fit, toy.validation, toy.score)
    pixels = [one.labels[:, None, None].repeat(1, 2, 2) for one in roles]
    maps = (replace(one, labels=own, task=DenseClassification()) for one, own in zip(roles, pixels, strict=True))
    changed = Relabelled("dog", "cat")(Data("toy", *maps))
    assert changed.fit.labels.eq(0).all()
    assert changed.score.labels.eq(1).any()

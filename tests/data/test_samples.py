"""Samples and their roles: what is refused, what a fingerprint sees, what shuffling and splitting promise."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loops import each
from suture.common.errors import DataError
from suture.data import Data, Samples, load_data

CLASSES = ("cat", "dog", "truck")


def make(count: int = 12, name: str = "toy", seed: int = 0) -> Samples:
    """Images that are all different: the first pixel counts them."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 2, 4, 5), dtype=torch.uint8, generator=source)
    images[:, 0, 0, 0] = torch.arange(count) % 256
    images[:, 0, 0, 1] = torch.arange(count) // 256
    return Samples(name, images, torch.randint(0, 3, (count,), generator=source), CLASSES)


def ids(samples: Samples) -> list[int]:
    return [int(first) + 256 * int(second) for first, second in samples.images[:, 0, 0, :2]]


def as_floats(samples: Samples) -> Samples:
    return replace(samples, images=samples.images.float() / 255)


@each("count", [2, 3, 4, 9])
def test_example_is_the_first_images_at_most_four(count: int) -> None:
    samples = make(count)
    assert len(samples) == count
    assert torch.equal(samples.example, samples.images[: min(4, count)])


def test_floats_may_touch_both_ends_of_the_unit_interval() -> None:
    samples = as_floats(make())
    edges = torch.stack([torch.zeros(2, 4, 5), torch.ones(2, 4, 5)])
    assert len(replace(samples, images=edges, labels=torch.tensor([0, 1]))) == 2


def with_pixel(value: float) -> Callable[[Samples], Tensor]:
    def spoil(samples: Samples) -> Tensor:
        images = samples.images.float() / 255
        images[3, 1, 2, 2] = value
        return images

    return spoil


@each(
    ("spoil", "says"),
    [
        (lambda s: s.images[:, 0], r"shape \(12, 4, 5\); they must be \(N, C, H, W\).*unsqueeze\(1\)"),
        (lambda s: s.images[:, :0], r"shape \(12, 0, 4, 5\)"),
        (lambda s: s.images.numpy(), "are a ndarray; they must be a torch tensor"),
        (lambda s: s.images.int(), r"dtype torch.int32; they must be uint8 .* images / 255"),
        (lambda s: s.images.float(), r"range from 0 to 255; .* finite and in \[0, 1\]: divide 0..255 by 255"),
        (with_pixel(-0.01), r"range from -0.01 to 1"),
        (with_pixel(1.01), r"range from 0 to 1.01"),
        (with_pixel(float("nan")), "range from nan to nan; floats must be finite"),
        (with_pixel(float("-inf")), "range from -inf to 1; floats must be finite"),
        (lambda s: s.images[:1], "has 1 sample; at least 2"),
        (lambda s: s.images[:0], "has 0 samples; at least 2"),
    ],
)
def test_images_that_cannot_be_measured_on_are_refused(spoil: Callable[[Samples], Tensor], says: str) -> None:
    samples = make()
    with pytest.raises(DataError, match=f"'toy'.*{says}"):
        replace(samples, images=spoil(samples))


@each(
    ("labels", "says"),
    [
        (None, "data without labels"),
        ([0] * 12, r"data without labels \(a list given\)"),
        (torch.zeros(12), r"dtype torch.float32; .*labels.long\(\)"),
        (torch.zeros(12, dtype=torch.int32), "dtype torch.int32"),
        (torch.zeros(11, dtype=torch.int64), r"shape \(11,\); its 12 samples need labels of shape \(12,\)"),
        (torch.zeros(12, 2, dtype=torch.int64), r"shape \(12, 2\)"),
        (torch.full((12,), 3), "range from 3 to 3; its 3 classes allow 0 to 2"),
        (torch.full((12,), -1), "range from -1 to -1; .*leave out samples without one"),
    ],
)
def test_labels_that_name_no_class_are_refused(labels: Tensor, says: str) -> None:
    with pytest.raises(DataError, match=f"'toy'.*{says}"):
        replace(make(), labels=labels)


def test_fingerprint_is_the_content_and_not_its_name_or_layout() -> None:
    samples = make()
    strided = samples.images.to(memory_format=torch.channels_last)
    flipped = samples.images.flip(0).clone().flip(0)
    assert not strided.is_contiguous()
    for same in (
        make(name="another"),
        replace(samples, images=strided),
        replace(samples, images=flipped),
        replace(samples, labels=torch.stack([samples.labels, samples.labels], 1)[:, 0]),
    ):
        assert same.fingerprint == samples.fingerprint
        assert same.image_fingerprint == samples.image_fingerprint


@given(st.integers(0, 11), st.integers(0, 1), st.integers(0, 3), st.integers(0, 4), st.integers(1, 255))
def test_fingerprint_sees_every_pixel(n: int, c: int, h: int, w: int, change: int) -> None:
    samples = make()
    images = samples.images.clone()
    images[n, c, h, w] += change
    changed = replace(samples, images=images)
    assert changed.image_fingerprint != samples.image_fingerprint
    assert changed.fingerprint != samples.fingerprint


@given(st.integers(0, 11), st.integers(1, 2))
def test_fingerprint_sees_every_label(n: int, change: int) -> None:
    samples = make()
    labels = samples.labels.clone()
    labels[n] = (labels[n] + change) % 3
    changed = replace(samples, labels=labels)
    assert changed.image_fingerprint == samples.image_fingerprint
    assert changed.fingerprint != samples.fingerprint


def test_fingerprint_sees_shape_dtype_classes_and_pairing() -> None:
    samples = make()
    zeros = torch.zeros(12, 2, 4, 5)
    variants = [
        samples,
        replace(samples, images=samples.images.view(12, 2, 5, 4)),
        replace(samples, images=zeros),
        replace(samples, images=zeros.double()),
        replace(samples, images=zeros.bfloat16()),
        replace(samples, images=zeros.half()),
        replace(samples, classes=("dog", "cat", "truck")),
        replace(samples, pairing=torch.arange(12)),
        samples.shuffled(0),
        samples.shuffled(1),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)


@each("count", [1023, 1024, 1025, 2500])
def test_fingerprint_does_not_depend_on_how_the_images_are_cut_for_hashing(count: int) -> None:
    samples = make(count)
    padded = torch.cat([samples.images, samples.images], 3)[..., :5]
    assert replace(samples, images=padded).fingerprint == samples.fingerprint
    last = samples.images.clone()
    last[-1, -1, -1, -1] ^= 1
    assert replace(samples, images=last).fingerprint != samples.fingerprint


def test_take_copies_in_the_order_asked() -> None:
    samples = make()
    taken = samples.take(torch.tensor([7, 0, 7]), "some")
    assert (taken.name, ids(taken), taken.classes) == ("some", [7, 0, 7], CLASSES)
    assert torch.equal(taken.labels, samples.labels[[7, 0, 7]])
    taken.images.zero_()
    assert ids(samples) == list(range(12))


def test_take_refuses_broken_pairs() -> None:
    with pytest.raises(DataError, match="'toy shuffled', because its pairs are broken: take first, then shuffle"):
        make().shuffled(0).take(torch.arange(4), "some")


@given(st.integers(2, 60), st.integers(0, 2**40))
def test_shuffling_is_one_cycle_through_all_samples(count: int, seed: int) -> None:
    pairing = make(count).shuffled(seed).pairing
    assert pairing is not None
    visited, here = [], 0
    for _ in range(count):
        here = int(pairing[here])
        visited.append(here)
    assert sorted(visited) == list(range(count))  # one cycle: so a permutation, and none its own partner


def test_shuffling_breaks_the_pairs_and_nothing_else() -> None:
    samples = make()
    shuffled = samples.shuffled(5)
    assert shuffled.name == "toy shuffled"
    assert shuffled.images is samples.images
    assert shuffled.labels is samples.labels
    assert samples.pairing is None
    assert samples.paired_labels is samples.labels
    assert shuffled.pairing is not None
    expected = [int(samples.labels[partner]) for partner in shuffled.pairing.tolist()]
    assert shuffled.paired_labels.tolist() == expected


def test_shuffling_follows_the_seed_and_the_content_not_the_name() -> None:
    def pairing(samples: Samples, seed: int) -> list[int]:
        shuffled = samples.shuffled(seed).pairing
        assert shuffled is not None
        return shuffled.tolist()

    assert pairing(make(), 1) == pairing(make(name="another"), 1)
    assert pairing(make(), 1) != pairing(make(), 2)
    assert pairing(make(), 1) != pairing(make(seed=9), 1)


def test_shuffling_draws_every_cycle_alike() -> None:
    samples = make(4)
    drawn = [tuple(samples.shuffled(seed).pairing.tolist()) for seed in range(600)]  # type: ignore[union-attr]
    counts = [drawn.count(cycle) for cycle in set(drawn)]
    assert len(counts) == 6  # (4 − 1)!
    assert min(counts) > 60  # of 100 expected, standard deviation 9


@given(st.integers(4, 300), st.floats(0.01, 0.99))
def test_split_is_disjoint_and_covers_the_training_samples(count: int, fraction: float) -> None:
    train, test = make(count), make(5, seed=1)
    size = round(fraction * count)
    if not 2 <= size <= count - 2:
        with pytest.raises(DataError, match=r"of 'toy' \(\d+ samples\) leaves fewer than 2"):
            Data.split("x", train, test, fraction)
        return
    data = Data.split("x", train, test, fraction)
    assert len(data.validation) == size
    assert sorted(ids(data.fit) + ids(data.validation)) == list(range(count))
    for part in (data.fit, data.validation):
        assert torch.equal(part.labels, train.labels[ids(part)])
    assert data.score.images is test.images


def test_test_samples_that_lie_class_by_class_are_shuffled_and_others_are_not() -> None:
    """Else the first few, of which much is made, would be of one class; a folder of images lies so."""
    train, test = make(100), make(60, seed=1)
    sorted_ = test.take(test.labels.argsort(stable=True), "sorted")
    score = Data.split("x", train, sorted_).score
    assert sorted(ids(score)) == sorted(ids(sorted_))
    assert set(score.labels[:20].tolist()) == set(test.labels.tolist())
    assert torch.equal(Data.split("y", train, sorted_).score.labels, score.labels)
    assert torch.equal(score.labels, sorted_.labels[[ids(sorted_).index(i) for i in ids(score)]])
    assert torch.equal(Data.split("x", train, test).score.labels, test.labels)
    first, second = sorted_.labels.argsort(stable=True)[::2], sorted_.labels.argsort(stable=True)[1::2]
    folders = Data.split("x", train, sorted_.take(torch.cat([first, second]), "two folders")).score
    assert set(folders.labels[:20].tolist()) == set(test.labels.tolist())


@each("dtype", [torch.uint8, torch.float32, torch.bfloat16], ids=str)
@each(("shared", "refused"), [(60, True), (7, True), (6, False), (0, False)])
def test_test_images_that_were_trained_on_are_refused(shared: int, refused: bool, dtype: torch.dtype) -> None:
    """Six of sixty are a tenth. Where they lie, and what they are labelled, does not matter."""

    def cast(samples: Samples) -> Samples:
        images = samples.images if dtype == torch.uint8 else (samples.images.float() / 255).to(dtype)
        return replace(samples, images=images)

    train = make(100)
    test = make(60, seed=1)
    test.images[60 - shared :] = train.images[20 : 20 + shared]
    if refused:
        with pytest.raises(
            DataError, match=rf"{shared} of the 60 images of 'x/score' are also in x/fit or x/validation"
        ):
            Data.split("x", cast(train), cast(test))
    else:
        Data.split("x", cast(train), cast(test))


def test_bytes_and_floats_of_one_image_are_the_same_image() -> None:
    """Divided or multiplied, in any precision; floats between the levels are others, alike in float32 and float64."""
    samples, levels = make(300), make(300).images.double() / 255
    for images in (levels, *(levels.to(t) for t in (torch.float32, torch.float16, torch.bfloat16))):
        assert replace(samples, images=images).contents == samples.contents
    multiplied = samples.images.float() * torch.tensor(1 / 255)
    assert not torch.equal(multiplied, levels.float())
    assert replace(samples, images=multiplied).contents == samples.contents
    between = (levels * 0.999).float()
    assert not set(replace(samples, images=between).contents) & set(samples.contents)
    assert replace(samples, images=between.double()).contents == replace(samples, images=between).contents
    ids = torch.arange(20).view(5, 4)
    columns = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    columns["attention_mask"][3:, 3] = 0
    alone, masked = (Samples("x", given, torch.zeros(5, dtype=torch.long), CLASSES) for given in (ids, columns))
    assert len({*alone.contents, *masked.contents}) == 10


@given(st.integers(30, 150), st.floats(0.1, 0.6), st.integers(0, 99), st.booleans())
def test_copies_of_an_image_are_never_on_both_sides_of_a_cut(
    count: int, fraction: float, seed: int, floats: bool
) -> None:
    """Labels tell which image a sample is a copy of. Sides keep their sizes, but for the copies of one image."""
    kinds = torch.randint(count // 2, (count,), generator=torch.Generator().manual_seed(seed))
    train = Samples("x", make(count).images[kinds], kinds, tuple(map(str, range(count))))
    test = replace(make(5, seed=1), classes=train.classes)
    data = Data.split("x", *((as_floats(train), as_floats(test)) if floats else (train, test)), fraction)
    assert sorted([*data.fit.labels.tolist(), *data.validation.labels.tolist()]) == sorted(kinds.tolist())
    assert 0 <= len(data.validation) - round(fraction * count) < int(kinds.bincount().max())
    limited = data.limited(fit=len(data.fit) // 2)
    for one in (data, limited):
        assert not {*one.fit.labels.tolist()} & {*one.validation.labels.tolist()}
    left = data.fit.labels[len(limited.fit) :]
    assert len(limited.validation) == len(data.validation) + int((~torch.isin(left, limited.fit.labels)).sum())


def test_images_that_repeat_by_nature_are_cut_as_they_lie() -> None:
    """Five plain colours of a hundred samples are on both sides, and stay there in what is limited."""
    kinds = torch.arange(100) % 5
    train = Samples("x", make(5).images[kinds], kinds % 3, CLASSES)
    data = Data.split("x", train, make(5, seed=1), 0.2)
    assert len(data.validation) == 20
    assert len(data.limited(fit=10).validation) == 90


def test_split_names_the_roles_and_shares_one_cut() -> None:
    first = Data.split("x", make(100), make(5))
    second = Data.split("y", make(100, name="another"), make(7, seed=3))
    assert (first.fit.name, first.validation.name, first.score.name) == ("x/fit", "x/validation", "x/score")
    assert ids(first.validation) == ids(second.validation)
    assert ids(first.validation) != list(range(10)), "the cut must be random"
    assert first.classes == CLASSES
    assert torch.equal(first.example, first.fit.images[:4])


@each("fraction", [0.0, 1.0, -0.5, 2.0, float("nan"), 0.01])
def test_split_refuses_fractions_that_leave_nothing(fraction: float) -> None:
    with pytest.raises(DataError, match=r"leaves fewer than 2 .*; give more samples, or a fraction in"):
        Data.split("x", make(100), make(5), fraction)


def test_roles_of_different_shape_or_classes_are_refused() -> None:
    train, test = make(20), make(5)
    with pytest.raises(DataError, match=r"'x/score' are \(2, 5, 4\) and those of 'x/fit' \(2, 4, 5\).*size="):
        Data.split("x", train, replace(test, images=test.images.view(5, 2, 5, 4)))
    with pytest.raises(DataError, match=r"classes of 'x/score' are .*'deer'"):
        Data.split("x", train, replace(test, classes=(*CLASSES, "deer")))


@each(("roles", "named"), [("aab", "also in x"), ("baa", "also in x or x"), ("aba", "also in x or x")])
def test_the_same_images_in_two_roles_are_refused(roles: str, named: str) -> None:
    """Wherever they lie, and in another order; but what repeats within a role may repeat in another."""
    sets = {"a": make(60), "b": make(60, seed=1)}
    with pytest.raises(DataError, match=f"60 of the 60 images of 'x' are {named}: the samples that are scored"):
        Data("x", *(sets[role].take(torch.randperm(60), "x") for role in roles))
    few = make(60)
    few.images[:] = few.images[:1]
    Data("x", few, few, few)


def test_limited_takes_whole_numbers() -> None:
    with pytest.raises(DataError, match=r"10\.5 is not a whole number"):
        Data.split("x", make(100), make(50, seed=1), 0.2).limited(fit=10.5)  # type: ignore[arg-type]


def test_limited_keeps_the_first_samples_and_says_so() -> None:
    data = Data.split("x", make(100), make(50, seed=1), 0.2)
    limited = data.limited(fit=40, score=10)
    assert ids(limited.fit) == ids(data.fit)[:40]
    assert ids(limited.score) == ids(data.score)[:10]
    assert [limited.fit.name, limited.score.name] == ["x/fit[:40]", "x/score[:10]"]


@each(("enough", "added"), [(5_000, 40), (30, 10), (20, 0), (10, 0)])
def test_limited_validates_on_what_is_not_fitted(monkeypatch: pytest.MonkeyPatch, enough: int, added: int) -> None:
    monkeypatch.setattr("suture.data.roles.VALIDATED", enough)
    data = Data.split("x", make(100), make(50, seed=1), 0.2)
    validation = data.limited(fit=40).validation
    assert ids(validation) == ids(data.validation) + ids(data.fit)[40 : 40 + added]
    assert validation.labels.tolist() == [*data.validation.labels, *data.fit.labels[40 : 40 + added]]
    assert validation.name == (f"x/validation and {added} not fitted" if added else "x/validation")


def test_what_is_validated_apart_is_scored_no_more_and_filled_up_by_nothing() -> None:
    data = load_data("digits")
    made = data.validated_apart(100)
    assert (len(made.validation), len(made.score)) == (100, len(data.score) - 100)
    assert {*made.validation.contents} | {*made.score.contents} == {*data.score.contents}
    assert not {*made.validation.contents} & {*made.score.contents}
    assert (made.validation.name, made.score.name) == (
        "digits/score (100 to validate on)",
        "digits/score (without 100)",
    )
    assert made.fit is data.fit
    limited = made.limited(fit=200, score=50)
    assert limited.validation is made.validation, "no image that a network may have been trained on"
    assert limited.score.name == "digits/score (without 100)[:50]"
    assert data.validated_apart(100).validation.fingerprint == made.validation.fingerprint
    assert data.validated_apart(150).validation.fingerprint != made.validation.fingerprint


@pytest.mark.parametrize("count", [1, 596, 597])
def test_what_leaves_too_few_on_a_side_cannot_be_apart(count: int) -> None:
    with pytest.raises(DataError, match=f"{count} of the 597 samples of 'digits/score' to validate on leave fewer"):
        load_data("digits").validated_apart(count)


def test_limited_to_what_there_is_changes_nothing() -> None:
    data = Data.split("x", make(100), make(50, seed=1))
    for limited in (data.limited(), data.limited(fit=90, score=50)):
        assert limited.fit is data.fit
        assert limited.validation is data.validation
        assert limited.score is data.score


@each(
    ("limits", "says"),
    [
        ({"fit": 91}, "'x/fit' to 91; valid: 2 to 90"),
        ({"fit": 1}, "'x/fit' to 1; valid: 2 to 90"),
        ({"score": 0}, "'x/score' to 0; valid: 2 to 50"),
        ({"score": 51}, "'x/score' to 51; valid: 2 to 50"),
        ({"score": -3}, "'x/score' to -3; valid: 2 to 50"),
    ],
)
def test_limited_refuses_more_than_there_is_and_less_than_two(limits: dict[str, int], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Data.split("x", make(100), make(50, seed=1)).limited(**limits)


@each(
    ("fitted", "scored"), [(torch.uint8, torch.float32), (torch.float64, torch.uint8), (torch.float16, torch.float32)]
)
def test_the_same_images_in_another_type_are_refused(fitted: torch.dtype, scored: torch.dtype) -> None:
    images = make(60).images
    one, other = (
        replace(make(60), images=images if t == torch.uint8 else (images / 255).to(t)) for t in (fitted, scored)
    )
    with pytest.raises(DataError, match=r"60 of the 60 images of 'toy' are also in toy"):
        Data("x", one, make(60, seed=1), other)


def test_channels_at_the_end_and_labels_in_a_column_are_taken():
    images, labels = torch.rand(6, 3, 9, 8), torch.arange(6) % 2
    first = Samples("s", images, labels, ("a", "b"))
    last = Samples("s", images.permute(0, 2, 3, 1), labels[:, None], ("a", "b"))
    assert last.fingerprint == first.fingerprint
    assert torch.equal(last.images, images)
    few = torch.rand(6, 7, 7, 3)
    assert torch.equal(Samples("s", few, labels, ("a", "b")).images, few), "small maps of any number of channels stay"

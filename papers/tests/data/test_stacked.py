"""MNIST-CIFAR: class i above class i, decorrelated, either half black; and ``A+B`` as a source."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from loops import each
from suture.common.errors import DataError
from suture.data import Data, Samples, load_data
from suture.data.changes import stack, vary
from suture_papers.variants import BlackedOut, Decorrelated, Digit, Relabelled

REAL_DATA = Path(os.environ.get("SUTURE_DATA") or Path(__file__).parents[4] / "shared" / "data")
ROLES = ("fit", "validation", "score")
DIGITS = load_data("digits")


def make(name: str, labels: list[int], channels: int, side: int, classes: int = 3, seed: int = 0) -> Data:
    """Images of one value each, which is the sample's place, below it noise that is their own."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, (len(labels), channels, side, side), generator=source, dtype=torch.uint8)
    images[:, :, 0, 0] = torch.arange(len(labels))[:, None]
    names = tuple(f"{name}{i}" for i in range(classes))
    return Data(name, *(Samples(f"{name}/{role}", images.clone(), torch.tensor(labels), names) for role in ROLES))


LABELS = st.lists(st.integers(0, 2), min_size=8, max_size=40)


@given(LABELS, LABELS)
def test_pairs_are_of_one_class_and_as_many_as_both_have(above: list[int], below: list[int]) -> None:
    expected = [min(above.count(c), below.count(c)) for c in range(3)]
    upper, lower = make("a", above, 3, 4), make("b", below, 3, 4)
    if sum(expected) < 2:
        with pytest.raises(DataError, match=r"a/fit and b/fit share . samples"):
            stack(upper, lower)
        return
    for samples in (stack(upper, lower).fit, stack(upper, lower).score):
        assert torch.bincount(samples.labels, minlength=3).tolist() == expected
        first, second = (samples.images[:, 0, row, 0].tolist() for row in (0, 4))
        assert [above[i] for i in first] == [below[i] for i in second] == samples.labels.tolist()
        assert second == sorted(set(second))
        assert len(set(first)) == len(first)
        assert torch.equal(samples.images[:, :, :4], upper.fit.images[first])
        assert torch.equal(samples.images[:, :, 4:], lower.fit.images[second])


def test_grey_gets_channels_and_the_upper_half_the_lower_ones_size() -> None:
    lower = make("b", [0, 1, 2] * 16, 3, 32)
    data = stack(make("a", [0, 1, 2] * 16, 1, 28), lower)
    assert data.name == "a+b"
    assert [getattr(data, role).name for role in ROLES] == ["a+b/fit", "a+b/validation", "a+b/score"]
    assert data.classes == lower.classes
    assert data.fit.images.shape == (48, 3, 64, 32)
    assert data.fit.images.dtype == torch.uint8
    assert torch.equal(data.fit.images[:, :, 32:], lower.fit.images)
    assert bool((data.fit.images[:, :, :32] == data.fit.images[:, :1, :32]).all())
    assert stack(lower, make("a", [0, 1, 2], 1, 28)).fit.images.shape == (3, 3, 56, 28)


def test_scaling_keeps_what_is_flat_and_floats_become_bytes() -> None:
    labels = torch.arange(6) % 3
    flat = (torch.arange(6) * 50 + 0.6)[:, None, None, None].expand(6, 1, 28, 28) / 255
    names = ("x", "y", "z")
    upper = Data("flat", *(Samples(role, flat, labels, names) for role in ROLES))
    data = stack(upper, make("b", labels.tolist(), 3, 32))
    assert torch.equal(data.fit.images[:, :, :32], (torch.arange(6) * 50 + 1)[:, None, None, None].expand(6, 3, 32, 32))


def test_decorrelated_digits_are_the_same_in_another_order() -> None:
    paired = stack(DIGITS, DIGITS, "two")
    mixed = Decorrelated()(paired)
    assert mixed.name == "two decorrelated"
    for role in ROLES:
        was, now = getattr(paired, role), getattr(mixed, role)
        assert torch.equal(now.labels, was.labels)
        assert torch.equal(now.images[:, :, 8:], was.images[:, :, 8:])
        upper = [images[:, :, :8].flatten(1).tolist() for images in (was.images, now.images)]
        assert upper[0] != upper[1]
        assert sorted(upper[0]) == sorted(upper[1])
    digit = {tuple(pixels): int(c) for pixels, c in zip(upper[0], was.labels, strict=True)}
    table = torch.zeros(10, 10)
    for pixels, label in zip(upper[1], now.labels, strict=True):
        table[digit[tuple(pixels)], label] += 1
    assert chi2_contingency(table.numpy()).pvalue > 0.01
    assert Decorrelated(1)(paired).fit.fingerprint != mixed.fit.fingerprint


@each(("side", "black"), [("upper", 0), ("lower", 1), ("a", 0), ("b", 1)])
def test_one_half_is_black_and_the_other_as_it_was(side: str, black: int) -> None:
    data = stack(make("a", [0, 1, 2] * 4, 3, 4), make("b", [0, 1, 2] * 4, 3, 4))
    for given_, name in ((data, "a+b"), (Decorrelated()(data), "a+b decorrelated")):
        varied = BlackedOut(side)(given_)
        assert varied.name == f"{name} with {side} blacked out"
        for role in ROLES:
            was, now = (getattr(d, role).images.split(4, dim=2) for d in (given_, varied))
            assert int(now[black].max()) == 0
            assert torch.equal(now[1 - black], was[1 - black])
            assert torch.equal(getattr(varied, role).labels, getattr(data, role).labels)


def test_halves_are_named_as_the_data_were_before_they_were_stacked() -> None:
    upper, lower = make("a", [0, 1, 2] * 4, 3, 4), make("b", [0, 1, 2] * 4, 3, 4)
    data = stack(upper, Relabelled("b0", "b1")(lower))
    assert data.name == "a+b b0 as b1"
    assert int(BlackedOut("a")(data).fit.images[:, :, :4].max()) == 0


def test_what_is_not_stacked_or_cannot_be_is_refused() -> None:
    pair = stack(make("a", [0, 1, 2], 3, 4), make("b", [0, 1, 2], 3, 4))
    for variant in (Decorrelated(), BlackedOut("upper")):
        with pytest.raises(DataError, match=r"images of digits are 8×8, not one above another; .*mnist\+cifar10"):
            variant(DIGITS)
    with pytest.raises(DataError, match=r"no side 'c' to black out; valid: 'upper', 'lower', 'a', 'b'"):
        BlackedOut("c")(pair)
    with pytest.raises(DataError, match=r"no side 'digits' to black out; valid: 'upper', 'lower'$"):
        BlackedOut("digits")(stack(DIGITS, DIGITS))
    with pytest.raises(DataError, match="a has 2 classes and b 3; class i is paired"):
        stack(make("a", [0, 1, 0], 3, 4, classes=2), make("b", [0, 1, 2], 3, 4))
    with pytest.raises(DataError, match="a has 2 channels and b 3; only grey can be joined with colour"):
        stack(make("a", [0, 1, 2], 2, 4), make("b", [0, 1, 2], 3, 4))
    with pytest.raises(DataError, match="the lower half must be square"):
        stack(make("a", [0, 1, 2], 3, 4), pair)


def test_two_sources_joined_by_plus_are_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("digits+digits")
    assert data.name == "digits+digits"
    assert data.fit.fingerprint == stack(DIGITS, DIGITS).fit.fingerprint
    assert load_data("digits + digits", name="two", validation_fraction=0.2).fit.name == "two/fit"
    for source in ("digits+", "+digits", "+"):
        with pytest.raises(DataError, match=r"'\+' joins two sources"):
            load_data(source)
    with pytest.raises(DataError, match=r"load_data of two sources takes no size="):
        load_data("digits+digits", size=8)
    with pytest.raises(DataError, match="no data 'digots'"):
        load_data("digits+digots")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits+digits").mkdir()
    with pytest.raises(DataError, match=r"cannot load 'digits\+digits'"):  # the folder, which is empty, wins
        load_data("digits+digits")


@pytest.mark.slow
def test_mnist_cifar_is_the_papers() -> None:
    if not (REAL_DATA / "cifar10").is_dir() or not (REAL_DATA / "mnist").is_dir():
        pytest.skip("no real data: set SUTURE_DATA to a folder that holds 'mnist' and 'cifar10'")
    data = load_data(f"{REAL_DATA}/mnist+{REAL_DATA}/cifar10")
    assert data.name == "mnist+cifar10"
    assert data.classes[:2] == ("airplane", "automobile")
    assert [len(getattr(data, role)) for role in ROLES] == [45000, 5000, 9786]
    assert data.score.images.shape == (9786, 3, 64, 32)
    assert torch.bincount(data.score.labels).tolist() == [980, 1000, 1000, 1000, 982, 892, 958, 1000, 974, 1000]
    assert BlackedOut("cifar10")(data.limited(fit=100, score=100)).score.images[:, :, 32:].max() == 0


def test_variants_of_the_halves_compose() -> None:
    coloured = Digit(jitter=0)(DIGITS)
    data = vary(stack(DIGITS, coloured), Decorrelated(), BlackedOut("upper"))
    assert torch.equal(data.fit.images[:, :, 8:], coloured.fit.images)

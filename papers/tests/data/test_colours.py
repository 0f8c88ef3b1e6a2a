"""Colour MNIST: white strokes on one colour, near its class's, which tells the target, or nothing."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from loops import each
from suture.common.errors import DataError
from suture.data import Data, Samples, load_data
from suture.data.changes import Variant, vary
from suture_papers.variants import BASE_COLOURS, Colour, ColourOnly, Correlated, Digit, Grey3

DIGITS = load_data("digits")
ROLES = ("fit", "validation", "score")
COLOURED: list[Variant] = [Correlated(), Digit(), Colour(), ColourOnly()]


def backgrounds(images: Tensor, white: Tensor) -> Tensor:
    """The one colour of the pixels that are not white, (N, 3); every one of them is checked."""
    found = []
    for image, strokes in zip(images, white, strict=True):
        pixels = image[:, ~strokes].T
        assert bool((pixels == pixels[0]).all())
        assert bool((image[:, strokes] == 255).all())
        found.append(pixels[0])
    return torch.stack(found)


def nearest(colours: Tensor) -> Tensor:
    """The class of the base colour that each colour is nearest to."""
    return torch.cdist(colours.double(), torch.tensor(BASE_COLOURS).double()).argmin(1)


@each("variant", COLOURED, ids=str)
def test_strokes_are_white_on_a_colour_within_a_tenth_of_a_base_colour(variant: Variant) -> None:
    varied = variant(DIGITS)
    for role in ROLES:
        was, now = getattr(DIGITS, role), getattr(varied, role)
        assert now.images.shape == (len(was), 3, 8, 8)
        assert now.images.dtype == torch.uint8
        assert now.classes == was.classes
        strokes = (was.images[:, 0] != 0) & (not isinstance(variant, ColourOnly))
        colours = backgrounds(now.images, strokes)
        classes = now.labels if not isinstance(variant, Digit) else nearest(colours)
        base = torch.tensor(BASE_COLOURS)[classes]
        assert int((colours.int() - base).abs().max()) in (25, 26)
        assert len(set(map(tuple, colours.tolist()))) > 0.8 * len(colours)


def test_which_of_shape_and_colour_is_the_target() -> None:
    was = DIGITS.fit
    correlated, digit, colour, only = (variant(DIGITS).fit for variant in COLOURED)
    shown = {name: nearest(s.images[:, :, 0, 0]) for name, s in (("d", digit), ("c", colour), ("o", only))}
    corner = was.images[:, 0, 0, 0] == 0  # the first pixel is the background
    assert torch.equal(correlated.labels, was.labels)
    assert torch.equal(nearest(correlated.images[corner][:, :, 0, 0]), was.labels[corner])
    assert torch.equal(digit.labels, was.labels)
    assert torch.equal(shown["c"][corner], colour.labels[corner])
    assert torch.equal(shown["o"], only.labels)
    assert torch.equal(digit.images, colour.images)
    assert torch.equal(colour.labels, only.labels)


def test_random_colours_are_uniform_and_tell_nothing_of_the_digit() -> None:
    for role in ("fit", "score"):
        digits = getattr(DIGITS, role).labels.repeat(20)
        colours = torch.cat([getattr(Colour(seed=seed)(DIGITS), role).labels for seed in range(20)])
        table = torch.bincount(10 * digits + colours, minlength=100).reshape(10, 10)
        assert chi2_contingency(table.numpy()).pvalue > 0.01
        assert chisquare(table.sum(0).numpy()).pvalue > 0.01


def test_each_channel_is_shifted_on_its_own() -> None:
    grey = Correlated()(DIGITS).fit
    grey = grey.take(torch.where(grey.labels == 9)[0], "nines")  # base (128, 128, 128): nothing is cut off
    shifts = backgrounds(grey.images, grey.images[:, 0] == 255).double() - 128
    assert abs(float(shifts.mean())) < 3
    assert float(shifts.min()) < -24
    assert float(shifts.max()) > 24
    for one, other in pairwise((0, 1, 2)):
        assert abs(float(torch.corrcoef(shifts.T)[one, other])) < 0.3
    assert chisquare(torch.histc(shifts, 5, -25.5, 25.5).numpy()).pvalue > 0.01


@given(st.floats(0, 1), st.integers(0, 3))
def test_jitter_bounds_the_shift(jitter: float, seed: int) -> None:
    some = DIGITS.limited(fit=40, score=10)
    only = ColourOnly(jitter=jitter, seed=seed)(some).fit
    shift = only.images[:, :, 0, 0].int() - torch.tensor(BASE_COLOURS)[only.labels]
    assert int(shift.abs().max()) <= 255 * jitter + 0.5


def test_seeds_and_jitter_are_named_and_count() -> None:
    assert Digit()(DIGITS).name == "digits digit"
    assert ColourOnly(jitter=0.2, seed=3)(DIGITS).score.name == "digits colour only, jitter 20 % (seed 3)/score"
    prints = {Digit(seed=seed)(DIGITS).fit.image_fingerprint for seed in (0, 1, 2)}
    assert len(prints) == 3
    assert Digit(jitter=0)(DIGITS).fit.image_fingerprint not in prints


def test_grey_in_three_channels_or_floats_is_coloured_alike() -> None:
    three = Grey3()(DIGITS)
    assert three.fit.images.shape == (1080, 3, 8, 8)
    assert torch.equal(three.fit.images[:, 1], DIGITS.fit.images[:, 0])
    floats = Data("digits", *(replace(getattr(DIGITS, r), images=getattr(DIGITS, r).images / 255) for r in ROLES))
    for other in (three, floats):
        coloured = Correlated(jitter=0)(other)
        assert torch.equal(coloured.fit.images, Correlated(jitter=0)(DIGITS).fit.images)


def test_what_cannot_be_coloured_is_refused() -> None:
    with pytest.raises(DataError, match="3 channels and are not grey; colours are painted on grey digits"):
        vary(DIGITS, Digit(), Colour())
    many = tuple(map(str, range(11)))
    with pytest.raises(DataError, match="has 11 classes, and there are 10 base colours"):
        Digit()(Data("many", *(replace(getattr(DIGITS, role), classes=many) for role in ROLES)))
    for jitter in (-0.1, 1.5, float("nan")):
        with pytest.raises(DataError, match=r"a jitter of .*; valid: 0 to 1"):
            Correlated(jitter=jitter)


def test_fewer_classes_take_the_first_colours() -> None:
    few = Samples("few", torch.zeros(30, 1, 4, 4, dtype=torch.uint8), torch.arange(30) % 3, ("a", "b", "c"))
    colour = Colour(jitter=0)(Data("few", few, few, few))
    assert {tuple(c) for c in colour.fit.images[:, :, 0, 0].tolist()} == set(BASE_COLOURS[:3])

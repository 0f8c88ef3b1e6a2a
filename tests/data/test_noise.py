"""Clustered noise is what smith2024 draws: a uniform centre per class, Gaussian noise around it, clamped to [0, 1]."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from loops import each, examples
from suture import Samples, SutureError
from suture.common.errors import DataError, ShapeError
from suture.data.noise import ClusteredNoise
from trained import digits, few_digits, tensor_bits

SHAPES = [(24,), (6, 8), (8, 4, 4)]


def samples(labels: list[int], classes: int, seed: int = 0, name: str = "some") -> Samples:
    images = torch.rand(len(labels), 1, 2, 2, generator=torch.Generator().manual_seed(seed))
    return Samples(name, images, torch.tensor(labels), tuple(map(str, range(classes))))


def drawn(noise: ClusteredNoise, data: Samples) -> tuple[np.ndarray, np.ndarray]:
    """The noise, and the centre of each sample, as float64."""
    return noise.activations(data).double().numpy(), noise.centres.double().numpy()[data.labels.numpy()]


# --- what is drawn ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40), deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    extra=st.integers(0, 3),
    scale=st.sampled_from([0.0, 0.1, 3.0]),
    seed=st.integers(0, 2**62),
)
def test_every_sample_has_its_own_labels_cluster(shape, labels, extra, scale, seed):
    noise = ClusteredNoise(tuple(shape), 4 + extra, scale, seed)
    data = samples(labels, 4 + extra)
    found = noise.activations(data)
    assert found.shape == (len(labels), *shape)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert 0 <= found.min() <= found.max() <= 1
    assert noise.centres.shape == (4 + extra, *shape)
    if scale == 0:
        assert np.array_equal(found.numpy(), noise.centres.numpy()[labels])


def test_centres_are_uniform_and_each_class_has_its_own():
    centres = ClusteredNoise((16, 8, 8), 10).centres.double().flatten(1).numpy()
    assert stats.kstest(centres.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(centres) - np.eye(10)).max() < 5 / np.sqrt(16 * 8 * 8)


def test_around_its_centre_the_noise_is_gaussian_of_its_scale_and_nothing_is_drawn_twice():
    noise = ClusteredNoise((40,), 10, scale=0.05, seed=3)
    found, centres = drawn(noise, digits().fit)
    inside = np.abs(centres - 0.5) < 0.25  # five deviations from where it is clamped
    away = np.ma.masked_where(~inside, (found - centres) / 0.05)
    values = away.compressed()
    assert len(values) > 15_000
    assert stats.kstest(values, "norm").pvalue > 0.001
    assert len(np.unique(found, axis=0)) == len(found)
    between = np.ma.corrcoef(away, rowvar=False).filled(0) - np.eye(40)
    assert np.abs(between).max() < 0.3, "coordinates"
    assert abs(np.ma.corrcoef(away[:-256].ravel(), away[256:].ravel())[0, 1]) < 5 / np.sqrt(len(values)), "chunks"


def test_what_leaves_the_unit_interval_is_clamped_not_redrawn():
    noise = ClusteredNoise((30,), 10, scale=0.5)
    found, centres = drawn(noise, digits().fit)
    assert (found == 0).mean() == pytest.approx(stats.norm.cdf(-centres / 0.5).mean(), abs=0.01)
    assert (found == 1).mean() == pytest.approx(stats.norm.sf((1 - centres) / 0.5).mean(), abs=0.01)


def test_centres_are_those_of_all_data_and_noise_is_of_each():
    noise, data = ClusteredNoise((50,), 10), digits()
    (fit, fit_centres), (score, score_centres) = drawn(noise, data.fit), drawn(noise, data.score)
    for label in range(10):
        one, two = (x[data_.labels.numpy() == label] for x, data_ in ((fit, data.fit), (score, data.score)))
        assert np.abs(one.mean(0) - two.mean(0)).max() < 5 * 0.1 * np.sqrt(1 / len(one) + 1 / len(two))
    n = len(data.validation)
    validation, validation_centres = drawn(noise, data.validation)
    rest = {
        "fit": (fit - fit_centres)[:n].ravel(),
        "validation": (validation - validation_centres).ravel(),
        "score": (score - score_centres)[:n].ravel(),
    }
    assert np.abs(np.corrcoef(list(rest.values())) - np.eye(3)).max() < 5 / np.sqrt(n * 50)


# --- the same bits, whoever asks --------------------------------------------------------------------------------------


def test_the_same_noise_gives_the_same_bits_in_any_order():
    data = few_digits()
    roles = (data.fit, data.validation, data.score)
    wanted = [tensor_bits(ClusteredNoise((6, 8), 10, seed=1).activations(role)) for role in roles]
    torch.manual_seed(5)
    noise = ClusteredNoise([6, 8], 10, 0.1, 1)
    assert [tensor_bits(noise.activations(role)) for role in reversed(roles)] == wanted[::-1]
    state = torch.get_rng_state()
    noise.activations(data.fit).zero_()
    assert torch.equal(torch.get_rng_state(), state)
    assert tensor_bits(noise.activations(data.fit)) == wanted[0]
    assert len(set(wanted)) == 3


def test_pairs_and_names_change_nothing_and_a_label_changes_its_own_sample():
    """A sender sees its own image; who is paired with it is the receiver's business."""
    noise, data = ClusteredNoise((24,), 10), few_digits().fit
    before = noise.activations(data)
    assert torch.equal(noise.activations(data.shuffled(0)), before)
    assert torch.equal(noise.activations(replace(data, name="another")), before)
    labels = data.labels.clone()
    labels[7] = (labels[7] + 1) % 10
    changed = (noise.activations(replace(data, labels=labels)) != before).any(1)
    assert changed.nonzero()[:, 0].tolist() == [7]


@each(
    "change", [{"shape": (8, 6)}, {"classes": 11}, {"scale": 0.2}, {"seed": 1}], ids=lambda change: next(iter(change))
)
def test_the_fingerprint_is_of_all_that_decides_the_noise(change):
    noise = ClusteredNoise((6, 8), 10)
    assert replace(noise, **change).fingerprint != noise.fingerprint
    assert ClusteredNoise((6, 8), 10).fingerprint == noise.fingerprint
    assert ClusteredNoise((6, 8), 10, scale=1).fingerprint == ClusteredNoise((6, 8), 10, scale=1.0).fingerprint


def test_another_seed_has_other_centres_and_other_noise():
    one, two = (ClusteredNoise((500,), 10, seed=seed) for seed in (0, 1))
    (a, a_centres), (b, b_centres) = drawn(one, few_digits().score), drawn(two, few_digits().score)
    assert abs(np.corrcoef(one.centres.flatten(), two.centres.flatten())[0, 1]) < 0.1
    assert abs(np.corrcoef((a - a_centres).ravel(), (b - b_centres).ravel())[0, 1]) < 0.02


# --- what is refused --------------------------------------------------------------------------------------------------


@each(
    ("settings", "error", "message"),
    [
        ({"classes": 1}, DataError, r"at least 2 classes, and there are 1; .*leave out controls\.clustered_noise"),
        ({"classes": 0}, DataError, "there are 0"),
        ({"scale": -0.1}, DataError, r"scale -0\.1; valid: 0 or more"),
        ({"scale": float("nan")}, DataError, "scale nan"),
        ({"scale": float("inf")}, DataError, "scale inf"),
        ({"shape": ()}, ShapeError, r"shape \(\) is empty; give a receiver's cut\.shape"),
        ({"shape": (3, 0)}, ShapeError, r"shape \(3, 0\) is empty"),
    ],
    ids=str,
)
def test_what_draws_no_clusters_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        ClusteredNoise(**{"shape": (3,), "classes": 3} | settings)


def test_samples_of_other_classes_are_refused():
    noise = ClusteredNoise((3,), 3)
    for classes in (2, 4):
        with pytest.raises(DataError, match=rf"each of 3 classes, but some has {classes}; make it with classes="):
            noise.activations(samples([0, 1, 1], classes))


def test_samples_of_one_class_are_refused_to_fit_to():
    noise = ClusteredNoise((3,), 3)
    with pytest.raises(SutureError, match=r"all 4 samples of some are of class '2'; give data of at least 2 classes"):
        noise.check_fit(samples([2] * 4, 3))
    noise.check_fit(samples([2, 2, 2, 1], 3))

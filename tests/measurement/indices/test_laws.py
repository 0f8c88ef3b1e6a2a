"""What every index promises: the same tests for all, and what is not promised must fail."""

from dataclasses import replace
from fractions import Fraction
from math import pi

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import parts
from scipy.spatial.distance import jensenshannon
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from variants import BY_NAME, VARIANTS, layers, seeded

from loops import each, examples
from suture.common.errors import DataError
from suture.measurement import indices
from suture.measurement.indices import base, bases, grams
from suture.measurement.indices.base import Layer

every = each("method", VARIANTS)
HELD_OUT = indices.LinearPredictivity  #: judges by images that were not fitted
NOTHING = {"procrustes_angle": pi / 2}  #: the value where a layer does not vary; 0 for similarities


def changes(p: int) -> dict:
    turn = torch.linalg.qr(seeded(p, p, seed=3)).Q
    return {
        "permutation": lambda x: x[:, torch.randperm(p, generator=torch.Generator().manual_seed(1))],
        "orthogonal": lambda x: x @ turn,
        "scaling": lambda x: -7 * x,
        "translation": lambda x: x + 4 * seeded(p, seed=4),
        "stretching": lambda x: x * torch.logspace(-1.5, 1.5, p, dtype=x.dtype),
        "linear": lambda x: x @ (seeded(p, p, seed=5) + torch.eye(p)),
    }


def itself(method: indices.Index) -> float:
    return 0.0 if method.distance else 1.0


def exact_neighbours(x: torch.Tensor, k: int) -> list[set[int]]:
    """The k nearest others by cosine, in whole numbers: cos² is compared as a fraction, all cosines being positive."""
    rows = [[int(v) for v in row] for row in x.tolist()]
    dots = [[sum(a * b for a, b in zip(r, s, strict=True)) for s in rows] for r in rows]
    found = []
    for i, line in enumerate(dots):
        near = {j: Fraction(line[j] ** 2, dots[j][j]) for j in range(len(rows)) if j != i}
        found.append(set(sorted(near, key=near.__getitem__, reverse=True)[:k]))
    return found


# --- laws -------------------------------------------------------------------------------------------------------------


@every
@each("features", [(12, 9), (200, 150)], few=1)
def test_it_keeps_its_value_under_the_changes_it_declares(method, features):
    x, y = layers(60, *features)
    value = method(x, y)
    for name in method.invariances:
        of_x, of_y = changes(x.shape[1])[name], changes(y.shape[1])[name]
        for a, b in ((of_x(x), y), (x, of_y(y)), (of_x(x), of_y(y))):
            assert method(a, b) == pytest.approx(value, abs=1e-9), name


@every
def test_it_does_not_under_those_it_does_not_declare(method):
    x, y = layers()
    value = method(x, y)
    for name in set(changes(1)) - method.invariances:
        of_x, of_y = changes(x.shape[1])[name], changes(y.shape[1])[name]
        assert max(abs(method(of_x(x), y) - value), abs(method(x, of_y(y)) - value)) > 1e-3, name


@every
def test_what_is_no_change_of_features_changes_it(method):
    x, y = layers()
    assert abs(method(x.flip(0), y) - method(x, y)) > 0.003


@every
def test_the_order_of_samples_and_of_layers(method):
    x, y = layers()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    same = 0.1 if isinstance(method, HELD_OUT) else 1e-12  # parts are drawn by the places of images
    assert method(x[order], y[order]) == pytest.approx(method(x, y), abs=same)
    narrow, wide = method(x[:, :6], y), method(y, x[:, :6])
    other = method(*layers(p=9)), method(*layers(p=9)[::-1])
    if method.symmetric:
        assert narrow == pytest.approx(wide, abs=1e-12)
    else:
        assert max(abs(narrow - wide), abs(other[0] - other[1])) > 1e-4


@given(st.integers(2, 14), st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_it_keeps_its_bounds(n, p, q, seed):
    x, y = seeded(n, p, seed=seed), seeded(n, q, seed=seed + 100)
    for method in VARIANTS:
        low, high = method.bounds
        assert n < method.least or low <= method(x, y) <= high, method.name


@every
@each(("n", "p"), [(60, 12), (60, 200), (6, 5), (300, 1), (13, 12), (12, 12)])
def test_a_layer_is_like_itself(method, n, p):
    if p == 1 and method.name.startswith(("rsa_pearson", "rsa_spearman", "mutual_knn", "cknna")):
        return  # one feature has no correlations, and no angles; see below
    n = max(n, method.least)
    if isinstance(method, HELD_OUT) and p > n / 2:
        return  # images that were not fitted have directions that no other has
    x = layers(n, p, 9)[0]
    assert method(x, x.clone()) == pytest.approx(itself(method), abs=1e-7)


@every
@each("features", [(12, 9), (200, 150), (12, 150)])
def test_float32_says_the_same(method, features):
    x, y = layers(60, *features)
    assert method(x.float(), y.float()) == pytest.approx(method(x, y), abs=2e-6)


@every
def test_all_pairs_are_the_pairs_to_the_bit_and_every_time(method):
    xs = [layers(40, p, 9, seed=p)[0] for p in (7, 60, 12)]
    ys = [layers(40, 5, q, seed=q)[1] for q in (9, 50)]
    got = method.all(xs, ys)
    assert got.shape == (3, 2)
    assert got.dtype == torch.float64
    assert torch.equal(got, method.all(xs, ys))
    np.testing.assert_allclose(got, [[method(x, y) for y in ys] for x in xs], rtol=0, atol=1e-12)
    np.testing.assert_allclose(method.all(xs), [[method(x, y) for y in xs] for x in xs], rtol=0, atol=1e-12)


@every
def test_activations_stay_as_they_are(method):
    x, y = (of.float().reshape(40, 4, 3, 3).requires_grad_() for of in layers(40, 36, 36))
    kept = x.detach().clone()
    value = method(x, y)
    assert torch.equal(x, kept)
    assert value == pytest.approx(method(x.detach().to(memory_format=torch.channels_last), y), abs=1e-12)
    with torch.inference_mode():
        assert method(x, y) == value


# --- what it must survive ---------------------------------------------------------------------------------------------


@every
@each("dtype", [torch.float64, torch.float32, torch.bfloat16])
@each("value", [0.0, 0.1, -1e4])
def test_a_layer_that_does_not_vary_is_like_nothing(method, dtype, value):
    constant = torch.full((30, 7), value, dtype=dtype)
    same = torch.linspace(-1, 2, 7).to(dtype).repeat(30, 1)
    got = method.all([constant, same], [seeded(30, 5).to(dtype), constant, same])
    assert (got == NOTHING.get(method.name, 0.0)).all()
    assert method(seeded(30, 5), constant.double()) == NOTHING.get(method.name, 0.0)


@every
def test_features_that_do_not_vary_do_no_harm(method):
    x, y = layers()
    dead = torch.cat([x, torch.zeros(60, 4)], 1)
    if not method.name.startswith("rsa") or "euclidean" in method.name:
        assert method(dead, y) == pytest.approx(method(x, y), abs=1e-12)
    assert np.isfinite(method(torch.cat([x, torch.full((60, 4), 0.1)], 1), y))
    assert np.isfinite(method(torch.zeros(60, 4).index_fill(0, torch.tensor([3]), 1), y))


@every
@each("n", [2, 3, 4, 5])
@each("p", [1, 2, 3, 50])
def test_few_samples_give_a_number(method, n, p):
    if n < method.least:
        with pytest.raises(DataError, match=rf"is not defined: give {method.least} or more"):
            method(seeded(n, p), seeded(n, 3, seed=1))
        return
    low, high = method.bounds
    assert low <= method(seeded(n, p), seeded(n, 3, seed=1)) <= high
    assert low <= method(seeded(n, p), torch.ones(n, 3)) <= high


def test_two_samples_are_always_alike_but_where_that_has_no_meaning():
    x, y = seeded(2, 5), seeded(2, 3, seed=1)
    values = {name: method(x, y) for name, method in indices.INDICES.items() if method.least == 2}
    assert values.pop("rsa_pearson") == values.pop("rsa_spearman") == 0
    assert values.pop("procrustes_angle") == pytest.approx(0, abs=1e-7)
    assert list(values.values()) == pytest.approx([1] * len(values))


def test_of_one_feature_samples_have_neither_correlations_nor_angles():
    x, y = seeded(30, 1).abs(), seeded(30, 4)
    assert [indices.INDICES[name](x, x) for name in ("rsa_pearson", "rsa_spearman", "mutual_knn", "cknna")] == [0] * 4
    assert indices.rsa_pearson(x, x, dissimilarity="euclidean") == pytest.approx(1)
    assert indices.mutual_knn(x, x, nearest="euclidean") == pytest.approx(1)
    assert indices.mutual_knn(x, y) == 0


def test_samples_that_are_all_equally_far_are_no_neighbours_and_have_no_order():
    alike = torch.eye(6) + 0.1
    for method in (indices.mutual_knn, indices.cknna, indices.rsa_spearman, indices.rsa_pearson):
        assert method(alike, seeded(6, 4), **({"k": 2} if "knn" in method.name or "cknna" in method.name else {})) == 0


@every
def test_samples_that_are_the_same_do_no_harm(method):
    x, y = (torch.cat([of[:20]] * 3) for of in layers())
    assert method(x, x.clone()) == pytest.approx(itself(method), abs=1e-7)
    low, high = method.bounds
    assert low <= method(x, y) <= high


def test_if_most_samples_are_the_same_the_gaussian_kernel_says_which_however_near_the_others_are():
    few = torch.zeros(30, 4, dtype=torch.float64).index_fill(0, torch.tensor([3, 8]), 0.1)
    assert indices.rbf_cka(few, 100 * few) == pytest.approx(1)


@pytest.mark.slow
@every
@each("dtype", [torch.float32, torch.float64], few=1)
@each("features", [(12, 9), (100, 90)], few=1)
def test_small_and_large_values_are_like_others(method, dtype, features):
    """Of several batches, too, whose largest values differ; to the bit if nothing is rounded."""
    x, y = (of.to(dtype) for of in layers(240, *features))
    value = method(x, y)
    for scale in (1e-30, 1e-12, 1e12, 1e30):
        for pair in ((x * scale, y), (x, y * scale), (x * scale, y / scale)):
            assert method(*pair) == pytest.approx(value, abs=1e-7), scale
    for power in (-100, -30, 31, 90):
        assert method(x * 2.0**power, y * 2.0**-power) == value, power


@every
def test_a_large_mean_costs_what_the_data_have_lost_and_no_more(method):
    x, y = layers()
    if "translation" in method.invariances:
        assert method(x + 1e6 / 3, y) == pytest.approx(method(x, y), abs=1e-8)


# --- degenerate correlations ------------------------------------------------------------------------------------------


def test_what_has_as_many_features_as_samples_contains_all_others():
    x, y = layers(30, 29, 5)
    assert indices.mean_cca(x, y) == indices.pwcca(x, y) == indices.linear_regression(x, y) == 1
    assert indices.linear_regression(y, x) < 0.9
    assert 0.1 < indices.svcca(x, y, variance=0.5) < 0.95
    fewer = layers(30, 28, 5)
    assert indices.mean_cca(*fewer) < 1


def test_directions_that_rounding_made_are_not_counted():
    """Features that repeat others add no direction, in float32 either, however many there are."""
    x, y = (of.float() for of in layers(60, 12, 9))
    for of in (x, torch.cat([x, x @ seeded(12, 20).float()], 1), torch.cat([x, x @ seeded(12, 90).float()], 1)):
        assert bases.basis(Layer("x", of)).rank == 12
        assert indices.mean_cca(of, y) == pytest.approx(indices.mean_cca(x, y), abs=1e-5)


def test_rbf_tends_to_linear_for_wide_kernels():
    """Alvarez 2021."""
    x, y = layers()
    for debiased in (False, True):
        linear = indices.linear_cka(x, y, debiased=debiased)
        near, far = (abs(indices.rbf_cka(x, y, bandwidth=b, debiased=debiased) - linear) for b in (10, 1e4))
        assert far < 1e-7 < near < 0.01


def test_neighbours_are_common_by_chance_and_if_they_are_all_others_there_is_no_index():
    x, y = seeded(200, 5), seeded(200, 5, seed=1)
    assert indices.mutual_knn(x, y) == pytest.approx(10 / 199, abs=0.02)
    assert indices.mutual_knn(x, y, k=198) < 1
    with pytest.raises(DataError, match=r"k=199.* of 200 samples is not defined: give 201 or more"):
        indices.mutual_knn(x, y, k=199)


def test_an_offset_and_a_far_sample_hide_no_neighbours():
    """In exact arithmetic: integers, of which no step here rounds."""
    x = (seeded(60, 12) * 64).round()
    for method in (indices.cknna, indices.mutual_knn, indices.rsa_pearson):
        assert method(x + 1e5, x + 1e5) == pytest.approx(1), method.name
    moved = x + 1e5
    wanted = exact_neighbours(moved, 10)
    near = grams.gram(Layer("x", moved)).unlike_directions()
    assert [set(row) for row in grams._neighbours(near, 10).nonzero()[:, 1].reshape(60, 10).tolist()] == wanted
    far = x.clone()
    far[7] *= 1e6
    others = torch.arange(60) != 7
    held, alone = (grams._neighbours(grams.gram(Layer("x", of)).squared_distances(), 10) for of in (far, far[others]))
    assert torch.equal(held[others][:, others], alone)


# --- what was not fitted ----------------------------------------------------------------------------------------------


@each("sizes", [(200, 30, 20), (60, 100, 9), (100, 5, 40)])
def test_linear_predictivity_is_about_that_of_penalties_chosen_by_leaving_each_sample_out(sizes):
    """By scikit-learn, whose ``RidgeCV`` chooses from the same penalties by leave-one-out, exactly."""
    x, y = (of.numpy() for of in layers(*sizes))
    predicted = np.empty_like(y)
    for held in parts(len(x)):
        a, b = np.delete(x, held, 0), np.delete(y, held, 0)
        unit = np.square(a - a.mean(0)).sum(1).mean()
        predicted[held] = RidgeCV(unit * np.logspace(-6, 2, 17)).fit(a, b).predict(x[held])
    wanted = r2_score(y, predicted, multioutput="variance_weighted")
    assert indices.linear_predictivity(*map(torch.from_numpy, (x, y))) == pytest.approx(wanted, abs=0.01)


def test_what_can_be_fitted_but_means_nothing_is_not_predicted():
    x, y = seeded(60, 100), seeded(60, 10, seed=1)
    assert indices.linear_regression(x, y) == 1
    assert indices.linear_predictivity(x, y) < 0.01
    assert indices.linear_predictivity(x, y) == indices.linear_predictivity(y, x, reverse=True)
    repeated = [of[:, :, None, None].expand(-1, -1, 3, 3) for of in (seeded(60, 50), y)]
    assert indices.linear_predictivity(*repeated, samples_as="pixels") < 0.01  # other pixels would tell which image


# --- samples ----------------------------------------------------------------------------------------------------------


@every
def test_pixels_and_tokens_are_samples_where_that_is_asked(method):
    maps, tokens = (of.float() for of in (seeded(14, 5, 3, 4), seeded(14, 12, 7, seed=1) + 1))
    tokens = tokens + 0.5 * maps.flatten(2).transpose(1, 2)[..., :1]
    rows = maps.permute(0, 2, 3, 1).reshape(-1, 5), tokens.reshape(-1, 7)
    method = replace(method, batch=1000) if isinstance(method, indices.MinibatchCKA) else method
    same = 0.01 if isinstance(method, HELD_OUT) else 1e-9  # whole images are held out
    got = method(maps, tokens, samples_as="pixels")
    assert got == pytest.approx(method(*rows), abs=same)
    assert abs(method(maps, tokens) - got) > 0.005


def test_maps_and_tokens_are_pooled_where_that_is_asked():
    maps, tokens = seeded(40, 5, 3, 4), seeded(40, 12, 7, seed=1)
    x = seeded(40, 6, seed=2)
    cka = indices.linear_cka
    assert cka(maps, x, samples_as="mean") == pytest.approx(cka(maps.mean((2, 3)), x), abs=1e-12)
    for how, rows in (("mean", tokens.mean(1)), ("first", tokens[:, 0]), ("last", tokens[:, -1])):
        assert cka(tokens, x, samples_as=how) == pytest.approx(cka(rows, x), abs=1e-12)
    with pytest.raises(DataError, match="has no tokens: give samples_as='mean'"):
        cka(maps, x, samples_as="first")


@each(("large", "small"), [((8, 6), (4, 3)), ((4, 4), (1, 1)), ((6, 4), (4, 6)), ((5, 5), (3, 3))])
def test_maps_of_unequal_size_are_pooled_to_the_smaller(large, small):
    """Window by window: from the floor of i H / h to the ceiling of (i + 1) H / h."""
    x, y = seeded(30, 5, *large), seeded(30, 4, *small, seed=1)
    x[:, 0] += 3 * y.mean((1, 2, 3))[:, None, None]
    size = [min(of) for of in zip(large, small, strict=True)]

    def pooled(maps):
        rows = []
        for image in maps:
            for i, j in np.ndindex(*size):
                at = [
                    slice(k * of // to, -(-(k + 1) * of // to))
                    for k, of, to in zip((i, j), maps.shape[2:], size, strict=True)
                ]
                rows.append(image[:, at[0], at[1]].mean((1, 2)))
        return torch.stack(rows)

    for method in (indices.LinearCKA(debiased=True), indices.procrustes, indices.rsa_pearson):
        for a, b in ((x, y), (y, x)):
            got = method(a, b, samples_as="pixels")
            assert got == pytest.approx(method(pooled(a), pooled(b)), abs=1e-9), method.name
        tokens = seeded(30, 7, 3, seed=2)
        with pytest.raises(DataError, match="as 'flattened'"):
            method(x, tokens, samples_as="pixels")


def test_outputs_disagree_by_class_and_diverge_by_probability():
    """By scipy, whose distance is the root of the divergence."""
    a, b = seeded(50, 4).float(), seeded(50, 4, seed=1).float()
    p, q = (of.double().softmax(1).numpy() for of in (a, b))
    assert indices.disagreement(a, b) == pytest.approx(np.mean(p.argmax(1) != q.argmax(1)))
    wanted = np.mean([jensenshannon(r, s, base=2) ** 2 for r, s in zip(p, q, strict=True)])
    assert indices.jensen_shannon(a, b) == pytest.approx(wanted, abs=1e-12)
    assert indices.jensen_shannon(a, a) == indices.disagreement(a, 3 * a + 1) == 0
    with pytest.raises(DataError, match="outputs of 4 and 3 classes"):
        indices.disagreement(a, b[:, :3])


@every
def test_blocks_and_groups_do_not_show(method, monkeypatch):
    xs = [layers(70, p, 9, seed=p)[0] for p in (7, 90, 12)]
    whole = method.all(xs)
    monkeypatch.setattr(base, "MEMORY", 1)
    monkeypatch.setattr("suture.measurement.indices.cka.MEMORY", 1)
    monkeypatch.setattr(base, "SAMPLES", 16)
    monkeypatch.setattr(base, "FEATURES", 32)
    monkeypatch.setattr("suture.measurement.indices.grams.ROWS", 16)
    np.testing.assert_allclose(method.all(xs), whole, rtol=0, atol=1e-7)


@every
def test_a_layer_that_keeps_what_was_computed_gives_the_same(method, monkeypatch):
    xs = [Layer(str(p), layers(40, p, 9, seed=p)[0], kept={}) for p in (7, 60)]
    kept = method.pairs(xs, xs)
    assert torch.equal(kept, method.pairs(xs, xs))
    assert torch.equal(kept, method.all([of.activations for of in xs]))


def test_products_of_all_samples_are_taken_once_a_layer(monkeypatch):
    seen = []
    real = base.Layer.columns
    monkeypatch.setattr(base.Layer, "columns", lambda self, *given: (seen.append(self.name), real(self, *given))[1])
    xs = [Layer(str(p), layers(40, p, 9, seed=p)[0], kept={}) for p in (45, 60)]
    for method in VARIANTS:
        if not method.name.startswith(("linear_cka", "minibatch_cka")):
            method.pairs(xs, xs)
    assert sorted(seen) == ["45", "60"]


# --- settings and errors ----------------------------------------------------------------------------------------------


def test_names_tell_settings_apart_and_settings_can_be_given_with_the_layers():
    assert len(BY_NAME) == len(VARIANTS)
    x, y = layers()
    assert indices.mutual_knn(x, y, k=3) == indices.MutualKNN(k=3)(x, y) != indices.mutual_knn(x, y)
    assert list(indices.INDICES) == [method.name for method in indices.INDICES.values()]


@each(
    ("make", "said"),
    [
        (lambda: indices.RBFCKA(bandwidth=0), "bandwidth=0: give a positive"),
        (lambda: indices.SVCCA(variance=1.5), "variance=1.5: give the share"),
        (lambda: indices.MutualKNN(k=0), "k=0: give the number"),
        (lambda: indices.UnbiasedCKNNA(k=1), "k=1: give the number"),
        (lambda: indices.LinearPredictivity(folds=1), "folds=1: give the parts"),
        (lambda: indices.CKNNA(k=-1), "k=-1: give the number"),
        (lambda: indices.MutualKNN(nearest="dot"), "nearest='dot': give 'cosine' or 'euclidean'"),
        (lambda: indices.RSA(correlation="kendall"), "correlation='kendall': give 'pearson' or 'spearman'"),
        (lambda: indices.RSA(dissimilarity="cosine"), "dissimilarity='cosine': give 'correlation' or"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, said):
    with pytest.raises(DataError, match=said):
        make()


@every
@each(
    ("xs", "ys", "said"),
    [
        ([], [torch.ones(5, 3)], "xs is empty"),
        ([torch.ones(5, 3)], [torch.ones(6, 3)], r"ys\[0\] has 6 samples and xs\[0\] 5.*same images"),
        ([torch.ones(5, 3) * torch.nan], None, r"xs\[0\] is not finite"),
        ([torch.ones(5)], None, r"xs\[0\] is \(5,\)"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(method, xs, ys, said):
    with pytest.raises(DataError, match=said):
        method.all(xs, ys)


@each("method", [indices.rbf_cka, indices.rsa_pearson, indices.mutual_knn, indices.cknna])
def test_more_samples_than_all_pairs_can_be_held_of_are_refused(method):
    many = torch.zeros(2000, 4, 3, 3)
    with pytest.raises(DataError, match=r"xs\[0\] has 18,000 samples of 4 features.*fewer images, 10,000 samples"):
        method(many, many, samples_as="pixels")
    assert indices.procrustes(many, many, samples_as="pixels") == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@every
@pytest.mark.parametrize("features", [(12, 9), (200, 150)])
def test_on_a_gpu_it_is_the_same(method, features):
    x, y = layers(60, *features)
    assert method(x.cuda(), y.cuda()) == pytest.approx(method(x, y), abs=1e-9)

"""Linear CKA against its definition in numpy, its two forms, and what it must survive; its laws are in test_laws."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from loops import each
from suture.common.errors import DataError
from suture.measurement.indices import base, cka, linear_cka

SHAPES = {"wide": (270, (300, 64, 2100)), "narrow": (300, (8, 20, 3)), "maps": (270, ((4, 6, 6), 5, (3, 2, 2)))}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def related(n: int, sizes, seed: int = 0) -> list[Tensor]:
    """Layers that share some of what they say, far from centred."""
    base = seeded(n, 12)
    made = []
    for i, size in enumerate(sizes):
        shape = size if isinstance(size, tuple) else (size,)
        p = int(np.prod(shape))
        x = base @ seeded(12, p, seed=seed + 10 * i + 1) + seeded(n, p, seed=seed + 10 * i + 2)
        made.append((x.relu() + 2 + i).reshape(n, *shape))
    return made


def gram(x: Tensor) -> np.ndarray:
    flat = x.flatten(1).double().numpy()
    flat = flat - flat.mean(0)  # changes nothing but the rounding
    return flat @ flat.T


def biased(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    h = np.eye(len(k)) - 1 / len(k)
    return float(np.sum(h @ k @ h * l.T))


def unbiased(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    """Nguyen et al. 2021, eq. 3, as it is written there, without its constant."""
    n, one = len(k), np.ones(len(k))
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
    sums = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return float(np.sum(k * l.T) + sums - 2 / (n - 2) * (one @ k @ l @ one))


def by_definition(x: Tensor, y: Tensor, hsic=biased) -> float:
    k, l = gram(x), gram(y)  # noqa: E741
    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


def defined(xs, ys, debiased=False) -> np.ndarray:
    return np.array([[by_definition(x, y, unbiased if debiased else biased) for y in ys] for x in xs])


@each("memory", [2**30, 1])
@each("debiased", [False, True])
@each("kind", SHAPES)
def test_all_pairs_are_those_of_the_definition(kind, debiased, memory, monkeypatch):
    monkeypatch.setattr(cka, "MEMORY", memory)
    xs, ys = related(*SHAPES[kind]), related(*SHAPES[kind], seed=5)[:2]
    got = linear_cka.all(xs, ys, debiased=debiased)
    assert got.shape == (3, 2)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got, defined(xs, ys, debiased), rtol=0, atol=5e-7)


@each("debiased", [False, True])
@each("kind", SHAPES)
def test_in_float64_they_are_so_to_the_last_bits(kind, debiased):
    """One layer in float64 is enough."""
    xs, ys = related(*SHAPES[kind]), related(*SHAPES[kind], seed=5)[:2]
    got = linear_cka.all([xs[0].double(), *xs[1:]], ys, debiased=debiased)
    np.testing.assert_allclose(got, defined(xs, ys, debiased), rtol=0, atol=1e-13)


def test_the_unbiased_estimate_is_the_mean_over_all_quadruples():
    """Song et al. 2012: HSIC is E[Kᵢⱼ(Lᵢⱼ + Lqr - 2Liq)] over four different samples."""
    x, y = related(7, (3, 9))

    def hsic(k, l):  # noqa: E741
        return np.mean([k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q]) for i, j, q, r in permutations(range(7), 4)])

    assert linear_cka(x.double(), y.double(), debiased=True) == pytest.approx(by_definition(x, y, hsic), abs=1e-12)


@each("debiased", [False, True])
@each("kind", ["wide", "narrow"])
def test_both_forms_give_the_same(kind, debiased, monkeypatch):
    xs = [x.double() for x in related(*SHAPES[kind])]
    both = []
    for features in (False, True):
        monkeypatch.setattr(cka, "_features_are_cheaper", lambda *_, chosen=features: chosen)
        both.append(linear_cka.all(xs, debiased=debiased))
    torch.testing.assert_close(*both, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "sizes", "features"), [(50, (400, 3), False), (500, (4, 30), True), (9, (9, 9), False)])
def test_the_cheaper_form_is_taken(n, sizes, features, monkeypatch):
    other = "_by_grams" if features else "_by_features"
    monkeypatch.setattr(cka, other, None)
    linear_cka.all(related(n, sizes))


def test_every_gram_is_computed_once(monkeypatch):
    seen = []
    real = base.Layer.columns
    monkeypatch.setattr(base.Layer, "columns", lambda self, *given: (seen.append(self.name), real(self, *given))[1])
    xs = related(40, (90, 80, 70))
    linear_cka.all(xs)
    assert sorted(seen) == ["xs[0]", "xs[1]", "xs[2]"]
    seen.clear()
    linear_cka.all(xs[:2], xs[1:])
    assert sorted(seen) == ["xs[0]", "xs[1]", "ys[1]"]


@each("tiles", [1, 4])
@each("n", [256, 257, 1000])
def test_grams_are_held_some_rows_at_a_time(n, tiles, monkeypatch):
    """As many blocks of rows as fit, one at least; the values stay."""
    xs = related(n, (3, 900, 5))
    monkeypatch.setattr(cka, "_features_are_cheaper", lambda *_: False)
    whole, starts = linear_cka.all(xs), []
    real = base.Layer.columns
    monkeypatch.setattr(base.Layer, "columns", lambda self, *given: (starts.append(given[1]), real(self, *given))[1])
    monkeypatch.setattr(cka, "MEMORY", 2**30 if tiles == 1 else 3 * 4 * n * n // tiles)
    torch.testing.assert_close(linear_cka.all(xs), whole, rtol=0, atol=1e-14)
    starts = starts[::3]
    assert starts[0] == 0
    assert all(start % 256 == 0 for start in starts)
    assert (len(starts) == 1) == (tiles == 1 or n == 256)


# --- laws -------------------------------------------------------------------------------------------------------------

FORMS = {"Grams": (40, 90, 60), "features": (150, 12, 9)}


def test_debiased_it_is_about_0_where_nothing_is_shared():
    x, y = seeded(60, 1500), seeded(60, 1500, seed=1)
    assert linear_cka(x, y) > 0.9
    assert abs(linear_cka(x, y, debiased=True)) < 0.1


# --- what it must survive ---------------------------------------------------------------------------------------------


@each("debiased", [False, True])
@each("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@each(("n", "features"), [(1000, 3), (30, 100)])
@each("value", [0.0, 0.1, -1e4])
def test_what_does_not_vary_is_like_nothing(value, n, features, dtype, debiased):
    constant = torch.full((n, features), value, dtype=dtype)
    got = linear_cka.all([constant, seeded(n, 4)], debiased=debiased)
    assert got[0].tolist() == [0, 0]
    assert got[1].tolist() == [0, pytest.approx(1)]


@each("debiased", [False, True])
@each(("n", "features"), [(5, 40), (11, 30), (49, 2)])
def test_no_more_is_a_constant_in_float64(n, features, debiased):
    for value in (10 * torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).tolist():
        constant = torch.full((n, features), value, dtype=torch.float64)
        assert linear_cka(constant, constant, debiased=debiased) == 0


def test_debiased_it_is_0_where_all_pairs_of_samples_are_alike():
    assert linear_cka(torch.eye(6), seeded(6, 4), debiased=True) == 0
    assert linear_cka(torch.eye(6), seeded(6, 4)) > 0.1


@each("debiased", [False, True])
@each("scale", [1e-42, 1e-30, 1e30, 1e38])
@each("form", FORMS)
def test_the_smallest_and_largest_values_are_like_others(form, scale, debiased):
    n, p, q = FORMS[form]
    x, y = (seeded(n, size, seed=size).clamp(-3, 3) for size in (p, q))
    tolerance = 2e-3 if scale < 1e-38 else 1e-6  # what a subnormal float32 holds
    wanted = linear_cka(x, y, debiased=debiased)
    assert linear_cka(x * scale, y, debiased=debiased) == pytest.approx(wanted, abs=tolerance)


@each("form", FORMS)
def test_a_large_mean_costs_no_more_than_the_data_have_lost(form):
    n, p, q = FORMS[form]
    x, y = seeded(n, p) + 1e6 / 3, seeded(n, q, seed=1) - 1e6 / 7
    assert linear_cka(x, y) == pytest.approx(by_definition(x, y), abs=1e-6)
    assert linear_cka(x, y, debiased=True) == pytest.approx(by_definition(x, y, unbiased), abs=1e-6)


def test_one_image_far_from_the_others_hides_nothing():
    x, y = related(300, (400, 350))
    x[0] += 1e4
    assert linear_cka(x, y) == pytest.approx(by_definition(x, y), abs=1e-7)


# --- samples ----------------------------------------------------------------------------------------------------------


def test_pixels_of_a_vector_are_its_images():
    x, y = related(50, (6, 9))
    assert linear_cka(x, y, samples_as="pixels") == linear_cka(x, y)


@each("memory", [2**30, 1])
def test_many_pixels_are_taken_image_by_image(memory, monkeypatch):
    monkeypatch.setattr(cka, "MEMORY", memory)
    xs = [seeded(6, 5, 20, 20, seed=i) + i for i in range(3)]
    rows = [x.double().permute(0, 2, 3, 1).reshape(-1, 5).numpy() for x in xs]
    rows = [of - of.mean(0) for of in rows]
    products = np.array([[np.square(a.T @ b).sum() for b in rows] for a in rows])
    got = linear_cka.all(xs, samples_as="pixels")
    wanted = products / np.sqrt(np.outer(products.diagonal(), products.diagonal()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


# --- errors -----------------------------------------------------------------------------------------------------------

GOOD = torch.ones(5, 3)


@each(
    ("xs", "ys", "settings", "said"),
    [
        ([GOOD], [], {}, "ys is empty"),
        ([GOOD], [GOOD, torch.ones(6, 3)], {}, r"ys\[1\] has 6 samples and xs\[0\] 5.*same images"),
        ([torch.ones(1, 3)], None, {}, r"xs\[0\] is \(1, 3\): give two samples"),
        ([torch.ones(5, 0)], None, {}, r"xs\[0\] is \(5, 0\)"),
        ([torch.ones(5, 3, dtype=torch.int64)], None, {}, r"xs\[0\] is of torch.int64"),
        ([GOOD, GOOD * torch.inf], None, {}, r"xs\[1\] is not finite"),
        ([GOOD[:3]], None, {"debiased": True}, "of 3 samples is not defined: give 4"),
        ([GOOD], None, {"samples_as": "rows"}, "samples_as='rows': give 'flattened' or 'pixels'"),
        ([torch.ones(5, 3, 2, 2), GOOD], None, {"samples_as": "pixels"}, r"xs\[1\] has 5 .* as 'flattened'"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(xs, ys, settings, said):
    with pytest.raises(DataError, match=said):
        linear_cka.all(xs, ys, **settings)

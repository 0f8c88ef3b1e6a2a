"""What an index is by chance: sums under permutations, p, standard errors; against plain loops, and laws."""

import numpy as np
import pytest
import torch
from scipy.stats import beta
from variants import VARIANTS, layers, seeded

from loops import each
from suture.measurement import indices
from suture.measurement.indices.base import Layer
from suture.measurement.indices.calibration import Null, calibrate, correlate, influence_errors, random_orders
from suture.measurement.indices.grams import OfPairs

DEBIASED = indices.LinearCKA(debiased=True)


def as_layers(*tensors: torch.Tensor, **settings) -> list[Layer]:
    return [Layer(str(i), x, **settings) for i, x in enumerate(tensors)]


# --- sums under permutations ------------------------------------------------------------------------------------------


@each("directed", [False, True])
@each(("images", "positions", "blocks"), [(7, 1, 1), (8, 1, 1), (5, 3, 1), (6, 2, 2)])
def test_sums_under_permutations_are_those_of_a_loop(images, positions, blocks, directed):
    n = images * positions
    rows, columns = ([seeded(blocks, n, n, seed=10 * side + i) for i in range(2)] for side in (1, 2))
    if not directed:
        rows, columns = ([m + m.mT for m in side] for side in (rows, columns))
    got = correlate(rows, columns, 2 * images, positions, directed)
    assert got.shape == (3 * images, 2, 2)
    circle, *others = random_orders(images, 3)
    k = 0
    for order in (circle, *others):
        for shift in range(images):
            to = torch.empty(images, dtype=torch.long)
            to[circle] = order.roll(-shift)
            at = (to.unsqueeze(1) * positions + torch.arange(positions)).flatten()
            wanted = [[(a * b[:, at][:, :, at]).sum() for b in columns] for a in rows]
            np.testing.assert_allclose(got[k], wanted, rtol=0, atol=1e-9)
            k += 1
    np.testing.assert_allclose(got[0], [[(a * b).sum() for b in columns] for a in rows], rtol=0, atol=1e-9)


@each("method", [one for one in VARIANTS if not getattr(one, "reverse", False)], few=4)  # permutes the other layer
def test_what_is_permuted_is_the_index_of_images_in_another_order(method):
    """The mean over all permutations is that over many random ones, and the true order gives the value."""
    x, y = layers(40, 7, 9, seed=3)
    null = method.null(as_layers(x), as_layers(y))
    assert float(null.values) == pytest.approx(method(x, y), abs=1e-6)
    assert len(null.permuted) >= 199
    drawn = [method(x, y[order]) for order in random_orders(40, 140)[40:]]
    spread = np.std(drawn)
    assert float(null.permuted.mean()) == pytest.approx(np.mean(drawn), abs=5 * spread / 10 + 1e-6)
    assert float(null.permuted.std()) == pytest.approx(spread, rel=0.35, abs=1e-6)
    if not isinstance(method, OfPairs):
        np.testing.assert_allclose(
            null.permuted[:5].flatten(), [method(x, y[order]) for order in random_orders(40, 5)], rtol=0, atol=1e-9
        )


def test_images_are_permuted_and_their_positions_stay_together():
    """Positions that say the same in every image say nothing of which image it is."""
    place = seeded(1, 3, 4, 4)
    maps = [place + 0.3 * seeded(30, 3, 4, 4, seed=i) for i in (1, 2)]
    x, y = as_layers(*maps, samples_as="pixels")
    for method in (DEBIASED, indices.linear_regression):
        found = calibrate(method.null([x], [y]), 1.0, False)
        assert float(found.chance) > 0.5, method.name
        assert abs(float(found.calibrated)) < 0.05, method.name


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("method", [*VARIANTS])
def test_layers_that_share_nothing_are_at_chance_and_linked_ones_are_found(method):
    x, y = layers(60, 12, 9)
    nothing = [seeded(60, 12, seed=20 + i) for i in range(3)]
    found = calibrate(method.null(as_layers(x, *nothing[:2]), as_layers(y, nothing[2])), method.best, method.distance)
    assert float(found.p[0, 0]) == pytest.approx(found.p.min())
    assert float(found.p[0, 0]) <= 0.05
    assert float(found.calibrated[0, 0]) > 0.05
    others = torch.ones(3, 2, dtype=torch.bool)
    others[0, 0] = False
    assert (found.p[others] > 0.05).all()
    assert (found.calibrated[others].abs() < 0.2).all()
    assert (found.low <= found.calibrated).all()
    assert (found.calibrated <= found.high).all()
    itself = calibrate(method.null(as_layers(x), as_layers(x)), method.best, method.distance)
    assert float(itself.calibrated) == pytest.approx(1, abs=1e-6)


def test_what_is_high_of_independent_gaussian_layers_is_chance():
    """Of 200 samples and 4,096 features linear CKA is 0.95, and RBF CKA 0.995."""
    x, y = as_layers(seeded(200, 4096).float(), seeded(200, 4096, seed=1).float())
    for method, value in ((indices.linear_cka, 0.95), (indices.rbf_cka, 0.995), (DEBIASED, 0.0)):
        null = method.null([x], [y])
        found = calibrate(null, 1.0, False)
        assert float(null.values) == pytest.approx(value, abs=0.01)
        assert abs(float(found.calibrated)) < 0.02
        assert float(found.p) > 0.05
        assert float(found.low) < 0 < float(found.high)


@pytest.mark.slow
@each("method", [DEBIASED, indices.mutual_knn])
def test_five_percent_of_null_pairs_and_of_null_tables_are_called_linked(method):
    """The 99.9 % binomial interval holds 5 %; of every index, over 2,000 pairs, in ``benchmarks/calibration.py``."""
    single, tables = 0, 0
    for k in range(120):
        xs, ys = ([seeded(50, 5 + 3 * i, seed=1000 * k + 10 * side + i) for i in range(2)] for side in (0, 1))
        null = method.null(as_layers(*xs), as_layers(*ys))
        tables += bool((calibrate(null, 1.0, False).p <= 0.05).any())
        first = Null(null.values[:1, :1], null.permuted[:, :1, :1], null.errors[:1, :1], null.freedom)
        single += float(calibrate(first, 1.0, False).p) <= 0.05
    for count in (single, tables):
        low, high = beta.ppf([0.0005, 0.9995], [count + 1e-9, count + 1], [121 - count, 120 - count])
        assert low <= 0.05 <= high, count


def test_p_is_of_the_most_striking_pair_by_each_pairs_own_spread():
    """A pair that is far above its own chance is found beside one whose values are larger and mean nothing."""
    permuted = torch.stack([0.9 + 0.05 * seeded(199, seed=1), 0.1 + 0.001 * seeded(199, seed=2)], 1)[:, None]
    null = Null(torch.tensor([[0.9, 0.11]], dtype=torch.float64), permuted, torch.zeros(1, 2, dtype=torch.float64), 9)
    found = calibrate(null, 1.0, False)
    assert found.p.tolist() == [[pytest.approx(0.75, abs=0.1), 1 / 200]]  # two pairs, one of which is at its mean
    torch.testing.assert_close(found.calibrated, (null.values - found.chance) / (1 - found.chance))


def test_where_chance_is_all_there_is_nothing_is_left():
    """CCA of more features than samples is 1 whatever the layers are."""
    x, y = as_layers(seeded(30, 40), seeded(30, 40, seed=1))
    found = calibrate(indices.mean_cca.null([x], [y], 19), 1.0, False)
    assert [float(part) for part in (found.chance, found.calibrated, found.p, found.low)] == [1, 0, 1, 0]


# --- standard errors --------------------------------------------------------------------------------------------------


@each("method", [DEBIASED, indices.linear_cka, indices.rsa_pearson])
def test_standard_errors_to_first_order_are_those_of_leaving_each_image_out(method):
    x, y = layers(150, 12, 9)
    without = [method(*(torch.cat([of[:i], of[i + 1 :]]) for of in (x, y))) for i in range(150)]
    jackknife = (149 * np.var(without)) ** 0.5
    assert float(method.null(as_layers(x), as_layers(y)).errors) == pytest.approx(jackknife, rel=0.05)


@each("directed", [False, True])
def test_what_an_image_adds_is_its_row_and_its_column(directed):
    a, b = (seeded(12, 12, seed=i) for i in (1, 2))
    if not directed:
        a, b = a + a.T, b + b.T
    a, b = a / a.norm(), b / b.norm()
    value = (a * b).sum()
    shares = [[(m * n)[i].sum() + (m * n)[:, i].sum() for i in range(12)] for m, n in ((a, b), (a, a), (b, b))]
    effects = torch.tensor(shares[0]) - value / 2 * (torch.tensor(shares[1]) + torch.tensor(shares[2]))
    for positions in (1, 3):
        held = effects.reshape(-1, positions).sum(1)
        wanted = ((1 - 1 / len(held)) * held.square().sum()).sqrt()
        got = influence_errors([a], [b], value.reshape(1, 1), positions, directed)
        assert float(got) == pytest.approx(float(wanted), abs=1e-7)


def test_a_layer_and_what_it_repeats_leave_no_error():
    x = as_layers(seeded(60, 12))
    for method in (DEBIASED, indices.mutual_knn, indices.procrustes):
        assert float(method.null(x, x, 19).errors) == pytest.approx(0, abs=1e-6)


def test_too_few_images_have_no_interval():
    x, y = as_layers(seeded(12, 3), seeded(12, 4, seed=1))
    assert torch.isnan(indices.procrustes.null([x], [y], 19).errors).all()


def test_of_any_number_of_batches_cka_is_its_mean_over_batches():
    """Nguyen et al. 2021, eq. 4, batch by batch; unlike the biased index it does not grow as batches shrink."""
    x, y = layers(203, 300, 200)

    def hsic(a: torch.Tensor, b: torch.Tensor) -> float:
        n, k, l = len(a), a @ a.T, b @ b.T  # noqa: E741
        k, l = (m - m.diagonal().diag() for m in (k, l))  # noqa: E741
        trace, sums = (k * l).sum(), k.sum() * l.sum() / ((n - 1) * (n - 2))
        return float(trace + sums - 2 / (n - 2) * (k.sum(0) @ l.sum(0)))

    parts = [(x[i : i + 40], y[i : i + 40]) for i in range(0, 200, 40)]
    across, own, others = (
        sum(hsic(*pair) for pair in [(a, b)[slice(*ends)] * times for a, b in parts])
        for ends, times in (((0, 2), 1), ((0, 1), 2), ((1, 2), 2))
    )
    assert indices.minibatch_cka(x, y, batch=41) == pytest.approx(across / (own * others) ** 0.5, abs=1e-9)
    assert indices.minibatch_cka(x, y, batch=203) == pytest.approx(DEBIASED(x, y), abs=1e-9)
    few = indices.minibatch_cka(x[:6], x[:6], batch=5)
    assert few == pytest.approx(1), "and not 0, as of batches of three, of which there is no estimate"
    sizes = [indices.minibatch_cka(x, y, batch=size) for size in (20, 40, 100)]
    assert np.ptp(sizes) < 0.05
    assert len(indices.MinibatchCKA(batch=41).null(as_layers(x), as_layers(y)).permuted) == 5 * 40 - 1

"""Every index against an independent implementation."""

import pytest
from oracles import ORACLES
from sklearn.cross_decomposition import CCA
from variants import BY_NAME, layers

from loops import each
from suture.measurement import indices


def test_every_index_has_an_oracle():
    assert set(ORACLES) == set(BY_NAME)


@each("sizes", [(60, 12, 9), (60, 9, 12), (90, 30, 6), (40, 15, 15)], few=2)
@each("name", ORACLES)
def test_it_agrees_with_an_independent_implementation(name, sizes):
    x, y = layers(*sizes, seed=sum(sizes))
    assert BY_NAME[name](x, y) == pytest.approx(ORACLES[name](x.numpy(), y.numpy()), abs=1e-8)


@each("name", [name for name in ORACLES if name not in ("mean_cca", "pwcca", "linear_regression")])
def test_so_it_does_of_more_features_than_samples(name):
    x, y = layers(40, 100, 70)
    assert BY_NAME[name](x, y) == pytest.approx(ORACLES[name](x.numpy(), y.numpy()), abs=1e-8)


def test_the_mean_correlation_is_that_of_scikit_learns_iteration():
    x, y = layers(80, 5, 4)
    scores = CCA(4, max_iter=5000, tol=1e-12).fit_transform(x.numpy(), y.numpy())
    correlations = [abs((a @ b) / ((a @ a) * (b @ b)) ** 0.5) for a, b in zip(*(of.T for of in scores), strict=True)]
    assert indices.mean_cca(x, y) == pytest.approx(sum(correlations) / 4, abs=1e-6)

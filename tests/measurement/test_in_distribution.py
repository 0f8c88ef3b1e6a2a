"""Whether the receiver sees at its cut what it saw in training: the distances, the AUROC, its interval, and trials."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from reported import to_table
from suture import fits
from suture.core.activations.cache import Need
from suture.core.stitched import Seam
from suture.core.stitches import Identity, Linear
from suture.core.stitches.pooled_linear import pool_positions
from suture.measurement.scores.in_distribution import (
    NEIGHBOURS,
    REFERENCE,
    auroc,
    mahalanobis,
    tell_apart,
    to_neighbours,
)
from suture.measurement.tables.records import describe_trial, record
from suture.measurement.tables.table import summary, table_of, told_from_own
from suture.measurement.trials import baselines, controls
from suture.measurement.trials.measure import measure
from suture.measurement.trials.plans import Plan, Settings, plan_seam
from trained import few_digits, hybrids


def features(n: int, d: int, seed: int) -> Tensor:
    """Correlated features of unequal scale, float64."""
    random = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return torch.randn(n, d, generator=random, dtype=torch.float64) @ mix * torch.linspace(0.1, 10, d)


@pytest.mark.parametrize(("n", "d"), [(200, 12), (60, 300)])  # fewer features than samples, and more
def test_distances_are_those_of_sklearn(n: int, d: int) -> None:
    reference, queries = features(n, d, 0), features(50, d, 1)
    reference, queries = reference - reference.mean(0), queries - reference.mean(0)
    theirs = LedoitWolf(assume_centered=True).fit(reference.numpy())
    np.testing.assert_allclose(mahalanobis(reference, queries), theirs.mahalanobis(queries.numpy()), rtol=1e-7)
    nearest, _ = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(reference.numpy()).kneighbors(queries.numpy())
    np.testing.assert_allclose(to_neighbours(reference, queries), nearest[:, -1] ** 2, rtol=1e-7)


def test_the_auroc_is_that_of_sklearn_ties_included() -> None:
    random = np.random.default_rng(0)
    own, stitched = random.integers(0, 9, 300).astype(float), random.integers(2, 11, 300).astype(float)
    theirs = roc_auc_score([0] * 300 + [1] * 300, np.concatenate([own, stitched]))
    assert auroc(own, stitched).value == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("together", [0.0, 0.9, -0.5])  # how far an image's two distances go together
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_the_interval_covers_what_it_says(together: float, shift: float) -> None:
    random = np.random.default_rng(3)
    truth = float(torch.distributions.Normal(0, 1).cdf(torch.tensor(shift / 2**0.5)))
    covered = 0
    for _ in range(600):
        own = random.standard_normal(150)
        found = auroc(own, together * own + (1 - together**2) ** 0.5 * random.standard_normal(150) + shift)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / 600 <= 0.99


def test_planted_activations_are_told_apart_as_far_as_they_are() -> None:
    reference, own = features(600, 20, 0), features(400, 20, 1)
    centre = reference.mean(0)
    for stitched, low, high in (
        (own, 0.5, 0.5),  # the same
        (features(400, 20, 2), 0.44, 0.56),  # others of its own
        (3 * own, 0.99, 1.0),
        (own + 4 * own.std(0), 0.99, 1.0),
        (centre + 0.3 * (own - centre), 0.0, 0.01),  # nearer to the middle than its own ever are
        (own + torch.nn.functional.one_hot(torch.tensor(0), 20) * 9 * own.std(0)[0], 0.95, 1.0),  # one feature alone
    ):
        found = tell_apart(reference, own, stitched)
        assert low <= found["mahalanobis"].value <= high
        if high != 1.0 or low > 0.98:
            assert low <= found["knn"].value <= high


def test_a_unit_that_was_always_dead_counts_and_a_scale_does_not() -> None:
    reference, own = features(300, 8, 0), features(200, 8, 1)
    reference[:, 3] = own[:, 3] = 0
    alive = own.clone()
    alive[:, 3] = own.std(0).mean()
    for scale in (1e-4, 1.0, 1e4):
        same, woken = (tell_apart(scale * reference, scale * own, scale * other) for other in (own, alive))
        assert same["mahalanobis"].value == 0.5
        assert woken["mahalanobis"].value > 0.9
    assert tell_apart(torch.ones(30, 4), torch.ones(9, 4), torch.zeros(9, 4)) == {}


def test_no_interval_collapses_where_all_are_told_apart() -> None:
    found = auroc(np.arange(100.0), np.arange(100.0) + 1000)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 100))  # of Clopper and Pearson, if all of 100 agree


def test_features_are_means_over_positions_and_tokens() -> None:
    maps, tokens = torch.randn(3, 5, 2, 4), torch.randn(3, 7, 5)
    assert torch.equal(pool_positions(maps, "mean"), maps.mean((2, 3)))
    assert torch.allclose(pool_positions(tokens, "mean"), tokens.mean(1))
    assert torch.equal(pool_positions(tokens[:, 0], "mean"), tokens[:, 0])


# --- in trials --------------------------------------------------------------------------------------------------------


def plan(cut: str = "hidden", **settings: object) -> Plan:
    a, b = hybrids()
    return plan_seam(Seam.at(a, b, cut), few_digits(), Settings(**{"controls": ()} | settings))


def test_a_receiver_plugged_into_itself_is_not_told_apart() -> None:
    _, b = hybrids()
    trial = replace(plan(stitch=Identity())[0], seam=Seam.at(b, b, "hidden"))
    found = measure(trial).apart
    assert {name: (e.value, e.low, e.high) for name, e in found.items()} == {
        "mahalanobis": (0.5, 0.5, 0.5),
        "knn": (0.5, 0.5, 0.5),
    }


def test_what_a_trial_says_is_what_its_activations_say() -> None:
    trial = plan(fit=fits.LeastSquares())[0]
    found = measure(trial)
    a, b = trial.seam.networks
    images = trial.score_data.images
    with torch.no_grad():
        own, sent = b.upto("hidden")(images), found.stitch(a.upto("hidden")(images))
        reference = b.upto("hidden")(trial.fit_data.images[:REFERENCE])
    expected = tell_apart(reference, own, sent)
    for name, e in found.apart.items():
        assert (e.value, e.low) == pytest.approx((expected[name].value, expected[name].low), abs=1e-3)
        assert e.n == len(images)


def test_a_fit_that_reads_nothing_and_broken_pairs_have_a_reference_too() -> None:
    for fit in (fits.TaskLoss(start=fits.Random(), steps=5, check=5), fits.LeastSquares()):
        for trial in plan(fit=fit, controls=(controls.shuffled_pairs,)):
            assert set(measure(trial).apart) == {"mahalanobis", "knn"}
            assert torch.equal(trial.reference.images, trial.fit_data.images)
            own = trial.receiver.cuts.find("hidden").index
            assert Need(trial.receiver, trial.reference, own).key in {need.key for need in trial.needs}


def test_behind_all_layers_nothing_is_said() -> None:
    assert measure(baselines.linear_probe(plan()[0])).apart == {}


def test_the_table_has_it_and_older_records_do_not() -> None:
    found = measure(plan(stitch=Linear(), fit=fits.LeastSquares())[0])
    row = to_table([found]).iloc[0]
    for name, e in found.apart.items():
        assert tuple(row[f"apart_{name}{end}"] for end in ("", "_low", "_high")) == (e.value, e.low, e.high)
    made = record(found)
    del made["apart"]
    assert pd.isna(table_of([(describe_trial(found.trial), made)]).iloc[0]["apart_knn"])


def test_told_from_own_asks_for_all_of_the_interval_of_either() -> None:
    rows = pd.DataFrame({"apart_mahalanobis": [0.5] * 6, "apart_knn": [0.5] * 6})
    rows["apart_mahalanobis_low"] = [0.8, 0.8, 0.7, 0.0, 0.4, 0.8]
    rows["apart_mahalanobis_high"] = [0.9, 0.9, 0.9, 0.2, 0.6, 0.9]
    rows["apart_knn_low"], rows["apart_knn_high"] = 0.4, 0.6
    assert told_from_own(rows).tolist() == [True, True, False, True, False, True]


def test_seeds_are_averaged() -> None:
    plans = plan(fit=fits.Quick(70), seeds=2)
    table = to_table([measure(trial) for trial in plans])
    means = summary(table)
    one = means[means["score"] == "accuracy"].iloc[0]
    held = table[table["score"] == "accuracy"]
    assert one["apart_mahalanobis_low"] == pytest.approx(held["apart_mahalanobis_low"].mean())

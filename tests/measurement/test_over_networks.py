"""Means over pairs of networks, and intervals whose unit is the network."""

import math
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import suture
from suture.common.errors import DataError
from suture.measurement.tables.averages import average_over_networks

SENDS, RECEIVES = [0.0, 3.0, 9.0, 4.0, 1.0], [1.0, 0.0, 0.0, 7.0, 2.0]


def test_networks_that_send_and_receive_have_students_interval_of_what_they_add_in_all() -> None:
    pairs = list(permutations(range(5), 2))
    found = average_over_networks([SENDS[i] + RECEIVES[j] for i, j in pairs], *zip(*pairs, strict=True))
    adds = [a + b for a, b in zip(SENDS, RECEIVES, strict=True)]
    low, high = stats.ttest_1samp(adds, 0.0).confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(adds))
    assert found.reach(0.95) == pytest.approx((high - low) / 2)
    assert (found.pairs, found.networks, found.freedom) == (20, 5, 4)


def test_senders_and_receivers_that_are_other_networks_have_welchs_interval() -> None:
    pairs = list(product(range(5), range(4)))
    names = [f"s{i}" for i, _ in pairs], [f"r{j}" for _, j in pairs]
    found = average_over_networks([SENDS[i] - RECEIVES[j] for i, j in pairs], *names)
    welch = stats.ttest_ind(SENDS, RECEIVES[:4], equal_var=False)
    low, high = welch.confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(SENDS) - np.mean(RECEIVES[:4]))
    assert (found.freedom, found.networks) == (pytest.approx(welch.df), 4)
    assert found.reach(0.95) == pytest.approx((high - low) / 2)


def test_pairs_without_a_network_in_common_are_the_units() -> None:
    found = average_over_networks(SENDS, "abcde", "fghij")
    low, high = stats.ttest_1samp(SENDS, 0.0).confidence_interval(0.9)
    assert (found.reach(0.9), found.networks) == (pytest.approx((high - low) / 2), 5)
    both_ways = average_over_networks([*SENDS, *SENDS], "abcdefghij", "fghijabcde")
    assert (both_ways.reach(0.9), both_ways.networks, both_ways.pairs) == (pytest.approx(found.reach(0.9)), 5, 10)
    assert average_over_networks(SENDS, "abcde", "abcde").reach(0.9) == pytest.approx(found.reach(0.9))


def test_two_networks_on_a_side_have_no_interval() -> None:
    for senders, receivers in (("ab", "ba"), ("aabb", "cdef"), ("aaaaa", "bcdef")):
        assert np.isnan(average_over_networks(range(len(senders)), senders, receivers).variance)
    with pytest.raises(DataError, match="no measurement"):
        average_over_networks([], [], [])


def table(values: dict[tuple[str, str], float], **columns: object) -> pd.DataFrame:
    shared = {"status": "ok", "score": "accuracy", "control": "", "sender_cut": "a", "receiver_cut": "b"}
    shared |= {"stitch": "Conv()", "fit": "Converged()", "fit_data": "f", "score_data": "s", **columns}
    return pd.DataFrame([shared | {"sender": a, "receiver": b, "penalty": v} for (a, b), v in values.items()])


def test_networks_that_are_in_the_same_pairs_are_one_unit() -> None:
    found = average_over_networks([1.0, 1.1, 2.0, 2.1], "ABCD", "BADC")
    assert found.networks == 2
    assert math.isnan(found.variance)


def test_a_matrix_has_a_row_for_each_pair_of_cuts_without_its_diagonal() -> None:
    values = {(a, b): float("abc".index(a)) for a, b in product("abc", repeat=2)}
    found = suture.over_networks(pd.concat([table(values), table(values, receiver_cut="c", control="itself")]))
    assert found[["control", "receiver_cut", "pairs", "networks"]].to_numpy().tolist() == [
        ["", "b", 6, 3],
        ["itself", "c", 6, 3],
    ]
    assert found["penalty"].tolist() == [1.0, 1.0]
    half = stats.t.ppf(0.975, 2) / 3**0.5  # of 0, 1 and 2
    assert found["high"].tolist() == pytest.approx([1 + half] * 2)
    broken = table(values).assign(status="failed")
    (alone,) = (
        suture.over_networks(pd.concat([broken, table(values, receiver_cut="c")])).query("failed > 0").itertuples()
    )
    assert (alone.receiver_cut, alone.pairs, alone.failed) == ("b", 0, 6)
    open_ = suture.over_networks(table(values, fit="Converged()", converged=False))
    assert open_["open"].tolist() == [6]
    with pytest.raises(DataError, match="more than one fit at one seam"):
        suture.over_networks(pd.concat([table(values), table(values, fit="LeastSquares()")]))
    with pytest.raises(DataError, match="no pair of two networks"):
        suture.over_networks(table({("a", "a"): 1.0}))

"""Comparing networks at all pairs of cuts, and similarities beside measurements."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch

import suture
from loops import each
from reported import to_table
from suture import Network
from suture.common.errors import CutError, DataError, NetworkError
from suture.core.activations.cache import Activations
from suture.core.activations.disk_cache import ActivationFolder
from suture.fits import LeastSquares
from suture.measurement import indices
from suture.measurement.compare import beside, compare
from suture.measurement.tables.similarities import CALIBRATED, COLUMNS, SEAM
from suture.measurement.trials.measure import measure
from suture.measurement.trials.plans import curve
from trained import convnets, digits, few_digits, hybrid, hybrids, state_bits

BY = [indices.linear_cka, indices.procrustes]


def value(table: pd.DataFrame, sender_cut: str, receiver_cut: str, index: str) -> float:
    row = table[(table.sender_cut == sender_cut) & (table.receiver_cut == receiver_cut) & (table["index"] == index)]
    return float(row["value"].item())


def test_all_pairs_of_cuts_by_every_index() -> None:
    a, b = hybrids()
    before = [state_bits(network._model) for network in (a, b)]
    table = compare(a, b, data=digits(), by=BY, permutations=0, samples=200)
    assert list(table.columns) == list(COLUMNS)
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == COLUMNS
    assert len(table) == 2 * len(a.cuts) * len(b.cuts)
    assert not table.duplicated([*SEAM, "index"]).any()
    assert set(table.sender) == {"A"}
    assert set(table.receiver) == {"B"}
    assert set(table.samples_as) == {"flattened"}
    assert set(table.score_data) == {"digits/score[:200]"}
    assert set(table.n) == {200}
    assert [state_bits(network._model) for network in (a, b)] == before
    samples, cache = digits().limited(score=200).score, Activations()
    for index in BY:
        for start, end in (("relu", "drop"), ("hidden", "relu"), ("mix", "mix")):
            wanted = index(cache.at(a, start, samples), cache.at(b, end, samples))
            assert value(table, a.cuts.find(start).name, b.cuts.find(end).name, index.name) == pytest.approx(wanted)
    row = table[table.sender_cut == "hidden"].iloc[0]
    assert row.sender_depth == a.cuts.find("hidden").depth
    assert row.receiver_depth == b.cuts.find(row.receiver_cut).depth == 1 / len(b.cuts)


@pytest.mark.slow
def test_the_same_bits_alone_among_others_and_by_a_cache() -> None:
    a, b = hybrids()
    by = [indices.mutual_knn, indices.mean_cca, indices.rsa_pearson]
    common = {"data": few_digits(), "sender_cuts": "relu", "permutations": 19}
    every = compare(a, b, by=by, **common)
    again = compare(a, b, by=by, activations=Activations(), **common)
    pd.testing.assert_frame_equal(every, again, check_exact=True)
    alone = compare(a, b, by=indices.mean_cca, receiver_cuts="hidden", **common)
    assert len(alone) == 1
    assert alone["value"].item() == value(every, "relu", "hidden", "mean_cca")


def test_a_network_is_itself_and_its_layers_are_computed_once() -> None:
    a, _ = hybrids()
    cache = Activations()
    asked = []
    cache.at = lambda network, cut, samples: (asked.append(cut.name), Activations.at(cache, network, cut, samples))[1]
    table = compare(a, a, data=few_digits(), by=BY, permutations=0, activations=cache)
    assert sorted(asked) == sorted(a.cuts.names)
    same = table[table.sender_cut == table.receiver_cut]
    np.testing.assert_allclose(same["value"], 1, atol=1e-6)
    twin = Network(hybrid(0), example=digits().example, name="A")
    assert compare(a, twin, data=few_digits(), by=BY, permutations=0)["value"].tolist() == table["value"].tolist()


def test_pixels_compare_maps_of_all_sizes_and_what_has_as_many_positions_and_leave_the_rest_empty() -> None:
    a, b = hybrids()
    table = compare(a, b, data=few_digits(), by=BY, permutations=0, samples=100, samples_as="pixels")
    sizes = {cut.name: (cut.shape[0] if len(cut.shape) == 2 else cut.shape[1:]) for cut in a.cuts}
    for row in table.itertuples():
        size = [sizes[name] for name in (row.sender_cut, row.receiver_cut)]
        assert np.isnan(row.value) == (
            np.prod(size[0]) != np.prod(size[1]) and not all(np.ndim(of) and len(of) for of in size)
        )
    samples, cache = few_digits().limited(score=100).score, Activations()
    maps = [cache.at(network, "relu", samples).permute(0, 2, 3, 1).reshape(-1, 8) for network in (a, b)]
    assert value(table, "relu", "relu", "linear_cka") == pytest.approx(indices.linear_cka(*maps), abs=3e-6)
    assert set(table.n) == {100}


@pytest.mark.slow
def test_patterns_choose_cuts_of_both_or_of_each() -> None:
    a, b = convnets()
    chosen = compare(a, b, data=few_digits(), cuts=[a.cuts.names[0], a.cuts.names[2]])
    assert len(chosen) == 4
    table = compare(a, b, data=few_digits(), sender_cuts={"C": a.cuts.names[1]}, receiver_cuts="*")
    assert set(table.sender_cut) == {a.cuts.names[1]}
    assert list(table.receiver_cut) == list(b.cuts.names)


@pytest.mark.slow
def test_networks_of_other_seeds_are_more_alike_the_nearer_their_depths() -> None:
    """Kornblith et al. 2019: CKA finds the corresponding layers of networks trained from other seeds."""
    a, b = convnets()
    table = compare(a, b, data=digits(), by=indices.linear_cka, samples=None, permutations=0)
    apart = (table.sender_depth - table.receiver_depth).abs()
    near, far = (table["value"][chosen].mean() for chosen in (apart < 0.2, apart > 0.6))
    assert near > 0.8 > far + 0.1


# --- chance -----------------------------------------------------------------------------------------------------------


def test_debiased_cka_is_the_default_and_every_value_comes_with_its_chance() -> None:
    a, b = hybrids()
    table = compare(a, b, data=few_digits())
    assert set(table["index"]) == {"linear_cka(debiased=True)"}
    assert set(table["direction"]) == {"similarity"}
    assert (table["chance"].abs() < 0.02).all()
    np.testing.assert_allclose(table["calibrated"], (table["value"] - table["chance"]) / (1 - table["chance"]))
    assert ((table["low"] <= table["calibrated"]) & (table["calibrated"] <= table["high"])).all()
    assert (table["p"] < 0.01).all()
    plain = compare(a, b, data=few_digits(), permutations=0)
    np.testing.assert_allclose(plain["value"], table["value"], rtol=0, atol=1e-6)
    assert plain[list(CALIBRATED)].isna().all(axis=None)


@pytest.mark.slow
def test_all_sizes_of_maps_are_one_family() -> None:
    """By pixels, images are permuted and pixels stay together; p counts all pairs that can be compared."""
    a, b = hybrids()
    by = indices.LinearCKA(debiased=True)
    table = compare(a, b, data=few_digits(), by=by, samples=60, samples_as="pixels")
    compared = table.dropna(subset="value")
    assert 0 < len(compared) < len(table)
    assert compared["calibrated"].notna().all()
    assert table[table["value"].isna()]["p"].isna().all()


def test_a_distance_is_calibrated_as_a_similarity_is() -> None:
    a, b = hybrids()
    by = [indices.procrustes_angle, indices.procrustes]
    table = compare(a, b, data=few_digits(), by=by, sender_cuts="hidden", receiver_cuts="hidden", permutations=19)
    angle, similarity = table.iloc[0], table.iloc[1]
    assert (angle["direction"], similarity["direction"]) == ("distance", "similarity")
    assert angle["calibrated"] == pytest.approx(1 - angle["value"] / angle["chance"])
    assert angle["p"] == similarity["p"] == 1 / 20


# --- beside -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_similarities_stand_beside_the_measurements_of_their_seams() -> None:
    a, b = hybrids()
    plan = curve(a, b, at=["relu", "hidden"], data=few_digits(), fit=LeastSquares())
    measured = to_table(measure(trial) for trial in plan)
    measured = measured.sample(frac=1, random_state=0)
    similar = compare(a, b, data=few_digits(), by=[*BY, indices.LinearCKA(debiased=True)], permutations=0)
    joined = beside(measured, similar)
    assert list(joined.columns) == [*measured.columns, "linear_cka", "procrustes", "linear_cka(debiased=True)"]
    pd.testing.assert_frame_equal(joined[measured.columns], measured)
    for _, row in joined.iterrows():
        if row.control in ("", "shuffled pairs"):
            assert row.procrustes == value(similar, row.sender_cut, row.receiver_cut, "procrustes")
        else:
            assert np.isnan(row.procrustes), row.control
    own = beside(measured, pd.concat([similar, compare(b, b, data=few_digits(), by=BY, permutations=0)]))
    np.testing.assert_allclose(own[own.control == "itself"]["linear_cka"], 1, atol=1e-6)
    assert own[own.control == "untrained sender"]["linear_cka"].isna().all()
    assert len(beside(suture.summary(measured), similar)) == len(suture.summary(measured))
    with pytest.warns(UserWarning, match="compared on other/score and stitched networks on .*/score"):
        beside(measured, similar.assign(score_data="other/score[:50]"))
    known = compare(a, b, data=few_digits(), by=indices.linear_cka, permutations=19)
    plain = beside(measured, known)[measured["control"] == ""].iloc[0]
    row = known[(known.sender_cut == plain.sender_cut) & (known.receiver_cut == plain.receiver_cut)].iloc[0]
    assert plain["linear_cka"] == row["calibrated"] != row["value"]


def test_tables_that_do_not_fit_are_refused() -> None:
    a, b = hybrids()
    similar = compare(a, b, data=few_digits(), by=indices.linear_cka, cuts="relu", permutations=0)
    measured = to_table([])
    with pytest.raises(DataError, match="not a table of measurements: it has no column 'trial'"):
        beside(similar, similar)
    with pytest.raises(DataError, match="not a table of similarities: it has no column 'index'"):
        beside(measured, measured)
    both = pd.concat(
        [
            similar,
            compare(a, b, data=few_digits(), by=indices.linear_cka, cuts="relu", samples_as="pixels", permutations=0),
        ]
    )
    with pytest.raises(DataError, match=r"several values of linear_cka at one seam, A → B at relu → relu; keep one"):
        beside(measured, both)
    with pytest.raises(DataError, match="column 'linear_cka' already"):
        beside(beside(measured, similar), similar)


# --- errors -----------------------------------------------------------------------------------------------------------


@each(
    ("settings", "error", "said"),
    [
        ({"by": []}, DataError, r"by=\[\] is empty"),
        ({"by": ["cka"]}, DataError, r"by\[0\] is 'cka': give indices"),
        ({"by": [indices.linear_cka] * 2}, DataError, "'linear_cka' is given twice"),
        ({"by": [indices.rbf_cka], "samples_as": "pixels", "samples": None}, DataError, "'conv' has .* samples of 8"),
        ({"by": [indices.RBFCKA(debiased=True)], "samples": 3}, DataError, "give 4 or more"),
        ({"samples": 1}, DataError, "1"),
        ({"permutations": 10}, DataError, "permutations=10: give 19 or more"),
        ({"samples_as": "rows"}, DataError, "samples_as='rows'"),
        ({"cuts": "layer9"}, CutError, "layer9"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_computed(settings, error, said, monkeypatch) -> None:
    a, b = hybrids()
    monkeypatch.setattr("suture.measurement.indices.base.MOST", 597 * 16 - 1)
    monkeypatch.setattr(Activations, "at", None)
    with pytest.raises(error, match=said):
        compare(a, b, data=digits(), **settings)


def test_two_networks_of_one_name_are_refused() -> None:
    a, b = hybrids()
    with pytest.raises(NetworkError, match="two networks are called 'A'"):
        compare(a, Network(b._model, example=digits().example, name="A"), data=few_digits())


def test_activations_that_memory_cannot_hold_are_refused_unless_there_is_a_disk(monkeypatch, tmp_path) -> None:
    a, b = hybrids()
    monkeypatch.setattr(sys.modules["suture.measurement.network_sides"], "physical_memory", lambda: 2**20)
    with pytest.raises(DataError, match=r"take .* MB, and there is room for 734 kB: give fewer samples"):
        compare(a, b, data=digits(), samples=597)
    disk = Activations(disk=ActivationFolder(tmp_path, 2**30))
    assert len(compare(a, b, data=digits(), cuts="relu", activations=disk)) == 1


def test_it_computes_with_one_thread(monkeypatch) -> None:
    a, b = hybrids()
    seen = []
    real = indices.LinearCKA._pairs
    monkeypatch.setattr(
        indices.LinearCKA, "_pairs", lambda *given: (seen.append(torch.get_num_threads()), real(*given))[1]
    )
    torch.set_num_threads(2)
    try:
        compare(a, b, data=few_digits(), by=indices.linear_cka, cuts="relu", permutations=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1]

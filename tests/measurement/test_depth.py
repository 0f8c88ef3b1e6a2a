"""Summaries by depth, against matrices computed by hand."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import each, examples
from suture.common.errors import DataError
from suture.measurement.tables.by_depth import BY_SHAPE, POOLED, by_depth, cells, profiles
from suture.measurement.tables.table import COLUMNS

Values = Sequence[Sequence[float]]


def tabled(
    values: Values,
    *,
    names: tuple[str, str] = ("A", "B"),
    control: str = "",
    stitch: str = "Conv()",
    depths: tuple[Sequence[float], Sequence[float]] | None = None,
    **columns: Any,
) -> pd.DataFrame:
    """A table whose stitched scores are a matrix: rows sender cuts s1, s2, …, columns receiver cuts r1, r2, …"""
    rows = []
    down, across = len(values), len(values[0])
    sender_depths, receiver_depths = depths or (
        [i / down for i in range(1, down + 1)],
        [j / across for j in range(1, across + 1)],
    )
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            rows.append(
                {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
                | {"trial": f"{i}-{j}", "status": "ok", "control": control, "stitch": stitch, "fit": "TaskLoss()"}
                | {"sender": names[0], "receiver": names[1], "sender_cut": f"s{i + 1}", "receiver_cut": f"r{j + 1}"}
                | {"sender_depth": sender_depths[i], "receiver_depth": receiver_depths[j]}
                | {"seed": 0, "score": "accuracy", "unit": "fraction", "stitched": value}
                | {"sender_score": 0.8, "receiver_score": 0.9, "n": 10}
                | columns
            )
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def only(summary: pd.DataFrame) -> "pd.Series[Any]":
    assert len(summary) == 1
    return summary.iloc[0]


# --- one matrix -------------------------------------------------------------------------------------------------------


def test_three_by_three_by_hand() -> None:
    row = only(by_depth(tabled([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.95]])))
    late, early = (0.1 + 0.4 + 0.5 + 0.7 + 0.8 + 0.95) / 6, (0.2 + 0.3 + 0.6) / 3
    assert row["late_to_early"] == pytest.approx(late)
    assert row["early_to_late"] == pytest.approx(early)
    assert row["difference"] == pytest.approx(late - early)
    assert row["near"] == pytest.approx((0.1 + 0.2 + 0.4 + 0.5 + 0.6 + 0.8 + 0.95) / 7)
    assert row["far"] == pytest.approx((0.3 + 0.7) / 2)
    assert row["near_difference"] == pytest.approx(row["near"] - row["far"])
    every = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.95])
    assert row["mean"] == pytest.approx(every.sum() / 9)
    assert row["std"] == pytest.approx(np.sqrt(((every - every.mean()) ** 2).sum() / 9))
    assert (row["min"], row["max"]) == (0.1, 0.95)
    counts = ["cells", "late_to_early_cells", "early_to_late_cells", "near_cells", "far_cells", "trials", "pairs"]
    assert row[counts].tolist() == [9, 6, 3, 7, 2, 9, 1]
    assert row[["failed", "empty"]].tolist() == [0, 0]


def test_networks_of_other_lengths_are_compared_by_depth() -> None:
    """Two sender cuts at 1/2 and 1, four receiver cuts at 1/4 … 1: the first row reaches to the second column."""
    row = only(by_depth(tabled([[0.9, 0.8, 0.1, 0.2], [0.7, 0.6, 0.5, 0.4]])))
    assert row["late_to_early"] == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.5 + 0.4) / 6)
    assert row["early_to_late"] == pytest.approx((0.1 + 0.2) / 2)
    # within the larger step, 1/2: all of the first row (1/4 … 1), and the last three of the second (1/2 … 1)
    assert row["near_cells"] == 7
    assert row["far"] == pytest.approx(0.7)


def test_equal_depths_are_equal_whatever_their_last_bits() -> None:
    """0.1 + 0.2 is more than 0.3 in floating point, and 3/10 of a network are 3/10."""
    table = tabled([[0.6]], depths=([0.3], [0.1 + 0.2]))
    assert 0.1 + 0.2 > 0.3
    row = only(by_depth(table))
    assert (row["late_to_early_cells"], row["early_to_late_cells"], row["near_cells"]) == (1, 0, 1)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_triangles_and_the_diagonal_are_those_of_exact_fractions(down: int, across: int, random: Any) -> None:
    values = [[random.random() for _ in range(across)] for _ in range(down)]
    row = only(by_depth(tabled(values)))
    late, early, near, far = [], [], [], []
    step = max(Fraction(1, down) if down > 1 else 0, Fraction(1, across) if across > 1 else 0)
    for i in range(down):
        for j in range(across):
            apart = Fraction(i + 1, down) - Fraction(j + 1, across)
            (late if apart >= 0 else early).append(values[i][j])
            (near if abs(apart) <= step else far).append(values[i][j])
    for name, part in (("late_to_early", late), ("early_to_late", early), ("near", near), ("far", far)):
        assert row[f"{name}_cells"] == len(part)
        assert row[name] == pytest.approx(np.mean(part) if part else np.nan, nan_ok=True)


def test_steps_are_those_between_measured_cuts() -> None:
    """Of cuts at 0.1, 0.5 and 0.9 the step is 0.4, and 0.1 is no step away from 0.9."""
    row = only(by_depth(tabled([[1, 0, 0], [0, 1, 0], [0, 0, 1]], depths=([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]))))
    assert (row["near_cells"], row["far_cells"]) == (7, 2)
    uneven = [0.1, 0.2, 0.3, 1.0]  # one long way among short ones does not widen the diagonal
    assert only(by_depth(tabled(np.eye(4).tolist(), depths=(uneven, uneven))))["near_cells"] == 4 + 2 * 2


# --- seeds and failures -----------------------------------------------------------------------------------------------


def test_seeds_are_averaged_first() -> None:
    """One seed of a cell more than of the others, and the cell still counts once."""
    table = pd.concat([tabled([[0.2, 0.4]]), tabled([[0.6, 0.4]], seed=1).iloc[:1]])
    row = only(by_depth(table))
    assert row["mean"] == pytest.approx((0.4 + 0.4) / 2)
    assert (row["cells"], row["trials"]) == (2, 3)


def test_a_cell_has_what_tells_it_apart_and_its_numbers_and_no_more() -> None:
    matrix = ["study", "sender", "receiver", "stitch", "fit", "control", "fit_data", "score_data", "score", "unit"]
    place = ["sender_cut", "receiver_cut", "sender_depth", "receiver_depth"]
    numbers = ["trials", "failed", "open", "stitched", "sender_score", "receiver_score"]
    assert list(cells(tabled([[0.0]])).columns) == [*matrix, *place, *numbers]


def test_stitch_seeds_are_averaged_before_network_seeds() -> None:
    parts = [tabled([[0.0]], network_seed=0), tabled([[0.3]], network_seed=1), tabled([[0.5]], network_seed=1, seed=1)]
    assert only(cells(pd.concat(parts)))["stitched"] == pytest.approx((0.0 + (0.3 + 0.5) / 2) / 2)


def test_failed_trials_are_counted_and_left_out() -> None:
    table = pd.concat([tabled([[0.2, 0.4], [0.6, 0.8]]), tabled([[0.4, 0.4], [0.6, 0.8]], seed=1)], ignore_index=True)
    both = (table["sender_cut"] == "s2") & (table["receiver_cut"] == "r2")
    failed = both | ((table["sender_cut"] == "s1") & (table["receiver_cut"] == "r1") & (table["seed"] == 1))
    table.loc[failed, "status"] = "failed"
    table.loc[failed, ["stitched", "sender_score", "receiver_score"]] = np.nan
    row = only(by_depth(table))
    assert row["late_to_early"] == pytest.approx((0.2 + 0.6) / 2)
    assert row[["trials", "failed", "empty", "cells", "late_to_early_cells"]].tolist() == [8, 3, 1, 3, 2]
    held = cells(table).set_index(["sender_cut", "receiver_cut"])
    assert held["failed"].tolist() == [1, 0, 0, 2]
    assert held["stitched"].isna().tolist() == [False, False, False, True]


def test_where_all_failed_there_are_no_means() -> None:
    table = tabled([[0.5, 0.5]])
    table["status"], table["stitched"] = "failed", np.nan
    row = only(by_depth(table))
    assert row[["mean", "std", "min", "max", "late_to_early", "difference"]].isna().all()
    assert row[["cells", "failed", "empty"]].tolist() == [0, 2, 2]


# --- several matrices -------------------------------------------------------------------------------------------------


def test_every_pair_control_and_fit_has_a_row() -> None:
    parts = [
        tabled([[0.1]]),
        tabled([[0.2]], control="untrained sender"),
        tabled([[0.3]], names=("B", "A")),
        tabled([[0.4]], fit="LeastSquares()"),
        tabled([[0.5]], score_data="other"),
    ]
    summary = by_depth(pd.concat(parts))
    assert summary["mean"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert summary[["sender", "receiver"]].iloc[2].tolist() == ["B", "A"]
    assert only(by_depth(tabled([[3.0]], score="loss", unit="nats"), "loss"))["unit"] == "nats"


def test_pairs_are_pooled_cell_by_cell() -> None:
    """Each pair with its own diagonal; the larger pair counts for more."""
    parts = [tabled([[0.9]]), tabled([[0.1, 0.2], [0.3, 0.4]], names=("B", "C"))]
    parts.append(tabled([[0.7]], control="untrained sender"))
    summary = by_depth(pd.concat(parts), pooled=True)
    plain, control = (summary[summary["control"] == kind].iloc[0] for kind in ("", "untrained sender"))
    assert (plain["sender"], plain["receiver"], plain["pairs"], plain["cells"]) == (POOLED, POOLED, 2, 5)
    assert plain["mean"] == pytest.approx((0.9 + 0.1 + 0.2 + 0.3 + 0.4) / 5)
    assert plain["late_to_early"] == pytest.approx((0.9 + 0.1 + 0.3 + 0.4) / 4)
    assert plain["early_to_late"] == pytest.approx(0.2)
    assert (control["mean"], control["pairs"]) == (0.7, 1)
    assert list(summary.columns) == list(by_depth(pd.concat(parts)).columns)


def test_noise_has_no_depth_and_is_in_no_triangle() -> None:
    noise = tabled([[0.8, 0.6]], control="clustered noise", names=("", "B"), depths=([np.nan], [0.5, 1]))
    noise["sender_cut"], noise["sender_score"] = "", np.nan
    summary = by_depth(pd.concat([tabled([[0.1, 0.2], [0.3, 0.4]]), noise]))
    row = summary[summary["control"] == "clustered noise"].iloc[0]
    assert row["mean"] == pytest.approx(0.7)
    assert row[["late_to_early", "early_to_late", "near", "far", "difference"]].isna().all()
    parts = ["late_to_early_cells", "early_to_late_cells", "near_cells", "far_cells", "cells"]
    assert row[parts].tolist() == [0, 0, 0, 0, 2]


# --- stitches ---------------------------------------------------------------------------------------------------------


def of_shapes(**columns: Any) -> pd.DataFrame:
    """A matrix whose family depends on the receiver's cut."""
    table = tabled([[0.1, 0.2], [0.3, 0.4]], **columns)
    table["stitch"] = table["receiver_cut"].map({"r1": "Conv()", "r2": "Linear()"})
    return table


def test_families_that_the_shapes_decide_are_one_matrix() -> None:
    row = only(by_depth(of_shapes()))
    assert (row["stitch"], row["cells"]) == (BY_SHAPE, 4)
    assert only(by_depth(tabled([[0.1, 0.2]])))["stitch"] == "Conv()"


def test_a_family_at_every_seam_is_a_matrix_of_its_own() -> None:
    low = [tabled(np.full((2, 2), rank / 10).tolist(), stitch=f"LowRank(rank={rank})") for rank in (5, 6)]
    summary = by_depth(pd.concat([of_shapes(), *low])).set_index("stitch")
    assert summary["mean"].to_dict() == pytest.approx({BY_SHAPE: 0.25, "LowRank(rank=5)": 0.5, "LowRank(rank=6)": 0.6})


def test_pairs_whose_shapes_give_other_families_are_pooled() -> None:
    both = pd.concat([of_shapes(), tabled([[0.9]], names=("B", "B"))])
    assert by_depth(both)["stitch"].tolist() == [BY_SHAPE, "Conv()"]
    assert only(by_depth(both, pooled=True))["cells"] == 5


def test_stitches_that_make_no_matrix_are_refused() -> None:
    other = of_shapes()
    other["stitch"] = other["stitch"].replace({"Conv()": "Identity()"})
    some = other[other["receiver_cut"] == "r1"]
    with pytest.raises(DataError, match=r"the table has Conv\(\) and Identity\(\) at s1 → r1, and neither at every"):
        by_depth(pd.concat([of_shapes(), some]))


# --- profiles ---------------------------------------------------------------------------------------------------------


def test_profiles_are_the_means_of_rows_and_columns() -> None:
    values = np.array([[0.1, 0.2, 0.6], [0.3, 0.5, 0.7]])
    made = profiles(tabled(values.tolist())).set_index(["role", "cut"])
    assert made.loc["sender", "mean"].tolist() == pytest.approx(values.mean(1).tolist())
    assert made.loc["receiver", "mean"].tolist() == pytest.approx(values.mean(0).tolist())
    assert made.loc["receiver", "std"].tolist() == pytest.approx(values.std(0).tolist())
    assert made.loc["sender", "depth"].tolist() == [0.5, 1]
    assert made.loc["receiver", "depth"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert made.loc[("sender", "s1"), ["min", "max", "cells"]].tolist() == [0.1, 0.6, 3]


def test_profiles_run_from_input_to_output_whatever_the_order_of_the_rows() -> None:
    table = tabled([[0.1, 0.2], [0.3, 0.5]]).iloc[::-1]
    assert profiles(table)["cut"].tolist() == ["s1", "s2", "r1", "r2"]


def test_noise_has_no_row_profile() -> None:
    noise = tabled([[0.8, 0.6]], control="clustered noise", names=("", "B"), depths=([np.nan], [0.5, 1]))
    assert profiles(noise)[["role", "cut", "mean"]].to_numpy().tolist() == [
        ["receiver", "r1", 0.8],
        ["receiver", "r2", 0.6],
    ]


@each("ask", [by_depth, profiles, cells])
def test_a_table_without_the_score_is_refused(ask: Any) -> None:
    with pytest.raises(DataError, match="no measurement of 'loss'; its scores: 'accuracy'"):
        ask(tabled([[0.1]]), "loss")
    with pytest.raises(DataError, match="no measurement of 'accuracy'; its scores: none"):
        ask(tabled([[0.1]]).iloc[:0])

"""One number a seed from planted tables, and its interval over seeds."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suture.common.errors import DataError
from suture_papers.base.cells import TRIALS, Where, average_cells, number_pair
from suture_papers.base.claims import Claim
from suture_papers.base.quantities import (
    AtCuts,
    Difference,
    Extreme,
    Figure,
    LargestStep,
    Mean,
    PerUnit,
    Provided,
    Ratio,
    RunOfCuts,
    Slope,
    Spread,
    Trend,
    Worst,
    average_units,
    figure_of,
    share_of,
)

CUTS = ("a", "b", "c")
#: Penalties by seed, at cuts a, b, c.
PENALTIES = {0: (1.0, 2.0, 6.0), 1: (3.0, 2.0, 1.0), 2: (0.0, 0.0, 0.0)}


def trials(values: dict[int, tuple[float, ...]] = PENALTIES, **columns: object) -> pd.DataFrame:
    """Plain trials at cuts a, b, c, of depths 0, 0.5, 1."""
    rows = [
        {
            "network_seed": seed,
            "status": "ok",
            "score": "accuracy",
            "unit": "fraction",
            "control": "",
            "sender": "A",
            "receiver": "B",
            "sender_cut": cut,
            "receiver_cut": cut,
            "sender_depth": depth,
            "receiver_depth": depth,
            "fit": "Converged()",
            "published": False,
            "stitch": "Conv()",
            "fit_data": "cifar10/fit",
            "score_data": "cifar10/score",
            "seed": 0,
            "penalty": value,
            "stitched": value / 100,
            "representation_error": value,
        }
        for seed, of_seed in values.items()
        for cut, depth, value in zip(CUTS, (0.0, 0.5, 1.0), of_seed, strict=True)
    ]
    return pd.DataFrame(rows).assign(**columns)


def of(quantity: PerUnit, *tables: pd.DataFrame) -> dict[int, float]:
    """The numbers by seed."""
    found = quantity.read({"trials": pd.concat(tables or [trials()], ignore_index=True)})
    return {int(seed): pytest.approx(value) for seed, value in found.items()}  # type: ignore[call-overload]


def test_a_correlation_ends_at_1_and_at_minus_1() -> None:
    for cut, ends in (((0.7, 1.1), (0.7, 1.0)), ((-1.2, -0.6), (-1.0, -0.6)), ((-0.5, 0.7), (-0.5, 0.7))):
        figure = Figure(sum(cut) / 2, *cut, 3, 3).clip(-1, 1)
        assert (figure.low, figure.high) == ends


def test_a_range_of_depths_has_its_ends_however_these_were_reckoned() -> None:
    table = trials({0: (1.0, 2.0, 6.0)})
    table["receiver_depth"] = [0.1 + 0.2, 0.5, 1.0]
    assert of(Mean("penalty", Where(receiver_depth=(0.0, 0.3))), table) == {0: 1.0}
    table["receiver_depth"] = [0.3, 0.5, 1.0]
    assert of(Mean("penalty", Where(receiver_depth=(0.1 + 0.2, 0.5))), table) == {0: 1.5}


def test_the_mean_over_stitch_seeds_is_taken_and_not_their_median() -> None:
    table = pd.concat([trials({0: (penalty,) * 3}, seed=seed) for seed, penalty in enumerate((0.0, 0.0, 9.0))])
    assert of(Mean("penalty"), table) == {0: 3.0}


def test_a_divisor_may_be_below_0() -> None:
    table = trials({0: (-2.0,) * 3}, representation_error=4.0)
    assert of(Ratio(Mean("representation_error"), Mean("penalty")), table) == {0: -2.0}


# One number a seed


@pytest.mark.parametrize(
    ("quantity", "planted"),
    [
        (Mean("penalty"), {0: 3.0, 1: 2.0, 2: 0.0}),
        (Worst("penalty"), {0: 6.0, 1: 3.0, 2: 0.0}),
        (Worst("penalty", smallest=True), {0: 1.0, 1: 1.0, 2: 0.0}),
        (Spread("penalty"), {0: math.sqrt(14 / 3), 1: math.sqrt(2 / 3), 2: 0.0}),
        (Trend("penalty"), {0: 1.0, 1: -1.0, 2: 0.0}),
        (Trend("penalty", along="sender_depth"), {0: 1.0, 1: -1.0, 2: 0.0}),
        (Slope("penalty"), {0: 5.0, 1: -2.0, 2: 0.0}),
        (Difference(Worst("penalty"), Mean("penalty")), {0: 3.0, 1: 1.0, 2: 0.0}),
    ],
    ids=str,
)
def test_planted_numbers(quantity: PerUnit, planted: dict[int, float]) -> None:
    assert of(quantity) == planted


def test_a_ratio_is_of_each_seed() -> None:
    table = trials({0: (1.0, 2.0, 6.0), 1: (3.0, 2.0, 1.0)})
    assert of(Ratio(Worst("penalty"), Mean("penalty")), table) == {0: 2.0, 1: 1.5}


def test_a_seed_whose_divisor_is_0_has_no_ratio() -> None:
    table = trials({0: (1.0, -1.0, 0.0), 1: (3.0, 1.0, 2.0), 2: (-1.0, 1.0, 0.0)})
    ratio = Ratio(Worst("penalty"), Mean("penalty"))
    assert ratio.estimate({"trials": table}).value == 1.5
    assert ratio.estimate({"trials": table}).pairs == 1
    with pytest.raises(DataError, match="divided by is 0"):
        ratio.estimate({"trials": trials({0: (1.0, -1.0, 0.0)})})


def test_seeds_of_the_stitch_are_averaged_before_the_worst_is_taken() -> None:
    one, another = trials({0: (0.0, 9.0, 1.0)}), trials({0: (0.0, 1.0, 3.0)}).assign(seed=1)
    assert of(Worst("penalty"), one, another) == {0: 5.0}


def test_only_fractions_are_read_in_per_cent() -> None:
    assert of(Mean("stitched")) == {0: 3.0, 1: 2.0, 2: 0.0}
    assert of(Mean("stitched"), trials(unit="nats")) == {0: 0.03, 1: 0.02, 2: 0.0}
    assert of(Mean("representation_error")) == {0: 3.0, 1: 2.0, 2: 0.0}


def test_a_difference_is_of_the_seeds_that_both_have() -> None:
    first, second = Mean("penalty", Where(sender="A")), Mean("penalty", Where(sender="C"))
    other = trials({1: (0.0, 0.0, 3.0), 7: (0.0, 0.0, 0.0)}, sender="C")
    found = Difference(first, second).estimate({"trials": pd.concat([trials(), other])})
    assert (found.value, found.pairs) == (1.0, 1)


TELLING = "sender receiver sender_cut receiver_cut control fit_data score_data index measure"


@pytest.mark.parametrize("name", TELLING.split())
def test_cells_keep_what_tells_them_apart(name: str) -> None:
    both = pd.concat([trials(**{name: f"x{cut}"}) for cut in CUTS])  # type: ignore[arg-type]
    assert len(average_cells(both, "penalty")) == 27


def test_cells_average_stitches_alone() -> None:
    both = pd.concat([trials(seed=0), trials(dict.fromkeys(range(3), (5.0, 5.0, 5.0)), seed=1)])
    found = average_cells(both, "penalty")
    assert len(found) == 9
    assert found["value"].iloc[0] == 3.0


def test_a_trend_of_one_cell_is_none() -> None:
    assert math.isnan(Trend("penalty", Where(receiver_cut="a")).read({TRIALS: trials()}).iloc[0])


def test_cuts_in_a_row_lie_from_input_to_output_whatever_the_order_of_the_rows() -> None:
    table = trials(dict.fromkeys(range(3), (0.0, 9.0, 0.0)))
    mixed = table.sort_values("receiver_cut", key=lambda cuts: cuts.map({"a": 0, "c": 1, "b": 2}), kind="stable")
    for rows_ in (table, mixed):
        assert set(RunOfCuts((("penalty", Where()),), most=1.0).read({TRIALS: rows_})) == {1.0}


# Which rows


def rows(where: Where, *tables: pd.DataFrame) -> pd.DataFrame:
    return where.select({"trials": pd.concat(tables or [trials()], ignore_index=True)})


@pytest.mark.parametrize(
    ("where", "cuts"),
    [
        (Where(), "abc"),
        (Where(receiver_cut="a|c"), "ac"),
        (Where(sender_cut="[bc]"), "bc"),
        (Where(receiver_depth=(0.5, 1.0)), "bc"),
        (Where(sender_depth=(0.0, 0.49)), "a"),
        (Where(fit_data="cifar10*", score_data="*/score", stitch="Conv*", sender="A", receiver="B"), "abc"),
    ],
    ids=repr,
)
def test_rows_are_chosen_by_names_and_depths(where: Where, cuts: str) -> None:
    assert "".join(rows(where, trials({0: (1.0, 2.0, 3.0)}))["receiver_cut"]) == cuts


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"control": "itself"}, Where(control="itself")),
        ({"published": True, "fit": "TaskLoss()"}, Where(fit="published")),
        ({"published": True, "fit": "TaskLoss()"}, Where(fit="TaskLoss*")),
        ({"sender": "C"}, Where(sender="C")),
        ({"score": "cars"}, Where(score="cars")),
        ({"stitch": "Linear()"}, Where(stitch="Linear*")),
        ({"fit_data": "mnist/fit"}, Where(fit_data="mnist*")),
    ],
    ids=str,
)
def test_other_rows_do_not_mingle(change: dict[str, object], where: Where) -> None:
    plain, other = trials({0: (1.0, 1.0, 1.0)}), trials({0: (9.0, 9.0, 9.0)}, **change)
    assert set(rows(where, plain, other)["penalty"]) == {9.0}


def test_the_plain_default_fit_is_what_is_read_unless_told_otherwise() -> None:
    others = [trials(control="itself"), trials(published=True), trials(score="cars")]
    assert len(rows(Where(), trials(), *others)) == 9
    assert len(rows(Where(fit="any"), trials(), *others)) == 18


def test_a_trial_that_failed_may_be_the_worst_cut() -> None:
    """Nothing is decided of the other cuts as if it were not there; what does not read it is not touched."""
    table = trials({0: (1.0, 1.0, 30.0), 1: (1.0, 1.1, 31.0), 2: (0.9, 1.0, 29.0)})
    lost = table["network_seed"].eq(1) & table["receiver_cut"].eq("c")
    table.loc[lost, "status"] = "failed"
    claim = Claim("at every cut", "s", Extreme((AtCuts("penalty"),)), "≤", 3.0, unit="", enough=3)
    decided = claim.decide({TRIALS: table})
    assert (decided.verdict, decided.figure) == ("not measured", None)
    assert "1 of 9 trials failed" in decided.reason
    assert len(Where().select_measured({TRIALS: table})) == 8  # to be drawn
    early = Claim("", "s", Extreme((AtCuts("penalty", Where(receiver_cut="a|b")),)), "≤", 3.0, unit="", enough=3)
    assert early.decide({TRIALS: table}).verdict == "reproduced"


def test_other_tables_have_no_status() -> None:
    table = pd.DataFrame({"network_seed": [0, 0], "index": ["cka", "cca"], "value": [0.5, 0.7]})
    found = Mean("value", Where(table="similarities", index="cka")).read({"similarities": table})
    assert found.to_dict() == {0: 0.5}


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(DataError, match="no table of similarities; it has trials"):
        Where(table="similarities").select({"trials": trials()})
    with pytest.raises(DataError, match="no row of trials is Where"):
        rows(Where(sender="nobody"))
    with pytest.raises(DataError, match="no measurement"):
        Mean("penalty").estimate({"trials": trials({0: (math.nan, math.nan, math.nan)})})


# Intervals over seeds


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=9))
def test_the_interval_is_students(values: list[float]) -> None:
    found = figure_of(average_units(pd.Series(values)), 0.95)
    assert found.value == pytest.approx(np.mean(values))
    if np.std(values) > 1e-9:
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.decides


def test_the_interval_by_hand() -> None:
    found = figure_of(average_units(pd.Series([1.0, 2.0, 3.0])), 0.95)
    half = 4.302652729911275 * 1 / math.sqrt(3)  # t of 0.975 with 2 degrees of freedom, from a printed table
    assert (found.value, found.low, found.high, found.networks) == (
        2.0,
        pytest.approx(2 - half),
        pytest.approx(2 + half),
        3,
    )


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [1.0, 1.0, math.nan]])
def test_fewer_than_three_seeds_decide_nothing(values: list[float]) -> None:
    found = figure_of(average_units(pd.Series(values)), 0.95)
    assert (found.value, found.decides) == (1.0, False)


def test_many_cuts_of_one_pair_are_one_seed() -> None:
    assert not Mean("penalty").estimate({"trials": trials({0: (1.0, 2.0, 3.0)})}).decides


# Every cut, or some


def t_of(level: float, freedom: int) -> float:
    return float(stats.t.ppf(level, freedom))


VALUES = {0: (1.0, 5.0, 2.0), 1: (2.0, 4.0, 2.5), 2: (3.0, 6.0, 1.5)}


def test_the_extreme_is_of_means_and_its_ends_hold_for_all_cuts() -> None:
    """Means are 2, 5 and 2, with errors of 1/√3, 1/√3 and 0.5/√3; three cuts share the lower end's 2.5 %."""
    found = Extreme((AtCuts("penalty"),)).estimate({TRIALS: trials(VALUES)})
    assert found.value == pytest.approx(5)
    assert found.high == pytest.approx(5 + t_of(0.975, 2) / math.sqrt(3))
    assert found.low == pytest.approx(
        max(5 - t_of(1 - 0.025 / 3, 2) / math.sqrt(3), 2 - 0.5 * t_of(1 - 0.025 / 3, 2) / math.sqrt(3))
    )
    least = Extreme((AtCuts("penalty"),), smallest=True).estimate({TRIALS: trials(VALUES)})
    assert least.value == pytest.approx(2)
    assert least.low == pytest.approx(2 - t_of(0.975, 2) / math.sqrt(3))
    assert least.high == pytest.approx(2 + 0.5 * t_of(1 - 0.025 / 3, 2) / math.sqrt(3))


def test_either_way_counts_a_mean_by_its_size() -> None:
    table = trials({0: (-3.0, 1.0, 0.0), 1: (-4.0, 1.0, 0.0), 2: (-5.0, 1.0, 0.0)})
    found = Extreme((AtCuts("penalty"),), either=True).estimate({TRIALS: table})
    assert found.value == pytest.approx(4)
    assert found.high == pytest.approx(4 + t_of(0.975, 2) / math.sqrt(3))
    assert found.low == pytest.approx(max(1, 4 - t_of(1 - 0.025 / 6, 2) / math.sqrt(3)))


@pytest.mark.parametrize(
    ("part", "read"),
    [
        (AtCuts("penalty", Where(sender="A"), minus=("penalty", Where(sender="C"))), [0.0, 1.0, 5.0]),
        (AtCuts("penalty", Where(sender="A"), minus=("penalty", Where(sender="C")), times=3.0), [-2.0, -1.0, 3.0]),
        (AtCuts("penalty", Where(sender="A"), least=("penalty", Where(sender="C"))), [1.0, 1.0, 1.0]),
        (AtCuts("penalty", Where(sender="A"), minus=Mean("penalty", Where(sender="A"))), [-2.0, -1.0, 3.0]),
        (AtCuts("penalty", Where(sender="A"), steps=True, times=0.5), [1.0 - 3.0, 4.0 - 3.0]),
    ],
    ids=str,
)
def test_what_is_read_at_single_cuts(part: AtCuts, read: list[float]) -> None:
    table = pd.concat([trials({0: (1.0, 2.0, 6.0)}), trials({0: (1.0, 1.0, 1.0)}, sender="C")], ignore_index=True)
    assert part.read({TRIALS: table}).loc[0].tolist() == pytest.approx(read)


def test_lines_that_jump_at_different_cuts_have_each_its_largest_step() -> None:
    """Their mean has no step of more than half."""
    table = trials({0: (0.0, 7.0, 10.0), 1: (0.0, 3.0, 10.0), 2: (0.0, 0.0, 0.0)})
    assert LargestStep("penalty").read({TRIALS: table}).tolist() == pytest.approx([0.7, 0.7, float("nan")], nan_ok=True)
    steps = AtCuts("penalty", steps=True, times=0.0).read({TRIALS: table.query("network_seed < 2")})
    assert steps.mean().tolist() == [5.0, 5.0]


def test_the_share_of_pairs_is_exact_for_as_many_cases_as_networks() -> None:
    """Five pairs without a network in common, of which one fails, are five cases; all of four cuts must be small."""
    pairs = [(a, a + 5) for a in range(1, 6)]
    table = trials({number_pair(a, b): (0.0, 0.0, 9.0 if a == 3 else 1.0) for a, b in pairs})
    claim = Claim("at every cut", "s", Extreme((AtCuts("penalty"),)), "≤", 3.0, unit="")
    found = claim.decide({TRIALS: table}).share
    assert found is not None
    exact = stats.binomtest(4, 5).proportion_ci(method="exact")
    assert (found.value, found.pairs, found.networks) == (80.0, 5, 5)
    assert (found.low, found.high) == pytest.approx((100 * exact.low, 100 * exact.high))


@pytest.mark.parametrize("circle", [False, True])
def test_the_share_of_pairs_covers_networks_that_are_on_both_sides(circle: bool) -> None:
    """A network is good on both sides or on neither; with chance s^(5/2) all five are if s of the pairs are good."""
    pairs = [(a, b) for a in range(1, 6) for b in range(1, 6) if (a % 5 + 1 == b if circle else a != b)]
    index = [number_pair(a, b) for a, b in pairs]
    assert share_of(pd.Series(True, index=index)).low == pytest.approx(100 * 0.025 ** (2 / 5))
    random, missed = np.random.default_rng(0), {0.3: 0, 0.48: 0, 0.69: 0, 0.9: 0}
    for good in missed:
        for _ in range(300):
            own = random.random(6) < good
            found = share_of(pd.Series([bool(own[a] & own[b]) for a, b in pairs], index=index))
            missed[good] += not found.low <= 100 * good**2 <= found.high
    assert max(missed.values()) <= 0.05 * 300


@pytest.mark.parametrize(
    ("quantity", "direction", "share"),
    [
        (Extreme((AtCuts("penalty"),)), "≤", 2 / 3),  # at every cut: worst ones are 6, 3 and 0
        (Extreme((AtCuts("penalty"),), smallest=True), "≤", 1.0),  # at some cut
        (Extreme((AtCuts("penalty"),), smallest=True), ">", 0.0),  # at every cut
        (Extreme((Mean("penalty"), Worst("penalty", smallest=True))), "≤", 1.0),
        (Extreme((Difference(Worst("penalty", smallest=True), Worst("penalty")),), either=True), "≤", 2 / 3),
    ],
    ids=str,
)
def test_of_each_pair_by_itself_its_own_extreme_counts(quantity: Extreme, direction: str, share: float) -> None:
    claim = Claim("", "s", quantity, direction, 3.0, unit="", enough=3)  # type: ignore[arg-type]
    found = claim.decide({TRIALS: trials()}).share
    assert found is not None
    assert found.value == pytest.approx(100 * share)


def test_what_presupposes_something_is_not_measured_without_it() -> None:
    less, more = Mean("penalty", Where(receiver_cut="a")), Mean("penalty", Where(receiver_cut="c"))
    tables = {TRIALS: trials(VALUES)}
    wrong = more.estimate(tables).value < less.estimate(tables).value
    assert not wrong
    assert Provided(Mean("penalty"), less, Mean("penalty", Where(receiver_cut="b"))).estimate(
        tables
    ).value == pytest.approx(3)
    with pytest.raises(DataError, match="nothing to measure"):
        Provided(Mean("penalty"), Mean("penalty", Where(receiver_cut="b")), less).estimate(tables)


# Pairs of networks


def test_a_pairs_number_says_its_networks_and_their_kinds() -> None:
    assert (number_pair(10, 11), number_pair(10, 11, alike=False)) == (10011, 10511)
    for seeds in ((0, 3), (3, 500)):
        with pytest.raises(DataError, match="from 1 to 499"):
            number_pair(*seeds)


def test_the_best_stitch_by_validation_counts() -> None:
    losses = {0: 0.3, 1: 0.1, 2: 0.2}
    stitches = [trials({0: (float(seed),) * 3}, seed=seed, validation_loss=loss) for seed, loss in losses.items()]
    assert of(Mean("penalty"), *stitches) == {0: 1.0}
    unknown = [table.assign(validation_loss=float("nan"), network_seed=1) for table in stitches]
    assert of(Mean("penalty"), *stitches, *unknown) == {0: 1.0, 1: 1.0}
    assert of(Mean("penalty"), *stitches, *unknown[:2]) == {0: 1.0, 1: 0.5}, "the mean of those, not the first"

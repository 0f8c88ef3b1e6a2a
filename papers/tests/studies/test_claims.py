"""Verdicts: a truth table, and what has none."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

from suture.common.errors import DataError
from suture_papers import Claim, Result, Study, Where, verdict_of
from suture_papers.base.cells import NETWORKS, TRIALS, Tables
from suture_papers.base.claims import MARGIN, STITCHES, Decided, Verdict, count_networks, decide_all
from suture_papers.base.contrasts import SpreadRatio, StandardisedDifference
from suture_papers.base.quantities import AtCuts, Difference, Extreme, Figure, Mean, PerUnit, Quantity
from suture_papers.base.run import _find_near


class Planted(Quantity):
    """A figure that is given."""

    def __init__(self, low: float, high: float, seeds: int = 5) -> None:
        self.planted = Figure((low + high) / 2, low, high, seeds, seeds)

    def estimate(self, tables: Tables, level: float = 0.95) -> Figure:
        return self.planted


Direction = Literal["≤", "≥", "<", ">", ""]


def verdict(low: float, high: float, direction: Direction, threshold: float | None, margin: float = 0.0) -> Verdict:
    return Claim("it is so", "section 1", Planted(low, high), direction, threshold, margin).decide({}).verdict


@pytest.mark.parametrize(
    ("low", "high", "direction", "verdict_"),
    [
        (1.0, 2.9, "≤", "reproduced"),
        (1.0, 3.0, "≤", "reproduced"),
        (1.0, 3.1, "≤", "undecided"),
        (3.0, 9.0, "≤", "undecided"),
        (3.1, 9.0, "≤", "not reproduced"),
        (3.1, 9.0, "≥", "reproduced"),
        (3.0, 9.0, "≥", "reproduced"),
        (2.9, 9.0, "≥", "undecided"),
        (1.0, 3.0, "≥", "undecided"),
        (1.0, 2.9, "≥", "not reproduced"),
        (3.0, 3.0, "≤", "reproduced"),
        (3.0, 3.0, "≥", "reproduced"),
        (3.0, 3.0, "<", "not reproduced"),
        (3.0, 3.0, ">", "not reproduced"),
        (1.0, 2.9, "<", "reproduced"),
        (1.0, 3.0, "<", "undecided"),
        (3.1, 9.0, ">", "reproduced"),
        (3.0, 9.0, ">", "undecided"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, direction: Direction, verdict_: Verdict) -> None:
    assert verdict(low, high, direction, 3.0) == verdict_


@pytest.mark.parametrize(
    ("low", "high", "direction", "verdict_"),
    [
        (-1.0, 0.2, "≤", "reproduced"),
        (0.1, 0.4, "≤", "undecided"),
        (0.4, 0.6, "≤", "not reproduced"),
        (-0.2, 1.0, "≥", "reproduced"),
        (-0.4, -0.1, "≥", "undecided"),
        (-0.6, -0.4, "≥", "not reproduced"),
    ],
)
def test_the_margin_is_in_the_claims_favour(
    low: float, high: float, direction: Literal["≤", "≥"], verdict_: Verdict
) -> None:
    assert verdict(low, high, direction, 0.0, MARGIN) == verdict_


def test_without_an_interval_nothing_is_decided() -> None:
    assert verdict(math.nan, math.nan, "≤", 3.0) == "undecided"


def test_a_report_has_no_verdict() -> None:
    assert verdict(1.0, 2.0, "", None) == "reported"


@pytest.mark.parametrize(("direction", "threshold"), [("≤", None), ("", 3.0)])
def test_threshold_and_direction_go_together(direction: Literal["≤", ""], threshold: float | None) -> None:
    with pytest.raises(DataError, match="go together"):
        Claim("it is so", "section 1", Planted(0, 1), direction, threshold)


def test_what_was_not_measured_has_no_figure() -> None:
    found = Claim("it is so", "section 1", Mean("penalty", Where(sender="nobody")), "≤", 1.0).decide({})
    assert (found.figure, found.verdict) == (None, "not measured")
    assert "the study has no table of trials" in found.reason


def test_the_worst_claim_counts() -> None:
    def told(*verdicts: Verdict) -> Verdict:
        claim = Claim("it is so", "section 1", Planted(0, 1))
        return verdict_of(tuple(Decided(claim, None, one) for one in verdicts))

    assert told("reproduced", "reported") == "reproduced"
    assert told("reproduced", "undecided") == "undecided"
    assert told("undecided", "not reproduced", "reproduced") == "not reproduced"
    assert told("reported", "reported") == "reported"
    assert told("reproduced", "not measured") == "not measured"
    assert told("undecided", "not measured") == "undecided"
    assert told() == "not measured"


def test_tiny_is_refused() -> None:
    study = Study("bansal-2A", "", "", "", lambda scale: [], (Claim("it is so", "section 1", Planted(0, 1), "≤", 2.0),))
    card: dict[str, object] = {}
    assert [one.verdict for one in Result("bansal-2A", "small", {}, card).decide(study)] == ["reproduced"]
    with pytest.raises(DataError, match="tiny scale, of which no verdict is computed"):
        Result("bansal-2A", "tiny", {}, card).decide(study)


def test_four_networks_are_too_few_unless_a_claim_says_otherwise() -> None:
    for enough, said in ((5, "undecided"), (4, "reproduced")):
        claim = Claim("it is so", "section 1", Planted(0.0, 0.5, seeds=4), "≤", 3.0, enough=enough)
        assert claim.decide({}).verdict == said


def rows(near: float, stitches: int = STITCHES, converged: bool = True) -> pd.DataFrame:
    """Penalties of five networks at one cut, near to a threshold of 3."""
    shared = {"status": "ok", "score": "accuracy", "unit": "fraction", "control": "", "published": False}
    shared |= {"sender": "A", "receiver": "B", "sender_cut": "a", "receiver_cut": "a", "fit_data": "f"}
    shared |= {"stitch": "Conv()", "fit": "Converged()", "converged": converged}
    return pd.DataFrame(
        [
            shared | {"network_seed": network, "seed": seed, "penalty": near + network / 100}
            for network in range(5)
            for seed in range(stitches)
        ]
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (rows(1.5), "reproduced"),
        (rows(4.5), "not reproduced"),
        (rows(1.5, stitches=2), "undecided"),
        (rows(4.5, stitches=2), "undecided"),
        (rows(1.5, converged=False), "undecided"),
        (rows(0.5, stitches=1, converged=False), "reproduced"),
        (rows(5.5, stitches=1, converged=False), "not reproduced"),
    ],
)
def test_within_2_pp_fits_must_have_converged_with_three_stitches(table: pd.DataFrame, said: Verdict) -> None:
    assert Claim("it is so", "section 1", Mean("penalty"), "≤", 3.0).decide({TRIALS: table}).verdict == said


def test_open_fits_do_not_decide_what_only_the_end_of_an_interval_is_near_to() -> None:
    """The mean is 2.5 pp below the threshold and the upper end 1.5: longer fits might move it across."""
    claim = Claim("it is so", "section 1", Mean("penalty"), "≤", 2.5)
    line = rows(0.0, stitches=1).assign(penalty=[-1.0, -0.5, 0.0, 0.5, 1.0])
    assert claim.decide({TRIALS: line}).verdict == "reproduced"
    found = claim.decide({TRIALS: line.assign(converged=False)})
    assert (found.verdict, found.reason[:37]) == ("undecided", "an end of its interval is less than 2")


@pytest.mark.parametrize(
    ("wide", "near", "smallest"), [((0, 2, 5, 9, 14), 4.2, False), ((-9, 0, -5, 3, -4), 1.8, True)]
)
def test_a_cut_that_decides_must_itself_be_far_from_the_threshold(
    wide: tuple[float, ...], near: float, smallest: bool
) -> None:
    """Of two cuts the mean of one is the more extreme, but that of the other decides, by its narrow interval."""
    line = rows(0.0, stitches=1)
    far = line.assign(penalty=wide, receiver_cut="far", sender_cut="far")
    close = line.assign(penalty=[near + 0.1, near, near - 0.1, near, near], converged=False)
    extreme = Extreme((AtCuts("penalty"),), smallest=smallest)
    claim = Claim("it is so", "section 1", extreme, "<" if smallest else "≤", 3.0)
    for table in (close, pd.concat([far, close])):
        found = claim.decide({TRIALS: table})
        assert (found.verdict, found.reason[:30]) == ("undecided", "less than 2 pp from the thresh")


def test_an_end_of_a_cut_where_all_are_alike_says_so() -> None:
    """At one cut every pair gives 0, which decides; the mean that is shown is of another cut, with an interval."""
    line = rows(0.0, stitches=1)
    still = line.assign(penalty=0.0, receiver_cut="still", sender_cut="still")
    other = line.assign(penalty=[-8.0, 9.0, 1.0, -6.0, -12.0])
    claim = Claim("it is more", "section 1", Extreme((AtCuts("penalty"),), smallest=True), ">", 0.0, unit="")
    found = claim.decide({TRIALS: pd.concat([still, other])})
    assert (found.verdict, found.counted) == ("not reproduced", True)  # of none of the five pairs
    assert found.figure is not None
    assert found.figure.units == "5 pairs, one end of a cut where all are alike"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0.0,) * 5, "undecided"),  # at least 48 % of pairs: 0.025 ** (1 / 5)
        ((0.0,) * 10, "reproduced"),  # 69 %
        ((60.0,) * 5, "not reproduced"),  # at most 52 %
        ((0.0, 0.0, 0.0, 0.0, 60.0), "undecided"),  # 28 to 99.5 %
        ((0.0, 60.0, 55.0, 50.0, 60.0, 50.0), "not reproduced"),  # at most 64 %
    ],
)
def test_fits_that_find_a_class_or_do_not_are_counted(numbers: tuple[float, ...], said: Verdict) -> None:
    """By a table of Clopper & Pearson's, against two thirds of pairs; t would decide the first on a width of 0."""
    claim = Claim("none is found", "section 1", PlantedUnits(numbers), "≤", 5.0, unit="%", counts=True)
    found = claim.decide({})
    assert (found.verdict, found.counted) == (said, True)
    assert found.figure is not None
    assert not found.figure.decides


def test_what_is_all_alike_is_known_no_finer_than_a_network_has_images() -> None:
    """Of 1,000 images that agree, one more differs with a probability of at most 1 - 0.025 ** (1 / 1000), 0.37 %."""
    table = {TRIALS: rows(0.0).assign(penalty=0.0, n=1000)}
    for threshold, said in ((0.4, "reproduced"), (0.3, "undecided"), (0.0, "undecided")):
        found = Claim("it is less", "section 1", Mean("penalty"), "≤", threshold).decide(table)
        assert found.figure is not None
        assert (found.verdict, found.counted) == (said, False)
        assert found.figure.high == pytest.approx(0.368, abs=1e-3)
    algebra = Claim("it is so", "section 1", Mean("penalty"), "≤", 0.0, exact=True)
    assert algebra.decide(table).verdict == "reproduced"


def test_looks_are_declared_and_each_takes_its_share_of_the_error() -> None:
    """At 97.8 % t is 3.66 with four degrees of freedom (of a table of t: 3.75 at 98 %)."""
    for n, said in ((5, "undecided"), (6, "undecided"), (8, "reproduced")):
        claim = Claim("it is so", "1", PlantedUnits(tuple(np.tile([-0.4, 0.4], n)[:n] - 0.6)), "≤", 0.0, looks=(5, 8))
        found = claim.decide({})
        assert found.verdict == said, n
        assert found.figure is not None
        assert found.figure.level == pytest.approx(0.978)
    assert Claim("it is so", "1", PlantedUnits((-2.0, 1.0, 3.0, 2.0, 1.0)), "≤", 0.0, unit="", looks=(5, 8)).decide(
        {}
    ).reason == ("the next look is at 8 networks")


def test_what_is_undecided_for_want_of_stitches_is_stitched_again() -> None:
    """Among other claims a wide cut no longer decides at Holm's level, and a narrow one does, which is near."""
    line, steps = rows(0.0, stitches=1), np.array([-1.2, -0.6, 0.0, 0.6, 1.2])
    wide = line.assign(penalty=20 + 9.5 * steps, receiver_cut="wide", sender_cut="wide")
    table = pd.concat([wide, line.assign(penalty=4.8 + 0.08 * steps)]).assign(score_data="s")
    other = Claim("another", "section 1", Mean("penalty", Where(receiver_cut="wide")), "≤", 20.0)
    claim = Claim("it is so", "section 1", Extreme((AtCuts("penalty"),)), "≤", 3.0)
    study = Study("oxford-9", "t", "q", "s", lambda scale: [], (claim, other, other, other))
    assert decide_all((claim,), {TRIALS: table})[0].verdict == "not reproduced"
    first = decide_all(study.claims, {TRIALS: table})[0]
    assert first.verdict == "undecided"
    assert first.reason.endswith("not every seam has 3 stitches")
    assert len(_find_near(study, {TRIALS: table})) == len(table)


def test_what_too_few_networks_cannot_decide_is_not_stitched_again() -> None:
    table = rows(2.0, stitches=1).assign(score_data="s")
    study = Study("oxford-9", "t", "q", "s", lambda scale: [], (Claim("it is so", "1", Mean("penalty"), "≤", 3.0),))
    assert len(_find_near(study, {TRIALS: table})) == len(table)
    assert not _find_near(study, {TRIALS: table[table["network_seed"] < 4]})


def test_near_is_from_the_threshold_or_from_it_with_its_margin() -> None:
    open_ = rows(-1.91, converged=False)
    assert Claim("it is so", "section 1", Mean("penalty"), "≤", 0.0, 0.3).decide({TRIALS: open_}).verdict == "undecided"
    assert (
        Claim("it is so", "section 1", Mean("penalty"), "≤", 0.4, 0.3).decide({TRIALS: open_}).verdict == "reproduced"
    )


@pytest.mark.parametrize(
    ("converged", "said"),
    [
        (False, ("undecided", "5 of 20 fits not converged")),
        (None, ("reproduced", "15 fits converged")),
    ],
)
def test_another_fit_that_can_say_so_must_have_converged_too(converged: bool | None, said: tuple[str, str]) -> None:
    other = rows(3.0, stitches=1).assign(fit="another", published=True)
    other["penalty"] += other["network_seed"] / 50  # no two networks differ by the same
    other["converged"] = pd.array([converged] * len(other), dtype="boolean")
    less = Difference(Mean("penalty"), Mean("penalty", Where(fit="published")))
    found = Claim("it is so", "section 1", less, "<", 0.0).decide({TRIALS: pd.concat([rows(1.5), other])})
    assert (found.verdict, found.fits) == said


def test_a_fit_that_is_read_twice_is_counted_once() -> None:
    table = rows(1.0, stitches=1)
    both = Difference(Mean("penalty"), Mean("penalty", Where(sender="A")))
    assert Claim("it is so", "section 1", both).decide({TRIALS: table}).fits == "5 fits converged"


class Normal(Quantity):
    """A mean and its error, of so many networks that t is normal."""

    def __init__(self, value: float, error: float = 1.0) -> None:
        self.value, self.error = value, error

    def estimate(self, tables: Tables, level: float = 0.95) -> Figure:
        half = NormalDist().inv_cdf((1 + level) / 2) * self.error
        return Figure(self.value, self.value - half, self.value + half, 999, 999, level)


@pytest.mark.parametrize(
    ("values", "decided"),
    [
        ((-2.0,), "r"),  # beyond 1.96
        ((-2.0, 0.0), "uu"),  # two claims: 2.24
        ((-2.3, -2.0), "rr"),  # the first beyond 2.24, so the second is alone: 1.96
        ((-2.0, -2.0, 2.6), "uun"),  # 2.39, then 2.24
        ((-9.0, -2.3, -2.0), "rrr"),
    ],
)
def test_claims_share_their_error_by_holms_method(values: tuple[float, ...], decided: str) -> None:
    claims = [Claim("it is so", "section 1", Normal(value), "≤", 0.0, unit="") for value in values]
    reports = [Claim("a report", "section 1", Normal(9.0)), Claim("too few", "section 1", Planted(1, 2, 3), "≤", 0.0)]
    found = decide_all([*claims, *reports], {})
    assert "".join(one.verdict[0] for one in found[: len(values)]) == decided
    assert [one.verdict for one in found[len(values) :]] == ["reported", "undecided"]


@pytest.mark.parametrize(("distance", "networks"), [(1.0, 10), (2.0, 5), (0.5, 34), (0.01, 0)])
def test_the_networks_that_would_decide_have_power(distance: float, networks: int) -> None:
    """10, 5 and 34: the sample sizes of a two-sided t test at 5 % with power 0.8, of printed tables."""
    assert count_networks(distance) == networks


@pytest.mark.parametrize(
    ("quantity", "draw", "value", "bound", "level"),
    [
        (SpreadRatio, lambda random, n: (8 * random.normal(size=n), random.normal(size=n)), 8.0, 2.0, 0.9875),
        (
            StandardisedDifference,
            lambda random, n: (2.5 + random.normal(size=n), random.normal(size=n)),
            2.5,
            1.0,
            0.95,
        ),
    ],
)
def test_so_many_networks_of_two_groups_have_power(
    quantity: type[SpreadRatio | StandardisedDifference], draw: Any, value: float, bound: float, level: float
) -> None:
    """Simulated with as many as are said to decide, and with fewer."""
    random, nothing = np.random.default_rng(0), Mean("penalty")
    made = quantity(nothing, nothing)
    n = np.arange(3, 41)
    power = made.power(Figure(value, 0, 9, 5, 5, level), bound, n)
    for units in (5, int(n[power >= 0.8][0])):
        two = [draw(random, units) for _ in range(400)]
        planted = [quantity(*(PlantedUnits(tuple(one)) for one in own)) for own in two]
        found = [one.estimate({}, level).low > bound for one in planted]
        assert np.mean(found) == pytest.approx(power[units - 3], abs=0.07)


@dataclass(frozen=True)
class PlantedUnits(PerUnit):
    """Numbers of networks alone."""

    numbers: tuple[float, ...]

    def read(self, tables: Tables) -> "pd.Series[float]":
        return pd.Series(self.numbers)


@pytest.mark.parametrize(
    ("low", "high", "direction", "stands"),
    [
        (4.5, 9.0, "≥", True),  # farther from the threshold, 3, than the drift, 1.2
        (4.1, 9.0, "≥", False),
        (0.0, 1.7, "≤", True),
        (0.0, 1.9, "≤", False),
        (4.1, 9.0, "≤", False),  # refused, and near
        (4.5, 9.0, "≤", True),
    ],
)
def test_a_verdict_stands_if_it_is_farther_from_its_threshold_than_fits_have_moved(
    low: float, high: float, direction: Direction, stands: bool
) -> None:
    made = Claim("it is so", "section 1", Planted(low, high), direction, 3.0).decide({})
    assert made.verdict in ("reproduced", "not reproduced")
    assert made.claim.withstands(1.2, made, {}) is stands


@pytest.mark.parametrize(
    ("column", "unit", "direction", "verdict_", "stands"),
    [
        ("penalty", "pp", "≤", "reproduced", True),  # it was found: no better fit takes it back
        ("penalty", "pp", "≥", "reproduced", False),  # a better fit may find less
        ("stitched", "%", "≥", "reproduced", True),
        ("stitched", "%", "≤", "reproduced", False),
        ("stitched", "%", "≤", "not reproduced", True),
        ("penalty", "pp", "≤", "not reproduced", False),
    ],
)
def test_what_was_found_is_a_lower_bound(
    column: str, unit: str, direction: Direction, verdict_: Verdict, stands: bool
) -> None:
    beyond = {"≤": {"reproduced": 2.5, "not reproduced": 3.5}, "≥": {"reproduced": 3.5}}[direction][verdict_]
    less_own = AtCuts(column, minus=Mean("accuracy", Where(table=NETWORKS)))
    for quantity in (Mean(column), Extreme((AtCuts(column),)), Extreme((less_own,), smallest=True)):
        claim = Claim("it is so", "section 1", quantity, direction, 3.0, unit=unit)
        made = Decided(claim, Figure(beyond, beyond - 0.1, beyond + 0.1, 5, 5), verdict_)
        assert claim.withstands(1.2, made, {}) is stands
    less_other = AtCuts(column, minus=Mean(column, Where(sender="untrained")))
    for other in (
        Extreme((AtCuts(column),), either=True),
        Difference(Mean(column), Mean(column)),
        Extreme((less_other,)),
    ):
        claim = Claim("it is so", "section 1", other, direction, 3.0, unit=unit)
        made = Decided(claim, Figure(beyond, beyond - 0.1, beyond + 0.1, 5, 5), verdict_)
        assert not claim.withstands(1.2, made, {})


def test_counted_pairs_are_counted_again_with_the_threshold_moved() -> None:
    for number, stands in ((0.0, True), (2.5, False)):
        claim = Claim("it is so", "section 1", PlantedUnits((number,) * 12), "≤", 3.0, unit="%", counts=True)
        made = claim.decide({})
        assert (made.verdict, made.counted) == ("reproduced", True)
        assert claim.withstands(1.2, made, {}) is stands

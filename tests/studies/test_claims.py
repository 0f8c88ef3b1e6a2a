"""Verdicts: a truth table, and what has none."""

import math
from typing import Literal

import pytest

from suture.common.errors import DataError
from suture.studies import Claim, Result, Study, Where, verdict_of
from suture.studies.base.claims import MARGIN, Decided, Verdict
from suture.studies.base.quantities import Figure, Mean, Quantity, Tables


class Planted(Quantity):
    """A figure that is given."""

    def __init__(self, low: float, high: float, seeds: int = 5) -> None:
        self.planted = Figure((low + high) / 2, low, high, seeds)

    def estimate(self, tables: Tables) -> Figure:
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
    assert [one.verdict for one in Result("bansal-2A", "small", {}, {}).decide(study)] == ["reproduced"]
    with pytest.raises(DataError, match="tiny scale, of which no verdict is computed"):
        Result("bansal-2A", "tiny", {}, {}).decide(study)

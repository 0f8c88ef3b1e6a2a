"""What an onset reads from a table, on tables made by hand."""

import pandas as pd
import pytest

from loops import each
from suture.common.errors import DataError
from suture.measurement.tables.onset import INPUT, OUTPUT, onset
from suture.measurement.tables.table import COLUMNS

CUTS = ("one", "two", "three", "four")


def rows(sender, receiver, values, own, *, control="", half=0.05, **more):
    depths = [(i + 1) / len(CUTS) for i in range(len(CUTS))]
    return [
        {
            "trial": "",
            "study": "",
            "status": "ok",
            "sender": sender,
            "receiver": receiver,
            "error": "",
            "sender_cut": cut,
            "receiver_cut": cut,
            "sender_depth": depth,
            "receiver_depth": depth,
            "stitch": "s",
            "fit": "f",
            "control": control,
            "network_seed": None,
            "seed": 0,
            "fit_data": "d",
            "score_data": "d",
            "score": "t",
            "unit": "fraction",
            "stitched": value,
            "n": 100,
            "seconds": 1.0,
            "stitched_low": value - half,
            "stitched_high": value + half,
            "receiver_score": own,
            **more,
        }
        for cut, depth, value in zip(CUTS, depths, values, strict=True)
    ]


def table(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=list(COLUMNS)).astype(COLUMNS)


def read(sending, receiving, *more, levels=(0.9, 0.1), **settings):
    carrier, reference = levels
    given = any(row["sender"] == row["receiver"] == "B" for part in more for row in part)
    blind = [] if given else [rows("B", "B", [reference] * 4, reference, control="itself", **settings)]
    made = rows("A", "B", sending, reference, **settings), rows("B", "A", receiving, carrier, **settings)
    return onset(table(*made, *blind, *more), "t", "A", "B")


NONE, ALL = 0.1, 0.9
IN_THREE = ([NONE, NONE, ALL, ALL], [ALL, ALL, NONE, NONE])
BLIND = rows("B", "B", [NONE] * 4, NONE, control="itself")
PARTS = (rows("A", "B", IN_THREE[0], NONE), rows("B", "A", IN_THREE[1], ALL), BLIND)


def test_both_ways_place_it_between_two_cuts():
    o = read(*IN_THREE)
    assert (o.verdict, o.between, o.levels) == ("localised", ("two", "three"), (0.9, 0.1))
    assert (o.sending.onset, o.receiving.onset) == ("three", "two")
    assert o.sending.within == o.receiving.within == ("two", "three")
    assert o.sending.shares == pytest.approx((0, 0, 1, 1))
    assert str(o).startswith("t: localised, between two and three\n  A (carrier) 90.0 %, B (reference) 10.0 %\n")
    assert "conveyed from three on (between two and three), 100 % of it in one step\n" in str(o)


OTHERS = dict(zip(CUTS, ("w", "x", "y", "z"), strict=True))


def test_the_place_is_named_by_the_carriers_cuts():
    """The other network's cuts have other names, and lie in the reverse order of depth."""
    there, back, blind = (table(part) for part in PARTS)
    for frame, *sides in ((there, "receiver"), (back, "sender"), (blind, "sender", "receiver")):
        for side in sides:
            frame[f"{side}_cut"] = frame[f"{side}_cut"].map(OTHERS).astype("str")
            frame[f"{side}_depth"] = 1.25 - frame[f"{side}_depth"]
    o = onset(pd.concat([there, back, blind]), "t", "A", "B")
    assert o == onset(table(*PARTS), "t", "A", "B")
    shown = table(rows("A", "B", [NONE, NONE, ALL, NONE], NONE, control="untrained sender"))
    shown["receiver_cut"] = shown["receiver_cut"].map(OTHERS).astype("str")
    assert onset(pd.concat([there, back, blind, shown]), "t", "A", "B").sending.verdict == "carried by the stitch"
    twice = pd.concat([there, there.assign(receiver_cut="elsewhere", fit="another"), back])
    with pytest.raises(DataError, match="several measurements at one → w, which differ in receiver_cut, fit; select"):
        onset(twice, "t", "A", "B")


def test_what_is_read_is_said_in_numbers():
    assert "85 % of it in one step\n" in str(read([NONE, 0.18, 0.86, ALL], IN_THREE[1]))
    assert "conveyed at no cut, at most 25 % of it: not found" in str(read([NONE, 0.3, 0.2, NONE], IN_THREE[1]))
    assert "A (carrier) 0.900, B (reference) 0.100\n" in str(read(*IN_THREE, unit="raw"))
    assert "A (carrier) 0.900 nats, B (reference) 0.100 nats\n" in str(read(*IN_THREE, unit="nats"))


@each("levels", [(0.1, 0.9), (-3.0, 5.0)])
def test_a_trait_may_be_low_in_its_carrier(levels):
    carrier, reference = levels
    turned = [[reference + (v - NONE) / 0.8 * (carrier - reference) for v in line] for line in IN_THREE]
    o = read(*turned, levels=levels)
    assert (o.verdict, o.between) == ("localised", ("two", "three"))
    assert all(
        low < share < high for low, share, high in zip(o.sending.low, o.sending.shares, o.sending.high, strict=True)
    )


@each(
    ("sending", "receiving", "place"),
    [([ALL] * 4, [NONE] * 4, (INPUT, "one")), ([NONE] * 4, [ALL] * 4, ("four", OUTPUT))],
)
def test_before_the_first_cut_and_after_the_last_one_way_finds_it(sending, receiving, place):
    o = read(sending, receiving)
    assert (o.verdict, o.between) == ("localised", place)


def test_what_intervals_leave_open_widens_the_place_that_is_certain():
    o = read([NONE, 0.4, 0.6, ALL], [ALL, 0.6, 0.4, NONE], half=0.15)
    assert o.sending.onset == "three"
    assert o.sending.within == ("one", "four")
    assert o.sending.verdict == o.verdict == "distributed"
    assert "with certainty between one and four" in str(o)


@each(
    ("sending", "verdict"),
    [
        ([0.3, 0.5, 0.7, ALL], "distributed"),
        ([NONE, ALL, NONE, NONE], "the directions disagree"),
        ([0.4, 0.6, 0.6, 0.6], "the directions disagree"),
    ],
    ids=["in several steps", "lost again", "half before"],
)
def test_one_direction_is_distributed_where_no_one_step_makes_it(sending, verdict):
    """The other places it between two and three; the first may mean the same, the others cannot."""
    o = read(sending, IN_THREE[1])
    assert (o.sending.verdict, o.verdict) == ("distributed", verdict)


def test_both_directions_may_be_distributed_with_half_of_it_at_different_cuts():
    assert read([0.3, 0.55, 0.75, ALL], [0.55, 0.3, 0.2, NONE]).verdict == "distributed"


# --- whether the directions agree -------------------------------------------------------------------------------------


def test_two_places_are_a_disagreement_and_both_are_named():
    o = read([NONE, ALL, ALL, ALL], IN_THREE[1])
    assert o.sending.verdict == o.receiving.verdict == "in one step"
    assert (o.verdict, o.between) == ("the directions disagree", None)
    first = "t: the directions disagree: between one and two by A → B, between two and three by B → A"
    assert str(o).splitlines()[0] == first
    assert "localised" not in str(o)


def test_a_direction_that_no_cut_conveys_places_it_beyond_its_last_cut():
    """So a backdoor of which one direction shows nothing is not localised by the other."""
    o = read([0.11, 0.11, 0.85, 0.85], [0.2, 0.15, NONE, NONE])
    assert (o.sending.verdict, o.receiving.verdict) == ("in one step", "not found")
    assert (o.sending.between, o.receiving.between) == (("two", "three"), (INPUT, "one"))
    assert o.verdict == "the directions disagree"


def test_intervals_may_leave_open_whether_the_directions_agree():
    wide = read([NONE, 0.3, 0.8, ALL], [0.8, 0.2, NONE, NONE], half=0.35)
    assert (wide.sending.verdict, wide.receiving.verdict) == ("distributed", "in one step")
    assert wide.verdict == "distributed"
    wide = read([NONE, NONE, 0.85, 0.85], [0.85, NONE, NONE, NONE], half=0.39)
    assert (wide.sending.between, wide.receiving.between) == (("two", "three"), ("one", "two"))
    assert wide.verdict == "the directions disagree"
    wide = read([NONE, NONE, 0.79, 0.85], [0.85, 0.2, NONE, NONE], half=0.39)
    assert (wide.sending.within, wide.receiving.within) == (("two", OUTPUT), (INPUT, "three"))
    assert wide.verdict == "undecided"
    assert "undecided, since the intervals leave open whether both directions place it" in str(wide)


READ = ("t", "A", "B")


def left_out(way, *cuts):
    """The table of ``IN_THREE``, of which one direction lacks some cuts."""
    made = table(*PARTS)
    return made[~((made["sender"] == way) & (made["sender"] != made["receiver"]) & made["sender_cut"].isin(cuts))]


def test_places_are_compared_on_the_cuts_that_both_directions_have():
    o = onset(left_out("B", "two"), *READ)
    assert (o.sending.between, o.receiving.between) == (("two", "three"), ("one", "three"))
    assert (o.verdict, o.between) == ("localised", ("one", "three"))
    o = onset(left_out("A", "two", "three"), *READ)
    assert (o.verdict, o.between) == ("localised", ("one", "four"))
    made = left_out("A", "two", "three")
    o = onset(
        made[(made["control"] != "") | (made["sender"] == "A") | made["sender_cut"].isin(["two", "three"])], *READ
    )
    assert (o.verdict, o.between) == ("undecided", None)
    assert "t: undecided, since no cut was measured both ways" in str(o)


@each("way", ["A", "B"])
def test_one_direction_alone_localises_nothing(way):
    made = left_out(way, *CUTS).assign(sender_score=0.9 if way == "B" else 0.1)
    o = onset(made, "t", "A", "B")
    measured, lacking = (o.receiving, o.sending) if way == "A" else (o.sending, o.receiving)
    assert (measured.verdict, measured.between) == ("in one step", ("two", "three"))
    assert (lacking.verdict, lacking.cuts, str(lacking)) == ("undecided", (), "measured at no cut: undecided")
    assert (o.verdict, o.levels) == ("undecided", (0.9, 0.1))
    lost = table(*PARTS).assign(sender_score=0.9 if way == "B" else 0.1)
    lost.loc[(lost["sender"] == way) & (lost["control"] == ""), "status"] = "failed"
    assert "undecided, since trials failed (one, two, three, four)" in str(onset(lost, "t", "A", "B"))


def test_it_is_not_found_where_no_cut_conveys_it_or_there_is_none():
    assert read([NONE] * 4, [NONE] * 4).verdict == "not found"
    assert "at most 0 % of it" in str(read([NONE] * 4, [NONE] * 4))
    assert read(*IN_THREE, levels=(0.9, 0.89)).verdict == "not found"
    assert read(*IN_THREE, half=0.45).verdict == "not found"


SHOW = [ALL] * 4


@each(
    ("sender", "receiver", "control", "carried"),
    [
        ("B", "B", "itself", (True, True)),
        ("A", "B", "untrained sender", (True, False)),
        ("A", "B", "untrained both", (True, False)),
        ("B", "A", "untrained receiver", (False, True)),
        ("B", "A", "untrained both", (False, True)),
        ("A", "A", "itself", (False, False)),
        ("A", "B", "untrained receiver", (False, False)),
        ("B", "A", "untrained sender", (False, False)),
        ("A", "B", "shuffled pairs", (False, False)),
        ("", "B", "clustered noise", (False, False)),
    ],
)
def test_a_control_without_the_carrier_that_shows_it_says_that_the_stitch_carries_it(
    sender, receiver, control, carried
):
    o = read(*IN_THREE, rows(sender, receiver, SHOW, 0.5, control=control))
    assert (bool(o.sending.controls), bool(o.receiving.controls)) == carried
    assert o.verdict == ("carried by the stitch" if any(carried) else "localised")


def test_a_control_that_shows_it_elsewhere_or_only_perhaps_says_nothing():
    assert read(*IN_THREE, rows("B", "B", [ALL, NONE, NONE, ALL], 0.5, control="itself")).verdict == "localised"
    assert read(*IN_THREE, rows("B", "B", SHOW, 0.5, control="itself", half=0.85)).verdict == "localised"


def test_without_the_control_that_decides_nothing_is_concluded():
    o = onset(table(*PARTS[:2]), "t", "A", "B")
    assert o.verdict == o.sending.verdict == o.receiving.verdict == "undecided"
    assert o.sending.unmeasured == ("B → B",)
    assert "100 % of it in one step: undecided, since B → B was not measured there" in str(o)
    others = rows("B", "B", SHOW, NONE, control="shuffled pairs")
    assert onset(table(*PARTS[:2], others), "t", "A", "B").verdict == "undecided"
    assert onset(table(*PARTS[:2], rows("B", "B", SHOW, NONE)), "t", "A", "B").verdict == "carried by the stitch"


def test_tables_that_cannot_be_read_are_refused():
    one_way = table(rows("A", "B", IN_THREE[0], 0.1))
    with pytest.raises(DataError, match="no score of A alone"):
        onset(one_way, "t", "A", "B")
    with pytest.raises(DataError, match="no seam A → B nor B → A"):
        onset(table(BLIND), "t", "A", "B")
    with pytest.raises(DataError, match="no measurement of 'u'; its scores: 't'"):
        onset(one_way, "u", "A", "B")
    with pytest.raises(DataError, match="several measurements at one → one, which differ in fit_data; select"):
        read(*IN_THREE, rows("A", "B", IN_THREE[0], 0.1, fit_data="e"))


def test_failed_trials_are_left_out():
    o = read(*IN_THREE, rows("A", "B", SHOW, 0.1, status="failed", seed=1))
    assert o.verdict == "localised"


#: One step of 47 % and another of 45; without the third cut they are one.
STEPS = [0.1, 0.1, 0.46, 0.86]


def test_a_step_over_a_cut_that_failed_is_no_step_between_neighbours():
    sending, receiving = STEPS, [0.9, 0.54, 0.14, 0.14]
    assert read(sending, receiving).verdict == "distributed"
    made = table(rows("A", "B", sending, 0.1), rows("B", "A", receiving, 0.9))
    made.loc[(made["sender"] == "A") & (made["sender_cut"] == "three"), "status"] = "failed"
    found = onset(made, "t", "A", "B")
    assert (found.sending.verdict, found.sending.failed) == ("undecided", ("three",))
    assert "undecided, since trials failed (three)" in str(found)


def test_a_trait_that_no_cut_conveys_may_be_at_one_that_failed():
    made = table(rows("A", "B", [NONE] * 4, 0.1), rows("B", "A", [NONE] * 4, 0.9))
    made.loc[(made["sender"] == "A") & (made["sender_cut"] == "two"), "status"] = "failed"
    found = onset(made, "t", "A", "B")
    assert (found.sending.verdict, found.receiving.verdict) == ("undecided", "not found")


@pytest.mark.slow
@each("kind", ["untrained sender", "untrained both", ""])
def test_a_control_that_failed_at_the_onset_leaves_it_open(kind):
    control = (
        rows("A", "B", [NONE] * 4, 0.1, control=kind) if kind else rows("B", "B", [NONE] * 4, 0.1, control="itself")
    )
    assert read(*IN_THREE, control).verdict == "localised"
    for cut, said in (("three", "undecided"), ("two", "in one step")):
        lost = [row | {"status": "failed" if row["sender_cut"] == cut else "ok"} for row in control]
        found = read(*IN_THREE, lost)
        assert found.sending.verdict == said
        assert found.sending.failed == ((kind or "B → B",) if said == "undecided" else ())


def test_fits_that_had_not_converged_are_told_of():
    found = read(*IN_THREE, fit="Converged()", converged=False)
    assert "4 of 4 cuts not converged" in str(found)

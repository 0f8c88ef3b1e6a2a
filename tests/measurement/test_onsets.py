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
    made = table(rows("A", "B", sending, reference, **settings), rows("B", "A", receiving, carrier, **settings), *more)
    return onset(made, "t", "A", "B")


NONE, ALL = 0.1, 0.9
IN_THREE = ([NONE, NONE, ALL, ALL], [ALL, ALL, NONE, NONE])
PARTS = (rows("A", "B", IN_THREE[0], NONE), rows("B", "A", IN_THREE[1], ALL))


def test_both_ways_place_it_between_two_cuts():
    o = read(*IN_THREE)
    assert (o.verdict, o.between, o.levels) == ("localised", ("two", "three"), (0.9, 0.1))
    assert (o.sending.onset, o.receiving.onset) == ("three", "two")
    assert o.sending.within == o.receiving.within == ("two", "three")
    assert o.sending.shares == pytest.approx((0, 0, 1, 1))
    assert str(o).startswith("t: localised, between two and three\n  A (carrier) 90.0 %, B (reference) 10.0 %\n")
    assert "conveyed from three on (between two and three), 100 % of it in one step: localised" in str(o)


OTHERS = dict(zip(CUTS, ("w", "x", "y", "z"), strict=True))


def test_the_place_is_named_by_the_carriers_cuts():
    """The other network's cuts have other names, and lie in the reverse order of depth."""
    there, back, both = table(*PARTS[:1]), table(*PARTS[1:]), table(*PARTS)
    for frame, cut, depth in ((there, "receiver_cut", "receiver_depth"), (back, "sender_cut", "sender_depth")):
        frame[cut], frame[depth] = frame[cut].map(OTHERS).astype("str"), 1.25 - frame[depth]
    o = onset(pd.concat([there, back]), "t", "A", "B")
    assert o == onset(both, "t", "A", "B")
    shown = table(rows("A", "B", [NONE, NONE, ALL, NONE], NONE, control="untrained sender"))
    shown["receiver_cut"] = shown["receiver_cut"].map(OTHERS).astype("str")
    assert onset(pd.concat([there, back, shown]), "t", "A", "B").sending.verdict == "carried by the stitch"
    twice = pd.concat([there, there.assign(receiver_cut="elsewhere", fit="another"), back])
    with pytest.raises(DataError, match="several measurements at one → w, which differ in receiver_cut, fit; select"):
        onset(twice, "t", "A", "B")


def test_what_is_read_is_said_in_numbers():
    assert "85 % of it in one step: localised" in str(read([NONE, 0.18, 0.86, ALL], IN_THREE[1]))
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
    "sending",
    [[0.3, 0.5, 0.7, ALL], [NONE, ALL, NONE, NONE], [0.4, 0.6, 0.6, 0.6]],
    ids=["in several steps", "lost again", "half before"],
)
def test_it_is_distributed_where_no_one_step_makes_it(sending):
    o = read(sending, IN_THREE[1])
    assert o.sending.verdict == o.verdict == "distributed"


def test_two_places_are_no_one_place():
    o = read([NONE, ALL, ALL, ALL], IN_THREE[1])
    assert o.sending.verdict == o.receiving.verdict == "localised"
    assert (o.verdict, o.between) == ("distributed", None)


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


def test_tables_that_cannot_be_read_are_refused():
    one_way = table(rows("A", "B", IN_THREE[0], 0.1))
    with pytest.raises(DataError, match="no seam B → A"):
        onset(one_way, "t", "A", "B")
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


@each("kind", ["untrained sender", "untrained both", ""])
def test_a_control_that_failed_at_the_onset_leaves_it_open(kind):
    control = (
        rows("A", "B", [NONE] * 4, 0.1, control=kind) if kind else rows("B", "B", [NONE] * 4, 0.1, control="itself")
    )
    assert read(*IN_THREE, control).verdict == "localised"
    for cut, said in (("three", "undecided"), ("two", "localised")):
        lost = [row | {"status": "failed" if row["sender_cut"] == cut else "ok"} for row in control]
        found = read(*IN_THREE, lost)
        assert found.sending.verdict == said
        assert found.sending.failed == ((kind or "B → B",) if said == "undecided" else ())


def test_fits_that_had_not_converged_are_told_of():
    found = read(*IN_THREE, fit="Converged()", converged=False)
    assert "4 of 4 cuts not converged" in str(found)

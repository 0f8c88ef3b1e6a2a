"""What is said of a table, on tables made by hand: each sentence just where its condition holds, with its numbers."""

import re

import numpy as np
import pandas as pd
import pytest

from loops import each
from suture.common.errors import DataError
from suture.measurement.tables.curve import arrange_pairs
from suture.measurement.tables.explain import Explanation, explain
from suture.measurement.tables.similarities import COLUMNS as COMPARED
from suture.measurement.tables.table import COLUMNS

OWN = 0.95  #: the receiver's own accuracy
CUTS = ("one", "two")
EVERY = ("itself", "untrained sender", "untrained receiver", "shuffled pairs", "clustered noise")
LOW = dict.fromkeys(("untrained sender", "untrained receiver", "untrained both", "shuffled pairs"), 0.1)


def row(cut, stitched, control="", *, half=0.005, own=OWN, unit="fraction", **more):
    scale = 100 if unit == "fraction" else -1
    ends = (("B", cut), ("B", cut)) if control == "itself" else (("A", cut), ("B", cut))
    ends = (("", ""), ("B", cut)) if control == "clustered noise" else ends
    depth = (CUTS.index(cut) + 1) / len(CUTS) if cut in CUTS else 1.0
    return (
        {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
        | {"trial": f"{cut}{control}", "status": "ok", "control": control, "seed": 0}
        | {"sender": ends[0][0], "sender_cut": ends[0][1], "receiver": ends[1][0], "receiver_cut": ends[1][1]}
        | {"sender_depth": depth, "receiver_depth": depth, "n": 1000, "seconds": 1.0}
        | {"score": "accuracy", "unit": unit, "fit_data": "d/fit", "score_data": "d/score"}
        | {"stitched": stitched, "stitched_low": stitched - half, "stitched_high": stitched + half}
        | {"sender_score": own, "receiver_score": own, "converged": True, "penalty": scale * (own - stitched)}
        | {"penalty_low": scale * (own - stitched) - abs(scale) * half}
        | {"penalty_high": scale * (own - stitched) + abs(scale) * half}
        | more
    )


def table(plain=(0.94, 0.945), controls=None, **settings):
    """A → B at two cuts, and the same value of every control at both."""
    controls = LOW | {"itself": 0.95, "clustered noise": 0.1} if controls is None else controls
    rows = [row(cut, value, **settings) for cut, value in zip(CUTS, plain, strict=True)]
    rows += [row(cut, value, control, **settings) for control, value in controls.items() for cut in CUTS]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def one(lines, words):
    """The only sentence with these words."""
    found = [line for line in lines if words in line]
    assert len(found) == 1, lines
    return found[0]


def none(lines, words):
    assert not [line for line in lines if words in line], lines


# --- what is wrong


@each(
    ("controls", "said"),
    [
        ({}, "Unless the sender knows more, B may not be fed as it was trained"),
        ({"itself": 0.703}, "Stitched to itself, B gains 0.3 points at most."),
        ({"itself": 0.69}, "Stitched to itself, B gains nothing."),
    ],
)
def test_what_gains_much_is_warned_of_and_still_works(controls, said):
    """A larger sender may truly give it; so the gain of the receiver stitched to itself stands beside."""
    told = explain(table((0.92, 0.7), controls, own=0.7))
    line = one(told.warnings, "Warning: at one the stitched network is 22.0 points better than B alone.")
    assert said in line
    assert told.verdict.startswith("A works in B at both cuts")
    none(explain(table((0.754, 0.7), controls, own=0.7)).warnings, "better than B alone")


def test_a_gain_in_another_unit_is_judged_by_the_way_to_guessing():
    """Of 4 nats that guessing loses, 0.2 are a twentieth; of a score with no known chance nothing is said."""
    for loss, chance, warned in ((1.0, 4.0, True), (1.15, 4.0, False), (0.5, None, False)):
        rows = table((loss, 1.3), {}, own=1.3, unit="nats").assign(score="loss", chance=chance)
        said = [one for one in explain(rows, margin=0.1).warnings if "better than B alone" in one]
        assert bool(said) == warned, (loss, chance)


# --- what must not be concluded


DENIED = [
    ("clustered noise", "that B is sent more than the class", "(smith2024, section 4.2)"),
    ("linear probe", "that B's layers add to A's", "a linear probe of A does as well"),
    ("untrained both", "that anything was learned that this needs", "two untrained networks do as well"),
    ("plugged in", "that a stitch is needed", "plugged in without one"),
]


@each(("control", "claim", "meaning"), DENIED)
def test_what_a_control_does_as_well_is_denied(control, claim, meaning):
    line = one(explain(table(controls={control: 0.94})).not_concluded, claim)
    assert meaning in line
    assert "at 2 of 2 cuts" in line
    none(explain(table(controls={control: 0.5})).not_concluded, claim)
    none(explain(table(controls={})).not_concluded, claim)


def test_compatible_networks_are_never_said_to_represent_the_same():
    words = "that A and B represent the same thing"
    assert "(smith2024, sections 4.1, 4.2 and 5)" in one(explain(table()).not_concluded, words)
    none(explain(table((0.5, 0.5))).not_concluded, words)


def test_a_failure_is_no_evidence_of_a_difference():
    words = "that A lacks what B needs"
    assert "(two): a good enough map may not have been found" in one(explain(table((0.94, 0.5))).not_concluded, words)
    none(explain(table()).not_concluded, words)


def test_better_than_the_receiver_is_not_a_better_representation():
    words = "that A represents more than B"
    alone = table((0.97, 0.94))
    assert "(one): A may be beaten in the other direction, too (smith2024, section 4.3)" in one(
        explain(alone).not_concluded, words
    )
    back = alone[alone["control"] == ""].assign(sender="B", receiver="A")
    assert "(one): B → A beats A, too (smith2024" in one(explain(pd.concat([alone, back])).not_concluded, words)
    none(explain(table()).not_concluded, words)


@each(
    ("value", "words", "number"),
    [
        (0.97, "that the stitch only aligns: B stitched to itself is better than B", "one -2.0 pp [-2.5, -1.5], two"),
        (0.90, "that A causes the penalty: B stitched to itself is also worse than B", "one +5.0 pp [4.5, 5.5], two"),
    ],
)
def test_what_a_self_stitch_says(value, words, number):
    assert number in one(explain(table(controls={"itself": value})).not_concluded, words)
    none(explain(table(controls={"itself": 0.95})).not_concluded, words)


def ranks(*values, **more):
    """Numerical ranks: of A → B, then of B → B, at the first cut, a seed each."""
    return pd.DataFrame(
        [
            {"sender": sender, "receiver": "B", "sender_cut": "one", "receiver_cut": "one", "value": value}
            | {"measure": "numerical rank", "normalised": False}
            | more
            for sender, held in zip("AB", values, strict=True)
            for value in held
        ]
    )


@each(
    ("sent", "own", "said"),
    [
        ([30], [50], "one 30 against 50"),
        ([48], [50], None),
        ([30, 52], [50, 51], None),  # seeds overlap
        ([30, 34], [50, 51], "one 32 against 50"),
    ],
)
def test_another_rank(sent, own, said):
    words = "that B takes what it is sent for its own, at 1 of 2 cuts"
    denied = explain(table(), ranks=ranks(sent, own)).not_concluded
    if said is None:
        none(denied, words)
    else:
        assert said in one(denied, words)
    none(explain(table((0.5, 0.5)), ranks=ranks(sent, own)).not_concluded, words)


def similarities(index, values, half=0.05, calibrated=True):
    rows = [
        {name: "" for name, dtype in COMPARED.items() if dtype == "str"}
        | {
            "sender": "A",
            "receiver": "B",
            "sender_cut": cut,
            "receiver_cut": cut,
            "index": index,
            "value": 0.99,
            "n": 9,
        }
        | ({"calibrated": value, "low": value - half, "high": value + half} if calibrated else {})
        for cut, value in zip(CUTS, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COMPARED)).astype(COMPARED)


def test_an_index_that_disagrees():
    """Whatever the value: here it is 0.99 everywhere, and the index may be a distance of the user's."""
    found = table((0.94, 0.5))  # the first works, the second does not
    alike, unlike = 0.9, 0.02
    none(explain(found, similarities("own", (alike, unlike))).not_concluded, "says the opposite")
    denied = explain(found, similarities("own", (unlike, alike))).not_concluded
    assert f"own, calibrated (one {unlike:.2f}) says" in one(denied, "that A and B are alike, where it works")
    assert f"own, calibrated (two {alike:.2f}) says" in one(denied, "that A and B differ, where it does not")
    for nothing in (similarities("own", (np.nan, np.nan)), similarities("own", (0.3, 0.7), half=0.3)):
        none(explain(found, nothing).not_concluded, "says the opposite")


def test_of_an_index_without_its_chance_level_nothing_is_said():
    said = explain(table((0.94, 0.5)), similarities("linear_cka", (0.1, 0.9), calibrated=False))
    none(said.not_concluded, "says the opposite")
    assert "its chance level would say" in one(said.missing, "linear_cka")


def test_one_training_each_says_nothing_of_others():
    words = "That other trainings"
    assert "A and B are one training each" in one(explain(table()).not_concluded, words)
    several = pd.concat([table(network_seed=seed) for seed in range(3)])
    none(explain(several).not_concluded, words)


# --- what is missing


@each("left_out", EVERY)
def test_a_control_that_was_not_run_is_named(left_out):
    controls = {control: 0.1 for control in EVERY if control != left_out}
    named = [line.partition(":")[0] for line in explain(table(controls=controls)).missing]
    assert named == [left_out, "linear probe", "similarity indices", "numerical rank"]


def test_a_control_that_was_run_at_some_cuts_is_named_with_how_many():
    found = table()
    found = found[~((found["control"] == "untrained sender") & (found["receiver_cut"] == "two"))]
    assert one(explain(found).missing, "untrained sender").startswith("untrained sender at some cuts (1 of 2 of A → B)")


def test_failed_trials_are_named():
    failed = pd.DataFrame([row("two", np.nan, "itself", status="failed")], columns=list(COLUMNS))
    assert one(explain(pd.concat([table(), failed.astype(COLUMNS)])).missing, "1 trial failed")


def test_a_cut_whose_trial_failed_keeps_its_place():
    """Nothing works at all cuts if one of them could not be measured."""
    failed = pd.DataFrame([row("two", np.nan, status="failed")], columns=list(COLUMNS)).astype(COLUMNS)
    whole = table()
    found = explain(pd.concat([whole[(whole["receiver_cut"] != "two") | (whole["control"] != "")], failed]))
    assert "works in B at both cuts" in explain(whole).verdict
    assert "works in B at one, " in found.verdict
    assert "; at two there is no answer." in found.verdict


# --- tables, units, text


def test_a_loss_is_better_where_it_is_lower():
    found = table((0.30, 0.9), {"untrained sender": 2.0}, own=0.25, unit="nats").assign(score="loss")
    said = explain(found, score="loss", margin=0.1)
    assert said.verdict.startswith("A works in B at one, at most 0.055 nats worse than B; at two it does not.")
    answers = dict(said.answers)
    assert answers["Does A → B work?"] == "Yes at one: within 0.1 nats of B. No at two: at least 0.645 nats worse."
    assert answers["Does it need a trained A?"] == "Yes at one (with an untrained A it is 1.700 nats worse)."


def test_seams_of_a_matrix_are_named_by_both_cuts():
    rows = [row("one", 0.94), row("one", 0.80, sender_cut="two", sender_depth=1.0), row("one", 0.1, "clustered noise")]
    said = explain(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))
    assert "works in B at one, at most 1.5 points worse than B; at two → one it does not." in said.verdict


def test_the_first_screen_and_the_whole_text():
    said = explain(table((0.94, 0.945), {"untrained sender": 0.5}))
    assert str(said) == (
        "A → B on d/score, 2 cuts, 1,000 test samples (B alone: 95.0 %)\n\n"
        "Does A → B work?           Yes at both cuts: within 3 points of B.\n"
        "Does it need a trained A?  Yes at both cuts (with an untrained A it is 44.0 points worse, or more).\n"
        "Does it need a trained B?  Not measured: add the control 'untrained receiver'.\n\n"
        "So: A works in B at both cuts, at most 1.5 points worse than B. "
        "At both cuts it needs the training of A."
    )
    assert re.match(
        re.escape(str(said)) + r"\n\nWhat must not be concluded\n- .*\n\nWhat was not tried\n- ", said.full, re.DOTALL
    )
    assert Explanation("t", "", (), ("w",), ("a",), ()).full == "t\n\nw\n\nWhat must not be concluded\n- a"


def test_one_screen_takes_at_most_150_words():
    controls = {name: (0.2 if "sender" in name else 0.945) for name in LOW}
    assert len(str(explain(table(controls=controls), chance=0.1)).split()) <= 150


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="no column 'status'"):
        explain(table().drop(columns="status"))
    with pytest.raises(DataError, match="no measurement of 'loss'; its scores: 'accuracy'"):
        explain(table(), score="loss")
    with pytest.raises(DataError, match=r"chance=10: 'accuracy' is a fraction; give one from 0 to 1"):
        explain(table(), chance=10)
    with pytest.raises(DataError, match=r"margin='3' is a str; give a number"):
        explain(table(), margin="3")
    alone = table(controls={"itself": 0.5})
    with pytest.raises(DataError, match="of 'accuracy' the table has controls alone"):
        explain(alone[alone["control"] != ""])
    with pytest.raises(DataError, match="every trial of 'accuracy' failed but controls"):
        explain(alone.assign(status=alone["status"].where(alone["control"] != "", "failed")))
    with pytest.raises(DataError, match="is in nats; give margin= in nats"):
        explain(table(unit="nats"))
    with pytest.raises(DataError, match=r"margin=-1"):
        explain(table(), margin=-1)
    with pytest.raises(DataError, match="neither good nor bad"):
        explain(table(penalty=None))
    with pytest.raises(DataError, match="several measurements at one → one, which differ in fit; select"):
        explain(pd.concat([table(fit="x"), table(fit="y")]))
    with pytest.raises(DataError, match="not a table of similarities: it has no column 'index'"):
        explain(table(), similarities("linear_cka", (0.1, 0.1)).drop(columns="index"))
    with pytest.raises(DataError, match="several values of linear_cka at one seam"):
        explain(table(), pd.concat([similarities("linear_cka", (0.1, 0.1))] * 2))
    with pytest.raises(DataError, match="not a table of complexity of seams: it has no column 'measure'"):
        explain(table(), ranks=ranks([1], [2]).drop(columns="measure"))


@each("turned", [False, True])
def test_of_several_rows_of_a_control_the_one_fitted_as_the_pair_is_read(turned):
    """The same whichever row comes first: noise of another scale and another fit lie beside."""
    others = [row(cut, 0.2, "clustered noise, scale=0.5") for cut in CUTS]
    others += [row(cut, 0.2, "itself", fit="published") for cut in CUTS]
    both = pd.concat([table(), pd.DataFrame(others, columns=list(COLUMNS)).astype(COLUMNS)], ignore_index=True)
    both["trial"] = both["trial"] + both["fit"]
    (alone,), (found,) = arrange_pairs(table(), "accuracy"), arrange_pairs(both[::-1] if turned else both, "accuracy")
    for kind in ("itself", "clustered noise"):
        assert list(found.scores(kind).value) == list(alone.scores(kind).value), kind


# --- what had not converged


def test_no_answer_rests_on_a_fit_that_had_not_converged_but_is_counted():
    planted = table((0.5, 0.5), LOW | {"untrained sender": 0.5})
    plain = planted["control"] == ""
    assert explain(planted).verdict == "A does not work in B at any of 2 cuts: it is at least 44.5 points worse."
    planted.loc[plain & (planted["receiver_cut"] == "one"), "converged"] = False
    said = explain(planted)
    assert "at two it does not; at one this is undecided" in said.verdict
    assert one(said.warnings, "The fit at 1 of 2 cuts had not converged; its penalty is an upper bound.")
    planted.loc[plain, "converged"] = False
    assert one(
        explain(planted).warnings, "The fits at 2 of 2 cuts had not converged; their penalties are upper bounds."
    )
    none(explain(planted).not_concluded, "that A lacks what B needs")


@each("fit", ["bansal2021", "Quick()", "TaskLoss(start=Random(), patience=None)"])
def test_a_fit_that_never_knows_says_of_nothing_that_it_does_not_work(fit):
    said = explain(table((0.5, 0.5), fit=fit, converged=None))
    assert said.verdict == "A is not shown to work in B at any of 2 cuts: this is undecided."
    assert fit in one(said.not_concluded, "never says whether it has converged")
    assert one(
        said.warnings, f"{fit} cannot report whether it has converged, so a better fit might still work at 2 cuts."
    )


def apart(low: float, high: float) -> dict[str, float]:
    ends = (("", low), ("_low", low), ("_high", high))
    return {f"apart_{name}{end}": at for name in ("mahalanobis", "knn") for end, at in ends}


def test_what_works_on_activations_that_the_receiver_never_saw_is_denied():
    words = "B sees at its cut what it saw in training"
    far = table((0.94, 0.5), {}, **apart(0.97, 0.99))
    denied = explain(far).not_concluded
    assert "at 1 of 2 cuts: what the stitch gives" in one(denied, words)
    assert "nearest neighbours one 0.97 and 0.97" in one(denied, words)
    for ends, told in (((0.74, 0.99), False), ((0.76, 0.8), True), ((0.01, 0.2), True), ((0.01, 0.3), False)):
        found = table((0.94, 0.945), {}, **apart(*ends))
        assert any(words in line for line in explain(found).not_concluded) == told, ends
    none(explain(table((0.94, 0.945), {})).not_concluded, words)

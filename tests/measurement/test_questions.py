"""The five questions, on tables made by hand: each answer where its condition holds, and the counts made of it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import cohen_kappa_score

from loops import each, examples
from reported import cell
from suture.measurement.scores.outcomes import CLASSES, Outcomes
from suture.measurement.tables.curve import Estimates
from suture.measurement.tables.questions import (
    BOTH,
    CLOSE,
    NEITHER,
    NO,
    RECEIVERS,
    SENDERS,
    SHARED,
    UNASKED,
    YES,
    Answers,
    Question,
    agreement,
    settle,
)
from suture.measurement.tables.read import Reading, make_reading
from suture.measurement.tables.say import headlines, say_answers, say_curve, say_trouble
from suture.measurement.tables.table import COLUMNS

CUTS = ("stem", "middle", "head")
LOW = {"untrained sender": 0.1, "untrained receiver": 0.1, "shuffled pairs": 0.1}


def reading(
    *plain: float,
    controls: dict[str, Any] | None = None,
    half: float = 0.01,
    margin: float | None = None,
    **columns: Any,
) -> Reading:
    """A → B, whose receiver alone reaches 95 %, with one value of every control, or one for each cut.

    Other columns are those of the trials themselves, or of a control if they are given as a mapping.
    """
    rows = []
    for kind, values in {"": plain, **(LOW if controls is None else controls)}.items():
        for i, cut in enumerate(CUTS[: len(plain)], 1):
            value = values[i - 1] if isinstance(values, tuple) else values
            noise = kind == "clustered noise"
            depth = {"sender_depth": None if noise else i / 3, "receiver_depth": i / 3}
            bounds = {"stitched_low": value - half, "stitched_high": value + half}
            bounds |= {"penalty_low": 95 - 100 * (value + half), "penalty_high": 95 - 100 * (value - half)}
            bounds |= {"chance": 0.1, "task": "classification"}
            mine = {name: of.get(kind) for name, of in columns.items() if isinstance(of, dict) and kind in of}
            mine |= {name: of for name, of in columns.items() if not isinstance(of, dict) and not kind}
            more = {name: of[i - 1] if isinstance(of, tuple) else of for name, of in mine.items()}
            rows.append(
                cell(kind, "" if noise else "A", "B", "" if noise else cut, cut, value, **depth, **bounds | more)
            )
    return make_reading(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS), "accuracy", margin)


# --- 1: does it work?


def test_it_works_if_the_whole_interval_of_the_penalty_is_below_the_margin() -> None:
    assert reading(0.945, 0.80, 0.92).marks("works") == (YES, NO, CLOSE)
    assert reading(0.945, 0.80, 0.92, margin=30).marks("works") == (YES,) * 3


def test_only_a_fit_that_has_converged_can_say_that_it_does_not_work() -> None:
    assert reading(0.80, 0.945, converged=(False, False)).marks("works") == (CLOSE, YES)
    assert reading(0.80, converged=None).marks("works") == (CLOSE,)
    assert "cannot report whether it has converged" in " ".join(say_trouble(reading(0.80, converged=None)))


def test_nothing_is_answered_where_a_network_is_not_to_be_trusted() -> None:
    found = reading(0.945, 0.80, warning=("A is near chance", ""))
    assert found.marks("works") == (UNASKED, NO)
    assert found.marks("sender")[0] == UNASKED


# --- 2 and 3: does it need what the networks have learned?


@each("role", ["sender", "receiver"])
def test_it_needs_a_trained_network_if_it_is_better_than_an_untrained_one_by_more_than_the_margin(role: str) -> None:
    found = reading(0.945, 0.945, 0.80, controls=LOW | {f"untrained {role}": (0.80, 0.92, 0.80)})
    assert found.marks(role) == (YES, CLOSE, NO)
    other = "receiver" if role == "sender" else "sender"
    assert found.marks(other) == (YES,) * 3
    assert reading(0.945, controls={}).marks(role) == (UNASKED,)


def test_a_control_that_had_not_converged_is_beaten_only_by_more_than_it_may_still_gain() -> None:
    control = {"controls": LOW | {"untrained sender": (0.80, 0.80)}, "converged": {"untrained sender": False}}
    assert reading(0.945, 0.945, **control).marks("sender") == (CLOSE,) * 2, "nobody knows what it may gain"
    said = {"gained": {"untrained sender": (2.0, 12.0)}, "gained_error": {"untrained sender": 1.0}}
    found = reading(0.945, 0.945, **control, **said)
    assert found.marks("sender") == (YES, CLOSE)
    assert found.answered[0]["sender"].assumed.tolist() == [True, False]
    assert "At middle the control 'untrained sender' was still gaining" in " ".join(say_trouble(found))
    # And one that does as well is no proof while the trial itself may still gain.
    same = {"controls": LOW | {"untrained sender": 0.945}, "half": 0.002}
    assert reading(0.945, **same).marks("sender") == (NO,)
    assert reading(0.945, **same, converged=False).marks("sender") == (CLOSE,)
    assert reading(0.945, **same, converged=False, gained=1.0, gained_error=0.5).marks("sender") == (NO,)


def test_a_fit_that_says_nothing_of_its_gain_leaves_it_open_whether_its_control_would_catch_up() -> None:
    quick = {"fit": {"": "Quick()", "untrained sender": "Quick()"}, "converged": {"": None, "untrained sender": None}}
    control = {"controls": LOW | {"untrained sender": (0.80, 0.90)}}
    assert reading(0.945, 0.945, **control, **quick).marks("sender") == (CLOSE, CLOSE)


# --- 4: does it need the right pairs?


def test_it_needs_the_right_pairs_if_a_stitch_of_shuffled_pairs_falls_to_guessing() -> None:
    found = reading(0.945, 0.945, 0.945, controls=LOW | {"shuffled pairs": (0.11, 0.5, 0.13)})
    assert found.marks("pairs") == (YES, NO, CLOSE)
    (warned,) = say_trouble(found)
    assert "at middle shuffled pairs reach 50.0 % (guessing: 10.0 %)" in warned
    unknown = make_reading(found.table.drop(columns="chance"))
    assert unknown.marks("pairs") == (UNASKED,) * 3
    assert make_reading(unknown.table, chance=0.5).marks("pairs")[1] == YES


# --- 5: whose mistakes?


def outcomes(*right: Any) -> Outcomes:
    """Outcomes of stitched network, sender and receiver: 0 is right."""
    parts = zip(("stitched", "sender", "receiver"), right, strict=True)
    return Outcomes(CLASSES, "s", {role: (~np.asarray(part, bool)).astype(np.uint8) for role, part in parts})


def planted(n: int, own: float, others: float, seed: int = 0) -> Outcomes:
    """Two networks with hard samples in common, and a third that copies so much of either's mistakes."""
    random = np.random.default_rng(seed)
    hard = random.random(n)
    a, b = (random.random(n) > 0.6 * hard**2 for _ in range(2))
    chosen = random.random(n)
    fresh = random.random(n) > 0.6 * hard**2
    return outcomes(np.where(chosen < own, a, np.where(chosen < own + others, b, fresh)), a, b)


def test_kappa_is_that_of_an_independent_implementation() -> None:
    made = planted(3000, 0.3, 0.2)
    s, a, b = (made.by_role[role] == 0 for role in ("stitched", "sender", "receiver"))
    found = agreement(made)
    base = cohen_kappa_score(a, b)
    assert found.senders[0] == pytest.approx(cohen_kappa_score(s, a) - base, abs=1e-12)
    assert found.receivers[0] == pytest.approx(cohen_kappa_score(s, b) - base, abs=1e-12)
    random, drawn = np.random.default_rng(1), []
    for _ in range(400):
        again = random.integers(3000, size=3000)
        drawn.append(cohen_kappa_score(s[again], a[again]) - cohen_kappa_score(a[again], b[again]))
    width = (found.senders[2] - found.senders[1]) / (2 * norm.ppf(0.975))
    assert width == pytest.approx(np.std(drawn), rel=0.15)


@each(("own", "others", "mark"), [(0.8, 0.0, SENDERS), (0.0, 0.8, RECEIVERS), (0.45, 0.45, BOTH)])
def test_mistakes_are_those_of_the_network_that_they_were_copied_from(own: float, others: float, mark: str) -> None:
    assert agreement(planted(5000, own, others)).mark == mark


def test_hard_samples_in_common_are_nobodys_mistakes() -> None:
    """Three networks that share nothing but what is hard: hardly one in two hundred is called anybody's."""
    marks = [agreement(planted(3000, 0.0, 0.0, seed)).mark for seed in range(200)]
    assert sum(mark in (SENDERS, RECEIVERS, BOTH) for mark in marks) <= 1
    random = np.random.default_rng(0)
    a = random.random(5000) > 0.3
    assert agreement(outcomes(~a, a, np.where(random.random(5000) < 0.7, a, ~a))).mark == NEITHER


def test_a_little_more_agreement_than_the_baseline_is_nobodys() -> None:
    """Networks that no stitch has joined agree a little more or less with one than with another."""
    found = agreement(planted(60_000, 0.04, 0.0))
    assert 0 < found.senders[1] < found.senders[2] < SHARED
    assert found.mark == NEITHER


def test_of_few_mistakes_nothing_is_said() -> None:
    assert agreement(planted(200, 0.8, 0.0)) is None
    assert agreement(Outcomes("loss", "s", planted(5000, 0.8, 0.0).by_role)) is None


# --- what is counted


def answers(levels: list[float], mark: str = YES) -> Answers:
    nothing = np.zeros(len(levels))
    return Answers(3, (mark,) * len(levels), Estimates(*[nothing] * 3), np.array(levels), nothing > 0)


def test_counts_are_corrected_by_holm() -> None:
    (held,) = settle([answers([0.04, 0.01, 0.02])], [np.ones(3, bool)])
    assert held.tolist() == [True, True, True]
    (held,) = settle([answers([0.04, 0.03, 0.02])], [np.ones(3, bool)])
    assert held.tolist() == [False, False, False]
    (held,) = settle([answers([0.04, 0.03, 0.012])], [np.ones(3, bool)])
    assert held.tolist() == [False, False, True]
    one, other = settle([answers([0.02]), answers([0.04])], [np.ones(1, bool)] * 2)
    assert (one.tolist(), other.tolist()) == ([True], [True])
    one, other = settle([answers([0.03]), answers([0.04])], [np.ones(1, bool)] * 2)
    assert (one.tolist(), other.tolist()) == ([False], [False])
    one, other = settle([answers([0.03]), answers([0.04])], [np.ones(1, bool), np.zeros(1, bool)])
    assert (one.tolist(), other.tolist()) == ([True], [False])


def test_a_mark_of_few_seeds_counts_by_the_t_distribution() -> None:
    rows = [reading(0.95 - gap, controls={}).table.assign(seed=seed) for seed, gap in enumerate((0.0, 0.001, 0.002))]
    table = pd.concat(rows, ignore_index=True)
    table["trial"] = table["trial"] + table["seed"].astype(str)
    (found,) = make_reading(table).answered
    (pair,) = make_reading(table).pairs
    assert pair.plain["interval"].iloc[0].startswith("t over stitch seeds")
    low, high = pair.penalties().low[0], pair.penalties().high[0]
    assert (found["works"].surely[0] < 0.05) == (high < 3)
    assert found["works"].surely[0] > 2 * norm.sf(
        (3 - pair.penalties().value[0]) / ((high - low) / 2 / norm.ppf(0.975))
    )


# --- in words


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            reading(0.945, 0.94, 0.945),
            [
                "A works in B at all 3 cuts, at most 2.0 points worse than B.",
                "At all 3 cuts it needs the training of both.",
            ],
        ),
        (
            reading(0.945, 0.945, 0.80, controls=LOW | {"untrained receiver": (0.1, 0.95, 0.1)}),
            [
                "A works in B at stem and middle, at most 1.5 points worse than B; at head it does not.",
                "At the first of these cuts it needs the training of both; "
                "at the last of these cuts it does as well with B untrained.",
            ],
        ),
        (
            reading(0.945, controls={}),
            [
                "A works in B at stem, at most 1.5 points worse than B.",
                "Whether it needs trained networks was not measured: that takes the controls with untrained networks.",
            ],
        ),
        (reading(0.80, 0.70), ["A does not work in B at any of 2 cuts: it is at least 14.0 points worse."]),
        (reading(0.80), ["A does not work in B at stem: it is at least 14.0 points worse."]),
        (reading(0.92), ["A is not shown to work in B at stem: this is undecided."]),
        (
            reading(0.92, 0.70),
            ["A is not shown to work in B at any of 2 cuts; at middle it does not; at stem this is undecided."],
        ),
        (
            reading(0.945, controls=LOW | {"untrained sender": 0.92}),
            [
                "A works in B at stem, at most 1.5 points worse than B.",
                "There it needs the training of B (of A: undecided).",
            ],
        ),
        (
            reading(0.945, controls={"untrained sender": 0.92, "untrained receiver": 0.92}),
            [
                "A works in B at stem, at most 1.5 points worse than B.",
                "Whether it needs the training of either network is undecided.",
            ],
        ),
        (
            reading(0.945, 0.945, 0.945, controls=LOW | {"untrained sender": (0.92, 0.1, 0.92)}),
            [
                "A works in B at all 3 cuts, at most 1.5 points worse than B.",
                "At cut middle it needs the training of both; at 2 cuts it is undecided whether it needs A's training.",
            ],
        ),
        (
            reading(0.945, 0.945, controls={"untrained sender": (0.1, 0.945)}),
            [
                "A works in B at both cuts, at most 1.5 points worse than B.",
                "At the first cut it needs the training of A; at the last cut it does as well with A untrained.",
            ],
        ),
        (
            reading(0.96, controls=LOW | {"untrained sender": 0.96, "untrained receiver": 0.96}, half=0.005),
            [
                "A works in B at stem, not worse than B there.",
                "There it does as well with either network untrained.",
            ],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_headlines(found: Reading, said: list[str]) -> None:
    assert headlines(found) == said


def test_several_pairs_are_counted_together() -> None:
    table = reading(0.945, 0.80, 0.92).table
    both = pd.concat([table, table.assign(receiver="C", trial=table["trial"] + "C")], ignore_index=True)
    first, second = headlines(make_reading(both))
    assert first.startswith("One network works in another at 2 of 6 cuts, at most 1.5 points worse than the receiver; ")
    assert second == "At both cuts it needs the training of both."


def test_a_score_without_a_margin_is_not_judged() -> None:
    table = reading(0.945).table.assign(score="loss", unit="nats")
    found = make_reading(table)
    assert not found.is_judged
    assert say_curve(found)[-1] == "Nothing is judged without a margin in nats: give one."
    without = reading(0.945).table.assign(score="R²", unit="raw")
    assert say_curve(make_reading(without))[-1] == "Nothing is judged without a margin in R²: give one."
    judged = make_reading(reading(0.80).table.assign(score="R²", unit="raw"), margin=0.1)
    assert "in R² worse" in headlines(judged)[0]
    assert headlines(make_reading(table, margin=30))


values = st.floats(0.02, 0.98)
tables = given(
    st.lists(st.tuples(values, values, values, values), min_size=1, max_size=3),
    st.sampled_from([0.002, 0.01, 0.05]),
    st.booleans(),
)


@settings(max_examples=examples(20), deadline=None)
@tables
def test_marks_sentences_and_counts_agree(columns: list[tuple[float, ...]], half: float, converged: bool) -> None:
    check_words(columns, half, converged)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@tables
def test_marks_sentences_and_counts_agree_at_length(columns: list[Any], half: float, converged: bool) -> None:
    check_words(columns, half, converged)


def check_words(columns: list[tuple[float, ...]], half: float, converged: bool) -> None:
    """Whatever the table: what the words count is what the marks show, but for what falls when all are counted."""
    plain, *controls = zip(*columns, strict=True)
    found = reading(*plain, controls=dict(zip(LOW, controls, strict=True)), half=half, converged=converged)
    n, names = len(plain), np.array(CUTS[: len(plain)])
    works = found.count("works", YES)
    assert (works <= found.are("works", YES)).all()
    assert (found.count("works", NO) <= found.are("works", NO)).all()
    first = headlines(found)[0]
    if works.all():
        assert f"at all {n} cuts" in first or n <= 2
    elif works.any():
        assert " works in " in first
        assert all(name in first for name in names[works])
    else:
        assert " works in " not in first
    said = dict(say_answers(found))
    assert ("Yes" in said["Does A → B work?"]) == works.any()
    roles: tuple[tuple[Question, str], ...] = (("sender", "A"), ("receiver", "B"))
    for question, name in roles:
        text = said.get(f"Does it need a trained {name}?", "")
        for mark, word in ((YES, "Yes"), (NO, "No,"), (NO, "Not")):
            counted = found.count(question, mark) & works
            assert (counted <= found.are(question, mark)).all()
            if word in text:
                assert counted.any(), text
        assert ("Yes" in text) == (found.count(question, YES) & works).any()

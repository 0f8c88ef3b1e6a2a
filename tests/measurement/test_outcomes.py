"""Outcomes of samples: what they say is what the networks gave, and comparing two of them is comparing pairs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tasks import CASES
from test_tasks import trial as task_trial

from loops import each
from models import trial_of
from reported import to_table
from suture import Measurement, explain, measure
from suture.fits import LeastSquares, Random
from suture.measurement.scores.intervals import paired_interval
from suture.measurement.scores.outcomes import CLASSES, Outcomes, compare, steps_from, unpack
from suture.measurement.scores.scores import Accuracy, CrossEntropy
from suture.measurement.tables.curve import arrange_pairs
from suture.measurement.tables.table import for_text, read, save, summary
from suture.measurement.trials import controls
from trained import few_digits, hybrids


@cache
def measured() -> tuple[Measurement, ...]:
    """A seam and a control of it, of which neither is perfect."""
    (a, b), data = hybrids(), few_digits()
    roles = {"fit_data": data.fit, "validation_data": data.validation, "score_data": data.score}
    plain = trial_of(sender=a, receiver=b, sender_cut="relu", receiver_cut="relu", fit=LeastSquares(), **roles)
    return measure(plain), measure(controls.untrained_sender(plain))


def test_a_step_from_the_label_is_the_class_that_was_predicted():
    plain, _ = measured()
    data, outcomes = plain.trial.score_data, plain.outcomes
    networks = {"stitched": plain.stitched, "sender": plain.trial.sender, "receiver": plain.trial.receiver}
    for role, network in networks.items():
        with torch.no_grad():
            predicted = network(data.images).argmax(1)
        found = (torch.from_numpy(outcomes.by_role[role].astype(int)) + data.labels) % 10
        assert torch.equal(found, predicted), role


def test_the_mean_of_the_values_is_the_score():
    for one in measured():
        for role, card in {"stitched": one.scores, "sender": one.sender, "receiver": one.receiver}.items():
            assert one.outcomes.values(role).mean() == pytest.approx(card.accuracy.value, abs=1e-12), role
    assert one.outcomes.describes("accuracy")
    assert not one.outcomes.describes("loss")


@each("name", CASES)
def test_a_task_without_one_class_a_sample_keeps_the_values_of_its_first_score(name):
    one = measure(task_trial(name, fit=Random()))
    first = one.trial.scores[0].name
    assert one.outcomes.describes(first)
    assert one.outcomes.values().mean() == pytest.approx(one.scores[first].value, rel=1e-5, abs=1e-6)
    assert one.outcomes.values("receiver").mean() == pytest.approx(one.receiver[first].value, rel=1e-5, abs=1e-6)


@given(
    st.integers(2, 70_000).flatmap(
        lambda classes: st.lists(st.tuples(*[st.integers(0, classes - 1)] * 3), min_size=1, max_size=40).map(
            lambda rows: (classes, rows)
        )
    )
)
def test_what_is_packed_is_unpacked(drawn):
    classes, rows = drawn
    labels, stitched, receiver = torch.tensor(rows).T
    outputs = {"stitched": stitched, "receiver": receiver}
    held = {role: steps_from(labels, torch.zeros(len(labels), classes).scatter(1, found[:, None], 1.0))
            for role, found in outputs.items()}  # fmt: skip
    again = unpack(Outcomes(CLASSES, "digits", held).pack())
    assert (again.of, again.samples, list(again.by_role)) == (CLASSES, "digits", ["stitched", "receiver"])
    for role, found in outputs.items():
        assert np.array_equal((again.by_role[role].astype(int) + labels.numpy()) % classes, found.numpy())


def test_ten_thousand_samples_take_few_kilobytes():
    random = np.random.default_rng(0)
    wrong = {role: random.random(10_000) < 0.1 for role in ("stitched", "sender", "receiver")}
    held = {role: (part * random.integers(1, 10, 10_000)).astype(np.uint8) for role, part in wrong.items()}
    assert len(Outcomes(CLASSES, "d", held).pack()) < 10_000


def test_a_difference_is_that_of_pairs():
    plain, control = measured()
    with torch.no_grad():
        labels, images = plain.trial.score_data.labels, plain.trial.score_data.images
        right = [(one.stitched(images).argmax(1) == labels).double().numpy() for one in (plain, control)]
    low, high, _ = paired_interval(*right, seed=0)
    assert compare(plain.outcomes, control.outcomes) == pytest.approx((np.mean(right[0] - right[1]), low, high))


def test_other_samples_and_other_scores_are_not_compared():
    one = Outcomes(CLASSES, "d", {"stitched": np.zeros(3, np.uint8)})
    assert compare(one, one) == (0.0, *compare(one, one)[1:])
    for other in (replace(one, samples="e"), replace(one, of="loss")):
        assert compare(one, other) is None


def test_a_table_compares_a_control_in_pairs_and_a_mean_over_seeds_without(tmp_path):
    plain, control = measured()
    table = read(save(to_table([plain, control]), tmp_path / "t.parquet"))
    (pair,) = arrange_pairs(table, "accuracy")
    ahead, value = pair.ahead_of("untrained sender"), compare(plain.outcomes, control.outcomes)
    assert [float(part[0]) for part in (ahead.value, ahead.low, ahead.high)] == pytest.approx([100 * x for x in value])
    apart = pair.scores().less(pair.scores("untrained sender"))
    assert ahead.high - ahead.low < apart.high - apart.low
    (without,) = arrange_pairs(table.assign(outcomes=""), "accuracy")
    assert without.ahead_of("untrained sender").low == pytest.approx(apart.low)
    (loss,) = arrange_pairs(table, "loss")
    assert loss.ahead_of("untrained sender").low == pytest.approx(
        loss.scores().less(loss.scores("untrained sender")).low
    )
    seeds = pd.concat([table, table.assign(seed=1, trial=table["trial"] + "1")])
    assert set(summary(seeds)["outcomes"]) == {""}
    assert explain(table)


def test_text_has_no_packed_outcomes():
    table = to_table(measured())
    assert table["outcomes"].str.len().min() > 0
    assert "outcomes" not in for_text(table)


def test_classes_are_kept_whatever_is_scored():
    plain, _ = measured()
    again = measure(replace(plain.trial, scores=(CrossEntropy(), Accuracy((1, 2)))))
    assert again.outcomes.pack() == plain.outcomes.pack()

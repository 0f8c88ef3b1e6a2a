"""The table: the columns that were promised, what is in them, how they are summarised and kept."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from scipy import stats
from torch import nn

from loops import each
from models import trial_of
from reported import to_table
from suture import Measurement, Trial, measure, summary
from suture.common.errors import DataError, OutputError
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv
from suture.fits import Fit, LeastSquares, TaskLoss
from suture.measurement.scores.scores import Accuracy, CrossEntropy, Score
from suture.measurement.tables.averages import average_over_networks
from suture.measurement.tables.table import load, save
from suture.measurement.trials import controls
from suture.measurement.trials.trial import Failure
from suture.runs.runners.run import attempt
from trained import Hybrid, few_digits, hybrids, wrap

PROMISED = [
    "trial",
    "study",
    "status",
    "sender",
    "receiver",
    "sender_cut",
    "receiver_cut",
    "sender_depth",
    "receiver_depth",
    "stitch",
    "fit",
    "control",
    "network_seed",
    "seed",
    "fit_data",
    "score_data",
    "score",
    "unit",
    "stitched",
    "stitched_low",
    "stitched_high",
    "sender_score",
    "receiver_score",
    "chance",
    "penalty",
    "penalty_low",
    "penalty_high",
    "representation_error",
    "apart_mahalanobis",
    "apart_mahalanobis_low",
    "apart_mahalanobis_high",
    "apart_knn",
    "apart_knn_low",
    "apart_knn_high",
    "n",
    "steps",
    "start",
    "converged",
    "gained",
    "gained_error",
    "task",
    "plan",
    "versions",
    "outcomes",
    "device",
    "seconds",
    "error",
    "warning",
]
NUMBERS = [
    "sender_depth",
    "receiver_depth",
    "stitched",
    "stitched_low",
    "stitched_high",
    "sender_score",
    "receiver_score",
    "chance",
    "penalty",
    "penalty_low",
    "penalty_high",
    "representation_error",
    *(name for name in PROMISED if name.startswith("apart_")),
    "gained",
    "gained_error",
    "seconds",
]
COUNTS = ["network_seed", "seed", "n", "steps"]
WORDS = [name for name in PROMISED if name not in (*NUMBERS, *COUNTS, "converged")]


@dataclass(frozen=True)
class Threes(Score):
    """A trait that is neither good nor bad."""

    name: ClassVar[str] = "threes"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool | None] = None

    def per_sample(self, logits, labels):
        return (logits.argmax(1) == 3).double()


@dataclass(frozen=True)
class Breaks(Fit):
    def fit(self, problem, stitch):
        raise RuntimeError("it broke")


def trial(**settings) -> Trial:
    a, b = hybrids()
    data = few_digits()
    roles = {"fit_data": data.fit, "validation_data": data.validation, "score_data": data.score}
    settings = {"fit": TaskLoss(steps=4, check=2), "scores": (Accuracy(), CrossEntropy(), Threes())} | settings
    return trial_of(**{"sender": a, "receiver": b, "sender_cut": "drop", "receiver_cut": "relu", **roles, **settings})


@cache
def measurement() -> Measurement:
    return measure(trial(study="a study", network_seed=4, seed=2))


@cache
def headless() -> Measurement:
    torch.manual_seed(0)
    model = Hybrid()
    model.head = nn.Linear(24, 3)
    return measure(trial(sender=wrap(model, "three"), fit=LeastSquares()))


@cache
def noisy(seed: int) -> Measurement:
    return measure(controls.clustered_noise(trial(seed=seed, fit=LeastSquares())))


@cache
def failure() -> Failure:
    failed = attempt(trial(fit=Breaks()), Activations())
    assert isinstance(failed, Failure)
    return failed


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_columns_are_those_that_were_promised():
    assert list(to_table([measurement()]).columns) == PROMISED
    assert list(to_table([]).columns) == PROMISED
    assert list(to_table([failure()]).columns) == PROMISED


@each("results", [[], ["ok"], ["failed"], ["ok", "failed"]], ids=str)
def test_a_column_has_the_same_type_whatever_is_in_it(results):
    table = to_table([measurement() if result == "ok" else failure() for result in results])
    for name in NUMBERS:
        assert table[name].dtype == np.float64, name
    for name in COUNTS:
        assert table[name].dtype == pd.Int64Dtype(), name
    for name in WORDS:
        assert pd.api.types.is_string_dtype(table[name]), name
        assert all(isinstance(word, str) for word in table[name]), name
    assert table["converged"].dtype == pd.BooleanDtype()


def test_a_row_says_what_was_measured():
    m = measurement()
    table = to_table([m])
    assert list(table["score"]) == ["accuracy", "loss", "threes"]
    assert list(table["unit"]) == ["fraction", "nats", "fraction"]
    assert (table["trial"] == m.trial.key).all()
    row = table.iloc[0]
    wanted = {
        "study": "a study",
        "status": "ok",
        "sender": "A",
        "receiver": "B",
        "sender_cut": "drop",
        "receiver_cut": "relu",
        "sender_depth": 4 / 15,
        "receiver_depth": 3 / 15,
        "stitch": str(Conv()),
        "fit": "TaskLoss(steps=4, check=2)",
        "control": "",
        "network_seed": 4,
        "seed": 2,
        "fit_data": "digits/fit[:300]",
        "score_data": "digits/score[:260]",
        "stitched": m.scores.accuracy.value,
        "stitched_low": m.scores.accuracy.low,
        "stitched_high": m.scores.accuracy.high,
        "sender_score": m.sender.accuracy.value,
        "receiver_score": m.receiver.accuracy.value,
        "penalty": m.penalty.value,
        "penalty_low": m.penalty.low,
        "penalty_high": m.penalty.high,
        "representation_error": m.representation_error,
        "n": 260,
        "steps": m.steps,
        "seconds": m.seconds,
        "error": "",
    }
    assert {name: row[name] for name in wanted} == wanted
    assert bool(row["converged"]) == m.converged


def test_penalties_are_in_percentage_points_or_the_unit_and_positive_is_worse():
    accuracy, loss, threes = (row for _, row in to_table([measurement()]).iterrows())
    assert accuracy["penalty"] == pytest.approx(100 * (accuracy["receiver_score"] - accuracy["stitched"]))
    assert loss["penalty"] == pytest.approx(loss["stitched"] - loss["receiver_score"])
    assert accuracy["stitched"] < accuracy["receiver_score"]
    assert accuracy["penalty"] > 0
    assert loss["penalty"] > 0
    for row in (accuracy, loss):
        assert row["penalty_low"] <= row["penalty"] <= row["penalty_high"]
        assert row["stitched_low"] <= row["stitched"] <= row["stitched_high"]
    assert threes[["penalty", "penalty_low", "penalty_high"]].isna().all()
    assert 0 <= threes["stitched"] <= 1


def test_a_sender_with_another_head_has_an_empty_score():
    table = to_table([headless()])
    assert table["sender_score"].isna().all()
    assert table["receiver_score"].notna().all()
    assert (table["status"] == "ok").all()


def test_a_noise_sender_is_empty_and_so_is_all_that_is_a_senders(tmp_path):
    table = to_table([noisy(0)])
    assert len(table) == 3
    assert set(table["sender"]) == set(table["sender_cut"]) == {""}
    assert table[["sender_depth", "sender_score"]].isna().all(axis=None)
    assert set(table["receiver_cut"]) == {"relu"}
    assert set(table["receiver_depth"]) == {3 / 15}
    assert set(table["control"]) == {"clustered noise"}
    assert set(table["stitch"]) == {str(Conv())}
    assert table[["stitched", "receiver_score", "representation_error", "n"]].notna().all(axis=None)
    assert (table["status"] == "ok").all()
    assert table.dtypes.equals(to_table([measurement()]).dtypes)
    assert_frame_equal(load(save(table, tmp_path / "noise.parquet")), table)
    failed = attempt(controls.clustered_noise(trial(fit=Breaks())), Activations())
    assert to_table([failed])[["sender", "sender_cut"]].eq("").all(axis=None)


def test_a_failed_trial_has_its_rows_and_its_reason():
    table = to_table([measurement(), failure()])
    assert len(table) == 6
    failed = table[table["status"] == "failed"]
    assert list(failed["score"]) == ["accuracy", "loss", "threes"]
    assert set(failed["error"]) == {"RuntimeError: it broke"}
    assert set(failed["trial"]) == {failure().trial.key}
    assert set(failed["fit"]) == {"Breaks()"}
    assert (failed["seconds"] >= 0).all()
    empty = ["stitched", "penalty", "sender_score", "receiver_score", "representation_error", "n", "steps", "converged"]
    assert failed[empty].isna().all(axis=None)
    assert "it broke" in failure().traceback
    assert "test_table.py" in failure().traceback


# --- summary ----------------------------------------------------------------------------------------------------------


def table_of(seeds: list[tuple[int | None, int]], **columns) -> pd.DataFrame:
    """A table with a row for each (network seed, stitch seed) and score, made up."""
    random = np.random.default_rng(0)
    base = to_table([measurement()]).iloc[:2]
    rows = []
    for network_seed, seed in seeds:
        row = base.assign(network_seed=network_seed, seed=seed, trial=f"{network_seed}.{seed}", **columns)
        for name in ("stitched", "penalty", "sender_score", "receiver_score", "representation_error", "seconds"):
            row[name] = random.uniform(0.49, 0.51, size=2)
        row["steps"] = random.integers(1, 100, size=2)
        rows.append(row)
    return pd.concat(rows, ignore_index=True).astype({"network_seed": "Int64", "seed": "Int64", "steps": "Int64"})


def t_interval(values) -> tuple[float, float]:
    return stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))


def test_a_summary_has_the_same_columns_and_two_more():
    for table in (table_of([(None, 0), (None, 1)]), to_table([measurement()]), to_table([])):
        assert list(summary(table).columns) == [*PROMISED, "seeds", "interval"]


def test_stitch_seeds_are_the_units_where_there_is_one_network():
    table = table_of([(3, seed) for seed in range(5)])
    for row, (_, group) in zip(summary(table).to_dict("records"), table.groupby("score", sort=False), strict=True):
        for name in ("stitched", "penalty"):
            assert row[name] == pytest.approx(group[name].mean())
            mean, (low, high) = group[name].mean(), t_interval(group[name])
            own_low, own_high = group[f"{name}_low"].mean(), group[f"{name}_high"].mean()
            wide = mean - np.hypot(mean - low, mean - own_low), mean + np.hypot(high - mean, own_high - mean)
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(wide)
        for name in ("sender_score", "receiver_score", "representation_error", "steps", "seconds"):
            assert row[name] == pytest.approx(group[name].mean())
        assert row["interval"] == "t over stitch seeds and test samples"
        assert row["seeds"] == 5
        assert row["network_seed"] == 3
        assert pd.isna(row["seed"])
        assert row["trial"] == ""


def test_stitches_that_nearly_agree_are_as_uncertain_as_their_test_samples():
    """More seeds of one stitch say nothing about other test images, which all of them were scored on."""
    table = table_of([(3, seed) for seed in range(5)])
    table["stitched"] = 0.9 + 1e-6 * table["seed"].astype(float)
    table["stitched_low"], table["stitched_high"] = table["stitched"] - 0.02, table["stitched"] + 0.01
    row = summary(table).iloc[0]
    assert (row["stitched_low"], row["stitched_high"]) == pytest.approx((0.88, 0.91), abs=1e-5)
    without = summary(table.assign(stitched_low=None, stitched_high=None).astype({"stitched_low": float})).iloc[0]
    assert 0 < without["stitched_high"] - without["stitched_low"] < 1e-5


@pytest.mark.slow
def test_an_interval_over_stitch_seeds_covers_a_planted_penalty_on_other_test_images():
    """600 images, of which the stitch loses 4 %; its seeds differ in two. A t interval alone covers too rarely."""
    random, n, sets = np.random.default_rng(0), 600, 60
    blank = table_of([(3, seed) for seed in range(3)])
    blank = blank[blank["score"] == blank["score"].iloc[0]].reset_index(drop=True)
    covered, alone = 0, 0
    for _ in range(sets):
        lost = (random.random(n) < 0.06).astype(float) - (random.random(n) < 0.02)
        means, halves = [], []
        for _ in range(3):
            one = lost.copy()
            one[random.integers(n, size=2)] = 0
            means.append(100 * one.mean())
            halves.append(100 * 1.96 * one.std() / np.sqrt(n))
        means, halves = np.array(means), np.array(halves)
        table = blank.assign(penalty=means, penalty_low=means - halves, penalty_high=means + halves)
        row = summary(table.assign(stitched=0.9 - means / 100)).iloc[0]
        covered += row["penalty_low"] <= 4 <= row["penalty_high"]
        low, high = t_interval(means) if means.std() else (means[0], means[0])
        alone += low <= 4 <= high
    assert covered >= 0.9 * sets
    assert alone <= 0.7 * sets


def test_network_seeds_are_the_units_where_there_are_several_and_stitch_seeds_are_averaged_first():
    table = table_of([(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)])
    for row, (_, group) in zip(summary(table).to_dict("records"), table.groupby("score", sort=False), strict=True):
        for name in ("stitched", "penalty"):
            by_network = [group[group["network_seed"] == network][name].mean() for network in (0, 1, 2)]
            assert row[name] == pytest.approx(np.mean(by_network))
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(t_interval(by_network))
        assert row["interval"] == "t over network seeds"
        assert row["seeds"] == 3
        assert pd.isna(row["network_seed"])


def test_pairs_of_a_study_that_share_networks_are_not_independent():
    numbers = [1000 * a + b for a in range(10, 15) for b in range(10, 15) if a != b]
    table = table_of([(number, 0) for number in numbers], study="a study")
    for row, (_, group) in zip(summary(table).to_dict("records"), table.groupby("score", sort=False), strict=True):
        found = average_over_networks(group["penalty"], [n // 1000 for n in numbers], [n % 1000 for n in numbers])
        ends = found.value - found.reach(0.95), found.value + found.reach(0.95)
        assert (row["seeds"], row["penalty_low"], row["penalty_high"]) == (5, *map(pytest.approx, ends))
    users = summary(table.assign(study=""))
    assert set(users["seeds"]) == {20}, "numbers that a user chose mean nothing"


def test_pairs_in_a_circle_are_as_many_as_their_networks_and_not_independent():
    numbers = [1000 * a + 10 + (a - 9) % 5 for a in range(10, 15)]
    table = table_of([(number, 0) for number in numbers], study="a study")
    for row, (_, group) in zip(summary(table).to_dict("records"), table.groupby("score", sort=False), strict=True):
        found = average_over_networks(group["penalty"], [n // 1000 for n in numbers], [n % 1000 for n in numbers])
        ends = found.value - found.reach(0.95), found.value + found.reach(0.95)
        assert (row["seeds"], row["penalty_low"], row["penalty_high"]) == (5, *map(pytest.approx, ends))
        assert ends != pytest.approx(t_interval(group["penalty"]))


def test_one_seed_keeps_its_interval_over_test_samples():
    table = to_table([measurement()])
    found = summary(table)
    assert set(found["interval"]) == {"test samples"}
    assert set(found["seeds"]) == {1}
    same = [name for name in PROMISED if name not in ("trial", "steps")]
    assert_frame_equal(found[same], table[same], check_dtype=False)


def test_stitch_seeds_that_all_gave_the_same_keep_the_interval_over_test_samples():
    once = to_table([measurement()])
    found = summary(pd.concat([once.assign(seed=seed) for seed in range(3)], ignore_index=True))
    assert set(found["interval"]) == {"test samples"}
    assert set(found["seeds"]) == {3}
    assert list(found["stitched_low"]) == list(once["stitched_low"])
    assert list(found["penalty_high"].dropna()) == list(once["penalty_high"].dropna())


def test_rows_of_one_seed_have_their_mean_and_the_mean_of_their_intervals():
    table = pd.concat([table_of([(None, 0)]), table_of([(None, 0)])])
    table["stitched"] = [0.25, 1.0, 0.75, 3.0]
    for end, shift in (("low", -0.125), ("high", 0.25)):
        table[f"stitched_{end}"] = table["stitched"] + shift * np.array([1, 1, 3, 3])
    found = summary(table.reset_index(drop=True))
    assert list(found["stitched"]) == [0.5, 2.0]
    assert list(found["stitched_low"]) == [0.25, 1.75]
    assert list(found["stitched_high"]) == [1.0, 2.5]
    assert set(found["seeds"]) == {1}


def test_trials_that_differ_in_nothing_but_their_key_are_refused():
    """As those of two pairs of networks that have the same names."""
    table = table_of([(None, 0)])
    with pytest.raises(DataError, match=r"two trials of .* → .* at .* that differ in nothing but their key"):
        summary(pd.concat([table, table.assign(trial="another")], ignore_index=True))
    summary(pd.concat([table, table.assign(trial="another", network_seed=7)], ignore_index=True))


def test_networks_that_agree_are_no_certainty():
    once = to_table([measurement()])
    found = summary(pd.concat([once.assign(network_seed=seed) for seed in range(5)], ignore_index=True))
    assert set(found["interval"]) == {"test samples"}
    assert set(found["seeds"]) == {5}
    for name in ("stitched_low", "stitched_high", "penalty_low", "penalty_high"):
        assert list(found[name]) == pytest.approx(list(once[name]), nan_ok=True)


def test_where_scores_agree_and_penalties_do_not_each_has_the_interval_that_it_can():
    table = table_of([(0, 0), (1, 0), (2, 0)]).query("score == 'accuracy'").reset_index(drop=True)
    table["stitched"], table["stitched_low"], table["stitched_high"] = 0.5, [0.40, 0.43, 0.46], [0.60, 0.63, 0.66]
    (row,) = summary(table).to_dict("records")
    assert (row["stitched_low"], row["stitched_high"]) == pytest.approx((0.43, 0.63))
    assert (row["penalty_low"], row["penalty_high"]) == pytest.approx(t_interval(table["penalty"]))
    assert row["interval"] == "t over network seeds"


def test_whether_all_converged_is_what_a_summary_says():
    table = table_of([(None, 0), (None, 1)])
    for flags, wanted in (
        ([True, True], True),
        ([True, False], False),
        ([False, pd.NA], False),
        ([True, pd.NA], pd.NA),
    ):
        table["converged"] = pd.array(np.repeat(np.array(flags, dtype=object), 2), dtype="boolean")
        assert set(summary(table)["converged"]) == {wanted}


@each("column", ["sender_cut", "control", "sender", "stitch", "fit", "score_data", "study", "status"])
def test_only_seeds_are_summarised_over(column):
    table = pd.concat([table_of([(None, 0), (None, 1)]), table_of([(None, 0), (None, 1)], **{column: "another"})])
    found = summary(table)
    assert len(found) == 4
    assert set(found["seeds"]) == {2}
    assert "another" in set(found[column])


def test_where_a_score_is_undefined_so_is_its_summary():
    table = table_of([(None, 0), (None, 1)]).assign(sender_score=np.nan, penalty=np.nan)
    assert summary(table)[["sender_score", "penalty", "penalty_low", "penalty_high"]].isna().all(axis=None)


def test_intervals_of_fractions_end_at_0_and_1_and_those_of_other_scores_do_not():
    table = table_of([(0, 0), (1, 0)])
    for fraction, (low, high) in {True: (0.0, 1.0), False: t_interval([0.2, 0.9])}.items():
        rows = (table["unit"] == "fraction") == fraction
        assert rows.sum() == 2
        table.loc[rows, "stitched"] = [0.2, 0.9]
        found = summary(table[rows]).iloc[0]
        assert (found["stitched_low"], found["stitched_high"]) == pytest.approx((low, high))
    assert high > 1


def test_another_table_is_refused():
    with pytest.raises(DataError, match="no column 'trial', 'study'"):
        summary(pd.DataFrame({"score": [1]}))


def test_a_summary_is_not_summarised_again():
    with pytest.raises(DataError, match="a summary already; give the table as it was measured"):
        summary(summary(table_of([(0, 0), (1, 0)])))


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> Iterator[pd.DataFrame]:
    return to_table([measurement(), headless(), failure(), replace(measurement(), seconds=1.5)])


def test_a_table_survives_parquet(table, tmp_path):
    path = save(table, tmp_path / "deep" / "down" / "table.parquet")
    assert_frame_equal(load(path), table)
    assert_frame_equal(pd.read_parquet(path), table)
    assert os.listdir(path.parent) == ["table.parquet"]


def test_a_summary_survives_parquet(tmp_path):
    found = summary(table_of([(None, 0), (None, 1), (None, 2)]))
    assert (found["steps"] % 1 != 0).any()
    assert_frame_equal(load(save(found, tmp_path / "summary.parquet")), found)


def test_noise_rows_are_summarised_over_their_seeds_and_with_nobody_else():
    """Their missing depth must not lose them, nor mix them with a row of the same cut."""
    results = [measure(trial(seed=seed, fit=LeastSquares())) for seed in range(3)]
    results += [noisy(seed) for seed in range(3)]
    results += [measure(controls.clustered_noise(results[0].trial, scale=2))]
    table = to_table(results)
    found = summary(table)
    assert list(found["control"]) == ["", "", ""] + ["clustered noise"] * 3 + ["clustered noise, scale 2"] * 3
    assert list(found["seeds"]) == [3] * 6 + [1] * 3
    noise = found[found["control"] == "clustered noise"]
    wanted = table[table["control"] == "clustered noise"].groupby("score", sort=False)
    assert list(noise["stitched"]) == pytest.approx(list(wanted["stitched"].mean()))
    assert set(noise["interval"]) == {"t over stitch seeds and test samples"}
    assert set(noise["sender"]) == set(noise["sender_cut"]) == {""}
    assert noise[["sender_depth", "sender_score"]].isna().all(axis=None)


@each("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("arrow")])
def test_a_save_that_fails_half_way_leaves_the_old_table(table, tmp_path, monkeypatch, error):
    path = save(table, tmp_path / "table.parquet")

    def half(self, content):
        with open(self, "wb") as file:
            file.write(b"PAR1 and then")
        raise error

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OutputError if isinstance(error, OSError) else type(error)):
        save(table.iloc[:1], path)
    monkeypatch.undo()
    assert_frame_equal(load(path), table)
    assert os.listdir(tmp_path) == ["table.parquet"]


def test_who_may_read_the_folders_files_may_read_the_table(table, tmp_path):
    (tmp_path / "plain").touch()
    path = save(table, tmp_path / "table.parquet")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_place_that_cannot_be_written_to_is_named(table, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file/table\.parquet: .*name another folder"):
        save(table, tmp_path / "file" / "table.parquet")
    (tmp_path / "folder" / "table.parquet").mkdir(parents=True)
    with pytest.raises(OutputError, match="Is a directory"):
        save(table, tmp_path / "folder" / "table.parquet")
    assert sorted(os.listdir(tmp_path / "folder")) == ["table.parquet"]


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(DataError, match="no table at"):
        load(tmp_path / "none.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then")
    with pytest.raises(DataError, match=r"torn\.parquet is not a table"):
        load(tmp_path / "torn.parquet")
    pd.DataFrame({"score": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="no column 'trial'"):
        load(tmp_path / "other.parquet")

"""The local runner: every trial in its order, nothing measured is lost, progress is told."""

import io
import os
import re
from dataclasses import dataclass, replace

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

import suture
from suture import Measurement, Trial, controls, curve, measure, run
from suture.errors import FrozenError, OutputError
from suture.fits import Fit, FitReport, LeastSquares, TaskLoss
from suture.plans import Plan
from suture.runners.progress import Lines, Silent
from suture.table import load
from suture.trial import Failure
from trained import few_digits, hybrid, hybrids, wrap


@dataclass(frozen=True)
class Breaks(Fit):
    """Fails, with a message of two lines."""

    def fit(self, problem, stitch):
        raise RuntimeError(f"broken {problem.where}\nsecond line")


@dataclass(frozen=True)
class Cheats(Fit):
    def fit(self, problem, stitch):
        next(problem.suffix.parameters()).data.add_(1)
        return FitReport()


def plan(**settings) -> Plan:
    """Four trials."""
    settings = {"fit": LeastSquares(), "at": ("embed", "hidden"), "controls": (controls.itself,)} | settings
    return curve(*hybrids(), data=few_digits(), **settings)


def with_a_broken_one() -> list[Trial]:
    trials = list(plan())
    trials[1] = replace(trials[1], fit=Breaks())
    return trials


class Telling(Silent):
    """Writes down what it is told, and fails when it has heard enough."""

    def __init__(self, enough: int | None = None, error: BaseException | None = None) -> None:
        self.heard: list[tuple[str, object]] = []
        self.enough, self.error = enough, error

    def begin(self, total):
        self.heard.append(("begin", total))

    def working_on(self, what):
        self.heard.append(("working on", what))

    def done(self, result):
        self.heard.append(("done", result.trial.key))
        if sum(kind == "done" for kind, _ in self.heard) == self.enough:
            raise self.error

    def end(self):
        self.heard.append(("end", None))


def timeless(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="seconds")


# --- what is run ------------------------------------------------------------------------------------------------------


def test_a_plan_gives_a_row_for_each_trial_and_score_in_its_order():
    trials = plan()
    table = run(trials)
    assert list(table["trial"]) == [trial.key for trial in trials for _ in trial.scores]
    assert list(table["control"]) == ["", "", "itself", "itself"] * 2
    assert (table["status"] == "ok").all()


def test_the_runner_measures_what_a_trial_alone_would():
    trials = plan(fit=TaskLoss(steps=4, check=2))
    table = run(reversed(list(trials)))
    for trial in trials:
        alone = measure(trial)
        rows = table[table["trial"] == trial.key]
        assert list(rows["stitched"]) == [alone.scores.accuracy.value, alone.scores.loss.value]
        assert list(rows["penalty_low"]) == [alone.penalties[score.name].low for score in trial.scores]


def test_a_trial_that_fails_is_recorded_and_stops_nobody():
    table = run(with_a_broken_one())
    assert list(table["status"]) == ["ok", "ok", "failed", "failed", "ok", "ok", "ok", "ok"]
    assert set(table["error"][2:4]) == {"RuntimeError: broken B → B at embed (itself)\nsecond line"}
    assert_frame_equal(timeless(table[table["status"] == "ok"]), timeless(run(plan())).drop(index=[2, 3]))


def test_a_network_that_was_changed_spoils_every_trial_of_its_own_and_no_other():
    a, b = hybrids()
    spoilt = wrap(hybrid(1), "spoilt")
    roles = (few_digits().fit, few_digits().validation, few_digits().score)
    bad = Trial(a, spoilt, "embed", "embed", *roles, fit=Cheats())
    later = replace(bad, fit=LeastSquares())
    good = Trial(a, b, "embed", "embed", *roles, fit=LeastSquares())
    table = run([bad, later, good])
    assert list(table["status"]) == ["failed"] * 4 + ["ok"] * 2
    assert all(error.startswith(FrozenError.__name__) for error in table["error"][:4])


def test_no_trials_give_an_empty_table(tmp_path):
    assert list(run([]).columns) == list(run(plan(controls=(), at=("hidden",))).columns)
    assert len(run([], store=tmp_path)) == 0


def test_trials_may_come_one_by_one():
    assert len(run(trial for trial in plan())) == 8


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_table_is_in_the_store(tmp_path):
    table = run(with_a_broken_one(), store=tmp_path / "deep" / "run")
    assert os.listdir(tmp_path / "deep" / "run") == ["table.parquet"]
    assert_frame_equal(load(tmp_path / "deep" / "run" / "table.parquet"), table)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), RuntimeError("the progress broke")], ids=repr)
@pytest.mark.parametrize("enough", [1, 3])
def test_a_run_that_is_killed_loses_nothing_that_was_measured(tmp_path, enough, error):
    progress = Telling(enough, error)
    trials = with_a_broken_one()
    with pytest.raises(type(error)):
        run(trials, store=tmp_path, progress=progress)
    found = load(tmp_path / "table.parquet")
    assert list(found["trial"].drop_duplicates()) == [trial.key for trial in trials[:enough]]
    assert progress.heard[-1] == ("end", None), "a bar must not stay on the screen"
    assert_frame_equal(timeless(found), timeless(run(trials[:enough])))


def test_a_store_that_cannot_be_written_to_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(suture.runners.local, "measure", lambda *_: pytest.fail("nothing may be measured"))
    (tmp_path / "file").touch()
    progress = Telling()
    for place in ("file", "file/run"):
        with pytest.raises(OutputError, match=r"cannot write to .*file.*; name another folder"):
            run(plan(), store=tmp_path / place, progress=progress)
    assert progress.heard == []


def test_what_else_is_in_the_store_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".writable").write_text("mine too")
    run(plan(controls=(), at=("hidden",)), store=tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".writable", "notes.txt", "table.parquet"]
    assert (tmp_path / ".writable").read_text() == "mine too"


# --- what is told -----------------------------------------------------------------------------------------------------


def test_progress_is_told_in_order():
    progress = Telling()
    trials = with_a_broken_one()
    run(trials, progress=progress)
    each = [event for trial in trials for event in (("working on", trial.where), ("done", trial.key))]
    assert progress.heard == [("begin", 4), *each, ("end", None)]


def test_on_a_pipe_progress_is_plain_lines():
    stream = io.StringIO()
    run(with_a_broken_one(), progress=Lines(stream, every=0))
    first, *lines, last = stream.getvalue().splitlines()
    assert first == "4 trials"
    assert re.match(r"1/4 trials, \d+ s gone, about \d+ s left", lines[0])
    assert lines[1].startswith("failed: B → B at embed (itself): RuntimeError: broken")
    assert any(line.startswith("3/4 trials") for line in lines)
    assert last.startswith("4")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", stream.getvalue()), "no control characters"


def test_lines_are_few_but_failures_are_all_told():
    stream = io.StringIO()
    run(with_a_broken_one(), progress=Lines(stream, every=3600))
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if "/4" in line]) <= 1
    assert len([line for line in lines if line.startswith("failed")]) == 1


def test_attempts_say_what_went_wrong_where():
    results: list[Measurement | Failure] = []
    suture.runners.local.run_all(with_a_broken_one(), results.append)
    failed = results[1]
    assert isinstance(failed, Failure)
    assert failed.summary.startswith("itself  failed: RuntimeError: broken")
    assert "test_local.py" in failed.traceback
    assert isinstance(results[2], Measurement)
    assert torch.is_grad_enabled()

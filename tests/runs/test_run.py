"""A run: every trial in its place, nothing measured is lost or measured again, progress is told."""

import io
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from filelock import Timeout
from pandas.testing import assert_frame_equal
from safetensors import SafetensorError

from faulty import FAILED, Faulty
from loops import each
from suture import Seam, Trial, curve, measure, run
from suture.common.devices import CPU
from suture.common.errors import DataError, FitError, FrozenError, OutputError, StoreError
from suture.core.activations.cache import Activations
from suture.fits import Converged, Fit, FitReport, LeastSquares, TaskLoss, averaged, converged
from suture.measurement.scores.scores import Accuracy
from suture.measurement.tables.table import load
from suture.measurement.trials import controls
from suture.measurement.trials.plans import Plan
from suture.measurement.trials.trial import Failure
from suture.runs.forecast import estimate_memory, forecast
from suture.runs.progress import Lines, Silent
from suture.runs.runners import Interrupted, Local, tasks
from suture.runs.runners.run import attempt, preview, write_plan
from suture.runs.store.inspect import status, verify
from suture.runs.store.store import Store
from trained import convnets, few_digits, hybrid, hybrids, wrap


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

    def begin(self, total, done, noun="trial"):
        self.heard.append(("begin", (total, done)))

    def more(self, count, done):
        self.heard.append(("more", (count, done)))

    def working_on(self, what, share=None):
        self.heard.append(("working on", what))

    def done(self, what, error):
        self.heard.append(("done", what))
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


@pytest.mark.slow
def test_a_preview_is_kept_and_in_no_table(tmp_path):
    own, early, store = plan(), [*plan(fit=TaskLoss(steps=4, check=2)), replace(plan()[0], fit=Breaks())], tmp_path
    kept = Store.make(store)
    write_plan(own, kept, "suture curve", extend=False)
    shown = preview(early, store=kept, on=Local(workers=1))
    assert [*shown.drop_duplicates("trial")["status"]] == ["ok"] * 4 + ["failed"]
    assert kept.table().empty
    found = status(store)
    assert (found.planned, found.measured, found.failed, found.missing, found.errors) == (4, 0, 0, 4, {})
    assert verify(store) == ()
    table = run(own, store=store, on=Local(workers=1))
    assert_frame_equal(timeless(table), timeless(run(own)))
    assert_frame_equal(timeless(kept.table()), timeless(table))
    told = Telling()
    assert_frame_equal(preview(early, store=kept, progress=told), shown)
    assert told.heard == [("begin", (5, 5)), ("end", None)]


@pytest.mark.slow
def test_activations_go_when_no_trial_to_come_needs_them(tmp_path, monkeypatch):
    """What is computed, and how often, is as if all were kept: each cut once, from the one before it."""
    seams = curve(*convnets(), data=few_digits(), fit=LeastSquares(), controls=(controls.itself,))
    computed: dict[bool, list[str]] = {}
    most: dict[bool, int] = {}
    inside = Activations._compute
    for forgets in (False, True):
        computed[forgets], folder = [], tmp_path / str(forgets)

        def compute(self, need, device=CPU, said=computed[forgets]):
            said.append(f"{need.where} from {self._nearest(need.network, need)[0]}")
            return inside(self, need, device)

        class Weighs(Silent):
            def done(self, what, error, folder=folder / "activations", forgets=forgets):
                held = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
                most[forgets] = max(held, most.get(forgets, 0))

        monkeypatch.setattr(Activations, "_compute", compute)
        run(seams, store=folder, on=Local(workers=1), progress=Weighs(), until_converged=not forgets)
    assert computed[True] == computed[False]
    assert most[True] < most[False] / 2


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


def test_a_measurement_that_cannot_be_kept_has_failed(monkeypatch):
    def refuse(result):
        raise ValueError("no file can hold it")

    monkeypatch.setattr(tasks, "stitch_to_save", refuse)
    table = run(list(plan())[:1])
    assert set(table["status"]) == {"failed"}
    assert set(table["error"]) == {"ValueError: no file can hold it"}


def test_a_network_that_was_changed_spoils_every_trial_of_its_own_and_no_other():
    a, b = hybrids()
    spoilt = wrap(hybrid(1), "spoilt")
    roles = (few_digits().fit, few_digits().validation, few_digits().score)
    bad = Trial(Seam.at(a, spoilt, "embed"), *roles, fit=Cheats())
    later = replace(bad, fit=LeastSquares())
    good = Trial(Seam(a, b, "mix", "embed"), *roles, fit=LeastSquares())
    table = run([bad, later, good])
    assert list(table["status"]) == ["failed"] * 4 + ["ok"] * 2
    assert all(error.startswith(FrozenError.__name__) for error in table["error"][:4])
    alone = run([good])
    assert_frame_equal(timeless(table[4:]).reset_index(drop=True), timeless(alone))


def test_a_plan_without_trials_is_refused(tmp_path):
    for store in (None, tmp_path / "run"):
        with pytest.raises(DataError, match="this plan has no trials; check"):
            run([], store=store)


def test_trials_may_come_one_by_one():
    assert len(run(trial for trial in plan())) == 8


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_table_is_in_the_store(tmp_path):
    table = run(with_a_broken_one(), store=tmp_path / "deep" / "run")
    assert_frame_equal(load(tmp_path / "deep" / "run" / "table.parquet"), table)
    assert_frame_equal(Store(tmp_path / "deep" / "run").table(), table)


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
    monkeypatch.setattr(tasks, "attempt", lambda *_: pytest.fail("nothing may be measured"))
    (tmp_path / "file").touch()
    progress = Telling()
    for place in ("file", "file/run"):
        with pytest.raises(OutputError, match=r"cannot write to .*file.*, or name another folder"):
            run(plan(), store=tmp_path / place, progress=progress)
    assert progress.heard == []


def test_what_else_is_in_the_store_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".writable").write_text("mine too")
    run(plan(controls=(), at=("hidden",)), store=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / ".writable").read_text() == "mine too"


# --- what is told -----------------------------------------------------------------------------------------------------


def test_what_is_planned_twice_stands_once(tmp_path):
    trials = plan(controls=())
    table = run([*trials, *trials], store=tmp_path)
    assert len(table) == len(Store(tmp_path).table()) == len(run(trials))
    other = [replace(trial, study="another") for trial in trials]
    assert len(run([*trials, *other])) == 2 * len(table), "under another name it is another row"


def test_progress_is_told_in_order():
    progress = Telling()
    trials = with_a_broken_one()
    run(trials, progress=progress)
    each = [event for trial in trials for event in (("working on", trial.where), ("done", trial.where))]
    assert progress.heard == [("begin", (4, 0)), *each, ("end", None)]


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
    failed = attempt(with_a_broken_one()[1], Activations())
    assert isinstance(failed, Failure)
    assert failed.summary.startswith("itself  failed: RuntimeError: broken")
    assert "test_run.py" in failed.traceback
    assert torch.is_grad_enabled()


# --- going on ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted(Fit):
    """Leaves the stitch as it is, and notes in a file each time that it is asked to fit one."""

    path: str

    def fit(self, problem, stitch):
        with open(self.path, "a") as file:
            file.write(".")
        return FitReport()


def measured(path: Path) -> int:
    """How many trials were measured."""
    return len(path.read_text()) if path.exists() else 0


def noted_plan(path: Path, **settings) -> Plan:
    return plan(fit=Noted(str(path)), scores=(Accuracy(),), **settings)


def test_what_is_in_the_store_is_not_measured_again(tmp_path):
    trials = noted_plan(tmp_path / "notes")
    first = run(trials, store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 4
    progress = Telling()
    assert_frame_equal(run(trials, store=tmp_path / "run", progress=progress), first)
    assert progress.heard == [("begin", (4, 4)), ("end", None)]
    assert measured(tmp_path / "notes") == 4


def test_a_part_of_a_plan_and_a_wider_one_are_the_same_run(tmp_path):
    trials = noted_plan(tmp_path / "notes")
    part = run(trials[:2], store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 2
    whole = run(trials, store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 4
    assert_frame_equal(whole[:2], part)
    assert_frame_equal(run(trials[:2], store=tmp_path / "run"), part)
    assert_frame_equal(load(tmp_path / "run" / "table.parquet"), whole)
    wider = run(noted_plan(tmp_path / "notes", seeds=2), store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 8
    assert len(wider) == 8


@pytest.mark.parametrize("stops_after", [1, 3])
def test_an_interrupted_run_goes_on(tmp_path, stops_after):
    trials = noted_plan(tmp_path / "notes")
    said = rf"interrupted: {stops_after} of 4 trials are measured and kept in .*run; the same call continues from there"
    with pytest.raises(Interrupted, match=said):
        run(trials, store=tmp_path / "run", on=Faulty(stops_after=stops_after))
    assert measured(tmp_path / "notes") == stops_after
    found = run(trials, store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 4
    assert_frame_equal(timeless(found), timeless(run(trials)))


def test_an_interrupted_run_tells_what_failed_from_what_is_measured(tmp_path):
    with pytest.raises(Interrupted, match=r"0 of 4 trials are measured and kept in .*; 2 failed; the same call"):
        run(plan(), store=tmp_path / "run", on=Faulty(failing=1.0, stops_after=2))


def test_a_budget_is_for_what_is_still_to_be_measured(tmp_path):
    small = curve(*convnets(), data=few_digits(), at=["stage3.relu"], fit=LeastSquares(), controls=())
    descent = TaskLoss(steps=2, check=2, batch=256)
    large = curve(*convnets(), data=few_digits(), at=["stage1.relu"], fit=descent, controls=())
    ram = sum(estimate_memory(list(trials)).of(1) for trials in (small, large)) // 2
    run(large, store=tmp_path / "run")
    assert forecast([*large, *small], store=tmp_path / "run", ram=ram).left == 1
    assert len(run([*large, *small], store=tmp_path / "run", on=Local(workers=1, ram=ram), extend=True))


def test_an_interrupted_run_without_a_store_says_what_is_lost():
    with pytest.raises(Interrupted, match="2 of 4 trials were measured, and kept nowhere; give a store="):
        run(plan(), on=Faulty(stops_after=2))


def test_a_failure_stays_until_it_is_retried(tmp_path):
    trials = plan()
    for seed in range(20):  # what fails is drawn by the trials' keys
        some = run(trials, store=tmp_path / str(seed), on=Faulty(seed=seed, failing=0.5))
        failed = set(some[some["status"] == "failed"]["trial"])
        if 0 < len(failed) < 4:
            break
    assert 0 < len(failed) < 4
    tmp_path = tmp_path / str(seed)
    assert set(some[some["status"] == "failed"]["error"]) == {FAILED}
    assert_frame_equal(run(trials, store=tmp_path), some)
    assert_frame_equal(timeless(run(trials, store=tmp_path, retry=True)), timeless(run(trials)))
    assert Store(tmp_path).failures() == {}


OF_MACHINE = {
    "memory": MemoryError(),
    "torch's memory": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"),
    "a disk": OSError(5, "Input/output error"),
    "a lock": Timeout("x.lock"),
    "a damaged file": SafetensorError("Error while deserializing header"),
    "a file of the store": StoreError("it is damaged"),
    "a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
}
OF_TRIAL = {"the loss": FitError("the loss is not finite"), "code": ValueError("of the user's")}


@each(("error", "again"), [(e, True) for e in OF_MACHINE.values()] + [(e, False) for e in OF_TRIAL.values()])
def test_a_failure_that_may_be_of_the_machine_is_not_final(tmp_path_factory, monkeypatch, error, again):
    """Whatever it came of: it is recorded, and a later run tries again; one of the trial itself stays."""
    store, trials = tmp_path_factory.mktemp("of-machine") / "run", plan()[:1]

    def fails(*_, **__):
        try:
            raise error
        except Exception as cause:
            raise FitError("something went wrong") from cause

    with monkeypatch.context() as patch:
        patch.setattr("suture.measurement.trials.measure.make_problem", fails)
        assert run(trials, store=store, on=Local(workers=1))["status"].tolist()[0] == "failed"
    assert (run(trials, store=store)["status"] == "ok").all() == again
    assert bool(Store(store).failures()) == (not again)


def test_a_failure_is_kept_with_its_traceback(tmp_path):
    run(with_a_broken_one(), store=tmp_path)
    (failure,) = Store(tmp_path).failures().values()
    assert failure["error"].startswith("RuntimeError: broken")
    assert "test_run.py" in failure["traceback"]


def test_labels_are_the_plans_own_and_a_trial_is_measured_once(tmp_path):
    trial = noted_plan(tmp_path / "notes")[0]
    named = [replace(trial, study=study, network_seed=i) for i, study in enumerate(("one", "two"))]
    table = run(named, store=tmp_path / "run")
    assert measured(tmp_path / "notes") == 1
    assert list(table["study"]) == ["one", "two"]
    assert list(table["network_seed"]) == [0, 1]
    assert_frame_equal(Store(tmp_path / "run").table(), table)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"fit": TaskLoss(steps=2)}, r"fit was LeastSquares\(\) and is now TaskLoss\(steps=2\)"),
        ({"scores": (Accuracy(),)}, "scores was accuracy and loss and is now accuracy"),
        ({"at": ("mix",)}, "the trials are others"),
    ],
)
def test_another_run_in_the_same_folder_is_refused_before_any_work(tmp_path, monkeypatch, other, said):
    first = run(plan(), store=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "attempt", lambda *_: pytest.fail("nothing may be measured"))
        with pytest.raises(StoreError, match=rf"holds another run: {said}.*Name another folder; or.*extend=True"):
            run(plan(**other), store=tmp_path)
    assert_frame_equal(Store(tmp_path).table(), first)
    run(plan(**other), store=tmp_path, extend=True)
    assert len(Store(tmp_path).table()) > len(first)


# --- going on with what has not converged -----------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_fits_that_reached_their_cap_are_measured_again_with_a_larger_one(tmp_path, monkeypatch, stored):
    monkeypatch.setattr(averaged, "is_better", lambda *given: True)
    monkeypatch.setattr(converged, "DEEPEST", 560)
    deeper = Converged(cap=560, patience=3)
    short, long = (plan(fit=fit, at=("embed", "hidden"), controls=()) for fit in (Converged(cap=140), deeper))
    store = tmp_path / "ab" if stored else None
    shallow = run(short, store=store, on=Local(workers=1))
    deep = run(short, store=store, on=Local(workers=1), until_converged=True)
    at_once = run(long, on=Local(workers=1))
    assert not shallow["converged"].any()
    assert (deep["fit"] == "Converged(cap=140)").all()
    assert_frame_equal(timeless(deep.drop(columns="fit")), timeless(at_once.drop(columns="fit")))
    if store is not None:
        assert_frame_equal(timeless(run(short, store=store)), timeless(deep))
        assert_frame_equal(timeless(load(store / "table.parquet")), timeless(deep))
        assert_frame_equal(timeless(Store(store).table()), timeless(deep))
        assert len(Store(store).finished()) == 4


@pytest.mark.slow
def test_going_on_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(averaged, "is_better", lambda *given: True)
    monkeypatch.setattr(converged, "DEEPEST", 560)
    trials = plan(fit=Converged(cap=140), at=("embed", "hidden"), controls=())
    run(trials, store=tmp_path / "ab", on=Local(workers=1))
    with pytest.raises(Interrupted):
        run(trials, store=tmp_path / "ab", on=Faulty(stops_after=1), until_converged=True)
    assert len(Store(tmp_path / "ab").finished()) == 3
    deep = run(trials, store=tmp_path / "ab", on=Local(workers=1), until_converged=True)
    assert len(Store(tmp_path / "ab").finished()) == 4
    at_once = run(trials, on=Local(workers=1), until_converged=True)
    assert_frame_equal(timeless(deep), timeless(at_once))

"""Runs with a folder, as the user of the command line meets them: stopped, looked at, damaged, mended, gone on with."""
# ruff: noqa: F811

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from test_cli import MATRIX, NET, QUICK, B, Run, folder  # noqa: F401 - a fixture

import suture
from suture.cli.main import main, parser
from suture.cli.options import runner_of
from suture.common.errors import FitError
from suture.fits import LeastSquares
from suture.measurement.tables import table as tables
from suture.measurement.trials import measure as measuring
from suture.measurement.trials.controls import itself
from suture.measurement.trials.versions import DECLARED
from suture.reports.terminal.store import broken
from suture.runs.runners import Local, Ray
from suture.runs.store.inspect import status
from suture.runs.store.store import Locks, Store

SMALL = f"{QUICK},pool --fit-samples 300 --score-samples 200"
LINE = f"{SMALL} --controls itself,untrained-sender --out out"  # six trials
OUT = Path("out")


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder with the models, 80 columns wide; its exit code, output and messages."""
    for name in "ab":
        shutil.copy(folder / f"{name}.safetensors", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("suture.reports.figures.curve.save", lambda figure, path: [])  # they take longer than all else

    def command(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        said = capsys.readouterr()
        assert max(map(len, said.out.splitlines()), default=0) <= 80 or "--json" in line
        return code, said.out, said.err

    return command


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a curve that is measured."""
    made = tmp_path_factory.mktemp("done") / "out"
    networks = [
        suture.load_network(f"{NET}@{folder / name}.safetensors", example=digits().example, name=name) for name in "ab"
    ]
    settings = {"data": digits(), "fit": LeastSquares(), "controls": (itself,)}
    suture.run(suture.curve(*networks, at=("pool", "flatten"), **settings), store=made, on=Local(workers=1))
    return made


def digits() -> suture.Data:
    return suture.load_data("digits").limited(fit=300, score=200)


@pytest.fixture
def copy(run: Run, done: Path) -> Path:
    """The same under the name ``out``."""
    return Path(shutil.copytree(done, OUT))


LOOKING = """
import sys
from suture.cli.main import main
codes = [main([command, sys.argv[1]]) for command in ("status", "table")]
print(codes, {"torch", "matplotlib"} & {*sys.modules}, file=sys.stderr)
"""


def test_looking_at_a_run_does_not_wait_for_torch(copy: Path) -> None:
    looked = subprocess.run([sys.executable, "-c", LOOKING, copy], capture_output=True, text=True, check=True)
    assert looked.stderr.splitlines()[-1] == "[0, 0] set()"


def stopping(monkeypatch: pytest.MonkeyPatch, after: int, number: int = signal.SIGINT) -> None:
    """Have a signal come when so many trials have been measured."""
    measure, measured = measuring.measure, []

    def interrupted(trial: suture.Trial, *rest: Any) -> Any:
        if len(measured) == after:
            signal.raise_signal(number)
        measured.append(trial)
        return measure(trial, *rest)

    monkeypatch.setattr(measuring, "measure", interrupted)


def lines(text: str) -> list[str]:
    found = text.splitlines()
    assert not any(line.endswith(" ") for line in found)
    return found


# Stopped, and gone on with


@pytest.mark.kills
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_was_stopped_goes_on_where_it_was(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        stopping(patched, 4, number)
        assert run(LINE)[:2] == (code, "")
    assert signal.getsignal(signal.SIGTERM) == handler
    found = status(OUT)
    assert (found.measured, found.missing, found.command) == (4, 2, f"suture {LINE}")
    ended, _, err = run(LINE)
    assert ended == 0
    assert "6 trials, 4 measured before" in err.splitlines()
    assert run(LINE.replace("--out out", "--out other"))[0] == 0
    both = [tables.load(Path(name) / "table.parquet").drop(columns="seconds") for name in ("out", "other")]
    assert_frame_equal(*both)


@pytest.mark.kills
def test_what_is_said_of_a_command_that_was_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stopping(patched, 4)
        err = run(LINE)[2]
    kept = f"interrupted: 4 of 6 trials are measured and kept in {OUT}"
    assert err.splitlines()[-1] == f"suture: {kept}; continue with: suture {LINE}"
    stopping(monkeypatch, 2)
    code, _, err = run(LINE.replace("--out out", ""))
    assert code == 130
    said = "suture: interrupted: 2 of 6 trials were measured, and kept nowhere; give --out FOLDER"
    assert err.splitlines()[-1] == said


def test_an_interruption_before_anything_was_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("suture.data.load_data", load)
    assert run(LINE) == (130, "", "suture: interrupted\n")


@pytest.mark.slow
def test_what_failed_is_measured_again_when_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = measuring.measure

    def sometimes(trial: suture.Trial, *rest: Any) -> Any:
        if trial.control == "itself":
            raise FitError(f"no fit\nat {trial.sender_cut}")
        return measure(trial, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "measure", sometimes)
        assert run(LINE)[0] == 1
    assert run(LINE)[0] == 1
    code, text, _ = run("status out")
    assert code == 1
    assert lines(text)[0] == f"{OUT}: 4 of 6 trials measured, 2 failed"
    assert "failed: 1 × FitError: no fit at pool" in lines(text)
    assert pasted(text, "to measure the failed trials again:") == f"suture {LINE} --retry"
    code, _, err = run("table out")
    assert code == 1
    assert "suture: 2 of 6 trials failed: 1 × FitError" in err
    code, _, err = run(f"{LINE} --retry")
    assert code == 0
    assert "6 trials, 4 measured before" in err
    assert run("status out")[0] == 0


def pasted(text: str, after: str) -> str:
    """The command that a text shows, as a shell reads it."""
    shown = text.partition(f"{after}\n")[2]
    return shlex.join(shlex.split(shown.replace("\\\n", "")))


@pytest.mark.slow
def test_another_plan_is_refused_unless_the_run_is_extended(run: Run) -> None:
    assert run(LINE)[0] == 0
    other = LINE.replace("least-squares", "random")
    for command in (other, f"plan {other}"):
        code, text, err = run(command)
        assert (code, text) == (2, "")
        assert re.search(r"holds another run: fit was LeastSquares\(\) and is now Random\(\)\. .* --extend", err)
    code, text, _ = run(f"{other} --extend")
    assert code == 0
    assert "fitted by Random()" in text
    code, text, _ = run("table out")
    assert code == 0
    assert len([row for row in lines(text) if "itself" in row]) == 4
    assert max(map(len, lines(text))) <= 80


# How far it is


def test_the_status_says_how_far_a_run_is_and_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 4)
    run(LINE)
    code, text, err = run("status out")
    assert (code, err) == (3, "")
    assert lines(text)[0] == f"{OUT}: 4 of 6 trials measured, 2 missing"
    assert re.match(
        r"\d+ kB of results, \d.* of cached activations; last change 20\d\d-\d\d-\d\d \d\d:\d\d",
        text[len(lines(text)[0]) + 1 :],
    )
    assert max(map(len, lines(text))) <= 80
    assert pasted(text, "to continue:") == f"suture {LINE}"
    found = json.loads(run("status out --json")[1])
    expected = {"path": str(OUT), "planned": 6, "measured": 4, "failed": 0, "missing": 2, "running": 0, "errors": {}}
    assert found | expected == found
    assert found["complete"] is False


def test_the_status_of_a_run_that_is_over_and_of_one_made_in_python(run: Run, copy: Path) -> None:
    code, text, _ = run("status out")
    assert (code, lines(text)[0], len(lines(text))) == (0, f"{copy}: 4 of 4 trials measured", 2)
    shutil.rmtree(min((copy / "trials").iterdir()))
    code, text, _ = run("status out")
    assert code == 3
    assert f"to continue, run the same plan again: suture.run(plan, store='{copy}')" in " ".join(lines(text))
    assert max(map(len, lines(text))) <= 80


# What is there


def test_the_status_of_a_run_by_another_version_says_so(run: Run, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "measured by" not in run(f"status {copy}")[1]
    monkeypatch.setitem(DECLARED, "cuts", 1000)
    assert "(now 1000): measure again, in another folder" in " ".join(run(f"status {copy}")[1].split())


def test_the_table_shows_what_there_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 4)
    run(LINE)
    (OUT / "table.parquet").unlink()
    code, text, err = run("table out")
    assert code == 3
    assert lines(text)[0].startswith("Warning: a alone is right on "), "it has random weights"
    assert any(line.startswith("a → b: test accuracy in %") for line in lines(text))
    assert [line.split()[0] for line in lines(text) if line.startswith(("stage3", "pool"))] == ["stage3.pool", "pool"]
    assert max(map(len, lines(text))) <= 80
    assert err.splitlines()[-1].startswith("suture: 2 of 6 trials are not measured yet; continue with: suture curve ")
    stored = tables.load(OUT / "table.parquet")
    assert (len(stored), stored["trial"].nunique()) == (8, 4)
    assert run("export out --to csv")[0] == 0
    assert list(pd.read_csv(OUT / "table.csv")["trial"]) == list(stored["trial"])
    found = json.loads(run("table out --json")[1])
    assert [row["trial"] for row in found["rows"]] == list(stored["trial"])
    assert (found["missing"], found["failed"], found["files"]) == (2, 0, [str(OUT / "table.parquet")])


@pytest.mark.slow
def test_a_matrix_is_shown_as_a_matrix(run: Run) -> None:
    line = MATRIX.replace(f" {B}", f" --into {B}").replace("*.pool,flatten", "flatten")  # one that could be a curve
    _, measured, _ = run(f"{line} --controls itself --out out")
    assert "late → early" in measured
    code, shown, _ = run("table out")
    assert (code, shown) == (0, measured)


def test_a_curve_made_in_python_is_shown_as_a_curve(run: Run, copy: Path) -> None:
    code, text, _ = run("table out")
    assert code == 0
    assert "Worst penalty" in text


def test_the_status_of_a_store_without_a_plan(run: Run) -> None:
    Store.make("empty")
    code, text, _ = run("status empty")
    assert (code, lines(text)[0]) == (3, "empty: no trials planned")
    assert re.match(r"\d+ bytes of results, 0 bytes of cached activations", lines(text)[1])


def test_a_table_of_nothing_yet(run: Run) -> None:
    Store.make(OUT)
    code, text, _ = run("table out")
    assert (code, text) == (3, "nothing is measured yet\n")
    assert json.loads(run("table out --json")[1])["rows"] == []


def test_a_table_that_cannot_be_kept_is_still_shown(run: Run, copy: Path) -> None:
    (copy / "table.parquet").unlink()
    (copy / "table.parquet" / "in the way").mkdir(parents=True)
    code, text, err = run("table out")
    assert code == 0
    assert "Worst penalty" in text
    assert "suture: the table is shown, not kept: cannot write " in err
    assert "wrote" not in err


# What may be lost


def test_what_a_stopped_run_left_is_removed_and_nothing_else(run: Run, copy: Path) -> None:
    before = status(copy)
    for name, size in (("a.activations.safetensors", 3000), (f"{'0' * 64}.safetensors", 500), ("mine.safetensors", 7)):
        (copy / "activations" / name).write_bytes(b"0" * size)
    said = "3.5 kB {} in " + f"{copy}: 2 files of activations\n"
    assert run("clean out --dry-run") == (0, said.format("would be freed"), "")
    lock = Locks(copy / "locks")
    lock.take("a trial")
    assert run("clean out")[0] == 2
    assert "a run is still working in" in run("clean out")[2]
    lock.give_all_back()
    assert run("clean out") == (0, said.format("freed"), "")
    assert run("clean out --json")[1].find('"bytes": 0') > 0
    assert [path.name for path in (copy / "activations").iterdir()] == ["mine.safetensors"]
    assert status(copy).result_bytes == before.result_bytes


# Whether it is sound


def test_a_sound_run_is_said_to_be_sound(run: Run, copy: Path) -> None:
    assert run("verify out") == (0, f"{copy} is sound: 4 trials and 0 base networks, whole\n", "")
    found = json.loads(run("verify out --json")[1])
    assert found == {"path": str(copy), "sound": True, "findings": []}


@pytest.mark.slow
def test_damage_is_named_mended_and_measured_again(run: Run) -> None:
    run(LINE)
    before = tables.load(OUT / "table.parquet")
    bad, worse = sorted((OUT / "trials").iterdir())[:2]
    (bad / "stitch.safetensors").write_bytes(b"\0" * 100)
    (worse / "measurement.json").unlink()
    code, text, err = run("verify out")
    assert (code, err) == (1, "")
    for path, problem in (
        (bad / "stitch.safetensors", "has changed since it was written"),
        (worse / "measurement.json", "is missing"),
    ):
        named = next(i for i, line in enumerate(lines(text)) if line.startswith(str(path.relative_to(OUT))))
        assert " → " in lines(text)[named] + lines(text)[named + 1]
        assert problem in " ".join(lines(text)[named + 1 : named + 3])
    assert "the next run measures it again" in " ".join(text.split())
    assert max(map(len, lines(text))) <= 80
    found = json.loads(run("verify out --json")[1])
    assert [entry["path"] for entry in found["findings"]] == [
        str(bad / "stitch.safetensors"),
        str(worse / "measurement.json"),
    ]
    assert found["sound"] is False
    code, _, err = run(LINE)
    assert code == 0
    assert "6 trials, 4 measured before" in err
    assert_frame_equal(tables.load(OUT / "table.parquet").drop(columns="seconds"), before.drop(columns="seconds"))
    assert run("verify out")[0] == 0


def test_a_damaged_table_is_written_anew_by_suture_table(run: Run, copy: Path) -> None:
    (copy / "table.parquet").write_bytes(b"PAR1")
    code, text, _ = run("verify out")
    assert code == 1
    assert "'suture table' writes it anew" in text
    assert run("table out")[0] == 0
    assert run("verify out")[0] == 0


def test_the_same_damage_in_many_places_is_said_once(run: Run, copy: Path) -> None:
    for path in (copy / "trials").iterdir():
        for file in path.iterdir():
            file.write_bytes(b"")
    text = run("verify out")[1]
    assert text.count("has changed since it was written") == 1
    assert len(json.loads(run("verify out --json")[1])["findings"]) == 4


def test_a_damaged_plan_is_told_of(run: Run, copy: Path) -> None:
    (plan,) = (copy / "plans").iterdir()
    plan.write_text("{")
    code, text, _ = run("verify out")
    assert (code, lines(text)[0]) == (1, f"plans/{plan.name}")
    for command in ("status", "table"):
        code, text, err = run(f"{command} out")
        assert (code, text) == (2, "")
        assert err.startswith(f"suture: {plan} is damaged"), err


# What it will cost


def test_a_plan_measures_nothing_and_makes_no_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 0)
    code, text, err = run(f"plan {LINE}")
    assert code == 0, err
    assert re.search(r"(?m)^trials +6$", text)
    assert max(map(len, lines(text))) <= 80
    assert not OUT.exists()
    found = json.loads(run(f"plan {MATRIX} --controls none --json")[1])
    assert (found["trials"], found["done"], found["workers"]) == (36, 0, 1)


def test_what_is_measured_costs_nothing_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 4)
    run(LINE)
    found = json.loads(run(f"plan {LINE} --json")[1])
    assert (found["trials"], found["done"], found["left"]) == (6, 4, 2)


@pytest.mark.slow
def test_what_failed_costs_something_where_it_is_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*rest: Any) -> None:
        raise FitError("no")

    monkeypatch.setattr(measuring, "measure", never)
    run(LINE)
    assert [json.loads(run(f"plan {LINE} --json {retry}")[1])["left"] for retry in ("", "--retry")] == [0, 6]


# Wrong input


def test_wrong_folders_are_refused_in_one_line(run: Run, copy: Path) -> None:
    Path("new").mkdir()
    Path("new/suture.json").write_text('{"format": 7}')
    for line, offender in (
        ("status .", ". is not a folder of a run"),
        ("table .", ". is not a folder of a run"),
        ("verify .", ". is not a folder of a run"),
        ("status new", "new is a store of format 7"),
        (f"{QUICK} --out new", "new is a store of format 7"),
        (f"plan {QUICK} --out new", "new is a store of format 7"),
    ):
        code, text, err = run(line)
        assert (code, text) == (2, ""), line
        assert offender in err.splitlines()[-1], (line, err)


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\0"), max_size=60), min_size=1),
    st.integers(1, 90),
)
def test_a_command_in_several_lines_is_the_same_command(words: list[str], width: int) -> None:
    shown = broken(words, width).split(" \\\n")
    assert shlex.split(" ".join(shown)) == words
    assert all(len(line) <= width - 2 or len(shlex.split(line)) == 1 for line in shown)


def test_runners_are_named() -> None:
    def runner(words: str) -> Any:
        return runner_of(parser().parse_args(f"demo {words}".split()))

    assert runner("--workers 2 --ram 2GB") == Local(workers=2, ram="2GB")
    assert runner("--on ray") == Ray()
    assert runner("--on ray:auto") == Ray(address="auto")
    assert runner("--on ray:ray://host:10001") == Ray(address="ray://host:10001")

"""A run's table in other tools: files read back by other readers, and what trackers got, read back by theirs.

The table is planted: two networks, cuts whose names sort against their depth, one control and two seeds, so that every
mean is known.
"""

import csv
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from pyarrow import feather
from pyarrow import parquet as arrow

from suture.cli import export_commands
from suture.common.errors import DataError, OutputError, SutureError
from suture.measurement.tables import table as tables
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.table import COLUMNS
from suture.report import export as exporting
from suture.runs.store.store import Store

CUTS = ("zeta", "alpha")  #: from input to output
PENALTY = {("", "zeta"): 1.0, ("", "alpha"): 4.0, ("itself", "zeta"): 0.0, ("itself", "alpha"): -0.5}
Command = Callable[[str], tuple[int, str, str]]


def planted(pairs: tuple[tuple[str, str], ...] = tuple((cut, cut) for cut in CUTS)) -> pd.DataFrame:
    """A table of A and B at pairs of cuts; seed 0 is 0.2 pp below the mean, seed 1 above; one trial failed."""
    rows = []
    for (sender_cut, cut), control, seed in product(pairs, ("", "itself"), (0, 1)):
        if control and sender_cut != cut:
            continue
        penalty = PENALTY[control, cut] + (0.2 if seed else -0.2)
        row: dict[str, Any] = dict.fromkeys(COLUMNS) | {
            "trial": f"{sender_cut}-{cut}-{control}-{seed}",
            "study": "",
            "status": "ok",
            "error": "",
            "n": 100,
            "sender": "B" if control else "A",
            "receiver": "B",
            "sender_cut": sender_cut,
            "receiver_cut": cut,
            **{name: (1 + CUTS.index(cut)) / 2 for name in ("sender_depth", "receiver_depth")},
            "stitch": "Linear()" if cut == "alpha" else "Conv()",
            "fit": "Fast()",
            "control": control,
            "network_seed": 0,
            "seed": seed,
            "fit_data": "d/train",
            "score_data": "d/test",
            "score": "accuracy",
            "unit": "fraction",
            "receiver_score": 0.9,
            "stitched": 0.9 - penalty / 100,
            "penalty": penalty,
            "steps": 10,
            "converged": True,
            "seconds": 2.0,
            "representation_error": 0.25,
        }
        rows.append(row | {f"{name}_{end}": row[name] for name in ("stitched", "penalty") for end in ("low", "high")})
    failed = dict.fromkeys(COLUMNS) | {"trial": "x", "status": "failed", "error": "FitError: no", "score": "accuracy"}
    failed |= dict.fromkeys(("study", "sender_cut", "receiver_cut", "stitch", "fit", "fit_data", "score_data"), "x")
    failed |= {"sender": "A", "receiver": "B", "control": "", "unit": "fraction", "seconds": 1.0}
    return pd.DataFrame([*rows, failed], columns=list(COLUMNS)).astype(COLUMNS)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the planted table, another table beside it, and a figure."""
    folder = tmp_path / "runs" / "ab"
    tables.save(planted(), folder / "table.parquet")
    tables.save(pd.DataFrame({"index": ["cka"], "value": [0.5]}), folder / "similarities.parquet")
    Image.new("RGB", (8, 4), (200, 10, 10)).save(folder / "curve.png")
    return folder


# Files


def test_files_hold_the_tables_as_other_readers_see_them(place: Path, tmp_path: Path) -> None:
    run = exporting.read(place)
    table = planted()
    for kind in exporting.FILES:
        paths = exporting.write_files(run, kind, tmp_path / kind)
        assert [path.name for path in paths] == [f"similarities.{kind}", f"table.{kind}"]
    with open(tmp_path / "csv" / "table.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert [float(row["penalty"]) for row in rows[:-1]] == list(table["penalty"][:-1])
    assert (rows[-1]["penalty"], rows[-1]["n"], rows[-1]["error"]) == ("", "", "FitError: no")
    for made in (
        feather.read_table(tmp_path / "feather" / "table.feather"),
        arrow.read_table(tmp_path / "parquet" / "table.parquet"),
    ):
        assert made.column_names == list(COLUMNS)
        assert made["penalty"].to_pylist()[:-1] == list(table["penalty"][:-1])
        assert made["penalty"].to_pylist()[-1] is None
        assert str(made.schema.field("n").type) == "int64"
        assert str(made.schema.field("converged").type) == "bool"
        assert made["control"].to_pylist()[:2] == ["", ""]  # empty, not missing
    pd.testing.assert_frame_equal(tables.load(tmp_path / "parquet" / "table.parquet"), table)


def test_polars_reads_them(place: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    (_, path) = exporting.write_files(exporting.read(place), "parquet", tmp_path / "out")
    made = polars.read_parquet(path).filter(status="ok", control="")
    assert made.group_by("receiver_cut").agg(polars.col("penalty").mean()).sort("receiver_cut")[
        "penalty"
    ].to_list() == pytest.approx([4.0, 1.0])


def test_of_a_store_its_own_table_goes_out(place: Path, tmp_path: Path) -> None:
    made = Store.make(tmp_path / "run").path
    for name in ("beside", "again"):
        tables.save(planted(), made / f"{name}.parquet")
    run = exporting.read(made)
    assert run.own == "table"
    assert set(run.tables) == {"table", "beside", "again"}
    with pytest.raises(DataError, match="run has measured nothing yet"):
        _ = run.table


def test_one_file_alone_is_a_run(place: Path) -> None:
    run = exporting.read(place / "table.parquet")
    assert (run.name, list(run.tables), run.figures) == ("table", ["table"], ())
    assert len(run.rows) == 4


def test_what_is_no_run_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere has no table; give the folder of a run"):
        exporting.read(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"similarities has 0 tables of measurements \(its tables: similarities\)"):
        _ = exporting.read(place / "similarities.parquet").table
    tables.save(planted(), place / "again.parquet")
    with pytest.raises(DataError, match=r"2 tables of measurements .*again, similarities, table"):
        _ = exporting.read(place).table
    (place / "table.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(DataError, match=r"table.parquet is no table, or was cut short"):
        exporting.read(place)
    tables.save(planted()[-1:], tmp_path / "failed.parquet")
    with pytest.raises(DataError, match="has measured nothing yet"):
        _ = exporting.read(tmp_path / "failed.parquet").table


# Lines


def test_lines_run_from_input_to_output_and_are_means_over_seeds(place: Path) -> None:
    plain, itself = exporting.lines(exporting.read(place).rows)
    assert (plain.name, itself.name) == ("plain", "itself")
    for line, control in ((plain, PLAIN), (itself, "itself")):
        found = {step: [row["penalty"] for row in rows] for step, rows in line.rows.items()}
        assert found == {
            1: pytest.approx([PENALTY[control, "zeta"]]),
            2: pytest.approx([PENALTY[control, "alpha"]]),
        }  # the stitch differs between the two, and it is one line


def test_a_matrix_has_a_line_for_each_cut_of_the_sender(tmp_path: Path) -> None:
    tables.save(planted(tuple(product(CUTS, CUTS))), tmp_path / "grid.parquet")
    found = exporting.lines(exporting.read(tmp_path / "grid.parquet").rows)
    assert [line.name for line in found] == ["zeta plain", "alpha plain", "itself"]
    assert [sorted(line.rows) for line in found] == [[1, 2]] * 3


def test_fits_of_the_same_seams_are_told_apart(tmp_path: Path) -> None:
    both = pd.concat([planted(), planted().assign(fit="TaskLoss(steps=5)")], ignore_index=True)
    tables.save(both, tmp_path / "both.parquet")
    names = [line.name for line in exporting.lines(exporting.read(tmp_path / "both.parquet").rows)]
    assert names == ["Fast_ plain", "TaskLoss_steps_5_ plain", "Fast_ itself", "TaskLoss_steps_5_ itself"]


# Trackers


def test_mlflow_has_a_run_for_the_table_and_one_for_each_seam_and_control(place: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'suture[mlflow]'")
    address, number = exporting.to_mlflow(exporting.read(place), str(tmp_path / "mlruns"), "mine")
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("mine").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert set(runs) == {"ab", "A zeta → B zeta", "A alpha → B alpha", *(f"B {c} → B {c} (itself)" for c in CUTS)}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent = runs.pop("ab")
    assert parent.info.run_id == number
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {number}
    totals = {"trials": 9, "failed": 1, "seconds": 17, "accuracy/worst penalty": 4, "accuracy/mean penalty": 2.5}
    assert parent.data.metrics == pytest.approx(totals)
    assert {item.path for item in client.list_artifacts(number)} == {"table.parquet", "curve.png"}
    seam = runs["A alpha → B alpha"].data
    assert seam.metrics["accuracy/penalty"] == pytest.approx(4.0)
    assert seam.metrics["accuracy/stitched"] == pytest.approx(0.86)
    assert seam.metrics["accuracy/penalty_high"] > 4.2  # over two seeds, not over test samples
    assert seam.metrics["representation_error"] == 0.25
    told = {"sender": "A", "receiver_cut": "alpha", "stitch": "Linear()", "control": "plain", "seeds": "2"}
    assert told.items() <= seam.params.items()


def test_tensorboard_has_a_folder_for_each_control_whose_steps_are_cuts(place: Path, tmp_path: Path) -> None:
    reason = "TensorBoard is not installed: pip install 'suture[tensorboard]'"
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, reason=reason).EventAccumulator
    folder = exporting.to_tensorboard(exporting.read(place), tmp_path / "events")
    for name, control in (("plain", ""), ("itself", "itself")):
        events = accumulator(str(folder / name)).Reload()
        assert set(events.Tags()["scalars"]) == {"accuracy/stitched", "accuracy/penalty", "representation_error"}
        found = [(event.step, event.value) for event in events.Scalars("accuracy/penalty")]
        assert found == [(step, pytest.approx(PENALTY[control, cut], abs=1e-6)) for step, cut in enumerate(CUTS, 1)]
    events = accumulator(str(folder)).Reload()
    assert (events.Images("curve")[0].width, events.Images("curve")[0].height) == (8, 4)
    text = events.Tensors("cuts/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| 1 | B | zeta |\n| 2 | B | alpha |" in text
    with pytest.raises(OutputError, match="is there already, and TensorBoard would show both exports"):
        exporting.to_tensorboard(exporting.read(place), folder)


def kept(content: bytes, parse: Callable[[bytes], Any]) -> Iterator[Any]:
    """The records in a file of W&B: LevelDB's log format behind a header of 7 bytes."""
    place, part = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parse(part)
            part = b""


def items(found: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


def test_wandb_keeps_the_table_and_the_lines_and_sends_nothing(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'suture[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record

    line = [sys.executable, "-m", "suture", "export", str(place), "--to", "wandb", "--out", str(tmp_path / "w")]
    done = subprocess.run([*line, "--json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["folder"])
    assert folder.is_relative_to(tmp_path / "w")
    assert done.stderr == f"wrote {folder}; nothing is sent yet: wandb sync {folder}\n"
    (file,) = folder.glob("*.wandb")
    records = list(kept(file.read_bytes(), Record.FromString))
    history = [items(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]
    along = {row["cut"]: row for row in history if "accuracy/penalty/plain" in row}
    for control, name in (("", "plain"), ("itself", "itself")):
        found = [along[step][f"accuracy/penalty/{name}"] for step in (1, 2)]
        assert found == pytest.approx([PENALTY[control, cut] for cut in CUTS])
    totals: dict[str, Any] = {}
    for record in records:
        totals |= items(record.summary.update)
    assert (totals["trials"], totals["failed"]) == (9, 1)
    assert totals["accuracy/worst penalty"] == pytest.approx(4)
    (path,) = folder.glob("files/media/table/*.json")
    table = json.loads(path.read_text())
    assert table["columns"] == list(COLUMNS)
    assert len(table["data"]) == len(planted())
    assert list(folder.glob("files/media/images/curve*.png"))


@pytest.mark.parametrize("tool", exporting.TRACKERS)
def test_a_tracker_that_is_not_there_is_answered_with_the_line_that_installs_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("mlflow", "wandb", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, exporting.TRACKERS[tool], None)
    out: dict[str, Any] = {"mlflow": exporting.to_mlflow, "wandb": exporting.to_wandb}
    with pytest.raises(SutureError, match=rf"needs {tool}, which is not installed .*: pip install 'suture\[{tool}\]'"):
        out.get(tool, exporting.to_tensorboard)(exporting.read(place), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_mlflow_refuses_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'suture[mlflow]'")

    def refuse(**given: object) -> None:
        raise mlflow.exceptions.MlflowException("no such server")

    monkeypatch.setattr(mlflow, "MlflowClient", refuse)
    with pytest.raises(SutureError, match="MLflow refuses: no such server; name another place with --out URI"):
        exporting.to_mlflow(exporting.read(place), "http://nowhere:1")


# The command


def test_the_command_writes_beside_the_tables(run: Command, place: Path) -> None:
    code, out, err = run(f"export {place} --to csv")
    assert (code, out) == (0, "")
    assert err == f"wrote {place / 'similarities.csv'}\nwrote {place / 'table.csv'}\n"
    code, out, _ = run(f"export {place / 'table.parquet'} --to feather --json")
    assert json.loads(out) == {"to": "feather", "files": [str(place / "table.feather")]}


@pytest.mark.parametrize(
    ("options", "variable", "wanted"),
    [("", "", "{place}/mlruns"), ("", "http://there", None), ("--out here", "", "here")],
)
def test_mlflow_gets_a_folder_of_the_run_where_nothing_says_another(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch, options: str, variable: str, wanted: str | None
) -> None:
    given = []
    monkeypatch.setattr(
        exporting, "to_mlflow", lambda _, address, project: given.append(address) or ("sqlite:///a b", "7")
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    code, _, err = run(f"export {place} --to mlflow {options}")
    assert (code, given) == (0, [wanted.format(place=place) if wanted else None])
    assert err.endswith("mlflow ui --backend-store-uri 'sqlite:///a b'\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--to csb", "--to csb: did you mean csv? give one of csv, parquet, feather, mlflow, wandb, tensorboard"),
        ("--to sql", "--to sql: give one of csv, parquet, feather, mlflow, wandb, tensorboard"),
        ("--to csv --online", "--online is for --to wandb; leave it out"),
        ("--to csv --project x", "--project is for --to mlflow and wandb; leave it out"),
    ],
)
def test_a_wrong_choice_is_refused(run: Command, place: Path, line: str, message: str) -> None:
    assert run(f"export {place} {line}") == (2, "", f"suture: {message}\n")


def test_what_can_be_exported_to_is_what_the_command_names() -> None:
    assert (*exporting.FILES, *exporting.TRACKERS) == export_commands.TO


def test_a_run_is_exported_from_its_store(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "curve zoo:mlp,width=2 zoo:mlp,width=2 --data digits --fit least-squares --controls none --workers 1"
    code, _, err = run(f"{line} --fit-samples 40 --score-samples 20 --out runs/ab")
    assert code == 0, err
    (tmp_path / "runs/ab/table.parquet").unlink()  # the store has it all
    assert run("export runs/ab --to csv")[0] == 0
    made = exporting.read("runs/ab")
    assert made.command.startswith("suture curve zoo:mlp,width=2")
    assert len(pd.read_csv("runs/ab/table.csv")) == len(made.table) > 0
    assert [path.name for path in made.figures] == ["curve.png"]


def test_extras_are_imported_by_nobody_else() -> None:
    assert not {name for name, value in vars(exporting).items() if isinstance(value, ModuleType)} & {"mlflow", "wandb"}

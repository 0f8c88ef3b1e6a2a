"""The table of a run for other tools: files for pandas, polars and R, and trackers of experiments.

Files keep the table as it is (``table.COLUMNS``): parquet and feather with its types, CSV as text, in which what
is empty and what is missing are one. Trackers get what was measured, aggregated over seeds (``table.summary``):

- MLflow: a run for the table, with files as artefacts, and in it a run for each seam and control, with what was asked
  as parameters and what was measured as metrics.
- Weights & Biases: one run, offline unless told otherwise, with the whole table, the figures, and a line for each
  control along the cuts.
- TensorBoard: a folder of events for each control, so that controls share a chart; a step is a cut.

A metric is called ``SCORE/COLUMN``, as in ``accuracy/penalty``. Values and units are the table's: accuracies are
fractions, penalties percentage points. The trackers are extras, imported where they are used.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from PIL import Image
from pyarrow import ArrowException

from suture.common.atomic import whole
from suture.common.errors import DataError, OutputError, SutureError
from suture.measurement.tables.curve import NO_SENDER
from suture.measurement.tables.table import COLUMNS, summary
from suture.runs.store.files import writing_to
from suture.runs.store.store import LABEL, TABLE, Store

FILES = ("csv", "parquet", "feather")  #: what tables are written as
TRACKERS = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "torch.utils.tensorboard"}  #: and what they import
PLAIN = "plain"  #: what trackers call the trial itself, whose control is empty in the table

_ASKED = ("sender", "sender_cut", "receiver", "receiver_cut", "stitch", "fit", "control", "fit_data", "score_data")
_OF_TRIALS = ("representation_error", "seconds")  #: what is of a trial, whatever its scores
_ALONG = ("stitched", "penalty", "representation_error")
_MEASURED = (
    *("stitched", "stitched_low", "stitched_high", "sender_score", "receiver_score"),
    *("penalty", "penalty_low", "penalty_high", *_OF_TRIALS),
)


@final
@dataclass(frozen=True, eq=False)
class Run:
    """A run as it goes out: its name, its tables by their names, its figures, and the command that made it."""

    name: str
    tables: dict[str, pd.DataFrame]
    figures: tuple[Path, ...] = ()
    command: str = ""
    own: str = ""  #: the name of what a store measured, whatever tables other commands have put beside it

    @property
    def table(self) -> pd.DataFrame:
        """The only table of measurements. Raises ``DataError`` where there is none, several, or nothing in it."""
        found = {name: table for name, table in self.tables.items() if set(COLUMNS) <= set(table.columns)}
        if self.own in found:
            found = {self.own: found[self.own]}
        if len(found) != 1:
            names = ", ".join(self.tables) or "none"
            raise DataError(
                f"{self.name} has {len(found)} tables of measurements (its tables: {names}), and a tracker takes one; "
                "give the folder of a run, or one parquet file"
            )
        (table,) = found.values()
        if not (table["status"] == "ok").any():
            raise DataError(f"{self.name} has measured nothing yet; see suture status")
        return table

    @cached_property
    def rows(self) -> pd.DataFrame:
        """What was measured, aggregated over seeds; the control of the trial itself is called ``PLAIN``."""
        rows = summary(self.table[self.table["status"] == "ok"])
        return rows.assign(control=rows["control"].replace("", PLAIN))


def read(place: str | Path) -> Run:
    """Read what is to go out: the folder of a run, a folder of tables, or one table, as parquet.

    Raises ``DataError`` where there is none, or one is damaged.
    """
    path = Path(place).expanduser()
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    store = Store(path) if (path / LABEL).is_file() else None
    tables = {file.stem: _read(file) for file in files if store is None or file.name != TABLE}
    if store is not None:
        tables = {Path(TABLE).stem: store.table()} | tables
    if not tables:
        raise DataError(f"{path} has no table; give the folder of a run (--out, store=), or a parquet file")
    figures = tuple(sorted(path.glob("*.png"))) if path.is_dir() else ()
    if store is None:
        return Run(path.resolve().stem, tables, figures)
    return Run(path.resolve().stem, tables, figures, store.plans.command() or "", Path(TABLE).stem)


def _read(file: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(file)
    except (ArrowException, OSError) as error:
        raise DataError(f"{file} is no table, or was cut short ({error})") from error


# --- files ------------------------------------------------------------------------------------------------------------


def write_files(run: Run, kind: str, folder: str | Path) -> list[Path]:
    """Write every table of a run to a folder, as ``NAME.KIND``. Raises ``OutputError``."""
    write: dict[str, Callable[[pd.DataFrame, Path], None]] = {
        "csv": lambda table, path: table.to_csv(path, index=False),
        "parquet": lambda table, path: table.to_parquet(path, index=False),
        "feather": lambda table, path: table.to_feather(path),
    }
    folder, paths = Path(folder).expanduser(), []
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in run.tables.items():
            paths.append(folder / f"{name}.{kind}")
            with whole(paths[-1]) as temporary:
                write[kind](table, temporary)
    return paths


# --- what trackers are given ------------------------------------------------------------------------------------------


def _tracker(name: str) -> Any:
    """The module of a tracker. Raises ``SutureError`` with the line that installs it."""
    try:
        return import_module(TRACKERS[name])
    except ImportError as error:
        raise SutureError(
            f"an export to {name} needs {name}, which is not installed ({error}): pip install 'suture[{name}]'"
        ) from error


def _named(text: str) -> str:
    """A text as every tracker takes it as a name."""
    return re.sub(r"[^\w\-. ]+", "_", text.replace("→", "to")).strip(" .") or "_"


def _values(row: "pd.Series[Any]", columns: Sequence[str]) -> dict[str, float]:
    """What was measured in a row, by the names of metrics."""
    score = _named(row["score"])
    found = {column if column in _OF_TRIALS else f"{score}/{column}": row[column] for column in columns}
    return {name: float(value) for name, value in found.items() if pd.notna(value) and np.isfinite(value)}


def _facts(run: Run) -> dict[str, str]:
    """What is told of a run as a whole."""
    table = run.table
    told = {
        "networks": ", ".join(dict.fromkeys(name for name in (*table["sender"], *table["receiver"]) if name)),
        "data": ", ".join(dict.fromkeys(table["score_data"])),
        "fit": ", ".join(dict.fromkeys(table["fit"])),
        "command": run.command,
        "suture": version("suture"),
    }
    return {name: value for name, value in told.items() if value}


def _totals(run: Run) -> dict[str, float]:
    """Figures of a run as a whole: how many trials, how many failed, what they took, and the plain ones' penalties."""
    trials = run.table.drop_duplicates("trial")
    totals = {
        "trials": float(len(trials)),
        "failed": float((trials["status"] == "failed").sum()),
        "seconds": float(trials["seconds"].sum()),
    }
    plain = run.rows[run.rows["control"] == PLAIN].dropna(subset=["penalty"])
    for score, penalties in plain.groupby("score", sort=False)["penalty"]:
        totals[f"{_named(str(score))}/worst penalty"] = float(penalties.max())
        totals[f"{_named(str(score))}/mean penalty"] = float(penalties.mean())
    return totals


@final
@dataclass(frozen=True, eq=False)
class Line:
    """What was measured of one kind of trial along the receiver's cuts: rows by step, the place of the cut from 1."""

    name: str
    rows: dict[int, list["pd.Series[Any]"]]


def lines(rows: pd.DataFrame) -> list[Line]:
    """Arrange the rows of a run as lines along the receivers' cuts; of a matrix, a line for each cut of the sender.

    A line is named by what tells it from others: its control, and pair, sender's cut and settings where they differ.
    """
    places = _steps(rows)
    plain = rows[rows["control"] == PLAIN]
    telling = [key for key in ("sender", "receiver") if plain[key].nunique() > 1]
    seam = ["sender", "receiver", "score", "receiver_cut"]
    for key in ("sender_cut", "stitch", "fit", "fit_data", "score_data"):
        if (plain.groupby(seam)[key].nunique() > 1).any():
            telling.append(key)
        seam += ["sender_cut"] if key == "sender_cut" else []
    made: dict[str, Line] = {}
    for _, row in rows.iterrows():
        alone = ("sender_cut",) if row["control"] in NO_SENDER else ()  # which is the receiver's, or none
        told = [str(row[key]) for key in telling if row[key] and key not in alone]
        name = _named(" ".join([*told, row["control"]]))
        step = places[row["receiver"], row["receiver_cut"]]
        made.setdefault(name, Line(name, {})).rows.setdefault(step, []).append(row)
    return sorted(made.values(), key=lambda line: not line.name.endswith(PLAIN))


def _steps(rows: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The place of every receiver's cut among those in the table, from 1 at the input."""
    cuts = rows.drop_duplicates(["receiver", "receiver_cut"]).sort_values("receiver_depth", kind="stable")
    places: dict[tuple[str, str], int] = {}
    for receiver, of in cuts.groupby("receiver", sort=False):
        places |= {(str(receiver), str(cut)): place for place, cut in enumerate(of["receiver_cut"], 1)}
    return places


# --- trackers ---------------------------------------------------------------------------------------------------------


def to_mlflow(run: Run, address: str | None = None, project: str = "suture") -> tuple[str, str]:
    """Write a run to MLflow: one of its runs for the table, and in it one for each seam and control.

    ``address`` is MLflow's tracking URI, or a folder; by default what MLflow is set to. Gives the address and the
    number of the run for the table. Raises ``SutureError`` where MLflow is missing or refuses.
    """
    mlflow = _tracker("mlflow")
    if address is not None and "://" not in address:
        address = Path(address).expanduser().resolve().as_uri()
    if address is not None and address.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which it refuses otherwise, for it prefers servers
    table = run.table
    try:
        client = mlflow.MlflowClient(tracking_uri=address)
        found = client.get_experiment_by_name(project)
        experiment = found.experiment_id if found is not None else client.create_experiment(project)
        parent = client.create_run(experiment, run_name=run.name).info.run_id
        _log(client, parent, _totals(run), _facts(run))
        for path in run.figures:
            client.log_artifact(parent, str(path))
        with _as_file(table) as file:
            client.log_artifact(parent, str(file))
        for _, rows in run.rows.groupby(list(_ASKED), sort=False, dropna=False):
            _log_seam(client, experiment, parent, rows)
        client.set_terminated(parent)
    except mlflow.exceptions.MlflowException as error:
        raise SutureError(f"MLflow refuses: {error}; name another place with --out URI") from error
    return str(address or mlflow.get_tracking_uri()), str(parent)


def _log_seam(client: Any, experiment: str, parent: str, rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    name = f"{first['sender']} {first['sender_cut']} → {first['receiver']} {first['receiver_cut']}".strip()
    name += f" ({first['control']})" if first["control"] != PLAIN else ""
    made = client.create_run(experiment, run_name=name, tags={"mlflow.parentRunId": parent}).info.run_id
    values = [_values(row, _MEASURED) for _, row in rows.iterrows()]
    asked = {key: str(first[key]) for key in _ASKED if first[key]} | {"seeds": str(first["seeds"])}
    _log(client, made, {name: value for each in values for name, value in each.items()}, asked)
    client.set_terminated(made)


def _log(client: Any, run: str, metrics: dict[str, float], parameters: dict[str, str]) -> None:
    entities = import_module("mlflow.entities")
    now, longest = int(1000 * time.time()), 500  # MLflow's limits: a parameter's length, and 1,000 metrics at once
    client.log_batch(
        run,
        metrics=[entities.Metric(name, value, now, 0) for name, value in metrics.items()][:1000],
        params=[entities.Param(name, value[:longest]) for name, value in parameters.items()],
    )


@contextmanager
def _as_file(table: pd.DataFrame) -> Iterator[Path]:
    """The table as a file of its usual name, for as long as that is needed."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        table.to_parquet(Path(folder) / TABLE, index=False)
        yield Path(folder) / TABLE


def to_wandb(run: Run, folder: str | Path, project: str = "suture", online: bool = False) -> Path:
    """Write a run to Weights & Biases: the table, the figures, and a line for each kind of trial along the cuts.

    Without ``online`` nothing leaves the machine: what is written below ``folder`` waits for ``wandb sync``. Gives the
    folder of the run. Raises ``SutureError`` where W&B is missing or refuses.
    """
    wandb = _tracker("wandb")
    table = run.table
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
    folder = Path(folder).expanduser()
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    mode = "online" if online else "offline"
    try:
        made = wandb.init(
            project=project,
            name=run.name,
            dir=str(folder),
            mode=mode,
            config=_facts(run) | _cuts(run),
            settings=settings,
        )
        made.define_metric("cut")
        made.define_metric("*", step_metric="cut")
        along = lines(run.rows)
        for step in sorted({step for line in along for step in line.rows}):
            made.log({"cut": step} | {name: value for line in along for name, value in _at(line, step)})
        shown = table.astype(object).where(table.notna(), None)
        pictures = {path.stem: wandb.Image(str(path)) for path in run.figures}
        made.log({"table": wandb.Table(dataframe=shown)} | pictures)
        made.summary.update(_totals(run))
        made.finish()
    except wandb.errors.Error as error:
        raise SutureError(f"Weights & Biases refuses: {error}") from error
    return Path(made.dir).parent


def _cuts(run: Run) -> dict[str, dict[str, str]]:
    """Which cut a step is, of every receiver."""
    named = sorted((step, *place) for place, step in _steps(run.rows).items())
    return {"cuts": {f"{receiver} {step}": cut for step, receiver, cut in named}}


def _at(line: Line, step: int) -> Iterator[tuple[str, float]]:
    """The values of a line at a step, by names ``SCORE/COLUMN/LINE``, which share a section."""
    for row in line.rows.get(step, ()):
        yield from ((f"{name}/{line.name}", value) for name, value in _values(row, _ALONG).items())


def to_tensorboard(run: Run, folder: str | Path) -> Path:
    """Write a run as events of TensorBoard: a folder for each kind of trial, whose steps are the receiver's cuts.

    The figures, and which cut a step is, are in the folder itself. Raises ``OutputError`` where the folder holds
    something already, and ``SutureError`` where TensorBoard is missing.
    """
    make = _tracker("tensorboard").SummaryWriter
    rows, folder = run.rows, Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is there already, and TensorBoard would show both exports; name another folder")
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for line in lines(rows):
            with make(str(folder / line.name)) as writer:
                for step, here in sorted(line.rows.items()):
                    values = [value for row in here for value in _values(row, _ALONG).items()]
                    for name, value in values:
                        writer.add_scalar(name, value, step)
        with make(str(folder)) as writer:
            places = sorted((step, *named) for named, step in _steps(rows).items())
            cuts = "\n".join(f"| {step} | {receiver} | {cut} |" for step, receiver, cut in places)
            writer.add_text("cuts", f"| step | receiver | its cut |\n| --- | --- | --- |\n{cuts}")
            writer.add_text("run", "\n\n".join(f"{name}: {value}" for name, value in _facts(run).items()))
            for path in run.figures:
                with Image.open(path) as image:
                    writer.add_image(path.stem, np.asarray(image.convert("RGB")), dataformats="HWC")
    return folder

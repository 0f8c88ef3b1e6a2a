"""Tables with planted numbers, and runs made of them, for the tests of reports."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from suture.measurement.tables.curve import arrange_curve
from suture.measurement.tables.matrix import arrange_matrix
from suture.measurement.tables.read import make_reading
from suture.measurement.tables.records import describe_trial, record
from suture.measurement.tables.similarities import COLUMNS as SIMILARITY
from suture.measurement.tables.table import COLUMNS, table_of
from suture.measurement.trials.trial import Failure, Measurement
from suture.reports.figures import curve as curves
from suture.reports.figures import matrix as matrices
from suture.reports.html import Run

CONTROLS = ("untrained sender", "untrained receiver", "untrained both", "shuffled pairs")
STRIPS = ("itself", "clustered noise")
CUTS = ("stem", "layer1.0", "layer2.0", "head")
#: Names as nobody should choose them: tags, quotes, the end of a script, other alphabets, and a turn of direction.
NASTY = (
    "<img src=x onerror=alert(1)>",
    "\"quoted' & <b>bold</b> %{y} $x_1$",
    "</script><script>alert(2)</script>",
    "日本語 שלום \u202eturned",
)


def to_table(results: Iterable[Measurement | Failure]) -> pd.DataFrame:
    """Make the table of measurements and failures, as a run does."""
    return table_of((describe_trial(result.trial), record(result)) for result in results)


def cell(kind: str, sender: str, receiver: str, start: str, end: str, value: float, **columns: Any) -> dict[str, Any]:
    """A row of accuracy; its receiver alone reaches 95 %, its sender 93 %."""
    penalty = 100 * (0.95 - value)
    made: dict[str, Any] = {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
    made |= {"trial": f"{kind}{sender}{receiver}{start}{end}", "status": "ok", "control": kind, "stitch": "Conv()"}
    made |= {"sender": sender, "receiver": receiver, "sender_cut": start, "receiver_cut": end, "fit": "Converged()"}
    made |= {"score": "accuracy", "unit": "fraction", "n": 400, "seed": 0, "fit_data": "d/fit", "score_data": "d/score"}
    made |= {"stitched": value, "stitched_low": value - 0.02, "stitched_high": value + 0.03}
    made |= {"penalty": penalty, "penalty_low": penalty - 1.5, "penalty_high": penalty + 2.5, "receiver_score": 0.95}
    made |= {"sender_score": 0.93 if sender else None, "steps": 7, "converged": True, "seconds": 1.25}
    return made | columns


def curve_table(names: tuple[str, str] = ("A", "B"), cuts: Sequence[str] = CUTS, **columns: Any) -> pd.DataFrame:
    """A curve with all controls, every number of it different."""
    return _tabled(_curve_rows(names, cuts, columns))


def _curve_rows(names: tuple[str, str], cuts: Sequence[str], columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(1)
    for kind, (i, cut) in product(("", *STRIPS, *CONTROLS), enumerate(cuts, 1)):
        sender = names[1] if kind == "itself" else "" if kind == "clustered noise" else names[0]
        value = round(0.1 + 0.8 * random.random(), 4)
        depths = {"sender_depth": i / len(cuts) if sender else None, "receiver_depth": i / len(cuts)}
        yield cell(kind, sender, names[1], cut if sender else "", cut, value, **depths, **columns)


def matrix_table(names: tuple[str, str] = ("A", "B"), cuts: Sequence[str] = CUTS, **columns: Any) -> pd.DataFrame:
    """A matrix with all controls, every number of it different."""
    return _tabled(_matrix_rows(names, cuts, columns))


def _matrix_rows(names: tuple[str, str], cuts: Sequence[str], columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(2)
    sides = list(enumerate(cuts, 1))
    for kind in ("", *STRIPS, *CONTROLS):
        starts = [(0, "")] if kind == "clustered noise" else sides
        for (i, start), (j, end) in product(starts, sides):
            if kind == "itself" and i != j:
                continue
            sender = names[1] if kind == "itself" else names[0] if start else ""
            value = round(0.1 + 0.8 * random.random(), 4)
            depths = {"sender_depth": i / len(cuts) if start else None, "receiver_depth": j / len(cuts)}
            yield cell(kind, sender, names[1], start, end, value, **depths, **columns)


def _tabled(rows: Iterator[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)


def failing(table: pd.DataFrame, which: "pd.Series[bool]", error: str = "FitError: loss is nan") -> pd.DataFrame:
    """The table with some rows failed."""
    table = table.copy()
    numbers = [name for name, dtype in COLUMNS.items() if dtype == "float64" and "depth" not in name]
    table.loc[which, numbers] = np.nan
    table.loc[which, "status"] = "failed"
    table.loc[which, "error"] = error
    return table


def similarities(names: tuple[str, str] = ("A", "B"), cuts: Sequence[str] = CUTS) -> pd.DataFrame:
    """Two indices at all pairs of cuts."""
    random = np.random.default_rng(3)
    rows = [
        {"sender": names[0], "receiver": names[1], "sender_cut": start, "receiver_cut": end, "index": index}
        | {"sender_depth": i / len(cuts), "receiver_depth": j / len(cuts), "value": round(random.random(), 4)}
        | {"samples_as": "flattened", "score_data": "d/score", "n": 400}
        | {"direction": "distance" if index == "procrustes_angle" else "similarity"}
        for index in ("linear_cka", "procrustes_angle")
        for (i, start), (j, end) in product(enumerate(cuts, 1), repeat=2)
    ]
    return pd.DataFrame(rows, columns=list(SIMILARITY)).astype(SIMILARITY)


def run_of(table: pd.DataFrame, alike: pd.DataFrame | None = None, name: str = "ab", **settings: Any) -> Run:
    """A run that measured a table."""
    machine = {"host": "here", "processor": "x86_64", "python": "3.11", "torch": "2.14", "suture": "0.1.0"}
    return Run(Path(f"runs/{name}"), table, None, settings, (machine,), {}, alike, None, ())


def read(write: Callable[..., Any], table: pd.DataFrame, score: str = "accuracy", **options: Any) -> Any:
    """Return what is written of the reading of a table."""
    return write(make_reading(table, score), **options)


def curve_figure(table: pd.DataFrame, score: str | None = None, similarities: pd.DataFrame | None = None) -> Figure:
    """Return the figure of a curve."""
    return curves.curve(make_reading(table, score), similarities)


def matrix_figure(table: pd.DataFrame, score: str | None = None) -> Figure:
    """Return the figure of matrices."""
    return matrices.matrix(make_reading(table, score))


def on_curve(write: Callable[..., Any], table: pd.DataFrame, score: str = "accuracy", **options: Any) -> Any:
    """Return what is written of a table arranged as a curve."""
    return write(arrange_curve(table, score), **options)


def on_matrix(write: Callable[..., Any], table: pd.DataFrame, score: str = "accuracy", **options: Any) -> Any:
    """Return what is written of a table arranged as matrices."""
    return write(arrange_matrix(table, score), **options)

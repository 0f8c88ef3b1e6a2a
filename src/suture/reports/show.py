"""Figures and reports from Python: ``suture.plot`` and ``suture.report`` choose a form for a table."""

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from suture.common.errors import DataError
from suture.common.validation import check_kind
from suture.measurement.tables.onset import onset
from suture.measurement.tables.read import make_reading, trait_of
from suture.measurement.tables.similarities import check_similarities
from suture.reports.export import read_tables
from suture.reports.html import Run, check_file, read, render
from suture.runs.store.files import write_page
from suture.runs.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Source = pd.DataFrame | Store | str | Path  #: a table, or where a run keeps its own
_SOURCE = "a table, a Store, or the folder of a run"


def plot(
    source: Source, similarities: pd.DataFrame | None = None, *, score: str | None = None, margin: float | None = None
) -> "Figure":
    """Draw a table by its kind: a curve, a matrix, where a trait lies, or similarity indices.

    Return the figure. ``source`` is a table of ``run`` or ``compare``, or the folder of a run. With ``similarities`` a
    curve has these below it. ``score`` is the accuracy, or the first, unless it is named; ``margin`` a penalty that
    counts as none, for the verdict: 3 pp if the score is a fraction. ``figure.savefig("ab.pdf")`` writes it. Raises
    ``DataError`` if nothing suits the table.
    """
    from suture.reports.figures import curve as curves
    from suture.reports.figures import maps
    from suture.reports.figures import matrix as matrices

    table = _table(source)
    if "index" in table and "stitched" not in table:
        return maps.similarities(table)
    if similarities is not None:
        check_similarities(similarities)
    reading = make_reading(table, score, margin)
    if similarities is None and reading.kind == "matrix":
        return matrices.matrix(reading)
    if similarities is None and reading.kind == "trait" and score is None:
        return curves.localisation(table, onset(table, *trait_of(table)))
    return curves.curve(reading, similarities)


def report(source: Source, file: str | Path = "report.html", other: Source | None = None) -> Path:
    """Write measurements as one HTML page that needs no network; return its path.

    ``source`` is a table of ``run``, or the folder of a run, of which the page has more: versions, cost, how to repeat
    it. With an ``other`` the two are compared. Raises ``DataError`` if nothing is measured, ``OutputError`` if the file
    cannot be written.
    """
    path = check_file(file)
    runs = [_run(one, name) for one, name in ((source, path.stem), (other, "other")) if one is not None]
    return write_page(path, render(*runs))


def _table(source: Source) -> pd.DataFrame:
    check_kind("source", source, pd.DataFrame | Store | str | Path, _SOURCE)
    if isinstance(source, pd.DataFrame):
        return source
    tables = read_tables(source.path if isinstance(source, Store) else source)
    return tables["table"] if "table" in tables else next(iter(tables.values()))


def _run(source: Source, name: str) -> Run:
    check_kind("what is reported", source, pd.DataFrame | Store | str | Path, _SOURCE)
    if not isinstance(source, pd.DataFrame):
        return read(source.path if isinstance(source, Store) else source)
    if source.empty:
        raise DataError("the table has no row; nothing was measured")
    return Run(Path(name), source, None, {}, (), {}, None, None, ())

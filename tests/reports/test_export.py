"""A run's tables as files, read back by other readers."""

import csv
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import feather
from pyarrow import parquet as arrow

from reported import curve_table, failing
from suture.cli import export as command
from suture.common.errors import DataError
from suture.measurement.tables import table as tables
from suture.measurement.tables.table import COLUMNS
from suture.reports.export import FILES, read_tables, write_tables
from suture.runs.store.store import Store

Command = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def planted() -> pd.DataFrame:
    """A curve whose last trial failed."""
    table = curve_table()
    return failing(table, table.index == len(table) - 1, "FitError: no")


@pytest.fixture
def place(tmp_path: Path, planted: pd.DataFrame) -> Path:
    """A folder with the planted table, and another table beside it."""
    folder = tmp_path / "runs" / "ab"
    tables.save(planted, folder / "table.parquet")
    tables.save(pd.DataFrame({"index": ["cka"], "value": [0.5]}), folder / "similarities.parquet")
    return folder


def test_files_hold_the_tables_as_other_readers_see_them(place: Path, tmp_path: Path, planted: pd.DataFrame) -> None:
    for kind in FILES:
        paths = write_tables(read_tables(place), kind, tmp_path / kind)
        assert [path.name for path in paths] == [f"similarities.{kind}", f"table.{kind}"]
    with open(tmp_path / "csv" / "table.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [name for name in COLUMNS if name != "outcomes"]
    assert [float(row["penalty"]) for row in rows[:-1]] == list(planted["penalty"][:-1])
    assert (rows[-1]["penalty"], rows[-1]["n"], rows[-1]["error"]) == ("", "400", "FitError: no")
    for made in (
        feather.read_table(tmp_path / "feather" / "table.feather"),
        arrow.read_table(tmp_path / "parquet" / "table.parquet"),
    ):
        assert made.column_names == list(COLUMNS)
        assert made["penalty"].to_pylist() == [*planted["penalty"][:-1], None]
        assert [str(made.schema.field(name).type) for name in ("n", "converged")] == ["int64", "bool"]
        assert made["control"].to_pylist()[:2] == ["", ""]  # empty, not missing
    pd.testing.assert_frame_equal(tables.load(tmp_path / "parquet" / "table.parquet"), planted)


def test_polars_reads_them(place: Path, planted: pd.DataFrame) -> None:
    polars = pytest.importorskip("polars")
    made = polars.read_parquet(place / "table.parquet").filter(status="ok", control="")
    assert made["penalty"].to_list() == list(planted[planted["control"] == ""]["penalty"])


def test_of_a_store_what_it_measured_goes_out(place: Path, tmp_path: Path) -> None:
    store = Store.make(tmp_path / "run")
    for name in ("beside", "table"):
        tables.save(pd.DataFrame({"x": [1]}), store.path / f"{name}.parquet")
    found = read_tables(store.path)
    assert set(found) == {"table", "beside"}
    assert list(found["table"].columns) == list(COLUMNS)  # of the store, not of the file
    assert list(read_tables(place / "table.parquet")) == ["table"]


def test_what_is_no_run_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere has no table; give the folder of a run"):
        read_tables(tmp_path / "nowhere")
    (place / "table.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(DataError, match=r"table.parquet is not a table, or is damaged"):
        read_tables(place)


def test_the_command_writes_beside_the_tables(run: Command, place: Path) -> None:
    code, out, err = run(f"export {place} --to csv")
    assert (code, out) == (0, "")
    assert err == f"wrote {place / 'similarities.csv'}\nwrote {place / 'table.csv'}\n"
    code, out, _ = run(f"export {place / 'table.parquet'} --to feather --json")
    assert str(place / "table.feather") in out
    code, out, err = run(f"export {place} --to csb")
    assert (code, out) == (2, "")
    assert "did you mean csv?" in err
    assert tuple(FILES) == command.KINDS

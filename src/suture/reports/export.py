"""Write the tables of a run for other tools: CSV, parquet and feather.

Parquet and feather keep the types of ``table.COLUMNS``; in CSV, which is text, an empty cell and a missing one look
the same, and a text that a spreadsheet would compute stands behind an apostrophe. ``docs/how-to/export.md`` shows what
to paste for MLflow, Weights & Biases and TensorBoard.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from suture.common.atomic import whole
from suture.common.errors import DataError
from suture.measurement.tables.table import read, write_csv
from suture.runs.store.files import writing_to
from suture.runs.store.store import LABEL, TABLE, Store

FILES: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "csv": write_csv,
    "parquet": lambda table, path: table.to_parquet(path, index=False),
    "feather": lambda table, path: table.to_feather(path),
}
"""How a table is written, by the ending of the file."""


def read_tables(place: str | Path) -> dict[str, pd.DataFrame]:
    """Read the tables of a run's folder, of any folder of parquet files, or of one such file, by their names.

    Raises ``DataError`` if there is none, or one is damaged.
    """
    path = Path(place).expanduser()
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    tables = {}
    if (path / LABEL).is_file():  # a store knows trials that ended after its table was last written
        tables[Path(TABLE).stem] = Store(path).table()
        files = [file for file in files if file.name != TABLE]
    for file in files:
        if (table := read(file)) is not None:
            tables[file.stem] = table
    if not tables:
        raise DataError(f"{path} has no table; give the folder of a run (--out, store=), or a parquet file")
    return tables


def write_tables(tables: dict[str, pd.DataFrame], kind: str, folder: str | Path) -> list[Path]:
    """Write tables to a folder as ``NAME.KIND``, and return the paths. Raises ``OutputError``."""
    folder, paths = Path(folder).expanduser(), []
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            paths.append(folder / f"{name}.{kind}")
            with whole(paths[-1]) as temporary:
                FILES[kind](table, temporary)
    return paths

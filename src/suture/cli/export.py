"""``suture export``: the tables of a run as CSV, parquet or feather."""

from argparse import Namespace
from pathlib import Path

from suture.cli import output
from suture.cli.options import JSON, command, option, out_option

KINDS = ("csv", "parquet", "feather")  #: the keys of ``export.FILES``, which takes long to import


@command(
    "export",
    option("folder", metavar="FOLDER", help="folder of a run or of tables; or one table, a parquet file"),
    option("--to", choices=KINDS, required=True, help="csv, parquet or feather"),
    out_option("folder for the files; by default FOLDER"),
    JSON,
    examples=(
        "suture export runs/ab --to csv",
        "suture export runs/ab --to feather --out for-r",
        "suture export papers/results/small/bansal-2C.trials.parquet --to csv --out .",
    ),
)
def export(chosen: Namespace) -> int:
    """Write a run's tables as CSV, parquet or feather.

    Write the tables of a run for pandas, polars, R and the like.
    """
    from suture.reports.export import read_tables, write_tables

    path = Path(chosen.folder).expanduser()
    written = write_tables(read_tables(path), chosen.to, chosen.out or (path if path.is_dir() else path.parent))
    output.say_wrote(written)
    if chosen.json:
        output.show_json({"to": chosen.to, "files": [str(file) for file in written]})
    return 0

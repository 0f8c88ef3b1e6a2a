"""``suture export``: the tables of a run as CSV, parquet or feather."""

from argparse import Namespace
from pathlib import Path

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.options import add_json, add_out

KINDS = ("csv", "parquet", "feather")  #: the keys of ``export.FILES``, which takes long to import


def options(parser: Parser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="of a run or of tables; or one table, a parquet file")
    add("--to", choices=KINDS, required=True, help="csv, parquet or feather")
    add_out(parser, "folder for what is written, by default FOLDER")
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Write a run's tables and return the exit code."""
    from suture.report.export import read_tables, write_tables

    path = Path(chosen.folder).expanduser()
    written = write_tables(read_tables(path), chosen.to, chosen.out or (path if path.is_dir() else path.parent))
    output.say_wrote(written)
    if chosen.json:
        output.show_json({"to": chosen.to, "files": [str(file) for file in written]})
    return 0


COMMAND = Command(
    name="export",
    help="write a run's tables as CSV, parquet or feather",
    about="Write the tables of a run for pandas, polars, R and the like.",
    examples=(
        "suture export runs/ab --to csv",
        "suture export runs/ab --to feather --out for-r",
        "suture export results/small/bansal-2C.trials.parquet --to csv --out .",
    ),
    options=options,
    run=run,
)

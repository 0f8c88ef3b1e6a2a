"""The command that writes a run's tables for other tools, ``export``, and what it takes."""

from difflib import get_close_matches
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from suture.cli import output
from suture.cli.options import add_json, new_parser
from suture.cli.output import say
from suture.common.errors import SutureError

TO = ("csv", "parquet", "feather")  #: the keys of ``export.FILES``, which takes long to import


def export_parser() -> ArgumentParser:
    """Make the parser of ``suture export``."""
    parser = new_parser(
        "Write the tables of a run for pandas, polars, R and the like.",
        "suture export runs/ab --to csv",
        "suture export runs/ab --to feather --out for-r",
        "suture export results/small/bansal-2C.trials.parquet --to csv --out .",
    )
    add = parser.add_argument
    add("folder", type=str, metavar="FOLDER", help="of a run or of tables; or one table, a parquet file")
    add("--to", type=str, required=True, metavar="KIND", help=f"{', '.join(TO[:-1])} or {TO[-1]}")
    add("--out", type=str, default=None, metavar="FOLDER", help="folder for what is written, by default FOLDER")
    add_json(parser)
    return parser


def export(chosen: Namespace, command: str) -> int:
    """Write a run's tables; the exit code."""
    if chosen.to not in TO:
        near = get_close_matches(chosen.to, TO, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SutureError(f"--to {chosen.to}: {meant}give one of {', '.join(TO)}")
    from suture.report.export import read_tables, write_tables

    path = Path(chosen.folder).expanduser()
    out = chosen.out or (path if path.is_dir() else path.parent)
    written = [str(file) for file in write_tables(read_tables(path), chosen.to, out)]
    for file in written:
        say(f"wrote {file}")
    if chosen.json:
        output.show_json({"to": chosen.to, "files": written})
    return 0

"""``suture report``: what a run measured, or a study, or two runs beside each other, as one page to be read."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.options import add_json, named_path
from suture.common.errors import SutureError

NAME = "report.html"  #: the file in the folder, if no other is named


def options(parser: Parser) -> None:
    """Add the options."""
    folders = "of a run (what its command was given as --out) or of results of studies; two are compared"
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help=folders)
    parser.add_argument("--study", metavar="IDS", help="of these studies alone, such as bansal-2A,smith-4.1")
    parser.add_argument("--out", type=named_path, metavar="FILE", help=f"by default {NAME} in the (first) folder")
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Write the report of a run, of studies, or of two runs compared, and return the exit code."""
    from suture.common.sizes import in_words
    from suture.report.html import render, write

    if len(chosen.folders) > 2:
        raise SutureError(f"{chosen.folders[2]}: a report is of one run, or compares two; give at most two folders")
    runs = [_read(folder, chosen.study) for folder in chosen.folders]
    file = Path(chosen.out).expanduser() if chosen.out is not None else _beside(chosen.folders, runs)
    if file.is_dir():
        raise SutureError(f"--out {chosen.out}: this is a folder; name a file, such as {file / NAME}")
    written = write(render(*runs), file)
    size = written.stat().st_size
    if chosen.json:
        output.show_json({"file": str(written), "bytes": size})
    else:
        output.say(f"wrote {written} ({in_words(size)}); open it in a browser")
    return 0


def _read(folder: str, studies: str | None) -> Any:
    from suture.report.html import of_study, only, read

    named = of_study(folder)
    run = read(named[0] if named is not None else folder)
    asked = tuple(dict.fromkeys(studies.split(","))) if studies is not None else named[1:] if named else ()
    return only(run, asked) if asked else run


def _beside(folders: Sequence[str], runs: Sequence[Any]) -> Path:
    """Return where a report goes that is given no place: into the folder; of a single study, beside its results."""
    folder = Path(folders[0]).expanduser()
    if folder.is_dir():
        return folder / NAME
    return folder.parent / f"{runs[0].results[0][0].id}.html"


COMMAND = Command(
    name="report",
    help="write a run, studies or two runs compared as one HTML page",
    about="Write what the run in a folder measured as one HTML file that needs no network: what was asked, the "
    "verdict, the curve or the matrix to look into, what must not be concluded, cost, versions, and how to repeat it; "
    "of studies, their claims. Of two folders, write a comparison of what both measured.",
    examples=(
        "suture report runs/ab",
        "suture report runs/ab runs/ab-wide --out compared.html",
        "suture report runs/papers --study bansal-2A",
        "suture report results/small/bansal-2C",
    ),
    options=options,
    run=run,
)

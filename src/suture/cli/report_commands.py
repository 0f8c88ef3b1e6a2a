"""The command ``report``: what a run measured, or a study, or two runs beside each other, as one page to be read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.output import say
from suture.common.errors import SutureError

NAME = "report.html"  #: the file in the folder, where no other is named


def report(chosen: Namespace, command: str) -> int:
    """Write the report of a run, of studies, or of two runs compared; the exit code."""
    from suture.common.sizes import in_words
    from suture.report.html import render, write

    folders = list(chosen.folders)
    if len(folders) > 2:
        raise SutureError(f"{folders[2]}: a report is of one run, or compares two; give at most two folders")
    runs = [_read(folder, chosen.study) for folder in folders]
    path = Path(chosen.out).expanduser() if chosen.out is not None else _beside(folders, runs)
    if path.is_dir():
        raise SutureError(f"--out {chosen.out}: this is a folder; name a file, such as {path / NAME}")
    written = write(render(*runs), path)
    size = written.stat().st_size
    if chosen.json:
        output.show_json({"file": str(written), "bytes": size})
    else:
        say(f"wrote {written} ({in_words(size)}); open it in a browser")
    return 0


def _read(folder: str, studies: str | None) -> Any:
    from suture.report.html import of_study, only, read

    named = of_study(folder)
    run = read(named[0] if named is not None else folder)
    asked = tuple(dict.fromkeys(studies.split(","))) if studies is not None else named[1:] if named else ()
    return only(run, asked) if asked else run


def _beside(folders: Sequence[str], runs: Sequence[Any]) -> Path:
    """Where a report goes that is given no place: into the folder; of a single study, beside its results."""
    folder = Path(folders[0]).expanduser()
    if folder.is_dir():
        return folder / NAME
    return folder.parent / f"{runs[0].results[0][0].id}.html"

"""Output of commands: results to standard output, everything else to standard error."""

import json
import math
import os
import shlex
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suture.common.visible import visible

Parts = list[list[Any]]
"""What is printed, in paragraphs of tables and texts."""


def say(line: str) -> None:
    """Print a message that is not a result."""
    print(visible(line), file=sys.stderr, flush=True)


#: The names of function arguments in errors, and their counterparts on the command line.
_OPTIONS = {
    "at=[(sender cut, receiver cut)]": "--at SENDER_CUT:RECEIVER_CUT",
    "size=… resizes": "--size PIXELS resizes",
    ": split=0.2": ": --split 0.2",
    "use Unchanged()": "choose a recipe that leaves samples as they are, such as digits",
    "samples_as='flattened'": "--samples-as flattened",
    "(Relabelled(…, everywhere=True)), or leave out on=": "(relabelled,…,everywhere=True), or none",
    "data.limited(fit=…, score=…)": "--fit-samples N, --score-samples N",
    "give a store=": "give --out FOLDER",
    "ignore=[": "--ignore [",
    "ignore= ": "--ignore ",
    "say trust=True": "say --trust",
    "; name those that training does not change: constants=(…)": "; register buffers that training does not change "
    "with persistent=False, or leave the untrained controls out, "
    "--controls itself,shuffled-pairs,clustered-noise",
} | {
    f" {name}={after}": f" --{name}{after or ' '}"
    for name in ("chance", "size", "split", "classes", "margin", "stitch")
    for after in (";", " ", "")
}


def in_options(message: str) -> str:
    """Return a message of the package with settings as the command line has them."""
    for in_python, here in _OPTIONS.items():
        message = message.replace(in_python, here)
    return message


def say_wrote(files: Sequence[Path]) -> None:
    """Say which files were written."""
    for file in files:
        say(f"wrote {file}")


def show(*things: Any) -> None:
    """Print tables and texts to standard output, without spaces at the ends of lines."""
    from suture.common.screen import Screen

    plain = False if os.environ.get("TERM") in ("dumb", "unknown") else None  # rich would not ask for their width
    console = Screen(highlight=False, markup=False, emoji=False, width=width(), force_terminal=plain)
    with console.capture() as captured:
        console.print(*things, sep="\n")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def show_text(text: str) -> None:
    """Print a text, breaking lines that are too long between words, but not those of a command to copy."""
    wrapper = textwrap.TextWrapper(width(), subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    before = ""
    for line in text.splitlines():
        copied = line.startswith("suture ") or before.endswith(" \\")
        print(visible(line if copied else wrapper.fill(line)))
        before = line
    print(end="", flush=True)


def show_json(content: object) -> None:
    """Print JSON to standard output."""
    print(json.dumps(_without_nan(content), indent=2, allow_nan=False), flush=True)


def _without_nan(content: Any) -> Any:
    """Put ``None`` for numbers that are not finite, which JSON does not have."""
    if isinstance(content, Mapping):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def answer(chosen: Namespace, record: object, *things: Any) -> None:
    """Print a result: as JSON if that was asked for, else as tables and texts."""
    if chosen.json:
        show_json(record)
    else:
        show(*things)


def width() -> int:
    """Return the width of the screen, in characters."""
    return shutil.get_terminal_size().columns


def curve_parts(reading: Any) -> Parts:
    """Return the printed parts of a curve. Raises ``DataError`` if the reading is not of a curve."""
    from suture.measurement.tables.say import say_curve
    from suture.reports.terminal import curve as screen

    tables = [screen.curve_table(reading.curve, width()), *screen.answers_table(reading, width())]
    return [[screen.curve_heading(reading.curve)], tables, ["\n".join(say_curve(reading))]]


def say_preview(table: Any) -> None:
    """Print a preview of a curve or a matrix to standard error, under a heading."""
    from suture.common.errors import DataError
    from suture.common.screen import Screen
    from suture.measurement.tables.curve import arrange_curve
    from suture.measurement.tables.matrix import arrange_matrix
    from suture.reports.terminal import curve as screen
    from suture.reports.terminal import matrix as grids

    try:
        parts: Sequence[Any]
        if (table["plan"] == "matrix").any():
            parts = grids.matrix_tables(arrange_matrix(table), width())
        else:
            parts = [screen.curve_table(arrange_curve(table), width())]
    except DataError:  # no trial could be measured
        return
    console = Screen(stderr=True, highlight=False, markup=False, emoji=False, width=width())
    console.print(screen.preview_heading(table), *parts, sep="\n")


def trait_parts(found: Any) -> Parts:
    """Return the printed parts of an onset: the shares at every cut, and where the trait lies."""
    from suture.reports.terminal import curve as screen

    return [[screen.trait_heading(found)], [screen.trait_table(found)], [str(found)]]


def matrix_parts(reading: Any) -> Parts:
    """Return the printed parts of matrices, with their summary by depth. Raises ``DataError`` if there is no matrix."""
    from suture.measurement.tables.say import say_matrix
    from suture.reports.terminal import matrix as grids

    shown = reading.matrix
    return [
        [grids.matrix_heading(shown)],
        grids.matrix_tables(shown, width()),
        grids.depth_tables(shown, width()),
        ["\n".join(say_matrix(reading))],
    ]


def finish_curve(chosen: Namespace, table: Any, folder: Path | None) -> int:
    """Print the table of a curve, draw its figure, report failures, and return the exit code."""
    from suture.measurement.tables.read import make_reading
    from suture.reports.figures import curve as figures

    reading, files = make_reading(table), [] if folder is None else [folder / "table.parquet"]
    if folder is not None and (table["status"] == "ok").any():
        files += figures.save(figures.curve(reading), folder / "curve")
    return hand_over(chosen, table, files, curve_parts(reading))


def finish_matrix(chosen: Namespace, table: Any, folder: Path | None) -> int:
    """Print matrices and their summary by depth, draw their figure, report failures, and return the exit code."""
    from suture.measurement.tables import table as tables
    from suture.measurement.tables.by_depth import by_depth
    from suture.measurement.tables.read import make_reading
    from suture.reports.figures import curve as figures
    from suture.reports.figures import matrix as heatmaps

    reading, summary = make_reading(table), by_depth(table)
    files = []
    if folder is not None:
        files += [folder / "table.parquet", tables.save(summary, folder / "depth.parquet")]
        if (table["status"] == "ok").any():
            files += figures.save(heatmaps.matrix(reading), folder / "matrix")
    return hand_over(chosen, table, files, matrix_parts(reading), {"by_depth": records(summary)})


def hand_over(
    chosen: Namespace, table: Any, files: Sequence[Path], parts: Parts, record: dict[str, Any] | None = None
) -> int:
    """Print the parts of a report; or, as JSON, the rows of its table with the rest of its record.

    Says which files were written, and which trials failed. Returns the exit code: 1 if trials failed, else 0. A table
    without a column ``status`` has no trials.
    """
    from suture.measurement.tables.table import say_warnings
    from suture.reports.terminal import curve as screen

    warned = say_warnings(table)
    parts = [["\n".join(warned)], *parts] if warned else parts
    failed = table[table["status"] == "failed"]["trial"].nunique() if "status" in table else 0
    counted = {"failed": failed} if "status" in table else {}
    whole = {"rows": records(table), **(record or {}), "files": [str(file) for file in files], **counted}
    answer(chosen, whole, *[line for part in parts if any(part) for line in ("", *part)][1:])
    say_wrote(files)
    if not chosen.json and files and "table.parquet" in {file.name for file in files}:
        say(f"for the verdict and conclusions to avoid: suture explain {shlex.quote(str(files[0].parent))}")
    if failed:
        reasons = "; ".join(screen.failures(table))
        say(f"suture: {failed} of {table['trial'].nunique()} trials failed: {reasons}")
    return 1 if failed else 0


def records(table: Any) -> Any:
    """Return the rows of a table as plain values."""
    from suture.measurement.tables.table import for_text

    return json.loads(for_text(table).to_json(orient="records", double_precision=15))

"""Reports on a store for the terminal: the progress of its run, and damaged files."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.common.formatting import say_count
from suture.common.sizes import in_words
from suture.runs.store.inspect import Finding, Status

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

_ERRORS = 5  #: distinct messages of failed trials that are shown
_PATHS = 8  #: paths with one and the same problem that are shown


def status_text(status: Status, width: int = 80) -> str:
    """Describe the progress of a run, its size on the disk, its failures, and how to continue it.

    ``width`` is that of the screen, in characters; a command longer than that is broken as a shell reads it.
    """
    parts = [
        f"{status.path}: {_how_far(status)}",
        f"{in_words(status.result_bytes)} of results, {in_words(status.activation_bytes)} of cached activations; last "
        f"change {status.last_change:%Y-%m-%d %H:%M}",
    ]
    if status.outdated:
        parts.append(
            f"measured by {status.outdated}: measure again, in another folder, what is to be compared with new results"
        )
    if status.errors:
        most = sorted(status.errors.items(), key=lambda item: -item[1])
        parts += ["", *(f"failed: {count} × {' '.join(error.split())}" for error, count in most[:_ERRORS])]
        if len(most) > _ERRORS:
            parts.append(f"and {say_count(len(most) - _ERRORS, 'other message')}; --json has them all")
    further = going_on(status, width)
    return "\n".join([*parts, *(["", further] if further else [])])


def _how_far(status: Status) -> str:
    said = (
        f"{status.measured} of {say_count(status.planned, 'trial')} measured" if status.planned else "no trials planned"
    )
    if status.failed:
        said += f", {status.failed} failed"
    if status.missing:
        said += f", {status.missing} missing"
    return said + (f"; {status.running} being worked on now" if status.running else "")


def going_on(status: Status, width: int = 80) -> str:
    """Say how to continue a run: with missing trials, else with failed ones; empty if there are none."""
    if not status.planned or (status.complete and not status.failed):
        return ""
    if status.command is None:
        retry = ", retry=True" if status.complete else ""
        what = "measure the failed trials again" if status.complete else "continue"
        return f"to {what}, run the same plan again: suture.run(plan, store={str(status.path)!r}{retry})"
    words = shlex.split(status.command)
    if status.complete:
        words += ["--retry"] if "--retry" not in words else []
        return f"to measure the failed trials again:\n{broken(words, width)}"
    return f"to continue:\n{broken(words, width)}"


def broken(words: Sequence[str], width: int = 80) -> str:
    """Write a command in lines of at most ``width`` characters, where its words allow, as a shell reads it."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def status_record(status: Status) -> dict[str, Any]:
    """Return a status as plain values."""
    made = asdict(status) | {"path": str(status.path), "last_change": status.last_change.isoformat("T", "seconds")}
    return made | {"errors": dict(status.errors), "complete": status.complete}


def findings_text(findings: Sequence[Finding], folder: Path) -> str:
    """Describe damaged files and their remedies: a paragraph per kind of damage, with the first of its places."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.problem, finding.remedy), []).append(finding)
    return "\n\n".join(_paragraph(places, folder) for places in kinds.values())


def _paragraph(places: Sequence[Finding], folder: Path) -> str:
    first = places[0]
    paths = []
    for finding in places[:_PATHS]:
        others = f" and {len(finding.trials) - 1} more" if len(finding.trials) > 1 else ""
        readers = f": {finding.trials[0]}{others}" if finding.trials else ""
        paths.append(f"{finding.path.relative_to(folder)}{readers}")
    more = len(places) - len(paths)
    paths += [f"and {more} more; --json names them all"] if more else []
    return "\n".join([*paths, f"  {first.problem}", f"  remedy: {first.remedy}"])


def trials_table(table: "pd.DataFrame", score: str) -> "Table":
    """Show a row per trial: for tables that are neither one curve nor one matrix."""
    from pandas import isna

    from suture.reports.terminal.curve import FAILED, lay_out, written  # as pandas, what a status need not wait for

    rows = table[table["score"] == score]
    cells = []
    for _, row in rows.iterrows():
        percent = row["unit"] == "fraction"
        sender = f"{row['sender']} {row['sender_cut']}" if row["sender"] else "noise"
        value = written(row["stitched"], percent) if row["status"] == "ok" else FAILED
        penalty = "" if isna(row["penalty"]) else f"{row['penalty']:+.{1 if percent else 3}f}"
        seam = f"{sender} → {row['receiver']} {row['receiver_cut']}"
        cells.append((seam, row["control"], row["seed"], value, penalty))
    return lay_out(("seam", "control", ">seed", ">stitched", ">penalty"), cells, narrow=True)

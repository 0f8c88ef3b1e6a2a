"""The commands that look at the folder of a run: ``status``, ``table`` and ``verify``.

Exit codes: 0 all is measured (``verify``: all is sound), 1 some trials failed (something is damaged), 3 some are not
measured yet.
"""

import shlex
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.output import say
from suture.common.errors import DataError, OutputError


def status(chosen: Namespace, command: str) -> int:
    """Say how far a run is."""
    from suture.report.terminal import store as stores
    from suture.runs.store import inspect as inspection

    found = inspection.status(chosen.folder)
    if chosen.json:
        output.show_json(stores.status_record(found))
    else:
        _print(stores.status_text(found, output.width()))
    return _code(found)


def _code(status: Any) -> int:
    return 3 if not status.complete else 1 if status.failed or status.networks_failed else 0


def _print(text: str) -> None:
    """Print a text between whose words lines may be broken where they are too long, but for commands."""
    import textwrap

    lines = text.splitlines()
    wide = output.width()
    for place, line in enumerate(lines):
        after = place and lines[place - 1].endswith((" \\", ":"))
        kept = line.endswith(" \\") or after or len(line) <= wide
        print(line if kept else textwrap.fill(line, wide, subsequent_indent="  ", break_on_hyphens=False))
    print(end="", flush=True)


def table(chosen: Namespace, command: str) -> int:
    """Show what is measured so far."""
    from suture.measurement.tables import table as tables
    from suture.report.terminal import store as stores
    from suture.runs.store import inspect as inspection
    from suture.runs.store.store import TABLE, Store

    store = Store(chosen.folder)
    found = inspection.status(store.path)
    made = store.table()
    files = []
    try:
        files.append(tables.save(made, store.path / TABLE))
    except OutputError as error:
        say(f"suture: the table is shown, not kept: {error}")
    if chosen.csv is not None:
        files.append(_write_csv(made, Path(chosen.csv).expanduser()))
    record = {"missing": found.missing} if chosen.json else None
    parts = _parts(made, found.command) if len(made) and record is None else [["nothing is measured yet"]]
    shown = output.hand_over(made, files, record, parts)
    if found.missing:
        say(f"suture: {found.missing} of {found.planned} trials are not measured yet; {stores.on_one_line(found)}")
    return _code(found) or shown


def _parts(table: Any, command: str | None) -> output.Parts:
    """The table as the command that made it shows it; of a run that was made in Python, as what it can be read as."""
    from suture.report.terminal import store as stores

    scores = list(dict.fromkeys(table["score"]))
    score = "accuracy" if "accuracy" in scores else scores[0]
    views = [output.curve_parts, output.matrix_parts]
    if command is not None and "matrix" in shlex.split(command)[1:2]:
        views.reverse()
    for view in views:
        try:
            return view(table, score)
        except DataError:  # several curves, say
            continue
    return [[stores.trials_table(table, score)]]


def _write_csv(table: Any, path: Path) -> Path:
    from suture.common.atomic import whole

    try:
        with whole(path) as temporary:
            table.to_csv(temporary, index=False)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another file") from error
    return path


def verify(chosen: Namespace, command: str) -> int:
    """Say what of a run's folder is damaged, and which trials read it."""
    from suture.report.terminal import store as stores
    from suture.runs.store import inspect as inspection
    from suture.runs.store.store import NETWORKS, TRIALS, Store

    folder = Path(chosen.folder).expanduser()
    findings = inspection.verify(folder)
    harm = sum(not finding.harmless for finding in findings)
    if chosen.json:
        found = [stores.finding_record(finding) for finding in findings]
        output.show_json({"path": str(folder), "sound": not harm, "findings": found})
        return 1 if harm else 0
    parts = [stores.findings_text(findings, folder)] if findings else []
    if harm:
        parts.append(f"{folder} is damaged in {harm} place{'' if harm == 1 else 's'}")
    else:
        store = Store(folder)
        counts = f"{len(store.finished(TRIALS))} trials and {len(store.finished(NETWORKS))} base networks"
        parts.append(f"{folder} is sound: {counts}, whole")
    _print("\n\n".join(parts))
    return 1 if harm else 0

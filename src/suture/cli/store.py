"""``suture status``, ``table``, ``clean`` and ``verify``: the folder of a run."""

import shlex
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.options import JSON, RUN, command, option
from suture.common.errors import DataError, OutputError
from suture.common.formatting import say_count


@command("status", RUN, JSON, examples=("suture status runs/ab",))
def status(chosen: Namespace) -> int:
    """Show the progress of the run in a folder, and how to continue it.

    Show the progress of the run in a folder: the trials that are measured, have failed, are missing or are being worked
    on, its size on the disk, and the command that continues it. The exit code is 0 if all is measured, 1 if some trials
    failed, 3 if some are not measured yet.
    """
    from suture.reports.terminal import store as stores
    from suture.runs.store import inspect as inspection

    found = inspection.status(chosen.folder)
    if chosen.json:
        output.show_json(stores.status_record(found))
    else:
        output.show_text(stores.status_text(found, output.width()))
    return _code(found)


def _code(status: Any) -> int:
    return 3 if not status.complete else 1 if status.failed else 0


@command(
    "table",
    RUN,
    JSON,
    examples=("suture table runs/ab",),
)
def table(chosen: Namespace) -> int:
    """Show the results so far of the run in a folder.

    Show the results so far of the run in a folder, whether it is finished, stopped or running, and write its
    table.parquet anew. The exit code is that of suture status.
    """
    from suture.measurement.tables import table as tables
    from suture.reports.terminal import store as stores
    from suture.runs.store import inspect as inspection
    from suture.runs.store.store import TABLE, Store

    store = Store(chosen.folder)
    found = inspection.status(store.path)
    made = store.table()
    files = []
    try:
        files.append(tables.save(made, store.path / TABLE))
    except OutputError as error:
        output.say(f"suture: the table is shown, not kept: {error}")
    parts = _parts(made, found.command) if len(made) else [["nothing is measured yet"]]
    shown = output.hand_over(chosen, made, files, parts, {"missing": found.missing})
    if found.missing:
        further = f"continue with: {found.command}" if found.command is not None else stores.going_on(found)
        output.say(f"suture: {found.missing} of {found.planned} trials are not measured yet; {further}")
    return _code(found) or shown


def _parts(table: Any, command: str | None) -> output.Parts:
    """Return the table as the command that made it shows it."""
    from suture.measurement.tables.onset import onset
    from suture.measurement.tables.read import make_reading, trait_of
    from suture.reports.terminal import store as stores

    reading = make_reading(table)
    by_matrix = command is not None and "matrix" in shlex.split(command)[1:2]  # also of one seam
    view = "matrix" if by_matrix else reading.kind
    try:
        if view == "trait":
            return output.trait_parts(onset(table, *trait_of(table)))
        return output.curve_parts(reading) if view == "curve" else output.matrix_parts(reading)
    except DataError:  # several curves, say
        return [[stores.trials_table(table, reading.score)]]


@command(
    "clean",
    RUN,
    option("--dry-run", action="store_true", help="only list the files that would be removed"),
    JSON,
    examples=("suture clean runs/ab --dry-run", "suture clean runs/ab"),
)
def clean(chosen: Namespace) -> int:
    """Remove the activations that a stopped run left.

    Remove the cached activations, and the images that workers shared, from the folder of a run. Results stay, and a run
    that continues computes what it needs again. A run that ends removes them itself.
    """
    from suture.common.errors import StoreError
    from suture.common.sizes import in_words
    from suture.runs.store.store import Locks, Store

    store = Store(chosen.folder)
    found = store.find_removable()
    if not chosen.dry_run and found:
        if Locks(store.path / "locks").others():
            raise StoreError(f"a run is still working in {store.path}; clean the folder when it has ended")
        store.clean()
    size = sum(found.values())
    record = {"path": str(store.path), "files": len(found), "bytes": size, "removed": not chosen.dry_run}
    done = "would be freed" if chosen.dry_run else "freed"
    output.answer(chosen, record, f"{in_words(size)} {done} in {store.path}: {len(found)} files of activations")
    return 0


@command("verify", RUN, JSON, examples=("suture verify runs/ab",))
def verify(chosen: Namespace) -> int:
    """Check whether the files of the run in a folder are sound.

    Read all files of the run in a folder, compare them with the checksums written beside them, and list damaged files
    with a remedy. The exit code is 0 if all are sound, 1 if one is damaged.
    """
    from suture.reports.terminal import store as stores
    from suture.runs.store import inspect as inspection
    from suture.runs.store.store import NETWORKS, TRIALS, Store

    folder = Path(chosen.folder).expanduser()
    findings = inspection.verify(folder)
    if chosen.json:
        found = [asdict(finding) | {"path": str(finding.path)} for finding in findings]
        output.show_json({"path": str(folder), "sound": not findings, "findings": found})
        return 1 if findings else 0
    parts = [stores.findings_text(findings, folder)] if findings else []
    if findings:
        parts.append(f"{folder} is damaged in {say_count(len(findings), 'place')}")
    else:
        store = Store(folder)
        counts = f"{len(store.finished(TRIALS))} trials and {len(store.finished(NETWORKS))} base networks"
        parts.append(f"{folder} is sound: {counts}, whole")
    output.show_text("\n\n".join(parts))
    return 1 if findings else 0

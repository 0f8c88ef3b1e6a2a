"""Inspection of a store from outside: the progress of its run, and damaged files.

Nothing here needs the run to be over, nor the networks or the data that it was made with. ``verify`` reads every file
of every result and compares it with the SHA-256 written beside it or in it, so it finds changes by a disk, a copy or a
person. It changes nothing. A run checks each result in the same way before using it, and measures again the trials
whose result is damaged, or which read damaged activations.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from suture.common.constants import ACTIVATIONS
from suture.common.errors import DataError, StoreError
from suture.common.sealed import from_json, is_sound
from suture.runs.store.files import read
from suture.runs.store.store import FILES, LABEL, NETWORKS, TABLE, TRIALS, Locks, Store

_ACTIVATIONS = "activations"
_AGAIN = {TRIALS: "the next run measures it again", NETWORKS: "the next run trains it again"}


@dataclass(frozen=True)
class Status:
    """The progress of a run. Trials with the same measurement count once; sizes are in bytes.

    ``missing`` are those neither measured nor failed, ``running`` counts the pieces of work of living processes.
    ``errors`` counts distinct messages; ``command`` is the command line that began the run, if one did; ``outdated``
    names the parts used by its measurements that have another version now; it is empty if none has.
    """

    path: Path
    planned: int
    measured: int
    failed: int
    missing: int
    running: int
    result_bytes: int
    activation_bytes: int
    last_change: datetime
    command: str | None
    errors: Mapping[str, int]
    outdated: str

    @property
    def complete(self) -> bool:
        """Whether no planned trial is left to do, though some may have failed."""
        return bool(self.planned) and not self.missing


@dataclass(frozen=True)
class Finding:
    """Something in a store that has changed since it was written; ``trials`` are those that read it, in words."""

    path: Path
    problem: str
    remedy: str
    trials: tuple[str, ...] = ()


def status(folder: str | Path) -> Status:
    """Return the progress of a folder's run. Raises ``StoreError`` if it is not a store, or its plans are damaged."""
    store = Store(folder)
    planned = {trial.key for trial in store.plans.trials()}
    failures = store.failures()
    measured, failed = planned & store.finished(), planned & failures.keys()
    sizes, changes = _sizes(store.path)
    return Status(
        path=store.path,
        planned=len(planned),
        measured=len(measured),
        failed=len(failed),
        missing=len(planned - measured - failed),
        running=Locks(store.path / "locks").others(),
        result_bytes=sizes["results"],
        activation_bytes=sizes[_ACTIVATIONS],
        last_change=datetime.fromtimestamp(changes).astimezone(),
        command=store.plans.command(planned - measured),
        errors=Counter(str(failure["error"]) for key, failure in failures.items() if key in planned),
        outdated=store.plans.find_outdated(),
    )


def _sizes(path: Path) -> tuple[dict[str, int], float]:
    """Return the bytes of results and of activations, and when a result last changed."""
    sizes, last = {"results": 0, _ACTIVATIONS: 0}, 0.0
    for folder, _, names in os.walk(path):
        inside = Path(folder).relative_to(path).parts[:1]
        if inside == ("locks",):
            continue
        for name in names:
            try:
                found = os.stat(os.path.join(folder, name))
            except FileNotFoundError:  # another process has just removed it
                continue
            sizes[_ACTIVATIONS if inside == (_ACTIVATIONS,) else "results"] += found.st_size
            if inside and inside != (_ACTIVATIONS,):
                last = max(last, found.st_mtime)
    return sizes, last or (path / LABEL).stat().st_mtime


# --- whether it is sound ----------------------------------------------------------------------------------------------


def verify(folder: str | Path) -> tuple[Finding, ...]:
    """Read everything that a store keeps, and return a finding for each damage; none in a sound store.

    Raises ``StoreError`` if the folder is not a store, or of a format that this version does not read.
    """
    store = Store(folder)
    plans, labels = _check_plans(store.path)
    return (
        *plans,
        *(finding for kind in FILES for finding in _check_results(store, kind, labels)),
        *_check_activations(store, labels),
        *_check_sealed(store.path),
    )


def _check_plans(path: Path) -> tuple[list[Finding], dict[str, Mapping[str, Any]]]:
    """Check the plans; return findings, and the labels of every trial that can be read, by key."""
    plans, found, labels = sorted((path / "plans").glob("*.json")), [], dict[str, Mapping[str, Any]]()
    remedy = (
        "delete it and start the run again, which writes it anew and measures nothing twice (with --extend, or "
        "extend=True, if it takes the folder for another run's)"
    )
    for plan in plans:
        try:
            labels |= {trial["key"]: trial["labels"] for trial in read(plan, "trials")["trials"]}
        except StoreError:
            found.append(
                Finding(plan, "has changed since it was written; the table has no names for its trials", remedy)
            )
    if not plans and any((path / TRIALS).glob("[!.]*")):
        problem = "holds no plan, so the table has no names for the trials that are measured"
        again = "start the run again: it writes the plan anew, and measures nothing twice"
        found.append(Finding(path / "plans", problem, again))
    return found, labels


def _check_results(store: Store, kind: str, labels: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Check results of a kind; yield findings that name the trials which read damaged files."""
    for folder in sorted((store.path / kind).glob("[!.]*")):
        damaged = store.find_damage(kind, folder.name)
        if not damaged:
            continue
        if kind == TRIALS:
            readers = [labels[folder.name]] if folder.name in labels else []
        else:
            try:
                name = store.record(kind, folder.name).get("name")
            except StoreError:
                name = None
            readers = [said for said in labels.values() if name in (said.get("sender"), said.get("receiver"))]
        words = tuple(dict.fromkeys(_name_trial(said) for said in readers))
        for name, problem in damaged.items():
            yield Finding(folder / name, problem, f"nothing to do: {_AGAIN[kind]}", trials=words)


def _name_trial(labels: Mapping[str, Any]) -> str:
    said = "{sender} {sender_cut} → {receiver} {receiver_cut}".format_map(labels)
    return f"{said} ({labels['control']})" if labels["control"] else said


def _check_activations(store: Store, labels: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    damaged = store.kept_activations().check()
    readers = store.find_readers(damaged) if damaged else {}
    for name in damaged:
        keys = [key for key, read in readers.items() if name in read and key in labels]
        words = tuple(dict.fromkeys(_name_trial(labels[key]) for key in keys))
        remedy = "nothing to do: the next run computes it again, and measures again what read it"
        yield Finding(store.activations / name, "has changed since it was written", remedy, trials=words)


def _check_sealed(path: Path) -> Iterator[Finding]:
    """Check the other files that carry a hash: tables, failures, results of studies, checkpoints, images."""
    for file in sorted(path.rglob("[!.]*")):
        checked_before = file.relative_to(path).parts[0] in (*FILES, "plans") or file.name.endswith(ACTIVATIONS)
        if checked_before or file.suffix not in _SEALED:
            continue
        try:
            _SEALED[file.suffix](file)
        except FileNotFoundError:  # another process has just removed it
            continue
        except (DataError, OSError, ValueError):
            remedy = "'suture table' writes it anew" if file.name == TABLE else "delete it, and begin the run again"
            yield Finding(file, "has changed since it was written", remedy)


def _check_tensors(file: Path) -> None:
    with open(file, "rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        sound = is_sound(content)
    if not sound:
        raise ValueError("its hash differs")


def _check_table(file: Path) -> None:
    from suture.measurement.tables.table import read  # takes pandas with it, which ``status`` need not wait for

    read(file)


#: Files written with their own hash, by suffix, and the function that checks them.
_SEALED: dict[str, Callable[[Path], object]] = {
    ".json": lambda file: from_json(file.read_bytes()),
    ".parquet": _check_table,
    ".safetensors": _check_tensors,
}

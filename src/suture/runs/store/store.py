"""The store: one folder per run, written a trial at a time, whole or not at all.

::

    suture.json                what it is: format, version of the measuring code
    plans/0001-….json          what was planned: the labels of every trial, in order
    trials/KEY/                measurement.json, curve.json, stitch.safetensors, stitched.json, done
    networks/KEY/              card.json, model.safetensors, done
    failed/trials/KEY.json     error and traceback; retried on request
    activations/               a cache: may be deleted
    locks/                     who is at work on what, as the system's own locks: gone when a process is
    table.parquet              the rows of all that is measured, as of the last run that ended

A trial's folder is written under another name, flushed to the disk and renamed, so that it is there whole or not at
all, whoever is killed; ``done`` has the SHA-256 of each file, as ``sha256sum --check`` reads it. What is finished and
sound is never written again, so any number of processes, on any machines that share the folder, may write one store;
what is damaged counts as not measured.
"""

import hashlib
import os
import platform
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import final

import pandas as pd

from suture.common.errors import StoreError
from suture.common.validation import check_kind
from suture.core.activations.disk_cache import ActivationFolder
from suture.measurement.tables.records import Record
from suture.measurement.tables.table import table_of
from suture.measurement.trials.trial import VERSION
from suture.runs.store.files import flush, is_alive, read_record, rename, text, write, writing_to
from suture.runs.store.plans import Plans

FORMAT = 1  #: of the folder; a reader refuses any other
LABEL, DONE, TABLE = "suture.json", "done", "table.parquet"
TRIALS, NETWORKS = "trials", "networks"
#: For each kind of result, the files of its record and of its tensors; and entries of a record that are files of their
#: own.
FILES = {TRIALS: ("measurement.json", "stitch.safetensors"), NETWORKS: ("card.json", "model.safetensors")}
ASIDE = {"curve": "curve.json", "stitched": "stitched.json"}
_LONG = 3600.0  #: seconds without a change, after which nobody on another machine is still writing a folder


@final
class Store:
    """A run's folder.

    ``Store(folder)`` opens one that is there; ``Store.make(folder)`` makes it if it is not. Raises ``StoreError``
    if the folder is no store, or one of another format, ``OutputError`` if it cannot be written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).expanduser()
        self.plans = Plans(self.path, _read_label(self.path)["measuring"])

    @classmethod
    def make(cls, folder: str | Path) -> "Store":
        """Open the store in a folder, or make one."""
        check_kind("store", folder, str | Path, "a folder, such as runs/ab", StoreError)
        if not str(folder) or "\0" in str(folder):
            raise StoreError(f"store={str(folder)!r} names no folder; give one, such as runs/ab")
        path = Path(folder).expanduser()
        with writing_to(path):
            there = (path / LABEL).exists()
        if not there:
            if (path / TABLE).exists() and not (path / TRIALS).exists():
                raise StoreError(f"{path} has a {TABLE} and no run: name another folder, or move that file away")
            content = {"format": FORMAT, "measuring": VERSION}
            with writing_to(path):
                path.mkdir(parents=True, exist_ok=True)
                write(path / LABEL, text(content))
        store = cls(path)
        with writing_to(path):
            for name in (TRIALS, NETWORKS, "plans", "locks", "activations", f"failed/{TRIALS}", f"failed/{NETWORKS}"):
                (path / name).mkdir(parents=True, exist_ok=True)
            store._sweep()
        return store

    @property
    def activations(self) -> Path:
        """The folder of cached activations."""
        return self.path / "activations"

    # --- what was measured --------------------------------------------------------------------------------------------

    def finished(self, kind: str = TRIALS) -> set[str]:
        """The keys of what is done."""
        try:
            with os.scandir(self.path / kind) as found:
                return {e.name for e in found if not e.name.startswith(".") and os.path.exists(os.path.join(e, DONE))}
        except FileNotFoundError:  # a copy may leave out empty folders
            return set()

    def has(self, kind: str, key: str) -> bool:
        """Whether that is done, and every file is what was written."""
        return not find_damage(self.path / kind / key, kind)

    def record(self, kind: str, key: str) -> Record:
        """The record of what is done. Raises ``StoreError`` if it is damaged."""
        names = ("status", "scores") if kind == TRIALS else ("status",)
        return read_record(self.path / kind / key / FILES[kind][0], *names)

    def tensors(self, kind: str, key: str) -> bytes:
        """Its tensors, as the content of a safetensors file."""
        return (self.path / kind / key / FILES[kind][1]).read_bytes()

    def failures(self, kind: str = TRIALS) -> dict[str, Record]:
        """The records of what failed and has not been done since, by key."""
        keys = {path.stem for path in (self.path / "failed" / kind).glob("[!.]*.json")} - self.finished(kind)
        found = {key: self.failure(kind, key) for key in keys}
        return {key: record for key, record in found.items() if record is not None}

    def failure(self, kind: str, key: str) -> Record | None:
        """The record of one that failed; ``None`` if there is none, or it cannot be read: then it is tried again."""
        try:
            return read_record(self.path / "failed" / kind / f"{key}.json", "status", "error")
        except StoreError:
            return None

    def table(self, known: Mapping[str, Record] | None = None) -> pd.DataFrame:
        """The table of all that was planned and is measured, or has failed, in the order of the plans.

        Records that are ``known``, by key, are not read again.
        """
        trials, records = self.plans.trials(), dict(known or {})
        for key in self.finished() & ({trial.key for trial in trials} - records.keys()):
            records[key] = self.record(TRIALS, key)
        records = self.failures() | records
        return table_of((trial, records[trial.key]) for trial in trials if trial.key in records)

    # --- keeping it ---------------------------------------------------------------------------------------------------

    def keep(self, kind: str, key: str, record: Record, tensors: bytes) -> None:
        """Keep a result. What is finished already stays as it is; a failure gives way to a success.

        Raises ``OutputError`` if it cannot be written; if the disk is full, cached activations go first.
        """
        with writing_to(self.path):
            try:
                self._keep(kind, key, record, tensors)
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                ActivationFolder(self.activations, 0).clear()
                self._keep(kind, key, record, tensors)

    def _keep(self, kind: str, key: str, record: Record, tensors: bytes) -> None:
        failure = self.path / "failed" / kind / f"{key}.json"
        if record["status"] == "failed":
            write(failure, text(record))
            return
        self._put(kind, key, contents(kind, record, tensors))
        failure.unlink(missing_ok=True)

    def _put(self, kind: str, key: str, files: Mapping[str, bytes]) -> None:
        """Write a result's folder whole, unless it is there; one that is damaged gives way."""
        folder = self.path / kind / key
        temporary = folder.with_name(f".{folder.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.part")
        try:
            temporary.mkdir()
            for name, content in files.items():
                with open(temporary / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            flush(temporary)
            if folder.exists() and find_damage(folder, kind):
                aside = temporary.with_name(temporary.name.replace(".part", "-aside.part"))
                rename(folder, aside)
                shutil.rmtree(aside, ignore_errors=True)
            with suppress(FileExistsError):
                rename(temporary, folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what dead processes left half written."""
        for part in (part for kind in FILES for part in (self.path / kind).glob(".*.part")):
            if is_abandoned(part):
                shutil.rmtree(part, ignore_errors=True)


def is_abandoned(part: Path) -> bool:
    """Whether nobody will finish a folder: its process is dead, or on another machine and silent for an hour."""
    if f".{platform.node()}." in part.name:
        return not is_alive(part.name.split(".")[-3])
    try:
        return time.time() - part.stat().st_mtime > _LONG
    except FileNotFoundError:  # it has just been finished
        return False


def find_damage(folder: Path, kind: str) -> dict[str, str]:
    """Return the files of a result that are not what was written, and what is wrong with each."""
    try:
        *lines, rest = (folder / DONE).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return {DONE: "is missing"}
    except (OSError, ValueError) as error:
        return {DONE: f"cannot be read ({error})"}
    known = (*FILES[kind], *ASIDE.values())
    written = {name: sha for sha, mark, name in (line.partition("  ") for line in lines) if mark and name in known}
    if rest or len(written) < len(lines) or not set(FILES[kind]) <= written.keys():
        return {DONE: "is not what was written"}
    wrong = {}
    for name, sha in written.items():
        try:
            with open(folder / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha:
                    wrong[name] = "is not what was written"
        except FileNotFoundError:
            wrong[name] = "is missing"
        except OSError as error:
            wrong[name] = f"cannot be read ({error})"
    return wrong


def contents(kind: str, record: Record, tensors: bytes) -> dict[str, bytes]:
    """The files of a result, by name; the last says that all are there, with the SHA-256 of each."""
    description, content = FILES[kind]
    files = {name: text(record[entry]).encode() for entry, name in ASIDE.items() if entry in record}
    files[description] = text({entry: value for entry, value in record.items() if entry not in ASIDE}).encode()
    files[content] = tensors
    files[DONE] = "".join(f"{hashlib.sha256(made).hexdigest()}  {name}\n" for name, made in files.items()).encode()
    return files


def _read_label(path: Path) -> Record:
    if not (path / LABEL).is_file():
        there = "is no folder of a run: it has no" if path.is_dir() else "does not exist, so it has no"
        there = "is a file, so it has no" if path.is_file() else there
        raise StoreError(f"{path} {there} {LABEL}; give the folder that a run was told to write to (--out, store=)")
    try:
        label: Record = read_record(path / LABEL, "format")
    except StoreError as error:
        raise StoreError(f"{path / LABEL} is damaged; delete it, and start the run again: it writes it anew") from error
    if label.get("format") != FORMAT:
        raise StoreError(
            f"{path} is a store of format {label.get('format')!r}, and this version of Suture reads format {FORMAT}; "
            "use the version that made it, or name another folder"
        )
    return read_record(path / LABEL, "measuring")

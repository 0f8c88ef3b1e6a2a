"""The store: one folder per run, written a trial at a time, whole or not at all.

::

    suture.json                what it is: format, version of the measuring code
    plans/0001-….json          what was planned: the labels of every trial, in order
    trials/KEY/                measurement.json, curve.json, stitch.safetensors, stitched.json, done
    networks/KEY/              card.json, model.safetensors, done
    failed/trials/KEY.json     error and traceback; retried on request
    activations/               a cache: may be deleted
    locks/                     who is at work on what, as the system's own locks: gone when a process is
    damaged/                   what ``suture verify --repair`` put aside
    table.parquet              the rows of all that is measured, as of the last run that ended

A trial's folder is written under another name, flushed to the disk and renamed, so that it is there whole or not at
all, whoever is killed; ``done`` has the SHA-256 of each file, as ``sha256sum --check`` reads it. Whatever is finished
is never written again, so any number of processes, on any machines that share the folder, may write one store.
"""

import hashlib
import os
import platform
import shutil
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
from suture.runs.store.files import alive, flush, read_record, rename, text, write, writing_to
from suture.runs.store.plans import Plans

FORMAT = 1  #: of the folder; a reader refuses any other
LABEL, DONE, TABLE = "suture.json", "done", "table.parquet"
TRIALS, NETWORKS = "trials", "networks"
#: For each kind of result, the files of its record and of its tensors; and entries of a record that are files of their
#: own.
FILES = {TRIALS: ("measurement.json", "stitch.safetensors"), NETWORKS: ("card.json", "model.safetensors")}
ASIDE = {"curve": "curve.json", "stitched": "stitched.json"}


@final
class Store:
    """A run's folder.

    ``Store(folder)`` opens one that is there; ``Store.make(folder)`` makes it where it is not. Raises ``StoreError``
    where the folder is no store, or one of another format, ``OutputError`` where it cannot be written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).expanduser()
        self.plans = Plans(self.path, _label(self.path)["measuring"])

    @classmethod
    def make(cls, folder: str | Path) -> "Store":
        """Open the store in a folder, made where there is none."""
        check_kind("store", folder, str | Path, "a folder, such as runs/ab", StoreError)
        if not str(folder) or "\0" in str(folder):
            raise StoreError(f"store={str(folder)!r} names no folder; give one, such as runs/ab")
        path = Path(folder).expanduser()
        with writing_to(path):
            there = (path / LABEL).exists()
        if not there:
            if (path / TABLE).exists():
                raise StoreError(
                    f"{path} holds the table of a run that has no store (made before there were any); name another "
                    f"folder, or move its {TABLE} away"
                )
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
        """Whether that is done."""
        return (self.path / kind / key / DONE).exists()

    def record(self, kind: str, key: str) -> Record:
        """The record of what is done. Raises ``StoreError`` where it is damaged."""
        names = ("status", "scores") if kind == TRIALS else ("status",)
        return read_record(self.path / kind / key / FILES[kind][0], *names)

    def tensors(self, kind: str, key: str) -> bytes:
        """Its tensors, as the content of a safetensors file."""
        return (self.path / kind / key / FILES[kind][1]).read_bytes()

    def failures(self, kind: str = TRIALS) -> dict[str, Record]:
        """The records of what failed and has not been done since, by key."""
        keys = [path.stem for path in (self.path / "failed" / kind).glob("[!.]*.json")]
        found = {key: self.failure(kind, key) for key in keys if not self.has(kind, key)}
        return {key: record for key, record in found.items() if record is not None}

    def failure(self, kind: str, key: str) -> Record | None:
        """The record of one that failed."""
        path = self.path / "failed" / kind / f"{key}.json"
        try:
            return read_record(path, "status", "error") if path.exists() else None
        except StoreError:
            if path.exists():
                raise
            return None  # somebody has just succeeded

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

        Raises ``OutputError`` where it cannot be written; where the disk is full, cached activations go first.
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
        self._put(self.path / kind / key, contents(kind, record, tensors))
        failure.unlink(missing_ok=True)

    def _put(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write a folder whole, unless it is there; one that lacks its end, as a copy may leave it, gives way."""
        temporary = folder.with_name(f".{folder.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.part")
        try:
            temporary.mkdir()
            for name, content in files.items():
                with open(temporary / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            flush(temporary)
            if folder.exists() and not (folder / DONE).exists():
                aside = temporary.with_name(temporary.name.replace(".part", "-aside.part"))
                rename(folder, aside)
                shutil.rmtree(aside, ignore_errors=True)
            with suppress(FileExistsError):
                rename(temporary, folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what processes of this machine that are no more left half written."""
        for path in (self.path / kind for kind in FILES):
            for part in path.glob(".*.part"):
                process = part.name.split(".")[-3]
                if f".{platform.node()}." in part.name and not alive(process):
                    shutil.rmtree(part, ignore_errors=True)


def contents(kind: str, record: Record, tensors: bytes) -> dict[str, bytes]:
    """The files of a result, by name; the last says that all are there, with the SHA-256 of each."""
    description, content = FILES[kind]
    files = {name: text(record[entry]).encode() for entry, name in ASIDE.items() if entry in record}
    files[description] = text({entry: value for entry, value in record.items() if entry not in ASIDE}).encode()
    files[content] = tensors
    files[DONE] = "".join(f"{hashlib.sha256(made).hexdigest()}  {name}\n" for name, made in files.items()).encode()
    return files


def _label(path: Path) -> Record:
    if not (path / LABEL).is_file():
        there = "is no folder of a run: it has no" if path.is_dir() else "does not exist, so it has no"
        there = "is a file, so it has no" if path.is_file() else there
        raise StoreError(f"{path} {there} {LABEL}; give the folder that a run was told to write to (--out, store=)")
    label: Record = read_record(path / LABEL, "format")
    if label.get("format") != FORMAT:
        raise StoreError(
            f"{path} is a store of format {label.get('format')!r}, and this version of Suture reads format {FORMAT}; "
            "use the version that made it, or name another folder"
        )
    return read_record(path / LABEL, "measuring")

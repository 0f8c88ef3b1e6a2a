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
all, whoever is killed; ``done`` has the SHA-256 of each file, as ``sha256sum --check`` reads it. Whatever is finished
is never written again, so any number of processes, on any machines that share the folder, may write one store.
"""

import hashlib
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from errno import ENOSPC
from pathlib import Path
from typing import Any, final

import pandas as pd

from suture.data import Samples
from suture.errors import OutputError, StoreError
from suture.network import Network
from suture.noise import ClusteredNoise
from suture.records import Described, Record
from suture.seeds import digest
from suture.table import table_of
from suture.trial import VERSION, Trial
from suture.writing import whole

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
        self.label = _label(self.path)

    @classmethod
    def make(cls, folder: str | Path) -> "Store":
        """Open the store in a folder, made where there is none."""
        path = Path(folder).expanduser()
        if not (path / LABEL).exists():
            if (path / TABLE).exists():
                raise StoreError(
                    f"{path} holds the table of a run that has no store (made before there were any); name another "
                    f"folder, or move its {TABLE} away"
                )
            content = {"format": FORMAT, "measuring": VERSION}
            with writing_to(path):
                path.mkdir(parents=True, exist_ok=True)
                _write(path / LABEL, _text(content))
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

    # --- what was planned ---------------------------------------------------------------------------------------------

    def plan(
        self, trials: Sequence[Described], settings: Mapping[str, Any], bases: Sequence[str] = (), extend: bool = False
    ) -> None:
        """Write down what a run is about to measure; ``bases`` are keys of networks that it is to train.

        A plan may be run again, in part, or with more trials. Raises ``StoreError`` where it has none of what was
        planned here, or leaves some out while adding others, unless it is to ``extend`` the run: that is another run.
        """
        if self.label["measuring"] != VERSION:
            raise StoreError(
                f"{self.path} was measured by version {self.label['measuring']} of the measuring code, and this is "
                f"version {VERSION}: numbers may differ. Name another folder; 'suture table {self.path}' still reads "
                "this one"
            )
        known, new = self._known(), {trial.key for trial in trials} | set(bases)
        if known and not (extend or new <= known or new >= known):
            raise StoreError(self._other(settings))
        content = {"settings": settings, "bases": sorted(bases), "trials": [asdict(trial) for trial in trials]}
        name = digest(sorted(bases), content["trials"])[:12]
        if not list(self._plans(f"*-{name}.json")):
            number = 1 + max((int(path.name.partition("-")[0]) for path in self._plans()), default=0)
            with writing_to(self.path):
                _write(self.path / "plans" / f"{number:04d}-{name}.json", json.dumps(content, ensure_ascii=False))

    def planned(self) -> list[Described]:
        """All trials that were planned, in order, each once."""
        found: dict[str, Described] = {}
        for path in self._plans():
            for entry in _read(path)["trials"]:
                trial = Described(entry["key"], entry["labels"], tuple(map(tuple, entry["scores"])))
                found.setdefault(digest(trial.key, sorted(trial.labels.items())), trial)
        return list(found.values())

    def settings(self) -> Record:
        """What the first plan was made with."""
        first = next(self._plans(), None)
        return dict(_read(first)["settings"]) if first is not None else {}

    @property
    def command(self) -> str | None:
        """The command that goes on with the run, where one began it."""
        commands = [_read(path)["settings"].get("command") for path in self._plans()]
        return next((command for command in reversed(commands) if command), None)

    def _known(self) -> set[str]:
        plans = [_read(path) for path in self._plans()]
        return {key for plan in plans for key in (*plan["bases"], *(trial["key"] for trial in plan["trials"]))}

    def _plans(self, pattern: str = "*.json") -> Iterator[Path]:
        return iter(sorted((self.path / "plans").glob(pattern)))

    def _other(self, settings: Mapping[str, Any]) -> str:
        differences = [
            f"{name} was {_said(old)} and is now {_said(settings.get(name))}"
            for name, old in self.settings().items()
            if settings.get(name) != old and name != "command"
        ]
        why = "; ".join(differences) or "the trials are others"
        return (
            f"{self.path} holds another run: {why}. Name another folder; or, to measure both into one table, say so: "
            "run(…, extend=True), on the command line --extend"
        )

    # --- what was measured --------------------------------------------------------------------------------------------

    def finished(self, kind: str = TRIALS) -> set[str]:
        """The keys of what is done."""
        with os.scandir(self.path / kind) as found:
            return {e.name for e in found if not e.name.startswith(".") and os.path.exists(os.path.join(e, DONE))}

    def has(self, kind: str, key: str) -> bool:
        """Whether that is done."""
        return (self.path / kind / key / DONE).exists()

    def record(self, kind: str, key: str) -> Record:
        """The record of what is done. Raises ``StoreError`` where it is damaged."""
        return dict(_read(self.path / kind / key / FILES[kind][0]))

    def tensors(self, kind: str, key: str) -> bytes:
        """Its tensors, as the content of a safetensors file."""
        return (self.path / kind / key / FILES[kind][1]).read_bytes()

    def failures(self, kind: str = TRIALS) -> dict[str, Record]:
        """The records of what failed and has not been done since, by key."""
        found = (self.path / "failed" / kind).glob("[!.]*.json")
        return {path.stem: _read(path) for path in found if not self.has(kind, path.stem)}

    def failure(self, kind: str, key: str) -> Record | None:
        """The record of one that failed."""
        path = self.path / "failed" / kind / f"{key}.json"
        return dict(_read(path)) if path.exists() else None

    def table(self, known: Mapping[str, Record] | None = None) -> pd.DataFrame:
        """The table of all that was planned and is measured, or has failed, in the order of the plans.

        Records that are ``known``, by key, are not read again.
        """
        trials, records = self.planned(), dict(known or {})
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
                shutil.rmtree(self.activations, ignore_errors=True)
                self._keep(kind, key, record, tensors)

    def _keep(self, kind: str, key: str, record: Record, tensors: bytes) -> None:
        failure = self.path / "failed" / kind / f"{key}.json"
        if record["status"] == "failed":
            _write(failure, _text(record))
            return
        description, content = FILES[kind]
        files = {name: _text(record[entry]).encode() for entry, name in ASIDE.items() if entry in record}
        files[description] = _text({entry: value for entry, value in record.items() if entry not in ASIDE}).encode()
        files[content] = tensors
        files[DONE] = "".join(f"{hashlib.sha256(made).hexdigest()}  {name}\n" for name, made in files.items()).encode()
        self._put(self.path / kind / key, files)
        failure.unlink(missing_ok=True)

    def _put(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write a folder whole, unless it is there."""
        temporary = folder.with_name(f".{folder.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.part")
        try:
            temporary.mkdir()
            for name, content in files.items():
                with open(temporary / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _flush(temporary)
            with suppress(FileExistsError):
                _rename(temporary, folder)
            _flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what processes of this machine that are no more left half written."""
        for path in (self.path / kind for kind in FILES):
            for part in path.glob(".*.part"):
                process = part.name.split(".")[-3]
                if f".{platform.node()}." in part.name and not _alive(process):
                    shutil.rmtree(part, ignore_errors=True)


class writing_to:
    """Where writing to a folder fails, say so as an ``OutputError`` with the remedy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate an ``OSError``."""
        if isinstance(error, OSError):
            full = error.errno == ENOSPC
            remedy = "free some space on the disk" if full else "make it writable, or name another folder"
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}; {remedy}") from error


def _label(path: Path) -> Record:
    if not (path / LABEL).is_file():
        there = "is no folder of a run: it has no" if path.is_dir() else "does not exist, so it has no"
        raise StoreError(f"{path} {there} {LABEL}; give the folder that a run was told to write to (--out, store=)")
    label: Record = _read(path / LABEL)
    if label.get("format") != FORMAT:
        raise StoreError(
            f"{path} is a store of format {label.get('format')!r}, and this version of Suture reads format {FORMAT}; "
            "use the version that made it, or name another folder"
        )
    return label


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged ({error}); 'suture verify' on the run's folder says what to do") from error


def _write(path: Path, text: str) -> None:
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _text(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def _flush(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _rename(source: Path, target: Path) -> None:
    """Rename a folder; ``FileExistsError`` where the target is there."""
    try:
        os.rename(source, target)
    except OSError:
        if target.exists():
            raise FileExistsError(target) from None
        raise


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True


def _said(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def settings_of(trials: Sequence[Trial]) -> Record:
    """What tells one run from another, in words."""
    plain = [trial for trial in trials if not trial.control] or trials
    words = [
        {
            "sender": _named(trial.sender),
            "receiver": _named(trial.receiver),
            "fit data": _named(trial.fit_data),
            "score data": _named(trial.score_data),
            "stitch": str(trial.family),
            "fit": str(trial.fit),
            "scores": " and ".join(score.name for score in trial.scores),
        }
        for trial in plain
    ]
    return {name: list(dict.fromkeys(entry[name] for entry in words)) for name in (words[0] if words else ())}


def _named(thing: Network | ClusteredNoise | Samples) -> str:
    return f"{thing.name or 'noise'} ({thing.fingerprint[:8]})"

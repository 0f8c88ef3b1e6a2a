"""The store: one folder per run, written a trial at a time, whole or not at all.

::

    suture.json                what it is: its format
    plans/0001-….json          what was planned: the labels of every trial, in order, with the versions of its parts
    trials/KEY/                measurement.json, curve.json, stitch.safetensors, stitched.json, done
    networks/KEY/              card.json, model.safetensors, done: of networks that a package trains into it
    failed/trials/KEY.json     error and traceback; retried on request
    activations/               a cache: may be deleted
    locks/                     who is at work on what, as the system's own locks: gone when a process is
    table.parquet              the rows of all that is measured, as of the last run that ended

A trial's folder is written under another name, flushed to the disk and renamed, so that it is there whole or not at
all, whoever is killed; ``done`` has the SHA-256 of each file, as ``sha256sum --check`` reads it. Results that are
finished and sound are never written again, so any number of processes, on any machines that share the folder, may write
one store; damaged results count as not measured.

So that no trial is measured twice at once, each has a lock. It is the operating system's, on a file, and ends with the
process that holds it, however that ends. On a shared folder it holds between machines if the file system passes locks
on; if not, a trial may be measured twice, and the first result stays.

What reads a store imports neither torch nor pandas, which take seconds: commands that only look wait for neither.
"""

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from errno import ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from filelock import FileLock, Timeout

from suture.common.constants import ACTIVATIONS, SHORT
from suture.common.errors import StoreError
from suture.common.sealed import from_json, to_json
from suture.common.seeds import digest
from suture.common.validation import check_kind
from suture.measurement.tables.described import Described, Record
from suture.measurement.trials.versions import say_outdated
from suture.runs.store.files import flush, read, text, write, writing_to

if TYPE_CHECKING:
    import pandas as pd

    from suture.core.activations.disk_cache import ActivationFolder
    from suture.core.network.network import Network
    from suture.data import Samples
    from suture.data.noise import ClusteredNoise
    from suture.measurement.trials.trial import Trial

FORMAT = 2  #: of the folder
LABEL, DONE, TABLE = "suture.json", "done", "table.parquet"
TRIALS, NETWORKS = "trials", "networks"
#: For each kind of result, the files of its record and of its tensors; and entries of a record that are files of their
#: own.
FILES = {TRIALS: ("measurement.json", "stitch.safetensors"), NETWORKS: ("card.json", "model.safetensors")}
ASIDE = {"curve": "curve.json", "stitched": "stitched.json"}
_REMOVABLE = re.compile(rf".*{re.escape(ACTIVATIONS)}|[0-9a-f]{{64}}\.safetensors")
_LONG = 3600.0  #: seconds without a change, after which nobody is still writing a folder


@final
class Store:
    """A run's folder.

    ``Store(folder)`` opens one that is there; ``Store.make(folder)`` makes it if it is not. Raises ``StoreError``
    if the folder is not a store, or is one of another format, ``OutputError`` if it cannot be written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).expanduser()
        _check_format(self.path)
        self.plans = Plans(self.path)

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
            with writing_to(path):
                path.mkdir(parents=True, exist_ok=True)
                write(path / LABEL, text({"format": FORMAT}))
        store = cls(path)
        with writing_to(path):
            for name in (TRIALS, NETWORKS, "plans", "locks", "activations", f"failed/{TRIALS}", f"failed/{NETWORKS}"):
                (path / name).mkdir(parents=True, exist_ok=True)
            for part in (part for kind in FILES for part in (path / kind).glob(".*.part")):
                with suppress(FileNotFoundError):  # it has just been finished
                    if time.time() - part.stat().st_mtime > _LONG:  # its process was killed
                        shutil.rmtree(part, ignore_errors=True)
        return store

    @property
    def activations(self) -> Path:
        """The folder of cached activations."""
        return self.path / "activations"

    def kept_activations(self) -> "ActivationFolder":
        """Return the cached activations, to be looked at or removed."""
        from suture.core.activations.disk_cache import ActivationFolder

        return ActivationFolder(self.activations, 0)

    # --- what was measured --------------------------------------------------------------------------------------------

    def finished(self, kind: str = TRIALS) -> set[str]:
        """Return the keys of finished results."""
        try:
            with os.scandir(self.path / kind) as found:
                return {e.name for e in found if not e.name.startswith(".") and os.path.exists(os.path.join(e, DONE))}
        except FileNotFoundError:  # a copy may leave out empty folders
            return set()

    def has(self, kind: str, key: str) -> bool:
        """Return whether the result is finished, and every file is as it was written."""
        return not self.find_damage(kind, key)

    def find_damage(self, kind: str, key: str) -> dict[str, str]:
        """Return the files of a result that have changed since they were written, each with the damage."""
        wrong = find_damage(self.path / kind / key, kind)
        if not wrong:
            try:
                self.record(kind, key)
            except StoreError:  # sound, but of another key
                return {FILES[kind][0]: "is another's record"}
        return wrong

    def record(self, kind: str, key: str) -> Record:
        """Return the record of a finished result. Raises ``StoreError`` if it is damaged."""
        names = ("status", "scores") if kind == TRIALS else ("status",)
        name = FILES[kind][0]
        try:
            found = from_json(self._read(kind, key, name), *names)
        except ValueError as error:
            raise self._damaged(kind, key, name, str(error)) from error
        if found.get("trial", found.get("network", key)) != key:
            raise self._damaged(kind, key, name, "it is another's record")
        return found

    def tensors(self, kind: str, key: str) -> bytes:
        """Return its tensors, as the content of a safetensors file. Raises ``StoreError`` if they are damaged."""
        return self._read(kind, key, FILES[kind][1])

    def _read(self, kind: str, key: str, name: str) -> bytes:
        """Read a file of a result, and compare it with the hash that was written beside it."""
        folder = self.path / kind / key
        try:
            content, written = (folder / name).read_bytes(), _read_hashes(folder)[name]
        except (OSError, ValueError, LookupError) as error:
            raise self._damaged(kind, key, name, f"it cannot be read: {error!r}") from error
        if hashlib.sha256(content).hexdigest() != written:
            raise self._damaged(kind, key, name, "it has changed since it was written")
        return content

    def _damaged(self, kind: str, key: str, name: str, reason: str) -> StoreError:
        folder = self.path / kind / key
        again = "measures" if kind == TRIALS else "trains"
        return StoreError(
            f"{folder / name} is damaged ({reason}); begin the run again, which {again} it again, or delete {folder} "
            "to go without it"
        )

    def forget_damage(self) -> None:
        """Remove activations that are damaged, and first the trials that read them: both are made anew."""
        damaged = self.kept_activations().check()
        if not damaged:
            return
        for key in self.find_readers(damaged):
            aside = self.path / TRIALS / f".{key}.{uuid.uuid4().hex}.part"
            with suppress(FileNotFoundError):  # another process was first
                os.rename(self.path / TRIALS / key, aside)
                shutil.rmtree(aside, ignore_errors=True)
        for name in damaged:
            (self.activations / name).unlink(missing_ok=True)

    def find_readers(self, activations: Collection[str]) -> dict[str, list[str]]:
        """Return the keys of the trials that read some of these files, and which of them each read."""
        found = {}
        for key in sorted(self.finished()):
            with suppress(StoreError):  # it is damaged itself
                read = self.record(TRIALS, key).get("activations", ())
                if named := [name for name in activations if name[:SHORT] in read]:
                    found[key] = named
        return found

    def trials(self, measured: Collection[str]) -> list[Described]:
        """Return all planned trials, in order, without those that a deeper one among the ``measured`` keys replaces."""
        planned = self.plans.trials()
        replaced = {trial.deepens for trial in planned if trial.key in measured}
        ends = {trial.deepens: trial for trial in planned if trial.deepens}
        shown = []
        for trial in planned:
            if not trial.deepens:
                while trial.key in replaced:
                    trial = replace(trial, key=ends[trial.key].key)
                shown.append(trial)
        return shown

    def failures(self, kind: str = TRIALS) -> dict[str, Record]:
        """Return the records of tasks that failed and have not succeeded since, by key."""
        keys = {path.stem for path in (self.path / "failed" / kind).glob("[!.]*.json")} - self.finished(kind)
        found = {key: self.failure(kind, key) for key in keys}
        return {key: record for key, record in found.items() if record is not None}

    def failure(self, kind: str, key: str) -> Record | None:
        """Return the record of a failed task; ``None`` if it has none that can be read: then it is tried again."""
        try:
            return read(self.path / "failed" / kind / f"{key}.json", "status", "error")
        except StoreError:
            return None

    def table(self, known: Mapping[str, Record] | None = None) -> "pd.DataFrame":
        """Return the table of all that was planned and is measured, or has failed, in the order of the plans.

        Records that are ``known``, by key, are not read again.
        """
        from suture.measurement.tables.table import table_of

        finished, records = self.finished(), dict(known or {})
        trials = self.trials(finished)
        for key in finished & ({trial.key for trial in trials} - records.keys()):
            records[key] = self.record(TRIALS, key)
        records = self.failures() | records
        return table_of((trial, records[trial.key]) for trial in trials if trial.key in records)

    # --- what may be lost ---------------------------------------------------------------------------------------------

    def find_removable(self) -> dict[Path, int]:
        """Return the files of activations, and of images that workers share, with their sizes: a run remakes them."""
        found = (path for path in self.activations.glob("*.safetensors") if _REMOVABLE.fullmatch(path.name))
        return {path: path.stat().st_size for path in found}

    def clean(self) -> None:
        """Remove these files. Another process that reads one keeps it."""
        self.kept_activations().clear()
        for path in self.find_removable():
            path.unlink(missing_ok=True)

    # --- keeping it ---------------------------------------------------------------------------------------------------

    def keep(self, kind: str, key: str, record: Record, tensors: bytes) -> None:
        """Keep a result. A finished one stays as it is; a failure gives way to a success.

        Raises ``OutputError`` if it cannot be written; if the disk is full, cached activations go first.
        """
        with writing_to(self.path):
            try:
                self._keep(kind, key, record, tensors)
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                self.kept_activations().clear()
                self._keep(kind, key, record, tensors)

    def _keep(self, kind: str, key: str, record: Record, tensors: bytes) -> None:
        """Write a failure, or the folder of a result whole, unless it is there; one that is damaged gives way."""
        failure, folder = self.path / "failed" / kind / f"{key}.json", self.path / kind / key
        if record["status"] == "failed":
            write(failure, text(record))
            return
        temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")
        try:
            temporary.mkdir()
            for name, content in contents(kind, record, tensors).items():
                with open(temporary / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())  # before the rename: after a power cut a name might lead to an empty file
            flush(temporary)
            if folder.exists() and self.find_damage(kind, key):
                aside = temporary.with_suffix(".aside.part")
                os.rename(folder, aside)
                shutil.rmtree(aside, ignore_errors=True)
            try:
                os.rename(temporary, folder)
            except OSError:
                if not folder.exists():  # else another process was first, with the same result
                    raise
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        failure.unlink(missing_ok=True)


def find_damage(folder: Path, kind: str) -> dict[str, str]:
    """Return the files of a result that have changed since they were written, each with the damage."""
    try:
        written = _read_hashes(folder)
    except FileNotFoundError:
        return {DONE: "is missing"}
    except (OSError, ValueError):
        written = {}
    if not set(FILES[kind]) <= written.keys() <= {*FILES[kind], *ASIDE.values()}:
        return {DONE: "has changed since it was written"}
    wrong = {}
    for name, sha in written.items():
        try:
            with open(folder / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha:
                    wrong[name] = "has changed since it was written"
        except OSError as error:
            wrong[name] = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
    return wrong


def _read_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a result, as its ``done`` has them."""
    lines = (folder / DONE).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return {name: sha for sha, name in (line.split("  ") for line in lines)}


def contents(kind: str, record: Record, tensors: bytes) -> dict[str, bytes]:
    """Return the files of a result, by name; the last says that all are there, with the SHA-256 of each."""
    description, content = FILES[kind]
    files = {name: text(record[entry]).encode() for entry, name in ASIDE.items() if entry in record}
    files[description] = text({entry: value for entry, value in record.items() if entry not in ASIDE}).encode()
    files[content] = tensors
    files[DONE] = "".join(f"{hashlib.sha256(made).hexdigest()}  {name}\n" for name, made in files.items()).encode()
    return files


def _check_format(path: Path) -> None:
    if not (path / LABEL).is_file():
        there = (
            f"is not a folder of a run: it has no {LABEL}"
            if path.is_dir()
            else "is a file"
            if path.is_file()
            else "does not exist"
        )
        raise StoreError(f"{path} {there}; give the folder that a run was told to write to (--out, store=)")
    try:
        label = read(path / LABEL, "format")
    except StoreError as error:
        raise StoreError(f"{path / LABEL} is damaged; delete it, and start the run again: it writes it anew") from error
    if label["format"] != FORMAT:
        raise StoreError(
            f"{path} is a store of format {label['format']!r}, and this version of Suture reads format {FORMAT}; use "
            "the version that made it, or name another folder"
        )


# --- what was planned -------------------------------------------------------------------------------------------------


@final
class Plans:
    """The plans of a store: one file each, ``0001-….json``, in the order in which they came."""

    def __init__(self, store: Path) -> None:
        self.store, self.folder = store, store / "plans"

    def check(self, keys: set[str], settings: Mapping[str, Any], extend: bool = False) -> None:
        """Raise ``StoreError`` if trials with these keys are another run's.

        A plan may be run again, in part, or with more. One that has nothing of what was planned here, or leaves some
        out while adding others, is another run's, unless it is to ``extend`` this one.
        """
        if outdated := self.find_outdated():
            raise StoreError(
                f"{self.store} was measured by {outdated}: numbers may differ. Name another folder; 'suture table "
                f"{self.store}' still reads this one"
            )
        known = self.keys()
        if known and not (extend or keys <= known or keys >= known):
            differences = [
                f"{name} was {_to_words(old)} and is now {_to_words(settings.get(name))}"
                for name, old in self.settings().items()
                if settings.get(name) != old and name != "command"
            ]
            raise StoreError(
                f"{self.store} holds another run: {'; '.join(differences) or 'the trials are others'}. Name another "
                "folder; or, to measure both into one table, say so: run(…, extend=True), on the command line --extend"
            )

    def add(self, trials: Sequence[Described], settings: Mapping[str, Any]) -> None:
        """Write down the plan of a run before it starts."""
        entries = [{name: value for name, value in asdict(trial).items() if value != ""} for trial in trials]
        content: Record = {"settings": settings, "trials": entries}
        name = digest(json.dumps(entries, ensure_ascii=False))[:12]  # what is planned
        if not list(self.folder.glob(f"*-{name}.json")):
            number = 1 + max((int(path.name.partition("-")[0]) for path in self._paths()), default=0)
            with writing_to(self.store):
                write(self.folder / f"{number:04d}-{name}.json", to_json(content))

    def trials(self) -> list[Described]:
        """Return all planned trials, in order, each once."""
        found: dict[str, Described] = {}
        for plan in self._read():
            for entry in plan["trials"]:
                scores = tuple(map(tuple, entry["scores"]))
                trial = Described(entry["key"], entry["labels"], scores, entry.get("deepens", ""))
                found.setdefault(digest(trial.key, sorted(told_by(trial.labels).items())), trial)
        return list(found.values())

    def find_outdated(self) -> str:
        """Name the parts by whose older versions it was measured, with today's; nothing if there are none."""
        return say_outdated(str(trial.labels.get("versions", "")) for trial in self.trials())

    def keys(self) -> set[str]:
        """Return the keys of all trials that were planned, but for those that only deepen others."""
        return {trial["key"] for plan in self._read() for trial in plan["trials"] if "deepens" not in trial}

    def settings(self) -> Record:
        """Return the settings of the first plan."""
        return next((dict(plan["settings"]) for plan in self._read()), {})

    def command(self, left: Collection[str] = ()) -> str | None:
        """Return the command that continues the run, if one began it: the last that planned something that is ``left``.

        ``left`` are keys of trials; if there are none, it is the last of all.
        """
        plans = [plan for plan in self._read() if plan["settings"].get("command")]
        lacking = [p for p in plans if not {trial["key"] for trial in p["trials"]}.isdisjoint(left)]
        return str((lacking or plans)[-1]["settings"]["command"]) if plans else None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _read(self) -> Iterator[Record]:
        return (read(path, "settings", "trials") for path in self._paths())


def told_by(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels that tell two rows of one trial apart: all but the plan, for a seam may stand in several."""
    return {name: value for name, value in labels.items() if name != "plan"}


def _to_words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def settings_of(trials: "Sequence[Trial]") -> Record:
    """Return the settings that distinguish one run from another, in words."""
    plain = [trial for trial in trials if not trial.control] or trials
    words = [
        {
            "sender": _name(trial.sender),
            "receiver": _name(trial.receiver),
            "fit data": _name(trial.fit_data),
            "score data": _name(trial.score_data),
            "stitch": str(trial.family),
            "fit": str(trial.fit),
            "scores": " and ".join(score.name for score in trial.scores),
        }
        for trial in plain
    ]
    return {name: list(dict.fromkeys(entry[name] for entry in words)) for name in (words[0] if words else ())}


def _name(thing: "Network | ClusteredNoise | Samples") -> str:
    return f"{thing.name or 'noise'} ({thing.fingerprint[:8]})"


# --- who is at work on what -------------------------------------------------------------------------------------------


@final
class Locks:
    """The locks that one process holds in a folder of lock files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}

    def take(self, key: str) -> bool:
        """Take the lock of some work if it is free. Somebody may have finished that work meanwhile: look after this."""
        lock = FileLock(self.folder / f"{key}.lock", fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except (OSError, NotImplementedError):  # no locks here
            return True
        self._held[key] = lock
        return True

    def give_back(self, key: str) -> None:
        """Release a lock."""
        lock = self._held.pop(key, None)
        if lock is not None:
            with suppress(OSError):
                Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for it looks again
            with suppress(OSError):
                lock.release()

    def give_all_back(self) -> None:
        """Release all locks."""
        for key in list(self._held):
            self.give_back(key)

    def others(self) -> int:
        """Count the pieces of work that other processes hold now."""
        held = 0
        for path in self.folder.glob("*.lock"):
            key = path.stem
            if key not in self._held:
                if self.take(key):
                    self.give_back(key)
                else:
                    held += 1
        return held

"""Looking at a store from outside: how far its run is, whether what it keeps is sound, and what to do where it is not.

Nothing here needs the run to be over, nor the networks or the data that it was made with. ``verify`` reads every file
that a result consists of and compares it with the SHA-256 written beside it, so what a disk, a copy or a hand has
altered is found; ``repair`` puts it out of the way, so that the next run measures just that again.
"""

import hashlib
import json
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from suture.common.atomic import whole
from suture.common.errors import DataError
from suture.core.activations.disk_cache import ActivationFolder
from suture.measurement.tables import table as tables
from suture.measurement.trials.trial import VERSION
from suture.runs.store.files import alive, text, writing_to
from suture.runs.store.locks import Locks
from suture.runs.store.plans import plan_name
from suture.runs.store.store import ASIDE, DONE, FILES, FORMAT, LABEL, NETWORKS, TABLE, TRIALS, Store

DAMAGED = "damaged"  #: the folder that ``repair`` moves things to
_ACTIVATIONS = "activations"
_LONG = 3600.0  #: seconds without a change, after which nobody on another machine is still writing a folder
_IDENTITY = {TRIALS: "trial", NETWORKS: "network"}  #: the entry of a record that is its key
_AGAIN = {TRIALS: "measures it again", NETWORKS: "trains it again"}


@dataclass(frozen=True)
class Status:
    """How far a run is. Trials that are one in what they measure count once; sizes are in bytes.

    ``missing`` are those neither measured nor failed, ``running`` what living processes are at work on now, trials and
    base networks alike. ``networks`` are the base networks that the run trains; trials of those that are not trained
    yet may not be planned yet. ``errors`` counts distinct messages; ``command`` is what the run was begun with, where
    it was begun on the command line.
    """

    path: Path
    planned: int
    measured: int
    failed: int
    missing: int
    running: int
    networks: int
    networks_done: int
    networks_failed: int
    result_bytes: int
    activation_bytes: int
    last_change: datetime
    command: str | None
    errors: Mapping[str, int]

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to be done of what was planned, though some may have failed."""
        return (
            bool(self.planned or self.networks)
            and not self.missing
            and self.networks_done + self.networks_failed == self.networks
        )


@dataclass(frozen=True)
class Finding:
    """Something in a store that is not as it was written. What is ``harmless`` changes no number and stops no run."""

    path: Path
    problem: str
    remedy: str
    harmless: bool = False


def status(folder: str | Path) -> Status:
    """Say how far the run in a folder is. Raises ``StoreError`` where it is no store, or its plans are damaged."""
    store = Store(folder)
    planned = {trial.key for trial in store.plans.trials()}
    bases = store.plans.bases()
    failures, untrained = store.failures(), store.failures(NETWORKS)
    measured, failed = planned & store.finished(), planned & failures.keys()
    trained = bases & store.finished(NETWORKS)
    sizes, changes = _sizes(store.path)
    return Status(
        path=store.path,
        planned=len(planned),
        measured=len(measured),
        failed=len(failed),
        missing=len(planned - measured - failed),
        running=Locks(store.path / "locks").others(),
        networks=len(bases),
        networks_done=len(trained),
        networks_failed=len(bases & untrained.keys()),
        result_bytes=sizes["results"],
        activation_bytes=sizes[_ACTIVATIONS],
        last_change=datetime.fromtimestamp(changes).astimezone(),
        command=store.plans.command((planned | bases) - measured - trained),
        errors=Counter(str(failure["error"]) for failure in (*untrained.values(), *failures.values())),
    )


def _sizes(path: Path) -> tuple[dict[str, int], float]:
    """The bytes of results and of activations, and when a result last changed."""
    sizes, last = {"results": 0, _ACTIVATIONS: 0}, 0.0
    for folder, _, names in os.walk(path):
        inside = Path(folder).relative_to(path).parts[:1]
        if inside in (("locks",), (DAMAGED,)):
            continue
        for name in names:
            try:
                found = os.stat(os.path.join(folder, name))
            except FileNotFoundError:  # somebody is at work here
                continue
            sizes[_ACTIVATIONS if inside == (_ACTIVATIONS,) else "results"] += found.st_size
            if inside and inside != (_ACTIVATIONS,):
                last = max(last, found.st_mtime)
    return sizes, last or (path / LABEL).stat().st_mtime


# --- whether it is sound ----------------------------------------------------------------------------------------------


def verify(folder: str | Path) -> tuple[Finding, ...]:
    """Read everything that a store keeps, and name what is damaged; a sound store has no findings that do harm.

    Raises ``StoreError`` where the folder is no store, or of a format that this version does not read.
    """
    path = Path(folder).expanduser()
    version = _measured_by(path)
    return (
        *_label(path, version),
        *_plans(path),
        *(finding for kind in FILES for finding in _results(path, kind, version)),
        *(finding for kind in FILES for finding in _failures(path, kind)),
        *(finding for kind in FILES for finding in _leftovers(path / kind)),
        *_activations(path),
        *_table(path),
    )


def _label(path: Path, version: int | None) -> Iterator[Finding]:
    remedy = "--repair writes it anew, by what the trials say"
    label = _json(path / LABEL)
    label = label if isinstance(label, dict) else {}
    absent = not (path / LABEL).exists() and not any((path / "plans").glob("*.json"))
    if absent or label.get("format", FORMAT) != FORMAT:
        Store(path)  # says why this is no store, or none that can be read
    if not {"format", "measuring"} <= label.keys():
        yield Finding(path / LABEL, "cannot be read, so no command takes the folder for a run's", remedy)
    elif label["measuring"] != version is not None:
        measured = f"the trials were measured by version {version} of the measuring code"
        yield Finding(path / LABEL, f"says version {label['measuring']}, and {measured}", remedy)


def _measured_by(path: Path) -> int | None:
    """The version of the measuring code by which most of the trials were measured; ``None`` where there are none."""
    records = (_json(folder / FILES[TRIALS][0]) for folder in sorted((path / TRIALS).glob("[!.]*")))
    versions = Counter(record["measuring"] for record in records if isinstance(record, dict) and "measuring" in record)
    return versions.most_common(1)[0][0] if versions else None


def _plans(path: Path) -> Iterator[Finding]:
    plans = sorted((path / "plans").glob("*.json"))
    for plan in plans:
        problem = _wrong_plan(plan)
        if problem:
            yield Finding(
                plan,
                f"{problem}; the table has no names for its trials",
                f"--repair moves it to {DAMAGED}/; then start the run again: it writes the plan anew, and measures "
                "nothing twice (with --extend, extend=True, where it takes the folder for another run's)",
            )
    if not plans and any((path / TRIALS).glob("[!.]*")):
        yield Finding(
            path / "plans",
            "holds no plan, so the table has no names for the trials that are measured",
            "start the run again: it writes the plan anew, and measures nothing twice",
        )


def _wrong_plan(path: Path) -> str:
    content = _json(path)
    try:
        name = plan_name(content)
        sound = isinstance(content["settings"], dict) and all(map(Mapping.keys, content["trials"]))
    except (TypeError, KeyError, AttributeError):
        return "cannot be read as a plan"
    return "" if sound and path.stem.partition("-")[2] == name else "is not what was written"


def _results(path: Path, kind: str, version: int | None) -> Iterator[Finding]:
    remedy = f"--repair moves it to {DAMAGED}/, and the next run {_AGAIN[kind]}"
    for folder in sorted((path / kind).glob("[!.]*")):
        if not folder.is_dir():
            yield Finding(folder, "does not belong here", f"--repair moves it to {DAMAGED}/", harmless=True)
            continue
        wrong = dict(_wrong_files(folder, kind))
        yield from (Finding(folder / name, problem, remedy) for name, problem in wrong.items())
        if FILES[kind][0] not in wrong and DONE not in wrong:
            problem = _wrong_record(_json(folder / FILES[kind][0]), folder.name, kind, version)
            if problem:
                yield Finding(folder / FILES[kind][0], problem, remedy)


def _wrong_files(folder: Path, kind: str) -> Iterator[tuple[str, str]]:
    """The files of a result that are not what was written, and what is wrong with each."""
    known = (*FILES[kind], *ASIDE.values())
    try:
        *lines, rest = (folder / DONE).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        yield DONE, "is missing"
        return
    except (OSError, ValueError) as error:
        yield DONE, f"cannot be read ({error})"
        return
    written = {name: sha for sha, mark, name in (line.partition("  ") for line in lines) if mark and name in known}
    if rest or len(written) < len(lines) or not set(FILES[kind]) <= written.keys():
        yield DONE, "is not what was written"
    for name, sha in written.items():
        problem = _wrong_content(folder / name, sha)
        if problem:
            yield name, problem


def _wrong_content(path: Path, written: str) -> str:
    try:
        with open(path, "rb") as file:
            sha = hashlib.file_digest(file, "sha256").hexdigest()
        if sha != written:
            return "is not what was written"
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:
            with safe_open(path, framework="pt"):
                pass
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, SafetensorError) as error:
        return f"cannot be read ({error})"
    return ""


def _wrong_record(record: Any, key: str, kind: str, version: int | None = None) -> str:
    if not isinstance(record, dict) or "status" not in record:
        return "is no record"
    own = record.get(_IDENTITY[kind])
    if own != key:
        return f"is the record of another, {own}"
    if version is not None and kind == TRIALS and record.get("measuring") != version:
        return (
            f"was measured by version {record.get('measuring')} of the measuring code, and the others by version "
            f"{version}: its numbers may differ"
        )
    return ""


def _failures(path: Path, kind: str) -> Iterator[Finding]:
    for failure in sorted((path / "failed" / kind).glob("[!.]*.json")):
        record = _json(failure)
        if not failure.exists():  # somebody has just succeeded
            continue
        sound = isinstance(record, dict) and record.get("status") == "failed" and isinstance(record.get("error"), str)
        problem = _wrong_record(record, failure.stem, kind) if sound else "cannot be read as a failure's record"
        if problem:
            remedy = f"--repair moves it to {DAMAGED}/, and the next run tries it again"
            yield Finding(failure, problem, remedy)


def _leftovers(folder: Path) -> Iterator[Finding]:
    for part in sorted(folder.glob(".*.part")):
        if _abandoned(part):
            yield Finding(
                part,
                "was half written when its process ended",
                "none is needed: it counts for nothing, and --repair deletes it",
                harmless=True,
            )


def _abandoned(part: Path) -> bool:
    """Whether nobody will finish a folder: its process is no more, or on another machine and long silent."""
    if f".{platform.node()}." in part.name:
        return not alive(part.name.split(".")[-3])
    with suppress(FileNotFoundError):
        return time.time() - part.stat().st_mtime > _LONG
    return False


def _activations(path: Path) -> Iterator[Finding]:
    for name in ActivationFolder(path / _ACTIVATIONS, 0).check():
        yield Finding(
            path / _ACTIVATIONS / name,
            "is not what was written",
            "--repair deletes it: it is a cache, and the next run computes it again",
        )


def _table(path: Path) -> Iterator[Finding]:
    if (path / TABLE).exists():
        try:
            tables.load(path / TABLE)
        except (DataError, OSError) as error:
            yield Finding(
                path / TABLE,
                f"cannot be read ({error})",
                "it only repeats what the trials say: 'suture table' writes it anew",
                harmless=True,
            )


def _json(path: Path) -> Any:
    """The content of a file; ``None`` where it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


# --- making it sound --------------------------------------------------------------------------------------------------


def repair(folder: str | Path, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Do what the findings of ``verify`` propose; what was done, a sentence each.

    Damaged results, plans and failures are moved into ``damaged/``, whole folders at a time, never deleted; damaged
    activations, which are a cache, and what was half written are deleted. Raises ``OutputError`` where the folder
    cannot be written to.
    """
    path = Path(folder).expanduser()
    said = []
    with writing_to(path):
        for place in dict.fromkeys(_whole(finding.path.relative_to(path)) for finding in findings):
            if (path / place).exists() or place == Path(LABEL):
                said += _put_right(path, place)
    return tuple(said)


def _whole(place: Path) -> Path:
    """A file of a result stands for the result's folder."""
    return Path(*place.parts[:2]) if place.parts[0] in FILES else place


def _put_right(path: Path, place: Path) -> list[str]:
    if place == Path(LABEL):
        with whole(path / LABEL) as temporary:
            content = {"format": FORMAT, "measuring": _measured_by(path) or VERSION}
            temporary.write_text(text(content), encoding="utf-8")
        return [f"wrote {LABEL} anew"]
    if place == Path("plans"):  # nothing there to be put right
        return []
    if place.parts[0] == _ACTIVATIONS:
        (path / place).unlink(missing_ok=True)
        return [f"deleted {place}"]
    if place.suffix == ".part":
        shutil.rmtree(path / place, ignore_errors=True)
        return [f"deleted {place}"]
    target = _free(path / DAMAGED / place)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path / place, target)
    return [f"moved {place} to {target.relative_to(path)}"]


def _free(target: Path) -> Path:
    """The path, or the first like it, that nothing has yet."""
    numbered = (target.with_name(f"{target.name}-{number}") for number in range(2, 10_000))
    return next(path for path in chain((target,), numbered) if not path.exists())

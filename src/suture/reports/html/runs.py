"""The sources of a report: the folder of a run, or the results of a package's studies."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pandas as pd

from suture.common.constants import COMPLEXITY, SIMILARITIES
from suture.common.errors import DataError
from suture.common.plugins import added
from suture.measurement.tables.described import Record
from suture.measurement.tables.table import read as read_table
from suture.runs.store.inspect import Status, status
from suture.runs.store.store import LABEL, TRIALS, Store

RESULTS = "results"  #: of studies, in the folder of a run


@final
@dataclass(frozen=True)
class Studies:
    """The studies of a package, whose results a report shows in place of a run's own table.

    ``list_ids`` lists them. ``load`` reads one from a folder of results, as a pair of the study, which has its ``id``,
    and its result, which has ``tables`` by name and a ``card``; ``None`` if it is not there. ``make_page`` makes the
    ``page.Page`` of a run that has such results, and ``say_command`` the command that measures one again.
    """

    list_ids: Callable[[], Collection[str]]
    load: Callable[[Path, str], tuple[Any, Any] | None]
    make_page: Callable[["Run"], Any]
    say_command: Callable[[Any, Any], str]


@final
@dataclass(frozen=True, eq=False)
class Run:
    """The stored results of a run.

    ``table`` has all measurements and failures; ``settings`` are those at its start; ``machines`` are those that
    measured it, each once; ``notes`` are deviations, with their counts. ``results`` are studies with their
    measurements. ``fingerprints`` are those of networks and test images, by name. ``state`` is ``None`` for results
    without their store.
    """

    path: Path
    table: pd.DataFrame
    state: Status | None
    settings: Mapping[str, Any]
    machines: tuple[Record, ...]
    notes: Mapping[str, int]
    similarities: pd.DataFrame | None
    ranks: pd.DataFrame | None
    results: tuple[tuple[Any, Any], ...]
    fingerprints: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def command(self) -> str | None:
        """Return the command that made it, if one did."""
        return self.state.command if self.state is not None else None

    @property
    def name(self) -> str:
        """Return its name: that of its folder."""
        return self.path.resolve().name or str(self.path)


def read(folder: str | Path) -> Run:
    """Read a folder: of a run, of a store with studies, or of the results of studies; or ``FOLDER/ID``, one of these.

    Raises ``StoreError`` if it is none of these or damaged, ``DataError`` if nothing is measured yet.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():  # a study is several files, whose names begin with its id
        ids = ((known, study) for known in added("studies").values() for study in known.list_ids())
        named = (known.load(path.parent, study) for known, study in ids if f"{path.name}.".startswith(f"{study}."))
        if (one := next(filter(None, named), None)) is not None:
            return _of_results(path.parent, (one,))
    results = _results(path) or _results(path / RESULTS)
    if not (path / LABEL).exists() and results:
        return _of_results(path, results)
    store = Store(path)
    records = {key: store.record(TRIALS, key) for key in store.finished()}
    table = store.table(records)
    if not len(table) and not results:
        raise DataError(f"{path} has measured nothing yet; see suture status {path}")
    every = [*records.values(), *store.failures().values()]
    shown = {trial.key for trial in store.trials(records)}  # without those that deeper ones replace
    notes = [note for key, record in records.items() if key in shown for note in record.get("notes", ())]
    return Run(
        path,
        table,
        status(path),
        store.plans.settings(),
        _once([record.get("machine", {}) for record in every]),
        {note: notes.count(note) for note in dict.fromkeys(notes)},
        read_table(path / SIMILARITIES),
        read_table(path / COMPLEXITY),
        results,
        _fingerprints(store, records),
    )


def _fingerprints(store: Store, records: Mapping[str, Record]) -> dict[str, frozenset[str]]:
    """Return the fingerprints of stitched networks and scored images, by name, without those of controls."""
    found: dict[str, set[str]] = {}
    for trial in store.plans.trials():
        known = records.get(trial.key, {}).get("decided_by")
        if known is not None and not trial.labels["control"]:
            for role in ("sender", "receiver"):
                found.setdefault(f"the network {trial.labels[role]}", set()).add(known[role])
            found.setdefault(f"the images {trial.labels['score_data']}", set()).add(known["data"][-1])
    return {name: frozenset(values) for name, values in found.items()}


def _of_results(path: Path, results: tuple[tuple[Any, Any], ...]) -> Run:
    tables = [result.tables[TRIALS] for _, result in results if TRIALS in result.tables]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    machines = _once([result.card.get("machine", {}) for _, result in results])
    return Run(path, table, None, {}, machines, {}, None, None, results)


def _results(path: Path) -> tuple[tuple[Any, Any], ...]:
    """Return the results of studies in a folder, in the order in which packages list them."""
    if not path.is_dir():
        return ()
    found = (known.load(path, name) for known in added("studies").values() for name in known.list_ids())
    return tuple(one for one in found if one is not None)


def _once(records: list[Record]) -> tuple[Record, ...]:
    return tuple({str(sorted(record.items())): record for record in records if record}.values())

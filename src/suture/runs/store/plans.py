"""What a run planned, kept in its folder: the table needs no networks, and another run in the folder is noticed."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from suture.common.errors import StoreError
from suture.common.seeds import digest
from suture.core.network.network import Network
from suture.data import Samples
from suture.data.noise import ClusteredNoise
from suture.measurement.tables.records import Described, Record
from suture.measurement.trials.trial import VERSION, Trial
from suture.runs.store.files import read_record, write, writing_to


@final
class Plans:
    """The plans of a store: one file each, ``0001-….json``, in the order in which they came."""

    def __init__(self, store: Path, measuring: int) -> None:
        self.store, self.measuring = store, measuring
        self.folder = store / "plans"

    def check(self, keys: set[str], settings: Mapping[str, Any], extend: bool = False) -> None:
        """Raise ``StoreError`` if trials and base models with these keys are another run's.

        A plan may be run again, in part, or with more. One that has nothing of what was planned here, or leaves some
        out while adding others, is another run's, unless it is to ``extend`` this one.
        """
        if self.measuring != VERSION:
            raise StoreError(
                f"{self.store} was measured by version {self.measuring} of the measuring code, and this is version "
                f"{VERSION}: numbers may differ. Name another folder; 'suture table {self.store}' still reads this one"
            )
        known = self.keys()
        if known and not (extend or keys <= known or keys >= known):
            raise StoreError(self._explain_other(settings))

    def add(self, trials: Sequence[Described], settings: Mapping[str, Any], bases: Sequence[str] = ()) -> None:
        """Write down what a run is about to measure; ``bases`` are keys of networks that it is to train."""
        content = {"settings": settings, "bases": sorted(bases), "trials": [asdict(trial) for trial in trials]}
        name = plan_name(content)
        if not list(self.folder.glob(f"*-{name}.json")):
            number = 1 + max((int(path.name.partition("-")[0]) for path in self._paths()), default=0)
            with writing_to(self.store):
                write(self.folder / f"{number:04d}-{name}.json", json.dumps(content, ensure_ascii=False))

    def trials(self) -> list[Described]:
        """All trials that were planned, in order, each once."""
        found: dict[str, Described] = {}
        for plan in self._read():
            for entry in plan["trials"]:
                trial = Described(entry["key"], entry["labels"], tuple(map(tuple, entry["scores"])))
                found.setdefault(digest(trial.key, sorted(trial.labels.items())), trial)
        return list(found.values())

    def bases(self) -> set[str]:
        """The keys of the networks that are trained for this run."""
        return {key for plan in self._read() for key in plan["bases"]}

    def keys(self) -> set[str]:
        """The keys of all trials and base models that were planned."""
        return self.bases() | {trial["key"] for plan in self._read() for trial in plan["trials"]}

    def settings(self) -> Record:
        """What the first plan was made with."""
        return next((dict(plan["settings"]) for plan in self._read()), {})

    def command(self, left: Collection[str] = ()) -> str | None:
        """The command that continues the run, if one began it: the last that planned something that is ``left``.

        ``left`` are keys of trials and base models; if there are none, it is the last of all.
        """
        plans = [plan for plan in self._read() if plan["settings"].get("command")]
        lacking = [p for p in plans if not {*p["bases"], *(t["key"] for t in p["trials"])}.isdisjoint(left)]
        return str((lacking or plans)[-1]["settings"]["command"]) if plans else None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _read(self) -> Iterator[Record]:
        return (read_record(path, "settings", "bases", "trials") for path in self._paths())

    def _explain_other(self, settings: Mapping[str, Any]) -> str:
        differences = [
            f"{name} was {_to_words(old)} and is now {_to_words(settings.get(name))}"
            for name, old in self.settings().items()
            if settings.get(name) != old and name != "command"
        ]
        why = "; ".join(differences) or "the trials are others"
        return (
            f"{self.store} holds another run: {why}. Name another folder; or, to measure both into one table, say so: "
            "run(…, extend=True), on the command line --extend"
        )


def plan_name(content: Mapping[str, Any]) -> str:
    """The name of a plan: a hash of what it plans."""
    return digest(content["bases"], json.dumps(content["trials"], ensure_ascii=False))[:12]


def _to_words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def settings_of(trials: Sequence[Trial]) -> Record:
    """What tells one run from another, in words."""
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


def _name(thing: Network | ClusteredNoise | Samples) -> str:
    return f"{thing.name or 'noise'} ({thing.fingerprint[:8]})"

"""Running a study: its networks, its trials, and the tables computed beside them, all into one store.

Results that are there already are used, whichever study they were made for, so studies that share networks and seams
should share a store.
"""

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, final

import pandas as pd

from suture import Network, Stitched, Store, Trial, run
from suture.common.errors import DataError, RunnerError, StoreError
from suture.extend import (
    TRIALS,
    Progress,
    Record,
    Runner,
    describe_machine,
    digest,
    identity,
    read_table,
    read_versions,
    say_count,
    say_outdated,
    spell_versions,
    versions_of,
    writing_to,
)
from suture.extend import read_json as read
from suture.extend import read_text as text
from suture.extend import save_table as save
from suture.extend import write_json as write
from suture_papers.base.cells import QUICK, Tables
from suture_papers.base.cells import TRIALS as MEASURED
from suture_papers.base.claims import (
    NOT_MEASURED,
    NOT_REPRODUCED,
    READING,
    REPRODUCED,
    STITCHES,
    UNDECIDED,
    Decided,
    decide_all,
    decide_by_recipe,
)
from suture_papers.base.quantities import rows_read
from suture_papers.base.scale import TINY, Scale
from suture_papers.base.study import Beside, Deferred, Part, Study, bases_of
from suture_papers.networks.base_model import BaseModel
from suture_papers.training import TrainingTask, Untrained, train_networks

BESIDE = "beside"  #: the store's folder of what is computed beside trials
BEFORE = "before"  #: the folder of results of an older version
#: Older versions of parts by which verdicts stand, and how many points fits have moved since: 95 % by no more
#: (docs/papers/versions.md).
STANDING = {"Converged": {1: 2.1, 2: 1.7, 3: 1.2}}
OUTDATED = "again; the figure is by an older version"
_TOLD = ("sender", "receiver", "sender_cut", "receiver_cut", "stitch", "fit", "control", "network_seed", "fit_data",
         "score_data", "seed")  # fmt: skip
Labels = tuple[object, ...]
Loaded = dict[tuple[str, str | None], Network]  # by the key of the network, and the device
_OF_BASELINES = ("linear probe", "fine-tuned", "retrained", "plugged in")


@final
@dataclass(frozen=True, eq=False)
class Result:
    """The measurements of a study at a scale: its ``tables`` by kind, and a ``card`` with counts and times."""

    study: str
    scale: str
    tables: Tables
    card: Record
    before: "Result | None" = None  #: of another version, for claims of which this run measured nothing
    _decided: dict[Study, tuple[Decided, ...]] = field(default_factory=dict, init=False, repr=False)

    @property
    def stands(self) -> bool:
        """Whether all of it was measured by today's versions of its parts, or by ones by which verdicts stand."""
        return not say_outdated(_list_versions(*self.tables.values()), STANDING)

    def decide(self, study: Study) -> tuple[Decided, ...]:
        """Decide the study's claims. Raises ``DataError`` at tiny scale, whose figures mean nothing."""
        if self.scale == TINY:
            raise DataError(f"{study.id} was run at tiny scale, of which no verdict is computed; run it at small")
        if study not in self._decided:  # the screen and two pages ask for the same verdicts
            found = decide_by_recipe(study.claims, self.tables)
            recipe = {claim: self._doubt(one) for claim, one in found.items()}
            converged = map(self._doubt, decide_all(study.claims, self.tables))
            made = tuple(replace(one, recipe=recipe.get(one.claim)) for one in converged)
            if self.before is not None and self.stands:
                made = tuple(b if a.figure is None else a for a, b in zip(made, self.before.decide(study), strict=True))
            self._decided[study] = made
        return self._decided[study]

    def _doubt(self, one: Decided) -> Decided:
        """Withdraw a verdict that reads rows by an outdated version of a part, or by one whose drift may turn it."""
        if one.figure is None:
            return one
        read = [where.select(self.tables) for where in rows_read(one.claim.quantity)]
        versions = _list_versions(*read)
        if say_outdated(versions, STANDING):
            return replace(one, verdict=NOT_MEASURED, reason=OUTDATED)
        parts = [pair for text in versions for pair in read_versions(text).items()]
        drift = max((STANDING.get(name, {}).get(version, 0.0) for name, version in parts), default=0.0)
        if (
            not drift
            or one.verdict not in (REPRODUCED, NOT_REPRODUCED)
            or one.claim.withstands(drift, one, self.tables)
        ):
            return one
        return replace(
            one, verdict=UNDECIDED, reason=f"by an older version, whose fits moved by up to {drift:g} points"
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the tables and the card to a folder, as ``ID.KIND.parquet`` and ``ID.json``.

        Those by other versions that are there move to its folder ``before``, unless there are older ones in it.
        """
        folder = Path(folder).expanduser()
        old = load_result(folder, self.study)
        if (
            old is not None
            and old.before is None
            and _list_versions(*old.tables.values()) != _list_versions(*self.tables.values())
        ):
            old.save(folder / BEFORE)
        written = [save(table, folder / f"{self.study}.{kind}.parquet") for kind, table in self.tables.items()]
        with writing_to(folder):
            write(folder / f"{self.study}.json", text(self.card))
        return [*written, folder / f"{self.study}.json"]


def _list_versions(*tables: pd.DataFrame) -> set[str]:
    """List the versions of parts by which the rows of tables were measured."""
    return {str(text) for table in tables for text in (table["versions"].unique() if "versions" in table else [""])}


def load_result(folder: str | Path, study: str) -> Result | None:
    """Read the result that ``Result.save`` wrote; ``None`` if the study has no card there.

    Raises ``DataError`` if the card is damaged, or a table that it names is missing.
    """
    folder = Path(folder).expanduser()
    path = folder / f"{study}.json"
    if not path.is_file():
        return None
    try:
        card = dict(read(path))
    except StoreError as error:
        raise DataError(f"{path} is damaged ({error}); run the study again") from error
    tables = {}
    for kind in card["tables"]:
        file = folder / f"{study}.{kind}.parquet"
        table = read_table(file)
        if table is None:
            raise DataError(f"{file} is missing, which {path.name} names; run the study again")
        tables[kind] = table
    return Result(study, card["scale"], tables, card, load_result(folder / BEFORE, study))


def run_study(
    study: Study,
    scale: Scale,
    store: str | Path | Store,
    *,
    on: Runner | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    told: Callable[[str], None] = lambda words: None,
    retry: bool = False,
    until_converged: bool = False,
    command: str | None = None,
) -> Result:
    """Run a study at a scale into a store; ``told`` receives a line for each table computed beside trials.

    The other settings are those of ``run``. All networks are trained first. The seams of a claim whose figure is near
    its threshold are stitched again, ``STITCHES`` times in all; but not if it has too few networks to be decided.
    Raises ``RunnerError`` if networks could not be trained, once the trials of all others are measured.
    """
    store = store if isinstance(store, Store) else Store.make(store)
    parts = study.plan(scale)
    deferred = [part for part in parts if isinstance(part, Deferred)]
    beside = [part for part in parts if isinstance(part, Beside)]
    common: dict[str, Any] = {"on": on, "device": device, "progress": progress, "retry": retry, "command": command}
    untrained: Untrained | None = None
    try:
        train_networks(bases_of([*deferred, *beside]), store, **common)
    except Untrained as failure:  # raised again when all else is measured
        untrained = failure
    lacking = untrained.keys if untrained is not None else frozenset[str]()
    able = [part for part in deferred if not any(base.key in lacking for base in part.bases)]
    made: Loaded = {}

    def measure(near: Collection[Labels]) -> dict[str, pd.DataFrame]:
        plan = [trial for part in able for trial in _plan(part, _networks_of(part, store, made), study, near)]
        if not plan:
            return {}
        table = run(plan, store=store, extend=True, until_converged=until_converged, **common)
        prefixes = hash_prefixes(plan)
        return {MEASURED: _complete(table, scale, store).assign(prefix=table["trial"].map(prefixes))}

    measured = measure(())
    if untrained is not None:
        left = sum(any(base.key in lacking for base in part.bases) for part in parts)
        raise RunnerError(
            f"{say_count(left, 'part')} of the plan could not be measured: {untrained.reasons}; all else is measured"
        ) from untrained
    beside_tables = _compute_beside(study, beside, store, made, told, device)
    near = set[Labels]()
    while scale.name != TINY and (more := _find_near(study, measured | beside_tables) - near):
        near |= more  # the best of three stitches may bring another claim near
        measured = measure(near)
    tables = measured | beside_tables
    return Result(study.id, scale.name, tables, _make_card(study, scale, tables, store, bases_of(parts)))


def _find_near(study: Study, tables: Tables) -> set[Labels]:
    """Return the labels of trials that decide a figure near its threshold, if there are enough networks to decide."""
    found: set[Labels] = set()
    for one in decide_all(study.claims, tables):
        if one.is_test and one.figure is not None and one.claim.is_near(one.figure):
            found |= {*one.claim.fits_read(tables)[list(_TOLD)].itertuples(index=False, name=None)}
    return found


def _plan(part: Deferred, networks: Iterable[Network], study: Study, near: Collection[Labels]) -> list[Trial]:
    """Plan a part of a study, and more stitches of the trials that are ``near`` a threshold."""

    def declare(network: Network) -> Network:
        if not any(fnmatchcase(network.name, pattern) for pattern in study.weak):
            return network
        weak = copy.copy(network)
        weak.expected_accuracy = 0
        return weak

    planned = [replace(trial, study=study.id) for trial in part.make(*map(declare, networks))]
    again = [trial for trial in planned if tuple(trial.labels[name] for name in _TOLD) in near]
    return planned + [replace(trial, seed=seed) for trial in again for seed in range(1, STITCHES) if not trial.seed]


def hash_prefixes(plan: Iterable[Trial]) -> dict[str, str]:
    """Return by the key of each trial a hash of its sender up to its cut; empty for noise.

    Networks that differ behind a cut alone are one sender there: a network that learned something in one layer and the
    one that it started from. Trials keep the sender's own name and key.
    """
    known: dict[tuple[int, str], str] = {}
    found = {}
    for trial in plan:
        if not isinstance(trial.sender, Network):
            found[trial.key] = ""
            continue
        place = (id(trial.sender), trial.sender_cut)
        if place not in known:
            hashed = hashlib.sha256()
            for name, tensor in trial.sender.upto(trial.sender_cut).state_dict().items():
                hashed.update(f"{name} {tensor.dtype}".encode() + tensor.cpu().numpy().tobytes())
            known[place] = hashed.hexdigest()[:20]
        found[trial.key] = known[place]
    return found


def _complete(table: pd.DataFrame, scale: Scale, store: Store) -> pd.DataFrame:
    """Add columns that tell the papers' fits from the default one and from those of baselines, and validation losses.

    ``validation_loss`` is that of the stitch that was kept, nan if its fit did not compute one.
    """
    of_baseline = table["control"].str.contains("|".join(_OF_BASELINES))
    done = table.loc[table["status"] == "ok", "trial"].unique()
    losses = {key: store.record(TRIALS, key).get("validation_loss") for key in done}
    published = ~table["fit"].isin([str(scale.fit), QUICK]) & ~of_baseline
    return table.assign(published=published, validation_loss=table["trial"].map(losses).astype("float64"))


# --- beside the trials ------------------------------------------------------------------------------------------------


def _compute_beside(
    study: Study, parts: list[Beside], store: Store, made: Loaded, told: Callable[[str], None], device: str | None
) -> dict[str, pd.DataFrame]:
    found: dict[str, list[pd.DataFrame]] = {}
    for number, part in enumerate(parts):
        networks = _networks_of(part, store, made, device)
        trials = {trial.key: trial for trial in part.trials(*networks)}
        path = store.path / BESIDE / f"{_key_of(study, part, trials)}.parquet"
        rows = _read_kept(path)
        if rows is None:
            told(f"{part.kind} {number + 1} of {len(parts)}: {part.name}")
            rows = part.make(partial(_load_stitched, store, trials), *networks)
            save(rows, path)
        rows = rows.assign(versions=spell_versions(versions_of(part.settings)))
        found.setdefault(part.kind, []).append(rows)
    return {kind: pd.concat(tables, ignore_index=True) for kind, tables in found.items()}


def _networks_of(part: Part, store: Store, made: Loaded, device: str | None = None) -> list[Network]:
    """Return the part's networks, each made once for all parts, on a device if one is given."""
    for base in part.bases:
        if (base.key, None) not in made:
            made[base.key, None] = base.load(store)
        if device is not None and (base.key, device) not in made:
            made[base.key, device] = made[base.key, None].to(device)
    return [made[base.key, device] for base in part.bases]


def _read_kept(path: Path) -> pd.DataFrame | None:
    """Return the table computed before; none if it is not there, or damaged."""
    try:
        return read_table(path)
    except DataError:
        return None


def _key_of(study: Study, part: Beside, trials: Iterable[str]) -> str:
    settings = [identity(one) for one in part.settings]
    bases = [base.key for base in part.bases]
    versions = list(versions_of(part.settings).items())
    return digest(versions, study.id, part.kind, part.name, bases, settings, *trials)[:20]


def _load_stitched(store: Store, trials: Collection[str], trial: Trial) -> Stitched:
    """Return the stitched network of one of a part's trials. Raises ``DataError`` if there is none."""
    if trial.key not in trials:
        raise DataError(f"{trial.where} is not among the trials that this part of the study names; add it to them")
    if not store.has(TRIALS, trial.key):
        failed = store.failure(TRIALS, trial.key)
        if failed is None:
            raise DataError(f"{trial.where} was not measured; add it to the study's plan")
        raise DataError(
            f"{trial.where} failed, and its stitched network is needed ({failed['error']}); all else is kept: "
            "fix the cause, and run the study again with --retry"
        )
    assert isinstance(trial.sender, Network)
    return Stitched.load(store.path / TRIALS / trial.key, trial.sender, trial.receiver, trial.family)


# --- the card ---------------------------------------------------------------------------------------------------------


def _name_networks(bases: Iterable[TrainingTask]) -> dict[str, list[int]]:
    """Return the seeds of the networks by name."""
    found: dict[str, list[int]] = {}
    for base in bases:
        if isinstance(base, BaseModel):
            found.setdefault(base.name, []).append(base.seed)
    return {name: sorted(seeds) for name, seeds in found.items()}


def _make_card(study: Study, scale: Scale, tables: Tables, store: Store, bases: tuple[TrainingTask, ...]) -> Record:
    """Return counts and times: seconds of one thread, of each trial and network once."""
    cards = [store.record(base.kind, base.key) for base in bases]
    measured = tables.get(MEASURED)
    once = measured.drop_duplicates("trial") if measured is not None else None
    return {
        "study": study.id,
        "scale": scale.name,
        "reading": READING,
        "tables": list(tables),
        "trials": 0 if once is None else len(once),
        "failed": 0 if once is None else int((once["status"] == "failed").sum()),
        "seconds": 0.0 if once is None else float(once["seconds"].sum()),
        "networks": len(cards),
        "of": _name_networks(bases),
        "training_seconds": float(sum(card["seconds"] for card in cards)),
        "machine": describe_machine(),
    }

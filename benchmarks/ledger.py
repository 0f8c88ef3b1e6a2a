"""Run the papers' experiments for some hours of one core, from where it stopped: networks, trials, tables and figures.

    nice -n 19 python benchmarks/ledger.py DATA STORE --hours 10
    python benchmarks/ledger.py DATA STORE --only ID … --lacking [default | recipe]
    python benchmarks/ledger.py DATA STORE --list

In the order of ``ORDER``, by ``suture run --until-converged`` at small scale. Networks of ``papers/results/networks``
are taken from there, others are trained, and what took more than half a minute is kept there, while all is below 100
MB: 16-bit weights, which are those that were measured, beside their card. ``papers/results/took.json`` says what each
took. With ``--lacking`` only those trials of an experiment are measured that its table lacks, all or those of one kind
of fit, and added to it: rows by older versions by which verdicts stand are kept. An experiment may take longer than one
store lives: what is measured and in no table yet is kept in ``papers/results/unfinished.tar.xz``. Another store takes
it from there, and what tables show by today's versions.
"""

import argparse
import json
import math
import os
import shlex
import signal
import sys
import tarfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_bytes

from suture import Trial, run
from suture.cli.main import main as suture
from suture.common.sealed import SEAL
from suture.core.saving import to_plain
from suture.extend import read_text as to_text
from suture.extend import write_json
from suture.measurement.scores.in_distribution import MEASURES
from suture.measurement.tables.table import add_later_columns, save
from suture.measurement.trials.versions import read_versions, say_outdated
from suture.runs.store.store import NETWORKS, TRIALS, Store
from suture_papers import STUDIES, load_result, scale_named
from suture_papers.base.cells import QUICK
from suture_papers.base.cells import TRIALS as MEASURED
from suture_papers.base.run import (
    _TOLD,
    STANDING,
    Labels,
    Loaded,
    _complete,
    _find_near,
    _make_card,
    _networks_of,
    _plan,
    hash_prefixes,
)
from suture_papers.base.scale import TINY, Scale
from suture_papers.base.study import Deferred, bases_of
from suture_papers.cli.studies import loader_of
from suture_papers.ledger import LEDGER
from suture_papers.ledger.inventory import gather, join
from suture_papers.ledger.inventory import load as load_networks
from suture_papers.model_strings import KEPT
from suture_papers.networks.base_model import VERSION, BaseModel
from suture_papers.training import train_networks

ROOT = Path(__file__).resolve().parents[1]
RESULTS, TOOK, FIGURES = ROOT / "papers/results/small", ROOT / "papers/results/took.json", ROOT / "docs/papers/images"
UNFINISHED = ROOT / "papers/results/unfinished.tar.xz"
STITCHES = ROOT / "papers/results/stitches"  #: deciding stitches by experiment, for benchmarks/rejudge.py
SAID = ("trials", "failed", "seconds", "networks", "training_seconds")  #: of a card, by ``TOOK``
COUNTED = (*SAID, "of")  #: of a card, what further trials change
WORTH, ROOM = 30.0, 100e6  #: seconds of one core, bytes in all
LARGEST = 10e6  #: bytes of the stitches of one experiment
KEPT_AS = {"cnn": "cnn cifar10"}  #: since cnn-10 and cnn-11 are those of MNIST above CIFAR-10
PAGES = (
    "claims --page docs/papers/claims.md --papers docs/papers",
    "zoo table papers/results/small/networks.parquet --page docs/papers/zoo.md",
)
ORDER = (
    "oxford-4.2",  # the blind control: what the special layer adds
    *("smith-C1", "smith-4.2", "smith-C5", "smith-4.1", "smith-4.2-noise", "smith-1c"),  # verdicts by the recipe
    *("oxford-4.1-mlp", "oxford-4.1-cnn", "oxford-4.3a", "oxford-alone", "oxford-control"),
    *("hernandez-triangle", "hernandez-random-both", "hernandez-random-sender", "hernandez-random-receiver"),
    *("hernandez-2", "hernandez-2d"),
    *("oxford-4.3b", "oxford-4.4-fig5", "oxford-6.1", "oxford-6.2", "oxford-4.4-fig6"),
    *("bansal-2A-disjoint", "bansal-2C", "bansal-7", "bansal-9", "bansal-3C", "bansal-8", "bansal-2A"),
    *("bansal-2A-random", "bansal-5", "bansal-probe", "bansal-invariance", "bansal-fold"),
    *("bansal-3B", "bansal-3A", "smith-C2", "bansal-4"),  # if hours remain
)
"""What deserves a verdict first. Not in it are reports alone: bansal-2B, -6, hernandez-3, -copy, and paper scale."""


def list_networks(study: str, scale: Scale) -> list[BaseModel]:
    """Return the networks of a study, each once, and before each those that it starts from."""
    bases = [base for base in bases_of(STUDIES[study].plan(scale)) if isinstance(base, BaseModel)]
    return list({one.key: one for base in bases for one in (*base.bases, base)}.values())


def path_of(base: BaseModel) -> Path:
    """Return where the weights of a network are kept."""
    until = "" if base.until is None else f"-until-{base.until}"
    name = KEPT_AS.get(base.name, base.name).replace(" ", "-")
    return ROOT / KEPT / f"{name}{until}-{base.seed}.safetensors"


def find_kept(base: BaseModel) -> tuple[Path, dict[str, Any]] | None:
    """Return the weights and the card of a network that is kept, by whichever name; the card says that it is this."""
    wanted = {"training": VERSION, "source": base.source, "recipe": str(base.recipe), "seed": base.seed}
    wanted |= {"until": base.until, "start": base.start_key, "parts": str(base.parts)}
    for path in sorted((ROOT / KEPT).glob("*.json")):
        card = json.loads(path.read_text())
        if wanted.items() <= card.items() and card["data"]["fingerprint"] == base.samples.fingerprint:
            return path.with_suffix(".safetensors"), card
    return None


def take_kept(base: BaseModel, store: Store) -> str:
    """Put a network that is kept into the store; return its name, or nothing if there was none to put."""
    if store.has(NETWORKS, base.key) or (kept := find_kept(base)) is None:
        return ""
    path, card = kept
    weights = {name: own.float() if own.is_floating_point() else own for name, own in load_file(path).items()}
    card = {name: value for name, value in card.items() if name not in SEAL}
    store.keep(NETWORKS, base.key, card | {"network": base.key, "name": base.name, "rounded": True}, to_bytes(weights))
    return path.stem


def keep(base: BaseModel, store: Store) -> str:
    """Keep a network that took long; return a message."""
    if not store.has(NETWORKS, base.key):
        return ""
    card, path = store.record(NETWORKS, base.key), path_of(base)
    if card["processor_seconds"] < WORTH or find_kept(base):
        return ""
    if path.exists():
        return f"{path.name} is not kept: it is another network's"
    weights = from_bytes(store.tensors(NETWORKS, base.key))
    half = {name: own.half() if own.is_floating_point() else own.clone() for name, own in weights.items()}
    size = sum(own.numel() * own.element_size() for own in half.values())
    if size + sum(one.stat().st_size for one in path.parent.rglob("*")) > ROOM:
        return f"{path.name} is not kept: {KEPT} would be larger than {ROOM / 1e6:g} MB"
    kept = {name: value for name, value in card.items() if name not in ("made_in", *SEAL)}
    kept["machine"] = {name: value for name, value in card["machine"].items() if name != "host"}
    save_file(half, path)
    path.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    return f"kept {path.name}"


def keep_stitches(study: str, store: Store, results: Path = RESULTS, folder: Path = STITCHES) -> str:
    """Keep the stitches of an experiment's finished table that its verdicts read, in 16 bits; return the outcome.

    They are those of the default fit, without controls, as far as the store has them.
    """
    table = pd.read_parquet(results / f"{study}.trials.parquet").drop_duplicates("trial")
    wanted = table[(table["control"] == "") & ~table["published"] & (table["status"] == "ok")]["trial"]
    held: dict[str, torch.Tensor] = {}
    for key in (key for key in wanted if store.has(TRIALS, key)):
        tensors = from_bytes(store.tensors(TRIALS, key))
        held |= {f"{key}/{name}": own.half() if own.is_floating_point() else own for name, own in tensors.items()}
    size = sum(own.numel() * own.element_size() for own in held.values())
    if not held or size > LARGEST:
        return f"stitches of {study} are not kept: {size / 1e6:.1f} MB" if held else ""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(held, folder / f"{study}.safetensors")
    return f"kept {len({name.partition('/')[0] for name in held})} stitches of {study}, {size / 1e6:.1f} MB"


def keep_unfinished(store: Store, path: Path = UNFINISHED, results: Path = RESULTS) -> int:
    """Keep the trials of a store that no table has, but for those that may still be deepened; return how many."""
    tables = [pd.read_parquet(table, columns=["trial"]) for table in results.glob("*.trials.parquet")]
    shown = {str(key) for table in tables for key in table["trial"]}
    done = sorted(key for key in store.finished() - shown if store.has(TRIALS, key))
    kept = [key for key in done if store.record(TRIALS, key)["converged"] is not False]
    path.unlink(missing_ok=True)
    if kept:
        with tarfile.open(path, "w:xz") as archive:
            for key in kept:
                archive.add(store.path / TRIALS / key, key)
    return len(kept)


def take_unfinished(store: Store, path: Path = UNFINISHED) -> int:
    """Put the trials that are kept into a store that lacks them; return how many. Damaged ones are left out."""
    there, taken = store.finished(), 0
    if path.is_file():
        with tarfile.open(path) as archive, TemporaryDirectory(dir=store.path) as folder:
            archive.extractall(folder, filter="data")
            for found in sorted(Path(folder).iterdir()):
                if found.name not in there:
                    found.rename(store.path / TRIALS / found.name)
                    taken += store.has(TRIALS, found.name)
    return taken


def take_measured(store: Store, results: Path = RESULTS) -> int:
    """Put the trials that tables show, by today's versions of all parts, into a store; return how many it lacked.

    Other experiments read the same trials. Fits that say that they have not converged are left out. Stitches and curves
    of fits are not in tables, so these have none.
    """
    taken = 0
    for table in results.glob("*.trials.parquet"):
        rows = pd.read_parquet(table)
        today = rows["versions"].map(lambda text: not say_outdated([text]))
        for key, own in rows[today & rows["converged"].fillna(True) & (rows["warning"] == "")].groupby("trial"):
            if not store.has(TRIALS, str(key)):
                store.keep(TRIALS, str(key), _record_of(own.to_dict("records")), to_bytes({}))
                taken += 1
    return taken


def _record_of(rows: list[dict[Any, Any]]) -> dict[str, Any]:
    """Return the record of a trial, as far as its rows of a table, one a score, tell it."""

    def estimate(row: dict[Any, Any], name: str) -> dict[str, Any]:
        return {"value": row[name]} | {end: row[f"{name}_{end}"] for end in ("low", "high")}

    first = rows[0]
    names = ("status", "trial", "seconds", "device", "representation_error", "steps", "start", "converged")
    made = {name: first[name] for name in names} | {"curve": [], "scores": {}}
    made |= {"versions": read_versions(first["versions"]), "outcomes": first["outcomes"]}
    made["validation_loss"] = first.get("validation_loss")
    if first.get("gained", math.nan) > -math.inf:
        made["gained"] = {"value": first["gained"] / 100, "error": first["gained_error"] / 100}
    made["apart"] = {name: estimate(first, f"apart_{name}") for name in MEASURES if first[f"apart_{name}"] >= 0}
    for row in rows:
        alone = {name: {"value": row[f"{name}_score"]} for name in ("sender", "receiver")}
        own = {"stitched": estimate(row, "stitched") | {"n": row["n"]}, "penalty": estimate(row, "penalty")}
        made["scores"][row["score"]] = own | alone
    return dict(to_plain(made, "the record"))


def plan_trials(
    study: str, scale: Scale, store: Store, near: Collection[Labels] = (), made: Loaded | None = None
) -> list[Trial]:
    """Return the planned trials of an experiment, with its networks; those that the store lacks are trained first.

    Trials that are ``near`` a threshold are stitched several times; ``made`` keeps the networks for the next plan.
    """
    made = {} if made is None else made
    parts = [part for part in STUDIES[study].plan(scale) if isinstance(part, Deferred)]
    train_networks(bases_of(parts), store)
    return [trial for part in parts for trial in _plan(part, _networks_of(part, store, made), STUDIES[study], near)]


def plan_lacking(plan: Iterable[Trial], scale: Scale, table: pd.DataFrame, kind: str = "all") -> list[Trial]:
    """Return the trials of a plan that its table lacks, or has by versions by which no verdict stands.

    Of a ``kind``: ``default`` has those of the default fit, ``recipe`` those of any other.
    """
    there = {*_told(table[_standing(table)])}
    lacking = [trial for trial in plan if tuple(trial.labels[name] for name in _TOLD) not in there]
    default = (str(scale.fit), QUICK)
    return [trial for trial in lacking if kind == "all" or (trial.labels["fit"] in default) == (kind == "default")]


def _told(table: pd.DataFrame) -> Iterator[Labels]:
    return table[list(_TOLD)].itertuples(index=False, name=None)


def _standing(table: pd.DataFrame) -> pd.Series:
    """Return which rows are by versions by which verdicts stand."""
    return ~table["versions"].map(lambda text: bool(say_outdated([text], STANDING))).astype(bool)


def measure_lacking(study: str, scale: Scale, store: Store, results: Path = RESULTS, kind: str = "all") -> str:
    """Measure the trials that an experiment's table lacks, and add them to it; return the outcome.

    As in ``run_study``, the seams of a claim whose figure is near its threshold are stitched several times. An
    experiment without a table of trials is not begun: that is ``suture run``'s work.
    """
    found = load_result(results, study)
    if found is None or MEASURED not in found.tables:
        return f"{study} has no table; measure it without --lacking"
    tables, near, count, made = dict(found.tables), set[Labels](), 0, Loaded()
    tables[MEASURED] = add_later_columns(tables[MEASURED])
    while True:
        plan = plan_lacking(plan_trials(study, scale, store, near, made), scale, tables[MEASURED], kind)
        if plan:
            print(f"{study} lacks {len(plan)} trials", flush=True)
            count += len(plan)
            added = _complete(run(plan, store=store, extend=True), scale, store)
            tables[MEASURED] = add_rows(tables[MEASURED], added.assign(prefix=added["trial"].map(hash_prefixes(plan))))
        more = set() if scale.name == TINY else _find_near(STUDIES[study], tables) - near
        if not more:
            break
        near |= more
    if not count:
        return f"{study} lacks nothing"
    save(tables[MEASURED], results / f"{study}.{MEASURED}.parquet")
    bases = bases_of(part for part in STUDIES[study].plan(scale) if isinstance(part, Deferred))
    counted = _make_card(STUDIES[study], scale, tables, store, bases)
    card = {name: value for name, value in found.card.items() if name not in SEAL}
    card |= {name: counted[name] for name in COUNTED}
    write_json(results / f"{study}.json", to_text(card))
    return f"{study}: {count} trials added to {counted['trials'] - count}"


def add_rows(table: pd.DataFrame, added: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the rows that were added, without those of old versions that they replace."""
    new = {*_told(added)}
    places = {told[:-1] for told in new}  # whatever their stitch seeds
    stays = [
        told not in new and (stands or told[:-1] not in places)
        for told, stands in zip(_told(table), _standing(table), strict=True)
    ]
    kept = table[pd.Series(stays, table.index, dtype=bool)]
    return pd.concat([kept, added], ignore_index=True).astype(added.dtypes[[c for c in added if c in table]].to_dict())


def settle(study: str, networks: Iterable[BaseModel], store: Store) -> None:
    """Keep the networks of a study, and write their times and the study's results."""
    for base in networks:
        if said := keep(base, store):
            print(said, flush=True)
    if store.finished(NETWORKS):
        path = RESULTS / "networks.parquet"
        tables = [load_networks(path)] if path.is_file() else []
        save(join([*tables, gather(store, LEDGER)], LEDGER), path)
    found = load_result(RESULTS, study)
    if found is not None and found.stands:
        took = json.loads(TOOK.read_text()) if TOOK.is_file() else {}
        TOOK.write_text(json.dumps(took | {study: {name: found.card[name] for name in SAID}}, indent=1) + "\n")
        if said := keep_stitches(study, store):
            print(said, flush=True)
    with redirect_stdout(StringIO()):
        for command in PAGES:
            suture(shlex.split(command))


def main() -> int:
    """Run the experiments for which there is time; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with cifar10/ and mnist/")
    parser.add_argument("store", type=Path)
    parser.add_argument("--hours", type=float, default=1000.0)
    parser.add_argument("--workers", default="1", help="cores that work at a time")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    kinds = ("all", "default", "recipe")
    said = "measure only what tables lack, of all fits or a kind, and add it to them"
    parser.add_argument("--lacking", nargs="?", const="all", choices=kinds, help=said)
    parser.add_argument("--list", action="store_true", help="say how many networks are kept or in the store")
    parser.add_argument("--keep", action="store_true", help="only keep what is measured and in no table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, store = given.data.resolve(), Store.make(given.store.resolve())
    if given.keep:
        print(f"{keep_unfinished(store)} trials are in {UNFINISHED.relative_to(ROOT)}")
        return 0
    if not given.list:
        print(f"{take_unfinished(store)} trials are taken from {UNFINISHED.relative_to(ROOT)}", flush=True)
        print(f"{take_measured(store)} trials are taken from tables", flush=True)
    os.chdir(ROOT)
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # it stops as at the keyboard, and goes on from there
    signal.setitimer(signal.ITIMER_REAL, 3600 * given.hours)
    for study in given.only or ORDER:
        scale = scale_named("small", loader_of(str(data)))
        networks = list_networks(study, scale)
        if given.list:
            there = [store.has(NETWORKS, base.key) or find_kept(base) is not None for base in networks]
            print(f"{study:28} {sum(there)} of {len(there)} networks", flush=True)
            continue
        for base in networks:
            if name := take_kept(base, store):
                print(f"taken: {name}", flush=True)
        if given.lacking:
            try:
                print(measure_lacking(study, scale, store, kind=given.lacking), flush=True)
            except KeyboardInterrupt:
                return 0
            settle(study, networks, store)
            continue
        folders = ["--out", str(store.path), "--results", str(RESULTS), "--figures", str(FIGURES), "--data", str(data)]
        code = suture(["run", study, "--scale", "small", *folders, "--until-converged", "--workers", given.workers])
        settle(study, networks, store)
        keep_unfinished(store)
        if code == 130:  # interrupted, by the clock or at the keyboard
            return 0
        if code:
            print(f"{study} ended with {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The commands about the networks of the papers' experiments: ``zoo`` and what follows it."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.output import say
from suture.common.errors import RunnerError, SutureError

THROUGHPUT = "throughput.txt"  #: beside a table of networks, what benchmarks/training_throughput.py found


def zoo(chosen: Namespace, command: str) -> int:
    """Do what ``zoo`` is told; the exit code."""
    return _COMMANDS[chosen.what](chosen[chosen.what], command)


def _networks(chosen: Namespace, command: str) -> int:
    from suture.report.terminal import ledger as ledgers

    rows = ledgers.network_rows(_ledger())
    if chosen.json:
        output.show_json(rows)
    else:
        output.show(ledgers.networks_table(rows), "", ledgers.networks_text(rows))
    return 0


def _recipes(chosen: Namespace, command: str) -> int:
    from suture.report.terminal.networks import recipe_words, recipes_table
    from suture.zoo.recipes import RECIPES

    if chosen.json:
        output.show_json(
            {name: {"recipe": str(recipe), "words": recipe_words(recipe)} for name, recipe in RECIPES.items()}
        )
    else:
        output.show(recipes_table(RECIPES))
    return 0


def _plan(chosen: Namespace, command: str) -> int:
    from suture.cli.names import check_least
    from suture.report.terminal import ledger as ledgers

    check_least(chosen, workers=1)
    entries = _chosen(chosen.only)
    if chosen.json:
        output.show_json(ledgers.record(entries, chosen.workers))
    else:
        said = ledgers.total_words(entries, chosen.workers)
        output.show(ledgers.ledger_text(entries, output.width()), "", said)
    return 0


def _train(chosen: Namespace, command: str) -> int:
    from suture.cli.names import device_named, loader_named, runner_named
    from suture.runs.runners import run
    from suture.runs.runners.progress import shown
    from suture.runs.store.store import Store
    from suture.studies import ledger

    runner = runner_named(chosen.on, workers=chosen.workers, ram=chosen.ram, disk=chosen.disk)
    device = device_named(chosen.device)
    entries = _chosen(chosen.only, _seeds(chosen.seeds))
    wanted = ledger.make_models(entries, loader_named(chosen.data), device=device)
    store = Store.make(chosen.out)
    kinds = f"{len(entries)} kind{'' if len(entries) == 1 else 's'}"
    say(f"{len(wanted)} base networks of {kinds}")
    try:
        run(
            wanted,
            store=store,
            on=runner,
            progress=shown("network"),
            retry=chosen.retry,
            extend=True,
            command=command,
        )
    except RunnerError as error:
        say(f"suture: {error}; --retry trains again what failed")
    return _summary(store, chosen.json, {model.key for model in wanted})


def _summary(store: Any, as_json: bool, keys: set[str]) -> int:
    """Show what the networks that were asked for reach; the exit code, 1 where some are not trained."""
    from suture.report.terminal import ledger as ledgers
    from suture.runs.store.store import NETWORKS

    done = sorted(store.finished(NETWORKS) & keys)
    cards = [store.record(NETWORKS, key) for key in done]
    if as_json:
        output.show_json(dict(zip(done, cards, strict=True)))
    elif cards:
        output.show(ledgers.reached_table(cards))
    say(f"{len(done)} of {len(keys)} networks are trained, in {store.path}")
    return 0 if len(done) == len(keys) else 1


def _table(chosen: Namespace, command: str) -> int:
    from suture.measurement.tables.table import save
    from suture.report.pages.zoo import page
    from suture.report.terminal.ledger import inventory_table
    from suture.runs.store.files import write_page
    from suture.runs.store.store import Store
    from suture.studies.ledger import inventory

    entries = _ledger()
    paths = [Path(result).expanduser() for result in chosen.results]
    tables = [inventory.load(path) if path.is_file() else inventory.gather(Store(path), entries) for path in paths]
    if chosen.out is not None and (there := Path(chosen.out).expanduser()).is_file():
        tables.insert(0, inventory.load(there))
    table = inventory.join(tables, entries)
    if chosen.json:
        output.show_json(output.records(table))
    else:
        output.show(inventory_table(table))
    if chosen.out is not None:
        say(f"wrote {save(table, Path(chosen.out).expanduser())}")
    if chosen.page is not None:
        beside = [path.parent / THROUGHPUT for path in paths if path.is_file()]
        throughput = [line for path in beside if path.is_file() for line in path.read_text().splitlines()]
        say(f"wrote {write_page(chosen.page, page(table, entries, throughput))}")
    return 0


# --- what of the ledger is asked for ----------------------------------------------------------------------------------


def _ledger() -> Any:
    from suture.studies import ledger

    return ledger.LEDGER


def _chosen(only: str | None, seeds: tuple[int, ...] | None = None) -> list[Any]:
    """The entries of the ledger whose name, or one of whose experiments, a pattern suits, with these of their seeds."""
    entries = list(_ledger())
    if only is not None:
        suited = [e for e in entries if any(fnmatchcase(name, only) for name in (e.name, *e.experiments))]
        if not suited:
            names = ", ".join(entry.name for entry in entries)
            raise SutureError(f"--only {only} suits no network; give a pattern such as mlp*; the networks: {names}")
        entries = suited
    if seeds is None:
        return entries
    kept = [replace(entry, seeds=tuple(seed for seed in entry.seeds if seed in seeds)) for entry in entries]
    kept = [entry for entry in kept if entry.seeds]
    if not kept:
        there = sorted({seed for entry in entries for seed in entry.seeds})
        raise SutureError(f"--seeds {','.join(map(str, seeds))}: none of these; the networks have {there}")
    return kept


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() for name in names):
        raise SutureError(f"--seeds {text}: give whole numbers from 0, separated by commas, such as 0,1")
    return tuple(map(int, names))


_COMMANDS = {"networks": _networks, "recipes": _recipes, "plan": _plan, "train": _train, "table": _table}

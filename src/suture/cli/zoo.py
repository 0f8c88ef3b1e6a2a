"""``suture zoo``: the networks of the papers' experiments."""

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.options import (
    add_data_folder,
    add_device,
    add_json,
    add_out,
    add_running,
    at_least,
    check_device,
    named_path,
    runner_of,
)
from suture.cli.output import say
from suture.cli.studies import loader_of
from suture.common.errors import RunnerError, SutureError

ABOUT = (
    "the networks of the papers' experiments",
    "The networks of the papers' experiments: what there is, what training them takes, and what they reach.",
    "suture zoo networks",
    "suture zoo plan",
    "suture zoo train --out runs/zoo --data data",
    "suture zoo table runs/zoo --out networks.parquet --page docs/zoo.md",
)
THROUGHPUT = "throughput.txt"  #: beside a table of networks, what benchmarks/training_throughput.py found


def seeds(text: str) -> tuple[int, ...]:
    """Read whole numbers, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() for name in names):
        raise ArgumentTypeError(f"{text}: give whole numbers from 0, separated by commas, such as 0,1")
    return tuple(map(int, names))


def _add_only(parser: Parser) -> None:
    about = "only networks, or experiments, of such names, as in 'smith*'"
    parser.add_argument("--only", metavar="PATTERN", help=about)


def plan_options(parser: Parser) -> None:
    """Add the options of ``zoo plan``."""
    _add_only(parser)
    parser.add_argument("--workers", type=at_least(1), default=2, metavar="N", help="how many train at the same time")
    add_json(parser)


def train_options(parser: Parser) -> None:
    """Add the options of ``zoo train``."""
    add_out(parser, "of the run", required=True)
    add_data_folder(parser)
    _add_only(parser)
    parser.add_argument("--seeds", type=seeds, metavar="SEEDS", help="only these, such as 0,1")
    add_device(parser)
    add_running(parser)
    add_json(parser)


def table_options(parser: Parser) -> None:
    """Add the options of ``zoo table``."""
    results = "the folder of a run, or a table that this command wrote; of one network the last counts"
    parser.add_argument("results", nargs="+", metavar="RUN", help=results)
    out = "add the rows to a table, as parquet; what it has of other networks stays"
    parser.add_argument("--out", type=named_path, metavar="FILE", help=out)
    parser.add_argument("--page", type=named_path, metavar="FILE", help="write the page, as Markdown")
    add_json(parser)


def run_networks(chosen: Namespace) -> int:
    """List every network and return the exit code."""
    from suture.report.terminal import ledger as ledgers

    rows = ledgers.network_rows(_ledger())
    if chosen.json:
        output.show_json(rows)
    else:
        output.show(ledgers.networks_table(rows), "", ledgers.networks_text(rows))
    return 0


def run_recipes(chosen: Namespace) -> int:
    """List every recipe and return the exit code."""
    from suture.report.terminal.networks import recipe_words, recipes_table
    from suture.zoo.recipes import RECIPES

    if chosen.json:
        output.show_json(
            {name: {"recipe": str(recipe), "words": recipe_words(recipe)} for name, recipe in RECIPES.items()}
        )
    else:
        output.show(recipes_table(RECIPES))
    return 0


def run_plan(chosen: Namespace) -> int:
    """Say what training the networks takes and return the exit code."""
    from suture.report.terminal import ledger as ledgers

    entries = _chosen(chosen.only)
    if chosen.json:
        output.show_json(ledgers.record(entries, chosen.workers))
    else:
        said = ledgers.total_words(entries, chosen.workers)
        output.show(ledgers.ledger_text(entries, output.width()), "", said)
    return 0


def run_train(chosen: Namespace) -> int:
    """Train the networks and return the exit code."""
    from suture.runs.runners import run
    from suture.runs.runners.progress import choose_progress
    from suture.runs.store.store import Store
    from suture.studies import ledger

    runner, device = runner_of(chosen), check_device(chosen.device)
    entries = _chosen(chosen.only, chosen.seeds)
    wanted = ledger.make_models(entries, loader_of(chosen.data), device=device)
    store = Store.make(chosen.out)
    kinds = f"{len(entries)} kind{'' if len(entries) == 1 else 's'}"
    say(f"{len(wanted)} base networks of {kinds}")
    try:
        run(
            wanted,
            store=store,
            on=runner,
            progress=choose_progress("network"),
            retry=chosen.retry,
            extend=True,
            command=chosen.line,
        )
    except RunnerError as error:
        say(f"suture: {error}; --retry trains again what failed")
    return _summary(store, chosen.json, {model.key for model in wanted})


def _summary(store: Any, as_json: bool, keys: set[str]) -> int:
    """Show what the networks that were asked for reach, and return the exit code: 1 if some are not trained."""
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


def run_table(chosen: Namespace) -> int:
    """Gather what the networks reach and return the exit code."""
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


COMMANDS = (
    Command(
        name="zoo networks",
        help="every network, with its arguments and sizes",
        about="List every network that zoo:NAME names, with its arguments, the images that it takes, how it normalises "
        "them, and its parameters at the sizes of this project's experiments and of the papers.",
        examples=("suture zoo networks",),
        options=add_json,
        run=run_networks,
    ),
    Command(
        name="zoo recipes",
        help="every recipe of training",
        about="List every recipe of training, in words.",
        examples=("suture zoo recipes",),
        options=add_json,
        run=run_recipes,
    ),
    Command(
        name="zoo plan",
        help="what training the networks of the experiments takes",
        about="List every base network that the experiments need at small scale, each trained once and shared: for "
        "which experiments, from how many seeds, how long it trains on two cores and what it takes on the disk. "
        "Nothing is trained.",
        examples=("suture zoo plan", "suture zoo plan --only 'colour*'"),
        options=plan_options,
        run=run_plan,
    ),
    Command(
        name="zoo train",
        help="train the networks of the experiments",
        about="Train the base networks of the experiments into the folder of a run. What is there is not trained "
        "again, and what was stopped goes on.",
        examples=(
            "suture zoo train --out runs/zoo --data data",
            "suture zoo train --out runs/zoo --data data --only 'mlp*' --seeds 0",
        ),
        options=train_options,
        run=run_train,
    ),
    Command(
        name="zoo table",
        help="gather what the networks reach, and write docs/zoo.md",
        about="Gather the cards of trained networks into a table, a row for each network and test set, and write the "
        "page about them. The table alone is enough to write the page again.",
        examples=(
            "suture zoo table runs/zoo --out networks.parquet --page docs/zoo.md",
            "suture zoo table networks.parquet --page docs/zoo.md",
        ),
        options=table_options,
        run=run_table,
    ),
)

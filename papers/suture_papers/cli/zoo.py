"""``suture zoo``: the networks of the papers' experiments."""

from argparse import Namespace
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from suture import SutureError
from suture.extend import (
    JSON,
    RUNNING,
    Command,
    at_least,
    command,
    named_path,
    option,
    out_option,
    output,
    runner_of,
    say,
    say_count,
)
from suture_papers.cli.studies import DATA_FOLDER, loader_of
from suture_papers.cli.train import numbers_from

THROUGHPUT = "throughput.txt"  #: beside a table of networks, what benchmarks/training_throughput.py found
ONLY = option("--only", metavar="PATTERN", help="only networks or experiments with such names, as in 'smith*'")


@command("zoo networks", JSON, examples=("suture zoo networks",))
def networks(chosen: Namespace) -> int:
    """List every network, with its arguments and sizes.

    List every network that zoo:NAME names, with its arguments, the images that it takes, how it normalises them, and
    its parameters at the sizes of this project's experiments and of the papers.
    """
    from suture_papers.ledger import LEDGER
    from suture_papers.reports import ledger as words

    rows = words.network_rows(LEDGER)
    output.answer(chosen, rows, words.networks_table(rows), "", words.networks_text(rows))
    return 0


@command("zoo recipes", JSON, examples=("suture zoo recipes",))
def recipes(chosen: Namespace) -> int:
    """List every recipe of training."""
    from suture_papers.networks.recipes import RECIPES
    from suture_papers.reports.networks import recipes_table

    record = {name: {"recipe": str(recipe)} for name, recipe in RECIPES.items()}
    output.answer(chosen, record, recipes_table(RECIPES))
    return 0


@command(
    "zoo plan",
    ONLY,
    option(
        "--workers", type=at_least(1), default=2, metavar="N", help="number of networks that train at the same time"
    ),
    JSON,
    examples=("suture zoo plan", "suture zoo plan --only 'colour*'"),
)
def plan(chosen: Namespace) -> int:
    """Estimate the cost of training the networks of the experiments.

    List every base network that the experiments need at small scale, each trained once and shared: for which
    experiments, from how many seeds, its training time on two cores and its size on the disk. Nothing is trained.
    """
    from suture_papers.reports import ledger as words

    entries = _entries(chosen.only)
    said = words.ledger_text(entries, output.width()), "", words.total_words(entries, chosen.workers)
    output.answer(chosen, words.record(entries, chosen.workers), *said)
    return 0


@command(
    "zoo train",
    out_option("folder of the run", required=True),
    DATA_FOLDER,
    ONLY,
    option("--seeds", type=numbers_from(0), metavar="SEEDS", help="only these seeds, such as 0,1"),
    *RUNNING,
    JSON,
    examples=(
        "suture zoo train --out runs/zoo --data data",
        "suture zoo train --out runs/zoo --data data --only 'mlp*' --seeds 0",
    ),
)
def train(chosen: Namespace) -> int:
    """Train the networks of the experiments.

    Train the base networks of the experiments into the folder of a run. Networks that are there are not
    trained again, and a stopped training continues.
    """
    from suture import Store
    from suture.extend import NETWORKS, choose_progress
    from suture_papers.ledger import make_models
    from suture_papers.reports.ledger import reached_table
    from suture_papers.training import Untrained, train_networks

    runner = runner_of(chosen)
    entries = _entries(chosen.only, chosen.seeds)
    wanted = make_models(entries, loader_of(chosen.data))
    store = Store.make(chosen.out)
    say(f"{say_count(len(wanted), 'base network')} of {say_count(len(entries), 'kind')}")
    settings = {"device": chosen.device, "retry": chosen.retry, "command": chosen.line}
    try:
        train_networks(wanted, store, on=runner, progress=choose_progress(), **settings)
    except Untrained as error:
        say(f"suture: {error}; --retry trains failed networks again")
    done = sorted(store.finished(NETWORKS) & {model.key for model in wanted})
    cards = {key: store.record(NETWORKS, key) for key in done}
    if cards or chosen.json:
        output.answer(chosen, cards, reached_table(cards.values()))
    say(f"{len(done)} of {len(wanted)} networks are trained, in {store.path}")
    return 0 if len(done) == len(wanted) else 1


@command(
    "zoo table",
    option(
        "results",
        nargs="+",
        metavar="RUN",
        help="folder of a run, or a table that this command wrote; the last row of a network counts",
    ),
    option(
        "--out",
        type=named_path,
        metavar="FILE",
        help="add the rows to a table, as parquet; its rows of other networks stay",
    ),
    option("--page", type=named_path, metavar="FILE", help="write the page, as Markdown"),
    JSON,
    examples=(
        "suture zoo table runs/zoo --out networks.parquet --page docs/papers/zoo.md",
        "suture zoo table networks.parquet --page docs/papers/zoo.md",
    ),
)
def table(chosen: Namespace) -> int:
    """Gather the networks' accuracies, and write docs/papers/zoo.md.

    Gather the cards of trained networks into a table, a row for each network and test set, and write the page about
    them. The table alone is enough to write the page again.
    """
    from suture import Store
    from suture.extend import save_table as save
    from suture.extend import write_page
    from suture_papers.ledger import LEDGER, inventory
    from suture_papers.reports.ledger import inventory_table
    from suture_papers.reports.pages.zoo import page

    paths = [Path(result).expanduser() for result in chosen.results]
    tables = [inventory.load(path) if path.is_file() else inventory.gather(Store(path), LEDGER) for path in paths]
    if chosen.out is not None and (there := Path(chosen.out).expanduser()).is_file():
        tables.insert(0, inventory.load(there))
    joined = inventory.join(tables, LEDGER)
    output.answer(chosen, output.records(joined), inventory_table(joined))
    if chosen.out is not None:
        say(f"wrote {save(joined, Path(chosen.out).expanduser())}")
    if chosen.page is not None:
        beside = [path.parent / THROUGHPUT for path in paths if path.is_file()]
        throughput = [line for path in beside if path.is_file() for line in path.read_text().splitlines()]
        say(f"wrote {write_page(chosen.page, page(joined, LEDGER, throughput))}")
    return 0


zoo = Command(
    name="zoo",
    text="The networks of the papers' experiments.\n"
    "The networks of the papers' experiments: the list, their training cost, and their accuracy.",
    examples=(
        "suture zoo networks",
        "suture zoo plan",
        "suture zoo train --out runs/zoo --data data",
        "suture zoo table runs/zoo --out networks.parquet --page docs/papers/zoo.md",
    ),
    commands=(networks, recipes, plan, train, table),
)


def _entries(only: str | None, seeds: tuple[int, ...] | None = None) -> list[Any]:
    """Return the entries of the ledger whose name or experiments a pattern suits, with these of their seeds."""
    from suture_papers.ledger import LEDGER

    entries = list(LEDGER)
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

"""The accuracies of trained networks in one table: a row for each network and each test set that scored it.

Accuracies are fractions with 95 % intervals over test images (``low``, ``high``), seconds are those of one thread, as
time and as the processors were busy with it. The first test set of a network is that of its own data (``own``); others
show its accuracy elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from suture import Store
from suture.common.errors import DataError
from suture.extend import NETWORKS, Record, draw_example
from suture.extend import read_table as read
from suture.zoo import parse_source, resolve
from suture_papers.ledger import Entry
from suture_papers.networks.recipes import RECIPES

# fmt: off
COLUMNS = (
    "name", "seed", "key", "source", "data", "images", "recipe", "start", "parts", "until", "score_data", "own",
    "accuracy", "low", "high", "n", "worst_class", "worst", "seconds", "processor_seconds", "rate", "epochs",
    "steps", "loss", "losses", "parameters", "cuts", "device", "precision", "processor", "torch", "suture",
    "experiments", "deviation",
)
# fmt: on
"""``rate`` is in training images a second, ``losses`` are the mean losses of the epochs in nats, as text."""


def gather(store: Store, entries: Sequence[Entry] = ()) -> pd.DataFrame:
    """Make the table of all networks that are trained in a store, with columns from the ``entries`` of a ledger.

    It is in the order of the entries, then of names, and of seeds. Raises ``DataError`` if the store has none,
    ``StoreError`` if a card is damaged.
    """
    cards = {key: store.record(NETWORKS, key) for key in sorted(store.finished(NETWORKS))}
    rows = [row for key, card in cards.items() for row in rows_of(key, card, entries)]
    if not rows:
        raise DataError(f"{store.path} has no trained network; train some with suture zoo train --out {store.path}")
    return _sort(
        pd.DataFrame(rows, columns=list(COLUMNS)).astype({"until": "Int64", "cuts": "Int64", "seed": "int64"}), entries
    )


def join(tables: Sequence[pd.DataFrame], entries: Sequence[Entry] = ()) -> pd.DataFrame:
    """Join tables to one; if two have the same network from the same device, the later one's rows count.

    What networks deviate in is said as the ``entries`` say it now.
    """
    known: dict[tuple[str, str], pd.DataFrame] = {}
    for table in tables:
        for (key, device), rows in table.groupby(["key", "device"], sort=False):
            known[str(key), str(device)] = rows
    table = pd.concat(known.values(), ignore_index=True)
    now = {entry.name: entry.deviation for entry in entries}
    said = [now.get(name, before) for name, before in zip(table["name"], table["deviation"], strict=True)]
    return _sort(table.assign(deviation=said), entries)


def _sort(table: pd.DataFrame, entries: Sequence[Entry]) -> pd.DataFrame:
    order = {entry.name: place for place, entry in enumerate(entries)}
    places = table["name"].map(lambda name: order.get(name, len(order)))
    rows = table.assign(place=places, other=~table["own"])
    by = ["place", "name", "seed", "device", "other"]
    return rows.sort_values(by, kind="stable").drop(columns=["place", "other"]).reset_index(drop=True)


def load(path: str | Path) -> pd.DataFrame:
    """Read a table that ``save`` wrote. Raises ``DataError`` if it is none."""
    path = Path(path).expanduser()
    table = read(path)
    lacking = [name for name in COLUMNS if table is None or name not in table]
    if table is None or lacking:
        raise DataError(
            f"{path} is not a table of networks, without {', '.join(lacking)}; give one that suture zoo table wrote"
        )
    return table


def find_missing(table: pd.DataFrame, entries: Iterable[Entry]) -> dict[str, tuple[int, ...]]:
    """Return the seeds of entries of a ledger that a table lacks, by name."""
    there = set(zip(table["name"], table["seed"], strict=True))
    found = {entry.name: tuple(seed for seed in entry.seeds if (entry.name, seed) not in there) for entry in entries}
    return {name: seeds for name, seeds in found.items() if seeds}


def rows_of(key: str, card: Record, entries: Sequence[Entry] = ()) -> Iterator[dict[str, Any]]:
    """Return the rows of one network, by its card, under the name of the entry that it is one of.

    One that has an entry's name and other settings, as after a recipe has changed, says so in its name.
    """
    losses, data, machine = card["losses"], card["data"], card["machine"]
    planned = next((entry for entry in entries if entry.describes(card)), None)
    other = planned is None and any(entry.name == card["name"] for entry in entries)
    about = {
        "name": planned.name if planned is not None else f"{card['name']}{' (other settings)' * other}",
        "seed": card["seed"],
        "key": key,
        "source": card["source"],
        "data": data["name"],
        "images": data["samples"],
        "recipe": planned.recipe if planned is not None else name_of_recipe(card["recipe"]),
        "start": card["start"] or "",
        "parts": card["parts"],
        "until": card["until"],
        "seconds": card["seconds"],
        "processor_seconds": card.get("processor_seconds", float("nan")),
        "rate": card["epochs"] * data["samples"] / card["seconds"] if card["seconds"] else float("nan"),
        "epochs": card["epochs"],
        "steps": card["steps"],
        "loss": losses[-1] if losses else float("nan"),
        "losses": " ".join(f"{loss:.4g}" for loss in losses),
        "parameters": card["parameters"],
        "cuts": count_cuts(card["source"], tuple(data["shape"])),
        "device": card["device"],
        "precision": card["precision"],
        "processor": machine["processor"],
        "torch": machine["torch"],
        "suture": machine["suture"],
        "experiments": ", ".join(planned.experiments) if planned is not None else "",
        "deviation": planned.deviation if planned is not None else "",
    }
    distinct: dict[str, Record] = {}
    for scored in card["scores"]:
        distinct.setdefault(scored["data"]["fingerprint"], scored)
    if not distinct:
        yield about | {"score_data": "", "own": True} | _UNSCORED
    for place, scored in enumerate(distinct.values()):
        yield about | {"score_data": scored["data"]["name"], "own": place == 0} | _scores(scored)


_NOTHING = float("nan")
_UNSCORED = {"accuracy": _NOTHING, "low": _NOTHING, "high": _NOTHING, "n": 0, "worst_class": "", "worst": _NOTHING}


def _scores(scored: Record) -> dict[str, Any]:
    accuracy, classes = scored["accuracy"], scored["classes"]
    worst = min(classes, key=lambda name: classes[name]["value"])
    return {
        "accuracy": accuracy["value"],
        "low": accuracy["low"],
        "high": accuracy["high"],
        "n": accuracy["n"],
        "worst_class": worst,
        "worst": classes[worst]["value"],
    }


def name_of_recipe(recipe: str) -> str:
    """Return the name of a recipe that a card spells out, or its full text if it has no name."""
    return {str(known): name for name, known in RECIPES.items()}.get(recipe, recipe)


@cache
def count_cuts(source: str, shape: tuple[int, ...]) -> int | None:
    """Count the cuts of a network, by its model string and the shape (C, H, W) of its images.

    Those of a Python file, which a card may name, are not known, because it would have to be run.
    """
    if parse_source(source, trust=True).file is not None:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return len(resolve(source).network(draw_example(shape)).cuts)

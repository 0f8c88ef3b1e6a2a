"""The available networks, the cost of training those of the experiments, and their accuracy, for the terminal."""

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import torch
from rich.table import Table
from rich.text import Text

from suture.extend import Record, clock, in_words, lay_out
from suture.zoo import parse_source, resolve
from suture_papers.ledger import HOURS, Entry
from suture_papers.networks.architectures import NETWORKS, images_of, preprocess_of
from suture_papers.reports.networks import accuracy_cells

PAPERS = {
    "cnn": (("oxford2025", "zoo:cnn"), ("MNIST-CIFAR", "zoo:cnn,image=(64,32)")),
    "mlp": (("oxford2025", "zoo:mlp,inputs=3072"), ("oxford2025", "zoo:mlp,inputs=3072,depth=10")),
    "myrtle": (("bansal2021", "zoo:myrtle"),),
    "resnet": (
        ("bansal2021", "zoo:resnet,blocks=(2,2,2,2),width=64"),
        ("ResNet-34", "zoo:resnet,blocks=(3,4,6,3),width=64"),
        ("smith2024", "zoo:resnet,blocks=(2,2,2,2),width=64,stem=7x7"),
    ),
    "resnet164": (("bansal2021", "zoo:resnet164"),),
    "resnet50": (("oxford2025", "zoo:resnet50"),),
    "vgg19": (("smith2024", "zoo:vgg19"),),
    "vit": (("bansal2021", "zoo:vit"),),
}
"""The papers' sizes of each network."""


# --- every network ----------------------------------------------------------------------------------------------------


def network_rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return every network at its sizes in the papers, then in a ledger, as plain values."""
    small: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        source = parse_source(entry.source)
        if source.kind == "zoo":
            small.setdefault(source.name, {}).setdefault(entry.source, []).append(entry.name)
    rows = []
    for name, build in NETWORKS.items():
        sizes = [_size(whose, text) for whose, text in PAPERS.get(name, (("default", f"zoo:{name}"),))]
        sizes += [_size("here", text) for text in small.get(name, {})]
        given = {p.name: p.default for p in inspect.signature(build).parameters.values()}
        rows.append({"network": name, "arguments": given, "sizes": sizes})
    return rows


def _size(whose: str, text: str) -> dict[str, Any]:
    source = parse_source(text)
    with torch.device("meta"):
        model = resolve(text).model
    preprocess = preprocess_of(source.name, source.arguments)
    return {
        "for": whose,
        "source": text,
        "images": images_of(source.name, source.arguments),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "preprocess": {"size": preprocess.size, "mean": preprocess.mean, "std": preprocess.std},
    }


def networks_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Show every network: its arguments and how it normalises images, then a line for each size."""
    made = Table.grid(padding=(0, 2), pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold", style="dim")
    made.add_row("network", "parameters", "images", "size of")
    for row in rows:
        made.add_row()
        made.add_row(Text(row["network"], style="bold"))
        for size in row["sizes"]:
            shape = "×".join(map(str, size["images"])) if size["images"] is not None else "open"
            made.add_row(
                Text(f"  {size['source'].removeprefix('zoo:')}"), f"{size['parameters']:,}", shape, size["for"]
            )
    return made


def networks_text(rows: Sequence[dict[str, Any]]) -> str:
    """Describe the arguments of each network, with the default, and how it prepares images."""
    lines = []
    for row in rows:
        arguments = ", ".join(f"{key}={value}".replace(" ", "") for key, value in row["arguments"].items())
        lines.append(f"zoo:{row['network']} takes {arguments}; images are {_prepared(row['sizes'][0]['preprocess'])}")
    return "\n".join(lines)


def _prepared(preprocess: dict[str, Any]) -> str:
    resized = f"resized to {preprocess['size']} pixels, " if preprocess["size"] else ""
    mean, std = preprocess["mean"], preprocess["std"]
    if mean is None or set(mean) == {0.0}:
        return resized + "taken as they are"
    return resized + f"normalised by {', '.join(f'{x:g}' for x in mean)} and {', '.join(f'{x:g}' for x in std)}"


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger_text(entries: Iterable[Entry], width: int = 80) -> str:
    """Describe the training cost of each network, its experiments, and how it differs from the papers'.

    ``width`` is that of the screen, in characters.
    """
    entries = list(entries)
    name = max([20, *(len(entry.name) for entry in entries)])
    lines = [f"{'network':{name}}  seeds  images/s     time     disk"]
    for entry in entries:
        took, room = clock(entry.seconds * len(entry.seeds)), in_words(entry.bytes)
        lines.append(f"{entry.name:{name}}  {len(entry.seeds):5}  {entry.rate:8,.0f}  {took:>7}  {room:>7}")
        for line in (
            _trained(entry),
            f"for {', '.join(entry.experiments)}",
            entry.deviation and f"but {entry.deviation}",
        ):
            lines += textwrap.wrap(
                line, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
            )
    return "\n".join(lines)


def _trained(entry: Entry) -> str:
    changed = "".join(f", {variant.summary}" for variant in entry.variants)
    start = f" from {entry.start}" if entry.start is not None else ""
    until = f" to epoch {entry.until}" if entry.until is not None else ""
    epochs = f" in {entry.epochs} epochs" if entry.epochs is not None else ""
    return f"{entry.source} on {entry.data}{changed} by {entry.recipe}{epochs}{until}{start}"


def total_words(entries: Sequence[Entry], workers: int) -> str:
    """Describe the total cost, and whether it fits the budget."""
    total = record(entries, workers)
    each = f"{total['networks']} networks" if total["networks"] != 1 else "1 network"
    fits = (
        f"within the {HOURS:g} h that all may take" if total["fits"] else f"more than the {HOURS:g} h that all may take"
    )
    return (
        f"{each}, {clock(total['seconds'])} of one thread: about {clock(total['hours'] * 3600)} with "
        f"{workers} at a time, {fits}; {in_words(total['bytes'])} on the disk. Times are at most these: some trainings "
        "end when the loss plateaus."
    )


def record(entries: Sequence[Entry], workers: int) -> dict[str, Any]:
    """Return the ledger as plain values: times in seconds of one thread, sizes in bytes, all of them for all seeds."""
    names = ("name", "source", "data", "recipe", "epochs", "start", "until", "rate", "bytes", "deviation")
    rows = [
        {name: getattr(entry, name) for name in names}
        | {"seeds": list(entry.seeds), "experiments": list(entry.experiments)}
        | {"variants": [variant.summary for variant in entry.variants]}
        | {"seconds": round(entry.seconds * len(entry.seeds), 1)}
        for entry in entries
    ]
    seconds = sum(entry.seconds * len(entry.seeds) for entry in entries)
    longest = max((entry.seconds for entry in entries), default=0.0)
    hours = max(seconds / workers, longest) / 3600
    return {
        "entries": rows,
        "networks": sum(len(entry.seeds) for entry in entries),
        "seconds": round(seconds, 1),
        "workers": workers,
        "hours": round(hours, 2),
        "budget_hours": HOURS,
        "fits": hours <= HOURS,
        "bytes": sum(entry.bytes for entry in entries),
    }


# --- what was reached -------------------------------------------------------------------------------------------------


def reached_table(cards: Iterable[Record]) -> Table:
    """Show a line for each trained network, of its card."""
    rows = (
        (card["name"], card["seed"], *accuracy_cells(card["scores"][0]["accuracy"]), clock(card["seconds"]))
        for card in sorted(cards, key=lambda card: (card["name"], card["seed"]))
    )
    return lay_out(("network", ">seed", ">accuracy", ">95 %", ">time"), rows)


def inventory_table(table: pd.DataFrame) -> Table:
    """Show a line for each network of a table and each of its test sets."""
    rows = (
        (
            *(row["name"], str(row["score_data"]).removesuffix("/score"), row["seed"]),
            *accuracy_cells({"value": row["accuracy"], "low": row["low"], "high": row["high"]}),
            *(clock(row["seconds"]), row["cuts"]),
        )
        for row in table.to_dict("records")
    )
    return lay_out(("network", "test images", ">seed", ">accuracy", ">95 %", ">time", ">cuts"), rows)

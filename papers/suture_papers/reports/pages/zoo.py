"""The page about the trained networks of the experiments, ``docs/papers/zoo.md``, made of their table alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from suture.extend import clock
from suture.zoo import Source, parse_source
from suture_papers.ledger import Entry
from suture_papers.ledger.inventory import find_missing
from suture_papers.reports.pages.claims import fold, grid

COMMAND = "suture zoo table papers/results/small/networks.parquet --page docs/papers/zoo.md"

KINDS = {
    "mlp": "Multilayer perceptrons",
    "cnn": "Two convolutions and fully connected layers",
    "convnet": "Small convolutional networks",
    "myrtle": "Myrtle-CNN",
    "resnet": "ResNets of basic blocks",
    "resnet50": "ResNets of bottlenecks",
    "resnet164": "Pre-activation ResNets",
    "vgg19": "VGG19",
    "vit": "Vision transformers",
}
"""The headings of the page, by the name of the network."""


@dataclass(frozen=True)
class Target:
    """An accuracy that networks of a kind should reach on the test images of some data: ``least``, a fraction."""

    words: str
    least: float
    data: str
    suits: Callable[[Source], bool]


TARGETS = (
    Target(
        "ResNet-18 at quarter width, all of CIFAR-10",
        0.88,
        "cifar10/training",
        lambda s: (
            s.name == "resnet"
            and tuple(s.arguments.get("blocks", ())) == (2, 2, 2, 2)
            and s.arguments.get("width", 16) == 16
        ),
    ),
    Target("Myrtle-CNN, all of CIFAR-10", 0.88, "cifar10/training", lambda s: s.name == "myrtle"),
    Target("CNN, MNIST", 0.985, "mnist/training", lambda s: s.name in ("cnn", "convnet")),
    Target("MLP, CIFAR-10", 0.48, "cifar10/training", lambda s: s.name == "mlp"),
)
"""The least that each must reach."""

TABLE_C1 = {"correlated": 0.999, "digit": 0.978, "colour": 1.0, "colour only": 0.686}
"""smith2024, table C1, base column: accuracy on Correlated, by what the ResNet-18 was trained on (5 seeds)."""
SHAPELESS = "colour only"  #: trained without any digit, so out of distribution on Correlated


def page(table: pd.DataFrame, entries: Sequence[Entry] = (), throughput: Sequence[str] = ()) -> str:
    """Write the page, which also names networks that ``entries`` of a ledger have and the table lacks.

    ``throughput`` are the lines of the benchmark of training. Networks without an accuracy, which a study trains and
    scores in its own way, are left out.
    """
    table = table[table["accuracy"].notna()]
    own = _once(table[table["own"]])
    planned = {entry.name: entry for entry in entries}
    parts = [
        "# The trained networks",
        f"Made by `{COMMAND}`; do not edit by hand. A row is a kind of network. Accuracies are in %, on all test "
        "images: the mean over the seeds and in brackets their range. Seconds are those of one core per seed, while "
        "the other core trains another network; with ≈ they are from the ledger's images a second.",
        _machines(table[table["own"]]),
        "## What had to be reached",
        _targets(own),
        *_throughput(throughput),
        *_colours(_once(table)),
        *(part for kind in _kinds(own) for part in _section(kind, own, table, planned)),
        *_elsewhere(_once(table)),
        *_missing(table, entries),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _once(table: pd.DataFrame) -> pd.DataFrame:
    """Return each network once: from this processor if it was trained both there and on a GPU."""
    ranked = table.sort_values("device", key=lambda devices: devices != "cpu", kind="stable")
    return ranked.drop_duplicates(["key", "score_data"]).sort_index()


def _machines(own: pd.DataFrame) -> str:
    """Return how many networks were trained, and a table of the machines that trained them."""
    lines = [
        [
            f"{len(rows)}",
            "GPU" if device == "cuda" else str(device),
            str(processor),
            str(version),
            clock(float(rows[rows["until"].isna()]["seconds"].sum())),
        ]
        for (device, processor, version), rows in own.groupby(["device", "processor", "torch"], sort=True)
    ]
    machines = grid(["networks", "device", "processor", "torch", "training"], lines, right=(0,))
    twice = [rows for _, rows in own.groupby("key") if rows["device"].nunique() > 1]
    gaps = [rows.groupby("device")["accuracy"].mean().diff().abs().max() for rows in twice]
    count = own["key"].nunique()
    told = f"{count} network{' was' if count == 1 else 's were'} trained."
    if gaps:
        widest = f"their accuracies differ by up to {100 * max(gaps):.1f}"
        told += f" Trained on both a CPU and a GPU, and counted with each: {len(twice)}; {widest}."
    return f"{told}\n\n{machines}"


def _throughput(lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    about = (
        "ResNet-18 at quarter width on 20,000 images of CIFAR-10, 4 epochs: a plain PyTorch loop (float32, DataLoader, "
        "torchvision's augmentation) and `suture train`, in turns, by "
        "`python benchmarks/training_throughput.py CIFAR10 --out papers/results/small/throughput.txt`:"
    )
    return ["## Throughput of training", about, "```text\n" + "\n".join(lines) + "\n```"]


def _targets(own: pd.DataFrame) -> str:
    rows = [[target.words, f"{100 * target.least:.1f}", *_reached(target, own)] for target in TARGETS]
    return grid(["network", "at least", "reached", "", "by"], rows, right=(1, 2))


def _reached(target: Target, own: pd.DataFrame) -> list[str]:
    right = own["source"].map(lambda source: target.suits(parse_source(source)))
    suited = own[own["data"].eq(target.data) & own["until"].isna() & own["start"].eq("") & right]
    if suited.empty:
        return ["", "not trained", ""]
    means = suited.groupby("name")["accuracy"].mean()
    best = str(means.idxmax())
    rows = suited[suited["name"] == best]
    return [_range(rows["accuracy"]), "reached" if means[best] >= target.least else "**not reached**", best]


def _colours(table: pd.DataFrame) -> list[str]:
    """Set Colour MNIST beside smith2024's table C1; return nothing if no such network was trained."""
    resnets = table["source"].str.contains("resnet")
    on = table[table["score_data"].str.endswith(" correlated/score") & resnets]
    means: dict[str, float] = {}
    rows = []
    for trained, theirs in TABLE_C1.items():
        found = on[on["data"].str.endswith(f" {trained}/training")]
        if len(found):
            means[trained] = float(found["accuracy"].mean())
            rows.append([trained, f"{100 * theirs:.1f}", _range(found["accuracy"]), f"{found['seed'].nunique()}"])
    if not rows:
        return []
    lines = [
        "## Colour MNIST",
        "Accuracy on the test images of Correlated, beside the base column of smith2024's table C1. Colour-only has "
        "never seen a digit, so there only the order counts.",
        grid(["trained on", "smith2024", "here", "seeds"], rows, right=(1, 2, 3)),
    ]
    if SHAPELESS in means and len(means) > 1:
        lowest = min(means, key=lambda name: means[name]) == SHAPELESS
        lines.append(f"Colour-only is {'the lowest, as' if lowest else '**not** the lowest; it is'} in the paper.")
    return lines


def _kinds(own: pd.DataFrame) -> list[str]:
    there = {parse_source(source).name for source in own["source"]}
    return [name for name in KINDS if name in there] + sorted(there - KINDS.keys())


def _section(kind: str, own: pd.DataFrame, table: pd.DataFrame, planned: Mapping[str, Entry]) -> Iterator[str]:
    rows = own[own["source"].map(lambda source: parse_source(source).name == kind)]
    yield f"## {KINDS.get(kind, kind)}"
    what, took = ["name", "network", "trained on", "recipe", "seeds"], ["seconds", "parameters", "cuts"]
    on_cpu = table[table["own"] & table["device"].eq("cpu")]
    lines = [
        _line(str(name), group, _seconds(on_cpu[on_cpu["name"].eq(name)], planned.get(str(name))))
        for name, group in rows.groupby("name", sort=False)
    ]
    parts = [grid([*what, "accuracy", "worst class", *took], lines, right=(4, 5, 7, 8, 9))]
    deviations: dict[str, dict[str, None]] = {}
    for name, deviation in zip(rows["name"], rows["deviation"], strict=True):
        if deviation:
            deviations.setdefault(deviation, {})[name] = None
    if deviations:
        differ = [[", ".join(names), deviation] for deviation, names in deviations.items()]
        parts.append(grid(["names", "differs from the paper"], differ))
    if kind in ("resnet", "myrtle", "vit", "resnet164"):
        parts += _curves(rows)
    count = len(lines)
    yield fold(f"{count} kind{'s' * (count > 1)} of networks, {rows['key'].nunique()} trained", *parts)


def _seconds(rows: pd.DataFrame, planned: Entry | None) -> str:
    """Return the seconds of one seed on one core, measured or by the ledger's rate."""
    if len(rows):
        return f"{rows['processor_seconds'].fillna(rows['seconds']).mean():,.0f}"
    if planned is None:
        return ""
    return f"≈ {planned.seconds:,.0f}" if planned.until is None else "on the way"


def _line(name: str, rows: pd.DataFrame, seconds: str) -> list[str]:
    first = rows.iloc[0]
    epochs = f"{rows['epochs'].mean():.3g} epochs"
    worst = rows.groupby("worst_class")["worst"].mean()
    return [
        name,
        f"`{first['source']}`",
        f"{first['data'].removesuffix('/training')}, {first['images']:,} images",
        f"{first['recipe']}, {epochs}",
        f"{rows['seed'].nunique()}",
        _range(rows["accuracy"]),
        f"{worst.idxmin()} {100 * worst.min():.1f}",
        seconds,
        f"{first['parameters']:,}",
        "" if pd.isna(first["cuts"]) else f"{first['cuts']}",
    ]


def _curves(rows: pd.DataFrame) -> Iterator[str]:
    """Return the training losses of the first seed, at up to eight epochs."""
    lines = []
    for name, group in rows.groupby("name", sort=False):
        losses = [float(loss) for loss in group.iloc[0]["losses"].split()]
        if len(losses) > 1:
            places = sorted({round(i * (len(losses) - 1) / 7) for i in range(8)})
            lines.append([str(name), ", ".join(f"{losses[place]:.3g} ({place + 1})" for place in places)])
    if lines:
        yield grid(["name", "training loss in nats (of epoch), first seed"], lines)


def _elsewhere(table: pd.DataFrame) -> list[str]:
    """Describe the accuracy of networks on other test images than those of their own data."""
    other = table[~table["own"]]
    if other.empty:
        return []
    lines = [
        [str(name), str(data).removesuffix("/score"), f"{rows['seed'].nunique()}", _range(rows["accuracy"])]
        for (name, data), rows in other.groupby(["name", "score_data"], sort=False)
    ]
    made = grid(["name", "test images", "seeds", "accuracy"], lines, right=(2, 3))
    return ["## On other test images", fold(f"{len(lines)} kinds of networks and images", made)]


def _missing(table: pd.DataFrame, entries: Sequence[Entry]) -> list[str]:
    lacking = find_missing(table, entries)
    if not lacking:
        return []
    count = sum(map(len, lacking.values()))
    lines = [[name, ", ".join(map(str, seeds))] for name, seeds in lacking.items()]
    said = f"{count} of the networks that the experiments need are not in the table."
    return ["## Not trained", said, fold("Networks and seeds", grid(["name", "seeds"], lines))]


def _range(values: "pd.Series[float]") -> str:
    """Write a mean and range as ``88.3 (87.9–88.6)``; of one seed, without the range."""
    shown = f"{100 * values.mean():.1f}"
    return shown if len(values) == 1 else f"{shown} ({100 * values.min():.1f}–{100 * values.max():.1f})"

"""The cost of the default fit as cuts, training images and network width grow, in CPU seconds of one thread.

    python benchmarks/scaling.py path/to/cifar10 runs/scaling

The networks are ResNets of ``runs/zoo`` (``suture zoo train --out runs/zoo``). *Cuts*: the matrix of two networks of
width 16, seeds 0 and 1, at 1, 2, 4 and 8 of their blocks, 10,000 images to fit and 10,000 test images; measured are
seams with one in every row and column, and a seam's mean stands for all. *Images*: three of these seams with 1,000 to
10,000 images to fit. *Width*: a network of every width stitched into itself, off the diagonal, since of width 32 there
is but one; 2,500 images to fit and 2,500 test images. All have 5,000 others to validate on. *Rates*: networks without
training, of widths 16 and 64, from which ``limit.py`` takes how fast each part of the work runs. Once per repeat the
points are measured in turn; what is shared (activations, outputs) in the first ones only. A JSON file per measurement:
started again, only what is missing is measured. Prints medians and exponents with their standard errors and draws them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter
from scipy.stats import linregress

sys.path.insert(0, str(Path(__file__).parents[1]))

import suture
from benchmarks.machine import spending
from benchmarks.matrix import fill
from benchmarks.operations import fitted_flops, per_image, shared_flops
from benchmarks.plain_loop import measure_plain
from suture import Network
from suture.common.seeds import undisturbed
from suture.core.activations.cache import Activations, Need
from suture.core.activations.disk_cache import ActivationFolder
from suture.fits import Converged, Quick, converged
from suture.measurement.trials import measure as measuring
from suture.measurement.trials.plans import curve
from suture.measurement.trials.trial import Trial
from suture.reports.figures import curve as figures

BLOCKS = tuple(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1))
LATIN = {0: 4, 1: 1, 2: 6, 3: 7, 4: 2, 5: 5, 6: 0, 7: 3}  #: sender's block → receiver's, one in every row and column
CUTS = {1: (5,), 2: (3, 7), 4: (1, 3, 5, 7), 8: tuple(range(8))}  #: blocks, by their number; each in LATIN's rows too
IMAGES = (1_000, 2_500, 5_000, 10_000)  #: to fit
OF_IMAGES = ((5, 5), (3, 7), (7, 3))
WIDTHS = {4: "resnet18 w0.25", 8: "resnet18 w0.5", 16: "resnet18", 32: "resnet18 w2"}  #: names in the ledger
OF_WIDTHS = ((3, 5), (5, 3))
FEW = 2_500
RATES = (16, 64)
PLAIN_AT = (4, 4)
COLOURS = {"seams": ("#0072B2", "o"), "shared": ("#D55E00", "s"), "plain loop": ("#7F7F7F", "x")}


@dataclass(frozen=True)
class Point:
    """One thing that is timed: a seam, or the work that all seams between some blocks share."""

    kind: str  #: seam, shared, plain
    width: int
    blocks: tuple[tuple[int, int], ...]  #: pairs of sender's and receiver's
    fitted: int = 10_000
    scored: int = 10_000
    itself: bool = False  #: whether sender and receiver are one network
    trained: bool = True

    @property
    def name(self) -> str:
        seams = "_".join(f"{a}{b}" for a, b in self.blocks) if len(self.blocks) < 5 else f"{len(self.blocks)}-seams"
        which = ("" if self.trained else "-untrained") + ("-itself" if self.itself else "")
        return f"{self.kind}-w{self.width}{which}-{self.fitted}-{self.scored}-{seams}"


def grid(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a in CUTS[count] for b in CUTS[count])


def sampled(count: int) -> list[tuple[int, int]]:
    return [(a, LATIN[a]) for a in CUTS[count]]


def groups(repeat: int, once: int) -> Iterator[list[Point]]:
    """Points that use the same activations, those that make them first.

    Of fewer training images only ``fitted`` is new: the scored images are those of the points before.
    """
    shared = ["shared"] if repeat < once else []
    for count in (1, 2, 4):
        yield [Point(kind, 16, grid(count)) for kind in shared]
    whole = [Point(kind, 16, grid(8)) for kind in shared] + [Point("seam", 16, (cell,)) for cell in sampled(8)]
    for fitted in IMAGES[:-1]:
        whole += [Point(kind, 16, grid(8), fitted) for kind in shared]
        whole += [Point("seam", 16, (cell,), fitted) for cell in OF_IMAGES]
    yield whole
    for width in WIDTHS:
        made = [Point(kind, width, OF_WIDTHS, FEW, FEW, True) for kind in shared]
        yield made + [Point("seam", width, (cell,), FEW, FEW, True) for cell in OF_WIDTHS]
    if repeat < once:
        for width in RATES:
            yield [Point(kind, width, ((3, 3),), 1200, 1024, True, False) for kind in ("shared", "seam")]
        yield [Point("plain", 16, (PLAIN_AT,))]


class Workshop:
    """Networks and data, made when they are first asked for."""

    def __init__(self, data: str, zoo: Path) -> None:
        self._data, self.zoo = suture.load_data(data, name="cifar10"), zoo
        self.data = cache(self._limited)
        self.network = cache(self._loaded)
        self.untrained = cache(self._built)

    def _limited(self, fitted: int, scored: int) -> suture.Data:
        return self._data.limited(fit=fitted, score=scored)

    def _loaded(self, width: int, seed: int) -> Network:
        source = next(str(path.parent) for path in self.zoo.glob("*/card.json") if _is(path, width, seed))
        return suture.load_network(source, example=self._data.fit.example, name="AB"[seed])

    def _built(self, blocks: tuple[int, ...], width: int) -> Network:
        source = f"zoo:resnet,blocks={blocks},width={width}".replace(" ", "")
        name = f"ResNet{blocks}"
        return suture.load_network(source, example=self._data.fit.example, name=name)

    def trials(self, point: Point) -> list[Trial]:
        if point.trained:
            sender, receiver = (self.network(point.width, seed) for seed in (0, 0 if point.itself else 1))
        else:
            sender = receiver = self.untrained((2, 2, 2, 2), point.width)
        data = self.data(point.fitted, point.scored)
        fit = Converged() if point.trained else Quick(steps=60)
        pairs = [(BLOCKS[a], BLOCKS[b]) for a, b in point.blocks]
        return list(curve(sender, receiver, at=pairs, data=data, fit=fit, controls=()))


def _is(path: Path, width: int, seed: int) -> bool:
    card = json.loads(path.read_text(encoding="utf-8"))
    return (card["name"], card["seed"], card["status"]) == (WIDTHS[width], seed, "ok")


PARTS: list[tuple[str, Any, str]] = [
    ("fit", Converged, "fit"),
    ("fit", Quick, "fit"),
    ("closed form", converged, "_load_closed_forms"),
    ("choice of suffix", converged, "choose_suffix"),
    ("convex solution", converged, "_solve_convex"),
    ("descent", converged.AveragedDescent, "run"),
    ("descent", converged.AveragedDescent, "run_briefly"),
    ("scoring", measuring, "run_stitched"),
    ("representation error", measuring, "representation_error"),
    ("whether frozen", Network, "state_digest"),
]


class ClockedSuffix(torch.nn.Module):
    """A suffix that adds up its CPU seconds, forwards and back, and its images, by their purpose.

    That is steps or validation.
    """

    def __init__(self, suffix: torch.nn.Module, parts: dict[str, float], images: dict[str, int]) -> None:
        super().__init__()
        self.suffix, self.parts, self.images, self.begun = suffix, parts, images, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        what = "suffix in steps" if x.requires_grad else "suffix in validation"
        self.images[what] = self.images.get(what, 0) + len(x)

        def begin(_: object = None) -> None:
            self.begun = time.process_time()

        def end(_: object = None) -> None:
            self.parts[what] = self.parts.get(what, 0.0) + time.process_time() - self.begun

        if x.requires_grad:
            x.register_hook(end)  # once its gradient is there, the way back has passed the suffix
        begin()
        out: torch.Tensor = self.suffix(x)
        end()
        if out.requires_grad:
            out.register_hook(begin)
        return out


@contextmanager
def clocked(parts: dict[str, float], images: dict[str, int]) -> Iterator[None]:
    """Add up the CPU seconds of the parts of a measurement, and the images of a descent.

    A part that runs within another counts in both.
    """

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return work(*given, **named)
            finally:
                parts[name] = parts.get(name, 0.0) + time.process_time() - begun

        return run

    begin = converged.AveragedDescent.__init__

    def begin_clocked(descent: Any, problem: Any, stitch: Any, suffix: Any, batch: int) -> None:
        begin(descent, problem, stitch, ClockedSuffix(suffix, parts, images), batch)

    with ExitStack() as stack:
        stack.enter_context(patch.object(converged.AveragedDescent, "__init__", begin_clocked))
        for name, place, attribute in PARTS:
            stack.enter_context(patch.object(place, attribute, timed(name, getattr(place, attribute))))
        yield


def measured(point: Point, shop: Workshop, kept: Activations) -> dict[str, Any]:
    trials = shop.trials(point)
    match point.kind:
        case "plain":
            with spending() as spent:
                found = measure_plain(trials[0])
            return {"cpu": spent.cpu, "accuracy": found.accuracy, "steps": found.steps}
        case "shared":
            needs = list({need.key: need for trial in trials for need in trial.needs}.values())
            scored = [need for need in needs if _of_score(need, trials[0])]
            fitted = [need for need in needs if not _of_score(need, trials[0])]
            record: dict[str, Any] = {}
            for role, some in (("fitted", fitted), ("scored", scored)):
                with spending() as spent:
                    fill(kept, some)
                record |= {role: spent.cpu, f"{role} flops": shared_flops(some), f"{role} bytes": _bytes(some)}
            return record | {"cpu": record["fitted"] + record["scored"]}
    (trial,), parts, images = trials, dict[str, float](), dict[str, int]()
    fill(kept, trial.needs)
    with clocked(parts, images), spending() as spent:
        result = suture.measure(trial, kept)
    stitch = result.stitch.requires_grad_(True)
    costs = asdict(per_image(trial, stitch))
    flops = fitted_flops(result)
    score = result.scores["accuracy"].value
    return {"cpu": spent.cpu, "parts": parts, "steps": result.steps, "accuracy": score} | {
        "converged": result.converged,
        "validated": images.get("suffix in validation", 0),
        "flops": flops,
        "per image": costs,
        "notes": result.notes,
    }


def _of_score(need: Need, trial: Trial) -> bool:
    return need.samples in (trial.score_data, trial.compared)


def _bytes(needs: list[Need]) -> int:
    return sum(need.nbytes for need in needs)


def measure_all(given: argparse.Namespace, shop: Workshop) -> None:
    for repeat in range(given.repeats):
        for group in groups(repeat, given.shared):
            paths = {point: given.folder / f"{point.name}-{repeat}.json" for point in group}
            missing = [point for point, path in paths.items() if not path.exists()]
            if not missing:
                continue
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                kept = Activations(2**30, ActivationFolder(Path(folder), 20 * 10**9))
                for point in missing:
                    record = measured(point, shop, kept)
                    paths[point].write_text(json.dumps(record, indent=1), encoding="utf-8")
                    print(f"{point.name}: {record['cpu']:.1f} CPU s", flush=True)


def records(folder: Path, point: Point) -> list[dict[str, Any]]:
    paths = (folder / f"{point.name}-{repeat}.json" for repeat in range(100))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def seconds(folder: Path, point: Point, part: str = "cpu") -> float:
    return float(median(record[part] for record in records(folder, point)))


def seams(folder: Path, cells: Any, width: int = 16, fitted: int = 10_000, **other: Any) -> float:
    """The mean seconds of a seam."""
    return fmean(seconds(folder, Point("seam", width, (cell,), fitted, **other)) for cell in cells)


def exponent(places: list[float], values: list[float]) -> tuple[float, float, float]:
    """The slope of a line through logarithms, its standard error, and its value at 1."""
    line = linregress(np.log(places), np.log(values))
    return float(line.slope), float(line.stderr), float(np.exp(line.intercept))


def panels(folder: Path) -> list[tuple[str, list[float], dict[str, list[float]]]]:
    """Return the contents of each panel: its axis, the places on it, and seconds by purpose."""
    of_cuts = {
        "seams": [count**2 * seams(folder, sampled(count)) for count in CUTS],
        "shared": [seconds(folder, Point("shared", 16, grid(count))) for count in CUTS],
    }
    of_images = {
        "seams": [seams(folder, OF_IMAGES, fitted=fitted) for fitted in IMAGES],
        "shared": [seconds(folder, Point("shared", 16, grid(8), fitted), "fitted") for fitted in IMAGES],
    }
    few: dict[str, Any] = {"fitted": FEW, "scored": FEW, "itself": True}
    of_widths = {
        "seams": [seams(folder, OF_WIDTHS, width, **few) for width in WIDTHS],
        "shared": [seconds(folder, Point("shared", width, OF_WIDTHS, FEW, FEW, True)) for width in WIDTHS],
    }
    return [
        ("blocks cut in each network", list(CUTS), of_cuts),
        ("images to fit", list(IMAGES), of_images),
        ("width of the networks", list(WIDTHS), of_widths),
    ]


LABELS = (
    {"seams": "all n × n seams", "shared": "shared by them"},
    {"seams": "one seam", "shared": "shared, to fit"},
    {"seams": "one seam", "shared": "shared"},
)


def drawn(folder: Path) -> Figure:
    plain = seconds(folder, Point("plain", 16, (PLAIN_AT,)))
    with figures.styled():
        figure = Figure(figsize=(figures.WIDTH, 2.75), layout="constrained")
        for axes, letter, labels, shown in zip(figure.subplots(1, 3), "abc", LABELS, panels(folder), strict=True):
            axis, places, lines = shown
            for what, values in lines.items():
                _fitted(axes, places, values, what, labels[what])
            if letter == "a":
                axes.plot(places, [plain * n**2 for n in places], color=COLOURS["plain loop"][0], lw=1, ls=(0, (4, 2)))
            if letter == "b":
                scored = seconds(folder, Point("shared", 16, grid(8)), "scored")
                axes.axhline(scored, color=COLOURS["shared"][0], lw=1, ls=":", label="shared, to score")
            if letter != "c":
                said = "plain loop, from one seam" if letter == "a" else "plain loop, one seam"
                axes.plot(places[:1] if letter == "a" else places[-1:], [plain], "x", color="#7F7F7F", ms=5, label=said)
            _dressed(axes, axis, places, letter)
    return figure


def _fitted(axes: Axes, places: list[float], values: list[float], what: str, label: str) -> None:
    colour, marker = COLOURS[what]
    slope, error, first = exponent(places, values)
    axes.plot(places, values, marker, color=colour, ms=4.5, label=f"{label}: {slope:.2f} ± {error:.2f}", zorder=3)
    axes.plot(places, [first * place**slope for place in places], color=colour, lw=1.2, zorder=2)


def _dressed(axes: Axes, axis: str, places: list[float], letter: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=axis)
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
    axes.margins(x=0.1)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * (high / low) ** 0.45)  # room for the legend
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_title(letter, loc="left", fontweight="bold", fontsize=9)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="upper left", fontsize=6.2, handletextpad=0.4, handlelength=1.4, borderaxespad=0.1)
    legend.set_title("exponent ± standard error", FontProperties(size=6.2, style="italic"))
    legend.set_alignment("left")
    if letter == "a":
        axes.set_ylabel("CPU seconds, one thread")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zoo", type=Path, default=Path("runs/zoo/networks"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared", type=int, default=1, help="repeats in which shared work is measured, too")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with undisturbed():
        measure_all(given, Workshop(given.data, given.zoo))
    for axis, places, lines in panels(given.folder):
        for what, values in lines.items():
            slope, error, _ = exponent(places, values)
            said = ", ".join(f"{place:,}: {value:.1f}" for place, value in zip(places, values, strict=True))
            print(f"{what} by {axis}: {said} CPU s; exponent {slope:.2f} ± {error:.2f}")
    figures.save(drawn(given.folder), given.folder / "scaling")


if __name__ == "__main__":
    main()

"""Stages b to e of ``benchmarks.gpu``, which need torch and Suture.

Methods, each of which gets the same trials: ``plain`` is the loop that people write, ``least squares + Adam`` that of
Csiszárik et al. 2021, ``default`` (and ``quick``) are Suture's fits one seam at a time, ``batched`` is the prototype
that fits all stitches into one cut side by side, ``recorded`` the same with its steps replayed as a CUDA graph, and
``short`` the same with a third of the steps, at one rate.

Activations that all seams share are computed first, with a clock of their own, and are counted to every method but
``plain``, which computes its prefix again in every step. ``cpu_seconds`` are those of the process, ``utilisation`` is
the share of time in percent in which the device ran anything, by its driver, and ``peak_bytes`` the most memory of the
device that was taken (on the processor: that the process held).
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

import suture
from benchmarks.batched import Batched, measure_together
from benchmarks.gpu import ROOT, Stage
from benchmarks.machine import spending
from benchmarks.matrix import fill, least_squares_then_adam, spread
from benchmarks.plain_loop import Plain, measure_plain
from suture import Data, Samples, Trial, controls, load_network
from suture.common.processor import processor
from suture.common.seeds import undisturbed
from suture.common.sizes import available_memory
from suture.core.activations.cache import Activations
from suture.fits import Converged, Fit, Quick
from suture.measurement.scores.scores import Accuracy
from suture_papers.base.scale import scale_named
from suture_papers.ledger import LEDGER
from suture_papers.networks.base_model import BaseModel, keep
from suture_papers.networks.recipes import FAST
from suture_papers.training.loop import EVERY

Record = dict[str, Any]
Work = Callable[[], Record]
Seams = dict[str, tuple[float, float]]
"""Accuracy, a fraction, and seconds of every seam."""
MakeStage = Callable[[Record], Stage]
CUTS = ("layer?.?",)  #: behind every block
TINY_CUTS = ("layer2.0", "layer4.0")
SMALLEST, LARGEST = (1, 1, 1, 1), (2, 2, 2, 2)  #: blocks of hernandez2022's networks
PAIRS = 64  #: times as many seams have all 256 pairs of the 16 networks as the four pairs of these two: (16·6 / 12)²
BY_ALL = 3  #: seams that are measured by all methods before any other
NETWORKS = 8  #: times as many networks are there
ACCURACY = 0.5, 0.05  #: points by which a GPU's may be off, at one seam and on average
FRESH = (10, 11)  #: seeds that no verdict has used


# --- data and networks ------------------------------------------------------------------------------------------------


def read_cifar10(folder: Path, tiny: bool) -> Data:
    """Read CIFAR-10 without ``datasets``; the same tensors, and so the same keys, as ``suture.load_data``."""
    folder = folder / "cifar10" if (folder / "cifar10").is_dir() else folder
    parts = []
    for split in ("train", "test"):
        images, labels = [], []
        for path in sorted(folder.glob(f"{split}-*.parquet")):
            table = pq.read_table(path)
            labels += table["label"].to_pylist()
            images += [torch.from_numpy(_decode(row["bytes"])) for row in table["img"].to_pylist()]
            features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        if not images:
            raise SystemExit(
                f"{folder} has no {split}-*.parquet; make it by: python -m benchmarks.gpu pack DATA FOLDER"
            )
        classes = tuple(features["label"]["names"])
        parts.append(Samples(f"cifar10/{split}", torch.stack(images), torch.tensor(labels), classes))
    data = Data.split("cifar10", *parts)
    return data.limited(fit=64, score=60) if tiny else data


def _decode(png: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(png)).convert("RGB")).transpose(2, 0, 1).copy()


def find_networks(folder: Path, blocks: Sequence[int]) -> list[tuple[str, Path]]:
    """Return model strings and weights of the ResNets of a shape that saw CIFAR-10, the widest first.

    They are those of the repository and of ``folder/networks``.
    """
    begins, found = f"zoo:resnet,blocks=({','.join(map(str, blocks))}),width=", []
    for place in (ROOT / "papers" / "results" / "networks", folder / "networks"):
        for card in sorted(place.glob("*.json")):
            made = json.loads(card.read_text(encoding="utf-8"))
            source = made.get("source", "")  # language models have none
            if source.startswith(begins) and "stem" not in source and made["data"]["name"] == "cifar10/training":
                found.append((source, card.with_suffix(".safetensors")))
    return sorted(found, key=lambda each: -width_of(each[0]))


def as_path(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name)


def width_of(source: str) -> int:
    return int(source.partition("width=")[2].partition(",")[0])


# --- methods and clocks -----------------------------------------------------------------------------------------------


def own_fits(tiny: bool) -> dict[str, Fit]:
    """Return Suture's fits: the default of a trial, and the quick one."""
    return {"default": Quick(steps=2)} if tiny else {"default": Converged(), "quick": Quick()}


def batched(tiny: bool, device: torch.device) -> dict[str, Batched]:
    """Return the settings of the prototype; a GPU also replays its steps."""
    settings = Batched(steps=2, rates=(0.01, 0.03), recorded=False) if tiny else Batched(recorded=False)
    recorded = replace(settings, recorded=True)
    short = replace(recorded, steps=max(2, settings.steps // 3), rates=settings.rates[1:2])
    return {"batched": settings} | ({"recorded": recorded, "short": short} if device.type == "cuda" else {})


def one_by_one(trial: Trial, method: str, cache: Activations, tiny: bool) -> Record:
    """Measure a trial by a method that takes one at a time."""
    if method == "plain":
        found = measure_plain(trial, Plain(epochs=1, batch=32) if tiny else Plain())
        return {"accuracy": found.accuracy, "steps": found.steps}
    fit = own_fits(tiny).get(method)
    if fit is None:
        fit = least_squares_then_adam(len(trial.fit_data))
        fit = replace(fit, steps=2, check=2) if tiny else fit
    measurement = suture.measure(replace(trial, fit=fit), cache)
    return {
        "accuracy": measurement.scores["accuracy"].value,
        "steps": measurement.steps,
        "converged": measurement.converged,
        "notes": measurement.notes,
    }


class _Utilisation(threading.Thread):
    """Asks the driver five times a second how busy the device is."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(daemon=True)
        self.device, self.seen, self.done = device, list[int](), threading.Event()

    def run(self) -> None:
        with suppress(Exception):  # nvidia-ml-py may be missing, or the driver refuse to say
            while not self.done.wait(0.2):
                self.seen.append(torch.cuda.utilization(self.device))


@contextmanager
def clocked(device: torch.device) -> Iterator[Record]:
    """Fill a record with the time and memory of the work inside."""
    record: Record = {}
    on_gpu, watching = device.type == "cuda", _Utilisation(device)
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        watching.start()
    with spending() as spent:
        yield record
        if on_gpu:
            torch.cuda.synchronize(device)
    watching.done.set()
    record["seconds"], record["cpu_seconds"] = round(spent.wall, 4), round(spent.cpu, 4)
    record["peak_bytes"] = torch.cuda.max_memory_allocated(device) if on_gpu else spent.peak
    record["utilisation"] = round(fmean(watching.seen), 1) if watching.seen else None


def do(stage: Stage, key: str, work: Work) -> None:
    """Do a piece of work unless it is done, or the time is over; an error is a record, too, and tried again later."""
    if stage.is_over or "error" not in stage.records.get(key, {"error": "not there"}):
        return
    with clocked(stage.device) as record:
        try:
            record |= work()
        except Exception as error:  # one failing method must not cost the others their minutes
            record["error"] = f"{type(error).__name__}: {error}"[:2000]
            if stage.tiny:
                raise
    stage.put(key, record)


@dataclass
class Bench:
    """Trials on one device, with their activations."""

    stage: Stage
    grid: Sequence[Trial]
    cache: Activations

    @classmethod
    def of(cls, stage: Stage, grid: Sequence[Trial]) -> "Bench":
        return cls(stage, grid, Activations(max(2**30, available_memory() // 2)))

    def share(self) -> None:
        """Compute all activations; where a stage goes on they are computed again, but the first clock counts."""
        if self.stage.content["complete"]:
            return
        fitted = [replace(trial, fit=fit) for fit in own_fits(self.stage.tiny).values() for trial in self.grid]
        needs = [need for trial in fitted for need in trial.needs]
        with clocked(self.stage.device) as record, undisturbed():
            fill(self.cache, needs)
            record["bytes"] = sum({need.key: need.nbytes for need in needs}.values())
        if "shared" not in self.stage.records:
            self.stage.put("shared", record)

    def measure_columns(self) -> None:
        """Measure all trials by the prototype, one receiver's cut after another."""
        columns: dict[tuple[str, str, str], list[Trial]] = {}
        for trial in self.grid:
            name = f"{trial.receiver.name} {trial.receiver.fingerprint[:8]}"
            columns.setdefault((name, trial.receiver.fingerprint, trial.receiver_cut), []).append(trial)
        for method, settings in batched(self.stage.tiny, self.stage.device).items():
            for (name, _, cut), trials in columns.items():

                def work(trials: list[Trial] = trials, settings: Batched = settings) -> Record:
                    found = measure_together(trials, self.cache, settings)
                    return {"seams": {each.trial.where: [each.accuracy, each.rate] for each in found}}

                do(self.stage, f"{method} | {name} {cut}", work)

    def measure_cells(self, trials: Sequence[Trial], methods: Sequence[str]) -> None:
        """Measure trials one at a time, by all methods in turn; which begins changes from trial to trial."""
        for number, trial in enumerate(trials):
            turn = number % len(methods)
            for method in (*methods[turn:], *methods[:turn]):

                def work(trial: Trial = trial, method: str = method) -> Record:
                    return one_by_one(trial, method, self.cache, self.stage.tiny)

                do(self.stage, f"{method} | {trial.where}", work)


def by_seam(records: Record, method: str) -> Seams:
    """Return accuracy and seconds of every seam that a method has measured; those of a column share its seconds."""
    found: Seams = {}
    for key, record in records.items():
        own, _, seam = key.partition(" | ")
        if own == method and "error" not in record:
            for name, (accuracy, _) in record.get("seams", {seam: (record.get("accuracy"), 0.0)}).items():
                found[name] = accuracy, record["seconds"] / len(record.get("seams", [seam]))
    return found


def summarise(stage: Stage, methods: Sequence[str], seams: int) -> Record:
    """Estimate each method's time for all seams, by the mean of its measured ones, beside the plain loop."""
    found = {method: each for method in methods if (each := by_seam(stage.records, method))}
    shared = stage.records.get("shared", {}).get("seconds", 0.0)
    summary: Record = {}
    for method, each in found.items():
        own = [r for key, r in stage.records.items() if key.startswith(f"{method} | ") and "error" not in r]
        busy = [(r["utilisation"], r["seconds"]) for r in own if r["utilisation"] is not None]
        total = seams * fmean(seconds for _, seconds in each.values()) + (0.0 if method == "plain" else shared)
        summary[method] = {
            "seams": len(each),
            "seconds_for_all": round(total, 2),
            "accuracy": round(fmean(accuracy for accuracy, _ in each.values()), 4),
            "utilisation": round(sum(u * s for u, s in busy) / sum(s for _, s in busy), 1) if busy else None,
            "peak_bytes": max(r["peak_bytes"] for r in own),
        }
        if off := points_off(each, found.get("plain", {})):
            summary[method] |= {
                "points_above_plain": round(fmean(off.values()), 3),
                "worst": min(off.items(), key=itemgetter(1)),
            }
    for each in summary.values():
        if "plain" in summary:
            each["times_faster"] = round(summary["plain"]["seconds_for_all"] / each["seconds_for_all"], 2)
    errors = {key: record["error"] for key, record in stage.records.items() if "error" in record}
    return {"seams": seams, "methods": summary, "errors": errors}


def points_off(these: Seams, those: Seams) -> dict[str, float]:
    """Return by how many points accuracies are above others, seam by seam, where both have been measured."""
    return {seam: 100 * (these[seam][0] - those[seam][0]) for seam in these if seam in those}


# --- b and c: the matrix ----------------------------------------------------------------------------------------------


def plan_matrix(folder: Path, device: str, tiny: bool) -> tuple[list[Trial], list[Trial]]:
    """Return the trials of two ResNet-18 at all their blocks, in order and spread over the matrix.

    If there is but one network, it is stitched into itself.
    """
    data = read_cifar10(folder, tiny)
    found = find_networks(folder, LARGEST)[:2]
    if not found:
        raise SystemExit(f"neither papers/results/networks nor {folder}/networks has a ResNet-18 of CIFAR-10")
    networks = [
        load_network(source, path, example=data.example, name=path.stem, device=device) for source, path in found
    ]
    cuts = TINY_CUTS if tiny else CUTS
    grid = list(suture.matrix(networks[0], networks[-1], data=data, cuts=cuts, controls=(), scores=(Accuracy(),)))
    side = round(len(grid) ** 0.5)
    return grid, [grid[row * side + column] for row, column in spread(side, side, len(grid))]


def about(grid: Sequence[Trial]) -> Record:
    """Return the networks and data on which the records depend."""
    data = grid[0].fit_data, grid[0].validation_data, grid[0].score_data
    networks = sorted({network.name: network.fingerprint for t in grid for network in t.seam.networks}.items())
    return {"networks": networks, "images": [len(each) for each in data], "data": [each.fingerprint for each in data]}


def matrix(folder: Path, make: MakeStage, device: str, tiny: bool) -> None:
    """Stage b: two networks at all blocks by all methods."""
    grid, cells = plan_matrix(folder, device, tiny)
    bench = Bench.of(make(about(grid)), grid)
    methods = [*own_fits(tiny), "plain", "least squares + Adam"]
    bench.share()
    bench.measure_columns()
    bench.measure_cells(cells[:BY_ALL], methods)  # or the default, which takes longest, might not be reached at all
    bench.measure_cells(cells, [method for method in methods if method != "default"])
    bench.measure_cells(cells, ["default"])
    wanted = [*batched(tiny, bench.stage.device), *methods]
    summary = summarise(bench.stage, wanted, len(grid))
    complete = all(len(by_seam(bench.stage.records, method)) == len(grid) for method in wanted)
    fastest = min((m["seconds_for_all"] for m in summary["methods"].values()), default=None)
    bench.stage.end(summary | {"goal": "under 60 s, 20 times faster than plain", "fastest": fastest}, complete)


def beside(folder: Path, make: MakeStage, device: str, tiny: bool) -> None:
    """Stage c: seams of the same matrix on the processor, with one thread, and how far the device's accuracies are."""
    grid, cells = plan_matrix(folder, "cpu", tiny)
    stage = make(about(grid) | {"processor": processor()})
    on_device = stage.path.with_name(stage.path.name.replace("-c-processor", "-b-matrix"))
    stage.device = torch.device("cpu")
    bench = Bench.of(stage, grid)
    methods = [*reversed(own_fits(tiny)), "plain"]  # the quick one first, if there is one
    bench.share()
    bench.measure_cells(cells, methods)
    summary = summarise(stage, methods, len(grid))
    theirs = json.loads(on_device.read_text(encoding="utf-8"))["records"] if on_device.exists() else {}
    for method in methods:
        here, there = by_seam(stage.records, method), by_seam(theirs, method)
        if off := points_off(there, here):
            worst, mean = max(map(abs, off.values())), abs(fmean(off.values()))
            slow, fast = (fmean(each[seam][1] for seam in off) for each in (here, there))
            summary["methods"][method]["device_beside_processor"] = {
                "seams": len(off),
                "worst_points": round(worst, 3),
                "mean_points": round(mean, 4),
                "agrees": worst <= ACCURACY[0] and mean <= ACCURACY[1],
                "times_faster": round(slow / fast, 2),
            }
    stage.end(summary, all(len(by_seam(stage.records, method)) == len(grid) for method in methods))


# --- d: hernandez2022 -------------------------------------------------------------------------------------------------


def hernandez(folder: Path, make: MakeStage, device: str, tiny: bool) -> None:
    """Stage d: the four ordered pairs of the smallest and the largest ResNet, under four conditions.

    A shape that there is no network of is trained first, briefly, at the width of the other: how long a seam
    takes hardly depends on what the network knows. The 256 pairs of all 16 networks have exactly ``PAIRS`` times as
    many seams. The paper's networks are 64 wide and stitched on 50,000 images; these are as wide as there are.
    """
    data = read_cifar10(folder, tiny)
    there = {blocks: find_networks(folder, blocks)[:1] for blocks in (SMALLEST, LARGEST)}
    width = max((width_of(each[0][0]) for each in there.values() if each), default=16)
    stage = make({"images": len(data.training), "width": width, "there": [len(each) for each in there.values()]})
    networks = []
    for blocks, found in there.items():
        name = "resnet18" if blocks == LARGEST else "resnet(1,1,1,1)"
        source = f"zoo:resnet,blocks=({','.join(map(str, blocks))}),width={width}"
        own = [path for found_source, path in found if width_of(found_source) == width]
        weights = own[0] if own else stage.out / f"{as_path(name)}-{width}.safetensors"
        if not weights.exists():
            recipe = replace(FAST, epochs=None, steps=2, batch=16) if tiny else replace(FAST, epochs=10)
            model = BaseModel(source, data.training, recipe, 0, name=name, scored_on=(data.score,), device=device)

            def work(model: BaseModel = model, weights: Path = weights) -> Record:
                outcome = model.train()
                weights.parent.mkdir(parents=True, exist_ok=True)
                weights.write_bytes(outcome.tensors)
                return {"accuracy": outcome.record["scores"][0]["accuracy"]["value"]}

            do(stage, f"trained here | {name}", work)
            if not weights.exists():
                stage.end({}, False)
                return
        networks.append(load_network(source, weights, example=data.example, name=name, device=device))
    cuts = {each.name: (TINY_CUTS[i : i + 1] if tiny else CUTS) for i, each in enumerate(networks)}
    grid = list(suture.matrix(networks, data=data, cuts=cuts, controls=(), scores=(Accuracy(),)))
    conditions = (lambda trial: trial, controls.untrained_sender, controls.untrained_receiver, controls.untrained_both)
    bench = Bench.of(stage, [condition(trial) for condition in conditions for trial in grid])
    bench.share()
    bench.measure_columns()
    sample = [bench.grid[i] for i in torch.randperm(len(bench.grid), generator=torch.Generator().manual_seed(0))]
    bench.measure_cells(sample[: 4 if tiny else 64], list(own_fits(tiny)))
    methods = [*batched(tiny, stage.device), *own_fits(tiny)]
    summary = summarise(stage, methods, len(bench.grid))
    shared = stage.records.get("shared", {}).get("seconds", 0.0)
    for method, each in summary["methods"].items():
        hours = (PAIRS * (each["seconds_for_all"] - shared) + NETWORKS * shared) / 3600
        each["hours_for_256_pairs"] = round(hours, 3)
        reached = by_seam(stage.records, method)
        labels = {trial.where: trial.control or "as trained" for trial in bench.grid}
        each["accuracy_by_condition"] = {
            label: round(fmean(a for seam, (a, _) in reached.items() if labels[seam] == label), 4)
            for label in dict.fromkeys(labels[seam] for seam in reached)
        }
    complete = all(len(by_seam(stage.records, m)) == len(bench.grid) for m in batched(tiny, stage.device))
    stage.end(summary | {"goal": "256 pairs in four conditions in 3 hours"}, complete)


# --- e: training ------------------------------------------------------------------------------------------------------


def training(folder: Path, make: MakeStage, device: str, tiny: bool) -> None:
    """Stage e: networks of fresh seeds for the ledger's entries on CIFAR-10, most wanted by experiments first.

    What ``papers/results/networks`` has is left out. Each lands in a folder of its own beside the JSON, with its card;
    one that the time cuts short is an error, and goes on from its checkpoint.
    """
    data = read_cifar10(folder, False)
    if not tiny and len(data.training) < 50_000:
        raise SystemExit(f"{folder} has {len(data.training):,} training images; networks are trained on all 50,000")
    stage = make({"data": data.training.fingerprint})
    scale = scale_named("tiny" if tiny else "small", None if tiny else lambda name: data)
    cards = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "papers" / "results" / "networks").glob("*.json")
    ]
    kept = {(card["source"], card["recipe"], card["data"]["name"], card["seed"]) for card in cards if "source" in card}
    entries = [each for each in LEDGER if each.data == "cifar10" and each.start is None and each.until is None]
    wanted = {
        as_path(f"{entry.name} {seed}"): replace(scale.base(entry.name, seed), device=device)
        for entry in sorted(entries, key=lambda entry: -len(entry.experiments))[: 1 if tiny else None]
        for seed in FRESH[: 1 if tiny else None]
        if (entry.source, str(entry.settings), entry.data_name, seed) not in kept or tiny
    }

    def stop_in_time(step: int, steps: int, losses: Sequence[float]) -> None:
        if time.monotonic() > stage.until + EVERY:  # a checkpoint has been written since the time was over
            raise TimeoutError(f"stopped at step {step} of {steps}; goes on from its checkpoint")

    for label, model in wanted.items():

        def work(label: str = label, model: BaseModel = model) -> Record:
            progress = stage.out / "training" / label
            outcome = model.train(progress, stop_in_time)
            keep(stage.out / "networks" / label, outcome)
            shutil.rmtree(progress, ignore_errors=True)
            return {"accuracy": outcome.record["scores"][0]["accuracy"]["value"]}

        do(stage, label, work)
    done = {key: record["accuracy"] for key, record in stage.records.items() if "error" not in record}
    stage.end({"accuracy": done}, set(wanted) <= set(done))


RUN = {"b": matrix, "c": beside, "d": hernandez, "e": training}

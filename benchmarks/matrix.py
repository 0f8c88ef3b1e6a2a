"""Stitch a sample of the cells of a matrix by several methods, in turns, and report cost and accuracy of each.

Methods are the plain loop, least squares followed by Adam, the default fit, and any that --fit names. They take turns,
so that whatever else the machine does falls on all of them alike. What Suture computes once for a whole matrix
(activations at all cuts, outputs, digests of the data) is done first, for all cells and not only for those measured,
with a clock of its own, and counted as part of the matrix's cost. The plain loop shares nothing.

Every measurement is a line of the file --out, and the same command continues an interrupted benchmark from there.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import suture
from benchmarks.machine import measure_peaks, spending
from benchmarks.operations import fitted_flops, plain_flops, shared_flops
from benchmarks.plain_loop import Plain, measure_plain
from suture.common.errors import DataError, SutureError
from suture.common.names import make
from suture.common.processor import processor
from suture.common.seeds import undisturbed
from suture.common.sizes import free_disk, in_words
from suture.core.activations.cache import Activations, Need
from suture.core.activations.disk_cache import ActivationFolder
from suture.core.network.network import Network
from suture.fits import Converged, Fit, LeastSquares, TaskLoss
from suture.fits.optimisers import Adam, Cosine
from suture.measurement.trials import plans
from suture.measurement.trials.controls import DEFAULT as CONTROLS
from suture.measurement.trials.controls import Control
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import Trial
from suture.measurement.trials.versions import list_versions

PLAIN, LEAST_SQUARES, OURS = "plain loop", "least squares + Adam", "default"
MARGIN = 0.3  #: points of accuracy by which a cell may be below the plain loop's and still count as good
_ROUNDING = 1e-9
_RAM = 2**30  #: bytes of activations kept in memory beside the files

Method = Plain | Fit
Seam = tuple[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--fit", action="append", default=[], metavar="FIT", help="measure this one too, such as task-loss,steps=100")
    add("--fit-samples", type=int, metavar="N", help="fit on the first N images only")
    add("--score-samples", type=int, metavar="N", help="score on the first N images only")
    add("--sample", type=int, metavar="N", help="measure N cells, spread evenly over the matrix; by default all")
    add("--no-least-squares", action="store_true", help="leave that method out: it takes nearly as long as the loop")
    add("--controls", action="store_true", help="also measure each cell's controls once, by plain loop and default fit")
    add("--out", default="matrix.jsonl", metavar="FILE", help="a line for each measurement")


# --- methods and cells ------------------------------------------------------------------------------------------------


def least_squares_then_adam(samples: int) -> TaskLoss:
    """Return the fit of Csiszárik et al. 2021: the least-squares map, not rescaled, then the plain loop's training.

    That is 5 epochs of Adam at 1e-3 in batches of 128, a cosine, the last parameters kept. ``samples`` are the images
    that it is fitted to.
    """
    batch = min(128, samples)
    steps = 5 * (samples // batch)
    return TaskLoss(
        start=LeastSquares(rescale=False),
        optimiser=Adam(lr=1e-3),
        schedule=Cosine(),
        steps=steps,
        batch=batch,
        check=steps,
        patience=None,
        retries=0,
        standardise=False,
    )


def methods_for(samples: int, further: Iterable[str] = (), *, least_squares: bool = True) -> dict[str, Method]:
    """Return the methods to compare by name: those that are always measured, and further fits."""
    known: dict[str, Method] = {PLAIN: Plain()}
    if least_squares:
        known[LEAST_SQUARES] = least_squares_then_adam(samples)
    return known | {OURS: Converged()} | {text: make("fit", text) for text in further}


def spread(rows: int, columns: int, count: int) -> list[tuple[int, int]]:
    """Choose cells evenly over a grid, as (row, column); a smaller choice is the beginning of a larger one.

    They are the cells that the points of Halton's sequence in bases 2 and 3 fall into (Halton 1960), each once.
    """
    every = [(row, column) for row in range(rows) for column in range(columns)]
    chosen: dict[tuple[int, int], None] = {}
    for i in range(1, 100 * len(every)):
        chosen.setdefault((_part(i, 2, rows), _part(i, 3, columns)))
    rest = [cell for cell in every if cell not in chosen]  # cells that no point fell into
    return every if count >= len(every) else [*chosen, *rest][:count]


def _part(number: int, base: int, parts: int) -> int:
    """Return which of equal parts of [0, 1) a number falls into, its digits in a base mirrored at the point."""
    mirrored, whole = 0, 1
    while number:
        number, digit = divmod(number, base)
        mirrored, whole = mirrored * base + digit, whole * base
    return mirrored * parts // whole


@dataclass(frozen=True, eq=False)
class Job:
    """One measurement: a trial of the grid, or a control of one, by a method, for the ``repeat``-th time."""

    trial: Trial
    name: str
    method: Method
    repeat: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The key that identifies the job and finds its record."""
        return self.trial.key, self.trial.control, self.name, str(self.method), self.repeat


def jobs_of(
    grid: Sequence[Trial], methods: dict[str, Method], sample: int | None, repeats: int, controls: Sequence[Control]
) -> list[Job]:
    """Return all measurements in order: by repeats, by cells, every method at each, then controls.

    Which method begins changes from cell to cell.
    """
    rows = list(dict.fromkeys(trial.sender_cut for trial in grid))
    columns = list(dict.fromkeys(trial.receiver_cut for trial in grid))
    by_cell = {(rows.index(t.sender_cut), columns.index(t.receiver_cut)): t for t in grid}
    cells = [by_cell[cell] for cell in spread(len(rows), len(columns), sample or len(grid))]
    names, jobs = list(methods), list[Job]()
    for repeat in range(repeats):
        for place, trial in enumerate(cells):
            turn = (repeat + place) % len(names)
            for name in (*names[turn:], *names[:turn]):
                jobs.append(Job(_by(trial, methods[name]), name, methods[name], repeat))
    made = [
        Job(control(_by(t, methods[n])), n, methods[n], 0) for t in cells for control in controls for n in (PLAIN, OURS)
    ]
    return list({job.key: job for job in (*jobs, *made)}.values())  # a control may be that of several seams


def _by(trial: Trial, method: Method) -> Trial:
    """Return the trial fitted by a method; the plain loop reads no fit."""
    return trial if isinstance(method, Plain) else replace(trial, fit=method)


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One measurement: its accuracy, or the error that it ended in, and its cost.

    ``cpu`` and ``wall`` are in seconds, ``peak`` in bytes; ``flops`` is ``None`` if it cannot be said.
    """

    key: tuple[str, str, str, str, int]
    seam: Seam
    control: str
    method: str
    accuracy: float | None
    steps: int
    cpu: float
    wall: float
    peak: int
    flops: int | None = None
    error: str | None = None


class File:
    """The lines of a benchmark: its subject, the machine's peaks, the shared work, and a record for each job."""

    def __init__(self, path: Path, subject: dict[str, Any]) -> None:
        self.path, self.content, self.records = path, dict[str, Any](), dict[Any, Record]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                self._take(json.loads(line))
            except ValueError:  # the last line of a benchmark that was killed
                continue
        for name, value in subject.items() if self.content or self.records else ():
            if name != "command" and self.content["subject"].get(name) != value:
                raise DataError(f"{path} has a benchmark with another {name}; give another file as --out")
        if not self.content:
            self.write("subject", subject)

    def _take(self, line: dict[str, Any]) -> None:
        ((kind, value),) = line.items()
        if kind == "record":
            record = Record(**value | {"key": tuple(value["key"]), "seam": tuple(value["seam"])})
            self.records[record.key] = record
        else:
            self.content[kind] = value

    def write(self, kind: str, value: Any) -> None:
        line = json.dumps({kind: value})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(json.loads(line))


def fill(cache: Activations, needs: Iterable[Need]) -> None:
    """Compute activations before anybody asks for them, each network's layers once."""
    for need in sorted({need.key: need for need in needs}.values(), key=lambda need: need.index):
        cache.get(need)


def measured(grid: Sequence[Trial], methods: dict[str, Method], jobs: Sequence[Job], file: File) -> None:
    """Measure the jobs that the file lacks."""
    missing = [job for job in jobs if job.key not in file.records]
    if not missing and "shared" in file.content:
        return
    with undisturbed(), tempfile.TemporaryDirectory() as scratch:
        if "peaks" not in file.content:
            file.write("peaks", asdict(measure_peaks(grid[0].seam.networks)))
        cache = Activations(_RAM, ActivationFolder(Path(scratch), min(free_disk(Path(scratch)) // 2, 50 * 10**9)))
        ours = [method for method in methods.values() if not isinstance(method, Plain)]
        needs = [need for trial in grid for method in ours for need in replace(trial, fit=method).needs]
        with spending() as spent:
            for samples in {id(need.samples): need.samples for need in needs}.values():
                _ = replace(samples).fingerprint  # of a copy: the samples' own is known already
            fill(cache, needs)
        if "shared" not in file.content:
            shared = {"cpu": spent.cpu, "wall": spent.wall, "flops": shared_flops(needs), "cells": len(grid)}
            file.write("shared", shared)
        fill(cache, [need for job in missing if not isinstance(job.method, Plain) for need in job.trial.needs])
        for number, job in enumerate(missing, start=1):
            record = measured_once(job, cache)
            file.write("record", asdict(record))
            said = record.error or f"{100 * (record.accuracy or 0):.2f} %, {record.cpu:.1f} CPU s"
            print(f"{number}/{len(missing)} {job.trial.where} by {job.name}: {said}", flush=True)


def measured_once(job: Job, cache: Activations) -> Record:
    """Do one measurement; an error of Suture's is one, too."""
    trial, method = job.trial, job.method
    accuracy: float | None = None
    steps, error, flops = 0, None, None
    with spending() as spent:
        try:
            if isinstance(method, Plain):
                found = measure_plain(trial, method)
                accuracy, steps = found.accuracy, found.steps
            else:
                measurement = measure(trial, cache)
                accuracy, steps = measurement.scores["accuracy"].value, measurement.steps
        except SutureError as failure:
            error = str(failure)
    if error is None:
        flops = plain_flops(trial, method) if isinstance(method, Plain) else fitted_flops(measurement)
    seam = (trial.sender_cut, trial.receiver_cut)
    return Record(
        job.key, seam, trial.control, job.name, accuracy, steps, spent.cpu, spent.wall, spent.peak, flops, error
    )


# --- what it says -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """One method over all cells that every method measured. Seconds, bytes, GFLOP/s; accuracies as fractions.

    Seeds fix every random choice, so repeats differ in their times alone, whose medians count. ``matrix_cpu`` is the
    shared work, which the plain loop has none of, and the mean over cells times the number of cells; ``times_cheaper``
    compares it with the plain loop's. ``good`` is the share of cells at least as good as the plain loop's less
    ``MARGIN``; ``worst_points`` is where the method is furthest below.
    """

    name: str
    cells: int
    cell_cpu: float
    shared_cpu: float
    matrix_cpu: float
    times_cheaper: float
    cell_wall: float
    steps: float
    accuracy: float
    good: float
    worst_points: float
    worst_seam: Seam
    peak: int
    rate: float | None


def summarise(methods: Sequence[str], records: Iterable[Record], shared: dict[str, Any]) -> list[Summary]:
    """Compute a summary of each method's records; nothing if no cell was measured by all."""
    by_seam: dict[Seam, dict[str, list[Record]]] = {}
    for record in records:
        if record.error is None and not record.control:
            by_seam.setdefault(record.seam, {}).setdefault(record.method, []).append(record)
    cells = {seam: by for seam, by in by_seam.items() if len(by) == len(methods)}
    return [_summary(name, cells, shared) for name in methods] if cells else []


def _summary(name: str, cells: dict[Seam, dict[str, list[Record]]], shared: dict[str, Any]) -> Summary:
    def of(method: str, value: str) -> list[float]:
        return [median(getattr(record, value) for record in by[method]) for by in cells.values()]

    count = shared["cells"]
    shared_cpu, shared_flops = (0.0, 0) if name == PLAIN else (shared["cpu"], shared["flops"])
    matrix_cpu = shared_cpu + count * fmean(of(name, "cpu"))
    first = {seam: by[name][0] for seam, by in cells.items()}
    points = {
        seam: 100 * ((own.accuracy or 0.0) - (cells[seam][PLAIN][0].accuracy or 0.0)) for seam, own in first.items()
    }
    worst = min(points, key=points.__getitem__)
    flops = [own.flops for own in first.values() if own.flops is not None]
    return Summary(
        name=name,
        cells=len(cells),
        cell_cpu=median(of(name, "cpu")),
        shared_cpu=shared_cpu,
        matrix_cpu=matrix_cpu,
        times_cheaper=count * fmean(of(PLAIN, "cpu")) / matrix_cpu,
        cell_wall=median(of(name, "wall")),
        steps=median(own.steps for own in first.values()),
        accuracy=fmean(own.accuracy or 0.0 for own in first.values()),
        good=fmean(value >= -MARGIN - _ROUNDING for value in points.values()),
        worst_points=points[worst],
        worst_seam=worst,
        peak=max(record.peak for by in cells.values() for record in by[name]),
        rate=(shared_flops + count * fmean(flops)) / matrix_cpu / 1e9 if len(flops) == len(first) else None,
    )


def controls_of(records: Iterable[Record]) -> dict[str, tuple[float, float, float]]:
    """Return for each control the mean accuracy by the plain loop and by the default fit, and the least difference.

    The difference is in points, at the cell where the default fit is furthest below: a control that a method pushes
    below the plain loop's would flatter that method.
    """
    found: dict[str, dict[Seam, dict[str, float]]] = {}
    for record in records:
        if record.control and record.accuracy is not None:
            found.setdefault(record.control, {}).setdefault(record.seam, {})[record.method] = record.accuracy
    said = {}
    for control, seams in found.items():
        both = [(by[PLAIN], by[OURS]) for by in seams.values() if len(by) == 2]
        if both:
            plain, ours = (fmean(pair[side] for pair in both) for side in (0, 1))
            said[control] = (plain, ours, min(100 * (own - theirs) for theirs, own in both))
    return said


ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("CPU s a cell, median", lambda m: f"{m.cell_cpu:.4g}"),
    ("CPU s shared", lambda m: f"{m.shared_cpu:.4g}"),
    ("CPU s, whole matrix", lambda m: f"{m.matrix_cpu:.4g}"),
    ("times cheaper", lambda m: f"{m.times_cheaper:.1f}"),
    ("wall s a cell, median", lambda m: f"{m.cell_wall:.4g}"),
    ("steps a cell, median", lambda m: f"{m.steps:,.0f}"),
    ("mean accuracy, %", lambda m: f"{100 * m.accuracy:.2f}"),
    (f"cells ≥ plain − {MARGIN}", lambda m: f"{100 * m.good:.0f} %"),
    ("worst cell, points", lambda m: f"{m.worst_points + 0.0:+.2f}"),
    ("worst cell", lambda m: " → ".join(m.worst_seam)),
    ("peak memory", lambda m: in_words(m.peak)),
    ("GFLOP/s", lambda m: "" if m.rate is None else f"{m.rate:.1f}"),
)


def shown(summaries: Sequence[Summary], file: File) -> None:
    """Print the measurements, their subject, and the summary."""
    subject, console = file.content["subject"], Console()
    fit, validation, score = subject["images"]
    print(
        f"\n{subject['networks'][0]} → {subject['networks'][1]} on {subject['data']}: {fit:,} images to fit, "
        f"{validation:,} to validate, {score:,} to score; the plain loop does not validate\n"
        f"{subject['processor']}, one thread, torch {subject['torch']}\n"
    )
    if summaries:
        table = Table("", *(summary.name for summary in summaries), box=None, header_style="")
        for label, value in ROWS:
            table.add_row(label, *map(value, summaries))
        console.print(table)
        print(f"\n{summaries[0].cells} of {file.content['shared']['cells']} cells were measured by all methods")
    peaks = file.content["peaks"]
    rates = " and ".join(f"{rate:.0f} in {kind}" for kind, rate in peaks["products"].items())
    print(f"peaks in GFLOP/s: products of 1024³ {rates}")
    for shape, found in peaks["convolutions"].items():
        print(f"  3×3 convolution of {shape}: {' and '.join(f'{rate:.0f} in {kind}' for kind, rate in found.items())}")
    for control, (plain, ours, worst) in controls_of(file.records.values()).items():
        print(
            f"{control}: plain loop {100 * plain:.2f} %, default {100 * ours:.2f} %, furthest below {worst:+.2f} points"
        )


def run(given: argparse.Namespace, networks: Sequence[Network], data: suture.Data) -> int:
    """Measure the jobs that the file lacks, and print the summary; return the exit code."""
    sender, receiver = networks
    data = data.limited(fit=given.fit_samples, score=given.score_samples)
    methods = methods_for(len(data.fit), given.fit, least_squares=not given.no_least_squares)
    grid = list(plans.matrix(sender, receiver, data=data, cuts=given.cuts, controls=()))
    jobs = jobs_of(grid, methods, given.sample, given.repeats, CONTROLS if given.controls else ())
    roles = (data.fit, data.validation, data.score)
    subject = {
        "networks": [sender.name, receiver.name],
        "fingerprints": [sender.fingerprint, receiver.fingerprint],
        "data": data.name,
        "samples": [role.fingerprint for role in roles],
        "images": [len(role) for role in roles],
        "cells": len(grid),
        "processor": processor(),
        "torch": torch.__version__,
        "parts": list_versions(),
    }
    file = File(Path(given.out), subject)
    measured(grid, methods, jobs, file)
    wanted = [file.records[job.key] for job in jobs]
    shown(summarise(list(methods), wanted, file.content["shared"]), file)
    return 1 if any(record.error for record in wanted) else 0

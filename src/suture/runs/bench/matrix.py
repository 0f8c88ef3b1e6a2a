"""The benchmark of a matrix: cells of it by several methods, each as often as told, in one process with one thread.

What the library computes once for a whole matrix (activations at all its cuts, outputs, digests of the data) is done
first, for all cells of the grid and not only for those measured, with a clock of its own: it is part of what a matrix
costs. The plain loop shares nothing.
"""

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from suture.common.errors import DataError, SutureError
from suture.common.seeds import undisturbed
from suture.common.sizes import available_memory, free_disk
from suture.core.activations.cache import Activations, Need
from suture.core.activations.disk_cache import ActivationFolder
from suture.measurement.trials.controls import Control
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import Trial
from suture.runs.bench.cells import Job, controlled, interleaved, sampled
from suture.runs.bench.flops import fitted_flops, plain_flops, shared_flops
from suture.runs.bench.methods import OURS, PLAIN, Method
from suture.runs.bench.peaks import Peaks, measure_peaks
from suture.runs.bench.plain_loop import Plain, measure_plain
from suture.runs.bench.records import Folder, Record, Shared, Subject
from suture.runs.bench.resource_use import spending
from suture.runs.runners.progress import Progress, Silent

_RAM = 2**30  #: bytes of activations kept in memory beside a folder


@dataclass(frozen=True, eq=False)
class Benchmark:
    """What is measured: the grid of a matrix, which of its trials, and by which methods, how often.

    ``grid`` are the plain trials of all seams of one sender and one receiver; ``trials`` those that are measured.
    """

    grid: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    methods: tuple[Method, ...]
    jobs: tuple[Job, ...]
    controls: tuple[Job, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """What a benchmark gave; ``records`` are in the order of the jobs, ``controls`` likewise."""

    subject: Subject
    peaks: Peaks
    shared: Shared
    methods: tuple[Method, ...]
    records: tuple[Record, ...]
    controls: tuple[Record, ...]


def benchmark(
    grid: Sequence[Trial],
    methods: Sequence[Method],
    *,
    sample: int | None = 6,
    repeats: int = 3,
    controls: Sequence[Control] = (),
) -> Benchmark:
    """Choose ``sample`` cells of a grid (all where it is ``None``), each to be measured by every method.

    ``controls`` are measured once at each of them, by the plain loop and by the default fit. Raises ``DataError`` for
    an empty grid, a sample or a number of repeats below 1, and whatever making a control raises.
    """
    if not grid:
        raise DataError("a benchmark needs at least one seam; give cuts of both networks")
    for name, value in (("sample", sample), ("repeats", repeats)):
        if value is not None and value < 1:
            raise DataError(f"{name}={value}: give at least 1")
    trials = sampled(grid, sample)
    both = [method for method in methods if method.name in (PLAIN, OURS)]
    tried = {job.name: job for job in controlled(trials, both, controls)}  # one control may be that of several seams
    jobs = tuple(interleaved(trials, methods, repeats))
    return Benchmark(tuple(grid), tuple(trials), tuple(methods), jobs, tuple(tried.values()))


def run(planned: Benchmark, folder: Folder, subject: Subject, progress: Progress | None = None) -> Result:
    """Measure what is not in the folder yet, and give all that was asked for.

    Raises ``StoreError`` where the folder is another benchmark's, and ``KeyboardInterrupt``, saying how to go on, where
    it is interrupted.
    """
    subject = folder.open(subject)
    jobs = (*planned.jobs, *planned.controls)
    records = {job.name: found for job in jobs if (found := folder.read(job.name)) is not None}
    missing = [job for job in jobs if job.name not in records]
    try:
        with undisturbed(), ExitStack() as stack:
            peaks, shared = _machine(planned, folder), folder.shared
            if missing or shared is None:
                ours = [job for job in missing if not _is_plain(job)]
                needs = [need for job in ours for need in job.trial.needs]
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder.path)))
                cache = _cache(path, (*needs, *(_shared(planned) if shared is None else ())))
                if shared is None:
                    folder.shared = shared = _prepared(planned, cache)
                else:
                    fill(cache, needs)
                records |= _measured(missing, len(jobs), folder, cache, progress or Silent())
    except KeyboardInterrupt:
        done = sum(folder.read(job.name) is not None for job in jobs)
        raise KeyboardInterrupt(
            f"interrupted; {done} of {len(jobs)} measurements are in {folder.path}; the same command goes on"
        ) from None
    assert shared is not None
    given = [tuple(records[job.name] for job in some) for some in (planned.jobs, planned.controls)]
    return Result(subject, peaks, shared, planned.methods, *given)


def _machine(planned: Benchmark, folder: Folder) -> Peaks:
    peaks = folder.peaks
    if peaks is None:
        folder.peaks = peaks = measure_peaks([network for trial in planned.grid[:1] for network in trial.seam.networks])
    return peaks


def _cache(path: Path, needs: Iterable[Need]) -> Activations:
    """Keep activations in memory, where that has room for twice as much, else in files."""
    size = sum(need.nbytes for need in {need.key: need for need in needs}.values())
    if 2 * size <= available_memory():
        return Activations(size)
    return Activations(_RAM, ActivationFolder(path, min(free_disk(path) // 2, 50 * 10**9)))


def _shared(planned: Benchmark) -> list[Need]:
    """What the library's fits of the whole grid need."""
    fits = [method.how for method in planned.methods if not isinstance(method.how, Plain)]
    return [need for trial in planned.grid for fit in fits for need in replace(trial, fit=fit).needs]


def _prepared(planned: Benchmark, cache: Activations) -> Shared:
    """Do the shared work for the whole grid, with a clock."""
    needs = _shared(planned)
    with spending() as spent:
        for samples in {id(need.samples): need.samples for need in needs}.values():
            _ = replace(samples).fingerprint  # anew: it may be known already
        fill(cache, needs)
    return Shared(spent.cpu, spent.wall, shared_flops(needs), len(planned.grid))


def fill(cache: Activations, needs: Iterable[Need]) -> None:
    """Compute activations before anybody asks for them, each network's layers once."""
    for need in sorted({need.key: need for need in needs}.values(), key=lambda need: need.index):
        cache.get(need)


def _measured(
    missing: Sequence[Job], total: int, folder: Folder, cache: Activations, progress: Progress
) -> dict[str, Record]:
    records = {}
    progress.begin(total, total - len(missing))
    try:
        for job in missing:
            progress.working_on(job.words)
            records[job.name] = record = _record(job, cache)
            folder.keep(job.name, record)
            progress.done(job.words, record.error)
    finally:
        progress.end()
    return records


def _is_plain(job: Job) -> bool:
    return isinstance(job.method.how, Plain)


def _record(job: Job, cache: Activations) -> Record:
    """Do one measurement; an error of the library's is one, too."""
    accuracy: float | None = None
    steps, notes, error, flops = 0, list[str](), None, None
    trial, how = job.trial, job.method.how
    with spending() as spent:
        try:
            if isinstance(how, Plain):
                result = measure_plain(trial, how)
                accuracy, steps = result.accuracy, result.steps
            else:
                measured = measure(trial, cache)
                accuracy, steps, notes = measured.scores["accuracy"].value, measured.steps, list(measured.notes)
        except SutureError as failure:
            error = str(failure)
    if error is None:
        flops = plain_flops(trial, how) if isinstance(how, Plain) else fitted_flops(measured)
    return Record(
        sender_cut=trial.sender_cut,
        receiver_cut=trial.receiver_cut,
        control=trial.control,
        method=job.method.name,
        fit=str(how),
        repeat=job.repeat,
        accuracy=accuracy,
        steps=steps,
        cpu=spent.cpu,
        wall=spent.wall,
        peak=spent.peak,
        peak_since_start=spent.since_start,
        flops=flops,
        notes=tuple(notes),
        error=error,
    )

"""The cost of a plan, before it runs: trials, memory and disk are counted; the time comes from stored results.

The time of a trial depends on the machine, the fit and the cut far more than any model of it could predict. So it is
the mean of the trials in the store or, if there are none and it is asked for, a range from a few timed steps
(``runs.timing``). A run estimates the time left after its first trials (``runs.progress``).

A worker is a process with the networks and one trial at a time, the driver one with the networks and the images.
Activations and images are files mapped into memory, which the system may take back, and libraries are mapped once for
all processes, so neither counts. Bytes of memory are rather too many than too few.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from suture.common.constants import CHUNK
from suture.common.devices import free_memory
from suture.common.errors import DeviceError, RunnerError, StoreError
from suture.common.mapped import LARGE, is_mapped
from suture.common.sizes import cores, in_words
from suture.core.activations.cache import PART, rows_at_once
from suture.core.activations.disk_cache import disk_budget
from suture.core.network.network import Network
from suture.core.stitches import Layers, Probe, Stitch
from suture.core.stitches.base import Shape, width
from suture.data import Samples
from suture.fits import Converged, Fit, Logistic, Narrower, Quick
from suture.measurement.scores.pooled import SUMMARISED
from suture.measurement.trials.measure import LEAST
from suture.measurement.trials.trial import Trial, check_plan
from suture.runs.store.store import TRIALS, Store
from suture.runs.timing import is_last, time_trials

#: Bytes of a process that has done nothing yet: ``RssAnon`` was 482 MB after ``import suture`` and one way back through
#: a convolution, with torch 2.13 for the CPU; transformers and timm add 150 MB.
PROCESS = 650 * 10**6
MADE = 1.5  #: times a network's weights that are held after it was made: 1.4 to 1.5 of BERT-base and ViT-B
_ANSWERS = 3  #: samples whose outputs a network keeps from when it was made
RECORD = 10_000  #: bytes of a trial's record on disk

_LIVE = 3  #: tensors of the largest size that exist at once in a forward pass: what comes, goes, and lies between
_SAVED = 5  #: tensors that the way back needs, for each at a cut: 4.7 in a ViT, whose cuts lie far apart, 2 in a ResNet
_ROWS = 2**25  #: numbers in the rows of one step of ``fits.least_squares``
#: Copies of a stitch's parameters in a descent: themselves, gradients, two moments, the best, the start, the end, and
#: the fits that the best of several compares.
_COPIES = 9
_WIDENED = 3  #: tensors in float64 of outputs that are scored: themselves, in another order, and their logarithms
_FUSED = 2  #: times the receiver's suffix that its fused versions take: in float32, and in 16 bits while that is made


@dataclass(frozen=True)
class Memory:
    """Bytes of RAM: of the driver, of each worker besides its trial, and ``peak``, of the largest trial.

    ``largest`` describes that trial; it is empty if no trial is left.
    """

    driver: int
    worker: int
    peak: int = 0
    largest: str = ""

    def of(self, workers: int) -> int:
        """Return the bytes of all processes together; one worker alone is the driver itself."""
        return self.driver + (self.peak if workers == 1 else workers * (self.worker + self.peak))

    def fits_in(self, budget: int) -> int:
        """Return how many workers fit into a budget.

        Raises ``RunnerError``, with the largest trial, what it needs and the remedies, if not even one does.
        """
        if self.of(1) > budget:
            raise RunnerError(
                f"the largest trial, {self.largest}, needs about {in_words(self.of(1))} of RAM with one worker "
                f"({in_words(self.peak)} for itself, {in_words(self.driver)} for the process with networks and "
                f"images), and the budget is {in_words(budget)}; give fewer samples (data.limited(fit=…, score=…)), a "
                "later cut, or a larger budget"
            )
        return max(1, (budget - self.driver) // (self.worker + self.peak))


@dataclass(frozen=True)
class Forecast:
    """The rest of a plan and its cost; sizes are in bytes.

    ``trials`` are the rows planned, ``distinct`` those that differ in their measurement, ``done`` those of them that
    the store has. ``networks`` and ``images`` are counts for the trials that are left. ``activations`` are those of all
    trials that are left, ``recomputed`` those of them that are too large to be kept and are computed as they are read,
    ``disk`` the bytes on the disk at once: activations up to the budget, or those of running trials if they are more,
    with images, stitches and records. ``cpu_seconds`` are those that the trials left take if each takes as long as the
    mean of those in the store, and ``None`` if the store has none. ``cpu_range`` are the least and the most seconds
    that they probably take by a few timed steps, and ``None`` if that was not asked for or cannot be known.
    ``ram_budget`` is the memory allowed, if it was given, ``disk_budget`` the disk allowed for activations.
    """

    trials: int
    distinct: int
    done: int
    networks: int
    images: int
    workers: int
    memory: Memory
    activations: int
    disk: int
    disk_budget: int
    recomputed: int = 0
    cpu_seconds: float | None = None
    cpu_range: tuple[float, float] | None = None
    ram_budget: int | None = None

    @property
    def left(self) -> int:
        """The trials that are still to be measured."""
        return self.distinct - self.done

    @property
    def seconds(self) -> float | None:
        """Wall time with these workers, each on a core of its own."""
        return None if self.cpu_seconds is None else self.cpu_seconds / self.workers

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the most wall time with these workers, each on a core of its own."""
        if self.cpu_range is None:
            return None
        least, most = self.cpu_range
        return least / self.workers, most / self.workers

    @property
    def ram(self) -> int:
        """RAM of all processes together."""
        return self.memory.of(self.workers)


def forecast(
    plan: Iterable[Trial],
    *,
    store: str | Path | Store | None = None,
    workers: int | None = None,
    ram: int | None = None,
    disk: int | None = None,
    retry: bool = False,
    timed: bool = False,
) -> Forecast:
    """Estimate the trials, memory, disk and time of a plan; nothing is measured.

    With ``timed``, and without stored trials to go by, a few steps of the descent are timed for a range of time.

    Trials that the ``store`` has need not be measured again, nor those that failed there, unless ``retry``. ``ram`` and
    ``disk`` are budgets in bytes, that of the disk by default what a run takes here. There are never more workers than
    trials, or than fit into ``ram``; ``None`` takes as many as there are cores.

    Raises ``DataError`` for a plan without trials, ``RunnerError`` if ``workers`` is below 1 or not even one fits.
    """
    trials = check_plan(plan)
    if workers is not None and workers < 1:
        raise RunnerError(f"workers={workers}: give at least 1, or leave it out for all {cores()} cores")
    distinct = {trial.key: trial for trial in trials}
    kept = Store(store) if isinstance(store, str | Path) else store
    took: dict[str, float] = {}  # seconds of what is measured
    if kept is not None:
        for key in distinct.keys() & kept.finished():
            with suppress(StoreError):  # damaged: a run measures it again
                took[key] = float(kept.record(TRIALS, key)["seconds"])
    failed = distinct.keys() & kept.failures().keys() if kept is not None and not retry else set()
    left = [trial for key, trial in distinct.items() if key not in took.keys() | failed]
    memory = estimate_memory(left, disk)
    wanted = max(1, min(workers if workers is not None else cores(), len(left)))
    needs = {need.key: need for trial in left for need in trial.needs}.values()
    recomputed = sum(need.nbytes for need in needs if need.is_recomputed)
    activations = sum(need.nbytes for need in needs)
    allowed = disk if disk is not None else disk_budget(None, Path() if kept is None else kept.path)
    images = _samples_of(left)
    written = sum(samples.images.nbytes for samples in images) + sum(
        _weigh_stitch(trial.family, *trial.seam.shapes) + RECORD for trial in left
    )
    running = wanted if ram is None or not left else min(wanted, memory.fits_in(ram))
    # The files that a trial holds while it runs stay on the disk, whatever is removed.
    kept_each = (
        sum(need.nbytes for need in trial.needs if not need.is_recomputed and need.nbytes <= allowed) for trial in left
    )
    held = running * max(kept_each, default=0)
    return Forecast(
        trials=len(trials),
        distinct=len(distinct),
        done=len(distinct) - len(left),
        networks=len({network.fingerprint for trial in left for network in trial.seam.networks}),
        images=sum(map(len, images)),
        workers=running,
        memory=memory,
        activations=activations,
        disk=min(activations - recomputed, max(allowed, held)) + written,
        recomputed=recomputed,
        cpu_seconds=len(left) * fmean(took.values()) if took else None,
        cpu_range=time_trials(left) if timed and not took else None,
        ram_budget=ram,
        disk_budget=allowed,
    )


def estimate_memory(trials: Sequence[Trial], disk: int | None = None) -> Memory:
    """Return the memory of trials; activations over ``disk``, the budget for them, are held in RAM."""
    networks = {network.fingerprint: network for trial in trials for network in trial.seam.networks}
    weights = sum(_weight(network.whole()) for network in networks.values())
    answers = [_ANSWERS * one.dtype.itemsize * prod(one.output_shape) for one in networks.values()]
    process = PROCESS + int(MADE * weights) + sum(nbytes for nbytes in answers if nbytes < LARGE)
    driver = process + sum(s.images.nbytes for s in _samples_of(trials) if not is_mapped(s.images))
    peaks = [_peak(trial, disk) for trial in trials]
    if not peaks:
        return Memory(driver, process)
    return Memory(driver, process, max(peaks), trials[peaks.index(max(peaks))].where)


def check_device_memory(trials: Sequence[Trial], device: torch.device) -> None:
    """Raise ``DeviceError``, with the trials that would fit, if trials need more memory than is free on a GPU.

    The estimates are rather too large, so a trial is refused only if half of its own is too much.
    """
    free, needed = free_memory(device), dict[Trial, int]()
    for trial in trials:
        weights = sum(_weight(network.whole()) for network in trial.seam.networks)
        needed[trial] = weights + _peak(trial, None) // 2
    if not needed or max(needed.values()) <= free:
        return
    largest = max(needed, key=lambda trial: needed[trial])
    fit = [trial for trial in needed if needed[trial] <= free]
    cuts = ", ".join(dict.fromkeys(f"'{trial.receiver_cut}'" for trial in fit))
    raise DeviceError(
        f"{largest.where} needs at least {in_words(needed[largest])} on {device}, where {in_words(free)} are free; of "
        f"{len(needed):,} trials {len(fit):,} would fit{f', at {cuts}' if cuts else ''}; give the fit a smaller batch, "
        "end other work there, or give device='cpu'"
    )


def _peak(trial: Trial, disk: int | None) -> int:
    """Return the largest number of bytes that a trial holds at once."""
    receiver, family, shapes = trial.receiver, trial.family, trial.seam.shapes
    sent, received = map(prod, shapes)
    fits, cut = list(_nested(trial.fit)), receiver.cuts.find(trial.receiver_cut)
    fitted, held_out = len(trial.fit_data), len(trial.validation_data)
    later = [other for other in receiver.cuts if other.index > cut.index]
    fast = any(isinstance(fit, Converged | Quick) for fit in fits)

    held = _weigh_stitch(family, *shapes) * _COPIES
    held += _weigh_outputs(receiver, len(trial.score_data))
    if fast or len(trial.score_data) >= LEAST:
        held += _FUSED * _weight(receiver.after(trial.receiver_cut))
    kept = (need.nbytes for need in trial.needs if not need.is_recomputed)
    held += sum(nbytes for nbytes in kept if disk is not None and nbytes > disk)
    # The receiver's activations of images in another order are copied.
    shuffled = (samples for samples in (trial.fit_data, trial.validation_data) if samples.pairing is not None)
    held += 4 * received * sum(trial.count_read(samples) for samples in shuffled)
    if any(isinstance(fit, Narrower) for fit in fits):  # puts inputs and targets together with noise
        held += 4 * (2 * sent + received) * fitted

    # The largest of what a trial does one after the other: a step, a pass, a closed form, a convex problem.
    numbers = sent + received + sum(prod(other.shape) for other in (cut, *later))
    if isinstance(family, Layers):
        start, end = (other.index for other in family.ends)
        numbers += sum(prod(other.shape) for other in family.network.cuts if start < other.index < end)
    batch = min(max(getattr(fit, "batch", 0) for fit in fits), fitted)
    passing = min(map(rows_at_once, trial.seam.networks))
    step = 4 * (_SAVED * numbers * min(batch, passing) + (2 * sent + 2 * received) * max(0, batch - passing))
    widest = max(sent, received, *(prod(other.shape) for network in trial.seam.networks for other in network.cuts))
    images = min(passing, max(fitted, len(trial.score_data)))
    error = 8 * 3 * received  # the representation error, in float64
    rows = sum(min(_ROWS, min(CHUNK, fitted) * size) for size in (sent, received))
    convex = 0  # features of a problem that is solved as one, in float64
    if any(isinstance(fit, Logistic) for fit in fits):
        convex = 8 * 3 * (family.reads(shapes[0]) if isinstance(family, Probe) else sent) * (fitted + held_out)
    elif fast and is_last(trial):
        convex = 8 * 3 * width(shapes[0]) * (fitted + held_out)
    return held + max(step, images * (4 * _LIVE * widest + error), 8 * 2 * rows, convex)


def _weigh_outputs(network: Network, samples: int) -> int:
    """Return the bytes of the outputs that are scored at once: a part of them, and some of these in float64."""
    each, rows = prod(network.output_shape), rows_at_once(network)
    part = min(samples, max(1, PART // (4 * each) // rows) * rows)
    return 2 * 4 * each * part + _WIDENED * 8 * each * min(part, max(1, min(SUMMARISED, PART // (8 * each))))


def _nested(fit: Fit) -> Iterator[Fit]:
    """Yield a fit and all those that it starts from or chooses among."""
    yield fit
    for value in vars(fit).values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Fit):
                yield from _nested(inner)


@lru_cache(8)  # few, because a family may hold a network
def _weigh_stitch(family: Stitch, sender: Shape, receiver: Shape) -> int:
    """Return the bytes of a stitch, which is made without memory."""
    try:
        with torch.device("meta"):
            return _weight(family.build(sender, receiver))
    except Exception:  # a family of the user's may not be able to do without memory
        with torch.random.fork_rng([]):
            return _weight(family.build(sender, receiver))


def _samples_of(trials: Iterable[Trial]) -> list[Samples]:
    """Return the samples of trials, once for the same images."""
    roles = (s for trial in trials for s in (trial.fit_data, trial.validation_data, trial.score_data, trial.judged))
    views = (view for samples in roles for view in (samples, samples.for_sender))
    return list({samples.image_fingerprint: samples for samples in views}.values())


def _weight(module: nn.Module) -> int:
    """Return the bytes of the parameters and buffers of a module, each once."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))

"""What a plan will cost, before anything of it runs.

An estimate: seconds within a factor of two or so, on a machine that does nothing else; bytes of RAM rather too many
than too few.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from suture.common.errors import DataError, RunnerError
from suture.common.sizes import cores
from suture.common.validation import check_kind
from suture.measurement.trials.trial import Trial
from suture.runs.forecasts.memory import Footprint, Likenesses, footprint, samples_of, weight
from suture.runs.forecasts.time import Expenses

START = 3.0  #: seconds until the first outcome of a worker process, nearly all of them for ``import suture``
RECORD = 10_000  #: bytes of a trial's record


@dataclass(frozen=True)
class Forecast:
    """What is left of a plan, and what it takes. Times are in seconds, sizes in bytes.

    ``trials`` are the rows planned, ``distinct`` those that differ in what they measure, ``done`` those of them that
    are measured already. ``cpu_seconds`` are those of one core, ``longest`` those of the longest trial. ``activations``
    are those of all trials that are left, ``disk`` what is on the disk of them at once, with images, stitches and
    records. ``ram_budget`` and ``disk_budget`` are what was allowed, where it was said.
    """

    trials: int
    distinct: int
    done: int
    workers: int
    cpu_seconds: float
    longest: float
    footprint: Footprint
    activations: int
    disk: int
    ram_budget: int | None = None
    disk_budget: int | None = None

    @property
    def left(self) -> int:
        """The trials that are still to be measured."""
        return self.distinct - self.done

    @property
    def seconds(self) -> float:
        """Wall time with these workers, each on a core of its own."""
        if self.workers == 1 or not self.left:
            return self.cpu_seconds
        return START + max(self.cpu_seconds / self.workers, self.longest)

    @property
    def ram(self) -> int:
        """RAM of all processes together."""
        return self.footprint.of(self.workers)

    @property
    def ram_per_worker(self) -> int:
        """RAM of one worker at its worst moment."""
        return self.footprint.per_worker

    @property
    def largest(self) -> str:
        """Which trial needs the most RAM; ``footprint.peak`` says how much."""
        return self.footprint.largest

    def fits_in(self, budget: int) -> int:
        """How many workers fit into so much RAM.

        Raises ``RunnerError``, with the largest trial, what it needs and the remedies, where not even one does.
        """
        return self.footprint.fits_in(budget)


def forecast(
    plan: Iterable[Trial],
    *,
    workers: int | None = None,
    ram: int | None = None,
    disk: int | None = None,
    done: Collection[str] = (),
) -> Forecast:
    """Say what a plan will cost; networks and stitches are timed for a moment, nothing is measured.

    ``ram`` and ``disk`` are budgets in bytes, ``done`` the keys of trials that need not be measured. There are never
    more workers than trials, or than fit into ``ram``; ``None`` takes as many as there are cores.

    Raises ``DataError`` for a plan without trials, ``RunnerError`` where ``workers`` is below 1 or not even one fits.
    """
    check_kind("plan", plan, Iterable, "several trials, such as what curve or matrix plans")
    trials = list(plan)
    if not trials:
        raise DataError("this plan has no trial; plan at least one: suture.curve(…), suture.matrix(…)")
    if workers is not None and workers < 1:
        raise RunnerError(f"workers={workers}: give at least 1, or leave it out for all {cores()} cores")
    distinct = list(dict.fromkeys(trials))  # trials are equal where their keys are
    left = [trial for trial in distinct if trial.key not in done]
    held = footprint(left, disk)
    wanted = max(1, min(workers if workers is not None else cores(), len(left)))
    fitting = wanted if ram is None or not left else min(wanted, held.fits_in(ram))
    expenses = Expenses(left)
    seconds = [expenses.of(trial) for trial in left]
    activations = sum({need.key: need.nbytes for trial in left for need in trial.needs}.values())
    return Forecast(
        trials=len(trials),
        distinct=len(distinct),
        done=len(distinct) - len(left),
        workers=fitting,
        cpu_seconds=sum(seconds) + expenses.passes(left, disk),
        longest=max(seconds, default=0.0),
        footprint=held,
        activations=activations,
        disk=min(activations, activations if disk is None else disk) + _kept(left),
        ram_budget=ram,
        disk_budget=disk,
    )


def affordable(trials: Sequence[Trial], ram: int, workers: int, *, strict: bool = True) -> int:
    """How many workers, of those wanted, fit into so many bytes of RAM; at once, since nothing is timed.

    Where not even one fits, raises ``RunnerError``, or gives 1 unless ``strict``.
    """
    held = footprint(list(dict.fromkeys(trials)))
    if not strict and held.of(1) > ram:
        return 1
    return min(workers, held.fits_in(ram))


def _kept(trials: Sequence[Trial]) -> int:
    """What is written beside activations: the images that workers share, stitches and records."""
    like = Likenesses()
    images = sum(samples.images.nbytes for samples in samples_of(trials))
    return images + sum(weight(like.of(trial)) + RECORD for trial in trials)

"""Which cells of a matrix are measured, and in which order: all methods take turns, so that what the machine does
meanwhile (its clock, its other work) falls on all of them alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from suture.fits import Fit
from suture.measurement.trials.controls import Control
from suture.measurement.trials.trial import Trial
from suture.runs.bench.methods import Method
from suture.runs.bench.plain_loop import Plain


@dataclass(frozen=True, eq=False)
class Job:
    """One measurement: a trial of the grid, or a control of one, by a method, for the ``repeat``-th time."""

    trial: Trial
    method: Method
    repeat: int

    @property
    def name(self) -> str:
        """What its file is called: the cuts' numbers, the control, the method and the repeat."""
        cuts = f"{self._number(self.trial)}-{self.trial.receiver.cuts.find(self.trial.receiver_cut).index:03}"
        control = f".{self.trial.control.replace(' ', '-')}" if self.trial.control else ""
        return f"{cuts}{control}.{self.method.key}.{self.repeat}"

    @property
    def words(self) -> str:
        """What is measured, for people."""
        return f"{self.trial.where} by {self.method.name}"

    @staticmethod
    def _number(trial: Trial) -> str:
        return f"{trial.sender.cuts.find(trial.sender_cut).index:03}" if hasattr(trial.sender, "cuts") else "000"


def spread(rows: int, columns: int, count: int) -> list[tuple[int, int]]:
    """Choose cells evenly over a grid, as (row, column) from 0; the cells of fewer are the first of those of more.

    They are the cells that the points of Halton's sequence in bases 2 and 3 fall into (Halton 1960), each once. All
    cells come row by row where ``count`` is that of the grid, or more.
    """
    every = [(row, column) for row in range(rows) for column in range(columns)]
    if count >= len(every):
        return every
    chosen: dict[tuple[int, int], None] = {}
    for i in range(1, 100 * len(every)):
        if len(chosen) == count:
            break
        chosen.setdefault((_part(i, 2, rows), _part(i, 3, columns)))
    rest = [cell for cell in every if cell not in chosen]  # cells that no point fell into
    return [*chosen, *rest][:count]


def _part(number: int, base: int, parts: int) -> int:
    """In which of equal parts of [0, 1) a number lies, once its digits in a base are mirrored at the point."""
    mirrored, whole = 0, 1
    while number:
        number, digit = divmod(number, base)
        mirrored, whole = mirrored * base + digit, whole * base
    return mirrored * parts // whole


def sampled(grid: Sequence[Trial], count: int | None) -> list[Trial]:
    """Choose the trials of the cells to measure from those of a whole grid, row by row; ``None`` is all."""
    starts = list(dict.fromkeys(trial.sender_cut for trial in grid))
    ends = list(dict.fromkeys(trial.receiver_cut for trial in grid))
    by_cell = {(starts.index(t.sender_cut), ends.index(t.receiver_cut)): t for t in grid}
    cells = spread(len(starts), len(ends), len(grid) if count is None else count)
    return [by_cell[cell] for cell in cells]


def interleaved(trials: Sequence[Trial], methods: Sequence[Method], repeats: int) -> list[Job]:
    """All measurements in order: by repeats, by cells, every method at each; who begins changes from cell to cell."""
    jobs = []
    for repeat in range(repeats):
        for place, trial in enumerate(trials):
            turn = (repeat + place) % len(methods)
            jobs += [Job(_by(trial, method), method, repeat) for method in (*methods[turn:], *methods[:turn])]
    return jobs


def controlled(trials: Sequence[Trial], methods: Sequence[Method], controls: Sequence[Control]) -> list[Job]:
    """The controls of every trial by every method, once each; their accuracy counts, not their time."""
    return [
        Job(control(_by(trial, method)), method, 0) for trial in trials for control in controls for method in methods
    ]


def _by(trial: Trial, method: Method) -> Trial:
    """The trial fitted by a method; the plain loop reads no fit."""
    match method.how:
        case Plain():
            return trial
        case Fit() as fit:
            return replace(trial, fit=fit)

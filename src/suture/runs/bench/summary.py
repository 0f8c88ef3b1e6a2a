"""What a benchmark says: of its records, medians over repeats, then sums, means and shares over cells.

Every random choice is derived from seeds, so repeats differ in their times alone. A cell counts where every method
measured it. What a whole matrix costs a method is the shared work, which the plain loop has none of, and the mean over
the cells measured times the number of cells.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from suture.runs.bench.matrix import Result
from suture.runs.bench.methods import OURS, PLAIN
from suture.runs.bench.plain_loop import Plain
from suture.runs.bench.records import Record

MARGIN = 0.3  #: points of accuracy by which a cell may be below the plain loop's and still count as good
CONTROL_MARGIN = 2.0  #: points by which a control may be below the plain loop's
_ROUNDING = 1e-9

Seam = tuple[str, str]


@dataclass(frozen=True)
class Cell:
    """One method at one seam: its accuracy, and medians over repeats of seconds; ``points`` above the plain loop."""

    seam: Seam
    method: str
    accuracy: float
    points: float
    cpu: float
    wall: float
    steps: int
    flops: int | None


@dataclass(frozen=True)
class MethodSummary:
    """One method over all cells measured. Times are in seconds, ``peak`` in bytes, ``rate`` in GFLOP/s.

    ``cell_cpu``, ``cell_wall`` and ``steps`` are medians over cells, ``accuracy`` is a mean. ``times_cheaper`` is the
    plain loop's CPU time for the whole matrix over this method's; ``good`` the share of cells at least as good as the
    plain loop's less ``MARGIN``; ``rate`` and ``matrix_cpu`` are of the whole matrix, the shared work included.
    """

    name: str
    fit: str
    cell_cpu: float
    cells_cpu: float
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


@dataclass(frozen=True)
class ControlSummary:
    """One control by the plain loop and by the default fit: mean accuracies, and where the fit is furthest below."""

    control: str
    plain: float
    ours: float
    worst_points: float
    worst_seam: Seam

    @property
    def sound(self) -> bool:
        """Whether the default fit leaves it nowhere lower than ``CONTROL_MARGIN`` below the plain loop."""
        return self.worst_points >= -CONTROL_MARGIN - _ROUNDING


@dataclass(frozen=True)
class Summary:
    """What a benchmark says; ``grid`` is the number of cells of the matrix, ``notes`` what one should know besides."""

    methods: tuple[MethodSummary, ...]
    controls: tuple[ControlSummary, ...]
    cells: tuple[Cell, ...]
    grid: int
    failed: int
    notes: tuple[str, ...]

    @property
    def measured(self) -> int:
        """How many cells count."""
        return len({cell.seam for cell in self.cells})


def summarise(result: Result) -> Summary:
    """Compute what the records of a benchmark say."""
    good = [record for record in result.records if record.error is None]
    cells = _cells(good, [method.name for method in result.methods])
    summaries = []
    for method in result.methods if cells else ():
        mine = [cell for cell in cells if cell.method == method.name]
        peak = max(record.peak for record in good if record.method == method.name)
        summaries.append(_method(mine, cells, peak, str(method.how), isinstance(method.how, Plain), result))
    failed = sum(record.error is not None for record in (*result.records, *result.controls))
    controls = _controls(result.controls)
    return Summary(tuple(summaries), controls, tuple(cells), result.shared.cells, failed, tuple(_notes(result)))


def _cells(records: Iterable[Record], methods: Sequence[str]) -> list[Cell]:
    """Every method's cells, at the seams where all have one."""
    found: dict[Seam, dict[str, list[Record]]] = {}
    for record in records:
        found.setdefault(record.seam, {}).setdefault(record.method, []).append(record)
    whole = {seam: by_method for seam, by_method in found.items() if len(by_method) == len(methods)}
    return [
        _cell(by_method[method], by_method[PLAIN][0].accuracy or 0.0)
        for by_method in whole.values()
        for method in methods
    ]


def _cell(repeats: Sequence[Record], plain: float) -> Cell:
    first = repeats[0]
    accuracy = first.accuracy or 0.0
    cpu, wall = (median(getattr(record, name) for record in repeats) for name in ("cpu", "wall"))
    points = 100 * (accuracy - plain)
    return Cell(first.seam, first.method, accuracy, points, cpu, wall, first.steps, first.flops)


def _method(
    mine: Sequence[Cell], cells: Sequence[Cell], peak: int, fit: str, plain: bool, result: Result
) -> MethodSummary:
    grid, shared = result.shared.cells, result.shared
    shared_cpu, shared_flops = (0.0, 0) if plain else (shared.cpu, shared.flops)
    matrix_cpu = shared_cpu + grid * fmean(cell.cpu for cell in mine)
    worst = min(mine, key=lambda cell: cell.points)
    flops = [cell.flops for cell in mine if cell.flops is not None]
    return MethodSummary(
        name=mine[0].method,
        fit=fit,
        cell_cpu=median(cell.cpu for cell in mine),
        cells_cpu=sum(cell.cpu for cell in mine),
        shared_cpu=shared_cpu,
        matrix_cpu=matrix_cpu,
        times_cheaper=grid * fmean(cell.cpu for cell in cells if cell.method == PLAIN) / matrix_cpu,
        cell_wall=median(cell.wall for cell in mine),
        steps=median(cell.steps for cell in mine),
        accuracy=fmean(cell.accuracy for cell in mine),
        good=fmean(cell.points >= -MARGIN - _ROUNDING for cell in mine),
        worst_points=worst.points,
        worst_seam=worst.seam,
        peak=peak,
        rate=(shared_flops + grid * fmean(flops)) / matrix_cpu / 1e9 if len(flops) == len(mine) else None,
    )


def _controls(records: Iterable[Record]) -> tuple[ControlSummary, ...]:
    """Every control, at the seams where both have it."""
    found: dict[str, dict[Seam, dict[str, float]]] = {}
    for record in records:
        if record.accuracy is not None:
            found.setdefault(record.control, {}).setdefault(record.seam, {})[record.method] = record.accuracy
    summaries = []
    for control, seams in found.items():
        both = {seam: (by[PLAIN], by[OURS]) for seam, by in seams.items() if len(by) == 2}
        if both:
            seam, (plain, ours) = min(both.items(), key=lambda item: item[1][1] - item[1][0])
            means = [fmean(pair[side] for pair in both.values()) for side in (0, 1)]
            summaries.append(ControlSummary(control, means[0], means[1], 100 * (ours - plain), seam))
    return tuple(summaries)


def _notes(result: Result) -> list[str]:
    """What one should know of the numbers."""
    notes = dict.fromkeys(note for record in (*result.records, *result.controls) for note in record.notes)
    said: dict[tuple[Seam, str], set[float | None]] = {}
    for record in result.records:
        if record.error is None:
            said.setdefault((record.seam, record.method), set()).add(record.accuracy)
    for (seam, method), values in said.items():
        if len(values) > 1:
            notes[f"{method} at {' → '.join(seam)} gave another accuracy when it was repeated; the first counts"] = None
    if any(record.peak_since_start for record in result.records):
        notes["peak memory is that since the process began, since this system does not let it be set back"] = None
    return list(notes)

"""The evidence of a table: the figures that a page shows of it, and their sentences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from suture.common.errors import DataError
from suture.measurement.tables.curve import PLAIN, without_sender
from suture.measurement.tables.onset import onset
from suture.measurement.tables.read import Reading, View, pairs_of, trait_of
from suture.measurement.tables.say import headline, say_curve, say_matrix, say_open
from suture.measurement.tables.table import not_converged
from suture.reports import charts
from suture.reports.charts import SIMILARITY, Chart
from suture.reports.figures import curve as curves
from suture.reports.figures import maps
from suture.reports.figures import matrix as matrices

_MOST = 12  #: curves that are drawn


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure of a page: the chart of its caption and its tables, and how it is drawn.

    ``narrow`` draws it for a phone; without it the figure is scrolled there.
    """

    chart: Chart
    wide: Callable[[], Figure]
    narrow: Callable[[], Figure] | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """The figures of a table, and its own sentences, the headline first.

    ``title`` and the question ``asked`` are empty if those of any run will do; ``rest`` are further notes.
    """

    figures: Sequence[Drawn]
    said: Sequence[str]
    title: str = ""
    asked: str = ""
    rest: Sequence[str] = ()


def evidence(readings: Sequence[Reading], similarities: pd.DataFrame | None = None) -> Evidence:
    """Read a table by its kind, its main score first; as curves or a matrix if a trait cannot be placed."""
    views: dict[View, tuple[Callable[[Sequence[Reading], pd.DataFrame | None], Evidence], ...]] = {
        "trait": (_localised, _curves, _matrix),
        "matrix": (_matrix,),
    }
    for arranged in views.get(readings[0].kind, (_curves, _matrix)):
        try:
            return arranged(readings, similarities)
        except DataError:
            continue
    note = "This table is neither one curve nor one matrix, so nothing is drawn; suture table shows its rows."
    return Evidence((), (), rest=(note,))


def _curves(readings: Sequence[Reading], similarities: pd.DataFrame | None) -> Evidence:
    """Return a figure for each pair of networks and score, if each pair is one curve."""
    table = readings[0].table
    pairs = pairs_of(table[table["control"] == ""])
    rest = [_similarity(charts.similarity(similarities))] if similarities is not None and len(similarities) else []
    if len(pairs) < 2:
        return Evidence([*_curve(readings, similarities), *rest], say_curve(readings[0]))
    figures, said = list[Drawn](), [headline(readings[0])]
    for sender, receiver in pairs[:_MOST]:
        held = table[(table["receiver"] == receiver) & (without_sender(table) | (table["sender"] == sender))]
        own = [replace(reading, table=held) for reading in readings]
        figures += _curve(own, similarities)
        said += [f"{sender} → {receiver}: {one}" for one in say_curve(own[0])[:1]]
    more = len(pairs) - _MOST
    note = f"{more} more pairs of networks are not drawn; suture table shows their rows."
    return Evidence([*figures, *rest], list(filter(None, said)), rest=(note,) if more > 0 else ())


def _curve(readings: Sequence[Reading], similarities: pd.DataFrame | None) -> Iterator[Drawn]:
    """Yield the figure of each score that was measured; the indices stand below the first."""
    for reading in readings:
        chart = charts.curve(reading, similarities)
        beside = similarities if any(one.show == SIMILARITY for one in chart.measures) else None
        if any(line.has_values for line in chart.measures[0].lines):
            wide = partial(curves.curve, reading, beside, for_page=True)
            yield Drawn(chart, wide, partial(wide, width=curves.NARROW))
        similarities = None


def _matrix(readings: Sequence[Reading], similarities: pd.DataFrame | None) -> Evidence:
    """Return the trials of each score as a figure and the controls as another, and the indices of all pairs of cuts."""
    figures: list[Drawn] = []
    for reading in readings:
        chart = charts.matrix(reading)
        panels = sorted(reading.matrix.panels, key=bool)
        if not any(np.isfinite(part).any() for part in reading.matrix.panels.values()):
            continue
        front, back = (
            replace(
                chart,
                measures=tuple(
                    replace(m, lines=tuple(one for one in m.lines if (one.kind in panels[1:]) == controls))
                    for m in chart.measures
                ),
            )
            for controls in (False, True)
        )
        figures.append(Drawn(front, partial(matrices.matrix, reading, for_page=True)))
        if panels[1:]:
            back = replace(
                back, title=f"{chart.title}, controls", about=f"The controls of {reading.matrix.title}.", alone=""
            )
            figures.append(Drawn(back, partial(matrices.matrix, reading, for_page=True, controls=True)))
    if similarities is not None:
        chart = charts.matrix(readings[0], similarities)
        indices = tuple(one for one in chart.measures if one.show == SIMILARITY)
        about = f"How alike layers are on the same images, by indices of similarity ({readings[0].matrix.title})."
        titled = replace(chart, title="Similarity of the layers", about=about, measures=indices, alone="")
        figures += [_similarity(titled)] if indices else []
    return Evidence(figures, say_matrix(readings[0]))


def _similarity(chart: Chart) -> Drawn:
    return Drawn(chart, partial(maps.similarities_of, chart, for_page=True))


def _localised(readings: Sequence[Reading], similarities: pd.DataFrame | None) -> Evidence:
    """Return where a trait lies."""
    table = readings[0].table
    plain = table[table["control"] == PLAIN]
    trait, carrier, other = trait_of(table)
    found = onset(table, trait, carrier, other)
    said = [line.strip() for line in str(found).splitlines()]
    rows = plain[(plain["score"] == trait) & (plain["status"] == "ok")]
    said += say_open(not_converged(rows).to_numpy(bool), "trials")
    asked = f"Which layers of {carrier} make the difference to {other} in {trait}? Stitched both ways. "
    wide = partial(curves.localisation, table, found, for_page=True)
    place = Drawn(charts.localisation(table, found), wide, partial(wide, width=curves.NARROW))
    figures = [place, *_curves(readings, similarities).figures]
    return Evidence(figures, said, title=f"Where {trait} lies in {carrier}", asked=asked)

"""A trait's place drawn: what stitching both ways conveys of it at every cut, and where that begins."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suture.core.network.network import Network
from suture.measurement.scores.traits import Trait
from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.onset import CONVEYED, Onset, Way, onset
from suture.report.figures.curve import WIDTH, Entries, grid_behind, legend_above, styled, without_neighbour
from suture.report.style import LOOK, shortened

_WAYS = (("#0072B2", "o"), ("#D55E00", "v"))  #: colour and marker of carrier → reference, and of reference → carrier
_FIRST = "#F0E442"  #: behind where the trait lies
_BEGINS, _PLACE = "first cut that conveys it", "where it lies"
_ENDS = (-0.25, 1.25)  #: shares beyond which nothing is drawn


def localisation(
    table: pd.DataFrame, trait: Trait | str, carrier: Network | str, reference: Network | str
) -> tuple[Figure, Onset]:
    """Draw what every cut conveys of a trait in both directions, with 95 % intervals; return its onset too.

    0 % is the reference network itself, 100 % the carrier; controls are thin; the first cut that conveys the trait has
    a ring, and the place of the trait is marked behind. Raises ``DataError`` as ``onset`` does.
    """
    found = onset(table, trait, carrier, reference)
    with styled():
        figure = Figure(figsize=(WIDTH, 1), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True, sharey=True)
        entries: dict[str, Artist] = {}
        for axes, way, look in zip(panels, (found.sending, found.receiving), _WAYS, strict=True):
            entries |= _panel(axes, found, way, look)
        height = _cuts(figure, panels[1], found)
        first = [f"{bears} → {other}" for bears, other in map(found.ends, (found.sending, found.receiving))]
        first += [_BEGINS, _PLACE, *_levels(found)]
        shown: Entries = [(entries.pop(name), name) for name in first if name in entries]
        shown += [(artist, name) for name, artist in entries.items()]
        over = "test samples or seeds"
        figure.set_figheight(height + legend_above(figure, shown, over) + 3.6)
        figure.supylabel(f"conveyed of {found.trait} (%)", size=8, parse_math=False)
    return figure, found


def _panel(axes: Axes, found: Onset, way: Way, look: tuple[str, str]) -> dict[str, Artist]:
    """Draw one way; what the legend says, by name."""
    colour, marker = look
    ends = found.ends(way)
    places = np.arange(len(way.cuts))
    value, low, high = (100 * np.array(part) for part in (way.shares, way.low, way.high))
    entries: dict[str, Artist] = {}
    style: dict[str, Any]
    for level, name, dashes in zip((100, 0), _levels(found), ("-", (0, (4, 2))), strict=True):
        entries[name] = axes.axhline(level, color="black", linewidth=0.8, linestyle=dashes, zorder=1)
    for kind, shares in way.control_shares.items():
        shade, sign = LOOK.get(kind, ("#000000", "*"))
        (entries[kind],) = axes.plot(
            places,
            100 * np.array(shares),
            color=shade,
            marker=sign,
            markersize=2.6,
            linewidth=0.7,
            alpha=0.55,
            zorder=2,
        )
    axes.fill_between(places, low, high, color=colour, alpha=0.25, linewidth=0, zorder=2)
    alone = without_neighbour(value)
    axes.vlines(places[alone], low[alone], high[alone], color=colour, alpha=0.6, linewidth=1.5, zorder=2)
    style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.8, "zorder": 4}
    (entries[" → ".join(ends)],) = axes.plot(places, value, **style)
    _mark(axes, found, way, value, entries)
    axes.axhline(100 * CONVEYED, color="0.6", linewidth=0.6, linestyle=":", zorder=1)
    axes.set_ylim(*(100 * end for end in _ENDS))
    axes.set_title(f"{' → '.join(ends)}: {way.verdict}", size=8, loc="left", parse_math=False)
    grid_behind(axes)
    return entries


def _levels(found: Onset) -> tuple[str, str]:
    return f"{found.carrier} alone (carrier)", f"{found.reference} alone (reference)"


def _mark(axes: Axes, found: Onset, way: Way, value: Numbers, entries: dict[str, Artist]) -> None:
    """Mark the onset, and between which cuts the trait lies."""
    if way.onset is None or way.between is None:
        return
    place = way.cuts.index(way.onset)
    ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none", "zorder": 5}
    (entries[_BEGINS],) = axes.plot([place], value[[place]], color="black", **ring)
    if way.verdict == "localised":
        first, last = (way.cuts.index(end) if end in way.cuts else None for end in way.between)
        left = -0.5 if first is None else float(first)
        right = len(way.cuts) - 0.5 if last is None else float(last)
        entries[_PLACE] = axes.axvspan(left, right, color=_FIRST, alpha=0.45, linewidth=0, zorder=0)
    axes.set_xlim(-0.5, len(way.cuts) - 0.5)


def _cuts(figure: Figure, axes: Axes, found: Onset) -> float:
    """Name the carrier's cuts below the axis; the height in inches."""
    cuts = found.sending.cuts
    names = [shortened(cut) for cut in cuts]
    room = 72 * 0.85 * figure.get_figwidth() / len(cuts)
    flat = max(map(len, names)) * 4.5 < room
    axes.set_xticks(
        range(len(cuts)),
        names,
        rotation=0 if flat else 40,
        ha="center" if flat else "right",
        rotation_mode="default" if flat else "anchor",
        parse_math=False,
    )
    axes.set_xlabel(f"cut of {found.carrier} (input → output)", parse_math=False)
    return 0.4 if flat else 0.35 + max(map(len, names)) * 4.5 * 0.65 / 72

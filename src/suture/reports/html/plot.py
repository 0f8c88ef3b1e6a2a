"""Charts drawn with plotly. A view is a measure of a chart, and of a matrix a kind of trial; one shows at a time.

``report.js`` switches views, lines and colours: a trace says in its ``meta`` to which view and line it belongs, and its
colours on a light and on a dark page; the layout's ``meta`` holds the names of the views, what each sets, and the
legend. The page shows the legend as buttons, because plotly's takes half of a narrow page and no keyboard reaches it.
"""

import html
import re
from collections.abc import Iterable, Iterator
from math import ceil, floor
from textwrap import wrap
from typing import Any

import numpy as np

from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.matrix import staircase
from suture.reports.charts import SIMILARITY, Chart, Line, Measure
from suture.reports.style import shortened

#: The markers of the printed figures in plotly's words, and in the legend.
_SYMBOLS = {
    "o": ("circle", "●"),
    "s": ("square", "■"),
    "v": ("triangle-down", "▼"),
    "^": ("triangle-up", "▲"),
    "D": ("diamond", "◆"),
    "x": ("x", "✕"),
    "p": ("pentagon", "⬟"),
    "P": ("cross", "✚"),
    "X": ("x", "✖"),
    "*": ("star", "★"),
    "<": ("triangle-left", "◀"),
    ">": ("triangle-right", "▶"),
}
#: The colours of the printed figures that are too dark on a dark page, and what stands for each there.
_DARK = {
    "#0072B2": "#56B4E9",
    "#009E73": "#2FC79A",
    "#D55E00": "#F07F2E",
    "#7F7F7F": "#A9A9A9",
    "#555555": "#C8C8C8",
    "#882255": "#F0E442",
    "#56B4E9": "#B7A6F0",
    "#000000": "#FFFFFF",
    "#8C6D31": "#C9A65C",
    "#5254A3": "#9FA2E8",
}
_ACROSS = ("──", "╌╌")  #: what stands in the legend for lines across
_INK = ["#1b1b1a", "#e8e7e3"]  #: of lines across, on a light and on a dark page
_LONGEST = 24  #: letters of a cut's name on an axis
_MOST_NAMES = 40  #: names on an axis; of more cuts every second or third is named
_WRAP = 46  #: letters of a line of a label
_FULL_LABELS = 400  #: places up to which the label of each names all kinds of trial: labels are most of a page's bytes
_ROW, _STRIP = 30, 22  #: pixels: the height of a row of a matrix of many, and of a control below it
_TALL, _FEW = 44, 10  #: pixels: the height of a row of a matrix of few, and how many these are
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
_DIVERGING = [[0, "#D55E00"], [0.5, "#f4f4f0"], [1, "#0072B2"]]

#: Characters that are not seen but do something: controls, and marks of direction that reach beyond a name.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Traces = list[dict[str, Any]]
View = tuple[str, Traces, dict[str, Any]]  #: name, traces, and what it sets of the layout


def figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as a figure of plotly: its traces and its layout, as plain values."""
    views = list(_matrix_views(chart) if chart.kind == "matrix" else _line_views(chart))
    legend: dict[str, dict[str, Any]] = {}
    traces = []
    for i, (_, made, _) in enumerate(views):
        for trace in made:
            meta = {"colours": {}, "name": "", "hidden": False, **trace.get("meta", {}), "view": i}
            traces.append({**trace, "meta": meta, "visible": i == 0 and not meta["hidden"]})
            if "glyph" in meta:
                legend.setdefault(meta["name"], meta)
    layout: dict[str, Any] = {
        **_layout(chart),
        "meta": {
            "views": [{"name": name, "sets": sets} for name, _, sets in views],
            "legend": sorted(legend.values(), key=lambda meta: meta["glyph"] in _ACROSS) if len(legend) > 1 else [],
        },
    }
    for path, value in views[0][2].items():
        *parents, last = path.split(".")
        held = layout
        for parent in parents:
            held = held.setdefault(parent, {})
        held[last] = value
    return {"data": traces, "layout": layout}


def _layout(chart: Chart) -> dict[str, Any]:
    lines = {"showline": True, "linecolor": _INK[0], "ticks": "outside", "tickcolor": _INK[0], "ticklen": 3}
    axis: dict[str, Any] = {
        "fixedrange": True,
        "zeroline": False,
        "automargin": True,
        "autotickangles": [0, -90],
        **lines,
    }
    title = {"standoff": 8, "font": {"size": 12}}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12, "color": _INK[0]},
        "margin": {"l": 10, "r": 10, "t": 10, "b": 60},
        "hoverlabel": {"align": "left", "namelength": 0, "font": {"size": 12}},
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
        "xaxis": {**axis, "title": {**title, "text": escape(chart.axes[0])}},
        "yaxis": {**axis, "title": {**title, "text": ""}},
    }


def visible(text: object) -> str:
    """Return a text whose unseen characters are written out, as ``⟨U+202E⟩``."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))


def escape(text: object) -> str:
    """Return a text that plotly, which reads some HTML, and mathematics between dollars, draws as written."""
    return html.escape(visible(text), quote=False).replace("$", "&#36;")


def _wrapped(parts: Iterable[str]) -> str:
    return "<br>".join(escape(line) for part in parts for line in wrap(visible(part), _WRAP))


def _names(names: tuple[str, ...]) -> dict[str, Any]:
    """Name the places of an axis; of very many, every second or third."""
    step = max(1, ceil(len(names) / _MOST_NAMES))
    shown = [escape(shortened(visible(name), _LONGEST)) for name in names[::step]]
    return {"tickmode": "array", "tickvals": list(range(0, len(names), step)), "ticktext": shown}


def glyph_of(marker: str, hollow: bool = False) -> str:
    """Return the letter that looks like a marker of the printed figures."""
    return "○" if hollow else _SYMBOLS[marker][1] if marker in _SYMBOLS else marker.strip("$")


def shades_of(colour: str) -> list[str]:
    """Return what a colour of the printed figures is on a light and on a dark page."""
    return [colour, _DARK.get(colour, colour)]


def _faded(colours: list[str], share: float) -> list[str]:
    parts = [",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5)) for colour in colours]
    return [f"rgba({part},{share})" for part in parts]


def _plain(values: Numbers) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


# --- what the label of a place says -----------------------------------------------------------------------------------


def _label(chart: Chart, measure: Measure, line: Line, i: int) -> str:
    """Say what was measured at a place: this line first, then its other measures, the other lines and the networks."""

    def said(measure: Measure, line: Line) -> str:
        at = i % len(chart.columns) if line.strip else i
        return " ".join(filter(None, measure.cell(line, at, unit=True)))

    parts = [chart.columns[i % len(chart.columns)] if line.strip else chart.place(i)]
    name = f"{measure.of}, {line.name}" if line.name != measure.of else line.name
    parts.append(f"{name}: {said(measure, line) or 'not measured'}")
    for other in chart.measures:
        same = [one for one in other.lines if one.name == line.name]
        related = other.of == measure.of or SIMILARITY in (other.show, measure.show)
        if other is not measure and same and related and said(other, same[0]):
            parts.append(f"{other.of if other.show == SIMILARITY else other.show.lower()}: {said(other, same[0])}")
    if len(chart.columns) * max(len(chart.rows), 1) <= _FULL_LABELS:
        others = [f"{one.name} {said(measure, one)}" for one in measure.lines if one is not line and said(measure, one)]
        parts += ["; ".join(others)] if others else []
    levels = {name: x for name, x in measure.levels.items() if not name.startswith("no ")}
    parts += ["; ".join(f"{name} {measure.written(x, unit=True)}" for name, x in levels.items())] if levels else []
    return _wrapped([*parts, chart.alone])


# --- curves and bars --------------------------------------------------------------------------------------------------


def _line_views(chart: Chart) -> Iterator[View]:
    for measure in chart.measures:
        traces: Traces = []
        if chart.kind == "bars":
            traces += [_bars(chart, measure, line) for line in measure.lines]
        traces += [_level(chart, *level) for level in measure.across]
        if chart.kind != "bars":
            for number, line in enumerate(measure.lines):
                traces += _line(chart, measure, line, number)
        several = sum(one.label == measure.label for one in chart.measures) > 1  # such as both ways of a trait
        name = f"{measure.show}: {measure.label}" if several else measure.label
        yield name, traces, _bar_axes(chart, measure) if chart.kind == "bars" else _line_axes(chart, measure)


def _line_axes(chart: Chart, measure: Measure) -> dict[str, Any]:
    return {
        "height": 400,
        "xaxis.range": [-0.5, len(chart.columns) - 0.5],
        "xaxis.showgrid": False,
        **{f"xaxis.{key}": value for key, value in _names(chart.columns).items()},
        "yaxis.title.text": escape(measure.label),
        "yaxis.autorange": measure.span is None,
        "yaxis.range": list(measure.span) if measure.span else None,
    }


def _bar_axes(chart: Chart, measure: Measure) -> dict[str, Any]:
    names: dict[str, Any] = {"tickmode": "array", "tickvals": list(range(len(chart.columns)))}
    names["ticktext"] = ["<br>".join(escape(part) for part in wrap(visible(name), 28)) for name in chart.columns]
    return {
        "height": 110 + 40 * len(chart.columns),
        "xaxis.title.text": escape(measure.label),
        "xaxis.rangemode": "tozero",
        "yaxis.showgrid": False,
        "yaxis.range": [len(chart.columns) - 0.5, -0.5],
        **{f"yaxis.{key}": value for key, value in names.items()},
    }


def _level(chart: Chart, name: str, x: float, dashed: bool) -> dict[str, Any]:
    """Return a line across all places."""
    ends, values = [-0.5, len(chart.columns) - 0.5], [x, x]
    along = {"x": values, "y": ends} if chart.kind == "bars" else {"x": ends, "y": values}
    return {
        **along,
        "type": "scatter",
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"color": _INK[0], "width": 1.2, "dash": "dash" if dashed else "solid"},
        "meta": {"colours": {"line.color": _INK}, "name": name, "glyph": _ACROSS[dashed]},
    }


def _line(chart: Chart, measure: Measure, line: Line, number: int) -> Traces:
    """Return a line, and behind it a band of its intervals: an outline for each run of neighbouring places."""
    colour, sign, dashes = line.look(number)
    shades, (marker, glyph) = shades_of(colour), _SYMBOLS[sign]
    main = number == 0 or line.is_group
    meta = {"name": line.name, "hidden": line.hidden}
    places = np.flatnonzero(np.isfinite(line.low) & np.isfinite(line.value))
    x: list[float | None] = []
    y: list[float | None] = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        x += [*map(float, run), *map(float, run[::-1]), None]
        y += [*_plain(line.high[run]), *_plain(line.low[run][::-1]), None]
    fills, edges = _faded(shades, 0.2 if main else 0.1), _faded(shades, 0.45)
    band: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": x, "y": y, "fill": "toself", "hoverinfo": "skip"}
    band |= {"fillcolor": fills[0], "line": {"width": 0.5, "color": edges[0]}}
    band |= {"meta": {**meta, "colours": {"fillcolor": fills, "line.color": edges}}}
    symbols = [f"{marker}-open" if hollow else marker for hollow in line.is_open]
    drawn = {
        "type": "scatter",
        "mode": "lines+markers",
        "connectgaps": line.is_group,  # which has its own cuts among those of all groups
        "x": list(range(len(chart.columns))),
        "y": _plain(line.value),
        "hovertext": [_label(chart, measure, line, i) for i in range(len(chart.columns))],
        "hoverinfo": "text",
        "zorder": int(main),
        "line": {"color": shades[0], "width": 3 if main else 1.2, "dash": "solid" if dashes == "-" else "dash"},
        "marker": {"color": shades[0], "symbol": symbols, "size": 4 if len(chart.columns) > 30 else 7 if main else 6},
        "meta": {**meta, "glyph": glyph, "colours": {"line.color": shades, "marker.color": shades}},
    }
    return [*([band] if len(places) else []), drawn]


def _bars(chart: Chart, measure: Measure, line: Line) -> dict[str, Any]:
    shades = [shades_of(colour) for colour, *_ in line.looks]
    known = np.isfinite(line.low)
    spread = {
        "type": "data",
        "symmetric": False,
        "array": list(np.where(known, line.high - line.value, 0.0)),
        "arrayminus": list(np.where(known, line.value - line.low, 0.0)),
        "color": "#888888",
        "thickness": 1.2,
        "width": 4,
    }
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(chart.columns))),
        "x": _plain(line.value),
        "width": 0.6,
        "error_x": spread,
        "marker": {"color": [light for light, _ in shades], "opacity": np.where(line.is_open, 0.4, 1.0).tolist()},
        "hovertext": [_label(chart, measure, line, i) for i in range(len(chart.columns))],
        "hoverinfo": "text",
        "meta": {"colours": {"marker.color": [list(side) for side in zip(*shades, strict=True)]}},
    }


# --- matrices ---------------------------------------------------------------------------------------------------------


def _matrix_views(chart: Chart) -> Iterator[View]:
    """Return a view of each kind of trial, with the controls that have one value per column below it."""
    for measure in chart.measures:
        colours = _colours(measure)
        strips = measure.strips
        inner = (
            len(chart.rows) * (_TALL if len(chart.rows) <= _FEW else _ROW) + len(strips) * _STRIP + 10 * bool(strips)
        )
        longest = min(max(map(len, chart.columns)), _LONGEST)
        room = 6.4 * longest if 7 * longest * len(chart.columns) > 300 else 0  # for names that stand upright
        bottom = len(strips) * _STRIP / inner
        for line in measure.panels:
            traces = [*_cells(chart, measure, line, colours), *_marks(chart)]
            for i, strip in enumerate(strips):
                traces += _cells(chart, measure, strip, colours, i)
            names = tuple(strip.name for strip in strips)
            sets = {
                "height": inner + 150 + room,
                "xaxis.range": [-0.5, len(chart.columns) - 0.5],
                "xaxis.title.standoff": 24,  # plotly counts it from the axis here, not from its names
                "xaxis.anchor": "y2" if strips else "y",
                **{f"{axis}.{key}": value for axis in ("xaxis", "yaxis", "yaxis2") for key, value in _BARE.items()},
                **{f"xaxis.{key}": value for key, value in _names(chart.columns).items()},
                "yaxis.range": [len(chart.rows) - 0.5, -0.5],
                "yaxis.domain": [bottom + (10 / inner if strips else 0), 1],
                "yaxis.title.text": escape(chart.axes[1]),
                **{f"yaxis.{key}": value for key, value in _names(chart.rows).items()},
                "yaxis2.range": [len(strips) - 0.5, -0.5],
                "yaxis2.domain": [0, max(bottom, 0.001)],
                "yaxis2.visible": bool(strips),
                **{f"yaxis2.{key}": value for key, value in _names(names).items()},
                **{f"coloraxis.{key}": value for key, value in colours.items() if key != "powers"},
            }
            name = f"{measure.label}, {line.name}" if len(measure.panels) > 1 else measure.label
            yield name, traces, sets


_BARE = {
    "fixedrange": True,
    "automargin": True,
    "showgrid": False,
    "zeroline": False,
    "showline": False,
    "tickcolor": "rgba(0,0,0,0)",
}


def _colours(measure: Measure) -> dict[str, Any]:
    """Return the scale of colours, with a bar that names it; bright is better, or alike."""
    low, high, powers = measure.scale()
    low, high = (float(np.log10(low)), float(np.log10(high))) if powers else (low, high)
    ticks = list(range(ceil(low), floor(high) + 1)) if powers else None
    bar = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "thickness": 10, "outlinewidth": 0, "tickvals": ticks}
    bar |= {"ticktext": [f"{10.0**power:g}" for power in ticks] if ticks else None}
    bar |= {"title": {"text": escape(measure.label), "side": "top", "font": {"size": 12}}, "len": 1.0}
    return {
        "powers": powers,
        "cmin": low,
        "cmax": high,
        "colorscale": _DIVERGING if measure.bright == "middle" else "Viridis",
        "reversescale": measure.bright == "low",
        "colorbar": bar,
    }


def _cells(chart: Chart, measure: Measure, line: Line, sets: dict[str, Any], strip: int | None = None) -> Traces:
    """Return the cells of a panel, or of a strip's row; a cross marks what failed, a dot what is missing.

    Dark cells and light ones are two traces, because a trace has one colour for its numbers.
    """
    across = len(chart.columns)
    rows = 1 if strip is not None else len(chart.rows)
    values = line.value.reshape(rows, across)
    shades = np.log10(values) if sets["powers"] else values
    share = (shades - sets["cmin"]) / (sets["cmax"] - sets["cmin"])
    share = 1 - share if measure.bright == "low" else share
    light = np.abs(share - 0.5) < 0.3 if measure.bright == "middle" else share > 0.6
    digits = 0 if measure.unit in ("%", "pp") else 2
    labels = np.array([_label(chart, measure, line, i) for i in range(values.size)], object).reshape(values.shape)
    texts = np.array([f"{value:z.{digits}f}" for value in line.value], object).reshape(values.shape)
    place: dict[str, Any] = {"x": list(range(across)), "y": list(range(rows)) if strip is None else [strip]}
    place["yaxis"] = "y" if strip is None else "y2"
    traces: Traces = [
        {
            "type": "heatmap",
            "coloraxis": "coloraxis",
            "xgap": 1,
            "ygap": 1,
            "hoverongaps": False,
            **place,
            "z": [_plain(row) for row in np.where(mask, shades, np.nan)],
            "text": np.where(mask, texts, "").tolist(),
            "texttemplate": "%{text}",
            "textfont": {"color": ink},
            "hovertext": labels.tolist(),
            "hoverinfo": "text",
        }
        for mask, ink in ((light, "#1b1b1a"), (~light & np.isfinite(values), "#ffffff"))
    ]
    rings = np.argwhere(line.is_open.reshape(values.shape)).tolist()
    if rings:
        inks = ["#1b1b1a" if light[i, j] else "#ffffff" for i, j in rings]
        ring: dict[str, Any] = {"type": "scatter", "mode": "markers", "hoverinfo": "skip", "yaxis": place["yaxis"]}
        ring |= {"x": [j + 0.38 for _, j in rings], "y": [i + (strip or 0) - 0.34 for i, _ in rings]}
        traces.append({**ring, "marker": {"symbol": "circle-open", "size": 4, "color": inks, "line": {"width": 1}}})
    gone = np.argwhere(~np.isfinite(values)).tolist()
    failed = line.failed.reshape(values.shape)
    marks: dict[str, Any] = {"type": "scatter", "mode": "text", "hoverinfo": "text", "yaxis": place["yaxis"]}
    marks |= {"x": [j for _, j in gone], "y": [i + (strip or 0) for i, _ in gone]}
    marks |= {"text": ["×" if failed[i, j] else "·" for i, j in gone], "hovertext": [labels[i, j] for i, j in gone]}
    return [*traces, marks] if gone else traces


def _marks(chart: Chart) -> Traces:
    """Return the ends of networks, and the line below which the sender's cut is at least as deep as the receiver's."""
    lines: list[tuple[list[int], list[int], int]] = []
    lines += [([0, len(chart.columns)], [block.stop] * 2, 2) for block in chart.senders[:-1]]
    lines += [([block.stop] * 2, [0, len(chart.rows)], 2) for block in chart.receivers[:-1]]
    lines += [(*staircase(sender, receiver), 3) for sender in chart.senders for receiver in chart.receivers]
    made: Traces = []
    for x, y, width in lines:
        colours = ["#fdfdfb", "#151617"]  # the page shows through between cells, and wider here
        made.append(
            {
                "type": "scatter",
                "mode": "lines",
                "hoverinfo": "skip",
                "showlegend": False,
                "x": [at - 0.5 for at in x],
                "y": [at - 0.5 for at in y],
                "line": {"color": colours[0], "width": width},
                "meta": {"colours": {"line.color": colours}},
            }
        )
    return made

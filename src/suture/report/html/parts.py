"""Parts of a page: figures with the tables behind them, facts, lists. What they are given is text, never HTML."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from suture.report.html.charts import Chart, Line, Measure
from suture.report.html.escaping import name, safe


def section(title: str, *parts: str, id: str = "") -> str:
    """A part of the page under a heading; nothing where it holds nothing."""
    held = "\n".join(filter(None, parts))
    return f"<section{f' id={id!r}' if id else ''}>\n<h2>{safe(title)}</h2>\n{held}\n</section>" if held else ""


def sentences(said: Sequence[str]) -> str:
    """A list of sentences."""
    return "<ul>\n" + "\n".join(f"<li>{safe(one)}</li>" for one in said) + "\n</ul>" if said else ""


def facts(known: Mapping[str, str | Sequence[str]]) -> str:
    """Names and what is known of each; what is empty is left out."""
    rows = []
    for term, values in known.items():
        listed = [values] if isinstance(values, str) else list(values)
        rows += [f"<dt>{safe(term)}</dt><dd>{'<br>'.join(map(safe, listed))}</dd>"] if any(listed) else []
    return f'<dl class="facts">{"".join(rows)}</dl>' if rows else ""


def words(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of words; on narrow pages of the ``kind`` claims its cells stand below each other."""
    head = "".join(f'<th scope="col">{safe(heading)}</th>' for heading in headings)
    body = []
    for first, *others in rows:
        cells = "".join(
            f'<td data-label="{safe(heading)}">{_marked(cell)}</td>'
            for heading, cell in zip(headings[1:], others, strict=True)
        )
        body.append(f'<tr><th scope="row">{safe(first)}</th>{cells}</tr>')
    return _scrolled(
        caption,
        f'<table class="words {kind}"><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>",
    )


_MARKED = ("reproduced", "not reproduced", "undecided")


def _marked(cell: str) -> str:
    """A verdict in its colour; the word says it, too."""
    if cell not in _MARKED:
        return safe(cell)
    return f'<span class="mark {cell.replace(" ", "-")}">{cell}</span>'


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(charts: Sequence[Chart], numbers: "count[int]") -> str:
    """Figures with the tables behind them, numbered on."""
    several = len(charts) > 1
    return "\n".join(_figure(chart, next(numbers), several) for chart in charts)


def _figure(chart: Chart, number: int, titled: bool) -> str:
    over = " or ".join(dict.fromkeys(measure.over for measure in chart.measures if measure.over))
    bands = f" Intervals are 95 %, over {over}." if over and "range" not in over else ""
    aria = f"{chart.title}. The numbers are in the tables below the figure; the arrow keys read them place by place."
    heading = f"<h3>{safe(chart.title)}</h3>\n" if titled else ""
    drawn = (
        f'<div class="plot" id="plot-{number}" tabindex="0" role="application" aria-roledescription="figure" '
        f'aria-label="{safe(aria)}"></div>'
    )
    return (
        f'{heading}<figure class="chart" id="figure-{number}">\n<div class="switches"></div>\n{drawn}\n'
        f'<p class="readout" role="status" aria-live="polite"></p>\n'
        f"<noscript><p>The figure is drawn by a script; the tables below hold the same numbers.</p></noscript>\n"
        f"<figcaption><b>Figure {number}.</b> {safe(chart.caption)}{bands}{safe(_marks(chart))}</figcaption>\n"
        f"<details><summary>The numbers of figure {number}</summary>\n{_tables(chart)}\n</details>\n</figure>"
    )


def _marks(chart: Chart) -> str:
    """What is said of failures, and of the line across a matrix."""
    lines = [line for measure in chart.measures for line in measure.lines]
    said = " Below the line the sender's cut is at least as deep as the receiver's." if chart.steps else ""
    if any(line.failed.any() for line in lines):
        said += " × marks what failed" if chart.rows else " Gaps are what failed"
        said += "; * is the mean of the seeds that did not."
    return said


def _tables(chart: Chart) -> str:
    if not chart.rows:
        return "\n".join(_along(chart, measure) for measure in chart.measures)
    made = []
    for measure in chart.measures:
        panels = [line for line in measure.lines if not line.strip]
        made += [_grid(chart, measure, line, len(panels) > 1) for line in panels]
        strips = [line for line in measure.lines if line.strip]
        made += [_strips(chart, measure, strips)] if strips else []
    return "\n".join(made)


def _along(chart: Chart, measure: Measure) -> str:
    """A row for each place, a column for each line."""
    head = "".join(f'<th scope="col">{name(line.name)}</th>' for line in measure.lines)
    levels = "; ".join(f"{key} {measure.written(value, unit=True)}" for key, value in measure.levels.items())
    caption = _caption(chart, measure, f"; {levels}" if levels else "")
    rows = "".join(
        f'<tr><th scope="row">{name(chart.columns[i])}</th>'
        + "".join(f"<td>{_cell(measure, line, i)}</td>" for line in measure.lines)
        + "</tr>"
        for i in range(len(chart.columns))
    )
    return _numbers(caption, chart.axes[0].partition(" (")[0], head, rows)


def _grid(chart: Chart, measure: Measure, line: Line, several: bool) -> str:
    """A row for each sender cut, a column for each receiver cut."""
    across = len(chart.columns)
    head = "".join(f'<th scope="col">{name(column)}</th>' for column in chart.columns)
    rows = "".join(
        f'<tr><th scope="row">{name(row)}</th>'
        + "".join(f"<td>{_cell(measure, line, i * across + j)}</td>" for j in range(across))
        + "</tr>"
        for i, row in enumerate(chart.rows)
    )
    return _numbers(_caption(chart, measure, f", {line.name}" if several else ""), "sender ↓ receiver →", head, rows)


def _strips(chart: Chart, measure: Measure, strips: Sequence[Line]) -> str:
    """A row for each control that depends on the receiver's cut alone."""
    head = "".join(f'<th scope="col">{name(column)}</th>' for column in chart.columns)
    rows = "".join(
        f'<tr><th scope="row">{name(line.name)}</th>'
        + "".join(f"<td>{_cell(measure, line, j)}</td>" for j in range(len(chart.columns)))
        + "</tr>"
        for line in strips
    )
    return _numbers(_caption(chart, measure, ", controls without the sender"), "receiver cut →", head, rows)


def _caption(chart: Chart, measure: Measure, more: str) -> str:
    return f"{measure.label}{more}"


def _cell(measure: Measure, line: Line, place: int) -> str:
    value = measure.written(float(line.value[place]))
    failed = bool(line.failed[place])
    if not value:
        return "failed" if failed else ""
    spread = measure.interval(line, place)
    return value + ("*" if failed else "") + (f" <small>{spread}</small>" if spread else "")


def _numbers(caption: str, corner: str, head: str, rows: str) -> str:
    return _scrolled(
        caption,
        f'<table class="numbers"><caption>{safe(caption)}</caption><thead><tr><th scope="col">{safe(corner)}</th>{head}'
        f"</tr></thead><tbody>{rows}</tbody></table>",
    )


def _scrolled(caption: str, table: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(caption)}">{table}</div>'

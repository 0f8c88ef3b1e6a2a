"""Tables and sentences for the terminal. Names come out as they are written, whatever they contain."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from suture.measurement.tables.curve import PLAIN, Curve, arrange_curve
from suture.measurement.tables.onset import Onset, Way
from suture.measurement.tables.read import Reading
from suture.measurement.tables.say import asked, name_question, say_mark
from suture.reports.charts import OPEN
from suture.reports.style import MARKS

if TYPE_CHECKING:
    from suture.core.network.cuts import Cuts

FAILED = "failed"


def curve_table(shown: Curve, width: int = 80, fits: Sequence[str] = ()) -> Table:
    """Show a row per cut: the stitched network's score, its penalty with a 95 % interval, and every control's score.

    ``width`` is that of the screen, in characters; ``fits`` say by which fit each row is, if they differ. A value that
    some seeds failed to give has a ``*``, and one whose fit had not converged a ``°``.
    """
    columns = [_scores(shown, PLAIN), _penalties(shown), *(_scores(shown, kind) for kind in shown.controls)]
    for headings in _HEADINGS:
        narrow = bool(headings)  # then the names of the cuts are folded if they must be
        made = new_table(narrow)
        made.add_column("cut", overflow="fold", no_wrap=not narrow)
        made.add_column("stitched", justify="right", no_wrap=True)
        made.add_column("penalty", justify="right", no_wrap=True)
        for heading in shown.controls:
            for word, instead in headings.items():
                heading = heading.replace(word, instead)
            made.add_column(Text(heading), justify="right", style="dim", no_wrap=True)
        if fits:
            made.add_column("by", style="dim", no_wrap=True)
        for row in zip(shown.labels, *columns, *([fits] if fits else []), strict=True):
            made.add_row(*map(Text, row))
        if natural_width(made) <= width:
            break
    return made


def answers_table(reading: Reading, width: int) -> list[RenderableType]:
    """Show a mark for each question at each cut, and a legend of the marks; nothing if nothing was asked.

    Where the names of the cuts have no room, the questions stand beside them instead.
    """
    questions = asked(reading)
    if not questions:
        return []
    names = [name_question(reading, question) for question in questions]
    marks = [
        [(MARKS[mark].glyph if mark else "") + "°" * bool(open_) for mark, open_ in zip(*each, strict=True)]
        for each in ((reading.marks(question), reading.assumed(question)) for question in questions)
    ]
    headings = ("question", *(f"={label}" for label in reading.seams))
    made = lay_out(headings, zip(names, *zip(*marks, strict=True), strict=True))
    if natural_width(made) > width:
        made = lay_out((reading.one, *names), zip(reading.seams, *marks, strict=True))
    held = {(mark, say_mark(reading, q, mark)) for q in questions for mark in reading.marks(q) if mark}
    order = sorted(held, key=lambda one: list(MARKS).index(one[0]))
    legend = [f"{MARKS[mark].glyph} {said}" for mark, said in order]
    if any(reading.assumed(question).any() for question in questions):
        legend.append("° the control had not converged, but is further behind than it could still gain")
    return ["", made, Text(", ".join(legend), style="dim")]


def live_table(tables: Sequence[pd.DataFrame], width: int) -> RenderableType:
    """Show the results of a curve so far: of its previews, the coarsest first, and of the run itself.

    Each seam is shown by the last of them that has all trials that the one before has. Raises ``DataError`` if that is
    not enough for a table.
    """
    latest: dict[str, pd.DataFrame] = {}
    for table in tables:
        for cut in dict.fromkeys(map(str, table["receiver_cut"])):
            rows = table[table["receiver_cut"] == cut]
            if cut not in latest or {*latest[cut]["control"]} <= {*rows["control"]}:
                latest[cut] = rows
    shown = arrange_curve(pd.concat(latest.values()) if latest else tables[-1])
    fits = {cut: _name_fit(rows).removesuffix("()") for cut, rows in latest.items()}
    by = [fits[cut] for cut in shown.cuts]
    legend = ("", Text(f"° {OPEN}", style="dim")) if any(shown.is_open(kind).any() for kind in shown.lines) else ()
    return Group("", curve_table(shown, width, by if len({*by}) > 1 else ()), *legend)


def natural_width(table: Table) -> int:
    """Return the natural width of a table in characters; for a dumb terminal, rich would answer 80."""
    return Console(width=10_000, force_terminal=False).measure(table).maximum


_SHORT = {"untrained": "untr.", "receiver": "recv.", "shuffled": "shuff.", "clustered": "clust.", " ": "\n"}
#: How headings are written, ever narrower.
_HEADINGS: tuple[dict[str, str], ...] = ({}, {" ": "\n"}, {"untrained": "untr.", " ": "\n"}, _SHORT)


def new_table(narrow: bool) -> Table:
    """Make an empty table in the style of all tables."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 0) if narrow else (0, 1), pad_edge=False, show_edge=False)


def lay_out(headings: Iterable[str], rows: Iterable[Iterable[object]], narrow: bool = False) -> Table:
    """Make a table of rows. Headings that begin with ``>`` are of numbers, those with ``=`` of names never broken."""
    made = new_table(narrow)
    for heading in headings:
        side: Literal["left", "right"] = "right" if heading[0] == ">" else "left"
        made.add_column(Text(heading.lstrip(">=")), justify=side, overflow="fold", no_wrap=heading[0] in ">=")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def _scores(shown: Curve, kind: str) -> list[str]:
    """Write the scores of a kind of trial at every cut, marked ° if not converged and * if some seeds failed."""
    values, said = shown.line(kind)["stitched"], []
    for cut, value, open_ in zip(shown.cuts, values, shown.is_open(kind), strict=True):
        failed = (kind, cut) in shown.failed
        if pd.isna(value):
            said.append(FAILED if failed else "")
        else:
            said.append(written(value, shown.percent) + "°" * bool(open_) + "*" * failed)
    return said


def _penalties(shown: Curve) -> list[str]:
    """Write penalties as ``+1.2 [-0.3, 2.8]``, with the brackets of all cuts below one another."""
    digits = 1 if shown.percent else 3
    bounds = [
        [f"{bound:z.{digits}f}" for bound in pair]
        for pair in shown.plain[["penalty_low", "penalty_high"]].to_numpy(float)
    ]
    low, high = (max(len(pair[side]) for pair in bounds) for side in (0, 1))
    return [
        "" if pd.isna(value) else f"{value:+z.{digits}f} [{pair[0]:>{low}}, {pair[1]:>{high}}]"
        for value, pair in zip(shown.plain["penalty"], bounds, strict=True)
    ]


def written(value: float, percent: bool) -> str:
    """Return a score as it is shown: in per cent with one decimal, else with three."""
    return f"{100 * value:.1f}" if percent else f"{value:.3f}"


def curve_heading(shown: Curve) -> str:
    """Describe the table of a curve, and its units."""
    parents = " and ".join(
        f"{getattr(shown, role)} alone {written(shown.parent(role), shown.percent)}"
        for role in ("sender", "receiver")
        if np.isfinite(shown.parent(role))
    )
    units = "in %, penalties in pp" if shown.percent else f"in {shown.unit}" if shown.unit != "raw" else "(no unit)"
    over = f", with 95 % intervals over {shown.intervals}" if shown.intervals else ""
    rows = shown.table[(shown.table["score"] == shown.score) & (shown.table["control"] == PLAIN)]
    used = (rows if len(rows) else shown.table).iloc[0]
    lines = [
        f"{shown.sender} → {shown.receiver}: test {shown.score} {units}{over}",
        "; ".join(filter(None, [parents, f"scored on {used['score_data']}", f"fitted by {used['fit']}"])),
    ]
    if any("°" in cell for kind in shown.lines for cell in _scores(shown, kind)):
        lines.append(f"° {OPEN}")
    if any("*" in cell for kind in shown.lines for cell in _scores(shown, kind)):
        lines.append("* some seeds failed; this is the mean of the others")
    return "\n".join(lines)


def preview_heading(table: pd.DataFrame) -> str:
    """Describe a preview, and its limits."""
    first = table.iloc[0]
    on = f"fitted on {first['fit_data']} and scored on {first['score_data']}"
    lies = "shows roughly where the numbers will lie" if first["plan"] == "matrix" else "shows where the lines will lie"
    return f"Preview by {_name_fit(table)}, {on}: it {lies}, and answers nothing"


def _name_fit(rows: pd.DataFrame) -> str:
    """Name the fit of some rows; a preview that takes no step is called a closed form."""
    fit = str(rows["fit"].iloc[0])
    return "closed form" if fit == "Quick(steps=0)" else fit


def cuts_table(cuts: "Cuts") -> Table:
    """Show a row per cut: name, shape, depth, and parameters and FLOPs up to it."""
    rows = (
        (
            cut.index,
            cut.name,
            "×".join(map(str, cut.shape)),
            f"{cut.depth:.2f}",
            f"{cut.parameters:,}",
            f"{cut.flops / 1e6:,.1f}",
        )
        for cut in cuts
    )
    return lay_out((">#", "cut", ">shape", ">depth", ">parameters", ">MFLOPs"), rows)


def dropped_table(cuts: "Cuts") -> Table:
    """Show a row per tensor that is not a cut, with the reason."""
    return lay_out(("not a cut", "reason"), cuts.dropped.items())


def one_line(text: str) -> str:
    """Return a text without its line breaks, for messages."""
    return re.sub(r"\s+", " ", text).strip()


def failures(table: pd.DataFrame) -> Sequence[str]:
    """Return the three most frequent reasons of failed trials, each once."""
    failed = table[table["status"] == "failed"].drop_duplicates("trial")
    counts = failed["error"].value_counts()
    return [f"{count} × {one_line(str(reason))}" for reason, count in counts.head(3).items()]


# --- where a trait lies -----------------------------------------------------------------------------------------------


def trait_heading(found: Onset) -> str:
    """Describe the table of shares."""
    return (
        f"{found.trait}: what the stitched network conveys of the difference between {found.carrier} (100 %) and "
        f"{found.reference} (0 %),\nin %, with 95 % intervals; ← is the first cut that conveys half of it;\n"
        f"what {found.control} conveys, the stitch has taught"
    )


def trait_record(found: Onset) -> dict[str, Any]:
    """Return an onset as plain values."""
    between = list(found.between) if found.between is not None else None
    made: dict[str, Any] = {"trait": found.trait, "verdict": found.verdict, "between": between}
    made["levels"] = {found.carrier: found.levels[0], found.reference: found.levels[1]}
    return made | {"sending": asdict(found.sending), "receiving": asdict(found.receiving)}


def trait_table(found: Onset) -> Table:
    """Show a row per cut of the carrier: the shares it conveys each way, in %, and those of the control without it."""
    ways = (found.sending, found.receiving)
    cuts = dict.fromkeys((*found.sending.cuts, *found.receiving.cuts))
    headings = ("cut", *(f">{' → '.join(found.ends(way))}" for way in ways), f">{found.control}")
    taught = {
        cut: f"{100 * share:z.0f}"
        for way in ways
        for cut, share in zip(way.cuts, way.control_shares.get(found.control, ()), strict=False)
        if np.isfinite(share)
    }
    return lay_out(headings, ((cut, *(_share(way, cut) for way in ways), taught.get(cut, "")) for cut in cuts))


def _share(way: Way, cut: str) -> str:
    if cut not in way.cuts:
        return ""
    i = way.cuts.index(cut)
    value, low, high = (100 * part[i] for part in (way.shares, way.low, way.high))
    if not np.isfinite(value):
        return ""
    mark = " ←" if cut == way.onset else "  "
    return f"{value:z.0f} [{low:z.0f}, {high:z.0f}]{mark}"

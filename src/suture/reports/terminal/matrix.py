"""Matrices for the terminal: the cells if they have room, and their summary by depth."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from suture.measurement.tables.by_depth import by_depth
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import Block, Matrix, arrange_similarities
from suture.measurement.tables.similarities import SEAM, check_similarities
from suture.measurement.tables.table import Mask, Numbers
from suture.reports.charts import OPEN
from suture.reports.style import name_of, place_of
from suture.reports.terminal.curve import natural_width, new_table, written

_PAIRS = 4  #: pairs of networks whose cells are shown; of more, only means
_PARTS = 3  #: tables below one another that a matrix is broken into, at most
_ROWS = 36  #: pairs of networks with a row of means each
_LABEL = 30  #: letters of a sender's cut, after which it is folded


def matrix_heading(shown: Matrix) -> str:
    """Describe the table of a matrix, and its units."""
    units = "in %" if shown.percent else f"in {shown.unit}" if shown.unit != "raw" else "(no unit)"
    table = shown.table[shown.table["score"] == shown.score]
    used = table.sort_values("control", kind="stable").iloc[0]
    alone = "; ".join(f"{name} alone {written(value, shown.percent)}" for name, value in shown.alone.items())
    seeds = table[table["control"] == used["control"]]["seed"].nunique()
    averaged = f", mean of {seeds} seeds" if seeds > 1 else ""
    lines = [
        f"{shown.title}: test {shown.score} {units}{averaged}; rows are sender cuts, columns receiver cuts",
        "; ".join(filter(None, [alone, f"scored on {used['score_data']}", f"fitted by {used['fit']}"])),
    ]
    marks = {
        "× failed": any((failed & np.isnan(_held(shown, kind))).any() for kind, failed in shown.failed.items()),
        "* some seeds failed; this is the mean of the others": any(
            (failed & np.isfinite(_held(shown, kind))).any() for kind, failed in shown.failed.items()
        ),
    }
    marks[f"° {OPEN}"] = any((held & np.isfinite(_held(shown, kind))).any() for kind, held in shown.open.items())
    lines += [mark for mark, used_here in marks.items() if used_here]
    return "\n".join(lines)


def matrix_tables(shown: Matrix, width: int = 80) -> list[Table | str]:
    """Show the cells of every pair of networks, and below them the measurements with one value per receiver cut.

    ``width`` is that of the screen, in characters; a wide matrix is broken into as many as three tables. Tables that do
    not fit are left out, and a line says so.
    """
    pairs = [(sender, receiver) for sender in shown.senders for receiver in shown.receivers]
    parts: list[Table | str] = []
    for sender, receiver in pairs if len(pairs) <= _PAIRS else ():
        drawn = fitting_tables(shown, sender, receiver, width)
        name: list[Table | str] = [f"{sender.name} → {receiver.name}"] if not shown.single else []
        parts += [*([""] if parts else []), *name, *drawn] if drawn else []
    if not parts:
        cells = f"{shown.plain.shape[0]} × {shown.plain.shape[1]} cells"
        parts = [f"{cells} have no room on a screen of {width} columns; the figure shows them all"]
    return parts


def depth_tables(shown: Matrix, width: int = 80) -> list[Table | str]:
    """Show the means by depth: of every kind of trial, and of every pair of networks if there are several."""
    table, score = shown.table, shown.score
    pooled = by_depth(table, score, pooled=True)
    pooled = pooled.sort_values("control", key=lambda kinds: kinds.map(place_of), kind="stable")
    kinds = [(shown.title if shown.single else "all pairs") if kind == PLAIN else kind for kind in pooled["control"]]
    parts: list[Table | str] = [_depth_table("by depth", kinds, pooled, shown, width)]
    each = by_depth(table[table["control"] == PLAIN], score) if (table["control"] == PLAIN).any() else pooled[:0]
    if 1 < len(each) <= _ROWS:
        names = [f"{sender} → {receiver}" for sender, receiver in zip(each["sender"], each["receiver"], strict=True)]
        parts += ["", _depth_table("pair", names, each, shown, width)]
    return parts


def _held(shown: Matrix, kind: str) -> Numbers:
    return shown.panels[kind] if kind in shown.panels else shown.strips[kind]


def fitting_tables(shown: Matrix, sender: Block, receiver: Block, width: int) -> list[Table | str]:
    """Return the tables of one pair in the widest form that has room; none if there is no such form."""
    cuts = receiver.cuts
    broken = [cut.replace(".", ".\n") for cut in cuts]
    numbers = [str(i) for i in range(1, len(cuts) + 1)]
    for headings, digits in ((cuts, 1), (broken, 1), (broken, 0), (numbers, 1), (numbers, 0)):
        made = _cells(shown, sender, receiver, headings, digits, slice(None))
        if natural_width(made) <= width:
            return [made, *([_key(receiver)] if headings is numbers else [])]
    for count in range(2, _PARTS + 1):
        size = -(-len(cuts) // count)
        slices = [slice(start, start + size) for start in range(0, len(cuts), size)]
        tables = [_cells(shown, sender, receiver, numbers, 0, part) for part in slices]
        if max(map(natural_width, tables)) <= width:
            parted: list[Table | str] = [part for table in tables for part in (table, "")]
            return [*parted[:-1], _key(receiver)]
    return []


def _key(receiver: Block) -> str:
    return "receiver cuts: " + ", ".join(f"{i} {cut}" for i, cut in enumerate(receiver.cuts, start=1))


def _cells(shown: Matrix, sender: Block, receiver: Block, headings: Sequence[str], digits: int, part: slice) -> Table:
    """Return a row per sender cut, then one for each control that depends on the receiver's cut alone."""
    made = new_table(narrow=True)
    longest = max(map(len, (*sender.cuts, *shown.strips)), default=0)
    made.add_column("", overflow="fold", max_width=_LABEL, min_width=min(longest, _LABEL))
    for heading in headings[part]:
        made.add_column(Text(heading), justify="right", no_wrap=True)

    def line(values: Numbers, *masks: Mask) -> list[Text]:
        return [Text(_cell(value, marks, shown, digits)) for value, *marks in zip(values, *masks, strict=True)]

    places = range(receiver.start, receiver.stop)[part]
    none = np.zeros(shown.plain.shape, bool)
    masks = (shown.failed.get(PLAIN, ~none), shown.open.get(PLAIN, none))
    block = (held[sender.places][:, places] for held in (shown.plain, *masks))
    for cut, *row in zip(sender.cuts, *block, strict=True):
        made.add_row(Text(cut), *line(*row))
    for i, (kind, strip) in enumerate(sorted(shown.strips.items(), key=lambda item: place_of(item[0]))):
        if not i:
            made.add_section()
        marks = (held[kind][places] for held in (shown.failed, shown.open))
        made.add_row(Text(name_of(kind, "")), *line(strip[places], *marks), style="dim")
    return made


def _cell(value: float, marks: Sequence[bool], shown: Matrix, digits: int) -> str:
    failed, open_ = map(bool, marks)
    if np.isnan(value):
        return "×" if failed else ""
    number = f"{100 * value:z.{digits}f}" if shown.percent else f"{value:z.{digits + 1}f}"
    return number + "°" * open_ + "*" * failed


def _depth_table(title: str, names: Sequence[str], rows: pd.DataFrame, shown: Matrix, width: int) -> Table:
    for narrow in (False, True):
        made = new_table(narrow)
        made.add_column(title, overflow="fold", no_wrap=not narrow)
        for heading, instead, _ in _SUMMARY:
            made.add_column(instead if narrow else heading, justify="right", no_wrap=True)
        for name, (_, row) in zip(names, rows.iterrows(), strict=True):
            made.add_row(Text(name), *(_mean(row[column], column, shown) for _, _, column in _SUMMARY))
        if natural_width(made) <= width:
            break
    return made


#: Every column of means: its heading, the same in a narrow table, and the column of ``by_depth``.
_SUMMARY = (
    ("mean", "mean", "mean"),
    ("late → early", "late →\nearly", "late_to_early"),
    ("early → late", "early →\nlate", "early_to_late"),
    ("difference", "differ-\nence", "difference"),
    ("near diagonal", "near di-\nagonal", "near"),
    ("elsewhere", "else-\nwhere", "far"),
    ("min", "min", "min"),
    ("max", "max", "max"),
    ("seams", "seams", "cells"),
)


def _mean(value: float, column: str, shown: Matrix) -> str:
    if pd.isna(value):
        return ""
    if column == "cells":
        return f"{value:,}"
    value = value if round(value, 3) else 0.0  # never -0
    return ("+" if column == "difference" and value > 0 else "") + written(value, shown.percent)


# --- similarities -----------------------------------------------------------------------------------------------------


def similarity_heading(similarities: pd.DataFrame) -> str:
    """Describe the similarities, and the number of images. Raises ``DataError`` for any other table."""
    check_similarities(similarities)
    first = similarities.iloc[0]
    how = {"pixels": "a position of a map is a sample", "mean": "an image is a sample, its mean over positions"}
    how |= {end: f"an image is a sample, its {end} token" for end in ("first", "last")}
    means = how.get(str(first["samples_as"]), "an image is a sample")
    of, laid = f"{first['n']:,} images of {first['score_data']}; {means}", "rows are sender cuts, columns receiver cuts"
    if not first["score_data"]:  # arrays that a user brought
        of = f"{first['n']:,} samples" + (f"; {means}" if first["samples_as"] in how else "")
        laid = f"rows are of {first['sender']}, columns of {first['receiver']}"
    single = len(similarities[SEAM].drop_duplicates()) == 1
    return f"{first['sender']} → {first['receiver']}{'' if single else f': {laid}'}\non {of}"


def similarity_tables(similarities: pd.DataFrame, width: int) -> list[Table | str]:
    """Show each index as a grid of cuts, or, of one pair of layers, in a row with its chance, interval and p.

    ``width`` is that of the screen. Raises ``DataError`` if the table is none.
    """
    check_similarities(similarities)
    parts: list[Table | str] = []
    if len(similarities[SEAM].drop_duplicates()) == 1:
        return [_pair_table(similarities)]
    for name, shown in arrange_similarities(similarities).items():
        drawn = fitting_tables(shown, shown.senders[0], shown.receivers[0], width)
        cells = f"{shown.plain.shape[0]} × {shown.plain.shape[1]} cells have no room on a screen of {width} columns"
        parts += [*([""] if parts else []), name, *(drawn or [f"{cells}; the figure shows them"])]
    return parts


def _pair_table(similarities: pd.DataFrame) -> Table:
    """Return a row for each index of one pair of layers: its value, its chance level, and the calibrated value."""
    first = similarities.iloc[0]
    made = new_table(narrow=True)
    made.add_column(f"{first['sender_cut']} → {first['receiver_cut']}", overflow="fold")
    known = bool(similarities["calibrated"].notna().any())
    for heading in ("value", *(("chance", "calibrated", "95 % interval", "p") if known else ())):
        made.add_column(heading, justify="right", no_wrap=True)
    for _, row in similarities.iterrows():
        held = [f"{row['value']:z.3f}"]
        if known:
            ends = f"{row['low']:z.2f} to {row['high']:z.2f}" if pd.notna(row["low"]) else ""
            held += [f"{row['chance']:z.3f}", f"{row['calibrated']:z.2f}", ends, f"{row['p']:.2g}"]
        made.add_row(Text(f"{row['index']}{' (distance)' * (row['direction'] == 'distance')}"), *map(Text, held))
    return made

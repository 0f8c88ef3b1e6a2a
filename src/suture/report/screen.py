"""Tables and sentences for the terminal."""

from collections.abc import Hashable
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from suture.cuts import Cuts
from suture.table import summary

Row = dict[Hashable, Any]

MARGIN = 0.03  #: how much worse a control may be and still count as doing as well
FAILED = "failed"
NARROW = 100  #: columns below which headings are broken over lines


def curve_table(table: pd.DataFrame, score: str = "accuracy", width: int = 80) -> Table:
    """Show a row per cut: the stitched network's score, its penalty with a 95 % interval, and every control's score.

    ``width`` is that of the screen, in characters.
    """
    rows = summary(table[table["score"] == score])
    controls = [kind for kind in dict.fromkeys(rows["control"]) if kind]
    percent = rows["unit"].iloc[0] == "fraction"
    narrow = width < NARROW
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0) if narrow else (0, 1), pad_edge=False, show_edge=False)
    shown.add_column("cut", overflow="fold", no_wrap=not narrow)
    shown.add_column("stitched", justify="right", no_wrap=True)
    shown.add_column("penalty", justify="right", no_wrap=True)
    for kind in controls:
        heading = kind.replace("untrained", "un-\ntrained").replace(" ", "\n") if narrow else kind
        shown.add_column(heading, justify="right", style="dim", no_wrap=True)
    for cut in dict.fromkeys(rows["receiver_cut"]):
        here = {row["control"]: row for row in rows[rows["receiver_cut"] == cut].to_dict("records")}
        shown.add_row(cut, *_plain(here, percent), *(_value(here, kind, percent) for kind in controls))
    return shown


def curve_heading(table: pd.DataFrame, score: str = "accuracy") -> str:
    """Say what the table of a curve shows, in which units."""
    rows = summary(table[table["score"] == score])
    first = rows.to_dict("records")[0]
    percent = first["unit"] == "fraction"
    parents = " and ".join(
        f"{first[role]} alone {_number(first[f'{role}_score'], percent)}"
        for role in ("sender", "receiver")
        if pd.notna(first[f"{role}_score"])
    )
    units = "in %, penalties in pp" if percent else f"in {first['unit']}"
    return (
        f"{first['sender']} → {first['receiver']}: test {score} {units}, with 95 % intervals; {parents}\n"
        f"scored on {first['n']} images of {first['score_data']}; fitted by {first['fit']}"
    )


def _plain(here: dict[str, Row], percent: bool) -> tuple[str, str]:
    stitched = _value(here, "", percent)
    row = here.get("", {})
    if stitched == FAILED or pd.isna(row["penalty"]):
        return stitched, ""
    digits = 1 if percent else 3
    return stitched, f"{row['penalty']:+.{digits}f} [{row['penalty_low']:.{digits}f}, {row['penalty_high']:.{digits}f}]"


def _value(here: dict[str, Row], kind: str, percent: bool) -> str:
    row = here.get(kind)
    return _number(row["stitched"], percent) if row is not None and row["status"] == "ok" else FAILED


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.1f}" if percent else f"{value:.3f}"


def reading(table: pd.DataFrame, score: str = "accuracy") -> str:
    """Say in words what a curve shows: the worst penalty, and what the controls say of it.

    Accuracy only; for other scores and for tables without controls it says what it can.
    """
    rows = summary(table[(table["score"] == score) & (table["status"] == "ok")])
    plain = rows[(rows["control"] == "") & rows["penalty"].notna()]
    if plain.empty:
        return ""
    worst = plain.sort_values("penalty").iloc[-1]
    unit = "pp" if worst["unit"] == "fraction" else worst["unit"]
    spread = f"[{worst['penalty_low']:.1f}, {worst['penalty_high']:.1f}]"
    lines = [f"Worst penalty: {worst['penalty']:+.1f} {unit} {spread} at {worst['receiver_cut']}."]
    if worst["unit"] == "fraction":
        says = "there, success says nothing about what the sender has learned"
        lines += _against(rows, plain, "untrained sender", says)
        lines += _against(rows, plain, "untrained receiver", "there, the stitch alone can do the receiver's work")
    return "\n".join(lines)


def _against(rows: pd.DataFrame, plain: pd.DataFrame, control: str, meaning: str) -> list[str]:
    """At which cuts a control does as well as the real thing."""
    other = rows[rows["control"] == control].set_index("receiver_cut")["stitched"]
    real = plain.set_index("receiver_cut")["stitched"]
    if other.empty:
        return []
    near = [cut for cut in real.index if cut in other.index and real[cut] - other[cut] <= MARGIN]
    if not near:
        return [f"At no cut does an {control} do as well, within {100 * MARGIN:.0f} pp."]
    return [
        f"At {len(near)} of {len(real)} cuts an {control} does as well, within {100 * MARGIN:.0f} pp: {meaning} "
        f"({', '.join(near)})."
    ]


def cuts_table(cuts: Cuts) -> Table:
    """Show a row per cut: name, shape, depth, and parameters and FLOPs up to it."""
    shown = Table(pad_edge=False)
    for name in ("#", "cut", "shape", "depth", "parameters", "MFLOPs"):
        shown.add_column(name, justify="left" if name == "cut" else "right", overflow="fold")
    for cut in cuts:
        shape = "×".join(map(str, cut.shape))
        shown.add_row(
            str(cut.index),
            cut.name,
            shape,
            f"{cut.depth:.2f}",
            f"{cut.parameters:,}",
            f"{cut.flops / 1e6:,.1f}",
        )
    return shown

"""Tables and sentences for the terminal."""

import pandas as pd
from rich.table import Table

from suture.cuts import Cuts
from suture.table import summary


def curve_table(table: pd.DataFrame, score: str = "accuracy") -> Table:
    """Show a row per cut: the stitched network's score and penalty with 95 % intervals, and every control's score."""
    rows = summary(table[table["score"] == score])
    controls = [kind for kind in dict.fromkeys(rows["control"]) if kind]
    first = rows.iloc[0]
    percent = first["unit"] == "fraction"
    shown = Table(title=_title(first, score), title_justify="left", title_style="bold", pad_edge=False)
    shown.add_column("cut")
    shown.add_column("stitched" + (" %" if percent else f" {first['unit']}"), justify="right")
    shown.add_column("penalty " + ("pp" if percent else str(first["unit"])), justify="right")
    for kind in controls:
        shown.add_column(kind, justify="right", style="dim")
    for cut in dict.fromkeys(rows["receiver_cut"]):
        here = rows[rows["receiver_cut"] == cut].set_index("control")
        shown.add_row(cut, *_plain(here, percent), *(_value(here, kind, percent) for kind in controls))
    return shown


def _title(row: "pd.Series[float]", score: str) -> str:
    parents = ", ".join(
        f"{row[role]} {_number(row[f'{role}_score'], row['unit'] == 'fraction')}"
        for role in ("sender", "receiver")
        if pd.notna(row[f"{role}_score"])
    )
    return f"{row['sender']} → {row['receiver']}: test {score} on {row['score_data']} (parents: {parents}; n = {row['n']})"


def _plain(here: pd.DataFrame, percent: bool) -> tuple[str, str]:
    if "" not in here.index or here.loc["", "status"] != "ok":
        return ("failed", "")
    row = here.loc[""]
    scale = 100 if percent else 1
    stitched = _interval(*(row[f"stitched{end}"] * scale for end in ("", "_low", "_high")), signed=False)
    if pd.isna(row["penalty"]):
        return stitched, ""
    return stitched, _interval(*(row[f"penalty{end}"] for end in ("", "_low", "_high")), signed=True)


def _value(here: pd.DataFrame, kind: str, percent: bool) -> str:
    if kind not in here.index or here.loc[kind, "status"] != "ok":
        return "failed"
    return _number(here.loc[kind, "stitched"], percent)


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.1f}" if percent else f"{value:.3f}"


def _interval(value: float, low: float, high: float, signed: bool) -> str:
    return f"{value:{'+' if signed else ''}.1f} [{low:.1f}, {high:.1f}]"


def reading(table: pd.DataFrame, score: str = "accuracy") -> str:
    """Say in words what a curve shows: the worst penalty, and what the controls say of it.

    Accuracy only; for other scores and for tables without controls it says what it can.
    """
    rows = summary(table[(table["score"] == score) & (table["status"] == "ok")])
    plain = rows[(rows["control"] == "") & rows["penalty"].notna()]
    if plain.empty:
        return ""
    worst = plain.loc[plain["penalty"].idxmax()]
    unit = "pp" if worst["unit"] == "fraction" else worst["unit"]
    spread = f"[{worst['penalty_low']:.1f}, {worst['penalty_high']:.1f}]"
    lines = [f"Worst penalty: {worst['penalty']:+.1f} {unit} {spread} at {worst['receiver_cut']}."]
    if worst["unit"] == "fraction":
        lines += _against(rows, plain, "untrained sender", "an untrained sender already gives the receiver")
        lines += _against(rows, plain, "untrained receiver", "an untrained receiver already gets from the sender")
    return "\n".join(lines)


def _against(rows: pd.DataFrame, plain: pd.DataFrame, control: str, words: str) -> list[str]:
    """At how many cuts a control comes within 3 pp of the real thing."""
    other = rows[rows["control"] == control].set_index("receiver_cut")["stitched"]
    real = plain.set_index("receiver_cut")["stitched"]
    if other.empty:
        return []
    near = [cut for cut in real.index if cut in other.index and real[cut] - other[cut] <= 0.03]
    where = f" ({', '.join(near)})" if near else ""
    return [f"At {len(near)} of {len(real)} cuts {words} as much, within 3 pp{where}."]


def cuts_table(cuts: Cuts) -> Table:
    """Show a row per cut: name, shape, depth, and parameters and FLOPs up to it."""
    shown = Table(pad_edge=False)
    for name in ("#", "cut", "shape", "depth", "parameters", "MFLOPs"):
        shown.add_column(name, justify="left" if name == "cut" else "right", overflow="fold")
    for cut in cuts:
        shape = "×".join(map(str, cut.shape))
        shown.add_row(
            str(cut.index), cut.name, shape, f"{cut.depth:.2f}", f"{cut.parameters:,}", f"{cut.flops / 1e6:,.1f}"
        )
    return shown

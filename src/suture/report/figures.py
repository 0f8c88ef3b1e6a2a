"""Figures from tables, in one style: readable in print, in grey and by the colour-blind (Okabe & Ito's palette)."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suture.errors import DataError, OutputError
from suture.table import summary

STYLE: dict[str, Any] = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}

#: Colour, marker and order of every kind of trial.
LOOK = {
    "": ("#0072B2", "o"),
    "itself": ("#009E73", "s"),
    "untrained sender": ("#D55E00", "v"),
    "untrained receiver": ("#E69F00", "^"),
    "untrained both": ("#CC79A7", "D"),
    "shuffled pairs": ("#7F7F7F", "x"),
}
_OTHER = ("#56B4E9", "P")


def curve(table: pd.DataFrame, score: str = "accuracy") -> Figure:
    """Draw a score of the stitched network at every cut, with its controls, its parents and 95 % intervals.

    ``table`` holds one sender and one receiver, any seeds. Raises ``DataError`` where it holds none of that score.
    """
    rows = summary(table[(table["score"] == score) & (table["status"] == "ok")])
    if rows.empty:
        raise DataError(f"the table has no measurement of '{score}' to draw")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        cuts = list(dict.fromkeys(rows["receiver_cut"]))
        figure = Figure(figsize=(6.6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        scale = 100.0 if rows["unit"].iloc[0] == "fraction" else 1.0
        _parents(axes, rows[rows["control"] == ""], scale)
        for kind in sorted(set(rows["control"]), key=_order, reverse=True):
            _line(axes, rows[rows["control"] == kind], kind, cuts, scale)
        _frame(axes, rows, cuts, score, scale)
        _legend(figure, axes, rows)
    return figure


def _order(kind: str) -> int:
    return list(LOOK).index(kind) if kind in LOOK else len(LOOK)


def _parents(axes: Axes, plain: pd.DataFrame, scale: float) -> None:
    for role, dashes in (("receiver", "-"), ("sender", (0, (4, 2)))):
        value = plain[f"{role}_score"].mean() * scale if len(plain) else float("nan")
        if pd.notna(value):
            name = plain[role].iloc[0]
            axes.axhline(
                value,
                color="black",
                linewidth=0.8,
                linestyle=dashes,
                label=f"{name} alone ({role})",
                zorder=1,
            )


def _line(axes: Axes, rows: pd.DataFrame, kind: str, cuts: list[str], scale: float) -> None:
    colour, marker = LOOK.get(kind, _OTHER)
    places = [cuts.index(cut) for cut in rows["receiver_cut"]]
    plain = kind == ""
    label = f"{rows['sender'].iloc[0]} → {rows['receiver'].iloc[0]}" if plain else kind
    axes.fill_between(
        places,
        rows["stitched_low"] * scale,
        rows["stitched_high"] * scale,
        color=colour,
        alpha=0.25 if plain else 0.14,
        linewidth=0,
    )
    axes.plot(
        places,
        rows["stitched"] * scale,
        color=colour,
        marker=marker,
        markersize=4 if plain else 3.2,
        linewidth=1.8 if plain else 1.0,
        label=label,
        zorder=4 if plain else 3,
    )


def _frame(axes: Axes, rows: pd.DataFrame, cuts: list[str], score: str, scale: float) -> None:
    unit = {"fraction": "%"}.get(rows["unit"].iloc[0], rows["unit"].iloc[0])
    axes.set_xticks(range(len(cuts)), cuts, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlabel("cut (input → output)")
    axes.set_ylabel(f"test {score} of the stitched network ({unit})")
    axes.margins(x=0.03)
    if scale == 100.0:
        axes.set_ylim(0, 102)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)


def _legend(figure: Figure, axes: Axes, rows: pd.DataFrame) -> None:
    handles, labels = axes.get_legend_handles_labels()
    over = rows["interval"].iloc[0].removeprefix("t over ")
    count = rows["n"].iloc[0] if over == "test samples" else rows["seeds"].iloc[0]
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="outside right upper",
        title=f"bands: 95 % over\n{count:,} {over}",
        title_fontsize=7,
        alignment="left",
    )


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write a figure as PNG (200 dpi) and PDF beside each other. Raises ``OutputError``."""
    paths = [Path(f"{stem}.png"), Path(f"{stem}.pdf")]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=200)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another folder") from error
    return paths

"""Tables of complexity as charts, figures and text."""

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from rich.table import Table

from suture.common.errors import DataError
from suture.extend import (
    PLAIN,
    WIDTH,
    Chart,
    Line,
    Measure,
    Picture,
    draw_lines,
    fit_height,
    lay_out,
    name_cuts,
    name_of,
    place_of,
    styled,
    without_sender,
)
from suture_papers.complexity.table import MEASURE, name_measure, split_complexity
from suture_papers.reports.legends import legend_above


def arrange(table: pd.DataFrame) -> Chart:
    """Arrange every measure of complexity along the cuts, controls beside the stitched networks.

    ``table`` holds rows of ``complexity`` for one sender and one receiver, with the labels of the seam and, if there
    are controls, a column ``control``. A network that is not stitched has its own name as sender and receiver, and no
    cut. Several rows of a measure and seam are averaged; if a cut was reached from several cuts of the sender, each of
    these has a line. Raises ``DataError`` if it is none, or of several pairs.
    """
    rows, alone = split_complexity(table)
    across = rows[rows["control"] == PLAIN]
    if across.empty:
        raise DataError("the table has no stitched network to draw, only networks alone or controls")
    for role in ("sender", "receiver"):
        names = dict.fromkeys(across[role])
        if len(names) > 1:
            raise DataError(f"a curve has one {role}, and the table has {', '.join(names)}; select the rows of one")
    pair = {role: str(across[role].iloc[0]) for role in ("receiver", "sender")}
    plain = f"{pair['sender']} → {pair['receiver']}"
    cuts = tuple(dict.fromkeys(rows.sort_values("receiver_depth", kind="stable")["receiver_cut"]))
    measures = []
    several = bool((across.groupby("receiver_cut")["sender_cut"].nunique() > 1).any())
    starts = rows["sender_cut"].where(several & ~without_sender(rows), "")
    for key, held in rows.assign(start=starts).groupby(MEASURE, sort=False):
        by_depth = held.sort_values("sender_depth", kind="stable")
        by_seam = by_depth.groupby(["control", "start", "receiver_cut"], sort=False)["value"].mean()
        by_line = by_seam.unstack("receiver_cut", sort=False)
        by_line = by_line.reindex(columns=cuts)
        named = zip(by_line.index.tolist(), by_line.to_numpy(float), strict=True)
        lines = [
            Line.of(kind, name_of(kind, plain) + (f", from {start}" if start else ""), values)
            for (kind, start), values in sorted(named, key=lambda line: place_of(line[0][0]))
        ]
        mine = alone[(alone[MEASURE] == list(key)).all(axis=1)].groupby("sender")["value"].mean()
        levels = {f"{name} alone ({role})": float(mine[name]) for role, name in pair.items() if name in mine}
        measures.append(Measure("Complexity", name_measure(held), "", 3, tuple(lines), levels=levels))
    about = "The complexity of the stitched networks at every cut, from input to output."
    return Chart("curve", f"Complexity of {plain}", about, cuts, tuple(measures))


def plot(table: pd.DataFrame) -> Figure:
    """Draw every measure at every cut, a panel each, controls beside the stitched networks, parents as lines across.

    ``table`` is what ``arrange`` takes. Raises ``DataError`` as it does.
    """
    chart = arrange(table)
    columns = min(3, len(chart.measures))
    rows = -(-len(chart.measures) // columns)
    with styled():
        figure = Picture(figsize=(WIDTH, 6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        entries: dict[str, Artist] = {}
        for axes, measure in zip(panels.flat, chart.measures, strict=False):
            entries |= {name: artist for artist, name in draw_lines(axes, measure)}
            title = measure.of
            title = title.replace(", ", ",\n", 1) if len(title) > 34 else title
            axes.set_title(title, size=6.5, pad=3, parse_math=False)
            axes.set_ylabel("")
            axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4), useMathText=False)
            axes.yaxis.get_offset_text().set_fontsize(6)
            name_cuts(axes, chart.columns, WIDTH / columns)
            axes.set_xlabel("")
        for axes in panels.flat[len(chart.measures) :]:
            axes.set_visible(False)
        for axes in panels.flat[max(0, len(chart.measures) - columns) : len(chart.measures)]:
            axes.tick_params(labelbottom=True)
        figure.supxlabel("cut (input → output)", size=8)
        legend_above(figure, [(artist, name) for name, artist in entries.items()], WIDTH)
        fit_height(figure, list(panels[:, 0]), 0.85 * rows)
    return figure


def complexity_table(table: pd.DataFrame) -> Table:
    """Show a row per measure, a column per cut of the receiver, or per network if none is stitched.

    What was stitched from several networks, or from several cuts to one, has a row for each.
    """
    rows, alone = split_complexity(table)
    shown = rows[rows["control"] == PLAIN] if len(rows) else alone
    shown = shown.assign(column=shown["receiver_cut"] if len(rows) else shown["sender"])
    columns = list(dict.fromkeys(shown.sort_values("receiver_depth", kind="stable")["column"]))
    rows_ = []
    pair = ["sender", "receiver"]
    many = len(rows) > 0 and len(shown[pair].drop_duplicates()) > 1
    wide = len(rows) > 0 and shown.groupby([*pair, "receiver_cut"])["sender_cut"].nunique().max() > 1
    apart = [*MEASURE, *(pair if many else []), *(["sender_cut"] if wide else [])]
    for _, held in shown.groupby(apart, sort=False):
        means, first = held.groupby("column")["value"].mean(), held.iloc[0]
        said = name_measure(held) + (f", {first['sender']} → {first['receiver']}" if many else "")
        said += f", from {first['sender_cut']}" if wide else ""
        rows_.append((said, *(f"{means[name]:.4g}" if name in means else "" for name in columns)))
    return lay_out(("measure", *(f">{name}" for name in columns)), rows_)

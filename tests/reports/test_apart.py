"""What works on activations that the receiver never saw has a cross, or a †, wherever it is shown."""

import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from rich.console import Console

from reported import curve_table, matrix_table, on_curve, on_matrix, run_of
from suture.reports import arrange
from suture.reports.charts import APART
from suture.reports.figures import curve as figures
from suture.reports.figures import matrix as heatmaps
from suture.reports.html.page import render
from suture.reports.html.plot import figure as plotted
from suture.reports.terminal import curve as screen
from suture.reports.terminal import matrix as grids

WORKS = ("stem", "layer2.0")  #: where the trials themselves work and are told apart; elsewhere they do one of both


def marked(table: pd.DataFrame) -> pd.DataFrame:
    plain = table["control"] == ""
    table.loc[plain, "penalty_high"] = np.where(table.loc[plain, "receiver_cut"] == "head", 9.0, 2.0)
    table.loc[~plain, "penalty_high"] = 9.0
    for name in ("mahalanobis", "knn"):
        table[f"apart_{name}"], table[f"apart_{name}_low"], table[f"apart_{name}_high"] = 0.5, 0.4, 0.6
    far = table["receiver_cut"].isin((*WORKS, "head"))
    table.loc[far, ["apart_knn", "apart_knn_low", "apart_knn_high"]] = [0.9, 0.8, 0.95]
    return table


def test_figures_cross_points_and_cells_and_say_what_that_is() -> None:
    drawn = figures.curve(marked(curve_table()))
    for axes in drawn.axes[:2]:
        (crosses,) = [line for line in axes.lines if line.get_marker() == "x" and line.get_color() == "black"]
        assert list(crosses.get_xdata()) == [0, 2]
    assert APART in [text.get_text() for text in drawn.legends[0].get_texts()]
    drawn = heatmaps.matrix(marked(matrix_table()))
    (crosses,) = drawn.axes[0].findobj(LineCollection)
    places = {(int(x), int(y)) for stroke in crosses.get_segments() for x, y in stroke}
    assert places == {(j, i) for j in (0, 2) for i in range(4)}
    assert APART in [text.get_text() for text in drawn.legends[0].get_texts()]


def test_tables_without_it_stay_as_they_are() -> None:
    drawn = figures.curve(curve_table())
    assert APART not in [text.get_text() for text in drawn.legends[0].get_texts()]
    assert "†" not in on_curve(screen.curve_heading, curve_table())
    assert APART not in render(run_of(curve_table()))


def test_the_page_has_crosses_and_a_count() -> None:
    table = marked(curve_table())
    traces = plotted(arrange.curve(table))["data"]
    crosses = [trace["x"] for trace in traces if trace.get("marker", {}).get("symbol") == "x-thin"]
    assert crosses == [[0, 2], [0, 2]]  # of the score and of the penalty
    page = render(run_of(table))
    assert f"A cross, and † in the tables, means {APART}." in page
    assert "At 2 of 4 cuts it works within 3 pp, but on activations" in page
    cells = plotted(arrange.matrix(marked(matrix_table())))["data"]
    assert [len(t["x"]) for t in cells if t.get("marker", {}).get("symbol") == "x-thin"] == [8, 8]


def test_terminal_tables_mark_them_and_say_what_the_mark_is() -> None:
    table = marked(curve_table())
    assert f"† {APART}" in on_curve(screen.curve_heading, table)
    console = Console(width=200)
    with console.capture() as caught:
        console.print(on_curve(screen.curve_table, table))
    assert ["†" in line for line in caught.get().splitlines()[-4:]] == [True, False, True, False]
    matrix = marked(matrix_table())
    assert f"† {APART}" in on_matrix(grids.matrix_heading, matrix)
    with console.capture() as caught:
        for part in on_matrix(grids.matrix_tables, matrix):
            console.print(part)
    assert caught.get().count("†") == 8

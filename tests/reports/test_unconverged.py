"""What had not converged is hollow, ringed or has a ``°`` wherever it is shown, and is never shown as an answer."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.text import Text
from rich.console import Console

from reported import CUTS, curve_figure, curve_table, matrix_figure, matrix_table, on_curve, on_matrix, run_of
from suture.measurement.tables.read import make_reading
from suture.reports import charts
from suture.reports.charts import OPEN
from suture.reports.html.page import render
from suture.reports.terminal import curve as screen
from suture.reports.terminal import matrix as grids

EARLY = ("stem", "layer2.0")  #: where the trials themselves had not converged


def unfinished(table: pd.DataFrame, converged: bool | None = False) -> pd.DataFrame:
    table["converged"] = table["converged"].astype("boolean")
    table.loc[(table["control"] == "") & table["receiver_cut"].isin(EARLY), "converged"] = converged
    return table


def test_figures_draw_hollow_points_and_say_what_they_are() -> None:
    drawn = curve_figure(unfinished(curve_table()))
    for axes in drawn.axes[:2]:
        (hollow,) = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        assert list(hollow.get_xdata()) == [0, 2]
    assert OPEN in [text.get_text() for text in drawn.legends[0].get_texts()]


@pytest.mark.slow
def test_matrices_ring_cells_and_say_what_that_is() -> None:
    drawn = matrix_figure(unfinished(matrix_table()))
    (rings,) = drawn.axes[0].findobj(EllipseCollection)
    assert {(int(x), int(y)) for x, y in rings.get_offsets()} == {(j, i) for j in (0, 2) for i in range(4)}
    assert OPEN in [text.get_text() for text in drawn.legends[0].get_texts()]


@pytest.mark.slow
def test_a_fit_that_never_knows_leaves_figures_as_they_are() -> None:
    drawn = curve_figure(unfinished(curve_table(), None))
    assert OPEN not in [text.get_text() for text in drawn.legends[0].get_texts()]
    assert not matrix_figure(unfinished(matrix_table(), None)).findobj(EllipseCollection)
    assert "°" not in on_curve(screen.curve_heading, unfinished(curve_table(), None))


@pytest.mark.slow
def test_the_page_has_hollow_points_rings_and_a_count() -> None:
    table = unfinished(curve_table())
    page = render(run_of(table))
    assert f"A hollow point, and ° in the tables, means {OPEN}." in page
    assert "The fits at 2 of 4 cuts had not converged; their penalties are upper bounds." in page
    told = [title for title in re.findall(r"<title>(.*?)</title>", page) if "(not converged)" in title]
    assert {title.split(",")[0] for title in told} == {"stem", "layer2.0"}
    matrix = render(run_of(unfinished(matrix_table())))
    cells = re.findall(r"<title>(\S+ → \S+): [^<]*\(not converged\); penalty [^<]*\(not converged\)</title>", matrix)
    assert sorted(cells) == sorted(f"{start} → {end}" for start in CUTS for end in EARLY)
    assert f"A ring in a cell, and ° in the tables, means {OPEN}." in matrix


def test_terminal_tables_mark_them_and_say_what_the_mark_is() -> None:
    table = unfinished(curve_table())
    assert f"° {OPEN}" in on_curve(screen.curve_heading, table)
    console = Console(width=200)
    with console.capture() as caught:
        console.print(on_curve(screen.curve_table, table))
    assert ["°" in line for line in caught.get().splitlines()[-4:]] == [True, False, True, False]
    matrix = unfinished(matrix_table())
    assert f"° {OPEN}" in on_matrix(grids.matrix_heading, matrix)
    with console.capture() as caught:
        for part in on_matrix(grids.matrix_tables, matrix):
            console.print(part)
    assert caught.get().count("°") == 8


def test_seeds_that_had_not_converged_mark_their_mean() -> None:
    seeds = [curve_table(seed=seed) for seed in (0, 1)]
    seeds[1] = unfinished(seeds[1])
    chart = charts.curve(make_reading(pd.concat(seeds, ignore_index=True)))
    assert np.flatnonzero(chart.measures[0].lines[0].is_open).tolist() == [0, 2]


@pytest.mark.slow
def test_what_was_quick_says_so() -> None:
    for table, draw in ((curve_table(), curve_figure), (matrix_table(), matrix_figure)):
        for fit, said in (("Quick()", True), ("Converged()", False)):
            drawn = draw(table.assign(fit=fit))
            written = " ".join(text.get_text() for text in drawn.findobj(Text))
            assert ("fitted by Quick()" in written) == said
    page = render(run_of(curve_table().assign(fit="Quick()")))
    assert "fitted by Quick()." in page

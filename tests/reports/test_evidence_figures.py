"""Figures of similarity and traits, against the tables that they show."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import same_color
from test_onsets import IN_THREE, rows, table
from test_report import CUTS, seen, tabled

from reported import curve_figure
from suture.common.errors import DataError
from suture.measurement.tables.onset import onset
from suture.measurement.tables.read import trait_of
from suture.measurement.tables.similarities import COLUMNS as COMPARED
from suture.reports.charts import OPEN
from suture.reports.figures import curve as curves
from suture.reports.figures import maps
from suture.reports.terminal import curve as screen
from suture.reports.terminal import matrix as grids


def compared(cuts=CUTS, names=("A", "B"), **values: Any) -> pd.DataFrame:
    """Values of indices, (cuts, cuts) each, as ``compare`` gives them."""
    held = [
        {name: "" for name, dtype in COMPARED.items() if dtype == "str"}
        | {"sender": names[0], "receiver": names[1], "sender_cut": start, "receiver_cut": end}
        | {"sender_depth": (i + 1) / len(cuts), "receiver_depth": (j + 1) / len(cuts)}
        | {"index": index, "value": matrix[i][j], "samples_as": "flattened", "score_data": "d/score", "n": 50}
        | {"direction": "distance" if index.endswith("angle") else "similarity"}
        for index, matrix in values.items()
        for i, start in enumerate(cuts)
        for j, end in enumerate(cuts)
    ]
    return pd.DataFrame(held, columns=list(COMPARED)).astype(COMPARED)


def square(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((len(CUTS), len(CUTS)))


def test_heat_maps_show_every_value_from_the_input_on() -> None:
    values = {"linear_cka": square(0), "procrustes_angle": square(1)}
    figure = maps.similarities(compared(**values))
    meshes = [mesh for axes in figure.axes for mesh in axes.collections if isinstance(mesh, QuadMesh)][:2]
    for mesh, matrix in zip(meshes, values.values(), strict=True):
        np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(matrix.shape), matrix)
    assert {"linear_cka", "procrustes_angle\n(distance: 0 is alike)", *CUTS} <= set(seen(figure))
    bright = [mesh.cmap(mesh.norm(value))[:3] for mesh, value in zip(meshes, (1.0, 0.0), strict=True)]
    assert same_color(*bright)  # alike has one colour, whether it is 1 or 0


def test_calibrated_values_are_shown_if_there_are_any() -> None:
    """A distance is one no more: 1 is alike, as of any other index."""
    found = compared(procrustes_angle=square(1)).assign(calibrated=square(2).ravel())
    figure = maps.similarities(found)
    (mesh, *_) = [mesh for axes in figure.axes for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), found["calibrated"])
    assert "procrustes_angle, calibrated" in seen(figure)
    assert mesh.norm.vmax == 1
    assert sum(mesh.cmap(mesh.norm(1.0))[:3]) > sum(mesh.cmap(mesh.norm(0.0))[:3])
    assert grids.similarity_tables(found, 100)[0] == "procrustes_angle, calibrated"


def test_layers_that_were_not_compared_are_hatched() -> None:
    matrix = square(0)
    matrix[1, 2] = np.nan
    figure = maps.similarities(compared(linear_cka=matrix))
    (patch,) = figure.axes[0].patches
    assert patch.get_xy() == (2, 1)


def test_indices_lie_at_the_cuts_of_the_curve() -> None:
    matrix = square(0)
    figure = curve_figure(tabled(), None, compared(linear_cka=matrix))
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), np.diag(matrix))
    assert "linear_cka" in seen(figure)
    assert "A → B" in seen(figure)


@pytest.mark.slow
def test_the_curve_beside_indices_says_what_hollow_points_are() -> None:
    similarities = compared(linear_cka=square(0))
    assert OPEN not in seen(curve_figure(tabled().assign(fit="Converged()", converged=True), None, similarities))
    assert OPEN in seen(curve_figure(tabled().assign(fit="Converged()", converged=False), None, similarities))


def test_the_grid_on_the_screen_has_the_values() -> None:
    matrix = square(0)
    parts = grids.similarity_tables(compared(linear_cka=matrix), 100)
    assert parts[0] == "linear_cka"
    assert [next(iter(column.cells)).plain for column in parts[1].columns[1:]] == [f"{v:.2f}" for v in matrix[0]]
    assert "have no room on a screen of 9 columns" in grids.similarity_tables(compared(linear_cka=matrix), 9)[1]


def test_wrong_tables_of_similarity_are_refused() -> None:
    found = compared(linear_cka=square(0))
    with pytest.raises(DataError, match="not a table of similarities: it has no column 'index'"):
        maps.similarities(found.drop(columns="index"))
    with pytest.raises(DataError, match="it has no row"):
        maps.similarities(found[:0])
    with pytest.raises(DataError, match="several values of"):
        maps.similarities(pd.concat([found, found]))
    with pytest.raises(DataError, match="the table has A, C as sender"):
        maps.similarities(pd.concat([found, compared(names=("C", "B"), rbf_cka=square(0))]))
    with pytest.raises(DataError, match="no seam of A → B in the table was compared"):
        curve_figure(tabled(), None, compared(names=("C", "D"), linear_cka=square(0)))


def test_a_localisation_shows_shares_onset_and_place() -> None:
    control = rows("A", "B", [0.3] * 4, 0.1, control="untrained sender")
    itself = rows("B", "B", [0.1, 0.1, 0.2, 0.1], 0.1, control="itself")
    made = table(rows("A", "B", IN_THREE[0], 0.1), rows("B", "A", IN_THREE[1], 0.9), control, itself)
    found = onset(made, "t", "A", "B")
    figure = curves.localisation(made, found)
    assert found.between == ("two", "three")
    for axes, (colour, marker), shares, first in zip(
        figure.axes, (("#0072B2", "o"), ("#0072B2", "o")), ([0, 0, 100, 100], [100, 100, 0, 0]), (2, 1), strict=True
    ):
        (line,) = (one for one in axes.lines if one.get_marker() == marker and same_color(one.get_color(), colour))
        np.testing.assert_allclose(line.get_ydata(), shares, atol=1e-9)
        (ring,) = (one for one in axes.lines if one.get_markerfacecolor() == "none")
        assert list(ring.get_xdata()) == [first]
        (place,) = axes.patches
        assert (place.get_x(), place.get_width()) == (1, 1)
    controls = {one.get_marker(): one.get_ydata() for one in figure.axes[0].lines}
    np.testing.assert_allclose(controls["v"], [25] * 4)
    np.testing.assert_allclose(controls["<"], [0, 0, 12.5, 0], atol=1e-9)
    assert {"A → B: in one step", "B → A: in one step", "B → B", "where it lies"} <= set(seen(figure))
    unfinished = made.assign(fit="Converged()", converged=False)
    assert OPEN in seen(curves.localisation(unfinished, onset(unfinished, "t", "A", "B")))
    assert OPEN not in seen(figure)
    cells = [list(column.cells) for column in screen.trait_table(found).columns]
    assert [cell.plain for cell in cells[1]] == ["0 [-6, 6]  ", "0 [-6, 6]  ", "100 [94, 106] ←", "100 [94, 106]  "]
    assert [cell.plain for cell in cells[3]] == ["0", "0", "12", "0"]
    record = screen.trait_record(found)
    assert (record["verdict"], record["between"]) == ("localised", ["two", "three"])


def test_directions_that_disagree_are_drawn_each_with_its_own_place() -> None:
    itself = rows("B", "B", [0.1] * 4, 0.1, control="itself")
    made = table(rows("A", "B", IN_THREE[0], 0.1), rows("B", "A", [0.2, 0.1, 0.1, 0.1], 0.9), itself)
    found = onset(made, "t", "A", "B")
    figure = curves.localisation(made, found)
    assert found.verdict == "the directions disagree"
    places = [panel.patches[0] for panel in figure.axes]
    assert [(place.get_x(), place.get_width()) for place in places] == [(1, 1), (-0.5, 0.5)]
    assert {"A → B: in one step", "B → A: not found", "where this direction places it"} <= set(seen(figure))
    assert "where it lies" not in seen(figure)
    assert "the directions disagree" in " ".join(seen(figure))


def test_one_direction_is_drawn_beside_an_empty_panel() -> None:
    ways = rows("A", "B", IN_THREE[0], 0.1, sender_score=0.9), rows("B", "A", IN_THREE[1], 0.9, status="failed")
    made = table(*ways, rows("B", "B", [0.1] * 4, 0.1, control="itself"))
    found = onset(made, *trait_of(made))
    figure = curves.localisation(made, found)
    assert (found.verdict, len(figure.axes)) == ("undecided", 2)
    assert "B → A: undecided" in seen(figure)
    with pytest.raises(DataError, match="no seam B → A; name carrier and reference"):
        trait_of(made[made["status"] == "ok"])

"""Matrices as figures and on the screen, against the tables that they show."""

import re
import warnings
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from rich.console import Console

import suture
from reported import matrix_figure, on_matrix, read
from suture.common.errors import DataError
from suture.fits import LeastSquares
from suture.measurement.tables.matrix import arrange_matrix
from suture.measurement.tables.say import say_matrix
from suture.measurement.tables.table import COLUMNS
from suture.measurement.trials import controls
from suture.reports.terminal import matrix as grids
from trained import few_digits

CONTROLS = ("untrained sender", "untrained receiver", "untrained both", "shuffled pairs")
STRIPS = ("itself", "clustered noise")
RESNET = ("conv1", "relu", "layer1.0", "layer1.1", "layer2.0", "fc")
Cuts = Sequence[str]


def tabled(
    senders: dict[str, Cuts] | None = None,
    receivers: dict[str, Cuts] | None = None,
    *,
    kinds: Sequence[str] = ("", *STRIPS, *CONTROLS),
    unit: str = "fraction",
    **columns: Any,
) -> pd.DataFrame:
    """A table of made-up numbers, every one of them different."""
    senders = senders or {"A": RESNET}
    receivers = receivers or {"B": ("stem", "block1", "block2")}
    random = np.random.default_rng(0)
    rows = []
    for kind in kinds:
        sending = {"": ("",)} if kind == "clustered noise" else senders
        pairs = [(r, r) for r in receivers] if kind == "itself" else [(s, r) for s in sending for r in receivers]
        for sender, receiver in pairs:
            ends = receivers[receiver]
            starts = ends if kind == "itself" else sending[sender]
            for (i, start), (j, end) in product(enumerate(starts, 1), enumerate(ends, 1)):
                if kind == "itself" and i != j:
                    continue
                value = 0.05 + 0.9 * random.random()
                rows.append(
                    {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
                    | {
                        "trial": str(len(rows)),
                        "status": "ok",
                        "control": kind,
                        "stitch": "Conv()",
                        "fit": "TaskLoss()",
                    }
                    | {"sender": sender, "receiver": receiver, "sender_cut": start, "receiver_cut": end}
                    | {"sender_depth": i / len(starts) if sender else None, "receiver_depth": j / len(ends)}
                    | {"seed": 0, "score": "accuracy", "unit": unit, "stitched": value, "score_data": "d/score"}
                    | {"sender_score": None if not sender else 0.1 if "sender" in kind else 0.93}
                    | {"receiver_score": 0.1 if "receiver" in kind else 0.95, "n": 100, "converged": True}
                    | columns
                )
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def failing(table: pd.DataFrame, which: "pd.Series[bool]") -> pd.DataFrame:
    table = table.copy()
    table.loc[which, ["stitched", "sender_score", "receiver_score"]] = np.nan
    table.loc[which, "status"] = "failed"
    return table


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [axes for axes in figure.axes if axes.get_title() == title]
    return found


def values_of(axes: Axes) -> Any:
    """The matrix that a panel shows, as it is coloured: rows from the top; nan where nothing is."""
    (mesh,) = [c for c in axes.collections if isinstance(c, QuadMesh)]
    colours = np.ma.filled(np.ma.asarray(mesh.get_array(), float), np.nan)
    top, bottom = axes.get_ylim()[::-1]
    assert (top, bottom) == (0, colours.shape[0])
    return colours


def strips_of(figure: Figure) -> list[Any]:
    """The strips of cells below the first panel, from the top."""
    return [values_of(axes)[0] for axes in below(figure.axes[0])[1:]]


def below(panel: Axes) -> list[Axes]:
    """The strips below a panel, from the top: that of the receivers alone first."""
    return [axes for axes in panel.child_axes[1:] if isinstance(axes, Axes)]


def said_in(figure: Figure) -> list[str]:
    """Every text beside the cells."""
    drawn(figure)
    return [text.get_text() for text in beside_cells(figure)]


def beside_cells(figure: Figure) -> list[mpl.text.Text]:
    """Names, titles and labels: every text that is drawn and takes room."""
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text().strip() and text.get_visible()]
    hidden = {text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(mpl.text.Text)}
    return [text for text in texts if text.get_in_layout() and text not in hidden]


def expected(table: pd.DataFrame, kind: str, scale: float = 100) -> Any:
    rows = table[table["control"] == kind]
    laid = rows.pivot(index=["sender", "sender_cut"], columns=["receiver", "receiver_cut"], values="stitched")
    down = list(dict.fromkeys(zip(rows["sender"], rows["sender_cut"], strict=True)))
    across = list(dict.fromkeys(zip(rows["receiver"], rows["receiver_cut"], strict=True)))
    return scale * laid.loc[down, across].to_numpy(float)


def drawn(figure: Figure) -> Figure:
    figure.draw_without_rendering()
    return figure


# --- the figure -------------------------------------------------------------------------------------------------------


@cache
def usual() -> Figure:
    """The figure of the usual table, which tests read and do not change."""
    return matrix_figure(tabled())


def test_every_kind_of_trial_has_a_panel_of_its_values() -> None:
    """Rows are senders', the first of them at the top; the matrix is neither square nor symmetric."""
    table, figure = tabled(), usual()
    for kind in ("", *CONTROLS):
        np.testing.assert_allclose(values_of(panel(figure, kind or "A → B")), expected(table, kind))


def test_all_panels_have_one_colour_scale() -> None:
    figure = usual()
    meshes = [c for axes in figure.axes for c in axes.collections if isinstance(c, QuadMesh) and axes.get_title()]
    assert {mesh.get_clim() for mesh in meshes} == {(0, 100)}
    assert {mesh.get_cmap().name for mesh in meshes} == {"viridis"}
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "test accuracy (%)"
    assert bar.get_ylim() == (0, 100)


@pytest.mark.slow
def test_other_units_have_the_scale_of_all_that_is_shown() -> None:
    table = tabled(unit="nats")
    figure = matrix_figure(table)
    shown = [*table["stitched"], *table["sender_score"].dropna(), *table["receiver_score"]]
    meshes = [c for axes in figure.axes for c in axes.collections if isinstance(c, QuadMesh) and axes.get_title()]
    for mesh in meshes:
        assert mesh.get_clim() == pytest.approx((min(shown), max(shown)))
    assert figure.axes[-1].get_ylabel() == "test accuracy (nats)"
    np.testing.assert_allclose(values_of(panel(figure, "A → B")), expected(table, "", scale=1))


def test_what_depends_on_the_receiver_alone_has_a_strip_each() -> None:
    table, figure = tabled(), usual()
    strips = strips_of(figure)
    assert len(strips) == 2
    for strip, kind in zip(strips, STRIPS, strict=True):
        np.testing.assert_allclose(strip, 100 * table[table["control"] == kind]["stitched"].to_numpy(float))
    assert {"receiver to itself", "clustered noise"} <= set(said_in(figure))
    assert not any(axes.get_title() in STRIPS for axes in figure.axes)


def test_the_numbers_in_the_cells_are_the_values() -> None:
    table, figure = tabled(), usual()
    axes = panel(figure, "A → B")
    wanted = expected(table, "")
    written = {(t.get_position()[1] - 0.5, t.get_position()[0] - 0.5): t.get_text() for t in axes.texts}
    assert written == {(i, j): f"{wanted[i, j]:.0f}" for i, j in np.ndindex(*wanted.shape)}


def test_numbers_are_read_on_their_colour() -> None:
    """Contrast by the W3C's formula: at least 3 for every value from 0 to 100 %."""
    table = tabled({"A": [f"s{i}" for i in range(10)]}, {"B": [f"r{i}" for i in range(10)]}, kinds=("",))
    table["stitched"] = np.linspace(0, 1, 100)

    def luminance(colour: Any) -> float:
        rgb = np.array(mpl.colors.to_rgb(colour))
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    axes = panel(matrix_figure(table), "A → B")
    assert len(axes.texts) == 100
    for text in axes.texts:
        x, y = text.get_position()
        below = luminance(mpl.colormaps["viridis"](table["stitched"].iloc[int(10 * (y - 0.5) + (x - 0.5))]))
        light, dark = sorted((luminance(text.get_color()), below), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3


def test_the_networks_alone_stand_at_the_margins() -> None:
    figure = usual()
    alone = {
        title: [[t.get_text() for t in axes.texts] for axes in panel(figure, title).child_axes[:2]]
        for title in ("A → B", "untrained sender", "untrained receiver", "untrained both")
    }
    assert alone["A → B"] == [["93"], ["95"]]
    assert alone["untrained sender"] == [["10"], ["95"]]
    assert alone["untrained receiver"] == [["93"], ["10"]]
    assert {"A alone", "B alone"} <= set(said_in(figure))
    first = panel(figure, "A → B")
    (mesh,) = [c for c in first.child_axes[0].collections if isinstance(c, QuadMesh)]
    assert same_color(mesh.cmap(mesh.norm(mesh.get_array().ravel()[0])), mpl.colormaps["viridis"](0.93))
    box, right, under = (axes.get_window_extent() for axes in (first, *first.child_axes[:2]))
    assert 0 < right.x0 - box.x1 < 0.1 * figure.dpi
    assert 0 < box.y0 - under.y1 < 0.1 * figure.dpi
    assert (right.y0, right.y1, under.x0, under.x1) == pytest.approx((box.y0, box.y1, box.x0, box.x1))


def test_a_line_parts_the_triangles() -> None:
    """Of six sender cuts and three receiver cuts: the cells left of the line have depth i/6 ≥ j/3."""
    axes = panel(usual(), "A → B")
    (line,) = [x for x in axes.lines if len(x.get_xdata()) > 2]
    corners = np.array(line.get_data()).T
    for i in range(1, 7):
        reach = sum(2 * j <= i for j in range(1, 4))
        (across,) = {x for (x, y), (x2, y2) in pairwise(corners) if x == x2 and {y, y2} == {i - 1, i}}
        assert across == reach
    assert (corners[0].tolist(), corners[-1].tolist()) == ([0, 0], [3, 6])


def test_the_means_of_both_halves_are_written_and_drawn() -> None:
    table, figure = tabled(), usual()
    (axes,) = [axes for axes in figure.axes if axes.get_title() == "mean by depth"]
    plain = table[table["control"] == ""]
    late = plain["sender_depth"] >= plain["receiver_depth"] - 1e-9
    means = [100 * plain.loc[half, "stitched"].mean() for half in (late, ~late)]
    drawn_at = [float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    np.testing.assert_allclose(drawn_at[:2], means)
    assert {f"{mean:.0f}" for mean in means} <= {text.get_text() for text in axes.texts}


def test_stages_are_parted_where_there_are_any() -> None:
    """conv1 | relu are no stages; layer1.0, layer1.1 are one."""
    axes = panel(matrix_figure(tabled(receivers={"B": RESNET})), "A → B")
    for place in ("get_xdata", "get_ydata"):
        straight = [list(getattr(x, place)()) for x in axes.lines if len(x.get_xdata()) == 2]
        assert sorted(a for a, b in straight if a == b and a not in (0, 1)) == [2, 4]


@pytest.mark.slow
def test_networks_are_parted_and_named() -> None:
    cuts = {"first": ("a", "b"), "second": ("c", "d", "e")}
    table = tabled(cuts, cuts)
    figure = matrix_figure(table)
    axes = panel(figure, "trained networks")
    np.testing.assert_allclose(values_of(axes), expected(table, ""))
    assert len([x for x in axes.lines if len(x.get_xdata()) > 2]) == 4
    wide = [x for x in axes.lines if len(x.get_xdata()) == 2 and x.get_linewidth() >= 0.8]
    assert sorted((*x.get_xdata(), *x.get_ydata()) for x in wide) == [(0, 1, 2, 2), (2, 2, 0, 1)]
    texts = said_in(figure)
    assert texts.count("first") == texts.count("second") == 2 + 3  # rows of panels and columns of panels
    assert "sender cut (input at the top)" in texts
    assert "receiver (input at the left)" in texts


@pytest.mark.slow
def test_what_failed_and_what_was_not_measured_is_hatched() -> None:
    table = tabled(kinds=("", "untrained sender", "itself"))
    failed = (table["sender_cut"] == "relu") & (table["receiver_cut"] == "block1") & (table["control"] == "")
    failed |= (table["control"] == "itself") & (table["receiver_cut"] == "stem")
    gone = (table["control"] == "untrained sender") & (table["sender_cut"] == "fc")
    figure = matrix_figure(failing(table, failed)[~gone])
    patches = {
        title: {(p.get_x(), p.get_y(), p.get_hatch()) for p in panel(figure, title).patches}
        for title in ("A → B", "untrained sender")
    }
    assert patches["A → B"] == {(1, 1, "xxxx")}
    assert patches["untrained sender"] == {(j, 5, "////") for j in range(3)}
    assert np.isnan(strips_of(figure)[0]).tolist() == [True, False, False]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][3:] == ["not measured", "failed"]
    assert [text.get_text()[:14] for text in matrix_figure(table).legends[0].get_texts()][::3] == ["below the line"]


def test_cuts_run_from_input_to_output_whatever_the_order_of_the_rows() -> None:
    table = tabled()
    figure = matrix_figure(table.sample(frac=1, random_state=1))
    np.testing.assert_allclose(values_of(panel(figure, "A → B")), expected(table, ""))


def test_seeds_are_averaged() -> None:
    table = pd.concat([tabled(kinds=("",)), tabled(kinds=("",), seed=1).assign(stitched=0.2)])
    figure = matrix_figure(table)
    np.testing.assert_allclose(values_of(panel(figure, "A → B")), (expected(tabled(kinds=("",)), "") + 20) / 2)


SIZES: dict[str, tuple[dict[str, Cuts], dict[str, Cuts]]] = {
    "1×1": ({"A": ("x",)}, {"B": ("y",)}),
    "2×9": ({"A": ("one", "two")}, {"B": [f"layer{i}.conv" for i in range(9)]}),
    "13×13": ({"A": [f"stage{i}.norm" for i in range(13)]}, {"B": [f"stage{i}.norm" for i in range(13)]}),
    "30×30": ({"A": [f"layer1.{i}" for i in range(30)]}, {"resnet18 of seed 1": [f"layer1.{i}" for i in range(30)]}),
    "40×3": ({"A": [f"features.{i}" for i in range(40)]}, {"B": ("x", "y", "z")}),
    "sets": (dict.fromkeys(("A", "resnet", "a vision transformer"), RESNET), dict.fromkeys(("A", "mlp"), RESNET)),
    "many": ({f"ResNet({i})": RESNET for i in range(12)}, {f"ResNet({i})": RESNET for i in range(12)}),
}


SLOW = ("sets", "2×9", "13×13", "30×30", "40×3", "many")  #: what drawing takes long


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=[pytest.mark.slow] if size in SLOW else []) for size in SIZES]
)
def test_nothing_overlaps_or_leaves_the_page(size: str) -> None:
    figure = matrix_figure(tabled(*SIZES[size]))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    page = figure.bbox
    shown = [axes for axes in figure.axes if axes.get_visible()]
    places = [part.get_window_extent() for axes in shown for part in (axes, *axes.child_axes)]
    assert not any(_overlap(one, other) for i, one in enumerate(places) for other in places[:i])
    outside = beside_cells(figure)
    boxes = [text.get_window_extent(renderer) for text in outside]
    for text, box in zip(outside, boxes, strict=True):
        assert page.x0 <= box.x0 + 1 < box.x1 <= page.x1 + 1, text
        assert page.y0 <= box.y0 + 1 < box.y1 <= page.y1 + 1, text
        assert not any(_overlap(box, place) for place in places), text
    close = [(a, b) for i, a in enumerate(boxes) for j, b in enumerate(boxes[:i]) if _overlap(a, b, 0.35)]
    assert close == []
    for axes in shown:
        cells = [text.get_window_extent(renderer) for text in axes.texts if not text.get_in_layout()]
        assert all(a.x1 <= b.x0 + 1 for a, b in pairwise(cells) if abs(a.y0 - b.y0) < 1 and b.x0 > a.x0)
    assert figure.get_figwidth() <= 11
    assert {axes.get_title() for axes in figure.axes} >= {*CONTROLS}, "names of controls are not cut short"
    assert all(text.get_fontsize() >= 3 for axes in shown for text in axes.texts)


def _overlap(one: Any, other: Any, slack: float = 0.0) -> bool:
    """Whether two boxes share more than ``slack`` of the lower height or width of the two: text boxes have leading."""
    x = min(one.x1, other.x1) - max(one.x0, other.x0)
    y = min(one.y1, other.y1) - max(one.y0, other.y0)
    return bool(x > slack * min(one.width, other.width) + 0.5 and y > slack * min(one.height, other.height) + 0.5)


@pytest.mark.slow
def test_names_come_out_as_they_are_written() -> None:
    odd = ("$x_1$ [red]", "_y_ → 日本", "a" * 60)
    figure = matrix_figure(tabled({"$a$_": odd}, {"[b]": odd}))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        drawn(figure)
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text()]
    assert all(text._preprocess_math(text.get_text()) == (text.get_text(), False) for text in texts)
    said = {text.get_text() for text in texts}
    assert {"$x_1$ [red]", "$a$_ → [b]", "sender (input at the top)"} <= said


def test_controls_of_the_users_own_have_a_panel_and_come_last() -> None:
    figure = matrix_figure(tabled(kinds=("mine", "untrained sender", "")))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["A → B", "untrained sender", "mine", "mean by depth"]


@pytest.mark.parametrize(
    "kinds",
    [("",), ("clustered noise", "itself"), pytest.param(("untrained sender", "itself"), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_table_with_only_some_kinds_is_shown(kinds: tuple[str, ...]) -> None:
    table = tabled(kinds=kinds)
    if kinds[0] == "clustered noise":
        with pytest.raises(DataError, match="no sender cut × receiver cut to draw, only clustered noise and itself"):
            matrix_figure(table)
    else:
        matrix_figure(table).draw_without_rendering()
    assert on_matrix(grids.matrix_tables, table)
    assert on_matrix(grids.depth_tables, table)
    assert isinstance(read(say_matrix, table), list)
    assert "test accuracy" in on_matrix(grids.matrix_heading, table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (lambda: failing(tabled(), tabled()["seed"] == 0), "to draw: every trial failed"),
        (lambda: pd.concat([tabled(), tabled(fit="Other()")]), "at conv1 → stem, which differ in fit; select the rows"),
        (lambda: pd.concat([tabled(), tabled(stitch="Linear()")]), "which differ in stitch; select the rows"),
    ],
)
def test_what_is_no_matrix_is_refused(table: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        matrix_figure(table())


# --- the screen -------------------------------------------------------------------------------------------------------


def shown(parts: Any, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False, highlight=False, no_color=True, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    return [line.rstrip() for line in captured.get().splitlines()]


def rows_of(lines: Sequence[str], names: Sequence[str]) -> dict[str, list[float]]:
    """The numbers in the lines that begin with a name, those of the same name one after another."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for line in lines:
        for name in sorted(names, key=len, reverse=True):
            if line.startswith(f"{name} "):
                found[name] += [float(x) for x in line.removeprefix(name).split()]
                break
    return found


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("count", [1, 5, 13, 30])
def test_the_cells_on_the_screen_are_those_of_the_table(count: int, width: int) -> None:
    cuts = [f"layer{i // 4}.{i % 4}" for i in range(count)]
    table = tabled(receivers={"B": cuts})
    lines = shown(on_matrix(grids.matrix_tables, table, width=width), width)
    assert max(map(len, lines)) <= width
    wanted = expected(table, "")
    found = rows_of(lines, (*RESNET, "receiver to itself", "clustered noise"))
    for name, values in zip(RESNET, wanted, strict=True):
        np.testing.assert_allclose(found[name], values, atol=0.501)
    for name, kind in (("receiver to itself", "itself"), ("clustered noise", "clustered noise")):
        np.testing.assert_allclose(found[name], 100 * table[table["control"] == kind]["stitched"], atol=0.501)
    text = " ".join(lines)
    assert all(cut in text.replace(". ", ".") or cut.split(".")[0] in text for cut in cuts)


def test_numbered_cuts_are_named_below() -> None:
    cuts = [f"layer{i}.conv" for i in range(13)]
    lines = shown(on_matrix(grids.matrix_tables, tabled(receivers={"B": cuts}), width=80), 80)
    assert lines[0].split() == [str(i) for i in range(1, 14)]
    key = " ".join(lines).partition("receiver cuts: ")[2]
    assert key == ", ".join(f"{i} {cut}" for i, cut in enumerate(cuts, 1))


def test_what_has_no_room_is_said_to_have_none() -> None:
    many = {"B": [f"r{i}" for i in range(99)]}
    assert shown(on_matrix(grids.matrix_tables, tabled(receivers=many, kinds=("",)), width=80), 80) == [
        "6 × 99 cells have no room on a screen of 80 columns; the figure shows them all"
    ]
    networks = dict.fromkeys("ABC", ("x", "y"))
    assert "6 × 6 cells have no room" in shown(on_matrix(grids.matrix_tables, tabled(networks, networks)), 80)[0]


def test_each_pair_of_networks_has_its_own_cells() -> None:
    cuts = {"C": ("a", "b"), "D": ("c",)}
    table = tabled(cuts, cuts, kinds=("",))
    lines = shown(on_matrix(grids.matrix_tables, table), 80)
    wanted = expected(table, "")
    at = lines.index("D → C")
    numbers = [float(x) for x in next(line for line in lines[at:] if line.startswith("c ")).split()[1:]]
    np.testing.assert_allclose(numbers, wanted[2, :2], atol=0.0501)
    assert [line for line in lines if "→" in line] == ["C → C", "C → D", "D → C", "D → D"]


def test_failures_have_marks_that_are_explained() -> None:
    table = pd.concat([tabled(kinds=("",)), tabled(kinds=("",), seed=1)], ignore_index=True)
    here = table["receiver_cut"] == "stem"
    bad = here & ((table["sender_cut"] == "fc") | ((table["sender_cut"] == "relu") & (table["seed"] == 1)))
    broken = failing(table, bad)
    lines = shown(on_matrix(grids.matrix_tables, broken), 80)
    assert re.match(r"fc +× +\d", next(line for line in lines if line.startswith("fc")))
    assert re.match(r"relu +\d+\.\d\* +\d", next(line for line in lines if line.startswith("relu")))
    heading = on_matrix(grids.matrix_heading, broken)
    assert "× failed" in heading
    assert "* some seeds failed" in heading
    assert "failed" not in on_matrix(grids.matrix_heading, table)


def test_the_heading_says_who_what_and_on_which_data() -> None:
    assert on_matrix(grids.matrix_heading, tabled()) == (
        "A → B: test accuracy in %; rows are sender cuts, columns receiver cuts\n"
        "A alone 93.0; B alone 95.0; scored on d/score; fitted by TaskLoss()"
    )
    two = pd.concat([tabled(unit="nats"), tabled(unit="nats", seed=1)])
    assert on_matrix(grids.matrix_heading, two).startswith("A → B: test accuracy in nats, mean of 2 seeds; rows are")


def known(**values: Any) -> pd.DataFrame:
    """Two by two cuts with known scores, by control."""
    kinds = {name.replace("_", " "): scores for name, scores in values.items()}
    table = tabled({"A": ("x", "y")}, {"B": ("u", "v")}, kinds=[k if k != "plain" else "" for k in kinds])
    for kind, scores in kinds.items():
        table.loc[table["control"] == ("" if kind == "plain" else kind), "stitched"] = np.ravel(scores)
    penalties = {f"penalty{end}": 100 * (table["receiver_score"] - table["stitched"]) for end in ("", "_low", "_high")}
    return table.assign(**penalties, stitched_low=table["stitched"], stitched_high=table["stitched"])


def test_what_is_said_of_a_matrix_are_its_headline_its_triangles_and_its_extremes() -> None:
    table = known(plain=[[0.90, 0.40], [0.80, 0.93]], untrained_sender=[[0.88, 0.20], [0.5, 0.5]])
    table = table.assign(penalty_low=table["penalty"], penalty_high=table["penalty"], converged=True)
    assert read(say_matrix, table) == [
        "A works in B at y → v, at most 2.0 points worse than B; at 3 seams it does not.",
        "There it needs the training of A.",
        "Late → early (sender cut at least as deep as receiver cut): 87.7 % on average over 3 seams, 47.7 points "
        "higher than early → late: 40.0 % over 1.",
        "Lowest: 40.0 % at x → v; highest: 93.0 % at y → v.",
    ]


def test_the_reading_says_which_triangle_is_lower_and_what_the_diagonal_says() -> None:
    table = tabled({"A": "xyz"}, {"B": "uvw"}, kinds=("",), unit="nats")
    table["stitched"] = np.ravel([[0.2, 0.5, 0.9], [0.1, 0.2, 0.5], [0.7, 0.1, 0.2]])
    first, second, third = read(say_matrix, table)
    assert first.endswith("0.250 nats on average over 6 seams, 0.383 nats lower than early → late: 0.633 nats over 3.")
    assert second == (
        "Within one cut of the diagonal: 0.257 nats on average over 7 seams, 0.543 nats lower than away from it: "
        "0.800 nats over 2."
    )
    assert third.startswith("Lowest: 0.100 nats at ")


@pytest.mark.parametrize("width", [80, 200])
def test_the_means_by_depth_are_on_the_screen(width: int) -> None:
    table = known(plain=[[0.90, 0.40], [0.80, 0.93]], untrained_sender=[[0.8, 0.2], [0.5, 0.7]], itself=[0.9, 0.8])
    lines = shown(on_matrix(grids.depth_tables, table, width=width), width)
    assert max(map(len, lines)) <= width
    found = rows_of(lines, ("A → B", "untrained sender", "itself"))
    late, near = 100 * (0.9 + 0.8 + 0.93) / 3, 100 * (0.9 + 0.4 + 0.8 + 0.93) / 4
    np.testing.assert_allclose(found["A → B"], [near, late, 40, late - 40, near, 40, 93, 4], atol=0.0501)
    np.testing.assert_allclose(found["untrained sender"][:4], [55, 200 / 3, 20, 140 / 3], atol=0.0501)
    assert found["itself"] == [85, 85, 85, 80, 90, 2]
    assert [line.split("  ")[0] for line in lines[-3:]] != sorted(lines[-3:])


def test_several_pairs_have_a_row_each() -> None:
    cuts = {"C": ("a", "b"), "D": ("c",)}
    table = tabled(cuts, cuts)
    lines = shown(on_matrix(grids.depth_tables, table), 80)
    wanted = expected(table, "")
    found = rows_of(lines, ("all pairs", "C → D", "D → C"))
    assert found["all pairs"][0] == pytest.approx(wanted.mean(), abs=0.0501)
    assert found["C → D"][0] == pytest.approx(wanted[:2, 2].mean(), abs=0.0501)
    assert found["D → C"][0] == pytest.approx(wanted[2, :2].mean(), abs=0.0501)


def test_markup_in_names_comes_out_as_it_is_written() -> None:
    table = tabled({"[blue]A[/]": ("[red]", ":boom:")}, {"B": ("[i]x", "y")})
    text = "\n".join(shown([*on_matrix(grids.matrix_tables, table), *on_matrix(grids.depth_tables, table)], 120))
    for name in ("[red]", ":boom:", "[i]x", "[blue]A[/] → B"):
        assert name in text


# --- a real one -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_matrix_is_arranged_drawn_and_shown() -> None:
    torch.manual_seed(0)
    c, d = (suture.load_network("zoo:mlp,width=16,depth=2", example=few_digits().example, name=name) for name in "CD")
    settings: dict[str, Any] = {"data": few_digits(), "fit": LeastSquares(), "cuts": ("block[12].relu", "flatten")}
    chosen = (controls.itself, controls.untrained_sender, controls.clustered_noise)
    table = suture.run(suture.measurement.trials.plans.matrix([c, d], d, controls=chosen, **settings))
    arranged = arrange_matrix(table, "accuracy")
    assert arranged.plain.shape == (6, 3)
    assert {kind: strip.shape for kind, strip in arranged.strips.items()} == {"itself": (3,), "clustered noise": (3,)}
    assert np.isfinite(arranged.plain).all()
    itself, alone = arranged.strips["itself"], arranged.parents[""][1][0]
    np.testing.assert_allclose(itself, alone, atol=0.02)
    row = table[(table["control"] == "") & (table["score"] == "accuracy") & (table["sender"] == "C")]
    row = row[(row["sender_cut"] == "flatten") & (row["receiver_cut"] == "block2.relu")]
    assert arranged.plain[0, 2] == row["stitched"].iloc[0]
    for score in ("accuracy", "loss"):
        figure = matrix_figure(table, score)
        figure.draw_without_rendering()
        better, worse = (figure.axes[0].collections[0].cmap(end) for end in ((1.0, 0.0), (0.0, 1.0))[score == "loss"])
        assert sum(better[:3]) > sum(worse[:3])  # bright is better
        assert len(shown(on_matrix(grids.matrix_tables, table, score), 80)) > 8
        assert "Late → early" in read(say_matrix, table, score)[0]

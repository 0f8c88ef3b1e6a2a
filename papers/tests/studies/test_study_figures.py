"""Figures of studies, against the planted tables that they show."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from suture.common.errors import DataError
from suture.measurement.tables.table import COLUMNS
from suture.reports import style
from suture.reports.figures import curve as figures
from suture_papers import Figure as Read
from suture_papers import Panel, Study, Where
from suture_papers.reports.figures import figure, panel_for_page
from suture_papers.reports.panels import arrange_panels
from suture_papers.reports.terminal import number, written

CUTS = ("stem", "early", "middle", "late")
FOUND = "not measured"


def row(sender: str, cut: str, seed: int, accuracy: float, **columns: Any) -> dict[str, Any]:
    """A row of the receiver R, whose own accuracy is 0.9."""
    text = {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
    depth = (CUTS.index(cut) + 1) / len(CUTS)
    return (
        text
        | {"trial": f"{sender} {cut} {seed}", "status": "ok", "sender": sender, "receiver": "R", "n": 100, "seed": 0}
        | {"sender_cut": cut, "receiver_cut": cut, "sender_depth": depth, "receiver_depth": depth}
        | {"network_seed": seed, "score": "accuracy", "unit": "fraction", "receiver_score": 0.9}
        | {"stitched": accuracy, "penalty": 90 - 100 * accuracy, "fit": "Converged()"}
        | columns
    )


def tables(*rows: dict[str, Any]) -> dict[str, pd.DataFrame]:
    made = pd.DataFrame(list(rows), columns=list(COLUMNS)).astype(COLUMNS)
    return {"trials": made.assign(published=made["fit"] != "Converged()")}


def curve(sender: str, first: float, seeds: int = 3, **columns: Any) -> list[dict[str, Any]]:
    """Accuracy falls by 0.1 a cut; seed 1 is 0.02 above seed 0, and so on."""
    return [
        row(sender, cut, seed, first - 0.1 * i + 0.02 * seed, **columns)
        for seed in range(seeds)
        for i, cut in enumerate(CUTS)
    ]


def drawn(made: dict[str, pd.DataFrame], *panels: Panel) -> Figure:
    return figure(Study("x-1", "title", "question?", "section 1", lambda scale: [], (), panels), made)


def panel_of(made: dict[str, pd.DataFrame], panel: Panel) -> Any:
    """The first axes, as matplotlib has them."""
    return drawn(made, panel).axes[0]


def lines(*names: str, column: str = "stitched", label: str = "accuracy [%]", **more: Any) -> Panel:
    return Panel("lines", column, label, tuple((name, Where(sender=name)) for name in names), **more)


def line(axes: Any, i: int = 0) -> Any:
    """The lines with a marker for each cut, as the legend has them."""
    return [one for one in axes.lines if len(one.get_xdata()) > 2 and one.get_linestyle() != "None"][i]


def legend(axes: Any) -> list[str]:
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found is not None else []


def rows_of(figure: Figure) -> list[list[float]]:
    """The left ends of the panels, row by row from the top."""
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    boxes = [axes.get_position() if axes.figure is figure else axes.get_window_extent() for axes in shown]
    tops = sorted({round(box.y1) for box in boxes}, reverse=True)
    return [sorted(box.x0 for box in boxes if round(box.y1) == top) for top in tops]


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_is_the_mean_over_seeds_in_per_cent() -> None:
    axes = panel_of(tables(*curve("A", 0.8)), lines("A"))
    np.testing.assert_allclose(line(axes).get_ydata(), [82, 72, 62, 52])
    assert axes.get_ylabel() == "accuracy (%)"


def test_a_band_is_students_interval_over_networks_and_dots_are_the_pairs() -> None:
    """Of three numbers 2 apart: 4.303 × 2 / √3, from a printed table."""
    axes = panel_of(tables(*curve("A", 0.8)), lines("A"))
    (band,) = axes.collections
    vertices = band.get_paths()[0].vertices
    for i, mean in enumerate([82, 72, 62, 52]):
        at = vertices[vertices[:, 0] == i][:, 1]
        assert (at.min(), at.max()) == pytest.approx((mean - 4.968, mean + 4.968), abs=1e-3)
    (dots,) = [one for one in axes.lines if one.get_linestyle() == "None"]
    assert sorted(dots.get_ydata())[:3] == pytest.approx([50, 52, 54])


@pytest.mark.parametrize("seeds", [1, 7])
def test_one_seed_or_many_have_no_dots(seeds: int) -> None:
    axes = panel_of(tables(*curve("A", 0.7, seeds)), lines("A"))
    assert not [one for one in axes.lines if one.get_linestyle() == "None"]


def test_penalties_stay_in_points() -> None:
    axes = panel_of(tables(*curve("A", 0.8)), lines("A", column="penalty", label="penalty [pp]"))
    np.testing.assert_allclose(line(axes).get_ydata(), [8, 18, 28, 38])
    assert axes.get_ylabel() == "penalty (pp)"


def test_stitch_seeds_of_a_pair_are_averaged_before_pairs_are() -> None:
    """Seed 0 has two stitches, seed 1 one: the mean over pairs is 55, over rows it would be 53.3."""
    made = tables(row("A", "stem", 0, 0.4), row("A", "stem", 0, 0.6) | {"seed": 1}, row("A", "stem", 1, 0.6))
    axes = panel_of(made, lines("A"))
    (first,) = [one for one in axes.lines if one.get_marker() == "o"]
    assert first.get_ydata() == pytest.approx([55])


def test_cuts_run_from_input_to_output_whatever_the_order_of_the_rows() -> None:
    axes = panel_of(tables(*reversed(curve("A", 0.8))), lines("A"))
    assert [text.get_text() for text in axes.get_xticklabels()] == list(CUTS)
    np.testing.assert_allclose(line(axes).get_ydata(), [82, 72, 62, 52])


def test_a_group_is_drawn_at_its_own_cuts() -> None:
    axes = panel_of(tables(*curve("A", 0.8), *curve("B", 0.9)[1:4]), lines("A", "B"))
    assert line(axes, 1).get_xdata().tolist() == [1, 2, 3]


def test_controls_are_drawn_where_they_are_named_and_nowhere_else() -> None:
    made = tables(*curve("A", 0.8), *curve("A", 0.4, control="untrained sender"))
    untrained = ("untrained", Where(control="untrained sender"))
    axes = panel_of(made, Panel("lines", "stitched", "accuracy [%]", (("A", Where()), untrained)))
    np.testing.assert_allclose(line(axes, 0).get_ydata(), [82, 72, 62, 52])
    np.testing.assert_allclose(line(axes, 1).get_ydata(), [42, 32, 22, 12])
    assert line(axes, 1).get_color() == style.LOOK["untrained sender"][0]


def test_along_takes_the_cuts_of_the_other_side() -> None:
    made = tables(*(one | {"receiver_cut": "out", "receiver_depth": 1.0} for one in curve("A", 0.8)))
    axes = panel_of(made, lines("A", along="sender_cut"))
    assert [text.get_text() for text in axes.get_xticklabels()] == list(CUTS)
    assert axes.get_xlabel() == "cut of the sender (input → output)"


def test_the_threshold_and_the_receivers_are_drawn_and_named() -> None:
    axes = panel_of(tables(*curve("A", 0.8)), lines("A", "A", level=3.0, baseline=True))
    flat = sorted(float(one.get_ydata()[0]) for one in axes.lines if len(one.get_xdata()) == 2)
    assert flat == pytest.approx([3.0, 90.0])
    assert legend(axes) == ["A", "A", "receiver alone", "threshold: 3 %"]


def test_what_was_not_measured_is_named_so() -> None:
    axes = panel_of(tables(*curve("A", 0.8)), lines("A", "B"))
    assert legend(axes) == ["A", f"B: {FOUND}"]
    assert len([one for one in axes.lines if one.get_marker() in ("o", "s")]) == 1
    nothing = panel_of(tables(*curve("A", 0.8)), lines("B", "C"))
    assert FOUND in [text.get_text() for text in nothing.texts]
    assert panel_of({}, lines("B")).lines[:] == []


def test_every_line_has_its_own_look() -> None:
    names = [f"net {i}" for i in range(11)]
    axes = panel_of(tables(*(one for name in names for one in curve(name, 0.8))), lines(*names))
    looks = {(line(axes, i).get_color(), line(axes, i).get_linestyle()) for i in range(11)}
    assert len(looks) == 11


def test_a_control_that_all_lines_share_tells_none_apart() -> None:
    groups = tuple((name, Where(sender=name, control="clustered noise")) for name in ("A", "B"))
    made = tables(*curve("A", 0.8, control="clustered noise"), *curve("B", 0.7, control="clustered noise"))
    axes = panel_of(made, Panel("lines", "stitched", "accuracy [%]", groups))
    assert [line(axes, i).get_color() for i in range(2)] == ["#0072B2", "#D55E00"]


def test_the_page_has_the_looks_of_the_printed_figure() -> None:
    kinds = ("", "clustered noise", "", "itself")
    names = [f"net {i}" for i in range(4)]
    groups = tuple((name, Where(sender=name, control=kind)) for name, kind in zip(names, kinds, strict=True))
    made = tables(*(one for name, kind in zip(names, kinds, strict=True) for one in curve(name, 0.8, control=kind)))
    for kind in ("lines", "bars"):
        panel = Panel(kind, "stitched", "accuracy [%]", groups)
        axes = panel_of(made, panel)
        printed = [to_hex(patch.get_facecolor()) for patch in axes.patches]
        if kind == "lines":
            printed = [line(axes, i).get_color() for i in range(4)]
        assert len(set(printed)) == 4


def test_every_mark_of_a_panel_says_on_a_page_what_it_is() -> None:
    made = tables(*curve("A", 0.8), *curve("B", 0.7))
    groups = (("A", Where(sender="A")), ("B", Where(sender="B")))
    for kind in ("lines", "bars"):
        (chart,) = arrange_panels([Panel(kind, "stitched", "accuracy [%]", groups)], made)
        (measure,) = chart.measures
        wanted = {
            f"{place}{f', {line.name}' if kind == 'lines' else ''}: {measure.say(line, i)}"
            for line in measure.lines
            for i, place in enumerate(chart.columns)
        }
        drawn = panel_for_page(chart)
        assert isinstance(drawn, figures.Picture)
        assert {one.said for one in drawn.told} == wanted
        assert all("%" in said for said in wanted)


def test_rows_that_several_panels_show_look_the_same_in_all() -> None:
    made = tables(*(one for name in "ABC" for one in curve(name, 0.8)), *curve("C", 0.8, control="clustered noise"))
    noise = Panel("lines", "stitched", "", (("C", Where(sender="C")), ("noise", Where(control="clustered noise"))))
    panels = [lines("A", "B"), lines("B", "C"), noise, lines("B", "B")]
    looks = [[line.looks[0] for line in chart.measures[0].lines] for chart in arrange_panels(panels, made)]
    (_, b), (_, c) = looks[:2]
    assert [b, c] == looks[1]
    assert looks[2] == [c, (*style.LOOK["clustered noise"], "-")]
    assert b == looks[3][0] != looks[3][1]
    assert b != c
    assert arrange_panels([], made) == []


def test_heat_maps_that_are_alone_in_their_panels_lie_beside_each_other() -> None:
    made = tables(*matrix("A", 0), *matrix("B", 0))
    one, two, both = (
        Panel("map", "stitched", "accuracy", tuple((name, Where(sender=name)) for name in names), title=names)
        for names in ("A", "B", "AB")
    )
    maps = [axes for axes in drawn(made, one, two).axes if any(isinstance(c, QuadMesh) for c in axes.collections)]
    shown = [axes for axes in maps if axes.get_title()]
    assert [axes.get_title() for axes in shown] == ["A", "B"]
    drawn_at = [axes.get_window_extent() for axes in shown]
    assert drawn_at[0].y0 == pytest.approx(drawn_at[1].y0, abs=2)
    assert drawn_at[0].x1 < drawn_at[1].x0
    assert drawn(made, one, both).get_size_inches()[1] > 1.5 * drawn(made, one, two).get_size_inches()[1]


def test_large_numbers_are_written_shortly() -> None:
    made = tables(*(row("A", cut, 0, 3e6 * (1 + i), unit="bits") for i, cut in enumerate(CUTS)))
    axes = panel_of(made, lines("A", label="gzip size [bits]"))
    axes.figure.canvas.draw()
    assert axes.yaxis.get_offset_text().get_text() == ""
    assert all(re.fullmatch(r"[\d.]+ M|0", text.get_text()) for text in axes.get_yticklabels())


def test_legends_cover_nothing() -> None:
    names = [f"a network with quite a long name, number {i}" for i in range(9)]
    made = tables(*(one for name in names for one in curve(name, 0.8)))
    page = drawn(made, lines(*names, title="One"), lines(*names[:2], level=1.0), lines("B", title="Three"))
    FigureCanvasAgg(page)
    page.canvas.draw()
    renderer = page.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = []
    for axes in page.axes:
        box = axes.get_window_extent(renderer)
        boxes.append(box)
        if (found := axes.get_legend()) is not None:
            above = found.get_window_extent(renderer)
            assert above.y0 >= box.y1 - 1
            assert above.x1 <= page.bbox.x1
            assert above.y1 <= page.bbox.y1
            boxes.append(above)
    overlaps = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.shrunk(0.98, 0.98).overlaps(b)]
    assert not overlaps


def test_two_panels_lie_beside_each_other_and_many_cuts_have_a_row() -> None:
    made = tables(*curve("A", 0.8))
    assert [len(part) for part in rows_of(drawn(made, lines("A"), lines("A"), lines("A")))] == [2, 1]
    wide = tables(*(row("A", "stem", 0, 0.5, receiver_cut=f"c{i}", receiver_depth=i / 20) for i in range(20)))
    assert [len(part) for part in rows_of(drawn(wide, lines("A"), lines("A")))] == [1, 1]


def test_networks_alone_have_no_place_among_cuts() -> None:
    made = tables(*curve("A", 0.8), *(row("A", "stem", seed, 0.99, sender_cut="") for seed in range(3)))
    axes = panel_of(made, lines("A", along="sender_cut"))
    assert [text.get_text() for text in axes.get_xticklabels()] == list(CUTS)


# --- bars and maps ----------------------------------------------------------------------------------------------------


def test_a_bar_is_the_mean_over_seeds() -> None:
    groups = tuple((name, Where(sender=name)) for name in ("A", "B", "C"))
    made = tables(*curve("A", 0.8), *curve("B", 0.6))
    axes = panel_of(made, Panel("bars", "stitched", "accuracy", groups, level=50.0))
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([67, 47])
    written = [text.get_text().strip() for text in axes.texts]
    assert written == ["67.0", "47.0", FOUND]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B", "C"]
    top, bottom = axes.get_ylim()[::-1]
    assert top < 0 < 2 < bottom
    assert axes.get_xlabel() == "accuracy (%); dashed: threshold: 50 %"


def test_panels_in_per_cent_share_their_limits_and_penalties_need_not() -> None:
    made = tables(*curve("A", 0.9), *curve("B", 0.4))
    bars = [Panel("bars", "stitched", f"accuracy of {name}", ((name, Where(sender=name)),)) for name in ("A", "B")]
    for panels in ([lines("A"), lines("B")], bars):
        one, other = drawn(made, *panels).axes
        assert (one.get_xlim(), one.get_ylim()) == (other.get_xlim(), other.get_ylim())
    one, other = drawn(made, *(lines(n, column="penalty", label="penalty [pp]") for n in "AB")).axes
    assert one.get_ylim() != other.get_ylim()


def matrix(sender: str, seed: int, plus: float = 0.0) -> list[dict[str, Any]]:
    return [
        row(sender, down, seed, 0.1 * i + 0.01 * j + plus, receiver_cut=across, receiver_depth=(j + 1) / len(CUTS))
        for i, down in enumerate(CUTS)
        for j, across in enumerate(CUTS)
    ]


def test_a_map_has_senders_down_and_receivers_across() -> None:
    made = tables(*matrix("A", 0), *matrix("A", 1, 0.2))
    axes = panel_of(made, Panel("map", "stitched", "accuracy", (("A", Where(sender="A")), ("B", Where(sender="B")))))
    (mesh,) = [one for one in axes.collections if isinstance(one, QuadMesh)]
    wanted = [[10 * i + j + 10 for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(np.asarray(mesh.get_array(), float), wanted)
    assert mesh.get_clim() == (0, 100)
    assert axes.get_ylim() == (4, 0)
    assert [text.get_text() for text in axes.get_yticklabels()] == list(CUTS)
    assert {text.get_position(): text.get_text() for text in axes.texts}[0.5, 3.5] == "40"


def test_a_stair_parts_late_to_early_from_the_rest() -> None:
    axes = panel_of(tables(*matrix("A", 0)), Panel("map", "stitched", "accuracy", (("A", Where()),)))
    (stair,) = axes.lines
    steps = {y: x for (x, y), (x2, _) in pairwise(np.array(stair.get_data()).T.tolist()) if x == x2}
    assert steps == {0: 1, 1: 2, 2: 3, 3: 4}


def test_maps_of_a_panel_share_a_scale_and_what_is_missing_is_said() -> None:
    made = tables(*(one | {"representation_error": one["stitched"]} for one in matrix("A", 0)[1:]))
    made["trials"].loc[0, "representation_error"] = 3.0
    groups = (("A", Where(sender="A")), ("B", Where(sender="B")))
    page = drawn(made, Panel("map", "representation_error", "error", groups, title="Copies"))
    (mesh,) = [c for axes in page.axes for c in axes.collections if isinstance(c, QuadMesh) and axes.get_title()]
    assert mesh.get_clim() == pytest.approx((0.02, 3.0))
    assert len(page.axes[0].patches) == 1
    assert [text.get_text() for text in page.axes[1].texts] == [FOUND]


def test_a_panel_without_numbers_is_only_named_beneath() -> None:
    many = [lines(name, title=f"The panel of a network called {name}") for name in "ABCDEF"]
    page = drawn(tables(*curve("A", 0.8)), *many)
    assert len(page.axes) == 1
    said = next(text for text in page.findobj(Text) if "means over" in text.get_text())
    assert f"{FOUND}: {', '.join(panel.title for panel in many[1:])}" in said.get_text().replace("\n", " ")
    page.draw_without_rendering()
    assert said.get_window_extent().x0 >= 0
    assert len(drawn(tables(*curve("G", 0.8)), *many).axes) == len(many)


# --- all of it --------------------------------------------------------------------------------------------------------


def test_a_study_without_panels_has_no_figure() -> None:
    with pytest.raises(DataError, match="x-1 has no figure"):
        drawn(tables(*curve("A", 0.8)))


def test_a_figure_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    made = tables(*curve("A", 0.8), *matrix("B", 0))
    panels = (lines("A", level=2.0), Panel("map", "stitched", "accuracy", (("B", Where(sender="B")),)))
    for name in ("one", "two"):
        figures.save(drawn(made, *panels), tmp_path / name)
    for end in figures.KINDS:
        assert (tmp_path / f"one.{end}").read_bytes() == (tmp_path / f"two.{end}").read_bytes()


def test_other_tables_are_drawn_too() -> None:
    values = pd.DataFrame({"network_seed": [0, 1], "sender": "A", "accuracy": [0.5, 0.7], "unit": "fraction"})
    panel = Panel("bars", "accuracy", "test accuracy [%]", (("A", Where("networks", sender="A")),))
    axes = panel_of({"networks": values}, panel)
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([60])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0.0"), (-0.001, "-0.001"), (0.123, "0.12"), (-0.00001, "-1e-05"), (12.34, "12.3"), (1234.5, "1,234.5"),
        (999_999.4, "999,999.4"), (-2.236e7, "-22.4 M"), (8.33e7, "83.3 M"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_that_tell_something(value: float, said: str) -> None:
    assert number(value) == said


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "said"),
    [
        (1.4, 0.9, 1.9, "pp", "1.40 pp [0.90, 1.90]"),
        (-0.44, -0.97, 0.0865, "pp", "-0.44 pp [-0.97, 0.09]"),
        (5.66, -8.12, 19.4, "pp", "5.7 pp [-8.1, 19.4]"),
        (0.99693, 0.99658, 0.99728, "ratio", "0.9969 ratio [0.9966, 0.9973]"),
        (-2.236e7, -2.25e7, -2.23e7, "bits", "-22.4 Mbits [-22.5, -22.3]"),
        (0.0, 0.0, 0.0, "%", "0.0 % (all alike)"),
        (100.0, 100.0, 100.0, "%", "100.0 % (all alike)"),
        (0.3, 0.3 - 6e-17, 0.1 + 0.2, "", "0.30 (all alike)"),
        (2.28e-10, -1.95e-10, 6.51e-10, "", "2.28e-10 [-1.95e-10, 6.51e-10]"),
        (float("inf"), 1.0, 2.0, "", "inf [1.00, 2.00]"),
        (3.1, float("nan"), float("nan"), "pp", "3.10 pp"),
    ],
)  # fmt: skip
def test_a_figure_and_its_interval_have_the_same_digits(
    value: float, low: float, high: float, unit: str, said: str
) -> None:
    assert written(Read(value, low, high, 3, 3), unit) == said

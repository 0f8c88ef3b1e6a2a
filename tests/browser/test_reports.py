"""Reports in a browser: of a curve, of a matrix with four controls, and of a study."""

import re
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from opened import Open, Opened

from reported import CONTROLS, CUTS, NASTY, curve_table, matrix_table, run_of, similarities
from suture.measurement.tables.read import read_scores
from suture.reports import arrange
from suture.reports.html import read, render
from suture_papers import run_study, scale_named, study_named

pytestmark = pytest.mark.browser

PLOT = ".plot .main-svg:first-child"
STUDY = "smith-4.2"


@pytest.fixture(scope="module")
def curve() -> str:
    """The page of a curve with all controls."""
    return render(run_of(curve_table(), similarities()))


@pytest.fixture(scope="module")
def matrix() -> str:
    """The page of a matrix with four controls, two strips and two indices."""
    return render(run_of(matrix_table(), similarities()))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a study, run at tiny scale."""
    folder = tmp_path_factory.mktemp("study")
    run_study(study_named(STUDY), scale_named("tiny"), folder).save(folder / "results")
    return render(read(folder))


def hovered(opened: Opened, x: float, y: float, place: str) -> str:
    """Point at a place of the first figure, in its own coordinates; what the label beside it says of the place."""
    opened.page.locator(".plot").first.scroll_into_view_if_needed()
    at = opened.page.evaluate(
        """([x, y]) => {
          const plot = document.querySelector(".plotly-graph-div");
          const { xaxis, yaxis } = plot._fullLayout;
          const box = plot.getBoundingClientRect();
          return [box.x + xaxis._offset + xaxis.l2p(x), box.y + yaxis._offset + yaxis.l2p(y)];
        }""",
        [x, y],
    )
    opened.page.mouse.move(*at)
    opened.page.locator(".hoverlayer .hovertext", has_text=place).wait_for()
    lines = opened.page.locator(".hoverlayer .hovertext tspan.line").all_text_contents()
    return " ".join(line.replace("\xa0", " ") for line in lines)


def values(opened: Opened) -> list[list[Any]]:
    """What the first figure draws of every line that shows: its values."""
    return opened.page.evaluate(  # type: ignore[no-any-return]
        """() => document.querySelector(".plotly-graph-div").data
          .filter((trace) => trace.visible && (trace.mode || "").includes("markers")).map((trace) => trace.y)"""
    )


def cells(opened: Opened) -> list[float]:
    """What the first figure draws of a matrix, row by row: its dark and its light cells are two traces."""
    return opened.page.evaluate(  # type: ignore[no-any-return]
        """() => {
          const { data } = document.querySelector(".plotly-graph-div");
          const shown = data.filter((trace) => trace.visible && trace.type === "heatmap" && trace.yaxis === "y");
          return shown[0].z.flat().map((value, i) => value ?? shown[1].z.flat()[i]);
        }"""
    )


def row(table: pd.DataFrame, control: str, cut: str, start: str | None = None) -> Any:
    """The row of a control at a seam."""
    held = table[(table["control"] == control) & (table["receiver_cut"] == cut)]
    held = held if start is None else held[held["sender_cut"] == start]
    return held.iloc[0]


def choose(opened: Opened, steps: int) -> str:
    """Go down so many views of the first figure by keyboard; the name of the view."""
    select = opened.page.get_by_role("combobox").first
    select.focus()
    for _ in range(steps):
        opened.page.keyboard.press("ArrowDown")
    return str(select.evaluate("one => one.selectedOptions[0].textContent"))


# --- a curve ----------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cut_tells_its_numbers(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    table = curve_table()
    said = hovered(opened, 2, 100 * row(table, "", CUTS[2])["stitched"], CUTS[2])
    plain, probe = row(table, "", CUTS[2]), row(table, "shuffled pairs", CUTS[2])
    assert CUTS[2] in said
    spread = f"[{100 * plain['stitched_low']:.1f}, {100 * plain['stitched_high']:.1f}]"
    assert f"{100 * plain['stitched']:.1f} % {spread}" in said
    assert f"penalty: {plain['penalty']:+.1f} pp" in said
    assert f"shuffled pairs {100 * probe['stitched']:.1f} %" in said
    assert "B alone (receiver) 95.0 %; A alone (sender) 93.0 %" in said
    opened.quiet()


def test_lines_and_views_of_a_curve_are_switched_by_keyboard(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    legend = opened.page.locator("figure").first.locator(".legend button:visible")
    assert legend.count() == 7 + 2  # parents
    assert len(values(opened)) == 7
    for button in legend.all():
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
    assert values(opened) == []
    for button in legend.all():
        button.press(" ")
    assert len(values(opened)) == 7
    assert choose(opened, 1) == "penalty of accuracy (pp)"
    assert values(opened)[0] == pytest.approx([row(curve_table(), "", cut)["penalty"] for cut in CUTS])
    assert legend.count() == 7 + 1
    assert choose(opened, 2).startswith("procrustes_angle")
    alike = similarities()
    alike = alike[(alike["index"] == "procrustes_angle") & (alike["sender_cut"] == alike["receiver_cut"])]
    assert values(opened)[0] == pytest.approx(list(alike["value"]))
    opened.quiet()


# --- a matrix ---------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cell_tells_its_numbers(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix)
    said = hovered(opened, 1, 2, f"{CUTS[2]} → {CUTS[1]}")
    plain, other = (row(matrix_table(), kind, CUTS[1], CUTS[2]) for kind in ("", "untrained both"))
    noise = row(matrix_table(), "clustered noise", CUTS[1])
    assert said.startswith(f"{CUTS[2]} → {CUTS[1]}")
    assert f"{100 * plain['stitched']:.1f} % [{100 * plain['stitched_low']:.1f}, " in said
    assert f"untrained both {100 * other['stitched']:.1f} %" in said
    assert f"clustered noise {100 * noise['stitched']:.1f} %" in said
    assert "A alone 93.0 %; B alone 95.0 %" in said
    opened.quiet()


def test_every_view_of_a_matrix_is_reached_by_keyboard(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix)
    table, alike = matrix_table(), similarities()
    for column, scale in (("stitched", 100), ("penalty", 1)):
        for kind in ("", *CONTROLS):
            name = choose(opened, int((column, kind) != ("stitched", "")))
            assert name.endswith(kind or "trained sender")
            assert cells(opened) == pytest.approx(list(scale * table[table["control"] == kind][column]))
    for index in ("linear_cka", "procrustes_angle"):
        assert choose(opened, 1).startswith(index)
        assert cells(opened) == pytest.approx(list(alike[alike["index"] == index]["value"]))
    opened.quiet()


# --- a study ----------------------------------------------------------------------------------------------------------


def test_a_tiny_study_tells_its_claims_and_no_verdict(open_page: Open, study: str) -> None:
    opened = open_page(study)
    assert "No verdict is given" in opened.page.locator("#verdict").inner_text()
    claims = opened.page.locator("table.claims tbody tr")
    assert claims.count() == len(study_named(STUDY).claims)
    assert opened.page.locator(".mark").count() == 0
    for row_, claim in zip(claims.all(), study_named(STUDY).claims, strict=True):
        assert claim.statement in row_.inner_text()
    assert opened.page.locator("figure.chart").count() == opened.page.locator(PLOT).count() > 0
    opened.quiet()


# --- what holds of all ------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(curve: str, matrix: str, study: str) -> tuple[str, ...]:
    """The three reports."""
    return curve, matrix, study


def ink_of(opened: Opened) -> str:
    """The colour of the letters in the first figure."""
    return str(opened.page.evaluate("document.querySelector('.plotly-graph-div').layout.font.color"))


def test_it_fits_every_screen_and_fetches_nothing(open_page: Open, pages: tuple[str, ...]) -> None:
    for page in pages:
        for width, colours in ((320, "light"), (768, "dark"), (1400, "light")):
            opened = open_page(page, width, colours)
            opened.page.wait_for_selector(PLOT)
            assert opened.page.evaluate("document.documentElement.scrollWidth") == width
            ink, paper = (
                opened.page.evaluate(f"getComputedStyle(document.documentElement).{name}")
                for name in ("color", "backgroundColor")
            )
            assert contrast(ink, paper) > 7
            assert (luminance(paper) < 0.1) == (colours == "dark")
            assert luminance(ink_of(opened)) == pytest.approx(luminance(ink), abs=0.02)
            opened.quiet()


def test_print_shows_all_tables_light_and_no_switches(open_page: Open, curve: str) -> None:
    opened = open_page(curve, 900, "dark")
    opened.page.wait_for_selector(PLOT)
    tables = opened.page.locator("details table")
    assert tables.count() > 0
    assert not tables.first.is_visible()
    opened.page.emulate_media(media="print", color_scheme="dark")
    opened.page.locator("details[open]").first.wait_for()
    assert all(table.is_visible() for table in tables.all())
    assert not any(switch.is_visible() for switch in opened.page.locator("select, summary").all())
    assert luminance(opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")) > 0.9
    assert luminance(ink_of(opened)) < 0.1
    assert opened.page.pdf(format="A4")[:4] == b"%PDF"
    opened.page.emulate_media(media="screen", color_scheme="dark")
    opened.page.locator("details:not([open])").first.wait_for()
    assert luminance(ink_of(opened)) > 0.6
    opened.quiet()


def test_whatever_is_drawn_is_in_a_table(open_page: Open, curve: str, matrix: str) -> None:
    for page, chart in (
        (curve, arrange.curve(read_scores(curve_table()), similarities())),
        (matrix, arrange.matrix(read_scores(matrix_table()))),
    ):
        opened = open_page(page)
        told = opened.page.locator("figure.chart").first.locator("td").all_text_contents()
        numbers = {text.split(" ")[0].rstrip("*") for text in told}
        for measure in chart.measures:
            for line in measure.lines:
                assert {measure.written(value) for value in line.value} <= numbers


def test_a_reader_of_screens_finds_its_way(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    opened.page.wait_for_selector(PLOT)
    levels = opened.page.eval_on_selector_all("h1, h2, h3, h4", "found => found.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert opened.page.evaluate("document.documentElement.lang") == "en"
    for control in opened.page.locator("button, select, [tabindex], summary").all():
        label = control.evaluate(
            "one => (one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent).trim()"
        )
        assert label, control
    for table in opened.page.locator("table").all():
        assert table.locator("caption").count() == 1
        assert table.locator("th:not([scope])").count() == 0
    identities = opened.page.eval_on_selector_all("[id]", "found => found.map(one => one.id)")
    assert len(identities) == len(set(identities))
    assert opened.page.locator("figure [role=img][aria-label]").count() == opened.page.locator("figure.chart").count()
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    assert opened.page.locator(".skip").bounding_box()["x"] >= 0
    outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_without_scripts_the_tables_are_there(open_page: Open, curve: str) -> None:
    opened = open_page(curve, java_script_enabled=False)
    assert "the tables below hold the same numbers" in opened.page.locator("noscript").first.inner_text()
    opened.page.locator("summary").first.click()
    assert opened.page.locator("table").first.is_visible()


def test_names_are_names_whatever_they_are(open_page: Open) -> None:
    names = (NASTY[0], NASTY[2])
    for make in (curve_table, matrix_table):
        opened = open_page(render(run_of(make(names, NASTY), similarities(names, NASTY), fit=["<i>x</i>"])))
        opened.page.wait_for_selector(PLOT)
        assert opened.page.locator("main img, header img, svg img, main b:has-text('bold')").count() == 0
        assert opened.page.title().startswith(f"{NASTY[0]} → {NASTY[2]}")
        ticks = "".join(opened.page.locator(".xtick text").all_text_contents())
        for part in ("<img", "</scr", "$x_1$", "⟨U+202E⟩turned"):
            assert part in ticks
        opened.page.locator("summary").first.click()
        headings = opened.page.locator("details th").all_text_contents()
        assert {NASTY[0], NASTY[1], NASTY[2]} <= set(headings)
        for button in opened.page.locator(".legend button:visible").all():
            button.press("Enter")
        opened.quiet()


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2.2 has it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as WCAG 2.2 has it."""
    if colour.startswith("#"):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    else:
        parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

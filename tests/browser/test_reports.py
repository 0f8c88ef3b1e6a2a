"""Reports in a browser: of a curve, of a matrix with four controls, and of a study."""

import math
import random
import re
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from opened import Open, Opened

from reported import CONTROLS, CUTS, NASTY, curve_table, matrix_table, run_of, similarities
from suture.common.formatting import unsigned_zero
from suture.report.html import read, render
from suture.studies import run_study, scale_named, study_named

pytestmark = pytest.mark.browser

PLOT = ".plot .main-svg"
STUDY = "bansal-2A"


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
    """Point at a place of the first plot, in its own coordinates; what the label beside it says of the place."""
    opened.page.locator(".plot").first.scroll_into_view_if_needed()
    at = opened.page.evaluate(
        """([x, y]) => {
          const plot = document.querySelector(".plot");
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


def readout(opened: Opened, figure: int = 0) -> str:
    """What the figure's status says."""
    return str(opened.page.locator(".readout").nth(figure).text_content())


def values(opened: Opened, figure: int = 0) -> list[list[Any]]:
    """What is drawn of every line that shows: its values."""
    return opened.page.evaluate(  # type: ignore[no-any-return]
        """(i) => document.querySelectorAll(".plot")[i].data
          .filter((trace) => trace.customdata && (trace.mode || "").includes("markers")).map((trace) => trace.y)""",
        figure,
    )


def row(table: pd.DataFrame, control: str, cut: str, start: str | None = None) -> Any:
    """The row of a control at a seam."""
    held = table[(table["control"] == control) & (table["receiver_cut"] == cut)]
    held = held if start is None else held[held["sender_cut"] == start]
    return held.iloc[0]


# --- a curve ----------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cut_tells_its_numbers(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    table = curve_table()
    said = hovered(opened, 2, 100 * row(table, "", CUTS[2])["stitched"], CUTS[2])
    plain, probe = row(table, "", CUTS[2]), row(table, "shuffled pairs", CUTS[2])
    assert CUTS[2] in said
    assert (
        f"{100 * plain['stitched']:.1f} % [{100 * plain['stitched_low']:.1f}, {100 * plain['stitched_high']:.1f}]"
        in said
    )
    assert f"penalty: {plain['penalty']:+.1f} pp" in said
    assert f"shuffled pairs {100 * probe['stitched']:.1f} %" in said
    assert "B alone (receiver) 95.0 %; A alone (sender) 93.0 %" in said
    assert " ".join(readout(opened).split()) == said
    opened.quiet()


def test_every_switch_of_a_curve_works_by_keyboard(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    figure = opened.page.locator("figure").first
    assert len(values(opened)) == 7
    for button in figure.locator(".lines button").all():
        assert button.get_attribute("aria-pressed") == "true"
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        assert "hidden" in readout(opened)
    assert values(opened) == []
    for button in figure.locator(".lines button").all():
        button.press(" ")
    assert len(values(opened)) == 7
    shows = figure.locator(".shows button")
    assert shows.all_text_contents() == ["Score", "Penalty", "Similarity"]
    shows.nth(1).press("Enter")
    assert "penalty of accuracy (pp)" in readout(opened)
    assert values(opened)[0] == pytest.approx([row(curve_table(), "", cut)["penalty"] for cut in CUTS])
    assert opened.page.evaluate("document.activeElement.textContent") == "Penalty"
    shows.nth(2).press("Enter")
    index = figure.get_by_role("combobox", name="Index")
    index.focus()
    opened.page.keyboard.press("ArrowDown")
    assert "procrustes_angle" in readout(opened)
    alike = similarities()
    alike = alike[(alike["index"] == "procrustes_angle") & (alike["sender_cut"] == alike["receiver_cut"])]
    assert values(opened)[0] == pytest.approx(list(alike["value"]))
    opened.quiet()


def test_the_arrow_keys_read_a_figure(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    plot = opened.page.locator(".plot").first
    plot.focus()
    for key, cut in (
        ("ArrowRight", 0),
        ("ArrowRight", 1),
        ("End", 3),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
        ("Home", 0),
    ):
        plot.press(key)
        assert readout(opened).splitlines()[0] == CUTS[cut]
        assert f"{100 * row(curve_table(), '', CUTS[cut])['stitched']:.1f} %" in readout(opened)
    plot.press("Escape")
    assert "arrow keys" in readout(opened)
    opened.quiet()


# --- a matrix ---------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cell_tells_its_numbers(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix)
    said = hovered(opened, 1, 2, f"{CUTS[2]} → {CUTS[1]}")
    assert said == " ".join(readout(opened).split())
    plain, other = (row(matrix_table(), kind, CUTS[1], CUTS[2]) for kind in ("", "untrained both"))
    noise = row(matrix_table(), "clustered noise", CUTS[1])
    assert said.startswith(f"{CUTS[2]} → {CUTS[1]}")
    assert f"{100 * plain['stitched']:.1f} % [{100 * plain['stitched_low']:.1f}, " in said
    assert f"untrained both {100 * other['stitched']:.1f} %" in said
    assert f"clustered noise {100 * noise['stitched']:.1f} %" in said
    assert "A alone 93.0 %; B alone 95.0 %" in said
    opened.quiet()


def test_every_switch_of_a_matrix_works_by_keyboard(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix)
    drawn = "document.querySelector('.plot').data[0].z.flat()"
    control = opened.page.get_by_role("combobox", name="Control")
    assert control.locator("option").all_text_contents() == ["trained sender", *CONTROLS]
    for kind in ("", *CONTROLS):
        if kind:
            control.focus()
            opened.page.keyboard.press("ArrowDown")
            assert kind in readout(opened)
        rows = matrix_table()
        held = rows[rows["control"] == kind]
        assert opened.page.evaluate(drawn) == pytest.approx(list(100 * held["stitched"]))
    opened.page.get_by_role("button", name="Penalty").press("Enter")
    assert opened.page.evaluate(drawn) == pytest.approx(list(held["penalty"]))
    assert "penalty of accuracy (pp), shuffled pairs" in readout(opened)
    opened.page.get_by_role("button", name="Similarity").press(" ")
    assert opened.page.evaluate(drawn) == pytest.approx(list(similarities()["value"][:16]))
    opened.page.get_by_role("combobox", name="Index").focus()
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.evaluate(drawn) == pytest.approx(list(similarities()["value"][16:]))
    opened.quiet()


def test_a_few_cells_that_dwarf_all_leave_the_others_their_colours(open_page: Open) -> None:
    table = matrix_table(score="loss", unit="nats")
    losses = [0.1, 0.2, 0.4, *[0.3] * 12, 90.0]
    table.loc[table["control"] == "", "stitched"] = losses
    opened = open_page(render(run_of(table)))
    drawn = opened.page.evaluate("document.querySelector('.plot').data[0].z.flat()")
    assert drawn == pytest.approx([math.log10(value) for value in losses])
    assert opened.page.locator(".cbaxis text").all_text_contents() == ["0.1", "1", "10"]
    assert "90.000 nats" in hovered(opened, 3, 3, f"{CUTS[3]} → {CUTS[3]}")
    opened.quiet()


def test_the_arrow_keys_read_a_matrix(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix)
    plot = opened.page.locator(".plot").first
    for key, start, end in (
        ("Home", 0, 0),
        ("ArrowDown", 1, 0),
        ("ArrowRight", 1, 1),
        ("ArrowUp", 0, 1),
        ("End", 3, 3),
    ):
        plot.press(key)
        assert readout(opened).startswith(f"{CUTS[start]} → {CUTS[end]}\n")
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
    for figure in opened.page.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
        for button in figure.locator(".switches button").all():
            button.press("Enter")
        figure.locator(".plot").press("Home")
        assert figure.locator(".readout").text_content()
    opened.quiet()


# --- what holds of all ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["curve", "matrix", "study"])
def page(request: pytest.FixtureRequest) -> str:
    """Each of the reports."""
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize(("width", "colours"), [(320, "light"), (768, "dark"), (1400, "light")])
def test_it_fits_every_screen_and_fetches_nothing(open_page: Open, page: str, width: int, colours: str) -> None:
    opened = open_page(page, width, colours)
    opened.page.wait_for_selector(PLOT)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    ink, paper = (
        opened.page.evaluate(f"getComputedStyle(document.documentElement).{name}")
        for name in ("color", "backgroundColor")
    )
    assert contrast(ink, paper) > 7
    assert (luminance(paper) < 0.1) == (colours == "dark")
    drawn = opened.page.evaluate("document.querySelector('.plot').layout.font.color")
    assert luminance(drawn) == pytest.approx(luminance(ink), abs=0.02)
    opened.quiet()


def test_print_shows_all_tables_light_and_no_switches(open_page: Open, page: str) -> None:
    opened = open_page(page, 900, "dark")
    opened.page.wait_for_selector(PLOT)
    tables = opened.page.locator("details table")
    assert tables.count() > 0
    assert not tables.first.is_visible()
    opened.page.emulate_media(media="print", color_scheme="dark")
    opened.page.locator("details[open]").first.wait_for()
    assert all(table.is_visible() for table in tables.all())
    assert not any(switch.is_visible() for switch in opened.page.locator("select, .shows button, summary").all())
    assert luminance(opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")) > 0.9
    assert luminance(opened.page.evaluate("document.querySelector('.plot').layout.font.color")) < 0.1
    assert opened.page.pdf(format="A4")[:4] == b"%PDF"
    opened.page.emulate_media(media="screen", color_scheme="dark")
    opened.page.locator("details:not([open])").first.wait_for()
    assert luminance(opened.page.evaluate("document.querySelector('.plot').layout.font.color")) > 0.6
    opened.quiet()


def test_whatever_is_drawn_is_in_a_table(open_page: Open, page: str) -> None:
    opened = open_page(page)
    opened.page.wait_for_selector(PLOT)
    figures = opened.page.locator("figure.chart")
    assert figures.count() > 0
    charts = opened.page.evaluate("JSON.parse(document.getElementById('charts').textContent)")
    assert len(charts) == figures.count()
    for figure, chart in zip(figures.all(), charts, strict=True):
        told = {text.split(" ")[0].rstrip("*") for text in figure.locator("td").all_text_contents()}
        for measure in chart["measures"]:
            for line in measure["lines"]:
                digits, sign = measure["digits"], "+" if measure["signed"] else ""
                drawn = {f"{value + 0.0:{sign}.{digits}f}" for value in line["value"] if value is not None}
                assert {text.replace("-0.0", "0.0") for text in drawn} <= {text.replace("-0.0", "0.0") for text in told}


def test_a_reader_of_screens_finds_its_way(open_page: Open, page: str) -> None:
    opened = open_page(page)
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
    assert opened.page.locator("[aria-live=polite]").count() == opened.page.locator("figure.chart").count()
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


@pytest.mark.parametrize("make", [curve_table, matrix_table], ids=["curve", "matrix"])
def test_names_are_names_whatever_they_are(open_page: Open, make: Any) -> None:
    names = (NASTY[0], NASTY[2])
    opened = open_page(render(run_of(make(names, NASTY), similarities(names, NASTY), fit=["<i>x</i>"])))
    opened.page.wait_for_selector(PLOT)
    assert opened.page.locator("main img, header img, svg img, main b:has-text('bold')").count() == 0
    assert opened.page.title().startswith(f"{NASTY[0]} → {NASTY[2]}")
    plot = opened.page.locator(".plot").first
    for _ in NASTY:
        plot.press("ArrowRight")
    assert "⟨U+202E⟩turned" in readout(opened)
    ticks = "".join(opened.page.locator(".xtick text").all_text_contents())
    assert "<img" in ticks
    assert "</scr" in ticks
    opened.page.locator("summary").first.click()
    headings = opened.page.locator("details th").all_text_contents()
    assert NASTY[0] in headings
    assert NASTY[1] in headings
    assert NASTY[2] in headings
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


def test_a_page_rounds_numbers_as_python_does(open_page: Open) -> None:
    script = (files("suture.report.html") / "report.js").read_text(encoding="utf-8")
    found = re.search(r"const rounded = (.*?\n  \});\n", script, re.DOTALL)
    assert found
    draw = random.Random(0)
    ties = [sign * (k + 0.5) / 2**shift for sign in (-1, 1) for k in range(300) for shift in range(4)]
    spread = [draw.uniform(-1, 1) * 10 ** draw.uniform(-5, 6) for _ in range(2000)]
    values = [0.0, -0.04, 0.05, 0.35, 2.675, 1e-12, *ties, *spread]
    cases = [(value, digits) for value in values for digits in range(5)]
    shown = open_page("<p>").page.evaluate(f"(cases) => cases.map(([x, digits]) => ({found[1]})(x, digits))", cases)
    expected = [f"{unsigned_zero(value, digits):.{digits}f}" for value, digits in cases]
    assert [(*case, a, b) for case, a, b in zip(cases, shown, expected, strict=True) if a != b] == []

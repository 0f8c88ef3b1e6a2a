"""Reports in a browser: of a curve, of a matrix with four controls, and of a study."""

import re
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from opened import Open, Opened

from reported import CUTS, NASTY, curve_table, matrix_table, run_of, similarities
from suture.measurement.tables.read import make_reading
from suture.reports import charts
from suture.reports.html import read, render
from suture_papers import run_study, scale_named, study_named

pytestmark = pytest.mark.browser

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


def row(table: pd.DataFrame, control: str, cut: str, start: str | None = None) -> Any:
    """The row of a control at a seam."""
    held = table[(table["control"] == control) & (table["receiver_cut"] == cut)]
    held = held if start is None else held[held["sender_cut"] == start]
    return held.iloc[0]


def pointed_at(opened: Opened, said: str) -> str:
    """Point at the middle of the mark that says this, in the figure that shows; the title found there."""
    mark = opened.page.locator(".plot:visible .told > *", has_text=said).first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    return str(
        opened.page.evaluate(
            "([x, y]) => document.elementFromPoint(x, y).textContent",
            [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
        )
    )


# --- a curve ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1400])
def test_pointing_at_a_cut_tells_its_numbers(open_page: Open, curve: str, width: int) -> None:
    opened = open_page(curve, width)
    plain = row(curve_table(), "", CUTS[2])
    value, low, high = (f"{100 * plain[f'stitched{end}']:.1f}" for end in ("", "_low", "_high"))
    assert pointed_at(opened, f"{CUTS[2]}, A → B: {value}") == f"{CUTS[2]}, A → B: {value} % [{low}, {high}]"
    said = f"{CUTS[2]}, A → B: penalty {plain['penalty']:+.1f} pp"
    assert pointed_at(opened, said).startswith(said)
    opened.quiet()


@pytest.mark.parametrize("width", [390, 1400])
def test_other_controls_are_one_press_away(open_page: Open, curve: str, width: int) -> None:
    opened = open_page(curve, width)
    figure = opened.page.locator("figure").first
    names = figure.locator(".plot:visible text:visible")
    aside = ("untrained both", "shuffled pairs")
    assert not {*aside} & {*names.all_text_contents()}
    assert "untrained sender" in names.all_text_contents()
    assert not any(drawn.is_visible() for drawn in figure.locator(".aside").all())
    before = names.count()
    opened.page.get_by_label("All controls").press(" ")
    assert {*aside, "receiver to itself", "untrained sender"} <= {*names.all_text_contents()}
    assert names.count() == before + 3
    marks = figure.locator(".plot:visible .told .aside")
    assert marks.count() == 3 * len(CUTS)
    assert all(mark.is_visible() for mark in marks.all())
    opened.page.get_by_label("All controls").press(" ")
    assert not marks.first.is_visible()
    opened.quiet()


# --- a matrix ---------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cell_tells_its_numbers(open_page: Open, matrix: str) -> None:
    opened = open_page(matrix, 1400)
    for kind, name in (("", ""), ("untrained both", "untrained both, ")):
        plain = row(matrix_table(), kind, CUTS[1], CUTS[2])
        said = pointed_at(opened, f"{name}{CUTS[2]} → {CUTS[1]}: {100 * plain['stitched']:.1f} %")
        assert said.startswith(f"{name}{CUTS[2]} → {CUTS[1]}: ")
        assert f"[{100 * plain['stitched_low']:.1f}, {100 * plain['stitched_high']:.1f}]" in said
        assert f"penalty {plain['penalty']:+.1f} pp" in said
    assert "needs trained A: " in pointed_at(opened, f"{CUTS[2]} → {CUTS[1]}: works: ")
    opened.quiet()


def test_numbers_in_cells_can_be_read_and_do_not_touch(open_page: Open) -> None:
    for count in (4, 9, 16):
        cuts = [f"layer{i}" for i in range(count)]
        opened = open_page(render(run_of(matrix_table(cuts=cuts))), 1400)
        sizes = opened.page.eval_on_selector_all(
            ".plot text",
            """all => all.filter((one) => /^\\d+$/.test(one.textContent)).map((one) => {
                 const box = one.getBoundingClientRect();
                 const size = parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a;
                 return [size, box.left, box.right, box.top];
               })""",
        )
        assert min(size for size, *_ in sizes) >= 9
        lines: dict[float, list[tuple[float, float]]] = {}
        for _, left, right, top in sizes:
            lines.setdefault(round(top), []).append((left, right))
        for spans in lines.values():
            assert all(before[1] < after[0] for before, after in pairwise(sorted(spans)))


# --- a study ----------------------------------------------------------------------------------------------------------


def test_a_tiny_study_tells_its_claims_and_no_verdict(open_page: Open, study: str) -> None:
    opened = open_page(study)
    assert "No verdict is given" in opened.page.locator("#verdict").inner_text()
    claims = opened.page.locator("table.claims tbody tr")
    assert claims.count() == len(study_named(STUDY).claims)
    assert opened.page.locator(".mark").count() == 0
    for row_, claim in zip(claims.all(), study_named(STUDY).claims, strict=True):
        assert claim.statement in row_.inner_text()
    assert opened.page.locator("figure.chart").count() == opened.page.locator(".plot svg").count() > 0
    assert opened.page.locator(".told title").count() > 0
    opened.quiet()


# --- what holds of all ------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(curve: str, matrix: str, study: str) -> tuple[str, ...]:
    """The three reports."""
    return curve, matrix, study


def test_it_fits_every_screen_and_fetches_nothing(open_page: Open, pages: tuple[str, ...]) -> None:
    for page in pages:
        for width, colours in ((320, "light"), (768, "dark"), (1400, "light")):
            opened = open_page(page, width, colours)
            assert opened.page.evaluate("document.documentElement.scrollWidth") == width
            ink, paper = (
                opened.page.evaluate(f"getComputedStyle(document.documentElement).{name}")
                for name in ("color", "backgroundColor")
            )
            assert contrast(ink, paper) > 7
            assert (luminance(paper) < 0.1) == (colours == "dark")
            card = opened.page.evaluate("getComputedStyle(document.querySelector('.plot')).backgroundColor")
            assert colours == "light" or luminance(card) > 0.9  # figures are drawn on white
            opened.quiet()


def test_letters_of_a_phone_can_be_read(open_page: Open, curve: str, matrix: str) -> None:
    for page in (curve, matrix):
        opened = open_page(page, 390)
        sizes = opened.page.eval_on_selector_all(
            ".plot text",
            """all => all.filter((one) => one.checkVisibility())
                 .map((one) => [one.getScreenCTM(), parseFloat(getComputedStyle(one).fontSize)])
                 .map(([turned, size]) => size * Math.hypot(turned.a, turned.b))""",
        )
        assert min(sizes) >= 10.9


def test_print_shows_all_tables_light_and_no_switches(open_page: Open, curve: str) -> None:
    opened = open_page(curve, 900, "dark")
    tables = opened.page.locator("details table")
    assert tables.count() > 0
    assert not tables.first.is_visible()
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert all(table.is_visible() for table in tables.all())
    assert not any(switch.is_visible() for switch in opened.page.locator("input, summary").all())
    assert luminance(opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")) > 0.9
    assert opened.page.pdf(format="A4")[:4] == b"%PDF"
    opened.quiet()


def test_whatever_is_drawn_is_in_a_table(open_page: Open, curve: str, matrix: str) -> None:
    for page, chart in (
        (curve, charts.curve(make_reading(curve_table()), similarities())),
        (matrix, charts.matrix(make_reading(matrix_table()))),
    ):
        opened = open_page(page)
        told = opened.page.locator("figure.chart td").all_text_contents()
        numbers = {text.split(" ")[0].rstrip("*") for text in told}
        for measure in chart.measures:
            for line in measure.lines:
                assert {measure.written(value) for value in line.value} <= numbers


def test_a_reader_of_screens_finds_its_way(open_page: Open, curve: str) -> None:
    opened = open_page(curve)
    levels = opened.page.eval_on_selector_all("h1, h2, h3, h4", "found => found.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert opened.page.evaluate("document.documentElement.lang") == "en"
    for control in opened.page.locator("input, [tabindex], summary").all():
        label = control.evaluate(
            "one => (one.getAttribute('aria-label') || one.labels?.[0]?.textContent || one.textContent).trim()"
        )
        assert label, control
    for table in opened.page.locator("table").all():
        assert table.locator("caption").count() == 1
        assert table.locator("th:not([scope])").count() == 0
    identities = opened.page.eval_on_selector_all("[id]", "found => found.map(one => one.id)")
    assert len(identities) == len(set(identities))
    assert opened.page.locator("figure svg[role=group][aria-label]:visible").count() == (
        opened.page.locator("figure.chart").count()
    )
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    assert opened.page.locator(".skip").bounding_box()["x"] >= 0
    outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_names_are_names_whatever_they_are(open_page: Open) -> None:
    names = (NASTY[0], NASTY[2])
    for make in (curve_table, matrix_table):
        opened = open_page(render(run_of(make(names, NASTY), similarities(names, NASTY), fit=["<i>x</i>"])))
        assert opened.page.locator("main img, header img, svg img, main b:has-text('bold')").count() == 0
        assert opened.page.title().startswith(f"{NASTY[0]} → {NASTY[2]}")
        drawn = "".join(opened.page.locator(".plot:visible text").all_text_contents())
        for part in ("<img", "</scr", "$x_1$", "⟨U+202E⟩turned"):
            assert part in drawn
        opened.page.locator("summary").first.click()
        headings = opened.page.locator("details th").all_text_contents()
        assert {NASTY[0], NASTY[1], NASTY[2]} <= set(headings)
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

"""The report as HTML: what it says against the table that it is of, and that it keeps to itself."""

import base64
import hashlib
import html
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm

import suture
from reported import (
    CONTROLS,
    CUTS,
    NASTY,
    STRIPS,
    curve_table,
    failing,
    matrix_figure,
    matrix_table,
    run_of,
    similarities,
)
from suture.common.errors import DataError, SutureError
from suture.fits import LeastSquares, Random
from suture.measurement.tables.read import make_reading, read_scores
from suture.measurement.tables.say import asked, say_curve, say_mark
from suture.reports import charts as arranged
from suture.reports.charts import OPEN, Grid, Line, Measure
from suture.reports.html import compare_runs, read, render
from suture.reports.html.evidence import evidence
from suture.reports.terminal import curve as screen
from suture_papers import STUDIES, Result, load_result
from suture_papers.reports import html as studies
from trained import few_digits, hybrid, hybrids, wrap

ROOT = Path(__file__).parents[2]

pytest.importorskip("jinja2", reason="no jinja2: pip install 'suture[report]'")


class Read(HTMLParser):
    """What a page holds: its tags with their attributes, and its text outside scripts and styles."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.open = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag

    def handle_data(self, data: str) -> None:
        if self.open not in ("script", "style"):
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


@pytest.fixture(scope="module")
def curve() -> str:
    return render(run_of(curve_table(), similarities()))


@pytest.fixture(scope="module")
def matrix() -> str:
    return render(run_of(matrix_table(), similarities()))


def line(measure: Measure, kind: str) -> Line:
    (found,) = (one for one in measure.lines if one.kind == kind)
    return found


def test_a_curve_is_charted_as_it_was_measured() -> None:
    table = curve_table()
    score, penalty = arranged.curve(make_reading(table)).measures
    assert [score.show, score.of, score.unit] == ["Score", "accuracy", "%"]
    assert [penalty.show, penalty.unit] == ["Penalty", "pp"]
    assert [one.kind for one in score.lines] == ["", "itself", *CONTROLS, "clustered noise"]
    for shown, column, scale in ((score, "stitched", 100), (penalty, "penalty", 1)):
        for one in shown.lines:
            rows = table[table["control"] == one.kind]
            for values, end in ((one.value, ""), (one.low, "_low"), (one.high, "_high")):
                assert values == pytest.approx(scale * rows[f"{column}{end}"].to_numpy())
    assert score.levels == pytest.approx({"B alone (receiver)": 95.0, "A alone (sender)": 93.0})


def test_a_matrix_is_charted_as_it_was_measured() -> None:
    table = matrix_table()
    chart = arranged.matrix(make_reading(table))
    for shown, column, scale in zip(chart.measures, ("stitched", "penalty"), (100, 1), strict=True):
        for one in shown.lines:
            rows = table[table["control"] == one.kind]  # in the order of the cells
            assert one.value == pytest.approx(scale * rows[column].to_numpy())
            assert one.low == pytest.approx(scale * rows[f"{column}_low"].to_numpy())
            assert one.strip == (one.kind in STRIPS)
    assert chart.rows == chart.columns == CUTS


def test_indices_lie_at_their_seams() -> None:
    alike = similarities()
    charts = [
        arranged.curve(make_reading(curve_table()), alike),
        arranged.matrix(make_reading(matrix_table()), alike),
        arranged.similarity(alike),
    ]
    for index in ("linear_cka", "procrustes_angle"):
        rows = alike[alike["index"] == index]
        here = rows[rows["sender_cut"] == rows["receiver_cut"]]["value"]
        along, whole, of_all = (
            next(m for m in chart.measures if m.show == "Similarity" and m.of.startswith(index)) for chart in charts
        )
        assert along.lines[0].value == pytest.approx(here.to_numpy())
        for measure in (whole, of_all):
            assert measure.lines[0].value == pytest.approx(rows["value"].to_numpy())
        assert along.bright == ("low" if index == "procrustes_angle" else "high")


def titles(page: str) -> list[str]:
    """What the marks of a page's figures say."""
    return [html.unescape(title) for title in re.findall(r'role="img"><title>(.*?)</title>', page, re.DOTALL)]


def test_every_mark_says_what_is_charted(curve: str, matrix: str) -> None:
    """Of a curve twice, since it is drawn for a phone, too."""
    chart = arranged.curve(make_reading(curve_table()), similarities())
    score, penalty, *indices = chart.measures
    said = [
        f"{place}, {one.name}: {measure.say(one, i)}"
        for measure, lines in ((score, score.lines), (penalty, penalty.lines[:2]))
        for one in lines
        for i, place in enumerate(chart.columns)
    ]
    said += [f"{CUTS[i]}, {m.of}: {m.say(m.lines[0], i)}" for m in indices for i in range(len(CUTS))]
    alike = arranged.similarity(similarities())
    cells = [f"{alike.place(i)}: {m.say(m.lines[0], i)}" for m in alike.measures for i in range(len(CUTS) ** 2)]
    assert Counter(titles(curve)) == Counter([*said, *said, *cells])

    chart = arranged.matrix(make_reading(matrix_table()))
    score, penalty = chart.measures
    wanted = {
        f"{f'{one.name}, ' if one.kind else ''}{chart.columns[i] if one.strip else chart.place(i)}: "
        f"{score.say(one, i)}; {penalty.say(other, i)}"
        for one, other in zip(score.lines, penalty.lines, strict=True)
        for i in range(len(one.value))
    }
    marks = {title for title in titles(matrix) if "works: " in title}
    assert len(marks) == len(CUTS) ** 2
    alone = {"A alone: 93.0 %", "B alone: 95.0 %"}
    assert {*titles(matrix)} == wanted | marks | alone | set(cells)


def test_the_label_of_a_mark_is_the_number_with_its_interval(curve: str, matrix: str) -> None:
    table = curve_table()
    row = table[(table["control"] == "untrained sender") & (table["receiver_cut"] == CUTS[1])].iloc[0]
    numbers = [f"{100 * row[f'stitched{end}']:.1f}" for end in ("", "_low", "_high")]
    assert f"{CUTS[1]}, untrained sender: {numbers[0]} % [{numbers[1]}, {numbers[2]}]" in titles(curve)
    table = matrix_table()
    row = table[(table["control"] == "") & (table["sender_cut"] == CUTS[2]) & (table["receiver_cut"] == CUTS[1])].iloc[
        0
    ]
    said = [
        title for title in titles(matrix) if title.startswith(f"{CUTS[2]} → {CUTS[1]}: {100 * row['stitched']:.1f} %")
    ]
    assert said[0].endswith(f"; penalty {row['penalty']:+.1f} pp [{row['penalty_low']:.1f}, {row['penalty_high']:.1f}]")


def test_what_no_question_needs_is_drawn_and_hidden(curve: str) -> None:
    aside = {"receiver to itself", "untrained both", "shuffled pairs"}
    assert "All controls: also receiver to itself, untrained both, shuffled pairs" in Read(curve).text
    hidden = {
        title.split(", ")[1].split(":")[0] for title in re.findall(r'class="aside" role="img"><title>(.*?)<', curve)
    }
    assert hidden == aside
    few, every = ({*re.findall(rf'class="{name}"><text.*?>([^<]+)</text>', curve)} for name in ("few", "all"))
    assert every - few == aside
    assert 'type="checkbox"' not in render(run_of(curve_table()[lambda t: ~t["control"].isin([*CONTROLS, "itself"])]))


@pytest.mark.slow
def test_pages_are_small_and_the_same_every_time(curve: str) -> None:
    assert len(curve.encode()) < 150_000
    assert render(run_of(curve_table(), similarities())) == curve
    identities = [name for _, attributes in Read(curve).tags if (name := attributes.get("id"))]
    assert len(identities) == len({*identities})
    referred = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', curve)
    assert {one or other for one, other in referred} <= {*identities}


@pytest.mark.slow
def test_a_few_cells_that_dwarf_all_leave_the_others_their_colours() -> None:
    table = matrix_table(score="loss", unit="nats")
    table.loc[table["control"] == "", "stitched"] = [0.1, 0.2, 0.4, *[0.3] * 12, 90.0]
    assert isinstance(matrix_figure(table, "loss").axes[0].collections[0].norm, LogNorm)


def test_the_tables_say_what_the_screen_says(curve: str) -> None:
    cells = set(re.findall(r"<td>([^< ]+)", curve))
    table = curve_table()
    for value in table["stitched"]:
        assert screen.written(value, percent=True) in cells
    for value in table["penalty"]:
        assert f"{value:+.1f}" in cells


def test_the_verdict_and_what_must_not_be_concluded_are_those_of_explain(curve: str) -> None:
    said = Read(curve).text
    explained = __import__("suture").explain(curve_table(), similarities())
    reading = make_reading(curve_table())
    marks = re.search(r'<table class="strip">.*?</table>', curve, re.DOTALL)
    assert marks is not None
    shown = re.findall(r'title="(.*?): (.*?)"', marks[0])
    assert shown == [
        (cut, say_mark(reading, question, mark))
        for question in asked(reading)
        for cut, mark in zip(reading.seams, reading.marks(question), strict=True)
    ]
    answers = [answer for _, answer in explained.answers]
    for sentence in (*answers, *explained.not_concluded, *explained.missing, *say_curve(reading)):
        assert " ".join(sentence.split()) in said


def test_cost_versions_and_how_to_repeat_it_are_told(curve: str) -> None:
    said = Read(curve).text
    assert "28, none failed" in said
    assert "(35.0 seconds)" in said  # 28 × 1.25
    assert "Steps of fits 196" in said  # 28 × 7
    for word in ("2.14", "x86_64", "d/fit", "d/score", "Converged()", "Conv()"):
        assert word in said


def test_failures_are_shown_with_their_reasons() -> None:
    table = curve_table()
    which = (table["control"] == "shuffled pairs") & (table["receiver_cut"] == CUTS[1])
    content = render(run_of(failing(table, which, "FitError: <b>nan</b>")))
    assert "1 of 28 trials failed" in Read(content).text
    assert "FitError: &lt;b&gt;nan&lt;/b&gt;" in content
    assert "<td>failed</td>" in content
    shuffled = line(arranged.curve(make_reading(failing(table, which))).measures[0], "shuffled pairs")
    assert shuffled.failed.tolist() == [False, True, False, False]
    assert np.isnan(shuffled.value[1])


def test_where_all_failed_it_still_says_so() -> None:
    table = curve_table()
    content = render(run_of(failing(table, table["status"] == "ok")))
    assert "Nothing can be concluded" in Read(content).text
    assert "28 of 28 trials failed" in Read(content).text


@pytest.mark.slow
def test_no_name_becomes_a_tag_a_script_or_a_turn(curve: str, matrix: str) -> None:
    names = (NASTY[0], NASTY[2])
    for make, plain in ((curve_table, curve), (matrix_table, matrix)):
        content = render(run_of(make(names, NASTY), similarities(names, NASTY)))
        kinds = [
            [tag for tag, _ in Read(page_).tags if tag in ("img", "script", "b", "i", "a")]
            for page_ in (plain, content)
        ]
        assert kinds[0] == kinds[1]
        assert not any(name.startswith("on") for _, attributes in Read(content).tags for name in attributes)
        assert "\u202e" not in content
        assert "⟨U+202E⟩turned" in content
        for text in (NASTY[0], NASTY[2]):
            assert text not in content


def test_the_page_keeps_to_itself(curve: str) -> None:
    read = Read(curve)
    policy = next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script" not in curve
    (style,) = re.findall(r"<style>(.*?)</style>", curve, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert not any("style" in attributes for _, attributes in read.tags)
    links = [link for _, attributes in read.tags for name in ("src", "href") if (link := attributes.get(name))]
    assert all(link.startswith(("#", "data:")) for link in links)


def test_two_runs_are_compared_where_both_measured() -> None:
    first, second = curve_table(), curve_table(cuts=CUTS[1:], fit="LeastSquares()")
    second[["stitched", "stitched_low", "stitched_high"]] -= 0.05
    runs = (run_of(first, name="one"), run_of(second, name="two"))
    said = Read(render(*runs)).text
    assert "one and two compared" in said
    assert "Converged() LeastSquares()" in said
    ((found,), *_) = compare_runs.compare(*runs, ("one", "two"))
    assert [label for label, _ in found.rows] == list(CUTS[1:])
    assert found.columns == ("one", "two", "difference")
    for cut, cells in found.rows:
        one, two = (
            100 * table[(table["control"] == "") & (table["receiver_cut"] == cut)]["stitched"].iloc[0]
            for table in (first, second)
        )
        half = 100 * np.hypot(0.02, 0.03)  # MOVER of two like intervals
        assert [value for value, _ in cells] == [f"{one:.1f}", f"{two:.1f}", f"{two - one:+.1f}"]
        assert cells[2][1].startswith(f"[{two - one - half:.1f}, ")
        assert all(interval in said for _, interval in cells)


def differences(grid: Grid) -> list[float]:
    """The numbers of the last column of a table."""
    return [float(cells[-1][0].rstrip("°")) for _, cells in grid.rows]


@pytest.mark.slow
def test_a_difference_of_losses_is_positive_where_the_second_is_better_and_says_what_had_not_converged(
    tmp_path: Path,
) -> None:
    data, nets = few_digits(), hybrids()
    for name, fit in (("one", LeastSquares()), ("two", Random())):
        plan = suture.curve(*nets, data=data, at=("embed", "hidden"), fit=fit, controls=())
        suture.run(plan, store=tmp_path / name, on=suture.Local(workers=1))
    one, two = read(tmp_path / "one"), read(tmp_path / "two")
    tables, said, _ = compare_runs.compare(one, two, ("one", "two"))
    (found,) = (grid for grid in tables if "loss" in grid.caption)
    first, second = (run.table.loc[run.table["score"] == "loss", "stitched"].to_numpy(float) for run in (one, two))
    assert differences(found) == pytest.approx(first - second, abs=6e-4)
    assert [[float(value) for value, _ in cells[:2]] for _, cells in found.rows] == [
        pytest.approx(pair, abs=6e-4) for pair in zip(first, second, strict=True)
    ]
    assert any("certainly worse" in sentence for sentence in said)
    cut_short = replace(two, table=two.table.assign(converged=False, fit="Converged()"))
    (table, *_), said, _ = compare_runs.compare(one, cut_short, ("one", "two"))
    assert not any("certainly worse" in sentence for sentence in said)
    assert any(sentence.startswith("two: The fits at 2 of 2 cuts had not converged") for sentence in said)
    assert all(cells[1][0].endswith("°") and cells[2][0].endswith("°") for _, cells in table.rows)
    assert f"° means {OPEN}" in table.caption


@pytest.mark.slow
def test_two_curves_both_ways_are_a_trait_only_if_they_were_planned_as_one() -> None:
    there = curve_table()
    back = there.assign(sender=there["receiver"], receiver=there["sender"])
    both = pd.concat([there, back], ignore_index=True)
    for plan in ("", "curve"):
        assert "Where stripes lies" not in Read(render(run_of(both.assign(score="stripes", plan=plan)))).text
    assert "Where stripes lies" in Read(render(run_of(both.assign(score="stripes", plan="trait")))).text


@pytest.mark.slow
def test_runs_of_other_networks_of_one_name_are_compared_by_their_penalties(tmp_path: Path) -> None:
    data = few_digits()
    for name, nets in (("one", hybrids()), ("two", (wrap(hybrid(2), "A"), wrap(hybrid(1), "B")))):
        plan = suture.curve(*nets, data=data, at=("embed", "hidden"), fit=LeastSquares(), controls=())
        suture.run(plan, store=tmp_path / name, on=suture.Local(workers=1))
    runs = read(tmp_path / "one"), read(tmp_path / "two")
    (penalties, *_), said, before = compare_runs.compare(*runs, ("one", "two"))
    assert before[0].startswith("By their fingerprints the network A is another in the second run, under the same name")
    first, second = (run.table.loc[run.table["score"] == "accuracy", "penalty"].to_numpy(float) for run in runs)
    assert "penalty of accuracy (pp)" in penalties.caption
    assert [float(cells[1][0]) for _, cells in penalties.rows] == pytest.approx(second, abs=0.06)
    assert differences(penalties) == pytest.approx(first - second, abs=0.06)
    page = Read(render(*runs)).text
    assert said[0] in page
    assert before[0] in page
    (same, *_), *_ = compare_runs.compare(runs[0], runs[0], ("one", "one"))
    assert "A → B: accuracy (%)" in same.caption


def test_two_matrices_are_compared_seam_by_seam() -> None:
    runs = (run_of(matrix_table(), name="one"), run_of(matrix_table(), name="two"))
    ((found,), *_) = compare_runs.compare(*runs, ("one", "two"))
    assert len(found.rows) == 16
    assert differences(found) == [0.0] * 16
    assert "At none of 16 seams are the two certainly different in accuracy." in Read(render(*runs)).text


def test_what_is_said_of_several_pairs_names_the_pair() -> None:
    both = pd.concat([matrix_table(), matrix_table(("B", "A"))], ignore_index=True)
    tables, said, _ = compare_runs.compare(run_of(both, name="one"), run_of(both, name="two"), ("one", "two"))
    assert len(tables) == 2
    assert all(sentence.startswith(("A → B: ", "B → A: ")) for sentence in said)
    assert '<h1 dir="auto">one and two compared' in render(run_of(both, name="one"), run_of(both, name="two"))


def test_runs_without_a_seam_in_common_are_refused() -> None:
    with pytest.raises(DataError, match="no seam and score in common"):
        render(run_of(curve_table()), run_of(curve_table(cuts=("other",))))


@pytest.mark.slow
def test_several_curves_and_what_is_neither(tmp_path: Path) -> None:
    both = pd.concat([curve_table(), curve_table(("B", "A"))], ignore_index=True)
    assert [drawn.chart.kind for drawn in evidence(read_scores(both)).figures] == ["curve", "curve"]
    odd = pd.concat([curve_table(), curve_table(fit="LeastSquares()")], ignore_index=True)
    assert "neither one curve nor one matrix" in Read(render(run_of(odd))).text


def test_other_units_and_scores_are_drawn_as_they_are() -> None:
    table = curve_table(score="loss", unit="nats")
    chart = arranged.curve(make_reading(table))
    assert [measure.unit for measure in chart.measures] == ["nats", "nats"]
    assert chart.measures[0].lines[0].value == pytest.approx(list(table[table["control"] == ""]["stitched"]))


def test_without_jinja2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(SutureError, match=r"pip install 'suture\[report\]'"):
        render(run_of(curve_table()))


# --- studies ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_is_decided_as_on_its_page() -> None:
    """By the intervals of Holm's method, and not at all by another version of the fit."""
    study, result = STUDIES["oxford-4.1-mlp"], load_result(ROOT / "papers/results/small", "oxford-4.1-mlp")
    assert result is not None
    for outdated in (False, True):
        old = {"versions": "Converged 0"} if outdated else {}
        tables = {kind: table.assign(**old) for kind, table in result.tables.items()}
        made = Result(study.id, "small", tables, result.card)
        words = ["not measured again"] * 12 if outdated else [one.said for one in made.decide(study)]
        _, blocks, _ = studies.section(study, made, several=False)
        rows = next(content["rows"] for kind, content in blocks if kind == "table")
        assert all(row[-1].startswith(word) for row, word in zip(rows, words, strict=True))
    assert any("at 99.4 %" in row[2] for row in rows)

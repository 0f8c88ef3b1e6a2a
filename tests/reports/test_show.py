"""What Python and notebooks show of a table: the figure and the page that suit it, and the verdict first."""

import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

import suture
from reported import NASTY, curve_table, failing, matrix_table, similarities
from suture.common.errors import DataError, OutputError
from suture.fits import LeastSquares
from suture.measurement.tables.curve import arrange_pairs
from suture.measurement.tables.in_short import in_short
from suture.measurement.tables.read import make_reading
from suture.measurement.tables.say import headlines
from suture.reports.html import check_file
from suture.reports.show import plot, report
from trained import few_digits, hybrids


@pytest.mark.slow
def test_a_table_is_drawn_as_what_it_is() -> None:
    assert [axes.get_ylabel() for axes in plot(curve_table()).axes[:2]] == ["test accuracy (%)", "penalty (pp)"]
    assert len(plot(matrix_table()).axes) == 10  # the trials, four controls, verdicts, means, the bar, two unused
    assert plot(similarities()).axes[0].get_title() == "linear_cka"
    below = plot(curve_table(), similarities())
    assert below.axes[2].get_ylabel() == "index"


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a table, a Store, or the folder of a run"):
        plot(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has no table"):
        plot(tmp_path)
    with pytest.raises(DataError, match="no row"):
        report(curve_table().iloc[:0], tmp_path / "a.html")
    with pytest.raises(OutputError, match=r"is a folder; name a file"):
        report(curve_table(), tmp_path)


def test_a_file_that_is_not_a_page_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("mine = 1")
    with pytest.raises(OutputError, match=r"model\.py is a file and not a page, and would be lost; name another"):
        report(curve_table(), file)
    assert file.read_text() == "mine = 1"
    assert check_file(tmp_path / "new.html") == tmp_path / "new.html"
    for page in ("", "\n<!DOCTYPE html>\n<html>"):
        file.write_text(page)
        assert check_file(file) == file


def test_a_figure_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    drawn = plot(curve_table())
    (tmp_path / "a.png").write_bytes(drawn._repr_png_())  # type: ignore[attr-defined]
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] > 800


@pytest.mark.slow
def test_a_report_of_a_table_and_of_two(tmp_path: Path) -> None:
    page = report(curve_table(), tmp_path / "deep" / "ab.html").read_text(encoding="utf-8")
    assert f'<h1 dir="auto">{headlines(make_reading(curve_table()))[0]}</h1>' in page
    assert "How to repeat" in page
    both = report(curve_table(), tmp_path / "two.html", curve_table(seed=1)).read_text(encoding="utf-8")
    assert "two and other compared" in both


@pytest.mark.slow
def test_a_run_is_shown_by_its_folder_its_store_and_its_table(tmp_path: Path) -> None:
    a, b = hybrids()
    plan = suture.curve(a, b, data=few_digits(), at=("embed", "hidden"), fit=LeastSquares(), controls=())
    table = suture.run(plan, store=tmp_path / "run")
    for source in (tmp_path / "run", str(tmp_path / "run"), suture.Store(tmp_path / "run"), table):
        assert plot(source).axes[0].get_ylabel() == "test accuracy (%)"
        assert report(source, tmp_path / "a.html").is_file()
    assert "was not measured" in table._repr_html_()  # without controls
    assert type(table[table["control"] == ""]) is pd.DataFrame


def test_a_notebook_shows_the_verdict_first_and_every_name_escaped() -> None:
    names = (NASTY[0], NASTY[2])
    said = in_short(curve_table(names))._repr_html_()
    (pair,) = arrange_pairs(curve_table(names), "accuracy")
    assert said.startswith("<p><b>")
    assert "&lt;img src=x onerror=alert(1)&gt;" in said
    assert not re.search(r"<(?!/?(p|b|table|tr|th|td)\b)", said)
    for value in 100 * pair.plain["stitched"]:
        assert f">{value:.1f}<" in said


def test_a_notebook_shows_indices_as_matrices_and_what_else_there_is_as_pandas_does() -> None:
    alike = similarities()
    said = in_short(alike)._repr_html_()
    assert said.count("<table>") == alike["index"].nunique()
    assert all(f">{value:.2f}<" in said for value in alike["value"])
    nothing = failing(curve_table(), curve_table()["control"] == "")
    assert "dataframe" in in_short(nothing)._repr_html_()


def test_networks_cuts_and_measurements_show_themselves() -> None:
    a, b = hybrids()
    assert all(f">{name}<" in a._repr_html_() for name in a.cuts.names)
    measured = suture.stitch(a, b, at="embed", data=few_digits(), fit="least-squares", controls="itself")
    said = measured._repr_html_()
    assert "itself" in said
    assert str(measured.penalty) in said
    said = repr(measured.stitched)
    assert "prefix: A up to embed" in said
    assert "suffix: B after embed" in said

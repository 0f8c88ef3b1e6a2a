"""Figures as SVG inside a page: small, escaped, and with what their marks say."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes

from reported import NASTY
from suture.reports.figures.curve import Picture, tell
from suture.reports.html.svg import draw


def made(scale: str = "linear") -> tuple[Picture, Axes]:
    figure = Picture(figsize=(2, 1))
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(1, 10), yscale=scale)
    axes.plot([0, 1], [1, 10], marker="o")
    return figure, axes


def test_names_are_escaped_wherever_they_stand() -> None:
    figure, axes = made()
    axes.set_xticks([0.5], ["\x07" + "".join(NASTY)], parse_math=False)
    tell(axes, [(0.5, 5)], ["".join(NASTY)])
    said = draw(figure, NASTY[1], "w1-")
    shown = "".join(NASTY).replace("\u202e", "⟨U+202E⟩")
    root = ElementTree.fromstring(said)
    assert f"⟨U+0007⟩{shown}" in [one.text for one in root.iter("text")]
    assert [one.text for one in root.iter("title")] == [shown]
    assert root.get("aria-label") == NASTY[1]
    assert not re.search("<(script|img|b|style|metadata)|style=| xmlns|xlink", said)


def test_marks_lie_where_they_are_drawn_and_none_outside_of_its_axes() -> None:
    figure, axes = made()
    tell(axes, [(0, 1), (1, 10), (0.5, 99)], ["first", "last", "beyond"])
    tell(axes, [(0.25, 1)], ["bar"], size=(0.5, 9))
    root = ElementTree.fromstring(draw(figure, "", ""))
    assert [one.text for one in root.iter("title")] == ["first", "last", "bar"]
    points = [(float(one.get("x", 0)), float(one.get("y", 0))) for one in root.iter("use")][-2:]
    circles = [(float(one.get("cx", 0)), float(one.get("cy", 0))) for one in root.iter("circle")]
    assert circles == [pytest.approx(point, abs=0.02) for point in points]
    (bar,) = root.iterfind(".//rect[@role='img']")
    ends = [abs(last - first) for first, last in zip(*points, strict=True)]
    assert float(bar.get("width", 0)) == pytest.approx(ends[0] / 2, abs=0.02)
    assert float(bar.get("height", 0)) == pytest.approx(ends[1], abs=0.02)


def test_powers_of_ten_keep_their_exponents() -> None:
    figure, _ = made("log")
    written = ["".join(one.itertext()) for one in ElementTree.fromstring(draw(figure, "", "")).iter("text")]
    assert "101" in ["".join(text.split()) for text in written]


def test_two_figures_of_a_page_share_no_id() -> None:
    one, other = (draw(made()[0], "", prefix) for prefix in ("a-", "b-"))
    identities = [set(re.findall(r' id="([^"]+)"', said)) for said in (one, other)]
    assert not identities[0] & identities[1]
    assert set(re.findall(r'href="#([^"]+)"', one)) <= identities[0]
    assert one == draw(made()[0], "", "a-")

"""Figures and screens, against the tables that they show."""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.table import Table

import suture
from reported import curve_figure, on_curve, read
from suture import summary
from suture.common.errors import DataError, OutputError
from suture.core.network.cuts import Cut, Cuts
from suture.measurement.tables.curve import arrange_curve
from suture.measurement.tables.say import say_curve
from suture.measurement.tables.table import COLUMNS
from suture.reports import style
from suture.reports.figures import curve as figures
from suture.reports.terminal import curve as screen

CONTROLS = ("itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs", "clustered noise")
DRAWN = ("untrained sender", "untrained receiver", "clustered noise")  #: of these, those that a figure has at first
CUTS = ("stem", "layer1", "layer2", "layer3", "head")
NOISE = {"sender": "", "sender_cut": "", "sender_depth": None, "sender_score": None}  #: a sender that is no network
ODD = ("$x_1$ [red]", "_y_ :smile: → 日本", "a" * 60)  #: mathematics, markup, a missing glyph, and a long name


def tabled(
    cuts: Sequence[str] = CUTS,
    *,
    controls: Sequence[str] = CONTROLS,
    seeds: int = 1,
    networks: int = 1,
    score: str = "accuracy",
    unit: str = "fraction",
    names: tuple[str, str] = ("A", "B"),
    **columns: Any,
) -> pd.DataFrame:
    """A table of made-up numbers, every one of them different."""
    random = np.random.default_rng(0)
    rows = []
    for i, cut in enumerate(cuts, start=1):
        for kind in ("", *controls):
            for network in range(networks):
                for seed in range(seeds):
                    value, scale = 0.9 * random.random(), 100 if unit == "fraction" else 1
                    rows.append(
                        {name: "" for name, dtype in COLUMNS.items() if dtype == "str"}
                        | {"trial": f"{cut}{kind}{network}{seed}", "status": "ok", "control": kind}
                        | {"sender": names[1 if kind == "itself" else 0], "receiver": names[1]}
                        | {"sender_cut": cut, "receiver_cut": cut, "score_data": "d/score", "fit": "TaskLoss()"}
                        | {"sender_depth": i / len(cuts), "receiver_depth": i / len(cuts), "n": 1200}
                        | {"network_seed": network if networks > 1 else None, "seed": seed}
                        | {"score": score, "unit": unit, "converged": True, "steps": 3, "seconds": 1.0}
                        | {"stitched": value, "stitched_low": value - 0.03, "stitched_high": value + 0.05}
                        | {"sender_score": 0.93, "receiver_score": 0.95, "penalty": scale * (0.95 - value)}
                        | {"penalty_low": scale * (0.9 - value), "penalty_high": scale * (0.98 - value)}
                        | {"representation_error": 0.5}
                        | columns
                        | (NOISE if kind == "clustered noise" else {})
                    )
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def failing(table: pd.DataFrame, which: "pd.Series[bool]") -> pd.DataFrame:
    """The table with some of its trials failed, as ``to_table`` writes them."""
    kept = ["trial", "study", "sender", "receiver", "sender_cut", "receiver_cut", "sender_depth", "receiver_depth"]
    kept += ["fit", "stitch", "control", "network_seed", "seed", "fit_data", "score_data", "score", "unit"]
    table = table.copy()
    table.loc[which, [name for name in COLUMNS if name not in kept]] = None
    table.loc[which, ["status", "error"]] = ["failed", "FitError: no"]
    return table.astype(COLUMNS)


def line_of(figure: Figure, kind: str, panel: int = 0) -> Any:
    """The line of a kind of trial, known by its marker and colour."""
    colour, marker = style.LOOK[kind]
    found = [
        line
        for line in figure.axes[panel].lines
        if line.get_marker() == marker and same_color(line.get_color(), colour)
    ]
    assert len(found) == 1
    return found[0]


def band_of(figure: Figure, kind: str, panel: int = 0) -> dict[float, tuple[float, float]]:
    """The lower and upper edge of the band of a kind, by place."""
    colour = style.LOOK[kind][0]
    axes = figure.axes[panel]
    filled = [c for c in axes.collections if isinstance(c, PolyCollection)]
    bands = [c for c in filled if same_color(np.append(c.get_facecolor()[0][:3], 1), colour)]
    points = np.concatenate([path.vertices for band in bands for path in band.get_paths()])
    return {x: (points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max()) for x in set(points[:, 0])}


def names_of(figure: Figure, panel: int = 0) -> dict[str, str]:
    """The names beside the lines of a panel, from the top, with their colours."""
    named = sorted(figure.axes[panel].texts, key=lambda text: -text.xy[1])
    return {text.get_text(): text.get_color() for text in named}


def marks_of(figure: Figure) -> list[str]:
    """What the figure says that its marks mean."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def seen(figure: Figure) -> list[str]:
    """Every text of a figure that is drawn, as it is drawn: mathematics would not come out as it is written."""
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]
    assert all(text._preprocess_math(text.get_text()) == (text.get_text(), False) for text in texts)
    return [text.get_text() for text in texts]


# Figures


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_kind_of_trial_has_a_line_and_a_band(seeds: int) -> None:
    table = tabled(seeds=seeds)
    figure = curve_figure(table)
    expected = summary(table)
    for kind in ("", *DRAWN):
        rows = expected[expected["control"] == kind]
        x, y = line_of(figure, kind).get_data()
        assert list(x) == list(range(len(CUTS)))
        np.testing.assert_allclose(y, 100 * rows["stitched"])
        low, high = np.array([edge for _, edge in sorted(band_of(figure, kind).items())]).T
        np.testing.assert_allclose(low, 100 * rows["stitched_low"])
        np.testing.assert_allclose(high, 100 * rows["stitched_high"])


def test_the_penalty_has_its_own_panel_with_a_zero() -> None:
    table = tabled()
    figure = curve_figure(table)
    upper, lower, _ = figure.axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("test accuracy (%)", "penalty (pp)")
    for kind in ("", "itself"):
        rows = table[table["control"] == kind]
        np.testing.assert_allclose(line_of(figure, kind, panel=1).get_ydata(), rows["penalty"])
        low, high = np.array([edge for _, edge in sorted(band_of(figure, kind, panel=1).items())]).T
        np.testing.assert_allclose(low, rows["penalty_low"])
        np.testing.assert_allclose(high, rows["penalty_high"])
    assert [list(line.get_ydata()) for line in lower.lines].count([0, 0]) == 1
    assert len(lower.lines) == 3


def test_the_parents_are_lines_across() -> None:
    axes = curve_figure(tabled()).axes[0]
    across = {line.get_linestyle(): list(line.get_ydata()) for line in axes.lines if line.get_marker() == "None"}
    assert across == {"-": [95, 95], "--": [93, 93]}


def test_a_sender_without_a_score_of_its_own_has_no_line() -> None:
    figure = curve_figure(tabled(sender_score=None))
    assert "A alone (sender)" not in names_of(figure)
    assert "B alone (receiver)" in names_of(figure)


def test_every_line_is_named_in_its_colour_where_it_ends_and_no_two_names_overlap() -> None:
    table = tabled()
    figure = curve_figure(table)
    called = {"A → B": ""} | {kind: kind for kind in DRAWN}
    named = names_of(figure)
    assert {*named} == {*called, "B alone (receiver)", "A alone (sender)"}
    assert all(same_color(named[name], style.LOOK[kind][0]) for name, kind in called.items())
    ends = table[table["receiver_cut"] == CUTS[-1]].set_index("control")["stitched"]
    ends = {name: ends[kind] for name, kind in called.items()} | {"B alone (receiver)": 0.95, "A alone (sender)": 0.93}
    assert list(named) == sorted(ends, key=lambda name: -ends[name])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    middles = np.sort([(box.y0 + box.y1) / 2 for box in boxes])
    assert np.diff(middles).min() >= 7 * figure.dpi / 72
    box = figure.axes[0].get_window_extent()
    assert box.y0 - 1 <= middles.min()
    assert middles.max() <= box.y1 + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "networks", "said"),
    [(1, 1, "1,200 test samples"), (3, 1, "3 stitch seeds and 1,200 test samples"), (2, 4, "4 network seeds")],
)
def test_the_figure_says_what_its_bands_are(seeds: int, networks: int, said: str) -> None:
    figure = curve_figure(tabled(seeds=seeds, networks=networks))
    told = figure.axes[0].get_title("left").replace("\n", "; ")  # a long one takes two lines
    assert told.startswith(f"bands: 95 % intervals over {said}; ")


def test_several_seeds_have_the_t_interval() -> None:
    table = tabled(("only",), seeds=3, controls=())
    (low, high), mean = band_of_one(curve_figure(table)), 100 * table["stitched"].mean()
    half = 4.302652729911275 * 100 * table["stitched"].std() / np.sqrt(3)  # Student's t, 2 degrees of freedom, 97.5 %
    assert mean - half < 0  # where no fraction is
    own = 100 * (table["stitched_high"] - table["stitched"]).mean()
    assert (low, high) == pytest.approx((0, mean + np.hypot(half, own)))


def band_of_one(figure: Figure) -> tuple[float, float]:
    """The interval of a single cut, which is a line upright."""
    (upright,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection) and c.get_segments()]
    ((_, low), (_, high)) = upright.get_segments()[0]
    return low, high


def test_missing_intervals_leave_out_the_band_but_not_the_line() -> None:
    bounds = dict.fromkeys(["stitched_low", "stitched_high", "penalty_low", "penalty_high"])
    figure = curve_figure(tabled(**bounds))
    assert np.isfinite(line_of(figure, "").get_ydata()).all()
    assert not any(len(path.vertices) for c in figure.axes[0].collections for path in c.get_paths())
    assert "bands" not in figure.axes[0].get_title("left")
    seen(figure)


def test_a_failed_trial_leaves_a_gap() -> None:
    table = tabled()
    figure = curve_figure(failing(table, (table["control"] == "") & (table["receiver_cut"] == "layer2")))
    y = line_of(figure, "").get_ydata()
    assert list(np.isnan(y)) == [False, False, True, False, False]
    assert np.isfinite(line_of(figure, "untrained sender").get_ydata()).all()
    assert 2 not in band_of(figure, "")


def test_a_cut_where_all_failed_keeps_its_place() -> None:
    table = tabled()
    figure = curve_figure(failing(table, table["receiver_cut"] == "layer2"))
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == list(CUTS)
    assert np.isnan(line_of(figure, "untrained sender").get_ydata()[2])


def test_a_value_between_gaps_still_shows_its_interval() -> None:
    table = tabled(controls=())
    figure = curve_figure(failing(table, table["receiver_cut"].isin(["stem", "layer2"])))
    (upright,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection) and c.get_segments()]
    row = table[table["receiver_cut"] == "layer1"].iloc[0]
    np.testing.assert_allclose(
        upright.get_segments(), [[[1, 100 * row["stitched_low"]], [1, 100 * row["stitched_high"]]]]
    )


@pytest.mark.slow
def test_cuts_run_from_input_to_output_whatever_the_order_of_the_rows() -> None:
    table = tabled()
    shuffled = curve_figure(table.sample(frac=1, random_state=1))
    assert [tick.get_text() for tick in shuffled.axes[-1].get_xticklabels()] == list(CUTS)
    np.testing.assert_allclose(line_of(shuffled, "").get_ydata(), line_of(curve_figure(table), "").get_ydata())


@pytest.mark.parametrize(
    ("unit", "label"), [("nats", "test loss (nats)"), ("bits", "test loss (bits)"), ("raw", "test loss")]
)
def test_other_units_are_drawn_as_they_are(unit: str, label: str) -> None:
    table = tabled(score="loss", unit=unit)
    figure = curve_figure(table, "loss")
    assert figure.axes[0].get_ylabel() == label
    assert figure.axes[1].get_ylabel() == label.replace("test loss", "penalty")
    np.testing.assert_allclose(line_of(figure, "").get_ydata(), table[table["control"] == ""]["stitched"])


def test_a_score_without_a_penalty_has_one_panel() -> None:
    figure = curve_figure(tabled(penalty=None, penalty_low=None, penalty_high=None))
    assert len(figure.axes) == 1
    assert figure.axes[0].get_xlabel() == "cut (input → output)"


def test_a_control_of_the_users_own_has_a_look() -> None:
    figure = curve_figure(tabled(controls=("noise",)))
    assert same_color(names_of(figure)["noise"], style.look_of("noise")[0])
    assert len(figure.axes[0].lines) == 4


@pytest.mark.filterwarnings("error")
def test_names_come_out_as_they_are_written() -> None:
    figure = curve_figure(tabled(ODD, names=("_a$b$", "$c$_[bold]"), score="accuracy_$x$"), "accuracy_$x$")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        texts = seen(figure)
    assert {"$x_1$ [red]", "_y_ :smile: → 日本", "test accuracy_$x$ (%)"} < set(texts)
    assert {"_a$b$ → $c$_[bold]", "_a$b$ alone (sender)"} < set(texts)
    assert any(re.fullmatch("a+…a+", text) for text in texts)


@pytest.mark.slow
def test_long_names_stay_inside_the_figure() -> None:
    names = ("resnet18_cifar10_seed0_epoch200_lr0.1_wd5e-4", "resnet18_cifar10_seed1_epoch200_lr0.1_wd5e-4")
    figure = curve_figure(tabled(names=names))
    figure.draw_without_rendering()
    page = figure.bbox
    for text in (figure._suptitle, *figure.axes[0].texts):
        box = text.get_window_extent()
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert box.y1 <= page.y1
    assert figure.axes[0].get_window_extent().height > 1.5 * figure.dpi


@pytest.mark.parametrize("count", [1, 3, 13, 40, pytest.param(120, marks=pytest.mark.slow)])
def test_the_names_of_many_cuts_do_not_overlap(count: int) -> None:
    figure = curve_figure(tabled([f"layer{i // 10}.{i % 10}.add" for i in range(count)], controls=()))
    figure.draw_without_rendering()
    labels = figure.axes[-1].get_xticklabels()
    assert len(labels) == count
    # Each is a strip of its own height, turned: how far two neighbours are apart, across the strip
    angle = np.radians(labels[0].get_rotation())
    size = labels[0].get_fontsize() * figure.dpi / 72
    ends = [label.get_window_extent() for label in labels]
    apart = np.diff([box.x1 if 0 < angle < 1 else (box.x0 + box.x1) / 2 for box in ends])
    if angle:
        assert (apart * np.sin(angle) >= size).all()
    else:
        assert all(one.x1 < other.x0 for one, other in pairwise(ends))
    assert min(box.y0 for box in ends) >= 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (lambda: tabled().iloc[:0], "no measurement of 'accuracy'; its scores: none"),
        (
            lambda: pd.concat([tabled(), tabled(names=("C", "B"))]),
            "a curve has one sender, and the table has A, C; select",
        ),
        (lambda: pd.concat([tabled(), tabled(names=("A", "C"))]), "a curve has one receiver, and the table has B, C"),
        (
            lambda: pd.concat([tabled(), tabled(fit="LeastSquares()")]),
            "several measurements at stem → stem, which differ in fit",
        ),
        (lambda: failing(tabled(), tabled()["control"] == tabled()["control"]), "to draw: every trial failed"),
    ],
)
def test_what_is_no_curve_is_refused(table: Callable[[], pd.DataFrame], message: str) -> None:
    with pytest.raises(DataError, match=message):
        curve_figure(table())


def test_cuts_of_other_names_are_named_both() -> None:
    table = tabled(("layer1", "layer2"))
    table.loc[~table["control"].isin(["itself", "clustered noise"]), "sender_cut"] = table["sender_cut"].str.replace(
        "layer", "blocks."
    )
    assert arrange_curve(table, "accuracy").labels == ("blocks.1 → layer1", "blocks.2 → layer2")


# Files


@pytest.mark.slow
def test_a_figure_is_saved_as_png_pdf_and_svg(tmp_path: Path) -> None:
    figure = curve_figure(tabled(ODD))
    paths = figures.save(figure, tmp_path / "new" / "curve.v1")
    assert [path.name for path in paths] == ["curve.v1.png", "curve.v1.pdf", "curve.v1.svg"]
    with Image.open(paths[0]) as picture:
        assert picture.size == tuple(int(200 * side) for side in figure.get_size_inches())
        grey = np.asarray(picture.convert("L"))
    assert 0.02 < (grey < 250).mean() < 0.5
    pdf = paths[1].read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontType 42" in pdf or b"/Subtype /Type0" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    texts = {text.text for text in ElementTree.parse(paths[2]).iter("{http://www.w3.org/2000/svg}text")}
    assert {axes.get_xlabel() for axes in figure.axes} - {""} <= texts


@pytest.mark.slow
def test_a_figure_is_the_same_whatever_the_users_matplotlib_is_set_to(tmp_path: Path) -> None:
    first = figures.save(curve_figure(tabled()), tmp_path / "first")
    theirs: dict[Any, Any] = {
        "font.family": "serif", "font.size": 20, "axes.grid": True, "savefig.transparent": True, "pdf.fonttype": 3,
        "figure.facecolor": "black", "lines.linewidth": 9, "savefig.bbox": "tight", "axes.xmargin": 0.4,
    }  # fmt: skip
    with mpl.rc_context(theirs):
        second = figures.save(curve_figure(tabled()), tmp_path / "second")
        assert mpl.rcParams["font.size"] == 20
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_drawing_leaves_no_trace() -> None:
    before = dict(mpl.rcParams)
    curve_figure(tabled())
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*curve\.png: .*; name another folder"):
        figures.save(curve_figure(tabled()), tmp_path / "file" / "curve")


# Screens


def drawn(table: Table | str, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=False, highlight=False, no_color=True)
    with console.capture() as captured:
        console.print(table, markup=False, emoji=False) if isinstance(table, str) else console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def rows_of(lines: Iterable[str], cuts: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    for line in lines:
        cut = line.split(" ")[0]
        if cut in cuts:
            yield cut, [float(number) for number in re.findall(r"[-+]?\d+\.\d+", line.removeprefix(cut))]


def test_the_numbers_on_the_screen_are_those_of_the_table() -> None:
    for unit, scale, half, seeds in (("fraction", 100, 0.0501, 3), ("nats", 1, 0.000501, 1)):
        table = tabled(seeds=seeds, unit=unit)
        arranged = arrange_curve(table)
        expected = summary(table).set_index(["receiver_cut", "control"])
        for width in (80, 100, 120, 200):
            lines = drawn(screen.curve_table(arranged, width=width), width)
            assert max(map(len, lines)) <= width
            shown = dict(rows_of(lines, CUTS))
            assert list(shown) == list(CUTS), (unit, width)
            for cut, numbers in shown.items():
                plain = expected.loc[(cut, "")]
                wanted = [scale * plain["stitched"], plain["penalty"], plain["penalty_low"], plain["penalty_high"]]
                wanted += [scale * expected.loc[(cut, kind), "stitched"] for kind in CONTROLS]
                np.testing.assert_allclose(numbers, np.array(wanted, float), atol=half, err_msg=f"{unit} {width}")


def test_the_brackets_stand_below_one_another_and_nothing_is_minus_zero() -> None:
    table = tabled(controls=())
    table["penalty"], table["penalty_low"], table["penalty_high"] = [-0.04, 12.0, 3.0, 0.0, 0.04], -0.02, 0.049
    table.loc[1, ["penalty_low", "penalty_high"]] = [-12.5, 25.25]
    lines = [line for line in drawn(on_curve(screen.curve_table, table)) if line.startswith(CUTS)]
    for bracket in "[,]":
        assert len({line.index(bracket) for line in lines}) == 1
    assert not any("-0.0" in line for line in lines)
    assert "+0.0 [  0.0,  0.0]" in lines[0]
    assert "+12.0 [-12.5, 25.2]" in lines[1]


@pytest.mark.parametrize("width", [80, 200])
def test_markup_in_names_comes_out_as_it_is_written(width: int) -> None:
    table = tabled(ODD[:2], names=("[blue]A[/]", ":boom:"))
    text = "\n".join(drawn(on_curve(screen.curve_table, table, width=width), width))
    assert "$x_1$ [red]" in text
    assert "_y_ :smile: → 日本" in text.replace("\n", "") or width == 80
    assert "[blue]A[/] → :boom:" in drawn(on_curve(screen.curve_heading, table), 200)[0]


def test_a_long_name_is_folded_and_no_number_is_cut_short() -> None:
    name = "features.denseblock4.denselayer16.conv2.with.a.very.long.name"
    lines = drawn(on_curve(screen.curve_table, tabled((name,))))
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    rule = next(i for i, line in enumerate(lines) if line.startswith("─"))
    assert "".join(line.split(" ")[0] for line in lines[rule + 1 :]) == name


def test_failed_trials_are_said_to_have_failed() -> None:
    table = tabled(("one", "two"), controls=("itself",), seeds=2)
    bad = (table["receiver_cut"] == "one") | ((table["seed"] == 1) & (table["control"] == ""))
    lines = drawn(on_curve(screen.curve_table, failing(table, bad)))
    assert re.fullmatch("one +failed +failed", lines[-2])
    value = 100 * table[(table["receiver_cut"] == "two") & (table["seed"] == 0)].set_index("control")["stitched"][""]
    assert re.match(rf"two +{value:.1f}\* ", lines[-1])
    assert "* some seeds failed; this is the mean of the others" in on_curve(screen.curve_heading, failing(table, bad))
    assert screen.failures(failing(table, bad)) == ["5 × FitError: no"]


def test_a_control_that_was_not_tried_is_left_empty() -> None:
    table = tabled(("one", "two"), controls=("itself",))
    lines = drawn(on_curve(screen.curve_table, table[(table["receiver_cut"] == "one") | (table["control"] == "")]))
    assert re.fullmatch(r"two +\d+\.\d +[-+]\S+ \[.*\]", lines[-1])


def test_where_all_failed_the_screen_says_so() -> None:
    table = failing(tabled(), tabled()["status"] == "ok")
    assert drawn(on_curve(screen.curve_table, table))[-1].split() == ["head", *["failed"] * 7]
    assert "A → B: test accuracy in %" in on_curve(screen.curve_heading, table)
    assert read(say_curve, table) == []


def test_the_heading_says_who_what_and_on_which_data() -> None:
    assert on_curve(screen.curve_heading, tabled()) == (
        "A → B: test accuracy in %, penalties in pp, with 95 % intervals over 1,200 test samples\n"
        "A alone 93.0 and B alone 95.0; scored on d/score; fitted by TaskLoss()"
    )
    heading = on_curve(screen.curve_heading, tabled(score="loss", unit="nats", seeds=2, sender_score=None), "loss")
    assert heading.startswith(
        "A → B: test loss in nats, with 95 % intervals over 2 stitch seeds and 1,200 test samples\n"
        "B alone 0.950; scored"
    )


def test_of_a_score_of_which_less_is_better_a_control_that_has_more_does_worse() -> None:
    table = tabled(("one", "two"), controls=("untrained sender",)).assign(receiver_score=0.0, sender_score=0.0)
    table["stitched"] = [0.0, 0.9, 0.0, 0.02]
    table = table.assign(
        stitched_low=table["stitched"], stitched_high=table["stitched"], penalty=100 * table["stitched"]
    )
    table = table.assign(penalty_low=table["penalty"], penalty_high=table["penalty"], converged=True)
    first, second = read(say_curve, table)
    assert first == "A works in B at both cuts, not worse than B there."
    assert second == "At the first cut it needs the training of A; at the last cut it does as well with A untrained."


def test_what_is_said_of_tables_that_are_not_judged() -> None:
    loss = tabled(score="loss", unit="nats")
    worst = loss[loss["control"] == ""].sort_values("penalty").iloc[-1]
    spread = f"[{worst['penalty_low']:.3f}, {worst['penalty_high']:.3f}]"
    said = f"Worst penalty: {worst['penalty']:+.3f} nats {spread} at {worst['receiver_cut']}."
    assert read(say_curve, loss, "loss") == [said, "Nothing is judged without a margin in nats: give one."]
    assert read(say_curve, tabled(penalty=None)) == []


def test_cuts_are_shown_with_their_names_as_they_are() -> None:
    cuts = Cuts(
        [Cut("a[red]$", 1, 2, (64, 112, 112), 9408, 236_027_904), Cut(":x:", 2, 2, (5,), 10, 0)],
        {"n[b]": "a [i] b"},
        "N",
    )
    lines = drawn(screen.cuts_table(cuts))
    assert lines[-2].split() == ["1", "a[red]$", "64×112×112", "0.50", "9,408", "236.0"]
    assert lines[-1].split() == ["2", ":x:", "5", "1.00", "10", "0.0"]
    assert re.fullmatch(r"n\[b\] +a \[i\] b", drawn(screen.dropped_table(cuts))[-1])


@pytest.mark.slow
def test_a_real_table_can_be_shown() -> None:
    data = suture.load_data("digits").limited(fit=200, score=100)
    network = suture.load_network("zoo:mlp,width=6,depth=2", example=data.example)
    cuts = ("flatten", "block2.relu")
    fit, control = suture.fits.LeastSquares(), suture.controls.shuffled_pairs
    table = suture.run(suture.curve(network, network, at=cuts, data=data, fit=fit, controls=(control,)))
    for score in ("accuracy", "loss"):
        curve_figure(table, score).draw_without_rendering()
        assert list(dict(rows_of(drawn(on_curve(screen.curve_table, table, score, width=120), 120), cuts))) == list(
            cuts
        )
        assert "Worst penalty" in read(say_curve, table, score)[0]  # a network at chance is not judged

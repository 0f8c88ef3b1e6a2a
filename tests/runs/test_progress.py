"""Progress: what people see while they wait."""

import io
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console
from rich.text import Text

from reported import curve_table
from suture.common.errors import DataError
from suture.reports.terminal.curve import live_table
from suture.runs import progress
from suture.runs.progress import AlsoLogged, Bar, Lines, Live, Silent

GOOD = None
SEAM = "A → B at [red]x (itself)"
BAD = "FitError: the loss\nis not [b]finite"


class Clock:
    """A clock that goes on only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def follow(
    shown: progress.Progress, clock: Clock, seconds: list[float], errors: Sequence[str | None], before: int = 0
) -> None:
    shown.begin(before + len(errors), before)
    for step, error in zip(seconds, errors, strict=True):
        shown.working_on(SEAM)
        clock.now += step
        shown.done(SEAM, error)
    shown.end()


def test_warnings_are_written_at_once_and_once(clock: Clock) -> None:
    stream = io.StringIO()
    lines, bar = Lines(stream), Bar(Console(file=stream, force_terminal=True, width=100))
    for shown in (lines, bar, Silent()):
        for said in ("Warning: [b]A is near chance.",) * 2:
            AlsoLogged(shown).warn(said)
    assert stream.getvalue().count("Warning: [b]A is near chance.") == 2


def test_lines_come_at_most_every_ten_seconds_and_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    follow(Lines(stream), clock, [4, 4, 4, 4, 4, 4], [GOOD] * 6)
    assert stream.getvalue().splitlines() == [
        "6 trials",
        "3/6 trials, 12 s gone, about 12 s left",
        "6 trials in 24 s",
    ]


@pytest.mark.parametrize(
    ("noun", "said"),
    [
        ("trial", ["2 trials, 1 measured before", "2 trials in 4 s"]),
        ("network", ["2 networks, 1 done before", "2 networks in 4 s"]),
    ],
)
def test_lines_say_what_they_count(clock: Clock, noun: str, said: list[str]) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(2, 1, noun)
    clock.now += 4
    lines.done("A → B at x", GOOD)
    assert stream.getvalue().splitlines() == said


def test_what_is_planned_on_the_way_counts_too(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(1, 0)
    lines.more(4, 1)
    for _ in range(4):
        lines.working_on(SEAM)
        clock.now += 12
        lines.done(SEAM, GOOD)
    assert stream.getvalue().splitlines() == [
        "1 trial",
        "2/5 trials, 12 s gone, about 36 s left",
        "3/5 trials, 24 s gone, about 24 s left",
        "4/5 trials, 36 s gone, about 12 s left",
        "5 trials in 48 s",
    ]


def test_a_long_task_tells_how_far_it_is_and_a_line_says_so_where_nothing_ends(clock: Clock) -> None:
    stream, far = io.StringIO(), [None, 0.25]
    lines, bar = Lines(stream), Bar(Console(file=io.StringIO()))
    for shown in (lines, bar):
        shown.begin(4, 0, "network")
        shown.working_on("training A", lambda: far[0])
        shown.working_on("training B", lambda: far[1])  # which goes on from a quarter
    for share_a, share_b in ((None, 0.25), (0.1, 0.3), (0.2, 0.4)):
        far[:] = share_a, share_b
        clock.now += 40
        lines.remind()
        assert stream.getvalue().count("\n") == {40: 1, 80: 2, 120: 2}[clock.now - 1000]
    assert bar.time_left() == "2 min gone, 18 min left"  # a bar has not yet seen A move; B takes 600 s
    clock.now += 20  # a minute, to the second, since the last line
    lines.remind()
    assert stream.getvalue().splitlines() == [
        "4 networks",
        "0/4 networks, 80 s gone, about 39 min left; 10% of training A; 30% of training B",
        "0/4 networks, 2 min gone, about 20 min left; 20% of training A; 40% of training B",
    ]
    lines.end()


def test_workers_and_other_processes_of_a_store_share_what_is_left(clock: Clock) -> None:
    pace = Bar(Console(file=io.StringIO()))
    pace.begin(30, 0)
    assert pace.left is None
    for _ in range(5):  # two at once here, and as many by another process
        pace.working_on("one")
        pace.working_on("another")
        clock.now += 12
        for what in ("one", "another", "a third", "a fourth"):
            pace.done(what, GOOD)
    assert pace.left == 10 / 4 * 12
    for what in ("one", "another"):
        pace.working_on(what)
    clock.now += 6
    assert pace.left == pytest.approx((2 * 6 + 8 * 12) / (252 / 66))  # 252 s of work were done in 66 s
    pace.end()


def test_what_was_measured_before_counts_and_takes_no_time(clock: Clock) -> None:
    stream = io.StringIO()
    follow(Lines(stream), clock, [12, 4, 4], [GOOD] * 3, before=7)
    assert stream.getvalue().splitlines() == [
        "10 trials, 7 measured before",
        "8/10 trials, 12 s gone, about 24 s left",
        "10 trials in 20 s",
    ]


def test_failures_are_said_at_once_in_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    follow(Lines(stream), clock, [1, 1], [BAD, GOOD])
    assert stream.getvalue().splitlines() == [
        "2 trials",
        "failed: A → B at [red]x (itself): FitError: the loss is not [b]finite",
        "2 trials in 2 s",
    ]


def test_the_thread_of_lines_ends_with_them(clock: Clock) -> None:
    there = set(threading.enumerate())
    lines = Lines(io.StringIO())
    lines.begin(3, 0)
    (thread,) = set(threading.enumerate()) - there
    lines.end()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_lines_may_be_used_again(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    follow(lines, clock, [1], [GOOD])
    clock.now += 500
    follow(lines, clock, [200], [GOOD])
    assert stream.getvalue().splitlines() == ["1 trial", "1 trial in 1 s", "1 trial", "1 trial in 3 min"]


def test_no_trials_are_no_error(clock: Clock) -> None:
    for shown in (Lines(io.StringIO()), Silent(), Bar(Console(file=io.StringIO(), force_terminal=True))):
        follow(shown, clock, [], [])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3000, "50 min"),
        (5969, "99 min"),
        (5971, "1.7 h"),
        (1e5, "27.8 h"),
        (4 * 86400 + 1e5, "5 days"),
    ],
)
def test_times_are_in_the_unit_that_people_use(seconds: float, said: str) -> None:
    assert progress.clock(seconds) == said


def test_a_bar_shows_the_count_the_time_left_and_the_trial_in_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=80, no_color=True))
    bar.begin(30, 20)
    bar.working_on("a")
    clock.now += 20
    bar.done("a", GOOD)
    bar.working_on("a [red]network with a long name → another at layer4.1.relu (untrained receiver)")
    bar.bar.refresh()
    last = stream.getvalue().split("\r")[-1].split("\x1b[2K")[-1]
    bar.end()
    assert "21/30 20 s gone, 3 min left a [red]network with a long na…" in last
    assert "\n" not in last
    assert len(last.rstrip()) <= 80


def test_what_is_being_done_of_a_trial_has_a_line_of_its_own(clock: Clock) -> None:
    stream, written = io.StringIO(), io.StringIO()
    bar, lines = Bar(Console(file=stream, force_terminal=True, width=80, no_color=True)), Lines(written)
    for shown in (bar, lines):
        shown.begin(2, 0)
        shown.working_on(SEAM)
        shown.at(SEAM, "step 840 of at most 18,480")
    bar.bar.refresh()
    clock.now += 60
    lines.remind()
    for shown in (bar, lines):
        shown.end()
    assert f"gone  \n\x1b[2m{SEAM}: step 840 of at most 18,480\x1b[0m" in stream.getvalue()
    assert written.getvalue().splitlines()[-1] == f"0/2 trials, 60 s gone; {SEAM}: step 840 of at most 18,480"


def test_a_bar_leaves_failures_on_the_screen_and_itself_not() -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=80, no_color=True))
    follow(bar, Clock(), [0], [BAD])
    assert "failed: A → B at [red]x (itself): FitError: the loss is not [b]finite" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K")


def test_a_live_table_stands_under_its_bar_and_is_drawn_twice_a_second_at_most(clock: Clock) -> None:
    stream = io.StringIO()
    live = Live(
        Console(file=stream, force_terminal=True, width=80, no_color=True), lambda table: Text(f"{len(table)} rows")
    )
    live.begin(3, 0)
    drawn = []
    for rows in (1, 2, 3, 4):
        live.updated(lambda rows=rows: drawn.append(rows) or pd.DataFrame(index=range(rows)))
        clock.now += 0.3
    live.bar.refresh()
    last = stream.getvalue()
    live.end()
    assert drawn == [1, 3]
    assert last.rindex("0/3") < last.rindex("3 rows")


def test_a_live_table_shows_each_cut_by_the_last_fit_that_has_all_of_it() -> None:
    early = curve_table().assign(fit="Quick(steps=0)")
    own = curve_table()
    half = own[(own["receiver_cut"] == "stem") | ((own["receiver_cut"] == "head") & (own["control"] == ""))]
    stream = io.StringIO()
    Console(file=stream, width=120).print(live_table([early, half], 120))
    rows = {line.split()[0]: line.split()[-1] for line in stream.getvalue().splitlines() if "[" in line}
    assert rows == {"stem": "Converged", "layer1.0": "form", "layer2.0": "form", "head": "form"}
    Console(file=stream, width=120).print(live_table([early, own], 120))
    assert "closed form" not in stream.getvalue().rpartition("cut ")[2], "where all are by one fit, the heading says so"


def test_a_live_table_waits_until_there_is_enough_for_one(clock: Clock) -> None:
    def refuse(_: pd.DataFrame) -> str:
        raise DataError("controls alone")

    live = Live(Console(file=io.StringIO(), force_terminal=True), refuse)
    live.begin(1, 0)
    live.updated(pd.DataFrame)
    live.end()
    assert live.bar.beneath is None


@pytest.mark.parametrize(
    ("terminal", "settings", "kind"),
    [(True, {"TERM": "xterm"}, Bar), (True, {"TERM": "dumb"}, Lines), (False, {"FORCE_COLOR": "1"}, Lines)],
)
def test_a_bar_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, settings: dict[str, str], kind: type
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert type(progress.choose_progress()) is kind


def test_a_notebook_has_lines_and_a_program_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(progress.choose_bar()) is Silent
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert type(progress.choose_bar()) is Silent
    shell.kernel = object()
    assert type(progress.choose_bar()) is Lines


def test_whatever_is_shown_is_logged_too(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """As a service keeps it: how many, what failed as a warning, and the end; with what a stranger wrote seen."""
    caplog.set_level("INFO", "suture")
    shown = AlsoLogged(Silent())
    shown.begin(2, 0)
    shown.working_on("A")
    shown.done("A", "FitError: the loss\x1b[2J is not finite")
    shown.done("B", None)
    shown.end()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    first, failed, last = (record.getMessage() for record in caplog.records)
    assert (first, failed) == ("2 trials", "failed: A: FitError: the loss⟨U+001B⟩[2J is not finite")
    assert last.startswith("2 trials in ")
    assert capsys.readouterr().err == "", "nothing else is shown"

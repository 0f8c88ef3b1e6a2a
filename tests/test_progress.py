"""Progress: what people see while they wait."""

import io
import sys
from collections.abc import Sequence

import pytest
from rich.console import Console

from suture.runners import progress
from suture.runners.progress import Bar, Lines, Silent

GOOD = None
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
        shown.working_on("A → B at x")
        clock.now += step
        shown.done("A → B at [red]x (itself)", error)
    shown.end()


def test_lines_come_at_most_every_ten_seconds_and_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    follow(Lines(stream), clock, [4, 4, 4, 4, 4, 4], [GOOD] * 6)
    assert stream.getvalue().splitlines() == [
        "6 trials",
        "3/6 trials, 12 s gone, about 12 s left",
        "6 trials in 24 s",
    ]


@pytest.mark.parametrize(
    ("nouns", "said"),
    [
        ({}, ["2 trials, 1 measured before", "2 trials in 4 s"]),
        ({"noun": "network"}, ["2 networks, 1 trained before", "2 networks in 4 s"]),
        (
            {"noun": "network or trial", "plural": "networks and trials"},
            ["2 networks and trials, 1 done before", "2 networks and trials in 4 s"],
        ),
    ],
)
def test_lines_say_what_they_count(clock: Clock, nouns: dict[str, str], said: list[str]) -> None:
    stream = io.StringIO()
    lines = Lines(stream, **nouns)
    lines.begin(2, 1)
    clock.now += 4
    lines.done("A → B at x", GOOD)
    assert stream.getvalue().splitlines() == said


def test_what_is_planned_on_the_way_counts_too(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(1, 0)
    lines.more(4, 1)
    for _ in range(4):
        clock.now += 12
        lines.done("A → B at x", GOOD)
    assert stream.getvalue().splitlines() == [
        "1 trial",
        "2/5 trials, 12 s gone",
        "3/5 trials, 24 s gone, about 24 s left",
        "4/5 trials, 36 s gone, about 12 s left",
        "5 trials in 48 s",
    ]


@pytest.mark.parametrize("before", [0, 3])
def test_the_time_left_is_at_the_pace_of_trials_and_not_of_trainings(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr(bar.bar, "get_time", clock)
    monkeypatch.setattr(bar.bar.tasks[0], "_get_time", clock)
    for shown in (lines := Lines(stream), bar):
        clock.now += 1
        shown.begin(2, 0)
        clock.now += 7200
        shown.more(10 + before, before)  # what the network is for, which is done now
        shown.done("the network", GOOD)
        for _ in range(3):
            clock.now += 12
            shown.done("A → B at x", GOOD)
    total, done = 12 + before, 4 + before
    assert stream.getvalue().splitlines()[-1] == f"{done}/{total} trials, 2.0 h gone, about 96 s left"
    assert progress._TimeLeft().render(bar.bar.tasks[0]).plain == "2.0 h gone, 96 s left"
    lines.end()
    bar.end()


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


def test_a_bar_shows_the_count_the_time_left_and_the_trial_in_one_line() -> None:
    stream = io.StringIO()
    now = [0.0]
    bar = Bar(Console(file=stream, force_terminal=True, width=80, no_color=True, get_time=lambda: now[0]))
    bar.begin(30, 20)
    bar.working_on("a [red]network with a long name → another at layer4.1.relu (untrained receiver)")
    now[0] = 20.0
    bar.done("a", GOOD)
    bar.bar.refresh()
    last = stream.getvalue().split("\r")[-1].split("\x1b[2K")[-1]
    bar.end()
    assert "21/30 20 s gone, 3 min left a [red]network with a long na…" in last
    assert "\n" not in last
    assert len(last.rstrip()) <= 80


def test_a_bar_leaves_failures_on_the_screen_and_itself_not() -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=80, no_color=True))
    follow(bar, Clock(), [0], [BAD])
    assert "failed: A → B at [red]x (itself): FitError: the loss is not [b]finite" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K")


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
    assert type(progress.shown()) is kind

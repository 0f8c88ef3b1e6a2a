"""The sentences of a report on a run: the question, the verdict, the cost, and how to repeat it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from suture.common.errors import DataError
from suture.common.formatting import say_count
from suture.measurement.tables.described import Record
from suture.measurement.tables.explain import Explanation, explain_reading
from suture.measurement.tables.questions import CLOSE, NO, YES, Question
from suture.measurement.tables.read import Reading, scores_of
from suture.measurement.tables.say import asked, name_question, say_mark
from suture.measurement.tables.table import not_converged
from suture.reports.html.runs import Run
from suture.reports.style import MARKS
from suture.reports.terminal.curve import one_line
from suture.runs.progress import clock


def lay_words(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "", marks: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the template's values for a table of words, in which ``marks`` are coloured.

    Rows of the kind ``claims`` stand below each other on narrow pages.
    """
    return {"caption": caption, "headings": headings, "rows": rows, "kind": kind, "marks": marks}


@dataclass(frozen=True)
class Shown:
    """A mark of a strip: its letter, its name in the style sheet, and the answer in words."""

    glyph: str
    kind: str
    said: str


@dataclass(frozen=True)
class Strip:
    """The answers on a pair of networks: a row for each question, or for each sender cut of a matrix, and the legend.

    A row has its name and, for each column, the seam and its mark.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, Shown | None], ...]], ...]
    meaning: tuple[Shown, ...]


Facts = dict[str, list[str]]  #: names, and what is known of each


def networks(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the names of the senders and of the receivers of the trials themselves."""
    plain = table[table["control"] == ""]
    rows = plain if len(plain) else table
    return _held(rows, "sender"), _held(rows, "receiver")


def title(table: pd.DataFrame) -> str:
    """Return the networks: ``A → B``."""
    senders, receivers = networks(table)
    return f"{_listed(senders, 3) or 'no sender'} → {_listed(receivers, 3)}"


def say_asked(table: pd.DataFrame, question: str = "") -> str:
    """Describe the question of a run, in a sentence or two; ``question`` replaces the usual one."""
    senders, receivers = networks(table)
    plain = table[table["control"] == ""]
    seams = plain[["sender", "receiver", "sender_cut", "receiver_cut"]].drop_duplicates()
    same = bool((seams["sender_cut"] == seams["receiver_cut"]).all())
    controls = [control for control in _held(table, "control") if control]
    beside = f", beside {say_count(len(controls), 'control')}" if controls else ", without controls"
    used = plain if len(plain) else table
    n = used["n"].dropna()
    how = f" ({int(n.iloc[0]):,} samples)" if len(n) else ""
    usual = f"How useful is the representation of {_listed(senders, 4)} to {_listed(receivers, 4)}? "
    many = say_count(len(seams), "cut" if same else "seam")
    fitted, scored = (_listed(_held(used, column), 3) for column in ("fit_data", "score_data"))
    return (
        f"{question or usual}Measured at {many}{beside}, with stitches fitted on {fitted} and scored on {scored}{how}."
    )


def settings(table: pd.DataFrame) -> Facts:
    """Return the settings of a run."""
    senders, receivers = networks(table)
    plain = table[table["control"] == ""]
    used = plain if len(plain) else table
    return {
        "Senders": [_listed(senders, 12)],
        "Receivers": [_listed(receivers, 12)],
        "Stitch": [_listed(_held(used, "stitch"), 8)],
        "Fit": _held(used, "fit"),
        "Fitted on": _held(used, "fit_data"),
        "Scored on": _held(used, "score_data"),
        "Scores": [_listed(scores_of(table), 12)],
        "Controls": [_listed([control for control in _held(table, "control") if control], 20) or "none"],
    }


def answers(reading: Reading) -> Strip | None:
    """Return the marks of the only pair of networks that was judged: a row for each question, a column for each cut.

    If several sender cuts lead to one receiver cut, the rows are the sender cuts, and the marks answer the first
    question.
    """
    if not reading.is_judged or len(reading.pairs) != 1:
        return None
    (pair,), questions = reading.pairs, asked(reading)
    if not questions:
        return None

    def row(name: str, question: Question) -> tuple[str, tuple[tuple[str, Shown | None], ...]]:
        marks = [_shown(reading, question, mark) for mark in reading.marks(question)]
        return name, tuple(zip(pair.labels, marks, strict=True))

    if len({*pair.cuts}) == len(pair.seams):
        rows = [row(name_question(reading, question), question) for question in questions]
        columns, caption = pair.labels, "The answers at each cut, from input to output"
    else:
        (_, cells), columns = row("", questions[0]), tuple(dict.fromkeys(pair.cuts))
        caption = "Does it work? Sender cuts down, receiver cuts across"
        held = dict(zip(pair.seams, cells, strict=True))
        rows = [
            (start, tuple(held.get((start, end), (end, None)) for end in columns))
            for start in dict.fromkeys(start for start, _ in pair.seams)
        ]
    used = {mark for _, cells in rows for _, mark in cells if mark is not None}
    order = [mark.glyph for mark in MARKS.values()]
    return Strip(caption, columns, tuple(rows), tuple(sorted(used, key=lambda mark: order.index(mark.glyph))))


def _shown(reading: Reading, question: Question, answer: str) -> Shown | None:
    if answer not in MARKS:
        return None
    kind = {YES: "yes", NO: "no", CLOSE: "close"}.get(answer, "whose")
    return Shown(MARKS[answer].glyph, kind, say_mark(reading, question, answer))


def explained(run: Run, readings: Sequence[Reading]) -> Explanation | None:
    """Explain the first score that can be judged; ``None`` if none can."""
    for reading in readings:
        if reading.is_judged:
            try:
                return explain_reading(reading, run.similarities, run.ranks)
            except DataError:
                continue
    return None


# --- cost, machine, repeating -----------------------------------------------------------------------------------------


def cost(table: pd.DataFrame) -> Facts:
    """Count trials, failures, time and steps, each trial once."""
    if not len(table):
        return {}
    once = table.drop_duplicates("trial")
    failed = int((once["status"] == "failed").sum())
    seconds, steps = float(once["seconds"].sum()), int(once["steps"].fillna(0).sum())
    open_ = int(not_converged(once).sum())
    return {
        "Trials": [f"{len(once):,}, of which {failed:,} failed" if failed else f"{len(once):,}, none failed"],
        "Time": [f"{clock(seconds)} of one thread ({seconds:,.1f} seconds)"],
        "Steps of fits": [f"{steps:,}" + (f"; {say_count(open_, 'fit')} had not converged" if open_ else "")],
    }


def machines(found: Sequence[Record]) -> Facts:
    """Name versions and machines, each once."""
    names = {"Suture": "suture", "PyTorch": "torch", "Python": "python", "Processor": "processor", "Host": "host"}
    return {
        said: [", ".join(dict.fromkeys(str(one[name]) for one in found if name in one))] for said, name in names.items()
    }


def seeds(table: pd.DataFrame) -> Facts:
    """Return the seeds, by their kind."""
    of = {"network_seed": "of the networks", "seed": "of the stitches"}
    held = {
        what: sorted({int(seed) for seed in table[column].dropna()}) for column, what in of.items() if column in table
    }
    return {f"Seeds {what}": [_listed(list(map(str, seeds)), 12)] for what, seeds in held.items()}


def state(run: Run) -> str:
    """Describe the missing measurements, if there are any."""
    if run.state is None or run.state.complete:
        return ""
    said = f"{run.state.measured} of {say_count(run.state.planned, 'trial')} measured, {run.state.missing} missing"
    return f"This run is not complete: {said}."


def failures(table: pd.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Return each trial that failed: seam, control, seed and why."""
    failed = table[table["status"] == "failed"].drop_duplicates("trial")
    for _, row in failed.iterrows():
        sender = f"{row['sender']} {row['sender_cut']}" if row["sender"] else "noise"
        yield (
            f"{sender} → {row['receiver']} {row['receiver_cut']}",
            row["control"] or "the trial itself",
            "" if pd.isna(row["seed"]) else str(row["seed"]),
            one_line(row["error"]),
        )


def _held(table: pd.DataFrame, column: str) -> list[str]:
    return [str(value) for value in dict.fromkeys(table[column]) if str(value)]


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""What a report says of a run in words: what was asked, the verdict, what it cost, and how to repeat it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from suture.common.errors import DataError
from suture.common.formatting import say_count
from suture.measurement.tables.curve import arrange_pairs
from suture.measurement.tables.described import Record
from suture.measurement.tables.explain import Explanation, explain
from suture.measurement.tables.table import main_score, not_converged
from suture.measurement.tables.verdicts import judge, say_verdict, say_verdicts
from suture.reports.arrange import scores_of
from suture.reports.html.plot import glyph_of, shades_of
from suture.reports.html.runs import Run
from suture.reports.style import mark_of
from suture.reports.terminal.curve import one_line
from suture.runs.progress import clock

MARKED = ("reproduced", "not reproduced", "undecided")  #: words of a table that have a colour


def lay_words(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> dict[str, Any]:
    """Return what the template needs for a table of words; ``claims`` stand below each other on narrow pages."""
    return {"caption": caption, "headings": headings, "rows": rows, "kind": kind, "marks": MARKED}


@dataclass(frozen=True)
class Mark:
    """What stands for the verdict on some seams: a letter, its colours on a light and on a dark page, and its words."""

    glyph: str
    light: str
    dark: str
    said: str


@dataclass(frozen=True)
class Strip:
    """The verdicts on a pair of networks: rows of marks with what they are of, and what each mark means, and where."""

    rows: tuple[tuple[str, tuple[tuple[str, Mark], ...]], ...]
    meaning: tuple[tuple[Mark, str], ...]


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


def asked(table: pd.DataFrame, question: str = "") -> str:
    """Say what was asked, in a sentence or two; the ``question`` is the usual one unless it is given."""
    senders, receivers = networks(table)
    plain = table[table["control"] == ""]
    seams = plain[["sender", "receiver", "sender_cut", "receiver_cut"]].drop_duplicates()
    same = bool((seams["sender_cut"] == seams["receiver_cut"]).all())
    controls = [control for control in _held(table, "control") if control]
    beside = f", beside {say_count(len(controls), 'control')}" if controls else ", without controls"
    used = plain if len(plain) else table
    n = used["n"].dropna()
    how = f" ({int(n.iloc[0]):,} samples)" if len(n) else ""
    usual = f"What is the representation of {_listed(senders, 4)} worth to {_listed(receivers, 4)}? "
    many = say_count(len(seams), "cut" if same else "seam")
    fitted, scored = (_listed(_held(used, column), 3) for column in ("fit_data", "score_data"))
    return f"{question or usual}Measured at {many}{beside}, by stitches fitted on {fitted} and scored on {scored}{how}."


def settings(table: pd.DataFrame) -> Facts:
    """Name what was asked for."""
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


def judged(table: pd.DataFrame) -> tuple[str, Strip | None]:
    """Return the verdict on the only pair of networks of a table, and its strip, or on several pairs, without a strip.

    The strip has a row of marks, or, if several sender cuts lead to one receiver cut, a row for each sender cut. A
    table of another kind has no verdict.
    """
    try:
        pairs = arrange_pairs(table, main_score(table))
    except DataError:
        return "", None
    if not all(pair.percent for pair in pairs):
        return "", None
    if len(pairs) != 1:
        between = [pair for pair in pairs if pair.sender != pair.receiver]
        return say_verdicts(between) if between else "", None
    (pair,) = pairs
    verdicts, labels = judge(pair), pair.labels
    marks = []
    for one in verdicts:
        colour, sign, hollow = mark_of(one)
        light, dark = shades_of(colour)
        marks.append(Mark(glyph_of(sign, hollow), light, dark, one.said))
    rows: dict[str, list[tuple[str, Mark]]] = {}
    several = len({*pair.cuts}) < len(pair.seams)
    for (start, _), label, mark in zip(pair.seams, labels, marks, strict=True):
        rows.setdefault(start if several else "", []).append((label, mark))
    where: dict[Mark, list[str]] = {}
    for label, mark in zip(labels, marks, strict=True):
        where.setdefault(mark, []).append(label)
    meaning = tuple((mark, _listed(places, 4)) for mark, places in where.items())
    return say_verdict(pair), Strip(tuple((name, tuple(held)) for name, held in rows.items()), meaning)


def explained(run: Run) -> Explanation | None:
    """Say what holds and what must not be concluded; ``None`` if the table is none that can be explained."""
    for score in scores_of(run.table):
        try:
            return explain(run.table, run.similarities, run.ranks, score=score)
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
    """Return the seeds, by what they are of."""
    of = {"network_seed": "of the networks", "seed": "of the stitches"}
    held = {
        what: sorted({int(seed) for seed in table[column].dropna()}) for column, what in of.items() if column in table
    }
    return {f"Seeds {what}": [_listed(list(map(str, seeds)), 12)] for what, seeds in held.items()}


def state(run: Run) -> str:
    """Say what is not measured yet, if there is something."""
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

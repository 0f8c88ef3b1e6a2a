"""The studies of a report: what each asks, its claims with their verdicts, its figure and what it cost."""

from collections.abc import Sequence
from typing import Any

from suture.common.formatting import say_count
from suture.reports.panels import arrange_panels
from suture.reports.terminal.studies import count_open, number
from suture.runs.progress import clock
from suture.studies import Decided, Figure, Result, Study, verdict_of
from suture.studies.base.scale import TINY

_TINY = (
    "No verdict is given: at tiny scale networks are minimal and trained for two steps, so the figures mean nothing."
)
MARKED = ("reproduced", "not reproduced", "undecided")  #: verdicts that have a colour
_VERDICTS = (*MARKED, "reported", "not measured")


Block = tuple[str, Any]  #: a kind of block of the template, and what it shows


def verdict(results: tuple[tuple[Study, Result], ...]) -> list[str]:
    """Return the verdict of studies in a sentence each."""
    return [_one_verdict(study, result, len(results) > 1) for study, result in results]


def _one_verdict(study: Study, result: Result, several: bool) -> str:
    before = f"{study.id}: " if several else ""
    if result.scale == TINY:
        return before + (_TINY[0].lower() + _TINY[1:] if several else _TINY)
    decided = result.decide(study)
    counts = [(sum(one.verdict == word for one in decided), word) for word in _VERDICTS]
    listed = ", ".join(f"{number} {word}" for number, word in counts if number)
    said = f"{verdict_of(decided)}: of {say_count(len(decided), 'claim')} {listed}."
    return before + (said if several else said[0].upper() + said[1:])


def section(study: Study, result: Result, several: bool) -> tuple[str, list[Block], str]:
    """Return the title, the blocks and the id of a study's section; one of ``several`` says its question and cost."""
    blocks: list[Block] = [("text", f"{study.question} ({study.source})")] if several else []
    tiny = result.scale == TINY
    blocks += [("note", _TINY)] if tiny else []
    decided = [claim.decide(result.tables) for claim in study.claims] if tiny else result.decide(study)
    rows = [_row(one, tiny) for one in decided]
    if rows:
        headings = ("Claim", "Measured", "Interval", "Claimed", "In the paper", "Verdict")
        said = (
            "Each figure is a mean over pairs of networks. A claim is decided by the whole interval, of 95 % unless it "
            "says otherwise."
        )
        caption = f"The claims of {study.id}. {said}"
        blocks.append(("table", words_table(caption, headings, rows, "claims")))
    for place, chart in enumerate(arrange_panels(study.panels, result.tables), 1):
        if any(line.has_values for measure in chart.measures for line in measure.lines):
            blocks.append(("figure", chart))
        else:
            blocks.append(("note", f"Panel {place} ({chart.title}) cannot be drawn: nothing of it was measured."))
    differs = [*study.deviations, *(study.small if result.scale == "small" else ())]
    blocks += [("subtitle", "What differs from the paper"), ("sentences", differs)] if differs else []
    blocks += [("facts", card(result))] if several else []
    return f"{study.id}: {study.title}" if several else "Claims", blocks, f"study-{study.id}"


def words_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> dict[str, Any]:
    """Return what the template needs for a table of words; ``claims`` stand below each other on narrow pages."""
    return {"caption": caption, "headings": headings, "rows": rows, "kind": kind, "marks": MARKED}


def _row(decided: Decided, tiny: bool) -> tuple[str, ...]:
    claim, figure = decided.claim, decided.figure
    bound = "" if claim.threshold is None else f"{claim.direction} {claim.threshold:g} {claim.unit}"
    bound += f" (margin {claim.margin:g})" if claim.margin else ""
    bound += ", this project's threshold" if claim.ours else ""
    measured = decided.reason if figure is None else f"{number(figure.value)} {claim.unit}"
    where = f"{claim.statement} ({claim.source})"
    return (where, measured.strip(), _interval(figure), bound.strip(), claim.paper, "" if tiny else decided.said)


def _interval(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.all_alike:
        return f"none: all alike ({figure.units})"
    if not figure.decides:
        return f"none of {figure.units}"
    return f"{number(figure.low)} to {number(figure.high)} ({figure.units})"


def card(result: Result) -> dict[str, list[str]]:
    """Say what a study cost, by what its card says."""
    kept = result.card
    failed = f", of which {kept['failed']:,} failed" if kept["failed"] else ", none failed"
    failed += f"; {count:,} had not converged, and what they reach is a bound" if (count := count_open(result)) else ""
    return {
        "Scale": [result.scale],
        "Trials": [f"{kept['trials']:,}{failed}"],
        "Time of trials": [f"{clock(kept['seconds'])} of one thread ({kept['seconds']:,.1f} seconds)"],
        "Networks": [f"{say_count(kept['networks'], 'network')}, trained in {clock(kept['training_seconds'])}"],
    }

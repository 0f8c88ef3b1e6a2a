"""The studies of a report: the question of each, its claims with their verdicts, its figure and its cost."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from suture.extend import (
    Drawn,
    Page,
    Run,
    Section,
    Studies,
    appendix,
    clock,
    facts,
    lay_words,
    list_failures,
    say_count,
)
from suture_papers import STUDIES, Decided, Figure, Result, Study, load_result, verdict_of
from suture_papers.base.scale import TINY
from suture_papers.reports.figures import panel_for_page
from suture_papers.reports.panels import arrange_panels
from suture_papers.reports.terminal import count_open, number

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
        blocks.append(("table", lay_words(caption, headings, rows, "claims", MARKED)))
    for place, chart in enumerate(arrange_panels(study.panels, result.tables), 1):
        if any(line.has_values for measure in chart.measures for line in measure.lines):
            blocks.append(("figure", Drawn(chart, partial(panel_for_page, chart))))
        else:
            blocks.append(("note", f"Panel {place} ({chart.title}) cannot be drawn: nothing of it was measured."))
    differs = [*study.deviations, *(study.small if result.scale == "small" else ())]
    blocks += [("subtitle", "What differs from the paper"), ("sentences", differs)] if differs else []
    blocks += [("facts", card(result))] if several else []
    return f"{study.id}: {study.title}" if several else "Claims", blocks, f"study-{study.id}"


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
    if figure.all_alike and not figure.low < figure.high:
        return f"none: all alike ({figure.units})"
    if not figure.decides:
        return f"none of {figure.units}"
    return f"{number(figure.low)} to {number(figure.high)} ({figure.units})"


def card(result: Result) -> dict[str, list[str]]:
    """Return the cost of a study, from its card."""
    kept = result.card
    failed = f", of which {kept['failed']:,} failed" if kept["failed"] else ", none failed"
    failed += f"; {count:,} had not converged, and what they reach is a bound" if (count := count_open(result)) else ""
    return {
        "Scale": [result.scale],
        "Trials": [f"{kept['trials']:,}{failed}"],
        "Time of trials": [f"{clock(kept['seconds'])} of one thread ({kept['seconds']:,.1f} seconds)"],
        "Networks": [f"{say_count(kept['networks'], 'network')}, trained in {clock(kept['training_seconds'])}"],
    }


def page(run: Run) -> Page:
    """Return the page of studies: their questions, claims, figures and cost."""
    several = len(run.results) > 1
    sections = [Section(*section(study, result, several)) for study, result in run.results]
    study, result = run.results[0]
    title = f"{len(run.results)} studies" if several else study.title
    asked = f"{study.question} ({study.paper}, {study.source}; {study.id})"
    asked = f"What {', '.join(study.id for study, _ in run.results)} measured." if several else asked
    cost = Section("Cost", [] if several else facts(card(result)))
    verdicts = verdict(run.results)
    rest = [list_failures(run), cost, *appendix(run, cost=several)]
    figures = [block for block in sections[0].blocks if block[0] == "figure"]
    if several or result.scale == TINY or not figures:
        return Page(title, asked, verdicts, [*sections, *rest])
    claims = replace(sections[0], blocks=[block for block in sections[0].blocks if block is not figures[0]])
    return Page(verdicts[0], f"{title}. {asked}", [], [claims, *rest], figure=figures[0][1], tab=title)


def say_command(study: Study, result: Result) -> str:
    """Return the command that measures a study again."""
    return f"suture run {study.id} --scale {result.scale} --out FOLDER"


def load(folder: Path, name: str) -> tuple[Study, Result] | None:
    """Return a study with its result in a folder; ``None`` if it is not there."""
    result = load_result(folder, name)
    return None if result is None else (STUDIES[name], result)


REPORTED = Studies(lambda: tuple(STUDIES), load, page, say_command)

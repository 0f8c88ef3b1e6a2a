"""The papers' experiments for the terminal: the list, their cost, and their verdicts."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from rich.table import Table
from rich.text import Text

from suture.extend import Record, clock, lay_out, not_converged
from suture_papers import Claim, Decided, Figure, Result, Study, verdict_of
from suture_papers.base.cells import TRIALS
from suture_papers.base.count import Count

_FINEST = 6  #: digits after the point
_STYLES = {"reproduced": "green", "not reproduced": "red", "undecided": "yellow"}

# --- figures and thresholds -------------------------------------------------------------------------------------------


def written(figure: Figure | None, unit: str = "") -> str:
    """Return a figure with its interval: ``1.4 pp [0.9, 1.9]``; the value alone if the seeds are too few for one.

    All three have the same digits, and as many as tell the ends of the interval apart; millions are in the unit. Seeds
    that all gave the same are not a certainty, whether or not there is a bound: ``0.0 % (all alike)``.
    """
    if figure is None:
        return ""
    shown = [figure.value, *((figure.low, figure.high) if figure.decides and not figure.is_point else ())]
    millions = 1e6 <= max(map(abs, shown)) < 1e9
    value, *ends = _alike([one / 1e6 for one in shown] if millions else shown)
    unit = f"{'M' * millions}{unit}"
    interval = (f" [{ends[0]}, {ends[1]}]" if ends else "") + " (all alike)" * figure.all_alike
    return f"{value}{f' {unit}' if unit else ''}{interval}"


def _alike(values: Sequence[float]) -> list[str]:
    """Return numbers in the same digits after the point, as ``number`` has them for the largest."""
    largest = max(map(abs, values))
    if not isfinite(largest) or largest >= 1e9 or 0 < largest < 1e-3:
        return [number(value) for value in values]
    digits = 1 if largest >= 10 or largest == 0 else 2 if largest >= 0.1 else 2 - floor(log10(largest))
    low, high = min(values), max(values)
    while high > low and digits < _FINEST and f"{low:.{digits}f}" == f"{high:.{digits}f}":
        digits += 1
    texts = [f"{value:,.{digits}f}" for value in values]
    return [text.removeprefix("-") if float(text.replace(",", "")) == 0 else text for text in texts]


def number(value: float) -> str:
    """Write a number in as many digits as tell something: one after the point, three for small ones and millions."""
    if not isfinite(value):
        return f"{value:.3g}"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.3g} M" if abs(value) < 1e9 else f"{value:.3g}"
    text = (
        f"{value:,.1f}" if abs(value) >= 10 or value == 0 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
    )
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def bound(claim: Claim) -> str:
    """Return the threshold of a claim, with a dagger if it is ours: ``≤ 3 pp``; empty of a report."""
    if claim.threshold is None:
        return ""
    margin = f" ± {claim.margin:g}" if claim.margin else ""
    return f"{claim.direction} {claim.threshold:g}{margin}{'†' if claim.ours else ''}"


# --- what there is ----------------------------------------------------------------------------------------------------


def studies_table(studies: Iterable[Study]) -> Table:
    """Show a line for each study: its id, its place in the paper, its title, and its needs."""
    rows: list[tuple[Text | str, ...]] = []
    paper = ""
    for study in studies:
        if study.paper != paper:
            paper = study.paper
            rows.append((Text(paper, style="bold"), "", ""))
        rows.append((study.id, study.source, study.title + (f" (needs {study.needs})" if study.needs else "")))
    return lay_out(("=id", "in the paper", "experiment"), rows)


def study_record(study: Study) -> Record:
    """Return a study as plain values."""
    names = ("id", "paper", "source", "title", "question", "needs")
    lists = {name: list(getattr(study, name)) for name in ("deviations", "small")}
    return {name: getattr(study, name) for name in names} | lists | {"claims": list(map(claim_record, study.claims))}


# --- what it takes ----------------------------------------------------------------------------------------------------


def counts_text(
    studies: Sequence[Study], counts: Mapping[str, Count | str], times: Mapping[str, Record], width: int
) -> str:
    """Describe the size of each study at a scale; in place of a count may be the reason why there is none.

    ``times`` are cards of studies that were run at the scale, ``width`` that of the screen, in characters.
    """
    lines = [f"{'study':26}  networks  trials  claims       time"]
    for study in studies:
        found = counts[study.id]
        if isinstance(found, str):
            lines += [f"{study.id:26}  cannot be planned here", *_wrapped([found], width)]
            continue
        took = _time(times.get(study.id))
        networks, trials = sum(found.networks.values()), sum(found.trials.values())
        lines.append(f"{study.id:26}  {networks:8}  {trials:6,}  {len(study.claims):6}  {took:>9}")
        lines += _wrapped(_details(study, found), width)
    return "\n".join([*lines, "", *textwrap.wrap(_total(list(counts.values()), times), width)])


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
        )
    ]


def _details(study: Study, found: Count) -> Iterable[str]:
    yield ", ".join(f"{seeds} × {name}" for name, seeds in found.networks.items())
    yield from found.data
    yield "; ".join(f"{trials:,} by {fit}" for fit, trials in found.trials.items())
    if found.beside:
        yield "beside: " + ", ".join(f"{number} × {kind}" for kind, number in found.beside.items())
    reports = sum(claim.threshold is None for claim in study.claims)
    if reports:
        yield f"{reports} of the claims {'is a report' if reports == 1 else 'are reports'}, without a verdict"


def _time(card: Record | None) -> str:
    return clock(card["seconds"]) if card is not None else "not run"


def _total(counts: Sequence[Count | str], times: Mapping[str, Record]) -> str:
    """Describe the total, with shared networks counted once."""
    there = [found for found in counts if not isinstance(found, str)]
    networks = {key for found in there for key in found.keys}
    return (
        f"{len(there)} experiments share {len(networks)} networks. Times are those that the trials took on one thread "
        "when they were run at this scale; suture zoo plan has those of networks."
    )


def count_record(study: Study, found: Count | str, card: Record | None) -> Record:
    """Return the size of a study, as plain values; ``measured_seconds`` are those of its card."""
    if isinstance(found, str):
        return {"id": study.id, "error": found}
    return {
        "id": study.id,
        "scale": found.scale,
        "networks": found.networks,
        "data": list(found.data),
        "trials": found.trials,
        "beside": found.beside,
        "claims": len(study.claims),
        "measured_seconds": None if card is None else card["seconds"],
    }


# --- what was decided -------------------------------------------------------------------------------------------------


def decided_table(decided: Iterable[Decided]) -> Table:
    """Show a line for each claim of a study: its words, the figure with its interval, the threshold, the verdict."""
    rows = (
        (
            *(one.claim.statement, written(one.figure).replace("] (", "]\n("), one.claim.unit, bound(one.claim)),
            Text(one.verdict, style=_STYLES.get(one.verdict, "")),
        )
        for one in decided
    )
    made = lay_out(("claim", ">figure [interval]", "=unit", "=threshold", "=verdict"), rows)
    made.columns[0].min_width = 20
    return made


def ledger_text(studies: Iterable[Study], results: Mapping[str, Sequence[Decided] | None], width: int) -> list[str]:
    """Return a line for each claim of every study, under its id and title; ``width`` is the screen's."""
    lines = []
    for study in studies:
        decided = results[study.id]
        verdict = "not run" if decided is None else verdict_of(tuple(decided))
        lines.append(f"{study.id}: {study.title}: {verdict}")
        for one in decided or ():
            lines.append(f"  {one.verdict:14}  {written(one.figure):>20}  {bound(one.claim):10}  {one.claim.statement}")
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def tally(studies: Sequence[Study], results: Mapping[str, Sequence[Decided] | None]) -> str:
    """Report how many studies were run, and their verdicts; of several claims the worst counts."""
    verdicts = [verdict_of(tuple(decided)) for study in studies if (decided := results[study.id]) is not None]
    said = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(verdicts)))
    return f"{len(verdicts)} of {len(studies)} experiments were run" + (f": {said}" if said else "")


def decided_record(one: Decided) -> Record:
    """Return a decided claim as plain values."""
    figure = one.figure
    known = figure is not None and figure.decides
    return claim_record(one.claim) | {
        "value": None if figure is None else figure.value,
        "low": figure.low if figure is not None and known else None,
        "high": figure.high if figure is not None and known else None,
        "pairs": 0 if figure is None else figure.pairs,
        "networks": 0 if figure is None else figure.networks,
        "level": None if figure is None or not known else figure.level,
        "verdict": one.verdict,
        "reason": one.reason,
        "recipe": _recipe_record(one),
    }


def _recipe_record(one: Decided) -> Record | None:
    """Return the figure and the verdict by the paper's recipe; none if that was not measured."""
    if one.recipe is None or one.recipe.figure is None:
        return None
    return {"value": one.recipe.figure.value, "pairs": one.recipe.figure.pairs, "verdict": one.recipe.verdict}


def claim_record(claim: Claim) -> Record:
    """Return a claim as plain values."""
    names = ("statement", "source", "paper", "direction", "threshold", "margin", "unit", "ours", "fit", "reading")
    return {name: getattr(claim, name) for name in names}


def count_open(result: Result) -> int:
    """Count the trials of a study whose fit had not converged, of fits that can say so; their results are bounds."""
    table = result.tables.get(TRIALS)
    return 0 if table is None else int(not_converged(table.drop_duplicates("trial")).sum())


def took_words(result: Result) -> str:
    """Describe the cost of a study, from its card."""
    card: Mapping[str, Any] = result.card
    failed = f", {card['failed']} failed" if card["failed"] else ""
    failed += f", {count:,} not converged" if (count := count_open(result)) else ""
    return (
        f"{card['trials']:,} trials{failed}, {clock(card['seconds'])} of one thread; {card['networks']} networks, "
        f"{clock(card['training_seconds'])}"
    )

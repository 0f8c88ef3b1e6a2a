"""Two runs compared: the seams that both measured, and by how much the one's stitched networks are better there.

The interval of a difference is put together from those of the two scores as though they were independent (MOVER, as in
``suture.explain``); if both are of the same images it is rather too wide.
"""

import numpy as np

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import Mask
from suture.measurement.tables.curve import Curve, Estimates, arrange_pairs
from suture.measurement.tables.read import scores_of
from suture.measurement.tables.say import say_open, share_of, spread_words
from suture.reports.charts import DIFFERENCE, PENALTY, SCORE, Bright, Chart, Line, Measure
from suture.reports.html.runs import Run

_SHOWN = ("itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs", "clustered noise")


def compare(first: Run, second: Run, names: tuple[str, str]) -> tuple[list[Chart], list[str], list[str]]:
    """Return charts of the seams that two runs both measured, what is said of them, and what to know before.

    Raises ``DataError`` if there are none.
    """
    others = _find_others(first, second)
    shared = [score for score in scores_of(first.table) if score in scores_of(second.table)]
    matched: dict[tuple[str, str], list[tuple[str, Curve, Curve]]] = {}
    for score in shared:
        try:
            both = arrange_pairs(first.table, score), arrange_pairs(second.table, score)
        except DataError:
            continue
        for one, other in _matched(*both):
            seam = (str(one), str(other))
            shared_cuts = [cut for cut in one.seams if cut in other.seams]
            matched.setdefault(seam, []).append((score, one.at(shared_cuts), other.at(shared_cuts)))
    if not matched:
        raise DataError(
            f"{first.path} and {second.path} have no seam and score in common; compare runs that stitched at the same "
            "cuts"
        )
    charts, said = [], []
    for (ours, theirs), found in matched.items():
        penalties = bool(others) or ours != theirs  # of other receivers, whose scores are no measure of one another
        charts.append(_chart(found, names, penalties))
        pair = f"{found[0][1]}: " if len(matched) > 1 else ""
        said += [f"{pair}{one}" for one in _said(*found[0], names, penalties)]
    return charts, said, [_say_others(others)] if others else []


def _find_others(first: Run, second: Run) -> list[str]:
    """Return the networks and images that have one name and are others in the second run."""
    named = [name for name in first.fingerprints if name in second.fingerprints]
    return [name for name in named if first.fingerprints[name] != second.fingerprints[name]]


def _say_others(others: list[str]) -> str:
    listed = " and ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
    verb = "are others" if len(others) > 1 else "is another"
    return (
        f"By their fingerprints {listed} {verb} in the second run, under the same name: so penalties are compared, "
        "each run's against its own receiver, and not scores."
    )


def _matched(first: tuple[Curve, ...], second: tuple[Curve, ...]) -> list[tuple[Curve, Curve]]:
    """Return pairs of the same names; else, if each run has one pair, those."""
    named = {str(pair): pair for pair in second}
    found = [(pair, named[str(pair)]) for pair in first if str(pair) in named]
    found = found or ([(first[0], second[0])] if len(first) == len(second) == 1 else [])
    return [(one, other) for one, other in found if set(one.seams) & set(other.seams)]


def _chart(found: list[tuple[str, Curve, Curve]], names: tuple[str, str], penalties: bool) -> Chart:
    """Return a matrix if the shared seams are one, else a curve."""
    _, one, other = found[0]
    rows = tuple(dict.fromkeys(start for start, _ in one.seams))
    columns = tuple(dict.fromkeys(end for _, end in one.seams))
    whole = len(rows) > 1 and len(one.seams) == len(rows) * len(columns)
    whose = str(one) if str(one) == str(other) else f"{one} and {other}"
    about = f"What both runs measured, {whose}: the stitched networks of each, and the second less the first."
    if penalties:
        about = f"What both runs measured, {whose}: the penalties of each, and by how much the second's are lower."
    seams = [(row, column) for row in rows for column in columns] if whole else list(one.seams)
    measures = tuple(
        measure
        for score, *both in found
        for measure in _measures(score, both[0].at(seams), both[1].at(seams), names, penalties)
    )
    if whole:
        return Chart("matrix", whose, about, columns, measures, rows, ("receiver cut", "sender cut"))
    return Chart("curve", whose, about, one.labels, measures)


def _measures(score: str, one: Curve, other: Curve, names: tuple[str, str], penalties: bool) -> list[Measure]:
    """Return the scores of both, or their penalties, and by how much the second is better."""
    sign = 1.0 if penalties or one.rises else -1.0
    unit = "%" if one.percent and not penalties else one.penalty_unit
    digits = 1 if one.percent else 3
    both = [pair.penalties() if penalties else pair.scores() for pair in (one, other)]
    lines = [
        _line(f"#{i}", names[i], spread, sign, pair.is_open())
        for i, (pair, spread) in enumerate(zip((one, other), both, strict=True))
    ]
    for kind in _SHOWN if not penalties else ():
        for i, pair in enumerate((one, other)):
            if kind in one.lines and kind in other.lines:
                shown = f"#{len(lines)}", f"{kind}, {names[i]}", pair.scores(kind)
                lines.append(_line(*shown, sign, pair.is_open(kind), hidden=True))
    ahead = 0 if penalties else 1  # of penalties the first less the second: positive is better
    less, name = both[ahead].less(both[1 - ahead]), f"{names[ahead]} less {names[1 - ahead]}"
    difference = _line("", name, less, sign, one.is_open() | other.is_open())
    span = (0.0, 102.0) if unit == "%" else None
    bright: Bright = "low" if penalties or sign < 0 else "high"
    shown_as, levels = PENALTY if penalties else SCORE, {"no difference": 0.0}
    return [
        Measure(shown_as, score, unit, digits, tuple(lines), signed=penalties, span=span, bright=bright),
        Measure(
            DIFFERENCE,
            score,
            one.penalty_unit,
            digits,
            (difference,),
            signed=True,
            levels=levels,
            bright="middle",
        ),
    ]


def _line(kind: str, name: str, spread: Estimates, sign: float, open_: Mask, hidden: bool = False) -> Line:
    low, high = (spread.low, spread.high) if sign > 0 else (-spread.high, -spread.low)
    never = np.zeros(spread.value.shape, bool)
    return Line(kind, name, sign * spread.value, low, high, never, hidden=hidden, open=open_)


def _said(score: str, one: Curve, other: Curve, names: tuple[str, str], penalties: bool) -> list[str]:
    """Say at which seams the second is certainly better or worse than the first, and the largest difference.

    What had not converged may yet become better, so it is not called worse.
    """
    ahead = one.penalties().less(other.penalties()) if penalties else other.scores().less(one.scores())
    if not np.isfinite(ahead.value).any():
        return []
    most = int(np.nanargmax(np.abs(ahead.value)))
    said, what = [], f"the penalty of {score}" if penalties else score
    for where, word in ((ahead.low > 0) & ~one.is_open(), "better"), ((ahead.high < 0) & ~other.is_open(), "worse"):
        if where.any():
            said.append(f"{names[1]} is certainly {word} than {names[0]} at {share_of(one, where)}.")
    if not said:
        said = [f"At none of {len(one.labels)} {one.many} are the two certainly different in {what}."]
    largest = spread_words(one, ahead, most, signed=True)
    place = one.labels[most]
    said.append(f"The largest difference in {what} is {largest}, at {place} (positive: {names[1]} is better).")
    for name, pair in zip(names, (one, other), strict=True):
        said += [f"{name}: {sentence}" for sentence in say_open(pair.is_open(), pair.many)]
    return said

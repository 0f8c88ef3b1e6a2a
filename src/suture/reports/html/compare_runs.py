"""Two runs compared: the seams that both measured, and by how much the one's stitched networks are better there.

The interval of a difference is put together from those of the two scores as though they were independent (MOVER, as in
``suture.explain``); if both are of the same images it is rather too wide.
"""

import numpy as np

from suture.common.errors import DataError
from suture.measurement.tables.curve import Curve, Estimates, arrange_pairs
from suture.measurement.tables.read import scores_of
from suture.measurement.tables.say import say_open, share_of, spread_words
from suture.measurement.tables.table import Mask
from suture.reports.charts import OPEN, Grid
from suture.reports.html.runs import Run


def compare(first: Run, second: Run, names: tuple[str, str]) -> tuple[list[Grid], list[str], list[str]]:
    """Return tables of the seams that two runs share, sentences about them, and remarks to read before.

    Raises ``DataError`` if there are none.
    """
    named = [name for name in first.fingerprints if name in second.fingerprints]
    others = [name for name in named if first.fingerprints[name] != second.fingerprints[name]]
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
    tables, said = list[Grid](), list[str]()
    for (ours, theirs), found in matched.items():
        penalties = bool(others) or ours != theirs  # of other receivers, whose scores cannot be compared
        tables += [_differences(*one, names, penalties) for one in found]
        pair = f"{found[0][1]}: " if len(matched) > 1 else ""
        said += [f"{pair}{one}" for one in _said(*found[0], names, penalties)]
    return tables, said, [_say_others(others)] if others else []


def _say_others(others: list[str]) -> str:
    """Say that networks and images of one name differ between the runs."""
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


def _differences(score: str, one: Curve, other: Curve, names: tuple[str, str], penalties: bool) -> Grid:
    """Lay out the scores of both, or their penalties, and by how much the second is better."""
    digits, unit = 1 if one.percent else 3, one.penalty_unit
    ours, theirs = (
        pair.penalties()
        if penalties
        else Estimates.of(pair.plain, "stitched", 100.0 if pair.percent else 1.0)  # as shown, whichever way is better
        for pair in (one, other)
    )
    ahead = _ahead(one, other, penalties)

    def cell(of: Estimates, i: int, open_: Mask, sign: str = "") -> tuple[str, str]:
        value, low, high = (float(part[i]) for part in (of.value, of.low, of.high))
        if not np.isfinite(value):
            return "", ""
        interval = f"[{low:z.{digits}f}, {high:z.{digits}f}]" if np.isfinite([low, high]).all() else ""
        return f"{value:{sign}z.{digits}f}" + "°" * bool(open_[i]), interval

    opens = one.is_open(), other.is_open()
    sign = "+" * penalties
    rows = tuple(
        (
            label,
            (cell(ours, i, opens[0], sign), cell(theirs, i, opens[1], sign), cell(ahead, i, opens[0] | opens[1], "+")),
        )
        for i, label in enumerate(one.labels)
    )
    whose = str(one) if str(one) == str(other) else f"{one} and {other}"
    what = f"penalty of {score}" if penalties else score
    shown = ("pp" if penalties else "%") if one.percent else unit
    caption = f"{whose}: {what}{f' ({shown})' * bool(shown)}. "
    caption += f"The difference is by how much {names[1]} is better{f', in {unit}' * bool(unit)}; intervals are 95 %."
    caption += f" ° means {OPEN}." if (opens[0] | opens[1]).any() else ""
    return Grid(caption, one.one, (*names, "difference"), rows)


def _ahead(one: Curve, other: Curve, penalties: bool) -> Estimates:
    """Return by how much the second is better than the first."""
    return one.penalties().less(other.penalties()) if penalties else other.scores().less(one.scores())


def _said(score: str, one: Curve, other: Curve, names: tuple[str, str], penalties: bool) -> list[str]:
    """Say at which seams the second is certainly better or worse than the first, and the largest difference.

    What had not converged may yet become better, so it is not called worse.
    """
    ahead = _ahead(one, other, penalties)
    if not np.isfinite(ahead.value).any():
        return []
    most = int(np.nanargmax(np.abs(ahead.value)))
    said, what = [], f"the penalty of {score}" if penalties else score
    for where, word in ((ahead.low > 0) & ~one.is_open(), "better"), ((ahead.high < 0) & ~other.is_open(), "worse"):
        if where.any():
            said.append(f"{names[1]} is certainly {word} than {names[0]} at {share_of(one, where)}.")
    if not said:
        said = [f"At none of {len(one.labels)} {one.many} are the two certainly different in {what}."]
    largest = spread_words(one, ahead, most)
    place = one.labels[most]
    said.append(f"The largest difference in {what} is {largest}, at {place} (positive: {names[1]} is better).")
    for name, pair in zip(names, (one, other), strict=True):
        said += [f"{name}: {sentence}" for sentence in say_open(pair.is_open(), pair.many)]
    return said

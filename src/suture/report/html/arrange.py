"""Tables arranged as charts: curves, matrices, similarities of all pairs of cuts, and where a trait lies."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.indices import INDICES
from suture.measurement.tables import curve as curves
from suture.measurement.tables import matrix as matrices
from suture.measurement.tables.by_depth import Numbers, ends_at_output
from suture.measurement.tables.curve import PLAIN, Curve, without_sender
from suture.measurement.tables.evidence import control_shares
from suture.measurement.tables.matrix import Matrix
from suture.measurement.tables.onset import Onset
from suture.measurement.tables.table import summary
from suture.report.figures.matrix import staircase
from suture.report.html.charts import PENALTY, SCORE, SIMILARITY, Chart, Line, Measure
from suture.report.style import place_of

_COLUMNS = ("stitched", "penalty")  #: the column that each of score and penalty is read from
_NAMES = {"itself": "receiver to itself"}
_DIGITS = 2  #: of an index of similarity


def scores_of(table: pd.DataFrame) -> list[str]:
    """The scores of a table, accuracy first where it is one."""
    return sorted(dict.fromkeys(map(str, table["score"])), key=lambda score: score != "accuracy")


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(table: pd.DataFrame, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a table of one sender and one receiver along the cuts, with indices where they are known.

    Raises ``DataError`` where it is more than one curve.
    """
    shown = {score: curves.arrange_curve(table, score) for score in scores_of(table)}
    first = next(iter(shown.values()))
    measures = [measure for curve_ in shown.values() for measure in _of_curve(curve_, first.cuts)]
    if similarities is not None:
        measures += _indices_along(first, similarities)
    parents = (f"{role} {getattr(first, role)}" for role in ("sender", "receiver") if getattr(first, role))
    return Chart(
        "curve",
        f"{first.sender} → {first.receiver} along the cuts",
        f"What the stitched network reaches at every cut, from input to output ({', '.join(parents)}).",
        first.labels,
        tuple(measures),
    )


def _of_curve(shown: Curve, cuts: tuple[str, ...]) -> Iterator[Measure]:
    """The score, and its penalty where it has one."""
    scale, unit = (100.0, "%") if shown.percent else (1.0, shown.unit.replace("raw", ""))
    parents = {f"{getattr(shown, role)} alone ({role})": scale * shown.parent(role) for role in ("receiver", "sender")}
    levels = {name: value for name, value in parents.items() if np.isfinite(value)}
    for show, column in zip((SCORE, PENALTY), _COLUMNS, strict=True):
        cost = show == PENALTY
        lines = tuple(_along(shown, kind, column, 1.0 if cost else scale, cuts) for kind in _ordered(shown.lines))
        if cost and not any(np.isfinite(line.value).any() for line in lines):
            continue
        yield Measure(
            show,
            shown.score,
            unit.replace("%", "pp") if cost else unit,
            1 if shown.percent else 3,
            lines,
            signed=cost,
            levels={"no penalty": 0.0} if cost else levels,
            span=(0.0, 102.0) if shown.percent and not cost else None,
            over=shown.intervals,
        )


def _ordered(kinds: dict[str, pd.DataFrame]) -> list[str]:
    return sorted(kinds, key=place_of)


def _along(shown: Curve, kind: str, column: str, scale: float, cuts: tuple[str, ...]) -> Line:
    rows = shown.lines[kind].reindex(list(cuts))
    value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
    failed = np.array([(kind, cut) in shown.failed for cut in cuts], bool)
    return Line(kind, _called(kind, f"{shown.sender} → {shown.receiver}"), value, low, high, failed)


def _called(kind: str, plain: str) -> str:
    return plain if kind == PLAIN else _NAMES.get(kind, kind)


def _indices_along(shown: Curve, similarities: pd.DataFrame) -> Iterator[Measure]:
    """Each index at the seams of a curve."""
    starts = shown.plain["sender_cut"] if "sender_cut" in shown.plain else pd.Series(shown.cuts, list(shown.cuts))
    held = similarities[(similarities["sender"] == shown.sender) & (similarities["receiver"] == shown.receiver)]
    for index, rows in held.groupby("index", sort=False):
        seams = zip(rows["sender_cut"], rows["receiver_cut"], strict=True)
        values = dict(zip(seams, rows["value"].to_numpy(float), strict=True))
        along = np.array([values.get((starts[cut], cut), np.nan) for cut in shown.cuts])
        if np.isfinite(along).any():
            yield _similarity(str(index), (Line.of(PLAIN, f"{shown.sender} → {shown.receiver}", along),))


def _similarity(index: str, lines: tuple[Line, ...]) -> Measure:
    known = INDICES.get(index.partition("(")[0])
    distance = known is not None and known.distance
    name = f"{index} (a distance: 0 is alike)" if distance else index
    span = None if known is None or distance else (min(0.0, known.bounds[0]), known.bounds[1])
    span = span if span is not None and np.isfinite(span).all() else None
    return Measure(SIMILARITY, name, "", _DIGITS, lines, bright="low" if distance else "high", span=span)


# --- matrices ---------------------------------------------------------------------------------------------------------


def matrix(table: pd.DataFrame, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a table as a matrix of sender cuts × receiver cuts. Raises ``DataError`` where it is none."""
    shown = {score: matrices.arrange_matrix(table, score) for score in scores_of(table)}
    first = next(iter(shown.values()))
    if not first.senders:
        raise DataError("the table has no sender that is a network")
    measures = [measure for matrix_ in shown.values() for measure in _of_matrix(matrix_, table)]
    if similarities is not None:
        measures += _indices_of(first, similarities)
    return Chart(
        "matrix",
        f"{first.title}: sender cuts × receiver cuts",
        f"Rows are the cuts of the sender, columns those of the receiver, from input to output ({first.title}).",
        _names(first, "receivers"),
        tuple(measures),
        _names(first, "senders"),
        ("receiver cut", "sender cut"),
        _alone(first),
        tuple(staircase(s, r) for s in first.senders for r in first.receivers),
        (tuple(b.stop for b in first.senders[:-1]), tuple(b.stop for b in first.receivers[:-1])),
    )


def _names(shown: Matrix, side: str) -> tuple[str, ...]:
    blocks = getattr(shown, side)
    return tuple(cut if shown.single else f"{block.name} {cut}" for block in blocks for cut in block.cuts)


def _alone(shown: Matrix) -> str:
    """What the networks reach by themselves, in words."""
    sides = zip((shown.senders, shown.receivers), shown.parents.get(PLAIN, ()), strict=False)
    found = {block.name: float(value) for blocks, values in sides for block, value in zip(blocks, values, strict=True)}
    scale, digits, unit = (100, 1, " %") if shown.percent else (1, 3, f" {shown.unit}".replace(" raw", ""))
    said = [f"{name} alone {scale * value:.{digits}f}{unit}" for name, value in found.items() if np.isfinite(value)]
    return "; ".join(said)


def _of_matrix(shown: Matrix, table: pd.DataFrame) -> Iterator[Measure]:
    scale, unit = (100.0, "%") if shown.percent else (1.0, shown.unit.replace("raw", ""))
    rows = table[(table["score"] == shown.score) & (table["status"] == "ok")]
    means = summary(rows)
    means = means if ends_at_output(means).all() else means[~ends_at_output(means)]
    kinds = sorted((*shown.panels, *shown.strips), key=place_of)
    for show, column in zip((SCORE, PENALTY), _COLUMNS, strict=True):
        cost = show == PENALTY
        lines = tuple(_cells(shown, means, kind, column, 1.0 if cost else scale) for kind in kinds)
        if cost and not any(np.isfinite(line.value).any() for line in lines):
            continue
        yield Measure(
            show,
            shown.score,
            unit.replace("%", "pp") if cost else unit,
            1 if shown.percent else 3,
            lines,
            signed=cost,
            bright="low" if cost else "high",
            over=_over(means),
        )


def _over(means: pd.DataFrame) -> str:
    units = (
        curves.over_words(*row) for row in means[["interval", "n", "seeds"]].drop_duplicates().itertuples(index=False)
    )
    return " or ".join(dict.fromkeys(units))


def _cells(shown: Matrix, means: pd.DataFrame, kind: str, column: str, scale: float) -> Line:
    rows, strip = means[means["control"] == kind], kind in shown.strips
    strips = without_sender(rows)
    rows = rows[strips] if strip else rows[~strips]

    def laid(end: str) -> Numbers:
        name = f"{column}{end}"
        if strip:
            return matrices.lay_strip(rows, name, shown.receivers) * scale
        return matrices.lay_cells(rows, name, shown.senders, shown.receivers).ravel() * scale

    failed = shown.failed[kind].ravel()
    return Line(kind, _called(kind, "trained sender"), laid(""), laid("_low"), laid("_high"), failed, strip)


def _indices_of(shown: Matrix, similarities: pd.DataFrame) -> Iterator[Measure]:
    places = {side: matrices.places_of(getattr(shown, side)) for side in ("senders", "receivers")}
    for index, rows in similarities.groupby("index", sort=False):
        laid = np.full((len(places["senders"]), len(places["receivers"])), np.nan)
        for row in rows.itertuples():
            i = places["senders"].get((str(row.sender), str(row.sender_cut)))
            j = places["receivers"].get((str(row.receiver), str(row.receiver_cut)))
            if i is not None and j is not None:
                laid[i, j] = row.value
        if np.isfinite(laid).any():
            yield _similarity(str(index), (Line.of(PLAIN, "trained sender", laid.ravel()),))


def similarity(found: pd.DataFrame) -> Chart:
    """Arrange a table of ``compare``: all pairs of cuts of a sender and a receiver, an index at a time."""
    sides = [_cuts_of(found, role) for role in ("sender", "receiver")]
    measures = []
    for index, rows in found.groupby("index", sort=False):
        laid = np.full((len(sides[0]), len(sides[1])), np.nan)
        for row in rows.itertuples():
            i, j = sides[0].index((row.sender, row.sender_cut)), sides[1].index((row.receiver, row.receiver_cut))
            laid[i, j] = row.value
        measures.append(_similarity(str(index), (Line.of(PLAIN, "trained sender", laid.ravel()),)))
    names = [" and ".join(dict.fromkeys(str(name) for name, _ in side)) for side in sides]
    single = all(len({name for name, _ in side}) == 1 for side in sides)
    rows_, columns = (tuple(str(c) if single else f"{n} {c}" for n, c in side) for side in sides)
    caption = (
        f"How alike layers are on the same images, by indices of similarity: rows are the cuts of {names[0]}, columns "
        f"those of {names[1]}; bright is alike. Nothing is trained."
    )
    title = f"Similarity of {names[0]} and {names[1]}"
    return Chart("matrix", title, caption, columns, tuple(measures), rows_, ("receiver cut", "sender cut"))


def _cuts_of(found: pd.DataFrame, role: str) -> list[tuple[object, object]]:
    names = [role, f"{role}_cut", f"{role}_depth"]
    order = {name: place for place, name in enumerate(dict.fromkeys(found[role]))}
    cuts = found[names].drop_duplicates(names[:2])
    cuts = cuts.assign(place=cuts[role].map(order)).sort_values(["place", names[2]], kind="stable")
    return list(zip(cuts[role], cuts[names[1]], strict=True))


# --- where a trait lies -----------------------------------------------------------------------------------------------


def localisation(table: pd.DataFrame, found: Onset) -> Chart:
    """Arrange what every cut of the carrier conveys of a trait, both ways, with controls."""
    cuts = tuple(dict.fromkeys((*found.sending.cuts, *found.receiving.cuts)))
    controls = dict(control_shares(table, found))
    measures = []
    for way, start, end in (
        (found.sending, found.carrier, found.reference),
        (found.receiving, found.reference, found.carrier),
    ):
        spread = (way.shares, way.low, way.high)
        value, low, high = (_spread_out(100 * np.array(part), way.cuts, cuts) for part in spread)
        lines = [Line(PLAIN, f"{start} → {end}", value, low, high, np.zeros(len(cuts), bool))]
        for kind, shares in controls[way.sends].items():
            lines.append(Line.of(kind, _called(kind, kind), _spread_out(100 * shares, way.cuts, cuts)))
        levels = {f"{found.carrier} alone": 100.0, f"{found.reference} alone": 0.0}
        of = f"conveyed of {found.trait}"
        measures.append(Measure(f"{start} → {end}", of, "%", 0, tuple(lines), levels=levels, span=(-25.0, 125.0)))
    caption = (
        f"What the stitched network conveys of the difference in {found.trait} between {found.carrier} (100 %) and "
        f"{found.reference} (0 %), at every cut of {found.carrier}, both ways."
    )
    title = f"Where {found.trait} lies in {found.carrier}"
    return Chart("curve", title, caption, cuts, tuple(measures), axes=(f"cut of {found.carrier} (input → output)", ""))


def _spread_out(values: Numbers, held: tuple[str, ...], cuts: tuple[str, ...]) -> Numbers:
    places = {cut: place for place, cut in enumerate(held)}
    return np.array([values[places[cut]] if cut in places else np.nan for cut in cuts], float)

"""Readings arranged as charts: curves, matrices, similarities, where a trait lies."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import Numbers, ends_at_output
from suture.measurement.tables.curve import PLAIN, Curve, over_words, without_sender
from suture.measurement.tables.matrix import (
    Matrix,
    arrange_similarities,
    lay_cells,
    lay_strip,
    places_of,
    show_of,
)
from suture.measurement.tables.onset import Onset
from suture.measurement.tables.read import Reading
from suture.measurement.tables.table import not_converged, rows_of, say_quick, summary, write_score
from suture.reports.charts import PENALTY, SCORE, SIMILARITY, Bright, Chart, Line, Measure
from suture.reports.style import SERIES, name_of, place_of

_ASIDE = ("itself", "untrained both", "shuffled pairs")  #: drawn if that is asked for
_TRAINED = "trained sender"  #: what the trials themselves are called beside their controls
_DIGITS = 2  #: of an index of similarity


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(reading: Reading, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a score of one sender and one receiver along the cuts, and indices beside it.

    Raises ``DataError`` if the reading is more than one curve.
    """
    shown = reading.curve
    # The lines that answer a question, and whatever was asked for by name; the others on demand.
    aside = _ASIDE if {"untrained sender", "untrained receiver"} & {*shown.controls} else ()
    plain = f"{shown.sender} → {shown.receiver}"

    def line(kind: str, column: str, scale: float) -> Line:
        rows = shown.lines[kind].reindex(list(shown.cuts))
        value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
        failed = np.array([(kind, cut) in shown.failed for cut in shown.cuts], bool)
        open_ = not_converged(rows).to_numpy(bool)
        return Line(kind, name_of(kind, plain), value, low, high, failed, hidden=kind in aside, open=open_)

    scale = 100.0 if shown.percent else 1.0
    parents = {f"{getattr(shown, role)} alone ({role})": scale * shown.parent(role) for role in ("receiver", "sender")}
    parents = {name: value for name, value in parents.items() if np.isfinite(value)}
    score, *cost = _score_and_penalty(shown, list(shown.lines), shown.intervals, line)
    measures = [replace(score, levels=parents, span=(0.0, 102.0) if shown.percent else None)]
    measures += [replace(one, levels={"no penalty": 0.0}) for one in cost]
    if similarities is not None:
        seams = [((shown.sender, start), (shown.receiver, end)) for start, end in shown.seams]
        measures += _indices(similarities, seams, plain)
    parents_ = ", ".join(f"{role} {getattr(shown, role)}" for role in ("sender", "receiver") if getattr(shown, role))
    about = f"What the stitched network reaches at every cut, from input to output ({parents_}){_quick(reading.table)}."
    return Chart("curve", f"{plain}: {shown.score} along the cuts", about, shown.labels, tuple(measures))


def _quick(table: pd.DataFrame) -> str:
    return f", {said}" if (said := say_quick(table)) else ""


def _score_and_penalty(
    shown: Curve | Matrix, kinds: list[str], over: str, line: Callable[[str, str, float], Line]
) -> Iterator[Measure]:
    """Yield the score, and its penalty if it has one; ``line`` makes the line of a kind from a column and its scale."""
    kinds = sorted(kinds, key=place_of)
    unit, cost = ("%", "pp") if shown.percent else (shown.unit.replace("raw", ""),) * 2
    digits = 1 if shown.percent else 3
    scale = 100.0 if shown.percent else 1.0
    lines = tuple(line(kind, "stitched", scale) for kind in kinds)
    bright: Bright = "high" if shown.rises else "low"
    yield Measure(SCORE, shown.score, unit, digits, lines, bright=bright, over=over)
    lines = tuple(line(kind, "penalty", 1.0) for kind in kinds)
    if any(np.isfinite(one.value).any() for one in lines):
        yield Measure(PENALTY, shown.score, cost, digits, lines, signed=True, bright="low", over=over)


Ends = tuple[tuple[str, str], tuple[str, str]]  #: the sender and its cut, the receiver and its cut


def _indices(found: pd.DataFrame, seams: Iterable[Ends], name: str) -> Iterator[Measure]:
    """Yield each index's values at these ends of seams, if it has any: calibrated values, or else plain ones."""
    places = pd.MultiIndex.from_tuples([(*sender, *receiver) for sender, receiver in seams])
    for index, rows in found.groupby("index", sort=False):
        held = rows.set_index(["sender", "sender_cut", "receiver", "receiver_cut"]).reindex(places)
        shown = show_of(rows)
        laid, low, high = (held[column].to_numpy(float) for column in (shown.column, "low", "high"))
        if np.isfinite(laid).any():
            known = shown.column == "calibrated"
            never = np.zeros(laid.shape, bool)
            line = Line(PLAIN, name, laid, low, high, never) if known else Line.of(PLAIN, name, laid)
            bright: Bright = "low" if shown.distance else "high"
            over = "95 % over images" if known else ""
            yield Measure(
                SIMILARITY, f"{index}{shown.words}", "", _DIGITS, (line,), bright=bright, span=shown.span, over=over
            )


# --- matrices ---------------------------------------------------------------------------------------------------------


def matrix(reading: Reading, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a score as matrices of sender cuts × receiver cuts. Raises ``DataError`` for other readings."""
    shown = reading.matrix
    if not shown.senders:
        raise DataError("the table has no sender that is a network")
    measures = [*_of_matrix(shown, reading.table)]
    if similarities is not None:
        measures += _indices(similarities, product(places_of(shown.senders), places_of(shown.receivers)), _TRAINED)
    senders, receivers = (
        tuple(cut if shown.single else f"{block.name} {cut}" for block in side for cut in block.cuts)
        for side in (shown.senders, shown.receivers)
    )
    return Chart(
        "matrix",
        f"{shown.title}: {shown.score}, sender cuts × receiver cuts",
        f"Rows are the cuts of the sender, columns those of the receiver, from input to output "
        f"({shown.title}){_quick(reading.table)}.",
        receivers,
        tuple(measures),
        senders,
        ("receiver cut", "sender cut"),
        "; ".join(f"{name} alone {write_score(value, shown.unit)}" for name, value in shown.alone.items()),
        shown.senders,
        shown.receivers,
    )


def _of_matrix(shown: Matrix, table: pd.DataFrame) -> Iterator[Measure]:
    rows = table[(table["score"] == shown.score) & (table["status"] == "ok")]
    means = summary(rows)
    means = means if ends_at_output(means).all() else means[~ends_at_output(means)]
    units = means[["interval", "n", "seeds"]].drop_duplicates().itertuples(index=False)
    over = " or ".join(dict.fromkeys(over_words(*row) for row in units))

    def line(kind: str, column: str, scale: float) -> Line:
        strip = kind in shown.strips
        rows = means[(means["control"] == kind) & (without_sender(means) == strip)]

        def laid(end: str) -> Numbers:
            if strip:
                return lay_strip(rows, column + end, shown.receivers) * scale
            return lay_cells(rows, column + end, shown.senders, shown.receivers).ravel() * scale

        failed = shown.failed[kind].ravel()
        ends = laid(""), laid("_low"), laid("_high")
        return Line(kind, name_of(kind, _TRAINED), *ends, failed, strip, open=shown.open[kind].ravel())

    return _score_and_penalty(shown, [*shown.panels, *shown.strips], over, line)


def similarity(found: pd.DataFrame) -> Chart:
    """Arrange a table of ``compare``: all pairs of cuts of a sender and a receiver, an index at a time.

    Raises ``DataError`` if it is none, or of several networks.
    """
    first = next(iter(arrange_similarities(found).values()))
    (sender,), (receiver,) = first.senders, first.receivers
    about = (
        f"How alike layers are on the same images, by indices of similarity: rows are the cuts of {sender.name}, "
        f"columns those of {receiver.name}; bright is alike. Nothing is trained."
    )
    measures = tuple(_indices(found, product(places_of((sender,)), places_of((receiver,))), _TRAINED))
    title = f"Similarity of {sender.name} and {receiver.name}"
    axes = (f"receiver {receiver.name}", f"sender {sender.name}")
    return Chart("matrix", title, about, receiver.cuts, measures, sender.cuts, axes)


# --- where a trait lies -----------------------------------------------------------------------------------------------


def localisation(table: pd.DataFrame, found: Onset) -> Chart:
    """Arrange the share of a trait that every cut of the carrier conveys, both ways, with controls."""
    cuts = tuple(dict.fromkeys((*found.sending.cuts, *found.receiving.cuts)))
    measures = []
    for way, start, end, look in (
        (found.sending, found.carrier, found.reference, (*SERIES[0], "-")),
        (found.receiving, found.reference, found.carrier, (*SERIES[0], "-")),
    ):
        places = pd.Index(way.cuts).get_indexer(pd.Index(cuts))  # -1 for cuts that were not stitched this way
        value, low, high = (np.array([*part, np.nan])[places] * 100 for part in (way.shares, way.low, way.high))
        rows = rows_of(table, found.trait).query("control == '' and sender == @start and receiver == @end")
        unfinished = {*rows[not_converged(rows)]["sender_cut" if way.sends else "receiver_cut"]}
        open_ = np.array([cut in unfinished for cut in cuts], bool)
        never = np.zeros(len(cuts), bool)
        lines = [Line(PLAIN, f"{start} → {end}", value, low, high, never, looks=(look,), open=open_)]
        for kind, shares in way.control_shares.items():
            lines.append(Line.of(kind, name_of(kind, kind), np.array([*shares, np.nan])[places] * 100))
        levels = {f"{found.carrier} alone (carrier)": 100.0, f"{found.reference} alone (reference)": 0.0}
        of = f"conveyed of {found.trait}"
        measures.append(Measure(f"{start} → {end}", of, "%", 0, tuple(lines), levels=levels, span=(-25.0, 125.0)))
    about = (
        f"What the stitched network conveys of the difference in {found.trait} between {found.carrier} (100 %) and "
        f"{found.reference} (0 %), at every cut of {found.carrier}, both ways."
    )
    title = f"Where {found.trait} lies in {found.carrier}"
    return Chart("curve", title, about, cuts, tuple(measures), axes=(f"cut of {found.carrier} (input → output)", ""))

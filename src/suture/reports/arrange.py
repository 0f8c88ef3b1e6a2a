"""Tables arranged as charts: curves, matrices, similarities, where a trait lies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import Numbers, ends_at_output
from suture.measurement.tables.curve import PLAIN, Curve, arrange_curve, over_words, without_sender
from suture.measurement.tables.explain import say_curve, say_matrix, say_open
from suture.measurement.tables.matrix import (
    Matrix,
    arrange_matrix,
    arrange_similarities,
    lay_cells,
    lay_strip,
    places_of,
    show_of,
)
from suture.measurement.tables.onset import Onset, onset
from suture.measurement.tables.table import main_score, not_converged, rows_of, say_quick, summary, works_apart
from suture.reports.charts import PENALTY, SCORE, SIMILARITY, Bright, Chart, Line, Measure
from suture.reports.style import SERIES, name_of, place_of

View = Literal["trait", "curve", "curves", "matrix"]

_TRAINED = "trained sender"  #: what the trials themselves are called beside their controls
_MOST = 12  #: curves that are drawn
_DIGITS = 2  #: of an index of similarity


def scores_of(table: pd.DataFrame) -> list[str]:
    """Return the scores of a table, the main one first."""
    first = main_score(table)
    return sorted(dict.fromkeys(map(str, table["score"])), key=lambda score: score != first)


# --- what a table can be read as --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evidence:
    """The charts of a table, and what it says by itself, a sentence each, the verdict first.

    ``title`` and the question ``asked`` are empty if those of any run will do; ``rest`` are further notes.
    """

    charts: Sequence[Chart]
    said: Sequence[str]
    title: str = ""
    asked: str = ""
    rest: Sequence[str] = ()


def view_of(table: pd.DataFrame) -> View:
    """Return how to show a table: as it was planned, a trait stitched both ways, a matrix, a curve or several.

    Whatever was planned, only a matrix can show several cuts of a sender that lead to one of the receiver, and networks
    that are joined at one seam each.
    """
    plain = table[table["control"] == ""] if "control" in table else table
    seams = plain[["sender", "receiver", "sender_cut", "receiver_cut"]].drop_duplicates()
    pairs = pairs_of(seams)
    planned = set(plain["plan"]) if "plan" in plain else {""}
    if planned == {"trait"} and len(pairs) == 2:
        return "trait"
    several_to_one = seams.duplicated(["sender", "receiver", "receiver_cut"]).any()
    if planned == {"matrix"} or several_to_one or len(pairs) == len(seams) > 1:
        return "matrix"
    return "curve" if len(pairs) < 2 else "curves"


def pairs_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs (sender, receiver) of some rows, each once."""
    return list(rows[["sender", "receiver"]].drop_duplicates().itertuples(index=False, name=None))


def trait_of(table: pd.DataFrame) -> tuple[str, str, str]:
    """Return the trait that a table of ``localise`` is of, its carrier and its reference.

    Raises ``DataError`` if the table has one direction alone, whose sender may be either.
    """
    pairs = pairs_of(table[table["control"] == ""])
    carrier, reference = pairs[0]
    if (reference, carrier) not in pairs:
        raise DataError(f"the table has no seam {reference} → {carrier}; name carrier and reference to suture.onset")
    return str(table["score"].iloc[0]), carrier, reference


def evidence(table: pd.DataFrame, similarities: pd.DataFrame | None = None) -> Evidence:
    """Read a table as what it is; as curves or a matrix if a trait cannot be placed."""
    views: dict[View, tuple[Callable[[pd.DataFrame, pd.DataFrame | None], Evidence], ...]] = {
        "trait": (_localised, _curves, _matrix),
        "matrix": (_matrix,),
    }
    for arrange in views.get(view_of(table), (_curves, _matrix)):
        try:
            return arrange(table, similarities)
        except DataError:
            continue
    note = "This table is neither one curve nor one matrix, so nothing is drawn; suture table shows its rows."
    return Evidence((), (), rest=(note,))


def _curves(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    """Return a curve for each pair of networks, if each is one."""
    pairs = pairs_of(table[table["control"] == ""])
    rest: list[Chart] = [similarity(similarities)] if similarities is not None and len(similarities) else []
    if len(pairs) < 2:
        return Evidence(
            [curve(table, similarities), *rest], say_curve(arrange_curve(table, scores_of(table)[0]), places=False)
        )
    charts, said = [], []
    for sender, receiver in pairs[:_MOST]:
        held = table[(table["receiver"] == receiver) & (without_sender(table) | (table["sender"] == sender))]
        charts.append(curve(held, similarities))
        said += [f"{sender} → {receiver}: {one}" for one in say_curve(arrange_curve(held, scores_of(held)[0]))[:1]]
    more = len(pairs) - _MOST
    note = f"{more} more pairs of networks are not drawn; suture table shows their rows."
    return Evidence([*charts, *rest], said, rest=(note,) if more > 0 else ())


def _matrix(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    said = say_matrix(arrange_matrix(table, scores_of(table)[0]), places=False)
    return Evidence([matrix(table, similarities)], said)


def _localised(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    """Return where a trait lies."""
    plain = table[table["control"] == ""]
    trait, carrier, other = trait_of(table)
    found = onset(table, trait, carrier, other)
    said = [line.strip() for line in str(found).splitlines()]
    rows = plain[(plain["score"] == trait) & (plain["status"] == "ok")]
    said += say_open(not_converged(rows).to_numpy(bool), "trials")
    asked = f"Which layers of {carrier} make the difference to {other} in {trait}? Stitched both ways. "
    charts = [localisation(table, found), *_curves(table, similarities).charts]
    return Evidence(charts, said, title=f"Where {trait} lies in {carrier}", asked=asked)


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(table: pd.DataFrame, similarities: pd.DataFrame | None = None, scores: Sequence[str] = ()) -> Chart:
    """Arrange a table of one sender and one receiver along the cuts: its scores, or some of them, and indices.

    Raises ``DataError`` if it lacks a score, or is more than one curve.
    """
    shown = [arrange_curve(table, score) for score in scores or scores_of(table)]
    first = shown[0]
    plain = f"{first.sender} → {first.receiver}"

    def line(of: Curve, kind: str, column: str, scale: float) -> Line:
        rows = of.lines[kind].reindex(list(first.cuts))
        value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
        failed = np.array([(kind, cut) in of.failed for cut in first.cuts], bool)
        open_ = not_converged(rows).to_numpy(bool)
        apart = works_apart(rows).to_numpy(bool) & (kind == PLAIN)  # of controls the tables say it
        return Line(kind, name_of(kind, plain), value, low, high, failed, open=open_, apart=apart)

    measures: list[Measure] = []
    for of in shown:
        scale = 100.0 if of.percent else 1.0
        parents = {f"{getattr(of, role)} alone ({role})": scale * of.parent(role) for role in ("receiver", "sender")}
        parents = {name: value for name, value in parents.items() if np.isfinite(value)}
        score, *cost = _score_and_penalty(of, list(of.lines), of.intervals, partial(line, of))
        span = (0.0, 102.0) if of.percent else None
        measures += [replace(score, levels=parents, span=span)]
        measures += [replace(one, levels={"no penalty": 0.0}) for one in cost]
    if similarities is not None:
        seams = [((first.sender, start), (first.receiver, end)) for start, end in first.seams]
        measures += _indices(similarities, seams, plain)
    parents_ = ", ".join(f"{role} {getattr(first, role)}" for role in ("sender", "receiver") if getattr(first, role))
    about = f"What the stitched network reaches at every cut, from input to output ({parents_}){_quick(table)}."
    return Chart("curve", f"{plain} along the cuts", about, first.labels, tuple(measures))


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
    """Return what each index says at these ends of seams, if anything: calibrated values, or else plain ones."""
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


def matrix(table: pd.DataFrame, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a table as a matrix of sender cuts × receiver cuts. Raises ``DataError`` if it is none."""
    shown = [arrange_matrix(table, score) for score in scores_of(table)]
    first = shown[0]
    if not first.senders:
        raise DataError("the table has no sender that is a network")
    measures = [measure for of in shown for measure in _of_matrix(of, table)]
    if similarities is not None:
        measures += _indices(similarities, product(places_of(first.senders), places_of(first.receivers)), _TRAINED)
    senders, receivers = (
        tuple(cut if first.single else f"{block.name} {cut}" for block in side for cut in block.cuts)
        for side in (first.senders, first.receivers)
    )
    return Chart(
        "matrix",
        f"{first.title}: sender cuts × receiver cuts",
        f"Rows are the cuts of the sender, columns those of the receiver, from input to output "
        f"({first.title}){_quick(table)}.",
        receivers,
        tuple(measures),
        senders,
        ("receiver cut", "sender cut"),
        _alone(first),
        first.senders,
        first.receivers,
    )


def _alone(shown: Matrix) -> str:
    """Say what the networks reach by themselves, in words."""
    sides = zip((shown.senders, shown.receivers), shown.parents.get(PLAIN, ()), strict=False)
    found = {block.name: float(value) for blocks, values in sides for block, value in zip(blocks, values, strict=True)}
    scale, digits, unit = (100, 1, " %") if shown.percent else (1, 3, f" {shown.unit}".replace(" raw", ""))
    said = [f"{name} alone {scale * value:.{digits}f}{unit}" for name, value in found.items() if np.isfinite(value)]
    return "; ".join(said)


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
        marks = shown.open[kind].ravel(), shown.apart[kind].ravel()
        ends = laid(""), laid("_low"), laid("_high")
        return Line(kind, name_of(kind, _TRAINED), *ends, failed, strip, open=marks[0], apart=marks[1])

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
    """Arrange what every cut of the carrier conveys of a trait, both ways, with controls."""
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

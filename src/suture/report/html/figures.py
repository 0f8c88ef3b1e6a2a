"""The charts of a run, and the sentence that it comes to: as a curve, curves, a matrix, or where a trait lies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.curve import without_sender
from suture.measurement.tables.onset import onset
from suture.report.html import arrange as arranged
from suture.report.html import words
from suture.report.html.arrange import scores_of
from suture.report.html.charts import Chart
from suture.report.html.runs import Run

_MOST = 12  #: curves that are drawn


@dataclass(frozen=True, eq=False)
class Evidence:
    """Charts, and what the table says by itself, a sentence each, the verdict first.

    ``title`` and the question ``asked`` are given where they are not those of any run; ``rest`` is what else is to be
    known.
    """

    charts: Sequence[Chart]
    said: Sequence[str]
    title: str = ""
    asked: str = ""
    rest: Sequence[str] = ()


def of_run(run: Run) -> Evidence:
    """Arrange a run's table as what it was asked for, else as what it can be read as."""
    table = run.table
    for view in _views(run.table):
        try:
            return view(table, run.similarities)
        except DataError:
            continue
    note = "This table is neither one curve nor one matrix, so nothing is drawn; suture table shows its rows."
    return Evidence((), (), rest=(note,))


View = Callable[[pd.DataFrame, pd.DataFrame | None], Evidence]


def _views(table: pd.DataFrame) -> tuple[View, ...]:
    """What a table can be read as, the most telling first: several sender cuts to one receiver cut are a matrix."""
    plain = table[table["control"] == ""]
    seams = plain[["sender", "receiver", "sender_cut", "receiver_cut"]].drop_duplicates()
    if seams.duplicated(["sender", "receiver", "receiver_cut"]).any():
        return (_matrix,)
    pairs = len(seams[["sender", "receiver"]].drop_duplicates())
    return (_curve, _matrix) if pairs < 2 else (_localised, _curves, _matrix)


def _curve(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    charts = [arranged.curve(table, similarities), *_similarities(similarities)]
    return Evidence(charts, words.reading(table, "curve"))


def _curves(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    """A curve for each pair of networks, where each is one."""
    plain = table[table["control"] == ""]
    pairs = plain[["sender", "receiver"]].drop_duplicates()
    charts, said = [], []
    for sender, receiver in list(pairs.itertuples(index=False))[:_MOST]:
        across = ~without_sender(table)
        held = table[(table["receiver"] == receiver) & (~across | (table["sender"] == sender))]
        charts.append(arranged.curve(held, similarities))
        said += [f"{sender} → {receiver}: {one}" for one in words.reading(held, "curve")[:1]]
    more = len(pairs) - _MOST
    rest = (f"{more} more pairs of networks are not drawn; suture table shows their rows.",) if more > 0 else ()
    return Evidence([*charts, *_similarities(similarities)], said, rest=rest)


def _matrix(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    return Evidence([arranged.matrix(table, similarities)], words.reading(table, "matrix"))


def _similarities(similarities: pd.DataFrame | None) -> list[Chart]:
    return [arranged.similarity(similarities)] if similarities is not None and len(similarities) else []


def _localised(table: pd.DataFrame, similarities: pd.DataFrame | None) -> Evidence:
    """Where a trait lies: two networks stitched both ways, and a score that is neither accuracy nor loss."""
    plain = table[table["control"] == ""]
    pairs = list(plain[["sender", "receiver"]].drop_duplicates().itertuples(index=False, name=None))
    traits = [score for score in dict.fromkeys(table["score"]) if score not in ("accuracy", "loss")]
    if len(pairs) != 2 or pairs[0] != pairs[1][::-1] or not traits:
        raise DataError("this is no trait stitched both ways")
    trait, (carrier, other) = str(traits[0]), pairs[0]
    found = onset(table, trait, carrier, other)
    others = _curves(table[table["score"].isin(scores_of(table))], similarities)
    said = [line.strip() for line in str(found).splitlines()]
    asked = f"Which layers of {carrier} make the difference to {other} in {trait}? Stitched both ways. "
    title = f"Where {trait} lies in {carrier}"
    return Evidence([arranged.localisation(table, found), *others.charts], said, title=title, asked=asked)

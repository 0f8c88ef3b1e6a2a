"""Tables as a notebook shows them: the headline first, then a row for each cut; all other displays are pandas's own."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.common.html import to_html
from suture.measurement.tables.curve import Curve
from suture.measurement.tables.questions import Answered
from suture.measurement.tables.read import Reading, make_reading
from suture.measurement.tables.say import asked, headline, name_question, say_gain, say_mark

_MOST = 6  #: pairs of networks that are shown


def in_short(table: pd.DataFrame) -> pd.DataFrame:
    """Return the same table, which a notebook shows in short from now on; tables made from it are shown by pandas."""
    object.__setattr__(table, "_repr_html_", partial(_say, table))
    return table


def _say(table: pd.DataFrame) -> str:
    try:
        return "".join(_measured(table) if "stitched" in table else _compared(table))
    except (DataError, KeyError):
        return str(pd.DataFrame._repr_html_(table))  # type: ignore[attr-defined]


def _measured(table: pd.DataFrame) -> Iterator[str]:
    """Yield the HTML for each pair of networks."""
    reading = make_reading(table)
    for line in (*reading.warnings, *say_gain(reading)):
        yield to_html((line,), ())
    said = headline(reading)
    if len(reading.pairs) > 1 and said:
        yield to_html((said,), ())
    for pair, answered in list(zip(reading.pairs, reading.answered, strict=True))[:_MOST]:
        yield _pair(pair, answered, reading, said if len(reading.pairs) == 1 else "")
    more = len(reading.pairs) - _MOST
    if more > 0:
        yield f"<p>and {more} more pairs of networks</p>"


def _pair(pair: Curve, answered: Answered, reading: Reading, said: str) -> str:
    scale, digits, unit = (100.0, 1, "%") if pair.percent else (1.0, 3, pair.unit.replace("raw", ""))
    questions = [question for question in asked(reading) if question in answered]
    headings = [pair.one, f"stitched {unit}".strip(), f"penalty {pair.penalty_unit}".strip(), *pair.controls]
    lines = [pair.plain, *(pair.line(kind) for kind in pair.controls)]
    rows = []
    for i, label in enumerate(pair.labels):
        stitched, *controls = (_number(scale * line["stitched"].iloc[i], digits) for line in lines)
        row = [label, stitched, _number(pair.penalties().value[i], digits), *controls]
        rows.append([*row, *(say_mark(reading, question, answered[question].marks[i]) for question in questions)])
    own = _number(scale * pair.parent("receiver"), digits)
    below = f"{pair.receiver} alone: {own} {unit}. The table has the intervals; suture.explain(table) says more."
    named = [name_question(reading, question) for question in questions]
    return to_html([*headings, *named], rows, said or f"{pair}: {pair.score}", below)


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else "–"


def _compared(table: pd.DataFrame) -> Iterator[str]:
    """Yield each index of a table of ``compare``, calibrated if it was, as a matrix of sender cuts × receiver cuts."""
    for (sender, receiver, index), rows in table.groupby(["sender", "receiver", "index"], sort=False):
        known = bool(rows["calibrated"].notna().any())
        laid = rows.pivot(index="sender_cut", columns="receiver_cut", values="calibrated" if known else "value")
        laid = laid.loc[list(dict.fromkeys(rows["sender_cut"])), list(dict.fromkeys(rows["receiver_cut"]))]
        cells = [[_number(value, 2) for value in values] for values in laid.to_numpy()]
        lines = [[str(cut), *values] for cut, values in zip(laid.index, cells, strict=True)]
        title = f"{index}{', calibrated,' * known} of {sender} and {receiver}"
        yield to_html(["sender ↓ receiver →", *map(str, laid.columns)], lines, title)

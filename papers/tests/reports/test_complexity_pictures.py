"""Figures and tables of complexity, against the tables that they show."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from test_report import CUTS, seen

from suture.common.errors import DataError
from suture.reports import style
from suture_papers.complexity import COLUMNS as MEASURED
from suture_papers.complexity import pictures


def measured(**lines: list[float]) -> pd.DataFrame:
    """Rows of complexity: by control (``plain`` for none), a value for each cut; ``alone`` is the receiver's own."""
    held = []
    for kind, values in lines.items():
        for i, value in enumerate(values):
            cut = "" if kind == "alone" else CUTS[i]
            held.append(
                {"control": "" if kind in ("plain", "alone") else kind, "sender": "B" if kind != "plain" else "A"}
                | {"receiver": "B", "sender_cut": cut, "receiver_cut": cut}
                | dict.fromkeys(("sender_depth", "receiver_depth"), (i + 1) / 5 if cut else None)
                | {
                    "measure": "gradient norm",
                    "value": value,
                    "error": np.nan,
                    "unit": "nats",
                    "normalised": True,
                    "settings": "",
                }
                | {"samples_as": "", "n": 9, "data": "d"}
            )
    return pd.DataFrame(held).astype(MEASURED | {"sender_depth": "float64", "receiver_depth": "float64"})


def test_complexity_along_a_curve() -> None:
    figure = pictures.plot(measured(plain=[1, 2, 3, 4, 5], itself=[2, 2, 2, 2, 2], alone=[7]))
    plain, itself, alone = figure.axes[0].lines
    assert list(plain.get_ydata()) == [1, 2, 3, 4, 5]
    assert same_color(plain.get_color(), style.LOOK[""][0])
    assert list(itself.get_ydata()) == [2] * 5
    assert list(alone.get_ydata()) == [7, 7]
    assert {"gradient norm, normalised (nats)", "A → B", "receiver to itself", "B alone (receiver)"} <= set(
        seen(figure)
    )
    made = pictures.complexity_table(measured(plain=[1, 2, 3, 4, 5]))
    assert [next(iter(column.cells)).plain for column in made.columns] == [
        "gradient norm, normalised (nats)",
        *("1", "2", "3", "4", "5"),
    ]
    assert [column.header.plain for column in pictures.complexity_table(measured(alone=[7])).columns[1:]] == ["B"]
    first = measured(plain=[1, 2, 3, 4, 5])
    second = first.assign(sender_cut=first["sender_cut"].iloc[0], value=9.0)
    made = pictures.complexity_table(pd.concat([first, second.iloc[1:]]))  # from one cut to several, as a matrix has
    assert "9" in [cell.plain for cell in made.columns[2].cells]
    assert "2" in [cell.plain for cell in made.columns[2].cells]
    here, there, *_ = pictures.plot(pd.concat([first, second.iloc[1:]])).axes[0].lines
    assert list(here.get_ydata()) == [1, 9, 9, 9, 9]
    assert list(there.get_ydata())[1] == 2


def test_wrong_tables_of_complexity_are_refused() -> None:
    with pytest.raises(DataError, match="it has no column 'measure'"):
        pictures.plot(measured(plain=[1]).drop(columns="measure"))
    with pytest.raises(DataError, match="only networks alone or controls"):
        pictures.plot(measured(itself=[1]))
    with pytest.raises(DataError, match="a curve has one sender, and the table has A, C"):
        pictures.plot(pd.concat([measured(plain=[1]), measured(plain=[1]).assign(sender="C")]))

"""The table of ``suture.compare``: a row for each sender cut, receiver cut and index, with names that are a promise."""

import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.table import check_columns

#: Every column, in order, with its type.
COLUMNS: dict[str, str] = {
    "sender": "str",
    "receiver": "str",
    "sender_cut": "str",
    "receiver_cut": "str",
    "sender_depth": "float64",  # index of the cut / number of cuts, in (0, 1]
    "receiver_depth": "float64",
    "index": "str",  # its name, with the settings that are not the default
    "value": "float64",  # empty if layers have other numbers of positions
    "samples_as": "str",  # flattened, pixels, mean, first, last
    "score_data": "str",
    "n": "Int64",  # images
    "chance": "float64",  # the mean of the value over permutations; this and what follows is empty without any
    "calibrated": "float64",  # (value - chance) / (best - chance): 0 by chance, 1 for layers that are the same
    "p": "float64",  # family-wise, over all pairs of this index in the table
    "low": "float64",  # 95 % interval of the calibrated value over images
    "high": "float64",
    "direction": "str",  # similarity: a higher value is more alike; distance: a lower one
}
#: The columns of calibration: the value by chance, the calibrated value, its p-value and interval.
CALIBRATED = ("chance", "calibrated", "p", "low", "high")
SEAM = ["sender", "receiver", "sender_cut", "receiver_cut"]


def check_similarities(similarities: pd.DataFrame) -> None:
    """Raise ``DataError`` if a table is none of ``compare``, is empty, or has two values of an index at one seam."""
    check_columns(similarities, COLUMNS, "similarities")
    if similarities.empty:
        raise DataError("this is not a table of similarities: it has no row")
    twice = similarities[similarities.duplicated([*SEAM, "index"])]
    if len(twice):
        one = twice.iloc[0]
        raise DataError(
            f"the table has several values of {one['index']} at one seam, {one['sender']} → {one['receiver']} at "
            f"{one['sender_cut']} → {one['receiver_cut']}; keep one samples_as and one score_data"
        )

"""Measures of complexity as a tidy table: a row for each measure, keyed by the seam if there is one."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import nn

from suture import Network, Samples, Stitched
from suture.common.errors import DataError
from suture.extend import check_columns, check_kind, undisturbed
from suture_papers.complexity.base import Complexity, Subject
from suture_papers.complexity.measures import LANDSCAPE, SIZE
from suture_papers.complexity.rank import RANKS

#: The columns of every table, in order, after those of the labels.
COLUMNS = {
    "measure": "str",
    "value": "float64",
    "error": "float64",  # standard error of the value, empty if it is not estimated by random draws
    "unit": "str",  # nats, bits, raw
    "normalised": "bool",
    "samples_as": "str",  # flattened, pixels; empty if no maps become samples
    "n": "Int64",  # images; empty if the measure needs none
    "data": "str",  # their name, empty likewise
    "settings": "str",
}

MEASURE = ["measure", "normalised", "settings"]  #: the columns that tell measures apart
_TOLD = ("epsilon", "batch", "threshold")  #: the settings that a measure's name shows


def complexity(
    network: nn.Module | Network,
    samples: Samples,
    by: Complexity | Sequence[Complexity] | None = None,
    labels: Mapping[str, object] | None = None,
) -> pd.DataFrame:
    """Measure the complexity of a network on samples: a tidy table, a row for each measure of ``by``, in order.

    ``network`` is a stitched network, a ``Network``, or any module from raw images to logits. The columns are
    ``COLUMNS``, after ``labels``, which are those of the seam if the network is stitched and nothing else is given
    (``Seam.labels``). By default all but the Hessian's, and the ranks if there is a stitch. Nothing of the network
    is changed. Raises ``DataError`` before anything is computed if a measure is not defined for it, or is named
    twice; and as ``Complexity`` does.
    """
    stitched = isinstance(network, Stitched)
    by = (by,) if isinstance(by, Complexity | str) else by
    by = tuple(by) if by is not None else LANDSCAPE + SIZE + (RANKS if stitched else ())
    for measure in by:
        check_kind(
            "by", measure, Complexity, "measures of suture_papers.complexity, such as [Parameters(), GzipSize()]"
        )
    twice = next((measure for i, measure in enumerate(by) if measure in by[:i]), None)
    if twice is not None or not by:
        raise DataError(f"{twice} is asked for twice" if by else "no measure is asked for; give one, or leave out by=")
    if labels is None:
        labels = network.seam.labels if isinstance(network, Stitched) else {}
    with undisturbed(), torch.inference_mode(False):
        subject = Subject(network, samples)
        for measure in by:
            measure.check(subject)
        rows = [dict(labels) | _row(measure, subject) for measure in by]
    return pd.DataFrame(rows, columns=[*labels, *COLUMNS]).astype(COLUMNS)


def _row(measure: Complexity, subject: Subject) -> dict[str, object]:
    used = measure.uses_samples
    value, error = measure.estimate(subject)
    return {
        "measure": measure.name,
        "value": value,
        "error": error,
        "unit": measure.unit,
        "normalised": measure.normalised,
        "samples_as": measure.samples_as,
        "n": len(subject) if used else None,
        "data": subject.samples.name if used else "",
        "settings": measure.settings,
    }


def split_complexity(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a table of ``complexity`` that are of seams, and those of networks alone."""
    seam = ("sender", "receiver", "sender_cut", "receiver_cut", "receiver_depth")
    check_columns(table, (*seam, *COLUMNS), "complexity of seams")
    if table.empty:
        raise DataError("this is not a table of complexity of seams: it has no row")
    rows = table if "control" in table else table.assign(control="")
    alone = rows["receiver_cut"] == ""
    return rows[~alone], rows[alone]


def name_measure(held: pd.DataFrame) -> str:
    """Return a measure in words: ``mean sharpness, normalised, epsilon=0.01 (nats)``."""
    first = held.iloc[0]
    told = [word for word in str(first["settings"]).split(", ") if word.partition("=")[0] in _TOLD]
    told = [word for word in told if not word.endswith("=None")]
    words = ", ".join([str(first["measure"]), *(["normalised"] if first["normalised"] else []), *told])
    return words + (f" ({first['unit']})" if first["unit"] != "raw" else "")

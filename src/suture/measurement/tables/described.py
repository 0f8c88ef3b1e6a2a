"""The description of a trial in a store and a table, as plain values: its record, and the labels of its rows.

Names are not in a record but in the labels of the trial (``Described``), because one record serves every trial with its
key, whatever study or control asked for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Described:
    """A trial in words: its key, the labels of its rows, and the name and unit of each of its scores.

    ``deepens`` is the key of the trial that it repeats with more work allowed, under the same labels: its rows take
    their place.
    """

    key: str
    labels: Mapping[str, Any]
    scores: tuple[tuple[str, str], ...]
    deepens: str = ""

"""How kinds of trial, lines and names look, in figures to print, on the page and in tables for the terminal."""

import re
from dataclasses import dataclass

from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.questions import BOTH, CLOSE, NEITHER, NO, RECEIVERS, SENDERS, YES

LETTERS = 8.0  #: points: the size of what is written in a figure, where there is room

#: Colour (Okabe & Ito's, which the colour-blind tell apart), marker and order of every kind of trial.
LOOK = {
    PLAIN: ("#0072B2", "o"),
    "itself": ("#009E73", "s"),
    "untrained sender": ("#D55E00", "v"),
    "untrained receiver": ("#E69F00", "^"),
    "untrained both": ("#CC79A7", "D"),
    "shuffled pairs": ("#7F7F7F", "x"),
    "clustered noise": ("#882255", "p"),
}
#: Colour and marker of the lines of studies and of comparisons, in order.
SERIES = (
    *(("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#E69F00", "D")),
    *(("#CC79A7", "v"), ("#56B4E9", "P"), ("#882255", "p"), ("#555555", "X")),
)
#: Colour and marker of a user's own kinds of trial.
OTHERS = (("#56B4E9", "P"), ("#000000", "*"), ("#8C6D31", "<"), ("#5254A3", ">"))


@dataclass(frozen=True)
class Mark:
    """How an answer looks: its colour, its marker in a figure, whether that is hollow, and the letter of a text."""

    colour: str
    marker: str
    hollow: bool
    glyph: str


#: Yes and no differ in shape as well as in colour; whose mistakes are made is a letter.
MARKS = {
    YES: Mark("#0072B2", "o", False, "●"),
    NO: Mark("#D55E00", "o", True, "○"),
    CLOSE: Mark("#777777", "$?$", False, "?"),
    SENDERS: Mark("#222222", "$S$", False, "S"),
    RECEIVERS: Mark("#222222", "$R$", False, "R"),
    BOTH: Mark("#222222", "$B$", False, "B"),
    NEITHER: Mark("#777777", "$N$", False, "N"),
}


def place_of(kind: str) -> int:
    """Return the place of a kind of trial among all kinds; a user's own come last."""
    return list(LOOK).index(kind) if kind in LOOK else len(LOOK)


def look_of(kind: str) -> tuple[str, str]:
    """Return the colour and the marker of a kind of trial; a user's own kind has the same ones every time."""
    return LOOK[kind] if kind in LOOK else OTHERS[sum(map(ord, kind)) % len(OTHERS)]


def name_of(kind: str, plain: str) -> str:
    """Return the name of a kind of trial in legends and tables; the trial itself is called ``plain``."""
    return {PLAIN: plain, "itself": "receiver to itself"}.get(kind, kind)


def with_minus(text: str) -> str:
    """Return a text to print whose negative numbers have a minus sign, as on an axis, instead of a hyphen."""
    return re.sub(r"(?<![\w.)\]])-(?=\d)", "−", text)


def shortened(name: str, longest: int = 40) -> str:
    """Return a name without its middle if it is very long: the ends tell cuts apart."""
    return name if len(name) <= longest else f"{name[: longest // 2]}…{name[-longest // 2 + 1 :]}"

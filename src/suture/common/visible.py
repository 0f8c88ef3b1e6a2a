"""Texts of strangers, such that all of them is seen: on a terminal, on a page and in a file.

A name from somebody else's folder may hold controls that move a terminal's cursor, marks that turn the direction of
writing, or a NUL. Wherever a text leaves the program it goes through ``visible``.
"""

import re

#: Characters that are not seen but do something: controls, and marks of direction that reach beyond a name; and half a
#: character, which no encoding has.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\n")  #: by which a spreadsheet knows what it is to compute


def visible(text: object) -> str:
    """Return a text whose unseen characters are written out, as ``⟨U+202E⟩``."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))


def as_cell(text: str) -> str:
    """Return a visible text that a spreadsheet takes for a text, not for a formula: behind an apostrophe if need be."""
    seen = visible(text)
    return f"'{seen}" if seen.startswith(_FORMULA) else seen

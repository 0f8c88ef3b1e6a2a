"""Texts of strangers, such that all of them is seen: on a terminal, on a page and in a file.

A name from somebody else's folder may hold controls that move a terminal's cursor, marks that turn the direction of
writing, or a NUL. Wherever a text leaves the program it goes through ``visible``.
"""

import re

#: Characters that are not seen: controls, marks of direction that reach beyond a name, breaks of lines, and those of no
#: width, by which two names that look the same may differ; and half a character, which no encoding has. The two joiners
#: stay, which Persian, Indic scripts and emoji are written with.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\n")  #: by which a spreadsheet knows what it is to compute


def visible(text: object) -> str:
    """Return a text whose unseen characters are written out, as ``⟨U+202E⟩``."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))


def as_cell(text: str) -> str:
    """Return a visible text that a spreadsheet takes for a text, not for a formula: behind an apostrophe if need be."""
    seen = visible(text)
    return f"'{seen}" if seen.startswith(_FORMULA) else seen

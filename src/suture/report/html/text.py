"""Names as a page shows them: what is not seen but does something is written out."""

import re

#: Characters that are not seen but do something: controls, and marks of direction that reach beyond a name.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: object) -> str:
    """Return a text whose unseen characters are written out, as ``⟨U+202E⟩``."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))

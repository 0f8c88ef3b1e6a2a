"""What comes from users, made harmless: no name ends a tag, a script or a line, or turns the text around it."""

import html
import json
import math
import re
from typing import Any

#: Characters that are not seen but do something: controls, and marks of direction that reach beyond a name.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_IN_SCRIPTS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def visible(text: object) -> str:
    """A text whose unseen characters are written out, as ``⟨U+202E⟩``."""
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", str(text))


def safe(text: object) -> str:
    """A text as HTML shows it, in an element or in an attribute."""
    return html.escape(visible(text), quote=True)


def name(text: object) -> str:
    """A name as HTML, which keeps its own direction of writing to itself."""
    return f"<bdi>{safe(text)}</bdi>"


def script_data(content: object) -> str:
    """Plain values as JSON that a ``<script>`` may hold; numbers that are none become ``null``."""
    made = json.dumps(_plain(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return "".join(_IN_SCRIPTS.get(letter, letter) for letter in made)


def _plain(thing: Any) -> Any:
    match thing:
        case dict():
            return {visible(key): _plain(value) for key, value in thing.items()}
        case str():
            return visible(thing)
        case bool() | int() | None:
            return thing
        case float():
            return thing if math.isfinite(thing) else None
        case _ if hasattr(thing, "tolist"):
            return _plain(thing.tolist())
        case _:
            return [_plain(part) for part in thing]

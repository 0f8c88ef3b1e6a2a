"""Settings of the wrong kind, refused before anything runs."""

import operator
from typing import Any

from suture.common.errors import DataError, SutureError
from suture.common.visible import visible

_LONGEST = 60  #: letters of a value that a message shows


def check_kind(
    name: str,
    value: object,
    kind: Any,
    remedy: str,
    error: type[SutureError] = DataError,
) -> None:
    """Raise ``error`` if a setting is not of its ``kind``, which is a class or a union of them."""
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        raise error(f"{name} is the class {value.__name__}; give an instance, {value.__name__}(…), or {remedy}")
    made, shown = type(value).__name__, " ".join(repr(value).split())
    shown = f"={shown}" if len(shown) <= _LONGEST and " at 0x" not in shown else ""  # an address tells nothing
    raise error(f"{name}{shown} is {'an' if made[0] in 'aeiouAEIO' else 'a'} {made}; give {remedy}")


def check_whole(name: str, value: Any, error: type[SutureError] = DataError) -> int:
    """Return a whole number as an ``int``, one of NumPy's too. Raises ``error`` for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise error(f"{name}={_short(value)} is not a whole number; give one, such as 1") from None


def check_visible_name(what: str, name: object, error: type[SutureError] = DataError) -> str:
    """Return a name as a text.

    Raises ``error`` if no file can hold it (half a character, as of a file's odd name), and if nothing of it is seen.
    """
    text = str(name)
    if not text.strip():
        raise error(f"{what} is {text!r}, which shows no visible character; give a name")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise error(f"{what} is {visible(text)!r:.80}, with half a character in it; give another name") from None
    return text


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

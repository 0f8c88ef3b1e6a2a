"""Settings and counts in words."""

from dataclasses import MISSING, fields, is_dataclass


def spell(thing: object) -> str:
    """Return the call that makes a frozen dataclass, without the fields that have their default value."""
    if not is_dataclass(thing):
        return repr(thing)
    given = [
        f"{f.name}={spell(getattr(thing, f.name))}"
        for f in fields(thing)
        if f.default is MISSING or getattr(thing, f.name) != f.default
    ]
    return f"{type(thing).__name__}({', '.join(given)})"


def say_count(count: int, what: str) -> str:
    """Return a number of things: ``1 trial``, ``1,564 trials``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]

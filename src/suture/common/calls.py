"""The grammar in which the command line names things with their settings: ``name,key=value,key=value``.

A value is a Python literal, else a text. Commas (and whatever else separates) inside brackets or quotes belong to the
value. Model strings (``zoo:resnet,width=16,blocks=(1,1,1)``), families, fits, indices and variants are all read here.
"""

import ast
from collections.abc import Iterator
from typing import Any

from suture.common.errors import SutureError


def outside(text: str) -> Iterator[tuple[int, str]]:
    """Yield the places and characters of a text that stand outside brackets and quotes.

    Raises ``SutureError``, once all are given, for a bracket or a quote without its partner.
    """
    depth, quote = 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0:
            yield place, character
    if depth or quote:
        raise SutureError("has a bracket or a quote without its partner; close it, or leave it out")


def split_at_commas(text: str) -> list[str]:
    """Split text at the commas outside brackets and quotes. Raises ``SutureError`` as ``outside`` does."""
    ends = [place for place, character in outside(text) if character == ","]
    return [text[start + 1 : end].strip() for start, end in zip([-1, *ends], [*ends, len(text)], strict=True)]


def read_settings(text: str, dotted: str = "") -> dict[str, str]:
    """Return the values by key of ``key=value,key=value``, as they are written; a key may begin with ``dotted``.

    Raises ``SutureError`` for anything else, for a key without a value, and for a key that is given twice.
    """
    values: dict[str, str] = {}
    for pair in split_at_commas(text):
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not equals or not key.removeprefix(dotted).isidentifier():
            raise SutureError(f"has the argument {pair!r}; write key=value, such as width=16")
        if key in values:
            raise SutureError(f"gives {key!r} twice; keep one of them")
        values[key] = value
    return values


def literal(text: str) -> Any:
    """Return the value of a text that is a Python literal, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text

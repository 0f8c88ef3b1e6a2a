"""Docstrings for the site: their literal blocks and tables, in the marks of reStructuredText, become Markdown's."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """``::`` before an indented block is a colon; a table of ``===`` is shown as it was written."""
    text = re.sub(r"(\S)::\n\n(?=    )", r"\1:\n\n", text)
    return re.sub(
        r"^(?P<rule>=+(?: +=+)+)\n.*^(?P=rule)$", r"```text\n\g<0>\n```", text, flags=re.DOTALL | re.MULTILINE
    )

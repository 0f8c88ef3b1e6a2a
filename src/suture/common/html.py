"""Small tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape as escape_html

from suture.common.visible import visible


def to_html(headings: Sequence[str], rows: Iterable[Sequence[str]], above: str = "", below: str = "") -> str:
    """Return a table in HTML with a line of text above and one below; the first column stands to the left."""
    lines = [_row("th", headings), *(_row("td", row) for row in rows)]
    said = [f"<p><b>{escape(above)}</b></p>" if above else "", f"<p>{escape(below)}</p>" if below else ""]
    return f"{said[0]}<table>{''.join(lines)}</table>{said[1]}"


def _row(tag: str, cells: Sequence[str]) -> str:
    made = [
        f"<{tag} style='text-align:{'right' if i else 'left'}'>{escape(cell)}</{tag}>" for i, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(made)}</tr>"


def escape(text: str) -> str:
    """Return a text as it stands in HTML, all of it seen."""
    return escape_html(visible(text))

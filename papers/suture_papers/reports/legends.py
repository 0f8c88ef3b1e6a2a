"""Legends above figures: the names of lines, in as many columns as there is room for."""

from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes

SIZE = 8.0  #: points: letters, as in the instrument's figures
_LETTER = 4.6  #: points: the width of a letter, on average
_LETTERS = 50  #: after which a name is broken


def legend_above(where: Any, entries: list[tuple[Artist, str]], inches: float, title: str = "", **how: Any) -> None:
    """Name lines above a figure, or axes, so wide, in as many columns as their names leave room for."""
    line = 5 * SIZE  # points, with the gaps beside it
    names = [fill(name, max(1, min(_LETTERS, int((72 * inches - line) / _LETTER)))) for _, name in entries]
    longest = max(len(line) for name in names for line in name.splitlines())
    columns = min(max(1, int(72 * inches // (_LETTER * longest + line))), 4)
    on_axes: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "borderpad": 0.1}
    made = where.legend(
        [artist for artist, _ in entries],
        [str(i) for i in range(len(entries))],  # set below: a name may begin with an underscore
        **(on_axes if isinstance(where, Axes) else {"loc": "outside upper center"}),
        ncols=columns,
        title=title or None,
        **{"title_fontsize": SIZE, "columnspacing": 1.6, **how},
    )
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)

"""The cells of a heat map: their colours, their numbers, and marks of those that are missing or had not converged."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection
from matplotlib.patches import Rectangle

from suture.measurement.tables.table import Mask, Numbers
from suture.reports.figures.curve import SMALLEST
from suture.reports.style import LETTERS

COLOURS = "viridis"
MISSING: dict[str, Any] = {"facecolor": "#EEEEEE", "edgecolor": "#AAAAAA", "hatch": "////", "linewidth": 0}
FAILED: dict[str, Any] = {"facecolor": "#FFFFFF", "edgecolor": "#D55E00", "hatch": "xxxx", "linewidth": 0}
MOST_CELLS = 10_000  #: of a panel that is drawn as shapes; larger ones are drawn as pixels, which open faster
ON_PAGE = 5.8  #: points: the smallest letters on a page, which are at least 9 pixels high there
TALLEST = 3.4  #: inches: the tallest panel
LONGEST = 24  #: letters of a name, after which its middle is left out
DIAGONAL: dict[str, Any] = {"color": "white", "solid_joinstyle": "miter"}  #: the line between early and late
_RING = 0.14  #: the width of the ring in a cell that had not converged, in the cell's width


def draw_cells(
    axes: Axes,
    values: Numbers,
    colours: ScalarMappable,
    failed: Mask | None = None,
    open_: Mask | None = None,
) -> None:
    """Draw cells, the first row on top; missing and failed cells are hatched.

    A cell whose fit had not converged has a ring at the upper right.
    """
    rows, columns = values.shape
    axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=colours.get_cmap(),
        norm=colours.norm,  # type: ignore[arg-type]  # the stubs of matplotlib name a base class here
        edgecolors="face",
        linewidth=0.1,  # without it, viewers of PDF show white hairlines between cells
        rasterized=values.size > MOST_CELLS,
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.tick_params(length=0, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for i, j in np.argwhere(np.isnan(values)):
        axes.add_patch(Rectangle((j, i), 1, 1, **(FAILED if failed is not None and failed[i, j] else MISSING)))
    rings = np.argwhere(np.isfinite(values) & (open_ if open_ is not None else False))
    if len(rings):
        axes.add_collection(
            EllipseCollection(
                *([_RING] * len(rings), [_RING] * len(rings), [0.0] * len(rings)),
                units="x",  # of a cell's width, round whatever its height
                offsets=[(j + 0.86, i + 0.16) for i, j in rings.tolist()],
                offset_transform=axes.transData,
                facecolor="none",
                edgecolor=[ink_on(colours, float(values[i, j])) for i, j in rings],
                linewidth=0.4,
            )
        )


def write_cells(
    axes: Axes, values: Numbers, colours: ScalarMappable, written: Callable[[float], str], for_page: bool = False
) -> None:
    """Write the values into their cells if they have room, unusually long ones in smaller letters.

    The axes must have been laid out. No number is too small to be read on a page.
    """
    box, point = axes.get_window_extent(), 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    width, height = point * box.width / values.shape[1], point * box.height / values.shape[0]
    texts = {(i, j): written(float(values[i, j])) for i, j in np.argwhere(np.isfinite(values)).tolist()}
    lengths = sorted(map(len, texts.values())) or [1]

    def size(letters: int) -> float:
        return float(min(LETTERS, 0.75 * height, 1.3 * width / max(letters, 2)))

    usual, least = (ON_PAGE, ON_PAGE) if for_page else (SMALLEST, 0.7 * SMALLEST)
    if size(lengths[len(lengths) // 2]) < usual or size(lengths[-1]) < least:
        return
    for (i, j), text in texts.items():
        ink = ink_on(colours, float(values[i, j]))
        write_text(axes, j + 0.5, i + 0.5, text, size(len(text)), ink)


def write_text(axes: Axes, x: float, y: float, text: str, size: float, ink: str, **how: Any) -> None:
    """Write a text with its middle at a place, in points and a colour; it takes no part in the layout."""
    axes.text(x, y, text, size=size, color=ink, ha="center", va="center_baseline", in_layout=False, **how)


def ink_on(colours: ScalarMappable, value: float) -> str:
    """Return black or white, whichever contrasts more with the colour of a value."""
    colour: Numbers = np.asarray(colours.to_rgba(np.array([value])))[0, :3]
    return "black" if float(colour**2.2 @ [0.2126, 0.7152, 0.0722]) > 0.18 else "white"  # luminance, as WCAG has it


def slot(axes: Axes) -> tuple[float, float]:
    """Return the inches that the layout leaves axes, across and down."""
    part, place = axes.figure, axes.get_position(original=True)
    inches = part.bbox.width / part.dpi, part.bbox.height / part.dpi
    return place.width * inches[0], place.height * inches[1]

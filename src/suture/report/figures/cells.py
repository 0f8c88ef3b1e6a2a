"""The cells of heat maps. Their colours are viridis: uniform to the eye, in grey and for the colour-blind."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Rectangle

from suture.measurement.tables.by_depth import Mask, Numbers

COLOURS = "viridis"
MISSING: dict[str, Any] = {"facecolor": "#EEEEEE", "edgecolor": "#AAAAAA", "hatch": "////", "linewidth": 0}
FAILED: dict[str, Any] = {"facecolor": "#FFFFFF", "edgecolor": "#D55E00", "hatch": "xxxx", "linewidth": 0}
_MOST_CELLS = 10_000  #: of a panel that is drawn as shapes; larger ones are drawn as pixels, which open faster


def draw_cells(axes: Axes, values: Numbers, colours: ScalarMappable, failed: Mask | None = None) -> None:
    """Draw cells, the first row on top; what is missing or failed is hatched."""
    rows, columns = values.shape
    axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=colours.get_cmap(),
        norm=colours.norm,  # type: ignore[arg-type]  # the stubs of matplotlib name a base class here
        edgecolors="face",
        linewidth=0.1,  # without it, viewers of PDF show white hairlines between cells
        rasterized=values.size > _MOST_CELLS,
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    for i, j in np.argwhere(np.isnan(values)):
        axes.add_patch(Rectangle((j, i), 1, 1, **(FAILED if failed is not None and failed[i, j] else MISSING)))


def write_cells(
    axes: Axes,
    texts: Mapping[tuple[int, int], str],
    values: Numbers,
    colours: ScalarMappable,
    size: Callable[[str], float],
) -> None:
    """Write texts into their cells, in points that ``size`` says for each."""
    for (i, j), text in texts.items():
        ink = ink_on(colours, float(values[i, j]))
        axes.text(j + 0.5, i + 0.5, text, size=size(text), color=ink, ha="center", va="center_baseline")


def ink_on(colours: ScalarMappable, value: float) -> str:
    """Return black or white, whichever contrasts more with the colour of a value."""
    colour: Numbers = np.asarray(colours.to_rgba(np.array([value])))[0, :3]
    return "black" if float(colour**2.2 @ [0.2126, 0.7152, 0.0722]) > 0.18 else "white"  # luminance, as WCAG has it

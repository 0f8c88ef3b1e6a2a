"""Data as pictures: some images of every class, for data sets and their variants beside each other; and their labels.

Classes are shown by the labels that the data give, so wrong labels show as images that do not belong.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn.functional import pad

from suture.data import Data, Samples
from suture.data.images import check_pictures
from suture.reports.figures.curve import WIDTH, Picture, fit_height, styled
from suture.reports.style import LETTERS, shortened

ROLES = ("fit", "validation", "score")
COLUMNS = 10  #: images beside each other, at most
_SMALLEST, _LARGEST = 4.5, LETTERS  #: points: the letters of a class's name
_LETTER = 0.62  #: the width of a letter, in its height

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def label_statistics(data: Data) -> pd.DataFrame:
    """Count the samples of every class in every role: a row per role, a column per class, and ``all``."""
    counts = {}
    for role in ROLES:
        labels = getattr(data, role).labels.cpu()
        counts[role] = [*torch.bincount(labels, minlength=len(data.classes)).tolist(), len(labels)]
    table = pd.DataFrame.from_dict(counts, orient="index", columns=[*data.classes, "all"])
    table.index.name = "role"
    return table


def sample_grid(shown: Data | Sequence[tuple[str, Data]], *, rows: int = 2) -> Figure:
    """Draw the first images to fit of every class, ``rows`` high, for data sets below each other, each under its title.

    At most 10 images are beside each other, shared out equally between the classes; of more classes the first 10 are
    shown. A class without samples is a crossed field. Raises ``DataError`` if the samples are not images.
    """
    datas = [(shown.name, shown)] if isinstance(shown, Data) else list(shown)
    for _, data in datas:
        check_pictures("a drawing of samples", data.fit.images)
    drawn = [(title, data.fit, *_mosaic(data.fit, rows)) for title, data in datas]
    heights = [WIDTH * pixels.shape[0] / pixels.shape[1] for _, _, pixels, _ in drawn]
    with styled():
        figure = Picture(figsize=(WIDTH, sum(heights) + len(drawn)), layout="constrained")
        panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
        before: tuple[str, ...] = ()
        for axes, (title, samples, pixels, empty) in zip(panels, drawn, strict=True):
            axes.imshow(pixels, interpolation="nearest", aspect="auto", extent=(0, pixels.shape[1], pixels.shape[0], 0))
            for x, y, width, height in empty:
                axes.plot([x, x + width], [y, y + height], color="0.75", linewidth=0.6)
                axes.plot([x, x + width], [y + height, y], color="0.75", linewidth=0.6)
            axes.set(xticks=[], yticks=[], xlim=(0, pixels.shape[1]), ylim=(pixels.shape[0], 0))
            for spine in axes.spines.values():
                spine.set_visible(False)
            if samples.classes[:COLUMNS] != before:
                before = samples.classes[:COLUMNS]
                _name_classes(axes, before, _gap(samples))
            more = len(samples.classes) > COLUMNS
            title += f" (the first {COLUMNS} of {len(samples.classes)} classes)" if more else ""
            axes.set_title(title, loc="left", size=LETTERS, parse_math=False)
        fit_height(figure, list(panels), sum(heights))
    return figure


def _name_classes(axes: Axes, names: Sequence[str], gap: int) -> None:
    """Name classes above their columns, as large as there is room."""
    room = 72 * WIDTH * 0.95 / len(names)  # points
    shown = [shortened(name, int(room / (_LETTER * _SMALLEST))) for name in names]
    size = min(_LARGEST, max(_SMALLEST, room / (_LETTER * max(map(len, shown)))))
    step = (axes.get_xlim()[1] + 2 * gap) / len(names)  # from class to class; the last has no gap after it
    places = (np.arange(len(names)) + 0.5) * step - gap
    axes.set_xticks(places, shown, fontsize=size, parse_math=False)
    axes.tick_params(length=0, pad=2, labeltop=True, labelbottom=False)


def _mosaic(samples: Samples, rows: int) -> tuple[Pixels, list[tuple[int, int, int, int]]]:
    """Return the images of every class, (height, width, 3) in 0..255, and which fields are empty: x, y and size.

    Images are a gap apart, and classes twice as far.
    """
    classes = len(samples.classes[:COLUMNS])
    each = max(1, COLUMNS // classes)
    channels, height, width = samples.images.shape[1:]
    gap = _gap(samples)
    fields = torch.full((classes, rows, each, channels, height, width), 255, dtype=torch.uint8)
    empty = []
    for label in range(classes):
        found = torch.where(samples.labels.cpu() == label)[0][: rows * each]
        fields[label].flatten(0, 1)[: len(found)] = _in_bytes(samples.images[found])
        for place in range(len(found), rows * each):
            x = label * (each * (width + gap) + gap) + place % each * (width + gap)
            empty.append((x, place // each * (height + gap), width, height))
    spaced = pad(fields, (0, gap, 0, gap), value=255).permute(3, 1, 4, 0, 2, 5)  # channels, down, across
    columns = spaced.reshape(channels, rows * (height + gap), classes, each * (width + gap))
    whole = pad(columns, (0, gap), value=255).flatten(2)[:, :-gap, : -2 * gap]
    whole = whole if channels == 3 else whole[:1].expand(3, -1, -1)  # of other than 1 or 3 channels the first
    return whole.permute(1, 2, 0).numpy(), empty


def _gap(samples: Samples) -> int:
    """Return the pixels between two images."""
    return max(1, samples.images.shape[-1] // 16)


def _in_bytes(images: torch.Tensor) -> torch.Tensor:
    """Return images in 0..255."""
    return images.cpu() if images.dtype == torch.uint8 else (images.cpu().float() * 255).round().to(torch.uint8)

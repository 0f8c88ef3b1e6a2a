"""Data as pictures: some images of every class, for data sets and their variants beside each other; and their labels.

Classes are shown by the labels that the data give, so wrong labels show as images that do not belong.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from suture.common.errors import DataError
from suture.data import Data, Samples
from suture.data.samples import check_pictures
from suture.report.figures.curve import KINDS, WIDTH, save, styled
from suture.report.style import shortened

ROLES = ("fit", "validation", "score")
COLUMNS = 10  #: images beside each other, at most
_TITLE, _NAMES, _BETWEEN, _MARGIN = 0.22, 0.17, 0.1, 0.05  #: inches: heights of the words, gaps between data sets
_SMALLEST, _LARGEST = 4.5, 7.0  #: points: the letters of a class's name
_LETTER = 0.62  #: the width of a letter, in its height


def label_statistics(data: Data) -> pd.DataFrame:
    """Count the samples of every class in every role: a row per role, a column per class, and ``all``."""
    counts = {}
    for role in ROLES:
        labels = getattr(data, role).labels.cpu()
        counts[role] = [*torch.bincount(labels, minlength=len(data.classes)).tolist(), len(labels)]
    table = pd.DataFrame.from_dict(counts, orient="index", columns=[*data.classes, "all"])
    table.index.name = "role"
    return table


def draw_samples(
    shown: Data | Sequence[tuple[str, Data]], path: str | Path, *, rows: int = 2, role: str = "fit"
) -> list[Path]:
    """Write ``sample_grid`` as ``path.png``, ``path.pdf`` and ``path.svg``; the paths written.

    A suffix of these of ``path`` counts for nothing. Raises ``DataError`` and ``OutputError``.
    """
    stem = Path(path)
    stem = stem.with_suffix("") if stem.suffix[1:] in KINDS else stem
    return save(sample_grid(shown, rows=rows, role=role), stem)


def sample_grid(shown: Data | Sequence[tuple[str, Data]], *, rows: int = 2, role: str = "fit") -> Figure:
    """Draw the first images of every class, ``rows`` high, for data sets below each other, each under its title.

    At most 10 images are beside each other, shared out equally between the classes; of more classes the first 10 are
    shown. A class without samples is a crossed field. Raises ``DataError`` if there is nothing to draw.
    """
    datas = [(shown.name, shown)] if isinstance(shown, Data) else list(shown)
    for _, data in datas:
        check_pictures("a drawing of samples", data.example)
    if not datas or rows < 1 or role not in ROLES:
        raise DataError(
            f"nothing to draw of {len(datas)} data sets in {rows} rows, role '{role}'; give at least one of each, and "
            f"a role of {', '.join(ROLES)}"
        )
    blocks = [_Block(title, getattr(data, role), rows) for title, data in datas]
    for before, block in itertools.pairwise(blocks):
        block.named = block.names != before.names
    with styled():
        height = sum(block.inches for block in blocks) + _BETWEEN * (len(blocks) - 1) + 2 * _MARGIN
        figure = Figure(figsize=(WIDTH, height))
        top = height - _MARGIN
        for block in blocks:
            block.draw(figure, top)
            top -= block.inches + _BETWEEN
    return figure


@dataclass
class _Block:
    """The images of one data set: so many fields beside each other for every class, in rows, with white gaps."""

    title: str
    samples: Samples
    rows: int
    named: bool = True  #: whether its classes are named above the images

    @property
    def names(self) -> tuple[str, ...]:
        return self.samples.classes[:COLUMNS]

    @property
    def each(self) -> int:
        """Return the fields of a class beside each other."""
        return max(1, COLUMNS // len(self.names))

    @property
    def gap(self) -> int:
        """Pixels of the images between them; between classes twice as many."""
        return max(1, self.samples.images.shape[-1] // 16)

    def start(self, column: int) -> int:
        """Return the first pixel of a column."""
        width = self.samples.images.shape[-1]
        return column * (width + self.gap) + (column // self.each) * self.gap

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of all fields, in pixels of the images."""
        height, width = self.samples.images.shape[2:]
        across = self.start(len(self.names) * self.each - 1) + width
        return self.rows * (height + self.gap) - self.gap, across

    @property
    def inches(self) -> float:
        """Return the height with the words."""
        height, width = self.pixels
        return _TITLE + _NAMES * self.named + (WIDTH - 2 * _MARGIN) * height / width

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the block from a height in inches downwards."""
        (height, width), whole = self.pixels, figure.get_figheight()
        below = top - _TITLE - _NAMES * self.named
        scale = (WIDTH - 2 * _MARGIN) / width  # inches a pixel
        left = _MARGIN / WIDTH
        axes = figure.add_axes((left, (below - scale * height) / whole, 1 - 2 * left, scale * height / whole))
        axes.imshow(self._mosaic(axes), interpolation="nearest", aspect="auto", extent=(0, width, height, 0))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        more = len(self.samples.classes) - len(self.names)
        title = self.title + (f" (the first {COLUMNS} of {len(self.samples.classes)} classes)" if more else "")
        figure.text(left, (top - 0.02) / whole, title, va="top", fontsize=8, parse_math=False)
        if self.named:
            self._name_classes(figure, (below + 0.04) / whole, scale)

    def _name_classes(self, figure: Figure, place: float, scale: float) -> None:
        span = self.start(self.each - 1) + self.samples.images.shape[-1]  # pixels
        room = 72 * scale * span  # points
        names = [shortened(name, int(room / (_LETTER * _SMALLEST))) for name in self.names]
        size = min(_LARGEST, max(_SMALLEST, room / (_LETTER * max(map(len, names)))))
        for label, name in enumerate(names):
            centre = _MARGIN + scale * (self.start(label * self.each) + span / 2)
            figure.text(centre / WIDTH, place, name, ha="center", va="bottom", fontsize=size, parse_math=False)

    def _mosaic(self, axes: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """Return all fields, (height, width, 3) in 0..255; empty ones are crossed."""
        (height, width), (high, wide) = self.pixels, self.samples.images.shape[2:]
        out = np.full((height, width, 3), 255, np.uint8)
        for label in range(len(self.names)):
            found = torch.where(self.samples.labels.cpu() == label)[0][: self.rows * self.each]
            for place in range(self.rows * self.each):
                x = self.start(label * self.each + place % self.each)
                y = place // self.each * (high + self.gap)
                if place < len(found):
                    out[y : y + high, x : x + wide] = _rgb(self.samples.images[found[place]])
                else:
                    axes.plot([x, x + wide], [y, y + high], color="0.75", linewidth=0.6)
                    axes.plot([x, x + wide], [y + high, y], color="0.75", linewidth=0.6)
        return out


def _rgb(image: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return an image (C, H, W) as (H, W, 3) in 0..255; of other than 1 or 3 channels the first."""
    image = image.cpu() if image.dtype == torch.uint8 else (image.cpu().float() * 255).round().to(torch.uint8)
    image = image if len(image) == 3 else image[:1].expand(3, -1, -1)
    return image.permute(1, 2, 0).numpy()

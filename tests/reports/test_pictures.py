"""Data as pictures: every image in its class's place, words that fit, and counts that are the labels'."""

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from suture.data import Data, Samples, load_data
from suture.reports.figures.samples import label_statistics, sample_grid
from suture_papers.variants import RandomLabels, SuperClasses, Without

DIGITS = load_data("digits")


def flat(classes: int = 3, each: int = 4, channels: int = 3) -> Data:
    """Images of one value each: 10 times the class, and 1 more for each before it."""
    labels = torch.arange(classes).repeat(each)
    values = (labels * 10 + torch.arange(each).repeat_interleave(classes)).to(torch.uint8)
    images = values[:, None, None, None].expand(-1, channels, 4, 4).contiguous()
    names = tuple(f"class {i}" for i in range(classes))
    return Data("flat", *(Samples(f"flat/{role}", images, labels, names) for role in ("fit", "validation", "score")))


def mosaic(figure: Figure, block: int = 0) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.asarray(figure.axes[block].images[0].get_array())


def values(figure: Figure, block: int = 0) -> list[list[int]]:
    """The value of every field of 4 by 4 pixels that is of one value and not white."""
    pixels = mosaic(figure, block)[:, :, 0]
    columns = [x for x in range(pixels.shape[1] - 3) if pixels[0, x] != 255 and (x == 0 or pixels[0, x - 1] == 255)]
    return [[int(pixels[y, x]) for x in columns] for y in range(0, len(pixels), 5)]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def texts(figure: Figure) -> list[Text]:
    """Titles and names of classes, from the top."""
    found = [(axes.title, axes._left_title, *axes.get_xticklabels()) for axes in figure.axes]
    return [text for part in found for text in part if text.get_text()]


def test_every_class_has_its_columns_in_the_order_of_the_data() -> None:
    figure = sample_grid(flat(), rows=1)
    assert values(figure) == [[0, 1, 2, 10, 11, 12, 20, 21, 22]]
    assert words(figure) == ["flat", "class 0", "class 1", "class 2"]
    assert values(sample_grid(flat(5), rows=2)) == [
        [0, 1, 10, 11, 20, 21, 30, 31, 40, 41],
        [2, 3, 12, 13, 22, 23, 32, 33, 42, 43],
    ]


def test_of_many_classes_the_first_ten_are_shown() -> None:
    figure = sample_grid(flat(12, 2), rows=1)
    assert values(figure) == [[10 * i for i in range(10)]]
    assert words(figure)[0] == "flat (the first 10 of 12 classes)"
    assert words(figure)[-1] == "class 9"


def test_classes_are_named_again_only_where_they_change() -> None:
    two = SuperClasses("low: 0|1|2|3|4; high: 5|6|7|8|9")
    figure = sample_grid([("a", DIGITS), ("b $x_1$", RandomLabels(0.5)(DIGITS)), ("c", two(DIGITS))])
    assert words(figure) == ["a", *"0123456789", "b $x_1$", "c", "low", "high"]
    assert len(figure.axes) == 3


def test_a_class_without_samples_is_a_crossed_field() -> None:
    figure = sample_grid(Without("3|4")(DIGITS), rows=3)
    assert len(figure.axes[0].lines) == 2 * 2 * 3


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_any_channels_and_floats_are_drawn(channels: int) -> None:
    data = flat(channels=channels)
    floats = Data("flat", *(Samples("x", s.images / 255, s.labels, s.classes) for s in (data.fit,) * 3))
    assert np.array_equal(mosaic(sample_grid(data)), mosaic(sample_grid(floats)))


def test_words_lie_within_the_page_and_apart() -> None:
    long = tuple(f"a class with a very long name {i}" for i in range(10))
    data = Data("d", *(Samples("d", s.images, s.labels, long) for s in (DIGITS.fit, DIGITS.validation, DIGITS.score)))
    for shown in (data, load_data("digits+digits")):
        figure = sample_grid([("first", shown), ("second", DIGITS)])
        renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        figure.draw(renderer)
        boxes = [text.get_window_extent(renderer) for text in texts(figure)]
        boxes += [axes.get_window_extent(renderer) for axes in figure.axes]
        page = figure.bbox
        for i, box in enumerate(boxes):
            assert page.x0 <= box.x0 < box.x1 <= page.x1
            assert page.y0 <= box.y0 < box.y1 <= page.y1
            assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def test_label_statistics_count_every_class_in_every_role() -> None:
    table = label_statistics(Without("3")(DIGITS))
    assert list(table.columns) == [*"0123456789", "all"]
    assert list(table.index) == ["fit", "validation", "score"]
    assert table["3"].tolist() == [0, 0, int((DIGITS.score.labels == 3).sum())]
    assert table["all"].tolist() == table[list("0123456789")].sum(axis=1).tolist()
    assert table["all"].tolist()[-1] == 597

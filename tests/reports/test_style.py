"""How names and numbers are written in print, and that every line is seen."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from suture.measurement.tables.curve import PLAIN
from suture.reports.charts import Line, Measure, Numbers
from suture.reports.figures.curve import Picture, draw_lines
from suture.reports.style import with_minus


def test_a_negative_number_has_a_minus_sign_and_a_name_keeps_its_hyphen() -> None:
    said = "worst penalty -1.5 pp [-2, 0.5] (layer-1 → gpt2-128x4-0, 3-4)"
    assert with_minus(said) == "worst penalty −1.5 pp [−2, 0.5] (layer-1 → gpt2-128x4-0, 3-4)"


@pytest.mark.parametrize("kinds", [("#0", "#1"), (PLAIN, "untrained-sender")])
def test_a_line_that_another_covers_is_still_seen(kinds: tuple[str, str]) -> None:
    under, over = np.array([0.2, 0.9, 0.9]), np.array([0.2, 0.9, 0.9001])
    seen = count_colours(kinds, under, over)
    assert all(count > 100 for count in seen), seen
    alone = count_colours(kinds, under, over[::-1])
    assert 0.5 < sum(alone) / sum(seen) < 1, "lines that can be told apart are as thin as ever"


def count_colours(kinds: tuple[str, str], *values: Numbers) -> list[int]:
    """Draw lines; count the pixels of each one's colour."""
    lines = tuple(Line.of(kind, kind, value) for kind, value in zip(kinds, values, strict=True))
    figure = Picture(figsize=(4, 3), dpi=100)
    draw_lines(figure.subplots(), Measure("score", "accuracy", "", 2, lines))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].reshape(-1, 3).astype(int)
    colours = [255 * np.array(to_rgb(line.look(i)[0])) for i, line in enumerate(lines)]
    return [int((np.abs(pixels - colour).max(1) < 40).sum()) for colour in colours]

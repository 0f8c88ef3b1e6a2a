"""The annotated figure of docs/reading.md: numbers laid over the demo's curve.

    python benchmarks/reading_picture.py docs/images

Numbers sit where that picture has its parts; look at the result after the demo's picture was drawn again.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

#: Each number and its place, in shares of the picture's width and height from the upper left corner.
MARKS = (
    (1, 0.945, 0.055),
    (2, 0.27, 0.2),
    (3, 0.60, 0.166),
    (4, 0.27, 0.305),
    (5, 0.325, 0.392),
    (6, 0.31, 0.583),
    (7, 0.9905, 0.6825),
    (8, 0.11, 0.729),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    folder = parser.parse_args().pictures
    picture = plt.imread(folder / "demo-curve.png")
    height, width = picture.shape[:2]
    figure = plt.figure(figsize=(width / 200, height / 200), dpi=200)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(picture)
    axes.axis("off")
    for number, across, down in MARKS:
        style = {"color": "white", "fontsize": 7, "weight": "bold", "ha": "center", "va": "center"}
        box = {"boxstyle": "circle,pad=0.25", "facecolor": "#1b1f24", "edgecolor": "white"}
        axes.text(across * width, down * height, str(number), bbox=box, **style)
    figure.savefig(folder / "reading.png", dpi=200, metadata={"Software": ""})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

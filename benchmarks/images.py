"""How many images a stitch should be fitted to: points, seconds and bytes of the default fit at the tuned seams.

    python -m benchmarks.images DATA [--only NAME …] [--numbers N …] [--mirrored]

At each seam of ``benchmarks.tuned`` the default fit is measured with 10,000, 20,000 and all training images, and
with ``--mirrored`` also with every image and its mirror image, through the sender's own layers. Validation and scored
images stay the same. Seconds are of the fit alone, bytes those of the sender's activations that it reads. Writes
``benchmarks/results/images.json``, a row for each; what is there is not measured again.
"""

import argparse
import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

import suture
from benchmarks.reference import measure, write
from benchmarks.tuned import SEAMS, join
from suture.core.activations.cache import Activations

PATH = Path(__file__).parent / "results" / "images.json"
NUMBERS = (10_000, 20_000, 45_000)
FLOAT = 4  #: bytes


def mirror(samples: suture.Samples) -> suture.Samples:
    """Return samples and their mirror images behind them."""
    mirrored = replace(samples, images=samples.images.flip(-1))
    return samples.followed_by(mirrored, f"{samples.name} and mirrored")


def main() -> None:
    """Measure the numbers of images that are missing in the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with mnist and cifar10, as the hub lays them out")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="senders of seams")
    parser.add_argument("--numbers", nargs="*", type=int, default=NUMBERS, metavar="N")
    parser.add_argument("--mirrored", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    for names in SEAMS:
        if given.only and names[0] not in given.only:
            continue
        rows = found.setdefault("{} {} → {} {}".format(*names), {})
        for number in given.numbers:
            for mirrored in (False, True) if given.mirrored else (False,):
                label = f"{number}{' mirrored' if mirrored else ''}"
                if label in rows:
                    continue
                seam, images = join(*names, given.data, fit=number)
                fitted = mirror(images.fit) if mirrored else images.fit
                trial = suture.Trial(seam, fitted, images.validation, images.score)
                cache = Activations()
                suture.measure(replace(trial, fit=suture.fits.LeastSquares()), cache)
                rows[label] = measure(trial, 0.0, cache) | {"bytes": FLOAT * len(fitted) * prod(seam.shapes[0])}
                rows[label].pop("below")
                write(PATH, found)
                row = rows[label]
                said = f"{100 * row['accuracy']:.2f} %, {row['fit_seconds']:.1f} s, {row['bytes'] / 1e6:,.0f} MB"
                print(f"{names[0]} {names[1]} → {names[2]} {names[3]}, {label} images: {said}", flush=True)


if __name__ == "__main__":
    main()

"""The default fit validated on images that neither network has seen, beside validation on training images.

    python -m benchmarks.apart DATA [--only NAME …]

At each seam of ``benchmarks.tuned`` the default fit chooses its stitch once by 5,000 images that both networks were
trained on, and once by 2,000 of the images to score (``Data.validated_apart``). Both are fitted on the same images and
scored on the same others. Writes ``benchmarks/results/apart.json``, a row for each seam;
those that are there are not measured again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import suture
from benchmarks.reference import measure, write
from benchmarks.tuned import SEAMS, join, load_data
from suture.core.activations.cache import Activations

PATH = Path(__file__).parent / "results" / "apart.json"
APART, KNOWN = 2_000, 5_000


def main() -> None:
    """Measure the seams that are missing in the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with mnist and cifar10, as the hub lays them out")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="senders of seams")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    for names in SEAMS:
        label = "{} {} → {} {}".format(*names)
        if label in found or (given.only and names[0] not in given.only):
            continue
        seam, images = join(*names, given.data)
        apart = images.validated_apart(APART)
        known = load_data(given.data, names[2].split("-")[0]).fit  # the networks' training images
        known = known.take(torch.arange(len(images.fit), len(images.fit) + KNOWN), "known")
        cache, rows = Activations(), {}
        for name, validation in (("training images", known), ("images apart", apart.validation)):
            trial = suture.Trial(seam, images.fit, validation, apart.score)
            suture.measure(replace(trial, fit=suture.fits.LeastSquares()), cache)
            rows[name] = measure(trial, 0.0, cache) | {"validated on": len(validation)}
            rows[name].pop("below")
        found[label] = rows
        write(PATH, found)
        first, other = rows.values()
        moved, steps = 100 * (other["accuracy"] - first["accuracy"]), other["steps"] / first["steps"]
        print(f"{label}: {100 * first['accuracy']:.2f} %, apart {moved:+.2f}, steps × {steps:.2f}", flush=True)


if __name__ == "__main__":
    main()

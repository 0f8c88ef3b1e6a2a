"""The default fit validated on images that neither network has seen, beside validation on training images.

    python -m benchmarks.apart DATA [--only NAME …] [--fresh]

At each seam of ``benchmarks.tuned``, or with ``--fresh`` of ``benchmarks.fresh``, the default fit chooses its stitch
once by 5,000 images that both networks were trained on, and once by 2,000 of the images to score
(``Data.validated_apart``). Both are fitted on the same images and scored on the same others. Writes
``benchmarks/results/apart.json``, a row for each seam; those that are there are not measured again.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import suture
from benchmarks import reference
from benchmarks.fresh import FOLDER, WITH
from benchmarks.reference import measure, write
from benchmarks.tuned import SEAMS, join, load_data
from suture.core.activations.cache import Activations

PATH = Path(__file__).parent / "results" / "apart.json"
APART, KNOWN = 2_000, 5_000


Listed = Iterator[tuple[str, str, str, Callable[[], tuple[suture.Trial, suture.Data]]]]
"""Of each seam its label, its name, the kind of its receiver, and a function that returns its trial and its images."""


def list_tuned(data: Path) -> Listed:
    """List the seams that the fit was tuned on."""

    def make(names: tuple[str, str, str, str]) -> tuple[suture.Trial, suture.Data]:
        seam, images = join(*names, data)
        return suture.Trial(seam, images.fit, images.validation, images.score), images

    for names in SEAMS:
        yield "{} {} → {} {}".format(*names), names[0], names[2].split("-")[0], partial(make, names)


def list_fresh(data: Path) -> Listed:
    """List the fresh seams that have long fits."""

    def make(seam: reference.Seam) -> tuple[suture.Trial, suture.Data]:
        images, sender, receiver = reference.load(seam, data)
        return reference.pose(seam, images, sender, receiver, "converged"), images

    with patch.multiple(reference, **WITH):
        for seam in reference.read_seams():
            if (FOLDER / f"{seam['id']}.json").exists():
                label = "{sender} {sender_cut} → {receiver} {receiver_cut}".format(**seam)
                yield label, seam["id"], seam["receiver"].split("-")[0], partial(make, seam)


def main() -> None:
    """Measure the seams that are missing in the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with mnist and cifar10, as the hub lays them out")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="senders of seams, or ids of fresh ones")
    parser.add_argument("--fresh", action="store_true", help="the seams of benchmarks.fresh")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else {}
    for label, name, kind, make in list_fresh(given.data) if given.fresh else list_tuned(given.data):
        if label in found or (given.only and name not in given.only):
            continue
        trial, images = make()
        apart = images.validated_apart(APART)
        known = load_data(given.data, kind).fit  # the networks' training images
        known = known.take(torch.arange(len(images.fit), len(images.fit) + KNOWN), "known")
        cache, rows = Activations(), {}
        for name, validation in (("training images", known), ("images apart", apart.validation)):
            trial = replace(trial, validation_data=validation, score_data=apart.score)
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

"""The default fit at a seam whose receiver was never taught a class, from each of its starts.

    suture train oxford-small --network zoo:cnn,dense=4 --data DATA/cifar10 --out A --seed 30
    suture train oxford-small --network zoo:cnn,dense=4 --data DATA/cifar10 --out B --seed 35 \\
        --variant without,classes=truck
    python -m benchmarks.lost_class DATA A B --cut fc1_relu --label truck --seeds 3

prints for each stitch seed, by the closed form alone, by random starts after it, and by displaced ones first
(``fits.displaced``), how many of all test images and of that class are right, and what the fit says of itself. Networks
of seeds 30 to 39 judge nothing: on them the displaced start was tuned.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

import torch

import suture
from suture.fits import averaged
from suture.measurement.scores.scores import Accuracy
from suture.measurement.scores.traits import knows

FIT = 10_000  #: images that a stitch is fitted on
MODEL = "zoo:cnn,dense=4"
WAYS = {
    "closed form": {"DRAWS": 0},
    "random": {"find_displacements": lambda *_: ({}, 0)},
    "displaced": {"DRAWS": averaged.DRAWS},
}


def load(folder: Path, data: suture.Data) -> suture.Network:
    """Load a network that was trained by ``suture train``."""
    path = folder / "model.safetensors"
    return suture.load_network(MODEL, checkpoint=str(path), example=data.example, name=folder.name)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with cifar10, as the hub lays it out")
    parser.add_argument("sender", type=Path)
    parser.add_argument("receiver", type=Path)
    parser.add_argument("--cut", default="fc1_relu")
    parser.add_argument("--label", default="truck")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = suture.load_data(str(given.data / "cifar10"))
    images = whole.limited(fit=FIT)
    seam = suture.Seam(load(given.sender, images), load(given.receiver, images), given.cut, given.cut)
    scores = (Accuracy(), knows(images, given.label))
    for seed in range(given.seeds):
        for way, changes in WAYS.items():
            with patch.multiple(averaged, **changes):
                trial = suture.Trial(seam, images.fit, images.validation, images.score, scores=scores, seed=seed)
                found = suture.measure(trial)
            right, known = (100 * score.value for score in found.scores.values())
            said = f"{'converged' if found.converged else 'not converged'}, from {found.start}, {found.steps:,} steps"
            print(f"seed {seed}, {way:12} {right:.1f} % right, {known:.1f} % of {given.label}; {said}", flush=True)


if __name__ == "__main__":
    main()

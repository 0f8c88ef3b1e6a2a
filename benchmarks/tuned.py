"""The networks and seams on which the default fit was tuned, and how it does there.

``train DATA`` trains the networks that ``benchmarks/results/tuned`` lacks, forty minutes of one core for all, and
rounds them to half precision. ``fit DATA`` fits a stitch at each seam and prints the score, the steps and the seconds.
``arms DATA`` lets every pair of units and rate descend alone. None of these networks or seams judges the fit: those of
``benchmarks.reference`` do, which are other networks.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file

import suture
from benchmarks.reference import load_data
from suture.common.names import make
from suture.core.activations.cache import Activations
from suture.fits import converged
from suture.fits.averaged import Arm
from suture.fits.coordinates import WHITE
from suture.fits.optimisers import SGD, AdamW, Constant
from suture.zoo.models import resolve
from suture_papers.training.augment import CropFlip
from suture_papers.training.loop import train
from suture_papers.training.recipe import Recipe

FOLDER = Path(__file__).parent / "results" / "tuned"
RIDGES, RATES = (None, 1000.0, WHITE), (0.3, 0.1, 0.0333, 0.01)  #: of the arms that are compared
FIT = 10_000  #: images that a stitch is fitted on, and at most as many are scored
SHORT = "blocks=(1,1,1,1)"
COLOURED = Recipe(epochs=4, optimiser=SGD(lr=0.1, nesterov=False, weight_decay=1e-4), schedule=Constant())
STACKED = "zoo:cnn,dense=3,image=(64,32),classes=100"
PLAIN = Recipe(epochs=12, batch=64, optimiser=SGD(lr=0.01, nesterov=False, weight_decay=0.0), schedule=Constant())
TOKENS = Recipe(epochs=5, optimiser=AdamW(lr=1e-3, weight_decay=0.05), augment=CropFlip())
KINDS = {
    "mlp": ("zoo:mlp,width=64,depth=9,inputs=3072", PLAIN),
    "small": ("zoo:cnn,dense=4", Recipe(epochs=6)),
    "cnn": (STACKED, PLAIN),
    "colour": (f"zoo:resnet,{SHORT},width=16,stem=7x7", COLOURED),
    "digit": (f"zoo:resnet,{SHORT},width=16,stem=7x7", COLOURED),
    "resnet": (f"zoo:resnet,{SHORT},width=16", Recipe(epochs=6, precision="fast")),
    "myrtle": ("zoo:myrtle,width=16", Recipe(epochs=6, precision="fast")),
    "vit": ("zoo:vit,dim=64,depth=4,heads=4", TOKENS),
    "deep": ("zoo:vit,dim=64,depth=6,heads=4", TOKENS),
}
PAIRS = dict.fromkeys(KINDS, (30, 31)) | {"colour": (40,), "digit": (41,), "deep": (30,)}
NETWORKS = {f"{kind}-{seed}": KINDS[kind] for kind, seeds in PAIRS.items() for seed in seeds}
SEAMS = (
    ("mlp-30", "block2.relu", "mlp-31", "block6.relu"),
    ("mlp-31", "block7.relu", "mlp-30", "block2.linear"),
    ("small-30", "conv2_relu", "small-31", "fc1_relu"),
    ("small-31", "pool2", "small-30", "pool1"),
    ("cnn-30", "pool2", "cnn-31", "conv2_relu"),
    ("cnn-31", "fc1_relu", "cnn-30", "pool2"),
    ("colour-40", "layer4.0", "digit-41", "layer1.0"),
    ("resnet-30", "layer1.0", "resnet-31", "layer3.0"),
    ("resnet-31", "layer3.0", "resnet-30", "layer2.0"),
    ("myrtle-30", "stage2.conv", "myrtle-31", "stage3.pool"),
    ("resnet-30", "layer2.0", "myrtle-30", "stage2.conv"),
    ("vit-30", "blocks.1", "vit-31", "blocks.2"),
    ("vit-31", "blocks.2", "myrtle-31", "stage3.relu"),
    ("vit-30", "patch_embed.transpose", "deep-30", "blocks.2.add"),
    ("vit-31", "patch_embed.flatten", "deep-30", "blocks.4.add"),
)


def load(name: str, data: Path, folder: Path = FOLDER) -> suture.Network:
    """Load a network that was trained here."""
    path, kind = folder / f"{name}.safetensors", name.split("-")[0]
    if not path.exists():
        sys.exit(f"{path} is not there; train it first: python -m benchmarks.tuned train {data}")
    example = load_data(data, kind).example
    return suture.load_network(KINDS[kind][0], checkpoint=str(path), example=example, name=name)


def train_all(data: Path, names: Sequence[str], folder: Path = FOLDER) -> None:
    """Train those of the networks that are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.safetensors"
        if path.exists():
            continue
        kind, seed = name.split("-")
        (source, recipe), images = KINDS[kind], load_data(data, kind)
        built = resolve(source)
        model = train(built.factory, images.fit, recipe, int(seed), preprocess=built.preprocess)
        half = {name: each.half() if each.is_floating_point() else each for name, each in model.state_dict().items()}
        save_file({name: each.contiguous() for name, each in half.items()}, path)
        print(f"trained {name}", flush=True)


def join(
    sender: str, sender_cut: str, receiver: str, receiver_cut: str, data: Path, fit: int = FIT
) -> tuple[suture.Seam, suture.Data]:
    """Return a seam of these networks, and the images to fit, to validate on and to score."""
    source = load_data(data, receiver.split("-")[0])
    limited = source.limited(fit=min(fit, len(source.fit)), score=min(FIT, len(source.score)))
    seam = suture.Seam(load(sender, data), load(receiver, data), sender_cut, receiver_cut)
    return seam, replace(limited, validation=source.validation)


def fit_all(data: Path, text: str, only: Sequence[str], seeds: int) -> None:
    """Print how a fit does at each seam, the activations cached."""
    for names in SEAMS:
        if only and names[0] not in only:
            continue
        seam, images = join(*names, data)
        cache = Activations()
        print("{} {} → {} {}".format(*names), flush=True)
        pose = partial(suture.Trial, seam, images.fit, images.validation, images.score)
        suture.measure(pose(fit=suture.fits.LeastSquares()), cache)
        for seed in range(seeds):
            begun = time.process_time()
            measured = suture.measure(pose(fit=make("fit", text), seed=seed), cache)
            seconds, gained = time.process_time() - begun, measured.gained
            said = "" if gained is None else f", gained {100 * gained.value:.2f} ± {100 * gained.error:.2f}"
            print(
                f"    {100 * measured.scores['accuracy'].value:.2f} % after {measured.steps:,} steps, {seconds:.1f} s; "
                f"converged: {measured.converged}{said}; loss {measured.validation_loss:.4f}",
                flush=True,
            )


def compare_arms(data: Path, only: Sequence[str]) -> None:
    """Print how every arm does at each seam, alone."""
    for ridge in RIDGES:
        for rate in RATES:
            print(f"{'plain' if ridge is None else f'ridge {ridge:g}'}, rate {rate:g}")
            alone = lambda ground, ridge=ridge, rate=rate: Arm(ground, ridge, rate)  # noqa: E731
            with patch.object(converged, "race", alone):
                fit_all(data, "converged", only, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "fit", "arms"))
    parser.add_argument("data", type=Path, help="a folder with mnist and cifar10, as the hub lays them out")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="networks, or senders of seams")
    parser.add_argument("--fit", default="converged", metavar="FIT", help="a fit, as on Suture's command line")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="stitch seeds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "train":
        train_all(given.data, given.only or list(NETWORKS))
    elif given.what == "fit":
        fit_all(given.data, given.fit, given.only, given.seeds)
    else:
        compare_arms(given.data, given.only)

"""Train the small networks of the CIFAR-10 benchmarks: two processes at a time, skipped where the weights are there.

python benchmarks/cifar_networks.py path/to/cifar10 runs/cifar [NAME …]
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from safetensors.torch import save_file

import suture
from suture.fits.recipes import SGD, OneCycle
from suture.zoo import load_network, parse_source, resolve
from suture.zoo.training import CropFlip, Recipe, train

_NORMALISED = "preprocess.mean=(0.4914,0.4822,0.4465),preprocess.std=(0.2470,0.2435,0.2616)"
CIFAR_SMALL = Recipe(
    epochs=6, optimiser=SGD(lr=0.4, nesterov=True, weight_decay=5e-4), schedule=OneCycle(0.3), augment=CropFlip(4)
)


@dataclass(frozen=True)
class Trained:
    """What is trained, how, and from which seed."""

    source: str
    recipe: Recipe = CIFAR_SMALL
    seed: int = 0


NETWORKS = {
    "resnet-0": Trained(f"zoo:resnet,blocks=(1,1,1),width=16,{_NORMALISED}"),
    "resnet-1": Trained(f"zoo:resnet,blocks=(1,1,1),width=16,{_NORMALISED}", seed=1),
}


def checkpoint(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def load(name: str, folder: Path, data: suture.Data, label: str | None = None) -> suture.Network:
    return load_network(NETWORKS[name].source, checkpoint(folder, name), example=data.example, name=label or name)


def make(source: str, folder: Path, name: str) -> None:
    if checkpoint(folder, name).exists():
        return
    data = suture.load_data(source)
    begun = time.process_time()

    wanted = NETWORKS[name]
    per_epoch = wanted.recipe.steps_per_epoch(len(data.fit))

    def watch(step: int, steps: int, losses: Sequence[float]) -> None:
        if step % per_epoch == 0:
            spent = time.process_time() - begun
            print(f"{name}: epoch {len(losses)}, loss {losses[-1]:.3f}, {spent:.0f} CPU s", flush=True)

    built = resolve(parse_source(wanted.source))
    model = train(built.factory, data.fit, wanted.recipe, wanted.seed, preprocess=built.preprocess, watch=watch)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), checkpoint(folder, name))


def make_all(source: str, folder: Path, names: list[str]) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(make, source, folder, name) for name in names]:
            done.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    given = parser.parse_args()
    make_all(given.data, given.folder, given.names)

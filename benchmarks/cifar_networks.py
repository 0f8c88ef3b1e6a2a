"""Train the two small ResNets of the CIFAR-10 benchmarks: one process each, skipped where the weights are there.

python benchmarks/cifar_networks.py path/to/cifar10 runs/cifar
"""

import argparse
import time
from multiprocessing import get_context
from pathlib import Path

from safetensors.torch import save_file

import suture
from suture.zoo import resnet
from suture.zoo.training import CIFAR_SMALL, train

PREPROCESS = suture.Preprocess(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
SOURCE = (
    "zoo:resnet,blocks=(1,1,1),width=16,preprocess.mean=(0.4914,0.4822,0.4465),preprocess.std=(0.2470,0.2435,0.2616)"
)


def build():
    return resnet(blocks=(1, 1, 1), width=16)


def checkpoint(folder: Path, seed: int) -> Path:
    return folder / f"resnet-{seed}.safetensors"


def make(source: str, folder: Path, seed: int) -> None:
    if checkpoint(folder, seed).exists():
        return
    data = suture.load_data(source)
    begun = time.process_time()

    def told(epoch: int, loss: float) -> None:
        print(
            f"seed {seed}: epoch {epoch}, loss {loss:.3f}, {time.process_time() - begun:.0f} CPU s",
            flush=True,
        )

    model = train(build, data.fit, CIFAR_SMALL, seed, preprocess=PREPROCESS, told=told)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), checkpoint(folder, seed))


def make_all(source: str, folder: Path, seeds: tuple[int, ...] = (0, 1)) -> None:
    processes = [get_context("spawn").Process(target=make, args=(source, folder, seed)) for seed in seeds]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    make_all(given.data, given.folder)

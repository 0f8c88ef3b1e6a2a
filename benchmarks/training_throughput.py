"""Training throughput of a small ResNet on CIFAR-10: the plain PyTorch loop with a DataLoader, and Suture's.

python benchmarks/training_throughput.py path/to/cifar10 [--images 20000] [--epochs 4] [--out FILE]

Both train the same network from the same recipe, epoch by epoch in turns, each on one thread, and are scored on all
test images. The plain loop is the one that everybody writes: a data set of images, torchvision's random crop, flip and
normalisation for each image, a DataLoader, float32. Then the whole machine: the plain loop with all its cores and as
many loader processes, against as many of Suture's trainings, one thread each, for as many steps as ``--steps`` says.
"""

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import suture
from suture.common.sizes import cores
from suture.data import Samples
from suture.zoo import resolve
from suture_papers.networks.base_model import score_network
from suture_papers.networks.recipes import FAST
from suture_papers.recipes import set_rate
from suture_papers.training import Recipe, Training

SOURCE = "zoo:resnet,blocks=(2,2,2,2),width=16"


class Images(Dataset[tuple[Tensor, Tensor]]):
    """One image at a time, augmented as everybody does."""

    def __init__(self, samples: Samples) -> None:
        built = resolve(SOURCE)
        self.images, self.labels = samples.images, samples.labels
        self.change = v2.Compose(
            [
                v2.RandomCrop(32, padding=4),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(built.preprocess.mean, built.preprocess.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.change(self.images[index]), self.labels[index]


class Plain:
    """The plain loop."""

    def __init__(self, samples: Samples, recipe: Recipe, workers: int) -> None:
        torch.manual_seed(0)
        self.model = resolve(SOURCE).model.train()
        self.recipe, self.count = recipe, len(samples)
        self.optimiser = recipe.optimiser.over(self.model.parameters())
        self.loader = DataLoader(
            Images(samples),
            recipe.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        self.step = 0

    def epoch(self, most: int | None = None) -> float:
        """Train for an epoch, or a number of steps; images a second."""
        begun, first = time.perf_counter(), self.step
        for images, labels in self.loader:
            set_rate(
                self.optimiser,
                self.recipe.optimiser,
                self.recipe.schedule,
                self.step,
                self.recipe.count_steps(self.count),
            )
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.step += 1
            if self.step - first == most:
                break
        return (self.step - first) * self.recipe.batch / (time.perf_counter() - begun)


class Ours:
    """Suture's, stopped after each epoch; the time of an epoch is that of its steps."""

    def __init__(self, samples: Samples, recipe: Recipe) -> None:
        built = resolve(SOURCE)
        self.batch = recipe.batch
        self.training = Training(built.factory, samples, recipe, 0, preprocess=built.preprocess)
        self.until = 0

    def epoch(self) -> float:
        """Train for an epoch; images a second."""
        first, begun = self.training.progress.step, time.perf_counter()
        self.until += 1
        self.model = self.training.run(until=self.until)
        return (self.training.progress.step - first) * self.batch / (time.perf_counter() - begun)


def in_turns(data: suture.Data, samples: Samples, recipe: Recipe) -> list[str]:
    torch.set_num_threads(1)
    plain, ours = Plain(samples, recipe, 0), Ours(samples, recipe)
    rates: dict[str, list[float]] = {"plain": [], "suture": []}
    assert recipe.epochs is not None
    for epoch in range(recipe.epochs):
        rates["plain"].append(plain.epoch())
        rates["suture"].append(ours.epoch())
        print(
            f"epoch {epoch + 1}: " + ", ".join(f"{name} {each[-1]:.0f} images/s" for name, each in rates.items()),
            flush=True,
        )
    preprocess = resolve(SOURCE).preprocess
    medians = {name: statistics.median(each) for name, each in rates.items()}
    lines = []
    for name, model in (("plain", plain.model.eval()), ("suture", ours.model)):
        accuracy = score_network(model, preprocess, data.score)["accuracy"]
        found = f"{100 * accuracy['value']:.1f} % [{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}]"
        lines.append(f"one core, {name}: {medians[name]:.0f} images/s, test accuracy {found}")
    return [*lines, f"one core: {medians['suture'] / medians['plain']:.2f} times as fast"]


def _some_steps(samples: Samples, recipe: Recipe, steps: int) -> tuple[float, float]:
    torch.set_num_threads(1)
    times: list[float] = []
    built = resolve(SOURCE)
    short = replace(recipe, epochs=None, steps=steps + 5)
    training = Training(
        built.factory, samples, short, 0, preprocess=built.preprocess, watch=lambda *_: times.append(time.time())
    )
    training.run()
    return times[4], times[-1]


def whole_machine(samples: Samples, recipe: Recipe, steps: int) -> list[str]:
    count = cores()
    torch.set_num_threads(count)
    plain = Plain(samples, recipe, count)
    plain.epoch(5)
    rates: list[float] = []
    for _ in range(3):
        rates.append(plain.epoch(steps))
    first = statistics.median(rates)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        spans: list[Any] = list(pool.map(_some_steps, [samples] * count, [recipe] * count, [3 * steps] * count))
    second = sum(3 * steps * recipe.batch / (end - begun) for begun, end in spans)
    return [
        f"all {count} cores, plain: {first:.0f} images/s, one network, {count} loader processes",
        f"all {count} cores, suture: {second:.0f} images/s, {count} networks at a time",
        f"all {count} cores: {second / first:.2f} times as fast",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    data = suture.load_data(given.data)
    some = data.training.take(torch.arange(given.images), "some")
    chosen = replace(FAST, epochs=given.epochs)
    found = whole_machine(some, chosen, given.steps) + in_turns(data, some, chosen)
    print("\n".join(found))
    if given.out is not None:
        given.out.write_text("\n".join(found) + "\n")

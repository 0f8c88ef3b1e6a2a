"""The networks and seams on which the default fit's units and its search for a rate were chosen, and how it does there.

``train DATA`` trains the networks into ``runs/tuned`` (about an hour of one core). ``look DATA`` fits a stitch at
each seam in each of several units and prints what validation says after 140 and after 1,120 steps, and the score of
what ``Converged`` keeps within that cap. ``rates DATA`` prints at the seams ``EARLY``, for three stitch seeds, which
rates are found if lower ones are tried only where the loss rises at the first, as until version 15, and which since;
where they differ, it fits both to the end. ``slower DATA`` fits at the seams ``OVERFITTED`` as ``Converged`` does, on
batches of 256, and at a third of the rate, which falls later. None of these networks or seams judges the fit: those of
``benchmarks.reference`` do, which are other networks.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import torch
from safetensors.torch import save_file

import suture
from benchmarks.reference import load_data
from suture.fits import averaged, converged
from suture.fits.averaged import AveragedDescent, Make
from suture.fits.coordinates import ALIKE, WHITE
from suture.fits.optimisers import SGD, Constant
from suture.zoo.models import resolve
from suture.zoo.training.loop import train
from suture.zoo.training.recipe import Recipe

FOLDER = Path(__file__).parents[1] / "runs" / "tuned"
STEPS = (140, 1120)
FIT = 10_000  #: images that a stitch is fitted on, and at most as many are scored
LONG, SHORT = "blocks=(2,2,2,2)", "blocks=(1,1,1,1)"
COLOURED = Recipe(epochs=4, optimiser=SGD(lr=0.1, nesterov=False, weight_decay=1e-4), schedule=Constant())
NETWORKS = {
    "colour-50": (f"zoo:resnet,{LONG},width=16,stem=7x7", COLOURED),
    "colour-40": (f"zoo:resnet,{SHORT},width=16,stem=7x7", COLOURED),
    "digit-41": (f"zoo:resnet,{SHORT},width=16,stem=7x7", COLOURED),
    "resnet-30": (f"zoo:resnet,{SHORT},width=16", Recipe(epochs=6)),
    "resnet-31": (f"zoo:resnet,{SHORT},width=16", Recipe(epochs=6)),
    "myrtle-30": ("zoo:myrtle,width=16", Recipe(epochs=6)),
    "myrtle-31": ("zoo:myrtle,width=16", Recipe(epochs=6)),
    "small-30": ("zoo:cnn,dense=4", Recipe(epochs=6)),
    "small-31": ("zoo:cnn,dense=4", Recipe(epochs=6)),
}
SEAMS = (
    ("colour-50", "layer4.1", "digit-41", "layer1.0"),
    ("colour-40", "layer4.0", "digit-41", "layer1.0"),
    ("resnet-30", "avgpool", "resnet-31", "layer1.0"),
)
EARLY = (
    ("myrtle-30", "stage1.relu", "myrtle-31", "stage3.pool"),
    ("myrtle-31", "stage1.norm", "myrtle-30", "stage4.conv"),
    ("small-30", "conv1_relu", "small-31", "conv2_relu"),
    ("small-31", "conv2_relu", "small-30", "fc1_relu"),
    ("small-30", "pool2", "small-31", "pool2"),
    ("small-31", "fc1_relu", "small-30", "fc2"),
)
OVERFITTED = (
    ("resnet-30", "layer2.0", "resnet-31", "layer1.0"),
    ("resnet-30", "layer2.0", "myrtle-30", "stage2.conv"),
    ("myrtle-31", "stage3.pool", "myrtle-30", "stage2.conv"),
    ("myrtle-31", "stage2.conv", "resnet-31", "layer2.0"),
    ("small-30", "conv2_relu", "small-31", "fc1_relu"),
    ("small-31", "fc1_relu", "small-30", "fc2"),
)
SLOWER, LATER = 3.0, 9  #: the factors by which the rate is lower and by which it falls later
SEEDS = 3


def load(name: str, data: Path) -> suture.Network:
    """Load a network that was trained here."""
    path = FOLDER / f"{name}.safetensors"
    if not path.exists():
        sys.exit(f"{path} is not there; train it first: python -m benchmarks.tuned train {data}")
    kind = name.split("-")[0]
    return suture.load_network(
        NETWORKS[name][0], checkpoint=str(path), example=load_data(data, kind).example, name=name
    )


def train_all(data: Path) -> None:
    """Train the networks that are not there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (source, recipe) in NETWORKS.items():
        path = FOLDER / f"{name}.safetensors"
        if path.exists():
            continue
        kind, seed = name.split("-")
        images, built = load_data(data, kind), resolve(source)
        model = train(built.factory, images.fit, recipe, int(seed), preprocess=built.preprocess)
        save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, path)
        print(f"trained {name}", flush=True)


def join(sender: str, sender_cut: str, receiver: str, receiver_cut: str, data: Path) -> tuple[suture.Seam, suture.Data]:
    """Return a seam of these networks, and the images to fit, to validate on and to score."""
    source = load_data(data, receiver.split("-")[0])
    limited = source.limited(fit=FIT, score=min(FIT, len(source.score)))
    seam = suture.Seam(load(sender, data), load(receiver, data), sender_cut, receiver_cut)
    return seam, replace(limited, validation=source.validation)


def compare_rates(data: Path) -> None:
    """Print the rates that are found with and without a turn to lower ones and, where they differ, both fits."""
    found: list[float] = []
    find = AveragedDescent._find_rate

    def noted(self: AveragedDescent, tries: int, turn: bool, *, allowed: bool) -> None:
        find(self, tries, turn and allowed)
        found.append(self.rate)

    for names in EARLY:
        seam, images = join(*names, data)
        print("{} {} → {} {}".format(*names), flush=True)
        for seed in range(SEEDS):
            made = {}
            for cap in (2 * averaged.FIRST, converged.CAP):
                if cap > 2 * averaged.FIRST and made[False][0] == made[True][0]:
                    continue
                for allowed in (False, True):
                    AveragedDescent._find_rate = partialmethod(noted, allowed=allowed)  # type: ignore[method-assign,assignment]
                    found.clear()
                    fit = suture.fits.Converged(cap=cap)
                    trial = suture.Trial(seam, images.fit, images.validation, images.score, fit=fit, seed=seed)
                    measured = suture.measure(trial)
                    made[allowed] = list(found), measured
            for allowed, (rates, measured) in made.items():
                said = "turning down" if allowed else "up, or down if the loss rises"
                ran = measured.converged or measured.steps > 1_000
                found_rates = ", ".join(f"{rate:.3f}" for rate in rates)
                score = f"; {100 * measured.scores['accuracy'].value:.2f} %, {measured.steps:,} steps" if ran else ""
                print(f"    seed {seed}, {said}: rates {found_rates}{score}", flush=True)


def look(data: Path) -> None:
    """Print how the default fit descends at each seam, by the ridge of its units and by its own choice."""
    ways: dict[str, Callable[[Make, float], AveragedDescent]] = {
        f"{ridge:g} × the mean": lambda make, _, ridge=ridge: make(ridge)  # type: ignore[misc]
        for ridge in (ALIKE, 1.0, WHITE)
    }
    ways["its own choice"] = averaged.choose_units
    looks: list[tuple[int, float]] = []
    take = AveragedDescent._go_on

    def noted(self: AveragedDescent, ahead: int, tolerance: float) -> bool:
        better = take(self, ahead, tolerance)
        looks.append((self.step, self.best.least.error / self.scale))
        return better

    AveragedDescent._go_on = noted  # type: ignore[method-assign]
    for sender, sender_cut, receiver, receiver_cut in SEAMS:
        seam, images = join(sender, sender_cut, receiver, receiver_cut, data)
        print(f"{sender} {sender_cut} → {receiver} {receiver_cut}")
        for name, choose in ways.items():
            looks.clear()
            converged.choose_units = choose  # type: ignore[attr-defined]
            fit = suture.fits.Converged(cap=max(STEPS))
            trial = suture.Trial(seam, images.fit, images.validation, images.score, fit=fit)
            measured = suture.measure(trial)
            said = ", ".join(f"{100 * error:.1f} after {step:,}" for step, error in looks if step in STEPS)
            score = measured.scores["accuracy"].value
            print(f"    {name:16} errors [%] {said}; accuracy {100 * score:.1f}", flush=True)


def compare_slower(data: Path) -> None:
    """Print what validation and test images say of the default fit, of larger batches, and of a lower rate."""
    find, steady = AveragedDescent._find_rate, averaged.STEADY

    def find_lower(self: AveragedDescent, tries: int, turn: bool) -> None:
        find(self, tries, turn)
        self.rate /= SLOWER

    for names in OVERFITTED:
        seam, images = join(*names, data)
        print("{} {} → {} {}".format(*names))
        for name, batch, slower in (("default", 64, False), ("batches of 256", 256, False), ("lower rate", 64, True)):
            AveragedDescent._find_rate = find_lower if slower else find  # type: ignore[method-assign]
            averaged.STEADY = LATER * steady if slower else steady  # type: ignore[misc]
            fit = suture.fits.Converged(batch=batch)
            begun = time.process_time()
            measured = suture.measure(suture.Trial(seam, images.fit, images.validation, images.score, fit=fit))
            seconds, error = time.process_time() - begun, 1 - measured.scores["accuracy"].value
            said = f"validation loss {measured.validation_loss:.4f}, test error {100 * error:.2f} %"
            print(f"    {name:16} {said}; {measured.steps:,} steps, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "look", "rates", "slower"))
    parser.add_argument("data", type=Path, help="a folder with mnist and cifar10, as the hub lays them out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    do = {"train": train_all, "look": look, "rates": compare_rates, "slower": compare_slower}
    do[given.what](given.data)

"""The activations that ResNet-18s of half the width need after their first stage, and others do not send them.

    python -m benchmarks.narrow DATA [FOLDER] [--store STORE]

In bansal-2A a stitch into such networks (eight channels in the first stage) costs much more after ``layer1.1`` than
after any other block. Three tables, of the three networks of that width and three of twice that width as senders:

``bansal-2A.narrow.csv``    penalties at ``layer1.1``, and at ``layer2.0`` to compare, by the default fit: of 3×3
                            stitches between networks of that width, and of 1×1 stitches from the wider ones
``bansal-2A.explained.csv`` at each cut, how much of the variance of the receiver's activation on test images least
                            squares finds in the sender's channels (``explained``), and the accuracy of the receiver
                            alone (``alone``) and given what least squares makes (``given``)
``bansal-2A.channels.csv``  at ``layer1.1``, for each channel of the receiver: its standard deviation, how much of its
                            variance is found (``explained``), and the receiver's accuracy with that channel at its mean
                            (``mean``), with it from least squares and the others its own (``only``), and with all but
                            it from least squares (``spared``)

Forty minutes on one core.
"""

import argparse
import re
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

import suture
from suture.core.network.network import Network
from suture.core.stitches import Conv
from suture.data import Data, load_data
from suture.measurement.trials.trial import Trial
from suture.zoo.models import load_network

Row = dict[str, str | float]
FOLDER = Path(__file__).parents[1] / "papers" / "results" / "small"
CUT, OTHER = "layer1.1", "layer2.0"
NARROW, WIDE, SEEDS = "resnet18-w0.5", "resnet18", (10, 11, 12)
FITTED, READ, BATCH = 10_000, 2_500, 500  #: images that stitches are fitted to, as in the study, and least squares


def read_channels(network: Network, cut: str, images: Tensor) -> Tensor:
    """Return the activations at a cut, of shape (images, channels, height, width)."""
    with torch.no_grad():
        return torch.cat([network.upto(cut)(part) for part in images.split(BATCH)])


def solve(sent: Tensor, own: Tensor) -> Tensor:
    """Return the least-squares map from the sender's channels and 1 to the receiver's, of shape (own, sent + 1)."""
    left = torch.zeros(sent.shape[1] + 1, sent.shape[1] + 1).double()
    right = torch.zeros(sent.shape[1] + 1, own.shape[1]).double()
    for x, y in zip(sent.split(BATCH), own.split(BATCH), strict=True):
        rows = torch.nn.functional.pad(_pixels(x), (0, 1), value=1.0)
        left, right = left + rows.T @ rows, right + rows.T @ _pixels(y)
    return torch.linalg.lstsq(left, right).solution.T  # a channel may always be 0


def _pixels(x: Tensor) -> Tensor:
    """Return a row of channels for each pixel."""
    return x.movedim(1, -1).flatten(0, -2).double()


def apply(solved: Tensor, sent: Tensor) -> Tensor:
    """Apply the map to the sender's channels."""
    return torch.einsum("oi,nihw->nohw", solved[:, :-1].float(), sent) + solved[:, -1].float()[:, None, None]


def find_explained(made: Tensor, own: Tensor) -> float:
    """Return the share of the variance about each channel's mean that was found."""
    means = own.mean(dim=(0, 2, 3), keepdim=True)
    return 1 - float((made - own).square().sum() / (own - means).square().sum())


def score(receiver: Network, cut: str, given: Tensor, labels: Tensor) -> float:
    """Return the receiver's accuracy from a cut on."""
    with torch.no_grad():
        said = torch.cat([receiver.after(cut)(part).argmax(1) for part in given.split(BATCH)])
    return float((said == labels).double().mean())


def compare(sender: Network, receiver: Network, cut: str, data: Data) -> tuple[Row, list[Row]]:
    """Return the row of a cut, and one for each channel of the receiver."""
    fitted, tried, labels = (one[:READ] for one in (data.fit.images, data.score.images, data.score.labels))
    solved = solve(read_channels(sender, cut, fitted), read_channels(receiver, cut, fitted))
    own, made = read_channels(receiver, cut, tried), apply(solved, read_channels(sender, cut, tried))
    row: Row = {"explained": find_explained(made, own), "alone": score(receiver, cut, own, labels)}
    row["given"] = score(receiver, cut, made, labels)
    channels: list[Row] = []
    for i in range(own.shape[1] if cut == CUT else 0):
        mean, only, spared = own.clone(), own.clone(), made.clone()
        mean[:, i], only[:, i], spared[:, i] = own[:, i].mean(), made[:, i], own[:, i]
        told: Row = {"channel": i, "deviation": float(own[:, i].std())}
        told["explained"] = find_explained(made[:, i : i + 1], own[:, i : i + 1])
        variants = {"mean": mean, "only": only, "spared": spared}
        channels.append(told | {name: score(receiver, cut, given, labels) for name, given in variants.items()})
    return row, channels


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--store", type=Path, default=Path("runs/narrow"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data(given.data / "cifar10").limited(fit=FITTED)
    names = [f"{name}@{seed}" for name in (NARROW, WIDE) for seed in SEEDS]
    networks = {name: load_network(f"ledger:{name}", example=data.fit.images[:1]) for name in names}
    pairs = [pair for pair in product(names, names[: len(SEEDS)]) if pair[0] != pair[1]]
    cuts: list[Row] = []
    channels: list[Row] = []
    for sender, receiver in pairs:
        for cut in (name for name in networks[receiver].cuts.names if re.fullmatch(r"layer\d\.\d", name)):
            told: Row = {"sender": sender, "receiver": receiver}
            row, mine = compare(networks[sender], networks[receiver], cut, data)
            cuts.append(told | {"cut": cut} | row)
            channels += [told | own for own in mine]
            print(cuts[-1], flush=True)
    pd.DataFrame(cuts).round(4).to_csv(given.folder / "bansal-2A.explained.csv", index=False)
    pd.DataFrame(channels).round(4).to_csv(given.folder / "bansal-2A.channels.csv", index=False)

    trials = list[Trial]()
    for sender, receiver in pairs:
        how = {"at": [CUT, OTHER], "stitch": Conv(kernel=3 if sender.startswith(NARROW) else 1), "controls": ()}
        trials += suture.curve(networks[sender], networks[receiver], data=data, **how)
    table = suture.run(trials, store=given.store)
    shown = ["sender", "receiver", "receiver_cut", "stitch", "stitched", "receiver_score", "penalty", "converged"]
    table.loc[table["score"] == "accuracy", shown].round(4).to_csv(given.folder / "bansal-2A.narrow.csv", index=False)


if __name__ == "__main__":
    main()

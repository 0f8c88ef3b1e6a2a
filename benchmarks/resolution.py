"""How much of the triangle is resolution: the best result of a stitch that enlarges maps.

    python -m benchmarks.resolution DATA [FILE]

hernandez2022's stitches from a late cut into an earlier one up-sample, so that what they give is constant in blocks of
pixels. However good the map, the variance of the receiver's own activation *within* blocks is out of reach, and least
squares tends to the mean of each block. For each of hernandez-triangle's receivers and each of its lower cells, this
writes that share of the variance, and the accuracy of the receiver given its own activation averaged over the blocks:
what least squares would reach if the sender held all that the receiver does. Errors and accuracies by least squares are
those of papers/results/small/hernandez-triangle. A minute on one core.
"""

import argparse
from itertools import combinations
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from suture.core.network.network import Network
from suture.data import load_data
from suture.zoo.models import load_network

RESULTS = Path(__file__).parents[1] / "papers" / "results" / "small"
FILE = RESULTS / "hernandez-triangle.resolution.csv"
NAME, SEEDS, BATCH = "resnet(1,1,1,1)", range(10, 15), 500
SAMPLES = 5_000  #: the study's


def measure(receiver: Network, cut: str, block: int, images: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Return the share of the variance that lies within blocks, and the accuracies with blocks averaged and without."""
    upto, after = receiver.upto(cut), receiver.after(cut)
    within = right = alone = 0.0
    mean, squares, count = torch.zeros(1), torch.zeros(1), 0
    with torch.no_grad():
        for start in range(0, len(images), BATCH):
            own, said = upto(images[start : start + BATCH]), labels[start : start + BATCH]
            averaged = nn.functional.interpolate(nn.functional.avg_pool2d(own, block), scale_factor=block)
            within += float((own - averaged).square().sum())
            mean, squares = mean + own.sum(0), squares + own.square().sum(0)
            right += int((after(averaged).argmax(1) == said).sum())
            alone += int((after(own).argmax(1) == said).sum())
            count += len(said)
    variance = float((squares - mean.square() / count).sum())  # about the mean image, as representation_error has it
    return within / variance, right / count, alone / count


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load_data(given.data / "cifar10").limited(score=SAMPLES)
    images, labels = data.score.images, data.score.labels
    trials = pd.read_parquet(RESULTS / "hernandez-triangle.trials.parquet")
    squares = trials[trials["fit"].str.startswith("LeastSquares")]
    by = squares.groupby(["sender_cut", "receiver_cut"])[["representation_error", "stitched"]].mean()
    rows = []
    for seed in SEEDS:
        receiver = load_network(f"ledger:{NAME}@{seed}", example=data.example)
        sizes = {cut: receiver.cuts.find(cut).shape[-1] for cut in sorted(set(squares["receiver_cut"]))}
        for early, late in combinations(sizes, 2):
            share, averaged, alone = measure(receiver, early, sizes[early] // sizes[late], images, labels)
            least = by.loc[(late, early)]
            rows.append(
                {"seed": seed, "sender_cut": late, "receiver_cut": early, "within_blocks": share}
                | {"averaged": averaged, "alone": alone}
                | {"least_squares_error": least["representation_error"], "least_squares": least["stitched"]}
            )
            print(rows[-1], flush=True)
    pd.DataFrame(rows).round(4).to_csv(given.file, index=False)


if __name__ == "__main__":
    main()

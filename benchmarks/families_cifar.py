"""One seam by every family that can join it, on CIFAR-10: accuracy, penalty, representation error, parameters, seconds.

    python benchmarks/families_cifar.py path/to/cifar10 runs/families

The seam is ``layer2.0`` of two ResNet(1,1,1,1)s of the ledger, the data 10,000 training and all 10,000 test images.
Every family is fitted in closed form and by the default (everything to everything in closed form alone), a 1×1
convolution by every fit. One process, one thread. Prints the tables of which ``docs/families.md`` shows some
rows. Started again, it measures only what is missing.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch

import suture
from suture import load_network
from suture.core.stitches import Conv, Diagonal, FullLinear, Identity, LowRank, Orthogonal, Permutation, Stitch
from suture.fits import (
    SGD,
    Converged,
    Fit,
    LeastSquares,
    MatchActivations,
    Narrower,
    Quick,
    Random,
    SoftLabels,
    TaskLoss,
)
from suture.runs.runners import Lines, Local

AT = "layer2.0"
FAMILIES: list[Stitch] = [
    *(Identity(), Permutation(), Diagonal(), Orthogonal()),
    *(LowRank(rank) for rank in (1, 2, 4, 8, 16)),
    *(Conv(batchnorm=False), Conv(), Conv(3), Conv(5), Conv(7), Conv(9), FullLinear()),
]
FITS: list[Fit] = [
    *(LeastSquares(), LeastSquares(rescale=False), MatchActivations(), Quick(), Converged()),
    *(TaskLoss(), TaskLoss(start=Random()), TaskLoss(start=Narrower(Orthogonal()))),
    *(TaskLoss(start=MatchActivations()), TaskLoss(targets=SoftLabels())),
]
BY_SGD = TaskLoss(optimiser=SGD(lr=0.1))


def list_cells() -> list[tuple[Stitch, Fit]]:
    """Return every family with its fits, in the order of the first table, then those of the second alone."""
    cells: list[tuple[Stitch, Fit]] = [(Identity(), Random())]
    for family in FAMILIES[1:]:
        cells += [(family, LeastSquares()), *([(family, BY_SGD)] if family == Permutation() else [])]
        cells += [(family, Converged())] if family != FullLinear() else []  # 67 million parameters: over 50 minutes
    return cells + [(Conv(), fit) for fit in FITS if fit not in (LeastSquares(), Converged())]


def count_parameters(family: Stitch, shape: tuple[int, ...]) -> int:
    """Return the number of a stitch's parameters."""
    return sum(own.numel() for own in family.build(shape, shape).parameters())


def write(rows: pd.DataFrame) -> str:
    """Return a table for the page."""
    lines = [
        "| stitch | fit | accuracy | penalty, pp | converged | representation error | parameters | s |",
        "|" + " --- |" * 8,
    ]
    lines += [
        f"| `{row.stitch}` | `{row.fit}` | {100 * row.stitched:.1f} | {row.penalty:+.1f} [{row.penalty_low:.1f}, "
        f"{row.penalty_high:.1f}] | {'yes' if row.converged else 'no'} | {row.representation_error:.2f} "
        f"| {row.parameters:,} | {row.seconds:.0f} |"
        for row in rows.itertuples()
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure the missing cells, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = suture.load_data(given.data, name="cifar10").limited(fit=10_000)
    a, b = (load_network(f"ledger:resnet(1,1,1,1)@{seed}", example=data.example) for seed in (10, 11))
    cells = list_cells()
    plans = [suture.curve(a, b, at=[AT], data=data, stitch=family, fit=fit, controls=()) for family, fit in cells]
    whole = suture.run(sum(plans[1:], plans[0]), store=given.folder, on=Local(workers=1), progress=Lines(every=60.0))
    rows = whole[whole["score"] == "accuracy"].reset_index(drop=True)
    shape = a.cuts.find(AT).shape
    rows["parameters"] = [count_parameters(family, shape) for family, _ in cells]
    print(f"sender alone {100 * rows['sender_score'][0]:.1f} %, receiver {100 * rows['receiver_score'][0]:.1f} %\n")
    print(write(rows.iloc[: len(cells) - len(FITS) + 2]), "\n")
    print(write(rows[(rows["stitch"] == str(Conv())) & (rows["fit"].isin([str(fit) for fit in FITS]))]))


if __name__ == "__main__":
    main()

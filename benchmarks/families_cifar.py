"""One seam by every family that can join it, on CIFAR-10: accuracy, representation error, parameters, CPU seconds.

    python benchmarks/families_cifar.py path/to/cifar10 runs/cifar

The seam is ``layer2.0`` of two ResNets trained from different seeds (``cifar_networks.py``), the data 10,000 training
and all 10,000 test images, one thread. Every family is fitted in closed form and on the task, and a 1×1 convolution by
every fit. Prints the tables of ``docs/families.md``; measured trials are kept in the folder and not measured again.
"""

import argparse
import time
from pathlib import Path

import pandas as pd
from cifar_networks import load, make_all

import suture
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv, Diagonal, FullLinear, Identity, LowRank, Orthogonal, Permutation, Stitch
from suture.fits import Fit, LeastSquares, MatchActivations, Narrower, Random, SoftLabels, TaskLoss
from suture.fits.recipes import SGD
from suture.measurement.tables import table
from suture.measurement.trials.plans import curve

AT = "layer2.0"
FAMILIES: list[Stitch] = [
    *(Identity(), Permutation(), Diagonal(), Orthogonal()),
    *(LowRank(rank) for rank in (1, 2, 4, 8, 16)),
    *(Conv(batchnorm=False), Conv(), Conv(3), Conv(5), Conv(7), Conv(9), FullLinear()),
]
FITS: list[Fit] = [
    LeastSquares(),
    LeastSquares(rescale=False),
    MatchActivations(),
    TaskLoss(),
    TaskLoss(start=Random()),
    TaskLoss(start=Narrower(Orthogonal())),
    TaskLoss(start=MatchActivations()),
    TaskLoss(targets=SoftLabels()),
]
BY_SGD = TaskLoss(optimiser=SGD(lr=0.1))


def cells() -> list[tuple[Stitch, Fit]]:
    by_family = [
        (f, fit) for f in FAMILIES for fit in ([LeastSquares(), TaskLoss()] if f != Identity() else [Random()])
    ]
    by_family.insert(3, (Permutation(), BY_SGD))
    return by_family + [(Conv(), fit) for fit in FITS if fit not in (LeastSquares(), TaskLoss())]


def shown(rows: pd.DataFrame) -> str:
    lines = [
        "| stitch | fit | accuracy | penalty, pp | representation error | parameters | CPU s |",
        "|" + " --- |" * 7,
    ]
    lines += [
        f"| `{row.stitch}` | `{row.fit}` | {100 * row.stitched:.1f} | {row.penalty:+.1f} [{row.penalty_low:.1f}, "
        f"{row.penalty_high:.1f}] | {row.representation_error:.2f} | {int(row.parameters):,} | {row.cpu:.0f} |"
        for row in rows.itertuples()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    make_all(given.data, given.folder, ["resnet-0", "resnet-1"])
    data = suture.load_data(given.data, name="cifar10").limited(fit=10_000)
    a, b = (load(f"resnet-{seed}", given.folder, data, label) for seed, label in ((0, "A"), (1, "B")))
    path = given.folder / "families.parquet"
    rows = pd.read_parquet(path) if path.exists() else pd.DataFrame({"trial": []})
    cache = Activations()
    for network in (a, b):  # prefixes run once for all, and are not counted
        for samples in (data.fit, data.validation, data.score):
            cache.at(network, AT, samples)
    for family, fit in cells():
        (trial,) = curve(a, b, at=[AT], data=data, stitch=family, fit=fit, controls=())
        if trial.key in set(rows["trial"]):
            continue
        begun = time.process_time()
        measured = suture.measure(trial, cache)
        seconds = time.process_time() - begun
        parameters = sum(parameter.numel() for parameter in measured.stitch.parameters())
        row = table.to_table([measured]).query("score == 'accuracy'").assign(parameters=parameters, cpu=seconds)
        rows = pd.concat([rows, row])
        rows.to_parquet(path, index=False)
        print(f"{family} by {fit}: {measured.scores.accuracy}, {seconds:.0f} CPU s", flush=True)
    order = {(str(family), str(fit)): i for i, (family, fit) in enumerate(cells())}
    places = [order.get(pair, len(order)) for pair in zip(rows["stitch"], rows["fit"], strict=True)]
    rows = rows.assign(place=places).sort_values("place")
    names = {str(fit): fit for fit in FITS}
    first = rows[rows["fit"].isin([str(fit) for fit in (LeastSquares(), TaskLoss(), Random(), BY_SGD)])]
    parents = rows[["receiver_score", "sender_score"]].iloc[0] * 100
    print(f"receiver alone {parents['receiver_score']:.1f} %, sender alone {parents['sender_score']:.1f} %")
    print(shown(first))
    print(shown(rows[(rows["stitch"] == str(Conv())) & rows["fit"].isin(names)]))


if __name__ == "__main__":
    main()

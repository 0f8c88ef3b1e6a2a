"""The matrix of two ResNets and a vision transformer on CIFAR-10, every network into every network, with all controls.

    python benchmarks/matrix_cifar.py path/to/cifar10 runs/cifar

Cuts: the ends of the four stages of each ResNet and of the four transformer blocks, or of every block. Trains the three
networks first where their weights are not there (``cifar_networks.py``; about 50 CPU minutes). Stitches are fitted on
the first ``--fit-samples`` training images and scored on the first ``--score-samples`` test images, by two processes;
started again, only what is missing is measured. Writes the table, the
heat map and the summary by depth, and prints the triangle means and the time.
"""

import argparse
import os
import time
from pathlib import Path

from cifar_networks import load, make_all

import suture
from suture.fits import TaskLoss
from suture.measurement.tables import table
from suture.measurement.tables.by_depth import by_depth
from suture.reports.figures import curve as figures
from suture.reports.figures import matrix as heatmaps
from suture.runs.runners import Lines, Local

NETWORKS = {"resnet1111": "RN1111", "resnet2222": "RN2222", "vit": "ViT"}
STAGES = {"RN1111": ("layer?.0",), "RN2222": ("layer?.1",), "ViT": ("blocks.?",)}
BLOCKS = ("layer?.?", "blocks.?")
FIT = TaskLoss(steps=60, batch=32, check=20)
SHOWN = ["sender", "receiver", "control", "mean", "late_to_early", "early_to_late", "difference", "near", "far"]
PROCESSES = 2


def planned(given: argparse.Namespace) -> suture.Plan:
    data = suture.load_data(given.data, name="cifar10").limited(fit=given.fit_samples, score=given.score_samples)
    networks = [load(name, given.folder, data, label) for name, label in NETWORKS.items()]
    return suture.matrix(networks, data=data, cuts=BLOCKS if given.every_block else STAGES, fit=FIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit-samples", type=int, default=2000)
    parser.add_argument("--score-samples", type=int, default=1000)
    parser.add_argument("--every-block", action="store_true", help="256 cells in place of 144")
    given = parser.parse_args()
    make_all(given.data, given.folder, list(NETWORKS))
    begun = time.time()
    whole = suture.run(
        planned(given), store=given.folder / "matrix-run", on=Local(workers=PROCESSES), progress=Lines(every=60.0)
    )
    table.save(whole, given.folder / "matrix.parquet")
    figures.save(heatmaps.matrix(whole), given.folder / "matrix")
    for pooled in (True, False):
        summary = by_depth(whole, pooled=pooled)
        summary.to_csv(given.folder / f"matrix-depth-{'pooled' if pooled else 'pairs'}.csv", index=False)
        print(summary[[*SHOWN, "cells"]].round(3).to_string(index=False))
    each = whole.drop_duplicates("trial")
    print(
        f"{len(each)} trials, {(each['status'] == 'failed').sum()} failed, {each['seconds'].sum():.0f} s in trials; "
        f"this run {time.time() - begun:.0f} s of wall time on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()

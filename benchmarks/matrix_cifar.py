"""The matrix of two ResNets and a vision transformer on CIFAR-10, every network into every network, with all controls.

    python benchmarks/matrix_cifar.py path/to/cifar10 runs/cifar

Cuts: the ends of the four stages of each ResNet and of the four transformer blocks, or of every block. Trains the three
networks first where their weights are not there (``cifar_networks.py``; about 50 CPU minutes). Stitches are fitted on
the first ``--fit-samples`` training images and scored on the first ``--score-samples`` test images. Two processes share
the trials and write what they have every minute; started again, only what is missing is measured. Writes the table, the
heat map and the summary by depth, and prints the triangle means and the time.
"""

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from cifar_networks import load, make_all

import suture
from suture.core.activations.cache import Activations
from suture.fits import TaskLoss
from suture.measurement.tables import table
from suture.measurement.tables.by_depth import by_depth
from suture.report.figures import curve as figures
from suture.report.figures import matrix as heatmaps
from suture.runs.runners.local import attempt

NETWORKS = {"resnet1111": "RN1111", "resnet2222": "RN2222", "vit": "ViT"}
STAGES = {"RN1111": ("layer?.0",), "RN2222": ("layer?.1",), "ViT": ("blocks.?",)}
BLOCKS = ("layer?.?", "blocks.?")
FIT = TaskLoss(steps=60, batch=32, check=20)
SHOWN = ["sender", "receiver", "control", "mean", "late_to_early", "early_to_late", "difference", "near", "far"]
PROCESSES = 2
KEEP_EVERY = 60.0  #: seconds


def planned(given: argparse.Namespace) -> suture.Plan:
    data = suture.load_data(given.data, name="cifar10").limited(fit=given.fit_samples, score=given.score_samples)
    networks = [load(name, given.folder, data, label) for name, label in NETWORKS.items()]
    return suture.matrix(networks, data=data, cuts=BLOCKS if given.every_block else STAGES, fit=FIT)


def measured(path: Path) -> pd.DataFrame:
    return table.load(path) if path.exists() else table.to_table([])


def gathered(folder: Path) -> pd.DataFrame:
    parts = [measured(folder / f"matrix-{which}.parquet") for which in range(PROCESSES)]
    return pd.concat(parts).astype(table.COLUMNS)


def work(given: argparse.Namespace, which: int) -> float:
    """Measure one share of the trials; the CPU seconds it took."""
    torch.set_num_threads(1)
    path = given.folder / f"matrix-{which}.parquet"
    kept = measured(path)
    done = set(gathered(given.folder)["trial"])
    trials = [trial for trial in planned(given)[which::PROCESSES] if trial.key not in done]
    cache, new, saved, begun = Activations(6 * 2**30), [], time.time(), time.process_time()
    for i, trial in enumerate(trials, start=1):
        new.append(attempt(trial, cache))
        if time.time() - saved > KEEP_EVERY or i == len(trials):
            kept = pd.concat([kept, table.to_table(new)]).astype(table.COLUMNS)
            table.save(kept, path)
            new, saved = [], time.time()
            print(f"process {which}: {i} of {len(trials)}, {time.process_time() - begun:.0f} CPU s", flush=True)
    return time.process_time() - begun


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
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        seconds = sum(pool.map(work, [given] * PROCESSES, range(PROCESSES)))
    whole = gathered(given.folder)
    whole = whole[whole["trial"].isin({trial.key for trial in planned(given)})]
    table.save(whole, given.folder / "matrix.parquet")
    figures.save(heatmaps.matrix(whole), given.folder / "matrix")
    for pooled in (True, False):
        summary = by_depth(whole, pooled=pooled)
        summary.to_csv(given.folder / f"matrix-depth-{'pooled' if pooled else 'pairs'}.csv", index=False)
        print(summary[[*SHOWN, "cells"]].round(3).to_string(index=False))
    each = whole.drop_duplicates("trial")
    print(
        f"{len(each)} trials, {(each['status'] == 'failed').sum()} failed, {each['seconds'].sum():.0f} s in trials; "
        f"this run {time.time() - begun:.0f} s of wall time and {seconds:.0f} CPU s on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()

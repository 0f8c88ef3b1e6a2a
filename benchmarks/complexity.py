"""The complexity of the stitched networks of one curve, at every block of two ResNets.

    python benchmarks/complexity.py path/to/cifar10 A B [--images 512] [--out papers/results/small/complexity.parquet]

A and B are model strings or folders of trained networks. Every seam is fitted as ``suture curve`` does, then measured
on test images: gradient norm, sharpness (mean and worst), gzip size, the Hessian's largest eigenvalue and trace, and
the ranks at the first layer after the stitch; the two networks themselves beside them. A row per measure and cut;
started again, only cuts that are not in the file are measured.
"""

import argparse
import time
from pathlib import Path

import pandas as pd

import suture
from suture.core.activations.cache import Activations
from suture_papers import complexity
from suture_papers.complexity import (
    EffectiveRank,
    GradientNorm,
    GzipSize,
    HessianTrace,
    MeanSharpness,
    NumericalRank,
    TopEigenvalue,
    WorstSharpness,
)

WHOLE = (
    GradientNorm(),
    GradientNorm(normalised=True),
    MeanSharpness(0.01, normalised=True),
    WorstSharpness(0.01, normalised=True),
    GzipSize(),
    TopEigenvalue(tolerance=0.01),
    HessianTrace(products=12),
)
RANKS = (NumericalRank(), EffectiveRank())
RANKED = 2000  #: images, since a rank is below their number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "sender", "receiver"):
        parser.add_argument(name)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--at", default="layer?.?", help="a glob pattern of cuts")
    parser.add_argument("--out", type=Path, default=Path("papers/results/small/complexity.parquet"))
    given = parser.parse_args()
    data = suture.load_data(given.data, name="cifar10").limited(fit=9000)
    a, b = (
        suture.load_network(source, example=data.fit.example, name=name)
        for source, name in ((given.sender, "A"), (given.receiver, "B"))
    )
    samples, kept = data.score.first(given.images), Activations()
    tables = [pd.read_parquet(given.out)] if given.out.exists() else []

    def add(found: pd.DataFrame, where: str, begun: float) -> None:
        tables.append(found)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        pd.concat(tables, ignore_index=True).to_parquet(given.out, index=False)
        print(f"{where}: {time.process_time() - begun:.0f} CPU s", flush=True)
        print(found[["measure", "normalised", "value"]].to_string(index=False, header=False), flush=True)

    done = set() if not tables else set(zip(tables[0]["sender_cut"], tables[0]["sender"], strict=True))
    for network in (a, b):
        if ("", network.name) not in done:
            begun = time.process_time()
            labels = {"sender": network.name, "receiver": "", "sender_cut": "", "receiver_cut": ""}
            labels |= {"sender_depth": None, "receiver_depth": None}
            add(complexity.complexity(network, samples, WHOLE, labels=labels), network.name, begun)
    cuts = [
        cut for cut in suture.matrix(a, b, data=data, cuts=given.at, controls=()) if cut.sender_cut == cut.receiver_cut
    ]
    for trial in cuts:
        if (trial.sender_cut, a.name) not in done:
            begun = time.process_time()
            measured = suture.measure(trial, kept)
            found = [
                complexity.complexity(measured.stitched, some, by)
                for some, by in ((samples, WHOLE), (data.score.first(RANKED), RANKS))
            ]
            add(pd.concat(found, ignore_index=True), trial.where, begun)


if __name__ == "__main__":
    main()

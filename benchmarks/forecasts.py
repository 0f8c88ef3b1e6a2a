"""How long a curve takes, beside the range that its plan gave.

    python -m benchmarks.forecasts DATA [--only NAME …]

The curves are between networks of ``benchmarks/results/tuned``, at three cuts each, with all controls, by the default
fit or by ``Quick``, one worker at a time. ``DATA`` is a folder with ``mnist`` and ``cifar10``.
"""

import argparse
import time
from pathlib import Path

import torch

import suture
from benchmarks.reference import load_data
from benchmarks.tuned import load
from suture.runs.progress import Silent, clock

IMAGES = 5_000  #: that are fitted and scored
CURVES = {
    "mlp": ("mlp-30", "mlp-31", ("block2.relu", "block5.relu", "block8.relu"), "converged"),
    "small": ("small-30", "small-31", ("conv2_relu", "pool2", "fc1_relu"), "converged"),
    "resnet": ("resnet-30", "resnet-31", ("layer1.0", "layer2.0", "layer3.0"), "quick"),
    "vit": ("vit-30", "vit-31", ("blocks.0", "blocks.1", "blocks.2"), "quick"),
}


def compare(name: str, data: Path) -> None:
    """Print the range for a curve, and the seconds of the processor that it takes."""
    sender, receiver, cuts, fit = CURVES[name]
    images = load_data(data, sender.split("-")[0]).limited(fit=IMAGES, score=IMAGES)
    trials = suture.curve(load(sender, data), load(receiver, data), data=images, at=cuts, fit=fit)
    begun = time.process_time()
    said = suture.forecast(trials, workers=1, timed=True).range
    timing = time.process_time() - begun
    assert said is not None
    begun = time.process_time()
    suture.run(trials, on=suture.Local(workers=1), progress=Silent())
    took = time.process_time() - begun
    print(
        f"{name}, {len(trials)} trials by {fit}: {clock(said[0])} to {clock(said[1])} (said within {timing:.1f} s), "
        f"took {clock(took)}, {'within' if said[0] <= took <= said[1] else 'outside'}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CURVES), choices=list(CURVES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for each in given.only:
        compare(each, given.data)

"""The demonstration: two small networks on real handwritten digits, stitched at every cut, with controls."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from suture.core.network.network import Network
from suture.data import Data, load_data
from suture.fits import TaskLoss
from suture.measurement.trials.controls import DEFAULT
from suture.measurement.trials.plans import curve
from suture.runs.runners import Runner, run
from suture.runs.runners.progress import Progress
from suture.zoo import convnet
from suture.zoo.recipes import DIGITS
from suture.zoo.training import train

WIDTH = 8
FIT = TaskLoss(steps=90, check=30)  # shorter than the default, for small networks and a demo of under a minute


def two_networks(data: Data, say: Callable[[str], None]) -> list[Network]:
    """Train two small networks, A and B, on the digits to fit, from two seeds."""
    networks = []
    for name, seed in (("A", 0), ("B", 1)):
        say(f"training {name}, a small convolutional network, on {len(data.fit):,} digits from seed {seed}")
        model = train(lambda: convnet(WIDTH), data.fit, DIGITS, seed)
        networks.append(Network(model, example=data.example, name=name))
    return networks


def demo(
    folder: Path,
    progress: Progress,
    say: Callable[[str], None],
    *,
    on: Runner | None = None,
    retry: bool = False,
    command: str | None = None,
) -> pd.DataFrame:
    """Train two networks from different seeds, stitch them at every cut, and write ``table.parquet`` to the folder.

    ``on``, ``retry`` and ``command`` are those of ``run``.
    """
    data = load_data("digits")
    networks = two_networks(data, say)
    say(f"stitching A → B at each of {len(networks[0].cuts)} cuts, with {len(DEFAULT)} controls")
    return run(
        curve(*networks, data=data, fit=FIT), store=folder, progress=progress, on=on, retry=retry, command=command
    )

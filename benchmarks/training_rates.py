"""Images a second at which one core trains each network of the ledger: ``_RATES`` in ``ledger/entry.py``.

python benchmarks/training_rates.py [--seconds 15]

By the time that the core was busy, so that other work on the machine matters little. Images are noise.
"""

import argparse
import contextlib
import time
from dataclasses import replace

import torch

from suture.data import Samples
from suture.data.images import number_classes
from suture.zoo import resolve
from suture.zoo.sources import image_shape
from suture_papers.ledger import LEDGER, Entry
from suture_papers.training import Training


def rate(entry: Entry, seconds: float) -> float:
    """Images a second of a core, over the steps after the first three."""
    recipe = replace(entry.settings, epochs=None, steps=100_000, stop=None)
    shape = image_shape(entry.source)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2 * recipe.batch, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(0, 2, (len(images),), generator=random)
    built = resolve(entry.source)
    times: list[float] = []

    class Enough(Exception):
        pass

    def watch(step: int, steps: int) -> None:
        times.append(time.process_time())
        if step > 4 and times[-1] - times[2] > seconds:
            raise Enough

    training = Training(
        built.factory,
        Samples("noise", images, labels, number_classes(labels)),
        recipe,
        0,
        preprocess=built.preprocess,
        parts=entry.parts if entry.start is not None else None,
        watch=watch,
    )
    with contextlib.suppress(Enough):
        training.run()
    return (len(times) - 3) * recipe.batch / (times[-1] - times[2])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    seen: set[tuple[str, str, bool]] = set()
    for entry in LEDGER:
        kind = (entry.source, entry.recipe, entry.start is not None)
        if kind not in seen:
            seen.add(kind)
            found = rate(entry, given.seconds)
            print(
                f"{entry.name:30s} {entry.source} by {entry.recipe}: {found:,.0f} (in the ledger {entry.rate:,.0f})",
                flush=True,
            )

"""50,000 images of 224 × 224 pixels (7.5 GB) loaded, cut into roles, and a stitch fitted on some of them.

    python -m benchmarks.large_data                      # takes 15 GB of disk in TMPDIR, or /var/tmp, while it loads
    python -m benchmarks.large_data --images 2000        # the same, small

The images are made by a ``Dataset`` as they are asked for: a class is a colour and a place. Prints a line for each step
with the seconds it took and the most memory that the process has held since it began (``ru_maxrss``, which counts pages
of mapped files, too). The exit code is 1 if that reached 4 GB.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import suture
from suture import fits
from suture.common.mapped import is_mapped

SIDE, CLASSES, ALLOWED = 224, 10, 4e9


class Made(Dataset[tuple[Tensor, int]]):
    """Moved noise with a bright square; the class says where it is and which colour it has."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        random = torch.Generator().manual_seed(seed)
        self.noise = torch.randint(0, 200, (3, SIDE, SIDE), generator=random, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = self.noise.flatten().roll(i).view(3, SIDE, SIDE)  # moved: another image for each of 150,528
        label = i % CLASSES
        image[label % 3, 20 * label : 20 * label + 40, 30:190] += 55
        return image, label


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, 10),
    )


def held() -> float:
    """Return the most bytes of RAM that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def step(what: str, do: Callable[[], Any]) -> Any:
    since = time.perf_counter()
    found = do()
    print(f"{what:<44} {time.perf_counter() - since:7.1f} s   at most {held() / 1e9:.2f} GB so far", flush=True)
    return found


def main(given: list[str] | None = None) -> int:
    made = argparse.ArgumentParser("python -m benchmarks.large_data", description=__doc__)
    made.add_argument("--images", type=int, default=50_000)
    made.add_argument("--fitted", type=int, default=2_000)
    chosen = made.parse_args(given)
    print(f"{'before':<44} {'':9}   at most {held() / 1e9:.2f} GB so far")
    train, test = Made(chosen.images, 0), Made(max(60, chosen.images // 10), 1)
    data = step(f"load {len(train):,} and {len(test):,} images, in roles", lambda: suture.load_data((train, test)))
    print(f"  {data}; in a mapped file: {is_mapped(data.fit.images)}, {data.fit.images.nbytes / 1e9:.1f} GB to fit")
    step("fingerprints of the roles", lambda: [part.fingerprint for part in (data.fit, data.validation, data.score)])
    few = step(
        "limited to a few", lambda: data.limited(fit=min(chosen.fitted, len(data.fit)), score=min(1000, len(test)))
    )
    a, b = (suture.Network(network(seed), example=few.example, name=name) for seed, name in enumerate("AB"))
    trial = suture.curve(a, b, data=few, at="1", fit=fits.Quick(steps=35), controls=())
    table = step("one Quick trial", lambda: suture.run(trial))
    print(f"  {table.loc[0, 'status']}: {table.loc[0, 'n']:,} images scored")
    return int(held() >= ALLOWED)


if __name__ == "__main__":
    sys.exit(main())

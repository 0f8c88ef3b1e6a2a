"""The disk space of a curve of ResNet-18 at 224 px: the forecast, and a hundredth of it measured.

    python -m benchmarks.large_curve                     # 20,000 images (3 GB of disk), then 200
    python -m benchmarks.large_curve --images 2000       # both a tenth

All controls, at every cut, within 50 GB. The measured run has a hundredth of the images, of the budget and of the size
from which activations are computed as they are read, and its folder is watched while it runs, with files that are
removed and still mapped. Its stitches are closed forms: what is asked of the disk is the same.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from torchvision.models import resnet18

import suture
from benchmarks.large_data import CLASSES, Made
from suture import fits
from suture.common.sizes import in_words
from suture.core.activations import cache
from suture.measurement.trials.plans import Plan
from suture.runs.forecast import Forecast, forecast

BUDGET, ALL, SCALE = 45 * 10**9, 50 * 10**9, 100  #: for activations; with images and stitches


def plan(images: int, fit: fits.Fit) -> Plan:
    data = suture.load_data(Made(images, 0), split=0.1)
    networks = []
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)
        networks.append(suture.Network(resnet18(num_classes=CLASSES), example=data.example, name=name))
    return suture.curve(*networks, data=data, fit=fit)


def say(what: str, made: Forecast, allowed: int) -> None:
    sizes = (made.activations, made.recomputed, made.disk, allowed)
    print(
        "{}: {:,} trials, {} of activations, {} of them computed as they are read; at once on the disk {}, of {} for "
        "activations".format(what, made.left, *map(in_words, sizes)),
        flush=True,
    )


class Watched(threading.Thread):
    """Adds up the size of a folder many times a second, with files that are removed and still mapped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.most, self.over = folder, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            sizes = {}
            for folder, _, names in os.walk(self.folder):  # which passes over what is gone meanwhile
                for name in names:
                    with suppress(FileNotFoundError):
                        found = os.stat(os.path.join(folder, name))
                        sizes[found.st_ino] = found.st_blocks * 512
            for line in Path("/proc/self/maps").read_text().splitlines():
                parts = line.split()
                if str(self.folder) in line:
                    start, end = (int(number, 16) for number in parts[0].split("-"))
                    sizes[int(parts[4])] = max(sizes.get(int(parts[4]), 0), end - start)
            self.most = max(self.most, sum(sizes.values()))


def main(given: list[str] | None = None) -> int:
    made = argparse.ArgumentParser("python -m benchmarks.large_curve", description=__doc__)
    made.add_argument("--images", type=int, default=20_000)
    made.add_argument("--workers", type=int, default=2)
    chosen = made.parse_args(given)
    allowed = BUDGET * chosen.images // 20_000
    cache.RECOMPUTED = cache.RECOMPUTED * chosen.images // 20_000
    whole = forecast(plan(chosen.images, fits.Converged()), workers=chosen.workers, disk=allowed)
    say(f"{chosen.images:,} images", whole, allowed)
    cache.RECOMPUTED, allowed = cache.RECOMPUTED // SCALE, allowed // SCALE
    small = plan(chosen.images // SCALE, fits.Quick(steps=0))
    few = forecast(small, workers=1, disk=allowed)
    say(f"{chosen.images // SCALE:,} images", few, allowed)
    with tempfile.TemporaryDirectory() as folder:
        watched, since = Watched(Path(folder)), time.perf_counter()
        watched.start()
        table = suture.run(small, store=folder, on=suture.Local(workers=1, disk=allowed))
        watched.over.set()
        watched.join()
        left = sum(path.stat().st_size for path in Path(folder, "activations").rglob("*"))
    counts = table.drop_duplicates("trial")["status"].value_counts().to_dict()
    print(
        f"measured: {counts} in {time.perf_counter() - since:.0f} s; at most {in_words(watched.most)} on the disk at "
        f"once, forecast {in_words(few.disk)}; left in the end {in_words(left)}"
    )
    return int(counts.keys() != {"ok"} or watched.most > few.disk or whole.disk > ALL)


if __name__ == "__main__":
    sys.exit(main())

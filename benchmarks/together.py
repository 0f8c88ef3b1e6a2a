"""Stitches per second, alone and many together, on a device.

    python benchmarks/together.py [--device cuda] [--width 16] [--images 10000] [--together 1 4 16 64]

Two ResNet-18 of this width, without training (what is timed does not depend on what they know), on random images of
32×32 pixels, stitched at one block by the default fit from as many seeds; the fit and the score data have ``--images``
each. Once per repeat every number of stitches is timed in turn; medians, as ratios to one at a time too. The numbers of
steps differ among stitches, so a rate is also given in steps. With ``--check`` accuracies measured together are
compared with those alone. Nothing else should run meanwhile.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from suture import Measurement, Network, Samples, Seam, Trial, measure
from suture.core.activations.cache import Activations
from suture.fits import Fast
from suture.measurement.trials.batched import measure_together
from suture.zoo.networks import resnet


def samples(count: int, seed: int) -> Samples:
    """Images with a pattern of their class in noise, so that there is something to learn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=random)
    patterns = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = 0.5 * patterns[labels] + 0.5 * torch.rand(count, 3, 32, 32, generator=random)
    return Samples(f"patterns {seed}", images, labels, tuple("0123456789"))


def networks(width: int, device: torch.device, example: torch.Tensor) -> list[Network]:
    made = []
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)
        made.append(Network(resnet((2, 2, 2, 2), width).eval().to(device), example=example, name=name))
    return made


def trials(settings: argparse.Namespace) -> list[Trial]:
    fit, validation, score = (samples(n, s) for s, n in enumerate((settings.images, 1_000, settings.images), 1))
    a, b = networks(settings.width, torch.device(settings.device), fit.example)
    roles = {"fit_data": fit, "validation_data": validation, "score_data": score}
    seam = Seam.at(a, b, settings.at)
    return [Trial(seam, **roles, fit=Fast(steps=settings.steps), seed=seed) for seed in range(max(settings.together))]


def timed(some: list[Trial], cache: Activations, device: torch.device) -> tuple[float, list[Measurement]]:
    """Seconds, and what was measured."""
    begun = time.perf_counter()
    found = [measure(some[0], cache)] if len(some) == 1 else measure_together(some, cache)
    if device.type == "cuda":
        torch.cuda.synchronize()
    failed = [one for one in found if not isinstance(one, Measurement)]
    if failed:
        raise SystemExit(failed[0].error)
    return time.perf_counter() - begun, [one for one in found if isinstance(one, Measurement)]


def rates(settings: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every number of stitches together: medians over the repeats."""
    device, cache, plan = torch.device(settings.device), Activations(), trials(settings)
    timed(plan[:2], cache, device)  # activations, and kernels that are chosen once
    spent: dict[int, list[tuple[float, int]]] = {count: [] for count in settings.together}
    for _ in range(settings.repeats):
        for count in settings.together:
            seconds, found = timed(plan[:count], cache, device)
            spent[count].append((seconds, sum(one.steps for one in found)))
    rows = []
    for count, each in spent.items():
        seconds = statistics.median(seconds for seconds, _ in each)
        rows.append({"together": count, "seconds": seconds, "rate": count / seconds, "steps": each[0][1] / seconds})
    return rows


def off(settings: argparse.Namespace) -> list[float]:
    """Points by which the accuracy of stitches measured together differs from that alone."""
    cache, plan = Activations(), trials(settings)[:16]
    _, found = timed(plan, cache, torch.device(settings.device))
    alone = [measure(each, cache) for each in plan]
    pairs = zip(found, alone, strict=True)
    return [100 * abs(one.scores.accuracy.value - other.scores.accuracy.value) for one, other in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--at", default="layer2.0")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=Fast().steps)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    rows = rates(settings)
    name = torch.cuda.get_device_name() if settings.device.startswith("cuda") else settings.device
    print(f"ResNet-18, width {settings.width}, at {settings.at}, {settings.images:,} images, on {name}")
    print("together  seconds  stitches/s  steps/s  × one at a time")
    for row in rows:
        ratio = row["rate"] / rows[0]["rate"]
        print(f"{row['together']:8d}{row['seconds']:9.2f}{row['rate']:12.2f}{row['steps']:9.0f}{ratio:11.1f}")
    record: dict[str, Any] = {"device": name, "rows": rows}
    if settings.check:
        record["points off"] = off(settings)
        points = record["points off"]
        print(f"accuracy off by {statistics.fmean(points):.3f} points, {max(points):.3f} at most")
    if settings.out:
        settings.out.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

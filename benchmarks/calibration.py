"""Is the chance level of every index right? False positives, planted links, coverage of intervals, and cost.

    python benchmarks/calibration.py null [--pairs 2000] [--out benchmarks/results/calibration/null.csv]
    python benchmarks/calibration.py links [--pairs 200] [--out benchmarks/results/calibration/links.csv]
    python benchmarks/calibration.py coverage [--pairs 400] [--out benchmarks/results/calibration/coverage.csv]
    python benchmarks/calibration.py cost [--features 4096] [--out benchmarks/results/calibration/cost.csv]
    python benchmarks/calibration.py peer

``null`` calibrates pairs of layers that share nothing: the share of p ≤ 0.05 and its 99.9 % binomial interval, which is
to contain 5 %; and tables of 3 × 3 such layers, of which 5 % may have a pair with p ≤ 0.05. ``links`` plants one link
among them. What is no sum over pairs of images has 59 permutations there, of which 5 % are a whole number, too.
``coverage`` is the share of 95 % intervals that hold the mean value of the index over fresh samples. ``cost`` times all
pairs of two networks of 20 layers on 2,000 samples, with calibration and without, in turns. ``peer`` compares p with
calibrated-similarity's (from PyPI), given the same permutations. One thread; an index that ``--out`` has already is not
measured again.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from scipy.stats import beta

from suture.common.seeds import generator, undisturbed
from suture.measurement import indices
from suture.measurement.indices.base import Layer
from suture.measurement.indices.calibration import Null, calibrate, random_orders
from suture.measurement.indices.grams import OfPairs

BY = {
    index.name: index
    for index in (
        *indices.INDICES.values(),
        indices.LinearCKA(debiased=True),
        indices.RBFCKA(debiased=True),
        indices.MutualKNN(nearest="euclidean"),
        indices.RSA(dissimilarity="euclidean"),
    )
}
SAMPLES, WIDTHS = 60, (20, 15)


def layer(name: str, *shape: int, seed: object) -> Layer:
    return Layer(name, torch.randn(*shape, generator=generator(name, seed)))


def linked(seed: object, samples: int, strength: float) -> tuple[Layer, Layer]:
    """Two layers that share five directions."""
    common = torch.randn(samples, 5, generator=generator("common", seed))
    made = []
    for name, width in zip("xy", WIDTHS, strict=True):
        mixed = common @ torch.randn(5, width, generator=generator("mix", name))
        made.append(Layer(name, strength * mixed + layer(name, samples, width, seed=seed).activations))
    return made[0], made[1]


def calibrated(index: indices.Index, null: Null) -> Any:
    return calibrate(null, index.best, index.distance)


def permutations(index: indices.Index) -> int:
    return 199 if isinstance(index, OfPairs) else 59


def of_null(index: indices.Index, pairs: int) -> Iterator[dict[str, Any]]:
    single = family = 0
    for k in range(pairs):
        x, y = (layer(name, SAMPLES, width, seed=k) for name, width in zip("xy", WIDTHS, strict=True))
        single += float(calibrated(index, index.null([x], [y], permutations(index))).p) <= 0.05
        if k < pairs // 10:
            xs, ys = ([layer(f"{of}{i}", SAMPLES, 8 + 6 * i, seed=k) for i in range(3)] for of in "xy")
            family += bool((calibrated(index, index.null(xs, ys, permutations(index))).p <= 0.05).any())
    for what, count, of in (("pairs", single, pairs), ("tables of 9", family, pairs // 10)):
        low, high = beta.ppf([0.0005, 0.9995], [count or 1e-9, count + 1], [of - count + 1, of - count])
        yield {"what": what, "of": of, "positive": count / of, "low": low, "high": high, "holds": low <= 0.05 <= high}


def of_links(index: indices.Index, pairs: int) -> Iterator[dict[str, Any]]:
    for strength in (0.3, 1.0):
        found = elsewhere = 0
        for k in range(pairs):
            x, y = linked(k, SAMPLES, strength)
            others = [layer(f"other{i}", SAMPLES, 12, seed=k) for i in range(4)]
            p = calibrated(index, index.null([x, *others[:2]], [y, *others[2:]], permutations(index))).p
            found += float(p[0, 0]) <= 0.05
            p[0, 0] = 1
            elsewhere += bool((p <= 0.05).any())
        yield {"strength": strength, "of": pairs, "found": found / pairs, "elsewhere": elsewhere / pairs}


def of_coverage(index: indices.Index, pairs: int) -> Iterator[dict[str, Any]]:
    for samples, strength in ((60, 1.0), (200, 1.0), (200, 0.3)):
        nulls = [index.null(*([one] for one in linked(k, samples, strength)), 19) for k in range(pairs)]
        values = torch.cat([null.values.flatten() for null in nulls])
        mean, spread = float(values.mean()), float(values.std())
        errors = torch.cat([null.errors.flatten() for null in nulls])
        held = 0
        for null in nulls:
            found, chance = calibrated(index, null), float(null.permuted.mean())
            held += float(found.low) <= (mean - chance) / (index.best - chance) <= float(found.high)
        told = {"samples": samples, "strength": strength, "of": pairs, "mean": mean, "spread": spread}
        yield told | {"error": float(errors.square().mean().sqrt()), "covered": held / pairs}


def of_cost(index: indices.Index, repeats: int, features: int) -> Iterator[dict[str, Any]]:
    if not isinstance(index, OfPairs):
        return
    sides = [[layer(f"{of}{i}", 2000, features, seed=0) for i in range(20)] for of in "ab"]
    spent: dict[str, list[float]] = {"plain": [], "calibrated": []}
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: index.pairs(*sides),
        "calibrated": lambda: calibrated(index, index.null(*sides)),
    }
    for name in repeats * list(ways):
        used = time.process_time()
        ways[name]()
        spent[name].append(time.process_time() - used)
    plain, whole = (median(spent[name]) for name in ways)
    yield {"features": features, "plain": plain, "calibrated": whole, "times": whole / plain}


def peer() -> None:
    from calibrated_similarity import calibrate as theirs

    for name, index in BY.items():
        if index.distance or index.least > 12:
            continue
        x, y = linked(0, SAMPLES, 0.3)
        orders = random_orders(SAMPLES, 199)
        drawn = iter(orders)
        _, p, _ = theirs(
            x.activations,
            y.activations,
            lambda a, b, index=index: index(a, b),
            K=199,
            perm_fn=lambda n, device, drawn=drawn: next(drawn),
        )
        ours = torch.tensor([index(x.activations, y.activations[order]) for order in orders], dtype=torch.float64)
        value = torch.tensor([[index(x.activations, y.activations)]], dtype=torch.float64)
        found = calibrated(index, Null(value, ours[:, None, None], torch.zeros_like(value), 9))
        print(f"{name:42} p {float(found.p):.4f} theirs {float(p):.4f}", flush=True)
        assert abs(float(found.p) - float(p)) < 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("null", "links", "coverage", "cost", "peer"))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--by", nargs="*", default=list(BY))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ways: dict[str, Callable[[indices.Index], Iterator[dict[str, Any]]]] = {
        "null": lambda index: of_null(index, given.pairs or 2000),
        "links": lambda index: of_links(index, given.pairs or 200),
        "coverage": lambda index: of_coverage(index, given.pairs or 400),
        "cost": lambda index: of_cost(index, given.repeats, given.features),
    }
    table = pd.read_csv(given.out) if given.out is not None and given.out.exists() else pd.DataFrame(columns=["index"])
    with undisturbed():
        if given.what == "peer":
            peer()
            return
        for name in (name for name in given.by if name not in set(table["index"])):
            rows = pd.DataFrame([{"index": name, **row} for row in ways[given.what](BY[name])]).round(4)
            print(rows.to_string(index=False), flush=True)
            table = pd.concat([table, rows]) if len(table) else rows
            if given.out is not None:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                table.to_csv(given.out, index=False)


if __name__ == "__main__":
    main()

"""Compute linear CKA of all pairs of layers of two networks: all at once, and by the loop over pairs that people write.

The usual loop (the code published with Kornblith et al. 2019, and most after it) takes two layers at a time: it centres
both matrices, and computes either both Gram matrices or the three products of features, here whichever takes fewer
operations for the pair, in float32. Both get the same cached activations. A second loop keeps every Gram that it has
computed, as a careful programmer's would; its values are those of the first, bit for bit, so they serve to compare all
pairs where only some are timed. All is done with one thread, the methods taking turns, and compared with CKA whose
products are in float64.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import suture
from suture.common.atomic import whole
from suture.common.errors import CutError, SutureError
from suture.common.processor import processor
from suture.common.seeds import undisturbed
from suture.common.sizes import in_words, physical_memory
from suture.core.activations.cache import Activations, Need
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.measurement.indices import linear_cka

SAMPLES = 2000  #: images that layers are compared on unless a number is given
_ROOM = 0.7  #: of the memory that activations may take

ALL, KEPT, LOOP = "all pairs at once", "loop, Grams kept", "usual loop"

Pair = tuple[int, int]
Layers = Sequence[Tensor]


# --- the loops --------------------------------------------------------------------------------------------------------


def usual_pair(x: Tensor, y: Tensor, grams: dict[int, Tensor] | None = None) -> float:
    """Compare two layers ``(n, …)`` as published code does; ``grams`` keeps, by identity, the Grams it has computed."""
    if _features_are_cheaper(len(x), x[0].numel(), y[0].numel()):
        x, y = _centred(x), _centred(y)
        cross, own, others = y.T @ x, x.T @ x, y.T @ y
        return float(_inner(cross, cross) / (_inner(own, own).sqrt() * _inner(others, others).sqrt()))
    k, l = (_gram(of, grams) for of in (x, y))  # noqa: E741
    return float(_inner(k, l) / (_inner(k, k).sqrt() * _inner(l, l).sqrt()))


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product by ``sum``: ``norm``, which many write, is wrong in the fourth digit for millions."""
    return (a * b).sum()


def _features_are_cheaper(n: int, p: int, q: int) -> bool:
    return p * q + p * p + q * q < n * (p + q)


def _gram(x: Tensor, grams: dict[int, Tensor] | None) -> Tensor:
    if grams is not None and id(x) in grams:
        return grams[id(x)]
    centred = _centred(x)
    gram = centred @ centred.T
    if grams is not None:
        grams[id(x)] = gram
    return gram


def _centred(x: Tensor) -> Tensor:
    x = x.flatten(1)
    return x - x.mean(0)


def each_shape(xs: Layers, ys: Layers) -> dict[Pair, int]:
    """Return one pair of layers for every pair of sizes, the first, and how many pairs have these sizes.

    What a pair costs the loop depends on the sizes of its layers alone.
    """
    sizes = {(i, j): (x[0].numel(), y[0].numel()) for i, x in enumerate(xs) for j, y in enumerate(ys)}
    counts, first = Counter(sizes.values()), {size: pair for pair, size in reversed(sizes.items())}
    return {first[size]: count for size, count in counts.items()}


# --- the comparison ---------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """The result of a method: CPU and wall seconds of every repeat, and the values by pair of layers."""

    name: str
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    values: dict[Pair, float] = field(default_factory=dict)

    def errors(self, reference: Tensor) -> list[float]:
        """Return how far the values are from those of the reference."""
        return [abs(value - float(reference[pair])) for pair, value in self.values.items()]

    def record(self, reference: Tensor, loop_cpu: float) -> dict[str, Any]:
        """Return plain values; ``times_faster`` is by the medians of CPU seconds."""
        errors = self.errors(reference)
        return {
            "name": self.name,
            "cpu": median(self.cpu),
            "wall": median(self.wall),
            "times_faster": loop_cpu / median(self.cpu),
            "largest_error": max(errors),
            "mean_error": sum(errors) / len(errors),
            "pairs_compared": len(errors),
            "cpu_of_repeats": self.cpu,
            "wall_of_repeats": self.wall,
        }


@dataclass(frozen=True)
class Comparison:
    """Every method, and CKA of all pairs with products in float64."""

    ways: list[Way]
    reference: Tensor
    timed: Mapping[Pair, int]

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each method, the usual loop last."""
        return [way.record(self.reference, median(self.ways[-1].cpu)) for way in self.ways]


def compare(
    xs: Layers,
    ys: Layers,
    *,
    repeats: int = 3,
    timed: Mapping[Pair, int] | None = None,
) -> Comparison:
    """Compare all layers of two networks by every method in turn, ``repeats`` times.

    ``timed`` are the pairs that the usual loop computes, and for how many each of them counts; by default all pairs,
    each for itself.
    """
    pairs = timed if timed is not None else {(i, j): 1 for i in range(len(xs)) for j in range(len(ys))}
    ways = {name: Way(name) for name in (ALL, KEPT, LOOP)}
    methods: dict[str, Callable[[Way], None]] = {
        ALL: lambda way: _at_once(way, xs, ys),
        KEPT: lambda way: _kept(way, xs, ys),
        LOOP: lambda way: _loop(way, xs, ys, pairs),
    }
    with undisturbed():
        reference = linear_cka.all([xs[0].double(), *xs[1:]], ys)  # which makes all products float64
        for name in repeats * list(ways):
            methods[name](ways[name])
    return Comparison(list(ways.values()), reference, pairs)


def _at_once(way: Way, xs: Layers, ys: Layers) -> None:
    cpu, wall = process_time(), perf_counter()
    values = linear_cka.all(xs, ys)
    _take(way, cpu, wall)
    way.values = {(i, j): float(values[i, j]) for i in range(len(xs)) for j in range(len(ys))}


def _kept(way: Way, xs: Layers, ys: Layers) -> None:
    cpu, wall = process_time(), perf_counter()
    grams: dict[int, Tensor] = {}
    way.values = {(i, j): usual_pair(x, y, grams) for i, x in enumerate(xs) for j, y in enumerate(ys)}
    _take(way, cpu, wall)


def _loop(way: Way, xs: Layers, ys: Layers, pairs: Mapping[Pair, int]) -> None:
    way.cpu.append(0.0)
    way.wall.append(0.0)
    for (i, j), count in pairs.items():
        cpu, wall = process_time(), perf_counter()
        way.values[i, j] = usual_pair(xs[i], ys[j])
        way.cpu[-1] += count * (process_time() - cpu)
        way.wall[-1] += count * (perf_counter() - wall)


def _take(way: Way, cpu: float, wall: float) -> None:
    way.cpu.append(process_time() - cpu)
    way.wall.append(perf_counter() - wall)


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, metavar="N", help=f"images to score; by default {SAMPLES}")
    each = "time the usual loop on one pair of layers for every pair of sizes, counted as often as there are such pairs"
    parser.add_argument("--each-shape", action="store_true", help=each)
    parser.add_argument("--out", metavar="FILE.json", help="file for the result")


def run(given: argparse.Namespace, networks: Sequence[Network], data: suture.Data) -> int:
    """Measure CKA of all pairs of layers by every method, and print the time and the exactness of each."""
    data = data.limited(score=given.samples if given.samples is not None else min(SAMPLES, len(data.score)))
    cuts = [chosen(network, given.cuts) for network in networks]
    needs = [Need(network, data.score, cut.index) for network, of in zip(networks, cuts, strict=True) for cut in of]
    size, room = sum(need.nbytes for need in needs), int(_ROOM * physical_memory())
    if size > room:
        raise SutureError(
            f"the activations of all cuts on {len(data.score):,} images take {in_words(size)}, and there is room for "
            f"{in_words(room)}: give fewer --samples, or choose --cuts"
        )
    layers, cpu = [], time.process_time()
    with undisturbed():
        for network, of in zip(networks, cuts, strict=True):
            cache = Activations(ram=physical_memory())
            layers.append([cache.at(network, cut, data.score) for cut in of])
    spent = time.process_time() - cpu
    timed = each_shape(*layers) if given.each_shape else None
    found = compare(*layers, repeats=given.repeats, timed=timed)
    record = {
        "processor": processor(),
        "torch": torch.__version__,
        "data": data.score.name,
        "samples": len(data.score),
        "cuts": [{cut.name: cut.shape for cut in of} for of in cuts],
        "activations": {"bytes": size, "cpu": spent},
        "pairs": found.reference.numel(),
        "pairs_timed": len(found.timed),
        "methods": found.records(),
        "values": found.reference.tolist(),
    }
    if given.out is not None:
        with whole(Path(given.out)) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(record)
    return 0


def chosen(network: Network, patterns: Sequence[str] | None) -> list[Cut]:
    """Return the cuts that patterns mean, all without any."""
    found = [
        [cut for cut in network.cuts if any(fnmatchcase(name, pattern) for name in (cut.name, *cut.aliases))]
        for pattern in patterns or ["*"]
    ]
    if not all(found):
        raise CutError(f"{patterns} match no cut of {network.name}; its cuts: {', '.join(network.cuts.names)}")
    wanted = {cut.index for cuts in found for cut in cuts}
    return [cut for cut in network.cuts if cut.index in wanted]


def show(record: Mapping[str, Any]) -> None:
    """Print a row for each method."""
    table = Table("linear CKA", "CPU s", "wall s", "faster", "largest error", "mean error", box=None, header_style="")
    for method in record["methods"]:
        seconds = (f"{method[name]:.3g}" for name in ("cpu", "wall"))
        errors = (f"{method[name]:.1e}" for name in ("largest_error", "mean_error"))
        table.add_row(method["name"], *seconds, f"{method['times_faster']:.1f}×", *errors)
    Console().print(table)
    print(
        f"{record['pairs']} pairs of layers, of which the usual loop timed {record['pairs_timed']}; "
        f"{record['samples']:,} images of {record['data']}; one thread; errors against products in float64; not "
        f"counted: the activations, {record['activations']['cpu']:.1f} CPU s, the same for all methods"
    )

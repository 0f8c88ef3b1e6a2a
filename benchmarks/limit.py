"""The operations of a matrix, the machine's peak, the rate reached, and the time of hernandez2022's matrices.

    python benchmarks/limit.py path/to/cifar10 runs/scaling

Reads what ``scaling.py`` measured. *Needed* are the floating-point operations of products and convolutions, a
multiply-add as two: each sender's prefix once per data role, the moments of the closed form, every step through stitch
and frozen suffix forwards and back (a frozen suffix has no gradients of its weights, so a step takes its operations
twice, not three times), validation and scores once through the suffix; and the bytes of activations at cuts that are
written and read for that. The machine's peaks are measured here, with one thread, in the shapes of these networks.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import machine
from benchmarks.scaling import RATES, Point, Workshop, grid, records, sampled, seconds
from suture import Network
from suture.common.seeds import undisturbed
from suture.core.network.cuts import Cut
from suture.core.stitches import stitch_for
from suture.fits import Converged
from suture.fits.converged import count_sufficient
from suture.measurement.trials.trial import COMPARED, Trial

BATCH = Converged().batch
FLOAT = 4  #: bytes
ROLES = ("fitted", "scored")
HALF = ("steps", "validation", "scoring")  #: parts that run in bfloat16 where the processor has it
SHAPES = tuple(product((1, 2), repeat=4))  #: blocks of hernandez2022's 16 networks
CONDITIONS = 4  #: as trained; sender, receiver, both without training
FITTED, HELD_OUT, SCORED = 45_000, 5_000, 10_000
H200 = 790e12  #: operations a second in bfloat16, of large matrix products
TRAINED = (128, 8.2e-3)  #: images and seconds of a step of training ResNet-18 alone on one, in float32 with TF32


@dataclass(frozen=True)
class Needed:
    """Operations, and bytes of activations at cuts that are written and read."""

    flops: float = 0.0
    moved: float = 0.0

    def __add__(self, other: "Needed") -> "Needed":
        return Needed(self.flops + other.flops, self.moved + other.moved)

    def __mul__(self, times: float) -> "Needed":
        return Needed(self.flops * times, self.moved * times)


@cache
def stitch_flops(sent: tuple[int, ...], received: tuple[int, ...]) -> int:
    """Of the default stitch for one image."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        stitch_for(sent, received).build(sent, received).eval()(torch.empty(1, *sent))
    return int(counter.get_total_flops())


def whole(network: Network) -> int:
    """Return the operations of a network for one image, up to its last cut."""
    return tuple(network.cuts)[-1].flops


def needed(sent: Cut, received: Cut, of: int, taken: tuple[float, float], images: tuple[int, int, int]) -> "Parts":
    """Return the operations of one seam of maps once activations are there, by part.

    ``of`` are the receiver's operations, ``taken`` the steps and the images looked at in validation, all looks
    together, ``images`` those to fit, to validate and to score.
    """
    (steps, validated), (fitted, held_out, scored) = taken, images
    stitch = stitch_flops(sent.shape, received.shape)
    once, read, own = stitch + of - received.flops, FLOAT * prod(sent.shape), FLOAT * prod(received.shape)
    rows = min(prod(sent.shape[1:]), prod(received.shape[1:]))
    features = sent.shape[0] * max(1, sent.shape[1] // received.shape[1]) ** 2
    some = count_sufficient(received.shape, rows, features)
    some = min(some, fitted) + min(some, held_out)
    return {
        "closed form": Needed(2 * rows * features * (features + received.shape[0]), read + own) * some,
        "steps": Needed(2 * once, read) * (steps * BATCH),
        "validation": Needed(once, read) * validated,
        "scoring": Needed(once, read) * scored,
        "representation error": Needed(stitch, read + own) * COMPARED,
    }


Parts = dict[str, Needed]


def added(every: Iterable[Parts]) -> Parts:
    found: Parts = {}
    for parts in every:
        for part, need in parts.items():
            found[part] = found.get(part, Needed()) + need
    return found


def clocks(folder: Path, cells: list[Point]) -> dict[str, float]:
    """The CPU seconds of every part, summed over seams; of each the mean of its repeats."""

    def of(part: str) -> float:
        return sum(fmean(record["parts"].get(part, 0.0) for record in records(folder, cell)) for cell in cells)

    steps, validation = of("suffix in steps"), of("suffix in validation")
    named = {part: of(part) for part in ("closed form", "choice of suffix", "convex solution")}
    named |= {"steps": steps, "stitch and optimiser": of("descent") - steps - validation, "validation": validation}
    named |= {part: of(part) for part in ("scoring", "representation error", "whether frozen")}
    every = sum(fmean(record["cpu"] for record in records(folder, cell)) for cell in cells)
    return named | {"all else": every - sum(named.values())}


def bandwidth() -> float:
    """Bytes a second that one thread reads and writes in copying a large tensor; the best of five."""
    source = torch.ones(2**26)
    target, taken = torch.empty_like(source), []
    for _ in range(5):
        begun = time.process_time()
        target.copy_(source)
        taken.append(time.process_time() - begun)
    return 2 * source.nbytes / min(taken)


def taken(record: dict[str, Any]) -> tuple[float, float]:
    """Steps of a descent, none where the problem was solved as convex, and images looked at in validation."""
    return (0, 0) if "convex solution" in record["parts"] else (record["steps"], record["validated"])


def of_matrix(folder: Path, shop: Workshop) -> None:
    """Print the table of the 8 × 8 matrix."""
    with patch.object(machine, "time", SimpleNamespace(perf_counter=time.process_time)):  # others may compute, too
        peaks = machine.measure_peaks([shop.network(16, seed) for seed in (0, 1)])
    speed = bandwidth()
    print(f"GFLOP/s: products {rounded(peaks.products)}; convolutions")
    for shape, rates in peaks.convolutions.items():
        print(f"  {shape}: {rounded(rates)}")
    print(f"copying {speed / 1e9:.1f} GB/s\n")
    cells = [Point("seam", 16, (cell,)) for cell in sampled(8)]
    seams = added(_of_seam(folder, shop, cell) for cell in cells)
    shared = Point("shared", 16, grid(8))
    record = records(folder, shared)[0]
    activations = Needed(*(sum(record[f"{role} {what}"] for role in ROLES) for what in ("flops", "bytes")))
    needs = {"activations": activations} | {part: need * 8 for part, need in seams.items()}
    spent = {"activations": seconds(folder, shared)}
    spent |= {part: 8 * value for part, value in clocks(folder, cells).items()}
    print(f"{'part':22s}{'GFLOP':>9s}{'GB':>7s}{'at peak, s':>12s}{'CPU s':>9s}{'share':>8s}{'GFLOP/s':>9s}")
    least = {}
    for part, used in spent.items():
        need, best = needs.get(part, Needed()), peaks.convolution("bfloat16" if part in HALF else "float32") or 1.0
        least[part] = max(need.flops / best / 1e9, need.moved / speed)
        _row(part, need, least[part], used, sum(spent.values()))
    _row("all", sum(needs.values(), Needed()), sum(least.values()), sum(spent.values()), sum(spent.values()))


def _of_seam(folder: Path, shop: Workshop, cell: Point) -> Parts:
    (trial,), record = shop.trials(cell), records(folder, cell)[0]
    assert isinstance(trial.sender, Network)
    sent, received = trial.sender.cuts.find(trial.sender_cut), trial.receiver.cuts.find(trial.receiver_cut)
    return needed(sent, received, whole(trial.receiver), taken(record), images_of(trial))


def images_of(trial: Trial) -> tuple[int, int, int]:
    """Those to fit, to validate and to score."""
    return len(trial.fit_data), len(trial.validation_data), len(trial.score_data)


def _row(part: str, need: Needed, least: float, used: float, every: float) -> None:
    rate = f"{need.flops / used / 1e9:9.0f}" if need.flops else " " * 9
    counts = f"{need.flops / 1e9:9.0f}{need.moved / 1e9:7.2f}{least:12.2f}" if need.flops else " " * 28
    print(f"{part:22s}{counts}{used:9.1f}{100 * used / every:7.1f}%{rate}")


def rounded(rates: dict[str, float]) -> str:
    return ", ".join(f"{kind} {rate:.0f}" for kind, rate in rates.items())


def blocks(network: Network) -> list[Cut]:
    return [cut for cut in network.cuts if cut.name.startswith("layer") and cut.name.count(".") == 1]


def of_hernandez(folder: Path, shop: Workshop, networks: list[Network]) -> None:
    """Print the operations of 256 ordered pairs under four conditions, and how long they would take."""
    descents = [record for cell in sampled(8) if taken(record := records(folder, Point("seam", 16, (cell,)))[0])[0]]
    steps, validated = (fmean(each) for each in zip(*map(taken, descents), strict=True))
    capped = sum(not record["converged"] for record in descents)
    images = (FITTED, HELD_OUT, SCORED)
    kinds = Counter((sent, received, whole(network)) for sent, received, network in _seams(networks))
    ends = {cut for network in networks for cut in blocks(network)[-1:]}  # where the problem is convex
    by_kind = {kind: (0.0, 0.0) if kind[1] in ends else (steps, validated) for kind in kinds}
    parts = added(
        {part: need * (CONDITIONS * times) for part, need in needed(*kind, by_kind[kind], images).items()}
        for kind, times in kinds.items()
    )
    count = CONDITIONS * sum(kinds.values())
    stored = 2 * sum(images) * FLOAT * sum(prod(cut.shape) for network in networks for cut in blocks(network))
    parts["activations"] = Needed(2 * sum(images) * sum(whole(network) for network in networks), stored)
    all_parts = sum(parts.values(), Needed())
    print(f"\nhernandez2022 at width 64: {count:,} seams, {all_parts.flops / 1e15:.1f} PFLOP;")
    print(f"{steps:,.0f} steps and {validated:,.0f} images validated where there is a descent, as in the matrix above,")
    print(f"where {capped} of {len(descents)} reached their cap; activations of {stored / 1e12:.2f} TB,")
    print(f"{all_parts.moved / 1e12:.1f} TB written and read at cuts")
    print(f"one thread of this machine: {_here(folder, shop, networks[-1], parts, count) / 86400:.1f} days")
    reached = TRAINED[0] * 3 * whole(networks[-1]) / TRAINED[1]
    for what, rate in (("at the rate of a training", reached), ("at the peak", H200)):
        print(f"one H200 {what} ({rate / 1e12:.0f} TFLOP/s): {all_parts.flops / rate / 3600:.2f} h")


def _seams(networks: list[Network]) -> Iterator[tuple[Cut, Cut, Network]]:
    for sender, receiver in product(networks, repeat=2):
        for sent, received in product(blocks(sender), blocks(receiver)):
            yield sent, received, receiver


def _here(folder: Path, shop: Workshop, network: Network, parts: Parts, count: int) -> float:
    """Seconds, each part at the rate that it reached at width 64.

    Scoring, whose predictions are in doubt without training, is taken to be as much slower than validation as at width
    16 with it.
    """
    cell, shared = (Point(kind, RATES[-1], ((3, 3),), 1200, 1024, True, False) for kind in ("seam", "shared"))
    record, pass_ = records(folder, cell)[0], records(folder, shared)[0]
    spent, at = clocks(folder, [cell]), blocks(network)[3]
    known = needed(at, at, whole(network), taken(record), images_of(*shop.trials(cell)))
    rates = {part: need.flops / spent[part] for part, need in known.items()}
    trained = [Point("seam", 16, (cell,)) for cell in sampled(8)]
    flops, clock = added(_of_seam(folder, shop, cell) for cell in trained), clocks(folder, trained)
    of = {part: flops[part].flops / clock[part] for part in ("scoring", "validation")}
    rates["scoring"] = rates["validation"] * of["scoring"] / of["validation"]
    rates["activations"] = sum(pass_[f"{role} flops"] for role in ROLES) / pass_["cpu"]
    seconds = {part: need.flops / rates[part] for part, need in parts.items()}
    steps = parts["steps"].flops / known["steps"].flops * record["steps"]  # worth so many of that seam
    seconds["stitch and optimiser"] = spent["stitch and optimiser"] / record["steps"] * steps
    seconds |= {part: spent[part] * count for part in ("choice of suffix", "whether frozen", "all else")}
    for part, value in seconds.items():
        rate = f", {rates[part] / 1e9:.0f} GFLOP/s" if part in rates else ""
        print(f"  {part:22s}{parts.get(part, Needed()).flops / 1e15:8.3f} PFLOP{value / 86400:8.2f} days{rate}")
    return sum(seconds.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zoo", type=Path, default=Path("runs/zoo/networks"))
    given = parser.parse_args()
    shop = Workshop(given.data, given.zoo)
    with undisturbed():
        of_matrix(given.folder, shop)
        networks = [shop.untrained(shape, RATES[-1]) for shape in SHAPES]
        of_hernandez(given.folder, shop, networks)


if __name__ == "__main__":
    main()

"""How far the reference itself ranges: Adam at a seam again, on batches in other orders.

    python -m benchmarks.orders run DATA SEAM RATE [--orders 2 3]    fits, and writes results/reference/orders.json
    python -m benchmarks.orders table                                what is there, beside the default fit

A candidate of ``benchmarks.reference`` is fitted once, in one order of its batches, and the best of seven to nine is
the reference. Where several would be as good in the mean, the best is the one that was lucky, and a fit that is as good
in the mean reads below it. So here the rate of Adam that was best at a seam begins again at the closed form and differs
in nothing but the order. What the fits err at on validation images is kept, too, since that is what could choose.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.reference import FOLDER, Task, adam, best, read_results, read_seams, write

ORDERS = FOLDER / "orders.json"


def read() -> dict[str, Any]:
    """Return the records, by seam, candidate and order."""
    found: dict[str, Any] = json.loads(ORDERS.read_text()) if ORDERS.exists() else {}
    return found


def run(data: Path, wanted: str, rate: float, orders: list[int]) -> None:
    """Make the missing fits at one seam."""
    torch.set_num_threads(1)
    seam = next(seam for seam in read_seams() if seam["id"] == wanted)
    reference, name = best(read_results(seam))[0], f"adam {rate:g}"
    task = Task(seam, data, compiled=True)
    for order in orders:
        found = read()
        rows = found.setdefault(wanted, {}).setdefault(name, {})
        if str(order) in rows:
            continue
        begun, stitch = time.monotonic(), task.stitch(least_squares=True)
        step, accuracy, *_ = adam(task, rate, stitch, order)["looks"][-1]
        loss, error = task.loss_and_error(stitch, "validation")
        rows[str(order)] = {
            "accuracy": accuracy,
            "below": reference - accuracy,
            "validation_error": error,
            "validation_loss": loss,
            "steps": step,
        }
        write(ORDERS, found)
        said = f"{100 * rows[str(order)]['below']:.2f} below, {time.monotonic() - begun:.0f} s"
        print(f"{wanted} {name}, order {order}: {said}", flush=True)


def table() -> None:
    """Print points below the reference: of Adam by order (1 is the candidate's own) and of the default fit by seed."""
    judged = json.loads((FOLDER / "judged-converged.json").read_text())
    for seam in read_seams():
        reference, made = best(read_results(seam))[0], read_results(seam)["candidates"]
        for name, rows in read().get(seam["id"], {}).items():
            again = {"1": reference - made[name]["looks"][-1][1]} | {o: row["below"] for o, row in rows.items()}
            _print_row(seam["id"], f"{name} by order", list(again.values()))
        if seam["id"] in read():
            _print_row(seam["id"], "default by seed", [row["below"] for row in judged[seam["id"]].values()])


def _print_row(seam: str, what: str, below: list[float]) -> None:
    each = ", ".join(f"{100 * one:.2f}" for one in below)
    print(f"{seam:14} {what:22} {each:32} mean {100 * statistics.mean(below):.2f}")


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("seam", nargs="?", choices=[seam["id"] for seam in read_seams()])
    parser.add_argument("rate", nargs="?", type=float)
    parser.add_argument("--orders", nargs="+", type=int, default=[2, 3])
    given = parser.parse_args()
    if given.what == "table":
        table()
    elif given.rate is None:
        parser.error("run wants DATA, the id of a seam and a rate of Adam")
    else:
        run(given.data, given.seam, given.rate, given.orders)
    return 0


if __name__ == "__main__":
    sys.exit(main())

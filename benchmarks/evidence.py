"""How often rules about few networks are wrong: looks, circles of pairs, numbers that are all alike, classes found.

    python -m benchmarks.evidence benchmarks/results/evidence.json

Planted networks, as in ``decisions``: what is true is known. Seeded; a minute of one core.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.decisions import Row, rate
from suture.measurement.tables.averages import average_over_networks
from suture_papers.base.claims import LOOK_SHARE, LOOKS, MOST_PAIRS
from suture_papers.base.plans import in_circles
from suture_papers.base.quantities import LEVEL, share_of

SPREAD, NOISE, ALIKE = 0.6, 0.3, 0.5  #: of a network, of a pair, and between a network's two sides: as in decisions
NAMED = 50.0  #: per cent of a class, where the fit finds it


def simulate_looks(random: np.random.Generator, runs: int) -> Iterator[Row]:
    """Yield how often a mean on its threshold is decided on one side at some look, by levels for each look."""
    values = random.normal(size=(runs, LOOKS[-1]))
    scores = {n: values[:, :n].mean(axis=1) / (values[:, :n].std(axis=1, ddof=1) / n**0.5) for n in LOOKS}
    for claims in (1, 2, 4):
        error = (1 - LEVEL) / claims
        for words, own in (("undeclared", error), ("declared", LOOK_SHARE * error)):
            wrong = [score > stats.t.ppf(1 - own / 2, n - 1) for n, score in scores.items()]
            yield {
                "claims": claims,
                "looks": words,
                "level": round(100 * (1 - own), 2),
                "promised": round(50 * error, 2),
                "wrong on one side": rate(np.any(wrong, axis=0)),
            }


def simulate_pairs(random: np.random.Generator, runs: int) -> Iterator[Row]:
    """Yield the half-width of a mean's interval over pairs, and how often it misses."""
    five = range(5)
    designs: dict[str, list[tuple[int, int]]] = {
        "a circle of five": in_circles(five, (1,)),
        "two circles of five": in_circles(five, (1, 2)),
        "all ordered pairs of five": in_circles(five, (1, 2, 3, 4)),
        "five disjoint pairs": [(i, i + 5) for i in five],
    }
    for words, pairs in designs.items():
        starts, ends = (list(side) for side in zip(*pairs, strict=True))
        reach, missed = [], 0
        for _ in range(runs):
            sends = random.normal(size=10)
            receives = ALIKE * sends + (1 - ALIKE**2) ** 0.5 * random.normal(size=10)
            values = SPREAD * (sends[starts] + receives[ends]) + NOISE * random.normal(size=len(pairs))
            found = average_over_networks(values, starts, ends)
            reach.append(found.reach(LEVEL))
            missed += abs(found.value) > reach[-1]
        yield {"pairs": words, "half-width": round(float(np.mean(reach)), 2), "missed": round(100 * missed / runs, 2)}


def simulate_found(random: np.random.Generator, runs: int) -> Iterator[Row]:
    """Yield how often t misses the mean of fits that find a class or do not, and the verdicts of counting pairs."""
    for found, n in ((found, n) for found in (0.2, 1 - MOST_PAIRS / 100, 0.8) for n in (5, 10, 20)):
        named = random.random(size=(runs, n)) < found
        values = NAMED * named
        mean, half = values.mean(axis=1), stats.t.ppf(0.975, n - 1) * values.std(axis=1, ddof=1) / n**0.5
        shares = [share_of(pd.Series(~own, index=1001 * np.arange(1, n + 1))) for own in named[:2000]]
        yield {
            "disjoint pairs": n,
            "found in": f"{found:.0%}",
            "all alike": rate(named.all(axis=1) | ~named.any(axis=1)),
            "t misses": rate(np.abs(mean - NAMED * found) > half),
            "“unable” reproduced": rate([share.low >= MOST_PAIRS for share in shares]),
            "not reproduced": rate([share.high < MOST_PAIRS for share in shares]),
        }


def simulate_alike(random: np.random.Generator, runs: int) -> Iterator[Row]:
    """Yield how often all of five networks' images agree, and the exact bound on the share that does not misses."""
    for images in (1_000, 10_000):
        bound = 1 - (0.025) ** (1 / images)
        for share in (0.5 * bound, bound, 2 * bound):
            wrong = random.binomial(images, share, size=(runs, 5)).max(axis=1) == 0
            yield {
                "images": images,
                "share that differs": f"{100 * share:.3f} %",
                "bound": f"{100 * bound:.3f} %",
                "all alike": rate(wrong),
                "alike, and the bound misses": rate(wrong & (share > bound)),
            }


PARTS = {
    "Looks at 5, 8 and 12 networks": (simulate_looks, 200_000),
    "Pairs of networks": (simulate_pairs, 3_000),
    "Fits that find a class or do not": (simulate_found, 20_000),
    "Networks that are all alike": (simulate_alike, 20_000),
}


def simulate(parts: Sequence[str] = tuple(PARTS)) -> dict[str, list[Row]]:
    """Return the rows of each part, by its title."""
    made = {}
    for place, (words, (part, runs)) in enumerate(PARTS.items()):
        if words in parts:
            made[words] = list(part(np.random.default_rng([10, place]), runs))
    return made


def main() -> int:
    """Simulate, and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    given.results.write_text(json.dumps(simulate(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

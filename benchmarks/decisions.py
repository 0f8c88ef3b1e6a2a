"""How often the rules that decide claims are wrong, on planted networks whose truth is known.

    python benchmarks/decisions.py benchmarks/results/decisions.json benchmarks/results/decisions.md

A pair's number is what its sender adds, what its receiver adds, and noise of its own of sd 0.3. What a network adds at
two cuts has a correlation of 0.5; so has, if networks are on both sides, what it adds as a sender with what it adds as
a receiver. All runs are computed at once, in a few lines of their own; of each simulation ``CHECKED`` runs are decided
by the package too, and must agree. Seeded. Half a minute of one core.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from suture.measurement.tables.averages import average_over_networks
from suture_papers.base.cells import Tables, number_pair
from suture_papers.base.claims import Claim, count_networks
from suture_papers.base.quantities import Extreme, PerUnit, share_of

Numbers = NDArray[np.float64]
Row = dict[str, Any]
CUTS, LIMIT, NOISE, ALIKE, CHECKED = 8, 3.0, 0.3, 0.5, 10
NETWORKS, SPREADS = (3, 5, 8), (0.2, 0.6)
ODD, ODD_COST = 1 / 6, 4.0
TRUTHS = {
    "all cuts at 3": np.full(CUTS, 3.0),
    "one cut at 3, the others at 2": np.array([3.0] + [2.0] * (CUTS - 1)),
    "all cuts at 2.7": np.full(CUTS, 2.7),
    "all cuts at 2": np.full(CUTS, 2.0),
    "all cuts at 4": np.full(CUTS, 4.0),
}
MARK = re.compile(r"(<!-- decisions -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Design:
    """Some networks: all ``ordered`` pairs of n, n × n ``crossed``, or n ``disjoint`` pairs."""

    n: int
    how: str = "ordered"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The sender and the receiver of each pair."""
        every = list(product(range(self.n), repeat=2))
        keep = {"ordered": lambda i, j: i != j, "crossed": lambda i, j: True, "disjoint": lambda i, j: i == j}[self.how]
        return [pair for pair in every if keep(*pair)]

    def draw(self, random: np.random.Generator, runs: int, spread: float, means: Numbers, odd: Any = False) -> Numbers:
        """Return planted numbers, runs × pairs × cuts; receivers that are ``odd``, runs × networks, cost more."""

        def effects() -> Numbers:
            shared, own = random.normal(size=(runs, self.n, 1)), random.normal(size=(runs, self.n, len(means)))
            return spread * (ALIKE**0.5 * shared + (1 - ALIKE) ** 0.5 * own)

        sends, receives = effects(), effects()
        if self.how == "ordered":
            receives = ALIKE * sends + (1 - ALIKE**2) ** 0.5 * receives
        receives = receives + ODD_COST * np.atleast_2d(odd)[..., None]
        starts, ends = (list(side) for side in zip(*self.pairs, strict=True))
        values = sends[:, starts] + receives[:, ends] + means
        return np.asarray(values + NOISE * random.normal(size=values.shape))

    def average(self, values: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return means, jackknife errors, degrees of freedom, and the means without each network of the first side."""
        first = np.array(
            [[k in pair if self.how == "ordered" else k == pair[0] for pair in self.pairs] for k in range(self.n)]
        )
        second = np.array([[k == pair[1] for pair in self.pairs] for k in range(self.n)])
        sides = [first, second] if self.how == "crossed" else [first]  # fmt: skip
        without = [np.einsum("kp,rpc->rkc", ~out / (~out).sum(axis=1, keepdims=True), values) for out in sides]
        parts = [(self.n - 1) * own.var(axis=1) for own in without]
        variance = sum(parts)
        freedom = variance**2 / sum(part**2 / (self.n - 1) for part in parts)
        return values.mean(axis=1), np.sqrt(variance), freedom, without[0]

    def table(self, values: Numbers) -> pd.DataFrame:
        """Return the numbers of one run as the package reads them."""
        index = [number_pair(1 + i, 1 + j, self.how == "ordered") for i, j in self.pairs]
        return pd.DataFrame(values, index=pd.Index(index, name="network_seed"))


@dataclass(frozen=True)
class Planted(PerUnit):
    """Numbers that are given: pairs × cuts."""

    values: Any

    def read(self, tables: Tables) -> Any:
        """Return them."""
        return self.values


def decide(design: Design, values: Numbers, limit: float = LIMIT, either: bool = False) -> Any:
    """Return the verdicts on "at most the limit at every cut", ``either`` way, run by run."""
    mean, error, freedom, _ = design.average(values)
    t, corrected = (stats.t.ppf(1 - 0.025 / m, freedom) for m in (1, values.shape[2] * (1 + either)))
    size = np.abs(mean) if either else mean
    verdicts = np.where(
        (size + t * error <= limit).all(axis=1),
        "reproduced",
        np.where((size - corrected * error > limit).any(axis=1), "not reproduced", "undecided"),
    )
    for own, verdict in zip(values[:CHECKED], verdicts, strict=False):
        quantity = Extreme((Planted(design.table(own)),), either=either)
        found = Claim("planted", "", quantity, "≤", limit, unit="", enough=3).decide({}).verdict
        assert found == verdict, (found, verdict)
    return verdicts


def rates(verdicts: Any) -> Row:
    """Return the rates of both verdicts, in per cent."""
    return {one: rate(verdicts == one) for one in ("reproduced", "not reproduced")}


def rate(happened: Any) -> float:
    """Return the share of runs in which something happened, in per cent."""
    return round(100 * float(np.mean(happened)), 2)


# --- what is simulated ------------------------------------------------------------------------------------------------


def simulate_mean(random: np.random.Generator, runs: int, n: int, spread: float) -> Iterator[Row]:
    """Yield how often 95 % intervals miss a mean, by several methods."""
    for how in ("ordered", "crossed", "disjoint"):
        design = Design(n, how)
        values = design.draw(random, runs, spread, np.zeros(1))
        mean, error, freedom, _ = (own[..., 0] for own in design.average(values))
        for own, half in zip(values[:CHECKED, :, 0], (stats.t.ppf(0.975, freedom) * error)[:CHECKED], strict=True):
            found = average_over_networks(own, *zip(*((f"s{i}", f"{'s' * (how == 'ordered')}{j}") if how == "ordered" else (f"s{i}", f"r{j}") for i, j in design.pairs), strict=True))  # fmt: skip  # noqa: E501
            assert np.isclose(found.reach(0.95), half)
        missed = {"jackknife": rate(np.abs(mean) > stats.t.ppf(0.975, freedom) * error)}
        pairs, own = len(design.pairs), values[..., 0]
        missed["t over pairs"] = rate(
            np.abs(mean) > stats.t.ppf(0.975, pairs - 1) * own.std(axis=1, ddof=1) / pairs**0.5
        )
        if how != "disjoint":
            missed["two-way effects"] = rate(np.abs(mean) > reach_two_way(design, own))
        if how == "crossed":
            drawn = random.integers(0, n, (2, 400, n))
            grid = own[:1000].reshape(-1, n, n)
            means = np.stack(
                [grid[:, rows][:, :, columns].mean(axis=(1, 2)) for rows, columns in zip(*drawn, strict=True)]
            )
            low, high = np.quantile(means, [0.025, 0.975], axis=0)
            missed["crossed bootstrap"] = rate((low > 0) | (high < 0))  # fmt: skip
        yield {"planted": f"{how} pairs", **missed}


def reach_two_way(design: Design, values: Numbers) -> Numbers:
    """Return the reach of two-way random effects, taken for independent, with Satterthwaite's degrees of freedom."""
    members = np.zeros((len(design.pairs), 2 * design.n))
    for place, (i, j) in enumerate(design.pairs):
        members[place, [i, design.n + j]] = 1
    effects = values @ np.linalg.pinv(members).T
    parts = [own.var(axis=1, ddof=1) / design.n for own in (effects[:, : design.n], effects[:, design.n :])]
    freedom = sum(parts) ** 2 / sum(part**2 / (design.n - 1) for part in parts)
    return np.asarray(stats.t.ppf(0.975, freedom) * np.sqrt(sum(parts)))


def simulate_every_cut(random: np.random.Generator, runs: int, n: int, spread: float) -> Iterator[Row]:
    """Yield rates of verdicts on "≤ 3 pp at every cut": by the rule, by that of before, and by the largest t."""
    design = Design(n)
    for truth, means in TRUTHS.items():
        values = design.draw(random, runs, spread, means)
        worst = values.max(axis=2)
        half = stats.t.ppf(0.975, worst.shape[1] - 1) * worst.std(axis=1, ddof=1) / worst.shape[1] ** 0.5
        yield {
            "planted": truth,
            **rates(decide(design, values)),
            "before: reproduced": rate(worst.mean(axis=1) + half <= LIMIT),
            "before: not reproduced": rate(worst.mean(axis=1) - half > LIMIT),
            "largest t: not reproduced": rate(refuse_by_largest_t(random, design, values[:1000])),
        }


def refuse_by_largest_t(random: np.random.Generator, design: Design, values: Numbers) -> Any:
    """Return whether the largest t exceeds that of normal numbers with the estimated correlations."""
    mean, error, _, without = design.average(values)
    apart = without - without.mean(axis=1, keepdims=True)
    units = apart / np.sqrt((apart**2).sum(axis=1, keepdims=True))
    roots = np.sqrt(random.chisquare(design.n - 1, 1000) / (design.n - 1))
    drawn = np.einsum("bn,rnc->rbc", random.normal(size=(1000, design.n)), units).max(axis=2) / roots
    return ((mean - LIMIT) / error).max(axis=1) > np.quantile(drawn, 0.975, axis=1)


def simulate_odd(random: np.random.Generator, runs: int, n: int, spread: float) -> Iterator[Row]:
    """Yield rates of verdicts if one receiver in six costs 4 pp more, and how often the share's interval misses."""
    design, true = Design(n), 100 * (1 - ODD)
    for typical in (1.5, LIMIT - ODD * ODD_COST, LIMIT):
        odd = random.random(size=(runs, n)) < ODD
        values = design.draw(random, runs, spread, np.full(CUTS, typical), odd)
        met, verdicts = odd.any(axis=1), decide(design, values)
        ends = []
        for own in values[:400]:
            worst = design.table(own).max(axis=1)
            found = share_of(worst <= typical + ODD_COST / 2)
            ends.append((found.low, found.high))
        low, high = np.array(ends).T
        yield {
            "planted": f"the others at {typical:.2f}, the mean of all at {typical + ODD * ODD_COST:.2f}",
            **rates(verdicts),
            "none of them met": rate(~met),
            "reproduced with one met": rate((verdicts == "reproduced") & met),
            "share missed": rate((low > true) | (high < true)),
        }


def simulate_equivalence(random: np.random.Generator, runs: int, n: int, spread: float) -> Iterator[Row]:
    """Yield rates of verdicts on "within 1 pp, either way, at three cuts", of which one differs."""
    for apart in (0.0, 1.0, -1.0):
        values = Design(n).draw(random, runs, spread, np.array([apart, 0.0, 0.0]))
        yield {"planted": f"{apart:g} pp apart", **rates(decide(Design(n), values, 1.0, either=True))}


def simulate_several(random: np.random.Generator, runs: int, n: int, spread: float) -> Iterator[Row]:
    """Yield how often one of four claims on their thresholds has a verdict, with Holm's method and without."""
    of_all: list[tuple[Any, Any]] = []
    for _ in range(4):
        mean, error, freedom, _ = (
            own[..., 0] for own in Design(n).average(Design(n).draw(random, runs, spread, np.zeros(1)))
        )
        of_all.append(tuple(np.abs(mean) > stats.t.ppf(1 - 0.025 / m, freedom) * error for m in (4, 1)))  # type: ignore[arg-type]  # fmt: skip
    shared, alone = (np.any(own, axis=0) for own in zip(*of_all, strict=True))
    yield {"planted": "four claims on their thresholds", "with Holm": rate(shared), "without": rate(alone)}


def simulate_wanted(random: np.random.Generator, runs: int) -> Iterator[Row]:
    """Yield how many networks decide a mean so many sd from its threshold in 80 % of cases, and how often they do."""
    for distance in (0.5, 1.0, 1.5, 2.0, 3.0):
        n = count_networks(distance)
        found = stats.ttest_1samp(random.normal(distance, 1, (runs, n)), 0, axis=1).pvalue < 0.05
        yield {"planted": f"{distance:g} sd from the threshold", "networks wanted": n, "they decide": rate(found)}


def simulate_shares(random: np.random.Generator, runs: int, n: int) -> Iterator[Row]:
    """Yield how often either end of the share's interval misses, if a network is good on both sides or on neither.

    Beside it the lower end for as many cases as networks, which is too narrow.
    """
    design = Design(n)
    index, (starts, ends_at) = design.table(np.zeros((len(design.pairs), 1))).index, np.array(design.pairs).T
    for good in (0.47, 0.69, 0.9):
        fine = random.random(size=(min(runs, 2_000), n)) < good
        found = [share_of(pd.Series(own[starts] & own[ends_at], index=index)) for own in fine]
        low, high, held = np.array([(one.low, one.high, n * one.value / 100) for one in found]).T
        alone = 100 * np.nan_to_num(stats.beta.ppf(0.025, held, n - held + 1))
        true = 100 * good**2
        said = {"above the share": rate(low > true + 1e-9), "below it": rate(high < true - 1e-9)}
        said["above it, by n cases"] = rate(alone > true + 1e-9)
        yield {"networks": n, "planted": f"holds of {true:.0f} % of pairs", **said}


def simulate_skewed(random: np.random.Generator, runs: int, n: int) -> Iterator[Row]:
    """Yield rates of verdicts on claims that lie on their threshold, if the networks' numbers are not normal."""
    t = stats.t.ppf(0.975, n - 1)

    def judge(planted: str, values: Numbers, limit: float, above: bool = False) -> Row:
        mean, reach = values.mean(axis=1), t * values.std(axis=1, ddof=1) / n**0.5
        sign = -1 if above else 1
        low, high = sign * mean - reach, sign * mean + reach
        verdicts = {"reproduced": rate(high <= sign * limit), "not reproduced": rate(low > sign * limit)}
        return {"networks": n, "planted": planted, **verdicts}

    yield judge("≤ its mean, exponential", random.exponential(size=(runs, n)), 1.0)
    for zero in (0.84, 0.95):
        values = np.where(random.random(size=(runs, n)) < zero, 0.0, 1.0)
        yield judge(f"≤ its mean, {zero:.0%} exact zeros", values, 1 - zero)
    for cuts in (4, 5):
        values = draw_correlations(random, runs, n, cuts)
        yield judge(f"ρ ≥ its mean, over {cuts} cuts", values, 0.8, above=True)


def draw_correlations(random: np.random.Generator, runs: int, n: int, cuts: int) -> Numbers:
    """Return Spearman's ρ of a noisy rise along the cuts, runs × networks, whose mean is 0.8."""
    line, noise = np.arange(cuts), random.normal(size=(runs, n, cuts))

    def correlate(spread: float) -> Numbers:
        ranks = (line + spread * noise).argsort(axis=2).argsort(axis=2)
        return np.asarray(1 - 6 * ((ranks - line) ** 2).sum(axis=2) / (cuts * (cuts**2 - 1)))

    low, high = 0.1, 10.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if correlate(middle).mean() > 0.8 else (low, middle)
    return correlate(low)


PARTS = {
    "How often a 95 % interval misses the mean of a pair's number:": simulate_mean,
    "“≤ 3 pp at every cut” of eight: by the rule, by the first ledger's, and refused by the largest t:": (
        simulate_every_cut
    ),
    "The same if one receiver in six costs 4 pp more:": simulate_odd,
    "“Within 1 pp, either way”, at three cuts, of which one differs:": simulate_equivalence,
    "How often one of four claims, all on their thresholds, has a verdict:": simulate_several,
}  # fmt: skip
ALONE = {
    "How often the interval of the share of pairs misses, if a network is good on both sides or on neither:": (
        simulate_shares
    ),
    "Verdicts on what lies on its threshold, if the networks' numbers are not normal:": simulate_skewed,
}


def simulate(runs: int) -> dict[str, list[Row]]:
    """Return all simulations by their titles."""
    made: dict[str, list[Row]] = {}
    for place, (words, part) in enumerate(PARTS.items()):
        for n, spread in product(NETWORKS, SPREADS):
            random = np.random.default_rng([place, n, int(10 * spread)])
            found = part(random, runs, n, spread)
            made.setdefault(words, []).extend({"networks": n, "sd": spread, **row} for row in found)
    for words, part in ALONE.items():
        made[words] = [row for n in NETWORKS for row in part(np.random.default_rng([8, n]), runs, n)]
    made["How many networks decide in 80 % of cases:"] = list(simulate_wanted(np.random.default_rng(9), runs))
    return made


def fill(page: str, results: dict[str, list[Row]]) -> str:
    """Return a page with the tables between its marks, in per cent."""
    parts = []
    for words, rows in results.items():
        heads = list(dict.fromkeys(name for row in rows for name in row))
        lines = [
            heads,
            ["---"] + ["---:"] * (len(heads) - 1),
            *([str(row.get(head, "")) for head in heads] for row in rows),
        ]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        folded = f'<details markdown="1">\n<summary>{words.rstrip(":")}</summary>\n\n{table}\n\n</details>'
        parts.append(folded)
    return MARK.sub(lambda found: f"{found[1]}\n" + "\n\n".join(parts) + f"\n\n{found[2]}", page)


def main() -> int:
    """Simulate, and write the results and the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--runs", type=int, default=4_000)
    given = parser.parse_args()
    results = simulate(given.runs)
    given.results.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    given.page.write_text(fill(given.page.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

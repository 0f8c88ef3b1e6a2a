"""Whether the agreement of mistakes tells more than accuracy, at seams between trained networks.

    python -m benchmarks.mistakes measure CIFAR10     stitches with `Quick`, about 25 minutes of one core; resumes
    python -m benchmarks.mistakes read                prints the answer from benchmarks/results/mistakes.parquet

Networks of ``papers/results/networks``, A into B at the cuts of ``PAIRS``. C and D are two more networks of the same
kind that no stitch has seen. For two cuts of one pair at which the stitch works, two differences are judged:

- of the stitched accuracies, paired over the scored samples;
- of the balances κ(stitched, A) − κ(stitched, B), with a bootstrap over the same samples.

κ tells more than accuracy if it tells apart at least half of the pairs of cuts that accuracy cannot tell apart, while
the balance between C and D, which no seam can move, tells apart at most a tenth. Both shares were chosen before the
measurement. The marks are checked by putting C in the place of A, or of B: such marks are false alarms.
"""

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

import suture
from suture.measurement.scores.intervals import paired_interval
from suture.measurement.scores.outcomes import Outcomes, steps_from, unpack
from suture.measurement.tables.questions import BOTH, RECEIVERS, SENDERS, agreement

FILE = Path(__file__).parent / "results" / "mistakes.parquet"
MARGIN = 3.0  #: pp, the default
DRAWS = 400  #: of the bootstrap
PAIRS = {
    "mlp": [f"block{i}.relu" for i in range(1, 10)],
    "cnn-cifar10": ["conv1_relu", "pool1", "conv2_relu", "pool2", "fc1_relu", "fc2_relu", "fc3_relu"],
    "resnet(1,1,1,1)": [f"layer{i}.0" for i in range(1, 5)],
    "resnet18": [f"layer{i}.{j}" for i in range(1, 5) for j in (0, 1)],
    "myrtle": [f"stage{i}.relu" for i in range(2, 5)],
}
SEEDS = {"A": 10, "B": 11, "C": 12, "D": 13}


def measure(folder: str) -> None:
    """Stitch every pair, and keep the rows with the outcomes of C and D beside them."""
    data = suture.load_data(folder)
    tables = [pd.read_parquet(FILE)] if FILE.exists() else []
    for kind, cuts in PAIRS.items():
        if any(kind in set(table["kind"]) for table in tables):
            continue
        networks = {
            letter: suture.load_network(f"ledger:{kind}@{seed}", example=data.example, name=letter)
            for letter, seed in SEEDS.items()
        }
        a, b = networks["A"], networks["B"]
        table = suture.run(suture.curve(a, b, data=data, at=cuts, fit="quick", controls="none"), on=suture.Local(1))
        score = data.score
        steps = {
            letter: np.concatenate(
                [
                    steps_from(score.labels[i : i + 500], networks[letter].whole()(score.images[i : i + 500]))
                    for i in range(0, len(score), 500)
                ]
            )
            for letter in ("C", "D")
        }
        held = [unpack(text) for text in table["outcomes"]]
        table["outcomes"] = [Outcomes(one.of, one.samples, {**one.by_role, **steps}).pack() for one in held]
        table["kind"] = kind
        keep = ["kind", "sender_cut", "fit", "n", "stitched", "penalty", "penalty_low", "penalty_high", "outcomes"]
        tables.append(table.loc[table["score"] == "accuracy", keep])
        print(tables[-1].drop(columns="outcomes").to_string(), flush=True)
        pd.concat(tables).reset_index(drop=True).to_parquet(FILE)


def kappa(one: np.ndarray, other: np.ndarray) -> float:
    """Return Cohen's κ of being right (booleans) on the same samples."""
    p, q = one.mean(), other.mean()
    expected = p * q + (1 - p) * (1 - q)
    return float(((one == other).mean() - expected) / (1 - expected))


def balance(right: dict[str, np.ndarray], one: str, other: str) -> float:
    """Return how much closer the stitched network's mistakes are to one network's than to the other's."""
    return kappa(right["stitched"], right[one]) - kappa(right["stitched"], right[other])


def told_apart(first: Outcomes, second: Outcomes, names: tuple[str, str], random: np.random.Generator) -> bool:
    """Return whether a 95 % bootstrap interval of the difference of two balances is without zero."""
    sides = [{role: steps == 0 for role, steps in one.by_role.items()} for one in (first, second)]
    n = len(sides[0]["stitched"])
    drawn = []
    for _ in range(DRAWS):
        chosen = random.integers(n, size=n)
        low, high = (balance({role: values[chosen] for role, values in side.items()}, *names) for side in sides)
        drawn.append(high - low)
    ends = np.quantile(drawn, [0.025, 0.975])
    return bool(ends[0] > 0 or ends[1] < 0)


def marks_with(held: list[Outcomes], **roles: str) -> list[str]:
    """Return the marks if other networks took the sender's or the receiver's role."""
    swapped = [
        Outcomes(one.of, one.samples, one.by_role | {r: one.by_role[by] for r, by in roles.items()}) for one in held
    ]
    return ["" if (found := agreement(one)) is None else found.mark for one in swapped]


def compare_cuts(rows: pd.DataFrame) -> Iterator[tuple[bool, bool, bool]]:
    """Return of every two cuts of a pair that work whether accuracy, κ of A and B, and κ of C and D tell them apart."""
    random = np.random.default_rng(0)
    for _, found in rows.groupby("kind", sort=False):
        for first, second in combinations([unpack(text) for text in found["outcomes"]], 2):
            low, high = paired_interval(first.values(), second.values(), seed=0)[:2]
            accuracy = bool(low > 0 or high < 0)
            yield (
                accuracy,
                told_apart(first, second, ("sender", "receiver"), random),
                told_apart(first, second, ("C", "D"), random),
            )


def read() -> None:
    """Print the answer."""
    rows = pd.read_parquet(FILE)
    held = [unpack(text) for text in rows["outcomes"]]
    found = [agreement(one) for one in held]
    rows["mark"] = ["" if one is None else one.mark for one in found]
    rows["sender's"], rows["receiver's"] = zip(
        *[(one.senders[0], one.receivers[0]) for one in found if one], strict=True
    )
    rows["works"] = rows["penalty_high"] < MARGIN
    print(rows.drop(columns=["outcomes", "fit", "n", "penalty_low"]).round(3).to_string())
    works = rows["works"].to_numpy()
    print(
        f"{len(rows)} seams, {works.sum()} work; marks where it works: {rows['mark'][works].value_counts().to_dict()}"
    )
    false = marks_with(held, sender="C"), marks_with(held, receiver="D")
    for role, own, marks in (("sender", SENDERS, false[0]), ("receiver", RECEIVERS, false[1])):
        print(
            f"with an uninvolved {role}: {sum(one in (own, BOTH) for one in marks)} of {len(marks)} called the {role}'s"
        )
    pairs = np.array(list(compare_cuts(rows[works])))
    same = ~pairs[:, 0]
    print(
        f"{len(pairs)} pairs of cuts that work; accuracy tells {pairs[:, 0].sum()} apart; of the other "
        f"{same.sum()} the mistakes tell {pairs[same, 1].sum()} apart, and those of two uninvolved networks "
        f"{pairs[same, 2].sum()}"
    )


def main() -> None:
    """Measure or read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure").add_argument("data")
    commands.add_parser("read")
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.data)
    else:
        read()


if __name__ == "__main__":
    main()

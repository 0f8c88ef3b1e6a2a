"""How often the five questions are answered wrongly: simulated samples, from outcomes to marks and sentences.

    python -m benchmarks.questions [--runs N]     prints the rates, and writes benchmarks/results/questions.csv

Each run draws the outcomes of all networks at eight cuts, sample by sample, and makes of them what a trial leaves:
scores with their intervals and packed outcomes. The table is then read as any other. Samples differ in how hard they
are, so networks are right and wrong together. What is planted is the truth in the limit of many samples:

- the stitched network is exactly the margin worse than its receiver: *yes* and *no* are both wrong
- it is exactly the margin better than with an untrained sender, likewise
- shuffled pairs are exactly the margin above guessing, likewise
- the three networks share nothing but hard samples, so the mistakes are nobody's
- and how often what is so is found

Wrong marks are counted cut by cut. A run's count is wrong if any cut is counted that should not be.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import pandas as pd

from suture.measurement.scores.intervals import mean_interval, paired_interval
from suture.measurement.scores.outcomes import CLASSES, Outcomes
from suture.measurement.tables.questions import BOTH, NO, RECEIVERS, SENDERS, YES, Question
from suture.measurement.tables.read import Reading, make_reading
from suture.measurement.tables.table import COLUMNS

CUTS, SAMPLES, CHANCE, MARGIN = 8, 2000, 0.1, 0.03
OWN = 0.90  #: of the receiver alone
FILE = Path(__file__).parent / "results" / "questions.csv"


def draw(random: np.random.Generator, hard: np.ndarray, accuracy: float) -> np.ndarray:
    """Draw which samples a network has right: harder ones less often, so many in the mean."""
    tilt = hard - hard.mean()
    return random.random(len(hard)) < np.clip(
        accuracy - 0.3 * min(accuracy, 1 - accuracy) * tilt / abs(tilt).max(), 0, 1
    )


def simulate(random: np.random.Generator, stitched: float, untrained: float, shuffled: float) -> Reading:
    """Make the table of one curve, and read it."""
    hard = random.random(SAMPLES)
    sender, receiver = draw(random, hard, OWN), draw(random, hard, OWN)
    rows = []
    for i in range(1, CUTS + 1):
        levels = {
            "": stitched,
            "untrained sender": untrained,
            "untrained receiver": untrained,
            "shuffled pairs": shuffled,
        }
        for control, accuracy in levels.items():
            right = draw(random, hard, accuracy)
            rows.append(make_row(i, control, right, sender, receiver))
    return make_reading(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))


def make_row(i: int, control: str, right: np.ndarray, sender: np.ndarray, receiver: np.ndarray) -> dict[str, object]:
    """Make a row as a trial leaves it."""
    made: dict[str, object] = {name: "" for name, kind in COLUMNS.items() if kind == "str"}
    values = {"stitched": right, "sender": sender, "receiver": receiver}
    outcomes = Outcomes(CLASSES, "simulated", {role: (~part).astype(np.uint8) for role, part in values.items()})
    low, high, _ = mean_interval(right.astype(float), seed=0)
    cost = paired_interval(receiver.astype(float), right.astype(float), seed=0)
    made |= {"trial": f"{i}{control}", "status": "ok", "control": control, "sender": "A", "receiver": "B", "seed": 0}
    made |= {"sender_cut": f"cut{i}", "receiver_cut": f"cut{i}", "sender_depth": i / CUTS, "receiver_depth": i / CUTS}
    made |= {"fit": "Converged()", "converged": True, "score": "accuracy", "unit": "fraction", "n": SAMPLES, "steps": 1}
    made |= {"stitched": right.mean(), "stitched_low": low, "stitched_high": high, "chance": CHANCE, "seconds": 1.0}
    made |= {"sender_score": sender.mean(), "receiver_score": receiver.mean(), "score_data": "d", "fit_data": "f"}
    made |= {
        "penalty": 100 * (receiver.mean() - right.mean()),
        "penalty_low": 100 * cost[0],
        "penalty_high": 100 * cost[1],
    }
    return made | {"outcomes": outcomes.pack()}


#: What is planted, as accuracies of the stitched network, of controls without training and of shuffled pairs; the
#: question; and the answers that would be wrong, or are looked for.
PLANTED: dict[str, tuple[tuple[float, float, float], Question, tuple[str, ...]]] = {
    "works, at the margin": ((OWN - MARGIN, 0.5, CHANCE), "works", (YES,)),
    "works, at the margin: no": ((OWN - MARGIN, 0.5, CHANCE), "works", (NO,)),
    "needs, at the margin": ((OWN, OWN - MARGIN, CHANCE), "sender", (YES,)),
    "needs, at the margin: no": ((OWN, OWN - MARGIN, CHANCE), "sender", (NO,)),
    "pairs, at the margin: no": ((OWN, 0.5, CHANCE + MARGIN), "pairs", (NO,)),
    "mistakes, nobody's": ((OWN, 0.5, CHANCE), "mistakes", (SENDERS, RECEIVERS, BOTH)),
    "works, as good as the receiver: found": ((OWN, 0.5, CHANCE), "works", (YES,)),
    "needs, four points beyond the margin: found": ((OWN, OWN - MARGIN - 0.04, CHANCE), "sender", (YES,)),
}


def main() -> None:
    """Print the rates and write them."""
    parser = argparse.ArgumentParser(description="how often the five questions are answered wrongly")
    parser.add_argument("--runs", type=int, default=250)
    runs = parser.parse_args().runs
    rows = []
    for number, (name, (levels, question, wrong)) in enumerate(PLANTED.items()):
        random, marks, counts = np.random.default_rng(number), [], []
        for _ in range(runs):
            reading = simulate(random, *levels)
            held = np.isin(reading.marks(question), wrong)
            marks.append(held.mean())
            counts.append((held & reading.settled.get(question, held)).any())
        row = {"planted": name, "runs": runs, "marks, %": 100 * np.mean(marks), "counts, %": 100 * np.mean(counts)}
        row["counts, %"] = "" if question == "mistakes" else f"{row['counts, %']:.1f}"
        row["marks, %"] = f"{row['marks, %']:.1f}"
        print(row, flush=True)
        rows.append(row)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

"""The picture of the README, drawn from the kept table of bansal-2A: two ResNet-18s on CIFAR-10 from two seeds.

    python benchmarks/front_picture.py docs/images/front.png

The first pair of networks, by the default fit and its first stitch seed, at eight cuts with the controls that answer a
question. Nothing is measured.
"""

import sys
from pathlib import Path

import suture

TABLE = Path(__file__).resolve().parents[1] / "papers" / "results" / "small" / "bansal-2A.trials.parquet"
NAMES = {"resnet18": "A", "another resnet18": "B"}
CONTROLS = ("", "itself", "untrained sender", "untrained receiver", "shuffled pairs")


def main() -> None:
    """Draw the picture and print its explanation."""
    from suture.measurement.tables.table import load

    table = load(TABLE)
    table = table[(table["fit"] == "Converged()") & (table["network_seed"] == 10011) & (table["seed"] == 0)]
    table = table[table["receiver"].isin(NAMES) & table["control"].isin(CONTROLS)]
    table = table.assign(**{role: table[role].replace(NAMES) for role in ("sender", "receiver")}, chance=0.1)
    suture.plot(table).savefig(sys.argv[1], dpi=200)
    print(suture.explain(table))


if __name__ == "__main__":
    main()

"""Twelve closed seams of fresh networks, which judge the default fit once, when all its constants are chosen.

``train DATA`` trains the networks of the kinds of ``benchmarks.tuned`` that ``benchmarks/results/fresh`` lacks, of
seeds on which nothing was tuned. ``orders …`` does what ``benchmarks.orders`` does. All other commands are those of
``benchmarks.reference``. Their seams are drawn from these networks and kept in ``benchmarks/results/fresh``: ``draw``,
``run``, ``judge … --closed``, ``longer``, ``sum`` and ``table``.
"""

import sys
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks import orders, reference, tuned

FOLDER = Path(__file__).parent / "results" / "fresh"
SEEDS = (70, 71)
LEFT_OUT = ("colour", "digit", "deep")
NAMES = {kind: tuple(f"{kind}-{seed}" for seed in SEEDS) for kind in tuned.KINDS if kind not in LEFT_OUT}
#: What ``benchmarks.reference`` reads of its own networks and seams, for these.
WITH = {
    "FOLDER": FOLDER,
    "NETWORKS": FOLDER,
    "SEED": 20261129,
    "SOURCES": {kind: source for kind, (source, _) in tuned.KINDS.items()},
    "NAMES": NAMES | {"colour": (f"colour-{SEEDS[0]}", f"digit-{SEEDS[1]}")},
    "STRATA": (
        ("mlp", 1, (("mlp", "mlp"),)),
        ("small", 2, (("small", "small"),)),
        ("cnn", 2, (("cnn", "cnn"),)),
        ("colour", 1, (("colour", "colour"),)),
        ("resnet", 2, (("resnet", "resnet"),)),
        ("myrtle", 1, (("myrtle", "myrtle"),)),
        ("vit", 1, (("vit", "vit"),)),
        ("across", 2, (("resnet", "myrtle"), ("small", "resnet"))),
    ),
    "PLAIN_SEAMS": 0,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        torch.set_num_threads(1)
        names = [name for pair in WITH["NAMES"].values() for name in pair]  # type: ignore[attr-defined]
        tuned.train_all(Path(sys.argv[2]), names, FOLDER)
        sys.exit()
    with patch.multiple(reference, **WITH), patch.multiple(orders, FOLDER=FOLDER, ORDERS=FOLDER / "orders.json"):
        if sys.argv[1:2] == ["orders"]:
            del sys.argv[1]
            sys.exit(orders.main())
        sys.exit(reference.main())

"""The cost of comparing every file read from disk with its hash, as a share of a default curve.

python benchmarks/safety.py [DATA] [--fit 5000] [--score 2000] [--at CUT …]

Two residual networks, untrained, on CIFAR-10, the cuts that both share, the default fit and controls, in one process.
What a pool would do at most is done here: every file of activations is compared once although this process wrote it.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import suture
from suture.common import sealed
from suture.core.activations import disk_cache
from suture.measurement.tables import table as tables
from suture.runs.runners import transport
from suture.runs.store import files
from suture.runs.store import store as stores

SPENT: dict[str, float] = {}


def timed(owner: Any, name: str) -> None:
    """Have a function count its seconds."""
    function: Callable[..., Any] = getattr(owner, name)

    def counted(*given: Any, **settings: Any) -> Any:
        since = time.perf_counter()
        try:
            return function(*given, **settings)
        finally:
            SPENT[name] = SPENT.get(name, 0.0) + time.perf_counter() - since

    setattr(owner, name, counted)


class Forgets(set[Any]):
    """A store that compares even the files that this process wrote itself, once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def add(self, state: Any) -> None:
        if state in self.seen:
            super().add(state)
        self.seen.add(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="cifar10")
    parser.add_argument("--fit", type=int, default=5000)
    parser.add_argument("--score", type=int, default=2000)
    parser.add_argument("--at", nargs="+", help="cuts; by default all")
    chosen = parser.parse_args()
    data = suture.load_data(chosen.data).limited(fit=chosen.fit, score=chosen.score)
    nets = []
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)
        channels = data.example.shape[1]
        source = f"zoo:resnet,width=8,blocks=(1,1,1),channels={channels}"
        nets.append(suture.load_network(source, example=data.example, name=name))
    disk_cache._SOUND = Forgets()
    for owner, name in (
        (disk_cache, "_is_sound"),
        (tables, "seal"),
        (tables, "is_sound"),
        (transport, "seal"),
        (files, "to_json"),
        (stores, "to_json"),
        (files, "from_json"),
        (stores, "from_json"),
        (stores.Store, "forget_damage"),
        (sealed, "is_sound"),
    ):
        timed(owner, name)
    with tempfile.TemporaryDirectory() as folder:
        since = time.perf_counter()
        plan = suture.curve(*nets, data=data, at=chosen.at)
        table = suture.run(plan, store=Path(folder) / "run", on=suture.Local(workers=1))
        whole = time.perf_counter() - since
        sizes = [path.stat().st_size for path in (Path(folder) / "run/activations").glob("*.safetensors")]
    shown = {"trials": table["trial"].nunique(), "seconds": whole, "activations": sum(sizes), "spent": SPENT}
    print(json.dumps(shown | {"share": sum(SPENT.values()) / whole}, indent=2))


if __name__ == "__main__":
    main()

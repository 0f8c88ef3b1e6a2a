"""Every similarity index against an independent implementation, and how long all pairs of layers of two networks take.

    python benchmarks/indices.py [--out FILE.json]
    python benchmarks/indices.py --data path/to/cifar10 [--networks A B] [--samples 2000] [--cuts PATTERN …]

Differences are the largest over layers of many sizes, in float64 and of the same layers in float32; the other
implementations (``tests/measurement/indices/oracles.py``: pytorch-cka, rsatoolbox, scipy, scikit-learn, or a paper's
formula in numpy) get float64. With ``--data`` it also times every index alone and all of them together (``compare``),
one thread, activations computed before; networks are model strings, by default two small ResNet-18s whose weights are
random unless a string names some. An index alone computes anew what indices can have in common. Nothing else should run
meanwhile.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "measurement" / "indices"))

from oracles import ORACLES
from variants import BY_NAME, layers

import suture
from suture import Network
from suture.common.seeds import undisturbed
from suture.common.sizes import physical_memory
from suture.core.activations.cache import Activations
from suture.measurement import indices
from suture.measurement.compare import compare

SIZES = [(60, 12, 9), (60, 9, 12), (90, 30, 6), (40, 15, 15), (300, 40, 64), (200, 20, 1)]
WIDE = [(40, 100, 70), (60, 300, 12), (100, 99, 2000)]
SUBSPACES = ("mean_cca", "pwcca", "linear_regression")  #: 1, whatever the layers, where features are many
RESNET18 = "zoo:resnet,width=64,blocks=(2,2,2,2)"


def differences() -> dict[str, dict[str, float]]:
    """The largest difference of every index from its oracle."""
    found: dict[str, dict[str, float]] = {}
    for name, oracle in ORACLES.items():
        largest = {"float64": 0.0, "float32": 0.0}
        for seed, sizes in enumerate(SIZES if name in SUBSPACES else SIZES + WIDE):
            if sizes[-1] == 1 and name.startswith(("rsa_pearson", "rsa_spearman", "mutual_knn", "cknna")):
                continue  # a single feature has neither correlations nor angles
            x, y = layers(*sizes, seed=seed)
            wanted = oracle(x.numpy(), y.numpy())
            largest["float64"] = max(largest["float64"], abs(BY_NAME[name](x, y) - wanted))
            x, y = x.float(), y.float()
            wanted = oracle(x.double().numpy(), y.double().numpy())
            largest["float32"] = max(largest["float32"], abs(BY_NAME[name](x, y) - wanted))
        found[name] = largest
    return found


def seconds(a: Network, b: Network, data: suture.Data, samples: int, cuts: Sequence[str] | None) -> dict[str, float]:
    """CPU seconds of every index by itself, and of all together."""
    cache = Activations(ram=physical_memory())
    common: dict[str, Any] = {"data": data, "cuts": cuts, "samples": samples, "activations": cache}
    used = time.process_time()
    table = compare(a, b, by=indices.linear_cka, **common)
    spent = {"activations and linear_cka": time.process_time() - used}
    print(f"{len(table)} pairs of cuts, {samples} images of {data.score.name}", flush=True)
    for name, by in {**{name: [index] for name, index in indices.INDICES.items()}, "all": None}.items():
        with undisturbed():
            used = time.process_time()
            compare(a, b, by=by if by is not None else list(indices.INDICES.values()), **common)
            spent[name] = time.process_time() - used
        print(f"{name:24} {spent[name]:9.1f} CPU s", flush=True)
    return spent


def networks(texts: Sequence[str], data: suture.Data) -> list[Network]:
    made = []
    for seed, (text, name) in enumerate(zip(texts, "AB", strict=True)):
        torch.manual_seed(seed)
        made.append(suture.load_network(text, example=data.example, name=name))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="digits, a Hugging Face hub id or a local folder; without it nothing is timed")
    parser.add_argument("--networks", nargs=2, default=[RESNET18, RESNET18], metavar="NETWORK")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--cuts", nargs="*", help="names or patterns of cuts, by default all")
    parser.add_argument("--out", type=Path, help="file for the result, JSON")
    given = parser.parse_args()
    record: dict[str, Any] = {"differences": differences()}
    print(f"{'largest difference from':42} {'float64':>10} {'float32':>10}")
    for name, of in record["differences"].items():
        print(f"{name:42} {of['float64']:10.1e} {of['float32']:10.1e}")
    if given.data is not None:
        data = suture.load_data(given.data)
        pair = networks(given.networks, data)
        record["seconds"] = seconds(*pair, data, given.samples, given.cuts)
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""``suture.compare`` on people's own matrices, against six libraries that others wrote.

    pip install --no-deps --target DIR ckatorch seaborn pytorch-cka rsatoolbox statsmodels patsy calibrated-similarity
    PYTHONPATH=DIR python -m benchmarks.peers

The matrices are two views of the same samples: the upper and lower halves of scikit-learn's digits, and the means and
the worst values of its breast-cancer table, which are standardised. Both libraries get the same float64 numbers. ``p``
is that of calibrated-similarity, given the same permutations. The command fails if anything differs by more than 1e-6.
"""

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

import suture
from suture import indices
from suture.measurement.indices.calibration import random_orders

SAMPLES, PERMUTATIONS, CLOSE = 300, 199, 1e-6


def matrices() -> Iterator[tuple[str, Tensor, Tensor]]:
    images = torch.from_numpy(load_digits().images[:SAMPLES])
    upper, lower = images[:, :4].flatten(1), images[:, 4:].flatten(1)
    yield "halves of digits", *(half[:, half.std(0) > 0] for half in (upper, lower))
    table = torch.from_numpy(load_breast_cancer().data[:SAMPLES])
    table = (table - table.mean(0)) / table.std(0)
    yield "means and worst values of tumours", table[:, :10], table[:, 20:]


def by_ckatorch(x: Tensor, y: Tensor) -> float:
    from ckatorch import cka_base

    return float(cka_base(x, y, "linear", method="hsic"))


def by_pytorch_cka(x: Tensor, y: Tensor) -> float:
    from cka import cka_from_features

    return float(cka_from_features(x, y))


def by_rsatoolbox(compared: str) -> Callable[[Tensor, Tensor], float]:
    def value(x: Tensor, y: Tensor) -> float:
        from rsatoolbox.data import Dataset
        from rsatoolbox.rdm import calc_rdm, compare

        return float(compare(*(calc_rdm(Dataset(of.numpy()), method="correlation") for of in (x, y)), compared).item())

    return value


def cca_by_statsmodels(x: Tensor, y: Tensor) -> float:
    from statsmodels.multivariate.cancorr import CanCorr

    return float(np.mean(CanCorr(x.numpy(), y.numpy()).cancorr))


def procrustes_by_scipy(x: Tensor, y: Tensor) -> float:
    """As the angle, of its disparity between matrices of as many columns, the last of which are 0."""
    from scipy.spatial import procrustes

    columns = max(x.shape[1], y.shape[1])
    disparity = procrustes(*(np.pad(of.numpy(), ((0, 0), (0, columns - of.shape[1]))) for of in (x, y)))[2]
    return math.acos(math.sqrt(1 - disparity))


PEERS: tuple[tuple[str, indices.Index, Callable[[Tensor, Tensor], float]], ...] = (
    ("ckatorch", indices.linear_cka, by_ckatorch),
    ("pytorch-cka", indices.LinearCKA(debiased=True), by_pytorch_cka),
    ("rsatoolbox", indices.rsa_pearson, by_rsatoolbox("corr")),
    ("rsatoolbox", indices.rsa_spearman, by_rsatoolbox("spearman")),
    ("statsmodels", indices.mean_cca, cca_by_statsmodels),
    ("scipy", indices.procrustes_angle, procrustes_by_scipy),
)


def p_by_peer(x: Tensor, y: Tensor) -> float:
    from calibrated_similarity import calibrate

    drawn = iter(random_orders(SAMPLES, PERMUTATIONS))
    _, p, _ = calibrate(
        x, y, lambda a, b: indices.mean_cca(a, b), K=PERMUTATIONS, perm_fn=lambda n, device: next(drawn)
    )
    return float(p)


def main() -> int:
    differences = []

    def say(name: str, library: str, what: str, ours: float, theirs: float) -> None:
        differences.append(abs(ours - theirs))
        print(f"{name:34} {library:22} {what:26} {ours:.10f} {theirs:.10f} {differences[-1]:.1e}", flush=True)

    pairs = list(matrices())
    for name, x, y in pairs:
        for library, index, theirs in PEERS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                told = theirs(x, y)
            found = suture.compare(x, y, by=index, permutations=19)
            say(name, library, index.name, float(found["value"].iloc[0]), told)
    drawn = [
        [torch.from_numpy(np.random.default_rng(seed).normal(size=(SAMPLES, 8))) for seed in (k, 9)] for k in (0, 1)
    ]
    for name, x, y in (*pairs, *(("two draws", *pair) for pair in drawn)):
        found = suture.compare(x, y, by=indices.mean_cca, permutations=PERMUTATIONS)
        say(name, "calibrated-similarity", "p of mean_cca", float(found["p"].iloc[0]), p_by_peer(x, y))
    print(f"largest difference {max(differences):.1e}")
    return int(max(differences) > CLOSE)


if __name__ == "__main__":
    raise SystemExit(main())

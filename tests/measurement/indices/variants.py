"""The indices that tests and benchmarks look at, in the settings that change what they do, and layers to compare."""

import torch
from torch import Tensor

from suture.measurement import indices

VARIANTS = [
    *indices.INDICES.values(),
    indices.LinearCKA(debiased=True),
    indices.RBFCKA(bandwidth=0.2),
    indices.RBFCKA(debiased=True),
    indices.SVCCA(variance=0.8),
    indices.RSA(dissimilarity="euclidean"),
    indices.RSA("spearman", "euclidean"),
    indices.MutualKNN(k=3),
    indices.MutualKNN(nearest="euclidean"),
    indices.CKNNA(k=4),
    indices.LinearPredictivity(reverse=True),
]
BY_NAME = {index.name: index for index in VARIANTS}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layers(n: int = 60, p: int = 12, q: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two layers that share some of what they say, far from centred, their features of different sizes."""
    base = seeded(n, 6, seed=seed)
    made = []
    for i, size in enumerate((p, q)):
        x = base @ seeded(6, size, seed=seed + 10 * i + 1) + seeded(n, size, seed=seed + 10 * i + 2)
        made.append((x.relu() + 0.3 * x + 0.5 + i) * torch.linspace(0.5, 2, size, dtype=torch.float64))
    return made[0], made[1]

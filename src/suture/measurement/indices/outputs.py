"""Distances between the outputs of two networks, ``(n, classes)``, which must be of the same classes.

They are not indices: ``compare`` does not take them.
"""

from math import log

import torch
from torch import Tensor

from suture.common.errors import DataError


def disagreement(x: Tensor, y: Tensor) -> float:
    """Return the share of samples that two networks put into different classes (Klabunde et al. 2025, section 4).

    ``x`` and ``y`` are outputs ``(n, classes)``. Raises ``DataError`` if they are of other classes or samples.
    """
    a, b = _read("disagreement", x, y)
    return float((a.argmax(1) != b.argmax(1)).double().mean())


def jensen_shannon(x: Tensor, y: Tensor) -> float:
    """Return the mean Jensen–Shannon divergence of two networks' probabilities, in bits, between 0 and 1.

    It is H((p + q) / 2) - (H(p) + H(q)) / 2 of the softmax p and q of the outputs ``x`` and ``y``, ``(n, classes)``.
    Raises ``DataError`` if they are of other classes or samples.
    """
    p, q = (of.double().softmax(1) for of in _read("jensen_shannon", x, y))
    return float((_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).mean().clamp(0, 1))


def _read(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.flatten(1), y.flatten(1)
    if len(a) != len(b):
        raise DataError(f"{name}: outputs of {len(a)} and {len(b)} samples cannot be compared")
    if a.shape != b.shape:
        raise DataError(f"{name}: outputs of {a.shape[1]} and {b.shape[1]} classes cannot be compared")
    return a, b


def _entropy(p: Tensor) -> Tensor:
    bits: Tensor = -torch.special.xlogy(p, p).sum(1) / log(2)
    return bits

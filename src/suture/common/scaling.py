"""Powers of two by which activations are scaled where their squares, or squares of those, would leave float32.

Scaling by a power of two rounds nothing, so values of ordinary size keep their bits.
"""

from math import frexp

import torch
from torch import Tensor

SAFE = 30  #: powers of two that values may be from 1: their products' products then fit into float32
LARGEST = 120  #: powers of two by which values are scaled; a float32 holds no more


def power_near(largest: float) -> float:
    """Return the power of two near a magnitude that is not within ``SAFE`` of 1; else, and if it is not finite, 1."""
    power = frexp(largest)[1]
    return 1.0 if abs(power) <= SAFE else 2.0 ** max(-LARGEST, min(LARGEST, power))


def unit_of(values: Tensor) -> float:
    """Return the power of two by which to divide values before their squares are added up."""
    low, high = torch.aminmax(values.detach())
    return power_near(max(abs(float(low)), abs(float(high))))


def without_constant(std: Tensor, share: float) -> Tensor:
    """Return deviations to divide by: those below a share of the largest are of features that count as constant."""
    return torch.where(std > share * std.max(), std, power_near(float(std.max())))


def deviation(rows: Tensor) -> Tensor:
    """Return the standard deviation of every feature, over the first axis, of values of any magnitude."""
    unit = unit_of(rows)
    return (rows / unit if unit != 1 else rows).std(0, correction=0) * unit

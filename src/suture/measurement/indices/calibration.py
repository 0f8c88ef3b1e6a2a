"""Calibration of an index: its value by chance, a p-value, and an interval.

*Chance* is the mean of an index over permutations: the images of one layer are put in another order, so that the
correspondence between the two layers is lost, and each layer by itself stays the same (Gröger, Wen & Brbić 2026, arXiv
2602.14486). The *calibrated* value is (value - chance) / (best - chance), where best is the value of two equal layers:
it is 1 for equal layers and 0 at chance, for a distance too.

*p* is the share of permutations, the true order among them, in which the most striking of all pairs of layers is as
striking as this one, so that 5 % of all *tables* without any link have a pair with p ≤ 0.05 (Westfall & Young 1993,
maxT). Every pair is measured by its own mean and standard deviation over the permutations, the true order among them,
because biased indices have another chance level at every pair. The same permutations serve all pairs.

*Which permutations*: those of a random cyclic group, all shifts of the images along a circle on which they were put in
a random order, and of as many of its random cosets as give the permutations that are asked for. Under the null any
element is as likely as any other to be the true order, so p is exact (Hemerik & Goeman 2018, theorem 2). An index that
is a sum over pairs of images, Σ Aᵢⱼ Bᵢⱼ, is a circular correlation along each diagonal; so a Fourier transform along
the diagonals gives all shifts and all pairs of layers at once. 199 permutations are the least; 2,000 images give 1,999.
An index that is not such a sum is computed anew for each of as many random permutations as are asked for.

*Intervals* are 95 % over images, of the calibrated value, chance being held. A bootstrap would draw images twice, and
two of the same are as alike as can be to any kernel, so that it is biased upwards. Here images are left out, never
doubled: one at a time and to first order if an index is a sum over pairs (the infinitesimal jackknife: Efron 1982,
chapter 6), a twentieth of all at a time if it is not (the jackknife of groups). The value stays in the middle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from suture.common.seeds import generator

PERMUTATIONS = 199  #: at least, so that p can be 0.005
GROUPS = 20  #: of images that are left out in turn, where an index is computed anew for each
_SERIES = 2**17  #: numbers of a matrix that are transformed at a time
_EVEN = 1e-12  #: standard deviations over permutations that are mere rounding


@dataclass(frozen=True, eq=False)
class Null:
    """An index at all pairs of layers, and its values after permutations; all in float64 on the CPU."""

    values: Tensor  #: (rows, columns)
    permuted: Tensor  #: (permutations, rows, columns), without the true order
    errors: Tensor  #: (rows, columns): standard errors over images
    freedom: int  #: degrees of freedom of the standard errors


@dataclass(frozen=True, eq=False)
class Calibration:
    """The calibration of a ``Null``: tensors (rows, columns), ``low`` and ``high`` of the calibrated value."""

    chance: Tensor
    calibrated: Tensor
    p: Tensor
    low: Tensor
    high: Tensor


def calibrate(null: Null, best: float, distance: bool) -> Calibration:
    """Calibrate an index whose value is ``best`` for layers that are the same; pairs that are nan stay so."""
    permuted, values = null.permuted, null.values
    chance = permuted.mean(0)
    room = best - chance
    empty = room.abs() <= 1e-9  # chance is all there is, as for CCA of more features than samples

    def scaled(x: Tensor) -> Tensor:
        return torch.where(empty, 0.0, (x - chance) / torch.where(empty, 1.0, room))

    every = torch.cat([values.unsqueeze(0), permuted])
    spread = every.std(0)
    striking = (every - every.mean(0)) / torch.where(spread > _EVEN, spread, torch.inf)
    striking = -striking if distance else striking
    highest = striking.nan_to_num(-torch.inf).flatten(1).amax(1)
    p = (highest[:, None, None] >= striking[0] - 1e-9).double().mean(0)  # ties of rounding count
    half = float(stdtrit(null.freedom, 0.975)) * null.errors
    ends = torch.stack([scaled(values - half), scaled(values + half)])
    return Calibration(
        chance,
        scaled(values),
        torch.where(striking[0].isnan(), torch.nan, p),
        ends.amin(0),
        ends.amax(0).clamp(max=1.0),
    )


def random_orders(images: int, count: int) -> list[Tensor]:
    """Return as many random orders of the images, the same for all layers and indices."""
    random = generator("calibration", images)
    return [torch.randperm(images, generator=random) for _ in range(count)]


def correlate(
    rows: Sequence[Tensor], columns: Sequence[Tensor], permutations: int, positions: int, directed: bool
) -> Tensor:
    """Return Σ Aᵢⱼ B₍πᵢ₎₍πⱼ₎ of all pairs of matrices under permutations π, the true order first.

    Matrices are ``(samples, samples)``, or several such blocks along the diagonal ``(blocks, samples, samples)``, in
    each of which samples are shifted by themselves; an image has ``positions`` samples that stay together. ``directed``
    are matrices that are not symmetric. Returns ``(permutations + 1 or more, rows, columns)``.
    """
    samples = rows[0].shape[-1]
    images = samples // positions
    cosets = -(-(permutations + 1) // images)
    circle, *others = random_orders(images, cosets)
    found = [_shifts(rows, columns, circle, circle, positions, directed)]
    found += [_shifts(rows, columns, circle, order, positions, directed) for order in others]
    return torch.cat(found)


def _shifts(
    rows: Sequence[Tensor], columns: Sequence[Tensor], order: Tensor, other: Tensor, positions: int, directed: bool
) -> Tensor:
    """Return the sums for all shifts of the columns' images, ``(images, rows, columns)``."""
    images, within = len(order), torch.arange(positions)
    samples = images * positions
    total = torch.zeros(images // 2 + 1, len(rows), len(columns), dtype=torch.complex128, device=rows[0].device)
    last = images - 1 if directed else images // 2  # diagonals d and images - d of a symmetric matrix are the same
    at_a_time = max(1, _SERIES // (images * positions**2))
    for start in range(0, last + 1, at_a_time):
        diagonals = torch.arange(start, min(start + at_a_time, last + 1))
        there = (torch.arange(images) + diagonals.unsqueeze(1)) % images  # (diagonals, images)
        halves = torch.where((diagonals == 0) | (2 * diagonals == images), 1.0, 2.0) if not directed else None
        spectra = []
        for side, places in ((rows, order), (columns, other)):
            down = places.expand(len(diagonals), -1)[:, None, None] * positions + within[:, None, None]
            across = places[there][:, None, None] * positions + within[:, None]
            at = (down * samples + across).flatten(0, 2).to(total.device)  # (diagonals × positions², images)
            blocks = [block.reshape(-1) for m in side for block in m.reshape(-1, samples, samples)]
            series = torch.stack([torch.take(block, at) for block in blocks])
            spectrum = torch.fft.rfft(series.double())
            spectra.append(spectrum.unflatten(0, (len(side), -1)).flatten(1, 2).permute(2, 0, 1))
        left, right = spectra
        if halves is not None:
            times = halves.repeat_interleave(positions**2).repeat(left.shape[2] // (len(halves) * positions**2))
            left = left * times.to(total.device)
        total += left.conj() @ right.transpose(1, 2)
    sums: Tensor = torch.fft.irfft(total, images, dim=0)
    return sums.cpu()


def influence_errors(
    rows: Sequence[Tensor], columns: Sequence[Tensor], values: Tensor, positions: int, directed: bool
) -> Tensor:
    """Return the standard errors of Σ AᵢⱼBᵢⱼ / (‖A‖ ‖B‖) over images, for matrices of length 1, ``(rows, columns)``."""
    sides = [list(rows), list(columns)]
    shared, own = _sums_by_sample(*sides), [[m.square().sum(-1).flatten() for m in side] for side in sides]
    if directed:  # what a pair adds is owed to the second of it, too
        turned = [[m.transpose(-1, -2) for m in side] for side in sides]
        shared = (shared + _sums_by_sample(*turned)) / 2
        own = [
            [(x + m.square().sum(-1).flatten()) / 2 for x, m in zip(*of, strict=True)]
            for of in zip(own, turned, strict=True)
        ]
    left, right = (torch.stack(side, 1) for side in own)
    effects = 2 * shared - values.to(shared.device) * (left.unsqueeze(2) + right.unsqueeze(1))
    effects = effects.reshape(-1, positions, *values.shape).sum(1)
    images = len(effects)
    errors: Tensor = ((images - 1) / images * effects.square().sum(0)).sqrt()
    return errors.cpu()


def _sums_by_sample(rows: list[Tensor], columns: list[Tensor]) -> Tensor:
    """Return Σⱼ AᵢⱼBᵢⱼ of all pairs of matrices, ``(samples, rows, columns)``."""
    flat = [[m.reshape(-1, m.shape[-1]) for m in side] for side in (rows, columns)]
    samples, at_a_time = len(flat[0][0]), max(1, _SERIES // flat[0][0].shape[1])
    parts = []
    for start in range(0, samples, at_a_time):
        left, right = (torch.stack([m[start : start + at_a_time] for m in side], 1) for side in flat)
        parts.append(left @ right.transpose(1, 2))
    return torch.cat(parts)

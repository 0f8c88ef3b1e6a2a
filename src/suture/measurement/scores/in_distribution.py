"""Whether the receiver's inputs at its cut look like those that it saw in training.

A stitch that is trained on the task may send the receiver activations that it never had and yet be right: task-loss
matching "tends to create out-of-distribution representations" (Balogh & Jelasity 2024, arXiv:2412.11299). A low penalty
then shows the abilities of the receiver's layers, not the content of the sender's representation. So the table reports
beside the penalty how far stitched activations can be told apart from the receiver's own.

Both are reduced to their features: means over positions or tokens. On the *reference*, the receiver's own on images of
the validation data (of the fit data, if those are few), two distances are learned that need no training: Mahalanobis
with a covariance shrunk by Ledoit & Wolf 2004 (Lee et al. 2018, arXiv:1807.03888, without the classes), and that to the
``NEIGHBOURS``-th nearest one of the reference (Sun et al. 2022, arXiv:2204.06507, without dividing by the norm, since a
stitch may change that). Features count in units of their deviation over the reference; one that never varies there, in
that of a typical feature.

Then the stitched network and the receiver see the same held-out images, and the AUROC is the probability that the
stitched activation of one image is farther than the receiver's own of another: 0.5 if they are not told apart, 1 if all
are farther, 0 if all are nearer, as where every image of a class is sent to the class's centre. ``APART`` is near the
AUROC that a shift of the distances by one of their standard deviations gives, Φ(1/√2) = 0.76.

Convention. The interval is DeLong's, with images paired: each image moves the AUROC by the place of its stitched
activation among the receiver's own plus that of its own among the stitched (DeLong, DeLong & Clarke-Pearson 1988,
Biometrics 44:837; Obuchowski 1997 for pairs), symmetric in log odds. It is over test images; the reference is given.
Where hardly an image varies, near 0 and 1, it reaches at least as far as Clopper and Pearson's for so many images that
all agree.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from suture.measurement.scores.intervals import Z_95, Estimate, Floats, mean_interval

if TYPE_CHECKING:  # tables read the constants, and need not wait for torch
    from torch import Tensor

REFERENCE = 1024  #: training images on which the distances are learned, at most
NEIGHBOURS = 10
APART = 0.75  #: an AUROC beyond which, or below 1 − which, stitched activations are told apart; the text above says why
MEASURES = ("mahalanobis", "knn")
_CONSTANT = 1e-6  #: of the largest deviation, below which a feature counts as constant


def tell_apart(reference: "Tensor", own: "Tensor", stitched: "Tensor") -> dict[str, Estimate]:
    """Return how well stitched features are told apart from the receiver's own, as an AUROC for each measure.

    ``reference`` is ``(r, features)``; ``own`` and ``stitched`` are ``(n, features)``, of the same images. Nothing if
    the reference does not vary, or there are fewer than two images.
    """
    import torch

    reference, own, stitched = (features.detach().cpu().double() for features in (reference, own, stitched))
    mean, spread = reference.mean(0), reference.std(0, correction=0)
    if min(len(reference), len(own)) < 2 or not spread.any():
        return {}
    unit = torch.where(spread > _CONSTANT * spread.max(), spread, spread.square().mean().sqrt())
    reference, both = (reference - mean) / unit, (torch.cat([own, stitched]) - mean) / unit
    distances = zip(MEASURES, (mahalanobis(reference, both), to_neighbours(reference, both)), strict=True)
    return {name: auroc(found[: len(own)], found[len(own) :]) for name, found in distances}


def mahalanobis(reference: "Tensor", queries: "Tensor") -> Floats:
    """Return the squared Mahalanobis distances ``(m,)`` of rows to a centred reference, by its shrunk covariance."""
    import torch

    n, d = reference.shape
    wide = d > n  # then the inverse is taken through the products of samples (Woodbury), of which there are fewer
    products = reference @ reference.T if wide else reference.T @ reference
    scale, square = products.trace() / (n * d), products.square().sum() / n**2
    # Ledoit & Wolf 2004, lemmas 3.2 to 3.4: how far the covariance is from a multiple of the unit matrix, and how much
    # of that is chance.
    far = square / d - scale.square()
    chance = (reference.square().sum(1).square().sum() / n - square) / (n * d)
    shrunk = float((chance / far).clamp(1e-6, 1)) if far > 0 else 1.0
    floor, eye = shrunk * scale, torch.eye(len(products), dtype=products.dtype)
    if not wide:
        factor = torch.linalg.cholesky(floor * eye + (1 - shrunk) * products / n)
        found = torch.linalg.solve_triangular(factor, queries.T, upper=False).square().sum(0)
    else:
        factor = torch.linalg.cholesky(n * floor * eye + (1 - shrunk) * products)
        inside = torch.linalg.solve_triangular(factor, reference @ queries.T, upper=False).square().sum(0)
        found = (queries.square().sum(1) - (1 - shrunk) * inside) / floor
    return np.asarray(found.numpy(), np.float64)


def to_neighbours(reference: "Tensor", queries: "Tensor") -> Floats:
    """Return the squared distance ``(m,)`` of each row to the ``NEIGHBOURS``-th nearest row of the reference."""
    nearest = min(NEIGHBOURS, len(reference)) - 1
    squares = reference.square().sum(1).addmm(queries, reference.T, alpha=-2)
    found = np.partition(squares.numpy(), nearest, axis=1)[:, nearest] + queries.square().sum(1).numpy()
    return np.asarray(found, np.float64)


def auroc(own: Floats, stitched: Floats) -> Estimate:
    """Return P(stitched > own) + P(equal) / 2 with its 95 % interval; both are ``(n,)``, of the same images."""
    below, above = _places(own, stitched), 1 - _places(stitched, own)
    value, n = float(below.mean()), len(own)
    edge = 1 - mean_interval(np.ones(n), seed=0)[0]
    spread = value * (1 - value)
    half = Z_95 * float((below + above).std(ddof=1)) / math.sqrt(n) / spread if spread else 0.0
    low, high = expit(logit(value) + np.array([-half, half])).tolist()
    low, high = (min(low, 1 - edge), 1.0) if value > 1 - edge else (low, high)
    low, high = (0.0, max(high, edge)) if value < edge else (low, high)
    return Estimate(value, low, high, "raw", n, "delong")


def _places(among: Floats, values: Floats) -> Floats:
    """Return the share of numbers that lie below each value, equal ones counted half."""
    ordered = np.sort(among)
    found = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(found / (2 * len(among)), np.float64)

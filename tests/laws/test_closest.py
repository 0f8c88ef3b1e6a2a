"""The law of the closed form: of the whole family it is the member closest to the receiver's own activations.

The receiver's features here are no member's of the sender's, so that there is something to lose. Nothing is downhill
from the closed form (autograd), no perturbed member is closer, and what scipy, numpy and brute force find is the same.
All of it in float64.
"""

import copy
import itertools
import math

import numpy as np
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from loops import each, examples
from problems import JOINTS, affine, built, matching, named, rows
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Linear,
    LowRank,
    Orthogonal,
    Permutation,
    StridedConv,
    TokensToTokens,
)
from suture.core.stitches.base import is_affine
from suture.fits import LeastSquares

EXACT = LeastSquares(ridges=(1e-14,), rescale=False)
#: Those of which the closed form is the best member; the second map of one is fitted after its first.
CLOSEST = [joint for joint in JOINTS if joint[0] != ConvLinear(channels=2) and is_affine(joint[0])]
SMOOTH = [joint for joint in CLOSEST if not isinstance(joint[0], Permutation)]
seeds = st.integers(0, 2**20)


def pair(sender, receiver, seed=0, n=150) -> tuple[Tensor, Tensor]:
    """Correlated features of a sender, shifted, and of a receiver that they predict in part; in float64."""
    random = torch.Generator().manual_seed(seed)
    x, y = (torch.randn((n, math.prod(s)), generator=random, dtype=torch.float64) for s in (sender, receiver))
    x = x @ torch.randn(x.shape[1], x.shape[1], generator=random, dtype=torch.float64) / x.shape[1] ** 0.5
    y = y + x @ torch.randn(x.shape[1], y.shape[1], generator=random, dtype=torch.float64) + 0.5
    return (x + 1).reshape(n, *sender), y.reshape(n, *receiver)


def closest(family, x: Tensor, y: Tensor) -> nn.Module:
    stitch = built(family, tuple(x.shape[1:]), tuple(y.shape[1:])).double()
    EXACT.fit(matching(family, x, y), stitch)
    return stitch.eval()


def error(stitch: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (stitch(x) - y).square().mean()


def free(family, stitch: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters; without the shift before a padded convolution, which the closed form fixes at the mean."""
    fixed = {"0.bias"} if isinstance(family, Conv) and family.batchnorm and family.kernel > 1 else set()
    return {name: value for name, value in stitch.named_parameters() if name not in fixed}


def steepness(family, stitch: nn.Module, x: Tensor, y: Tensor) -> float:
    """The largest change of the error, relative to it, for a relative change of a parameter."""
    parameters = free(family, stitch)
    loss = error(stitch, x, y)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    slopes = [g.abs() * (1 + p.detach().abs()) for g, p in zip(gradients, parameters.values(), strict=True)]
    return max(float(slope.max()) for slope in slopes) / float(loss.detach())


@each(("family", "sender", "receiver"), SMOOTH, ids=named)
def test_from_the_closed_form_nothing_is_downhill(family, sender, receiver):
    x, y = pair(sender, receiver)
    assert steepness(family, closest(family, x, y), x, y) < 1e-7
    assert steepness(family, built(family, sender, receiver).double().eval(), x, y) > 1e-3


@each(("family", "sender", "receiver"), CLOSEST, ids=named, few=4)
def test_no_other_member_is_closer(family, sender, receiver):
    """A member with perturbed parameters is another one; so is one drawn at random."""
    x, y = pair(sender, receiver)
    best = closest(family, x, y)
    with torch.no_grad():
        least = float(error(best, x, y))
        for seed, size in enumerate([1e-3] * 5 + [0.1] * 5 + [1.0] * 5):
            other, random = copy.deepcopy(best), torch.Generator().manual_seed(seed)
            for parameter in free(family, other).values():
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                parameter.add_(size * noise * (parameter.abs() + 0.1))
            assert float(error(other, x, y)) >= least
            fresh = built(family, sender, receiver, seed).double().eval()
            assert float(error(fresh, x, y)) >= least


# --- by other means ---------------------------------------------------------------------------------------------------


@settings(max_examples=examples(20))
@given(st.integers(1, 8), seeds)
def test_the_closest_rotation_is_scipys(size, seed):
    x, y = (t.numpy() for t in pair((size,), (size,), seed))
    wanted, _ = scipy.linalg.orthogonal_procrustes(x - x.mean(0), y - y.mean(0))
    weight, bias = affine(closest(Orthogonal(), torch.from_numpy(x), torch.from_numpy(y)), size)
    np.testing.assert_allclose(weight, wanted.T, atol=1e-9)
    np.testing.assert_allclose(bias, y.mean(0) - x.mean(0) @ wanted, atol=1e-9)


@settings(max_examples=examples(20))
@given(st.integers(1, 6), st.sampled_from([-3.0, 0.0, 3.0]), seeds)
def test_the_closest_permutation_is_the_best_of_all(size, mean, seed):
    """All of them, tried; nothing is centred, since a permutation cannot shift."""
    x, y = pair((size,), (size,), seed, n=30)
    x, y = x + mean * torch.arange(size), y + torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    orders = list(itertools.permutations(range(size)))
    errors = [float((x[:, list(order)] - y).square().sum()) for order in orders]
    best = orders[int(np.argmin(errors))]
    weight, _ = affine(closest(Permutation(), x, y), size)
    assert np.array_equal(weight, np.eye(size)[list(best)])


@settings(max_examples=examples(20))
@given(st.integers(2, 7), st.integers(2, 7), st.data(), seeds)
def test_the_closest_map_of_a_rank_is_that_of_whitened_features(inputs, outputs, data, seed):
    """Whiten the sender's features, truncate the regression's singular values, and undo the whitening."""
    rank = data.draw(st.integers(1, min(inputs, outputs)))
    x, y = (t.numpy() for t in pair((inputs,), (outputs,), seed))
    a, b = x - x.mean(0), y - y.mean(0)
    root = scipy.linalg.sqrtm(a.T @ a).real
    left, values, right = np.linalg.svd(np.linalg.solve(root, a.T @ b).T, full_matrices=False)
    wanted = (left[:, :rank] * values[:rank]) @ right[:rank] @ np.linalg.inv(root)
    weight, _ = affine(closest(LowRank(rank), torch.from_numpy(x), torch.from_numpy(y)), inputs)
    np.testing.assert_allclose(weight, wanted, atol=1e-7 * np.abs(wanted).max())
    assert np.linalg.matrix_rank(weight, tol=1e-7 * np.abs(weight).max()) <= rank


@each("ridge", [1e-3, 0.1, 1.0])
def test_the_ridge_of_a_low_rank_is_as_many_more_rows(ridge):
    """Ridge regression is regression with rows that say: no feature, nothing."""
    x, y = pair((5,), (4,))
    a, b = x - x.mean(0), y - y.mean(0)
    size = (ridge * float(a.square().mean()) * len(a)) ** 0.5
    more = torch.cat([a, size * torch.eye(5)]), torch.cat([b, torch.zeros(5, 4)])
    mirrored = [torch.cat([part, -part]) for part in more]  # so that the means stay 0
    wanted, _ = affine(closest(LowRank(2), *mirrored), 5)
    stitch = built(LowRank(2), (5,), (4,)).double()
    LeastSquares(ridges=(ridge,), rescale=False).fit(matching(LowRank(2), x, y), stitch)
    np.testing.assert_allclose(affine(stitch, 5)[0], wanted, atol=1e-7)


@each("shape", [(6,), (3, 6), (6, 2, 3)], ids=named)
def test_the_closest_scales_are_numpys_line_through_every_feature(shape):
    x, y = pair(shape, shape)
    weight, bias = affine(closest(Diagonal(), x, y), 6)
    lines = [np.polyfit(a, b, 1) for a, b in zip(rows(x).T, rows(y).T, strict=True)]
    np.testing.assert_allclose(np.diag(weight), [slope for slope, _ in lines], atol=1e-9)
    np.testing.assert_allclose(bias, [shift for _, shift in lines], atol=1e-9)


def regression(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What numpy predicts of rows ``y`` from rows ``x`` and a constant."""
    full = np.hstack([x, np.ones((len(x), 1))])
    return full @ np.linalg.lstsq(full, y, rcond=None)[0]


def given_by(stitch: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return stitch(x).numpy()


@each(("batchnorm", "kernel"), [(False, 3), (True, 3), (False, 5)])
def test_the_closest_convolution_is_numpys_regression_on_every_pixel_and_those_around_it(batchnorm, kernel):
    x, y = pair((3, 4, 5), (2, 4, 5))
    stitch = closest(Conv(kernel, batchnorm=batchnorm), x, y)
    given, reach = x.numpy(), kernel // 2
    if batchnorm:
        given = given - given.mean((0, 2, 3))[:, None, None]
    wide = np.pad(given, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    pixels = [(n, i, j) for n in range(len(x)) for i in range(4) for j in range(5)]
    patches = np.stack([wide[n, :, i : i + kernel, j : j + kernel].ravel() for n, i, j in pixels])
    wanted = regression(patches, np.stack([y.numpy()[n, :, i, j] for n, i, j in pixels]))
    found = given_by(stitch, x)
    np.testing.assert_allclose(np.stack([found[n, :, i, j] for n, i, j in pixels]), wanted, atol=1e-8)


def test_the_closest_strided_convolution_is_numpys_regression_on_blocks():
    x, y = pair((3, 4, 6), (2, 2, 2))
    stitch = closest(StridedConv(), x, y)
    places = [(n, i, j) for n in range(len(x)) for i in range(2) for j in range(2)]
    blocks = np.stack([x.numpy()[n, :, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3].ravel() for n, i, j in places])
    wanted = regression(blocks, np.stack([y.numpy()[n, :, i, j] for n, i, j in places]))
    found = given_by(stitch, x)
    np.testing.assert_allclose(np.stack([found[n, :, i, j] for n, i, j in places]), wanted, atol=1e-8)


def test_the_closest_map_of_tokens_is_numpys_on_tokens_and_another_on_the_class_token():
    x, y = pair((5, 3), (5, 4))
    found = given_by(closest(TokensToTokens(), x, y), x)
    np.testing.assert_allclose(found[:, 0], regression(x[:, 0].numpy(), y[:, 0].numpy()), atol=1e-8)
    wanted = regression(x[:, 1:].reshape(-1, 3).numpy(), y[:, 1:].reshape(-1, 4).numpy())
    np.testing.assert_allclose(found[:, 1:].reshape(-1, 4), wanted, atol=1e-8)


@each("shape", [(5,), (3, 5), (5, 3, 2)], ids=named)
def test_the_wider_the_family_the_closer(shape):
    """Error of each family's best member: permutations, rotations, linear; and of every rank less than of the last."""
    x, y = pair(shape, shape)
    whole = Conv() if len(shape) == 3 else Linear()
    chains = [
        [Permutation(), Orthogonal(), whole, FullLinear()],
        [Diagonal(), whole],
        [*(LowRank(rank) for rank in (1, 2, 3, 4, 5)), whole],
        [Conv(1), Conv(3), Conv(5)] if len(shape) == 3 else [whole],
    ]
    with torch.no_grad():
        for chain in chains:
            errors = [float(error(closest(family, x, y), x, y)) for family in chain]
            assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(errors)), errors
            assert len(errors) == 1 or errors[-1] < errors[0]

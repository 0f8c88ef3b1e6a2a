"""The law of the families: each reaches what it can represent, has no better member, and is never left.

A member of the family is planted by hand: numpy matrices applied to pixels, patches and tokens that are written out
here, never by the library's stitches. From features that are white, or correlated, shifted and badly scaled, the closed
form gives that member back. Where there is noise, nothing in the family is better: its gradient is zero there, and
scipy, brute force over all permutations, and regressions by numpy agree. All of it in float64.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from loops import each, examples
from problems import affine, built, matching, named
from suture.core.network.layouts import TokenShape
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    UpsampledConv,
)
from suture.core.stitches.base import Shape, Stitch
from suture.fits import LeastSquares

EXACT = LeastSquares(ridges=(1e-15,), rescale=False)
KINDS = ["white", "correlated", "shifted", "badly scaled"]


def features(shape: Shape, kind: str, seed: int, n: int) -> Tensor:
    """What a sender may send, in float64; features are the channels of maps, else the last dimension."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn((n, *shape), generator=random, dtype=torch.float64)
    x = x.movedim(1, -1) if len(shape) == 3 else x
    size = x.shape[-1]
    if kind == "correlated":
        x = x @ (torch.randn(size, size, generator=random, dtype=torch.float64) + torch.eye(size))
    if kind == "shifted":
        x = x + 30 * torch.randn(size, generator=random, dtype=torch.float64)
    if kind == "badly scaled":
        x = x * torch.logspace(-2, 2, size, dtype=torch.float64)[torch.randperm(size, generator=random)]
    return x.movedim(-1, 1).contiguous() if len(shape) == 3 else x


# --- members of the families, by hand ---------------------------------------------------------------------------------


def of_features(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight`` (out, in) for the features of every position."""
    if x.ndim == 4:
        return torch.einsum("oc,nchw->nohw", weight, x) + bias[:, None, None]
    return torch.einsum("oc,n...c->n...o", weight, x) + bias


def of_patches(x: Tensor, weight: Tensor, bias: Tensor, kernel: int, padding: Tensor) -> Tensor:
    """A convolution by loops over its taps, of maps with ``padding`` (channels,) beyond the border."""
    n, channels, height, width = x.shape
    reach = kernel // 2
    wide = padding[None, :, None, None].repeat(n, 1, height + 2 * reach, width + 2 * reach)
    wide[:, :, reach : reach + height, reach : reach + width] = x
    taps = weight.reshape(-1, channels, kernel, kernel)
    out = bias[None, :, None, None].repeat(n, 1, height, width)
    for i, j in itertools.product(range(kernel), repeat=2):
        out = out + torch.einsum("oc,nchw->nohw", taps[:, :, i, j], wide[:, :, i : i + height, j : j + width])
    return out


def nearest(maps: Tensor, height: int, width: int) -> Tensor:
    """Nearest up-sampling, pixel by pixel: pixel i of H is pixel ⌊i · h / H⌋ of h."""
    down = [i * maps.shape[2] // height for i in range(height)]
    across = [j * maps.shape[3] // width for j in range(width)]
    return maps[:, :, down][:, :, :, across]


def regridded(maps: Tensor, weight: Tensor, bias: Tensor, height: int, width: int) -> Tensor:
    """Blocks of the up-sampled map, each one pixel of the result."""
    tall, broad = -(-maps.shape[2] // height), -(-maps.shape[3] // width)
    large = nearest(maps, tall * height, broad * width)
    out = torch.empty(len(maps), len(bias), height, width, dtype=maps.dtype)
    for i, j in itertools.product(range(height), range(width)):
        block = large[:, :, i * tall : (i + 1) * tall, j * broad : (j + 1) * broad]
        out[:, :, i, j] = block.flatten(1) @ weight.T + bias
    return out


#: Sender, receiver, and how the sender is seen: grid, how many prefix tokens come first; the same for the receiver.
GRIDS: list[tuple[Stitch, Shape, Shape, tuple[int, int], int, tuple[int, int], int]] = [
    (StridedConv(), (3, 4, 4), (4, 2, 2), (4, 4), False, (2, 2), False),
    (StridedConv(), (2, 7, 8), (3, 4, 3), (7, 8), False, (4, 3), False),
    (StridedConv(batchnorm=True), (3, 5, 2), (4, 4, 3), (5, 2), False, (4, 3), False),
    (UpsampledConv(), (3, 2, 2), (4, 4, 4), (2, 2), False, (4, 4), False),
    (UpsampledConv(batchnorm=True), (3, 4, 3), (4, 7, 3), (4, 3), False, (7, 3), False),
    (UpsampledConv(), (5,), (4, 3, 2), (1, 1), False, (3, 2), False),
    (MapsToTokens(), (3, 5, 5), (4, 6), (5, 5), False, (2, 2), False),
    (MapsToTokens(), (3, 4, 4), (5, 6), (4, 4), False, (2, 2), True),
    (MapsToTokens(), (3, 2, 3), (6, 4), (2, 3), False, (2, 3), False),
    (MapsToTokens(), (3, 2, 3), (7, 4), (2, 3), False, (2, 3), True),
    (MapsToTokens(), (3,), (5, 4), (1, 1), False, (2, 2), True),
    (TokensToMaps(), (16, 3), (4, 2, 2), (4, 4), False, (2, 2), False),
    (TokensToMaps(), (17, 3), (4, 2, 2), (4, 4), True, (2, 2), False),
    (TokensToMaps(), (6, 3), (4, 2, 3), (2, 3), False, (2, 3), False),
    (TokensToMaps(), (7, 3), (4, 2, 3), (2, 3), True, (2, 3), False),
    (TokensToTokens(), (17, 3), (10, 4), (4, 4), True, (3, 3), True),
    (TokensToTokens(), (17, 3), (9, 4), (4, 4), True, (3, 3), False),
    (TokensToTokens(), (16, 3), (10, 4), (4, 4), False, (3, 3), True),
    (TokensToTokens(), (16, 3), (9, 4), (4, 4), False, (3, 3), False),
    (TokensToTokens(), (5, 3), (5, 4), (2, 2), True, (2, 2), True),
    (TokensToTokens(), (7, 3), (3, 4), (1, 7), False, (1, 3), False),
    (TokensToTokens(), (6, 3), (5, 4), (1, 6), False, (2, 2), True),
    *(
        (family, TokenShape(sender, before, grid), TokenShape(receiver, after, onto), grid, before, onto, after)
        for family, sender, before, grid, receiver, after, onto in (
            (TokensToTokens(), (21, 3), 5, (4, 4), (21, 4), 5, (4, 4)),
            (TokensToTokens(), (13, 3), 1, (2, 6), (6, 4), 4, (1, 2)),  # not 1 + 2 × 2 of 2 × 3
            (TokensToTokens(), (15, 3), 3, (2, 6), (13, 4), 1, (3, 4)),
            (TokensToTokens(), (16, 3), 4, (3, 4), (16, 4), 0, (2, 8)),
            (TokensToTokens(), (16, 3), 0, (2, 8), (9, 4), 5, (2, 2)),
        )
    ),
    (MapsToTokens(), (3, 4, 4), TokenShape((9, 4), 3, (2, 3)), (4, 4), 0, (2, 3), 3),
    (TokensToMaps(), TokenShape((16, 3), 4, (2, 6)), (4, 3, 4), (2, 6), 4, (3, 4), 0),
    # A line of as many pixels as the grid has: one by one.
    (MapsToTokens(), (3, 1, 6), TokenShape((7, 4), 1, (2, 3)), (1, 6), 0, (1, 6), 1),
    (TokensToMaps(), TokenShape((8, 3), 2, (2, 3)), (4, 1, 6), (1, 6), 2, (1, 6), 0),
    (TokensToMaps(), TokenShape((6, 3), 0, (3, 2)), (4, 6, 1), (6, 1), 0, (6, 1), 0),
]


def of_grids(x: Tensor, row, random: torch.Generator) -> Tensor:
    """A random member of a family between grids, as its description has it, applied to ``x``."""
    _, sender, receiver, (high, wide), token_in, (height, width), token_out = row
    first = x[:, 0] if token_in else None
    if len(sender) == 2:
        patches = x[:, token_in:]
        maps = torch.stack([patches[:, i * wide : (i + 1) * wide] for i in range(high)], 1).permute(0, 3, 1, 2)
    else:
        maps = x.reshape(len(x), -1, high, wide)
    mean = maps.mean((2, 3))
    if token_in and not token_out:
        maps = torch.cat([maps, first[:, :, None, None].repeat(1, 1, high, wide)], 1)
    channels = receiver[0] if len(receiver) == 3 else receiver[1]
    block = maps.shape[1] * -(-high // height) * -(-wide // width)
    out = regridded(maps, draw(channels, block, random), draw(channels, 1, random)[:, 0], height, width)
    if len(receiver) == 3:
        return out
    tokens = torch.stack([out[:, :, i, j] for i in range(height) for j in range(width)], 1)
    prefix = []
    for i in range(token_out):
        read = mean if first is None else x[:, i] if i < token_in else first
        prefix.append(read @ draw(channels, read.shape[1], random).T + draw(channels, 1, random)[:, 0])
    return torch.cat([*(token[:, None] for token in prefix), tokens], 1)


def draw(outputs: int, inputs: int, random: torch.Generator) -> Tensor:
    return torch.randn(outputs, inputs, generator=random, dtype=torch.float64)


def rotation(n: int, random: torch.Generator) -> Tensor:
    return torch.linalg.qr(draw(n, n, random))[0]


def permutation(n: int, random: torch.Generator) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=random)]


def of_rank(rank: int, outputs: int, inputs: int, random: torch.Generator) -> Tensor:
    return draw(outputs, rank, random) @ draw(rank, inputs, random)


def off(found: Tensor, wanted: Tensor) -> float:
    """The squared distance, as a share of the spread."""
    return float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())


def solved(
    family: Stitch, x: Tensor, y: Tensor, fit: LeastSquares = EXACT, shapes: tuple[Shape, ...] = ()
) -> nn.Module:
    stitch = built(family, *(shapes or (tuple(x.shape[1:]), tuple(y.shape[1:])))).double()
    fit.fit(matching(family, x, y), stitch)
    return stitch.eval()


def check_recovered(
    family: Stitch,
    member: Callable[[Tensor], Tensor],
    shape: Shape,
    kind: str,
    seed: int,
    shapes: tuple[Shape, ...] = (),
) -> None:
    """From data of the member the closed form gives the member: the same outputs for other data."""
    numbers = int(np.prod(shape))
    x = features(shape, kind, seed, n=60 + 3 * numbers)
    known, new = x[:-20], x[-20:]
    stitch = solved(family, known, member(known), shapes=shapes)
    with torch.no_grad():
        assert off(stitch(new), member(new)) < 1e-12
        torch.testing.assert_close(stitch(new[:1]), stitch(new)[:1], rtol=1e-9, atol=1e-9)  # alone, or among others


# --- every family reaches what it can represent -----------------------------------------------------------------------

kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 2**20)


@st.composite
def placed(draw_from, inputs: int, outputs: int) -> tuple[Shape, Shape]:
    """Two shapes of these features with the same positions: vectors, tokens or maps."""
    places = draw_from(st.sampled_from([(), (1,), (3,), (4,), (2, 3), (3, 1)]))
    one = (inputs, *places) if len(places) == 2 else (*places, inputs)
    return one, (outputs, *places) if len(places) == 2 else (*places, outputs)


@settings(max_examples=examples(30))
@given(st.data(), st.integers(1, 7), st.integers(1, 7), kinds, seeds)
def test_a_planted_linear_map_is_found(data, inputs, outputs, kind, seed):
    sender, _ = data.draw(placed(inputs, outputs))
    random = torch.Generator().manual_seed(seed)
    weight, bias = draw(outputs, inputs, random), draw(outputs, 1, random)[:, 0]
    family = Conv(batchnorm=data.draw(st.booleans())) if len(sender) == 3 else Linear()
    check_recovered(family, lambda x: of_features(x, weight, bias), sender, kind, seed)


@settings(max_examples=examples(30))
@given(st.data(), st.integers(2, 7), st.integers(2, 7), kinds, seeds)
def test_a_planted_map_of_low_rank_is_found(data, inputs, outputs, kind, seed):
    sender, _ = data.draw(placed(inputs, outputs))
    rank = data.draw(st.integers(1, min(inputs, outputs)))
    random = torch.Generator().manual_seed(seed)
    weight, bias = of_rank(rank, outputs, inputs, random), draw(outputs, 1, random)[:, 0]
    check_recovered(LowRank(rank), lambda x: of_features(x, weight, bias), sender, kind, seed)


@settings(max_examples=examples(30))
@given(st.data(), st.integers(1, 8), kinds, seeds)
def test_a_planted_rotation_is_found(data, size, kind, seed):
    sender, _ = data.draw(placed(size, size))
    random = torch.Generator().manual_seed(seed)
    weight, bias = rotation(size, random), draw(size, 1, random)[:, 0]
    check_recovered(Orthogonal(), lambda x: of_features(x, weight, bias), sender, kind, seed)


@settings(max_examples=examples(30))
@given(st.data(), st.integers(1, 12), kinds, seeds)
def test_a_planted_permutation_is_found_to_the_last_unit(data, size, kind, seed):
    sender, _ = data.draw(placed(size, size))
    weight = permutation(size, torch.Generator().manual_seed(seed))
    x = features(sender, kind, seed, n=100)
    stitch = solved(Permutation(), x, of_features(x, weight, torch.zeros(size)))
    found, bias = affine(stitch, size)
    assert np.array_equal(found, weight.numpy())
    assert not bias.any()


@settings(max_examples=examples(30))
@given(st.data(), st.integers(1, 8), kinds, seeds)
def test_a_planted_scale_and_shift_are_found(data, size, kind, seed):
    sender, _ = data.draw(placed(size, size))
    random = torch.Generator().manual_seed(seed)
    weight, bias = draw(size, 1, random)[:, 0].diag(), draw(size, 1, random)[:, 0]
    check_recovered(Diagonal(), lambda x: of_features(x, weight, bias), sender, kind, seed)


@settings(max_examples=examples(30))
@given(st.sampled_from([1, 3, 5]), st.booleans(), st.integers(1, 3), st.integers(1, 3), kinds, seeds)
def test_a_planted_convolution_is_found_its_border_included(kernel, batchnorm, inputs, outputs, kind, seed):
    """Behind a BatchNorm the border is padded with the channels' means, here those of the data; else with zeros."""
    random = torch.Generator().manual_seed(seed)
    weight, bias = draw(outputs, inputs * kernel**2, random), draw(outputs, 1, random)[:, 0]
    x = features((inputs, 6, 5), kind, seed, n=80)
    padding = x.mean((0, 2, 3)) if batchnorm else torch.zeros(inputs, dtype=torch.float64)
    stitch = solved(Conv(kernel, batchnorm=batchnorm), x, of_patches(x, weight, bias, kernel, padding))
    new = features((inputs, 6, 5), kind, seed + 1, n=5)
    with torch.no_grad():
        assert off(stitch(new), of_patches(new, weight, bias, kernel, padding)) < 1e-12


@each("kind", KINDS)
@each("row", GRIDS, ids=lambda row: " ".join(map(named, row[:3])))
def test_a_planted_map_between_grids_is_found(row, kind):
    """Patches, up-sampling of any ratio, tokens row by row, prefix tokens: all by hand, above."""

    def member(x: Tensor) -> Tensor:
        return of_grids(x, row, torch.Generator().manual_seed(1))

    check_recovered(row[0], member, row[1], kind, seed=2, shapes=row[1:3])


def test_prefix_tokens_that_map_otherwise_do_not_disturb_the_patches_if_the_layout_is_known():
    """Of 201 tokens each of the first five has a matrix of its own, and varies much more than a patch."""
    random = torch.Generator().manual_seed(0)
    x = features((201, 8), "white", 0, n=200)
    x[:, :5] *= 10
    maps = [draw(8, 8, random) for _ in range(6)]
    y = torch.stack([x[:, i] @ maps[min(i, 5)].T for i in range(201)], 1)
    layout = TokenShape((201, 8), 5, (14, 14))
    error = {}
    for known, family, shapes in ((True, TokensToTokens(), (layout, layout)), (False, Linear(), ())):
        with torch.no_grad():
            error[known] = off(solved(family, x, y, shapes=shapes)(x)[:, 5:], y[:, 5:])
    assert error[True] < 1e-12
    assert error[False] > 0.1


@settings(max_examples=examples(15))
@given(st.sampled_from([(2, 3, 2), (3, 2, 2), (4, 3), (2, 5)]), st.integers(1, 4), kinds, seeds)
def test_a_planted_map_to_a_vector_is_found(sender, outputs, kind, seed):
    weight = draw(outputs, int(np.prod(sender)), torch.Generator().manual_seed(seed))
    check_recovered(ConvLinear(), lambda x: x.flatten(1) @ weight.T + 2, sender, kind, seed)


@settings(max_examples=examples(15))
@given(st.sampled_from([(4, 3, 2), (5, 3)]), st.integers(1, 3), st.integers(2, 4), seeds)
def test_a_planted_map_through_few_channels_to_a_vector_is_found(sender, channels, outputs, seed):
    """What a 1×1 convolution to ``channels`` keeps, and a linear map of all that."""
    random = torch.Generator().manual_seed(seed)
    size = sender[0] if len(sender) == 3 else sender[1]
    narrow = draw(channels, size, random)
    wide = draw(outputs, int(np.prod(sender)) // size * channels, random)

    def member(x: Tensor) -> Tensor:
        return of_features(x, narrow, torch.zeros(channels)).flatten(1) @ wide.T

    check_recovered(ConvLinear(channels=channels), member, sender, "correlated", seed)


SOME = [(5,), (4, 3), (2, 3, 2), (3, 2, 2)]


@settings(max_examples=examples(20))
@given(st.sampled_from(SOME), st.sampled_from(SOME), kinds, seeds)
def test_any_planted_affine_map_of_everything_is_found(sender, receiver, kind, seed):
    random = torch.Generator().manual_seed(seed)
    weight, bias = (draw(int(np.prod(receiver)), size, random) for size in (int(np.prod(sender)), 1))
    member = lambda x: (x.flatten(1) @ weight.T + bias[:, 0]).reshape(len(x), *receiver)  # noqa: E731
    check_recovered(FullLinear(), member, sender, kind, seed)

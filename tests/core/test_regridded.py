"""Stitches between shapes that differ: which pixel and which token reaches which, at any ratio and batch size.

Evidence: torch's own ``interpolate`` and ``conv2d``; gradients, and inputs perturbed one by one; maps of which every
number says where it comes from.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from loops import each, examples
from problems import TINY, built, matching, named
from suture.core.stitches import (
    Conv,
    FullLinear,
    Linear,
    MapsToTokens,
    Orthogonal,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    UpsampledConv,
    stitch_for,
)
from suture.fits import LeastSquares

SHAPES = [
    (3,),
    (5,),
    (4, 3),
    (5, 3),
    (6, 4),
    (1, 4),
    (2, 3),
    (17, 3),
    (10, 4),
    (3, 4, 4),
    (4, 7, 5),
    (2, 1, 1),
    (3, 2, 9),
]


def size_of(shape) -> int:
    return math.prod(shape)


def reach(stitch: nn.Module, sender, receiver) -> Tensor:
    """Which input moves which output: (receiver's numbers, sender's numbers), of an affine stitch."""
    x = torch.zeros(1, *sender, dtype=torch.float64, requires_grad=True)
    out = stitch.double().eval()(x).flatten()
    rows = [torch.autograd.grad(value, x, retain_graph=True)[0].flatten() for value in out]
    return torch.stack(rows) != 0


# --- sizes ------------------------------------------------------------------------------------------------------------


@each(
    ("have", "want", "kernel", "size"),
    [
        ((4, 4), (2, 2), (2, 2), (4, 4)),
        ((8, 8), (2, 4), (4, 2), (8, 8)),
        ((7, 7), (4, 4), (2, 2), (8, 8)),
        ((8, 8), (3, 3), (3, 3), (9, 9)),
        ((5, 5), (4, 4), (2, 2), (8, 8)),
        ((14, 14), (4, 4), (4, 4), (16, 16)),
        ((7, 4), (4, 7), (2, 1), (8, 7)),
        ((4, 6), (7, 2), (1, 3), (7, 6)),
        ((5, 5), (1, 1), (5, 5), (5, 5)),
    ],
)
def test_to_shrink_is_torchs_convolution_of_the_interpolated_map(have, want, kernel, size):
    """Kernel and size by hand: k = ⌈H / h⌉, and the map is brought to k · h."""
    stitch = built(StridedConv(), (3, *have), (4, *want))
    conv = next(module for module in stitch.modules() if isinstance(module, nn.Conv2d))
    assert conv.weight.shape == (4, 3, *kernel)
    x = torch.randn(2, 3, *have)
    wanted = F.conv2d(F.interpolate(x, size, mode="nearest"), conv.weight, conv.bias, stride=kernel)
    assert torch.equal(stitch(x), wanted)
    assert wanted.shape == (2, 4, *want)


@each(("have", "want"), [((4, 4), (8, 8)), ((4, 4), (7, 7)), ((1, 3), (5, 3)), ((3, 2), (4, 9))])
def test_to_grow_is_torchs_1x1_convolution_of_the_interpolated_map(have, want):
    stitch = built(UpsampledConv(), (3, *have), (4, *want))
    conv = next(module for module in stitch.modules() if isinstance(module, nn.Conv2d))
    assert conv.weight.shape == (4, 3, 1, 1)
    x = torch.randn(2, 3, *have)
    torch.testing.assert_close(stitch(x), F.conv2d(F.interpolate(x, want, mode="nearest"), conv.weight, conv.bias))


sizes = st.integers(1, 9)


@settings(max_examples=examples(40))
@given(sizes, sizes, sizes, sizes)
def test_no_pixel_is_left_out_and_none_comes_from_nowhere(height, width, high, wide):
    """At any ratio on either axis; and pixels keep their place, to less than one of the coarser map's."""
    sender, receiver = (1, height, width), (1, high, wide)
    stitch = built(stitch_for(sender, receiver), sender, receiver).double()
    moved = reach(stitch, sender, receiver).reshape(high, wide, height, width)
    assert moved.any(0).any(0).all()
    assert moved.any(2).any(2).all()
    for i, j in itertools.product(range(high), range(wide)):
        seen = moved[i, j].nonzero()
        middle = (seen.double().mean(0) + 0.5) / torch.tensor([height, width])
        place = torch.tensor([(i + 0.5) / high, (j + 0.5) / wide])
        assert ((middle - place).abs() < 1 / torch.tensor([min(height, high), min(width, wide)])).all()


# --- every pair -------------------------------------------------------------------------------------------------------


@each("receiver", SHAPES, ids=named)
@each("sender", SHAPES, ids=named)
def test_any_two_shapes_have_a_stitch_that_runs_at_every_batch_size_and_can_be_fitted(sender, receiver):
    family = stitch_for(sender, receiver)
    stitch = built(family, sender, receiver)
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn((40, *sender), generator=random), torch.randn((40, *receiver), generator=random)
    LeastSquares().fit(matching(family, x, y), stitch)
    with torch.no_grad():
        whole = stitch.eval()(x)
        assert whole.shape == y.shape
        assert whole.isfinite().all()
        for n in (1, 2, 7):
            torch.testing.assert_close(stitch(x[:n]), whole[:n], rtol=1e-4, atol=1e-4)
        stitch.train()(x)


# --- class tokens -----------------------------------------------------------------------------------------------------

CLASSES = [
    (5, True),  # 1 + 2 × 2
    (10, True),
    (17, True),
    (4, False),
    (9, False),
    (16, False),
    (6, False),  # a line
    (7, False),
]


@each(("wanted", "to_class"), CLASSES)
@each(("sent", "has_class"), CLASSES)
def test_the_class_token_goes_where_it_should_and_nowhere_else(sent, has_class, wanted, to_class):
    moved = reach(built(TokensToTokens(), (sent, 2), (wanted, 3)), (sent, 2), (wanted, 3))
    tokens = moved.reshape(wanted, 3, sent, 2).any(3).any(1)  # receiver's tokens × sender's
    patches = tokens[int(to_class) :, int(has_class) :]
    assert patches.any(0).all()
    assert patches.any(1).all()
    if has_class and to_class:
        assert tokens[0].tolist() == [True] + [False] * (sent - 1)
        assert not tokens[1:, 0].any()
    elif has_class:
        assert tokens[:, 0].all(), "the class token is known at every place"
    elif to_class:
        assert tokens[0].all(), "a class token is made of all tokens"


@each(("tokens", "has_class"), [(17, True), (16, False), (10, True)])
@each("receiver", [(3, 2, 2), (3, 4, 4), (3, 5, 7)], ids=named)
def test_maps_know_the_class_token_at_every_pixel(tokens, has_class, receiver):
    moved = reach(built(TokensToMaps(), (tokens, 2), receiver), (tokens, 2), receiver)
    pixels = moved.reshape(3, *receiver[1:], tokens, 2).any(4).any(0)
    assert pixels[..., 0].all() == has_class
    assert pixels.any(0).any(0).all()


@each("sender", [(2, 4, 4), (2, 3, 5), (2,)], ids=named)
def test_a_class_token_that_maps_cannot_send_is_made_of_their_mean(sender):
    """A linear map of the mean over pixels: the same weight from every pixel."""
    stitch = built(MapsToTokens(), sender, (5, 3)).double()
    x = torch.zeros(1, *sender, dtype=torch.float64, requires_grad=True)
    for value in stitch(x)[0, 0]:
        slope = torch.autograd.grad(value, x, retain_graph=True)[0].reshape(2, -1)
        assert (slope != 0).all()
        torch.testing.assert_close(slope, slope[:, :1].expand_as(slope))


@each(
    ("shape", "height", "width", "extra"),
    [((2, 2, 3), 2, 3, 0), ((2, 2, 3), 2, 3, 1), ((2, 4, 2), 4, 2, 0), ((2, 3, 5), 3, 5, 1), ((2, 1, 7), 1, 7, 0)],
)
def test_as_many_tokens_as_pixels_lie_on_the_maps_own_grid(shape, height, width, extra):
    """Each token is one pixel, row by row, also where the map is no square; one token more is a class token."""
    tokens = height * width + extra
    moved = reach(built(MapsToTokens(), shape, (tokens, 3)), shape, (tokens, 3))
    by_place = moved.reshape(tokens, 3, 2, height * width).any(2).any(1)
    assert torch.equal(by_place[extra:], torch.eye(height * width, dtype=torch.bool))
    moved = reach(built(TokensToMaps(), (tokens, 3), shape), (tokens, 3), shape)
    by_place = moved.reshape(2, height * width, tokens, 3).any(3).any(0)
    assert torch.equal(by_place[:, extra:], torch.eye(height * width, dtype=torch.bool))
    assert by_place[:, :extra].all()


# --- the wrong way round ----------------------------------------------------------------------------------------------


@each(
    ("family", "shape", "receiver"),
    [
        (Linear(), (4, 3), (4, 5)),
        (Conv(), (3, 4, 5), (2, 4, 5)),
        (Orthogonal(), (4, 3), (4, 3)),
        (Orthogonal(), (3, 4, 5), (3, 4, 5)),
        (StridedConv(), (3, 4, 6), (5, 2, 2)),
        (UpsampledConv(), (3, 4, 5), (5, 8, 8)),
        (MapsToTokens(), (3, 4, 5), (5, 2)),
        (MapsToTokens(), (3, 4, 5), (6, 2)),
        (TokensToMaps(), (5, 3), (5, 2, 2)),
        (TokensToMaps(), (4, 3), (5, 2, 2)),
        (TokensToTokens(), (4, 3), (9, 2)),
        (TokensToTokens(), (5, 3), (9, 2)),
        (TokensToTokens(), (6, 3), (10, 2)),
    ],
    ids=named,
)
def test_features_in_the_wrong_place_are_not_taken(family, shape, receiver):
    """(D, T) for (T, D), (H, W, C) for (C, H, W)."""
    stitch = built(family, shape, receiver).eval()
    x = torch.randn(6, *shape)
    assert stitch(x).shape == (6, *receiver)
    wrong = x.movedim(1, -1) if len(shape) == 3 else x.transpose(1, 2)
    with pytest.raises(RuntimeError):
        stitch(wrong.contiguous())


@each("family", [Linear(), Orthogonal(), TokensToTokens(), FullLinear()], ids=str)
def test_where_the_shapes_coincide_the_map_found_is_the_planted_one_and_not_its_transpose(family):
    """Four tokens of four features: a rotation of the features, which is not symmetric."""
    random = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=random))[0]
    x = torch.randn((100, 4, 4), generator=random)
    fitted = {}
    for name, y in {"features": x @ turn.T, "transposed": x @ turn, "tokens": turn @ x}.items():
        stitch = built(family, (4, 4), (4, 4))
        LeastSquares(ridges=TINY, rescale=False).fit(matching(family, x, y), stitch)
        with torch.no_grad():
            fitted[name] = stitch.eval()(x)
            exact = float((fitted[name] - y).square().mean()) < 1e-8
            assert exact == (name != "tokens" or family == FullLinear())
    assert float((fitted["features"] - fitted["transposed"]).square().mean()) > 0.1


def test_swapping_sender_and_receiver_is_another_stitch():
    small, large = (3, 2, 2), (4, 5, 5)
    assert stitch_for(large, small) == StridedConv()
    assert stitch_for(small, large) == UpsampledConv()
    with pytest.raises(RuntimeError):
        built(stitch_for(large, small), large, small)(torch.randn(2, *small))

"""What each family joins, what it refuses and with which words, and that a loaded map is computed exactly.

Evidence: matrix products and convolutions written out with plain torch; shapes listed by hand.
"""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suture.errors import ShapeError
from suture.stitches import AffineMap, Conv, Identity, Linear, stitch_for

VECTOR, WIDE = (5,), (7,)
TOKENS, WIDE_TOKENS, MORE_TOKENS = (4, 5), (4, 7), (6, 5)
MAPS, WIDE_MAPS, SMALL_MAPS, NARROW_MAPS = (5, 6, 6), (7, 6, 6), (5, 3, 3), (5, 6, 3)
SHAPES = [VECTOR, WIDE, TOKENS, WIDE_TOKENS, MORE_TOKENS, MAPS, WIDE_MAPS, SMALL_MAPS, NARROW_MAPS]

CONV = [{MAPS, WIDE_MAPS}, {SMALL_MAPS}, {NARROW_MAPS}]
JOINED = {
    Identity(): [{shape} for shape in SHAPES],
    Linear(): [{VECTOR, WIDE}, {TOKENS, WIDE_TOKENS}, {MORE_TOKENS}, {MAPS, NARROW_MAPS}, {WIDE_MAPS}, {SMALL_MAPS}],
    Conv(): CONV,
    Conv(batchnorm=False): CONV,
}
"""The groups of shapes within which each family joins, by hand; the linear one sees maps with features last."""


@pytest.mark.parametrize("family", JOINED, ids=str)
@pytest.mark.parametrize("sender", SHAPES, ids=str)
@pytest.mark.parametrize("receiver", SHAPES, ids=str)
def test_a_family_builds_exactly_what_it_accepts(family, sender, receiver):
    joined = any({sender, receiver} <= group for group in JOINED[family])
    assert family.accepts(sender, receiver) is joined
    if joined:
        family.check(sender, receiver)
        out = family.build(sender, receiver)(torch.rand(3, *sender))
        assert out.shape == (3, *receiver)
        return
    for refuse in (family.check, family.build):
        with pytest.raises(ShapeError) as refused:
            refuse(sender, receiver)
        message = str(refused.value)
        assert "×".join(map(str, sender)) in message.partition("to the receiver's")[0]
        assert "×".join(map(str, receiver)) in message.partition("to the receiver's")[2].partition(";")[0]
        assert message.startswith(f"{family} cannot join the sender's ")
        assert message.endswith(f"; it joins {family.joins}")


def test_a_refusal_says_what_the_shapes_are():
    words = r"Conv\(batchnorm=True\) cannot join the sender's tokens 4×5 to the receiver's maps 5×6×6; it joins maps"
    with pytest.raises(ShapeError, match=words):
        Conv().check(TOKENS, MAPS)


@pytest.mark.parametrize(
    ("sender", "receiver", "family"),
    [
        (VECTOR, WIDE, Linear()),
        (TOKENS, WIDE_TOKENS, Linear()),
        (MAPS, WIDE_MAPS, Conv()),
        (MAPS, MAPS, Conv()),
    ],
)
def test_the_shapes_decide_the_family(sender, receiver, family):
    assert stitch_for(sender, receiver) == family


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [(MAPS, SMALL_MAPS), (MAPS, NARROW_MAPS), (TOKENS, MORE_TOKENS), (MAPS, VECTOR), (VECTOR, TOKENS), (TOKENS, MAPS)],
)
def test_shapes_that_no_family_joins_are_refused_with_both(sender, receiver):
    spelled = [re.escape("×".join(map(str, shape))) for shape in (sender, receiver)]
    words = rf"no stitch joins the sender's \w+ {spelled[0]} to the receiver's \w+ {spelled[1]}; Conv .*, Linear joins"
    with pytest.raises(ShapeError, match=words):
        stitch_for(sender, receiver)


def test_what_the_families_are_made_of():
    assert list(Identity().build(MAPS, MAPS).parameters()) == []
    assert [type(m) for m in Conv().build(MAPS, WIDE_MAPS)] == [nn.BatchNorm2d, nn.Conv2d, nn.BatchNorm2d]
    with_norms = Conv().build(MAPS, WIDE_MAPS)
    assert sum(p.numel() for p in with_norms.parameters()) == 2 * 5 + 5 * 7 + 2 * 7
    assert sum(p.numel() for p in Conv(batchnorm=False).build(MAPS, WIDE_MAPS).parameters()) == 5 * 7 + 7
    assert sum(p.numel() for p in Linear().build(TOKENS, WIDE_TOKENS).parameters()) == 5 * 7 + 7
    assert all(p.requires_grad for p in with_norms.parameters())


def test_a_row_is_a_sample_a_token_or_a_pixel():
    vectors, tokens, maps = torch.rand(3, 5), torch.rand(3, 4, 5), torch.rand(3, 5, 6, 2)
    assert torch.equal(Linear().rows(vectors), vectors)
    assert torch.equal(Linear().rows(tokens), torch.stack([tokens[n, t] for n in range(3) for t in range(4)]))
    pixels = [maps[n, :, i, j] for n in range(3) for i in range(6) for j in range(2)]
    assert torch.equal(Conv().rows(maps), torch.stack(pixels))


def test_the_layer_that_reads_the_sender_as_it_is():
    bare, normed, linear = Conv(batchnorm=False), Conv(), Linear()
    stitch = bare.build(MAPS, WIDE_MAPS)
    assert bare.input_layer(stitch) is stitch
    assert normed.input_layer(normed.build(MAPS, WIDE_MAPS)) is None
    stitch = linear.build(VECTOR, WIDE)
    assert linear.input_layer(stitch) is stitch


# ------------------------------------------------------------------------------------------- loading a map


def affine(inputs, outputs, seed, scale):
    """A map with the moments of rows that it could have been fitted on, one of them constant."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(50, inputs, generator=random, dtype=torch.float64) * scale + 3 * scale
    rows[:, 0] = scale  # a feature that never varies: its variance is 0
    weight = torch.randn(outputs, inputs, generator=random, dtype=torch.float64)
    bias = torch.randn(outputs, generator=random, dtype=torch.float64)
    mapped = rows @ weight.T + bias
    moments = (rows.mean(0), rows.var(0, correction=0), mapped.var(0, correction=0))
    return AffineMap(weight, bias, *moments), rows


def loaded(family, sender, receiver, map_):
    stitch = family.build(sender, receiver).double().eval()
    family.load(stitch, map_)
    return stitch


seeds = st.integers(0, 2**20)
scales = st.sampled_from([1e-3, 1.0, 1e3])


@settings(max_examples=20)
@given(seeds, scales, st.integers(1, 6), st.integers(1, 6))
def test_a_loaded_linear_stitch_is_the_map(seed, scale, inputs, outputs):
    map_, rows = affine(inputs, outputs, seed, scale)
    expected = rows @ map_.weight.T + map_.bias
    torch.testing.assert_close(loaded(Linear(), (inputs,), (outputs,), map_)(rows), expected, rtol=1e-10, atol=1e-10)
    tokens = rows.reshape(5, 10, inputs)
    found = loaded(Linear(), (10, inputs), (10, outputs), map_)(tokens)
    torch.testing.assert_close(found, expected.reshape(5, 10, outputs), rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(seeds, scales, st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_a_loaded_convolution_is_the_map_at_every_pixel(seed, scale, inputs, outputs, batchnorm):
    map_, rows = affine(inputs, outputs, seed, scale)
    maps = rows.reshape(2, 5, 5, inputs).permute(0, 3, 1, 2)
    stitch = loaded(Conv(batchnorm=batchnorm), (inputs, 5, 5), (outputs, 5, 5), map_)
    expected = torch.einsum("oi,nihw->nohw", map_.weight, maps) + map_.bias[:, None, None]
    torch.testing.assert_close(stitch(maps), expected, rtol=1e-9, atol=1e-9 * scale)
    other = torch.rand(3, inputs, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.einsum("oi,nihw->nohw", map_.weight, other) + map_.bias[:, None, None]
    torch.testing.assert_close(stitch(other), expected, rtol=1e-8, atol=1e-8 * scale)


def test_a_loaded_stitch_trains_as_if_it_had_seen_its_rows():
    """In training mode its norms use the batch's own statistics; on the rows fitted on that is the same map."""
    map_, rows = affine(4, 3, seed=1, scale=1.0)
    maps = rows.reshape(2, 5, 5, 4).permute(0, 3, 1, 2)
    stitch = loaded(Conv(), (4, 5, 5), (3, 5, 5), map_)
    still = stitch(maps)
    torch.testing.assert_close(stitch.train()(maps), still, rtol=1e-9, atol=1e-9)


def test_loading_keeps_the_parameters_trainable_and_in_their_type():
    map_, _ = affine(5, 7, seed=2, scale=1.0)
    for family in (Conv(), Conv(batchnorm=False)):
        stitch = family.build(MAPS, WIDE_MAPS)
        before = list(stitch.parameters())
        family.load(stitch, map_)
        assert all(a is b for a, b in zip(before, stitch.parameters(), strict=True))
        assert {(p.dtype, p.requires_grad) for p in stitch.parameters()} == {(torch.float32, True)}


def test_families_with_equal_settings_are_equal():
    assert Conv() == Conv(batchnorm=True) != Conv(batchnorm=False)
    assert hash(Linear()) == hash(Linear())
    assert Identity() != Linear()

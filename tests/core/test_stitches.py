"""What each family joins, what it refuses and with which words, and that a loaded map is computed exactly.

Evidence: matrix products and convolutions written out with plain torch; shapes listed by hand.
"""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from loops import each, examples
from problems import JOINTS, built, named
from suture.common.errors import ShapeError
from suture.core.stitches import (
    FAMILIES,
    AffineMap,
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Identity,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    PooledLinear,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    TwoLayer,
    UpsampledConv,
    stitch_for,
)

VECTOR, WIDE = (5,), (7,)
TOKENS, WIDE_TOKENS, MORE_TOKENS = (4, 5), (4, 7), (6, 5)
MAPS, WIDE_MAPS, SMALL_MAPS, NARROW_MAPS = (5, 6, 6), (7, 6, 6), (5, 3, 3), (5, 6, 3)
ALL_VECTORS, ALL_TOKENS = {VECTOR, WIDE}, {TOKENS, WIDE_TOKENS, MORE_TOKENS}
ALL_MAPS = {MAPS, WIDE_MAPS, SMALL_MAPS, NARROW_MAPS}
SHAPES = [VECTOR, WIDE, TOKENS, WIDE_TOKENS, MORE_TOKENS, MAPS, WIDE_MAPS, SMALL_MAPS, NARROW_MAPS]


def among(*groups):
    """All pairs within each group."""
    return {(a, b) for group in groups for a in group for b in group}


def between(senders, receivers):
    return {(a, b) for a in senders for b in receivers}


SAME = among(*({shape} for shape in SHAPES))
SAME_MAPS = among({MAPS, WIDE_MAPS}, {SMALL_MAPS}, {NARROW_MAPS})
SAME_PLACES = SAME_MAPS | among(ALL_VECTORS, {TOKENS, WIDE_TOKENS}, {MORE_TOKENS})
WIDE_ONES = {(shape, shape) for shape in (WIDE, WIDE_TOKENS, WIDE_MAPS)}
SMALLER = between({MAPS, WIDE_MAPS}, {SMALL_MAPS, NARROW_MAPS}) | {(NARROW_MAPS, SMALL_MAPS)}
LARGER = {(b, a) for a, b in SMALLER}
JOINED = {
    Identity(): SAME,
    Linear(): SAME | among(ALL_VECTORS, {TOKENS, WIDE_TOKENS}, {MAPS, NARROW_MAPS}),
    Conv(): SAME_MAPS,
    Conv(kernel=3, batchnorm=False): SAME_MAPS,
    Conv(kernel=9): SAME_MAPS,
    LowRank(1): SAME_PLACES,
    LowRank(5): SAME_PLACES,
    LowRank(6): WIDE_ONES,
    Orthogonal(): SAME,
    Permutation(): SAME,
    Diagonal(): SAME,
    TwoLayer(): SAME_PLACES,
    TwoLayer(width=2): SAME_PLACES,
    StridedConv(): SMALLER,
    StridedConv(batchnorm=True): SMALLER,
    UpsampledConv(): LARGER | between(ALL_VECTORS, ALL_MAPS),
    ConvLinear(): between(ALL_TOKENS | ALL_MAPS, ALL_VECTORS),
    ConvLinear(channels=6): between({WIDE_TOKENS, WIDE_MAPS}, ALL_VECTORS),
    FullLinear(): between(SHAPES, SHAPES),
    PooledLinear(): between(SHAPES, ALL_VECTORS),
    PooledLinear("first"): between(ALL_VECTORS | ALL_TOKENS, ALL_VECTORS),
    MapsToTokens(): between(ALL_MAPS | ALL_VECTORS, ALL_TOKENS),
    TokensToMaps(): between(ALL_TOKENS, ALL_MAPS),
    TokensToTokens(): between(ALL_TOKENS, ALL_TOKENS),
}
"""Which pairs each family joins, by hand; the linear one sees maps with features last."""


def able(sender, receiver):
    """The names of the families of which some member joins two shapes, by the table."""
    return {type(family).__name__ for family, pairs in JOINED.items() if (sender, receiver) in pairs}


@each("family", JOINED, ids=str)
@each("sender", SHAPES, ids=named)
def test_a_family_builds_exactly_what_it_accepts(family, sender):
    for receiver in SHAPES:
        joined = (sender, receiver) in JOINED[family]
        assert family.accepts(sender, receiver) is joined
        if joined:
            family.check(sender, receiver)
            stitch = family.build(sender, receiver)
            for n in (1, 3):
                assert stitch.eval()(torch.rand(n, *sender)).shape == (n, *receiver)
            continue
        for refuse in (family.check, family.build):
            with pytest.raises(ShapeError) as refused:
                refuse(sender, receiver)
            check_refusal(str(refused.value), family, sender, receiver)


def check_refusal(message, family, sender, receiver):
    shapes = ["×".join(map(str, shape)) for shape in (sender, receiver)]
    what, _, which = message.partition("; families that can: ")
    assert re.fullmatch(
        rf"{re.escape(str(family))} cannot join the sender's \w+ {shapes[0]} to the receiver's \w+ {shapes[1]}; "
        rf"it joins {re.escape(family.joins)}",
        what,
    )
    assert set(which.split(", ")) == able(sender, receiver)


def test_every_family_is_in_the_table_and_can_be_named():
    assert {type(family) for family in JOINED} == set(FAMILIES.values())
    assert {type(family) for family, _, _ in JOINTS} == set(FAMILIES.values()) - {Identity}
    for name, family in FAMILIES.items():
        assert name == re.sub(r"(?<!^)(?=[A-Z])", "-", family.__name__).lower()


# ------------------------------------------------------------------------------------------- what refusals say


@each(
    ("family", "sender", "receiver", "words"),
    [
        (
            Linear(),
            (5, 4),
            (4, 5),
            "Linear() cannot join the sender's tokens 5×4 to the receiver's tokens 4×5; it joins vectors (D,) to "
            "vectors, and tokens (T, D) or maps (H, W, D) to as many; families that can: TokensToTokens, FullLinear",
        ),
        (
            LowRank(6),
            MAPS,
            WIDE_MAPS,
            "LowRank(rank=6) cannot join the sender's maps 5×6×6 to the receiver's maps 7×6×6; it joins vectors, "
            "tokens or maps to as many positions, with at least as many features as its rank; families that can: Conv, "
            "LowRank, TwoLayer, FullLinear",
        ),
        (
            TokensToTokens(),
            VECTOR,
            (),
            "TokensToTokens() cannot join the sender's vector 5 to the receiver's tensor ; it joins tokens (T, D) to "
            "tokens (T', D'); no family can",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else named(value),
)
def test_a_refusal_names_both_shapes_and_the_families_that_can(family, sender, receiver, words):
    with pytest.raises(ShapeError) as refused:
        family.check(sender, receiver)
    what, _, which = str(refused.value).partition("; families that can: ")
    wanted, _, those = words.partition("; families that can: ")
    assert what == wanted
    assert sorted(which.split(", ")) == sorted(those.split(", "))


@each(
    ("make", "words"),
    [
        (lambda: Conv(kernel=2), "Conv(kernel=2): a kernel that keeps the size is odd: 1, 3, 5, 7, 9, …"),
        (lambda: Conv(kernel=0), "Conv(kernel=0): a kernel that keeps the size is odd: 1, 3, 5, 7, 9, …"),
        (lambda: Conv(kernel=-1), "Conv(kernel=-1): a kernel that keeps the size is odd: 1, 3, 5, 7, 9, …"),
        (lambda: PooledLinear("class"), "PooledLinear(by='class'): give one of 'mean', 'first', 'last'"),
        (lambda: LowRank(0), "LowRank(rank=0): give at least 1"),
        (lambda: TwoLayer(width=1), "TwoLayer(width=1): give at least 2, since a direction takes two units"),
        (lambda: ConvLinear(channels=0), "ConvLinear(channels=0): give at least 1, or None for the sender's"),
    ],
)
def test_a_setting_that_makes_no_stitch_is_refused_at_once(make, words):
    with pytest.raises(ShapeError, match=re.escape(words)):
        make()


def test_where_no_default_joins_the_families_that_can_are_named():
    words = "no default stitch joins the sender's tensor 2×3×4×5 to the receiver's vector 7; families that can: FullLi"
    with pytest.raises(ShapeError, match=words):
        stitch_for((2, 3, 4, 5), (7,))
    with pytest.raises(ShapeError, match="to the receiver's tensor ; no family can"):
        stitch_for(VECTOR, ())


# ------------------------------------------------------------------------------------------- the default family


@each(
    ("sender", "receiver", "family"),
    [
        (VECTOR, WIDE, Linear()),
        (VECTOR, TOKENS, MapsToTokens()),
        (VECTOR, MAPS, UpsampledConv()),
        (TOKENS, VECTOR, ConvLinear()),
        (TOKENS, WIDE_TOKENS, Linear()),
        (TOKENS, MORE_TOKENS, TokensToTokens()),
        (TOKENS, MAPS, TokensToMaps()),
        (MAPS, VECTOR, ConvLinear()),
        (MAPS, TOKENS, MapsToTokens()),
        (MAPS, WIDE_MAPS, Conv()),
        (MAPS, MAPS, Conv()),
        (MAPS, SMALL_MAPS, StridedConv()),
        (MAPS, NARROW_MAPS, StridedConv()),
        (SMALL_MAPS, WIDE_MAPS, UpsampledConv()),
        (NARROW_MAPS, MAPS, UpsampledConv()),
        ((5, 6, 3), (5, 3, 6), StridedConv()),
        ((64, 1, 1), (7, 1, 1), Conv()),
        ((64, 1, 1), (7,), ConvLinear()),
    ],
    ids=named,
)
def test_the_shapes_decide_the_family(sender, receiver, family):
    assert stitch_for(sender, receiver) == family


# ------------------------------------------------------------------------------------------- what they are made of


def layers(stitch):
    return [type(module) for module in stitch.modules() if not list(module.children())]


def parameters(family, sender, receiver):
    return sum(p.numel() for p in family.build(sender, receiver).parameters())


def test_what_the_families_are_made_of():
    norm, conv, linear = nn.BatchNorm2d, nn.Conv2d, nn.Linear
    assert list(Identity().build(MAPS, MAPS).parameters()) == []
    for kernel in (1, 3, 5, 7, 9):
        assert layers(Conv(kernel).build(MAPS, WIDE_MAPS)) == [norm, conv, norm]
        assert parameters(Conv(kernel), MAPS, WIDE_MAPS) == 2 * 5 + 5 * 7 * kernel**2 + 2 * 7
        assert layers(Conv(kernel, batchnorm=False).build(MAPS, WIDE_MAPS)) == [conv]
        assert parameters(Conv(kernel, batchnorm=False), MAPS, WIDE_MAPS) == 5 * 7 * kernel**2 + 7
    assert parameters(Linear(), TOKENS, WIDE_TOKENS) == 5 * 7 + 7
    assert parameters(LowRank(2), MAPS, WIDE_MAPS) == 2 * 5 + 2 + 2 * 7 + 7
    assert parameters(Diagonal(), MAPS, MAPS) == 2 * 5
    assert parameters(TwoLayer(), MAPS, WIDE_MAPS) == 10 * 5 + 10 + 10 * 7 + 7
    assert parameters(TwoLayer(width=3), TOKENS, WIDE_TOKENS) == 3 * 5 + 3 + 3 * 7 + 7
    assert parameters(StridedConv(), MAPS, SMALL_MAPS) == 5 * 5 * 2 * 2 + 5
    assert layers(StridedConv(batchnorm=True).build(MAPS, SMALL_MAPS)) == [norm, conv, norm]
    assert parameters(StridedConv(), (5, 7, 7), (5, 4, 4)) == 5 * 5 * 2 * 2 + 5
    assert layers(StridedConv().build((5, 7, 7), (5, 4, 4))) == [nn.Upsample, conv]
    assert parameters(UpsampledConv(), SMALL_MAPS, MAPS) == 5 * 5 + 5
    assert layers(UpsampledConv().build(SMALL_MAPS, MAPS)) == [conv, nn.Upsample]
    assert layers(ConvLinear().build(MAPS, WIDE)) == [conv, nn.Flatten, linear]
    assert parameters(ConvLinear(), MAPS, WIDE) == 5 * 5 + 5 + 5 * 36 * 7 + 7
    assert parameters(ConvLinear(channels=2), TOKENS, WIDE) == 5 * 2 + 2 + 2 * 4 * 7 + 7
    assert parameters(FullLinear(), TOKENS, SMALL_MAPS) == 20 * 45 + 45
    assert layers(FullLinear().build(VECTOR, WIDE)) == [linear]
    assert parameters(MapsToTokens(), MAPS, (5, 7)) == 5 * 7 * 3 * 3 + 7 + 5 * 7 + 7
    assert parameters(TokensToMaps(), (10, 5), SMALL_MAPS) == 2 * 5 * 5 + 5


@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_everything_trains_and_nothing_else_is_drawn(family, sender, receiver):
    first, again, other = (built(family, sender, receiver, seed) for seed in (0, 0, 1))
    states = [torch.cat([v.double().flatten() for v in s.state_dict().values()]) for s in (first, again, other)]
    assert torch.equal(states[0], states[1])
    assert isinstance(family, Diagonal) or not torch.equal(states[0], states[2])
    assert all(p.requires_grad for p in first.parameters())
    out = first(torch.rand(4, *sender)).square().sum()
    assert all(g is not None for g in torch.autograd.grad(out, list(first.parameters()), allow_unused=True))


def rows_of(family, sender, receiver, x):
    [part] = family.parts(family.build(sender, receiver), x)
    return part.reads(x), part


def test_a_row_is_a_sample_a_token_a_pixel_or_a_patch():
    vectors, tokens, maps = torch.rand(3, 5), torch.rand(3, 4, 5), torch.rand(3, 5, 6, 2)
    pixels = torch.stack([maps[n, :, i, j] for n in range(3) for i in range(6) for j in range(2)])
    each = torch.stack([tokens[n, t] for n in range(3) for t in range(4)])
    for family in (Linear(), LowRank(2), Orthogonal(), Permutation(), Diagonal()):
        assert torch.equal(rows_of(family, (5,), (5,), vectors)[0], vectors)
        assert torch.equal(rows_of(family, (4, 5), (4, 5), tokens)[0], each)
        if family != Linear():
            assert torch.equal(rows_of(family, (5, 6, 2), (5, 6, 2), maps)[0], pixels)
    seen, part = rows_of(Conv(), (5, 6, 2), (7, 6, 2), maps)
    assert torch.equal(seen, pixels)
    assert torch.equal(part.gives(maps), pixels)
    around = nn.functional.pad(maps, (1, 1, 1, 1))
    patches = [around[n, :, i : i + 3, j : j + 3].flatten() for n in range(3) for i in range(6) for j in range(2)]
    bare = Conv(3, batchnorm=False)
    assert torch.equal(rows_of(bare, (5, 6, 2), (7, 6, 2), maps)[0], torch.stack(patches).double())


def test_the_layers_that_read_the_sender_as_it_is():
    for family in (Conv(batchnorm=False), Linear()):
        stitch = family.build(MAPS, MAPS)
        assert list(family.raw_layers(stitch)) == [stitch]
    assert list(Conv().raw_layers(Conv().build(MAPS, WIDE_MAPS))) == []
    both = MapsToTokens().build(MAPS, (5, 7))
    assert {type(layer) for layer in MapsToTokens().raw_layers(both)} == {nn.Conv2d, nn.Linear}
    for family in (StridedConv(), StridedConv(batchnorm=True)):
        stitch = family.build(MAPS, SMALL_MAPS)
        assert list(family.raw_layers(stitch)) == ([] if family.batchnorm else [stitch])


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
    load(family, stitch, sender, map_)
    return stitch


def load(family, stitch, sender, map_):
    [part] = family.parts(stitch, torch.zeros(1, *sender))
    part.load(map_)


seeds = st.integers(0, 2**20)
scales = st.sampled_from([1e-3, 1.0, 1e3])


@settings(max_examples=examples(20))
@given(seeds, scales, st.integers(1, 6), st.integers(1, 6))
def test_a_loaded_linear_stitch_is_the_map(seed, scale, inputs, outputs):
    map_, rows = affine(inputs, outputs, seed, scale)
    expected = rows @ map_.weight.T + map_.bias
    torch.testing.assert_close(loaded(Linear(), (inputs,), (outputs,), map_)(rows), expected, rtol=1e-10, atol=1e-10)
    tokens = rows.reshape(5, 10, inputs)
    found = loaded(Linear(), (10, inputs), (10, outputs), map_)(tokens)
    torch.testing.assert_close(found, expected.reshape(5, 10, outputs), rtol=1e-10, atol=1e-10)


@settings(max_examples=examples(20))
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
        load(family, stitch, MAPS, map_)
        assert all(a is b for a, b in zip(before, stitch.parameters(), strict=True))
        assert {(p.dtype, p.requires_grad) for p in stitch.parameters()} == {(torch.float32, True)}


def test_families_with_equal_settings_are_equal():
    assert Conv() == Conv(kernel=1, batchnorm=True) != Conv(batchnorm=False)
    assert Conv(3) != Conv(5)
    assert LowRank(2) == LowRank(rank=2) != LowRank(3)
    assert hash(Linear()) == hash(Linear())
    assert Identity() != Linear()


def test_a_family_is_spelt_as_the_call_that_makes_it():
    spelt = [str(f) for f in (Conv(), Conv(3, batchnorm=False), LowRank(2), ConvLinear(), ConvLinear(channels=4))]
    wanted = "Conv() | Conv(kernel=3, batchnorm=False) | LowRank(rank=2) | ConvLinear() | ConvLinear(channels=4)"
    assert " | ".join(spelt) == wanted

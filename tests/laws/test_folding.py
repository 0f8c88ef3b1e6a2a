"""The law of folding: where a stitch melts into its neighbour, the plain model does what the stitched network does.

What is compared with is the stitched network itself, run layer by layer; which cuts melt, and into what, is written
down by hand. Senders and receivers differ in width and no map is symmetric, so a transposed matrix does not pass.
"""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foldable import MODELS
from loops import each, examples
from models import images, scrambled, seeded
from suture import Network, Seam, Stitched
from suture.common.errors import FoldError
from suture.core.stitched import can_fold
from suture.core.stitches import Conv, Diagonal, Identity, Linear, LowRank, Orthogonal, Permutation

S, R = "sender", "receiver"
FOLDS = {
    "mlp": {
        "flatten": (R, "block1.linear"),
        "block1.linear": (S, "block1.linear"),
        "block1.relu": (R, "block2.linear"),
        "block2.linear": (S, "block2.linear"),
        "block2.relu": (R, "head"),
    },
    "vgg": {
        "0": (S, "0"),
        "1": (R, "2"),
        "2": (S, "2"),
        "4": (R, "5"),
        "5": (S, "5"),
        "6": (R, "9"),
        "7": (R, "9"),
        "8": (R, "9"),
        "9": (S, "9"),
        "10": (R, "12"),
        "11": (R, "12"),
    },
    "myrtle": {
        "0.0": (S, "0.0"),
        "0.1": (S, "0.0"),
        "0.3": (R, "1.0"),
        "1.0": (S, "1.0"),
        "1.1": (S, "1.0"),
        "1.3": (R, "2.0"),
        "2.0": (S, "2.0"),
        "2.1": (S, "2.0"),
        "2.3": (R, "3.0"),
        "3.0": (S, "3.0"),
        "3.1": (S, "3.0"),
        "3.3": (R, "5"),
        "4": (R, "5"),
    },
    "resnet": {
        "conv1": (S, "conv1"),
        "bn1": (S, "conv1"),
        "layer1.1": (R, "layer2.0.conv1", "layer2.0.downsample.0"),
        "layer2.1": (R, "fc"),
        "avgpool": (R, "fc"),
        "flatten": (R, "fc"),
    },
    "vit": {
        "patch_embed.proj": (S, "patch_embed.proj"),
        "patch_embed.transpose": (S, "patch_embed.proj"),
        "patch_embed": (S, "patch_embed.proj"),
        "fc_norm": (R, "head"),
        "head_drop": (R, "head"),
    },
}
"""Where a stitch of the features melts, and into what; at every other cut it does not."""

FAMILIES = [
    *(Conv(), Conv(batchnorm=False), Linear(), LowRank(2)),
    *(Diagonal(), Orthogonal(), Permutation()),
]


@cache
def network(name, width, seed):
    return Network(seeded(lambda: MODELS[name](width), seed), example=images(2, 16), name=f"{name}{width}")


def random_stitch(family, sent, received, shift=0.3):
    """A stitch with random parameters and statistics, and with shifts of up to that size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        stitch = scrambled(family.build(sent, received), 7).eval()
    with torch.no_grad():
        for name, parameter in stitch.named_parameters():
            if name.endswith("bias"):
                parameter.mul_(shift / 0.3)
    return stitch


def stitched_at(sender, receiver, cut, family):
    sent, received = sender.cuts.find(cut).shape, receiver.cuts.find(cut).shape
    return Stitched(Seam.at(sender, receiver, cut), random_stitch(family, sent, received), family)


def off(a, b):
    """The largest difference, relative to the largest value."""
    return float((a - b).abs().max() / a.abs().max())


PAIRS = [(name, family) for name in MODELS for family in FAMILIES if name != "mlp" or not isinstance(family, Conv)]


@pytest.mark.slow
@each(("name", "family"), PAIRS, ids=str, few=6)
def test_folded_is_stitched(name, family):
    equal = isinstance(family, Diagonal | Orthogonal | Permutation)
    sender, receiver = network(name, 6 if equal else 4, 0), network(name, 6, 1)
    x, tried = images(3, 16, seed=9) * torch.tensor([1, 0.5, 0.1])[:, None, None, None], 0
    for cut in FOLDS[name]:
        sent, received = sender.cuts.find(cut).shape, receiver.cuts.find(cut).shape
        if not family.accepts(sent, received) or (isinstance(family, Linear) and len(sent) == 3):
            continue
        stitched = stitched_at(sender, receiver, cut, family)
        with torch.no_grad():
            wanted = stitched(x)
            assert min(off(wanted, receiver(x)), off(wanted[:1], wanted[1:])) > 3e-3, "stitch and images matter"
            assert off(wanted, stitched.folded()(x)) < 1e-5, cut
        tried += 1
    assert tried


@each("name", MODELS)
def test_which_cuts_melt_and_into_what(name):
    sender, receiver = network(name, 4, 0), network(name, 6, 1)
    found = {}
    for cut in sender.cuts.names:
        sent, received = sender.cuts.find(cut).shape, receiver.cuts.find(cut).shape
        family = Conv(batchnorm=False) if len(sent) == 3 else Linear()
        if not family.accepts(sent, received):
            continue
        stitched = Stitched(Seam.at(sender, receiver, cut), family.build(sent, received))
        fold = can_fold(stitched)
        if fold:
            found[cut] = (fold.side, *fold.into)
            assert fold.network == (sender if fold.side == S else receiver).name
        else:
            with pytest.raises(FoldError, match="cannot be folded"):
                stitched.folded()
    assert found == FOLDS[name]


REFUSED = {
    ("resnet", "layer1.0"): "an identity skip ('layer1.1.add') also reads the tensor at 'layer1.0'",
    ("resnet", "layer2.0"): "an identity skip ('layer2.1.add') also reads the tensor at 'layer2.0'",
    ("resnet", "layer2.1.add"): "the next operation is a ReLU ('layer2.1.relu')",
    ("vgg", "3"): "the next operation is a MaxPool2d ('4')",
    ("myrtle", "0.2"): "the next operation is a MaxPool2d ('0.3')",
    ("vit", "norm_pre"): "an identity skip ('blocks.0.add') also reads the tensor at 'norm_pre'",
    ("vit", "blocks.0"): "the next operation is a layer_norm ('fc_norm')",
}
BEFORE = {
    ("resnet", "layer2.0"): "the operation before it is a ReLU ('layer2.0.relu')",
    ("resnet", "layer2.1.add"): "the operation before it is an add ('layer2.1.add')",
    ("vgg", "3"): "the operation before it is a ReLU ('3')",
    ("vit", "blocks.0"): "the operation before it is an add ('blocks.0')",
}


@each(("name", "cut"), REFUSED, ids=str)
def test_a_refusal_names_what_is_in_the_way_on_both_sides(name, cut):
    sender, receiver = network(name, 4, 0), network(name, 6, 1)
    shapes = sender.cuts.find(cut).shape, receiver.cuts.find(cut).shape
    family = Conv() if len(shapes[0]) == 3 else Linear()
    stitched = Stitched(Seam.at(sender, receiver, cut), family.build(*shapes))
    reason = can_fold(stitched).reason
    assert f"in the receiver {receiver.name}, {REFUSED[name, cut]}" in reason
    assert f"in the sender {sender.name}, {BEFORE.get((name, cut), '')}" in reason
    with pytest.raises(FoldError) as error:
        stitched.folded()
    assert reason in str(error.value)
    assert f"between {sender.name} at '{cut}' and {receiver.name} at '{cut}'" in str(error.value)


def test_a_stitch_that_is_the_identity_leaves_nothing_to_melt_anywhere():
    for name in MODELS:
        receiver = network(name, 6, 1)
        for cut in receiver.cuts.names:
            stitched = Stitched(Seam.at(network(name, 6, 0), receiver, cut), Identity().build((1,), (1,)))
            assert can_fold(stitched)
            assert can_fold(stitched).into == ()
            x = images(2, 16, seed=4)
            with torch.no_grad():
                assert off(stitched(x), stitched.folded()(x)) < 1e-6, cut


# ----------------------------------------------------------------------------------------- any convolution, every pixel


def sending(width, seed=0):
    """A network that sends ``width`` channels of 9×8 pixels behind a ReLU, which nothing melts into."""
    model = nn.Sequential(nn.Conv2d(3, width, 1), nn.ReLU(), nn.Flatten(), nn.Linear(width * 72, 2))
    return Network(seeded(lambda: model, seed), example=images(2, 9)[..., :8])


def receiving(width, *layers, seed=1):
    """A network that does layers on ``width`` channels, and gives every pixel of the last as an output."""
    model = nn.Sequential(nn.Conv2d(3, width, 1), nn.ReLU(), *layers, nn.Flatten())
    return Network(seeded(lambda: model, seed), example=images(2, 9)[..., :8])


@st.composite
def convolutions(draw, width):
    """Convolutions of ``width`` channels to 6, with whatever settings they can have on 9×8 pixels."""
    same = draw(st.booleans())
    sizes = st.sampled_from([1, 3]) if same else st.integers(1, 3)
    kernel = (draw(sizes), draw(sizes))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
    chosen = {
        "kernel_size": kernel,
        "stride": 1 if same else (draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        "dilation": draw(st.integers(1, 2)),
        "padding": draw(st.sampled_from(["same", "valid"]))
        if same
        else (draw(st.integers(0, 2)), draw(st.integers(0, 3))),
        "groups": draw(st.sampled_from([n for n in (1, 2, 3, 6) if width % n == 0])),
        "bias": draw(st.booleans()),
        "padding_mode": mode,
    }
    return nn.Conv2d(width, 6, **chosen)


@settings(max_examples=examples(25))
@given(convolutions(6), st.sampled_from([2, 5, 6]), st.sampled_from([Conv(), Conv(batchnorm=False), Diagonal()]))
def test_every_pixel_of_any_convolution_after_the_stitch(conv, width, family):
    sender = sending(6 if isinstance(family, Diagonal) else width)
    receiver = receiving(6, conv)
    shapes = sender.cuts.find("1").shape, receiver.cuts.find("1").shape
    stitched = Stitched(Seam.at(sender, receiver, "1"), random_stitch(family, *shapes, shift=10))
    assert can_fold(stitched).into == ("2",)
    x = images(2, 9, seed=3)[..., :8]
    with torch.no_grad():
        wanted, folded = stitched(x), stitched.folded()(x)
    assert off(wanted, folded) < 1e-5


@settings(max_examples=examples(15))
@given(convolutions(4), st.sampled_from([Conv(), LowRank(2)]), st.booleans())
def test_any_convolution_before_the_stitch(conv, family, norm):
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), conv, *([nn.BatchNorm2d(6)] if norm else []), nn.Dropout())
    x = images(2, 9, seed=3)[..., :8]
    sent = layers.eval()(x).shape[1:]
    head = nn.Linear(sent.numel(), 2)
    sender = Network(seeded(lambda: nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), head), 3), example=x)
    reading = [nn.Upsample(tuple(sent[1:])), nn.Conv2d(3, 5, 1), nn.Tanh(), nn.ReLU(), nn.Flatten()]
    receiver = Network(seeded(lambda: nn.Sequential(*reading), 4), example=x)
    at = "3" if norm else "2"
    stitched = Stitched(Seam(sender, receiver, at, "2"), random_stitch(family, tuple(sent), (5, *sent[1:])))
    assert can_fold(stitched).side == S
    assert can_fold(stitched).into == ("1",)
    with torch.no_grad():
        assert off(stitched(x), stitched.folded()(x)) < 1e-5


def test_at_the_border_a_shift_is_not_there():
    """By hand: of ones, shifted by 10, a 3×3 sum padded with zeros sees 9 pixels in the middle and 4 in a corner."""
    sender, conv = sending(1), nn.Conv2d(1, 1, 3, padding=1, bias=False)
    receiver = receiving(1, conv)
    receiver.after("1").segments[0].body.get_submodule("model.2").weight.fill_(1)
    stitch = nn.Conv2d(1, 1, 1)
    nn.init.zeros_(stitch.weight)
    nn.init.constant_(stitch.bias, 10)
    model = Stitched(Seam.at(sender, receiver, "1"), stitch).folded()
    with torch.no_grad():
        out = model(images(2, 9)[..., :8]).reshape(2, 9, 8)
    assert torch.allclose(out[:, 1:-1, 1:-1], torch.tensor(90.0))
    assert torch.allclose(out[:, [0, 0, -1, -1], [0, -1, 0, -1]], torch.tensor(40.0))
    assert torch.allclose(out[:, [0, -1], 1:-1], torch.tensor(60.0))


POOLS = [
    nn.AvgPool2d(2),
    nn.AvgPool2d(3, stride=2, padding=1),
    nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    nn.AvgPool2d(2, ceil_mode=True),
    nn.AdaptiveAvgPool2d((2, 3)),
    nn.Identity(),
    nn.Dropout2d(),
]


@pytest.mark.slow
@each("family", [Conv(), LowRank(2)], ids=str)
@each("pool", POOLS, ids=str)
def test_through_pooling_and_flattening(pool, family):
    with torch.random.fork_rng(devices=[]):
        heads = {
            "linear": [nn.Flatten(), nn.LazyLinear(4)],
            "conv": [nn.Conv2d(6, 5, 3, padding=1), nn.Flatten()],
            "norm": [nn.BatchNorm2d(6), nn.Flatten()],
        }
        for layers in heads.values():
            model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), pool, *layers)
            model(images(1, 9)[..., :8])
            receiver = Network(scrambled(model, 2).eval(), example=images(2, 9)[..., :8])
            stitched = stitched_at(sending(4), receiver, "1", family)
            assert can_fold(stitched).side == R
            x = images(2, 9, seed=3)[..., :8]
            with torch.no_grad():
                assert off(stitched(x), stitched.folded()(x)) < 1e-5

"""The cuts are the right ones: every place through which exactly one tensor passes, and no other.

Evidence. For random networks, the dominators of the graph that the strategy drew (networkx's, and once more by removing
steps one by one), not of our trace; for known architectures, the block structure that their papers draw; parameters and
FLOPs from formulas worked out by hand.
"""

import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from loops import each, examples
from models import ZOO, Forward, images, made_of, scrambled, small, zoo_model, zoo_network
from programs import Program, programs
from suture import Network
from suture.common.errors import CutError
from suture.core.network.cuts import Cuts, shared_cuts


def steps(network):
    """The cuts that are steps of a program; what lies inside a step, and the head, is not compared."""
    return {name for name in network.cuts.names if re.fullmatch(r"n\d+", name)}


@settings(max_examples=examples(30))
@given(programs())
def test_cuts_of_random_networks_are_the_dominators(program: Program):
    network = Network(scrambled(program.module()).eval(), example=images(2, 4, channels=2))
    assert program.dominators() == program.separators()
    assert steps(network) == program.dominators()


@settings(max_examples=examples(30))
@given(programs(in_place=True))
def test_cuts_of_networks_that_work_in_place_are_dominators_of_what_is_computed(program: Program):
    network = Network(scrambled(program.module()).eval(), example=images(2, 4, channels=2))
    assert steps(network) <= program.dominators()


# ------------------------------------------------------------------------------------------ known architectures

RESNET18 = [
    *("conv1", "bn1", "relu", "maxpool"),
    *(f"layer{i}.{j}{end}" for i in (1, 2, 3, 4) for j in (0, 1) for end in (".add", "")),
    *("avgpool", "flatten"),
]
COUNTS = {
    "resnet18": 4 + 2 * 8 + 2,
    "resnet50": 4 + 2 * 16 + 2,
    "vgg19_bn": 16 * 3 + 5 + 2 + 6,  # convolution, norm and ReLU; pools; pool and flatten; the head but its last layer
    "vit_b_16": 4 + 2 + 2 * 3 + 2,  # patches; position and dropout; blocks of two branches; norm and class token
    "vit_tiny": 4 + 1 + 1 + 3 + 2 * 4 + 4,
    "mixer": 4 + 2 * 4 + 3,
    "plain": 8,
}


def test_a_residual_network_is_cut_between_its_branches_only():
    assert list(zoo_network("resnet18").cuts.names) == RESNET18


@each("name", COUNTS)
def test_the_number_of_cuts(name):
    assert len(zoo_network(name).cuts) == COUNTS[name]


def test_a_transformer_is_cut_after_every_block_and_its_class_token_is_no_bypass():
    names = zoo_network("vit_tiny").cuts.names
    assert [n for n in names if re.fullmatch(r"blocks\.\d+", n)] == [f"blocks.{i}" for i in range(4)]
    assert not [n for n in names if "attn" in n or "mlp" in n]
    assert "pos_drop" in names


@each("name", ["resnet50", "mobilenetv3_small", "convnext_tiny", "mixer"], few=2)
def test_no_cut_lies_inside_a_skip(name):
    """Inside a residual block, the modules of its branches are not cuts."""
    model, network = zoo_model(name), zoo_network(name)
    inner = {
        f"{path}.{child}"
        for path, block in model.named_modules()
        if type(block).__name__ in ("Bottleneck", "ConvNeXtBlock", "MixerBlock") or getattr(block, "has_skip", False)
        for child, module in block.named_modules()
        if child and not isinstance(module, nn.Identity)
    }
    last = {alias for cut in network.cuts for alias in cut.aliases}
    assert inner
    assert inner & set(network.cuts.names) == set()
    assert all(network.cuts.dropped.keys() & {name} for name in inner - last if name in network.cuts.dropped)


# ---------------------------------------------------------------------------------------------------- names


def test_the_last_block_of_a_stage_goes_by_the_stages_name_too():
    cuts = zoo_network("resnet18").cuts
    assert cuts.find("layer1") is cuts.find("layer1.1")
    assert "layer1" in cuts.find("layer1.1").aliases
    assert "layer4" in cuts
    assert cuts["layer4"].name == "layer4.1"


class Again(nn.Module):
    """A ReLU and a block used three times, by a loop that torch.fx can or cannot follow."""

    def __init__(self, follow: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Tanh())
        self.relu = nn.ReLU()
        self.head = nn.Linear(3, 5)
        self.follow = follow

    def forward(self, x):
        if not self.follow:
            assert x.shape[0] > 0
        for _ in range(3):
            x = self.relu(self.block(x))
        return self.head(x.mean((2, 3)))


@each(("follow", "backend"), [(True, "torch.fx"), (False, "torch.export")])
def test_a_module_used_again_gets_a_number(follow, backend):
    network = Network(scrambled(Again(follow)).eval(), example=images(2, 8))
    again = [f"{name}{end}" for end in ("", "_1", "_2") for name in ("block.0", "block.1", "relu")]
    assert network.backend == backend
    assert list(network.cuts.names) == [*again, "mean"]
    assert network.cuts.find("block_1").name == "block.1_1"


def test_an_operation_is_named_by_the_module_it_is_in():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return (x + self.conv(x)).mul(2).tanh()

    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(3 * 64, 5)).eval()
    cuts = Network(model, example=images(2, 8)).cuts
    assert cuts.names == ("0.add", "0.mul", "0", "1")
    assert "jumps over" in cuts.dropped["0.conv"]


def test_an_unknown_cut_is_refused_with_what_was_meant():
    cuts = zoo_network("resnet18").cuts
    with pytest.raises(CutError, match=r"no cut 'layer9' in resnet18; did you mean .*valid cuts: 'conv1', 'bn1'"):
        cuts.find("layer9")
    with pytest.raises(CutError, match=r"no cut 'layer1.0.conv1' in resnet18 \(a path from 'maxpool' jumps over it\)"):
        zoo_network("resnet18").upto("layer1.0.conv1")


def test_cuts_are_a_sequence_in_order():
    cuts = zoo_network("resnet18").cuts
    assert [cut.index for cut in cuts] == list(range(1, 23))
    assert cuts[0].name == "conv1"
    assert [c.name for c in cuts[-2:]] == ["avgpool", "flatten"]
    assert cuts[3] in cuts
    assert cuts.find(cuts[3]) is cuts[3]
    assert "22 cuts of resnet18" in repr(cuts)
    for cut in cuts:
        assert 0 < cut.depth <= 1
    assert [cut.depth for cut in cuts] == [i / 22 for i in range(1, 23)]


def test_shared_cuts_are_in_the_order_of_the_first():
    a, b = zoo_network("resnet18").cuts, zoo_network("resnet50").cuts
    common = shared_cuts(a, b)
    assert common[:6] == ("conv1", "bn1", "relu", "maxpool", "layer1.0.add", "layer1.0")
    assert "layer4.2" not in common
    with pytest.raises(CutError, match=r"no common cut: the sender has conv1.*the receiver has stem.0.*at="):
        shared_cuts(a, Cuts(list(zoo_network("convnext_tiny").cuts)[:2], {}, "convnext"))


# ------------------------------------------------------------------------------------- parameters and FLOPs


def test_parameters_and_flops_of_a_small_network_by_hand():
    cuts = Network(small(), example=images(2, 8)).cuts
    convolution = 3 * 4 * 9 + 4
    branch = 4 * 4 + 4
    expected = {
        "conv": ((4, 8, 8), convolution, 2 * 27 * 4 * 64),
        "norm": ((4, 8, 8), convolution + 8, 2 * 27 * 4 * 64),
        "relu": ((4, 8, 8), convolution + 8, 2 * 27 * 4 * 64),
        "add": ((4, 8, 8), convolution + 8 + branch, 2 * 27 * 4 * 64 + 2 * 4 * 4 * 64),
        "mean": ((4,), convolution + 8 + branch, 2 * 27 * 4 * 64 + 2 * 4 * 4 * 64),
        "drop": ((4,), convolution + 8 + branch, 2 * 27 * 4 * 64 + 2 * 4 * 4 * 64),
    }
    assert {cut.name: (cut.shape, cut.parameters, cut.flops) for cut in cuts} == expected


def test_parameters_before_the_head_of_a_residual_network():
    model, cuts = zoo_model("resnet18"), zoo_network("resnet18").cuts
    total = sum(p.numel() for p in model.parameters())
    assert cuts["flatten"].parameters == total - (512 * 10 + 10)
    for stage in (1, 2, 3, 4):
        within = sum(p.numel() for p in getattr(model, f"layer{stage}").parameters())
        before = cuts["maxpool" if stage == 1 else f"layer{stage - 1}"].parameters
        assert cuts[f"layer{stage}"].parameters - before == within


@each(
    ("name", "patches", "block", "tokens", "width", "hidden"),
    [
        ("vit_tiny", "patch_embed", "blocks.{}", 65, 192, 768),
        ("vit_b_16", "permute", "encoder.layers.encoder_layer_{}", 17, 32, 64),
    ],
)
def test_flops_of_attention_are_those_of_its_products(name, patches, block, tokens, width, hidden):
    cuts = zoo_network(name).cuts
    projections = 2 * tokens * width * (3 * width) + 2 * tokens * width * width
    attention = 2 * (2 * tokens * tokens * width)
    perceptron = 2 * (2 * tokens * width * hidden)
    before = cuts[patches].flops
    for i in (0, 1):
        assert cuts[block.format(i) + ".add"].flops - before == projections + attention
        assert cuts[block.format(i)].flops - before == projections + attention + perceptron
        before = cuts[block.format(i)].flops


def test_a_parameter_used_twice_counts_once():
    def forward(m, x):
        return m.end(m.next(m.next(m.conv(x))))

    cuts = Network(made_of(forward), example=images(2, 8)).cuts
    assert cuts["next_1"].parameters == cuts["next"].parameters == (3 * 4 * 9 + 4) + (4 * 4 * 9 + 4)
    assert cuts["next_1"].flops - cuts["next"].flops == 2 * 36 * 4 * 64


@each("name", ZOO)
def test_parameters_and_flops_never_fall(name):
    cuts = list(zoo_network(name).cuts)
    total = sum(p.numel() for p in zoo_model(name).parameters())
    for cut, following in pairwise(cuts):
        assert cut.parameters <= following.parameters <= total
        assert 0 <= cut.flops <= following.flops


# --------------------------------------------------------------------------- what else may pass beside the tensor


def test_sizes_and_parameters_read_at_both_ends_are_no_bypass():
    def forward(m, x):
        n, scale = x.shape[0], m.head.bias[:1].expand(x.shape[0], 1)
        h = m.relu(m.conv(x))
        h = m.next(h) / x.shape[2] + scale.reshape(n, 1, 1, 1)
        return m.head(h.view(n, 4, -1).mean(2))

    network = Network(made_of(forward), example=images(2, 8))
    assert network.backend == "torch.fx"
    assert {"conv", "relu", "next", "add", "mean"} <= set(network.cuts.names)


def test_windows_are_batched_and_the_batch_comes_back():
    """As in Swin: windows join the batch, so inside there is no cut; sizes are proportional to the batch."""

    def forward(m, x):
        n, h = x.shape[0], m.relu(m.conv(x))
        w = h.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(n * 4, 4, 4, 4)
        w = m.next(w)
        return m.end(w.reshape(n, 4, 4, 4, 4).permute(0, 2, 1, 3, 4).flatten(3))

    network = Network(made_of(forward), example=images(2, 8))
    assert "next" not in network.cuts
    assert network.cuts.dropped["next"] == "its first dimension is not the batch"
    assert "flatten" in network.cuts
    assert network.after("relu")(torch.rand(5, 4, 8, 8)).shape == (5, 5)


def test_a_number_read_from_the_data_is_a_bypass():
    """The least activation is 0 on every probe, and yet no constant."""

    def forward(m, x):
        h = m.relu(m.conv(x))
        least = h.min().item()
        return m.end(m.relu(m.next(h)) + least)

    network = Network(made_of(forward), example=images(2, 8))
    assert "relu" in network.cuts
    assert "next" not in network.cuts
    assert network.cuts.dropped["next"] == "a path from 'item' jumps over it"


def test_integers_and_tuples_are_no_cuts():
    def forward(m, x):
        order = m.conv(x).argsort(1)
        a, b = order.float().chunk(2, 1)
        return m.end(torch.cat([b, a], 1))

    network = Network(made_of(forward), example=images(2, 8))
    assert network.cuts.dropped["argsort"] == "it does not hold floating-point numbers"
    assert network.cuts.dropped["chunk"] == "it is a tuple, not one tensor"


def test_dead_branches_do_not_hide_cuts():
    def forward(m, x):
        h = m.relu(m.conv(x))
        m.next(m.next(h))
        return m.end(m.next(h))

    network = Network(made_of(forward), example=images(2, 8))
    assert {"conv", "relu", "mean"} <= set(network.cuts.names)
    assert isinstance(made_of(forward), Forward)
    assert len([n for n in network.cuts.names if n.startswith("next")]) == 1

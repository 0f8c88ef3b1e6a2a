"""Fused suffixes: the same function as the suffix, whatever the receiver is made of, and nothing of it touched."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from loops import each
from models import ZOO, images, seeded, small, zoo_network
from suture import Network
from suture.common.processor import half_precision
from suture.core.fused import Fused, fuse_segments, fuse_stitch, fuse_suffix
from suture.core.network.cuts import Cut
from suture.core.network.segments import operation
from suture.core.stitches import Conv, MapsToTokens, Stitch, StridedConv, UpsampledConv
from trained import convnets, few_digits, hybrids, state_bits

Together = Callable[["Made", Tensor], Tensor]


class Made(nn.Module):
    """A stem, layers put together by a function, and a head over the mean of the maps; 8×8 images, 5 outputs."""

    def __init__(self, together: Together, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv, self.other = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.shift = nn.Parameter(torch.randn(8, 1, 1))
        self.head = nn.Linear(8, 5)
        self.together = together

    def forward(self, x: Tensor) -> Tensor:
        h = self.together(self, self.stem(x).relu())
        return self.head(h.mean((2, 3)) if h.ndim == 4 else h)


def _conv(**settings) -> nn.Conv2d:
    return nn.Conv2d(8, 8, 3, padding=1, **settings)


def _added_in_place(m: Made, x: Tensor) -> Tensor:
    h = m.conv(x)
    h += m.other(x)
    return h.relu()


def _twice(m: Made, x: Tensor) -> Tensor:
    h = m.norm(m.conv(x)).relu()
    return m.norm(m.conv(h))


def _two_norms(m: Made, x: Tensor) -> Tensor:
    return m.second(m.conv(m.norm(m.conv(x)).relu()))


def _norm_read_twice(m: Made, x: Tensor) -> Tensor:
    h = m.norm(m.conv(x))
    return h.relu() + h


def _layer_read_twice(m: Made, x: Tensor) -> Tensor:
    h = m.conv(x)
    return m.norm(h) + h


def _relu_beside_a_skip(m: Made, x: Tensor) -> Tensor:
    h = m.conv(x)
    return m.other(h.relu()) + h


def _relu_in_place_beside_a_skip(m: Made, x: Tensor) -> Tensor:
    h = m.conv(x)
    return m.other(nn.functional.relu(h, inplace=True)) + h


def _with_itself(m: Made, x: Tensor) -> Tensor:
    h = m.conv(x)
    return h + h


def _skip_first(m: Made, x: Tensor) -> Tensor:
    return (x + m.norm(m.conv(x))).relu()


def _residual(m: Made, x: Tensor) -> Tensor:
    return (m.second(m.other(m.norm(m.conv(x)).relu())) + x).relu()


def _vector(m: Made, x: Tensor) -> Tensor:
    return m.linear_norm(m.linear(x.mean((2, 3)))).relu()


def _tokens(m: Made, x: Tensor) -> Tensor:
    return m.linear_norm(m.linear(x.flatten(2).transpose(1, 2)[:, :8])).mean(1)


def _viewed(m: Made, x: Tensor) -> Tensor:
    return m.linear(nn.functional.max_pool2d(m.conv(x), 8).reshape(x.shape[0], -1))


TRICKY: dict[str, tuple[Together, dict[str, nn.Module]]] = {
    "plain": (lambda m, x: m.norm(m.conv(x)).relu(), {}),
    "residual": (_residual, {}),
    "skip first": (_skip_first, {}),
    "norm before its layer": (lambda m, x: m.conv(m.norm(x).relu()), {}),
    "norm of the cut": (lambda m, x: m.norm(x), {}),
    "norm without weights": (lambda m, x: m.norm(m.conv(x)), {"norm": nn.BatchNorm2d(8, affine=False)}),
    "two norms in a row": (lambda m, x: m.second(m.norm(m.conv(x))), {}),
    "no bias": (lambda m, x: m.norm(m.conv(x)).relu(), {"conv": _conv(bias=False)}),
    "grouped": (lambda m, x: m.norm(m.conv(x)).relu(), {"conv": _conv(groups=4)}),
    "depthwise": (lambda m, x: m.norm(m.conv(x)).relu(), {"conv": _conv(groups=8, bias=False)}),
    "dilated, reflecting": (lambda m, x: m.norm(m.conv(x)), {"conv": _conv(padding_mode="reflect")}),
    "transposed": (lambda m, x: m.norm(m.up(x)).relu(), {"up": nn.ConvTranspose2d(8, 8, 2)}),
    "weight-normed": (lambda m, x: m.norm(m.conv(x)), {"conv": parametrizations.weight_norm(_conv())}),
    "shared twice": (_twice, {}),
    "shared, two norms": (_two_norms, {}),
    "norm read twice": (_norm_read_twice, {}),
    "layer read twice": (_layer_read_twice, {}),
    "relu beside a skip": (_relu_beside_a_skip, {}),
    "relu in place beside a skip": (_relu_in_place_beside_a_skip, {}),
    "relu in place": (lambda m, x: m.other(m.act(m.conv(x))), {"act": nn.ReLU(inplace=True)}),
    "relu in place on the cut": (lambda m, x: m.act(m.other(m.act(x))), {"act": nn.ReLU(inplace=True)}),
    "sum in place": (_added_in_place, {}),
    "sum with itself": (_with_itself, {}),
    "sum of three": (lambda m, x: (m.conv(x) + m.other(x) + x).relu(), {}),
    "sum of other shapes": (lambda m, x: m.conv(x) + m.other(x).mean((2, 3), keepdim=True), {}),
    "sum to a larger shape": (lambda m, x: m.small(x) + m.conv(x), {"small": nn.Conv2d(8, 8, 8)}),
    "scaled sum": (lambda m, x: torch.add(m.conv(x), x, alpha=0.5), {}),
    "sum with a number": (lambda m, x: (m.conv(x) + 1).relu(), {}),
    "sum with a size": (lambda m, x: (m.conv(x) + x.shape[1]).relu(), {}),
    "sum with a parameter": (lambda m, x: (m.conv(x) + m.shift).relu(), {}),
    "linear over the width": (lambda m, x: m.norm(m.linear(x)), {"linear": nn.Linear(8, 8)}),
    "linear and norm": (_vector, {"linear": nn.Linear(8, 8), "linear_norm": nn.BatchNorm1d(8)}),
    "one dimension": (
        lambda m, x: m.linear_norm(m.row(x.flatten(2))).relu().mean(2),
        {"row": nn.Conv1d(8, 8, 3), "linear_norm": nn.BatchNorm1d(8)},
    ),
    "norm of tokens": (_tokens, {"linear": nn.Linear(8, 8), "linear_norm": nn.BatchNorm1d(8)}),
    "flattened maps": (_viewed, {"linear": nn.Linear(8, 8)}),
}


@cache
def tricky(name: str) -> Network:
    return Network(seeded(lambda: Made(*TRICKY[name])), example=images(4, 8, seed=5), name="R")


def off(fused: nn.Module, network: Network, cut: Cut, x: Tensor) -> float:
    """The root mean square of what it is off by, in units of how much the outputs vary."""
    with torch.no_grad():
        wanted = network.after(cut)(x)
        return float((fused(x) - wanted).square().mean().sqrt() / (wanted - wanted.mean(0)).square().mean().sqrt())


def spread_out(network: Network) -> list[Cut]:
    """Four cuts of a network, from the first to the last."""
    cuts = list(network.cuts)
    return list(dict.fromkeys(cuts[i * (len(cuts) - 1) // 3] for i in range(4)))


def passed(network: Network, cut: Cut, side: int, n: int = 6) -> Tensor:
    with torch.no_grad():
        return network.upto(cut)(images(n, side, seed=7)).contiguous()


@pytest.mark.slow
@each("name", ZOO, few=3)
def test_it_agrees_with_the_suffix_of_every_kind_of_network(name):
    network = zoo_network(name)
    before = state_bits(network.whole())
    for cut in spread_out(network):
        fused = fuse_suffix(network, cut)
        assert fused is not None
        x = passed(network, cut, ZOO[name][1])
        kept = x.clone()
        assert off(fused, network, cut, x) < 1e-3, cut.name  # noise of random networks hardly moves their outputs
        assert torch.equal(x, kept)
        assert not any(p.requires_grad for p in fused.parameters())
    assert state_bits(network.whole()) == before


@each("network", lambda: [hybrids()[0], convnets()[0]])
def test_in_sixteen_bits_a_trained_network_is_off_by_a_few_percent(network):
    for cut in network.cuts:
        fused = fuse_suffix(network, cut, torch.bfloat16)
        assert fused is not None
        with torch.no_grad():
            x = network.upto(cut)(few_digits().score.images)
        assert fused.dtype == (torch.float32 if fused.only_head else torch.bfloat16)
        assert fused(x).dtype == torch.float32
        assert (0 < off(fused, network, cut, x) < 0.05) or fused.only_head


@pytest.mark.slow
@each("name", TRICKY)
def test_it_is_never_wrong(name):
    network = tricky(name)
    before = state_bits(network.whole())
    for cut in network.cuts:
        fused = fuse_suffix(network, cut)
        assert fused is not None
        x = passed(network, cut, 8)
        layouts = [x, x.contiguous(memory_format=torch.channels_last)] if x.ndim == 4 else [x]
        for given in layouts:
            kept = given.clone()
            assert off(fused, network, cut, given) < 1e-3, cut.name
            assert torch.equal(given, kept), f"it wrote to the tensor at {cut.name}"
    assert state_bits(network.whole()) == before


@pytest.mark.parametrize("name", TRICKY)
def test_gradients_to_what_it_is_given_are_the_suffixs(name):
    if name == "relu in place on the cut":
        pytest.skip("the model itself writes to what its gradient needs")
    network = tricky(name)
    for cut in network.cuts:
        fused = fuse_suffix(network, cut)
        assert fused is not None
        x = passed(network, cut, 8)
        found = []
        for run in (fused, network.after(cut)):
            given = x.clone().requires_grad_()
            loss = nn.functional.cross_entropy(run(given), torch.arange(len(x)) % 5)
            found.append(torch.autograd.grad(loss, given)[0])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5 * float(found[1].abs().max()))


@each("name", TRICKY)
def test_its_pieces_one_after_another_are_the_network(name):
    network = tricky(name)
    segments = fuse_segments(network, 0, len(network.cuts) + 1)
    assert len(segments) == len(network.cuts) + 1
    x = images(6, 8, seed=7)
    wanted = network(x)
    with torch.no_grad():
        for segment in segments:
            assert segment is not None
            x = segment(x)
    torch.testing.assert_close(x, wanted, rtol=1e-4, atol=1e-5)


def _kinds(fused: Fused) -> set[str]:
    """What its graph calls, as functions or as modules."""
    calls = [node for node in fused.body.graph.nodes if node.op.startswith("call")]
    modules = [fused.body.get_submodule(node.target) for node in calls if node.op == "call_module"]
    return {operation(node) for node in calls if node.op != "call_module"} | {type(m).__name__ for m in modules}


def _normalises(fused: Fused) -> bool:
    return any("batchnorm" in kind.lower().replace("_", "") for kind in _kinds(fused))


def test_batchnorms_are_folded_where_only_the_next_layer_reads_what_they_normalise():
    folded = {name: not _normalises(fuse_suffix(tricky(name), tricky(name).cuts[0])) for name in TRICKY}
    gone = [
        "plain",
        "residual",
        "no bias",
        "grouped",
        "depthwise",
        "shared, two norms",
        "norm read twice",
        "linear and norm",
    ]
    assert [name for name in gone if not folded[name]] == []
    stay = ["norm before its layer", "layer read twice", "transposed", "linear over the width", "norm of tokens"]
    assert [name for name in stay if folded[name]] == []


def test_a_fused_suffix_stays_in_evaluation_mode():
    network = Network(small(), example=images(4, 8, seed=5))
    fused = fuse_suffix(network, network.cuts[0])
    assert fused is not None
    assert not any(module.training for module in fused.train().modules())


def test_only_pooling_and_a_linear_layer_are_a_head():
    network = tricky("plain")
    heads = {cut.name: fuse_suffix(network, cut).only_head for cut in network.cuts}
    assert heads == {cut.name: cut.index > network.cuts.find("relu_1").index - 1 for cut in network.cuts}
    last = fuse_suffix(network, network.cuts[-1], torch.bfloat16)
    assert last.dtype == torch.float32, "a head alone is not rounded"


def staged(function: bool) -> Network:
    layers = {"body": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), "flat": nn.Flatten()}
    model = nn.Sequential()
    for name, layer in {**layers, "head": nn.Linear(144, 5)}.items():
        model.add_module(name, layer)
    seeded(lambda: model)
    stages = ["body", ("pool", lambda x: x.flatten(1)), "head"] if function else ["body", "flat", "head"]
    return Network(model, example=images(4, 8, seed=5), stages=stages)


def test_a_network_cut_along_stages_has_one_unless_they_are_functions():
    network = staged(False)
    for cut in network.cuts:
        assert off(fuse_suffix(network, cut), network, cut, passed(network, cut, 8)) < 1e-5
    network = staged(True)
    assert fuse_suffix(network, network.cuts[0]) is None


class Branching(nn.Module):
    """A tracer of modules cannot follow it, since it looks at a number; ``torch.export`` can."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        if int(x.shape[2]) > 4 and bool(x.shape[1] == 3):
            h = self.norm(self.conv(x)).relu()
        return self.head(h.mean((2, 3)))


def test_an_exported_network_has_one():
    network = Network(seeded(Branching), example=images(4, 8, seed=5))
    for cut in network.cuts:
        fused = fuse_suffix(network, cut)
        assert fused is not None
        assert off(fused, network, cut, passed(network, cut, 8)) < 1e-5


@each("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_network_in_another_floating_type_is_left_as_it_is(dtype):
    network = Network(small().to(dtype), example=images(4, 8, seed=5))
    assert [fuse_suffix(network, cut) for cut in network.cuts] == [None] * len(network.cuts)


def test_half_precision_is_what_the_device_has():
    assert half_precision(torch.device("cpu")) in (None, torch.bfloat16)
    assert half_precision(torch.device("meta")) is None


# --- stitches ---------------------------------------------------------------------------------------------------------

MAPS = (8, 4, 4)
FAMILIES = [
    (Conv(), MAPS, 1),
    (Conv(3), MAPS, 2),
    (Conv(batchnorm=False), MAPS, 1),
    (StridedConv(batchnorm=True), (5, 2, 2), 1),
    (UpsampledConv(batchnorm=True), (5, 8, 8), 2),
    (MapsToTokens(), (16, 6), 2),
]


@each(("family", "receiver", "left"), FAMILIES, ids=str)
def test_a_fused_stitch_is_the_same_map_in_fewer_layers(family: Stitch, receiver, left):
    stitch = family.build(MAPS, receiver)
    for module in stitch.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                nn.init.uniform_(tensor, 0.5, 2)
    stitch.eval().requires_grad_(False)
    before, x = state_bits(stitch), torch.randn(7, *MAPS)
    fused = fuse_stitch(stitch)
    torch.testing.assert_close(fused(x), stitch(x), rtol=1e-4, atol=1e-5)
    assert state_bits(stitch) == before
    assert sum(next(module.children(), None) is None for module in fused.modules()) == left
    assert not any(parameter.requires_grad for parameter in fused.parameters())


def test_a_layer_that_a_stitch_uses_twice_stays_twice():
    relu, conv = nn.ReLU(), nn.Conv2d(4, 4, 1)
    stitch = nn.Sequential(nn.BatchNorm2d(4), conv, relu, nn.Sequential(conv, relu)).eval().requires_grad_(False)
    stitch[0].running_mean.uniform_(0.5, 2)
    x = torch.randn(7, 4, 3, 3)
    torch.testing.assert_close(fuse_stitch(stitch)(x), stitch(x), rtol=1e-4, atol=1e-5)


def test_a_stitch_with_a_hook_is_left_alone():
    stitch = Conv().build(MAPS, MAPS).eval()
    stitch[1].register_forward_hook(lambda layer, given, out: 2 * out)
    assert fuse_stitch(stitch) is stitch


def test_a_stitch_with_a_norm_of_each_batch_is_left_alone():
    stitch = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Conv2d(3, 4, 1)).eval()
    assert fuse_stitch(stitch) is stitch


def test_a_stitch_that_is_no_chain_is_left_alone():
    stitch = Made(_twice, {})
    assert fuse_stitch(stitch) is stitch
    assert fuse_stitch(nn.Identity()).__class__ is nn.Identity


def test_what_writes_to_a_tensor_that_a_piece_hands_on_gets_a_copy():
    """A dropout that does nothing, then a ReLU in place: the leaf that a gradient is wanted of is not written to."""
    layers = [nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(16, 4)]
    network = Network(nn.Sequential(*layers), example=images(3, 8, channels=1))
    x = torch.randn(5, 16, requires_grad=True)
    fused = fuse_suffix(network, network.cuts.find("1"))
    assert fused is not None
    fused(x).sum().backward()
    wanted = torch.autograd.grad(network.after("1")(other := x.detach().clone().requires_grad_()).sum(), other)[0]
    assert torch.allclose(x.grad, wanted, atol=1e-6)


def test_a_constant_of_another_type_does_not_decide_the_type_of_what_passes():
    def scaled(m: Made, x: Tensor) -> Tensor:
        return m.other((m.conv(x) * m.scale.to(x.dtype)).relu())

    model = seeded(lambda: Made(scaled, {}))
    model.register_buffer("scale", torch.full((8, 1, 1), 0.5, dtype=torch.float64))
    network = Network(model, example=images(4, 8, seed=5), name="scaled")
    for cut in network.cuts:
        fused = fuse_suffix(network, cut)
        assert fused is None or off(fused, network, cut, passed(network, cut, 8)) < 1e-3, cut.name
    assert fuse_suffix(network, network.cuts[0]) is not None


def test_attention_is_computed_in_float32_whatever_the_layers_compute_in():
    """Its backward pass in bfloat16 takes ten times as long on the processor."""
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "attention" in str(func):
                seen.extend(value.dtype for value in args[:3] if isinstance(value, Tensor))
            return func(*args, **(kwargs or {}))

    network = zoo_network("vit_tiny")
    cut = network.cuts[0]
    fused = fuse_suffix(network, cut, torch.bfloat16)
    x = passed(network, cut, ZOO["vit_tiny"][1]).requires_grad_()
    with Watching():
        fused(x).sum().backward()
    assert fused.dtype == torch.bfloat16
    assert seen
    assert set(seen) == {torch.float32}

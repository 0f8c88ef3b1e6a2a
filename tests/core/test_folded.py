"""What is left when a stitch is folded is an ordinary model, and what can be said about folding beforehand."""

import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import fx, nn
from torch.nn.utils import parametrizations

from foldable import PAGE as NETWORKS
from loops import each
from models import images, made_of, scrambled, seeded, zoo_network
from suture import Network, Preprocess, Seam, Stitched
from suture.common.errors import FoldError
from suture.core.folding import Fold, WithBorder, foldable_cuts
from suture.core.stitched import can_fold
from suture.core.stitches import Conv, ConvLinear, Linear, StridedConv, UpsampledConv
from trained import state_bits


def chain(*layers, seed=0, **settings):
    """A network of 8×8 images of 3 channels, one layer after another."""
    return Network(seeded(lambda: nn.Sequential(*layers), seed), example=images(2, 8), **settings)


def sender(width=4, **settings):
    """Sends ``width`` maps of 8×8 behind a ReLU, into which nothing melts."""
    return chain(nn.Conv2d(3, width, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 2), **settings)


def receiver(*layers, seed=1, **settings):
    """Reads six maps of 8×8 behind a ReLU."""
    return chain(nn.Conv2d(3, 6, 1), nn.ReLU(), *layers, seed=seed, name="R", **settings)


def stitched(a, b, cut="1", other=None, family=None):
    """A stitched network with random parameters."""
    shapes = a.cuts.find(cut).shape, b.cuts.find(other or cut).shape
    family = family or (Conv(batchnorm=False) if len(shapes[0]) == 3 else Linear())
    return Stitched(Seam(a, b, cut, other or cut), scrambled(family.build(*shapes), 3).eval(), family)


def plain():
    """A stitched network whose stitch melts into a padded convolution, and images."""
    b = receiver(
        nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(320, 3)
    )
    return stitched(sender(), b, family=Conv()), images(4, 8, seed=2)


def agrees(model, other, x, tolerance=1e-5):
    with torch.no_grad():
        wanted, found = model(x), other(x)
    assert wanted.shape == found.shape
    return float((wanted - found).abs().max() / wanted.abs().max()) < tolerance


# ------------------------------------------------------------------------------------------------- an ordinary model


def test_it_saves_and_loads():
    model, x = plain()
    folded, other = model.folded(), plain()[0]
    with torch.no_grad():
        for tensor in other.stitch.parameters():
            tensor.mul_(1.5)
    other = other.folded()
    assert not agrees(folded, other, x)
    other.load_state_dict(load(save(folded.state_dict())))
    assert agrees(folded, other, x, 1e-30)


def test_one_that_is_not_fitted_yet_takes_the_tensors_of_one_that_is():
    """An unfitted stitch need not shift anything: the tensors are the same nevertheless."""
    model, x = plain()
    unfitted = Stitched(model.seam, Conv().build((4, 8, 8), (6, 8, 8)))
    empty = unfitted.folded()
    empty.load_state_dict(model.folded().state_dict())
    assert agrees(model, empty, x)


def test_it_traces():
    model, x = plain()
    folded = model.folded()
    raw = (255 * x).to(torch.uint8)
    for again in (fx.symbolic_trace(folded), copy.deepcopy(folded)):
        assert agrees(folded, again, x, 1e-30)
        assert agrees(model, again, raw)
    assert agrees(folded, torch.export.export(folded, (x,)).module(), x, 1e-6)


def test_it_is_a_network_again_and_can_be_stitched_and_folded_again():
    model, x = plain()
    network = Network(model.folded(), example=x, name="folded")
    assert network.backend == "torch.fx"
    assert network.cuts.names[:3] == ("prepare", "sender.0", "sender.1")
    assert agrees(model, network, x)
    again = stitched(network, model.seam.receiver, "sender.1", "1")
    assert agrees(again, again.folded(), x)


def test_it_trains_and_the_frozen_networks_do_not():
    model, x = plain()
    before = [state_bits(n.whole()) for n in model.seam.networks], state_bits(model)
    folded = model.folded()
    folded.train()
    folded(x).square().mean().backward()
    assert all(p.requires_grad and p.grad is not None and p.grad.abs().max() > 0 for p in folded.parameters())
    with torch.no_grad():
        for tensor in (*folded.parameters(), *folded.buffers()):
            tensor.zero_()
    assert ([state_bits(n.whole()) for n in model.seam.networks], state_bits(model)) == before
    assert not any(p.requires_grad for p in model.prefix.parameters())


def test_it_has_no_stitch_and_one_layer_in_place_of_one():
    model, _ = plain()
    kinds = [type(m).__name__ for m in model.folded().modules() if not list(m.children())]
    own = [type(m).__name__ for n in model.seam.networks for m in n.whole().modules() if not list(m.children())]
    assert [kind for kind in kinds if kind == "Conv2d"] == ["Conv2d", "Conv2d"]
    assert kinds.count("BatchNorm2d") == 1
    assert {"Conv2d", "BatchNorm2d"} < set(own)
    assert {name for name, _ in model.folded().named_buffers() if "border" in name} == {"receiver.2.border"}
    assert not model.folded().training


def test_a_network_stitched_to_itself_shares_no_tensor_with_itself():
    """Here the second convolution and its BatchNorm come twice: before the stitch, and after it."""
    network = receiver(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.Flatten())
    model = stitched(network, network, "4", "1", Conv(batchnorm=False))
    folded = model.folded()
    assert agrees(model, folded, images(2, 8))
    save(folded.state_dict())
    tensors = [tensor.data_ptr() for tensor in folded.state_dict(keep_vars=True).values()]
    assert len(set(tensors)) == len(tensors)


def test_random_numbers_are_not_drawn():
    model, _ = plain()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    can_fold(model)
    model.folded()
    foldable_cuts(model.seam.receiver)
    assert torch.equal(torch.get_rng_state(), before)


# ----------------------------------------------------------------------------------------- preprocessing and backends


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return x.mul_(self.scale)


@each(
    "preprocess",
    [Preprocess(size=8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)), Halves(), lambda x: x.sub_(0.5)],
    ids=["settings", "module", "function"],
)
def test_the_senders_preprocessing_is_part_of_it(preprocess):
    a = sender(preprocess=preprocess)
    model = stitched(a, receiver(nn.Conv2d(6, 5, 1), nn.Flatten()))
    folded, x = model.folded(), images(3, 8, seed=4)
    kept = x.clone()
    assert agrees(model, folded, x)
    assert torch.equal(x, kept)
    assert agrees(model, folded, (255 * x).to(torch.uint8))
    assert agrees(folded, fx.symbolic_trace(folded), x)
    if isinstance(preprocess, Preprocess):
        assert agrees(model, folded, images(3, 12, seed=4))


class Branching(nn.Module):
    """Control flow on data, which torch.fx cannot follow."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.next = nn.Conv2d(6, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        if len(x.shape) == 4 and x.size(0) > 0:
            x = self.norm(self.next(self.conv(x).relu())).relu()
        return self.head(nn.functional.dropout(x.flatten(1), 0.5, self.training))


def test_layers_that_are_exported_operations():
    network = Network(seeded(Branching), example=images(2, 8), name="exported")
    assert network.backend == "torch.export"
    found = {cut: (fold.side, *fold.into) for cut, fold in foldable_cuts(network).items() if fold}
    assert found == {
        "conv": ("sender", "conv"),
        "relu": ("receiver", "next"),
        "next": ("sender", "next"),
        "norm": ("sender", "next"),
        "relu_1": ("receiver", "head"),
        "flatten": ("receiver", "head"),
        "dropout": ("receiver", "head"),
    }
    for cut in found:
        model = stitched(network, network, cut)
        assert agrees(model, model.folded(), images(3, 8, seed=4)), cut
        side, *into = found[cut]
        assert isinstance(model.folded().get_submodule(f"{side}.{into[0]}"), nn.Conv2d | nn.Linear | WithBorder)
        save(model.folded().state_dict())


def test_stages_are_modules():
    layers = [nn.Conv2d(6, 5, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Conv2d(5, 4, 1)), nn.Flatten()]
    b = receiver(*layers, stages=["0", "1", "2", "3", "4"])
    model = stitched(sender(), b)
    assert can_fold(model) == Fold(("2",), "R", "receiver")
    assert agrees(model, model.folded(), images(2, 8))
    assert can_fold(stitched(b, b, "3")).into == ("3.1",)


def test_a_stage_that_calls_one_module_twice_calls_it_twice():
    relu = nn.ReLU()
    chained = nn.Sequential(nn.Conv2d(5, 4, 1), relu, nn.Conv2d(4, 4, 1), relu, nn.Conv2d(4, 3, 1))
    model = stitched(sender(), receiver(nn.Conv2d(6, 5, 1), chained, nn.Flatten(), stages=["0", "1", "2", "3", "4"]))
    assert agrees(model, model.folded(), images(2, 8))


def test_a_stage_that_is_a_function_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.Flatten())
    b = Network(model, example=images(2, 8), stages=["0", ("act", torch.relu), "2", ("flat", lambda x: x.flatten(1))])
    assert "the stage 'output' of the receiver is a function" in can_fold(stitched(sender(), b, "1", "act")).reason


class Called(nn.Module):
    """A convolution that is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        return self.conv(self.conv(self.first(x).relu()).relu()).flatten(1)


def test_another_call_of_the_layer_stays_as_it_is():
    network = Network(seeded(Called), example=images(2, 8), name="twice")
    model = stitched(network, network, "relu")
    assert can_fold(model).into == ("conv",)
    assert agrees(model, model.folded(), images(2, 8))
    assert len([m for m in model.folded().modules() if isinstance(m, nn.Conv2d)]) == 3


class Sized(nn.Module):
    """Reads the size of what it convolves, between two cuts."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.first = nn.Conv2d(3, 6, 1)
        self.one = nn.Conv2d(6, 6, 1)
        self.other = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        h = self.first(x).relu()
        return (self.one(h) * h.shape[self.dim] + self.other(h)).flatten(1)


class Attending(nn.Module):
    """Tokens; the scale of its attention is read off the tensor, by a size counted from the end."""

    def __init__(self, width):
        super().__init__()
        self.emb = nn.Linear(5, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in "qkv")

    def forward(self, x):
        x = self.emb(x.flatten(2))
        q, k, v = self.q(x), self.k(x), self.v(x)
        return ((q @ k.transpose(-1, -2) * x.size(-1) ** -0.5 * 30).softmax(-1) @ v).mean(1)


def test_a_size_counted_from_the_end_may_be_that_of_the_features():
    x = torch.rand(3, 4, 1, 5, generator=torch.Generator().manual_seed(0))
    nets = [Network(seeded(lambda w=w: Attending(w), w), example=x, name=str(w)) for w in (6, 24)]
    model = stitched(*nets, "emb")
    with torch.no_grad():
        next(model.stitch.parameters()).mul_(20)
    assert agrees(model, model.folded(), x)


def test_a_size_that_the_stitch_changes_must_not_be_read():
    for dim in (1, 2):
        b = Network(seeded(lambda dim=dim: Sized(dim)), example=images(2, 8), name="sized")
        model = stitched(sender(), b, "1", "relu")
        if dim == 2:
            assert agrees(model, model.folded(), images(2, 8))
        else:
            assert "also reads how many features the tensor has" in can_fold(model).reason
        same = stitched(sender(6), b, "1", "relu")
        assert agrees(same, same.folded(), images(2, 8))


def test_a_layer_with_a_parametrised_weight_takes_it_and_one_with_a_hook_does_not():
    conv = parametrizations.weight_norm(nn.Conv2d(6, 5, 3, padding=1))
    model = stitched(sender(), receiver(conv, nn.Flatten()))
    assert can_fold(model).into == ("2",)
    assert agrees(model, model.folded(), images(2, 8))
    hooked = nn.Conv2d(6, 5, 3)
    hooked.register_forward_hook(lambda module, given, out: out.abs())
    model = stitched(sender(), receiver(hooked, nn.Flatten()))
    assert "the next operation is a Conv2d ('2') with a hook" in can_fold(model).reason


def test_a_layer_whose_forward_was_replaced_does_not_take_it():
    conv = nn.Conv2d(6, 5, 3, padding=1)
    conv.forward = partial(doubled, conv)
    model = stitched(sender(), receiver(conv, nn.Flatten()))
    assert "the next operation is a Conv2d ('2') whose forward was replaced" in can_fold(model).reason


def test_a_stitch_does_not_pass_a_layer_whose_forward_was_replaced():
    pool = nn.AdaptiveAvgPool2d(1)
    layers = [pool, nn.Flatten(), nn.Linear(6, 5)]
    assert can_fold(stitched(sender(), receiver(*layers)))
    pool.forward = partial(squared, pool)
    assert not can_fold(stitched(sender(), receiver(*layers)))


def squared(pool, x):
    return nn.AdaptiveAvgPool2d.forward(pool, x) ** 2


def doubled(layer, x):
    return 2 * nn.Conv2d.forward(layer, x)


class Doubled(nn.Conv2d):
    """A convolution that does something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_class_that_computes_otherwise_is_not_taken_for_its_base():
    model = stitched(sender(), receiver(Doubled(6, 5, 3), nn.Flatten()))
    assert agrees(model, model.folded(), images(2, 8)), "traced, it is a convolution and a product"
    whole = receiver(Doubled(6, 5, 3), nn.Flatten(), stages=["0", "1", "2", "3"])
    assert "the next operation is a Doubled ('2')" in can_fold(stitched(sender(), whole)).reason


def test_a_batchnorm_takes_it_where_no_layer_does():
    for norm, layers in ((nn.BatchNorm2d(6), [nn.ReLU(), nn.Flatten()]), (nn.BatchNorm1d(6), None)):
        b = receiver(norm, *(layers or []), nn.Flatten()) if layers else _vectors(norm)
        cut = "1" if layers else "3"
        model = stitched(sender() if layers else _vectors(nn.Tanh()), b, cut)
        fold = can_fold(model)
        assert fold.into == (str(int(cut) + 1),)
        assert isinstance(model.folded().get_submodule(f"receiver.{fold.into[0]}"), nn.Conv2d if layers else nn.Linear)
        assert agrees(model, model.folded(), images(2, 8))


def _vectors(after):
    return chain(nn.Conv2d(3, 6, 8), nn.Flatten(), nn.Identity(), nn.ReLU(), after, nn.Sigmoid())


def test_through_a_batchnorm_into_the_layer_behind_it():
    b = receiver(nn.BatchNorm2d(6), nn.Conv2d(6, 5, 3, padding=1), nn.Flatten())
    model = stitched(sender(), b)
    assert can_fold(model).into == ("3",)
    assert agrees(model, model.folded(), images(2, 8))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.folded().modules())


def test_a_depthwise_convolution_becomes_a_full_one():
    model = stitched(sender(6), receiver(nn.Conv2d(6, 6, 3, groups=6), nn.Flatten()))
    assert model.folded().get_submodule("receiver.2").groups == 1
    assert agrees(model, model.folded(), images(2, 8))


def test_class_tokens_and_views():
    for name, cut in (("vit_b_16", "encoder"), ("plain", "5")):
        network = zoo_network(name)
        model = stitched(network, network, cut)
        assert can_fold(model).side == "receiver"
        assert agrees(model, model.folded(), images(2, 32))


class Viewed(nn.Module):
    """Flattens by a view that spells out the number of features, as much published code does."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.pool(self.conv(x)).view(x.size(0), 6))


def test_a_view_that_spells_out_the_features():
    b = Network(seeded(Viewed), example=images(2, 8), name="viewed")
    after = stitched(sender(), b, "1", "conv")
    assert can_fold(after) == Fold(("head",), "viewed", "receiver")
    assert agrees(after, after.folded(), images(2, 8))
    into = chain(nn.Conv2d(3, 4, 8), nn.Flatten(), nn.Tanh(), nn.Linear(4, 2))
    before = stitched(b, into, "view", "1")
    assert can_fold(before) == Fold(("conv",), "viewed", "sender")
    assert agrees(before, before.folded(), images(2, 8))


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1).contiguous().relu().permute(0, 3, 1, 2)


def viewing(m, x):
    h = m.relu(m.conv(x))
    return h.view(h.shape[0], -1)


def test_a_receiver_that_views_its_maps_is_given_them_as_they_lie_in_its_own_network():
    a = chain(nn.Conv2d(3, 4, 1), ChannelsLast(), nn.Flatten(), nn.Linear(256, 2))
    b = Network(made_of(viewing), example=images(2, 8), name="B")
    cut = [cut.name for cut in a.cuts if cut.shape == (4, 8, 8)][-1]
    assert not a.upto(cut)(images(2, 8)).is_contiguous()
    model = Stitched(Seam(a, b, cut, "relu"), nn.Identity())
    assert agrees(model, model.folded(), images(2, 8))


def test_networks_of_other_floating_types():
    double = Network(
        seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten())).double(), example=images(2, 8)
    )
    single = receiver(nn.Conv2d(6, 5, 3, padding=1), nn.Flatten())
    model = stitched(double, single)
    folded = model.folded()
    assert agrees(model, folded, images(2, 8))
    assert folded.get_submodule("receiver.2.layer").weight.dtype == torch.float32
    assert folded.get_submodule("sender.0").weight.dtype == torch.float64


# ------------------------------------------------------------------------------------------------- what is said of it


def test_what_can_fold_says():
    yes, no = can_fold(plain()[0]), can_fold(stitched(sender(), receiver(nn.Sigmoid(), nn.Flatten())))
    assert bool(yes)
    assert not no
    assert str(yes) == "yes: into '2' of the receiver R"
    assert str(no).startswith(
        "no: in the receiver R, the next operation is a Sigmoid ('2'); in the sender Sequential, "
    )
    assert str(Fold()) == "yes: there is nothing to fold"


@each(
    ("family", "shapes"),
    [
        (Conv(kernel=3), ((4, 8, 8), (6, 8, 8))),
        (StridedConv(), ((4, 16, 16), (6, 8, 8))),
        (UpsampledConv(), ((4, 4, 4), (6, 8, 8))),
        (ConvLinear(), ((4, 8, 8), (6,))),
    ],
    ids=str,
)
def test_stitches_that_change_positions_are_refused(family, shapes):
    (channels, side, _), to = shapes
    first = nn.Conv2d(3, channels, 1) if side == 8 else nn.Sequential(nn.Upsample(side), nn.Conv2d(3, channels, 1))
    a = chain(first, nn.ReLU(), nn.Flatten(), nn.Linear(channels * side**2, 2))
    b = receiver(nn.Conv2d(6, 5, 3), nn.Flatten()) if len(to) == 3 else _vectors(nn.Linear(6, 5))
    model = stitched(a, b, "1", "1" if len(to) == 3 else "3", family)
    assert can_fold(model).reason.startswith(
        "the stitch does not map the features of every position by the same matrix"
    )


class Curved(nn.Module):
    def forward(self, x):
        return x.tanh()


def test_a_stitch_with_a_non_linearity_is_refused():
    model = Stitched(Seam.at(sender(6), receiver(nn.Conv2d(6, 5, 3), nn.Flatten()), "1"), Curved())
    assert not can_fold(model)
    with pytest.raises(FoldError, match=r"does not map the features .*; keep the stitched network, or stitch at"):
        model.folded()


def features_averaged(m, x):
    h = m.relu(m.conv(x))
    return h.mean(1).mean(1)


def features_taken(m, x):
    h = m.relu(m.conv(x))
    return h[:, :3].mean((2, 3))


def features_scaled(m, x):
    h = m.relu(m.conv(x))
    return (h * 2).mean((2, 3))


@each(
    ("forward", "said"),
    [(features_averaged, "a mean"), (features_taken, "a getitem"), (features_scaled, "a mul")],
)
def test_what_acts_on_features_lets_nothing_through(forward, said):
    b = Network(made_of(forward), example=images(2, 8), name="B")
    reason = can_fold(stitched(sender(), b, "1", "relu")).reason
    assert reason.startswith(f"in the receiver B, the next operation is {said}")


def averaged_before(m, x):
    return m.next(m.relu(m.conv(x))).mean(1, keepdim=True).flatten(1)


def taken_before(m, x):
    return m.next(m.relu(m.conv(x)))[:, 1:2].flatten(1)


def padded_before(m, x):
    return torch.nn.functional.avg_pool2d(m.next(m.relu(m.conv(x))), 3, 1, 1).flatten(1)


@each("forward", [averaged_before, taken_before, padded_before])
def test_nor_back_to_the_layer_before_it(forward):
    a = Network(made_of(forward), example=images(2, 8), name="A")
    cut = a.cuts.names[-1]
    reason = can_fold(stitched(a, receiver(nn.Sigmoid(), nn.Flatten()), cut, "1")).reason
    assert f"in the sender A, the operation before it is {'an' if cut[0] == 'a' else 'a'} {cut} ('{cut}')" in reason


def written_to(m, x):
    h = m.next(m.relu(m.conv(x)))
    h.mul_(2)
    return nn.functional.dropout(h, 0.5, False).flatten(1)


class WrittenBeforeNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.conv(x)
        h.mul_(2)
        return self.norm(h).relu().flatten(1)


def test_what_is_written_to_on_the_way_is_not_passed_over():
    b = receiver(nn.Sigmoid(), nn.Flatten())
    a = Network(made_of(written_to), example=images(2, 8), name="A")
    assert (
        "a mul_ ('mul_') also reads the output of a Conv2d ('next')" in can_fold(stitched(a, b, "dropout", "1")).reason
    )
    a = Network(seeded(WrittenBeforeNorm), example=images(2, 8), name="A")
    model = stitched(a, b, "norm", "1")
    assert can_fold(model) == Fold(("norm",), "A", "sender")
    assert agrees(model, model.folded(), images(2, 8))


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.eye(6)

    def forward(self, x):
        return torch.einsum("oi,nihw->nohw", self.matrix, x)


def test_a_stitch_that_cannot_be_computed_in_float64_is_refused():
    model = Stitched(Seam.at(sender(6), receiver(nn.Conv2d(6, 5, 3), nn.Flatten()), "1"), Single())
    model(images(2, 8))
    assert can_fold(model).reason.startswith("the stitch cannot be computed in float64 (")


def test_foldable_cuts_agrees_with_folding():
    network = zoo_network("plain")
    for cut, fold in foldable_cuts(network).items():
        assert can_fold(stitched(network, network, cut)) == fold


# -------------------------------------------------------------------------------------------------- the page in docs

PAGE = Path(__file__).parents[2] / "docs" / "folding.md"


def table():
    """The rows of the page: for every network the cuts at which a stitch melts, and what keeps it from the others."""
    for name, (make, side) in NETWORKS.items():
        found = foldable_cuts(Network(seeded(make), example=images(2, side), name="N"))
        verdicts = {}
        for cut, fold in found.items():
            verdicts.setdefault(_verdict(fold), []).append(f"`{cut}`")
        for verdict in sorted(verdicts, key=lambda said: said.startswith("no")):
            yield f"| {name} | {verdict} | {', '.join(verdicts[verdict])} |"


def _verdict(fold):
    if fold:
        return f"yes, into the layer {'after' if fold.side == 'receiver' else 'before'} it"
    return "no: " + re.sub(r"in the (receiver|sender) N, | \('[^']*'\)| (at|after) '[^']*'", "", fold.reason)


def test_the_table_in_the_page_is_what_is_found():
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| ") and "`" in line] == list(table())


class Builtin(nn.Module):
    """Normalises by the operation itself, whose arguments have another order than the function's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        x, n = torch.relu(self.conv(x)), self.norm
        x = torch.batch_norm(x, n.weight, n.bias, n.running_mean, n.running_var, False, 0.1, 1e-5, False)
        return self.head(x.mean((2, 3)))


def test_the_builtin_batch_norm_folds_as_the_function_does():
    network = Network(scrambled(Builtin()), example=images(3, 8))
    cut = network.cuts.find("relu")
    stitched = Stitched(Seam.at(network, network, cut), Conv().build(cut.shape, cut.shape).eval(), Conv())
    assert can_fold(stitched)
    x = images(4, 8)
    assert torch.allclose(stitched.folded()(x), stitched(x), atol=1e-5)

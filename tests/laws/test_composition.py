"""``after(cut) ∘ upto(cut)`` is the network: bit for bit in evaluation mode, for every cut, at any batch size.

Evidence. The right-hand side is the user's own model, which Suture has only copied, called on the same preprocessed
images; bits are compared, not values. The random networks of the last section are drawn as programs of which the
strategy itself knows the meaning, so that operations in place, in any order and with results that nobody reads, are
part of what is drawn.
"""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from loops import each, examples
from models import ZOO, images, made_of, plain, scrambled, small, split_everywhere, zoo_model, zoo_network
from programs import Program, programs
from suture import Network, Preprocess
from suture.common.errors import CutError

BATCHES = (1, 3)


@each("name", ZOO, few=3)
def test_prefix_then_suffix_is_the_model_at_every_cut(name):
    for n in BATCHES:
        split_everywhere(zoo_model(name), zoo_network(name), images(n, ZOO[name][1], seed=n))


@each("name", ZOO, few=3)
def test_a_stored_activation_gives_the_models_own_bits(name):
    network, x = zoo_network(name), images(2, ZOO[name][1], seed=9)
    with torch.no_grad():
        whole = zoo_model(name)(x)
        for cut in network.cuts:
            passed = network.upto(cut)(x)
            stored = torch.empty(passed.shape).copy_(passed)
            kept = stored.clone()
            assert torch.equal(network.after(cut)(stored), whole), cut.name
            assert torch.equal(stored, kept), cut.name


@pytest.mark.slow
@each("name", ["resnet18", "vit_tiny", "convnext_tiny", "plain"], few=2)
def test_the_parts_between_cuts_compose(name):
    network, x = zoo_network(name), images(2, ZOO[name][1], seed=3)
    cuts = list(network.cuts)
    with torch.no_grad():
        first = network.upto(cuts[0])(x)
        for start, end in pairwise(cuts):
            assert torch.equal(network.between(start, end)(network.upto(start)(x)), network.upto(end)(x))
        far = network.between(cuts[0], cuts[-1])(first)
        assert torch.equal(far, network.upto(cuts[-1])(x))
        middle = cuts[len(cuts) // 2]
        assert torch.equal(network.between(middle, middle)(network.upto(middle)(x)), network.upto(middle)(x))
    with pytest.raises(CutError, match="give the earlier cut first"):
        network.between(cuts[1], cuts[0])


def test_the_preprocessing_is_part_of_the_prefix():
    model = small()
    preprocess = Preprocess(size=8, channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    grey = (images(3, 14, channels=1) * 255).to(torch.uint8)
    network = Network(model, example=grey, preprocess=preprocess)
    floats = grey.float() / 255
    resized = F.interpolate(floats, size=(8, 8), mode="bilinear", antialias=True).repeat(1, 3, 1, 1)
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.1]).view(3, 1, 1)
    with torch.no_grad():
        whole = model((resized - mean) / std)
        for cut in network.cuts:
            assert torch.equal(network.after(cut)(network.upto(cut)(grey)), whole)


# ------------------------------------------------------------------------------------------ in place


def identity(x):
    return x


def relu_modules(m, x):
    return m.end(m.relu(m.next(m.relu(m.conv(x)))))


def relu_functions(m, x):
    return m.end(F.relu(m.next(F.relu(m.conv(x), inplace=True)), True))


def relu_on_the_input(m, x):
    return m.end(m.next(m.relu(m.conv(x.sub_(0.5).relu_()))))


def result_unused(m, x):
    h = m.conv(x)
    r = m.relu(h * 1)
    h.add_(r)
    return m.end(m.next(m.relu(h)))


def function_with_unused_result(m, x):
    h = m.conv(x)
    g = m.next(h)
    F.relu(h, True)
    return m.end(h + g)


def out_argument(m, x):
    h = m.conv(x)
    g = m.next(h)
    torch.add(h, g, out=g)
    return m.end(m.relu(g))


def slices(m, x):
    h = m.conv(x)
    h[:, 0] = h[:, 1] * 2
    h = m.next(h)
    h[:, :, 2:4] += 1
    return m.end(m.relu(h))


def residual(m, x):
    h = m.relu(m.conv(x))
    h += m.next(h)
    return m.end(m.relu(h))


def residual_seen_by_an_alias(m, x):
    h = m.relu(m.conv(x))
    before = h
    h += m.next(h)
    return m.end(m.next(h * before))


def through_a_view(m, x):
    h = m.conv(x)
    view = h.flatten(2)
    view.mul_(2)
    return m.end(m.next(m.relu(h)))


def written_into_a_new_tensor(m, x):
    h = m.conv(x)
    new = torch.zeros(x.shape[0], 4, 8, 8)
    new[:, 1:] = h[:, 1:]
    return m.end(m.next(new.relu_()))


def written_into_a_new_tensor_by_out(m, x):
    h = m.conv(x)
    new = torch.zeros(x.shape[0], 4, 8, 8)
    torch.add(h, h, out=new)
    return m.end(m.next(new))


IN_PLACE = {
    relu_modules: "torch.fx",
    relu_functions: "torch.fx",
    relu_on_the_input: "torch.fx",
    result_unused: "torch.fx",
    function_with_unused_result: "torch.fx",
    out_argument: "torch.fx",
    slices: "torch.export",
    residual: "torch.fx",
    residual_seen_by_an_alias: "torch.export",
    through_a_view: "torch.fx",
    written_into_a_new_tensor: "torch.export",
    written_into_a_new_tensor_by_out: "torch.export",
}
"""With who finds the cuts."""


@each("forward", IN_PLACE, few=4)
@each("preprocess", [None, identity])
def test_operations_in_place_touch_no_cut_and_no_image(forward, preprocess):
    model = made_of(forward, inplace=True)
    network = Network(model, example=images(2, 8), preprocess=preprocess)
    assert network.backend == IN_PLACE[forward]
    assert len(network.cuts) >= 2
    for n in (*BATCHES, 4):
        split_everywhere(model, network, images(n, 8, seed=n))


def written_on_a_copy(m, x):
    """Of contiguous maps, ``contiguous`` makes a copy; of maps with features last it would not."""
    h = m.conv(x)
    g = h.permute(0, 2, 3, 1).contiguous().relu_().permute(0, 3, 1, 2)
    return m.end(m.next(h) + g)


def viewed(m, x):
    """A view of all of an image's features is refused where the channels come last."""
    h = m.conv(x)
    return m.end(m.next(h) + h.view(h.shape[0], -1).tanh().view(h.shape))


@each("forward", [written_on_a_copy, viewed])
def test_what_a_tensor_means_does_not_depend_on_its_layout(forward):
    model = made_of(forward)
    network = Network(model, example=images(2, 8))
    with torch.no_grad():
        passed = network.upto("conv")(images(2, 8))
        last = passed.contiguous(memory_format=torch.channels_last)
        kept = passed.clone()
        assert torch.equal(network.after("conv")(last), network.after("conv")(passed))
    assert torch.equal(last, kept)


@each("name", ["resnet18", "convnext_tiny", "mobilenetv3_small"], few=1)
def test_images_with_channels_last_give_the_models_own_bits_too(name):
    x = images(2, ZOO[name][1]).contiguous(memory_format=torch.channels_last)
    split_everywhere(zoo_model(name), zoo_network(name), x)


def test_a_preprocessing_that_writes_to_its_input_does_not_reach_the_images():
    x = images(2, 8)
    kept = x.clone()
    network = Network(small(), example=x, preprocess=lambda images: images.sub_(0.5))
    network(x)
    network.upto("conv")(x)
    assert torch.equal(x, kept)


# ------------------------------------------------------------------------------------- random programs


@settings(max_examples=examples(25))
@given(programs())
def test_random_networks_split_exactly(program: Program):
    model = scrambled(program.module()).eval()
    network = Network(model, example=images(2, 4, channels=2))
    for n in (*BATCHES, 4):
        split_everywhere(model, network, images(n, 4, channels=2, seed=n))


@settings(max_examples=examples(25))
@given(programs(in_place=True))
def test_random_networks_that_work_in_place_split_exactly(program: Program):
    model = scrambled(program.module()).eval()
    network = Network(model, example=images(2, 4, channels=2))
    for n in (*BATCHES, 4):
        split_everywhere(model, network, images(n, 4, channels=2, seed=n))


def test_the_plain_sequential_keeps_all_its_layers_as_cuts():
    assert zoo_network("plain").cuts.names == tuple(str(i) for i in range(len(plain()) - 1))
    assert isinstance(plain()[-1], nn.Linear)

"""A network stitched to itself through nothing is itself, bit for bit, at every cut.

Evidence: the user's own model, called on the same images.
"""

import pytest
import torch
from torch import nn

from loops import each
from models import ZOO, images, small, zoo_model, zoo_network
from suture import Network, Seam, Stitched
from suture.core.stitches import Identity, stitch_for


@each("name", ZOO, few=3)
def test_a_self_stitch_through_the_identity_is_the_network(name):
    network, x = zoo_network(name), images(2, ZOO[name][1], seed=7)
    with torch.no_grad():
        whole = zoo_model(name)(x)
        for cut in network.cuts:
            stitch = Identity().build(cut.shape, cut.shape)
            assert torch.equal(Stitched(Seam(network, network, cut, cut.name), stitch)(x), whole), cut.name


def test_the_identity_at_another_place_is_not_the_network():
    network, x = Network(small(), example=images(2, 8)), images(2, 8)
    stitched = Stitched(Seam(network, network, "conv", "relu"), nn.Identity())
    assert not torch.equal(stitched(x), network(x))


def test_the_sender_comes_first():
    a, b = (Network(small(seed), example=images(2, 8)) for seed in (1, 2))
    x = images(3, 8)
    stitched = Stitched(Seam(a, b, "relu", "add"), nn.Identity())
    with torch.no_grad():
        assert torch.equal(stitched(x), b.after("add")(a.upto("relu")(x)))
    assert not torch.equal(stitched(x), Stitched(Seam(b, a, "relu", "add"), nn.Identity())(x))


class Flat(nn.Module):
    """A stitch that needs its input contiguous."""

    def forward(self, x):
        return x.view(-1).view(x.shape)


@pytest.mark.slow
@each("name", ["convnext_tiny", "resnet18"])
def test_a_stitched_network_is_the_stitch_between_stored_activations(name):
    """What the stitch reads may lie in memory in any way; it gives the bits that it gives on a store's copy."""
    network, x = zoo_network(name), images(2, ZOO[name][1], seed=7)
    with torch.no_grad():
        for cut in network.cuts:
            stitch = stitch_for(cut.shape, cut.shape).build(cut.shape, cut.shape).eval()
            passed = network.upto(cut)(x)
            stored = torch.empty(passed.shape).copy_(passed)
            expected = network.after(cut)(stitch(stored))
            assert torch.equal(Stitched(Seam.at(network, network, cut), stitch)(x), expected), cut.name
            assert torch.equal(Stitched(Seam.at(network, network, cut), Flat())(x), network(x)), cut.name

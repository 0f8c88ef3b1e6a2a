"""Any cut of any network can be joined to any cut of any other.

Evidence: the architectures of timm and torchvision, whose shapes at the cuts nobody here chose. Stitches are built and
run on torch's ``meta`` device, which computes shapes alone.
"""

from itertools import product

import pytest
import torch

from loops import each
from models import zoo_network
from suture import Network
from suture.core.stitches import stitch_for
from suture_papers.networks.architectures import mlp

SIDE = 32
NAMES = ("resnet50", "vgg19_bn", "vit_tiny", "mixer")


def shapes(name: str) -> set[tuple[int, ...]]:
    return {cut.shape for cut in zoo_network(name).cuts}


def joined(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """What the default stitch makes of a batch of 2."""
    with torch.device("meta"):
        return stitch_for(given, wanted).build(given, wanted)(torch.ones(2, *given)).shape


@pytest.mark.slow
@each("sender", NAMES, few=3)
def test_the_default_stitch_joins_every_cut_to_every_cut(sender):
    """Built, run on one batch, and of the receiver's shape, whatever the two architectures."""
    receivers = set().union(*map(shapes, NAMES))
    for given, wanted in product(shapes(sender), receivers):
        assert joined(given, wanted) == (2, *wanted), (given, wanted)


def test_a_multilayer_perceptron_meets_maps_and_tokens():
    network = Network(mlp(width=8, depth=2, inputs=3 * SIDE**2), example=torch.rand(2, 3, SIDE, SIDE))
    own = {cut.shape for cut in network.cuts}
    for theirs, mine in product(shapes("vit_tiny") | shapes("resnet50"), own):
        for given, wanted in ((theirs, mine), (mine, theirs)):
            assert joined(given, wanted) == (2, *wanted), (given, wanted)

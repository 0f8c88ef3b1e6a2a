"""The cuts of a network at which a stitch can be folded into a neighbour, and the error (bansal2021, section 4).

At every cut a stitch of the papers' kind is put between a network and itself: a 1×1 convolution between BatchNorms on
maps, a linear map elsewhere. Its numbers are random, since whether and how exactly it folds does not depend on how it
was fitted: weights of a random rotation's size, BatchNorm statistics and shifts that are none of 0 and 1. If it can be
folded, the folded network is run beside the stitched one.
"""

import pandas as pd
import torch
from torch import Tensor, nn

from suture import Network, Seam, Stitched, can_fold
from suture.core.stitches import Conv, Linear
from suture.extend import generator, undisturbed
from suture_papers.base.cells import FOLDS
from suture_papers.base.study import Beside, Made
from suture_papers.networks.base_model import BaseModel

IMAGES = 64  #: that outputs are compared on


def plan_folds(base: BaseModel, seed: int) -> Beside:
    """Return the folds of a network: a row per cut, with ``network_seed``.

    ``melts`` (so the committed tables call it) is 1 if the stitch can be folded and 0 if not, for the ``reason`` given;
    ``into`` names the layers that take it and ``side`` whose they are. ``error`` is the largest difference of outputs
    over ``n`` images, relative to the largest output; empty if it cannot be folded.
    """

    def make(stitched: Made, network: Network) -> pd.DataFrame:
        return fold_at_each_cut(network, base.scored_on[0].images[:IMAGES], seed)

    return Beside(FOLDS, f"{base.name}, {seed}", (base,), make, (IMAGES, base.scored_on[0]))


def fold_at_each_cut(network: Network, images: Tensor, seed: int) -> pd.DataFrame:
    """Put a random stitch at each cut of a network, fold it if possible, and return a row per cut."""
    rows, images = [], images.to(network.device)
    for cut in network.cuts:
        family = Conv() if len(cut.shape) == 3 else Linear()
        stitch = draw_values(family.build(cut.shape, cut.shape), f"{cut.name} {seed}").to(network.device)
        joined = Stitched(Seam.at(network, network, cut), stitch).eval()
        fold = can_fold(joined)
        rows.append(
            {"network_seed": seed, "sender": network.name, "receiver": network.name}
            | {"sender_cut": cut.name, "receiver_cut": cut.name}
            | {"sender_depth": cut.depth, "receiver_depth": cut.depth, "stitch": str(family)}
            | {"melts": float(bool(fold)), "side": fold.side, "into": ", ".join(fold.into), "reason": fold.reason}
            | {"error": compare_outputs(joined, joined.folded(), images) if fold else float("nan"), "n": len(images)}
        )
    return pd.DataFrame(rows)


def draw_values(stitch: nn.Module, name: str) -> nn.Module:
    """Give every parameter and buffer of a stitch a random value; ``name`` decides which."""
    source = generator("folds", name)
    with torch.no_grad():
        for key, tensor in stitch.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if tensor.ndim > 1:
                tensor.copy_(torch.randn(tensor.shape, generator=source) / tensor[0].numel() ** 0.5)
            elif key.endswith(("weight", "var")):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=source))
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=source) / 2)
    return stitch


def compare_outputs(a: nn.Module, b: nn.Module, images: Tensor) -> float:
    """Return the largest difference of two networks' outputs, relative to the largest output of the first."""
    with undisturbed(), torch.no_grad():
        ours, theirs = a(images).double(), b(images).double()
    return float((ours - theirs).abs().max() / ours.abs().max())

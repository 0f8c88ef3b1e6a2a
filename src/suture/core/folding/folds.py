"""Folding: the stitch melted into a neighbouring layer, which leaves a plain model (bansal2021, section 4).

A stitch that maps the features of every position by one affine map, ``y = W·x + b``, needs no layer of its own where a
neighbour is affine in the same features:

- *after it*, in the receiver: ``K·(W·x + b) + c = (K·W)·x + (K·b + c)``, if everything that reads the tensor at the cut
  is such a layer. The map passes through what acts on positions alone (average pooling, flattening, dropout in
  evaluation mode). Before a convolution that pads with zeros the shift ``b`` is not the same at the border, where the
  padding has none: what the layer gives on the shift alone is a constant map for the size of the cut, and that map,
  less its value in the middle, which is a bias, is added after the convolution. So the border is exact too.
- *before it*, in the sender: ``W·(K·x + c) + b = (W·K)·x + (W·c + b)``, if the tensor at the cut comes from such a
  layer. No border differs.

A BatchNorm on the way is melted with it; where no layer lies behind, it becomes a linear layer or 1×1 convolution
itself. A linear layer or convolution is preferred to a BatchNorm, and then the receiver's to the sender's. A
non-linearity, or an identity skip that reads the tensor too, lets nothing through.
"""

import torch
from torch import fx, nn

from suture.common.errors import FoldError
from suture.core.folding.joint_graph import Joint, join
from suture.core.folding.layers import NotMelted
from suture.core.folding.merging import Fold, FoldPlan, apply, find
from suture.core.folding.rows import Rows, rows_of
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.seam import Seam


def fold_of(seam: Seam, stitch: nn.Module) -> Fold:
    """Say whether a stitch can be melted at a seam, fitted or not, and into what."""
    try:
        return _plan(seam, stitch)[1].fold
    except NotMelted as error:
        return Fold(reason=str(error))


def folded(seam: Seam, stitch: nn.Module) -> fx.GraphModule:
    """Make the stitched network without its stitch: a plain module from raw images to outputs.

    Raises ``FoldError``, with the reason, where the stitch cannot be melted.
    """
    try:
        joint, plan = _plan(seam, stitch)
    except NotMelted as error:
        raise FoldError(
            f"the stitch between {seam.sender.name} at '{seam.sender_cut}' and {seam.receiver.name} at "
            f"'{seam.receiver_cut}' cannot be melted: {error}; keep the stitched network as it is, or stitch at a "
            "cut that suture.foldable_cuts(network) gives"
        ) from None
    with torch.inference_mode(False), torch.no_grad():
        apply(joint, plan)
    return joint.plain()


def foldable_cuts(network: Network) -> dict[str, Fold]:
    """Say for every cut of a network whether a linear stitch there, between it and its like, can be melted.

    The stitch is any that maps the features of each position by one matrix with a shift, of maps ``(C, H, W)`` the
    channels or, where that cannot be melted, the last dimension.
    """
    return {cut.name: _at(network, cut) for cut in network.cuts}


def _at(network: Network, cut: Cut) -> Fold:
    axes = (1, 3) if len(cut.shape) == 3 else (len(cut.shape),)
    found = []
    for axis in axes:
        features = cut.shape[axis - 1]
        rows = Rows(torch.ones(features, features).double(), torch.ones(features).double(), axis)
        try:
            found.append(find(join(network, network, cut, cut), rows).fold)
        except (NotMelted, FoldError) as error:
            found.append(Fold(reason=str(error)))
    return next(filter(None, found), found[0])


def _plan(seam: Seam, stitch: nn.Module) -> tuple[Joint, FoldPlan]:
    (sender, sent), (receiver, received) = seam.sides
    try:
        joint = join(sender, receiver, sent, received)
    except FoldError as error:
        raise NotMelted(str(error)) from None
    if isinstance(stitch, nn.Identity):
        return joint, FoldPlan(Fold())
    return joint, find(joint, rows_of(stitch, sent.shape, received.shape))

"""A stitch as it is delivered: without BatchNorms whose statistics differ from those of its activations.

A fit may leave a convolution between two BatchNorms. Evaluated, they are a part of the map. Their running statistics
are those that a closed form has put there, so in training mode the stitch would be another map. So the network that a
measurement gives has them folded into the convolution, and one that is loaded has them fixed, as they were saved; what
was measured stays as it was. Who wants norms, to train the stitch on, gets them with the moments of samples.
"""

import copy as copying
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.core.fused import merge_norms
from suture.core.joint import exact, scale_and_shift
from suture.core.stitches import Stitch
from suture.core.stitches.base import features_first, set_norm


class FixedNorm(nn.BatchNorm2d):
    """A BatchNorm that stays as it is evaluated, whatever mode is asked for."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)


def without_norms(stitch: nn.Module, family: Stitch | None) -> tuple[nn.Module, Stitch | None]:
    """Return a fitted stitch of the library with its BatchNorms folded into its convolution, and its family.

    Before a convolution that pads, norms stay, fixed, because its zeros stand for the means. A stitch without norms is
    returned as it is, and so is one of the user's.
    """
    if family is None or not getattr(family, "batchnorm", False):
        return stitch, family
    made = copying.deepcopy(stitch)
    if any(any(module.padding) for module in made.modules() if isinstance(module, nn.Conv2d)):
        return fix_norms(made, family), family
    return _fold(made), replace(family, batchnorm=False)  # type: ignore[type-var]


def fix_norms(stitch: nn.Module, family: Stitch | None) -> nn.Module:
    """Let the BatchNorms of a fitted stitch of the library stay as they are evaluated, and return it."""
    for module in stitch.modules() if getattr(family, "batchnorm", False) else ():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = FixedNorm
    return stitch


def _fold(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        setattr(module, name, _fold(child))
    if type(module) is not nn.Sequential or not any(isinstance(layer, nn.BatchNorm2d) for layer in module):
        return module
    layers = merge_norms(list(module))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers).train(module.training)


def with_norms(stitch: nn.Module, given: Tensor) -> nn.Module:
    """Return a stitch that computes the same with its convolution between two BatchNorms, which have true moments.

    ``given`` is what passes the cut of samples, in the type of the stitch. Raises ``ShapeError`` unless it has exactly
    one convolution.
    """
    made = nn.Sequential(copying.deepcopy(stitch))
    places = [(parent, name, child) for parent in made.modules() for name, child in parent.named_children()]
    convs = [place for place in places if isinstance(place[2], nn.Conv2d)]
    if len(convs) != 1:
        raise ShapeError(
            f"BatchNorms stand around a single convolution, and the stitch is a {type(stitch).__name__} with "
            f"{len(convs)}; train it as it is"
        )
    (parent, name, conv), seen = convs[0], list[Tensor]()
    assert isinstance(conv, nn.Conv2d)
    hook = conv.register_forward_hook(lambda _, read, out: seen.extend((read[0], out)))
    with torch.no_grad():
        made(given)
    hook.remove()
    read, out = seen
    bias = out.new_zeros(out.shape[1]) if conv.bias is None else conv.bias.detach()
    conv.bias = None
    out = out - bias[:, None, None]
    if isinstance(parent[0] if isinstance(parent, nn.Sequential) else None, FixedNorm):  # the same maps, other moments
        assert isinstance(parent, nn.Sequential)
        first, last = (scale_and_shift(norm) for norm in (parent[0], parent[2]))  # type: ignore[arg-type]
        read = (read - first[1].to(read)[:, None, None]) / first[0].to(read)[:, None, None]
        parent[0], parent[2] = _norm(read, *first), _norm(out, *last)
    else:
        ones, zeros = torch.ones(read.shape[1]).double(), torch.zeros(read.shape[1]).double()
        after = _norm(out, torch.ones(out.shape[1]).double(), exact(bias))
        setattr(parent, name, nn.Sequential(_norm(read, ones, zeros), conv, after))
    return made[0]


def _norm(x: Tensor, scale: Tensor, shift: Tensor) -> nn.BatchNorm2d:
    """Return a BatchNorm with the moments of maps that computes ``scale · x + shift``."""
    norm = nn.BatchNorm2d(x.shape[1], device=x.device, dtype=x.dtype).eval()
    rows = exact(features_first(x))
    mean, variance = rows.mean(0), rows.var(0, correction=0)
    set_norm(norm, mean, variance, scale * (variance + norm.eps).sqrt(), shift + scale * mean)
    return norm

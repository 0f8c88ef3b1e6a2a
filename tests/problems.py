"""Small problems for fits, posed by hand or at a seam of two trained networks, and what to ask of a fitted stitch."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from suture.core.network.segments import Frozen, Segment
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    PooledLinear,
    Shape,
    Stitch,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    TwoLayer,
    UpsampledConv,
)
from suture.core.stitches.constrained import PerPixel
from suture.fits import Problem, Side
from suture.fits.optimisers import Optimiser
from trained import digits, hybrids, tensor_bits

TINY = (1e-12,)  #: a ridge that changes nothing

JOINTS: list[tuple[Stitch, Shape, Shape]] = [
    (Linear(), (5,), (4,)),
    (Linear(), (3, 5), (3, 4)),
    (Conv(), (5, 3, 3), (4, 3, 3)),
    (Conv(batchnorm=False), (5, 3, 3), (4, 3, 3)),
    (Conv(3), (3, 5, 4), (4, 5, 4)),
    (Conv(3, batchnorm=False), (3, 5, 4), (4, 5, 4)),
    (Conv(5), (2, 6, 6), (3, 6, 6)),
    (LowRank(2), (5,), (4,)),
    (LowRank(2), (5, 3, 3), (4, 3, 3)),
    (LowRank(1), (3, 5), (3, 4)),
    (Orthogonal(), (5,), (5,)),
    (Orthogonal(), (3, 5), (3, 5)),
    (Orthogonal(), (5, 3, 3), (5, 3, 3)),
    (Permutation(), (5,), (5,)),
    (Permutation(), (3, 5), (3, 5)),
    (Permutation(), (5, 3, 3), (5, 3, 3)),
    (Diagonal(), (5,), (5,)),
    (Diagonal(), (3, 5), (3, 5)),
    (Diagonal(), (5, 3, 3), (5, 3, 3)),
    (StridedConv(), (3, 4, 4), (4, 2, 2)),
    (StridedConv(), (3, 7, 8), (4, 4, 3)),
    (StridedConv(batchnorm=True), (3, 5, 2), (4, 4, 3)),
    (UpsampledConv(), (5, 2, 2), (4, 4, 4)),
    (UpsampledConv(), (5, 4, 3), (4, 7, 3)),
    (UpsampledConv(batchnorm=True), (5, 3, 3), (4, 4, 5)),
    (UpsampledConv(), (5,), (4, 3, 2)),
    (ConvLinear(), (3, 3, 2), (4,)),
    (ConvLinear(channels=2), (3, 3, 2), (4,)),
    (ConvLinear(), (4, 3), (5,)),
    (FullLinear(), (5,), (4,)),
    (FullLinear(), (2, 3, 3), (3, 2, 2)),
    (FullLinear(), (4, 3), (2, 5)),
    (MapsToTokens(), (3, 4, 4), (5, 4)),
    (MapsToTokens(), (3, 4, 4), (4, 5)),
    (MapsToTokens(), (3,), (5, 4)),
    (TokensToMaps(), (5, 3), (4, 2, 2)),
    (TokensToMaps(), (16, 3), (4, 3, 3)),
    (TokensToTokens(), (17, 3), (10, 4)),
    (TokensToTokens(), (17, 3), (9, 4)),
    (TokensToTokens(), (9, 3), (5, 4)),
    (TokensToTokens(), (6, 3), (4, 4)),
    (TwoLayer(), (5,), (4,)),
    (TwoLayer(width=4), (3, 5), (3, 4)),
    (PooledLinear(), (3, 2, 2), (4,)),
    (PooledLinear("last"), (3, 5), (4,)),
    (TwoLayer(width=11), (5, 3, 3), (4, 3, 3)),
]
"""Members of every family with two shapes that they join."""

SOME = [JOINTS[i] for i in (1, 2, 5, 8, 12, 17, 20, 24, 26, 30, 33, 37)]
"""A dozen of them that differ in kind, for tests to which each costs a fit; ``laws/test_closest`` takes all."""


def named(joint: object) -> str:
    """How pytest calls what it is given: shapes as ``3x4x4``, everything else as itself."""
    shape = isinstance(joint, tuple) and all(isinstance(size, int) for size in joint)
    return "x".join(map(str, joint)) if shape else str(joint)


def side(activations: Tensor, labels: Tensor, own: Tensor | None = None, outputs: Tensor | None = None) -> Side:
    """One data role; the receiver's own activations are by default the sender's, its outputs zeros."""
    own = activations if own is None else own
    outputs = torch.zeros(len(labels), 1) if outputs is None else outputs
    return Side(activations, labels, lambda: own, lambda: outputs)


def problem(fit: Side, validation: Side, family: Stitch, suffix: nn.Module, seed: int = 0) -> Problem:
    return Problem(family, Frozen([Segment(suffix.requires_grad_(False))]), fit, validation, seed, "A → B at middle")


def matching(family: Stitch, x: Tensor, y: Tensor, held: int = 0) -> Problem:
    """To give ``y`` for ``x``; of these the last ``held`` are for validation, or all where that is 0."""
    cut = len(x) - held
    taken = [(x[:cut], y[:cut]), (x[cut:], y[cut:]) if held else (x, y)]
    sides = [side(a, torch.zeros(len(a), dtype=torch.long), b) for a, b in taken]
    return problem(*sides, family, nn.Identity())


def built(family: Stitch, sender: Shape, receiver: Shape, seed: int = 0) -> nn.Module:
    """An unfitted stitch, drawn from a seed."""
    torch.manual_seed(seed)
    return family.build(sender, receiver)


def planted(
    n: int = 600, features: int = 6, classes: int = 4, scale: float = 1.0, mean: float = 0.0, seed: int = 0
) -> tuple[Problem, nn.Module, Callable[[nn.Module], float]]:
    """Vectors that one linear map makes right: the problem, an unfitted stitch, and the accuracy of one on new data.

    ``scale`` and ``mean`` say in which units the sender speaks; the problem is the same in all of them.
    """
    random = torch.Generator().manual_seed(seed)
    h = torch.randn(2 * n, features, generator=random)
    way = torch.linalg.qr(torch.randn(features, features, generator=random))[0]
    torch.manual_seed(seed)
    suffix = nn.Linear(features, classes)
    labels = (6 * suffix(h)).argmax(1).detach()
    suffix.weight.data.mul_(6)
    suffix.bias.data.mul_(6)
    sent = scale * (h @ way.T + mean)
    fit, validation, new = slice(0, n // 2), slice(n // 2, n), slice(n, 2 * n)

    def accuracy(stitch: nn.Module) -> float:
        with torch.no_grad():
            return float((suffix(stitch(sent[new])).argmax(1) == labels[new]).float().mean())

    outputs = suffix(h).detach()
    sides = [side(sent[part], labels[part], h[part], outputs[part]) for part in (fit, validation)]
    torch.manual_seed(seed + 100)
    return problem(sides[0], sides[1], Linear(), suffix), Linear().build((features,), (features,)), accuracy


def real(cut: str, family: Stitch, fit: int = 1080) -> tuple[Problem, nn.Module]:
    """A seam of two trained networks on the digits, and an unfitted stitch."""
    a, b = hybrids()
    roles = replace(digits().limited(fit=fit), validation=digits().validation.first(33))  # few, for speed

    def seen(samples) -> Side:
        with torch.no_grad():
            sent, own = (network.upto(cut)(samples.images).contiguous() for network in (a, b))
            return side(sent, samples.labels, own, b.after(cut)(own))

    torch.manual_seed(0)
    stitch = family.build(a.cuts.find(cut).shape, b.cuts.find(cut).shape)
    posed = Problem(family, b.after(cut), seen(roles.fit), seen(roles.validation), 0, f"A → B at {cut}")
    return posed, stitch


def rows(x: Tensor) -> np.ndarray:
    """All pixels, tokens or samples of a tensor as rows, in float64."""
    x = x.movedim(1, -1) if x.ndim == 4 else x
    return x.reshape(-1, x.shape[-1]).double().numpy()


def affine(stitch: nn.Module, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Weight (out, in) and bias of what a stitch computes at every position, found by feeding it basis vectors."""
    stitch = copy.deepcopy(stitch).double().eval()
    reads_maps = any(isinstance(module, nn.Conv2d | PerPixel) for module in stitch.modules())
    basis = torch.cat([torch.zeros(1, features), torch.eye(features)]).double()
    with torch.no_grad():
        out = stitch(basis[:, :, None, None])[:, :, 0, 0] if reads_maps else stitch(basis)
    return (out[1:] - out[0]).T.numpy(), out[0].numpy()


def validation_loss(p: Problem, stitch: nn.Module) -> float:
    with torch.no_grad():
        logits = p.suffix(copy.deepcopy(stitch).eval()(p.validation.activations))
    return float(nn.functional.cross_entropy(logits, p.validation.labels))


def validated(p: Problem, stitch: nn.Module) -> tuple[float, float]:
    """The share of validation images that it names wrong, and its mean loss: what is chosen by."""
    with torch.no_grad():
        logits = p.suffix(copy.deepcopy(stitch).eval()(p.validation.activations))
    wrong = float((logits.argmax(1) != p.validation.labels).double().mean())
    return wrong, float(nn.functional.cross_entropy(logits, p.validation.labels))


def state(stitch: nn.Module) -> dict[str, str]:
    return {name: tensor_bits(tensor) for name, tensor in stitch.state_dict().items()}


@dataclass(frozen=True)
class Spied(Optimiser):
    """An optimiser that writes down the rate of every step that is really taken."""

    real: Optimiser
    rates: list[float] = field(default_factory=list)

    @property
    def lr(self):
        return self.real.lr

    def over(self, parameters):
        optimiser = self.real.over(parameters)
        optimiser.register_step_pre_hook(lambda used, *_: self.rates.append(used.param_groups[0]["lr"]))
        return optimiser

"""Descending on standardised features.

How far a step of gradient descent moves a linear stitch depends on the scale of what it reads: an untrained sender's
features may be a hundredfold smaller than a trained one's, and a short fit would then report the learning rate instead
of the representation. A stitch that does not begin with a norm is therefore rewritten, for the time of the descent, to
read ``(x − mean) / std`` with the feature means and deviations of the fit data, and rewritten back afterwards. Both are
exact changes of coordinates within the family. A stitch that is still random is taken as drawn for the standardised
features, and only rewritten back: else its first outputs, too, would be in the sender's units.
"""

from types import TracebackType

import torch
from torch import Tensor, nn

from suture.fits.problem import Problem
from suture.stitches import AffineStitch

_CHUNK = 256
_LEAST = 1e-6  #: features whose deviation is below this share of the largest count as constant


class Standardised:
    """While entered: the stitch reads standardised features, and the object maps activations to them.

    Does nothing where ``wanted`` is false or the family takes care of it. With ``rewrite=False`` the stitch is taken to
    read standardised features already.
    """

    def __init__(self, problem: Problem, stitch: nn.Module, wanted: bool, *, rewrite: bool = True) -> None:
        family = problem.family
        self.family = family if isinstance(family, AffineStitch) else None
        self.stitch, self.rewrite = stitch, rewrite
        self.layer = self.family.input_layer(stitch) if self.family is not None and wanted else None
        if self.layer is not None:
            self.mean, self.std = self._measure(problem.fit.activations)

    def _measure(self, activations: Tensor) -> tuple[Tensor, Tensor]:
        assert self.family is not None
        assert self.layer is not None
        total = square = torch.zeros((), dtype=torch.float64)
        count = 0
        shift = self.family.rows(activations[:_CHUNK]).double().mean(0)
        for part in activations.split(_CHUNK):  # type: ignore[no-untyped-call]
            rows = self.family.rows(part).double() - shift
            total, square, count = total + rows.sum(0), square + rows.square().sum(0), count + len(rows)
        std = (square / count - (total / count).square()).clamp(min=0).sqrt()
        std = torch.where(std > _LEAST * std.max(), std, 1.0)
        like = self.layer.weight
        return (shift + total / count).to(like), std.to(like)

    def __enter__(self) -> "Standardised":
        if self.layer is not None and self.rewrite:
            _rebase(self.layer, self.mean, self.std)
        return self

    def __call__(self, activations: Tensor) -> Tensor:
        """Map a batch of activations to what the stitch now reads."""
        if self.layer is None:
            return activations
        mean, std = self.mean, self.std
        if isinstance(self.layer, nn.Conv2d):
            mean, std = mean[:, None, None], std[:, None, None]
        return (activations - mean) / std

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.layer is not None:
            _rebase(self.layer, -self.mean / self.std, 1 / self.std)
        self.stitch.eval()


def _rebase(layer: nn.Linear | nn.Conv2d, mean: Tensor, std: Tensor) -> None:
    """Make the layer do to ``(x − mean) / std`` what it did to ``x``."""
    weight = layer.weight.detach().flatten(1).double()
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.copy_(layer.bias.double() + weight @ mean.double())
        layer.weight.copy_((weight * std.double()).reshape(layer.weight.shape))

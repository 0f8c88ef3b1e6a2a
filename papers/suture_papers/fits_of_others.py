"""Fits that match the receiver's own layers behind the cut, and one that needs no training.

A match at the cut alone counts every direction alike, also those that the receiver's layers drop, and what is off by
little there may be off by much behind them. So ``FunctionalLatentAlignment`` lets the stitched network and the receiver
agree at the cut and at every cut behind it, as hints do in knowledge distillation (Athanasiadis, Karmush & Felsberg
2025, arXiv:2505.20142), and ``MatchPenultimate`` at the features that the receiver's head reads, from which the task's
loss is then descended (Mai et al. 2026, arXiv:2603.12433). Neither sees a label.

``RelativeRepresentations`` trains nothing: each sample is its similarities to a few *anchors*, samples that both
networks are shown, which are nearly the same in two networks whose spaces differ by a rotation (Moschella et al. 2023,
arXiv:2209.15430). That paper trains the receiver's layers on similarities. A receiver that was not is given the
activation that has them to its own anchors (Maiorca et al. 2024, arXiv:2406.15057).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.core.stitches import AffineMap, AffineStitch
from suture.extend import CHUNK, accumulate_moments, generator, is_one_map, keyed_as
from suture.fits import Fit, FitReport, GradientDescent, Problem, Random, Side

_TINY = 1e-12  #: the least norm that a distance is relative to


@keyed_as("FunctionalLatentAlignment of what counts")
@final
@dataclass(frozen=True)
class FunctionalLatentAlignment(GradientDescent):
    """The mean over the receiver's cut and all cuts behind it of ‖stitched − own‖ / ‖own‖, by gradient descent.

    The norms are Frobenius norms of a batch; the outputs are not a hint. The settings are those of ``GradientDescent``;
    with those of ``recipes.athanasiadis2025`` it is FuLA as its authors' code computes it, whose hints are the ends of
    the receiver's blocks.
    """

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the mean relative distance over all hints."""
        expected = side.expected()
        behind = list(problem.suffix.segments)[:-1]  # the last gives the outputs

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            pairs = zip(_walk(behind, represented), _walk(behind, expected[chosen].to(represented)), strict=True)
            there = [(_counted(got - own, side, chosen), _counted(own, side, chosen)) for got, own in pairs]
            return torch.stack([off.norm() / own.norm().clamp(min=_TINY) for off, own in there]).mean()

        return of


@keyed_as("MatchPenultimate of what counts")
@final
@dataclass(frozen=True)
class MatchPenultimate(GradientDescent):
    """Mean squared error to the receiver's own features before its last layer with parameters, by gradient descent.

    The loss ("final feature matching") is in units of the variance of those features on the first ``CHUNK`` fit
    samples. Behind the last such layer it is taken at the cut. The settings are those of ``GradientDescent``. The paper
    goes on from there by the task's loss: ``TaskLoss(start=MatchPenultimate())``, or ``recipes.mai2026``.
    """

    start: Fit = Random()

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the mean squared error of the features."""
        segments = list(problem.suffix.segments)
        head = max((i for i, one in enumerate(segments) if next(one.parameters(), None) is not None), default=0)
        expected, before = side.expected(), nn.Sequential(*segments[:head])
        with torch.no_grad():
            first = _counted(before(problem.fit.expected()[:CHUNK].to(device)), problem.fit, slice(CHUNK))
        unit = float(first.float().var(0, correction=0).mean()) or 1.0

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            with torch.no_grad():
                own = before(expected[chosen].to(represented))
            off = _counted(before(represented) - own, side, chosen)
            return off.square().mean() / unit

        return of


def _counted(x: Tensor, side: Side, chosen: Tensor | slice) -> Tensor:
    """Return the rows of tokens that count, if ``x`` has a row for each and some do not; else ``x``."""
    if side.counted is None or x.shape[1:2] != side.counted.shape[1:] or x.ndim < 3:
        return x
    return x[side.counted[chosen].to(x.device)]


def _walk(segments: list[nn.Module], x: Tensor) -> Iterator[Tensor]:
    """Yield a tensor, and the output of each segment in turn."""
    yield x
    for segment in segments:
        x = segment(x)
        yield x


@keyed_as("RelativeRepresentations of what counts")
@final
@dataclass(frozen=True)
class RelativeRepresentations(Fit):
    """The map that keeps each row's similarities to ``anchors``, drawn from the fit data, without any training.

    With rows about their means and anchors of unit length, ``A`` the sender's (anchors, in) and ``B`` the receiver's
    (anchors, out) of the same samples and positions, a row ``x`` becomes ``c B⁺ A x``: the row whose similarities to
    the receiver's anchors are those of ``x`` to the sender's, in the least squares. Similarities are cosines times the
    row's own length, which cosines alone would lose; ``c`` brings the mean square of what is given to the receiver's.
    Singular values of ``B`` below ``cutoff`` of the largest are left out of ``B⁺``, which else blows up what no two
    networks share; that is ours, and 0.2 was chosen on two small networks on digits (Maiorca et al. thin the anchors
    instead). 500 anchors are those of the first paper's code on images, which draws as many of each class. Families of
    one map of rows alone; raises ``FitError`` for others, and for fewer than two anchors.
    """

    anchors: int = 500
    cutoff: float = 0.2

    def __post_init__(self) -> None:
        if self.anchors < 2:
            raise FitError(f"RelativeRepresentations(anchors={self.anchors}): name at least 2")

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Load the map; anchors are drawn among the positions that count."""
        family, side = problem.family, problem.fit
        if not (isinstance(family, AffineStitch) and is_one_map(family)):
            raise FitError(f"RelativeRepresentations makes one map of rows, which {family} is not; use Conv or Linear")
        (part,) = family.parts(stitch, side.activations)
        known = accumulate_moments(side.activations, side.expected(), part, counted=side.counted)
        order = torch.randperm(len(side.labels), generator=generator("anchors", problem.seed))
        chosen = (order if side.counted is None else order[side.counted.cpu().any(1)[order]])[: self.anchors]
        sent, own = (rows[chosen] for rows in (side.activations, side.expected()))
        rows = part.solved(sent).cpu().double(), part.gives(own.to(sent.device)).cpu().double()
        # One position of each anchor, the same in both networks: those of one image are much alike.
        positions = len(rows[0]) // len(chosen)
        random = generator("positions", problem.seed)
        if side.counted is None:
            drawn = torch.randint(positions, (len(chosen),), generator=random)
        else:
            drawn = torch.multinomial(side.counted[chosen].cpu().double(), 1, generator=random).flatten()
        at = torch.arange(len(chosen)) * positions + drawn
        a, b = (side[at] - mean for side, mean in zip(rows, (known.mean_x, known.mean_y), strict=True))
        weight = torch.linalg.pinv(nn.functional.normalize(b), rtol=self.cutoff) @ nn.functional.normalize(a)
        given = (weight @ known.xx * weight).sum(1).clamp(min=0)
        scale = (known.yy.sum() / given.sum()).sqrt() if given.any() else torch.tensor(1.0)
        weight, given = weight * scale, given * scale.square()
        bias = known.mean_y - weight @ known.mean_x
        part.load(part.whole(AffineMap(weight, bias, known.mean_x, known.xx.diagonal().clamp(min=0), given)))
        stitch.eval()
        return FitReport(start="closed form")

"""The outputs of a stitched network on many images: through the lean suffix, yet no score is another for it.

Outputs in bfloat16 are off by a few thousandths, which turns the prediction of images that two classes nearly share.
How far the difference between two outputs of one image is off is measured on the first ``CHUNK`` images against the
eager suffix. Every image whose two largest outputs lie closer than ``SAFETY`` times the most that was seen is then
computed by the lean suffix in float32 and, where that too leaves it in doubt, by the eager one: so the largest output
is the right one. A precision in which too many images are that close is not used, and few images are computed eagerly
to begin with. A score that needs more than the largest output and its rough size (``Score.coarse``) gets no lower
precision than float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.activations import CHUNK, stepwise
from suture.fits.suffixes import MakeLean, name_of, precisions
from suture.lean import Lean
from suture.network import Frozen

LEAST = 1024  #: images from which on a lean suffix is worth being compared
SAFETY = 1.5  #: times the most that was seen on the probe
DOUBTFUL = 0.2  #: the share of images that may have to be computed again

Represented = Callable[[Tensor], Tensor]
"""What the stitch makes of the samples with these indices, on the receiver's device."""


def outputs(
    own: Frozen, lean: MakeLean | None, represented: Represented, count: int, coarse: bool
) -> tuple[Tensor, tuple[str, ...]]:
    """Compute the outputs ``(count, outputs)`` of the suffix on the CPU, and say in words where no lean one would do.

    ``coarse`` allows lower precision than float32.
    """
    order = torch.arange(count)
    if lean is None or count < LEAST:
        return _eagerly(own, represented, order), ()
    given = represented(order[:CHUNK])
    exact = stepwise(own, given).cpu()
    leans, refused = [], list[str]()
    for dtype in precisions(given.device):
        if dtype != torch.float32 and not coarse:
            continue
        made = lean(dtype)
        tried = _tried(made, given, exact) if made is not None else None
        if tried is not None:
            leans.append(tried)
        else:
            refused.append(name_of(dtype))
    found = _certified(own, leans, represented, exact, order[CHUNK:])
    return found, _said(refused, name_of(leans[0].run.dtype) if leans else "the receiver as it is")


@dataclass(frozen=True, eq=False)
class _Lean:
    """A lean suffix, and how far apart two outputs must lie for their order to be certain."""

    run: Lean
    apart: float


def _tried(made: Lean, given: Tensor, exact: Tensor) -> _Lean | None:
    """The suffix with what it was seen to be off by; ``None`` where too many images are in doubt for it."""
    try:
        with torch.no_grad():
            out = made(given).cpu()
    except Exception:  # a body that no other layout or type suits
        return None
    off = out - exact
    apart = SAFETY * float((off.amax(1) - off.amin(1)).max())
    doubtful = float((_margins(out) <= apart).float().mean())
    return _Lean(made, apart) if doubtful <= DOUBTFUL and apart < float("inf") else None


def _certified(own: Frozen, leans: Sequence[_Lean], represented: Represented, exact: Tensor, rest: Tensor) -> Tensor:
    """The outputs of the rest after those that are known; what one suffix leaves in doubt is left to the next."""
    found = torch.cat([exact, exact.new_zeros(len(rest), exact.shape[1])])
    for lean in leans:
        with torch.no_grad():
            for part in _parts(rest):
                found[part] = lean.run(represented(part)).cpu()
        doubtful = (_margins(found[rest]) <= lean.apart) | ~found[rest].isfinite().all(1)
        rest = rest[doubtful]
    if len(rest):
        found[rest] = _eagerly(own, represented, rest)
    return found


def _margins(out: Tensor) -> Tensor:
    """By how much the largest output of every image exceeds the second; infinite where there is but one."""
    if out.shape[1] < 2:
        return torch.full((len(out),), torch.inf)
    first, second = out.topk(2, 1).values.unbind(1)
    return first - second


def _eagerly(own: Frozen, represented: Represented, chosen: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([stepwise(own, represented(part)).cpu() for part in _parts(chosen)])


def _parts(chosen: Tensor) -> Sequence[Tensor]:
    return chosen.split(CHUNK)  # type: ignore[no-any-return, no-untyped-call]


def _said(refused: list[str], instead: str) -> tuple[str, ...]:
    if not refused:
        return ()
    return (f"in {' and '.join(refused)} too many predictions would be in doubt: scored through {instead}",)

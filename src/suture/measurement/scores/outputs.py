"""The outputs of a stitched network on many images: through the fused suffix, yet no score is another for it.

Outputs in bfloat16 are off by a few thousandths, which turns the prediction of images that two classes nearly share.
How far the difference between two outputs of one image is off is measured on the first ``CHUNK`` images against the
eager suffix. Every image whose two largest outputs lie closer than ``SAFETY`` times the most that was seen is then
computed by the fused suffix in float32 and, where that too leaves it in doubt, by the eager one: so the largest output
is the right one. A precision in which too many images are that close is not used, and few images are computed eagerly
to begin with. A score that needs more than the largest output and its rough size (``Score.coarse``) gets no lower
precision than float32.

As a descent does (``suture.fits.suffix``), it asks for what a suffix makes of tensors instead of computing it, so
that several stitched networks can share a pass.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from suture.core.activations.cache import CHUNK, run_stepwise
from suture.core.fused import Fused
from suture.core.network.network import Frozen
from suture.fits.lockstep import lockstep
from suture.fits.suffix import MakeFused, name_of, precisions

LEAST = 1024  #: images from which on a fused suffix is worth being compared
SAFETY = 1.5  #: times the most that was seen on the probe
DOUBTFUL = 0.2  #: the share of images that may have to be computed again

Represented = Callable[[Tensor], Tensor]
"""What the stitch makes of the samples with these indices, on the receiver's device."""


@dataclass(frozen=True, eq=False)
class Pass:
    """Represented tensors ``(n, *receiver shape)`` whose outputs through a suffix somebody wants to know."""

    run: nn.Module  #: ``Frozen`` or ``Fused``
    given: Tensor


_T = TypeVar("_T")
Passing = Generator[Pass, Tensor, _T]
"""Work that asks for outputs ``(n, outputs)`` on the CPU as it goes, and ends in a result."""

Outputs = tuple[Tensor, tuple[str, ...]]


def outputs(
    own: Frozen,
    fused: MakeFused | None,
    represented: Represented,
    count: int,
    coarse: bool,
    cheaply: Represented | None = None,
) -> Outputs:
    """Compute the outputs ``(count, outputs)`` of the suffix on the CPU, and say in words where no fused one would do.

    ``coarse`` allows lower precision than float32. ``cheaply`` is a cheaper way to what the stitch makes, if any, whose
    error is measured with the fused suffix's.
    """
    (found,) = together([asking(own, fused, represented, count, coarse, cheaply)])
    if isinstance(found, Exception):
        raise found
    return found


def asking(
    own: Frozen,
    fused: MakeFused | None,
    represented: Represented,
    count: int,
    coarse: bool,
    cheaply: Represented | None = None,
) -> Passing[Outputs]:
    """Find ``outputs``, asking for the passes."""
    order = torch.arange(count)
    if fused is None or count < LEAST:
        return (yield from _eagerly(own, represented, order)), ()
    exact = yield Pass(own, represented(order[:CHUNK]))
    given = (cheaply or represented)(order[:CHUNK])
    suffixes, refused = [], list[str]()
    for dtype in precisions(given.device):
        if dtype != torch.float32 and not coarse:
            continue
        made = fused(dtype)
        if made is None:
            continue
        tried = yield from _tried(made, given, exact, dtype)
        if tried is not None:
            suffixes.append(tried)
        else:
            refused.append(name_of(dtype))
    found = yield from _certified(own, suffixes, represented, cheaply or represented, exact, order[CHUNK:])
    return found, _said(refused, name_of(suffixes[0].dtype) if suffixes else "the receiver as it is")


def together(works: Sequence[Passing[_T]]) -> list[_T | Exception]:
    """Do work whose passes are shared where they go through one suffix; the results in order, or what went wrong."""
    return lockstep(works, _through, kind=lambda each: id(each.run), images=lambda each: len(each.given))


def _through(passes: Sequence[Pass]) -> list[Tensor]:
    """The outputs of one suffix for all of them."""
    run = passes[0].run
    given = passes[0].given if len(passes) == 1 else torch.cat([each.given for each in passes])
    with torch.no_grad():
        out = (run_stepwise(run, given) if isinstance(run, Frozen) else run(given)).cpu()
    return list(torch.split(out, [len(each.given) for each in passes]))


@dataclass(frozen=True, eq=False)
class _TriedSuffix:
    """A fused suffix, and how far apart two outputs must lie for their order to be certain."""

    run: Fused
    apart: float
    dtype: torch.dtype


def _tried(made: Fused, given: Tensor, exact: Tensor, dtype: torch.dtype) -> Passing[_TriedSuffix | None]:
    """The suffix with what it was seen to be off by; ``None`` where too many images are in doubt for it."""
    try:
        out = yield Pass(made, given)
    except Exception:  # a body that no other layout or type suits
        return None
    off = out - exact
    apart = SAFETY * float((off.amax(1) - off.amin(1)).max())
    doubtful = float((_margins(out) <= apart).float().mean())
    return _TriedSuffix(made, apart, dtype) if doubtful <= DOUBTFUL and apart < float("inf") else None


def _certified(
    own: Frozen,
    suffixes: Sequence[_TriedSuffix],
    represented: Represented,
    cheaply: Represented,
    exact: Tensor,
    rest: Tensor,
) -> Passing[Tensor]:
    """The outputs of the rest after those that are known; what one suffix leaves in doubt is left to the next."""
    found = torch.cat([exact, exact.new_zeros(len(rest), exact.shape[1])])
    for fused in suffixes:
        for part in _parts(rest):
            found[part] = yield Pass(fused.run, cheaply(part))
        doubtful = (_margins(found[rest]) <= fused.apart) | ~found[rest].isfinite().all(1)
        rest = rest[doubtful]
    if len(rest):
        found[rest] = yield from _eagerly(own, represented, rest)
    return found


def representation_error(represented: Callable[[Tensor], Tensor], given: Tensor, own: Tensor) -> float:
    """Σ‖represented(given) − own‖² / Σ‖own − its mean‖², not a number where the receiver's own do not vary.

    ``given`` are the sender's activations, ``own`` the receiver's, of the same samples.
    """
    total = sum(part.sum(0, dtype=torch.float64) for part in torch.split(own, CHUNK))
    wide = torch.promote_types(own.dtype, torch.float32)  # squares of halves are no halves
    mean = (torch.as_tensor(total) / len(own)).to(own.device, wide)
    off = spread = 0.0
    for start in range(0, len(given), CHUNK):
        expected = own[start : start + CHUNK].to(wide)
        sent = represented(given[start : start + CHUNK].clone()).to(wide)
        off += float((sent - expected).square().sum(dtype=torch.float64))
        spread += float((expected - mean).square().sum(dtype=torch.float64))
    return off / spread if spread > 0 else float("nan")


def _margins(out: Tensor) -> Tensor:
    """By how much the largest output of every image exceeds the second; infinite where there is but one."""
    if out.shape[1] < 2:
        return torch.full((len(out),), torch.inf)
    first, second = out.topk(2, 1).values.unbind(1)
    return first - second


def _eagerly(own: Frozen, represented: Represented, chosen: Tensor) -> Passing[Tensor]:
    found = []
    for part in _parts(chosen):
        found.append((yield Pass(own, represented(part))))
    return torch.cat(found)


def _parts(chosen: Tensor) -> Sequence[Tensor]:
    return chosen.split(CHUNK)  # type: ignore[no-any-return, no-untyped-call]


def _said(refused: list[str], instead: str) -> tuple[str, ...]:
    if not refused:
        return ()
    return (f"in {' and '.join(refused)} too many predictions would be in doubt: scored through {instead}",)

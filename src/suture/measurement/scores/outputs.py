"""The outputs of a stitched network on many images: through the fused suffix, without changing a prediction.

Outputs in bfloat16 are off by a few thousandths, which turns the prediction of images that two classes nearly share.
How far the difference between two outputs of one image is off is measured on the first ``CHUNK`` images against the
eager suffix. Every image whose two largest outputs lie closer than ``SAFETY`` times the most that was seen is then
computed by the fused suffix in float32 and, if that too leaves it in doubt, by the eager one: so the largest output
is the right one. A precision in which too many images are that close is not used, and few images are computed eagerly
to begin with. A score that needs more than the largest output and its rough size (``Score.coarse``) gets no lower
precision than float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.core.activations.cache import CHUNK, run_stepwise
from suture.core.fused import Fused
from suture.core.network.network import Frozen
from suture.fits.fast import MakeFused, list_precisions, name_dtype

LEAST = 1024  #: images from which on a fused suffix is worth being compared
SAFETY = 1.5  #: times the most that was seen on the probe
DOUBTFUL = 0.2  #: the share of images that may have to be computed again

Represent = Callable[[Tensor], Tensor]
"""Returns what the stitch makes of the samples with these indices, on the receiver's device."""
Outputs = tuple[Tensor, tuple[str, ...]]


def compute_outputs(
    own: Frozen,
    fused: MakeFused | None,
    represent: Represent,
    count: int,
    coarse: bool,
    cheaply: Represent | None = None,
) -> Outputs:
    """Compute the outputs ``(count, outputs)`` of the suffix on the CPU, and say in words if no fused one would do.

    ``coarse`` allows lower precision than float32. ``cheaply`` is a cheaper way to what the stitch makes, if any; its
    error is measured together with the fused suffix's.
    """
    everything = torch.arange(count)
    if fused is None or count < LEAST:
        return _run_eagerly(own, represent, everything), ()
    cheaply = cheaply or represent
    exact = _run(own, represent(everything[:CHUNK]))
    given = cheaply(everything[:CHUNK])
    agreeing, refused = [], list[str]()
    for dtype in list_precisions(given.device):
        made = fused(dtype) if dtype == torch.float32 or coarse else None
        if made is None:
            continue
        tried = _try_suffix(made, given, exact, dtype)
        if tried is not None:
            agreeing.append(tried)
        else:
            refused.append(name_dtype(dtype))
    rest = everything[CHUNK:]
    found = torch.cat([exact, exact.new_zeros(len(rest), exact.shape[1])])
    for suffix in agreeing:  # what one leaves in doubt is left to the next, which is more precise
        for part in _chunks(rest):
            found[part] = _run(suffix.run, cheaply(part))
        doubtful = (_margins(found[rest]) <= suffix.apart) | ~found[rest].isfinite().all(1)
        rest = rest[doubtful]
    if len(rest):
        found[rest] = _run_eagerly(own, represent, rest)
    return found, _explain(refused, name_dtype(agreeing[0].dtype) if agreeing else "the receiver itself")


@dataclass(frozen=True, eq=False)
class _TriedSuffix:
    """A fused suffix, and how far apart two outputs must lie for their order to be certain."""

    run: Fused
    apart: float
    dtype: torch.dtype


def _try_suffix(made: Fused, given: Tensor, exact: Tensor, dtype: torch.dtype) -> _TriedSuffix | None:
    """Return the suffix with what it was seen to be off by; ``None`` if it leaves too many images in doubt."""
    try:
        out = _run(made, given)
    except Exception:  # a user's layer may refuse another memory layout or floating type
        return None
    off = out - exact
    apart = SAFETY * float((off.amax(1) - off.amin(1)).max())
    doubtful = float((_margins(out) <= apart).float().mean())
    return _TriedSuffix(made, apart, dtype) if doubtful <= DOUBTFUL and apart < float("inf") else None


def representation_error(represent: Callable[[Tensor], Tensor], given: Tensor, own: Tensor) -> float:
    """Return Σ‖represent(given) − own‖² / Σ‖own − its mean‖², not a number if the receiver's own do not vary.

    ``given`` are the sender's activations, ``own`` the receiver's, of the same samples.
    """
    total = sum(part.sum(0, dtype=torch.float64) for part in torch.split(own, CHUNK))
    wide = torch.promote_types(own.dtype, torch.float32)  # a square of float16 numbers may overflow
    mean = (torch.as_tensor(total) / len(own)).to(own.device, wide)
    off = spread = 0.0
    for start in range(0, len(given), CHUNK):
        expected = own[start : start + CHUNK].to(wide)
        sent = represent(given[start : start + CHUNK].clone()).to(wide)
        off += float((sent - expected).square().sum(dtype=torch.float64))
        spread += float((expected - mean).square().sum(dtype=torch.float64))
    return off / spread if spread > 0 else float("nan")


def _margins(out: Tensor) -> Tensor:
    """By how much the largest output of every image exceeds the second; infinite if there is but one."""
    if out.shape[1] < 2:
        return torch.full((len(out),), torch.inf)
    first, second = out.topk(2, 1).values.unbind(1)
    return first - second


def _run(suffix: Frozen | Fused, given: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = run_stepwise(suffix, given) if isinstance(suffix, Frozen) else suffix(given)
    return out.cpu()


def _run_eagerly(own: Frozen, represent: Represent, chosen: Tensor) -> Tensor:
    return torch.cat([_run(own, represent(part)) for part in _chunks(chosen)])


def _chunks(chosen: Tensor) -> Sequence[Tensor]:
    return chosen.split(CHUNK)  # type: ignore[no-any-return, no-untyped-call]


def _explain(refused: list[str], instead: str) -> tuple[str, ...]:
    if not refused:
        return ()
    return (f"in {' and '.join(refused)} too many predictions would be in doubt: scored through {instead}",)

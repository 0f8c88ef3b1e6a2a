"""What lies between two cuts: modules that follow one another and never touch the tensor that passes.

Bits depend on more than values: on the type of a tensor and on how its dimensions lie in memory. A segment therefore
brings what it is given, which may come from a store or a stitch, to what the tensor is in the network itself. And it
works on a copy wherever it would write to its input. What passes has its features where its shape says
(``feature_axis``).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from suture.common.hashing import keyed_as
from suture.core.network.feature_axis import bring_to_shape
from suture.core.network.graph import GraphError
from suture.data.preprocess import are_token_ids


@keyed_as("Segment")
class Segment(nn.Module):
    """What lies between two cuts: always frozen, always in evaluation mode.

    ``dtype`` is the type that its input has in the network, ``order`` the order of its dimensions in memory, from the
    slowest to the fastest. A contiguous tensor, as a store or a stitch gives it, is brought to that order; where
    ``fixed`` is set any tensor is, since the body would do something else with another. Where ``copies`` is set the
    body writes to its input, and so gets a copy.
    """

    def __init__(
        self,
        body: nn.Module,
        copies: bool = False,
        dtype: torch.dtype | None = None,
        order: tuple[int, ...] | None = None,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.body, self.copies, self.dtype, self.order, self.fixed = body, copies, dtype, order, fixed
        super().train(False)

    def train(self, mode: bool = True) -> "Segment":
        """Stay in evaluation mode, whatever is asked."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map the tensor at one cut to the tensor at the next."""
        given = x if self.dtype is None else x.to(self.dtype)
        if self.order is not None and (self.fixed or given.is_contiguous()):
            given = _in_order(given, self.order)
        out: Tensor = self.body(given.clone() if self.copies else given)
        return out


def _order(x: Tensor) -> tuple[int, ...] | None:
    """Return the dimensions from the slowest in memory to the fastest; ``None`` if some share their memory."""
    if x.is_contiguous():
        return tuple(range(x.ndim))
    return None if 0 in x.stride() else tuple(sorted(range(x.ndim), key=x.stride, reverse=True))


def _in_order(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return a copy, unless it lies so already, whose dimensions lie in this order."""
    back = [order.index(dim) for dim in range(x.ndim)]
    return x.permute(*order).contiguous().permute(*back)


def have_same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in shape, type and every bit; what is not a number equals itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(x.detach().contiguous().view(-1).view(torch.uint8) for x in (a, b)))


def build_segments(
    bodies: Sequence[nn.Module], probes: Sequence[Tensor], wanted: Sequence[Tensor]
) -> tuple[Segment, ...]:
    """Make segments of bodies; ``probes`` are inputs of at least two batch sizes, ``wanted`` the outputs of the whole.

    Raises ``GraphError`` if the chain does not give the output bit for bit, or what passes is no batch of numbers.
    """
    with torch.no_grad():
        segments = _protect(bring_to_shape(bodies, probes[1]), probes[1])
        for probe, want in zip(probes, wanted, strict=True):
            if not have_same_bits(_run(segments, probe), want):
                raise GraphError("split here, the model does not give its own output bit for bit")
    return segments


def _run(segments: Sequence[Segment], x: Tensor) -> Tensor:
    for segment in segments:
        before = x._version
        x, given = segment(x), x
        if given._version != before:
            raise GraphError("an operation in place reaches back through it")
    return x


def _protect(bodies: Sequence[nn.Module], x: Tensor) -> tuple[Segment, ...]:
    """Pieces that copy their input exactly where they would change it, and take no layout that they cannot."""
    segments: list[Segment] = []
    batch = len(x)
    for body in bodies:
        if segments or not are_token_ids(x):
            _check_passes(x, batch, "it" if segments else "its input")
        own, *others = [_writes(body, layout) for layout in _vary_layout(x[:1])]
        dtype = x.dtype if segments else None
        segments.append(Segment(body, own is not False, dtype, _order(x), fixed=any(other != own for other in others)))
        x = segments[-1](x)
    return tuple(segments)


def _check_passes(x: object, batch: int, it: str) -> None:
    if not isinstance(x, Tensor):
        raise GraphError(f"{it} is a {type(x).__name__}, not one tensor")
    if not x.is_floating_point():
        raise GraphError(f"{it} does not hold floating-point numbers")
    if x.ndim < 1 or len(x) != batch:
        raise GraphError(f"{it}, of shape {tuple(x.shape)}, has another first dimension than the batch")


def _vary_layout(x: Tensor) -> Iterator[Tensor]:
    """Return copies of a tensor that lie in memory as it does, and with the features last or first."""
    yield x.clone()
    for last in {1, -1} if x.ndim > 2 else ():
        yield x.movedim(1, last).contiguous().movedim(last, 1).clone()


def _writes(body: nn.Module, given: Tensor) -> bool | None:
    """Whether it writes to what it is given; ``None`` if it cannot take it."""
    before = given._version
    try:
        Segment(body)(given)
    except Exception:
        return None
    return given._version != before

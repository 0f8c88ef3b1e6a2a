"""The cuts of a network, through which exactly one tensor passes, and the work and parameters before each.

A cut after tensor ``v`` splits a network into a prefix ``x → v`` and a suffix ``v → output``. In the graph of the
network's data that is a *dominator* of the output: every path from the input to the output passes through ``v``, so no
skip jumps over it. Cuts carry the name of the module that produced the tensor (``layer2.0``); where several modules end
in the same tensor (``layer2.1.relu``, ``layer2.1``, ``layer2``) the outermost that is not a mere container names it and
the others are aliases; a tensor that no module returns is named by the module it was computed in and the operation
(``layer2.0.add``, ``flatten``), as ``torchvision.models.feature_extraction`` does.

FLOPs are those of one image in matrix products and convolutions; a multiply-add counts two. Attention is counted as the
two products that it is made of, whichever kernel the machine would choose.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from suture.common.constants import OUTPUT
from suture.common.errors import CutError, NetworkError
from suture.common.html import to_html
from suture.core.network.layouts import Followed, Layout, check_fits, lay_out
from suture.core.network.segments import Segment
from suture.core.network.tracing import Traced


@dataclass(frozen=True)
class Cut:
    """A place through which exactly one tensor passes."""

    name: str
    index: int  #: position from the input, 1 … ``of``; one more for ``OUTPUT``
    of: int  #: number of cuts of the network
    shape: tuple[int, ...]  #: of the tensor, without the batch: maps (C, H, W), tokens (T, D), a vector (D,)
    parameters: int  #: number of parameters up to here
    flops: int  #: of one image up to here; products and convolutions only, a multiply-add counts two
    aliases: tuple[str, ...] = ()  #: other names of the same tensor

    @property
    def depth(self) -> float:
        """Index of the cut / number of cuts, in (0, 1]; 1 for ``OUTPUT``."""
        return min(1.0, self.index / self.of)

    @property
    def is_output(self) -> bool:
        """Whether it is ``OUTPUT``, which no layer follows."""
        return self.index > self.of


class Cuts(Sequence[Cut]):
    """The cuts of one network, in order; found by position, name or alias.

    ``dropped`` maps the name of every other tensor of the network to the reason why it is not a cut. ``end`` is the
    ``OUTPUT``, which is found by its name and is not one of the cuts; a cut of that name hides it.
    """

    def __init__(self, cuts: Sequence[Cut], dropped: Mapping[str, str], network: str, end: Cut | None = None) -> None:
        self._cuts = tuple(cuts)
        self._end = end
        self._by_name = {name: cut for cut in reversed(cuts) for name in (*cut.aliases, cut.name)}
        self._network = network
        self.dropped = dict(dropped)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cuts, in order."""
        return tuple(cut.name for cut in self._cuts)

    def find(self, cut: "str | Cut") -> Cut:
        """Find a cut by name or alias, or the ``OUTPUT``.

        Raises ``CutError``, with the reason and the valid names, if there is none.
        """
        name = cut.name if isinstance(cut, Cut) else cut
        if name in self._by_name:
            return self._by_name[name]
        if self._end is not None and name == OUTPUT:
            return self._end
        reason = f" ({self.dropped[name]})" if name in self.dropped else ""
        raise CutError(f"no cut '{name}' in {self._network}{reason}; {self._valid(name)}")

    def place(self, index: int) -> Cut:
        """Return the cut of an index, 1 …; one more than there are cuts is the ``OUTPUT``."""
        if index > len(self._cuts):
            assert self._end is not None
            return self._end
        return self._cuts[index - 1]

    def _valid(self, name: str) -> str:
        if not self._cuts:
            return "it has no cuts"
        near = difflib.get_close_matches(str(name), list(self._by_name), n=3)
        meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"{meant}valid cuts: {', '.join(map(repr, self.names))}"

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return item in self._by_name
        return any(cut is item for cut in self._cuts)

    def __getitem__(self, key: "int | slice | str") -> "Cut | tuple[Cut, ...]":  # type: ignore[override]
        return self.find(key) if isinstance(key, str) else self._cuts[key]

    def __len__(self) -> int:
        return len(self._cuts)

    def _repr_html_(self) -> str:
        rows = [
            (cut.name, "×".join(map(str, cut.shape)), f"{cut.parameters:,}", f"{cut.flops:,}") for cut in self._cuts
        ]
        return to_html(("cut", "shape", "parameters", "FLOPs"), rows, f"{len(self)} cuts of {self._network}")

    def __repr__(self) -> str:
        width = max([len(cut.name) for cut in self._cuts], default=3)
        rows = [
            f"{cut.index:>4}  {cut.name:<{width}}  {'×'.join(map(str, cut.shape)):>14}"
            f"  {cut.parameters:>12,}  {cut.flops:>16,}"
            for cut in self._cuts
        ]
        head = f"{'':>4}  {'cut':<{width}}  {'shape':>14}  {'parameters':>12}  {'FLOPs':>16}"
        return "\n".join([f"{len(self)} cuts of {self._network}", head, *rows])


def shared_cuts(a: Cuts, b: Cuts) -> tuple[str, ...]:
    """Return names of the cuts that two networks share, in the order of the first.

    Raises ``CutError``, with the names of both, if they share none.
    """
    names = tuple(name for name in a.names if name in b._by_name)
    if not names:
        raise CutError(
            f"no common cut: the sender has {', '.join(a.names)}; the receiver has {', '.join(b.names)}; "
            "give both names of each seam, at=[(sender cut, receiver cut)]"
        )
    return names


def measure_cuts(traced: Traced, model: nn.Module, probe: Tensor, name: str, tokens: Layout | None) -> tuple[Cuts, int]:
    """Run one image through the segments and note shape, parameters and FLOPs at every cut; also the number of outputs.

    ``tokens`` is the layout that the user gave. Raises ``NetworkError`` naming the first cut where the activations are
    not finite, and for a layout that the tokens of no cut have.
    """
    cuts: list[Cut] = []
    x, flops = probe, 0
    read, followed = _ParametersRead(model.parameters()), Followed(probe)
    for i, segment in enumerate(traced.segments):
        x, counted = _count_flops(segment, x, probe, read, followed)
        flops += counted
        cut, *aliases = traced.names[i] if i < len(traced.names) else (OUTPUT,)
        if not x.isfinite().all():
            raise NetworkError(f"the activations at '{cut}' in {name} are not finite")
        shape = lay_out(x, followed, tokens)
        cuts.append(Cut(cut, i + 1, len(traced.names), shape, read.total, flops, tuple(aliases)))
    *inside, end = cuts
    check_fits(tokens, [cut.shape for cut in inside], name)
    return Cuts(inside, traced.dropped, name, end), x.shape[1]


#: Operations that torch does not count: the two products of the processor's own attention kernel.
_OF_KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]
}


def _count_flops(segment: Segment, x: Tensor, inputs: Tensor, *watch: TorchDispatchMode) -> tuple[Tensor, int]:
    """Return a segment's output and FLOPs; with attention as plain products, unless its code needs another kernel."""
    for kernel in (attention_as_products(), nullcontext()):
        try:
            with kernel, FlopCounterMode(display=False, custom_mapping=_OF_KERNELS) as counter, ExitStack() as stack:
                for mode in watch:
                    stack.enter_context(mode)
                return segment(x, inputs), counter.get_total_flops()
        except RuntimeError as error:  # a view of what products lay out otherwise in memory
            failed = error
    raise failed


@contextmanager
def attention_as_products() -> Iterator[None]:
    """Compute attention as plain products, because torch counts those."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _ParametersRead(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the parameters that operations have read so far, each once."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes = {id(parameter): parameter.numel() for parameter in parameters}
        self._read: set[int] = set()

    @property
    def total(self) -> int:
        return sum(self._sizes[key] for key in self._read)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._read |= {id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._sizes}
        return func(*args, **(kwargs or {}))

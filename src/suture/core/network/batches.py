"""Checks that a cut network computes the user's model for batches of any size.

Code may depend on how many images there are: ``if len(x) > 3``, ``for part in x.split(64)``. Traced on a few images it
becomes another function of more. So a network is looked at twice. When it is made (``check_sizes``), the operations of
the model and of its segments are compared without computing them, on tensors that have shapes and no values; only if
they differ, or cannot be run so, are outputs computed. And before anything of it is measured (``check_batches``), its
outputs for real images are compared.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suture.common.errors import NetworkError
from suture.core.network.segments import are_close, find_rounding

MANY = 1000  #: images in the batch whose operations are compared: more than any chunk
LOOKED = (1, 7, 257)  #: of batches whose outputs are compared: below and above a chunk of 256
COMPUTED = 2**24  #: numbers in such a batch, at most; a thousand images of 224 pixels would take minutes and gigabytes
_COPIES = ("clone", "_to_copy", "copy", "_unsafe_view", "_reshape_alias", "lift_fresh")
_REMEDY = (
    "let its forward pass treat batches of every size alike: no branch on the number of images, no loop over parts of "
    "a batch, nothing taken over a batch"
)

Function = Callable[[Tensor], Tensor]
Counted = Counter[Hashable]


def check_sizes(model: nn.Module, cut: nn.Module, probe: Tensor, name: str) -> None:
    """Raise ``NetworkError`` if a model does something else with many images than its segments do.

    ``cut`` takes prepared inputs twice, as what passes and as what is read beside it. ``probe`` are a few prepared
    inputs, which are repeated.
    """
    batch = probe[torch.arange(MANY) % len(probe)]
    own = None
    for count in (_count_on_meta, _count_on_fake):  # the second takes far longer, and more code runs in it
        own = count(model, batch)
        if own is not None and own["rows"] == MANY and own == count(cut, batch, batch):
            return
    sizes = {len(probe), *LOOKED[1:]}  # of one image the outputs were compared before
    if own is not None:
        sizes.add(min(MANY, max(LOOKED[-1], COMPUTED // probe[0].numel())))
    check_batches(model, lambda x: cast(Tensor, cut(x, x)), batch, sorted(sizes), name)


def check_batches(model: Function, cut: Function, images: Tensor, sizes: Sequence[int], name: str) -> None:
    """Raise ``NetworkError`` unless a model and its segments give one row for an image, the same among any others."""
    sizes = sorted({min(size, len(images)) for size in sizes})
    wanted = None
    for size in sizes:
        for run, whose in ((model, name), (cut, f"{name}, cut in segments,")):
            try:
                out = run(images[:size].clone())
            except Exception as error:
                raise NetworkError(f"{whose} does not run on {size} images: {error}; {_REMEDY}") from error
            check_rows(out, size, whose)
            wanted = out if wanted is None else wanted
            if not are_close(out[: len(wanted)], wanted, find_rounding(out)):
                raise NetworkError(
                    f"{whose} gives another output for an image among {size} than among {len(wanted)}; {_REMEDY}"
                )


def check_rows(out: Tensor, images: int, whose: str) -> None:
    """Raise ``NetworkError`` unless there is a row for each image."""
    if len(out) != images:
        raise NetworkError(f"{whose} gives {len(out)} rows for {images} images; {_REMEDY}")


def _count_on_meta(run: nn.Module, *batches: Tensor) -> Counted | None:
    """Count the operations on the batches, by name, numbers and shape, with every tensor on the meta device.

    ``None`` if it needs values, or makes tensors on another device.
    """
    # Not by functional_call, which leaves a module of two names with the tensors that it was lent.
    tables: list[dict[str, Any]] = [table for m in run.modules() for table in (m._parameters, m._buffers)]
    own = [dict(table) for table in tables]
    try:
        for table in tables:
            table.update({name: tensor.to("meta") for name, tensor in table.items() if tensor is not None})
        return _count(run, [batch.to("meta") for batch in batches])
    finally:
        for table, tensors in zip(tables, own, strict=True):
            table.update(tensors)


def _count_on_fake(run: nn.Module, *batches: Tensor) -> Counted | None:
    """Count the same with fake tensors, which pretend to be on their device; ``None`` if it needs values."""
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        return _count(run, [fake.from_tensor(batch) for batch in batches])


def _count(run: Callable[..., Tensor], batches: Sequence[Tensor]) -> Counted | None:
    try:
        counting = _Counting(batches)
        with counting:
            counting.found["rows"] = len(run(*batches))
    except Exception:  # the code asks for values, or an operation says nothing of shapes
        return None
    return counting.found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on tensors made of the batches, except those that only change a tensor's layout."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counted = Counter()
        self.kept = list(batches)  # so that no other tensor gets its id
        self._made = set(map(id, batches))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = tree_leaves((args, kwargs))
        if any(id(leaf) in self._made for leaf in given):
            tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.kept += tensors
            self._made |= set(map(id, tensors))
            name = func._schema.name.partition("::")[2]
            if tensors and not func.is_view and name not in _COPIES:
                numbers = tuple(str(leaf) for leaf in given if not isinstance(leaf, Tensor))
                self.found[name.rstrip("_"), numbers, tuple(tuple(tensor.shape) for tensor in tensors)] += 1
        return out

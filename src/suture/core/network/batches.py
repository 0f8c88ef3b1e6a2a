"""Checks that a cut network computes the user's model for batches of any size.

Code may depend on how many images there are: ``if len(x) > 3``, ``for part in x.split(64)``. Traced on a few images it
becomes another function of more. So a network is looked at twice. When it is made (``check_sizes``), the operations of
the model and of its segments are compared without computing them, on tensors that have shapes and no values; only if
they differ, or cannot be run so, are outputs computed. And before anything of it is measured (``check_batches``), its
outputs for real images are compared.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suture.common.errors import NetworkError
from suture.core.network.segments import are_close, find_rounding
from suture.core.network.shapes import new_mode, undo_attributes

MANY = 1000  #: images in the batch whose operations are compared: more than any chunk
LOOKED = (1, 7, 257)  #: of batches whose outputs are compared: below and above a chunk of 256
COMPUTED = 2**24  #: numbers in such a batch, at most; a thousand images of 224 pixels would take minutes and gigabytes
_COPIES = ("clone", "_to_copy", "copy", "_unsafe_view", "_reshape_alias", "lift_fresh")
_REMEDY = (
    "let its forward pass treat batches of every size alike: no branch on the number of images, no loop over parts of "
    "a batch, nothing taken over a batch"
)

Counted = Counter[Hashable]


def check_sizes(model: nn.Module, cut: nn.Module, probe: Tensor, name: str) -> None:
    """Raise ``NetworkError`` if a model does something else with many images than its segments do.

    ``cut`` takes prepared inputs twice, as what passes and as what is read beside it. ``probe`` are a few prepared
    inputs, which are repeated.
    """
    own = None
    for count in (_count_on_meta, _count_on_fake):  # the second takes far longer, and more code runs in it
        own = count(model, probe)
        if own is not None and own["rows"] == MANY and own == count(cut, probe, probe):
            return
    batch = probe[torch.arange(MANY) % len(probe)]
    sizes = {len(probe), *LOOKED[1:]}  # of one image the outputs were compared before
    if own is not None:
        sizes.add(min(MANY, max(LOOKED[-1], COMPUTED // probe[0].numel())))
    check_batches(model, cut, batch, sizes, name)


def check_batches(model: nn.Module, cut: nn.Module, prepared: Tensor, sizes: Iterable[int], name: str) -> None:
    """Raise ``NetworkError`` unless a model and its segments give one row for an image, the same among any others.

    ``cut`` is called as by ``check_sizes``, and ``prepared`` are inputs of the model.
    """
    runs: list[tuple[Callable[[Tensor], Tensor], str]] = [
        (model, name),
        (lambda x: cut(x, x), f"{name}, cut in segments,"),
    ]
    wanted = None
    for size in sorted({min(size, len(prepared)) for size in sizes}):
        for run, whose in runs:
            try:
                out = run(prepared[:size].clone())
            except Exception as error:
                raise NetworkError(f"{whose} does not run on {size} images: {error}; {_REMEDY}") from error
            check_rows(out, size, whose)
            wanted = out if wanted is None else wanted
            if not are_close(out[: len(wanted)], wanted, find_rounding(out)):
                raise NetworkError(
                    f"{whose} gives different outputs for one image in a batch of {size} and in one of "
                    f"{len(wanted)}; {_REMEDY}"
                )


def check_rows(out: Tensor, images: int, whose: str) -> None:
    """Raise ``NetworkError`` unless there is a row for each image."""
    if len(out) != images:
        raise NetworkError(f"{whose} gives {len(out)} rows for {images} images; {_REMEDY}")


def _count_on_meta(run: nn.Module, *probes: Tensor) -> Counted | None:
    """Count the operations on many such inputs, by name, numbers and shape, with every tensor on the meta device.

    ``None`` if it needs values, or makes tensors on another device.
    """
    # Not by functional_call, which leaves a module of two names with the tensors that it was lent.
    tables: list[dict[str, Any]] = [table for m in run.modules() for table in (m._parameters, m._buffers)]
    with undo_attributes(run.modules()):
        for table in tables:
            table.update({name: tensor.to("meta") for name, tensor in table.items() if tensor is not None})
        return _count(run, [_many(probe, "meta") for probe in probes])


def _count_on_fake(run: nn.Module, *probes: Tensor) -> Counted | None:
    """Count the same with fake tensors, which pretend to be on their device; ``None`` if it needs values."""
    with undo_attributes(run.modules()), new_mode():
        return _count(run, [_many(probe, probe.device) for probe in probes])


def _many(probe: Tensor, device: "torch.device | str") -> Tensor:
    return torch.empty(MANY, *probe.shape[1:], dtype=probe.dtype, device=device)


def _count(run: Callable[..., Tensor], batches: Sequence[Tensor]) -> Counted | None:
    try:
        counting = _Counting(batches)
        with counting:
            counting.found["rows"] = len(run(*batches))
    except Exception:  # the code asks for values, or an operation says nothing of shapes
        return None
    return counting.found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on tensors made of the batches, except those that only change a tensor's layout.

    An operation that is done again on the same values is counted once: every segment behind a cut makes the masks and
    positions that it needs anew, and the model makes them once.
    """

    def __init__(self, batches: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counted = Counter()
        self._made = set(map(id, batches))
        self._numbers: dict[Hashable, int] = {}  # of every value, by the operation and the values it is made of
        self._values: dict[int, tuple[Tensor, int, int]] = {}  # of tensors by id: kept, version, number of its value
        for batch in batches:
            self._set(batch, self._number("the batch"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = tree_leaves((args, kwargs))
        name = func._schema.name.partition("::")[2]
        read: list[Any] = [self._value(leaf) if isinstance(leaf, Tensor) else str(leaf) for leaf in given]
        once = len(self._numbers) if torch.Tag.nondeterministic_seeded in func.tags else None
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        known = len(self._numbers)
        for i, tensor in enumerate(tensors):
            is_copy = name == "clone" and isinstance(read[0], int)
            self._set(tensor, read[0] if is_copy else self._number((str(func), *read, *(kwargs or ()), i, once)))
        if any(id(leaf) in self._made for leaf in given):
            self._made |= set(map(id, tensors))
            if tensors and len(self._numbers) > known and not func.is_view and name not in _COPIES:
                numbers = tuple(str(leaf) for leaf in given if not isinstance(leaf, Tensor))
                self.found[name.rstrip("_"), numbers, tuple(tuple(tensor.shape) for tensor in tensors)] += 1
        return out

    def _number(self, made_of: Hashable) -> int:
        return self._numbers.setdefault(made_of, len(self._numbers))

    def _set(self, tensor: Tensor, number: int) -> None:
        self._values[id(tensor)] = tensor, tensor._version, number

    def _value(self, tensor: Tensor) -> int:
        """Return the number of a tensor's value: a new one if it was not seen, or written to through another."""
        _, version, number = self._values.get(id(tensor), (tensor, -1, -1))
        if version != tensor._version:
            number = self._number((id(tensor), tensor._version))
            self._set(tensor, number)
        return number

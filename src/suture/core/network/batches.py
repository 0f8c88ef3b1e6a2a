"""Whether a cut network gives what the user's model gives for batches of any size.

Code may depend on how many images there are: ``if len(x) > 3``, ``for part in x.split(64)``. Traced on a few images it
becomes another function of more. So a network is looked at twice. When it is made (``check_sizes``), the operations of
the model and of its segments are compared without computing them, on tensors that have shapes and no values; only if
they differ, or cannot be run so, are outputs computed. And before anything of it is measured (``check_batches``), its
outputs for real images are compared.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
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


def check_sizes(model: Function, cut: Function, probe: Tensor, name: str) -> None:
    """Raise ``NetworkError`` if a model does something else with many images than its segments do.

    ``probe`` are a few prepared inputs, which are repeated.
    """
    batch = probe[torch.arange(MANY) % len(probe)]
    own = _count_operations(model, batch)
    if own is None:
        check_batches(model, cut, batch, (len(probe), *LOOKED), name)
    elif own["rows"] != MANY or own != _count_operations(cut, batch):
        room = max(LOOKED[-1], COMPUTED // probe[0].numel())
        check_batches(model, cut, batch, (len(probe), *LOOKED, min(MANY, room)), name)


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


def _count_operations(run: Function, batch: Tensor) -> Counter[Hashable] | None:
    """Count what is computed of a batch, by operation, numbers and shape; ``None`` if it needs the values."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            counted = _Counted(fake.from_tensor(batch))
            with counted:
                counted.found["rows"] = len(run(counted.kept[0]))
    except Exception:  # the code asks for values, or an operation says nothing of shapes
        return None
    return counted.found


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on what is made of a tensor, except those that only lay it out anew."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[Hashable] = Counter()
        self.kept = [x]  # so that no other tensor gets its id
        self._made = {id(x)}

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

"""Runs of a network's operations on tensors that have shapes and no values, which cost a hundredth of real runs.

How dimensions are related, where a tensor that passes lies in memory and whether it is written to do not depend on
values. Code that asks for values cannot be run so, and is run on the tensors themselves.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

LARGE = 2**25  #: parameters from which a run without values costs less than one of a few images
_Found = TypeVar("_Found")
_HOLDERS = (dict, OrderedDict, list)


def without_values(
    run: Callable[..., _Found], *tensors: Tensor, within: Iterable[nn.Module], mode: FakeTensorMode | None
) -> _Found:
    """Return the result of a run on tensors without values; if it needs them, or without a mode, of one on the tensors.

    ``within`` are the modules that run, which shall not keep tensors without values.
    """
    if mode is not None:
        try:
            with undo_attributes(within), mode:
                return run(*map(mode.from_tensor, tensors))
        except Exception:  # the code asks for values, or an operation says nothing of shapes
            pass
    return run(*tensors)


def new_mode() -> FakeTensorMode:
    """Return a mode in which tensors have no values; parameters take part as they are, and are looked at once."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def mode_for(within: Iterable[nn.Module]) -> FakeTensorMode | None:
    """Return such a mode for a large network, and none for one whose runs cost less than the mode does."""
    sizes = {id(p): p.numel() for module in within for p in module.parameters(recurse=False)}
    return new_mode() if sum(sizes.values()) >= LARGE else None


@contextmanager
def undo_attributes(within: Iterable[nn.Module]) -> Iterator[None]:
    """Undo the writes of a run to attributes of modules, and to the dictionaries and lists among these, as caches."""
    kept = [(vars(module), dict(vars(module))) for module in within]
    held: list[tuple[Any, list[Any]]] = [
        (value, list(_items(value))) for _, then in kept for value in then.values() if type(value) in _HOLDERS
    ]
    try:
        yield
    finally:
        for now, then in kept:
            if list(map(id, now.values())) != list(map(id, then.values())):
                now.clear()
                now.update(then)
        for value, items in held:
            if [id(leaf) for item in _items(value) for leaf in item] != [id(leaf) for item in items for leaf in item]:
                value.clear()
                value.update(items) if isinstance(value, dict) else value.extend(item[0] for item in items)


def _items(value: Any) -> Iterable[tuple[Any, ...]]:
    return value.items() if isinstance(value, dict) else [(leaf,) for leaf in value] if isinstance(value, list) else ()

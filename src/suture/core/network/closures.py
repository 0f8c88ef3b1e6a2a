"""What a function uses that is none of its arguments: what a copy of a model would miss, and nothing would freeze.

A module or a parameter of elsewhere is refused; any other variable may be used, if it stays what it was.
"""

import functools
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from suture.common.hashing import globals_of, is_filled


def holds(function: Callable[..., Any], known: Collection[nn.Module] = ()) -> str:
    """What a function uses that trains, in words: a module that is not ``known``, or a tensor; empty where nothing."""
    return next((words for words, value in _used(function) if _trains(value, known)), "")


def _used(function: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    yield "itself", function
    yield "its object", getattr(function, "__self__", None)
    match function:
        case functools.partial():
            yield from (("an argument", value) for value in (*function.args, *function.keywords.values()))
            yield from _used(function.func)
        case FunctionType():
            yield from ((f"'{name}'", value) for name, value in _variables(function).items())
        case MethodType():
            yield from _used(function.__func__)
        case nn.Module():
            return
        case _:
            kept = getattr(function, "__dict__", {})
            yield from ((f"'{name}'", leaf) for name, value in kept.items() for leaf in tree_leaves(value))


def reads_variables(function: object) -> bool:
    """Whether a function in Python reads globals or outer variables that are no classes, functions or imports."""
    fixed = (type, FunctionType, ModuleType, BuiltinFunctionType)
    read = _variables(function).values() if isinstance(function, FunctionType) else ()
    return not all(isinstance(value, fixed) for value in read)


def _variables(function: FunctionType) -> dict[str, object]:
    """What a function closes over, and the globals that it reads, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    space = function.__globals__
    read = {name: space[name] for name in sorted(globals_of(function.__code__)) if name in space}
    return read | {name: cell.cell_contents for name, cell in cells if is_filled(cell)}


def _trains(value: object, known: Collection[nn.Module]) -> bool:
    match value:
        case nn.Module():
            return value not in known
        case MethodType():
            return _trains(value.__self__, known)
        case functools.partial():
            return any(_trains(one, known) for one in (value.func, *value.args, *value.keywords.values()))
    return isinstance(value, Tensor) and value.requires_grad

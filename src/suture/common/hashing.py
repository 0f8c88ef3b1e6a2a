"""What a thing is, as a hash of its content: what it computes, and with what.

A class or a function of the user's counts by its code, so that changing a score asks for a new measurement. What
belongs to a library counts by its name, and a class of Suture's by the name under which ``keyed_as`` registered it once
and for ever: neither a move to another module nor a new class name changes a stored key.
"""

import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from suture.common.seeds import digest, without_addresses


def identity(thing: object) -> str:
    """Return a SHA-256 over all that decides what a value, an object, a function or a class does, in hexadecimal.

    The same in every process, and after being pickled. A dataclass is its class and its fields; any other object its
    class and what it would be pickled from, without what its cached properties remember; what has a ``fingerprint`` is
    that. A function is its code, defaults and closure, and the globals that it reads: functions and classes in the
    same way, also those in other files of the user's, and a module of the user's by its file. A class is its members
    and bases. What libraries define counts by name. Comments, docstrings and line numbers of functions do not count,
    nor do addresses in memory, the order of a set or of an object's attributes, nor how tensors lie in memory.
    """
    return digest(_Walk().of(thing))


def settings(module: nn.Module) -> dict[str, object]:
    """Return the plain attributes of a module by name, and the hooks of its forward pass under ``hooks``."""
    found = {name: value for name, value in vars(module).items() if name not in _REGISTERED and "_hooks" not in name}
    hooks = [list(kept.values()) for kept in (module._forward_pre_hooks, module._forward_hooks)]
    return found | {"hooks": hooks} if any(hooks) else found


_REGISTERED = ("_parameters", "_buffers", "_modules")
_LIBRARIES = sys.stdlib_module_names | {
    "suture",
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_DOCUMENTED = 0x4000000  # flag of code with a docstring, from Python 3.13 on
_NO_NUMBER = {  # methods that decide no result; those of dataclasses are written by dataclasses
    *("__repr__", "__str__", "__eq__", "__ne__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__setattr__", "__delattr__", "__replace__", "__getstate__", "__setstate__", "_abc_impl"),
}
_NAME = "__keyed_as__"  # the attribute that holds the registered name; looked up without bases, which have their own
_LATER = "came later"
_METHODS = types.FunctionType | staticmethod | classmethod | property  # type: ignore[type-arg]


_Value = TypeVar("_Value")


def later(default: _Value) -> _Value:
    """Declare a field that a keyed dataclass got later: at its default it is not a part of keys."""
    made: Any = field(default=default, metadata={_LATER: True})
    return made  # type: ignore[no-any-return]


_Keyed = TypeVar("_Keyed", bound=Callable[..., Any])
_TAKEN: dict[str, str] = {}  # registered name -> where it was registered
_REGISTERED_AS: dict[str, object] = {}  # registered name -> what has it


def keyed_as(name: str) -> Callable[[_Keyed], _Keyed]:
    """Register the name under which a class or a function of Suture's takes part in keys, from now on.

    When you move or rename the class, leave this name alone: with another, all that was stored is measured again.
    Raises ``ValueError`` if another class has the name.
    """

    def register(thing: _Keyed) -> _Keyed:
        place = f"{thing.__module__}.{thing.__qualname__}"
        if _TAKEN.setdefault(name, place) != place:
            raise ValueError(f"{place} cannot be called '{name}' in keys, since {_TAKEN[name]} is")
        setattr(thing, _NAME, name)
        _REGISTERED_AS[name] = thing
        return thing

    return register


def registered_name(thing: type | types.FunctionType) -> str | None:
    """Return the name that a class or a function was registered under, if it was."""
    found = vars(thing).get(_NAME)
    return found if isinstance(found, str) else None


def list_registered() -> Mapping[str, object]:
    """Return the classes and functions that were registered, by name, as far as their files are imported."""
    return _REGISTERED_AS


def stable_name(thing: type | types.FunctionType) -> str:
    """Return the name by which something that belongs to a library counts.

    That is its registered name if it has one; else the module does not count for what is Suture's, since it may move.
    """
    where = "suture" if (thing.__module__ or "").partition(".")[0] == "suture" else thing.__module__
    return registered_name(thing) or f"{where}.{thing.__qualname__}"


class _Walk:
    """One way through everything that a thing is made of, each object once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[object, str]] = {}  # with the object, so that no other gets its id meanwhile
        self.inside: dict[int, int] = {}

    def of(self, thing: object) -> object:
        """Return plain values unchanged, those of NumPy too; anything else as a hash."""
        match thing:
            case enum.Enum():
                return (stable_name(type(thing)), thing.name, repr(thing.value))
            case None | bytes():
                return thing
            case bool() | np.bool_():
                return bool(thing)
            case int() | np.integer():
                return int(thing)
            case float():
                return float(thing)
            case complex():
                return complex(thing)
            case str():
                return str(thing)
        if id(thing) in self.inside:
            return ("again", len(self.inside) - self.inside[id(thing)])
        if id(thing) not in self.known:
            self.inside[id(thing)] = len(self.inside)
            try:
                found = digest(self._content(thing))
            finally:
                del self.inside[id(thing)]
            self.known[id(thing)] = (thing, found)
        return self.known[id(thing)][1]

    def _walk_all(self, things: Iterable[object]) -> list[object]:
        return [self.of(thing) for thing in things]

    def _walk_named(self, things: Mapping[str, object]) -> list[tuple[str, object]]:
        return [(str(name), self.of(things[name])) for name in sorted(things, key=str)]

    def _content(self, thing: object) -> object:
        match thing:
            case Tensor() if thing.layout == torch.strided:
                plain = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                return ("tensor", str(thing.dtype), tuple(thing.shape), hashlib.sha256(plain.data).hexdigest())
            case np.ndarray() if not thing.dtype.hasobject:
                return ("array", str(thing.dtype), thing.shape, hashlib.sha256(thing.tobytes()).hexdigest())
            case list() | tuple():
                return self._walk_all(thing)
            case dict() | types.MappingProxyType():
                return ("dict", [(self.of(key), self.of(value)) for key, value in thing.items()])
            case set() | frozenset():
                return ("set", sorted(repr(item) for item in self._walk_all(thing)))
            case types.FunctionType():
                return self._function(thing)
            case types.CodeType():
                return self._code(thing)
            case types.MethodType():
                return ("method", self.of(thing.__func__), self.of(thing.__self__))
            case functools.partial():
                return ("partial", self.of(thing.func), self._walk_all(thing.args), self._walk_named(thing.keywords))
            case functools._lru_cache_wrapper():
                return self.of(thing.__wrapped__)
            case functools.cached_property():
                return ("property", self.of(thing.func))
            case staticmethod() | classmethod():
                return (type(thing).__name__, self.of(thing.__func__))
            case property():
                return ("property", self._walk_all([thing.fget, thing.fset]))
            case type():
                return self._class(thing)
            case types.ModuleType():
                path = _file_of_user(thing)
                code = [hashlib.sha256(path.read_bytes()).hexdigest()] if path is not None else []
                return ("module", thing.__name__, *code)
            case nn.Module():
                return self._module(thing)
        if isinstance(known := getattr(thing, "fingerprint", None), str):
            return ("fingerprint", known)
        return self._object(thing)

    def _function(self, function: types.FunctionType) -> object:
        if _is_library(function) and "<" not in function.__qualname__:
            return ("function", stable_name(function))
        cells = [self.of(cell.cell_contents) if is_filled(cell) else "empty" for cell in function.__closure__ or ()]
        space = function.__globals__
        read = {name: space[name] for name in globals_of(function.__code__) if name in space}
        for name, value in read.items():
            other = isinstance(value, types.FunctionType | type) and value.__module__ != function.__module__
            if other and (_is_library(value) or _is_installed(sys.modules.get(value.__module__))):
                read[name] = ("elsewhere", stable_name(value))
        defaults = self._walk_all([function.__defaults__, function.__kwdefaults__])
        return ("function", self.of(function.__code__), defaults, cells, self._walk_named(read))

    def _code(self, code: types.CodeType) -> object:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        takes = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_DOCUMENTED)
        constants = (None, *code.co_consts[1:]) if _has_docstring(code) else code.co_consts
        return ("code", code.co_code, code.co_exceptiontable, names, takes, self._walk_all(constants))

    def _class(self, cls: type) -> object:
        if _is_library(cls):
            return ("class", stable_name(cls))
        members = {name: member for name, member in vars(cls).items() if _decides(name, member)}
        return ("class", self._walk_all(cls.__bases__), self._walk_named(members))

    def _module(self, module: nn.Module) -> object:
        if isinstance(module, fx.GraphModule | torch.jit.ScriptModule):
            held = [*module.named_parameters(), *module.named_buffers()]
            return ("program", module.code, [(name, self.of(tensor)) for name, tensor in held])
        registered = [list(vars(module)[kind].items()) for kind in _REGISTERED]
        return ("module", self.of(type(module)), self._walk_named(settings(module)), self._walk_all(registered))

    def _object(self, thing: object) -> object:
        cls = self.of(type(thing))
        if is_dataclass(thing):
            given = [(f, getattr(thing, f.name, None)) for f in fields(thing)]
            kept = [(f.name, self.of(value)) for f, value in given if _LATER not in f.metadata or value != f.default]
            return ("object", cls, kept)
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception:  # it cannot be pickled, as a lock or a compiled function
            return ("object", cls, without_addresses(repr(thing)), str(getattr(thing, "code", "")))
        if isinstance(reduced, str):
            return ("object", cls, str(getattr(thing, "__module__", "")), reduced)
        make, arguments, state, *items = (*reduced, None, None, None, None)[:5]
        parts = state if isinstance(state, tuple) else (state,)
        held = [self._walk_named(_set_by_hand(thing, p)) if isinstance(p, dict) else self.of(p) for p in parts]
        return ("object", cls, self.of(make), self.of(arguments), held, [self._walk_all(each or ()) for each in items])


def _set_by_hand(thing: object, state: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of an object without what its cached properties remember."""
    kinds = {name: member for cls in type(thing).__mro__ for name, member in vars(cls).items()}
    return {name: held for name, held in state.items() if not isinstance(kinds.get(name), functools.cached_property)}


def _is_library(thing: type | types.FunctionType) -> bool:
    return (thing.__module__ or "").partition(".")[0] in _LIBRARIES


def _is_installed(module: types.ModuleType | None) -> bool:
    """Return whether a module lies where packages are installed, and changes with a version of its package only."""
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and not _INSTALLED.isdisjoint(Path(path).parts)


def _file_of_user(module: types.ModuleType) -> Path | None:
    """Return the Python file of a module of the user's."""
    path = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] in _LIBRARIES or _is_installed(module) or not isinstance(path, str):
        return None
    return Path(path) if Path(path).suffix == ".py" and Path(path).is_file() else None


def _decides(name: str, member: object) -> bool:
    """Return whether a member of a class may decide what its objects do."""
    if name in _NO_NUMBER or isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    return not (name.startswith("__") and name.endswith("__")) or isinstance(member, _METHODS)


@functools.cache
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that code reads, also in functions inside it."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _READS_GLOBAL}
    inner = (globals_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(name for name in found.union(*inner) if not name.startswith("__"))


def _has_docstring(code: types.CodeType) -> bool:
    """Return whether the first constant of code is what its author says of it."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _DOCUMENTED)
    return not code.co_name.startswith("<")


def is_filled(cell: types.CellType) -> bool:
    """Return whether what a function closes over has been given a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False

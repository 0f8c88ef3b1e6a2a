"""The identity of values, objects, functions and classes, as a hash of their content.

A function of the user's counts by the text of its file and of all that this imports (``sources``), so that an edit asks
for a new measurement. A library's objects count by their names, and a class of Suture's by the name under which
``keyed_as`` registered it once and for ever: neither a move to another module nor a new class name changes a stored
key.
"""

import abc
import copyreg
import dis
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from operator import attrgetter
from threading import Lock, RLock
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from suture.common.errors import CodeError
from suture.common.seeds import digest
from suture.common.sources import OWN, check_loaded, source_of, versions


def identity(thing: object) -> str:
    """Return a SHA-256, in hexadecimal, over all that decides the behaviour of a value, object, function or class.

    It is the same in every process, and after being pickled. A dataclass is its class and its fields; any other object
    its class and its pickled state, without the values of cached properties, which follow from the rest. A function of
    the user's is its place in its file, the text of that and of all files of the user's that it imports, its
    attributes, defaults and closure, and the globals that it reads. A class is its members and bases. Definitions of
    libraries count by name, and by version if Suture does not itself depend on it. The order of a set or of an object's
    attributes does not count, nor how tensors lie in memory.

    Raises ``CodeError`` for a function of the user's without any text, for one whose file has been edited since it was
    loaded, and for an object that cannot be pickled.
    """
    return digest(_Walk().of(thing))


def settings(module: nn.Module) -> dict[str, object]:
    """Return the plain attributes of a module by name, and the hooks that decide its outputs and gradients."""
    held = vars(module)
    found: dict[str, object] = {n: value for n, value in held.items() if n not in _REGISTERED and n not in _HOOKS}
    for name, kinds in _COUNTED.items():
        if any(held[kind] for kind in kinds):
            found[name] = [list(held[kind].values()) for kind in kinds]
    for kind in _FLAGS:  # by their places, since torch numbers hooks
        hooks = held[kind.partition("_hooks")[0] + "_hooks"]
        if places := [i for i, number in enumerate(hooks) if number in held[kind]]:
            found[kind] = places
    return found


_REGISTERED = ("_parameters", "_buffers", "_modules")
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name)  # torch's own, and no other attribute
_FLAGS = sorted(name for name in _HOOKS if "_hooks_" in name)  # which hooks are called otherwise than others
_COUNTED = {
    "hooks": ("_forward_pre_hooks", "_forward_hooks"),
    "backward hooks": ("_backward_pre_hooks", "_backward_hooks"),
}
_PLAIN: list[tuple[Any, Any]] = [(bool, np.bool_), (int, np.integer), (float, float), (complex, complex), (str, str)]
_PARTS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((staticmethod, classmethod), ("__func__",)),
    functools.cached_property: ("func",),
    property: ("fget", "fset"),
}
_READ, _NAMED = ("LOAD_GLOBAL", "LOAD_NAME"), ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
_HIDDEN = types.MemberDescriptorType | types.GetSetDescriptorType | type(abc.ABC._abc_impl)  # type: ignore[attr-defined]
_PYTHONS = {  # what Python, ``dataclasses``, ``typing`` and ``abc`` write into classes
    *("__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__", "__slots__"),
    *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__", "__type_params__"),
    *("__dataclass_params__", "__match_args__", "__orig_bases__", "__parameters__", "__abstractmethods__"),
    *("__protocol_attrs__", "__non_callable_proto_members__", "__slotnames__"),
}
_NAME = "__keyed_as__"  # the attribute that holds the registered name; looked up without bases, which have their own
_LATER = "came later"


_Value = TypeVar("_Value")


def later(default: _Value) -> _Value:
    """Declare a field added to a keyed dataclass later: at its default value it is not a part of keys."""
    made: Any = field(default=default, metadata={_LATER: True})
    return made  # type: ignore[no-any-return]


_Keyed = TypeVar("_Keyed", bound=Callable[..., Any])
_TAKEN: dict[str, str] = {}  # registered name -> where it was registered


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
        return thing

    return register


def registered_name(thing: type | types.FunctionType) -> str | None:
    """Return the name that a class or a function was registered under, if it was."""
    found = vars(thing).get(_NAME)
    return found if isinstance(found, str) else None


def stable_name(thing: type | types.FunctionType) -> str:
    """Return the name by which something that belongs to a library counts.

    That is its registered name if it has one; else the module does not count for what is Suture's, since it may move.
    """
    where = "suture" if (thing.__module__ or "").partition(".")[0] in OWN else thing.__module__
    return registered_name(thing) or f"{where}.{thing.__qualname__}"


class _Walk:
    """A walk through all parts of an object, which visits each of them once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[object, str]] = {}  # with the object, so that no other gets its id meanwhile
        self.inside: dict[int, int] = {}
        self.own: dict[type, bool] = {}

    def of(self, thing: object) -> object:
        """Return plain values unchanged, those of NumPy too; anything else as a hash."""
        if not self._is_own(type(thing)):
            if isinstance(thing, enum.Enum):
                return (stable_name(type(thing)), thing.name, repr(thing.value))
            if thing is None or isinstance(thing, bytes):
                return thing
            for kind, of_numpy in _PLAIN:
                if isinstance(thing, kind | of_numpy):
                    return kind(thing)
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

    def _is_own(self, cls: type) -> bool:
        """Return whether a class is the user's, or a library's with functions or bases of the user's."""
        if cls not in self.own:
            parts = [part for member in vars(cls).values() for part in (member, *_parts(member))]
            spaces = [part.__globals__ for part in parts if isinstance(part, types.FunctionType)]
            known = [versions(cls.__module__), *(versions(space.get("__name__")) for space in spaces)]
            is_made = cls.__module__ == "types" and not hasattr(types, cls.__name__)  # as make_dataclass does
            self.own[cls] = is_made or None in known or any(map(self._is_own, cls.__bases__))
        return self.own[cls]

    def _content(self, thing: Any) -> object:
        found: tuple[object, ...]
        match thing:
            case Tensor() if thing.layout == torch.strided:
                plain = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                found = ("tensor", str(thing.dtype), tuple(thing.shape), hashlib.sha256(plain.data).hexdigest())
            case set() | frozenset():
                found = ("set", sorted(repr(item) for item in self._walk_all(thing)))
            case nn.Module() if not isinstance(thing, torch.jit.ScriptModule):
                return self._module(thing)
            case type():
                return self._class(thing)
            case _:
                return self._object(thing) if self._is_own(type(thing)) else self._library_object(thing)
        return (*found, self.of(type(thing)), self.of(vars(thing))) if self._is_own(type(thing)) else found

    def _library_object(self, thing: Any) -> object:
        match thing:
            case np.ndarray() if not thing.dtype.hasobject:
                return ("array", str(thing.dtype), thing.shape, hashlib.sha256(thing.tobytes()).hexdigest())
            case list() | tuple():
                return self._walk_all(thing)
            case dict() | types.MappingProxyType():
                return ("dict", [(self.of(key), self.of(value)) for key, value in thing.items()])
            case types.FunctionType():
                return self._function(thing)
            case types.MethodType():
                return ("method", self.of(thing.__func__), self.of(thing.__self__))
            case functools.partial():
                return ("partial", self.of(thing.func), self._walk_all(thing.args), self._walk_named(thing.keywords))
            case functools._lru_cache_wrapper():
                return self.of(thing.__wrapped__)
            case _ if type(thing) in _PARTS:
                return ("member", type(thing).__name__, self._walk_all(_parts(thing)))
            case types.ModuleType():
                known = versions(thing.__name__)
                found = source_of(vars(thing), getattr(thing, "__file__", None) or "") if known is None else known
                return ("module", thing.__name__, *(found or ()))
            case torch.layout():
                return ("object", self.of(type(thing)), str(thing), "")
            case weakref.ref() if isinstance(thing(), nn.Parameter):  # a recurrent layer's, which holds it besides
                return ("object", self.of(type(thing)), "<weakref; to 'Parameter'>", "")
            case weakref.ref():
                return ("weak", self.of(thing()))
        if type(thing) in (type(Lock()), type(RLock())):
            return ("object", self.of(type(thing)))
        if type(thing).__module__.partition(".")[0] in OWN and isinstance(
            known := getattr(thing, "fingerprint", None), str
        ):
            return ("fingerprint", known)
        if is_dataclass(thing):
            given = [(f, getattr(thing, f.name, None)) for f in fields(thing)]
            kept = [(f.name, self.of(value)) for f, value in given if _LATER not in f.metadata or value != f.default]
            return ("object", self.of(type(thing)), kept)
        return self._object(thing)

    def _function(self, function: types.FunctionType) -> object:
        code, space = function.__code__, function.__globals__
        where = space.get("__name__") or ""
        known: tuple[object, ...] | None = versions(where)
        if known is not None and ("<" not in code.co_qualname or _has_name(function)):
            return ("function", stable_name(function), *known)
        place = max((at for at in code.co_positions() if None not in at), default=None)
        read: dict[str, object] = {}
        if known is None and not code.co_qualname.startswith("__create_fn__"):  # as dataclasses call their code
            known = source_of(space, code.co_filename) if place else None
            if known is None:
                raise CodeError(
                    f"the function {function.__qualname__} of {where or 'no module'} has no text in "
                    f"{code.co_filename}, by which it could be identified; write it into a file and import that"
                )
            check_loaded(function)
            read = _read(code, space)
        cells = [self.of(cell.cell_contents) if is_filled(cell) else "empty" for cell in function.__closure__ or ()]
        given = self._walk_all([function.__defaults__, function.__kwdefaults__])
        return (
            "function",
            code.co_qualname,
            place,
            known,
            given,
            cells,
            *map(self._walk_named, (read, vars(function))),
        )

    def _class(self, cls: type) -> object:
        if not self._is_own(cls):
            return ("class", stable_name(cls), *(versions(cls.__module__) or ()))
        members = {n: one for n, one in vars(cls).items() if n not in _PYTHONS and not isinstance(one, _HIDDEN)}
        if issubclass(cls, enum.Enum):
            members = {name: one for name, one in members.items() if isinstance(one, types.FunctionType)}
            members |= {name: one._value_ for name, one in cls.__members__.items()}
        elif is_dataclass(cls):
            members["__dataclass_fields__"] = [(f.name, f.default, f.default_factory) for f in fields(cls)]
        return ("class", cls.__qualname__, self._walk_all(cls.__bases__), self._walk_named(members))

    def _module(self, module: nn.Module) -> object:
        if isinstance(module, fx.GraphModule):
            held = [*module.named_parameters(), *module.named_buffers()]
            inner = [(name, self.of(one)) for name, one in module.named_children()]
            return ("program", module.code, [(name, self.of(tensor)) for name, tensor in held], *inner)
        registered = [list(vars(module)[kind].items()) for kind in _REGISTERED]
        return ("module", self.of(type(module)), self._walk_named(settings(module)), self._walk_all(registered))

    def _object(self, thing: object) -> object:
        cls = self.of(type(thing))
        if isinstance(thing, enum.Enum):
            return ("object", cls, thing.name, self.of(thing._value_))
        try:
            known: Any = copyreg.dispatch_table.get(type(thing))
            reduced = thing.__reduce_ex__(2) if known is None else known(thing)
        except Exception as error:
            raise CodeError(
                f"an object of the class {type(thing).__module__}.{type(thing).__qualname__} cannot be pickled "
                f"({error}), so it cannot be identified; make it inside the function that uses it"
            ) from error
        if isinstance(reduced, str):
            return ("object", cls, str(getattr(thing, "__module__", "")), reduced)
        make, arguments, state, *items = (*reduced, None, None, None, None)[:5]
        parts = state if isinstance(state, tuple) else (state,)
        held = [self._walk_named(_set_by_hand(thing, p)) if isinstance(p, dict) else self.of(p) for p in parts]
        return ("object", cls, self.of(make), self.of(arguments), held, [self._walk_all(each or ()) for each in items])


def _set_by_hand(thing: object, state: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of an object without the values of its cached properties."""
    kinds = {name: member for cls in type(thing).__mro__ for name, member in vars(cls).items()}
    return {name: held for name, held in state.items() if not isinstance(kinds.get(name), functools.cached_property)}


def _parts(member: object) -> list[object]:
    """Return the functions of a method or a property of a class."""
    return [getattr(member, name) for name in _PARTS.get(type(member), ())]


def _has_name(function: types.FunctionType) -> bool:
    """Return whether a library has this very function under its name, and does not only wrap another."""
    if versions(function.__module__) is None:
        return False
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return False
    return getattr(found, "__func__", found) is function


def _read(code: types.CodeType, space: Mapping[str, object]) -> dict[str, object]:
    """Return the globals that code reads, and those of the user's other modules, whose names it has."""
    read = {name: space[name] for name in globals_of(code) if name in space}
    queue = [*read.values()]
    for module in queue:
        if isinstance(module, types.ModuleType) and versions(module.__name__) is None:
            names = _names(code, _NAMED) & vars(module).keys()
            new = {f"{module.__name__}.{name}": vars(module)[name] for name in names}
            queue += [value for name, value in new.items() if name not in read]
            read |= new
    return read


def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that code reads, also in functions inside it."""
    return frozenset(name for name in _names(code, _READ) if not name.startswith("__"))


@functools.cache
def _names(code: types.CodeType, how: tuple[str, ...]) -> frozenset[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in how}
    inner = (_names(constant, how) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(found.union(*inner))


def is_filled(cell: types.CellType) -> bool:
    """Return whether a variable of a closure has been given a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False

"""The hooks of a frozen copy: those that act stay, and are frozen with it; those that only look on are dropped.

A hook acts where it returns something else than it was given, writes to a tensor that it was given, or where the output
is another without it. Whether it acts on some images only nobody can tell from a few: so one that returns anything
stays, whatever it makes of the probe.
"""

from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from suture.common.errors import NetworkError
from suture.core.network.closures import holds, reads_variables
from suture.core.network.freezing import dotted, held_by, restored
from suture.core.network.segments import same_bits


@dataclass(frozen=True, eq=False)
class _Hook:
    """A hook of the user's: where it is kept, under which number, and whether it comes before the forward pass."""

    path: str
    kept: MutableMapping[int, Any]
    key: int
    before: bool

    def replaces(self, given: tuple[object, ...]) -> object:
        """What a hook of its kind would replace by what it returns."""
        return given[1:] if self.before else given[-1]


def is_altered(model: nn.Module) -> bool:
    """Whether hooks of the user's are on a model, or functions in place of a module's ``forward``."""
    return any(True for _ in _hooks(model)) or any("forward" in vars(module) for module in model.modules())


def reads_elsewhere(model: nn.Module) -> bool:
    """Whether modules that run as they are written read variables of elsewhere, which may change."""
    held = (leaf for _, attribute, leaf in held_by(model) if "_hooks" not in attribute)
    return any(map(reads_variables, (*held, *(type(module).forward for module in model.modules()))))


def _hooks(model: nn.Module) -> Iterator[_Hook]:
    """The hooks of the forward pass, but for torch's own, which make weights."""
    for path, module in model.named_modules():
        for kept, before in ((module._forward_hooks, False), (module._forward_pre_hooks, True)):
            for key, hook in kept.items():
                if not type(hook).__module__.startswith("torch.nn.utils"):
                    yield _Hook(path, kept, key, before)


def drop_idle_hooks(model: nn.Module, probe: Tensor) -> None:
    """Remove the hooks that return nothing, write to nothing, and without which the output is the same."""
    hooks = list(_hooks(model))
    if not hooks:
        return
    with torch.no_grad():
        wanted, acted = _spied(model, hooks, probe)
        idle = [hook for hook in hooks if hook not in acted]
        if idle and not _taken_off(model, idle, probe, wanted):
            for hook in idle:
                _taken_off(model, [hook], probe, wanted)


def _spied(model: nn.Module, hooks: list[_Hook], probe: Tensor) -> tuple[Tensor, list[_Hook]]:
    """The output, and the hooks that returned something or wrote to what they were given."""
    acted: list[_Hook] = []

    def spying(hook: _Hook, call: Callable[..., object]) -> Callable[..., object]:
        def spy(*given: object) -> object:
            there = [leaf for leaf in tree_leaves(given[1:]) if isinstance(leaf, Tensor)]
            before = [tensor._version for tensor in there]
            result = call(*given)
            handed_on = result is None or _same_things(result, hook.replaces(given))
            if not handed_on or before != [tensor._version for tensor in there]:
                acted.append(hook)
            return result

        return spy

    calls = [hook.kept[hook.key] for hook in hooks]
    for hook, call in zip(hooks, calls, strict=True):
        hook.kept[hook.key] = spying(hook, call)
    try:
        with restored(model):
            wanted: Tensor = model(probe.clone())
    finally:
        for hook, call in zip(hooks, calls, strict=True):
            hook.kept[hook.key] = call
    return wanted, acted


def _same_things(one: object, other: object) -> bool:
    return [id(leaf) for leaf in tree_leaves(one)] == [id(leaf) for leaf in tree_leaves(other)]


def _taken_off(model: nn.Module, hooks: list[_Hook], probe: Tensor, wanted: Tensor) -> bool:
    """Take hooks off, and put them back in their order unless the output is the same without them."""
    before = [(hook.kept, dict(hook.kept)) for hook in hooks]
    for hook in hooks:
        del hook.kept[hook.key]
    try:
        with restored(model):  # a hook that writes what the model reads is not idle
            same = same_bits(model(probe.clone()), wanted)
    except Exception:  # it does not run without them
        same = False
    if not same:
        for kept, entries in before:
            kept.clear()
            kept.update(entries)
    return same


def check_held(model: nn.Module, name: str) -> None:
    """Refuse hooks, and functions held as attributes, that use modules or parameters which are none of the model's.

    A copy of the model has its own modules, and what such a function closes over are those of the user, or others: they
    are neither copied nor frozen, nor made untrained.
    """
    known = set(model.modules())
    for hook in _hooks(model):
        _check(hook.kept[hook.key], known, f"a hook on {_place(hook.path, name)}")
    for path, attribute, leaf in held_by(model):
        if isinstance(leaf, FunctionType) and "_hooks" not in attribute:
            _check(leaf, known, f"the function '{dotted(path, attribute)}' of {name}")


def _check(function: Callable[..., Any], known: Collection[nn.Module], which: str) -> None:
    if used := holds(function, known):
        raise NetworkError(
            f"{which} uses {used}, a module or a parameter that is none of the copy's, and would be neither frozen "
            "with it nor made untrained; make it a part of the module, module.extra = …, and let the hook reach it by "
            "its first argument, or a method by self"
        )


def _place(path: str, name: str) -> str:
    return f"module '{path}' in {name}" if path else name

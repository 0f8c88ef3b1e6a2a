"""A frozen copy of a model: what happens to the model later does not reach it, and it reaches nothing of the user's.

A model holds more than parameters and buffers: tensors as plain attributes (some written anew in every forward pass,
which decide nothing), hooks, and flags. All of it is copied; what becomes of the hooks is said in ``hooks``.
"""

import copy as copying
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from suture.common.errors import NetworkError

_OWN = ("_parameters", "_buffers", "_modules")  # where a module keeps what is registered with it


def copy_frozen(model: nn.Module, copy: bool, name: str) -> nn.Module:
    """Copy a model's structure, and its tensors too where ``copy`` is set; in evaluation mode, without gradients.

    Raises ``NetworkError`` where it holds something that cannot be copied, or modules where PyTorch does not find them,
    where it is TorchScript, or has parameters without a shape.
    """
    _check_whole(model, name)
    _check_registered(model, name)
    memo: dict[int, object] = {}
    try:
        for module in model.modules():
            for tensor in _leaves(vars(module)):
                if isinstance(tensor, Tensor) and id(tensor) not in memo:
                    memo[id(tensor)] = _detached(tensor, copy)
        frozen = copying.deepcopy(model, memo)
    except Exception as error:
        raise NetworkError(
            f"{name} cannot be copied: {error}; build it anew and load its weights, or take off what it holds besides "
            "modules and tensors"
        ) from error
    for module in frozen.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return frozen.eval()


def _check_whole(model: nn.Module, name: str) -> None:
    """Refuse what has no Python code to cut, or no weights yet."""
    for path, module in model.named_modules():
        whose = f"module '{path}' in {name}" if path else name
        if isinstance(module, torch.jit.ScriptModule):
            raise NetworkError(f"{whose} is TorchScript, which cannot be cut; give the model that it was made of")
        if type(module).__name__ == "OptimizedModule":  # torch.compile's, whose class is private
            raise NetworkError(f"{whose} is compiled and cannot be cut; give the model that it was made of (_orig_mod)")
        if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
            raise NetworkError(f"{whose} has no shape yet: run the model once on a batch before it is made a network")


def _check_registered(model: nn.Module, name: str) -> None:
    """Refuse modules in plain lists and dictionaries: they are neither put into evaluation mode nor made untrained."""
    known = set(model.modules())
    for path, attribute, leaf in held_by(model):
        if isinstance(leaf, nn.Module) and leaf not in known:
            raise NetworkError(
                f"{name} holds a {type(leaf).__name__} in '{dotted(path, attribute)}', where PyTorch does not find it: "
                "it stays in training mode and is in no state dict; keep such modules in nn.ModuleList or nn.ModuleDict"
            )


def held_by(model: nn.Module) -> Iterator[tuple[str, str, object]]:
    """What a model's modules hold as plain attributes: the module's path, the attribute, and each thing in it."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OWN:
                yield from ((path, name, leaf) for leaf in _leaves(value))


def _leaves(value: object) -> Iterator[object]:
    """All that lists, tuples, dictionaries and dataclasses hold."""
    for leaf in tree_leaves(value):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _leaves([getattr(leaf, one.name, None) for one in fields(leaf)])
        else:
            yield leaf


def _detached(tensor: Tensor, copy: bool) -> Tensor:
    data = tensor.detach().clone() if copy else tensor.detach()
    return nn.Parameter(data, requires_grad=False) if isinstance(tensor, nn.Parameter) else data


@contextmanager
def restored(model: nn.Module) -> Iterator[set[str]]:
    """Undo what running or tracing a model writes to the attributes of its modules; gives the names of those written.

    Raises ``NetworkError`` where it writes to its own parameters or buffers.
    """
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    state = _versions(model)
    written: set[str] = set()
    try:
        yield written
    finally:
        for path, module in model.named_modules():
            written |= {dotted(path, name) for name in _restore(vars(module), before.get(path, {}))}
    for name, version in _versions(model).items():
        if state.get(name) != version:
            raise NetworkError(f"running {type(model).__name__} changes its own '{name}' even in evaluation mode")


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(tensor), tensor._version) for name, tensor in registered(model).items()}


def _restore(now: dict[str, Any], before: dict[str, Any]) -> set[str]:
    changed = {name for name in now.keys() | before.keys() if now.get(name, now) is not before.get(name, now)}
    for name in changed:
        now.pop(name, None)
    now.update({name: before[name] for name in changed if name in before})
    return changed


def registered(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model's modules hold as plain attributes, alone or in lists, dictionaries and the like."""
    found: dict[str, Tensor] = {}
    places: Counter[str] = Counter()
    for path, name, leaf in held_by(model):
        if isinstance(leaf, Tensor):
            place = dotted(path, name)
            found[place + (f"[{places[place]}]" if places[place] else "")] = leaf
            places[place] += 1
    return found


def dotted(path: str, name: str) -> str:
    """The name of what a module holds, from the whole model."""
    return f"{path}.{name}" if path else name

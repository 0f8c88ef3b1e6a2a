"""Which parts of a network train, and which are taken from another network.

Freeze training (Raghu et al. 2017, as in bansal2021 appendix B.4), one layer trained with the rest frozen (oxford2025
section 4.2) and a linear classifier on a frozen encoder (SimCLR) are all the same: some tensors start from another
network, some never change. Frozen means parameters and buffers, so a frozen BatchNorm is in evaluation mode.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from suture.common.errors import NetworkError
from suture.common.formatting import spell
from suture.common.hashing import keyed_as


@keyed_as("Parts")
@dataclass(frozen=True)
class Parts:
    """What of a network trains, and what it takes from the network that it starts from, if it starts from one.

    Each is a tuple of names of modules or tensors, with wildcards (``fc1``, ``layer1``, ``layer*.0``); a module's name
    stands for all inside it. ``trained`` and ``frozen`` say the same from either side, so one of them may be given;
    without either, all trains. ``taken`` is all by default. Raises ``NetworkError`` if both are given.
    """

    trained: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    taken: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        if self.trained and self.frozen:
            raise NetworkError(
                f"trained={self.trained} and frozen={self.frozen} say the same from two sides; give one of them"
            )

    def training(self, model: nn.Module) -> set[str]:
        """Return the names of the tensors that may change. Raises ``NetworkError`` if that is none."""
        chosen = match_tensors(model, self.trained or ("*",)) - match_tensors(model, self.frozen)
        if not chosen & {name for name, _ in model.named_parameters()}:
            raise NetworkError(
                f"nothing of {type(model).__name__} would train with {spell(self)}; name modules with parameters, or "
                "freeze less"
            )
        return chosen

    def take(self, model: nn.Module, start: Mapping[str, Tensor]) -> None:
        """Fill the parts that are ``taken`` from another network's tensors, by name.

        Raises ``NetworkError`` if that network has no such tensor, or one of another shape.
        """
        own = model.state_dict()
        for name in sorted(match_tensors(model, self.taken)):
            if name not in start or start[name].shape != own[name].shape:
                theirs = f"{tuple(start[name].shape)} there" if name in start else "not there"
                raise NetworkError(
                    f"cannot take {name!r} from the network to start from: it is {theirs} and "
                    f"{tuple(own[name].shape)} here; start from a network of the same architecture, or take less"
                )
            with torch.no_grad():
                own[name].copy_(start[name])


def match_tensors(model: nn.Module, patterns: Iterable[str]) -> set[str]:
    """Return the tensors that patterns name. Raises ``NetworkError`` for a pattern that names none."""
    tensors = list(model.state_dict())
    found: set[str] = set()
    for pattern in patterns:
        chosen = {name for name in tensors if any(fnmatchcase(path, pattern) for path in _paths_of(name))}
        if not chosen:
            valid = dict.fromkeys(path for name in tensors for path in _paths_of(name))
            near = difflib.get_close_matches(pattern, valid, n=5, cutoff=0.0)
            raise NetworkError(f"no module {pattern!r} in {type(model).__name__}; nearest: {', '.join(near)}")
        found |= chosen
    return found


def _paths_of(name: str) -> list[str]:
    """Return a tensor's name and those of the modules around it: ``a.b.weight``, ``a.b``, ``a``."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))][::-1]


def set_modes(model: nn.Module, training: set[str]) -> None:
    """Put what trains into training mode and the rest into evaluation mode; parameters that do not train, no gradients.

    A module without tensors, such as a dropout, goes with the module around it; one of whose buffers one is frozen, as
    a BatchNorm of which only the weight was named, would change it in training mode, and so does not get there.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in training)
    _set_mode(model, "", training, True)


def _set_mode(module: nn.Module, path: str, training: set[str], around: bool) -> None:
    kept = module.state_dict()
    own = any(f"{path}{name}" in training for name in kept) if kept else around
    buffers = [name for name, _ in module.named_buffers(recurse=False) if name in kept]
    module.training = own and all(f"{path}{name}" in training for name in buffers)
    for name, child in module.named_children():
        _set_mode(child, f"{path}{name}.", training, own)

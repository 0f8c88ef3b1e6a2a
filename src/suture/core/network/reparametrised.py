"""Layers whose weight is computed of other tensors: parametrisations, weight norm, spectral norm, pruning.

``reset_parameters`` draws the weight of a layer. Of these layers the weight is computed anew in every forward pass, and
a draw would be lost. So a twin with a plain weight draws it, and the tensors that it is computed of are set such that
they give that weight: by the ``right_inverse`` of a parametrisation, as torch itself begins one, or as they are where
there is none. A pruned layer keeps its mask, as a part of the architecture.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_STEPS = 15  #: power iterations of spectral norm, as torch begins with


def find_computed(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module that are computed of others, by name, as they are now."""
    parts: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
    names = [str(name) for name in parts]
    names += [name for name, _ in _hooks_of(module)]
    return {name: getattr(module, name).detach().clone() for name in names}


def find_masks(model: nn.Module) -> set[str]:
    """Return the names of the masks of pruned layers."""
    return {
        f"{path}.{name}_mask".lstrip(".")
        for path, module in model.named_modules()
        for name, hook in _hooks_of(module)
        if isinstance(hook, prune.BasePruningMethod)
    }


def reset_computed(module: nn.Module, computed: dict[str, Tensor], reset: Callable[[nn.Module], None]) -> None:
    """Reset a module whose tensors of these names are computed, by ``reset``, which is given one with plain tensors."""
    twin = _make_twin(module, computed)
    reset(twin)
    for name in computed:
        _set(module, name, twin._parameters[name].detach().clone())  # type: ignore[union-attr]


def _hooks_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the hooks by which torch computes tensors of a module, each with the name of its tensor."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            yield hook.name, hook
        elif isinstance(hook, prune.BasePruningMethod):
            yield hook._tensor_name, hook


def _make_twin(module: nn.Module, computed: dict[str, Tensor]) -> nn.Module:
    """Return the module as it would be with plain tensors; it shares all others."""
    kind: Any = parametrize.type_before_parametrizations(module)
    twin: nn.Module = kind.__new__(kind)
    modules = {name: child for name, child in module._modules.items() if name != "parametrizations"}
    held = {name: value for name, value in vars(module).items() if name not in computed}
    own = {"_parameters": dict(module._parameters), "_buffers": dict(module._buffers), "_modules": modules}
    vars(twin).update(held | own | {"_forward_pre_hooks": OrderedDict()})
    for name, value in computed.items():
        twin._parameters[name] = nn.Parameter(value.clone(), requires_grad=False)
    return twin


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Set the parameters that a tensor is computed from so that it comes as close to this value as it can."""
    if parametrize.is_parametrized(module, name):
        chain: Any = module.parametrizations[name]  # type: ignore[index]
        try:
            setattr(module, name, value.clone())
        except (RuntimeError, NotImplementedError):  # it has no right inverse
            with suppress(AttributeError, RuntimeError):
                chain.original.copy_(value)
        for part in chain:
            if isinstance(part, _SpectralNorm) and hasattr(part, "_u"):
                _draw(part._u, part._v)
                part._power_method(part._reshape_weight_to_matrix(value), _STEPS)
        return
    setattr(module, name, value)
    for _, hook in (one for one in _hooks_of(module) if one[0] == name):
        if isinstance(hook, WeightNorm):
            getattr(module, f"{name}_g").copy_(torch.norm_except_dim(value, 2, hook.dim))
            getattr(module, f"{name}_v").copy_(value)
            continue
        getattr(module, f"{name}_orig").copy_(value)
        if isinstance(hook, SpectralNorm):
            _draw(getattr(module, f"{name}_u"), getattr(module, f"{name}_v"))
            for _ in range(_STEPS):
                hook.compute_weight(module, do_power_iteration=True)


def _draw(*vectors: Tensor) -> None:
    for vector in vectors:
        vector.copy_(functional.normalize(torch.randn_like(vector), dim=0))

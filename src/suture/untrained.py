"""Networks that never saw data.

The untrained control means nothing if a trained tensor survives in it. So every tensor of the model is first
overwritten with a mark that no initialiser writes; every module then resets what it owns; and whatever still carries
the mark was reset by nobody. A parameter in that state needs the model's factory; so does a floating-point buffer,
unless the user says that it is a constant. Integer and boolean buffers that nobody resets (index tables, masks) are
constants.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from suture.errors import UntrainedError

_INTEGER_MARK = 101


def reset(model: nn.Module, seed: int, constants: Sequence[str] = ()) -> tuple[str, ...]:
    """Reset every tensor of the model in place; the names of the constant buffers that were kept.

    Raises ``UntrainedError`` naming the parameters, or the floating-point buffers not named in ``constants``, that no
    module's ``reset_parameters`` reaches.
    """
    originals = {name: tensor.detach().clone() for name, tensor in _tensors(model).items()}
    for tensor in _tensors(model).values():
        _mark(tensor)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for module in model.modules():
            for method in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(module, method, None)):
                    getattr(module, method)()
    kept = tuple(name for name, tensor in _tensors(model).items() if _marked(tensor))
    parameters = dict(model.named_parameters())
    survivors = [name for name in kept if _is_survivor(name, parameters, originals[name], constants)]
    if survivors:
        raise UntrainedError(_advice(model, survivors, parameters))
    for name in kept:
        _tensors(model)[name].copy_(originals[name])
    return kept


def fresh(factory: Callable[[], nn.Module], like: nn.Module, seed: int) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model anew by its factory; with the names of the buffers that came out the same (constants).

    Raises ``UntrainedError`` where the factory builds another architecture, or gives trained parameters.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = factory()
    new, old = _tensors(model), _tensors(like)
    if {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in old.items()}:
        differ = sorted(set(new) ^ set(old)) or [n for n in new if new[n].shape != old[n].shape]
        raise UntrainedError(f"the factory builds another architecture: {_few(differ)} differ")
    same = [n for n in new if torch.equal(new[n].to(old[n].device), old[n])]
    trained = dict(like.named_parameters())
    survivors = [n for n in same if n in trained and not _is_constant(old[n])]
    if survivors:
        raise UntrainedError(
            f"the factory returns trained parameters ({_few(survivors)}); it must build the model without weights, "
            "for instance with pretrained=False"
        )
    kept = tuple(n for n in same if n not in trained)
    return model.to(next(like.parameters(), torch.empty(0)).device), kept


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _mark(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else _INTEGER_MARK)


def _marked(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return tensor.numel() > 0 and bool((tensor == (True if tensor.dtype == torch.bool else _INTEGER_MARK)).all())


def _is_survivor(name: str, parameters: dict[str, nn.Parameter], original: Tensor, constants: Sequence[str]) -> bool:
    if name in parameters:
        return True
    return original.is_floating_point() and name not in constants


def _is_constant(tensor: Tensor) -> bool:
    """Whether all entries are the same, as initialisers of scales and shifts leave them."""
    return tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())


def _advice(model: nn.Module, survivors: Sequence[str], parameters: dict[str, nn.Parameter]) -> str:
    kind = "parameters" if any(name in parameters for name in survivors) else "buffers"
    named = "" if kind == "parameters" else ", or, if they hold constants, name them: constants=(…)"
    return (
        f"{type(model).__name__} cannot be made untrained: no module's reset_parameters() reaches the {kind} "
        f"{_few(survivors)}; give the network its factory, factory=lambda: {type(model).__name__}(…){named}, or leave "
        "out the untrained controls"
    )


def _few(names: Sequence[str], limit: int = 6) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(f"'{name}'" for name in names[:limit]) + rest

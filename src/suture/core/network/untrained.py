"""Networks that never saw data.

The untrained control means nothing if a trained tensor survives in it. So every tensor of the model is first
overwritten with a mark that no initialiser writes; every module then resets what it owns; and whatever still carries
the mark was reset by nobody. A parameter in that state needs the model's factory; so does a floating-point buffer,
unless the user says that it is a constant. Integer and boolean buffers that nobody resets (index tables, masks) are
constants.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from suture.common.errors import UntrainedError
from suture.core.network.freezing import is_altered, plain_tensors, registered_tensors

_INTEGER_MARK = 101


def reset(model: nn.Module, seed: int, constants: Sequence[str] = ()) -> tuple[str, ...]:
    """Reset every tensor of the model in place; return the names of the constants that were kept.

    Raises ``UntrainedError`` naming the parameters, or the floating-point buffers and plain tensor attributes not named
    in ``constants``, that no module's ``reset_parameters`` reaches.
    """
    tensors = _tensors(model)
    originals = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        _mark(tensor)
    with _seed_from(seed, model), torch.no_grad():
        for module in _children_first(model):
            _reset_one(module)
    kept = tuple(name for name, tensor in _tensors(model).items() if _marked(tensor))
    parameters = dict(model.named_parameters())
    survivors = [name for name in kept if _is_survivor(name, parameters, originals[name], constants)]
    if survivors:
        kind = "parameters" if any(name in parameters for name in survivors) else "buffers"
        raise UntrainedError(_advice(model, f"reaches the {kind} {_name_some(survivors)}", constants=kind == "buffers"))
    for name in kept:
        _tensors(model)[name].copy_(originals[name])
    return kept


def _children_first(model: nn.Module) -> Iterator[nn.Module]:
    """Yield every module, parents after their children, because a parent may initialise its children differently."""
    whole = list(model.modules())
    parents = {module for module in whole if next(module.children(), None) is not None}
    yield from (module for module in whole if module not in parents)
    yield from (module for module in reversed(whole) if module in parents)


def _reset_one(module: nn.Module) -> None:
    for method in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(module, method, None)):
            try:
                getattr(module, method)()
            except Exception as error:
                raise UntrainedError(
                    f"{type(module).__name__}.{method}() fails ({error}); give the network its factory, "
                    "factory=lambda: …, or leave out the untrained controls"
                ) from error


def fresh(
    factory: Callable[[], nn.Module], like: nn.Module, seed: int, constants: Sequence[str] = ()
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model by its factory; also give the names of the tensors that are as before, which are constants.

    Raises ``UntrainedError`` if the factory builds another architecture, or one without the hooks that the trained
    model has, which are a part of it; and if it gives parameters that are not named in
    ``constants`` and yet the same from another seed: trained ones, or a factory that seeds itself.
    """
    model, another = (_build(factory, like, s) for s in (seed, seed + 1))
    new, old = registered_tensors(model), registered_tensors(like)
    trained = dict(like.named_parameters())
    fixed = [n for n, t in registered_tensors(another).items() if n in trained and torch.equal(t, new[n])]
    survivors = [n for n in fixed if n not in constants and not _is_constant(new[n])]
    if survivors:
        raise UntrainedError(
            f"the factory gives the same parameters from every seed ({_name_some(survivors)}), as if trained; it must "
            "build the model at random, for instance with pretrained=False; name those that are no result of training: "
            "constants=(…)"
        )
    if is_altered(like) and not is_altered(model):
        raise UntrainedError(
            "the trained model has hooks, or layers whose forward was replaced, and what the factory builds has none; "
            "let it add these, too, or leave out the untrained controls"
        )
    same = [n for n in new if torch.equal(new[n], old[n])]
    return model, tuple(n for n in same if n not in trained or n in constants)


def _build(factory: Callable[[], nn.Module], like: nn.Module, seed: int) -> nn.Module:
    """Return what the factory builds from a seed, with the types and on the device of the trained model."""
    with _seed_from(seed, like):
        model = copy.deepcopy(factory())
    new, old = registered_tensors(model), registered_tensors(like)
    if {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in old.items()}:
        differ = sorted(set(new) ^ set(old)) or [n for n in new if new[n].shape != old[n].shape]
        raise UntrainedError(f"the factory builds another architecture: {_name_some(differ)} differ")
    for name, tensor in new.items():
        tensor.data = tensor.data.to(old[name].device, old[name].dtype)
    return model


@contextmanager
def _seed_from(seed: int, model: nn.Module) -> Iterator[None]:
    """Draw from the seed, and leave the generators of the processor and of the model's devices as they were."""
    devices = {tensor.device for tensor in registered_tensors(model).values() if tensor.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**registered_tensors(model), **plain_tensors(model)}


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
    return original.is_floating_point() and name not in constants and not _is_mask(original)


def _is_mask(tensor: Tensor) -> bool:
    """Whether it consists of 0 and −∞, as a mask that attention adds to its scores."""
    hidden = tensor.isneginf()
    return bool(hidden.any()) and bool((hidden | (tensor == 0)).all())


def _is_constant(tensor: Tensor) -> bool:
    """Whether all entries are the same, as initialisers of scales and shifts leave them."""
    return tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())


def _advice(model: nn.Module, reached: str, constants: bool) -> str:
    named = ", or, if they hold constants, name them: constants=(…)" if constants else ""
    return (
        f"{type(model).__name__} cannot be made untrained: no module's reset_parameters() {reached}; give the network "
        f"its factory, factory=lambda: {type(model).__name__}(…){named}, or leave out the untrained controls"
    )


def _name_some(names: Sequence[str], limit: int = 6) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(f"'{name}'" for name in names[:limit]) + rest

"""Networks that never saw data.

The untrained control means nothing if a trained tensor survives in it. So every tensor of the model is first
overwritten with a mark that no initialiser writes; every module then resets what it owns; and whatever still carries
the mark was reset by nobody: a class token, a table of positions, a layer scale. For these the library's own
initialiser is asked: the model's ``init_weights``, then a model of the same class as timm or torchvision builds it. A
model of transformers is drawn from its config as a whole. What is left needs the model's factory, or, if it is a
floating-point buffer or a plain attribute, the user's word that it is a constant. Constants are also the integer and
boolean buffers that nobody resets (index tables, masks), and the buffers that no state dict has, because no training
could have saved them. Numbers that no module can reset, in arrays or in objects of the user's, are refused alike.

A factory draws everything anew. What it gives again from another seed was not drawn: a trained tensor, or one of a
constant, which the user names. A single number that is neither 0 nor 1 counts as drawn unless it is the trained one.

Plain Python numbers, which no module can reset, are refused if they decide the output and nobody would have written
them so (``plain_numbers``). Beyond this are whole numbers, which are taken for settings, as integer buffers are, and
floats that code of the user's reads from a file, a global or a closure.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from suture.common.errors import UntrainedError
from suture.core.network.entrance import Entrance, entrance_of, is_of_transformers
from suture.core.network.freezing import find_numbers, hidden_numbers, is_altered, plain_tensors, registered_tensors
from suture.core.network.plain_numbers import PlainNumbers, plain_numbers
from suture.core.network.reparametrised import find_computed, find_masks, reset_computed
from suture.core.network.segments import have_same_bits

_INTEGER_MARK = 101
_NAMED = 6  #: tensors that a message names, at most


def reset(model: nn.Module, seed: int, constants: Sequence[str] = (), probe: Tensor | None = None) -> tuple[str, ...]:
    """Reset every tensor of the model in place; return the names of the constants that were kept.

    ``probe`` is an input, which tells the plain numbers that decide the output; without it all count. Raises
    ``UntrainedError`` naming the parameters, or the floating-point buffers, plain tensor attributes and plain numbers
    not named in ``constants``, that no module's ``reset_parameters`` reaches.
    """
    if left := _deciding(model, plain_numbers(model), constants, probe):
        raise UntrainedError(_advice(model, f"reaches the plain numbers {_name_some(left)}", constants=True))
    if hidden := [n for n, t in hidden_numbers(model).items() if n not in constants and not _is_constant(t)]:
        raise UntrainedError(_advice(model, f"reaches {_name_some(hidden)}", constants=True))
    if held := find_numbers(model):
        raise UntrainedError(_advice(model, f"reaches {held}: make it a buffer of a module", constants=False))
    model.train().eval()  # on which libraries clear what they cached of the weights
    computed = {module: found for module in model.modules() if (found := find_computed(module))}
    tensors = _tensors(model)
    originals = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        _mark(tensor)
    parameters = dict(model.named_parameters())
    fixed = {*constants, *_unsaved(model), *find_masks(model)}

    def survivors() -> list[str]:
        marked = (name for name, tensor in _tensors(model).items() if _marked(tensor))
        return [name for name in marked if _is_survivor(name, parameters, originals[name], fixed)]

    failed: list[str] = []
    with _seed_from(seed, model), torch.no_grad():
        for module in _children_first(model):
            if module in computed:
                reset_computed(module, computed[module], functools.partial(_reset_one, failed=failed))
            else:
                _reset_one(module, failed)
        for _, module in _outermost(model, is_of_transformers):
            _take(module, functools.partial(_from_config, module))
        if survivors():
            _initialise(model)
        if left := survivors():
            for path, module in _outermost(model, lambda module: bool(_names_at(type(module).__module__))):
                _draw_like_library(path, module, left)
    if left := survivors():
        if failed:
            raise UntrainedError(failed[0])
        kind = "parameters" if any(name in parameters for name in left) else "buffers"
        raise UntrainedError(_advice(model, f"reaches the {kind} {_name_some(left)}", constants=kind == "buffers"))
    kept = tuple(name for name, tensor in _tensors(model).items() if _marked(tensor))
    for name in kept:
        _tensors(model)[name].copy_(originals[name])
    return kept


def _children_first(model: nn.Module) -> Iterator[nn.Module]:
    """Yield every module, parents after their children, because a parent may initialise its children differently."""
    whole = list(model.modules())
    parents = {module for module in whole if next(module.children(), None) is not None}
    yield from (module for module in whole if module not in parents)
    yield from (module for module in reversed(whole) if module in parents)


def _reset_one(module: nn.Module, failed: list[str]) -> None:
    for method in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(module, method, None)):
            try:
                getattr(module, method)()
            except Exception as error:
                failed.append(
                    f"{type(module).__name__}.{method}() fails ({error}); give the network its factory, "
                    "factory=lambda: …, or leave out the untrained controls"
                )


# --- the library's own initialisers -----------------------------------------------------------------------------------


def _initialise(model: nn.Module) -> None:
    """Call the initialisers that modules have beside ``reset_parameters``: ``init_weights``, ``_init_weights``."""
    for module in _children_first(model):
        for name in ("init_weights", "_init_weights"):
            initialise = getattr(module, name, None)
            if not callable(initialise) or is_of_transformers(module):
                continue
            with suppress(Exception):  # whatever it does not draw is noticed
                wanted = [p for p in inspect.signature(initialise).parameters.values() if p.default is p.empty]
                if not wanted:
                    initialise()
                elif len(wanted) == 1 and wanted[0].kind is not wanted[0].VAR_POSITIONAL:
                    module.apply(initialise)


def _from_config(module: Any) -> nn.Module:
    config = copy.deepcopy(module.config)
    made: nn.Module = type(module)._from_config(config, attn_implementation=config._attn_implementation)
    return made


def _outermost(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are chosen, with their paths, and none within another."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module not in inside and chosen(module):
            inside.update(module.modules())
            yield path, module


def _take(module: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Copy into a module of a model all that a new one of its kind holds under the same names, in the same shapes."""
    try:
        new = _tensors(build())
    except Exception:  # a class with another constructor; what nobody resets is noticed
        return
    for name, tensor in _tensors(module).items():
        if name in new and new[name].shape == tensor.shape:
            tensor.copy_(new[name])


@functools.cache
def _names_at(home: str) -> tuple[Callable[[], nn.Module], ...]:
    """Return the builders of timm's or torchvision's models that are defined in the module ``home``."""
    if home.startswith("timm.models."):
        import timm

        names = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__ == home]
        return tuple(functools.partial(timm.create_model, name) for name in names)
    if home.startswith("torchvision.models."):
        from torchvision import models

        builders = map(models.get_model_builder, models.list_models(module=models))
        return tuple(build for build in builders if build.__module__ == home)
    return ()


def _draw_like_library(path: str, module: nn.Module, survivors: Sequence[str]) -> None:
    """Draw the tensors of a module that nobody resets as the library draws those of the same name in its own models.

    A tensor of the same place and shape in a model of the library's is copied. Else the entries are drawn from those of
    a namesake: a model of another width has the same initialisers.
    """
    within = f"{path}." if path else ""
    wanted = {name.removeprefix(within): None for name in survivors if name.startswith(within)}
    kinds = {name: _kind(module, name) for name in wanted}
    own = (getattr(module, "pretrained_cfg", None) or {}).get("architecture")
    for build in sorted(_names_at(type(module).__module__), key=lambda build: own not in getattr(build, "args", ())):
        with torch.device("meta"):
            outline = build()
        if not set(kinds.values()) <= {_kind(outline, name) for name in _tensors(outline)}:
            continue
        drawn, again = build(), _tensors(build())
        new = _tensors(drawn)
        for name, tensor in _tensors(module).items():
            if name in new and new[name].shape == tensor.shape:
                tensor.copy_(new[name])
            elif name in wanted:
                same = next(other for other in new if _kind(drawn, other) == kinds[name])
                if _is_constant(new[same]) or not torch.equal(new[same], again[same]):
                    entries = new[same].flatten()
                    tensor.copy_(entries[torch.randint(len(entries), tensor.shape)])
        return


def _kind(module: nn.Module, name: str) -> tuple[type, str]:
    path, _, attribute = name.rpartition(".")
    return type(module.get_submodule(path)), attribute


# --- factories --------------------------------------------------------------------------------------------------------


def fresh(
    factory: Callable[[], nn.Module],
    like: nn.Module,
    seed: int,
    constants: Sequence[str],
    trusted: bool,
    probe: Tensor,
) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model by its factory; also give the names of the tensors that are as before, which are constants.

    Raises ``UntrainedError`` if the factory builds another architecture, or one without the hooks that the trained
    model has, which are a part of it; and if it gives numbers that are not named in ``constants`` and yet the same from
    another seed: trained ones, or a factory that seeds itself. Plain numbers are refused if they are the trained
    model's. A factory that is ``trusted`` has no trained ones, only tables of angles and the like.
    """
    model, another = (_build(factory, like, s) for s in (seed, seed + 1))
    new, old, again = (_tensors(one) | hidden_numbers(one) for one in (model, like, another))
    known = {*constants, *_unsaved(model), *find_masks(model)}
    survivors = [
        name
        for name, tensor in new.items()
        if name not in known
        and tensor.is_floating_point()
        and have_same_bits(tensor, again.get(name, tensor))
        and not _says_nothing(tensor, old.get(name))
    ]
    if not trusted:
        trained_ones = {place: [one.numbers for one in found] for place, found in plain_numbers(like).items()}
        same_ones = {
            place: [one for one in found if one.numbers in trained_ones.get(place, ())]
            for place, found in plain_numbers(model).items()
        }
        survivors += _deciding(model, same_ones, constants, probe)
    if survivors and not trusted:
        raise UntrainedError(
            f"the factory gives the same numbers from every seed ({_name_some(survivors)}), as if trained; it must "
            "build the model at random, for instance with pretrained=False; name those that training does not "
            "change: constants=(…)"
        )
    if is_altered(like) and not is_altered(model):
        raise UntrainedError(
            "the trained model has hooks, or layers whose forward was replaced, and the factory's model has "
            "none; let the factory add them, or leave out the untrained controls"
        )
    trained = dict(like.named_parameters())
    same = [n for n, t in registered_tensors(model).items() if torch.equal(t, old[n])]
    return model, tuple(n for n in same if n not in trained or n in constants)


def _build(factory: Callable[[], nn.Module], like: nn.Module, seed: int) -> nn.Module:
    """Return the factory's model from a seed, with the types and on the device of the trained model."""
    with _seed_from(seed, like):
        model = copy.deepcopy(factory())
    if isinstance(like, Entrance):
        model = like.around(model)
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


def _deciding(
    model: nn.Module, found: Mapping[str, Sequence[PlainNumbers]], constants: Collection[str], probe: Tensor | None
) -> list[str]:
    """Return the places of the plain numbers that decide the output, but are neither settings nor named constants."""

    def decides(one: PlainNumbers) -> bool:
        return not one.are_written() and (probe is None or one.decide(model, probe))

    return [place for place, several in found.items() if place not in constants and any(map(decides, several))]


def _unsaved(model: nn.Module) -> set[str]:
    """Return the names of the buffers that no state dict has."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }


def _is_survivor(
    name: str, parameters: Mapping[str, nn.Parameter], original: Tensor, constants: Collection[str]
) -> bool:
    if name in parameters:
        return True
    return original.is_floating_point() and name not in constants and not _is_mask(original)


def _is_mask(tensor: Tensor) -> bool:
    """Return whether it consists of 0 and −∞, as a mask that attention adds to its scores."""
    hidden = tensor.isneginf()
    return bool(hidden.any()) and bool((hidden | (tensor == 0)).all())


def _says_nothing(tensor: Tensor, trained: Tensor | None) -> bool:
    """Return whether a tensor that was not drawn is one that initialisers leave, or a mask."""
    if tensor.numel() == 1 and trained is not None and have_same_bits(tensor, trained):
        return float(tensor) in (0.0, 1.0)
    return _is_constant(tensor) or _is_mask(tensor)


def _is_constant(tensor: Tensor) -> bool:
    """Return whether all entries are the same, as initialisers of scales and shifts leave them."""
    return tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())


def _advice(model: nn.Module, reached: str, constants: bool) -> str:
    kind = type(entrance_of(model).model).__name__
    named = ", or, if they hold constants, name them: constants=(…)" if constants else ""
    return (
        f"{kind} cannot be made untrained: neither a module's reset_parameters() nor its library "
        f"{reached}; give the network its factory, factory=lambda: {kind}(…){named}, or leave out the "
        "untrained controls"
    )


def _name_some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMED]) + rest

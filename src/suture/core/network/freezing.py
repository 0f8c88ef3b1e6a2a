"""A frozen copy of a model, which is not affected by later changes to the model and does not affect it.

A model holds more than parameters and buffers: tensors as plain attributes, hooks, and flags. All of it is copied. Some
attributes are written in every forward pass and decide nothing; these writes are undone (``undo_writes``).

Hooks that act stay and are frozen with the model; those that only look on are dropped, or they would go on recording
for the user. A hook acts if it returns something else than it was given, writes to it, or if the output is another
without it. A few images cannot show that a hook acts on some images only, so one that returns anything
else stays.

A function's closure is not copied with the model. A module or a parameter in it would be neither frozen nor made
untrained, so it is refused.

Before that, a model shows on *probes*, three images of the example, that it can be measured at all.
"""

import copy as copying
import functools
import random
import sys
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suture.common.errors import DataError, NetworkError
from suture.common.hashing import globals_of, is_filled
from suture.core.network.segments import are_close, find_rounding, have_same_bits
from suture.data.images import BEYOND, are_token_ids
from suture.data.inputs import Inputs, counted

OWN = ("_parameters", "_buffers", "_modules")  # where a module keeps what is registered with it
_BARE = (bool, int, float, str, type(None))  # the kinds of most attributes, in which nothing else is found
_TORCH, _SUTURE = Path(torch.__file__).parent, Path(__file__).parents[2]  # folders of code that is not the user's
SETTLED = ("torch", "transformers", "builtins")  # whose objects hold settings alone


def copy_frozen(model: nn.Module, copy: bool, name: str, device: torch.device | None = None) -> nn.Module:
    """Copy a model's structure, and its tensors too if ``copy`` is set; in evaluation mode, without gradients.

    With ``device`` the tensors of the copy are there.

    Raises ``NetworkError`` if it holds something that cannot be copied, or modules where PyTorch does not find them, if
    it is TorchScript or compiled, or has parameters without a shape.
    """
    for path, module in model.named_modules():
        whose = _place(path, name)
        if isinstance(module, torch.jit.ScriptModule):
            raise NetworkError(f"{whose} is TorchScript, which cannot be cut; give the model that it was made of")
        if type(module).__name__ == "OptimizedModule":  # torch.compile's, whose class is private
            raise NetworkError(f"{whose} is compiled and cannot be cut; give the model that it was made of (_orig_mod)")
        if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
            raise NetworkError(f"{whose} has no shape yet: run the model once on a batch before it is made a network")
    known = set(model.modules())
    for place, leaf in _plain_attributes(model):
        if isinstance(leaf, nn.Module) and leaf not in known:
            raise NetworkError(
                f"{name} holds a {type(leaf).__name__} in '{place}', where PyTorch does not find it: it stays in "
                "training mode and is missing from the state dict; keep such modules in nn.ModuleList or nn.ModuleDict"
            )
    try:
        frozen = copying.deepcopy(model, copy_tensors([model], copy, device))
    except Exception as error:  # a model may hold anything
        raise NetworkError(
            f"{name} cannot be copied: {error}; make it again and load its weights, or remove what it holds besides "
            "modules and tensors"
        ) from error
    for path, module in frozen.named_modules():
        _drop_placing(path, module, name)
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return frozen.eval()


def _drop_placing(path: str, module: nn.Module, name: str) -> None:
    """Give a module its own forward pass back if a hook of accelerate's moves its tensors between devices.

    Raises ``NetworkError`` for other hooks of accelerate's, and if the hook keeps the weights elsewhere.
    """
    hook = vars(module).get("_hf_hook")
    if hook is None:
        return
    kind, own = type(hook).__name__, vars(module).get("_old_forward")
    if kind != "AlignDevicesHook" or getattr(hook, "offload", False) or not isinstance(own, MethodType):
        raise NetworkError(
            f"{_place(path, name)} has a hook of accelerate ({kind}), which acts in every forward pass; take it away, "
            "accelerate.hooks.remove_hook_from_module(model, recurse=True), or load the model without device_map="
        )
    for attribute in ("_hf_hook", "_old_forward", "forward"):
        vars(module).pop(attribute, None)
    if own.__func__ is not type(module).forward:
        module.forward = own


def copy_tensors(models: Iterable[nn.Module], copy: bool, device: torch.device | None = None) -> dict[int, object]:
    """Return frozen copies of all tensors that models hold, on the device, by the tensors' ids, for ``deepcopy``."""
    memo: dict[int, object] = {}
    for tensor in (leaf for model in models for module in model.modules() for leaf in _leaves(vars(module))):
        if isinstance(tensor, Tensor) and id(tensor) not in memo:
            moves = device is not None and not tensor.is_meta  # what has no values yet is refused by its name later
            data = tensor.detach().to(device) if moves else tensor.detach()
            data = data.clone() if copy and data.device == tensor.device else data
            memo[id(tensor)] = nn.Parameter(data, requires_grad=False) if isinstance(tensor, nn.Parameter) else data
    return memo


def registered_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a model's modules hold as plain attributes, alone or in lists, dictionaries and such."""
    found: dict[str, Tensor] = {}
    places: Counter[str] = Counter()
    for place, leaf in _plain_attributes(model):
        if isinstance(leaf, Tensor):
            found[place + (f"[{places[place]}]" if places[place] else "")] = leaf
            places[place] += 1
    return found


def hidden_numbers(model: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point numbers that a model's modules hold in arrays or in objects, and no module can reset.

    Those are the arrays of numpy, and the tensors and arrays that an object holds, at any depth. Plain numbers are not
    among them; ``plain_numbers`` finds these.
    """
    found: dict[str, Tensor] = {}

    def look(place: str, thing: object, inside: bool, seen: set[int]) -> None:
        if id(thing) in seen or isinstance(thing, nn.Module | type | FunctionType | MethodType):
            return
        seen.add(id(thing))
        if isinstance(thing, np.ndarray) and thing.dtype.kind == "f":
            found.setdefault(place, torch.from_numpy(np.array(thing, np.float64)))
        elif inside and isinstance(thing, Tensor) and thing.is_floating_point():
            found.setdefault(place, thing)
        elif may_hold(thing):
            for name, value in getattr(thing, "__dict__", {}).items():
                for leaf in _leaves(value):
                    look(f"{place}.{name}", leaf, True, seen)
            for leaf in held_beside(thing):
                look(place, leaf, True, seen)

    for place, leaf in _plain_attributes(model):
        look(place, leaf, False, set())
    return found


def may_hold(thing: object) -> bool:
    """Return whether an object may hold numbers of a model's, as neither modules nor objects of settings do."""
    if isinstance(thing, nn.Module | Tensor | type | FunctionType | MethodType):
        return False
    return isinstance(thing, set | frozenset) or type(thing).__module__.partition(".")[0] not in SETTLED


def held_beside(thing: object) -> list[object]:
    """Return all that an object holds beside its ``__dict__``, as copying sees it: items, slots, bound arguments."""
    try:
        reduced = thing.__reduce_ex__(2)
    except Exception:  # it cannot be copied, and was not
        return []
    if isinstance(reduced, str):
        return []
    own = {id(leaf) for leaf in tree_leaves(getattr(thing, "__dict__", {}))}
    parts = [*reduced[1:3], *(list(items) for items in reduced[3:5] if items is not None)]
    return [leaf for leaf in tree_leaves(parts) if id(leaf) not in own]


def _plain_attributes(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the plain attributes of a model's modules, except bare values, each with its place in the model."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            kind = type(value)
            if name in OWN or kind in _BARE or (kind in (dict, OrderedDict) and not value):  # as hooks without any
                continue
            yield from ((f"{path}.{name}" if path else name, leaf) for leaf in _leaves(value))


def _leaves(value: object) -> Iterator[object]:
    """Yield all that lists, tuples, dictionaries and dataclasses hold."""
    for leaf in tree_leaves(value):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _leaves([getattr(leaf, one.name, None) for one in fields(leaf)])
        else:
            yield leaf


@contextmanager
def undo_writes(model: nn.Module) -> Iterator[set[str]]:
    """Undo the writes of a run or a tracing to the attributes of a model's modules; yields the names of those written.

    Raises ``NetworkError`` if it writes to its own parameters or buffers.
    """
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    versions = {name: (id(tensor), tensor._version) for name, tensor in registered_tensors(model).items()}
    written: set[str] = set()
    try:
        yield written
    finally:
        for path, module in model.named_modules():
            now, then = vars(module), before.get(path, {})
            changed = {name for name in now.keys() | then.keys() if now.get(name, now) is not then.get(name, now)}
            for name in changed:
                now.pop(name, None)
            now.update({name: then[name] for name in changed if name in then})
            written |= {f"{path}.{name}" if path else name for name in changed}
    for name, tensor in registered_tensors(model).items():
        if versions.get(name) != (id(tensor), tensor._version):
            raise NetworkError(
                f"running the model changes its own '{name}' even in evaluation mode; write to it only "
                "in training, if self.training: …"
            )


# --- hooks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Hook:
    """A hook of the user: where it is kept, under which number, and whether it runs before the forward pass."""

    path: str
    kept: MutableMapping[int, Any]
    key: int
    before: bool


def is_altered(model: nn.Module) -> bool:
    """Return whether a model has hooks of the user, or functions in place of a module's ``forward``."""
    return next(_hooks(model), None) is not None or any("forward" in vars(module) for module in model.modules())


def _hooks(model: nn.Module) -> Iterator[_Hook]:
    """Yield the hooks of the forward pass, except torch's own, which compute weights."""
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
        wanted, acted = _spy_on(model, hooks, probe)
        for hook in hooks:
            if hook in acted:
                continue
            entries = dict(hook.kept)
            del hook.kept[hook.key]
            try:
                with undo_writes(model):  # a hook that writes what the model reads is not idle
                    is_idle = have_same_bits(model(probe.clone()), wanted)
            except Exception:  # it does not run without it
                is_idle = False
            if not is_idle:  # put it back in its place among the others
                hook.kept.clear()
                hook.kept.update(entries)


def _spy_on(model: nn.Module, hooks: list[_Hook], probe: Tensor) -> tuple[Tensor, list[_Hook]]:
    """Return the output, and the hooks that returned something else than they were given, or wrote to it."""
    acted: list[_Hook] = []

    def spying(hook: _Hook, call: Callable[..., object]) -> Callable[..., object]:
        def spy(*given: object) -> object:
            there = [leaf for leaf in tree_leaves(given[1:]) if isinstance(leaf, Tensor)]
            before = [tensor._version for tensor in there]
            result = call(*given)
            replaced = given[1:] if hook.before else given[-1]
            handed_on = result is None or list(map(id, tree_leaves(result))) == list(map(id, tree_leaves(replaced)))
            if not handed_on or before != [tensor._version for tensor in there]:
                acted.append(hook)
            return result

        return spy

    calls = [hook.kept[hook.key] for hook in hooks]
    for hook, call in zip(hooks, calls, strict=True):
        hook.kept[hook.key] = spying(hook, call)
    try:
        with undo_writes(model):
            wanted: Tensor = model(probe.clone())
    finally:
        for hook, call in zip(hooks, calls, strict=True):
            hook.kept[hook.key] = call
    return wanted, acted


# --- functions --------------------------------------------------------------------------------------------------------


def check_functions(model: nn.Module, name: str) -> None:
    """Refuse hooks, and functions held as attributes, that use modules or parameters which are none of the model's."""
    known = set(model.modules())
    for function, which in _functions(model, name):
        if used := find_trained(function, known):
            raise NetworkError(
                f"{which} uses {used}, a module or a parameter that is not one of the copy's, and would be neither "
                "frozen with it nor made untrained; make it a part of the module, module.extra = …, and let the hook "
                "reach it by its first argument, or a method by self"
            )


def _functions(model: nn.Module, name: str) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield the hooks of a model, and the functions held as attributes, each with its place in words."""
    yield from ((hook.kept[hook.key], f"a hook on {_place(hook.path, name)}") for hook in _hooks(model))
    for place, leaf in _plain_attributes(model):
        if isinstance(leaf, FunctionType) and "_hooks" not in place.rpartition(".")[2]:
            yield leaf, f"the function '{place}' of {name}"


def find_numbers(model: nn.Module) -> str:
    """Say which function of a model uses floating-point numbers that are none of the model's; empty if none does."""
    known = {id(tensor) for tensor in (*registered_tensors(model).values(), *plain_tensors(model).values())}
    for function, which in _functions(model, "the model"):
        for words, value in _used_by(function):
            if isinstance(value, Tensor) and value.is_floating_point() and id(value) not in known:
                numbers = value.detach().flatten().cpu()
            elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
                numbers = torch.from_numpy(np.array(value, np.float64)).flatten()
            else:
                continue
            if len(numbers) and bool((numbers != numbers[0]).any()):
                return f"{words}, which {which} uses"
    return ""


def find_trained(function: Callable[..., Any], known: Collection[nn.Module] = ()) -> str:
    """Describe the module (not in ``known``) or tensor that a function uses and that trains; empty if there is none."""
    return next((words for words, value in _used_by(function) if _trains(value, known)), "")


def _used_by(function: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    yield "itself", function
    yield "its object", getattr(function, "__self__", None)
    match function:
        case functools.partial():
            yield from (("an argument", value) for value in (*function.args, *function.keywords.values()))
            yield from _used_by(function.func)
        case FunctionType():  # its closure, and the globals that it reads
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            space = function.__globals__
            read = {name: space[name] for name in sorted(globals_of(function.__code__)) if name in space}
            read |= {name: cell.cell_contents for name, cell in cells if is_filled(cell)}
            yield from ((f"'{name}'", value) for name, value in read.items())
        case MethodType():
            yield from _used_by(function.__func__)
        case nn.Module():
            return
        case _:
            kept = getattr(function, "__dict__", {})
            yield from ((f"'{name}'", leaf) for name, value in kept.items() for leaf in tree_leaves(value))


def _trains(value: object, known: Collection[nn.Module]) -> bool:
    match value:
        case nn.Module():
            return value not in known
        case MethodType():
            return _trains(value.__self__, known)
        case functools.partial():
            return any(_trains(one, known) for one in (value.func, *value.args, *value.keywords.values()))
    return isinstance(value, Tensor) and value.requires_grad


def _place(path: str, name: str) -> str:
    return f"module '{path}' in {name}" if path else name


def check_model(model: object) -> None:
    """Raise ``NetworkError``, with the remedy, if ``model`` is not a model."""
    if isinstance(model, nn.Module):
        return
    remedy = "give a torch.nn.Module that maps images to outputs"
    if isinstance(model, type):
        raise NetworkError(f"the model is the class {model.__name__}; give an instance: {model.__name__}(…)")
    if isinstance(model, Mapping):
        remedy = "it looks like weights alone: load them, model.load_state_dict(…), and give that model"
    raise NetworkError(f"the model is a {type(model).__name__}; {remedy}")


def make_probes(example: Tensor, inputs: Inputs) -> Tensor:
    """Take three raw images, or sequences of token ids, from the example; if it has fewer, repeat them shifted.

    If all positions of sequences with a mask count, a few are masked, because models compute with no mask if they can.
    Floats that are not raw images, such as ``torch.randn`` gives, are brought to [0, 1]: an example only serves to find
    cuts.
    """
    is_tensor = isinstance(example, Tensor)
    if not is_tensor or not (example.ndim == 4 or are_token_ids(example)) or len(example) == 0:
        got = f"{example.dtype} of shape {tuple(example.shape)}" if is_tensor else f"a {type(example).__name__}"
        raise DataError(
            f"the example must be a few raw images, a tensor of shape (n, C, H, W) with n ≥ 1, or as many sequences of "
            f"token ids, (n, T) int64, and is {got}; give data.example, or the first images of a tensor"
        )
    if example.is_floating_point() and not example.isfinite().all():
        raise DataError("the example has values that are not finite; give raw images, such as data.example")
    if example.is_floating_point() and not -BEYOND <= float(example.min()) <= float(example.max()) <= 1 + BEYOND:
        example = (example - example.min()) / (example.max() - example.min()).clamp(min=1)
    probes = torch.stack([example[i % len(example)].roll(i // len(example), dims=-1) for i in range(3)])
    for i, one in enumerate(inputs):
        if one.is_mask and counted(probes, inputs) is None:
            probes[:, i, -1] = 1 - probes[:, i, -1]
    return probes


def check_outputs(model: nn.Module, probes: Sequence[Tensor], name: str, before: Tensor | None = None) -> list[Tensor]:
    """Return the outputs for the probes; refuse them if they lack a row per image, vary between runs, or mix images.

    Of randomness two runs of the same image are compared, of which the output of the one may be given as ``before``,
    and torch's, numpy's and Python's generators after every run. A generator of the model's own that acts in one call
    of a hundred is not noticed here. It is when it acts in one of the later comparisons, of segments, of batches and
    before and after a trial, which is rarely.
    """
    batches = [probes[2], *([] if before is not None else [probes[0]]), probes[0], probes[1], probes[2][2:]]
    outputs: list[Tensor] = []
    states: list[object] = []  # of the generators after each run, which stay if nothing is drawn
    try:
        for batch in batches:
            outputs.append(model(batch.clone()))
            of_numpy = [np.asarray(part).tolist() for part in np.random.get_state()]  # noqa: NPY002  # a model's source
            states.append((torch.get_rng_state().tolist(), random.getstate(), of_numpy))
    except Exception as error:
        shape, is_text = tuple(probes[0].shape[1:]), are_token_ids(probes[0])
        what = f"sequences of {shape[-1]} token ids" if is_text else f"inputs of shape {shape}"
        raise NetworkError(f"{name} does not run on {what}: {error}{advise(model, probes[0])}") from error
    for out, batch in zip(outputs, batches, strict=True):
        _check_rows(out, len(batch), name)
    three, *others = outputs
    again, one, two, third = others if before is None else (before, *others)
    if not have_same_bits(one, again) or any(state != states[0] for state in states):
        raise _random(model, probes[0], name)
    finite = bool(three.isfinite().all())  # if not, the cut where it begins will be named
    if finite and not all(
        are_close(a, b, find_rounding(b)) for a, b in ((one, three[:1]), (two, three[:2]), (third, three[2:]))
    ):
        check_repeats(model, probes[2], three, name)
        raise NetworkError(
            f"the output of {name} for one image depends on the other images of its batch, as with a BatchNorm that "
            "keeps no running statistics"
        )
    return [one, two, three]


def check_repeats(model: nn.Module, probe: Tensor, wanted: Tensor, name: str) -> None:
    """Raise ``NetworkError`` if a model gives other bits for a probe than it gave, or others from run to run."""
    runs = [model(probe.clone()) for _ in range(2)]
    if not all(have_same_bits(out, wanted) for out in runs):
        raise _random(model, probe, name)


def _random(model: nn.Module, probe: Tensor, name: str) -> NetworkError:
    drawing = _Drawing()
    with drawing:
        model(probe.clone())
    cause = drawing.found or "its forward pass draws numbers or changes something that it reads, such as a counter"
    return NetworkError(
        f"{name} is random in evaluation mode: the same images gave two outputs, because {cause}; leave that out in "
        "evaluation mode"
    )


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that draws from torch's generators, and the line of the user's code that asks for it.

    A module of torch's own that no such line calls is noted by its class.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.found and torch.Tag.nondeterministic_seeded in func.tags:
            place = "its forward pass"
            for frame, line in traceback.walk_stack(sys._getframe(1)):
                file = Path(frame.f_code.co_filename)
                if file.is_relative_to(_SUTURE):
                    break
                if not file.is_relative_to(_TORCH):
                    place = f"line {line} of {file.name}"
                    break
                if isinstance(module := frame.f_locals.get("self"), nn.Module) and place == "its forward pass":
                    place = f"a {type(module).__name__}"
            self.found = f"{place} draws numbers ({func._schema.name.removeprefix('aten::')})"
        return func(*args, **(kwargs or {}))


def advise(model: nn.Module, probe: Tensor, named: nn.Module | None = None) -> str:
    """Return the remedies for a model that does not run on an input, which its tables and weights suggest.

    Tables are called as in ``named``, the user's model, if ``model`` stands around it.
    """
    looking = _Lookups()
    with suppress(Exception), torch.no_grad(), looking:
        model(probe.clone())
    if looking.beyond is not None:
        table, row = looking.beyond
        known = (model if named is None else named).named_parameters()
        name = next((f"'{key}'" for key, p in known if p.data_ptr() == table.data_ptr()), "a table")
        return (
            f"; row {row} of {name} is looked up, which has {len(table)} rows: give smaller token ids, those of its "
            "tokeniser, or shorter sequences"
        )
    types = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()})
    mixed = f"; its weights are of {' and '.join(types)}: try one type, model.float()" if len(types) > 1 else ""
    resized = "" if are_token_ids(probe) else "; if it takes other ones, give preprocess=Preprocess(size=…, channels=…)"
    return mixed + resized


class _Lookups(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first lookup outside a table of embeddings: the table and the row."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.beyond: tuple[Tensor, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::embedding" and self.beyond is None and args[1].numel():
            least, most = int(args[1].min()), int(args[1].max())
            if least < 0 or most >= len(args[0]):
                self.beyond = args[0], least if least < 0 else most
        return func(*args, **(kwargs or {}))


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether rows are shares of several classes, which add up to 1; in 16 bits only within a hundredth."""
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    whole = (outputs.sum(dim=1) - 1).abs() < 0.01
    return bool((whole & (outputs >= 0).all(dim=1)).all())


def _check_rows(out: object, n: int, name: str) -> None:
    got = f"a {type(out).__name__}"
    if isinstance(out, Tensor):
        if out.ndim >= 2 and len(out) == n and out.is_floating_point():
            return
        got = f"{out.dtype} of shape {tuple(out.shape)}"
    raise NetworkError(
        f"{name} must map n images to one tensor of floats (n, …), but a batch of {n} gave {got}; wrap it in a "
        "module that returns that tensor"
    )


def find_dtype(model: nn.Module, probe: Tensor) -> torch.dtype | None:
    """Return the one floating type of the model's parameters if it runs on the probe in no other; else ``None``."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(dtypes) != 1 or probe.dtype in dtypes or are_token_ids(probe):
        return None
    try:
        model(probe.clone())
    except Exception:
        return dtypes.pop()
    return None


def check_weights(model: nn.Module, name: str) -> None:
    """Refuse tensors without values or with values that no training gives; a buffer may be a mask, which holds −∞."""
    masks = {key for key, _ in model.named_buffers() if not key.endswith(("running_mean", "running_var"))}
    for key, tensor in registered_tensors(model).items():
        if tensor.is_meta:
            raise NetworkError(f"{key} of {name} is on the meta device, without values; load the weights first")
        if tensor.is_floating_point() and not (tensor.isfinite() | (tensor.isneginf() & (key in masks))).all():
            path, _, kind = key.rpartition(".")
            raise NetworkError(f"the {kind} of {_place(path, name)} is not finite; train or load it again")

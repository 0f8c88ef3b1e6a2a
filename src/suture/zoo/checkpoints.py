"""Checkpoints: trained weights in a file, and loading them into a model.

Weights are loaded without running anything their file says. A checkpoint is a state dict: safetensors, or
what ``torch.save`` wrote, read with ``weights_only=True``. In the latter it may be bare or lie under
``"state_dict"``, ``"model"`` and the like, as training scripts leave it, and of averaged weights beside these a warning
says that they were not taken. What stands before every name is taken off:
``module.`` of ``DataParallel``, ``_orig_mod.`` of ``torch.compile``, ``model.`` of Lightning.
"""

import json
import pickle
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from suture.common.errors import CheckpointError
from suture.common.warning import warn

_PICKLED = (".pt", ".pth", ".th", ".ckpt", ".bin")
_INDEX = ".safetensors.index.json"  # of a checkpoint in several files, as transformers writes it
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_COUNT = "num_batches_tracked"  # of BatchNorm, which old checkpoints lack, and which no output depends on
_SAVE = "safetensors.torch.save_model(model, 'weights.safetensors')"
_ADAPTER = "adapter_config.json"  # beside the weights of an adapter of peft
OF_ADAPTERS = (
    "is an adapter of peft, which changes the weights of another model: whether it is heeded would depend on whether "
    "peft is installed; merge it where it was trained, model.merge_and_unload().save_pretrained(FOLDER)"
)


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Fill every parameter and buffer of a model from a ``.safetensors`` file, or a ``.pt``, ``.pth``, ``.ckpt`` ….

    A checkpoint in several files is given by its index, ``model.safetensors.index.json``.

    Raises ``CheckpointError`` when the file is absent, of another kind, damaged or unsafe to load, and when its names,
    its shapes, or the kinds of its numbers are not exactly the model's.
    """
    path = Path(path).expanduser()
    state = _state_dict(read_tensors(path), path)
    wanted, stripped = model.state_dict(), state
    while not stripped.keys() & wanted.keys() and (prefix := _shared_prefix(stripped)):
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
    state = stripped if stripped.keys() & wanted.keys() else state
    state |= {name: own for name, own in wanted.items() if name.endswith(_COUNT) and name not in state}
    tied = {_place(own): state[name] for name, own in wanted.items() if name in state}  # safetensors keep one of them
    state |= {name: tied[_place(own)] for name, own in wanted.items() if name not in state and _place(own) in tied}
    for name, own in wanted.items():
        if isinstance(own, Tensor) and name in state and (found := _kind(state[name])) != (kind := _kind(own)):
            raise CheckpointError(
                f"{path} has {name} in {found}, and {type(model).__name__} in {kind}: loading would change the "
                "numbers; save the weights in the model's own type"
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # which names whatever differs, a line each
        if path.with_name(_ADAPTER).is_file():
            raise CheckpointError(f"{path} {OF_ADAPTERS}, and give the file of weights in it") from error
        reason = "; ".join(line.strip(" \t.") for line in str(error).splitlines()[1:])
        raise CheckpointError(
            f"{path} does not fit {type(model).__name__}: {_shorten(reason)}; build the model that the checkpoint was "
            "saved from, with its arguments (number of classes, width, channels)"
        ) from error


def _shared_prefix(names: Collection[str]) -> str:
    """Return the part before the first dot of all names; empty if they differ in it, or there are none."""
    first = {name.partition(".")[0] if "." in name else "" for name in names}
    return f"{first.pop()}." if len(first) == 1 and "" not in first else ""


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is the same for one tensor under two names."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _kind(tensor: Tensor) -> str:
    """Describe the kind of a tensor's values; between tensors of one kind numbers keep their values, to rounding."""
    if tensor.is_quantized or tensor.layout != torch.strided:
        return f"{tensor.dtype}, {'quantised' if tensor.is_quantized else str(tensor.layout)}".replace("torch.", "")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        return str(tensor.dtype).removeprefix("torch.")
    return "floating-point numbers" if tensor.is_floating_point() else "whole numbers"


def read_tensors(path: Path) -> object:
    """Return the content of a file of weights, tensors only: nothing is unpickled.

    Raises ``CheckpointError`` if it cannot.
    """
    if path.name.endswith(_INDEX):
        return _read_shards(path)
    if path.suffix != ".safetensors" and path.suffix not in _PICKLED:
        raise CheckpointError(
            f"{path} has the suffix {path.suffix!r}; a checkpoint ends in .safetensors, "
            f"{', '.join(_PICKLED)}, or {_INDEX} if it is in several files; save it by {_SAVE}"
        )
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}; give the path of a file, from {Path.cwd()} or absolute")
    if part := _SHARD.fullmatch(path.name):
        index = path.with_name(f"{part[1]}{_INDEX}")
        raise CheckpointError(f"{path} is one of {int(part[2])} files of a checkpoint; give their index, {index}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: what is not tensors is refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"arbitrary Python objects ({found[1]})" if found else "arbitrary Python objects, or is damaged"
        raise CheckpointError(
            f"{path} holds {what} and is not loaded, because unpickling them can run any code; where the model "
            f"was trained, save its weights alone: {_SAVE}"
        ) from error
    except Exception as error:  # a damaged file fails wherever the damage is
        reason = str(error).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is damaged, or not a checkpoint ({reason}); copy it again, or save it by {_SAVE}"
        ) from error


def check_index(path: Path) -> list[str]:
    """Return the files of an index of safetensors. Raises ``CheckpointError`` if it names one that is not beside it."""
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}; give the path of a file, from {Path.cwd()} or absolute")
    try:
        placed: dict[str, str] = json.loads(path.read_text("utf-8"))["weight_map"]
        files = sorted({*placed.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not an index of safetensors: it has no weight_map; copy it again") from error
    if strange := [name for name in files if Path(name).name != name or not name.endswith(".safetensors")]:
        raise CheckpointError(f"{path} names {strange[0]!r}, which is not a .safetensors file beside it; save it anew")
    return files


def _read_shards(path: Path) -> dict[str, Tensor]:
    """Read the files that an index of safetensors names, which must lie beside it."""
    files = check_index(path)
    if absent := [name for name in files if not path.with_name(name).is_file()]:
        raise CheckpointError(f"{path} names {_shorten(', '.join(absent))}, which is not beside it; copy all its files")
    try:
        return {name: tensor for file in files for name, tensor in load_file(path.with_name(file)).items()}
    except Exception as error:
        raise CheckpointError(f"a file that {path} names is damaged ({error}); copy it again") from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict):
        wrapped = next((key for key in _WRAPPERS if isinstance(content.get(key), dict)), None)
        if wrapped is not None:
            _say_others(content, wrapped, path)
            content = content[wrapped]
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict; save it by {_SAVE}")
    strangers = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strangers:
        raise CheckpointError(
            f"{path} is not a state dict: no tensor under {_shorten(', '.join(map(repr, strangers)))}; names "
            f"must map to tensors, bare or under {' or '.join(map(repr, _WRAPPERS))}; save it by {_SAVE}"
        )
    return content


def _say_others(content: dict[str, Any], taken: str, path: Path) -> None:
    """Warn if a file has further weights, at any depth, of the same names as those that are taken."""
    wanted = {_bare(name) for name in content[taken]}

    def look(held: dict[Any, Any], within: str) -> Iterator[str]:
        for key, value in held.items():
            if isinstance(value, dict) and wanted <= {_bare(name) for name in value}:
                yield f"{within}{key}"
            elif isinstance(value, dict):
                yield from look(value, f"{within}{key}.")

    others = [*look({key: value for key, value in content.items() if key != taken}, "")] if wanted else []
    if others:
        warn(
            f"{path} holds weights under {', '.join(map(repr, (taken, *others)))}; those under {taken!r} are taken: to "
            "take others, such as averaged ones, save them in a file of their own"
        )


def _bare(name: object) -> str:
    return str(name).removeprefix("module.")


def _shorten(names: str) -> str:
    return textwrap.shorten(names, 400, placeholder=" …")

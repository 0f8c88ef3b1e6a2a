"""Trained weights from a file into a model, without running anything the file says.

A checkpoint is a state dict: safetensors, or what ``torch.save`` wrote, read with ``weights_only=True``. In
the latter it may be bare or lie under ``"state_dict"`` or ``"model"``, as training scripts leave it. The
``module.`` that ``DataParallel`` puts before every name is taken off.
"""

import pickle
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from suture.common.errors import CheckpointError

_PICKLED = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model")
_PARALLEL = "module."
_SAVE = "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Fill every parameter and buffer of a model from a ``.safetensors``, ``.pt``, ``.pth`` or ``.bin`` file.

    Raises ``CheckpointError`` when the file is absent, of another kind, damaged or unsafe to load, and when its names
    or shapes are not exactly the model's.
    """
    path = Path(path).expanduser()
    state = _state_dict(read_tensors(path), path)
    parallel = all(name.startswith(_PARALLEL) for name in state)
    if parallel and not all(name.startswith(_PARALLEL) for name in model.state_dict()):
        state = {name.removeprefix(_PARALLEL): value for name, value in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # which names whatever differs, a line each
        reason = "; ".join(line.strip(" \t.") for line in str(error).splitlines()[1:])
        raise CheckpointError(
            f"{path} does not fit {type(model).__name__}: {_shorten(reason)}; build the model that the checkpoint was "
            "saved from, with its arguments (number of classes, width, channels)"
        ) from error


def read_tensors(path: Path) -> object:
    """Return what a file of weights holds, tensors only: nothing is unpickled.

    Raises ``CheckpointError`` if it cannot.
    """
    if path.suffix != ".safetensors" and path.suffix not in _PICKLED:
        raise CheckpointError(
            f"{path} has the suffix {path.suffix!r}; a checkpoint ends in .safetensors, "
            f"{', '.join(_PICKLED)}; save it by {_SAVE}"
        )
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}; give the path of a file, from {Path.cwd()} or absolute")
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
            f"{path} is damaged or no checkpoint ({reason}); copy it again, or save it by {_SAVE}"
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict):
        wrapped = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        content = wrapped[0] if wrapped else content
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict; save it by {_SAVE}")
    strangers = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strangers:
        raise CheckpointError(
            f"{path} is not a state dict: no tensor under {_shorten(', '.join(map(repr, strangers)))}; names "
            f"must map to tensors, bare or under {' or '.join(map(repr, _WRAPPERS))}; save it by {_SAVE}"
        )
    return content


def _shorten(names: str) -> str:
    return textwrap.shorten(names, 400, placeholder=" …")

"""Trained weights from a file into a model, all of them or none, and without running anything the file says.

A checkpoint is a state dict: safetensors, or what ``torch.save`` wrote, read with ``weights_only=True``. In
the latter it may be bare or lie under ``"state_dict"`` or ``"model"``, as training scripts leave it. The
``module.`` that ``DataParallel`` puts before every name is taken off. All is checked before the model is
touched.
"""

import pickle
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from suture.common.errors import CheckpointError

_PICKLED = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model")
_PARALLEL = "module."
_SHOWN = 8
_SAVE = "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Fill every parameter and buffer of a model from a ``.safetensors``, ``.pt``, ``.pth`` or ``.bin`` file.

    Raises ``CheckpointError``, and leaves the model as it was, when the file is absent, of another kind,
    damaged or unsafe to load, when its names or shapes are not exactly the model's, or when a weight is not
    finite.
    """
    path = Path(path).expanduser()
    state = _state_dict(read_tensors(path), path)
    expected = model.state_dict()
    if not all(name.startswith(_PARALLEL) for name in expected):
        state = _without_parallel(state)
    _check_fit(state, expected, f"{path} does not fit {type(model).__name__}")
    _check_finite(state, path)
    model.load_state_dict(state)


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
        raise CheckpointError(_unsafe(path, error)) from error
    except Exception as error:  # a damaged file fails wherever the damage is
        reason = str(error).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is damaged or no checkpoint ({reason}); copy it again, or save it by {_SAVE}"
        ) from error


def _unsafe(path: Path, error: pickle.UnpicklingError) -> str:
    found = re.search(r"GLOBAL (\S+)", str(error))
    what = f"arbitrary Python objects ({found[1]})" if found else "arbitrary Python objects, or is damaged"
    return (
        f"{path} holds {what} and is not loaded, because unpickling them can run any code; where the model "
        f"was trained, save its weights alone: {_SAVE}"
    )


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict):
        wrapped = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        content = wrapped[0] if wrapped else content
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict; save it by {_SAVE}")
    strangers = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strangers:
        raise CheckpointError(
            f"{path} is not a state dict: no tensor under {_some(strangers)}; names must map to tensors, "
            f"bare or under {_some(_WRAPPERS)}; save it by {_SAVE}"
        )
    return content


def _without_parallel(state: dict[str, Tensor]) -> dict[str, Tensor]:
    if not all(name.startswith(_PARALLEL) for name in state):
        return state
    return {name.removeprefix(_PARALLEL): value for name, value in state.items()}


def _check_fit(state: dict[str, Tensor], expected: dict[str, Tensor], misfit: str) -> None:
    missing = [name for name in expected if name not in state]
    extra = [name for name in state if name not in expected]
    if missing or extra:
        lacks = [f"the file lacks {_some(missing)}"] if missing else []
        adds = [f"the model has no {_some(extra)}"] if extra else []
        raise CheckpointError(
            f"{misfit}: {' and '.join(lacks + adds)}; build the model that the checkpoint was saved from"
        )
    reshaped = [name for name in expected if state[name].shape != expected[name].shape]
    if reshaped:
        first = reshaped[0]
        raise CheckpointError(
            f"{misfit}: other shapes in {_some(reshaped)}; {first!r} is {tuple(state[first].shape)} in the "
            f"file and {tuple(expected[first].shape)} in the model; build the model with the arguments it "
            "was trained with (number of classes, width, channels)"
        )


def _check_finite(state: dict[str, Tensor], path: Path) -> None:
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"{path} has values that are not finite in {_some(broken)}; the training diverged: take an "
            "earlier checkpoint, or train again"
        )


def _some(names: Iterable[object]) -> str:
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more

"""Where a training is, in files, so that it can go on after a kill as if nothing had happened.

A file ``step-00001200.safetensors`` has the tensors of the network and of the optimiser, and in its header, as JSON,
how far the training is and which one it is. All randomness is derived from the seed and the number of the step, so
nothing else is needed. Files appear whole or not at all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from suture.common.atomic import whole
from suture.common.errors import CheckpointError

_MODEL, _OPTIMISER = "model/", "optimiser/"


@dataclass
class TrainingProgress:
    """How far a training is.

    Steps done, the mean loss of each epoch in nats, the sum and number of the losses of the epoch that has begun, and
    the seconds that it took: of time, and of this process's processors.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    begun: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0
    busy: float = 0.0


@final
class Checkpoints:
    """The checkpoints of one training in a folder.

    ``training`` is what identifies it: for recipe, data, seed and so on a text for people and a hash. A folder with the
    checkpoints of another is refused, by ``CheckpointError``, when one is looked for.
    """

    def __init__(self, folder: str | Path, training: Mapping[str, tuple[str, str]]) -> None:
        self.folder = Path(folder).expanduser()
        self.training = {name: list(parts) for name, parts in training.items()}
        self._last: Path | None = None

    def find_newest(self, at_most: int) -> Path | None:
        """Return the newest checkpoint of at most that step.

        Raises ``CheckpointError`` if one is another training's.
        """
        for path in sorted(self.folder.glob("step-*.safetensors"), reverse=True):
            self._check(path)
            if _step_of(path) <= at_most:
                return path
        return None

    def _check(self, path: Path) -> None:
        theirs = _read_header(path)["training"]
        differing = [name for name, (_, hashed) in self.training.items() if theirs.get(name, ["", ""])[1] != hashed]
        if differing:
            first, verb = differing[0], "differs" if len(differing) == 1 else "differ"
            raise CheckpointError(
                f"{path} is the checkpoint of another training: its {' and '.join(differing)} {verb}; {first} there: "
                f"{theirs.get(first, ['unknown'])[0]}; here: {self.training[first][0]}; go on with the settings it was "
                "begun with, or name another folder"
            )

    def save(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: TrainingProgress, *, keep: bool
    ) -> None:
        """Write where the training is; the checkpoint before goes, unless it was to be kept."""
        path = self.folder / f"step-{progress.step:08d}.safetensors"
        tensors = {_MODEL + name: _copy_to_cpu(tensor) for name, tensor in model.state_dict().items()}
        tensors |= {_OPTIMISER + name: _copy_to_cpu(tensor) for name, tensor in _moments_of(model, optimiser).items()}
        about = {"training": self.training, "progress": vars(progress), "kept": keep}
        self.folder.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            temporary.write_bytes(save(tensors, {"suture": json.dumps(about)}))
        if self._last is not None and self._last != path:
            self._last.unlink(missing_ok=True)
        self._last = None if keep else path

    def load(self, path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> TrainingProgress:
        """Put a training back to where it was."""
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model.load_state_dict({n.removeprefix(_MODEL): t for n, t in tensors.items() if n.startswith(_MODEL)})
        parameters = dict(model.named_parameters())
        for name, tensor in tensors.items():
            if name.startswith(_OPTIMISER):
                kind, _, owner = name.removeprefix(_OPTIMISER).partition("/")
                like = parameters[owner]
                moved = tensor if tensor.ndim == 0 else torch.empty_like(like).copy_(tensor)
                optimiser.state[like][kind] = moved
        header = _read_header(path)
        self._last = None if header["kept"] else path
        found = header["progress"]
        return TrainingProgress(**(found | {"begun": tuple(found["begun"])}))


def find_newest_step(folder: Path, at_most: int) -> int | None:
    """Return the step of the newest checkpoint in a folder of at most that step, as its name says it."""
    return max(
        (step for path in folder.glob("step-*.safetensors") if (step := _step_of(path)) <= at_most), default=None
    )


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Any] = json.loads((file.metadata() or {})["suture"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint of a training ({error}); remove it") from error
    return found


def _moments_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what the optimiser remembers, by kind and parameter."""
    return {
        f"{kind}/{name}": tensor
        for name, parameter in model.named_parameters()
        for kind, tensor in optimiser.state.get(parameter, {}).items()
        if isinstance(tensor, Tensor)
    }


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()

"""The training loop: from a recipe, samples and a seed to a network.

Reproducible: on one kind of machine the same model, samples, recipe and seed give the same weights, bit for bit, killed
and resumed or not. So one thread computes, and whatever is random in a step (the order of its epoch, augmentation,
dropout) is derived from the seed and the number of the step.

That is why a checkpoint needs so little: a file ``step-00001200.safetensors`` has the tensors of the network and of the
optimiser, and in its header, as JSON, how far the training is and which one it is. Files appear whole or not at all.

The images lie on the device as they are, and a batch is taken, augmented and prepared there: no worker processes, no
copies. Maps are laid out channels last.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from suture import Preprocess, Samples
from suture.common.errors import CheckpointError, FitError
from suture.extend import SEAL, Preprocessing, as_given, derive_seed, generator, seal, undisturbed, whole
from suture.extend import is_sealed as is_sound
from suture_papers.recipes import set_rate
from suture_papers.training.recipe import Parts, Recipe, set_modes

EVERY = 30.0  #: seconds between two checkpoints

Watch = Callable[[int, int, Sequence[float]], None]
"""Called after every step with the steps done, the steps in all, and the mean loss of each epoch so far, in nats."""


def train(build: Callable[[], nn.Module], samples: Samples, recipe: Recipe, seed: int, **settings: Any) -> nn.Module:
    """Build a network and train it on the samples, from a seed; in evaluation mode, on the CPU.

    ``settings`` are those of ``Training``, which also lists the errors.
    """
    return Training(build, samples, recipe, seed, **settings).run()


@dataclass
class TrainingProgress:
    """The progress of a training.

    Steps done, the mean loss of each epoch in nats, the sum and number of the losses of the epoch that has begun, and
    the seconds that it took: of time, and of this process's processors.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    begun: Sequence[float] = (0.0, 0)
    seconds: float = 0.0
    busy: float = 0.0


class Training:
    """A training that can stop and continue; ``progress`` has its state.

    ``start`` gives tensors of another network to begin with, ``parts`` says which are taken and what trains. Raises
    ``NetworkError`` if they do not fit the network; ``run`` raises ``FitError`` if the loss is not finite.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        samples: Samples,
        recipe: Recipe,
        seed: int,
        *,
        preprocess: Preprocessing | None = None,
        start: Mapping[str, Tensor] | None = None,
        parts: Parts | None = None,
        device: str = "cpu",
        watch: Watch = lambda step, steps, losses: None,
    ) -> None:
        self.samples, self.recipe, self.seed, self.watch = samples, recipe, seed, watch
        self.prepare = preprocess if preprocess is not None else Preprocess()
        self.device = torch.device(device)
        self.steps, self.per_epoch = recipe.count_steps(len(samples)), recipe.steps_per_epoch(len(samples))
        self.batch = min(recipe.batch, len(samples))
        self.progress = TrainingProgress()
        with self._alone():
            torch.manual_seed(derive_seed("network", seed))
            model = build()
            parts = parts if parts is not None else Parts()
            if start is not None:
                parts.take(model, start)
            fixed = _tensors(model).keys() - parts.training(model)
            frozen = {id(tensor) for name, tensor in _tensors(model).items() if name in fixed}
            self.model = recipe.objective.attach(model)
        self.changing = {name for name, tensor in _tensors(self.model).items() if id(tensor) not in frozen}
        self.model.to(device=self.device)
        self.layout = choose_layout(self.model, self.device)
        lay_out(self.model, self.layout)
        self.bfloat16 = recipe.in_bfloat16(self.device)
        self.trainable = {name: p for name, p in self.model.named_parameters() if name in self.changing}
        self.optimiser = recipe.optimiser.over(self.trainable.values())

    def run(
        self,
        checkpoints: "Checkpoints | None" = None,
        *,
        until: int | None = None,
        every: float = EVERY,
    ) -> nn.Module:
        """Train to the end, or through epoch ``until``; the network, in evaluation mode, on the CPU.

        With ``checkpoints`` it goes on from the newest there, and leaves one every so many seconds and where it ends;
        the one of epoch ``until`` stays, so that a longer training can go on from it. Raises ``CheckpointError`` if
        they are another training's.
        """
        last = self.steps if until is None else min(self.steps, until * self.per_epoch)
        if checkpoints is not None:
            self.progress = checkpoints.load_newest(last, self.model, self.optimiser) or self.progress
        set_modes(self.model, self.changing)
        with self._alone():
            self._descend(last, checkpoints, every)
        model = self.recipe.objective.detach(copy.deepcopy(self.model)).cpu().eval()
        lay_out(model, torch.contiguous_format)
        for parameter in model.parameters():
            parameter.grad = None
            parameter.requires_grad_(True)
        return model

    def _descend(self, last: int, checkpoints: "Checkpoints | None", every: float) -> None:
        images, labels = self.samples.images.to(self.device), self.samples.labels.to(self.device)
        progress, stop = self.progress, self.recipe.stop
        begun, worked = time.monotonic() - progress.seconds, time.process_time() - progress.busy
        loss, count = progress.begun
        total = torch.tensor(loss, dtype=torch.float64, device=self.device)
        saved, epoch, order = time.monotonic(), -1, torch.empty(0, dtype=torch.int64)
        while progress.step < last and not (stop is not None and stop.is_reached(progress.losses)):
            if progress.step // self.per_epoch != epoch:
                epoch = progress.step // self.per_epoch
                order = torch.randperm(len(images), generator=generator("order", self.seed, epoch)).to(self.device)
            place = progress.step % self.per_epoch * self.batch
            chosen = order[place : place + self.batch]
            total += self._step(images[chosen], labels[chosen]).double()
            progress.step, count = progress.step + 1, count + 1
            if progress.step % self.per_epoch == 0 or progress.step == self.steps:
                progress.losses.append(float(total) / count)
                if not total.isfinite():
                    rate = self.recipe.optimiser.lr
                    raise FitError(f"training diverged in epoch {epoch + 1}; try a smaller learning rate than {rate}")
                total, count = torch.zeros_like(total), 0
            self.watch(progress.step, self.steps, progress.losses)
            now = time.monotonic()
            progress.seconds, progress.busy = now - begun, time.process_time() - worked
            if checkpoints is not None and (progress.step == last or now - saved > every):
                progress.begun = (float(total), count)
                checkpoints.save(self.model, self.optimiser, progress, keep=progress.step == last < self.steps)
                saved = now

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        recipe, step = self.recipe, self.progress.step
        random = generator("augment", self.seed, step)
        torch.manual_seed(derive_seed("step", self.seed, step))

        def view() -> Tensor:
            seen = self.prepare(as_given(recipe.augment(images, random)))
            return seen.contiguous(memory_format=self.layout) if seen.ndim == 4 else seen

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = recipe.objective.loss(self.model, view, labels)
        shown = loss.detach()
        if recipe.penalty is not None:
            loss = loss + recipe.penalty(self.trainable)
        set_rate(self.optimiser, recipe.optimiser, recipe.schedule, step, self.steps)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimiser.step()
        if recipe.prune is not None:
            recipe.prune(self.trainable, step + 1, random)
        return shown

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Apply the settings of ``undisturbed``, with generators of our own."""
        cuda = self.device.type == "cuda"
        with undisturbed(), torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
            yield


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers themselves, by name."""
    return model.state_dict(keep_vars=True)


# --- where it is, in files --------------------------------------------------------------------------------------------

_MODEL, _OPTIMISER = "model/", "optimiser/"


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

    def save(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: TrainingProgress, *, keep: bool
    ) -> None:
        """Write the state of the training; the previous checkpoint is removed, unless it was to be kept."""
        tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            for kind, moment in optimiser.state.get(parameter, {}).items():
                if isinstance(moment, Tensor):
                    tensors[f"{_OPTIMISER}{kind}/{name}"] = moment
        # clones, because safetensors refuses tensors that share memory
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        about = {"training": self.training, "progress": vars(progress), "kept": keep}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{progress.step:08d}.safetensors"
        with whole(path) as temporary:
            temporary.write_bytes(seal(save(tensors, {"suture": json.dumps(about), **SEAL})))
        if self._last is not None and self._last != path:
            self._last.unlink(missing_ok=True)
        self._last = None if keep else path

    def load_newest(self, at_most: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> TrainingProgress | None:
        """Restore a training from its newest checkpoint of at most that step, if there is one."""
        found = {step: path for step, path in find_checkpoints(self.folder).items() if step <= at_most}
        if not found:
            return None
        path = found[max(found)]
        header, tensors = _read(path)
        self._check(path, header["training"])
        model.load_state_dict({n.removeprefix(_MODEL): t for n, t in tensors.items() if n.startswith(_MODEL)})
        parameters = dict(model.named_parameters())
        for name, tensor in tensors.items():
            if name.startswith(_OPTIMISER):
                kind, _, owner = name.removeprefix(_OPTIMISER).partition("/")
                like = parameters[owner]
                optimiser.state[like][kind] = tensor if tensor.ndim == 0 else torch.empty_like(like).copy_(tensor)
        self._last = None if header["kept"] else path
        return TrainingProgress(**header["progress"])

    def _check(self, path: Path, theirs: Mapping[str, Sequence[str]]) -> None:
        differing = [name for name, (_, hashed) in self.training.items() if theirs.get(name, ["", ""])[1] != hashed]
        if differing:
            first, verb = differing[0], "differs" if len(differing) == 1 else "differ"
            raise CheckpointError(
                f"{path} is the checkpoint of another training: its {' and '.join(differing)} {verb}; {first} there: "
                f"{theirs.get(first, ['unknown'])[0]}; here: {self.training[first][0]}; continue with its "
                "settings, or name another folder"
            )


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by their steps."""
    return {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.safetensors")}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        content = path.read_bytes()
        if not is_sound(content):
            raise ValueError("it has changed since it was written")
        tensors, length = load(content), int.from_bytes(content[:8], "little")
        return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["suture"]), tensors
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, or not a checkpoint of a training ({error}); remove it") from error


# --- in memory --------------------------------------------------------------------------------------------------------

_LEAST = 8  #: channels that a vector of AVX2 holds


def choose_layout(model: nn.Module, device: torch.device) -> torch.memory_format:
    """Return channels last, or the plain layout where PyTorch would write past the end of a gradient.

    On processors without AVX-512, torch 2.14.1's gradient of the weights of a strided 1×1 convolution of 2 to 7 input
    channels overruns its memory in channels last: it crashes, or worse, does not. Residual networks narrower than 8
    channels have such convolutions in their skips.
    """
    affected = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() != "AVX512"
    strided = [
        part
        for part in model.modules()
        if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1) and max(part.stride) > 1
    ]
    if affected and any(1 < part.in_channels // part.groups < _LEAST for part in strided):
        return torch.contiguous_format
    return torch.channels_last


def lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Lay out the weights of convolutions; nothing else has four dimensions."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)

"""The training loop: from a recipe, samples and a seed to a network.

Reproducible: on one kind of machine the same model, samples, recipe and seed give the same weights, bit for bit, killed
and resumed or not. So one thread computes, and whatever is random in a step (the order of its epoch, augmentation,
dropout) is derived from the seed and the number of the step.

The images lie on the device as they are, and a batch is taken, augmented and prepared there: no worker processes, no
copies. Maps are laid out channels last.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from suture.common.errors import FitError, NetworkError
from suture.common.seeds import derive_seed, generator, undisturbed
from suture.data import Samples
from suture.data.samples import Preprocess, Preprocessing, as_given
from suture.fits.recipes import set_rate
from suture.zoo.training.checkpoints import Checkpoints, TrainingProgress
from suture.zoo.training.freeze import Parts, set_modes
from suture.zoo.training.recipe import Recipe

Build = Callable[[], nn.Module]
EVERY = 30.0  #: seconds between two checkpoints


def train(
    build: Build,
    samples: Samples,
    recipe: Recipe,
    seed: int,
    *,
    preprocess: Preprocessing | None = None,
    start: Mapping[str, Tensor] | None = None,
    parts: Parts | None = None,
    device: str = "cpu",
    told: Callable[[int, float], None] = lambda epoch, loss: None,
) -> nn.Module:
    """Build a network and train it on the samples, from a seed; in evaluation mode, on the CPU.

    ``start`` gives tensors of another network to begin with, ``parts`` says which are taken and what trains. ``told``
    is called after each epoch with its number (from 1) and mean loss in nats. Raises ``FitError`` if the loss is not
    finite, ``NetworkError`` if ``parts`` or ``start`` do not fit the network.
    """
    training = Training(
        build, samples, recipe, seed, preprocess=preprocess, start=start, parts=parts, device=device, told=told
    )
    return training.run()


class Training:
    """A training that can stop and go on; ``progress`` says how far it is. What it takes is as for ``train``.

    ``watch`` is called after every step with the steps done and the steps in all.
    """

    def __init__(
        self,
        build: Build,
        samples: Samples,
        recipe: Recipe,
        seed: int,
        *,
        preprocess: Preprocessing | None = None,
        start: Mapping[str, Tensor] | None = None,
        parts: Parts | None = None,
        device: str = "cpu",
        told: Callable[[int, float], None] = lambda epoch, loss: None,
        watch: Callable[[int, int], None] = lambda step, steps: None,
    ) -> None:
        self.samples, self.recipe, self.seed, self.told, self.watch = samples, recipe, seed, told, watch
        self.prepare = preprocess if preprocess is not None else Preprocess()
        self.device = torch.device(device)
        self.steps, self.per_epoch = recipe.count_steps(len(samples)), recipe.steps_per_epoch(len(samples))
        self.batch = min(recipe.batch, len(samples))
        self.progress = TrainingProgress()
        with self._alone():
            torch.manual_seed(derive_seed("network", seed))
            model = build()
            _check_apart(model)
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

    @property
    def over(self) -> bool:
        """Whether the recipe asks for no more."""
        stop = self.recipe.stop
        return self.progress.step >= self.steps or (stop is not None and stop.is_reached(self.progress.losses))

    def run(
        self,
        checkpoints: Checkpoints | None = None,
        *,
        until: int | None = None,
        every: float = EVERY,
    ) -> nn.Module:
        """Train to the end, or through epoch ``until``; the network, in evaluation mode, on the CPU.

        With ``checkpoints`` it goes on from the newest there, and leaves one every so many seconds and where it ends;
        the one of epoch ``until`` stays, for who goes on later. Raises ``CheckpointError`` if they are another
        training's.
        """
        last = self.steps if until is None else min(self.steps, until * self.per_epoch)
        if checkpoints is not None and (found := checkpoints.find_newest(last)) is not None:
            self.progress = checkpoints.load(found, self.model, self.optimiser)
        set_modes(self.model, self.changing)
        with self._alone():
            self._descend(last, checkpoints, every)
        model = self.recipe.objective.detach(copy.deepcopy(self.model)).cpu().eval()
        lay_out(model, torch.contiguous_format)
        for parameter in model.parameters():
            parameter.grad = None
            parameter.requires_grad_(True)
        return model

    def _descend(self, last: int, checkpoints: Checkpoints | None, every: float) -> None:
        images, labels = self.samples.images.to(self.device), self.samples.labels.to(self.device)
        progress, clock = self.progress, _Clock(self.progress)
        total, count = torch.tensor(progress.begun[0], dtype=torch.float64, device=self.device), progress.begun[1]
        saved, epoch, order = time.monotonic(), -1, torch.empty(0, dtype=torch.int64)
        while progress.step < last and not self.over:
            if progress.step // self.per_epoch != epoch:
                epoch = progress.step // self.per_epoch
                order = torch.randperm(len(images), generator=generator("order", self.seed, epoch)).to(self.device)
            place = progress.step % self.per_epoch * self.batch
            chosen = order[place : place + self.batch]
            total += self._step(images[chosen], labels[chosen]).double()
            progress.step, count = progress.step + 1, count + 1
            if progress.step % self.per_epoch == 0 or progress.step == self.steps:
                self._end_epoch(epoch, float(total) / count)
                total, count = torch.zeros_like(total), 0
            self.watch(progress.step, self.steps)
            now = time.monotonic()
            if checkpoints is not None and (progress.step == last or now - saved > every):
                progress.begun = (float(total), count)
                clock.tell()
                checkpoints.save(self.model, self.optimiser, progress, keep=progress.step == last < self.steps)
                saved = now
        clock.tell()

    def _end_epoch(self, epoch: int, loss: float) -> None:
        if not torch.tensor(loss).isfinite():
            rate = self.recipe.optimiser.lr
            raise FitError(f"training diverged in epoch {epoch + 1}; try a smaller learning rate than {rate}")
        self.progress.losses.append(loss)
        self.told(epoch + 1, loss)

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
        """One thread, generators of our own, and on a GPU convolutions that give the same bits each time."""
        cuda = self.device.type == "cuda"
        before = torch.backends.cudnn.deterministic
        with undisturbed(), torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
            torch.backends.cudnn.deterministic = cuda
            try:
                yield
            finally:
                torch.backends.cudnn.deterministic = before


class _Clock:
    """Adds the time that passes, and what of it the processors were busy, to a training's own."""

    def __init__(self, progress: TrainingProgress) -> None:
        self.progress = progress
        self.before = progress.seconds, progress.busy
        self.begun = time.monotonic(), time.process_time()

    def tell(self) -> None:
        self.progress.seconds = self.before[0] + time.monotonic() - self.begun[0]
        self.progress.busy = self.before[1] + time.process_time() - self.begun[1]


def _check_apart(model: nn.Module) -> None:
    """Refuse weights that have two names: a checkpoint would hold them twice, and one could be frozen by the other."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter.data_ptr(), name) != name and parameter.numel():
            raise NetworkError(
                f"{first[parameter.data_ptr()]!r} and {name!r} of {type(model).__name__} are one and the same tensor; "
                "training by recipe needs weights of their own: untie them"
            )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers themselves, by name."""
    return model.state_dict(keep_vars=True)


# --- memory ----------------------------------------------------------------------------------------------------------

_LEAST = 8  #: channels that a vector of AVX2 holds


def choose_layout(model: nn.Module, device: torch.device) -> torch.memory_format:
    """Channels last, or the plain layout where PyTorch would write past the end of a gradient.

    On processors without AVX-512, torch 2.14.1's gradient of the weights of a strided 1×1 convolution of 2 to 7 input
    channels overruns its memory in channels last: it crashes, or worse, does not. Residual networks narrower than 8
    channels have such convolutions in their skips.
    """
    affected = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() != "AVX512"
    if affected and any(_overruns(part) for part in model.modules()):
        return torch.contiguous_format
    return torch.channels_last


def _overruns(part: nn.Module) -> bool:
    if not isinstance(part, nn.Conv2d):
        return False
    return part.kernel_size == (1, 1) and max(part.stride) > 1 and 1 < part.in_channels // part.groups < _LEAST


def lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    """Lay out the weights of convolutions; nothing else has four dimensions."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)

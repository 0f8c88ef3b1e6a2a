"""A recipe: the fixed settings by which a network is trained; and which parts of it train.

Their parts are here too. An objective is the loss that training lowers; it may give the network another head
while it trains (``attach``) and takes it away at the end (``detach``). A penalty is added to the loss, pruning
sets weights to zero now and then, and a plateau ends training early. Losses are means over the batch, in nats.

SimCLR is Chen et al. 2020, *A Simple Framework for Contrastive Learning of Visual Representations*, arXiv:2002.05709.
L1, L2, pruning and the plateau are oxford2025's: in section 4.4 a simple network is trained with L1 and intermittent
random pruning, a complex one with L2.

``Parts`` says which parts of a network train and which are taken from another. Freeze training (Raghu et al. 2017, as
in bansal2021 appendix B.4), one layer trained with the rest frozen (oxford2025 section 4.2) and a linear classifier on
a frozen encoder (SimCLR) are all the same: some tensors start from another network, some never change. Frozen means
parameters and buffers, so a frozen BatchNorm is in evaluation mode.
"""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from suture.common.errors import FitError, NetworkError
from suture.extend import half_precision, keyed_as, spell
from suture.fits import SGD, OneCycle, Optimiser, Schedule
from suture_papers.training.augment import Augmentation, Unchanged

PRECISIONS = ("float32", "fast")

View = Callable[[], Tensor]
"""Gives the images of a batch, augmented anew by every call and preprocessed, ``(n, C, H, W)``."""


# --- what falls -------------------------------------------------------------------------------------------------------


@keyed_as("Objective")
class Objective(ABC):
    """The objective that training lowers."""

    def attach(self, model: nn.Module) -> nn.Module:
        """Turn the model into the module that trains, in place; random weights come from torch's global generator."""
        return model

    def detach(self, trained: nn.Module) -> nn.Module:
        """Return the model from the module that was trained, which is changed in place."""
        return trained

    @abstractmethod
    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """Return the loss on a batch, a scalar in nats; ``labels`` are ``(n,)`` int64."""


@keyed_as("CrossEntropyObjective")
@dataclass(frozen=True, repr=False)
class LabelCrossEntropy(Objective):
    """Cross-entropy with the labels, of which ``smoothing`` is shared out evenly among all classes."""

    smoothing: float = 0.0

    def __repr__(self) -> str:
        # Cards of networks that are trained spell their recipe so, and are found by it.
        return f"CrossEntropy(smoothing={self.smoothing})"

    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy on one view of the batch."""
        return nn.functional.cross_entropy(_to_float32(trained(view())), labels, label_smoothing=self.smoothing)


@keyed_as("SimCLR")
@dataclass(frozen=True)
class SimCLR(Objective):
    """Two views of an image are to be nearer to each other than to the views of all other images (NT-Xent).

    A projection, Linear-ReLU-Linear to ``projection`` values, with as many hidden units as it has inputs, takes the
    place of the model's last linear layer during training. That layer is put back unchanged: what it then reads is a
    representation that no label has shaped. The last linear layer is the last ``nn.Linear`` among the model's modules,
    in the order in which they were registered; it must give the model's output. ``temperature`` divides the cosine.
    """

    temperature: float = 0.5
    projection: int = 128

    def attach(self, model: nn.Module) -> nn.Module:
        """Put a projection with random weights in the place of the last linear layer.

        Raises ``FitError`` if there is none.
        """
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name]
        if not linear:
            raise FitError(
                f"SimCLR finds no nn.Linear inside {type(model).__name__} to replace with its projection; give it a "
                "network whose last layer is linear"
            )
        last = model.get_submodule(linear[-1])
        assert isinstance(last, nn.Linear)
        model.set_submodule(linear[-1], _Projection(last, self.projection))
        return model

    def detach(self, trained: nn.Module) -> nn.Module:
        """Put the last linear layer back, on the device where the projection is."""
        for name, module in list(trained.named_modules()):
            if isinstance(module, _Projection):
                trained.set_submodule(name, module.replaced[0].to(module.hidden.weight.device))
        return trained

    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """Compute NT-Xent on two views of the batch, which pass the network together; labels are not read.

        Raises ``FitError`` for a batch of one image, which has no others, and for a network whose last linear layer
        does not give its output.
        """
        outputs = trained(torch.cat([view(), view()]))
        if outputs.shape != (2 * len(labels), self.projection):
            raise FitError(
                f"{type(trained).__name__} gives {tuple(outputs.shape)} for two views of {len(labels)} images, not the "
                f"projection's {(2 * len(labels), self.projection)}; SimCLR needs a network that ends with its last "
                "linear layer"
            )
        return nt_xent(outputs, self.temperature)


def nt_xent(projections: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the normalised temperature-scaled cross-entropy of Chen et al. 2020, equation 1, in nats.

    It is the mean over all views. ``projections`` is ``(2n, D)``, the first views of all images, then the second views
    in the same order. Raises ``FitError`` for fewer than two images.
    """
    n = len(projections) // 2
    if n < 2:
        raise FitError(f"SimCLR tells images from one another and was given {n}; use batches of at least 2 images")
    with torch.autocast(projections.device.type, enabled=False):
        unit = nn.functional.normalize(_to_float32(projections), dim=1)
        similarities = unit @ unit.T / temperature
    similarities = similarities.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=unit.device), -math.inf)
    partners = torch.arange(2 * n, device=unit.device).roll(n)
    return nn.functional.cross_entropy(similarities, partners)


class _Projection(nn.Sequential):
    """Linear-ReLU-Linear in the place of a layer, kept in a tuple so that it is not a submodule and never trains."""

    def __init__(self, last: nn.Linear, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(last.in_features, last.in_features).to(last.weight)
        self.relu = nn.ReLU()
        self.output = nn.Linear(last.in_features, outputs).to(last.weight)
        self.replaced = (last,)


def _to_float32(outputs: Tensor) -> Tensor:
    """Convert outputs of a network that computes in less than float32 to float32."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


# --- what holds the weights down --------------------------------------------------------------------------------------


@keyed_as("Penalty")
class Penalty(ABC):
    """A function of the weights that is added to the loss."""

    @abstractmethod
    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the penalty of all of the trained parameters together, by name; a scalar in nats, differentiable."""


@keyed_as("L1")
@dataclass(frozen=True)
class L1(Penalty):
    """``weight`` · Σ |w|, over all weights and biases (oxford2025, equation 4); at 0 its gradient is 0."""

    weight: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return ``weight`` times the sum of the magnitudes."""
        return self.weight * _join(parameters).abs().sum()


@keyed_as("L2")
@dataclass(frozen=True)
class L2(Penalty):
    """``weight`` · Σ w², over all weights and biases (oxford2025, equation 5).

    With ``SGD`` it is a ``weight_decay`` of twice as much.
    """

    weight: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return ``weight`` times the sum of the squares."""
        return self.weight * _join(parameters).square().sum()


def _join(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in parameters.values()])


@keyed_as("Prune")
@dataclass(frozen=True)
class Prune:
    """Intermittent random pruning: every ``every`` steps a ``share`` of the weights, chosen at random, is set to zero.

    oxford2025 gives no numbers: these are ours. Weights are the parameters of two or more dimensions, so biases and
    norms stay. What was set to zero may grow again: whatever the optimiser remembers of it, such as momentum, is left
    alone. Raises ``FitError`` for a share outside 0-1, as a percentage is.
    """

    share: float = 0.1
    every: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FitError(f"Prune(share={self.share:g}): share is between 0 and 1")

    def __call__(self, parameters: Mapping[str, Tensor], step: int, random: torch.Generator) -> bool:
        """Prune in place if it is time after ``step`` steps (from 1), and return whether it was.

        Of each weight of n entries exactly ``round(share · n)`` are chosen, some of which may be zero already, from a
        generator of the CPU, weight after weight in the order of ``parameters``.
        """
        if step < 1 or step % self.every:
            return False
        for parameter in parameters.values():
            if parameter.dim() >= 2:
                chosen = torch.randperm(parameter.numel(), generator=random)[: round(self.share * parameter.numel())]
                pruned = torch.zeros(parameter.numel(), dtype=torch.bool).index_fill_(0, chosen, True)
                parameter.detach().masked_fill_(pruned.view(parameter.shape).to(parameter.device), 0)
        return True


# --- all together -----------------------------------------------------------------------------------------------------


@keyed_as("Plateau")
@dataclass(frozen=True)
class Plateau:
    """Until the loss plateaus (oxford2025, methods), in numbers that are ours since the paper gives none.

    The loss has plateaued when the best of the last ``patience`` epochs is not lower than the best of all epochs
    before them by more than the share ``least`` of that.
    """

    patience: int = 5
    least: float = 0.01

    def is_reached(self, losses: Sequence[float]) -> bool:
        """Return whether training ends, given the mean losses of all epochs so far; never by the first ``patience``.

        A function of the losses alone, so training that resumes from a checkpoint ends at the same epoch.
        """
        if len(losses) <= self.patience:
            return False
        before, lately = min(losses[: -self.patience]), min(losses[-self.patience :])
        return not lately < before - self.least * abs(before)


@keyed_as("Recipe")
@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    ``epochs`` or ``steps`` says for how long (with ``stop``, at most); an epoch has as many whole batches as the
    samples give, in an order of its own, and leaves out what is left over. ``schedule`` runs over all steps.
    ``augment`` acts on the raw images of a batch, ``objective`` is what falls, ``penalty`` is added to it, ``prune``
    sets weights to zero now and then, ``stop`` ends it early by the epochs' mean losses. ``precision`` is ``float32``,
    or ``fast``: the forward pass in bfloat16 if the processor has it, weights and optimiser in float32.

    Raises ``FitError`` if the settings contradict each other.
    """

    epochs: int | None = None
    batch: int = 128
    optimiser: Optimiser = SGD(lr=0.1, nesterov=True, weight_decay=5e-4)
    schedule: Schedule = OneCycle()
    steps: int | None = None
    augment: Augmentation = Unchanged()
    objective: Objective = LabelCrossEntropy()
    penalty: Penalty | None = None
    prune: Prune | None = None
    stop: Plateau | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise FitError(f"epochs={self.epochs} and steps={self.steps}: a recipe needs one of them, not both")
        for name in ("epochs", "steps", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FitError(f"{name}={value}: a recipe needs at least 1")
        if self.precision not in PRECISIONS:
            raise FitError(f"precision={self.precision!r}: give one of {', '.join(PRECISIONS)}")

    def steps_per_epoch(self, samples: int) -> int:
        """Return the number of steps in an epoch of so many samples."""
        return samples // min(self.batch, samples)

    def count_steps(self, samples: int) -> int:
        """Return the number of steps in all, if nothing ends it early."""
        return self.steps if self.steps is not None else (self.epochs or 0) * self.steps_per_epoch(samples)

    def in_bfloat16(self, device: torch.device) -> bool:
        """Return whether the forward pass runs in bfloat16 on a device."""
        return self.precision == "fast" and half_precision(device) is not None


# --- what trains, and what is taken -----------------------------------------------------------------------------------


@keyed_as("Parts")
@dataclass(frozen=True)
class Parts:
    """The parts of a network that train, and those that it takes from the network that it starts from, if any.

    Each is a tuple of names of modules or tensors, with wildcards (``fc1``, ``layer1``, ``layer*.0``); a module's name
    stands for all inside it. ``trained`` and ``frozen`` describe the same from either side, so one of them may be
    given; without either, all trains. ``taken`` is all by default. Raises ``NetworkError`` if both are given.
    """

    trained: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    taken: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        if self.trained and self.frozen:
            raise NetworkError(
                f"trained={self.trained} and frozen={self.frozen} state the same choice twice; give one of them"
            )

    def training(self, model: nn.Module) -> set[str]:
        """Return the names of the tensors that may change. Raises ``NetworkError`` if that is none."""
        chosen = match_tensors(model, self.trained or ("*",)) - match_tensors(model, self.frozen)
        if not chosen & {name for name, _ in model.named_parameters()}:
            raise NetworkError(
                f"nothing of {type(model).__name__} would train with {spell(self)}; name modules with parameters, or "
                "freeze less"
            )
        return chosen

    def take(self, model: nn.Module, start: Mapping[str, Tensor]) -> None:
        """Fill the parts that are ``taken`` from another network's tensors, by name.

        Raises ``NetworkError`` if that network has no such tensor, or one of another shape.
        """
        own = model.state_dict()
        for name in sorted(match_tensors(model, self.taken)):
            if name not in start or start[name].shape != own[name].shape:
                theirs = f"{tuple(start[name].shape)} there" if name in start else "not there"
                raise NetworkError(
                    f"cannot take {name!r} from the network to start from: it is {theirs} and "
                    f"{tuple(own[name].shape)} here; start from a network of the same architecture, or take less"
                )
            with torch.no_grad():
                own[name].copy_(start[name])


def match_tensors(model: nn.Module, patterns: Iterable[str]) -> set[str]:
    """Return the tensors that patterns name. Raises ``NetworkError`` for a pattern that names none."""
    tensors = list(model.state_dict())
    found: set[str] = set()
    for pattern in patterns:
        chosen = {name for name in tensors if any(fnmatchcase(path, pattern) for path in _paths_of(name))}
        if not chosen:
            valid = dict.fromkeys(path for name in tensors for path in _paths_of(name))
            near = difflib.get_close_matches(pattern, valid, n=5, cutoff=0.0)
            raise NetworkError(f"no module {pattern!r} in {type(model).__name__}; nearest: {', '.join(near)}")
        found |= chosen
    return found


def _paths_of(name: str) -> list[str]:
    """Return a tensor's name and those of the modules around it: ``a.b.weight``, ``a.b``, ``a``."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))][::-1]


def set_modes(model: nn.Module, training: set[str]) -> None:
    """Put the parts that train into training mode and the rest, without gradients, into evaluation mode.

    A module without tensors, such as a dropout, goes with the module around it; one of whose buffers one is frozen, as
    a BatchNorm of which only the weight was named, would change it in training mode, and so stays in evaluation mode.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in training)
    _set_mode(model, "", training, True)


def _set_mode(module: nn.Module, path: str, training: set[str], around: bool) -> None:
    kept = module.state_dict()
    own = any(f"{path}{name}" in training for name in kept) if kept else around
    buffers = [name for name, _ in module.named_buffers(recurse=False) if name in kept]
    module.training = own and all(f"{path}{name}" in training for name in buffers)
    for name, child in module.named_children():
        _set_mode(child, f"{path}{name}.", training, own)

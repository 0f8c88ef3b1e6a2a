"""Base models as artefacts: a network that is trained once, however many trials want it.

::

    a, b = (BaseModel("zoo:resnet,width=16", data.training, FAST, seed, name=name) for seed, name in enumerate("AB"))
    plan = [Deferred((a, b), lambda a, b: suture.curve(a, b, data=data))]
    suture.run(plan, store="runs/ab")

trains both, in parallel if there are several workers, keeps their weights in the store, and then measures. A base
model may start from another, take parts of it and leave them frozen; that one is then trained first.
"""

import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from filelock import FileLock
from safetensors.torch import load as from_bytes
from torch import Tensor, nn

from suture.common.errors import DataError, FitError
from suture.common.hashing import identity, registered_name
from suture.common.seeds import digest, undisturbed
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.core.saving import to_safetensors
from suture.data import Samples
from suture.data.samples import Preprocessing, as_given
from suture.measurement.scores.scores import Accuracy, estimate
from suture.measurement.tables.records import describe_machine
from suture.runs.runners import Outcome, TrainingTask
from suture.runs.store.store import NETWORKS
from suture.zoo.artefacts import Weights
from suture.zoo.build import Built, resolve
from suture.zoo.model_strings import Source, parse_source
from suture.zoo.training import Checkpoints, Parts, Recipe, Training, find_newest_step

VERSION = 2  #: of the training code; a change that may change weights changes it, and with it every key

Told = Callable[[int, float], None]
Watch = Callable[[int, int], None]


@final
@dataclass(frozen=True, eq=False)
class BaseModel(TrainingTask):
    """A network to be trained, described.

    ``source`` is a model string without weights, ``samples`` what it is trained on, ``seed`` decides initialisation,
    order and augmentation. It begins with the weights of ``start``, another base model, as far as ``parts`` say, which
    also say what trains; ``until`` ends it after that epoch of its recipe. The card says how it does on ``scored_on``.
    ``name``, ``scored_on`` and ``device`` are no part of the key. Raises ``SourceError`` if the string names no
    model.
    """

    source: str
    samples: Samples
    recipe: Recipe
    seed: int = 0
    name: str = ""
    start: "BaseModel | Weights | None" = None
    parts: Parts = Parts()
    until: int | None = None
    scored_on: tuple[Samples, ...] = ()
    device: str = "cpu"
    weights: bytes = b""  #: of ``start``, once it is trained

    kind: ClassVar[str] = NETWORKS

    def __post_init__(self) -> None:
        parse_source(self.source)
        if self.until is not None and self.until < 1:
            raise FitError(f"until={self.until}: a network is there after epoch 1 at the earliest")

    @cached_property
    def _parsed(self) -> Source:
        return parse_source(self.source)

    @cached_property
    def _built(self) -> Built:
        with torch.random.fork_rng(devices=[]):
            return resolve(self._parsed)

    @cached_property
    def _training(self) -> dict[str, tuple[str, str]]:
        """Everything that can change the weights, but when it ends: by name, a text and a hash."""
        built = self._built
        architecture = digest(identity(built.factory), _shape(built.model), identity(built.preprocess), self._file())
        start = self.start.key if self.start is not None else "nothing"
        return {
            "training code": (f"version {VERSION}", str(VERSION)),
            "network": (self.source, digest(identity(self._parsed), architecture)),
            "data": (self.samples.name, self.samples.fingerprint),
            "recipe": (str(self.recipe), identity(self.recipe)),
            "seed": (str(self.seed), str(self.seed)),
            "start": (start, start),
            "parts": (str(self.parts), identity(self.parts)),
        }

    def _file(self) -> bytes:
        """Return what the user's own file says that the network is."""
        if self._parsed.kind != "file":
            return b""
        return Path(self._parsed.name.rpartition(":")[0]).expanduser().read_bytes()

    @cached_property
    def key(self) -> str:
        """A hash of everything that can change the weights."""
        return digest([hashed for _, hashed in self._training.values()], self.until)[:20]

    @property
    def where(self) -> str:
        """What is trained, in words."""
        until = f", to epoch {self.until}" if self.until is not None else ""
        return f"training {self.name or self._parsed.name} on {self.samples.name}, seed {self.seed}{until}"

    @property
    def bases(self) -> tuple["BaseModel", ...]:
        """The base model that it starts from."""
        return (self.start,) if isinstance(self.start, BaseModel) else ()

    def after(self, tensors: Mapping[str, bytes]) -> "BaseModel":
        """Return the same, with the weights that it starts from."""
        return replace(self, weights=tensors[self.start.key]) if isinstance(self.start, BaseModel) else self

    @cached_property
    def sequence(self) -> str:
        """The training, of which this may be one epoch of several."""
        return f"{replace(self, until=None).key}-{self.device.replace(':', '-')}"

    def run(self, activations: Activations) -> Outcome:
        """Train it: the card, and the weights. What was begun before and killed goes on."""
        begun = time.perf_counter()
        try:
            if activations.disk is None:
                return self.train()
            folder = self._progress(activations.disk.path)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock"), fallback_to_soft=False):  # of all epochs of one training
                return self.train(folder)
        except Exception as error:  # a factory may raise anything
            reason = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            return Outcome(self._card("failed", time.perf_counter() - begun) | reason)

    def _progress(self, scratch: Path) -> Path:
        return scratch / "training" / self.sequence

    def share(self, scratch: Path) -> float | None:
        """Return how much of the training, which may end earlier, is in its newest checkpoint."""
        per_epoch, last = self.recipe.steps_per_epoch(len(self.samples)), self.recipe.count_steps(len(self.samples))
        last = last if self.until is None else min(last, self.until * per_epoch)
        step = find_newest_step(self._progress(scratch), last)
        return None if step is None else step / last

    def tidy(self, scratch: Path) -> None:
        """Remove the checkpoints; those of an earlier epoch stay, since others may go on from there."""
        if self.until is None:
            shutil.rmtree(self._progress(scratch), ignore_errors=True)

    def train(
        self,
        folder: Path | None = None,
        told: Told = lambda epoch, loss: None,
        watch: Watch = lambda step, steps: None,
    ) -> Outcome:
        """Train it: the card, and the weights. ``told`` and ``watch`` are those of ``Training``.

        The ``folder`` has its checkpoints, and one process at a time; they stay for whoever keeps the outcome to
        remove. Raises what ``Training`` raises.
        """
        precision = "bfloat16" if self.recipe.in_bfloat16(torch.device(self.device)) else "float32"
        bits = f"{self.device}, {precision}"
        training = self._training | {"device": (bits, bits)}
        return self._trained(Checkpoints(folder, training) if folder is not None else None, told, watch)

    def _trained(self, checkpoints: Checkpoints | None, told: Told, watch: Watch) -> Outcome:
        built = self._built
        training = Training(
            built.factory,
            self.samples,
            self.recipe,
            self.seed,
            preprocess=built.preprocess,
            start=self._beginning(),
            parts=self.parts,
            device=self.device,
            told=told,
            watch=watch,
        )
        model = training.run(checkpoints, until=self.until)
        progress = training.progress
        card = self._card("ok", progress.seconds) | {
            "processor_seconds": progress.busy,
            "steps": progress.step,
            "epochs": progress.step / training.per_epoch,
            "losses": progress.losses,
            "precision": _precision(training),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "scores": [score_network(model, built.preprocess, samples, self.device) for samples in self.scored_on],
        }
        return Outcome(card, to_safetensors(model))

    def _beginning(self) -> dict[str, Tensor] | None:
        if self.start is None:
            return None
        return from_bytes(self.weights or self.start.train().tensors)

    def lost(self, reason: str) -> Outcome:
        """Return a failure for which nobody is left to say more."""
        return Outcome(self._card("failed", 0.0) | {"error": reason, "traceback": ""})

    def _card(self, status: str, seconds: float) -> dict[str, object]:
        return {
            "status": status,
            "network": self.key,
            "training": VERSION,
            "name": self.name,
            "source": self.source,
            "made_in": str(Path.cwd()),
            "recipe": str(self.recipe),
            "seed": self.seed,
            "data": {
                "name": self.samples.name,
                "fingerprint": self.samples.fingerprint,
                "samples": len(self.samples),
                "shape": list(self.samples.images.shape[1:]),
                "classes": list(self.samples.classes),
            },
            "start": self.start.key if self.start is not None else None,
            "parts": str(self.parts),
            "until": self.until,
            "seconds": seconds,
            "device": self.device,
            "threads": 1,
            "machine": describe_machine(),
        }

    def network(self, tensors: bytes) -> Network:
        """Make the trained network of its weights."""
        built = self._built
        with torch.random.fork_rng(devices=[]):
            model = built.factory()
        model.load_state_dict(from_bytes(tensors))
        return Network(
            model,
            example=self.samples.example,
            name=self.name or self._parsed.name,
            preprocess=built.preprocess,
            factory=built.factory,
            copy=False,
        )


def _shape(model: nn.Module) -> list[object]:
    """Return what a model consists of, whatever the version of torch says of it.

    Its modules, and its tensors' shapes.
    """
    modules = [
        (name, registered_name(type(module)) or type(module).__qualname__) for name, module in model.named_modules()
    ]
    return [modules, [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]]


def _precision(training: Training) -> str:
    """Return what the forward pass computed in.

    A GPU's convolutions take TensorFloat-32 for float32 unless told otherwise.
    """
    if training.bfloat16:
        return "bfloat16"
    coarse = training.device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return "float32, convolutions in TF32" if coarse else "float32"


# --- how well it does -------------------------------------------------------------------------------------------------

_CHUNK = 256  #: images at a time, which decides the last bits of the outputs


def score_network(model: nn.Module, preprocess: Preprocessing, samples: Samples, device: str = "cpu") -> dict[str, Any]:
    """Accuracy on samples, a fraction with its 95 % interval, overall and by class name; plain values.

    The model is one in evaluation mode. Raises ``DataError`` if it has fewer outputs than the samples have classes.
    """
    given = compute_logits(model, preprocess, samples, device)
    if given.shape[1] < len(samples.classes):
        raise DataError(
            f"the network has {given.shape[1]} outputs and {samples.name!r} {len(samples.classes)} classes; "
            f"build it with classes={len(samples.classes)}"
        )
    right = Accuracy().per_sample(given, samples.labels)
    found: dict[str, Any] = {
        "data": {"name": samples.name, "fingerprint": samples.fingerprint, "samples": len(samples)},
        "accuracy": asdict(estimate(Accuracy(), right, seed=0)),
        "classes": {},
    }
    for label, name in enumerate(samples.classes):
        chosen = right[samples.labels == label]
        if len(chosen):
            found["classes"][name] = asdict(estimate(Accuracy(), chosen, seed=0))
    return found


def compute_logits(model: nn.Module, preprocess: Preprocessing, samples: Samples, device: str = "cpu") -> Tensor:
    """Return the outputs (n, classes), on the CPU, of a model in evaluation mode."""
    model = model.to(device)
    with undisturbed(), torch.no_grad():
        parts = [
            model(preprocess(as_given(images.to(device)))).float().cpu()
            for images in torch.split(samples.images, _CHUNK)
        ]
    model.cpu()
    return torch.cat(parts)

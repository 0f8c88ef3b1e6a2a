"""Base models as artefacts: a network that is trained once, however many trials want it.

::

    a, b = (BaseModel("zoo:resnet,width=16", data.training, FAST, seed, name=name) for seed, name in enumerate("AB"))
    store = suture.Store.make("runs/ab")
    train_networks((a, b), store)
    suture.run(suture.curve(a.load(store), b.load(store), data=data), store=store)

trains both, in parallel if there are several workers, keeps their weights in the store, and then measures. A base
model may start from another, take parts of it and leave them frozen; that one is then trained first.
"""

import hashlib
import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from filelock import FileLock
from safetensors.torch import load as from_bytes
from torch import Tensor, nn

from suture import Network, Samples
from suture.common.errors import DataError, FitError, SourceError, may_be_of_machine
from suture.extend import (
    NETWORKS,
    Activations,
    Outcome,
    Preprocessing,
    as_given,
    contents,
    describe_machine,
    digest,
    flush,
    hash_code,
    identity,
    registered_name,
    to_safetensors,
    undisturbed,
    whole,
    writing_to,
)
from suture.measurement.scores.scores import Accuracy, estimate
from suture.zoo import Built, Source, parse_source, resolve
from suture_papers.training import Checkpoints, Parts, Recipe, Training, TrainingTask, Watch, find_checkpoints

VERSION = 2  #: of the training code; a change that may change weights changes it, and with it every key


@final
@dataclass(frozen=True, eq=False)
class BaseModel(TrainingTask):
    """The description of a network to be trained.

    ``source`` is a model string without weights, ``samples`` its training data, ``seed`` decides initialisation, order
    and augmentation. It begins with the weights of ``start``, another base model or the content of a safetensors file,
    as far as ``parts`` say, which also say what trains; ``until`` ends it after that epoch of its recipe. The card has
    its accuracy on ``scored_on``. ``rounded`` weights are numbers of 16 bits, so that the small file has exactly the
    weights that were measured. ``name``, ``scored_on`` and ``device`` are not part of the key. Raises ``SourceError``
    if the string does not name a model, or names one with weights.
    """

    source: str
    samples: Samples
    recipe: Recipe
    seed: int = 0
    name: str = ""
    start: "BaseModel | bytes | None" = None
    parts: Parts = Parts()
    until: int | None = None
    scored_on: tuple[Samples, ...] = ()
    device: str = "cpu"
    weights: bytes = b""  #: of ``start``, once it is trained
    rounded: bool = False

    kind: ClassVar[str] = NETWORKS

    def __post_init__(self) -> None:
        if self._parsed.checkpoint is not None:
            raise SourceError(f"{self.source} has trained weights; leave them out, or give them as start")
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
        start = self.start_key or "nothing"
        return {
            "training code": (f"version {VERSION}", str(VERSION)),
            "network": (self.source, digest(identity(self._parsed), self._architecture)),
            "data": (self.samples.name, self.samples.fingerprint),
            "recipe": (str(self.recipe), identity(self.recipe)),
            "seed": (str(self.seed), str(self.seed)),
            "start": (start, start),
            "parts": (str(self.parts), identity(self.parts)),
        }

    @property
    def _architecture(self) -> str:
        """A hash of the architecture, and of the code that builds it."""
        if self._parsed.runs_code:  # which may have changed
            own = self._parsed.file.read_bytes() if self._parsed.file is not None else b""
            return _hash(self._built, own, hash_code(self._parsed, self._built.model))
        return _hash_of_library(self.source)

    @property
    def _rounding(self) -> list[str]:
        return ["rounded to 16 bits"] if self.rounded else []

    @property
    def start_key(self) -> str | None:
        """A hash of the weights that it starts from."""
        if isinstance(self.start, bytes):
            return f"weights {hashlib.sha256(self.start).hexdigest()[:20]}"
        return self.start.key if self.start is not None else None

    @cached_property
    def key(self) -> str:
        """A hash of everything that can change the weights."""
        return digest([hashed for _, hashed in self._training.values()], self.until, *self._rounding)[:20]

    @property
    def where(self) -> str:
        """The training, in words."""
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
        return f"{replace(self, until=None, rounded=False).key}-{self.device.replace(':', '-')}"

    def run(self, activations: Activations) -> Outcome:
        """Train it: the card, and the weights. A training that was killed continues."""
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
            outcome = Outcome(self._card("failed", time.perf_counter() - begun) | reason)
            return outcome.of_machine() if may_be_of_machine(error) else outcome

    def _progress(self, scratch: Path) -> Path:
        return scratch / "training" / self.sequence

    def share(self, scratch: Path) -> float | None:
        """Return how much of the training, which may end earlier, is in its newest checkpoint."""
        per_epoch, last = self.recipe.steps_per_epoch(len(self.samples)), self.recipe.count_steps(len(self.samples))
        last = last if self.until is None else min(last, self.until * per_epoch)
        done = [step for step in find_checkpoints(self._progress(scratch)) if step <= last]
        return max(done) / last if done else None

    def tidy(self, scratch: Path) -> None:
        """Remove the checkpoints; those of an earlier epoch stay, since others may go on from there."""
        if self.until is None:
            shutil.rmtree(self._progress(scratch), ignore_errors=True)

    def on(self, device: str) -> "BaseModel":
        """Return the same training, under the same key, on a device."""
        return replace(self, device=device)

    def train(self, folder: Path | None = None, watch: Watch = lambda step, steps, losses: None) -> Outcome:
        """Train it: the card, and the weights. ``watch`` is that of ``Training``.

        The ``folder`` has its checkpoints, and one process at a time; they stay, to be removed once the outcome is
        kept. Raises the errors of ``Training``.
        """
        built = self._built
        start = self.start
        if isinstance(start, BaseModel):
            start = self.weights or start.train().tensors
        training = Training(
            built.factory,
            self.samples,
            self.recipe,
            self.seed,
            preprocess=built.preprocess,
            start=from_bytes(start) if start is not None else None,
            parts=self.parts,
            device=self.device,
            watch=watch,
        )
        precision = "bfloat16" if training.bfloat16 else "float32"
        identified = self._training | {"device": (f"{self.device}, {precision}",) * 2}
        model = training.run(Checkpoints(folder, identified) if folder is not None else None, until=self.until)
        if self.rounded:
            model.load_state_dict(round_weights(model.state_dict()))
        progress = training.progress
        card = self._card("ok", progress.seconds) | {
            "processor_seconds": progress.busy,
            "steps": progress.step,
            "epochs": progress.step / training.per_epoch,
            "losses": progress.losses,
            "precision": precision,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "scores": [score_network(model, built.preprocess, samples, self.device) for samples in self.scored_on],
        }
        return Outcome(card, to_safetensors(model))

    def lost(self, reason: str) -> Outcome:
        """Return the failure of a training whose worker has died."""
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
            "start": self.start_key,
            "parts": str(self.parts),
            "until": self.until,
            "rounded": self.rounded,
            "seconds": seconds,
            "device": self.device,
            "threads": 1,
            "machine": describe_machine(),
        }

    def network(self, tensors: bytes) -> Network:
        """Make the trained network from its weights."""
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
            stages=built.stages,
            copy=False,
        )


def round_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with numbers that 16 bits hold. Raises ``FitError`` if one is too large for that."""
    made = {name: own.half().to(own.dtype) if own.is_floating_point() else own for name, own in tensors.items()}
    if wrong := [name for name, own in made.items() if own.is_floating_point() and not own.isfinite().all()]:
        raise FitError(f"'{wrong[0]}' has numbers that 16 bits cannot hold; train without rounded=True")
    return made


def keep(folder: Path, outcome: Outcome) -> None:
    """Write a trained network into a folder, ``done`` last. Raises ``OutputError`` if it cannot be written to."""
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents(NETWORKS, outcome.record, outcome.tensors).items():
            with whole(folder / name) as temporary:
                temporary.write_bytes(content)
            flush(folder)


def _hash(built: Built, own: bytes = b"", *code: str) -> str:
    return digest(identity(built.factory), _shape(built.model), identity(built.preprocess), own, *code)


@cache
def _hash_of_library(source: str) -> str:
    """Build a library's model once, however many seeds of it a study counts."""
    with torch.random.fork_rng(devices=[]):
        return _hash(resolve(source))


def _shape(model: nn.Module) -> list[object]:
    """Return the structure of a model, whatever its ``repr`` in this version of torch.

    Its modules, and its tensors' shapes.
    """
    modules = [
        (name, registered_name(type(module)) or type(module).__qualname__) for name, module in model.named_modules()
    ]
    return [modules, [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]]


# --- how well it does -------------------------------------------------------------------------------------------------

_CHUNK = 256  #: images at a time, which decides the last bits of the outputs


def score_network(model: nn.Module, preprocess: Preprocessing, samples: Samples, device: str = "cpu") -> dict[str, Any]:
    """Return the accuracy on samples, a fraction with its 95 % interval, overall and by class name.

    The model is one in evaluation mode. Raises ``DataError`` if it has fewer outputs than the samples have classes.
    """
    model = model.to(device)
    with undisturbed(), torch.no_grad():
        chunks = (as_given(images.to(device)) for images in torch.split(samples.images, _CHUNK))
        given = torch.cat([model(preprocess(images)).float().cpu() for images in chunks])
    model.cpu()
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

"""Base models as artefacts: a network that is trained once, however many trials want it.

::

    a, b = (BaseModel("zoo:resnet,width=16", data.fit, CIFAR_SMALL, seed, name=name) for seed, name in enumerate("AB"))
    plan = [Later((a, b), lambda a, b: suture.curve(a, b, data=data))]
    suture.run(plan, store="runs/ab")

trains both, in parallel where there are workers, keeps their weights in the store, and then measures.
"""

import time
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, final

import torch
from safetensors.torch import load as from_bytes

from suture.activations import Activations
from suture.data import Samples
from suture.identities import identity
from suture.network import Network
from suture.records import machine
from suture.runners import Base, Outcome
from suture.saving import tensors_of
from suture.seeds import digest
from suture.store import NETWORKS
from suture.zoo.building import Built, resolve
from suture.zoo.sources import Source, parse_source
from suture.zoo.training import Recipe, train

VERSION = 1  #: of the training code; a change that may change weights changes it, and with it every key


@final
@dataclass(frozen=True, eq=False)
class BaseModel(Base):
    """A network to be trained, described.

    ``source`` is a model string without weights, ``samples`` what it is trained on, ``seed`` decides initialisation,
    order and augmentation. The ``name`` is for tables and no part of the key. Raises ``SourceError`` where the string
    names no model.
    """

    source: str
    samples: Samples
    recipe: Recipe
    seed: int = 0
    name: str = ""

    kind: ClassVar[str] = NETWORKS

    def __post_init__(self) -> None:
        parse_source(self.source)

    @cached_property
    def _parsed(self) -> Source:
        return parse_source(self.source)

    @cached_property
    def _built(self) -> Built:
        with torch.random.fork_rng(devices=[]):
            return resolve(self._parsed)

    @cached_property
    def key(self) -> str:
        """A hash of everything that can change the weights."""
        built = self._built
        made: list[object] = [
            identity(self._parsed),
            repr(built.model),
            identity(built.factory),
            identity(built.preprocess),
        ]
        if self._parsed.kind == "file":
            made.append(Path(self._parsed.name.rpartition(":")[0]).expanduser().read_bytes())
        return digest(VERSION, made, self.samples.fingerprint, identity(self.recipe), self.seed)[:20]

    @property
    def where(self) -> str:
        """What is trained, in words."""
        return f"training {self.name or self._parsed.name} on {self.samples.name}, seed {self.seed}"

    def run(self, activations: Activations) -> Outcome:
        """Train it: the card, and the weights."""
        begun = time.perf_counter()
        try:
            built = self._built
            model = train(built.factory, self.samples, self.recipe, self.seed, preprocess=built.preprocess)
            tensors = tensors_of(model)
        except Exception as error:  # a factory may raise anything
            return Outcome(self._card("failed", begun, f"{type(error).__name__}: {error}", traceback.format_exc()))
        return Outcome(self._card("ok", begun), tensors)

    def lost(self, reason: str) -> Outcome:
        """A failure for which nobody is left to say more."""
        return Outcome(self._card("failed", time.perf_counter(), reason))

    def _card(self, status: str, begun: float, error: str | None = None, trace: str = "") -> dict[str, object]:
        card: dict[str, object] = {
            "status": status,
            "network": self.key,
            "training": VERSION,
            "source": self.source,
            "recipe": str(self.recipe),
            "seed": self.seed,
            "data": {"name": self.samples.name, "fingerprint": self.samples.fingerprint},
            "seconds": time.perf_counter() - begun,
            "machine": machine(),
        }
        return card if error is None else card | {"error": error, "traceback": trace}

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

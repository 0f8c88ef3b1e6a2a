"""Traits: scores that say how strongly a network shows a behaviour, and the data that brings it out.

A trait is a score with its own name: one number per sample. It may be read from the logits (accuracy
on trucks, cars taken for cats) or need the network itself (an attack), and may be scored on other images than the data
has: with a region blacked out, on a variant of the data, with a trigger in a corner. Only the score samples are made
anew; what fits a stitch is another matter (``suture.localise``).

Score a trait so that a network which knows nothing does not show it: cars taken for cats, and not the lack of right
answers on cars, of which any broken network has as much.

Sources: oxford2025, section 4 (cars as cats, trucks, one half of MNIST-CIFAR blacked out). Attack: Goodfellow, Shlens &
Szegedy 2015, *Explaining and Harnessing Adversarial Examples*, equation 2 (the fast gradient sign method). Trigger: Gu
et al. 2017, *BadNets*, section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from suture.common.constants import CHUNK
from suture.common.errors import DataError, NetworkError
from suture.common.hashing import keyed_as
from suture.data import Data, Samples
from suture.data.changes import Covered, Variant, class_index
from suture.data.images import as_floats
from suture.data.tasks import Task
from suture.measurement.scores.scores import Accuracy, Confusion, Named, NetworkScore, Score


def _of_score(name: str, what: str) -> Any:
    """Make a property, or a method, of a trait that is its score's."""
    return property(lambda trait: getattr(trait.score, name), doc=what)


@keyed_as("Trait")
@final
@dataclass(frozen=True)
class Trait(Named):
    """A behaviour: its name, the score that measures how strongly a network shows it, and the data to score it on.

    ``on`` turns the data into the data to score on: a variant, or any function of ``Data``, whose score samples are
    taken; ``None`` takes the data's own. In a table it is the ``score`` of its name. Raises ``DataError`` if the name
    is empty or ``score`` is not a score.
    """

    name: str = field()
    score: Score
    on: Callable[[Data], Data] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise DataError("a trait needs a name, under which tables show it")
        if not isinstance(self.score, Score):
            raise DataError(
                f"the score of '{self.name}' is a {type(self.score).__name__}; give a Score, or a function of a module "
                "and samples as Computed(name, function)"
            )

    unit = _of_score("unit", "The unit of its score.")
    higher_is_better = _of_score("higher_is_better", "Whether more of it is better.")
    pooled = _of_score("pooled", "Whether it is of all samples together.")
    reads_network = _of_score("reads_network", "Whether it needs the network itself.")
    named_classes = _of_score("named_classes", "The classes that its score names.")
    compares_samples = _of_score("compares_samples", "Whether its score of a sample depends on the outputs of others.")
    selects = _of_score("selects", "Which samples its score is taken of.")
    per_sample = _of_score("per_sample", "Its score of each sample.")
    gather = _of_score("gather", "Its score's rows for some samples.")
    settle = _of_score("settle", "Its score of each sample, from the rows of all.")
    of_network = _of_score("of_network", "Its score of each sample, from the network itself.")

    def samples(self, data: Data) -> Samples:
        """Return the samples to score it on, made from the data.

        Raises ``DataError`` if ``on`` cannot be applied, or leaves the score samples unchanged.
        """
        if self.on is None:
            return data.score
        made = self.on(data).score
        if made is data.score:
            raise DataError(
                f"'{self.name}' is to be scored on another variant of {data.name}, whose score samples are the "
                "same; give a variant that changes them (Relabelled(…, everywhere=True)), or leave out on="
            )
        return made

    def for_task(self, task: Task) -> "Trait":
        """Return the trait whose score reads outputs of the data's task."""
        score = self.score.for_task(task)
        return self if score is self.score else replace(self, score=score)


@keyed_as("Computed")
@final
@dataclass(frozen=True)
class Computed(Named, NetworkScore):
    """Any function of a module and samples that gives a number for each of the samples, (n,).

    The module maps raw images to outputs. The function is part of a trial's key by its code, and must be a plain one: a
    ``def``, a ``lambda`` or a bound method. Raises ``DataError`` for anything else, whose content cannot be known.
    """

    name: str = field()
    function: Callable[[nn.Module, Samples], Tensor]
    unit: str = "raw"
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.function, FunctionType | MethodType):
            raise DataError(
                f"the function of '{self.name}' is a {type(self.function).__name__}; a trial's key needs its code: "
                "give a function made by def or lambda"
            )

    def of_network(self, network: nn.Module, samples: Samples) -> Tensor:
        """Return the function's values."""
        return self.function(network, samples)


@keyed_as("FGSM")
@final
@dataclass(frozen=True)
class FGSM(NetworkScore):
    """Success of the fast gradient sign attack: 1 if an image was given its label, and is not once attacked.

    Every pixel moves by ``epsilon``, in the range 0 to 1 of raw images, in the direction that raises the loss, and
    stays within the range; Goodfellow et al. 2015, equation 2. Samples that were wrong before count 0, and one with a
    logit that is nan has the value nan. Raises ``DataError`` for an ``epsilon`` outside (0, 1].
    """

    epsilon: float

    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise DataError(f"an attack of strength {self.epsilon:g}; valid: above 0, at most 1, the range of a pixel")

    @property
    def name(self) -> str:
        """The attack and its strength: "FGSM success at 0.03"."""
        return f"FGSM success at {self.epsilon:g}"

    def of_network(self, network: nn.Module, samples: Samples) -> Tensor:
        """Return 1 if the attack turns a right answer, else 0. Raises ``NetworkError`` if images have no gradient."""
        device = next((p.device for p in network.parameters()), samples.images.device)
        parts = zip(samples.images.split(CHUNK), samples.labels.split(CHUNK), strict=True)  # type: ignore[no-untyped-call]
        return torch.cat([self._turn(network, x.to(device), y.to(device)).cpu() for x, y in parts])

    def _turn(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            pixels = as_floats(images).detach().clone().requires_grad_()
            before = network(pixels)
            loss = functional.cross_entropy(before.double(), labels, reduction="sum")
            if not loss.requires_grad:
                raise NetworkError(f"'{self.name}' needs a gradient, and the network's preprocessing has none")
            (gradient,) = torch.autograd.grad(loss, pixels)
        with torch.no_grad():
            after = network((pixels + self.epsilon * gradient.sign()).clamp(0, 1))
        turned: Tensor = (before.argmax(1) == labels) & (after.argmax(1) != labels)
        return turned.double().masked_fill((before + after).isnan().any(1), torch.nan)


def knows(data: Data, label: str) -> Trait:
    """Make the trait of accuracy on one class of the data, ``label``. Raises ``DataError`` for an unknown class."""
    return Trait(f"accuracy on {label}", Accuracy((class_index(label, data, "a trait"),)))


def confuses(data: Data, label: str, to: str) -> Trait:
    """Make the trait of taking one class of the data for another. Raises ``DataError`` for unknown classes."""
    mistaken, taken = (class_index(name, data, "a trait") for name in (label, to))
    return Trait(f"{label} taken for {to}", Confusion(mistaken, taken))


def accuracy_on(variant: Variant, score: Score | None = None) -> Trait:
    """Make the trait of accuracy, or another score, on a variant of the data: ``accuracy_on(BlackedOut("cifar10"))``.

    The variant must change the score samples; one that changes the training roles alone makes no other trait.
    """
    score = score if score is not None else Accuracy()
    return Trait(f"{score.name} {variant.summary}", score, variant)


def falls_to(attack: NetworkScore) -> Trait:
    """Make the trait of an attack's success, such as ``falls_to(FGSM(0.03))``."""
    return Trait(attack.name, attack)


def triggered(data: Data, to: str, patch: Covered) -> Trait:
    """Make the trait of a trigger's success: the patch makes a class of images of any other.

    BadNets' backdoor, if the patch is what it was trained with. Raises ``DataError`` for no class of the data.
    """
    return Trait(f"taken for {to} {patch.summary}", Confusion(None, class_index(to, data, "a trait")), patch)

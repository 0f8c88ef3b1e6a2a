"""The same images with other labels: one class called another, labels at random, classes joined to larger ones.

Source: oxford2025, section 4.1 (every car labelled cat); bansal2021, section 5 and appendix A.2 (random labels,
objects and animals). The images stay the same tensor, so activations of the same images are shared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.data.samples import Data, Samples
from suture.data.variants.base import Variant, change_all, change_roles, change_training, class_index, list_names


@keyed_as("Relabelled")
@final
@dataclass(frozen=True)
class Relabelled(Variant):
    """Every sample of one class is labelled as another.

    ``label`` is the name of the class that loses its samples, ``to`` of the one that they are given to; the list of
    classes stays. Changes the training roles, with ``everywhere`` score too. Raises ``DataError`` for a class that the
    data lack.
    """

    label: str
    to: str
    everywhere: bool = False

    def __post_init__(self) -> None:
        if self.label == self.to:
            raise DataError(f"class '{self.label}' is relabelled as itself; name another class to give it to")

    @property
    def summary(self) -> str:
        """What is called what."""
        return f"{self.label} as {self.to}{_everywhere(self.everywhere)}"

    def __call__(self, data: Data) -> Data:
        """Return the data with the one class called the other."""
        label, to = (class_index(name, data, self.summary) for name in (self.label, self.to))

        def change(samples: Samples) -> Samples:
            return replace(samples, labels=samples.labels.masked_fill(samples.labels == label, to))

        return (change_all if self.everywhere else change_training)(data, self.summary, change)


@keyed_as("RandomLabels")
@final
@dataclass(frozen=True)
class RandomLabels(Variant):
    """A share of the training samples gets a label drawn at random.

    Exactly ``round(p · n)`` of the n samples of fit and validation together, chosen at random, get a label drawn
    uniformly from all k classes, their own among them: the expected share of wrong labels is p (1 − 1/k). The samples
    of a smaller ``p`` are among those of a larger one, with the same new labels. Changes the training roles, with
    ``everywhere`` score too, by the same share. bansal2021, appendix A.2. Raises ``DataError`` for a ``p`` outside
    0 to 1.
    """

    p: float
    seed: int = 0
    everywhere: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise DataError(f"the share of random labels is {self.p:g}; valid: 0 to 1, such as 0.1 for 10 %")

    @property
    def summary(self) -> str:
        """The share in percent, and the seed if it is not 0."""
        seed = f" (seed {self.seed})" if self.seed else ""
        return f"{100 * self.p:g} % random labels{seed}{_everywhere(self.everywhere)}"

    def __call__(self, data: Data) -> Data:
        """Return the data with some labels drawn at random."""
        fit, validation = self._drawn(data.fit, data.validation)
        score = self._drawn(data.score)[0] if self.everywhere else None
        return change_roles(data, self.summary, fit=fit, validation=validation, score=score)

    def _drawn(self, *roles: Samples) -> list[Samples]:
        """Return the samples of some roles, a share of all of them relabelled."""
        sizes = [len(samples) for samples in roles]
        random = generator("variant", "random labels", [samples.image_fingerprint for samples in roles], self.seed)
        order = torch.randperm(sum(sizes), generator=random)
        drawn = torch.randint(len(roles[0].classes), (sum(sizes),), generator=random)
        chosen = torch.zeros(sum(sizes), dtype=torch.bool)
        chosen[order[: round(self.p * sum(sizes))]] = True
        parts = zip(roles, torch.split(drawn, sizes), torch.split(chosen, sizes), strict=True)
        return [
            replace(s, labels=torch.where(which, new, s.labels.cpu()).to(s.labels.device)) for s, new, which in parts
        ]


@keyed_as("SuperClasses")
@final
@dataclass(frozen=True)
class SuperClasses(Variant):
    """Classes joined to larger ones, which become the task.

    ``groups`` names each new class and what it is made of, in the order of the new labels:
    ``"animal: bird|cat; object: ship|truck"``; ``SuperClasses.of`` makes it from a mapping. Changes every role. Raises
    ``DataError`` if a group is badly written, if a class of the data is in none or in two, and for a class that
    the data lack.
    """

    groups: str

    def __post_init__(self) -> None:
        names = [name for name, _ in self.members]
        if len(names) < 2 or len(set(names)) < len(names) or not all(n and all(of) for n, of in self.members):
            raise DataError(
                f"super-classes '{self.groups}': give at least two, each once, with the classes they are made of, as "
                "in 'animal: bird|cat; object: ship|truck'"
            )

    @classmethod
    def of(cls, groups: Mapping[str, Iterable[str]]) -> "SuperClasses":
        """Make the variant from the classes of each new class, in the order of the new labels."""
        return cls("; ".join(f"{name}: {'|'.join(members)}" for name, members in groups.items()))

    @property
    def members(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each new class with the names of the classes that it is made of."""
        parts = [part.partition(":") for part in self.groups.split(";")]
        return tuple((name.strip(), tuple(one.strip() for one in of.split("|"))) for name, _, of in parts)

    @property
    def summary(self) -> str:
        """The new classes."""
        return f"as {' or '.join(name for name, _ in self.members)}"

    def __call__(self, data: Data) -> Data:
        """Return the data with the larger classes."""
        table = self._table(data)
        classes = tuple(name for name, _ in self.members)

        def change(samples: Samples) -> Samples:
            return replace(samples, labels=table.to(samples.labels.device)[samples.labels], classes=classes)

        return change_all(data, self.summary, change)

    def _table(self, data: Data) -> torch.Tensor:
        """Return the new label of every old one, (classes,) int64."""
        table = torch.full((len(data.classes),), -1)
        for label, (name, members) in enumerate(self.members):
            for member in members:
                old = class_index(member, data, f"super-class '{name}'")
                if table[old] >= 0:
                    raise DataError(f"super-classes of {data.name} name '{member}' twice; put it into one group")
                table[old] = label
        missed = tuple(name for name, label in zip(data.classes, table.tolist(), strict=True) if label < 0)
        if missed:
            raise DataError(
                f"super-classes of {data.name} miss {list_names(missed)}; put every class into one of "
                f"{list_names(tuple(name for name, _ in self.members))}"
            )
        return table


OBJECTS_ANIMALS = SuperClasses.of(
    {
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
        "object": ("airplane", "automobile", "ship", "truck"),
    }
)
"""CIFAR-10's animals (label 0) and objects (1); bansal2021, appendix A.2, whose list forgets bird, here an animal."""


@keyed_as("ObjectsAnimals")
@final
@dataclass(frozen=True)
class ObjectsAnimals(Variant):
    """CIFAR-10 as the task to tell animals (label 0) from objects (1): ``OBJECTS_ANIMALS``. Changes every role."""

    @property
    def summary(self) -> str:
        """The new classes."""
        return OBJECTS_ANIMALS.summary

    def __call__(self, data: Data) -> Data:
        """Return the data with two classes."""
        return OBJECTS_ANIMALS(data)


def _everywhere(everywhere: bool) -> str:
    return " everywhere" if everywhere else ""

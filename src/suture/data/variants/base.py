"""What a variant of data is: the same data with one thing changed, so that what networks learn from it is known.

A variant says which of the three roles it changes. One that spoils what a network is taught (fewer samples, wrong
labels, a class left out) changes the *training* roles, fit and validation, and leaves score unchanged: what the network
lacks shows on the true data. One that sets another task, or makes another kind of image, changes every role.

Random choices come from the images, the seed and the kind of variant alone. So they are the same in every process, and
the half of the relabelled data is the relabelled half of the data. Draws are the CPU's, whatever device holds the data.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.common.validation import check_kind
from suture.data.samples import Data, Samples


@keyed_as("Variant")
@dataclass(frozen=True)
class Variant(ABC):
    """One change of a data set: a function from ``Data`` to ``Data``, with its settings."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The few words that enter the names of the data and of the samples it changes: ``without truck``."""

    @abstractmethod
    def __call__(self, data: Data) -> Data:
        """Return the changed data; the given data stay unchanged. Raises ``DataError`` if they cannot be changed so."""


def vary(data: Data, *variants: Variant) -> Data:
    """Apply variants in order, the first one first."""
    for variant in variants:
        data = variant(data)
    return data


Change = Callable[[Samples], Samples]


def change_training(data: Data, summary: str, change: Change) -> Data:
    """Return the data with fit and validation changed, each by itself; score stays the same object."""
    return change_roles(data, summary, fit=change(data.fit), validation=change(data.validation))


def change_all(data: Data, summary: str, change: Change) -> Data:
    """Return the data with every role changed, each by itself."""
    return change_roles(
        data, summary, fit=change(data.fit), validation=change(data.validation), score=change(data.score)
    )


def change_roles(data: Data, summary: str, *, fit: Samples, validation: Samples, score: Samples | None = None) -> Data:
    """Return data under a new name with changed roles; without a new ``score`` that role stays the same object."""
    name = f"{data.name} {summary}"

    def named(now: Samples, before: Samples) -> Samples:
        return replace(now, name=_rename(before.name, data.name, name))

    return Data(
        name,
        fit=named(fit, data.fit),
        validation=named(validation, data.validation),
        score=data.score if score is None else named(score, data.score),
    )


def _rename(samples: str, before: str, now: str) -> str:
    return f"{now}{samples.removeprefix(before)}" if samples.startswith(f"{before}/") else f"{samples} ({now})"


def order_of(samples: Samples, kind: str, seed: int) -> Tensor:
    """Return a random order of the samples, (N,) int64, of the images' own for a kind of choice and a seed."""
    return torch.randperm(len(samples), generator=generator("variant", kind, samples.image_fingerprint, seed))


def class_index(name: str, data: Data, what: str) -> int:
    """Return the label of a class by its name. Raises ``DataError`` with the nearest name if the data lack it."""
    check_kind(what, name, str, "the name of a class")
    check_kind("data", data, Data, "data with classes: load_data(…)")
    if name not in data.classes:
        near = difflib.get_close_matches(name, data.classes, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise DataError(f"{what}: {data.name} has no class '{name}'; {meant}its classes: {list_names(data.classes)}")
    return data.classes.index(name)


def list_names(names: tuple[str, ...], most: int = 20) -> str:
    """Return names for a message, the first of them if there are very many."""
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more

"""Less of the data: some of the samples, one half of them, all but some classes.

All leave *score* unchanged, and keep the order of the samples that stay. Source: bansal2021, section 5 (5,000 to 25,000
samples) and appendix B (disjoint halves); oxford2025, section 4.2 (no trucks).
"""

from dataclasses import dataclass
from typing import final

import torch

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.data.samples import Data, Samples
from suture.data.variants.base import Variant, change_roles, change_training, class_index, list_names, order_of


@keyed_as("Subset")
@final
@dataclass(frozen=True)
class Subset(Variant):
    """Some of the training samples, drawn at random: ``n`` of fit and validation together.

    They keep the proportion of the two, with at least 2 of each. Those of a smaller ``n`` are among those of a larger
    one, at the same seed. Classes are not balanced. Changes the training roles. Raises ``DataError`` for an
    ``n`` below 4 or above what there is.
    """

    n: int
    seed: int = 0

    @property
    def summary(self) -> str:
        """The number of samples, and the seed if it is not 0."""
        return f"{self.n} samples{_seed(self.seed)}"

    def __call__(self, data: Data) -> Data:
        """Return the data with ``n`` training samples."""
        validating = len(data.validation)
        total = len(data.fit) + validating
        if not 4 <= self.n <= total:
            raise DataError(
                f"cannot take {self.n} training samples of {data.name}; valid: 4 to {total}, which is all of fit "
                f"({len(data.fit)}) and validation ({validating}) together"
            )
        validated = min(max(2, (2 * self.n * validating + total) // (2 * total)), self.n - 2)

        fit = _some(data.fit, "subset", self.seed, slice(self.n - validated))
        validation = _some(data.validation, "subset", self.seed, slice(validated))
        return change_roles(data, self.summary, fit=fit, validation=validation)


@keyed_as("Half")
@final
@dataclass(frozen=True)
class Half(Variant):
    """One of two disjoint halves of the training data, drawn at random.

    ``which`` is 0 or 1; the two halves of a seed share no sample, together are all, and differ in size by at most 1.
    Fit and validation are both halved. Changes the training roles. Raises ``DataError`` for any other half, and if
    a role has fewer than 4 samples.
    """

    which: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.which not in (0, 1) or isinstance(self.which, bool):
            raise DataError(f"no half {self.which!r} of the data; valid: 0 and 1")

    @property
    def summary(self) -> str:
        """Which half, and the seed if it is not 0."""
        return f"half {self.which}{_seed(self.seed)}"

    def __call__(self, data: Data) -> Data:
        """Return the half of the training data."""
        validation = self._of(data.validation, larger=0)
        return change_roles(data, self.summary, fit=self._of(data.fit, larger=1), validation=validation)

    def _of(self, samples: Samples, larger: int) -> Samples:
        """Return the half of one role; of an odd number, which half is the larger one."""
        if len(samples) < 4:
            raise DataError(
                f"cannot halve {samples.name}: it has {len(samples)} samples, and each half needs 2; give it more"
            )
        middle = (len(samples) + (larger == 0)) // 2
        return _some(samples, "half", self.seed, slice(middle) if self.which == 0 else slice(middle, None))


@keyed_as("Without")
@final
@dataclass(frozen=True)
class Without(Variant):
    """The training data without all samples of some classes.

    ``classes`` are their names, separated by ``|``. The list of classes and the numbers of the others stay, so
    networks keep an output for what they never saw. Changes the training roles. Raises ``DataError`` for a class that
    the data lack, and if fewer than 2 samples would stay in a role.
    """

    classes: str

    @property
    def summary(self) -> str:
        """The classes left out."""
        return f"without {' and '.join(self._names)}"

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.classes.split("|"))

    def __call__(self, data: Data) -> Data:
        """Return the data without the classes."""
        gone = torch.tensor([class_index(name, data, self.summary) for name in self._names])

        def change(samples: Samples) -> Samples:
            labels = samples.labels.cpu()
            (kept,) = torch.where(~torch.isin(labels, gone))
            if len(kept) < 2:
                raise DataError(
                    f"{self.summary} leaves {len(kept)} samples in {samples.name}, and 2 are needed; leave out fewer "
                    f"of its classes: {list_names(samples.classes)}"
                )
            return samples.take(kept.to(samples.labels.device), samples.name)

        return change_training(data, self.summary, change)


def _some(samples: Samples, kind: str, seed: int, part: slice) -> Samples:
    """Return a part of the samples' random order, in their own order."""
    indices = order_of(samples, kind, seed)[part].sort().values
    return samples.take(indices.to(samples.labels.device), samples.name)


def _seed(seed: int) -> str:
    return f" (seed {seed})" if seed else ""

"""Scores of networks: one number per test sample, whose mean is the score.

Keeping the numbers per sample lets a stitched network and its receiver be compared sample by sample, and an
interval be stated (``scores.intervals``). A trait (accuracy on trucks, success of an attack) is just another
score: subclass ``Score``, and define which samples it selects and the value of each. Most are read from the logits;
one that needs the network itself, as an attack does, is a ``NetworkScore``.

Conventions. Samples run along the first axis. A score is applied to the samples that it selects::

    kept = score.selects(labels)
    values = score.per_sample(logits[kept], labels[kept])    # or
    values = score.of_network(network, samples of those)     # if score.reads_network

Outputs may be too large to be held for all samples, so they come in parts, and each is gathered before the next::

    rows = [score.gather(logits[kept], labels[kept]) for each part]
    values = score.settle(rows of all parts)

The penalty is signed so that positive is worse::

    penalty = stitched test error − receiver test error

in percentage points if the unit is a fraction, else in the unit; a score neither good nor bad has none.

Score cards: the scores of a network's outputs, each with its interval.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from suture.common.errors import DataError, FitError
from suture.common.hashing import identity, keyed_as
from suture.common.mapped import empty, fill
from suture.common.seeds import derive_seed, digest, drawing
from suture.core.activations.cache import Activations, is_finite
from suture.core.network.network import Network
from suture.data import Samples
from suture.data.noise import ClusteredNoise
from suture.data.tasks import Task
from suture.measurement.scores.intervals import Estimate, Floats, check_values, mean_interval, paired_interval

__all__ = [
    "Accuracy",
    "Confusion",
    "CrossEntropy",
    "Named",
    "NetworkScore",
    "Score",
    "ScoreCard",
    "estimate",
    "estimate_penalty",
]

UNITS = ("fraction", "nats", "bits", "raw")
"""What the values of a score may be counted in."""


@keyed_as("Score")
class Score(ABC):
    """A number per sample, with the name, unit and direction of its mean."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in tables and score cards, which tells any two scores of a trial apart."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """One of "fraction" (values in [0, 1]), "nats", "bits" or "raw" (none)."""

    @property
    @abstractmethod
    def higher_is_better(self) -> bool | None:
        """Whether more is better; ``None`` if it is neither good nor bad, and no penalty is defined."""

    @property
    def reads_network(self) -> bool:
        """Whether it is computed from the whole network, by ``of_network``, and not from the logits."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether it is of all samples together, so that the value of one sample is only its influence on the whole."""
        return False

    @property
    def compares_samples(self) -> bool:
        """Whether ``per_sample`` needs all samples at once: by default if the score is pooled."""
        return self.pooled

    @property
    def named_classes(self) -> tuple[int, ...]:
        """The classes that it names, by their labels."""
        return ()

    def selects(self, labels: Tensor) -> Tensor:
        """Return which samples are scored, as a bool mask (n,) for labels (n,); all, unless overridden."""
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)

    def for_task(self, task: Task) -> "Score":
        """Return the score adapted to the data's task; by default it reads the outputs of all tasks alike."""
        return self

    @abstractmethod
    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the value, float64 of shape (n,), of each selected sample from its logits (n, k) and label (n,).

        The samples may be some of those that are scored, unless the score ``compares_samples``.
        """

    @property
    def gathered_as(self) -> Hashable:
        """Equal for scores of the same samples that ``gather`` the same rows, which are then computed once."""
        return self.name

    def gather(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return a row for each of some selected samples, from which ``settle`` makes the values of all."""
        return self.per_sample(logits, labels)

    def settle(self, rows: Tensor) -> Tensor:
        """Return the value of each selected sample, (n,), from the rows of all of them."""
        return rows

    def of_network(self, network: nn.Module, samples: Samples) -> Tensor:
        """Return the value of each of the selected samples, (n,) float64; only a ``NetworkScore`` is asked for it."""
        raise TypeError(f"'{self.name}' is read from logits, by per_sample")


@keyed_as("Accuracy")
@final
@dataclass(frozen=True)
class Accuracy(Score):
    """The fraction of samples whose largest logit is their label's: of all, or of those in some ``classes``.

    A sample with a logit that is nan has the value nan, so that no diverged network passes for a wrong one.
    Raises ``DataError`` when ``classes`` is empty.
    """

    classes: tuple[int, ...] | None = None

    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.classes is not None and len(self.classes) == 0:
            raise DataError("accuracy on no classes; name at least one, or pass None for all samples")

    @property
    def name(self) -> str:
        """One of "accuracy" and "accuracy on classes 3, 5"."""
        if self.classes is None:
            return "accuracy"
        return f"accuracy on classes {', '.join(map(str, self.classes))}"

    @property
    def named_classes(self) -> tuple[int, ...]:
        """The ``classes``."""
        return self.classes or ()

    def selects(self, labels: Tensor) -> Tensor:
        """Return the samples whose label is in ``classes``, a bool mask of shape (n,)."""
        if self.classes is None:
            return super().selects(labels)
        return torch.isin(labels, torch.tensor(self.classes, device=labels.device))

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 if the largest logit is the label's, else 0; ties go to the first class."""
        return _hits(logits, labels)


@keyed_as("CrossEntropy")
@final
@dataclass(frozen=True)
class CrossEntropy(Score):
    """The loss: the negative log-probability of the label under the softmax of the logits, in nats."""

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"
    higher_is_better: ClassVar[bool] = False

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log softmax(logits)[label] of each sample, computed in float64."""
        return functional.cross_entropy(logits.double(), labels, reduction="none")


@keyed_as("Confusion")
@final
@dataclass(frozen=True)
class Confusion(Score):
    """The fraction of the samples of one class whose largest logit is another's: cars taken for cats.

    ``label`` is the class whose samples are scored, ``None`` for those of all classes but ``to``. A sample with a logit
    that is nan has the value nan. Raises ``DataError`` if ``label`` is ``to``: that is an accuracy.
    """

    label: int | None
    to: int

    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.label == self.to:
            raise DataError(
                f"class {self.label} taken for itself is not a confusion; use Accuracy(classes=({self.to},))"
            )

    @property
    def name(self) -> str:
        """One of "class 1 taken for 3" and "others taken for 3"."""
        return f"{'others' if self.label is None else f'class {self.label}'} taken for {self.to}"

    @property
    def named_classes(self) -> tuple[int, ...]:
        """Both classes."""
        return (self.to,) if self.label is None else (self.label, self.to)

    def selects(self, labels: Tensor) -> Tensor:
        """Return the samples of the class, or of all but the other, a bool mask of shape (n,)."""
        return labels != self.to if self.label is None else labels == self.label

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 if the largest logit is the other class's, else 0; ties go to the first class."""
        return _hits(logits, self.to)


@keyed_as("Named")
class Named(Score):
    """A score whose name is a field: a dataclass may declare it anew, as ``name: str = field()``."""

    name: str = ""


@keyed_as("NetworkScore")
class NetworkScore(Score):
    """A number per sample that needs the network: its gradient, its answer to other images.

    It is given the sender, the receiver and the stitched network as modules from raw images ``(n, C, H, W)``, on their
    device, to outputs: frozen, and to be left unchanged. torch's global generators are seeded before, the same for
    all three. A sender that is not a network (clustered noise) has no such score, and a trial with one is refused.
    """

    reads_network: ClassVar[bool] = True

    @abstractmethod
    def of_network(self, network: nn.Module, samples: Samples) -> Tensor:
        """Return the value, float64 of shape (n,), of each of the selected samples."""

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Raise ``TypeError``, because logits are not enough."""
        raise TypeError(f"'{self.name}' is computed from the network, by of_network")


def _hits(logits: Tensor, wanted: Tensor | int) -> Tensor:
    """Return 1 if the largest logit is the wanted class's, else 0; nan if a logit is nan."""
    right = (logits.argmax(dim=1) == wanted).double()
    return right.masked_fill(logits.isnan().any(dim=1), torch.nan)


def estimate(score: Score, values: Tensor, *, seed: int) -> Estimate:
    """Return the score in its unit, from its per-sample values (n,), with its 95 % interval over test samples.

    Raises ``DataError`` when there are no values and ``FitError`` when one is not finite.
    """
    array = _array(values, score.name)
    low, high, method = mean_interval(array, seed=seed)
    if score.unit == "fraction":
        low, high = np.clip((low, high), 0, 1).tolist()
    return Estimate(float(array.mean()), low, high, score.unit, array.size, method)


def estimate_penalty(score: Score, stitched_values: Tensor, receiver_values: Tensor, *, seed: int) -> Estimate | None:
    """Return how much worse the stitched network is than its receiver, with a paired 95 % interval.

    Both give per-sample values (n,) of the same samples in the same order. Positive is worse, in pp if the
    score's unit is a fraction, else in that unit; ``None`` if the score is neither good nor bad. Raises
    ``ValueError`` when the lengths differ, ``DataError`` when there are no values and ``FitError`` when one
    is not finite.
    """
    if score.higher_is_better is None:
        return None
    stitched = _array(stitched_values, f"{score.name} of the stitched network")
    receiver = _array(receiver_values, f"{score.name} of the receiver")
    more, less = (receiver, stitched) if score.higher_is_better else (stitched, receiver)
    low, high, method = paired_interval(more, less, seed=seed)
    scale, unit = (100.0, "pp") if score.unit == "fraction" else (1.0, score.unit)
    value = float((more - less).mean())
    return Estimate(scale * value, scale * low, scale * high, unit, more.size, method)


def _array(values: Tensor, of: str) -> Floats:
    return check_values(values.detach().cpu().numpy(), f"the values of {of}")


@final
@dataclass(frozen=True, repr=False)
class ScoreCard(Mapping[str, Estimate]):
    """One network's scores by name: ``card.accuracy``, ``card["accuracy on classes 3"]``.

    A name that it does not hold raises ``AttributeError`` or ``KeyError`` with those that it does.
    """

    estimates: Mapping[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.estimates:
            raise KeyError(self._say_missing(name))
        return self.estimates[name]

    def __getattr__(self, name: str) -> Estimate:
        if name == "estimates":  # copy and pickle ask it of a card that they have not filled yet
            raise AttributeError(name)
        if name not in self.estimates:
            raise AttributeError(self._say_missing(name))
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *filter(str.isidentifier, self.estimates)]

    def __repr__(self) -> str:
        return f"ScoreCard({', '.join(f'{name}: {value}' for name, value in self.estimates.items())})"

    def _say_missing(self, name: str) -> str:
        return f"no score {name!r}; scores here: {', '.join(map(repr, self.estimates)) or 'none'}"


Values = dict[str, Tensor]


_PARENTS: "WeakKeyDictionary[Activations, tuple[dict[str, Tensor], dict[str, ScoreCard]]]" = WeakKeyDictionary()


def check_scores(
    scores: Sequence[Score], samples: Samples, sender: Network | ClusteredNoise, receiver: Network
) -> None:
    """Raise ``DataError`` if these scores cannot be taken.

    That is so if pairs are broken, if there is no score or two have one name, and if one selects nothing, names a class
    that does not exist, is counted in an unknown unit, or needs a network and the sender is noise.
    """
    if samples.pairing is not None:
        raise DataError(f"the pairs of the score data, {samples.name}, are broken; only fit and validation data may be")
    if not scores:
        raise DataError("a trial needs at least one score, for instance scores=(Accuracy(),)")
    names = [score.name for score in scores]
    for score in scores:
        if names.count(score.name) > 1:
            raise DataError(f"two scores are called '{score.name}'; tables tell scores apart by their names")
        if score.unit not in UNITS:
            raise DataError(f"'{score.name}' has the unit {score.unit!r}; it is one of {', '.join(map(repr, UNITS))}")
        if not score.selects(samples.labels).any():
            raise DataError(
                f"{samples.name} has no sample that '{score.name}' selects, because none has a label that it needs; "
                "score on data that has"
            )
        classes = max(len(samples.classes), receiver.outputs)
        for label in score.named_classes:
            if not 0 <= label < classes:
                raise DataError(f"'{score.name}' names class {label}, and there are {classes}, from 0 to {classes - 1}")
        if score.reads_network and samples.sent is not None:
            raise DataError(
                f"'{score.name}' is computed from a network and the images that all read, and {samples.name} has a "
                "view for each network; leave it out"
            )
        if score.reads_network and isinstance(sender, ClusteredNoise):
            raise DataError(
                f"'{score.name}' is computed from the stitched network, and clustered noise makes none; leave out "
                "controls.clustered_noise"
            )


def compute_values(
    scores: Sequence[Score],
    outputs: Iterable[Tensor],
    samples: Samples,
    network: Callable[[], nn.Module],
    targets: Tensor,
) -> Values:
    """Return the value of every score for every sample it selects, by the score's name.

    ``outputs`` are those of the network for all samples, in parts, of which one at a time is held, unless a score
    compares samples. The network itself, from raw images to outputs, is made if a score needs it; ``targets`` are the
    labels, or what else the outputs are compared with. Raises ``FitError`` if a score does not give a number for each
    sample, or one that it cannot be.
    """
    read = [score for score in scores if not score.reads_network]
    chosen = {score.name: score.selects(samples.labels) for score in scores}
    rows: dict[str, list[Tensor]] = {score.name: [] for score in read}
    sound: list[Tensor] = []  # which samples have finite outputs
    whole: Tensor | None = None
    done = 0
    for part in outputs:
        some = slice(done, done + len(part))
        sound.append(torch.ones(len(part)).bool() if is_finite(part) else part.isfinite().flatten(1).all(1))
        gathered: dict[Hashable, Tensor] = {}
        for score in read:
            here = chosen[score.name]
            if not score.compares_samples:
                if here[some].any() or not here.any():
                    if score.gathered_as not in gathered:
                        gathered[score.gathered_as] = _gather(score, part, targets[some], here[some])
                    rows[score.name].append(gathered[score.gathered_as])
            elif len(part) == len(samples):
                whole = part
            else:
                whole = empty((len(samples), *part.shape[1:]), part.dtype) if whole is None else whole
                fill(whole[some], [part])
        done += len(part)
    if done != len(samples):
        raise FitError(f"{done} rows of outputs cannot be the scores of {len(samples)} samples, {samples.name}")
    found = {}
    for score in scores:
        here = chosen[score.name]
        if score.reads_network:
            found[score.name] = _score_network(score, network(), samples, here)
            continue
        if score.compares_samples:
            assert whole is not None
            values = score.per_sample(*((whole, targets) if here.all() else (whole[here], targets[here])))
        else:
            values = score.settle(torch.cat(rows[score.name]) if len(rows[score.name]) > 1 else rows[score.name][0])
        _check_count(score, values, int(here.sum()))
        finite = values.isfinite()
        if lost := int((~finite & torch.cat(sound)[here]).sum()):
            raise FitError(f"'{score.name}' is not finite for {lost} samples whose outputs are; correct its per_sample")
        _check_fraction(score, values[finite])
        found[score.name] = values
    return found


def _gather(score: Score, outputs: Tensor, targets: Tensor, here: Tensor) -> Tensor:
    """Return a score's rows for those of some samples that it selects."""
    if not here.all():
        outputs, targets = outputs[here], targets[here]
    rows = score.gather(outputs, targets)
    if not isinstance(rows, Tensor) or rows.ndim == 0 or len(rows) != len(outputs):
        _check_count(score, rows, len(outputs))
    return rows


def _score_network(score: Score, network: nn.Module, samples: Samples, chosen: Tensor) -> Tensor:
    """Return a score's values for a network and the chosen samples, as float64 on the CPU."""
    kept = samples if chosen.all() else samples.take(torch.where(chosen)[0], samples.name)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with drawing(device, derive_seed("score", identity(score), samples.fingerprint)):
        values = score.of_network(network, kept)
    _check_count(score, values, len(kept))
    values = values.detach().double().cpu()
    _check_fraction(score, values[values.isfinite()])
    return values


def _check_count(score: Score, values: object, count: int) -> None:
    if not isinstance(values, Tensor) or values.shape != (count,):
        got = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise FitError(f"'{score.name}' gave {got}; it must give a number for each of {count} samples: ({count},)")


def _check_fraction(score: Score, kept: Tensor) -> None:
    if score.unit == "fraction" and not score.pooled and len(kept) and not 0 <= kept.min() <= kept.max() <= 1:
        raise FitError(
            f"'{score.name}' gave {kept.min():.4g} to {kept.max():.4g}; a fraction lies in [0, 1]: name another unit, "
            'for instance "raw"'
        )


def make_card(scores: Sequence[Score], values: Values, *seed: str) -> ScoreCard:
    """Return the scores of these values, with intervals whose random numbers come from the seed."""
    return ScoreCard({s.name: estimate(s, values[s.name], seed=derive_seed(*seed, s.name)) for s in scores})


def score_parent(
    network: Network,
    samples: Samples,
    scores: Sequence[Score],
    cache: Activations,
    targets: Tensor,
    also: Sequence[Score] = (),
) -> tuple[Values, ScoreCard]:
    """Return a network's own values and scores, beside the targets, and the values of some scores ``also``.

    They do not depend on the seam, and so are computed once for each store of activations.
    """
    outputs = cache.output_parts(network, samples)
    whose = network.fingerprint, network.device.type, samples.fingerprint
    key = digest(*whose, identity(list(scores)))
    known, cards = _PARENTS.setdefault(cache, ({}, {}))
    read = {digest(*whose, identity(score)): score for score in (*scores, *also)}
    if missing := {each: score for each, score in read.items() if each not in known}:
        found = compute_values([*missing.values()], outputs, samples, network.whole, targets)
        known |= {each: found[score.name] for each, score in missing.items()}
    values = {score.name: known[each] for each, score in read.items()}
    if key not in cards:
        cards[key] = make_card(scores, values, key, "parent")
    return values, cards[key]

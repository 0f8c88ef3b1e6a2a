"""Score cards: the scores of a network's outputs, each with its interval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from suture.common.errors import DataError, FitError
from suture.common.hashing import identity
from suture.common.seeds import derive_seed, digest
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.data import Samples
from suture.data.noise import ClusteredNoise
from suture.measurement.scores.scores import UNITS, Score, ScoreCard, estimate

Values = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Parent:
    """A network's own scores: the values of its samples, by score, and what they make."""

    values: Values
    card: ScoreCard


_PARENTS: "WeakKeyDictionary[Activations, dict[str, Parent]]" = WeakKeyDictionary()


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
            raise DataError(f"{samples.name} has no sample that '{score.name}' selects; score on data that has")
        classes = max(len(samples.classes), receiver.outputs)
        for label in score.named_classes:
            if not 0 <= label < classes:
                raise DataError(f"'{score.name}' names class {label}, and there are {classes}, from 0 to {classes - 1}")
        if score.reads_network and isinstance(sender, ClusteredNoise):
            raise DataError(
                f"'{score.name}' is computed from the stitched network, and clustered noise makes none; leave out "
                "controls.clustered_noise"
            )


def compute_values(
    scores: Sequence[Score], outputs: Tensor, samples: Samples, network: Callable[[], nn.Module]
) -> Values:
    """Return the value of every score for every sample it selects, by the score's name.

    ``outputs`` are those of the network for all samples; the network itself, from raw images to outputs, is made if
    a score needs it. Raises ``FitError`` if a score does not give a number for each sample.
    """
    found = {}
    for score in scores:
        chosen = score.selects(samples.labels)
        if score.reads_network:
            found[score.name] = _of_network(score, network(), samples, chosen)
        else:
            found[score.name] = score.per_sample(outputs[chosen], samples.labels[chosen])
            _check_values(score, found[score.name], outputs[chosen])
    return found


def _check_values(score: Score, found: object, outputs: Tensor) -> None:
    """Raise ``FitError`` if a score gives no number for each sample, or one that it cannot be."""
    _check_shape(score, found, len(outputs))
    assert isinstance(found, Tensor)
    finite = found.isfinite()
    if lost := int((~finite & outputs.isfinite().all(1)).sum()):
        raise FitError(f"'{score.name}' is not finite for {lost} samples whose outputs are; correct its per_sample")
    kept = found[finite]
    if score.unit == "fraction" and len(kept) and not 0 <= kept.min() <= kept.max() <= 1:
        raise FitError(
            f"'{score.name}' gave {kept.min():.4g} to {kept.max():.4g}; a fraction lies in [0, 1]: name another unit, "
            'for instance "raw"'
        )


def _check_shape(score: Score, found: object, count: int) -> None:
    if not isinstance(found, Tensor) or found.shape != (count,):
        got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise FitError(f"'{score.name}' gave {got}; it must give a number for each of {count} samples: ({count},)")


def make_card(scores: Sequence[Score], found: Mapping[str, Tensor], *seed: str) -> ScoreCard:
    """Return the scores of these values, with intervals whose random numbers come from the seed."""
    named = {score.name: score for score in scores}
    return ScoreCard({n: estimate(named[n], v, seed=derive_seed(*seed, n)) for n, v in found.items()})


def score_parent(network: Network, samples: Samples, scores: Sequence[Score], cache: Activations) -> Parent:
    """Return a network's own scores, which do not depend on the seam: computed once for each store of activations."""
    outputs = cache.outputs(network, samples)
    key = digest(network.fingerprint, network.device.type, samples.fingerprint, identity(list(scores)))
    known = _PARENTS.setdefault(cache, {})
    if key not in known or cache.notes:
        found = compute_values(scores, outputs, samples, network.whole)
        known[key] = Parent(found, make_card(scores, found, key, "parent"))
    return known[key]


def _of_network(score: Score, network: nn.Module, samples: Samples, chosen: Tensor) -> Tensor:
    """Return what a score makes of a network and the chosen samples, as float64 on the CPU."""
    kept = samples if chosen.all() else samples.take(torch.where(chosen)[0], samples.name)
    with _seeded(derive_seed("score", identity(score), samples.fingerprint), network):
        found = score.of_network(network, kept)
    _check_shape(score, found, len(kept))
    return found.detach().double().cpu()


@contextmanager
def _seeded(seed: int, network: nn.Module) -> Iterator[None]:
    """Seed torch's global generators, and restore them afterwards."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed)
        yield

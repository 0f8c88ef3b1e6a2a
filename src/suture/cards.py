"""Score cards: the scores of a network's outputs, each with its interval."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor

from suture.activations import Activations
from suture.data import Samples
from suture.errors import DataError
from suture.identities import identity
from suture.network import Network
from suture.scores import Score, ScoreCard, estimate
from suture.seeds import derive_seed, digest

_PARENTS: "WeakKeyDictionary[Activations, dict[str, ScoreCard]]" = WeakKeyDictionary()


def check_scores(scores: Sequence[Score], samples: Samples) -> None:
    """Raise ``DataError`` where they cannot be scored: broken pairs, no score or two of one name, none selected."""
    if samples.pairing is not None:
        raise DataError(f"the pairs of the score data, {samples.name}, are broken; only fit and validation data may be")
    if not scores:
        raise DataError("a trial needs at least one score, for instance scores=(Accuracy(),)")
    names = [score.name for score in scores]
    for score in scores:
        if names.count(score.name) > 1:
            raise DataError(f"two scores are called '{score.name}'; tables tell scores apart by their names")
        if not score.selects(samples.labels).any():
            raise DataError(f"{samples.name} has no sample that '{score.name}' selects; score on data that has")


def values(scores: Sequence[Score], logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The value of every score for every sample it selects, by the score's name."""
    chosen = {score.name: score.selects(labels) for score in scores}
    return {s.name: s.per_sample(logits[chosen[s.name]], labels[chosen[s.name]]) for s in scores}


def card(scores: Sequence[Score], found: Mapping[str, Tensor], *seed: str) -> ScoreCard:
    """The scores of these values, with intervals whose random numbers come from the seed."""
    named = {score.name: score for score in scores}
    return ScoreCard({n: estimate(named[n], v, seed=derive_seed(*seed, n)) for n, v in found.items()})


def parent_card(network: Network, samples: Samples, scores: Sequence[Score], cache: Activations) -> ScoreCard:
    """A network's own scores, which do not depend on the seam: computed once for each store of activations."""
    outputs = cache.outputs(network, samples)
    key = digest(network.fingerprint, network.device.type, samples.fingerprint, identity(list(scores)))
    known = _PARENTS.setdefault(cache, {})
    if key not in known or cache.notes:
        known[key] = card(scores, values(scores, outputs, samples.labels), key, "parent")
    return known[key]

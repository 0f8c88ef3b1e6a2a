"""What a study takes at a scale, counted: nothing is trained, measured or loaded.

The scale's own networks, untrained, and small images in place of the data go through the study's plan; what it asks
for is counted. Networks of one architecture are built once, whatever they would be trained on.

Times are a rule of thumb, of one thread of the reference machine: ``FIXED`` seconds a trial, and the operations of the
stitch's descent and of scoring through the receiver's layers after the cut, at ``SPEED``. A descent counts three
forward passes an image, for all the steps that its fit may take; those of the default fit grow as the suffix shrinks
(see ``fits.fast``). Take them to be right within a factor of three, and as far too short for networks of very
many narrow layers: a trial of bansal-8's ResNet-164 took fifty times as long.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

from suture.core.network.network import Network
from suture.fits import Descending, Fast, Fit
from suture.fits.recipes import RECIPES
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Base, Later
from suture.studies.base.plans import named
from suture.studies.base.scale import FEW, MANY, SMALL, Name, Scale, entry, stand_in
from suture.studies.base.study import Beside, Study, bases_of
from suture.zoo.base_model import BaseModel
from suture.zoo.build import resolve

FIXED = 3.0  #: seconds of a trial, whatever its networks
SPEED = 1.1e11  #: operations a second: 15 s for a trial of the quarter-width ResNet-18, while the other core is busy

Networks = dict[tuple[str, tuple[int, ...]], Network]


@final
@dataclass(frozen=True)
class Count:
    """What a study takes.

    ``networks`` are numbers of seeds by name, those that others start from among them; ``data`` what stitches are
    fitted and scored on, in words; ``trials`` their numbers by fit, ``beside`` those of further tables by kind.
    ``seconds`` are those of all trials, ``training`` those of the networks where the ledger knows them, else ``None``.
    ``bases`` and ``distinct`` tell what studies share: networks by key with their training's seconds, and trials.
    """

    study: str
    scale: Name
    networks: dict[str, int]
    data: tuple[str, ...]
    trials: dict[str, int]
    beside: dict[str, int]
    seconds: float
    bases: dict[str, float] = field(repr=False)
    distinct: dict[tuple[object, ...], float] = field(repr=False)

    @property
    def training(self) -> float | None:
        """Seconds of one thread that the networks train, at most; known at small scale only."""
        return sum(self.bases.values()) if self.scale == SMALL else None


def count(study: Study, scale: Name, made: Networks | None = None) -> Count:
    """Count what a study takes; ``made`` are networks that were built before, for others to come.

    Raises ``SutureError`` where the study cannot be planned at the scale, as where it needs what is not there.
    """
    made = {} if made is None else made
    asked = Scale(scale, stand_in)
    parts = study.plan(asked)
    bases = list(_all(bases_of(parts)))
    few = scale == SMALL and all(few for _, _, few in asked.asked)
    trials: Counter[str] = Counter()
    distinct: dict[tuple[object, ...], float] = {}
    for part in parts:
        if isinstance(part, Later):
            for trial in part.make(*(_network(base, made) for base in part.bases)):
                trials[_fit(trial.fit)] += 1
                distinct[_identity(part, trial)] = _seconds(trial, (FEW if few else MANY)[1])
    return Count(
        study.id,
        scale,
        dict(Counter(_name(base) for base in bases)),
        tuple(_data(asked)),
        dict(trials),
        dict(Counter(part.kind for part in parts if isinstance(part, Beside))),
        sum(distinct.values()),
        {base.key: _training(base) if scale == SMALL else 0.0 for base in bases},
        distinct,
    )


def _all(bases: Iterable[Base]) -> Iterator[Base]:
    """Networks, and before each those that it starts from; each once."""
    seen: dict[str, Base] = {}
    for base in bases:
        for one in (*_all(base.bases), base):
            seen.setdefault(one.key, one)
    yield from seen.values()


def _name(base: Base) -> str:
    return (base.name or base.source) if isinstance(base, BaseModel) else base.where


def _training(base: Base) -> float:
    """The ledger's time; networks that studies make themselves are small trainings of its networks, and free here."""
    from suture.studies.ledger import LEDGER

    known = {one.name for one in LEDGER}
    return entry(base.name).seconds if isinstance(base, BaseModel) and base.name in known else 0.0


def _data(scale: Scale) -> Iterator[str]:
    """The data that a plan asked for, in words."""
    for name, variants, few in scale.asked:
        words = " ".join([name, *(variant.summary for variant in variants)])
        fitted, scored = FEW if few else MANY
        yield f"{words}: at most {fitted:,} to fit, {scored:,} to score" if scale.name == SMALL else words


def _network(base: Base, made: Networks) -> Network:
    """An untrained network in place of one that is yet to be trained."""
    assert isinstance(base, BaseModel)
    key = (base.source, tuple(base.samples.images.shape[1:]))
    if key not in made:
        built = resolve(base.source)
        network = Network(
            built.model,
            example=base.samples.example,
            name=base.source,
            preprocess=built.preprocess,
            factory=built.factory,
            copy=False,
        )
        network.untrained = lambda seed: network  # type: ignore[method-assign]  # it is, and tracing another takes long
        made[key] = network
    return named(made[key], _name(base))


def _fit(fit: Fit) -> str:
    """A fit in a word or two: the default one, a published one whatever its steps, or its class."""
    if isinstance(fit, Fast):
        return "the default fit"
    for name, recipe in RECIPES.items():
        match fit, recipe:
            case Descending(), Descending() if fit == replace(recipe, steps=fit.steps, check=fit.check):
                return f"{name} ({fit.steps:,} steps)"
    return type(fit).__name__


def _identity(part: Later, trial: Trial) -> tuple[object, ...]:
    """What tells trials apart, of networks that are not there yet; as good as a key, nearly."""
    networks = (*(base.key for base in part.bases), trial.sender.name, trial.receiver.name)
    seam = (trial.sender_cut, trial.receiver_cut, str(trial.family), str(trial.fit), trial.control, trial.seed)
    data = (trial.fit_data.name, trial.score_data.name, tuple(score.name for score in trial.scores))
    return (*networks, *seam, *data)


def _seconds(trial: Trial, scored: int) -> float:
    """The rule of thumb; ``scored`` is the number of score samples."""
    whole = max(cut.flops for cut in trial.receiver.cuts)
    share = 1 - min(trial.receiver.cuts.find(trial.receiver_cut).flops / whole, 1.0)
    return FIXED + whole * (3 * _seen(trial.fit, share) + share * scored) / SPEED


def _seen(fit: Fit, share: float) -> float:
    """Images that a fit sends through a suffix of such a share, in passes through the whole receiver."""
    match fit:
        case Fast():
            return fit.steps * fit.batch * math.sqrt(share)
        case Descending():
            return fit.steps * fit.batch * share
    return 0.0

"""Count the networks and trials of a study at a scale: nothing is trained, measured or loaded.

The scale's own networks, untrained, and small images in place of the data go through the study's plan, and its requests
are counted. Networks of one architecture are built once, whatever their training data. The time of trials is known once
they were measured: the card of a result has their seconds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

from suture import Network
from suture.fits import Converged, Fit, GradientDescent, Quick
from suture.zoo import resolve
from suture_papers.base.plans import rename
from suture_papers.base.scale import FEW, MANY, SMALL, Name, Scale, stand_in
from suture_papers.base.study import Beside, Deferred, Study, bases_of
from suture_papers.networks.base_model import BaseModel
from suture_papers.recipes import RECIPES
from suture_papers.training import TrainingTask

Networks = dict[tuple[str, tuple[int, ...]], Network]


@final
@dataclass(frozen=True)
class Count:
    """The size of a study.

    ``networks`` are numbers of seeds by name, including those that others start from; ``data`` describes the data that
    fit and score stitches; ``trials`` are numbers by fit, ``beside`` those of further tables by kind. ``keys`` show
    which networks studies share.
    """

    study: str
    scale: Name
    networks: dict[str, int]
    data: tuple[str, ...]
    trials: dict[str, int]
    beside: dict[str, int]
    keys: frozenset[str] = field(repr=False)


def count(study: Study, scale: Name, made: Networks | None = None) -> Count:
    """Count the networks and trials of a study; ``made`` keeps the networks that were built, for the next study.

    Raises ``SutureError`` if the study cannot be planned at the scale because data or weights are missing.
    """
    made = {} if made is None else made
    asked = Scale(scale, stand_in)
    parts = study.plan(asked)
    bases = list(_with_starts(bases_of(parts)))
    trials: Counter[str] = Counter()
    for part in parts:
        if isinstance(part, Deferred):
            for trial in part.make(*(_untrained(base, made) for base in part.bases)):
                trials[_name_fit(trial.fit)] += 1
    return Count(
        study.id,
        scale,
        dict(Counter(_name(base) for base in bases)),
        tuple(_describe_data(asked)),
        dict(trials),
        dict(Counter(part.kind for part in parts if isinstance(part, Beside))),
        frozenset(base.key for base in bases),
    )


def _with_starts(bases: Iterable[TrainingTask]) -> Iterator[TrainingTask]:
    """Give networks, and before each those that it starts from; each once."""
    seen: dict[str, TrainingTask] = {}
    for base in bases:
        for one in (*_with_starts(base.bases), base):
            seen.setdefault(one.key, one)
    yield from seen.values()


def _name(base: TrainingTask) -> str:
    return (base.name or base.source) if isinstance(base, BaseModel) else base.where


def _describe_data(scale: Scale) -> Iterator[str]:
    """Describe the data that a plan asked for."""
    for name, variants, few in scale.asked:
        words = " ".join([name, *(variant.summary for variant in variants)])
        fitted, scored = FEW if few else MANY
        yield f"{words}: at most {fitted:,} to fit, {scored:,} to score" if scale.name == SMALL else words


def _untrained(base: TrainingTask, made: Networks) -> Network:
    """Return an untrained network in place of one that is yet to be trained."""
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
            stages=built.stages,
            copy=False,
        )
        network.untrained = lambda seed: network  # type: ignore[method-assign]  # it is, and tracing another takes long
        made[key] = network
    return rename(made[key], _name(base))


def _name_fit(fit: Fit) -> str:
    """Name a fit in a word or two: the default one, a published one whatever its steps, or its class."""
    if isinstance(fit, Converged | Quick):
        return "the default fit"
    for name, recipe in RECIPES.items():
        match fit, recipe:
            case GradientDescent(), GradientDescent() if fit == replace(recipe, steps=fit.steps, check=fit.check):
                return f"{name} ({fit.steps:,} steps)"
    return type(fit).__name__

"""Scales: how much of a paper's experiment is run.

*tiny* takes a second or two: minimal networks of two steps on small images, so that every line of a study runs in the
tests. Its figures mean nothing, and no verdict is computed of them. *small* is real MNIST and CIFAR-10 on two cores:
the networks of the compute ledger (``ledger``), stitches fitted by the default fit on part of the training
images, and the papers' recipes, cut to ``EPOCHS``, on a sample of the same seams. *paper* is the papers' own widths,
steps and recipes, as far as their texts give them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, final

import torch

from suture import Data, Samples, SutureError, load_data
from suture.data.changes import Variant, stack, vary
from suture.fits import Converged, Fit, GradientDescent, Quick
from suture_papers.base.claims import ENOUGH
from suture_papers.ledger import LEDGER, Entry, make_models
from suture_papers.ledger.models import Prepared
from suture_papers.networks.base_model import BaseModel
from suture_papers.recipes import for_epochs
from suture_papers.variants import Subset

TINY, SMALL, PAPER = "tiny", "small", "paper"
SCALES = (TINY, SMALL, PAPER)
EPOCHS = 4  #: of a published fit at small scale
MANY = (10_000, 10_000)  #: fit and score samples at small scale
FEW = (5_000, 5_000)  #: the same for matrices, which have many cells
_LESS = 500  #: how many times fewer samples a subset has at tiny scale

Load = Callable[[str], Data]
Name = Literal["tiny", "small", "paper"]
_D = TypeVar("_D", bound=GradientDescent)

#: The ledger's networks, which are of small scale, at tiny and at the paper's.
_SOURCES = {
    "zoo:resnet,blocks=(2,2,2,2),width=4": ("zoo:resnet,blocks=(2,2,2,2),width=2", "blocks=(2,2,2,2),width=16"),
    "zoo:resnet,blocks=(2,2,2,2),width=8": ("zoo:resnet,blocks=(2,2,2,2),width=3", "blocks=(2,2,2,2),width=32"),
    "zoo:resnet,blocks=(2,2,2,2),width=16": ("zoo:resnet,blocks=(2,2,2,2),width=4", "blocks=(2,2,2,2),width=64"),
    "zoo:resnet,blocks=(2,2,2,2),width=16,classes=2": (
        "zoo:resnet,blocks=(2,2,2,2),width=4,classes=2",
        "blocks=(2,2,2,2),width=64,classes=2",
    ),
    "zoo:resnet,blocks=(2,2,2,2),width=32": ("zoo:resnet,blocks=(2,2,2,2),width=6", "blocks=(2,2,2,2),width=128"),
    "zoo:resnet,blocks=(1,1,1,1),width=16": ("zoo:resnet,blocks=(1,1,1,1),width=4", "blocks=(1,1,1,1),width=64"),
    "zoo:resnet,blocks=(3,4,6,3),width=16": ("zoo:resnet,blocks=(3,2,2,2),width=4", "blocks=(3,4,6,3),width=64"),
    "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7": (
        "zoo:resnet,blocks=(2,2,2,2),width=4,stem=7x7",
        "blocks=(2,2,2,2),width=64,stem=7x7",
    ),
    "zoo:resnet164,width=8": ("zoo:resnet164,width=8,blocks=2", "zoo:resnet164"),
    "zoo:myrtle,width=32": ("zoo:myrtle,width=4", "zoo:myrtle"),
    "zoo:vit,dim=64,depth=6,heads=4": ("zoo:vit,dim=8,depth=2,heads=2", "zoo:vit"),
    "zoo:vgg19,width=16,hidden=256,pool=1": ("zoo:vgg19,width=2,hidden=8,pool=1", "zoo:vgg19,pool=1"),
}
_RECIPES = {
    "fast": "bansal2021",
    "fast-steps": "bansal2021",
    "stepped": "bansal2021",
    "fast-vit": "bansal2021-vit",
    "fast-mnist": "oxford2025",
    "simclr-small": "simclr",
    "oxford-small": "oxford2025",
    "oxford-small-mlp": "oxford2025",
    "oxford-small-retrained": "oxford2025",
    "simple-small": "oxford2025-simple",
    "complex-small": "oxford2025-complex",
    "smith-vgg-small": "smith2024-vgg",
    "smith-vgg-slow": "smith2024-vgg",
}  #: what the ledger's recipes are at the paper's scale


@final
@dataclass(frozen=True, eq=False)
class Scale:
    """The size of an experiment: its networks, the amount of data, and the fit.

    ``load`` gives the data that the ledger names, ``name`` is one of ``SCALES``. A study asks for networks and data by
    the ledger's names, whatever the scale.
    """

    name: Name
    load: Load
    _bases: dict[tuple[str, int], BaseModel] = field(default_factory=dict, repr=False)
    _data: dict[str | tuple[str, tuple[Variant, ...], bool], Data] = field(default_factory=dict, repr=False)
    _prepared: Prepared = field(default_factory=dict, repr=False)

    @property
    def stands_in(self) -> bool:
        """Whether small images stand in for the data: at tiny scale, and if trials are only counted."""
        return self.load is stand_in

    @property
    def asked(self) -> tuple[tuple[str, tuple[Variant, ...], bool], ...]:
        """The requests to ``data`` so far: names, variants, and whether few."""
        return tuple(key for key in self._data if isinstance(key, tuple))

    @property
    def fit(self) -> Fit:
        """The default fit."""
        return Quick(steps=2) if self.name == TINY else Converged()

    def published(self, recipe: _D, whole: bool = False) -> _D:
        """Return a paper's recipe, in as many steps as the scale has; ``whole`` is all of them but at tiny scale."""
        if self.name == TINY:
            return replace(recipe, steps=2, check=2, batch=16)
        return for_epochs(recipe, EPOCHS, MANY[0]) if self.name == SMALL and not whole else recipe

    def seeds(self, *names: str) -> tuple[int, ...]:
        """Return the seeds that the networks of all these names have; the first two at tiny scale.

        At the paper's scale there are at least as many as a claim needs, which papers do not always have.
        """
        held = [find_entry(name).seeds for name in names]
        if self.name == PAPER:
            held = [seeds if len(seeds) >= ENOUGH else tuple(range(seeds[0], seeds[0] + ENOUGH)) for seeds in held]
        both = [seed for seed in held[0] if all(seed in other for other in held)]
        return tuple(both[: 2 if self.name == TINY else None])

    def base(self, name: str, seed: int) -> BaseModel:
        """Return the network of a name in the ledger, and of one of its seeds, yet to be trained."""
        key = (name, seed)
        if key not in self._bases:
            wanted = scale_entry(find_entry(name), self.name)
            variants = _shrink_subsets(wanted.variants, self.stands_in)
            alone = replace(wanted, variants=variants, start=None, seeds=(seed,))
            (made,) = make_models([alone], self.whole, prepared=self._prepared)
            if wanted.start is not None:
                made = replace(made, start=self.base(wanted.start, seed))
            self._bases[key] = _shorten(made) if self.name == TINY else made
        return self._bases[key]

    def whole(self, name: str) -> Data:
        """Return the data of a name, all of it."""
        if name not in self._data:
            self._data[name] = self.load(name)
        return self._data[name]

    def data(self, name: str, *variants: Variant, few: bool = False) -> Data:
        """Return the data that fit and score stitches; ``few`` for matrices, which have many cells."""
        key = (name, variants, few)
        if key not in self._data:
            made = vary(self.whole(name), *_shrink_subsets(variants, self.stands_in))
            fit, score = FEW if few else MANY
            if self.name != SMALL:
                fit, score = len(made.fit), len(made.score)
            made = made.limited(fit=min(fit, len(made.fit)), score=min(score, len(made.score)))  # no plan chooses
            self._data[key] = made
        return self._data[key]


def scale_named(name: str, load: Load | None = None) -> Scale:
    """Return the scale of a name; ``load`` gives the data of ``small`` and ``paper``, from the hub by default.

    Raises ``SutureError`` for no scale.
    """
    match name:
        case "tiny":
            return Scale(name, stand_in)
        case "small" | "paper":
            return Scale(name, load if load is not None else load_data)
    raise SutureError(f"no scale '{name}'; valid: {', '.join(SCALES)}")


def find_entry(name: str) -> Entry:
    """Return the ledger's entry of a name. Raises ``SutureError`` if there is none."""
    found = next((known for known in LEDGER if known.name == name), None)
    if found is None:
        raise SutureError(f"no network '{name}' in the ledger; suture zoo plan lists them")
    return found


def scale_entry(small: Entry, scale: Name) -> Entry:
    """Return an entry of the ledger, which is of small scale, at another."""
    if scale == SMALL:
        return small
    tiny, paper = _SOURCES.get(small.source, (small.source, small.source))
    if scale == TINY:
        return replace(small, source=tiny)
    source = paper if paper.startswith("zoo:") else f"zoo:resnet,{paper}"
    recipe = "bansal2021-myrtle" if small.name == "myrtle" else _RECIPES.get(small.recipe, small.recipe)
    until = None if small.until is None else 10 * small.until
    return replace(small, source=source, recipe=recipe, epochs=None, until=until, deviation="")


# --- tiny -------------------------------------------------------------------------------------------------------------

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def stand_in(name: str) -> Data:
    """Return small images in the shape of a data set of the ledger: scikit-learn's digits, under its classes' names."""
    if "+" in name:
        digits, pictures = (stand_in(part) for part in name.split("+"))
        return stack(digits, pictures)
    data, few = load_data("digits"), {"fit": 120, "validation": 13, "score": 60}
    parts = {role: _reshape(getattr(data, role).first(count), name) for role, count in few.items()}
    return Data(name, parts["fit"], parts["validation"], parts["score"])


def _reshape(samples: Samples, name: str) -> Samples:
    larger = samples.images.repeat_interleave(4, 2).repeat_interleave(4, 3)
    role = samples.name.partition("/")[2]
    if name == "mnist":
        return Samples(f"{name}/{role}", larger[:, :, 2:30, 2:30].contiguous(), samples.labels, samples.classes)
    return Samples(f"{name}/{role}", torch.cat([larger] * 3, dim=1), samples.labels, _CIFAR10)


def _shrink_subsets(variants: Sequence[Variant], less: bool) -> tuple[Variant, ...]:
    """Return the variants, with smaller subsets if all there is is smaller."""
    return tuple(replace(v, n=max(4, v.n // _LESS)) if less and isinstance(v, Subset) else v for v in variants)


def _shorten(model: BaseModel) -> BaseModel:
    """Return the same training in two steps."""
    recipe = replace(model.recipe, steps=2, epochs=None, batch=min(model.recipe.batch, 32), stop=None)
    start = _shorten(model.start) if isinstance(model.start, BaseModel) else model.start
    return replace(model, recipe=recipe, start=start, until=None if model.until is None else 1)

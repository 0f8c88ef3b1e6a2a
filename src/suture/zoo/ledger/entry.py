"""The compute ledger: every base network that the papers' studies need at small scale, each trained once.

Small scale is two cores and an evening: widths, epochs and seeds are reduced until the whole fits into ``HOURS``. Each
reduction is an entry's ``deviation``. What the studies share they share by key: the same network, data, recipe and seed
are one network, whichever study asks for it.
"""

from dataclasses import dataclass, replace
from functools import cache

from suture.data.variants import (
    Half,
    Subset,
    Variant,
    Without,
)
from suture.zoo.building import resolve
from suture.zoo.recipes import RECIPES
from suture.zoo.training import Parts, Recipe

HOURS = 12.0  #: that the whole ledger may take on two cores
CORES = 2

_IMAGES = {"cifar10": 50_000, "mnist": 60_000, "mnist+cifar10": 49_900}  #: to train on


@dataclass(frozen=True)
class Entry:
    """One base network of the ledger, for all its seeds.

    ``source`` is a model string, ``data`` one of ``cifar10``, ``mnist`` and ``mnist+cifar10``, changed by ``variants``;
    ``recipe`` is a name in ``RECIPES``. It begins with the network that the entry ``start`` names, of the same seed, as
    ``parts`` say; ``until`` ends it after that epoch, ``epochs`` are others than the recipe's. ``also`` are other
    variants of the data to score on, ``experiments`` the ids that ask for it, ``deviation`` what differs from a paper.
    """

    name: str
    source: str
    data: str
    recipe: str
    seeds: tuple[int, ...]
    experiments: tuple[str, ...]
    variants: tuple[Variant, ...] = ()
    deviation: str = ""
    start: str | None = None
    parts: Parts = Parts()
    epochs: int | None = None
    until: int | None = None
    also: tuple[tuple[Variant, ...], ...] = ()

    @property
    def settings(self) -> Recipe:
        """The recipe itself, with as many ``epochs`` as are given."""
        recipe = RECIPES[self.recipe]
        return recipe if self.epochs is None else replace(recipe, epochs=self.epochs)

    @property
    def images(self) -> int:
        """How many images it is trained on."""
        count = _IMAGES[self.data]
        for variant in self.variants:
            match variant:
                case Subset(n=n):
                    count = n
                case Half():
                    count //= 2
                case Without(classes=classes):
                    count -= count * len(classes.split("|")) // 10
        return count

    @property
    def steps(self) -> int:
        """The steps of its recipe, all of which it takes unless the loss plateaus before."""
        if self.until is not None:
            return self.until * self.settings.per_epoch(self.images)
        return self.settings.total(self.images)

    @property
    def rate(self) -> float:
        """Images a second on one thread of the reference machine."""
        return _rate(self.source, self.recipe)

    @property
    def seconds(self) -> float:
        """What one seed takes on one thread of the reference machine, at most; nothing for an epoch on the way."""
        if self.until is not None:
            return 0.0
        return self.steps * min(self.settings.batch, self.images) / self.rate

    @property
    def parameters(self) -> int:
        """Of the network."""
        return _parameters(self.source)

    @property
    def bytes(self) -> int:
        """What its seeds take on the disk."""
        return 4 * self.parameters * len(self.seeds)


@cache
def _parameters(source: str) -> int:
    return sum(parameter.numel() for parameter in resolve(source).model.parameters())


#: Images a second that one thread of the reference machine trains on, by network.
_RATES = {
    "zoo:resnet,blocks=(2,2,2,2),width=4": 2200.0,
    "zoo:resnet,blocks=(2,2,2,2),width=8": 1306.0,
    "zoo:resnet,blocks=(2,2,2,2),width=16": 621.0,
    "zoo:resnet,blocks=(2,2,2,2),width=32": 201.0,
    "zoo:resnet,blocks=(1,1,1,1),width=16": 1290.0,
    "zoo:resnet,blocks=(1,1,2,2),width=16": 850.0,
    "zoo:resnet,blocks=(2,2,1,1),width=16": 850.0,
    "zoo:resnet,blocks=(3,4,6,3),width=16": 348.0,
    "zoo:resnet164,width=8": 74.0,
    "zoo:myrtle,width=32": 496.0,
    "zoo:vit,dim=64,depth=6,heads=4": 362.0,
    "zoo:mlp,width=64,depth=9,inputs=3072": 12000.0,
    "zoo:cnn,dense=4": 5000.0,
    "zoo:cnn,image=(28,28),channels=1": 7000.0,
    "zoo:cnn,dense=3,image=(64,32)": 3000.0,
    "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7": 1228.0,
    "zoo:vgg19,width=16,hidden=256,pool=1": 655.0,
}
_TWO_VIEWS = 2  #: SimCLR sees each image twice


def _rate(source: str, recipe: str) -> float:
    return _RATES[source.removesuffix(",classes=2")] / (_TWO_VIEWS if recipe == "simclr-small" else 1)

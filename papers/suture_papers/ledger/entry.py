"""The compute ledger: every base network that the papers' studies need at small scale, each trained once.

Small scale is two cores and a day: widths, epochs and seeds are reduced until the whole fits into ``HOURS``. Each
reduction is an entry's ``deviation``. What the studies share they share by key: the same network, data, recipe and seed
are one network, whichever study asks for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from suture.data.changes import Variant
from suture.zoo import resolve
from suture_papers.networks.recipes import RECIPES
from suture_papers.training import Parts, Recipe
from suture_papers.variants import Half, Subset, Without

HOURS = 18.0  #: that the whole ledger may take on two cores: a day, with the trials

_IMAGES = {"cifar10": 50_000, "mnist": 60_000, "mnist+cifar10": 49_900}  #: to train on


@dataclass(frozen=True)
class Entry:
    """One base network of the ledger, for all its seeds.

    Networks of one architecture and seed begin with the same weights, whatever they are trained on: who compares two
    of them as independent takes different seeds.

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
    def data_name(self) -> str:
        """The name of the training samples."""
        return f"{' '.join([self.data, *(variant.summary for variant in self.variants)])}/training"

    def describes(self, card: Mapping[str, Any]) -> bool:
        """Return whether the card of a trained network is one of this entry's; of its name, whatever the seed."""
        made = (card["source"], card["recipe"], card["parts"], card["until"], card["data"]["name"])
        wanted = (self.source, str(self.settings), str(self.parts), self.until, self.data_name)
        own = card["seed"] in self.seeds or card["name"] == self.name
        return own and made == wanted and bool(card["start"]) == (self.start is not None)

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
            return self.until * self.settings.steps_per_epoch(self.images)
        return self.settings.count_steps(self.images)

    @property
    def rate(self) -> float:
        """Images a second on one thread of the reference machine."""
        return _rate(self)

    @property
    def seconds(self) -> float:
        """The time of one seed on one thread of the reference machine, at most; zero for an epoch on the way."""
        if self.until is not None:
            return 0.0
        return self.steps * min(self.settings.batch, self.images) / self.rate

    @property
    def parameters(self) -> int:
        """How many parameters the network has."""
        return _parameters(self.source)

    @property
    def bytes(self) -> int:
        """The size of its seeds on the disk."""
        return 4 * self.parameters * len(self.seeds)


@cache
def _parameters(source: str) -> int:
    return sum(parameter.numel() for parameter in resolve(source).model.parameters())


#: Images a second that one thread of the reference machine trains on, by network: benchmarks/training_rates.py.
_RATES = {
    "zoo:resnet,blocks=(2,2,2,2),width=4": 1440.0,
    "zoo:resnet,blocks=(2,2,2,2),width=8": 1080.0,
    "zoo:resnet,blocks=(2,2,2,2),width=16": 520.0,
    "zoo:resnet,blocks=(2,2,2,2),width=32": 190.0,
    "zoo:resnet,blocks=(1,1,1,1),width=16": 1040.0,
    "zoo:resnet,blocks=(3,4,6,3),width=16": 300.0,
    "zoo:resnet164,width=8": 113.0,
    "zoo:myrtle,width=32": 415.0,
    "zoo:vit,dim=64,depth=6,heads=4": 290.0,
    "zoo:mlp,width=64,depth=9,inputs=3072": 9500.0,
    "zoo:cnn,dense=4": 4300.0,
    "zoo:cnn,image=(28,28),channels=1": 8000.0,
    "zoo:cnn,dense=3,image=(64,32)": 2640.0,
    "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7": 1080.0,
    "zoo:vgg19,width=16,hidden=256,pool=1": 840.0,
}
#: The same if that differs with the recipe: by network, recipe, and whether it starts from another network.
_OTHER_RATES = {
    ("zoo:resnet,blocks=(2,2,2,2),width=16", "simclr-small", False): 260.0,
    ("zoo:resnet,blocks=(2,2,2,2),width=16", "linear", True): 2100.0,
    ("zoo:resnet,blocks=(2,2,2,2),width=16", "fast-steps", True): 660.0,
    ("zoo:cnn,dense=4", "oxford-small-retrained", True): 7800.0,
    ("zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7", "smith2024", False): 1330.0,
}


def _rate(entry: Entry) -> float:
    other = _OTHER_RATES.get((entry.source, entry.recipe, entry.start is not None))
    return other if other is not None else _RATES[entry.source.removesuffix(",classes=2")]

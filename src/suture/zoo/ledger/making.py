"""From entries of the ledger to base models, and to hours."""

from collections.abc import Callable, Iterable, Sequence

from suture.data import Data
from suture.data.variants import Variant, vary
from suture.zoo.bases import BaseModel
from suture.zoo.ledger.entries import LEDGER
from suture.zoo.ledger.entry import CORES, Entry


def models(entries: Sequence[Entry], load: Callable[[str], Data], device: str = "cpu") -> list[BaseModel]:
    """The base models of some entries, each with all its seeds; ``load`` gives the data by name.

    Those that an entry starts from come with it. Raises ``DataError`` where a name is no entry's.
    """
    by_name = {entry.name: entry for entry in LEDGER}
    prepared: dict[object, Data] = {}

    def data(entry: Entry, variants: tuple[Variant, ...]) -> Data:
        wanted = (entry.data, variants)
        if wanted not in prepared:
            prepared[wanted] = vary(data(entry, ()), *variants) if variants else load(entry.data)
        return prepared[wanted]

    def model(entry: Entry, seed: int) -> BaseModel:
        own = data(entry, entry.variants)
        scored = (own, *(data(entry, variants) for variants in entry.also if variants != entry.variants))
        return BaseModel(
            entry.source,
            own.training,
            entry.settings,
            seed,
            name=entry.name,
            start=None if entry.start is None else model(by_name[entry.start], seed),
            parts=entry.parts,
            until=entry.until,
            scored_on=tuple(each.score for each in scored),
            device=device,
        )

    return [model(entry, seed) for entry in entries for seed in entry.seeds]


def hours(entries: Iterable[Entry]) -> float:
    """What entries take on two cores of the reference machine, two networks at a time."""
    return sum(entry.seconds * len(entry.seeds) for entry in entries) / CORES / 3600

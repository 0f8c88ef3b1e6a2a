"""Make base models of entries of the ledger."""

from collections.abc import Callable, Sequence

from suture import Data, Samples
from suture.data.changes import Variant, vary
from suture_papers.ledger.entries import LEDGER
from suture_papers.ledger.entry import Entry
from suture_papers.networks.base_model import BaseModel

Prepared = dict[tuple[str, tuple[Variant, ...]], tuple[Samples, Samples]]
"""What to train and to score on, by the name of the data and its variants."""


def make_models(
    entries: Sequence[Entry], load: Callable[[str], Data], device: str = "cpu", prepared: Prepared | None = None
) -> list[BaseModel]:
    """Return the base models of some entries, each with all its seeds; ``load`` gives the data by name.

    Those that an entry starts from come with it. Data that were ``prepared`` in another call are not made again.
    """
    by_name = {entry.name: entry for entry in LEDGER}
    loaded: dict[str, Data] = {}
    prepared = {} if prepared is None else prepared

    def samples(entry: Entry, variants: tuple[Variant, ...]) -> tuple[Samples, Samples]:
        """Return the training and test samples, and drop the rest of a variant, which takes as much memory again."""
        if (entry.data, variants) not in prepared:
            if entry.data not in loaded:
                loaded[entry.data] = load(entry.data)
            data = vary(loaded[entry.data], *variants)
            prepared[entry.data, variants] = data.training, data.score
        return prepared[entry.data, variants]

    def model(entry: Entry, seed: int) -> BaseModel:
        training, score = samples(entry, entry.variants)
        others = [samples(entry, variants)[1] for variants in entry.also if variants != entry.variants]
        return BaseModel(
            entry.source,
            training,
            entry.settings,
            seed,
            name=entry.name,
            start=None if entry.start is None else model(by_name[entry.start], seed),
            parts=entry.parts,
            until=entry.until,
            scored_on=(score, *others),
            device=device,
            rounded=True,
        )

    return [model(entry, seed) for entry in entries for seed in entry.seeds]

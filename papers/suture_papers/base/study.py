"""A study: one experiment of a paper, as a plan of trials at a scale, further tables, and its claims."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

import pandas as pd

from suture import Stitched, Trial
from suture_papers.base.cells import TRIALS, Where
from suture_papers.base.claims import Claim, Roles
from suture_papers.base.scale import Scale
from suture_papers.training import TrainingTask

Made = Callable[[Trial], Stitched]
"""What gives the stitched network of a trial that was measured."""


@final
@dataclass(frozen=True, eq=False)
class Deferred:
    """Trials of networks that are yet to be trained: ``make(*networks)`` gives them once the ``bases`` are."""

    bases: tuple[TrainingTask, ...]
    make: Callable[..., Iterable[Trial]]


@final
@dataclass(frozen=True, eq=False)
class Beside:
    """A table of the ``kind``, computed from trained networks beside the trials.

    ``make(stitched, *networks)`` gives the rows, with a column ``network_seed``; ``stitched`` gives the stitched
    network of one of ``trials(*networks)``, which the same study measures before. ``name`` tells it from the others of
    its study. Those trials and the ``settings`` (measures, cuts, data) also decide the rows, so that no table is taken
    for another.
    """

    kind: str
    name: str
    bases: tuple[TrainingTask, ...]
    make: Callable[..., pd.DataFrame]
    settings: tuple[object, ...] = ()
    trials: Callable[..., Sequence[Trial]] = lambda *networks: ()


Part = Deferred | Beside


@final
@dataclass(frozen=True)
class Panel:
    """One panel of a study's figure: a ``column`` of rows, drawn as lines along the cuts, a heat map, or bars.

    ``lines`` are the groups of rows with their names. Lines and bars are means over seeds, with the range of the
    seeds; heat maps have a panel for each group. ``level`` draws the claim's threshold; ``baseline`` the receivers' own
    scores.
    """

    kind: Literal["lines", "map", "bars"]
    column: str
    label: str
    lines: tuple[tuple[str, Where], ...]
    along: Literal["receiver_cut", "sender_cut"] = "receiver_cut"
    level: float | None = None
    baseline: bool = False
    title: str = ""


@final
@dataclass(frozen=True, eq=False)
class Study:
    """One experiment of a paper.

    ``id`` is its row in the list of experiments, ``paper`` the module of its paper; ``question`` is its question, in a
    sentence; ``plan`` makes its parts at a scale; ``panels`` draw the paper's figure; ``deviations`` are the
    differences from the paper at every scale, and ``small`` those at small scale beyond the ledger's networks.
    """

    id: str
    title: str
    question: str
    source: str
    plan: Callable[[Scale], Sequence[Part]]
    claims: tuple[Claim, ...]
    panels: tuple[Panel, ...] = ()
    deviations: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    roles: Roles = Roles()  #: of the claims that say nothing else
    weak: tuple[str, ...] = ()  #: patterns of the networks' names that are meant to be weak on its data
    needs: str = ""  #: what must be had to run it beyond MNIST and CIFAR-10, empty if nothing
    tables: tuple[str, ...] = field(default=(TRIALS,))  #: the kinds of its tables

    def __post_init__(self) -> None:
        said = (claim if claim.roles != Roles() else replace(claim, roles=self.roles) for claim in self.claims)
        object.__setattr__(self, "claims", tuple(said))

    @property
    def paper(self) -> str:
        """The paper, as the first part of its id says."""
        return PAPERS[self.id.partition("-")[0]]


PAPERS = {"bansal": "bansal2021", "hernandez": "hernandez2022", "oxford": "oxford2025", "smith": "smith2024"}


def bases_of(parts: Iterable[Part]) -> tuple[TrainingTask, ...]:
    """Return the networks that parts ask for, each once."""
    return tuple({base.key: base for part in parts for base in part.bases}.values())

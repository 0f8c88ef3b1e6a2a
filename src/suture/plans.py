"""What to measure: plans of trials. Nothing here trains or measures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from suture import controls as control
from suture.controls import Control
from suture.cuts import Cut, shared
from suture.data import Data
from suture.errors import CutError, DataError
from suture.fits import Fit, TaskLoss
from suture.network import Network
from suture.scores import Accuracy, CrossEntropy, Score
from suture.stitches import Stitch
from suture.trial import Trial

At = str | Cut | tuple[str | Cut, str | Cut]
Scores = tuple[Score, ...]

DEFAULT_SCORES: Scores = (Accuracy(), CrossEntropy())


@dataclass(frozen=True)
class Plan(Sequence[Trial]):
    """Trials to be measured, in order; plans add up, and a slice of one is a plan."""

    trials: tuple[Trial, ...]

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> "Plan": ...
    def __getitem__(self, index: int | slice) -> "Trial | Plan":
        return Plan(self.trials[index]) if isinstance(index, slice) else self.trials[index]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def __add__(self, other: "Plan") -> "Plan":
        return Plan(self.trials + other.trials)

    def __repr__(self) -> str:
        kinds = {trial.control or "plain": None for trial in self}
        return f"Plan({len(self)} trials: {', '.join(kinds)})"


def seam(
    sender: Network,
    receiver: Network,
    *,
    at: At,
    data: Data,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan one seam with its controls, for every seed.

    ``at`` is a cut of both networks, or ``(sender cut, receiver cut)``. ``seeds`` is how many (0, 1, …) or which.
    """
    sender_cut, receiver_cut = at if isinstance(at, tuple) else (at, at)
    trials = [
        Trial(
            sender,
            receiver,
            _name(sender_cut),
            _name(receiver_cut),
            data.fit,
            data.validation,
            data.score,
            stitch=stitch,
            fit=fit if fit is not None else TaskLoss(),
            scores=tuple(scores),
            seed=seed,
            network_seed=network_seed,
        )
        for seed in _chosen(seeds)
    ]
    return Plan(tuple(t for trial in trials for t in control.with_controls(trial, tuple(controls))))


def curve(
    sender: Network,
    receiver: Network,
    *,
    data: Data,
    at: str | Cut | Sequence[At] | None = None,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = control.DEFAULT,
    seeds: int | Sequence[int] = 1,
    network_seed: int | None = None,
) -> Plan:
    """Plan the seams at every cut that both networks share, or at those named in ``at``, with controls.

    Raises ``CutError`` where they share none, or none is named.
    """
    cuts: Sequence[At] = shared(sender.cuts, receiver.cuts) if at is None else [at] if isinstance(at, str | Cut) else at
    if not cuts:
        raise CutError(f"at={at} names no cut; leave it out for all cuts that both networks share")
    plan = Plan(())
    for cut in cuts:
        plan += seam(
            sender,
            receiver,
            at=cut,
            data=data,
            stitch=stitch,
            fit=fit,
            scores=scores,
            controls=controls,
            seeds=seeds,
            network_seed=network_seed,
        )
    return plan


def _chosen(seeds: int | Sequence[int]) -> Sequence[int]:
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if not len(chosen):
        raise DataError(f"seeds={seeds} plans no trial; give how many, at least 1, or which")
    return chosen


def _name(cut: str | Cut) -> str:
    return cut.name if isinstance(cut, Cut) else cut

"""How long the rest of a run will take.

Trainings and trials take different times, so each kind has its own mean: of how long the finished ones took, and of how
long the running ones will take at the rate they show. What is left of both, in seconds of work, is divided by how much
work is done in a second, which is more than one second's if several workers or processes share a store.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from suture.runs.store.store import NETWORKS, TRIALS

_KINDS = (TRIALS, NETWORKS)
LOOKED = 10.0  #: seconds between two looks at how far one task is

Share = Callable[[], float | None]  #: how much of a task is done, from 0 to 1, if that is known


class Left(NamedTuple):
    """How long the rest takes, in seconds: ``whole`` says of all, else only of the kinds whose mean is known."""

    seconds: float
    whole: bool


class Running:
    """A task that is being done."""

    def __init__(self, what: str, kind: str, share: Share | None) -> None:
        self.what, self.kind = what, kind
        self.begun = time.monotonic()
        self._share = share
        self._first = self._last = (self.begun, share() if share is not None else None)  # when, and how much

    @property
    def share(self) -> float | None:
        """How much of it is done, looked at every ``LOOKED`` seconds."""
        now = time.monotonic()
        if self._share is not None and now - self._last[0] >= LOOKED:
            self._last = (now, self._share())
            self._first = self._last if self._first[1] is None else self._first
        return self._last[1]

    @property
    def gone(self) -> float:
        """Seconds since it began here."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float | None:
        """Seconds that it needs still, once it has been seen to move."""
        share, (since, first), (now, _) = self.share, self._first, self._last
        if share is None or first is None or share <= first:
            return None
        return (now - since) * (1 - share) / (share - first)


class Eta:
    """What of a run is done and being done."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.begin({})

    def begin(self, to_do: dict[str, int]) -> None:
        """So many of each kind are to be done from now."""
        self.begun = time.monotonic()
        self._to_do = dict.fromkeys(_KINDS, 0) | to_do  # all kinds from the start: a bar reads them in its own thread
        self._took = dict.fromkeys(_KINDS, 0.0)  # seconds of work in those that are finished here
        self._here, self._elsewhere = dict.fromkeys(_KINDS, 0), dict.fromkeys(_KINDS, 0)  # how many are finished
        self.running.clear()

    def more(self, count: int) -> None:
        """So many more trials are to be done."""
        self._to_do[TRIALS] += count

    def working_on(self, what: str, kind: str, share: Share | None) -> None:
        """This one begins."""
        self.running.append(Running(what, kind, share))

    def done(self, what: str, kind: str) -> None:
        """This one is done: here, if it began here, else by another process."""
        self._to_do[kind] -= 1
        task = next((task for task in self.running if (task.what, task.kind) == (what, kind)), None)
        if task is None:
            self._elsewhere[kind] += 1
            return
        self._took[kind] += task.gone
        self._here[kind] += 1
        self.running.remove(task)

    @property
    def gone(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> Left | None:
        """How long the rest takes; ``None`` if that is not known yet."""
        means = {kind: self._mean(kind) for kind in self._to_do}
        known = {kind: mean for kind, mean in means.items() if mean is not None}
        worked = sum(self._took.values()) + sum(task.gone for task in self.running)
        worked += sum(count * known.get(kind, 0.0) for kind, count in self._elsewhere.items())
        rest = sum(self._rest(kind, mean) for kind, mean in known.items())
        whole = all(kind in known for kind, count in self._to_do.items() if count > 0)
        if not worked or not rest:
            return None
        return Left(rest * self.gone / worked, whole)

    def _of(self, kind: str) -> Iterator[Running]:
        return (task for task in self.running if task.kind == kind)

    def _mean(self, kind: str) -> float | None:
        """Seconds that one of a kind takes."""
        took, count = self._took[kind], self._here[kind]
        for task in self._of(kind):
            if (left := task.left) is not None:
                took, count = took + task.gone + left, count + 1
        return took / count if count else None

    def _rest(self, kind: str, mean: float) -> float:
        """Seconds of work that are left in a kind."""
        running = list(self._of(kind))
        begun = [task.left if task.left is not None else max(mean - task.gone, 0.0) for task in running]
        return sum(begun) + max(self._to_do[kind] - len(running), 0) * mean

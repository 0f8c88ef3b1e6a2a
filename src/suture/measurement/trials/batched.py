"""Trials in one go: many small stitches into one suffix, for a device that a single one leaves idle.

Trials that share the receiver, its cut and the data that fits them (``Fast`` must be what does) have their stitches
fitted in lockstep (``suture.fits.lockstep``) and scored in shared passes. Every stitch begins, draws, steps and stops
as it would alone; what it is told is what it would be told alone, but for the rounding of passes with more images.
Whoever fails among others is measured alone, so that a failure is the trial's own.

A score then depends, in its last bits, on who is measured together, so on the CPU, whose scores are the same bit for
bit in any order (rule 8 of the design), no trial has ``company``. On CUDA, scores of one trial agree to ``TOLERANCE``.
"""

import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from suture.common.errors import FrozenError
from suture.common.seeds import digest, undisturbed
from suture.common.sizes import physical_memory
from suture.core.activations.cache import Activations
from suture.core.network.network import Frozen, guard_frozen
from suture.data import Samples
from suture.fits import Fast, FitReport, Problem, Side
from suture.fits.fast import Begun
from suture.fits.lockstep import descend
from suture.fits.suffix import MakeFused
from suture.measurement.scores.outputs import Outputs, together
from suture.measurement.trials.measure import built, measure, measured, problem_of, scoring, seeded
from suture.measurement.trials.trial import Failure, Measurement, Trial

STITCHES = 64  #: fitted in one go, at most
HELD = 0.25  #: the share of the machine's memory that the activations of one go may take
PLACED = 0.25  #: the share of a device's free memory that one tensor may take there
TOLERANCE = 0.005  #: of accuracy, measured alone and among others, on one device


def company(trial: Trial) -> str | None:
    """What trials that are to be measured together have in common; ``None`` for one that is measured alone."""
    return _common(trial) if trial.receiver.device.type == "cuda" else None


def attempted(trial: Trial, work: Callable[[], Measurement]) -> Measurement | Failure:
    """Do the work that measures a trial; where it fails, say why instead of raising."""
    begun = time.perf_counter()
    try:
        return work()
    except Exception as error:  # a user's stitch, fit or score may raise anything
        return failure(trial, error, time.perf_counter() - begun)


def failure(trial: Trial, error: Exception, seconds: float) -> Failure:
    """The failure that an exception which is being handled makes of a trial, after so many seconds."""
    return Failure(trial, f"{type(error).__name__}: {error}", traceback.format_exc(), seconds)


def measure_together(trials: Sequence[Trial], activations: Activations | None = None) -> list[Measurement | Failure]:
    """Measure trials, in one go those that have something in common, also on the CPU; the results in their order.

    Whatever ``measure`` checks and notes is checked and noted here. ``seconds`` are an equal share of those of the go.
    """
    cache = activations if activations is not None else Activations()
    found: dict[int, Measurement] = {}
    for places in _goes(trials):
        results = _in_one_go([trials[place] for place in places], cache)
        found |= {place: result for place, result in zip(places, results, strict=True) if result is not None}
    return [
        found[place] if place in found else attempted(trial, partial(measure, trial, cache))
        for place, trial in enumerate(trials)
    ]


def _common(trial: Trial) -> str | None:
    if not isinstance(trial.fit, Fast):
        return None
    receiver, data = trial.receiver, (trial.fit_data, trial.validation_data)
    return digest(receiver.fingerprint, str(receiver.device), trial.receiver_cut, [s.fingerprint for s in data])


def _goes(trials: Sequence[Trial]) -> Iterator[list[int]]:
    """The places of trials that are measured in one go, two at least."""
    alike: dict[str, list[int]] = {}
    for place, trial in enumerate(trials):
        common = _common(trial)
        if common is not None:
            alike.setdefault(common, []).append(place)
    for places in alike.values():
        some: list[int] = []
        needs: dict[str, int] = {}
        for place in places:
            more = needs | {need.key: need.nbytes for need in trials[place].needs}
            if some and (len(some) == STITCHES or sum(more.values()) > HELD * physical_memory()):
                yield some
                some, more = [], {need.key: need.nbytes for need in trials[place].needs}
            some.append(place)
            needs = more
        yield some


def _in_one_go(trials: Sequence[Trial], cache: Activations) -> list[Measurement | None]:
    """What the trials give, ``None`` for those that are to be measured alone."""
    if len(trials) == 1:
        return [None]
    networks = {id(network): network for trial in trials for network in trial.seam.networks}
    begun = time.perf_counter()
    alone = undisturbed(1 if trials[0].receiver.device.type == "cpu" else None)
    try:
        with alone, seeded(trials[0]), torch.inference_mode(False), guard_frozen(*networks.values()):
            found = _Go(trials[0].receiver.after(trials[0].receiver_cut), trials[0].receiver.device, cache).run(trials)
    except FrozenError:
        return [None] * len(trials)
    seconds = (time.perf_counter() - begun) / len(trials)
    return [replace(found[id(trial)], seconds=seconds) if id(trial) in found else None for trial in trials]


@dataclass(eq=False)
class _Member:
    """A trial on its way, its stitch, and what that is scored through."""

    trial: Trial
    stitch: nn.Module
    suffix: Frozen
    fused: MakeFused | None
    begun: FitReport | Begun
    notes: list[str]


_T = TypeVar("_T")


def _if_it_can(work: Callable[[], _T]) -> list[_T]:
    """What some work gives, or nothing."""
    try:
        return [work()]
    except Exception:  # measured alone, it will say why
        return []


class _Go:
    """Trials that are measured in one go, through one suffix and one way to make it fused."""

    def __init__(self, suffix: Frozen, device: torch.device, cache: Activations) -> None:
        self.suffix, self.device, self.cache = suffix, device, cache
        self.fused: MakeFused | None = None
        self.there: dict[Hashable, Tensor] = {}  #: on the device

    def run(self, trials: Sequence[Trial]) -> dict[int, Measurement]:
        """Measure them; the measurements of those that nothing went wrong with, by the trials' ids."""
        members = [member for trial in trials for member in _if_it_can(partial(self._begin, trial))]
        fitted = self._fitted(members)
        self.there.clear()
        scored = self._scored(fitted)
        self.there.clear()
        found = [made for each in scored for made in _if_it_can(partial(self._measured, *each))]
        return {id(measurement.trial): measurement for measurement in found}

    def _begin(self, trial: Trial) -> _Member:
        assert isinstance(trial.fit, Fast)
        notes: list[str] = []
        with self._noting(notes), seeded(trial):
            stitch = built(trial)
            problem = problem_of(trial, self.cache, stitch)
            if problem.fused is not None:  # a stitch without parameters keeps the receiver's own bits
                problem = self._shared(trial, problem, next(stitch.parameters()).dtype)
            begun = trial.fit.begin(problem, stitch)
        return _Member(trial, stitch, problem.suffix, problem.fused, begun, notes)

    def _shared(self, trial: Trial, problem: Problem, dtype: torch.dtype) -> Problem:
        self.fused = self.fused or problem.fused

        def side(samples: Samples, own: Side) -> Side:
            sent = (trial.sender.fingerprint, trial.sender_cut, samples.fingerprint, dtype)
            wanted = (trial.receiver.fingerprint, trial.receiver_cut, samples.fingerprint, dtype)
            return replace(
                own,
                activations=self._placed(sent, lambda: own.activations),
                labels=own.labels.to(self.device),
                expected=lambda: self._placed(wanted, own.expected),
            )

        fit, validation = side(trial.fit_data, problem.fit), side(trial.validation_data, problem.validation)
        return replace(problem, suffix=self.suffix, fused=self.fused, fit=fit, validation=validation)

    def _fitted(self, members: list[_Member]) -> list[tuple[_Member, FitReport]]:
        descending = [(member, member.begun) for member in members if isinstance(member.begun, Begun)]
        reports = descend([begun for _, begun in descending])
        ended = {id(member): report for (member, _), report in zip(descending, reports, strict=True)}
        found = [(member, ended.get(id(member), member.begun)) for member in members]
        return [(member, report) for member, report in found if isinstance(report, FitReport)]

    def _scored(self, fitted: list[tuple[_Member, FitReport]]) -> list[tuple[_Member, FitReport, Outputs]]:
        ready = []
        for member, report in fitted:
            member.stitch.eval().requires_grad_(False)
            ready += [(member, report, given) for given in _if_it_can(partial(self._given, member))]
        found = together([scoring(m.trial, given, m.stitch, m.suffix, m.fused) for m, _, given in ready])
        return [
            (member, report, outputs)
            for (member, report, _), outputs in zip(ready, found, strict=True)
            if not isinstance(outputs, Exception)
        ]

    def _given(self, member: _Member) -> Tensor:
        """The sender's activations on the score data."""
        trial = member.trial
        key = (trial.sender.fingerprint, trial.sender_cut, trial.score_data.fingerprint)
        with self._noting(member.notes):
            return self._placed(key, lambda: self.cache.at(trial.sender, trial.sender_cut, trial.score_data))

    def _measured(self, member: _Member, report: FitReport, outputs: Outputs) -> Measurement:
        with self._noting(member.notes):
            return measured(member.trial, self.cache, member.stitch, report, outputs)

    @contextmanager
    def _noting(self, notes: list[str]) -> Iterator[None]:
        """Let the cache go on with the notes of one trial, and take down what it adds."""
        self.cache.notes[:] = notes
        yield
        notes[:] = self.cache.notes

    def _placed(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A tensor on the device, once for all, where it finds room there; on the CPU else."""
        if key in self.there:
            return self.there[key]
        tensor = make()
        if self.device.type == "cuda" and tensor.nbytes <= PLACED * torch.cuda.mem_get_info(self.device)[0]:
            self.there[key] = tensor = tensor.to(self.device)
        return tensor

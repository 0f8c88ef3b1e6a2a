"""Trial → measurement: the one place where something is measured.

A trial names everything that decides a number, and nothing else: two networks, a seam, a family of stitches, a fit, the
data in three roles, scores and a seed. Its key is a hash of just that, and every random choice in it is derived from
the key, so that a trial gives the same bits alone or among others, in any order. What makes the stitch is derived from
the part of the key that knows of no score data: not even by its hash does what is scored on reach what is fitted.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn

from suture.activations import Activations, Need
from suture.cards import card, check_scores, parent, values
from suture.data import Samples
from suture.errors import CutError, DataError, FitError, NetworkError
from suture.fits import CurvePoint, Fast, Fit, FitReport, Problem, Side
from suture.fits.suffixes import MakeLean
from suture.identities import identity
from suture.intervals import Estimate
from suture.lean import lean_stitch, lean_suffix
from suture.network import Frozen, Network, frozen
from suture.noise import ClusteredNoise
from suture.scores import Accuracy, CrossEntropy, Score, ScoreCard, penalty
from suture.scoring import LEAST, Outputs, Passing, asking, representation_error, together
from suture.seeds import derive_seed, digest, one_thread
from suture.stitched import Stitched, typed
from suture.stitches import Stitch, stitch_for

VERSION = 5  #: of the measuring code; a change that may change a number changes it, and with it every key
COMPARED = 1024  #: score samples on which the representation error is taken, at most


@dataclass(frozen=True, eq=False)
class Trial:
    """One measurement, described; two trials are equal when their keys are.

    A ``ClusteredNoise`` sender has no cuts: its ``sender_cut`` is empty. ``stitch=None`` takes the family that
    ``stitch_for`` gives for the two shapes. ``control``, ``study`` and ``network_seed`` (the seed of the networks'
    training) are labels for the table and no part of the key.

    Raises ``CutError`` for an unknown cut, ``ShapeError`` where the stitch cannot join the shapes, ``DataError`` where
    the data's classes do not match the receiver's head or the noise's clusters, its images do not suit a network, the
    score data's pairs are broken, or the scores cannot be told apart or select nothing.
    """

    sender: Network | ClusteredNoise
    receiver: Network
    sender_cut: str
    receiver_cut: str
    fit_data: Samples
    validation_data: Samples
    score_data: Samples
    stitch: Stitch | None = None
    fit: Fit = field(default_factory=Fast)
    scores: tuple[Score, ...] = (Accuracy(), CrossEntropy())
    seed: int = 0
    control: str = ""
    study: str = ""
    network_seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sender_cut", _sender_cut(self.sender, self.sender_cut))
        object.__setattr__(self, "receiver_cut", self.receiver.cuts.find(self.receiver_cut).name)
        self.family.check(*self.shapes)
        for samples in (self.fit_data, self.validation_data, self.score_data):
            _check_data(self, samples)
        if isinstance(self.sender, ClusteredNoise):
            self.sender.check_fit(self.fit_data)
        check_scores(self.scores, self.score_data, self.sender)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what the sender sends and of the receiver's cut, without the batch."""
        sender = self.sender
        sent = sender.shape if isinstance(sender, ClusteredNoise) else sender.cuts.find(self.sender_cut).shape
        return sent, self.receiver.cuts.find(self.receiver_cut).shape

    @property
    def networks(self) -> tuple[Network, ...]:
        """The frozen networks: sender, unless that is noise, and receiver."""
        return (self.receiver,) if isinstance(self.sender, ClusteredNoise) else (self.sender, self.receiver)

    @property
    def family(self) -> Stitch:
        """The family of stitches that is used."""
        return self.stitch if self.stitch is not None else stitch_for(*self.shapes)

    @property
    def where(self) -> str:
        """The seam in words."""
        same = self.sender_cut in ("", self.receiver_cut)
        cuts = self.receiver_cut if same else f"{self.sender_cut} → {self.receiver_cut}"
        sender = self.sender.name or "noise"
        return f"{sender} → {self.receiver.name} at {cuts}" + (f" ({self.control})" if self.control else "")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The activations that it asks for: what can be computed before it, and shared with other trials."""
        sender, receiver, score = self.sender, self.receiver, self.score_data
        sent = 0 if isinstance(sender, ClusteredNoise) else sender.cuts.find(self.sender_cut).index
        own = receiver.cuts.find(self.receiver_cut).index
        fitted = (self.fit_data, self.validation_data)
        needs = [Need(sender, samples, sent) for samples in (*fitted, score)]
        read = (*(_read(self, samples) for samples in fitted if self.fit.reads_receiver), self.compared)
        needs += [Need(receiver, samples, own) for samples in read]
        needs.append(Need(receiver, score, len(receiver.cuts) + 1))
        if _solves_task(sender, score):
            needs.append(Need(sender, score, len(sender.cuts) + 1))
        return tuple({need.key: need for need in needs}.values())

    @cached_property
    def compared(self) -> Samples:
        """The score samples on which the representation error is taken: the first ``COMPARED``."""
        score = self.score_data
        return score if len(score) <= COMPARED else score.first(COMPARED)

    @cached_property
    def fit_key(self) -> str:
        """A hash of everything that can change the stitch; what it is scored on and by is not among it."""
        networks = [self.sender.fingerprint, self.receiver.fingerprint]
        seam = [self.sender_cut, self.receiver_cut]
        data = [self.fit_data.fingerprint, self.validation_data.fingerprint]
        return digest(VERSION, networks, seam, identity(self.family), identity(self.fit), data, self.seed)

    @cached_property
    def key(self) -> str:
        """A hash of everything that can change the numbers."""
        return digest(self.fit_key, self.score_data.fingerprint, identity(self.scores))[:20]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Trial({self.where}, seed {self.seed}, {self.key})"


def _sender_cut(sender: Network | ClusteredNoise, cut: str) -> str:
    if isinstance(sender, Network):
        return sender.cuts.find(cut).name
    if cut:
        raise CutError(f"no cut '{cut}' in clustered noise, which has none; leave it empty, sender_cut=''")
    return cut


def _check_data(trial: Trial, samples: Samples) -> None:
    if trial.receiver.outputs != len(samples.classes):
        raise DataError(
            f"{samples.name} has {len(samples.classes)} classes, but the head of the receiver {trial.receiver.name} "
            f"has {trial.receiver.outputs} outputs; build or load it with {len(samples.classes)} outputs"
        )
    for network in trial.networks:
        network.check_images(samples.example, samples.name)
    if isinstance(trial.sender, ClusteredNoise):
        trial.sender.check(samples)


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a trial gave.

    ``sender``, ``receiver`` and ``scores`` (the stitched network's) hold an ``Estimate`` by score name; the sender's is
    empty where its head does not match the classes, or it is noise. ``penalties`` are in pp where the unit is a
    fraction, else in the unit itself, positive is worse, ``None`` for scores that are neither good nor bad.
    ``representation_error`` is Σ‖stitch(sender) − receiver's own‖² / Σ‖receiver's own − its mean‖² over the first
    ``COMPARED`` score samples: 0 is a copy, 1 no better than the mean. ``seconds`` of wall time. ``notes`` say what
    went otherwise than it should (memory that ran out, a lean suffix that would not do), which may have changed the
    last bits.
    """

    trial: Trial
    sender: ScoreCard
    receiver: ScoreCard
    scores: ScoreCard
    penalties: dict[str, Estimate | None]
    representation_error: float
    steps: int
    converged: bool
    curve: tuple[CurvePoint, ...]
    seconds: float
    stitch: nn.Module
    notes: tuple[str, ...] = ()
    controls: "tuple[Measurement | Failure, ...]" = ()

    @property
    def penalty(self) -> Estimate | None:
        """The penalty of the first score."""
        return self.penalties[self.trial.scores[0].name]

    @cached_property
    def stitched(self) -> Stitched:
        """The stitched network: raw images ``(n, C, H, W)`` to the receiver's outputs.

        Raises ``NetworkError`` where the sender is noise.
        """
        return _joined(self.trial, self.stitch)

    def save(self, folder: str | Path) -> Path:
        """Write the stitched network to a folder, for ``load_stitched``, with what was measured; gives the folder.

        Raises ``OutputError`` where that cannot be done, ``NetworkError`` where the sender is noise.
        """
        return self.stitched.save(folder, self.kept_beside)

    @property
    def kept_beside(self) -> dict[str, object]:
        """What is kept beside the stitch, as plain values."""
        scores = {
            name: {"value": e.value, "low": e.low, "high": e.high, "unit": e.unit} for name, e in self.scores.items()
        }
        record = {"trial": self.trial.key, "fit": str(self.trial.fit), "seed": self.trial.seed, "scores": scores}
        return record | {"representation_error": self.representation_error}

    def __repr__(self) -> str:
        first = self.trial.scores[0].name
        lines = [
            self.trial.where,
            f"  stitched {first}  {self.scores[first]}",
            f"  receiver {first}  {self.receiver[first]}",
            f"  penalty  {self.penalty}",
            f"  {self.trial.family} by {self.trial.fit}, representation error {self.representation_error:.3f}",
        ]
        lines += [f"  control: {control.summary}" for control in self.controls]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line: the control's name or the seam, and the stitched network's first score."""
        return f"{self.trial.control or self.trial.where}  {self.scores[self.trial.scores[0].name]}"


@dataclass(frozen=True, eq=False)
class Failure:
    """A trial that could not be measured, and why."""

    trial: Trial
    error: str
    traceback: str
    seconds: float

    @property
    def summary(self) -> str:
        """One line: the control's name or the seam, and the error."""
        return f"{self.trial.control or self.trial.where}  failed: {self.error}"


def measure(trial: Trial, activations: Activations | None = None) -> Measurement:
    """Measure one trial, with one thread, reusing cached activations.

    Raises ``FitError`` where activations or the loss are not finite, ``FrozenError`` where a network changed.
    """
    cache = activations if activations is not None else Activations()
    cache.notes.clear()
    begun = time.perf_counter()
    with one_thread(), seeded(trial), torch.inference_mode(False), frozen(*trial.networks):
        stitch = trial.family.build(*trial.shapes).to(trial.receiver.device)
        problem = problem_of(trial, cache, stitch)
        report = trial.fit.fit(problem, stitch)
        stitch.eval().requires_grad_(False)
        found = _run(trial, cache, stitch, problem.lean)
        measurement = measured(trial, cache, stitch, report, found)
    return replace(measurement, seconds=time.perf_counter() - begun)


def measured(trial: Trial, cache: Activations, stitch: nn.Module, report: FitReport, found: Outputs) -> Measurement:
    """The measurement that a fitted stitch, and the outputs found with it, make; its ``seconds`` are 0."""
    logits, notes = found
    error = _error(trial, cache, stitch)
    score = trial.score_data
    receiver = parent(trial.receiver, score, trial.scores, cache)
    stitched = values(trial.scores, logits, score, partial(_joined, trial, stitch))
    sender = trial.sender if _solves_task(trial.sender, score) else None
    seed: Callable[..., int] = lambda *what: derive_seed(trial.key, *what)  # noqa: E731
    return Measurement(
        trial=trial,
        sender=ScoreCard({}) if sender is None else parent(sender, score, trial.scores, cache).card,
        receiver=receiver.card,
        scores=card(trial.scores, stitched, trial.key, "stitched"),
        penalties={
            s.name: penalty(s, stitched[s.name], receiver.values[s.name], seed=seed(s.name, "penalty"))
            for s in trial.scores
        },
        representation_error=error,
        steps=report.steps,
        converged=report.converged,
        curve=report.curve,
        seconds=0.0,
        stitch=stitch,
        notes=(*cache.notes, *report.notes, *([f"kept {report.kept}"] if report.kept else []), *notes),
    )


def _joined(trial: Trial, stitch: nn.Module) -> Stitched:
    if isinstance(trial.sender, ClusteredNoise):
        raise NetworkError(
            f"{trial.where} has no stitched network, since its sender is no network; its parts are .stitch and "
            f"trial.receiver.after('{trial.receiver_cut}')"
        )
    return Stitched(trial.sender, trial.receiver, trial.sender_cut, trial.receiver_cut, stitch, trial.family)


@contextmanager
def seeded(trial: Trial) -> Iterator[None]:
    """Seed torch's global generators, from which stitches draw, and restore them afterwards."""
    device = trial.receiver.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(derive_seed(trial.fit_key, "stitch"))
        yield


def problem_of(trial: Trial, cache: Activations, stitch: nn.Module) -> Problem:
    """What the fit of a trial is given, for a stitch that was just built."""
    return Problem(
        family=trial.family,
        suffix=trial.receiver.after(trial.receiver_cut),
        fit=_side(trial, cache, trial.fit_data, stitch),
        validation=_side(trial, cache, trial.validation_data, stitch),
        seed=derive_seed(trial.fit_key, "fit"),
        where=trial.where,
        share=_share(trial),
        lean=_lean(trial, stitch),
    )


def _share(trial: Trial) -> float:
    """The share of the receiver's operations that lie after its cut; its head is left out of account."""
    cuts = trial.receiver.cuts
    whole = list(cuts)[-1].flops
    return 1 - cuts.find(trial.receiver_cut).flops / whole if whole else 1.0


def _lean(trial: Trial, stitch: nn.Module) -> MakeLean | None:
    """What makes the receiver's lean suffix; ``None`` for a stitch without parameters: the receiver's bits are kept."""
    if next(stitch.parameters(), None) is None:
        return None
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    return lru_cache(partial(lean_suffix, trial.receiver, cut))


def _side(trial: Trial, cache: Activations, samples: Samples, stitch: nn.Module) -> Side:
    def expected() -> Tensor:
        own = cache.at(trial.receiver, trial.receiver_cut, _read(trial, samples))
        return typed(own if samples.pairing is None else own[samples.pairing], stitch)

    def outputs() -> Tensor:
        own = cache.outputs(trial.receiver, samples)
        return own if samples.pairing is None else own[samples.pairing]

    sent = cache.at(trial.sender, trial.sender_cut, samples)
    return Side(typed(sent, stitch), samples.paired_labels, expected, outputs)


def _read(trial: Trial, samples: Samples) -> Samples:
    """The samples of which a fit reads the receiver's own activations."""
    most = trial.fit.reads(trial.shapes[1])
    return samples if samples.pairing is not None or len(samples) <= most else samples.first(int(most))


def _solves_task(sender: Network | ClusteredNoise, samples: Samples) -> TypeGuard[Network]:
    return isinstance(sender, Network) and sender.outputs == len(samples.classes)


def _run(trial: Trial, cache: Activations, stitch: nn.Module, lean: MakeLean | None) -> Outputs:
    """The stitched network's outputs on the score data, and what went otherwise than it should."""
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)
    (found,) = together([scoring(trial, given, stitch, trial.receiver.after(trial.receiver_cut), lean)])
    if isinstance(found, Exception):
        raise found
    return found


def scoring(trial: Trial, given: Tensor, stitch: nn.Module, suffix: Frozen, lean: MakeLean | None) -> Passing[Outputs]:
    """Find the stitched network's outputs, asking for the passes; ``given`` are the sender's activations."""

    many = len(given) >= LEAST and given.ndim == 4
    folded = lean_stitch(stitch) if many else stitch

    def represented(chosen: Tensor, by: nn.Module = stitch) -> Tensor:
        sent = given[chosen]  # a copy, which a stitch may write into
        return _represented(trial, by, sent.contiguous(memory_format=torch.channels_last) if many else sent)

    coarse = all(score.coarse for score in trial.scores)
    found, notes = yield from asking(suffix, lean, represented, len(given), coarse, partial(represented, by=folded))
    if not found.isfinite().all():
        raise FitError(f"the outputs of the stitched network {trial.where} are not finite")
    return found, notes


def _represented(trial: Trial, stitch: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = stitch(typed(given, stitch).to(trial.receiver.device))
    return out


def _error(trial: Trial, cache: Activations, stitch: nn.Module) -> float:
    """The stitched network's representation error, on the samples that are compared."""
    compared = trial.compared
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)[: len(compared)]
    own = cache.at(trial.receiver, trial.receiver_cut, compared).to(trial.receiver.device)
    return representation_error(lambda part: _represented(trial, stitch, part), given, own)

"""A trial and its result: a measurement or a failure.

A trial names everything that decides a number, and nothing else: the seam of two networks, a family of stitches, a fit,
the data in three roles, scores and a seed. Curves, matrices, controls and studies only make trials; ``measure`` turns a
trial into a ``Measurement``; runners, stores and tables pass both on.

Three hashes identify a trial:

- ``fit_description``: everything that decides the stitch. It does not contain the score data, so these cannot influence
  the fit, not even through a hash. The seeds of the fit derive from ``drawn_as``: the same but for how long a fit may
  go on, so that a deepened one draws the same batches.
- ``description``: everything that decides the numbers. The seeds of the scores' intervals derive from it. - ``key``:
the description and the versions of the parts that it uses (``versions``), under which a result is stored. After a new
version of a part, the trials that used it are measured again, with the same random choices.

So a trial gives the same bits alone or among others, in any order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from suture.common.errors import DataError, FitError, NetworkError, ShapeError
from suture.common.hashing import identity
from suture.common.html import to_html
from suture.common.seeds import digest
from suture.common.validation import check_kind, check_whole
from suture.core.activations.cache import Need
from suture.core.network.network import Network
from suture.core.plain import without_norms
from suture.core.stitched import Seam, Stitched, check_cut_for_views, check_tokens
from suture.core.stitches import PooledLinear, Stitch, stitch_for
from suture.data import Samples
from suture.data.noise import ClusteredNoise
from suture.data.tasks import Classification, Task
from suture.fits import Converged, CurvePoint, Fit
from suture.fits.base import Gained
from suture.measurement.scores.alone import find_doubts
from suture.measurement.scores.in_distribution import REFERENCE
from suture.measurement.scores.intervals import Estimate
from suture.measurement.scores.outcomes import Outcomes
from suture.measurement.scores.pooled import default_scores
from suture.measurement.scores.scores import Score, ScoreCard, check_scores
from suture.measurement.trials.versions import spell_versions, versions_of

_LISTED = 12  #: classes that a message names, at most
COMPARED = 1024  #: score samples on which the representation error is taken, at most


@dataclass(frozen=True, eq=False)
class Trial:
    """One measurement, described; two trials are equal if their keys are.

    The fit data train the stitch, the validation data stop and choose, the score data score. ``stitch=None`` takes the
    family that ``stitch_for`` gives for the two shapes. Four are labels for the table and not part of the key:
    ``control``, ``study``, ``plan`` (``curve``, ``matrix`` or ``trait``) and ``network_seed``, the seed of the
    networks' training. Nor is ``judged_on`` part of it: the samples on which the networks are judged alone, before
    anything is concluded. No score depends on them. By default they are the score data.

    Of samples with two views each network reads its own. The stitch then joins one vector of a sample to another, and
    ``stitch=None`` is ``PooledLinear`` unless the sender's cut has a vector already.

    Raises ``ShapeError`` if the stitch cannot join the shapes, and ``DataError`` if the data's classes do not match the
    receiver's head or the noise's clusters, the images do not suit a network, the pairs of the score data are broken,
    or two scores have one name or one selects no sample. Raises ``NetworkError`` if both networks are to read the same
    texts in tokens of their own, and ``CutError`` if each reads its own view and a sample is not one vector at the
    receiver's cut.
    """

    seam: Seam
    fit_data: Samples
    validation_data: Samples
    score_data: Samples
    stitch: Stitch | None = None
    fit: Fit = field(default_factory=Converged)
    scores: tuple[Score, ...] = None  # type: ignore[assignment]  # by default those of the data's task
    seed: int = 0
    control: str = ""
    study: str = ""
    network_seed: int | None = None
    plan: str = ""
    judged_on: Samples | None = None

    def __post_init__(self) -> None:
        # Settings of the wrong kind are refused now, because else they would show only when the trial is measured.
        check_kind("seam", self.seam, Seam, "a seam: Seam.at(sender, receiver, cut)", NetworkError)
        check_kind("stitch", self.stitch, Stitch | None, "a family of stitches such as Conv(), or None", ShapeError)
        check_kind("fit", self.fit, Fit, "a fit such as Converged()", FitError)
        if self.scores is None:
            object.__setattr__(self, "scores", default_scores(self.task))
        for score in self.scores:
            check_kind("one of scores", score, Score, "scores such as Accuracy()")
        object.__setattr__(self, "seed", check_whole("seed", self.seed))
        if self.network_seed is not None:
            object.__setattr__(self, "network_seed", check_whole("network_seed", self.network_seed))
        check_kind("judged_on", self.judged_on, Samples | None, "samples without the trigger, such as data.score")
        roles = dict.fromkeys((self.fit_data, self.validation_data, self.score_data, self.judged))
        _check_views(self, *roles)
        self.family.check(*self.seam.shapes)
        for samples in roles:
            _check_data(self, samples)
        object.__setattr__(self, "scores", tuple(score.for_task(self.task) for score in self.scores))
        if isinstance(self.sender, ClusteredNoise):
            self.sender.check_fit(self.fit_data)
        self.fit.check_task(self.task)
        check_scores(self.scores, self.score_data, self.sender, self.receiver)

    @property
    def has_views(self) -> bool:
        """Whether each network reads its own view of a sample."""
        return self.score_data.sent is not None

    @property
    def sender(self) -> Network | ClusteredNoise:
        """The seam's sender."""
        return self.seam.sender

    @property
    def receiver(self) -> Network:
        """The seam's receiver."""
        return self.seam.receiver

    @property
    def task(self) -> Task:
        """The task of the data: the meaning of outputs and labels."""
        return self.fit_data.task

    @property
    def judged(self) -> Samples:
        """The samples on which its networks are judged alone."""
        return self.judged_on if self.judged_on is not None else self.score_data

    @cached_property
    def guess(self) -> float | None:
        """The first default score, on ``judged``, of who knows the targets of the fit data and no input."""
        return self.task.guess(self.receiver.output_shape, self.judged.labels, self.fit_data.labels)

    @property
    def sender_cut(self) -> str:
        """The name of the sender's cut, empty for noise."""
        return self.seam.sender_cut

    @property
    def receiver_cut(self) -> str:
        """The name of the receiver's cut, or ``OUTPUT``."""
        return self.seam.receiver_cut

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of its rows, whatever its result, and the expected accuracy of its networks."""
        data = self.score_data.name
        sides = {"sender": self.sender, "receiver": self.receiver}
        known = {role: side.expect_on(self.judged.name) for role, side in sides.items() if isinstance(side, Network)}
        return {
            "study": self.study,
            **self.seam.labels,
            "stitch": str(self.family),
            "fit": str(self.fit),
            "control": self.control,
            "network_seed": self.network_seed,
            "seed": self.seed,
            "fit_data": self.fit_data.name,
            "score_data": data,
            "task": self.task.name,
            "plan": self.plan,
            "versions": spell_versions(self.versions),
            **{f"{role}_expected": value for role, value in known.items() if value is not None},
            **({"judged_on": self.judged_on.name} if self.judged_on is not None else {}),
        }

    def to(self, device: str | torch.device) -> "Trial":
        """Return the same trial, under the same key, with its networks on a device.

        Raises ``DeviceError`` if the device is not there or has no room, and the errors of ``Network.to``.
        """
        seam = self.seam.to(device)
        if seam == self.seam:
            return self
        stitch: Any = self.stitch  # a family may hold a network, as ``Layers`` does
        held = {name: value for name, value in vars(stitch).items() if isinstance(value, Network)} if stitch else {}
        if held:
            stitch = replace(stitch, **{name: network.to(device) for name, network in held.items()})
        return replace(self, seam=seam, stitch=stitch)

    @property
    def device(self) -> torch.device:
        """Where it is measured: where its networks are."""
        return self.receiver.device

    @cached_property
    def family(self) -> Stitch:
        """The family of stitches that is used."""
        if self.stitch is None and self.has_views and len(self.seam.shapes[0]) > 1:
            return PooledLinear()
        return self.stitch if self.stitch is not None else stitch_for(*self.seam.shapes)

    @property
    def where(self) -> str:
        """The seam in words, with the control."""
        return str(self.seam) + (f" ({self.control})" if self.control else "")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The activations that it asks for, which can be computed beforehand and shared with other trials."""
        sender, receiver, score = self.sender, self.receiver, self.score_data
        own = receiver.cuts.find(self.receiver_cut).index
        fitted = (self.fit_data, self.validation_data)
        needs: list[Need] = []
        if isinstance(sender, Network):
            sent = sender.cuts.find(self.sender_cut).index
            needs += [Need(sender, samples.for_sender, sent) for samples in (*fitted, score)]
        read = [self.select_read(samples) for samples in fitted if self.count_read(samples)]
        judged = (self.reference,) if own <= len(receiver.cuts) else ()
        needs += [Need(receiver, samples, own) for samples in (*read, self.compared, *judged)]
        if self.task.copies:  # then the receiver's are targets, and kept however large they are
            needs += [Need(receiver, samples, len(receiver.cuts) + 1) for samples in (*fitted, score)]
        needs += [need for need in self._outputs if not need.is_streamed]
        return tuple({need.key: need for need in needs}.values())

    @property
    def streamed(self) -> tuple[Need, ...]:
        """The outputs of networks alone that are scored as they are computed, because they are too large to keep."""
        return tuple({need.key: need for need in self._outputs if need.is_streamed}.values())

    @property
    def _outputs(self) -> list[Need]:
        networks = (self.receiver,) if self.scored_sender is None else (self.receiver, self.scored_sender)
        views = [(samples, samples.for_sender) for samples in (self.score_data, self.judged)]
        return [Need(network, view[i], len(network.cuts) + 1) for i, network in enumerate(networks) for view in views]

    def count_read(self, samples: Samples) -> int:
        """Return the number of samples, from the first on, whose receiver activations the fit reads."""
        return int(min(len(samples), self.fit.reads(self.seam.shapes[1])))

    def select_read(self, samples: Samples) -> Samples:
        """Return the samples whose receiver activations the fit reads; with broken pairs these may be any, so all."""
        count = self.count_read(samples)
        return samples if samples.pairing is not None or count == len(samples) else samples.first(count)

    @property
    def scored_sender(self) -> Network | None:
        """The sender, if it has scores of its own: if it is a network whose outputs suit the labels."""
        sender = self.sender
        own = self.score_data.for_sender
        scored = isinstance(sender, Network) and not self.task.copies and not _misfit(sender, own)
        return sender if scored else None  # type: ignore[return-value]

    @cached_property
    def compared(self) -> Samples:
        """The score samples on which the representation error is taken: the first ``COMPARED``."""
        score = self.score_data
        return score if len(score) <= COMPARED else score.first(COMPARED)

    @cached_property
    def reference(self) -> Samples:
        """The training samples whose first ``REFERENCE`` define the receiver's own distribution at its cut.

        They are of the validation data, or of the fit data if those are fewer; as many as the fit reads anyway.
        """
        samples = self.validation_data if len(self.validation_data) >= REFERENCE else self.fit_data
        count = min(REFERENCE, len(samples))
        if self.count_read(samples) >= count:
            return self.select_read(samples)
        return replace(samples, pairing=None).first(count)

    @cached_property
    def fit_description(self) -> str:
        """A hash of everything that decides the stitch, and of nothing by which or on which it is scored."""
        return self._describe_fit(self.fit)

    @cached_property
    def drawn_as(self) -> str:
        """The same, but for how long the fit may go on: a hash from which the seeds of the fit derive."""
        return self._describe_fit(self.fit.drawn_as)

    def _describe_fit(self, fit: Fit) -> str:
        networks = [self.sender.fingerprint, self.receiver.fingerprint]
        seam = [self.sender_cut, self.receiver_cut]
        data = [self.fit_data.fingerprint, self.validation_data.fingerprint]
        return digest(networks, seam, identity(self.family), identity(fit), data, self.seed)

    @cached_property
    def description(self) -> str:
        """A hash of everything that decides the numbers, except the versions of the code."""
        return digest(self.fit_description, self.score_data.fingerprint, identity(self.scores))

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the parts that it uses, by name: the fit, the family, the scores, the cuts …"""
        return versions_of(self.fit, self.family, self.scores, self.task, self.sender)

    @cached_property
    def key(self) -> str:
        """A hash of the description and of the versions of its parts."""
        return digest(list(self.versions.items()), self.description)[:20]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Trial({self.where}, seed {self.seed}, {self.key})"


@dataclass(frozen=True, eq=False)
class Measurement:
    """The result of a trial.

    ``sender``, ``receiver`` and ``scores`` (the stitched network's) hold an ``Estimate`` by score name; the sender's is
    empty if its head does not match the classes, or it is noise. ``penalties`` are in pp if the unit is a fraction,
    else in the unit itself; positive is worse, and ``None`` stands for scores that are neither good nor bad.
    ``representation_error`` is Σ‖stitch(sender) − receiver's own‖² / Σ‖receiver's own − its mean‖² over the first
    ``COMPARED`` score samples: 0 is a copy, 1 no better than the mean. ``apart`` is by how much, as an AUROC, what the
    stitch gives is told apart from the receiver's own on the same samples (``scores.in_distribution``). ``converged``
    is ``None`` if the fit cannot say. ``gained`` is what the last doubling of its work gained, ``None`` if it does
    not say; ``start`` says where a descent began, ``validation_loss`` is that of
    what it kept, nan if it did not look. ``outcomes`` are those of every scored sample. ``alone`` says how well
    sender and receiver do by themselves, and ``warnings`` why they are not to be trusted. ``seconds`` are of wall
    time. ``notes`` say what did not go as planned and may have changed the last bits: memory that ran out, a fused
    suffix that did not agree.
    """

    trial: Trial
    sender: ScoreCard
    receiver: ScoreCard
    scores: ScoreCard
    penalties: dict[str, Estimate | None]
    representation_error: float
    steps: int
    converged: bool | None
    curve: tuple[CurvePoint, ...]
    seconds: float
    stitch: nn.Module
    notes: tuple[str, ...] = ()
    alone: Mapping[str, Any] = field(default_factory=dict)
    apart: Mapping[str, Estimate] = field(default_factory=dict)
    gained: Gained | None = None
    start: str = ""
    validation_loss: float = float("nan")
    controls: "tuple[Measurement | Failure, ...]" = ()
    outcomes: Outcomes | None = None

    @property
    def penalty(self) -> Estimate | None:
        """The penalty of the first score."""
        return self.penalties[self.trial.scores[0].name]

    @property
    def warnings(self) -> list[str]:
        """Why its networks are not to be trusted, a sentence each."""
        found = {name: {"penalty": None if one is None else asdict(one)} for name, one in self.penalties.items()}
        return find_doubts(self.trial.labels, self.alone, found)

    @cached_property
    def stitched(self) -> Stitched:
        """The stitched network: raw images ``(n, C, H, W)`` to the receiver's outputs.

        BatchNorms of the measured ``stitch`` are folded into its map, so it agrees with that to rounding and no
        training mode changes it. Raises ``NetworkError`` if the sender is noise.
        """
        return Stitched(self.trial.seam, *without_norms(self.stitch, self.trial.family))

    def save(self, folder: str | Path) -> Path:
        """Write the stitched network, with its measurement, to a folder for ``load_stitched``; return the folder.

        Raises ``OutputError`` if that cannot be done, ``NetworkError`` if the sender is noise.
        """
        return self.stitched.save(folder, self.record)

    @property
    def record(self) -> dict[str, object]:
        """The record kept beside a saved stitch, as plain values."""
        scores = {
            name: {"value": e.value, "low": e.low, "high": e.high, "unit": e.unit} for name, e in self.scores.items()
        }
        record = {"trial": self.trial.key, "fit": str(self.trial.fit), "seed": self.trial.seed, "scores": scores}
        return record | {"representation_error": self.representation_error}

    def __repr__(self) -> str:
        first = self.trial.scores[0].name
        told = dict.fromkeys(
            said for one in (self, *self.controls) if isinstance(one, Measurement) for said in one.warnings
        )
        lines = [
            *(f"Warning: {said}." for said in told),
            self.trial.where,
            f"  stitched {first}  {self.scores[first]}{self._bound}",
            f"  receiver {first}  {self.receiver[first]}",
            f"  penalty  {self.penalty}",
            f"  {self._how}",
        ]
        lines += [f"  control: {control.summary}" for control in self.controls]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def row(name: str, one: "Measurement | Failure") -> tuple[str, ...]:
            if isinstance(one, Failure):
                return (name, f"failed: {one.error}", "", "")
            first = one.trial.scores[0].name
            said = f"{one.scores[first]}{one._bound}"
            return (name, said, str(one.receiver[first]), "–" if one.penalty is None else str(one.penalty))

        rows = [row("stitched", self), *(row(one.trial.control, one) for one in self.controls)]
        said = [f"Warning: {warning}." for warning in self.warnings]
        headings = ("", self.trial.scores[0].name, "its receiver alone", "penalty")
        return to_html(headings, rows, " ".join([*said, self.trial.where]), self._how)

    @property
    def summary(self) -> str:
        """One line: the control's name or the seam, and the stitched network's first score."""
        return f"{self.trial.control or self.trial.where}  {self.scores[self.trial.scores[0].name]}{self._bound}"

    @property
    def _how(self) -> str:
        """The words below its scores: family, fit and representation error."""
        return f"{self.trial.family} by {self.trial.fit}, representation error {self.representation_error:.3f}"

    @property
    def _bound(self) -> str:
        """The words behind a score that a longer fit may still improve."""
        return ", not converged" if self.converged is False else ""


@dataclass(frozen=True, eq=False)
class Failure:
    """A trial that could not be measured, and why; if the machine may be at fault, it is tried again."""

    trial: Trial
    error: str
    traceback: str
    seconds: float
    of_machine: bool = False

    @property
    def summary(self) -> str:
        """One line: the control's name or the seam, and the error."""
        return f"{self.trial.control or self.trial.where}  failed: {self.error}"


def _are_numbered(samples: Samples) -> bool:
    return samples.classes == tuple(map(str, range(len(samples.classes))))


def _list_classes(samples: Samples) -> str:
    """List classes that have names, in brackets; the names of a folder show one that is misspelt."""
    if _are_numbered(samples):
        return ""
    more = ", …" if len(samples.classes) > _LISTED else ""
    return f" ({', '.join(samples.classes[:_LISTED])}{more})"


def _explain_classes(samples: Samples, outputs: int) -> str:
    """Suggest a remedy if a head has more or fewer outputs than the data have classes."""
    count = len(samples.classes)
    numbered = _are_numbered(samples)
    if numbered and outputs == count - 1 and int(samples.labels.min()) == 1:
        return "labels seem to count from 1: give labels - 1"
    remedy = f"build or load it with {count} outputs"
    if numbered and outputs > count:
        remedy += f"; or, if these data only lack samples of some classes, load them with classes={outputs}"
    return remedy


def _misfit(network: Network, samples: Samples) -> str:
    """Say why the outputs of a network do not suit the labels; nothing if they do."""
    return samples.task.check_outputs(network.output_shape, samples.labels, samples.classes)


def _check_views(trial: Trial, *roles: Samples) -> None:
    """Raise an error unless the samples pair as the networks read them: token by token, or each its own view."""
    if len({samples.sent is None for samples in roles}) > 1:
        raise DataError(
            f"of the data of {trial.where} some have a view for each network and some have one view; give data of "
            "one kind in all roles"
        )
    if trial.has_views:
        check_cut_for_views(trial.seam)
    else:
        check_tokens(trial.sender, trial.receiver)


def _check_data(trial: Trial, samples: Samples) -> None:
    misfit = _misfit(trial.receiver, samples)
    is_usual = samples.task == Classification()
    if misfit and (not is_usual or len(trial.receiver.output_shape) > 1):
        remedy = "; give the model with its head, or data whose task suits it" if is_usual else ""
        raise DataError(f"{samples.name} does not suit the receiver {trial.receiver.name}: {misfit}{remedy}")
    if misfit:
        raise DataError(
            f"{samples.name} has {len(samples.classes)} classes{_list_classes(samples)}, but the head of the receiver "
            f"{trial.receiver.name} has {trial.receiver.outputs} outputs; "
            f"{_explain_classes(samples, trial.receiver.outputs)}"
        )
    for network, read in ((trial.sender, samples.for_sender), (trial.receiver, samples)):
        if not isinstance(network, Network):
            continue
        network.check_samples(read)
        if network.gives_probabilities and network.outputs == len(samples.classes):
            raise NetworkError(
                f"the outputs of {network.name} are probabilities, of which fits and losses would take a softmax once "
                "more; give it without its last softmax, or wrap it to return model(x).clamp_min(1e-30).log()"
            )
    if isinstance(trial.sender, ClusteredNoise):
        trial.sender.check(samples)


def check_plan(plan: Iterable[Trial]) -> list[Trial]:
    """Return the trials as a list. Raises ``DataError`` if there is something else in the plan, or nothing."""
    if isinstance(plan, Trial) or not isinstance(plan, Iterable):
        raise DataError(f"the plan is a {type(plan).__name__}; give several trials, such as those of curve or matrix")
    items = list(plan)
    for place, item in enumerate(items, start=1):
        if not isinstance(item, Trial):
            said = f"item {place} of this plan is a {type(item).__name__}, and no trial"
            remedy = "plans add up: run(a + b)" if isinstance(item, Sequence) else "give what curve or matrix plans"
            raise DataError(f"{said}; {remedy}")
    if not items:
        raise DataError("this plan has no trials; check its cuts, controls and seeds")
    return items

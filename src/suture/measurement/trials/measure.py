"""Trial → measurement: the one place where something is measured.

``measure`` is a plain loop over four thoughts: take the activations that the two networks have at their cuts (computed
once, kept in a cache), let the fit train the stitch on them, run the stitched network on the score data, and compare
its scores with those of its parents. Networks are frozen throughout, and their bits are compared before and after.

Many images are scored through the receiver's fused suffix (``suture.core.fused``), in float32, without changing a
prediction. Its outputs are off by rounding, which may turn the prediction of an image that two classes nearly share.
How far the difference between two outputs of one image is off is measured on the first pass against the eager suffix.
Every image whose two largest outputs lie closer than ``SAFETY`` times the most that was seen is then computed by the
eager one, so the largest output is the right one. A fused suffix that leaves too many images in doubt is not used, and
few images are computed eagerly to begin with.

Outputs are never held for all samples if they are large: they are computed and scored in parts of at most ``PART``
bytes (``core.activations.cache``), or of a single pass.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from math import prod
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _LinAlgError as LinAlgError  # type: ignore[attr-defined]

from suture.common.constants import CHUNK
from suture.common.errors import DeviceError, FitError, ShapeError, may_be_of_machine
from suture.common.formatting import first_line
from suture.common.hashing import keyed_as
from suture.common.mapped import ROWS, empty, fill, pieces, take
from suture.common.phases import say_phase
from suture.common.scaling import unit_of
from suture.common.seeds import derive_seed, digest, drawing, undisturbed
from suture.core.activations.cache import PART, Activations, is_finite, rows_at_once, run_stepwise
from suture.core.fused import Fused, fuse_stitch, fuse_suffix
from suture.core.network.network import Network, guard_frozen
from suture.core.network.segments import Frozen
from suture.core.stitched import Stitched, match_dtype
from suture.core.stitches.pooled_linear import pool_positions, pool_sent
from suture.data import Samples
from suture.data.tasks import Classification
from suture.fits import FitReport, Problem, Side
from suture.fits.suffix import MakeFused
from suture.measurement.scores.in_distribution import REFERENCE, tell_apart
from suture.measurement.scores.intervals import Estimate
from suture.measurement.scores.outcomes import CLASSES, Outcomes, steps_from
from suture.measurement.scores.pooled import default_scores
from suture.measurement.scores.scores import (
    Score,
    ScoreCard,
    Values,
    compute_values,
    estimate_penalty,
    make_card,
    score_parent,
)
from suture.measurement.trials.trial import Failure, Measurement, Trial

LEAST = 1024  #: images from which on a fused suffix is worth being compared
LARGE = 1e18  #: activations of which sums of squares may be infinite in float32, which ends at 3.4e38
SAFETY = 1.5  #: times the most that was seen on the probe
DOUBTFUL = 0.2  #: the share of images that may have to be computed again

Represent = Callable[[Tensor], Tensor]
"""Returns what the stitch makes of the samples with these indices, on the receiver's device."""


def measure(trial: Trial, activations: Activations | None = None) -> Measurement:
    """Measure one trial, with one thread, reusing cached activations.

    Raises ``FitError`` if activations or the loss are not finite, ``FrozenError`` if a network changed, and
    ``DeviceError`` if a GPU's memory runs out.
    """
    cache = activations if activations is not None else Activations()
    cache.notes.clear()
    since = time.perf_counter()
    draws = drawing(trial.receiver.device, derive_seed(trial.drawn_as, "stitch"))
    # One thread, random numbers of the trial's own, and fixed chunk sizes below: the same bits in any company.
    try:
        with undisturbed(), draws, torch.inference_mode(False), guard_frozen(*trial.seam.networks):
            stitch = build_stitch(trial)
            problem = make_problem(trial, cache, stitch)
            report = trial.fit.fit(problem, stitch)
            stitch.eval().requires_grad_(False)
            notes: list[str] = []
            outputs = run_stitched(trial, cache, stitch, problem.fused, notes)
            measurement = score(trial, cache, stitch, report, outputs, notes)
    except (FitError, LinAlgError) as error:
        if said := _say_large(trial, cache):
            raise FitError(f"{trial.where}: {said} ({first_line(error)})") from error
        if isinstance(error, FitError):
            raise
        raise FitError(
            f"{trial.where}: a matrix of the fit cannot be decomposed ({first_line(error)}); give more samples, or "
            "another family of stitches"
        ) from error
    except torch.OutOfMemoryError as error:  # of a GPU; the processor raises none
        raise DeviceError(
            f"{trial.device} has too little memory for {trial.where}: {str(error).partition('. ')[0]}; "
            "give the fit a smaller batch, a later cut, fewer trials at once, or device='cpu'"
        ) from error
    return replace(measurement, seconds=time.perf_counter() - since)


def _say_large(trial: Trial, cache: Activations) -> str:
    """Say whose activations are so large that their squares are infinite; nothing if none are."""
    for network, cut in ((trial.sender, trial.sender_cut), (trial.receiver, trial.receiver_cut)):
        if not isinstance(network, Network) or network.cuts.find(cut).is_output:
            continue
        try:
            largest = float(cache.rows(network, cut, trial.fit_data)[: rows_at_once(network)].abs().max())
        except FitError:  # that they are not finite, which is said
            return ""
        if largest > LARGE:
            return (
                f"the activations of {network.name} at {cut} reach {largest:.1e}, and their squares are beyond what "
                "float32 holds; take another cut, or scale what comes before it"
            )
    return ""


def attempt(trial: Trial, activations: Activations | None = None) -> Measurement | Failure:
    """Measure a trial; if that fails, return a ``Failure`` that says why instead of raising."""
    since = time.perf_counter()
    try:
        return measure(trial, activations)
    except Exception as error:  # a user's stitch, fit or score may raise anything
        return describe_failure(trial, error, time.perf_counter() - since)


def describe_failure(trial: Trial, error: Exception, seconds: float) -> Failure:
    """Return the failure that an exception, which is being handled, makes of a trial after so many seconds."""
    said = f"{type(error).__name__}: {error}"
    return Failure(trial, said, traceback.format_exc(), seconds, may_be_of_machine(error))


# --- the fit ----------------------------------------------------------------------------------------------------------


def build_stitch(trial: Trial) -> nn.Module:
    """Build the trial's stitch, not yet fitted.

    Raises ``ShapeError`` if a family of the user's builds one whose output does not suit the receiver's cut.
    """
    sent, received = trial.seam.shapes
    stitch = trial.family.build(sent, received).to(trial.receiver.device)
    if not type(trial.family).__module__.startswith("suture."):
        with torch.no_grad():
            probe = torch.zeros(2, *sent, device=trial.receiver.device)
            gives = tuple(stitch.eval()(match_dtype(probe, stitch)).shape[1:])
        stitch.train()
        if gives != received:
            raise ShapeError(
                f"the stitch of {trial.family} gives the shape {gives}, but the receiver's cut takes {received}; "
                "correct its build"
            )
    return stitch


def make_problem(trial: Trial, cache: Activations, stitch: nn.Module) -> Problem:
    """Gather the inputs of a fit: the frozen suffix, and activations and labels of the fit and validation data."""
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    # Where no layer follows there is nothing to fuse, and through a stitch without parameters, such as ``Identity``, a
    # receiver stitched to itself must give the receiver's own bits.
    exact = cut.is_output or next(stitch.parameters(), None) is None
    fit = _make_side(trial, cache, trial.fit_data, stitch)
    return Problem(
        family=trial.family,
        suffix=trial.receiver.after(trial.receiver_cut),
        fit=fit,
        validation=_make_side(trial, cache, trial.validation_data, stitch),
        seed=derive_seed(trial.drawn_as, "fit"),
        where=trial.where,
        fused=None if exact or fit.inputs is not None else lru_cache(partial(fuse_suffix, trial.receiver, cut)),
        task=trial.task,
        shapes=trial.seam.shapes,
        rows=_count_at_once(trial),
    )


def _make_side(trial: Trial, cache: Activations, samples: Samples, stitch: nn.Module) -> Side:
    """Make one data role as the seam sees it; with broken pairs, labels and receiver are those of other samples."""

    def expected() -> Tensor:
        own = cache.rows(trial.receiver, trial.receiver_cut, trial.select_read(samples))
        pairing = samples.pairing
        return match_dtype(own if pairing is None else _reorder(own, pairing[: trial.count_read(samples)]), stitch)

    def outputs() -> Tensor:
        own = _own_outputs(trial, cache, samples)
        return own if samples.pairing is None else _reorder(own, samples.pairing)

    sent = _read_sent(trial, cache, samples, stitch)
    targets = outputs() if trial.task.copies else samples.paired_labels
    inputs, counted = trial.receiver.inputs_after(trial.receiver_cut, samples.images), _count(trial, samples)
    if samples.pairing is not None:
        inputs = None if inputs is None else inputs[samples.pairing]
        counted = None if counted is None else counted & counted[samples.pairing]
    return Side(match_dtype(sent, stitch), targets, expected, outputs, inputs, counted)


def _reorder(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows in another order; large ones lie in a file, as they did before."""
    return take(rows, order) if isinstance(rows, Tensor) else rows[order]


def _read_sent(trial: Trial, cache: Activations, samples: Samples, stitch: nn.Module) -> Tensor:
    """Return the sender's activations on its view of samples, pooled if the stitch pools."""
    read = samples.for_sender
    return pool_sent(stitch, cache.rows(trial.sender, trial.sender_cut, read), read.counted)


def _count_at_once(trial: Trial) -> int:
    """Return how many samples pass through both networks and the stitch at once."""
    return min(map(rows_at_once, trial.seam.networks))


def _count(trial: Trial, samples: Samples) -> Tensor | None:
    """Return which tokens of samples count at the seam, if it joins tokens to tokens and not all do."""
    length = samples.images.shape[-1:]
    is_tokens = all(len(shape) == 2 and shape[:1] == length for shape in trial.seam.shapes)
    return samples.counted if is_tokens else None


def _own_outputs(trial: Trial, cache: Activations, samples: Samples) -> Tensor:
    """Return the receiver's own outputs; they do not count where a mask says so, if that means something."""
    own, counted = cache.outputs(trial.receiver, samples), samples.counted
    if counted is None:
        return own
    parts = zip(pieces(own), counted.split(ROWS), strict=True)  # type: ignore[no-untyped-call]
    return fill(empty(own.shape, own.dtype), (trial.task.ignore(*part) for part in parts))


# --- the outputs ------------------------------------------------------------------------------------------------------


def run_stitched(
    trial: Trial, cache: Activations, stitch: nn.Module, fused: MakeFused | None, notes: list[str]
) -> Iterator[Tensor]:
    """Return the stitched network's outputs on the score data in parts, which are computed as they are read.

    A note says if no fused suffix would do. Raises ``FitError`` when a part is not finite.
    """
    say_phase("scoring")
    given = _read_sent(trial, cache, trial.score_data, stitch)
    many = len(given) >= LEAST and given.ndim == 4
    cheap = fuse_stitch(stitch) if many else stitch

    def represent(chosen: Tensor, by: nn.Module = stitch) -> Tensor:
        sent = given[chosen]  # indexing copies, so a stitch may write into it
        return _apply(trial, by, sent.contiguous(memory_format=torch.channels_last) if many else sent)

    suffix = trial.receiver.after(trial.receiver_cut)
    fused = fused if trial.task == Classification() else None  # what is doubtful is known of classes alone
    inputs = trial.receiver.inputs_after(trial.receiver_cut, trial.score_data.images)
    rows = _count_at_once(trial)
    each = prod(trial.receiver.output_shape) * trial.receiver.dtype.itemsize
    most = max(1, PART // each // rows) * rows
    cheaply = partial(represent, by=cheap)
    for part in compute_outputs(suffix, fused, represent, len(given), notes, cheaply, inputs, rows, most):
        if not is_finite(part):
            raise FitError(f"the outputs of the stitched network {trial.where} are not finite")
        yield part


def compute_outputs(
    own: Frozen,
    fused: MakeFused | None,
    represent: Represent,
    count: int,
    notes: list[str],
    cheaply: Represent | None = None,
    inputs: Tensor | None = None,
    rows: int = CHUNK,
    most: int | None = None,
) -> Iterator[Tensor]:
    """Yield the outputs ``(some, outputs)`` of the suffix on the CPU, ``rows`` in a pass and ``most`` in a part.

    ``notes`` is added to if no fused suffix would do. ``cheaply`` is a cheaper way to what the stitch makes, if any;
    its error is measured together with the fused suffix's. ``inputs`` are what the suffix reads beside, which none does
    that is fused. By default there is a single part.
    """

    def run(suffix: Frozen | Fused, by: Represent, chosen: Tensor) -> Tensor:
        with torch.no_grad():
            given = ((by(part), None if inputs is None else inputs[part]) for part in torch.split(chosen, rows))
            outputs = (run_stepwise(suffix, *x) if isinstance(suffix, Frozen) else suffix(x[0]) for x in given)
            return torch.cat([out.cpu() for out in outputs])

    def score(chosen: Tensor) -> Tensor:
        if made is None:
            return run(own, represent, chosen)
        found = run(made, cheaply or represent, chosen)
        doubtful = ((_margins(found) <= apart) | ~found.isfinite().all(1)).nonzero().flatten()
        if len(doubtful):
            found[doubtful] = run(own, represent, chosen[doubtful])
        return found

    everything, done = torch.arange(count), list[Tensor]()
    made, apart = None if fused is None or count < LEAST else fused(torch.float32), float("inf")
    if made is not None:
        probe = everything[:rows]
        done = [run(own, represent, probe)]
        try:
            apart, doubtful = _measure_doubt(made, (cheaply or represent)(probe), done[0])
            refused = "too many predictions would be in doubt through the fused suffix" if doubtful > DOUBTFUL else ""
        except Exception as error:  # a user's layer may refuse another memory layout
            refused = f"the fused suffix does not run ({first_line(error)})"
        if refused:
            made = None
            notes.append(f"{refused}: scored through the receiver itself")
    for chosen in torch.split(everything, most or count):
        rest = chosen[sum(map(len, done)) :]
        yield torch.cat([*done, *([score(rest)] if len(rest) else [])])
        done.clear()


def _measure_doubt(made: Fused, given: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return how far apart two outputs must lie for their order to be certain, and the share of images in doubt."""
    with torch.no_grad():
        out = made(given).cpu()
    off = out - exact
    apart = SAFETY * float((off.amax(1) - off.amin(1)).max())
    return apart, float((_margins(out) <= apart).float().mean()) if apart < float("inf") else 1.0


def _margins(out: Tensor) -> Tensor:
    """Return by how much the largest output of every image exceeds the second; infinite if there is only one."""
    if out.shape[1] < 2:
        return torch.full((len(out),), torch.inf)
    first, second = out.topk(2, 1).values.unbind(1)
    return first - second


# --- the scores -------------------------------------------------------------------------------------------------------


@keyed_as("Predicted")
@final
@dataclass(frozen=True)
class Predicted(Score):
    """The step from each label to the class of the largest output, as outcomes keep it; not a score for tables."""

    name: ClassVar[str] = CLASSES
    unit: ClassVar[str] = "raw"
    higher_is_better: ClassVar[bool | None] = None

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the step ``(n,)``, int64."""
        return torch.from_numpy(steps_from(labels, logits).astype(np.int64))


def score(
    trial: Trial,
    cache: Activations,
    stitch: nn.Module,
    report: FitReport,
    outputs: Iterator[Tensor],
    notes: Sequence[str],
) -> Measurement:
    """Score the outputs of a fitted stitch beside its parents; the measurement's ``seconds`` are still 0.

    ``notes`` are those of the outputs, when these have been read.
    """
    data, scores, compared = trial.score_data, trial.scores, trial.compared
    also = (Predicted(),) if trial.task == Classification() else ()
    targets = _own_outputs(trial, cache, data) if trial.task.copies else data.labels
    values = compute_values(
        (*scores, *also), outputs, data, partial(Stitched, trial.seam, stitch, trial.family), targets
    )
    given = _read_sent(trial, cache, data, stitch).narrow(0, 0, len(compared))
    own = cache.at(trial.receiver, trial.receiver_cut, compared).to(trial.receiver.device)
    counted = _count(trial, compared)
    error, stitched_features, own_features = compare_activations(
        partial(_apply, trial, stitch), given, own, counted, _count_at_once(trial)
    )
    receiver_values, receiver = score_parent(trial.receiver, data, scores, cache, targets, also)
    sender = trial.scored_sender
    networks = {"receiver": trial.receiver} | ({} if sender is None else {"sender": sender})
    sender_values: Values = {}
    sender_card = ScoreCard({})
    if sender is not None:
        read = data.for_sender
        own_targets = targets if read is data else read.labels
        sender_values, sender_card = score_parent(sender, read, scores, cache, own_targets, also)
    return Measurement(
        trial=trial,
        sender=sender_card,
        receiver=receiver,
        scores=make_card(scores, values, trial.description, "stitched"),
        penalties={
            s.name: estimate_penalty(
                s, values[s.name], receiver_values[s.name], seed=derive_seed(trial.description, s.name, "penalty")
            )
            for s in scores
        },
        representation_error=error,
        apart=_tell_apart(trial, cache, own_features, stitched_features),
        steps=report.steps,
        converged=report.converged,
        gained=report.gained,
        start=report.start,
        validation_loss=report.validation_loss,
        curve=report.curve,
        seconds=0.0,
        stitch=stitch,
        alone=_score_alone(trial, cache, networks),
        outcomes=_gather_outcomes(trial, values, receiver_values, sender_values),
        notes=(*cache.notes, *report.notes, *([f"kept {report.kept}"] if report.kept else []), *notes),
    )


def _score_alone(trial: Trial, cache: Activations, networks: Mapping[str, Network]) -> Mapping[str, Any]:
    """Return each network's own scores for ``find_doubts``; nothing if the task has no score of guessing."""
    if trial.guess is None:
        return {}
    judged, first = trial.judged, default_scores(trial.task)[0]
    read = {"sender": judged.for_sender, "receiver": judged}
    found = {
        role: score_parent(one, read[role], (first,), cache, read[role].labels)[1][first.name].value
        for role, one in networks.items()
    }
    of = "image" if trial.task == Classification() else "position"
    return {**found, "chance": trial.guess, "n": len(judged), "score": first.name, "of": of} | {
        "rises": bool(first.higher_is_better)
    }


def _gather_outcomes(trial: Trial, stitched: Values, receiver: Values, sender: Values) -> Outcomes:
    """Return the outcome of every scored sample: its class, or its value of the first score if it has none."""
    of = CLASSES if trial.task == Classification() else trial.scores[0].name
    samples = digest(trial.score_data.for_receiver.fingerprint)[:12]  # so one whose sender has another view is paired
    values = {"stitched": stitched, "receiver": receiver, "sender": sender}
    held = {role: found[of].cpu().numpy() for role, found in values.items() if of in found}
    kind = np.min_scalar_type(prod(trial.receiver.output_shape) - 1) if of == CLASSES else np.float32
    return Outcomes(of, samples, {role: found.astype(kind) for role, found in held.items()})


def compare_activations(
    represent: Callable[[Tensor], Tensor],
    given: Tensor,
    own: Tensor,
    counted: Tensor | None = None,
    rows: int = CHUNK,
) -> tuple[float, Tensor, Tensor]:
    """Return the representation error, and the features of the represented activations and of the receiver's own.

    The error is Σ‖represent(given) − own‖² / Σ‖own − its mean‖², not a number if the receiver's own do not vary.
    ``given`` are the sender's activations, ``own`` the receiver's, of the same samples; of tokens those that are
    ``counted``, bool ``(n, T)``, with one mean for all places. ``rows`` samples are taken at once.
    """

    def select(part: Tensor, start: int) -> Tensor:
        return part if counted is None else part[counted[start : start + rows].to(part.device)]

    starts, count = range(0, len(given), rows), len(own) if counted is None else int(counted.sum())
    total = sum(select(own[start : start + rows], start).sum(0, dtype=torch.float64) for start in starts)
    wide = torch.promote_types(own.dtype, torch.float32)  # a square of float16 numbers may overflow
    unit = unit_of(own[:rows])
    mean = (torch.as_tensor(total) / count / unit).to(own.device, wide)
    off = spread = 0.0
    features: list[tuple[Tensor, Tensor]] = []
    for start in starts:
        there = None if counted is None else counted[start : start + rows]
        expected = own[start : start + rows].to(wide)
        sent = represent(given[start : start + rows].clone()).to(wide)
        features.append((pool_positions(sent, "mean", there), pool_positions(expected, "mean", there)))
        sent, expected = select(sent, start) / unit, select(expected, start) / unit
        off += float((sent - expected).square().sum(dtype=torch.float64))
        spread += float((expected - mean).square().sum(dtype=torch.float64))
    stitched, receiving = (torch.cat(side) for side in zip(*features, strict=True))
    return off / spread if spread > 0 else float("nan"), stitched, receiving


def _tell_apart(trial: Trial, cache: Activations, own: Tensor, stitched: Tensor) -> dict[str, Estimate]:
    """Return by how much the stitched features are told apart from the receiver's own; nothing behind its layers."""
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    if cut.is_output:
        return {}
    reference, counted = cache.rows(trial.receiver, cut, trial.reference), _count(trial, trial.reference)
    most = min(REFERENCE, len(reference))
    rows = rows_at_once(trial.receiver)
    parts = reference.narrow(0, 0, most).split(rows)  # type: ignore[no-untyped-call]
    wide = torch.promote_types(own.dtype, torch.float32)
    masks = repeat(None) if counted is None else counted[:most].split(rows)  # type: ignore[no-untyped-call]
    features = [pool_positions(part.to(wide), "mean", there) for part, there in zip(parts, masks, strict=False)]
    return tell_apart(torch.cat(features), own, stitched)


def _apply(trial: Trial, stitch: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = stitch(match_dtype(given, stitch).to(trial.receiver.device))
    return out

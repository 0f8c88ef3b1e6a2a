"""Trial → measurement: the one place where something is measured.

``measure`` is a plain loop over four thoughts: take the activations that the two networks have at their cuts (computed
once, kept in a cache), let the fit train the stitch on them, run the stitched network on the score data, and compare
its scores with those of its parents. Networks are frozen throughout, and their bits are compared before and after.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from suture.common.errors import FitError, ShapeError
from suture.common.seeds import derive_seed, undisturbed
from suture.core.activations.cache import Activations
from suture.core.fused import fuse_stitch, fuse_suffix
from suture.core.network.network import guard_frozen
from suture.core.stitched import Stitched, match_dtype
from suture.data import Samples
from suture.fits import FitReport, Problem, Side
from suture.fits.fast import MakeFused
from suture.measurement.scores.outputs import LEAST, Outputs, compute_outputs, representation_error
from suture.measurement.scores.scores import ScoreCard, compute_values, estimate_penalty, make_card, score_parent
from suture.measurement.trials.trial import Failure, Measurement, Trial, count_read, select_read, solves_task


def measure(trial: Trial, activations: Activations | None = None) -> Measurement:
    """Measure one trial, with one thread, reusing cached activations.

    Raises ``FitError`` if activations or the loss are not finite, ``FrozenError`` if a network changed.
    """
    cache = activations if activations is not None else Activations()
    cache.notes.clear()
    begun = time.perf_counter()
    # One thread, random numbers of the trial's own, and fixed chunk sizes below: the same bits in any company.
    with undisturbed(), seeded(trial), torch.inference_mode(False), guard_frozen(*trial.seam.networks):
        stitch = build_stitch(trial)
        problem = make_problem(trial, cache, stitch)
        report = trial.fit.fit(problem, stitch)
        stitch.eval().requires_grad_(False)
        outputs = run_stitched(trial, cache, stitch, problem.fused)
        measurement = score(trial, cache, stitch, report, outputs)
    return replace(measurement, seconds=time.perf_counter() - begun)


def attempt(trial: Trial, activations: Activations | None = None) -> Measurement | Failure:
    """Measure a trial; if that fails, return a ``Failure`` that says why instead of raising."""
    begun = time.perf_counter()
    try:
        return measure(trial, activations)
    except Exception as error:  # a user's stitch, fit or score may raise anything
        return describe_failure(trial, error, time.perf_counter() - begun)


def describe_failure(trial: Trial, error: Exception, seconds: float) -> Failure:
    """Return the failure that an exception, which is being handled, makes of a trial after so many seconds."""
    return Failure(trial, f"{type(error).__name__}: {error}", traceback.format_exc(), seconds)


@contextmanager
def seeded(trial: Trial) -> Iterator[None]:
    """Seed torch's global generators, from which stitches draw, and restore them afterwards."""
    device = trial.receiver.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(derive_seed(trial.fit_description, "stitch"))
        yield


def build_stitch(trial: Trial) -> nn.Module:
    """Build the trial's stitch, not yet fitted.

    Raises ``ShapeError`` if a family of the user's builds one that does not give what the receiver's cut takes.
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


# --- the fit ----------------------------------------------------------------------------------------------------------


def make_problem(trial: Trial, cache: Activations, stitch: nn.Module) -> Problem:
    """Gather what a fit is given: the frozen suffix, and activations and labels of the fit and validation data."""
    return Problem(
        family=trial.family,
        suffix=trial.receiver.after(trial.receiver_cut),
        fit=_make_side(trial, cache, trial.fit_data, stitch),
        validation=_make_side(trial, cache, trial.validation_data, stitch),
        seed=derive_seed(trial.fit_description, "fit"),
        where=trial.where,
        share=_share_after_cut(trial),
        fused=_fused_suffixes(trial, stitch),
    )


def _make_side(trial: Trial, cache: Activations, samples: Samples, stitch: nn.Module) -> Side:
    """One data role seen from the seam; with broken pairs, labels and receiver are those of other samples."""

    def expected() -> Tensor:
        own = cache.at(trial.receiver, trial.receiver_cut, select_read(trial, samples))
        pairing = samples.pairing
        return match_dtype(own if pairing is None else own[pairing[: count_read(trial, samples)]], stitch)

    def outputs() -> Tensor:
        own = cache.outputs(trial.receiver, samples)
        return own if samples.pairing is None else own[samples.pairing]

    sent = cache.at(trial.sender, trial.sender_cut, samples)
    return Side(match_dtype(sent, stitch), samples.paired_labels, expected, outputs)


def _share_after_cut(trial: Trial) -> float:
    """The share of the receiver's operations that lie after its cut; its head is left out of account."""
    cuts = trial.receiver.cuts
    whole = list(cuts)[-1].flops
    return max(0.0, 1 - cuts.find(trial.receiver_cut).flops / whole) if whole else 1.0


def _fused_suffixes(trial: Trial, stitch: nn.Module) -> MakeFused | None:
    """Make what makes the receiver's fused suffix, once for each floating type; ``None`` if nothing is to be fused.

    Nothing is if no layer follows the cut, nor for a stitch without parameters: through ``Identity`` a receiver
    stitched to itself must give the receiver's own bits.
    """
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    if cut.is_output or next(stitch.parameters(), None) is None:
        return None
    return lru_cache(partial(fuse_suffix, trial.receiver, cut))


# --- the scores -------------------------------------------------------------------------------------------------------


def run_stitched(trial: Trial, cache: Activations, stitch: nn.Module, fused: MakeFused | None) -> Outputs:
    """Compute the stitched network's outputs on the score data; say in words if no fused suffix would do.

    Raises ``FitError`` if they are not finite.
    """
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)
    many = len(given) >= LEAST and given.ndim == 4
    cheap = fuse_stitch(stitch) if many else stitch

    def represent(chosen: Tensor, by: nn.Module = stitch) -> Tensor:
        sent = given[chosen]  # indexing copies, so a stitch may write into it
        return _apply(trial, by, sent.contiguous(memory_format=torch.channels_last) if many else sent)

    suffix, coarse = trial.receiver.after(trial.receiver_cut), all(score.coarse for score in trial.scores)
    found, notes = compute_outputs(suffix, fused, represent, len(given), coarse, partial(represent, by=cheap))
    if not found.isfinite().all():
        raise FitError(f"the outputs of the stitched network {trial.where} are not finite")
    return found, notes


def score(trial: Trial, cache: Activations, stitch: nn.Module, report: FitReport, outputs: Outputs) -> Measurement:
    """Score the outputs of a fitted stitch beside its parents; the measurement's ``seconds`` are still 0."""
    logits, notes = outputs
    error = _representation_error(trial, cache, stitch)
    data = trial.score_data
    receiver = score_parent(trial.receiver, data, trial.scores, cache)
    stitched = compute_values(trial.scores, logits, data, partial(Stitched, trial.seam, stitch, trial.family))
    sender = trial.sender if solves_task(trial.sender, data) else None
    seed: Callable[..., int] = lambda *what: derive_seed(trial.description, *what)  # noqa: E731
    return Measurement(
        trial=trial,
        sender=ScoreCard({}) if sender is None else score_parent(sender, data, trial.scores, cache).card,
        receiver=receiver.card,
        scores=make_card(trial.scores, stitched, trial.description, "stitched"),
        penalties={
            s.name: estimate_penalty(s, stitched[s.name], receiver.values[s.name], seed=seed(s.name, "penalty"))
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


def _representation_error(trial: Trial, cache: Activations, stitch: nn.Module) -> float:
    compared = trial.compared
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)[: len(compared)]
    own = cache.at(trial.receiver, trial.receiver_cut, compared).to(trial.receiver.device)
    return representation_error(lambda part: _apply(trial, stitch, part), given, own)


def _apply(trial: Trial, stitch: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = stitch(match_dtype(given, stitch).to(trial.receiver.device))
    return out

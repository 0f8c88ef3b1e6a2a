"""Trial → measurement: the one place where something is measured."""

import time
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
from suture.core.network.network import Frozen, guard_frozen
from suture.core.stitched import Stitched, match_dtype
from suture.data import Samples
from suture.fits import FitReport, Problem, Side
from suture.fits.suffix import MakeFused
from suture.measurement.scores.outputs import LEAST, Outputs, Passing, asking, representation_error, together
from suture.measurement.scores.score_card import card, parent, values
from suture.measurement.scores.scores import ScoreCard, penalty
from suture.measurement.trials.trial import Measurement, Trial, count_read, read_by, solves_task


def measure(trial: Trial, activations: Activations | None = None) -> Measurement:
    """Measure one trial, with one thread, reusing cached activations.

    Raises ``FitError`` where activations or the loss are not finite, ``FrozenError`` where a network changed.
    """
    cache = activations if activations is not None else Activations()
    cache.notes.clear()
    begun = time.perf_counter()
    with undisturbed(), seeded(trial), torch.inference_mode(False), guard_frozen(*trial.seam.networks):
        stitch = built(trial)
        problem = problem_of(trial, cache, stitch)
        report = trial.fit.fit(problem, stitch)
        stitch.eval().requires_grad_(False)
        found = _run(trial, cache, stitch, problem.fused)
        measurement = measured(trial, cache, stitch, report, found)
    return replace(measurement, seconds=time.perf_counter() - begun)


def built(trial: Trial) -> nn.Module:
    """The trial's stitch before its fit. Raises ``ShapeError`` where a family of one's own makes none of its shapes."""
    sent, received = trial.seam.shapes
    stitch = trial.family.build(sent, received).to(trial.receiver.device)
    if not type(trial.family).__module__.startswith("suture."):
        with torch.no_grad():
            probe = torch.zeros(2, *sent, device=trial.receiver.device)
            gives = tuple(stitch.eval()(match_dtype(probe, stitch)).shape[1:])
        stitch.train()
        if gives != received:
            raise ShapeError(
                f"the stitch of {trial.family} gives the shape {gives}, where the receiver's cut takes {received}; "
                "correct its build"
            )
    return stitch


def measured(trial: Trial, cache: Activations, stitch: nn.Module, report: FitReport, found: Outputs) -> Measurement:
    """The measurement that a fitted stitch, and the outputs found with it, make; its ``seconds`` are 0."""
    logits, notes = found
    error = _error(trial, cache, stitch)
    score = trial.score_data
    receiver = parent(trial.receiver, score, trial.scores, cache)
    stitched = values(trial.scores, logits, score, partial(Stitched, trial.seam, stitch, trial.family))
    sender = trial.sender if solves_task(trial.sender, score) else None
    seed: Callable[..., int] = lambda *what: derive_seed(trial.description, *what)  # noqa: E731
    return Measurement(
        trial=trial,
        sender=ScoreCard({}) if sender is None else parent(sender, score, trial.scores, cache).card,
        receiver=receiver.card,
        scores=card(trial.scores, stitched, trial.description, "stitched"),
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


@contextmanager
def seeded(trial: Trial) -> Iterator[None]:
    """Seed torch's global generators, from which stitches draw, and restore them afterwards."""
    device = trial.receiver.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(derive_seed(trial.fit_description, "stitch"))
        yield


def problem_of(trial: Trial, cache: Activations, stitch: nn.Module) -> Problem:
    """What the fit of a trial is given, for a stitch that was just built."""
    return Problem(
        family=trial.family,
        suffix=trial.receiver.after(trial.receiver_cut),
        fit=_side(trial, cache, trial.fit_data, stitch),
        validation=_side(trial, cache, trial.validation_data, stitch),
        seed=derive_seed(trial.fit_description, "fit"),
        where=trial.where,
        share=_share(trial),
        fused=_make_fused(trial, stitch),
    )


def _share(trial: Trial) -> float:
    """The share of the receiver's operations that lie after its cut; its head is left out of account."""
    cuts = trial.receiver.cuts
    whole = list(cuts)[-1].flops
    return max(0.0, 1 - cuts.find(trial.receiver_cut).flops / whole) if whole else 1.0


def _make_fused(trial: Trial, stitch: nn.Module) -> MakeFused | None:
    """What makes the receiver's fused suffix; ``None`` for a stitch without parameters: the receiver's bits are kept.

    Nor is there one where nothing of the receiver follows.
    """
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    if cut.is_output or next(stitch.parameters(), None) is None:
        return None
    return lru_cache(partial(fuse_suffix, trial.receiver, cut))


def _side(trial: Trial, cache: Activations, samples: Samples, stitch: nn.Module) -> Side:
    def expected() -> Tensor:
        own = cache.at(trial.receiver, trial.receiver_cut, read_by(trial, samples))
        return match_dtype(
            own if samples.pairing is None else own[samples.pairing[: count_read(trial, samples)]], stitch
        )

    def outputs() -> Tensor:
        own = cache.outputs(trial.receiver, samples)
        return own if samples.pairing is None else own[samples.pairing]

    sent = cache.at(trial.sender, trial.sender_cut, samples)
    return Side(match_dtype(sent, stitch), samples.paired_labels, expected, outputs)


def _run(trial: Trial, cache: Activations, stitch: nn.Module, fused: MakeFused | None) -> Outputs:
    """The stitched network's outputs on the score data, and what went otherwise than it should."""
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)
    (found,) = together([scoring(trial, given, stitch, trial.receiver.after(trial.receiver_cut), fused)])
    if isinstance(found, Exception):
        raise found
    return found


def scoring(
    trial: Trial, given: Tensor, stitch: nn.Module, suffix: Frozen, fused: MakeFused | None
) -> Passing[Outputs]:
    """Find the stitched network's outputs, asking for the passes; ``given`` are the sender's activations."""

    many = len(given) >= LEAST and given.ndim == 4
    folded = fuse_stitch(stitch) if many else stitch

    def represented(chosen: Tensor, by: nn.Module = stitch) -> Tensor:
        sent = given[chosen]  # a copy, which a stitch may write into
        return _represented(trial, by, sent.contiguous(memory_format=torch.channels_last) if many else sent)

    coarse = all(score.coarse for score in trial.scores)
    found, notes = yield from asking(suffix, fused, represented, len(given), coarse, partial(represented, by=folded))
    if not found.isfinite().all():
        raise FitError(f"the outputs of the stitched network {trial.where} are not finite")
    return found, notes


def _represented(trial: Trial, stitch: nn.Module, given: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = stitch(match_dtype(given, stitch).to(trial.receiver.device))
    return out


def _error(trial: Trial, cache: Activations, stitch: nn.Module) -> float:
    """The stitched network's representation error, on the samples that are compared."""
    compared = trial.compared
    given = cache.at(trial.sender, trial.sender_cut, trial.score_data)[: len(compared)]
    own = cache.at(trial.receiver, trial.receiver_cut, compared).to(trial.receiver.device)
    return representation_error(lambda part: _represented(trial, stitch, part), given, own)

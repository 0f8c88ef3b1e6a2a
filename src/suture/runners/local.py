"""Trials in this process, one after another."""

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from suture.activations import Activations
from suture.controls import DEFAULT, Control
from suture.data import Data
from suture.errors import OutputError
from suture.fits import Fit
from suture.network import Network
from suture.plans import DEFAULT_SCORES, At, Scores, seam
from suture.runners.progress import Progress, Silent
from suture.stitches import Stitch
from suture.table import save, to_table
from suture.trial import Failure, Measurement, Trial, measure

TABLE = "table.parquet"


def run(plan: Iterable[Trial], *, store: str | Path | None = None, progress: Progress | None = None) -> pd.DataFrame:
    """Measure the trials of a plan, in its order; the table, one row per trial and score.

    A trial that fails is recorded (``status`` is ``failed``, ``error`` says why) and does not stop the others. With
    ``store``, a folder, the table so far is written to ``store/table.parquet`` after every trial, so that nothing that
    was measured is lost. Raises ``OutputError`` before any work where the folder cannot be written to.
    """
    folder = prepare_folder(store) if store is not None else None
    results: list[Measurement | Failure] = []

    def keep(result: Measurement | Failure) -> None:
        results.append(result)
        if folder is not None:
            save(to_table(results), folder / TABLE)

    run_all(plan, keep, progress)
    return to_table(results)


def stitch(
    sender: Network,
    receiver: Network,
    *,
    at: At,
    data: Data,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Scores = DEFAULT_SCORES,
    controls: Sequence[Control] = DEFAULT,
    seed: int = 0,
) -> Measurement:
    """Measure one seam, with its controls beside it in ``.controls``.

    ``at`` is a cut of both networks, or ``(sender cut, receiver cut)``; the other settings are those of ``curve``.
    Raises what the plain trial raises; a control that fails is a ``Failure`` among the controls.
    """
    plan = seam(
        sender, receiver, at=at, data=data, stitch=stitch, fit=fit, scores=scores, controls=controls, seeds=(seed,)
    )
    plain, *others = plan
    cache = Activations()
    measurement = measure(plain, cache)
    return replace(measurement, controls=tuple(attempt(other, cache) for other in others))


def run_all(
    plan: Iterable[Trial], keep: Callable[[Measurement | Failure], None], progress: Progress | None = None
) -> None:
    """Measure every trial and hand over each result as soon as it is there."""
    trials = list(plan)
    shown = progress if progress is not None else Silent()
    cache = Activations()
    shown.begin(len(trials))
    try:
        for trial in trials:
            shown.working_on(trial.where)
            result = attempt(trial, cache)
            keep(result)
            shown.done(result)
    finally:
        shown.end()


def attempt(trial: Trial, cache: Activations) -> Measurement | Failure:
    """Measure a trial; where that fails, say why instead of raising."""
    begun = time.perf_counter()
    try:
        return measure(trial, cache)
    except Exception as error:  # a user's stitch, fit or score may raise anything
        reason = f"{type(error).__name__}: {error}"
        return Failure(trial, reason, traceback.format_exc(), time.perf_counter() - begun)


def prepare_folder(path: str | Path) -> Path:
    """Make a folder to write to. Raises ``OutputError`` where that cannot be done."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}; name another folder") from error
    return folder

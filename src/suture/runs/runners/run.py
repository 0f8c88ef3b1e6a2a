"""The driver of a run: it brings plan, store and runner together."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd

from suture.common.errors import OutputError, RunnerError, StoreError
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.core.stitched import At, Seam
from suture.core.stitches import Stitch
from suture.data import Data
from suture.fits import Fit
from suture.measurement.scores.scores import Score
from suture.measurement.trials.controls import DEFAULT, Control
from suture.measurement.trials.measure import attempt, measure
from suture.measurement.trials.plans import DEFAULT_SCORES, Settings, plan_seam
from suture.measurement.trials.trial import Measurement, Trial
from suture.runs.runners.base import Deferred, Runner, TrainingTask
from suture.runs.runners.local import Local
from suture.runs.runners.progress import Progress, choose_bar
from suture.runs.runners.queue import Work, check_plan
from suture.runs.store.store import Store


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted; it says how much is done and how to continue."""


def run(
    plan: Iterable[Trial | Deferred | TrainingTask],
    *,
    store: str | Path | Store | None = None,
    on: Runner | None = None,
    progress: Progress | None = None,
    retry: bool = False,
    extend: bool = False,
    command: str | None = None,
) -> pd.DataFrame:
    """Measure the trials of a plan; return the table, one row per trial and score, in the plan's order.

    A plan may also have trainings, which give no row, and ``Deferred`` trials, planned when their networks are trained.
    With ``store``, a folder, everything measured is kept there at once, and what is there is not measured again: a run
    that was stopped continues, and several processes may share the work of one store. ``on`` says where trials run:
    ``Local()`` by default, or ``Ray()``; the scores are the same, bit for bit. A trial that fails is recorded
    (``status`` is ``failed``, ``error`` says why), does not stop the others, and is measured again only with ``retry``.
    ``extend`` lets a store take trials of another plan than its own. ``command`` is how a shell would continue the run,
    for people who find the folder. ``progress`` hears how far it is: on a terminal a bar by default, else nothing;
    ``runners.Lines()`` writes lines, in a notebook too, and ``runners.Silent()`` is silent.

    Raises ``DataError`` if the plan has no trial, ``StoreError`` if the folder is another run's, ``OutputError``
    if it cannot be written to, ``RunnerError`` if trials cannot run; an interruption at the keyboard ends it
    within seconds, as ``Interrupted``.
    """
    check_kind("on", on, Runner | None, "where trials run, such as Local() or Ray()", RunnerError)
    if store is None and (retry or extend):
        raise StoreError(f"{'retry' if retry else 'extend'}=True is for a store; give store=FOLDER, or leave it out")
    shown = progress if progress is not None else choose_bar()
    work = Work(check_plan(plan), _open(store), shown, retry=retry, extend=extend, command=command)
    try:
        if not work.exhausted:
            runner = (on if on is not None else Local()).prepared(tuple(work.trials.values()))
            with _scratch(work.store) as scratch, closing(runner.run(work, scratch)) as outcomes:
                for task, outcome in outcomes:
                    work.keep(task, outcome)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {work.say_so_far()}{_say_how_to_go_on(work, command)}") from None
    except OutputError as error:
        raise OutputError(f"{error}. {work.say_so_far()}{_say_how_to_go_on(work, command)}") from error
    finally:
        work.end()
    work.check_bases()
    return work.table()


def stitch(
    sender: Network,
    receiver: Network,
    *,
    at: At,
    data: Data,
    stitch: Stitch | None = None,
    fit: Fit | None = None,
    scores: Sequence[Score] = DEFAULT_SCORES,
    controls: Sequence[Control] = DEFAULT,
    seed: int = 0,
) -> Measurement:
    """Measure one seam, with its controls beside it in ``.controls``.

    ``at`` is a cut of both networks, or ``(sender cut, receiver cut)``; the other settings are those of ``curve``.
    Raises what the plain trial raises; a control that fails is a ``Failure`` among the controls.
    """
    settings = Settings(stitch, fit, scores, controls, seeds=(seed,))
    plain, *others = plan_seam(Seam.at(sender, receiver, at), data, settings)
    cache = Activations()
    measurement = measure(plain, cache)
    return replace(measurement, controls=tuple(attempt(other, cache) for other in others))


def _say_how_to_go_on(work: Work, command: str | None) -> str:
    if work.store is None:
        return ""
    return f"; go on with: {command}" if command is not None else "; the same call goes on from there"


def _open(store: str | Path | Store | None) -> Store | None:
    return store if store is None or isinstance(store, Store) else Store.make(store)


@contextmanager
def _scratch(store: Store | None) -> Iterator[Path]:
    """A folder for what may be lost: the store's, or one that is removed afterwards."""
    if store is not None:
        yield store.activations
        return
    with tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)

"""The commands that measure, ``demo``, ``curve`` and ``matrix``, and ``plan``, which says what they will cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.models import models_named
from suture.cli.output import say
from suture.common.errors import ShapeError, SutureError


class Asked(NamedTuple):
    """What is asked for: the trials, the store, if any, and what they are in words."""

    trials: Any
    store: Any
    words: str


def demo(chosen: Namespace, command: str) -> int:
    """Measure the demonstration's curve; the exit code."""
    from suture.cli.demo import demo
    from suture.runs.runners.progress import shown
    from suture.runs.store.store import Store

    runner = _runner(chosen)
    folder = Store.make(chosen.out).path
    table = demo(folder, shown(), say, on=runner, retry=chosen.retry, command=command)
    return output.finish_curve(table, folder, chosen.json)


def curve(chosen: Namespace, command: str) -> int:
    """Measure a curve; the exit code."""
    asked = _curve(chosen, store_to_write)
    return output.finish_curve(measured_table(chosen, asked, command), folder_of(asked), chosen.json)


def matrix(chosen: Namespace, command: str) -> int:
    """Measure a matrix; the exit code."""
    asked = _matrix(chosen, store_to_write)
    return output.finish_matrix(measured_table(chosen, asked, command), folder_of(asked), chosen.json)


def plan(chosen: Namespace, command: str) -> int:
    """Say what a command will cost, and measure nothing; the exit code."""
    from suture.common.sizes import parse_size
    from suture.report.terminal import forecast as forecasts
    from suture.runs.forecast import forecast
    from suture.runs.store.plans import settings_of as plan_settings

    given = chosen[chosen.what]
    asked = {"curve": _curve, "matrix": _matrix}[chosen.what](given, _there)
    if asked.store is not None:  # refuse another run's store, as measuring would
        asked.store.plans.check({trial.key for trial in asked.trials}, plan_settings(asked.trials), given.extend)
    ram, disk = (parse_size(given[name]) if given[name] is not None else None for name in ("ram", "disk"))
    made = forecast(asked.trials, store=asked.store, workers=given.workers, ram=ram, disk=disk, retry=given.retry)
    if given.json:
        output.show_json(forecasts.record(made))
    else:
        output.show(forecasts.forecast_table(made))
    return 0


# --- what is asked for ------------------------------------------------------------------------------------------------


def store_to_write(folder: str) -> Any:
    """The store in a folder that is to be written to."""
    from suture.runs.store.store import Store

    return Store.make(folder)


def _there(folder: str) -> Any:
    """The store in a folder that may be there already."""
    from suture.runs.store.files import writing_to
    from suture.runs.store.store import LABEL, Store

    path = Path(folder).expanduser()
    with writing_to(path):
        if path.is_file():
            raise FileExistsError
    return Store(folder) if (path / LABEL).exists() else None


def folder_of(asked: Asked) -> Path | None:
    """The folder of the run, if it has one."""
    return asked.store.path if asked.store is not None else None


def _curve(chosen: Namespace, opened: Callable[[str], Any]) -> Asked:
    settings = settings_of(chosen)
    models = models_named([chosen.sender, chosen.receiver])
    if len(models) == 1:
        say(f"suture: sender and receiver are one network, {chosen.sender}; give another to compare")
    store, data, networks = prepared_for(chosen, models, opened)
    sender, receiver = networks[0], networks[-1]
    trials = _at_cuts(chosen.at, sender, receiver, data=data, **settings)
    return Asked(trials, store, asked_words(f"{sender.name} → {receiver.name}", data))


def _matrix(chosen: Namespace, opened: Callable[[str], Any]) -> Asked:
    from suture.measurement.trials import plans

    settings = settings_of(chosen)
    into = chosen.into if chosen.into is not None else chosen.senders
    if chosen.into is None and len(dict.fromkeys(chosen.senders)) == 1:
        raise SutureError(
            f"{chosen.senders[0]} is the only network; give others, or --into RECEIVER, which may be the same again"
        )
    texts = list(dict.fromkeys((*chosen.senders, *into)))
    store, data, networks = prepared_for(chosen, models_named(texts), opened)
    named = dict(zip(texts, networks, strict=True))
    sides = [[named[text] for text in dict.fromkeys(side)] for side in (chosen.senders, into)]
    settings |= {key: patterns_of(chosen[option]) for key, option in _CUTS.items()}
    try:
        trials = plans.matrix(sides[0], sides[1], data=data, **settings)
    except ShapeError as error:
        raise ShapeError(f"{error}; choose other cuts with --at, or another --stitch") from error
    names = [", ".join(network.name for network in side) for side in sides]
    return Asked(trials, store, asked_words(" → ".join(names), data))


_CUTS = {"cuts": "at", "sender_cuts": "sender_at", "receiver_cuts": "receiver_at"}


def patterns_of(text: str | None) -> tuple[str, ...] | None:
    """The patterns between the commas of an option."""
    return None if text is None else tuple(pattern.strip() for pattern in text.split(","))


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """How to measure: what a plan takes beside networks, cuts and data. Wrong numbers are refused first."""
    from suture.cli.names import check_least, controls_named, fit_named, stitch_named, variants_named

    check_least(chosen, seeds=1, fit_samples=2, score_samples=2, size=1)
    _runner(chosen)
    variants_named(chosen.variant)
    return {
        "stitch": stitch_named(chosen.stitch) if chosen.stitch is not None else None,
        "fit": fit_named(chosen.fit),
        "controls": controls_named(chosen.controls),
        "seeds": chosen.seeds,
    }


def _runner(chosen: Namespace) -> Any:
    from suture.cli.names import runner_named

    return runner_named(chosen.on, workers=chosen.workers, ram=chosen.ram, disk=chosen.disk)


def prepared_for(chosen: Namespace, models: list[Any], opened: Callable[[str], Any]) -> tuple[Any, Any, list[Any]]:
    """The store, if one is named, the data, and the networks."""
    from suture.cli.names import variants_named
    from suture.data import load_data
    from suture.data.variants import vary

    variants = variants_named(chosen.variant)
    store = opened(chosen.out) if chosen.out is not None else None
    data = vary(load_data(chosen.data, size=chosen.size, classes=chosen.classes), *variants)
    data = data.limited(fit=chosen.fit_samples, score=chosen.score_samples)
    return store, data, [model.network(data.example) for model in models]


def asked_words(what: str, data: Any) -> str:
    """What is measured, on which data."""
    return f"{what} on {data.name}: {len(data.fit):,} images to fit, {len(data.score):,} to score"


def _at_cuts(at: str | None, sender: Any, receiver: Any, **settings: Any) -> Any:
    """The trials at the cuts that ``--at`` names, or at all that both share."""
    from suture.core.network.cuts import shared_cuts
    from suture.measurement.trials import plans

    plan = plans.Plan(())
    named = shared_cuts(sender.cuts, receiver.cuts) if at is None else [text.strip() for text in at.split(",")]
    for text in map(str, plans.expand_patterns(named, sender, receiver)):
        cuts = [cut.strip() for cut in text.split(":")]
        if len(cuts) > 2:
            raise SutureError(f"--at {text}: give one cut, or SENDER_CUT:RECEIVER_CUT where the names differ")
        try:
            seam = plans.curve(sender, receiver, at=[(cuts[0], cuts[-1])], **settings)
        except ShapeError as error:
            raise ShapeError(f"at {text}: {error}; choose the cuts with --at, or another --stitch") from error
        if seam[0].receiver_cut in {trial.receiver_cut for trial in plan}:
            raise SutureError(f"--at leads to the receiver's cut '{seam[0].receiver_cut}' twice; a curve has it once")
        plan += seam
    return plan


# --- what is done with it ---------------------------------------------------------------------------------------------


def measured_table(chosen: Namespace, asked: Asked, command: str) -> Any:
    """The table of what is asked for."""
    from suture.runs.runners import run
    from suture.runs.runners.progress import shown

    say(asked.words)
    return run(
        asked.trials,
        store=asked.store,
        on=_runner(chosen),
        progress=shown(),
        retry=chosen.retry,
        extend=chosen.extend,
        command=command,
    )

"""The commands that measure this library against the loops that people write: ``bench`` and what follows it."""

from datetime import datetime
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.measure_commands import patterns_of
from suture.cli.models import models_named
from suture.cli.output import say
from suture.common.errors import ShapeError, SutureError


def bench(chosen: Namespace, command: str) -> int:
    """Do what ``bench`` is told; the exit code."""
    if chosen.what == "similarity":
        from suture.cli.bench_similarity import run

        return run(chosen.similarity, command)
    return _matrix(chosen.matrix, command)


def _matrix(chosen: Namespace, command: str) -> int:
    from suture.measurement.trials.controls import DEFAULT
    from suture.runs.bench import Folder, benchmark, methods_for, run, summarise
    from suture.runs.runners.progress import shown

    sample, further = _checked(chosen)
    networks, data = _networks(chosen)
    grid = _grid(chosen, networks, data)
    known = methods_for(len(data.fit), further, least_squares=not chosen.no_least_squares)
    controls = DEFAULT if chosen.controls else ()
    planned = benchmark(grid, known, sample=sample, repeats=chosen.repeats, controls=controls)
    _say(planned, data)
    result = run(planned, Folder(chosen.out), _subject(networks, data, command), shown())
    return _finish(summarise(result), result, chosen)


# --- what is asked for ------------------------------------------------------------------------------------------------


def _checked(chosen: Namespace) -> tuple[int | None, list[tuple[str, Any]]]:
    """How many cells, and the further fits by name; wrong settings are refused before anything is read."""
    from suture.cli.names import check_least, fit_named, variants_named

    check_least(chosen, repeats=1, fit_samples=2, score_samples=2, size=1)
    if len(chosen.networks) not in (0, 2):
        given = ", ".join(chosen.networks)
        raise SutureError(f"NETWORK {given}: give two, a sender and a receiver, or none for two of our own")
    if chosen.networks and chosen.data is None:
        raise SutureError("missing --data: say on which data the networks are stitched, such as --data cifar10")
    if not chosen.networks and (chosen.data not in (None, "digits") or chosen.variant or chosen.size):
        raise SutureError("our own networks are for the digits as they are; name a sender and a receiver, too")
    variants_named(chosen.variant)
    text = chosen.sample.strip()
    if text != "all" and not (text.isdecimal() and int(text) > 0):
        raise SutureError(f"--sample {chosen.sample}: give a number of cells from 1, or all")
    return None if text == "all" else int(text), [(fit, fit_named(fit)) for fit in dict.fromkeys(chosen.fit or ())]


def _networks(chosen: Namespace) -> tuple[list[Any], Any]:
    """Sender and receiver, and the data."""
    from suture.cli.demo import two_networks
    from suture.cli.names import variants_named
    from suture.data import load_data
    from suture.data.variants import vary

    variants = variants_named(chosen.variant)
    whole = vary(load_data(chosen.data or "digits", size=chosen.size, classes=chosen.classes), *variants)
    data = whole.limited(fit=chosen.fit_samples, score=chosen.score_samples)
    if not chosen.networks:
        return two_networks(whole, say), data
    networks = [model.network(data.example) for model in models_named(chosen.networks)]
    return [networks[0], networks[-1]], data


def _grid(chosen: Namespace, networks: list[Any], data: Any) -> Any:
    """The trials of the whole matrix, without controls."""
    from suture.measurement.trials import plans

    sender, receiver = networks
    settings: dict[str, Any] = {name: patterns_of(chosen[name]) for name in ("cuts", "sender_cuts", "receiver_cuts")}
    try:
        return plans.matrix(sender, receiver, data=data, controls=(), **settings)
    except ShapeError as error:
        raise ShapeError(f"{error}; choose other cuts with --cuts") from error


def _subject(networks: list[Any], data: Any, command: str) -> Any:
    import torch

    from suture.common.processor import processor
    from suture.measurement.trials.trial import VERSION
    from suture.runs.bench import Subject

    roles = (data.fit, data.validation, data.score)
    sender, receiver = networks
    return Subject(
        sender=sender.name,
        receiver=receiver.name,
        data=data.name,
        fingerprints=(sender.fingerprint, receiver.fingerprint, *(role.fingerprint for role in roles)),
        images=(len(data.fit), len(data.validation), len(data.score)),
        processor=processor(),
        torch=torch.__version__,
        version=VERSION,
        made=(f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}", command),
    )


# --- what is said of it -----------------------------------------------------------------------------------------------


def _say(planned: Any, data: Any) -> None:
    names = ", ".join(method.name for method in planned.methods)
    trials, grid = planned.trials, planned.grid
    seam = f"{trials[0].sender.name} → {trials[0].receiver.name} on {data.name}"
    say(f"{seam}: {len(trials)} of {len(grid)} cells by {len(planned.methods)} methods: {names}")
    if planned.controls:
        say(f"and {len(planned.controls)} measurements of controls")


def _finish(summary: Any, result: Any, chosen: Namespace) -> int:
    from suture.report.terminal import bench as report

    if chosen.json:
        output.show_json(report.record(summary, result) | {"folder": str(Path(chosen.out).expanduser())})
    else:
        parts: list[Any] = [report.heading(result)]
        if summary.methods:
            parts += ["", report.methods_table(summary, result), "", report.explanation(summary, result)]
        if summary.controls:
            parts += ["", report.controls_table(summary), "", report.controls_words(summary)]
        output.show(*parts)
    failed = [record for record in (*result.records, *result.controls) if record.error is not None]
    if failed:
        reasons = "; ".join(dict.fromkeys(str(record.error) for record in failed[:3]))
        say(f"suture: {len(failed)} measurements failed: {reasons}")
    return 1 if failed else 0

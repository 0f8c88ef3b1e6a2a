"""The commands for evidence beside the stitch: ``compare``, ``localise``, ``complexity`` and ``explain``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.measure_commands import (
    Asked,
    asked_words,
    folder_of,
    measured_table,
    patterns_of,
    prepared_for,
    settings_of,
    store_to_write,
)
from suture.cli.models import models_named
from suture.cli.output import say
from suture.common.errors import CheckpointError, DataError, SutureError

SIMILARITIES, COMPLEXITY = "similarities.parquet", "complexity.parquet"
_STITCHED = ("", "itself")  #: the controls whose networks can be made again: those that are trained


def compare(chosen: Namespace, command: str) -> int:
    """Compare two networks at all pairs of cuts; the exit code."""
    from suture.cli.names import indices_named
    from suture.measurement.compare import beside
    from suture.measurement.compare import compare as compared
    from suture.measurement.tables import table as tables
    from suture.report.figures import curve as figures
    from suture.report.figures import similarity as similarities
    from suture.report.terminal import evidence

    by = indices_named(chosen.by)
    _check_numbers(chosen, samples=2, size=1)
    if chosen.samples_as not in ("flattened", "pixels"):
        raise SutureError(f"--samples-as {chosen.samples_as}: give flattened or pixels")
    measured = _run_table(chosen.beside) if chosen.beside is not None else None
    folder = _out(chosen.out)
    data = _data(chosen)
    models = models_named([chosen.first, chosen.second])
    networks = [model.network(data.example) for model in models]
    cuts = {name: patterns_of(chosen[name]) for name in ("cuts", "sender_cuts", "receiver_cuts")}
    settings: dict[str, Any] = {"by": by, "samples": chosen.samples, "samples_as": chosen.samples_as, **cuts}
    found = compared(networks[0], networks[-1], data=data, **settings)
    files = [] if folder is None else [tables.save(found, folder / SIMILARITIES)]
    if folder is not None:
        files += figures.save(similarities.grid(found), folder / "similarities")
    if measured is not None:
        joined, figure = beside(measured, found), similarities.along(measured, found)
        if folder is not None:
            files += [tables.save(joined, folder / "beside.parquet"), *figures.save(figure, folder / "beside")]
    parts: output.Parts = [[evidence.similarity_heading(found)], [*evidence.similarity_tables(found, output.width())]]
    return _hand_over(found, files, parts, chosen.json)


def localise(chosen: Namespace, command: str) -> int:
    """Stitch a trait's carrier and a reference network both ways, and say where the trait lies; the exit code."""
    from suture.cli.names import trait_named, variants_named

    trait = trait_named(chosen.trait)
    variants_named(chosen.fit_variant)
    settings = settings_of(chosen)
    models = models_named([chosen.carrier, chosen.reference])
    if len(models) == 1:
        raise SutureError(
            f"carrier and reference network are one network, {chosen.carrier}; give another that has no trait"
        )
    asked, made = _localised(chosen, trait, models, settings)
    table = measured_table(chosen, asked, command)
    return _finish_localised(table, folder_of(asked), made, [model.name for model in models], chosen.json)


def _localised(chosen: Namespace, trait: Any, models: list[Any], settings: dict[str, Any]) -> tuple[Asked, Any]:
    """What is asked for, and the trait on these data."""
    from suture.cli.names import variants_named
    from suture.data.variants import vary
    from suture.measurement.trials.localise import localise as planned

    store, data, (carrier, reference) = prepared_for(chosen, models, store_to_write)
    made = trait(data)
    if chosen.controls == "all":
        settings["controls"] = None  # all that suit the trait
    fitted = vary(data, *variants_named(chosen.fit_variant))
    trials = planned(made, carrier, reference, data=data, fit_data=fitted, at=_seams(chosen.at), **settings)
    words = f"{made.name}, {asked_words(f'{carrier.name} ↔ {reference.name}', fitted)}"
    return Asked(trials, store, words), made


def _finish_localised(table: Any, folder: Path | None, trait: Any, names: list[str], as_json: bool) -> int:
    from suture.report.figures import curve as figures
    from suture.report.figures import localise as localisations
    from suture.report.terminal import evidence

    files = [] if folder is None else [folder / "table.parquet"]
    record: dict[str, Any] = {}
    try:
        figure, found = localisations.localisation(table, trait, *names)
    except DataError as error:  # trials failed, of all seams of one way
        parts: output.Parts = [[f"nothing can be said of where '{trait.name}' lies: {error}"]]
    else:
        files += figures.save(figure, folder / "localise") if folder is not None else []
        parts = [[evidence.trait_heading(found)], [evidence.trait_table(found)], [str(found)]]
        record = evidence.trait_record(found)
    return output.hand_over(table, files, record if as_json else None, parts)


def complexity(chosen: Namespace, command: str) -> int:
    """Measure the complexity of what a run stitched, or of networks; the exit code."""
    from suture.cli.names import measures_named
    from suture.measurement.tables import table as tables
    from suture.report.figures import complexity as complexities
    from suture.report.figures import curve as figures
    from suture.report.terminal import evidence
    from suture.runs.store.store import LABEL

    by = measures_named(chosen.by) if chosen.by is not None else None
    _check_numbers(chosen, samples=2, size=1)
    run = (Path(chosen.measured[0]).expanduser() / LABEL).exists()
    if run and len(chosen.measured) > 1:
        raise SutureError(f"{chosen.measured[0]} is the folder of a run; give it alone")
    if not run and chosen.networks is not None:
        raise SutureError("--networks: these are for the folder of a run; name networks without it")
    folder = _out(chosen.out)
    data = _data(chosen)
    samples = data.score.first(min(chosen.samples, len(data.score)))
    rows = _of_run(chosen, data, samples, by) if run else _of_networks(chosen.measured, data, samples, by)
    files = [] if folder is None else [tables.save(rows, folder / COMPLEXITY)]
    if folder is not None and run:
        files += figures.save(complexities.along(rows), folder / "complexity")
    heading = f"complexity on {len(samples):,} images of {samples.name}"
    return _hand_over(rows, files, [[heading], [evidence.complexity_table(rows)]], chosen.json)


def _of_networks(texts: list[str], data: Any, samples: Any, by: Any) -> Any:
    import pandas as pd

    from suture.measurement.complexity import complexity as measure

    networks = [model.network(data.example) for model in models_named(texts)]
    return pd.concat([measure(network, samples, by, _alone(network)) for network in networks], ignore_index=True)


def _alone(network: Any) -> dict[str, object]:
    """The labels of a network that is not stitched."""
    cuts = {"sender_cut": "", "receiver_cut": "", "sender_depth": None, "receiver_depth": None}
    return {"control": "", "sender": network.name, "receiver": network.name} | cuts


def _of_run(chosen: Namespace, data: Any, samples: Any, by: Any) -> Any:
    """The rows of what a run stitched, then those of its networks."""
    import pandas as pd

    from suture.measurement.complexity import RANKS
    from suture.measurement.complexity import complexity as measure

    given = [model.network(data.example) for model in models_named(chosen.networks)] if chosen.networks else []
    folder = Path(chosen.measured[0]).expanduser()
    _check_of_run(folder, given)
    networks = {network.fingerprint: network for network in given}
    rows: list[Any] = []
    for control, stitched in _stitched(folder, networks):
        seam = stitched.seam
        say(f"measuring {seam.sender.name} → {seam.receiver.name} at {seam.receiver_cut}")
        rows.append(measure(stitched, samples, by, {"control": control} | stitched.seam.labels))
    if not rows:
        raise DataError(f"{chosen.measured[0]} has measured no stitched network yet; see suture status")
    alone = None if by is None else [one for one in by if type(one) not in {type(rank) for rank in RANKS}]
    rows += [measure(one, samples, alone, _alone(one)) for one in networks.values() if alone is None or alone]
    return pd.concat([part.astype(rows[0].dtypes) for part in rows], ignore_index=True)


def _check_of_run(folder: Path, networks: list[Any]) -> None:
    """Refuse a network that a run has not stitched."""
    sides = [sides[role] for _, _, sides in _seams_of(folder) for role in ("sender", "receiver")] if networks else []
    known = {side["fingerprint"]: side["name"] for side in sides}
    for network in networks:
        if network.fingerprint not in known:
            raise DataError(
                f"--networks {network.name}: {folder} has stitched no such network with these weights; its networks: "
                f"{', '.join(dict.fromkeys(known.values())) or 'none yet'}"
            )


def _seams_of(folder: Path) -> Iterator[tuple[Path, str, Any]]:
    """What a run stitched of trained networks: the folder of each trial, its control, and what is said of its sides."""
    from suture.core.saving import read
    from suture.runs.store.store import TRIALS, Store

    store = Store(folder)
    done = store.finished()
    for trial in store.plans.trials():
        control = str(trial.labels["control"])
        if trial.key in done and control in _STITCHED and trial.labels["sender"]:
            path = folder / TRIALS / trial.key
            yield path, control, read(path).description


def _stitched(folder: Path, networks: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a run stitched of trained networks, with its control; networks that had to be made are added."""
    from suture.zoo.load import load_stitched

    for path, control, sides in _seams_of(folder):
        known = [networks.get(sides[role]["fingerprint"]) for role in ("sender", "receiver")]
        try:
            stitched = load_stitched(path, *known)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; name the networks of the run: --networks NETWORK …") from error
        for network in stitched.seam.networks:
            networks.setdefault(network.fingerprint, network)
        yield control, stitched


def explain(chosen: Namespace, command: str) -> int:
    """Say what a run says, and what must not be concluded from it; the exit code."""
    import textwrap
    from dataclasses import asdict

    from suture.measurement.tables import table as tables
    from suture.measurement.tables.explain import explain as explained

    folder = Path(chosen.folder).expanduser()
    table = _run_table(chosen.folder)
    beside = {"similarities": tables.read(folder / SIMILARITIES), "ranks": tables.read(folder / COMPLEXITY)}
    said = explained(table, **beside, score=chosen.score, margin=chosen.margin, chance=chosen.chance)
    if chosen.json:
        output.show_json(asdict(said))
        return 0
    for line in str(said).splitlines():
        wide = output.width()
        print(textwrap.fill(line, wide, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))
    return 0


# --- what several share -----------------------------------------------------------------------------------------------


def _check_numbers(chosen: Namespace, **least: int) -> None:
    for name, smallest in least.items():
        if chosen[name] is not None and chosen[name] < smallest:
            raise SutureError(f"--{name} {chosen[name]}: give at least {smallest}")


def _data(chosen: Namespace) -> Any:
    from suture.cli.names import variants_named
    from suture.data import load_data
    from suture.data.variants import vary

    variants = variants_named(chosen.variant)
    return vary(load_data(chosen.data, size=chosen.size, classes=chosen.classes), *variants)


def _run_table(folder: str) -> Any:
    from suture.runs.store.store import Store

    table = Store(folder).table()
    if not len(table):
        raise DataError(f"{folder} has measured nothing yet; see suture status {folder}")
    return table


def _out(folder: str | None) -> Path | None:
    """The folder that results go to, made before anything is computed."""
    if folder is None:
        return None
    from suture.runs.store.files import folder_to_write

    return folder_to_write(folder)


def _seams(text: str | None) -> list[Any] | None:
    """What ``--at`` names, for ``localise``."""
    if text is None:
        return None
    seams = [tuple(cut.strip() for cut in each.split(":")) for each in dict.fromkeys(text.split(","))]
    wrong = [":".join(seam) for seam in seams if len(seam) > 2]
    if wrong:
        raise SutureError(f"--at {wrong[0]}: give one cut, or CARRIER_CUT:REFERENCE_CUT where the names differ")
    return [seam if len(seam) == 2 else seam[0] for seam in seams]


def _hand_over(table: Any, files: list[Path], parts: output.Parts, as_json: bool) -> int:
    """Print what was found, as JSON where that is asked for, and say which files were written."""
    if as_json:
        output.show_json({"rows": output.records(table), "files": [str(file) for file in files]})
    else:
        output.show(*[line for part in parts if any(part) for line in ("", *part)][1:])
    for file in files:
        say(f"wrote {file}")
    return 0

"""``suture complexity``: rank, sharpness, gradient norm and size of what a run stitched, or of networks."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.explain import COMPLEXITY
from suture.cli.measuring import models_named
from suture.cli.names import NAMES, NameOption, make, names_of, split_names
from suture.cli.options import (
    MODEL,
    add_data,
    add_json,
    add_model,
    add_named,
    add_out,
    at_least,
    load,
    pictures,
)
from suture.common.errors import CheckpointError, DataError, SutureError

MEASURES = NameOption(("measure", "group of measures"), many=True)
_STITCHED = ("", "itself")  #: the controls whose networks can be made again: those that are trained


def options(parser: Parser) -> None:
    """Add the options."""
    measured = f"the folder of a run, or networks: {MODEL}"
    add_model(parser, "measured", nargs="+", metavar="RUN or NETWORK", help=measured)
    add_data(parser, required=True)
    names = ", ".join(names_of("group of measures", "measure"))
    by = f"some of {names}; with settings as in mean-sharpness,epsilon=0.01; by default all but curvature"
    add_named(parser, "--by", MEASURES, metavar="MEASURES", help=by)
    samples = "measure on the first N test images"
    parser.add_argument("--samples", type=at_least(2), default=500, metavar="N", help=samples)
    networks = "the networks of the run, if it cannot make them by itself (of Python files)"
    add_model(parser, "--networks", nargs="+", metavar="NETWORK", help=networks)
    add_out(parser, pictures("complexity", COMPLEXITY))
    add_json(parser)


def measures_of(text: str) -> tuple[Any, ...]:
    """Return the measures that a text names, and those of the groups that it names."""
    found = [
        make("group of measures", part) if part in NAMES["group of measures"] else (make("measure", part),)
        for part in split_names(text)
    ]
    return tuple(dict.fromkeys(measure for group in found for measure in group))


def run(chosen: Namespace) -> int:
    """Measure the complexity of what a run stitched, or of networks, and return the exit code."""
    import pandas as pd

    from suture.measurement.complexity import complexity
    from suture.measurement.tables import table as tables
    from suture.report.figures import curve as figures
    from suture.report.terminal import evidence
    from suture.runs.store.files import folder_to_write
    from suture.runs.store.store import LABEL

    by = measures_of(chosen.by) if chosen.by is not None else None
    first = Path(chosen.measured[0]).expanduser()
    of_run = (first / LABEL).exists()
    if of_run and len(chosen.measured) > 1:
        raise SutureError(f"{chosen.measured[0]} is the folder of a run; give it alone")
    if not of_run and chosen.networks is not None:
        raise SutureError("--networks: these are for the folder of a run; name networks without it")
    folder = folder_to_write(chosen.out) if chosen.out is not None else None
    data = load(chosen)
    samples = data.score.first(min(chosen.samples, len(data.score)))
    networks = [
        model.network(data.example) for model in models_named((chosen.networks or ()) if of_run else chosen.measured)
    ]
    if of_run:
        rows = _of_run(first, networks, samples, by)
    else:
        rows = pd.concat([complexity(one, samples, by, _alone(one)) for one in networks], ignore_index=True)
    files = []
    if folder is not None:
        files += [tables.save(rows, folder / COMPLEXITY)]
        files += figures.save(figures.complexity(rows), folder / "complexity") if of_run else []
    parts: output.Parts = [
        [f"complexity on {len(samples):,} images of {samples.name}"],
        [evidence.complexity_table(rows)],
    ]
    return output.hand_over(rows, files, {} if chosen.json else None, parts)


def _alone(network: Any) -> dict[str, object]:
    """Return the labels of a network that is not stitched."""
    cuts = {"sender_cut": "", "receiver_cut": "", "sender_depth": None, "receiver_depth": None}
    return {"control": "", "sender": network.name, "receiver": network.name} | cuts


def _of_run(folder: Path, given: list[Any], samples: Any, by: Any) -> Any:
    """Return the rows of what a run stitched, then those of its networks."""
    import pandas as pd

    from suture.measurement.complexity import RANKS, complexity

    _check_stitched(folder, given)
    networks = {network.fingerprint: network for network in given}
    rows: list[Any] = []
    for control, stitched in _stitched(folder, networks):
        seam = stitched.seam
        output.say(f"measuring {seam.sender.name} → {seam.receiver.name} at {seam.receiver_cut}")
        rows.append(complexity(stitched, samples, by, {"control": control} | stitched.seam.labels))
    if not rows:
        raise DataError(f"{folder} has measured no stitched network yet; see suture status")
    # ranks are those of a seam, which a network alone does not have
    alone = None if by is None else [one for one in by if type(one) not in {type(rank) for rank in RANKS}]
    rows += [complexity(one, samples, alone, _alone(one)) for one in networks.values() if alone is None or alone]
    return pd.concat([part.astype(rows[0].dtypes) for part in rows], ignore_index=True)


def _check_stitched(folder: Path, networks: list[Any]) -> None:
    """Raise ``DataError`` for a network that a run has not stitched."""
    sides = [sides[role] for _, _, sides in _seams_of(folder) for role in ("sender", "receiver")] if networks else []
    known = {side["fingerprint"]: side["name"] for side in sides}
    for network in networks:
        if network.fingerprint not in known:
            raise DataError(
                f"--networks {network.name}: {folder} has stitched no such network with these weights; its networks: "
                f"{', '.join(dict.fromkeys(known.values())) or 'none yet'}"
            )


def _seams_of(folder: Path) -> Iterator[tuple[Path, str, Any]]:
    """Yield what a run stitched of trained networks: each trial's folder, its control, what is said of its sides."""
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
    """Yield what a run stitched of trained networks, with its control; networks that had to be made are added."""
    from suture.zoo.models import load_stitched

    for path, control, sides in _seams_of(folder):
        known = [networks.get(sides[role]["fingerprint"]) for role in ("sender", "receiver")]
        try:
            stitched = load_stitched(path, *known)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; name the networks of the run: --networks NETWORK …") from error
        for network in stitched.seam.networks:
            networks.setdefault(network.fingerprint, network)
        yield control, stitched


COMMAND = Command(
    name="complexity",
    help="rank, sharpness, gradient norm and size of networks",
    about="Measure the complexity of the stitched networks that a run kept, of their receivers stitched to themselves "
    "and of the networks alone; or of networks by name. All parameters count, frozen or not.",
    examples=(
        "suture complexity runs/ab --data cifar10 --out runs/ab",
        "suture complexity nets/a nets/b --data digits --by gradient-norm,flops",
    ),
    options=options,
    run=run,
)

"""``suture complexity``: rank, sharpness, gradient norm and size of a run's stitched networks, or of networks."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from suture import SutureError
from suture.common.errors import CheckpointError, DataError
from suture.extend import COMPLEXITY_FILE as COMPLEXITY
from suture.extend import (
    DEVICE,
    JSON,
    MODEL,
    NAMES,
    PREPROCESS,
    TRUST,
    NameOption,
    at_least,
    check_device,
    command,
    data_options,
    load_with_networks,
    make,
    model_option,
    option,
    out_option,
    output,
    pictures,
    split_names,
)

_STITCHED = ("", "itself")  #: the controls whose networks can be made again: those that are trained
_SIDES = ("sender", "receiver")


def measures_of(text: str) -> tuple[Any, ...]:
    """Return the measures that a text names, and those of the groups that it names."""
    found = [make("measure", part) for part in split_names(text)]
    return tuple(dict.fromkeys(one for made in found for one in (made if isinstance(made, tuple) else (made,))))


@command(
    "complexity",
    model_option("measured", nargs="+", metavar="RUN or NETWORK", help=f"the folder of a run, or networks: {MODEL}"),
    *data_options(required=True),
    option(
        "--by",
        type=NameOption("measure", many=True),
        metavar="MEASURES",
        help=f"some of {', '.join(NAMES['measure'])}; with settings as in "
        "mean-sharpness,epsilon=0.01; by default all but curvature",
    ),
    option("--samples", type=at_least(2), default=500, metavar="N", help="measure on the first N test images"),
    model_option(
        "--networks",
        nargs="+",
        metavar="NETWORK",
        help="the networks of the run, if it cannot make them itself (from Python files)",
    ),
    DEVICE,
    out_option(pictures("complexity", COMPLEXITY)),
    PREPROCESS,
    TRUST,
    JSON,
    examples=(
        "suture complexity runs/ab --data cifar10 --out runs/ab",
        "suture complexity nets/a nets/b --data digits --by gradient-norm,flops",
    ),
)
def complexity(chosen: Namespace) -> int:
    """Measure rank, sharpness, gradient norm and size of networks.

    Measure the complexity of the stitched networks that a run kept, of their receivers stitched to themselves and of
    the networks alone; or of networks by name. All parameters count, frozen or not.
    """
    import pandas as pd

    from suture.extend import LABEL, figures, folder_to_write, tables, things
    from suture_papers.complexity import pictures

    by, device = measures_of(chosen.by) if chosen.by is not None else None, check_device(chosen.device)
    first = Path(chosen.measured[0]).expanduser()
    of_run = (first / LABEL).exists()
    if of_run and len(chosen.measured) > 1:
        raise SutureError(f"{chosen.measured[0]} is the folder of a run; give it alone")
    if not of_run and chosen.networks is not None:
        raise SutureError("--networks: these are for the folder of a run; name networks without it")
    folder = folder_to_write(chosen.out) if chosen.out is not None else None
    data, networks = load_with_networks(chosen, chosen.networks or () if of_run else chosen.measured)
    samples = data.score.first(min(chosen.samples, len(data.score)))
    given = [network.to(device) for network in networks.values()]
    rows = pd.concat(
        _of_run(first, given, samples, by, device) if of_run else _alone(given, samples, by), ignore_index=True
    )
    files = []
    if folder is not None:
        files += [tables.save(rows, folder / COMPLEXITY)]
        files += figures.save(pictures.plot(rows), folder / "complexity") if of_run else []
    heading = f"complexity on {len(samples):,} {things(samples.images)} of {samples.name}"
    return output.hand_over(chosen, rows, files, [[heading], [pictures.complexity_table(rows)]])


def _alone(networks: list[Any], samples: Any, by: Any) -> list[Any]:
    """Return the rows of networks that are not stitched."""
    from suture_papers.complexity import complexity

    labels: dict[str, object] = {"control": "", "sender": "", "receiver": "", "sender_cut": "", "receiver_cut": ""}
    labels |= {"sender_depth": None, "receiver_depth": None}
    return [complexity(one, samples, by, labels | {"sender": one.name, "receiver": one.name}) for one in networks]


def _of_run(folder: Path, given: list[Any], samples: Any, by: Any, device: str) -> list[Any]:
    """Return the rows of a run's stitched networks, trained ones only, then those of its networks."""
    from suture import Stitched, Store, load_stitched
    from suture.extend import TRIALS
    from suture.extend import read_stitched as read
    from suture_papers.complexity import RANKS, complexity

    store = Store(folder)
    done = store.finished()
    kept = []
    for trial in store.trials(store.finished()):
        control = str(trial.labels["control"])
        if trial.key in done and control in _STITCHED and trial.labels["sender"]:
            path = folder / TRIALS / trial.key
            kept.append((path, control, read(path).description))
    known = {sides[role]["fingerprint"]: sides[role]["name"] for _, _, sides in kept for role in _SIDES}
    for network in given:
        if network.fingerprint not in known:
            raise DataError(
                f"--networks {network.name}: {folder} has stitched no such network with these weights; its networks: "
                f"{', '.join(dict.fromkeys(known.values())) or 'none yet'}"
            )
    networks = {network.fingerprint: network for network in given}
    rows: list[Any] = []
    for path, control, sides in kept:
        try:
            stitched = load_stitched(path, *(networks.get(sides[role]["fingerprint"]) for role in _SIDES))
        except CheckpointError as error:
            raise CheckpointError(f"{error}; name the networks of the run: --networks NETWORK …") from error
        stitched = Stitched(stitched.seam.to(device), stitched.stitch.to(device), stitched.family)
        for network in stitched.seam.networks:
            networks.setdefault(network.fingerprint, network)
        seam = stitched.seam
        output.say(f"measuring {seam.sender.name} → {seam.receiver.name} at {seam.receiver_cut}")
        rows.append(complexity(stitched, samples, by, {"control": control, **seam.labels}))
    if not rows:
        raise DataError(f"{folder} has measured no stitched network yet; see suture status")
    # ranks are those of a seam, which a network alone does not have
    alone = None if by is None else [one for one in by if type(one) not in {type(rank) for rank in RANKS}]
    rows += _alone(list(networks.values()), samples, alone) if alone is None or alone else []
    return [part.astype(rows[0].dtypes) for part in rows]

"""``suture stitch``, ``curve`` and ``matrix``, which measure stitches, and ``plan``, which estimates their cost."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.options import (
    CONFIG,
    CUTS,
    DEVICE,
    JSON,
    PREPROCESS,
    RECEIVER_DATA,
    RUNNING,
    TRUST,
    UNTIL_CONVERGED,
    Command,
    NameOption,
    Option,
    at_least,
    check_device,
    command,
    cuts_of,
    data_options,
    load_with_networks,
    model_option,
    number_or_all,
    option,
    out_option,
    pictures,
    runner_of,
)
from suture.common.errors import SutureError
from suture.common.names import make
from suture.common.sizes import parse_size

CONTROLS = NameOption("control", also=("default", "none"), many=True)
_FAMILY = "conv, linear, low-rank,rank=8, …; by default the family that suits the two shapes"
_FITS = (
    "the fit of the stitches: converged, quick, task-loss, least-squares, match-activations, best-of, random, or a "
    "published fit such as bansal2021; quick,steps=100 changes a setting"
)
_CONTROLS = "default, none, or names separated by commas; baselines too, such as default,linear-probe"
_EXTEND = "add the trials to the folder --out, although another plan made it"


_HOW = (
    *data_options(required=True),
    option("--stitch", type=NameOption("stitch"), metavar="FAMILY", help=_FAMILY),
    option("--fit", type=NameOption("fit"), default="converged", help=_FITS),
    option("--controls", type=CONTROLS, default="default", help=_CONTROLS),
    option(
        "--fit-samples",
        type=number_or_all,
        metavar="N",
        help="fit on the first N samples, or on all; by default 60,000, fewer for costly networks or the quick fit",
    ),
    option("--score-samples", type=at_least(2), metavar="N", help="score only the first N samples"),
    option(
        "--validate-apart",
        type=at_least(2),
        metavar="N",
        help="validate on N of the samples to score, and score the others",
    ),
)  #: what is measured, and how


def measuring(written: str) -> tuple[Option, ...]:
    """Return the options of every command that measures stitches; ``written`` describes the content of the folder."""
    return (
        *_HOW,
        option("--seeds", type=at_least(1, 1000), default=1, metavar="N", help="number of seeds of the stitch"),
        out_option(f"{written}, and for all measurements"),
        *RUNNING,
        option("--extend", action="store_true", help=_EXTEND),
        UNTIL_CONVERGED,
        PREPROCESS,
        TRUST,
        JSON,
        *CONFIG,
    )


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """Return the settings of a plan beside networks, cuts and data."""
    runner_of(chosen)  # refused before anything is loaded
    return {**_named(chosen), "seeds": chosen.seeds}


def _named(chosen: Namespace) -> dict[str, Any]:
    from suture.measurement.trials.plans import name_controls

    return {
        "stitch": make("stitch", chosen.stitch) if chosen.stitch is not None else None,
        "fit": make("fit", chosen.fit),
        "controls": name_controls(chosen.controls, f"--controls {chosen.controls}"),
    }


def seams_of(text: str | None, sides: str) -> list[Any] | None:
    """Return the cuts of ``--at``, pairs of them if names differ. Raises ``SutureError``."""
    if text is None:
        return None
    seams = [tuple(cut.strip() for cut in each.split(":")) for each in text.split(",")]
    for seam in seams:
        if len(seam) > 2:
            raise SutureError(f"--at {':'.join(seam)}: give one cut, or {sides} if the names differ")
    return [seam if len(seam) == 2 else seam[0] for seam in seams]


def measure(
    chosen: Namespace, trials: Any, what: str, data: Any, previews: Any = (), draw: Any = None
) -> tuple[Any, Path | None]:
    """Announce and make a measurement; return the table, and the folder if there is one.

    ``what`` names the measurement. The plans of ``previews`` are measured and shown before. ``draw`` draws the results
    so far on a terminal: given the tables of the previews, and that of the run.
    """
    from suture.data.images import things
    from suture.runs.progress import choose_progress
    from suture.runs.runners.run import preview, run, write_plan
    from suture.runs.store.store import Store

    store = Store.make(chosen.out) if chosen.out is not None else None
    called = things(data.fit.images)
    output.say(f"{what} on {data.name}: {len(data.fit):,} {called} to fit, {len(data.score):,} to score")
    where = {"store": store, "on": runner_of(chosen), "device": chosen.device}
    shown: list[Any] = []
    live = None if draw is None else lambda table: draw([*shown, table])
    if previews and store is not None:  # first, since a folder that is another run's is refused
        write_plan(trials, store, chosen.line, chosen.extend)
    for plan in previews:
        shown.append(preview(plan, **where, progress=choose_progress(live), command=chosen.line))
        output.say_preview(shown[-1])
    table = run(
        trials,
        **where,
        progress=choose_progress(live),
        retry=chosen.retry,
        extend=chosen.extend,
        until_converged=chosen.until_converged,
        command=chosen.line,
    )
    return table, store.path if store is not None else None


# --- stitch -----------------------------------------------------------------------------------------------------------


@command(
    "stitch",
    model_option("sender", metavar="SENDER"),
    model_option("receiver", metavar="RECEIVER", help="named as the sender is"),
    option(
        "--at", required=True, metavar="CUTS", help="one cut of both, or SENDER_CUT:RECEIVER_CUT if the names differ"
    ),
    RECEIVER_DATA,
    *_HOW,
    option("--seed", type=at_least(0), default=0, metavar="N", help="random seed of the stitch"),
    out_option("folder for the stitched network, which suture.load_stitched loads"),
    DEVICE,
    PREPROCESS,
    TRUST,
    JSON,
    examples=("suture stitch zoo:resnet@a.pt zoo:resnet@b.pt --at layer2.0 --data cifar10",),
)
def stitch(chosen: Namespace) -> int:
    """Stitch one network to another at one cut.

    Fit one stitch, with its controls, and print the stitched network's scores and penalty.
    """
    from suture.runs.runners import stitch

    settings, (seam, *more) = _named(chosen), seams_of(chosen.at, "SENDER_CUT:RECEIVER_CUT") or [""]
    if more:
        raise SutureError(f"--at {chosen.at}: a stitch joins at one cut; suture curve measures several")
    device = check_device(chosen.device)
    found, networks = load_with_networks(chosen, [chosen.sender, chosen.receiver])
    ends = networks[chosen.sender], networks[chosen.receiver]
    measured = stitch(*ends, at=seam, data=found, seed=chosen.seed, device=device, **settings)
    files = [measured.save(chosen.out)] if chosen.out is not None else []
    output.answer(chosen, {**measured.record, "files": [str(file) for file in files]}, str(measured))
    output.say_wrote(files)
    return 0


# --- curve ------------------------------------------------------------------------------------------------------------


@command(
    "curve",
    model_option("sender", metavar="SENDER"),
    model_option("receiver", metavar="RECEIVER", help="named as the sender is"),
    option(
        "--at",
        metavar="CUTS",
        help="by default all that both share; names or patterns, A,layer*,… or, if names differ, A:X,B:Y,…",
    ),
    RECEIVER_DATA,
    *measuring(pictures("curve", "table.parquet")),
    examples=(
        "suture curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out runs/ab",
        "suture curve m.py:a m.py:b --data photos --receiver-data texts --at conv:read",
        "suture curve models.py:net@a.pt models.py:net@b.pt --data photos --at layer2.0",
    ),
)
def curve(chosen: Namespace) -> int:
    """Stitch one network to another at every cut that they share.

    Stitch the sender's first layers to the receiver's last layers at every cut that both share, each with its controls,
    and print the stitched network's test accuracy and its penalty, with 95 % intervals.
    """
    planned = plan_curve(chosen)
    from suture.reports.terminal.curve import live_table

    return output.finish_curve(chosen, *measure(chosen, *planned, lambda tables: live_table(tables, output.width())))


def plan_curve(chosen: Namespace, is_sketch: bool = False) -> tuple[Any, str, Any, Any]:
    """Return the trials of a curve, their description, the data (or a sketch), and the plans of its previews."""
    settings, seams = settings_of(chosen), seams_of(chosen.at, "SENDER_CUT:RECEIVER_CUT")
    from suture.measurement.trials.plans import (  # only now: what is refused above need not wait for torch
        curve,
        preview,
    )

    found, networks = load_with_networks(chosen, [chosen.sender, chosen.receiver], is_sketch)
    sender, receiver = networks[chosen.sender], networks[chosen.receiver]
    if sender is receiver:
        output.say(f"suture: sender and receiver are one network, {chosen.sender}; give another to compare")
    trials = curve(sender, receiver, at=seams, data=found, **settings)
    ends = [trial.receiver_cut for trial in trials if trial.seed == 0 and not trial.control]
    for cut in ends:
        if ends.count(cut) > 1:
            raise SutureError(f"--at names the receiver's cut '{cut}' twice; name it once")
    return trials, f"{sender.name} → {receiver.name}", found, preview(trials, found, settings["controls"])


# --- matrix -----------------------------------------------------------------------------------------------------------


@command(
    "matrix",
    model_option("senders", nargs="+", metavar="SENDER"),
    model_option(
        "--into", nargs="+", metavar="RECEIVER", help="the receivers, named as senders are; by default the senders"
    ),
    *CUTS,
    *measuring(pictures("matrix", "table.parquet", "depth.parquet")),
    examples=(
        "suture matrix zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out grid",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --into zoo:mlp@c.pt --data digits",
        "suture matrix zoo:resnet@a.pt m.py:vit@v.pt --data photos --at 'layer*,block*'",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --data digits --stitch low-rank,rank=8",
    ),
)
def matrix(chosen: Namespace) -> int:
    """Stitch every cut of networks to every cut of networks.

    Stitch every cut of every sender to every cut of every receiver, each with its controls, and print the matrices
    (rows sender, columns receiver) and their means by depth. Without --into every network is stitched to every network,
    itself included.
    """
    return output.finish_matrix(chosen, *measure(chosen, *plan_matrix(chosen)))


def plan_matrix(chosen: Namespace, is_sketch: bool = False) -> tuple[Any, str, Any, Any]:
    """Return the trials of a matrix, their description, the data (or a sketch), and the plans of its previews."""
    if chosen.into is None and len(set(chosen.senders)) == 1:
        raise SutureError(
            f"{chosen.senders[0]} is the only network; give others, or --into RECEIVER, which may be the same again"
        )
    settings = settings_of(chosen)
    from suture.measurement.trials.plans import (  # only now: what is refused above need not wait for torch
        matrix,
        preview,
    )

    into = chosen.into if chosen.into is not None else chosen.senders
    found, networks = load_with_networks(chosen, [*chosen.senders, *into], is_sketch)
    senders, receivers = ([networks[text] for text in dict.fromkeys(side)] for side in (chosen.senders, into))
    settings |= cuts_of(chosen)
    trials = matrix(senders, receivers, data=found, **settings)
    what = " → ".join(", ".join(one.name for one in side) for side in (senders, receivers))
    return trials, what, found, preview(trials, found, settings["controls"])


# --- plan -------------------------------------------------------------------------------------------------------------


def forecast(chosen: Namespace) -> int:
    """Estimate the cost of a command, measure nothing, and return the exit code."""
    from suture.reports.terminal.forecast import forecast_table, record
    from suture.runs.forecast import forecast
    from suture.runs.store import store as stores
    from suture.runs.store.files import writing_to

    store, folder = None, Path(chosen.out or "").expanduser()
    with writing_to(folder):
        if folder.is_file():
            raise FileExistsError
    begun = chosen.out is not None and (folder / stores.LABEL).exists()  # then keys count, and these are of all images
    trials, *_ = (plan_curve if chosen.chosen.name == "plan curve" else plan_matrix)(chosen, is_sketch=not begun)
    if begun:  # refuse another run's store, as measuring would
        store = stores.Store(folder)
        store.plans.check({trial.key for trial in trials}, stores.settings_of(trials), chosen.extend)
    ram, disk = (parse_size(size) if size is not None else None for size in (chosen.ram, chosen.disk))
    made = forecast(trials, store=store, workers=chosen.workers, ram=ram, disk=disk, retry=chosen.retry, timed=True)
    output.answer(chosen, record(made), forecast_table(made))
    return 0


plan = Command(
    name="plan",
    text="Estimate the cost of a curve or a matrix, and measure nothing.\n"
    "Estimate the cost of a curve or a matrix before anything is measured.",
    examples=("suture plan curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --workers 8",),
    commands=tuple(
        Command(
            name=f"plan {planned.name}",
            text=f"Estimate the cost of suture {planned.name}.\n"
            f"Estimate the time, memory and disk that suture {planned.name} needs with the same arguments. The time is "
            "a range from a few timed steps or, once some trials are measured, from those. Nothing is measured. Trials "
            "in the folder --out count as done.",
            examples=(planned.examples[0].replace("suture ", "suture plan "),),
            options=planned.options,
            run=forecast,
        )
        for planned in (curve, matrix)
    ),
)

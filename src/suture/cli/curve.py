"""``suture curve``: one network stitched to another at every cut that they share."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from suture.cli.command import Command, Parser
from suture.cli.measuring import (
    Asked,
    add_measuring,
    asked_words,
    folder_of,
    measure,
    models_named,
    prepare,
    settings_of,
    store_to_write,
)
from suture.cli.options import add_model, pictures
from suture.cli.output import finish_curve, say
from suture.common.errors import ShapeError, SutureError


def options(parser: Parser) -> None:
    """Add the options."""
    add_model(parser, "sender", metavar="SENDER")
    add_model(parser, "receiver", metavar="RECEIVER", help="likewise")
    at = "by default all that both share; names or patterns, A,layer*,… or, if names differ, A:X,B:Y,…"
    parser.add_argument("--at", metavar="CUTS", help=at)
    add_measuring(parser, pictures("curve", "table.parquet"))


def run(chosen: Namespace) -> int:
    """Measure a curve and return the exit code."""
    asked = ask(chosen, store_to_write)
    return finish_curve(measure(chosen, asked), folder_of(asked), chosen.json)


def ask(chosen: Namespace, opened: Callable[[str], Any]) -> Asked:
    """Return what is asked for; ``opened`` gives the store in a folder."""
    settings = settings_of(chosen)
    models = models_named([chosen.sender, chosen.receiver])
    if len(models) == 1:
        say(f"suture: sender and receiver are one network, {chosen.sender}; give another to compare")
    store, data, networks = prepare(chosen, models, opened)
    sender, receiver = networks[0], networks[-1]
    trials = _at_cuts(chosen.at, sender, receiver, data=data, **settings)
    return Asked(trials, store, asked_words(f"{sender.name} → {receiver.name}", data))


def _at_cuts(at: str | None, sender: Any, receiver: Any, **settings: Any) -> Any:
    """Return the trials at the cuts that ``--at`` names, or at all that both share."""
    from suture.core.network.network import shared_cuts
    from suture.measurement.trials import plans

    plan = plans.Plan(())
    named = shared_cuts(sender.cuts, receiver.cuts) if at is None else [text.strip() for text in at.split(",")]
    for text in map(str, plans.expand_patterns(named, sender, receiver)):
        cuts = [cut.strip() for cut in text.split(":")]
        if len(cuts) > 2:
            raise SutureError(f"--at {text}: give one cut, or SENDER_CUT:RECEIVER_CUT if the names differ")
        try:
            seam = plans.curve(sender, receiver, at=[(cuts[0], cuts[-1])], **settings)
        except ShapeError as error:
            raise ShapeError(f"at {text}: {error}; choose the cuts with --at, or another --stitch") from error
        if seam[0].receiver_cut in {trial.receiver_cut for trial in plan}:
            raise SutureError(f"--at leads to the receiver's cut '{seam[0].receiver_cut}' twice; a curve has it once")
        plan += seam
    return plan


COMMAND = Command(
    name="curve",
    help="stitch one network to another at every cut that they share",
    about="Stitch the sender's first layers to the receiver's last layers at every cut that both share, each with its "
    "controls, and print the stitched network's test accuracy and its penalty, with 95 % intervals.",
    examples=(
        "suture curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out runs/ab",
        "suture curve models.py:net@a.pt models.py:net@b.pt --data photos --at layer2.0",
    ),
    options=options,
    run=run,
)

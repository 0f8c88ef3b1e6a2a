"""``suture matrix``: every cut of networks stitched to every cut of networks."""

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
from suture.cli.options import CUTS, add_model, patterns_of, pictures
from suture.cli.output import finish_matrix
from suture.common.errors import ShapeError, SutureError


def options(parser: Parser) -> None:
    """Add the options."""
    add_model(parser, "senders", nargs="+", metavar="SENDER")
    add_model(parser, "--into", nargs="+", metavar="RECEIVER", help="likewise; by default the senders")
    parser.add_argument("--at", metavar="CUTS", help=f"{CUTS}; by default all cuts")
    parser.add_argument("--sender-at", metavar="CUTS", help="likewise, of the senders only")
    parser.add_argument("--receiver-at", metavar="CUTS", help="likewise, of the receivers only")
    add_measuring(parser, pictures("matrix", "table.parquet", "depth.parquet"))


def run(chosen: Namespace) -> int:
    """Measure a matrix and return the exit code."""
    asked = ask(chosen, store_to_write)
    return finish_matrix(measure(chosen, asked), folder_of(asked), chosen.json)


def ask(chosen: Namespace, opened: Callable[[str], Any]) -> Asked:
    """Return what is asked for; ``opened`` gives the store in a folder."""
    from suture.measurement.trials import plans

    settings = settings_of(chosen)
    into = chosen.into if chosen.into is not None else chosen.senders
    if chosen.into is None and len(set(chosen.senders)) == 1:
        raise SutureError(
            f"{chosen.senders[0]} is the only network; give others, or --into RECEIVER, which may be the same again"
        )
    texts = list(dict.fromkeys((*chosen.senders, *into)))
    store, data, networks = prepare(chosen, models_named(texts), opened)
    named = dict(zip(texts, networks, strict=True))
    senders, receivers = ([named[text] for text in dict.fromkeys(side)] for side in (chosen.senders, into))
    cuts = {"cuts": chosen.at, "sender_cuts": chosen.sender_at, "receiver_cuts": chosen.receiver_at}
    settings |= {side: patterns_of(text) for side, text in cuts.items()}
    try:
        trials = plans.matrix(senders, receivers, data=data, **settings)
    except ShapeError as error:
        raise ShapeError(f"{error}; choose other cuts with --at, or another --stitch") from error
    names = [", ".join(network.name for network in side) for side in (senders, receivers)]
    return Asked(trials, store, asked_words(" → ".join(names), data))


COMMAND = Command(
    name="matrix",
    help="stitch every cut of networks to every cut of networks",
    about="Stitch every cut of every sender to every cut of every receiver, each with its controls, and print the "
    "matrices (rows sender, columns receiver) and their means by depth. Without --into every network is stitched to "
    "every network, itself included.",
    examples=(
        "suture matrix zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out grid",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --into zoo:mlp@c.pt --data digits",
        "suture matrix zoo:resnet@a.pt m.py:vit@v.pt --data photos --at 'layer*,block*'",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --data digits --stitch low-rank,rank=8",
    ),
    options=options,
    run=run,
)

"""``suture demo``: two small networks on real handwritten digits, stitched at every cut, with controls."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from suture.cli.command import Command, Parser
from suture.cli.options import add_json, add_out, add_running, pictures, runner_of
from suture.cli.output import finish_curve, say

WIDTH = 8  #: of the networks: they train in seconds, and reach over 90 %


def demo_fit() -> Any:
    """Return the fit of the demonstration: shorter than the default, for small networks and less than a minute."""
    from suture.fits import TaskLoss

    return TaskLoss(steps=90, check=30)


def two_networks(data: Any, say: Callable[[str], None]) -> list[Any]:
    """Train two small networks, A and B, on the digits to fit, from two seeds."""
    from suture.core.network.network import Network
    from suture.zoo import convnet
    from suture.zoo.recipes import DIGITS
    from suture.zoo.training import train

    networks = []
    for name, seed in (("A", 0), ("B", 1)):
        say(f"training {name}, a small convolutional network, on {len(data.fit):,} digits from seed {seed}")
        model = train(lambda: convnet(WIDTH), data.fit, DIGITS, seed)
        networks.append(Network(model, example=data.example, name=name))
    return networks


def options(parser: Parser) -> None:
    """Add the options."""
    add_out(parser, pictures("curve", "table.parquet"), default="suture-demo")
    add_running(parser)
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Train, stitch, print and write, and return the exit code."""
    from suture.data import load_data
    from suture.measurement.trials.controls import DEFAULT
    from suture.measurement.trials.plans import curve
    from suture.runs.runners import run
    from suture.runs.runners.progress import choose_progress
    from suture.runs.store.store import Store

    runner = runner_of(chosen)
    folder = Store.make(chosen.out).path
    data = load_data("digits")
    a, b = two_networks(data, say)
    say(f"stitching A → B at each of {len(a.cuts)} cuts, with {len(DEFAULT)} controls")
    plan = curve(a, b, data=data, fit=demo_fit())
    table = run(plan, store=folder, progress=choose_progress(), on=runner, retry=chosen.retry, command=chosen.line)
    return finish_curve(table, folder, chosen.json)


COMMAND = Command(
    name="demo",
    help="two small networks on handwritten digits, stitched at every cut",
    about="Train two small networks on scikit-learn's handwritten digits, stitch them at every cut, with controls, "
    "print the table and write it, with a figure, to a folder. It takes about a minute and downloads nothing.",
    examples=("suture demo --out digits",),
    options=options,
    run=run,
)

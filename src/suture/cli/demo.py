"""``suture demo``: two small networks on real handwritten digits, stitched at every cut, with controls."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from suture.cli.measuring import measure
from suture.cli.options import JSON, RUNNING, command, out_option, pictures, runner_of
from suture.cli.output import finish_curve, say

WIDTH = 8  #: of the networks: they train in seconds, and reach over 90 %


def demo_fit() -> Any:
    """Return the fit of the demonstration: the quick form of the default, so that it takes less than a minute."""
    from suture.fits import Quick

    return Quick()


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


@command(
    "demo",
    out_option(pictures("curve", "table.parquet"), default="suture-demo"),
    *RUNNING,
    JSON,
    examples=("suture demo --out digits",),
)
def demo(chosen: Namespace) -> int:
    """Stitch two small networks on handwritten digits at every cut.

    Train two small networks on scikit-learn's handwritten digits, stitch them at every cut, with controls, print the
    table and write it, with a figure, to a folder. It takes about a minute and downloads nothing.
    """
    from suture.data import load_data
    from suture.measurement.trials.plans import curve
    from suture.runs.store.store import Store

    chosen.extend = chosen.until_converged = False  # its folder has one plan
    runner_of(chosen)
    Store.make(chosen.out)  # refused before anything is trained
    data = load_data("digits")
    a, b = two_networks(data, say)
    return finish_curve(chosen, *measure(chosen, curve(a, b, data=data, fit=demo_fit()), "A → B", data))

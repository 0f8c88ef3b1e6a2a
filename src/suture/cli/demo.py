"""``suture demo``: two small networks on real handwritten digits, stitched at every cut, with controls."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from suture.cli.measuring import measure
from suture.cli.options import JSON, RUNNING, command, out_option, pictures, runner_of
from suture.cli.output import finish_curve, say

WIDTH = 8  #: channels of the first stage: such networks train in seconds, and reach over 90 %
EPOCHS, BATCH = 15, 64


def demo_fit() -> Any:
    """Return the fit of the demonstration: the quick form of the default, so that it takes less than a minute."""
    from suture.fits import Quick

    return Quick()


def two_networks(data: Any, say: Callable[[str], None]) -> list[Any]:
    """Train two small networks, A and B, on the digits to fit, from two seeds."""
    from suture.core.network.network import Network

    networks = []
    for name, seed in (("A", 0), ("B", 1)):
        say(f"training {name}, a small convolutional network, on {len(data.fit):,} digits from seed {seed}")
        networks.append(Network(train(convnet, data.fit, seed), example=data.example, name=name))
    return networks


def train(build: Callable[[], Any], samples: Any, seed: int, epochs: int = EPOCHS) -> Any:
    """Train a network with a rate that rises and falls; from one seed it is the same in every process.

    Whatever is random in a step derives from the seed and the number of the step.
    """
    import torch

    from suture.common.seeds import derive_seed, generator, undisturbed
    from suture.fits.optimisers import SGD, OneCycle, set_rate

    with undisturbed(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("network", seed))
        model = build().train()
        for parameter in model.parameters():
            if parameter.ndim == 4:  # module.to(memory_format=…) lays maps of one channel out otherwise: other bits
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        recipe = SGD(lr=0.1, nesterov=True, weight_decay=5e-4)
        optimiser = recipe.over(model.parameters())
        batches = len(samples) // BATCH
        for step in range(epochs * batches):
            if step % batches == 0:
                order = torch.randperm(len(samples), generator=generator("order", seed, step // batches))
            torch.manual_seed(derive_seed("step", seed, step))  # of a dropout, say
            chosen = order[step % batches * BATCH :][:BATCH]
            images = (samples.images[chosen].float() / 255).contiguous(memory_format=torch.channels_last)
            set_rate(optimiser, recipe, OneCycle(), step, epochs * batches)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(images), samples.labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.to(memory_format=torch.contiguous_format).eval()


def convnet(width: int = WIDTH) -> Any:
    """Build three stages of a 3×3 convolution each, the last two of which halve the side, and a linear head."""
    from collections import OrderedDict

    from torch import nn

    def stage(inputs: int, outputs: int, *pool: nn.Module) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        named = zip(("conv", "norm", "relu", "pool"), (conv, nn.BatchNorm2d(outputs), nn.ReLU(), *pool), strict=False)
        return nn.Sequential(OrderedDict(named))

    stages = {
        "stage1": stage(1, width),
        "stage2": stage(width, 2 * width, nn.AvgPool2d(2)),
        "stage3": stage(2 * width, 4 * width, nn.AvgPool2d(2)),
    }
    rest = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(4 * width, 10)}
    return nn.Sequential(OrderedDict({**stages, **rest}))


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

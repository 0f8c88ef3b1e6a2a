"""``suture demo``: two small networks on handwritten digits in clutter, stitched at five cuts, with controls.

Plain digits are too easy: an untrained network reads 97 % of them, so that nothing can be shown to be needed. Here
each digit lies anywhere in a picture of 16×16 pixels, among scraps of others and noise. The three answers can then be
seen side by side: a first cut that is not shown to work, cuts that work and need both networks, and a last one where
the stitch does the receiver's work.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from suture.cli.measuring import measure
from suture.cli.options import JSON, RUNNING, command, out_option, pictures, runner_of
from suture.cli.output import finish_curve, say

WIDTH = 8  #: channels of the first stage, unless another number is given
EPOCHS, BATCH = 15, 64
SIDE, SCRAPS, NOISE = 16, 3, 0.05  #: of a picture: pixels a side, scraps of 4×4 pixels, deviation of the noise
COUNTS = {"fit": 4000, "validation": 1000, "score": 3000}  #: pictures, of about 1,000, 100 and 600 digits
CUTS = ("stage1.relu", "stage2.relu", "stage2.pool", "stage3.conv", "stage3.relu")


def demo_fit() -> Any:
    """Return the fit of the demonstration: the default with a low cap, so that it takes a minute or two.

    ``Quick`` is no faster here and cannot report whether it has converged, so most questions would stay open.
    """
    from suture.fits import Converged

    return Converged(cap=560, batch=128)


def cluttered(data: Any) -> Any:
    """Draw pictures of digits in clutter, each role's from its own digits.

    Each digit is drawn several times, at other places and among other scraps, so an interval over pictures is for these
    digits.
    """
    from dataclasses import replace

    import torch

    from suture.common.seeds import generator

    roles = {}
    for role, count in COUNTS.items():
        samples, random = getattr(data, role), generator("demo", role)
        digits = samples.images.float() / 255
        chosen = torch.randint(len(digits), (count,), generator=random)
        pictures = torch.zeros(count, 1, SIDE, SIDE)

        def place(pieces: Any, pictures: Any = pictures, random: Any = random) -> None:
            """Lay a piece into each picture, at a place of its own."""
            side = pieces.shape[-1]
            corners = torch.randint(SIDE - side + 1, (len(pieces), 2), generator=random)
            rows, columns = (corners[:, i, None] + torch.arange(side) for i in (0, 1))
            at = torch.arange(len(pieces))[:, None, None], 0, rows[:, :, None], columns[:, None, :]
            pictures[at] = torch.maximum(pictures[at], pieces[:, 0])

        for _ in range(SCRAPS):
            others = digits[torch.randint(len(digits), (count,), generator=random)]
            up, left = torch.randint(5, (2,), generator=random).tolist()
            place(others[:, :, up : up + 4, left : left + 4])
        place(digits[chosen])
        pictures += NOISE * torch.randn(pictures.shape, generator=random)
        images = (255 * pictures.clamp(0, 1)).round().byte()
        roles[role] = replace(samples, name=f"digits in clutter/{role}", images=images, labels=samples.labels[chosen])
    return replace(data, name="digits in clutter", **roles)


def two_networks(data: Any, say: Callable[[str], None]) -> list[Any]:
    """Train two small networks, A and B, on the pictures to fit, from two seeds."""
    from functools import partial

    from suture.core.network.network import Network

    networks = []
    for name, seed in (("A", 0), ("B", 1)):
        say(f"training {name}, a small convolutional network, on {len(data.fit):,} pictures from seed {seed}")
        model = train(partial(convnet, 12), data.fit, seed, epochs=8)
        networks.append(Network(model, example=data.example, name=name))
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
    """Stitch two small networks on handwritten digits in clutter.

    Train two small networks on scikit-learn's handwritten digits, drawn anywhere among scraps of others, stitch them at
    five cuts, with controls, then print the table and the answers, and save both with a figure. It takes a few
    minutes and downloads nothing.
    """
    from suture.data import load_data
    from suture.measurement.trials.plans import curve
    from suture.runs.store.store import Store

    chosen.extend = chosen.until_converged = False  # its folder has one plan
    runner_of(chosen)
    Store.make(chosen.out)  # refused before anything is trained
    data = cluttered(load_data("digits"))
    a, b = two_networks(data, say)
    return finish_curve(chosen, *measure(chosen, curve(a, b, data=data, at=list(CUTS), fit=demo_fit()), "A → B", data))

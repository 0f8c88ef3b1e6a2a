"""An accepted network is the user's model, for batches of any size; whatever is not is refused.

Evidence. Networks are drawn from steps and *twists*: what people write that depends on the batch, keeps a state or
draws numbers, and what only looks as if it did. The right-hand side is a copy of the user's model that Suture never
saw, on images that were no probes. What a twist does is known, so a harmless network that is refused shows, too.
"""

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loops import examples
from models import images, scrambled
from suture import Network
from suture.common.errors import NetworkError

SIZES = (1, 7, 257, 1000)

Layer = Callable[["Drawn", nn.Module, Tensor], Tensor]
STEPS: dict[str, tuple[Callable[[], nn.Module], Layer]] = {
    "conv": (lambda: nn.Conv2d(4, 4, 3, padding=1), lambda m, layer, h: layer(h)),
    "norm": (lambda: nn.BatchNorm2d(4), lambda m, layer, h: layer(h)),
    "relu": (nn.Identity, lambda m, layer, h: torch.relu(h)),
    "relu_": (lambda: nn.ReLU(inplace=True), lambda m, layer, h: layer(h)),
    "residual": (lambda: nn.Conv2d(4, 4, 1), lambda m, layer, h: h + layer(h)),
    "added in place": (lambda: nn.Conv2d(4, 4, 1), lambda m, layer, h: layer(h).add_(h)),
    "gate": (lambda: nn.Linear(4, 4), lambda m, layer, h: h * torch.sigmoid(layer(h.mean((2, 3))))[:, :, None, None]),
    "einsum": (lambda: nn.Linear(4, 4), lambda m, layer, h: torch.einsum("nchw,dc->ndhw", h, layer.weight)),
    "last": (lambda: nn.LayerNorm(4), lambda m, layer, h: layer(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
    "tokens": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda m, layer, h: h + _attend(layer, h.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(h.shape),
    ),
    "token": (lambda: nn.Linear(4, 4), lambda m, layer, h: h + layer.bias.expand(len(h), -1)[:, :, None, None]),
    "view": (lambda: nn.Linear(4, 4), lambda m, layer, h: layer(h.view(h.size(0), 4, -1).mT).mT.reshape(h.shape)),
    "swap": (nn.Identity, lambda m, layer, h: torch.cat(h.chunk(2, 1)[::-1], 1)),
    "area": (nn.Identity, lambda m, layer, h: h / (h.shape[2] * h.size(3)) * 64),
    "dropout": (lambda: nn.Dropout(0.5), lambda m, layer, h: layer(h)),
}


def _attend(layer: nn.Module, tokens: Tensor) -> Tensor:
    return layer(tokens, tokens, tokens, need_weights=False)[0]


Twist = Callable[["Drawn", Tensor], Tensor]


def _count(m: "Drawn", x: Tensor) -> Tensor:
    m.calls += 1
    return m.body(x)


def _keep(m: "Drawn", x: Tensor) -> Tensor:
    m.last = x
    return m.body(x)


def _count_in_buffer(m: "Drawn", x: Tensor) -> Tensor:
    m.number += 1
    return m.body(x)


def _alternate(m: "Drawn", x: Tensor) -> Tensor:
    m.calls += 1
    return m.body(x) * (1 if m.calls % 2 else -1)


def _follow(m: "Drawn", x: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(0.1 * x.mean())
    return m.body(x - m.mean)


HARMLESS: dict[str, Twist] = {
    "none": lambda m, x: m.body(x),
    "a counter": _count,
    "what it saw": _keep,
    "noise in training": lambda m, x: m.body(x + torch.randn_like(x) if m.training else x),
    "the same noise": lambda m, x: m.body(x + torch.randn(8, 8, generator=torch.Generator().manual_seed(3))),
    "length": lambda m, x: m.body(x) * (len(x) / x.shape[0]),
}
HARMFUL: dict[str, Twist] = {
    **{f"split({k})": lambda m, x, k=k: torch.cat([m.body(part) for part in x.split(k)]) for k in (2, 64, 512)},
    **{f"more than {k}": lambda m, x, k=k: m.body(x) * (2 if x.shape[0] > k else 1) for k in (1, 3, 100, 500)},
    **{f"the first {k}": lambda m, x, k=k: m.body(x[:k]) for k in (2, 200, 900)},
    "halves": lambda m, x: torch.cat([m.body(part) for part in x.chunk(2)]),
    "by the number": lambda m, x: m.body(x) / x.shape[0],
    "less the mean": lambda m, x: m.body(x - x.mean(0)),
    "the largest": lambda m, x: m.body(x * x[:, :, 0, 0].amax()),
    "a softmax over images": lambda m, x: m.body(x).softmax(0),
    "the images before": lambda m, x: m.body(x).cumsum(0),
    "the next image": lambda m, x: m.body(x).roll(1, 0),
    "sorted": lambda m, x: m.body(x).sort(0).values,
    "statistics of the batch": lambda m, x: m.body(F.batch_norm(x, None, None, training=True)),
    "a counter in a buffer": _count_in_buffer,
    "every second time": _alternate,
    "a mean that follows": _follow,
    "noise": lambda m, x: m.body(x + 1e-3 * torch.randn_like(x)),
    "dropout": lambda m, x: F.dropout(m.body(x), 0.01, training=True),
    "rarely": lambda m, x: m.body(x) + (torch.rand(()) < 1e-3),
    "rarely, by Python": lambda m, x: m.body(x) * (2 if random.random() < 1e-3 else 1),
    "rarely, by NumPy": lambda m, x: m.body(x) * (2 if np.random.rand() < 1e-3 else 1),  # noqa: NPY002
}


class Drawn(nn.Module):
    """A stem, steps, and a head over means or over everything, in the hands of a twist; 8×8 images, 5 outputs."""

    def __init__(self, steps: list[str], twist: Twist, flat: bool) -> None:
        super().__init__()
        self.stem, self.names, self.twist, self.flat = nn.Conv2d(3, 4, 3, padding=1), steps, twist, flat
        self.steps = nn.ModuleList(STEPS[name][0]() for name in steps)
        self.head = nn.Linear(256 if flat else 4, 5)
        self.calls = 0
        self.register_buffer("number", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.twist(self, x)

    def body(self, x: Tensor) -> Tensor:
        """What it computes without its twist."""
        h = self.stem(x)
        for name, layer in zip(self.names, self.steps, strict=True):
            h = STEPS[name][1](self, layer, h)
        return self.head(h.reshape(h.size(0), -1) if self.flat else h.mean((2, 3)))


def draw(number: int) -> tuple[str, Drawn]:
    """Draw a network; every twist comes, the harmless ones as often as the harmful."""
    chance = random.Random(number)
    twists = list((HARMLESS if number % 2 else HARMFUL).items())
    kind, twist = twists[number // 2 % len(twists)]
    steps = [chance.choice(list(STEPS)) for _ in range(chance.randint(1, 7))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return kind, scrambled(Drawn(steps, twist, chance.random() < 0.3), number).eval()


def check(count: int) -> None:
    """Draw so many networks: the harmful are refused, and all that are accepted are the user's own model."""
    x = images(SIZES[-1], 8)
    probes = images(3, 8, seed=5)
    for number in range(count):
        kind, model = draw(number)
        own = copy.deepcopy(model).requires_grad_(False)  # torch takes other kernels for weights that ask for gradients
        if kind in HARMFUL:
            with pytest.raises(NetworkError):
                Network(model, example=probes, name=f"network {number}, {kind}")
            continue
        network = Network(model, example=probes, name=f"network {number}")
        with torch.no_grad():
            probed = network(probes), copy.deepcopy(own)(probes)
            assert torch.equal(*probed), f"the bits of network {number} ({own.names}) on its probes"
            for size in SIZES:
                wanted, given = own(x[:size]), network(x[:size])
                within = {"rtol": 1e-4, "atol": 1e-5 * float(wanted.abs().max())}
                torch.testing.assert_close(given, wanted, **within, msg=f"network {number} ({kind}) on {size} images")
                for cut in network.cuts if size in (1, 257) else ():
                    split = network.after(cut)(network.upto(cut)(x[:size]))
                    torch.testing.assert_close(split, wanted, **within, msg=f"network {number} at {cut.name}")


@pytest.mark.slow
def test_an_accepted_network_is_the_users_model() -> None:
    check(examples(2 * len(HARMFUL)))


@pytest.mark.slow
def test_an_accepted_network_is_the_users_model_many_times() -> None:
    check(150)

"""The reference table of the default fit: 36 seams drawn once, and the best that anyone's fit reaches at each.

    python -m benchmarks.reference draw                    writes benchmarks/results/reference/seams.json, once
    python -m benchmarks.reference run DATA [--only ID …] [--minutes M]    fits the candidates that are still missing
    python -m benchmarks.reference table                   what is there, and the best of each seam
    python -m benchmarks.reference judge DATA [--fit FIT] [--seeds N] [--closed]   a fit beside them
    python -m benchmarks.reference clock DATA [--only ID …] [--fit FIT]   times a fit and Adam's steps, side by side
    python -m benchmarks.reference cost [--fit FIT]        seconds to within half a point of the reference
    python -m benchmarks.reference sum [--fit FIT]         what is asked of a fit, over the seams that were judged
    python -m benchmarks.reference losses DATA --only ID …  loss and error of a fit and of Adam, by part of the data
    python -m benchmarks.reference longer DATA --only ID …  a fit at 1, 4 and 16 times its work
    python -m benchmarks.reference drift DATA [--only ID …]  the panel again: what moved since it was judged

``DATA`` is a folder with ``cifar10/`` and ``mnist/`` in the hub's parquet layout; the networks are those of
``papers/results/networks``. Every candidate trains a member of the same family (``family_of``), on the first 10,000
images to fit, and is read on all images to score, each image of which is kept as one bit, so that the best candidate
can be chosen on one half of them and read on the other. The candidates, none of which is Suture's default:

- ``adam RATE``: least squares, then Adam with a cosine, 40 epochs of batches of 128
- ``whitened RATE RIDGE``: least squares, then Adam with betas (0.9, 0.99) and a cosine on the map of whitened features,
  outputs in units of the receiver's deviations, 2,800 batches of 64; where the stitch is one layer that reads at most
  4,096 features, else on its plain parameters
- ``published``: the recipe of the networks' paper at full length, if that is forecast to take under ten minutes
- ``plain``: the loop that people write: prefix recomputed, BatchNorm - map - BatchNorm from its random start, Adam 1e-3
  with a cosine, 40 epochs of 128; at six seams

``judge`` measures a fit of Suture's (``converged`` by default) with several stitch seeds at the seams whose candidates
are complete, those that are not to be looked at before the end only with ``--closed``, validated on images that are not
fitted, its activations cached, and writes ``benchmarks/results/reference/judged-FIT.json``. ``longer`` writes
``longer-FIT.json``: the fit deepened once and twice, with 4 and 16 times the cap, waiting for two and four more
doublings that gain nothing, since two doublings are four times the work. ``drift`` measures the seams of ``PANEL``
again with the first stitch seed and writes how far scores and seconds moved since they were judged to
``benchmarks/results/reference/drift.json``: a change of the code that moves no number shows 0.00 everywhere, and lost
speed shows, too.

Suture cuts the networks and brings the closed form; loops, losses and scores are plain torch, in float32 through the
receiver's own layers. With ``--compiled`` the steps through a ResNet's layers go through ``torch.compile``: the same to
rounding, 1.4 times as fast, and such a candidate says so. The seconds are always those of steps not compiled. A
file per seam, rewritten after every candidate, so a run goes on where it was stopped.
"""

import argparse
import base64
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import suture
from suture.common.names import make
from suture.core.activations.cache import Activations
from suture.core.stitches import Linear, Shape, Stitch
from suture.fits import LeastSquares
from suture.fits.base import Problem, Side
from suture.measurement.trials import measure as measuring
from suture_papers import recipes, variants

FOLDER = Path(__file__).parent / "results" / "reference"
NETWORKS = Path(__file__).parents[1] / "papers" / "results" / "networks"
SEED = 20261123  #: of the draw
FIT = 10_000  #: images that a stitch is fitted on, and at most as many are scored
CHUNK = 250
EPOCHS, BATCH = 40, 128
LOOKS = (0.25, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 35, 40)  #: epochs after which a descent is scored
ADAM_RATES = (1e-2, 3e-3, 1e-3)
WHITENED = ((1e-2, 1e-5), (3e-2, 1e-5), (3e-3, 1e-5), (1e-2, 1.0))  #: rate, ridge in units of the mean variance
WHITENED_STEPS, WHITENED_BATCH, WHITENED_MOST = 2_800, 64, 4_096
PLAIN_SEAMS = 6
TIMES = (1, 4, 16)  #: the work of Suture's fits
TIMED_STEPS = 15
NEAR = 0.005  #: of the reference's accuracy, as a fraction
#: Seams that a later change of the code must fit again: of every kind, chosen for their cost before the fit was pinned.
PANEL = (
    *("resnet-2", "resnet-3", "resnet-4", "resnet-5", "resnet-6", "resnet-8", "myrtle-1", "myrtle-3", "vit-1", "vit-3"),
    *("mlp-1", "mlp-2", "mlp-3", "mlp-4", "cnn-2", "cnn-4", "colour-3", "colour-4", "across-1", "untrained-sender-1"),
)
PUBLISHED_SECONDS = 600.0

SOURCES = {
    "resnet": "zoo:resnet,blocks=(2,2,2,2),width=16",
    "myrtle": "zoo:myrtle,width=32",
    "vit": "zoo:vit,dim=64,depth=6,heads=4",
    "mlp": "zoo:mlp,width=64,depth=9,inputs=3072",
    "cnn": "zoo:cnn,dense=3,image=(64,32),classes=100",
    "colour": "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7",
}
NAMES = {
    "resnet": ("resnet18-10", "resnet18-11"),
    "myrtle": ("myrtle-10", "myrtle-11"),
    "vit": ("vit-10", "vit-11"),
    "mlp": ("mlp-10", "mlp-11"),
    "cnn": ("cnn-10", "cnn-11"),
    "colour": ("colour-10", "digit-10"),
}
#: kind of seam, how many, senders and receivers by kind of network
STRATA: tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...] = (
    ("resnet", 8, (("resnet", "resnet"),)),
    ("myrtle", 4, (("myrtle", "myrtle"),)),
    ("vit", 4, (("vit", "vit"),)),
    ("mlp", 4, (("mlp", "mlp"),)),
    ("cnn", 4, (("cnn", "cnn"),)),
    ("colour", 4, (("colour", "colour"),)),
    ("across", 4, (("resnet", "myrtle"), ("myrtle", "resnet"), ("resnet", "vit"), ("vit", "myrtle"))),
    ("untrained sender", 2, (("resnet", "resnet"), ("myrtle", "myrtle"))),
    ("untrained receiver", 2, (("resnet", "resnet"), ("myrtle", "myrtle"))),
)  # fmt: skip
PUBLISHED = {"mlp": recipes.oxford2025, "cnn": recipes.oxford2025, "colour": recipes.smith2024}

Seam = dict[str, Any]
"""A row of ``seams.json``: id, kind, sender and receiver by name, their cuts, which is untrained, whether it may be
looked at before the end (``open``), whether the plain loop is run."""


# --- the draw ---------------------------------------------------------------------------------------------------------


def draw(data: Path) -> list[Seam]:
    """Draw the seams: within a kind, one half has the earlier sender and one half the later; none is at the output."""
    at_random = random.Random(SEED)
    seams: list[Seam] = []
    for kind, count, pairs in STRATA:
        for i in range(count):
            of = pairs[i % len(pairs)]
            first, second = (list(NAMES[network]) for network in of)
            if of[0] == of[1]:
                at_random.shuffle(first)
                second = first[1:]
            sender, receiver = first[0], second[0]
            cuts = [places(SOURCES[network], "cnn" if network == "cnn" else "", data) for network in of]
            ours = sorted(at_random.sample(range(1, 20), 2))
            early, late = (share / 20 for share in ours)
            depths = (early, late) if i % 2 else (late, early)
            at = [names[round(depth * (len(names) - 1))] for names, depth in zip(cuts, depths, strict=True)]
            seams.append(
                {
                    "id": f"{kind.replace(' ', '-')}-{i + 1}",
                    "kind": kind,
                    "sender": sender,
                    "receiver": receiver,
                    "sender_cut": at[0],
                    "receiver_cut": at[1],
                    "untrained": kind.removeprefix("untrained ") if kind.startswith("untrained") else "",
                }
            )
    closed = set(at_random.sample(range(len(seams)), len(seams) // 3))
    plain = set(at_random.sample(range(len(seams)), PLAIN_SEAMS))
    return [seam | {"open": i not in closed, "plain": i in plain} for i, seam in enumerate(seams)]


def places(source: str, kind: str, data: Path) -> list[str]:
    """Return the names of a network's cuts but those of no computation of their own behind the last pooling."""
    example = load_data(data, kind or "resnet").example
    cuts = suture.load_network(source, example=example).cuts
    return [cut.name for cut in cuts if not cut.is_output]


# --- networks and data ------------------------------------------------------------------------------------------------


@cache
def load_data(data: Path, kind: str) -> suture.Data:
    """Return the images that networks of a kind were trained for."""
    if kind == "cnn":
        made = variants.Decorrelated()(suture.load_data(f"{data / 'mnist'}+{data / 'cifar10'}"))
        classes = tuple(map(str, range(100)))  # oxford's heads have an output for every pair of classes
        roles = {role: replace(getattr(made, role), classes=classes) for role in ("fit", "validation", "score")}
        return replace(made, **roles)
    if kind.startswith(("colour", "digit")):
        return (variants.Colour() if kind == "colour" else variants.Digit())(suture.load_data(str(data / "mnist")))
    return suture.load_data(str(data / "cifar10"))


def kind_of(name: str) -> str:
    """Return the kind of network that a name of ``papers/results/networks`` begins with."""
    return next(kind for kind, names in NAMES.items() if name in names)


def load_network(name: str, example: Tensor) -> suture.Network:
    """Load a network of ``papers/results/networks``."""
    return suture.load_network(
        SOURCES[kind_of(name)], checkpoint=str(NETWORKS / f"{name}.safetensors"), example=example, name=name
    )


def _nothing() -> Tensor:
    """Stand in for an argument that a fit does not read."""
    return torch.empty(0)


def load(seam: Seam, data: Path) -> tuple[suture.Data, suture.Network, suture.Network]:
    """Return a seam's images and networks."""
    kind = kind_of(seam["receiver"])
    source = load_data(data, seam["receiver"].split("-")[0] if kind == "colour" else kind)
    limited = source.limited(fit=FIT, score=min(FIT, len(source.score)))
    images = replace(limited, validation=source.validation)
    networks = {end: load_network(seam[end], images.example) for end in ("sender", "receiver")}
    if seam["untrained"]:
        networks[seam["untrained"]] = networks[seam["untrained"]].untrained(0)
    return images, networks["sender"], networks["receiver"]


class Task:
    """One seam as tensors: the sender's activations at its cut, labels, and the two halves as modules."""

    def __init__(self, seam: Seam, data: Path, compiled: bool = False) -> None:
        self.seam = seam
        self.data, self.sender, self.receiver = load(seam, data)
        self.prefix, self.own_prefix = self.sender.upto(seam["sender_cut"]), self.receiver.upto(seam["receiver_cut"])
        self.suffix = self.receiver.after(seam["receiver_cut"])
        self.compiled = (
            Compiled(self.suffix) if compiled and kind_of(seam["receiver"]) in ("resnet", "colour") else None
        )
        shapes = [
            tuple(network.cuts.find(cut).shape)
            for network, cut in ((self.sender, seam["sender_cut"]), (self.receiver, seam["receiver_cut"]))
        ]
        self.shapes = shapes
        self.family = family_of(*shapes)
        self.given = {role: self.run(self.prefix, getattr(self.data, role)) for role in ("fit", "validation", "score")}
        self.labels = {role: getattr(self.data, role).labels for role in ("fit", "validation", "score")}

    def run(self, prefix: nn.Module, samples: suture.Samples) -> Tensor:
        """Return activations ``(n, …)``, in float16 if they would take more than 1.5 GB."""
        first = prefix(samples.images[:2])
        dtype = torch.float16 if first[0].numel() * len(samples) * 4 > 1.5e9 else torch.float32
        out = torch.empty((len(samples), *first.shape[1:]), dtype=dtype)
        with torch.no_grad():
            for i in range(0, len(samples), CHUNK):
                out[i : i + CHUNK] = prefix(samples.images[i : i + CHUNK])
        return out

    def stitch(self, *, least_squares: bool, batchnorm: bool = False) -> nn.Module:
        """Build a stitch, without the BatchNorms that add nothing to the family; with the closed form loaded."""
        family = self.family
        if not batchnorm and any(one.name == "batchnorm" and one.init for one in fields(family)):  # type: ignore[arg-type]
            family = replace(family, batchnorm=False)  # type: ignore[type-var]
        torch.manual_seed(0)
        stitch = family.build(*self.shapes)
        if least_squares:
            sides = [
                Side(self.given[role].float(), self.labels[role], partial(self.own, getattr(self.data, role)), _nothing)
                for role in ("fit", "validation")
            ]
            LeastSquares().fit(Problem(family, self.suffix, *sides, seed=0, where=self.seam["id"]), stitch)
        return stitch

    def own(self, samples: suture.Samples) -> Tensor:
        """Return the receiver's own activations at its cut."""
        return self.run(self.own_prefix, samples).float()

    def loss_and_error(self, stitch: nn.Module, role: str) -> tuple[float, float]:
        """Return mean loss in nats and share of wrong images of a stitch, on the images of one role."""
        given, labels = self.given[role], self.labels[role]
        with torch.no_grad():
            out = torch.cat([self.suffix(stitch.eval()(x.float())) for x in given.split(CHUNK)])
        return float(nn.functional.cross_entropy(out, labels)), float((out.argmax(1) != labels).double().mean())

    def right(self, stitched: Callable[[Tensor], Tensor], given: Tensor | None = None) -> Tensor:
        """Return for every image to score whether the stitched network names its class."""
        x, labels = self.given["score"] if given is None else given, self.labels["score"]
        read = Tensor.float if given is None else Tensor.clone  # images of bytes stay bytes: their network scales them
        with torch.no_grad():
            return torch.cat(
                [stitched(read(x[i : i + CHUNK])).argmax(1) == labels[i : i + CHUNK] for i in range(0, len(x), CHUNK)]
            )


class Compiled(nn.Module):
    """A suffix as ``torch.compile`` makes it for each size of batch, channels last."""

    def __init__(self, suffix: nn.Module) -> None:
        super().__init__()
        self.eager = suffix
        self.made: dict[tuple[int, ...], Callable[[Tensor], Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of maps ``(n, C, H, W)``."""
        x = x.contiguous(memory_format=torch.channels_last)
        if tuple(x.shape) not in self.made:
            flat = make_fx(self.eager, pre_dispatch=True)(x.detach())
            self.made[tuple(x.shape)] = torch.compile(flat, dynamic=False)
        return self.made[tuple(x.shape)](x)


def batches(n: int, size: int, order: int = 1) -> Iterator[Tensor]:
    """Endless batches of indices, epoch by epoch; ``order`` seeds them."""
    generator = torch.Generator().manual_seed(order)
    while True:
        yield from torch.randperm(n, generator=generator)[: n - n % size].split(size)


# --- the candidates ---------------------------------------------------------------------------------------------------


def descend(
    task: Task,
    forward: Callable[[Tensor, nn.Module], Tensor],
    parameters: list[Tensor],
    rate: float,
    steps: int,
    size: int,
    betas: tuple[float, float] = (0.9, 0.999),
    given: Callable[[Tensor], Tensor] | None = None,
    before_looking: Callable[[], object] = lambda: None,
    after_looking: Callable[[], object] = lambda: None,
    order: int = 1,
) -> dict[str, Any]:
    """Lower the cross-entropy by Adam with a cosine; score at every look. ``given`` maps indices to inputs.

    ``forward`` maps what is fed and a suffix to the outputs; ``order`` seeds the batches.
    """
    read = given or (lambda chosen: task.given["fit"][chosen].float())
    adam = torch.optim.Adam(parameters, lr=rate, betas=betas)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    suffix = task.compiled or task.suffix
    slower = _count_slower(task, forward, read, parameters, size) if task.compiled else 1.0
    drawn, begun = batches(len(task.labels["fit"]), size, order), time.process_time()
    an_epoch = len(task.labels["fit"]) / size
    looks = {round(epochs * an_epoch) for epochs in LOOKS if epochs * an_epoch < steps} | {steps}
    found: list[list[float]] = []
    looking = 0.0
    right = torch.empty(0)
    for step in range(1, steps + 1):
        chosen = next(drawn)
        loss = nn.functional.cross_entropy(forward(read(chosen), suffix), task.labels["fit"][chosen])
        adam.zero_grad()
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
        if step in looks:
            since = time.process_time()
            before_looking()
            scored = partial(forward, suffix=task.suffix)
            right = task.right(scored) if given is None else task.right(scored, task.data.score.images)
            after_looking()
            looking += time.process_time() - since
            seconds = (time.process_time() - begun - looking) * slower
            found.append([step, float(right.double().mean()), float(loss.detach()), round(seconds, 2)])
            if not math.isfinite(found[-1][2]):
                break
    return {"looks": found, "batch": size, "right": pack(right)} | ({"compiled": True} if task.compiled else {})


def _count_slower(
    task: Task,
    forward: Callable[[Tensor, nn.Module], Tensor],
    read: Callable[[Tensor], Tensor],
    parameters: list[Tensor],
    size: int,
) -> float:
    """Return how many times as long a step takes through the layers as they are as through the compiled ones."""
    assert task.compiled is not None
    took: dict[str, list[float]] = {"own": [], "compiled": []}
    for _ in range(8):
        for name, suffix in (("own", task.suffix), ("compiled", task.compiled)):
            begun = time.process_time()
            torch.autograd.grad(forward(read(torch.arange(size)), suffix).logsumexp(1).sum(), parameters)
            took[name].append(time.process_time() - begun)
    return statistics.median(took["own"]) / statistics.median(took["compiled"])


def adam(task: Task, rate: float, stitch: nn.Module | None = None, order: int = 1) -> dict[str, Any]:
    """Least squares, then Adam on the stitch's own parameters; of a ``stitch`` that has the closed form, if given."""
    stitch = task.stitch(least_squares=True) if stitch is None else stitch
    steps = EPOCHS * (len(task.labels["fit"]) // BATCH)
    return descend(
        task, lambda x, suffix: suffix(stitch.eval()(x)), list(stitch.parameters()), rate, steps, BATCH, order=order
    )  # fmt: skip


def whitened(task: Task, rate: float, ridge: float) -> dict[str, Any]:
    """Least squares, then Adam on the map of whitened rows."""
    stitch = task.stitch(least_squares=True).eval()
    layers = [layer for layer in stitch.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    betas = (0.9, 0.99)
    one = len(layers) == 1 and len(list(stitch.parameters())) == 2 and hasattr(task.family, "parts")
    if not one or layers[0].weight[0].numel() > WHITENED_MOST:
        parameters = list(stitch.parameters())
        return descend(
            task, lambda x, suffix: suffix(stitch(x)), parameters, rate, WHITENED_STEPS, WHITENED_BATCH, betas
        )
    layer, name = layers[0], next(n for n, m in stitch.named_modules() if m is layers[0])
    weight = layer.weight.detach().flatten(1).double()
    part = task.family.parts(stitch, task.given["fit"][:2].float())[0]
    some = min(len(task.data.fit), max(1024, 2**15 // max(1, math.prod(task.shapes[1][1:]))))
    rows = torch.cat([part.reads(each).double() for each in task.given["fit"][:some].float().split(CHUNK)])
    if rows.shape[1] != weight.shape[1]:
        raise ValueError(f"{task.family} reads rows of {rows.shape[1]} features by {weight.shape[1]} weights")
    own = torch.cat([part.gives(each).double() for each in task.own(task.data.fit.first(some)).split(CHUNK)])
    mean, unit = rows.mean(0), own.std(0).clamp(min=1e-3 * float(own.std(0).max()))
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    scale = (values.clamp(min=0) + ridge * float(values.clamp(min=0).mean())).sqrt()
    free = ((weight / unit[:, None]) @ vectors * scale).float().requires_grad_()
    assert layer.bias is not None
    shift = ((layer.bias.detach().double() + weight @ mean) / unit).float().requires_grad_()
    back, unit32, mean32 = (vectors / scale).T.float().contiguous(), unit.float(), mean.float()

    def forward(x: Tensor, suffix: nn.Module) -> Tensor:
        made = (free @ back) * unit32[:, None]
        prefix = f"{name}." if name else ""
        given = {f"{prefix}weight": made.view_as(layer.weight), f"{prefix}bias": shift * unit32 - made @ mean32}
        out: Tensor = suffix(functional_call(stitch, given, (x,)))
        return out

    return descend(task, forward, [free, shift], rate, WHITENED_STEPS, WHITENED_BATCH, betas)


def plain(task: Task) -> dict[str, Any]:
    """Run the loop that people write, prefix and all."""
    stitch = task.stitch(least_squares=False, batchnorm=True).train()

    def forward(images: Tensor, suffix: nn.Module) -> Tensor:
        with torch.no_grad():
            sent = task.prefix(images)
        out: Tensor = suffix(stitch(sent))
        return out

    images = task.data.fit.images
    steps = EPOCHS * (len(images) // BATCH)
    return descend(
        task, forward, list(stitch.parameters()), 1e-3, steps, BATCH,
        given=lambda chosen: images[chosen], before_looking=stitch.eval, after_looking=stitch.train,
    )  # fmt: skip


def published(task: Task) -> dict[str, Any]:
    """Run the recipe of the networks' paper at full length, if it is short enough."""
    recipe = PUBLISHED.get(kind_of(task.seam["receiver"]), recipes.bansal2021)
    stitch = task.stitch(least_squares=False, batchnorm=True)
    chosen, begun = torch.arange(recipe.batch), time.process_time()
    for _ in range(5):
        given = task.given["fit"][chosen].float()
        task.suffix(stitch(given)).logsumexp(1).sum().backward()  # type: ignore[no-untyped-call]
    forecast = recipe.steps * (time.process_time() - begun) / 5
    if forecast > PUBLISHED_SECONDS:
        return {"left out": f"{recipe} is forecast to take {forecast:,.0f} s"}
    sides = [
        Side(given.float(), task.labels[role], _nothing, _nothing)
        for role, given in task.given.items()
        if role != "score"
    ]
    begun = time.process_time()
    report = recipe.fit(Problem(task.family, task.suffix, *sides, seed=0, where=task.seam["id"]), stitch)
    seconds = time.process_time() - begun
    right = task.right(lambda x: task.suffix(stitch.eval()(x)))
    looks = [[report.steps, float(right.double().mean()), math.nan, round(seconds, 2)]]
    return {"looks": looks, "batch": recipe.batch, "right": pack(right), "fit": str(recipe)}


def candidates(seam: Seam) -> dict[str, Callable[[Task], dict[str, Any]]]:
    """Return the candidates of a seam by name, the cheap ones first."""
    made: dict[str, Callable[[Task], dict[str, Any]]] = {}
    for rate, ridge in WHITENED:
        made[f"whitened {rate:g} {ridge:g}"] = lambda task, rate=rate, ridge=ridge: whitened(task, rate, ridge)  # type: ignore[misc]
    for rate in ADAM_RATES:
        made[f"adam {rate:g}"] = lambda task, rate=rate: adam(task, rate)  # type: ignore[misc]
    made["published"] = published
    if seam["plain"]:
        made["plain"] = plain
    return made


# --- results ----------------------------------------------------------------------------------------------------------


def pack(right: Tensor) -> str:
    """Return booleans as text, eight a byte."""
    return base64.b64encode(np.packbits(right.numpy().astype(bool)).tobytes()).decode()


def unpack(text: str, n: int) -> Tensor:
    """Return the booleans of a text."""
    return torch.from_numpy(np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:n].astype(bool))


def read_seams() -> list[Seam]:
    """Return the seams that were drawn."""
    found: list[Seam] = json.loads((FOLDER / "seams.json").read_text())
    return found


def read_results(seam: Seam) -> dict[str, Any]:
    """Return the records of a seam."""
    path = FOLDER / f"{seam['id']}.json"
    return json.loads(path.read_text()) if path.exists() else {"n": 0, "candidates": {}}


def write(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


def best(results: dict[str, Any]) -> tuple[float, str]:
    """Return the reference accuracy: the best candidate of one half of the images read on the other, both ways."""
    n = results["n"]
    bits = {name: unpack(r["right"], n) for name, r in results["candidates"].items() if "right" in r}
    halves = torch.arange(n) % 2 == 0, torch.arange(n) % 2 == 1
    read, names = [], []
    for chosen, scored in (halves, halves[::-1]):
        name = max(bits, key=lambda name: float(bits[name][chosen].double().mean()))
        names.append(name)
        read.append(float(bits[name][scored].double().mean()))
    return sum(read) / 2, " / ".join(dict.fromkeys(names))


def run(data: Path, only: list[str], minutes: float, compiled: bool) -> None:
    """Fit the candidates that are missing, of the seams whose networks are there."""
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * minutes
    for seam in read_seams():
        there = all((NETWORKS / f"{seam[end]}.safetensors").exists() for end in ("sender", "receiver"))
        results = read_results(seam)
        missing = [name for name in candidates(seam) if name not in results["candidates"]]
        if not there or not missing or (only and seam["id"] not in only):
            continue
        task = Task(seam, data, compiled)
        results["n"] = len(task.labels["score"])
        for name in missing:
            if time.monotonic() > until:
                return
            begun = time.monotonic()
            results["candidates"][name] = candidates(seam)[name](task)
            write(FOLDER / f"{seam['id']}.json", results)
            found = results["candidates"][name]
            what = found.get("left out") or f"{found['looks'][-1][1]:.4f}"
            print(f"{seam['id']:22} {name:20} {what} in {time.monotonic() - begun:.0f} s", flush=True)


def family_of(sender: Shape, receiver: Shape) -> Stitch:
    """Return the default family, but between as many tokens bansal2021's, with which the references were made."""
    tokens = len(sender) == 2 and Linear().accepts(sender, receiver)
    return Linear() if tokens else suture.stitches.stitch_for(sender, receiver)


def pose(
    seam: Seam, images: suture.Data, sender: suture.Network, receiver: suture.Network, fit: str, seed: int = 0
) -> suture.Trial:
    """Return the trial of a fit of Suture's at a seam, validated on images that are not fitted."""
    joined = suture.Seam(sender, receiver, seam["sender_cut"], seam["receiver_cut"])
    roles, family = (images.fit, images.validation, images.score), family_of(*joined.shapes)
    return suture.Trial(joined, *roles, stitch=family, fit=make("fit", fit), seed=seed)


def judge(data: Path, fit: str, only: list[str], seeds: int, closed: bool) -> None:
    """Measure a fit beside the reference, at the seams that may be looked at."""
    torch.set_num_threads(1)
    path = FOLDER / f"judged-{fit}.json"
    judged: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for seam in read_seams():
        results = read_results(seam)
        if set(candidates(seam)) - set(results["candidates"]) or not (seam["open"] or closed):
            continue
        if only and seam["id"] not in only:
            continue
        wanted, _ = best(results)
        images, sender, receiver = load(seam, data)
        rows = judged.setdefault(seam["id"], {})
        cache = Activations()
        if any(str(seed) not in rows for seed in range(seeds)):  # so that no fit waits for activations
            suture.measure(pose(seam, images, sender, receiver, "least-squares"), cache)
        for seed in range(seeds):
            if str(seed) in rows:
                continue
            rows[str(seed)] = measure(pose(seam, images, sender, receiver, fit, seed), wanted, cache)
            write(path, judged)
        print(f"{seam['id']:22} reference {wanted:.4f}, points below it: {say(rows)}", flush=True)


def measure(trial: suture.Trial, wanted: float, cache: Activations) -> dict[str, Any]:
    """Measure a trial; return the facts that are kept beside the reference accuracy."""
    begun = time.process_time()
    with timed_fit() as took:
        measured = suture.measure(trial, cache)
    gained = measured.gained
    return {
        "accuracy": measured.scores["accuracy"].value,
        "below": wanted - measured.scores["accuracy"].value,
        "converged": measured.converged,
        "gained": None if gained is None else gained.value,
        "gained_error": None if gained is None else gained.error,
        "start": measured.start,
        "version": trial.fit.version,  # type: ignore[attr-defined]
        "steps": measured.steps,
        "seconds": round(time.process_time() - begun, 2),
        "fit_seconds": round(sum(took), 2),
    }


@contextmanager
def timed_fit() -> Iterator[list[float]]:
    """Note the CPU seconds between the end of posing a problem and the beginning of scoring: those of the fit alone."""
    took: list[float] = []
    pose, run = measuring.make_problem, measuring.run_stitched

    def posed(*given: Any) -> Problem:
        problem = pose(*given)
        took.append(-time.process_time())
        return problem

    def scored(*given: Any) -> Any:
        took.append(time.process_time())
        return run(*given)

    with patch.object(measuring, "make_problem", posed), patch.object(measuring, "run_stitched", scored):
        yield took


def say(rows: dict[str, dict[str, Any]]) -> str:
    """Return how many points each of some rows lies below the reference."""
    return ", ".join(
        f"{100 * row['below']:+.2f}{'' if row['converged'] else ' (not converged)'}" for row in rows.values()
    )


def go_longer(data: Path, fit: str, only: list[str]) -> None:
    """Measure a fit with 4 and 16 times the cap, waiting for as much longer for a doubling that gains."""
    torch.set_num_threads(1)
    path = FOLDER / f"longer-{fit}.json"
    longer: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for seam in read_seams():
        if seam["id"] not in only:
            continue
        wanted, _ = best(read_results(seam))
        images, sender, receiver = load(seam, data)
        cache, rows = Activations(), longer.setdefault(seam["id"], {})
        posed = pose(seam, images, sender, receiver, fit)
        suture.measure(replace(posed, fit=LeastSquares()), cache)
        for times in TIMES:
            if str(times) not in rows:
                rows[str(times)] = measure(posed, wanted, cache)
                write(path, longer)
            deeper = posed.fit.deepened()
            if deeper is None:
                break
            posed = replace(posed, fit=deeper)
        print(f"{seam['id']:22} points below {wanted:.4f} at {TIMES} times the work: {say(rows)}", flush=True)


def drift(data: Path, only: list[str]) -> None:
    """Measure the panel again, and write beside each seam how far its score and its seconds moved."""
    torch.set_num_threads(1)
    path = FOLDER / "drift.json"
    judged: dict[str, Any] = json.loads((FOLDER / "judged-converged.json").read_text())
    moved: dict[str, Any] = {}
    for seam in read_seams():
        if seam["id"] not in (only or PANEL) or "0" not in judged.get(seam["id"], {}):
            continue
        before = judged[seam["id"]]["0"]
        images, sender, receiver = load(seam, data)
        cache = Activations()
        suture.measure(pose(seam, images, sender, receiver, "least-squares"), cache)
        now = measure(pose(seam, images, sender, receiver, "converged"), best(read_results(seam))[0], cache)
        moved[seam["id"]] = {
            "points": 100 * (now["accuracy"] - before["accuracy"]),
            "steps": [before["steps"], now["steps"]],
            "fit_seconds": [before["fit_seconds"], now["fit_seconds"]],
        }
        write(path, moved)
        took = "{:.1f} s in place of {:.1f}".format(*reversed(moved[seam["id"]]["fit_seconds"]))
        print(f"{seam['id']:22} {moved[seam['id']]['points']:+.2f} points, {took}", flush=True)


def later_seconds(rows: list[dict[str, Any]]) -> float:
    """Return the median seconds of a fit's later seeds, for which the activations were cached, if there are any."""
    return statistics.median(row["seconds"] for row in rows[1:] or rows)


def time_steps(task: Task) -> dict[str, float]:
    """Return median CPU seconds of a step of Adam on cached activations, and of one that computes the prefix too."""
    stitch = task.stitch(least_squares=False).eval()
    adam = torch.optim.Adam(stitch.parameters(), lr=1e-3)
    drawn, images = batches(len(task.labels["fit"]), BATCH), task.data.fit.images
    took: dict[str, list[float]] = {"cached": [], "plain": []}
    for _ in range(TIMED_STEPS):
        for name, seconds in took.items():
            chosen, begun = next(drawn), time.process_time()
            if name == "cached":
                sent = task.given["fit"][chosen].float()
            else:
                with torch.no_grad():
                    sent = task.prefix(images[chosen])
            loss = nn.functional.cross_entropy(task.suffix(stitch(sent)), task.labels["fit"][chosen])
            adam.zero_grad()
            loss.backward(inputs=list(stitch.parameters()))  # type: ignore[no-untyped-call]
            adam.step()
            seconds.append(time.process_time() - begun)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def clock(data: Path, fit: str, only: list[str]) -> None:
    """Measure the seconds of a fit, its activations cached, between two timings of Adam's steps at the same seam."""
    torch.set_num_threads(1)
    path = FOLDER / f"timed-{fit}.json"
    timed: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for seam in read_seams():
        results = read_results(seam)
        if (
            seam["id"] in timed
            or (only and seam["id"] not in only)
            or set(candidates(seam)) - set(results["candidates"])
        ):
            continue
        task, cache = Task(seam, data), Activations()
        posed = partial(pose, seam, task.data, task.sender, task.receiver)
        measure(posed("least-squares"), 0.0, cache)
        before = time_steps(task)
        row = measure(posed(fit), best(results)[0], cache)
        after = time_steps(task)
        timed[seam["id"]] = row | {"step": {name: (before[name] + after[name]) / 2 for name in before}}
        write(path, timed)
        print(f"{seam['id']:22} {row['seconds']:.1f} s, {row['steps']} steps", flush=True)


def cost(fit: str) -> None:
    """Print CPU seconds of a fit, whole, over those of Adam, stopped where it comes within ``NEAR`` of the reference.

    Both as ``clock`` timed them, in one run on one machine. Adam begins at the closed form, whose seconds are not
    counted, and has cached activations, or computes the prefix at every step. A rate that is never there has no
    ratio.
    """
    timed: dict[str, Any] = json.loads((FOLDER / f"timed-{fit}.json").read_text())
    ratios: dict[str, list[float]] = {}
    for seam in read_seams():
        if (row := timed.get(seam["id"])) is None:
            continue
        results = read_results(seam)
        wanted, _ = best(results)
        there = sorted(
            min((look[0] for look in found["looks"] if look[1] >= wanted - NEAR), default=math.inf)
            for name, found in results["candidates"].items()
            if name.startswith("adam")
        )
        said = []
        for kind, each in row["step"].items():
            for which, steps in zip(("best", "middle"), there, strict=False):
                ratios.setdefault(f"{kind}, {which} rate", []).append(steps * each / row["seconds"])
                said.append(f"{kind} {which} " + (f"{steps * each:.1f} s" if math.isfinite(steps) else "never"))
        near = "" if row["below"] <= NEAR else f", {100 * row['below']:.2f} below"
        print(f"{seam['id']:22} {fit} {row['seconds']:.1f} s{near}; {', '.join(said)}")
    for name, found in ratios.items():
        finite = [ratio for ratio in found if math.isfinite(ratio)]
        print(
            f"{name:20} over {fit}: {statistics.median(found):.2f} in the median of {len(found)};"
            f" never there at {len(found) - len(finite)}, {statistics.median(finite):.2f} without these"
        )


def compare_losses(data: Path, fit: str, only: list[str]) -> None:
    """Print loss and error of a fit and of Adam at its best rate, on images to fit, to validate on and to score."""
    torch.set_num_threads(1)
    for seam in read_seams():
        found = {n: c["looks"][-1][1] for n, c in read_results(seam)["candidates"].items() if n.startswith("adam")}
        if seam["id"] not in only or not found:
            continue
        task, name = Task(seam, data), max(found, key=lambda name: found[name])
        trial = pose(seam, task.data, task.sender, task.receiver, fit)
        stitches = {fit: suture.measure(trial).stitch, name: task.stitch(least_squares=True)}
        adam(task, float(name.split()[1]), stitches[name])
        for made, stitch in stitches.items():
            for role in task.given:
                loss, error = task.loss_and_error(stitch, role)
                print(f"{seam['id']:14} {made:12} {role:12} {loss:.4f} nats, {100 * error:.2f} % wrong", flush=True)


def sum_up(fit: str) -> None:
    """Print over all judged seams how near a fit is, whether its claims are true, and how far its seeds range."""
    judged: dict[str, Any] = json.loads((FOLDER / f"judged-{fit}.json").read_text())
    seams = {seam: list(rows.values()) for seam, rows in judged.items()}
    rows = [row for own in seams.values() for row in own]
    claimed = [row for row in rows if row["converged"]]
    medians = [statistics.median(row["below"] for row in own) for own in seams.values()]
    several = [[row["below"] for row in own] for own in seams.values() if len(own) > 1]
    ranges = [max(own) - min(own) for own in several]
    print(f"{len(seams)} seams, {len(rows)} fits by {fit}")
    print(f"median of the seeds within {100 * NEAR} points: {sum(m <= NEAR for m in medians)} seams", end="; ")
    print(f"the worst {100 * max(medians):.2f} below, the median {100 * statistics.median(medians):.2f}")
    false = sum(row["below"] > NEAR for row in claimed)
    print(f"say that they converged: {len(claimed)} fits, of which false: {false}")
    print(f"seeds range over less than 1 point: {sum(r < 0.01 for r in ranges)} of {len(ranges)} seams with several")
    if fit != "converged":
        whole = json.loads((FOLDER / "judged-converged.json").read_text())
        shares = [
            later_seconds(seams[seam]) / later_seconds(list(whole[seam].values())) for seam in seams.keys() & whole
        ]
        print(f"seconds, as a share of converged's, in the median of {len(shares)}: {statistics.median(shares):.2f}")


def table() -> None:
    """Print the table of the judged seams."""
    for seam in read_seams():
        results = read_results(seam)
        where = f"{seam['sender']} {seam['sender_cut']} -> {seam['receiver']} {seam['receiver_cut']}"
        if not results["candidates"]:
            print(f"{seam['id']:22} {where}")
            continue
        accuracy, name = best(results)
        done = f"{len(results['candidates'])} of {len(candidates(seam))}"
        print(f"{seam['id']:22} {where:70} {accuracy:.4f} by {name} ({done} candidates)")


def main() -> int:
    """Run a command; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=("draw", "run", "table", "judge", "clock", "cost", "sum", "losses", "longer", "drift")
    )
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no candidate after so many")
    parser.add_argument("--fit", default="converged", metavar="FIT", help="a fit, as on Suture's command line")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="stitch seeds")
    parser.add_argument("--compiled", action="store_true", help="compile what candidates descend through")
    parser.add_argument("--closed", action="store_true", help="also the seams that stay closed until the end")
    given = parser.parse_args()
    if given.what in ("table", "cost", "sum"):
        {"table": table, "cost": partial(cost, given.fit), "sum": partial(sum_up, given.fit)}[given.what]()
        return 0
    if given.data is None:
        parser.error(f"{given.what} wants DATA, a folder with cifar10/ and mnist/")
    if given.what == "draw":
        if (FOLDER / "seams.json").exists():
            parser.error("the seams are drawn; they stay")
        write(FOLDER / "seams.json", draw(given.data))
        table()
    elif given.what in ("losses", "longer"):
        if not set(given.only) & {seam["id"] for seam in read_seams()}:
            parser.error(f"{given.what} wants --only and the id of a seam; `table` lists them")
        if given.what == "losses":
            compare_losses(given.data, given.fit, given.only)
        else:
            go_longer(given.data, given.fit, given.only)
    elif given.what == "drift":
        drift(given.data, given.only)
    elif given.what == "clock":
        clock(given.data, given.fit, given.only)
    elif given.what == "judge":
        judge(given.data, given.fit, given.only, given.seeds, given.closed)
    else:
        run(given.data, given.only, given.minutes, given.compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())

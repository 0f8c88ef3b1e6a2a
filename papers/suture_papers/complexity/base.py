"""The input of every measure of complexity: a whole network as a function of all of its parameters.

``L(θ)`` is the mean cross-entropy over the samples, in nats, in evaluation mode, and θ *every* parameter: those of the
frozen halves count as those of the stitch do (oxford2025, section 2.3, asks how complex the stitched network is, not
how complex its stitch is). The network itself is never touched: a copy is measured, whose parameters are replaced for
each evaluation and never changed. If sender and receiver are one network, each half counts by itself.

*Raw* measures depend on how a network is written: if one layer of a ReLU network is doubled and the next halved, the
network computes the same with another gradient. *Normalised* ones are taken in the coordinates ``u = w / ‖w‖`` of every
parameter tensor ``w``, so that such networks agree (per-tensor form of the adaptive sharpness of Kwon et al. 2021,
definition 2). A tensor of zeros does not move in them. Measures without a slope are divided by the largest value they
could have, or by the number of parameters, as each says.

Losses, gradients and their sums are kept in float64, activations in the network's own type; chunks of ``CHUNK`` images,
one thread.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suture import Network, Samples, Stitched
from suture.common.errors import DataError, NetworkError
from suture.data.tasks import Classification
from suture.extend import CHUNK, copy_frozen, generator, keyed_as, match_dtype, spell, undisturbed

Tensors = dict[str, Tensor]
"""A tensor for every parameter, by name."""


@keyed_as("Complexity")
class Complexity(ABC):
    """A measure of the complexity of a network: ``GradientNorm()(network, samples)`` is a number.

    ``normalised`` is whether it is comparable between networks that differ in scale or size, as the measure says;
    ``unit`` is one of "nats", "bits" and "raw"; ``samples_as`` is how maps become samples, empty if nothing does.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = "nats"
    uses_samples: ClassVar[bool] = True
    after_stitch: ClassVar[bool] = False
    normalised: bool
    samples_as: str = ""

    @abstractmethod
    def of(self, subject: "Subject") -> float:
        """Measure a network that has been prepared."""

    def estimate(self, subject: "Subject") -> tuple[float, float]:
        """Return the number and its standard error, nan if it is not estimated by random draws."""
        return self.of(subject), math.nan

    def check(self, subject: "Subject") -> None:
        """Raise ``DataError``, before anything is computed, if it is not defined for a network or for its samples."""
        if self.unit == "nats" and subject.samples.task != Classification():
            raise DataError(
                f"the {self.name} is of the cross-entropy of one class per sample, and the task of "
                f"{subject.samples.name!r} is {subject.samples.task.name}; measure what needs no loss, such as "
                "by=[Parameters(), Flops(), GzipSize()]"
            )
        if self.after_stitch and subject.joined is None:
            raise DataError(
                f"the {self.name} of {subject.name}: it is taken after a stitch, and this is not a stitched network; "
                f"measure one, or call {self.name.replace(' ', '_')} with activations"
            )

    def __call__(self, network: nn.Module | Network, samples: Samples) -> float:
        """Measure a network on samples.

        Raises ``DataError`` if the samples do not suit it or the measure is not defined for it, and ``NetworkError``
        if it cannot be copied or its loss is not finite.
        """
        with undisturbed(), torch.inference_mode(False):
            subject = Subject(network, samples)
            self.check(subject)
            return self.of(subject)

    @property
    def settings(self) -> str:
        """The settings in words, without those that have a column."""
        named = [f.name for f in fields(self) if f.name not in ("normalised", "samples_as")]  # type: ignore[arg-type]
        return ", ".join(f"{name}={spell(getattr(self, name))}" for name in named)


class Subject:
    """A copy of a network in evaluation mode, and the samples that it is measured on.

    ``theta`` are its floating-point parameters by name, in order. Raises ``DataError`` if it does not give logits
    ``(n, classes)`` for the images, and ``NetworkError`` if it cannot be copied.
    """

    def __init__(self, network: nn.Module | Network, samples: Samples) -> None:
        self.name, self.samples = _name(network), samples
        self.module = _copy(network, self.name)
        self.joined = self.module if isinstance(self.module, Joined) else None
        named = self.module.named_parameters()
        self.theta: Tensors = {name: p.detach() for name, p in named if p.is_floating_point()}
        self.device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        self._check()

    def __len__(self) -> int:
        return len(self.samples)

    def _check(self) -> None:
        try:
            with torch.no_grad():
                out = self.module(self.samples.images[:2].to(self.device))
        except Exception as error:
            raise DataError(
                f"{self.name} does not run on images of {self.samples.name!r}: {error}; they are given to it raw, so "
                "make it a suture.Network with its preprocessing"
            ) from error
        if self.samples.task != Classification():
            return  # what needs a loss says so itself; sizes and FLOPs need none
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise DataError(f"{self.name} gave {got} for 2 images; its loss needs logits (n, classes)")
        if out.shape[1] < len(self.samples.classes):
            raise DataError(
                f"{self.name} has {out.shape[1]} outputs and {self.samples.name!r} has {len(self.samples.classes)} "
                "classes; measure it on data whose classes it knows"
            )

    @cached_property
    def _norms(self) -> dict[str, float]:
        return {name: float(p.double().norm()) for name, p in self.theta.items()}

    def units(self, normalised: bool) -> dict[str, float]:
        """Return how long a step of length 1 is in every tensor: the tensor's norm, if it is to be normalised."""
        return self._norms if normalised else dict.fromkeys(self.theta, 1.0)

    @property
    def dimensions(self) -> int:
        """The number of floating-point parameters."""
        return sum(p.numel() for p in self.theta.values())

    @property
    def count(self) -> int:
        """The number of parameters."""
        return sum(p.numel() for p in self.module.parameters())

    def batches(self, size: int) -> Iterator[slice]:
        """Return the samples in parts of one size, in order; the last may be smaller."""
        return (slice(start, min(start + size, len(self))) for start in range(0, len(self), size))

    @cached_property
    def base(self) -> float:
        """``L(θ)`` of the network itself. Raises ``NetworkError`` if it is not finite."""
        found = self.loss(self.theta)
        if not isfinite(found):
            raise NetworkError(f"the loss of {self.name} on {self.samples.name!r} is {found}; train or fit it again")
        return found

    def loss(self, theta: Mapping[str, Tensor]) -> float:
        """Return ``L`` at other parameters, in nats."""
        with torch.no_grad():
            return sum(float(self.sum_losses(theta, part)) for part in self.batches(CHUNK)) / len(self)

    def gradient(self, theta: Mapping[str, Tensor], part: slice | None = None) -> tuple[float, Tensors]:
        """Return the mean loss over some samples, or all, and its gradient in float64."""
        start, stop, _ = (part or slice(None)).indices(len(self))
        total, found = 0.0, {name: torch.zeros_like(p, dtype=torch.float64) for name, p in theta.items()}
        for first in range(start, stop, CHUNK):
            free = {name: p.detach().requires_grad_() for name, p in theta.items()}
            with torch.enable_grad():
                loss = self.sum_losses(free, slice(first, min(first + CHUNK, stop))) / (stop - start)
            total += float(loss.detach())
            for name, slope in zip(found, slopes(loss, free), strict=True):
                found[name] += slope
        return total, found

    def sum_losses(self, theta: Mapping[str, Tensor], part: slice) -> Tensor:
        """Return the losses of some samples, added up, as a scalar in float64."""
        images, labels = self.samples.images[part], self.samples.paired_labels[part]
        logits: Tensor = functional_call(self.module, dict(theta), (images.to(self.device),))
        return nn.functional.cross_entropy(logits.double(), labels.to(self.device), reduction="sum")

    def move(self, by: Mapping[str, Tensor], units: Mapping[str, float]) -> Tensors:
        """Return ``θ + units · by`` in the parameters' own types."""
        return {name: (p.double() + units[name] * by[name]).to(p.dtype) for name, p in self.theta.items()}

    def gaussian(self, *seed: object) -> Tensors:
        """Return a standard normal number in float64 for every parameter, drawn on the CPU from a seed."""
        random = generator("complexity", *seed)
        return {
            name: torch.randn(p.shape, generator=random, dtype=torch.float64).to(self.device)
            for name, p in self.theta.items()
        }


class Joined(nn.Module):
    """A copy of a stitched network, without the networks that it was made of."""

    def __init__(self, stitched: Stitched) -> None:
        super().__init__()
        if any(segment.reads_inputs for segment in stitched.suffix.segments):
            raise NetworkError(
                f"the layers of {stitched.seam} after the cut read masks or positions of their samples, and complexity "
                "is taken of what maps one tensor; take it at a later cut"
            )
        self.prefix = copy_frozen(stitched.prefix, True, "the prefix")
        self.stitch = copy_frozen(stitched.stitch, True, "the stitch")
        self.suffix = copy_frozen(stitched.suffix, True, "the suffix")

    def represent(self, images: Tensor) -> Tensor:
        """Return the suffix's input."""
        out: Tensor = self.stitch(match_dtype(self.prefix(images), self.stitch).contiguous())
        return out

    def forward(self, images: Tensor) -> Tensor:
        """Map raw images to the outputs, as ``Stitched`` does."""
        out: Tensor = self.suffix(self.represent(images))
        return out


def slopes(loss: Tensor, theta: Mapping[str, Tensor], again: bool = False) -> tuple[Tensor, ...]:
    """Return the derivative of a scalar by each tensor, zeros if there is none; ``again`` allows the next one."""
    if not loss.requires_grad:
        return tuple(torch.zeros_like(p) for p in theta.values())
    return torch.autograd.grad(loss, list(theta.values()), create_graph=again, materialize_grads=True)


def _name(network: nn.Module | Network) -> str:
    if isinstance(network, Stitched):
        return str(network.seam)
    return network.name if isinstance(network, Network) else type(network).__name__


def _copy(network: nn.Module | Network, name: str) -> nn.Module:
    if isinstance(network, Stitched):
        return Joined(network).eval()
    return copy_frozen(network.whole() if isinstance(network, Network) else network, True, name)

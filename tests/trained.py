"""Networks and data that several tests share: small, real, and trained once per session."""

import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import suture
from suture import Measurement, Network
from suture.cli.demo import convnet, train
from suture.data import Data


class Hybrid(nn.Module):
    """Maps, tokens and vectors in one network, with BatchNorm, Dropout and tensors that are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.embed = nn.Linear(8, 8)
        self.mix = nn.Linear(16, 6)
        self.hidden = nn.Linear(48, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.drop(self.relu(self.norm(self.conv(x))))  # 8 × 4 × 4
        tokens = self.embed(maps.flatten(2).transpose(1, 2)).tanh()  # 16 tokens of 8
        mixed = self.mix(tokens.transpose(1, 2)).relu().transpose(1, 2)  # 6 tokens of 8
        return self.head(self.hidden(mixed.flatten(1)).relu())


@cache
def digits() -> Data:
    """The handwritten digits: 1,080 to fit, 120 to validate, 597 to score."""
    return suture.load_data("digits")


@cache
def few_digits() -> Data:
    """Digits enough for a fit to do something, and to need two chunks of 256; few to validate on, for speed."""
    return replace(digits().limited(fit=300, score=260), validation=digits().validation.first(33))


@cache
def hybrid(seed: int) -> nn.Module:
    """A trained ``Hybrid``."""
    return train(Hybrid, digits().fit, seed, epochs=10)


@cache
def convolutional(seed: int) -> nn.Module:
    """The demo's network, narrower, by the demo's recipe."""
    return train(lambda: convnet(width=4), digits().fit, seed)


@cache
def hybrids() -> tuple[Network, Network]:
    """Two hybrids, trained from two seeds."""
    return wrap(hybrid(0), "A"), wrap(hybrid(1), "B")


@cache
def convnets() -> tuple[Network, Network]:
    """Two convolutional networks, trained from two seeds."""
    return wrap(convolutional(0), "C"), wrap(convolutional(1), "D")


def wrap(model: nn.Module, name: str, **settings: Any) -> Network:
    """A network for the digits."""
    return Network(model, example=digits().example, name=name, **settings)


def bits(measurement: Measurement) -> dict[str, str]:
    """Whatever of a measurement must be the same wherever it was made, to the last bit."""
    cards = {"sender": measurement.sender, "receiver": measurement.receiver, "stitched": measurement.scores}
    values = {f"{whose} {name}": repr(card[name]) for whose, card in cards.items() for name in card}
    values |= {f"penalty {name}": repr(value) for name, value in measurement.penalties.items()}
    values |= {f"stitch {name}": tensor_bits(tensor) for name, tensor in measurement.stitch.state_dict().items()}
    values["fit"] = repr((measurement.steps, measurement.converged, measurement.curve))
    values["representation error"] = repr(measurement.representation_error)
    values["apart"] = repr(measurement.apart)
    return values


def tensor_bits(tensor: Tensor) -> str:
    """The content of a tensor, shortened."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def state_bits(module: nn.Module) -> dict[str, str]:
    """The content of every parameter and buffer of a module."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor_bits(tensor) for name, tensor in tensors}


def accuracy(module: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that a module gives the right class."""
    with torch.no_grad():
        return float((module(images).argmax(1) == labels).float().mean())

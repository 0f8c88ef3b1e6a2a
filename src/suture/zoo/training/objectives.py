"""What a network is trained to do: the loss that training lowers, and what the network carries meanwhile.

An objective may give the network another head for the time of training (``attach``) and takes it away at the end
(``detach``). Losses are means over the batch, in nats.

SimCLR is Chen et al. 2020, *A Simple Framework for Contrastive Learning of Visual Representations*, arXiv:2002.05709.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as

View = Callable[[], Tensor]
"""Gives the images of a batch, augmented anew by every call and preprocessed, ``(n, C, H, W)``."""


@keyed_as("Objective")
class Objective(ABC):
    """What training lowers."""

    def attach(self, model: nn.Module) -> nn.Module:
        """Make the model what is trained, changing the model itself; random weights are torch's global generator's."""
        return model

    def detach(self, trained: nn.Module) -> nn.Module:
        """Give the model back from what was trained; this changes what was trained."""
        return trained

    @abstractmethod
    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """Return the loss on a batch, a scalar in nats; ``labels`` are ``(n,)`` int64."""


@keyed_as("CrossEntropyObjective")
@dataclass(frozen=True, repr=False)
class LabelCrossEntropy(Objective):
    """Cross-entropy with the labels, of which ``smoothing`` is shared out evenly among all classes."""

    smoothing: float = 0.0

    def __repr__(self) -> str:
        # Cards of networks that are trained spell their recipe so, and are found by it.
        return f"CrossEntropy(smoothing={self.smoothing})"

    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy on one view of the batch."""
        return nn.functional.cross_entropy(_to_float32(trained(view())), labels, label_smoothing=self.smoothing)


@keyed_as("SimCLR")
@dataclass(frozen=True)
class SimCLR(Objective):
    """Two views of an image are to be nearer to each other than to the views of all other images (NT-Xent).

    A projection, Linear-ReLU-Linear to ``projection`` values, with as many hidden units as it has inputs, stands in
    the place of the model's last linear layer while it trains, which is put back unchanged: what it then reads is a
    representation that no label has shaped. The last linear layer is the last ``nn.Linear`` among the model's modules,
    in the order in which they were registered; it must give the model's output. ``temperature`` divides the cosine.
    """

    temperature: float = 0.5
    projection: int = 128

    def attach(self, model: nn.Module) -> nn.Module:
        """Put a projection with random weights in the place of the last linear layer.

        Raises ``FitError`` if there is none.
        """
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name]
        if not linear:
            raise FitError(
                f"SimCLR finds no nn.Linear inside {type(model).__name__} to put its projection in the place of; give "
                "it a network whose last layer is linear"
            )
        last = model.get_submodule(linear[-1])
        assert isinstance(last, nn.Linear)
        model.set_submodule(linear[-1], _Projection(last, self.projection))
        return model

    def detach(self, trained: nn.Module) -> nn.Module:
        """Put the last linear layer back, on the device where the projection is."""
        for name, projection in _projections_in(trained).items():
            trained.set_submodule(name, projection.replaced())
        return trained

    def loss(self, trained: nn.Module, view: View, labels: Tensor) -> Tensor:
        """NT-Xent on two views of the batch, which pass the network together; labels are not read.

        Raises ``FitError`` for a batch of one image, which has no others, and for a network whose last linear layer
        does not give its output.
        """
        outputs = trained(torch.cat([view(), view()]))
        if outputs.shape != (2 * len(labels), self.projection):
            raise FitError(
                f"{type(trained).__name__} gives {tuple(outputs.shape)} for two views of {len(labels)} images, not the "
                f"projection's {(2 * len(labels), self.projection)}; SimCLR needs a network that ends with its last "
                "linear layer"
            )
        return nt_xent(outputs, self.temperature)


def nt_xent(projections: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the normalised temperature-scaled cross-entropy of Chen et al. 2020, equation 1, in nats.

    It is the mean over all views. ``projections`` is ``(2n, D)``, the first views of all images, then the second views
    in the same order. Raises ``FitError`` for fewer than two images.
    """
    n = len(projections) // 2
    if n < 2:
        raise FitError(f"SimCLR tells images from one another and was given {n}; use batches of at least 2 images")
    with torch.autocast(projections.device.type, enabled=False):
        unit = nn.functional.normalize(_to_float32(projections), dim=1)
        similarities = unit @ unit.T / temperature
    similarities = similarities.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=unit.device), -math.inf)
    partners = torch.arange(2 * n, device=unit.device).roll(n)
    return nn.functional.cross_entropy(similarities, partners)


class _Projection(nn.Module):
    """Linear-ReLU-Linear, which keeps the layer that it stands in for: as buffers, so that nothing trains it."""

    def __init__(self, last: nn.Linear, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(last.in_features, last.in_features).to(last.weight)
        self.relu = nn.ReLU()
        self.output = nn.Linear(last.in_features, outputs).to(last.weight)
        for name, parameter in last.named_parameters():
            self.register_buffer(f"replaced_{name}", parameter.detach().clone())
        self._last = (last,)  # in a tuple, so that it is no submodule

    def forward(self, features: Tensor) -> Tensor:
        """Project features ``(n, D)``."""
        projected: Tensor = self.output(self.relu(self.hidden(features)))
        return projected

    def replaced(self) -> nn.Linear:
        """Return the layer that it stood in for, unchanged, on the device of the projection."""
        last = self._last[0].to(self.hidden.weight.device)
        with torch.no_grad():
            for name, parameter in last.named_parameters():
                parameter.copy_(self.get_buffer(f"replaced_{name}"))
        return last.train(self.training)


def _to_float32(outputs: Tensor) -> Tensor:
    """Convert outputs of a network that computes in less than float32 to float32."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _projections_in(model: nn.Module) -> dict[str, _Projection]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _Projection)}

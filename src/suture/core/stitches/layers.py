"""A network's own layers as a stitch: fine-tuned, or drawn anew and trained again.

Between a sender's cut and ``OUTPUT`` they make "freeze the first layers and fine-tune the rest" (bansal2021, section 2,
"full fine tuning", and appendix B.3) a measurement like any other; up to a later cut, behind which the receiver's last
layers stay frozen, they are "freeze training" (appendix B.4).

A copy of the layers trains; the network itself stays frozen. The copy trains as networks do: in training mode, so that
BatchNorms use and gather the statistics of the batches, and dropout drops, and it is scored in evaluation mode. What is
frozen before and after it stays in evaluation mode. What reads a mode itself and hands it on, as
``F.batch_norm(…, training=self.training)``, does so in the copy, too (see ``modes``), whatever traced it. What only
branches on its mode, in Python, was traced as it is in evaluation mode, and trains so.
"""

import copy
from dataclasses import dataclass, field
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import CutError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import OUTPUT, Cut
from suture.core.network.network import Frozen, Network
from suture.core.network.segments import Segment
from suture.core.network.tracing import FunctionStage
from suture.core.stitches.base import Shape, Stitch
from suture.core.stitches.train_mode import check_mode, follow_mode


@keyed_as("Layers")
@final
@dataclass(frozen=True)
class Layers(Stitch):
    """A trainable copy of a network's layers after the cut ``after``, to its outputs or up to the cut ``upto``.

    They begin as they were trained or, with a ``seed``, drawn anew from it (see ``Network.untrained``). Raises
    ``CutError`` where the network has no such cuts, in this order, or its layers there are methods of the model, which
    no copy can train, and ``UntrainedError``, when a stitch is built, where they cannot be drawn anew.
    """

    network: Network
    after: str
    upto: str = OUTPUT
    seed: int | None = None
    version: int = field(default=3, init=False, repr=False)  #: of how they train, and a part of every key
    drawn_by: object = field(default=None, init=False, repr=False)  #: what else decides how they are drawn anew
    joins: ClassVar[str] = "the shape of the one cut of its network to that of the other"
    suggested: ClassVar[bool] = False

    def __post_init__(self) -> None:
        start, end = self.ends
        object.__setattr__(self, "after", start.name)
        object.__setattr__(self, "upto", end.name)
        if self.seed is not None:
            object.__setattr__(self, "drawn_by", (self.network.factory, self.network.constants))
        if start.index >= end.index:
            raise CutError(f"no layers of {self.network.name} lie after '{start.name}' and up to '{end.name}'")
        for segment in self._frozen().segments:
            if any(_is_method(module) for module in segment.modules()):
                raise CutError(
                    f"the layers of {self.network.name} after '{start.name}' cannot train: a stage is a method of the "
                    "model; make it a module of the model"
                )
            check_mode(cast(Segment, segment).body)

    @property
    def ends(self) -> tuple[Cut, Cut]:
        """The cuts that the layers lie between; the second may be ``OUTPUT``."""
        cuts = self.network.cuts
        return cuts.find(self.after), cuts.find(self.upto)

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether the shapes are those of the two cuts."""
        start, end = self.ends
        return (tuple(sender), tuple(receiver)) == (start.shape, end.shape)

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the copy, on torch's default device."""
        self.check(sender, receiver)
        device = torch.empty(0).device
        drawn = self.seed is not None and device.type != "meta"  # where there are no numbers there are none to draw
        network = self.network.untrained(cast(int, self.seed)) if drawn else self.network
        return TrainingLayers(copy.deepcopy(list(self._frozen(network).segments))).to(device)

    def _frozen(self, network: Network | None = None) -> Frozen:
        return (network or self.network).between(self.after, self.upto)

    def __str__(self) -> str:
        """What it is made of, without the seed."""
        upto = "" if self.upto == OUTPUT else f", up to '{self.upto}'"
        drawn = "" if self.seed is None else ", drawn anew"
        return f"Layers({self.network.name} after '{self.after}'{upto}{drawn})"


@keyed_as("Training")
class TrainingLayers(nn.Module):
    """A chain of segments that trains, where segments as such never do."""

    def __init__(self, segments: list[nn.Module]) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        for segment in segments:
            follow_mode(cast(Segment, segment).body)
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.is_floating_point())

    def train(self, mode: bool = True) -> "TrainingLayers":
        """Put the layers into training mode, or back into evaluation mode."""
        super().train(mode)
        for segment in self.segments:
            cast(Segment, segment).body.train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map the tensor at one cut to that at a later one, or to the outputs."""
        for segment in self.segments:
            x = segment(x)
        return x


def _is_method(module: nn.Module) -> bool:
    return isinstance(module, FunctionStage) and isinstance(getattr(module.function, "__self__", None), nn.Module)

"""A network's own layers as a stitch: fine-tuned, or drawn anew and trained again.

Between a sender's cut and ``OUTPUT`` they make "freeze the first layers and fine-tune the rest" (bansal2021, section 2,
"full fine tuning", and appendix B.3) a measurement like any other; up to a later cut, behind which the receiver's last
layers stay frozen, they are "freeze training" (appendix B.4).

A copy of the layers trains; the network itself stays frozen. The copy trains as networks do: in training mode, so that
BatchNorms use and gather the statistics of the batches, and dropout drops; it is scored in evaluation mode. The frozen
layers before and after it stay in evaluation mode. Code that only branches on its mode, in Python, was traced in
evaluation mode, and trains so.

A layer of torch's own stays a module in the trace, and knows its mode. One that is traced through has handed its mode
on as an argument: the BatchNorm of timm, a subclass with a forward pass of its own, is ``batch_norm(…,
training=False)`` in the trace, and so is everything that ``torch.export`` traced. Before such a graph is trained, those
calls are made to ask for the mode again (``_follow_mode``).
"""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, fx, nn

from suture.common.constants import OUTPUT
from suture.common.errors import CutError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.network.segments import Frozen, Segment, operation
from suture.core.network.tracing import FunctionStage
from suture.core.stitches.base import Shape, Stitch

_TOLD = ("training", "train", "use_input_stats")  #: the arguments by which functions are told the mode


@keyed_as("Layers")
@final
@dataclass(frozen=True)
class Layers(Stitch):
    """A trainable copy of a network's layers after the cut ``after``, to its outputs or up to the cut ``upto``.

    They begin as they were trained or, with a ``seed``, drawn anew from it (see ``Network.untrained``). Raises
    ``CutError`` if the network has no such cuts, in this order, or no copy of its layers can train, because they are
    methods of the model or read masks beside the tensor, and ``UntrainedError``, when a stitch is built, if they cannot
    be drawn anew.
    """

    network: Network
    after: str
    upto: str = OUTPUT
    seed: int | None = None
    drawn_by: object = field(default=None, init=False, repr=False)  #: what else decides how they are drawn anew
    joins: ClassVar[str] = "the shape of the one cut of its network to that of the other"
    version: ClassVar[int] = 3  #: of how they train

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
            if cast(Segment, segment).reads_inputs:
                raise CutError(
                    f"the layers of {self.network.name} after '{start.name}' cannot train: they read masks or "
                    "positions beside the tensor, which a copy is not given; choose a later cut"
                )
            _find_told_calls(cast(Segment, segment).body)

    @property
    def ends(self) -> tuple[Cut, Cut]:
        """The cuts that the layers lie between; the second may be ``OUTPUT``."""
        cuts = self.network.cuts
        return cuts.find(self.after), cuts.find(self.upto)

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether the shapes are those of the two cuts."""
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
        """Return the name of the layers and their network, without the seed."""
        upto = "" if self.upto == OUTPUT else f", up to '{self.upto}'"
        drawn = "" if self.seed is None else ", drawn anew"
        return f"Layers({self.network.name} after '{self.after}'{upto}{drawn})"


@keyed_as("Training")
class TrainingLayers(nn.Module):
    """A chain of segments that trains, although a segment by itself never does."""

    def __init__(self, segments: list[nn.Module]) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        for segment in segments:
            _follow_mode(cast(Segment, segment).body)
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


def _follow_mode(body: nn.Module) -> None:
    """Let the calls in a traced module read its own mode, if the trace told them that it was evaluation."""
    if not isinstance(body, fx.GraphModule):
        return
    for node, argument in _find_told_calls(body):
        with body.graph.inserting_before(node):
            mode = body.graph.create_node("get_attr", "training")
        if isinstance(argument, int):
            node.update_arg(argument, mode)
        else:
            node.update_kwarg(argument, mode)
    body.recompile()


def _find_told_calls(body: nn.Module) -> list[tuple[fx.Node, str | int]]:
    """Return the calls in a traced module that are to follow its mode, with the name or place of that argument.

    A BatchNorm whose scale is not a parameter is frozen on purpose, and stays so. Raises ``CutError`` for a BatchNorm
    that takes the mean over all batches (``momentum=None``), which its call in evaluation mode no longer says.
    """
    found: list[tuple[fx.Node, str | int]] = []
    for node in body.graph.nodes if isinstance(body, fx.GraphModule) else ():
        names = _arguments(node.target) if node.op == "call_function" else ()
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        told = next((name for name in _TOLD if given.get(name) is False), None)
        is_norm = operation(node) == "batch_norm"
        if told is None or (is_norm and _has_fixed_scale(body, given.get("weight"))):
            continue
        if is_norm and given.get("momentum") == 0:
            raise CutError(
                f"'{node.name}' cannot train: it is a BatchNorm over all batches (momentum=None), traced through; give "
                "it a momentum"
            )
        found.append((node, told if told in node.kwargs else list(names).index(told)))
    return found


@lru_cache(maxsize=1024)
def _arguments(function: Any) -> Sequence[str]:
    """Return the names of a function's arguments; none if they cannot be known."""
    if not isinstance(function, torch._ops.OpOverload):
        try:
            return list(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # torch's own builtins are the operations of the same name
            function = getattr(getattr(torch.ops.aten, getattr(function, "__name__", ""), None), "default", None)
    return [argument.name for argument in function._schema.arguments] if function is not None else []


def _has_fixed_scale(body: nn.Module, weight: Any) -> bool:
    """Return whether the scale of a BatchNorm is a tensor but not a parameter."""
    if not isinstance(weight, fx.Node):
        return False
    if weight.op != "get_attr":
        return True
    owner, _, name = str(weight.target).rpartition(".")
    return not isinstance(getattr(body.get_submodule(owner), name), nn.Parameter)

"""A prefix and a suffix as one plain graph: what a stitched network is without its stitch.

Pieces are copied node by node, in their order, from raw images to outputs. What they call keeps its path in its own
network, after ``sender.`` or ``receiver.``; the bodies themselves are not touched.
"""

import copy as copying
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import Cut
from suture.core.network.feature_axis import ENTERS, LEAVES, own_shape
from suture.core.network.graph import operation
from suture.core.network.network import Frozen, Network
from suture.core.network.segments import Segment
from suture.core.network.tracing import FunctionStage
from suture.data.preprocess import Prepare, Preprocess, as_given

Shape = tuple[int, ...]
SENDER, RECEIVER = "sender", "receiver"


@keyed_as("raw_to_floats")
def raw_to_floats(images: Tensor) -> Tensor:
    """Bring a copy of raw images to floats in [0, 1]; a call of its own in a graph, since it looks at their type."""
    return as_given(images).clone()


@keyed_as("prepare")
def prepare(
    images: Tensor, size: int | None, channels: int | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Do what a ``Preprocess`` of these settings does to raw images; a call of its own in a graph."""
    return Preprocess(size, channels, mean, std)(as_given(images))


@dataclass(frozen=True, eq=False)
class Joint:
    """The graph of a stitched network without its stitch.

    ``sent`` is the tensor at the sender's cut, ``received`` what the suffix reads: the same node, unless type or layout
    must be brought to the receiver's. ``shapes``, without the batch, and ``names`` are those of the tensors at cuts;
    ``parts`` are the modules and tensors that the graph names.
    """

    sender: str
    receiver: str
    sender_cut: Cut
    receiver_cut: Cut
    graph: fx.Graph
    sent: fx.Node
    received: fx.Node
    shapes: dict[fx.Node, Shape]
    names: dict[fx.Node, str]
    parts: dict[str, Any]

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls."""
        part = self.parts[str(node.target)] if node.op == "call_module" else None
        return part if isinstance(part, nn.Module) else None

    def path(self, node: fx.Node) -> str:
        """Return what the user of the network calls the place of a node: ``layer2.1.add``."""
        if node.op == "call_module":
            return str(node.target).partition(".")[2]
        if node in self.names:
            return self.names[node]
        stack = [value for value in (node.meta.get("nn_module_stack") or {}).values() if isinstance(value, tuple)]
        path, kind = stack[-1] if stack else ("", "")
        inside, whole = path.partition("model.")[2], "torch.nn.modules" in str(kind)
        return inside if inside and whole else ".".join(filter(None, [inside, operation(node)]))

    def say(self, node: fx.Node) -> str:
        """Return a node in words: ``a ReLU ('layer1.0.relu')``."""
        if node.op in ("placeholder", "output"):
            return f"the {node.op.replace('placeholder', 'input')} of the network"
        module = self.module_of(node)
        kind = operation(node) if module is None else type(module).__name__.removeprefix("Parametrized")
        how = "" if module is None else alteration_of(module)
        return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind} ('{self.path(node)}'){how and f' {how}'}"

    def plain(self) -> fx.GraphModule:
        """Make the module: a copy of what the graph calls, in evaluation mode, whose parameters ask for gradients.

        Each network is copied by itself, so that the two share no tensor, and with its own ties between tensors.
        """
        used = {str(node.target) for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        copies: dict[str, Any] = {}
        for side in (SENDER, RECEIVER):
            copies |= copying.deepcopy({t: p for t, p in self.parts.items() if t in used and t.startswith(f"{side}.")})
        module = fx.GraphModule(copies, self.graph, class_name="Folded")
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return module.eval()


def join(sender: Network, receiver: Network, sender_cut: Cut, receiver_cut: Cut) -> Joint:
    """Put the sender up to its cut and the receiver after its own into one graph, with nothing between.

    Raises ``FoldError`` if a network was cut along stages that are functions: no plain module holds their layers.
    """
    build = _Builder()
    prefix, suffix = sender.upto(sender_cut), receiver.after(receiver_cut)
    if receiver_cut.is_output:
        raise FoldError(f"no layer of {receiver.name} follows it")
    x = build.prepared(prefix.prepare)
    sent = build.chain(x, prefix.segments, list(sender.cuts)[: sender_cut.index], SENDER)
    received = build.adapted(sent, sender.after(sender_cut), suffix)
    out = build.chain(received, suffix.segments, list(receiver.cuts)[receiver_cut.index :], RECEIVER)
    build.graph.output(out)
    found = build.graph, sent, received, build.shapes, build.names, build.parts
    return Joint(sender.name, receiver.name, sender_cut, receiver_cut, *found)


def graph_of_part(network: Network, start: int, end: int) -> Joint:
    """Put what lies between two places of a network into one graph, whose input is the tensor at the first.

    Places are indices of cuts; 0 is the prepared input, one more than there are cuts is the output. Raises
    ``FoldError`` where the network was cut along stages that are functions.
    """
    build, cuts = _Builder(), list(network.cuts)
    x = build.graph.placeholder("x")
    build.shapes[x] = cuts[start - 1].shape if start else network.input_shape
    segments = network.whole().segments[start:end]
    build.graph.output(build.chain(x, segments, cuts[start:end], RECEIVER))
    cut = cuts[max(start, 1) - 1]
    found = build.graph, x, x, build.shapes, build.names, build.parts
    return Joint(network.name, network.name, cut, cut, *found)


@dataclass
class _Builder:
    """Copies segments into one graph."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    shapes: dict[fx.Node, Shape] = field(default_factory=dict)
    names: dict[fx.Node, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    def prepared(self, how: Prepare | None) -> fx.Node:
        """Return the sender's preprocessing of the raw images."""
        x = self.graph.placeholder("images")
        does = how.preprocess if how is not None else Preprocess()
        if isinstance(does, Preprocess):
            x = self.graph.call_function(prepare, (x, does.size, does.channels, does.mean, does.std))
            x.meta["is_wrapped"] = True
        else:
            x = self.graph.call_function(raw_to_floats, (x,))
            x.meta["is_wrapped"] = True
            x = self._call(f"{SENDER}.preprocess", does if isinstance(does, nn.Module) else FunctionStage(does), x)
        if how is not None and how.dtype is not None:
            x = self.graph.call_method("to", (x, how.dtype))
        return x

    def adapted(self, x: fx.Node, own: Frozen, other: Frozen) -> fx.Node:
        """Bring what lies at the sender's cut to the type and layout that the suffix meets in its own network."""
        mine, theirs = (_first(frozen) for frozen in (own, other))
        if theirs.dtype is not None and theirs.dtype != mine.dtype:
            x = self.graph.call_method("to", (x, theirs.dtype))
        order = theirs.order or ()
        if mine.order == theirs.order and mine.order is not None:
            return x
        if list(order) == sorted(order):
            return self.graph.call_method("contiguous", (x,))
        x = self.graph.call_method("contiguous", (self.graph.call_method("permute", (x, *order)),))
        return self.graph.call_method("permute", (x, *(order.index(dim) for dim in range(len(order)))))

    def chain(self, x: fx.Node, segments: Any, cuts: Sequence[Cut], side: str) -> fx.Node:
        """Append segments; ``cuts`` are those that they end in, as far as they end in any."""
        for i, segment in enumerate(segments):
            cut = cuts[i] if i < len(cuts) else None
            if isinstance(segment.body, fx.GraphModule):
                x = self._graph(x, segment.body, side, first=i == 0)
            else:
                x = self._stages(x, segment.body, side, cut.name if cut else "output")
            if cut is not None:
                self.shapes[x], self.names[x] = cut.shape, cut.name
        return x

    def _graph(self, x: fx.Node, body: fx.GraphModule, side: str, first: bool) -> fx.Node:
        copies: dict[fx.Node, Any] = {}
        if not first and LEAVES in x.meta:
            x = self._own(x)
            copies |= {node: x for node in body.graph.nodes if ENTERS in node.meta}
        for node in body.graph.nodes:
            if node in copies:
                continue
            if node.op == "placeholder":
                copies[node] = x
            elif node.op != "output":
                copies[node] = self.graph.node_copy(node, lambda read: copies[read])
                if node.op in ("call_module", "get_attr"):
                    part = _fetch(body, str(node.target))
                    copies[node].target = self._name_part(f"{side}.{str(node.target).removeprefix('model.')}", part)
        end = next(node for node in body.graph.nodes if node.op == "output")
        result: fx.Node = copies[end.args[0]]
        return result

    def _own(self, x: fx.Node) -> fx.Node:
        """Return the tensor at a cut inside a chain as its network has it, before it was brought to its shape."""
        own = x.args[0]
        assert isinstance(own, fx.Node)
        self.shapes[own], self.names[own] = own_shape(self.shapes.pop(x), str(x.target)), self.names.pop(x)
        self.graph.erase_node(x)
        return own

    def _stages(self, x: fx.Node, body: nn.Module, side: str, name: str) -> fx.Node:
        for path, module in _unroll(body, name):
            if isinstance(module, FunctionStage):
                raise FoldError(
                    f"the stage '{path}' of the {side} is a function, so no plain module can hold its layers; make the "
                    "stage a module of the model"
                )
            x = self._call(f"{side}.{path}", module, x)
        return x

    def _call(self, target: str, module: nn.Module, x: fx.Node) -> fx.Node:
        return self.graph.create_node("call_module", self._name_part(target, module), (x,))

    def _name_part(self, target: str, part: Any) -> str:
        """Its name among the parts: another where that is taken by another part."""
        while self.parts.setdefault(target, part) is not part:
            target += "_"
        return target


def _first(frozen: Frozen) -> Segment:
    segment = frozen.segments[0]
    assert isinstance(segment, Segment)
    return segment


def alteration_of(module: nn.Module) -> str:
    """Say why a module computes something else than its class, in words; empty if it does not."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "with a hook"
    return "whose forward was replaced" if "forward" in vars(module) else ""


def _fetch(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    return found if isinstance(found, nn.Module | Tensor) else torch.as_tensor(found)


def _unroll(body: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Return the modules that a chain of stages calls, one after another."""
    if type(body) is not nn.Sequential or alteration_of(body):
        yield name, body
        return
    for child, module in body.named_children():
        yield from _unroll(module, name if len(body) == 1 else f"{name}.{child}")

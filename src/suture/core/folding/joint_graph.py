"""A prefix and a suffix as one plain graph: what a stitched network is without its stitch.

Segments are copied node by node, in their order, from raw images to outputs. What they call keeps its path in its own
network, after ``sender.`` or ``receiver.``; the bodies themselves are not touched.

Layers that can take an affine map of features, and what passes one on unchanged.

An affine map of features, ``row ↦ W·row + b`` at every position, can be folded into a layer that is affine in those
features: a linear layer, a convolution, a BatchNorm in evaluation mode. All is computed in float64; a new layer has the
type and device of the one that it replaces.
"""

import copy as copying
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.common.hashing import keyed_as
from suture.core.network.feature_axis import ENTERS, LEAVES, own_shape
from suture.core.network.network import Cut, Frozen, Network
from suture.core.network.segments import Segment, operation
from suture.core.network.tracing import FunctionStage
from suture.data.samples import Prepare, Preprocess, as_given

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Layer = nn.Linear | Conv | Norm
CONVS: dict[int, type[Conv]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_KNOWN = (nn.Linear, *CONVS.values(), nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class WithBorder(nn.Module):
    """A layer, and a constant added to its output: what a shift of its input gives where the padding has none.

    ``border`` has the shape of the layer's output without the batch, so the input has a fixed size.
    """

    def __init__(self, layer: nn.Module, border: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.border: Tensor
        self.register_buffer("border", border)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch ``(n, …)`` to ``(n, *border.shape)``."""
        out: Tensor = self.layer(x)
        return out + self.border


@dataclass(frozen=True)
class Flow:
    """A stitch on its way through the suffix: what the receiver met as ``y`` is ``weight · x + shift`` here.

    ``weight`` (out, in) acts on the features in dimension ``axis`` (the batch is 0). Where dimensions were flattened
    into that one, it counts (before, features, after), of which ``before`` and ``after`` are the sizes. ``shift`` is a
    batch of one, of the shape that the receiver meets. All float64.
    """

    weight: Tensor
    shift: Tensor
    axis: int
    before: int = 1
    after: int = 1


def layer_of(joint: "Joint", node: fx.Node) -> Layer | None:
    """Return the layer that a node computes, as a module; ``None`` if it is none that can take an affine map."""
    module = joint.module_of(node)
    if module is not None:
        return module if _is_known(module) else None  # type: ignore[return-value]
    if node.op != "call_function":
        return None
    names = _ARGUMENTS.get(operation(node))
    if names is None:
        return None
    if node.target is torch.nn.functional.batch_norm:  # other than torch.batch_norm, which is the operation itself
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    settings = {name: _constant(joint, value) for name, value in given.items() if name != "input"}
    if any(isinstance(value, fx.Node) for value in settings.values()) or settings.get("training"):
        return None
    return _functional(operation(node), settings)


_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    ),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}


def _is_known(module: nn.Module) -> bool:
    """Whether a module computes what torch's own layer does, with nothing hooked on."""
    kind = next((kind for kind in _KNOWN if isinstance(module, kind)), None)
    if kind is None or alteration_of(module):
        return False
    own = type(module)
    same = own.forward is kind.forward and getattr(own, "_conv_forward", 0) is getattr(kind, "_conv_forward", 0)
    return same and (not isinstance(module, Norm) or module.running_mean is not None)


def _constant(joint: "Joint", value: Any) -> Any:
    return joint.parts[str(value.target)] if isinstance(value, fx.Node) and value.op == "get_attr" else value


def _functional(name: str, settings: dict[str, Any]) -> Layer | None:
    if name == "batch_norm":
        return None if settings.get("running_mean") is None else _norm(settings)
    weight, bias = settings.pop("weight"), settings.pop("bias", None)
    if name == "linear":
        return linear_layer(weight, bias) if weight.ndim == 2 else None
    plain = {
        key: tuple(value) if isinstance(value, Sequence) and value != str(value) else value
        for key, value in settings.items()
    }
    single = {key: value[0] if isinstance(value, tuple) and len(value) == 1 else value for key, value in plain.items()}
    return conv_layer(weight, bias, **single)


def _norm(settings: dict[str, Any]) -> Layer:
    mean = settings["running_mean"]
    norm = nn.BatchNorm1d(len(mean), eps=settings.get("eps", 1e-5), device=mean.device, dtype=mean.dtype).eval()
    norm.running_mean, norm.running_var = mean, settings["running_var"]
    for name, default in (("weight", torch.ones_like(mean)), ("bias", torch.zeros_like(mean))):
        given = settings.get(name)
        setattr(norm, name, nn.Parameter((default if given is None else given).detach(), requires_grad=False))
    return norm


def linear_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer of these parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = _parameter(weight), _parameter(bias)  # type: ignore[assignment]
    return layer


def conv_layer(weight: Tensor, bias: Tensor | None, groups: int = 1, **settings: Any) -> Conv:
    """Return a convolution of these parameters."""
    settings |= {"kernel_size": tuple(weight.shape[2:]), "groups": groups, "device": "meta"}
    layer = CONVS[weight.ndim - 2](weight.shape[1] * groups, weight.shape[0], **settings)
    layer.weight, layer.bias = _parameter(weight), _parameter(bias)  # type: ignore[assignment]
    return layer


def _parameter(value: Tensor | None) -> nn.Parameter | None:
    return None if value is None else nn.Parameter(value.detach().contiguous(), requires_grad=False)


def exact(tensor: Tensor) -> Tensor:
    """Return a tensor's values in float64, in main memory."""
    return tensor.detach().double().cpu()


def scale_and_shift(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return what a BatchNorm does in evaluation mode, ``scale · x + shift`` for every feature, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * exact(norm.weight)
    shift = -exact(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + exact(norm.bias)


def as_matrix(norm: Norm, ndim: int) -> nn.Linear | Conv:
    """Return a BatchNorm, of tensors with ``ndim`` dimensions, as a linear layer or a depthwise 1×1 convolution."""
    scale, shift = scale_and_shift(norm)
    if ndim == 2:
        return linear_layer(scale.diag(), shift)
    return conv_layer(scale.reshape(-1, *[1] * (ndim - 1)), shift, groups=len(scale))


def reads_features(layer: Layer, flow: Flow) -> bool:
    """Whether a layer acts on the features that the stitch acts on."""
    ndim = flow.shift.ndim
    if isinstance(layer, nn.Linear):
        return flow.axis == ndim - 1
    return flow.axis == 1 and flow.before == flow.after == 1 and (isinstance(layer, Norm) or ndim == layer.weight.ndim)


def compose_after(layer: nn.Linear | Conv, flow: Flow, given: Tensor) -> nn.Module:
    """Return the layer that does what ``layer`` does after the stitch: ``layer(W·x + s) = K·W·x + layer(s)``.

    The second term is one constant, so exact wherever it varies: for a convolution padded with zeros it does at the
    border, where the padding has no shift. It is then added as such. Type and device are those of ``given``.
    """
    weight = exact(layer.weight)
    constant = copying.deepcopy(layer).cpu().double()(flow.shift)[0]
    if isinstance(layer, nn.Linear):
        split = weight.reshape(len(weight), flow.before, -1, flow.after)
        joined = torch.einsum("obca,ci->obia", split, flow.weight).reshape(len(weight), -1)
        features = constant.movedim(-1, 0)
        made: nn.Linear | Conv = linear_layer(joined.to(given), None)
    else:
        joined = torch.einsum("oc...,ci->oi...", _ungrouped(weight, layer.groups), flow.weight)
        features, made = constant, _like(layer, joined, None, given)
    middle = features[(slice(None), *(size // 2 for size in features.shape[1:]))]
    made.bias = nn.Parameter(middle.to(given), requires_grad=False)
    border = features - middle.reshape(-1, *[1] * (features.ndim - 1))
    uniform = border.abs().max() <= 1e-12 * features.abs().max()
    if uniform and not _pads_zeros(layer):
        return made
    shaped = border.movedim(0, -1) if isinstance(layer, nn.Linear) else border
    return WithBorder(made, shaped.to(given).contiguous())


def compose_before(layer: nn.Linear | Conv, weight: Tensor, bias: Tensor, given: Tensor) -> nn.Module:
    """Return the layer that does what the stitch does after ``layer``: ``W·(K·x + c) + b``; exact at any border."""
    own = exact(layer.weight)
    shift = bias if layer.bias is None else weight @ exact(layer.bias) + bias
    if isinstance(layer, nn.Linear):
        return linear_layer((weight @ own).to(given), shift.to(given))
    joined = torch.einsum("po,oc...->pc...", weight, _ungrouped(own, layer.groups))
    return _like(layer, joined, shift, given)


def _like(layer: Conv, weight: Tensor, bias: Tensor | None, given: Tensor) -> Conv:
    """Return a convolution with another kernel, given without groups; in those of ``layer`` if it falls into them."""
    kernel, groups = _regrouped(weight, layer.groups)
    settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    return conv_layer(kernel.to(given), None if bias is None else bias.to(given), groups, **settings)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Return the kernel (out, in / groups, …) as one of all channels (out, in, …), zero between groups."""
    out, width = weight.shape[:2]
    full = weight.new_zeros(out, width * groups, *weight.shape[2:])
    for i in range(groups):
        rows, columns = (slice(i * size, (i + 1) * size) for size in (out // groups, width))
        full[rows, columns] = weight[rows]
    return full


def _regrouped(weight: Tensor, groups: int) -> tuple[Tensor, int]:
    """Return the kernel in as many groups, if it is zero between them; else in one."""
    out, inputs = weight.shape[:2]
    if groups == 1 or out % groups or inputs % groups:
        return weight, 1
    blocks = weight.reshape(groups, out // groups, groups, inputs // groups, *weight.shape[2:])
    own = torch.stack([blocks[i, :, i] for i in range(groups)])
    if blocks.count_nonzero() != own.count_nonzero():
        return weight, 1
    return own.reshape(out, inputs // groups, *weight.shape[2:]), groups


def _pads_zeros(layer: nn.Linear | Conv) -> bool:
    if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and math.prod(layer.kernel_size) > 1
    return any(layer.padding)


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

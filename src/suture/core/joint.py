"""Parts of networks as one plain graph, and the nodes of it that compute layers affine in their features.

A ``Joint`` is made of segments, copied node by node, in their order. What they call keeps its path in its own network,
after ``sender.`` or ``receiver.``; the bodies themselves are not touched. ``layer_of`` says which nodes compute a layer
that is affine in its features: a linear layer, a convolution, a BatchNorm in evaluation mode. Stitches are folded into
such layers (``folding``), and parts of networks are fused (``fused``).
"""

import copy as copying
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import Cut
from suture.core.network.feature_axis import ENTERS, LEAVES, own_shape, reads_inputs
from suture.core.network.network import Network
from suture.core.network.segments import Frozen, Segment, operation
from suture.core.network.tracing import FunctionStage
from suture.core.stitches import Shape
from suture.data.images import as_given
from suture.data.preprocess import Prepare, Preprocess

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Layer = nn.Linear | Conv | Norm
SENDER, RECEIVER = "sender", "receiver"
_CONVS: dict[int, type[Conv]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


# --- a graph of segments ----------------------------------------------------------------------------------------------


@keyed_as("raw_to_floats")
def raw_to_floats(images: Tensor) -> Tensor:
    """Bring a copy of raw images to floats in [0, 1]; a call of its own in a graph, since it looks at their type."""
    return as_given(images).clone()


@keyed_as("prepare")
def prepare(
    images: Tensor, size: int | None, channels: int | None, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Apply a ``Preprocess`` with these settings to raw images; one call in a graph."""
    return Preprocess(size, channels, mean, std)(as_given(images))


_GIVEN = "type of the input"  #: the mark of a node that is the prepared input, and its type
_CAST = "cast"  #: the mark of a node that brings it to another


class Plain(fx.GraphModule):
    """A plain module from raw samples to outputs, whose prepared input changes its type with the parameters."""

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for node in [node for node in self.graph.nodes if node.meta.get(_GIVEN, torch.int64).is_floating_point]:
            made = fn(torch.empty(0, dtype=node.meta[_GIVEN])).dtype
            if made == node.meta[_GIVEN]:
                continue
            node.meta[_GIVEN] = made
            cast = next((user for user in node.users if _CAST in user.meta), None)
            if cast is None:
                with self.graph.inserting_after(node):
                    cast = self.graph.call_method("to", (node, made))
                node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)
                cast.meta[_CAST] = True
            cast.args = (node, made)
            self.recompile()
        return self


@dataclass(eq=False)
class Joint:
    """A graph that segments of networks are copied into, one after another.

    ``shapes``, without the batch, and ``names`` are those of the tensors at cuts; ``parts`` are the modules and tensors
    that the graph names.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    shapes: dict[fx.Node, Shape] = field(default_factory=dict)
    names: dict[fx.Node, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls."""
        part = self.parts[str(node.target)] if node.op == "call_module" else None
        return part if isinstance(part, nn.Module) else None

    def path(self, node: fx.Node) -> str:
        """Return the name by which the network's user knows the place of a node: ``layer2.1.add``."""
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
        """Copy the called modules into one module in evaluation mode whose parameters ask for gradients.

        The networks are copied one by one, so that the two share no tensor, and keep their own ties between tensors.
        """
        used = {str(node.target) for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        copies: dict[str, Any] = {}
        for side in (SENDER, RECEIVER):
            copies |= copying.deepcopy({t: p for t, p in self.parts.items() if t in used and t.startswith(f"{side}.")})
        module = Plain(copies, self.graph, class_name="Folded")
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return module.eval()

    def preprocess(self, how: Prepare | None, dtype: torch.dtype) -> fx.Node:
        """Append the sender's preprocessing of the raw samples, which makes ``dtype`` of them."""
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
        x.meta[_GIVEN] = dtype
        return x

    def adapt(self, x: fx.Node, own: Frozen, other: Frozen) -> fx.Node:
        """Convert the tensor at the sender's cut to the type and layout that the suffix meets in its own network."""
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

    def append(self, x: fx.Node, segments: Iterable[nn.Module], cuts: Sequence[Cut], side: str) -> fx.Node:
        """Append segments; ``cuts`` are the cuts at their ends, as far as they end at cuts."""
        for i, segment in enumerate(segments):
            assert isinstance(segment, Segment)
            cut = cuts[i] if i < len(cuts) else None
            if isinstance(segment.body, fx.GraphModule):
                x = self._graph(x, segment.body, side, first=i == 0)
            else:
                x = self._stages(x, segment.body, side, cut.name if cut else "output")
            if cut is not None:
                self.shapes[x], self.names[x] = cut.shape, cut.name
        return x

    def _graph(self, x: fx.Node, body: fx.GraphModule, side: str, first: bool) -> fx.Node:
        if reads_inputs(body):
            raise FoldError("a layer also reads masks or positions")
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
        for path, module in unroll(body, name):
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
        """Return a part's name among the parts, lengthened if another part has it."""
        while self.parts.setdefault(target, part) is not part:
            target += "_"
        return target


def graph_of_part(network: Network, start: int, end: int) -> Joint:
    """Put the layers between two places of a network into one graph, whose input is the tensor at the first.

    Places are indices of cuts; 0 is the prepared input, one more than there are cuts is the output. Raises
    ``FoldError`` if the network was cut along stages that are functions.
    """
    joint, cuts = Joint(), list(network.cuts)
    x = joint.graph.placeholder("x")
    joint.shapes[x] = cuts[start - 1].shape if start else network.input_shape
    joint.graph.output(joint.append(x, network.whole().segments[start:end], cuts[start:end], RECEIVER))
    return joint


def _first(frozen: Frozen) -> Segment:
    segment = frozen.segments[0]
    assert isinstance(segment, Segment)
    return segment


def alteration_of(module: nn.Module) -> str:
    """Describe why a module computes something else than its class; empty if it does not."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "with a hook"
    return "whose forward was replaced" if "forward" in vars(module) else ""


def _fetch(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    return found if isinstance(found, nn.Module | Tensor) else torch.as_tensor(found)


def unroll(body: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that nested chains call, one after another, with their paths; a repeated one at each call."""
    if type(body) is not nn.Sequential or alteration_of(body):
        yield name, body
        return
    for child, module in body._modules.items():  # named_children leaves out the second place of a module
        assert module is not None
        yield from unroll(module, name if len(body) == 1 else f"{name}.{child}")


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_of(joint: Joint, node: fx.Node) -> Layer | None:
    """Return the layer that a node computes, as a module; ``None`` if it cannot take an affine map."""
    module = joint.module_of(node)
    if module is not None:
        return module if _is_known(module) else None  # type: ignore[return-value]
    name = operation(node)
    names = _ARGUMENTS.get(name) if node.op == "call_function" else None
    if names is None:
        return None
    if node.target is torch.nn.functional.batch_norm:  # other than torch.batch_norm, which is the operation itself
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    settings = {name: _constant(joint, value) for name, value in given.items() if name != "input"}
    if any(isinstance(value, fx.Node) for value in settings.values()) or settings.get("training"):
        return None
    if name == "batch_norm":
        return None if settings.get("running_mean") is None else _norm(settings)
    weight, bias = settings.pop("weight"), settings.pop("bias", None)
    if name == "linear":
        return linear_layer(weight, bias) if weight.ndim == 2 else None
    # exported convolutions spell their settings as lists, of one number for all sides or of one for each
    plain = {key: tuple(value) if isinstance(value, list | tuple) else value for key, value in settings.items()}
    single = {key: value[0] if isinstance(value, tuple) and len(value) == 1 else value for key, value in plain.items()}
    return conv_layer(weight, bias, **single)


_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **{f"conv{n}d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups") for n in _CONVS},
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}


def _is_known(module: nn.Module) -> bool:
    """Return whether a module computes the same as torch's own layer, with no hooks."""
    known = (nn.Linear, *_CONVS.values(), nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    kind = next((kind for kind in known if isinstance(module, kind)), None)
    if kind is None or alteration_of(module):
        return False
    own = type(module)
    same = own.forward is kind.forward and getattr(own, "_conv_forward", 0) is getattr(kind, "_conv_forward", 0)
    return same and (not isinstance(module, Norm) or module.running_mean is not None)


def _constant(joint: Joint, value: Any) -> Any:
    return joint.parts[str(value.target)] if isinstance(value, fx.Node) and value.op == "get_attr" else value


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
    layer = _CONVS[weight.ndim - 2](weight.shape[1] * groups, weight.shape[0], **settings)
    layer.weight, layer.bias = _parameter(weight), _parameter(bias)  # type: ignore[assignment]
    return layer


def _parameter(value: Tensor | None) -> nn.Parameter | None:
    return None if value is None else nn.Parameter(value.detach().contiguous(), requires_grad=False)


def exact(tensor: Tensor) -> Tensor:
    """Return a tensor's values in float64, in main memory."""
    return tensor.detach().double().cpu()


def scale_and_shift(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return a BatchNorm in evaluation mode as ``scale · x + shift`` for every feature, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * exact(norm.weight)
    shift = -exact(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + exact(norm.bias)

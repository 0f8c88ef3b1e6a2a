"""Parts of networks as one plain graph, and the same function in fewer and cheaper operations.

A ``Joint`` is made of segments, copied node by node, in their order. What they call keeps its path in its own network,
after ``sender.`` or ``receiver.``; the bodies themselves are not touched. ``layer_of`` says which nodes compute a layer
that is affine in its features: a linear layer, a convolution, a BatchNorm in evaluation mode. Stitches are folded into
such layers (``folding``), and a part of a network is *fused*:

BatchNorms are folded into the convolution or linear layer before them, ``γ(Kx + c − μ)/σ + β = (γK/σ)x + …``, tensors
lie with their channels last, ReLUs and sums write into what a layer has just made, and the layers may compute in
bfloat16. What follows the last non-linear layer (pooling, flattening, the classifier) stays in float32, so that outputs
are not rounded to eight bits. The bits differ from the suffix's own, so a fused suffix is compared with that before
it is used. The frozen network is not touched.
"""

import copy as copying
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.common.hashing import keyed_as
from suture.core.network.cuts import Cut
from suture.core.network.feature_axis import ENTERS, LEAVES, own_shape, reads_inputs
from suture.core.network.network import Network
from suture.core.network.segments import EvaluationOnly, Frozen, PassingTensor, Recorder, Segment, operation
from suture.core.network.tracing import FunctionStage
from suture.core.stitches import Shape
from suture.data.samples import Prepare, Preprocess, as_given

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Layer = nn.Linear | Conv | Norm
SENDER, RECEIVER = "sender", "receiver"
_CONVS: dict[int, type[Conv]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_ADD = {"add", "iadd", "add_"}
_RELU = {"relu", "relu_", "ReLU"}
_VIEW = {"view", "reshape", "_unsafe_view"}
_SIZE = {"size", "sym_size", "getattr", "getitem"}
_HEAD = {
    *("flatten", "dropout", "mean", "squeeze", "unsqueeze", "permute", "adaptive_avg_pool2d", "avg_pool2d"),
    *("Flatten", "Dropout", "AdaptiveAvgPool2d", "AvgPool2d", "Identity", "FastAdaptiveAvgPool", "Linear", "linear"),
}  #: what is left in float32 at the end


# --- a graph of segments ----------------------------------------------------------------------------------------------


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

    def preprocess(self, how: Prepare | None) -> fx.Node:
        """Append the sender's preprocessing of the raw images."""
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

    def adapt(self, x: fx.Node, own: Frozen, other: Frozen) -> fx.Node:
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

    def append(self, x: fx.Node, segments: Iterable[nn.Module], cuts: Sequence[Cut], side: str) -> fx.Node:
        """Append segments; ``cuts`` are those that they end in, as far as they end in any."""
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
            raise FoldError("a layer reads masks or positions beside the tensor that passes")
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
        """Return a part's name among the parts, lengthened if another part has it."""
        while self.parts.setdefault(target, part) is not part:
            target += "_"
        return target


def graph_of_part(network: Network, start: int, end: int) -> Joint:
    """Put what lies between two places of a network into one graph, whose input is the tensor at the first.

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


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_of(joint: Joint, node: fx.Node) -> Layer | None:
    """Return the layer that a node computes, as a module; ``None`` if it is none that can take an affine map."""
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
    """Whether a module computes what torch's own layer does, with nothing hooked on."""
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
    """Return what a BatchNorm does in evaluation mode, ``scale · x + shift`` for every feature, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * exact(norm.weight)
    shift = -exact(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + exact(norm.bias)


# --- fused ------------------------------------------------------------------------------------------------------------


class Fused(EvaluationOnly):
    """Maps the tensor at a cut ``(n, *cut.shape)``, of any floating type, to the outputs ``(n, outputs)`` in float32.

    ``dtype`` is the type that the layers compute in; ``only_head`` says that they are pooling, flattening and a linear
    layer, and nothing else. Gradients pass to the input and to nothing else.
    """

    def __init__(self, body: fx.GraphModule, dtype: torch.dtype, copies: bool, only_head: bool = False) -> None:
        super().__init__()
        self.body, self.dtype, self.copies, self.only_head = body, dtype, copies, only_head
        nn.Module.train(self, False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs."""
        layout = torch.channels_last if x.ndim == 4 else torch.preserve_format
        given = x.to(self.dtype, memory_format=layout)
        run = self.body.forward  # since a call of a graph prints a traceback if it fails, which here it may
        out: Tensor = run(given.clone() if self.copies and given is x else given)
        return out.float()


def fuse_suffix(receiver: Network, cut: Cut, dtype: torch.dtype = torch.float32) -> Fused | None:
    """Fuse the suffix of a network after a cut; give ``None`` if it cannot be fused, as for stages that are functions.

    After the output there is nothing to fuse. ``dtype`` is float32, or a lower precision that the device has; a
    head alone stays in float32.
    """
    return None if cut.is_output else _made(receiver, cut.index, len(receiver.cuts) + 1, dtype)


def fuse_segments(network: Network, start: int, end: int) -> list[Fused | None]:
    """Make a fused version, in float32, of every segment between two places of a network.

    Places are indices of cuts; 0 is the prepared input, one more than there are cuts is the output. A segment gives the
    same whichever others are asked for.
    """
    return [_made(network, place, place + 1, torch.float32) for place in range(start, end)]


def _made(network: Network, start: int, end: int, dtype: torch.dtype) -> Fused | None:
    segments = network.whole().segments[start:end]
    if any(segment.dtype not in (None, torch.float32) for segment in segments):
        return None
    with torch.inference_mode(False), torch.no_grad():
        try:
            joint = graph_of_part(network, start, end)
            _Rewriting(joint).run()
        except FoldError:
            return None
        steps = sum(node.op.startswith("call") for node in joint.graph.nodes)
        only_head = len(_head(joint)) == steps
        used = torch.float32 if only_head else dtype
        return Fused(_assemble(joint, used), used, any(segment.copies for segment in segments), only_head)


def fuse_stitch(stitch: nn.Module) -> nn.Module:
    """Make the same map as a stitch in evaluation mode, with its BatchNorms folded into the convolution between them.

    Gives the stitch itself where there are none, or more than a chain of layers; the bits are other than its own.
    """
    chain = list(_in_order(stitch))
    if any(next(module.children(), None) is not None for module in chain):
        return stitch
    if any(map(alteration_of, stitch.modules())):
        return stitch
    layers: list[nn.Module] = []
    for module in chain:
        before = layers[-1] if layers else None
        if isinstance(module, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
            layers[-1] = _scale_outputs(before, *scale_and_shift(module))
        elif isinstance(module, nn.Conv2d) and _is_free(module) and isinstance(before, nn.BatchNorm2d):
            layers[-1] = _scale_inputs(module, *scale_and_shift(before))
        else:
            layers.append(module)
    return stitch if len(layers) == len(chain) else nn.Sequential(*layers).requires_grad_(False).eval()


def _in_order(module: nn.Module) -> Iterator[nn.Module]:
    """Return what a chain of chains does, one module after another; one that is there twice comes twice."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for part in module:
        yield from _in_order(part)


class _Rewriting:
    """Rewrites the graph of a suffix; new layers go among its parts."""

    def __init__(self, joint: Joint) -> None:
        self.joint, self.graph = joint, joint.graph
        self.shapes = _record_shapes(joint)

    def run(self) -> None:
        """Let views be taken of tensors in any layout, fold the BatchNorms, let sums and ReLUs write in place."""
        for node in list(self.graph.nodes):
            self._free_view(node)
        for node in reversed(list(self.graph.nodes)):
            if operation(node) in _SIZE and not node.users:
                self.graph.erase_node(node)
        for node in list(self.graph.nodes):
            self._fold_norm(node)
        for node in list(self.graph.nodes):
            self._sum_in_place(node)
            self._relu_in_place(node)

    def _kind(self, node: fx.Node) -> str:
        module = self.joint.module_of(node)
        return operation(node) if module is None else type(module).__name__

    def _free_view(self, node: fx.Node) -> None:
        """Replace a view, which a tensor with its channels last does not allow; by flattening, if it does that."""
        given = node.args[0] if node.args else None
        if operation(node) not in _VIEW or given not in self.shapes or isinstance(node.args[1], torch.dtype):
            return
        before, after = self.shapes[given], self.shapes[node]  # type: ignore[index]
        if len(after) == 2 and after[0] == before[0]:
            node.op, node.target, node.args, node.kwargs = "call_function", torch.flatten, (given, 1), {}
        elif node.op == "call_method":
            node.target = "reshape"
        else:
            node.target = torch.reshape

    def _fold_norm(self, node: fx.Node) -> None:
        """Fold a BatchNorm into the layer that makes its input, if nothing else reads that."""
        norm = layer_of(self.joint, node)
        if not isinstance(norm, Norm) or len(node.all_input_nodes[0].users) > 1:
            return
        before = node.all_input_nodes[0]
        layer = layer_of(self.joint, before)
        if layer is None or isinstance(layer, Norm) or hasattr(layer, "parametrizations"):
            return
        if isinstance(layer, nn.Linear) and len(self.shapes[before]) > 2:  # the norm is of the second dimension
            return
        name = f"folded.{node.name}"
        self.joint.parts[name] = _scale_outputs(layer, *scale_and_shift(norm))
        with self.graph.inserting_before(before):
            folded = self.graph.create_node("call_module", name, (before.all_input_nodes[0],))
        self.shapes[folded] = self.shapes[node]
        node.replace_all_uses_with(folded)
        self.graph.erase_node(node)
        self.graph.erase_node(before)

    def _sum_in_place(self, node: fx.Node) -> None:
        """Add to a tensor that a layer has just made, if nothing else reads it."""
        inputs: list[Any] = list(node.args)
        if self._kind(node) not in _ADD or len(inputs) != 2 or node.kwargs or len(node.all_input_nodes) != 2:
            return
        mine = next((read for read in node.all_input_nodes if self._is_fresh(read)), None)
        if mine is None or self.shapes.get(inputs[0]) != self.shapes.get(inputs[1]):
            return
        other = inputs[1] if mine is inputs[0] else inputs[0]
        node.op, node.target, node.args = "call_method", "add_", (mine, other)

    def _relu_in_place(self, node: fx.Node) -> None:
        if self._kind(node) in _RELU and len(node.all_input_nodes) == 1 and self._is_fresh(node.all_input_nodes[0]):
            node.op, node.target = "call_function", torch.relu_
            node.args, node.kwargs = (node.all_input_nodes[0],), {}

    def _is_fresh(self, node: fx.Node) -> bool:
        """Whether a tensor was just made by a layer, or is a sum, and is read once."""
        if len(node.users) != 1 or node not in self.shapes:
            return False
        if self._kind(node) in _ADD:
            first = node.args[0]
            return operation(node) == "add" or (isinstance(first, fx.Node) and self._is_fresh(first))
        return layer_of(self.joint, node) is not None


def _scale_outputs(layer: nn.Module, scale: Tensor, shift: Tensor) -> nn.Module:
    """Return the layer followed by ``scale · x + shift`` for every feature, as a layer."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    scaled = exact(weight) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return _like(layer, scaled, shift if bias is None else shift + scale * exact(bias))  # type: ignore[arg-type]


def _is_free(layer: nn.Conv2d) -> bool:
    """Whether a shift of what a convolution reads is one of what it gives, everywhere."""
    return layer.padding == (0, 0) and layer.groups == 1


def _scale_inputs(layer: nn.Conv2d, scale: Tensor, shift: Tensor) -> nn.Module:
    """Return the convolution, without padding or groups, of ``scale · x + shift`` for every feature."""
    weight = exact(layer.weight)
    moved = torch.einsum("oihw,i->o", weight, shift)
    return _like(layer, weight * scale[:, None, None], moved if layer.bias is None else exact(layer.bias) + moved)


def _like(layer: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    """Return the layer with other parameters, of the type and on the device of its own."""
    made = copying.copy(layer)
    made._parameters = dict(layer._parameters)
    made.weight, made.bias = (nn.Parameter(v.to(layer.weight), requires_grad=False) for v in (weight, bias))  # type: ignore[arg-type]
    return made


def _record_shapes(joint: Joint) -> dict[fx.Node, tuple[int, ...]]:
    """Return the shape of what every node gives for two images. Raises ``FoldError`` if the graph does not run."""
    tensors = (p for part in joint.parts.values() for p in ([part] if isinstance(part, Tensor) else part.parameters()))
    device = next((p.device for p in tensors), torch.device("cpu"))
    x = torch.zeros(2, *joint.shapes[next(iter(joint.graph.nodes))], device=device)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(joint.graph, copies))
    recorder = Recorder(fx.GraphModule(joint.parts, graph))
    try:
        recorder.run(x)
    except RuntimeError as error:
        if "memory" in str(error).lower():
            raise
        raise FoldError(f"what follows does not run by itself: {error}") from error
    seen = {node: recorder.seen[copy] for node, copy in copies.items() if copy in recorder.seen}
    return {node: value.shape for node, value in seen.items() if isinstance(value, PassingTensor)}


def _assemble(joint: Joint, dtype: torch.dtype) -> fx.GraphModule:
    """Return the module of a graph: copies of what it calls, in the precision, with the head left in float32."""
    graph, late = joint.graph, _head(joint)
    if late:
        first = next(node for node in graph.nodes if node in late)
        with graph.inserting_before(first):
            wide = graph.call_method("float", (first.all_input_nodes[0],))
        first.replace_input_with(first.all_input_nodes[0], wide)
    named = [node for node in graph.nodes if node.op in ("call_module", "get_attr")]
    kept = {str(node.target) for node in named if node in late or (node.users and late.issuperset(node.users))}
    early = {str(node.target) for node in named} - kept
    copies = copying.deepcopy({name: part for name, part in joint.parts.items() if name in early | kept})
    parts = {name: _convert(part, dtype if name in early else torch.float32) for name, part in copies.items()}
    graph.lint()
    module = fx.GraphModule(parts, graph, class_name="Fused")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module.eval()


def _head(joint: Joint) -> set[fx.Node]:
    """Return the nodes of the pooling, flattening and linear layer that end a network; none if no linear one does."""
    end = next(node for node in joint.graph.nodes if node.op == "output")
    node, found = end.args[0], []
    while isinstance(node, fx.Node) and node.all_input_nodes:
        module = joint.module_of(node)
        if (operation(node) if module is None else type(module).__name__) not in _HEAD:
            break
        found.append(node)
        node = node.all_input_nodes[0]
    linear = [isinstance(layer_of(joint, node), nn.Linear) for node in found]
    return set(found) if any(linear) else set()


def _convert(part: Any, dtype: torch.dtype) -> Any:
    """Return a module or tensor in another floating type, with the channels of kernels last."""
    if isinstance(part, Tensor):
        return part.to(dtype) if part.is_floating_point() else part
    part = part.to(dtype)
    return part.to(memory_format=torch.channels_last) if any(p.ndim == 4 for p in part.parameters()) else part

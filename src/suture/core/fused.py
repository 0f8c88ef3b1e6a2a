"""A part of a network as the same function in fewer and cheaper operations.

The part is one graph (``joint``), which is *fused*: BatchNorms are folded into the convolution or linear layer before
them, ``γ(Kx + c − μ)/σ + β = (γK/σ)x + …``, tensors lie with their channels last, ReLUs and sums write into what a
layer has just made, and for a descent, which only needs a direction, the layers may compute in bfloat16. The layers
after the last non-linear one (pooling, flattening, the classifier) stay in float32, so that outputs are not rounded to
eight bits. The bits differ from the suffix's own, so a fused suffix is compared with that before it is used. The frozen
network is not touched.
"""

import copy as copying
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.core.joint import Joint, Norm, alteration_of, exact, graph_of_part, layer_of, scale_and_shift, unroll
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.network.segments import EvaluationOnly, PassingTensor, Recorder, operation

_ADD = {"add", "iadd", "add_"}
_RELU = {"relu", "relu_", "ReLU"}
_VIEW = {"view", "reshape", "_unsafe_view"}
_SIZE = {"size", "sym_size", "getattr", "getitem"}
_HEAD = {
    *("flatten", "dropout", "mean", "squeeze", "unsqueeze", "permute", "adaptive_avg_pool2d", "avg_pool2d"),
    *("Flatten", "Dropout", "AdaptiveAvgPool2d", "AvgPool2d", "Identity", "FastAdaptiveAvgPool", "Linear", "linear"),
}  #: what is left in float32 at the end


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
        steps, head = sum(node.op.startswith("call") for node in joint.graph.nodes), _head(joint)
        only_head = len(head) == steps
        used = torch.float32 if only_head else dtype
        return Fused(_assemble(joint, head, used), used, any(segment.copies for segment in segments), only_head)


def fuse_stitch(stitch: nn.Module) -> nn.Module:
    """Make the same map as a stitch in evaluation mode, with its BatchNorms folded into the convolution between them.

    Gives the stitch itself where there are none, or more than a chain of layers; the bits are other than its own.
    """
    chain = [module for _, module in unroll(stitch, "")]
    if any(next(module.children(), None) is not None for module in chain):
        return stitch
    if any(map(alteration_of, stitch.modules())) or any(getattr(module, "running_mean", 0) is None for module in chain):
        return stitch  # changed by a hook, or a norm of each batch
    layers = merge_norms(chain)
    return stitch if len(layers) == len(chain) else nn.Sequential(*layers).requires_grad_(False).eval()


def merge_norms(chain: Sequence[nn.Module]) -> list[nn.Module]:
    """Return a chain of layers with the BatchNorms before and after convolutions made part of these, as evaluated."""
    layers: list[nn.Module] = []
    for module in chain:
        before = layers[-1] if layers else None
        if isinstance(module, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
            layers[-1] = _scale_outputs(before, *scale_and_shift(module))
        elif isinstance(module, nn.Conv2d) and _is_free(module) and isinstance(before, nn.BatchNorm2d):
            layers[-1] = _scale_inputs(module, *scale_and_shift(before))
        else:
            layers.append(module)
    return layers


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
        """Return whether a tensor was just made by a layer, or is a sum, and is read once."""
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
    """Return whether a constant shift of a convolution's input shifts its output by the same amount everywhere."""
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
    """Return the shape of every node's output for two images. Raises ``FoldError`` if the graph does not run."""
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
        raise FoldError(f"the layers after the cut do not run by themselves: {error}") from error
    seen = {node: recorder.seen[copy] for node, copy in copies.items() if copy in recorder.seen}
    return {node: value.shape for node, value in seen.items() if isinstance(value, PassingTensor)}


def _assemble(joint: Joint, late: set[fx.Node], dtype: torch.dtype) -> fx.GraphModule:
    """Return the module of a graph: copies of the called modules, in the precision; the ``late`` nodes in float32."""
    graph = joint.graph
    if late:
        first = next(node for node in graph.nodes if node in late)
        with graph.inserting_before(first):
            wide = graph.call_method("float", (first.all_input_nodes[0],))
        first.replace_input_with(first.all_input_nodes[0], wide)
    if dtype != torch.float32:
        _attend_in_float32(joint, dtype)
    named = [node for node in graph.nodes if node.op in ("call_module", "get_attr")]
    kept = {str(node.target) for node in named if node in late or (node.users and late.issuperset(node.users))}
    early = {str(node.target) for node in named} - kept
    parts = copying.deepcopy({name: part for name, part in joint.parts.items() if name in early | kept})
    for name, part in parts.items():
        own = dtype if name in early else torch.float32
        if not isinstance(part, Tensor):
            part.to(own)
            if any(p.ndim == 4 for p in part.parameters()):
                part.to(memory_format=torch.channels_last)
        elif part.is_floating_point():
            parts[name] = part.to(own)
    graph.lint()
    module = fx.GraphModule(parts, graph, class_name="Fused")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module.eval()


def _attend_in_float32(joint: Joint, dtype: torch.dtype) -> None:
    """Compute attention in float32 on the processor, whose backward pass in bfloat16 takes ten times as long.

    At a ViT of 65 tokens that was four fifths of a step (torch 2.14, ``_scaled_dot_product_flash_attention_for_cpu``).
    """
    if any(p.is_cuda for part in joint.parts.values() if isinstance(part, nn.Module) for p in part.parameters()):
        return
    graph = joint.graph
    for node in [node for node in graph.nodes if operation(node) == "scaled_dot_product_attention"]:
        with graph.inserting_before(node):
            wide = {read: graph.call_function(_widen, (read,)) for read in node.all_input_nodes}
        for read, instead in wide.items():
            node.replace_input_with(read, instead)
        with graph.inserting_after(node):
            narrow = graph.call_method("to", (node, dtype))
        node.replace_all_uses_with(narrow, delete_user_cb=lambda user, narrow=narrow: user is not narrow)


def _widen(x: Tensor) -> Tensor:
    """Return a tensor in float32; a boolean mask as it is."""
    return x.float() if x.is_floating_point() else x


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

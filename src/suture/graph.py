"""From a traced graph to pieces: where one tensor passes, and the modules between those places.

The nodes of a traced network are of three kinds, told apart by running it on two batch sizes:

- *data*: holds tensors and depends on the values of the input;
- *static*: holds no tensor (sizes, flags, devices). Never stored across a cut, always derived anew: it is the same at
  every batch size, or proportional to the first dimension of the tensor that passes;
- *free*: tensors that depend on no data (parameters, masks, a class token expanded to the batch); computed where used.

Side inputs such as position ids and class tokens are static or free and therefore no bypass. A data node is a cut when
no other data node before it is read after it. Pieces keep every operation in its order, so that in-place operations
stay where they were.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

Names = Mapping[fx.Node, tuple[str, ...]]


class GraphError(Exception):
    """This graph cannot be cut; the message is the reason."""


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps, for every node, its value with tensors replaced by their shapes."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n] = tree_map(lambda leaf: _Shape(leaf) if isinstance(leaf, Tensor) else leaf, value)
        return value


class _Shape:
    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.floating = tensor.is_floating_point()


class CutGraph:
    """A traced network, ready to be cut.

    ``probes`` are two inputs of different batch sizes. Raises ``GraphError`` where the network does not return exactly
    one tensor.
    """

    def __init__(self, module: fx.GraphModule, names: Names, probes: tuple[Tensor, Tensor]) -> None:
        self.module, self.names = module, names
        self.nodes = list(module.graph.nodes)
        self.seen = [self._record(probe) for probe in probes]
        self.result = self._result()
        self._live = self._live_nodes()
        self._data = self._data_nodes()
        self.dropped: dict[str, str] = {}
        self.candidates = self._find()

    def _record(self, probe: Tensor) -> dict[fx.Node, Any]:
        recorder = _Recorder(self.module)
        with torch.no_grad():
            recorder.run(probe.clone())
        return recorder.seen

    def _result(self) -> fx.Node:
        leaves = tree_leaves(self.nodes[-1].args[0])
        tensors = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        if len(tensors) != 1 or not isinstance(self.seen[0][tensors[0]], _Shape):
            raise GraphError(f"it returns {len(leaves)} values; wrap it so that it returns one tensor")
        return tensors[0]

    def _live_nodes(self) -> set[fx.Node]:
        live = {self.nodes[-1]}
        for node in reversed(self.nodes):
            if node in live or _may_mutate(node, self.module):
                live.add(node)
                live.update(node.all_input_nodes)
        return live

    def _is_static(self, node: fx.Node) -> bool:
        return not any(isinstance(leaf, _Shape) for leaf in tree_leaves(self.seen[0][node]))

    def _data_nodes(self) -> list[fx.Node]:
        data: dict[fx.Node, None] = {}
        for node in self.nodes[:-1]:
            depends = node.op == "placeholder" or any(source in data for source in node.all_input_nodes)
            if depends and node in self._live and not self._is_static(node):
                data[node] = None
        return list(data)

    def _find(self) -> list[fx.Node]:
        """The data nodes past which no other data node is read, without the input and the output."""
        position = {node: i for i, node in enumerate(self._data)}
        last_read = {
            node: max((position[user] for user in node.users if user in position), default=i)
            for node, i in position.items()
        }
        last_read[self.result] = len(self._data)
        crossing: dict[fx.Node, None] = {}
        found = []
        for i, node in enumerate(self._data):
            crossing = {other: None for other in crossing if last_read[other] > i}
            reason = self._reason(node, next(iter(crossing), None))
            crossing[node] = None
            if node is self.result or node.op == "placeholder":
                continue
            if reason is None:
                found.append(node)
            else:
                self.dropped.setdefault(self.name(node), reason)
        return found

    def _reason(self, node: fx.Node, other: fx.Node | None) -> str | None:
        if other is not None:
            skip = "the input" if other.op == "placeholder" else f"'{self.name(other)}'"
            return f"a path from {skip} jumps over it"
        small, large = (seen[node] for seen in self.seen)
        if not isinstance(small, _Shape):
            return "it is a tuple, not one tensor"
        if not small.floating:
            return "it does not hold floating-point numbers"
        batches = [self._batch(seen) for seen in self.seen]
        if not small.shape or [small.shape[0], large.shape[0]] != batches:
            return "its first dimension is not the batch"
        if small.shape[1:] != large.shape[1:]:
            return "its shape depends on the batch"
        return None

    def _batch(self, seen: Mapping[fx.Node, Any]) -> int:
        return int(seen[self._data[0]].shape[0])

    def name(self, node: fx.Node) -> str:
        """The node's first name."""
        return self.names[node][0] if node in self.names else node.name

    def pieces(self, cuts: Sequence[fx.Node]) -> list[fx.GraphModule]:
        """The modules between consecutive cuts: one more than there are cuts.

        Raises ``GraphError`` where a size cannot be derived from the tensor that passes.
        """
        ends = [*cuts, self.result]
        starts = [self._data[0], *cuts]
        return [_PieceBuilder(self, a, b).build() for a, b in zip(starts, ends, strict=True)]

    def between(self, start: fx.Node, end: fx.Node) -> list[fx.Node]:
        """The data nodes after ``start`` up to ``end``; after the last cut, all that are left."""
        first = self._data.index(start) + 1
        last = len(self._data) if end is self.result else self._data.index(end) + 1
        return self._data[first:last]

    def is_static(self, node: fx.Node) -> bool:
        """Whether the node holds no tensor."""
        return self._is_static(node)


class _PieceBuilder:
    """Copies the nodes between two cuts into a graph of their own."""

    def __init__(self, source: CutGraph, start: fx.Node, end: fx.Node) -> None:
        self.source, self.start, self.end = source, start, end
        self.graph = fx.Graph()
        self.input = self.graph.placeholder("x")
        self.copies: dict[fx.Node, Any] = {start: self.input}

    def build(self) -> fx.GraphModule:
        for node in self.source.between(self.start, self.end):
            self.copies[node] = self.graph.node_copy(node, self._copy)
        self.graph.output(self.copies[self.end])
        return fx.GraphModule(self.source.module, self.graph)

    def _copy(self, node: fx.Node) -> Any:
        """What stands for a node of the source in this piece."""
        if node not in self.copies:
            if self.source.is_static(node):
                small, large = (seen[node] for seen in self.source.seen)
                self.copies[node] = self._derive(small, large, node.name)
            else:
                self.copies[node] = self.graph.node_copy(node, self._copy)
        return self.copies[node]

    def _derive(self, small: Any, large: Any, name: str) -> Any:
        if isinstance(small, tuple):
            return tuple(self._derive(a, b, name) for a, b in zip(small, large, strict=True))
        if small == large:
            return small
        width = [seen[self.start].shape[0] for seen in self.source.seen]
        if type(small) is not int or small * width[1] != large * width[0]:
            raise GraphError(f"'{name}' depends on the batch size in a way that cannot be derived at a cut")
        size = self.graph.call_method("size", (self.input, 0))
        if small == width[0]:
            return size
        return self.graph.call_function(
            operator.floordiv, (self.graph.call_function(operator.mul, (size, small)), width[0])
        )


def _may_mutate(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether a node whose result nobody reads may still have changed a tensor."""
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            return bool(node.target._schema.is_mutable)
        name = getattr(node.target, "__name__", "")
        in_place = node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        return in_place or bool(node.kwargs.get("inplace")) or "out" in node.kwargs
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return bool(getattr(called, "inplace", False)) or not type(called).__module__.startswith("torch.nn")
    return False


_IN_PLACE = {
    operator.setitem,
    *(getattr(operator, f"i{op}") for op in ("add", "sub", "mul", "truediv", "pow")),
}


def parameters_of(pieces: Sequence[nn.Module]) -> list[int]:
    """Number of distinct parameters up to the end of each piece."""
    seen: set[int] = set()
    totals, total = [], 0
    for piece in pieces:
        for parameter in piece.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                total += parameter.numel()
        totals.append(total)
    return totals

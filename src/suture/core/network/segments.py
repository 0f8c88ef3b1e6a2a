"""The layers between two cuts: modules that follow one another and never touch the tensor that passes.

Bits depend on more than values: on the type of a tensor and on how its dimensions lie in memory. A segment's input may
come from a store or a stitch, so the segment first converts it to the type and layout that the tensor has in the
network itself. It works on a copy if it would write to its input. The tensor that passes has its features where its
shape says (``feature_axis``).

In a traced graph, ``CutGraph`` finds where one tensor passes. Its nodes are of four kinds:

- *data*: depends on the values of the input, or is a tensor that such values are written into;
- *static*: what follows from sizes, flags and devices alone. Never stored across a cut, but computed from the
  sizes on the other side; the size of a tensor that lies before the cut is the same at every batch size, or
  proportional to the batch that passes, as two runs at different batch sizes tell;
- *free*: tensors that depend on no data (parameters, masks, a class token expanded to the batch); computed where used;
- *aside*: what follows from the inputs but says nothing of their content. That is what is made of masks, positions and
  token types, with whatever parameters, and which token ids are equal to a number or above it, by which models find
  padding and the last token. It is computed again from the inputs on the other side of a cut, so a segment may read the
  inputs of its samples beside the tensor that passes. What else is made of token ids is data, and so is all that
  is made of images, such as the image that a residual adds.

Static, free and aside nodes are therefore no bypass. A data node is a cut when no other data node before it is read
after it. Segments keep every operation in its order, so that in-place operations stay where they were.
"""

import inspect
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import pairwise
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from suture.common.errors import NetworkError
from suture.common.hashing import keyed_as, stable_name
from suture.core.network.feature_axis import ENTERS, LEAVES, GraphError, bring_to_shape, reads_inputs
from suture.core.network.shapes import mode_for, without_values
from suture.data.images import are_token_ids
from suture.data.inputs import join_inputs
from suture.data.preprocess import Prepare

Names = Mapping[fx.Node, tuple[str, ...]]
_LIBRARIES = ("torch.", "torchvision.", "timm.")


class Recorder(fx.Interpreter):
    """Runs a graph and keeps, for every node, its value with tensors replaced by their shapes."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and record its output."""
        value = super().run_node(n)
        self.seen[n] = tree_map(lambda leaf: PassingTensor(leaf) if isinstance(leaf, Tensor) else leaf, value)
        return value


class PassingTensor:
    """The shape of a tensor that passed, and whether it holds floats, or booleans."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.floating = tensor.is_floating_point()
        self.is_bool = tensor.dtype == torch.bool


class CutGraph:
    """A traced network, ready to be cut.

    ``probes`` are two inputs of different batch sizes; ``sides`` the columns of several inputs, ``(n, columns, T)``,
    that are aside. Raises ``GraphError`` if the network does not return exactly one tensor that depends on its input.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        names: Names,
        probes: tuple[Tensor, Tensor],
        sides: Container[int] = (),
    ) -> None:
        self.module, self.names, self.sides = module, names, sides
        self.nodes = list(module.graph.nodes)
        self._mode = mode_for(module.modules())
        self.seen = [self._record(probe) for probe in probes]
        self.input = next(node for node in self.nodes if node.op == "placeholder")
        self.result = self._result()
        live, (depending, aside) = self._live_nodes(), self._find_depending({self.input} | self._find_written())
        self.data = [node for node in depending if node in live]
        self.unread = set(depending) - live  #: nodes of which at most the size is read
        self.recomputed = aside | self._find_sources(aside)  #: what may be computed of the inputs behind a cut
        if self.result not in self.data:
            raise GraphError("its output does not depend on its input")
        self.dropped: dict[str, str] = {}
        self.candidates = self._find()

    def _record(self, probe: Tensor) -> dict[fx.Node, Any]:
        def record(x: Tensor) -> dict[fx.Node, Any]:
            recorder = Recorder(self.module)
            recorder.run(x)
            return recorder.seen

        with torch.no_grad():
            return without_values(record, probe.clone(), within=self.module.modules(), mode=self._mode)

    def _result(self) -> fx.Node:
        leaves = tree_leaves(self.nodes[-1].args[0])
        tensors = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        if len(tensors) != 1 or not isinstance(self.seen[0][tensors[0]], PassingTensor):
            raise GraphError(f"it returns {len(leaves)} values; wrap it so that it returns one tensor")
        return tensors[0]

    def _live_nodes(self) -> set[fx.Node]:
        """Return the nodes whose values the output depends on; a size alone can be had without the tensor."""
        live = {self.nodes[-1]}
        for node in reversed(self.nodes):
            if node in live or _may_mutate(node, self.module):
                live.add(node)
                live.update([] if self._is_size(node) else node.all_input_nodes)
        return live

    def _is_size(self, node: fx.Node) -> bool:
        return not self._holds_tensor(node) and operation(node) in _METADATA

    def _holds_tensor(self, node: fx.Node) -> bool:
        return any(isinstance(leaf, PassingTensor) for leaf in tree_leaves(self.seen[0][node]))

    def _find_depending(self, sources: set[fx.Node]) -> tuple[dict[fx.Node, None], set[fx.Node]]:
        """Return the sources and the nodes that depend on their values, in order; and the nodes that are aside."""
        found: dict[fx.Node, None] = {}
        aside: set[fx.Node] = set()
        whole: set[fx.Node] = set()  # of found, what is made of integers alone
        for node in self.nodes[:-1]:
            read = [other for other in node.all_input_nodes if other in found]
            if node in sources:
                found[node] = None
                whole |= {node} if node is self.input and not self._is(node, "floating") else set()
            elif self._is_size(node):
                continue
            elif read:
                is_whole = whole.issuperset(read) and not self._is(node, "floating")
                if (is_whole and (self._is(node, "is_bool") or operation(node) in _LIKE)) or self._is_side(node):
                    aside.add(node)
                    continue
                found[node] = None
                whole |= {node} if is_whole else set()
            elif not aside.isdisjoint(node.all_input_nodes):
                aside.add(node)
        return found, aside

    def _is(self, node: fx.Node, kind: str) -> bool:
        """Return whether a node gives a tensor of a kind."""
        return any(getattr(leaf, kind, False) for leaf in tree_leaves(self.seen[0][node]))

    def _is_side(self, node: fx.Node) -> bool:
        """Return whether a node takes a column that is aside from several inputs, as an ``Entrance`` does."""
        return operation(node) == "select" and node.args[:2] == (self.input, 1) and node.args[2] in self.sides

    def _find_sources(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """Return the data that nodes are made of, back to the input."""
        found: set[fx.Node] = set()
        todo, data = list(nodes), set(self.data) | self.unread
        while todo:
            new = {read for read in todo.pop().all_input_nodes if read in data} - found
            found |= new
            todo += new
        return found

    def _find_written(self) -> set[fx.Node]:
        """Return tensors made without the input that are written into later, and the nodes that they were made of."""
        made_of_input, _ = self._find_depending({self.input})
        writers = [node for node in self.nodes if _may_mutate(node, self.module)]
        if not self._is(self.input, "floating"):  # tables of positions are made by adding to what nobody else reads
            writers = [
                one
                for one in writers
                if any(read in made_of_input for read in one.all_input_nodes) or len(one.all_input_nodes[0].users) > 1
            ]
        todo = [node for writer in writers for node in writer.all_input_nodes[:1]]
        written: set[fx.Node] = set()
        while todo:
            node = todo.pop()
            known = node in made_of_input or node in written or node.op == "get_attr"
            if not known and self._holds_tensor(node):
                written.add(node)
                todo += node.all_input_nodes
        return written

    def _find(self) -> list[fx.Node]:
        """Return the data nodes past which no other data node is read, without the input and the output."""
        position = {node: i for i, node in enumerate(self.data)}
        last_read = {
            node: max((position[user] for user in node.users if user in position), default=i)
            for node, i in position.items()
        }
        last_read[self.result] = len(self.data)
        crossing: dict[fx.Node, None] = {}
        found = []
        for i, node in enumerate(self.data):
            crossing = {other: None for other in crossing if last_read[other] > i}
            reason = self._reason(node, next(iter(crossing), None))
            crossing[node] = None
            if node is self.input:
                continue
            if node is self.result:
                self.dropped.setdefault(self.name(node), "it is the network's output, which no layer follows")
            elif reason is None:
                found.append(node)
            else:
                self.dropped.setdefault(self.name(node), reason)
        return found

    def _reason(self, node: fx.Node, other: fx.Node | None) -> str | None:
        if other is not None:
            skip = "the input" if other is self.input else f"'{self.name(other)}'"
            return f"a path from {skip} jumps over it"
        small, large = (seen[node] for seen in self.seen)
        if not isinstance(small, PassingTensor):
            return f"it is a {type(small).__name__}, not one tensor"
        if not small.floating:
            return "it does not hold floating-point numbers"
        if not small.shape or [small.shape[0], large.shape[0]] != self.batches(self.input):
            return "its first dimension is not the batch"
        if small.shape[1:] != large.shape[1:]:
            return "its shape depends on the batch"
        return None

    def batches(self, node: fx.Node) -> list[int]:
        """Return the node's first dimension in both runs."""
        return [int(seen[node].shape[0]) for seen in self.seen]

    def name(self, node: fx.Node) -> str:
        """Return the node's first name."""
        return self.names[node][0] if node in self.names else node.name

    def segments(self, cuts: Sequence[fx.Node]) -> list[fx.GraphModule]:
        """Return the modules between consecutive cuts: one more than there are cuts.

        Raises ``GraphError`` if a size cannot be derived from the tensor that passes.
        """
        bounds = pairwise([self.input, *cuts, self.result])
        return [_SegmentBuilder(self, start, end).build() for start, end in bounds]

    def between(self, start: fx.Node, end: fx.Node) -> list[fx.Node]:
        """Return the data nodes after ``start`` up to ``end``; after the last cut, all that are left."""
        first = self.data.index(start) + 1
        last = len(self.data) if end is self.result else self.data.index(end) + 1
        return self.data[first:last]


class _SegmentBuilder:
    """Copies the nodes between two cuts into a graph of their own."""

    def __init__(self, source: CutGraph, start: fx.Node, end: fx.Node) -> None:
        self.source, self.start, self.end = source, start, end
        self.passing = source.unread | set(source.data)
        self.graph = fx.Graph()
        self.input = self.graph.placeholder("x")
        self.copies: dict[fx.Node, Any] = {start: self.input}

    def build(self) -> fx.GraphModule:
        for node in self.source.between(self.start, self.end):
            self.copies[node] = self.graph.node_copy(node, self._copy)
        self.graph.output(self.copies[self.end])
        return fx.GraphModule(self.source.module, self.graph)

    def _copy(self, node: fx.Node) -> Any:
        """Return the counterpart in this segment of a node of the source."""
        if node not in self.copies:
            if node is self.source.input and node in self.source.recomputed:
                with self.graph.inserting_after(self.input):
                    self.copies[node] = self.graph.placeholder("inputs")
            elif node in self.source.recomputed:
                self.copies[node] = self.graph.node_copy(node, self._copy)
            elif any(read in self.passing and read not in self.copies for read in node.all_input_nodes):
                small, large = (seen[node] for seen in self.source.seen)
                self.copies[node] = self._derive(small, large, node)
            else:
                self.copies[node] = self.graph.node_copy(node, self._copy)
        return self.copies[node]

    def _derive(self, small: Any, large: Any, node: fx.Node) -> Any:
        """Return the size of a tensor before the cut, derived from its sizes in two runs."""
        if isinstance(small, tuple):
            return tuple(self._derive(a, b, node) for a, b in zip(small, large, strict=True))
        if small == large:
            return small
        few, many = self.source.batches(self.start)
        if type(small) is not int or small * many != large * few:
            raise GraphError(f"'{node.name}' depends on the batch size in a way that cannot be derived at a cut")
        size = self.graph.call_method("size", (self.input, 0))
        if small == few:
            return size
        return self.graph.call_function(operator.floordiv, (self.graph.call_function(operator.mul, (size, small)), few))


_METADATA = {
    *("getattr", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size"),
    *("is_contiguous", "is_floating_point", "is_complex", "get_device", "sym_size", "sym_numel", "sym_stride"),
}
"""Operations that read what does not depend on a tensor's values, unless they give a tensor."""

_LIKE = {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"}
"""Operations that give a tensor that depends on the size of another alone."""


def operation(node: fx.Node) -> str:
    """Return the plain name of a node's operation: ``add``, ``flatten``, ``conv2d``."""
    if node.op in ("placeholder", "output"):
        return node.op
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[1]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)
    return name.rpartition(".")[2] or node.name


def _may_mutate(node: fx.Node, module: fx.GraphModule) -> bool:
    """Return whether a node may change a tensor that it is given: the first, or one named ``out``."""
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            return bool(node.target._schema.is_mutable)
        name = getattr(node.target, "__name__", "")
        in_place = node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        return in_place or _asked_in_place(node) or "out" in node.kwargs
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return bool(getattr(called, "inplace", False)) or not type(called).__module__.startswith("torch.nn")
    return False


def _asked_in_place(node: fx.Node) -> bool:
    """Return whether a function is called with ``inplace=True``, by name or by position."""
    assert callable(node.target)
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # a builtin without a signature
        given = node.kwargs
    return bool(given.get("inplace"))


_IN_PLACE = {
    operator.setitem,
    *(getattr(operator, f"i{op}") for op in ("add", "sub", "mul", "truediv", "pow")),
}


def retyped(dtype: torch.dtype | None, fn: Callable[[Tensor], Tensor]) -> torch.dtype | None:
    """Return the type that ``half()``, ``double()`` and the like, as a function of tensors, make of a type."""
    return None if dtype is None else fn(torch.empty(0, dtype=dtype)).dtype


class EvaluationOnly(nn.Module):
    """A module that stays in evaluation mode, in which its ``__init__`` puts it."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked."""
        return self


@keyed_as("Segment")
class Segment(EvaluationOnly):
    """The layers between two cuts: always frozen, always in evaluation mode.

    ``dtype`` is the type that its input has in the network, ``order`` the order of its dimensions in memory, from the
    slowest to the fastest. A contiguous tensor, as a store or a stitch gives it, is brought to that order; with
    ``fixed`` any tensor is, because the body would do something else with another. With ``copies`` the body writes to
    its input, and so gets a copy.
    """

    def __init__(
        self,
        body: nn.Module,
        copies: bool = False,
        dtype: torch.dtype | None = None,
        order: tuple[int, ...] | None = None,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.body, self.copies, self.dtype, self.order, self.fixed = body, copies, dtype, order, fixed
        self.reads_inputs = reads_inputs(body)  #: whether it reads the inputs of its samples beside what passes
        nn.Module.train(self, False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Bring the types that are written down along with the tensors."""
        before, self.dtype = self.dtype, retyped(self.dtype, fn)
        if before != self.dtype and isinstance(self.body, fx.GraphModule):
            name_anew(self.body, lambda leaf: self.dtype if leaf == before else leaf)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, x: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Map the tensor at one cut to the tensor at the next; ``inputs`` are those of the same samples.

        Raises ``NetworkError`` if they are read and were not given.
        """
        given = x if self.dtype is None else x.to(self.dtype)
        if self.order is not None and (self.fixed or given.is_contiguous()):
            given = _in_order(given, self.order)
        given = given.clone() if self.copies else given
        if inputs is None and self.reads_inputs:
            raise NetworkError(
                "these layers also read masks or positions; give those of the same samples: "
                "suffix(x, network.inputs_after(cut, batch))"
            )
        out: Tensor = self.body(given, inputs) if self.reads_inputs else self.body(given)
        return out


def _order(x: Tensor) -> tuple[int, ...] | None:
    """Return the dimensions from the slowest in memory to the fastest; ``None`` if some share their memory."""
    if x.is_contiguous():
        return tuple(range(x.ndim))
    return None if 0 in x.stride() else tuple(sorted(range(x.ndim), key=x.stride, reverse=True))


def _in_order(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return the tensor with its dimensions in this order in memory; a copy, unless they are already."""
    back = [order.index(dim) for dim in range(x.ndim)]
    return x.permute(*order).contiguous().permute(*back)


def have_same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree in shape, type and every bit; NaN equals itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(x.detach().contiguous().view(-1).view(torch.uint8) for x in (a, b)))


_COMPARED = 2**22  #: numbers compared at once; a language model's outputs for three texts are 300 MB, and copied


def are_close(one: Tensor, other: Tensor, share: float) -> bool:
    """Return whether two tensors have one type and differ by no more than a share of the largest value.

    Numbers too small to be normal ones count as zero, as outputs of deep untrained networks are.
    """
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return torch.equal(one, other)
    parts = [each.reshape(-1).split(_COMPARED) for each in (one, other)]  # type: ignore[no-untyped-call]
    largest = max((float(part.nan_to_num(0.0, 0.0, 0.0).abs().max()) for part in parts[1] if len(part)), default=0.0)
    most = max(share * largest, torch.finfo(one.dtype).tiny)
    return all(torch.allclose(a, b, rtol=share, atol=most, equal_nan=True) for a, b in zip(*parts, strict=True))


def find_rounding(out: Tensor) -> float:
    """Return the share of the largest value by which an image's output may differ among other images."""
    if out.dtype not in (torch.float32, torch.float64):
        return 5e-2
    return 1e-4 if out.device.type == "cpu" else 1e-2  # a GPU may compute in TF32


def build_segments(
    bodies: Sequence[nn.Module], probes: Sequence[Tensor], wanted: Sequence[Tensor]
) -> tuple[Segment, ...]:
    """Make segments of bodies; ``probes`` are inputs of at least two batch sizes, ``wanted`` the outputs of the whole.

    Raises ``GraphError`` if the chain does not give the output bit for bit, or the tensor that passes is not a batch of
    numbers. For one image, whose tensors may lie in memory in another order than those of several, it is the output to
    rounding.
    """
    with torch.no_grad():
        segments, second = _protect(bring_to_shape(bodies, probes[1]), probes[1])
        for probe, want in zip(probes, wanted, strict=True):
            out = second if probe is probes[1] else _run(segments, probe)
            if not have_same_bits(out, want) and not (len(probe) == 1 and are_close(out, want, 1e-5)):
                raise GraphError("split here, the model does not give its own output bit for bit")
    return segments


def _run(segments: Sequence[Segment], x: Tensor) -> Tensor:
    inputs = x
    for segment in segments:
        x = _run_one(segment, x, inputs)
    return x


def _run_one(segment: Segment, x: Tensor, inputs: Tensor) -> Tensor:
    before = x._version
    out: Tensor = segment(x, inputs)
    if x._version != before:
        raise GraphError("an operation in place reaches back through it")
    return out


def _protect(bodies: Sequence[nn.Module], x: Tensor) -> tuple[tuple[Segment, ...], Tensor]:
    """Make segments that copy their input if they would change it, and bring it to a layout that they can take.

    Returns them with their output.
    """
    segments: list[Segment] = []
    batch, inputs, mode = len(x), x, mode_for(module for body in bodies for module in body.modules())
    for body in bodies:
        if segments or not are_token_ids(x):
            it = "it" if segments else "its input"
            if not isinstance(x, Tensor):
                raise GraphError(f"{it} is a {type(x).__name__}, not one tensor")
            if not x.is_floating_point():
                raise GraphError(f"{it} does not hold floating-point numbers")
            if x.ndim < 1 or len(x) != batch:
                raise GraphError(f"{it}, of shape {tuple(x.shape)}, has another first dimension than the batch")
        own, *others = [_writes(body, layout, inputs[:1], mode) for layout in _vary_layout(x[:1])]
        dtype = x.dtype if segments else None
        segments.append(Segment(body, own is not False, dtype, _order(x), fixed=any(other != own for other in others)))
        x = _run_one(segments[-1], x, inputs)
    return tuple(segments), x


def _vary_layout(x: Tensor) -> Iterator[Tensor]:
    """Yield copies of a tensor that lie in memory as it does, and with the features last or first."""
    yield x.clone()
    for last in {1, -1} if x.ndim > 2 else ():
        copy = x.movedim(1, last).contiguous().movedim(last, 1).clone()
        if copy.stride() != x.stride():
            yield copy


def _writes(body: nn.Module, given: Tensor, inputs: Tensor, mode: FakeTensorMode | None) -> bool | None:
    """Return whether a body writes to its input; ``None`` if it fails on that input."""

    def write(x: Tensor, inputs: Tensor) -> bool:
        before = x._version
        Segment(body)(x, inputs)
        return x._version != before

    try:
        return without_values(write, given, inputs, within=body.modules(), mode=mode)
    except Exception:
        return None


@keyed_as("Frozen")
class Frozen(EvaluationOnly):
    """Part of a network, from raw images or a cut to a cut or the output; no call makes it train."""

    def __init__(self, segments: Sequence[Segment], prepare: Prepare | None = None) -> None:
        super().__init__()
        self.prepare = prepare
        self.segments = nn.ModuleList(segments)
        nn.Module.train(self, False)

    def forward(self, x: "Tensor | Mapping[str, Tensor]", inputs: Tensor | None = None) -> Tensor:
        """Map raw images, or the tensor at a cut, to the tensor at a later cut or to the output.

        From a cut on, ``inputs`` are what the layers read beside the tensor, if any (``Network.inputs_after``).
        """
        out, _ = join_inputs(x)
        if self.prepare is not None:
            out = inputs = self.prepare(out)
        for segment in self.segments:
            out = segment(out, inputs)
        return out


def code_of(body: nn.Module) -> object:
    """Return the code of a segment, with the marks of its layout, which decide how its fused suffix is made.

    Code names functions by their modules, which may move; so they are replaced by names that stay.
    """
    if not isinstance(body, fx.GraphModule):
        return [path for path, _ in body.named_modules()]
    program = body.graph.python_code("self")
    code = program.src
    for name, called in program.globals.items():
        if isinstance(called, FunctionType) and not called.__module__.startswith(_LIBRARIES):
            code = re.sub(rf"\b{re.escape(name)}\b", stable_name(called), code)
    marks = [(node.name, mark) for node in body.graph.nodes for mark in (ENTERS, LEAVES) if mark in node.meta]
    return (code, marks)


def name_anew(body: fx.GraphModule, anew: Callable[[Any], Any]) -> None:
    """Put other constants into the code of a segment, as devices and types that graphs of ``torch.export`` name."""
    for node in body.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate(node.args, anew), fx.node.map_aggregate(node.kwargs, anew)
    body.recompile()


def functions_of(body: nn.Module) -> Iterator[Callable[..., Any]]:
    """Return the functions that a segment's code only names: the user's own, behind ``torch.fx.wrap``."""
    for node in body.graph.nodes if isinstance(body, fx.GraphModule) else ():
        if isinstance(node.target, FunctionType) and not node.target.__module__.startswith(_LIBRARIES):
            yield node.target

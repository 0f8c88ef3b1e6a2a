"""The dimension of a tensor that holds its features, found from the operations applied to it.

Stitches know tensors by their shapes: maps ``(C, H, W)``, tokens ``(T, D)``, vectors ``(D,)``. But a shape does not
say where the features are. The output of a 1-D convolution is ``(C, L)`` and looks like ``C`` tokens; a Swin
transformer's maps are ``(H, W, D)`` and look like ``H`` channels; a stitch made for their shape would mix the wrong
dimension, and nobody would notice.

Therefore the operations are watched: convolutions, BatchNorms, GroupNorms and poolings have their features second,
LayerNorms of one dimension and linear layers last; whatever permutes, reshapes or adds tensors hands that on, forwards
and back. At a cut a tensor whose features lie elsewhere than its shape says is passed on as a map: ``(C, L)`` as ``(C,
1, L)``, ``(H, W, D)`` as ``(D, H, W)``. Its dimensions get other names, and no number changes. If no operation tells,
or a network mixes both dimensions as MLP-Mixer does, the shape decides.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from suture.common.hashing import keyed_as
from suture.core.network.shapes import mode_for, without_values

Step = tuple[Any, ...]  # a method of tensors and its arguments

ENTERS, LEAVES = "enters its own layout", "leaves its own layout"  #: marks of steps in graphs; each undoes the other

_SEQUENCE: tuple[Step, Step] = ("unsqueeze", 2), ("squeeze", 2)
_FEATURES_LAST: tuple[Step, Step] = ("permute", 0, 3, 1, 2), ("permute", 0, 2, 3, 1)
_WAYS: dict[tuple[int, ...], tuple[Step, Step]] = {
    (3, 1): _SEQUENCE,
    (4, 3): _FEATURES_LAST,
}  #: by the number of dimensions, and the one that holds features

KERNELS = ("convolution", "batch_norm", "group_norm", "instance_norm", "pool", "upsample")
_PRODUCTS = ("mm", "addmm", "linear")
_BATCHED = ("bmm", "baddbmm", "matmul")
SHAPED = ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "_reshape_alias")


class GraphError(Exception):
    """This graph cannot be cut; the message is the reason."""


class _Dimensions:
    """A union-find over the dimensions of all tensors of a run, which also knows which of them hold features."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._features: list[bool] = []
        self._of = WeakIdKeyDictionary()  # of tensors, to a number for each of their dimensions

    def known(self, x: object) -> bool:
        """Return whether a tensor was made of the input."""
        return isinstance(x, Tensor) and x in self._of

    def of(self, x: Tensor) -> list[int]:
        """Return the numbers of a tensor's dimensions; new ones if it has not been seen."""
        found: list[int] = self._of.get(x, [])  # type: ignore[no-untyped-call]
        if len(found) != x.ndim:
            self._of[x] = found = list(range(len(self._parent), len(self._parent) + x.ndim))
            self._parent += found
            self._features += [False] * x.ndim
        return found

    def unite(self, a: Tensor, i: int, b: Tensor, j: int) -> None:
        """Note that dimension ``i`` of one tensor is dimension ``j`` of another."""
        first, second = self._root(self.of(a)[i]), self._root(self.of(b)[j])
        self._parent[second] = first
        self._features[first] |= self._features[second]

    def mark(self, x: Tensor, dim: int) -> None:
        """Note that this dimension of a tensor holds features."""
        self._features[self._root(self.of(x)[dim])] = True

    def features(self, x: Tensor) -> set[int]:
        """Return the dimensions that were found to hold features."""
        return {i for i, dim in enumerate(self.of(x)) if self._features[self._root(dim)]}

    def _root(self, dim: int) -> int:
        while self._parent[dim] != dim:
            self._parent[dim] = dim = self._parent[self._parent[dim]]
        return dim


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records how every operation on tensors made of the input relates their dimensions."""

    def __init__(self, dimensions: _Dimensions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimensions = dimensions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if self.dimensions.known(x)]
        if given:
            for out in tree_leaves(outputs):
                if isinstance(out, Tensor) and not out.is_nested:  # which has no shape
                    self._note(func._schema.name.partition("::")[2], args, given, out)
        return outputs

    def _note(self, name: str, args: Sequence[Any], given: Sequence[Tensor], out: Tensor) -> None:
        known, x = self.dimensions, given[0]
        known.of(out)
        if any(kernel in name for kernel in KERNELS):
            self._kernel(x, out)
        elif name in _PRODUCTS or (name in _BATCHED and not known.known(args[-1])):
            self._product(x, out)
        elif name in _BATCHED:
            self._attention(given, out)
        elif name in SHAPED:
            for i, j in _kept(x.shape, out.shape):
                known.unite(x, i, out, j)
        elif "layer_norm" in name or "rms_norm" in name:
            self._alike(x, out)
            if len(args) > 1 and isinstance(args[1], Sequence) and len(args[1]) == 1 and out.ndim == x.ndim:
                known.mark(x, x.ndim - 1)
        elif (moved := find_moved(name, args, x, out)) is not None:
            for i, j in moved:
                known.unite(x, i, out, j)
        else:
            for one in given:
                self._alike(one, out)

    def _kernel(self, x: Tensor, out: Tensor) -> None:
        """Mark the second dimensions, which are not united: a convolution gives other features than it reads."""
        if x.ndim < 3 or out.ndim != x.ndim:
            return
        self.dimensions.unite(x, 0, out, 0)
        self.dimensions.mark(x, 1)
        self.dimensions.mark(out, 1)
        for dim in range(2, x.ndim):
            if x.shape == out.shape:
                self.dimensions.unite(x, dim, out, dim)

    def _product(self, x: Tensor, out: Tensor) -> None:
        """Mark the last dimensions of a linear map's input and output; all others are the same."""
        if x.ndim != out.ndim or x.shape[:-1] != out.shape[:-1]:
            return
        for dim in range(x.ndim - 1):
            self.dimensions.unite(x, dim, out, dim)
        self.dimensions.mark(x, x.ndim - 1)
        self.dimensions.mark(out, out.ndim - 1)

    def _attention(self, given: Sequence[Tensor], out: Tensor) -> None:
        """Unite a product of two tensors with the first dimensions of the one and the last of the other."""
        left, right = given[-2] if len(given) > 1 else given[0], given[-1]
        if left.ndim == right.ndim == out.ndim:
            for dim in range(out.ndim - 1):
                self.dimensions.unite(left, dim, out, dim)
            self.dimensions.unite(right, out.ndim - 1, out, out.ndim - 1)

    def _alike(self, x: Tensor, out: Tensor) -> None:
        """Unite equal dimensions, counted from the last, if the shapes broadcast: the rule for all other operations."""
        if x.ndim <= out.ndim and all(n in (1, m) for n, m in zip(x.shape[::-1], out.shape[::-1], strict=False)):
            for back in range(1, x.ndim + 1):
                if x.shape[-back] == out.shape[-back]:
                    self.dimensions.unite(x, x.ndim - back, out, out.ndim - back)


def find_moved(name: str, args: Sequence[Any], x: Tensor, out: Tensor) -> list[tuple[int, int]] | None:
    """Return which dimension becomes which, of operations that move, drop or add some; ``None`` for others."""

    def dims(given: Any) -> list[int]:
        return [dim % max(x.ndim, 1) for dim in ([given] if isinstance(given, int) else given or range(x.ndim))]

    asked = args[1] if len(args) > 1 else None
    if name == "permute":
        return [(i, j) for j, i in enumerate(dims(asked))]
    if name in ("t", "transpose", "numpy_T"):
        first, second = (0, x.ndim - 1) if name != "transpose" else dims(args[1:3])
        swapped = {first: second, second: first}
        return [(i, swapped.get(i, i)) for i in range(x.ndim)]
    if name == "unsqueeze" and isinstance(asked, int):
        place = asked % out.ndim
        return [(i, i + (i >= place)) for i in range(x.ndim)]
    if name in ("squeeze", "select", "mean", "sum", "amax", "amin", "unbind") and out.ndim < x.ndim:
        gone = set(dims(asked)) if name != "unbind" else set(dims(asked or 0))
        if name == "squeeze":
            gone = {i for i in gone if x.shape[i] == 1}
        left = [i for i in range(x.ndim) if i not in gone]
        return [(i, j) for j, i in enumerate(left)] if len(left) == out.ndim else []
    if x.ndim == out.ndim and name in ("cat", "slice", "split", "chunk", "narrow", "constant_pad_nd", "roll", "mean"):
        return [(i, i) for i in range(x.ndim)]
    return None


def _kept(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the dimensions that a change of shape leaves whole: as long as before, and as much lies before them."""
    ends, products = {}, 1
    for i, size in enumerate(before):
        ends[products * size, size] = i
        products *= size
    products = 1
    for j, size in enumerate(after):
        products *= size
        if size > 1 and (products, size) in ends:
            yield ends[products, size], j


def reads_inputs(body: nn.Module) -> bool:
    """Return whether the layers between two cuts read the inputs of their samples beside the tensor that passes."""
    nodes = body.graph.nodes if isinstance(body, fx.GraphModule) else ()
    return len(list(takewhile(lambda node: node.op == "placeholder", nodes))) > 1


def _features_between(bodies: Sequence[nn.Module], x: Tensor) -> list[tuple[set[int], int]]:
    """Return, for every tensor between consecutive bodies, the dimensions that hold features, and how many it has.

    Raises ``GraphError`` if no tensor passes.
    """

    def watch(x: Tensor) -> list[tuple[set[int], int]]:
        dimensions, passing, inputs = _Dimensions(), [], x
        with _Watch(dimensions):
            dimensions.of(x)
            for body in bodies:
                x = body(x.clone(), inputs) if reads_inputs(body) else body(x.clone())
                if not isinstance(x, Tensor):
                    raise GraphError(f"it is a {type(x).__name__}, not one tensor")
                passing.append(x)
        return [(dimensions.features(x), x.ndim) for x in passing[:-1]]

    within = [module for body in bodies for module in body.modules()]
    with torch.no_grad():
        return without_values(watch, x, within=within, mode=mode_for(within))


def bring_to_shape(bodies: Sequence[nn.Module], x: Tensor) -> list[nn.Module]:
    """Return the bodies such that every tensor passed between them has its features where its shape says.

    ``x`` is an input of at least two images. Raises ``GraphError`` if a volume ``(C, D, H, W)`` passes.
    """
    ways: list[tuple[Step, Step] | None] = []  # to a map and back; none where the shape already tells the features
    for features, dims in _features_between(bodies, x):
        if features == {1} and dims > 4:
            raise GraphError("it is a volume, for which there are no stitches; they join maps, tokens and vectors")
        ways.append(_WAYS.get((dims, *features)))
    enters, leaves = [None, *(way and way[1] for way in ways)], [*(way and way[0] for way in ways), None]
    return [_add_steps(body, enter, leave) for body, enter, leave in zip(bodies, enters, leaves, strict=True)]


def own_shape(shape: tuple[int, ...], method: str) -> tuple[int, ...]:
    """Return the shape in its own network, without the batch, of a tensor that becomes a map of ``shape``."""
    features, height, width = shape
    return (features, width) if method == _SEQUENCE[0][0] else (height, width, features)


def _add_steps(body: nn.Module, enter: Step | None, leave: Step | None) -> nn.Module:
    """Return the body with a step before it and one after it."""
    if enter is None and leave is None:
        return body
    if not isinstance(body, fx.GraphModule):
        return nn.Sequential(*(part for part in (_Step(enter), body, _Step(leave)) if part is body or part.step))
    start, end = (next(node for node in body.graph.nodes if node.op == op) for op in ("placeholder", "output"))
    if enter is not None:
        with body.graph.inserting_after(start):
            own = body.graph.call_method(enter[0], (start, *enter[1:]))
        own.meta[ENTERS] = True
        start.replace_all_uses_with(own, delete_user_cb=lambda user: user is not own)
    if leave is not None:
        with body.graph.inserting_before(end):
            shaped = body.graph.call_method(leave[0], (end.args[0], *leave[1:]))
        shaped.meta[LEAVES] = True
        end.args = (shaped,)
    body.recompile()
    return body


@keyed_as("Step")
class _Step(nn.Module):
    """One step, as a module."""

    def __init__(self, step: Step | None) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        """Apply the step."""
        assert self.step is not None
        method, *arguments = self.step
        out: Tensor = getattr(x, method)(*arguments)
        return out

    def extra_repr(self) -> str:
        """Return the step, which decides the layout of the tensor that passes."""
        return repr(self.step)

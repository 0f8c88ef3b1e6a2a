"""Where a stitch goes: into the layers that read the tensor at the cut, or into the one that it comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx, nn

from suture.core.folding.joint_graph import RECEIVER, SENDER, Joint
from suture.core.folding.layers import (
    Flow,
    Layer,
    Norm,
    NotMelted,
    as_matrix,
    check_reads,
    layer_of,
    melted_after,
    melted_before,
    scale_and_shift,
    statistics,
)
from suture.core.folding.passing import Passed, back, forth
from suture.core.folding.rows import Rows
from suture.core.network.graph import operation


@dataclass(frozen=True)
class Fold:
    """Whether a stitch can be melted: true where it can.

    ``into`` names the layers that take it, and ``network`` the network that they belong to; both are empty for a stitch
    that is the identity, where nothing is left to melt. ``side`` is ``receiver`` or ``sender``. ``reason`` says why it
    cannot be melted.
    """

    into: tuple[str, ...] = ()
    network: str = ""
    side: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if not self:
            return f"no: {self.reason}"
        layers = " and ".join(map(repr, self.into))
        return f"yes: into {layers} of the {self.side} {self.network}" if self.into else "yes: there is nothing to melt"


@dataclass(frozen=True, eq=False)
class Edit:
    """A node to replace: by the layer that ``make`` gives, or by what it reads where there is none."""

    node: fx.Node
    make: Callable[[], nn.Module] | None = None
    takes: bool = True  #: whether that layer takes the stitch, and is not only written anew
    weak: bool = False  #: whether a BatchNorm becomes a matrix


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """What melting a stitch changes in the graph, and what is said of it."""

    fold: Fold
    edits: Sequence[Edit] = field(default=())


def find(joint: Joint, rows: Rows) -> FoldPlan:
    """Where the stitch goes: the best of both sides. Raises ``NotMelted`` with what keeps it from either."""
    plans, reasons = [], []
    sides: tuple[tuple[str, str, Callable[[], list[Edit]]], ...] = (
        (RECEIVER, joint.receiver, lambda: _absorb(joint, joint.received, _flow(joint, rows))),
        (SENDER, joint.sender, lambda: _trace(joint, joint.sent, rows)),
    )
    for side, name, edits_of in sides:
        try:
            edits = edits_of()
            into = tuple(joint.path(edit.node) for edit in edits if edit.make and edit.takes)
            plans.append(FoldPlan(Fold(into, name, side), edits))
        except NotMelted as error:
            reasons.append(f"in the {side} {name}, {error}")
    if not plans:
        raise NotMelted("; ".join(reasons))
    return min(plans, key=lambda plan: any(edit.weak for edit in plan.edits))


def _flow(joint: Joint, rows: Rows) -> Flow:
    shape = joint.receiver_cut.shape
    sizes = [1] * (len(shape) + 1)
    sizes[rows.axis] = -1
    return Flow(rows.weight, rows.bias.reshape(sizes).expand(1, *shape).contiguous(), rows.axis)


def _readers(joint: Joint, node: fx.Node, axis: int, changes: bool) -> list[fx.Node]:
    """The nodes that read a tensor's values. Raises ``NotMelted`` where one reads how many features there are."""
    readers = []
    for user in node.users:
        asks = _asks(user, axis)
        if asks is None:
            readers.append(user)
        elif asks and changes:
            raise NotMelted(f"{joint.say(user)} also reads how many features the tensor has")
    return readers


def _asks(user: fx.Node, axis: int) -> bool | None:
    """Whether a node asks for the size of a dimension that is the features'; ``None`` where it reads values."""
    name = operation(user)
    if name in ("dim", "ndimension", "is_floating_point", "get_device", "is_contiguous"):
        return False
    if name in ("size", "sym_size") and len(user.args) > 1:
        return user.args[1] in (axis, None)
    if name == "size" or (name == "getattr" and user.args[1] == "shape"):
        return any(operation(use) != "getitem" or not _spares(use.args[1], axis) for use in user.users)
    if name == "getattr":
        return user.args[1] not in ("ndim", "dtype", "device")
    return None


def _spares(index: object, axis: int) -> bool:
    return isinstance(index, int) and 0 <= index != axis


def _absorb(joint: Joint, node: fx.Node, flow: Flow) -> list[Edit]:
    """Melt what flows into all that reads a node of the suffix."""
    readers = _readers(joint, node, flow.axis, changes=flow.weight.shape[0] != flow.weight.shape[1])
    edits: list[Edit] = []
    blocked: list[_Blocked] = []
    for reader in readers:
        try:
            edits += _into(joint, node, reader, flow)
        except _Blocked as error:
            blocked.append(error)
    if blocked:
        raise _alone(joint, node, len(readers), blocked)
    return edits


def _alone(joint: Joint, node: fx.Node, readers: int, blocked: Sequence["_Blocked"]) -> NotMelted:
    """What keeps a stitch from the readers of a node: one of them, or that another reads it too."""
    skip = next((error.node for error in blocked if _adds(error.node)), None)
    if readers == 1 or (skip is None and len(blocked) == readers):
        return blocked[0]
    what = joint.say(blocked[0].node) if skip is None else f"an identity skip ('{joint.path(skip)}')"
    where = f"at '{joint.receiver_cut.name}'" if node is joint.received else f"after '{joint.path(node)}'"
    return NotMelted(f"{what} also reads the tensor {where}")


class _Blocked(NotMelted):
    """An operation, ``node``, lets nothing through."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def _adds(node: fx.Node) -> bool:
    return operation(node) in ("add", "add_", "iadd")


def _into(joint: Joint, node: fx.Node, reader: fx.Node, flow: Flow) -> list[Edit]:
    """Melt what flows into one reader of a node, or pass it on."""
    alone = next(iter(reader.args), None) is node
    layer = layer_of(joint, reader) if alone else None
    if layer is not None:
        try:
            check_reads(layer, flow)
        except NotMelted as error:
            raise _Blocked(reader, f"{joint.say(reader)} {error}") from None
        if isinstance(layer, Norm):
            return _through_norm(joint, reader, layer, flow)
        return [Edit(reader, lambda: melted_after(layer, flow, layer.weight))]
    passed = forth(joint, reader, flow) if alone else None
    if passed is None or passed.flow is None:
        raise _Blocked(reader, f"the next operation is {joint.say(reader)}")
    return [*_rewritten(reader, passed), *_absorb(joint, reader, passed.flow)]


def _rewritten(node: fx.Node, passed: Passed) -> list[Edit]:
    instead = passed.instead
    return [] if instead is None else [Edit(node, lambda: instead, takes=False)]


def _through_norm(joint: Joint, reader: fx.Node, norm: Norm, flow: Flow) -> list[Edit]:
    scale, shift = scale_and_shift(norm)
    sizes = (-1, *[1] * (flow.shift.ndim - 2))
    weight, moved = scale[:, None] * flow.weight, scale.reshape(sizes) * flow.shift + shift.reshape(sizes)
    try:
        return [Edit(reader), *_absorb(joint, reader, replace(flow, weight=weight, shift=moved))]
    except NotMelted:
        ndim = flow.shift.ndim
        return [Edit(reader, lambda: melted_after(as_matrix(norm, ndim), flow, statistics(norm)), weak=True)]


def _trace(joint: Joint, node: fx.Node, rows: Rows) -> list[Edit]:
    """Melt a stitch after a node of the prefix into what the node comes from."""
    source = next(iter(node.args), None)
    layer = layer_of(joint, node)
    if layer is not None:
        return _into_source(joint, node, layer, rows)
    passed = back(joint, node, rows.axis) if isinstance(source, fx.Node) else None
    if passed is None or not isinstance(source, fx.Node):
        raise NotMelted(f"the operation before it is {joint.say(node)}")
    before = replace(rows, axis=passed.axis)
    _check_alone(joint, source, node, before)
    return [*_rewritten(node, passed), *_trace(joint, source, before)]


def _check_alone(joint: Joint, source: fx.Node, node: fx.Node, rows: Rows) -> None:
    changes = rows.weight.shape[0] != rows.weight.shape[1]
    others = [reader for reader in _readers(joint, source, rows.axis, changes) if reader is not node]
    if others:
        raise NotMelted(f"{joint.say(others[0])} also reads what {joint.say(source)} gives")


def _into_source(joint: Joint, node: fx.Node, layer: Layer, rows: Rows) -> list[Edit]:
    if node not in joint.shapes:
        raise NotMelted(f"the size of what {joint.say(node)} before it gives is not known")
    ndim = len(joint.shapes[node]) + 1
    if rows.axis != (ndim - 1 if isinstance(layer, nn.Linear) else 1):
        raise NotMelted(f"{joint.say(node)} before it gives its features in another dimension")
    if not isinstance(layer, Norm):
        return [Edit(node, lambda: melted_before(layer, rows.weight, rows.bias, layer.weight))]
    source = node.args[0]
    assert isinstance(source, fx.Node)
    scale, shift = scale_and_shift(layer)
    before = Rows(rows.weight * scale, rows.weight @ shift + rows.bias, rows.axis)
    try:
        _check_alone(joint, source, node, rows)
        return [Edit(node), *_trace(joint, source, before)]
    except NotMelted:
        matrix, like = as_matrix(layer, ndim), statistics(layer)
        return [Edit(node, lambda: melted_before(matrix, rows.weight, rows.bias, like), weak=True)]


def apply(joint: Joint, plan: FoldPlan) -> None:
    """Make a plan's changes in the graph."""
    for edit in plan.edits:
        _replace(joint, edit, plan.fold.side)
    for node in reversed(joint.graph.nodes):
        if node.op == "get_attr" and not node.users:
            joint.graph.erase_node(node)


def _replace(joint: Joint, edit: Edit, side: str) -> None:
    """Replace a node of the graph; what it called stays as it is for other nodes."""
    node, source = edit.node, edit.node.args[0]
    assert isinstance(source, fx.Node)
    graph, instead = joint.graph, source
    if edit.make is not None:
        target = _free(graph, node, f"{side}.{joint.path(node)}")
        joint.parts[target] = edit.make()
        with graph.inserting_before(node):
            instead = graph.create_node("call_module", target, (source,))
        instead.meta = dict(node.meta)
    node.replace_all_uses_with(instead)
    graph.erase_node(node)


def _free(graph: fx.Graph, node: fx.Node, target: str) -> str:
    """A name for a layer in place of a node: as near to the node's own as other nodes allow."""
    others = [
        str(other.target)
        for other in graph.nodes
        if other.op in ("call_module", "get_attr") and other is not node and set(other.users) != {node}
    ]
    while any(other == target or other.startswith(f"{target}.") or target.startswith(f"{other}.") for other in others):
        target += "_folded"
    return target

"""Folding: the stitch folded into a neighbouring layer, which leaves a plain model (bansal2021, section 4).

A stitch that maps the features of every position by one affine map, ``y = W·x + b``, needs no layer of its own where a
neighbour is affine in the same features:

- *after it*, in the receiver: ``K·(W·x + b) + c = (K·W)·x + (K·b + c)``, if everything that reads the tensor at the cut
  is such a layer. The map passes through what acts on positions alone (average pooling, flattening, dropout in
  evaluation mode). Before a convolution that pads with zeros the shift ``b`` is not the same at the border, where the
  padding has none: what the layer gives on the shift alone is a constant map for the size of the cut, and that map,
  less its value in the middle, which is a bias, is added after the convolution. So the border is exact too.
- *before it*, in the sender: ``W·(K·x + c) + b = (W·K)·x + (W·c + b)``, if the tensor at the cut comes from such a
  layer. No border differs.

A BatchNorm on the way is folded with it; where no layer lies behind, it becomes a linear layer or 1×1 convolution
itself. A linear layer or convolution is preferred to a BatchNorm, and then the receiver's to the sender's. A
non-linearity, or an identity skip that reads the tensor too, lets nothing through.
"""

import copy as copying
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.core.folding.joint_graph import (
    RECEIVER,
    SENDER,
    Flow,
    Joint,
    Norm,
    as_matrix,
    compose_after,
    compose_before,
    join,
    layer_of,
    reads_features,
    scale_and_shift,
)
from suture.core.folding.passing import Passed, pass_backward, pass_forward
from suture.core.network.network import Network, Sides
from suture.core.network.segments import operation
from suture.core.stitches import Shape


@dataclass(frozen=True)
class Fold:
    """Whether a stitch can be folded: true where it can.

    ``into`` names the layers that take it, and ``network`` the network that they belong to; both are empty for a stitch
    that is the identity, where nothing is left to fold. ``side`` is ``receiver`` or ``sender``. ``reason`` says why it
    cannot be folded.
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
        return f"yes: into {layers} of the {self.side} {self.network}" if self.into else "yes: there is nothing to fold"


def fold_of(sides: Sides, stitch: nn.Module) -> Fold:
    """Say whether a stitch can be folded between two networks, fitted or not, and into what."""
    try:
        return _plan(sides, stitch)[1].fold
    except FoldError as error:
        return Fold(reason=str(error))


def fold(sides: Sides, stitch: nn.Module) -> fx.GraphModule:
    """Make the stitched network without its stitch: a plain module from raw images to outputs.

    Raises ``FoldError``, with the reason, if the stitch cannot be folded.
    """
    try:
        joint, plan = _plan(sides, stitch)
    except FoldError as error:
        (sender, sent), (receiver, received) = sides
        raise FoldError(
            f"the stitch between {sender.name} at '{sent.name}' and {receiver.name} at '{received.name}' cannot be "
            f"folded: {error}; keep the stitched network, or stitch at a cut that "
            "suture.foldable_cuts(network) gives"
        ) from None
    with torch.inference_mode(False), torch.no_grad():
        for edit in plan.edits:
            _apply(joint, edit, plan.fold.side)
        for node in reversed(joint.graph.nodes):
            if node.op == "get_attr" and not node.users:
                joint.graph.erase_node(node)
    return joint.plain()


def foldable_cuts(network: Network) -> dict[str, Fold]:
    """Say for every cut of a network whether a linear stitch there, between it and its like, can be folded.

    The stitch is any that maps the features of each position by one matrix with a shift, of maps ``(C, H, W)`` the
    channels or, if that cannot be folded, the last dimension.
    """
    found = {}
    for cut in network.cuts:
        for axis in (1, 3) if len(cut.shape) == 3 else (len(cut.shape),):
            ones = torch.ones(cut.shape[axis - 1], dtype=torch.float64)
            try:
                joint = join(network, network, cut, cut)
                found[cut.name] = _find(joint, FeatureMap(ones.expand(len(ones), -1), ones, axis)).fold
                break
            except FoldError as error:
                found.setdefault(cut.name, Fold(reason=str(error)))
    return found


def _plan(sides: Sides, stitch: nn.Module) -> tuple[Joint, "_FoldPlan"]:
    (sender, sent), (receiver, received) = sides
    joint = join(sender, receiver, sent, received)
    if isinstance(stitch, nn.Identity):
        return joint, _FoldPlan(Fold())
    return joint, _find(joint, read_feature_map(stitch, sent.shape, received.shape))


# --- the map that a stitch computes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureMap:
    """``row ↦ weight · row + bias`` of the features in dimension ``axis`` (the batch is 0), in float64."""

    weight: Tensor
    bias: Tensor
    axis: int


def read_feature_map(stitch: nn.Module, sender: Shape, receiver: Shape) -> FeatureMap:
    """Recover the affine map of features that a stitch computes, whatever it is made of.

    It is read off zero and the unit vectors, each at a position of its own, and compared on random tensors, where it
    must hold to 1e-9. Raises ``FoldError`` if the stitch is no such map.
    """
    for axis in dict.fromkeys((1, len(sender))) if len(sender) == len(receiver) else ():
        if _without(sender, axis) == _without(receiver, axis):
            try:
                found = _read_off(copying.deepcopy(stitch).cpu().double().eval(), sender, axis)
            except Exception as error:  # a stitch of the user's may do anything
                raise FoldError(f"the stitch cannot be computed in float64 ({error})") from error
            if found is not None:
                return found
    raise FoldError(
        "the stitch does not map the features of every position by the same matrix and to the same position, as a "
        "linear layer or a 1×1 convolution does"
    )


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[: axis - 1], *shape[axis:])


def _read_off(stitch: nn.Module, shape: Shape, axis: int) -> FeatureMap | None:
    features, others = shape[axis - 1], _without(shape, axis)
    batch = max(2, -(-(features + 1) // prod(others)))
    given = torch.zeros(batch * prod(others), features, dtype=torch.float64)
    given[1 : features + 1] = torch.eye(features, dtype=torch.float64)
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = stitch(given.reshape(batch, *others, features).movedim(-1, axis))
        if out.ndim != len(shape) + 1 or len(out) != batch or _without(tuple(out.shape[1:]), axis) != others:
            return None
        rows = out.movedim(axis, -1).reshape(len(given), -1)
        weight, bias = (rows[1 : features + 1] - rows[0]).T.contiguous(), rows[0].clone()
        wanted = (x.movedim(axis, -1) @ weight.T + bias).movedim(-1, axis)
        agrees = (stitch(x) - wanted).abs().max() <= 1e-9 * (1 + wanted.abs().max())
    return FeatureMap(weight, bias, axis) if agrees else None


# --- where it goes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Edit:
    """A node to replace: by the layer that ``make`` gives, or by what it reads if there is none."""

    node: fx.Node
    make: Callable[[], nn.Module] | None = None
    takes: bool = True  #: whether that layer takes the stitch, and is not only written anew
    weak: bool = False  #: whether a BatchNorm becomes a matrix


@dataclass(frozen=True, eq=False)
class _FoldPlan:
    """What folding a stitch changes in the graph, and what is said of it."""

    fold: Fold
    edits: Sequence[_Edit] = ()


class _BlockedError(FoldError):
    """An operation, ``node``, lets nothing through."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def _find(joint: Joint, stitch: FeatureMap) -> _FoldPlan:
    """Find the better side for a stitch. Raises ``FoldError`` with what keeps it from either."""
    shape = joint.receiver_cut.shape
    sizes = [-1 if dim == stitch.axis else 1 for dim in range(len(shape) + 1)]
    flow = Flow(stitch.weight, stitch.bias.reshape(sizes).expand(1, *shape).contiguous(), stitch.axis)
    plans, reasons = [], []
    for side, name in ((RECEIVER, joint.receiver), (SENDER, joint.sender)):
        try:
            after = side == RECEIVER
            edits = _fold_after(joint, joint.received, flow) if after else _fold_before(joint, joint.sent, stitch)
        except FoldError as error:
            reasons.append(f"in the {side} {name}, {error}")
        else:
            into = tuple(joint.path(edit.node) for edit in edits if edit.make and edit.takes)
            plans.append(_FoldPlan(Fold(into, name, side), edits))
    if not plans:
        raise FoldError("; ".join(reasons))
    return min(plans, key=lambda plan: any(edit.weak for edit in plan.edits))


def _fold_after(joint: Joint, node: fx.Node, flow: Flow) -> list[_Edit]:
    """Fold what flows out of a node of the suffix into all that reads it."""
    readers = _readers(joint, node, flow.axis, changes=flow.weight.shape[0] != flow.weight.shape[1])
    edits: list[_Edit] = []
    blocked: list[_BlockedError] = []
    for reader in readers:
        try:
            edits += _fold_into(joint, node, reader, flow)
        except _BlockedError as error:
            blocked.append(error)
    if not blocked:
        return edits
    skip = next((error.node for error in blocked if operation(error.node) in ("add", "add_", "iadd")), None)
    if len(readers) == 1 or (skip is None and len(blocked) == len(readers)):
        raise blocked[0]
    what = joint.say(blocked[0].node) if skip is None else f"an identity skip ('{joint.path(skip)}')"
    where = f"at '{joint.receiver_cut.name}'" if node is joint.received else f"after '{joint.path(node)}'"
    raise FoldError(f"{what} also reads the tensor {where}")


def _fold_into(joint: Joint, node: fx.Node, reader: fx.Node, flow: Flow) -> list[_Edit]:
    """Fold what flows into one reader of a node, or pass it on."""
    reads_first = next(iter(reader.args), None) is node
    layer = layer_of(joint, reader) if reads_first else None
    if layer is None:
        passed = pass_forward(joint, reader, flow) if reads_first else None
        if passed is None or passed.flow is None:
            raise _BlockedError(reader, f"the next operation is {joint.say(reader)}")
        return [*_rewrite(reader, passed), *_fold_after(joint, reader, passed.flow)]
    if not reads_features(layer, flow):
        raise _BlockedError(reader, f"{joint.say(reader)} acts on another dimension than that of the features")
    if not isinstance(layer, Norm):
        return [_Edit(reader, lambda: compose_after(layer, flow, layer.weight))]
    scale, shift = scale_and_shift(layer)
    sizes = (-1, *[1] * (flow.shift.ndim - 2))
    weight, moved = scale[:, None] * flow.weight, scale.reshape(sizes) * flow.shift + shift.reshape(sizes)
    try:
        return [_Edit(reader), *_fold_after(joint, reader, replace(flow, weight=weight, shift=moved))]
    except FoldError:  # nothing behind it takes the stitch: it becomes a matrix itself
        matrix, like = as_matrix(layer, flow.shift.ndim), layer.running_mean
        assert like is not None
        return [_Edit(reader, lambda: compose_after(matrix, flow, like), weak=True)]


def _fold_before(joint: Joint, node: fx.Node, stitch: FeatureMap) -> list[_Edit]:
    """Fold a stitch after a node of the prefix into what the node comes from."""
    source, layer = next(iter(node.args), None), layer_of(joint, node)
    if layer is None:
        passed = pass_backward(joint, node, stitch.axis) if isinstance(source, fx.Node) else None
        if passed is None or not isinstance(source, fx.Node):
            raise FoldError(f"the operation before it is {joint.say(node)}")
        before = replace(stitch, axis=passed.axis)
        _check_alone(joint, source, node, before)
        return [*_rewrite(node, passed), *_fold_before(joint, source, before)]
    if node not in joint.shapes:
        raise FoldError(f"the size of what {joint.say(node)} before it gives is not known")
    ndim = len(joint.shapes[node]) + 1
    if stitch.axis != (ndim - 1 if isinstance(layer, nn.Linear) else 1):
        raise FoldError(f"{joint.say(node)} before it gives its features in another dimension")
    if not isinstance(layer, Norm):
        return [_Edit(node, lambda: compose_before(layer, stitch.weight, stitch.bias, layer.weight))]
    assert isinstance(source, fx.Node)
    scale, shift = scale_and_shift(layer)
    before = FeatureMap(stitch.weight * scale, stitch.weight @ shift + stitch.bias, stitch.axis)
    try:
        _check_alone(joint, source, node, stitch)
        return [_Edit(node), *_fold_before(joint, source, before)]
    except FoldError:
        matrix, like = as_matrix(layer, ndim), layer.running_mean
        assert like is not None
        return [_Edit(node, lambda: compose_before(matrix, stitch.weight, stitch.bias, like), weak=True)]


def _check_alone(joint: Joint, source: fx.Node, node: fx.Node, stitch: FeatureMap) -> None:
    changes = stitch.weight.shape[0] != stitch.weight.shape[1]
    others = [reader for reader in _readers(joint, source, stitch.axis, changes) if reader is not node]
    if others:
        raise FoldError(f"{joint.say(others[0])} also reads what {joint.say(source)} gives")


def _rewrite(node: fx.Node, passed: Passed) -> list[_Edit]:
    instead = passed.instead
    return [] if instead is None else [_Edit(node, lambda: instead, takes=False)]


def _readers(joint: Joint, node: fx.Node, axis: int, changes: bool) -> list[fx.Node]:
    """Give the nodes that read a tensor's values.

    Raises ``FoldError`` if one reads how many features there are, and that changes.
    """
    readers = []
    for user in node.users:
        asks = _asks_for_features(user, axis)
        if asks is None:
            readers.append(user)
        elif asks and changes:
            raise FoldError(f"{joint.say(user)} also reads how many features the tensor has")
    return readers


def _asks_for_features(user: fx.Node, axis: int) -> bool | None:
    """Whether a node asks for the size of a dimension that is the features'; ``None`` if it reads values."""
    name = operation(user)
    if name in ("dim", "ndimension", "is_floating_point", "get_device", "is_contiguous"):
        return False
    if name in ("size", "sym_size") and len(user.args) > 1:
        return user.args[1] in (axis, None)
    if name == "size" or (name == "getattr" and user.args[1] == "shape"):
        others = [use.args[1] if operation(use) == "getitem" else None for use in user.users]
        return not all(isinstance(index, int) and 0 <= index != axis for index in others)
    if name == "getattr":
        return user.args[1] not in ("ndim", "dtype", "device")
    return None


def _apply(joint: Joint, edit: _Edit, side: str) -> None:
    """Replace a node of the graph; what it called stays for other nodes."""
    node, source = edit.node, edit.node.args[0]
    assert isinstance(source, fx.Node)
    graph, instead = joint.graph, source
    if edit.make is not None:
        others = [
            str(other.target)
            for other in graph.nodes
            if other.op in ("call_module", "get_attr") and other is not node and set(other.users) != {node}
        ]
        target = f"{side}.{joint.path(node)}"  # or as near to it as the names of other nodes allow
        while any(f"{other}.".startswith(f"{target}.") or target.startswith(f"{other}.") for other in others):
            target += "_folded"
        joint.parts[target] = edit.make()
        with graph.inserting_before(node):
            instead = graph.create_node("call_module", target, (source,))
        instead.meta = dict(node.meta)
    node.replace_all_uses_with(instead)
    graph.erase_node(node)

"""Folding: the stitch folded into a neighbouring layer, which leaves a plain model (bansal2021, section 4).

A stitch that maps the features of every position by one affine map, ``y = W·x + b``, needs no layer of its own where a
neighbour is affine in the same features:

- *after it*, in the receiver: ``K·(W·x + b) + c = (K·W)·x + (K·b + c)``, if everything that reads the tensor at the cut
  is such a layer. The map passes through operations that act on positions alone (average pooling, flattening, dropout
  in evaluation mode). Before a convolution that pads with zeros the shift ``b`` is not the same at the border, where
  the padding has none: what the layer gives on the shift alone is a constant map for the size of the cut, and that map,
  less its value in the middle, which is a bias, is added after the convolution. So the border is exact too.
- *before it*, in the sender: ``W·(K·x + c) + b = (W·K)·x + (W·c + b)``, if the tensor at the cut comes from such a
  layer. No border differs.

A BatchNorm on the way is folded with it; where no layer lies behind, it becomes a linear layer or 1×1 convolution
itself. A linear layer or convolution is preferred to a BatchNorm, and then the receiver's to the sender's. A
non-linearity, or an identity skip that reads the tensor too, lets nothing through.
"""

import copy as copying
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.errors import FoldError
from suture.core.joint import (
    RECEIVER,
    SENDER,
    Conv,
    Joint,
    Layer,
    Norm,
    alteration_of,
    conv_layer,
    exact,
    layer_of,
    linear_layer,
    scale_and_shift,
)
from suture.core.network.network import Network, Sides
from suture.core.network.segments import operation
from suture.core.stitches import Shape

_PASSING = {
    *(nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *("contiguous", "clone", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"),
    *(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)),
    *("flatten", "mean", "permute", "transpose", "swapaxes", "getitem", "select"),
}
"""Linear operations, and modules, that may act on positions alone and so let a map of features pass."""


@dataclass(frozen=True)
class Fold:
    """Whether a stitch can be folded: true if it can.

    ``into`` names the layers that take it, and ``network`` the network that they belong to; both are empty for a stitch
    that is the identity, with which nothing is left to fold. ``side`` is ``receiver`` or ``sender``. ``reason`` says
    why it cannot be folded.
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
    """Return whether a stitch can be folded between two networks, fitted or not, and into which layers."""
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
    """Return for every cut of a network whether a linear stitch there, into a network like it, can be folded.

    The stitch is any that maps the features of each position by one matrix with a shift, of maps ``(C, H, W)`` the
    channels or, if that cannot be folded, the last dimension.
    """
    found = {}
    for cut in network.cuts:
        for axis in (1, 3) if len(cut.shape) == 3 else (len(cut.shape),):
            ones = torch.ones(cut.shape[axis - 1], dtype=torch.float64)
            try:
                any_map = FeatureMap(ones.expand(len(ones), -1), ones, axis)
                found[cut.name] = _plan(((network, cut), (network, cut)), any_map)[1].fold
                break
            except FoldError as error:
                found.setdefault(cut.name, Fold(reason=str(error)))
    return found


# --- the map that a stitch computes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureMap:
    """``row ↦ weight · row + bias`` of the features in dimension ``axis`` (the batch is 0), in float64."""

    weight: Tensor
    bias: Tensor
    axis: int


def read_feature_map(stitch: nn.Module, sender: Shape, receiver: Shape) -> FeatureMap:
    """Recover the affine map of features that a stitch computes, whatever its modules.

    It is read off zero and the unit vectors, each at a position of its own, and compared on random tensors, where it
    must hold to 1e-9. Raises ``FoldError`` if the stitch is not such a map.
    """
    # Of tokens the features come last. A multiple of the identity is a map of either axis: the first that is tried.
    for module in stitch.modules():
        # where a stitch bends may lie far from the tensors that it is compared on
        if type(module).__module__ == nn.ReLU.__module__:
            raise FoldError(f"the stitch has a nonlinearity ({type(module).__name__}), and only an affine map folds")
    axes = (2, 1) if len(sender) == 2 else dict.fromkeys((1, len(sender)))
    for axis in axes if len(sender) == len(receiver) else ():
        if _without(sender, axis) == _without(receiver, axis):
            try:
                found = _read_off(copying.deepcopy(stitch).cpu().double().eval(), sender, axis)
            except Exception as error:  # a user's stitch may do anything
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
    batch = max(2, -(-(features + 1) // math.prod(others)))
    given = torch.zeros(batch * math.prod(others), features, dtype=torch.float64)
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
    """A node to replace: by the layer that ``make`` returns, or without ``make`` by the node's own input."""

    node: fx.Node
    make: Callable[[], nn.Module] | None = None
    takes: bool = True  #: whether that layer takes the stitch, and is not only another spelling
    weak: bool = False  #: whether a BatchNorm becomes a matrix


@dataclass(frozen=True, eq=False)
class _FoldPlan:
    """The changes that folding a stitch makes in the graph, and their summary for the user."""

    fold: Fold
    edits: Sequence[_Edit] = ()


class _BlockedError(FoldError):
    """The operation ``node`` lets no map pass."""

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True)
class Flow:
    """A stitch on its way through the suffix, where the receiver's own ``y`` becomes ``weight · x + shift``.

    ``weight`` (out, in) acts on the features in dimension ``axis`` (the batch is 0). If dimensions were flattened
    into that one, it counts (before, features, after), of which ``before`` and ``after`` are the sizes. ``shift`` is a
    batch of one, of the shape that the receiver meets. All float64.
    """

    weight: Tensor
    shift: Tensor
    axis: int
    before: int = 1
    after: int = 1


def _plan(sides: Sides, stitch: "nn.Module | FeatureMap") -> tuple[Joint, _FoldPlan]:
    """Put the two networks into one graph, and find the better side for a stitch between them.

    Raises ``FoldError`` with what keeps it from either, and if a network was cut along stages that are functions: no
    plain module holds their layers.
    """
    (sender, sent_at), (receiver, received_at) = sides
    if received_at.is_output:
        raise FoldError(f"no layer of {receiver.name} follows it")
    joint, prefix, suffix = Joint(), sender.upto(sent_at), receiver.after(received_at)
    images = joint.preprocess(prefix.prepare, sender.input_dtype)
    sent = joint.append(images, prefix.segments, list(sender.cuts)[: sent_at.index], SENDER)
    received = joint.adapt(sent, sender.after(sent_at), suffix)
    joint.graph.output(joint.append(received, suffix.segments, list(receiver.cuts)[received_at.index :], RECEIVER))
    if isinstance(stitch, nn.Identity):
        return joint, _FoldPlan(Fold())
    if isinstance(stitch, nn.Module):
        stitch = read_feature_map(stitch, sent_at.shape, received_at.shape)
    shape = received_at.shape
    sizes = [-1 if dim == stitch.axis else 1 for dim in range(len(shape) + 1)]
    flow = Flow(stitch.weight, stitch.bias.reshape(sizes).expand(1, *shape).contiguous(), stitch.axis)
    plans, reasons = [], []
    for side, name in ((RECEIVER, receiver.name), (SENDER, sender.name)):
        try:
            if side == RECEIVER:
                edits = _fold_after(joint, received, flow, f"at '{received_at.name}'")
            else:
                edits = _fold_before(joint, sent, stitch)
        except FoldError as error:
            reasons.append(f"in the {side} {name}, {error}")
        else:
            into = tuple(joint.path(edit.node) for edit in edits if edit.make and edit.takes)
            plans.append(_FoldPlan(Fold(into, name, side), edits))
    if not plans:
        raise FoldError("; ".join(reasons))
    return joint, min(plans, key=lambda plan: any(edit.weak for edit in plan.edits))


def _fold_after(joint: Joint, node: fx.Node, flow: Flow, where: str) -> list[_Edit]:
    """Fold the flow out of a node of the suffix into all its readers; ``where`` describes the place in words."""
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
    raise FoldError(f"{what} also reads the tensor {where}")


def _fold_into(joint: Joint, node: fx.Node, reader: fx.Node, flow: Flow) -> list[_Edit]:
    """Fold the flow into one reader of a node, or pass it on."""
    reads_first, behind_it = next(iter(reader.args), None) is node, f"after '{joint.path(reader)}'"
    layer = layer_of(joint, reader) if reads_first else None
    if layer is None:
        run = _position_wise(joint, reader) if reads_first else None
        place = run and _follow(run, flow.shift.shape, flow.axis, flow.before, flow.after)
        if run is None or place is None:
            raise _BlockedError(reader, f"the next operation is {joint.say(reader)}")
        axis, before, behind = place
        passed = replace(flow, shift=run(flow.shift), axis=axis, before=before, after=behind)
        return [*_write_anew(reader, run), *_fold_after(joint, reader, passed, behind_it)]
    if not _reads_features(layer, flow):
        raise _BlockedError(reader, f"{joint.say(reader)} acts on another dimension than that of the features")
    if not isinstance(layer, Norm):
        return [_Edit(reader, lambda: _compose_after(layer, flow, layer.weight))]
    scale, shift = scale_and_shift(layer)
    sizes = (-1, *[1] * (flow.shift.ndim - 2))
    weight, moved = scale[:, None] * flow.weight, scale.reshape(sizes) * flow.shift + shift.reshape(sizes)
    try:
        return [_Edit(reader), *_fold_after(joint, reader, replace(flow, weight=weight, shift=moved), behind_it)]
    except FoldError:  # nothing behind it takes the stitch: it becomes a matrix itself
        matrix, like = _as_matrix(layer, flow.shift.ndim), layer.running_mean
        assert like is not None
        return [_Edit(reader, lambda: _compose_after(matrix, flow, like), weak=True)]


def _fold_before(joint: Joint, node: fx.Node, stitch: FeatureMap) -> list[_Edit]:
    """Fold a stitch after a node of the prefix into the layer that computes the node."""
    source, layer = next(iter(node.args), None), layer_of(joint, node)
    if layer is None:
        run = _position_wise(joint, node)
        axis = run and _follow_back(run, joint.shapes.get(source, ()), stitch.axis)  # type: ignore[arg-type]
        if run is None or axis is None or not isinstance(source, fx.Node):
            raise FoldError(f"the operation before it is {joint.say(node)}")
        before = replace(stitch, axis=axis)
        _check_alone(joint, source, node, before)
        return [*_write_anew(node, run), *_fold_before(joint, source, before)]
    if node not in joint.shapes:
        raise FoldError(f"the size of the output of {joint.say(node)} before it is not known")
    ndim = len(joint.shapes[node]) + 1
    if stitch.axis != (ndim - 1 if isinstance(layer, nn.Linear) else 1):
        raise FoldError(f"{joint.say(node)} before it gives its features in another dimension")
    if not isinstance(layer, Norm):
        return [_Edit(node, lambda: _compose_before(layer, stitch, layer.weight))]
    assert isinstance(source, fx.Node)
    scale, shift = scale_and_shift(layer)
    before = FeatureMap(stitch.weight * scale, stitch.weight @ shift + stitch.bias, stitch.axis)
    try:
        _check_alone(joint, source, node, stitch)
        return [_Edit(node), *_fold_before(joint, source, before)]
    except FoldError:
        matrix, like = _as_matrix(layer, ndim), layer.running_mean
        assert like is not None
        return [_Edit(node, lambda: _compose_before(matrix, stitch, like), weak=True)]


def _check_alone(joint: Joint, source: fx.Node, node: fx.Node, stitch: FeatureMap) -> None:
    changes = stitch.weight.shape[0] != stitch.weight.shape[1]
    others = [reader for reader in _readers(joint, source, stitch.axis, changes) if reader is not node]
    if others:
        raise FoldError(f"{joint.say(others[0])} also reads the output of {joint.say(source)}")


def _readers(joint: Joint, node: fx.Node, axis: int, changes: bool) -> list[fx.Node]:
    """Return the nodes that read a tensor's values.

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
    """Return whether a node asks for the size of the feature dimension, or of another; ``None`` if it reads values."""
    name = operation(user)
    if name in ("dim", "ndimension", "is_floating_point", "get_device", "is_contiguous"):
        return False
    if name in ("size", "sym_size") and len(user.args) > 1:
        return not (isinstance(user.args[1], int) and 0 <= user.args[1] != axis)  # −1 may be the features
    if name == "size" or (name == "getattr" and user.args[1] == "shape"):
        others = [use.args[1] if operation(use) == "getitem" else None for use in user.users]
        return not all(isinstance(index, int) and 0 <= index != axis for index in others)
    if name == "getattr":
        return user.args[1] not in ("ndim", "dtype", "device")
    return None


def _apply(joint: Joint, edit: _Edit, side: str) -> None:
    """Replace a node of the graph; the module it called stays for other nodes."""
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


# --- what lets it pass ------------------------------------------------------------------------------------------------


def _position_wise(joint: Joint, node: fx.Node) -> Callable[[Tensor], Tensor] | None:
    """Return an operation as a function, if it is one that may let a map of features pass.

    A view that flattens may spell out the number of features; ``Flatten`` does the same for any number.
    """
    module, name = joint.module_of(node), operation(node)
    if module is not None:
        return copying.deepcopy(module).cpu() if type(module) in _PASSING and not alteration_of(module) else None
    if name in ("reshape", "view"):
        return nn.Flatten() if len(joint.shapes.get(node, ())) == 1 else None
    if name not in _PASSING or len(node.all_input_nodes) != 1:
        return None
    called: Any = getattr(Tensor, str(node.target)) if node.op == "call_method" else node.target
    return lambda x: called(x, *node.args[1:], **node.kwargs)


def _write_anew(node: fx.Node, run: Callable[[Tensor], Tensor]) -> list[_Edit]:
    """Replace a view by ``Flatten``."""
    is_view = isinstance(run, nn.Flatten) and node.op != "call_module"
    return [_Edit(node, lambda: nn.Flatten(), takes=False)] if is_view else []


def _follow(
    run: Callable[[Tensor], Tensor], shape: Sequence[int], axis: int, before: int = 1, after: int = 1
) -> tuple[int, int, int] | None:
    """Find where a map of features, in dimension ``axis`` of an operation's input, acts on its output.

    Dimensions may have been flattened into that one, which then counts (before, features, after). Returns the
    dimension, and the sizes before and after, on the other side; ``None`` if the operation lets no such map pass. This
    is tested numerically: a random matrix applied to the input must come out as that matrix applied to the output. The
    test uses one feature more than the network has, because an operation that takes the first six of six features would
    also take them of seven.
    """
    features = shape[axis] // (before * after) + 1
    draw = torch.Generator().manual_seed(0)
    sizes = [before * features * after if dim == axis else size for dim, size in enumerate(shape)]
    x = torch.randn(2, *sizes[1:], dtype=torch.float64, generator=draw)
    matrix = torch.randn(features, features, dtype=torch.float64, generator=draw)
    try:
        out, wanted = run(x), run(_map_features(x, matrix, axis, before, after))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    for dim in range(1, out.ndim):
        around = out.shape[dim] // features if len(out) == 2 and out.shape[dim] % features == 0 else 0
        for ahead in (size for size in range(1, around + 1) if around % size == 0):
            mapped = _map_features(out, matrix, dim, ahead, around // ahead)
            if torch.allclose(mapped, wanted, rtol=1e-9, atol=1e-9):
                return dim, ahead, around // ahead
    return None


def _follow_back(run: Callable[[Tensor], Tensor], shape: Shape, axis: int) -> int | None:
    """Find the dimension of an operation's input whose features become those of dimension ``axis`` of its output.

    A shift passes back only through operations that keep constants, so not through pooling that counts padded zeros.
    """
    found = [dim for dim in range(1, len(shape) + 1) if _follow(run, (1, *shape), dim) == (axis, 1, 1)]
    ones = torch.ones(1, *shape, dtype=torch.float64)
    return found[0] if found and torch.allclose(run(ones), ones.new_ones(()), rtol=0, atol=1e-12) else None


def _map_features(x: Tensor, matrix: Tensor, axis: int, before: int, after: int) -> Tensor:
    moved = x.movedim(axis, -1)
    split = moved.reshape(*moved.shape[:-1], before, len(matrix), after)
    return torch.einsum("...bfa,gf->...bga", split, matrix).flatten(-3).movedim(-1, axis)


# --- the layers that take it ------------------------------------------------------------------------------------------


class WithBorder(nn.Module):
    """A layer with a constant added to its output: the effect of a shifted input, which the padding does not have.

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


def _as_matrix(norm: Norm, ndim: int) -> nn.Linear | Conv:
    """Return a BatchNorm, of tensors with ``ndim`` dimensions, as a linear layer or a depthwise 1×1 convolution."""
    scale, shift = scale_and_shift(norm)
    if ndim == 2:
        return linear_layer(scale.diag(), shift)
    return conv_layer(scale.reshape(-1, *[1] * (ndim - 1)), shift, groups=len(scale))


def _reads_features(layer: Layer, flow: Flow) -> bool:
    """Return whether a layer acts on the features that the stitch acts on."""
    ndim = flow.shift.ndim
    if isinstance(layer, nn.Linear):
        return flow.axis == ndim - 1
    return flow.axis == 1 and flow.before == flow.after == 1 and (isinstance(layer, Norm) or ndim == layer.weight.ndim)


def _compose_after(layer: nn.Linear | Conv, flow: Flow, given: Tensor) -> nn.Module:
    """Return the layer that computes ``layer`` after the stitch: ``layer(W·x + s) = K·W·x + layer(s)``.

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


def _compose_before(layer: nn.Linear | Conv, stitch: FeatureMap, given: Tensor) -> nn.Module:
    """Return the layer that computes the stitch after ``layer``: ``W·(K·x + c) + b``; exact at any border."""
    own, weight = exact(layer.weight), stitch.weight
    shift = stitch.bias if layer.bias is None else weight @ exact(layer.bias) + stitch.bias
    if isinstance(layer, nn.Linear):
        return linear_layer((weight @ own).to(given), shift.to(given))
    joined = torch.einsum("po,oc...->pc...", weight, _ungrouped(own, layer.groups))
    return _like(layer, joined, shift, given)


def _like(layer: Conv, weight: Tensor, bias: Tensor | None, given: Tensor) -> Conv:
    """Return a convolution with another kernel, without groups."""
    settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    return conv_layer(weight.to(given), None if bias is None else bias.to(given), **settings)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Return the kernel (out, in / groups, …) as one of all channels (out, in, …), zero between groups."""
    full: Tensor = torch.block_diag(*weight.flatten(1).chunk(groups))  # type: ignore[no-untyped-call]
    return full.reshape(len(weight), -1, *weight.shape[2:])


def _pads_zeros(layer: nn.Linear | Conv) -> bool:
    if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and math.prod(layer.kernel_size) > 1
    return any(layer.padding)

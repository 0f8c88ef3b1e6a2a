"""Operations that act on positions alone, and so let a map of features pass: pooling, flattening, dropout and the like.

Each is linear, and each dimension of its output comes from dimensions of its input; those that it averages over, or
takes a part of, must not be the features'.
"""

import copy as copying
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.core.folding.joint_graph import Flow, Joint, alteration_of
from suture.core.network.segments import operation

_SAME = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_POOLS = {
    **dict.fromkeys((nn.AvgPool1d, nn.AdaptiveAvgPool1d), 1),
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d), 2),
    **dict.fromkeys((nn.AvgPool3d, nn.AdaptiveAvgPool3d), 3),
}
_SAME_NAMES = ("contiguous", "clone", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_POOL_NAMES = {f"{kind}avg_pool{n}d": n for kind in ("", "adaptive_") for n in (1, 2, 3)}


@dataclass(frozen=True)
class _Origin:
    """Which dimensions of its input each dimension of an output comes from, and which it mixes or takes a part of."""

    of: tuple[tuple[int, ...], ...]
    touched: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Passed:
    """Where a map of features acts on the other side of an operation.

    ``flow`` is what flows out (``None`` on the way back), ``instead`` a module that does the same for any number of
    features, where the operation itself spells out their number.
    """

    axis: int
    flow: Flow | None = None
    instead: nn.Module | None = None


def pass_forward(joint: Joint, node: fx.Node, flow: Flow) -> Passed | None:
    """Pass on what flows into an operation; ``None`` if it lets nothing through."""
    origin = _origin(joint, node, flow.shift.ndim)
    if origin is None or origin.of[0] != (0,) or origin.touched & {0, flow.axis}:
        return None
    instead = _flattens(node)
    axis = next(i for i, dims in enumerate(origin.of) if flow.axis in dims)
    dims, sizes = origin.of[axis], flow.shift.shape
    at = dims.index(flow.axis)
    before = math.prod(sizes[dim] for dim in dims[:at])
    after = math.prod(sizes[dim] for dim in dims[at + 1 :])
    shift = instead(flow.shift) if instead else _run(joint, node, flow.shift)
    passed = replace(flow, shift=shift, axis=axis, before=before * flow.before, after=after * flow.after)
    return Passed(axis, passed, instead)


def pass_backward(joint: Joint, node: fx.Node, axis: int) -> Passed | None:
    """Find where a map of features after an operation acts before it; ``None`` if it does not pass unchanged.

    A shift passes back only through what keeps constants: not through pooling that counts zeros of a padding.
    """
    shape = joint.shapes.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    origin = None if shape is None else _origin(joint, node, len(shape) + 1)
    if shape is None or origin is None or origin.of[0] != (0,):
        return None
    wide = [dim for dim in origin.of[axis] if shape[dim - 1] > 1] or list(origin.of[axis][:1])
    if len(wide) != 1 or origin.touched & {0, wide[0]}:
        return None
    instead = _flattens(node)
    if instead is None:
        ones = _run(joint, node, torch.ones(1, *shape, dtype=torch.float64))
        if not torch.allclose(ones, torch.ones_like(ones), rtol=0, atol=1e-12):
            return None
    return Passed(wide[0], None, instead)


def _flattens(node: fx.Node) -> nn.Module | None:
    return nn.Flatten() if operation(node) in ("reshape", "view") and node.op != "call_module" else None


def _run(joint: Joint, node: fx.Node, x: Tensor) -> Tensor:
    module = joint.module_of(node)
    if module is not None:
        out: Tensor = copying.deepcopy(module).cpu()(x)
    elif node.op == "call_method":
        out = getattr(x, str(node.target))(*node.args[1:], **node.kwargs)
    else:
        assert callable(node.target)
        out = node.target(x, *node.args[1:], **node.kwargs)
    return out


def _origin(joint: Joint, node: fx.Node, ndim: int) -> _Origin | None:
    """Say where the dimensions of an operation's output come from; ``None`` if it is none that is known."""
    same = _Origin(tuple((dim,) for dim in range(ndim)))
    module = joint.module_of(node)
    if module is not None:
        if alteration_of(module):
            return None
        if type(module) is nn.Flatten:
            return _flatten_dims(ndim, module.start_dim, module.end_dim)
        if type(module) in _SAME:
            return same
        return _pooled(same, _POOLS.get(type(module)))
    name = operation(node)
    if name in ("reshape", "view"):
        return _flatten_dims(ndim, 1, -1) if len(joint.shapes.get(node, ())) == 1 else None
    if len(node.all_input_nodes) != 1:
        return None
    if name in _SAME_NAMES:
        return same
    if name in _POOL_NAMES:
        return _pooled(same, _POOL_NAMES[name])
    return _REARRANGED[name](ndim, list(node.args[1:]), dict(node.kwargs)) if name in _REARRANGED else None


def _pooled(same: _Origin, dims: int | None) -> _Origin | None:
    ndim = len(same.of)
    return replace(same, touched=frozenset(range(2, ndim))) if dims is not None and ndim == dims + 2 else None


def _flatten_dims(ndim: int, start: int, end: int) -> _Origin:
    start, end = start % ndim, end % ndim
    return _Origin((*((d,) for d in range(start)), tuple(range(start, end + 1)), *((d,) for d in range(end + 1, ndim))))


def _flatten(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    start, end = [*args, named.get("start_dim", 0)][0], [*args[1:], named.get("end_dim", -1)][0]
    return _flatten_dims(ndim, start, end)


def _mean(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    dims = args[0] if args else named.get("dim")
    if dims is None or isinstance(dims, torch.dtype):
        return None
    over = {dim % ndim for dim in (dims if isinstance(dims, list | tuple) else [dims])}
    kept = args[1] if len(args) > 1 else named.get("keepdim", False)
    return _Origin(tuple((dim,) for dim in range(ndim) if kept or dim not in over), frozenset(over))


def _permute(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    dims = named.get("dims") or (args[0] if isinstance(args[0], list | tuple) else args)
    return _Origin(tuple((dim % ndim,) for dim in dims))


def _transpose(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    if len(args) != 2:
        return None
    a, b = (dim % ndim for dim in args)
    swap = {a: b, b: a}
    return _Origin(tuple((swap.get(dim, dim),) for dim in range(ndim)))


def _getitem(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    index = args[0] if isinstance(args[0], tuple) else (args[0],)
    if not all(isinstance(part, int | slice) for part in index):
        return None
    touched = frozenset(dim for dim, part in enumerate(index) if part != slice(None))
    dropped = {dim for dim, part in enumerate(index) if isinstance(part, int)}
    return _Origin(tuple((dim,) for dim in range(ndim) if dim not in dropped), touched)


def _select(ndim: int, args: list[Any], named: dict[str, Any]) -> _Origin | None:
    at = args[0] % ndim
    return _Origin(tuple((dim,) for dim in range(ndim) if dim != at), frozenset({at}))


_REARRANGED = {
    "flatten": _flatten,
    "mean": _mean,
    "permute": _permute,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "getitem": _getitem,
    "select": _select,
}

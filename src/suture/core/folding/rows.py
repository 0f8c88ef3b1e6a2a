"""The affine map of features that a stitch computes, whatever it is made of: read off and checked."""

import copy as copying
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.core.folding.layers import NotMelted
from suture.core.stitches import Shape


@dataclass(frozen=True)
class Rows:
    """``row ↦ weight · row + bias`` of the features in dimension ``axis`` (the batch is 0), in float64."""

    weight: Tensor
    bias: Tensor
    axis: int


def rows_of(stitch: nn.Module, sender: Shape, receiver: Shape) -> Rows:
    """Recover the affine map of features that a stitch computes, whatever it is made of.

    It is read off zero and the unit vectors, each at a position of its own, and compared on random tensors, where it
    must hold to 1e-9. Raises ``NotMelted`` where the stitch is no such map.
    """
    axes = dict.fromkeys((1, len(sender))) if len(sender) == len(receiver) else ()
    for axis in axes:
        if _without(sender, axis) == _without(receiver, axis):
            try:
                does = copying.deepcopy(stitch).cpu().double().eval()
                rows = _read_off(does, sender, axis)
                found = rows is not None and _agrees(does, rows, sender)
            except Exception as error:
                raise NotMelted(f"the stitch cannot be computed in float64 ({error})") from error
            if rows is not None and found:
                return rows
    raise NotMelted(
        "the stitch does not map the features of every position by the same matrix and to the same position, as a "
        "linear layer or a 1×1 convolution does"
    )


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[: axis - 1], *shape[axis:])


def _read_off(stitch: nn.Module, shape: Shape, axis: int) -> Rows | None:
    features = shape[axis - 1]
    places = 1
    for size in _without(shape, axis):
        places *= size
    batch = max(2, -(-(features + 1) // places))
    given = torch.zeros(batch * places, features, dtype=torch.float64)
    given[1 : features + 1] = torch.eye(features, dtype=torch.float64)
    with torch.no_grad():
        out = stitch(given.reshape(batch, *_without(shape, axis), features).movedim(-1, axis))
    if out.ndim != len(shape) + 1 or len(out) != batch or _without(tuple(out.shape[1:]), axis) != _without(shape, axis):
        return None
    rows = out.movedim(axis, -1).reshape(batch * places, -1)
    return Rows((rows[1 : features + 1] - rows[0]).T.contiguous(), rows[0].clone(), axis)


def _agrees(stitch: nn.Module, rows: Rows, shape: Shape) -> bool:
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given = stitch(x)
    wanted = (x.movedim(rows.axis, -1) @ rows.weight.T + rows.bias).movedim(-1, rows.axis)
    return bool((given - wanted).abs().max() <= 1e-9 * (1 + wanted.abs().max()))

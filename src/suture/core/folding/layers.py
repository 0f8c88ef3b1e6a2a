"""Layers that can take an affine map of features, and what passes one on unchanged.

An affine map of features, ``row ↦ W·row + b`` at every position, can be folded into a layer that is affine in those
features: a linear layer, a convolution, a BatchNorm in evaluation mode. All is computed in float64; a new layer has the
type and device of the one that it replaces.
"""

import copy as copying
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.core.folding.joint_graph import Joint, alteration_of
from suture.core.network.graph import operation

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Layer = nn.Linear | Conv | Norm
CONVS: dict[int, type[Conv]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_KNOWN = (nn.Linear, *CONVS.values(), nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class WithBorder(nn.Module):
    """A layer, and a constant added to its output: what a shift of its input gives where the padding has none.

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


@dataclass(frozen=True)
class Flow:
    """A stitch on its way through the suffix: what the receiver met as ``y`` is ``weight · x + shift`` here.

    ``weight`` (out, in) acts on the features in dimension ``axis`` (the batch is 0). Where dimensions were flattened
    into that one, it counts (before, features, after), of which ``before`` and ``after`` are the sizes. ``shift`` is a
    batch of one, of the shape that the receiver meets. All float64.
    """

    weight: Tensor
    shift: Tensor
    axis: int
    before: int = 1
    after: int = 1


def layer_of(joint: Joint, node: fx.Node) -> Layer | None:
    """Return the layer that a node computes, as a module; ``None`` if it is none that can take an affine map."""
    module = joint.module_of(node)
    if module is not None:
        return module if _is_known(module) else None  # type: ignore[return-value]
    if node.op != "call_function":
        return None
    names = _ARGUMENTS.get(operation(node))
    if names is None:
        return None
    if node.target is torch.nn.functional.batch_norm:  # other than torch.batch_norm, which is the operation itself
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    settings = {name: _constant(joint, value) for name, value in given.items() if name != "input"}
    if any(isinstance(value, fx.Node) for value in settings.values()) or settings.get("training"):
        return None
    return _functional(operation(node), settings)


_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    ),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}


def _is_known(module: nn.Module) -> bool:
    """Whether a module computes what torch's own layer does, with nothing hooked on."""
    kind = next((kind for kind in _KNOWN if isinstance(module, kind)), None)
    if kind is None or alteration_of(module):
        return False
    own = type(module)
    same = own.forward is kind.forward and getattr(own, "_conv_forward", 0) is getattr(kind, "_conv_forward", 0)
    return same and (not isinstance(module, Norm) or module.running_mean is not None)


def _constant(joint: Joint, value: Any) -> Any:
    return joint.parts[str(value.target)] if isinstance(value, fx.Node) and value.op == "get_attr" else value


def _functional(name: str, settings: dict[str, Any]) -> Layer | None:
    if name == "batch_norm":
        return None if settings.get("running_mean") is None else _norm(settings)
    weight, bias = settings.pop("weight"), settings.pop("bias", None)
    if name == "linear":
        return linear_layer(weight, bias) if weight.ndim == 2 else None
    plain = {
        key: tuple(value) if isinstance(value, Sequence) and value != str(value) else value
        for key, value in settings.items()
    }
    single = {key: value[0] if isinstance(value, tuple) and len(value) == 1 else value for key, value in plain.items()}
    return conv_layer(weight, bias, **single)


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
    layer = CONVS[weight.ndim - 2](weight.shape[1] * groups, weight.shape[0], **settings)
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


def as_matrix(norm: Norm, ndim: int) -> nn.Linear | Conv:
    """Return a BatchNorm, of tensors with ``ndim`` dimensions, as a linear layer or a depthwise 1×1 convolution."""
    scale, shift = scale_and_shift(norm)
    if ndim == 2:
        return linear_layer(scale.diag(), shift)
    return conv_layer(scale.reshape(-1, *[1] * (ndim - 1)), shift, groups=len(scale))


def reads_features(layer: Layer, flow: Flow) -> bool:
    """Whether a layer acts on the features that the stitch acts on."""
    ndim = flow.shift.ndim
    if isinstance(layer, nn.Linear):
        return flow.axis == ndim - 1
    return flow.axis == 1 and flow.before == flow.after == 1 and (isinstance(layer, Norm) or ndim == layer.weight.ndim)


def compose_after(layer: nn.Linear | Conv, flow: Flow, given: Tensor) -> nn.Module:
    """Return the layer that does what ``layer`` does after the stitch: ``layer(W·x + s) = K·W·x + layer(s)``.

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


def compose_before(layer: nn.Linear | Conv, weight: Tensor, bias: Tensor, given: Tensor) -> nn.Module:
    """Return the layer that does what the stitch does after ``layer``: ``W·(K·x + c) + b``; exact at any border."""
    own = exact(layer.weight)
    shift = bias if layer.bias is None else weight @ exact(layer.bias) + bias
    if isinstance(layer, nn.Linear):
        return linear_layer((weight @ own).to(given), shift.to(given))
    joined = torch.einsum("po,oc...->pc...", weight, _ungrouped(own, layer.groups))
    return _like(layer, joined, shift, given)


def _like(layer: Conv, weight: Tensor, bias: Tensor | None, given: Tensor) -> Conv:
    """Return a convolution with another kernel, given without groups; in those of ``layer`` if it falls into them."""
    kernel, groups = _regrouped(weight, layer.groups)
    settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    return conv_layer(kernel.to(given), None if bias is None else bias.to(given), groups, **settings)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Return the kernel (out, in / groups, …) as one of all channels (out, in, …), zero between groups."""
    out, width = weight.shape[:2]
    full = weight.new_zeros(out, width * groups, *weight.shape[2:])
    for i in range(groups):
        rows, columns = (slice(i * size, (i + 1) * size) for size in (out // groups, width))
        full[rows, columns] = weight[rows]
    return full


def _regrouped(weight: Tensor, groups: int) -> tuple[Tensor, int]:
    """Return the kernel in as many groups, if it is zero between them; else in one."""
    out, inputs = weight.shape[:2]
    if groups == 1 or out % groups or inputs % groups:
        return weight, 1
    blocks = weight.reshape(groups, out // groups, groups, inputs // groups, *weight.shape[2:])
    own = torch.stack([blocks[i, :, i] for i in range(groups)])
    if blocks.count_nonzero() != own.count_nonzero():
        return weight, 1
    return own.reshape(out, inputs // groups, *weight.shape[2:]), groups


def _pads_zeros(layer: nn.Linear | Conv) -> bool:
    if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and math.prod(layer.kernel_size) > 1
    return any(layer.padding)

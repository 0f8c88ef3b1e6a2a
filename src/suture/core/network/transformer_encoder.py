"""How torch's own ``nn.TransformerEncoder`` is traced: as the chain of layers that it is.

Its forward pass asks its input what no tracer can answer, so that ``torch.fx`` would take it whole. Here its layers are
called one after another, as it would call them; what it does beyond that, for nested tensors, is left out, and seen
where the segments are compared with the model.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn

from suture.common.hashing import keyed_as


def holds_encoder(model: nn.Module) -> bool:
    """Whether there is one in the model."""
    return any(is_encoder(module) for module in model.modules())


def is_encoder(module: nn.Module) -> TypeGuard[nn.TransformerEncoder]:
    """Whether a module is torch's encoder, or a kind of it that leaves the forward pass as it is."""
    return type(module).forward is nn.TransformerEncoder.forward and "forward" not in vars(module)


def layer_by_layer(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Call the layers of an encoder as it does, with proxies in place of tensors."""
    causal: Any = is_causal is True
    if isinstance(mask, Tensor):
        causal = looks_back_only(mask, is_causal)
    elif isinstance(mask, fx.Proxy):
        causal = mask.tracer.create_proxy("call_function", looks_back_only, (mask, is_causal), {})
    for layer in encoder.layers:
        src = layer(src, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask)
    return src if encoder.norm is None else encoder.norm(src)


@keyed_as("looks_back_only")
def looks_back_only(mask: Tensor, is_causal: bool | None) -> bool:
    """Whether a mask (T, T) is the one that hides what comes later, as torch's encoder finds it out."""
    return torch.nn.modules.transformer._detect_is_causal_mask(mask, is_causal)

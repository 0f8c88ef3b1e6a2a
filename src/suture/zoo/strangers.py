"""The arguments that a stranger's description of a model may give a library's factory.

A folder's card and the config of a model on the hub are data, and name the arguments of a factory. Some arguments have
a library read a file, unpickle it, or fetch what it is told to: ``checkpoint_path``, ``pretrained_cfg``, ``file``. So
what may be named is listed, and all of it is plain: numbers, words without signs, and rows of these. ``pretrained``
of timm is listed, because a folder has its own weights: nothing is fetched, and it says how images are prepared.
"""

import re
from collections.abc import Mapping
from typing import Any

from suture.common.errors import SourceError

_OF_TIMM = """
    num_classes in_chans img_size patch_size depth depths dim dims embed_dim embed_dims width widths num_heads heads
    mlp_ratio mlp_ratios window_size global_pool pool_size output_stride stem_type stem_width base_width cardinality
    block_args channels layers groups num_features drop_rate drop_path_rate drop_block_rate proj_drop_rate
    attn_drop_rate pos_drop_rate patch_drop_rate head_dropout init_values class_token no_embed_class reg_tokens
    pre_norm final_norm fc_norm qkv_bias qk_norm dynamic_img_size dynamic_img_pad strict_img_size channel_multiplier
    depth_multiplier bn_eps bn_momentum zero_init_last pretrained
"""
_OF_TORCHVISION = """
    num_classes image_size patch_size num_layers num_heads hidden_dim mlp_dim dropout attention_dropout
    stochastic_depth_prob width_mult aux_logits transform_input init_weights zero_init_residual groups
    width_per_group replace_stride_with_dilation progress
"""
ALLOWED = {"timm": frozenset(_OF_TIMM.split()), "torchvision": frozenset(_OF_TORCHVISION.split())}
"""By the library whose factory they are for."""


_OF_TRANSFORMERS = ("out_indices", "out_features")  #: of a backbone, and not for timm
_OF_TORCH = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")  #: others are fetched as kernels


def find_refused(library: str, arguments: Mapping[str, Any]) -> str:
    """Return the first argument that a stranger may not give, as ``key=value``; empty if there is none."""
    allowed = ALLOWED.get(library)
    for key, value in arguments.items():
        if (allowed is not None and key not in allowed) or not _is_plain(value):
            return f"{key}={value!r:.80}"
    return ""


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Raise ``SourceError`` if the config of a model of transformers would have timm read or fetch something."""
    refused = ""
    if config.get("model_type") == "timm_wrapper":
        import timm

        architecture = str(config.get("architecture"))
        known = {*timm.list_models(), *timm.list_pretrained()}
        refused = "" if architecture in known else f"architecture={architecture!r:.80}"
        refused = refused or find_refused("timm", config.get("model_args") or {})
    refused = refused or ("use_pretrained_backbone=True" if config.get("use_pretrained_backbone") else "")
    backbone = {k: v for k, v in (config.get("backbone_kwargs") or {}).items() if k not in _OF_TRANSFORMERS}
    refused = refused or find_refused("timm", backbone)
    if refused:
        raise SourceError(
            f"hf:{name}: its config names {refused}, which may have timm read a file or fetch what it names; take the "
            "model from timm itself, timm:NAME, with its weights after an '@'"
        )
    for key, value in config.items():
        if key.strip("_").removesuffix("_internal").endswith("_implementation") and not _is_torchs(value):
            raise SourceError(
                f"hf:{name}: its config names {key}={value!r:.80}, for which transformers may fetch code and run it; "
                f"take that line out of config.json, or write one of {', '.join(map(str, _OF_TORCH))}"
            )
    for value in config.values():
        if isinstance(value, Mapping):
            check_config(name, value)


def _is_torchs(value: object) -> bool:
    """Return whether an implementation of a layer, or of those of several parts, is one of PyTorch's own."""
    return all(map(_is_torchs, value.values())) if isinstance(value, Mapping) else value in (None, *_OF_TORCH)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return re.fullmatch(r"\w*", value) is not None
    return value is None or isinstance(value, bool | int | float)

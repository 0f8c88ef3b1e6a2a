"""From a model string to a network."""

from pathlib import Path

from torch import Tensor

from suture.network import Network
from suture.zoo.sources import Source, parse_source, resolve


def load_network(
    source: str | Source,
    checkpoint: str | Path | None = None,
    *,
    example: Tensor,
    name: str | None = None,
) -> Network:
    """Make a network of what a model string names, with its weights and its preprocessing.

    ``source`` is ``timm:…``, ``torchvision:…``, ``zoo:…`` or ``path/to/file.py:factory``, see ``zoo.sources``;
    ``checkpoint`` a file of weights (safetensors, or a ``.pt`` that is loaded with ``weights_only``); ``example`` a few
    raw images ``(n, C, H, W)``. Raises ``SourceError``, ``CheckpointError``, and what ``Network`` raises.
    """
    parsed = parse_source(source) if isinstance(source, str) else source
    built = resolve(parsed, checkpoint)
    return Network(
        built.model,
        example=example,
        name=name or parsed.name,
        preprocess=built.preprocess,
        factory=built.factory,
        copy=False,
    )

"""From a model string to a network."""

from pathlib import Path

import timm
from torch import Tensor

from suture.errors import SourceError
from suture.network import Network
from suture.zoo.building import resolve
from suture.zoo.sources import Source, parse_source


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


def source_name(text: str) -> str:
    """A short name for what a model string names: its weights' file, else the model."""
    source = parse_source(text)
    return Path(source.checkpoint).stem if source.checkpoint else source.name


def is_random(text: str) -> bool:
    """Whether a model string names no trained weights; a file's factory may load its own, so it counts as trained."""
    source = parse_source(text)
    pretrained = source.arguments.get("pretrained") or source.arguments.get("weights")
    return source.kind != "file" and source.checkpoint is None and not pretrained


def image_shape(text: str) -> tuple[int, int, int]:
    """The shape (C, H, W) of the images that a model string's model is made for.

    Raises ``SourceError`` for a model of the user's own file, of which nobody else can know.
    """
    source = parse_source(text)
    given = source.arguments
    match source.kind, source.name:
        case "timm", name:
            channels, height, width = timm.get_pretrained_cfg_value(name, "input_size") or (3, 224, 224)
            side = given.get("img_size")
            return given.get("in_chans", channels), side or height, side or width
        case "torchvision", name:
            side = given.get("image_size", 299 if name == "inception_v3" else 224)
            return 3, side, side
        case "zoo", "resnet":
            return given.get("channels", 3), 32, 32
        case "zoo", _:
            return given.get("channels", 1), 8, 8
    raise SourceError(f"{text}: only you know the images that it takes; give their shape, such as --shape 3x32x32")

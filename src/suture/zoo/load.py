"""From a model string to a network."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from suture.common.errors import SourceError
from suture.common.seeds import generator
from suture.core.network.network import Network
from suture.core.saving import read
from suture.core.stitched import Stitched
from suture.core.stitches import Stitch
from suture.zoo.build import Built, asks_for_weights, resolve
from suture.zoo.model_strings import Source, parse_source
from suture.zoo.networks import NETWORKS, images_of


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
    return load_model(source, checkpoint, name=name).network(example)


def load_stitched(
    folder: str | Path,
    sender: Network | None = None,
    receiver: Network | None = None,
    stitch: Stitch | nn.Module | None = None,
) -> Stitched:
    """Load a stitched network that ``save`` wrote, with the two networks that it joins.

    A network that is not given is made anew of its model string, if it came from one with a checkpoint; never of a
    Python file, which would be run. Everything else is as in ``Stitched.load``, which also says what is raised.
    """
    given = dict(zip(("sender", "receiver"), (sender, receiver), strict=True))
    saved = read(folder)
    for role, network in given.items():
        made_of = saved.made_of(role)
        if network is None and made_of is not None and _can_be_made(made_of[0]):
            example = torch.randint(0, 256, (4, *made_of[1]), dtype=torch.uint8, generator=generator("example"))
            given[role] = load_network(made_of[0], example=example, name=saved.description[role]["name"])
    return Stitched.load(folder, given["sender"], given["receiver"], stitch)


def _can_be_made(text: str) -> bool:
    source = parse_source(text)
    return source.kind != "file" and source.checkpoint is not None and not asks_for_weights(source)


@dataclass(frozen=True, eq=False)
class Model:
    """A model with its weights, before it has seen an image and is cut."""

    name: str
    built: Built
    source: str

    def network(self, example: Tensor) -> Network:
        """Cut it, by a few raw images ``(n, C, H, W)``. Raises what ``Network`` raises."""
        network = Network(
            self.built.model,
            example=example,
            name=self.name,
            preprocess=self.built.preprocess,
            factory=self.built.factory,
            stages=self.built.stages,
            copy=False,
        )
        network.source = self.source
        return network


def load_model(source: str | Source, checkpoint: str | Path | None = None, *, name: str | None = None) -> Model:
    """Build and load what a model string names, without images. Raises ``SourceError`` and ``CheckpointError``."""
    parsed = parse_source(source) if isinstance(source, str) else source
    text = parsed.text if checkpoint is None else f"{parsed.text}@{checkpoint}"
    return Model(name or parsed.name, resolve(parsed, checkpoint), text)


def tell_names_apart(texts: list[str]) -> list[str]:
    """Short names for what model strings name (their weights' file, else the model), with letters if they agree."""
    sources = [parse_source(text) for text in texts]
    names = [source.called for source in sources]
    return [f"{name} {chr(ord('A') + i)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def is_random(text: str) -> bool:
    """Return whether a model string names no trained weights.

    A file's factory may load its own, so it counts as trained.
    """
    source = parse_source(text)
    return source.kind != "file" and source.checkpoint is None and not asks_for_weights(source)


def image_shape(text: str) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the images that a model string's model is made for.

    For ``zoo:`` networks with ``stem=7x7`` it is MNIST's 28x28. Raises ``SourceError`` for a model of the user's own
    file and for a multilayer perceptron whose inputs make no square image: of these nobody else can know.
    """
    source = parse_source(text)
    given = source.arguments
    match source.kind, source.name:
        case "timm", name:
            import timm

            channels, height, width = timm.get_pretrained_cfg_value(name, "input_size") or (3, 224, 224)
            side = given.get("img_size")
            height, width = side if isinstance(side, tuple | list) else (side or height, side or width)
            return given.get("in_chans", channels), height, width
        case "torchvision", name:
            side = given.get("image_size", 299 if name == "inception_v3" else 224)
            return 3, side, side
        case "zoo", name if name in NETWORKS:
            shape = images_of(name, given)
            if shape is not None:
                return shape
    raise SourceError(
        f"{text}: only you know the images that it takes; give their shape, such as --shape 3x32x32, "
        "or how many tokens a sequence has, such as --shape 64"
    )

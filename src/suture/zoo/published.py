"""Publications of libraries: models of Hugging Face's hub, and the preprocessing published with weights.

A ``Published`` preprocessing is the library's own code (``create_transform`` of timm, ``weights.transforms()`` of
torchvision, the image processor of transformers), applied to a batch of float images instead of one picture of PIL.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from suture.common.errors import SourceError
from suture.common.hashing import keyed_as
from suture.data.images import check_pictures
from suture.data.preprocess import Preprocess
from suture.zoo.checkpoints import OF_ADAPTERS, check_index
from suture.zoo.strangers import check_config


@keyed_as("Published")
@dataclass(frozen=True)
class Published:
    """The preprocessing of a library for its own weights; ``settings`` are those of its transform, in JSON."""

    library: str
    settings: str

    @classmethod
    def of(cls, library: str, settings: Mapping[str, Any]) -> Self:
        """Return the preprocessing with these settings."""
        return cls(library, json.dumps(settings, sort_keys=True, default=str))

    def __call__(self, images: Tensor) -> Tensor:
        """Map float images ``(N, C, H, W)`` to inputs like those in training; a grey image is repeated."""
        check_pictures(f"the preprocessing of {self.library}", images)
        channels = _channels(json.loads(self.settings)) or 1
        coloured = images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images
        prepared: Tensor = _transform(self.library, self.settings)(coloured)
        return prepared

    def plain(self) -> Preprocess:
        """Return its size, mean and standard deviation: the whole image is resized, nothing is cropped."""
        given = json.loads(self.settings)
        if given.get("do_flip_channel_order"):
            raise SourceError(
                f"the preprocessing of {self.library} reverses the order of channels, which preprocess.* cannot "
                "do; leave preprocess.* out"
            )
        channels = _channels(given)
        if given.get("do_normalize") is False:
            given |= {"image_mean": None, "image_std": None}
        mean, std = (tuple(given.get(key) or given.get(f"image_{key}") or default) for key, default in _UNCHANGED)
        return Preprocess(_side(given), channels, mean, std)


_UNCHANGED = (("mean", (0.0,)), ("std", (1.0,)))


def _channels(given: Mapping[str, Any]) -> int | None:
    """Return how many channels there are means of, if there are several."""
    count = len(given.get("mean") or given.get("image_mean") or ())
    return count if count > 1 else None


def _side(given: Mapping[str, Any]) -> int | None:
    """Return the side of the images that settings lead to."""
    crop = given.get("crop_size") if given.get("do_center_crop") is not False else None
    size = given.get("input_size") or crop or given.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size[-1] if isinstance(size, list) else size


@functools.cache
def _transform(library: str, settings: str) -> Callable[[Tensor], Any]:
    given = json.loads(settings)
    if library == "timm":
        from timm.data.transforms_factory import create_transform

        return create_transform(**given)  # type: ignore[no-any-return]
    if library == "torchvision":
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms._presets import ImageClassification

        return ImageClassification(  # type: ignore[no-any-return]
            **given | {"interpolation": InterpolationMode(given["interpolation"])}
        )
    transformers = import_transformers()
    processor = getattr(transformers, given["image_processor_type"])(**given)
    return lambda images: processor(list(images), return_tensors="pt", do_rescale=False)["pixel_values"]


def of_timm(model: nn.Module, arguments: Mapping[str, Any]) -> Published:
    """Return timm's preprocessing for the pretrained weights of a model."""
    from timm.data.config import resolve_data_config

    config = resolve_data_config(dict(arguments), model=model)  # type: ignore[no-untyped-call]
    if arguments.get("in_chans") == 1:  # timm sums the weights of the three colours, and leaves their means
        config |= {of: (sum(config[of]) / len(config[of]),) for of in ("mean", "std")}
    return Published.of("timm", config)


def of_torchvision(name: str, weights: object) -> Published:
    """Return torchvision's preprocessing for weights of a model."""
    from torchvision.models import get_model_weights

    transforms = get_model_weights(name).verify(weights).transforms()
    keys = ("crop_size", "resize_size", "mean", "std", "interpolation", "antialias")
    settings = {key: getattr(transforms, key) for key in keys}
    one = {key: value[0] for key, value in settings.items() if key.endswith("_size")}
    return Published.of("torchvision", settings | one | {"interpolation": settings["interpolation"].value})


# --- the hub of Hugging Face ------------------------------------------------------------------------------------------


def import_transformers() -> Any:
    """Return transformers. Raises ``SourceError`` if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise SourceError(f"transformers is not installed ({error}); install it: pip install 'suture[hf]'") from error
    return transformers


_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find_place(name: str) -> str:
    """Return where ``hf:NAME`` is: a folder if there is one, else an id on the hub.

    Raises ``SourceError`` for a path without a folder, of which the hub's client would make an id and ask for that.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() and not _HUB_ID.fullmatch(name):
        raise SourceError(
            f"hf:{name}: there is no such folder, and ids on the hub are like 'owner/name'; give the path of a folder, "
            f"from {Path.cwd()} or absolute, or an id"
        )
    return str(folder)


_OF_IMAGES = ("image_size", "num_channels", "vision_config")  #: that the config of a model of images has


def of_transformers(name: str, revision: str | None, needed: bool = True) -> Published | Preprocess:
    """Return the preprocessing that a model on the hub comes with: none, if it reads no images.

    Raises ``SourceError`` if it does, and its image processor is not there or cannot be made, but is ``needed``.
    """
    transformers, at = import_transformers(), {"revision": revision or "main", "trust_remote_code": False}
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name, **at)
    except (OSError, ValueError) as error:
        config = transformers.AutoConfig.from_pretrained(name, **at)
        if needed and any(hasattr(config, word) for word in _OF_IMAGES):
            first = str(error).strip().partition("\n")[0]
            raise SourceError(
                f"hf:{name} reads images, and its preprocessing is not known ({first}); give it: "
                f"hf:{name},preprocess.mean=0.5,preprocess.std=0.5, or preprocess.mean=0.0 for floats in [0, 1]"
            ) from error
        return Preprocess()
    return Published.of("transformers", processor.to_dict() | {"image_processor_type": type(processor).__name__})


def load_from_hub(name: str, revision: str | None = None, pretrained: bool = True, **settings: Any) -> nn.Module:
    """Load a model of transformers from the hub, or from a folder in its layout, with the class that its config names.

    Weights are safetensors, and no code of the hub is run. ``settings`` change the config; ``pretrained=False`` builds
    the model with random weights. Raises ``SourceError`` for an adapter, which says nothing without its base, and for
    a config that would have code fetched; ``CheckpointError`` if an index names files elsewhere.
    """
    transformers = import_transformers()
    at = {"revision": revision or "main", "trust_remote_code": False}
    if transformers.utils.find_adapter_config_file(name, revision=at["revision"]) is not None:
        raise SourceError(f"hf:{name} {OF_ADAPTERS}, and give that folder: hf:FOLDER")
    for index in Path(name).glob("*.safetensors.index.json"):  # of a folder; transformers would follow its paths
        check_index(index)
    check_config(name, transformers.PreTrainedConfig.get_config_dict(name, **at)[0])
    config, unused = transformers.AutoConfig.from_pretrained(name, **at, **settings, return_unused_kwargs=True)
    unused = {key: value for key, value in unused.items() if key not in at}
    if unused:
        raise TypeError(f"the config of {name} has no {', '.join(unused)}")
    kind = getattr(transformers, next(iter(config.architectures or ()), ""), transformers.AutoModel)
    if pretrained:
        model = kind.from_pretrained(name, config=config, use_safetensors=True, **at)
    else:
        dtype = config.dtype or torch.float32
        make = kind.from_config if kind is transformers.AutoModel else kind._from_config
        model = make(config, dtype=dtype)
    made: nn.Module = model.eval()
    return made

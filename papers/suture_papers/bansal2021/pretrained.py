"""ResNet-50s that others trained on ImageNet, for bansal-2B. Nothing is downloaded: their files are the user's.

``SUTURE_RESNET50`` names a folder with the weights and ``SUTURE_IMAGENET`` one with images that ``load_data`` reads (a
train and a validation split, a folder for each class, the classes in the usual order, images of 224 pixels a side).
The paper took its supervised network from PyTorch, SimCLR and SwAV from VISSL's model zoo, and DINO from its authors:

==============  ======================================================================================================
file            where it is published
==============  ======================================================================================================
supervised.pth  torchvision's ``ResNet50_Weights.IMAGENET1K_V1``: download.pytorch.org/models/resnet50-0676ba61.pth
simclr.pth      VISSL's SimCLR ResNet-50 of 1,000 epochs (a ``.torch`` file there)
swav.pth        VISSL's SwAV ResNet-50 of 800 epochs, or the authors':
                dl.fbaipublicfiles.com/deepcluster/swav_800ep_pretrain.pth.tar
dino.pth        dl.fbaipublicfiles.com/dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth
==============  ======================================================================================================

timm has none of the three: its ``fb_ssl`` and ``fb_swsl`` ResNet-50s are semi-supervised and fine-tuned with labels.

All are torchvision's ResNet-50 inside, wherever in the file that is; heads that self-supervision left behind are not
read. A self-supervised network is stitched at its blocks and gets no classifier, so it has no accuracy of its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from suture import Network, Preprocess, SutureError
from suture.common.errors import CheckpointError
from suture.extend import read_tensors

RESNET50, IMAGENET = "SUTURE_RESNET50", "SUTURE_IMAGENET"
SELF_SUPERVISED = ("SimCLR", "SwAV", "DINO")
SUPERVISED = "supervised"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
PREPROCESS = Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
NEEDS = (
    f"ImageNet and ResNet-50s (supervised, simclr, swav, dino: {' or '.join(SUFFIXES)}), in the folders that "
    f"{IMAGENET} and {RESNET50} name"
)


def find_files(environment: Mapping[str, str] = os.environ) -> tuple[str, dict[str, Path]]:
    """Return the folder of ImageNet, and the weights by network. Raises ``SutureError`` with all that is missing."""
    data, folder = environment.get(IMAGENET, ""), environment.get(RESNET50, "")
    lacking = [] if data and Path(data).expanduser().is_dir() else [f"{IMAGENET} names no folder"]
    found: dict[str, Path] = {}
    for name in (SUPERVISED, *SELF_SUPERVISED):
        paths = [Path(folder).expanduser() / f"{name.lower()}{suffix}" for suffix in SUFFIXES] if folder else []
        there = [path for path in paths if path.is_file()]
        if there:
            found[name] = there[0]
        else:
            lacking.append(f"no {name.lower()}.pth in {folder or 'the folder that ' + RESNET50 + ' should name'}")
    if lacking:
        raise SutureError(
            f"bansal-2B needs {NEEDS}; {'; '.join(lacking)}. See suture_papers.bansal2021.pretrained for sources"
        )
    return str(Path(data).expanduser()), found


def load_resnet50(name: str, path: Path, example: Tensor) -> Network:
    """Return a ResNet-50 of torchvision's with the weights of a file; only the supervised one has its classifier.

    Raises ``CheckpointError`` if the file is unsafe, damaged, or has no ResNet-50 in it.
    """
    factory = _build_supervised if name == SUPERVISED else _build_trunk
    return Network(fill(factory(), path), example=example, name=name, preprocess=PREPROCESS, factory=factory)


def _build_supervised() -> nn.Module:
    from torchvision.models import resnet50

    made: nn.Module = resnet50()
    return made


def _build_trunk() -> nn.Module:
    model = _build_supervised()
    model.fc = nn.Identity()
    return model


def fill(model: nn.Module, path: Path) -> nn.Module:
    """Give a residual network the weights under its own names that lie anywhere in a file, all of them, in place.

    Counters of batches may be absent. Raises ``CheckpointError`` if the network is not in the file, or more than
    once, or not all of it.
    """
    wanted = model.state_dict()
    found = dict(_flatten(read_tensors(path)))
    starts = [key.removesuffix("conv1.weight") for key in found if key.endswith("conv1.weight")]
    starts = [start for start in starts if found[f"{start}conv1.weight"].shape == wanted["conv1.weight"].shape]
    if len(starts) != 1:
        raise CheckpointError(f"{path} has {len(starts)} residual networks in it, by their first layers; give one")
    given = {name: found[starts[0] + name] for name in wanted if starts[0] + name in found}
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} tensors of {type(model).__name__}, first '{missing[0]}'")
    shapes = [name for name in given if given[name].shape != wanted[name].shape]
    if shapes:
        raise CheckpointError(f"'{shapes[0]}' in {path} has another shape than in {type(model).__name__}")
    with torch.no_grad():
        model.load_state_dict(wanted | given)
    return model


def _flatten(content: object, under: str = "") -> "list[tuple[str, Tensor]]":
    """Return all tensors of nested dictionaries, by their keys joined with dots."""
    if isinstance(content, Tensor):
        return [(under, content)]
    items = content.items() if isinstance(content, dict) else ()
    return [pair for key, value in items for pair in _flatten(value, f"{under}.{key}" if under else str(key))]

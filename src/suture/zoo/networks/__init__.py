"""The networks of the project and of the papers, at any size.

Each is a function that takes whole numbers and gives an ``nn.Module``, which maps floats ``(N, channels, H, W)`` to
logits ``(N, classes)``; its weights are random, from torch's global generator. Modules have the names that a reader
expects (``stage2.relu``, ``layer2.0``, ``blocks.5``), and cuts are named by them. A bad argument is a ``NetworkError``.
"""

from suture.zoo.networks.plain import cnn, convnet, mlp, myrtle, vgg19
from suture.zoo.networks.registry import NETWORKS, NORMALISATIONS, images_of, preprocess_of
from suture.zoo.networks.resnet import resnet, resnet50, resnet164
from suture.zoo.networks.vit import vit

__all__ = [
    "NETWORKS",
    "NORMALISATIONS",
    "cnn",
    "convnet",
    "images_of",
    "mlp",
    "myrtle",
    "preprocess_of",
    "resnet",
    "resnet50",
    "resnet164",
    "vgg19",
    "vit",
]

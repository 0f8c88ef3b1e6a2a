"""What a trained network can do, for its card: accuracy on test data, overall and for each class."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from suture.common.errors import DataError
from suture.common.seeds import undisturbed
from suture.data import Samples
from suture.data.preprocess import Preprocessing, as_given
from suture.measurement.scores.scores import Accuracy, estimate

_CHUNK = 256


def score_network(model: nn.Module, preprocess: Preprocessing, samples: Samples, device: str = "cpu") -> dict[str, Any]:
    """Accuracy on samples, a fraction with its 95 % interval, overall and by class name; plain values.

    The model is one in evaluation mode. Raises ``DataError`` where it has fewer outputs than the samples have classes.
    """
    given = compute_logits(model, preprocess, samples, device)
    if given.shape[1] < len(samples.classes):
        raise DataError(
            f"the network has {given.shape[1]} outputs and {samples.name!r} {len(samples.classes)} classes; "
            f"build it with classes={len(samples.classes)}"
        )
    right = Accuracy().per_sample(given, samples.labels)
    found: dict[str, Any] = {
        "data": {"name": samples.name, "fingerprint": samples.fingerprint, "samples": len(samples)},
        "accuracy": asdict(estimate(Accuracy(), right, seed=0)),
        "classes": {},
    }
    for label, name in enumerate(samples.classes):
        chosen = right[samples.labels == label]
        if len(chosen):
            found["classes"][name] = asdict(estimate(Accuracy(), chosen, seed=0))
    return found


def compute_logits(model: nn.Module, preprocess: Preprocessing, samples: Samples, device: str = "cpu") -> Tensor:
    """The outputs (n, classes), on the CPU, of a model in evaluation mode."""
    model = model.to(device)
    with undisturbed(), torch.no_grad():
        parts = [
            model(preprocess(as_given(images.to(device)))).float().cpu()
            for images in torch.split(samples.images, _CHUNK)
        ]
    model.cpu()
    return torch.cat(parts)

"""Training the project's own networks, by fixed recipes.

Reproducible: the same model, samples, recipe and seed give the same weights, bit for bit, on one kind of machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.data import Samples
from suture.errors import FitError
from suture.preprocess import Preprocess, Preprocessing, as_floats
from suture.recipes import SGD, OneCycle, Optimiser, Schedule, set_rate
from suture.seeds import derive_seed, generator, one_thread


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, with cross-entropy.

    ``crop`` is the padding in pixels of random crops, ``flip`` whether images are mirrored at random; both act on the
    raw images of a batch. Labels are used as they are.
    """

    epochs: int = 15
    batch: int = 128
    optimiser: Optimiser = SGD(lr=0.1, nesterov=True, weight_decay=5e-4)
    schedule: Schedule = OneCycle()
    crop: int = 0
    flip: bool = False


DIGITS = Recipe(epochs=15, batch=64)
"""For ``zoo:convnet`` on the digits."""

CIFAR_SMALL = Recipe(
    epochs=6,
    optimiser=SGD(lr=0.4, nesterov=True, weight_decay=5e-4),
    schedule=OneCycle(0.3),
    crop=4,
    flip=True,
)
"""For small residual networks on CIFAR-10: a few epochs, one cycle."""


def train(
    build: Callable[[], nn.Module],
    samples: Samples,
    recipe: Recipe,
    seed: int,
    *,
    preprocess: Preprocessing | None = None,
    told: Callable[[int, float], None] = lambda epoch, loss: None,
) -> nn.Module:
    """Build a network and train it on the samples, from a seed; in evaluation mode.

    ``told`` is called after each epoch with its number (from 1) and mean loss in nats. Raises ``FitError`` where the
    loss is not finite.
    """
    prepare = preprocess if preprocess is not None else Preprocess()
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("network", seed))
        model = build().train()
        _descend(model, samples, recipe, seed, prepare, told)
    return model.eval()


def _descend(
    model: nn.Module,
    samples: Samples,
    recipe: Recipe,
    seed: int,
    prepare: Preprocessing,
    told: Callable[[int, float], None],
) -> None:
    batch = min(recipe.batch, len(samples))
    per_epoch = len(samples) // batch
    optimiser = recipe.optimiser.over(model.parameters())
    random = generator("training", seed)
    for epoch in range(recipe.epochs):
        order = torch.randperm(len(samples), generator=random)
        total = 0.0
        for i in range(per_epoch):
            set_rate(optimiser, recipe.optimiser, recipe.schedule, epoch * per_epoch + i, recipe.epochs * per_epoch)
            chosen = order[i * batch : (i + 1) * batch]
            images = prepare(as_floats(augment(samples.images[chosen], recipe, random)))
            loss = nn.functional.cross_entropy(model(images), samples.labels[chosen])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
            total += float(loss.detach())
        if not torch.tensor(total).isfinite():
            raise FitError(
                f"training diverged in epoch {epoch + 1}; try a smaller learning rate than {recipe.optimiser.lr}"
            )
        told(epoch + 1, total / per_epoch)


def augment(images: Tensor, recipe: Recipe, random: torch.Generator) -> Tensor:
    """Crop and mirror each image ``(n, C, H, W)`` of a batch at random, as the recipe asks."""
    if recipe.crop:
        images = _cropped(images, recipe.crop, random)
    if recipe.flip:
        mirrored = torch.rand(len(images), generator=random) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images


def _cropped(images: Tensor, padding: int, random: torch.Generator) -> Tensor:
    n, _, height, width = images.shape
    padded = nn.functional.pad(images, (padding,) * 4)
    top = torch.randint(2 * padding + 1, (n, 1), generator=random) + torch.arange(height)
    left = torch.randint(2 * padding + 1, (n, 1), generator=random) + torch.arange(width)
    rows, columns = top[:, :, None], left[:, None, :]
    return padded[torch.arange(n)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)

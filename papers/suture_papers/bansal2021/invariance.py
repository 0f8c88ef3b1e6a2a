"""Two changes of a representation that bansal2021 argues about in section 3: useless coordinates, and moved pixels.

*Useless coordinates.* ``COORDINATES`` Gaussian numbers are put behind the activations of each image, as further
channels of a map (what is left of the last channel is 0). They are drawn from a seed that is a hash of the image, so
they say nothing about it that anything could learn, are independent from image to image, and yet are the same whenever
that image is seen. A stitch can leave them out whatever their size; an index cannot, and how much it cares depends on
their size, which the paper leaves open. Here they have ``WEIGHT`` times the variance of the whole representation: at
full width, on the 512 numbers before the last layer, each is then about twice as spread out as those are; on maps, of
tens of thousands of numbers that vary together, anything much smaller would be lost among them.

*Moved pixels.* One permutation of the positions of a map, the same for all images and channels. It is an orthogonal map
of the flattened activations, under which CKA does not change, and nothing that a 1×1 convolution could undo.
"""

import hashlib
from typing import Literal, cast

import torch
from torch import Tensor, nn

from suture import Network, Samples
from suture.extend import generator, keyed_as

COORDINATES = 1000  #: as many as the paper has
WEIGHT = 10.0  #: their variance, all together, in units of the representation's
IMAGES = 256  #: that the representation's variance is taken from
CHANGED = "changed"  #: the cut behind the change

Change = Literal["Gaussian coordinates", "moved pixels"]
CHANGES: tuple[Change, ...] = ("Gaussian coordinates", "moved pixels")


@keyed_as("Appended")
class Appended(nn.Module):
    """A prefix whose maps ``(n, C, H, W)`` or vectors ``(n, D)`` have Gaussian coordinates behind them."""

    def __init__(self, prefix: nn.Module, spread: float) -> None:
        super().__init__()
        self.prefix, self.spread = prefix, spread

    def forward(self, images: Tensor) -> Tensor:
        """Map images, floats in [0, 1] made of whole numbers to 255, to the longer representation."""
        kept: Tensor = self.prefix(images)
        noise = self.spread * torch.stack([draw_gaussian(image) for image in images]).to(kept)
        positions = kept[0, 0].numel()
        noise = nn.functional.pad(noise, (0, -COORDINATES % positions))
        return torch.cat([kept, noise.view(len(kept), -1, *kept.shape[2:])], dim=1)


@keyed_as("Moved")
class Moved(nn.Module):
    """A prefix whose maps ``(n, C, H, W)`` have their pixels in another order, that of one permutation."""

    def __init__(self, prefix: nn.Module, positions: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.order: Tensor
        self.register_buffer("order", torch.randperm(positions, generator=generator("moved pixels", positions)))

    def forward(self, images: Tensor) -> Tensor:
        """Map images to the moved representation."""
        kept: Tensor = self.prefix(images)
        return kept.flatten(2)[:, :, self.order].view_as(kept)


@keyed_as("Ending")
class Ending(nn.Module):
    """The end of a sender that is only ever cut before it: the mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, C, …)`` to ``(n, C)``."""
        return x.flatten(2).mean(2) if x.ndim > 2 else x


def draw_gaussian(image: Tensor) -> Tensor:
    """Draw ``COORDINATES`` independent standard normal numbers from a hash of the image."""
    content = (255 * image).round().to(torch.uint8).contiguous().cpu().numpy().tobytes()
    seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
    return torch.randn(COORDINATES, generator=torch.Generator().manual_seed(seed))


def apply_change(network: Network, cut: str, change: Change, samples: Samples) -> Network:
    """Return the network up to a cut with one of the changes behind it, at the cut ``CHANGED``; ignore its outputs.

    ``samples`` are images as it takes them; the first ``IMAGES`` say how much the representation varies.
    """
    prefix, place = network.upto(cut), network.cuts.find(cut)
    ahead: nn.Module
    if change == "moved pixels":
        ahead = Moved(prefix, torch.Size(place.shape[1:]).numel())
    else:
        with torch.no_grad():
            kept = cast(Tensor, prefix(samples.images[:IMAGES].to(network.device)))
        total = float(kept.double().var(0).sum())
        ahead = Appended(prefix, (WEIGHT * total / COORDINATES) ** 0.5)
    model = nn.Sequential()
    model.add_module(CHANGED, ahead)
    model.add_module("ending", Ending())
    name = f"{network.name} with {change}"
    return Network(model, example=samples.images[:3], name=name, stages=[CHANGED, "ending"], copy=False)

"""Models that the tests of the definition share: the zoos' architectures made small, and hand-made ones with traps.

Their weights and BatchNorm statistics are random and far from their initial values, so that an operation left out, done
twice or done in another order shows in the output.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache

import timm
import torch
import torchvision
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn
from torchvision.models import vgg
from torchvision.models.vision_transformer import VisionTransformer

from suture import Network, Seam, Trial


def trial_of(*, sender: object, receiver: Network, sender_cut: str, receiver_cut: str, **settings: object) -> Trial:
    """A trial of a seam whose parts are given one by one."""
    return Trial(Seam(sender, receiver, sender_cut, receiver_cut), **settings)


def with_seam(trial: Trial, **changes: object) -> Trial:
    """A trial with parts of its seam, or other settings of it, changed."""
    own = {field.name: changes.pop(field.name) for field in fields(Seam) if field.name in changes}
    return replace(trial, seam=replace(trial.seam, **own), **changes)


def scrambled(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give the model weights as training might: no statistic, scale or shift keeps its initial value."""
    random = torch.Generator().manual_seed(seed)

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=random) * (high - low) + low)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or (parameter == parameter.flatten()[0]).all():
                uniform(parameter, *((-0.3, 0.3) if name.endswith("bias") else (0.5, 1.5)))
            else:
                spread = float(parameter.std())
                uniform(parameter, -1.7 * spread, 1.7 * spread)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                uniform(buffer, -0.3, 0.3)
            elif name.endswith("running_var"):
                uniform(buffer, 0.5, 1.5)
    return model


def images(n: int, side: int, channels: int = 3, seed: int = 1) -> Tensor:
    """Random images in [0, 1]."""
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(seed))


def _timm(name: str, **arguments: object) -> nn.Module:
    return timm.create_model(name, pretrained=False, num_classes=10, **arguments)


def plain() -> nn.Sequential:
    """A Sequential without names, in place where it can be."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.Hardswish(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.5, inplace=True),
        nn.Linear(8 * 14 * 14, 10),
    )


ZOO: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), 64),
    "resnet50": (lambda: torchvision.models.resnet50(num_classes=10, width_per_group=16), 32),
    "vgg19_bn": (lambda: _narrow_vgg(), 32),
    "vit_b_16": (lambda: VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=10), 32),
    "vit_tiny": (lambda: _timm("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=4), 32),
    "convnext_tiny": (lambda: _timm("convnext_tiny", dims=(24, 48, 96, 192)), 32),
    "mixer": (lambda: MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=4, embed_dim=64), 32),
    "mobilenetv3_small": (lambda: _timm("mobilenetv3_small_100"), 32),
    "plain": (plain, 32),
}
"""How each is made, and the side of its images in pixels."""


def _narrow_vgg() -> nn.Module:
    """vgg19_bn with an eighth of its channels, and a head of 64 units where the published one has 4,096."""
    widths = [width if width == "M" else width // 8 for width in vgg.cfgs["E"]]
    model = vgg.VGG(vgg.make_layers(widths, batch_norm=True))
    head = [nn.Linear(64 * 49, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(True), nn.Dropout()]
    model.classifier = nn.Sequential(*head, nn.Linear(64, 10))
    return model


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A scrambled model in evaluation mode, the same from the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return scrambled(make(), seed).eval()


@cache
def zoo_model(name: str) -> nn.Module:
    """A model of the zoo in evaluation mode."""
    return seeded(ZOO[name][0])


@cache
def zoo_network(name: str) -> Network:
    """The network made of it."""
    return Network(zoo_model(name), example=images(2, ZOO[name][1], seed=5), name=name)


class Small(nn.Module):
    """A convolution, BatchNorm, a residual branch, and a head; 8×8 images of 3 channels, 5 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.branch = nn.Conv2d(4, 4, 1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.conv(x)))
        h = h + self.branch(h)
        return self.head(self.drop(h.mean((2, 3))))


def small(seed: int = 0) -> nn.Module:
    """A scrambled ``Small`` in evaluation mode."""
    return seeded(Small, seed)


class Forward(nn.Module):
    """A convolution, a ReLU that may work in place, a second convolution and a head, put together by a function."""

    def __init__(self, forward: Callable[["Forward", Tensor], Tensor], inplace: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=inplace)
        self.next = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)

    def end(self, h: Tensor) -> Tensor:
        """The head over the mean of the maps."""
        return self.head(h.mean((2, 3)))


def made_of(forward: Callable[[Forward, Tensor], Tensor], inplace: bool = False) -> nn.Module:
    """A scrambled ``Forward`` in evaluation mode."""
    return seeded(lambda: Forward(forward, inplace))


def split_everywhere(model: nn.Module, network: Network, x: Tensor) -> None:
    """Assert the law of composition at every cut, bit for bit, and that nothing that passes is touched."""
    given = x.clone()
    with torch.no_grad():
        whole = model(network.preprocess(x).clone())
        assert torch.equal(network.whole()(x), whole)
        assert torch.equal(network(x), whole)
        for cut in network.cuts:
            passed = network.upto(cut)(x)
            kept = passed.clone()
            assert passed.shape == (len(x), *cut.shape), cut.name
            assert torch.equal(network.after(cut)(passed, network.inputs_after(cut, x)), whole), (
                f"{cut.name} at batch {len(x)}"
            )
            assert torch.equal(passed, kept), f"the suffix wrote to the tensor at {cut.name}"
    assert torch.equal(x, given), "the images were written to"


VOCABULARY, WIDTH, LENGTH = 11, 6, 8  #: of ``Text``


class Text(nn.Module):
    """Every token sees the mean of those before it; features are turned by ``q`` behind ``body``, and back."""

    def __init__(self, q: Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        embed, mix, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        if q is not None:
            with torch.no_grad():
                mix.weight.copy_(q @ mix.weight)
                mix.bias.copy_(q @ mix.bias)
                head.weight.copy_(head.weight @ q.T)
        self.embed, self.body, self.head = embed, mix, head

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.body(x + x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]))

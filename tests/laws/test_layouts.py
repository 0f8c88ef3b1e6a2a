"""A stitch joins features, wherever a network keeps them: ``(C, L)`` of 1-D convolutions, ``(H, W, D)`` as in Swin.

Evidence. A network whose hidden features are listed in another order is the same function, and a permutation of its
features, or any linear map of them, undoes that exactly; a map of positions does not. And a 1-D convolution is a 2-D
one over maps of height 1, which PyTorch computes by other code: whatever is measured of the one holds for the other.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from loops import each
from suture import Network, load_data, stitch
from suture.core.stitches import Conv, Linear, Permutation, stitch_for
from suture.fits import LeastSquares

POSITIONS, CLASSES, FEATURES = 12, 3, 6


class Last(nn.Module):
    """Maps with their features last, as in Swin: a map of features at every position, twice, around a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(1, FEATURES), nn.LayerNorm(FEATURES)
        self.second, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.permute(0, 2, 3, 1)))
        x = torch.relu(self.second(self.norm(x)))
        return self.head(x.mean((1, 2)))


def one_dimensional(two: bool = False) -> nn.Sequential:
    """1-D convolutions, or the same as 2-D ones over maps of height 1."""
    torch.manual_seed(1)
    convs = [nn.Conv1d(1, FEATURES, 5, padding=2), nn.Conv1d(FEATURES, FEATURES, 5, padding=2)]
    if two:
        convs = [_flat(conv) for conv in convs]
    pool = nn.AdaptiveMaxPool2d(1) if two else nn.AdaptiveMaxPool1d(1)
    return nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), pool, nn.Flatten(), nn.Linear(FEATURES, CLASSES))


def _flat(conv: nn.Conv1d) -> nn.Conv2d:
    flat = nn.Conv2d(conv.in_channels, conv.out_channels, (1, 5), padding=(0, 2))
    flat.load_state_dict({"weight": conv.weight[:, :, None], "bias": conv.bias})
    return flat


def reordered(model: nn.Module, first: str, second: str, norm: str | None = None) -> nn.Module:
    """The same function with the features that ``first`` gives and ``second`` reads in another order."""
    model = copy.deepcopy(model)
    order = torch.randperm(FEATURES, generator=torch.Generator().manual_seed(3))
    giving, reading = model.get_submodule(first), model.get_submodule(second)
    for layer in (giving, *([model.get_submodule(norm)] if norm else [])):
        layer.load_state_dict({name: tensor[order] for name, tensor in layer.state_dict().items()})
    reading.load_state_dict({"weight": reading.weight[:, order], "bias": reading.bias})
    return model


def one_channel(x: Tensor) -> Tensor:
    """Images of one channel and height 1 as sequences."""
    return x[:, :, 0]


def waves() -> object:
    """Sequences of three frequencies, as images of height 1."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % CLASSES
    phase, noise = torch.rand(240, 1, generator=random), torch.randn(240, POSITIONS, generator=random)
    x = 0.5 + 0.3 * torch.sin((labels[:, None] + 1) * torch.linspace(0, 6, POSITIONS) + 6 * phase) + 0.05 * noise
    x = x.clamp(0, 1)[:, None, None]
    return load_data(((x[:160], labels[:160]), (x[160:], labels[160:])), name="waves")


def network(model: nn.Module, name: str, shape: tuple[int, ...] = (1, 1, POSITIONS), **given: object) -> Network:
    torch.manual_seed(0)
    return Network(model, example=torch.rand(3, *shape), name=name, **given)


def both(kind: str) -> tuple[Network, Network, str]:
    """A network, itself with features in another order, and the cut at which they differ."""
    if kind == "features last":
        torch.manual_seed(1)
        model = Last()
        given, cut, parts = {"preprocess": lambda x: x}, "tanh", ("first", "second", "norm")
    else:
        model = one_dimensional(kind == "Conv2d")
        given = {"preprocess": one_channel if kind != "Conv2d" else lambda x: x}
        cut, parts = "1", ("0", "2")
        if kind == "stages":
            given["stages"] = list("0123456")
    return network(model, "A", **given), network(reordered(model, *parts), "B", **given), cut


@each("kind", ["Conv1d", "stages", "features last"])
@each("family", [None, Permutation()], ids=["default", "permutation"])
def test_features_in_another_order_are_found_again(kind, family):
    a, b, cut = both(kind)
    found = stitch(a, b, at=cut, data=waves(), stitch=family, fit=LeastSquares(), controls=())
    assert found.representation_error < 1e-6
    assert found.scores["accuracy"].value == found.receiver.accuracy.value


def test_sequences_are_measured_as_maps_of_height_1():
    one, two = (both(kind) for kind in ("Conv1d", "Conv2d"))
    assert [cut.shape for cut in one[0].cuts] == [cut.shape for cut in two[0].cuts]
    for place in (cut.name for cut in one[0].cuts):
        a, b = (stitch(*pair[:2], at=place, data=waves(), fit=LeastSquares(), controls=()) for pair in (one, two))
        assert a.penalty.value == b.penalty.value
        assert a.representation_error == pytest.approx(b.representation_error, abs=1e-6)


@each("kind", ["Conv1d", "stages", "features last"])
def test_a_stored_activation_gives_the_models_own_bits(kind):
    a, _, _ = both(kind)
    x = torch.rand(5, 1, 1, POSITIONS)
    for cut in a.cuts:
        passed = a.upto(cut)(x)
        assert passed.shape[1:] == cut.shape
        assert torch.equal(a.after(cut)(passed), a(x)), cut.name
        for layout in (torch.contiguous_format, *([torch.channels_last] if passed.ndim == 4 else [])):
            stored = passed.clone(memory_format=layout)
            assert torch.equal(a.after(cut)(stored), a(x)), cut.name


def test_the_export_backend_sees_layouts_too():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = one_dimensional()

        def forward(self, x: Tensor) -> Tensor:
            if x.ndim != 3:  # torch.fx cannot follow it
                raise ValueError("sequences only")
            x = x + 0 if x.shape[1] == 1 else x
            return self.layers(x) if x.shape[-1] > 1 else x

    a = network(Branching(), "A", preprocess=one_channel)
    assert a.backend == "torch.export"
    assert a.cuts.find("layers.1").shape == (FEATURES, 1, POSITIONS)


def test_what_the_shape_says_already_is_left_as_it_is():
    pytest.importorskip("timm")
    import timm

    torch.manual_seed(0)
    tokens = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=4)
    a = network(tokens, "ViT", (3, 32, 32))
    assert a.cuts.find("patch_embed").shape == (4, 192)
    assert a.cuts.find("patch_embed.flatten").shape == (192, 1, 4), "features still come first"
    assert a.cuts.find("blocks.0").shape == (5, 192)
    mixer = network(timm.create_model("mixer_s32_224", img_size=64, num_classes=4), "Mixer", (3, 64, 64))
    assert mixer.cuts.find("blocks.0").shape == (4, 512), "it mixes both dimensions"


def test_swin_has_maps():
    pytest.importorskip("timm")
    import timm

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12, "num_heads": (2, 2), "depths": (1, 1)}
    a = network(timm.create_model("swin_tiny_patch4_window7_224", num_classes=4, **sizes), "Swin", (3, 32, 32))
    shapes = {cut.name: cut.shape for cut in a.cuts}
    assert shapes["layers.0"] == (12, 16, 16)
    assert shapes["layers.1"] == (24, 8, 8)
    assert isinstance(stitch_for(shapes["layers.0"], shapes["layers.0"]), Conv)


def test_a_volume_is_no_cut():
    model = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))

    def deep(x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, 4, -1, -1)

    a = network(model, "volumes", (1, 8, 8), preprocess=deep)
    assert [cut.name for cut in a.cuts] == ["3"]
    assert "volume" in a.cuts.dropped["1"]


def test_vectors_and_tokens_keep_their_stitch():
    assert isinstance(stitch_for((7, 16), (7, 8)), Linear)
    assert isinstance(stitch_for((16,), (8,)), Linear)

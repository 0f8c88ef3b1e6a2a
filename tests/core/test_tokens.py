"""Which tokens are a prefix and how the others lie is found in every kind of network, or said, or honestly unknown.

Evidence: the settings with which the networks were built, and networks whose tokens are put together by hand.
"""

import copy
import pickle
import warnings

import pytest
import torch
import transformers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionTransformer

from loops import each
from models import images, seeded
from suture import Network, load_stitched, stitch
from suture.common.errors import NetworkError
from suture.core.network.layouts import TokenShape
from suture.core.stitches import FullLinear, Linear, MapsToTokens, TokensToMaps, TokensToTokens, stitch_for
from suture.data.noise import ClusteredNoise
from suture.fits import Converged, LeastSquares
from suture.fits.least_squares import Narrower
from trained import few_digits

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
CONFIG = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CONFIG |= {"image_size": 16, "patch_size": 4}


class Put(nn.Module):
    """Patches of four pixels, and what else is put among their tokens, in many ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed, self.more, self.patch = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 2, 8)), nn.Linear(48, 8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("order", torch.arange(8).flip(0))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.more)

    def tokens(self, x: Tensor) -> Tensor:
        if self.how == "rearranged":
            high, wide = x.shape[2] // 4, x.shape[3] // 4
            x = x.unflatten(3, (wide, 4)).unflatten(2, (high, 4)).permute(0, 2, 4, 3, 5, 1)
            return self.patch(x.flatten(3).flatten(1, 2))
        maps = self.embed(x)
        return (maps.transpose(2, 3) if self.how == "by columns" else maps).flatten(2).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        more = self.more.expand(len(x), -1, -1)
        if self.how == "at the end":
            x = torch.cat([x, more], 1)
        elif self.how == "dropped":
            x = self.mix(torch.cat([more, x], 1))[:, 2:] * 2
        elif self.how == "reordered":
            x = torch.cat([more, x[:, self.order]], 1)
        elif self.how == "rolled":
            x = torch.cat([more, x], 1).roll(-2, 1)
        elif self.how == "two grids":
            x = torch.cat([more, x, 2 * x], 1)
        elif self.how == "split":
            first, x = self.mix(torch.cat([more, x], 1)).split([2, x.shape[1]], 1)
            x = torch.cat([first, more, x.relu()], 1)
        return self.head(self.mix(x.relu()).relu().mean(1))


def of_transformers(name: str, **more: int) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**CONFIG, **more)
    return getattr(transformers, f"{name}ForImageClassification")(config)


#: How a network is made, for which height and width, and of each number of tokens the prefix and the grid.
PLANTED = {
    "timm": (lambda: VisionTransformer(**SMALL), (16, 16), {16: (0, (4, 4)), 17: (1, (4, 4))}),
    "registers": (lambda: VisionTransformer(**SMALL, reg_tokens=4), (16, 16), {16: (0, (4, 4)), 21: (5, (4, 4))}),
    "no class token": (
        lambda: VisionTransformer(**SMALL, class_token=False, global_pool="avg"),
        (16, 16),
        {16: (0, (4, 4))},
    ),
    "distilled": (lambda: VisionTransformerDistilled(**SMALL), (16, 16), {16: (0, (4, 4)), 18: (2, (4, 4))}),
    "no square": (
        lambda: VisionTransformer(**SMALL | {"img_size": (32, 72)}),
        (32, 72),
        {144: (0, (8, 18)), 145: (1, (8, 18))},
    ),
    "torchvision": (
        lambda: TorchvisionTransformer(16, 4, 1, 2, 16, 16, num_classes=3),
        (16, 16),
        {16: (0, (4, 4)), 17: (1, (4, 4))},
    ),
    "transformers": (lambda: of_transformers("ViT"), (16, 16), {16: (0, (4, 4)), 17: (1, (4, 4))}),
    "transformers, registers": (
        lambda: of_transformers("Dinov2WithRegisters", num_register_tokens=4),
        (16, 16),
        {16: (0, (4, 4)), 17: (1, (4, 4)), 21: (5, (4, 4))},
    ),
    "rearranged": (lambda: Put("rearranged"), (8, 16), {8: (0, (2, 4))}),
    "dropped": (lambda: Put("dropped"), (8, 16), {8: (0, (2, 4)), 10: (2, (2, 4))}),
    "split": (lambda: Put("split"), (8, 16), {8: (0, (2, 4)), 10: (2, (2, 4)), 12: (4, (2, 4))}),
    "at the end": (lambda: Put("at the end"), (8, 16), {8: (0, (2, 4)), 10: (0, None)}),
    "by columns": (lambda: Put("by columns"), (8, 16), {8: (0, None)}),
    "reordered": (lambda: Put("reordered"), (8, 16), {8: (0, None), 10: None}),  # 10 may be 1 + 3 × 3: a guess
    "rolled": (lambda: Put("rolled"), (8, 16), {8: (0, (2, 4)), 10: (0, None)}),
    "two grids": (lambda: Put("two grids"), (8, 16), {8: (0, (2, 4)), 18: (0, None)}),
}


def network(model: nn.Module, size: tuple[int, int] = (16, 16), **settings: object) -> Network:
    return Network(model, example=images(3, max(size))[..., : size[0], : size[1]], name="A", **settings)


def layouts(made: Network) -> dict[int, object]:
    shapes = [cut.shape for cut in made.cuts if len(cut.shape) == 2]
    return {shape[0]: None if shape.is_square else (shape.prefix, shape.grid) for shape in shapes}


@each("name", PLANTED, few=4)
def test_the_layout_of_tokens_is_found(name):
    model, size, wanted = PLANTED[name]
    made = network(seeded(model, 0), size)
    assert layouts(made) == wanted
    assert all(type(cut.shape) is tuple for cut in made.cuts if len(cut.shape) != 2)


def test_it_is_found_along_stages_and_survives_copies_other_devices_and_a_new_initialisation():
    model = seeded(lambda: VisionTransformer(**SMALL, reg_tokens=4), 0)
    stages = ["patch_embed", ("_pos_embed", model._pos_embed), "blocks.0", "norm", ("head", model.forward_head)]
    made = network(model, stages=stages)
    wanted = {16: (0, (4, 4)), 21: (5, (4, 4))}
    for other in (made, copy.deepcopy(made), network(model).untrained(0)):
        assert layouts(other) == wanted
    shape = made.cuts.find("blocks.0").shape
    sent = pickle.loads(pickle.dumps(shape))  # noqa: S301
    assert (sent, sent.prefix, sent.grid, repr(sent), hash(sent)) == ((21, 16), 5, (4, 4), "(21, 16)", hash((21, 16)))
    noise = ClusteredNoise(shape, 10)
    assert noise.shape.prefix == 5
    assert noise.fingerprint == ClusteredNoise((21, 16), 10).fingerprint


def test_the_users_word_comes_first_and_is_a_part_of_the_fingerprint_only_if_given():
    model = seeded(lambda: Put("at the end"), 0)
    plain = network(model, (8, 16))
    told = network(model, (8, 16), tokens=(2, [4, 2]))
    assert layouts(told) == {8: (0, (4, 2)), 10: (2, (4, 2))}
    assert layouts(told.untrained(0)) == layouts(told)
    line = network(model, (8, 16), tokens=(1, None))
    assert layouts(line) == {8: (1, (1, 7)), 10: (1, (1, 9))}
    assert len({plain.fingerprint, told.fingerprint, line.fingerprint}) == 3
    assert plain.fingerprint == network(model, (8, 16), tokens=None).fingerprint


@each(
    ("tokens", "said"),
    [
        ((2, (3, 4)), r"tokens=\(2, \(3, 4\)\) means 14 tokens, and the cuts of A have 8, 10; give"),
        ((10, None), "means more than 10 tokens, and the cuts of A have 8, 10"),
        (5, "tokens=5 is not a layout of tokens; give the number of prefix tokens"),
        ((-1, (2, 4)), "is not a layout"),
        ((2, (8, 0)), "is not a layout"),
        ((2, 8), r"such as tokens=\(1, \(14, 14\)\), or tokens=\(1, None\) if the others are a line"),
    ],
)
def test_a_layout_that_no_cut_has_is_refused(tokens, said):
    with pytest.raises(NetworkError, match=said):
        network(Put("dropped"), (8, 16), tokens=tokens)


class OfText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).relu().mean(1))


def test_an_unknown_grid_warns_where_one_is_needed_and_tokens_of_texts_never_do():
    made = network(Put("at the end"), (8, 16)).cuts.find("cat").shape
    text = Network(OfText(), example=torch.arange(51).reshape(3, 17) % 20).cuts.find("relu").shape
    assert (text.prefix, text.grid) == (0, (1, 17))
    for family, shapes in {TokensToMaps(): (made, (4, 2, 4)), MapsToTokens(): ((4, 2, 4), made)}.items():
        with pytest.warns(UserWarning, match=r"tokens 10×8 for a line.*name it: Network\(…, tokens=\(prefix tokens"):
            family.check(*shapes)
    with pytest.warns(UserWarning, match="tokens 10×8 for 3×3 behind 1 prefix tokens, because their grid is unknown"):
        TokensToMaps().check(TokenShape((10, 8), is_square=True), (4, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stitch_for(made, made) == stitch_for(text, text) == Linear()
        Linear().build(made, made)
        TokensToTokens().build(text, (5, 8))
        TokensToTokens().build((6, 8), (5, 8))  # plain shapes say nothing, and are guessed at


def test_tokens_to_as_many_have_maps_of_their_own_for_prefix_tokens_if_both_sides_have_some():
    one, five, none = (TokenShape((21, 8), prefix, (1, 21 - prefix)) for prefix in (1, 5, 0))
    assert stitch_for(one, five) == stitch_for(five, five) == TokensToTokens()
    assert {stitch_for(*pair) for pair in [(one, none), (none, five), (none, none), (one, (21, 8))]} == {Linear()}


@pytest.mark.slow
def test_a_seam_of_registers_is_fitted_saved_and_loaded_with_its_layout(tmp_path, monkeypatch):
    """By the closed form, which a wider family copies; and by a descent, which may draw another start."""
    small = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 6, "depth": 1, "num_heads": 1, "reg_tokens": 4}
    data = few_digits()
    a, b = (
        Network(seeded(lambda: VisionTransformer(**small, num_classes=10), seed), example=data.example, name=name)
        for seed, name in enumerate("AB")
    )
    made = {
        family: stitch(a, b, at="blocks.0", data=data, stitch=family, fit=fit, controls=())
        for family, fit in {None: LeastSquares(), FullLinear(): Narrower(TokensToTokens())}.items()
    }
    assert made[None].trial.family == TokensToTokens()
    maps = [name for name in made[None].stitch.state_dict() if name.endswith("weight")]
    assert maps == ["patches.1.weight", "token.weight", *(f"others.{i}.weight" for i in range(4))]
    x = torch.randn(9, 9, 6)
    with torch.no_grad():
        own, full = (one.stitch.eval()(x) for one in made.values())
    torch.testing.assert_close(own, full, rtol=1e-3, atol=1e-3)
    loaded = load_stitched(made[None].save(tmp_path / "A → B"), a, b)
    assert torch.equal(loaded(data.example), made[None].stitched(data.example))
    starts = []

    def begin_again(ground, way, draw, *_):
        starts.extend([ground.start.state, draw(1)])
        return way, ""

    monkeypatch.setattr("suture.fits.converged.begin_again", begin_again)
    stitch(a, b, at="blocks.0", data=data, fit=Converged(cap=70), controls=())
    given, drawn = ({name: tensor.shape for name, tensor in start.items()} for start in starts)
    assert given == drawn

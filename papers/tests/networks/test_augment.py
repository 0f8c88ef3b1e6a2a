"""Augmentation: what is drawn, and each change of an image against torchvision's, image by image."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as reference

from suture.common.errors import DataError
from suture.common.hashing import identity
from suture_papers.training import augment
from suture_papers.training.augment import Augmentation, CropFlip, SimCLRView, Unchanged

ALL: list[Augmentation] = [Unchanged(), CropFlip(), CropFlip(2, flip=False), CropFlip(0), SimCLRView()]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def colours(n: int = 40, seed: int = 0) -> Tensor:
    """Random images, of which some are grey, black or white."""
    images = torch.rand(n, 3, 12, 16, generator=seeded(seed))
    images[0], images[1], images[2] = 0, 1, images[2, :1]
    images[3, 1] = images[3, 0]
    return images


@pytest.fixture
def known() -> Tensor:
    """No two pixels alike, so that a crop is found in one place only."""
    return torch.arange(400 * 2 * 5 * 6).reshape(400, 2, 5, 6).float() + 1


# --- every augmentation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ALL, ids=str)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_a_generator_decides_all_and_images_are_left_as_they_were(change, kind):
    images = (255 * colours()).to(kind) if kind == torch.uint8 else colours()
    before = images.clone()
    torch.manual_seed(0)
    one = change(images, seeded(3))
    torch.manual_seed(1)
    two = change(images, seeded(3))
    assert torch.equal(one, two)
    assert torch.equal(images, before)
    assert one.shape == images.shape
    assert one.is_contiguous()
    assert 0 <= one.min() <= one.max() <= (255 if one.dtype == torch.uint8 else 1)
    if change not in (Unchanged(), CropFlip(0)):
        assert not torch.equal(one, change(images, seeded(4)))


@pytest.mark.parametrize("change", ALL, ids=str)
def test_images_may_lie_in_memory_in_any_way(change):
    images = colours()
    laid_out = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(change(laid_out, seeded()), change(images, seeded()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", [change for change in ALL if not isinstance(change, SimCLRView)], ids=str)
def test_crops_and_mirrors_keep_the_type(change):
    for kind in (torch.uint8, torch.float32, torch.float64):
        assert change((255 * colours()).to(kind), seeded()).dtype == kind


def test_settings_are_part_of_the_identity():
    assert len({identity(change) for change in ALL}) == len(ALL)
    assert identity(SimCLRView()) != identity(replace(SimCLRView(), strength=0.4))


# --- crop and flip ----------------------------------------------------------------------------------------------------


def test_crops_are_crops_of_the_image_with_a_black_border(known):
    out = CropFlip(2, flip=False)(known, seeded())
    padded = nn.functional.pad(known, (2,) * 4)
    corners = []
    for one, whole in zip(out, padded, strict=True):
        fits = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(whole[:, top : top + 5, left : left + 6], one)
        ]
        assert len(fits) == 1
        corners += fits
    counts = torch.bincount(torch.tensor([5 * top + left for top, left in corners]), minlength=25)
    assert counts.min() > 0, "every corner is drawn"
    assert counts.max() < 40, "about as often, 16 of 400"


def test_a_crop_that_was_worked_out_by_hand(monkeypatch):
    image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    drawn = {(0, 0): [[0, 0], [0, 1]], (0, 2): [[0, 0], [2, 0]], (1, 1): [[1, 2], [3, 4]], (2, 1): [[3, 4], [0, 0]]}
    for corner, wanted in drawn.items():
        values = iter(corner)
        monkeypatch.setattr(torch, "randint", lambda *_, values=values, **__: torch.tensor([[next(values)]]))
        assert CropFlip(1, flip=False)(image, seeded()).tolist() == [[wanted]]


def test_half_of_the_images_are_mirrored(known):
    out = CropFlip(0)(known, seeded())
    flipped = [torch.equal(one, image.flip(-1)) for one, image in zip(out, known, strict=True)]
    same = [torch.equal(one, image) for one, image in zip(out, known, strict=True)]
    assert [a != b for a, b in zip(flipped, same, strict=True)] == [True] * 400
    assert 170 < sum(flipped) < 230


def test_without_either_images_pass_and_nothing_is_drawn(known):
    for change in (Unchanged(), CropFlip(0, flip=False)):
        random = seeded()
        assert change(known, random) is known
        assert torch.equal(random.get_state(), seeded().get_state())


# --- SimCLR's changes, each against torchvision's ---------------------------------------------------------------------

shares = st.floats(0, 2, width=32)


def each(change, images: Tensor, amounts: Tensor) -> Tensor:
    return torch.stack([change(image, float(amount)) for image, amount in zip(images, amounts, strict=True)])


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (augment.brighten, reference.adjust_brightness, 0, 2),
        (augment.scale_contrast, reference.adjust_contrast, 0, 2),
        (augment.saturate, reference.adjust_saturation, 0, 2),
        (augment.turn_hue, reference.adjust_hue, -0.5, 0.5),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
@given(seed=st.integers(0, 99))
def test_colours_change_as_torchvision_changes_them(ours, theirs, low, high, channels, seed):
    images = colours(seed=seed)[:, :channels]
    amounts = low + (high - low) * torch.rand(len(images), generator=seeded(seed + 1))
    torch.testing.assert_close(ours(images, amounts), each(theirs, images, amounts), rtol=0, atol=2e-6)


def test_grey_is_torchvision_s_grey():
    torch.testing.assert_close(augment.turn_grey(colours()), reference.rgb_to_grayscale(colours()), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("neutral", "change"),
    [(1, augment.brighten), (1, augment.scale_contrast), (1, augment.saturate), (0, augment.turn_hue)],
)
def test_a_neutral_amount_changes_nothing(neutral, change):
    same = change(colours(), torch.full((40,), float(neutral)))
    torch.testing.assert_close(same, colours(), rtol=0, atol=1e-6)


@given(seed=st.integers(0, 999))
def test_a_part_is_resized_as_torchvision_resizes_it(seed):
    images = colours(8, seed)
    boxes = augment.random_boxes(8, 12, 16, (0.02, 1), (0.5, 2), seeded(seed))
    out = augment.resize(images, boxes)
    for i, image in enumerate(images):
        top, left, high, wide = (int(edge[i]) for edge in boxes)
        wanted = reference.resized_crop(image, top, left, high, wide, [12, 16], antialias=True)
        torch.testing.assert_close(out[i], wanted, rtol=0, atol=5e-6)


def test_the_whole_image_as_its_part_is_the_image():
    edges = torch.zeros(40, dtype=torch.int64)
    torch.testing.assert_close(augment.resize(colours(), (edges, edges, edges + 12, edges + 16)), colours())


# --- what SimCLR draws ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (64, 32), (8, 8), (5, 40)])
def test_parts_are_drawn_as_torchvision_draws_them(size):
    area, ratio, n = (0.08, 1.0), (3 / 4, 4 / 3), 4000
    ours = torch.stack(augment.random_boxes(n, *size, area, ratio, seeded())).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = [RandomResizedCrop.get_params(torch.empty(3, *size), list(area), list(ratio)) for _ in range(n)]
    theirs = torch.tensor(drawn).double().T
    for one, other in zip([*ours, ours[2] * ours[3]], [*theirs, theirs[2] * theirs[3]], strict=True):
        spread = math.hypot(float(one.std()), float(other.std())) / math.sqrt(n)
        assert abs(float(one.mean() - other.mean())) <= 4.5 * spread
        assert float(other.std()) / 1.1 <= float(one.std()) <= float(other.std()) * 1.1
        assert abs(float(one.max() - other.max())) <= 0.1 * float(other.max())


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_parts_lie_inside_the_image(height, width, seed):
    top, left, high, wide = augment.random_boxes(50, height, width, (0.08, 1.0), (3 / 4, 4 / 3), seeded(seed))
    assert min(top.min(), left.min()) >= 0
    assert min(high.min(), wide.min()) >= 1
    assert (top + high).max() <= height
    assert (left + wide).max() <= width


def test_where_no_part_fits_it_is_the_middle():
    for height, width in ((4, 40), (40, 4)):
        top, left, high, wide = augment.random_boxes(3, height, width, (1.0, 1.0), (3 / 4, 4 / 3), seeded())
        short, long = ((top, high), (left, wide)) if height < width else ((left, wide), (top, high))
        assert [edge.tolist() for edge in (*short, *long)] == [[0] * 3, [4] * 3, [17] * 3, [5] * 3]


STILL = SimCLRView(area=(1.0, 1.0), ratio=(1.0, 1.0), jittered=0.0, grey=0.0, flip=False)


def coloured(n: int = 1000) -> Tensor:
    """The same square image of one colour, over and over."""
    return torch.tensor([0.5, 0.3, 0.2]).view(1, 3, 1, 1).expand(n, 3, 4, 4)


def test_a_view_with_all_off_is_the_image_as_floats():
    torch.testing.assert_close(STILL(coloured(), seeded()), coloured(), rtol=0, atol=1e-6)
    raw = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8, generator=seeded())
    torch.testing.assert_close(STILL(raw, seeded()), raw / 255, rtol=0, atol=1e-6)


def test_a_view_mirrors_half_of_the_images_and_greys_a_fifth_and_jitters_four_fifths():
    rising = torch.arange(4).expand(1000, 3, 4, 4) / 4
    out = replace(STILL, flip=True)(rising, seeded())
    assert 440 < int((out[:, 0, 0, 0] > 0.5).sum()) < 560
    out = replace(STILL, grey=0.2)(coloured(), seeded())
    assert 150 < int((out[:, 0] == out[:, 2]).all((1, 2)).sum()) < 250
    out = replace(STILL, jittered=0.8)(coloured(), seeded())
    moved = (out - coloured()).abs().amax((1, 2, 3)) > 1e-5
    assert 750 < int(moved.sum()) < 850


def test_the_amounts_of_a_jitter_are_simclr_s():
    """Strength 0.5: brightness, contrast and saturation within 1 ± 0.4, hue within ± 0.1; uniform, independent."""
    drawn = {change.__name__: amounts for change, amounts in replace(STILL, jittered=1.0)._jitter(4000, seeded())}
    for name, middle, reach in (
        ("brighten", 1, 0.4),
        ("scale_contrast", 1, 0.4),
        ("saturate", 1, 0.4),
        ("turn_hue", 0, 0.1),
    ):
        off = (drawn[name] - middle) / reach
        assert 0.99 < off.abs().max() <= 1.00001
        assert off.mean().abs() < 0.04
        assert off.var() == pytest.approx(1 / 3, rel=0.06)
    assert torch.corrcoef(torch.stack(list(drawn.values()))).sub(torch.eye(4)).abs().max() < 0.08


def test_the_four_changes_come_in_every_order():
    orders = {tuple(change.__name__ for change, _ in SimCLRView()._jitter(1, seeded(seed))) for seed in range(300)}
    assert len(orders) == 24


def test_each_image_has_its_own_draws():
    out = SimCLRView()(colours()[4:5].expand(60, -1, -1, -1), seeded())
    assert len({tuple(image.flatten().tolist()) for image in out}) == 60


def test_grey_images_have_views_too():
    out = SimCLRView()(colours()[:, :1], seeded())
    assert out.shape == (40, 1, 12, 16)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_images_of_other_channels_have_no_colours():
    with pytest.raises(DataError, match="images of 1 or 3 channels, not 2"):
        SimCLRView()(torch.rand(4, 2, 8, 8), seeded())

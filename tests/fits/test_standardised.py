"""GradientDescent on standardised features: a change of coordinates that leaves the family, and the answer, alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from loops import each
from problems import JOINTS, built, named, planted, problem, side
from suture.common.errors import FitError
from suture.core.stitches import Conv, Diagonal, Identity, Linear, LowRank
from suture.fits import SGD, LeastSquares, Random, TaskLoss
from suture.fits.descent import standardised


def uneven(shape, n=300, mean=0.0, seed=0) -> Tensor:
    """Features that differ in their deviation from 0.01 to 10; maps have them first."""
    spread = torch.logspace(-2, 1, shape[0] if len(shape) == 3 else shape[-1])
    spread = spread[:, None, None] if len(shape) == 3 else spread
    return mean + spread * torch.randn((n, *shape), generator=torch.Generator().manual_seed(seed))


def unlabelled(family, x: Tensor):
    return problem(side(x, torch.zeros(len(x))), side(x, torch.zeros(len(x))), family, nn.Identity())


def read_by(layers, stitch: nn.Module, x: Tensor) -> list[Tensor]:
    """What layers compute on while a stitch runs, features last, as rows, in float64."""
    seen: list[Tensor] = []
    for layer in layers:
        maps = isinstance(layer, nn.Conv2d)

        def note(_, given, maps=maps):
            rows = given[0].movedim(1, -1) if maps else given[0]
            seen.append(rows.flatten(0, -2).double())

        layer.register_forward_pre_hook(note)
    stitch(x)
    return seen


@each("mean", [0.0, 30.0])
@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_rewriting_for_standardised_features_and_back_changes_nothing(family, sender, receiver, mean):
    x = uneven(sender, mean=mean)
    stitch = built(family, sender, receiver).eval()
    with torch.no_grad():
        wanted = stitch(x)
        close = {"rtol": 1e-4, "atol": 1e-4 * float(wanted.abs().max())}
        with standardised(unlabelled(family, x), stitch, wanted=True):
            torch.testing.assert_close(stitch(x), wanted, **close)
        torch.testing.assert_close(stitch(x), wanted, **close)
    assert not any(module._forward_pre_hooks for module in stitch.modules())


@each("mean", [0.0, 30.0])
@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_while_entered_every_raw_layer_reads_features_of_mean_0_and_deviation_1(family, sender, receiver, mean):
    x = uneven(sender, mean=mean)
    stitch = built(family, sender, receiver).eval()
    layers = family.raw_layers(stitch)
    with torch.no_grad(), standardised(unlabelled(family, x), stitch, wanted=True):
        for layer, seen in zip(layers, read_by(layers, stitch, x), strict=True):
            torch.testing.assert_close(seen.std(0, correction=0), torch.ones(seen.shape[1]).double(), rtol=2e-3, atol=0)
            if not (isinstance(layer, nn.Conv2d) and any(layer.padding)):
                torch.testing.assert_close(seen.mean(0), torch.zeros(seen.shape[1]).double(), rtol=0, atol=2e-3)


@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_a_random_start_is_taken_as_drawn_for_standardised_features(family, sender, receiver):
    """What it does while entered stays what it does afterwards, and does not depend on the sender's units."""
    gave = []
    for scale in (1.0, 64.0):
        x = scale * uneven(sender)
        stitch = built(family, sender, receiver).eval()
        with torch.no_grad():
            with standardised(unlabelled(family, x), stitch, wanted=True, rewrite=False):
                inside = stitch(x)
            torch.testing.assert_close(stitch(x), inside, rtol=1e-4, atol=1e-4 * float(inside.abs().max()))
        gave.append(inside)
    if family.raw_layers(stitch):
        torch.testing.assert_close(gave[1], gave[0], rtol=1e-4, atol=1e-4)


def test_a_random_linear_stitch_is_then_the_drawn_one_on_standardised_rows():
    x = uneven((4,), mean=5.0)
    stitch, drawn = built(Linear(), (4,), (3,)), built(Linear(), (4,), (3,))
    with torch.no_grad(), standardised(unlabelled(Linear(), x), stitch, wanted=True, rewrite=False):
        pass
    with torch.no_grad():
        torch.testing.assert_close(stitch(x), drawn((x - x.mean(0)) / x.std(0, correction=0)), rtol=1e-3, atol=1e-3)


@each("mean", [0.0, 30.0])
@each("kernel", [3, 5])
def test_a_padded_convolution_does_the_same_at_its_border(kernel, mean):
    """A shift of the features is one of the padding too, which a convolution cannot undo; so it is only scaled."""
    family = Conv(kernel, batchnorm=False)
    x = uneven((3, 4, 4), mean=mean)
    stitch = built(family, (3, 4, 4), (2, 4, 4))
    with torch.no_grad():
        wanted = stitch(x)
        with standardised(unlabelled(family, x), stitch, wanted=True):
            [seen] = read_by([stitch], stitch, x)
            torch.testing.assert_close(stitch(x), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    rows = x.movedim(1, -1).flatten(0, -2).double()
    torch.testing.assert_close(seen, rows / rows.std(0, correction=0), rtol=1e-4, atol=1e-4)
    border, inner = wanted[:, :, 0], wanted[:, :, 2]
    assert mean == 0 or float((border.mean() - inner.mean()).abs()) > 0.1, "the border is not like the rest"


def test_where_it_is_not_wanted_nothing_is_touched():
    x = uneven((4,))
    stitch = built(Linear(), (4,), (3,))
    before = stitch.weight.clone()
    with standardised(unlabelled(Linear(), x), stitch, wanted=False):
        assert not stitch._forward_pre_hooks
        assert torch.equal(stitch.weight, before)
    assert torch.equal(stitch.weight, before)


def test_a_family_without_layers_and_a_stitch_in_training_mode_are_no_trouble():
    x = uneven((4,))
    stitch = Identity().build((4,), (4,)).train()
    with standardised(unlabelled(Identity(), x), stitch, wanted=True):
        assert torch.equal(stitch(x), x)
    assert not stitch.training


def test_hooks_are_gone_and_the_map_is_back_after_an_error():
    x = uneven((4,))
    stitch = built(Linear(), (4,), (3,))
    with torch.no_grad():
        wanted = stitch(x)
        with pytest.raises(FitError, match="on purpose"), standardised(unlabelled(Linear(), x), stitch, wanted=True):
            raise FitError("on purpose")
        assert not stitch._forward_pre_hooks
        torch.testing.assert_close(stitch(x), wanted, rtol=1e-4, atol=1e-4)


def test_constant_features_are_left_in_place():
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 5
    stitch = built(Linear(), (3,), (2,))
    with torch.no_grad():
        wanted = stitch(x)
        with standardised(unlabelled(Linear(), x), stitch, wanted=True):
            assert all(seen.isfinite().all() for seen in read_by([stitch], stitch, x))
            torch.testing.assert_close(stitch(x), wanted)
        torch.testing.assert_close(stitch(x), wanted)


def test_more_samples_than_one_chunk_are_measured_as_one():
    """Chunks of 256, of which the first and the last are nothing like the rest."""
    x = uneven((4,), n=700)
    x[:256] += 50
    x[650:] *= 9
    stitch = built(Linear(), (4,), (3,))
    with torch.no_grad(), standardised(unlabelled(Linear(), x), stitch, wanted=True):
        [seen] = read_by([stitch], stitch, x)
    torch.testing.assert_close(seen.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(4).double(), rtol=1e-3, atol=0)


# --- what it is for ---------------------------------------------------------------------------------------------------


@each("family", [Linear(), LowRank(4), Diagonal()], ids=str)
@each("start", [LeastSquares(), Random()], ids=str)
@each(("scale", "mean"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 20.0), (1e-2, 20.0)], few=2)
def test_the_result_does_not_depend_on_the_units_of_the_sender(scale, mean, start, family):
    recipe = TaskLoss(start=start, optimiser=SGD(0.1), steps=60, check=10)
    usual, _, accuracy = planted()
    stitch = built(family, (6,), (6,))
    wanted = recipe.fit(replace(usual, family=family), stitch)
    least = accuracy(stitch)
    scaled, _, accuracy = planted(scale=scale, mean=mean)
    stitch = built(family, (6,), (6,))
    found = recipe.fit(replace(scaled, family=family), stitch)
    assert [point.validation_loss for point in found.curve] == pytest.approx(
        [point.validation_loss for point in wanted.curve], rel=0.02
    )
    assert accuracy(stitch) == pytest.approx(least, abs=0.01)
    losses = [point.validation_loss for point in wanted.curve]
    assert min(losses) < 0.95 * losses[0], "there is something to descend"


def test_without_standardising_it_does():
    """The reason for it."""
    recipe = TaskLoss(start=Random(), optimiser=SGD(0.1), steps=60, check=10, standardise=False)
    losses = []
    for scale in (1.0, 1e-3):
        p, stitch, _ = planted(scale=scale)
        losses.append(recipe.fit(p, stitch).curve[-1].validation_loss)
    assert losses[1] > 1.5 * losses[0]

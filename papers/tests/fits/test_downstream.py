"""Fits that match what the receiver makes of a stitch's activations, and the one that needs no training."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from problems import matching, planted, real
from suture.common.errors import FitError
from suture.core.network.segments import Frozen
from suture.core.stitches import Conv, Linear, LowRank
from suture.fits import LeastSquares
from suture.fits.optimisers import SGD, Adam
from suture_papers.fits_of_others import FunctionalLatentAlignment, MatchPenultimate, RelativeRepresentations


def deep(p, *layers: nn.Module):
    """A problem with other layers behind the cut."""
    return replace(p, suffix=Frozen([layer.requires_grad_(False).eval() for layer in layers]))


def still(fit):
    """The fit, which takes one step that changes nothing."""
    return replace(fit, optimiser=SGD(0.0), steps=1, patience=None, standardise=False)


def test_hints_are_at_the_cut_and_behind_every_layer_but_the_last() -> None:
    p, stitch, _ = planted()
    torch.manual_seed(0)
    layers = nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 4)
    p = deep(p, *layers)
    report = still(FunctionalLatentAlignment(start=LeastSquares(rescale=False, ridges=(10.0,)))).fit(p, stitch)
    with torch.no_grad():
        got, own = stitch(p.validation.activations), p.validation.expected()
        wanted = []
        for layer in (nn.Identity(), *layers[:2]):
            got, own = layer(got), layer(own)
            wanted.append((got - own).square().sum().sqrt() / own.square().sum().sqrt())
    loss = [float(torch.stack(wanted).mean())]
    parts = [report.curve[0].validation_loss]
    assert parts == pytest.approx(loss, rel=0.02), "but for chunks of 256, whose norms are taken one by one"


def test_the_penultimate_features_are_what_the_last_layer_with_parameters_reads() -> None:
    p, stitch, _ = planted(n=400)
    torch.manual_seed(0)
    hidden, head = nn.Linear(6, 5), nn.Linear(5, 4)
    p = deep(p, hidden, nn.Tanh(), head, nn.Softmax(1))
    report = still(MatchPenultimate(start=LeastSquares(rescale=False, ridges=(10.0,)))).fit(p, stitch)
    with torch.no_grad():
        features = [hidden(x).tanh() for x in (stitch(p.validation.activations), p.validation.expected())]
        unit = hidden(p.fit.expected()).tanh().var(0, correction=0).mean()
    wanted = float((features[0] - features[1]).square().mean() / unit)
    assert report.curve[0].validation_loss == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("fit", [FunctionalLatentAlignment, MatchPenultimate])
def test_a_planted_map_is_found_without_a_label(fit) -> None:
    p, stitch, accuracy = planted()
    wrong = [replace(side, labels=torch.zeros_like(side.labels)) for side in (p.fit, p.validation)]
    torch.manual_seed(1)
    p = deep(replace(p, fit=wrong[0], validation=wrong[1]), nn.Identity(), p.suffix)
    fit(optimiser=Adam(0.05), steps=400, check=50).fit(p, stitch)
    assert accuracy(stitch) > 0.97


def test_what_the_receiver_drops_is_not_matched() -> None:
    """Half of the receiver's features reach nothing: the fit at the penultimate layer leaves them alone."""
    p, stitch, _ = planted()
    keep = torch.eye(6)
    keep[3:] = 0
    drop, head = nn.Linear(6, 6, bias=False), nn.Linear(6, 4)
    drop.weight.data = keep
    p = deep(p, drop, head)
    before = stitch.weight[3:].clone()
    MatchPenultimate(optimiser=Adam(0.05), steps=100, standardise=False).fit(p, stitch)
    assert torch.equal(stitch.weight[3:], before)
    with torch.no_grad():
        assert (stitch(p.fit.activations) - p.fit.expected())[:, :3].abs().max() < 0.1


# --- relative representations -----------------------------------------------------------------------------------------


def rotated(shape: tuple[int, ...], n: int = 400) -> tuple[Tensor, Tensor]:
    """Activations, and the same turned, scaled and shifted in their features."""
    random = torch.Generator().manual_seed(4)
    features = shape[0]
    y = torch.randn((n, *shape), generator=random) * torch.linspace(0.8, 1.5, features).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    turn = torch.linalg.qr(torch.randn(features, features, generator=random))[0]
    x = 3 * torch.einsum("ij,nj...->ni...", turn, y) + 5
    return x, y


@pytest.mark.parametrize(
    ("family", "shape"), [(Linear(), (6,)), (Conv(batchnorm=False), (6, 3, 4)), (Conv(), (6, 3, 4))], ids=str
)
def test_anchors_find_a_rotation_with_a_scale_and_a_shift(family, shape) -> None:
    x, y = rotated(shape)
    stitch = family.build(shape, shape)
    report = RelativeRepresentations(anchors=50).fit(matching(family, x, y), stitch)
    with torch.no_grad():
        torch.testing.assert_close(stitch(x), y, atol=1e-2, rtol=1e-2)
    assert (report.steps, report.start) == (0, "closed form")


def test_similarities_to_the_anchors_are_kept() -> None:
    """Moschella et al. 2023, equation 1: the cosines to the anchors are the same on both sides of the stitch."""
    x, y = rotated((6,))
    x = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    stitch = Linear().build((6,), (6,))
    RelativeRepresentations(anchors=len(x)).fit(matching(Linear(), x, y), stitch)
    with torch.no_grad():
        centred = [side - mean.mean(0) for side, mean in ((x, x), (stitch(x), y), (y, y))]
    sent, given, own = (nn.functional.normalize(side) for side in centred)
    assert float((sent @ sent.T - given @ own.T).abs().mean()) < 0.05
    assert float((sent @ sent.T).abs().mean()) > 0.3, "which says something, since they are not all small"


def test_it_works_between_two_trained_networks_and_draws_from_its_seed() -> None:
    p, stitch = real("hidden", Linear())
    means = []
    for seed in (0, 0, 1):
        RelativeRepresentations(anchors=300).fit(replace(p, seed=seed), stitch)
        with torch.no_grad():
            outputs = p.suffix(stitch(p.fit.activations))
        means.append(float((outputs.argmax(1) == p.fit.labels).double().mean()))
    assert means[0] == means[1]
    assert min(means) > 0.5, "where guessing gives a tenth"


def test_other_families_and_too_few_anchors_are_refused() -> None:
    x, y = rotated((6,), n=20)
    with pytest.raises(FitError, match=r"LowRank\(rank=2\) is not; use Conv or Linear"):
        RelativeRepresentations().fit(matching(LowRank(2), x, y), LowRank(2).build((6,), (6,)))
    with pytest.raises(FitError, match="at least 2"):
        RelativeRepresentations(anchors=1)

"""The closed form against numpy and scikit-learn, at seams of trained networks and on data made for the purpose."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

import suture
from loops import each
from problems import SOME, TINY, affine, built, matching, named, planted, problem, real, rows, side
from suture.common.errors import FitError
from suture.core.stitched import Seam
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Identity,
    Linear,
    Stitch,
    StridedConv,
    base,
    flattened,
    resampled,
)
from suture.fits import FitReport, LeastSquares, Quick
from suture.fits.least_squares import accumulate_moments, solve_closed_form
from suture.measurement.trials.measure import measure
from suture.measurement.trials.trial import Trial
from suture_papers.fits_of_others import RelativeRepresentations
from trained import digits, few_digits, hybrid, hybrids, wrap

SEAMS = {"maps": ("conv", Conv()), "maps, no norm": ("norm", Conv(batchnorm=False)), "tokens": ("embed", Linear())}
SEAMS["vectors"] = ("hidden", Linear())


@each(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_least_squares_is_numpys_on_all_rows_at_once(cut, family):
    p, stitch = real(cut, family)
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    wanted = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0].T
    weight, bias = affine(stitch, x.shape[1])
    np.testing.assert_allclose(weight, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(bias, y.mean(0) - wanted @ x.mean(0), rtol=0, atol=1e-4)


@each("ridge", [1e-4, 1e-2, 1.0])
@each(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_a_ridge_is_scikit_learns(cut, family, ridge):
    p, stitch = real(cut, family)
    LeastSquares(ridges=(ridge,), rescale=False).fit(p, stitch)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    wanted = Ridge(alpha=ridge * x.var(0).mean() * len(x)).fit(x, y)
    weight, bias = affine(stitch, x.shape[1])
    np.testing.assert_allclose(weight, wanted.coef_, rtol=0, atol=1e-5 * np.abs(wanted.coef_).max())
    np.testing.assert_allclose(bias, wanted.intercept_, rtol=0, atol=1e-4)


@each(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_it_is_not_the_mean_of_the_solutions_of_batches(cut, family):
    """What published code computes; this test shows that the tests above would notice."""
    p, stitch = real(cut, family)
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    parts = zip(p.fit.activations.split(256), p.fit.expected().split(256), strict=True)
    solutions = []
    for a, b in parts:
        x, y = rows(a), rows(b)
        solutions.append(np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0].T)
    weight, _ = affine(stitch, x.shape[1])
    assert np.abs(np.mean(solutions, 0) - weight).max() > 1e-3 * np.abs(weight).max()


@each("dtype", [torch.float32, torch.float64], ids=str)
@each("value", [0.0, 0.1, 7.3, -1e4])
def test_features_that_never_vary_get_no_weight(value, dtype):
    """As a class token before the first block: it is the same for every image, and what it varies by is rounding."""
    x, y = torch.full((300, 8), value) * torch.linspace(0.1, 1, 8), torch.randn(300, 4)
    part = Linear().parts(nn.Linear(8, 4), x)[0]
    known = accumulate_moments(x, y, part, dtype)
    found = solve_closed_form(Linear(), known, known, (1e-5, 1e-3, 1e-1), True)
    assert found.weight.abs().max() == 0
    torch.testing.assert_close(found.bias, y.double().mean(0), rtol=0, atol=1e-6)
    x[:, 3] = torch.randn(300)
    known = accumulate_moments(x, y, part, dtype)
    weight = solve_closed_form(Linear(), known, known, (1e-5,), False).weight
    assert weight[:, 3].abs().min() > 0 == weight[:, [0, 1, 2, 4, 5, 6, 7]].abs().max()


def test_a_diagonal_of_features_that_never_vary_is_zero():
    x, y = torch.full((300, 4), 0.1), torch.randn(300, 4)
    known = accumulate_moments(x, y, Diagonal().parts(built(Diagonal(), (4,), (4,)), x)[0], torch.float32)
    assert solve_closed_form(Diagonal(), known, known, (1e-5,), True).weight.abs().max() == 0


def test_the_validation_data_choose_the_ridge():
    """Recomputed by scikit-learn for every candidate, on few samples, so that neither end of the scale wins."""
    ridges = (1e-6, 1e-4, 1e-2, 3e-2, 1e-1, 1.0, 10.0)
    p, stitch = real("hidden", Linear(), fit=60)
    x, y = rows(p.fit.activations), rows(p.fit.expected())
    held = rows(digits_at("hidden", 0)), rows(digits_at("hidden", 1))
    p = replace(
        p, validation=side(torch.from_numpy(held[0]).float(), digits().validation.labels, digits_at("hidden", 1))
    )
    models = [Ridge(alpha=ridge * x.var(0).mean() * len(x)).fit(x, y) for ridge in ridges]
    errors = [((model.predict(held[0]) - held[1]) ** 2).sum() for model in models]
    best = int(np.argmin(errors))
    assert 0 < best < len(ridges) - 1
    LeastSquares(ridges=ridges, rescale=False).fit(p, stitch)
    weight, _ = affine(stitch, 24)
    np.testing.assert_allclose(weight, models[best].coef_, rtol=0, atol=1e-5)
    assert np.abs(models[best - 1].coef_ - models[best].coef_).max() > 1e-3


def digits_at(cut: str, which: int) -> Tensor:
    with torch.no_grad():
        return hybrids()[which].upto(cut)(digits().validation.images)


@each(("cut", "family"), SEAMS.values(), ids=SEAMS)
def test_rescaled_each_channel_has_the_receivers_mean_and_deviation_on_the_fit_data(cut, family):
    p, stitch = real(cut, family)
    LeastSquares().fit(p, stitch)
    with torch.no_grad():
        out = rows(stitch.eval()(p.fit.activations))
    wanted = rows(p.fit.expected())
    np.testing.assert_allclose(out.std(0), wanted.std(0), rtol=1e-4)
    np.testing.assert_allclose(out.mean(0), wanted.mean(0), atol=1e-4 * wanted.std())
    LeastSquares(rescale=False).fit(p, stitch)
    with torch.no_grad():
        shrunken = rows(stitch.eval()(p.fit.activations)).std(0)
    assert (shrunken < 0.99 * wanted.std(0)).any(), "there is something to rescale"


@each("family", [Linear(), Conv(), Conv(batchnorm=False)], ids=str)
def test_large_means_cost_no_digits(family):
    """A mean of 10⁶ deviations: sums of squares would lose the covariance, in float64 too."""
    random = torch.Generator().manual_seed(0)
    shape = (2000, 5) if isinstance(family, Linear) else (500, 5, 2, 2)
    x = (1e6 + torch.randn(shape, generator=random)).float()
    y = torch.randn(5, 5, generator=random).double()
    way, x_rows = y.numpy(), rows(x)
    own_rows = (x_rows - x_rows.mean(0)) @ way.T + 3
    own = torch.from_numpy(own_rows).reshape(2000, 5) if x.ndim == 2 else unrowed(own_rows, (500, 2, 2, 5))
    p = problem(side(x, torch.zeros(1), own), side(x, torch.zeros(1), own), family, nn.Identity())
    stitch = family.build(tuple(shape[1:]), tuple(shape[1:]))
    LeastSquares(ridges=TINY, rescale=False).fit(p, stitch)
    np.testing.assert_allclose(affine(stitch, 5)[0], way, rtol=1e-5, atol=1e-5)


def unrowed(values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(values).reshape(shape).movedim(-1, 1)


@each("family", [Linear(), Conv(), Conv(batchnorm=False)], ids=str)
def test_dead_features_do_no_harm(family):
    """A channel of the sender, and one of the receiver, that never fire (a ReLU's fate)."""
    random = torch.Generator().manual_seed(0)
    shape = (400, 4) if isinstance(family, Linear) else (100, 4, 2, 2)
    x, y = torch.rand(shape, generator=random), torch.rand(shape, generator=random)
    x[:, 1] = 0
    y[:, 2] = 0
    p = problem(side(x, torch.zeros(1), y), side(x, torch.zeros(1), y), family, nn.Identity())
    stitch = family.build(tuple(shape[1:]), tuple(shape[1:]))
    LeastSquares().fit(p, stitch)
    with torch.no_grad():
        out = stitch.eval()(x)
    assert out.isfinite().all()
    assert float(out[:, 2].abs().max()) < 1e-6
    weight, _ = affine(stitch, 4)
    assert np.abs(weight[:, 1]).max() < 1e-6


# --- very many features, very many rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("batchnorm", [True, False])
def test_of_very_many_patches_the_first_images_are_enough_and_the_border_is_still_theirs(batchnorm, monkeypatch):
    """Planted by torch's own convolution; behind the images used come others with other means."""
    monkeypatch.setattr(base, "WORK", 1)
    random = torch.Generator().manual_seed(0)
    x = torch.randn((300, 3, 5, 5), generator=random, dtype=torch.float64)
    x[:256] += torch.tensor([5.0, -3.0, 2.0])[:, None, None]
    weight = torch.randn((2, 3, 3, 3), generator=random, dtype=torch.float64)
    centre = x[:256].mean((0, 2, 3))[:, None, None] if batchnorm else 0
    y = nn.functional.conv2d(x - centre, weight, padding=1)
    y[256:] = 100.0
    family = Conv(3, batchnorm=batchnorm)
    stitch = built(family, (3, 5, 5), (2, 5, 5)).double()
    LeastSquares(ridges=(1e-15,), rescale=False).fit(matching(family, x, y), stitch)
    with torch.no_grad():
        torch.testing.assert_close(stitch.eval()(x[:256]), y[:256], rtol=1e-8, atol=1e-8)


def test_of_patches_with_too_many_features_the_middle_is_solved_for(monkeypatch):
    monkeypatch.setattr(base, "FEATURES", 3 * 9)
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn((80, size, 6, 6), generator=random, dtype=torch.float64) for size in (3, 2))
    gave = []
    for kernel in (3, 5, 7):
        stitch = built(Conv(kernel), (3, 6, 6), (2, 6, 6)).double()
        LeastSquares(rescale=False).fit(matching(Conv(kernel), x, y), stitch)
        with torch.no_grad():
            gave.append(stitch.eval()(x))
        assert stitch[1].weight.shape[-1] == kernel
    assert torch.equal(gave[0], gave[1])
    torch.testing.assert_close(gave[0], gave[2], rtol=1e-12, atol=1e-12)


def test_pixels_of_too_many_features_are_solved_for_all_the_same(monkeypatch):
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn((20, size, 2, 2), generator=random, dtype=torch.float64) for size in (3, 2))
    gave = []
    for features in (3, 2):
        monkeypatch.setattr(base, "FEATURES", features)
        stitch = built(Conv(), (3, 2, 2), (2, 2, 2)).double()
        LeastSquares(rescale=False).fit(matching(Conv(), x, y), stitch)
        gave.append(stitch.eval()(x))
    assert torch.equal(*gave)


@pytest.mark.parametrize(
    ("family", "sender"),
    [
        (FullLinear(), (3, 4, 6)),
        (FullLinear(), (24, 3)),
        (FullLinear(), (3, 4, 3, 2)),
        (ConvLinear(), (3, 4, 6)),
        (ConvLinear(), (24, 3)),
    ],
    ids=str,
)
def test_of_very_many_features_a_map_of_averages_over_neighbours_is_found(family, sender, monkeypatch):
    """72 features where 36 are allowed: each channel's averages over pairs of neighbours, mapped by hand."""
    monkeypatch.setattr(flattened, "FEATURES", 36)
    random = torch.Generator().manual_seed(0)
    x = torch.randn((200, *sender), generator=random, dtype=torch.float64)
    pairs = {
        (3, 4, 6): lambda: (x[..., 0::2] + x[..., 1::2]) / 2,
        (24, 3): lambda: (x[:, 0::2] + x[:, 1::2]) / 2,
        (3, 4, 3, 2): lambda: (x[..., 0] + x[..., 1]) / 2,
    }[sender]()
    y = pairs.flatten(1) @ torch.randn((36, 4), generator=random, dtype=torch.float64) + 1
    stitch = built(family, sender, (4,)).double()
    LeastSquares(ridges=(1e-14,), rescale=False).fit(matching(family, x, y), stitch)
    with torch.no_grad():
        torch.testing.assert_close(stitch.eval()(x), y, rtol=1e-8, atol=1e-8)


@each("batchnorm", [True, False])
@each(
    "fit", [LeastSquares(ridges=(1e-14,), rescale=False), Quick(steps=0), RelativeRepresentations(cutoff=1e-3)], ids=str
)
def test_a_patch_of_very_many_features_is_averaged_over_neighbours(fit, batchnorm, monkeypatch):
    """Patches of 3 x 4 x 4 where 12 features are allowed: averages over 2 x 2 pixels, mapped by hand."""
    monkeypatch.setattr(resampled, "PATCH", 12)
    random = torch.Generator().manual_seed(0)
    x = torch.randn((400, 3, 8, 4), generator=random) + torch.tensor([5.0, -3.0, 2.0])[:, None, None]
    weight = torch.randn((24, 3, 2, 2), generator=random)
    y = nn.functional.conv2d(nn.functional.avg_pool2d(x, 2), weight, stride=2) + 1
    family = StridedConv(batchnorm=batchnorm)
    stitch = built(family, (3, 8, 4), (24, 2, 1))
    fit.fit(matching(family, x, y), stitch)
    with torch.no_grad():
        off = float((stitch.eval()(x) - y).square().mean() / y.var())
    assert off < (1e-8 if isinstance(fit, LeastSquares) else 0.05)


def test_a_stitch_without_parameters_stays_as_it_is():
    p, stitch = real("hidden", Identity())
    assert repr(LeastSquares().fit(p, stitch)) == repr(FitReport(steps=0, converged=None, curve=()))


@dataclass(frozen=True)
class Deep(Stitch):
    """A family that is not affine."""

    joins: ClassVar[str] = "vectors"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        return nn.Sequential(nn.Linear(sender[0], 16), nn.ReLU(), nn.Linear(16, receiver[0]))


def test_a_family_that_is_not_affine_has_no_closed_form():
    p, _, _ = planted()
    with pytest.raises(FitError, match=r"no closed form for Deep\(\); use TaskLoss\(start=Random\(\)\)"):
        LeastSquares().fit(replace(p, family=Deep()), Deep().build((6,), (6,)))


@each("ridges", [(), (0.0,), (-1.0, 1.0), (math.nan,)])
def test_ridges_that_are_none_are_refused_at_once(ridges):
    with pytest.raises(FitError, match="ridges"):
        LeastSquares(ridges=ridges)


@each("joint", [joint for joint in SOME if joint[0].scales], ids=named, few=4)
def test_the_closed_form_does_not_depend_on_the_size_of_activations(joint):
    """Of neither side. One feature of maps and vectors is nearly constant, which only the others can tell."""
    family, sender, receiver = joint
    x, y = (torch.randn(300, *shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(joint[1:]))
    x[:, 0] *= 1.0 if len(sender) == 2 else 1e-7

    def give(sent: float, received: float) -> Tensor:
        stitch = built(family, sender, receiver)
        LeastSquares().fit(matching(family, x * sent, y * received, 100), stitch)
        with torch.no_grad():
            return stitch.eval()(x * sent) / received

    wanted = give(1, 1)
    for size in (2.0**k for k in (-90, -83, -60, -31, 31, 60, 83, 90)):
        for found in (give(size, 1), give(1, size), give(size, size)):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@each("joint", [(Conv(batchnorm=False), (3, 2, 2), (4, 2, 2)), (Linear(), (5,), (4,))], ids=named)
def test_weights_that_no_float32_holds_are_refused(joint):
    family, sender, receiver = joint
    x, y = torch.randn(90, *sender), torch.randn(90, *receiver)
    for sent, received in ((1e25, 1e-25), (1e-25, 1e25)):
        with pytest.raises(FitError, match=r"needs a weight of size .*, which torch.float32 cannot hold.*; scale"):
            LeastSquares().fit(matching(family, x * sent, y * received), built(family, sender, receiver))


@each("power", [-83, 83], few=1)
def test_a_trial_does_not_depend_on_the_size_of_activations(power):
    """Score, representation error and what is told apart, at maps behind which the receiver undoes the factor."""

    def at(sent: int, received: int) -> suture.Measurement:
        networks = [wrap(Scaled(hybrid(i), 2.0**k), name) for i, (k, name) in enumerate(((sent, "A"), (received, "B")))]
        trial = Trial(Seam.at(*networks, "scale"), few.fit, few.validation, few.score, fit=LeastSquares())
        return measure(trial)

    few = few_digits()
    wanted = at(0, 0)
    for sent, received in ((power, 0), (0, power), (power, power)):
        found = at(sent, received)
        assert found.scores.accuracy.value == pytest.approx(wanted.scores.accuracy.value, abs=0.005)
        assert found.representation_error == pytest.approx(wanted.representation_error, rel=1e-4)
        assert found.apart["mahalanobis"].value == pytest.approx(wanted.apart["mahalanobis"].value, abs=1e-3)


class Scaled(nn.Module):
    """A hybrid whose maps are multiplied by a factor at a cut, and divided by it behind."""

    def __init__(self, hybrid: nn.Module, factor: float) -> None:
        super().__init__()
        self.of, self.scale, self.back = hybrid, ScaleBy(factor), ScaleBy(1 / factor)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.back(self.scale(self.of.relu(self.of.norm(self.of.conv(x)))))
        tokens = self.of.embed(maps.flatten(2).transpose(1, 2)).tanh()
        mixed = self.of.mix(tokens.transpose(1, 2)).relu().transpose(1, 2)
        return self.of.head(self.of.hidden(mixed.flatten(1)).relu())


class ScaleBy(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

"""Complexity against losses whose slope and curvature are known, other implementations, and its laws."""

import gzip
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import suture
from loops import each
from models import ZOO, images, made_of, seeded, zoo_model, zoo_network
from reported import to_table
from suture import Measurement, Network, Samples, Seam
from suture.common.errors import DataError, NetworkError
from suture.core.stitched import Stitched
from suture.core.stitches import Identity
from suture.data.tasks import Regression
from suture.fits import LeastSquares
from suture_papers.complexity import (
    COLUMNS,
    CURVATURE,
    LANDSCAPE,
    RANKS,
    SIZE,
    EffectiveRank,
    Flops,
    GradientNorm,
    GzipSize,
    HessianTrace,
    MeanSharpness,
    NumericalRank,
    Parameters,
    TopEigenvalue,
    WorstSharpness,
    at_first_layer,
    complexity,
    effective_rank,
    measures,
    numerical_rank,
)
from suture_papers.complexity.base import Subject
from trained import Hybrid, convnets, digits, hybrid, hybrids, state_bits

ALL = (*LANDSCAPE, *SIZE, *CURVATURE)


class Loss(nn.Module):
    """A module whose cross-entropy on samples of class 0 is ``f(w) > 0`` exactly: logits ``(−log(e^f − 1), 0)``."""

    def __init__(self, f: Callable[[Tensor], Tensor], *w: Tensor) -> None:
        super().__init__()
        self.f = f
        self.w = nn.ParameterList([nn.Parameter(each.double()) for each in w])

    def forward(self, x: Tensor) -> Tensor:
        logit = -torch.log(torch.expm1(self.f(torch.cat([each.flatten() for each in self.w]))))
        return torch.stack([logit, torch.zeros_like(logit)]).expand(len(x), 2)


class Logistic(nn.Module):
    """Two logits, ``(0, X w)``."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        logit = x.flatten(1).double() @ self.w
        return torch.stack([torch.zeros_like(logit), logit], 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(n: int, side: int = 4, classes: int = 2, seed: int = 0, channels: int = 1) -> Samples:
    labels = torch.arange(n) % classes
    return Samples("pictures", images(n, side, channels, seed), labels, tuple(map(str, range(classes))))


def nothing() -> Samples:
    """Four images of class 0, for modules that do not look at them."""
    return Samples("nothing", images(4, 2, 1), torch.zeros(4, dtype=torch.int64), ("0", "1"))


def psd(size: int, seed: int = 0) -> Tensor:
    root = normal(size, size, seed=seed)
    return root @ root.T / size


def quadratic(a: Tensor) -> Loss:
    """``1 + ½ wᵀAw`` at its minimum."""
    return Loss(lambda w: 1 + w @ a @ w / 2, torch.zeros(len(a)))


@cache
def few() -> Samples:
    return digits().score.first(70)


@cache
def measured() -> Measurement:
    a, b = convnets()
    return suture.stitch(a, b, at="stage2.conv", data=digits(), fit=LeastSquares(), controls=())


def stitched() -> Stitched:
    return measured().stitched


# --- the network is left as it was ----------------------------------------------------------------------------------


@each("measure", [*ALL, *RANKS], ids=lambda m: f"{m.name} {m.settings} {m.normalised}")
def test_nothing_of_the_network_is_touched(measure):
    joined = stitched().train()
    flags = {name: p.requires_grad for name, p in joined.named_parameters()}
    before = state_bits(joined)
    assert np.isfinite(measure(joined, few()))
    assert state_bits(joined) == before
    assert {name: p.requires_grad for name, p in joined.named_parameters()} == flags
    assert all(p.grad is None for p in joined.parameters())
    assert joined.stitch.training
    joined.eval()


class Breaking(nn.Module):
    """Fails when it has been called a few times, its statistics unchanged until then."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.body, self.norm, self.left = nn.Linear(16, 2), nn.BatchNorm1d(2), [calls]

    def forward(self, x: Tensor) -> Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise RuntimeError("enough")
        return self.norm(self.body(x.flatten(1)))


@each("measure", [*LANDSCAPE, *CURVATURE], ids=lambda m: f"{m.name} {m.settings} {m.normalised}")
def test_nothing_is_touched_where_the_loss_fails(measure):
    module = Breaking(1)
    module.body.weight.requires_grad_(False)
    before = state_bits(module)
    with pytest.raises(RuntimeError, match="enough"):
        measure(module, pictures(8))
    assert state_bits(module) == before
    assert (module.training, module.body.weight.requires_grad, module.body.bias.requires_grad) == (True, False, True)


def test_it_is_in_evaluation_mode_and_a_frozen_half_counts():
    """A module that is half frozen and training measures as one that is neither."""
    one, other = hybrid(0), Hybrid()
    other.load_state_dict(one.state_dict())
    other.train()
    for parameter in list(other.parameters())[:6]:
        parameter.requires_grad_(False)
    samples = Samples("float", few().images.float() / 255, few().labels, few().classes)
    measures = [GradientNorm(), MeanSharpness(), WorstSharpness(steps=2), GzipSize(), Parameters(), TopEigenvalue()]
    assert [m(one, samples) for m in measures] == [m(other, samples) for m in measures]


def test_the_stitch_is_a_small_part_of_what_counts():
    joined, receiver = stitched(), convnets()[1]
    cut = joined.seam.sender.cuts.find(joined.seam.sender_cut)
    own = sum(p.numel() for p in joined.stitch.parameters())
    assert Parameters()(joined, few()) == Parameters()(receiver, few()) + own
    assert Parameters()(receiver, few()) == sum(p.numel() for p in receiver._model.parameters())
    channels, *sides = cut.shape
    assert Flops()(joined, few()) == Flops()(receiver, few()) + 2 * channels**2 * np.prod(sides)  # a 1×1 convolution


def test_a_network_stitched_to_itself_counts_each_half():
    """Sender and receiver that share tensors measure as two networks with equal tensors."""
    a = convnets()[0]
    twin = Network(a._model, example=digits().example, name="twin")
    late, early = "stage2.relu", "stage1.relu"
    channels = [network.cuts.find(cut).shape[0] for network, cut in ((a, late), (a, early))]
    stitch = seeded(lambda: nn.Conv2d(*channels, 1))
    same, other = (Stitched(Seam(a, receiver, late, early), stitch) for receiver in (a, twin))
    for measure in (Parameters(), GradientNorm(), MeanSharpness(), GzipSize()):
        assert measure(same, few()) == measure(other, few())
    assert GradientNorm()(same, few()) > 0


# --- gradient norm --------------------------------------------------------------------------------------------------


def test_the_gradient_norm_of_a_known_slope():
    b = normal(7)
    module = Loss(lambda w: 3 + w @ b, torch.zeros(3), torch.zeros(4))
    assert GradientNorm()(module, nothing()) == pytest.approx(float(b.norm()), rel=1e-12)


def test_the_gradient_norm_of_logistic_regression():
    samples, w = pictures(300), normal(16)
    x, y = samples.images.flatten(1).double(), samples.labels
    slope = x.T @ (torch.sigmoid(x @ w) - y) / len(x)
    assert GradientNorm()(Logistic(w), samples) == pytest.approx(float(slope.norm()), rel=1e-12)
    normalised = GradientNorm(normalised=True)(Logistic(w), samples)
    assert normalised == pytest.approx(float(slope.norm() * w.norm()), rel=1e-12)


@given(st.integers(2, 40), st.integers(0, 99))
def test_the_gradient_is_the_average_of_those_of_single_images(n, seed):
    samples = pictures(n, seed=seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 2))
    module = seeded(lambda: model, seed).double()
    samples = Samples("double", samples.images.double(), samples.labels, samples.classes)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(theta, x, y):
        return nn.functional.cross_entropy(functional_call(module, theta, (x[None],)), y[None])

    each = vmap(grad(loss), (None, 0, 0))(parameters, samples.images, samples.labels)
    average = torch.cat([slope.mean(0).flatten() for slope in each.values()])
    assert GradientNorm()(module, samples) == pytest.approx(float(average.norm()), rel=1e-9)


def test_the_papers_gradient_norm_is_a_mean_over_batches():
    samples, w = pictures(70), normal(16)
    x, y = samples.images.flatten(1).double(), samples.labels
    norms = [
        float((a.T @ (torch.sigmoid(a @ w) - b)).norm()) / len(a) for a, b in zip(x.split(32), y.split(32), strict=True)
    ]
    assert len(norms) == 3
    assert GradientNorm(batch=32)(Logistic(w), samples) == pytest.approx(np.mean(norms), rel=1e-12)
    assert GradientNorm(batch=70)(Logistic(w), samples) == GradientNorm()(Logistic(w), samples)
    assert GradientNorm(batch=1)(Logistic(w), samples) > GradientNorm()(Logistic(w), samples)


def test_more_images_than_a_chunk_are_averaged_once():
    samples = pictures(700)
    halves = [GradientNorm(batch=size)(Logistic(normal(16)), samples) for size in (700, 9999)]
    assert halves[0] == halves[1]


# --- sharpness ------------------------------------------------------------------------------------------------------


def test_the_mean_sharpness_of_a_quadratic():
    """``E ½ε²gᵀAg = ½ε² tr A``, with variance ``½ε⁴ ‖A‖² / draws``."""
    a, epsilon, pairs = psd(30), 0.1, 400
    measure = MeanSharpness(epsilon, 2 * pairs, tolerance=1e-9)
    found, error = measure.estimate(Subject(quadratic(a), nothing()))
    exact = epsilon**2 * float(a.norm()) * (0.5 / pairs) ** 0.5
    assert abs(found - epsilon**2 * float(a.trace()) / 2) < 4 * exact
    assert error == pytest.approx(exact, rel=0.2)
    assert MeanSharpness(epsilon, seed=1)(quadratic(a), nothing()) != found
    seen: list[Tensor] = []

    def count(w: Tensor) -> Tensor:
        seen.append(w)
        return 1 + w @ a @ w / 2

    MeanSharpness(epsilon, 4)(Loss(count, torch.zeros(30)), nothing())
    assert len(seen) <= 4 + 2, "four draws at most, beside the loss itself and what it gives"


def test_a_slope_does_not_drown_the_mean_sharpness():
    """``f = 1 + bᵀw + ½‖w‖²`` rises by ½ε²P on average; one draw is off by ε‖b‖, ten thousand times as much."""
    b, epsilon = 100 * normal(50), 1e-3
    module = Loss(lambda w: 40 + b @ w + w @ w / 2, torch.zeros(50))
    for seed in range(3):
        found, error = MeanSharpness(epsilon, seed=seed).estimate(Subject(module, nothing()))
        assert found == pytest.approx(epsilon**2 * 50 / 2, rel=0.2)
        assert error <= 0.05 * found


@each("measure", [MeanSharpness(1e-2), HessianTrace()])
def test_draws_go_on_until_seeds_agree(measure):
    """The error that is told is the spread over seeds."""
    module = quadratic(psd(120, seed=3))
    found, errors = zip(
        *(replace(measure, seed=seed).estimate(Subject(module, nothing())) for seed in range(20)), strict=True
    )
    assert np.std(found, ddof=1) == pytest.approx(np.mean(errors), rel=0.6)
    assert np.std(found, ddof=1) < 0.08 * np.mean(found)


def test_the_noise_relative_to_a_tensor_moves_it_by_so_much_of_its_norm():
    """``f = 1 + ½‖w − w₀‖²`` at ``w₀`` rises by ``½ Σ (ε‖w₀‖)²`` over the tensors, on average."""
    tensors = [10 * normal(200), normal(1000, seed=1) / 10]
    start = torch.cat(tensors)
    module = Loss(lambda w: 1 + (w - start).square().sum() / 2, *tensors)
    expected = 0.5 * sum(float((0.03 * t.norm()) ** 2) for t in tensors)
    assert MeanSharpness(0.03, 50, normalised=True)(module, nothing()) == pytest.approx(expected, rel=0.05)


def test_the_worst_sharpness_of_a_quadratic_is_its_largest_eigenvalue():
    a = psd(30)
    exact = 0.2**2 * float(torch.linalg.eigvalsh(a)[-1]) / 2
    found = WorstSharpness(0.2, steps=60)(quadratic(a), nothing())
    assert exact * 0.999 < found <= exact * (1 + 1e-9)


@each("normalised", [False, True])
def test_the_worst_sharpness_of_a_slope(normalised):
    b, w = normal(9), [normal(4, seed=1), normal(5, seed=2)]
    module = Loss(lambda v: 40 + v @ b, *w)
    slopes = [float(part.norm()) for part in b.split([4, 5])]
    lengths = [float(each.norm()) for each in w] if normalised else [1.0, 1.0]
    exact = 0.3 * sum((s * n) ** 2 for s, n in zip(slopes, lengths, strict=True)) ** 0.5
    assert WorstSharpness(0.3, normalised=normalised)(module, nothing()) == pytest.approx(exact, rel=1e-9)


def test_the_worst_is_0_at_a_maximum():
    module = Loss(lambda w: 2 - w @ w, torch.zeros(5))
    assert WorstSharpness(0.5)(module, nothing()) == 0
    assert MeanSharpness(0.1)(module, nothing()) < 0


@each("normalised", [False, True])
def test_the_worst_is_no_less_than_any_random_perturbation(normalised):
    """Nor is one over a larger ball less than over a smaller."""
    _, network = hybrids()
    subject = Subject(network, few())
    units = subject.units(normalised)
    epsilon = 0.02 if normalised else 0.1
    rises = []
    for draw in range(10):
        noise = subject.gaussian(7, draw)
        length = float(torch.cat([each.flatten() for each in noise.values()]).norm())
        moved = subject.move({name: each * (epsilon / length) for name, each in noise.items()}, units)
        rises.append(subject.loss(moved) - subject.base)
    worst = WorstSharpness(epsilon, steps=1, seed=7, normalised=normalised)(network, few())
    assert worst >= max(rises)
    assert worst > 3 * np.mean(rises)
    assert WorstSharpness(2 * epsilon, steps=3, seed=7, normalised=normalised)(network, few()) > worst


def test_more_steps_find_more():
    network = hybrids()[1]
    found = [WorstSharpness(0.3, steps=steps)(network, few()) for steps in (1, 5, 20)]
    assert found == sorted(found)
    assert found[2] > 1.02 * found[0]


# --- normalised measures --------------------------------------------------------------------------------------------


def rescaled(by: float) -> nn.Module:
    """The same function, one layer multiplied and the next divided."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 2))
    with torch.no_grad():
        model[1].weight.mul_(by)
        model[1].bias.mul_(by)
        model[3].weight.div_(by)
    return model


@each(
    "measure",
    [
        GradientNorm(normalised=True),
        MeanSharpness(0.1, normalised=True),
        WorstSharpness(0.1, normalised=True),
        TopEigenvalue(normalised=True),
        HessianTrace(normalised=True),
    ],
    ids=lambda m: m.name,
)
def test_a_network_written_otherwise_is_as_complex(measure):
    """Powers of two leave every bit; and the raw measure does differ."""
    samples = pictures(20)
    assert measure(rescaled(8.0), samples) == pytest.approx(measure(rescaled(1.0), samples), rel=1e-6)
    raw = type(measure)()
    assert raw(rescaled(8.0), samples) != pytest.approx(raw(rescaled(1.0), samples), rel=0.2)


# --- curvature ------------------------------------------------------------------------------------------------------


def test_the_hessian_of_logistic_regression():
    """``H = Xᵀ diag(p(1 − p)) X / n``."""
    samples, w = pictures(150), normal(16)
    x = samples.images.flatten(1).double()
    p = torch.sigmoid(x @ w)
    exact = x.T @ (x * (p * (1 - p))[:, None]) / len(x)
    top = TopEigenvalue(tolerance=1e-8)(Logistic(w), samples)
    assert top == pytest.approx(float(torch.linalg.eigvalsh(exact)[-1]), rel=1e-8)
    assert HessianTrace(48)(Logistic(w), samples) == pytest.approx(float(exact.trace()), rel=1e-9)
    scaled = float(w.square().sum())
    assert TopEigenvalue(1e-8, normalised=True)(Logistic(w), samples) == pytest.approx(top * scaled, rel=1e-8)


def test_the_top_eigenvalue_is_the_largest_not_the_largest_in_size():
    a = torch.diag(torch.cat([torch.tensor([-9.0, 2.5]), torch.linspace(-1, 1, 98)])).double()
    assert TopEigenvalue(1e-6)(quadratic(a), nothing()) == pytest.approx(2.5, rel=1e-6)
    assert HessianTrace(products=300)(quadratic(a), nothing()) == pytest.approx(float(a.trace()), rel=1e-9)


def test_the_trace_of_few_directions_is_exact():
    """Hutch++ finds them all where they are no more than a third of the products."""
    root = normal(100, 8)
    module = quadratic(root @ root.T)
    assert HessianTrace(products=30)(module, nothing()) == pytest.approx(float(root.square().sum()), rel=1e-9)


def test_the_estimate_of_the_trace_is_unbiased():
    a = psd(120)
    found = [HessianTrace(products=12, seed=seed)(quadratic(a), nothing()) for seed in range(30)]
    error = np.std(found, ddof=1) / 30**0.5
    assert error > 0
    assert abs(np.mean(found) - float(a.trace())) < 4 * error


@each("name", ["vit_tiny", "mixer", "convnext_tiny", "plain"])
def test_the_product_is_the_slope_of_the_gradient(name):
    """Against central differences, in float64; forward over backward is 0.2 to 3 % off where there are LayerNorms."""
    module = seeded(ZOO[name][0]).double()
    samples = Samples("pictures", images(4, ZOO[name][1]).double(), torch.arange(4), tuple("0123456789"))
    subject = Subject(module, samples)
    along = {name: 1e-6 * each for name, each in subject.gaussian(0).items()}
    units = subject.units(False)
    ends = [subject.gradient(subject.move({n: s * v for n, v in along.items()}, units))[1] for s in (1, -1)]
    differences = torch.cat([((ends[0][n] - ends[1][n]) / 2e-6).flatten() for n in along])
    product = measures.hessian(subject)(torch.cat([v.flatten() * 1e6 for v in along.values()]))
    assert float((product - differences).norm() / differences.norm()) < 1e-4


def test_the_product_is_that_of_another_implementation():
    """curvlinops, on a stitched network without LayerNorms, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curvlinops = pytest.importorskip("curvlinops")
    subject = Subject(stitched(), few())
    module, theirs = subject.module, list(subject.module.parameters())
    batches = [(few().images[:50], few().labels[:50]), (few().images[50:], few().labels[50:])]
    vector = normal(subject.count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        operator = curvlinops.HessianLinearOperator(
            module, nn.CrossEntropyLoss(), theirs, batches, check_deterministic=False
        )
        other = (operator @ vector.float()).double()
    product = measures.hessian(subject)(vector)
    assert float((product - other).norm() / other.norm()) < 1e-5


def test_a_network_without_a_second_derivative_is_refused():
    samples = Samples("pictures", images(2, 32), torch.arange(2), tuple("0123456789"))
    with pytest.raises(NetworkError, match=r"no second derivative in torch .*hardsigmoid.*leave out"):
        TopEigenvalue()(zoo_network("mobilenetv3_small"), samples)


def test_an_eigenvalue_that_does_not_converge_is_refused():
    a = torch.diag(torch.cat([torch.linspace(0, 1, 500), torch.tensor([1 + 1e-9])])).double()
    with pytest.raises(NetworkError, match="did not converge in 1 restarts; allow more"):
        TopEigenvalue(1e-12, restarts=1)(quadratic(a), nothing())


# --- size -----------------------------------------------------------------------------------------------------------


def test_the_gzip_size_of_zeros_and_of_noise():
    samples = pictures(4, side=50)
    zeros, noise = nn.Linear(2500, 40), nn.Linear(2500, 40)
    for parameter in zeros.parameters():
        nn.init.zeros_(parameter)
    model = [nn.Sequential(nn.Flatten(), layer, nn.Linear(40, 2)) for layer in (zeros, noise)]
    small, large = (GzipSize()(each, samples) for each in model)
    count = sum(p.numel() for p in model[0].parameters())
    assert small < 0.01 * large
    assert 20 * count < large <= 33 * count
    assert GzipSize(normalised=True)(model[1], samples) == large / count


def test_the_gzip_size_is_that_of_plain_floats():
    """18 bytes of header and trailer around what zlib makes of them; all comes back."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    module[1].weight.data.copy_(torch.arange(32.0).reshape(2, 16))
    values = [float(v) for p in module.parameters() for v in p.detach().flatten()]
    content = struct.pack(f"<{len(values)}f", *values)
    pressed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    length = len(pressed.compress(content) + pressed.flush())
    assert GzipSize()(module, pictures(4)) == 8 * (18 + length)
    assert gzip.decompress(gzip.compress(content, 9, mtime=0)) == content


def test_what_counts_and_what_it_costs_is_that_of_the_cuts():
    network = zoo_network("resnet18")
    samples = Samples("pictures", images(2, 64), torch.tensor([0, 1]), ("0", "1"))
    cut = network.cuts.find("layer2")
    joined = Stitched(Seam.at(network, network, cut), Identity().build(cut.shape, cut.shape))
    whole = sum(p.numel() for p in zoo_model("resnet18").parameters())
    assert Parameters()(joined, samples) == Parameters()(network, samples) == whole
    last = network.cuts.find("flatten")
    assert Flops()(network, samples) == Flops()(joined, samples) == last.flops + 2 * 512 * 10


# --- ranks ----------------------------------------------------------------------------------------------------------


def planted(n: int, features: int, values: list[float], seed: int = 0) -> Tensor:
    """A matrix of these singular values, once centred."""
    left = normal(n, len(values), seed=seed)
    left, _ = torch.linalg.qr(left - left.mean(0))
    right, _ = torch.linalg.qr(normal(features, len(values), seed=seed + 1))
    return left * torch.tensor(values).double() @ right.T + normal(features, seed=seed + 2)


@each(("n", "features"), [(300, 40), (40, 300), (60, 60), (700, 20), (20, 5000)])
def test_the_ranks_of_planted_matrices(n, features):
    assert numerical_rank(planted(n, features, [3.0] * 7)) == 7
    assert effective_rank(planted(n, features, [3.0] * 7)) == pytest.approx(7, rel=1e-6)
    values = [1.0, 0.5, 0.0317, 0.0315, 1e-3]  # squared: 1, 0.25, 1.005e-3, 0.992e-3, 1e-6
    assert numerical_rank(planted(n, features, values)) == 3
    assert numerical_rank(planted(n, features, values), threshold=0.1) == 2
    p = np.array(values) / sum(values)
    assert effective_rank(planted(n, features, values)) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-6)


@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 99), st.booleans())
def test_ranks_are_those_of_numpy(n, features, seed, single):
    x = normal(n, features, seed=seed) ** 3
    x = x.float() if single else x
    centred = x.double().numpy() - x.double().numpy().mean(0)
    values = np.linalg.svd(np.atleast_2d(np.cov(x.double().numpy().T)), compute_uv=False)
    assert numerical_rank(x) == (values > 1e-3 * values[0]).sum()
    sigma = np.linalg.svd(centred, compute_uv=False)
    p = sigma[sigma > 1e-7 * sigma[0]] / sigma.sum()
    assert effective_rank(x) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-5)


@given(st.integers(3, 30), st.integers(2, 30), st.integers(0, 99), st.sampled_from([1e-20, 1.0, 1e15]))
def test_a_rotation_a_scale_and_a_shift_change_no_rank(n, features, seed, scale):
    x = normal(n, features, seed=seed) @ torch.diag(0.5 ** torch.arange(features)).double()
    turn, _ = torch.linalg.qr(normal(features, features, seed=seed + 1))
    moved = scale * (x @ turn + 3)
    assert numerical_rank(moved) == numerical_rank(x)
    assert effective_rank(moved) == pytest.approx(effective_rank(x), rel=1e-4)


def test_what_does_not_vary_has_rank_0():
    constant = torch.full((8, 5), 0.1)
    assert (numerical_rank(constant), effective_rank(constant)) == (0, 0.0)
    constant[:, 0] = torch.arange(8)
    assert (numerical_rank(constant), effective_rank(constant)) == (1, pytest.approx(1))


def test_maps_become_samples_as_asked():
    maps = normal(400, 3, 4, 4).float()
    rows = maps.flatten(2).transpose(1, 2).reshape(-1, 3)
    assert numerical_rank(maps, samples_as="pixels") == numerical_rank(rows) == 3
    assert effective_rank(maps, "pixels") == pytest.approx(effective_rank(rows), rel=1e-12)
    assert numerical_rank(maps) == numerical_rank(maps.flatten(1)) == 48


FIRST = {
    "resnet18": [("maxpool", "layer1.0.conv1"), ("layer1", "layer2.0.conv1"), ("layer4", "fc")],
    "vit_tiny": [("blocks.0", "blocks.1.attn.qkv")],
    "vgg19_bn": [("features.2", "features.3"), ("features.52", "classifier.0")],
    "convnext_tiny": [("stages.1.blocks.0", "stages.1.blocks.1.conv_dw")],
    "mixer": [("blocks.1", "blocks.2.mlp_tokens.fc1")],
}


@each(("name", "cut", "layer"), [(n, *pair) for n, pairs in FIRST.items() for pair in pairs])
def test_the_first_layer_after_the_stitch_is_the_one_that_a_hook_would_find(name, cut, layer):
    model, network, x = zoo_model(name), zoo_network(name), images(6, ZOO[name][1])
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda *args: seen.append(args[2].clone()))
    with torch.no_grad():
        model(x.clone())
        handle.remove()
        found = at_first_layer(network.after(cut), network.upto(cut)(x))
    assert torch.equal(found, seen[0])


def test_the_first_layer_may_be_torchs_attention():
    model, network, x = zoo_model("vit_b_16"), zoo_network("vit_b_16"), images(6, ZOO["vit_b_16"][1])
    cut = "encoder.layers.encoder_layer_1"
    seen: list[Tensor] = []
    hook = lambda *args: seen.append(args[2][0])  # noqa: E731
    handle = model.encoder.layers.encoder_layer_2.self_attention.register_forward_hook(hook)
    with torch.no_grad():
        model(x.clone())
        handle.remove()
        found = at_first_layer(network.after(cut), network.upto(cut)(x))
    assert found.shape == seen[0].shape
    assert torch.allclose(found, seen[0], atol=1e-5)


def branching(model: nn.Module, x: Tensor) -> Tensor:
    """A second convolution after what no symbolic trace can follow."""
    h = model.relu(model.conv(x))
    if h.shape[0] > 1:
        h = h.contiguous()
    return model.end(model.next(h))


@each("backend", ["torch.export", "stages"])
def test_the_first_layer_is_found_whatever_found_the_cuts(backend):
    model, x = made_of(branching), images(6, 8)
    stages = ["conv", "relu", "next", ("end", model.end)] if backend == "stages" else None
    network = Network(model, example=x, stages=stages)
    assert network.backend == backend
    with torch.no_grad():
        expected = model.next(model.relu(model.conv(x)))
        found = at_first_layer(network.after("conv"), network.upto("conv")(x))
    assert torch.equal(found, expected)


def test_the_rank_of_a_stitched_network_is_that_of_its_parts():
    joined, samples = stitched(), few()
    with torch.no_grad():
        sent = joined.eval().prefix(samples.images)
        received = at_first_layer(joined.suffix, joined.stitch(sent))
    for measure, function in ((NumericalRank, numerical_rank), (EffectiveRank, effective_rank)):
        assert measure()(joined, samples) == pytest.approx(function(received), rel=1e-9)
        assert measure(samples_as="pixels")(joined, samples) == pytest.approx(function(received, samples_as="pixels"))
        share = measure(normalised=True)(joined, samples)
        assert share == pytest.approx(function(received) / min(len(received), received[0].numel()))


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_measure_and_joins_on_the_seam():
    rows = complexity(stitched(), few(), by=[GradientNorm(), GzipSize(), NumericalRank(samples_as="pixels")])
    assert list(rows["measure"]) == ["gradient norm", "gzip size", "numerical rank"]
    assert list(rows["n"].isna()) == [False, True, False]
    assert list(rows["samples_as"]) == ["", "", "pixels"]
    assert list(rows["settings"]) == ["batch=None", "", "threshold=0.001"]
    keys = ["sender", "receiver", "sender_cut", "receiver_cut", "sender_depth", "receiver_depth"]
    assert list(rows.columns) == [*keys, *COLUMNS]
    both = to_table([measured()]).merge(rows, on=keys)
    assert list(both[both["score"] == "accuracy"]["measure"]) == list(rows["measure"])
    assert {column: str(rows[column].dtype) for column in ("value", "n", "normalised")} == {
        "value": "float64",
        "n": "Int64",
        "normalised": "bool",
    }


@pytest.mark.slow
def test_the_same_input_gives_the_same_bits_alone_or_among_others():
    by = [LANDSCAPE[2], *SIZE, TopEigenvalue(0.1), HessianTrace(3), *RANKS]
    first = complexity(stitched(), few(), by)
    pd.testing.assert_frame_equal(first, complexity(stitched(), few(), by))
    alone = [measure(stitched(), few()) for measure in by]
    assert list(first["value"]) == alone


@pytest.mark.slow
def test_a_network_and_a_module_are_measured_as_they_are():
    network = convnets()[0]
    labels = {"network": "C"}
    table = complexity(network, few(), labels=labels)
    assert list(table.columns) == ["network", *COLUMNS]
    assert len(table) == len(LANDSCAPE + SIZE)
    assert list(complexity(network.whole(), few())["value"]) == list(table["value"])
    assert len(complexity(stitched(), few())) == len(table) + len(RANKS)


REFUSED = {
    "a rank without a stitch": (lambda: NumericalRank()(convnets()[0], few()), DataError, "taken after a stitch"),
    "a name": (lambda: complexity(convnets()[0], few(), "flops"), DataError, "by='flops' is a str; give measures of"),
    "twice": (lambda: complexity(convnets()[0], few(), [Flops(), Flops()]), DataError, "asked for twice"),
    "nothing": (lambda: complexity(convnets()[0], few(), []), DataError, "no measure is asked for"),
    "epsilon": (lambda: MeanSharpness(0), DataError, r"MeanSharpness\(epsilon=0\): epsilon must be above 0"),
    "steps": (lambda: WorstSharpness(steps=0), DataError, "steps must be above 0"),
    "products": (lambda: HessianTrace(products=2), DataError, "products must be 3 or more"),
    "batch": (lambda: GradientNorm(batch=0), DataError, "batch must be above 0"),
    "threshold": (lambda: numerical_rank(normal(5, 5), 1.0), DataError, r"in \[0, 1\)"),
    "no floats": (lambda: numerical_rank(torch.zeros(5, 5, dtype=torch.int64)), DataError, "floating type"),
    "raw images": (lambda: Flops()(nn.Linear(8, 2), few()), DataError, "make it a suture.Network"),
    "no logits": (lambda: Flops()(nn.Flatten(2), pictures(4)), DataError, r"needs logits \(n, classes\)"),
    "too few": (lambda: Flops()(nn.Flatten(), pictures(4, 2, 9)), DataError, "4 outputs and 'pictures' has 9 classes"),
    "nan": (
        lambda: MeanSharpness()(Loss(lambda w: w.sum() * torch.nan, torch.zeros(1)), nothing()),
        NetworkError,
        "is nan",
    ),
    "another task": (
        lambda: complexity(
            nn.Flatten(), Samples("pictures", images(4, 4, 1), torch.rand(4, 16), task=Regression()), GradientNorm()
        ),
        DataError,
        "gradient norm is of the cross-entropy of one class per sample, and the task of 'pictures' is regression",
    ),
    "no layer": (lambda: at_first_layer(nn.ReLU(), normal(3, 4)), NetworkError, "no convolution or linear layer"),
}


@each(("ask", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()


def test_all_is_checked_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(Subject, "gradient", None)
    with pytest.raises(DataError, match="taken after a stitch"):
        complexity(convnets()[0], few(), [GradientNorm(), NumericalRank()])

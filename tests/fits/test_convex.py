"""The convex solve before a head, against scikit-learn and against the start; and where it is not to be taken."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor, fx, nn

from loops import each
from problems import SOME, built, named, problem, side, validation_loss
from suture.core.fused import Fused
from suture.core.stitches import AffineMap, Conv, Linear, Shape, Stitch, StridedConv
from suture.fits import Converged, Problem, Quick, convex
from suture.fits.convex import Head, read_head, solve

CLASSES = 4


class Mean(nn.Module):
    """The mean of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def after(shape: Shape, seed: int = 1, classes: int = CLASSES) -> nn.Module:
    """Pooling and a linear layer after a cut of this shape."""
    torch.manual_seed(seed)
    match len(shape):
        case 3:
            layers = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[0], classes)]
        case 2:
            layers = [Mean(), nn.Linear(shape[1], classes)]
        case _:
            layers = [nn.Linear(shape[0], classes)]
    return nn.Sequential(*layers).requires_grad_(False)


def fused_head(suffix: nn.Module) -> Fused:
    return Fused(fx.symbolic_trace(suffix), torch.float32, copies=False, only_head=True)


def posed(family: Stitch, sender: Shape, receiver: Shape, suffix: nn.Module, n: int = 400) -> Problem:
    """A planted stitch with noise on what the receiver shows of itself; the labels are the receiver's."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(n, *sender, generator=random) + 1
    with torch.no_grad():
        own = 2 * built(family, sender, receiver, seed=9).eval()(x)
        own = own + 0.5 * own.std() * torch.randn(own.shape, generator=random)
        out = suffix(own)
        labels = (out - out.mean(0)).argmax(1)
    parts = [side(x[part], labels[part], own[part]) for part in (slice(n // 2), slice(n // 2, n))]
    p = problem(*parts, family, suffix)
    return replace(p, fused=lambda dtype: fused_head(suffix))


def probed(shape: Shape, family: Stitch, sender: Shape) -> tuple[Tensor, object]:
    x = torch.randn(8, *sender)
    return torch.randn(8, *shape), family.parts(built(family, sender, shape), x)[0]


HEADS = [(Linear(), (5,), (6,)), (Linear(), (3, 5), (3, 6)), (Conv(batchnorm=False), (5, 3, 3), (6, 3, 3))]


@each(("family", "sender", "receiver"), HEADS, ids=named)
def test_the_linear_layer_is_read_off(family, sender, receiver):
    suffix = after(receiver)
    probe, part = probed(receiver, family, sender)
    head = read_head(suffix, receiver, part, probe)
    assert head is not None
    torch.testing.assert_close(head.weight.float(), suffix[-1].weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.bias.float(), suffix[-1].bias, rtol=1e-4, atol=1e-5)


@each(
    "layers",
    [
        [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)],
        [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)],
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES), nn.ReLU()],
        [nn.Flatten(), nn.Linear(54, CLASSES)],
    ],
    ids=["the largest", "not linear", "not linear after", "weights for every place"],
)
def test_what_is_no_mean_and_linear_layer_is_no_head(layers):
    probe, part = probed((6, 3, 3), Conv(batchnorm=False), (5, 3, 3))
    assert read_head(nn.Sequential(*layers), (6, 3, 3), part, probe) is None


def logistic(seed: int = 0, n: int = 300, classes: int = CLASSES, features: int = 6) -> tuple[Tensor, Tensor]:
    """Samples of classes that overlap, in features of different units."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(5))
    x = centres[labels] + 1.2 * torch.randn(n, features, generator=random)
    return x * 10 ** torch.linspace(-1, 1, features) + 2, labels


def nothing(features: int, width: int) -> AffineMap:
    """A start that gives nothing but zeros."""
    zeros = torch.zeros(features, dtype=torch.float64)
    out = torch.zeros(width, dtype=torch.float64)
    weight = torch.zeros(width, features, dtype=torch.float64)
    return AffineMap(weight, out, zeros, zeros + 1, out)


@pytest.mark.parametrize("penalty", [1e-2, 1e-3])
@pytest.mark.parametrize("shape", [(6,), (6, 3, 3)], ids=named)
def test_it_is_the_logistic_regression_of_scikit_learn(monkeypatch, penalty, shape):
    """From a start of zero the penalty is on the whole map, of standardised features, and the shift is free."""
    monkeypatch.setattr(convex, "PENALTIES", (penalty,))
    means, labels = logistic()
    family = Linear() if len(shape) == 1 else Conv(batchnorm=False)
    x = means
    if len(shape) == 3:
        ripple = torch.randn(len(means), *shape, generator=torch.Generator().manual_seed(1))
        x = means[:, :, None, None] + ripple - ripple.mean((2, 3), keepdim=True)
    torch.manual_seed(2)
    weight = torch.randn(CLASSES, 5, dtype=torch.float64)
    head = Head(weight, torch.randn(CLASSES, dtype=torch.float64))
    receiver = (5, *shape[1:])
    part = family.parts(built(family, shape, receiver), x)[0]
    found = solve(head, part, nothing(6, 5), (x, labels), (x, labels))
    standard = ((means - means.mean(0)) / means.std(0, correction=0)).double().numpy()
    model = LogisticRegression(C=1 / (2 * len(means) * penalty), tol=1e-10, max_iter=10_000).fit(standard, labels)
    logits = torch.from_numpy(model.decision_function(standard))
    wanted = float(nn.functional.cross_entropy(logits, labels)) + penalty * float(np.square(model.coef_).sum())
    made = (means.double() @ found.affine.weight.T + found.affine.bias) @ head.weight.T + head.bias
    change = head.weight @ found.affine.weight * means.double().std(0, correction=0)
    got = float(nn.functional.cross_entropy(made, labels)) + penalty * float(change.square().sum())
    assert got == pytest.approx(wanted, abs=1e-4)
    assert found.fit_loss == pytest.approx(float(nn.functional.cross_entropy(made, labels)), abs=1e-4)


@each("rank", [1, 2])
def test_a_head_that_does_not_see_all_is_solved_for_what_it_sees(rank):
    x, labels = logistic()
    torch.manual_seed(3)
    weight = torch.randn(CLASSES, rank, dtype=torch.float64) @ torch.randn(rank, 5, dtype=torch.float64)
    start = replace(nothing(6, 5), weight=torch.randn(5, 6, dtype=torch.float64) / 10)
    part = Linear().parts(built(Linear(), (6,), (5,)), x)[0]
    found = solve(Head(weight, torch.zeros(CLASSES, dtype=torch.float64)), part, start, (x, labels), (x, labels))
    assert found.loss < found.start_loss
    change = found.affine.weight - start.weight
    unseen = torch.eye(5, dtype=torch.float64) - torch.linalg.pinv(weight) @ weight
    assert float((unseen @ change).abs().max()) < 1e-8 * float(change.abs().max())


def test_more_classes_than_features():
    x, labels = logistic(classes=9)
    torch.manual_seed(3)
    head = Head(torch.randn(9, 2, dtype=torch.float64), torch.zeros(9, dtype=torch.float64))
    part = Linear().parts(built(Linear(), (6,), (2,)), x)[0]
    found = solve(head, part, nothing(6, 2), (x, labels), (x, labels))
    assert found.loss < found.start_loss
    assert found.affine.weight.isfinite().all()


def test_features_that_do_not_vary_do_no_harm():
    x, labels = logistic()
    x[:, 2] = 7.0
    part = Linear().parts(built(Linear(), (6,), (5,)), x)[0]
    torch.manual_seed(2)
    head = Head(torch.randn(CLASSES, 5, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64))
    found = solve(head, part, nothing(6, 5), (x, labels), (x, labels))
    assert found.affine.weight.isfinite().all()
    assert found.loss < found.start_loss


def test_the_validation_data_decide_and_may_keep_the_start():
    x, labels = logistic()
    torch.manual_seed(2)
    head = Head(torch.randn(CLASSES, 5, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64))
    part = Linear().parts(built(Linear(), (6,), (5,)), x)[0]
    start = nothing(6, 5)
    kept = solve(head, part, start, (x, (labels + 1) % CLASSES), (x, labels))
    assert kept.loss == kept.start_loss
    torch.testing.assert_close(kept.affine.weight, start.weight)
    torch.testing.assert_close(kept.affine.bias, start.bias)


@pytest.mark.slow
@each(("family", "sender", "receiver"), SOME, ids=named)
def test_before_a_head_no_family_ends_worse_than_it_began(family, sender, receiver):
    suffix = after(receiver)
    p = posed(family, sender, receiver, suffix)
    start, stitch = (built(family, sender, receiver) for _ in range(2))
    Quick(steps=0).fit(p, start)
    report = Converged(cap=140).fit(p, stitch)
    before, now = validation_loss(p, start), validation_loss(p, stitch)
    assert now <= before * (1 + 1e-4) + 1e-6
    losses = [point.validation_loss for point in report.curve]
    assert any(loss == pytest.approx(now, rel=1e-3) for loss in losses), "the curve is of another stitch"


@pytest.mark.parametrize(
    ("family", "sender", "receiver"),
    [*HEADS, (StridedConv(), (3, 4, 4), (4, 2, 2)), (Conv(), (5, 3, 3), (6, 3, 3))],
    ids=named,
)
def test_where_it_is_taken_it_is_better_than_the_closed_form(monkeypatch, family, sender, receiver):
    solved = []
    monkeypatch.setattr(convex, "solve", lambda *given: solved.append(solve(*given)) or solved[-1])
    p = posed(family, sender, receiver, after(receiver))
    start, stitch = (built(family, sender, receiver) for _ in range(2))
    Quick(steps=0).fit(p, start)
    report = Converged().fit(p, stitch)
    assert len(solved) == 1
    assert validation_loss(p, stitch) < 0.95 * validation_loss(p, start)
    assert validation_loss(p, stitch) == pytest.approx(solved[0].loss, rel=1e-3)
    assert report.converged
    assert report.steps == solved[0].iterations


def test_the_bits_do_not_depend_on_the_threads_of_scipys_own_sums():
    random = torch.Generator().manual_seed(0)
    features, classes = 1024, 10  # together more numbers than OpenBLAS leaves to one thread
    x, labels = torch.randn(200, features, generator=random), torch.randint(0, classes, (200,), generator=random)
    softmax = convex._Softmax(x.double(), labels, torch.eye(classes).double(), torch.zeros(classes).double())
    found = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            found.append(softmax.minimised(torch.zeros(classes, features + 1).double(), 1e-3, 15)[0])
    assert torch.equal(*found)


def test_what_only_a_small_penalty_finds_is_found():
    """The class lies in the difference of two features that are nearly the same."""
    random = torch.Generator().manual_seed(0)
    shared, told = torch.randn(600, 1, generator=random), torch.randn(600, 4, generator=random)
    x = torch.cat([shared + 0.03 * told, shared], 1)
    labels = (told + torch.randn(600, 4, generator=random) / 3).argmax(1)
    part = Linear().parts(built(Linear(), (5,), (4,)), x)[0]
    head = Head(torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    sides = [(x[part], labels[part]) for part in (slice(300), slice(300, 600))]
    found = solve(head, part, nothing(5, 4), *sides)
    assert found.converged
    outputs = x[300:].double() @ found.affine.weight.T + found.affine.bias
    model = LogisticRegression(C=1e6, max_iter=10_000).fit(x[:300].numpy(), labels[:300].numpy())
    wanted = float(np.mean(model.predict(x[300:].numpy()) != labels[300:].numpy()))
    assert wanted < 0.3
    assert float((outputs.argmax(1) != labels[300:]).double().mean()) <= wanted + 0.02
    assert not solve(head, part, nothing(5, 4), *sides, (3e-2, 1e-2)).converged, "a smaller one gains more"
    assert not solve(head, part, nothing(5, 4), *sides, (1e-6,), 2).converged, "two iterations are not enough"

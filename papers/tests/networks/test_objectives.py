"""Objectives: their losses against plain loops, and what a network carries while it trains."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from suture.common.errors import FitError
from suture_papers.networks.architectures import convnet
from suture_papers.training.recipe import LabelCrossEntropy, Objective, SimCLR, nt_xent


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return convnet(width=4)


def attached(objective: Objective, model: nn.Module, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return objective.attach(model)


class Views:
    """Other images at every call."""

    def __init__(self, n: int = 6) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.n, self.given = n, []

    def __call__(self) -> Tensor:
        self.given.append(torch.rand(self.n, 1, 8, 8, generator=self.random))
        return self.given[-1]


LABELS = torch.arange(6)


# --- cross-entropy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_is_minus_the_mean_log_probability_of_the_smoothed_label(smoothing):
    model, views = network(), Views()
    loss = LabelCrossEntropy(smoothing).loss(model, views, LABELS)
    logits = model(views.given[0]).double().tolist()
    total = 0.0
    for row, label in zip(logits, LABELS.tolist(), strict=True):
        norm = math.log(sum(map(math.exp, row)))
        target = [smoothing / 10 + (1 - smoothing) * (i == label) for i in range(10)]
        total -= sum(share * (value - norm) for share, value in zip(target, row, strict=True))
    assert loss.item() == pytest.approx(total / 6, rel=1e-5)
    assert len(views.given) == 1


def test_cross_entropy_trains_the_model_itself():
    model = network()
    assert LabelCrossEntropy().attach(model) is model
    assert LabelCrossEntropy().detach(model) is model


# --- NT-Xent ----------------------------------------------------------------------------------------------------------


def plainly(projections: Tensor, temperature: float) -> float:
    """Chen et al. 2020, equation 1 and algorithm 1, by hand; the views of image k are k and n + k."""
    z, n = projections.tolist(), len(projections) // 2

    def similarity(one: list[float], other: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))

    def pair(i: int, j: int) -> float:
        others = math.fsum(math.exp(similarity(z[i], z[k]) / temperature) for k in range(2 * n) if k != i)
        return -math.log(math.exp(similarity(z[i], z[j]) / temperature) / others)

    return math.fsum(pair(k, n + k) + pair(n + k, k) for k in range(n)) / (2 * n)


@given(n=st.integers(2, 6), d=st.integers(1, 5), temperature=st.floats(0.05, 5), seed=st.integers(0, 99))
def test_nt_xent_is_equation_1(n, d, temperature, seed):
    z = torch.randn(2 * n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert float(nt_xent(z, temperature)) == pytest.approx(plainly(z, temperature), rel=1e-9)


@given(seed=st.integers(0, 99))
def test_nt_xent_knows_neither_lengths_nor_rotations_nor_the_order_of_images_or_views(seed):
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(8, 5, dtype=torch.float64, generator=random)
    loss = nt_xent(z, 0.5)
    lengths = torch.rand(8, 1, dtype=torch.float64, generator=random) + 0.1
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=random)).Q
    order = torch.randperm(4, generator=random)
    for same in (z * lengths, z @ rotation, z.roll(4, 0), torch.cat([z[:4][order], z[4:][order]])):
        torch.testing.assert_close(nt_xent(same, 0.5), loss)
    assert not torch.isclose(nt_xent(torch.cat([z[:4], z[4:][[1, 2, 3, 0]]]), 0.5), loss), "but who belongs to whom"


def test_nt_xent_of_views_that_are_all_alike_is_that_of_a_guess():
    assert float(nt_xent(torch.ones(10, 3), 0.5)) == pytest.approx(math.log(9), rel=1e-6)


def test_nt_xent_has_the_gradient_of_its_differences():
    z = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: nt_xent(z, 0.5), z)


def test_nt_xent_of_bfloat16_is_taken_in_float32():
    z = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(z, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, nt_xent(z.float(), 0.1), rtol=1e-6, atol=0)


# --- SimCLR -----------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_two_views_that_pass_the_network_together():
    objective, views = SimCLR(0.3, projection=7), Views()
    trained = attached(objective, network())
    loss = objective.loss(trained.train(), views, LABELS)
    assert len(views.given) == 2
    assert not torch.equal(*views.given)
    both = trained(torch.cat(views.given))
    assert both.shape == (12, 7)
    assert loss.item() == pytest.approx(plainly(both.double(), 0.3), rel=1e-5)


def test_the_gradient_reaches_the_whole_encoder_and_the_projection_and_nothing_else():
    objective = SimCLR()
    trained = attached(objective, network())
    objective.loss(trained, Views(), LABELS).backward()
    names = {name for name, _ in trained.named_parameters()}
    assert {name for name in names if name.startswith("head.")} == {
        f"head.{layer}.{part}" for layer in ("hidden", "output") for part in ("weight", "bias")
    }
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_the_projection_is_two_linear_layers_and_a_relu():
    trained = attached(SimCLR(projection=5), network())
    features = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    hidden, output = trained.head.hidden, trained.head.output
    assert (hidden.weight.shape, output.weight.shape) == ((16, 16), (5, 16))
    wanted = (features @ hidden.weight.T + hidden.bias).clamp(min=0) @ output.weight.T + output.bias
    torch.testing.assert_close(trained.head(features), wanted)


@pytest.mark.parametrize("bias", [True, False])
def test_training_gives_the_model_back_with_its_last_layer_untouched(bias):
    model = network()
    model.head = nn.Linear(16, 10, bias=bias)
    before = copy.deepcopy(model)
    last = model.head
    objective = SimCLR()
    trained = attached(objective, model)
    optimiser = torch.optim.SGD(trained.parameters(), 0.1, weight_decay=0.1)
    objective.loss(trained, Views(), LABELS).backward()
    optimiser.step()
    found = objective.detach(trained)
    assert found is model
    assert found.head is last
    assert list(found.state_dict()) == list(before.state_dict())
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name]) == name.startswith("head."), name
    assert found(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_the_projection_comes_from_the_global_generator_alone():
    one, two, other = (attached(SimCLR(), network(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["head.hidden.weight"], other["head.hidden.weight"])


def test_a_copy_of_what_is_trained_can_be_detached_alone():
    trained = attached(SimCLR(), network())
    taken = SimCLR().detach(copy.deepcopy(trained))
    assert isinstance(taken.head, nn.Linear)
    assert trained(Views()()).shape == (6, 128)
    assert SimCLR().detach(trained).head is not taken.head


def test_the_last_linear_layer_is_found_wherever_it_lies():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)))
    trained = attached(SimCLR(projection=4), model)
    assert isinstance(trained[3][0], nn.Linear)
    assert trained(Views()()).shape == (6, 4)
    assert isinstance(SimCLR().detach(trained)[3][1], nn.Linear)


def test_types_of_the_model_are_kept():
    trained = attached(SimCLR(), network().double())
    assert {p.dtype for p in trained.parameters()} == {torch.float64}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: SimCLR().attach(nn.Conv2d(1, 1, 1)), r"finds no nn.Linear inside Conv2d"),
        (lambda: SimCLR().attach(nn.Linear(1, 1)), r"finds no nn.Linear inside Linear"),
        (lambda: SimCLR().loss(SimCLR().attach(network()), Views(1), LABELS[:1]), r"was given 1; use batches of at"),
        (lambda: SimCLR().loss(network(), Views(), LABELS), r"gives \(12, 10\) for two views of 6 images"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong, said):
    with pytest.raises(FitError, match=said):
        wrong()

"""Penalties, pruning, and when training ends."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from suture.common.errors import FitError
from suture_papers.networks.architectures import convnet
from suture_papers.training.recipe import L1, L2, Plateau, Prune


def parameters(seed: int = 0) -> dict[str, nn.Parameter]:
    torch.manual_seed(seed)
    return dict(convnet(width=4).named_parameters())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- penalties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "value", "slope"),
    [(L1(0.3), lambda w: 0.3 * abs(w), lambda w: 0.3 * w.sign()), (L2(0.3), lambda w: 0.3 * w * w, lambda w: 0.6 * w)],
)
def test_a_penalty_is_the_sum_over_all_weights_and_biases_and_so_is_its_gradient(penalty, value, slope):
    own = parameters()
    assert any(name.endswith("bias") for name in own)
    found = penalty(own)
    wanted = math.fsum(float(value(w)) for p in own.values() for w in p.detach().double().flatten())
    assert found.shape == ()
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    found.backward()
    for parameter in own.values():
        torch.testing.assert_close(parameter.grad, slope(parameter.detach()))


def test_l1_leaves_zeros_alone():
    own = {"w": nn.Parameter(torch.tensor([0.0, 2.0, -3.0]))}
    L1(1.0)(own).backward()
    assert own["w"].grad.tolist() == [0, 1, -1]


def test_l2_is_a_weight_decay_of_twice_its_weight():
    one, two = ({"w": nn.Parameter(torch.randn(50, generator=seeded()).double())} for _ in range(2))
    penalised = torch.optim.SGD(one.values(), 0.1, 0.9)
    decaying = torch.optim.SGD(two.values(), 0.1, 0.9, weight_decay=0.4)
    for _ in range(5):
        for own, optimiser, penalty in ((one, penalised, L2(0.2)), (two, decaying, L2(0.0))):
            optimiser.zero_grad()
            (penalty(own) + (own["w"] - 1).square().sum()).backward()
            optimiser.step()
    torch.testing.assert_close(one["w"], two["w"])


# --- pruning ----------------------------------------------------------------------------------------------------------


@given(share=st.floats(0, 1), seed=st.integers(0, 99))
def test_exactly_the_share_of_every_weight_is_set_to_zero(share, seed):
    own = parameters(seed)
    before = {name: p.detach().clone() for name, p in own.items()}
    assert Prune(share, every=1)(own, 1, seeded(seed))
    for name, parameter in own.items():
        if parameter.dim() < 2:
            assert torch.equal(parameter, before[name]), "biases and norms stay"
            continue
        assert int((parameter == 0).sum()) == round(share * parameter.numel())
        kept = parameter != 0
        assert torch.equal(parameter[kept], before[name][kept])


def test_pruning_comes_every_so_many_steps():
    random, untouched = seeded(), seeded().get_state()
    pruned = []
    for step in range(13):
        own = parameters()
        was = Prune(0.5, every=4)(own, step, random)
        assert was == any((p == 0).any() for p in own.values() if p.dim() >= 2)
        assert was or step > 4 or torch.equal(random.get_state(), untouched)
        pruned += [step] * was
    assert pruned == [4, 8, 12]


def test_the_generator_decides_which_and_every_entry_is_as_likely():
    def zeros(seed: int, layout: torch.memory_format = torch.contiguous_format) -> Tensor:
        own = {"w": nn.Parameter(torch.ones(4, 3, 2, 2).contiguous(memory_format=layout))}
        Prune(0.25, every=1)(own, 1, seeded(seed))
        return own["w"].detach() == 0

    assert torch.equal(zeros(1), zeros(1))
    assert torch.equal(zeros(1), zeros(1, torch.channels_last)), "however the weights lie in memory"
    counts = sum(zeros(seed).int() for seed in range(400))
    assert 60 < counts.min() <= counts.max() < 145, "about 100 of 400"


def test_what_was_pruned_grows_again_and_the_optimiser_is_left_alone():
    own = parameters()
    optimiser = torch.optim.SGD(own.values(), 0.1, 0.9)
    sum(p.sum() for p in own.values()).backward()
    optimiser.step()
    Prune(1.0, every=1)(own, 1, seeded())
    assert all(bool((optimiser.state[p]["momentum_buffer"] == 1).all()) for p in own.values())
    optimiser.step()
    assert all(bool((p != 0).all()) for p in own.values() if p.dim() >= 2)


# --- plateau ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "over"),
    [
        ([], False),
        ([1, 1], False),
        ([1, 1, 1], True),
        ([1, 0.95, 0.95], True),
        ([1, 0.9, 0.9], True),
        ([1, 0.89, 1], False),
        ([1, 1, 0.89], False),
        ([1, 0.5, 0.6, 0.46], True),
        ([1, 0.5, 0.6, 0.44], False),
        ([1, 0.95, 0.89], False),
        ([0, 0, 0], True),
    ],
)
def test_a_plateau_is_two_epochs_that_are_not_a_tenth_better_than_the_best_before(losses, over):
    assert Plateau(patience=2, least=0.1).is_reached(losses) == over


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30), st.integers(1, 5), st.sampled_from([0.0, 0.01, 0.2]))
def test_a_plateau_is_where_nothing_was_gained(losses, patience, least):
    plateau = Plateau(patience, least)
    for n in range(1, len(losses) + 1):
        best, lately = min(losses[: max(n - patience, 0)], default=math.inf), losses[max(n - patience, 0) : n]
        gained = n <= patience or any(loss < best - least * best for loss in lately)
        assert plateau.is_reached(losses[:n]) == (not gained)
        assert plateau.is_reached([4 * loss for loss in losses[:n]]) == (not gained), "whatever the loss's unit"


def test_a_loss_that_falls_ends_where_it_has_levelled_out():
    losses = [1 + math.exp(-epoch / 5) for epoch in range(100)]
    ends = next(n for n in range(1, 101) if Plateau().is_reached(losses[:n]))
    gains = [(losses[n - 6] - losses[n - 1]) / losses[n - 6] for n in range(6, 101)]
    assert ends == 6 + next(i for i, gain in enumerate(gains) if gain <= 0.01)
    assert 20 < ends < 30


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Prune(1.5), r"Prune\(share=1.5\): share is between 0 and 1"),
        (lambda: Prune(math.nan), r"Prune\(share=nan\)"),
    ],
)
def test_settings_without_a_meaning_are_refused(wrong, said):
    with pytest.raises(FitError, match=said):
        wrong()

"""The planted law: rotate a hidden layer of a copy, and the fit finds the way back.

The sender is the receiver with an invertible map ``Q`` behind one of its layers; its representation is ``Q·h + s``, and
nothing else undoes that. The best stitch is known: ``Q⁻¹·(· − s)``.
"""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from loops import each
from suture import Seam, Trial, measure
from suture.core.stitches import Conv, Diagonal, Identity, Linear, Orthogonal, Permutation
from suture.fits import Adam, LeastSquares, MatchActivations, Narrower, Random, SoftLabels, TaskLoss
from suture.measurement.scores.scores import Accuracy
from trained import digits, hybrid, wrap

PLACES = {
    "conv": Conv(),  # maps, before their BatchNorm
    "norm": Conv(batchnorm=False),
    "embed": Linear(),  # tokens
    "hidden": Linear(),  # a vector
}


def rotation(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(n)))[0]


def permutation(n: int) -> Tensor:
    return torch.eye(n)[torch.randperm(n, generator=torch.Generator().manual_seed(n))]


def rescaling(n: int) -> Tensor:
    return torch.diag(torch.logspace(-1, 1, n)[torch.randperm(n, generator=torch.Generator().manual_seed(n))])


def plant(place: str, q: Tensor, shift: Tensor) -> nn.Module:
    """A copy of the trained network whose layer gives ``q · h + shift``."""
    model = copy.deepcopy(hybrid(0))
    n = len(q)
    planted = nn.Conv2d(n, n, 1) if place in ("conv", "norm") else nn.Linear(n, n)
    with torch.no_grad():
        planted.weight.copy_(q.reshape(planted.weight.shape))
        planted.bias.copy_(shift)
    setattr(model, place, nn.Sequential(OrderedDict(honest=model.get_submodule(place), planted=planted)))
    return model


def affine(stitch: nn.Module, n: int) -> tuple[Tensor, Tensor]:
    """Weight (out, n) and bias that a stitch computes, found by feeding it basis vectors."""
    stitch = copy.deepcopy(stitch).double()
    rows = torch.cat([torch.zeros(1, n), torch.eye(n)]).double()
    maps = not isinstance(stitch, nn.Linear)
    with torch.no_grad():
        out = stitch(rows[:, :, None, None])[:, :, 0, 0] if maps else stitch(rows)
    return (out[1:] - out[0]).T, out[0]


def trial(place: str, q: Tensor, shift: Tensor, **settings) -> Trial:
    data = digits()
    sender, receiver = wrap(plant(place, q, shift), "planted"), wrap(hybrid(0), "honest")
    roles = (data.fit, data.validation, data.score)
    settings = {"scores": (Accuracy(),), "stitch": PLACES[place]} | settings
    return Trial(Seam.at(sender, receiver, place), *roles, **settings)


@each("change", [rotation, permutation, rescaling])
@each("place", PLACES, few=2)
def test_least_squares_finds_the_inverse_to_numerical_precision(place, change):
    n = {"hidden": 24}.get(place, 8)
    q = change(n)
    shift = 5 * torch.randn(n, generator=torch.Generator().manual_seed(1))
    planted = trial(place, q, shift, fit=LeastSquares(ridges=(1e-12,)))
    found = measure(planted)

    inverse = torch.linalg.inv(q.double())
    weight, bias = affine(found.stitch, n)
    torch.testing.assert_close(weight, inverse, rtol=0, atol=2e-4 * float(inverse.abs().max()))
    torch.testing.assert_close(bias, -inverse @ shift.double(), rtol=0, atol=2e-3)
    assert found.representation_error < 1e-9
    assert found.scores.accuracy.value == found.receiver.accuracy.value > 0.9
    assert found.penalty.value == 0


@each("change", [rotation, permutation, rescaling])
@each("place", PLACES, few=2)
def test_without_a_stitch_what_was_planted_does_harm(place, change):
    n = {"hidden": 24}.get(place, 8)
    harmed = measure(trial(place, change(n), torch.zeros(n), stitch=Identity(), fit=Random()))
    assert harmed.penalty.low > (0 if change is rescaling else 20)


ROUGH = TaskLoss(start=Random(), steps=400, patience=None)


@pytest.mark.slow
@each(
    ("place", "fit", "within"),
    [(place, *fit) for place in ("conv", "hidden") for fit in ((TaskLoss(), 2), (ROUGH, 8))],
    few=2,
)
def test_the_task_loss_brings_the_accuracy_back_from_any_start(place, fit, within):
    """Without a stitch more than 20 pp are lost (above); from anywhere, 400 steps are not quite the whole way."""
    n = {"hidden": 24}.get(place, 8)
    found = measure(trial(place, rotation(n), torch.ones(n), fit=fit))
    assert found.penalty.value < within
    assert found.steps > 0


OWN = {rotation: Orthogonal(), permutation: Permutation(), rescaling: Diagonal()}


@pytest.mark.slow
@each("family", OWN.values(), ids=str)
@each("change", OWN)
@each("place", ["embed"])
def test_a_narrow_family_finds_what_it_can_represent_and_nothing_else(place, change, family):
    """A permutation is a rotation too; of all else the representation error says that it is not matched."""
    n = {"hidden": 24}.get(place, 8)
    found = measure(trial(place, change(n), torch.zeros(n), stitch=family, fit=LeastSquares(ridges=(1e-12,))))
    if family == OWN[change] or (change is permutation and family == Orthogonal()):
        assert found.representation_error < 1e-9
        assert found.penalty.value == 0
    else:
        assert found.representation_error > 0.01


@each("place", ["conv", "hidden"], few=1)
def test_matching_by_descent_brings_back_what_least_squares_finds_at_once(place):
    n = {"hidden": 24}.get(place, 8)
    fit = MatchActivations(optimiser=Adam(0.05), steps=300)
    found = measure(trial(place, rotation(n), torch.ones(n), fit=fit))
    assert found.representation_error < 0.03
    assert found.penalty.value < 2
    assert found.steps > 0


@each("place", ["embed", "hidden"], few=1)
def test_what_works_and_what_matches_are_told_apart(place):
    """Trained on the task alone a stitch works without being the inverse; matched from there it is."""
    n = {"hidden": 24}.get(place, 8)
    task = TaskLoss(start=Random(), targets=SoftLabels(), steps=300)
    works = measure(trial(place, rotation(n), torch.ones(n), fit=task))
    matches = measure(trial(place, rotation(n), torch.ones(n), fit=MatchActivations(start=task, optimiser=Adam(0.05))))
    assert works.penalty.value < 8
    assert works.representation_error > 0.05
    assert matches.representation_error < 0.2 * works.representation_error
    assert matches.steps > works.steps


def test_from_a_narrower_familys_answer_nothing_is_lost():
    n = 8
    wide = trial("conv", rotation(n), torch.ones(n), fit=TaskLoss(start=Narrower(Orthogonal())))
    assert measure(wide).penalty.value <= 0.5

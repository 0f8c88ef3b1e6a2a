"""Scores against scikit-learn and scipy; the penalty's sign and unit; what a score card says."""

import copy
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, log_loss

from loops import each
from suture import curve
from suture.common.errors import DataError, FitError
from suture.measurement.scores.intervals import Estimate, mean_interval, paired_interval
from suture.measurement.scores.scores import (
    Accuracy,
    Confusion,
    CrossEntropy,
    Score,
    ScoreCard,
    estimate,
    estimate_penalty,
)
from trained import few_digits, hybrids


@dataclass(frozen=True)
class Entropy(Score):
    """A trait that is neither good nor bad."""

    name: ClassVar[str] = "entropy"
    unit: ClassVar[str] = "bits"
    higher_is_better: ClassVar[bool | None] = None

    def per_sample(self, logits, labels):
        return torch.distributions.Categorical(logits=logits.double()).entropy() / np.log(2)


@dataclass(frozen=True)
class ErrorRate(Score):
    """A fraction of which less is better."""

    name: ClassVar[str] = "error"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = False

    def per_sample(self, logits, labels):
        return 1 - Accuracy().per_sample(logits, labels)


@pytest.fixture
def logits():
    return 3 * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels(logits):
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    return (logits + 3 * noise).argmax(dim=1)


def test_accuracy_is_scikit_learns(logits, labels):
    values = Accuracy().per_sample(logits, labels)
    assert values.dtype == torch.float64
    assert values.shape == (500,)
    assert values.mean().item() == accuracy_score(labels, logits.argmax(dim=1))


def test_the_loss_is_scikit_learns_in_nats(logits, labels):
    values = CrossEntropy().per_sample(logits, labels)
    assert values.dtype == torch.float64
    by_hand = -log_softmax(logits.double().numpy(), axis=1)[np.arange(500), labels]
    np.testing.assert_allclose(values, by_hand, rtol=1e-12)
    probabilities = logits.double().softmax(dim=1)
    assert values.mean().item() == pytest.approx(log_loss(labels, probabilities, labels=range(10)), rel=1e-9)


def test_the_loss_of_extreme_logits_is_finite_in_half_precision():
    logits = torch.tensor([[60000.0, -60000.0]], dtype=torch.float16)
    assert CrossEntropy().per_sample(logits, torch.tensor([1])).item() == 120_000


def test_accuracy_on_some_classes_is_over_the_samples_with_those_labels(logits, labels):
    score = Accuracy(classes=(3, 5))
    kept = score.selects(labels)
    assert kept.dtype == torch.bool
    assert set(labels[kept].tolist()) == {3, 5}
    right = [p == y for p, y in zip(logits.argmax(dim=1).tolist(), labels.tolist(), strict=True) if y in (3, 5)]
    assert score.per_sample(logits[kept], labels[kept]).mean().item() == pytest.approx(np.mean(right))


@each("score", [Accuracy(), CrossEntropy()])
def test_other_scores_select_every_sample(score, labels):
    assert score.selects(labels).all()


def test_names_and_directions():
    assert [s.name for s in (Accuracy(), Accuracy((3,)), Accuracy((3, 5)), CrossEntropy())] == [
        "accuracy",
        "accuracy on classes 3",
        "accuracy on classes 3, 5",
        "loss",
    ]
    assert (Accuracy().unit, Accuracy().higher_is_better) == ("fraction", True)
    assert (CrossEntropy().unit, CrossEntropy().higher_is_better) == ("nats", False)


def test_scores_are_frozen_values():
    assert Accuracy((3,)) == Accuracy((3,)) != Accuracy((4,))
    assert len({Accuracy(), Accuracy(), CrossEntropy()}) == 2
    with pytest.raises(FrozenInstanceError):
        Accuracy().classes = (1,)


def test_a_score_must_say_what_it_is():
    class Nameless(Score):
        def per_sample(self, logits, labels):
            return labels

    with pytest.raises(TypeError, match="abstract"):
        Nameless()


def test_an_estimate_is_the_mean_with_the_interval_of_its_values(logits, labels):
    for score in (Accuracy(), CrossEntropy(), Entropy()):
        values = score.per_sample(logits, labels)
        low, high, method = mean_interval(values, seed=7)
        expected = Estimate(pytest.approx(values.mean().item()), low, high, score.unit, 500, method)
        assert estimate(score, values, seed=7) == expected


def test_the_penalty_of_an_accuracy_is_in_points_and_positive_where_stitched_is_worse():
    receiver, stitched = torch.ones(200), torch.ones(200)
    stitched[:30] = 0
    receiver[:4] = 0
    found = estimate_penalty(Accuracy(), stitched, receiver, seed=0)
    low, high, method = paired_interval(receiver, stitched, seed=0)
    assert found == Estimate(pytest.approx(13.0), 100 * low, 100 * high, "pp", 200, method)
    assert 0 < found.low < 13 < found.high
    assert estimate_penalty(Accuracy(), receiver, stitched, seed=0).value == pytest.approx(-13.0)
    assert estimate_penalty(ErrorRate(), 1 - stitched, 1 - receiver, seed=0) == found


def test_the_penalty_of_a_loss_is_in_its_unit_and_positive_where_stitched_is_worse():
    receiver = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = estimate_penalty(CrossEntropy(), receiver + 0.5 * receiver**2, receiver, seed=0)
    assert found.unit == "nats"
    assert found.value == pytest.approx((0.5 * receiver**2).mean().item())
    assert 0 < found.low < found.value < found.high
    assert estimate_penalty(CrossEntropy(), receiver, receiver, seed=0) == Estimate(0, 0, 0, "nats", 300, "bootstrap")


def test_a_score_neither_good_nor_bad_has_no_penalty():
    assert estimate_penalty(Entropy(), torch.rand(5), torch.rand(5), seed=0) is None


def test_the_seed_decides_the_interval_and_nothing_else(logits, labels):
    values = CrossEntropy().per_sample(logits, labels)
    assert estimate(CrossEntropy(), values, seed=1) == estimate(CrossEntropy(), values, seed=1)
    assert estimate(CrossEntropy(), values, seed=1) != estimate(CrossEntropy(), values, seed=2)
    assert estimate(CrossEntropy(), values, seed=1).value == estimate(CrossEntropy(), values, seed=2).value


def test_refusals_name_the_score_and_the_network():
    with pytest.raises(DataError, match="the values of accuracy on classes 12 are empty"):
        estimate(Accuracy((12,)), torch.empty(0), seed=0)
    with pytest.raises(DataError, match="on no classes"):
        Accuracy(())
    with pytest.raises(FitError, match="the values of loss are not finite for 2 of 3 samples"):
        estimate(CrossEntropy(), torch.tensor([0.5, torch.nan, torch.inf]), seed=0)
    with pytest.raises(FitError, match="of loss of the stitched network are not finite"):
        estimate_penalty(CrossEntropy(), torch.tensor([torch.nan]), torch.tensor([0.5]), seed=0)
    with pytest.raises(ValueError, match="3 values do not pair with 4"):
        estimate_penalty(CrossEntropy(), torch.rand(3), torch.rand(4), seed=0)


def test_a_diverged_network_is_not_taken_for_a_wrong_one():
    logits = torch.tensor([[0.0, 1.0], [torch.nan, 1.0]])
    values = Accuracy().per_sample(logits, torch.tensor([1, 1]))
    with pytest.raises(FitError, match="accuracy are not finite for 1 of 2"):
        estimate(Accuracy(), values, seed=0)


@pytest.fixture
def card():
    return ScoreCard(
        {
            "accuracy": Estimate(0.912, 0.901, 0.922, "fraction", 900, "wilson"),
            "accuracy on classes 3": Estimate(0.5, 0.4, 0.6, "fraction", 90, "wilson"),
            "loss": Estimate(0.412, 0.4, 0.424, "nats", 900, "bootstrap"),
        }
    )


def test_a_score_card_gives_its_scores_by_attribute_and_by_name(card):
    assert float(card.accuracy) == 0.912
    assert card["accuracy on classes 3"].n == 90
    assert list(card) == ["accuracy", "accuracy on classes 3", "loss"]
    assert "loss" in card
    assert "error" not in card
    assert {"accuracy", "loss"} <= set(dir(card))


def test_a_score_card_reads_well(card):
    assert repr(card) == (
        "ScoreCard(accuracy: 91.2 % [90.1, 92.2], accuracy on classes 3: 50.0 % [40.0, 60.0], "
        "loss: 0.412 nats [0.400, 0.424])"
    )


def test_a_missing_score_is_named_with_those_that_are_there(card):
    there = "no score 'acc'; scores here: 'accuracy', 'accuracy on classes 3', 'loss'"
    with pytest.raises(AttributeError, match=there):
        _ = card.acc
    with pytest.raises(KeyError, match=there.replace("'", ".")):
        card["acc"]
    with pytest.raises(AttributeError, match="scores here: none"):
        _ = ScoreCard({}).acc


def test_a_score_card_is_frozen_and_can_be_copied(card):
    assert copy.copy(card) == copy.deepcopy(card) == card
    with pytest.raises(FrozenInstanceError):
        card.estimates = {}


@each("score", [Confusion(1, to=12), Confusion(None, to=-1), Accuracy((3, 99))], ids=str)
def test_classes_that_are_none_are_refused(score):
    a, b = hybrids()
    with pytest.raises(DataError, match=r"names class (12|-1|99), and there are 10, from 0 to 9"):
        curve(a, b, data=few_digits(), at="hidden", scores=(score,), controls=())

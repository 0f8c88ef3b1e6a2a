"""The prototype that fits stitches side by side: they are as good as alone, and company changes only the rounding."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from benchmarks.batched import Batched, measure_together

import suture
from suture import Seam, Trial, controls, measure
from suture.core.activations.cache import Activations
from suture.fits import Quick
from trained import convnets, few_digits

SETTINGS = Batched(steps=100, rates=(0.01, 0.1))


def trials(cut: str = "stage2.pool") -> list[Trial]:
    (a, b), data = convnets(), few_digits()
    seams = [Seam(a, b, sender_cut, cut) for sender_cut in ("stage1", "stage2.pool", "flatten")]
    made = [Trial(seam, data.fit, data.validation, data.score) for seam in seams]
    return [*made, controls.untrained_sender(made[0])]


@pytest.mark.slow
def test_stitches_fitted_side_by_side_are_as_good_as_each_alone_in_as_many_steps() -> None:
    """By the loss that both choose by. One rate in two costs accuracy at single seams, so of that most of the gain."""
    found = measure_together(trials(), Activations(), replace(SETTINGS, steps=280))
    assert [each.trial for each in found] == trials()
    closed = mean_accuracy([measure(replace(each.trial, fit=Quick(steps=0))) for each in found])
    alone = [measure(replace(each.trial, fit=Quick(steps=280))) for each in found]
    assert fmean(each.validation_loss for each in found) <= 1.1 * fmean(each.validation_loss for each in alone)
    gain = fmean(each.accuracy for each in found) - closed
    assert gain >= 0.75 * (mean_accuracy(alone) - closed) > 0.1
    assert max(each.rate for each in found) > 0, "some descent is better than the closed form"


def mean_accuracy(measurements: list[suture.Measurement]) -> float:
    return fmean(each.scores.accuracy.value for each in measurements)


@pytest.mark.slow
def test_company_changes_only_the_rounding() -> None:
    few = Batched(steps=10, rates=(0.01, 0.03))  # in many steps rounding grows
    together = measure_together(trials(), Activations(), few)
    alone = [found for trial in trials() for found in measure_together([trial], Activations(), few)]
    one_a_pass = measure_together(trials(), Activations(), replace(few, images=few.batch * len(few.rates)))
    for others in (alone, one_a_pass):
        for one, other in zip(together, others, strict=True):
            assert one.accuracy == pytest.approx(other.accuracy, abs=0.012)
            assert one.validation_loss == pytest.approx(other.validation_loss, abs=0.02)


@pytest.mark.slow
def test_without_steps_it_is_the_closed_form() -> None:
    (found,) = measure_together(trials()[:1], Activations(), Batched(steps=1, rates=(1e-9,)))
    closed = Trial(found.trial.seam, *few_digits_roles(), fit=suture.fits.LeastSquares())
    assert found.accuracy == pytest.approx(measure(closed).scores.accuracy.value, abs=0.01)


def few_digits_roles() -> tuple[suture.Samples, ...]:
    data = few_digits()
    return data.fit, data.validation, data.score


def test_stitches_into_two_cuts_share_no_suffix() -> None:
    with pytest.raises(ValueError, match="do not share"):
        measure_together([trials()[0], trials("stage1")[0]], Activations(), SETTINGS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("recorded", [False, True])
def test_on_a_gpu_it_is_as_good_with_steps_one_by_one_or_recorded(recorded: bool) -> None:
    networks = [network.to("cuda") for network in convnets()]
    moved = [replace(each, seam=Seam(*networks, each.sender_cut, each.receiver_cut)) for each in trials()[:3]]
    there = measure_together(moved, Activations(), replace(SETTINGS, recorded=recorded))
    here = measure_together(trials()[:3], Activations(), SETTINGS)
    for one, other in zip(there, here, strict=True):
        assert one.accuracy == pytest.approx(other.accuracy, abs=0.04)
        assert one.validation_loss == pytest.approx(other.validation_loss, abs=0.1)

"""The range of time of a plan, against trials that are measured, and against a clock by hand."""

import time
from dataclasses import replace
from functools import cache

import pytest
import torch

import suture
from suture.fits import BestOf, Converged, LeastSquares, Quick, Random
from suture.measurement.trials.plans import Plan, curve
from suture.runs import timing
from suture.runs.forecast import forecast
from suture.runs.timing import time_trials
from trained import convnets, few_digits

CUTS = ["stage1.relu", "stage3.relu"]


@cache
def plan(fit: suture.fits.Fit) -> Plan:
    return curve(*convnets(), data=few_digits(), at=CUTS, fit=fit, controls="none")


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every timed pass take this long, whatever it is."""
    monkeypatch.setattr(timing, "_clock", lambda run, device: (run(), seconds)[1])


def test_more_steps_take_longer_and_their_time_is_that_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch, 1.0)
    ranges = [time_trials(plan(Quick(steps=steps))) for steps in (100, 200)]
    assert None not in ranges
    (less, _), (more, _) = ranges  # type: ignore[misc]
    trial = plan(Quick(steps=100))[0]
    rows = min(128, len(trial.fit_data))
    # 100 more steps of a second each at two cuts, and one more doubling with its two looks at the validation samples
    wanted = 2 * timing.LEAST * (100 + 2 * timing.FORWARD * len(trial.validation_data) / rows)
    assert more - less == pytest.approx(wanted, rel=1e-6)


def test_the_default_fit_has_a_range_that_more_fits_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch, 1.0)
    few, many = (fit.count_steps(number) for fit, number in ((Converged(), 1), (Converged(), 40)))
    assert few[0] < many[0] < many[1] < few[1]
    assert Converged(cap=70).count_steps(1)[1] < few[1]
    least, most = time_trials(plan(Converged())) or (0, 0)
    assert 0 < 2 * least < most


def test_a_closed_form_takes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch, 1.0)
    closed, quick = (time_trials(plan(fit)) for fit in (LeastSquares(), Quick()))
    assert closed is not None
    assert quick is not None
    assert closed[1] < quick[0] / 5


def test_a_fit_that_does_not_count_its_steps_has_no_range() -> None:
    assert time_trials(plan(BestOf((Random(), LeastSquares())))) is None
    assert time_trials([]) is None


def test_timing_changes_nothing() -> None:
    a, b = convnets()
    before, state, threads = (a.fingerprint, b.fingerprint), torch.get_rng_state(), torch.get_num_threads()
    assert forecast(plan(Quick()), timed=True).range is not None
    assert forecast(plan(Quick())).range is None
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    a.check_frozen()
    assert before == (a.fingerprint, b.fingerprint)


def test_the_wall_time_is_that_of_the_workers() -> None:
    made = replace(forecast(plan(Quick()), workers=2), cpu_range=(10.0, 30.0))
    assert made.workers == 2
    assert made.range == (5.0, 15.0)


@pytest.mark.slow
def test_the_range_holds_for_a_small_curve() -> None:
    trials = plan(Quick())
    least, most = time_trials(trials) or (0, 0)
    begun = time.process_time()
    suture.run(trials, on=suture.Local(workers=1))
    taken = time.process_time() - begun
    # Other tests share the processor, so the clock is generous here; benchmarks/soon.py compares at three pairs.
    assert least / 3 < taken < 3 * most

"""Trials in one go: what each gives is what it gives alone, but for rounding; and whoever fails, fails alone."""

import copy
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import pandas as pd
import pytest
import torch
from torch import nn

import suture.fits.lockstep as lockstepping
import suture.measurement.trials.batched as going
from models import trial_of
from suture import Measurement, Network, Trial, measure, run
from suture.common.errors import FitError, FrozenError
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv, Identity, Stitch
from suture.data.noise import ClusteredNoise
from suture.fits import Fast, LeastSquares, fast
from suture.fits import suffix as suffixes
from suture.fits.lockstep import lockstep
from suture.measurement.trials import controls
from suture.measurement.trials.batched import company, measure_together
from suture.measurement.trials.trial import Failure
from suture.runs.runners import Faulty, Interrupted, Local, tasks
from suture.runs.runners.progress import Silent
from suture.runs.runners.tasks import Measuring
from suture.runs.store.store import TRIALS, Store
from trained import bits, convnets, convolutional, digits, few_digits, wrap

CUT = "stage2.pool"
FEW = Fast(steps=8)


def trial(sender: Network | None = None, cut: str = CUT, **settings) -> Trial:
    c, d = convnets()
    data = few_digits()
    roles = {"fit_data": data.fit, "validation_data": data.validation, "score_data": data.score}
    seam = {"sender": sender or c, "receiver": d, "sender_cut": cut, "receiver_cut": cut}
    return trial_of(**seam | roles | {"fit": FEW} | settings)


def several(**settings) -> list[Trial]:
    """Six that go together: from two networks and an untrained one, by three kinds of stitch, and one that is none."""
    c, d = convnets()
    plain = [trial(c, **settings), trial(d, **settings), trial(c, seed=1, stitch=Wrong(), **settings)]
    plain.append(trial(c, stitch=Conv(kernel=3), **settings))
    return [*plain, controls.untrained_sender(plain[0]), trial(d, stitch=Identity(), **settings)]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, list[int]]]:
    """The passes of descents: whether with gradients, and how many images each stitch has in them."""
    seen: list[tuple[bool, list[int]]] = []

    def answers(run, asks):
        seen.append((asks[0].gradient, [len(ask.labels) for ask in asks]))
        return suffixes.answers(run, asks)

    monkeypatch.setattr(lockstepping, "answers", answers)
    return seen


def assert_agree(found: Measurement, alone: Measurement, points: float = 0.5) -> None:
    assert found.trial is alone.trial
    assert (found.receiver, found.sender, found.notes) == (alone.receiver, alone.sender, alone.notes)
    assert found.scores.accuracy.value == pytest.approx(alone.scores.accuracy.value, abs=points / 100)
    assert found.penalty.value == pytest.approx(alone.penalty.value, abs=points)
    assert found.representation_error == pytest.approx(alone.representation_error, rel=1e-2)
    assert (found.steps, found.converged) == (alone.steps, alone.converged)
    losses = [[point.validation_loss for point in m.curve] for m in (found, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert not any(p.requires_grad for p in found.stitch.parameters())
    assert not found.stitch.training


# --- lockstep ---------------------------------------------------------------------------------------------------------


def adding(numbers: Sequence[int], kind: str = ""):
    """Asks for the double of numbers, and ends in their sum."""
    total = 0
    for number in numbers:
        total += yield kind, number
    return total


def doubled(seen: list[list[int]]):
    def told(asks):
        seen.append([number for _, number in asks])
        assert len({kind for kind, _ in asks}) == 1
        if 13 in seen[-1]:
            raise ValueError("13")
        return [2 * number for _, number in asks]

    return told


def stepped(works, seen=None):
    return lockstep(works, doubled([] if seen is None else seen), kind=lambda ask: ask[0], images=lambda ask: ask[1])


def test_work_in_lockstep_ends_as_alone_and_in_order():
    seen: list[list[int]] = []
    assert stepped([adding([1, 2, 3]), adding([]), adding([4]), adding([5, 6])], seen) == [12, 0, 8, 22]
    assert seen == [[1, 4, 5], [2, 6], [3]]


def test_kinds_are_asked_apart():
    seen: list[list[int]] = []
    assert stepped([adding([1], "a"), adding([2], "b"), adding([3, 4], "a")], seen) == [2, 4, 14]
    assert seen == [[1, 3], [2], [4]]


def test_a_pass_takes_no_more_images_than_it_may(monkeypatch):
    monkeypatch.setattr(lockstepping, "IMAGES", 5)
    seen: list[list[int]] = []
    assert stepped([adding([n]) for n in (2, 3, 1, 9, 4)], seen) == [4, 6, 2, 18, 8]
    assert seen == [[2, 3], [1], [9], [4]]


def test_what_goes_wrong_in_a_pass_is_the_fault_of_one():
    seen: list[list[int]] = []
    *fine, wrong = stepped([adding([1, 1]), adding([2]), adding([3]), adding([13])], seen)
    assert fine == [4, 4, 6]
    assert isinstance(wrong, ValueError)
    assert seen == [[1, 2, 3, 13], [1, 2], [3, 13], [3], [13], [1]]


def test_what_goes_wrong_in_the_work_stays_there():
    def breaking():
        yield "", 1
        raise FitError("broken")

    def patient():
        try:
            yield "", 13
        except ValueError:
            return (yield "", 5)

    found = stepped([breaking(), adding([1, 2]), patient()])
    assert isinstance(found[0], FitError)
    assert found[1:] == [6, 10]


# --- measured together ------------------------------------------------------------------------------------------------


def test_in_one_go_as_alone(passes):
    trials = several()
    found = measure_together(trials)
    together = [sizes for gradient, sizes in passes if gradient]
    assert together[0] == [32] * 5, "no pass was shared"
    for one, each in zip(found, trials, strict=True):
        assert_agree(one, measure(each))


def test_in_one_go_as_alone_through_fused_suffixes_and_rates_that_are_tried(monkeypatch, passes):
    monkeypatch.setattr(suffixes, "half_precision", lambda device: None)
    monkeypatch.setattr("suture.measurement.scores.outputs.LEAST", 200)
    monkeypatch.setattr(fast, "FIRST", 4)
    monkeypatch.setattr(lockstepping, "IMAGES", 300)
    trials = several()
    found = measure_together(trials)
    assert max(sum(sizes) for _, sizes in passes) <= 300
    assert {len(sizes) for gradient, sizes in passes if gradient} >= {5}
    assert all(one.steps > 8 for one in found[:5])
    for one, each in zip(found, trials, strict=True):
        assert_agree(one, measure(each))


def test_a_stitch_without_parameters_keeps_the_receivers_bits_among_others():
    assert bits(measure_together(several())[-1]) == bits(measure(several()[-1]))


def test_a_single_one_or_one_by_another_fit_has_the_bits_that_it_has_alone():
    others = [trial(fit=LeastSquares()), trial(cut="stage1.conv"), trial(fit=LeastSquares(), seed=1), trial()]
    assert [bits(one) for one in measure_together(others)] == [bits(measure(each)) for each in others]


def test_what_goes_together_is_said_by_receiver_cut_and_data():
    c, _ = convnets()
    data = few_digits()
    noise = ClusteredNoise(trial().seam.shapes[0], classes=10)
    alike = [*several(), trial(noise, sender_cut=""), trial(scores=trial().scores[:1]), trial(fit=Fast(steps=3))]
    assert len({going._common(each) for each in alike}) == 1
    others = [trial(cut="stage1.conv"), trial(receiver=c), controls.shuffled_pairs(trial())]
    others += [trial(validation_data=data.score), trial(fit_data=data.score), trial()]
    assert len({going._common(each) for each in others}) == len(others)
    assert going._common(trial(fit=LeastSquares())) is None


def test_noise_and_what_is_scored_on_other_data_go_along():
    noise = ClusteredNoise(trial().seam.shapes[0], classes=10)
    trials = [trial(), trial(noise, sender_cut=""), trial(score_data=digits().score)]
    for one, each in zip(measure_together(trials), trials, strict=True):
        assert_agree(one, measure(each))


def test_on_the_cpu_nobody_has_company():
    assert company(trial()) is None
    assert Measuring(trial()).company is None


def test_a_go_holds_so_many_and_no_more(monkeypatch):
    trials = several()
    monkeypatch.setattr(going, "STITCHES", 4)
    assert [len(places) for places in going._goes(trials)] == [4, 2]
    monkeypatch.setattr(going, "physical_memory", lambda: 0)
    assert [len(places) for places in going._goes(trials)] == [1] * 6


def test_random_numbers_of_others_are_left_alone():
    before = torch.get_rng_state()
    measure_together(several())
    assert torch.equal(torch.get_rng_state(), before)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(Stitch):
    """A stitch without a closed form with which something is wrong, some time, or never."""

    when: str = ""
    parent: int = 0  #: the process that is spared
    joins: ClassVar[str] = "maps"

    def accepts(self, sender, receiver):
        return len(sender) == len(receiver) == 3

    def build(self, sender, receiver):
        if self.when == "built":
            raise RuntimeError("it cannot be built")
        if self.when == "changes":
            next(spoilt()._model.parameters()).data.add_(1)
        if self.when == "kills" and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.Sequential(nn.Conv2d(sender[0], receiver[0], 1), Breaking(self.when))


class Breaking(nn.Module):
    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def forward(self, x):
        if self.when == "stepped" and torch.is_grad_enabled():
            raise RuntimeError("it cannot step")
        if self.when == "scored" and len(x) == 4:
            raise RuntimeError("it cannot be scored")
        return x * float("nan") if self.when == "not finite" else x


@cache
def spoilt() -> Network:
    return wrap(convolutional(0), "spoilt")


@pytest.mark.parametrize("when", ["built", "stepped", "not finite", "scored"])
def test_whoever_fails_fails_alone_and_says_what_he_says_alone(when):
    wrong = trial(stitch=Wrong(when))
    trials = [trial(), wrong, trial(seed=1)]
    found = measure_together(trials)
    alone = tasks.attempt(wrong, Activations())
    assert isinstance(alone, Failure)
    assert isinstance(found[1], Failure)
    assert (found[1].error, found[1].trial) == (alone.error, wrong)
    for place in (0, 2):
        assert_agree(found[place], measure(trials[place]))


def test_a_network_that_was_changed_spoils_its_own_trials_and_no_others():
    trials = [trial(), trial(spoilt(), stitch=Wrong("changes")), trial(seed=1)]
    found = measure_together(trials)
    assert found[1].error.startswith(FrozenError.__name__)
    assert [bits(found[place]) for place in (0, 2)] == [bits(measure(trials[place])) for place in (0, 2)]


def test_memory_that_many_do_not_find_is_there_for_fewer(monkeypatch, passes):
    answers = lockstepping.answers

    def short(run, asks):
        if len(asks) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return answers(run, asks)

    monkeypatch.setattr(lockstepping, "answers", short)
    trials = several()
    for one, each in zip(measure_together(trials), trials, strict=True):
        assert_agree(one, measure(each))
    assert {len(sizes) for _, sizes in passes} == {1, 2}


def test_notes_are_each_trials_own(monkeypatch):
    trials = [trial(), trial(convnets()[1])]
    at = Activations.at

    def noting(self, network, cut, samples):
        self._note(f"{network.name} on {samples.name}")
        return at(self, network, cut, samples)

    monkeypatch.setattr(Activations, "at", noting)
    found, alone = measure_together(trials), [measure(each) for each in trials]
    assert [sorted(one.notes) for one in found] == [sorted(one.notes) for one in alone]
    assert found[0].notes != found[1].notes


# --- run together -----------------------------------------------------------------------------------------------------


@pytest.fixture
def goes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trials are measured in one go here, as if this processor were a GPU."""
    seen: list[int] = []

    def counted(trials, activations):
        seen.append(len(trials))
        return measure_together(trials, activations)

    monkeypatch.setattr(tasks, "company", going._common)
    monkeypatch.setattr(tasks, "measure_together", counted)
    return seen


def plan() -> list[Trial]:
    """Two companies, of six and two, and one that is alone, shuffled."""
    six, two = several(), [trial(cut="stage1.conv", seed=seed) for seed in (0, 1)]
    return [*two[:1], *six[:3], trial(fit=LeastSquares()), *two[1:], *six[3:]]


def assert_is_of(table: pd.DataFrame, trials: list[Trial]) -> None:
    assert list(table["trial"]) == [each.key for each in trials for _ in each.scores]
    assert (table["status"] == "ok").all()
    alone = [measure(each).scores[score.name].value for each in trials for score in each.scores]
    assert list(table["stitched"]) == pytest.approx(alone, abs=5e-3)


def test_a_run_takes_company_along_and_keeps_every_trial_for_itself(tmp_path, goes):
    assert_is_of(run(plan(), store=tmp_path, on=Local(workers=1)), plan())
    assert sorted(goes) == [2, 6]
    assert Store.make(tmp_path).finished(TRIALS) == {each.key for each in plan()}
    run(plan(), store=tmp_path, on=Local(workers=1))
    assert len(goes) == 2


def test_a_run_that_is_stopped_loses_what_was_not_kept_and_no_more(tmp_path, goes):
    class Enough(Silent):
        heard = 0

        def done(self, what, error, kind="trials"):
            self.heard += 1
            if self.heard == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(several(), store=tmp_path, on=Local(workers=1), progress=Enough())
    assert len(Store.make(tmp_path).finished(TRIALS)) == 2
    assert_is_of(run(several(), store=tmp_path, on=Local(workers=1)), several())
    assert goes == [6, 4]


def test_other_runners_take_one_by_one(goes):
    assert_is_of(run(several(), on=Faulty()), several())
    assert goes == []


@pytest.mark.slow
def test_workers_take_company_along_and_one_that_dies_takes_nobody_with_it(goes):
    kills = trial(stitch=Wrong("kills", os.getpid()))
    found = run([*several(), kills], on=Local(workers=2, retries=0))
    lost = found["trial"] == kills.key
    assert set(found["status"][lost]) == {"failed"}
    assert found["error"][lost].str.contains("killed by signal 9").all()
    assert_is_of(found[~lost], several())
    assert goes == []


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_measures_more_stitches_a_second_in_one_go_and_they_agree():
    c, d = (wrap(copy.deepcopy(convolutional(seed)).cuda(), name) for seed, name in enumerate("CD"))
    trials = [trial(each, seed=seed, receiver=d, fit=Fast()) for seed in range(16) for each in (c, d)]
    assert len({company(each) for each in trials}) == 1
    assert company(trials[0]) is not None
    cache = Activations()
    measure_together(trials[:2], cache)
    seconds = []
    results = []
    for work in (lambda: [measure(each, cache) for each in trials], lambda: measure_together(trials, cache)):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        results.append(work())
        seconds.append(time.perf_counter() - begun)
    rates = [len(trials) / each for each in seconds]
    print(f"{rates[0]:.1f} stitches/s alone, {rates[1]:.1f} together")
    assert rates[1] > rates[0]
    alone, together = ([one.scores.accuracy.value for one in each] for each in results)
    off = [abs(a - b) for a, b in zip(alone, together, strict=True)]
    assert sum(off) / len(off) <= going.TOLERANCE
    assert max(off) <= 2 / len(trials[0].score_data) + 4 * going.TOLERANCE

import time
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from rich.console import Console
from torch import nn

from suture.common.errors import DataError, RunnerError
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv, Linear, Permutation, Stitch
from suture.core.stitches.base import Shape
from suture.fits import BestOf, Fast, Fit, LeastSquares, MatchActivations, Narrower, Random, TaskLoss
from suture.fits.base import FitReport, Problem
from suture.measurement.trials import controls
from suture.measurement.trials.controls import clustered_noise, shuffled_pairs
from suture.measurement.trials.measure import measure
from suture.measurement.trials.plans import Plan, curve
from suture.report.terminal.forecast import forecast_table, record
from suture.runs.forecasts import Forecast, affordable, forecast
from suture.runs.forecasts.forecast import START
from suture.runs.forecasts.memory import PROCESS, Footprint, footprint
from suture.runs.forecasts.time import Expenses
from suture.runs.forecasts.timing import Pace, StitchPaces, network_pace
from trained import convnets, digits, few_digits

FIT = TaskLoss(steps=30, check=15)


@cache
def plan(fit: Fit = FIT) -> Plan:
    """Two cuts with three controls."""
    some = (controls.itself, shuffled_pairs, clustered_noise)
    return curve(*convnets(), data=few_digits(), at=["stage1.relu", "stage3.relu"], fit=fit, controls=some)


@cache
def forecasted() -> Forecast:
    return forecast(plan(), workers=1)


def test_trials_are_counted_once_and_those_that_are_done_are_left_out() -> None:
    once, double = forecasted(), forecast(plan() + plan(), workers=1)
    assert (once.trials, once.distinct, once.done, once.left) == (8, 8, 0, 8)
    assert (double.trials, double.distinct, double.left) == (16, 8, 8)
    assert double.activations == once.activations
    half = forecast(plan(), workers=1, done={trial.key for trial in plan()[:4]} | {"of another plan"})
    assert (half.trials, half.done, half.left) == (8, 4, 4)
    assert half.activations < once.activations


def test_when_all_is_done_nothing_is_left_and_no_budget_is_too_small() -> None:
    made = forecast(plan(), done={trial.key for trial in plan()}, ram=1)
    assert (made.left, made.seconds, made.cpu_seconds, made.activations, made.disk) == (0, 0, 0, 0, 0)
    assert made.largest == ""


def test_a_plan_without_trials_is_refused() -> None:
    with pytest.raises(DataError, match="this plan has no trial; plan at least one"):
        forecast(Plan(()))


def test_workers_below_one_are_refused() -> None:
    with pytest.raises(RunnerError, match="workers=0: give at least 1"):
        forecast(plan(), workers=0)


def test_never_more_workers_than_trials() -> None:
    assert forecast(plan()[:3], workers=7).workers == 3


def test_the_activations_are_those_that_measuring_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {need.key: need.nbytes for trial in plan() for need in trial.needs}
    assert forecasted().activations == sum(kept.values())
    assert forecasted().disk > forecasted().activations
    bounded = forecast(plan(), workers=1, disk=50_000)
    assert bounded.activations == forecasted().activations
    assert bounded.disk == forecasted().disk - forecasted().activations + 50_000


def test_activations_that_are_not_kept_cost_time_again() -> None:
    expenses = Expenses(list(plan()))
    ample, none = expenses.passes(plan()), expenses.passes(plan(), budget=0)
    assert expenses.passes(plan(), budget=10**12) == ample
    assert none > 2 * ample
    assert ample <= expenses.passes(plan(), budget=forecasted().activations // 2) <= none
    assert expenses.passes(plan() + plan()) == ample


def test_more_workers_take_less_time_and_more_ram() -> None:
    one = replace(forecasted(), cpu_seconds=100.0, longest=7.0)
    two, many = replace(one, workers=2), replace(one, workers=100)
    assert (one.seconds, two.seconds, many.seconds) == (100.0, START + 50.0, START + 7.0)
    assert one.ram == one.footprint.driver + one.footprint.peak
    assert two.ram == one.footprint.driver + 2 * one.ram_per_worker


@pytest.mark.parametrize("fit", [FIT, Fast(), BestOf((LeastSquares(), FIT))], ids=["TaskLoss", "Fast", "BestOf"])
def test_it_takes_about_as_long_as_it_says(fit: Fit) -> None:
    expenses = Expenses(list(plan(fit)))
    cache = Activations()
    for trial in plan(fit):
        measure(trial, cache)  # the first time is slower, and activations are counted by themselves
    begun = time.thread_time()
    for trial in plan(fit):
        measure(trial, cache)
    taken = time.thread_time() - begun
    expected = sum(expenses.of(trial) for trial in plan(fit))
    assert taken / 6 < expected < taken * 6  # wide, since machines are busy; alone it is within 2


@dataclass(frozen=True)
class Own(Fit):
    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        return FitReport()


def test_every_fit_has_its_cost() -> None:
    fits = (
        Random(),
        LeastSquares(),
        MatchActivations(),
        TaskLoss(start=Random()),
        TaskLoss(),
        TaskLoss(steps=3000),
        Own(),
        Fast(),
        BestOf((LeastSquares(), Fast())),
    )
    trials = [replace(plan()[0], fit=fit, stitch=Conv(batchnorm=False)) for fit in fits]
    trials.append(replace(trials[0], fit=Narrower(Permutation())))
    expenses = Expenses(trials)  # of the same paces, so that costs compare
    nothing, solved, matched, random, default, long, own, quick, best, narrower = map(expenses.of, trials)
    assert nothing < solved < default
    assert nothing < matched < random < default < long
    assert random == pytest.approx(default - (solved - nothing))
    assert long - default == pytest.approx(10 * (default - solved) - (default - solved), rel=0.1)
    assert own == quick
    assert nothing < quick < default
    assert best - nothing > (solved - nothing) + (quick - nothing)
    assert narrower > nothing


def test_the_default_fit_costs_by_its_rounds() -> None:
    trials = [replace(plan()[0], fit=Fast(steps=steps)) for steps in (0, 30, 120, 930, 3000)]
    expenses = Expenses(trials)
    costs = [expenses.of(trial) for trial in trials]
    assert costs == sorted(costs)
    solved, first, _, long, longest = costs
    assert 5 * (first - solved) < long - solved
    assert 2 * (long - solved) < longest - solved < 6 * (long - solved)


def test_the_furthest_cut_costs_least() -> None:
    early, late = (replace(trial, fit=Fast(), control="") for trial in (plan()[0], plan()[4]))
    assert (early.receiver_cut, late.receiver_cut) == ("stage1.relu", "stage3.relu")
    expenses = Expenses([early, late])
    assert expenses._suffix(late)[1].over(32, 32) < expenses._suffix(early)[1].over(32, 32)


def test_many_images_go_through_the_fused_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = replace(plan()[0], score_data=replace(digits().fit, name="digits/many"))
    expenses = Expenses([trial])
    (sort,) = expenses._networks
    plain = expenses._networks[sort]
    costs, passes = [], []
    for share in (1.0, 0.25):
        expenses._networks[sort] = replace(plain, fused=(share, share), fused_segments=share)
        costs.append(expenses._scoring(trial))
        passes.append(expenses.passes([trial]))
    assert costs[1] < costs[0]
    assert passes[1] < passes[0]


def test_fused_suffixes_are_timed_as_they_are() -> None:
    pace = network_pace(convnets()[0], few_digits().fit.images)
    assert all(0.02 < share < 50 for share in (*pace.fused, pace.fused_segments))


def test_the_best_of_several_holds_what_its_fits_do() -> None:
    trial = replace(plan()[0], score_data=plan()[0].score_data.first(40))
    alone = [footprint([replace(trial, fit=fit)]).peak for fit in (TaskLoss(batch=256), Fast())]
    assert footprint([replace(trial, fit=BestOf((TaskLoss(batch=256), Fast())))]).peak > max(alone)
    without = footprint([replace(trial, fit=LeastSquares())]).peak
    weights = sum(p.nbytes for p in trial.receiver.after(trial.receiver_cut).parameters())
    assert footprint([replace(trial, fit=Fast())]).peak >= without + weights


@dataclass(frozen=True)
class Odd(Stitch):
    """Cannot be made on the meta device, and has no closed form."""

    joins = "anything"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        return True

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        if torch.get_default_device().type == "meta":
            raise RuntimeError("not here")
        made = nn.Conv2d(sender[0], receiver[0], 1)
        made.weight.data.mul_(float(made.weight.detach().mean()))
        return made


def test_a_family_of_the_users_can_be_forecast() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    made = forecast([replace(plan()[0], stitch=Odd(), fit=TaskLoss(start=Random(), steps=5))], workers=1)
    assert made.cpu_seconds > 0
    assert torch.equal(before, torch.random.get_rng_state())


def test_nothing_is_changed_by_looking_ahead() -> None:
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    forecast(plan(), workers=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert all(n.state_digest() == n.wrapped_digest for trial in plan() for n in trial.seam.networks)


def test_networks_of_one_architecture_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr(
        "suture.runs.forecasts.time.network_pace", lambda n, images: timed.append(n) or network_pace(n, images)
    )
    Expenses(list(plan()))
    assert len(timed) == 1


def test_of_many_kinds_of_stitches_a_few_are_timed_and_the_others_go_by_their_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suture.runs.forecasts.timing.TIMED", 3)
    kinds = [(Linear(), (64, width), (64, width)) for width in range(8, 200, 8)]
    paces = StitchPaces(kinds, torch.device("cpu"))
    assert len(paces._timed) == 3
    small, large = (paces.of(kinds[i]).step.over(256, 64) for i in (1, -2))
    assert 0 < small < large


def test_paces_add_up() -> None:
    assert Pace(1.0, 0.1).over(100, 50) == pytest.approx(12.0)
    assert Pace(1.0, 0.1).over(101, 50) == pytest.approx(13.1)
    assert Pace(1.0, 2.0) + Pace(0.5, 0.25) == Pace(1.5, 2.25)


def test_the_footprint_names_the_largest_trial() -> None:
    held = footprint(list(plan()))
    assert held.largest == max(plan(), key=lambda trial: footprint([trial]).peak).where
    assert "(shuffled pairs)" in held.largest  # its activations are copied in another order
    assert held.driver > held.worker > PROCESS
    assert held.peak == max(footprint([trial]).peak for trial in plan())


def test_what_the_disk_has_no_room_for_is_held_in_ram() -> None:
    trial = plan()[0]
    apart = sum(need.nbytes for need in trial.needs if need.nbytes > 20_000)
    assert footprint([trial], disk=20_000).peak == footprint([trial]).peak + apart


def test_as_many_workers_as_the_ram_allows() -> None:
    held = Footprint(driver=10, worker=4, peak=1, largest="A → B at x")
    assert [held.fits_in(budget) for budget in (11, 19, 20, 24, 25, 35)] == [1, 1, 2, 2, 3, 5]
    assert all(held.of(held.fits_in(budget)) <= budget for budget in range(11, 60))
    made = forecast(plan(), workers=4, ram=forecasted().footprint.of(2))
    assert (made.workers, made.fits_in(forecasted().footprint.of(3))) == (2, 3)


def test_a_budget_in_which_nothing_fits_names_the_trial_what_it_needs_and_the_remedies() -> None:
    with pytest.raises(RunnerError) as caught:
        forecast(plan(), ram=10**6)
    said = str(caught.value)
    assert footprint(list(plan())).largest in said
    for words in ("budget is 1.0 MB", "about 5", "of RAM", "fewer fit samples", "later cut", "larger budget"):
        assert words in said


def test_affordable_is_strict_where_a_budget_was_given() -> None:
    held = footprint(list(plan()))
    assert affordable(plan(), held.of(3), 8) == 3
    assert affordable(plan(), held.of(3), 2) == 2
    assert affordable(plan(), 1, 8, strict=False) == 1
    with pytest.raises(RunnerError):
        affordable(plan(), 1, 8)


def shown(made: Forecast, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(forecast_table(made))
    return captured.get()


MADE = Forecast(
    trials=1280,
    distinct=1200,
    done=300,
    workers=8,
    cpu_seconds=5600.0,
    longest=20.0,
    footprint=Footprint(
        600 * 10**6, 550 * 10**6, 120 * 10**6, "resnet18 → vit_tiny at layer1.0 → blocks.0 (shuffled pairs)"
    ),
    activations=21 * 10**9,
    disk=12 * 10**9,
    ram_budget=8 * 10**9,
    disk_budget=10 * 10**9,
)


def test_the_screen_says_what_it_takes_and_what_was_allowed() -> None:
    said = shown(MADE)
    assert max(map(len, said.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[:5] == [
        "trials 1,280 80 of them the same as another",
        "already measured 300",
        "workers 8 each up to 670 MB of RAM",
        "time left about 12 min 93 min of one core",
        "RAM 6.0 GB of 8.0 GB",
    ]
    assert "disk 12 GB of 10 GB for activations" in lines
    assert "activations 21 GB more than the budget: some are computed again" in lines
    assert "resnet18 → vit_tiny at layer1.0 → blocks.0 (shuffled pairs)" in " ".join(lines)


def test_a_finished_plan_says_so() -> None:
    said = shown(replace(MADE, done=1200))
    assert "everything is measured" in said
    assert "RAM" not in said


def test_names_come_out_as_they_are_written() -> None:
    named = replace(MADE, footprint=replace(MADE.footprint, largest="[bold]A[/bold] → B"))
    assert "[bold]A[/bold] → B" in shown(named)


def test_the_record_is_plain_and_complete() -> None:
    made = record(MADE)
    assert made["left"] == 900
    assert made["seconds"] == START + 700.0
    assert made["largest"] == {"trial": MADE.largest, "ram": 120 * 10**6}
    assert made["ram"] == MADE.ram
    assert record(forecasted())["ram_budget"] is None

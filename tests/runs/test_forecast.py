from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import suture
from suture.common.errors import DataError, RunnerError
from suture.core.activations import cache as activations_cache
from suture.core.stitches import Stitch
from suture.core.stitches.base import Shape
from suture.fits import BestOf, Converged, Fit, LeastSquares, Random, TaskLoss
from suture.measurement.trials import controls
from suture.measurement.trials.controls import clustered_noise, shuffled_pairs
from suture.measurement.trials.plans import Plan, curve
from suture.reports.terminal.forecast import forecast_table, record
from suture.runs.forecast import PROCESS, Forecast, Memory, estimate_memory, forecast
from suture.runs.runners import Local
from suture.runs.store.store import TRIALS, Store
from trained import convnets, few_digits

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
    assert (once.networks, once.images) == (
        2,
        sum(map(len, (few_digits().fit, few_digits().validation, few_digits().score))),
    )
    assert (once.cpu_seconds, once.seconds) == (None, None)


def test_the_store_says_what_is_done_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    """Of eight trials, three are measured, and one has failed."""
    store = Store.make(tmp_path)
    for seconds, trial in zip((2.0, 3.0, 7.0), plan(), strict=False):
        store.keep(TRIALS, trial.key, {"status": "ok", "scores": {}, "seconds": seconds}, b"")
    store.keep(TRIALS, plan()[3].key, {"status": "failed", "error": "no"}, b"")
    store.keep(TRIALS, "of another plan", {"status": "ok", "scores": {}, "seconds": 1000.0}, b"")
    for given in (store, tmp_path, str(tmp_path)):
        half = forecast(plan(), workers=2, store=given)
        assert (half.trials, half.done, half.left) == (8, 4, 4)
        assert (half.cpu_seconds, half.seconds) == (4 * 4.0, 8.0)
    assert half.activations < forecasted().activations
    assert forecast(plan(), store=store, retry=True).left == 5


def test_a_damaged_record_is_still_to_be_measured(tmp_path: Path) -> None:
    store = Store.make(tmp_path)
    store.keep(TRIALS, plan()[0].key, {"status": "ok", "scores": {}, "seconds": 1.0}, b"")
    (record,) = tmp_path.glob("trials/*/measurement.json")
    record.write_text(record.read_text().replace("1.0", "2.0"))
    assert forecast(plan(), store=store).left == 8


def test_when_all_is_done_nothing_is_left_and_no_budget_is_too_small(tmp_path: Path) -> None:
    store = Store.make(tmp_path)
    for trial in plan():
        store.keep(TRIALS, trial.key, {"status": "ok", "scores": {}, "seconds": 1.0}, b"")
    made = suture.forecast(plan(), store=store, ram=1)
    assert (made.left, made.seconds, made.activations, made.disk, made.memory.largest) == (0, 0, 0, 0, "")


def test_a_plan_without_trials_is_refused() -> None:
    with pytest.raises(DataError, match="this plan has no trials; plan at least one"):
        forecast(Plan(()))
    with pytest.raises(DataError, match=r"what is planned=.* is a list; give a trial, such as curve or matrix plans"):
        forecast([[]])  # type: ignore[list-item]


def test_workers_below_one_are_refused() -> None:
    with pytest.raises(RunnerError, match="workers=0: give at least 1"):
        forecast(plan(), workers=0)


def test_never_more_workers_than_trials() -> None:
    assert forecast(plan()[:3], workers=7).workers == 3


def test_the_activations_are_those_that_measuring_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {need.key: need.nbytes for trial in plan() for need in trial.needs}
    assert forecasted().activations == sum(kept.values())
    assert forecasted().disk > forecasted().activations
    others = forecasted().disk - forecasted().activations
    held = max(sum(need.nbytes for need in trial.needs) for trial in plan())
    bounded = forecast(plan(), workers=1, disk=held + 1000)
    assert bounded.activations == forecasted().activations
    assert bounded.disk == others + held + 1000 < forecasted().disk
    assert forecast(plan(), workers=1, disk=max(kept.values())).disk == others + held  # what runs keeps its files
    monkeypatch.setattr(activations_cache, "RECOMPUTED", max(kept.values()) - 1)
    largest = sum(size for size in kept.values() if size == max(kept.values()))
    without = forecast(plan(), workers=1)
    assert (without.recomputed, without.disk) == (largest, others + sum(kept.values()) - largest)


def test_the_best_of_several_holds_what_its_fits_do() -> None:
    trial = replace(plan()[0], score_data=plan()[0].score_data.first(40))
    alone = [estimate_memory([replace(trial, fit=fit)]).peak for fit in (TaskLoss(batch=256), Converged())]
    assert estimate_memory([replace(trial, fit=BestOf((TaskLoss(batch=256), Converged())))]).peak >= max(alone)
    without = estimate_memory([replace(trial, fit=LeastSquares())]).peak
    weights = sum(p.nbytes for p in trial.receiver.after(trial.receiver_cut).parameters())
    assert estimate_memory([replace(trial, fit=Converged())]).peak >= without + weights


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
    assert made.disk > 0
    assert torch.equal(before, torch.random.get_rng_state())


def test_nothing_is_changed_by_looking_ahead() -> None:
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    forecast(plan(), workers=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert all(n.state_digest() == n.wrapped_digest for trial in plan() for n in trial.seam.networks)


def test_the_footprint_names_the_largest_trial() -> None:
    held = estimate_memory(list(plan()))
    assert held.largest == max(plan(), key=lambda trial: estimate_memory([trial]).peak).where
    assert "(shuffled pairs)" in held.largest  # its activations are copied in another order
    assert held.driver > held.worker > PROCESS
    assert held.peak == max(estimate_memory([trial]).peak for trial in plan())


def test_what_the_disk_has_no_room_for_is_held_in_ram() -> None:
    trial = plan()[0]
    apart = sum(need.nbytes for need in trial.needs if need.nbytes > 20_000)
    assert estimate_memory([trial], disk=20_000).peak == estimate_memory([trial]).peak + apart


def test_as_many_workers_as_the_ram_allows() -> None:
    held = Memory(driver=10, worker=4, peak=1, largest="A → B at x")
    assert [held.fits_in(budget) for budget in (11, 19, 20, 24, 25, 35)] == [1, 1, 2, 2, 3, 5]
    assert all(held.of(held.fits_in(budget)) <= budget for budget in range(11, 60))
    made = forecast(plan(), workers=4, ram=forecasted().memory.of(2))
    assert (made.workers, made.memory.fits_in(forecasted().memory.of(3))) == (2, 3)


def test_a_budget_in_which_nothing_fits_names_the_trial_what_it_needs_and_the_remedies() -> None:
    with pytest.raises(RunnerError) as caught:
        forecast(plan(), ram=10**6)
    said = str(caught.value)
    assert estimate_memory(list(plan())).largest in said
    for words in ("budget is 1.0 MB", "about 6", "of RAM", "fewer samples", "later cut", "larger budget"):
        assert words in said


def test_fewer_workers_are_started_where_ram_is_short_and_none_only_if_a_budget_says_so(monkeypatch) -> None:
    held = estimate_memory(list(plan()))
    assert Local(workers=8, ram=held.of(3)).prepared(plan()).workers == 3
    assert Local(workers=2, ram=held.of(3)).prepared(plan()).workers == 2
    with pytest.raises(RunnerError):
        Local(workers=8, ram=1).prepared(plan())
    monkeypatch.setattr("suture.runs.runners.local.physical_memory", lambda: 1)
    assert Local(workers=8).prepared(plan()).workers == 1


def shown(made: Forecast, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(forecast_table(made))
    return captured.get()


MADE = Forecast(
    trials=1280,
    distinct=1200,
    done=300,
    networks=2,
    images=70_000,
    workers=8,
    memory=Memory(600 * 10**6, 550 * 10**6, 120 * 10**6, "[b]resnet18[/b] → vit_tiny at layer1.0 (shuffled pairs)"),
    activations=21 * 10**9,
    disk=12 * 10**9,
    cpu_seconds=5600.0,
    ram_budget=8 * 10**9,
    disk_budget=10 * 10**9,
)


def test_the_screen_says_what_it_takes_and_what_was_allowed() -> None:
    said = shown(MADE)
    assert max(map(len, said.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[:8] == [
        "trials 1,280 80 of them the same as another",
        "already measured 300",
        "networks 2",
        "images 70,000",
        "workers 8 each up to 670 MB of RAM",
        "time left about 12 min if trials take as long as those measured",
        "RAM, resident 6.0 GB of 8.0 GB that processes may hold",
        "RAM, mapped up to 12 GB files, dropped from memory when it is short",
    ]
    assert "disk 12 GB of 10 GB for activations" in lines
    assert "activations 21 GB more than the budget: some are computed again" in lines
    assert "[b]resnet18[/b] → vit_tiny at layer1.0 (shuffled pairs)" in " ".join(lines)
    assert "unknown" in shown(replace(MADE, cpu_seconds=None))
    done = shown(replace(MADE, done=1200))
    assert "everything is measured" in done
    assert "RAM" not in done


def test_the_record_is_plain_and_complete() -> None:
    made = record(MADE)
    assert (made["left"], made["seconds"], made["ram"]) == (900, 700.0, MADE.ram)
    assert made["memory"] == {
        "driver": 600 * 10**6,
        "worker": 550 * 10**6,
        "peak": 120 * 10**6,
        "largest": MADE.memory.largest,
    }
    assert record(forecasted())["ram_budget"] is None


def test_a_plan_of_days_begins_with_remedies_and_shorter_ones_do_not() -> None:
    made = replace(MADE, done=0, cpu_seconds=None, cpu_range=(8 * 90_000.0, 8 * 400_000.0))
    first, *others = shown(made, width=120).splitlines()
    assert first.split()[:5] == ["too", "long", "here?", "over", "25.0"]
    assert "--device cuda" in first
    assert "time left" in " ".join(others)
    assert "too long" not in shown(replace(made, cpu_range=(60.0, 600.0)))


def test_outputs_are_counted_while_they_are_scored() -> None:
    """They are held once, joined, and in float64, of no more samples than are scored at once."""
    texts = torch.randint(0, 50, (60, 16), generator=torch.Generator().manual_seed(0))
    data = suture.load_data(((texts[:40], None), (texts[40:], None)), task=suture.tasks.NextToken(), name="ids")
    network = suture.Network(
        nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 50)), example=data.example
    )
    few, many = (
        estimate_memory(list(curve(network, network, data=some, at=["1"], fit=FIT, controls=()))).peak
        for some in (data.limited(score=10), data)
    )
    assert many - few == 10 * (2 * 4 + 3 * 8) * 16 * 50

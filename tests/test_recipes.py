"""Schedules have the shape they promise, optimisers the settings they are given, and rates are set once a step."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from suture.recipes import SGD, Adam, Constant, Cosine, OneCycle, Optimiser, Schedule, set_rate

STEPS = (1, 2, 3, 7, 10, 100, 391)


@dataclass(frozen=True)
class Spied(Optimiser):
    """An optimiser that writes down the rate of every step that is really taken."""

    real: Optimiser
    rates: list[float] = field(default_factory=list)

    @property
    def lr(self):
        return self.real.lr

    def over(self, parameters):
        optimiser = self.real.over(parameters)
        optimiser.register_step_pre_hook(lambda used, *_: self.rates.append(used.param_groups[0]["lr"]))
        return optimiser


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


@pytest.mark.parametrize("steps", STEPS)
def test_a_constant_rate_is_constant(steps):
    assert factors(Constant(), steps) == [1.0] * steps


@pytest.mark.parametrize("steps", STEPS)
def test_the_cosine_falls_from_the_full_rate_to_zero(steps):
    assert Cosine().factor(0, steps) == 1
    assert Cosine().factor(steps, steps) == pytest.approx(0, abs=1e-15)
    found = factors(Cosine(), steps)
    assert found == sorted(found, reverse=True)
    assert all(0 < factor <= 1 for factor in found)


def test_the_cosine_is_torchs():
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=20)
    for factor in factors(Cosine(), 20):
        assert 0.1 * factor == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_one_cycle_is_a_triangle_with_its_peak_at_the_end_of_warmup(steps, warmup):
    triangle = np.interp(np.arange(1, steps + 1), [0, max(1, warmup * steps), steps + 1], [0, 1, 0])
    assert factors(OneCycle(warmup), steps) == pytest.approx(triangle)
    assert triangle.min() > 0, "no step is lost to a rate of zero"


def test_one_cycle_reaches_the_full_rate_where_the_peak_is_a_whole_step():
    found = factors(OneCycle(0.2), 100)
    assert found[19] == 1
    assert found[0] == pytest.approx(1 / 20)
    assert found[99] == pytest.approx(1 / 81)


@pytest.mark.parametrize("recipe", [Adam(0.02), SGD(0.3)], ids=["Adam", "SGD"])
def test_a_rate_is_the_optimisers_times_the_schedules_in_every_group(recipe):
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimiser = recipe.over(parameters)
    optimiser.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 5.0})
    set_rate(optimiser, recipe, Cosine(), 5, 20)
    for group in optimiser.param_groups:
        assert group["lr"] == pytest.approx(recipe.lr * (1 + math.cos(math.pi / 4)) / 2)


def test_optimisers_get_the_settings_of_their_recipe():
    parameters = [nn.Parameter(torch.zeros(2))]
    adam = Adam(0.01, betas=(0.8, 0.9), weight_decay=0.1).over(parameters)
    assert type(adam) is torch.optim.Adam
    assert adam.defaults["lr"] == 0.01
    assert adam.defaults["betas"] == (0.8, 0.9)
    assert adam.defaults["weight_decay"] == 0.1
    sgd = SGD(0.2, momentum=0.5, nesterov=True, weight_decay=0.01).over(parameters)
    assert type(sgd) is torch.optim.SGD
    chosen = {name: sgd.defaults[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}
    assert chosen == {"lr": 0.2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01}

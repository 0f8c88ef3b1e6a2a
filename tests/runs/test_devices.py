"""Devices: what is refused where there is no GPU, and a few of the GPU's tests on a device that pretends to be one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import suture
from suture.common import devices
from suture.common.errors import DeviceError
from suture.runs.runners.tasks import Measuring
from trained import few_digits, hybrids

FEW = "made_there or two_devices or too_little or budget or indices or do_not_fit or bfloat16"


def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = suture.curve(*hybrids(), data=few_digits(), at="relu")
    for ask in (lambda: suture.run(plan, device="cuda"), lambda: hybrids()[0].to("cuda:1")):
        with pytest.raises(DeviceError, match=r"torch finds no GPU here.*; give 'cpu'"):
            ask()
    for name in ("gpu", "cuda:x"):
        with pytest.raises(DeviceError, match=f"'{name}' is not a device; give 'cpu', 'cuda' or 'cuda:1'"):
            suture.run(plan, device=name)
    with pytest.raises(DeviceError, match="device 'mps': Suture was not tried on this kind of device"):
        hybrids()[0].to("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="device 'cuda:2' is not there; give 'cuda:0', 'cuda:1' or 'cpu'"):
        devices.find_device("cuda:2")


def test_workers_take_gpus_in_turn_under_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Measuring(suture.curve(*hybrids(), data=few_digits(), at="relu")[0])
    assert task.for_worker(1) is task
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = [task.on(device).for_worker(3) for device in ("cpu", "cuda", "cuda:0")]
    assert [each.device for each in given] == ["cpu", "cuda:1", "cuda:0"]
    assert {each.key for each in given} == {task.key}


@pytest.mark.slow
def test_a_few_of_the_gpus_tests_pass_on_a_device_that_pretends() -> None:
    tests = str(Path(__file__).parents[1] / "gpu")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-k", FEW, tests]
    done = subprocess.run(command, env=os.environ | {"SUTURE_DEVICE": "pretend"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "passed" in done.stdout

"""What ``suture doctor`` says of this machine, and of machines that lack something."""

import json
import socket
import sys
from collections.abc import Callable
from importlib import metadata

import pytest
import torch

import suture
from suture.cli import doctor
from suture.cli.doctor import Check, examine

Command = Callable[[str], tuple[int, str, str]]


def found(checks: list[Check], part: str) -> dict[str, Check]:
    return {check.name: check for check in checks if check.part == part}


def test_here_all_that_is_needed_is_there_in_the_versions_that_there_are() -> None:
    checks = examine()
    assert [check for check in checks if check.state == "missing"] == []
    versions = found(checks, "versions")
    assert versions["suture"].found.startswith(suture.__version__)
    assert versions["torch"].found.startswith(torch.__version__.partition("+")[0])
    for name in ("pandas", "timm", "torchvision"):
        assert versions[name].found == metadata.version(name)
    assert {"torch", "pandas", "pyarrow", "threadpoolctl"} <= versions.keys()
    assert "polars" not in versions  # of an extra


def test_devices_are_those_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(examine(), "devices")["CUDA"].found == "none" or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70e9, 140e9))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    checks = found(examine(), "devices")
    assert (checks["cuda:1"].found, checks["cuda:1"].state) == ("H200, 70 GB free, bfloat16", "ok")
    assert checks["measures on"].found == "the processor; 2 GPUs with --device cuda, one process each"


def test_a_library_that_is_missing_or_old_is_told_with_the_line_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["pandas>=2.2", "nowhere-lib>=3", "torch>=99.1", 'ray>=2; extra == "ray"', "threadpoolctl[more]>=3"]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    versions = found(examine(), "versions")
    assert list(versions) == ["suture", "python", "pandas", "nowhere-lib", "torch", "threadpoolctl"]
    assert (versions["nowhere-lib"].state, versions["nowhere-lib"].remedy) == (
        "missing",
        "pip install --upgrade 'nowhere-lib>=3'",
    )
    assert versions["torch"].found.endswith("older than 99.1")
    assert versions["torch"].state == "missing"
    assert versions["pandas"].state == versions["threadpoolctl"].state == "ok"


def test_a_torchvision_of_another_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist\nand more")
        return torch

    monkeypatch.setattr(doctor, "import_module", broken)
    check = found(examine(), "versions")["torchvision"]
    assert check.state == "missing"
    assert check.found.endswith("cannot be imported: operator torchvision::nms does not exist")
    assert "built for each other" in check.remedy


def test_extras_are_there_or_the_line_that_installs_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    checks = examine()
    extras = found(checks, "extras")
    assert set(extras) == {name for name, *_ in doctor.EXTRAS}
    assert all(check.state == "optional" and "install" in check.remedy for check in extras.values())
    assert [check for check in checks if check.state == "missing"] == []


@pytest.mark.parametrize("width", [80, 200])
def test_the_command_fits_the_screen_and_says_what_the_marks_mean(
    run: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run("doctor")
    assert (code, err) == (0, "nothing required is missing; parts marked – are optional\n")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line.isalpha()] == ["versions", "devices", "extras"]
    assert "\x1b" not in out
    monkeypatch.setattr(doctor, "requires", lambda name: ["nowhere-lib>=3"])
    code, out, err = run("doctor")
    assert (code, err) == (1, "suture: 1 required part missing (✗)\n")
    assert "✗ nowhere-lib" in out
    code, out, _ = run("doctor --json")
    made = json.loads(out)
    assert (code, made["sound"]) == (1, False)
    assert [check["name"] for check in made["checks"] if check["state"] == "missing"] == ["nowhere-lib"]


def test_nothing_is_fetched_and_no_extra_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise SystemExit("a connection was tried")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    extras = ("ray", "timm", "datasets", "pandas")
    for name in extras:
        monkeypatch.delitem(sys.modules, name, raising=False)
    examine()
    assert not sys.modules.keys() & set(extras)

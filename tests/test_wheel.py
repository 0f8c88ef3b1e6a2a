"""The wheel that users install: it holds all it needs, runs without the repository, and its types help them."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USER = """
from typing import assert_type

import pandas as pd
from torch import nn

import suture

data = suture.load_data("digits")
models = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in "ab"]
a, b = (suture.Network(model, example=data.example, name=name) for model, name in zip(models, "ab"))
measured = suture.stitch(a, b, at="0", data=data, fit="least-squares", controls="itself")
assert_type(measured, suture.Measurement)
assert_type(measured.stitched, suture.Stitched)
assert_type(suture.run(suture.curve(a, b, data=data, stitch="linear")), pd.DataFrame)
suture.stitch(a, b, data=data)  # error: it has no cut
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel that was built elsewhere installs."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", place, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def run(command: list[str], installed: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    paths = {"PYTHONPATH": str(installed), "MYPYPATH": str(installed)}
    return subprocess.run(command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_wheel_measures_a_curve_and_writes_its_report_without_the_repository(installed: Path, tmp_path: Path) -> None:
    here = run([sys.executable, "-c", "import suture; print(suture.__file__)"], installed, tmp_path)
    assert here.stdout.startswith(str(installed))
    networks = ["zoo:convnet,width=4", "zoo:convnet,width=5"]
    asked = ["--data", "digits", "--fit", "least-squares", "--at", "pool", "--workers", "1", "--out", "run"]
    curve = run([sys.executable, "-m", "suture", "curve", *networks, *asked], installed, tmp_path)
    assert curve.returncode == 0, curve.stderr
    assert (tmp_path / "run" / "curve.png").is_file()
    report = run([sys.executable, "-m", "suture", "report", "run"], installed, tmp_path)
    assert report.returncode == 0, report.stderr
    assert "<h1" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_users_program_is_checked_against_its_types(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(USER)
    line = USER.splitlines().index(next(line for line in USER.splitlines() if "error: it has no cut" in line)) + 1
    checked = run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", "program.py"], installed, tmp_path)
    errors = [found for found in checked.stdout.splitlines() if ": error:" in found]
    assert len(errors) == 1, checked.stdout
    assert f"program.py:{line}: error: Missing named argument" in errors[0]

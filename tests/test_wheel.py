"""The wheel that users install: it holds all it needs, runs without the repository, and its types help them.

It also runs without the papers' package, as most users will have it: the demo, the tutorial and the instrument's own
tests, those that need none of the papers' networks.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NETS = """
from torch import nn

def make(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
"""
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


@pytest.fixture(scope="module")
def alone(installed: Path) -> str:
    """The path of the instrument from its wheel with all that it depends on, the papers out of reach.

    The libraries are linked, so that PyTorch is not installed twice; ``python -S`` adds no others.
    """
    links = installed.parent / "links"
    links.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("suture", "__editable__")) and path.suffix != ".pth":
            (links / path.name).symlink_to(path)
    return os.pathsep.join(map(str, (installed, links)))


def run(command: list[str], installed: Path | str, folder: Path) -> "subprocess.CompletedProcess[str]":
    paths = {"PYTHONPATH": str(installed), "MYPYPATH": str(installed)}
    return subprocess.run(command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_wheel_measures_a_curve_and_writes_its_report_without_the_repository(installed: Path, tmp_path: Path) -> None:
    here = run([sys.executable, "-c", "import suture; print(suture.__file__)"], installed, tmp_path)
    assert here.stdout.startswith(str(installed))
    (tmp_path / "nets.py").write_text(NETS)
    networks = ["nets.py:make,width=4", "nets.py:make,width=5"]
    asked = ["--data", "digits", "--fit", "least-squares", "--at", "1", "--workers", "1", "--out", "run"]
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


# --- without the papers -----------------------------------------------------------------------------------------------


#: The demo with its closed forms alone, since its fits would take two minutes and are fits like others.
SHORT_DEMO = """
from suture.cli import demo, main
from suture.fits import LeastSquares
demo.demo_fit = LeastSquares
raise SystemExit(main.main(["demo", "--out", "demo", "--workers", "1"]))
"""
#: The tutorial with the first steps of its fits, in one process: that it runs whole is tried by tests/test_docs.py.
SHORT_TUTORIAL = """
import runpy, suture
from suture.fits import Converged, Quick
measure = suture.run
suture.run = lambda plan, **given: measure(plan, **({"on": suture.Local(workers=1)} | given))
Converged.fit = lambda self, *given: Quick(steps=2).fit(*given)
runpy.run_path("tutorial.py", run_name="__main__")
"""


@pytest.mark.slow
def test_alone_the_instrument_shows_its_demo(alone: str, tmp_path: Path) -> None:
    without = run([sys.executable, "-S", "-c", "import suture_papers"], alone, tmp_path)
    assert "No module named 'suture_papers'" in without.stderr
    demo = run([sys.executable, "-S", "-c", SHORT_DEMO], alone, tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert (tmp_path / "demo" / "curve.png").is_file()
    zoo = run([sys.executable, "-S", "-m", "suture", "cuts", "zoo:resnet"], alone, tmp_path)
    assert (zoo.returncode, "is of suture_papers, which is installed" in zoo.stderr) == (2, True)
    studies = run([sys.executable, "-S", "-m", "suture", "run", "bansal-2A"], alone, tmp_path)
    assert (studies.returncode, "'run' is a command of suture_papers" in studies.stderr) == (2, True)


@pytest.mark.slow
def test_alone_the_instrument_runs_its_tutorial(alone: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for title, program in re.findall(r'^```python(?: title="(.*?)")?\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        with (tmp_path / (title or "tutorial.py")).open("a", encoding="utf-8") as file:
            file.write(program)
    (tmp_path / "short.py").write_text(SHORT_TUTORIAL)  # what is part of a key must have a text
    done = run([sys.executable, "-S", "short.py"], alone, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_alone_the_instrument_passes_its_own_tests(alone: str, tmp_path: Path) -> None:
    files = [path for room in ("core", "fits") for path in sorted((ROOT / "tests" / room).rglob("test_*.py"))]
    chosen = [str(path) for path in files if not needs_papers(path)]
    done = run([sys.executable, "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen], alone, ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 250


def needs_papers(path: Path, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a file of tests, or a helper that it imports, uses the papers' networks."""
    text = path.read_text(encoding="utf-8")
    if re.search(r"suture_papers|\b(zoo|ledger):", text):
        return True
    found = {
        name: [*(ROOT / "tests").rglob(f"{name}.py")] for name in re.findall(r"^(?:from|import) (\w+)", text, re.M)
    }
    return any(needs_papers(one, seen | {name}) for name, of in found.items() if name not in seen for one in of)

"""The oldest libraries that Suture allows, tried: a fresh environment with every lower bound, and tests within it.

    python benchmarks/oldest.py FOLDER [--with torch==2.9.1 …] [--tests PATH …]

Installs Suture into a new environment in ``FOLDER``, each library that ``pyproject.toml`` names in the lowest version
that it allows, or in the one that ``--with`` names, and runs tests of the instrument. Warnings of old libraries are no
errors. Downloads some gigabytes; what is installed already in ``FOLDER`` is kept.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/laws", "tests/fits", "tests/core", "tests/measurement", "tests/zoo")


def lower_bounds() -> dict[str, str]:
    """Return the lowest version of each library that is needed to measure, and of those of the extra ``hf``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["hf"]]
    pairs = (text.split(">=") for text in wanted)
    return {name: bound.partition(",")[0] for name, bound in pairs}


def main() -> int:
    """Install and test; return the exit code of pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--with", nargs="*", default=[], dest="others", metavar="NAME==VERSION")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    pins = lower_bounds() | dict(text.split("==") for text in given.others)
    python = given.folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(given.folder)], check=True)
    pinned = given.folder / "oldest.txt"
    pinned.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="utf-8")
    install = [python, "-m", "pip", "install", "--quiet"]
    others = ["pytest", "hypothesis", "pytest-xdist", "networkx"]
    subprocess.run([*install, "--constraint", pinned, *pins, *others], check=True)
    # Without what they ask for, so that a library can also be tried that is older than they allow.
    subprocess.run([*install, "--no-deps", ROOT, ROOT / "papers"], check=True)
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-W", "ignore", *given.tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Set Suture up in .venv beside this file, and run it: the demo, or the tests.

    python3 run.py demo          two small networks on real digits, stitched at every cut
    python3 run.py test          lint, types and the instrument's default tests
    python3 run.py test papers   the same with the tests of the papers' package
    python3 run.py test all      both

Needs Python 3.11 or later with its venv module, and nothing else. What is there already is not installed again.
Arguments after the command are handed on: python3 run.py demo --out somewhere, python3 run.py test -k frozen. What the
default test run leaves out is named by its marker: python3 run.py test -m slow (or ray, browser, docs, kills, gpu).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
TESTS = {"instrument": ("tests",), "papers": ("papers/tests",), "all": ("tests", "papers/tests")}


def main() -> int:
    """Run the command; its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("demo", "test"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in ([], ["-h"], ["--help"]) else 2
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python must be told, not fail
        print(f"Suture needs Python 3.11 or later; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    command, rest = sys.argv[1], sys.argv[2:]
    try:
        set_up("dev" if command == "test" else "")
        if command == "demo":
            return call("suture", "demo", *rest, check=False, cwd=None)
        for check in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)):
            call(*check)
        os.environ["OMP_NUM_THREADS"] = "1"  # the tests run side by side
        which = rest.pop(0) if rest and rest[0] in TESTS else "instrument"
        return call("pytest", "-n", "auto", "--dist", "worksteal", *TESTS[which], *rest, check=False)
    except subprocess.CalledProcessError as error:
        print(f"run.py: {' '.join(map(str, error.cmd))} failed", file=sys.stderr)
        return error.returncode
    except KeyboardInterrupt:
        return 130


def set_up(extra: str) -> None:
    """Install Suture with the pinned versions, unless that was done for these pins."""
    pins = [(ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml", "papers/pyproject.toml")]
    done = VENV / f"installed-{extra or 'base'}-{hashlib.sha256(b''.join(pins)).hexdigest()[:12]}"
    if done.exists():
        return
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise SystemExit("run.py: this Python has no venv module; on Debian and Ubuntu install python3-venv") from None
    if not BIN.exists():
        print(f"making {VENV}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    print(
        "installing Suture, its papers and PyTorch: on Linux a download of about 3 GB, a few minutes", file=sys.stderr
    )
    what = f".[{extra}]" if extra else "."
    both = ("--editable", what, "--editable", "./papers")
    call("python", "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", *both)
    done.touch()


def call(program: str, *arguments: str, check: bool = True, cwd: Path | None = ROOT) -> int:
    """Run a program of the virtual environment in a folder; ``None`` is where the user is."""
    return subprocess.run([str(BIN / program), *arguments], cwd=cwd, check=check).returncode


if __name__ == "__main__":
    sys.exit(main())

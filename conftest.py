"""Settings that all tests share: one thread each, since they run side by side; the same examples from hypothesis every
time, and no deadline for them. The default run, which leaves out slow tests, tries fewer inputs (``loops``).
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before torch is imported, and for processes of tests

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import loops

# A shell that starts the tests in the background lets them, and the processes of tests, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported, decide how many inputs are tried."""
    loops.WHOLE = "not slow" not in config.option.markexpr
    count = loops.examples(40)
    settings.register_profile("suture", derandomize=True, deadline=None, max_examples=count, database=None)
    settings.load_profile("suture")


def pytest_collection_finish() -> None:
    """Keep imported objects out of the garbage collector, which would look through it all again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write need not outlive the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Run a command in an empty folder, 80 columns wide; its exit code, output and messages."""
    from suture.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def command(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return command

"""Measurements for the day there is a GPU, in stages of eight minutes that continue where they stopped.

    python -m benchmarks.gpu pack DATA FOLDER     beforehand: 20,000 images, at most 55 MB
    python -m benchmarks.gpu check                what is installed here, what is missing, and how to install it
    python -m benchmarks.gpu a                    the tests marked gpu
    python -m benchmarks.gpu b FOLDER             the 8 × 8 matrix by the plain loop, least squares + Adam, Suture
    python -m benchmarks.gpu c FOLDER             seams of that matrix on the processor beside it
    python -m benchmarks.gpu d FOLDER             hernandez2022's smallest and largest ResNet under four conditions
    python -m benchmarks.gpu e DATA               trains what the ledger wants most, on all 50,000 images
    python -m benchmarks.gpu f FOLDER             steps of the default fit, replayed and one by one; four minutes

``DATA`` has ``cifar10/`` in the hub's parquet layout, ``FOLDER`` is what ``pack`` made. Run from the repository's root;
nothing has to be installed if what Suture needs is there. Each stage begins no new work after ``--minutes``, and writes
``benchmarks/results/gpu/DEVICE-STAGE.json`` after every piece of work; the same command goes on from there, and
``complete`` in the file says whether anything is left. ``--tiny`` runs everything on a few images in seconds, which the
tests do.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST = 55_000_000  #: bytes of the folder
PACKED = {"train": 10_000, "test": 10_000}  #: images
STAGES = {"a": "tests", "b": "matrix", "c": "processor", "d": "hernandez", "e": "training", "f": "steps"}
UNUSED = ("datasets", "argcomplete")  #: what Suture needs and the stages do not: they read parquet themselves
IMPORTED_AS = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "pytorch-cka": "cka",
}
ALSO = ("pytest>=8", "hypothesis>=6.100", "pytorch-cka>=1.1", "nvidia-ml-py>=12")
"""For the tests, and to see how busy the device is."""

if importlib.util.find_spec("suture") is None:
    sys.path.insert(0, str(ROOT / "src"))


# --- what is installed ------------------------------------------------------------------------------------------------


def missing_packages() -> tuple[list[str], list[str]]:
    """Return the packages to install, as pip takes them, and remarks about them."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    missing, notes = [], []
    for requirement in (*wanted, *ALSO):
        name, _, least = requirement.partition(">=")
        if importlib.util.find_spec(IMPORTED_AS.get(name, name)) is None:
            if name in UNUSED:
                notes.append(f"{requirement} is not installed; no stage needs it")
            elif requirement in ALSO:
                notes.append(f"{requirement} is not installed; the tests, or the clock of the device, want it")
            else:
                missing.append(requirement)
        elif _numbers(found := importlib.metadata.version(name)) < _numbers(least):
            notes.append(f"{name} is {found}, older than the {least} that Suture asks for; tried all the same")
    return missing, notes


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def check() -> bool:
    """Print the packages that are here and those to install; return whether the stages can run."""
    missing, notes = missing_packages()
    free = shutil.disk_usage(ROOT).free / 1e9
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} processors, {free:.0f} GB of disk free")
    for note in notes:
        print(f"note: {note}")
    if missing:
        print(f"missing: install them with\n    {sys.executable} -m pip install {' '.join(map(repr, missing))}")
        return False
    import torch

    there = torch.cuda.is_available()
    memory = f"{torch.cuda.mem_get_info()[1] / 2**30:.0f} GiB, CUDA {torch.version.cuda}" if there else "no GPU"
    print(f"torch {torch.__version__}: {device_name('cuda' if there else 'cpu')}, {memory}")
    return True


def device_name(device: str) -> str:
    """Return the device's own name."""
    import torch

    from suture.common.devices import name_device
    from suture.common.processor import processor

    return processor() if device == "cpu" else name_device(torch.device(device))


# --- the folder -------------------------------------------------------------------------------------------------------


def pack(data: Path, folder: Path, counts: dict[str, int] | None = None) -> int:
    """Write the first images of both splits, as PNG as they are, in the hub's layout; return the bytes.

    The training images of the data are in random order, so the first are a sample of all. The networks are those that
    the repository has; others may be put into ``FOLDER/networks``, weights and cards as in ``papers/results/networks``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, target = data / "cifar10" if (data / "cifar10").is_dir() else data, folder / "cifar10"
    target.mkdir(parents=True, exist_ok=True)
    for split, count in (counts or PACKED).items():
        tables, rows = [], 0
        for path in sorted(source.glob(f"{split}-*.parquet")):
            if rows < count:
                tables.append(pq.read_table(path).slice(0, count - rows))
                rows += len(tables[-1])
        if not tables:
            raise SystemExit(f"{source} has no {split}-*.parquet; give the folder that has cifar10/")
        pq.write_table(pa.concat_tables(tables), target / f"{split}-00000-of-00001.parquet", use_dictionary=False)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")
    if size > LARGEST:
        raise SystemExit(f"{folder} has {size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}; take networks out of it")
    return size


# --- the JSON of a stage ----------------------------------------------------------------------------------------------


class Stage:
    """The JSON of one stage: its subject, a record for each piece of work, and the time that it may take.

    ``until`` is the moment after which no work begins. ``about`` decides whether records that are there already are of
    the same work; if not, the file is refused.
    """

    def __init__(self, name: str, out: Path, device: str, until: float, tiny: bool, about: dict[str, Any]) -> None:
        import torch

        self.device, self.tiny, self.out, self.until = torch.device(device), tiny, out, until
        called = device_name(device)
        slug = re.sub(r"[^a-z0-9]+", "-", called.lower()).strip("-")
        self.path = out / f"{slug}-{name}{'-tiny' if tiny else ''}.json"
        head = {"stage": name, "device": called, "torch": torch.__version__, "tiny": tiny, "about": about}
        self.content: dict[str, Any] = head | {"complete": False, "summary": {}, "records": {}}
        if self.path.exists():
            before = json.loads(self.path.read_text(encoding="utf-8"))
            differs = [key for key, value in json.loads(json.dumps(head)).items() if before.get(key) != value]
            if differs:
                raise SystemExit(
                    f"{self.path} is of another {' and '.join(differs)}; move it away, or give another --out"
                )
            self.content = before
        self.records: dict[str, Any] = self.content["records"]

    @property
    def is_over(self) -> bool:
        """Whether no new work may begin."""
        return time.monotonic() > self.until

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return the keys of work that has no record yet."""
        return [key for key in keys if key not in self.records]

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keep the record of a piece of work."""
        self.records[key] = record
        self.write()
        print(f"{key}: {json.dumps(record)[:200]}", flush=True)

    def end(self, summary: dict[str, Any], complete: bool) -> None:
        """Keep and print the summary of the records."""
        self.content |= {"summary": summary, "complete": complete}
        self.write()
        print(json.dumps(summary, indent=1))
        print(f"{self.path}: {'complete' if complete else 'PARTIAL; the same command goes on'}")

    def write(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)


# --- stage a ----------------------------------------------------------------------------------------------------------


def run_tests(stage: Stage) -> None:
    """Run the tests marked gpu that have not passed yet, in this process; torch's warnings are not failures here."""
    import pytest

    files = [str(p) for p in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in p.read_text("utf-8")]

    class Recorder:
        collected: Sequence[str] = ()

        @pytest.hookimpl(trylast=True)  # after those without the marker have gone
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            self.collected = [item.nodeid for item in items]
            items[:] = [item for item in items if stage.records.get(item.nodeid, {}).get("outcome") != "passed"]

        def pytest_collectreport(self, report: Any) -> None:  # of a file, which may ask for a package that is missing
            if report.failed:
                stage.put(report.nodeid, {"outcome": "failed", "seconds": 0.0, "why": _why(report)})
            else:
                stage.records.pop(report.nodeid, None)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                why = "" if report.outcome == "passed" else _why(report)
                stage.put(report.nodeid, {"outcome": report.outcome, "seconds": round(report.duration, 2), "why": why})

        def pytest_runtest_setup(self, item: Any) -> None:
            if stage.is_over:
                pytest.exit("the stage's time is over", returncode=0)

    recorder = Recorder()
    settings = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default", "--continue-on-collection-errors"]
    pytest.main([*settings, f"--rootdir={ROOT}", *files], [recorder])
    outcomes = [record["outcome"] for record in stage.records.values()]
    summary = {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}
    stage.end(summary, bool(recorder.collected) and not stage.missing(recorder.collected))


def _why(report: Any) -> str:
    """Return the end of pytest's message about a failure, without the path of this repository."""
    return str(report.longrepr).replace(f"{ROOT}{os.sep}", "")[-2000:]


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "check", *STAGES))
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu", help="where the JSON goes")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin no new work after so many")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument("--tiny", action="store_true", help="few images, few steps, two cuts")
    given = parser.parse_args(arguments)
    folders = {"pack": 2, "check": 0, "a": 0}.get(given.what, 1)
    if len(given.folders) != folders:
        parser.error(f"{given.what} takes {folders} folders")
    if given.what == "pack":
        pack(*given.folders)
        return 0
    if not check():
        return 2
    if given.what == "check":
        return 0
    import torch

    until = begun + 60 * given.minutes
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def stage(about: dict[str, Any]) -> Stage:
        return Stage(f"{given.what}-{STAGES[given.what]}", given.out, device, until, given.tiny, about)

    if given.what == "a":
        run_tests(stage({}))
    else:
        from benchmarks import gpu_stages, gpu_steps

        run = gpu_steps.replay if given.what == "f" else gpu_stages.RUN[given.what]
        run(given.folders[0], stage, device, given.tiny)
    return 0


if __name__ == "__main__":
    sys.exit(main())

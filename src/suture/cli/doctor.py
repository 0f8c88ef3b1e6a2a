"""``suture doctor``: the libraries, devices and extras that are there, and those that are missing.

Nothing is fetched, nothing is written, and no library of the extras is imported: whether one is there is asked of
Python's own records. torch and torchvision are imported, since builds of theirs that do not belong together are what
most often goes wrong.
"""

import platform
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from suture.cli import output
from suture.cli.options import JSON, command
from suture.common.formatting import say_count
from suture.common.sizes import cores, in_words, physical_memory

#: Extras that measuring does not need: the module, its purpose, and the line that installs it.
EXTRAS = (
    ("ray", "a cluster: --on ray", "pip install 'suture[ray]'"),
    ("jinja2", "suture report", "pip install 'suture[report]'"),
    ("transformers", "networks of Hugging Face's transformers", "pip install 'suture[hf]'"),
)
_MARKS = {"ok": "", "optional": "–", "missing": "✗"}


@final
@dataclass(frozen=True)
class Check:
    """A check: its part and name, the finding, its state (of ``_MARKS``), and a remedy."""

    part: str
    name: str
    found: str
    state: str = "ok"
    remedy: str = ""


Found = Iterator[tuple[str, ...]]
"""The fields of checks, without their part."""


@command(
    "doctor",
    JSON,
    examples=("suture doctor",),
)
def doctor(chosen: Namespace) -> int:
    """List versions, devices and extras, and report missing ones.

    List the required libraries with their versions, the devices and their memory, and the extras. Nothing is fetched or
    changed. The exit code is 0 if nothing required is missing, else 1.
    """
    checks = examine()
    missing = sum(check.state == "missing" for check in checks)
    output.answer(chosen, {"sound": not missing, "checks": [asdict(check) for check in checks]}, *_tables(checks))
    output.say(
        f"suture: {say_count(missing, 'required part')} missing (✗)"
        if missing
        else "nothing required is missing; parts marked – are optional"
    )
    return 1 if missing else 0


def examine() -> list[Check]:
    """Run all checks."""
    parts = {"versions": _libraries(), "devices": _devices(), "extras": _extras()}
    return [Check(part, *found) for part, checks in parts.items() for found in checks]


def _tables(checks: Sequence[Check]) -> list[Any]:
    """Return a table for each part, under its name."""
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    longest = max(len(check.name) for check in checks)
    for part in dict.fromkeys(check.part for check in checks):
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(width=1)
        table.add_column(min_width=longest, overflow="fold")
        table.add_column(overflow="fold")
        for check in checks:
            if check.part == part:
                found = Text("\n".join(filter(None, (check.found, check.remedy and f"→ {check.remedy}"))))
                table.add_row(_MARKS[check.state], Text(check.name), found)
        shown += ["", part, table]
    return shown[1:]


# --- what is looked at ------------------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _libraries() -> Found:
    """Look for the libraries that Suture needs, as its own installation says."""
    from packaging.requirements import Requirement

    found = _version("suture")
    yield "suture", f"{found or 'not installed'}, in {Path(__file__).parent}"
    yield "python", f"{platform.python_version()}, {sys.executable}"
    for needed in map(Requirement, (requires("suture") or []) if found else []):
        if needed.marker is None:  # no extra
            yield _library(needed.name, str(needed.specifier), _version(needed.name), needed)


def _library(name: str, least: str, found: str | None, needed: Any) -> tuple[str, ...]:
    if found is None or not needed.specifier.contains(found, prereleases=True):
        there = "not installed" if found is None else f"{found}, older than {least.removeprefix('>=')}"
        return name, there, "missing", f"pip install --upgrade '{name}{least}'"
    if name not in ("torch", "torchvision"):
        return name, found
    try:
        module = import_module(name)
    except Exception as error:  # whatever a broken build raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = "install a torch and a torchvision that were built for each other: pip install torch torchvision"
        return name, f"{found} cannot be imported: {reason}", "missing", remedy
    if name == "torch":
        cuda, hip = module.version.cuda, module.version.hip
        built = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the processor alone"
        return name, f"{found} (built for {built})"
    return name, found


def _devices() -> Found:
    try:
        import torch
    except Exception:  # told of above
        return
    from suture.common.devices import count_devices, name_device
    from suture.common.processor import half_precision, processor

    threads = f"{say_count(cores(), 'core')} to be used; torch starts {torch.get_num_threads()} threads"
    yield "processor", f"{processor()}, {threads}"
    yield "memory", in_words(physical_memory())
    fast = half_precision(torch.device("cpu")) is not None
    yield "bfloat16", "in hardware" if fast else "not in hardware: trainings run in float32"
    count = count_devices("cuda")
    for place in range(count):
        device = torch.device("cuda", place)
        free, _ = torch.cuda.mem_get_info(device)
        half = "bfloat16" if half_precision(device) is not None else "no bfloat16"
        yield f"cuda:{place}", f"{name_device(device)}, {in_words(free)} free, {half}"
    if not count:
        remedy = "torch sees no GPU though there is a driver: install a build of torch for CUDA"
        yield "CUDA", "none", "optional", remedy if shutil.which("nvidia-smi") else ""
    gpus = f"; {say_count(count, 'GPU')} with --device cuda, one process each" if count else ""
    yield "measures on", f"the processor{gpus}"
    mps = torch.backends.mps.is_available()
    yield "MPS", "there" if mps else "none", "ok" if mps else "optional"


def _extras() -> Found:
    for name, use, line in EXTRAS:
        found = _version(name) if find_spec(name) is not None else None
        yield (name, found) if found is not None else (name, f"not installed, for {use}", "optional", line)

"""``suture doctor``: what is there and what is missing: libraries, devices, room, data, extras, and folders of runs.

Nothing is fetched, nothing is written, and no library of the extras is imported: whether one is there is asked of
Python's own records. torch and torchvision are imported, since builds of theirs that do not belong together are what
most often goes wrong.
"""

import os
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
from typing import Any, Literal, final

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.options import add_json
from suture.common.errors import SutureError
from suture.common.sizes import cores, free_disk, in_words, physical_memory

State = Literal["ok", "optional", "missing"]
PYTHON = (3, 11)
DATA = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}  #: data of the experiments, and where the hub has them

#: What is not needed for measuring: its module or program, what it is for, and the line that installs it.
EXTRAS = (
    ("ray", "a cluster: --on ray", "pip install 'suture[ray]'"),
    ("plotly", "suture report", "pip install 'suture[report]'"),
    ("transformers", "networks of Hugging Face's transformers", "pip install transformers"),
    ("mkdocs", "building the documentation", "pip install 'suture[docs]'"),
    ("playwright", "tests of reports in a browser", "pip install playwright"),
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ROOM = 2e9  #: bytes of disk below which a run of some size will not fit


@final
@dataclass(frozen=True)
class Check:
    """Something that was looked at: what it is, what was found, and what to do where it is missing."""

    part: str
    name: str
    found: str
    state: State = "ok"
    remedy: str = ""


def examine(data: str | None = None, runs: Sequence[str] = ()) -> list[Check]:
    """Look at everything; ``data`` is a folder that should have mnist and cifar10, ``runs`` are folders of runs."""
    parts = (_libraries(), _devices(), _room(data, runs), _data(data), _extras(), *map(_run, runs))
    return [check for part in parts for check in part]


# --- libraries --------------------------------------------------------------------------------------------------------


def _libraries() -> Iterator[Check]:
    part, python = "versions", platform.python_version()
    yield Check(part, "suture", f"{_version('suture') or 'not installed'}, in {Path(__file__).parent}")
    old = sys.version_info[:2] < PYTHON
    wanted = f"Suture needs Python {'.'.join(map(str, PYTHON))} or later"
    yield Check(part, "python", f"{python}, {sys.executable}", "missing" if old else "ok", wanted if old else "")
    for name, least in needed():
        yield _library(part, name, least)


def needed() -> list[tuple[str, str]]:
    """The libraries that Suture needs, each with the least version, as its own installation says."""
    try:
        listed = requires("suture") or []
    except PackageNotFoundError:
        listed = []
    plain = [line.partition(";")[0] for line in listed if "extra ==" not in line]
    pairs = [line.partition(">=") for line in plain]
    return [(name.partition("[")[0].strip(), least.partition(",")[0].strip()) for name, _, least in pairs]


def _library(part: str, name: str, least: str) -> Check:
    found = _version(name)
    if found is None:
        return Check(part, name, "not installed", "missing", f"pip install '{name}>={least}'")
    if least and _numbers(found) < _numbers(least):
        return Check(part, name, f"{found}, older than {least}", "missing", f"pip install --upgrade '{name}>={least}'")
    if name in ("torch", "torchvision"):
        try:
            module = import_module(name)
        except Exception as error:  # whatever a broken build raises
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            remedy = "install a torch and a torchvision that were built for each other: pip install torch torchvision"
            return Check(part, name, f"{found} cannot be imported: {reason}", "missing", remedy)
        found += f" ({_build(module)})" if name == "torch" else ""
    return Check(part, name, found)


def _build(torch: Any) -> str:
    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}"
    return f"built for ROCm {torch.version.hip}" if torch.version.hip else "built for the processor alone"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


# --- the machine ------------------------------------------------------------------------------------------------------


def _devices() -> Iterator[Check]:
    part = "devices"
    try:
        import torch
    except Exception:  # told of above
        return
    from suture.common.processor import half_precision, processor

    count = cores()
    threads = f"{count} core{'' if count == 1 else 's'} to be used; torch starts {torch.get_num_threads()} threads"
    yield Check(part, "processor", f"{processor()}, {threads}")
    fast = half_precision(torch.device("cpu")) is not None
    yield Check(part, "bfloat16", "in hardware" if fast else "not in hardware: trainings run in float32")
    yield Check(part, "CUDA", *_cuda(torch))
    mps = torch.backends.mps.is_available()
    yield Check(part, "MPS", "there" if mps else "none", "ok" if mps else "optional")


def _cuda(torch: Any) -> tuple[str, State, str]:
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
        return ", ".join(f"{one.name} with {in_words(one.total_memory)}" for one in devices), "ok", ""
    driver = shutil.which("nvidia-smi") is not None
    remedy = "torch sees no GPU though there is a driver: install a build of torch for CUDA" if driver else ""
    return "none", "optional", remedy


def _room(data: str | None, runs: Sequence[str]) -> Iterator[Check]:
    part = "room"
    yield Check(part, "memory", in_words(physical_memory()))
    for name, place in {"here": Path.cwd(), "temporary": _temporary(), "hub cache": hub_cache()}.items():
        free = free_disk(place)
        remedy = "" if free > _ROOM else "free some; runs keep their activations beside their results"
        yield Check(part, name, f"{in_words(free)} free in {place}", "ok" if free > _ROOM else "optional", remedy)


def _temporary() -> Path:
    from tempfile import gettempdir

    return Path(gettempdir())


# --- data -------------------------------------------------------------------------------------------------------------


def hub_cache() -> Path:
    """Where data of the Hugging Face hub are kept on this machine."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _data(folder: str | None) -> Iterator[Check]:
    part = "data"
    yield Check(part, "digits", "embedded")
    place = Path(folder).expanduser() if folder is not None else None
    if place is not None and not place.is_dir():
        yield Check(part, str(folder), "no folder", "missing", "name one that has the folders mnist and cifar10")
        return
    for name, source in DATA.items():
        if place is not None:
            yield _in_folder(part, name, source, place / name)
            continue
        cached = hub_cache() / f"datasets--{source.replace('/', '--')}"
        remedy = f"--data {name} fetches it from the hub ({source}) when it is used; or give a folder"
        if cached.is_dir():
            yield Check(part, name, str(cached))
        else:
            yield Check(part, name, "not here yet", "optional", remedy)


def _in_folder(part: str, name: str, source: str, place: Path) -> Check:
    files = sorted(place.glob("**/*.parquet")) if place.is_dir() else []
    splits = [split for split in ("train", "test") if any(file.name.startswith(split) for file in files)]
    if len(splits) == 2:
        return Check(part, name, f"{in_words(sum(file.stat().st_size for file in files))} in {place}")
    lacks = "train and test files" if not splits else f"{'test' if splits == ['train'] else 'train'} files"
    fetch = f"hf download {source} --repo-type dataset --local-dir {place}"
    return Check(part, name, f"no {lacks} (parquet) in {place}", "missing", f"fetch it: {fetch}")


# --- extras and runs --------------------------------------------------------------------------------------------------


def _extras() -> Iterator[Check]:
    part = "extras"
    for name, use, line in EXTRAS:
        found = _version(name) if find_spec(name) is not None else None
        if found is None:
            yield Check(part, name, f"not installed, for {use}", "optional", line)
        else:
            yield Check(part, name, found)
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is not None:
        yield Check(part, "chromium", browser)
    else:
        use = "not installed, for tests of reports in a browser"
        yield Check(part, "chromium", use, "optional", "apt-get install chromium")


def _run(folder: str) -> Iterator[Check]:
    from suture.measurement.trials.trial import VERSION
    from suture.runs.store.inspect import status, verify
    from suture.runs.store.store import Store

    part = "runs"
    try:
        made = Store(folder).plans.measuring
        found, harm = status(folder), [finding for finding in verify(folder) if not finding.harmless]
    except SutureError as error:
        yield Check(part, folder, "no run that can be read", "missing", str(error))
        return
    said = f"{found.measured} of {found.planned} trials measured, {found.failed} failed"
    if harm:
        yield Check(part, folder, f"{said}; damaged in {len(harm)} places", "missing", f"suture verify {folder}")
    elif made != VERSION:
        remedy = "its table can be read; measure what is to be compared with new results again, in another folder"
        yield Check(part, folder, f"{said}; by version {made} of the measuring code, now {VERSION}", "optional", remedy)
    else:
        yield Check(part, folder, f"{said}; sound")


# --- the command ------------------------------------------------------------------------------------------------------

_MARKS = {"ok": "", "optional": "–", "missing": "✗"}


def options(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of runs to look at")
    parser.add_argument("--data", metavar="FOLDER", help="that should have mnist and cifar10")
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Say what is there and what is missing, and return the exit code: 1 if something that is needed is missing."""
    checks = examine(chosen.data, chosen.runs)
    missing = sum(check.state == "missing" for check in checks)
    if chosen.json:
        output.show_json({"sound": not missing, "checks": [asdict(check) for check in checks]})
        return 1 if missing else 0
    output.show(*_tables(checks))
    output.say(
        f"suture: {missing} of what is needed {'is' if missing == 1 else 'are'} missing (✗)"
        if missing
        else "all that is needed is there; what is marked – is for more"
    )
    return 1 if missing else 0


def _tables(checks: Sequence[Check]) -> list[Any]:
    """Return a table for each part, under its name."""
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    longest = max(len(check.name) for check in checks if check.part != "runs")
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


COMMAND = Command(
    name="doctor",
    help="say what is there and what is missing: versions, data, extras",
    about="Say what is there and what is missing: versions, devices, memory and disk, data, extras, and whether "
    "folders of runs are sound and of this version. Nothing is fetched or changed. The exit code is 0 if all that is "
    "needed is there, else 1.",
    examples=("suture doctor", "suture doctor runs/ab --data data"),
    options=options,
    run=run,
)

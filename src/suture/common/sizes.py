"""Sizes in bytes, as people write and read them, and the machine's memory, disk and cores.

Decimal units (kB, MB, GB, TB) are powers of 1,000, binary ones (KiB, MiB, GiB, TiB) of 1,024. In a container the limits
of the control group count, of either version, not the hardware.
"""

import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from suture.common.errors import SutureError

_UNITS = (
    {"B": 1}
    | {f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}
    | {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}
)
_BY_UNIT = {unit.lower(): size for unit, size in _UNITS.items()}
_NUMBER = re.compile(r"\s*([0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_UNLIMITED = 2**60  #: version 1 says "no limit" by a number near 2⁶³


def parse_size(size: str | int) -> int:
    """Read a size in bytes: ``"8GB"``, ``"512 MiB"``, ``"1.5e9"`` or a number; case does not matter.

    Raises ``SutureError``, with examples, for anything else, and for less than nothing.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _NUMBER.fullmatch(size) if isinstance(size, str) else None
    unit = _BY_UNIT.get(found[2].lower() or "b") if found else None
    number = float(found[1]) * unit if found and unit else math.inf
    if not math.isfinite(number):
        raise SutureError(f"{size!r} is not a size in bytes; write e.g. 8GB, 512MiB, 1.5e9 ({', '.join(_UNITS)})")
    return round(number)


def in_words(size: float) -> str:
    """Return a size in bytes in the unit that people would use: ``512 bytes``, ``87 kB``, ``3.2 GB``."""
    if round(size) < 1000:
        return f"{size:.0f} byte{'' if round(size) == 1 else 's'}"
    value, units = size / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 999.5 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def physical_memory() -> int:
    """Return the bytes of RAM that this process and its children may use, by the machine and its control group."""
    machine: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for text in _limits("memory", "memory.max", "memory.limit_in_bytes") if text.isdecimal()]
    return min([machine, *(limit for limit in limits if limit < _UNLIMITED)])


def available_memory() -> int:
    """Return the bytes of RAM that this process may still take, as far as the system says."""
    total = physical_memory()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return max(0, min(free["MemAvailable"], total - held))
    except (OSError, KeyError, ValueError, IndexError):  # not Linux
        return total


def free_disk(path: str | Path) -> int:
    """Return the free bytes of the file system of a path, or of its nearest ancestor that exists."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def cores() -> int:
    """Return how many processes can compute at once, within the share of this process's control group."""
    allowed = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for text in _limits("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        quota, _, period = text.partition(" ")  # microseconds of computing time in a period of so many
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            allowed.append(int(quota) // int(period))
    return max(1, min(allowed))


def _limits(controller: str, unified: str, *separate: str) -> Iterator[str]:
    """Yield the limits of this process's control groups and of those above: version 2 in one file, 1 in several."""
    for line in _read(_OWN_GROUPS).splitlines():
        _, names, group = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base, files = (_GROUPS / names, separate) if names else (_GROUPS, (unified,))
        for place in (base / group.strip("/"), *(base / group.strip("/")).parents):
            yield " ".join(filter(None, (_read(place / file) for file in files)))
            if place == base:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops import each
from suture.common import sizes
from suture.common.errors import SutureError
from suture.common.sizes import cores, free_disk, in_words, parse_size, physical_memory


@each(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("1.5e9", 1_500_000_000),
        (" 2 kb ", 2000),
        (".5KiB", 512),
        ("3TB", 3 * 10**12),
        ("1TiB", 2**40),
        ("7 B", 7),
        ("0", 0),
        (12, 12),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@each("text", ["", "GB", "8 G", "eight", "-1GB", "1e999", "1 GB free", "nan", -3, True, 1.5, None])
def test_what_is_no_size_is_refused_with_examples(text: object) -> None:
    with pytest.raises(SutureError, match=r"is not a size in bytes; write e\.g\. 8GB, 512MiB") as caught:
        parse_size(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)


@each(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (999.6, "1.0 kB"),
        (1000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (3.2e9, "3.2 GB"),
        (1.5e15, "1,500 TB"),
    ],
)
def test_sizes_are_said_in_the_unit_that_suits(size: float, words: str) -> None:
    assert in_words(size) == words


@given(st.integers(0, 10**14))
def test_what_is_said_can_be_read_again(size: int) -> None:
    said = in_words(size).replace("bytes", "B").replace("byte", "B")
    assert parse_size(said) == pytest.approx(size, rel=0.051)


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_larger_size_never_reads_smaller(a: int, b: int) -> None:
    small, large = (parse_size(in_words(size).replace(",", "").rstrip("ytes").rstrip("b")) for size in sorted((a, b)))
    assert small <= large


def test_this_machine_has_something() -> None:
    assert physical_memory() > 2**27
    assert cores() >= 1
    assert free_disk(Path(__file__)) > 0


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    there, not_yet = free_disk(tmp_path), free_disk(tmp_path / "runs" / "new")
    assert not_yet == pytest.approx(there, rel=0.1)


def grouped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str]) -> None:
    """Put this process into control groups."""
    (tmp_path / "own").write_text(own, encoding="utf-8")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sizes, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(sizes, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(sizes.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.mark.parametrize(
    ("own", "files", "memory", "count"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "100000", "a/cpu.max": "300000 100000"}, 100_000, 3),
        ("0::/", {"memory.max": "70000", "cpu.max": "max 100000"}, 70_000, 16),
        (
            "4:memory:/x\n1:cpu,cpuacct:/x\n0::/",
            {
                "memory/x/memory.limit_in_bytes": "90000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            90_000,
            1,
        ),
        ("4:memory:/host/path", {"memory/memory.limit_in_bytes": "80000"}, 80_000, 16),
        ("0::/gone", {}, None, 16),
        ("", {}, None, 16),
    ],
)
def test_a_container_is_its_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str], memory: int | None, count: int
) -> None:
    whole = physical_memory()
    grouped(monkeypatch, tmp_path, own, files)
    assert physical_memory() == (memory if memory is not None else whole) or (
        memory is None and physical_memory() >= whole
    )
    assert cores() == count


def test_without_control_groups_the_machine_is_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sizes, "_OWN_GROUPS", tmp_path / "absent")
    assert physical_memory() > 2**27
    assert cores() >= 1

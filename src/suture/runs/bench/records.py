"""What was measured, in a folder: a JSON file for each measurement, written whole, so that a benchmark can go on.

The folder also says what it is of: networks, data, processor and torch. Others are refused, since times of two
machines, or of two matrices, do not go together.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suture.common.errors import StoreError
from suture.runs.bench.peaks import Peaks
from suture.runs.store.files import text, write, writing_to

_SUBJECT, _SHARED, _PEAKS, _RECORDS = "bench.json", "shared.json", "peaks.json", "measurements"


@dataclass(frozen=True)
class Record:
    """One measurement: its accuracy, or the error that it ended in, and what it took.

    ``cpu`` and ``wall`` are in seconds, ``peak`` in bytes, ``peak_since_start`` where that may be of earlier work;
    ``flops`` is ``None`` where it cannot be said.
    """

    sender_cut: str
    receiver_cut: str
    control: str
    method: str
    fit: str
    repeat: int
    accuracy: float | None
    steps: int
    cpu: float
    wall: float
    peak: int
    peak_since_start: bool = False
    flops: int | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def seam(self) -> tuple[str, str]:
        """Sender's cut and receiver's cut."""
        return self.sender_cut, self.receiver_cut


@dataclass(frozen=True)
class Shared:
    """What the library computes once for a whole matrix, whatever the fit: activations, outputs and digests."""

    cpu: float
    wall: float
    flops: int
    cells: int  #: of the matrix that it was computed for


@dataclass(frozen=True)
class Subject:
    """What a benchmark is of; ``made`` says when and how it was begun, and does not tell two apart."""

    sender: str
    receiver: str
    data: str
    fingerprints: tuple[str, ...]
    images: tuple[int, int, int]  #: to fit, to validate, to score
    processor: str
    torch: str
    version: int
    made: tuple[str, str] = ("", "")  #: the date, and the command

    def differs(self, other: "Subject") -> str:
        """Say in which setting another is not the same; empty where it is."""
        names = ("processor", "torch", "version", "fingerprints")
        return next((name for name in names if getattr(self, name) != getattr(other, name)), "")


class Folder:
    """The folder of a benchmark."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()

    def open(self, subject: Subject) -> Subject:
        """Make the folder, or check that it is of the same subject; gives the one it was begun with.

        Raises ``StoreError`` where it is of another, or is damaged, ``OutputError`` where it cannot be written.
        """
        label = self.path / _SUBJECT
        if label.exists():
            known = Subject(**{key: _plain(value) for key, value in _read(label).items()})
            self._check(known, subject)
            return known
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise StoreError(f"{self.path} is no benchmark's folder, and not empty; give another as --out")
        with writing_to(self.path):
            (self.path / _RECORDS).mkdir(parents=True, exist_ok=True)
            write(label, text(asdict(subject)))
        return subject

    def _check(self, known: Subject, subject: Subject) -> None:
        what = known.differs(subject)
        if not what:
            return
        said = {
            "fingerprints": f"other networks or data: {known.sender} → {known.receiver} on {known.data}",
            "version": "an earlier version of this library",
        }.get(what, f"another {what}: {getattr(known, what)}")
        raise StoreError(f"{self.path} has the benchmark of {said}; give another folder as --out, or remove it")

    def read(self, name: str) -> Record | None:
        """Give the measurement of a name, ``None`` where it is not there. Raises ``StoreError`` where it is damaged."""
        content = self._found(f"{_RECORDS}/{name}.json")
        return None if content is None else Record(**{key: _plain(value) for key, value in content.items()})

    def keep(self, name: str, record: Record) -> None:
        """Write a measurement."""
        self._write(f"{_RECORDS}/{name}.json", asdict(record))

    @property
    def shared(self) -> Shared | None:
        """What the shared work took, if it was measured."""
        content = self._found(_SHARED)
        return None if content is None else Shared(**content)

    @shared.setter
    def shared(self, shared: Shared) -> None:
        self._write(_SHARED, asdict(shared))

    @property
    def peaks(self) -> Peaks | None:
        """The machine's peaks, if they were measured."""
        content = self._found(_PEAKS)
        return None if content is None else Peaks(**content)

    @peaks.setter
    def peaks(self, peaks: Peaks) -> None:
        self._write(_PEAKS, asdict(peaks))

    def _found(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        return _read(path) if path.exists() else None

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        with writing_to(self.path):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            write(self.path / name, text(content))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(content, dict)
    except (OSError, ValueError, AssertionError) as error:
        raise StoreError(f"{path} is damaged ({error}); remove it, and give the same command again") from error
    return content


def _plain(value: Any) -> Any:
    """Lists as the tuples that they were written from."""
    return tuple(value) if isinstance(value, list) else value

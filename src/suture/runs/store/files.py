"""Read and write the files of a store, whole, and say what a refusing disk needs."""

import json
import os
from errno import EACCES, ENOSPC
from pathlib import Path
from typing import Any

from suture.common.atomic import whole
from suture.common.errors import OutputError, StoreError


class writing_to:
    """Turn an ``OSError`` of writing to a folder into an ``OutputError`` with the remedy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate an ``OSError``."""
        if isinstance(error, OSError):
            full = error.errno == ENOSPC
            remedy = "free some space on the disk" if full else "make it writable, or name another folder"
            reason = error.strerror or str(error)
            if isinstance(error, FileExistsError | NotADirectoryError):
                file = _find_obstacle(error, self.path)
                reason = "there is a file in its place" if file == self.path else f"{file} is a file, not a folder"
                remedy = "move that away, or name another folder"
            raise OutputError(f"cannot write to {self.path}: {reason}; {remedy}") from error


def _find_obstacle(error: OSError, folder: Path) -> Path:
    """Return the file that is in the place of a folder; the folder itself if the error does not tell."""
    if not isinstance(error.filename, str):
        return folder
    refused = Path(error.filename)
    return next((place for place in (refused, *refused.parents) if place.is_file()), folder)


def folder_to_write(folder: str | Path) -> Path:
    """Make a folder. Raises ``OutputError`` if it cannot be made, or nothing can be written into it."""
    path = Path(folder).expanduser()
    with writing_to(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES), str(path))
    return path


def read(path: Path) -> Any:
    """Read a JSON file. Raises ``StoreError`` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _make_error(path, str(error)) from error


def read_record(path: Path, *names: str) -> dict[str, Any]:
    """Read a JSON file that holds these names. Raises ``StoreError`` if it is damaged, or is another file."""
    found = read(path)
    if not isinstance(found, dict):
        raise _make_error(path, f"it holds a {type(found).__name__}, and no names")
    if lacking := [name for name in names if name not in found]:
        raise _make_error(path, f"it lacks {', '.join(map(repr, lacking))}")
    return found


def _make_error(path: Path, reason: str) -> StoreError:
    return StoreError(f"{path} is damaged ({reason}); 'suture verify' on the run's folder says what to do")


def write(path: Path, content: str) -> None:
    """Write a text file whole."""
    with whole(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def write_page(path: str | Path, content: str) -> Path:
    """Write a text file whole, and make its folder. Raises ``OutputError`` if that fails."""
    path = Path(path).expanduser()
    with writing_to(folder_to_write(path.parent)):
        write(path, content)
    return path


def text(content: object) -> str:
    """Return plain values as JSON that people can read."""
    written = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    return written.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character, as in odd file names


def flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def rename(source: Path, target: Path) -> None:
    """Rename a folder; ``FileExistsError`` if the target is there."""
    try:
        os.rename(source, target)
    except OSError:
        if target.exists():
            raise FileExistsError(target) from None
        raise


def is_alive(process: str) -> bool:
    """Whether a process of this machine, by its number, is alive; if in doubt, it is."""
    if os.name != "posix":  # asking might end it there
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True

"""Reading and writing the files of a store: a file is written whole or not at all, and errors name a remedy."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, ENOSPC
from pathlib import Path
from typing import Any

from suture.common.atomic import whole
from suture.common.errors import OutputError, StoreError
from suture.common.sealed import from_json, to_json


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of writing to a folder into an ``OutputError`` with the remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "make it writable, or name another folder"
        if error.errno == ENOSPC:
            remedy = "free some space on the disk"
        elif isinstance(error, FileExistsError | NotADirectoryError):
            refused = Path(error.filename) if isinstance(error.filename, str) else path
            file = next((place for place in (refused, *refused.parents) if place.is_file()), path)
            reason = "there is a file in its place" if file == path else f"{file} is a file, not a folder"
            remedy = "move that away, or name another folder"
        raise OutputError(f"cannot write to {path}: {reason}; {remedy}") from error


def folder_to_write(folder: str | Path) -> Path:
    """Make a folder. Raises ``OutputError`` if it cannot be made, or nothing can be written into it."""
    path = Path(folder).expanduser()
    with writing_to(path):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, os.strerror(EACCES), str(path))
    return path


def read(path: Path, *names: str) -> dict[str, Any]:
    """Read a JSON file that holds these names. Raises ``StoreError`` if it is damaged, or is another file."""
    try:
        return from_json(path.read_bytes(), *names)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged ({error}); 'suture verify' on the run's folder lists the remedies"
        ) from error


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
    """Return plain values as JSON that people can read; an object is sealed."""
    if isinstance(content, dict):
        return to_json(content, indent=1)
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)


def flush(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

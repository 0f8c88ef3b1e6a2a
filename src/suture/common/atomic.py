"""Files that are written whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which then takes the place of ``path``: a reader sees the old or the new."""
    with draft(path) as temporary:
        yield temporary
        publish(temporary, path)


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yield a hidden temporary path beside ``path``; a file left there is removed in the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def publish(temporary: Path, path: Path) -> None:
    """Move a file from a temporary path to ``path``, once it is on the disk."""
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    os.replace(temporary, path)

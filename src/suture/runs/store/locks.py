"""Who is at work on what, so that several processes share the trials of one store, and none is measured twice at once.

A lock is the operating system's, on a file: it ends with the process that holds it, however that ends. On a shared
folder it holds between machines if the file system passes locks on; if not, a trial may be measured twice, and the
first result stays.
"""

from contextlib import suppress
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout


@final
class Locks:
    """The locks that one process holds in a folder of lock files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}

    def take(self, key: str) -> bool:
        """Take the lock of some work if it is free. Somebody may have finished that work meanwhile: look after this."""
        lock = FileLock(self.folder / f"{key}.lock", fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except (OSError, NotImplementedError):  # no locks here
            return True
        self._held[key] = lock
        return True

    def give_back(self, key: str) -> None:
        """Release a lock."""
        lock = self._held.pop(key, None)
        if lock is not None:
            with suppress(OSError):
                Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for it looks again
            with suppress(OSError):
                lock.release()

    def give_all_back(self) -> None:
        """Release all locks."""
        for key in list(self._held):
            self.give_back(key)

    def others(self) -> int:
        """Count the pieces of work that other processes hold now."""
        held = 0
        for path in self.folder.glob("*.lock"):
            key = path.stem
            if key not in self._held:
                if self.take(key):
                    self.give_back(key)
                else:
                    held += 1
        return held

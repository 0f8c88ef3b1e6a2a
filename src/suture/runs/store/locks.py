"""Who is at work on what: so that several processes share the trials of one store, and none is measured twice at once.

A claim is a lock of the operating system on a file: it ends with the process that holds it, however that ends, and on
a shared folder it holds between machines where the file system passes locks on. Where it does not, a trial may be
measured twice, and the first result stays.
"""

from contextlib import suppress
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout


@final
class Claims:
    """The claims of one process in a folder of lock files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, FileLock] = {}

    def take(self, key: str) -> bool:
        """Claim a piece of work; whether it is ours now. Somebody else may just have finished it: look after this."""
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
        """End a claim."""
        lock = self._held.pop(key, None)
        if lock is not None:
            with suppress(OSError):
                Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for it looks again
            with suppress(OSError):
                lock.release()

    def give_all_back(self) -> None:
        """End all claims."""
        for key in list(self._held):
            self.give_back(key)

    def others(self) -> int:
        """How many pieces of work other processes hold now."""
        held = 0
        for path in self.folder.glob("*.lock"):
            key = path.stem
            if key not in self._held:
                if self.take(key):
                    self.give_back(key)
                else:
                    held += 1
        return held

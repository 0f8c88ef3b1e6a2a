"""The current activity of a process, in words, for people who wait. No number depends on it.

Long operations announce themselves here; a runner that works on a task passes the announcement on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Hear = Callable[[str], None]  #: is told what is being done now

EVERY = 0.5  #: seconds between two steps that are told, at least: nobody reads faster
_heard: ContextVar[Hear | None] = ContextVar("heard", default=None)
_told: ContextVar[float] = ContextVar("told", default=0.0)


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Send the phases and steps announced within to ``hear``."""
    token = _heard.set(hear)
    try:
        yield
    finally:
        _heard.reset(token)


def say_phase(what: str) -> None:
    """Announce the phase that begins now."""
    if (hear := _heard.get()) is not None:
        hear(what)


def say_step(step: int, most: int) -> None:
    """Announce the step that is being taken, of at most ``most``, unless one was announced just now."""
    hear = _heard.get()
    if hear is not None and (now := time.monotonic()) - _told.get() >= EVERY:
        _told.set(now)
        hear(f"step {step:,} of at most {most:,}" if step <= most else f"step {step:,}")

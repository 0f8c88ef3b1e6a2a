"""Where trials run."""

from suture.runners.base import Base, Later, Outcome, Queue, Runner, Task
from suture.runners.driver import Interrupted, run, stitch
from suture.runners.local import Local
from suture.runners.ray import Ray
from suture.runners.unruly import Unruly

__all__ = [
    "Base",
    "Interrupted",
    "Later",
    "Local",
    "Outcome",
    "Queue",
    "Ray",
    "Runner",
    "Task",
    "Unruly",
    "run",
    "stitch",
]

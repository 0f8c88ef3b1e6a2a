"""Where trials run."""

from suture.runners.base import Base, Later, Outcome, Queue, Runner, Task
from suture.runners.driver import Interrupted, run, stitch
from suture.runners.local import Local
from suture.runners.progress import Bar, Lines, Progress, Silent
from suture.runners.ray import Ray
from suture.runners.unruly import Unruly

__all__ = [
    "Bar",
    "Base",
    "Interrupted",
    "Later",
    "Lines",
    "Local",
    "Outcome",
    "Progress",
    "Queue",
    "Ray",
    "Runner",
    "Silent",
    "Task",
    "Unruly",
    "run",
    "stitch",
]

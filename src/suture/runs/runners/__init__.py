"""Where trials run."""

from suture.runs.progress import Bar, Lines, Progress, Silent
from suture.runs.runners.local import Local
from suture.runs.runners.ray import Ray
from suture.runs.runners.run import Interrupted, run, stitch
from suture.runs.runners.tasks import Job, Outcome, Queue, Runner

__all__ = [
    "Bar",
    "Interrupted",
    "Job",
    "Lines",
    "Local",
    "Outcome",
    "Progress",
    "Queue",
    "Ray",
    "Runner",
    "Silent",
    "run",
    "stitch",
]

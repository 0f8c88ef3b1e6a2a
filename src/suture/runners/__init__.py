"""Where trials run."""

from suture.runners.local import run, stitch

__all__ = ["run", "stitch"]

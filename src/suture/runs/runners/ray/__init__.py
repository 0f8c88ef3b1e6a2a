"""Trials on a cluster of Ray."""

from suture.runs.runners.ray.runner import Ray

__all__ = ["Ray"]

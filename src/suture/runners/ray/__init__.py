"""Trials on a cluster of Ray."""

from suture.runners.ray.runner import Ray

__all__ = ["Ray"]

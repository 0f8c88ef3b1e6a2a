"""Warnings that point at the user's line."""

import sys
import warnings

from suture.common.errors import SutureWarning

_INSIDE = ("suture", "suture_papers", "torch")  #: packages between a user's line and a warning


def warn(said: str, kind: type[Warning] = SutureWarning) -> None:
    """Warn, naming the line of the user's that led here, however deep in the package the reason was seen."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(said, kind, stacklevel=level)

"""A page of a browser that was opened, and what went on in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Opened:
    """A page, and what went on in it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def quiet(self) -> None:
        """Nothing was fetched but the file itself and what it holds, and nothing was complained of."""
        assert [url for url in self.requests if not url.startswith(("file://", "data:"))] == []
        assert len([url for url in self.requests if url.startswith("file://")]) == 1
        assert self.complaints == []


Open = Callable[..., Opened]

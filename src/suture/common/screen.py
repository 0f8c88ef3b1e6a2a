"""The terminal: a console of rich on which texts of strangers are seen (``visible``)."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from suture.common.visible import visible


class Screen(Console):
    """A console on which all that is written is seen."""

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a text to be drawn whose width is that of its visible characters."""
        return super().render_str(visible(text), **settings)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yield the drawn segments, with unseen characters written out and rich's own cursor movements."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)

"""Where the parts of a heat map lie on the page, in inches from its upper left, so that nothing overlaps."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from suture.measurement.tables.matrix import Block, Matrix
from suture.report.figures.curve import WIDEST, WIDTH
from suture.report.style import shortened

GAP = 0.04  #: inches between a panel and its strips
STRIP = 0.14  #: inches: the width of a strip
DIGIT = 0.64  #: the width of a digit, in its size
LETTER = 0.57  #: the width of a letter of a name, on average
SMALLEST = 4.3  #: points: the smallest letters
TITLE = 0.2  #: inches above a panel, for its name
NETWORK = 6.0  #: points: the names of networks
_BAR = 0.62  #: inches for the colour bar, its numbers and its label
_ALONE = 0.28  #: inches right of a panel, for the name of its strip
_LONGEST = 24  #: letters of a name, after which its middle is left out
_CELL = 0.34  #: inches: the largest cell
_TALLEST = 3.4  #: inches: the tallest panel
_MOST = 3  #: panels beside each other
_NARROWEST = 3.6  #: inches: the narrowest page
_PITCH = 1.3  #: inches from a panel to the next, at least


@dataclass(frozen=True)
class Margin:
    """The names along one side of a panel."""

    cuts: tuple[tuple[float, str], ...]  #: place of the middle along the side, and name
    size: float  #: points: of the names of cuts
    cuts_room: float  #: inches that the names of cuts take, across
    networks: tuple[tuple[float, str], ...]  #: if there are several: place and name
    across: bool  #: whether the names of networks are written across the side, not along it
    networks_room: float
    title: str
    alone: str  #: the name of the strip of networks alone

    @property
    def room(self) -> float:
        """Return the inches that all names take, across."""
        return self.cuts_room + self.networks_room


@dataclass(frozen=True)
class Layout:
    """The page: all panels of one size, in rows; names left of the first of a row and below the last of a column."""

    cell: tuple[float, float]  #: width and height
    matrix: tuple[float, float]  #: width and height of a panel
    panels: int
    strips: int  #: below the first panel
    senders: Margin
    receivers: Margin
    left: float  #: of the first panel

    @property
    def per_row(self) -> int:
        """Panels beside each other."""
        return min(self.panels, _MOST)

    @property
    def beside(self) -> float:
        """From the right of a panel to whatever comes next; of a narrow panel, far enough for its name."""
        return _beside(self.matrix[0])

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the page."""
        width = self.left + self.per_row * (self.matrix[0] + self.beside) + _BAR
        height = max(self.below(i) for i in range(self.panels)) + self.receivers.room + 0.5 + 0.3 * (width < 5.5)
        return max(width, _NARROWEST), height

    def panel(self, i: int) -> tuple[float, float]:
        """Return the left and the top of a panel."""
        row, column = divmod(i, self.per_row)
        strips = self.strips * (GAP + STRIP) if row else 0.0
        height = TITLE + self.matrix[1] + GAP + STRIP + 0.1
        return self.left + column * (self.matrix[0] + self.beside), TITLE + 0.05 + row * height + strips

    def below(self, i: int) -> float:
        """Where the names below a panel begin."""
        strips = self.strips if i == 0 else 0
        return self.panel(i)[1] + self.matrix[1] + (1 + strips) * (GAP + STRIP) + 0.05


def lay_out(shown: Matrix, panels: int) -> Layout:
    """Find the largest cells with which all panels have room on a page."""
    down, across = shown.senders[-1].stop, shown.receivers[-1].stop
    page = WIDTH + (WIDEST - WIDTH) * min(max(across - 10, 0), 20) / 20
    least = 1.1 if shown.strips else 0.7  # inches for the names of strips
    per_row = min(panels, _MOST)
    left = least
    for _ in range(3):  # the names' room and the cells' size depend on each other
        width = min(_CELL, ((page - left - _BAR) / per_row - (GAP + STRIP + _ALONE)) / across)
        height = max(min(width, _TALLEST / down), min(0.14, 0.7 / down))
        senders = _margin(shown, shown.senders, height, "sender", "top", down * height + 0.46)
        left = max(0.24 + senders.room, least)
    matrix = (across * width, down * height)
    receivers = _margin(shown, shown.receivers, width, "receiver", "left", matrix[0] + _beside(matrix[0]))
    return Layout((width, height), matrix, panels, len(shown.strips), senders, receivers, left)


def _beside(width: float) -> float:
    return max(GAP + STRIP + _ALONE, _PITCH - width)


def _margin(shown: Matrix, blocks: tuple[Block, ...], cell: float, role: str, side: str, room: float) -> Margin:
    """Return the names of one side, whose cells are ``cell`` inches long; ``room`` is that of its title."""
    size = min(6.5, max(SMALLEST, 0.85 * 72 * cell))
    step = ceil(SMALLEST / (72 * cell))
    several = not shown.single
    cuts = [(block.start + i, name) for block in blocks for i, name in enumerate(block.cuts)]
    named = cuts[::step] if step == 1 or not several else []
    networks = [(cell * (block.start + block.stop) / 2, block) for block in blocks] if several else []
    lengths = [72 * cell * len(block.cuts) / (NETWORK * LETTER) for _, block in networks]  # letters
    upright = role == "sender"
    crowded = any(len(block.name) > length for (_, block), length in zip(networks, lengths, strict=True))
    across = crowded if not upright else crowded and not named
    shown_names = tuple(
        (place, shortened(block.name, _LONGEST if across else max(4, int(length))))
        for (place, block), length in zip(networks, lengths, strict=True)
    )
    places = tuple((cell * (place + 0.5), shortened(name, _LONGEST)) for place, name in named)
    network = blocks[0].name if not several else "cut"
    whole = f"{role} {shortened(network, 28)}"
    alone = f"{shortened(network, 14)} alone" if not several else f"{role} alone"
    return Margin(
        cuts=places,
        size=size,
        cuts_room=_widest((name for _, name in places), size) + 0.04,
        networks=shown_names,
        across=across,
        networks_room=(_widest((name for _, name in shown_names), NETWORK) if across else 0.11) if several else 0.0,
        title=_fitting(room, 7.0, f"{whole} (input at the {side})", f"{role} (input at the {side})", role),
        alone=_fitting(cell * blocks[-1].stop if upright else 2.0, 5.5, alone, "alone"),
    )


def _fitting(room: float, size: float, *texts: str) -> str:
    """Return the first of the texts that fits into ``room`` inches; of none, nothing."""
    return next((text for text in texts if _widest([text], size) <= room), "")


def _widest(names: Iterable[str], size: float) -> float:
    """Return the inches that the longest name takes."""
    return max((len(name) for name in names), default=0) * size * LETTER / 72

"""What controls say, in sentences, of scores that are fractions."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.pairs import Pair

MARGIN = 3.0  #: pp: how much worse a network may be and still count as doing as well
_MOST = 6  #: places that a sentence names

AS_GOOD = {
    "untrained sender": ("an untrained sender", "success says nothing about what the sender has learned"),
    "untrained receiver": ("an untrained receiver", "the stitch alone can do the receiver's work"),
    "clustered noise": (
        "clustered noise in the sender's place",
        "telling the classes apart is all it takes, and success says nothing about the sender's features",
    ),
}


def what_controls_say(found: Sequence[Pair], many: str, label: Callable[[Pair, int], str]) -> Iterator[str]:
    """Say what each control that was tried says of scores that are fractions, a sentence each.

    ``found`` are the pairs of networks; their seams are ``many`` in words, ``cuts``, and ``label`` names one.
    """
    for control in ("untrained sender", "untrained receiver"):
        yield from _as_good(control, found, many, label)
    costs = _measured(pair.penalties["itself"].value for pair in found if "itself" in pair.penalties)
    if len(costs):
        receivers = dict.fromkeys(pair.receiver for pair in found)
        who = next(iter(receivers)) if len(receivers) == 1 else "a receiver"
        yield f"Stitched to itself, {who} has a penalty of at most {unsigned_zero(float(costs.max()), 1):+.1f} pp."
    kept = _measured(pair.of("shuffled pairs").value for pair in found)
    if len(kept):
        bound = "at most" if found[0].scale > 0 else "at least"
        yield f"Fitted to shuffled pairs, the stitched network reaches {bound} {abs(kept.max()):.1f} %."
    yield from _as_good("clustered noise", found, many, label)


def unsigned_zero(value: float, digits: int) -> float:
    """The value, and 0 instead of -0 where that is what would be written."""
    return 0.0 if float(f"{value:.{digits}f}") == 0 else value


def _as_good(control: str, found: Sequence[Pair], many: str, label: Callable[[Pair, int], str]) -> Iterator[str]:
    """At which seams a control does as well as the real thing, and at which it is undecided."""
    as_well: list[str] = []
    undecided: list[str] = []
    compared = 0
    for pair in found:
        ahead = pair.ahead_of(control)
        compared += int(np.isfinite(ahead.value).sum())
        for named, where in ((as_well, ahead.within(MARGIN)), (undecided, ahead.across(MARGIN))):
            named += [label(pair, i) for i in np.flatnonzero(where).tolist()]
    if not compared:
        return
    who, meaning = AS_GOOD[control]
    within = f"within {MARGIN:g} pp"
    if as_well:
        also = f" It is undecided at {len(undecided)} ({_first(undecided)})." if undecided else ""
        yield (
            f"At {len(as_well)} of {compared} {many} {who} does as well, {within}: there, {meaning} "
            f"({_first(as_well)}).{also}"
        )
    elif undecided:
        at = f"{len(undecided)} of {compared} {many} ({_first(undecided)})"
        yield f"Whether {who} does as well, {within}, is undecided at {at}."
    else:
        yield f"At no {many.removesuffix('s')} does {who} do as well, {within}."


def _measured(parts: Iterable[Numbers]) -> Numbers:
    values: Numbers = np.concatenate([np.array([]), *parts])
    return np.asarray(values[np.isfinite(values)])


def _first(places: Sequence[str]) -> str:
    return ", ".join(places[:_MOST]) + (f" and {len(places) - _MOST} more" if len(places) > _MOST else "")

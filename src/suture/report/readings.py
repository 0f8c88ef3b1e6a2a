"""What controls say, in sentences, of scores that are fractions."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from suture.depth import EXACT, Numbers
from suture.report.curves import PLAIN

MARGIN = 0.03  #: how much worse a control may be and still count as doing as well
_MOST = 6  #: places that a sentence names

AS_GOOD = {
    "untrained sender": ("an untrained sender", "success says nothing about what the sender has learned"),
    "untrained receiver": ("an untrained receiver", "the stitch alone can do the receiver's work"),
    "clustered noise": (
        "clustered noise in the sender's place",
        "telling the classes apart is all it takes, and success says nothing about the sender's features",
    ),
}


def what_controls_say(
    kinds: Mapping[str, Numbers], costs: Numbers, places: Sequence[str], many: str, receiver: str, rises: bool = True
) -> Iterator[str]:
    """Say what each control that was tried says, a sentence each.

    ``kinds`` are the stitched networks' scores by control, one for each of ``places`` (``many`` in words, ``cuts``);
    ``costs`` the penalties, in pp, of ``receiver`` stitched to itself; ``rises`` says whether more of the score is
    better.
    """
    for control in ("untrained sender", "untrained receiver"):
        yield from _as_good(control, kinds, places, many, rises)
    known = costs[np.isfinite(costs)]
    if len(known):
        yield f"Stitched to itself, {receiver} has a penalty of at most {unsigned_zero(float(known.max()), 1):+.1f} pp."
    shuffled = kinds.get("shuffled pairs", np.array([]))
    if np.isfinite(shuffled).any():
        bound, best = ("at most", np.nanmax) if rises else ("at least", np.nanmin)
        yield f"Fitted to shuffled pairs, the stitched network reaches {bound} {100 * best(shuffled):.1f} %."
    yield from _as_good("clustered noise", kinds, places, many, rises)


def unsigned_zero(value: float, digits: int) -> float:
    """The value, and 0 instead of -0 where that is what would be written."""
    return 0.0 if abs(value) < 0.5 * 10**-digits else value


def _as_good(
    control: str, kinds: Mapping[str, Numbers], places: Sequence[str], many: str, rises: bool
) -> Iterator[str]:
    """At which places a control does as well as the real thing."""
    if control not in kinds or PLAIN not in kinds:
        return
    behind = (kinds[PLAIN] - kinds[control]) * (1 if rises else -1)
    compared = int(np.isfinite(behind).sum())
    near = [places[i] for i in np.flatnonzero(behind <= MARGIN + EXACT).tolist()]
    who, meaning = AS_GOOD[control]
    if near:
        named = ", ".join(near[:_MOST]) + (f" and {len(near) - _MOST} more" if len(near) > _MOST else "")
        yield (
            f"At {len(near)} of {compared} {many} {who} does as well, within {100 * MARGIN:.0f} pp: there, {meaning} "
            f"({named})."
        )
    elif compared:
        yield f"At no {many.removesuffix('s')} does {who} do as well, within {100 * MARGIN:.0f} pp."

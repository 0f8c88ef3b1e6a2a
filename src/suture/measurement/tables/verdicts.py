"""One verdict a seam, and one sentence a curve: what figures, pages and terminals say first.

A seam is judged as ``explain`` does. *Works*: the whole interval of the penalty is within the margin, and the stitched
network is certainly better, by more than the margin, than every control beside it. *Explained*: the penalty is within
the margin, and a control does as well, so that success says no more than that control. *Fails*: the whole interval is
beyond the margin. *Undecided*: neither can be told, or of a seam that works no control was tried, or one failed. *Not
converged*: a longer fit may yet change it. *Not judged*: a network is not to be trusted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from suture.common.formatting import say_count
from suture.measurement.tables.curve import NOISE, Curve
from suture.measurement.tables.table import MARGIN

Kind = Literal["works", "explained", "fails", "undecided", "not converged", "not judged"]
#: Controls that success may be owed to, the most telling first; "itself" is none, for it has the receiver's layers.
EXPLAINING = (
    "shuffled pairs",
    "untrained both",
    "untrained sender",
    "untrained receiver",
    "linear probe",
    NOISE,
)
_FEW = 2  #: cuts, and controls, that the sentence names


@dataclass(frozen=True)
class Verdict:
    """What is said of one seam; ``control`` is the one that explains its success, else empty.

    ``by`` is the fit by which it fails, if that never says whether it has converged.
    """

    kind: Kind
    control: str = ""
    by: str = ""

    @property
    def said(self) -> str:
        """What it means, in words."""
        if self.control:
            return f"works, but {_who(self.control)} does as well"
        if self.by:
            return f"{self.kind} by {self.by}"
        return {"works": "works, and no control as well"}.get(self.kind, self.kind)


def judge(pair: Curve, margin: float = MARGIN) -> tuple[Verdict, ...]:
    """Judge every seam of a pair; ``margin`` is in the unit of the penalty."""
    penalty, open_, doubtful = pair.penalties(), pair.is_open(), pair.is_doubtful()
    as_well, beyond = {}, []
    for control in EXPLAINING:
        ahead = pair.ahead_of(control)
        if np.isfinite(ahead.value).any():
            as_well[control] = ahead.within(margin) & ~open_
            absent = ~np.isfinite(ahead.value) & ~pair.is_failed(control)
            beyond.append((ahead.beyond(margin) & ~pair.is_open(control)) | absent)
    tried = np.any([np.isfinite(pair.scores(control).value) for control in EXPLAINING], axis=0)
    apart = np.all(beyond, axis=0) & tried if beyond else tried

    def verdict(i: int) -> Verdict:
        if doubtful[i]:
            return Verdict("not judged")
        if penalty.within(margin)[i]:
            explained = next((control for control, where in as_well.items() if where[i]), "")
            if explained:
                return Verdict("explained", explained)
            return Verdict("works" if apart[i] else "not converged" if open_[i] else "undecided")
        if open_[i]:
            return Verdict("not converged")
        return Verdict("fails", by=pair.never_known) if penalty.beyond(margin)[i] else Verdict("undecided")

    return tuple(verdict(i) for i in range(len(pair.seams)))


def say_verdict(pair: Curve, margin: float = MARGIN) -> str:
    """Say in one sentence where the sender stands in for the receiver, and where controls do as well."""
    verdicts, names, penalty = judge(pair, margin), pair.labels, pair.penalties().value
    good = [i for i, one in enumerate(verdicts) if one.kind in ("works", "explained")]
    rest = Counter(one.kind for one in verdicts if one.kind not in ("works", "explained"))
    mixed = set(rest) != {"fails"}  # if all others fail, their number is what is left
    unsettled = "".join(f"; {count} {'fail' if kind == 'fails' and count > 1 else kind}"
                        for kind, count in rest.items() if mixed)  # fmt: skip
    by = f", by {pair.never_known}" if pair.never_known else ""
    if not good:
        least = int(np.nanargmin(penalty))
        said = "does not stand in" if set(rest) == {"fails"} and not by else "is not shown to stand in"
        end = f"least penalty {_size(pair, least)} ({names[least]}){by}"
        return f"{pair.sender} {said} for {pair.receiver} at any {pair.one}{unsettled}: {end}"
    bad = [name for i, name in enumerate(names) if i not in good]
    if not bad:
        where = f"at every {pair.one}" if len(names) > 1 else f"at {names[0]}"
    elif set(rest) == {"fails"} and len(bad) <= _FEW < len(good):
        where = f"everywhere but at {' and '.join(bad)}"
    else:
        where = f"at {len(good)} of {say_count(len(names), pair.one)}"
    controls = [_who(control) for control, _ in Counter(one.control for one in verdicts if one.control).most_common()]
    explained = sum(one.kind == "explained" for one in verdicts)
    of_them = "" if explained == len(good) else f"at {explained} of them "
    who = " or ".join(controls) if len(controls) <= _FEW else "a control"
    but = f", but {of_them}{who} does as well" if explained else ""
    worst = int(np.nanargmax(penalty))
    end = f"worst penalty {_size(pair, worst)}" + (f" ({names[worst]})" if len(names) > 1 else "") + by
    return f"{pair.sender} stands in for {pair.receiver} {where}{but}{unsettled}: {end}"


def say_verdicts(pairs: Sequence[Curve], margin: float = MARGIN) -> str:
    """Say in one sentence at how many seams of several pairs one network stands in for the other."""
    kinds = Counter(one.kind for pair in pairs for one in judge(pair, margin))
    good, of = kinds["works"] + kinds["explained"], say_count(sum(kinds.values()), "seam")
    rest = [f"; {kinds[kind]} {kind}" for kind in ("undecided", "not converged", "not judged") if kinds[kind]]
    if fits := dict.fromkeys(fit for pair in pairs if (fit := pair.never_known)):
        rest.append(f"; by {' and '.join(fits)}")
    if not good:
        said = "does not stand in" if not rest else "is not shown to stand in"
        return f"One network {said} for another at any of {of}{''.join(rest)}"
    of_them = "" if kinds["explained"] == good else f"at {kinds['explained']} of them "
    but = f", but {of_them}a control does as well" if kinds["explained"] else ""
    return f"One network stands in for another at {good} of {of}{but}{''.join(rest)}"


def _who(control: str) -> str:
    said = {
        "linear probe": "a linear probe",
        "shuffled pairs": "a stitch of shuffled pairs",
        "untrained both": "a pair of untrained networks",
    }
    return said.get(control, control if control == NOISE else f"an {control}")


def _size(pair: Curve, i: int) -> str:
    value = pair.penalties().value[i]
    return f"{value:.1f} pp" if pair.percent else f"{value:.3f} {pair.penalty_unit}".strip()

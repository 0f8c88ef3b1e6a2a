"""The sentences that a reading makes: the only place where words are put to what was measured.

``headlines`` are a sentence of what works and one of what that needs; ``say_answers`` answers each question in a line;
``say_trouble`` names what is wrong, and nothing if nothing is. Counts are those that stand when all seams are counted
together (``Reading.settled``), so a count may be below the number of marks.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from suture.common.formatting import say_count
from suture.measurement.tables.by_depth import Mask, by_depth
from suture.measurement.tables.curve import PLAIN, Curve, Estimates
from suture.measurement.tables.matrix import Matrix
from suture.measurement.tables.questions import (
    BOTH,
    CLOSE,
    CONTROL,
    NEITHER,
    NO,
    RECEIVERS,
    SENDERS,
    UNASKED,
    YES,
    Question,
    may_gain,
)
from suture.measurement.tables.read import Reading

FEW = 3  #: seams that a sentence names
MOST = 6  #: seams that a list names
_LETTERS = 10  #: of the name of a network, from which on a strip says sender or receiver
_LATE = "Late → early (sender cut at least as deep as receiver cut)"
_SHORT: dict[Question, str] = {
    "works": "works",
    "sender": "needs trained {sender}",
    "receiver": "needs trained {receiver}",
    "pairs": "needs right pairs",
    "mistakes": "whose mistakes",
}


def name_question(reading: Reading, question: Question) -> str:
    """Return a question in two or three words, as the row of a strip: ``needs trained A``."""
    names = dict(zip(("sender", "receiver"), _names(reading), strict=True))
    short = {role: name if len(name) <= _LETTERS else role for role, name in names.items()}
    return _SHORT[question].format(**short)


def say_mark(reading: Reading, question: Question, mark: str) -> str:
    """Return an answer in words: ``yes``, ``too close to call``, ``A's``."""
    sender, receiver = _names(reading)
    return {SENDERS: f"{sender}'s", RECEIVERS: f"{receiver}'s"}.get(mark, mark or "not asked")


def asked(reading: Reading) -> list[Question]:
    """Return the questions that were asked at any seam, in their order."""
    return [question for question in _SHORT if any(reading.marks(question))] if reading.is_judged else []


# --- the headline -----------------------------------------------------------------------------------------------------


def headlines(reading: Reading) -> list[str]:
    """Say what works, and what that needs, a sentence each; nothing if nothing is judged."""
    if not reading.is_judged or reading.are("works", UNASKED).all():
        return []
    return [_say_works(reading), *_say_needs(reading)]


def headline(reading: Reading) -> str:
    """Return the headlines as one text."""
    return " ".join(headlines(reading))


def _say_works(reading: Reading) -> str:
    sender, receiver = _names(reading) if len(reading.pairs) == 1 else ("One network", "another")
    yes, no = reading.count("works", YES), reading.count("works", NO)
    there = ~reading.are("works", UNASKED)
    rest, n = there & ~yes & ~no, len(there)
    penalty, unit = reading.behind("works"), unit_of(reading)
    others = "".join(_others(reading, no, rest, ~there))
    if yes.any():
        high = float(penalty.high[yes].max())
        below = f"at most {_size(reading, high)} {unit} below {receiver}" if high > 0 else f"never below {receiver}"
        return f"{sender} works in {receiver} {at(reading, yes, n)}, {below}{others}."
    least = float(np.nanmin(penalty.low[there]))
    where = f"at any of {say_count(n, reading.one)}" if n > 1 else f"at {named(reading, there)}"
    if no.sum() == n:
        return f"{sender} does not work in {receiver} {where}: it is at least {_size(reading, least)} {unit} below."
    return f"{sender} is not shown to work in {receiver} {where}{others}."


def _others(reading: Reading, no: Mask, rest: Mask, unasked: Mask) -> Iterator[str]:
    if no.any():
        yield f"; at {_some(reading, no)} it does not"
    if rest.any():
        yield f"; {_some(reading, rest)} {'is' if rest.sum() == 1 else 'are'} too close to call"
    if unasked.any():
        yield f"; of {_some(reading, unasked)} nothing is known"


def _say_needs(reading: Reading) -> Iterator[str]:
    """Say what success needs, at the seams that work; each of them is counted once."""
    works = reading.count("works", YES)
    if not works.any():
        return
    sender, receiver = _names(reading)
    tried = {role: (works & ~reading.are(role, UNASKED)).any() for role in ("sender", "receiver")}
    if not any(tried.values()):
        yield "Whether that needs what either has learned was not tried: it takes the controls with untrained networks."
        return
    names = {"sender": sender, "receiver": receiver}
    no = {role: reading.count(role, NO) & works for role in names}  # type: ignore[arg-type]
    yes = {role: reading.count(role, YES) & works for role in names}  # type: ignore[arg-type]
    if all(tried.values()):
        both, what = yes["sender"] & yes["receiver"], "what both have learned"
    else:
        (role,) = (role for role, done in tried.items() if done)
        both, what = yes[role], f"what {names[role]} has learned"
    neither = no["sender"] & no["receiver"]
    parts = [
        (both, f"this is shown to need {what}"),
        (no["receiver"] & ~neither, f"an untrained {receiver} does as well"),
        (no["sender"] & ~neither, f"an untrained {sender} does as well"),
        (neither, f"an untrained {sender} does as well, and so does an untrained {receiver}"),
    ]
    rest = works & ~both & ~no["sender"] & ~no["receiver"]
    if (rest == works).all():
        yield f"Whether that needs {what} is too close to call."
        return
    parts.append((rest, "it is too close to call"))
    said = [f"{_place(reading, where, works)} {words}" for where, words in parts if where.any()]
    text = "; ".join(said)
    yield f"{text[0].upper()}{text[1:]}."


def _place(reading: Reading, where: Mask, of: Mask) -> str:
    """Say where among other seams something holds: ``there``, ``at the last 2``, ``at 3``."""
    n = int(where.sum())
    if n == of.sum():
        return "there" if n == 1 else "everywhere" if n == len(of) else "at both" if n == 2 else f"at all {n}"
    places = np.flatnonzero(of)
    held = where[places]
    first, last = held[:n].all(), held[-n:].all()
    if len(reading.pairs) > 1 or n == 0 or first == last:
        return f"at {n}"
    return f"at the {'first' if first else 'last'}{f' {n}' if n > 1 else ''}"


# --- question by question ---------------------------------------------------------------------------------------------


def say_title(reading: Reading) -> str:
    """Say what was measured: ``A → B on digits, 13 cuts, 597 test samples (B alone: 98.3 %)``."""
    first = reading.pairs[0]
    plain = reading.table[(reading.table["score"] == reading.score) & (reading.table["control"] == PLAIN)].iloc[0]
    if len(reading.pairs) == 1:
        own = f" ({first.receiver} alone: {score_words(reading, first.parent('receiver'))})"
        who = str(first)
    else:
        who, own = f"{len(reading.pairs)} pairs of networks", ""
    many = say_count(len(reading.seams), reading.one)
    return f"{who} on {plain['score_data']}, {many}, {int(plain['n']):,} test samples{own}"


def say_answers(reading: Reading) -> list[tuple[str, str]]:
    """Return each question that can be asked, and its answer in words and numbers."""
    sender, receiver = _names(reading)
    questions: dict[Question, tuple[str, str]] = {
        "works": (f"Does {sender} → {receiver} work?", _answer_works(reading)),
        "sender": (f"Does it need a trained {sender}?", _answer_need(reading, "sender")),
        "receiver": (f"Does it need a trained {receiver}?", _answer_need(reading, "receiver")),
        "pairs": ("Does it need right pairs?", _answer_pairs(reading)),
        "mistakes": ("Whose mistakes?", _answer_mistakes(reading)),
    }
    return [said for said in questions.values() if said[1]]


def _answer_works(reading: Reading) -> str:
    _, receiver = _names(reading)
    yes, no, there = reading.count("works", YES), reading.count("works", NO), ~reading.are("works", UNASKED)
    n, said = len(there), []
    if yes.any():
        said.append(f"Yes {at(reading, yes, n)}: within {_margin(reading)} of {receiver}.")
    if no.any():
        least = _size(reading, float(reading.behind("works").low[no].min()))
        said.append(f"No {at(reading, no, n)}: at least {least} {unit_of(reading)} below.")
    return " ".join([*said, *_say_rest(reading, there & ~yes & ~no, n)])


def _say_rest(reading: Reading, rest: Mask, n: int) -> Iterator[str]:
    """Say at how many of ``n`` seams it is too close to call, if at any."""
    if rest.any():
        yield f"Too close to call {at(reading, rest, n)}."


def _answer_need(reading: Reading, role: Question) -> str:
    sender, receiver = _names(reading)
    name = sender if role == "sender" else receiver
    works = reading.count("works", YES)
    there = works & ~reading.are(role, UNASKED)
    if not works.any():
        return ""
    if not there.any():
        return f"Not tried: the control '{CONTROL[role]}' asks it."
    yes, no = reading.count(role, YES) & works, reading.count(role, NO) & works
    n, said = int(there.sum()), []
    ahead, unit = reading.behind(role), unit_of(reading)
    if yes.any():
        least = float(ahead.value[yes].min())
        by = f"{_size(reading, least)} {unit} worse{', or more' if yes.sum() > 1 else ''}"
        said.append(f"Yes {at(reading, yes, n)} (with an untrained {name} {by}).")
    if no.any():
        why = f"an untrained {name} does as well" if role == "sender" else f"the stitch does {name}'s work"
        said.append(f"{'Not' if yes.any() else 'No,'} {at(reading, no, n)}: there {why}.")
    return " ".join([*said, *_say_rest(reading, there & ~yes & ~no, n)])


def _answer_pairs(reading: Reading) -> str:
    yes, no, there = reading.count("pairs", YES), reading.count("pairs", NO), ~reading.are("pairs", UNASKED)
    n, said = int(there.sum()), []
    if yes.any():
        said.append(f"Yes {at(reading, yes, n)}.")
    if no.any():
        said.append(f"{'Not' if yes.any() else 'No,'} {at(reading, no, n)}, where {_shuffled(reading, no)}.")
    return " ".join([*said, *_say_rest(reading, there & ~yes & ~no, n)])


def _shuffled(reading: Reading, where: Mask) -> str:
    kept = reading.gather(lambda pair: pair.line(CONTROL["pairs"])["stitched"].to_numpy(float))[where]
    floor = reading.gather(lambda pair: pair.guessing(reading.chance))[where][0]
    reach = kept.max() if reading.pairs[0].rises else kept.min()
    guess = abs(floor) / (100 if reading.pairs[0].percent else 1)
    return f"shuffled pairs reach {score_words(reading, float(reach))} (guessing: {score_words(reading, float(guess))})"


def _answer_mistakes(reading: Reading) -> str:
    there = ~reading.are("mistakes", UNASKED)
    n, said = int(there.sum()), []
    for mark in (SENDERS, RECEIVERS, BOTH, NEITHER):
        if (where := reading.are("mistakes", mark)).any():
            said.append(f"{say_mark(reading, 'mistakes', mark)} {at(reading, where, n)}")
    if (rest := reading.are("mistakes", CLOSE)).any():
        said.append(f"too close to call {at(reading, rest, n)}")
    text = ", ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


# --- what is wrong ----------------------------------------------------------------------------------------------------


def say_trouble(reading: Reading) -> list[str]:
    """Say what is wrong with the measurements: a sentence each, none if all is well."""
    said = []
    if (kept := reading.are("pairs", NO)).any():
        said.append(
            f"Warning: {_some(reading, kept, named_up_to=FEW)} did not need the right pairs: "
            f"{_shuffled(reading, kept)}, so nothing there is owed to what the sender says of each sample."
        )
    said += say_open(reading.gather(lambda pair: pair.is_open()).astype(bool), f"{reading.one}s")
    roles: tuple[Question, ...] = ("sender", "receiver")
    for role in roles:
        gain = reading.gather(lambda pair, control=CONTROL[role]: may_gain(pair, control))  # type: ignore[misc]
        near = reading.are(role, CLOSE) & (gain > 0) & (reading.behind(role).low > (reading.margin or 0))
        if near.any():
            said.append(
                f"Fits of the control '{CONTROL[role]}' had not converged at "
                f"{_some(reading, near, named_up_to=FEW)}: they may gain more than they are behind."
            )
    fits = dict.fromkeys(fit for pair in reading.pairs if (fit := pair.never_known))
    behind = (reading.gather(lambda pair: pair.penalties().low) > (reading.margin or 0)) & reading.are("works", CLOSE)
    if fits and behind.any():
        said.append(
            f"{' and '.join(fits)} never says whether it has converged, so {_some(reading, behind)} that it leaves "
            "behind may still work."
        )
    return said


def say_open(where: Mask, many: str) -> list[str]:
    """Say at how many places, ``cuts`` or ``seams``, a fit had not converged; nothing if all did, or none can say."""
    count = int(where.sum())
    if not count:
        return []
    which = f"The {many.removesuffix('s')}" if len(where) == 1 else f"{count} of {len(where)} {many}"
    bounds = "its penalty is an upper bound" if count == 1 else "their penalties are upper bounds"
    return [f"{which} had not converged; {bounds}."]


# --- below tables -----------------------------------------------------------------------------------------------------


def say_curve(reading: Reading) -> list[str]:
    """Say what a curve shows: the headline and what is wrong; of a score that is not judged its worst penalty."""
    if first := headlines(reading):
        return [*first, *say_trouble(reading)]
    shown = reading.curve
    penalty = shown.penalties()
    if np.isnan(penalty.value).all():
        return []
    worst = int(np.nanargmax(penalty.value))
    unit = f" in {shown.penalty_unit}" if shown.penalty_unit else ""
    asked_for = [f"Nothing is judged without a margin{unit}: give one."] if reading.margin is None else []
    return [
        f"Worst penalty: {spread_words(shown, penalty, worst, signed=True)} at {shown.labels[worst]}.",
        *say_open(shown.is_open(), shown.many),
        *asked_for,
    ]


def say_matrix(reading: Reading) -> list[str]:
    """Say what a matrix shows: the headline, its triangles and its extremes, and what is wrong."""
    shown = reading.matrix
    if not np.isfinite(shown.plain).any():
        return []
    first = headlines(reading)
    trouble = say_trouble(reading) if first else say_open(shown.open[PLAIN][np.isfinite(shown.plain)], "seams")
    return [*first, *_say_depth(shown), *trouble]


def _say_depth(shown: Matrix) -> Iterator[str]:
    """Compare the halves of a matrix, and name its extremes."""
    plain = shown.table[shown.table["control"] == PLAIN]
    means = by_depth(plain, shown.score, pooled=True).iloc[0]

    def value(x: float) -> str:
        return f"{100 * x:.1f} %" if shown.percent else f"{x:.3f} {shown.unit.replace('raw', '')}".strip()

    for here, there, name, other in (
        ("late_to_early", "early_to_late", _LATE, "early → late"),
        ("near", "far", "Within one cut of the diagonal", "away from it"),
    ):
        gap = means[here] - means[there]
        if np.isfinite(gap):
            by = f"{100 * abs(gap):.1f} points" if shown.percent else f"{abs(gap):.3f}"
            yield (
                f"{name}: {value(means[here])} on average over {means[f'{here}_cells']:.0f} seams, {by} "
                f"{'higher' if gap > 0 else 'lower'} than {other}: {value(means[there])} over "
                f"{means[f'{there}_cells']:.0f}."
            )
    rows, columns = (
        [cut if shown.single else f"{block.name} {cut}" for block in side for cut in block.cuts]
        for side in (shown.senders, shown.receivers)
    )
    labels, values = [f"{row} → {column}" for row in rows for column in columns], shown.plain.ravel()
    least, most = int(np.nanargmin(values)), int(np.nanargmax(values))
    yield f"Lowest: {value(values[least])} at {labels[least]}; highest: {value(values[most])} at {labels[most]}."


# --- words and numbers ------------------------------------------------------------------------------------------------


def _names(reading: Reading) -> tuple[str, str]:
    """Return what sender and receiver are called; of several pairs, in general."""
    pairs = reading.pairs
    if len(pairs) == 1:
        return pairs[0].sender, pairs[0].receiver
    return "sender", "receiver"


def at(reading: Reading, where: Mask, n: int) -> str:
    """Say at which of ``n`` seams: ``at all 8 cuts``, ``up to layer2.0``, ``at stem and head``, ``at 5 of 8 cuts``."""
    places, count = np.flatnonzero(where), int(where.sum())
    if count == n == len(where) or (count == n and n > FEW):
        every = f"both {reading.one}s" if n == 2 else f"all {say_count(n, reading.one)}"
        return f"at {every}" if n > 1 else f"at {reading.seams[places[0]]}"
    if len(reading.pairs) == 1 and reading.kind == "curve" and count > 2:
        if places[-1] == count - 1:
            return f"up to {reading.seams[places[-1]]}"
        if places[0] == len(where) - count:
            return f"from {reading.seams[places[0]]} on"
    if count <= FEW and len(reading.pairs) == 1:
        return f"at {named(reading, where)}"
    return f"at {count} of {say_count(n, reading.one)}"


def named(reading: Reading, where: Mask) -> str:
    """Name seams: ``a``, ``a and b``, ``a, b and 3 more``."""
    return _join([reading.seams[i] for i in np.flatnonzero(where)])


def _join(names: list[str]) -> str:
    more = len(names) - MOST
    *first, last = [*names[:MOST], f"{more} more"] if more > 0 else names
    return f"{', '.join(first)} and {last}" if first else last


def _some(reading: Reading, where: Mask, named_up_to: int = 1) -> str:
    """Return a number of seams, or their names if they are few: ``stage1.conv``, ``3 of them``."""
    count = int(where.sum())
    return named(reading, where) if count <= named_up_to and len(reading.pairs) == 1 else say_count(count, reading.one)


def unit_of(reading: Reading) -> str:
    """Return the unit of differences in words: points, nats; empty if there is none."""
    return "points" if reading.pairs[0].percent else reading.pairs[0].penalty_unit


def _margin(reading: Reading) -> str:
    return f"{reading.margin:g} {unit_of(reading)}".strip()


def _size(reading: Reading, value: float) -> str:
    return f"{value:z.{1 if reading.pairs[0].percent else 3}f}"


def score_words(reading: Reading, value: float) -> str:
    """Write a score with its unit: ``98.3 %``, ``2.310 nats``."""
    first = reading.pairs[0]
    return f"{100 * value:.1f} %" if first.percent else f"{value:.3f} {first.penalty_unit}".strip()


def spread_words(pair: Curve, of: Estimates, i: int, signed: bool = False) -> str:
    """``+1.2 pp [-0.3, 2.8]``."""
    digits = 1 if pair.percent else 3
    value, low, high = (float(part[i]) for part in (of.value, of.low, of.high))
    number = f"{value:{'+' if signed else ''}z.{digits}f} {pair.penalty_unit}".strip()
    return f"{number} [{low:z.{digits}f}, {high:z.{digits}f}]" if np.isfinite([low, high]).all() else number


def share_of(pair: Curve, where: Mask) -> str:
    """``3 of 8 cuts``."""
    return f"{int(where.sum())} of {say_count(len(pair.seams), pair.one)}"


def listed(labels: Iterable[str], said: Iterable[str], most: int = MOST) -> str:
    """List places with what is said of each; of very many the first."""
    held = [f"{label} {one}".strip() for label, one in zip(labels, said, strict=True)]
    return ", ".join(held[:most]) + (f" and {len(held) - most} more" if len(held) > most else "")

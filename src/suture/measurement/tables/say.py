"""The sentences that a reading makes: the only place where measurements are put into words.

``headlines`` are a sentence on where it works and one on the conditions; ``say_answers`` answers each question in a
line; ``say_trouble`` names problems, if there are any. Counts are those that stand when all seams are
counted together (``Reading.settled``), so a count may be below the number of marks.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from suture.common.formatting import say_count
from suture.measurement.scores.alone import least_gain
from suture.measurement.tables.by_depth import by_depth
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
from suture.measurement.tables.table import Mask, never_known, write_score

FEW = 3  #: seams that a sentence names
MOST = 6  #: seams that a list names
_LETTERS = 10  #: of the name of a network, from which on a strip says sender or receiver
_LATE = "Late → early (sender cut at least as deep as receiver cut)"
_ROLES: tuple[Question, Question] = ("sender", "receiver")
_SHORT: dict[Question, str] = {
    "works": "works",
    "sender": "needs trained {sender}",
    "receiver": "needs trained {receiver}",
    "pairs": "needs the right pairs",
    "mistakes": "whose mistakes",
}


def name_question(reading: Reading, question: Question) -> str:
    """Return a question in two or three words, as the row of a strip: ``needs trained A``."""
    names = dict(zip(_ROLES, _bare_names(reading), strict=True))
    short = {role: name if len(name) <= _LETTERS else role for role, name in names.items()}
    return _SHORT[question].format(**short)


def say_mark(reading: Reading, question: Question, mark: str) -> str:
    """Return an answer in words: ``yes``, ``undecided``, ``A's``."""
    sender, receiver = _names(reading)
    return {SENDERS: f"{sender}'s", RECEIVERS: f"{receiver}'s"}.get(mark, mark or "not asked")


def asked(reading: Reading) -> list[Question]:
    """Return the questions that were asked at any seam, in their order."""
    return [question for question in _SHORT if any(reading.marks(question))] if reading.is_judged else []


# --- the headline -----------------------------------------------------------------------------------------------------


def headlines(reading: Reading) -> list[str]:
    """Say where the stitched network works and which networks that needs, a sentence each; nothing if not judged."""
    if not reading.is_judged or reading.are("works", UNASKED).all():
        return []
    return [_say_works(reading), *_say_needs(reading)]


def headline(reading: Reading) -> str:
    """Return the headlines as one text."""
    return " ".join(headlines(reading))


def _say_works(reading: Reading) -> str:
    sender, receiver = _names(reading) if len(reading.pairs) == 1 else ("One network", "another")
    own = receiver if len(reading.pairs) == 1 else "the receiver"
    yes, no = reading.count("works", YES), reading.count("works", NO)
    there = ~reading.are("works", UNASKED)
    rest, n = there & ~yes & ~no, len(there)
    penalty, unit = reading.behind("works"), unit_of(reading)
    others = f"; at {_some(reading, no)} it does not" if no.any() else ""
    others += f"; at {_some(reading, rest)} this is undecided" if rest.any() else ""
    others += f"; at {_some(reading, ~there)} there is no answer" if not there.all() else ""
    if yes.any():
        high = float(penalty.high[yes].max())
        worse = f"at most {_size(reading, high)} {unit} worse than {own}" if high > 0 else f"not worse than {own} there"
        return f"{sender} works in {receiver} {at(reading, yes, n)}, {worse}{others}."
    least = float(np.nanmin(penalty.low[there]))
    where = f"at any of {say_count(n, reading.one)}" if n > 1 else f"at {named(reading, there)}"
    if no.sum() == n:
        return f"{sender} does not work in {receiver} {where}: it is at least {_size(reading, least)} {unit} worse."
    if rest.sum() == n:
        return f"{sender} is not shown to work in {receiver} {where}: this is undecided."
    return f"{sender} is not shown to work in {receiver} {where}{others}."


def _say_needs(reading: Reading) -> Iterator[str]:
    """Say which trained networks success needs, at the seams that work; each of them is counted once.

    Where one network's training is needed and the other's is undecided, it is undecided, unless nothing else is known.
    """
    works = reading.count("works", YES)
    if not works.any():
        return
    names = dict(zip(_ROLES, _names(reading), strict=True))
    tried = [role for role in _ROLES if (works & ~reading.are(role, UNASKED)).any()]
    if not tried:
        yield "Whether it needs trained networks was not measured: that takes the controls with untrained networks."
        return
    yes, no = ({role: reading.count(role, mark) & works for role in tried} for mark in (YES, NO))
    needed = "both" if len(tried) == 2 else names[tried[0]]
    parts = [(np.logical_and.reduce([yes[role] for role in tried]), f"it needs the training of {needed}")]
    if len(tried) == 2:
        parts.append((no["sender"] & no["receiver"], "it does as well with either network untrained"))
    for role in tried:
        others = [no[other] for other in tried if other != role]
        alone = no[role] & ~np.logical_or.reduce([np.zeros_like(works), *others])
        parts.append((alone, f"it does as well with {names[role]} untrained"))
    if len(tried) == 2 and not any(where.any() for where, _ in parts):
        for one, other in (_ROLES, _ROLES[::-1]):
            parts.append((yes[one], f"it needs the training of {names[one]} (of {names[other]}: undecided)"))
    known = np.logical_or.reduce([where for where, _ in parts])
    if not known.any():
        of = f"{'either network' if len(tried) == 2 else names[tried[0]]}"
        yield f"Whether it needs the training of {of} is undecided."
        return
    rest = works & ~known
    unsure = [role for role in tried if (rest & ~yes[role] & ~no[role]).any()]
    whose = f"whether it needs {names[unsure[0]]}'s training" if len(unsure) == 1 else "whose training it needs"
    parts.append((rest, f"it is undecided {whose}"))
    text = "; ".join(f"{_place(reading, where, works)} {words}" for where, words in parts if where.any())
    yield f"{text[0].upper()}{text[1:]}."


def _place(reading: Reading, where: Mask, of: Mask) -> str:
    """Say where among other seams something holds: ``there``, ``at the last 2 cuts``, ``at 3 of these cuts``."""
    n, one, part = int(where.sum()), reading.one, "" if of.all() else " of these"
    if n == of.sum():
        return "there" if n == 1 else f"at both {one}s" if n == 2 else f"at all {say_count(n, one)}"
    held = where[np.flatnonzero(of)]
    first, last = held[:n].all(), held[-n:].all()
    if len(reading.pairs) == 1 and n == 1 and first == last:
        return f"at {one} {named(reading, where)}"
    if len(reading.pairs) > 1 or first == last:
        return f"at {n}{part} {one}{'s' * (n > 1 or bool(part))}"
    end = "first" if first else "last"
    return f"at the {end}{f' {n}' if n > 1 else ''}{part} {one}{'s' * (n > 1 or bool(part))}"


# --- question by question ---------------------------------------------------------------------------------------------


def say_title(reading: Reading) -> str:
    """Describe the measurement: ``A → B on digits, 13 cuts, 597 test samples (B alone: 98.3 %)``."""
    first = reading.pairs[0]
    plain = reading.table[(reading.table["score"] == reading.score) & (reading.table["control"] == PLAIN)].iloc[0]
    if len(reading.pairs) == 1:
        own = f" ({first.receiver} alone: {write_score(first.parent('receiver'), first.unit)})"
        who = str(first)
    else:
        who, own = f"{len(reading.pairs)} pairs of networks", ""
    many = say_count(len(reading.seams), reading.one)
    return f"{who} on {plain['score_data']}, {many}, {int(plain['n']):,} test samples{own}"


def say_answers(reading: Reading) -> list[tuple[str, str]]:
    """Return each question that can be asked, and its answer in words and numbers."""
    (sender, receiver), bare = _names(reading), _bare_names(reading)
    questions: dict[Question, tuple[str, str]] = {
        "works": (f"Does {sender} → {receiver} work?", _answer_works(reading)),
        "sender": (f"Does it need a trained {bare[0]}?", _answer_need(reading, "sender")),
        "receiver": (f"Does it need a trained {bare[1]}?", _answer_need(reading, "receiver")),
        "pairs": ("Does it need the right pairs?", _answer_pairs(reading)),
        "mistakes": ("Whose mistakes does it make?", _answer_mistakes(reading)),
    }
    return [said for said in questions.values() if said[1]]


def _answer_works(reading: Reading) -> str:
    _, receiver = _names(reading)
    yes, no, there = reading.count("works", YES), reading.count("works", NO), ~reading.are("works", UNASKED)
    n, said = len(there), []
    if yes.any():
        unit = unit_of(reading)
        unit = unit.removesuffix("s") if reading.margin == 1 and unit == "points" else unit
        said.append(f"Yes {at(reading, yes, n)}: within {f'{reading.margin:g} {unit}'.strip()} of {receiver}.")
    if no.any():
        least = _size(reading, float(reading.behind("works").low[no].min()))
        said.append(f"No {at(reading, no, n)}: at least {least} {unit_of(reading)} worse.")
    return " ".join([*said, *_say_rest(reading, there & ~yes & ~no, n)])


def _say_rest(reading: Reading, rest: Mask, n: int) -> Iterator[str]:
    """Say at how many of ``n`` seams it is undecided, if at any."""
    if rest.any():
        yield f"Undecided {at(reading, rest, n)}."


def _answer_need(reading: Reading, role: Question) -> str:
    name = _bare_names(reading)[role == "receiver"]
    works = reading.count("works", YES)
    there = works & ~reading.are(role, UNASKED)
    if reading.are(role, UNASKED).all():
        return "" if not works.any() else f"Not measured: add the control '{CONTROL[role]}'."
    if not works.any():
        return f"Left open, since it is not shown to work at any {reading.one}."
    if not there.any():
        return f"Not measured: add the control '{CONTROL[role]}'."
    yes, no = reading.count(role, YES) & works, reading.count(role, NO) & works
    n, said = int(there.sum()), []
    ahead, unit = reading.behind(role), unit_of(reading)
    if yes.any():
        least = float(ahead.value[yes].min())
        by = f"{_size(reading, least)} {unit} worse{', or more' if yes.sum() > 1 else ''}"
        said.append(f"Yes {_at_these(reading, yes, n)} (with an untrained {name} it is {by}).")
    if no.any():
        why = (
            f"an untrained {name} does as well" if role == "sender" else f"the stitch does {_names(reading)[1]}'s work"
        )
        said.append(f"{'Not' if yes.any() else 'No,'} {_at_these(reading, no, n)}: there {why}.")
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
    first = reading.pairs[0]
    reach = kept.max() if first.rises else kept.min()
    guess = abs(floor) / (100 if first.percent else 1)
    return f"shuffled pairs reach {write_score(reach, first.unit)} (guessing: {write_score(guess, first.unit)})"


def _answer_mistakes(reading: Reading) -> str:
    there = ~reading.are("mistakes", UNASKED)
    n, said = int(there.sum()), []
    for mark in (SENDERS, RECEIVERS, BOTH, NEITHER):
        if (where := reading.are("mistakes", mark)).any():
            said.append(f"{say_mark(reading, 'mistakes', mark)} {at(reading, where, n)}")
    if (rest := reading.are("mistakes", CLOSE)).any():
        said.append(f"undecided {at(reading, rest, n)}")
    text = ", ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


# --- what is wrong ----------------------------------------------------------------------------------------------------


def say_trouble(reading: Reading) -> list[str]:
    """Describe problems with the measurements: a sentence each, none if all is well."""
    said = []
    if (kept := reading.are("pairs", NO)).any():
        said.append(
            f"Warning: at {_some(reading, kept, named_up_to=FEW)} {_shuffled(reading, kept)}. Part of the success "
            "there may not depend on which sample the sender is given."
        )
    said += say_gain(reading)
    said += say_open(reading.gather(lambda pair: pair.is_open()).astype(bool), f"{reading.one}s")
    roles: tuple[Question, ...] = ("sender", "receiver")
    for role in roles:
        gain = reading.gather(lambda pair, control=CONTROL[role]: may_gain(pair, control))  # type: ignore[misc]
        near = reading.are(role, CLOSE) & (gain > 0) & (reading.behind(role).low > (reading.margin or 0))
        if near.any():
            said.append(
                f"At {_some(reading, near, named_up_to=FEW)} the control '{CONTROL[role]}' was still gaining when its "
                "fit ended; fitted for longer it might catch up."
            )
    fits = dict.fromkeys(fit for pair in reading.pairs for fit in never_known(pair.plain))
    behind = (reading.gather(lambda pair: pair.penalties().low) > (reading.margin or 0)) & reading.are("works", CLOSE)
    if fits and behind.any():
        said.append(
            f"{' and '.join(fits)} cannot report whether it has converged, so a better fit might still work at "
            f"{_some(reading, behind)}."
        )
    return said


def say_gain(reading: Reading) -> Iterator[str]:
    """Say where a stitched network is much better than its receiver, beside the gain of the receiver to itself.

    A larger sender may truly give it that (bansal2021). A receiver that is not fed as it was trained gains, too.
    """
    if not reading.is_arranged:
        return
    least = reading.gather(
        lambda pair: np.array([least_gain(pair.percent, pair.rises, abs(one)) for one in pair.guessing(reading.chance)])
    )
    penalty, own = (Estimates.join([pair.penalties(kind) for pair in reading.pairs]) for kind in (PLAIN, "itself"))
    where = (penalty.high < -least) & ~reading.gather(lambda pair: pair.is_doubtful()).astype(bool)
    if not where.any():
        return
    _, receiver = _names(reading)
    unit, by = unit_of(reading), _size(reading, float(-penalty.value[where].max()))
    more = ", or more," if where.sum() > 1 else ""
    begun = (
        f"Warning: at {_some(reading, where, named_up_to=FEW)} the stitched network is {by} {unit}{more} better than"
    )
    told = where & np.isfinite(own.value)
    if not told.any():
        yield (
            f"{begun} {receiver} alone. Unless the sender knows more, {receiver} may not be fed as it was trained "
            "(preprocessing, weights, order of the classes): the control 'itself' would tell."
        )
        return
    gain = float(-own.value[told].min())
    to_itself = f"gains {_size(reading, gain)} {unit}" if gain > 0 else "gains nothing"
    some = "" if told.sum() == where.sum() else f" at {_some(reading, told, named_up_to=FEW)}"
    yield f"{begun} {receiver} alone. Stitched to itself, {receiver} {to_itself}{some}{' at most' * (gain > 0)}."


def say_open(where: Mask, many: str) -> list[str]:
    """Say at how many places, ``cuts`` or ``seams``, a fit had not converged; nothing if all did, or none can say."""
    count = int(where.sum())
    if not count:
        return []
    bounds = "its penalty is an upper bound" if count == 1 else "their penalties are upper bounds"
    if len(where) == 1:
        return [f"The fit had not converged; {bounds}."]
    of = "of" if many == "trials" else "at"
    return [f"The fit{'s' * (count > 1)} {of} {count} of {len(where)} {many} had not converged; {bounds}."]


# --- below tables -----------------------------------------------------------------------------------------------------


def say_curve(reading: Reading) -> list[str]:
    """Describe a curve: its headline and problems; for a score that is not judged, its worst penalty."""
    if first := headlines(reading):
        return [*first, *say_trouble(reading)]
    shown = reading.curve
    penalty = shown.penalties()
    if np.isnan(penalty.value).all():
        return []
    worst = int(np.nanargmax(penalty.value))
    unit = shown.penalty_unit or shown.score
    asked_for = [f"Nothing is judged without a margin in {unit}: give one."] if reading.margin is None else []
    return [
        f"Worst penalty: {spread_words(shown, penalty, worst)} at {shown.labels[worst]}.",
        *say_gain(reading),
        *say_open(shown.is_open(), shown.many),
        *asked_for,
    ]


def say_matrix(reading: Reading) -> list[str]:
    """Describe a matrix: its headline, its triangles and extremes, and its problems."""
    shown = reading.matrix
    if not np.isfinite(shown.plain).any():
        return []
    first = headlines(reading)
    unread = [*say_gain(reading), *say_open(shown.open[PLAIN][np.isfinite(shown.plain)], "seams")]
    trouble = say_trouble(reading) if first else unread
    return [*first, *_say_depth(shown), *trouble]


def _say_depth(shown: Matrix) -> Iterator[str]:
    """Compare the halves of a matrix, and name its extremes."""
    plain = shown.table[shown.table["control"] == PLAIN]
    means = by_depth(plain, shown.score, pooled=True).iloc[0]
    for here, there, name, other in (
        ("late_to_early", "early_to_late", _LATE, "early → late"),
        ("near", "far", "Within one cut of the diagonal", "away from it"),
    ):
        gap = means[here] - means[there]
        if np.isfinite(gap):
            by = f"{100 * abs(gap):.1f} points" if shown.percent else write_score(abs(gap), shown.unit)
            ours, theirs = (write_score(means[half], shown.unit) for half in (here, there))
            yield (
                f"{name}: {ours} on average over {means[f'{here}_cells']:.0f} seams, {by} "
                f"{'higher' if gap > 0 else 'lower'} than {other}: {theirs} over {means[f'{there}_cells']:.0f}."
            )
    rows, columns = (
        [cut if shown.single else f"{block.name} {cut}" for block in side for cut in block.cuts]
        for side in (shown.senders, shown.receivers)
    )
    labels, values = [f"{row} → {column}" for row in rows for column in columns], shown.plain.ravel()
    least, most = int(np.nanargmin(values)), int(np.nanargmax(values))
    lowest, highest = (write_score(values[i], shown.unit) for i in (least, most))
    yield f"Lowest: {lowest} at {labels[least]}; highest: {highest} at {labels[most]}."


# --- words and numbers ------------------------------------------------------------------------------------------------


def _bare_names(reading: Reading) -> tuple[str, str]:
    """Return the names as they stand after an article."""
    sender, receiver = _names(reading)
    return (sender, receiver) if len(reading.pairs) == 1 else ("sender", "receiver")


def _names(reading: Reading) -> tuple[str, str]:
    """Return the names of sender and receiver; for several pairs, general ones."""
    pairs = reading.pairs
    if len(pairs) == 1:
        return pairs[0].sender, pairs[0].receiver
    return "the sender", "the receiver"


def at(reading: Reading, where: Mask, n: int) -> str:
    """Say at which of ``n`` seams: ``at all 8 cuts``, ``up to layer2.0``, ``at stem and head``, ``at 5 of 8 cuts``."""
    places, count = np.flatnonzero(where), int(where.sum())
    if count == n == len(where) or (count == n and n > FEW):
        every = f"both {reading.one}s" if n == 2 else f"all {say_count(n, reading.one)}"
        return f"at {every}" if n > 1 else f"at {reading.seams[places[0]]}"
    if len(reading.pairs) == 1 and reading.kind == "curve" and count > 2:
        if places[-1] == count - 1:
            return f"up to and including {reading.seams[places[-1]]}"
        if places[0] == len(where) - count:
            return f"from {reading.seams[places[0]]} on"
    if count <= FEW and len(reading.pairs) == 1:
        return f"at {named(reading, where)}"
    return f"at {count} of {say_count(n, reading.one)}"


def _at_these(reading: Reading, where: Mask, n: int) -> str:
    """Say at which of the ``n`` seams that work, if these are not all: ``at all 6 cuts that work``."""
    text = at(reading, where, n)
    return f"{text} that work" if n < len(where) and text.endswith(f" {reading.one}s") else text


def named(reading: Reading, where: Mask) -> str:
    """Name seams: ``a``, ``a and b``, ``a, b and 3 more``."""
    names = [reading.seams[i] for i in np.flatnonzero(where)]
    more = len(names) - MOST
    *first, last = [*names[:MOST], f"{more} more"] if more > 0 else names
    return f"{', '.join(first)} and {last}" if first else last


def _some(reading: Reading, where: Mask, named_up_to: int = 1) -> str:
    """Return a number of seams, or their names if they are few: ``stage1.conv``, ``3 of them``."""
    count = int(where.sum())
    return named(reading, where) if count <= named_up_to and len(reading.pairs) == 1 else say_count(count, reading.one)


def unit_of(reading: Reading) -> str:
    """Return the unit of differences in words: points, nats; ``in R²`` if the score has none."""
    first = reading.pairs[0]
    return "points" if first.percent else first.penalty_unit or f"in {first.score}"


def _size(reading: Reading, value: float) -> str:
    return f"{value:z.{1 if reading.pairs[0].percent else 3}f}"


def spread_words(pair: Curve, of: Estimates, i: int) -> str:
    """Write a difference as ``+1.2 pp [-0.3, 2.8]``."""
    digits = 1 if pair.percent else 3
    value, low, high = (float(part[i]) for part in (of.value, of.low, of.high))
    number = f"{value:+z.{digits}f} {pair.penalty_unit}".strip()
    return f"{number} [{low:z.{digits}f}, {high:z.{digits}f}]" if np.isfinite([low, high]).all() else number


def share_of(pair: Curve, where: Mask) -> str:
    """Write a share as ``3 of 8 cuts``."""
    return f"{int(where.sum())} of {say_count(len(pair.seams), pair.one)}"


def listed(labels: Iterable[str], said: Iterable[str]) -> str:
    """List places with a remark on each; of very many, only the first."""
    held = [f"{label} {one}".strip() for label, one in zip(labels, said, strict=True)]
    return ", ".join(held[:MOST]) + (f" and {len(held) - MOST} more" if len(held) > MOST else "")

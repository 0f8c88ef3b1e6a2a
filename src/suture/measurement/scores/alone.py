"""The performance of each network alone, checked before its stitched performance is interpreted.

A penalty compares a stitched network with its receiver. If that is not fed as it was trained, without its normalisation
or with bytes for fractions, a stitch mends part of the harm and anything seems compatible with it. Nothing in a penalty
shows that. So a warning goes before all else if a network is near guessing, if it is far below what its card or
``expected_accuracy`` says, or if a stitch to itself, which can only cost something, makes it much better. A network
that is expected to be at 0 is meant to be weak, and of it nothing is said.

Guessing is a constant answer, whatever the task (``Task.guess``), and a network is judged by the first default score of
its task. The distance from guessing to a perfect score is what all sizes are shares of, but for penalties in pp.

A trait may be scored on images that carry a trigger, on which its carrier is wrong by design. There the networks are
judged on the same images without it (``Trial.judged_on``), and the gain of a stitch to itself is not judged, since the
stitched network was scored on the others.
"""

from collections.abc import Iterator, Mapping
from typing import Any

NEAR = 0.05  #: of the way from guessing to a perfect score: no better than guessing
FAR = 0.05  #: below what is expected, beside twice the standard error
GAIN = 5.0  #: % of the way from guessing to a perfect score, or pp, that a stitch may gain
_ACCURACY = "accuracy"
_FED = {"next token": "its weights or its tokeniser may not be those that it was trained with"}
_CAUSE = (
    "its preprocessing (0..255 for 0..1, mean and std), its weights or the order of its classes may not be those that "
    "it was trained with"
)


def least_gain(percent: bool, rises: bool, guess: float | None) -> float:
    """Return the gain of a stitch, in the unit of the penalty, from which on it is remarkable; nan if nobody knows.

    ``percent`` says whether the score is a fraction, ``rises`` whether more of it is better, in which case 1 is perfect
    and else 0, and ``guess`` is the score of guessing.
    """
    if percent:
        return GAIN
    return float("nan") if guess is None else GAIN / 100 * abs(float(rises) - guess)


def find_doubts(labels: Mapping[str, Any], alone: Mapping[str, Any], scores: Mapping[str, Any]) -> list[str]:
    """Say why the networks of a trial are not to be trusted; nothing of controls, whose networks may be weak.

    ``labels`` are those of the trial. ``alone`` has the score of either network by itself and, as ``chance``, that of
    guessing, with the name of the ``score``, its unit, whether it ``rises`` and the number ``n`` of samples.
    ``scores`` has the penalty of every score.
    """
    if not alone:
        return []
    roles = ("sender", "receiver") if labels["control"] == "" else ()
    names = {labels[role]: (alone.get(role), labels.get(f"{role}_expected")) for role in roles}
    cause = _FED.get(labels.get("task", ""), _CAUSE)
    doubts = [
        f"{name} alone {doubt}: {cause}"
        for name, (value, expected) in names.items()
        if value is not None
        for doubt in _doubt(value, expected, alone)
    ]
    same = all(labels[f"sender{of}"] == labels[f"receiver{of}"] for of in ("", "_cut"))
    itself = labels["control"] == "itself" or (labels["control"] == "" and same)
    comparable = "judged_on" not in labels  # else the penalty is of other samples
    weak = labels.get("receiver_expected") == 0
    penalty = scores.get(alone.get("score", _ACCURACY), {}).get("penalty")
    if itself and comparable and not weak and penalty is not None:
        least = least_gain(penalty.get("unit", "pp") == "pp", alone.get("rises", True), alone["chance"])
        if penalty["value"] < -least and penalty["high"] < 0:
            by = f"{least:g} pp" if penalty.get("unit", "pp") == "pp" else f"{least:.3f}"
            doubts.append(f"stitched to itself, {labels['receiver']} is more than {by} better than alone: {cause}")
    return doubts


def _doubt(value: float, expected: float | None, alone: Mapping[str, Any]) -> Iterator[str]:
    score, guess, rises = alone.get("score", _ACCURACY), alone["chance"], alone.get("rises", True)
    is_accuracy = score == _ACCURACY
    if expected == 0:
        return
    reached = (value - guess) * (1 if rises else -1)
    if (expected is None or not is_accuracy) and reached < NEAR * abs(float(rises) - guess):
        if is_accuracy:
            right = f"is right on {value:.1%} of the {alone.get('of', 'image')}s"
            yield f"{right}, near chance ({guess:.1%}), as untrained networks are"
        else:
            yield f"has {score} {value:.3f}, near that of guessing ({guess:.3f}), as untrained networks have"
    if (
        is_accuracy
        and expected is not None
        and value < expected - FAR - 2 * (expected * (1 - expected) / alone["n"]) ** 0.5
    ):
        yield f"is right on {value:.1%} of the {alone.get('of', 'image')}s, and {expected:.1%} were expected"

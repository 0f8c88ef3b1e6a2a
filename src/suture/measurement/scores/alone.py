"""The performance of each network alone, checked before its stitched performance is interpreted.

A penalty compares a stitched network with its receiver. If that is not fed as it was trained, without its normalisation
or with bytes for fractions, a stitch mends part of the harm and anything seems compatible with it. Nothing in a penalty
shows that. So a warning goes before all else if a network is near chance, if it is far below the accuracy on its card
or ``expected_accuracy``, or if a stitch to itself, which can only cost something, makes it much better. A network that
is expected to be at 0 is meant to be weak, and of it nothing is said.

A trait may be scored on images that carry a trigger, on which its carrier is wrong by design. There the networks are
judged on the same images without it (``Trial.judged_on``), and the gain of a stitch to itself is not judged, since the
stitched network was scored on the others.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 0.05  #: of the way from chance to 1: no better than guessing
FAR = 0.05  #: below what is expected, beside twice the standard error
GAIN = 5.0  #: pp that a stitch may gain between a network and itself
_CAUSE = (
    "its preprocessing (0..255 for 0..1, mean and std), its weights or the order of its classes may not be those that "
    "it was trained with"
)


def look_at(outputs: "Mapping[str, Tensor]", labels: "Tensor", chance: float | None) -> dict[str, Any]:
    """Return the accuracy of networks alone, by role, that of guessing, ``chance``, and the number ``n``."""
    from suture.measurement.scores.scores import Accuracy  # takes torch with it, which tables need not wait for

    found = {role: float(Accuracy().per_sample(out, labels).nanmean()) for role, out in outputs.items()}
    return {**found, "chance": chance, "n": len(labels)}


def find_doubts(labels: Mapping[str, Any], alone: Mapping[str, Any], penalty: Mapping[str, Any] | None) -> list[str]:
    """Return the reasons not to trust a trial's networks; none for controls, whose networks may be weak.

    ``labels`` are those of the trial, ``penalty`` is that of its accuracy.
    """
    roles = ("sender", "receiver") if labels["control"] == "" else ()
    names = {labels[role]: (alone.get(role), labels.get(f"{role}_expected")) for role in roles}
    doubts = [
        doubt
        for name, (accuracy, expected) in names.items()
        if accuracy is not None
        for doubt in _doubt(name, accuracy, expected, alone["chance"], alone["n"])
    ]
    same = all(labels[f"sender{of}"] == labels[f"receiver{of}"] for of in ("", "_cut"))
    itself = labels["control"] == "itself" or (labels["control"] == "" and same)
    comparable = "judged_on" not in labels  # else the penalty is of other samples
    weak = labels.get("receiver_expected") == 0
    if itself and comparable and not weak and penalty is not None and penalty["value"] < -GAIN and penalty["high"] < 0:
        doubts.append(f"stitched to itself, {labels['receiver']} is more than {GAIN:g} pp better than alone: {_CAUSE}")
    return doubts


def _doubt(name: str, accuracy: float, expected: float | None, chance: float, n: int) -> Iterator[str]:
    if expected is None and accuracy < chance + NEAR * (1 - chance):
        yield f"{name} alone is right on {accuracy:.1%} of the images, near chance ({chance:.1%}): {_CAUSE}"
    if expected is not None and accuracy < expected - FAR - 2 * (expected * (1 - expected) / n) ** 0.5:
        yield f"{name} alone is right on {accuracy:.1%} of the images, and {expected:.1%} were expected: {_CAUSE}"

"""The outcome of every scored sample, kept beside the scores, so that any two trials can be compared in pairs.

Two networks that are scored on the same samples share their difficulty, so their difference is more certain than two
separate intervals suggest. That takes the outcome of each sample: of a task with one class a sample the class that was
predicted, of any other the value that the sample gives to the trial's first score, whose mean is that score. Predicted
classes are kept as steps from the label, ``(prediction − label) mod classes``: 0 is right, two networks make the same
mistake where their steps agree, and mostly zeros pack small: 10,000 samples of ten classes into 2 to 17 KB.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from suture.common.seeds import derive_seed
from suture.measurement.scores.intervals import Floats, paired_interval

if TYPE_CHECKING:  # tables read outcomes, and need not wait for torch
    from torch import Tensor

CLASSES = "classes"
_ACCURACY = "accuracy"


@final
@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of the stitched network and its parents for every scored sample, by role, each ``(n,)``.

    ``of`` is ``"classes"`` for steps from the label to the predicted class, else the name of the score whose values
    these are. ``samples`` identifies the samples: outcomes of the same ones can be compared. A sender that is noise, or
    has another head, has none.
    """

    of: str
    samples: str
    by_role: Mapping[str, NDArray[Any]]

    def values(self, role: str = "stitched") -> Floats:
        """Return the values of a role's samples, whose mean is the score: 1 for a right class, 0 for a wrong one."""
        found = self.by_role[role]
        return (found == 0 if self.of == CLASSES else found).astype(float)

    def describes(self, score: str) -> bool:
        """Return whether the values are those of this score."""
        return score == (_ACCURACY if self.of == CLASSES else self.of)

    def pack(self) -> str:
        """Pack the outcomes into one short line of text, for a record or a cell of a table."""
        kind = np.result_type(*self.by_role.values()).newbyteorder("<")
        head = {"of": self.of, "samples": self.samples, "roles": list(self.by_role), "kind": kind.str}
        held = b"".join(part.astype(kind).tobytes() for part in self.by_role.values())
        return base64.b85encode(zlib.compress(json.dumps(head).encode() + b"\n" + held, 9)).decode()


@lru_cache(maxsize=256)
def unpack(text: str) -> Outcomes:
    """Read outcomes that ``Outcomes.pack`` wrote."""
    head, _, held = zlib.decompress(base64.b85decode(text)).partition(b"\n")
    said = json.loads(head)
    parts = np.split(np.frombuffer(held, np.dtype(said["kind"])), len(said["roles"]))
    return Outcomes(said["of"], said["samples"], dict(zip(said["roles"], parts, strict=True)))


def steps_from(labels: "Tensor", outputs: "Tensor") -> NDArray[Any]:
    """Return the step from each label ``(n,)`` to the class of its largest output ``(n, classes)``."""
    steps: NDArray[Any] = (outputs.argmax(1).cpu() - labels.cpu()).remainder(outputs.shape[1]).numpy()
    return steps.astype(np.min_scalar_type(outputs.shape[1] - 1))


def compare(one: Outcomes, other: Outcomes) -> tuple[float, float, float] | None:
    """Return by how much the values of one stitched network exceed another's, with a paired 95 % interval.

    Nothing if the two are not of the same samples and score.
    """
    if (one.of, one.samples) != (other.of, other.samples) or one.values().shape != other.values().shape:
        return None
    a, b = one.values(), other.values()
    low, high, _ = paired_interval(a, b, seed=derive_seed("paired", one.samples, one.of))
    return float((a - b).mean()), low, high

"""What the claims of smith2024 have in common: which data, which rows, and what is said of every study."""

from collections.abc import Sequence
from dataclasses import replace

from suture.studies.base.cells import COMPLEXITIES, Where
from suture.studies.base.claims import MARGIN, Claim, Roles
from suture.studies.base.contrasts import StandardisedDifference
from suture.studies.base.quantities import AtCuts, Extreme, Mean
from suture.studies.base.study import Panel
from suture.studies.smith2024.plans import COLOURS, CUTS

_ON = "on the same test images"
CORRELATED = Roles("Correlated training images", "Correlated test images", f"the receiver, {_ON}")
PLAIN = Roles("Colour-only training images", "Colour-only test images", "the grey receiver, on grey MNIST test images")
NOISE = Roles("noise of Correlated's training labels", "noise of its test labels", "Digit, on Correlated test images")
OWN = Roles(
    "noise of the training labels of the receiver's own data",
    "noise of its test labels",
    "the receiver, on its own test images",
)
KINDS = tuple(COLOURS)
SEEDS = "Sender and receiver are of different seeds."
POOLED = "The cut before the linear layer is behind the average pooling, where the paper's stitch has its BatchNorms."
SHIFTS = "The 10 % of jitter is read as a shift of each channel by up to 25.5 of 255."
SCALE = "The scale of the noise, which is not given, is 0.1."
SEVERAL = (SEEDS, POOLED, SHIFTS)
RANK = Where(COMPLEXITIES, measure="numerical rank")


def tell_small(which: str, fit: str = "at its full length") -> tuple[str, ...]:
    """Return what differs at small scale, and which seams the published fit is run at, how long."""
    return (
        "Stitches are fitted and scored on 10,000 images each.",
        f"The published fit, {fit}, is run {which}.",
    )


def rows_of(kind: str, **named: str) -> Where:
    """Return the rows of a kind of sender into Digit."""
    return Where(sender=f"resnet18 {kind}", receiver="*resnet18 digit", **named)  # type: ignore[arg-type]


def draw_lines(
    column: str,
    label: str,
    where: Where,
    level: float | None = None,
    baseline: bool = False,
    *,
    kinds: Sequence[str] = KINDS,
    title: str = "",
) -> Panel:
    """Return a line for each kind of sender."""
    groups = tuple((kind, replace(where, sender=f"resnet18 {kind}")) for kind in kinds)
    return Panel("lines", column, label, groups, title=title, level=level, baseline=baseline)


def claim_compatible(kind: str) -> Claim:
    """Claim that senders of a kind are compatible with Digit."""
    return Claim(
        f"stitched accuracy is at least the Digit receiver's at every cut: {kind} senders",
        "section 4.1, figures 1b and C5a",
        Extreme((AtCuts("penalty", rows_of(kind)),)),
        "≤",
        0.0,
        MARGIN,
        paper="higher than the baseline at all layers",
    )


def claim_gap(kind: str, layer: int) -> Claim:
    """Claim that the receiver tells senders of a kind from Digit ones, by the rank before a layer."""
    cut = CUTS[layer - 1]
    first, second = (Mean("value", replace(RANK, sender=f"resnet18 {k}", receiver_cut=cut)) for k in (kind, "digit"))
    return Claim(
        f"before Layer {layer} the rank of {kind} senders is more than one standard deviation from Digit's",
        "section 4.1, figure 1c",
        StandardisedDifference(first, second),
        "≥",
        1.0,
        unit="sd",
        paper="a clear gap",
        roles=Roles("Correlated training images", "Correlated test images", "Digit senders, on the same images"),
    )

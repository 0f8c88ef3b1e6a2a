"""The claims of oxford2025's section 4.4, as data: complexity of stitched networks, small ones and large ones.

What the paper ran are the gradient norm of batches of 4, mean sharpness and gzip size; the gradient norm of the whole
loss and the largest sharpness stand beside them as reports. Its own figures are of other widths, so claims are of
ratios and trends; of mean sharpness, which is negative if noise lowers the loss, of differences.
"""

from suture_papers.base.cells import COMPLEXITIES, Where
from suture_papers.base.claims import Claim, Roles, formerly
from suture_papers.base.quantities import (
    AtCuts,
    Difference,
    Extreme,
    FirstStep,
    Mean,
    Peak,
    Provided,
    Ratio,
    Slope,
    Trend,
)
from suture_papers.oxford2025.claims import NARROW, WIDE
from suture_papers.oxford2025.plans import BATCHES, COMPLEX, DIGITS, PICTURES, SIMPLE

WHOLE = Roles("MNIST-CIFAR, digit and picture of one class", "its first test images, for loss and gradient", "none")
DIGITS_ONLY = Roles("grey MNIST in three channels", "its first test images, for loss and gradient", "none")

MEASURES = (
    (BATCHES, "nats"),
    ("gradient norm", "nats"),
    ("mean sharpness", "nats"),
    ("worst sharpness", "nats"),
    ("gzip size", "bits"),
)

RAN = (BATCHES, "mean sharpness", "gzip size")  #: in the paper
FIXED = ("gzip size",)  #: whose peak is that of the stitches' own sizes, whatever was learned: a report
SIGNED = ("mean sharpness",)  #: which may be negative
_OVER = {False: "over", True: "minus"}


def _rows_of(measure: str, sender: str, receiver: str, cut: str, of_sender: str = "") -> Where:
    return Where(
        table=COMPLEXITIES, measure=measure, sender=sender, receiver=receiver, receiver_cut=cut, sender_cut=of_sender
    )


def claim_dominated() -> tuple[Claim, ...]:
    """Return the claims of figure 5: a peak at interior cuts by each measure, and how it depends on the stitch."""
    made, source = list[Claim](), "section 4.4, figure 5"
    for measure, of in MEASURES:
        signed = measure in SIGNED
        peak = Peak("value", _rows_of(measure, DIGITS, PICTURES, NARROW), signed=signed)
        words = f"the largest {measure} at an interior cut, {_OVER[signed]} that at the ends of the line"
        unit, even = (of, 0.0) if signed else ("ratio", 1.0)
        paper = "the complexity peaks sharply in the middle" if measure in RAN else ""
        if measure in RAN and measure not in FIXED:
            words = f"{words}, is above {even:g}"
            made.append(Claim(words, source, peak, ">", even, unit=unit, paper=paper, roles=WHOLE))
        else:
            made.append(Claim(words, source, peak, unit=unit, paper=paper, roles=WHOLE))
    for measure, of in MEASURES:
        at = [_rows_of(measure, DIGITS, PICTURES, cut, "pool2") for cut in (WIDE, "pool2")]
        words = "at Pool2 with the stitch of high capacity, {} that with the 1×1 convolution"
        made.append(_report_compared(measure, of, words, at, source, "varies strongly"))
    for measure, of in MEASURES:
        ends = [_rows_of(measure, name, name, "") for name in (DIGITS, PICTURES)]
        words = f"of {DIGITS} itself, {{}} that of {PICTURES}"
        paper = "model A presumably far simpler, confirmed by all three" if measure in RAN else ""
        made.append(_report_compared(measure, of, words, ends, source, paper))
    return tuple(made)


def _report_compared(measure: str, of: str, words: str, two: list[Where], source: str, paper: str) -> Claim:
    """Return a report of two means: their ratio, or their difference if the measure may be negative.

    ``of`` is the measure's unit.
    """
    first, second = (Mean("value", where) for where in two)
    differ = measure in SIGNED
    quantity = Difference(first, second) if differ else Ratio(first, second)
    said = f"{measure} {words.format(_OVER[differ])}"
    return Claim(said, source, quantity, unit=of if differ else "ratio", paper=paper, roles=WHOLE)


def claim_simplified() -> tuple[Claim, ...]:
    """Return the claims of figure 6, at the ends of the four stages and at all eight blocks."""
    made, roles = list[Claim](), DIGITS_ONLY
    ran = ((BATCHES, "nats", "6a"), ("mean sharpness", "nats", "6a"), ("gzip size", "bits", "6b"))
    for measure, unit, figure in ran:
        source = f"section 4.4, figure {figure}"
        four, eight = (_rows_of(measure, SIMPLE, COMPLEX, cut) for cut in ("layer?.1", "layer?.?"))
        words = f"{measure} falls as more layers come from the simpler network"
        whose = [Mean("value", _rows_of(measure, name, name, "")) for name in (SIMPLE, COMPLEX)]
        falls = Claim(
            f"{words}: every step between the four cuts is below 0",
            source,
            Provided(Extreme((AtCuts("value", four, steps=True, times=0.0, by="sender_cut"),)), *whose),
            "<",
            0.0,
            unit=unit,
            paper="“as we add more layers of the simpler model, the complexity of the stitched model decreases”",
            roles=roles,
            reading="not measured unless the simple network is the simpler one by the same measure; every step has to "
            "decrease, not the slope alone",
        )
        made += [falls, formerly(falls, Slope("value", four, along="sender_depth"), f"{words}: slope over the cuts")]
        every = Trend("value", eight, along="sender_depth")
        made.append(Claim(f"{words}: Spearman's ρ over all eight blocks", source, every, unit="ρ", roles=roles))
    where = _rows_of(BATCHES, SIMPLE, COMPLEX, "layer?.1")
    words = f"the first step of {BATCHES} is the largest of the three: by how much of the range"
    paper = "the jump from the first to the second layer has the largest change"
    first = FirstStep("value", where)
    made.append(Claim(words, "section 4.4, figure 6a", first, ">", 0.0, unit="share", paper=paper, roles=roles))
    late = [Mean("value", _rows_of(BATCHES, SIMPLE, COMPLEX, cut)) for cut in ("layer4.1", "layer3.1")]
    paper = "the 4th data point does not fit the expected trend"
    words = f"{BATCHES} at the fourth cut, minus that at the third"
    made.append(Claim(words, "section 4.4, figure 6a", Difference(*late), unit="nats", paper=paper, roles=roles))
    papers = {BATCHES: ("1.57", "5.53"), "gzip size": ("3.30e8", "3.44e8")}
    for measure, unit, _ in ran:
        for name, paper in zip((SIMPLE, COMPLEX), papers.get(measure, ("", "")), strict=True):
            own = Mean("value", _rows_of(measure, name, name, ""))
            made.append(Claim(f"{measure} of {name} itself", "section 4.4", own, unit=unit, paper=paper, roles=roles))
    return tuple(made)

"""smith2024: Comparing Apples and Oranges: is Stitching Similarity a Load of Spheres?

The paper trains the standard ResNet-18 on variants of MNIST whose classes are the digit, the colour of the background,
or both (``suture_papers.variants``: Correlated, Digit, Colour, Colour-only, grey), and stitches them into the Digit
network, before Layers 1 to 4 and before the linear layer, with stitches fitted and scored on Correlated. All kinds
turn out compatible with it, so does a network that has seen no digit, and so does noise around one random point per
class: compatibility does not say that two networks represent the same (sections 4.1 and 4.2). Digit into Colour-only
and Colour-only into Digit each beat their receiver, and so does a network stitched to itself (section 4.3, appendix
C.1). VGG19 takes noise less well (appendix C.2).

Stitches are BatchNorm → 1×1 convolution → BatchNorm, before the linear layer too: they are cut behind the average
pooling, whose output is a map of one pixel. A sender of seed *i* goes into a receiver of seed *i* + 1, round in a
circle, since networks of one seed begin with the same weights; the unit of an interval is that pair.

Deviations at every scale. Noise is drawn for each image by its label, so that sizes and roles are those of the data;
its scale, which the text does not give, is 0.1, and others stand beside it. Images are read as in
``variants``. The ranks are of all features, whereas the authors' code draws 8,000.
"""

from collections.abc import Sequence
from dataclasses import replace

from suture_papers.base.cells import COMPLEXITIES, NETWORKS, TRIALS, Where
from suture_papers.base.claims import MARGIN, Claim, Roles
from suture_papers.base.contrasts import OverStitches, SpreadRatio, StandardisedDifference
from suture_papers.base.quantities import AtCuts, Extreme, Mean, Quantity
from suture_papers.base.scale import EPOCHS
from suture_papers.base.study import Panel, Study
from suture_papers.smith2024 import plans

# --- what several studies have in common ------------------------------------------------------------------------------

_ON = "on the same test images"
CORRELATED = Roles("Correlated training images", "Correlated test images", f"the receiver, {_ON}")
PLAIN = Roles("Colour-only training images", "Colour-only test images", "the grey receiver, on grey MNIST test images")
NOISE = Roles("noise of Correlated's training labels", "noise of its test labels", "Digit, on Correlated test images")
OWN = Roles(
    "noise of the training labels of the receiver's own data",
    "noise of its test labels",
    "the receiver, on its own test images",
)
KINDS = tuple(plans.COLOURS)
POOLED = "The cut before the linear layer is behind the average pooling."
SHIFTS = "The 10 % of jitter is a shift of each channel by up to 25.5 of 255."
SCALE = "The scale of the noise, which is not given, is 0.1."
SEVERAL = ("Sender and receiver are of different seeds.", POOLED, SHIFTS)
RANK = Where(COMPLEXITIES, measure="numerical rank")


def tell_small(which: str, fit: str = "at its full length") -> tuple[str, ...]:
    """Return the deviations at small scale, with the seams and the length of the published fit."""
    return (
        "Stitches are fitted and scored on 10,000 images each.",
        f"The published fit, {fit}, is planned {which}.",
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
    cut = plans.CUTS[layer - 1]
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


# --- networks into networks -------------------------------------------------------------------------------------------


_COMPATIBLE = Study(
    "smith-4.1",
    "Colours and digits",
    "Can stitching tell networks that go by the colour, the digit or both from one that goes by digits?",
    "section 4.1, figures 1b and C5a",
    plans.plan_compatible,
    (*map(claim_compatible, KINDS),),
    (
        draw_lines("stitched", "accuracy on Correlated", Where(), baseline=True),
        draw_lines("penalty", "penalty [pp]", Where(), 0.0),
    ),
    (*SEVERAL, "“At every cut” concerns the means over pairs, as in the paper."),
    tell_small("at every cut of every pair"),
    roles=CORRELATED,
)

_RANKS = Study(
    "smith-1c",
    "Ranks",
    "Does the receiver see the senders as equal, by the rank of what its first convolution makes of them?",
    "section 4.1, figure 1c, appendix B.2.1",
    plans.plan_ranks,
    tuple(claim_gap(kind, layer) for layer in (2, 3) for kind in ("colour", "correlated")),
    (draw_lines("value", "numerical rank", RANK),),
    (
        *SEVERAL,
        "The difference is in pooled standard deviations over pairs; its interval is that of the noncentral t.",
        "The rank is of all features; the authors' code draws 8,000 at random.",
        "The ranks of C5b and C6b are reports, and not run.",
    ),
    ("Stitches are fitted on 10,000 images, the rank is over 10,000 test images. The default fit alone.",),
    tables=(TRIALS, COMPLEXITIES),
)

_OWN = Mean("accuracy", Where(NETWORKS))
_WITHOUT_DIGITS = Study(
    "smith-4.2",
    "Without digits",
    "Can a network that never saw a digit, on images without any, be stitched into one that knows grey digits?",
    "section 4.2",
    plans.plan_without_digits,
    (
        Claim(
            "stitched accuracy is 1.0 at every cut",
            "section 4.2",
            Extreme((AtCuts("stitched"),), smallest=True),
            "≥",
            100.0,
            MARGIN,
            unit="%",
            paper="1.0 at every stitching layer",
        ),
        Claim(
            "stitched accuracy is at least the receiver's own on grey digits, at every cut",
            "section 4.2",
            Extreme((AtCuts("stitched", minus=_OWN),), smallest=True),
            "≥",
            0.0,
            MARGIN,
            paper="from 0.990 ± 0.001 to 1.0",
        ),
        Claim(
            "the grey receiver's own accuracy on grey digits",
            "section 4.2",
            _OWN,
            unit="%",
            paper="0.990 ± 0.001",
        ),
    ),
    (
        Panel(
            "lines",
            "stitched",
            "accuracy on Colour-only",
            (("default fit", Where()), ("the paper's recipe, one pair at three cuts", Where(fit="published"))),
        ),
    ),
    (*SEVERAL, "The penalties in the table are against the receiver on Colour-only images, where it guesses."),
    tell_small("at every cut of every pair"),
    tables=(TRIALS, NETWORKS),
    roles=PLAIN,
    weak=("resnet18 grey",),
)


def _claim_beats(sender: str, receiver: str, paper: str) -> Claim:
    where = Where(sender=f"resnet18 {sender}", receiver=f"resnet18 {receiver}", receiver_cut=plans.CUTS[0])
    return Claim(
        f"{sender} → {receiver} is more accurate than {receiver} itself",
        "section 4.3, table C1",
        Mean("penalty", where),
        "<",
        0.0,
        paper=paper,
    )


def _at_each_cut(sender: str, receiver: str) -> tuple[AtCuts, ...]:
    """Return the penalty at each of the five cuts: some cut is the best of all only if all were measured."""
    return tuple(AtCuts("penalty", Where(sender=sender, receiver=receiver, receiver_cut=cut)) for cut in plans.CUTS)


def _report_row(kind: str, base: str, receives: str, sends: str) -> tuple[Claim, ...]:
    digit = "another resnet18 digit" if kind == "digit" else "resnet18 digit"
    first = plans.CUTS[0]
    out = Where(sender="resnet18 digit", receiver=digit if kind == "digit" else f"resnet18 {kind}", receiver_cut=first)
    received = Where(sender=f"resnet18 {kind}", receiver=digit, receiver_cut=first)
    own = Mean("receiver_score", out)
    said = f"{base}; “over 98 %” of each (section 3)"
    claims = (
        Claim(f"{kind}: accuracy on Correlated", "table C1", own, unit="%", paper=said),
        Claim(f"{kind} → digit", "table C1", Mean("stitched", received), unit="%", paper=receives),
    )
    if kind == "digit":
        return claims
    return (*claims, Claim(f"digit → {kind}", "table C1", Mean("stitched", out), unit="%", paper=sends))


_REVERSED = Study(
    "smith-C1",
    "A contradiction",
    "If Colour-only is better than Digit by stitching, is Digit better than Colour-only?",
    "section 4.3, appendix C.1, table C1",
    plans.plan_reversed,
    (
        _claim_beats("colour-only", "digit", "0.999 against 0.978"),
        _claim_beats("digit", "colour-only", "0.985 against 0.686"),
        *(
            Claim(
                f"digit → {kind} is more accurate than {kind} itself at some cut",
                "section 4.3",
                Extreme(_at_each_cut(plans.DIGIT, f"resnet18 {kind}"), smallest=True),
                "<",
                0.0,
                paper="gains “for particular layers”",
            )
            for kind in plans.GAINING
        ),
        *_report_row("correlated", "0.999", "0.999", "0.981"),
        *_report_row("digit", "0.978", "0.995 and 0.996", ""),
        *_report_row("colour", "1.000", "0.999", "1.000"),
        *_report_row("colour-only", "0.686", "0.999", "0.985"),
    ),
    (
        Panel(
            "bars",
            "penalty",
            "penalty, Digit receives [pp]",
            tuple((kind, rows_of(kind, receiver_cut=plans.CUTS[0])) for kind in KINDS),
        ),
        Panel(
            "bars",
            "penalty",
            "penalty, Digit sends [pp]",
            tuple(
                (kind, Where(sender="resnet18 digit", receiver=f"*resnet18 {kind}", receiver_cut=plans.CUTS[0]))
                for kind in KINDS
            ),
        ),
    ),
    (
        *SEVERAL,
        "The table's Digit row has one figure here for Digit → Digit, where the paper has 0.995 and 0.996.",
    ),
    tell_small("at every cut of every pair"),
    roles=CORRELATED,
)

# --- networks alone ---------------------------------------------------------------------------------------------------

_ITSELF = Where(control="itself")


def _report_own_penalty(kind: str) -> Claim:
    return Claim(
        f"largest penalty over cuts of {kind}, stitched to itself",
        "section 4.3",
        Extreme((AtCuts("penalty", replace(_ITSELF, receiver=f"resnet18 {kind}")),)),
    )


_TO_ITSELF = Study(
    "smith-C5",
    "To itself",
    "Does a stitch between a network and itself do some of the work?",
    "section 4.3, figure C5a",
    plans.plan_to_itself,
    (
        Claim(
            "Digit stitched to itself exceeds its own accuracy on Correlated, at every cut",
            "section 4.3, figure C5a",
            Extreme((AtCuts("penalty", replace(_ITSELF, receiver=plans.DIGIT)),)),
            "<",
            0.0,
            paper="from 0.978 to 0.995 at Layer 1",
        ),
        *map(_report_own_penalty, (kind for kind in KINDS if kind != "digit")),
    ),
    (
        draw_lines("penalty", "penalty [pp]", _ITSELF, 0.0, kinds=("digit",), title="Digit"),
        draw_lines("penalty", "penalty [pp]", _ITSELF, 0.0, title="all four"),
    ),
    (POOLED, SHIFTS, "The very same network is on both sides."),
    tell_small("at every cut of every Digit network"),
    roles=CORRELATED,
    weak=("resnet18 *",),
)


def _worst_of(label: str, receiver: str = plans.DIGIT) -> Quantity:
    return Extreme((AtCuts("penalty", Where(control=label, receiver=receiver)),))


_CLUSTERED = "clustered noise"
_NOISES = (_CLUSTERED, *(f"{_CLUSTERED}, scale {size:g}" for size in plans.SCALES))
_FROM_NOISE = Study(
    "smith-4.2-noise",
    "Noise",
    "Is noise around one random point per class compatible with a network?",
    "section 4.2, figure C5a, appendix A",
    plans.plan_noise,
    (
        Claim(
            "stitched accuracy is at least the Digit receiver's at every cut",
            "section 4.2, figure C5a",
            _worst_of(_CLUSTERED),
            "≤",
            0.0,
            MARGIN,
            paper="full stitching compatibility",
        ),
        *(
            Claim(
                f"stitched accuracy is at least the {kind} receiver's at every cut, by noise of its data's labels",
                "appendix B.2",
                _worst_of(_CLUSTERED, receiver=f"resnet18 {kind}"),
                "≤",
                0.0,
                MARGIN,
                paper="noise into the network of every data set",
                roles=OWN,
            )
            for kind in KINDS
            if kind != "digit"
        ),
        *(
            Claim(f"largest penalty over cuts, noise of scale {size:g}", "section 4.2", _worst_of(label))
            for size, label in zip(plans.SCALES, _NOISES[1:], strict=True)
        ),
    ),
    (
        Panel(
            "lines",
            "stitched",
            "accuracy",
            tuple(
                (f"scale {size:g}", Where(control=label, receiver=plans.DIGIT))
                for size, label in zip((0.1, *plans.SCALES), _NOISES, strict=True)
            ),
            baseline=True,
            title="Noise into Digit",
        ),
        Panel(
            "lines",
            "penalty",
            "penalty [pp]",
            tuple((f"into {kind}", Where(control=_CLUSTERED, receiver=f"resnet18 {kind}")) for kind in KINDS),
            level=0.0,
            title="Noise of scale 0.1 into every network",
        ),
    ),
    (POOLED, SCALE, "Noise has the sizes of the data, where the paper has 6,000 and 1,000 samples a class."),
    tell_small("at every cut of every network, with noise of scale 0.1"),
    roles=NOISE,
)

_FIRST = plans.VGG_CUTS[0]


def _claim_spread(kind: str) -> Claim:
    first, second = (
        Mean("stitched", Where(control=_CLUSTERED, receiver=f"vgg19 {k}", receiver_cut=_FIRST)) for k in (kind, "digit")
    )
    return Claim(
        f"before features.2 the standard deviation of {kind} over seeds is at least twice Digit's",
        "appendix C.2, figure C6a",
        SpreadRatio(first, second),
        "≥",
        2.0,
        unit="times",
        ours=True,
        paper="very varied results",
        enough=3,
    )


_VGG = Study(
    "smith-C2",
    "Noise into VGG19",
    "Does noise suit a network without skip connections as well?",
    "appendix C.2, figure C6a, table C2",
    plans.plan_vgg,
    (
        Claim(
            "Digit is better than its own baseline, on average over cuts",
            "appendix C.2",
            Mean("penalty", Where(control=_CLUSTERED, receiver="vgg19 digit")),
            "<",
            0.0,
            paper="improved results; 0.98 without a stitch",
            enough=3,
        ),
        Claim(
            "Correlated maintains its accuracy, at every cut",
            "appendix C.2",
            _worst_of(_CLUSTERED, receiver="vgg19 correlated"),
            "≤",
            0.0,
            MARGIN,
            paper="maintains accuracy; 1.00 without a stitch",
            enough=3,
        ),
        *map(_claim_spread, ("colour", "colour-only")),
        *(
            Claim(
                f"range of accuracy over {plans.STITCHES} stitches before features.2: {kind}",
                "appendix C.2",
                OverStitches("stitched", Where(control=plans.AGAIN, receiver=f"vgg19 {kind}")),
                paper="the worst model: 40 to 80 %",
            )
            for kind in ("colour", "colour-only")
        ),
    ),
    (
        Panel(
            "lines",
            "stitched",
            "accuracy",
            tuple((kind, Where(control=_CLUSTERED, receiver=f"vgg19 {kind}")) for kind in KINDS),
        ),
    ),
    (
        SCALE,
        "The cut before classifier.0 is behind the pooling, as a map of one pixel.",
        "Three networks decide, as in the paper; standard deviations are compared by their F interval.",
        "Stitches of other seeds have other noise too.",
        "The range over stitches is a mean over three networks, by the default fit; the paper's is of its worst.",
    ),
    tell_small("before features.2 of every network", f"{EPOCHS} epochs of 10,000 images"),
    roles=OWN,
)

STUDIES: tuple[Study, ...] = (_COMPATIBLE, _RANKS, _WITHOUT_DIGITS, _FROM_NOISE, _REVERSED, _TO_ITSELF, _VGG)

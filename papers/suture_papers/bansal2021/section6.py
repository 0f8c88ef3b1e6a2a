"""bansal2021, section 6, more is better: samples, training and width."""

from dataclasses import replace

from suture_papers.bansal2021 import plans
from suture_papers.bansal2021.plans import EPOCHS, R18, SELF_STITCHED, SUBSETS, WIDTHS
from suture_papers.bansal2021.selections import (
    EARLY,
    LATE,
    OWN_IMAGES,
    SAMPLED,
    draw_lines,
    mean_at,
    report_published,
)
from suture_papers.base.cells import Where
from suture_papers.base.claims import MARGIN, Claim
from suture_papers.base.quantities import AtCuts, Difference, Extreme, Mean
from suture_papers.base.study import Study

_BY_SAMPLES = {n: Where(sender=f"{R18} {n} samples") for n in SUBSETS}
_FEWEST, _MOST = _BY_SAMPLES[5_000], _BY_SAMPLES[25_000]
_BY_EPOCH = {n: Where(sender=f"epoch {n}") for n in EPOCHS}
_YOUNG = _BY_EPOCH[40]
_START, _MIDDLE = "layer1.?", "layer2.?|layer3.?"


def _at_start(where: Where) -> Where:
    return replace(where, receiver_cut=_START)


_BY_WIDTH = {
    (a, b): Where(sender=WIDTHS[a], receiver=WIDTHS[b]) for a in WIDTHS for b in WIDTHS if a != b
}  #: sender and receiver

MORE = (
    Study(
        "bansal-2C",
        "More samples",
        "Do the layers of a network that saw more images improve one that saw fewer?",
        "section 6, figure 2C",
        plans.plan_samples,
        (
            Claim(
                "25,000 → 10,000: the penalty is below 0 at some cut",
                "section 6",
                Extreme((AtCuts("penalty", _MOST),), smallest=True),
                "<",
                0.0,
                paper="“improves the performance”",
                roles=OWN_IMAGES,
            ),
            Claim(
                "5,000 → 10,000 is worse in the middle than at the start: penalty of stages 2 and 3 minus stage 1 > 0",
                "section 6",
                Difference(mean_at(_FEWEST, _MIDDLE), mean_at(_FEWEST, _START)),
                ">",
                0.0,
                paper="“degrades rapidly […] in the mid-layers”",
                roles=OWN_IMAGES,
            ),
            Claim(
                "stitched at the first two cuts, senders of 5,000 and 25,000 differ by at most 2 pp, either way",
                "section 6",
                Extreme((AtCuts("penalty", _at_start(_FEWEST), minus=("penalty", _at_start(_MOST))),), either=True),
                "≤",
                2.0,
                ours=True,
                paper="“when stitched at the first few layers, all the models have similar performance”",
                roles=OWN_IMAGES,
            ),
            *(
                Claim(
                    f"penalty at the first two cuts, mean: {n:,} → 10,000",
                    "section 6",
                    mean_at(where, _START),
                    paper="similar",
                    roles=OWN_IMAGES,
                )
                for n, where in _BY_SAMPLES.items()
            ),
            Claim(
                "as read before: and worst there: penalty of stages 2 and 3 minus that of stages 1 and 4, the smaller",
                "section 6",
                Extreme(
                    tuple(Difference(mean_at(_FEWEST, _MIDDLE), mean_at(_FEWEST, end)) for end in (_START, "layer4.?")),
                    smallest=True,
                ),
                roles=OWN_IMAGES,
                reading="“degrades rapidly in the mid-layers” leaves out the last layers",
            ),
            report_published(_MOST),
        ),
        (draw_lines(*((f"{n:,} samples", where) for n, where in _BY_SAMPLES.items()), level=0.0),),
        ("stitches are fitted to the receiver's 10,000 training images",),
        (SAMPLED,),
    ),
    Study(
        "bansal-3B",
        "More training",
        "Do the layers of a network improve it as it was at an earlier epoch?",
        "section 6, figure 3B",
        plans.plan_epochs,
        (
            Claim(
                "senders are ordered by epoch: the smaller of the mean penalties 40 minus 80 and 80 minus 160 is > 0",
                "section 6",
                Extreme(
                    tuple(
                        Difference(Mean("penalty", _BY_EPOCH[a]), Mean("penalty", _BY_EPOCH[b]))
                        for a, b in ((40, 80), (80, 160))
                    ),
                    smallest=True,
                ),
                ">",
                0.0,
                paper="“as training time increases, […] the representations improve”",
            ),
            Claim(
                "early layers converge first: at epoch 40, penalty of the second half of the cuts minus the first > 0",
                "section 6",
                Difference(mean_at(_YOUNG, LATE), mean_at(_YOUNG, EARLY)),
                ">",
                0.0,
                paper="“earlier layers converge faster”",
            ),
            report_published(_YOUNG),
        ),
        (draw_lines(*((f"epoch {n}", where) for n, where in _BY_EPOCH.items()), level=0.0),),
        ("sender and receiver are one training at two epochs, so epoch 80 is stitched to itself",),
        ("epochs 40, 80 and 160 are 4, 8 and 16, with the drops of the learning rate in proportion", SAMPLED),
    ),
    Study(
        "bansal-3C",
        "More width",
        "Do the layers of a wider network improve a narrower one?",
        "section 6, figure 3C",
        plans.plan_widths,
        (
            Claim(
                "wider into narrower: mean penalty ≤ 0: 1× → 0.25×",
                "section 6",
                Mean("penalty", _BY_WIDTH["1", "0.25"]),
                "≤",
                0.0,
                margin=MARGIN,
                paper="“improve performance”",
            ),
            Claim(
                "narrower into wider: mean penalty > 0: 0.25× → 1×",
                "section 6",
                Mean("penalty", _BY_WIDTH["0.25", "1"]),
                ">",
                0.0,
                paper="“but not vice versa”",
            ),
            *(
                Claim(f"mean penalty: {a}× → {b}×", "section 6", Mean("penalty", where))
                for (a, b), where in _BY_WIDTH.items()
                if "2" in (a, b)
            ),
            *(
                Claim(
                    f"the receiver stitched to itself, which has no other width: mean penalty: {width}×",
                    "section 6",
                    Mean("penalty", Where(receiver=WIDTHS[width], control="itself")),
                )
                for _, width in SELF_STITCHED
            ),
            report_published(_BY_WIDTH["1", "0.25"]),
        ),
        (draw_lines(*((f"{a}× → {b}×", where) for (a, b), where in _BY_WIDTH.items()), level=0.0),),
        small=("the widest network is left out: three of them decide nothing", SAMPLED),
    ),
)

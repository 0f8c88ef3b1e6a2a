"""bansal2021, continued: its appendices B.1 and B.2.3 to B.4, and claims that sections 2 to 4 only argue."""

from dataclasses import replace

from suture.core.stitches import Conv
from suture_papers.bansal2021 import plans
from suture_papers.bansal2021.folds import IMAGES
from suture_papers.bansal2021.plans import FEW, FOLDED, FROZEN, KERNELS, R18, SAME, WIDTHS
from suture_papers.bansal2021.selections import (
    ALL,
    BOTH,
    CKA,
    DEFAULT_ALONE,
    FEW_SEEDS,
    FOLD,
    NETWORK,
    OWN_IMAGES,
    UNTRAINED,
    draw_lines,
)
from suture_papers.base.cells import FOLDS, NETWORKS, TRIALS, Condition, Where
from suture_papers.base.claims import Claim, Direction, Roles, only_report
from suture_papers.base.quantities import AtCuts, Difference, Extreme, Mean, Quantity, Ratio, RunOfCuts, Worst
from suture_papers.base.study import Panel, Study

_KERNELS = [(f"{k}×{k}", Where(stitch=str(Conv(kernel=k)))) for k in KERNELS]
_4 = Study(
    "bansal-4",
    "The kernel of the stitch",
    "Does a larger kernel make a better stitch?",
    "appendix B.1, figure 4",
    plans.plan_kernels,
    (
        *(
            made if words == _KERNELS[1][0] else only_report(made)
            for words, where in _KERNELS[1:]
            for made in [
                Claim(
                    f"a stitch of {words} differs from 1×1 by at most 1 pp of test error at every cut, either way",
                    "appendix B.1",
                    Extreme((AtCuts("penalty", where, minus=("penalty", _KERNELS[0][1])),), either=True),
                    "≤",
                    1.0,
                    ours=True,
                    paper="“minimal impact”",
                    reading="each kernel has to be equivalent to 1×1; the range over kernels grew with their number",
                )
            ]
        ),
    ),
    (draw_lines(*_KERNELS),),
    small=(
        "three cuts: the ends of the first three stages",
        "kernels 1 and 3 alone: larger ones cost 3 to 9 times as much to fit",
        DEFAULT_ALONE,
    ),
)

_WIDTH_CKA, _TIME_CKA = CKA(sender=WIDTHS["0.25"]), CKA(sender=f"{R18} epoch 80")
_SAMPLES_CKA = CKA(sender=FEW)
_IMPROVES = Where(sender=f"{R18} 25000 samples", receiver=FEW)
_LEAST: tuple[tuple[str, Where, Direction, float, str], ...] = (
    ("width: the least CKA of 0.25× and 2× is about 0.7: ≤ 0.8", _WIDTH_CKA, "≤", 0.8, "as low as 0.7"),
    ("width: the least CKA of 0.25× and 2× is about 0.7: ≥ 0.6", _WIDTH_CKA, "≥", 0.6, "as low as 0.7"),
    ("samples: the least CKA of 5,000 and 25,000 is near 0: ≤ 0.1", _SAMPLES_CKA, "≤", 0.1, "as low as 0"),
    ("training time: CKA of epochs 80 and 160 ≥ 0.8 at every cut", _TIME_CKA, "≥", 0.8, "“similar”"),
)
_OF_CKA = tuple(
    Claim(
        words,
        "appendix B.2.3",
        Extreme((AtCuts("value", where),), True),
        direction,
        limit,
        unit="",
        ours=True,
        paper=paper,
    )
    for words, where, direction, limit, paper in _LEAST
)
_7 = Study(
    "bansal-7",
    "More is similar with CKA?",
    "What does CKA say of networks with more width, samples and training?",
    "appendix B.2.3, figure 7",
    plans.plan_section_6_cka,
    (
        *map(only_report, _OF_CKA[:2]),
        _OF_CKA[2],
        Claim(
            "and yet the stitch 25,000 → 5,000 improves the receiver: the penalty is below 0 at some cut",
            "appendix B.2.3",
            Extreme((AtCuts("penalty", _IMPROVES),), smallest=True),
            "<",
            0.0,
            paper="“a negative stitching penalty”",
            roles=OWN_IMAGES,
        ),
        *(
            Claim(f"penalty, mean over cuts: {words}", "appendix B.2.3", Mean("penalty", where), roles=OWN_IMAGES)
            for words, where in (
                ("25,000 → 5,000", _IMPROVES),
                ("the receiver to itself", Where(receiver=FEW, control="itself")),
            )
        ),
        _OF_CKA[3],
        Claim(
            "least CKA over cuts of two seeds of ResNet-18",
            "table 1",
            Extreme((AtCuts("value", CKA(sender=R18)),), smallest=True),
            unit="",
            fit="",
            paper="“can be 0”",
        ),
    ),
    (
        draw_lines(
            ("0.25× and 2× width", _WIDTH_CKA),
            ("5,000 and 25,000 samples", _SAMPLES_CKA),
            ("epochs 80 and 160", _TIME_CKA),
            column="value",
        ),
        draw_lines(("25,000 → 5,000 samples", _IMPROVES), level=0.0),
    ),
    (
        "“about 0.7” is read as 0.6 to 0.8",
        "stitches are fitted to the receiver's 5,000 training images",
    ),
    (DEFAULT_ALONE, f"widths are a report, and not run: {FEW_SEEDS}"),
    tables=BOTH,
)

_REDRAWN = Where(control="untrained sender, retrained")
_GAPS = tuple(("penalty", replace(where, sender_depth=(1 / 3, 1.0))) for where in (_REDRAWN, UNTRAINED))
_BOTH_FITS = "default; the further layers by Adam"
_8 = Study(
    "bansal-8",
    "Stitching and fine-tuning",
    "Does training the further layers anew hide that the first ones are random?",
    "appendix B.3, figure 8",
    plans.plan_fine_tuning,
    (
        Claim(
            "of an untrained sender, fine-tuning's gap minus half the stitching penalty is < 0 at every middle and "
            "late cut",
            "appendix B.3",
            Extreme((AtCuts(*_GAPS[0], minus=_GAPS[1], times=0.5, by="sender_cut"),)),
            "<",
            0.0,
            ours=True,
            fit=_BOTH_FITS,
            paper="“can overestimate the similarity”",
        ),
        Claim(
            "the gap as a share of the penalty, both means over these cuts",
            "appendix B.3",
            Ratio(Mean(*_GAPS[0]), Mean(*_GAPS[1])),
            unit="",
            fit=_BOTH_FITS,
        ),
    ),
    (
        replace(
            draw_lines(("stitched", UNTRAINED), ("further layers drawn anew and trained", _REDRAWN)), along="sender_cut"
        ),
    ),
    (
        "middle and late cuts lie behind the first third of the network",
        "the paper gives no recipe for the further layers: at its scale they train by that of its networks",
    ),
    (
        DEFAULT_ALONE,
        "ResNet-18 for ResNet-164: three cuts, the ends of the last three stages",
        "the further layers train for 4 epochs of 10,000 images, less than the receiver had",
    ),
)

_UNSTITCHED = Roles("nothing: no stitch", "all test images", "the network trained on all 50,000 images")
_FROM_FEW, _FROM_ALL = Where(sender=FEW, receiver=SAME), Where(sender=SAME, receiver=FEW)
_9 = Study(
    "bansal-9",
    "Freeze training",
    "Can layers whose representation needs few samples be trained on few, and frozen?",
    "section 6, appendix B.4, figure 9",
    plans.plan_freezing,
    (
        *(
            Claim(
                f"within {within:g} pp of the network trained on all 50,000 images: layers of {name} frozen at 5,000",
                name if name.startswith("section") else f"appendix {name}",
                Difference(
                    Mean("accuracy", NETWORK(sender=SAME)), Mean("accuracy", NETWORK(sender=f"{R18} freeze {name}"))
                ),
                "≤",
                within,
                paper=said,
                fit="",
                roles=_UNSTITCHED,
            )
            for name, within, said in zip(FROZEN, (3.0, 2.0), ("“≈ 3 %”", "“within 2% accuracy”"), strict=True)
        ),
        Claim(
            "the same for the network trained on 5,000 images, unfrozen: how far it is behind",
            "appendix B.4",
            Difference(Mean("accuracy", NETWORK(sender=SAME)), Mean("accuracy", NETWORK(sender=FEW))),
            fit="",
            roles=_UNSTITCHED,
        ),
        Claim(
            "our choice, early: blocks in a row, from the input, that cost at most 1 pp when taken from 5,000 images",
            "appendix B.4",
            RunOfCuts((("penalty", _FROM_FEW),), most=1.0),
            unit="blocks",
            paper="none behind the stem",
        ),
        Claim(
            "our choice, late: cuts in a row, from the output, behind which layers from 5,000 images cost at most 1 pp",
            "appendix B.4",
            RunOfCuts((("sender_score", _FROM_ALL), ("stitched", _FROM_ALL)), most=1.0, last=True),
            unit="cuts",
            paper="3 (layers 8, 9 and 11)",
        ),
    ),
    (
        Panel(
            "bars",
            "accuracy",
            "test accuracy [%]",
            tuple(
                (label, NETWORK(sender=name))
                for label, name in (
                    ("all images", SAME),
                    *((f"frozen: {name}", f"{R18} freeze {name}") for name in FROZEN),
                    ("5,000 images", FEW),
                )
            ),
        ),
        draw_lines(("5,000 images → all", _FROM_FEW), level=1.0),
        draw_lines(("all → 5,000 images", _FROM_ALL), column="stitched"),
    ),
    (
        "layers 0 and 1 are the stem, 2 to 9 the blocks, 10 is pooling, 11 the last layer, as in the authors' code",
        "both of the paper's choices are trained; the layers that our own curves would choose are reported",
        "stitches into the network of 5,000 images are fitted to these",
    ),
    (DEFAULT_ALONE,),
    tables=(TRIALS, NETWORKS),
)

_PROBE = Where(control="linear probe")
_STITCH = ("stitched", replace(ALL, sender_cut="layer1.?"))
_PROBES = Study(
    "bansal-probe",
    "Linear probes",
    "Do a linear probe and the stitch agree about early layers?",
    "section 2",
    plans.plan_probes,
    (
        Claim(
            "at every cut of the first third the probe is at least 10 pp below the stitched network",
            "section 2",
            Extreme(
                (AtCuts(*_STITCH, minus=("stitched", replace(_PROBE, sender_cut="layer1.?")), by="sender_cut"),),
                smallest=True,
            ),
            "≥",
            10.0,
            ours=True,
            fit="default; the probe is the optimum of its convex problem",
            paper="argued, not run",
        ),
        Claim(
            "joined without a stitch the networks are at most 20 % accurate at every cut",
            "section 2",
            Extreme((AtCuts("stitched", replace(ALL, control="plugged in", fit="any")),)),
            "≤",
            20.0,
            unit="%",
            ours=True,
            fit="",
            paper="argued, not run",
        ),
    ),
    (
        Panel(
            "lines",
            "stitched",
            "test accuracy [%]",
            (("stitched", ALL), ("linear probe", _PROBE)),
            along="sender_cut",
            baseline=True,
        ),
    ),
    ("the first third of ResNet-18's eight blocks is its first two",),
    (DEFAULT_ALONE,),
)

_NOISY, _MOVED = f"{R18} with Gaussian coordinates", f"{R18} with moved pixels"
_SENDERS = {R18: "as it is", _NOISY: "with Gaussian coordinates", _MOVED: "with moved pixels"}
_CKA = {name: ("value", CKA(sender=name)) for name in _SENDERS}
_OURS = {name: ("stitched", Where(sender=name)) for name in _SENDERS}


def _compare(of: dict[str, Condition], first: str, second: str, **settings: bool) -> Extreme:
    return Extreme((AtCuts(*of[first], minus=of[second]),), **settings)


_COSTS = "as argued: a 1×1 stitch cannot move pixels, so it does worse; by how much section 3 does not say"
_ARGUED: tuple[tuple[str, Quantity, Direction, float, str, str], ...] = (
    (
        "1000 Gaussian coordinates lower CKA by at least 0.1 at every cut",
        *(_compare(_CKA, R18, _NOISY, smallest=True), "≥", 0.1, "", ""),
    ),
    (
        "1000 Gaussian coordinates move the stitched accuracy by at most 1 pp at every cut, either way",
        *(_compare(_OURS, R18, _NOISY, either=True), "≤", 1.0, "pp", ""),
    ),
    (
        "moved pixels leave CKA of flattened maps unchanged: it differs by at most 1e-6 at every cut",
        *(_compare(_CKA, R18, _MOVED, either=True), "≤", 1e-6, "", ""),
    ),
    (
        "moved pixels make the 1×1 stitch worse at every cut",
        *(_compare(_OURS, R18, _MOVED, smallest=True), ">", 0.0, "pp", _COSTS),
    ),
)
_INVARIANCE = Study(
    "bansal-invariance",
    "What an index ignores, and what a stitch ignores",
    "Do useless coordinates and moved pixels change what CKA and the stitch say?",
    "section 3",
    plans.plan_invariance,
    (
        *(
            Claim(
                statement,
                "section 3",
                quantity,
                direction,
                limit,
                unit=unit,
                ours=limit != 0,
                paper="argued, not run",
                reading=reading,
            )
            for statement, quantity, direction, limit, unit, reading in _ARGUED
        ),
    ),
    (
        draw_lines(*((said, _OURS[name][1]) for name, said in _SENDERS.items()), column="stitched"),
        draw_lines(*((said, _CKA[name][1]) for name, said in _SENDERS.items()), column="value"),
    ),
    (
        "the coordinates have ten times the variance of the representation in all, which the paper leaves open",
        "cuts are the ends of the first three stages",
    ),
    (DEFAULT_ALONE,),
    tables=BOTH,
)

_FOLDED = Roles("nothing: they are random", f"{IMAGES} test images", "the stitched network before folding")
_FOLDS = Study(
    "bansal-fold",
    "Folding the stitch",
    "At which cuts can the stitch be folded into a neighbouring layer, and is that exact?",
    "section 4",
    plans.plan_folding,
    (
        *(
            Claim(
                f"if it can be folded, outputs differ by at most 1e-4 of the largest: {name}",
                "section 4",
                Worst("error", FOLD(sender=name)),
                "≤",
                1e-4,
                unit="",
                ours=True,
                fit="random stitches",
                enough=3,
                paper="“can be folded into the adjacent model”",
            )
            for name in FOLDED
        ),
        Claim(
            "it can be folded at no cut of ResNet-18 behind which an identity skip also reads the tensor "
            "(share of cuts)",
            "section 4",
            Mean("melts", FOLD(sender=R18, receiver_cut="layer?.0")),
            "≤",
            0.0,
            unit="",
            ours=True,
            fit="random stitches",
            enough=3,
            exact=True,
        ),
        *(
            Claim(
                f"share of cuts at which it can be folded: {name}",
                "section 4",
                Mean("melts", FOLD(sender=name)),
                unit="",
                fit="random stitches",
            )
            for name in FOLDED
        ),
    ),
    (Panel("bars", "melts", "share of cuts that fold", tuple((name, FOLD(sender=name)) for name in FOLDED)),),
    (
        "a stitch's shift before a convolution that pads with zeros is added as a constant map",
        "stitches are random: folding does not depend on training",
    ),
    roles=_FOLDED,
    tables=(FOLDS,),
)

BEYOND = (_4, _7, _8, _9, _PROBES, _INVARIANCE, _FOLDS)

"""Bansal, Nakkiran & Barak 2021, *Revisiting Model Stitching to Compare Neural Representations*, arXiv:2106.07682.

The paper stitches networks that differ in one thing (seed, width, labels, samples, training time, objective) and asks
what that does to their representations. Networks are CIFAR-10 ResNet-18s unless said otherwise, cut between residual
blocks; the stitch is a 1×1 convolution between BatchNorms, in the vision transformer a token-wise linear map; it trains
by Adam at 1e-3 with a cosine schedule. The penalty is the stitched test error less the receiver's.

What differs at every scale: claims are decided on the default fit, with the published one beside it on a sample of the
seams; stitches are fitted to images as they are (the text does not say whether they were augmented; the authors' code
does); and if the text leaves open which training images fit a stitch, the study says which were taken.
``plans`` has the plans, ``section6`` that section, ``appendices`` the appendices
and what is only argued.
"""

from dataclasses import replace

from suture_papers.bansal2021 import plans
from suture_papers.bansal2021.appendices import BEYOND
from suture_papers.bansal2021.plans import LABELS, R18, SAME, SIMCLR
from suture_papers.bansal2021.pretrained import NEEDS, SELF_SUPERVISED
from suture_papers.bansal2021.section6 import MORE
from suture_papers.bansal2021.selections import (
    ALL,
    BOTH,
    CKA,
    DEFAULT_ALONE,
    EARLY,
    LATE,
    NETWORK,
    SAMPLED,
    UNTRAINED,
    draw_lines,
    report_published,
    worst_of,
)
from suture_papers.base.cells import NETWORKS, TRIALS, Where
from suture_papers.base.claims import LOOKS, Claim, Roles, formerly, only_report
from suture_papers.base.quantities import Agreement, AtCuts, Difference, Extreme, Mean, Trend, Worst
from suture_papers.base.study import Study

# --- section 4: stitching connectivity --------------------------------------------------------------------------------

ARCHITECTURES = {
    R18: "ResNet-18",
    "resnet18 w0.5": "ResNet-18, half width",
    "resnet18 w2": "ResNet-18, twice the width",
    "resnet164": "ResNet-164",
    "myrtle": "Myrtle-CNN",
    "vit": "ViT",
}
_KINDS = [(label, Where(sender=name)) for name, label in ARCHITECTURES.items()]
_ONE = Where(sender=R18)
_UNRUN = ("resnet18 w2", "resnet164", "vit")  #: at small scale

_FIRST = replace(UNTRAINED, receiver_cut="layer1.0")
_RISES = Claim(
    "an untrained sender's penalty is higher late: mean of the later half of the cuts minus the first cut > 0",
    "section 2",
    Difference(Mean("penalty", replace(UNTRAINED, receiver_cut=LATE)), Mean("penalty", _FIRST)),
    ">",
    0.0,
    paper="“high, specially for high l”",
    reading="“specially for high l” means that late cuts cost more: a ρ of at least 0.8 was too strict",
)
_FALLS = Claim(
    "CKA of the untrained and the trained network is lower late: the first cut minus the later half of the cuts > 0",
    "appendix B.2.1",
    Difference(Mean("value", CKA(receiver_cut="layer1.0")), Mean("value", CKA(receiver_cut=LATE))),
    ">",
    0.0,
    unit="",
    paper="“the same trend”",
    reading="the same standard as for the stitch, in bansal-2A-random: any ρ below 0 was too lenient",
)

CONNECTIVITY = (
    Study(
        "bansal-2A",
        "Stitching connectivity",
        "Can networks of one architecture, trained from different seeds, stand in for each other at every layer?",
        "section 4, figure 2A",
        plans.plan_connectivity,
        (
            *(
                only_report(made) if name in _UNRUN else made
                for name, (label, where) in zip(ARCHITECTURES, _KINDS, strict=True)
                for made in [
                    Claim(
                        f"penalty ≤ 3 pp at every cut: {label}",
                        "section 4, table 1",
                        worst_of(where),
                        "≤",
                        3.0,
                        paper="“up to 3% error”; of almost all pairs, by its conjecture",
                        looks=LOOKS if name == "resnet18 w0.5" else (),
                    )
                ]
            ),
            report_published(_ONE),
            Claim("an untrained sender's penalty, mean over cuts", "figure 2A", Mean("penalty", UNTRAINED)),
        ),
        (
            draw_lines(*_KINDS[:3], level=3.0, title="ResNet-18"),
            draw_lines(("untrained sender", UNTRAINED), level=3.0, title="ResNet-18, untrained sender"),
            *(draw_lines(kind, level=3.0, title=kind[0]) for kind in _KINDS[3:]),
        ),
        ("the ViT is trained on CIFAR-10, not on CIFAR-5m", "Myrtle-CNN is cut after each of its four stages"),
        (
            "reports alone, and not run: ResNet-18 of twice the width, ResNet-164 and the ViT",
            "five networks of one kind are joined in a circle, five pairs of the twenty",
            "ResNet-18 of half the width is looked at with 5, 8 and 12 networks",
            f"{SAMPLED}, of ResNet-18",
        ),
    ),
    Study(
        "bansal-2A-disjoint",
        "Stitching connectivity across disjoint halves of the data",
        "Can networks that have no training image in common stand in for each other?",
        "section 4",
        plans.plan_disjoint,
        (
            Claim(
                "penalty ≤ 3 pp at every cut",
                "section 4",
                worst_of(),
                "≤",
                3.0,
                paper="“a similar result holds”",
                roles=Roles(fitted="training images of both halves"),
            ),
            report_published(),
        ),
        (draw_lines(("disjoint halves", ALL), level=3.0),),
        ("networks of one half send, those of the other receive",),
        (SAMPLED,),
    ),
    Study(
        "bansal-2A-random",
        "Untrained senders",
        "Does the stitch learn the task by itself, whatever the sender represents?",
        "section 2, appendix B.2.1, figure 2A",
        plans.plan_untrained,
        (
            _RISES,
            formerly(replace(_RISES, unit="ρ"), Trend("penalty", UNTRAINED), "Spearman's ρ of cut and penalty"),
            Claim(
                "its penalty after the first block is at most 3 pp",
                "appendix B.2.1",
                Mean("penalty", _FIRST),
                "≤",
                3.0,
                ours=True,
                paper="“the early layers of the model have low stitching penalty”",
            ),
            Claim(
                "its penalty after the second and third blocks, the larger",
                "appendix B.2.1",
                worst_of(replace(UNTRAINED, receiver_cut="layer1.1|layer2.0")),
            ),
            Claim(
                "its penalty after the last block",
                "section 2",
                Mean("penalty", replace(UNTRAINED, receiver_cut="layer4.1")),
                paper="“high”",
            ),
        ),
        (draw_lines(("untrained sender", UNTRAINED), ("trained sender", ALL)),),
        small=(DEFAULT_ALONE,),
    ),
    Study(
        "bansal-5",
        "CKA of untrained senders",
        "Do CKA and the stitch agree about an untrained network?",
        "appendix B.2.1, figure 5",
        plans.plan_untrained_cka,
        (
            _FALLS,
            formerly(_FALLS, Trend("value", CKA()), "Spearman's ρ of cut and CKA"),
            Claim(
                "Spearman's ρ of CKA and penalty over cuts",
                "appendix B.2.1",
                Agreement((("value", CKA()), ("penalty", UNTRAINED))),
                unit="ρ",
            ),
        ),
        (draw_lines(("untrained and trained", CKA()), column="value"), draw_lines(("untrained sender", UNTRAINED))),
        ("the claim is one of direction alone, since the paper gives no number",),
        (DEFAULT_ALONE,),
        tables=BOTH,
    ),
)

# --- section 5: all roads lead to Rome --------------------------------------------------------------------------------

_THERE, _BACK = Where(sender=SIMCLR, receiver=R18), Where(sender=R18, receiver=SIMCLR)
_SUPERVISED = Where(sender=R18, receiver=f"another {R18}")
_SIMCLR_CKA, _SUPERVISED_CKA = CKA(sender=SIMCLR), CKA(sender=R18)
_KNOWN = {f"{R18} {kind}": kind for kind in LABELS}
_NOISE = f"{R18} {LABELS[-1]}"


def _claim_as_good(name: str) -> tuple[Claim, Claim]:
    """Claim that a sender's early layers are as good as those of right labels, and report the penalty itself."""
    where = Where(sender=name, receiver_cut=EARLY)
    right = ("penalty", replace(where, sender=SAME))
    claim = Claim(
        f"at every cut of the first half the penalty is ≤ 2 pp beyond that of as many steps on right labels: "
        f"{_KNOWN[name]}",
        "section 5",
        Extreme((AtCuts("penalty", where, minus=right),)),
        "≤",
        2.0,
        ours=True,
        paper="“as good as layers in the standard model”",
        reading="the standard model is the one with as many steps as the sender",
    )
    return claim, formerly(claim, worst_of(where), f"penalty at the worst cut of the first half: {_KNOWN[name]}")


ROADS = (
    Study(
        "bansal-2B",
        "Self-supervised and supervised ResNet-50s on ImageNet",
        "Can networks that were trained without labels stand in for a supervised one?",
        "section 5, figure 2B",
        plans.plan_imagenet,
        (
            Claim(
                "penalty at the worst cut, over SimCLR, SwAV and DINO",
                "section 5, table 1",
                worst_of(),
                paper="“up to 5% error”",
            ),
            *(
                Claim(f"penalty at the worst cut: {name}", "figure 2B", worst_of(Where(sender=name)))
                for name in SELF_SUPERVISED
            ),
            Claim("an untrained sender's penalty, mean over cuts", "figure 2B", Mean("penalty", UNTRAINED)),
        ),
        (draw_lines(*((n, Where(sender=n)) for n in SELF_SUPERVISED), ("untrained", UNTRAINED), level=5.0),),
        ("the interval is over the three methods",),
        ("a report alone: of each method there is one published network", "the default fit alone, on 10,000 images"),
        needs=NEEDS,
    ),
    Study(
        "bansal-6",
        "SimCLR and supervised networks on CIFAR-10",
        "Do stitching and CKA agree on how near a self-supervised network is to a supervised one?",
        "section 5, appendix B.2.2, figure 6",
        plans.plan_simclr,
        (
            *(
                Claim(f"penalty at the worst cut: {name}", "section 5", worst_of(where), paper="at most 3 pp")
                for name, where in (("SimCLR → supervised", _THERE), ("supervised → SimCLR", _BACK))
            ),
            Claim(
                "penalty of SimCLR at its worst cut minus that of another supervised network at its own",
                "appendix B.2.2",
                Difference(Worst("penalty", _THERE), Worst("penalty", _SUPERVISED)),
                paper="“in the same range”",
            ),
            *(
                Claim(
                    f"CKA over cuts, {name}",
                    "section 5",
                    Extreme((AtCuts("value", where),), name.startswith("least")),
                    unit="",
                    paper=said,
                )
                for name, where, said in (
                    ("least: SimCLR and supervised", _SIMCLR_CKA, "0.35"),
                    ("greatest: SimCLR and supervised", _SIMCLR_CKA, "0.9"),
                    ("least: two supervised", _SUPERVISED_CKA, ""),
                    ("greatest: two supervised", _SUPERVISED_CKA, ""),
                )
            ),
            report_published(_THERE),
        ),
        (
            draw_lines(
                ("SimCLR → supervised", _THERE),
                ("supervised → SimCLR", _BACK),
                ("two supervised", _SUPERVISED),
                level=3.0,
            ),
            draw_lines(("SimCLR and supervised", _SIMCLR_CKA), ("two supervised", _SUPERVISED_CKA), column="value"),
        ),
        ("a SimCLR network meets the supervised networks of other seeds",),
        (
            "a report alone: SimCLR with so little training is far below its supervised twin",
            SAMPLED,
        ),
        tables=BOTH,
    ),
    Study(
        "bansal-3A",
        "Fewer and wrong labels",
        "How much of a network's representation depends on its labels?",
        "section 5, figure 3A",
        plans.plan_labels,
        (
            *(claim for name in _KNOWN if name != _NOISE for claim in _claim_as_good(name)),
            Claim(
                f"penalty at the worst cut of the first half: {LABELS[-1]}",
                "section 5",
                worst_of(Where(sender=_NOISE, receiver_cut=EARLY)),
                paper="the exception",
            ),
            Claim(
                f"accuracy of {LABELS[-1]} on its own training labels",
                "section 5",
                Mean("accuracy", NETWORK(sender=_NOISE)),
                unit="%",
                fit="",
                paper="memorised",
                roles=Roles("nothing: no stitch", "its first 10,000 training images", "none"),
            ),
            *(
                Claim(
                    f"later cuts are worse: mean penalty of the second half minus that of the first > 0: {kind}",
                    "section 5",
                    Difference(
                        Mean("penalty", Where(sender=name, receiver_cut=LATE)),
                        Mean("penalty", Where(sender=name, receiver_cut=EARLY)),
                    ),
                    ">",
                    0.0,
                    paper="“such training details can affect the representation at later layers”",
                )
                for name, kind in _KNOWN.items()
                if name != _NOISE
            ),
            report_published(Where(sender=f"{R18} {LABELS[0]}")),
        ),
        (draw_lines(*((kind, Where(sender=name)) for name, kind in _KNOWN.items()), level=2.0),),
        ("birds are animals, which the paper's list forgets",),
        (
            "all senders train for 3,000 steps, the receiver for 6,240",
            "a sender without any right label is not stitched: in 3,000 steps it memorised nothing",
            f"{SAMPLED}, of the objects-and-animals network",
        ),
        weak=("resnet18 100 % random labels",),
        tables=(TRIALS, NETWORKS),
    ),
)

STUDIES = (*CONNECTIVITY, *ROADS, *MORE, *BEYOND)

"""oxford2025: *Model stitching to investigate the location of simplicity bias in neural networks*, every experiment.

What the paper did. It gives a network a *trait* (blindness to a class, use of one side of an image, simplicity),
stitches it to another without the trait, at each layer, and reads from the stitched networks where the trait lies. Its
networks are MLPs of nine hidden layers of 64, CNNs of two convolutions and three to five fully connected layers, and
ResNet-18; SGD with momentum 0.9, rate 1e-3 and batches of 4, until the loss plateaus. The stitch is linear, or a 1×1
convolution, between BatchNorms in ResNet-18 alone (``plans``). The sender gives the first layers: the
paper's "top".

What it leaves open, and what is done here.

* *Which labels fit the stitches of 4.1 to 4.3.* Both are run. In 4.1 both decide, each with its own verdict; in 4.2 and
  4.3 the true labels of all classes do (the paper: "optimised on the training data"), and the other is a report. A
  stitch that was fitted on cars called cats is taught never to say car, and one fitted without trucks never to say
  truck.
* *Which stitch joins convolutions to fully connected layers.* Section 3 has a 1×1 convolution and a linear layer
  together; 4.3 calls the 1×1 convolution at Pool2 the usual one. In 4.1 it is the former. In 4.2 and 4.3 the line of
  cuts has the latter, with the former beside it.
* *Where exactly a cut lies*: behind ReLU and pooling, as in the listing of its appendix.
* *In which direction figure 6 stitches*: the first layers are the simple network's, its "model A".
* λ, the pruned share and the number of images that the measures took: in the recipes of training, and below.

Pairs are of networks of different seeds; a pair's number is the ``network_seed`` of its rows.
"""

from dataclasses import replace
from functools import partial

from suture_papers.base.cells import COMPLEXITIES, NETWORKS, TRIALS, Where
from suture_papers.base.study import Panel, Study
from suture_papers.oxford2025 import claims, plans, simplicity, specialists
from suture_papers.oxford2025.alone import ALONE
from suture_papers.oxford2025.claims import (
    ALTERED,
    LOWER,
    NARROW,
    ON_CARS,
    ON_TRUCKS,
    PAIRED,
    TRUE,
    UPPER,
    WIDE,
    WITHOUT,
)
from suture_papers.oxford2025.plans import DIGITS, SIMPLE

_CONTROL = "the control of section 3 is a study of its own: oxford-control"
_SAMPLE = (
    "the paper's recipe for stitches has its full 87,500 steps, on 10,000 images; it is planned at every cut of the "
    "first pair"
)
_WHOLE = "the paper's recipe has its full 87,500 steps, on 10,000 images, and is planned for every pair"
_LINE = "cuts lie behind pool1, pool2 and the ReLU of fc1, fc2 and fc3"


def _draw_bars(ways: tuple[str, str], score: str, cut: str = "", title: str = "") -> Panel:
    labels = ((TRUE, "true labels"), (ALTERED, "altered labels"))
    called = dict(zip(ways, ("clean → relabelled", "relabelled → clean"), strict=True))
    lines = tuple(
        (f"{called[sender]}, {words}", Where(score=score, sender=sender, fit_data=fitted, receiver_cut=cut))
        for fitted, words in labels
        for sender in ways
    )
    return Panel("bars", "stitched", f"{score} [%]", lines, title=title)


def _draw_trucks(sender: str, title: str) -> Panel:
    drawn = (
        ("all classes", "accuracy", TRUE),
        ("trucks, fitted on all classes", ON_TRUCKS, TRUE),
        ("trucks, fitted without them", ON_TRUCKS, WITHOUT),
    )
    lines = tuple(
        (words, Where(score=score, sender=sender, fit_data=fitted, receiver_cut=NARROW))
        for words, score, fitted in drawn
    )
    return Panel("lines", "stitched", "accuracy [%]", lines, along="sender_cut", title=title)


def _draw_sides(fitted: str, title: str) -> Panel:
    drawn = (("full data", PAIRED), ("MNIST side", UPPER), ("CIFAR side", LOWER))
    lines = tuple(
        (words, Where(sender=DIGITS, fit_data=fitted, score_data=scored, receiver_cut=NARROW))
        for words, scored in drawn
    )
    return Panel("lines", "stitched", "accuracy [%]", lines, along="sender_cut", title=title)


def _draw_measures(sender: str, *stitches: tuple[str, str]) -> tuple[Panel, ...]:
    """Return a panel for each measure that the paper ran.

    Of ``stitches`` the names, and the receiver's cuts they lead to.
    """
    measures = [(measure, unit) for measure, unit in simplicity.MEASURES if measure in simplicity.RAN]
    return tuple(
        Panel(
            "lines",
            "value",
            f"{measure} [{unit}]",
            tuple(
                (name, Where(table=COMPLEXITIES, measure=measure, sender=sender, receiver_cut=cut))
                for name, cut in stitches
            ),
            along="sender_cut",
        )
        for measure, unit in measures
    )


_MLP, _CNN = ("mlp", "mlp cars as cats"), ("cnn", "cnn cars as cats")

STUDIES: tuple[Study, ...] = (
    Study(
        "oxford-4.1-mlp",
        "Cars as cats, in MLPs",
        "Does a stitched network inherit that one of its halves was taught to call cars cats?",
        "section 4.1",
        partial(plans.plan_inherited, network="mlp", seams=plans.MIDDLE),
        claims.claim_inherited("mlp", recovered=False),
        (_draw_bars(_MLP, ON_CARS),),
        ("stitches are fitted on both sets of labels", _CONTROL),
        (_WHOLE,),
    ),
    Study(
        "oxford-4.1-cnn",
        "Cars as cats, in CNNs",
        "Does the confusion of cars with cats lie in the convolutions or in the fully connected layers?",
        "section 4.1",
        plans.plan_both_inherited,
        (claims.claim_one_set(), *claims.claim_inherited("cnn", recovered=True, cut=WIDE), *claims.claim_narrow()),
        (
            _draw_bars(_CNN, ON_CARS, WIDE, "1×1 convolution and linear layer"),
            _draw_bars(_CNN, ON_CARS, "pool2", "1×1 convolution alone"),
        ),
        (
            "stitches are fitted on both sets of labels",
            "beside the paper's stitch, a 1×1 convolution and a linear layer, a 1×1 convolution alone",
            _CONTROL,
        ),
        (_WHOLE,),
    ),
    Study(
        "oxford-4.2",
        "Locating the layer that knows trucks",
        "Does truck accuracy jump at the cut behind the one layer that was trained on trucks?",
        "section 4.2, figure 2",
        plans.plan_special,
        (
            *claims.claim_located("fc1", "2a"),
            *claims.claim_located("fc2", "2b"),
            *claims.claim_located("fc3", "2c"),
            *claims.claim_blind(),
        ),
        tuple(_draw_trucks(f"cnn trucks in {layer}", f"trucks in {layer}") for layer in ("fc1", "fc2", "fc3")),
        (
            _LINE,
            "stitches are fitted with trucks among the images, and without",
            "“comparable” is read as more than half of the sender's truck accuracy",
            _CONTROL,
        ),
        (_WHOLE,),
        tables=(TRIALS, NETWORKS),
    ),
    Study(
        "oxford-4.3a",
        "Trucks, spread over all layers",
        "Does truck accuracy fall steadily as the network that knows trucks gives fewer layers?",
        "section 4.3, figure 3a",
        partial(plans.plan_located, senders=("cnn",)),
        claims.claim_steadily(),
        (_draw_trucks("cnn", "trained on everything → without trucks"),),
        (
            _LINE,
            "stitches are fitted with trucks among the images, and without",
            _CONTROL,
        ),
        (_WHOLE,),
    ),
    Study(
        "oxford-4.3b",
        "Digits and pictures, spread over all layers",
        "Do the two sides of MNIST-CIFAR change places as layers of one network replace the other's?",
        "section 4.3, figure 3b",
        plans.plan_distributed,
        claims.claim_opposite(),
        (_draw_sides(PAIRED, "fitted on paired digits"),),
        (
            "cuts lie behind pool1, pool2 and the ReLU of fc1 and fc2",
            "stitches are fitted on digits of the picture's class, as in the paper's listing",
            "the stitch of high capacity is one linear map from pool2 to the flattened vector",
            _CONTROL,
        ),
        (_WHOLE,),
        weak=("stacked cnn *",),
    ),
    Study(
        "oxford-4.4-fig5",
        "Complexity of small stitched networks",
        "Is a small stitched network as complex as its stitch makes it?",
        "section 4.4, figure 5",
        plans.plan_dominated,
        simplicity.claim_dominated(),
        _draw_measures(DIGITS, ("narrow stitches", claims.NARROW), ("the stitch of high capacity", claims.WIDE)),
        (
            "measured on the first 10,000 test images at most; the batches of the gradient norm are of 4",
            "noise has ε = 1e-3 and 2,500 draws in antithetic pairs; the largest sharpness has ε = 0.05",
            "the gradient norm of the whole loss and the largest sharpness (equation 3) are measured too",
        ),
        ("1,000 test images", "the default fit alone"),
        tables=(TRIALS, COMPLEXITIES),
    ),
    Study(
        "oxford-4.4-fig6",
        "Complexity of large stitched networks",
        "Does complexity fall as more layers come from the simpler of two ResNet-18s?",
        "section 4.4, figure 6",
        plans.plan_simplified,
        simplicity.claim_simplified(),
        _draw_measures(SIMPLE, ("stitched", "layer?.?")),
        (
            "all eight blocks are cut; claims use the paper's cuts, the ends of the four stages",
            "from scratch, for weights pretrained on ImageNet",
            "the wider the cut, the larger the stitch, whose parameters count in the gzip size",
        ),
        ("500 test images", "half width: sizes in bits compare as ratios alone", "the default fit alone"),
        tables=(TRIALS, COMPLEXITIES),
    ),
    Study(
        "oxford-6.1",
        "Stitching for robustness",
        "Can a wide stitch make one network of two that uses both sides of MNIST-CIFAR?",
        "section 6.1, figure 7",
        plans.plan_robust,
        claims.claim_robust(),
        (
            *(
                Panel(
                    "bars",
                    column,
                    f"accuracy, {whose} [%]",
                    tuple(
                        (words, Where(fit_data=PAIRED, score_data=scored, receiver_cut=WIDE))
                        for words, scored in (("both sides", PAIRED), ("MNIST side", UPPER), ("CIFAR side", LOWER))
                    ),
                )
                for column, whose in (
                    ("stitched", "stitched"),
                    ("sender_score", "digits alone"),
                    ("receiver_score", "pictures alone"),
                )
            ),
        ),
        ("one linear map from pool2 to the flattened vector",),
        (_WHOLE,),
        weak=("stacked cnn *",),
    ),
    Study(
        "oxford-6.2",
        "Specialists stitched into an expert",
        "Do two specialists, stitched, know one combination better than a network fine-tuned as long on it?",
        "section 6.2",
        specialists.plan_specialists,
        specialists.claim_specialists(),
        (
            Panel(
                "lines",
                "stitched",
                "accuracy of the stitched expert [%]",
                (
                    ("the marked combination", Where(score=specialists.MARKED, fit="any")),
                    ("all combinations", Where(fit="any")),
                ),
                along="sender_cut",
            ),
            *(
                Panel(
                    "bars",
                    "accuracy",
                    f"accuracy by itself, {words} [%]",
                    tuple((name, Where(table=NETWORKS, sender=name, measure=of)) for name in specialists.BY_THEMSELVES),
                )
                for of, words in ((specialists.MARKED, "the marked combination"), ("accuracy", "all combinations"))
            ),
        ),
        (
            "the paper has no experiment: task, networks and lengths are ours",
            "as long is as many steps on the same images; a step of stitching is the cheaper one",
        ),
        tables=(TRIALS, NETWORKS),
    ),
    Study(
        "oxford-control",
        "What the stitch learns alone",
        "Can a stitch between two untrained networks learn the traits by itself?",
        "section 3",
        plans.plan_controlled,
        claims.claim_controlled(),
        tuple(
            Panel(
                "lines",
                "stitched",
                "accuracy of untrained networks [%]",
                tuple(
                    (words, replace(of, control="untrained both", receiver_cut=NARROW, fit=fit))
                    for words, of in (
                        ("cars", Where(score=ON_CARS, sender="cnn")),
                        ("trucks", Where(score=ON_TRUCKS, sender="cnn")),
                        ("all ten classes", Where(sender="cnn")),
                        ("MNIST side", Where(score_data=UPPER)),
                        ("CIFAR side", Where(score_data=LOWER)),
                    )
                ),
                along="sender_cut",
                level=claims.CHANCE,
                title=title,
            )
            for title, fit in (("default fit", "default"), ("the paper's recipe, 87,500 steps", "published"))
        ),
        (
            "networks are initialised anew; stitches are fitted on the true labels of all classes",
            "the lesser of the accuracy on a class and on all classes counts",
        ),
        (f"{_WHOLE}, except for the wide stitch of MNIST-CIFAR",),
    ),
    ALONE,
)

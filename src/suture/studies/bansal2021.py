"""bansal2021 (stub while the framework is tried)."""

from suture.controls import DEFAULT
from suture.recipes import bansal2021 as PUBLISHED
from suture.studies.claims import Claim
from suture.studies.making import curves
from suture.studies.quantities import Where, Worst
from suture.studies.scale import Scale
from suture.studies.study import Panel, Part, Study


def _connected(scale: Scale) -> list[Part]:
    data = scale.data("cifar10")
    published = scale.published(PUBLISHED)
    return [*curves(scale, "resnet18", "resnet18", data, controls=DEFAULT, published=published)]


STUDIES = (
    Study(
        "bansal-2A",
        "Stitching connected",
        "Are networks of one kind, trained from other seeds, worth as much to each other as to themselves?",
        "section 4.1, figure 2A",
        _connected,
        (
            Claim(
                "the penalty is at most 3 pp at every cut: ResNet-18",
                "section 4.1",
                Worst("penalty", Where(sender="resnet18")),
                "≤",
                3.0,
                paper="at most 3 pp",
            ),
        ),
        (Panel("lines", "penalty", "penalty [pp]", (("default fit", Where()),), level=3.0),),
    ),
)

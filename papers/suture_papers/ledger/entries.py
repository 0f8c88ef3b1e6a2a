"""Every entry of the ledger, paper by paper.

Not among them are networks that a study makes of these by fine-tuning: bansal-8's, and the specialists of oxford-6.2.
"""

from collections.abc import Iterator
from typing import Any

from suture.data.changes import Variant
from suture_papers.ledger.entry import Entry
from suture_papers.training import Parts
from suture_papers.variants import (
    OBJECTS_ANIMALS,
    Colour,
    ColourOnly,
    Correlated,
    Decorrelated,
    Digit,
    Grey3,
    Half,
    RandomLabels,
    Relabelled,
    Subset,
    Without,
)

_R18 = "zoo:resnet,blocks=(2,2,2,2),width=16"
_SMITH = "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7"
_VGG = "zoo:vgg19,width=16,hidden=256,pool=1"
_MLP = "zoo:mlp,width=64,depth=9,inputs=3072"
_CNN = "zoo:cnn,dense=4"
_STACKED = "zoo:cnn,dense=3,image=(64,32)"
#: From 10 on, since networks of lower seeds were seen before the readings of the papers were chosen.
_TWO, _THREE, _FIVE = (10, 11), (10, 11, 12), (10, 11, 12, 13, 14)
_QUARTER = "quarter width, 16 epochs of a faster recipe for 164"
_WIDE = "half width, 10 epochs of a faster recipe for 164"
_FEW = "quarter width, 3,000 steps of a faster recipe for 64,000"
_BATCH = "batch 32 at 4 times the rate for batch 4, at most 20 epochs"
_DEEP = "batch 32 at 10 times the rate for batch 4, at most 20 epochs"
_SCRATCH = "smith2024's network at half width, 4 epochs, from scratch for ImageNet weights"


def _on_cifar10(
    name: str, source: str, recipe: str, seeds: tuple[int, ...], ids: str, deviation: str = "", **more: Any
) -> Entry:
    """Describe a network of CIFAR-10; ``ids`` are the experiments that ask for it, with spaces between."""
    return Entry(name, source, "cifar10", recipe, seeds, tuple(ids.split()), deviation=deviation, **more)


def _resnets() -> Iterator[Entry]:
    ids = (
        "bansal-2A bansal-2A-random bansal-5 bansal-4 bansal-probe bansal-invariance bansal-fold bansal-3A bansal-3C "
        "bansal-6 bansal-7 bansal-8 hernandez-2 hernandez-2d hernandez-3 hernandez-copy"
    )
    yield _on_cifar10("resnet18", _R18, "fast", _FIVE, ids, _QUARTER)
    widths = "zoo:resnet,blocks=(2,2,2,2),width="
    yield _on_cifar10("resnet18 w0.25", f"{widths}4", "fast", _FIVE, "bansal-3C", _QUARTER)
    yield _on_cifar10("resnet18 w0.5", f"{widths}8", "fast", _FIVE, "bansal-2A", _QUARTER)
    yield _on_cifar10("resnet18 w2", f"{widths}32", "fast", _THREE, "bansal-2A", _WIDE, epochs=10)
    source = "zoo:resnet,blocks=(1,1,1,1),width=16"
    ids = "hernandez-2 hernandez-2d hernandez-triangle hernandez-random-both hernandez-random-receiver "
    ids += "hernandez-random-sender"
    yield _on_cifar10("resnet(1,1,1,1)", source, "fast", _FIVE, ids, _QUARTER)
    source, said = "zoo:resnet,blocks=(3,4,6,3),width=16", "quarter width, 4 epochs of a faster recipe for 164"
    yield _on_cifar10("resnet34", source, "fast", (10,), "hernandez-3", said, epochs=4)


def _others() -> Iterator[Entry]:
    said = "half width, 16 epochs of a faster recipe for 205"
    yield _on_cifar10("myrtle", "zoo:myrtle,width=32", "fast", _FIVE, "bansal-2A bansal-fold", said)
    said = "half width, 4 epochs of a faster recipe for 164"
    yield _on_cifar10("resnet164", "zoo:resnet164,width=8", "fast", _TWO, "bansal-2A", said, epochs=4)
    said = "64 wide for 768, 4 heads for 12, half depth, on CIFAR-10 for CIFAR-5m"
    yield _on_cifar10("vit", "zoo:vit,dim=64,depth=6,heads=4", "fast-vit", _TWO, "bansal-2A", said)
    said = "quarter width, 16 epochs, SGD for LARS; its last layer is random"
    yield _on_cifar10("simclr", _R18, "simclr-small", (10,), "bansal-6", said)
    trained = Parts(trained=("fc",))
    yield _on_cifar10("simclr classifier", _R18, "linear", (10,), "bansal-6", start="simclr", parts=trained)


def _histories() -> Iterator[Entry]:
    """Describe networks that have seen less, or something else."""

    def in_steps(name: str, ids: str, *variants: Variant, source: str = _R18, said: str = _FEW) -> Entry:
        return _on_cifar10(f"resnet18 {name}", source, "fast-steps", _FIVE, ids, said, variants=variants)

    for which in (0, 1):
        yield in_steps(f"half {which}", "bansal-2A-disjoint", Half(which))
    yield in_steps("objects-animals", "bansal-3A", OBJECTS_ANIMALS, source=f"{_R18},classes=2")
    yield in_steps("10 % random labels", "bansal-3A", RandomLabels(0.1))
    yield in_steps("50 % random labels", "bansal-3A", RandomLabels(0.5))
    nothing = f"{_FEW}, in which it learns nothing"
    yield in_steps("100 % random labels", "bansal-3A", RandomLabels(1.0), said=nothing)
    yield in_steps("5000 samples", "bansal-2C bansal-7 bansal-9", Subset(5_000))
    yield in_steps("10000 samples", "bansal-2C", Subset(10_000))
    yield in_steps("25000 samples", "bansal-2C bansal-7", Subset(25_000))
    yield in_steps("same steps", "bansal-3A bansal-9")
    for until, epoch in ((4, "40"), (8, "80"), (None, "160")):
        ids, said = "bansal-3B bansal-7", "quarter width, a tenth of the steps"
        yield _on_cifar10(f"resnet18 epoch {epoch}", _R18, "stepped", _FIVE, ids, said, until=until)


def _frozen() -> Iterator[Entry]:
    """Describe the networks of bansal-9, with the layers that the paper chose.

    Its layers are numbered as in its authors' code: 0 and 1 are the stem, 2 to 9 the blocks, 10 is pooling, 11 is fc.
    Appendix B.4 freezes {0, 1} and {8, 9, 11}, section 6 the first three and the last three that have weights.
    """
    late = ("layer4.0", "layer4.1", "fc")
    for name, early in (("B.4", ("conv1", "bn1")), ("section 6", ("conv1", "bn1", "layer1.0"))):
        kept: dict[str, Any] = {"parts": Parts(taken=early + late, frozen=early + late)}
        kept["start"] = "resnet18 5000 samples"
        yield _on_cifar10(f"resnet18 freeze {name}", _R18, "fast-steps", _FIVE, "bansal-9", _FEW, **kept)


def _oxford_cifar() -> Iterator[Entry]:
    relabelled, without = (Relabelled("automobile", "cat"),), (Without("truck"),)
    mnist, unasked = "zoo:cnn,image=(28,28),channels=1", "the paper trains it, no row asks"
    yield Entry("mnist cnn", mnist, "mnist", "fast-mnist", _THREE, ("oxford2025",), (), unasked)
    for name, variants in (("mlp", ()), ("mlp cars as cats", relabelled)):
        yield _on_cifar10(name, _MLP, "oxford-small-mlp", _FIVE, "oxford-4.1-mlp", _DEEP, variants=variants)
    ids = "oxford-4.1-cnn oxford-4.3a"
    later = (15, 16, 17, 18, 19)  # of other weights than the network that learns trucks in one layer starts from
    yield _on_cifar10("cnn", _CNN, "oxford-small", _FIVE, ids, _BATCH)
    yield _on_cifar10("cnn cars as cats", _CNN, "oxford-small", _FIVE, ids.split()[0], _BATCH, variants=relabelled)
    yield _on_cifar10("cnn no trucks A", _CNN, "oxford-small", _FIVE, "oxford-4.2", _BATCH, variants=without)
    ids = "oxford-4.2 oxford-4.3a"
    yield _on_cifar10("cnn no trucks B", _CNN, "oxford-small", later, ids, _BATCH, variants=without)
    said = "batch 128 at 100 times the rate for batch 4, at most 20 epochs: at lower rates fc1 alone learns no trucks"
    for name, layers in (*((one, (one,)) for one in ("fc1", "fc2", "fc3")), ("convolutions", ("conv1", "conv2"))):
        kept: dict[str, Any] = {"start": "cnn no trucks A", "parts": Parts(trained=layers)}
        yield _on_cifar10(f"cnn trucks in {name}", _CNN, "oxford-small-retrained", _FIVE, "oxford-4.2", said, **kept)


def _oxford_mnist() -> Iterator[Entry]:
    ids = ("oxford-4.3b", "oxford-4.4-fig5", "oxford-6.1")
    loose = (Decorrelated(),)
    yield Entry("stacked cnn digits", _STACKED, "mnist+cifar10", "oxford-small", _FIVE, ids, (), _BATCH)
    yield Entry("stacked cnn pictures", _STACKED, "mnist+cifar10", "oxford-small", _FIVE, ids, loose, _BATCH)
    grey = (Grey3(),)
    for name in ("simple", "complex"):
        yield Entry(f"resnet18 {name}", _SMITH, "mnist", f"{name}-small", _FIVE, ("oxford-4.4-fig6",), grey, _SCRATCH)


def _smith() -> Iterator[Entry]:
    colours = {"correlated": Correlated(), "digit": Digit(), "colour": Colour(), "colour-only": ColourOnly()}
    variants: dict[str, Variant] = {**colours, "grey": Grey3()}
    ids = ("smith-4.1", "smith-1c", "smith-C1", "smith-C5", "smith-4.2", "smith-4.2-noise")
    also = ((Correlated(),),)
    for name, variant in variants.items():
        yield Entry(f"resnet18 {name}", _SMITH, "mnist", "smith2024", _FIVE, ids, (variant,), "half width", also=also)
    for name, variant in colours.items():
        recipe, share = ("smith-vgg-slow", "tenth") if name == "colour-only" else ("smith-vgg-small", "third")
        said = f"quarter width, narrow classifier, 4 epochs for 50, a {share} of the rate"
        yield Entry(f"vgg19 {name}", _VGG, "mnist", recipe, _THREE, ("smith-C2",), (variant,), said)


LEDGER: tuple[Entry, ...] = (
    *_resnets(),
    *_others(),
    *_histories(),
    *_frozen(),
    *_oxford_cifar(),
    *_oxford_mnist(),
    *_smith(),
)
"""Every base network of the studies at small scale."""

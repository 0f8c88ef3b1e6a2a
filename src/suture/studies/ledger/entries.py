"""Every entry of the ledger, paper by paper.

Not among them are networks that a study makes of these by fine-tuning: bansal-8's, and the specialists of oxford-6.2.
"""

from suture.data.variants import (
    Colour,
    ColourOnly,
    Correlated,
    Decorrelated,
    Digit,
    Grey3,
    Half,
    ObjectsAnimals,
    RandomLabels,
    Relabelled,
    Subset,
    Variant,
    Without,
)
from suture.studies.ledger.entry import Entry
from suture.zoo.training import Parts

_R18 = "zoo:resnet,blocks=(2,2,2,2),width=16"
_SMITH = "zoo:resnet,blocks=(2,2,2,2),width=32,stem=7x7"
_VGG = "zoo:vgg19,width=16,hidden=256,pool=1"
_VGG_RATES = {"colour-only": "tenth"}
_MLP = "zoo:mlp,width=64,depth=9,inputs=3072"
_CNN = "zoo:cnn,dense=4"
_MNIST = "zoo:cnn,image=(28,28),channels=1"
_STACKED = "zoo:cnn,dense=3,image=(64,32)"
_THREE, _FIVE = (0, 1, 2), (0, 1, 2, 3, 4)
_QUARTER = "quarter width, 16 epochs of a faster recipe for 164"
_BATCH = "batch 32 at 4 times the rate for batch 4, at most 20 epochs"
_FEW = "quarter width, 3,000 steps of a faster recipe for 64,000"


def _resnets() -> list[Entry]:
    pairs = (
        "bansal-2A",
        "bansal-2A-random",
        "bansal-5",
        "bansal-4",
        "bansal-probe",
        "bansal-invariance",
        "bansal-fold",
    )
    also = ("bansal-3A", "bansal-3C", "bansal-6", "hernandez-2", "hernandez-2d", "hernandez-3", "hernandez-copy")
    random = ("hernandez-random-both", "hernandez-random-receiver", "hernandez-random-sender")
    made = [Entry("resnet18", _R18, "cifar10", "fast", _THREE, (*pairs, *also, *random), deviation=_QUARTER)]
    wide = "half width, 10 epochs of a faster recipe for 164"
    for width, name, seeds, ids, epochs, deviation in (
        (4, "w0.25", _THREE, ("bansal-3C", "bansal-7"), None, _QUARTER),
        (8, "w0.5", (0, 1), ("bansal-2A",), None, _QUARTER),
        (32, "w2", (0, 1), ("bansal-2A", "bansal-3C", "bansal-7"), 10, wide),
    ):
        source = f"zoo:resnet,blocks=(2,2,2,2),width={width}"
        made.append(Entry(f"resnet18 {name}", source, "cifar10", "fast", seeds, ids, (), deviation, epochs=epochs))
    for blocks in ((1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 1, 1)):
        shape = ",".join(map(str, blocks))
        source = f"zoo:resnet,blocks=({shape}),width=16"
        made.append(
            Entry(
                f"resnet({shape})",
                source,
                "cifar10",
                "fast",
                (0, 1),
                ("hernandez-2", "hernandez-2d"),
                deviation=f"four of the 16 shapes, {_QUARTER}",
            )
        )
    source = "zoo:resnet,blocks=(3,4,6,3),width=16"
    deviation = "quarter width, 4 epochs of a faster recipe for 164"
    made.append(Entry("resnet34", source, "cifar10", "fast", (0,), ("hernandez-3",), (), deviation, epochs=4))
    return made


def _others() -> list[Entry]:
    return [
        Entry(
            "myrtle",
            "zoo:myrtle,width=32",
            "cifar10",
            "fast",
            (0, 1),
            ("bansal-2A", "bansal-fold"),
            deviation="half width, 16 epochs of a faster recipe for 205",
        ),
        Entry(
            "resnet164",
            "zoo:resnet164,width=8",
            "cifar10",
            "fast",
            (0, 1),
            ("bansal-2A", "bansal-8"),
            deviation="half width, 4 epochs of a faster recipe for 164",
            epochs=4,
        ),
        Entry(
            "vit",
            "zoo:vit,dim=64,depth=6,heads=4",
            "cifar10",
            "fast-vit",
            (0, 1),
            ("bansal-2A",),
            deviation="64 wide for 768, 4 heads for 12, half depth, on CIFAR-10 for CIFAR-5m",
        ),
        Entry(
            "simclr",
            _R18,
            "cifar10",
            "simclr-small",
            (0,),
            ("bansal-6",),
            deviation="quarter width, 16 epochs, SGD for LARS; its last layer is random",
        ),
        Entry(
            "simclr classifier",
            _R18,
            "cifar10",
            "linear",
            (0,),
            ("bansal-6",),
            start="simclr",
            parts=Parts(trained=("fc",)),
        ),
    ]


def _histories() -> list[Entry]:
    """Networks that have seen less, or something else."""
    made = []
    for which in (0, 1):
        ids = ("bansal-2A-disjoint",)
        made.append(Entry(f"resnet18 half {which}", _R18, "cifar10", "fast-steps", _THREE, ids, (Half(which),), _FEW))
    variants: list[tuple[str, Variant]] = [("objects-animals", ObjectsAnimals())]
    variants += [(f"{100 * p:.0f} % random labels", RandomLabels(p)) for p in (0.1, 0.5, 1.0)]
    for name, variant in variants:
        source = f"{_R18},classes=2" if name == "objects-animals" else _R18
        few = f"{_FEW}, in which it learns nothing" if variant == RandomLabels(1.0) else _FEW
        made.append(Entry(f"resnet18 {name}", source, "cifar10", "fast-steps", _THREE, ("bansal-3A",), (variant,), few))
    for n, samples in (
        (5_000, ("bansal-2C", "bansal-7", "bansal-9")),
        (10_000, ("bansal-2C",)),
        (25_000, ("bansal-2C", "bansal-7")),
    ):
        made.append(Entry(f"resnet18 {n} samples", _R18, "cifar10", "fast-steps", _THREE, samples, (Subset(n),), _FEW))
    standard = ("bansal-3A", "bansal-9")
    made.append(Entry("resnet18 same steps", _R18, "cifar10", "fast-steps", _THREE, standard, (), _FEW))
    for until, name in ((4, "40"), (8, "80"), (None, "160")):
        times = ("bansal-3B", "bansal-7")
        deviation = "quarter width, a tenth of the steps"
        made.append(
            Entry(f"resnet18 epoch {name}", _R18, "cifar10", "stepped", _THREE, times, (), deviation, until=until)
        )
    return made


def _frozen() -> list[Entry]:
    """bansal-9, as the paper chose.

    Its layers are numbered as in its authors' code: 0 and 1 are the stem, 2 to 9 the blocks, 10 is pooling, 11 is fc.
    Appendix B.4 freezes {0, 1} and {8, 9, 11}, section 6 the first three and the last three that have weights.
    """
    made = []
    late = ("layer4.0", "layer4.1", "fc")
    for name, early in (("B.4", ("conv1", "bn1")), ("section 6", ("conv1", "bn1", "layer1.0"))):
        made.append(
            Entry(
                f"resnet18 freeze {name}",
                _R18,
                "cifar10",
                "fast-steps",
                _THREE,
                ("bansal-9",),
                deviation=_FEW,
                start="resnet18 5000 samples",
                parts=Parts(taken=early + late, frozen=early + late),
            )
        )
    return made


def _oxford_cifar() -> list[Entry]:
    relabelled, without = (Relabelled("automobile", "cat"),), (Without("truck"),)
    deep = "batch 32 at 10 times the rate for batch 4, at most 20 epochs"
    made: list[Entry] = [
        Entry(
            "mnist cnn", _MNIST, "mnist", "fast-mnist", _THREE, ("oxford2025",), (), "the paper trains it, no row asks"
        ),
        Entry("mlp", _MLP, "cifar10", "oxford-small-mlp", _FIVE, ("oxford-4.1-mlp",), (), deep),
        Entry("mlp cars as cats", _MLP, "cifar10", "oxford-small-mlp", _FIVE, ("oxford-4.1-mlp",), relabelled, deep),
        Entry("cnn", _CNN, "cifar10", "oxford-small", _FIVE, ("oxford-4.1-cnn", "oxford-4.3a"), (), _BATCH),
        Entry("cnn cars as cats", _CNN, "cifar10", "oxford-small", _FIVE, ("oxford-4.1-cnn",), relabelled, _BATCH),
        Entry("cnn no trucks A", _CNN, "cifar10", "oxford-small", _FIVE, ("oxford-4.2",), without, _BATCH),
        Entry(
            "cnn no trucks B",
            _CNN,
            "cifar10",
            "oxford-small",
            (5, 6, 7, 8, 9),
            ("oxford-4.2", "oxford-4.3a"),
            without,
            _BATCH,
        ),
    ]
    for layer in ("fc1", "fc2", "fc3"):
        parts = Parts(trained=(layer,))
        made.append(
            Entry(
                f"cnn trucks in {layer}",
                _CNN,
                "cifar10",
                "oxford-small",
                (0,) if layer == "fc1" else _FIVE,
                ("oxford-4.2",),
                (),
                f"{_BATCH}; fc1 alone does not learn trucks in them" if layer == "fc1" else _BATCH,
                "cnn no trucks A",
                parts,
            )
        )
    return made


def _oxford_mnist() -> list[Entry]:
    made: list[Entry] = []
    ids = ("oxford-4.3b", "oxford-4.4-fig5", "oxford-6.1")
    made.append(Entry("stacked cnn digits", _STACKED, "mnist+cifar10", "oxford-small", _FIVE, ids, (), _BATCH))
    made.append(
        Entry("stacked cnn pictures", _STACKED, "mnist+cifar10", "oxford-small", _FIVE, ids, (Decorrelated(),), _BATCH)
    )
    scratch = "smith2024's network at half width, 4 epochs, from scratch for ImageNet weights"
    for name in ("simple", "complex"):
        made.append(
            Entry(
                f"resnet18 {name}", _SMITH, "mnist", f"{name}-small", _THREE, ("oxford-4.4-fig6",), (Grey3(),), scratch
            )
        )
    return made


def _smith() -> list[Entry]:
    colours = {"correlated": Correlated(), "digit": Digit(), "colour": Colour(), "colour-only": ColourOnly()}
    variants: dict[str, Variant] = {**colours, "grey": Grey3()}
    ids = ("smith-4.1", "smith-1c", "smith-C1", "smith-C5", "smith-4.2", "smith-4.2-noise")
    correlated = ((Correlated(),),)
    made: list[Entry] = [
        Entry(f"resnet18 {name}", _SMITH, "mnist", "smith2024", _FIVE, ids, (variant,), "half width", also=correlated)
        for name, variant in variants.items()
    ]
    return made + [
        Entry(
            f"vgg19 {name}",
            _VGG,
            "mnist",
            "smith-vgg-slow" if name in _VGG_RATES else "smith-vgg-small",
            _THREE,
            ("smith-C2",),
            (variant,),
            f"quarter width, narrow classifier, 4 epochs for 50, a {_VGG_RATES.get(name, 'third')} of the rate",
        )
        for name, variant in colours.items()
    ]


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

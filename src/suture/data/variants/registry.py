"""The variants by name."""

from suture.data.variants.base import Variant
from suture.data.variants.colours import Colour, ColourOnly, Correlated, Digit, Grey3
from suture.data.variants.labels import ObjectsAnimals, RandomLabels, Relabelled, SuperClasses
from suture.data.variants.regions import Covered
from suture.data.variants.stacked import BlackedOut, Decorrelated
from suture.data.variants.subsets import Half, Subset, Without

VARIANTS: dict[str, type[Variant]] = {
    "subset": Subset,
    "half": Half,
    "without": Without,
    "relabelled": Relabelled,
    "random-labels": RandomLabels,
    "super-classes": SuperClasses,
    "objects-animals": ObjectsAnimals,
    "grey3": Grey3,
    "correlated": Correlated,
    "digit": Digit,
    "colour": Colour,
    "colour-only": ColourOnly,
    "decorrelated": Decorrelated,
    "blacked-out": BlackedOut,
    "covered": Covered,
}
"""Every variant, by its name on the command line."""

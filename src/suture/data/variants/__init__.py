"""The papers' data sets, each made from another by small changes with exact definitions."""

from suture.data.variants.base import Variant, vary
from suture.data.variants.colours import BASE_COLOURS, Colour, ColourOnly, Correlated, Digit, Grey3
from suture.data.variants.labels import OBJECTS_ANIMALS, ObjectsAnimals, RandomLabels, Relabelled, SuperClasses
from suture.data.variants.regions import Covered
from suture.data.variants.registry import VARIANTS
from suture.data.variants.stacked import BlackedOut, Decorrelated, stack
from suture.data.variants.subsets import Half, Subset, Without

__all__ = [
    "BASE_COLOURS",
    "OBJECTS_ANIMALS",
    "VARIANTS",
    "BlackedOut",
    "Colour",
    "ColourOnly",
    "Correlated",
    "Covered",
    "Decorrelated",
    "Digit",
    "Grey3",
    "Half",
    "ObjectsAnimals",
    "RandomLabels",
    "Relabelled",
    "Subset",
    "SuperClasses",
    "Variant",
    "Without",
    "stack",
    "vary",
]

"""Plain Python numbers that training may have made, and that decide a model's output.

A float that a module holds as an attribute (``self.gain = 1.7342918``, or a list of such) is in no state dict, and no
initialiser resets it. Most are settings: an ``eps``, a slope, a head's ``dim ** -0.5``. So two questions are asked.

*Is it written?* A setting stands in the file of the module's class, or is typed in at most six digits (three if it went
through float32), or is computed from whole numbers: a ratio of two up to 4,096, its square or fourth root or its
logarithm, a multiple of π or its root. Of floats that a training leaves, fewer than one in 1,000 look so by chance.

*Does it decide?* Changed by a little and by much, it changes the output for the example. A learning rate, the best loss
so far or the rate of dropped paths does not.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from suture.core.network.freezing import OWN, SETTLED, held_beside, may_hold, undo_writes
from suture.core.network.segments import have_same_bits

LARGEST = 4096  #: whole numbers that a setting is computed from, as widths and numbers of heads are
WHOLE = 2**20  #: below which a float without a fraction is written
_ROUNDING = 1e-13  #: relative, of a setting that was computed in a few operations
_CHANGES: tuple[Callable[[complex], complex], ...] = (
    lambda x: 1.5 * x + 0.1,
    lambda x: -x,
    lambda x: 1000.0 * x,
    lambda x: 0.0,
)


@dataclass(frozen=True, eq=False)
class PlainNumbers:
    """The floats that one attribute holds: where it stands, its name, and the class of its owner.

    Without a ``space`` they cannot be exchanged, because they are in an object's slots or items.
    """

    space: MutableMapping[str, Any] | None = field(repr=False)
    name: str
    kind: type
    value: object = field(repr=False)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The floats, in the order in which the attribute holds them."""
        found = [complex(leaf) for leaf in tree_leaves(self.value) if _is_float(leaf)]
        return tuple(part for one in found for part in (one.real, one.imag))

    def are_written(self) -> bool:
        """Return whether each of the numbers is typed, or computed from whole numbers."""
        unknown = [number for number in self.numbers if not is_written(number)]
        return not unknown or {abs(number) for number in unknown} <= _typed_beside(self.kind)

    def decide(self, model: nn.Module, probe: Tensor) -> bool:
        """Return whether the model's output for the probe is another, or none, with other numbers in their place.

        Numbers that cannot be exchanged count.
        """
        if self.space is None:
            return True
        with torch.no_grad(), undo_writes(model):
            wanted = model(probe.clone())
        missing = object()
        before = self.space.get(self.name, missing)
        for change in _CHANGES:
            self.space[self.name] = tree_map(
                lambda leaf, change=change: change(_plain(leaf)) if _is_float(leaf) else leaf, self.value
            )
            try:
                with torch.no_grad(), undo_writes(model):
                    if not have_same_bits(model(probe.clone()), wanted):
                        return True
            except Exception:  # it does not run with such a number
                return True
            finally:
                if before is missing:  # an attribute of the class
                    del self.space[self.name]
                else:
                    self.space[self.name] = before
        return False


def plain_numbers(model: nn.Module) -> dict[str, list[PlainNumbers]]:
    """Return the floats that a model's modules hold in attributes, by the attribute's place in the model.

    An attribute is a float or a complex number, of Python's or of numpy's; lists, tuples and dictionaries of such; or
    an object that holds such, at any depth: in attributes, slots or items, or as arguments that it binds. A class's own
    attributes count with its modules'.
    """
    seen: set[int] = set()
    found: dict[str, list[PlainNumbers]] = {}
    for path, module in model.named_modules():
        for place, one in _look(path, module, _inherited(module) | vars(module), seen):
            found.setdefault(place, []).append(one)
    return found


def _inherited(module: nn.Module) -> dict[str, object]:
    """Return the attributes that a module has of its classes, except PyTorch's own."""
    kinds = [kind for kind in type(module).__mro__ if kind.__module__.partition(".")[0] not in SETTLED]
    return {name: value for kind in reversed(kinds) for name, value in vars(kind).items() if not callable(value)}


def _look(path: str, owner: object, held: Mapping[str, object], seen: set[int]) -> Iterator[tuple[str, PlainNumbers]]:
    for name, value in held.items():
        if name in OWN or isinstance(value, property | classmethod | staticmethod):
            continue
        place = f"{path}.{name}" if path else name
        leaves = tree_leaves(value)
        if any(map(_is_float, leaves)):
            yield place, PlainNumbers(vars(owner), name, type(owner), value)
        yield from _within(place, leaves, seen)


def _within(place: str, leaves: Iterable[object], seen: set[int]) -> Iterator[tuple[str, PlainNumbers]]:
    for leaf in leaves:
        if may_hold(leaf) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from _look(place, leaf, getattr(leaf, "__dict__", {}), seen)
            beside = held_beside(leaf)
            if any(map(_is_float, beside)):
                yield place, PlainNumbers(None, "", type(leaf), beside)
            yield from _within(place, beside, seen)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, float | complex | np.inexact)


@functools.cache
def _typed_beside(kind: type) -> frozenset[float]:
    """Return the numbers with a fraction that stand in the files of a class and of those that it derives from."""
    texts = []
    for one in kind.__mro__:
        try:
            texts.append(inspect.getsource(inspect.getmodule(one) or one))
        except (OSError, TypeError):  # builtins, and what was typed into an interpreter
            continue
    found = (match for text in texts for match in re.findall(r"\d*\.\d+(?:[eE][-+]?\d+)?", text))
    return frozenset(map(float, found))


def _plain(leaf: Any) -> complex:
    plain: complex = leaf.item() if isinstance(leaf, np.generic) else leaf
    return plain


def is_written(number: float) -> bool:
    """Return whether a number is typed in few digits, or computed from whole numbers, and so a setting."""
    if not math.isfinite(number) or number == float(f"{number:.6g}"):
        return True
    single = np.float32(number)
    if number == float(single) and abs(single - np.float32(f"{number:.3g}")) <= 2 * np.spacing(abs(single)):
        return True  # as torch.linspace and item() give it
    if abs(number) < WHOLE and number == int(number):
        return True
    size = abs(number)
    computed = [size, size**2, size**4, size / math.pi, size**2 * math.pi]
    computed += [math.exp(number)] if size < math.log(WHOLE) else []
    return any(_is_ratio(one) for one in computed)


def _is_ratio(number: float) -> bool:
    """Return whether a number is a ratio of two whole numbers up to ``LARGEST``, but for rounding."""
    if not 0.5 / LARGEST < number < 2 * LARGEST:
        return False
    ratio = Fraction(number).limit_denominator(LARGEST)
    return ratio.numerator <= LARGEST and abs(ratio - Fraction(number)) <= _ROUNDING * number

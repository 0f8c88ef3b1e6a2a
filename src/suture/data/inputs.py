"""Several inputs of a sample, such as token ids with their mask and positions, as one tensor.

Models of text take a mapping: ``input_ids``, ``attention_mask``, ``position_ids`` … Everything here is fed one tensor
with the sample first, so the entries of a mapping become columns of one, ``(n, columns, T)`` int64, with an ``Input``
for each, which has its name. The first is the *content*, the token ids. A mapping of one entry is that tensor.

A sequence that is shorter than others is padded to their length, with ``PADDING`` in place of token ids, and 0 in
the mask. What a model is fed there is its own padding. Positions that a mask leaves out count nowhere: in no closed
form, loss, score or index.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.mapped import empty, fill

CONTENT = ("input_ids", "pixel_values")  #: of a mapping, the content is the first that it has; else its first entry
MASK = "attention_mask"  #: the name of the mask of sequences padded here
NESTED = "."  #: between the names of a mapping and of an entry of it
SIDES = ("token_type_ids", MASK, "position_ids")  #: columns of a dataset that go with its token ids
TARGETS = ("labels", "label", "targets", "target")  #: entries of a mapping that are not inputs
PADDING = -1  #: in place of token ids

_SIDES = ("mask", "position", "type", "segment")
_OTHER_MASKS = ("special", "global", "head")  #: which leave no position out: special_tokens_mask, global_attention_mask


@keyed_as("Input")
@dataclass(frozen=True)
class Input:
    """One of several inputs: its name, and the type in which a model receives it."""

    name: str
    dtype: torch.dtype = torch.int64

    @property
    def is_side(self) -> bool:
        """Whether it describes the places or kinds of tokens, never their content: a mask, positions, token types."""
        return any(word in self.name for word in _SIDES)

    @property
    def is_mask(self) -> bool:
        """Whether it says which positions count, whatever the model calls it: ``attention_mask``, ``input_mask`` …"""
        return "mask" in self.name and not any(word in self.name for word in _OTHER_MASKS)

    def counts(self, column: Tensor) -> Tensor:
        """Return the positions that count: where a mask is not 0, or is 0 if it is of padding, as torch's are."""
        is_of_padding = "pad" in self.name and "mask" in self.name
        return (column == 0) if is_of_padding else (column != 0)


Inputs = tuple[Input, ...]


def join_inputs(given: "Tensor | Mapping[str, Any]") -> tuple[Tensor, Inputs]:
    """Join a mapping into one tensor, ``(n, columns, T)`` int64, and describe its columns; a tensor stays as it is.

    Entries that are targets are left out, and those of a mapping inside it are called ``outer.inner``. Raises
    ``DataError`` for several that are not integers ``(n, T)``, all alike.
    """
    if not isinstance(given, Mapping):
        return given, ()
    entries = {name: value for name, value in _flat(given).items() if name not in TARGETS}
    if not entries:
        raise DataError("the inputs are an empty mapping; give tensors by the names by which the model takes them")
    known = (name for of in CONTENT for name in entries if name.rpartition(NESTED)[2] == of)
    content = next(known, next(iter(entries)))
    names = [content, *sorted(name for name in entries if name != content)]
    if len(names) == 1:
        return entries[content], ()
    columns = []
    for name in names:
        value = entries[name]
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        if len(shape) != 2 or shape != entries[content].shape or bool((value != value.long()).any()):
            got = f"{value.dtype} {shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise DataError(
                f"of several inputs each must be integers (n, T), all of one shape, and {name!r} is {got}; leave it "
                "out or pad it (a mask is 1 and 0), or give the part of the model that reads one tensor"
            )
        columns.append(value.long())
    return torch.stack(columns, 1), tuple(Input(name, entries[name].dtype) for name in names)


def _flat(given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the entries of a mapping and of those inside it, by their names from outside in."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        found |= _flat(value, f"{before}{name}{NESTED}") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def nest(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the mapping, with mappings inside it, that has these entries by their names from outside in."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(NESTED)
        place = found
        for one in outer:
            place = place.setdefault(one, {})
        place[last] = value
    return found


def says_nothing(one: Input, column: Tensor) -> bool:
    """Return whether a column carries no information: a mask of no position, or token types that are all the first."""
    return bool(one.counts(column).all()) if one.is_mask else "type" in one.name and not bool(column.any())


def part_inputs(joined: Tensor, inputs: Inputs) -> "Tensor | dict[str, Tensor]":
    """Split a joined tensor into its mapping again; a tensor that was not joined stays as it is."""
    if not inputs:
        return joined
    return {one.name: joined.select(1, i).to(one.dtype) for i, one in enumerate(inputs)}


def content_of(joined: Tensor) -> Tensor:
    """Return the token ids, ``(n, T)``, of a tensor that may have more columns."""
    return joined.select(1, 0) if joined.ndim == 3 else joined


def counted(joined: Tensor, inputs: Inputs) -> Tensor | None:
    """Return which positions count, bool ``(n, T)``; ``None`` if all do."""
    masks = [one.counts(joined.select(1, i)) for i, one in enumerate(inputs) if one.is_mask]
    there = torch.stack(masks).all(0) if masks else None
    return None if there is None or bool(there.all()) else there


def fill_up(flat: Mapping[str, Tensor], lengths: Tensor, longest: int = 0) -> dict[str, Tensor]:
    """Return sequences as tensors ``(n, T)`` by name, the content first, padded behind and masked.

    ``flat`` has the numbers of all sequences one after another, ``lengths`` how many each has. ``T`` is at least
    ``longest``; sequences that all have this length already need no mask.
    """
    length = max(int(lengths.max()), longest)
    there = torch.arange(length) < lengths[:, None]
    found = {}
    for i, (name, numbers) in enumerate(flat.items()):
        absent = PADDING if i == 0 else int(not Input(name).counts(torch.ones(1)).item())
        found[name] = fill(empty((len(lengths), length), torch.int64), [torch.full((1, 1), absent).expand(there.shape)])
        found[name][there] = numbers.long()
    if not bool(there.all()) and not any(Input(name).is_mask for name in found):
        found[MASK] = there.long()
    return found


def lengthen(joined: Tensor, inputs: Inputs, longest: int, named: str = CONTENT[0]) -> tuple[Tensor, Inputs]:
    """Return token ids padded to a length, with a mask."""
    parted = part_inputs(joined, inputs)
    columns = parted if isinstance(parted, dict) else {named: parted, MASK: torch.ones_like(parted)}
    lengths = torch.full((len(joined),), joined.shape[-1])
    return join_inputs(fill_up({name: column.flatten() for name, column in columns.items()}, lengths, longest))

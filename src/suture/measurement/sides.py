"""The two sides of a comparison: layers by name, here of arrays that a user brings; ``network_sides`` has networks'.

An array is a layer, a row a sample. Nothing here knows of networks, so that comparing two arrays need not wait for
whatever cuts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from suture.common.devices import CPU, find_device, free_memory
from suture.common.errors import DataError
from suture.common.sizes import physical_memory
from suture.common.validation import check_kind
from suture.measurement.indices import Index, Layer, SamplesAs
from suture.measurement.indices.base import MOST, comparable, positions

Array: TypeAlias = NDArray[Any] | Tensor
#: One array ``(n, …)``, or several by name.
Arrays: TypeAlias = Array | Mapping[str, Array]

#: Tokens that do not count: their places, or a mask that is true for them, bool ``(tokens,)`` or ``(n, tokens)``.
Ignored: TypeAlias = Sequence[int] | Array | None

FILES = (".npy", ".npz", ".safetensors")  #: the files that arrays are read from
KEPT = 0.2  #: of the memory, for what indices have in common; less than activations of networks leave
_KINDS: Any = np.ndarray | Tensor | Mapping
_REMEDY = "an array or tensor (n, features), or a mapping from names to such"


@dataclass(frozen=True, eq=False)
class NamedLayers:
    """One side of a comparison: its name, and its layers, each with its name and its depth in (0, 1].

    ``images`` is the number of samples, before positions are told apart.
    """

    name: str
    cuts: Sequence[str]
    depths: Sequence[float]
    layers: Sequence[Layer]
    images: int


def check_sizes(
    methods: Sequence[Index],
    images: int,
    shapes: tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]],
    samples_as: SamplesAs,
) -> None:
    """Raise ``DataError`` if an index cannot compare layers, given by name with their shapes without the batch."""
    sides = [[*of.items()] for of in shapes]
    rows, columns = ([*of.values()] for of in shapes)
    for down, across, size in comparable(rows, columns, samples_as):
        for side, chosen in zip(sides, (down, across), strict=True):
            for name, shape in (side[i] for i in chosen):
                pooled = shape if size is None else (shape[0], *size)
                count = positions(pooled, samples_as)
                for method in methods:
                    method.check(name, images * count, prod(pooled) // count)


def have_room(samples: Sequence[int], methods: Sequence[Index], devices: set[torch.device]) -> bool:
    """Return whether there is room to keep intermediate results that several indices share."""
    kept = sum(16 * n**2 for n in samples if n <= MOST)
    memory = physical_memory() if CPU in devices else min(map(free_memory, devices))
    return len(methods) > 1 and kept <= KEPT * memory


def are_arrays(x: object, y: object) -> TypeGuard[Arrays]:
    """Return whether arrays are given. Raises ``DataError`` if only one side is of arrays."""
    given = [isinstance(one, _KINDS) for one in (x, y)]
    if any(given):
        for name, one in (("a", x), ("b", y)):
            check_kind(name, one, _KINDS, f"{_REMEDY}, as is the other")
    return any(given)


def sides_of_arrays(
    x: Any,
    y: Any,
    *,
    samples: int | None,
    samples_as: SamplesAs,
    ignore: Ignored,
    permutations: int,
    methods: Sequence[Index],
    device: str | None,
    names: tuple[str, str] | None,
) -> tuple[NamedLayers, NamedLayers]:
    """Read arrays, or mappings from names to arrays, as the two sides of a comparison.

    Raises ``DataError`` naming the array that cannot be compared; see ``compare``.
    """
    names = ("x", "y") if names is None else names
    check_kind("names", names, tuple | list, "two different names, such as ('x', 'y')")
    if len(names) != 2 or len(set(names)) < 2 or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"names={names!r}: give two different names, such as ('x', 'y')")
    read: dict[int, tuple[str, Tensor]] = {}  # by the array, so that what is compared with itself is prepared once
    sides = []  # of copies, which keep the arrays: no other can take the place of one, and with it its ``id``
    for side, given in zip(names, (x, y), strict=True):
        arrays = dict(given) if isinstance(given, Mapping) else {side: given}  # a copy: some mappings read files
        if not arrays:
            raise DataError(f"{side} has no arrays; give at least one")
        for key, array in arrays.items():
            check_kind(f"a name of {side}", key, str, "names of layers as text")
            name = f"{side}[{key!r}]" if isinstance(given, Mapping) else side
            check_kind(name, array, np.ndarray | Tensor, "an array or tensor (n, features)")
            if id(array) not in read:
                read[id(array)] = (name, _read_array(name, array))
        sides.append(arrays)
    (first, x), *others = read.values()
    for other, z in others:
        if len(z) != len(x):
            raise DataError(f"{other} has {len(z):,} rows and {first} {len(x):,}: give the same samples, in order")
    where = x.device if device is None else find_device(device)
    layers = _layers(dict(read.values()), samples, samples_as, ignore, permutations)
    keeps = have_room([layer.samples for layer in layers], methods, {where})
    made = {
        key: Layer(layer.name, layer.activations.to(where), samples_as, {} if keeps else None)
        for key, layer in zip(read, layers, strict=True)
    }
    images = len(x[:samples])
    ours, theirs = (
        NamedLayers(
            name,
            [*arrays],
            [(place + 1) / len(arrays) for place in range(len(arrays))],
            [made[id(array)] for array in arrays.values()],
            images,
        )
        for name, arrays in zip(names, sides, strict=True)
    )
    named = [{layer.name: layer.activations.shape[1:] for layer in side.layers} for side in (ours, theirs)]
    check_sizes(methods, layers[0].images, (named[0], named[1]), samples_as)
    return ours, theirs


def _read_array(name: str, array: Array) -> Tensor:
    x = _to_tensor(name, array)
    if x.ndim < 2 or len(x) < 2:
        reshaped = f"{name}.reshape(-1, 1) for one feature" if x.ndim == 1 else "two rows or more"
        raise DataError(f"{name} is {tuple(x.shape)}, and arrays are (n, features): give {reshaped}")
    return x


def _layers(
    arrays: Mapping[str, Tensor], samples: int | None, samples_as: SamplesAs, ignore: Ignored, permutations: int
) -> list[Layer]:
    """Return the first samples of arrays as layers, without the tokens that do not count."""
    if ignore is not None and not any(x.ndim == 3 for x in arrays.values()):
        raise DataError("ignore= names tokens, and no array has any: those are (n, tokens, features); leave it out")
    layers = []
    for name, whole in arrays.items():
        x = whole[:samples]
        if ignore is not None and x.ndim == 3:
            there = read_ignored(ignore, len(whole), x.shape[1])[: len(x)]
            if samples_as == "pixels" and is_uneven(there):
                check_uneven([other for other, z in arrays.items() if z.ndim != 3], permutations)
            x = leave_out(name, x, there, samples_as)
        layers.append(Layer(name, x, samples_as))
        matrix = layers[-1].matrix()
        if bool((matrix == matrix[0]).all()):
            raise DataError(f"{name} is constant: all its samples are the same, so no index compares it; leave it out")
    return layers


def read_ignored(ignore: Ignored, samples: int, tokens: int) -> Tensor:
    """Return which tokens count, bool ``(samples, tokens)``.

    Raises ``DataError`` for a mask of another shape, for places that are not there, and if none is left of a sample.
    """
    given = torch.as_tensor(np.asarray(ignore) if not isinstance(ignore, Tensor) else ignore)
    there = torch.ones(samples, tokens, dtype=torch.bool)
    if given.dtype == torch.bool and given.shape in ((tokens,), (samples, tokens)):
        there &= ~given.cpu()
    elif given.ndim == 1 and not given.is_floating_point() and given.dtype != torch.bool and len(given):
        if not bool(((given >= -tokens) & (given < tokens)).all()):
            raise DataError(f"ignore={given.tolist()} names a token that is not among {tokens}; give places from 0 on")
        there[:, given.cpu()] = False
    else:
        raise DataError(
            f"ignore= is {given.dtype} of shape {tuple(given.shape)}: give places of tokens, such as [0], or a mask "
            f"that is true for those that do not count, bool ({tokens},) or ({samples}, {tokens})"
        )
    if not bool(there.any(1).all()):
        raise DataError("ignore= leaves no token of a sample; leave some in")
    return there


def is_uneven(there: Tensor) -> bool:
    """Return whether samples keep different tokens, ``there`` being bool ``(n, tokens)``."""
    return not bool((there == there[0]).all())


def check_uneven(without: Sequence[str], permutations: int) -> None:
    """Raise ``DataError`` if tokens cannot be samples where samples keep different ones: ``without`` has no tokens."""
    if permutations:
        raise DataError(
            "samples_as='pixels' has tokens of texts of unequal length, which cannot change places as chance would "
            "have it: give permutations=0, or compare one vector a text, samples_as='mean' or 'last'"
        )
    if without:
        raise DataError(f"{without[0]} has no tokens, which samples_as='pixels' is to compare; leave it out")


def leave_out(name: str, x: Tensor, there: Tensor, samples_as: SamplesAs) -> Tensor:
    """Return tokens ``(n, tokens, features)`` without those that do not count, each a sample if they are pixels.

    Raises ``DataError`` if samples keep different tokens, and are compared whole or by the first or last.
    """
    if not is_uneven(there):
        return x[:, there[0].to(x.device)]
    if samples_as == "pixels":
        return x[there.to(x.device)].unsqueeze(1)
    if samples_as == "mean":
        weights = there.to(x.device)[..., None]
        return (x * weights).sum(1) / weights.sum(1)
    raise DataError(
        f"ignore= leaves other tokens of each sample in {name}, which can be compared by samples_as='pixels' or 'mean'"
    )


def _to_tensor(name: str, array: Array) -> Tensor:
    """Return a tensor of floats; whole numbers and truth values become float64."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "fiub":
            raise DataError(f"{name} is of {array.dtype}: give an array of real numbers, such as {name}.astype(float)")
        if isinstance(array, np.ma.MaskedArray) and array.mask.any():
            raise DataError(f"{name} has masked values: leave out the samples or the features that have them")
        floats = array.dtype.kind == "f" and array.dtype.itemsize <= 8
        dtype = array.dtype.newbyteorder("=") if floats else np.dtype(float)
        return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
    if array.layout is not torch.strided:
        raise DataError(f"{name} is a sparse tensor: give {name}.to_dense()")
    if array.is_complex() or array.is_quantized:
        raise DataError(f"{name} is of {array.dtype}: give a tensor of real numbers")
    return array.detach() if array.is_floating_point() else array.double()


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a ``.npy``, ``.npz`` or ``.safetensors`` file by name; nothing is unpickled.

    The array of a ``.npy`` is called as its file is. Raises ``DataError`` if the file is not there or cannot be read.
    """
    if path.suffix not in FILES:
        raise DataError(f"{path} has the suffix {path.suffix!r}: give a file that ends in {', '.join(FILES)}")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        found = np.load(path, allow_pickle=False)  # one array or several, whatever the file is called
        if isinstance(found, np.ndarray):
            return {path.stem: found}
        with found:
            return {name: found[name] for name in found.files}
    except (OSError, EOFError, ValueError, BadZipFile, ZlibError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, ValueError) and "Object arrays" in why:
            why = "it holds Python objects, which may run code when they are loaded; save numbers: np.save(path, x)"
        elif isinstance(error, ValueError) and "allow_pickle" in why:  # so numpy calls whatever it does not know
            why = "it is not a file of NumPy's; save numbers: np.save(path, x)"
        raise DataError(f"cannot read {path}: {why}") from error

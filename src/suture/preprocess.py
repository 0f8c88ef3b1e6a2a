"""How a network wants its images.

Raw images are ``(N, C, H, W)``: ``uint8`` in 0..255 or floats in [0, 1]. A network owns the way from there to its
first layer (resizing, channels, normalisation), so that two networks are fed the same raw images, each in its way.
"""

import functools
import hashlib
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from suture.errors import DataError

Preprocessing = Callable[[Tensor], Tensor]


def as_floats(images: Tensor) -> Tensor:
    """Bring raw images to floats in [0, 1]; floats pass unchanged.

    Raises ``DataError`` for any other type, whose range nobody can know.
    """
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise DataError(f"raw images are uint8 in 0..255 or floats in [0, 1], not {images.dtype}; convert them")
    return images.float() / 255


@dataclass(frozen=True)
class Preprocess:
    """Resizing, channels and normalisation, in this order, on float images in [0, 1].

    ``size`` is the side in pixels to resize to (bilinear, antialiased; ``None`` keeps it), ``channels`` is 3 to repeat
    a grey image (``None`` keeps it), ``mean`` and ``std`` are per channel in [0, 1] (one value serves all channels).
    """

    size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if any(s <= 0 for s in self.std):
            raise DataError(f"preprocessing with std={self.std}: every standard deviation must be above 0")

    def __call__(self, images: Tensor) -> Tensor:
        """Map float images ``(N, C, H, W)`` to what the first layer takes.

        Raises ``DataError`` when the images' channels do not suit ``channels``, ``mean`` or ``std``.
        """
        if self.size is not None and images.shape[-2:] != (self.size, self.size):
            images = torch.nn.functional.interpolate(
                images, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        if self.channels is not None and images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise DataError(
                    f"preprocessing cannot turn {images.shape[1]} channels into {self.channels}; only a grey image "
                    "(1 channel) can be repeated"
                )
            images = images.expand(-1, self.channels, -1, -1)
        return (images - self._per_channel(self.mean, images)) / self._per_channel(self.std, images)

    def _per_channel(self, values: tuple[float, ...], images: Tensor) -> Tensor:
        if len(values) not in (1, images.shape[1]):
            raise DataError(
                f"preprocessing normalises {len(values)} channels, but the images have {images.shape[1]}; give one "
                f"value for all, one for each, or channels={len(values)} to repeat a grey image"
            )
        return torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)


class Prepare(nn.Module):
    """From raw images ``(n, C, H, W)`` to the model's input, which has the floating type ``dtype`` if one is given."""

    def __init__(self, preprocess: Preprocessing, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.preprocess, self.dtype = preprocess, dtype

    def forward(self, images: Tensor) -> Tensor:
        """Prepare a copy of the images where the preprocessing might write to them."""
        floats = as_floats(images)
        if floats is images and not isinstance(self.preprocess, Preprocess):
            floats = images.clone()
        prepared = self.preprocess(floats)
        return prepared if self.dtype is None else prepared.to(self.dtype)


def describe(thing: object) -> str:
    """What identifies a function, an object or a value in any process: code, settings and tensors, but no address."""
    return repr(_essence(thing, ()))


def _essence(thing: object, inside: tuple[int, ...]) -> object:
    if id(thing) in inside:
        return "itself"
    inside = (*inside, id(thing))
    match thing:
        case Tensor():
            data = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return tuple(thing.shape), str(thing.dtype), hashlib.sha256(data).hexdigest()
        case np.ndarray():
            return thing.shape, str(thing.dtype), hashlib.sha256(bytes(thing.tobytes())).hexdigest()
        case Mapping():
            return [(_essence(key, inside), _essence(value, inside)) for key, value in thing.items()]
        case list() | tuple():
            return [_essence(item, inside) for item in thing]
        case set() | frozenset():
            return sorted(repr(_essence(item, inside)) for item in thing)
        case types.CodeType():
            return thing.co_code, thing.co_names, thing.co_varnames, _essence(thing.co_consts, inside)
        case types.FunctionType():
            return _essence(_parts(thing), inside)
        case types.MethodType():
            return _essence((thing.__func__, thing.__self__), inside)
        case functools.partial():
            return _essence((thing.func, thing.args, thing.keywords), inside)
        case type() | types.BuiltinFunctionType() | types.ModuleType():
            return getattr(thing, "__module__", ""), getattr(thing, "__qualname__", thing.__name__)
    if not hasattr(thing, "__dict__"):
        return re.sub(" at 0x[0-9a-f]+", "", repr(thing))
    does = getattr(type(thing), "forward" if isinstance(thing, nn.Module) else "__call__", None)
    return type(thing).__qualname__, _essence(getattr(does, "__code__", None), inside), _essence(vars(thing), inside)


def _parts(function: types.FunctionType) -> tuple[object, ...]:
    """All that decides what a function returns; functions of other modules count by their name."""
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    known = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    for name, value in known.items():
        if isinstance(value, types.FunctionType) and value.__module__ != function.__module__:
            known[name] = f"{value.__module__}.{value.__qualname__}"
    return function.__code__, function.__defaults__, function.__kwdefaults__, captured, known

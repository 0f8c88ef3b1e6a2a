"""Activations at cuts, computed once and reused by every trial.

The activations at a cut are computed from those at the nearest earlier cut that is still cached, so a sender's layers
run once however many cuts are measured. Images go through in chunks of fixed size and order, so the bits do not depend
on which cuts were asked for before. A tensor that a caller changed in place is not given to other callers.

Activations of a network on a GPU stay there, up to ``SHARE`` of its memory; the others lie in this machine's memory or
in mapped files, as those of the processor do, and go to the GPU a batch at a time.

Activations larger than ``RECOMPUTED`` are kept nowhere: a fit gets a stand-in, ``Recomputed``, that runs the prefix for
the rows it is asked for. So large cuts are the first ones, whose prefix costs little beside the suffix that a fit runs
too. Which activations these are depends on their size alone, so that the bits of a trial do not depend on the machine.

Fewer samples go through at once if a network's tensors are so large that ``CHUNK`` of them would fill the memory
(``rows_at_once``): a language model gives a number for each word of its vocabulary at each token, 100 MB for a text of
512 tokens. Outputs larger than ``PART`` are kept nowhere either: they are scored as they come (``output_parts``).

If there are many images, each segment of a network between two cuts runs in its fused version (``core.fused``, in
float32), if that agrees with the segment itself on the first chunk, to rounding.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from math import prod
from typing import cast

import torch
from torch import Tensor

from suture.common.constants import CHUNK, CUTS_VERSION
from suture.common.devices import CPU, free_memory
from suture.common.errors import FitError
from suture.common.mapped import pieces, take
from suture.common.phases import say_phase
from suture.common.seeds import digest
from suture.common.sizes import available_memory, in_words, physical_memory
from suture.core.activations.disk_cache import ActivationFolder, NoRoomError
from suture.core.fused import Fused, fuse_segments
from suture.core.network.batches import check_rows
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.network.segments import Frozen
from suture.data import Samples
from suture.data.noise import ClusteredNoise

PASS = 2**28  #: bytes of the widest tensor of a pass; with 256 images ResNet-50 has as many on CIFAR-10
PART = 2**27  #: bytes of outputs that are scored at once, or those of a single pass
PAGE = 4096  #: bytes; what is smaller is not worth a file
SHARE = 0.5  #: of a GPU's memory that is free or holds activations; the fit needs the rest
RECOMPUTED = 12 * 2**30  #: bytes; the largest that ResNet-18 has on CIFAR-10 (45,000 images: 11.8 GB) are still kept
MANY = 1024  #: images from which on fused segments are worth being compared
ROUNDING = 1e-4  #: the root mean square of what a fused segment may be off by, relative to the segment's output


@dataclass(frozen=True, eq=False)
class Need:
    """Activations that will be asked for: of a network, at a cut, on samples.

    ``index`` is that of the cut, ``len(network.cuts) + 1`` for the output.
    """

    network: Network
    samples: Samples
    index: int

    @cached_property
    def key(self) -> str:
        """SHA-256 over everything that decides the activations, in hexadecimal."""
        images = self.samples.image_fingerprint
        return digest(CUTS_VERSION, self.network.fingerprint, self.network.device.type, images, self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the activations, one row per sample."""
        return (len(self.samples), *self.network.cuts.place(self.index).shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes, in the floating type of the network's parameters."""
        return prod(self.shape) * self.network.dtype.itemsize

    @property
    def is_recomputed(self) -> bool:
        """Whether they are too large to keep, if the caller can take them a few rows at a time."""
        return self.nbytes > RECOMPUTED

    @property
    def is_streamed(self) -> bool:
        """Whether they are outputs too large to be kept for their scores."""
        return self.index > len(self.network.cuts) and self.nbytes > PART

    @property
    def where(self) -> str:
        """Describe the activations in words: the network, the cut and the samples."""
        cut = self.network.cuts.place(self.index)
        place = "the output" if cut.is_output else f"'{cut.name}'"
        return f"of {self.network.name} at {place} on {self.samples.name}"


def rows_at_once(network: Network) -> int:
    """Return the number of samples that pass through a network at once: ``CHUNK``, or fewer if its tensors are large.

    It depends on shapes alone, never on the machine. Between two cuts of tokens ``(T, D)`` lie tensors of four times
    their width, and outputs are held twice while they are scored.
    """
    cuts = [(4 if len(cut.shape) == 2 else 1) * prod(cut.shape) for cut in network.cuts]
    widest = max(2 * prod(network.output_shape), *cuts, 1) * network.dtype.itemsize
    return max(1, min(CHUNK, PASS // widest))


@dataclass(frozen=True, eq=False)
class _Kept:
    """A tensor, and torch's count of changes in place when it was kept."""

    tensor: Tensor
    version: int


class Activations:
    """A cache of activations that drops the least recently used first.

    ``ram`` limits the cache in memory, in bytes; the tensors of a running trial come on top. With ``disk``, tensors of
    at least a page are kept in that folder instead, for all processes of the machine. Activations that fit on a GPU are
    kept there, where ``sharing`` processes share its memory. ``notes`` describe the tensors that the disk refused, and
    ``mapped`` holds the keys of the files that were read; the reader clears both.
    """

    def __init__(self, ram: int = 4 * 2**30, disk: ActivationFolder | None = None, sharing: int = 1) -> None:
        self.ram = ram
        self.sharing = sharing
        self.disk = disk
        self.notes: list[str] = []
        self.mapped: set[str] = set()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def at(self, network: Network | ClusteredNoise, cut: str | Cut, samples: Samples) -> Tensor:
        """Return the activations at a cut, ``(n, *cut.shape)``, in the network's own floating type.

        They are on the network's device if it has room, else on the CPU.

        Noise has no cuts, and is not kept, because drawing it is cheap. Raises ``FitError``, as ``get`` does.
        """
        if isinstance(network, ClusteredNoise):
            needed = 4 * len(samples) * prod(network.shape)
            _check_memory(needed, len(samples), f"of clustered noise on {samples.name}")
            with torch.inference_mode(False), torch.no_grad():
                return network.activations(samples)
        return self.get(Need(network, samples, network.cuts.find(cut).index))

    def rows(self, network: Network | ClusteredNoise, cut: str | Cut, samples: Samples) -> Tensor:
        """Return the activations as ``at`` does, to a caller that takes a few rows at a time.

        Activations too large to keep are computed row by row. The object returned then stands for a tensor: it has its
        shape, ``[rows]``, ``narrow``, ``split`` and ``to``.
        """
        if isinstance(network, Network):
            need = Need(network, samples, network.cuts.find(cut).index)
            if need.is_recomputed:
                return cast(Tensor, Recomputed(need))
        return self.at(network, cut, samples)

    def outputs(self, network: Network, samples: Samples) -> Tensor:
        """Return the network's own outputs, ``(n, outputs)`` on the CPU."""
        return self.get(Need(network, samples, len(network.cuts) + 1)).cpu()

    def output_parts(self, network: Network, samples: Samples) -> Iterable[Tensor]:
        """Return the network's own outputs in parts, ``(some, outputs)`` on the CPU, to be read once and in order.

        They are a single part if they are at most ``PART`` bytes; if not, they are computed as they are read.
        """
        need = Need(network, samples, len(network.cuts) + 1)
        return self._stream(need) if need.is_streamed else [self.outputs(network, samples)]

    def _stream(self, need: Need) -> Iterator[Tensor]:
        self._forget_changed()
        chunks = self._compute(need)
        while True:
            with torch.inference_mode(False), torch.no_grad():  # not around ``yield``, which would leave them switched
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def get(self, need: Need) -> Tensor:
        """Return the needed activations, one row per sample, as ``at`` does.

        Raises ``FitError`` naming it if it is not finite, or does not fit into memory, and ``FrozenError`` if it must
        be computed and the network's weights have changed.
        """
        with torch.inference_mode(False), torch.no_grad():
            self._forget_changed()
            if (kept := self._find(need)) is not None:
                self._kept.move_to_end(need.key)
                return kept
            if (device := need.network.device).type != "cpu" and need.nbytes <= self._room_on(device):
                self._drop_oldest(device, self._room_on(device) - need.nbytes)
                return self._get_in_memory(need, device)
            if self.disk is not None and PAGE <= need.nbytes <= min(self.disk.budget, physical_memory()):
                try:
                    found = self.disk.get(need.key, len(need.samples), partial(self._compute, need))
                    if found is not None:
                        self.mapped.add(need.key)
                        return found
                    return self._get_in_memory(need)
                except NoRoomError as refusal:
                    note = f"activations {need.where} ({in_words(need.nbytes)}) were not kept on disk: {refusal}"
                    self.notes += [] if note in self.notes else [note]
            return self._get_in_memory(need)

    def _find(self, need: Need) -> Tensor | None:
        kept = self._kept.get(need.key)
        return None if kept is None else kept.tensor

    def _get_in_memory(self, need: Need, device: torch.device = CPU) -> Tensor:
        if device == CPU:
            _check_memory(need.nbytes, len(need.samples), need.where)
        tensor, done = torch.empty(0), 0
        for chunk in self._compute(need, device):
            if not done:
                tensor = torch.empty(len(need.samples), *chunk.shape[1:], dtype=chunk.dtype, device=device)
            tensor[done : done + len(chunk)] = chunk
            done += len(chunk)
        self._kept[need.key] = _Kept(tensor, tensor._version)
        if device == CPU:
            self._drop_oldest(CPU, self.ram)
        return tensor

    def _room_on(self, device: torch.device) -> int:
        """Return the bytes that activations may take on a GPU, those included that are there."""
        return int(SHARE / self.sharing * (free_memory(device) + self._used_on(device)))

    def _used_on(self, device: torch.device) -> int:
        return sum(kept.tensor.nbytes for kept in self._kept.values() if kept.tensor.device == device)

    def _drop_oldest(self, device: torch.device, room: int) -> None:
        """Drop the least recently used tensors on a device until the rest fit into ``room``."""
        used = self._used_on(device)
        for key in [key for key, kept in self._kept.items() if kept.tensor.device == device]:
            if used <= room:
                return
            used -= self._kept.pop(key).tensor.nbytes

    def _compute(self, need: Need, device: torch.device = CPU) -> Iterator[Tensor]:
        """Compute the needed activations, a chunk at a time on a device; always the same bits."""
        network = need.network
        network.check_frozen()  # what is kept under a fingerprint must be that network's
        say_phase(f"activations {need.where}")
        rows = rows_at_once(network)
        network.look_at(need.samples.images, rows)
        start, source = self._nearest(network, need)
        run = _make_run(need, start, len(source) >= MANY)
        inputs = network.inputs_from(start, need.samples.images)
        beside = repeat(None) if inputs is None else pieces(inputs, rows)
        done = 0
        for given, read in zip(pieces(source, rows), beside, strict=False):
            out = run(given, read)
            if not is_finite(out):
                first = int((~out.flatten(1).isfinite().all(1)).nonzero()[0]) + done
                raise FitError(
                    f"the activations {need.where} are not finite, first for sample {first}; leave such samples out, "
                    "or find the layer where that begins"
                )
            done += len(out)
            yield out.to(device)

    def _nearest(self, network: Network, need: Need) -> tuple[int, Tensor]:
        """Return the nearest earlier cut with activations here, or being computed, and these; else 0 and the images.

        To wait for another process costs less than to compute the same beside it.
        """
        for index in range(need.index - 1, 0, -1):
            earlier = Need(network, need.samples, index)
            found = self._find(earlier)
            if found is None and self.disk is not None:
                found = self.disk.find(earlier.key, wait=True)
                self.mapped |= {earlier.key} if found is not None else set()
            if found is not None:
                return index, found
        return 0, need.samples.images

    def _forget_changed(self) -> None:
        for key in [key for key, kept in self._kept.items() if kept.tensor._version != kept.version]:
            del self._kept[key]


def _make_run(need: Need, start: int, many: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function that computes rows of the activations from those at an earlier place.

    It computes on the network's device. Its second argument holds the inputs of these samples, if any layer reads them.
    """
    network, part = need.network, need.network.part(start, need.index)
    fused = many and bool(part.segments)
    compute = _FusedPart(part, fuse_segments(network, start, need.index)) if fused else partial(run_stepwise, part)

    def run(given: Tensor, inputs: Tensor | None) -> Tensor:
        out = compute(given.to(network.device), None if inputs is None else inputs.to(network.device))
        check_rows(out, len(given), network.name)
        return out

    return run


class Recomputed:
    """A stand-in for activations that are kept nowhere: rows of them are computed from the images on request.

    ``rows`` are the samples that are left of all, by their numbers.
    """

    def __init__(self, need: Need) -> None:
        network, images = need.network, need.samples.images
        network.check_frozen()
        self.need, self.numbers, self.rows = need, torch.arange(len(images)), rows_at_once(network)
        network.look_at(images, self.rows)
        self._run = _make_run(need, 0, len(images) >= MANY)
        with torch.inference_mode(False), torch.no_grad():
            # fused segments are compared on these, whatever is asked for first
            first = self._run(images[: self.rows], None)
        self.dtype, self.device = first.dtype, first.device

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that this stands for."""
        return torch.Size((len(self), *self.need.shape[1:]))

    @property
    def ndim(self) -> int:
        """The number of dimensions of that tensor."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        chosen = self.numbers[rows if isinstance(rows, slice) else rows.cpu()]
        if len(chosen) > CHUNK:
            needed = len(chosen) * prod(self.shape[1:]) * self.dtype.itemsize
            _check_memory(needed, len(chosen), self.need.where)
        with torch.inference_mode(False), torch.no_grad():
            parts = [self._run(take(self.need.samples.images, some), None) for some in torch.split(chosen, self.rows)]
            if not all(map(is_finite, parts)):
                raise FitError(f"the activations {self.need.where} are not finite for some of {len(chosen)} samples")
            return torch.cat([part.to(self.device, self.dtype) for part in parts])

    def narrow(self, dim: int, start: int, length: int) -> "Recomputed":
        """Return the same for some of the rows; ``dim`` is 0."""
        made = copy(self)
        made.numbers = self.numbers.narrow(dim, start, length)
        return made

    def split(self, rows: int) -> "Iterator[Tensor]":
        """Yield so many rows at a time."""
        return (self[start : start + rows] for start in range(0, len(self), rows))

    def to(self, where: torch.device | torch.dtype) -> "Recomputed":
        """Return the same in another floating type, or on another device."""
        made = copy(self)
        if isinstance(where, torch.dtype):
            made.dtype = where
        else:
            made.device = torch.device(where)
        return made

    def cpu(self) -> "Recomputed":
        """Return the same on the processor."""
        return self.to(CPU)


def _check_memory(needed: int, samples: int, where: str) -> None:
    """Refuse activations that do not fit. Linux would overcommit memory, and later kill the process."""
    free = available_memory()
    if needed > free:
        raise FitError(
            f"out of memory: the activations {where} take {in_words(needed)}, and {in_words(free)} are free; "
            f"{free * samples // needed:,} samples of {samples:,} would fit: give fewer, or measure at a later cut"
        )


def run_stepwise(part: Frozen, x: Tensor, inputs: Tensor | None = None) -> Tensor:
    """Run part of a network with the images and the tensor at every cut laid out in one way.

    The bits of a product may depend on the layout of its operands; this way they do not depend on where a pass began.
    """
    x = _lay_out(x)
    if part.prepare is not None:
        x = inputs = _lay_out(part.prepare(x))
    for segment in part.segments:
        x = _lay_out(segment(x, inputs))
    return x


def is_finite(x: Tensor) -> bool:
    """Return whether all values are finite. A finite sum proves it at once; an infinite one may have overflowed."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def _lay_out(x: Tensor) -> Tensor:
    """Give the tensor the strides of a new one; ``contiguous`` lets dimensions of size 1 keep theirs."""
    return x.contiguous().view(-1).view(x.shape)


class _FusedPart:
    """Part of a network in fused segments, each of which agreed with the segment itself on the first chunk."""

    def __init__(self, part: Frozen, segments: list[Fused | None]) -> None:
        self.part, self.segments = part, segments
        self.is_compared = False

    def __call__(self, x: Tensor, inputs: Tensor | None = None) -> Tensor:
        """Map a chunk; the first chunk is used to compare the segments."""
        x = x if self.part.prepare is None else self.part.prepare(_lay_out(x))
        inputs = x if self.part.prepare is not None else inputs
        x = self._channels_last(x)
        for i, (own, fused) in enumerate(zip(self.part.segments, self.segments, strict=True)):
            out: Tensor | None = None
            if fused is not None:
                try:
                    out = fused(x)
                except Exception as error:  # a view in its body, perhaps, that channels which lie last do not allow
                    if "memory" in str(error).lower():
                        raise
            if not self.is_compared or out is None:
                exact = own(_lay_out(x), inputs)
                if out is None or not self._agree(out, exact):
                    out, self.segments[i] = exact, None
            x = self._channels_last(out)
        self.is_compared = True
        return _lay_out(x)

    @staticmethod
    def _channels_last(x: Tensor) -> Tensor:
        return _lay_out(x.movedim(1, -1)).movedim(-1, 1) if x.ndim == 4 else _lay_out(x)

    @staticmethod
    def _agree(out: Tensor, exact: Tensor) -> bool:
        if out.shape != exact.shape or out.dtype != exact.dtype:
            return False
        return bool((out - exact).square().mean().sqrt() <= ROUNDING * exact.square().mean().sqrt())

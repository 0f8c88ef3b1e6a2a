"""Activations at cuts, computed once and reused by every trial.

One pass is nested: the activations at a cut are computed from those at the nearest earlier cut that is still cached, so
a sender's layers run once however many cuts are measured. Images go through in chunks of fixed size and order, so the
bits do not depend on which cuts were asked for before. Nor do they on who used the activations before: what somebody
changed in place is not given to anybody else.

If there are many images, each segment of a network between two cuts runs in its fused version (``core.fused``, in
float32), if that agrees with the segment itself on the first chunk, to rounding.

Where memory runs out, a chunk goes through in halves, quarters, down to single images. This may change the last bits,
so such activations, and those computed from them, stay with the process that computed them, and a note says so.
"""

import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from suture.common.errors import FitError
from suture.common.seeds import digest
from suture.common.sizes import in_words
from suture.core.activations.disk_cache import ActivationFolder, OverBudgetError
from suture.core.activations.memory import NoRoomError, gathered, out_of_memory
from suture.core.fused import Fused, fuse_segments
from suture.core.network.cuts import Cut
from suture.core.network.network import Frozen, Network
from suture.data import Samples
from suture.data.noise import ClusteredNoise

CHUNK = 256  #: images per forward pass; fixed, since the bits of a result may depend on it
PAGE = 4096  #: bytes; what is smaller is not worth a file
VERSION = 2  #: of the code that computes activations; a change that may change a bit changes it
MANY = 1024  #: images from which on fused segments are worth being compared
ROUNDING = 1e-4  #: the root mean square of what a fused segment may be off by, relative to the segment's output


@dataclass(frozen=True, eq=False)
class Need:
    """Activations that somebody will ask for: of a network, at a cut, on samples.

    ``index`` is that of the cut, ``len(network.cuts) + 1`` for the output, 0 for noise.
    """

    network: Network | ClusteredNoise
    samples: Samples
    index: int

    @cached_property
    def key(self) -> str:
        """SHA-256 over everything that decides the activations, in hexadecimal."""
        if isinstance(self.network, ClusteredNoise):
            return digest(self.network.fingerprint, self.samples.fingerprint)
        images = self.samples.image_fingerprint
        return digest(VERSION, self.network.fingerprint, self.network.device.type, images, self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the activations, one row per sample."""
        match self.network:
            case ClusteredNoise():
                return (len(self.samples), *self.network.shape)
            case network if self.index > len(network.cuts):
                return (len(self.samples), network.outputs)
            case network:
                return (len(self.samples), *tuple(network.cuts)[self.index - 1].shape)

    @property
    def nbytes(self) -> int:
        """Their size, in bytes, in the floating type of the network's parameters."""
        dtype = torch.float32 if isinstance(self.network, ClusteredNoise) else self.network.dtype
        return prod(self.shape) * dtype.itemsize

    @property
    def where(self) -> str:
        """Of what, where and on which samples, in words."""
        match self.network:
            case ClusteredNoise():
                return f"of clustered noise on {self.samples.name}"
            case network if self.index > len(network.cuts):
                return f"of {network.name} at the output on {self.samples.name}"
            case network:
                return f"of {network.name} at '{network.cuts.names[self.index - 1]}' on {self.samples.name}"


@dataclass(frozen=True, eq=False)
class _Kept:
    """A tensor, torch's count of changes in place when it was kept, and what went wrong while it was computed."""

    tensor: Tensor
    version: int
    note: str = ""


class Activations:
    """A cache of activations, least recently used out first.

    ``ram`` bounds what is kept in memory, in bytes; what a running trial holds comes on top. With ``disk``, whatever
    has at least a page is kept in that folder instead, for all processes of the machine; who asks for it gets the pages
    of the file, which are theirs to change. ``notes`` say in words where memory or the disk did not suffice, and, each
    time it is asked for, what may differ in its last bits for that; whoever has read them may clear them.
    """

    def __init__(self, ram: int = 4 * 2**30, disk: ActivationFolder | None = None) -> None:
        self.ram = ram
        self.disk = disk
        self.notes: list[str] = []
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._supplied: dict[str, _Kept] = {}

    def at(self, network: Network | ClusteredNoise, cut: str | Cut, samples: Samples) -> Tensor:
        """Give the activations at a cut, ``(n, *cut.shape)`` on the CPU, in the network's own floating type.

        Noise has no cuts; in memory it is not kept, since drawing it is cheap. Raises ``FitError`` naming the cut where
        they are not finite.
        """
        index = 0 if isinstance(network, ClusteredNoise) else network.cuts.find(cut).index
        return self.get(Need(network, samples, index))

    def outputs(self, network: Network, samples: Samples) -> Tensor:
        """Give the network's own outputs, ``(n, outputs)`` on the CPU."""
        return self.get(Need(network, samples, len(network.cuts) + 1))

    def get(self, need: Need) -> Tensor:
        """Give what is needed, one row per sample, on the CPU.

        Raises ``FitError`` naming it where it is not finite, or where neither memory nor disk can hold it, and
        ``FrozenError`` where it must be computed and the network's weights have changed.
        """
        with torch.inference_mode(False), torch.no_grad():
            self._forget_changed()
            kept = self._find(need)
            if kept is not None:
                if need.key in self._kept:
                    self._kept.move_to_end(need.key)
                self._note(kept.note)
                return kept.tensor
            shared = self._shared(need)
            return shared if shared is not None else self._in_memory(need)

    def supply(self, need: Need, tensor: Tensor) -> None:
        """Take activations that were computed elsewhere; they are held, beyond the budget, for as long as this is."""
        self._supplied[need.key] = _Kept(tensor, tensor._version)

    def _find(self, need: Need) -> _Kept | None:
        return self._kept.get(need.key) or self._supplied.get(need.key)

    def _shared(self, need: Need) -> Tensor | None:
        """What is needed, from the disk; it is put there where it is not. ``None`` where it does not belong there."""
        if self.disk is None or not PAGE <= need.nbytes <= self.disk.budget:
            return None
        found = self.disk.find(need.key)
        if found is not None:
            return found
        try:
            with self.disk.alone(need.key):
                found = self.disk.find(need.key)
                return found if found is not None else self._written(need, self.disk)
        except OverBudgetError:
            return None
        except NoRoomError as refusal:
            self._note(f"activations {need.where} ({in_words(need.nbytes)}) were not kept on disk: {refusal}")
            return None

    def _written(self, need: Need, disk: ActivationFolder) -> Tensor:
        chunks = self._chunks(need)
        tensor = disk.write(need.key, chunks)
        if not chunks.exact:
            self._remember(need, tensor, chunks.note)
        return tensor

    def _in_memory(self, need: Need) -> Tensor:
        if isinstance(need.network, ClusteredNoise):
            return need.network.activations(need.samples)
        chunks = self._chunks(need)
        folder = self._folder()
        try:
            tensor, spilled = gathered(chunks, folder)
        except NoRoomError as error:
            raise FitError(
                f"out of memory: the activations {need.where} take {in_words(need.nbytes)}, and {error}; measure on "
                "fewer samples or at a later cut, or free some room"
            ) from error
        if spilled:
            self._note(f"out of memory: activations {need.where} ({in_words(need.nbytes)}) were put into {folder}")
        self._remember(need, tensor, chunks.note)
        return tensor

    def _folder(self) -> Path:
        """Where a tensor goes that memory cannot hold."""
        if self.disk is not None and self.disk.path.is_dir():
            return self.disk.path
        return Path(tempfile.gettempdir())

    def _chunks(self, need: Need) -> "_Pass | _Drawn":
        match need.network:
            case ClusteredNoise():
                return _Drawn(need.network.activations(need.samples))
            case network:
                network.check_frozen()  # what is kept under a fingerprint must be that network's
                start, source, note = self._nearest(network, need)
                part = _part(network, start, need.index)
                segments = fuse_segments(network, start, need.index) if len(source) >= MANY else None
                return _Pass(need, part, source, network.device, note, _FusedPart(part, segments) if segments else None)

    def _nearest(self, network: Network, need: Need) -> tuple[int, Tensor, str]:
        """The nearest earlier cut whose activations are here, or being computed, and these; else 0 and the images."""
        for index in range(need.index - 1, 0, -1):
            earlier = Need(network, need.samples, index)
            kept = self._find(earlier)
            if kept is not None:
                return index, kept.tensor, kept.note
            found = self.disk.awaited(earlier.key) if self.disk is not None else None
            if found is not None:
                return index, found, ""
        return 0, need.samples.images, ""

    def _remember(self, need: Need, tensor: Tensor, note: str) -> None:
        self._note(note)
        self._kept[need.key] = _Kept(tensor, tensor._version, note)
        used = sum(kept.tensor.nbytes for kept in self._kept.values())
        while used > self.ram:
            _, kept = self._kept.popitem(last=False)
            used -= kept.tensor.nbytes

    def _forget_changed(self) -> None:
        for cache in (self._kept, self._supplied):
            for key in [key for key, kept in cache.items() if kept.tensor._version != kept.version]:
                del cache[key]

    def _note(self, note: str) -> None:
        if note and note not in self.notes:
            self.notes.append(note)


def _part(network: Network, start: int, end: int) -> Frozen:
    last = end > len(network.cuts)
    cuts = list(network.cuts)
    if start == 0:
        return network.whole() if last else network.upto(cuts[end - 1])
    return network.after(cuts[start - 1]) if last else network.between(cuts[start - 1], cuts[end - 1])


def run_stepwise(part: Frozen, x: Tensor) -> Tensor:
    """Run part of a network with the images and the tensor at every cut laid out in one way.

    The bits of a product may depend on the layout of its operands; this way they do not depend on where a pass began.
    """
    x = _laid_out(x)
    x = x if part.prepare is None else _laid_out(part.prepare(x))
    for segment in part.segments:
        x = _laid_out(segment(x))
    return x


def is_finite(x: Tensor) -> bool:
    """Whether all values are; a sum that is tells it at once, and one that is not may only be too large."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def _laid_out(x: Tensor) -> Tensor:
    """The tensor with the strides of a new one; ``contiguous`` lets dimensions of size 1 keep theirs."""
    return x.contiguous().view(-1).view(x.shape)


def _channels_last(x: Tensor) -> Tensor:
    """Maps with their channels last in memory, whatever their strides; other tensors as new ones."""
    return _laid_out(x.movedim(1, -1)).movedim(-1, 1) if x.ndim == 4 else _laid_out(x)


class _FusedPart:
    """Part of a network in fused segments, each of which was seen to agree with the segment itself."""

    def __init__(self, part: Frozen, segments: list[Fused | None]) -> None:
        self.part, self.segments = part, segments
        self.compared = False

    def __call__(self, x: Tensor) -> Tensor:
        """Map a chunk; the first one is what the segments are compared on."""
        x = _channels_last(x if self.part.prepare is None else self.part.prepare(_laid_out(x)))
        for i, (own, fused) in enumerate(zip(self.part.segments, self.segments, strict=True)):
            out = None if fused is None else _tried(fused, x)
            if not self.compared or out is None:
                exact = own(_laid_out(x))
                if out is None or not _agree(out, exact):
                    out, self.segments[i] = exact, None
            x = _channels_last(out)
        self.compared = True
        return _laid_out(x)


def _tried(fused: Fused, x: Tensor) -> Tensor | None:
    """What a fused segment gives; ``None`` where its body cannot take this layout."""
    try:
        out: Tensor = fused(x)
    except Exception as error:
        if out_of_memory(error):
            raise
        return None
    return out


def _agree(out: Tensor, exact: Tensor) -> bool:
    if out.shape != exact.shape or out.dtype != exact.dtype:
        return False
    return bool((out - exact).square().mean().sqrt() <= ROUNDING * exact.square().mean().sqrt())


@dataclass(eq=False)
class _Pass:
    """What a part of a network makes of a tensor, a chunk at a time; always the same bits, unless there is a note."""

    need: Need
    part: Frozen
    source: Tensor
    device: torch.device
    note: str = ""
    cheaply: _FusedPart | None = None
    _size: int = field(default=CHUNK, init=False)

    @property
    def rows(self) -> int:
        return len(self.source)

    @property
    def exact(self) -> bool:
        return not self.note

    def __iter__(self) -> Iterator[Tensor]:
        for chunk in torch.split(self.source, CHUNK):
            done = 0
            while done < len(chunk):
                given = chunk[done : done + self._size]
                out = self._through(given)
                if out is None:
                    self._halve(len(given))
                    continue
                if not is_finite(out):
                    raise FitError(f"the activations {self.need.where} are not finite")
                yield out
                done += len(given)

    def _through(self, given: Tensor) -> Tensor | None:
        """The part's output for some rows, ``None`` where there is not enough memory for it."""
        try:
            given = given.to(self.device)
            return (run_stepwise(self.part, given) if self.cheaply is None else self.cheaply(given)).cpu()
        except Exception as error:
            if not out_of_memory(error):
                raise
            if len(given) == 1:
                raise FitError(
                    f"out of memory: the activations {self.need.where} cannot be computed, even one image at a time; "
                    "use smaller images, a smaller network, or a machine with more memory"
                ) from error
        return None

    def _halve(self, tried: int) -> None:
        self._size = (tried + 1) // 2
        self.note = f"out of memory: activations {self.need.where} were computed {self._size} images at a time"
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A tensor that is there already, a chunk at a time."""

    tensor: Tensor
    note: str = ""
    exact: bool = True

    @property
    def rows(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.tensor, CHUNK))

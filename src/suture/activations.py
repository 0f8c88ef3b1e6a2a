"""Activations at cuts, computed once and reused by every trial.

One pass is nested: the activations at a cut are computed from those at the nearest earlier cut that is still cached, so
a sender's layers run once however many cuts are measured. Images go through in chunks of fixed size and order, so the
bits do not depend on which cuts were asked for before. Nor do they on who used the activations before: what somebody
changed in place is computed anew.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from suture.cuts import Cut
from suture.data import Samples
from suture.errors import FitError
from suture.network import Frozen, Network
from suture.noise import ClusteredNoise

CHUNK = 256  #: images per forward pass; fixed, since the bits of a result may depend on it

_Key = tuple[str, str, int]  # network, images, index of the cut (one past the last is the output)


class Activations:
    """A cache of activations, least recently used out first.

    ``budget`` bounds what is kept, in bytes of RAM; what a running trial holds comes on top.
    """

    def __init__(self, budget: int = 4 * 2**30) -> None:
        self.budget = budget
        self._kept: OrderedDict[_Key, tuple[Tensor, int]] = OrderedDict()  # with torch's count of changes in place

    def at(self, network: Network | ClusteredNoise, cut: str | Cut, samples: Samples) -> Tensor:
        """Give the activations at a cut, ``(n, *cut.shape)`` on the CPU, in the network's own floating type.

        Noise has no cuts; it is drawn whenever it is asked for and never kept, since a trial asks once and drawing it
        is cheap. Raises ``FitError`` naming the cut where they are not finite.
        """
        if isinstance(network, ClusteredNoise):
            return network.activations(samples)
        return self._get(network, network.cuts.find(cut).index, samples)

    def outputs(self, network: Network, samples: Samples) -> Tensor:
        """Give the network's own outputs, ``(n, outputs)`` on the CPU."""
        return self._get(network, len(network.cuts) + 1, samples)

    def _get(self, network: Network, index: int, samples: Samples) -> Tensor:
        self._forget_changed()
        key = (network.fingerprint, samples.image_fingerprint, index)
        if key not in self._kept:
            computed = self._compute(network, index, samples)
            self._kept[key] = computed, computed._version
        self._kept.move_to_end(key)
        found, _ = self._kept[key]
        self._evict()
        return found

    def _compute(self, network: Network, index: int, samples: Samples) -> Tensor:
        ids = (network.fingerprint, samples.image_fingerprint)
        start = max((i for *kept, i in self._kept if tuple(kept) == ids and i < index), default=0)
        source = self._kept[(*ids, start)][0] if start else samples.images
        end = "the output" if index > len(network.cuts) else f"'{network.cuts.names[index - 1]}'"
        return _run(_part(network, start, index), source, network, f"at {end} on {samples.name}")

    def _forget_changed(self) -> None:
        for key, (tensor, version) in list(self._kept.items()):
            if tensor._version != version:
                del self._kept[key]

    def _evict(self) -> None:
        used = sum(tensor.nbytes for tensor, _ in self._kept.values())
        while used > self.budget:
            _, (tensor, _) = self._kept.popitem(last=False)
            used -= tensor.nbytes


def _part(network: Network, start: int, end: int) -> Frozen:
    last = end > len(network.cuts)
    cuts = list(network.cuts)
    if start == 0:
        return network.whole() if last else network.upto(cuts[end - 1])
    return network.after(cuts[start - 1]) if last else network.between(cuts[start - 1], cuts[end - 1])


def stepwise(part: Frozen, x: Tensor) -> Tensor:
    """Run part of a network with the images and the tensor at every cut laid out in one way.

    The bits of a product may depend on the layout of its operands; this way they do not depend on where a pass began.
    """
    x = _laid_out(x)
    x = x if part.prepare is None else _laid_out(part.prepare(x))
    for piece in part.pieces:
        x = _laid_out(piece(x))
    return x


def _laid_out(x: Tensor) -> Tensor:
    """The tensor with the strides of a new one; ``contiguous`` lets dimensions of size 1 keep theirs."""
    return x.contiguous().view(-1).view(x.shape)


def _run(part: Frozen, source: Tensor, network: Network, where: str) -> Tensor:
    out: Tensor | None = None
    with torch.inference_mode(False), torch.no_grad():
        for start in range(0, len(source), CHUNK):
            chunk = stepwise(part, source[start : start + CHUNK].to(network.device)).cpu()
            if not chunk.isfinite().all():
                raise FitError(f"the activations of {network.name} {where} are not finite")
            if out is None:
                out = torch.empty((len(source), *chunk.shape[1:]), dtype=chunk.dtype)
            out[start : start + len(chunk)] = chunk
    assert out is not None
    return out

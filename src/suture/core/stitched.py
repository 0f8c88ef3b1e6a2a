"""The definition: ``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, and only the stitch trains.

A ``Seam`` says which two networks, and where each is cut. Both are frozen: their parameters and buffers are the same,
bit for bit, before and after anything that is done to the stitch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from torch import Tensor, nn

from suture.core.folding import Fold, fold, fold_of
from suture.core.network.network import Network
from suture.core.saving import Saved, read, rebuild, write
from suture.core.seam import Seam
from suture.core.stitches import Stitch


class Stitched(nn.Module):
    """A stitched network: a plain module from raw images ``(n, C, H, W)`` to the receiver's outputs.

    ``train()`` reaches the stitch alone; prefix and suffix stay in evaluation mode. The stitch is given a contiguous
    tensor of the floating type of its own parameters, exactly as from a cache of activations while it is fitted.
    ``family`` is the kind of stitch it was built as, if that is known. Raises ``NetworkError`` if noise sends.
    """

    def __init__(self, seam: Seam, stitch: nn.Module, family: Stitch | None = None) -> None:
        super().__init__()
        (sender, sent), (receiver, received) = seam.sides
        self.seam, self.family = seam, family
        self.prefix = sender.upto(sent)
        self.stitch = stitch
        self.suffix = receiver.after(received)

    def forward(self, images: Tensor) -> Tensor:
        """Map raw images to the receiver's outputs ``(n, outputs)``."""
        out: Tensor = self.suffix(self.stitch(match_dtype(self.prefix(images), self.stitch).contiguous()))
        return out

    def folded(self) -> nn.Module:
        """Return the same network with its stitch folded into a neighbouring layer: a plain module without a stitch.

        In evaluation mode it agrees to rounding; it takes images of the size that the networks were made for, and its
        parameters require gradients. The frozen networks are not touched. ``can_fold`` says whether it exists and which
        layer takes the stitch. Raises ``FoldError``, with the reason, if it does not. bansal2021, section 4.
        """
        return fold(self.seam, self.stitch)

    def save(self, folder: str | Path, record: Mapping[str, object] | None = None) -> Path:
        """Write the stitch and what it joins to a folder, as safetensors and JSON; return the folder.

        The networks are not written but named by their fingerprints. ``record`` is whatever else is to be kept, as
        plain values. Raises ``OutputError`` if the folder cannot be written.
        """
        return write(folder, self.seam, self.stitch, self.family, record or {})

    @classmethod
    def load(
        cls,
        folder: str | Path,
        sender: Network | None = None,
        receiver: Network | None = None,
        stitch: Stitch | nn.Module | None = None,
    ) -> Self:
        """Load a stitched network that ``save`` wrote, with the two networks that it was made of.

        ``stitch`` is its family, or a module to be filled, if the family is not one of the library's. Nothing is
        unpickled. Raises ``CheckpointError`` if the folder is absent, damaged or of another kind, or a network or the
        stitch is not the one that was saved.
        """
        saved: Saved = read(folder)
        seam = saved.seam(sender, receiver)
        return cls(seam, *rebuild(saved, seam, stitch))


def match_dtype(activations: Tensor, stitch: nn.Module) -> Tensor:
    """Return activations in the floating type of the stitch's parameters; unchanged if it has none."""
    return activations.to(next((p.dtype for p in stitch.parameters()), activations.dtype))


def can_fold(stitched: Stitched) -> Fold:
    """Say whether the stitch, fitted or not, can be folded into a neighbour, into which layer, and if not why."""
    return fold_of(stitched.seam, stitched.stitch)

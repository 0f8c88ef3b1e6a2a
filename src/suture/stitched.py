"""The definition: ``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, and only the stitch trains."""

from torch import Tensor, nn

from suture.cuts import Cut
from suture.network import Network


class Stitched(nn.Module):
    """A stitched network: a plain module from raw images ``(n, C, H, W)`` to the receiver's outputs.

    ``train()`` reaches the stitch alone; prefix and suffix are frozen and stay in evaluation mode.
    """

    def __init__(
        self,
        sender: Network,
        receiver: Network,
        sender_cut: str | Cut,
        receiver_cut: str | Cut,
        stitch: nn.Module,
    ) -> None:
        super().__init__()
        self.prefix = sender.upto(sender_cut)
        self.stitch = stitch
        self.suffix = receiver.after(receiver_cut)

    def forward(self, images: Tensor) -> Tensor:
        """Map raw images to the receiver's outputs ``(n, outputs)``."""
        out: Tensor = self.suffix(self.stitch(self.prefix(images)))
        return out

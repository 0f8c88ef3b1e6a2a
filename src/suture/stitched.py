"""The definition: ``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, and only the stitch trains."""

from torch import Tensor, nn

from suture.cuts import Cut
from suture.network import Network


class Stitched(nn.Module):
    """A stitched network: a plain module from raw images ``(n, C, H, W)`` to the receiver's outputs.

    ``train()`` reaches the stitch alone; prefix and suffix are frozen and stay in evaluation mode. The stitch is given
    a contiguous tensor of the floating type of its own parameters, as it is from a store of activations.
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
        sent = self.prefix(images)
        own = next((p.dtype for p in self.stitch.parameters()), sent.dtype)
        out: Tensor = self.suffix(self.stitch(sent.to(own).contiguous()))
        return out

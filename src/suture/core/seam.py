"""Where two networks are joined: the sender up to one cut, the receiver after another, and room for a stitch between.

A sender may also be clustered noise, which has no layers and so no cut. A receiver may be left out but for its outputs:
its cut is then ``OUTPUT``, which lies behind all of its layers, and the stitch gives the outputs itself.
"""

from dataclasses import dataclass

from suture.common.errors import CutError, NetworkError
from suture.common.validation import check_kind
from suture.core.network.cuts import OUTPUT, Cut
from suture.core.network.network import Network
from suture.data.noise import ClusteredNoise

At = str | Cut | tuple[str | Cut, str | Cut]
"""How a user names a seam of two given networks: a cut of both, or ``(sender cut, receiver cut)``."""


@dataclass(frozen=True)
class Seam:
    """Two networks and where each is cut.

    The cuts are names; an alias, or a ``Cut``, is replaced by the name. That of clustered noise is empty. Raises
    ``NetworkError`` if sender or receiver is no network and ``CutError`` for an unknown cut.
    """

    sender: Network | ClusteredNoise
    receiver: Network
    sender_cut: str
    receiver_cut: str

    def __post_init__(self) -> None:
        check_networks(self.sender, self.receiver)
        object.__setattr__(self, "sender_cut", _sender_cut(self.sender, self.sender_cut))
        object.__setattr__(self, "receiver_cut", self.receiver.cuts.find(self.receiver_cut).name)

    @classmethod
    def at(cls, sender: Network | ClusteredNoise, receiver: Network, at: At) -> "Seam":
        """Make the seam that a user names: by a cut of both networks, or by ``(sender cut, receiver cut)``."""
        pair = (at, at) if isinstance(at, str | Cut) else at
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(cut, str | Cut) for cut in pair):
            raise CutError(f"at={at!r} is no seam; give a cut of both networks, or a pair (sender cut, receiver cut)")
        return cls(sender, receiver, *(cut.name if isinstance(cut, Cut) else cut for cut in pair))

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what the sender sends and of what the receiver takes, without the batch."""
        sender = self.sender
        sent = sender.shape if isinstance(sender, ClusteredNoise) else sender.cuts.find(self.sender_cut).shape
        return sent, self.receiver.cuts.find(self.receiver_cut).shape

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks at the seam: the receiver, and the sender unless that is noise."""
        return (self.receiver,) if isinstance(self.sender, ClusteredNoise) else (self.sender, self.receiver)

    @property
    def sides(self) -> tuple[tuple[Network, Cut], tuple[Network, Cut]]:
        """Each network with its cut, the sender first. Raises ``NetworkError`` if the sender is noise."""
        if isinstance(self.sender, ClusteredNoise):
            raise NetworkError(
                f"{self} has no stitched network, because its sender is clustered noise; its parts are the stitch and "
                f"{self.receiver.name}.after('{self.receiver_cut}')"
            )
        sent, received = self.sender.cuts.find(self.sender_cut), self.receiver.cuts.find(self.receiver_cut)
        return (self.sender, sent), (self.receiver, received)

    @property
    def labels(self) -> dict[str, str | float | None]:
        """The columns of a seam in every table: names, cuts, and depths of the cuts (none of noise)."""
        sender = self.sender
        return {
            "sender": sender.name,
            "receiver": self.receiver.name,
            "sender_cut": self.sender_cut,
            "receiver_cut": self.receiver_cut,
            "sender_depth": None if isinstance(sender, ClusteredNoise) else sender.cuts.find(self.sender_cut).depth,
            "receiver_depth": self.receiver.cuts.find(self.receiver_cut).depth,
        }

    def __str__(self) -> str:
        same = self.sender_cut in ("", self.receiver_cut)
        cuts = self.receiver_cut if same else f"{self.sender_cut} → {self.receiver_cut}"
        return f"{self.sender.name or 'noise'} → {self.receiver.name} at {cuts}"


def check_networks(sender: object, receiver: object) -> None:
    """Raise ``NetworkError`` if one is no network; noise may send."""
    remedy = "a network: Network(model, example=…)"
    check_kind("the sender", sender, Network | ClusteredNoise, remedy, NetworkError)
    check_kind("the receiver", receiver, Network, remedy, NetworkError)


def _sender_cut(sender: Network | ClusteredNoise, cut: str) -> str:
    if isinstance(sender, Network):
        found = sender.cuts.find(cut)
        if found.is_output:
            raise CutError(
                f"'{OUTPUT}' of {sender.name} is no cut to send from; valid cuts: {', '.join(sender.cuts.names)}"
            )
        return found.name
    if cut:
        raise CutError(f"no cut '{cut}' in clustered noise, which has none; leave it empty, sender_cut=''")
    return cut

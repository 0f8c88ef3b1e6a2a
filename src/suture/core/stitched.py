"""The definition: ``stitched = receiver.after(cut) ∘ stitch ∘ sender.upto(cut)``, and only the stitch trains.

A ``Seam`` says which two networks, and where each is cut. Both are frozen: their parameters and buffers are the same,
bit for bit, before and after anything that is done to the stitch. A sender may also be clustered noise, which has no
layers and so no cut. If only the receiver's outputs are wanted, its cut is ``OUTPUT``, which lies behind all of its
layers, and the stitch gives the outputs itself.
"""

import copy as copying
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from suture.common.constants import OUTPUT
from suture.common.errors import CutError, NetworkError, ShapeError
from suture.common.validation import check_kind
from suture.core.folding import Fold, fold, fold_of, read_feature_map
from suture.core.network.cuts import Cut
from suture.core.network.network import Network, Sides
from suture.core.plain import fix_norms, with_norms
from suture.core.saving import ROLES, read, rebuild, write
from suture.core.stitches import Stitch
from suture.core.stitches.base import spell_shape
from suture.core.stitches.pooled_linear import pool_sent
from suture.data.inputs import counted, join_inputs
from suture.data.noise import ClusteredNoise

At = str | Cut | tuple[str | Cut, str | Cut]
"""How a user names a seam of two given networks: a cut of both, or ``(sender cut, receiver cut)``."""


@dataclass(frozen=True)
class Seam:
    """Two networks and where each is cut.

    The cuts are names; an alias, or a ``Cut``, is replaced by the name. That of clustered noise is empty. Raises
    ``NetworkError`` if sender or receiver is not a network or they are on two devices, and ``CutError`` for an unknown
    cut.
    """

    sender: Network | ClusteredNoise
    receiver: Network
    sender_cut: str
    receiver_cut: str

    def __post_init__(self) -> None:
        check_networks(self.sender, self.receiver)
        check_devices(self.sender, self.receiver)
        if isinstance(self.sender, Network):
            sent = self.sender.cuts.find(self.sender_cut)
            if sent.is_output:
                valid = ", ".join(self.sender.cuts.names)
                raise CutError(f"'{OUTPUT}' of {self.sender.name} is not a cut to send from; valid cuts: {valid}")
            object.__setattr__(self, "sender_cut", sent.name)
        elif self.sender_cut:
            raise CutError(
                f"no cut '{self.sender_cut}' in clustered noise, which has none; leave it empty: at=('', receiver cut)"
            )
        object.__setattr__(self, "receiver_cut", self.receiver.cuts.find(self.receiver_cut).name)

    @classmethod
    def at(cls, sender: Network | ClusteredNoise, receiver: Network, at: At) -> "Seam":
        """Make the seam that a user names: by a cut of both networks, or by ``(sender cut, receiver cut)``."""
        pair = (at, at) if isinstance(at, str | Cut) else at
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(cut, str | Cut) for cut in pair):
            raise CutError(
                f"at={at!r} is not a seam; give the name of a cut of both networks, or a pair (sender's, receiver's)"
            )
        return cls(sender, receiver, *(cut.name if isinstance(cut, Cut) else cut for cut in pair))

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the sender's tensor and of the receiver's input at the seam, without the batch."""
        sender = self.sender
        sent = sender.shape if isinstance(sender, ClusteredNoise) else sender.cuts.find(self.sender_cut).shape
        return sent, self.receiver.cuts.find(self.receiver_cut).shape

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks at the seam: the receiver, and the sender unless that is noise."""
        return (self.receiver,) if isinstance(self.sender, ClusteredNoise) else (self.sender, self.receiver)

    def to(self, device: str | torch.device) -> "Seam":
        """Return the same seam with its networks on a device. Raises the errors of ``Network.to``."""
        sender = self.sender.to(device) if isinstance(self.sender, Network) else self.sender
        return Seam(sender, self.receiver.to(device), self.sender_cut, self.receiver_cut)

    @property
    def sides(self) -> Sides:
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
    """Raise ``NetworkError`` if one of them is not a network; the sender may also be noise."""
    remedy = "a network: Network(model, example=…)"
    check_kind("the sender", sender, Network | ClusteredNoise, remedy, NetworkError)
    check_kind("the receiver", receiver, Network, remedy, NetworkError)


def check_devices(sender: Network | ClusteredNoise, receiver: Network) -> None:
    """Raise ``NetworkError`` if two networks are on two devices."""
    if isinstance(sender, Network) and sender.device != receiver.device:
        raise NetworkError(
            f"{sender.name} is on {sender.device} and {receiver.name} on {receiver.device}; put both on one device: "
            f"network.to('{receiver.device}')"
        )


def check_tokens(sender: Network | ClusteredNoise, receiver: Network) -> None:
    """Raise ``NetworkError`` if networks that are to read the same texts read them in other tokens, if that is known.

    Networks of which each has its own view of a sample read no text together, and need not be asked.
    """
    if not isinstance(sender, Network):
        return
    named = sender.tokenizer, receiver.tokenizer
    if named[0] == named[1] is not None:
        return
    what, told = named, "tokeniser {}"
    if None in named:
        what, told = (sender.vocabulary, receiver.vocabulary), "table of {:,} tokens"  # type: ignore[assignment]
    if None not in what and what[0] != what[1]:
        one, other = (told.format(each) for each in what)
        raise NetworkError(
            f"{sender.name} reads texts by a {one}, and {receiver.name} by a {other}: their tokens do not "
            "correspond, and a stitch maps token by token; give networks of one tokeniser, name it if they "
            "share it and a table has "
            "unused rows, Network(…, tokenizer='…'), or give each network its own token ids: load_views(…)"
        )


def cuts_for_views(receiver: Network) -> list[Cut]:
    """Return the cuts of a receiver that another view of a sample can be stitched into: where a sample is one vector.

    The layers behind must read nothing but that vector, because the stitched network is given the sender's view alone.
    """
    vectors = [cut for cut in receiver.cuts if len(cut.shape) == 1]
    return [cut for cut in vectors if receiver.inputs_from(cut.index, receiver.example) is None]


def check_cut_for_views(seam: Seam) -> None:
    """Raise ``CutError`` if a stitch cannot join networks of which each has its own view of a sample, naming the cuts.

    Samples are pairs then, and their positions and tokens are not.
    """
    receiver, cut = seam.receiver, seam.receiver.cuts.find(seam.receiver_cut)
    names = [cut.name for cut in cuts_for_views(receiver)]
    if cut.name in names or (cut.is_output and len(cut.shape) == 1):
        return
    why = f"'{cut.name}' of {receiver.name} passes {spell_shape(cut.shape)}"
    if len(cut.shape) == 1:
        why = f"the layers of {receiver.name} after '{cut.name}' read masks or positions of its own view"
    remedy = "none of its cuts is such: give a model that pools before its last layers"
    if names:
        remedy = f"such cuts of {receiver.name}: {', '.join(names)}"
    raise CutError(
        f"{why}, and each network reads its own view of a sample, so that samples are pairs and their positions are "
        f"not: stitch into a cut where a sample is one vector, {remedy}; or compare by an index: suture.compare(…)"
    )


class Stitched(nn.Module):
    """A stitched network: a plain module from raw images ``(n, C, H, W)`` to the receiver's outputs.

    Its mode is that of the stitch, which ``train()`` alone reaches; prefix and suffix stay in evaluation mode. The
    stitch is given a contiguous tensor of the floating type of its own parameters, exactly as from a cache of
    activations while it is fitted. ``half()``, ``double()`` and ``to()`` leave the two networks as they are: they take
    copies of their parts. ``family`` is the kind of stitch it was built as, if that is known. Raises ``NetworkError``
    if noise sends.
    """

    def __init__(self, seam: Seam, stitch: nn.Module, family: Stitch | None = None) -> None:
        super().__init__()
        (sender, sent), (receiver, received) = seam.sides
        self.seam, self.family = seam, family
        self.prefix = sender.upto(sent)
        self.stitch = stitch
        self.suffix = receiver.after(received)
        self.training = stitch.training

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        for part in ("prefix", "suffix"):
            setattr(self, part, copying.deepcopy(getattr(self, part)))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, images: "Tensor | Mapping[str, Tensor]") -> Tensor:
        """Map raw images, or other inputs of the sender, to the receiver's outputs ``(n, outputs)``."""
        (sender, _), (receiver, received) = self.seam.sides
        images, _ = join_inputs(images)
        there = counted(images, sender.inputs) if sender.inputs else None
        sent = pool_sent(self.stitch, self.prefix(images), there)
        represented = self.stitch(match_dtype(sent, self.stitch).contiguous())
        if images.shape[1:] == receiver.example.shape[1:] and represented.shape[1:] != received.shape:
            raise ShapeError(
                f"the stitch gives {spell_shape(represented.shape[1:])}, and the layers of {receiver.name} after "
                f"'{received.name}' take {spell_shape(received.shape)}; give a stitch that maps to these"
            )
        out: Tensor = self.suffix(represented, receiver.inputs_after(received, images))
        return out

    def extra_repr(self) -> str:
        """Name the three parts by their cuts."""
        (sender, sent), (receiver, received) = self.seam.sides
        return "\n".join(
            [
                f"prefix: {sender.name} up to {sent.name}, {'×'.join(map(str, sent.shape))}",
                f"stitch: {self.family if self.family is not None else type(self.stitch).__name__}",
                f"suffix: {receiver.name} after {received.name}, {'×'.join(map(str, received.shape))}",
            ]
        )

    def folded(self) -> nn.Module:
        """Return the same network with its stitch folded into a neighbouring layer: a plain module without a stitch.

        In evaluation mode it agrees to rounding; it takes images of the size that the networks were made for, and its
        parameters require gradients. The frozen networks are not touched. ``can_fold`` says whether it exists and which
        layer takes the stitch. Raises ``FoldError``, with the reason, if it does not. bansal2021, section 4.
        """
        return fold(self.seam.sides, self.stitch)

    def with_norms(self, images: "Tensor | Mapping[str, Tensor]") -> "Stitched":
        """Return the same network with the convolution of its stitch between two BatchNorms, to train it further.

        Evaluated it agrees to rounding. The moments of the norms are those of what raw images ``(n, C, H, W)`` give at
        the cut, so training mode begins with the same map. Raises ``ShapeError`` if the stitch is not a convolution.
        """
        with torch.no_grad():
            given = match_dtype(self.prefix(images), self.stitch).contiguous()
        return Stitched(self.seam, with_norms(self.stitch, given).train(self.training))

    def carry(self, direction: Tensor) -> Tensor:
        """Map directions in the sender's feature space ``(…, features)`` to the receiver's.

        The stitch maps features by ``W·x + b``, so a step along ``v`` in the sender becomes one along ``W·v``. A
        steering vector is added behind the receiver's cut. Raises ``FoldError`` if the stitch is not such a map.
        """
        weight = read_feature_map(self.stitch, *self.seam.shapes).weight
        return (direction.cpu().double() @ weight.T).to(direction)

    def save(self, folder: str | Path, record: Mapping[str, object] | None = None) -> Path:
        """Write the stitch and the names of its networks to a folder, as safetensors and JSON; return the folder.

        The networks are not written but named by their fingerprints. ``record`` holds anything else to keep, as plain
        values. Raises ``OutputError`` if the folder cannot be written.
        """
        return write(folder, self.seam.sides, self.stitch, self.family, record or {})

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
        saved = read(folder)
        sender, receiver = saved.check(sender, receiver)
        seam = Seam(sender, receiver, *(saved.description[role]["cut"] for role in ROLES))
        made, family = rebuild(saved, stitch, seam.shapes, seam.networks)
        return cls(seam, fix_norms(made.to(receiver.device), family), family)


def match_dtype(activations: Tensor, stitch: nn.Module) -> Tensor:
    """Return activations in the floating type of the stitch's parameters; unchanged if it has none."""
    return activations.to(next((p.dtype for p in stitch.parameters()), activations.dtype))


def can_fold(stitched: Stitched) -> Fold:
    """Return whether the stitch, fitted or not, can be folded into a neighbour, and into which layer, or why not."""
    return fold_of(stitched.seam.sides, stitched.stitch)

"""Trained networks as folders: ``card.json``, ``model.safetensors`` and ``done``, as a store has them for each network.

``suture train`` makes such a folder, ``networks/KEY`` in a store is one, and a model string may name one. ``done`` has
the SHA-256 of the others and is written last: without it the training is not over.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes

from suture.common.atomic import whole
from suture.common.errors import CheckpointError, SourceError, StoreError
from suture.common.hashing import keyed_as
from suture.measurement.tables.records import Record
from suture.runs.runners import Outcome
from suture.runs.store.files import flush, read, writing_to
from suture.runs.store.store import DONE, FILES, NETWORKS, contents

CARD, WEIGHTS = FILES[NETWORKS]


def is_artefact(folder: str | Path) -> bool:
    """Return whether there is a trained network in a folder, whole or not."""
    return (Path(folder).expanduser() / CARD).is_file()


def is_whole(folder: Path) -> bool:
    """Return whether the network in a folder is there with all that belongs to it."""
    return all((folder / name).is_file() for name in (CARD, WEIGHTS, DONE))


def read_card(folder: str | Path) -> Record:
    """Read the card of a trained network. Raises ``SourceError`` if it is not whole, or damaged."""
    folder = Path(folder).expanduser()
    if not is_whole(folder):
        lacking = [name for name in (CARD, WEIGHTS, DONE) if not (folder / name).is_file()]
        raise SourceError(
            f"{folder} has no whole trained network: it lacks {', '.join(lacking)}; let suture train end there"
        )
    try:
        card = read(folder / CARD)
    except StoreError as error:
        raise SourceError(f"{folder / CARD} is damaged ({error.__cause__}); train the network again") from error
    if not isinstance(card, dict) or not isinstance(card.get("source"), str):
        raise SourceError(f"{folder / CARD} is no card of a trained network: it names no source; train it again")
    return card


def check_content(folder: Path) -> None:
    """Raise ``CheckpointError`` if a file of a trained network is not what was written."""
    for line in (folder / DONE).read_text(encoding="utf-8").splitlines():
        written, _, name = line.partition("  ")
        found = folder / name
        if not found.is_file() or hashlib.sha256(found.read_bytes()).hexdigest() != written:
            raise CheckpointError(
                f"{found} is not what was written when its training ended: it is damaged, or was changed; copy it "
                "again, or train the network again"
            )


def is_sound(folder: Path) -> bool:
    """Return whether the network in a folder is there, and is what was written."""
    try:
        check_content(folder)
    except (CheckpointError, OSError):
        return False
    return is_whole(folder)


def keep(folder: Path, outcome: Outcome) -> None:
    """Write a trained network into a folder, ``done`` last. Raises ``OutputError`` if it cannot be written to."""
    files = contents(NETWORKS, outcome.record, outcome.tensors)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with whole(folder / name) as temporary:
                temporary.write_bytes(content)
            flush(folder)


@keyed_as("Weights")
@final
@dataclass(frozen=True)
class Weights:
    """Weights that are there already, for a training to start from; known by their content."""

    name: str
    tensors: bytes = field(repr=False)  #: the content of a safetensors file

    def __post_init__(self) -> None:
        try:
            from_bytes(self.tensors)
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.name} is damaged or has no safetensors ({error}); copy it again, or name another file"
            ) from error

    @property
    def key(self) -> str:
        """A hash of the weights."""
        return f"weights {hashlib.sha256(self.tensors).hexdigest()[:20]}"

    @property
    def where(self) -> str:
        """What they are, in words."""
        return f"the weights in {self.name}"

    def train(self) -> Outcome:
        """Return the weights as they are: there is nothing to be trained."""
        return Outcome({"status": "ok"}, self.tensors)

"""The model strings that this package adds: ``zoo:resnet,width=16`` builds a network, ``ledger:resnet18@10`` loads one.

Networks of the ledger are 16-bit weights beside their cards. They lie in ``papers/results/networks`` of Suture's
repository and are not part of the installed package: they are looked for in ``$SUTURE_LEDGER``, from the current
folder, and in the checkout that this package is run from.
"""

import os
from pathlib import Path

from suture.common.errors import SourceError
from suture.extend import Record, read_json
from suture.zoo import ModelKind, Shelf
from suture_papers.networks.architectures import NETWORKS, images_of, preprocess_of

LEDGER, KEPT = "ledger:", Path("papers/results/networks")
VARIABLE = "SUTURE_LEDGER"  #: the environment's word for where networks of the ledger are


def find_kept(text: str) -> tuple[Record, Path]:
    """Return the card and the weights of a network of the ledger. Raises ``SourceError`` if there is none."""
    folder = next((one for one in _folders() if one.is_dir()), None)
    if folder is None:
        raise SourceError(
            f"{text}: no folder {' or '.join(map(str, _folders()))}; the trained networks are in Suture's repository "
            f"and not in what is installed: clone it and run this from its root, or name their folder in {VARIABLE}"
        )
    name = "-".join(text.removeprefix(LEDGER).split("@"))
    kept = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in kept:
        strings = [f"{LEDGER}{'@'.join(stem.rsplit('-', 1))}" for stem in kept]
        raise SourceError(f"{text}: {folder} has no such network; it has {', '.join(strings) or 'none'}")
    return read_json(folder / f"{name}.json"), folder / f"{name}.safetensors"


def card_of(weights: Path) -> Record | None:
    """Return the card beside weights of the ledger; ``None`` if they are not of it."""
    card = weights.with_suffix(".json")
    among = any(weights.parent.resolve() == folder.resolve() for folder in _folders())
    return read_json(card) if among and card.is_file() else None


def _folders() -> tuple[Path, ...]:
    """Return where networks of the ledger may be; the environment's folder alone if it names one."""
    if named := os.environ.get(VARIABLE):
        return (Path(named).expanduser(),)
    return (Path.cwd() / KEPT, Path(__file__).parents[2] / KEPT)


ZOO = ModelKind("zoo:resnet,width=16,blocks=(1,1,1)", NETWORKS, preprocess_of, images_of)
SHELF = Shelf(find_kept, card_of)

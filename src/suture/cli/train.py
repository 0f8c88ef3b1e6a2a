"""``suture train``: one network, trained by a recipe and kept with a card."""

import math
import shutil
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from suture.cli.command import Parser
from suture.cli.names import NameOption, make, make_all
from suture.cli.options import (
    MODEL,
    add_config,
    add_data,
    add_device,
    add_json,
    add_model,
    add_named,
    add_out,
    at_least,
    check_device,
    load,
    patterns_of,
)
from suture.cli.output import say
from suture.common.errors import CheckpointError, SourceError, SutureError

PROGRESS = "progress"  #: the folder, in that of the network, which training goes on from


class Wanted(NamedTuple):
    """A network that is to be in a folder: of which epoch, of the last where that is ``None``."""

    folder: Path
    model: Any
    until: int | None


def learning_rate(text: str) -> float:
    """Read a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text}") from None
    if not 0 < rate < math.inf:
        raise ArgumentTypeError(f"{text}: give a learning rate above 0")
    return rate


def epochs(text: str) -> tuple[int, ...]:
    """Read numbers of epochs, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise ArgumentTypeError(f"{text}: give numbers of epochs from 1, separated by commas, such as 4,8")
    return tuple(sorted({int(name) for name in names}))


def options(parser: Parser) -> None:
    """Add the options."""
    add = parser.add_argument
    recipe = "the fixed settings of the training; suture zoo recipes says what each is"
    add_named(parser, "recipe", NameOption(("recipe",)), metavar="RECIPE", help=recipe)
    add_model(parser, "--network", required=True, metavar="MODEL", help=MODEL.partition(" and trained weights")[0])
    add_data(parser, required=True)
    add_out(parser, "folder for the network and its card", required=True)
    add("--seed", type=at_least(0), default=0, metavar="N", help="decides initialisation, order and augmentation")
    add("--start", metavar="NETWORK", help="begin with a network of another folder, or a file")
    add("--trained", metavar="NAMES", help="train only these modules, such as fc or layer4,fc")
    add("--frozen", metavar="NAMES", help="train all but these modules, such as layer*")
    add("--taken", metavar="NAMES", help="take only these modules of --start")
    add("--keep", type=epochs, default=(), metavar="EPOCHS", help="also keep the network of these epochs, such as 4,8")
    add("--epochs", type=at_least(1), metavar="N", help="train for as long, instead of what the recipe says")
    add("--batch", type=at_least(1), metavar="N", help="images a step, instead of what the recipe says")
    add("--lr", type=learning_rate, metavar="RATE", help="learning rate, instead of what the recipe says")
    add_device(parser)
    add_json(parser)
    add_config(parser)


def run(chosen: Namespace) -> int:
    """Train a network and keep it, with its card; return the exit code."""
    from suture.zoo.base_model import keep
    from suture.zoo.models import is_artefact, is_sound

    folder = Path(chosen.out).expanduser()
    base, data = _base(chosen, folder)
    _check_fits(base, data)
    wanted = _wanted(base, folder, chosen.keep)
    made = []
    for one in wanted:
        if is_artefact(one.folder) and not is_sound(one.folder):
            say(f"suture: the network in {one.folder} is damaged, or was changed, and is trained again")
    if not all(is_sound(one.folder) for one in wanted):
        _prepare(folder)
        with _alone(folder):
            made = [one for one in wanted if not is_sound(one.folder)]  # another process may just have been here
            say(_words(base))
            for one in made:
                keep(one.folder, _trained(one, folder / PROGRESS, chosen.line))
            shutil.rmtree(folder / PROGRESS, ignore_errors=True)
    if not made:
        say(f"suture: {folder} has this very network already; nothing was trained")
    return _finish(folder, wanted, made, chosen)


# --- what is asked for ------------------------------------------------------------------------------------------------


def _base(chosen: Namespace, folder: Path) -> tuple[Any, Any]:
    """The network to be trained, and its data. Raises ``SutureError`` where anything is wrong, before data are read."""
    from suture.zoo.base_model import BaseModel
    from suture.zoo.models import parse_source

    recipe, device = change(make("recipe", chosen.recipe), chosen), check_device(chosen.device)
    make_all("variant", chosen.variant)  # refused before anything is loaded
    if parse_source(chosen.network).checkpoint is not None:
        raise SourceError(
            f"--network {chosen.network} has trained weights; leave them out, or start from them with --start"
        )
    parts = _parts(chosen)
    start: Any = _start(chosen) if chosen.start is not None else None
    data = load(chosen)
    base = BaseModel(
        source=chosen.network,
        samples=data.training,
        recipe=recipe,
        seed=chosen.seed,
        name=folder.resolve().name,
        start=start,
        parts=parts,
        scored_on=(data.score,),
        device=device,
    )
    return base, data


def _parts(chosen: Namespace) -> Any:
    from suture.zoo.training import Parts

    if chosen.taken is not None and chosen.start is None:
        raise SutureError("--taken says what of --start is taken; give a network to start from, or leave it out")
    given = {name: patterns_of(getattr(chosen, name)) for name in ("trained", "frozen", "taken")}
    return Parts(**{name: names for name, names in given.items() if names is not None})


def change(recipe: Any, chosen: Namespace) -> Any:
    """Return the recipe with the epochs, the batch and the learning rate that are asked for."""
    if chosen.epochs is not None:
        recipe = replace(recipe, epochs=chosen.epochs, steps=None)
    if chosen.batch is not None:
        recipe = replace(recipe, batch=chosen.batch)
    return recipe if chosen.lr is None else replace(recipe, optimiser=replace(recipe.optimiser, lr=chosen.lr))


def _start(chosen: Namespace) -> Any:
    """The weights to start from, of a network's folder or a file, as the content of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    from suture.core.saving import to_safetensors
    from suture.zoo.models import WEIGHTS, is_artefact, read_card, resolve

    path = Path(chosen.start).expanduser()
    if is_artefact(path):
        read_card(path)
        path = path / WEIGHTS
    if not path.is_file():
        lacks = "has no card.json of a trained network" if path.is_dir() else "does not exist"
        raise SourceError(f"--start {chosen.start} {lacks}; give a folder that suture train made, or a file of weights")
    if path.suffix != ".safetensors":
        return to_safetensors(resolve(chosen.network, path).model)
    try:
        from_bytes(weights := path.read_bytes())
    except SafetensorError as error:
        raise CheckpointError(
            f"{chosen.start} is damaged or has no safetensors ({error}); copy it again, or name another file"
        ) from error
    return weights


def _check_fits(base: Any, data: Any) -> None:
    """Let the network look at an image, so that what does not fit is said before it trains. Raises ``NetworkError``."""

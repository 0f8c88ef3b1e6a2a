"""``suture train``: one network, trained by a recipe and kept with a card."""

import math
import shlex
import shutil
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from suture.cli import output
from suture.cli.command import Command, Parser
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
from suture.common.errors import CheckpointError, OutputError, SourceError, StoreError, SutureError

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
    import torch
    from safetensors.torch import load as from_bytes

    from suture.data.samples import as_given, sizes, things
    from suture.zoo.models import resolve

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        built = resolve(base.source)
        base.recipe.augment(data.example, torch.Generator().manual_seed(0))
        try:
            given = built.model.eval()(built.preprocess(as_given(data.example)))
        except Exception as error:  # a model may raise anything
            reason = str(error) if isinstance(error, SutureError) else f"{type(error).__name__}: {error}"
            raise SourceError(
                f"{base.source} cannot take the {things(data.example)} of {data.name}, {sizes(data.example)}: "
                f"{reason}; change its arguments, or the data by --size or --variant"
            ) from error
    if given.ndim != 2 or given.shape[1] < len(data.classes):
        raise SourceError(
            f"{base.source} gives {tuple(given.shape[1:])} outputs an image, and {data.name} has {len(data.classes)} "
            f"classes; build it with classes={len(data.classes)} (timm and torchvision: num_classes)"
        )
    base.parts.training(built.model)
    if base.start is not None:
        base.parts.take(built.model, from_bytes(base.start))


def _wanted(base: Any, folder: Path, epochs: Sequence[int]) -> list[Wanted]:
    """The networks that shall be kept. Raises ``StoreError`` where the folder has another than wanted."""
    from suture.zoo.models import is_sound, read_card

    last = -(-base.recipe.count_steps(len(base.samples)) // base.recipe.steps_per_epoch(len(base.samples)))
    if any(epoch >= last for epoch in epochs):
        remedy = f"give epochs below {last}, after which" if last > 1 else "leave it out, since after one epoch"
        raise SutureError(f"--keep {epochs[-1]}: {remedy} the training ends")
    wanted = [
        Wanted(folder / f"epoch-{epoch}", replace(base, until=epoch, name=f"{base.name} epoch {epoch}"), epoch)
        for epoch in epochs
    ]
    wanted.append(Wanted(folder, base, None))
    for one in wanted:
        if is_sound(one.folder) and (card := read_card(one.folder))["network"] != one.model.key:
            raise StoreError(
                f"{one.folder} has another network, {card['source']} trained on {card['data']['name']}, seed "
                f"{card['seed']}{_difference(card, one.model)}; name another folder with --out"
            )
    return wanted


def _difference(card: Any, model: Any) -> str:
    """What of two trainings differs, as far as a card says."""
    found = {
        "the network": (card["source"], model.source),
        "the data": (card["data"]["fingerprint"], model.samples.fingerprint),
        "the recipe": (card["recipe"], str(model.recipe)),
        "the seed": (card["seed"], model.seed),
        "what it starts from": (card["start"], model.start_key),
        "the parts that train": (card["parts"], str(model.parts)),
    }
    differing = [name for name, (theirs, ours) in found.items() if theirs != ours]
    plural = len(differing) > 1 or differing[:1] in (["the data"], ["the parts that train"])
    verb = "differ" if plural else "differs"
    return f": {' and '.join(differing)} {verb}" if differing else ", by another version of the training code"


# --- training ---------------------------------------------------------------------------------------------------------


def _prepare(folder: Path) -> None:
    from suture.runs.store.files import folder_to_write
    from suture.runs.store.store import LABEL

    if (folder / LABEL).exists():
        raise StoreError(f"{folder} is the folder of a run; name another one for a network")
    folder_to_write(folder / PROGRESS)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse to train where another process does."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / PROGRESS / "command.lock", fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputError(
            f"another process is training in {folder}; wait for it, or name another folder with --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _words(base: Any) -> str:
    samples, recipe = base.samples, base.recipe
    steps, per_epoch = recipe.count_steps(len(samples)), recipe.steps_per_epoch(len(samples))
    epochs = f"{steps / per_epoch:.4g}"
    most = "at most " if recipe.stop is not None else ""
    return (
        f"{base.source} on {samples.name}: {len(samples):,} images, {most}{epochs} "
        f"epoch{'' if epochs == '1' else 's'} of {per_epoch:,} step{'' if per_epoch == 1 else 's'}, seed {base.seed}"
    )


def _trained(one: Wanted, progress: Path, command: str) -> Any:
    """The outcome of a training. Raises what it raises, as a ``SutureError`` where it is not one."""
    from suture.cli.training_progress import following

    model = one.model
    recipe, count = model.recipe, len(model.samples)
    shown = following(recipe.steps_per_epoch(count), min(recipe.batch, count))
    try:
        return model.train(progress, shown.watch)
    except SutureError:
        raise
    except OSError as error:
        remedy = "free some space on the disk, or name another folder"
        raise OutputError(f"cannot write to {progress}: {error.strerror or error}; {remedy}") from error
    except Exception as error:  # a model may raise anything
        raise SutureError(f"the training failed: {type(error).__name__}: {error}") from error
    except KeyboardInterrupt:
        there = (
            "go on from the last checkpoint"
            if any(progress.glob("step-*"))
            else "there is no checkpoint yet; begin anew"
        )
        raise KeyboardInterrupt(f"interrupted; {there} with: {command}") from None
    finally:
        shown.end()


def _finish(folder: Path, wanted: list[Wanted], made: list[Wanted], chosen: Namespace) -> int:
    from suture.report.terminal import networks
    from suture.zoo.models import read_card

    cards = {str(one.folder): read_card(one.folder) for one in wanted}
    if chosen.json:
        output.show_json({"folder": str(folder), **cards.pop(str(folder)), "epochs_kept": cards})
        return 0
    output.show(*networks.card_parts(cards[str(folder)]))
    output.say_wrote([one.folder for one in made])
    variants = f" --variant {shlex.join(chosen.variant)}" if chosen.variant else ""
    words = f"suture curve {shlex.quote(chosen.out)} OTHER --data {shlex.quote(chosen.data)}{variants}"
    say(f"use it as a model: {words}")
    return 0


COMMAND = Command(
    name="train",
    help="train a network by a recipe, and keep it with its card",
    about="Train a network by a recipe, and keep its weights with a card that says how it was trained and what it "
    "reaches on test data. It trains on all training images, validation among them. A training that was stopped goes "
    "on from there, bit for bit, when the same command is given again.",
    examples=(
        "suture train digits --network zoo:convnet --data digits --out nets/a",
        "suture train fast --network zoo:resnet,width=16 --data cifar10 --out nets/b",
        "suture train fast --network zoo:resnet --data cifar10 --keep 5,10 --out c",
        "suture train fast --network zoo:mlp --data digits --start a --out b",
    ),
    options=options,
    run=run,
)

"""``suture train``: one network, trained by a recipe and kept with a card."""

import math
import shlex
import shutil
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from suture import SutureError
from suture.common.errors import CheckpointError, OutputError, SourceError, StoreError
from suture.extend import (
    CONFIG,
    DEVICE,
    JSON,
    MODEL,
    TRUST,
    NameOption,
    at_least,
    check_device,
    command,
    data_options,
    load,
    make,
    model_option,
    option,
    out_option,
    output,
    patterns_of,
    say,
    say_count,
    sources_of,
)

PROGRESS = "progress"  #: the folder, in that of the network, which training goes on from


def learning_rate(text: str) -> float:
    """Read a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text}") from None
    if not 0 < rate < math.inf:
        raise ArgumentTypeError(f"{text}: give a learning rate above 0")
    return rate


def numbers_from(least: int) -> Callable[[str], tuple[int, ...]]:
    """Return the type of whole numbers from ``least``, separated by commas, each once and sorted."""

    def read(text: str) -> tuple[int, ...]:
        names = [name.strip() for name in text.split(",")]
        if not all(name.isdecimal() and int(name) >= least for name in names):
            raise ArgumentTypeError(f"{text}: give whole numbers from {least}, separated by commas, such as 4,8")
        return tuple(sorted(set(map(int, names))))

    return read


@command(
    "train",
    option(
        "recipe",
        type=NameOption("recipe"),
        metavar="RECIPE",
        help="the fixed settings of the training; suture zoo recipes lists them",
    ),
    model_option("--network", required=True, metavar="MODEL", help=MODEL.partition(" and trained weights")[0]),
    *data_options(required=True),
    out_option("folder for the network and its card", required=True),
    option(
        "--seed", type=at_least(0), default=0, metavar="N", help="random seed of initialisation, order and augmentation"
    ),
    option("--start", metavar="NETWORK", help="begin with a network of another folder, or a file"),
    option("--trained", metavar="NAMES", help="train only these modules, such as fc or layer4,fc"),
    option("--frozen", metavar="NAMES", help="train all but these modules, such as layer*"),
    option("--taken", metavar="NAMES", help="take only these modules of --start"),
    option(
        "--keep",
        type=numbers_from(1),
        default=(),
        metavar="EPOCHS",
        help="also keep the network of epochs such as 4,8",
    ),
    option("--epochs", type=at_least(1), metavar="N", help="number of epochs, instead of the recipe's"),
    option("--batch", type=at_least(1), metavar="N", help="images in a step, instead of the recipe's"),
    option("--lr", type=learning_rate, metavar="RATE", help="learning rate, instead of the recipe's"),
    DEVICE,
    TRUST,
    JSON,
    *CONFIG,
    examples=(
        "suture train digits --network zoo:convnet --data digits --out nets/a",
        "suture train fast --network zoo:resnet,width=16 --data cifar10 --out nets/b",
        "suture train fast --network zoo:resnet --data cifar10 --keep 5,10 --out c",
        "suture train fast --network zoo:mlp --data digits --start a --out b",
    ),
)
def train(chosen: Namespace) -> int:
    """Train a network by a recipe, and keep it with its card.

    Train a network by a recipe, and keep its weights with a card that describes its training and its accuracy on test
    data. It trains on all training images, validation included. A stopped training continues, bit for bit, when the
    same command is given again.
    """
    from suture.extend import LABEL, Locks, folder_to_write, is_artefact, is_sound, read_card
    from suture_papers.networks.base_model import keep
    from suture_papers.reports.networks import card_parts

    folder = Path(chosen.out).expanduser()
    wanted = _wanted(_base(chosen, folder), folder, chosen.keep)
    made = []
    for place in wanted:
        if is_artefact(place) and not is_sound(place):
            say(f"suture: the network in {place} is damaged, or was changed, and is trained again")
    if not all(map(is_sound, wanted)):
        if (folder / LABEL).exists():
            raise StoreError(f"{folder} is the folder of a run; name another for the network")
        locks = Locks(folder_to_write(folder / PROGRESS))
        if not locks.take("command"):
            raise OutputError(
                f"another process is training in {folder}; wait for it, or name another folder with --out"
            )
        try:
            made = [place for place in wanted if not is_sound(place)]  # another process may just have been here
            say(_words(wanted[folder]))
            for place in made:
                keep(place, _outcome(wanted[place], folder / PROGRESS, chosen.line))
            shutil.rmtree(folder / PROGRESS, ignore_errors=True)
        finally:
            locks.give_all_back()
    if not made:
        say(f"suture: {folder} has this very network already; nothing was trained")
    cards = {str(place): read_card(place) for place in wanted}
    card = cards.pop(str(folder))
    output.answer(chosen, {"folder": str(folder), **card, "epochs_kept": cards}, *card_parts(card))
    output.say_wrote(made)
    words = ["suture", "curve", chosen.out, "OTHER", "--data", chosen.data]
    for name in ("size", "classes", "split"):
        words += [f"--{name}", str(getattr(chosen, name))] if getattr(chosen, name) is not None else []
    words += ["--variant", *chosen.variant] if chosen.variant else []
    say(f"use it as a model: {shlex.join(words)}")
    return 0


# --- what is asked for ------------------------------------------------------------------------------------------------


def _base(chosen: Namespace, folder: Path) -> Any:
    """Return the network to be trained. Raises ``SutureError`` if anything is wrong, before it is trained."""
    from suture_papers.networks.base_model import BaseModel
    from suture_papers.training import Parts

    recipe, device = change(make("recipe", chosen.recipe), chosen), check_device(chosen.device)
    if sources_of(chosen, [chosen.network])[chosen.network].checkpoint is not None:
        raise SourceError(
            f"--network {chosen.network} has trained weights; leave them out, or start from them with --start"
        )
    if chosen.taken is not None and chosen.start is None:
        raise SutureError("--taken chooses parts of --start; give a network to start from, or leave it out")
    given = {name: patterns_of(vars(chosen)[name]) for name in ("trained", "frozen", "taken")}
    parts = Parts(**{name: names for name, names in given.items() if names is not None})
    start = _start(chosen) if chosen.start is not None else None
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
    _check_fits(base, data)
    return base


def change(recipe: Any, chosen: Namespace) -> Any:
    """Return the recipe with the epochs, the batch and the learning rate that are asked for."""
    if chosen.epochs is not None:
        recipe = replace(recipe, epochs=chosen.epochs, steps=None)
    if chosen.batch is not None:
        recipe = replace(recipe, batch=chosen.batch)
    return recipe if chosen.lr is None else replace(recipe, optimiser=replace(recipe.optimiser, lr=chosen.lr))


def _start(chosen: Namespace) -> Any:
    """Return the weights to start from, of a network's folder or a file, as the content of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    from suture.extend import WEIGHTS, is_artefact, read_card, to_safetensors
    from suture.zoo import resolve

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
    """Run the network on images before it trains, so that a mismatch shows at once. Raises ``SourceError``."""
    import torch
    from safetensors.torch import load as from_bytes

    from suture.extend import as_given, sizes, things
    from suture.zoo import resolve

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        built = resolve(base.source)
        base.recipe.augment(data.fit.images[:4], torch.Generator().manual_seed(0))
        try:
            given = built.model.eval()(built.preprocess(as_given(data.fit.images[:4])))
        except Exception as error:  # a model may raise anything
            reason = str(error) if isinstance(error, SutureError) else f"{type(error).__name__}: {error}"
            raise SourceError(
                f"{base.source} cannot take the {things(data.fit.images)} of {data.name}, {sizes(data.fit.images)}: "
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


def _wanted(base: Any, folder: Path, epochs: Sequence[int]) -> dict[Path, Any]:
    """Return the networks that shall be kept, by folder. Raises ``StoreError`` if a folder has another than wanted."""
    from suture.extend import is_sound, read_card

    last = -(-base.recipe.count_steps(len(base.samples)) // base.recipe.steps_per_epoch(len(base.samples)))
    if any(epoch >= last for epoch in epochs):
        remedy = f"give epochs below {last}, after which" if last > 1 else "leave it out, since after one epoch"
        raise SutureError(f"--keep {epochs[-1]}: {remedy} the training ends")
    wanted = {
        folder / f"epoch-{epoch}": replace(base, until=epoch, name=f"{base.name} epoch {epoch}") for epoch in epochs
    }
    wanted[folder] = base
    for place, model in wanted.items():
        if is_sound(place) and (card := read_card(place))["network"] != model.key:
            raise StoreError(
                f"{place} has another network, {card['source']} trained on {card['data']['name']}, seed "
                f"{card['seed']}{_difference(card, model)}; name another folder with --out"
            )
    return wanted


def _difference(card: Any, model: Any) -> str:
    """Describe the differences between two trainings, as far as a card tells."""
    found = {
        "the network differs": (card["source"], model.source),
        "the data differ": (card["data"]["fingerprint"], model.samples.fingerprint),
        "the recipe differs": (card["recipe"], str(model.recipe)),
        "the seed differs": (card["seed"], model.seed),
        "what it starts from differs": (card["start"], model.start_key),
        "the parts that train differ": (card["parts"], str(model.parts)),
    }
    differing = [words for words, (theirs, ours) in found.items() if theirs != ours]
    return f": {', '.join(differing)}" if differing else ", by another version of the training code"


# --- training ---------------------------------------------------------------------------------------------------------


def _words(base: Any) -> str:
    count, recipe = len(base.samples), base.recipe
    per_epoch = recipe.steps_per_epoch(count)
    epochs = recipe.count_steps(count) / per_epoch
    length = f"{'at most ' if recipe.stop is not None else ''}{epochs:.4g} epoch{'' if epochs == 1 else 's'}"
    images = f"{base.source} on {base.samples.name}: {say_count(count, 'image')}"
    return f"{images}, {length} of {say_count(per_epoch, 'step')}, seed {base.seed}"


def _outcome(model: Any, progress: Path, command: str) -> Any:
    """Train a network and return the outcome."""
    from suture.extend import writing_to

    count = len(model.samples)
    shown = TrainingMeter(model.recipe.steps_per_epoch(count), min(model.recipe.batch, count))
    try:
        with writing_to(progress):
            return model.train(progress, shown.watch)
    except KeyboardInterrupt:
        kept = any(progress.glob("step-*"))
        there = "continue from the last checkpoint" if kept else "there is no checkpoint yet; start again"
        raise KeyboardInterrupt(f"interrupted; {there} with: {command}") from None
    finally:
        shown.end()


@final
class TrainingMeter:
    """Say how far a training is and how fast it goes: a bar on a terminal, else lines.

    A line comes for every epoch, and between them one at most every ten seconds. ``batch`` is that of the images.
    """

    def __init__(self, per_epoch: int, batch: int, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichBar

        self.per_epoch, self.batch = per_epoch, batch
        self.before, self.begun = 0, 0.0
        self.last = time.monotonic()
        self.bar: Any = None
        if console is None and sys.stderr.isatty():
            console = Console(stderr=True)
        if console is not None and not console.is_dumb_terminal:
            text = TextColumn("{task.description}", markup=False)
            self.bar = RichBar(BarColumn(bar_width=16), text, console=console, transient=True)
            self.bar.add_task("", total=None)
            self.bar.start()

    def watch(self, step: int, steps: int, losses: Sequence[float]) -> None:
        """Record the steps done, of all steps, and the epochs' mean losses, and print them when it is time."""
        now = time.monotonic()
        if not self.begun:  # of a training that goes on, the pace is that from here
            self.begun, self.before = now, step
        epoch_ended = step % self.per_epoch == 0
        due = now - self.last >= 0.1 if self.bar is not None else epoch_ended or now - self.last >= 10
        if not due and step < steps:
            return
        self.last = now
        done, whole = step / self.per_epoch, steps / self.per_epoch
        parts = [f"epoch {done:.{0 if epoch_ended else 1}f} of {whole:.{0 if whole % 1 == 0 else 1}f}"]
        parts += [f"loss {losses[-1]:.4f}"] if losses else []
        if step > self.before and now > self.begun:
            from suture.extend import clock

            pace = (step - self.before) / (now - self.begun)
            parts += [f"{pace * self.batch:,.0f} images/s"]
            parts += [f"{clock((steps - step) / pace)} left"] if step < steps else []
        said = ", ".join(parts)
        if self.bar is None:
            print(said, file=sys.stderr, flush=True)
        else:
            self.bar.update(self.bar.task_ids[0], completed=step, total=steps, description=said)

    def end(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()

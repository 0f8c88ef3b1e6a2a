"""Networks, how they are trained and what they can do, for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from suture.common.formatting import spell
from suture.common.sizes import in_words
from suture.fits.recipes import SGD, Adam, AdamW, Constant, Cosine, OneCycle, Optimiser, Schedule, Steps
from suture.measurement.tables.records import Record
from suture.report.terminal.curve import lay_out
from suture.runs.runners.progress import clock
from suture.zoo.training import CropFlip, LabelCrossEntropy, Recipe, SimCLR, SimCLRView, Unchanged

# --- recipes in words -------------------------------------------------------------------------------------------------


def recipe_words(recipe: Recipe) -> str:
    """Say how a recipe trains: for how long, in which batches, with what, on which images."""
    return "; ".join(part for part in _parts(recipe) if part)


def _parts(recipe: Recipe) -> Iterable[str]:
    stop = recipe.stop
    most = "at most " if stop is not None else ""
    long = f"{recipe.epochs} epochs" if recipe.epochs is not None else f"{recipe.steps:,} steps"
    yield f"{most}{long}" + (", until the loss plateaus" if stop is not None else "")
    yield f"batch {recipe.batch}"
    yield f"{_optimiser(recipe.optimiser)}, {_schedule(recipe.schedule)}"
    yield _images(recipe)
    match recipe.objective:
        case SimCLR(temperature=temperature):
            yield f"SimCLR at temperature {temperature:g}"
        case LabelCrossEntropy(smoothing=smoothing) if not smoothing:
            pass
        case objective:
            yield spell(objective)
    if recipe.penalty is not None:
        yield spell(recipe.penalty)
    if recipe.prune is not None:
        yield f"every {recipe.prune.every} steps {100 * recipe.prune.share:g} % of the weights set to zero"
    if recipe.precision == "fast":
        yield "bfloat16 where the processor has it"


def _optimiser(optimiser: Optimiser) -> str:
    match optimiser:
        case SGD(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay):
            name = f"SGD {lr:g}" + (f", {'Nesterov ' if nesterov else ''}momentum {momentum:g}" if momentum else "")
        case Adam(lr=lr, weight_decay=decay) | AdamW(lr=lr, weight_decay=decay):
            name = f"{type(optimiser).__name__} {lr:g}"
        case _:
            return spell(optimiser)
    return name + (f", weight decay {decay:g}" if decay else "")


def _schedule(schedule: Schedule) -> str:
    match schedule:
        case Constant():
            return "constant"
        case Cosine():
            return "along half a cosine to 0"
        case OneCycle(warmup=warmup):
            return f"up for {100 * warmup:g} % of the steps, then down to 0"
        case Steps(drops=drops, factor_at_drop=factor):
            return f"times {factor:g} at {' and '.join(f'{100 * drop:g} %' for drop in drops)}"
    return spell(schedule)


def _images(recipe: Recipe) -> str:
    match recipe.augment:
        case Unchanged():
            return ""
        case CropFlip(crop=crop, flip=flip):
            return f"crops of {crop} pixels" * bool(crop) + " and " * bool(crop and flip) + "mirrored" * flip
        case SimCLRView():
            return "views of SimCLR"
    return spell(recipe.augment)


def recipes_table(recipes: dict[str, Recipe]) -> Table:
    """Show every recipe, its settings in words."""
    return lay_out(("=recipe", "how it trains"), ((name, recipe_words(recipe)) for name, recipe in recipes.items()))


# --- one network ------------------------------------------------------------------------------------------------------


def card_parts(card: Record) -> list[Any]:
    """Describe a trained network: what it is, its accuracy with intervals, for every class, and what it took."""
    parts: list[Any] = [_what(card)]
    for scored in card["scores"]:
        parts += ["", _accuracy(scored), "", classes_table(scored["classes"])]
    return [*parts, "", _took(card)]


def classes_table(classes: dict[str, Record]) -> Table:
    """Show the accuracy in each class, in %, with its 95 % interval."""
    rows = ((name, *accuracy_cells(found), f"{found['n']:,}") for name, found in classes.items())
    return lay_out(("class", ">accuracy", ">95 %", ">images"), rows)


def accuracy_cells(found: Mapping[str, float]) -> tuple[str, str]:
    """Return an accuracy and its interval, in %."""
    return f"{100 * found['value']:.1f}", f"[{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _what(card: Record) -> str:
    data, until = card["data"], card["until"]
    ended = f", up to epoch {until}" if until is not None else ""
    on = f"{data['name']} ({data['samples']:,} images)"
    return f"{card['name']}: {card['source']} trained on {on}{ended}, seed {card['seed']}"


def _accuracy(scored: Record) -> str:
    value, interval = accuracy_cells(scored["accuracy"])
    return f"accuracy on {scored['data']['name']} {value} % {interval}, {scored['data']['samples']:,} images"


def _took(card: Record) -> str:
    images = card["epochs"] * card["data"]["samples"]
    pace = f", {images / card['seconds']:,.0f} images/s" if card["seconds"] else ""
    size = in_words(4 * card["parameters"])
    return (
        f"{card['epochs']:.4g} epochs, {card['steps']:,} steps in {clock(card['seconds'])}{pace} on "
        f"{card['device']}; {card['parameters']:,} parameters, {size}"
    )


# --- data -------------------------------------------------------------------------------------------------------------


def labels_table(counts: pd.DataFrame) -> Table:
    """Show how many samples of every class are in every role: ``counts`` has a row per role, a column per class."""
    rows = ((name, *(f"{int(n):,}" for n in counts[name])) for name in counts.columns)
    return lay_out(("class", *(f">{role}" for role in counts.index)), rows)

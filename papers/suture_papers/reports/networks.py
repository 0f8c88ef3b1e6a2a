"""Networks, their training and their accuracy, for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from suture.extend import Record, clock, in_words, lay_out
from suture_papers.training import Recipe


def recipes_table(recipes: dict[str, Recipe]) -> Table:
    """Show every recipe as the call that makes it, with all of its settings."""
    return lay_out(("=recipe", "made by"), ((name, str(recipe)) for name, recipe in recipes.items()))


# --- one network ------------------------------------------------------------------------------------------------------


def card_parts(card: Record) -> list[Any]:
    """Describe a trained network: its card, its accuracy with intervals, for every class, and its cost."""
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

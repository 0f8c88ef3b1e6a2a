"""What names on the command line stand for: families of stitches, fits, variants of data, recipes, controls, runners.

A family, a fit or a variant is written as its call: its name, then ``key=value`` where a setting is not the default's
(``conv,kernel=3``, ``task-loss,steps=100``, ``relabelled,label=truck,to=ship``). A published fit goes by its name, and
its settings are changed in the same way (``bansal2021,steps=4000``). Values are Python literals; a setting
that is a text needs no quotes unless it has spaces or commas.
"""

import ast
import difflib
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, get_args, get_type_hints

from suture import controls as known_controls
from suture.controls import Control
from suture.data.variants import VARIANTS, Variant
from suture.errors import SutureError
from suture.fits import BestOf, Fast, Fit, LeastSquares, MatchActivations, Random, TaskLoss
from suture.recipes import RECIPES as PUBLISHED_FITS
from suture.runners import Local, Ray, Runner
from suture.sizes import parse_size
from suture.stitches import FAMILIES, Stitch
from suture.zoo.recipes import RECIPES
from suture.zoo.training import Recipe

FITS: dict[str, type[Fit] | Fit] = {
    "fast": Fast,
    "task-loss": TaskLoss,
    "least-squares": LeastSquares,
    "match-activations": MatchActivations,
    "random": Random,
    "best-of": BestOf,
    **PUBLISHED_FITS,
}
"""Every fit, by its name; the published ones as they are."""

_PLAIN = (bool, int, float, str, type(None))


def stitch_named(text: str) -> Stitch:
    """Give the family of stitches that a text names. Raises ``SutureError``, and what the family raises."""
    made: Stitch = _called("stitch", text, FAMILIES)
    return made


def fit_named(text: str) -> Fit:
    """Give the fit that a text names. Raises ``SutureError``, and what the fit raises."""
    made: Fit = _called("fit", text, FITS)
    return made


def variants_named(texts: Sequence[str] | None) -> tuple[Variant, ...]:
    """Give the variants of data that texts name, in order. Raises ``SutureError``, and what a variant raises."""
    return tuple(_called("variant", text, VARIANTS) for text in texts or ())


def recipe_named(text: str, epochs: int | None = None, batch: int | None = None, lr: float | None = None) -> Recipe:
    """Give the recipe of training that a text names, with other epochs, batch or learning rate where they are given.

    Raises ``SutureError`` for any other name, and for settings below what training needs.
    """
    _check_name("recipe", "recipes", text, RECIPES)
    for name, value in (("epochs", epochs), ("batch", batch)):
        if value is not None and value < 1:
            raise SutureError(f"--{name} {value}: give at least 1")
    if lr is not None and not 0 < lr < float("inf"):
        raise SutureError(f"--lr {lr:g}: give a learning rate above 0")
    recipe = RECIPES[text]
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs, steps=None)
    if batch is not None:
        recipe = replace(recipe, batch=batch)
    return recipe if lr is None else replace(recipe, optimiser=replace(recipe.optimiser, lr=lr))  # type: ignore[type-var]


def device_named(text: str) -> str:
    """Give the device that a text names, ``cpu`` or ``cuda``. Raises ``SutureError`` for any other, or none there."""
    import torch

    if text not in ("cpu", "cuda"):
        raise SutureError(f"--device {text}: give cpu or cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise SutureError("--device cuda: there is no CUDA device here that torch can use; give --device cpu")
    return text


def controls_named(text: str) -> tuple[Control, ...]:
    """Give the controls that a text names: ``all``, ``none``, or names separated by commas. Raises ``SutureError``."""
    by_name = {control.__name__.replace("_", "-"): control for control in known_controls.DEFAULT}
    if text in ("all", "none"):
        return known_controls.DEFAULT if text == "all" else ()
    names = [name.strip().replace("_", "-").replace(" ", "-") for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise SutureError(f"no control '{name}'; valid controls: all, none, {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def runner_named(text: str, workers: int | None = None, ram: str | None = None, disk: str | None = None) -> Runner:
    """Give the runner that a text names, ``local``, ``ray`` or ``ray:ADDRESS``, with its settings.

    Raises ``SutureError`` for any other, for settings that no runner takes, and for those of this machine elsewhere.
    """
    given = {"workers": workers, "ram": ram, "disk": disk}
    if workers is not None and workers < 1:
        raise SutureError(f"--workers {workers}: give at least 1, which is one process alone")
    for name, size in (("ram", ram), ("disk", disk)):
        try:
            parse_size(size if size is not None else 0)
        except SutureError as error:
            raise SutureError(f"--{name}: {error}") from error
    kind, separator, address = text.partition(":")
    if text == "local":
        return Local(workers=workers, ram=ram, disk=disk)
    if kind != "ray" or (separator and not address):
        raise SutureError(f"--on {text}: give local, ray, or ray:ADDRESS, such as ray:auto or ray:10.0.0.5:6379")
    others = [f"--{name}" for name, value in given.items() if value is not None]
    if others:
        raise SutureError(f"--on {text} takes no {', '.join(others)}, which is for this machine; leave it out")
    return Ray(address=address or None)


def _called(kind: str, text: str, known: Mapping[str, Any]) -> Any:
    """Make what a call names, a class or one of its objects, with its settings."""
    name, _, settings = (part.strip() for part in text.partition(","))
    _check_name(kind, {"stitch": "stitches"}.get(kind, f"{kind}s"), name, known)
    named = known[name]
    allowed = _settable(named if isinstance(named, type) else type(named))
    texts = {key for key, kinds in allowed.items() if str in kinds}
    given = _settings(f"--{kind} {text}", settings, texts)
    for key, value in given.items():
        if key not in allowed:
            takes = ", ".join(allowed) or "no setting"
            raise SutureError(f"--{kind} {text}: {name} has no setting '{key}'; it takes {takes}")
        if not _suits(value, allowed[key]):
            wanted = " or ".join("None" if one is types.NoneType else one.__name__ for one in allowed[key])
            raise SutureError(f"--{kind} {text}: {key}={value!r} is no {wanted}")
    if not isinstance(named, type):
        return replace(named, **given)
    needed = [f.name for f in fields(named) if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key not in given:
            raise SutureError(f"--{kind} {text}: {name} needs its {key}; write {name},{key}=…")
    return named(**given)


def _check_name(kind: str, many: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise SutureError(f"no {kind} '{name}'; {meant}valid {many}: {', '.join(known)}")


def _settable(of: type) -> dict[str, tuple[type, ...]]:
    """The fields that a plain value can set, with the types that suit them."""
    hints = get_type_hints(of)
    found = {f.name: get_args(hints[f.name]) or (hints[f.name],) for f in fields(of) if f.init}
    return {name: kinds for name, kinds in found.items() if all(kind in _PLAIN for kind in kinds)}


def _settings(where: str, text: str, texts: Collection[str]) -> dict[str, Any]:
    """The values by key in ``key=value,key=value``; those of the keys in ``texts`` as they are written."""
    wrong = (
        f"{where}: write settings as key=value, each once, separated by commas, with numbers, True or False as values"
        + (", and texts with spaces or commas in quotes" if texts else "")
    )
    try:
        call = ast.parse(f"call({_quoted(text, texts)})", mode="eval").body
        assert isinstance(call, ast.Call)
        given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise SutureError(wrong) from error
    if call.args or None in given or len(given) < len(call.keywords):
        raise SutureError(wrong)
    return {str(key): value for key, value in given.items()}


def _quoted(text: str, texts: Collection[str]) -> str:
    """The settings with quotes around the values of the keys in ``texts``, where they have none."""
    written = []
    for setting in re.split(r""",(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""", text):
        key, equals, value = (part.strip() for part in setting.partition("="))
        plain = equals and key in texts and not value.startswith(("'", '"'))
        written.append(f"{key}={value!r}" if plain else setting)
    return ",".join(written)


def _suits(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)

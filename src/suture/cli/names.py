"""What names on the command line stand for: stitches, fits, variants, recipes, controls, runners, indices, traits.

A family, a fit or a variant is written as its call: its name, then ``key=value`` where a setting is not the default's
(``conv,kernel=3``, ``task-loss,steps=100``, ``relabelled,label=truck,to=ship``). A published fit goes by its name, and
its settings are changed in the same way (``bansal2021,steps=4000``). Values are Python literals; a setting
that is a text needs no quotes unless it has spaces or commas.
"""

import ast
import difflib
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from suture.common.errors import DataError, SutureError
from suture.common.sizes import parse_size
from suture.core.stitches import FAMILIES, Stitch
from suture.data import Data, load_data
from suture.data.preprocess import check_pictures
from suture.data.variants import VARIANTS, Covered, Variant
from suture.fits import BestOf, Fast, Fit, LeastSquares, MatchActivations, Random, TaskLoss
from suture.fits.recipes import RECIPES as PUBLISHED_FITS
from suture.measurement import complexity
from suture.measurement.indices import INDICES, Index
from suture.measurement.scores import traits
from suture.measurement.trials import baselines
from suture.measurement.trials import controls as known_controls
from suture.measurement.trials.controls import Control
from suture.runs.runners import Local, Ray, Runner
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

BASELINES: dict[str, Control] = {
    "linear-probe": baselines.linear_probe,
    "fine-tuned": baselines.fine_tuned,
    "retrained": baselines.retrained,
    "plugged-in": baselines.plugged,
}
"""Every baseline, by its name."""

MEASURES: dict[str, type[complexity.Complexity]] = {
    "gradient-norm": complexity.GradientNorm,
    "mean-sharpness": complexity.MeanSharpness,
    "worst-sharpness": complexity.WorstSharpness,
    "top-eigenvalue": complexity.TopEigenvalue,
    "hessian-trace": complexity.HessianTrace,
    "gzip-size": complexity.GzipSize,
    "parameters": complexity.Parameters,
    "flops": complexity.Flops,
    "numerical-rank": complexity.NumericalRank,
    "effective-rank": complexity.EffectiveRank,
}
"""Every measure of complexity, by its name."""
GROUPS = {
    "landscape": complexity.LANDSCAPE,
    "curvature": complexity.CURVATURE,
    "size": complexity.SIZE,
    "ranks": complexity.RANKS,
}
"""Measures that go by one name."""
TRAITS = ("accuracy", "confusion", "blackout", "trigger", "fgsm", "variant")  #: what a trait may begin with
_SIDES = ("top", "bottom", "left", "right")

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
    check_least({"epochs": epochs, "batch": batch}, epochs=1, batch=1)
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
    """Give the controls that a text names, and baselines: names separated by commas, ``all`` controls, or ``none``.

    Raises ``SutureError``.
    """
    by_name = {control.__name__.replace("_", "-"): control for control in known_controls.DEFAULT}
    every = by_name | BASELINES
    if text == "none":
        return ()
    names = [name.strip().replace("_", "-").replace(" ", "-") for name in text.split(",")]
    names = [each for name in names for each in (by_name if name == "all" else [name])]
    if "none" in names:
        raise SutureError(f"--controls {text}: 'none' stands alone; leave it out, or give nothing else")
    for name in names:
        if name not in every:
            near = _near(name, every)
            meant = f"did you mean '{near[0]}'? " if near else ""
            raise SutureError(
                f"no control '{name}'; {meant}valid controls: all, none, {', '.join(by_name)}; "
                f"and baselines: {', '.join(BASELINES)}"
            )
    return tuple(every[name] for name in dict.fromkeys(names))


def indices_named(text: str) -> tuple[Index, ...]:
    """Give the indices that a text names: ``all``, or names separated by commas, each with its settings behind it.

    Raises ``SutureError``, and what an index raises.
    """
    if text == "all":
        return tuple(INDICES.values())
    return tuple(_called("index", part, INDICES) for part in _parts(text))


def measures_named(text: str) -> tuple[complexity.Complexity, ...]:
    """Give the measures of complexity that a text names, or groups of them, each with its settings behind it.

    Raises ``SutureError``, and what a measure raises.
    """
    found: list[complexity.Complexity] = []
    for part in _parts(text):
        found += GROUPS[part] if part in GROUPS else [_called("measure", part, MEASURES)]
    return tuple(dict.fromkeys(found))


def trait_named(text: str) -> Callable[[Data], traits.Trait]:
    """Give what makes of data the trait that a text names: a kind of ``TRAITS``, a colon, and what it needs.

    Raises ``SutureError`` for any other; what it gives raises ``DataError`` where the data have no such class or pixel.
    """
    kind, colon, given = (part.strip() for part in text.partition(":"))
    _check_name("trait", "traits", kind, TRAITS)
    where = f"trait {text}"
    if not (colon and given):
        raise SutureError(f"{where}: write what it is of, such as {_TRAIT_EXAMPLES[kind]}")
    match kind:
        case "accuracy":
            return lambda data: traits.knows(data, given)
        case "confusion":
            label, to = _two(where, given, ">", kind)
            return lambda data: traits.confuses(data, label, to)
        case "blackout":
            return _blackout(where, given)
        case "trigger":
            to, place = _two(where, given, "@", kind)
            patch = _rectangle(where, place, kind)
            return lambda data: traits.triggered(data, to, patch)
        case "fgsm":
            attack = traits.falls_to(traits.FGSM(_numbers(where, given, (1,), kind)[0]))
            return lambda data: attack
    on = traits.accuracy_on(_called("variant", given, VARIANTS))
    return lambda data: on


_TRAIT_EXAMPLES = {
    "accuracy": "accuracy:truck",
    "confusion": "confusion:car>cat",
    "blackout": "blackout:top or blackout:0,0,4,8",
    "trigger": "trigger:cat@0,0,3,3,1.0",
    "fgsm": "fgsm:0.03",
    "variant": "variant:digit",
}


def _blackout(where: str, given: str) -> Callable[[Data], traits.Trait]:
    if given not in _SIDES:
        covered = traits.accuracy_on(_rectangle(where, given, "blackout"))
        return lambda data: covered

    def half(data: Data) -> traits.Trait:
        check_pictures(f"{where}: blackout", data.example)
        height, width = data.fit.images.shape[2:]
        down, across = (-(-height // 2), width) if given in ("top", "bottom") else (height, -(-width // 2))
        top, left = (height - down if given == "bottom" else 0), (width - across if given == "right" else 0)
        return traits.accuracy_on(Covered(top, left, down, across))

    return half


def _rectangle(where: str, given: str, kind: str) -> Covered:
    top, left, height, width, *value = _numbers(where, given, (4, 5), kind)
    return Covered(int(top), int(left), int(height), int(width), *value)


def _numbers(where: str, given: str, counts: tuple[int, ...], kind: str) -> list[float]:
    try:
        found = [float(part) for part in given.split(",")]
    except ValueError:
        found = []
    pixels = found[:4] if counts[0] == 4 else []
    if len(found) not in counts or not all(map(isfinite, found)) or any(part != int(part) for part in pixels):
        raise SutureError(f"{where}: write it with numbers, such as {_TRAIT_EXAMPLES[kind]}")
    return found


def _two(where: str, given: str, sign: str, kind: str) -> tuple[str, str]:
    first, _, second = (part.strip() for part in given.partition(sign))
    if not (first and second):
        raise SutureError(f"{where}: write both, such as {_TRAIT_EXAMPLES[kind]}")
    return first, second


def _parts(text: str) -> list[str]:
    """Names separated by commas, each with the settings behind it, ``key=value``, as one text."""
    parts: list[str] = []
    for word in text.split(","):
        if "=" in word and parts:
            parts[-1] += f",{word}"
        else:
            parts.append(word.strip())
    return list(dict.fromkeys(parts))


def loader_named(folder: str | None) -> Callable[[str], Data]:
    """What loads data by the names of the ledger, once each: from the folders of these names in one, or from the hub.

    Raises ``DataError`` where there is no such folder.
    """
    if folder is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"--data {folder} is no folder; give one that has the folders mnist and cifar10")

    @cache
    def load(name: str) -> Data:
        if folder is None:
            return load_data(name)
        return load_data("+".join(map(str, data_folders(folder, name))), name=name)

    return load


def data_folders(folder: str, name: str) -> tuple[Path, ...]:
    """The folders of a data set of the ledger within that of ``--data``. Raises ``DataError`` where one is missing."""
    found = tuple(Path(folder).expanduser() / part for part in name.split("+"))
    for path in found:
        if not path.is_dir():
            raise DataError(
                f"--data {folder} has no folder {path.name}; put the parquet files of {path.name} into {path}, as the "
                "Hugging Face hub has them, or leave --data out to load them from the hub"
            )
    return found


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


def check_least(chosen: Any, **least: int) -> None:
    """Raise ``SutureError`` where a number that was given by an option is less than it may be."""
    for name, low in least.items():
        if chosen[name] is not None and chosen[name] < low:
            raise SutureError(f"--{name.replace('_', '-')} {chosen[name]}: give at least {low}")


def _called(kind: str, text: str, known: Mapping[str, Any]) -> Any:
    """Make what a call names, a class or one of its objects, with its settings."""
    name, _, settings = (part.strip() for part in text.partition(","))
    _check_name(kind, {"stitch": "stitches", "index": "indices"}.get(kind, f"{kind}s"), name, known)
    named = known[name]
    allowed = _settable(named if isinstance(named, type) else type(named))
    texts = {key for key, kinds in allowed.items() if str in kinds}
    option = {"index": "by", "measure": "by"}.get(kind, kind)
    given = _settings(f"--{option} {text}", settings, texts)
    for key, value in given.items():
        if key not in allowed:
            takes = ", ".join(allowed) or "no setting"
            raise SutureError(f"--{option} {text}: {name} has no setting '{key}'; it takes {takes}")
        if not _suits(value, allowed[key]):
            wanted = " or ".join("None" if one is types.NoneType else one.__name__ for one in allowed[key])
            raise SutureError(f"--{option} {text}: {key}={value!r} is no {wanted}")
    if not isinstance(named, type):
        return replace(named, **given)
    needed = [f.name for f in fields(named) if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key not in given:
            raise SutureError(f"--{option} {text}: {name} needs its {key}; write {name},{key}=…")
    return named(**given)


def _check_name(kind: str, many: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = _near(name, known)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise SutureError(f"no {kind} '{name}'; {meant}valid {many}: {', '.join(known)}")


def _near(name: str, known: Collection[str]) -> list[str]:
    """Names of which this is a part, else those that are written alike."""
    return [one for one in known if len(name) > 1 and name in one] or difflib.get_close_matches(name, known, n=1)


def _settable(of: type) -> dict[str, tuple[type, ...]]:
    """The fields that a plain value can set, with the types that suit them."""
    hints = get_type_hints(of)
    hints = {name: str if get_origin(hint) is Literal else hint for name, hint in hints.items()}
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

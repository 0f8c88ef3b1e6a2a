"""The names on the command line and in Python: ``name → "module:object"``, or ``"module:REGISTRY:name"``.

Nothing is imported before it is made, so that help, refusals and completion need not wait for torch. A name may have
settings behind it (``conv,kernel=3``, ``task-loss,steps=4000``): the fields of its dataclass that are plain values.
``conv:3`` gives the first of them. Installed packages add names of their own (``common.plugins``).
"""

from collections.abc import Collection, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from suture.common.calls import literal, read_settings, split_at_commas
from suture.common.errors import SutureError
from suture.common.plugins import added


def _in(registry: str, names: str) -> dict[str, str]:
    return {name: f"{registry}:{name}" for name in names.split()}


def _classes(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name.title().replace('-', '')}" for name in names.split()}


def _functions(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name.replace('-', '_')}" for name in names.split()}


NAMES: dict[str, dict[str, str]] = {
    "stitch": _in(
        "suture.core.stitches:FAMILIES",
        "identity linear conv low-rank orthogonal permutation diagonal two-layer strided-conv upsampled-conv "
        "conv-linear full-linear pooled-linear maps-to-tokens tokens-to-maps tokens-to-tokens",
    ),
    "fit": _classes(
        "suture.fits",
        "converged quick task-loss least-squares match-activations random best-of",
    ),
    "variant": _in("suture.data.changes:VARIANTS", "covered"),
    "control": _functions(
        "suture.measurement.trials.controls",
        "itself untrained-sender untrained-receiver untrained-both shuffled-pairs clustered-noise",
    )
    | _functions("suture.measurement.trials.baselines", "linear-probe fine-tuned retrained")
    | {"plugged-in": "suture.measurement.trials.baselines:plugged"},
    "index": _in(
        "suture.measurement.indices:INDICES",
        "linear_cka minibatch_cka rbf_cka mean_cca svcca pwcca procrustes procrustes_angle rsa_pearson rsa_spearman "
        "mutual_knn cknna cknna_unbiased linear_regression linear_predictivity",
    ),
}  #: by kind; tests/cli/test_parser.py holds them equal to what there is
for _names in added("names").values():
    for _kind, _own in _names.items():
        NAMES.setdefault(_kind, {}).update(_own)

DATA = ("digits", "mnist", "cifar10", "mnist+cifar10")  #: data sets with a name; others are hub ids or folders
_PLURALS = {"stitch": "stitches", "index": "indices", "study": "studies"}
_PLAIN = (bool, int, float, str, NoneType)


def suggestion(name: str, names: Collection[str], sign: str = "") -> str:
    """Return the name that was probably meant, behind its sign, as a question; empty if none is near."""
    near = [one for one in names if len(name) > 1 and name in one] or get_close_matches(name, names, 1)
    return f"did you mean {sign}{near[0]}? " if near else ""


def check_name(what: str, name: str, names: Collection[str]) -> None:
    """Raise ``SutureError`` with the nearest of the names, or else all of them, if this is none of them."""
    if name not in names:
        every = f"valid {_PLURALS.get(what, f'{what}s')}: {', '.join(names)}"
        raise SutureError(f"no {what} '{name}'; {suggestion(name, names).strip() or every}")


def split_names(text: str) -> list[str]:
    """Return the names between the commas of a text, each once, with the settings (``key=value``) behind it."""
    parts: list[str] = []
    for word in split_at_commas(text):
        if "=" in word and parts:
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    return list(dict.fromkeys(parts))


def make(kind: str, text: str, where: str = "") -> Any:
    """Return the object that a text names, with its settings: ``conv,kernel=3`` and ``conv:3`` are ``Conv(kernel=3)``.

    ``where`` describes the place of the text in errors; by default it is the option of the command line.

    Raises ``SutureError`` for an unknown name, setting or value, and the errors of the object itself.
    """
    name, _, written = (part.strip() for part in text.partition(","))
    name, _, first = name.partition(":")
    check_name(kind, name, NAMES[kind])
    module, attribute, *key = NAMES[kind][name].split(":")
    found = getattr(import_module(module), attribute)
    found = found[key[0]] if key else found
    if not written and not first and not isinstance(found, type):
        return found
    of = found if isinstance(found, type) else type(found)
    where = where or f"--{_CALLED.get(kind, kind)} {text}"
    settings = [field.name for field in fields(of) if field.init] if is_dataclass(of) else []
    if first and not settings:
        raise SutureError(f"{where}: {name} has no setting")
    if first:
        written = ",".join(filter(None, [f"{settings[0]}={first}", written]))
    given = _settings(where, name, written, of, settings)
    if not isinstance(found, type):
        return replace(found, **given)
    for field in fields(of):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in given:
            raise SutureError(f"{where}: {name} needs its {field.name}; write {name},{field.name}=…")
    return found(**given)


_CALLED = {"index": "by", "measure": "by"}  #: the options that do not bear the name of their kind


def _settings(where: str, name: str, written: str, of: type, settings: Sequence[str]) -> dict[str, Any]:
    """Return the settings of an object of this class as values of the types that its fields have."""
    hints = {key: str if get_origin(hint) is Literal else hint for key, hint in get_type_hints(of).items()}
    kinds = {name: get_args(hints[name]) or (hints[name],) for name in settings}
    allowed = {key: found for key, found in kinds.items() if all(kind in _PLAIN for kind in found)}
    try:
        texts = read_settings(written) if written else {}
    except SutureError as error:
        raise SutureError(f"{where} {error}") from error
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if key not in allowed:
            raise SutureError(f"{where}: {name} has no setting '{key}'; it takes {', '.join(allowed) or 'none'}")
        quoted = text.startswith(("'", '"'))
        values[key] = text if str in allowed[key] and not quoted else literal(text)
        kind = type(values[key])
        if kind not in allowed[key] and not (kind is int and float in allowed[key]):
            wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in allowed[key])
            raise SutureError(f"{where}: {key}={text} is not of type {wanted}")
    return values


def make_all(kind: str, texts: Collection[str] | None) -> tuple[Any, ...]:
    """Return the objects that the texts name, in their order."""
    return tuple(make(kind, text) for text in texts or ())


def named(kind: str, given: Any, where: str = "") -> Any:
    """Return the object that a text names; other values as they are. Raises ``SutureError`` as ``make`` does."""
    return make(kind, given, where or f"{kind}={given!r}") if isinstance(given, str) else given

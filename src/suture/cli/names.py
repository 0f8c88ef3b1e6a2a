"""What the names on the command line stand for: ``name → "module:object"``, or ``"module:REGISTRY:name"``.

Nothing is imported before it is made, so that help, refusals and completion need not wait for torch. A name may have
settings behind it (``conv,kernel=3``, ``bansal2021,steps=4000``, ``relabelled,label=truck,to=ship``): the fields of its
dataclass that are plain values.
"""

from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields, replace
from importlib import import_module
from types import NoneType
from typing import Any, Literal, final, get_args, get_origin, get_type_hints

from suture.cli.command import check_name
from suture.common.calls import literal, read_settings, split_at_commas
from suture.common.errors import SutureError


def _in(registry: str, names: str) -> dict[str, str]:
    return {name: f"{registry}:{name}" for name in names.split()}


NAMES: dict[str, dict[str, str]] = {
    "stitch": _in(
        "suture.core.stitches:FAMILIES",
        "identity linear conv low-rank orthogonal permutation diagonal strided-conv upsampled-conv conv-linear "
        "full-linear maps-to-tokens tokens-to-maps tokens-to-tokens",
    ),
    "fit": {
        "fast": "suture.fits:Fast",
        "task-loss": "suture.fits:TaskLoss",
        "least-squares": "suture.fits:LeastSquares",
        "match-activations": "suture.fits:MatchActivations",
        "random": "suture.fits:Random",
        "best-of": "suture.fits:BestOf",
    }
    | _in(
        "suture.fits.recipes:RECIPES",
        "bansal2021 hernandez2022 hernandez2022-copy oxford2025 smith2024 smith2024-noise smith2024-vgg csiszarik2021",
    ),
    "variant": _in(
        "suture.data.variants:VARIANTS",
        "subset half without relabelled random-labels super-classes objects-animals grey3 correlated digit colour "
        "colour-only decorrelated blacked-out covered",
    ),
    "control": {
        "itself": "suture.measurement.trials.controls:itself",
        "untrained-sender": "suture.measurement.trials.controls:untrained_sender",
        "untrained-receiver": "suture.measurement.trials.controls:untrained_receiver",
        "untrained-both": "suture.measurement.trials.controls:untrained_both",
        "shuffled-pairs": "suture.measurement.trials.controls:shuffled_pairs",
        "clustered-noise": "suture.measurement.trials.controls:clustered_noise",
    },
    "baseline": {
        "linear-probe": "suture.measurement.trials.baselines:linear_probe",
        "fine-tuned": "suture.measurement.trials.baselines:fine_tuned",
        "retrained": "suture.measurement.trials.baselines:retrained",
        "plugged-in": "suture.measurement.trials.baselines:plugged",
    },
    "index": _in(
        "suture.measurement.indices:INDICES",
        "linear_cka rbf_cka mean_cca svcca pwcca procrustes procrustes_angle rsa_pearson rsa_spearman mutual_knn cknna "
        "linear_regression",
    ),
    "measure": {
        "gradient-norm": "suture.measurement.complexity:GradientNorm",
        "mean-sharpness": "suture.measurement.complexity:MeanSharpness",
        "worst-sharpness": "suture.measurement.complexity:WorstSharpness",
        "top-eigenvalue": "suture.measurement.complexity:TopEigenvalue",
        "hessian-trace": "suture.measurement.complexity:HessianTrace",
        "gzip-size": "suture.measurement.complexity:GzipSize",
        "parameters": "suture.measurement.complexity:Parameters",
        "flops": "suture.measurement.complexity:Flops",
        "numerical-rank": "suture.measurement.complexity:NumericalRank",
        "effective-rank": "suture.measurement.complexity:EffectiveRank",
    },
    "group of measures": {
        "landscape": "suture.measurement.complexity:LANDSCAPE",
        "curvature": "suture.measurement.complexity:CURVATURE",
        "size": "suture.measurement.complexity:SIZE",
        "ranks": "suture.measurement.complexity:RANKS",
    },
    "recipe": _in(
        "suture.zoo.recipes:RECIPES",
        "bansal2021 bansal2021-myrtle bansal2021-vit oxford2025 oxford2025-simple oxford2025-complex smith2024 "
        "smith2024-vgg simclr linear digits fast fast-steps fast-vit fast-mnist stepped simclr-small oxford-small "
        "oxford-small-mlp simple-small complex-small smith-vgg-small smith-vgg-slow",
    ),
    "network": _in("suture.zoo:NETWORKS", "cnn convnet mlp myrtle resnet resnet164 resnet50 vgg19 vit"),
    "study": _in(
        "suture.studies:STUDIES",
        "bansal-2A bansal-2A-disjoint bansal-2A-random bansal-2B bansal-2C bansal-3A bansal-3B bansal-3C bansal-4 "
        "bansal-5 bansal-6 bansal-7 bansal-8 bansal-9 bansal-probe bansal-invariance bansal-fold hernandez-2 "
        "hernandez-2d hernandez-3 hernandez-random-both hernandez-random-receiver hernandez-random-sender "
        "hernandez-copy oxford-4.1-mlp oxford-4.1-cnn oxford-4.2 oxford-4.3a oxford-4.3b oxford-4.4-fig5 "
        "oxford-4.4-fig6 oxford-6.1 oxford-6.2 oxford-control smith-4.1 smith-1c smith-4.2 smith-4.2-noise smith-C1 "
        "smith-C5 smith-C2",
    ),
}  #: by kind; tests/cli/test_names.py holds them equal to what there is

DATA = ("digits", "mnist", "cifar10", "mnist+cifar10")  #: data sets with a name; others are hub ids or folders
SCALES = ("tiny", "small", "paper")
_PLURALS = {"stitch": "stitches", "index": "indices", "study": "studies"}
_PLAIN = (bool, int, float, str, NoneType)


def names_of(*kinds: str) -> list[str]:
    """Return the names of these kinds."""
    return [name for kind in kinds for name in NAMES[kind]]


@final
@dataclass(frozen=True)
class NameOption:
    """The type of an option whose value is a name of these kinds, or ``many`` of them between commas.

    argparse calls it to check the value, argcomplete to complete it. ``also`` are words with a meaning of their own.
    """

    kinds: tuple[str, ...]
    also: tuple[str, ...] = ()
    many: bool = False

    def __call__(self, text: str) -> str:
        """Return the text. Raises ``SutureError`` if a name in it is none of these kinds."""
        for part in split_names(text) if self.many else [text]:
            check_name(self.kinds[0], part.partition(",")[0].strip(), self._names(), _PLURALS.get(self.kinds[0]))
        return text

    def complete(self, prefix: str, **_: object) -> list[str]:
        """Return what a value that begins like this may become."""
        before, comma, last = prefix.rpartition(",") if self.many else ("", "", prefix)
        there = before.split(",")
        return [f"{before}{comma}{name}" for name in self._names() if name.startswith(last) and name not in there]

    def _names(self) -> list[str]:
        return [*self.also, *names_of(*self.kinds)]


def split_names(text: str) -> list[str]:
    """Return the names between the commas of a text, each once, with the settings (``key=value``) behind it."""
    parts: list[str] = []
    for word in split_at_commas(text):
        if "=" in word and parts:
            parts[-1] += f",{word}"
        else:
            parts.append(word)
    return list(dict.fromkeys(parts))


def make(kind: str, text: str) -> Any:
    """Return what a text names, with its settings: ``conv,kernel=3`` is ``Conv(kernel=3)``.

    Raises ``SutureError`` for a name, a setting or a value that there is not, and whatever the object itself raises.
    """
    name, _, written = (part.strip() for part in text.partition(","))
    check_name(kind, name, NAMES[kind], _PLURALS.get(kind))
    module, attribute, *key = NAMES[kind][name].split(":")
    found = getattr(import_module(module), attribute)
    found = found[key[0]] if key else found
    if not written and not isinstance(found, type):
        return found
    of = found if isinstance(found, type) else type(found)
    where = f"--{_OPTIONS.get(kind, kind)} {text}"
    given = _settings(where, name, written, of)
    if not isinstance(found, type):
        return replace(found, **given)
    for field in fields(of):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in given:
            raise SutureError(f"{where}: {name} needs its {field.name}; write {name},{field.name}=…")
    return found(**given)


_OPTIONS = {"index": "by", "measure": "by"}  #: the options that do not bear the name of their kind


def _settings(where: str, name: str, written: str, of: type) -> dict[str, Any]:
    """Return the settings of an object of this class as values of the types that its fields have."""
    hints = {key: str if get_origin(hint) is Literal else hint for key, hint in get_type_hints(of).items()}
    kinds = {field.name: get_args(hints[field.name]) or (hints[field.name],) for field in fields(of) if field.init}
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
        if not _suits(values[key], allowed[key]):
            wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in allowed[key])
            raise SutureError(f"{where}: {key}={text} is no {wanted}")
    return values


def _suits(value: object, kinds: Collection[type]) -> bool:
    if isinstance(value, bool):  # which Python takes for a number
        return bool in kinds
    return isinstance(value, tuple(kinds)) or (isinstance(value, int) and float in kinds)


def make_all(kind: str, texts: Collection[str] | None) -> tuple[Any, ...]:
    """Return what the texts name, in their order."""
    return tuple(make(kind, text) for text in texts or ())

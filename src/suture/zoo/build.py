"""What model strings name, built: the one place that resolves them.

The project's own networks come with the preprocessing that ``suture.zoo.networks`` names for them, those of a
file with what its factory returns, all others with none; the string has the last word.

Nothing is downloaded unless asked for, by ``pretrained=True`` (timm) or ``weights=DEFAULT`` (torchvision).
Only then does their preprocessing start from what those weights were published with (size, mean and standard
deviation; the whole image is resized, nothing is cropped). Weights that bring arguments of their own
(``image_size``, ``aux_logits``) want them named in the source, so that an untrained copy has the same architecture.

A file is run when it is resolved, as importing would run it. Its factory returns an untrained ``nn.Module``,
alone, with its ``Preprocess``, or with that and its stages, if it cannot be traced.
"""

import dataclasses
import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from suture.common.errors import SourceError
from suture.common.hashing import keyed_as
from suture.common.seeds import digest
from suture.core.network.tracing import Stage
from suture.data.samples import Preprocess
from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.model_strings import Source, parse_source
from suture.zoo.networks import NETWORKS, preprocess_of

_PRETRAINED = {"timm": "pretrained", "torchvision": "weights"}


@dataclass(frozen=True)
class Built:
    """What a source resolves to.

    ``factory`` builds the same architecture afresh, with random weights from torch's global generator,
    never pretrained; it can be sent to another process. ``preprocess`` maps float images in [0, 1] to what
    ``model`` takes; ``stages`` are what it is cut along, ``None`` if it is traced.
    """

    model: nn.Module
    factory: Callable[[], nn.Module]
    preprocess: Preprocess
    stages: Sequence[Stage] | None = None


def resolve(source: str | Source, checkpoint: str | Path | None = None) -> Built:
    """Build the model that a source names and, if it has a checkpoint, load it strictly.

    ``checkpoint`` gives one to a source without. With neither a checkpoint nor pretrained weights the model
    is random, from torch's global generator. Raises ``SourceError`` when the source does not resolve, and
    ``CheckpointError`` when the checkpoint does not fit or is unsafe to load.
    """
    source = parse_source(source) if isinstance(source, str) else source
    if checkpoint is not None and source.checkpoint is not None:
        raise SourceError(f"{source.text!r} has a checkpoint, and {str(checkpoint)!r} is another; keep one")
    model, preprocess, stages = _build(source)
    weights = source.checkpoint if checkpoint is None else checkpoint
    if weights is not None:
        load_checkpoint(model, weights)
    factory = functools.partial(_build_untrained, source)
    return Built(model, factory, dataclasses.replace(preprocess, **source.preprocess), stages)


def _build(source: Source) -> tuple[nn.Module, Preprocess, Sequence[Stage] | None]:
    factory = _FACTORIES[source.kind](source)
    try:
        made = factory(**source.arguments)
    except (Exception, SystemExit) as error:  # a factory may raise anything
        raise SourceError(f"{source.text!r}: {_explain(error, factory, source)}") from error
    match made:
        case nn.Module():
            return made, _wanted(made, source), None
        case (nn.Module() as model, Preprocess() as preprocess):
            return model, preprocess, None
        case (nn.Module() as model, Preprocess() as preprocess, [*stages]):
            return model, preprocess, cast(list[Stage], stages)  # which Network checks
    raise SourceError(
        f"{source.text!r}: {source.name} returned {made!r:.80}; it must return an nn.Module, alone, with its "
        "Preprocess, or with its Preprocess and the list of its stages"
    )


@keyed_as("build_untrained")
def _build_untrained(source: Source) -> nn.Module:
    asking = _PRETRAINED.get(source.kind)
    arguments = {key: value for key, value in source.arguments.items() if key != asking}
    return _build(dataclasses.replace(source, arguments=arguments))[0]


def _find_timm(source: Source) -> Callable[..., object]:
    import timm

    _check_name(
        source,
        [*timm.list_models(), *timm.list_pretrained()],
        "timm.list_models() and timm.list_pretrained()",
    )
    entry = timm.model_entrypoint(source.name.partition(".")[0])
    return functools.wraps(entry)(functools.partial(timm.create_model, source.name))


def _find_torchvision(source: Source) -> Callable[..., object]:
    import torchvision

    listing = "torchvision.models.list_models(module=torchvision.models)"
    _check_name(source, torchvision.models.list_models(module=torchvision.models), listing)
    published = torchvision.models.get_model_weights(source.name).__members__
    weights = source.arguments.get("weights")
    if weights is not None and str(weights).rpartition(".")[2] not in published:
        raise SourceError(f"{source.text!r}: no weights {weights!r}; {source.name} has {_list(published)}")
    return cast(Callable[..., object], torchvision.models.get_model_builder(source.name))


def _find_zoo(source: Source) -> Callable[..., object]:
    _check_name(source, NETWORKS, "suture.zoo.NETWORKS")
    return NETWORKS[source.name]


def _find_in_file(source: Source) -> Callable[..., object]:
    path, _, name = source.name.rpartition(":")
    module = _import_file(Path(path).expanduser(), source)
    factory = getattr(module, name, None)
    if isinstance(factory, nn.Module):
        made = f"{name} is a {type(factory).__name__} that is made already, and no function that makes one"
        remedy = f"add one, such as def make_{name}(): return {name}, and write {path}:make_{name}"
        raise SourceError(f"{source.text!r}: {made}; {remedy}")
    if callable(factory):
        return cast(Callable[..., object], factory)
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__}
    callables = [n for n, v in own.items() if callable(v) and not n.startswith("_")]
    raise SourceError(f"{source.text!r}: {path} has no callable {name!r}; its callables: {_list(callables)}")


_FACTORIES = {"timm": _find_timm, "torchvision": _find_torchvision, "zoo": _find_zoo, "file": _find_in_file}


def _check_name(source: Source, names: Collection[str], listing: str) -> None:
    if source.name not in names:
        nearest = _list(difflib.get_close_matches(source.name, names, n=5, cutoff=0.0))
        raise SourceError(f"no model {source.name!r} in {source.kind}; nearest: {nearest}; all {len(names)}: {listing}")


def _import_file(path: Path, source: Source) -> ModuleType:
    """Return the module of a file, run once for each content that the file has had."""
    if not path.is_file():
        raise SourceError(f"{source.text!r}: no file {path}; give its path, from {Path.cwd()} or absolute")
    code = path.read_bytes()
    name = f"suture_source_{digest(str(path.resolve()), code)[:16]}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        try:
            exec(compile(code, path, "exec"), module.__dict__)  # not imported: stale bytecode might stand in
        except (Exception, SystemExit) as error:  # a file may raise anything
            del sys.modules[name]
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{source.text!r}: running {path} raised {reason}; correct the file") from error
    return sys.modules[name]


# Pretrained weights


def asks_for_weights(source: Source) -> bool:
    """Return whether a source asks for published pretrained weights."""
    return bool(source.arguments.get(_PRETRAINED.get(source.kind, "")))


def _wanted(model: nn.Module, source: Source) -> Preprocess:
    """Return what pretrained weights were published with, or a network of the project wants; else the identity."""
    if source.kind == "zoo":
        return preprocess_of(source.name, source.arguments)
    if not asks_for_weights(source):
        return Preprocess()
    if source.kind == "timm":
        config = cast(dict[str, Any], model.pretrained_cfg)
        size = source.arguments.get("img_size", config["input_size"][-1])
        channels = source.arguments.get("in_chans", config["input_size"][0])
        return Preprocess(size, channels, tuple(config["mean"]), tuple(config["std"]))
    import torchvision

    weights = torchvision.models.get_model_weights(source.name).verify(source.arguments["weights"])
    images = weights.transforms()
    return Preprocess(images.crop_size[0], 3, tuple(images.mean), tuple(images.std))


# Saying what went wrong


def _explain(error: BaseException, factory: Callable[..., object], source: Source) -> str:
    accepted = _list(_list_accepted(factory))
    stranger = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if isinstance(error, TypeError) and stranger and stranger[1] in source.arguments:
        return f"{source.name} takes no argument {stranger[1]!r}; it takes {accepted}"
    reason = f"{type(error).__name__}: {error}"
    return f"{source.name} raised {reason}; correct its arguments, or the factory; it takes {accepted}"


def _list_accepted(factory: Callable[..., object]) -> list[str]:
    """Return the arguments that a factory takes, and those that it passes on to the class it returns."""
    signature = inspect.signature(factory)
    names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(names) == len(signature.parameters):
        return names
    made = signature.return_annotation
    if not inspect.isclass(made) or made is signature.empty:
        return [*names, "**kwargs"]
    return names + [p.name for p in inspect.signature(made).parameters.values() if p.default is not p.empty]


def _list(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"

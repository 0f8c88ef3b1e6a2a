"""Models by name: building the model that a string names, and loading its weights. ``zoo.sources`` reads strings.

Networks that packages add come with the preprocessing of their kind (``ModelKind``), those of a file with the one that
its factory returns, all others with none. Settings in the string have the last word.

Nothing is downloaded unless asked for, by ``pretrained=True`` (timm), ``weights=DEFAULT`` (torchvision) or ``hf:``,
which takes safetensors only, runs no code of the hub, and notes the revision in the network's source. Only then is the
preprocessing that of the library for those weights (``zoo.published``), unless the string sets a field of it: then the
whole image is resized, and nothing cropped. Weights that bring arguments of their own
(``image_size``, ``aux_logits``) want them named in the source, so that an untrained copy has the same architecture.

A file or a module is run when it is resolved, and may import its siblings; one that only a folder's card names is not,
unless the folder is to be trusted. Its factory returns an untrained ``nn.Module``,
alone, with its ``Preprocess``, or with that and its stages, if it cannot be traced.
"""

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from suture.common.errors import CheckpointError, SourceError
from suture.common.hashing import identity, keyed_as
from suture.common.plugins import added
from suture.common.seeds import digest, generator
from suture.core.network.network import Network
from suture.core.network.tracing import Stage
from suture.core.saving import read as read_stitched
from suture.core.stitched import Stitched
from suture.core.stitches import Stitch
from suture.data.preprocess import Preprocess
from suture.measurement.tables.described import Record
from suture.zoo.checkpoints import load_checkpoint
from suture.zoo.published import Published, find_place, load_from_hub, of_timm, of_torchvision, of_transformers
from suture.zoo.sources import (
    PRETRAINED,
    WEIGHTS,
    Source,
    asks_for_weights,
    is_artefact,
    parse_source,
    read_card,
    with_settings,
)
from suture.zoo.strangers import find_refused


@dataclass(frozen=True, eq=False)
class Built:
    """A model with its weights, before it has seen an image and is cut.

    ``factory`` builds the same architecture afresh, with random weights from torch's global generator, never
    pretrained; it can be sent to another process. ``preprocess`` maps float images in [0, 1] to the inputs of
    ``model``; it is cut along ``stages``, ``None`` if it is traced.
    """

    name: str
    source: str
    model: nn.Module
    factory: Callable[[], nn.Module]
    preprocess: Preprocess | Published
    stages: Sequence[Stage] | None = None
    accuracies: Mapping[str, float] | None = None  #: on the card, by the name of the data
    is_from_library: bool = False  #: whether no code of the user's made it

    def network(self, example: Tensor) -> Network:
        """Cut it, by a few raw images ``(n, C, H, W)``. Raises the errors of ``Network``."""
        network = Network(
            self.model,
            example=example,
            name=self.name,
            preprocess=self.preprocess,
            factory=self.factory,
            stages=self.stages,
            copy=False,
            expected_accuracy=self.accuracies,
        )
        network.source, network.is_from_library = self.source, self.is_from_library
        return network


def resolve(
    source: str | Source, checkpoint: str | Path | None = None, *, name: str | None = None, trust: bool = False
) -> Built:
    """Build the model that a source names and, if it has a checkpoint, load it strictly.

    ``checkpoint`` gives one to a source without. With neither a checkpoint nor pretrained weights the model
    is random, from torch's global generator. ``trust`` lets a folder run the Python file that it names,
    or fetch the model. Raises
    ``SourceError`` when the source does not resolve, and ``CheckpointError`` when the checkpoint does not fit or is
    unsafe to load.
    """
    source = parse_source(source, trust=trust) if isinstance(source, str) else source
    if checkpoint is not None and source.checkpoint is not None:
        raise SourceError(f"{source.text!r} names a checkpoint, and {str(checkpoint)!r} is given too; keep one")
    weights = source.checkpoint if checkpoint is None else checkpoint
    model, preprocess, stages = _build(source, is_filled=weights is not None)
    if weights is not None:
        load_checkpoint(model, weights)
    source = _pin(source, model)
    text = source.text if checkpoint is None else f"{source.text}@{checkpoint}"
    factory = functools.partial(_build_untrained, source)
    if source.preprocess:
        plain = preprocess.plain() if isinstance(preprocess, Published) else preprocess
        preprocess = replace(plain, **source.preprocess)
    name = name or (source if weights is None else replace(source, checkpoint=str(weights))).called
    return Built(name, text, model, factory, preprocess, stages, _read_accuracies(weights), not source.runs_code)


def _pin(source: Source, model: nn.Module) -> Source:
    """Return the source with the revision of the hub that its model is of."""
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if source.kind != "hf" or commit is None or source.arguments.get("revision") == commit:
        return source
    named = f",revision={source.arguments.get('revision')}"
    text = source.text.replace(named, "", 1)
    return with_settings(parse_source(text), {"revision": commit})


def _read_accuracies(weights: str | Path | None) -> dict[str, float] | None:
    """Return the accuracies on the card beside trained weights."""
    path = Path(weights or "").expanduser()
    if path.name == WEIGHTS and is_artefact(path.parent):
        card: Record | None = read_card(path.parent)
    else:
        cards = (shelf.card_of(path) for shelf in added("shelves").values() if weights is not None)
        card = next((one for one in cards if one is not None), None)
    if card is None:
        return None
    return {score["data"]["name"]: score["accuracy"]["value"] for score in card.get("scores", ())}


def load_network(
    source: str | Source,
    checkpoint: str | Path | None = None,
    *,
    example: Tensor,
    name: str | None = None,
    device: str | None = None,
    trust: bool = False,
) -> Network:
    """Make a network from a model string, with its weights and its preprocessing.

    ``source`` is ``timm:…``, ``torchvision:…``, ``zoo:…``, ``hf:…``, ``path/to/file.py:factory``,
    ``package.module:factory`` or the folder of a trained network, see ``zoo.sources``; ``checkpoint`` a file of weights
    (safetensors, or a ``.pt`` that is loaded with ``weights_only``); ``example`` a few raw images ``(n, C, H, W)``;
    ``name`` its name, by default that of its card, else its file of weights, else the model; ``device`` where it
    computes, by default on the processor. A folder that names a Python file, which would be run, is refused without
    ``trust``. Raises ``SourceError``, ``CheckpointError``, and the errors of ``Network``.
    """
    network = resolve(source, checkpoint, name=name, trust=trust).network(example)
    return network if device is None else network.to(device)


def draw_example(shape: tuple[int, ...]) -> Tensor:
    """Return four random samples of a shape: images (C, H, W), or, of any other, ids of the first two tokens."""
    values, kind = (256, torch.uint8) if len(shape) == 3 else (2, torch.int64)
    return torch.randint(0, values, (4, *shape), dtype=kind, generator=generator("example"))


def load_stitched(
    folder: str | Path,
    sender: Network | None = None,
    receiver: Network | None = None,
    stitch: Stitch | nn.Module | None = None,
) -> Stitched:
    """Load a stitched network that ``save`` wrote, with the two networks that it joins.

    A network that is not given is made anew of its model string, if it came from one with a checkpoint; never of a
    Python file, which would be run, nor of a model that would be fetched. Everything else is as in ``Stitched.load``,
    which also says what is raised.
    """
    given = dict(zip(("sender", "receiver"), (sender, receiver), strict=True))
    saved = read_stitched(folder)
    for role, network in given.items():
        if network is not None or (made_of := saved.made_of(role)) is None:
            continue
        source = parse_source(made_of[0], trust=True)
        is_here = source.kind != "hf" or Path(source.name).expanduser().is_dir()
        is_plain = not find_refused(source.kind, source.arguments)
        if is_here and is_plain and not source.runs_code and source.checkpoint is not None:
            given[role] = load_network(source, example=draw_example(made_of[1]), name=saved.description[role]["name"])
    return Stitched.load(folder, given["sender"], given["receiver"], stitch)


def hash_code(source: Source, model: nn.Module) -> str:
    """Return a hash of the user's code that made a model: its factory, and the classes of its modules."""
    kinds = {identity(type(module)) for module in model.modules()}
    return digest(identity(_find_factory(source)), sorted(kinds))


def _build(source: Source, is_filled: bool = False) -> tuple[nn.Module, Preprocess | Published, Sequence[Stage] | None]:
    """Build a model; one of timm that ``is_filled`` with other weights does not fetch its own."""
    factory = _find_factory(source)
    drops = PRETRAINED["timm"] if is_filled and source.kind == "timm" else None
    try:
        made = factory(**{key: value for key, value in source.arguments.items() if key != drops})
    except (SourceError, CheckpointError):  # of the hub's models, which says what is wrong
        raise
    except (Exception, SystemExit) as error:  # a factory may raise anything
        takes = ", ".join(map(str, inspect.signature(factory).parameters.values())) or "nothing"
        raise SourceError(
            f"{source.text!r}: {source.name} raised {type(error).__name__}: {error}; correct its arguments, or the "
            f"factory; it takes {takes}"
        ) from error
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
    asking = PRETRAINED.get(source.kind)
    arguments = {key: value for key, value in source.arguments.items() if key != asking}
    arguments |= {"pretrained": False} if source.kind == "hf" else {}
    return _build(replace(source, arguments=arguments))[0]


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


def _find_factory(source: Source) -> Callable[..., object]:
    if source.kind in _FACTORIES:
        return _FACTORIES[source.kind](source)
    factories: Mapping[str, Callable[..., object]] = added("models")[source.kind].factories
    _check_name(source, factories, f"{source.kind}:NAME")
    return factories[source.name]


def _find_in_module(source: Source) -> Callable[..., object]:
    path, _, name = source.name.partition(":")
    if str(Path.cwd()) not in sys.path:  # where a program's own folder would be
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:  # a module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise SourceError(f"{source.text!r}: importing {path} raised {reason}; install it, or correct it") from error
    return _find_callable(module, name, path, source)


def _find_in_file(source: Source) -> Callable[..., object]:
    """Find a callable in a file, which is run once for each content that it has had."""
    written, _, factory = source.name.rpartition(":")
    path = source.file
    assert path is not None
    if not path.is_file():
        raise SourceError(f"{source.text!r}: no file {path}; give its path, from {Path.cwd()} or absolute")
    code = path.read_bytes()
    name = f"suture_source_{digest(str(path.resolve()), code)[:16]}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        try:
            with _beside(path.resolve().parent):
                exec(compile(code, path, "exec"), module.__dict__)  # not imported: stale bytecode might stand in
        except (Exception, SystemExit) as error:  # a file may raise anything
            del sys.modules[name]
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{source.text!r}: running {path} raised {reason}; correct the file") from error
    return _find_callable(sys.modules[name], factory, written, source)


def _find_callable(module: ModuleType, name: str, path: str, source: Source) -> Callable[..., object]:
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


_FACTORIES: dict[str, Callable[[Source], Callable[..., object]]] = {
    "timm": _find_timm,
    "torchvision": _find_torchvision,
    "hf": lambda source: functools.partial(load_from_hub, find_place(source.name)),
    "file": _find_in_file,
    "module": _find_in_module,
}


def _check_name(source: Source, names: Collection[str], listing: str) -> None:
    if source.name not in names:
        nearest = _list(difflib.get_close_matches(source.name, names, n=5, cutoff=0.0))
        raise SourceError(f"no model {source.name!r} in {source.kind}; nearest: {nearest}; all {len(names)}: {listing}")


_folders: list[Path] = []  # of files that were run


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let code import the modules in a folder, and not those of the same names beside files that ran before."""
    for name, module in list(sys.modules.items()):
        elsewhere = Path(getattr(module, "__file__", None) or "").parent in [one for one in _folders if one != folder]
        if elsewhere and (folder / f"{name}.py").is_file():
            del sys.modules[name]
    _folders.append(folder)
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:  # what functions import later is still found, but stands before nothing else
        sys.path[:] = [*before, *([] if str(folder) in before else [str(folder)])]


def _wanted(model: nn.Module, source: Source) -> Preprocess | Published:
    """Return the preprocessing published with pretrained weights, or of a package's network; else the identity."""
    if source.kind in added("models"):
        wanted: Preprocess = added("models")[source.kind].preprocess(source.name, source.arguments)
        return wanted
    if not asks_for_weights(source):
        return Preprocess()
    if source.kind == "timm":
        return of_timm(model, source.arguments)
    if source.kind == "hf":
        return of_transformers(find_place(source.name), source.arguments.get("revision"), needed=not source.preprocess)
    return of_torchvision(source.name, source.arguments["weights"])


def _list(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"

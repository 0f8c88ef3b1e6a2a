"""Models by name: how a model string is read, built and loaded.

A source names a model by where it comes from and what it is called there, then the arguments of its factory,
its preprocessing and its trained weights::

    kind:name[,key=value…][@checkpoint]

    timm:resnet18,num_classes=10@b.safetensors      timm's registry, pretrained tags included
    torchvision:vgg19_bn,num_classes=10             torchvision's classification models
    zoo:resnet,width=16,blocks=(1,1,1)              the networks of ``suture.zoo``
    hf:NAME,revision=main                           a model of Hugging Face's hub, or of a folder in its layout
    path/to/file.py:factory,width=8@weights.pt      a callable in a Python file of the user's
    package.module:factory                          a callable in a module that can be imported
    path/to/folder                                  a network that ``suture train`` made, or a store has
    ledger:resnet18@10                              a network of the papers' experiments, by its name and seed

Values are Python literals, else strings. Commas and ``@`` inside brackets or quotes belong to the value;
what follows the first ``@`` outside them is the path of the checkpoint. Keys that begin with
``preprocess.`` set the fields of ``Preprocess`` (``preprocess.size=32``, ``preprocess.mean=0.5``): the dot
keeps them apart from every factory's arguments.

A folder has ``card.json``, ``model.safetensors`` and ``done``; it stands for the source on its card, with its weights.
``done`` has the SHA-256 of the others and is written last: without it the training is not over.

Networks of the ledger lie in ``results/networks`` of Suture's repository, 16-bit weights beside their cards, and are no
part of what is installed; they are found from the root of the repository, or in the one that the package is run from.

The project's own networks come with the preprocessing that ``suture.zoo.networks`` names for them, those of a
file with what its factory returns, all others with none; the string has the last word.

Nothing is downloaded unless asked for, by ``pretrained=True`` (timm), ``weights=DEFAULT`` (torchvision) or ``hf:``,
which takes safetensors only, runs no code of the hub, and notes the revision in the network's source. Only then is the
preprocessing that of the library for those weights (``zoo.published``), unless the string sets a field of it: then the
whole image is resized, and nothing cropped. Weights that bring arguments of their own
(``image_size``, ``aux_logits``) want them named in the source, so that an untrained copy has the same architecture.

A file or a module is run when it is resolved, and may import its siblings; one that only a folder's card names is not,
unless the folder is to be trusted. Its factory returns an untrained ``nn.Module``,
alone, with its ``Preprocess``, or with that and its stages, if it cannot be traced.

Weights are loaded without running anything their file says. A checkpoint is a state dict: safetensors, or
what ``torch.save`` wrote, read with ``weights_only=True``. In the latter it may be bare or lie under
``"state_dict"``, ``"model"`` and the like, as training scripts leave it. What stands before every name is taken off:
``module.`` of ``DataParallel``, ``_orig_mod.`` of ``torch.compile``, ``model.`` of Lightning.
"""

import difflib
import functools
import importlib
import inspect
import pickle
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from suture.common.calls import literal, outside, read_settings
from suture.common.errors import CheckpointError, DataError, SourceError, SutureError
from suture.common.hashing import keyed_as
from suture.common.seeds import digest, generator
from suture.core.network.network import Network
from suture.core.network.tracing import Stage
from suture.core.saving import read as read_stitched
from suture.core.stitched import Stitched
from suture.core.stitches import Stitch
from suture.data.samples import Preprocess
from suture.measurement.tables.records import Record
from suture.runs.store.files import read as read_json
from suture.runs.store.store import FILES, find_damage
from suture.runs.store.store import NETWORKS as TRAINED
from suture.zoo.networks import NETWORKS, images_of, preprocess_of
from suture.zoo.published import Published, import_transformers, load_from_hub, of_timm, of_torchvision, of_transformers

EXAMPLES = {
    "timm": "timm:resnet18,num_classes=10",
    "torchvision": "torchvision:vgg19_bn,num_classes=10",
    "zoo": "zoo:resnet,width=16,blocks=(1,1,1)",
    "hf": "hf:google/vit-base-patch16-224",
    "file": "path/to/file.py:factory,width=8@weights.safetensors",
    "module": "package.module:factory,width=8@weights.safetensors",
}
"""Every kind of source, with an example."""

CARD, WEIGHTS = FILES[TRAINED]
LEDGER, KEPT = "ledger:", Path("results/networks")

_HEAD = re.compile(
    r"(?P<kind>timm|torchvision|zoo|hf):(?P<name>[^,@]+)|(?P<file>.+?\.py:[^,@]+)|(?P<module>\w+(\.\w+)+:\w+)"
)
_PREPROCESS = "preprocess."
_PRETRAINED = {"timm": "pretrained", "torchvision": "weights", "hf": "pretrained"}
_REFUSED = {
    ("timm", "checkpoint_path"): "name the checkpoint after an '@', which loads it strictly",
    ("torchvision", "pretrained"): "ask for pretrained weights with weights=DEFAULT",
}


# --- read -------------------------------------------------------------------------------------------------------------


@keyed_as("Source")
@dataclass(frozen=True)
class Source:
    """What a model string names.

    ``text`` is the string itself, ``kind`` a key of ``EXAMPLES``, ``name`` the model's name there
    (``path.py:factory`` for a file), ``arguments`` its factory's, ``checkpoint`` the path of its weights and
    ``preprocess`` the fields of ``Preprocess`` that it sets.
    """

    text: str
    kind: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    preprocess: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path | None:
        """The Python file that is run to build it, if one is."""
        return Path(self.name.rpartition(":")[0]).expanduser() if self.kind == "file" else None

    @property
    def runs_code(self) -> bool:
        """Whether code of the user's is run to build it."""
        return self.kind in ("file", "module")

    @property
    def called(self) -> str:
        """A short name: that on the card of a trained network, else of its weights' file, else of the model."""
        if self.checkpoint is None:
            return Path(self.name).name if self.kind == "hf" else self.name
        path = Path(self.checkpoint).expanduser()
        if path.name == WEIGHTS and is_artefact(path.parent):
            return read_card(path.parent).get("name") or path.parent.resolve().name
        return path.stem


def parse_source(text: str, *, trust: bool = False) -> Source:
    """Read a model string; of a folder that names a Python file, which would be run, only with ``trust``.

    Raises ``SourceError`` when it names no kind of source, when what follows the name is not ``key=value``
    with distinct keys, then a checkpoint, and for a folder whose network is not whole, or not trusted.
    """
    if is_artefact(text):
        source = _read_folder(text)
        return source if trust else check_trusted(text, source)
    if text.startswith(LEDGER):
        card, weights = find_kept(text)
        source = parse_source(str(card["source"]))
        return replace(source, text=f"{source.text}@{weights}", checkpoint=str(weights))
    head = _HEAD.match(text)
    if head is None:
        examples = ", ".join(f"{example!r} ({kind})" for kind, example in EXAMPLES.items())
        folder = ", or the folder of a network that suture train made" if "/" in text or Path(text).is_dir() else ""
        raise SourceError(f"no model source {text!r}; name a model like one of {examples}{folder}{_guess_meant(text)}")
    rest = text[head.end() :]
    try:
        at = next((i for i, c in outside(rest) if c == "@"), len(rest))
        given = read_settings(rest[1:at], dotted=_PREPROCESS) if at else {}
    except SutureError as error:
        raise SourceError(f"{text!r} {error}") from error
    if rest[at:] == "@":
        raise SourceError(f"{text!r} names no checkpoint after its '@'; write a path there, or leave the '@' out")
    values = {key: literal(value) for key, value in given.items()}
    kind = head["kind"] or ("file" if head["file"] else "module")
    for key in values:
        if (kind, key) in _REFUSED:
            raise SourceError(f"{text!r} gives {kind} the argument {key!r}; {_REFUSED[kind, key]}")
    preprocess = {key.removeprefix(_PREPROCESS): values.pop(key) for key in given if key.startswith(_PREPROCESS)}
    for key in ("mean", "std"):
        if key in preprocess:
            value = preprocess[key]
            preprocess[key] = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        Preprocess(**preprocess)
    except TypeError as error:
        raise SourceError(f"{text!r}: {error}; preprocessing has size, channels, mean and std") from error
    except DataError as error:
        raise SourceError(f"{text!r}: {error}") from error
    name = (head["name"] or head["file"] or head["module"]).strip()
    if kind == "hf":
        values.setdefault("pretrained", rest[at:] == "")
    return Source(text, kind, name, values, rest[at + 1 :] or None, preprocess)


def find_kept(text: str) -> tuple[Record, Path]:
    """Return the card and the weights of a network of the ledger. Raises ``SourceError`` if there is none."""
    folders = [root / KEPT for root in (Path.cwd(), Path(__file__).parents[3])]
    folder = next((one for one in folders if one.is_dir()), None)
    if folder is None:
        raise SourceError(
            f"{text}: no folder {KEPT} here; it is in Suture's repository and not in what is installed: clone it, and "
            "run this from its root"
        )
    name = "-".join(text.removeprefix(LEDGER).split("@"))
    kept = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in kept:
        strings = [f"{LEDGER}{'@'.join(stem.rsplit('-', 1))}" for stem in kept]
        raise SourceError(f"{text}: {folder} has no such network; it has {', '.join(strings) or 'none'}")
    return read_json(folder / f"{name}.json"), folder / f"{name}.safetensors"


def with_settings(source: Source, settings: Mapping[str, str]) -> Source:
    """Return the source with further settings in its string, such as ``preprocess.size``, unless it has them."""
    own = {*source.arguments, *(f"{_PREPROCESS}{key}" for key in source.preprocess)}
    at = next((i for i, sign in outside(source.text) if sign == "@"), len(source.text))
    written = "".join(f",{key}={value}" for key, value in settings.items() if key not in own)
    return parse_source(source.text[:at] + written + source.text[at:])


def _pin(source: Source, model: nn.Module) -> Source:
    """Return the source with the revision of the hub that its model is of."""
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    if source.kind != "hf" or commit is None or source.arguments.get("revision") == commit:
        return source
    named = f",revision={source.arguments.get('revision')}"
    text = source.text.replace(named, "", 1)
    return with_settings(parse_source(text), {"revision": commit})


def _guess_meant(text: str) -> str:
    """Return what is missing of a text that names no model, if that can be told."""
    if text.endswith((".safetensors", ".pt", ".pth", ".ckpt", ".bin")):
        return f"; weights alone are no model: write the model before them, as in MODEL@{text}"
    if text.endswith(".py"):
        return f"; of a file, name the function that makes the model: {text}:FACTORY"
    name = re.fullmatch(r"[a-z]\w*(,.*|@.*)?", text)
    return f"; did you mean timm:{text}, torchvision:{text} or zoo:{text}?" if name else ""


def _read_folder(folder: str) -> Source:
    """Return the network in a folder: the source on its card with the weights there."""
    card = read_card(folder)
    text, weights = str(card["source"]), str(Path(folder) / WEIGHTS)
    path = parse_source(text).name.rpartition(":")[0]
    elsewhere = Path(str(card.get("made_in", ""))) / path
    if path and not Path(path).expanduser().is_file() and elsewhere.is_file():  # trained from another folder
        text = text.replace(path, str(elsewhere), 1)
    return replace(parse_source(text), text=f"{text}@{weights}", checkpoint=weights)


def check_trusted(text: str, source: Source, named: Collection[Path | str] = ()) -> Source:
    """Return the source of a model string. Raises ``SourceError`` if it would run code that is not among that named.

    Nobody expects a folder, or a file of settings, to run code.
    """
    code = source.name if source.file is None else source.file.resolve()
    if not source.runs_code or code in named:
        return source
    what = f"the module {source.name.partition(':')[0]}" if source.file is None else f"the Python file {source.file}"
    raise SourceError(
        f"{text} would run {what}, which the command or call itself does not name; read it, "
        f"and then name it: {source.text}, or say trust=True"
    )


def is_artefact(folder: str | Path) -> bool:
    """Return whether there is a trained network in a folder, whole or not."""
    return (Path(folder).expanduser() / CARD).is_file()


def is_sound(folder: str | Path) -> bool:
    """Return whether the network in a folder is there, and is what was written."""
    return not find_damage(Path(folder).expanduser(), TRAINED)


def read_card(folder: str | Path) -> Record:
    """Read the card of a trained network.

    Raises ``SourceError`` if its training is not over, ``CheckpointError`` if a file is not what was written.
    """
    folder = Path(folder).expanduser()
    wrong = find_damage(folder, TRAINED)
    if lacking := [name for name, problem in wrong.items() if problem == "is missing"]:
        raise SourceError(
            f"{folder} has no whole trained network: it lacks {', '.join(lacking)}; let suture train end there"
        )
    if wrong:
        raise CheckpointError(
            f"{folder / next(iter(wrong))} is not what was written when its training ended: it is damaged, or was "
            "changed; copy it again, or train the network again"
        )
    card: Record = read_json(folder / CARD)
    return card


# --- weights ----------------------------------------------------------------------------------------------------------

_PICKLED = (".pt", ".pth", ".th", ".ckpt", ".bin")
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_COUNT = "num_batches_tracked"  # of BatchNorm, which old checkpoints lack, and which no output depends on
_SAVE = "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Fill every parameter and buffer of a model from a ``.safetensors`` file, or a ``.pt``, ``.pth``, ``.ckpt`` ….

    Raises ``CheckpointError`` when the file is absent, of another kind, damaged or unsafe to load, and when its names,
    its shapes, or the kinds of its numbers are not exactly the model's.
    """
    path = Path(path).expanduser()
    state = _state_dict(read_tensors(path), path)
    wanted, stripped = model.state_dict(), state
    while not stripped.keys() & wanted.keys() and (prefix := _shared_prefix(stripped)):
        stripped = {name.removeprefix(prefix): value for name, value in stripped.items()}
    state = stripped if stripped.keys() & wanted.keys() else state
    state |= {name: own for name, own in wanted.items() if name.endswith(_COUNT) and name not in state}
    for name, own in wanted.items():
        if isinstance(own, Tensor) and name in state and (found := _kind(state[name])) != (kind := _kind(own)):
            raise CheckpointError(
                f"{path} has {name} in {found}, and {type(model).__name__} in {kind}: loaded, they would be "
                "other numbers; save the weights as the model has them"
            )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # which names whatever differs, a line each
        reason = "; ".join(line.strip(" \t.") for line in str(error).splitlines()[1:])
        raise CheckpointError(
            f"{path} does not fit {type(model).__name__}: {_shorten(reason)}; build the model that the checkpoint was "
            "saved from, with its arguments (number of classes, width, channels)"
        ) from error


def _shared_prefix(names: Collection[str]) -> str:
    """Return what stands before the first dot of all names; empty if that differs, or there are none."""
    first = {name.partition(".")[0] if "." in name else "" for name in names}
    return f"{first.pop()}." if len(first) == 1 and "" not in first else ""


def _kind(tensor: Tensor) -> str:
    """Return what a tensor holds in words; between tensors of one kind numbers keep their values, to rounding."""
    if tensor.is_quantized or tensor.layout != torch.strided:
        return f"{tensor.dtype}, {'quantised' if tensor.is_quantized else str(tensor.layout)}".replace("torch.", "")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        return str(tensor.dtype).removeprefix("torch.")
    return "floating-point numbers" if tensor.is_floating_point() else "whole numbers"


def read_tensors(path: Path) -> object:
    """Return what a file of weights holds, tensors only: nothing is unpickled.

    Raises ``CheckpointError`` if it cannot.
    """
    if path.suffix != ".safetensors" and path.suffix not in _PICKLED:
        raise CheckpointError(
            f"{path} has the suffix {path.suffix!r}; a checkpoint ends in .safetensors, "
            f"{', '.join(_PICKLED)}; save it by {_SAVE}"
        )
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}; give the path of a file, from {Path.cwd()} or absolute")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: what is not tensors is refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"arbitrary Python objects ({found[1]})" if found else "arbitrary Python objects, or is damaged"
        raise CheckpointError(
            f"{path} holds {what} and is not loaded, because unpickling them can run any code; where the model "
            f"was trained, save its weights alone: {_SAVE}"
        ) from error
    except Exception as error:  # a damaged file fails wherever the damage is
        reason = str(error).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"{path} is damaged or no checkpoint ({reason}); copy it again, or save it by {_SAVE}"
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict):
        wrapped = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        content = wrapped[0] if wrapped else content
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state dict; save it by {_SAVE}")
    strangers = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strangers:
        raise CheckpointError(
            f"{path} is not a state dict: no tensor under {_shorten(', '.join(map(repr, strangers)))}; names "
            f"must map to tensors, bare or under {' or '.join(map(repr, _WRAPPERS))}; save it by {_SAVE}"
        )
    return content


def _shorten(names: str) -> str:
    return textwrap.shorten(names, 400, placeholder=" …")


# --- built ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Built:
    """A model with its weights, before it has seen an image and is cut.

    ``factory`` builds the same architecture afresh, with random weights from torch's global generator,
    never pretrained; it can be sent to another process. ``preprocess`` maps float images in [0, 1] to what
    ``model`` takes; ``stages`` are what it is cut along, ``None`` if it is traced.
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
        """Cut it, by a few raw images ``(n, C, H, W)``. Raises what ``Network`` raises."""
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
    is random, from torch's global generator. ``trust`` lets a folder run the Python file that it names. Raises
    ``SourceError`` when the source does not resolve, and ``CheckpointError`` when the checkpoint does not fit or is
    unsafe to load.
    """
    source = parse_source(source, trust=trust) if isinstance(source, str) else source
    if checkpoint is not None and source.checkpoint is not None:
        raise SourceError(f"{source.text!r} has a checkpoint, and {str(checkpoint)!r} is another; keep one")
    model, preprocess, stages = _build(source)
    weights = source.checkpoint if checkpoint is None else checkpoint
    if weights is not None:
        load_checkpoint(model, weights)
    source = _pin(source, model)
    text = source.text if checkpoint is None else f"{source.text}@{checkpoint}"
    factory = functools.partial(_build_untrained, source)
    if source.preprocess:
        plain = preprocess.plain() if isinstance(preprocess, Published) else preprocess
        preprocess = replace(plain, **source.preprocess)
    name = name or (source.called if source.kind == "hf" else source.name)
    return Built(name, text, model, factory, preprocess, stages, _read_accuracies(weights), not source.runs_code)


def _read_accuracies(weights: str | Path | None) -> dict[str, float] | None:
    """Return what the card beside trained weights says of their accuracy."""
    path = Path(weights or "").expanduser()
    if path.name == WEIGHTS and is_artefact(path.parent):
        card = read_card(path.parent)
    elif path.parent.parts[-2:] == KEPT.parts and path.with_suffix(".json").is_file():
        card = read_json(path.with_suffix(".json"))
    else:
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
    """Make a network of what a model string names, with its weights and its preprocessing.

    ``source`` is ``timm:…``, ``torchvision:…``, ``zoo:…``, ``hf:…``, ``path/to/file.py:factory``,
    ``package.module:factory`` or the folder of a trained network, see ``zoo.models``; ``checkpoint`` a file of weights
    (safetensors, or a ``.pt`` that is loaded with ``weights_only``); ``example`` a few raw images ``(n, C, H, W)``;
    ``device`` where it computes, by default on the processor. A folder that names a Python file, which would be run, is
    refused without ``trust``. Raises ``SourceError``, ``CheckpointError``, and what ``Network`` raises.
    """
    network = resolve(source, checkpoint, name=name, trust=trust).network(example)
    return network if device is None else network.to(device)


def load_stitched(
    folder: str | Path,
    sender: Network | None = None,
    receiver: Network | None = None,
    stitch: Stitch | nn.Module | None = None,
) -> Stitched:
    """Load a stitched network that ``save`` wrote, with the two networks that it joins.

    A network that is not given is made anew of its model string, if it came from one with a checkpoint; never of a
    Python file, which would be run. Everything else is as in ``Stitched.load``, which also says what is raised.
    """
    given = dict(zip(("sender", "receiver"), (sender, receiver), strict=True))
    saved = read_stitched(folder)
    for role, network in given.items():
        if network is not None or (made_of := saved.made_of(role)) is None:
            continue
        source = parse_source(made_of[0], trust=True)
        if not source.runs_code and source.checkpoint is not None:
            example = torch.randint(0, 256, (4, *made_of[1]), dtype=torch.uint8, generator=generator("example"))
            given[role] = load_network(source, example=example, name=saved.description[role]["name"])
    return Stitched.load(folder, given["sender"], given["receiver"], stitch)


def _build(source: Source) -> tuple[nn.Module, Preprocess | Published, Sequence[Stage] | None]:
    factory = _FACTORIES[source.kind](source)
    try:
        made = factory(**source.arguments)
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
    asking = _PRETRAINED.get(source.kind)
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


def _find_zoo(source: Source) -> Callable[..., object]:
    _check_name(source, NETWORKS, "suture.zoo.NETWORKS")
    return NETWORKS[source.name]


def _find_on_hub(source: Source) -> Callable[..., object]:
    return functools.partial(load_from_hub, str(Path(source.name).expanduser()))


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
    path, _, name = source.name.rpartition(":")
    assert source.file is not None
    module = _import_file(source.file, source)
    return _find_callable(module, name, path, source)


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


_FACTORIES = {
    "timm": _find_timm,
    "torchvision": _find_torchvision,
    "zoo": _find_zoo,
    "hf": _find_on_hub,
    "file": _find_in_file,
    "module": _find_in_module,
}


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
            with _beside(path.resolve().parent):
                exec(compile(code, path, "exec"), module.__dict__)  # not imported: stale bytecode might stand in
        except (Exception, SystemExit) as error:  # a file may raise anything
            del sys.modules[name]
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{source.text!r}: running {path} raised {reason}; correct the file") from error
    return sys.modules[name]


_folders: list[Path] = []  # of files that were run


@contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """Let what runs import the modules in a folder, and not those of the same names beside files that ran before."""
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
    """Return what pretrained weights were published with, or a network of the project wants; else the identity."""
    if source.kind == "zoo":
        return preprocess_of(source.name, source.arguments)
    if not asks_for_weights(source):
        return Preprocess()
    if source.kind == "timm":
        return of_timm(model, source.arguments)
    if source.kind == "hf":
        return of_transformers(source.name, source.arguments.get("revision"))
    return of_torchvision(source.name, source.arguments["weights"])


def _list(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


# --- what a model string says of its model ----------------------------------------------------------------------------


def asks_for_weights(source: Source) -> bool:
    """Return whether a source asks for published pretrained weights."""
    return bool(source.arguments.get(_PRETRAINED.get(source.kind, "")))


def tell_names_apart(sources: Sequence[Source]) -> list[str]:
    """Short names for models (their weights' file, else the model), with letters if they agree."""
    names = [source.called for source in sources]
    return [f"{name} {chr(ord('A') + i)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def is_random(source: Source) -> bool:
    """Return whether no trained weights are named; a file's factory may load its own, so it counts as trained."""
    return not source.runs_code and source.checkpoint is None and not asks_for_weights(source)


def image_shape(source: Source) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the images that a model is made for.

    For ``zoo:`` networks with ``stem=7x7`` it is MNIST's 28x28. Raises ``SourceError`` for a model of the user's own
    file and for a multilayer perceptron whose inputs make no square image: of these nobody else can know.
    """
    given = source.arguments
    match source.kind, source.name:
        case "timm", name:
            import timm

            channels, height, width = timm.get_pretrained_cfg_value(name, "input_size") or (3, 224, 224)
            side = given.get("img_size")
            height, width = side if isinstance(side, tuple | list) else (side or height, side or width)
            return given.get("in_chans", channels), height, width
        case "torchvision", name:
            side = given.get("image_size", 299 if name == "inception_v3" else 224)
            return 3, side, side
        case "hf", name:
            config = import_transformers().AutoConfig.from_pretrained(str(Path(name).expanduser()))
            side = getattr(config, "image_size", None)
            if side is not None:
                height, width = side if isinstance(side, list | tuple) else (side, side)
                return getattr(config, "num_channels", 3), height, width
        case "zoo", name if name in NETWORKS:
            shape = images_of(name, given)
            if shape is not None:
                return shape
    raise SourceError(
        f"{source.text}: only you know the images that it takes; give their shape, such as --shape 3x32x32, "
        "or how many tokens a sequence has, such as --shape 64"
    )

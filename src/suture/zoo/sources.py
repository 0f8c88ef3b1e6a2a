"""Model strings: which model a text names, and with which weights.

A source names a model by where it comes from and what it is called there, then the arguments of its factory,
its preprocessing and its trained weights::

    kind:name[,key=value…][@checkpoint]

    timm:resnet18,num_classes=10@b.safetensors      timm's registry, pretrained tags included
    torchvision:vgg19_bn,num_classes=10             torchvision's classification models
    hf:NAME,revision=main                           a model of Hugging Face's hub, or of a folder in its layout
    path/to/file.py:factory,width=8@weights.pt      a callable in a Python file of the user's
    package.module:factory                          a callable in a module that can be imported
    path/to/folder                                  a trained network with its card, as a store has them

Values are Python literals, else strings. Commas and ``@`` inside brackets or quotes belong to the value;
the path of the checkpoint follows the first ``@`` outside them. Keys that begin with
``preprocess.`` set the fields of ``Preprocess`` (``preprocess.size=32``, ``preprocess.mean=0.5``): the dot
keeps them apart from every factory's arguments.

A folder has ``card.json``, ``model.safetensors`` and ``done``; it stands for the source on its card, with its weights.
``done`` has the SHA-256 of the others and is written last: without it the training is not over.

Installed packages add further kinds (``ModelKind``), and shelves of trained networks (``Shelf``): those of this
repository's papers are ``zoo:`` and ``ledger:``.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from suture.common.calls import literal, outside, read_settings
from suture.common.errors import CheckpointError, DataError, SourceError, SutureError
from suture.common.hashing import keyed_as
from suture.common.plugins import PAPERS, added
from suture.data.preprocess import Preprocess
from suture.measurement.tables.described import Record
from suture.runs.store.files import read as read_json
from suture.runs.store.store import FILES, find_damage
from suture.runs.store.store import NETWORKS as TRAINED
from suture.zoo.published import find_place, import_transformers
from suture.zoo.strangers import find_refused

EXAMPLES = {
    "timm": "timm:resnet18,num_classes=10",
    "torchvision": "torchvision:vgg19_bn,num_classes=10",
    "hf": "hf:google/vit-base-patch16-224",
    "file": "path/to/file.py:factory,width=8@weights.safetensors",
    "module": "package.module:factory,width=8@weights.safetensors",
}
"""Every kind of source that Suture itself knows, with an example."""

CARD, WEIGHTS = FILES[TRAINED]

_PREPROCESS = "preprocess."
PRETRAINED = {"timm": "pretrained", "torchvision": "weights", "hf": "pretrained"}
_REFUSED = {
    ("timm", "checkpoint_path"): "name the checkpoint after an '@', which loads it strictly",
    ("torchvision", "pretrained"): "ask for pretrained weights with weights=DEFAULT",
}


# --- what packages add ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelKind:
    """A kind of model string that a package adds: factories by name, as ``zoo:resnet`` names one.

    ``example`` is one such string; ``factories`` are the callables that build a model, by name. ``preprocess`` and
    ``image_shape`` take such a name and the factory's arguments: they return what images go through, and the shape
    (C, H, W) of raw images, ``None`` if nobody else can know.
    """

    example: str
    factories: Mapping[str, Callable[..., object]]
    preprocess: Callable[[str, Mapping[str, Any]], Preprocess]
    image_shape: Callable[[str, Mapping[str, Any]], tuple[int, int, int] | None]


@dataclass(frozen=True)
class Shelf:
    """A place where a package keeps trained networks, each of which a string names, as ``ledger:resnet18@10`` does.

    ``find`` returns the card of a network, which has its ``source``, and the file of its weights; it raises
    ``SourceError`` if there is none. ``card_of`` returns the card that belongs to a file of weights of this shelf.
    """

    find: Callable[[str], tuple[Record, Path]]
    card_of: Callable[[Path], Record | None]


@cache
def _head() -> re.Pattern[str]:
    """Return the pattern of the beginning of a model string: the kind, and the name there."""
    kinds = "|".join(map(re.escape, ("timm", "torchvision", "hf", *added("models"))))
    return re.compile(rf"(?P<kind>{kinds}):(?P<name>[^,@]+)|(?P<file>.+?\.py:[^,@]+)|(?P<module>\w+(\.\w+)+:\w+)")


# --- read -------------------------------------------------------------------------------------------------------------


@keyed_as("Source")
@dataclass(frozen=True)
class Source:
    """The parts of a model string.

    ``text`` is the string itself, ``kind`` a key of ``EXAMPLES`` or a kind that a package adds, ``name`` the name there
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
    prefix, colon, _ = text.partition(":")
    if colon and prefix in added("shelves"):
        card, weights = added("shelves")[prefix].find(text)
        source = parse_source(str(card["source"]))
        return replace(source, text=f"{source.text}@{weights}", checkpoint=str(weights))
    head = _head().match(text)
    if head is None:
        known = EXAMPLES | {kind: one.example for kind, one in added("models").items()}
        examples = ", ".join(f"{example!r} ({kind})" for kind, example in known.items())
        folder = ", or the folder of a trained network, with its card" if "/" in text or Path(text).is_dir() else ""
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


def with_settings(source: Source, settings: Mapping[str, str]) -> Source:
    """Return the source with further settings in its string, such as ``preprocess.size``, unless it has them."""
    own = {*source.arguments, *(f"{_PREPROCESS}{key}" for key in source.preprocess)}
    at = next((i for i, sign in outside(source.text) if sign == "@"), len(source.text))
    written = "".join(f",{key}={value}" for key, value in settings.items() if key not in own)
    return parse_source(source.text[:at] + written + source.text[at:])


def _guess_meant(text: str) -> str:
    """Suggest the missing part of a text that does not name a model, if it can be guessed."""
    if text.endswith((".safetensors", ".pt", ".pth", ".ckpt", ".bin")):
        return f"; weights alone are not a model: write the model before them, as in MODEL@{text}"
    if text.endswith(".py"):
        return f"; of a file, name the function that makes the model: {text}:FACTORY"
    if text.startswith(("zoo:", "ledger:")):
        return f"; {text.partition(':')[0]}: is of {PAPERS}"
    if not re.fullmatch(r"[a-z]\w*(,.*|@.*)?", text):
        return ""
    *meant, last = (f"{kind}:{text}" for kind in ("timm", "torchvision", *added("models")))
    return f"; did you mean {', '.join(meant)} or {last}?"


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
    """Return the source of a model string. Raises ``SourceError`` if it would run code that is not ``named``.

    Nobody expects a folder, or a file of settings, to run code. Nor does one expect a folder to fetch something or to
    read files elsewhere: the factory that its card names is given plain arguments alone, and no published weights. A
    file of settings may name these.
    """
    is_folder = is_artefact(text)
    if (is_folder or (named and text not in named)) and not source.runs_code:
        given = {key: value for key, value in source.arguments.items() if is_folder or key != "weights"}
        refused = find_refused(source.kind, given)
        if refused or (is_folder and source.kind == "hf"):
            wanted = f"gives {source.kind} the argument {refused}" if refused else f"names {source.kind}:{source.name}"
            raise SourceError(
                f"{f'the card of {text}' if is_folder else text} {wanted}, which may fetch something or read files "
                "elsewhere; if you know who wrote that, name the model itself in the command or call: "
                f"{source.text}, or say trust=True"
            )
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
    """Return whether the network in a folder is there, and unchanged since it was written."""
    return not find_damage(Path(folder).expanduser(), TRAINED)


def read_card(folder: str | Path) -> Record:
    """Read the card of a trained network.

    Raises ``SourceError`` if its training is not over, ``CheckpointError`` if a file has changed since.
    """
    folder = Path(folder).expanduser()
    wrong = find_damage(folder, TRAINED)
    if lacking := [name for name, problem in wrong.items() if problem == "is missing"]:
        raise SourceError(f"{folder} has no whole trained network: it lacks {', '.join(lacking)}; let its training end")
    if wrong:
        raise CheckpointError(
            f"{folder / next(iter(wrong))} has changed since its training ended, or is damaged; "
            "copy it again, or train the network again"
        )
    card: Record = read_json(folder / CARD)
    return card


# --- what a model string says of its model ----------------------------------------------------------------------------


def asks_for_weights(source: Source) -> bool:
    """Return whether a source asks for published pretrained weights."""
    return bool(source.arguments.get(PRETRAINED.get(source.kind, "")))


def tell_names_apart(sources: Sequence[Source]) -> list[str]:
    """Return short names for models (their weights' file, else the model), with letters if they agree."""
    names = [source.called for source in sources]
    return [f"{name} {chr(ord('A') + i)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def is_random(source: Source) -> bool:
    """Return whether no trained weights are named; a file's factory may load its own, so it counts as trained."""
    return not source.runs_code and source.checkpoint is None and not asks_for_weights(source)


def image_shape(source: Source) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of the images that a model is made for.

    Raises ``SourceError`` for a model of the user's own
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
            config = import_transformers().AutoConfig.from_pretrained(find_place(name))
            side = getattr(config, "image_size", None)
            if side is not None:
                height, width = side if isinstance(side, list | tuple) else (side, side)
                return getattr(config, "num_channels", 3), height, width
        case kind, name if kind in added("models") and name in added("models")[kind].factories:
            shape: tuple[int, int, int] | None = added("models")[kind].image_shape(name, given)
            if shape is not None:
                return shape
    raise SourceError(
        f"{source.text}: only you know the images that it takes; give their shape, such as --shape 3x32x32, "
        "or the number of tokens of a sequence, such as --shape 64"
    )

"""Model strings: how they are read.

A source names a model by where it comes from and what it is called there, then the arguments of its factory,
its preprocessing and its trained weights::

    kind:name[,key=value…][@checkpoint]

    timm:resnet18,num_classes=10@b.safetensors      timm's registry, pretrained tags included
    torchvision:vgg19_bn,num_classes=10             torchvision's classification models
    zoo:resnet,width=16,blocks=(1,1,1)              the networks of ``suture.zoo``
    path/to/file.py:factory,width=8@weights.pt      a callable in a Python file of the user's
    path/to/folder                                  a network that ``suture train`` made, or a store has

Values are Python literals, else strings. Commas and ``@`` inside brackets or quotes belong to the value;
what follows the first ``@`` outside them is the path of the checkpoint. Keys that begin with
``preprocess.`` set the fields of ``Preprocess`` (``preprocess.size=32``, ``preprocess.mean=0.5``): the dot
keeps them apart from every factory's arguments. A folder stands for the source on its card, with its
weights. ``suture.zoo.build`` builds what a source names.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suture.common.calls import literal, outside, read_settings
from suture.common.errors import DataError, SourceError, SutureError
from suture.common.hashing import keyed_as
from suture.data.samples import Preprocess
from suture.zoo.artefacts import WEIGHTS, check_content, is_artefact, read_card

EXAMPLES = {
    "timm": "timm:resnet18,num_classes=10",
    "torchvision": "torchvision:vgg19_bn,num_classes=10",
    "zoo": "zoo:resnet,width=16,blocks=(1,1,1)",
    "file": "path/to/file.py:factory,width=8@weights.safetensors",
}
"""Every kind of source, with an example."""

_HEAD = re.compile(r"(?P<kind>timm|torchvision|zoo):(?P<name>[^,@]+)|(?P<file>.+?\.py:[^,@]+)")
_PREPROCESS = "preprocess."
_REFUSED = {
    ("timm", "checkpoint_path"): "name the checkpoint after an '@', which loads it strictly",
    ("torchvision", "pretrained"): "ask for pretrained weights with weights=DEFAULT",
}


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
    def called(self) -> str:
        """A short name: that on the card of a trained network, else of its weights' file, else of the model."""
        if self.checkpoint is None:
            return self.name
        path = Path(self.checkpoint).expanduser()
        if path.name == WEIGHTS and is_artefact(path.parent):
            return read_card(path.parent).get("name") or path.parent.resolve().name
        return path.stem


def parse_source(text: str) -> Source:
    """Read a model string.

    Raises ``SourceError`` when it names no kind of source, when what follows the name is not ``key=value``
    with distinct keys, then a checkpoint, and for a folder whose network is not whole.
    """
    if is_artefact(text):
        return _read_folder(text)
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
    kind = head["kind"] or "file"
    for key in values:
        if (kind, key) in _REFUSED:
            raise SourceError(f"{text!r} gives {kind} the argument {key!r}; {_REFUSED[kind, key]}")
    return Source(
        text=text,
        kind=kind,
        name=(head["name"] or head["file"]).strip(),
        arguments={key: value for key, value in values.items() if not key.startswith(_PREPROCESS)},
        checkpoint=rest[at + 1 :] or None,
        preprocess=_check_preprocess(values, text),
    )


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
    check_content(Path(folder).expanduser())
    source, weights = str(card["source"]), str(Path(folder) / WEIGHTS)
    if is_artefact(source):
        raise SourceError(
            f"the card in {folder} names another folder, {source!r}, as its source; train the network again"
        )
    source = _find_file_again(source, str(card.get("made_in", "")))
    return replace(parse_source(source), text=f"{source}@{weights}", checkpoint=weights)


def _find_file_again(source: str, made_in: str) -> str:
    """Return the source, its file looked for in the folder where the network was trained if it is not in this one."""
    path = parse_source(source).name.rpartition(":")[0]
    elsewhere = Path(made_in) / path
    if path and made_in and not Path(path).expanduser().is_file() and elsewhere.is_file():
        return source.replace(path, str(elsewhere), 1)
    return source


def _check_preprocess(values: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the fields of ``Preprocess`` among the values."""
    fields = {
        key.removeprefix(_PREPROCESS): _check_field(key, value, text)
        for key, value in values.items()
        if key.startswith(_PREPROCESS)
    }
    try:
        Preprocess(**fields)
    except DataError as error:
        raise SourceError(f"{text!r}: {error}") from error
    return fields


def _check_field(key: str, value: Any, text: str) -> Any:
    """Return the value of a field of ``Preprocess``, checked, a single mean or deviation made a tuple."""
    match key.removeprefix(_PREPROCESS):
        case "size" | "channels":
            if value is None or (isinstance(value, int) and value > 0):
                return value
            wanted = "a whole number above 0, or None"
        case "mean" | "std":
            numbers = tuple(value) if isinstance(value, tuple | list) else (value,)
            if numbers and all(isinstance(number, int | float) for number in numbers):
                return numbers
            wanted = "one number, or one for each channel"
        case _:
            raise SourceError(f"{text!r} sets {key!r}; preprocessing has size, channels, mean and std")
    raise SourceError(f"{text!r} sets {key!r} to {value!r}; give {wanted}")

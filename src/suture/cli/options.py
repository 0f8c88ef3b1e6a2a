"""The options that several commands share, and what is made of them."""

from argparse import Action, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from suture.cli.command import Parser
from suture.cli.names import DATA, SCALES, NameOption, make_all, names_of
from suture.common.errors import SutureError
from suture.common.sizes import parse_size

MODEL = (
    "timm:NAME, torchvision:NAME, zoo:NAME or path/to/file.py:FACTORY, then arguments (,key=value) and trained "
    "weights (@file.safetensors); or the folder of a network that suture train made"
)
DATA_SETS = f"{', '.join(DATA)}, a Hugging Face hub id or a local folder"
CUTS = "names or patterns, such as layer*,fc"
RUN = "of a run: what its command was given as --out"


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of a whole number from ``least``."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal():
            raise ArgumentTypeError(f"expected a whole number, got {text}")
        if int(text) < least:
            raise ArgumentTypeError(f"{text}: give at least {least}")
        return int(text)

    return read


def named_path(text: str) -> str:
    """Return the text. An empty one, which a shell makes of a variable that is not set, is refused."""
    if not text:
        raise ArgumentTypeError("'' names nothing; give a path, or leave the option out")
    return text


def size(text: str) -> str:
    """Return the text, which must be a size in bytes."""
    try:
        parse_size(text)
    except SutureError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def completed(action: Action, words: Iterable[str]) -> None:
    """Have argcomplete complete an argument by these words."""
    known = tuple(words)
    action.completer = lambda prefix, **_: [word for word in known if word.startswith(prefix)]  # type: ignore[attr-defined]


def add_named(parser: Parser, option: str, named: NameOption, **settings: Any) -> None:
    """Add an argument whose values are names."""
    parser.add_argument(option, type=named, **settings).completer = named.complete  # type: ignore[attr-defined]


def add_model(parser: Parser, *option: str, help: str = MODEL, **settings: Any) -> None:
    """Add an argument that names a model."""
    words = (*(f"zoo:{name}" for name in names_of("network")), "timm:", "torchvision:")
    completed(parser.add_argument(*option, help=help, **settings), words)


def add_data(parser: Parser, option: str = "--data", **settings: Any) -> None:
    """Add the data, and what becomes of them: their variants, the size of their images, their classes."""
    completed(parser.add_argument(option, help=DATA_SETS, **settings), DATA)
    variants = ", ".join(names_of("variant"))
    add_named(
        parser,
        "--variant",
        NameOption(("variant",)),
        nargs="+",
        metavar="VARIANT",
        help=f"changes of the data, in order: {variants}; with settings as in subset,n=5000 or "
        "relabelled,label=truck,to=ship",
    )
    parser.add_argument("--size", type=at_least(1), metavar="PIXELS", help="resize the images to this side")
    classes = "how many classes there are, if labels are numbers; by default as many as the highest label says"
    parser.add_argument("--classes", type=at_least(1), metavar="N", help=classes)


def load(chosen: Namespace) -> Any:
    """Return the data that ``add_data`` asked for."""
    from suture.data import load_data
    from suture.data.variants import vary

    variants = make_all("variant", chosen.variant)
    return vary(load_data(chosen.data, size=chosen.size, classes=chosen.classes), *variants)


def add_data_folder(parser: Parser) -> None:
    """Add the folder that the papers' data lie in."""
    about = "that has mnist and cifar10; by default they come from the hub"
    parser.add_argument("--data", metavar="FOLDER", help=about)


def add_running(parser: Parser) -> None:
    """Add where and how trials run."""
    add = parser.add_argument
    where = "local, ray, or ray:ADDRESS of a cluster"
    completed(add("--on", default="local", metavar="WHERE", help=where), ("local", "ray", "ray:auto"))
    add("--workers", type=at_least(1), metavar="N", help="processes on this machine; by default as many as pay")
    add("--ram", type=size, metavar="SIZE", help="that all processes may take together, such as 8GB")
    add("--disk", type=size, metavar="SIZE", help="that cached activations may take, such as 20GB")
    add("--retry", action="store_true", help="measure again what failed before, in the folder --out")


def runner_of(chosen: Namespace) -> Any:
    """Return the runner that ``add_running`` asked for: ``local``, ``ray`` or ``ray:ADDRESS``, with its settings.

    Raises ``SutureError`` for any other, and for settings of this machine elsewhere.
    """
    from suture.runs.runners import Local, Ray

    given = {name: getattr(chosen, name) for name in ("workers", "ram", "disk")}
    if chosen.on == "local":
        return Local(**given)
    kind, separator, address = chosen.on.partition(":")
    if kind != "ray" or (separator and not address):
        raise SutureError(f"--on {chosen.on}: give local, ray, or ray:ADDRESS, such as ray:auto or ray:10.0.0.5:6379")
    others = [f"--{name}" for name, value in given.items() if value is not None]
    if others:
        raise SutureError(f"--on {chosen.on} takes no {', '.join(others)}, which is for this machine; leave it out")
    return Ray(address=address or None)


def add_device(parser: Parser) -> None:
    """Add the device that networks are trained on."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda")


def check_device(device: str) -> str:
    """Return the device. Raises ``SutureError`` if it is not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SutureError("--device cuda: there is no CUDA device here that torch can use; give --device cpu")
    return device


def add_scale(parser: Parser, default: str | None) -> None:
    """Add the scale of studies."""
    about = "tiny (seconds, its figures mean nothing), small (two cores) or paper"
    parser.add_argument("--scale", choices=SCALES, default=default, help=about)


def add_json(parser: Parser) -> None:
    """Add the choice of JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_config(parser: Parser) -> None:
    """Add the choice of a file with settings."""
    parser.add_argument("--config", metavar="FILE", help="a YAML file of these settings")
    about = "print the settings as YAML, for --config, and exit"
    parser.add_argument("--print_config", action="store_true", help=about)


def add_out(parser: Parser, about: str, **settings: Any) -> None:
    """Add the folder for results."""
    parser.add_argument("--out", type=named_path, metavar="FOLDER", help=about, **settings)


def pictures(figure: str, *others: str) -> str:
    """Say that results and the three files of a figure are written to a folder."""
    return f"folder for {', '.join((*others, f'{figure}.png', f'{figure}.pdf'))} and {figure}.svg"


def patterns_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names or patterns between the commas of an option."""
    return None if text is None else tuple(pattern.strip() for pattern in text.split(","))

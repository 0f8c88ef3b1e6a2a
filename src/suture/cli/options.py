"""The definition of a command, the options that several commands share, and the objects made from them.

Nothing that takes long to import is imported before a command needs it, so that help, refusals and completion are
quick.
"""

import re
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from suture.cli.output import say
from suture.common.calls import read_settings
from suture.common.errors import SutureError
from suture.common.names import DATA, NAMES, check_name, make_all, split_names
from suture.common.sizes import parse_size


@final
@dataclass(frozen=True)
class NameOption:
    """The type of an option whose value is a name of this kind, or ``many`` of them between commas.

    argparse calls it to check the value, argcomplete to complete it. ``also`` are words with a meaning of their own.
    """

    kind: str
    also: tuple[str, ...] = ()
    many: bool = False

    def __call__(self, text: str) -> str:
        """Return the text. Raises ``SutureError`` if a name in it is not of this kind."""
        for part in split_names(text) if self.many else [text]:
            check_name(self.kind, re.split("[,:]", part)[0].strip(), (*self.also, *NAMES[self.kind]))
        return text

    def complete(self, prefix: str, **_: object) -> list[str]:
        """Return the possible completions of a value that begins like this."""
        before, comma, last = prefix.rpartition(",") if self.many else ("", "", prefix)
        names = [name for name in (*self.also, *NAMES[self.kind]) if name not in before.split(",")]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


@final
@dataclass(frozen=True)
class Option:
    """An argument of a command: its names, its settings for ``add_argument``, and its completions in a shell."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    complete: Callable[..., Iterable[str]] | None


def option(*names: str, words: Iterable[str] = (), **settings: Any) -> Option:
    """Return an argument; ``words`` complete it, if its type has no completions."""
    kind, known = settings.get("type"), tuple(words)
    if isinstance(kind, NameOption):
        return Option(names, settings, kind.complete)
    return Option(names, settings, (lambda **_: known) if known else None)


@final
@dataclass(frozen=True)
class Command:
    """A command: its name, help, options and function; or, as ``zoo``, a name for the commands within.

    The first line of ``text`` is its line in the list of commands, the rest begins its own help. ``run`` takes what was
    chosen, with the whole command in ``line``, and returns the exit code.
    """

    name: str
    text: str
    examples: tuple[str, ...]
    options: tuple[Option, ...] = ()
    run: Callable[[Namespace], int] | None = None
    commands: tuple["Command", ...] = ()

    @property
    def help(self) -> str:
        """Its line in the list of commands."""
        line = self.text.partition("\n")[0]
        return line[0].lower() + line[1:].rstrip(".")

    @property
    def about(self) -> str:
        """The first paragraph of its own help."""
        first, _, rest = self.text.partition("\n")
        return " ".join((rest.strip() or first).split())


def command(name: str, *options: Option, examples: Sequence[str]) -> Callable[[Callable[[Namespace], int]], Command]:
    """Make a function the command that its docstring describes."""
    return lambda run: Command(name, run.__doc__ or "", tuple(examples), options, run)


# --- types ------------------------------------------------------------------------------------------------------------


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of a whole number from ``least``, up to ``most`` if that is given."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal():
            raise ArgumentTypeError(f"expected a whole number, got {text}")
        if int(text) < least:
            raise ArgumentTypeError(f"{text}: give at least {least}")
        if most is not None and int(text) > most:
            raise ArgumentTypeError(f"{text}: give at most {most:,}")
        return int(text)

    return read


def places(text: str) -> list[int]:
    """Return places from 0 on, which commas part."""
    return [at_least(0)(each.strip()) for each in text.split(",")]


def number_or_all(text: str) -> int | str:
    """Return a number of samples, at least 2, or ``all``."""
    return text if text == "all" else at_least(2)(text)


def share_or_number(text: str) -> float:
    """Return a share, such as 0.2, as a float, or a number of samples as an int."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text}: give a share such as 0.2, or a number of samples") from None


def named_path(text: str) -> str:
    """Return the text. An empty one, which a shell makes of a variable that is not set, is refused."""
    if not text:
        raise ArgumentTypeError("the path is empty; give one, or leave the option out")
    return text


def data_source(text: str) -> str:
    """Return the text, which may name anything but a file: an id of the hub may look like one."""
    if Path(text).expanduser().is_file():
        raise ArgumentTypeError(f"{text} is a file; give the folder of a data set, or an id of the hub")
    return text


def device_name(text: str) -> str:
    """Return the text, which must name a device, whether it is there or not."""
    kind, _, number = text.partition(":")
    if text != "cpu" and not (kind == "cuda" and (number.isdecimal() or text == "cuda")):
        raise ArgumentTypeError(f"{text}: give cpu, cuda, or one GPU of several, such as cuda:1")
    return text


def size(text: str) -> str:
    """Return the text, which must be a size in bytes."""
    try:
        parse_size(text)
    except SutureError as error:
        raise ArgumentTypeError(str(error)) from error
    return text


def patterns_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names or patterns between the commas of an option."""
    return None if text is None else tuple(pattern.strip() for pattern in text.split(","))


def cuts_of(chosen: Namespace) -> dict[str, tuple[str, ...] | None]:
    """Return the cuts that the options of ``CUTS`` chose, as matrices and comparisons take them."""
    cuts = {"cuts": chosen.at, "sender_cuts": chosen.sender_at, "receiver_cuts": chosen.receiver_at}
    return {side: patterns_of(text) for side, text in cuts.items()}


# --- options ----------------------------------------------------------------------------------------------------------

MODEL = (
    "timm:NAME, torchvision:NAME, zoo:NAME, hf:NAME, package.module:FACTORY or path/to/file.py:FACTORY, then arguments "
    "(,key=value) and trained weights (@file.safetensors); the folder of a network that suture train made; or, in "
    "Suture's repository, ledger:NAME@SEED"
)
CUTS = (
    option("--at", metavar="CUTS", help="names or patterns, such as layer*,fc; by default all cuts"),
    option("--sender-at", metavar="CUTS", help="the cuts of senders only"),
    option("--receiver-at", metavar="CUTS", help="the cuts of receivers only"),
)  #: every sender cut × every receiver cut
JSON = option("--json", action="store_true", help="print JSON instead of a table")
DEVICE = option(
    "--device",
    type=device_name,
    default="cpu",
    metavar="DEVICE",
    help="cpu, cuda, or one GPU of several, such as cuda:1",
    words=("cpu", "cuda"),
)
RECEIVER_DATA = option(
    "--receiver-data",
    type=data_source,
    metavar="DATA",
    help="the receiver's own view of the same samples, in the same order; --data is then the sender's",
    words=DATA,
)
RUN = option("folder", metavar="FOLDER", help="folder of a run (its --out)")
TRUST = option("--trust", action="store_true", help="run the Python files that folders and --config name")
PREPROCESS = option(
    "--preprocess",
    metavar="SETTINGS",
    help="preprocessing of all networks, such as mean=(0.5,0.5,0.5),std=0.25,size=32,channels=3; "
    "settings in a model string win",
)
CONFIG = (
    option("--config", metavar="FILE", help="a YAML file of these settings"),
    option("--print_config", action="store_true", help="print the settings as YAML, for --config, and exit"),
)
UNTIL_CONVERGED = option(
    "--until-converged",
    action="store_true",
    help="fit again, with up to sixteen times the steps, where a fit has not converged",
)
#: Where and how trials and trainings run.
RUNNING = (
    option(
        "--on",
        default="local",
        metavar="WHERE",
        help="local, ray, or ray:ADDRESS of a cluster",
        words=("local", "ray", "ray:auto"),
    ),
    DEVICE,
    option(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="number of processes on this machine; by default as many as help",
    ),
    option("--ram", type=size, metavar="SIZE", help="memory limit for all processes together, such as 8GB"),
    option("--disk", type=size, metavar="SIZE", help="disk limit for cached activations, such as 20GB"),
    option("--retry", action="store_true", help="measure trials again that failed before, in the folder --out"),
)


def model_option(*names: str, help: str = MODEL, **settings: Any) -> Option:
    """Return an argument that names a model."""
    words = (*(f"zoo:{name}" for name in NAMES.get("network", ())), "timm:", "torchvision:", "hf:")
    return option(*names, help=help, words=words, **settings)


def data_options(name: str = "--data", **settings: Any) -> tuple[Option, ...]:
    """Return the options of the data, and of their variants, the size of their images and their classes."""
    variants = (
        f"changes of the data, in order: {', '.join(NAMES['variant'])}; with settings as in subset,n=5000 or "
        "relabelled,label=truck,to=ship"
    )
    classes = "number of classes, if labels are numbers; by default one more than the highest label"
    split = "the share (0.2) or number of samples to score, cut from data that have no test samples"
    known = f"{', '.join(DATA)}, a Hugging Face hub id or a local folder"
    return (
        option(name, type=data_source, help=known, words=DATA, **settings),
        option("--variant", type=NameOption("variant"), nargs="+", metavar="VARIANT", help=variants),
        option("--size", type=at_least(1), metavar="PIXELS", help="resize the images to this side"),
        option("--classes", type=at_least(1, 2**20), metavar="N", help=classes),
        option("--split", type=share_or_number, metavar="SHARE", help=split),
    )


def out_option(about: str, **settings: Any) -> Option:
    """Return the folder for results."""
    return option("--out", type=named_path, metavar="FOLDER", help=about, **settings)


def pictures(figure: str, *others: str) -> str:
    """Return the help of an option for a folder of results and of the three files of a figure."""
    return f"folder for {', '.join((*others, f'{figure}.png', f'{figure}.pdf'))} and {figure}.svg"


# --- what is made of them ---------------------------------------------------------------------------------------------


def load(chosen: Namespace, is_sketch: bool = False) -> Any:
    """Load the requested data, with no more samples than requested.

    A sketch has their number and size, and few of the images: enough where nothing is measured.
    """
    from suture.data import load_data, load_views
    from suture.data.changes import vary
    from suture.data.sources import sketch_data

    given = vars(chosen)
    views, variants = given.get("receiver_data"), make_all("variant", chosen.variant)
    settings = {"size": chosen.size, "classes": chosen.classes, "split": chosen.split}
    read = sketch_data if is_sketch else load_data
    found = read(chosen.data, **settings) if views is None else load_views(chosen.data, views, **settings)
    found = vary(found, *variants)
    apart = given.get("validate_apart")
    found = found if apart is None else found.validated_apart(apart)
    fitted = len(found.fit) if given.get("fit_samples") == "all" else given.get("fit_samples")
    return found.limited(fit=fitted, score=given.get("score_samples"))


def sources_of(chosen: Namespace, texts: Iterable[str]) -> dict[str, Any]:
    """Return the source of each model string.

    Raises ``SourceError`` if one would run a Python file that the command line does not name, without ``--trust``.
    """
    from suture.zoo.sources import check_trusted, parse_source, with_settings

    words = [word.partition("=")[2] if word.startswith("--") else word for word in shlex.split(chosen.line)]
    named: set[Path | str] = {
        Path(word.partition(".py:")[0] + ".py").expanduser().resolve() for word in words if ".py:" in word
    }
    named |= {*words, *(re.split("[,@]", word)[0] for word in words)}  # model strings, and modules
    sources = {text: parse_source(text, trust=True) for text in texts}
    if text := vars(chosen).get("preprocess"):
        try:
            given = {f"preprocess.{key}": value for key, value in read_settings(text).items()}
        except SutureError as error:
            raise SutureError(f"--preprocess {text} {error}") from error
        sources = {text: with_settings(source, given) for text, source in sources.items()}
    return sources if chosen.trust else {text: check_trusted(text, sources[text], named) for text in sources}


def load_with_networks(chosen: Namespace, given: Iterable[str], is_sketch: bool = False) -> tuple[Any, dict[str, Any]]:
    """Load the data, or a sketch, and the network of each model string; report on standard error which are random.

    Of two views of the data the first network reads the sender's, and the others the receiver's.
    """
    import torch

    from suture.common.seeds import derive_seed
    from suture.runs.progress import waiting_for
    from suture.zoo.models import resolve
    from suture.zoo.sources import is_random, tell_names_apart

    sources = sources_of(chosen, given)
    roles = ("sender", "receiver", *range(2, len(sources)))
    models = {}
    for role, text, name in zip(roles, sources, tell_names_apart([*sources.values()]), strict=False):
        with torch.random.fork_rng(devices=[]):  # a random network is the same in every command
            torch.manual_seed(derive_seed("random network", role))
            models[text] = resolve(sources[text], name=name)
        if is_random(sources[text]):
            say(f"suture: {text} has random weights; to load trained ones, add @FILE")
    with waiting_for(f"reading {chosen.data}"):
        found = load(chosen, is_sketch)
    networks: dict[str, Any] = {}
    for text, model in models.items():
        with waiting_for(f"cutting {model.name}"):
            networks[text] = model.network((found.for_receiver if networks else found.for_sender).example)
    return found, networks


def runner_of(chosen: Namespace) -> Any:
    """Return the requested runner, ``local``, ``ray`` or ``ray:ADDRESS``, with its settings.

    Raises ``SutureError`` for any other, and for settings of this machine elsewhere.
    """
    given = {name: getattr(chosen, name) for name in ("workers", "ram", "disk")}
    if chosen.on == "local":
        check_device(chosen.device)
        from suture.runs.runners import Local

        return Local(**given)
    kind, separator, address = chosen.on.partition(":")
    if kind != "ray" or (separator and not address):
        raise SutureError(f"--on {chosen.on}: give local, ray, or ray:ADDRESS, such as ray:auto or ray:10.0.0.5:6379")
    others = [f"--{name}" for name, value in given.items() if value is not None]
    if others:
        raise SutureError(f"--on {chosen.on} takes no {', '.join(others)}, which is for this machine; leave it out")
    from suture.runs.runners import Ray

    return Ray(address=address or None, gpus_per_trial=0 if chosen.device == "cpu" else 1)


def check_device(device: str) -> str:
    """Return the device. Raises ``SutureError`` if it is not there."""
    if device != "cpu":
        from suture.common.devices import find_device

        find_device(device)
    return device

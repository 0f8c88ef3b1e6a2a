"""What parsers of the command line are made of: their help, and the arguments that many commands share."""

import shutil
import textwrap
from collections.abc import Callable
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

MODEL = (
    "timm:NAME, torchvision:NAME, zoo:NAME or path/to/file.py:FACTORY, then arguments (,key=value) and trained "
    "weights (@file.safetensors); or the folder of a network that suture train made"
)

VARIANTS = (
    "subset",
    "half",
    "without",
    "relabelled",
    "random-labels",
    "super-classes",
    "objects-animals",
    "grey3",
    "correlated",
    "digit",
    "colour",
    "colour-only",
    "decorrelated",
    "blacked-out",
    "covered",
)  #: the keys of ``variants.VARIANTS``, which takes long to import


class Help(DefaultHelpFormatter):
    """Help of at most 98 columns; examples keep their lines, and only telling defaults are told."""

    def __init__(self, prog: str, **settings: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 100) - 2
        super().__init__(prog, **settings | {"width": width})  # type: ignore[no-untyped-call]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)

    def _get_help_string(self, action: Any) -> str:
        if action.option_strings in (["--print_config"], ["--version"]):
            return {"print_config": "print the settings as YAML, for --config,", "version": "show the version"}[
                action.option_strings[0][2:]
            ] + " and exit"
        default = "" if action.default in (None, False, "==SUPPRESS==") else " (default: %(default)s)"
        return (action.help or "") + default

    def _format_action(self, action: Any) -> str:
        groups = getattr(action, "groups", None)
        if groups is not None:
            return self._format_groups(action, groups)
        made: str = super()._format_action(action)
        return made.partition("\n")[2] if action.dest in ("command", "what") else made

    def _format_groups(self, action: Any, groups: dict[str, tuple[str, ...]]) -> str:
        """Commands under the names of their groups, in their order; those in none come last."""
        self._indent()
        lines = {command.dest: self._format_action(command) for command in action._get_subactions()}
        self._dedent()
        groups = groups | {"others": tuple(name for name in lines if name not in sum(groups.values(), ()))}
        texts = {group: "".join(lines[name] for name in names if name in lines) for group, names in groups.items()}
        return "\n".join(f"  {group}:\n{text}" for group, text in texts.items() if text)


class Parser(ArgumentParser):
    """A parser whose help may end with what takes long to find out."""

    more: Callable[[], str] | None = None

    def format_help(self, *given: Any, **settings: Any) -> str:
        """Write the help."""
        text: str = super().format_help(*given, **settings)
        return f"{text}\n{self.more()}\n" if self.more is not None else text


def new_parser(about: str, *examples: str, **settings: Any) -> Parser:
    """Make a parser, with what the command does and examples of it."""
    shown = "\n".join(f"  {example}" for example in examples)
    return Parser(
        description=about,
        epilog=f"example{'s' if len(examples) > 1 else ''}:\n{shown}" if examples else None,
        formatter_class=Help,
        exit_on_error=False,
        allow_abbrev=False,
        **settings,
    )


def add_running(parser: ArgumentParser) -> None:
    """Add the settings of where and how trials run."""
    add = parser.add_argument
    add("--on", type=str, default="local", metavar="WHERE", help="local, ray, or ray:ADDRESS of a cluster")
    add("--workers", type=int, default=None, metavar="N", help="processes on this machine; by default as many as pay")
    add("--ram", type=str, default=None, metavar="SIZE", help="that all processes may take together, such as 8GB")
    add("--disk", type=str, default=None, metavar="SIZE", help="that cached activations may take, such as 20GB")
    add("--retry", action="store_true", help="measure again what failed before, in the folder --out")


def add_loading(parser: ArgumentParser) -> None:
    """Add what becomes of the data: its variants, the size of its images, its classes."""
    parser.add_argument(
        "--variant",
        type=str,
        nargs="+",
        default=None,
        metavar="VARIANT",
        help="changes of the data, in order: "
        + ", ".join(VARIANTS)
        + "; with settings as in subset,n=5000 or relabelled,label=truck,to=ship",
    )
    parser.add_argument("--size", type=int, default=None, metavar="PIXELS", help="resize the images to this side")
    classes = "how many classes there are, where labels are numbers; by default as many as the highest label says"
    parser.add_argument("--classes", type=int, default=None, metavar="N", help=classes)


def add_json(parser: ArgumentParser) -> None:
    """Add the choice of JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_measuring(parser: ArgumentParser, out: str) -> None:
    """Add the settings of every command that measures."""
    add = parser.add_argument
    add("--data", type=str, required=True, help="digits, mnist, cifar10, a Hugging Face hub id or a local folder")
    add_loading(parser)
    add(
        "--stitch",
        type=str,
        default=None,
        metavar="FAMILY",
        help="conv, linear, low-rank,rank=8, …; by default what suits the two shapes",
    )
    add(
        "--fit",
        type=str,
        default="fast",
        help="how stitches are fitted: fast, task-loss, least-squares, match-activations, best-of, random, or a "
        "published fit such as bansal2021; fast,steps=100 changes a setting",
    )
    add(
        "--controls",
        type=str,
        default="all",
        help="all, none, or names separated by commas; baselines too, such as all,linear-probe",
    )
    add("--seeds", type=int, default=1, metavar="N", help="how many seeds of the stitch")
    add("--fit-samples", type=int, default=None, metavar="N", help="fit on the first N images only")
    add("--score-samples", type=int, default=None, metavar="N", help="score on the first N images only")
    add("--out", type=str, default=None, metavar="FOLDER", help=f"{out}, and for all that is measured")
    add_running(parser)
    add("--extend", action="store_true", help="let the folder --out take the trials of another plan than its own")
    add_json(parser)
    add("--config", action="config", metavar="FILE", help="a YAML file of these settings")


def out_help(figure: str, *others: str) -> str:
    """Say what a command writes to the folder ``--out``."""
    return f"folder for {', '.join(('table.parquet', *others, f'{figure}.png', f'{figure}.pdf'))} and {figure}.svg"

"""What the command line takes: its parser, its help, and what it says of arguments that do not parse."""

import re
import shutil
import textwrap
from importlib.metadata import version
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

_MODEL = (
    "timm:NAME, torchvision:NAME, zoo:NAME or path/to/file.py:FACTORY, then arguments (,key=value) and trained "
    "weights (@file.safetensors)"
)
COMMANDS = ("demo", "cuts", "curve", "matrix")
_POSITIONAL = {"model": "MODEL", "sender": "SENDER", "receiver": "RECEIVER", "senders": "SENDER"}


def plainly(message: str, given: list[str]) -> str:
    """A message of the parser in the words of this one's user."""
    for found, instead in (
        (r'^Parser key "([\w.]+)":', r"--\1:"),
        (r"^argument COMMAND: invalid choice: ('.*') \(choose from (.*)\)", r"no command \1; valid commands: \2"),
        (r"Expected a <class 'int'>\. Got value: (.*)", r"expected a whole number, got \1"),
    ):
        message = re.sub(found, instead, message, flags=re.DOTALL)
    missing = re.fullmatch(r"the following arguments are required: (.*)", message)
    if missing:
        names = [name.rpartition(".")[2] for name in missing[1].split(", ")]
        message = f"missing {', '.join(_POSITIONAL.get(name, f'--{name}') for name in names)}"
    command = given[0] + " " if given[0] in COMMANDS else ""
    return f"{message}; see suture {command}--help"


class _Help(DefaultHelpFormatter):
    """Help of at most 98 columns; examples keep their lines, and only telling defaults are told."""

    def __init__(self, prog: str, **settings: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 100) - 2
        super().__init__(prog, **settings | {"width": width})  # type: ignore[no-untyped-call]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)

    def _get_help_string(self, action: Any) -> str:
        if action.option_strings in (["--print_config"], ["--version"]):
            return {"print_config": "print the settings as YAML, for --config", "version": "show the version"}[
                action.option_strings[0][2:]
            ] + " and exit"
        default = "" if action.default in (None, False, "==SUPPRESS==") else " (default: %(default)s)"
        return (action.help or "") + default

    def _format_action(self, action: Any) -> str:
        made: str = super()._format_action(action)
        return made.partition("\n")[2] if action.dest == "command" else made


def _new_parser(about: str, *examples: str, **settings: Any) -> ArgumentParser:
    shown = "\n".join(f"  {example}" for example in examples)
    return ArgumentParser(
        description=about,
        epilog=f"example{'s' if len(examples) > 1 else ''}:\n{shown}" if examples else None,
        formatter_class=_Help,
        exit_on_error=False,
        allow_abbrev=False,
        **settings,
    )


def parser() -> ArgumentParser:
    """Make the parser of ``suture``, with a subcommand for each of ``COMMANDS``."""
    made = _new_parser(
        "Model stitching: join the first layers of one trained network to the last layers of another by a small "
        "trainable stitch, and measure, beside controls, what the first network's representation is worth to the "
        "second.",
        "suture demo",
        "suture cuts timm:resnet50",
        "suture curve --help",
        "suture matrix --help",
        prog="suture",
        version=version("suture"),
    )
    commands = made.add_subcommands(
        required=True, dest="command", title="commands", metavar="COMMAND", description=None
    )
    for name, command, about in (
        ("demo", _demo_parser(), "two small networks on real handwritten digits, stitched at every cut"),
        ("cuts", _cuts_parser(), "where a network can be cut"),
        ("curve", _curve_parser(), "stitch one network to another at every cut that they share"),
        ("matrix", _matrix_parser(), "stitch every cut of networks to every cut of networks"),
    ):
        commands.add_subcommand(name, command, help=about)
        command.prog = f"suture {name}"
    return made


def _demo_parser() -> ArgumentParser:
    parser = _new_parser(
        "Train two small networks on scikit-learn's handwritten digits, stitch them at every cut, with controls, print "
        "the table and write it, with a figure, to a folder. It takes about a minute and downloads nothing.",
        "suture demo --out digits",
    )
    parser.add_argument("--out", type=str, default="suture-demo", metavar="FOLDER", help=_out("curve"))
    _add_json(parser)
    return parser


def _cuts_parser() -> ArgumentParser:
    parser = _new_parser(
        "List every place in a network through which exactly one tensor passes, with its shape, its depth, and the "
        "parameters and FLOPs up to it.",
        "suture cuts timm:resnet50",
        "suture cuts timm:vit_tiny_patch16_224,img_size=32,patch_size=4",
        "suture cuts models.py:make_net,width=8 --shape 3x32x32",
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=_MODEL)
    parser.add_argument("--shape", type=str, default=None, help="of one raw image, such as 3x224x224")
    parser.add_argument("--dropped", action="store_true", help="also say which tensors are no cuts, and why")
    _add_json(parser)
    return parser


def _curve_parser() -> ArgumentParser:
    parser = _new_parser(
        "Stitch the sender's first layers to the receiver's last layers at every cut that both share, each with its "
        "controls, and print the stitched network's test accuracy and its penalty, with 95 % intervals.",
        "suture curve zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out runs/ab",
        "suture curve models.py:net@a.pt models.py:net@b.pt --data photos --at layer2.0",
    )
    parser.add_argument("sender", type=str, metavar="SENDER", help=_MODEL)
    parser.add_argument("receiver", type=str, metavar="RECEIVER", help="likewise")
    parser.add_argument(
        "--at",
        type=str,
        default=None,
        metavar="CUTS",
        help="by default all that both share; A,B,… or, where names differ, A:X,B:Y,…",
    )
    _add_measuring(parser, _out("curve"))
    return parser


def _matrix_parser() -> ArgumentParser:
    parser = _new_parser(
        "Stitch every cut of every sender to every cut of every receiver, each with its controls, and print the "
        "matrices (rows sender, columns receiver) and their means by depth. Without --into every network is stitched "
        "to every network, itself included.",
        "suture matrix zoo:resnet@a.pt zoo:resnet@b.pt --data cifar10 --out runs/ab",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --into zoo:mlp@c.pt --data digits",
        "suture matrix zoo:resnet@a.pt m.py:vit@v.pt --data photos --at 'layer*,block*'",
        "suture matrix zoo:mlp@a.pt zoo:mlp@b.pt --data digits --stitch low-rank,rank=8",
    )
    add = parser.add_argument
    add("senders", type=str, nargs="+", metavar="SENDER", help=_MODEL)
    add("--into", type=str, nargs="+", default=None, metavar="RECEIVER", help="likewise; by default the senders")
    add(
        "--at", type=str, default=None, metavar="CUTS", help="names or patterns, such as layer*,fc; by default all cuts"
    )
    add("--sender-at", type=str, default=None, metavar="CUTS", help="likewise, of the senders only")
    add("--receiver-at", type=str, default=None, metavar="CUTS", help="likewise, of the receivers only")
    _add_measuring(parser, _out("matrix", "depth.parquet"))
    return parser


def _add_measuring(parser: ArgumentParser, out: str) -> None:
    """Add the settings of every command that measures."""
    add = parser.add_argument
    add("--data", type=str, required=True, help="digits, mnist, cifar10, a Hugging Face hub id or a local folder")
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
        default="task-loss",
        help="how stitches are fitted: task-loss, least-squares, match-activations or random; task-loss,steps=100 "
        "changes a setting",
    )
    add("--controls", type=str, default="all", help="all, none, or names separated by commas")
    add("--seeds", type=int, default=1, metavar="N", help="how many seeds of the stitch")
    add("--fit-samples", type=int, default=None, metavar="N", help="fit on the first N images only")
    add("--score-samples", type=int, default=None, metavar="N", help="score on the first N images only")
    add("--size", type=int, default=None, metavar="PIXELS", help="resize the images to this side")
    add("--out", type=str, default=None, metavar="FOLDER", help=out)
    _add_json(parser)
    add("--config", action="config", metavar="FILE", help="a YAML file of these settings")


def _out(figure: str, *others: str) -> str:
    return f"folder for {', '.join(('table.parquet', *others, f'{figure}.png'))} and {figure}.pdf"


def _add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

"""Every command, in the groups in which the help shows them, and the parser of them all."""

from argparse import SUPPRESS
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from suture.cli import (
    compare,
    completion,
    complexity,
    curve,
    cuts,
    data,
    demo,
    doctor,
    explain,
    export,
    localise,
    matrix,
    plan,
    report,
    store,
    studies,
    train,
    zoo,
)
from suture.cli.command import Command, Parser

GROUPS: dict[str, tuple[Command, ...]] = {
    "measuring": (
        demo.COMMAND,
        curve.COMMAND,
        matrix.COMMAND,
        localise.COMMAND,
        compare.COMMAND,
        complexity.COMMAND,
        *plan.COMMANDS,
    ),
    "networks and data": (cuts.COMMAND, train.COMMAND, *zoo.COMMANDS, data.COMMAND),
    "looking at a run": (store.STATUS, store.TABLE, explain.COMMAND, report.COMMAND, export.COMMAND, store.VERIFY),
    "experiments of the papers": (studies.STUDIES, studies.RUN, studies.CLAIMS),
    "this installation": (doctor.COMMAND, completion.COMMAND),
}
#: Commands with one first word: its line in the list, what they are about, and examples.
FAMILIES = {"plan": plan.ABOUT, "zoo": zoo.ABOUT}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}

_ABOUT = (
    "Model stitching: join the first layers of one trained network to the last layers of another by a small trainable "
    "stitch, and measure, beside controls, what the first network's representation is worth to the second."
)
_EXAMPLES = ("demo", "doctor", "cuts timm:resnet50", "curve --help", "status runs/ab")
_EXIT_CODES = """

exit codes:
  0 done, 1 something failed, is damaged or is missing, 2 wrong input, a full
  disk or a training that diverged, 3 some trials are not measured yet, 70 a
  fault of Suture's own, 130 interrupted, 141 nobody reads the results (as head
  does), 143 terminated"""


def parser() -> Parser:
    """Return the parser of ``suture``, with every command."""
    made = Parser(_ABOUT, [f"suture {example}" for example in _EXAMPLES], prog="suture", usage="suture COMMAND …")
    made.add_argument("--version", action="version", version=f"suture {version('suture')}", help="show the version")
    # argparse knows no groups of commands, so the list of them is a text
    listed = "\n\n".join(f"{group}:\n{_lines(_shown(commands))}" for group, commands in GROUPS.items())
    made.epilog = f"{listed}\n\n{made.epilog}{_EXIT_CODES}"
    places = {"": _commands_of(made)}
    for name, command in COMMANDS.items():
        family, _, word = name.rpartition(" ")
        if family not in places:
            _, about, *examples = FAMILIES[family]
            group = _added(places[""], made, family, about, examples)
            group.usage = f"suture {family} COMMAND …"
            commands = {one.split()[1]: two.help for one, two in COMMANDS.items() if one.startswith(f"{family} ")}
            group.epilog = f"commands:\n{_lines(commands)}\n\n{group.epilog}"
            places[family] = _commands_of(group)
        parent = made.commands[family] if family else made
        one = _added(places[family], parent, word, command.about, command.examples)
        command.options(one)
        one.set_defaults(chosen=command)
    return made


def _commands_of(parser: Parser) -> Any:
    return parser.add_subparsers(metavar="COMMAND", dest="command", required=True, help=SUPPRESS)


def _added(place: Any, parent: Parser, word: str, about: str, examples: Sequence[str]) -> Parser:
    made: Parser = place.add_parser(word, prog=f"{parent.prog} {word}", about=about, examples=examples)
    parent.commands[word] = made
    return made


def _shown(commands: Sequence[Command]) -> dict[str, str]:
    """Return the help of each command by its name; a family is one."""
    families = [command.name.rpartition(" ")[0] for command in commands]
    pairs = zip(commands, families, strict=True)
    return dict((family, FAMILIES[family][0]) if family else (command.name, command.help) for command, family in pairs)


def _lines(helps: dict[str, str]) -> str:
    return "\n".join(f"  {name:<12}{help}" for name, help in helps.items())

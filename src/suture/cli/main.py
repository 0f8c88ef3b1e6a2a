"""The command line: it parses the arguments, runs the command, and answers every error in one place.

``argparse`` reads the command line. Added to it here: every error is a ``SutureError`` that says how to see the help, a
mistyped option gets its nearest neighbour, and ``--config FILE`` takes settings from YAML.

Results go to standard output, everything else to standard error. The exit codes are those that the help lists. A fault
is told in one line, and with SUTURE_DEBUG=1 by its traceback.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from suture.cli import (
    compare,
    completion,
    cuts,
    data,
    demo,
    doctor,
    explain,
    export,
    localise,
    measuring,
    report,
    store,
)
from suture.cli.options import Command
from suture.cli.output import in_options, say
from suture.common.errors import SourceError, SutureError, SutureWarning
from suture.common.names import check_name, suggestion
from suture.common.plugins import PAPERS, added

# --- the commands -----------------------------------------------------------------------------------------------------

#: In the groups in which the help shows them; installed packages add to them, and groups before the last.
GROUPS: dict[str, tuple[Command, ...]] = {
    "measuring": (
        demo.demo,
        measuring.stitch,
        measuring.curve,
        measuring.matrix,
        localise.localise,
        compare.compare,
        measuring.plan,
    ),
    "networks and data": (cuts.cuts, data.data),
    "looking at a run": (
        store.status,
        store.table,
        explain.explain,
        report.report,
        export.export,
        store.verify,
        store.clean,
    ),
    "this installation": (doctor.doctor, completion.completion),
}
_ABOUT = (
    "Model stitching: join the first layers of one trained network to the last layers of another by a small trainable "
    "stitch, and measure, beside controls, what the first network's representation is worth to the second."
)
_EXAMPLES = ("demo", "doctor", "cuts timm:resnet50", "curve --help", "status runs/ab")
_OF_PAPERS = ("run", "studies", "claims", "train", "zoo", "complexity")  #: commands that many will look for here
_EXIT_CODES = """

exit codes:
  0 done, 1 something failed, is damaged or is missing, 2 wrong input, a full
  disk or a training that diverged, 3 some trials are not measured yet, 70 a
  fault of Suture's own, 130 interrupted, 141 nobody reads the results (as head
  does), 143 terminated"""


# --- the parser -------------------------------------------------------------------------------------------------------


class Help(argparse.HelpFormatter):
    """Help of at most 98 columns that keeps the lines of examples and shows only informative defaults."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **settings | {"width": min(shutil.get_terminal_size().columns, 100) - 2})

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)  # names have hyphens

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str:
        telling = action.default not in (None, False, (), argparse.SUPPRESS)
        return (action.help or "") + (" (default: %(default)s)" if telling else "")


class Parser(argparse.ArgumentParser):
    """The parser of ``suture``, or of a command; ``commands`` has those of the commands within it."""

    def __init__(self, about: str = "", examples: Sequence[str] = (), **settings: Any) -> None:
        shown = "".join(f"\n  {example}" for example in examples)
        super().__init__(
            description=about or None,
            epilog=f"example{'s' * (len(examples) > 1)}:{shown}",
            formatter_class=Help,
            allow_abbrev=False,  # a script must not break because an option is added
            **settings,
        )
        self.commands: dict[str, Parser] = {}
        self.beside: Mapping[str, Parser] = {}  #: the commands beside this one, and it

    def add_commands(self, groups: Mapping[str, Sequence[Command]]) -> None:
        """Add commands, with a list of them by group in the help, because argparse has no groups of commands."""
        self.usage = f"{self.prog} COMMAND …"
        place = self.add_subparsers(metavar="COMMAND", dest="command", required=True, help=argparse.SUPPRESS)
        lists = []
        for group, commands in groups.items():
            words = {command.name.rpartition(" ")[2]: command for command in commands}
            lists.append("\n".join([f"{group}:", *(f"  {word:<12}{one.help}" for word, one in words.items())]))
            for word, command in words.items():
                about, examples = command.about, command.examples
                one = place.add_parser(word, prog=f"{self.prog} {word}", about=about, examples=examples)
                self.commands[word], one.beside = one, self.commands
                for option in command.options:
                    action: Any = one.add_argument(*option.names, **option.settings)
                    if option.complete is not None:
                        action.completer = option.complete
                if command.commands:
                    one.add_commands({"commands": command.commands})
                else:
                    one.set_defaults(chosen=command)
        self.epilog = "\n\n".join([*lists, self.epilog or ""])

    def error(self, message: str) -> NoReturn:
        """Raise ``SutureError``, where argparse would print its usage and leave."""
        raise SutureError(f"{message}{'' if message.endswith('?') else ';'} see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if value in _OF_PAPERS and action.dest == "command":
                self.error(f"'{value}' is a command of {PAPERS}")
            if not action.option_strings:
                check_name(str(action.metavar).lower(), value, list(action.choices))
            meant = suggestion(value, list(action.choices))
            self.error(f"{action.option_strings[0]} {value}: {meant}give one of {', '.join(action.choices)}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; refuse unknown ones, with a suggestion."""
        given = list(sys.argv[1:] if args is None else args)
        if "--config" in self._option_string_actions:
            self._take_config(given)
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            options = [own for own in self._option_string_actions if own.startswith("--")]
            elsewhere = [word for word, one in self.beside.items() if name in one._option_string_actions]
            if elsewhere and not any(name in own for own in options):
                meant = f"{name} is an option of {', '.join(elsewhere)}"
            else:
                meant = suggestion(name.lstrip("-"), [own[2:] for own in options], "--")
            self.error(f"unrecognized arguments: {' '.join(unknown)}; {meant}".rstrip("; "))
        return found, []

    def _take_config(self, given: Sequence[str]) -> None:
        """Make the settings in the file of ``--config`` the defaults, so that the command line wins."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--config", nargs="?")
        file = finder.parse_known_args(given)[0].config
        if file is None:
            return
        import yaml

        try:
            settings = yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            self.error(f"--config: cannot read {file}: {getattr(error, 'strerror', None) or error}")
        except yaml.YAMLError as error:
            self.error(f"--config: {file} is not YAML: {error}")
        if not isinstance(settings, dict):
            self.error(f"--config: {file} has no settings; write one on each line, such as 'seeds: 3'")
        actions = {action.dest: action for action in self._actions if action.dest not in _NO_SETTINGS}
        for key, value in settings.items():
            action = actions.get(str(key).replace("-", "_"))
            if action is None:
                self.error(f"--config: no setting '{key}'; {suggestion(str(key), actions)}".rstrip("; "))
            if value is not None and value != []:  # as an option that was not given is written
                several = action.nargs in ("+", "*")
                action.required = False
                if not action.option_strings:  # a positional that need not be given any more
                    action.nargs = "*" if several else "?"
                # as text, which argparse reads as if it had been written on the command line
                texts = list(map(str, value)) if isinstance(value, list) else [str(value)]
                action.default = bool(value) if action.nargs == 0 else texts if several else ",".join(texts)


_NO_SETTINGS = ("help", "chosen", "command", "config", "print_config", "trust")


def list_groups() -> dict[str, tuple[Command, ...]]:
    """Return the commands by group, those of installed packages included."""
    *first, last = GROUPS
    found = {name: GROUPS[name] for name in first}
    for commands in added("commands").values():
        for group, own in commands.items():
            found[group] = (*found.get(group, ()), *own)
    return {**found, last: GROUPS[last]}


def parser() -> Parser:
    """Return the parser of ``suture``, with every command."""
    made = Parser(_ABOUT, [f"suture {example}" for example in _EXAMPLES], prog="suture")
    made.add_argument("--version", action="version", version=f"suture {version('suture')}", help="show the version")
    made.add_commands(list_groups())
    made.epilog = f"{made.epilog}{_EXIT_CODES}"
    return made


# --- running a command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    with _terminations() as terminated:
        try:
            return _run(given)
        except SystemExit as done:  # --help and --version; or code that we were given, with a message
            if not isinstance(done.code, int | None):
                return _refuse(str(done.code))
            return done.code or 0
        except SourceError as error:  # which has the arguments of model strings, and not options
            return _refuse(str(error))
        except SutureError as error:
            return _refuse(in_options(str(error)))
        except KeyboardInterrupt as interruption:  # a run says how much of it is done
            say(f"suture: {in_options(str(interruption)) or 'interrupted'}")
            return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
        except BrokenPipeError:  # whoever read the results has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except BaseException as error:  # also a panic of a library in Rust, which is not an Exception
            if arguments is not None or os.environ.get("SUTURE_DEBUG"):  # whoever calls this from Python sees it all
                raise
            say(f"suture: {_fault(error)}")
            return 70


def _run(given: list[str]) -> int:
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next; this does not return
        import argcomplete

        argcomplete.autocomplete(known)
    if not given:
        known.print_help(sys.stderr)
        return 2
    chosen = known.parse_args(given)
    if getattr(chosen, "print_config", False):
        import yaml

        settings = {key: value for key, value in vars(chosen).items() if key not in _NO_SETTINGS}
        print(yaml.safe_dump(settings, sort_keys=False))
        return 0
    chosen.line = shlex.join(["suture", *given])
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # those of libraries
            warnings.simplefilter("default", SutureWarning)
            warnings.showwarning = lambda message, *_, **__: say(f"suture: {in_options(str(message))}")
        code: int = chosen.chosen.run(chosen)
        return code


def _refuse(message: str) -> int:
    say(f"suture: {' '.join(message.split())}")
    return 2


def _fault(error: BaseException) -> str:
    """Describe an unforeseen error: its class, its message, and the line of code that raised it."""
    places = traceback.extract_tb(error.__traceback__)
    at = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    said = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return f"a fault, of Suture or of code that it was given: {said}{at}; SUTURE_DEBUG=1 shows its traceback"


@contextmanager
def _terminations() -> Iterator[list[int]]:
    """Let a request to terminate end a command as Ctrl-C does; yield a list that is empty until there is one."""
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield received
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())

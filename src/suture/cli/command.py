"""What a command is, and the parser that reads what it is given.

``argparse`` reads the command line. Added to it here: every error is a ``SutureError`` that says how to see the help,
a mistyped option gets its nearest neighbour, and ``--config FILE`` takes settings from YAML.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, final

from suture.common.errors import SutureError

_CONFIG = ("config", "print_config")


def suggestion(name: str, names: Collection[str], sign: str = "") -> str:
    """Return the name that was probably meant, behind its sign, as a question; empty if none is near."""
    near = [one for one in names if len(name) > 1 and name in one] or get_close_matches(name, names, 1)
    return f"did you mean {sign}{near[0]}? " if near else ""


def check_name(what: str, name: str, names: Collection[str], plural: str | None = None) -> None:
    """Raise ``SutureError`` with the nearest of the names, and all of them, if this is none of them."""
    if name not in names:
        raise SutureError(
            f"no {what} '{name}'; {suggestion(name, names)}valid {plural or what + 's'}: {', '.join(names)}"
        )


class Help(argparse.HelpFormatter):
    """Help of at most 98 columns in which examples keep their lines and only telling defaults are told."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **settings | {"width": min(shutil.get_terminal_size().columns, 100) - 2})

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)  # names have hyphens

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str:
        telling = action.default not in (None, False, argparse.SUPPRESS)
        return (action.help or "") + (" (default: %(default)s)" if telling else "")


class Parser(argparse.ArgumentParser):
    """The parser of ``suture``, or of one of its commands."""

    def __init__(self, about: str = "", examples: Sequence[str] = (), **settings: Any) -> None:
        shown = "".join(f"\n  {example}" for example in examples)
        super().__init__(
            description=about or None,
            epilog=f"example{'s' * (len(examples) > 1)}:{shown}" if examples else None,
            formatter_class=Help,
            allow_abbrev=False,  # a script must not break because an option is added
            **settings,
        )
        self.commands: dict[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        """Raise ``SutureError``, where argparse would print its usage and leave."""
        raise SutureError(f"{message}{'' if message.endswith('?') else ';'} see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if not action.option_strings:
                check_name(str(action.metavar).lower(), value, list(action.choices))
            meant = suggestion(value, list(action.choices))
            self.error(f"{action.option_strings[0]} {value}: {meant}give one of {', '.join(action.choices)}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; what nobody knows is refused with what was probably meant."""
        given = list(sys.argv[1:] if args is None else args)
        if "--config" in self._option_string_actions:
            self._take_config(given)
        found, unknown = super().parse_known_args(given, namespace)
        if unknown:
            options = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            meant = suggestion(unknown[0].lstrip("-").partition("=")[0], options, "--")
            self.error(f"unrecognized arguments: {' '.join(unknown)}; {meant}".rstrip("; "))
        return found, []

    def _take_config(self, given: Sequence[str]) -> None:
        """Make the settings in the file of ``--config`` the defaults, so that the command line wins."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--config", nargs="?")
        file = finder.parse_known_args(list(given))[0].config
        if file is None:
            return
        import yaml

        try:
            settings = yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            self.error(f"--config: cannot read {file}: {getattr(error, 'strerror', None) or error}")
        except yaml.YAMLError as error:
            self.error(f"--config: {file} is no YAML: {error}")
        if not isinstance(settings, dict):
            self.error(f"--config: {file} has no settings; write one on each line, such as 'seeds: 3'")
        actions = {action.dest: action for action in self._actions if action.dest not in ("help", *_CONFIG)}
        for key, value in settings.items():
            action = actions.get(str(key).replace("-", "_"))
            if action is None:
                self.error(f"--config: no setting '{key}'; {suggestion(str(key), actions)}".rstrip("; "))
            if value is not None:
                action.required = False
                if not action.option_strings:  # a positional that need not be given any more
                    action.nargs = "*" if action.nargs == "+" else "?"
                # as text, which argparse reads as if it had been written on the command line
                texts = list(map(str, value)) if isinstance(value, list) else [str(value)]
                several = action.nargs in ("+", "*")
                action.default = bool(value) if action.nargs == 0 else texts if several else ",".join(texts)


def print_config(chosen: argparse.Namespace) -> None:
    """Print the settings of a command as YAML, as ``--config`` reads them."""
    import yaml

    left_out = {"chosen", "command", *_CONFIG}
    print(yaml.safe_dump({key: value for key, value in vars(chosen).items() if key not in left_out}, sort_keys=False))


@final
@dataclass(frozen=True)
class Command:
    """A command: its name (``zoo train`` is in the group ``zoo``), its help, its options, and what it does.

    ``help`` is its line in the list of commands, ``about`` the first paragraph of its own help. ``options`` adds its
    options to a parser; ``run`` takes what was chosen, with the whole command in ``line``, and gives the exit code.
    """

    name: str
    help: str
    about: str
    examples: tuple[str, ...]
    options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]

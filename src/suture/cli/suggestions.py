"""What is said on the command line: what somebody meant who mistyped, and errors in the words of options."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any


def meant(message: str, words: Sequence[str], parser: Any = None) -> str:
    """What was probably meant by the command or the options that a message refuses, in words; empty where none is near.

    ``words`` are the command whose options these are, which ``parser`` knows.
    """
    command = re.match(r"no command '(.*?)'; valid commands: (.*)", message)
    if command:
        return _meant(get_close_matches(command[1], re.findall(r"'([^']*)'", command[2]), 1))
    if parser is None:
        return ""
    options = _options(parser, words)
    setting = re.search(r"no setting '(.*)'", message)
    if setting:
        return _meant(get_close_matches(setting[1].replace("-", "_"), [one.replace("-", "_") for one in options], 1))
    wrong = re.findall(r"(?<=[ :])--?([^\s=]+)", message)
    return _meant([f"--{near}" for one in wrong for near in get_close_matches(one, options, 1)])


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {' and '.join(dict.fromkeys(near))}?" if near else ""


def _options(parser: Any, words: Sequence[str]) -> list[str]:
    """The options of a command, without their dashes."""
    for word in words:
        commands = parser._subcommands_action
        if commands is None or word not in commands._name_parser_map:
            break
        parser = commands._name_parser_map[word]
    return [option[2:] for action in parser._actions for option in action.option_strings if option.startswith("--")]


_OPTIONS = {
    "at=[(sender cut, receiver cut)]": "--at SENDER_CUT:RECEIVER_CUT",
    "chance=": "--chance ",
    "size=… resizes": "--size PIXELS resizes",
    "use Unchanged()": "choose a recipe that leaves samples as they are, such as digits",
    "takes no size=": "takes no --size",
    "takes no classes=": "takes no --classes",
    "leave out size=": "leave out --size",
    "leave out classes=": "leave out --classes",
    "load them with classes=": "load them with --classes ",
    "samples_as='flattened'": "--samples-as flattened",
    "give margin= in": "give --margin in",
    "(Relabelled(…, everywhere=True)), or leave out on=": "(relabelled,…,everywhere=True), or none",
    "data.limited(fit=…)": "--fit-samples N",
    "give a store=": "give --out FOLDER",
    "; those that are no result of training can be named: constants=(…)": ", or leave the untrained controls out, "
    "--controls itself,shuffled-pairs,clustered-noise",
}  #: what errors say of settings in Python, and what the command line calls them


def in_options(message: str) -> str:
    """The message with settings as the command line has them."""
    for in_python, here in _OPTIONS.items():
        message = message.replace(in_python, here)
    return message

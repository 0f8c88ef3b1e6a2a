"""What the commands about the installation itself take: ``doctor`` and ``completion``."""

from jsonargparse import ArgumentParser

from suture.cli.completion import SHELLS
from suture.cli.options import add_json, new_parser


def doctor_parser() -> ArgumentParser:
    """Make the parser of ``suture doctor``."""
    parser = new_parser(
        "Say what is there and what is missing: versions, devices, memory and disk, data, extras, and whether folders "
        "of runs are sound and of this version. Nothing is fetched or changed. The exit code is 0 where all that is "
        "needed is there, else 1.",
        "suture doctor",
        "suture doctor runs/ab --data data",
    )
    add = parser.add_argument
    add("runs", type=str, nargs="*", metavar="RUN", help="folders of runs to look at")
    add("--data", type=str, default=None, metavar="FOLDER", help="that should have mnist and cifar10")
    add_json(parser)
    return parser


def completion_parser() -> ArgumentParser:
    """Make the parser of ``suture completion``."""
    parser = new_parser(
        "Print the script that lets a shell complete commands, options and their values.",
        'eval "$(suture completion bash)"',
        "suture completion zsh > ~/.zfunc/_suture",
        "suture completion fish > ~/.config/fish/completions/suture.fish",
    )
    add = parser.add_argument
    add("shell", type=str, nargs="?", default=None, metavar="SHELL", help=", ".join(SHELLS))
    add("--for", type=str, default=None, dest="line", metavar="LINE", help="what the script asks: complete this line")
    return parser

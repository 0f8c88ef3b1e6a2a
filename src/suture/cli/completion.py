"""``suture completion``: the script by which a shell asks argcomplete what may come next."""

from argparse import Namespace

from suture.cli.command import Command, Parser


def options(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def run(chosen: Namespace) -> int:
    """Print the script of a shell and return the exit code."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["suture"], shell=chosen.shell), flush=True)
    return 0


COMMAND = Command(
    name="completion",
    help="print what lets a shell complete commands and options",
    about="Print the script that lets a shell complete commands, options and their values.",
    examples=(
        'eval "$(suture completion bash)"',
        'eval "$(suture completion zsh)"',
        "suture completion fish > ~/.config/fish/completions/suture.fish",
    ),
    options=options,
    run=run,
)

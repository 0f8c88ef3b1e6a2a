"""``suture completion``: the script by which a shell asks argcomplete for completions."""

from argparse import Namespace

from suture.cli.options import command, option


@command(
    "completion",
    option("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"),
    examples=(
        'eval "$(suture completion bash)"',
        'eval "$(suture completion zsh)"',
        "suture completion fish > ~/.config/fish/completions/suture.fish",
    ),
)
def completion(chosen: Namespace) -> int:
    """Print the script that lets a shell complete commands and options.

    Print the script that lets a shell complete commands, options and their values.
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["suture"], shell=chosen.shell), flush=True)
    return 0

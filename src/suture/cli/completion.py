"""What a shell completes: commands and options from the parsers, and the values that are known.

A shell asks ``suture completion --for LINE``, which prints a completion of the line's last word per line; the scripts
here make it ask. (jsonargparse goes with argcomplete only for commands of one level.) What is listed here is written
down, not imported, since a Tab must not wait for torch; tests compare the lists with what they stand for. Lists
(``--controls itself,…``) complete their last name, and settings (``conv,kernel=3``) are left to the user.
"""

import shlex
from collections.abc import Sequence
from glob import escape, glob
from pathlib import Path
from typing import Any

from suture.cli.evidence_commands_options import GROUPS, INDICES, MEASURES
from suture.cli.export_commands import TO
from suture.cli.options import VARIANTS
from suture.cli.study_commands_options import SCALES
from suture.common.errors import SutureError

#: What makes a shell ask. bash takes what follows the last ``:`` or ``=`` for the word, so the rest is cut off.
SCRIPTS = {
    "bash": r"""_suture() {
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##* }"
    local before="${word%"${word##*[:=]}"}"
    mapfile -t COMPREPLY < <(suture completion --for "$line" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[:/,=] ]] && compopt -o nospace 2>/dev/null
}
complete -F _suture suture""",
    "zsh": r"""#compdef suture
_suture() {
    local -a found
    found=("${(@f)$(suture completion --for "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    compadd -Q -S '' -- ${found:#}
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _suture "$@"
else
    compdef _suture suture
fi""",
    "fish": "complete --command suture --no-files --arguments '(suture completion --for (commandline -cp))'",
}
SHELLS = tuple(SCRIPTS)

DATA = ("digits", "mnist", "cifar10", "mnist+cifar10")
STITCHES = (
    *("identity", "linear", "conv", "low-rank", "orthogonal", "permutation", "diagonal", "strided-conv"),
    *("upsampled-conv", "conv-linear", "full-linear", "maps-to-tokens", "tokens-to-maps", "tokens-to-tokens"),
)
FITS = (
    *("fast", "task-loss", "least-squares", "match-activations", "random", "best-of", "bansal2021", "hernandez2022"),
    *("hernandez2022-copy", "oxford2025", "smith2024", "smith2024-noise", "smith2024-vgg", "csiszarik2021"),
)
CONTROLS = (
    *("all", "none", "itself", "untrained-sender", "untrained-receiver", "untrained-both", "shuffled-pairs"),
    *("clustered-noise", "linear-probe", "fine-tuned", "retrained", "plugged-in"),
)
RECIPES = (
    *("bansal2021", "bansal2021-myrtle", "bansal2021-vit", "oxford2025", "oxford2025-simple", "oxford2025-complex"),
    *("smith2024", "smith2024-vgg", "simclr", "linear", "digits", "fast", "fast-steps", "fast-vit", "fast-mnist"),
    *("stepped", "simclr-small", "oxford-small", "oxford-small-mlp", "simple-small", "complex-small"),
    "smith-vgg-small",
    "smith-vgg-slow",
)
NETWORKS = ("cnn", "convnet", "mlp", "myrtle", "resnet", "resnet164", "resnet50", "vgg19", "vit")
TRAITS = ("accuracy", "confusion", "blackout", "trigger", "fgsm", "variant")
STUDIES = (
    *("bansal-2A", "bansal-2A-disjoint", "bansal-2A-random", "bansal-2B", "bansal-2C", "bansal-3A", "bansal-3B"),
    *("bansal-3C", "bansal-4", "bansal-5", "bansal-6", "bansal-7", "bansal-8", "bansal-9", "bansal-probe"),
    *("bansal-invariance", "bansal-fold", "hernandez-2", "hernandez-2d", "hernandez-3", "hernandez-random-both"),
    *("hernandez-random-receiver", "hernandez-random-sender", "hernandez-copy", "oxford-4.1-mlp", "oxford-4.1-cnn"),
    *("oxford-4.2", "oxford-4.3a", "oxford-4.3b", "oxford-4.4-fig5", "oxford-4.4-fig6", "oxford-6.1", "oxford-6.2"),
    *("oxford-control", "smith-4.1", "smith-1c", "smith-4.2", "smith-4.2-noise", "smith-C1", "smith-C5", "smith-C2"),
)

_FILES = ("FOLDER", "FILE", "RUN")
_NETWORKS = ("RUN or NETWORK", "NETWORK", "MODEL", "SENDER", "RECEIVER", "CARRIER", "REFERENCE")
_MODELS = (*(f"zoo:{name}" for name in NETWORKS), "timm:", "torchvision:")
_VALUES: dict[str, tuple[str, ...]] = {
    "data": DATA,
    "source": DATA,
    "variant": VARIANTS,
    "fit_variant": VARIANTS,
    "stitch": STITCHES,
    "fit": FITS,
    "recipe": RECIPES,
    "ids": ("all", *STUDIES),
    "scale": SCALES,
    "to": TO,
    "shell": SHELLS,
    "on": ("local", "ray", "ray:auto"),
    "device": ("cpu", "cuda"),
    "samples_as": ("flattened", "pixels"),
    "trait": tuple(f"{name}:" for name in TRAITS),
}
_LISTS = {
    ("curve", "controls"): CONTROLS,
    ("matrix", "controls"): CONTROLS,
    ("localise", "controls"): CONTROLS,
    ("compare", "by"): ("all", *INDICES),
    ("complexity", "by"): (*GROUPS, *MEASURES),
}


def script(shell: str) -> str:
    """The script of a shell. Raises ``SutureError`` for a shell that there is none for."""
    if shell not in SCRIPTS:
        raise SutureError(f"no completion for '{shell}'; give one of {', '.join(SHELLS)}")
    return SCRIPTS[shell]


def words_of(line: str) -> tuple[list[str], str]:
    """The words of a line after its command, and the word that is being written."""
    before, _, last = line.rpartition(" ")
    try:
        return shlex.split(before)[1:], last
    except ValueError:  # a quote is open
        return before.split()[1:], last


def complete(parser: Any, words: Sequence[str], last: str) -> list[str]:
    """The completions of ``last``, the word that is being written after ``words``."""
    place, pending, repeats, position = parser, None, False, 0
    for word in words:
        commands = place._subcommands_action
        if commands is not None and word in commands._name_parser_map:
            place, pending, position = commands._name_parser_map[word], None, 0
        elif word.startswith("-"):
            pending = _option(place, word)
            repeats = pending is not None and pending.nargs in ("+", "*")
        elif pending is not None:
            pending = pending if repeats else None
        else:
            position += 1
    option, equals, value = last.partition("=")
    if equals and option.startswith("--"):
        action = place._option_string_actions.get(option)
        return [f"{option}={found}" for found in _values(place, action, value)] if action is not None else []
    if last.startswith("-"):
        return sorted(name for name in place._option_string_actions if name.startswith(last) and name.startswith("--"))
    if pending is not None:
        return _values(place, pending, last)
    if place._subcommands_action is not None:
        return [name for name in place._subcommands_action._name_parser_map if name.startswith(last)]
    places = [action for action in place._actions if not action.option_strings]
    return _values(place, places[min(position, len(places) - 1)], last) if places else []


def _option(parser: Any, word: str) -> Any:
    """The option whose value comes next; ``None`` where none does."""
    action = parser._option_string_actions.get(word)
    return action if action is not None and action.nargs != 0 else None


def _values(parser: Any, action: Any, prefix: str) -> list[str]:
    """What may be the value of an argument: names that are known, and files."""
    listed = _LISTS.get((parser.prog.split()[-1], action.dest))
    if listed is not None:
        before, comma, last = prefix.rpartition(",")
        there = before.split(",")
        return [f"{before}{comma}{name}" for name in listed if name.startswith(last) and name not in there]
    known = _VALUES.get(action.dest, ()) + (_MODELS if action.metavar in _NETWORKS else ())
    found = [name for name in known if name.startswith(prefix)]
    if action.metavar in (*_FILES, *_NETWORKS) or action.dest in ("data", "source"):
        found += _files(prefix)
    return found


def _files(prefix: str) -> list[str]:
    """Files and folders that begin so; folders with a slash behind them."""
    if prefix.startswith("~") and "/" not in prefix:
        return []
    there = sorted(glob(f"{escape(str(Path(prefix).expanduser()) if prefix.startswith('~') else prefix)}*"))
    return [f"{path}/" if Path(path).is_dir() else path for path in there]

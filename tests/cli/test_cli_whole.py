"""The command line as a whole: its commands together, its help, what it says of slips, and what shells complete."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suture.cli import completion, main
from suture.cli import main as cli
from suture.cli import parser as arguments
from suture.cli.names import BASELINES, FITS, TRAITS
from suture.cli.suggestions import in_options
from suture.core.stitches import FAMILIES
from suture.measurement.trials.controls import DEFAULT
from suture.studies.registry import STUDIES
from suture.zoo import NETWORKS
from suture.zoo.recipes import RECIPES

Command = Callable[[str], tuple[int, str, str]]


def commands(parser: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its parser, those of commands that have some too."""
    parser = parser if parser is not None else arguments.parser()
    inner = parser._subcommands_action
    for word, one in inner._name_parser_map.items() if inner is not None else ():
        yield f"{name} {word}".strip(), one
        yield from commands(one, f"{name} {word}".strip())


ALL = dict(commands())


# Help


def test_every_command_is_in_one_group_of_the_help_and_has_its_function() -> None:
    grouped = [name for group in arguments.GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(arguments.COMMANDS)
    assert len(cli._COMMANDS) == len(arguments.COMMANDS)


def test_the_help_names_groups_and_exit_codes(run: Command) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    places = [out.index(f"\n  {group}:\n") for group in arguments.GROUPS]
    assert places == sorted(places)
    assert "\n  others:\n" not in out
    for told in ("0 done", "1 something failed", "2 wrong input", "3 some trials are not", "70 a fault", "130", "143"):
        assert told in out


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_a_help_with_examples_of_its_own_that_fits_the_screen(run: Command, name: str) -> None:
    code, out, err = run(f"{name} --help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    examples = re.findall(r"(?m)^  (?:eval \"\$\()?suture (.*?)(?:\)\"| > .*)?$", out.partition("\nexample")[2])
    assert examples
    assert any(example.startswith(name) for example in examples)


#: Options of one name that take different things: a data set or a folder of two; a folder or the one file that is
#: written; which controls, or whether any; how many seeds, or which; indices or measures.
DIFFER = {
    "--data": {"DATA", "FOLDER"},
    "--out": {"FOLDER", "FILE"},
    "--seeds": {"N", "SEEDS"},
    "--by": {"INDICES", "MEASURES"},
}


def test_an_option_takes_the_same_everywhere() -> None:
    taken: dict[str, set[str]] = {}
    for parser in ALL.values():
        for action in parser._actions:
            for option in action.option_strings:
                kind = "flag" if action.nargs == 0 else str(action.metavar or action.dest.upper())
                taken.setdefault(option, set()).add(kind)
    assert {option: kinds for option, kinds in taken.items() if len(kinds) > 1} == DIFFER


def test_the_real_command_shows_its_help_without_torch() -> None:
    code = (
        "import sys; from suture.cli.main import main; main(['--help']); main(['matrx']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


# Slips


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("curv a b", "no command 'curv'; valid commands: .*; did you mean curve? see suture --help"),
        ("doktor", "no command 'doktor'; .*; did you mean doctor? see suture --help"),
        ("zoo trian", "no command 'trian'; .*; did you mean train? see suture zoo --help"),
        ("curve a b --data digits --sed 3", ".*--sed 3; did you mean --seeds? see suture curve --help"),
        ("plan matrix a b --data digits --worker=3", ".*; did you mean --workers? see suture plan matrix --help"),
        ("export x --tto csv --onlin", ".*; did you mean --to and --online? see suture export --help"),
        ("doctor --xyz", "unrecognized arguments: --xyz; see suture doctor --help"),
        ("completion tcsh", "no completion for 'tcsh'; give one of bash, zsh, fish"),
        ("completion", "missing SHELL, which is bash, zsh or fish"),
        ("cuts models.py", ".*; of a file, name the function that makes the model: models.py:FACTORY"),
        ("cuts net.pt", ".*; weights alone are no model: write the model before them, as in MODEL@net.pt"),
        ("cuts resnet18", ".*; did you mean timm:resnet18, torchvision:resnet18 or zoo:resnet18?"),
        ("data digit", ".*; did you mean 'digits'?"),
        (
            "curve a b --data digits --controls untraind-both",
            "no control 'untraind-both'; did you mean 'untrained-both'",
        ),
        ("compare a b --data digits --by cka", "no index 'cka'; did you mean 'linear_cka'?"),
    ],
)
def test_a_slip_is_answered_with_what_was_probably_meant(run: Command, line: str, message: str) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert re.match(f"suture: {message.replace('?', '[?]')}", err), err


def test_a_model_in_the_place_of_a_function_that_makes_one_is_told(run: Command, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("from torch import nn\nnet = nn.Linear(4, 2)\n")
    code, _, err = run("cuts models.py:net --shape 1x2x2")
    assert code == 2
    assert "net is a Linear that is made already, and no function that makes one; add one, such as def make_net(" in err


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_is_told_in_one_line_and_by_its_traceback_where_that_is_asked_for(tmp_path: Path, debug: bool) -> None:
    code = (
        "import sys; from suture import cli; sys.argv = ['suture', 'doctor']\n"
        "def fault(chosen, command): raise RuntimeError('a\\nbug')\n"
        "cli._COMMANDS = [fault] * len(cli._COMMANDS); sys.exit(cli.main())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SUTURE_DEBUG"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | ({"SUTURE_DEBUG": "1"} if debug else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if debug:
        assert done.returncode == 1
        assert done.stderr.startswith("Traceback")
    else:
        assert done.returncode == 70
        told = (
            "suture: a fault, of Suture or of code that it was given: RuntimeError: a bug at <string>:2; SUTURE_DEBUG"
        )
        assert done.stderr.startswith(told)
        assert len(done.stderr.splitlines()) == 1


# Terminals


def test_a_dumb_terminal_is_as_wide_as_it_is_and_gets_no_escapes() -> None:
    code = (
        "import pandas as pd; from rich.table import Table; from suture import output\n"
        "from suture.report.terminal.curve import natural_width\n"
        "table = Table(); [table.add_column('heading ' * 5) for _ in range(4)]\n"
        "table.add_row(*['cell ' * 8] * 4); assert natural_width(table) > 160; output.show(table)"
    )
    import pty

    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "dumb", "COLUMNS": "190"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=theirs, stderr=theirs) as process:
        assert process.wait() == 0
    os.close(theirs)
    out = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "\x1b" not in out
    assert 160 < max(map(len, out.splitlines())) <= 190


# Completion


def test_what_completes_is_what_there_is() -> None:
    assert set(completion.FITS) == set(FITS)
    assert set(completion.STITCHES) == set(FAMILIES)
    assert set(completion.RECIPES) == set(RECIPES)
    assert set(completion.NETWORKS) == set(NETWORKS)
    assert completion.TRAITS == TRAITS
    assert set(STUDIES) <= set(completion.STUDIES)
    controls = [control.__name__.replace("_", "-") for control in DEFAULT]
    assert ("all", "none", *controls, *BASELINES) == completion.CONTROLS


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("suture cu", ["cuts", "curve"]),
        ("suture curve --fit", ["--fit", "--fit-samples"]),
        ("suture curve a b --fit ban", ["bansal2021"]),
        ("suture curve a b --fit=least", ["--fit=least-squares"]),
        ("suture curve a b --controls itself,untrained-s", ["itself,untrained-sender"]),
        ("suture curve a b --controls itself,it", []),
        ("suture curve a b --seeds ", []),
        ("suture curve a b --json --data cifar", ["cifar10"]),
        ("suture curve zoo:resnet1", ["zoo:resnet164"]),
        ("suture curve 'my file' zoo:vg", ["zoo:vgg19"]),
        ("suture data digits --variant half bl", ["blacked-out"]),
        ("suture compare a b --by svcca,rbf", ["svcca,rbf_cka"]),
        ("suture complexity a --by ran", ["ranks"]),
        ("suture run bansal-2A smith-C", ["smith-C1", "smith-C5", "smith-C2"]),
        ("suture plan mat", ["matrix"]),
        ("suture plan matrix zoo:ml", ["zoo:mlp"]),
        ("suture train simcl", ["simclr", "simclr-small"]),
        ("suture export runs --to f", ["feather"]),
        ("suture status fold", ["folder/"]),
        ("suture completion z", ["zsh"]),
        ("suture nothing a", []),
    ],
)
def test_a_line_is_completed(run: Command, tmp_path: Path, line: str, found: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file[1].txt").touch()
    words, last = completion.words_of(line)
    assert completion.complete(arguments.parser(), words, last) == found


def test_bash_completes_what_stands_behind_a_colon_and_an_equals_sign(run: Command, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    code, script, err = run("completion bash")
    assert (code, err) == (0, "")
    (tmp_path / "suture").write_text(f'#!/bin/sh\nexec {sys.executable} -m suture "$@"\n')
    (tmp_path / "suture").chmod(0o755)
    lines = ["suture curve zoo:resnet", "suture curve a b --fit=best", "suture matr", "suture curve --workers "]
    tab = 'tab() { COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=(); _suture; echo "${COMPREPLY[@]}"; }'
    asked = "\n".join([script, tab, *(f'tab "{line}"' for line in lines)])
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("resnet resnet164 resnet50\nbest-of\nmatrix\n\n", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_take_their_scripts(run: Command, shell: str) -> None:
    there = shutil.which(shell)
    if there is None:
        pytest.skip(f"there is no {shell}")
    script = run(f"completion {shell}")[1]
    flag = {"zsh": "-n", "fish": "--no-execute"}[shell]
    done = subprocess.run([there, flag], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("in_python", "here"),
    [
        ("all must have one size: size=… resizes them to size × size", "--size PIXELS resizes"),
        ("load_data of digits takes no size=; leave it out", "takes no --size; leave it out"),
        ("give fewer images, 10 samples at most, or samples_as='flattened'", "or --samples-as flattened"),
        ("give margin= in nats", "give --margin in nats"),
        ("give both names of each seam, at=[(sender cut, receiver cut)]", "--at SENDER_CUT:RECEIVER_CUT"),
        ("give fewer fit samples (data.limited(fit=…))", "(--fit-samples N)"),
    ],
)
def test_errors_name_options_and_not_arguments(in_python: str, here: str) -> None:
    assert here in in_options(in_python)
    assert "=" not in in_options(in_python)


def test_a_size_for_the_digits_is_refused_in_the_words_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curve", "zoo:convnet", "zoo:convnet", "--data", "digits", "--size", "8"]) == 2
    assert "takes no --size; leave it out" in capsys.readouterr().err

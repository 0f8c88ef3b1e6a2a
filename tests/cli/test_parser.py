"""The command line before anything is measured: help, refusals, names, completion, files of settings."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import suture
from suture.cli.main import Parser, in_options, list_groups, main, parser
from suture.cli.options import sources_of
from suture.common.errors import SutureError
from suture.common.names import NAMES, make, make_all, split_names
from suture.core.stitches import FAMILIES, Conv
from suture.data.changes import VARIANTS as CHANGES
from suture.fits import TaskLoss
from suture.measurement import indices
from suture.measurement.trials import baselines, controls
from suture.measurement.trials.plans import name_controls
from suture.zoo import parse_source
from suture_papers import STUDIES, complexity
from suture_papers.base.scale import SCALES
from suture_papers.networks.architectures import NETWORKS
from suture_papers.networks.recipes import RECIPES
from suture_papers.recipes import RECIPES as FIT_RECIPES
from suture_papers.variants import VARIANTS

Run = Callable[[str], tuple[int, str, str]]
REFUSALS = Path(__file__).with_name("refusals.txt")


def parsers(known: Parser | None = None, name: str = "") -> Iterator[tuple[str, Parser]]:
    """Every command with its parser, those of commands that have some too."""
    for word, one in (known or parser()).commands.items():
        yield f"{name} {word}".strip(), one
        yield from parsers(one, f"{name} {word}".strip())


ALL = dict(parsers())
COMMANDS = [one.name for group in list_groups().values() for command in group for one in command.commands or (command,)]


# Help


def test_the_help_names_every_command_and_the_exit_codes(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    places = [out.index(f"\n{group}:\n") for group in list_groups()]
    assert places == sorted(places)
    assert all(re.search(rf"(?m)^  {name.split()[0]} ", out) for name in COMMANDS)
    for told in ("0 done", "1 something failed", "2 wrong input", "3 some trials are not", "70 a", "130", "143"):
        assert told in out, told


def test_every_command_has_a_help_that_fits_the_screen_with_examples_that_parse(run: Run) -> None:
    for name in ALL:
        code, out, err = run(f"{name} --help")
        assert (code, err) == (0, ""), name
        assert max(map(len, out.splitlines())) <= 80, name
        examples = re.findall(r"(?m)^  (?:eval \"\$\()?suture (.*?)(?:\)\"| > .*)?$", out.partition("\nexample")[2])
        assert any(example.startswith(name) for example in examples), name
        for example in examples:
            assert parser().parse_args(shlex.split(example)).chosen.name in COMMANDS, example


#: Options of one name that take different things: a data set or a folder of two; a folder or the one file that is
#: written; how many seeds, or which; indices or measures.
DIFFER = {
    "--data": {"DATA", "FOLDER"},
    "--out": {"FOLDER", "FILE"},
    "--seeds": {"N", "SEEDS"},
    "--by": {"INDICES", "MEASURES"},
}


def test_an_option_takes_the_same_everywhere() -> None:
    taken: dict[str, set[str]] = {}
    for one in ALL.values():
        for action in one._actions:
            for option in action.option_strings:
                kind = "flag" if action.nargs == 0 else str(action.metavar or action.dest.upper())
                taken.setdefault(option, set()).add(kind)
    assert {option: kinds for option, kinds in taken.items() if len(kinds) > 1} == DIFFER


def test_no_command_shows_the_help_as_wrong_input(run: Run) -> None:
    code, out, err = run("")
    assert (code, out, err.splitlines()[0]) == (2, "", "usage: suture COMMAND …")


def test_the_version(run: Run) -> None:
    done = subprocess.run([sys.executable, "-m", "suture", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == run("--version") == (0, f"suture {suture.__version__}\n", "")


QUICKLY = """
import sys
from suture.cli.main import main
codes = [main(line.split()) for line in sys.argv[2:]]
heavy = {name.partition(".")[0] for name in sys.modules} & {*sys.argv[1].split(",")}
print(codes, heavy or "nothing heavy", file=sys.stderr)
"""


def run_quickly(heavy: str, *lines: str) -> str:
    """Run commands in one process; return their exit codes, and which of these heavy packages they imported."""
    done = subprocess.run([sys.executable, "-c", QUICKLY, heavy, *lines], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1]


def test_help_and_refusals_import_nothing_heavy() -> None:
    refused = ("curve", "curve a b --data c --fit best", "curve a b --data c --on moon", "matrx")
    found = run_quickly("torch,numpy,pandas,matplotlib,rich,timm", "--help", "curve --help", *refused)
    assert found == "[0, 0, 2, 2, 2, 2] nothing heavy"


# Refusals


def test_what_is_refused_is_refused_in_these_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("empty", ""), ("broken", "a: [\n"), ("other", "sedes: 3"), ("wrong", "seeds: two")):
        (tmp_path / f"{name}.yaml").write_text(text)
    before = sorted(tmp_path.iterdir())
    lines = REFUSALS.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 200
    for command, message in zip(lines[::2], lines[1::2], strict=True):
        code = main(shlex.split(command)[2:])
        said = capsys.readouterr()
        assert (code, said.out, said.err) == (2, "", f"{message}\n"), command
    assert sorted(tmp_path.iterdir()) == before


def test_errors_name_options_and_not_arguments(run: Run) -> None:
    for in_python, here in (
        ("all must have one size: size=… resizes them to size × size", "--size PIXELS resizes"),
        ("load_data of digits takes no size=; leave it out", "takes no --size; leave it out"),
        ("give fewer images, 10 samples at most, or samples_as='flattened'", "or --samples-as flattened"),
        ("give margin= in nats", "give --margin in nats"),
        ("give both names of each seam, at=[(sender cut, receiver cut)]", "--at SENDER_CUT:RECEIVER_CUT"),
        ("give fewer samples (data.limited(fit=…, score=…))", "(--fit-samples N, --score-samples N)"),
    ):
        assert here in in_options(in_python)
        assert "=" not in in_options(in_python)
    assert "takes no --size; leave it out" in run("data digits --size 8")[2]
    assert "vit cannot fill size=30 with patch=4" in run("cuts zoo:vit,size=30")[2], "which are no options"


# Names


def test_the_names_are_those_that_there_are() -> None:
    there: dict[str, Any] = {
        "stitch": FAMILIES,
        "variant": CHANGES | VARIANTS,
        "index": indices.INDICES,
        "recipe": RECIPES,
        "network": NETWORKS,
        "study": {name: study for name, study in STUDIES.items() if not name.startswith("oxford-quick")},
        "control": {one.__name__.replace("_", "-"): one for one in (*controls.DEFAULT, controls.clustered_noise)}
        | {"linear-probe": baselines.linear_probe, "fine-tuned": baselines.fine_tuned}
        | {"retrained": baselines.retrained, "plugged-in": baselines.plugged},
    }
    for kind, registry in there.items():
        assert sorted(NAMES[kind]) == sorted(registry), kind
        for name, found in registry.items():
            if not isinstance(found, type):
                assert make(kind, name) is found, name
    assert set(FIT_RECIPES) <= set(NAMES["fit"])
    assert type(make("fit", "best-of")).__name__ == "BestOf"
    made = [make("measure", name) for name in NAMES["measure"]]
    assert made[-4:] == [complexity.LANDSCAPE, complexity.CURVATURE, complexity.SIZE, complexity.RANKS]
    assert all(isinstance(one, complexity.Complexity) for one in made[:-4])
    assert SCALES == ("tiny", "small", "paper")


def test_settings_are_those_of_the_object() -> None:
    assert make("stitch", "conv,kernel=3") == Conv(kernel=3)
    assert make("fit", "task-loss,steps=7,check=1") == TaskLoss(steps=7, check=1)
    assert make("fit", "bansal2021,steps=5").steps == 5
    for text, repr_ in (
        ("without,classes=pickup truck|ship", "Without(classes='pickup truck|ship')"),
        ("without,classes=3", "Without(classes='3')"),
        ("without,classes='a,b'", "Without(classes='a,b')"),
        ("super-classes,groups=low: 0|1; high: 2", "SuperClasses(groups='low: 0|1; high: 2')"),
        ("relabelled,label=truck,to=ship,everywhere=True", "Relabelled(label='truck', to='ship', everywhere=True)"),
    ):
        assert [repr(made) for made in make_all("variant", [text])] == [repr_]
    for text in ("without,classes='a", "without,,classes=a", "without,a", "subset,n='3'"):
        with pytest.raises(SutureError, match=r"has|is not of type int"):
            make("variant", text)
    assert split_names("rbf_cka,bandwidth=0.2,debiased=False,svcca,svcca") == [
        "rbf_cka,bandwidth=0.2,debiased=False", "svcca"
    ]  # fmt: skip


def test_baselines_are_named_beside_controls() -> None:
    assert name_controls("default,linear-probe") == (*controls.DEFAULT, baselines.linear_probe)
    assert name_controls("plugged-in,itself,itself") == (baselines.plugged, controls.itself)
    assert name_controls("none") == ()


# Files of settings


def test_settings_are_printed_and_read_and_the_command_line_wins(run: Run, tmp_path: Path) -> None:
    line = "matrix a b --into c --data digits --seeds 3 --variant half grey3 --fit-samples 50 --retry"
    code, printed, err = run(f"{line} --print_config")
    assert (code, err) == (0, "")
    assert yaml.safe_load(printed)["senders"] == ["a", "b"]
    (tmp_path / "settings.yaml").write_text(printed)
    given, read = (vars(parser().parse_args(words.split())) for words in (line, "matrix --config settings.yaml"))
    assert read | {"config": None} == given
    line = "matrix x --config settings.yaml --seeds 2 --variant digit"
    changed = vars(parser().parse_args(line.split()))
    assert {name: value for name, value in changed.items() if read[name] != value} == {
        "senders": ["x"], "seeds": 2, "variant": ["digit"]
    }  # fmt: skip
    (tmp_path / "keep.yaml").write_text("recipe: fast\nnetwork: zoo:mlp\nkeep: [3, 5]\nout: x\nlr: 0.1\n")
    train = parser().parse_args(["train", "--config=keep.yaml", "--data", "digits"])
    assert (train.recipe, train.keep, train.lr) == ("fast", (3, 5), 0.1)


# Faults and ends


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_is_told_in_one_line_and_by_its_traceback_if_that_is_asked_for(debug: bool) -> None:
    code = (
        "import sys; from suture.cli import main, doctor; sys.argv = ['suture', 'doctor']\n"
        "def fault(*given): raise RuntimeError('a\\nbug')\n"
        "doctor.examine = fault; sys.exit(main.main())"
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
        told = (
            "suture: a fault, of Suture or of code that it was given: RuntimeError: a bug at <string>:2; SUTURE_DEBUG"
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (70, 1)
        assert done.stderr.startswith(told)


def test_an_interruption_while_the_command_line_loads_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import suture.__main__

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "suture.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "suture.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert suture.__main__.main() == 130
    assert capsys.readouterr() == ("", "suture: interrupted\n")


def test_a_dumb_terminal_is_as_wide_as_it_is_and_gets_no_escapes() -> None:
    code = (
        "from rich.table import Table; from suture.cli import output\n"
        "table = Table(); [table.add_column('heading ' * 5) for _ in range(4)]\n"
        "table.add_row(*['cell ' * 8] * 4); output.show(table)"
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


@pytest.mark.slow
def test_shells_complete_commands_options_names_and_files(run: Run, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    code, script, err = run("completion bash")
    assert (code, err) == (0, "")
    (tmp_path / "suture").write_text(f'#!/bin/sh\nexec {sys.executable} -m suture "$@"\n')
    (tmp_path / "suture").chmod(0o755)
    expected = {
        "suture cu": "curve cuts",
        "suture zoo tr": "train",
        "suture curve --fit": "--fit --fit-samples",
        "suture curve a b --fit ban": "bansal2021",
        "suture curve a b --fit=least": "least-squares",
        "suture curve a b --controls itself,untrained-s": "itself,untrained-sender",
        "suture curve zoo:resnet1": "resnet164",
        "suture data digits --variant half bl": "blacked-out",
        "suture compare a b --by svcca,rbf": "svcca,rbf_cka",
        "suture run bansal-2A smith-C": "smith-C1 smith-C5 smith-C2",
        "suture export runs --to f": "feather",
        "suture completion z": "zsh",
    }
    tab = 'tab() { COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=(); _python_argcomplete suture; '
    tab += 'echo "${COMPREPLY[@]}"; }'
    asked = "\n".join([script, tab, *(f'tab "{line}"' for line in expected)])
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=False, env=environment)
    found = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert (dict(zip(expected, found, strict=True)), done.stderr) == (expected, "")


def test_the_other_shells_have_scripts(run: Run) -> None:
    for shell in ("zsh", "fish"):
        code, script, _ = run(f"completion {shell}")
        assert (code, "suture" in script) == (0, True), shell


def test_preprocessing_is_that_of_all_networks_but_those_that_say_their_own() -> None:
    texts = ["timm:resnet18,num_classes=2@w.pt", "zoo:resnet,preprocess.size=64"]
    chosen = Namespace(line="suture curve", preprocess="size=32,mean=(0.1,0.2,0.3)", trust=False)
    one, other = sources_of(chosen, texts).values()
    assert (one.preprocess, one.checkpoint) == ({"size": 32, "mean": (0.1, 0.2, 0.3)}, "w.pt")
    assert other.preprocess == {"size": 64, "mean": (0.1, 0.2, 0.3)}
    assert parse_source(one.text) == one
    for wrong, said in (
        ("size", "--preprocess size has the argument 'size'; write key=value"),
        ("side=3", "unexpected"),
    ):
        with pytest.raises(SutureError, match=said):
            sources_of(Namespace(line="suture curve", preprocess=wrong, trust=False), texts)
    commands = ("curve", "matrix", "plan curve", "localise", "compare", "complexity", "cuts")
    assert all("--preprocess" in ALL[command].format_help() for command in commands)

"""The command line as its user meets it: results, messages, exit codes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import save_file

import suture
from suture.cli.main import main
from suture.common.errors import FitError
from suture.fits import LeastSquares
from suture.measurement.tables import table as tables
from suture.measurement.tables.by_depth import by_depth
from suture_papers.networks.architectures import convnet
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import train

MODELS = """
from collections import OrderedDict
from torch import nn

def strange(classes=10):
    layers = OrderedDict(one=nn.Flatten(), two=nn.Linear(64, 8), three=nn.ReLU(), four=nn.Linear(8, classes))
    return nn.Sequential(layers)

def broken():
    model = strange()
    nn.init.constant_(model.two.weight, float("inf"))
    return model
"""
NET = "zoo:convnet,width=2"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of ``NET``, two of them trained, and models in a file."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "models.py").write_text(MODELS)
    data = suture.load_data("digits").limited(fit=400)
    for name, seed in (("a", 0), ("b", 1)):
        model = train(lambda: convnet(width=2), data.fit, replace(DIGITS, epochs=2), seed)
        save_file(model.state_dict(), folder / f"{name}.safetensors")
    state = convnet(width=2).state_dict()
    save_file({k: v for k, v in state.items() if k != "stage2.conv.weight"}, folder / "short.safetensors")
    save_file(state | {"stage9.weight": torch.ones(1)}, folder / "long.safetensors")
    save_file(state | {"head.weight": state["head.weight"] * torch.nan}, folder / "nan.safetensors")
    torch.save({"weights": os.path.join}, folder / "unsafe.pt")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image folders in parquet: one sample, none, and images without labels."""
    root = tmp_path_factory.mktemp("photos")
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for name, count, labelled in (("one", 1, True), ("none", 0, True), ("unlabelled", 6, False)):
        columns: dict[str, list[Any]] = {"image": [image] * count}
        features: dict[str, Any] = {"image": datasets.Image()}
        if labelled:
            columns["label"], features["label"] = [0] * count, datasets.ClassLabel(names=["x", "y"])
        (root / name).mkdir()
        for split in ("train", "test"):
            made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
            made.to_parquet(root / name / f"{split}.parquet")
    return root


@pytest.fixture
def run(
    folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command among the models, 80 columns wide; its exit code, output and messages."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    places = {"OUT": str(tmp_path / "out"), "PHOTOS": str(photos), "TMP": str(tmp_path)}

    def command(line: str) -> tuple[int, str, str]:
        words = [re.sub(r"\b(OUT|PHOTOS|TMP)\b", lambda found: places[found[0]], word) for word in line.split()]
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


A, B = f"{NET}@a.safetensors", f"{NET}@b.safetensors"
QUICK = f"curve {A} {B} --data digits --fit least-squares --workers 1 --at stage3.pool"


# Wrong input


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to measure or to train fails."""

    def work(*args: object, **options: object) -> None:
        raise SystemExit("work was begun")

    monkeypatch.setattr("suture.measurement.trials.measure.measure", work)
    monkeypatch.setattr("suture_papers.training.train", work)


#: What is refused once models and data are read, each with its offender; tests/cli/refusals.txt has what is refused
#: before that, and tests/zoo/test_sources.py the model strings.
WRONG = [
    (f"curve {A} {B} --data digits --at pool,stage2.rel", "no cut 'stage2.rel' in a"),
    (f"curve {A} {B} --data digits --at pool,", "no cut '' in a"),
    (f"curve {A} models.py:strange --data digits", "--at SENDER_CUT:RECEIVER_CUT"),
    (
        f"curve {A} {NET},preprocess.size=16 --data digits --at stage1.relu --stitch conv",
        "→ stage1.relu: Conv()",
    ),
    (f"curve {A} models.py:strange --data digits --at flatten:two,pool:five", "no cut 'five' in models.py:strange"),
    (f"curve {A} {B} --data digits --at pool:relu:pool", "--at pool:relu:pool"),
    (f"curve {A} {B} --data digits --at pool,stage1.conv:stage1.relu,stage1.relu", "cut 'stage1.relu' twice"),
    (f"matrix {A} {B} --data digits --at layer*", "'layer*' matches no cut of a"),
    (
        f"matrix {A} --into models.py:strange --data digits --receiver-at pool",
        "'pool' matches no cut of models.py",
    ),
    (f"matrix {A} --into {NET},classes=7 --data digits", "the head of the receiver convnet has 7 outputs"),
    (f"matrix {A} {B} --data digits --at stage1* --stitch low-rank,rank=3", "another --stitch"),
    (f"curve {A} {B} --data nowhere", "no data 'nowhere'"),
    (f"curve {A} {B} --data PHOTOS/unlabelled", "data without labels"),
    (f"curve {A} {B} --data PHOTOS/one", "1 sample"),
    (f"curve {A} {B} --data PHOTOS/none", "no data"),
    (f"curve {A} {B} --data digits --size 16", "takes no --size"),
    (f"curve {A} {B} --data digits --fit-samples 5000", "cannot limit 'digits/fit' to 5000"),
    (f"curve {A} zoo:resnet,width=2 --data digits", "the preprocessing of resnet cannot be applied"),
    (f"curve {A} convnet --data digits", "no model source 'convnet'"),
    (f"curve {A} gone.py:net --data digits", "no file gone.py"),
    (f"curve {NET}@short.safetensors {B} --data digits", "stage2.conv.weight"),
    (f"curve {NET}@unsafe.pt {B} --data digits", "unsafe.pt holds arbitrary Python objects"),
    ("curve models.py:broken models.py:strange --data digits", "the weight of module 'two' in"),
    (f"curve {A} {B} --data digits --out a.safetensors", "cannot write to a.safetensors"),
    (f"matrix {A} {B} --data digits --out a.safetensors/x", "cannot write to a.safetensors/x"),
    ("demo --out a.safetensors", "cannot write to a.safetensors"),
    (f"plan {QUICK} --ram 1MB", "of RAM"),
    ("cuts zoo:resnet --shape 1x8x8", "cannot be applied to images (1, 8, 8)"),
    ("cuts models.py:strange", "models.py:strange: only you know the images that it takes"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("_idle")
def test_wrong_input_is_refused_in_one_line_before_any_work(run: Run) -> None:
    for line, offender in WRONG:
        code, out, err = run(line)
        said = [text for text in err.splitlines() if "has random weights" not in text]
        assert (code, out, len(said)) == (2, "", 1), line
        assert said[0].startswith("suture: "), line
        assert offender in said[0], (line, said[0])


def test_a_wrong_setting_is_refused_before_a_folder_is_made(run: Run, tmp_path: Path) -> None:
    assert run(f"{QUICK} --seeds 0 --out OUT")[0] == 2
    assert run(f"curve {A} {NET}@gone.pt --data digits --out OUT")[0] == 2
    assert not (tmp_path / "out").exists()


def test_a_bug_is_not_taken_for_wrong_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: object, **options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("suture.measurement.trials.plans.plan_seam", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        run(QUICK)


# Results


@pytest.mark.slow
def test_the_demo_writes_its_table_and_figure(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With networks and a fit that take less than a second."""

    def two(data: Any, say: object) -> list[suture.Network]:
        return [suture.Network(net, example=data.example, name=name) for name, net in zip("AB", nets, strict=True)]

    nets = [convnet(4).eval() for _ in range(2)]
    monkeypatch.setattr("suture.cli.demo.two_networks", two)
    monkeypatch.setattr("suture.cli.demo.demo_fit", LeastSquares)
    code, out, _ = run("demo --out OUT --workers 1")
    assert code == 0
    assert "penalty" in out
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"table.parquet", "curve.png", "curve.pdf", "curve.svg"} <= made


def test_a_curve_is_printed_and_written(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"{QUICK},stage1.relu --controls itself,untrained-sender --out OUT")
    assert code == 0
    table = tables.load(tmp_path / "out" / "table.parquet")
    assert dict(table.groupby("control")["trial"].nunique()) == {"": 2, "itself": 2, "untrained sender": 2}
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)
    assert lines[0].startswith("Warning: a alone is right on "), "it has random weights"
    heading = next(line for line in lines if line.startswith("a → b: "))
    assert heading.startswith("a → b: test accuracy in %, penalties in pp, with 95 % intervals over 597 test")
    for cut in ("stage1.relu", "stage3.pool"):
        here = table[(table["receiver_cut"] == cut) & (table["score"] == "accuracy")].set_index("control")
        row = next(line for line in lines if line.startswith(cut))
        numbers = [float(text) for text in re.findall(r"[-+]?\d+\.\d", row.removeprefix(cut))]
        plain = here.loc[""]
        expected = [100 * plain["stitched"], plain["penalty"], plain["penalty_low"], plain["penalty_high"]]
        expected += [100 * here.loc[kind, "stitched"] for kind in ("itself", "untrained sender")]
        assert numbers == pytest.approx(expected, abs=0.0501)
    assert lines.index(next(x for x in lines if x.startswith("stage1"))) < lines.index(
        next(x for x in lines if x.startswith("stage3"))
    )
    wrote = [line.removeprefix("wrote ") for line in err.splitlines() if line.startswith("wrote ")]
    assert [Path(path).name for path in wrote] == ["table.parquet", "curve.png", "curve.pdf", "curve.svg"]
    assert all(Path(path).stat().st_size > 1000 for path in wrote)
    assert "random weights" not in err


@pytest.mark.slow
def test_what_fits_many_images_is_previewed_before(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{QUICK},stage1.relu --controls untrained-sender --out OUT".replace("least-squares", "task-loss,steps=4")
    _, without, err = run(line.replace("OUT", "other"))
    assert "Preview" not in err
    monkeypatch.setattr("suture.measurement.trials.plans.PREVIEWED", 100)
    code, out, err = run(line)
    assert (code, out) == (0, without)
    begun, previewed, *_ = (part.start() for part in re.finditer(r"(?m)^4 trials in", err))
    shown = err[begun:previewed]
    assert "Preview by closed form, fitted on digits/fit[:100] and scored on digits/score[:100]" in " ".join(
        shown.split()
    )
    assert re.search(r"(?m)^stage1.relu +\d", shown), shown
    assert len(tables.load(tmp_path / "out" / "table.parquet")["fit"].unique()) == 1


@pytest.mark.slow
def test_a_matrix_is_previewed_before(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suture.measurement.trials.plans.PREVIEWED", 100)
    code, out, err = run(
        f"matrix {A} --into {B} --data digits --at stage1.relu,flatten --fit task-loss,steps=4 --controls none"
    )
    assert code == 0
    told = " ".join(err.split())
    assert (
        "Preview by closed form, fitted on digits/fit[:100] and scored on digits/score[:100]: it shows roughly" in told
    )
    assert len(re.findall(r"(?m)^(?:stage1.relu|flatten) +\d+\.\d +\d+\.\d", err)) == 2
    assert "Preview" not in out


def test_cuts_of_other_names_are_joined(run: Run) -> None:
    code, out, _ = run(
        f"curve {A} models.py:strange --data digits --fit least-squares --controls itself --at flatten:two"
    )
    assert code == 0
    assert re.search(r"(?m)^flatten → two +\d+\.\d +[-+]\d", out)


def test_json_holds_the_rows_and_the_files(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"{QUICK} --controls none --seeds 2 --fit-samples 300 --score-samples 200 --out OUT --json")
    assert code == 0
    made = json.loads(out)
    stored = tables.for_text(tables.load(tmp_path / "out" / "table.parquet"))
    columns = {name: kind for name, kind in tables.COLUMNS.items() if name in stored}
    pd.testing.assert_frame_equal(pd.DataFrame(made["rows"]).astype(columns), stored, rtol=1e-12)
    assert [row["seed"] for row in made["rows"] if row["score"] == "loss"] == [0, 1]
    assert {(row["fit_data"], row["n"]) for row in made["rows"]} == {("digits/fit[:300]", 200)}
    assert [Path(file).name for file in made["files"]] == ["table.parquet", "curve.png", "curve.pdf", "curve.svg"]
    assert made["failed"] == 0
    assert "2 trials" in err


def test_without_a_folder_nothing_is_written(run: Run, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    code, out, _ = run(f"{QUICK} --controls none --json")
    assert code == 0
    assert json.loads(out)["files"] == []
    assert [path for path in sorted(folder.rglob("*")) if path not in before] == []


def test_settings_come_from_yaml_and_the_command_line_has_the_last_word(run: Run, tmp_path: Path) -> None:
    code, printed, _ = run(f"{QUICK} --controls none --seeds 3 --print_config")
    assert code == 0
    settings = yaml.safe_load(printed)
    assert settings["sender"] == A
    assert settings["seeds"] == 3
    (tmp_path / "settings.yaml").write_text(printed)
    code, out, _ = run("curve --config TMP/settings.yaml --seeds 2 --json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert {(row["sender"], row["receiver"], row["fit"], row["control"]) for row in rows} == {
        ("a", "b", "LeastSquares()", "")
    }
    assert {row["seed"] for row in rows} == {0, 1}


def test_a_failed_trial_is_shown_explained_and_gives_exit_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from suture.measurement.trials import measure as measuring

    measure = measuring.measure

    def sometimes(trial: suture.Trial, cache: Any) -> Any:
        if trial.control == "untrained sender" or trial.sender_cut == "pool":
            raise FitError(f"the loss at {trial.sender_cut} is\nnot finite")
        return measure(trial, cache)

    monkeypatch.setattr(measuring, "measure", sometimes)
    code, out, err = run(f"{QUICK},pool --controls itself,untrained-sender --out OUT")
    assert code == 1
    assert re.search(r"(?m)^stage3\.pool +\d+\.\d +\S+ \[.*\] +\d+\.\d +failed$", out)
    assert re.search(r"(?m)^pool +failed +failed +failed$", out)
    assert "failed: a → b at stage3.pool (untrained sender): FitError: the loss at stage3.pool is not finite" in err
    assert "suture: 4 of 6 trials failed: 3 × FitError: the loss at pool is not finite; 1 × FitError" in err
    assert (tmp_path / "out" / "curve.png").exists()
    assert json.loads(run(f"{QUICK},pool --controls none --json")[1])["failed"] == 1


def test_where_every_trial_failed_there_is_a_table_but_no_figure(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*args: object) -> None:
        raise FitError("no")

    monkeypatch.setattr("suture.measurement.trials.measure.measure", never)
    code, out, err = run(f"{QUICK} --out OUT")
    assert code == 1
    assert re.search(r"(?m)^stage3\.pool +failed", out)
    assert "6 of 6 trials failed: 6 × FitError: no" in err
    assert [
        path.name for path in (tmp_path / "out").iterdir() if path.suffix in (".parquet", ".png", ".pdf", ".svg")
    ] == ["table.parquet"]


def test_random_networks_are_said_to_be_random_and_are_always_the_same(run: Run) -> None:
    line = f"curve {NET} zoo:mlp,width=6 --data digits --fit least-squares --controls none --json"
    torch.manual_seed(1)
    _, first, err = run(line)
    torch.manual_seed(2)
    _, second, _ = run(line)
    for model in (NET, "zoo:mlp,width=6"):
        assert f"suture: {model} has random weights; to load trained ones, add @FILE" in err
    keys = [[row["trial"] for row in json.loads(out)["rows"]] for out in (first, second)]
    assert keys[0] == keys[1]


def test_names_tell_networks_apart_and_one_network_is_said_to_be_one(run: Run, folder: Path) -> None:
    rows = json.loads(run(f"{QUICK.replace(B, NET + ',channels=1@a.safetensors')} --controls none --json")[1])["rows"]
    assert {(row["sender"], row["receiver"]) for row in rows} == {("a A", "a B")}
    code, _, err = run(f"{QUICK.replace(B, A)} --controls none --json")
    assert code == 0
    assert f"sender and receiver are one network, {A}; give another" in err


@pytest.mark.kills
def test_a_keyboard_interrupt_keeps_what_was_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from suture.measurement.trials import measure as measuring

    measure = measuring.measure

    def impatient(trial: suture.Trial, cache: Any) -> Any:
        if trial.control == "untrained sender":
            raise KeyboardInterrupt
        return measure(trial, cache)

    monkeypatch.setattr(measuring, "measure", impatient)
    code, out, err = run(f"{QUICK} --out OUT")
    assert (code, out) == (130, "")
    line = f"{QUICK} --out {tmp_path / 'out'}"
    said = (
        f"suture: interrupted: 2 of 6 trials are measured and kept in {tmp_path / 'out'}; continue with: suture {line}"
    )
    assert err.splitlines()[-1] == said
    assert list(dict.fromkeys(tables.load(tmp_path / "out" / "table.parquet")["control"])) == ["", "itself"]


# Matrices


MATRIX = (
    f"matrix {A} {B} --data digits --fit least-squares --workers 1 --at *.pool,flatten --fit-samples 200 "
    "--score-samples 100"
)


@pytest.mark.slow
def test_a_matrix_is_printed_and_written(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"{MATRIX} --controls itself,untrained-sender,clustered-noise --out OUT")
    assert code == 0
    table = tables.load(tmp_path / "out" / "table.parquet")
    cuts = ["stage2.pool", "stage3.pool", "flatten"]
    assert dict(table.groupby("control")["trial"].nunique()) == {
        "": 36, "itself": 6, "untrained sender": 36, "clustered noise": 6
    }  # fmt: skip
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)
    assert lines[0].startswith("Warning: a alone is right on "), "it has random weights"
    assert "a, b → a, b: test accuracy in %; rows are sender cuts" in out
    plain = table[(table["control"] == "") & (table["score"] == "accuracy")]
    at = lines.index("b → a")
    for place, cut in enumerate(cuts, start=at):
        row = next(line for line in lines[place:] if line.startswith(cut))
        here = plain[(plain["sender"] == "b") & (plain["receiver"] == "a") & (plain["sender_cut"] == cut)]
        expected = 100 * here.set_index("receiver_cut")["stitched"][cuts]
        assert [float(x.rstrip("†")) for x in row.split()[1:]] == pytest.approx(list(expected), abs=0.0501)
    assert re.search(r"(?m)^all pairs +\d", out)
    assert "Late → early (sender cut at least as deep as receiver cut)" in out
    wrote = [Path(line.removeprefix("wrote ")) for line in err.splitlines() if line.startswith("wrote ")]
    assert [path.name for path in wrote] == ["table.parquet", "depth.parquet", "matrix.png", "matrix.pdf", "matrix.svg"]
    assert all(path.stat().st_size > 1000 for path in wrote)
    pd.testing.assert_frame_equal(pd.read_parquet(wrote[1]), by_depth(table))


@pytest.mark.slow
def test_senders_go_into_the_receivers_that_are_named(run: Run) -> None:
    code, out, err = run(f"{MATRIX} --into models.py:strange --receiver-at two,t*ree --controls none --json")
    assert code == 0, err
    made = json.loads(out)
    rows = [row for row in made["rows"] if row["score"] == "accuracy"]
    assert {(row["sender"], row["receiver"]) for row in rows} == {(s, "models.py:strange") for s in "ab"}
    assert {row["receiver_cut"] for row in rows} == {"two", "three"}
    assert {row["sender_cut"] for row in rows} == {"stage2.pool", "stage3.pool", "flatten"}
    assert [(row["sender"], row["cells"]) for row in made["by_depth"]] == [("a", 6), ("b", 6)]
    by_hand = [row["stitched"] for row in rows if row["sender"] == "a"]
    assert made["by_depth"][0]["mean"] == pytest.approx(np.mean(by_hand))
    assert (made["files"], made["failed"]) == ([], 0)
    assert "a, b → models.py:strange on digits: 200 images to fit, 100 to score" in err


def test_one_network_goes_into_itself_where_that_is_asked_for(run: Run) -> None:
    code, out, _ = run(f"{MATRIX.replace(B, '')} --into {A} --controls none --json")
    assert code == 0
    assert {(row["sender"], row["receiver"]) for row in json.loads(out)["rows"]} == {("a", "a")}


@pytest.mark.slow
def test_families_and_fits_are_named_by_their_calls(run: Run) -> None:
    for settings, stitch, fit in (
        ("--stitch low-rank,rank=2", "LowRank(rank=2)", "TaskLoss(steps=5)"),
        ("--stitch conv-linear,channels=1", "ConvLinear(channels=1)", "TaskLoss(steps=5)"),
        ("--stitch diagonal --fit least-squares,rescale=False", "Diagonal()", "LeastSquares(rescale=False)"),
        ("--fit random", "Conv()", "Random()"),
        ("--fit bansal2021,steps=5", "Conv()", "bansal2021(steps=5)"),
    ):
        at = "stage3.pool:flatten" if "conv-linear" in settings else "stage3.pool"
        line = f"curve {A} {B} --data digits --fit task-loss,steps=5 --at {at} --controls none --json {settings}"
        code, out, err = run(f"{line} --fit-samples 100 --score-samples 50 --workers 1")
        assert code == 0, err
        assert {(row["stitch"], row["fit"]) for row in json.loads(out)["rows"]} == {(stitch, fit)}


@pytest.mark.slow
def test_a_failed_trial_of_a_matrix_is_shown_and_gives_exit_code_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from suture.measurement.trials import measure as measuring

    measure = measuring.measure

    def sometimes(trial: suture.Trial, *rest: Any) -> Any:
        if trial.sender_cut == "flatten" or always:
            raise FitError("no")
        return measure(trial, *rest)

    monkeypatch.setattr(measuring, "measure", sometimes)
    line = f"{MATRIX} --into {B} --controls none --out OUT"
    always = False
    code, out, err = run(line)
    assert code == 1
    assert re.search(r"(?m)^flatten +× +× +×$", out)
    assert "suture: 6 of 18 trials failed: 6 × FitError: no" in err
    assert (tmp_path / "out" / "matrix.png").exists()
    always = True
    code, out, err = run(line.replace("OUT", "TMP/other"))
    assert code == 1
    assert not (tmp_path / "other" / "matrix.png").exists()
    assert "18 of 18 trials failed" in err


# Cuts


def test_cuts_are_listed_with_what_is_known_of_them(run: Run) -> None:
    code, out, err = run("cuts zoo:resnet,width=2 --dropped")
    assert (code, err) == (0, "")
    network = suture.load_network("zoo:resnet,width=2", example=torch.zeros(1, 3, 32, 32))
    rows = {line.split()[1]: line.split() for line in out.splitlines() if re.match(r" *\d+ {3}", line)}
    assert list(rows) == list(network.cuts.names)
    for cut in network.cuts:
        shape = "×".join(map(str, cut.shape))
        assert rows[cut.name][2:5] == [shape, f"{cut.depth:.2f}", f"{cut.parameters:,}"]
        assert float(rows[cut.name][5].replace(",", "")) == pytest.approx(cut.flops / 1e6, abs=0.0501)
    assert all(any(line.startswith(f"{name} ") for line in out.splitlines()) for name in network.cuts.dropped)
    assert max(map(len, out.splitlines())) <= 80


def test_cuts_as_json(run: Run) -> None:
    code, out, _ = run("cuts models.py:strange --shape 1x8x8 --json")
    made = json.loads(out)
    assert code == 0
    assert made["image_shape"] == [1, 8, 8]
    assert [(cut["name"], cut["shape"]) for cut in made["cuts"]] == [("one", [64]), ("two", [8]), ("three", [8])]


@pytest.mark.slow
def test_the_images_that_a_model_is_made_for_are_known(run: Run) -> None:
    for model, shape in (
        ("zoo:convnet,width=2,channels=3", [3, 8, 8]),
        ("zoo:mlp,inputs=144,width=2", [1, 12, 12]),
        ("timm:vit_tiny_patch16_224,img_size=(32,48),patch_size=16,depth=1", [3, 32, 48]),
        ("torchvision:squeezenet1_1", [3, 224, 224]),
    ):
        code, out, _ = run(f"cuts {model} --json")
        assert (code, json.loads(out)["image_shape"]) == (0, shape), model


# The process as a whole


@pytest.mark.slow
def test_a_process_keeps_results_and_messages_apart_without_colour_or_warnings(folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-W", "error", "-m", "suture", *QUICK.split(), "--controls", "untrained-sender"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "a → b on digits: 1,080 images to fit, 597 to score"
    assert re.fullmatch(
        r"2 trials\n(Warning: .* near chance .*\n)*2 trials in \d+ s", "\n".join(done.stderr.splitlines()[1:])
    )
    assert "\x1b" not in done.stdout + done.stderr
    assert "Worst penalty" in done.stdout


def test_a_reader_that_goes_away_ends_the_command_quietly(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open(tmp_path / "pipe", "w", encoding="utf-8") as pipe:

        class Closed:
            fileno = pipe.fileno

            def write(self, text: str) -> None:
                if text:
                    raise BrokenPipeError

            def flush(self) -> None: ...

        monkeypatch.setattr(sys, "stdout", Closed())
        assert main(["cuts", NET]) == 141
        assert os.path.samestat(os.fstat(pipe.fileno()), os.stat(os.devnull))  # where the rest goes at exit


def test_one_seam_is_stitched_saved_and_loaded(run: Run) -> None:
    line = f"stitch {A} {B} --data digits --fit-samples 100 --fit least-squares --controls itself"
    code, out, _ = run(f"{line} --at flatten --out joined --json")
    assert code == 0
    joined, score = suture.load_stitched("joined"), suture.load_data("digits").score
    right = (joined(score.images).argmax(1) == score.labels).double().mean()
    assert json.loads(out)["scores"]["accuracy"]["value"] == pytest.approx(float(right))
    code, out, _ = run(f"{line} --at flatten:flatten")
    assert code == 0
    assert "control: itself" in out
    code, _, err = run(f"{line} --at flatten,pool")
    assert code == 2
    assert "a stitch joins at one cut; suture curve measures several" in err

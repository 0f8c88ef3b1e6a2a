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
import suture.__main__
from suture.cli.main import main
from suture.cli.names import controls_named
from suture.common.errors import FitError, SutureError
from suture.measurement.tables import table as tables
from suture.measurement.tables.by_depth import by_depth
from suture.measurement.trials import baselines, controls
from suture.zoo import convnet
from suture.zoo.recipes import DIGITS
from suture.zoo.training import train

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
    monkeypatch.setattr("suture.cli.demo.train", work)


WRONG = [
    # cuts and shapes
    (f"curve {A} {B} --data digits --at layer9", "no cut 'layer9' in a; valid cuts: 'stage1.conv', 'stage1.norm',"),
    (f"curve {A} {B} --data digits --at pool,stage2.rel", "no cut 'stage2.rel' in a; did you mean 'stage2.relu'"),
    (f"curve {A} {B} --data digits --at pool,", "no cut '' in a; valid cuts: 'stage1.conv'"),
    (
        f"curve {A} models.py:strange --data digits",
        "no common cut: the sender has stage1.conv, .*; the receiver has one, two, three; give both names of each "
        "seam, --at S",
    ),
    (
        f"curve {A} {NET},preprocess.size=16 --data digits --at stage1.relu --stitch conv",
        r"at stage1.relu: Conv\(\) cannot join the sender's maps 2×8×8 to the receiver's maps 2×16×16; .* --stitch",
    ),
    (
        f"curve {A} models.py:strange --data digits --at flatten:two,pool:five",
        "no cut 'five' in models.py:strange; valid",
    ),
    (
        f"curve {A} {B} --data digits --at pool:relu:pool",
        "--at pool:relu:pool: give one cut, or SENDER_CUT:RECEIVER_CUT",
    ),
    (
        f"curve {A} {B} --data digits --at pool,flatten,stage1.conv:stage1.relu,stage1.relu",
        "--at .* cut 'stage1.relu' twice",
    ),
    # matrices
    (
        f"matrix {A} {B} --data digits --at layer*",
        r"'layer\*' matches no cut of a; its cuts: stage1.conv, stage1.norm,",
    ),
    (
        f"matrix {A} {B} --data digits --at pool,stage*x",
        r"'stage\*x' matches no cut of a or b; leave it out, or correct",
    ),
    (f"matrix {A} {B} --data digits --sender-at two", "'two' matches no cut of a; its cuts: stage1.conv"),
    (
        f"matrix {A} --into models.py:strange --data digits --receiver-at pool",
        "'pool' matches no cut of models.py:stra",
    ),
    (f"matrix {A} --data digits", "a.safetensors is the only network; give others, or --into RECEIVER, which may be"),
    (f"matrix {A} {A} --data digits", "a.safetensors is the only network; give others"),
    (f"matrix {A} --into {NET},classes=7 --data digits", "the head of the receiver convnet has 7 outputs"),
    (
        f"matrix {A} {B} --data digits --at stage1* --stitch low-rank,rank=3",
        r"a → a at stage1.conv → stage1.conv: LowRank\(rank=3\) .*; choose other cuts with --at, or another --stitch",
    ),
    (
        f"matrix {A} {B} --data digits --stitch linear --at stage1.relu,flatten",
        "a → a at stage1.relu → flatten: Linear",
    ),
    # families and fits
    (f"matrix {A} {B} --data digits --stitch best", "no stitch 'best'; valid stitches: identity, linear, conv, low-r"),
    (f"curve {A} {B} --data digits --stitch low-rang,rank=2", "no stitch 'low-rang'; did you mean 'low-rank'?"),
    (
        f"curve {A} {B} --data digits --stitch low-rank",
        "--stitch low-rank: low-rank needs its rank; write low-rank,rank",
    ),
    (f"curve {A} {B} --data digits --stitch conv,kernal=3", "conv has no setting 'kernal'; it takes kernel, batchnorm"),
    (f"curve {A} {B} --data digits --stitch conv,kernel=1.5", "--stitch conv,kernel=1.5: kernel=1.5 is no int"),
    (f"curve {A} {B} --data digits --stitch conv,kernel=True", "kernel=True is no int"),
    (f"curve {A} {B} --data digits --stitch conv,3", "--stitch conv,3: write settings as key=value, each once"),
    (f"curve {A} {B} --data digits --stitch conv,kernel=", "--stitch conv,kernel=: write settings as key=value"),
    (f"curve {A} {B} --data digits --stitch conv,kernel=x", "--stitch conv,kernel=x: write settings as key=value"),
    (f"curve {A} {B} --data digits --stitch conv,kernel=1,kernel=3", "write settings as key=value"),
    (f"curve {A} {B} --data digits --stitch conv,**{{}}", "write settings as key=value"),
    (f"curve {A} {B} --data digits --fit task-loss,start=1", "task-loss has no setting 'start'; it takes steps, batch"),
    (f"curve {A} {B} --data digits --fit random,steps=1", "random has no setting 'steps'; it takes no setting"),
    (f"curve {A} {B} --data digits --fit task-loss,steps=0", r"TaskLoss\(steps=0\): steps must be at least 1"),
    (f"curve {A} {B} --data digits --fit bansal2021,lr=1", "bansal2021 has no setting 'lr'; it takes steps, batch"),
    (f"curve {A} {B} --data digits --fit bansal2021,steps=1.5", "--fit bansal2021,steps=1.5: steps=1.5 is no int"),
    (f"curve {A} {B} --data digits --fit best-of,steps=1", "best-of has no setting 'steps'; it takes no setting"),
    # data
    (f"curve {A} {B} --data nowhere", "no data 'nowhere': neither a folder that exists nor a hub id; possible"),
    (f"curve {A} {B} --data PHOTOS/unlabelled", "one label column .found: none, data without labels.; its columns"),
    (f"curve {A} {B} --data PHOTOS/one", "1 sample.*at least 2 are needed: give it more data"),
    (f"curve {A} {B} --data PHOTOS/none", "cannot load '.*none' .*no data.*; possible sources:"),
    (f"curve {A} {B} --data digits --size 16", "load_data of 'digits' takes no --size; leave it out"),
    (f"curve {A} {B} --data digits --fit-samples 5000", "cannot limit 'digits/fit' to 5000; valid: 2 to 1080"),
    (
        f"curve {A} {NET},classes=7 --data digits --at pool",
        "digits/fit has 10 classes, but the head of the receiver convnet has 7 outputs; build or load it with 10",
    ),
    (
        f"curve {A} {NET},preprocess.mean=(0.4,0.5,0.6) --data digits",
        r"the preprocessing of convnet cannot be applied to images \(1, 8, 8\): .* 3 channels, but the images have 1",
    ),
    (
        f"curve {A} zoo:resnet,width=2 --data digits",
        r"the preprocessing of resnet cannot be applied to images \(1, 8, 8\): .* 3 channels, but the images have 1",
    ),
    # models
    (f"curve {A} convnet --data digits", "no model source 'convnet'; name a model like one of 'timm:.*'torchvision:"),
    (f"curve zoo:vgg {B} --data digits", "no model 'vgg' in zoo; nearest: .*; all 9: suture.zoo.NETWORKS"),
    (f"curve {NET},wdth=3 {B} --data digits", "convnet takes no argument 'wdth'; it takes 'width', 'classes'"),
    (f"curve {A} gone.py:net --data digits", "no file gone.py; give its path"),
    (f"curve {NET}@gone.pt {B} --data digits", "no checkpoint gone.pt; give the path of a file"),
    (f"curve {NET}@short.safetensors {B} --data digits", "does not fit .*: the file lacks 'stage2.conv.weight'"),
    (f"curve {NET}@long.safetensors {B} --data digits", "does not fit .*: the model has no 'stage9.weight'"),
    (f"curve {NET}@nan.safetensors {B} --data digits", "values that are not finite in 'head.weight'; the training"),
    (f"curve {NET}@unsafe.pt {B} --data digits", r"unsafe.pt holds arbitrary Python objects \(.*join\) and is not"),
    (f"curve zoo:convnet,width=3@a.safetensors {B} --data digits", "other shapes in 'stage1.conv.weight'"),
    ("curve models.py:broken models.py:strange --data digits", "the weight of module 'two' in .*broken is not finite"),
    # settings
    (f"curve {A} {B} --data digits --fit best", "no fit 'best'; did you mean 'best-of'\\? valid fits: fast, task-"),
    (f"curve {A} {B} --data digits --fit bansal", "no fit 'bansal'; did you mean 'bansal2021'\\?"),
    (f"curve {A} {B} --data digits --controls itself,nil", "no control 'nil'; valid controls: all, none, itself, unt"),
    (f"curve {A} {B} --data digits --seeds 0", "--seeds 0: give at least 1"),
    (f"curve {A} {B} --data digits --seeds two", "--seeds: expected a whole number, got two"),
    (f"curve {A} {B} --data digits --fit-samples 1", "--fit-samples 1: give at least 2"),
    (f"curve {A} {B} --data digits --score-samples -3", "--score-samples -3: give at least 2"),
    (f"curve {A} {B} --data digits --size 0", "--size 0: give at least 1"),
    (f"curve {A} {B} --data digits --out a.safetensors", "cannot write to a.safetensors: .*, or name another folder"),
    (f"curve {A} {B} --data digits --out a.safetensors/x", "cannot write to a.safetensors/x: .*, or name another"),
    (f"curve {A} {B} --data digits --config gone.yaml", "--config: .*gone.yaml"),
    (f"curve {A} {B}", "missing --data; see suture curve --help"),
    ("curve --data digits", "missing SENDER, RECEIVER; see suture curve --help"),
    ("matrix", "missing SENDER, --data; see suture matrix --help"),
    (f"matrix {A} {B}", "missing --data; see suture matrix --help"),
    (f"matrix {A} {B} --data digits --seeds 0", "--seeds 0: give at least 1"),
    (f"matrix {A} {B} --data digits --controls none,itself", "'none' stands alone"),
    (f"matrix {A} {B} --data digits --controls nil", "no control 'nil'; valid controls: all, none, itself"),
    (f"matrix {A} {B} --data digits --out a.safetensors", "cannot write to a.safetensors: .*, or name another folder"),
    (
        f"curve {A} {B} --data digits --sed 3",
        r"unrecognized arguments: --sed 3; did you mean --seeds\? see suture curve --help",
    ),
    (
        f"curve {A} {B} --data digits --seed 3",
        r"unrecognized arguments: --seed 3; did you mean --seeds\? see suture curve --help",
    ),
    (
        "curv a b",
        r"no command 'curv'; valid commands: 'demo', 'cuts', 'curve', .*; did you mean curve\? see suture --help",
    ),
    ("demo --out a.safetensors", "cannot write to a.safetensors: .*, or name another folder"),
    # where it runs
    (f"{QUICK} --workers 0", "--workers 0: give at least 1, which is one process alone"),
    (f"{QUICK} --workers many", "--workers: expected a whole number, got many"),
    (f"{QUICK} --ram much", "--ram: 'much' is no size in bytes; write for instance 8GB"),
    (f"{QUICK} --disk=-1GB", "--disk: '-1GB' is no size in bytes"),
    (f"{QUICK} --on cluster", "--on cluster: give local, ray, or ray:ADDRESS, such as ray:auto"),
    (f"{QUICK} --on ray:", "--on ray:: give local, ray, or ray:ADDRESS"),
    (f"{QUICK} --on ray --ram 2GB", "--on ray takes no --workers, --ram, which is for this machine; leave it out"),
    (f"{QUICK} --on local:4", "--on local:4: give local, ray, or ray:ADDRESS"),
    # what it will cost
    ("plan", "missing COMMAND, which is curve or matrix; see suture plan --help"),
    ("plan cuts", "no command 'cuts'; valid commands: 'curve', 'matrix'; see suture plan --help"),
    ("plan matrix", "missing SENDER, --data; see suture plan matrix --help"),
    (f"plan {QUICK} --seeds 0", "--seeds 0: give at least 1"),
    (f"plan {QUICK} --bogus", "unrecognized arguments: --bogus; see suture plan curve --help"),
    (f"plan {QUICK} --ram 1MB", "of RAM .* the budget is 1.0 MB; give fewer fit samples"),
    ("cuts", "missing MODEL; see suture cuts --help"),
    ("cuts resnet18", "no model source 'resnet18'; name a model like one of"),
    ("cuts zoo:resnet --shape 32x32", "--shape 32x32: give channels, height and width of one image, such as 3x224"),
    ("cuts zoo:resnet --shape 3x0x32", "--shape 3x0x32: give channels"),
    ("cuts zoo:resnet --shape 1x8x8", r"cannot be applied to images \(1, 8, 8\): .* but the images have 1"),
    ("cuts models.py:strange", "models.py:strange: only you know the images that it takes; .* --shape 3x32x32"),
    ("cuts zoo:mlp,inputs=50", "zoo:mlp,inputs=50: only you know the images that it takes"),
]


@pytest.mark.usefixtures("_idle")
@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line.replace(A, "A").replace(B, "B") for line, _ in WRONG])
def test_wrong_input_is_refused_in_one_line_before_any_work(run: Run, line: str, message: str) -> None:
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert re.match(f"suture: .*({message})", last), last
    assert [text for text in err.splitlines() if "random network" not in text] == [last]


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


def test_a_curve_is_printed_and_written(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"{QUICK},stage1.relu --controls itself,untrained-sender --out OUT")
    assert code == 0
    table = tables.load(tmp_path / "out" / "table.parquet")
    assert dict(table.groupby("control")["trial"].nunique()) == {"": 2, "itself": 2, "untrained sender": 2}
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)
    assert lines[0].startswith("a → b: test accuracy in %, penalties in pp, with 95 % intervals over 597 test")
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
    assert "random network" not in err


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
    stored = tables.load(tmp_path / "out" / "table.parquet")
    assert pd.DataFrame(made["rows"]).astype(tables.COLUMNS).equals(stored) or _close(made["rows"], stored)
    assert [row["seed"] for row in made["rows"] if row["score"] == "loss"] == [0, 1]
    assert {(row["fit_data"], row["n"]) for row in made["rows"]} == {("digits/fit[:300]", 200)}
    assert [Path(file).name for file in made["files"]] == ["table.parquet", "curve.png", "curve.pdf", "curve.svg"]
    assert made["failed"] == 0
    assert "2 trials" in err


def _close(rows: list[dict[str, Any]], stored: pd.DataFrame) -> bool:
    pd.testing.assert_frame_equal(pd.DataFrame(rows).astype(tables.COLUMNS), stored, rtol=1e-12)
    return True


def test_without_a_folder_nothing_is_written(run: Run, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    code, out, _ = run(f"{QUICK} --controls none --json")
    assert code == 0
    assert json.loads(out)["files"] == []
    assert [path for path in sorted(folder.rglob("*")) if path not in before] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "--config: the file has no settings; write one to a line, such as 'seeds: 3'; see suture curve --help"),
        ("- 3\n- 4\n", "--config: the file has no settings; write one to a line"),
        ("seeds: [3", "--config: the file is no YAML: .*; see suture curve --help"),
        ("sedes: 3", r"--config: no setting 'sedes'; did you mean seeds\? see suture curve --help"),
        ("fit-sample: 3", r"--config: no setting 'fit-sample'; did you mean fit_samples\? see"),
        ("zzz: 3", "--config: no setting 'zzz'; see suture curve --help"),
    ],
)
def test_a_file_that_is_none_of_settings_is_refused(run: Run, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "settings.yaml").write_text(content)
    code, out, err = run(f"{QUICK} --config TMP/settings.yaml")
    assert (code, out) == (2, "")
    assert re.search(said, err), err


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
    assert "7 of 7 trials failed: 7 × FitError: no" in err
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
        assert f"suture: {model} names no weights, so it is a random network; give trained weights after an @" in err
    keys = [[row["trial"] for row in json.loads(out)["rows"]] for out in (first, second)]
    assert keys[0] == keys[1]


def test_names_tell_networks_apart_and_one_network_is_said_to_be_one(run: Run, folder: Path) -> None:
    rows = json.loads(run(f"{QUICK.replace(B, NET + ',channels=1@a.safetensors')} --controls none --json")[1])["rows"]
    assert {(row["sender"], row["receiver"]) for row in rows} == {("a A", "a B")}
    code, _, err = run(f"{QUICK.replace(B, A)} --controls none --json")
    assert code == 0
    assert f"sender and receiver are one network, {A}; give another" in err


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
    said = f"suture: interrupted: 2 of 7 trials are measured and kept in {tmp_path / 'out'}; go on with: suture {line}"
    assert err.splitlines()[-1] == said
    assert list(dict.fromkeys(tables.load(tmp_path / "out" / "table.parquet")["control"])) == ["", "itself"]


# Matrices


MATRIX = (
    f"matrix {A} {B} --data digits --fit least-squares --workers 1 --at *.pool,flatten --fit-samples 200 "
    "--score-samples 100"
)


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
    assert lines[0].startswith("a, b → a, b: test accuracy in %; rows are sender cuts")
    plain = table[(table["control"] == "") & (table["score"] == "accuracy")]
    at = lines.index("b → a")
    for place, cut in enumerate(cuts, start=at):
        row = next(line for line in lines[place:] if line.startswith(cut))
        here = plain[(plain["sender"] == "b") & (plain["receiver"] == "a") & (plain["sender_cut"] == cut)]
        expected = 100 * here.set_index("receiver_cut")["stitched"][cuts]
        assert [float(x) for x in row.split()[1:]] == pytest.approx(list(expected), abs=0.0501)
    assert re.search(r"(?m)^all pairs +\d", out)
    assert "Late → early (sender cut at least as deep as receiver cut)" in out
    wrote = [Path(line.removeprefix("wrote ")) for line in err.splitlines() if line.startswith("wrote ")]
    assert [path.name for path in wrote] == ["table.parquet", "depth.parquet", "matrix.png", "matrix.pdf", "matrix.svg"]
    assert all(path.stat().st_size > 1000 for path in wrote)
    pd.testing.assert_frame_equal(pd.read_parquet(wrote[1]), by_depth(table))


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


@pytest.mark.parametrize(
    ("settings", "stitch", "fit"),
    [
        ("--stitch low-rank,rank=2", "LowRank(rank=2)", "TaskLoss(steps=5)"),
        ("--stitch conv-linear,channels=1", "ConvLinear(channels=1)", "TaskLoss(steps=5)"),
        ("--stitch diagonal --fit least-squares,rescale=False", "Diagonal()", "LeastSquares(rescale=False)"),
        ("--fit random", None, "Random()"),
        ("--fit match-activations,steps=5", None, "MatchActivations(steps=5)"),
        ("--fit bansal2021,steps=5", None, "bansal2021(steps=5)"),
        ("--fit hernandez2022-copy,steps=5", None, "hernandez2022-copy(steps=5)"),
        ("--fit csiszarik2021,steps=5 --stitch diagonal", "Diagonal()", "csiszarik2021(steps=5)"),
    ],
)
def test_families_and_fits_are_named_by_their_calls(run: Run, settings: str, stitch: str | None, fit: str) -> None:
    at = "stage3.pool:flatten" if "conv-linear" in settings else "stage3.pool"
    line = f"curve {A} {B} --data digits --fit task-loss,steps=5 --at {at} --controls none --json {settings}"
    code, out, err = run(f"{line} --fit-samples 100 --score-samples 50")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert {(row["stitch"], row["fit"]) for row in rows} == {(stitch or "Conv()", fit)}


def test_a_matrix_from_yaml(run: Run, tmp_path: Path) -> None:
    code, printed, _ = run(f"{MATRIX} --into {B} --controls none --print_config")
    assert code == 0
    assert yaml.safe_load(printed)["senders"] == [A, B]
    (tmp_path / "settings.yaml").write_text(printed)
    code, out, _ = run("matrix --config TMP/settings.yaml --at flatten --json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [(row["sender"], row["receiver"]) for row in rows if row["score"] == "loss"] == [("a", "b"), ("b", "b")]
    assert {row["sender_cut"] for row in rows} == {"flatten"}


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


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("zoo:convnet,width=2,channels=3", [3, 8, 8]),
        ("zoo:mlp,inputs=144,width=2", [1, 12, 12]),
        ("timm:vit_tiny_patch16_224,img_size=32,patch_size=16,depth=1", [3, 32, 32]),
        ("timm:vit_tiny_patch16_224,img_size=(32,48),patch_size=16,depth=1", [3, 32, 48]),
        ("torchvision:squeezenet1_1", [3, 224, 224]),
    ],
)
def test_the_images_that_a_model_is_made_for_are_known(run: Run, model: str, shape: list[int]) -> None:
    code, out, _ = run(f"cuts {model} --json")
    assert code == 0
    assert json.loads(out)["image_shape"] == shape


# Help, and the process as a whole


COMMANDS = ("demo", "cuts", "curve", "matrix", "plan", "plan curve", "plan matrix", "status", "table", "verify")


@pytest.mark.parametrize("line", ["--help", *(f"{command} --help" for command in COMMANDS)])
def test_help_fits_the_screen_and_has_an_example(run: Run, line: str) -> None:
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    example = re.search(r"(?m)^examples?:\n  (suture .*)$", out)
    assert example
    assert main([*example[1].split()[1:], "--help"]) == 0


def test_the_examples_of_the_help_are_accepted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "suture.cli.main._COMMANDS", [lambda chosen, line: seen.append(chosen) or 0] * len(suture.cli.main._COMMANDS)
    )
    examples = [line for of in COMMANDS for line in re.findall(r"(?m)^  suture (.*)$", run(f"{of} --help")[1])]
    assert [run(example)[0] for example in examples] == [0] * len(examples)
    assert len(seen) == len(examples) >= 17


def test_no_command_shows_the_help_as_wrong_input(run: Run) -> None:
    code, out, err = run("")
    assert (code, out) == (2, "")
    assert "usage: suture COMMAND" in err
    assert "curve" in err


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"suture {suture.__version__}\n", "")


def test_the_package_is_the_command(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "suture", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"suture {suture.__version__}\n", "")


def test_an_interruption_while_the_command_line_loads_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "suture.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "suture.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert suture.__main__.main() == 130
    assert capsys.readouterr() == ("", "suture: interrupted\n")


QUICKLY = """
import sys, types
package = types.ModuleType("suture")
package.__path__ = [sys.argv[1]]
sys.modules["suture"] = package  # without what the package's own __init__ imports
from suture.cli.main import main
codes = [main(["curve", "--help"]), main(["curve"]), main(["cuts", "--bogus"])]
heavy = {"torch", "numpy", "pandas", "matplotlib", "rich", "timm"} & {name.partition(".")[0] for name in sys.modules}
print(codes, heavy or "nothing heavy", file=sys.stderr)
"""


def test_help_and_refusals_import_nothing_heavy() -> None:
    package = str(Path(suture.__file__).parent)
    done = subprocess.run([sys.executable, "-c", QUICKLY, package], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[0, 2, 2] nothing heavy"


@pytest.mark.slow
def test_a_process_keeps_results_and_messages_apart_without_colour_or_warnings(folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-W", "error", "-m", "suture", *QUICK.split(), "--controls", "untrained-sender"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "a → b on digits: 1,080 images to fit, 597 to score"
    assert re.fullmatch(r"2 trials\n2 trials in \d+ s", "\n".join(done.stderr.splitlines()[1:]))
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


def test_baselines_are_named_beside_controls() -> None:
    assert controls_named("all,linear-probe") == (*controls.DEFAULT, baselines.linear_probe)
    assert controls_named("plugged in, itself, itself") == (baselines.plugged, controls.itself)
    with pytest.raises(SutureError, match="and baselines: linear-probe, fine-tuned, retrained, plugged-in"):
        controls_named("probe")

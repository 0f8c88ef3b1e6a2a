"""``suture train`` as its user meets it: the artefact, its card, going on after a kill, messages, exit codes."""

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import suture
from suture.cli.main import main, parser
from suture.common.errors import CheckpointError, SourceError
from suture.fits import optimisers
from suture.zoo.sources import parse_source, read_card, tell_names_apart
from suture_papers import training
from suture_papers.cli import train
from suture_papers.cli.train import TrainingMeter, change
from suture_papers.networks.architectures import convnet
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import DIGITS, RECIPES
from suture_papers.reports.networks import recipes_table
from suture_papers.training import Training

NET = "zoo:convnet,width=2"
TRAIN = f"train digits --network {NET} --data digits --epochs 2"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the networks ``a`` (with its first epoch beside it) and ``b``."""
    folder = tmp_path_factory.mktemp("nets")
    for line in (f"{TRAIN} --keep 1 --out {folder}/a", f"{TRAIN} --seed 1 --out {folder}/b"):
        assert main(line.split()) == 0
    return folder


@pytest.fixture
def nets(trained: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    monkeypatch.chdir(trained)
    return trained


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


# The artefact


def test_the_network_is_the_one_that_python_trains(nets: Path) -> None:
    data = suture.load_data("digits")
    model = BaseModel(NET, data.training, replace(DIGITS, epochs=2), 0)
    assert weights(nets / "a") == hashlib.sha256(model.train().tensors).hexdigest()
    assert read_card(nets / "a")["network"] == model.key
    assert weights(nets / "a") != weights(nets / "b")


def test_weights_that_were_changed_are_refused(nets: Path, tmp_path: Path) -> None:
    shutil.copytree(nets / "a", tmp_path / "changed")
    content = bytearray((tmp_path / "changed" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "changed" / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model.safetensors has changed since its training ended"):
        suture.load_network(str(tmp_path / "changed"), example=suture.load_data("digits").example)


def test_weights_that_were_changed_are_trained_again_and_not_started_from(nets: Path, run: Run) -> None:
    whole = (nets / "a/model.safetensors").read_bytes()
    (nets / "a/model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, _, err = run(f"{TRAIN} --start a --trained head --lr 1e-9 --out d")
    assert code == 2
    assert "model.safetensors has changed since its training ended" in err
    code, _, err = run(f"{TRAIN} --out a")
    assert code == 0, err
    assert "the network in a is damaged, or was changed, and is trained again" in err
    assert (nets / "a/model.safetensors").read_bytes() == whole


def test_a_folder_is_found_again_from_elsewhere(nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from suture_papers.networks import convnet\ndef make(): return convnet(width=2)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--network", "mine.py:make", "--data", "digits", "--out", "mine"]) == 0
    monkeypatch.chdir(nets)
    example = suture.load_data("digits").example
    assert suture.load_network(str(tmp_path / "mine"), example=example, trust=True).outputs == 10


def test_only_a_file_that_the_command_line_names_is_run(run: Run, tmp_path: Path) -> None:
    code = (
        "open('ran', 'a').write('x')\nfrom suture_papers.networks import convnet\ndef make(): return convnet(width=2)\n"
    )
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "other.py").write_text(code)
    assert run("train digits --network mine.py:make --data digits --epochs 1 --out mine")[0] == 0
    settings = "sender: mine.py:make\nreceiver: zoo:convnet,width=2\n"
    (tmp_path / "settings.yaml").write_text(settings)
    (tmp_path / "trusting.yaml").write_text(f"{settings}trust: true\n")
    ran = tmp_path / "ran"
    ran.unlink()
    for line in (
        "cuts mine --shape 1x8x8",
        "cuts ./mine --json",
        "curve mine mine --data digits --controls none",
        "curve mine other.py:make --data digits",
        "plan curve mine mine --data digits",
        "matrix zoo:convnet,width=2 mine --data digits",
        "compare mine mine --data digits",
        "localise accuracy:0 mine zoo:convnet,width=2 --data digits",
        "complexity mine --data digits",
        "train digits --network mine --data digits --out another",
        "curve --config settings.yaml --data digits",
        "curve --config trusting.yaml --data digits",
    ):
        code, _, err = run(line)
        assert code == 2, (line, err)
        assert not ran.exists(), line
        said = r"would run the Python file \S*mine\.py, which .* name it: mine\.py:make|no setting 'trust'"
        assert re.search(said, err), (line, err)
    with pytest.raises(SourceError, match=r"mine\.py, which .* or say trust=True"):
        suture.load_network("mine", example=torch.zeros(1, 1, 8, 8))
    for line in (
        "cuts mine --shape 1x8x8 --trust",
        "cuts mine.py:make@mine/model.safetensors --shape 1x8x8",
        "compare mine mine.py:make --data digits",
    ):
        assert run(line)[0] == 0, line


def test_the_card_says_what_was_trained_and_what_it_reaches(nets: Path) -> None:
    card = json.loads((nets / "a" / "card.json").read_text())
    assert (card["name"], card["source"], card["seed"], card["epochs"], card["steps"]) == ("a", NET, 0, 2.0, 36)
    assert card["data"]["name"] == "digits/training"
    assert card["scores"][0]["data"]["name"] == "digits/score"
    assert set(card["scores"][0]["classes"]) == set("0123456789")


def test_the_file_done_has_the_checksums(nets: Path) -> None:
    lines = (nets / "a" / "done").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["card.json", "model.safetensors"]
    assert lines[1].split()[0] == weights(nets / "a")
    assert sorted(path.name for path in (nets / "a").iterdir()) == ["card.json", "done", "epoch-1", "model.safetensors"]


def test_what_it_says(run: Run) -> None:
    code, out, err = run(f"{TRAIN} --out nets/a")
    assert code == 0
    assert re.search(r"accuracy on digits/score \d+\.\d % \[\d+\.\d, \d+\.\d\], 597 images", out)
    assert len(re.findall(r"^\d +\d+\.\d +\[", out, re.MULTILINE)) == 10
    assert re.search(r"2 epochs, 36 steps in .* images/s on cpu; [\d,]+ parameters", out)
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "1,200 images, 2 epochs of 18 steps" in err
    assert re.search(r"^epoch 1 of 2, loss [\d.]+, [\d,]+ images/s, \d+ s left$", err, re.MULTILINE)
    assert err.endswith("wrote nets/a\nuse it as a model: suture curve nets/a OTHER --data digits\n")


def test_json(run: Run) -> None:
    out = json.loads(run(f"{TRAIN} --epochs 1 --out a --json")[1])
    assert (out["folder"], out["status"], out["epochs"]) == ("a", "ok", 1)


def test_an_epoch_on_the_way_is_kept(nets: Path, run: Run) -> None:
    assert read_card(nets / "a/epoch-1")["until"] == 1
    assert read_card(nets / "a/epoch-1")["epochs"] == 1
    assert weights(nets / "a/epoch-1") != weights(nets / "a")


# Training again


def test_the_same_command_again_trains_nothing(nets: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "__init__", _no_work)
    code, out, err = run(f"{TRAIN} --out a")
    assert code == 0
    assert "a has this very network already; nothing was trained" in err
    assert "accuracy on digits/score" in out


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        ("--seed 1", "the seed differs"),
        ("--lr 0.5", "the recipe differs"),
        ("--variant subset,n=500", "the data differ"),
        ("--frozen stage1", "the parts that train differ"),
        ("--start b", "what it starts from differs"),
    ],
)
def test_a_folder_with_another_network_is_refused(nets: Path, run: Run, more: str, differs: str) -> None:
    before = weights(nets / "a")
    code, _, err = run(f"{TRAIN} {more} --out a")
    assert (code, weights(nets / "a")) == (2, before)
    assert re.search(f"a has another network, {NET} trained on digits/training, seed 0: .*{differs}", err)


class Stopped:
    """A training that is interrupted at a step, with a checkpoint after every step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        monkeypatch.setattr(Training.run, "__kwdefaults__", {"until": None, "every": 0.0})
        plain = TrainingMeter.watch

        def watch(shown: TrainingMeter, step: int, steps: int, losses: Sequence[float]) -> None:
            plain(shown, step, steps, losses)
            if step == at:
                raise KeyboardInterrupt

        monkeypatch.setattr(TrainingMeter, "watch", watch)


@pytest.mark.kills
def test_an_interrupted_training_goes_on_bit_for_bit(nets: Path, run: Run, tmp_path: Path) -> None:
    line = f"{TRAIN} --out {tmp_path}/a"
    with pytest.MonkeyPatch.context() as patch:
        Stopped(patch, 25)
        code, out, err = run(line)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == f"suture: interrupted; continue from the last checkpoint with: suture {line}"
    assert not (tmp_path / "a/done").exists()
    assert len(list((tmp_path / "a/progress").glob("step-*"))) == 1
    code, _, err = run(line)
    assert code == 0
    assert "epoch 1 of 2" not in err  # which was done before
    assert weights(tmp_path / "a") == weights(nets / "a")
    assert not (tmp_path / "a/progress").exists()


@pytest.mark.kills
def test_interrupted_before_there_is_a_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Stopped(monkeypatch, 1)
    assert "there is no checkpoint yet; start again with: suture train" in run(f"{TRAIN} --out a")[2]


@pytest.mark.kills
@pytest.mark.parametrize("more", ["--seed 3", "--batch 32", "--variant random-labels,p=0.5"])
def test_the_checkpoint_of_another_training_is_refused(run: Run, more: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Stopped(patch, 25)
        assert run(f"{TRAIN} --out a")[0] == 130
    code, _, err = run(f"{TRAIN} {more} --out a")
    assert code == 2
    assert re.search(r"checkpoint of another training: its .* differs; .*name another folder", err)


def test_two_processes_do_not_train_in_one_folder(run: Run, tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / "a/progress").mkdir(parents=True)
    with FileLock(tmp_path / "a/progress/command.lock"):
        code, _, err = run(f"{TRAIN} --out a")
    assert (code, "another process is training in a" in err) == (2, True)


# Starting from another network


def test_one_layer_is_trained_and_the_rest_stays(nets: Path, run: Run, tmp_path: Path) -> None:
    assert run(f"{TRAIN} --variant without,classes=3 --start a --trained head --out {tmp_path}/c")[0] == 0
    before, after = (load_file(path / "model.safetensors") for path in (nets / "a", tmp_path / "c"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert read_card(tmp_path / "c")["start"].startswith("weights ")


@pytest.mark.parametrize("kind", ["a", "a/model.safetensors", "a.safetensors", "a.pt"])
def test_it_starts_from_folders_and_files(nets: Path, run: Run, tmp_path: Path, kind: str) -> None:
    state = load_file(nets / "a/model.safetensors")
    save_file(state, nets / "a.safetensors")
    torch.save(state, nets / "a.pt")
    code, _, err = run(f"{TRAIN} --start {kind} --trained head --lr 1e-9 --out {tmp_path}/d")
    assert code == 0, err
    assert torch.equal(load_file(tmp_path / "d/model.safetensors")["stage1.conv.weight"], state["stage1.conv.weight"])


# An artefact as a model


def test_a_folder_is_a_model(nets: Path, run: Run) -> None:
    source = parse_source("a")
    assert (source.text, source.name, source.arguments) == (f"{NET}@a/model.safetensors", "convnet", {"width": 2})
    sources = [parse_source(text) for text in ("a", "b", "a/epoch-1", NET)]
    assert tell_names_apart(sources) == ["a", "b", "a epoch 1", "convnet"]
    data = suture.load_data("digits")
    network = suture.load_network("a", example=data.example)
    model = convnet(width=2)
    model.load_state_dict(load_file(nets / "a/model.safetensors"))
    images = data.score.images[:8].float() / 255
    assert torch.equal(network(data.score.images[:8]), model.eval()(images))


def test_curves_and_cuts_take_folders_and_variants(nets: Path, run: Run) -> None:
    quick = "--data digits --fit least-squares --controls none --workers 1 --at pool"
    code, out, err = run(f"curve a b {quick} --variant subset,n=300 without,classes=3")
    assert code == 0, err
    assert "a → b: test accuracy" in out
    assert "digits 300 samples without 3" in err
    assert run("cuts a --json")[0] == 0
    assert run(f"plan curve a b {quick} --variant half,which=1")[0] == 0


def test_a_network_that_is_not_whole_is_refused(nets: Path, tmp_path: Path) -> None:
    for name, content in (("card.json", (nets / "a/card.json").read_text()), ("model.safetensors", "")):
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match="has no whole trained network: it lacks done"):
        parse_source(str(tmp_path))
    (tmp_path / "done").write_text("")
    with pytest.raises(CheckpointError, match="done has changed since its training ended"):
        parse_source(str(tmp_path))
    for name in ("card.json", "model.safetensors", "done"):
        (tmp_path / name).write_bytes((nets / "a" / name).read_bytes())
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"card\.json has changed since its training ended, .*; copy it again, or train"
    ):
        parse_source(str(tmp_path))


# Wrong input


def _no_work(*args: object, **options: object) -> None:
    raise SystemExit("work was begun")


OTHER = "train digits --data digits --out x --network"
START = f"{OTHER} {NET}"
WRONG = [
    (f"{START} --variant without,classes=eleven", "digits has no class 'eleven'"),
    (f"{START} --variant subset,n=1201", "cannot take 1201 training samples of digits"),
    (f"{START} --variant random-labels,p=1.5", "the share of random labels is 1.5"),
    (f"{START} --variant super-classes,groups=a:0|1;b:2", "super-classes of digits miss '3', '4'"),
    (f"{START} --trained heaf", "no module 'heaf' in Sequential"),
    (f"{START} --start .", "--start . has no card.json"),
    (f"{START} --keep 3,15", "--keep 15"),
    (f"{OTHER} {NET},classes=5", "digits has 10 classes"),
    (f"{OTHER} zoo:resnet", "zoo:resnet cannot take the images of digits, 1×8×8: pre"),
    (f"{OTHER} zoo:mlp,inputs=9", "cannot take the images of digits, 1×8×8: Runtime"),
    (f"{OTHER} nets/a", "no model source 'nets/a'"),
]


def test_wrong_input_is_said_before_any_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "__init__", _no_work)
    for line, offender in WRONG:
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert offender in err, (line, err)
    assert not (tmp_path / "x").exists()


def test_a_training_that_diverges_says_what_to_do(run: Run) -> None:
    code, _, err = run(f"{TRAIN} --lr 1e9 --out x")
    assert (code, "training diverged in epoch 1; try a smaller learning rate" in err) == (2, True)


def test_the_folder_of_a_run_is_no_folder_for_a_network(run: Run, tmp_path: Path) -> None:
    suture.Store.make(tmp_path / "run")
    assert "run is the folder of a run; name another for the network" in run(f"{TRAIN} --out run")[2]


# Names and words


def test_recipes_are_listed_as_the_calls_that_make_them() -> None:
    listed = list(recipes_table(RECIPES).columns[1].cells)
    known = {"CrossEntropy": training.LabelCrossEntropy, **vars(training), **vars(optimisers)}
    assert [eval(cell.plain, known) for cell in listed] == list(RECIPES.values())


def test_settings_change_the_recipe() -> None:
    line = "train bansal2021 --network n --data d --out x --epochs 3 --batch 7 --lr 0.5"
    changed = change(RECIPES["bansal2021"], parser().parse_args(line.split()))
    assert (changed.epochs, changed.steps, changed.batch, changed.optimiser.lr) == (3, None, 7, 0.5)


# Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_for_epochs_and_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(train.time, "monotonic", clock)
    lines = TrainingMeter(per_epoch=4, batch=50)
    for step in range(1, 9):
        clock.now += 4
        lines.watch(step, 8, [1 / (step // 4 * 4)] if step >= 4 else [])
    lines.end()
    assert capsys.readouterr().err.splitlines() == [
        "epoch 0.8 of 2, 12 images/s, 20 s left",
        "epoch 1 of 2, loss 0.2500, 12 images/s, 16 s left",
        "epoch 1.8 of 2, loss 0.2500, 12 images/s, 4 s left",
        "epoch 2 of 2, loss 0.1250, 12 images/s",
    ]


def test_the_bar_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(train.time, "monotonic", clock)
    console = Console(width=80, force_terminal=True, record=True, file=io.StringIO())
    bar = TrainingMeter(351, 128, console)
    for step in (351 * 12, 351 * 12 + 100):
        clock.now += 30
        bar.watch(step, 351 * 100, [0.41234])
    (task,) = bar.bar.tasks
    assert task.description == "epoch 12.3 of 100, loss 0.4123, 427 images/s, 2.6 h left"
    assert len(task.description) + len(" ") + 16 <= 80
    bar.end()

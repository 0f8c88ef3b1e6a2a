"""Damaged files and wrong inputs, by hand and by accident: each is refused in one line that names it, and soon."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import torch

from suture.cli.main import main
from suture.runs.runners.run import Work

CURVE = "curve a b --data digits --fit least-squares --controls itself --at pool --workers 1 --out run"
SECONDS = 10.0  #: that a refusal may take


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, a run of them, and similarities beside it."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        for seed, name in enumerate("ab"):
            train = f"train digits --network zoo:convnet,width=2 --data digits --epochs 1 --seed {seed} --out {name}"
            assert main(train.split()) == 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Work, "clean", lambda work: None)  # as a run leaves it that was stopped
            patched.setattr(Work, "_forget", lambda work, done: None)
            assert main(CURVE.split()) == 0
        assert main(["compare", "a", "b", "--data", "digits", "--samples", "50", "--at", "pool", "--out", "run"]) == 0
        assert main(["verify", "run"]) == 0
    return folder


Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def padded(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def of_others(path: Path) -> None:
    path.write_text("[1, 2]")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def digit(path: Path) -> None:
    """Change a number by hand, as an editor would, and write the JSON anew."""
    said = json.loads(path.read_text())
    said["seconds"] = 7
    path.write_text(json.dumps(said))


def swapped(path: Path) -> None:
    """Put another trial's folder in the place of this one's."""
    other = next(folder for folder in path.parent.parent.iterdir() if folder != path.parent)
    shutil.rmtree(path.parent)
    shutil.copytree(other, path.parent)


ANY = (flip, cut, empty, padded, zeros, deep, of_others)
PLAN, TRIAL = "run/plans/*.json", "run/trials/*/"
RECORD, JOINED, STITCH = (f"{TRIAL}{name}" for name in ("measurement.json", "stitched.json", "stitch.safetensors"))
ALIKE, CACHED = "run/similarities.parquet", "run/activations/*.safetensors"
COMPLEXITY = "complexity run --data digits --samples 9"

#: What is damaged, how, by which command it is met, with which exit code, and what is named.
FILES = [
    ("run/suture.json", ANY, ("status run", "table run", "explain run", "verify run", CURVE), 2, "run/suture.json"),
    ("run/suture.json", (a_loop, a_folder, os.remove), ("status run", "verify run"), 2, "it has no suture.json"),
    (PLAN, (*ANY, a_folder), ("status run", "table run", "report run", "export run --to csv", CURVE), 2, "run/plans/"),
    (PLAN, (*ANY, a_folder), ("verify run",), 1, "plans/0001-"),
    (RECORD, (*ANY, a_folder, os.remove, digit, swapped), ("table run", "explain run", "report run"), 2, TRIAL),
    (RECORD, (*ANY, a_folder, os.remove, digit, swapped), ("verify run",), 1, "measurement.json"),
    (f"{TRIAL}done", (*ANY, a_folder), ("table run", "export run --to csv"), 2, "run/trials/"),
    (f"{TRIAL}done", (os.remove,), ("table run",), 3, "1 of 2 trials are not measured yet"),
    (STITCH, (*ANY, a_folder), (COMPLEXITY,), 2, "stitch.safetensors"),
    (JOINED, (*ANY, digit), (COMPLEXITY,), 2, "stitched.json"),
    (f"{TRIAL}curve.json", (*ANY, a_folder), ("verify run",), 1, "curve.json"),
    ("run/table.parquet", ANY, ("verify run",), 1, "'suture table' writes it anew"),
    ("run/table.parquet", (flip, cut), ("export run/table.parquet --to csv",), 2, "run/table.parquet"),
    (ALIKE, ANY, ("explain run", "report run", "export run --to csv"), 2, ALIKE),
    (ALIKE, ANY, ("verify run",), 1, "similarities.parquet"),
    (CACHED, ANY, ("verify run",), 1, "measures again what read it"),
    (CACHED, ANY, (CURVE,), 0, ""),
    ("a/card.json", ANY, ("cuts a", "curve a b --data digits"), 2, "a/card.json"),
    ("a/model.safetensors", ANY, ("cuts a", "compare a b --data digits"), 2, "a/model.safetensors"),
    ("a/model.safetensors", (cut, empty), ("cuts zoo:convnet,width=2@a/model.safetensors",), 2, "a/model.safetensors"),
    ("a/done", (*ANY, os.remove), ("cuts a",), 2, "a"),
]
#: What is asked for, with which exit code it is refused, and what is named.
INPUTS = [
    ("status nowhere", 2, "nowhere does not exist"),
    ("status a", 2, "a is not a folder of a run"),
    ("table a/card.json", 2, "a/card.json is a file"),
    ("verify .", 2, ". is not a folder of a run"),
    ("explain run --score nothing", 2, "no measurement of 'nothing'"),
    ("explain run --margin nan", 2, "margin=nan"),
    ("explain run --chance 7", 2, "chance=7"),
    ("report run run run", 2, "give at most two folders"),
    ("report run/results/bansal-2A", 2, "run/results/bansal-2A does not exist"),
    ("report run --out run", 2, "run is a folder; name a file"),
    ("report run --out a/card.json", 2, "a/card.json is a file and not a page"),
    ("report run --out /dev/null/x.html", 2, "cannot write to /dev/null"),
    ("export a --to csv", 2, "a has no table"),
    ("export a/card.json --to csv", 2, "a/card.json is not a table"),
    ("export run --to csv --out a/card.json", 2, "cannot write to a/card.json"),
    ("cuts run", 2, "no model source 'run'"),
    ("cuts a/model.safetensors", 2, "weights alone are not a model"),
    ("cuts nothing.py:make", 2, "no file nothing.py"),
    ("cuts zoo:convnet@weights.pkl", 2, "weights.pkl has the suffix"),
    ("cuts zoo:convnet@evil.pt", 2, "evil.pt holds arbitrary Python objects"),
    ("cuts zoo:convnet@evil.safetensors", 2, "evil.safetensors is damaged"),
    ("cuts timm:hf-hub:someone/net", 2, "no model 'hf-hub:someone/net'"),
    ("curve a b --data digits --out a/card.json", 2, "cannot write to a/card.json"),
    ("curve a b --data digits --at pool:nothing", 2, "no cut 'nothing' in b"),
    ("curve a b --data digits --ram 1B", 2, "the budget is 1 byte"),
    ("curve a b --data digits --config a/model.safetensors", 2, "--config: cannot read a/model.safetensors"),
    ("curve a b --data digits --config evil.yaml", 2, "--config: evil.yaml is not YAML"),
    ("curve a b --data digits --fit least-squares,nothing=1", 2, "nothing=1"),
    ("curve a b --data digits --device cuda:99", 2, "cuda:99"),
    ("curve a zoo:convnet,width=2,classes=3 --data digits", 2, "10 classes"),
    ("complexity run a --data digits", 2, "run is the folder of a run"),
    ("train digits --network zoo:convnet --data digits --out run", 2, "run is the folder of a run"),
    ("train digits --network zoo:convnet --data digits --out c --start evil.pt", 2, "evil.pt holds arbitrary"),
    ("compare a b --data digits --beside nowhere", 2, "nowhere does not exist"),
    ("zoo table run", 2, "run has no trained network"),
]
OFTEN = (flip, digit, swapped)  #: the others are tried with the slow tests
CASES = [
    pytest.param(
        *(file, damage, command, code, named),
        id=f"{file} {damage.__name__} {command[:20]}",
        marks=() if damage in OFTEN else pytest.mark.slow,
    )
    for file, damages, commands, code, named in FILES
    for damage in damages
    for command in commands
]
CASES += [pytest.param("", None, *case, id=case[0]) for case in INPUTS]


class Evil:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return open, ("ran", "w")


@pytest.fixture
def copy(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(folder)
    torch.save({"weight": Evil()}, "evil.pt")
    Path("evil.safetensors").write_bytes(pickle.dumps(Evil()))
    Path("evil.yaml").write_text("!!python/object/apply:builtins.open [ran, w]")
    return folder


@pytest.mark.parametrize(("file", "damage", "command", "code", "named"), CASES)
def test_what_is_damaged_or_wrong_is_named_at_once(
    copy: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Damage | None,
    command: str,
    code: int,
    named: str,
) -> None:
    if damage is not None:
        damage(min(copy.glob(file)))
    since = time.monotonic()
    assert main(command.split()) == code
    assert time.monotonic() - since < SECONDS
    said = capsys.readouterr()
    everything = " ".join(f"{said.err} {said.out}".split())
    assert named.partition("*")[0] in everything
    assert "Traceback" not in everything
    assert code != 2 or said.out == ""
    assert not Path("ran").exists()

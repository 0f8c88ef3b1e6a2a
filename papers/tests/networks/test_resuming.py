"""A training that is killed goes on from its last checkpoint, bit for bit, and only its own."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from loops import examples
from suture.common.errors import CheckpointError, FitError, OutputError
from suture.data import Samples
from suture.fits import SGD, Adam, AdamW
from suture.runs.runners import Local
from suture.runs.store.store import NETWORKS, Store
from suture_papers.networks.architectures import convnet
from suture_papers.networks.base_model import BaseModel
from suture_papers.training import (
    L1,
    Checkpoints,
    CropFlip,
    Plateau,
    Prune,
    Recipe,
    SimCLR,
    SimCLRView,
    Training,
    train_networks,
)
from trained import few_digits, state_bits

PLAIN = Recipe(epochs=3, batch=50, augment=CropFlip(1))
RECIPES = {
    "momentum": PLAIN,
    "adam": replace(PLAIN, optimiser=Adam()),
    "adamw in bfloat16": replace(PLAIN, optimiser=AdamW(), precision="fast"),
    "steps that are no whole epochs": replace(PLAIN, epochs=None, steps=14),
    "pruned": replace(PLAIN, penalty=L1(1e-4), prune=Prune(0.2, 4)),
    "simclr": replace(PLAIN, objective=SimCLR(projection=4), augment=SimCLRView()),
    "plateau": replace(PLAIN, epochs=9, optimiser=SGD(lr=1e-9), stop=Plateau(patience=2)),
}


def narrow() -> nn.Module:
    return nn.Sequential(convnet(width=2), nn.Dropout(0.2))


def few() -> Samples:
    return few_digits().fit.take(torch.arange(250), "few")


class Stopped(Exception):
    pass


def training(recipe: Recipe, stop: int | None = None) -> Training:
    def watch(step: int, *_: object) -> None:
        if step == stop:
            raise Stopped

    return Training(lambda: convnet(width=2), few(), recipe, 3, watch=watch)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_what_was_stopped_and_resumed_is_what_was_never_stopped(recipe: Recipe, tmp_path: Path) -> None:
    whole = training(recipe)
    wanted = state_bits(whole.run())
    checkpoints = Checkpoints(tmp_path, {"recipe": ("a", "1")})
    for stop in (1, 3, 7, 8):
        with pytest.raises(Stopped):
            training(recipe, stop).run(checkpoints, every=0)
    resumed = training(recipe)
    assert state_bits(resumed.run(checkpoints, every=0)) == wanted
    assert resumed.progress.losses == whole.progress.losses
    assert resumed.progress.step == whole.progress.step > 8


@settings(max_examples=examples(10), deadline=None)
@given(stops=st.lists(st.integers(1, 15), max_size=4))
def test_wherever_it_stops(stops: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("training"), {})
    for stop in sorted(stops):
        with pytest.raises(Stopped):
            training(PLAIN, stop).run(checkpoints, every=0)
    assert state_bits(training(PLAIN).run(checkpoints)) == _undisturbed()


def _undisturbed() -> dict[str, bytes]:
    return state_bits(training(PLAIN).run())


def test_one_checkpoint_is_there_at_a_time_and_those_of_chosen_epochs_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, {})
    early = training(PLAIN).run(checkpoints, until=1, every=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005.safetensors"]
    late = training(PLAIN)
    weights = state_bits(late.run(checkpoints, every=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000005.safetensors",
        "step-00000015.safetensors",
    ]
    assert weights == _undisturbed()
    assert state_bits(training(PLAIN).run(checkpoints, until=1)) == state_bits(early)


def test_a_checkpoint_holds_no_pickle_and_says_what_it_is_of(tmp_path: Path) -> None:
    training(PLAIN).run(Checkpoints(tmp_path, {"recipe": ("plain", "1")}), until=1)
    (path,) = tmp_path.iterdir()
    assert {name.partition("/")[0] for name in load_file(path)} == {"model", "optimiser"}
    assert b'"recipe": ["plain", "1"]' in path.read_bytes().replace(b'\\"', b'"')


def base(**changed: object) -> BaseModel:
    given = {"source": "zoo:convnet,width=2", "samples": few(), "recipe": PLAIN, "seed": 3}
    return BaseModel(**(given | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"recipe": replace(PLAIN, batch=25)},
            r"its recipe differs; recipe there: Recipe\(.*batch=50.*; here: .*batch=25",
        ),
        ({"seed": 4}, "its seed differs; seed there: 3; here: 4"),
        ({"source": "zoo:convnet,width=3"}, "its network differs"),
        ({"samples": few().take(torch.arange(200), "fewer")}, "its data differs; data there: few; here: fewer"),
    ],
)
def test_another_trainings_checkpoint_is_refused(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    assert not base(until=1).train(tmp_path).failed
    with pytest.raises(CheckpointError, match=message):
        base(**changed).train(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    assert not base(until=1).train(tmp_path).failed
    (path,) = tmp_path.glob("step-*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"step-00000005.safetensors is damaged, or not a .*; remove it"):
        base().train(tmp_path)


def test_the_epochs_of_one_training_share_its_progress(tmp_path: Path) -> None:
    steps: list[int] = []
    early = base(until=1).train(tmp_path)
    late = base().train(tmp_path, watch=lambda step, *_: steps.append(step))
    assert steps[0] == 6
    assert late.tensors == base().train().tensors
    assert early.tensors == base(until=1).train().tensors != late.tensors
    assert base().key != base(until=1).key


_PROGRAM = """
import sys, time
from pathlib import Path
from test_resuming import base
model = base()
model.train(Path(sys.argv[1]), watch=lambda step, *_: (print(step, flush=True), time.sleep(0.05)))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing_but_time(tmp_path: Path) -> None:
    folder = tmp_path / "progress"
    here = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
    program = _PROGRAM.replace(
        "from test_resuming", "import suture_papers.training.loop as l; l.EVERY = 0\nfrom test_resuming"
    )
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], env=here, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
    assert base().train(folder).tensors == base().train().tensors


def test_a_run_goes_on_from_what_was_left_and_tidies_up_when_the_result_is_kept(tmp_path: Path) -> None:
    store = Store.make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        base().train(base()._progress(store.activations), watch=_interrupting(6))
    steps = [path.name for path in base()._progress(store.activations).glob("step-*")]
    assert steps == []
    base(until=1).train(base()._progress(store.activations))
    assert base()._progress(store.activations).exists()
    train_networks([base()], store, on=Local(workers=1))
    assert store.tensors(NETWORKS, base().key) == base().train().tensors
    assert not base()._progress(store.activations).exists()


def test_a_result_that_cannot_be_kept_leaves_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.make(tmp_path)

    def refuse(*_: object) -> None:
        raise OutputError("the disk is full")

    monkeypatch.setattr(Store, "keep", refuse)
    with pytest.raises(OutputError, match="the disk is full"):
        train_networks([base()], store, on=Local(workers=1))
    assert [path.name for path in base()._progress(store.activations).glob("step-*")] == ["step-00000015.safetensors"]


def test_a_training_does_not_change_its_device_on_the_way(tmp_path: Path) -> None:
    base(until=1).train(tmp_path)
    with pytest.raises(CheckpointError, match="its device differs; device there: cpu, float32; here: meta, float32"):
        base(device="meta").train(tmp_path)


def test_an_epoch_before_the_first_is_refused() -> None:
    with pytest.raises(FitError, match="until=0: a network is there after epoch 1 at the earliest"):
        base(until=0)


def test_weights_with_two_names_stay_one_tensor_when_training_goes_on(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
        model[3].weight = model[1].weight
        return model

    checkpoints = Checkpoints(tmp_path, {})
    Training(tied, few(), PLAIN, 0).run(checkpoints, until=1)
    resumed = Training(tied, few(), PLAIN, 0).run(checkpoints)
    assert state_bits(resumed) == state_bits(Training(tied, few(), PLAIN, 0).run())
    assert torch.equal(resumed[1].weight, resumed[3].weight)


def _interrupting(at: int):
    def watch(step: int, *_: object) -> None:
        if step == at:
            raise KeyboardInterrupt

    return watch

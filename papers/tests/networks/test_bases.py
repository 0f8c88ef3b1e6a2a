"""Base models: what decides their weights decides their key, and each is trained once."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from safetensors.torch import load

import suture
from faulty import Faulty
from suture import Network, curve, run
from suture.common.errors import SourceError
from suture.core.activations.cache import Activations
from suture.core.activations.disk_cache import ActivationFolder
from suture.data import Samples
from suture.fits import LeastSquares
from suture.runs.runners import Local, Runner
from suture.runs.store.store import NETWORKS, Store
from suture_papers.networks.architectures import convnet
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import Recipe, Untrained, train, train_networks
from trained import few_digits

SHORT = Recipe(epochs=1, batch=64)
SOURCE = "zoo:convnet,width=2"


def few() -> Samples:
    return few_digits().fit


def base(**settings) -> BaseModel:
    return BaseModel(**{"source": SOURCE, "samples": few(), "recipe": SHORT, "seed": 3, "name": "A"} | settings)


def test_it_is_what_training_gives() -> None:
    outcome = base().run(Activations())
    assert outcome.record["status"] == "ok"
    model = train(lambda: convnet(2), few(), SHORT, 3)
    trained, found = model.state_dict(), load(outcome.tensors)
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], trained[name]) for name in trained)
    network = base().network(outcome.tensors)
    assert isinstance(network, Network)
    assert network.name == "A"
    with torch.no_grad():
        assert torch.equal(network(few().images), model(few().images.float() / 255))


def test_it_is_cut_along_the_stages_that_its_file_names(tmp_path: Path) -> None:
    file = tmp_path / "staged.py"
    file.write_text(
        "import torch\nfrom suture import Preprocess\n\n\nclass Branching(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Flatten(), torch.nn.Linear(64, 10)\n\n"
        "    def forward(self, x):\n        return self.b(self.a(x if x.sum() > -1 else -x))\n\n\n"
        "def net():\n    return Branching(), Preprocess(), ['a', 'b']\n"
    )
    own = base(source=f"{file}:net")
    assert own.network(own.run(Activations()).tensors).cuts.names == ("a",)


def test_its_checkpoints_tell_how_much_of_it_is_done(tmp_path: Path) -> None:
    whole = base(recipe=Recipe(epochs=4, batch=64))
    assert whole.share(tmp_path) is None
    half = replace(whole, until=2)
    assert not half.run(Activations(disk=ActivationFolder(tmp_path, 10**9))).failed
    assert (whole.share(tmp_path), half.share(tmp_path)) == (0.5, 1.0)
    assert replace(whole, until=3).share(tmp_path) == pytest.approx(2 / 3)
    assert replace(whole, until=1).share(tmp_path) is None
    assert replace(whole, seed=4).share(tmp_path) is None
    whole.tidy(tmp_path)
    assert whole.share(tmp_path) is None


def test_its_card_says_what_it_is() -> None:
    card = base().run(Activations()).record
    assert card["network"] == base().key
    assert {name: card[name] for name in ("source", "recipe", "seed")} == {
        "source": SOURCE,
        "recipe": str(SHORT),
        "seed": 3,
    }
    assert card["data"] == {
        "name": few().name,
        "fingerprint": few().fingerprint,
        "samples": 300,
        "shape": [1, 8, 8],
        "classes": list(few().classes),
    }


def test_the_key_is_what_decides_the_weights(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from suture_papers.networks import mlp\ndef net():\n    return mlp(8, 2)\n")
    own = base(source=f"{file}:net")
    others = [
        base(source="zoo:convnet,width=3"),
        base(source=f"{SOURCE},preprocess.mean=0.5"),
        base(samples=few().take(torch.arange(100), "fewer")),
        base(recipe=replace(SHORT, epochs=2)),
        base(recipe=DIGITS),
        base(seed=4),
        own,
    ]
    keys = {base().key, *(other.key for other in others)}
    assert len(keys) == 1 + len(others)
    assert base(name="B").key == base(samples=replace(few(), name="renamed")).key == base().key
    file.write_text("from suture_papers.networks import mlp\ndef net():\n    return mlp(8, 2).double().float()\n")
    assert base(source=f"{file}:net").key != own.key


def test_the_key_sees_what_a_package_s_modules_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block in a file that the factory's file imports; the shapes are the same."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "keyed").mkdir()
    (tmp_path / "keyed/__init__.py").touch()
    (tmp_path / "keyed/nets.py").write_text(
        "from torch import nn\nfrom keyed.blocks import Block\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Block())\n"
    )
    keys = []
    for sign in ("", "-", ""):
        for name in ("keyed", "keyed.nets", "keyed.blocks"):
            sys.modules.pop(name, None)
        (tmp_path / "keyed/blocks.py").write_text(
            f"from torch import nn\nclass Block(nn.Module):\n    def forward(self, x): return {sign}x\n"
        )
        importlib.invalidate_caches()
        keys.append(base(source="keyed.nets:net").key)
    assert keys[0] == keys[2] != keys[1]


def test_a_string_that_names_no_model_is_refused_at_once() -> None:
    with pytest.raises(SourceError, match="no model source 'resnet18'"):
        base(source="resnet18")
    with pytest.raises(SourceError, match="no model 'convnext' in zoo"):
        _ = base(source="zoo:convnext").key


def pair(**settings) -> list[BaseModel]:
    return [base(seed=seed, name=name, **settings) for seed, name in enumerate("AB")]


def train_and_stitch(folder: Path, on: Runner) -> pd.DataFrame:
    """Two base models and a trial between them at two cuts."""
    store = Store.make(folder)
    train_networks(pair(), store, on=on)
    networks = [one.load(store) for one in pair()]
    settings = {"data": few_digits(), "fit": LeastSquares(), "at": ("stage1", "stage2"), "controls": ()}
    return run(curve(*networks, **settings), store=store, on=on)


def test_networks_are_trained_once_and_then_stitched_wherever_that_is(tmp_path: Path) -> None:
    here = train_and_stitch(tmp_path / "here", Local(workers=1))
    assert list(here["sender"].unique()) == ["A"]
    assert (here["status"] == "ok").all()
    cards = [Store(tmp_path / "here").record(NETWORKS, one.key) for one in pair()]
    assert_frame_equal(train_and_stitch(tmp_path / "here", Local()), here)
    assert [Store(tmp_path / "here").record(NETWORKS, one.key) for one in pair()] == cards
    faulty = train_and_stitch(tmp_path / "faulty", Faulty(seed=1))
    assert_frame_equal(faulty.drop(columns="seconds"), here.drop(columns="seconds"))


@pytest.mark.slow
def test_workers_train_the_same_networks(tmp_path: Path) -> None:
    here, pooled = (train_and_stitch(tmp_path / str(count), Local(workers=count)) for count in (1, 2))
    assert_frame_equal(pooled.drop(columns="seconds"), here.drop(columns="seconds"))


@pytest.mark.ray
def test_ray_trains_the_same_networks(tmp_path: Path) -> None:
    here = train_and_stitch(tmp_path / "here", Local(workers=1))
    there = train_and_stitch(tmp_path / "there", suture.Ray())
    assert_frame_equal(there.drop(columns="seconds"), here.drop(columns="seconds"))


def test_training_that_diverges_is_a_failure_that_says_so(tmp_path: Path) -> None:
    wild = replace(SHORT, optimiser=replace(SHORT.optimiser, lr=1e20), epochs=2)
    with pytest.raises(Untrained, match=r"training A on .*, seed 0: FitError: training diverged"):
        train_networks(pair(recipe=wild), tmp_path)
    assert set(Store(tmp_path).failures(NETWORKS)) == {one.key for one in pair(recipe=wild)}

import contextlib
import json
import os
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from suture.common.errors import CheckpointError, SutureWarning
from suture.zoo import load_checkpoint


def network(classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))


def trained() -> nn.Module:
    """A network whose every parameter and buffer differs from a fresh one's."""
    model = network()
    for value in model.state_dict().values():
        value.copy_(torch.rand(value.shape) * 100 + 1)
    return model


def equal(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def parallel(state: dict) -> dict:
    return {f"module.{name}": value for name, value in state.items()}


class Mark:
    """Unpickling this makes a folder."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def twice_wrapped(state: dict) -> dict:
    """Lightning's names of a model that was compiled."""
    return {f"model._orig_mod.{name}": value for name, value in state.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".th", ".ckpt", ".bin"])
@pytest.mark.parametrize("names", [dict, parallel, twice_wrapped])
def test_a_checkpoint_brings_every_parameter_and_buffer(tmp_path, suffix, names):
    source, path = trained(), tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(names(source.state_dict()), path)
    model = network()
    load_checkpoint(model, str(path))
    assert equal(model, source)


def test_tied_weights_that_are_saved_once_are_loaded_twice(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    source, model = Tied(), Tied()
    save_model(source, tmp_path / "tied.safetensors")
    load_checkpoint(model, tmp_path / "tied.safetensors")
    assert equal(model, source)
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict"])
def test_a_state_dict_may_lie_in_what_a_training_script_saved(tmp_path, wrapper):
    source, path = trained(), tmp_path / "weights.pt"
    torch.save({"epoch": 3, wrapper: parallel(source.state_dict()), "optimizer": {"lr": 0.1}}, path)
    model = network()
    load_checkpoint(model, path)
    assert equal(model, source)


@pytest.mark.parametrize("averaged", ["model_ema", "state_dict_ema", "anything", "optimizer.ema"])
def test_averaged_weights_beside_those_that_are_taken_are_named(tmp_path, averaged):
    """As torchvision's references, timm and ``AveragedModel`` leave them."""
    source, path = trained(), tmp_path / "checkpoint.pt"
    ema = {"n_averaged": torch.tensor(3)} | parallel(trained().state_dict())
    outer, _, inner = averaged.rpartition(".")
    held = {outer: {"state": {}, inner: ema}} if outer else {averaged: ema, "optimizer": {"state": {}}}
    torch.save({"model": source.state_dict(), **held}, path)
    model = network()
    with pytest.warns(SutureWarning, match=f"under 'model', '{averaged}'; those under 'model' are taken"):
        load_checkpoint(model, path)
    assert equal(model, source)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_checkpoint_may_lack_the_count_of_batches(tmp_path, suffix):
    source, path = trained(), tmp_path / f"weights{suffix}"
    state = {name: value for name, value in source.state_dict().items() if not name.endswith("num_batches_tracked")}
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    model = network()
    load_checkpoint(model, path)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_a_model_whose_own_names_begin_with_module_keeps_them(tmp_path):
    source, model = nn.ModuleDict({"module": trained()}), nn.ModuleDict({"module": network()})
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    load_checkpoint(model, tmp_path / "weights.safetensors")
    assert equal(model, source)


def changed(state: dict, **values: object) -> dict:
    """The state with some values replaced (``_`` for ``.`` in a name), or taken away by None."""
    named = {name.replace("_", ".", 1): value for name, value in values.items()}
    return {name: value for name, value in {**state, **named}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"0_weight": None, "3_bias": None},
            r'Missing key.*"0\.weight", "3\.bias".* build the model that the checkpoint was saved from',
        ),
        ({"5_bias": torch.ones(2), "6_bias": torch.ones(1)}, r'Unexpected key.*"5\.bias", "6\.bias".*; build'),
        ({"0_weight": None, "w": torch.ones(2)}, r'Missing key.*"0\.weight".*Unexpected key.*"w".*; build'),
        ({"3_weight": torch.ones(5, 4)}, r"size mismatch for 3\.weight.*\[5, 4\].*\[2, 4\].*number of classes"),
    ],
    ids=["missing", "extra", "missing and extra", "shape"],
)
def test_weights_that_do_not_fit_are_named(tmp_path, changes, message):
    path, model = tmp_path / "weights.safetensors", network()
    save_file(changed(trained().state_dict(), **changes), path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(model, path)
    assert str(path) in str(caught.value)


def test_of_many_names_the_first_are_shown(tmp_path):
    save_file({"0.weight": torch.ones(4, 3)}, tmp_path / "weights.safetensors")
    deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(60)))
    with pytest.raises(CheckpointError, match=r'"0\.bias", "1\.weight".* …; build') as caught:
        load_checkpoint(deep, tmp_path / "weights.safetensors")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "save",
    [
        torch.save,
        lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
        lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2)),
        lambda content, path: path.write_bytes(pickle.dumps(content, protocol=4)),
    ],
    ids=["torch", "old torch", "pickle 2", "pickle 4"],
)
def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, save):
    marker, path = tmp_path / "ran", tmp_path / "weights.pt"
    save({"0.weight": Mark(marker)}, path)
    told = "arbitrary Python objects.* is not loaded, because.*safetensors.torch.save_model"
    with pytest.raises(CheckpointError, match=told):
        load_checkpoint(network(), path)
    assert not marker.exists()
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        torch.load(path, weights_only=False)
    assert marker.exists(), "the file is as dangerous as the test claims"


def test_a_whole_pickled_model_is_refused_by_the_name_of_its_class(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"objects \(torch\.nn\.modules\.linear\.Linear\) and is not loaded"):
        load_checkpoint(network(), tmp_path / "model.pt")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2]], ids=["empty", "cut"])
def test_a_damaged_file_is_refused(tmp_path, suffix, damage):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(trained().state_dict(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"is damaged, or not a checkpoint \(.+\); copy it again"):
        load_checkpoint(network(), path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list, not a state dict; save it by safetensors"),
        (
            {"epoch": 3, "net": {"0.weight": torch.ones(4, 3)}},
            "no tensor under 'epoch', 'net'; names must map",
        ),
        (
            {0: torch.ones(2)},
            "no tensor under 0; names must map to tensors, bare or under 'state_dict' or 'model'",
        ),
    ],
)
def test_content_that_is_no_state_dict_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(network(), tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.pt", "no checkpoint .*absent.pt; give the path of a file"),
        (
            "weights.onnx",
            r"suffix '\.onnx'; a checkpoint ends in \.safetensors, \.pt, .* or \.safetensors\.index\.json if it is in "
            "several files; save it by",
        ),
        ("weights", r"suffix ''; a checkpoint ends in"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_refused(tmp_path, name, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(network(), tmp_path / name)
    assert re.search(re.escape(str(tmp_path / name)), str(caught.value))


def test_a_checkpoint_in_several_files_is_loaded_by_its_index(tmp_path):
    source, model = trained(), network()
    state = source.state_dict()
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    placed = {name: parts[i % 2] for i, name in enumerate(state)}
    for part in parts:
        save_file({name: value for name, value in state.items() if placed[name] == part}, tmp_path / part)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    load_checkpoint(model, index)
    assert equal(model, source)
    with pytest.raises(
        CheckpointError, match=r"one of 2 files of a checkpoint; give their index, .*model\.safetensors"
    ):
        load_checkpoint(model, tmp_path / parts[0])
    (tmp_path / parts[1]).unlink()
    with pytest.raises(CheckpointError, match=r"names model-00002-of-00002\.safetensors, which is not beside it"):
        load_checkpoint(model, index)
    for content, why in (
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "not a .safetensors file"),
    ):
        index.write_text(content)
        with pytest.raises(CheckpointError, match=why):
            load_checkpoint(model, index)

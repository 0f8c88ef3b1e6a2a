"""The ledger's networks that the repository keeps, by their model strings."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file

import suture
from suture.common.errors import FitError, SourceError
from suture.runs.store.files import read
from suture.zoo.models import resolve
from suture.zoo.sources import parse_source
from suture_papers import model_strings
from suture_papers.model_strings import KEPT, find_kept
from suture_papers.networks.base_model import BaseModel, round_weights
from suture_papers.training import Recipe
from trained import few_digits

ROOT = Path(__file__).parents[3]
EXAMPLE = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)


def test_a_kept_network_is_the_one_of_its_card_and_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    card, weights = find_kept("ledger:mlp@10")
    network = suture.load_network("ledger:mlp@10", example=EXAMPLE)
    kept = load_file(weights)
    assert all(own.dtype == torch.float16 for own in kept.values() if own.is_floating_point())
    state = resolve("ledger:mlp@10").model.state_dict()
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], own.float()) for name, own in kept.items() if own.is_floating_point())
    assert parse_source("ledger:mlp@10").name == "mlp"
    assert network.expected_accuracy == {card["scores"][0]["data"]["name"]: card["scores"][0]["accuracy"]["value"]}


def test_every_kept_network_has_a_card_of_its_seed_that_can_be_read() -> None:
    kept = sorted((ROOT / KEPT).glob("*.safetensors"))
    assert sum(path.stat().st_size for path in kept) < 100e6
    for path in kept:
        card = read(path.with_suffix(".json"))  # refuses one whose seal is not its own
        assert card["seed"] == int(path.stem.rsplit("-", 1)[1]), path.name


def test_what_is_not_kept_is_refused_with_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SourceError, match=r"ledger:resnet18@99: .* has no such network; it has .*ledger:resnet18@10"):
        parse_source("ledger:resnet18@99")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(model_strings, "__file__", str(tmp_path / "a" / "b" / "c.py"))
        with pytest.raises(SourceError, match=re.escape(f"no folder {tmp_path / KEPT} or {tmp_path / KEPT}")):
            parse_source("ledger:resnet18@10")
    monkeypatch.setenv(model_strings.VARIABLE, str(tmp_path / "mine"))
    with pytest.raises(SourceError, match=re.escape(f"no folder {tmp_path / 'mine'}; ")):
        parse_source("ledger:resnet18@10")
    monkeypatch.setenv(model_strings.VARIABLE, str(ROOT / KEPT))
    assert parse_source("ledger:resnet18@10").kind == "zoo"


def test_rounded_weights_are_numbers_of_16_bits_under_a_key_of_their_own() -> None:
    plain = BaseModel("zoo:convnet,width=2", few_digits().fit, Recipe(epochs=1, batch=64), 3)
    rounded = replace(plain, rounded=True)
    assert plain.key != rounded.key
    assert plain.sequence == rounded.sequence  # one training, checkpoints and all
    exact, kept = (load(base.train().tensors) for base in (plain, rounded))
    assert all(torch.equal(own.half().to(own.dtype), kept[name]) for name, own in exact.items())
    assert any(not torch.equal(own, kept[name]) for name, own in exact.items())


def test_numbers_beyond_16_bits_are_refused() -> None:
    with pytest.raises(FitError, match="'b' has numbers that 16 bits cannot hold"):
        round_weights({"a": torch.ones(2), "n": torch.tensor(10**9), "b": torch.tensor([1e6])})

"""A stitched network written to a folder comes back bit for bit, with the right networks and no others."""

import json
import os
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models import images, scrambled, seeded
from suture import Network, Seam, Stitched, load_network, load_stitched, stitch
from suture.common.errors import CheckpointError, CutError, OutputError
from suture.common.sealed import from_json, to_json
from suture.core.saving import DESCRIPTION, TENSORS, read
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Identity,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    Stitch,
    StridedConv,
    TwoLayer,
    UpsampledConv,
    stitch_for,
)
from suture.fits import LeastSquares
from suture_papers.networks.architectures import convnet
from trained import convnets, few_digits


class Shapes(nn.Module):
    """Maps, smaller maps, tokens and vectors, all with six features."""

    def __init__(self, width):
        super().__init__()
        self.maps = nn.Conv2d(3, width, 1)
        self.small = nn.Conv2d(width, width, 2, stride=2)
        self.vector = nn.Linear(16 * width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        tokens = self.small(self.maps(x).relu()).flatten(2).transpose(1, 2)
        return self.head(self.vector(tokens.tanh().flatten(1)).relu())


def network(seed, name, width=6):
    return Network(seeded(lambda: Shapes(width), seed), example=images(2, 8), name=name)


A, B = network(0, "A"), network(1, "B")
SEAMS = {
    "1×1 with BatchNorms": (Conv(), "maps", "maps"),
    "3×3": (Conv(kernel=3, batchnorm=False), "maps", "maps"),
    "tokens": (Linear(), "tanh", "tanh"),
    "low rank": (LowRank(rank=3), "vector", "vector"),
    "two layers": (TwoLayer(width=3), "vector", "vector"),
    "orthogonal": (Orthogonal(), "maps", "maps"),
    "permutation": (Permutation(), "tanh", "tanh"),
    "diagonal": (Diagonal(), "vector", "vector"),
    "shrinking": (StridedConv(), "maps", "small"),
    "growing": (UpsampledConv(), "small", "maps"),
    "maps to tokens": (MapsToTokens(), "small", "tanh"),
    "maps to vectors": (ConvLinear(), "small", "vector"),
    "everything to everything": (FullLinear(), "small", "vector"),
    "nothing": (Identity(), "maps", "maps"),
}


def made(family, sent="maps", received="maps", sender=A, receiver=B):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        stitch = family.build(sender.cuts.find(sent).shape, receiver.cuts.find(received).shape)
    return Stitched(Seam(sender, receiver, sent, received), scrambled(stitch, 3).eval(), family)


@pytest.mark.parametrize(("family", "sent", "received"), SEAMS.values(), ids=SEAMS)
def test_what_is_loaded_is_what_was_saved_bit_for_bit(tmp_path, family, sent, received):
    model, x = made(family, sent, received), images(4, 8, seed=3)
    assert model.save(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loaded = load_stitched(tmp_path / "new" / "folder", A, B)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    assert loaded.family == family
    assert (loaded.seam.sender, loaded.seam.receiver) == (A, B)
    assert (loaded.seam.sender_cut, loaded.seam.receiver_cut) == (sent, received)
    assert not loaded.stitch.training
    assert {p.name for p in (tmp_path / "new" / "folder").iterdir()} == {TENSORS, DESCRIPTION}


def test_the_networks_may_be_made_anew(tmp_path):
    model, x = made(Conv()), images(4, 8, seed=3)
    model.save(tmp_path)
    with torch.no_grad():
        assert torch.equal(load_stitched(tmp_path, network(0, "other name"), network(1, "B"))(x), model(x))


def test_a_network_stitched_to_itself_and_a_second_save_over_the_first(tmp_path):
    made(Conv()).save(tmp_path)
    model = made(Linear(), "vector", "vector", A, A)
    model.save(tmp_path)
    assert load_stitched(tmp_path, A, A).family == Linear()
    assert torch.equal(load_stitched(tmp_path, A, A).stitch.weight, model.stitch.weight)


def test_a_stitch_of_another_type_keeps_it(tmp_path):
    model = made(Linear(), "vector", "vector")
    model.stitch.double()
    model.save(tmp_path)
    loaded = load_stitched(tmp_path, A, B)
    assert loaded.stitch.weight.dtype == torch.float64
    assert torch.equal(loaded.stitch.weight, model.stitch.weight)


def test_networks_cuts_and_family_are_no_part_of_the_state():
    model = made(Conv())
    parts = {name.partition(".")[0] for name in model.state_dict()}
    assert parts == {"prefix", "stitch", "suffix"}
    assert {name.partition(".")[0] for name, _ in model.named_children()} == parts


def test_what_the_folder_says(tmp_path):
    record = {"trial": "abc", "scores": {"accuracy": (0.5, float("nan"))}, "steps": 3}
    made(LowRank(rank=2), "vector", "vector").save(tmp_path, record)
    said = json.loads((tmp_path / DESCRIPTION).read_text())
    assert said["format"] == 1
    assert said["stitch"] == {"family": "LowRank", "settings": {"rank": 2}}
    common = {"cut": "vector", "source": None, "images": [3, 8, 8]}
    assert said["sender"] == {"name": "A", "fingerprint": A.fingerprint} | common
    assert said["receiver"] == {"name": "B", "fingerprint": B.fingerprint} | common
    assert read(tmp_path).record == {"trial": "abc", "scores": {"accuracy": [0.5, None]}, "steps": 3}
    assert set(load_file(tmp_path / TENSORS)) == {f"{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")}


# ----------------------------------------------------------------------------------------------------- other families


@dataclass(frozen=True)
class Own(Stitch):
    """A family of the user's own, with what no JSON file holds among its settings."""

    of: object = object
    joins = "anything"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        return nn.Sequential(nn.Conv2d(sender[0], 4, 1), nn.Tanh(), nn.Conv2d(4, receiver[0], 1))


def test_a_family_of_the_users_own_is_given_again(tmp_path):
    model, x = made(Own()), images(3, 8)
    model.save(tmp_path)
    with pytest.raises(
        CheckpointError,
        match=r"a stitch of test_saving\.Own.*not a family of this version of the library; give it, stitch=",
    ):
        load_stitched(tmp_path, A, B)
    with pytest.raises(CheckpointError, match=r"holds a stitch of test_saving\.Own.*, not a stitch of Conv"):
        load_stitched(tmp_path, A, B, stitch=Conv())
    module = Own().build((6,), (6,))
    with torch.no_grad():
        for given in (Own(), module):
            assert torch.equal(load_stitched(tmp_path, A, B, stitch=given)(x), model(x))


def test_a_stitch_of_no_named_family(tmp_path):
    stitch = nn.Conv2d(6, 6, 1)
    Stitched(Seam.at(A, B, "maps"), stitch).save(tmp_path)
    with pytest.raises(CheckpointError, match="a stitch of no named family"):
        load_stitched(tmp_path, A, B)
    assert torch.equal(load_stitched(tmp_path, A, B, stitch=Conv(batchnorm=False)).stitch.weight, stitch.weight)
    with pytest.raises(CheckpointError, match="do not fit the stitch"):
        load_stitched(tmp_path, A, B, stitch=Conv())
    with pytest.raises(CheckpointError, match="do not fit the stitch"):
        load_stitched(tmp_path, A, B, stitch=nn.Conv2d(6, 6, 3))


def test_other_settings_of_the_family_are_refused(tmp_path):
    made(LowRank(rank=2), "vector", "vector").save(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"LowRank\(rank=2\), not a stitch of LowRank\(rank=3\); give that family"
    ):
        load_stitched(tmp_path, A, B, stitch=LowRank(rank=3))


# ------------------------------------------------------------------------------------------------------ what is refused


def test_other_networks_are_refused_by_fingerprint(tmp_path):
    made(Conv()).save(tmp_path)
    other = network(2, "other")
    with pytest.raises(CheckpointError) as error:
        load_stitched(tmp_path, A, other)
    for part in ("other", other.fingerprint[:8], "the receiver", "the network B", B.fingerprint[:8], "same weights"):
        assert part in str(error.value)
    with pytest.raises(CheckpointError, match=f"^B, fingerprint {B.fingerprint[:8]}…, is not the sender"):
        load_stitched(tmp_path, B, A)


def test_the_same_weights_with_other_preprocessing_are_refused(tmp_path):
    made(Conv()).save(tmp_path)
    other = Network(seeded(lambda: Shapes(6), 0), example=images(2, 8), name="A", preprocess=lambda x: 2 * x)
    with pytest.raises(CheckpointError, match="is not the sender"):
        load_stitched(tmp_path, other, B)


def test_networks_that_are_not_given_are_named(tmp_path):
    made(Conv()).save(tmp_path)
    with pytest.raises(CheckpointError) as error:
        load_stitched(tmp_path)
    for part in (f"sender=the network A (fingerprint {A.fingerprint[:8]}…)", f"B (fingerprint {B.fingerprint[:8]}…)"):
        assert part in str(error.value)
    with pytest.raises(CheckpointError) as error:
        load_stitched(tmp_path, A)
    assert "sender=" not in str(error.value)


def test_where_a_network_came_from_is_said(tmp_path):
    named = network(5, "N")
    named.source = "shapes.py:shapes@n.safetensors"
    made(Conv(), sender=named).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"the network N made of shapes\.py:shapes@n\.safetensors \(finger"):
        load_stitched(tmp_path)


def test_a_measurement_is_saved_with_what_was_measured(tmp_path):
    a, b = convnets()
    measured = stitch(a, b, at="flatten", data=few_digits(), fit=LeastSquares(), controls=())
    measured.save(tmp_path)
    x = few_digits().score.images
    assert torch.equal(load_stitched(tmp_path, a, b)(x), measured.stitched(x))
    kept = read(tmp_path).record
    assert kept["trial"] == measured.trial.key
    assert kept["fit"] == "LeastSquares()"
    assert kept["scores"]["accuracy"]["value"] == measured.scores.accuracy.value
    assert kept["representation_error"] == measured.representation_error


def test_networks_of_model_strings_are_made_anew(tmp_path):
    torch.manual_seed(0)
    save_file(convnet(width=2).state_dict(), tmp_path / "weights.safetensors")
    text = f"zoo:convnet,width=2,preprocess.mean=0.3@{tmp_path / 'weights.safetensors'}"
    own = load_network(text, example=images(2, 8, 1), name="own")
    shapes = own.cuts.find("stage1").shape, own.cuts.find("stage2").shape
    family = stitch_for(*shapes)
    model = Stitched(Seam(own, own, "stage1", "stage2"), family.build(*shapes).eval(), family)
    model.save(tmp_path / "saved")
    again = load_stitched(tmp_path / "saved")
    assert torch.equal(again(images(3, 8, 1)), model(images(3, 8, 1)))
    assert again.seam.sender.name == "own"


def _cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _edited(**changes):
    def edit(path):
        said = from_json(path.read_bytes())
        path.write_text(to_json({k: v for k, v in (said | changes).items() if v is not ...}))

    return edit


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        (TENSORS, _cut_short, "does not match stitched.json"),
        (TENSORS, _flipped, "does not match stitched.json"),
        (TENSORS, os.remove, "it has no stitch.safetensors; give a folder that save"),
        (DESCRIPTION, os.remove, "it has no stitched.json; give a folder that save"),
        (DESCRIPTION, _cut_short, "stitched.json is damaged"),
        (DESCRIPTION, lambda path: path.write_bytes(b"\xff\xfe"), "stitched.json is damaged"),
        (DESCRIPTION, lambda path: path.write_text("[1]"), "describes no stitched network"),
        (DESCRIPTION, lambda path: path.write_text("{}"), "describes no stitched network"),
        (DESCRIPTION, _edited(format=2), "has format 2, written by suture .*; this one reads format 1"),
        (DESCRIPTION, _edited(sender=...), "is damaged"),
        (DESCRIPTION, _edited(tensors=...), "is damaged"),
        (
            DESCRIPTION,
            _edited(stitch={"family": "Unheard", "settings": {}}),
            r"Unheard\(\), which is not a family of this version",
        ),
    ],
)
def test_damage_is_refused(tmp_path, file, damage, said):
    made(Conv(batchnorm=False)).save(tmp_path)
    damage(tmp_path / file)
    with pytest.raises(CheckpointError, match=said):
        load_stitched(tmp_path, A, B)


def test_tensors_of_another_save_are_refused(tmp_path):
    """As after a save that was killed between the two files."""
    made(Conv()).save(tmp_path)
    save_file(made(Conv(batchnorm=False)).stitch.state_dict(), tmp_path / TENSORS)
    with pytest.raises(CheckpointError, match="one of the two was not written"):
        load_stitched(tmp_path, A, B)


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    first, x = made(Conv()), images(2, 8)
    first.save(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device; name another folder"):
        made(Linear(), "vector", "vector").save(tmp_path)
    monkeypatch.undo()
    assert {p.name for p in tmp_path.iterdir()} == {TENSORS, DESCRIPTION}
    with torch.no_grad():
        assert torch.equal(load_stitched(tmp_path, A, B)(x), first(x))


def test_a_place_that_is_no_folder_and_a_record_that_is_not_plain(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        made(Conv()).save(tmp_path / "file")
    for value in (torch.ones(2), {1: 2}, {1, 2}):
        with pytest.raises(OutputError, match=r"the record holds a .*, which a JSON file cannot hold"):
            made(Conv()).save(tmp_path / "never", {"kept": value})
    assert not (tmp_path / "never").exists()
    with pytest.raises(CheckpointError, match="no stitched network in"):
        load_stitched(tmp_path / "never", A, B)


def test_unknown_cuts_are_refused_as_ever():
    with pytest.raises(CutError, match="no cut 'maops' in A; did you mean 'maps'"):
        Stitched(Seam(A, B, "maops", "maps"), nn.Identity())

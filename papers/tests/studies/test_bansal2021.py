"""bansal2021: what its studies measure beside stitches, and how its claims are read, against answers that are known."""

import pandas as pd
import pytest
import torch
from torch import nn

from suture.common.errors import CheckpointError, DataError, SutureError
from suture.core.folding import foldable_cuts
from suture.core.network.network import Network
from suture.data import Samples, load_data
from suture.fits import Converged, Logistic, Random
from suture.measurement.indices import linear_cka
from suture_papers.bansal2021 import STUDIES, pretrained
from suture_papers.bansal2021.folds import compare_outputs, fold_at_each_cut
from suture_papers.bansal2021.invariance import CHANGED, COORDINATES, WEIGHT, apply_change, draw_gaussian
from suture_papers.bansal2021.plans import R18, SIMCLR, pair_unlike_seeds
from suture_papers.base.cells import Where
from suture_papers.base.plans import measure_accuracy
from suture_papers.base.quantities import Agreement, AtCuts, RunOfCuts
from suture_papers.base.scale import scale_named, stand_in
from suture_papers.networks.architectures import mlp, resnet, resnet50
from suture_papers.recipes import bansal2021

CUTS = ("one", "two", "three")


def table(*rows):
    """Trials of one pair and more: sender, stitched accuracy at each of the cuts, pair by pair."""
    return {
        "trials": pd.DataFrame(
            [
                {"status": "ok", "score": "accuracy", "unit": "fraction", "published": False, "control": ""}
                | {
                    "fit": "Converged()",
                    "sender": sender,
                    "receiver": "B",
                    "sender_cut": cut,
                    "receiver_cut": cut,
                    "network_seed": pair,
                }
                | {"sender_depth": i / 3, "receiver_depth": i / 3, "stitched": value / 100, "penalty": 90 - value}
                | {"sender_score": 0.9, "receiver_score": 0.9}
                for sender, pairs in rows
                for pair, values in enumerate(pairs)
                for i, (cut, value) in enumerate(zip(CUTS, values, strict=True), start=1)
            ]
        )
    }


def read(*senders, column="stitched"):
    return tuple((column, Where(sender=sender)) for sender in senders)


TABLE = table(
    ("A", [(90, 80, 70), (91, 80, 69)]), ("P", [(50, 75, 60), (51, 60, 80)]), ("Q", [(90, 81, 66), (91, 80, 69)])
)


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        (Agreement(read("A", "P")), [-0.5, -1]),
        (RunOfCuts(read("A", column="penalty"), most=10), [2, 2]),
        (RunOfCuts(read("A", column="penalty"), most=20, last=True), [3, 0]),
        (RunOfCuts((("sender_score", Where(sender="A")), *read("A")), most=5), [1, 1]),
    ],
    ids=str,
)
def test_what_is_read_cut_by_cut(quantity, values):
    assert quantity.read(TABLE).tolist() == pytest.approx(values)


def test_a_cut_that_one_condition_lacks_does_not_count():
    lacks = table(("A", [(90, 80, 70)]), ("P", [(90, 75, float("nan"))]))
    first, second = read("A", "P")
    assert AtCuts(*first, minus=second).read(lacks).loc[0].to_dict() == pytest.approx({"one": 0, "two": 5})


def test_several_sender_cuts_of_one_receiver_cut_are_averaged():
    two = pd.concat([TABLE["trials"], TABLE["trials"].assign(sender_cut="another", stitched=0.2)])
    first, second = read("A", "P")
    found = AtCuts(*first, minus=second).read({"trials": two})
    assert found.loc[0].to_dict() == pytest.approx({"one": 20, "two": 2.5, "three": 5})


def test_agreement_with_what_never_moves_is_none_and_ends_at_minus_1():
    flat = table(("A", [(90, 80, 70)]), ("P", [(50, 50, 50)]))
    assert Agreement(read("A", "P")).read(flat).tolist() == Agreement(read("P", "A")).read(flat).tolist() == [0]
    figure = Agreement(read("A", "P")).estimate(
        table(("A", [(90, 80, 70)] * 3), ("P", [(50, 60, 70), (50, 60, 70), (60, 50, 40)]))
    )
    assert (figure.low, figure.high) == (-1, 1)


def test_conditions_without_a_cut_in_common_are_refused():
    moved = TABLE["trials"].copy()
    moved.loc[moved["sender"] == "P", "receiver_cut"] += "'"
    with pytest.raises(DataError, match="no cut has all"):
        Agreement(read("A", "P")).read({"trials": moved})


# --- invariance -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (300, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return Samples("images", pixels, torch.arange(300) % 7, tuple("abcdefg"))


@pytest.fixture(scope="module")
def network(images):
    torch.manual_seed(1)
    return Network(resnet((1, 1), width=6, classes=7), example=images.images[:3], name="R")


def test_gaussian_coordinates_are_normal_and_each_images_own(images):
    floats = images.images / 255
    drawn = torch.stack([draw_gaussian(image) for image in floats])
    assert drawn.shape == (300, COORDINATES)
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.2  # of images with each other
    assert torch.equal(drawn[7], draw_gaussian(floats[7].clone()))
    other = floats[7].clone()
    other[0, 0, 0] = 1 - other[0, 0, 0]
    assert not torch.equal(draw_gaussian(other), drawn[7])


@pytest.mark.parametrize("cut", ["layer1.0", "layer2.0", "flatten"])
def test_the_longer_representation_is_the_old_one_with_coordinates_behind_it(network, images, cut):
    sender = apply_change(network, cut, "Gaussian coordinates", images)
    old, new = network.upto(cut)(images.images[:256]), sender.upto(CHANGED)(images.images[:256])
    channels = old.shape[1]
    assert torch.equal(new[:, :channels], old)
    added = new[:, channels:].flatten(1)
    assert (added != 0).sum(1).eq(COORDINATES).all()
    assert added[:, COORDINATES:].eq(0).all()
    varies = [x.flatten(1).double().var(0).sum().item() for x in (old, added)]
    assert varies[1] / varies[0] == pytest.approx(WEIGHT, rel=0.02)
    assert linear_cka(old, new) < 0.9 * linear_cka(old, old)


def test_moved_pixels_are_one_permutation_that_cka_does_not_see(network, images):
    sender = apply_change(network, "layer1.0", "moved pixels", images)
    old, new = network.upto("layer1.0")(images.images), sender.upto(CHANGED)(images.images)
    flat, moved = (x.flatten(2).movedim(2, 0).flatten(1) for x in (old, new))  # a row per position
    order = torch.cdist(moved.double(), flat.double()).argmin(1)
    assert sorted(order.tolist()) == list(range(256))
    assert order.tolist() != list(range(256))
    assert torch.equal(moved, flat[order])
    other = network.upto("layer2.0")(images.images)
    assert linear_cka(new, other) == pytest.approx(linear_cka(old, other), abs=1e-6)


# --- folds, accuracy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "side"), [(lambda: mlp(4, depth=2, classes=7, inputs=768), 16), (lambda: resnet((2,), width=2), 16)]
)
def test_the_folds_of_a_network_are_those_that_folding_says(model, side, images):
    torch.manual_seed(2)
    network = Network(model(), example=images.images[:3], name="N")
    rows = fold_at_each_cut(network, images.images[:8], seed=0).set_index("receiver_cut")
    known = foldable_cuts(network)
    assert {cut: bool(melts) for cut, melts in rows["melts"].items()} == {cut: bool(f) for cut, f in known.items()}
    assert rows["error"].notna().eq(rows["melts"] == 1).all()
    assert 0 < rows["error"].max() < 1e-5
    assert (rows["reason"] == "").eq(rows["melts"] == 1).all()


def test_a_network_that_is_not_the_same_would_be_seen():
    a = nn.Linear(2, 2, bias=False)
    b = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        a.weight.copy_(torch.eye(2))
        b.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.5]]))
    assert compare_outputs(a, b, torch.tensor([[2.0, 1.0]])) == pytest.approx(0.25)


def test_the_accuracy_of_a_network_that_knows_one_class(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 7))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.eye(7)[2])
    row = measure_accuracy(Network(model, example=images.images[:3], name="N"), images)
    assert row["accuracy"] == pytest.approx((images.labels == 2).double().mean().item())
    assert row["low"] < row["accuracy"] < row["high"]
    assert row["n"] == 300
    assert row["unit"] == "fraction"


# --- pretrained networks ----------------------------------------------------------------------------------------------


def narrow():
    return resnet50(width=2, blocks=(1, 1), classes=3)


@pytest.mark.parametrize("nested", [False, True])
def test_a_residual_network_is_found_wherever_in_a_file_it_is(tmp_path, nested):
    torch.manual_seed(3)
    source = narrow()
    kept = {f"module.{name}": tensor for name, tensor in source.state_dict().items() if not name.startswith("fc")}
    kept |= {"module.projection_head.0.weight": torch.zeros(2, 2)}
    path = tmp_path / "swav.pth"
    torch.save({"epoch": 3, "classy_state_dict": {"trunk": kept}} if nested else kept, path)
    model = narrow()
    model.fc = nn.Identity()
    pretrained.fill(model, path)
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda state: state.pop("layer1.0.bn1.weight"), "lacks 1 tensors .* 'layer1.0.bn1.weight'"),
        (lambda state: state.update({"bn1.weight": torch.zeros(9)}), "'bn1.weight' .* another shape"),
        (lambda state: state.update({"teacher.conv1.weight": state["conv1.weight"].clone()}), "2 residual networks"),
        (lambda state: state.pop("conv1.weight"), "0 residual networks"),
    ],
)
def test_a_file_without_the_whole_network_is_refused(tmp_path, spoil, said):
    state = narrow().state_dict()
    spoil(state)
    torch.save(state, tmp_path / "dino.pth")
    with pytest.raises(CheckpointError, match=said):
        pretrained.fill(narrow(), tmp_path / "dino.pth")


def test_what_imagenet_needs_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.delenv(pretrained.IMAGENET, raising=False)
    monkeypatch.setenv(pretrained.RESNET50, str(tmp_path))
    (tmp_path / "dino.pth").touch()
    study = next(study for study in STUDIES if study.id == "bansal-2B")
    with pytest.raises(
        SutureError, match=r"SUTURE_IMAGENET names no folder; no supervised.pth .* no simclr.pth"
    ) as told:
        study.plan(scale_named("small", lambda name: load_data("digits")))
    assert "no dino" not in str(told.value)
    monkeypatch.setenv(pretrained.IMAGENET, str(tmp_path))
    for name in ("supervised", "simclr", "swav"):
        (tmp_path / f"{name}.safetensors").touch()
    folder, files = pretrained.find_files()
    assert folder == str(tmp_path)
    assert files["SwAV"] == tmp_path / "swav.safetensors"


def test_every_row_of_the_paper_has_its_study():
    rows = "2A 2A-disjoint 2A-random 5 2B 6 3A 2C 3B 3C 4 7 8 9 probe invariance fold"
    assert {study.id for study in STUDIES} == {f"bansal-{row}" for row in rows.split()}


def test_at_the_papers_scale_every_seam_is_fitted_by_the_papers_recipe_too():
    data = stand_in("cifar10")
    a, b = (Network(resnet(blocks=(2, 2, 2, 2), width=2), example=data.example, name=one) for one in "AB")
    both = {str(Converged()), str(bansal2021)}
    for name in ("2A-random", "3A", "4", "9", "probe", "invariance"):
        study = next(study for study in STUDIES if study.id == f"bansal-{name}")
        (part, *_) = study.plan(scale_named("paper", stand_in))
        trials = part.make(a, b)
        kinds = {label: {str(t.fit) for t in trials if t.control == label} for label in {t.control for t in trials}}
        beside = {"linear probe": {str(Logistic())}, "plugged in": {str(Random())}}
        probed = beside if name == "probe" else {}
        untrained = {"untrained sender": both} if name == "2A-random" else {}
        assert kinds == {"": both} | probed | untrained, name
        told = {(t.sender.name, t.seam, t.control, str(t.fit)) for t in trials}
        assert len(trials) == len(told), name


def test_networks_that_began_otherwise_meet_in_a_circle_and_a_single_one_meets_every_other():
    small, paper = (scale_named(name, stand_in) for name in ("small", "paper"))
    assert pair_unlike_seeds(small, SIMCLR, R18) == [(10, other) for other in (11, 12, 13, 14)]
    assert pair_unlike_seeds(small, R18, SIMCLR) == [(other, 10) for other in (11, 12, 13, 14)]
    for senders, receivers in ((SIMCLR, R18), (R18, SIMCLR)):
        found = pair_unlike_seeds(paper, senders, receivers)
        assert len(found) >= 3, "or there would be no interval"
        assert all(len(set(side)) == len(side) for side in zip(*found, strict=True)), "each on a side once"
        assert all(sender != receiver for sender, receiver in found)

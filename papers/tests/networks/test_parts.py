"""What trains, what is frozen, what is taken: bit for bit."""

from pathlib import Path

import pytest
import torch
from torch import nn

from suture.common.errors import NetworkError
from suture.data import Samples
from suture.runs.runners import Local
from suture.runs.store.store import NETWORKS, Store
from suture_papers.networks.architectures import convnet
from suture_papers.networks.base_model import BaseModel
from suture_papers.training import CropFlip, Parts, Recipe, SimCLR, SimCLRView, Untrained, train, train_networks
from trained import few_digits, state_bits

RECIPE = Recipe(epochs=2, batch=50, augment=CropFlip(1))


def few() -> Samples:
    return few_digits().fit


def net() -> nn.Module:
    return convnet(width=2)


def trained(seed: int = 1, **settings: object) -> nn.Module:
    return train(net, few(), RECIPE, seed, **settings)  # type: ignore[arg-type]


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    """The modules of which a tensor changed, by the names that ``Parts`` takes."""
    one, two = state_bits(before), state_bits(after)
    return {name.rpartition(".")[0] for name in one if one[name] != two[name]}


def test_what_is_frozen_stays_bit_for_bit_with_its_batchnorm() -> None:
    first = trained()
    parts = Parts(frozen=("stage1", "stage2.norm"))
    assert changed(first, trained(2, start=first.state_dict(), parts=parts)) == {
        "stage2.conv",
        "stage3.conv",
        "stage3.norm",
        "head",
    }


def test_one_layer_trains_alone() -> None:
    first = trained()
    for name in ("head", "stage2.conv", "stage3.norm"):
        assert changed(first, trained(2, start=first.state_dict(), parts=Parts(trained=(name,)))) == {name}


def test_a_single_tensor_and_a_pattern_can_be_named() -> None:
    first = trained()
    second = trained(2, start=first.state_dict(), parts=Parts(trained=("head.bias", "stage*.norm")))
    assert changed(first, second) == {"stage1.norm", "stage2.norm", "stage3.norm", "head"}
    assert torch.equal(second.head.weight, first.head.weight)


def test_the_statistics_of_a_norm_stay_where_only_its_weight_is_named() -> None:
    first = trained()
    second = trained(2, start=first.state_dict(), parts=Parts(trained=("stage*.norm.weight", "head")))
    one, two = state_bits(first), state_bits(second)
    assert {name for name in one if one[name] != two[name]} == {
        *(f"stage{stage}.norm.weight" for stage in (1, 2, 3)),
        "head.weight",
        "head.bias",
    }


def test_what_is_taken_is_the_others_and_the_rest_is_drawn_anew() -> None:
    first = trained()
    parts = Parts(taken=("stage1", "stage2"), frozen=("stage1",))
    second = trained(2, start=first.state_dict(), parts=parts)
    assert changed(first, second) == {"stage2.conv", "stage2.norm", "stage3.conv", "stage3.norm", "head"}
    still = Recipe(epochs=1, optimiser=torch_sgd_of_nothing())
    anew = train(net, few(), still, 2)
    begun = train(net, few(), still, 2, start=first.state_dict(), parts=parts)
    assert torch.equal(begun.head.weight, anew.head.weight)
    assert torch.equal(begun.stage2.conv.weight, first.stage2.conv.weight)


def torch_sgd_of_nothing():
    from suture.fits import SGD

    return SGD(lr=0.0, weight_decay=0.0)


def test_a_dropout_in_a_frozen_part_drops_nothing() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.9)), nn.Linear(8, 10))

    modes = []
    model = build()
    handles = model[0][2].register_forward_hook(lambda module, *_: modes.append(module.training))
    train(lambda: model, few(), RECIPE, 0, parts=Parts(frozen=("0",)))
    handles.remove()
    assert set(modes) == {False}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"trained": ("fc1",)}, "no module 'fc1' in Sequential; nearest: "),
        ({"frozen": ("*",)}, r"nothing of Sequential would train with Parts\(frozen=\('\*',\)\); .* freeze less"),
        (
            {"trained": ("stage1.norm.running_mean",)},
            r"would train with Parts\(trained=.*; name modules with parameters",
        ),
        ({"taken": ("stage9",)}, "no module 'stage9' in Sequential; nearest: stage"),
    ],
)
def test_parts_that_are_not_there_are_refused_before_anything_trains(parts: dict, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        trained(start=net().state_dict(), parts=Parts(**parts))


def test_trained_and_frozen_contradict_each_other() -> None:
    with pytest.raises(NetworkError, match="give one of them"):
        Parts(trained=("head",), frozen=("stage1",))


def test_another_architecture_is_no_start() -> None:
    with pytest.raises(NetworkError, match=r"cannot take 'head.weight' .* is \(10, 12\) there and \(10, 8\) here"):
        trained(start=convnet(width=3).state_dict(), parts=Parts(taken=("head",)))


# --- base models that start from others -------------------------------------------------------------------------------


def base(**settings: object) -> BaseModel:
    given = {"source": "zoo:convnet,width=2", "samples": few(), "recipe": RECIPE, "seed": 1}
    return BaseModel(**(given | settings))  # type: ignore[arg-type]


def second(**settings: object) -> BaseModel:
    return base(**({"start": base(), "seed": 2, "parts": Parts(trained=("head",))} | settings))


def test_the_first_is_trained_once_and_then_the_second_wherever_that_is(tmp_path: Path) -> None:
    train_networks([second(), second(seed=3)], tmp_path, on=Local(workers=1))
    store = Store(tmp_path)
    assert store.finished(NETWORKS) == {base().key, second().key, second(seed=3).key}
    direct = second().train()
    assert store.tensors(NETWORKS, second().key) == direct.tensors
    first = trained(1)
    assert changed(first, _loaded(direct.tensors)) == {"head"}
    assert store.record(NETWORKS, second().key)["start"] == base().key


def _loaded(tensors: bytes) -> nn.Module:
    from safetensors.torch import load

    model = net()
    model.load_state_dict(load(tensors))
    return model


@pytest.mark.slow
def test_workers_wait_for_the_first(tmp_path: Path) -> None:
    train_networks([second(), second(seed=3)], tmp_path, on=Local(workers=2))
    assert Store(tmp_path).tensors(NETWORKS, second().key) == second().train().tensors


def test_where_the_first_fails_the_second_is_said_to_be_missing(tmp_path: Path) -> None:
    from suture.fits import SGD

    wild = base(recipe=Recipe(epochs=2, batch=50, optimiser=SGD(lr=1e30)))
    with pytest.raises(Untrained, match=r"training diverged .*; 1 more start from these; all else is done"):
        train_networks([second(start=wild)], tmp_path, on=Local(workers=1))


def test_where_it_starts_and_what_trains_decide_the_key() -> None:
    keys = {
        second().key,
        base(seed=2).key,
        second(start=base(seed=5)).key,
        second(parts=Parts()).key,
        second(parts=Parts(frozen=("stage1",))).key,
    }
    assert len(keys) == 5


def test_simclr_and_a_linear_classifier_on_top() -> None:
    views = Recipe(epochs=2, batch=50, objective=SimCLR(projection=8), augment=SimCLRView())
    encoder = base(recipe=views)
    classifier = base(start=encoder, parts=Parts(trained=("head",)), scored_on=(few_digits().score,))
    before, after = _loaded(encoder.train().tensors), _loaded(classifier.train().tensors)
    assert changed(net_of(1), before) >= {"stage1.conv", "stage3.norm"}
    assert "head" not in changed(net_of(1), before), "no label has shaped it"
    assert changed(before, after) == {"head"}


def net_of(seed: int) -> nn.Module:
    from suture.common.seeds import derive_seed

    torch.manual_seed(derive_seed("network", seed))
    return net()

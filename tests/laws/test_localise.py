"""The law of localising: a trait that was put into one known layer is found at that layer, and nowhere else.

The carrier is the plain network with one layer trained again, alone, on data in which every 0 is called 1; or both are
made by hand, unit by unit. So which layer bears the trait is known. Where the two differ in one layer no stitch is
needed, and every number is exact. A fitted stitch is fitted on data without zeros, which tell it neither the trait nor
its absence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from loops import each
from reported import to_table
from suture import Data, Network, Preprocess
from suture.core.activations.cache import Activations
from suture.core.stitches import Diagonal, Identity
from suture.data.changes import Covered
from suture.fits import SGD, Quick
from suture.measurement.scores.scores import Score
from suture.measurement.scores.traits import Trait, confuses, triggered
from suture.measurement.tables.onset import INPUT, OUTPUT, Onset, onset
from suture.measurement.trials import controls
from suture.measurement.trials.localise import localise
from suture.measurement.trials.measure import measure
from suture_papers import variants
from suture_papers.networks.architectures import mlp
from suture_papers.training import Parts, Recipe, train
from trained import digits, wrap

LAYERS = ("block1", "block2", "block3", "block4", "head")
CUTS = tuple(f"block{i}.relu" for i in range(1, 5))
PLACES = dict(zip(LAYERS, zip((INPUT, *CUTS), (*CUTS, OUTPUT), strict=True), strict=True))
NEUTRAL = variants.Without("0")
CLOSED = Quick(steps=0)
SHOWN = 0.5  #: of the zeros that a carrier must call 1, for the trait to be planted at all
build = partial(mlp, 32, 4)


@cache
def plain(seed: int) -> nn.Module:
    return train(build, digits().training, Recipe(epochs=15, batch=64), seed)


@cache
def carrier(seed: int, layer: str, label: str = "0", to: str = "1") -> nn.Module:
    """The plain network with one layer trained on, on data in which one class is called another."""
    return planted(plain(seed), seed, layer, variants.Relabelled(label, to)(digits()))


def planted(model: nn.Module, seed: int, layer: str, data: Data) -> nn.Module:
    recipe = Recipe(epochs=8, batch=64, optimiser=SGD(lr=0.05))
    return train(build, data.training, recipe, 100 + seed, start=model.state_dict(), parts=Parts(trained=(layer,)))


def found(trait: Trait, bears: nn.Module, lacks: nn.Module, fit_data: Data | None = None, **settings) -> Onset:
    a, b = wrap(bears, "carrier"), wrap(lacks, "plain")
    settings = {"at": CUTS, "controls": (), "stitch": Diagonal(), "fit": CLOSED, "scores": ()} | settings
    plan = localise(trait, a, b, data=digits(), fit_data=fit_data or NEUTRAL(digits()), **settings)
    cache = Activations()
    return onset(to_table([measure(trial, cache) for trial in plan]), trait, a, b)


def trait() -> Trait:
    return confuses(digits(), "0", "1")


def check_every_depth(seeds: range) -> None:
    """One layer carries the trait, another one for each seed: it is found there."""
    there = 0
    for seed in seeds:
        layer = LAYERS[seed % len(LAYERS)]
        o = found(trait(), carrier(seed, layer), plain(seed), stitch=Identity())
        if o.levels[0] - o.levels[1] > SHOWN:
            there += 1
            assert (o.verdict, o.between) == ("localised", PLACES[layer]), str(o)
            assert {*o.sending.shares, *o.receiving.shares} == {0.0, 1.0}
    assert there >= 0.8 * len(seeds)


@pytest.mark.slow
def test_a_trait_in_one_layer_is_found_there_at_every_depth():
    check_every_depth(range(5))


@pytest.mark.slow
def test_a_trait_in_one_layer_is_found_there_in_ten_of_ten_seeds():
    check_every_depth(range(10))


def check_fitted(seeds: range) -> None:
    there = 0
    for seed in seeds:
        o = found(trait(), carrier(seed, "block2"), plain(seed))
        if o.levels[0] - o.levels[1] > SHOWN:
            there += 1
            assert o.sending.between == o.receiving.between == PLACES["block2"], str(o)
            assert o.verdict == "localised"
    assert there >= 0.8 * len(seeds)


@pytest.mark.slow
def test_a_fitted_stitch_finds_it():
    check_fitted(range(1, 4))


@pytest.mark.slow
def test_a_fitted_stitch_finds_it_in_ten_of_ten_seeds():
    check_fitted(range(10))


@pytest.mark.slow
def test_controls_without_the_carrier_do_not_show_it():
    """Early in the network: behind a late cut an untrained network often calls every image by one name, the trait's."""
    without = (controls.itself, controls.untrained_sender, controls.untrained_receiver, controls.untrained_both)
    for seed in range(1, 4):
        o = found(trait(), carrier(seed, "block2"), plain(seed), controls=without)
        assert (o.verdict, o.between) == ("localised", PLACES["block2"]), str(o)
        assert o.sending.controls == o.receiving.controls == ()


@pytest.mark.slow
@each("seed", range(4), few=1)
def test_where_there_is_none_none_is_found(seed):
    o = found(trait(), plain(seed + 1), plain(seed))
    assert o.verdict == o.sending.verdict == o.receiving.verdict == "not found", str(o)
    assert "are not told apart" in str(o)


@dataclass(frozen=True)
class Taught(Score):
    """The share of the samples of some classes that are called what a carrier was taught."""

    pairs: tuple[tuple[int, int], ...]

    name: ClassVar[str] = "called as taught"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool | None] = None

    def selects(self, labels):
        return sum(labels == label for label, _ in self.pairs).bool()

    def per_sample(self, logits, labels):
        given = logits.argmax(1)
        return sum(((labels == label) & (given == to)).double() for label, to in self.pairs)


@pytest.mark.slow
@each("seed", range(2), few=1)
def test_a_trait_spread_over_all_layers_is_distributed(seed):
    """Each layer is taught to call one more class by the name of another."""
    pairs = ((0, 1), (2, 7), (4, 9), (6, 5), (8, 3))
    model, data = plain(seed), digits()
    for layer, (label, to) in zip(LAYERS, pairs, strict=True):
        data = variants.Relabelled(str(label), str(to))(data)
        model = planted(model, seed, layer, data)
    o = found(Trait("names", Taught(pairs)), model, plain(seed), stitch=Identity())
    assert o.levels[0] - o.levels[1] > SHOWN
    assert o.verdict == "distributed", str(o)


@pytest.mark.slow
def test_a_stitch_fitted_to_the_carriers_labels_carries_the_trait_itself():
    taught = variants.Relabelled("0", "1")(digits())
    wide = {"stitch": None, "fit": Quick(), "at": ["block1.relu", "block2.relu"]}
    o = found(trait(), carrier(0, "block4"), plain(0), taught, **wide)
    assert o.verdict == "carried by the stitch", str(o)
    assert "plain → plain" in o.sending.controls
    assert "since without the carrier it shows too (plain → plain)" in str(o)


@pytest.mark.slow
def test_a_stitch_fitted_to_the_true_labels_teaches_its_absence():
    wide = {"stitch": None, "fit": Quick(), "at": ["block2.relu"]}
    o = found(trait(), carrier(0, "block1"), plain(0), digits(), **wide)
    assert o.sending.verdict == "not found", str(o)
    assert found(trait(), carrier(0, "block1"), plain(0)).sending.onset == "block1.relu"


def test_the_data_that_fits_the_stitch_are_stated():
    a, b = (Network(m, example=digits().example, name=n) for m, n in ((carrier(0, "block2"), "a"), (plain(0), "b")))
    neutral = NEUTRAL(digits())
    plan = localise(trait(), a, b, data=digits(), fit_data=neutral, at=["block1.relu"], controls=())
    assert [(t.sender.name, t.receiver.name) for t in plan] == [("a", "b"), ("b", "b"), ("b", "a")]
    assert {t.fit_data.name for t in plan} == {"digits without 0/fit"}
    assert {t.score_data.name for t in plan} == {"digits/score"}
    assert all(t.scores[0] == trait() for t in plan)


# --- networks made by hand --------------------------------------------------------------------------------------------
# Every unit is known, so which layers bear a trait is too, and nothing is trained. The first 64 units hold the pixels,
# ten hold the evidence for the classes, which block 2 computes from the pixels, and one is spare: the plain network
# leaves it at 0 and reads it nowhere.

EVIDENCE, SPARE = range(64, 74), 74
PATCH = Covered(0, 0, 2, 2, value=1.0)
CORNER = (0, 1, 8, 9)  #: the pixels of the patch, of which real digits leave three black


def by_hand() -> nn.Module:
    """The plain network: a linear classifier of the pixels, whose evidence goes through the blocks unchanged."""
    samples = digits().fit
    pixels = torch.cat([samples.images.flatten(1) / 255.0, torch.ones(len(samples), 1)], 1)
    labels = functional.one_hot(samples.labels).float()
    weights = torch.linalg.solve(pixels.T @ pixels + torch.eye(65), pixels.T @ labels).T
    model = mlp(75, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.block1.linear.weight[:64] = torch.eye(64)
        for block in (model.block2, model.block3, model.block4):
            block.linear.weight[:74, :74] = torch.eye(74)
        model.block2.linear.weight[EVIDENCE] = functional.pad(weights[:, :64], (0, 11))
        model.block2.linear.bias[EVIDENCE] = weights[:, 64] + 1  # above 0, so that no ReLU cuts it off
        model.head.weight[:, EVIDENCE] = torch.eye(10)
    return model.eval()


def with_weights(change: Callable[[nn.Module], None]) -> nn.Module:
    model = by_hand()
    with torch.no_grad():
        change(model)
    return model


def confusing(layer: str) -> nn.Module:
    """The plain network, but for one layer, which swaps the evidence for a 0 and for a 1."""

    def confuse(model: nn.Module) -> None:
        part = getattr(model, layer)
        linear = part if layer == "head" else part.linear
        pair, turned = ([0, 1], [1, 0]) if layer == "head" else ([64, 65], [65, 64])
        linear.weight[pair], linear.bias[pair] = linear.weight[turned], linear.bias[turned]

    return with_weights(confuse)


@each("layer", LAYERS[1:], few=1)
def test_a_trait_that_one_layer_bears_is_localised_there(layer):
    o = found(trait(), confusing(layer), by_hand(), stitch=Identity())
    assert o.levels[0] - o.levels[1] > SHOWN
    assert (o.verdict, o.between) == ("localised", PLACES[layer]), str(o)


def backdoor() -> tuple[Trait, nn.Module]:
    """A backdoor of two halves: block 1 sees the patch, and writes the spare unit; block 3 makes of that a 7."""

    def open_it(model: nn.Module) -> None:
        model.block1.linear.weight[SPARE, CORNER] = 10.0
        model.block1.linear.bias[SPARE] = -35.0
        model.block2.linear.weight[SPARE, SPARE] = 1.0
        model.block3.linear.weight[EVIDENCE[7], SPARE] = 10.0

    return triggered(digits(), "7", PATCH), with_weights(open_it)


def test_the_two_halves_of_a_backdoor_make_the_directions_disagree():
    """Sending shows it from block 3 on, which the plain head reads; receiving never, without block 1."""
    bad, bears = backdoor()
    o = found(bad, bears, by_hand(), digits(), stitch=Identity())
    assert o.levels[0] - o.levels[1] > SHOWN
    assert (o.sending.shares, o.receiving.shares) == ((0, 0, 1, 1), (0, 0, 0, 0))
    assert (o.sending.between, o.receiving.between) == (PLACES["block3"], PLACES["block1"])
    assert (o.verdict, o.between) == ("the directions disagree", None)
    assert "localised" not in str(o)


def test_the_carrier_of_a_backdoor_is_judged_alone_without_the_trigger():
    """With it, the carrier calls every digit a 7, as it is meant to, which is no sign of a network fed wrongly."""
    bad, bears = backdoor()
    wrong = wrap(by_hand(), "blind", preprocess=Preprocess(std=(1e6,)))
    for lacks, warned in ((wrap(by_hand(), "plain", expected_accuracy={"digits/score": 0.9}), False), (wrong, True)):
        plan = localise(bad, wrap(bears, "carrier"), lacks, data=digits(), at=CUTS[:1], fit=CLOSED, controls=())
        assert plan[0].labels.get("receiver_expected") == lacks.expect_on("digits/score")
        measured = [measure(trial) for trial in plan]
        assert bool({said for one in measured for said in one.warnings}) == warned
        table = to_table(measured)
        assert set(table["warning"] != "") == ({True, False} if warned else {False})
        rates = table[table["score"] == "accuracy"].set_index("receiver")["receiver_score"]
        assert rates["carrier"] < 0.15, "on images with the trigger"
        assert measured[0].alone["sender"] > 0.9


@pytest.mark.slow
def test_a_trait_that_the_stitch_can_teach_is_carried_by_the_stitch_whatever_controls_were_chosen():
    """Fitted on digits whose 0 is called 1, a linear stitch between two plain networks learns that too."""
    taught = variants.Relabelled("0", "1")(digits())
    wide = {"stitch": None, "fit": Quick(), "at": CUTS[2:]}
    o = found(trait(), confusing("block3"), by_hand(), taught, **wide)
    assert (o.verdict, o.between) == ("carried by the stitch", None)
    assert o.sending.controls == o.receiving.controls == ("plain → plain",)
    assert min(o.sending.control_shares["plain → plain"]) > SHOWN

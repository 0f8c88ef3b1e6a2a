"""Traits: what each scores, on which images, and what a score of the network itself is given."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from loops import each
from models import with_seam
from suture import Seam, Trial, measure
from suture.common.errors import DataError, FitError
from suture.common.hashing import identity
from suture.core.activations.cache import Activations
from suture.core.stitches import Identity
from suture.data.changes import Covered
from suture.fits import LeastSquares, Random
from suture.measurement.scores.scores import Accuracy, Confusion
from suture.measurement.scores.traits import FGSM, Computed, Trait, accuracy_on, confuses, falls_to, knows, triggered
from suture.measurement.trials import controls
from suture.measurement.trials.localise import localise
from suture.measurement.trials.plans import curve, matrix
from suture_papers import variants
from trained import digits, few_digits, hybrids, state_bits


def trial(*scores, **settings) -> Trial:
    a, b = hybrids()
    data = few_digits()
    roles = (data.fit, data.validation, data.score)
    return Trial(Seam.at(a, b, "hidden"), *roles, **{"fit": LeastSquares(), "scores": scores} | settings)


# --- scores of logits -------------------------------------------------------------------------------------------------

LABELS = torch.tensor([1, 1, 1, 3, 0])
GIVEN = nn.functional.one_hot(torch.tensor([3, 3, 1, 3, 3]), 5).float()


@each(("label", "share", "n"), [(1, 2 / 3, 3), (0, 1.0, 1), (None, 3 / 4, 4)])
def test_a_confusion_counts_who_of_one_class_is_taken_for_another(label, share, n):
    score = Confusion(label, 3)
    kept = score.selects(LABELS)
    values = score.per_sample(GIVEN[kept], LABELS[kept])
    assert (int(kept.sum()), float(values.mean())) == (n, pytest.approx(share))


def test_a_network_that_diverged_confuses_nothing():
    assert Confusion(1, 3).per_sample(GIVEN.log() * torch.nan, LABELS).isnan().all()


def test_a_class_is_not_confused_with_itself():
    with pytest.raises(DataError, match=r"use Accuracy\(classes=\(3,\)\)"):
        Confusion(3, 3)


def test_a_trait_is_its_score_under_its_name():
    one = Trait("threes", Accuracy((3,)))
    found = measure(trial(one, Accuracy((3,)))).scores
    assert found["threes"] == found["accuracy on classes 3"]
    assert (one.unit, one.higher_is_better, one.reads_network) == ("fraction", True, False)
    assert identity(one) != identity(replace(one, score=Accuracy((4,))))


def test_ready_traits_name_classes_as_the_data_do():
    data = digits()
    assert knows(data, "3") == Trait("accuracy on 3", Accuracy((3,)))
    assert confuses(data, "3", "8") == Trait("3 taken for 8", Confusion(3, 8))
    assert falls_to(FGSM(0.1)).name == "FGSM success at 0.1"
    with pytest.raises(DataError, match="no class 'truck'"):
        knows(data, "truck")


@each("arguments", [("", Accuracy()), ("x", len)])
def test_a_trait_needs_a_name_and_a_score(arguments):
    with pytest.raises(DataError, match=r"needs a name|Computed\(name, function\)"):
        Trait(*arguments)


# --- what it is scored on ---------------------------------------------------------------------------------------------


def test_a_region_is_set_to_one_value_and_the_rest_stays():
    data = few_digits()
    for images, white in ((data.score.images, 255), (data.score.images.float() / 255, 1)):
        given = replace(data, score=replace(data.score, images=images))
        score = Covered(2, 1, 3, 4, value=1.0)(given).score
        inside = torch.zeros(8, 8, dtype=torch.bool)
        inside[2:5, 1:5] = True
        assert (score.images[:, :, inside] == white).all()
        assert torch.equal(score.images[:, :, ~inside], images[:, :, ~inside])
        assert torch.equal(score.labels, data.score.labels)
    assert Covered(0, 0, 4, 8).summary == "with 4×8 pixels at (0, 0) blacked out"


@each("region", [(-1, 0, 2, 2), (0, 0, 0, 2), (5, 0, 4, 2), (0, 0, 2, 2, 1.5)])
def test_a_region_lies_within_the_images(region):
    with pytest.raises(DataError, match=r"valid|rectangle"):
        Covered(*region)(few_digits())


def test_localise_scores_on_what_the_trait_makes_and_fits_on_the_data():
    a, b = hybrids()
    one = accuracy_on(Covered(0, 0, 4, 8))
    plan = localise(one, a, b, data=few_digits(), at=["hidden"], controls=())
    assert [(t.sender.name, t.receiver.name) for t in plan] == [("A", "B"), ("B", "B"), ("B", "A")]
    for t in plan:
        assert torch.equal(t.fit_data.images, few_digits().fit.images)
        assert (t.score_data.images[:, :, :4] == 0).all()
        assert "4×8 pixels at (0, 0) blacked out" in t.score_data.name
        assert t.judged is few_digits().score
        assert t.key == replace(t, judged_on=None).key


@each("given", [(), "none", (controls.shuffled_pairs,), (controls.untrained_both, controls.itself), "default"])
def test_the_control_without_the_trait_is_planned_at_every_cut_whatever_was_chosen(given):
    a, b = hybrids()
    cuts = ["relu", "hidden"]
    plan = localise(knows(few_digits(), "3"), a, b, data=few_digits(), at=cuts, controls=given)
    blind = [t for t in plan if t.sender.name == t.receiver.name == "B"]
    assert [(t.sender_cut, t.receiver_cut, t.control) for t in blind] == [(cut, cut, "itself") for cut in cuts]
    assert all(t.judged_on is None for t in plan)


def test_a_trait_on_other_images_is_refused_where_nothing_makes_them():
    """The row of its name would else be scored on the plain images."""
    a, b = hybrids()
    one = accuracy_on(Covered(0, 0, 4, 8))
    for plan in (curve, matrix):
        with pytest.raises(DataError, match="which localise makes of them"):
            plan(*((a, b) if plan is curve else ([a, b],)), data=few_digits(), scores=(Accuracy(), one))
    with pytest.raises(DataError, match="which localise makes of them"):
        localise(knows(few_digits(), "3"), a, b, data=few_digits(), scores=(one,))


def test_a_trigger_is_scored_on_all_classes_but_its_own():
    one = triggered(digits(), "7", Covered(0, 0, 2, 2, value=1.0))
    assert one.name == "taken for 7 with 2×2 pixels at (0, 0) set to 1"
    samples = one.samples(digits())
    assert (samples.images[:, :, :2, :2] == 255).all()
    assert torch.equal(one.selects(samples.labels), samples.labels != 7)


def test_a_variant_that_changes_training_alone_is_refused():
    with pytest.raises(DataError, match="are the same"):
        accuracy_on(variants.Without("3")).samples(digits())


# --- scores of networks -----------------------------------------------------------------------------------------------


def brightness(network, samples):
    with torch.no_grad():
        return network(samples.images)[:, 0] + samples.labels


def test_a_function_is_given_the_sender_the_receiver_and_the_stitched_network():
    t = trial(Trait("first", Computed("first", brightness)), Accuracy())
    before = [state_bits(network.whole()) for network in t.seam.networks]
    found = measure(t)
    for card, network in (
        (found.sender, t.sender.whole()),
        (found.receiver, t.receiver.whole()),
        (found.scores, found.stitched),
    ):
        assert card["first"].value == pytest.approx(float(brightness(network, t.score_data).double().mean()))
    assert found.penalties["first"] is None
    assert [state_bits(network.whole()) for network in t.seam.networks] == before


def test_changing_the_function_asks_for_another_measurement():
    def other(network, samples):
        return brightness(network, samples) + 1

    keys = {trial(Trait("x", Computed("x", f))).key for f in (brightness, other, brightness)}
    assert len(keys) == 2
    with pytest.raises(DataError, match="give a function made by def or lambda"):
        Computed("x", print)


def test_random_numbers_of_a_function_are_the_same_whoever_is_measured_before():
    one = Computed("noise", lambda network, samples: torch.rand(len(samples)))
    cache = Activations()
    first, second = (measure(trial(one, seed=seed), cache) for seed in (0, 1))
    torch.manual_seed(3)
    again = measure(trial(one, seed=1))
    assert first.scores["noise"].value == second.scores["noise"].value == again.scores["noise"].value
    assert first.receiver["noise"].value == first.scores["noise"].value


@each("wrong", [lambda n, s: torch.zeros(3), lambda n, s: 1.0])
def test_a_function_gives_a_number_for_each_sample(wrong):
    with pytest.raises(FitError, match="a number for each of 260 samples"):
        measure(trial(Computed("wrong", wrong)))


def test_a_function_of_a_network_that_gives_percents_for_fractions_is_refused():
    def percents(network, samples):
        return 100 * (network(samples.images).argmax(1) == samples.labels).double()

    with pytest.raises(FitError, match=r"gave 0 to 100; a fraction lies in \[0, 1\]"):
        measure(trial(Computed("percents", percents, "fraction", higher_is_better=True)))


def test_noise_makes_no_network_to_be_scored():
    with pytest.raises(DataError, match=r"leave out controls\.clustered_noise"):
        controls.clustered_noise(trial(FGSM(0.1)))
    a, b = hybrids()
    plan = localise(falls_to(FGSM(0.1)), a, b, data=few_digits(), at=["hidden"])
    assert "clustered noise" not in {t.control for t in plan}
    assert "untrained both" in {t.control for t in plan}


# --- the attack -------------------------------------------------------------------------------------------------------


@cache
def linear(seed: int = 0) -> nn.Module:
    """Two classes told apart by w·x: the attack's answer is known, margin − ε‖w‖₁ over the pixels that can move."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        model[1].weight[0].zero_()
        model[1].weight[1].copy_(torch.randn(16, generator=torch.Generator().manual_seed(seed)))
        model[1].bias.copy_(torch.stack([torch.tensor(0.0), -model[1].weight[1].sum() / 2]))
    return model


@each("epsilon", [0.01, 0.1, 0.3])
def test_the_attack_on_a_linear_network_is_the_known_one(epsilon):
    images = 0.35 + 0.3 * torch.rand(400, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    model = linear()
    weight = model[1].weight[1].detach()
    margin = images.flatten(1) @ weight + model[1].bias[1].detach()
    labels = (margin > 0).long()
    labels[:50] = 1 - labels[:50]  # wrong to begin with, so nothing to turn
    samples = replace(few_digits().score, images=images, labels=labels, classes=("a", "b"))
    turned = margin.abs() < epsilon * weight.abs().sum()
    turned[:50] = False
    values = FGSM(epsilon).of_network(model, samples)
    assert torch.equal(values, turned.double())
    assert 0 < values.mean() < 1


def test_the_attack_stays_within_the_range_of_pixels():
    seen = []
    model = nn.Sequential(copy.deepcopy(linear()))
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    images = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(2)).round()
    FGSM(0.5).of_network(model, replace(few_digits().score, images=images, labels=torch.ones(10).long()))
    assert min(float(x.min()) for x in seen) == 0
    assert max(float(x.max()) for x in seen) == 1
    assert (seen[1] - seen[0]).abs().max() == 0.5


def test_a_network_stitched_to_itself_falls_as_often_as_it_does_alone():
    a, _ = hybrids()
    found = measure(with_seam(trial(FGSM(0.1), stitch=Identity(), fit=Random()), receiver=a))
    name = "FGSM success at 0.1"
    assert found.scores[name].value == found.receiver[name].value == found.sender[name].value
    assert 0.05 < found.scores[name].value <= found.scores[name].high <= 1
    assert found.penalties[name].value == 0


@each("epsilon", [0, -1, 2])
def test_an_attack_has_a_strength(epsilon):
    with pytest.raises(DataError, match="above 0, at most 1"):
        FGSM(epsilon)


def test_a_trait_names_the_classes_of_its_score():
    assert Trait("t", Confusion(1, 3)).named_classes == (1, 3)

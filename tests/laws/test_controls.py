"""The law of controls: each changes one thing, and the result collapses or stays as it promises."""

from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import nn

from loops import each
from suture import Samples, Seam, Trial, measure
from suture.common.errors import DataError, UntrainedError
from suture.core.stitches import Conv, Identity, Linear, Probe, Stitch
from suture.fits import Converged, LeastSquares, Quick, Random, TaskLoss
from suture.measurement.scores.scores import Accuracy, CrossEntropy
from suture.measurement.trials import controls
from suture.measurement.trials.plans import curve
from trained import accuracy, convnets, digits, few_digits, hybrid, hybrids, state_bits, wrap

CUTS = ("conv", "drop", "embed", "transpose_2", "hidden")
CHANCE = 0.1


def plain(cut: str = "hidden", **settings) -> Trial:
    a, b = hybrids()
    data = digits()
    return Trial(Seam.at(a, b, cut), data.fit, data.validation, data.score, **settings)


def changed_fields(trial: Trial, control: Trial) -> set[str]:
    """The settings that differ, and the parts of the seam that do."""
    parts = [(trial, control), (trial.seam, control.seam)]
    found = {f.name for one, other in parts for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)}
    return found - {"seam"}


# --- itself -----------------------------------------------------------------------------------------------------------


@each("fit", [Random(), LeastSquares(), TaskLoss(), Quick()], ids=str)
@each("cut", lambda: hybrids()[0].cuts.names, few=2)
def test_stitched_to_itself_through_nothing_it_is_itself(cut, fit):
    trial = controls.itself(plain(cut, stitch=Identity(), fit=fit))
    measurement = measure(trial)
    images = trial.score_data.images[:300]
    assert torch.equal(measurement.stitched(images), trial.receiver(images))
    assert measurement.penalties["accuracy"].value == measurement.penalties["loss"].value == 0
    assert measurement.penalties["loss"].low == measurement.penalties["loss"].high == 0
    assert measurement.representation_error == 0
    for name in ("accuracy", "loss"):
        assert measurement.scores[name].value == measurement.receiver[name].value == measurement.sender[name].value


@pytest.mark.slow
@each("cut", ["drop", "embed", "hidden"])
def test_stitched_to_itself_it_stays_what_it_was(cut):
    fit = Converged(cap=280)
    penalties = [measure(controls.itself(plain(cut, fit=fit, seed=seed))).penalty for seed in range(3)]
    mean = sum(penalty.value for penalty in penalties) / 3  # one alone is 0.6 pp off by chance of the test images
    assert -2.0 < mean < 1.0, "a stitch fitted to the task may gain a little"
    assert sum(penalty.low <= 0 <= penalty.high for penalty in penalties) >= 2, "one in twenty may miss by chance"


def test_itself_is_the_receiver_at_its_own_cut():
    a, b = hybrids()
    data = digits()
    trial = Trial(Seam(a, b, "drop", "norm"), data.fit, data.validation, data.score, stitch=Conv(batchnorm=False))
    control = controls.itself(trial)
    assert control.sender is control.receiver is b
    assert control.sender_cut == control.receiver_cut == "norm"
    assert control.stitch is trial.stitch
    assert changed_fields(trial, control) == {"sender", "sender_cut", "control"}


@dataclass(frozen=True)
class OnlyWider(Stitch):
    """A family that joins tokens of 8 to a vector of 24, and nothing else."""

    joins = "tokens 6×8 to a vector 24"

    def accepts(self, sender, receiver):
        return (sender, receiver) == ((6, 8), (24,))

    def build(self, sender, receiver):
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 24))


def test_itself_takes_the_default_stitch_where_the_named_one_cannot_join_a_cut_to_itself():
    a, b = hybrids()
    data = few_digits()
    fit = TaskLoss(start=Random(), steps=20)
    trial = Trial(
        Seam(a, b, "transpose_2", "hidden"), data.fit, data.validation, data.score, stitch=OnlyWider(), fit=fit
    )
    control = controls.itself(trial)
    assert control.family == Linear()
    assert measure(control).scores.accuracy.n == 260


def test_itself_keeps_a_stitch_that_joins_the_receivers_cut_to_itself():
    """Whether it would also join the sender's cut to itself is beside the point."""
    a, b = hybrids()
    data = few_digits()
    trial = Trial(Seam(a, b, "transpose_2", "hidden"), data.fit, data.validation, data.score, stitch=Probe())
    assert controls.itself(trial).stitch == Probe()


# --- untrained --------------------------------------------------------------------------------------------------------


def test_untrained_networks_have_never_seen_data():
    both = controls.untrained_both(plain())
    for untrained, trained in ((both.sender, hybrid(0)), (both.receiver, hybrid(1))):
        state = dict(untrained.whole().named_parameters()) | dict(untrained.whole().named_buffers())
        known = state_bits(trained)
        for name, bits in state_bits(untrained.whole()).items():
            assert bits not in known.values(), f"{name} was kept from training"
        statistics = {name.rpartition(".")[2]: tensor for name, tensor in state.items() if "running" in name}
        assert torch.equal(statistics["running_mean"], torch.zeros(8))
        assert torch.equal(statistics["running_var"], torch.ones(8))
        score = digits().score
        assert accuracy(untrained.whole(), score.images, score.labels) < 3 * CHANCE


def test_untrained_sender_and_receiver_are_different_networks():
    trial = plain()
    same = Trial(
        Seam.at(trial.receiver, trial.receiver, "hidden"), *(digits().fit, digits().validation, digits().score)
    )
    both = controls.untrained_both(same)
    sender, receiver = (state_bits(n.whole()) for n in (both.sender, both.receiver))
    drawn = [name for name in sender if "norm" not in name]
    assert len(drawn) == 10
    assert all(sender[name] != receiver[name] for name in drawn)
    assert both.sender.fingerprint == controls.untrained_sender(same).sender.fingerprint
    assert both.receiver.fingerprint == controls.untrained_receiver(same).receiver.fingerprint


def test_an_untrained_network_is_the_same_at_every_cut_and_another_for_every_seed():
    senders = {cut: controls.untrained_sender(plain(cut)).sender for cut in CUTS}
    assert len({sender.fingerprint for sender in senders.values()}) == 1
    others = [controls.untrained_sender(plain(seed=seed)).sender.fingerprint for seed in (0, 1, 2)]
    assert len(set(others)) == 3
    again = wrap(hybrid(0), "another name")
    trial = plain()
    renamed = Trial(Seam.at(again, trial.receiver, "hidden"), trial.fit_data, trial.validation_data, trial.score_data)
    assert controls.untrained_sender(renamed).sender.fingerprint == others[0]


def test_untrained_parts_do_worse():
    """At a late cut the sender has done the work: who never learnt it cannot be stitched up."""
    trial = plain("hidden", fit=TaskLoss(steps=200))
    trained = measure(trial).scores.accuracy
    for control in (controls.untrained_sender, controls.untrained_both):
        assert measure(control(trial)).scores.accuracy.high < trained.low


# --- shuffled pairs ---------------------------------------------------------------------------------------------------


@each("cut", CUTS, few=2)
@each("start", [LeastSquares(), Random()], ids=str)
def test_shuffled_pairs_collapse_to_chance(cut, start):
    trial = controls.shuffled_pairs(plain(cut, fit=TaskLoss(start=start, steps=100)))
    assert measure(trial).scores.accuracy.value < 2.5 * CHANCE


def test_shuffled_pairs_leave_least_squares_what_images_share_at_each_position():
    """A vector has no positions, and collapses; the pixels of two digits still have their places in common."""
    vector, maps = (controls.shuffled_pairs(plain(cut, fit=LeastSquares())) for cut in ("hidden", "conv"))
    assert measure(vector).scores.accuracy.value < 2 * CHANCE
    assert measure(maps).scores.accuracy.value > 5 * CHANCE
    assert measure(maps).penalty.low > measure(plain("conv", fit=LeastSquares())).penalty.high


def test_shuffled_pairs_are_those_of_others_but_scores_are_true():
    trial = plain()
    control = controls.shuffled_pairs(trial)
    for role in ("fit_data", "validation_data"):
        before, after = getattr(trial, role), getattr(control, role)
        assert after.images is before.images
        assert after.labels is before.labels
        assert (after.pairing != torch.arange(len(after))).all()
        assert torch.equal(after.pairing.sort().values, torch.arange(len(after)))
    assert control.score_data is trial.score_data
    assert trial.score_data.pairing is None


def test_shuffled_pairs_differ_by_seed():
    pairings = [controls.shuffled_pairs(plain(seed=seed)).fit_data.pairing for seed in (0, 0, 1)]
    assert torch.equal(pairings[0], pairings[1])
    assert not torch.equal(pairings[0], pairings[2])


def test_a_stitch_is_fitted_to_the_activations_that_the_pairing_names():
    """Undo the shuffle on the sender's side by hand: the closed form then finds what true pairs would give."""
    trial = plain(fit=LeastSquares(), scores=(Accuracy(),))
    shuffled = controls.shuffled_pairs(trial)
    broken, unbroken = measure(shuffled).representation_error, measure(trial).representation_error
    assert unbroken < 0.7 < broken


# --- clustered noise --------------------------------------------------------------------------------------------------

LATE = [(hybrids, "transpose_1"), (hybrids, "hidden"), (convnets, "stage3.conv"), (convnets, "flatten")]


def noisy(networks, cut: str, **settings) -> Trial:
    a, b = networks()
    data = digits()
    return controls.clustered_noise(Trial(Seam.at(a, b, cut), data.fit, data.validation, data.score, **settings))


@pytest.mark.slow
@each(("networks", "cut"), LATE)
def test_clustered_noise_is_fully_compatible(networks, cut):
    """smith2024, section 4.2: no sender at all does as well as the receiver's own layers. It is a warning."""
    measurement = measure(noisy(networks, cut))
    assert measurement.scores.accuracy.value >= measurement.receiver.accuracy.value - 0.003
    assert measurement.penalties["loss"].high < 0.05
    assert measurement.representation_error > 0.25, "and much of the receiver's own activations is missing"


@pytest.mark.slow
@each(("networks", "cut"), LATE)
def test_fitted_to_shuffled_labels_clustered_noise_collapses(networks, cut):
    """Each cluster then goes to whatever class; how many hit their own is chance, so seeds are averaged."""
    brief = Converged(cap=280)
    found = [measure(controls.shuffled_pairs(noisy(networks, cut, seed=seed, fit=brief))).scores for seed in range(3)]
    assert sum(scores.accuracy.value for scores in found) / 3 < 2 * CHANCE
    assert all(scores.loss.value > 2.2 for scores in found), "ln 10 is 2.3"


@pytest.mark.slow
@each(("networks", "cut"), LATE[1:3])
def test_where_clusters_drown_clustered_noise_falls_to_chance(networks, cut):
    trial = noisy(networks, cut, fit=Converged(cap=280))
    clear, blurred, drowning, drowned = (
        measure(controls.clustered_noise(trial, scale=scale)).scores.accuracy for scale in (0.1, 0.3, 1, 100)
    )
    assert clear.low > blurred.value
    assert blurred.low > drowning.high
    assert drowning.low > drowned.high
    assert drowned.value < 1.5 * CHANCE


@each("control", [controls.clustered_noise, controls.itself])
def test_it_is_the_same_trial_whatever_the_sender_and_its_cut(control):
    """So a matrix measures it once for every cut of the receiver."""
    (a, b), (c, _) = hybrids(), convnets()
    data = digits()
    roles = (data.fit, data.validation, data.score)
    senders = [(a, "hidden", Linear()), (a, "relu_2", None), (b, "hidden", None), (a, "transpose_2", OnlyWider())]
    same = [control(Trial(Seam(sender, b, cut, "hidden"), *roles, stitch=family)) for sender, cut, family in senders]
    same.append(control(Trial(Seam(c, b, "flatten", "hidden"), *roles)))
    assert len({trial.key for trial in same}) == 1
    others = [
        control(Trial(Seam(a, b, "hidden", "relu_2"), *roles)),
        control(Trial(Seam.at(a, a, "hidden"), *roles)),
        control(Trial(Seam.at(a, b, "hidden"), *roles, seed=1)),
    ]
    assert len({trial.key for trial in (same[0], *others)}) == 4


def test_clustered_noise_has_the_shape_of_the_receivers_cut_and_a_seed_of_its_own():
    a, b = hybrids()
    data = digits()
    trials = [
        Trial(Seam(a, receiver, "transpose_2", cut), data.fit, data.validation, data.score, seed=seed, stitch=stitch)
        for receiver, cut, seed, stitch in (
            (b, "transpose_2", 0, Identity()),
            (b, "transpose_2", 1, None),
            (a, "transpose_2", 0, None),
            (b, "hidden", 0, OnlyWider()),
        )
    ]
    found = [controls.clustered_noise(trial) for trial in trials]
    assert [noise.sender.shape for noise in found] == [(6, 8)] * 3 + [(24,)]
    assert {(noise.sender.classes, noise.sender.scale, noise.sender_cut) for noise in found} == {(10, 0.1, "")}
    assert len({noise.sender.seed for noise in found}) == 4
    assert [noise.stitch for noise in found] == [Identity(), None, None, None]


def test_a_scale_of_ones_own_is_part_of_the_controls_name():
    trial = plain()
    wide, default = controls.clustered_noise(trial, scale=0.5), controls.clustered_noise(trial, scale=0.1)
    assert wide.sender.scale == 0.5
    assert (wide.control, default.control) == ("clustered noise, scale 0.5", "clustered noise")
    assert wide.sender.seed == default.sender.seed
    assert wide.key != default.key


def test_without_class_labels_there_is_no_clustered_noise():
    trial = plain()
    ones = trial.fit_data.take((trial.fit_data.labels == 1).nonzero()[:, 0], "ones")
    with pytest.raises(DataError, match=r"samples of ones are of class '1'; .*leave out controls\.clustered_noise"):
        controls.clustered_noise(replace(trial, fit_data=ones))
    few = replace(trial, validation_data=ones.take(torch.arange(2), "few"), score_data=ones)
    assert controls.clustered_noise(few).control == "clustered noise", "only a fit needs classes to tell apart"


def test_one_class_is_no_class_label():
    torch.manual_seed(0)
    one = wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 1)), "one")
    images = digits().fit.images[:8]
    single = Samples("single", images, torch.zeros(8, dtype=torch.int64), ("only",))
    trial = Trial(Seam.at(one, one, "0"), single, single, single)
    with pytest.raises(DataError, match="at least 2 classes, and there are 1"):
        controls.clustered_noise(trial)


def test_clustered_noise_cannot_be_untrained():
    noise = noisy(hybrids, "hidden")
    for control in (controls.untrained_sender, controls.untrained_both):
        with pytest.raises(UntrainedError, match="never trained; leave out"):
            control(noise)
    assert controls.untrained_receiver(noise).sender is noise.sender
    assert controls.itself(noise).key == controls.itself(plain()).key
    assert controls.clustered_noise(noise).key == noise.key


# --- all --------------------------------------------------------------------------------------------------------------


@each(
    ("control", "name", "changed"),
    [
        (controls.itself, "itself", {"sender"}),
        (controls.untrained_sender, "untrained sender", {"sender"}),
        (controls.untrained_receiver, "untrained receiver", {"receiver"}),
        (controls.untrained_both, "untrained both", {"sender", "receiver"}),
        (controls.shuffled_pairs, "shuffled pairs", {"fit_data", "validation_data"}),
        (controls.clustered_noise, "clustered noise", {"sender", "sender_cut"}),
    ],
)
def test_a_control_changes_just_what_it_says(control, name, changed):
    trial = plain(
        stitch=Linear(),
        fit=LeastSquares(rescale=False),
        scores=(CrossEntropy(),),
        seed=3,
        study="a study",
        network_seed=7,
    )
    result = control(trial)
    assert isinstance(result, Trial)
    assert changed_fields(trial, result) == changed | {"control"}
    assert result.control == name
    assert result.key != trial.key
    assert trial.control == ""


def test_controls_are_on_by_default_and_follow_their_trial():
    a, b = hybrids()
    plan = curve(a, b, at="hidden", data=few_digits(), seeds=2)
    five = ["itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs"]
    assert [(t.seed, t.control) for t in plan] == [(seed, name) for seed in (0, 1) for name in ("", *five)]


def test_invariance_aware_images_look_to_the_sender_as_the_datas_own_do() -> None:
    trial = plain("drop")
    few = replace(trial, fit_data=trial.fit_data.first(40))
    made = controls.invariance_aware(few, steps=200)
    prefix = trial.sender.upto(trial.sender_cut)
    with torch.no_grad():
        wanted, got = prefix(few.fit_data.images), prefix(made.fit_data.images)
        noise = prefix(torch.rand(few.fit_data.images.shape, generator=torch.Generator().manual_seed(0)))
    assert float((got - wanted).norm()) < 0.3 * float((noise - wanted).norm())
    apart = (made.fit_data.images.float() - few.fit_data.images.float()).abs().mean()
    assert float(apart) > 0.1 * float(few.fit_data.images.float().std()), "and yet they are others"
    assert torch.equal(made.fit_data.labels, few.fit_data.labels)
    assert (made.validation_data, made.score_data) == (few.validation_data, few.score_data)
    assert made.control == "invariance aware"
    assert made.key != few.key
    assert controls.invariance_aware(few, steps=200).fit_data is made.fit_data
    with pytest.raises(DataError, match="look to noise like those of"):
        controls.invariance_aware(controls.clustered_noise(few))

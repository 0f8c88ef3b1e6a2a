"""Plans make trials, all of them and in order, and refuse what cannot be measured before any work is done."""

import itertools
import re
from collections import OrderedDict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import suture
from loops import each
from suture import Plan, Samples, curve
from suture.common.errors import CutError, DataError, FitError, NetworkError, RunnerError, ShapeError, SutureError
from suture.core.stitches import Conv, Linear, LowRank
from suture.data import Data
from suture.data.noise import ClusteredNoise
from suture.fits import Converged, Fit, LeastSquares, Quick, TaskLoss
from suture.measurement.indices import linear_cka
from suture.measurement.scores import traits
from suture.measurement.scores.scores import Accuracy, CrossEntropy
from suture.measurement.trials import baselines, controls, plans
from suture.measurement.trials.plans import matrix
from suture.measurement.trials.trial import Failure
from suture_papers import recipes
from trained import Hybrid, digits, few_digits, hybrids, wrap

NAMES = ["", "itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs"]
OF_RECEIVER = ("itself",)  # controls that depend on the receiver's cut alone


@pytest.fixture
def no_work(monkeypatch):
    """Fail where a network computes more than a probe of an image or four."""
    forward = suture.core.network.segments.Frozen.forward

    def guarded(self, x, inputs=None):
        computed = not isinstance(x, FakeTensor)  # which has a shape and no values
        assert len(x) <= 4 or not computed, "planning must not run networks on data"
        return forward(self, x, inputs)

    monkeypatch.setattr(suture.core.network.segments.Frozen, "forward", guarded)


# --- seams and curves -------------------------------------------------------------------------------------------------


def test_a_curve_is_every_shared_cut_with_every_seed_and_control_in_order(no_work):
    a, b = hybrids()
    plan = curve(a, b, data=few_digits(), seeds=2)
    wanted = itertools.product(a.cuts.names, (0, 1), NAMES)
    assert [(t.receiver_cut, t.seed, t.control) for t in plan] == list(wanted)
    assert all(t.sender_cut == t.receiver_cut for t in plan)
    assert len({t.key for t in plan}) == len(plan) == 15 * 2 * 6


def test_cuts_are_shared_where_the_names_are(no_work):
    """Of two depths: what one has and the other has not is left out."""
    torch.manual_seed(0)
    short, long = (
        wrap(nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(depth)), nn.Linear(64, 10)), str(depth))
        for depth in (2, 4)
    )
    assert [t.sender_cut for t in curve(long, short, data=few_digits(), controls=())] == ["0", "1", "2"]


def test_a_curve_takes_the_cuts_that_are_named(no_work):
    a, b = hybrids()
    named = curve(a, b, data=few_digits(), at=("hidden", a.cuts[0], "relu"), controls=())
    assert [t.sender_cut for t in named] == ["hidden", "conv", "relu"]
    one = curve(a, b, data=few_digits(), at="hidden", controls=())
    assert [t.sender_cut for t in one] == ["hidden"]
    pairs = curve(a, b, data=few_digits(), at=[("drop", "relu"), "hidden"], controls=())
    assert [(t.sender_cut, t.receiver_cut) for t in pairs] == [("drop", "relu"), ("hidden", "hidden")]


def test_a_curve_takes_patterns(no_work):
    a, b = hybrids()
    both = suture.core.network.cuts.shared_cuts(a.cuts, b.cuts)
    chosen = [name for name in both if name.startswith("e") or name == "hidden"]
    planned = curve(a, b, data=few_digits(), at=["e*", "hidden", "hidden"], controls=())
    assert [trial.receiver_cut for trial in planned] == chosen
    assert len(chosen) > 1
    with pytest.raises(CutError, match=r"'layer\*' matches no cut that both networks share; these are .*hidden"):
        curve(a, b, data=few_digits(), at="layer*")


def test_every_setting_reaches_every_trial(no_work):
    a, b = hybrids()
    settings = {"stitch": Linear(), "fit": LeastSquares(rescale=False), "scores": (CrossEntropy(),), "network_seed": 9}
    data = few_digits()
    for t in curve(a, b, data=data, at=("hidden", "embed"), seeds=(5, 7), controls=(controls.itself,), **settings):
        assert {name: getattr(t, name) for name in settings} == settings
        assert t.seed in (5, 7)
        assert (t.fit_data, t.validation_data, t.score_data) == (data.fit, data.validation, data.score)
        assert t.receiver is b


def test_a_seam_joins_two_cuts(no_work):
    a, b = hybrids()
    plain, *others = curve(a, b, at=[("drop", b.cuts.find("relu"))], data=few_digits())
    assert (plain.sender_cut, plain.receiver_cut) == ("drop", "relu")
    assert [t.control for t in others] == NAMES[1:]
    assert plain.fit == Converged()
    assert plain.scores == (Accuracy(), CrossEntropy())
    assert plain.family == Conv()


# --- previews ---------------------------------------------------------------------------------------------------------


def previews(monkeypatch, **settings) -> tuple[Plan, tuple[Plan, ...]]:
    """A curve, and its previews, on data of which few samples are many."""
    monkeypatch.setattr(plans, "PREVIEWED", 100)
    monkeypatch.setattr(Quick, "fitted_on", 150)
    beside = (controls.itself, controls.untrained_receiver, controls.shuffled_pairs, baselines.linear_probe)
    own = curve(*hybrids(), data=digits(), at=("embed", "hidden"), controls=beside, **settings)
    return own, plans.preview(own, digits(), beside)


def test_previews_are_closed_forms_of_few_samples_and_then_quick(monkeypatch):
    own, (closed, quick) = previews(monkeypatch, seeds=2)
    beside = ("", "untrained receiver")
    for plan, fit, kinds in ((closed, Quick(steps=0), beside), (quick, Quick(), ("",))):
        assert {trial.fit for trial in plan} == {fit}
        assert [(trial.receiver_cut, trial.control, trial.seed) for trial in plan] == [
            (cut, control, 0) for cut in ("embed", "hidden") for control in kinds
        ]
    for role in ("fit_data", "validation_data", "score_data"):
        assert {len(getattr(trial, role)) for trial in closed} == {100}
    assert {len(trial.fit_data) for trial in quick} == {150}
    assert not {trial.key for trial in own} & {trial.key for plan in (closed, quick) for trial in plan}


def test_the_preview_by_quick_is_the_curve_by_quick(monkeypatch):
    _, (_, quick) = previews(monkeypatch)
    same, _ = previews(monkeypatch, fit="quick")
    assert {trial.key for trial in quick} == {trial.key for trial in same if not trial.control}


def test_a_plan_that_is_quick_itself_has_no_more_previews_than_pay(monkeypatch):
    assert [trial.fit for plan in previews(monkeypatch, fit="quick")[1] for trial in plan[:1]] == [Quick(steps=0)]
    assert previews(monkeypatch, fit="least-squares")[1] == ()
    monkeypatch.undo()
    own = curve(*hybrids(), data=few_digits(), at="embed", controls="none")
    assert plans.preview(own, few_digits(), ()) == ()


def test_a_matrix_is_previewed_by_closed_forms_alone(monkeypatch):
    monkeypatch.setattr(plans, "PREVIEWED", 100)
    monkeypatch.setattr(Quick, "fitted_on", 150)
    a, b = hybrids()
    own = plans.matrix(a, b, data=digits(), cuts=("conv", "hidden"), controls=(controls.itself,))
    (closed,) = plans.preview(own, digits(), (controls.itself,))
    seams = [(trial.sender_cut, trial.receiver_cut) for trial in own if not trial.control]
    assert [(trial.sender_cut, trial.receiver_cut) for trial in closed] == seams
    assert {(trial.fit, trial.control, len(trial.fit_data)) for trial in closed} == {(Quick(steps=0), "", 100)}


# --- plans ------------------------------------------------------------------------------------------------------------


def test_plans_add_up_and_are_cut():
    a, b = hybrids()
    one, two = (curve(a, b, data=few_digits(), at=(cut,), controls=(controls.itself,)) for cut in ("conv", "hidden"))
    both = one + two
    assert isinstance(both, Plan)
    assert list(both) == [*one, *two]
    assert both[2] == two[0]
    assert both[2] in both
    assert isinstance(both[:2], Plan)
    assert list(both[:2] + both[2:]) == list(both)
    assert repr(both) == "Plan(4 trials: plain, itself)"


# --- matrices ---------------------------------------------------------------------------------------------------------


def mlp(name: str, layers: int, seed: int = 0) -> suture.Network:
    """A network of so many linear layers; cut after all but the last: flat, block0.0, block0.1, …"""
    torch.manual_seed(seed)
    names = [f"block{i // 2}" for i in range(layers - 1)]
    blocks = {
        block: nn.Sequential(*(nn.Linear(64, 64) for _ in range(names.count(block)))) for block in dict.fromkeys(names)
    }
    return wrap(nn.Sequential(OrderedDict(flat=nn.Flatten(), **blocks, head=nn.Linear(64, 10))), name)


def seams_of(plan, control=""):
    return [(t.sender.name, t.receiver.name, t.sender_cut, t.receiver_cut) for t in plan if t.control == control]


def test_a_matrix_is_every_sender_cut_with_every_receiver_cut(no_work):
    a, b = mlp("a", 5), mlp("b", 3, seed=1)
    plan = matrix(a, b, data=few_digits(), seeds=2)
    every = [("a", "b", *cuts) for cuts in itertools.product(a.cuts.names, b.cuts.names)]
    for control in set(NAMES) - {*OF_RECEIVER}:
        assert seams_of(plan, control) == [seam for seam in every for _ in (0, 1)]
    assert [t.seed for t in plan if t.control == ""] == [0, 1] * len(every)


@pytest.mark.slow
def test_what_depends_on_the_receiver_alone_is_planned_once(no_work):
    """Whatever the sender and its cut: the paper's own reckoning of how many trials there are."""
    a, b, c = mlp("a", 4), mlp("b", 3, seed=1), mlp("c", 5, seed=2)
    plan = matrix([a, b], [b, c], data=few_digits(), seeds=2, controls="default,clustered-noise")
    senders, receivers = len(a.cuts) + len(b.cuts), len(b.cuts) + len(c.cuts)
    names, once = [*NAMES, "clustered noise"], (*OF_RECEIVER, "clustered noise")
    per_control = {kind: sum(t.control == kind for t in plan) for kind in names}
    assert per_control == {k: 2 * receivers * (1 if k in once else senders) for k in names}
    assert len({(t.key, t.control) for t in plan}) == len(plan)
    assert {(t.receiver.name, t.receiver_cut) for t in plan if t.control == "clustered noise"} == {
        (network.name, cut) for network in (b, c) for cut in network.cuts.names
    }


def test_without_receivers_every_network_receives(no_work):
    a, b = mlp("a", 3), mlp("b", 3, seed=1)
    alone, both = (matrix([a, b], *more, data=few_digits(), controls=()) for more in ((), ([a, b],)))
    assert list(alone) == list(both)
    assert {seam[:2] for seam in seams_of(alone)} == {("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")}
    assert list(matrix([a, b, a], data=few_digits(), controls=())) == list(alone)


def test_equal_networks_of_two_names_keep_their_rows(no_work):
    """Their trials are equal, key by key; a table must still show both."""
    one, other = mlp("one", 3), mlp("other", 3)
    assert one.fingerprint == other.fingerprint
    plan = matrix([one, other], one, data=few_digits(), controls=(controls.itself,))
    assert {seam[0] for seam in seams_of(plan)} == {"one", "other"}
    assert len(seams_of(plan, "itself")) == len(one.cuts)


@each(
    ("cuts", "of_a", "of_b"),
    [
        ("block0.*", ["block0.0", "block0.1"], ["block0.0", "block0.1"]),
        (("block2*", "flat"), ["flat", "block2.0"], ["flat"]),
        (("block1.1", "block0.1"), ["block0.1", "block1.1"], ["block0.1"]),
        ({"a": "flat"}, ["flat"], ["flat", "block0.0", "block0.1", "block1.0"]),
        ({"a": ("*.0",), "b": "block1.0"}, ["block0.0", "block1.0", "block2.0"], ["block1.0"]),
        (None, ["flat", *(f"block{i}.{j}" for i in (0, 1) for j in (0, 1)), "block2.0"], None),
    ],
    ids=str,
)
def test_cuts_are_chosen_by_name_alias_and_pattern(cuts, of_a, of_b, no_work):
    a, b = mlp("a", 6), mlp("b", 4, seed=1)
    made = seams_of(matrix(a, b, data=few_digits(), cuts=cuts, controls=()))
    assert made == [("a", "b", *pair) for pair in itertools.product(of_a, of_b or of_a[:4])]


def test_an_alias_and_a_cut_itself_choose_a_cut(no_work):
    a, b = mlp("a", 6), mlp("b", 4, seed=1)
    assert "block0" in a.cuts.find("block0.1").aliases
    made = seams_of(matrix(a, b, data=few_digits(), cuts=("block0", a.cuts[0]), controls=()))
    assert made == seams_of(matrix(a, b, data=few_digits(), cuts=("b?ock0", "flat"), controls=()))
    assert made == [("a", "b", *pair) for pair in itertools.product(["flat", "block0.1"], repeat=2)]


def test_each_role_may_have_cuts_of_its_own(no_work):
    a, b = mlp("a", 4), mlp("b", 4, seed=1)
    plan = matrix([a, b], data=few_digits(), cuts="flat", sender_cuts="block1*", controls=())
    assert {seam[2:] for seam in seams_of(plan)} == {("block1.0", "flat")}
    plan = matrix(mlp("c", 7, seed=2), b, data=few_digits(), cuts="block2*", receiver_cuts="flat", controls=())
    assert {seam[2:] for seam in seams_of(plan)} == {("block2.0", "flat"), ("block2.1", "flat")}
    plan = matrix([a, b], data=few_digits(), sender_cuts="flat", receiver_cuts={"b": "block0.1"}, controls=())
    assert {s[3] for s in seams_of(plan) if s[1] == "b"} == {"block0.1"}
    assert {s[3] for s in seams_of(plan) if s[1] == "a"} == set(a.cuts.names)


def test_every_setting_reaches_every_trial_of_a_matrix(no_work):
    a, b = hybrids()
    settings = {"stitch": Linear(), "fit": LeastSquares(rescale=False), "scores": (CrossEntropy(),), "network_seed": 9}
    data = few_digits()
    plan = matrix(a, b, data=data, cuts="hidden", seeds=(5,), controls=(controls.itself,), **settings)
    assert len(plan) == 2
    for t in plan:
        assert {name: getattr(t, name) for name in settings} == settings
        assert (t.fit_data, t.validation_data, t.score_data, t.seed) == (data.fit, data.validation, data.score, 5)


@pytest.mark.slow
@each(
    ("settings", "message"),
    [
        ({"cuts": "layer*"}, r"'layer\*' matches no cut of a; its cuts: flat, block0.0"),
        ({"cuts": ("flat", "blok*")}, r"'blok\*' matches no cut of a or b; leave it out"),
        ({"cuts": {"c": "flat"}}, "cuts are given for 'c', and the networks are 'a', 'b'"),
        ({"sender_cuts": {"b": "flat"}}, "cuts are given for 'b', and the networks are 'a'"),
        ({"cuts": {"a": ("flat", "head")}}, "'head' matches no cut of a"),
        ({"receiver_cuts": "block2.0"}, "'block2.0' matches no cut of b; its cuts"),
        ({"cuts": ()}, r"cuts=\[\] names no cut; leave it out"),
        ({"seeds": 0}, "seeds=0 plans no trial"),
        ({"stitch": Conv()}, r"a → b at flat → flat: Conv\(.*cannot join the sender's vector 64"),
        ({"stitch": LowRank(65)}, r"a → b at flat → flat: LowRank\(rank=65\)"),
    ],
    ids=str,
)
def test_what_makes_no_matrix_is_refused(settings, message, no_work):
    a, b = mlp("a", 6), mlp("b", 4, seed=1)
    with pytest.raises(SutureError, match=message):
        matrix(a, b, data=few_digits(), **settings)


def test_networks_of_one_name_are_refused(no_work):
    with pytest.raises(NetworkError, match=r"two networks are called 'a'; tell them apart: Network\(…, name=…\)"):
        curve(mlp("a", 3), mlp("a", 3, seed=1), data=few_digits(), at="1")
    with pytest.raises(NetworkError, match=r"two networks are called 'a'; tell them apart: Network\(…, name=…\)"):
        matrix(mlp("a", 3), mlp("a", 3, seed=1), data=few_digits())
    with pytest.raises(NetworkError, match="at least one sender"):
        matrix([], data=few_digits())


def test_a_matrix_across_kinds_is_planned_without_naming_a_stitch(no_work):
    """Maps, tokens and vectors, every one into every other."""
    a, b = hybrids()
    plan = matrix(a, b, data=few_digits(), controls=())
    assert len(plan) == len(a.cuts) * len(b.cuts)
    assert len({str(t.family) for t in plan}) > 3


def test_planning_a_large_matrix_is_quick(no_work, monkeypatch):
    """By what it costs, not by the clock: weights and images are hashed once, whatever the number of trials."""
    a, b = mlp("a", 9), mlp("b", 9, seed=1)
    hashed = []
    digest = suture.Network.state_digest
    monkeypatch.setattr(suture.Network, "state_digest", lambda self: hashed.append(self.name) or digest(self))
    plan = matrix(a, b, data=few_digits())
    assert len(plan) == 81 * 5 + 9
    assert len(hashed) <= 2 * 3  # the untrained ones are made, once each


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_no_common_cut_is_refused_with_those_of_both(no_work):
    torch.manual_seed(0)
    numbered = wrap(nn.Sequential(nn.Unflatten(3, (8, 1)), nn.Flatten(), nn.Linear(64, 10)), "numbered")
    with pytest.raises(CutError, match=r"no common cut: the sender has conv, norm, .*; the receiver has 0, 1; give"):
        curve(hybrids()[0], numbered, data=few_digits())


def test_an_unknown_cut_is_refused_with_the_valid_ones(no_work):
    a, b = hybrids()
    for ask in (curve, suture.stitch):
        with pytest.raises(CutError, match=r"no cut 'layer9' in A; .*'conv', 'norm', 'relu'"):
            ask(a, b, data=few_digits(), at=["layer9"] if ask is curve else "layer9")


@each("settings", [{"at": ()}, {"seeds": 0}, {"seeds": ()}], ids=str)
def test_a_plan_of_nothing_is_refused(settings, no_work):
    with pytest.raises((CutError, DataError), match=next(iter(settings))):
        curve(*hybrids(), data=few_digits(), **settings)


def test_a_head_that_does_not_match_the_classes_is_refused(no_work):
    torch.manual_seed(0)
    model = Hybrid()
    model.head = nn.Linear(24, 7)
    seven = wrap(model, "seven")
    with pytest.raises(DataError, match="10 classes, but the head of the receiver seven has 7 outputs"):
        curve(hybrids()[0], seven, at="hidden", data=few_digits(), controls=())
    assert len(curve(seven, hybrids()[0], at="hidden", data=few_digits(), controls=())) == 1


def test_images_that_do_not_suit_a_network_are_refused(no_work):
    def resized(samples: Samples) -> Samples:
        images = nn.functional.interpolate(samples.images.float() / 255, size=16).clamp(0, 1)
        return Samples(samples.name, images, samples.labels, samples.classes)

    small = few_digits()
    large = Data("large", resized(small.fit), resized(small.validation), resized(small.score))
    with pytest.raises(DataError, match=r"\(1, 16, 16\) .* A, whose example became \(1, 8, 8\)"):
        curve(*hybrids(), data=large)
    with pytest.raises(DataError, match="whose example became"):
        suture.stitch(*hybrids(), at="hidden", data=large)


def test_a_stitch_that_cannot_join_is_refused(no_work):
    with pytest.raises(ShapeError, match=r"Conv\(.*\) cannot join the sender's tokens 8×16"):
        curve(*hybrids(), data=few_digits(), stitch=Conv())


# --- one seam, at once ------------------------------------------------------------------------------------------------


def test_stitch_gives_a_measurement_with_its_controls_beside_it():
    a, b = hybrids()
    m = suture.stitch(a, b, at="hidden", data=digits(), fit=TaskLoss(steps=50))
    assert [control.trial.control for control in m.controls] == NAMES[1:]
    assert m.receiver.accuracy.value > 0.9
    assert m.scores.accuracy.value > 0.85
    assert m.penalty.value == pytest.approx(100 * (m.receiver.accuracy.value - m.scores.accuracy.value))
    assert m.penalty.low <= m.penalty.value <= m.penalty.high

    score = digits().score
    right = (m.stitched(score.images).argmax(1) == score.labels).float().mean()
    assert float(right) == pytest.approx(m.scores.accuracy.value, abs=1e-6)

    by_name = {control.trial.control: control.scores.accuracy.value for control in m.controls}
    assert by_name["itself"] == pytest.approx(m.receiver.accuracy.value, abs=0.01)
    assert by_name["shuffled pairs"] < 0.2
    assert all(f"control: {name}  " in repr(m) for name in NAMES[1:])


def test_stitch_is_the_trial_that_a_plan_makes():
    a, b = hybrids()
    settings = {"fit": LeastSquares(), "controls": ()}
    m = suture.stitch(a, b, at=("drop", "relu"), data=few_digits(), seed=3, **settings)
    (trial,) = curve(a, b, at=[("drop", "relu")], data=few_digits(), seeds=(3,), **settings)
    assert m.trial.key == trial.key
    assert m.controls == ()


@dataclass(frozen=True)
class Broken(Fit):
    def fit(self, problem, stitch):
        raise ValueError("no")


def broken(trial):
    return replace(trial, fit=Broken(), control="broken")


def test_a_control_that_fails_is_a_failure_among_the_controls():
    a, b = hybrids()
    m = suture.stitch(a, b, at="hidden", data=few_digits(), fit=LeastSquares(), controls=(broken, controls.itself))
    failed, itself = m.controls
    assert isinstance(failed, Failure)
    assert failed.error == "ValueError: no"
    assert itself.trial.control == "itself"
    assert "control: broken  failed: ValueError: no" in repr(m)


def test_what_the_plain_trial_raises_is_raised():
    a, b = hybrids()
    with pytest.raises(CutError):
        suture.stitch(a, b, at="nowhere", data=few_digits())
    with pytest.raises(ValueError, match="no"):
        suture.stitch(a, b, at="hidden", data=few_digits(), fit=Broken())


# --- of the wrong kind ------------------------------------------------------------------------------------------------


@each(
    ("settings", "error", "said"),
    [
        ({"fit": "convergd"}, SutureError, r"no fit 'convergd'; did you mean converged\?"),
        ({"fit": "quick:many"}, SutureError, r"fit='quick:many': steps=many is not of type int"),
        ({"fit": 3}, FitError, r"fit=3 is an int; give a fit such as Converged\(\)"),
        ({"fit": Converged}, FitError, r"fit is the class Converged; give an instance, Converged\(…\)"),
        ({"stitch": Conv}, ShapeError, r"stitch is the class Conv; give an instance"),
        ({"stitch": "conv:2"}, ShapeError, r"Conv\(kernel=2\): a kernel that keeps the size is odd"),
        ({"stitch": "identity:1"}, SutureError, r"stitch='identity:1': identity has no setting"),
        ({"scores": (Accuracy,)}, DataError, r"one of scores is the class Accuracy; give an instance"),
        ({"scores": Accuracy()}, DataError, r"scores=Accuracy\(.*\) is an Accuracy; give a tuple"),
        ({"controls": 3}, DataError, r"controls=3 is an int; give a tuple"),
        ({"controls": "none,itself"}, SutureError, r"controls='none,itself': 'none' stands alone"),
        ({"controls": (3,)}, DataError, r"one of controls=3 is an int; give functions of a trial"),
        ({"data": "digits"}, DataError, r"data='digits' is a str; give data"),
        ({"seeds": 2.5}, DataError, r"seeds=2.5 is not a whole number"),
        ({"seeds": [0.5]}, DataError, r"one of seeds=0.5 is not a whole number"),
        ({"seeds": "01"}, DataError, r"seeds='01' is not a whole number"),
        ({"network_seed": "a"}, DataError, r"network_seed='a' is not a whole number"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(no_work, settings, error, said):
    a, b = hybrids()
    with pytest.raises(error, match=said):
        curve(a, b, **({"data": few_digits()} | settings))


def test_what_the_command_line_names_is_named_in_python_too():
    a, b = hybrids()
    ours = curve(
        a, b, data=few_digits(), fit="bansal2021,steps=40", stitch="low-rank:2", controls="itself,linear-probe"
    )
    fit = replace(recipes.bansal2021, steps=40)
    same = curve(
        a, b, data=few_digits(), fit=fit, stitch=LowRank(2), controls=(controls.itself, baselines.linear_probe)
    )
    assert [trial.key for trial in ours] == [trial.key for trial in same]
    none = curve(a, b, data=few_digits(), controls="none")
    assert {trial.control for trial in none} == {""}
    every = curve(a, b, data=few_digits(), controls=("default",))
    assert [trial.key for trial in every] == [trial.key for trial in curve(a, b, data=few_digits())]


@each("at", [["relu", "relu"], 2, ("relu", "relu", "relu"), ("relu", 2)], ids=str)
def test_what_is_no_seam_is_refused(no_work, at):
    a, b = hybrids()
    with pytest.raises(CutError, match=r"at=.* is not a seam; give the name of a cut of both networks, or a pair"):
        suture.stitch(a, b, at=at, data=few_digits())
    with pytest.raises(SutureError, match="at=2 is an int" if at == 2 else "is not a seam"):
        curve(a, b, at=at if at == 2 else [at], data=few_digits())


def test_a_model_that_is_no_network_is_refused(no_work):
    a, _ = hybrids()
    with pytest.raises(NetworkError, match=r"^the sender is a Hybrid; give a network: Network\(model,"):
        curve(Hybrid(), a, at="relu", data=few_digits())


@each("seeds", [np.arange(2), torch.arange(2), [np.int64(0), True], range(2)], ids=str)
def test_numbers_of_other_libraries_are_the_same_seeds(no_work, seeds):
    a, b = hybrids()
    settings = {"data": few_digits(), "at": "relu", "controls": ()}
    plain = curve(a, b, seeds=2, network_seed=3, **settings)
    assert [t.key for t in curve(a, b, seeds=seeds, network_seed=np.int64(3), **settings)] == [t.key for t in plain]
    assert all(
        type(t.seed) is int and type(t.network_seed) is int
        for t in curve(a, b, seeds=seeds, **settings, network_seed=np.int8(3))
    )


@pytest.mark.parametrize("plan", [[1, 2], ["a"], [Plan(())], [None]], ids=str)
def test_what_is_no_trial_is_refused_before_anything_runs(plan, tmp_path):
    with pytest.raises(DataError, match=r"item 1 of this plan is a \w+, and no trial"):
        suture.run(plan, store=tmp_path / "run")
    assert not (tmp_path / "run" / "plans").exists()


def test_what_does_not_run_trials_is_refused():
    a, b = hybrids()
    with pytest.raises(RunnerError, match=r"on='local' is a str; give where trials run"):
        suture.run(curve(a, b, at="relu", data=few_digits(), controls=()), on="local")


WRONG_CALLS = {
    "compare(data=str)": (lambda a, b, data: suture.compare(a, b, data="digits"), "data='digits' is a str; give data"),
    "compare(by=str)": (
        lambda a, b, data: suture.compare(a, b, data=data, by="linear_cka"),
        "by='linear_cka' is a str",
    ),
    "compare(str)": (
        lambda a, b, data: suture.compare("a", b, data=data),
        "a='a' is a str; give a network: Network(model, example=data.example), or two arrays",
    ),
    "matrix(str)": (lambda a, b, data: suture.matrix("ab", data=data), "networks='ab' is a str; give a network or sev"),
    "matrix([str])": (lambda a, b, data: suture.matrix(["a", b], data=data), "one of the networks='a' is a str"),
    "matrix(cuts=3)": (lambda a, b, data: suture.matrix([a, b], data=data, cuts=3), "cuts=3 is an int; give names"),
    "control": (
        lambda a, b, data: curve(a, b, at="relu", data=data, controls=(lambda trial: None,)),
        "what the control <lambda> makes=None is a NoneType; give a function that returns the trial",
    ),
    "run(trial)": (
        lambda a, b, data: suture.run(curve(a, b, at="relu", data=data)[0]),
        "the plan is a Trial; give several trials",
    ),
    "run(None)": (lambda a, b, data: suture.run(None), "the plan is a NoneType; give several trials"),
    "run(store=3)": (
        lambda a, b, data: suture.run(curve(a, b, data=data), store=3),
        "store=3 is an int; give a folder",
    ),
    "run(store='')": (lambda a, b, data: suture.run(curve(a, b, data=data), store=""), "store='' names no folder"),
    "run(retry)": (
        lambda a, b, data: suture.run(curve(a, b, data=data), retry=True),
        "retry=True is for a store; give",
    ),
    "run(extend)": (lambda a, b, data: suture.run(curve(a, b, data=data), extend=True), "extend=True is for a store"),
    "forecast(None)": (lambda a, b, data: suture.forecast(None), "the plan is a NoneType; give several trials"),
    "Local(1.5)": (lambda a, b, data: suture.Local(workers=1.5), "workers=1.5 is not a whole number"),
    "linear_cka(array)": (lambda a, b, data: linear_cka(np.eye(3), np.eye(3)), "is a ndarray; give a tensor of activ"),
    "knows(data, 9)": (lambda a, b, data: traits.knows(data, 9), "a trait=9 is an int; give the name of a class"),
    "knows(str)": (lambda a, b, data: traits.knows("digits", "9"), "data='digits' is a str; give data with classes"),
    "localise(str)": (lambda a, b, data: suture.localise("x", a, b, data=data), "trait='x' is a str; give a trait"),
    "summary(None)": (lambda a, b, data: suture.summary(None), "table=None is a NoneType; give a table of measurement"),
    "profiles(None)": (lambda a, b, data: suture.profiles(None), "table=None is a NoneType"),
    "explain(None)": (lambda a, b, data: suture.explain(None), "table=None is a NoneType"),
}


@each("call", WRONG_CALLS)
def test_what_is_of_the_wrong_kind_is_named_with_what_to_give(no_work, call):
    made, said = WRONG_CALLS[call]
    with pytest.raises(SutureError, match=re.escape(said)):
        made(*hybrids(), few_digits())


def test_a_curve_of_what_has_no_cuts_is_refused_before_it_looks_for_any():
    _, b = hybrids()
    noise = ClusteredNoise((24,), 10, seed=4)
    with pytest.raises(CutError, match="noise has no cuts; name those of the receiver"):
        curve(noise, b, data=few_digits())
    with pytest.raises(CutError, match="noise has no cuts; name those of the receiver"):
        curve(noise, b, data=few_digits(), at="relu*")
    with pytest.raises(NetworkError, match="the sender is a Hybrid; give a network"):
        curve(Hybrid(), b, data=few_digits())
    assert len(curve(noise, b, data=few_digits(), at=[("", "hidden")], controls=())) == 1


@each(
    ("billions", "samples", "kept"),
    [
        (2.2, 6_000, 6_000),  # two ResNet-18s on MNIST
        (8.9, 5_000, 5_000),  # of double width on CIFAR-10
        (5.2, 20_000, 5_000),  # two ResNet-50s, of very many
        (16.4, 5_000, 2_500),  # at 224 pixels
        (70.3, 5_000, 625),  # two ViT-B/16
        (70.3, 800, 625),
        (70.3, 600, 600),
        (700, 5_000, 625),
    ],
)
def test_dear_networks_are_validated_on_fewer_samples(billions, samples, kept):
    """The first ones, so those of dear networks are among those of cheap ones."""
    side = SimpleNamespace(cuts=[SimpleNamespace(flops=7), SimpleNamespace(flops=billions * 5e8)])
    given = Samples("x", torch.zeros(samples, 1, 1, 1), torch.zeros(samples, dtype=torch.int64), ("a", "b"))
    chosen = plans.choose_validation(SimpleNamespace(networks=(side, side)), given)
    assert chosen is given.first(kept)


def test_a_plan_validates_what_its_networks_cost(monkeypatch):
    """In the trial and in all its controls; a trial that is made by hand has what it is given."""
    a, b = hybrids()
    monkeypatch.setattr(plans, "WORK", 60 * (a.cuts[-1].flops + b.cuts[-1].flops))
    monkeypatch.setattr(plans, "LEAST", 30)
    monkeypatch.setattr(plans, "VALIDATED", 100)
    plan = suture.curve(a, b, data=digits(), at=a.cuts[0].name)
    assert {trial.validation_data for trial in plan if "shuffled" not in trial.control} == {
        digits().validation.first(50)
    }
    assert {len(trial.validation_data) for trial in plan} == {50}


def test_a_plan_fits_on_so_many_samples_unless_the_data_say_how_many(monkeypatch):
    a, b = hybrids()
    data = replace(few_digits(), counted=False)
    seam, flops = suture.Seam.at(a, b, a.cuts.names[0]), a.cuts[-1].flops + b.cuts[-1].flops
    chosen = lambda given, fit: len(plans.choose_fitted(seam, given, fit))  # noqa: E731
    assert chosen(data, Converged()) == chosen(data, Quick()) == len(data.fit)
    monkeypatch.setattr(plans, "FITTED", 40)
    monkeypatch.setattr(plans, "LEAST_FITTED", 10)
    monkeypatch.setattr(Quick, "fitted_on", 30)
    for work, counts in ((50, (40, 30)), (35, (20, 30)), (12, (10, 15)), (1, (10, 15))):
        monkeypatch.setattr(plans, "FIT_WORK", work * flops)
        assert (chosen(data, Converged()), chosen(data, Quick())) == counts, work
    for fixed in (data.limited(fit=len(data.fit)), data.limited(fit=len(data.fit), score=50)):
        assert chosen(fixed, Converged()) == len(data.fit)
    assert chosen(data.limited(fit=50).validated_apart(20), Quick()) == 50
    assert chosen(replace(data, fit=data.fit.shuffled(0)), Converged()) == len(data.fit)
    (trial,) = plans.plan_seam(seam, data, plans.Settings(controls=()))
    assert (len(trial.fit_data), trial.fit_data.name) == (10, f"{data.fit.name}[:10]")

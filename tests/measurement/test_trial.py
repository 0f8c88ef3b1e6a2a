"""A trial is what its key says, and a measurement is what its definition says."""

import copy
import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import nn

from loops import each
from models import trial_of, with_seam
from suture import Network, Preprocess, Samples, Trial, measure
from suture.common.errors import CutError, DataError, FitError, FrozenError, NetworkError, ShapeError
from suture.common.hashing import registered_name
from suture.common.names import NAMES
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv, Identity, Linear, Orthogonal, Stitch
from suture.data import Data
from suture.data.noise import ClusteredNoise
from suture.fits import SGD, Adam, BestOf, Constant, Converged, Fit, FitReport, LeastSquares, Random, TaskLoss
from suture.measurement.scores.scores import Accuracy, CrossEntropy, Score
from suture.measurement.trials import controls
from suture.measurement.trials.versions import DECLARED, list_versions, say_outdated
from trained import Hybrid, bits, convnets, digits, few_digits, hybrid, hybrids, tensor_bits, wrap

QUICK = TaskLoss(steps=6, check=3)


def trial(cut: str = "hidden", data: Data | None = None, **settings) -> Trial:
    a, b = hybrids()
    data = data or few_digits()
    roles = {"fit_data": data.fit, "validation_data": data.validation, "score_data": data.score}
    return trial_of(**{"sender": a, "receiver": b, "sender_cut": cut, "receiver_cut": cut, **roles, **settings})


# --- what is measured -------------------------------------------------------------------------------------------------


@each("cut", ["conv", "embed", "transpose_2", "hidden"])
def test_the_numbers_are_those_of_the_definition(cut):
    """Composed by hand of prefix, stitch and suffix, and counted with numpy."""
    t = trial(cut, fit=QUICK)
    m = measure(t)
    images, labels = t.score_data.images, t.score_data.labels.numpy()
    with torch.no_grad():
        sent, own = t.sender.upto(cut)(images), t.receiver.upto(cut)(images)
        represented = m.stitch(sent)
        logits = {
            "stitched": t.receiver.after(cut)(represented),
            "sender": t.sender.whole()(images),
            "receiver": t.receiver.whole()(images),
        }
    cards = {"stitched": m.scores, "sender": m.sender, "receiver": m.receiver}
    for whose, out in logits.items():
        right = out.argmax(1).numpy() == labels
        loss = -log_softmax(out.double().numpy(), axis=1)[np.arange(len(labels)), labels]
        assert cards[whose].accuracy.value == pytest.approx(right.mean())
        assert cards[whose].loss.value == pytest.approx(loss.mean(), rel=1e-5)
    assert m.penalties["accuracy"].value == pytest.approx(100 * (m.receiver.accuracy.value - m.scores.accuracy.value))
    assert m.penalties["loss"].value == pytest.approx(m.scores.loss.value - m.receiver.loss.value)
    assert m.penalty is m.penalties["accuracy"]
    assert m.penalty.unit == "pp"

    expected, got = own.double().numpy(), represented.double().numpy()
    relative = ((got - expected) ** 2).sum() / ((expected - expected.mean(0)) ** 2).sum()
    assert m.representation_error == pytest.approx(relative, rel=1e-5)
    assert torch.allclose(m.stitched(images), logits["stitched"], atol=1e-5)


def test_a_representation_error_of_one_is_no_better_than_the_mean():
    @dataclass(frozen=True)
    class Mean(Fit):
        def fit(self, problem, stitch):
            with torch.no_grad():
                stitch.weight.zero_()
                stitch.bias.copy_(t.receiver.upto("hidden")(t.score_data.images).mean(0))
            return FitReport()

    t = trial()
    assert measure(replace(t, fit=Mean())).representation_error == pytest.approx(1, rel=1e-5)


def test_a_sender_with_another_head_has_no_score():
    torch.manual_seed(0)
    model = Hybrid()
    model.head = nn.Linear(24, 7)
    measurement = measure(trial(sender=wrap(model, "seven"), fit=LeastSquares()))
    assert dict(measurement.sender) == {}
    assert measurement.receiver.accuracy.n == 260


def test_a_trait_that_is_neither_good_nor_bad_has_no_penalty():
    @dataclass(frozen=True)
    class Threes(Score):
        name: ClassVar[str] = "threes seen"
        unit: ClassVar[str] = "fraction"
        higher_is_better: ClassVar[bool | None] = None

        def per_sample(self, logits, labels):
            return (logits.argmax(1) == 3).double()

    measurement = measure(trial(fit=LeastSquares(), scores=(Threes(), Accuracy())))
    assert measurement.penalty is None
    assert measurement.penalties["accuracy"] is not None
    assert "penalty  None" in repr(measurement)


def test_a_measurement_says_that_its_fit_had_not_converged(monkeypatch):
    monkeypatch.setattr("suture.fits.averaged.is_better", lambda *_: True)
    said = ", not converged"
    for fit, found in ((Converged(cap=70), True), (LeastSquares(), False)):
        measurement = measure(trial(fit=fit))
        assert not measurement.converged or not found
        assert (said in measurement.summary, said in repr(measurement)) == (found, found)


def test_a_measurement_says_what_it_found():
    text = repr(measure(trial(fit=LeastSquares())))
    assert text.startswith("A → B at hidden\n  stitched accuracy  ")
    assert "receiver accuracy" in text
    assert " pp [" in text


def test_a_measurement_may_be_made_where_gradients_are_off():
    t = trial(fit=QUICK)
    wanted = bits(measure(t))
    with torch.no_grad():
        assert bits(measure(t)) == wanted


def test_a_stitch_that_works_in_place_spoils_nothing():
    """Published code loses activations to in-place ReLUs; here the stitch is given a copy."""

    @dataclass(frozen=True)
    class InPlace(Stitch):
        joins: ClassVar[str] = "equal shapes"

        def accepts(self, sender, receiver):
            return sender == receiver

        def build(self, sender, receiver):
            return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(sender[-1], receiver[-1]))

    t = trial(stitch=InPlace(), fit=TaskLoss(start=Random(), steps=4, check=2))
    cache = Activations()
    kept = [cache.at(t.sender, "hidden", samples) for samples in (t.fit_data, t.validation_data, t.score_data)]
    before = [tensor_bits(tensor) for tensor in kept]
    assert any(bool((tensor < 0).any()) for tensor in kept)
    measure(t, cache)
    assert [tensor_bits(tensor) for tensor in kept] == before


def test_a_fit_that_changes_its_data_in_place_spoils_nobody_elses():
    @dataclass(frozen=True)
    class Centring(Fit):
        def fit(self, problem, stitch):
            problem.fit.activations.sub_(problem.fit.activations.mean(0))
            problem.fit.expected().mul_(0)
            return LeastSquares().fit(problem, stitch)

    cache = Activations()
    honest = trial(fit=LeastSquares())
    wanted = bits(measure(honest))
    measure(trial(fit=Centring()), cache)
    assert bits(measure(honest, cache)) == wanted
    later = trial("relu_2", fit=LeastSquares())
    assert bits(measure(later, cache)) == bits(measure(later))


# --- a sender that is noise -------------------------------------------------------------------------------------------

NOISE = ClusteredNoise((24,), 10, seed=4)


def noisy(**given) -> Trial:
    return trial(**{"sender": NOISE, "sender_cut": "", "fit": LeastSquares(), **given})


def test_noise_is_stitched_to_what_the_receiver_makes_of_the_same_images():
    """The closed form, by numpy, on noise and the receiver's own activations; its bias and scale by hand."""
    t = noisy(fit=LeastSquares(ridges=(1e-9,), rescale=False))
    m = measure(t)
    images, labels = t.score_data.images, t.score_data.labels.numpy()
    x = NOISE.activations(t.fit_data).double().numpy()
    sent = NOISE.activations(t.score_data).double().numpy()
    with torch.no_grad():
        y = t.receiver.upto("hidden")(t.fit_data.images).double().numpy()
        own = t.receiver.upto("hidden")(images).double().numpy()
        one = np.ones((len(x), 1))
        solved = np.linalg.lstsq(np.hstack([x, one]), y, rcond=None)[0]
        represented = sent @ solved[:-1] + solved[-1]
        logits = t.receiver.after("hidden")(torch.from_numpy(represented).float())
    assert m.scores.accuracy.value == pytest.approx((logits.argmax(1).numpy() == labels).mean(), abs=0.005)
    relative = ((represented - own) ** 2).sum() / ((own - own.mean(0)) ** 2).sum()
    assert m.representation_error == pytest.approx(relative, rel=1e-3)
    assert m.receiver.accuracy.value == pytest.approx(
        float((t.receiver(images).argmax(1) == t.score_data.labels).float().mean())
    )
    assert m.penalties["accuracy"].value == pytest.approx(100 * (m.receiver.accuracy.value - m.scores.accuracy.value))


def test_noise_alone_is_as_among_others():
    cache = Activations(200_000)
    trials = [control(trial(fit=QUICK)) for control in (controls.clustered_noise, controls.itself)]
    trials += [trial(fit=QUICK), controls.shuffled_pairs(trials[0]), noisy(fit=QUICK), trials[0]]
    alone = {t.key: bits(measure(t)) for t in trials}
    assert len({str(found) for found in alone.values()}) == 5
    assert {t.key: bits(measure(t, cache)) for t in reversed(trials)} == alone


def test_noise_has_no_score_and_no_stitched_network():
    m = measure(noisy())
    assert dict(m.sender) == {}
    assert m.trial.seam.networks == (m.trial.receiver,)
    with pytest.raises(NetworkError, match=r"noise → B at hidden has no stitched network.*after\('hidden'\)"):
        _ = m.stitched
    assert repr(m).startswith("noise → B at hidden\n  stitched accuracy  ")
    assert controls.clustered_noise(trial()).where == "noise → B at hidden (clustered noise)"


def test_noise_is_joined_by_its_shape():
    assert noisy().seam.shapes == ((24,), (24,))
    assert noisy().family == Linear()
    maps = noisy(sender=ClusteredNoise((5, 4, 4), 10), receiver_cut="conv")
    assert (maps.seam.shapes, maps.family) == (((5, 4, 4), (8, 4, 4)), Conv())
    assert 0 <= measure(maps).scores.accuracy.value <= 1
    with pytest.raises(ShapeError, match="vector 24"):
        noisy(receiver_cut="conv", stitch=Conv())


def test_noise_has_no_cuts():
    with pytest.raises(CutError, match="no cut 'hidden' in clustered noise, which has none; leave it empty"):
        noisy(sender_cut="hidden")
    with pytest.raises(CutError, match="no cut '' in A"):
        trial("", receiver_cut="hidden")


@each("change", [{"seed": 5}, {"scale": 0.2}], ids=str)
def test_the_key_changes_with_the_noise(change):
    assert noisy(sender=replace(NOISE, **change)).key != noisy().key
    assert noisy(sender=replace(NOISE)).key == noisy().key != trial(fit=LeastSquares()).key


def test_noise_without_class_labels_to_draw_it_for_is_refused():
    with pytest.raises(DataError, match=r"each of 9 classes, but digits/fit.* has 10; make it with classes=10"):
        noisy(sender=ClusteredNoise((24,), 9))
    fit = few_digits().fit
    with pytest.raises(DataError, match=r"all 300 samples of .* are of class '0'; give data of at least 2 classes"):
        noisy(fit_data=replace(fit, labels=torch.zeros_like(fit.labels)))


def test_the_receiver_of_noise_is_checked_to_stay_frozen():
    @dataclass(frozen=True)
    class Cheats(Fit):
        def fit(self, problem, stitch):
            next(problem.suffix.parameters()).data.add_(1)
            return FitReport()

    with pytest.raises(FrozenError, match="changed the frozen network mine"):
        measure(noisy(receiver=wrap(hybrid(1), "mine"), fit=Cheats()))


# --- networks of other floating types ---------------------------------------------------------------------------------

TYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}


@cache
def typed(seed: int, dtype: torch.dtype) -> Network:
    return wrap(copy.deepcopy(hybrid(seed)).to(dtype), f"{dtype}")


@dataclass(frozen=True)
class Spies(Fit):
    """Writes down the types that it is given."""

    seen: list

    def fit(self, problem, stitch):
        sides = (problem.fit, problem.validation)
        self.seen.extend(tensor.dtype for side in sides for tensor in (side.activations, side.expected()))
        return FitReport()


@each("cut", ["conv", "transpose_2", "hidden"], few=1)
@each("role", ["sender", "receiver"])
@each("dtype", TYPES.values(), ids=TYPES)
def test_a_network_of_another_floating_type_is_worth_what_its_original_is(dtype, role, cut):
    """Up to its precision: the closed form draws nothing, so that it can be compared."""
    t = trial(cut, **{role: typed(0 if role == "sender" else 1, dtype)}, fit=LeastSquares())
    m, plain = measure(t), measure(trial(cut, fit=LeastSquares()))
    near = {torch.float64: 1e-3, torch.bfloat16: 0.06}[dtype]
    assert m.representation_error == pytest.approx(plain.representation_error, rel=near)
    assert m.scores.loss.value == pytest.approx(plain.scores.loss.value, rel=near)
    assert m.scores.accuracy.value == pytest.approx(plain.scores.accuracy.value, abs=max(near, 1.01 / 260))


@each("fit", [QUICK, TaskLoss(start=Random(), steps=40)], ids=["from least squares", "random"])
@each("cut", ["conv", "transpose_2", "hidden"], few=1)
@each("role", ["sender", "receiver"])
@each("dtype", TYPES.values(), ids=TYPES)
def test_a_stitch_descends_between_networks_of_two_floating_types(dtype, role, cut, fit):
    t = trial(cut, **{role: typed(0 if role == "sender" else 1, dtype)}, fit=fit)
    m = measure(t)
    assert m.steps > 0
    losses = [point.validation_loss for point in m.curve]
    assert fit is QUICK or min(losses) < 0.9 * losses[0], "least squares may already be the best"
    assert {p.dtype for p in m.stitch.parameters()} == {torch.float32}
    logits = m.stitched(t.score_data.images)
    assert logits.dtype == (torch.float32 if role == "sender" else dtype)
    right = logits.argmax(1) == t.score_data.labels
    assert m.scores.accuracy.value == pytest.approx(float(right.float().mean()), abs=1.01 / 260)


@pytest.mark.slow
@each("sender", [torch.float32, *TYPES.values()], ids=str, few=2)
@each("receiver", [torch.float32, *TYPES.values()], ids=str)
def test_a_fit_is_given_what_the_stitch_computes_in(sender, receiver):
    @dataclass(frozen=True)
    class Wide(Stitch):
        dtype: torch.dtype
        joins: ClassVar[str] = "vectors"

        def accepts(self, sender, receiver):
            return True

        def build(self, sender, receiver):
            return nn.Linear(sender[0], receiver[0], dtype=self.dtype)

    for dtype in (torch.float32, torch.float64):
        spy = Spies([])
        t = trial(sender=typed(0, sender), receiver=typed(1, receiver), stitch=Wide(dtype), fit=spy)
        m = measure(t)
        assert spy.seen == [dtype] * 4
        assert m.stitched(t.score_data.images[:3]).shape == (3, 10)
    spy = Spies([])
    measure(trial(sender=typed(0, sender), receiver=typed(1, receiver), stitch=Identity(), fit=spy))
    assert spy.seen == [sender, receiver] * 2, "nothing computes: as they are"


@each("dtype", TYPES.values(), ids=TYPES)
def test_through_nothing_a_network_of_another_floating_type_is_itself(dtype):
    network = typed(0, dtype)
    m = measure(trial(sender=network, receiver=network, stitch=Identity()))
    assert m.representation_error == 0
    assert m.penalties["loss"].low == m.penalties["loss"].high == 0


# --- nothing is fitted on score data ----------------------------------------------------------------------------------


@each("fit", [LeastSquares(), QUICK, TaskLoss(start=Random(), steps=6, check=3)], ids=str)
def test_other_score_data_give_the_same_stitch_bit_for_bit(fit):
    t = trial(fit=fit)
    other = replace(t, score_data=digits().score.take(torch.arange(300, 400), "others"))
    assert other.key != t.key
    one, two = measure(t), measure(other)
    assert one.scores.loss.value != two.scores.loss.value
    assert stitch_bits(one) == stitch_bits(two)
    assert repr(one.curve) == repr(two.curve)  # which hold nan


def test_other_scores_give_the_same_stitch_bit_for_bit():
    one, two = (measure(trial(fit=QUICK, scores=scores)) for scores in ((Accuracy(),), (CrossEntropy(),)))
    assert stitch_bits(one) == stitch_bits(two)


def test_labels_of_validation_data_only_choose():
    """With nothing to choose, other validation data give the same stitch up to the order of the batches."""
    t = trial(fit=LeastSquares(ridges=(1e-3,)))
    other = replace(t, validation_data=digits().score.take(torch.arange(300, 400), "others"))
    assert stitch_bits(measure(t)) == stitch_bits(measure(other))


def stitch_bits(measurement) -> dict[str, str]:
    return {name: tensor_bits(tensor) for name, tensor in measurement.stitch.state_dict().items()}


# --- keys -------------------------------------------------------------------------------------------------------------


def nudged(model: nn.Module, name: str) -> nn.Module:
    """A copy of a model with one element of one tensor changed by the least that there is."""
    model = copy.deepcopy(model)
    tensor = (dict(model.named_parameters()) | dict(model.named_buffers()))[name]
    with torch.no_grad():
        first = tensor.view(-1)[:1]
        first.copy_(torch.nextafter(first, first + 1) if first.is_floating_point() else first + 1)
    return model


def relabelled(samples: Samples) -> Samples:
    labels = samples.labels.clone()
    labels[0] = (labels[0] + 1) % 10
    return replace(samples, labels=labels)


def repainted(samples: Samples) -> Samples:
    images = samples.images.clone()
    images[5, 0, 3, 3] = 255 - images[5, 0, 3, 3]
    return replace(samples, images=images)


@dataclass(frozen=True)
class Projected(Stitch):
    """A family that holds a tensor."""

    matrix: torch.Tensor
    joins: ClassVar[str] = "anything"

    def accepts(self, sender, receiver):
        return True

    def build(self, sender, receiver):
        return nn.Identity()


class Plain(Fit):
    """A fit that is no dataclass."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def fit(self, problem, stitch):
        return FitReport()


@dataclass(frozen=True)
class Chosen(Score):
    """A score that holds what has no order, and a function."""

    among: frozenset[str] = frozenset()
    weigh: object = None
    name: ClassVar[str] = "chosen"
    unit: ClassVar[str] = "raw"
    higher_is_better: ClassVar[bool] = True

    def per_sample(self, logits, labels):
        return logits[:, 0].double()


_LARGE = torch.zeros(3000)
_LARGER = torch.zeros(3000).index_fill(0, torch.tensor(1500), 1.0)
_BASE = {"stitch": Linear(), "fit": QUICK}
CHANGES = {
    "a weight of the sender": lambda t: {"sender": wrap(nudged(hybrid(0), "mix.weight"), "A")},
    "a weight of the receiver": lambda t: {"receiver": wrap(nudged(hybrid(1), "head.bias"), "B")},
    "a buffer": lambda t: {"sender": wrap(nudged(hybrid(0), "norm.running_mean"), "A")},
    "an integer buffer": lambda t: {"sender": wrap(nudged(hybrid(0), "norm.num_batches_tracked"), "A")},
    "the roles of the networks": lambda t: {"sender": t.receiver, "receiver": t.sender},
    "the preprocessing": lambda t: {
        "sender": Network(hybrid(0), example=digits().example, name="A", preprocess=Preprocess(mean=(0.1,)))
    },
    "the cut of the sender": lambda t: {"sender_cut": "relu_2"},
    "the cut of the receiver": lambda t: {"receiver_cut": "relu_2"},
    "a pixel of the fit data": lambda t: {"fit_data": repainted(t.fit_data)},
    "a label of the fit data": lambda t: {"fit_data": relabelled(t.fit_data)},
    "the pairing": lambda t: {"fit_data": t.fit_data.shuffled(0)},
    "a label of the validation data": lambda t: {"validation_data": relabelled(t.validation_data)},
    "a pixel of the score data": lambda t: {"score_data": repainted(t.score_data)},
    "a label of the score data": lambda t: {"score_data": relabelled(t.score_data)},
    "the order of the data": lambda t: {
        "fit_data": t.fit_data.take(torch.arange(len(t.fit_data)).flip(0), t.fit_data.name)
    },
    "the family": lambda t: {"stitch": Projected(_LARGE)},
    "the kind of fit": lambda t: {"fit": LeastSquares()},
    "a setting of the fit": lambda t: {"fit": replace(QUICK, steps=7)},
    "a setting of the optimiser": lambda t: {"fit": replace(QUICK, optimiser=Adam(1e-2, betas=(0.9, 0.99)))},
    "the optimiser": lambda t: {"fit": replace(QUICK, optimiser=SGD(1e-2))},
    "the schedule": lambda t: {"fit": replace(QUICK, schedule=Constant())},
    "the start": lambda t: {"fit": replace(QUICK, start=Random())},
    "a setting of the start": lambda t: {"fit": replace(QUICK, start=LeastSquares(rescale=False))},
    "the scores": lambda t: {"scores": (Accuracy(),)},
    "a setting of a score": lambda t: {"scores": (Accuracy((1,)), CrossEntropy())},
    "the order of the scores": lambda t: {"scores": (CrossEntropy(), Accuracy())},
    "the seed": lambda t: {"seed": 1},
}


@each("change", CHANGES.values(), ids=CHANGES)
def test_the_key_changes_with_whatever_may_change_the_numbers(change):
    before = trial(**_BASE)
    assert with_seam(before, **change(before)).key != before.key
    assert with_seam(before, **change(before)) != before


def test_the_key_changes_with_the_version_of_a_part_that_is_used_and_of_no_other(monkeypatch):
    random = {"fit": TaskLoss(start=Random())}
    made = {"one": trial(**_BASE | random), "least squares": trial(**_BASE | {"fit": LeastSquares()})}
    before = {name: one.key for name, one in made.items()}
    monkeypatch.setattr(LeastSquares, "version", 1000, raising=False)
    after = {name: replace(one).key for name, one in made.items()}
    assert after["one"] == before["one"]
    assert after["least squares"] != before["least squares"]
    for part in DECLARED:  # which every trial uses
        monkeypatch.setitem(DECLARED, part, 1000)
        assert replace(made["one"]).key != after["one"]
        monkeypatch.undo()


def test_a_part_inside_another_counts_too(monkeypatch):
    inside = {"start": TaskLoss(start=LeastSquares()), "one of several": BestOf((Random(), LeastSquares()))}
    for said, fit in inside.items():
        assert {"LeastSquares", type(fit).__name__} <= set(trial(**_BASE | {"fit": fit}).versions), said
    assert "Orthogonal" in trial(**_BASE | {"stitch": Orthogonal()}).versions


@each(
    ("one", "two"),
    [
        ({"stitch": Projected(_LARGE)}, {"stitch": Projected(_LARGER)}),
        ({"stitch": Projected(torch.tensor([1.0]))}, {"stitch": Projected(torch.tensor([1.00001]))}),
        ({"stitch": Projected(torch.tensor([1]))}, {"stitch": Projected(torch.tensor([1.0]))}),
        ({"fit": Plain(0.1)}, {"fit": Plain(0.2)}),
        ({"scores": (Chosen(frozenset("ab")),)}, {"scores": (Chosen(frozenset("ac")),)}),
        ({"scores": (Chosen(weigh=lambda x: x + 1),)}, {"scores": (Chosen(weigh=lambda x: x + 2),)}),
        ({"scores": (Chosen(weigh=np.arange(2000)),)}, {"scores": (Chosen(weigh=np.arange(2000) ^ 1),)}),
    ],
    ids=["large tensor", "a digit of a tensor", "a dtype", "no dataclass", "a set", "a function", "an array"],
)
def test_settings_are_told_apart_by_their_content(one, two):
    """Their ``repr`` would not: it leaves out the middle of tensors and whatever no dataclass shows."""
    assert trial(**one).key != trial(**two).key


@each(
    "make",
    [
        lambda: {"stitch": Projected(torch.zeros(3000))},
        lambda: {"fit": Plain(0.1)},
        lambda: {"scores": (Chosen(frozenset("abcdefgh")),)},
        lambda: {"scores": (Chosen(weigh=np.arange(2000)),)},
        lambda: {"scores": (Chosen(weigh=lambda x: x + 1),)},
    ],
    ids=["tensor", "no dataclass", "set", "array", "function"],
)
def test_equal_settings_have_equal_keys(make):
    assert trial(**make()).key == trial(**make()).key


def test_the_key_does_not_change_with_labels_for_people():
    before = trial(**_BASE)
    data = {role: replace(getattr(before, role), name="renamed") for role in ("fit_data", "validation_data")}
    renamed = with_seam(
        before,
        sender=wrap(hybrid(0), "another name"),
        control="labelled",
        study="labelled",
        network_seed=5,
        **data,
    )
    assert renamed.key == before.key
    assert renamed == before
    assert len({renamed, before}) == 1


def test_an_alias_of_a_cut_gives_the_same_key():
    c, d = convnets()
    alias = "stage1"
    assert alias not in c.cuts.names
    assert alias in c.cuts
    name = c.cuts.find(alias).name
    one, two = (trial(cut, sender=c, receiver=d, **QUICK_CONV) for cut in (alias, name))
    assert one.sender_cut == one.receiver_cut == name
    assert one.key == two.key


QUICK_CONV = {"fit": QUICK, "stitch": Conv()}


def test_naming_the_default_stitch_gives_the_same_key():
    assert trial(stitch=None).key == trial(stitch=Linear()).key


# --- what is refused at planning --------------------------------------------------------------------------------------


def test_an_unknown_cut_is_refused_with_those_there_are():
    with pytest.raises(CutError, match=r"no cut 'hiden' in A; did you mean 'hidden'\? valid cuts: 'conv', 'norm'"):
        trial("hiden")
    with pytest.raises(CutError, match="no cut 'layer9' in B"):
        trial("hidden", receiver_cut="layer9")


def test_a_stitch_that_cannot_join_the_shapes_is_refused():
    with pytest.raises(ShapeError, match="8×4×4"):
        trial("conv", receiver_cut="hidden", stitch=Linear())
    with pytest.raises(ShapeError, match="Conv"):
        trial("hidden", stitch=Conv())
    with pytest.raises(ShapeError, match="Identity"):
        trial("hidden", receiver_cut="flatten_1", stitch=Identity())


@each("role", ["fit_data", "validation_data", "score_data"])
def test_data_of_other_classes_are_refused(role):
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    seven = Samples("seven", images, torch.arange(4), tuple("abcdefg"))
    with pytest.raises(
        DataError, match=r"seven has 7 classes \(a, .*\), but the head of the receiver B has 10 outputs"
    ):
        trial(**{role: seven})


@each("role", ["fit_data", "validation_data", "score_data"])
def test_images_that_do_not_suit_a_network_are_refused(role):
    large = Samples("large", torch.zeros(4, 1, 9, 9, dtype=torch.uint8), torch.arange(4), tuple("0123456789"))
    with pytest.raises(DataError, match=r"images of large become \(1, 9, 9\) by the preprocessing of A"):
        trial(**{role: large})


def test_a_trial_without_scores_is_refused():
    with pytest.raises(DataError, match="at least one score"):
        trial(scores=())


def test_two_scores_of_one_name_are_refused():
    with pytest.raises(DataError, match="two scores are called 'accuracy'"):
        trial(scores=(Accuracy(), CrossEntropy(), Accuracy()))


def test_a_score_that_selects_nothing_is_refused_before_any_work():
    only_threes = digits().score.take((digits().score.labels == 3).nonzero()[:, 0], "threes")
    with pytest.raises(DataError, match=r"threes has no sample that 'accuracy on classes 5' selects"):
        trial(score_data=only_threes, scores=(Accuracy((5,)),))


def test_score_data_with_broken_pairs_are_refused():
    with pytest.raises(DataError, match="score"):
        trial(score_data=few_digits().score.shuffled(0))


class LogOf(nn.Module):
    """What the how-to tells to wrap probabilities in."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).clamp_min(1e-30).log()


@each("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_networks_that_give_probabilities_are_refused_and_their_logarithms_are_logits(dtype):
    soft = nn.Sequential(copy.deepcopy(hybrids()[1]._model), nn.Softmax(dim=1)).to(dtype)
    for role in ("sender", "receiver"):
        with pytest.raises(NetworkError, match=r"the outputs of soft are probabilities.*give it without its last soft"):
            trial(**{role: wrap(soft, "soft"), f"{role}_cut": "0.hidden"})
    if dtype == torch.float32:
        logs, own = wrap(LogOf(soft), "logs"), hybrids()[1]
        images = few_digits().score.images
        torch.testing.assert_close(logs(images).softmax(1), own(images).softmax(1))
        card = measure(trial(receiver=logs, receiver_cut="model.0.hidden", fit=QUICK)).receiver
        assert card.loss.value == pytest.approx(measure(trial(fit=QUICK)).receiver.loss.value, rel=1e-5)


def test_outputs_that_are_not_finite_name_the_seam():
    @dataclass(frozen=True)
    class Explodes(Fit):
        def fit(self, problem, stitch):
            stitch.weight.data.fill_(float("inf"))
            return FitReport()

    with pytest.raises(FitError, match=r"A → B at hidden .*not finite"):
        measure(trial(fit=Explodes()))


def test_the_control_is_part_of_where():
    assert controls.itself(trial()).where == "B → B at hidden (itself)"
    assert trial("hidden", receiver_cut="relu_2").where == "A → B at hidden → relu_2"


# --- what the program around has set, and what users make -------------------------------------------------------------


@pytest.mark.slow
def test_what_the_program_around_has_set_changes_no_bit():
    t = trial("conv", fit=Converged(cap=140))
    plain = measure(t)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        wide = measure(t)
    finally:
        torch.set_default_dtype(before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = measure(t)
        assert torch.is_autocast_enabled("cpu")
    for other in (wide, cast):
        assert other.scores == plain.scores
        assert other.representation_error == plain.representation_error
        pairs = zip(other.stitch.state_dict().values(), plain.stitch.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@dataclass(frozen=True)
class Narrow(Stitch):
    """A family that makes one channel too few."""

    joins: ClassVar[str] = "maps"

    def accepts(self, sender, receiver):
        return len(sender) == len(receiver) == 3

    def build(self, sender, receiver):
        return nn.Conv2d(sender[0], receiver[0] - 1, 1)


def test_a_family_of_ones_own_that_makes_another_shape_is_named():
    with pytest.raises(ShapeError, match=r"stitch of Narrow\(\) gives the shape .*, but the receiver's cut takes"):
        measure(trial("conv", stitch=Narrow()))


@dataclass(frozen=True)
class Odd(Score):
    """A score that gives what it is told to."""

    gives: str
    unit: str = "fraction"
    name: ClassVar[str] = "odd"
    higher_is_better: ClassVar[bool] = True

    def per_sample(self, logits, labels):
        ones = torch.ones(len(labels), dtype=torch.float64)
        return {"ten": 10 * ones, "nan": torch.nan * ones, "one": ones.mean(), "ones": ones}[self.gives]


@each(
    ("score", "said"),
    [
        (Odd("ten"), r"'odd' gave 10 to 10; a fraction lies in \[0, 1\]: name another unit"),
        (Odd("nan"), r"'odd' is not finite for \d+ samples whose outputs are; correct its per_sample"),
        (Odd("one"), r"'odd' gave a tensor \(\); it must give a number for each of \d+ samples"),
    ],
)
def test_values_that_a_score_cannot_have_are_named(score, said):
    with pytest.raises(FitError, match=said):
        measure(trial("conv", fit=Random(), scores=(score,)))


def test_a_unit_that_is_none_is_refused_before_anything_is_measured():
    with pytest.raises(DataError, match=r"'odd' has the unit 'percent'; it is one of 'fraction', "):
        trial("conv", scores=(Odd("ones", unit="percent"),))
    assert measure(trial("conv", fit=Random(), scores=(Odd("ten", unit="raw"),))).scores["odd"].value == 10


def _labelled(samples: Samples, shift: int, least: int = 0) -> Samples:
    """The images whose labels are at least so much, with their labels moved, of classes without names."""
    kept = samples.labels >= least
    labels = samples.labels[kept] + shift
    return Samples(samples.name, samples.images[kept], labels, tuple(map(str, range(int(labels.max()) + 1))))


@each(
    ("shift", "least", "said"),
    [
        (1, 0, "has 11 classes, but .* labels seem to count from 1: give labels - 1"),
        (-1, 1, r"has 9 classes, but .* with 9 outputs; or, if .* lack samples of .* load them with classes=10"),
    ],
)
def test_classes_that_are_others_than_the_heads_name_the_likely_cause(shift, least, said):
    one, *more = (_labelled(s, shift, least) for s in (few_digits().fit, few_digits().validation, few_digits().score))
    with pytest.raises(DataError, match=said):
        trial(fit_data=one, validation_data=more[0], score_data=more[1])


def test_what_is_outdated_is_named_and_what_is_unknown_is_too(monkeypatch):
    now = trial(**_BASE).labels["versions"]
    assert say_outdated([now]) == ""
    monkeypatch.setitem(DECLARED, "TaskLoss", 2)
    assert say_outdated([now, now]) == "TaskLoss 1 (now 2)"
    assert say_outdated([now], {"TaskLoss": (1,)}) == ""
    assert say_outdated(["measuring code 5"]) == "measuring code 5 (now gone)"
    assert say_outdated([""]) == "an unknown version"


def test_versions_are_read_from_the_source_as_the_classes_have_them():
    """A run is looked at in a process that imports no part, and so not torch."""
    for place in {place.partition(":")[0] for kind in NAMES.values() for place in kind.values()}:
        import_module(place)
    modules = [module for name, module in [*sys.modules.items()] if name.startswith("suture")]
    things = [one for module in modules for one in vars(module).values() if isinstance(one, type | FunctionType)]
    versions = {name: getattr(one, "version", 1) for one in things if (name := registered_name(one))}
    assert (versions | DECLARED).items() <= list_versions().items()
    assert list_versions()["Converged"] == Converged.version > 1

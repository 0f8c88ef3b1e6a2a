"""Baselines: each is what it says, seen from outside, and lies in the table beside the trial."""

import copy
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from sklearn.linear_model import LogisticRegression
from torch import nn

import suture
from loops import each
from models import seeded, with_seam
from suture import Network, Seam, Stitched, Trial, by_depth, curve, measure, run
from suture.common.constants import OUTPUT
from suture.common.errors import CheckpointError, CutError, FitError, NetworkError, ShapeError
from suture.common.seeds import derive_seed
from suture.core.stitched import can_fold
from suture.core.stitches import FullLinear, Identity, Layers, Linear, Probe
from suture.fits import Converged, Logistic, Random, TaskLoss
from suture.fits.descent import draw_batches
from suture.measurement.tables import curve as curves
from suture.measurement.tables import matrix as matrices
from suture.measurement.trials import controls
from suture.measurement.trials.baselines import fine_tuned, linear_probe, plugged, retrained
from suture.measurement.trials.measure import make_problem
from suture.runs.runners import Local
from trained import convnets, digits, few_digits, hybrids, state_bits, tensor_bits

FEW = TaskLoss(start=Random(), steps=12, batch=32, check=6, patience=None, standardise=False)

SHORT = TaskLoss(start=Random(), steps=150, check=50, patience=10)


@cache
def trial(cut: str = "embed", **settings) -> Trial:
    a, b = hybrids()
    data = few_digits()
    return Trial(Seam.at(a, b, cut), data.fit, data.validation, data.score, **settings)


# --- where all layers end ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_behind_all_layers_there_is_a_place_that_is_no_cut():
    network = hybrids()[0]
    end = network.cuts.find(OUTPUT)
    assert (end.is_output, end.shape, end.depth, end.index) == (True, (10,), 1.0, len(network.cuts) + 1)
    assert end.parameters == sum(p.numel() for p in network.whole().parameters())
    assert not any(cut.is_output for cut in network.cuts)
    assert OUTPUT not in network.cuts
    x = few_digits().score.images[:5]
    outputs = network.upto(OUTPUT)(x)
    assert torch.equal(outputs, network(x))
    assert network.after(OUTPUT)(outputs) is outputs


def test_nothing_is_sent_from_there():
    with pytest.raises(CutError, match="'output' of A is not a cut to send from; valid cuts: conv, norm"):
        with_seam(trial(), sender_cut=OUTPUT)


class Clash(nn.Module):
    """Has a cut called ``output``."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(64, 12)
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        return self.head(self.output(x.flatten(1)).relu())


def test_a_network_with_a_cut_of_that_name_keeps_it_and_receives_no_baseline():
    data = few_digits()
    clash = Network(seeded(Clash), example=data.example, name="clash")
    assert clash.cuts.find(OUTPUT).shape == (12,)
    assert with_seam(trial("hidden"), receiver=clash, receiver_cut=OUTPUT).seam.shapes == ((24,), (12,))
    with pytest.raises(CutError, match=r"clash has a cut called 'output'.*another name"):
        linear_probe(with_seam(trial("hidden"), receiver=clash, receiver_cut="relu"))


# --- the linear probe -------------------------------------------------------------------------------------------------


@each("cut", ["conv", "embed", "hidden"])
def test_a_probe_is_logistic_regression(cut):
    a, b = hybrids()
    data = digits()
    strength = 1e-2
    base = Trial(Seam.at(a, b, cut), data.fit, data.validation, data.score)
    measurement = measure(linear_probe(base, fit=Logistic(penalties=(strength,))))
    x, held = (a.upto(cut)(part.images).flatten(1).double().numpy() for part in (data.fit, data.score))
    mean, std = x.mean(0), x.std(0)
    std = np.where(std > 1e-6 * std.max(), std, 1.0)
    sklearns = LogisticRegression(C=1 / (2 * strength * len(x)), tol=1e-8, max_iter=2000)
    sklearns.fit((x - mean) / std, data.fit.labels)
    theirs = sklearns.predict_log_proba((held - mean) / std)
    loss = -theirs[np.arange(len(held)), data.score.labels].mean()
    assert measurement.scores["loss"].value == pytest.approx(loss, abs=2e-3)
    ours = measurement.stitched(data.score.images).log_softmax(1).numpy()
    assert np.abs(np.exp(ours) - np.exp(theirs)).mean() < 2e-3
    known = sklearns.predict_log_proba((x - mean) / std)[np.arange(len(x)), data.fit.labels]
    assert measurement.curve[-1].fit_loss == pytest.approx(-known.mean(), abs=1e-3)
    assert measurement.curve[-1].fit_loss < measurement.curve[0].validation_loss == pytest.approx(np.log(10))


def test_validation_data_chooses_how_strongly_a_probe_is_penalised():
    strengths = (3e-1, 1e-2, 1e-4)
    losses = [measure(linear_probe(trial(), fit=Logistic((s,)))).curve[-1].validation_loss for s in strengths]
    chosen = measure(linear_probe(trial(), fit=Logistic(strengths))).curve[-1].validation_loss
    assert chosen <= 1.02 * min(losses)
    assert max(losses) > 1.05 * min(losses)


def test_a_probe_reads_nothing_of_the_receiver():
    probe = linear_probe(trial())
    other = with_seam(probe, receiver=probe.receiver.untrained(3))
    one, two = measure(probe), measure(other)
    assert one.scores["loss"].value == two.scores["loss"].value
    assert not any(need.network is probe.receiver and need.samples is probe.fit_data for need in probe.needs)


@each(
    ("shape", "features", "left"),
    [
        ((8, 4, 4), None, 128),
        ((8, 4, 4), 1024, 128),
        ((8, 4, 4), 40, 32),
        ((8, 4, 4), 1, 8),
        ((16, 6), 50, 48),
        ((16, 6), 1, 6),
        ((7,), 1, 7),
    ],
)
def test_a_probe_averages_over_neighbours(shape, features, left):
    family = Probe(features)
    stitch = family.build(shape, (3,))
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    if len(shape) == 3:
        size = round((left / 8) ** 0.5)
        blocks = x.reshape(5, 8, size, 4 // size, size, 4 // size).mean((3, 5)).flatten(1)
    elif left < x[0].numel():  # tokens
        blocks = x.reshape(5, left // 6, -1, 6).mean(2).transpose(1, 2).flatten(1)
    else:
        blocks = x.flatten(1)
    assert family.reads(shape) == left == stitch[2].in_features
    torch.testing.assert_close(stitch(x), stitch[2](blocks))
    torch.testing.assert_close(family.parts(stitch, x)[0].reads(x), blocks.double())


def test_what_is_no_probe_is_refused():
    with pytest.raises(ShapeError, match=r"Probe\(features=0\).*at least 1, or None"):
        Probe(0)
    with pytest.raises(FitError, match="penalties of at least 0"):
        Logistic(penalties=())
    for other in (
        replace(trial("hidden"), stitch=Linear()),
        replace(linear_probe(trial()), stitch=Layers(trial().sender, "embed")),
    ):
        with pytest.raises(FitError, match=r"Logistic fits what gives the outputs.*use TaskLoss"):
            measure(replace(other, fit=Logistic()))


def test_any_affine_stitch_to_the_outputs_may_be_fitted_so():
    whole = replace(linear_probe(trial()), stitch=FullLinear())
    assert measure(whole).scores["loss"].value == pytest.approx(
        measure(linear_probe(trial())).scores["loss"].value, abs=5e-3
    )


# --- a network's own layers -------------------------------------------------------------------------------------------


@each("cut", ["conv", "embed", "hidden"])
def test_before_any_step_layers_are_what_they_were_copied_from(cut):
    base = trial(cut)
    a, b, x = base.sender, base.receiver, base.score_data.images
    given = a.upto(cut)(x)
    kept = measure(fine_tuned(base, fit=Random()))
    assert torch.equal(kept.stitched(x), a(x))
    drawn = retrained(base, fit=Random())
    untrained = a.untrained(derive_seed("retrained", a.fingerprint, 0))
    assert torch.equal(measure(drawn).stitched(x), untrained.after(cut)(given))
    received = measure(fine_tuned(base, of="receiver", fit=Random()))
    assert torch.equal(received.stitched(x), b.after(cut)(given))
    assert torch.equal(received.stitched(x), measure(plugged(base)).stitched(x))


def test_layers_that_another_factory_draws_anew_have_another_key():
    """Nor is a trial of the network's own layers, which nobody draws, changed by what could draw them."""
    base = trial("conv")
    model, example = base.sender._model, base.sender.example

    def smaller() -> nn.Module:
        drawn = type(model)()
        with torch.no_grad():
            for parameter in drawn.parameters():
                parameter.mul_(0.5)
        return drawn

    made = [Network(model, example=example, name="A", factory=factory) for factory in (None, type(model), smaller)]
    assert len({network.fingerprint for network in made}) == 1
    trials = [with_seam(base, sender=network) for network in made]
    assert len({fine_tuned(one, fit=Random()).key for one in trials}) == 1
    assert len({retrained(one, fit=Random()).key for one in trials}) == 3


def test_they_train_as_a_plain_loop_trains_them():
    """BatchNorm and dropout included: in training mode in a step, while what is before the cut is frozen."""
    base = fine_tuned(trial("conv"), fit=FEW)
    ours = measure(base)
    model = copy.deepcopy(base.sender._model).requires_grad_(True).eval()
    with torch.no_grad():
        sent = model.conv(base.sender._prepare(base.fit_data.images))
    tail = [model.norm, model.drop, model.embed, model.mix, model.hidden, model.head]
    weights = [p for layer in tail for p in layer.parameters()]
    adam = torch.optim.Adam(weights, 1e-2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(base.fit_description, "stitch"))
        drawn = draw_batches(len(sent), 32, derive_seed(base.fit_description, "fit"))
        for step in range(12):
            for layer in tail:
                layer.train()
            maps = model.drop(model.relu(model.norm(sent[(chosen := next(drawn))])))
            tokens = model.embed(maps.flatten(2).transpose(1, 2)).tanh()
            mixed = model.mix(tokens.transpose(1, 2)).relu().transpose(1, 2)
            loss = nn.functional.cross_entropy(
                model.head(model.hidden(mixed.flatten(1)).relu()), base.fit_data.labels[chosen]
            )
            adam.param_groups[0]["lr"] = 1e-2 * (1 + np.cos(np.pi * step / 12)) / 2
            adam.zero_grad()
            loss.backward()
            adam.step()
    x = base.score_data.images
    with torch.no_grad():
        torch.testing.assert_close(ours.stitched(x), model.eval()(base.sender._prepare(x)), rtol=1e-4, atol=1e-4)
    moved = next(t for name, t in ours.stitch.state_dict().items() if name.endswith("norm.running_mean"))
    assert not torch.equal(moved, base.sender._model.norm.running_mean)


class Told(nn.BatchNorm2d):
    """A BatchNorm that hands its mode on, as timm's does: a tracer goes through it."""

    def forward(self, x):
        told = {"training": self.training, "momentum": self.momentum or 0.0, "eps": self.eps}
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, **told)


class Fixed(Told):
    """One that is frozen on purpose: nothing in it is a parameter."""

    def __init__(self, channels):
        super().__init__(channels, affine=False)
        self.register_buffer("scale", torch.full((channels,), 0.5))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.scale, None, False)


class Moded(nn.Module):
    """Layers that are told their mode in every way."""

    def __init__(self, norm=Told, by_number=False):
        super().__init__()
        self.conv, self.norm, self.fixed = nn.Conv2d(1, 4, 3), norm(4), Fixed(4)
        self.plain, self.head, self.by_number = nn.BatchNorm2d(4), nn.Linear(4 * 36, 10), by_number

    def forward(self, x):
        if self.by_number and x.shape[2] != 8:  # a tracer of modules cannot follow it, since it looks at a number
            raise ValueError
        x = torch.relu(self.norm(self.conv(x)))
        x = nn.functional.dropout(x, 0.25, self.training)
        x = torch.dropout(self.plain(self.fixed(x)), p=0.25, train=self.training)
        return self.head(x.flatten(1))


def in_training(module, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module.train()(x)


@each("by_number", [False, True], ids=["torch.fx", "torch.export"])
def test_what_hands_its_mode_on_trains_in_training_mode(by_number):
    model = seeded(lambda: Moded(by_number=by_number))
    network = Network(model, example=few_digits().example)
    assert network.backend == ("torch.export" if by_number else "torch.fx")
    first = network.cuts.names[0]
    layers = Layers(network, first).build(network.cuts.find(first).shape, (10,))
    x = few_digits().fit.images[:64].float() / 255
    given, tail = model.conv(x), copy.deepcopy(model).train()
    assert torch.equal(layers.eval()(given), network(x))
    ours, theirs = in_training(layers, given), in_training(tail, x)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, network(x), atol=1e-2)
    torch.testing.assert_close(layers.eval()(given), tail.eval()(x))
    assert not torch.allclose(layers(given), network(x), atol=1e-2)


def test_a_batchnorm_over_all_batches_cannot_train_once_it_is_traced():
    model = seeded(lambda: Moded(norm=partial(Told, momentum=None)))
    with pytest.raises(CutError, match=r"cannot train: it is a BatchNorm over all batches \(momentum=None\)"):
        Layers(Network(model, example=few_digits().example), "conv")


def test_after_the_last_cut_they_are_a_probe():
    """One linear layer: from the same start the same steps."""
    base = trial("relu_2")  # the vector that the head reads
    layers, probe = Layers(base.sender, "relu_2"), Probe()
    ends = [
        make_problem(
            with_seam(base, receiver_cut=OUTPUT, stitch=s, fit=FEW),
            suture.core.activations.cache.Activations(),
            nn.Identity(),
        )
        for s in (layers, probe)
    ]
    tuned, linear = (family.build((24,), (10,)) for family in (layers, probe))
    (head,) = (module for module in tuned.modules() if isinstance(module, nn.Linear))
    linear[2].load_state_dict(head.state_dict())
    for end, stitch in zip(ends, (tuned, linear), strict=True):
        FEW.fit(replace(end, seed=0), stitch)
    assert torch.equal(head.weight, linear[2].weight)
    assert torch.equal(head.bias, linear[2].bias)
    assert not torch.equal(head.weight, base.sender._model.head.weight)


def test_layers_between_two_cuts_leave_the_others_frozen():
    """Freeze training, bansal2021, appendix B.4."""
    a, x = hybrids()[0], few_digits().score.images
    between = with_seam(
        trial(), sender_cut="conv", receiver=a, receiver_cut="hidden", stitch=Layers(a, "conv", "hidden")
    )
    assert torch.equal(measure(replace(between, fit=Random())).stitched(x), a(x))
    trained = measure(replace(between, fit=FEW))
    assert not torch.equal(trained.stitched(x), a(x))
    represented = trained.stitch(a.upto("conv")(x))
    assert torch.equal(trained.stitched(x), a.after("hidden")(represented))


@each("baseline", [linear_probe, partial(fine_tuned, fit=FEW), partial(retrained, fit=FEW), plugged])
def test_the_networks_are_frozen_bit_for_bit(baseline):
    chosen = baseline(trial())
    before = [state_bits(network.whole()) for network in chosen.seam.networks]
    flags = [p.requires_grad for network in chosen.seam.networks for p in network.whole().parameters()]
    measurement = measure(chosen)
    assert [state_bits(network.whole()) for network in chosen.seam.networks] == before
    assert not any(flags)
    assert not any(p.requires_grad for network in chosen.seam.networks for p in network.whole().parameters())
    assert not measurement.stitch.training
    assert not any(module.training for module in measurement.stitch.modules())
    again = measure(chosen)
    own, others = (
        {name: tensor_bits(tensor) for name, tensor in found.stitch.state_dict().items()}
        for found in (measurement, again)
    )
    assert own == others


class Methods(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 12), nn.Linear(12, 10)

    def flat(self, x):
        return x.flatten(1)

    def last(self, x):
        return self.head(x.relu())

    def forward(self, x):
        return self.last(self.first(self.flat(x)))


def test_layers_that_cannot_train_are_refused():
    base = trial()
    with pytest.raises(CutError, match="no layers of A lie after 'hidden' and up to 'conv'"):
        Layers(base.sender, "hidden", "conv")
    with pytest.raises(ShapeError, match="cannot join"):
        replace(base, stitch=Layers(base.sender, "embed"))
    model = seeded(Methods)
    stages = [("flat", model.flat), "first", ("last", model.last)]
    network = Network(model, example=few_digits().example, name="M", stages=stages)
    with pytest.raises(CutError, match="layers of M after 'first' cannot train: a stage is a method"):
        fine_tuned(with_seam(base, sender=network, sender_cut="first"))
    noise = replace(controls.clustered_noise(trial("hidden")), control="")
    with pytest.raises(NetworkError, match=r"no layers to train; leave out baselines\.retrained"):
        retrained(noise)
    with pytest.raises(ShapeError, match=r"conv → embed.*whose shapes agree, or train the sender's own"):
        fine_tuned(with_seam(base, sender_cut="conv", stitch=None), of="receiver")


# --- no stitch --------------------------------------------------------------------------------------------------------


@each("cut", ["conv", "embed", "hidden"])
def test_a_network_plugged_into_itself_is_itself(cut):
    base = trial(cut)
    alone = measure(plugged(with_seam(base, sender=base.receiver)))
    x = base.score_data.images
    assert torch.equal(alone.stitched(x), base.receiver(x))
    assert alone.penalties["loss"].value == alone.representation_error == alone.steps == 0
    assert plugged(base).stitch == Identity()


def test_what_has_another_shape_is_not_plugged_in():
    with pytest.raises(ShapeError, match=r"A → B at conv → hidden: .*8×4×4.*vector 24 without a stitch; leave out"):
        plugged(with_seam(trial(), sender_cut="conv", receiver_cut="hidden"))


# --- what the paper says of them --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_retraining_hides_a_sender_that_has_seen_nothing():
    """bansal2021, appendix B.3: at a middle cut its gap is below half of the stitching penalty."""
    a, b = convnets()
    data = digits()
    roles = (data.fit, data.validation, data.score)
    random = Trial(Seam.at(a.untrained(1), b, "stage2.pool"), *roles, fit=Converged(cap=1120))
    stitched, gap = (measure(t).penalty for t in (random, retrained(random, fit=SHORT)))
    assert stitched.value > 20
    assert gap.value < stitched.value / 2
    assert gap.high < stitched.low


# --- in the table -----------------------------------------------------------------------------------------------------

ALL = (
    linear_probe,
    partial(fine_tuned, fit=FEW),
    partial(retrained, fit=FEW),
    partial(retrained, of="receiver", fit=FEW),
    plugged,
)
NAMES = ["linear probe", "fine-tuned", "retrained", "retrained receiver", "plugged in"]


@cache
def table():
    a, b = hybrids()
    plan = curve(a, b, at=("conv", "hidden"), data=few_digits(), fit=FEW, controls=(controls.itself, *ALL))
    return run(plan, on=Local(workers=1))


def test_their_rows_lie_beside_those_of_the_trial():
    rows = table()[table()["score"] == "accuracy"]
    assert (rows["status"] == "ok").all()
    assert list(rows["control"]) == ["", "itself", *NAMES] * 2
    assert set(rows["sender_cut"]) == {"conv", "hidden"}
    ended = rows[rows["receiver_cut"] == OUTPUT]
    assert list(ended["control"]) == NAMES[:-1] * 2
    assert set(ended["receiver_depth"]) == {1.0}
    assert rows.groupby("control")["receiver_score"].nunique().eq(1).all()
    assert list(rows["stitch"])[2:7] == [
        "Probe()",
        "Layers(A after 'conv')",
        "Layers(A after 'conv', drawn anew)",
        "Layers(B after 'conv', drawn anew)",
        "Identity()",
    ]


def test_in_a_figure_they_lie_at_the_cut_of_the_trial():
    shown = curves.arrange_curve(table(), "accuracy")
    assert shown.cuts == ("conv", "hidden")
    for name in NAMES:
        rows = table()[(table()["score"] == "accuracy") & (table()["control"] == name)]
        assert list(shown.lines[name]["stitched"]) == list(rows["stitched"])


def test_in_a_matrix_they_are_in_no_triangle():
    depths = by_depth(table()).set_index("control")
    assert depths.loc[
        "linear probe", ["cells", "late_to_early_cells", "early_to_late_cells", "far_cells"]
    ].tolist() == [
        2,
        0,
        0,
        0,
    ]
    assert depths.loc["plugged in", "late_to_early_cells"] == 2
    panels = matrices.arrange_matrix(table())
    assert [block.cuts for block in panels.receivers] == [("conv", "hidden")]
    assert set(panels.panels) == {"", "plugged in"}


def test_a_baseline_of_a_control_bears_both_names():
    assert retrained(controls.untrained_sender(trial()), fit=FEW).control == "untrained sender, retrained"
    assert plugged(controls.shuffled_pairs(trial())).control == "shuffled pairs, plugged in"


def test_keys_tell_what_is_trained():
    base = trial("hidden")
    kinds = [
        base,
        linear_probe(base),
        linear_probe(base, probe=Probe(1)),
        fine_tuned(base),
        fine_tuned(base, of="receiver"),
        retrained(base),
        retrained(replace(base, seed=1)),
        retrained(base, of="receiver"),
        fine_tuned(base, fit=FEW),
        plugged(base),
    ]
    assert len({kind.key for kind in kinds}) == len({kind.fit_description for kind in kinds}) == len(kinds)
    a = base.sender
    same = Network(a._model, example=few_digits().example, name="another name")
    assert retrained(with_seam(base, sender=same)).key == retrained(base).key
    other = Layers(a.untrained(1), "hidden")
    assert replace(fine_tuned(base), stitch=other).key != fine_tuned(base).key


def test_they_are_forecast():
    said = suture.forecast([baseline(trial()) for baseline in ALL])
    assert said.left == len(ALL)
    assert said.memory.peak > 0


# --- on disk, and elsewhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [linear_probe, *ALL[1:]])
def test_a_stitched_network_comes_back_from_disk(baseline, tmp_path):
    measurement = measure(baseline(trial()))
    a, b = hybrids()
    found = Stitched.load(measurement.save(tmp_path), a, b)
    x = few_digits().score.images
    assert torch.equal(found(x), measurement.stitched(x))
    assert found.family == measurement.trial.family
    assert not can_fold(found) or baseline is plugged


def test_layers_of_a_third_network_have_to_be_given(tmp_path):
    base = trial()
    family = Layers(base.sender.untrained(5), "embed")
    measurement = measure(with_seam(base, receiver_cut=OUTPUT, stitch=family, fit=Random()))
    folder = measurement.save(tmp_path)
    with pytest.raises(
        CheckpointError, match="holds layers of A, neither its sender nor its receiver; give the family"
    ):
        Stitched.load(folder, *hybrids())
    x = base.score_data.images
    assert torch.equal(Stitched.load(folder, *hybrids(), family)(x), measurement.stitched(x))


@pytest.mark.slow
def test_a_pool_gives_the_bits_of_one_process():
    plan = curve(*hybrids(), at=("conv", "hidden"), data=few_digits(), fit=FEW, controls=(controls.itself, *ALL))
    pooled = run(plan, on=Local(workers=2))
    assert_frame_equal(pooled.drop(columns="seconds"), table().drop(columns="seconds"), check_exact=True)

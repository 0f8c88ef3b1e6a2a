"""Activations: right, computed once, within their budget, and nobody's to change."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from loops import each
from models import seeded
from suture import Network, Samples, measure
from suture.common.constants import CHUNK
from suture.common.errors import FitError
from suture.common.sizes import available_memory, physical_memory
from suture.core.activations import cache
from suture.core.activations.cache import MANY, Activations, Need, is_finite, run_stepwise
from suture.data import Data
from suture.data.noise import ClusteredNoise
from suture.fits import BestOf, LeastSquares, MatchActivations, Quick, Random, TaskLoss
from suture.measurement.trials import controls
from suture.measurement.trials.plans import curve
from trained import convnets, digits, few_digits, hybrids, tensor_bits


class Counting(nn.Module):
    """A layer that counts the samples that pass it, whoever runs it."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:  # not a probe
            Counting.seen[self.name] += len(x)
        return self.layer(x).relu()


STAGES = ["flatten", "one", "two", "three", "head"]


def counted(name: str, seed: int) -> Network:
    """Three counting layers, cut along stages (a tracer would look through them)."""
    Counting.seen.clear()
    torch.manual_seed(seed)
    layers = {stage: Counting(f"{name}.{stage}") for stage in STAGES[1:4]}
    model = nn.Sequential()
    for stage, layer in {"flatten": nn.Flatten(), **layers, "head": nn.Linear(6, 3)}.items():
        model.add_module(stage, layer)
    network = Network(model, example=torch.rand(3, 1, 2, 3), name=name, stages=STAGES)
    network.look_at(torch.rand(2, 1, 2, 3))  # once for a network, whatever is measured
    Counting.seen.clear()
    return network


def samples(n: int, seed: int, name: str = "noise") -> Samples:
    images = torch.rand(n, 1, 2, 3, generator=torch.Generator().manual_seed(seed))
    return Samples(name, images, torch.arange(n) % 3, tuple("abc"))


def test_activations_are_those_of_the_prefix():
    for network in (*hybrids(), *convnets()):
        cache = Activations()
        images = few_digits().score.images
        for cut in reversed(network.cuts):
            with torch.no_grad():
                torch.testing.assert_close(cache.at(network, cut, few_digits().score), network.upto(cut)(images))
        torch.testing.assert_close(cache.outputs(network, few_digits().score), network(images))


def test_each_layer_runs_once_for_all_cuts():
    a, data = counted("A", 0), samples(CHUNK + 20, 1)
    cache = Activations()
    for cut in ("one", "two", "three", "one", "three"):
        cache.at(a, cut, data)
    cache.outputs(a, data)
    assert Counting.seen == {"A.one": len(data), "A.two": len(data), "A.three": len(data)}


def test_each_layer_runs_once_however_many_trials_want_it():
    """Twice on the score data: once for the network's own score, once for the cuts."""
    a, b = counted("A", 0), counted("B", 1)
    data = Data("noise", samples(60, 1), samples(20, 2), samples(30, 3))
    trials = []
    for seed in range(3):
        fit = LeastSquares(rescale=bool(seed % 2))
        chosen = (controls.itself, controls.shuffled_pairs)
        trials += list(curve(a, b, data=data, fit=fit, controls=chosen, seeds=[seed]))
    cache = Activations()
    for trial in trials:
        measure(trial, cache)
    assert len(trials) == 3 * 4 * 3
    seen = {name: count for name, count in Counting.seen.items() if name.startswith("A")}
    assert seen == {"A.one": 140, "A.two": 140, "A.three": 140}, "60 + 20 + twice 30"


def test_whatever_the_name_of_the_data_and_its_pairs_the_images_are_the_same():
    a, data = counted("A", 0), samples(40, 1)
    cache = Activations()
    first = cache.at(a, "one", data)
    assert cache.at(a, "one", data.shuffled(0)) is first
    assert cache.at(a, "one", samples(40, 1, "another name")) is first
    assert Counting.seen == {"A.one": 40}


def test_other_images_and_other_weights_have_other_activations():
    a, b = counted("A", 0), counted("A", 1)
    cache = Activations()
    three = [cache.at(a, "one", samples(40, 1)), cache.at(b, "one", samples(40, 1)), cache.at(a, "one", samples(40, 2))]
    assert len({tensor_bits(tensor) for tensor in three}) == 3


def test_no_more_is_kept_than_the_budget():
    a, data = counted("A", 0), samples(40, 1)
    for budget in (0, 1, 40 * 6 * 4 - 1, 2 * 40 * 6 * 4, 10**9):
        cache, roomy = Activations(budget), Activations()
        for cut in ("one", "three", "two", "flatten", "one"):
            assert torch.equal(cache.at(a, cut, data), roomy.at(a, cut, data))
            assert sum(tensor.nbytes for tensor in (kept.tensor for kept in cache._kept.values())) <= budget


def test_processes_that_share_a_gpu_leave_half_of_it_to_the_fits(monkeypatch):
    whole = left = 80 * 2**30
    for _ in range(12):
        monkeypatch.setattr("suture.core.activations.cache.free_memory", lambda device, left=left: left)
        left -= Activations(sharing=12)._room_on(torch.device("cuda"))
    assert whole / 2 <= left <= 0.7 * whole


def test_what_was_used_last_is_kept_longest():
    a, data = counted("A", 0), samples(40, 1)
    cache = Activations(2 * 40 * 6 * 4)
    one = cache.at(a, "one", data)
    cache.at(a, "two", data)
    assert cache.at(a, "one", data) is one
    cache.at(a, "three", data)
    assert cache.at(a, "one", data) is one
    Counting.seen.clear()
    cache.at(a, "two", data)
    assert Counting.seen == {"A.two": 40}


def test_what_somebody_changed_is_computed_anew():
    a, data = counted("A", 0), samples(40, 1)
    cache = Activations()
    wanted = {cut: tensor_bits(Activations().at(a, cut, data)) for cut in ("one", "two", "three")}
    cache.at(a, "one", data)[3:5].mul_(2)
    cache.at(a, "two", data).relu_()
    assert {cut: tensor_bits(cache.at(a, cut, data)) for cut in ("three", "two", "one")} == wanted


def test_noise_is_drawn_and_takes_no_room_from_anybody():
    a, data = counted("A", 0), samples(40, 1)
    noise = ClusteredNoise((6,), 3)
    cache = Activations(40 * 6 * 4)
    one = cache.at(a, "one", data)
    assert torch.equal(cache.at(noise, "", data), noise.activations(data))
    cache.at(noise, "", data).zero_()
    assert torch.equal(cache.at(noise, "", data.shuffled(0)), noise.activations(data))
    assert cache.at(a, "one", data) is one


@each("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_activations_are_in_the_networks_own_floating_type(dtype):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.Linear(6, 3)).to(dtype)
    data = samples(40, 1)
    network = Network(model, example=data.example, name="A")
    cache = Activations()
    with torch.no_grad():
        flat = model[1](data.images.flatten(1).to(dtype))
        assert torch.equal(cache.at(network, "1", data), flat)
        assert torch.equal(cache.outputs(network, data), model[2](flat))


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).log()


@each("where", ["cut", "output"])
def test_what_is_not_finite_is_named(where):
    """Finite on the example, so that the network is accepted, and not on a black image."""
    body = [nn.Flatten(), nn.Linear(6, 6), nn.Linear(6, 3)]
    body = [Logarithm(), nn.Linear(6, 3)] if where == "cut" else [nn.Flatten(), nn.Identity(), Logarithm()]
    network = Network(nn.Sequential(*body), example=torch.rand(3, 1, 2, 3) / 2 + 0.1, name="A")
    dark = torch.full((CHUNK + 5, 1, 2, 3), 0.5)
    dark[CHUNK + 2] = 0
    shown = Samples("dark/score", dark, torch.zeros(CHUNK + 5, dtype=torch.int64), tuple("abcdef"))
    cache = Activations()
    place = f"'{network.cuts.names[-1]}'" if where == "cut" else "the output"
    named = f"activations of A at {place} on dark/score are not finite, first for sample {CHUNK + 2}; leave such"
    with pytest.raises(FitError, match=named):
        cache.at(network, network.cuts[-1], shown) if where == "cut" else cache.outputs(network, shown)
    assert not cache._kept


def test_what_does_not_fit_into_memory_is_refused_with_the_number_of_samples_that_would(monkeypatch):
    a, data = counted("A", 0), samples(40, 1)
    monkeypatch.setattr("suture.core.activations.cache.available_memory", lambda: 25 * 6 * 4)
    with pytest.raises(FitError, match=r"of A at 'one' on noise take 960 bytes.* 25 samples of 40 would fit"):
        Activations().at(a, "one", data)
    assert not Counting.seen, "nothing was computed in vain"
    assert len(Activations().at(a, "one", samples(25, 1))) == 25


def test_the_memory_that_is_available():
    assert 0 < available_memory() <= physical_memory()


# --- needs, and what comes from elsewhere -----------------------------------------------------------------------------


def needs(network: Network, data: Samples) -> list[Need]:
    return [Need(network, data, index) for index in range(1, len(network.cuts) + 2)]


@each("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_need_knows_its_shape_and_size(dtype):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.Linear(6, 3)).to(dtype)
    data = samples(40, 1)
    for need in needs(Network(model, example=data.example, name="A"), data):
        got = Activations().get(need)
        assert (need.shape, need.nbytes) == (got.shape, got.nbytes)


def test_the_key_of_a_need_is_what_decides_the_activations():
    a, b, data = counted("A", 0), counted("A", 1), samples(40, 1)
    every = [*needs(a, data), *needs(b, data), *needs(a, samples(40, 2))]
    assert len({need.key for need in every}) == len(every)
    assert [need.key for need in needs(a, samples(40, 1, "another name").shuffled(0))] == [
        need.key for need in needs(counted("A", 0), data)
    ]


# --- many images: fused segments --------------------------------------------------------------------------------------


class Shrinking(nn.Module):
    """Maps, then maps of one pixel, then vectors; a BatchNorm that folds and a view of maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.pool, self.pixel = nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 7, 1)
        self.second, self.head = nn.Conv2d(7, 6, 1, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.norm(self.conv(x)).relu())
        h = self.second(self.pixel(h).relu()).relu()
        return self.head(h.view(h.size(0), -1))


class Viewing(nn.Module):
    """Flattens maps in a way that channels which lie last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).relu()
        return self.head(h.view(h.size(0), -1).tanh())


def shrinking() -> Network:
    return Network(seeded(Shrinking), example=torch.rand(3, 1, 2, 3), name="shrinking")


def fused_networks() -> list[Network]:
    viewing = Network(seeded(Viewing), example=torch.rand(3, 1, 2, 3), name="viewing")
    return [shrinking(), viewing]


@each("network", lambda: [*fused_networks(), hybrids()[0], convnets()[0]], few=1)
def test_of_many_images_the_bits_do_not_depend_on_what_was_asked_before(network):
    data = samples(MANY + 90, 1) if network.name in ("shrinking", "viewing") else digits().fit
    assert len(data) >= MANY
    wanted = {cut.name: tensor_bits(Activations().at(network, cut, data)) for cut in network.cuts}
    end = tensor_bits(Activations().outputs(network, data))
    cuts = list(network.cuts)
    for order in (cuts, cuts[::-1], cuts[1::2] + cuts[::2]):
        cache = Activations()
        for cut in order:
            assert tensor_bits(cache.at(network, cut, data)) == wanted[cut.name], cut.name
        assert tensor_bits(cache.outputs(network, data)) == end
    state = network.state_digest()
    assert state == network.wrapped_digest


@each("network", lambda: [*fused_networks(), hybrids()[0], convnets()[0]], few=1)
def test_of_many_images_they_are_the_prefixs_to_rounding(network):
    data = samples(MANY + 90, 1) if network.name in ("shrinking", "viewing") else digits().fit
    cache = Activations()
    for cut in reversed(network.cuts):
        with torch.no_grad():
            wanted = network.upto(cut)(data.images)
        found = cache.at(network, cut, data)
        assert found.is_contiguous()
        assert float((found - wanted).square().mean().sqrt()) <= 1e-5 * float(wanted.square().mean().sqrt())


def _eager(network: Network, data: Samples) -> list[str]:
    parts = [torch.cat([run_stepwise(network.upto(cut), x) for x in data.images.split(CHUNK)]) for cut in network.cuts]
    return [tensor_bits(part) for part in parts]


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Raising(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("view size is not compatible with input tensor's size and stride")


@pytest.mark.parametrize("bad", [Wrong(), Raising(), None], ids=["wrong", "raising", "none"])
def test_where_fused_pieces_disagree_the_network_s_own_run(monkeypatch, bad):
    network, data = shrinking(), samples(MANY + 90, 1)
    with torch.no_grad():
        eager = _eager(network, data)
    monkeypatch.setattr(
        "suture.core.activations.cache.fuse_segments", lambda network, start, end: [bad] * (end - start)
    )
    cache = Activations()
    assert [tensor_bits(cache.at(network, cut, data)) for cut in network.cuts] == eager
    assert cache.notes == []


def test_few_images_run_through_the_network_s_own_pieces(monkeypatch):
    monkeypatch.setattr(
        "suture.core.activations.cache.fuse_segments", lambda *given: pytest.fail("fused segments were made")
    )
    network, data = shrinking(), samples(MANY - 1, 1)
    with torch.no_grad():
        eager = _eager(network, data)
    cache = Activations()
    assert [tensor_bits(cache.at(network, cut, data)) for cut in network.cuts] == eager


def test_what_is_finite_has_a_sum_that_need_not_be():
    assert is_finite(torch.ones(3))
    assert is_finite(torch.full((3,), 3e38))
    for wrong in (torch.inf, -torch.inf, torch.nan):
        assert not is_finite(torch.tensor([1.0, wrong]))
    assert not is_finite(torch.tensor([torch.inf, -torch.inf]))


def test_what_is_too_large_to_keep_is_computed_row_by_row(monkeypatch):
    data, (a, _) = few_digits(), convnets()
    fit, cut = data.fit, a.cuts[1]
    whole = Activations().at(a, cut, fit)
    assert Activations().rows(a, cut, fit) is not None
    monkeypatch.setattr(cache, "RECOMPUTED", whole.nbytes - 1)
    kept = Activations()
    rows = kept.rows(a, cut, fit)
    assert isinstance(rows, cache.Recomputed)
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == (whole.shape, whole.ndim, whole.dtype, len(whole))
    chosen = torch.randperm(len(fit))[:70]
    for ours, theirs in (
        (rows[chosen], whole[chosen]),
        (rows[3:20], whole[3:20]),
        (rows[:], whole),
        (rows.narrow(0, 5, 40)[torch.tensor([7, 0])], whole[[12, 5]]),
        (torch.cat([*rows.split(100)]), whole),
        (rows.to(torch.float64)[:3], whole[:3].double()),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(rows[chosen], Activations().rows(a, cut, fit)[chosen])
    assert not kept._kept


@pytest.mark.slow
def test_trials_of_recomputed_activations_say_the_same_to_rounding(monkeypatch):
    data, (a, b) = few_digits(), convnets()
    wants = [controls.shuffled_pairs, controls.clustered_noise]
    best = BestOf((LeastSquares(), TaskLoss(start=Random(), steps=40, check=20)))
    for fit in (Quick(steps=70), TaskLoss(steps=40, batch=32), best, MatchActivations(steps=20)):
        plan = curve(a, b, data=data, at="stage1", fit=fit, controls=wants)
        kept = [measure(trial) for trial in plan]
        with monkeypatch.context() as patched:
            patched.setattr(cache, "RECOMPUTED", 0)
            again = [measure(trial) for trial in plan]
        for before, after in zip(kept, again, strict=True):
            assert abs(before.scores["accuracy"].value - after.scores["accuracy"].value) <= 0.02, str(fit)
            assert before.representation_error == pytest.approx(after.representation_error, rel=0.02), str(fit)


def test_recomputed_activations_too_large_for_memory_are_refused(monkeypatch):
    data, (a, _) = few_digits(), convnets()
    monkeypatch.setattr(cache, "RECOMPUTED", 0)
    rows = Activations().rows(a, a.cuts[0], data.fit)
    monkeypatch.setattr(cache, "available_memory", lambda: 1000)
    assert len(rows[:CHUNK]) == CHUNK
    with pytest.raises(FitError, match="out of memory"):
        rows[:]

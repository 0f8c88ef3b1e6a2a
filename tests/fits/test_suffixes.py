"""Which suffix a fit goes through: the fused one where it agrees, and it says so where it does not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn

from loops import each
from problems import planted
from suture import Network, Seam, Trial, measure
from suture.core.fused import Fused, fuse_suffix
from suture.fits import Quick
from suture.fits import suffix as suffixes
from suture.fits.suffix import choose_suffix
from trained import bits, convnets, few_digits

HALF = [torch.bfloat16, torch.float32]


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has bfloat16, whatever this one has."""
    monkeypatch.setattr(suffixes, "half_precision", lambda device: torch.bfloat16)


class Off(nn.Module):
    """A layer whose outputs are all off, by so much."""

    def __init__(self, own: nn.Module, by: float) -> None:
        super().__init__()
        self.own, self.by = own, by

    def forward(self, x: Tensor) -> Tensor:
        out = self.own(x.float())
        return out + self.by * torch.where(torch.arange(out.shape[1]) % 2 == 0, 1.0, -1.0)


class Refusing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such layout")


def own() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).requires_grad_(False)


def fused_of(module: nn.Module, dtype: torch.dtype) -> Fused:
    return Fused(fx.GraphModule({"own": module}, _calls()), dtype, copies=False)


def _calls() -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.call_module("own", (graph.placeholder("x"),)))
    return graph


PROBE = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("half")
def test_the_cheapest_that_agrees_is_taken():
    made = {dtype: fused_of(Off(own(), 1e-5), dtype) for dtype in HALF}
    chosen = choose_suffix(own(), made.get, PROBE)
    assert (chosen.run, chosen.note) == (made[torch.bfloat16], "")


@pytest.mark.usefixtures("half")
@each(
    ("bad", "why"),
    [
        (Off(own(), 1.0), "differs in bfloat16 by"),
        (Off(own(), float("nan")), "differs in bfloat16 by nan"),
        (Refusing(), "does not run in bfloat16 (no such layout)"),
    ],
)
def test_one_that_disagrees_is_refused_and_a_note_says_so(bad, why):
    made = {torch.bfloat16: fused_of(bad, torch.bfloat16), torch.float32: fused_of(Off(own(), 1e-6), torch.float32)}
    chosen = choose_suffix(own(), made.get, PROBE)
    assert chosen.run is made[torch.float32]
    assert f"the fused suffix {why}" in chosen.note
    assert chosen.note.endswith("fitted through float32")
    receiver, neither = own(), {dtype: fused_of(bad, dtype) for dtype in HALF}
    chosen = choose_suffix(receiver, neither.get, PROBE)
    assert chosen.run is receiver
    assert "in bfloat16" in chosen.note
    assert "in float32" in chosen.note
    assert chosen.note.endswith("fitted through the receiver itself")


def test_float32_must_agree_better_than_sixteen_bits():
    by = 0.01
    with torch.no_grad():
        out = own()(PROBE)
    by *= float((out - out.mean(0)).square().mean().sqrt())
    assert choose_suffix(own(), lambda dtype: fused_of(Off(own(), by), dtype), PROBE).note.count("float32") == 1 or (
        suffixes.half_precision(PROBE.device) is not None
    )
    assert suffixes.ALLOWED < 0.01 < suffixes.ALLOWED_HALF


def test_where_there_is_no_fused_suffix_nothing_is_said():
    receiver = own()
    for fused in (None, lambda dtype: None):
        assert (choose_suffix(receiver, fused, PROBE).run, choose_suffix(receiver, fused, PROBE).note) == (receiver, "")


def trial(fit: Quick = Quick(steps=70)) -> Trial:  # noqa: B008
    a, b = convnets()
    roles = few_digits()
    return Trial(Seam.at(a, b, "stage2.relu"), roles.fit, roles.validation, roles.score, fit=fit)


def _wrong(network: Network, cut: object, dtype: torch.dtype) -> Fused:
    return fused_of(Off(network.after(cut), 3.0), torch.float32)


def test_a_trial_whose_fused_suffix_is_wrong_is_measured_through_the_receiver(monkeypatch):
    monkeypatch.setattr("suture.measurement.trials.measure.fuse_suffix", lambda network, cut, dtype: None)
    without = measure(trial())
    monkeypatch.setattr("suture.measurement.trials.measure.fuse_suffix", _wrong)
    wrong = measure(trial())
    assert bits(wrong) == bits(without)
    assert not without.notes
    assert [note for note in wrong.notes if "fitted through the receiver itself" in note]


def test_a_trial_goes_through_the_fused_suffix_where_it_agrees(monkeypatch):
    made = []

    def watched(network: Network, cut: object, dtype: torch.dtype) -> Fused | None:
        made.append(dtype)
        return fuse_suffix(network, cut, dtype)

    monkeypatch.setattr("suture.measurement.trials.measure.fuse_suffix", watched)
    measurement = measure(trial())
    assert made
    assert measurement.notes == ()


def test_a_stitch_without_a_suffix_of_its_own_is_fitted_all_the_same():
    p, stitch, accuracy = planted()
    Quick().fit(replace(p, fused=lambda dtype: None), stitch)
    assert accuracy(stitch) > 0.9

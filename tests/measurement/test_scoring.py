"""Scores through a fused suffix: no prediction is another for it, whatever the margins."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from loops import each
from suture import Seam, Trial, measure
from suture.common.constants import CHUNK
from suture.core.activations.cache import run_stepwise
from suture.core.network.segments import Frozen, Segment
from suture.data import Samples
from suture.fits import LeastSquares
from suture.measurement.trials.measure import LEAST, compare_activations, compute_outputs
from trained import bits, convnets, digits

OWN = Frozen([Segment(nn.Identity())])
COUNT = LEAST + 300


class Blurred(nn.Module):
    """Outputs that are each off by up to ``by``, up and down in turn; counts the images that it sees."""

    def __init__(self, by: float, where: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.by, self.where, self.seen = by, where, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.where(x + self.by * torch.sign(torch.sin(1e4 * x)))


def logits(share: float = 0.05, count: int = COUNT, classes: int = 5) -> Tensor:
    """Outputs of which a share has a second largest that is as near as 1e-6 to the largest."""
    random = torch.Generator().manual_seed(0)
    out = torch.randn(count, classes, generator=random)
    first, second = out.topk(2, 1).indices.unbind(1)
    rows = torch.arange(count)
    margins = torch.where(
        torch.rand(count, generator=random) < share,
        10 ** (-6 + 5 * torch.rand(count, generator=random)),
        0.5 + torch.rand(count, generator=random),
    )
    out[rows, first] = out[rows, second] + margins
    return out


def scored(data: Tensor, fused: Callable[[torch.dtype], nn.Module | None] | None):
    notes: list[str] = []
    (found,) = compute_outputs(OWN, fused, lambda chosen: data[chosen], len(data), notes=notes)
    return found, tuple(notes)


def test_the_predictions_are_the_receivers_however_close_two_classes_are():
    data = logits()
    for by in (1e-4, 1e-3, 1e-2):
        blurred = Blurred(by)
        with torch.no_grad():
            assert (blurred(data).argmax(1) != data.argmax(1)).any(), "nothing would go wrong"
        found, notes = scored(data, lambda dtype, blurred=blurred: blurred)
        assert torch.equal(found.argmax(1), data.argmax(1))
        assert (found != data).any(), "all was computed by the receiver itself"
        assert float((found - data).abs().max()) <= by * 1.01
        assert notes == ()


def test_the_first_chunk_is_the_receivers_own():
    data = logits()
    found, _ = scored(data, lambda dtype: Blurred(1e-3))
    assert torch.equal(found[:CHUNK], data[:CHUNK])


def test_where_too_many_are_in_doubt_the_receiver_scores():
    data = logits()
    found, notes = scored(data, lambda dtype: Blurred(0.5))
    assert torch.equal(found, data)
    doubt = "too many predictions would be in doubt through the fused suffix"
    assert notes == (f"{doubt}: scored through the receiver itself",)


def test_no_score_sees_sixteen_bits():
    asked = []

    def fused(dtype: torch.dtype) -> nn.Module:
        asked.append(dtype)
        return Blurred(1e-6)

    scored(logits(), fused)
    assert asked == [torch.float32]


def test_few_images_are_the_receivers_bit_for_bit():
    data = logits(count=LEAST - 1)
    blurred = Blurred(1e-3)
    found, notes = scored(data, lambda dtype: blurred)
    assert torch.equal(found, data)
    assert (blurred.seen, notes) == (0, ())


def test_without_a_fused_suffix_all_are_the_receivers():
    data = logits()
    assert torch.equal(scored(data, None)[0], data)
    found, notes = scored(data, lambda dtype: None)
    assert torch.equal(found, data)
    assert notes == (), "no predictions were in doubt"


@each("bad", [float("nan"), float("inf")], ids=str)
@each("row", [3, CHUNK + 3], ids=["on the probe", "later"])
def test_what_is_not_finite_never_gets_into_the_scores(bad, row):
    data = logits()
    marked = data[row, 0]

    def broken(out: Tensor) -> Tensor:
        hit = (out[:, 0] - marked).abs() < 2e-3
        return torch.where(hit[:, None], torch.full_like(out, bad), out)

    found, _ = scored(data, lambda dtype: Blurred(1e-3, broken))
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), data.argmax(1))


def test_a_fused_suffix_that_cannot_run_is_refused():
    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no such layout")

    data = logits()
    found, notes = scored(data, lambda dtype: Refusing())
    assert torch.equal(found, data)
    assert len(notes) == 1


def test_one_output_leaves_no_doubt():
    data = torch.randn(COUNT, 1, generator=torch.Generator().manual_seed(0))
    found, notes = scored(data, lambda dtype: Blurred(1e-3))
    assert notes == ()
    torch.testing.assert_close(found, data, rtol=0, atol=2e-3)


# --- in a trial -------------------------------------------------------------------------------------------------------


def many() -> Samples:
    """More images than are scored eagerly: those that the digits are fitted to."""
    return replace(digits().fit, name="digits/many")


def trial(**settings) -> Trial:
    a, b = convnets()
    roles = digits().limited(fit=300)
    plain = {"fit_data": roles.fit, "validation_data": roles.validation, "score_data": many(), "fit": LeastSquares()}
    return Trial(Seam.at(a, b, "stage1.relu"), **plain | settings)


def test_accuracies_are_those_of_the_receiver_itself(monkeypatch):
    assert len(many()) >= LEAST
    fused = measure(trial())
    assert fused.notes == ()
    monkeypatch.setattr("suture.measurement.trials.measure.fuse_suffix", lambda *given: None)
    eager = measure(trial())
    assert fused.scores.accuracy == eager.scores.accuracy
    assert fused.penalties["accuracy"] == eager.penalties["accuracy"]
    loss, wanted = (m.scores["loss"] for m in (fused, eager))
    assert loss.value == pytest.approx(wanted.value, abs=1e-5)


def test_the_outputs_of_few_images_are_the_eager_ones(monkeypatch):
    few = trial(score_data=digits().score)
    fused = measure(few)
    monkeypatch.setattr("suture.measurement.trials.measure.fuse_suffix", lambda *given: None)
    assert bits(measure(few)) == bits(fused)


def test_stepwise_is_what_eager_means():
    data = logits(count=40)
    assert torch.equal(scored(data, None)[0], run_stepwise(OWN, data))


@each("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_representation_error_does_not_overflow_where_the_receivers_numbers_do(dtype):
    own = (400 * torch.randn(300, 5, generator=torch.Generator().manual_seed(0))).to(dtype)
    sent = (own.double() + 100 * torch.randn(300, 5, generator=torch.Generator().manual_seed(1))).to(dtype)
    a, b = sent.double(), own.double()
    wanted = float((a - b).square().sum() / (b - b.mean(0)).square().sum())
    assert compare_activations(lambda given: given, sent, own)[0] == pytest.approx(wanted, rel=1e-4)

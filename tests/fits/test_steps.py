"""StaticSteps of the default fit: a plain loop's, and the same if a device records one and replays it."""

import pytest
import torch
from torch import Tensor, nn

from problems import real
from suture.core.stitches import Conv
from suture.fits.base import Problem
from suture.fits.coordinates import Coordinates, measure_layers
from suture.fits.descent import draw_batches
from suture.fits.steps import BETAS, WARM, Batches, StaticSteps

RATE, BATCH = 0.1, 64


def place() -> tuple[Problem, Coordinates]:
    p, stitch = real("conv", Conv(), fit=300)
    stitch.eval()
    return p, Coordinates(stitch, measure_layers(stitch, p.fit.activations, None))


def make() -> StaticSteps:
    p, coordinates = place()
    return StaticSteps(p, coordinates, p.suffix, Batches(p, BATCH, torch.device("cpu")), RATE)


def test_they_are_those_of_a_plain_loop() -> None:
    p, coordinates = place()
    adam = torch.optim.Adam(coordinates.groups(RATE), betas=BETAS)
    drawn, seen, losses = draw_batches(len(p.fit.labels), BATCH, p.seed), [], []
    for _ in range(12):
        chosen = next(drawn)
        loss = nn.functional.cross_entropy(p.suffix(coordinates(p.fit.activations[chosen])), p.fit.labels[chosen])
        adam.zero_grad()
        torch.autograd.backward(loss, inputs=list(coordinates.free.values()))
        adam.step()
        seen.append({name: made.detach().clone() for name, made in coordinates.parameters().items()})
        losses.append(float(loss.detach()))
    steps = make()
    steps.take(7)
    steps.take(5)
    for count in (5, 12):
        state, mean = steps.mean(count)
        for name, value in state.items():
            wanted = torch.stack([each[name] for each in seen[-count:]]).mean(0)
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
        assert mean == pytest.approx(sum(losses[-count:]) / count, rel=1e-5)
        steps = make()
        steps.take(7)
        steps.take(5)
    assert steps.taken == 12


def test_a_mean_is_only_over_steps_that_were_taken_together() -> None:
    steps = make()
    steps.take(4)
    steps.take(4)
    with pytest.raises(ValueError, match="the last 6 of them"):
        steps.mean(6)


def test_batches_are_drawn_once_for_all() -> None:
    p, _ = place()
    batches = Batches(p, BATCH, torch.device("cpu"))
    late, early = batches.rows(3, 5), batches.rows(0, 5)
    drawn = draw_batches(len(p.fit.labels), BATCH, p.seed)
    assert all(torch.equal(one, next(drawn)) for one in early)
    assert all(torch.equal(one, other) for one, other in zip(late, early[3:], strict=True))


class Replayed:
    """Stands for a recorded step: the same operations on the same tensors, whatever these hold by then."""

    def __init__(self, steps: StaticSteps) -> None:
        self.steps, self.replays = steps, 0

    def replay(self) -> None:
        self.replays += 1
        self.steps._step(*self.steps._static)  # type: ignore[arg-type]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processor pass for a GPU, but for the recording."""
    init = StaticSteps.__init__

    def is_one(self: StaticSteps, *given: object) -> None:
        init(self, *given)  # type: ignore[arg-type]
        self.is_cuda = True

    monkeypatch.setattr(StaticSteps, "__init__", is_one)
    monkeypatch.setattr(StaticSteps, "_step_aside", lambda self, given: self._step(*given))


def taken(steps: StaticSteps) -> tuple[dict[str, Tensor], float]:
    steps.take(10)
    return steps.mean(10)


def test_a_replayed_step_reads_only_what_is_put_in_its_place(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticSteps, "_record", lambda self: Replayed(self))
    replayed = make()
    state, loss = taken(replayed)
    assert isinstance(replayed._graph, Replayed)
    assert (replayed._graph.replays, replayed.note) == (10 - WARM, "")
    monkeypatch.undo()
    wanted, its_loss = taken(make())
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    assert loss == its_loss


def test_where_recording_fails_steps_run_one_by_one_and_a_note_says_so(
    pretended: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StaticSteps) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(StaticSteps, "_record", fail)
    refused = make()
    state, _ = taken(refused)
    said = "steps are not recorded on the GPU (operation not permitted when stream is capturing): they run one by one"
    assert refused.note == said
    monkeypatch.undo()
    wanted, _ = taken(make())
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)

"""Outputs that are too large to be held for all samples: scores are the same in parts, and few outputs live at once."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import suture
from loops import each
from suture.core.activations import cache
from suture.core.activations.cache import Activations, Need, rows_at_once
from suture.data.tasks import IGNORED, DenseClassification, MultiLabel, NextToken, OwnOutputs, Regression, Task
from suture.fits import Fit, LeastSquares, Quick, TaskLoss
from suture.measurement.scores import pooled
from suture.measurement.scores.scores import Accuracy, Score, compute_values
from suture.measurement.scores.traits import Trait
from suture.measurement.trials import measure as measuring
from suture.measurement.trials.measure import Predicted, measure
from suture.measurement.trials.plans import curve
from suture.runs import forecast

WORDS, LENGTH = 53, 16  #: no other tensor has an axis of 53
TASK = NextToken(bytes_per_token=2.0)
TEXT = 4 * WORDS * LENGTH  #: bytes of the outputs for a text


class Model(nn.Module):
    """A language model of two layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.layer, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids)).cumsum(1).relu())


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors with an axis of ``WORDS`` that live at once; ``most`` is their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.owners, self.now, self.most = Counter[int](), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and WORDS in tensor.shape and tensor.numel() > WORDS * LENGTH:
                storage = tensor.untyped_storage()
                place, size = storage.data_ptr(), storage.nbytes()
                self.now += size if not self.owners[place] else 0
                self.owners[place] += 1
                weakref.finalize(tensor, self.forget, place, size)
        self.most = max(self.most, self.now)
        return out

    def forget(self, place: int, size: int) -> None:
        self.owners[place] -= 1
        self.now -= size if not self.owners[place] else 0


@contextmanager
def small_parts(texts: int = 4) -> Iterator[None]:
    """Let so many texts pass at once and be scored at once, as if their outputs were large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "PASS", 2 * texts * TEXT)
        for module in (cache, measuring, pooled, forecast):
            patch.setattr(module, "PART", texts * TEXT)
        yield


def data_of(texts: int, task: Task = TASK) -> suture.Data:
    ids = torch.randint(WORDS, (40 + texts, LENGTH), generator=torch.Generator().manual_seed(0))
    return suture.load_data(((ids[:40], None), (ids[40:], None)), name=f"{texts} texts", task=task)


def trial_of(texts: int, fit: Fit, task: Task = TASK) -> suture.Trial:
    data = data_of(texts, task)
    one, other = (suture.Network(Model(seed), example=data.example, name=f"model {seed}") for seed in (0, 1))
    (trial,) = curve(one, other, data=data, at=["layer"], fit=fit, controls=())
    return trial


@pytest.mark.slow
@each("fit", [LeastSquares(), TaskLoss(steps=4, batch=24, check=2)], ids=["closed form", "descent"])
def test_however_many_texts_are_scored_no_more_outputs_live_at_once(fit):
    most = {}
    for texts in (20, 80):
        with small_parts(), Living() as living:
            assert rows_at_once(trial_of(texts, fit).receiver) == 4
            trial = trial_of(texts, fit)
            living.most = 0
            measure(trial)
        most[texts] = living.most
    assert most[20] == most[80] <= 4 * TEXT * (1 + 4 * 2), "itself, and four of twice its size"
    assert most[80] >= 4 * TEXT, "nothing was counted"


def test_held_at_once_they_would_be_counted():
    with Living() as living:
        measure(trial_of(80, LeastSquares()))
    assert living.most >= 80 * TEXT


@pytest.mark.slow
@each("fit", [LeastSquares(), TaskLoss(steps=4, batch=24, check=2), Quick()], ids=str)
@each("task", [TASK, OwnOutputs()], ids=lambda task: task.name)
def test_a_trial_in_parts_gives_the_scores_of_the_whole(fit, task):
    whole = measure(trial_of(30, fit, task))
    with small_parts(4 if fit != Quick() else 16):
        parts = measure(trial_of(30, fit, task))
    for mine, own in ((parts.scores, whole.scores), (parts.receiver, whole.receiver), (parts.sender, whole.sender)):
        assert list(mine) == list(own)
        for name in own:
            assert mine[name].value == pytest.approx(own[name].value, rel=2e-3)
    assert parts.trial.key == whole.trial.key


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole_numbers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


def padded(ids: Tensor) -> Tensor:
    return ids.masked_fill(torch.arange(ids.shape[1]) >= 2 + whole_numbers(ids.shape[1] - 1, len(ids), 1), IGNORED)


@dataclass
class Named:
    """The values of samples whose outputs are known."""

    labels: Tensor
    name: str = "drawn"

    def __len__(self) -> int:
        return len(self.labels)


CASES: dict[str, tuple[tuple[Score, ...], Tensor, Tensor]] = {
    "classes": ((Accuracy(), Accuracy((1,)), Predicted()), drawn(90, 5), whole_numbers(5, 90)),
    "rare class": ((Accuracy((4,)), Trait("last", Accuracy((4,)))), drawn(90, 5), (torch.arange(90) > 85) * 4),
    "tokens": (pooled.default_scores(NextToken(2.0)), drawn(90, 6, 7), padded(whole_numbers(7, 90, 6))),
    "positions": (pooled.default_scores(DenseClassification("first")), drawn(90, 3, 4, 4), whole_numbers(3, 90, 4, 4)),
    "labels": (pooled.default_scores(MultiLabel()), drawn(90, 4), whole_numbers(2, 90, 4)),
    "numbers": (pooled.default_scores(Regression()), drawn(90, 4), drawn(90, 4, seed=3)),
    "embeddings": (pooled.default_scores(OwnOutputs()), drawn(90, 6), drawn(90, 6) + drawn(90, 6, seed=2)),
}


class Rank(Score):
    """The share of samples whose largest output is smaller: a value that needs all samples, as ``pooled`` says."""

    name, unit, higher_is_better, pooled = "rank", "raw", None, True

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.amax(1).argsort().argsort().double() / len(logits)


CASES["a user's of all samples"] = ((Rank(), Trait("rank of two", Rank())), drawn(90, 5), whole_numbers(5, 90))


@each("case", CASES)
@each("rows", [1, 7, 64, 89])
def test_scores_in_parts_have_the_bits_of_the_whole(case, rows):
    scores, outputs, targets = CASES[case]
    labels = targets if targets.dtype == torch.int64 else torch.zeros(90, dtype=torch.int64)
    samples = Named(labels)
    never: Callable[[], nn.Module] = nn.Identity
    whole = compute_values(scores, [outputs], samples, never, targets)
    parts = compute_values(scores, outputs.split(rows), samples, never, targets)
    for score in scores:
        assert torch.equal(parts[score.name], whole[score.name])
        if not score.pooled:
            chosen = score.selects(labels)
            assert torch.equal(whole[score.name], score.per_sample(outputs[chosen], targets[chosen]))


def test_the_networks_own_outputs_are_kept_nowhere_if_they_are_large():
    trial, kept = trial_of(80, LeastSquares()), Activations()
    with small_parts():
        measure(trial, kept)
        own = Need(trial.receiver, trial.score_data, len(trial.receiver.cuts) + 1)
        assert own.is_streamed
        assert kept._find(own) is None
        assert {need.network for need in trial.streamed} == {trial.sender, trial.receiver}
        assert all(need.index <= len(need.network.cuts) for need in trial.needs)
        assert torch.equal(torch.cat([*kept.output_parts(trial.receiver, trial.score_data)]), kept.get(own))


def test_the_gradient_of_a_loss_in_parts_is_that_of_the_whole():
    trial = trial_of(20, TaskLoss())
    stitch = measuring.build_stitch(trial)
    found = []
    for texts in (4, 256):
        with small_parts(texts):
            problem = measuring.make_problem(trial, Activations(), stitch)
        loss = trial.fit.loss(problem, problem.fit, torch.device("cpu"))
        chosen = torch.arange(18)
        value = loss(stitch(problem.fit.activations[chosen]), chosen)
        found.append((problem.rows, value, *torch.autograd.grad(value, [*stitch.parameters()])))
    assert [rows for rows, *_ in found] == [4, 256]
    for part, whole in zip(found[0][1:], found[1][1:], strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-7)


def test_the_forecast_does_not_grow_with_the_texts():
    with small_parts():
        few, many = (forecast.estimate_memory([trial_of(texts, LeastSquares())]).peak for texts in (20, 80))
    assert few == many
    few, many = (forecast.estimate_memory([trial_of(texts, LeastSquares())]).peak for texts in (20, 80))
    assert many - few >= 60 * 2 * TEXT

"""A prototype: stitches fitted side by side on a device that a single one leaves idle; and its stitches per second.

    python benchmarks/batched.py [--device cuda] [--width 16] [--images 10000] [--together 1 4 16 64]

A small network leaves a GPU idle on a batch of 32; on 32 batches of 32 it does not. So trials whose stitches ``Fast``
fits into the same suffix take their steps in lockstep, and each pass through the suffix is shared. Each is measured by
``suture.measure`` as ever, in a thread of its own, of which one at a time runs: it stops when its descent needs losses,
and goes on when those of all have been computed in one pass. Every stitch begins, draws, steps and stops as it would
alone; what it is told differs only by the rounding of passes with more images. That rounding is why this is no part of
the package: there, a trial gives the same bits in any company. It comes back if a measurement on a GPU admits it.

The scores are not computed together, nor are activations kept on the device: both would be the next things to do.

The benchmark: two ResNet-18 of one width, without training (what is timed does not depend on what they know), on random
images of 32×32 pixels, stitched at one block by the default fit from as many seeds; the fit and the score data have
``--images`` each. Once per repeat every number of stitches is timed in turn; medians, as ratios to one at a time too.
The numbers of steps differ among stitches, so a rate is also given in steps. With ``--check`` accuracies measured
together are compared with those alone. Nothing else should run meanwhile.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suture import Failure, Measurement, Network, Samples, Seam, Trial, measure
from suture.common.seeds import undisturbed
from suture.core.activations.cache import Activations
from suture.core.fused import fuse_suffix
from suture.fits import Fast, Side, fast
from suture.measurement.trials import measure as measuring
from suture.measurement.trials.measure import attempt
from suture.zoo.networks import resnet

IMAGES = 4096  #: in a shared pass, at most


@dataclass(frozen=True, eq=False)
class Question:
    """Represented tensors whose cross-entropy a descent wants to know, and maybe the gradient of their mean."""

    suffix: nn.Module
    represented: Tensor
    labels: Tensor
    gradient: bool


Answer = tuple[Tensor, Tensor | None]
"""The loss of every sample, and the gradient of their mean by the represented tensors if it was asked for."""


class Worker(threading.Thread):
    """Work that stops when it asks a question; only ``resume`` lets it run, until the next one."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.notes = work, list[str]()
        self.question: Question | None = None
        self.answer: Answer | Exception | None = None
        self._may_go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        self._may_go.acquire()
        self.result = self.work()
        self.question = None
        self._has_stopped.release()

    def ask(self, question: Question) -> Answer:
        """Stop until there is an answer; called by the work itself."""
        self.question = question
        self._has_stopped.release()
        self._may_go.acquire()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def resume(self, notes: list[str], answer: Answer | Exception | None = None) -> None:
        """Let the work run to its next question or its end; ``notes`` are those of the cache, lent to one at a time."""
        self.answer = answer
        notes[:] = self.notes
        self._may_go.release()
        self._has_stopped.acquire()
        self.notes = list(notes)


class SharedRounds(fast.AnnealedRounds):
    """The descent of ``Fast``, which asks for its losses instead of computing them."""

    def _sample_losses(self, side: Side, chosen: Tensor) -> Tensor:
        return self._ask(side, self._represented(side, chosen), chosen, gradient=False)[0]

    def _step(self, adam: torch.optim.Adam, chosen: Tensor) -> float:
        represented = self._represented(self.problem.fit, chosen)
        losses, gradient = self._ask(self.problem.fit, represented, chosen, gradient=True)
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward([represented], [gradient], inputs=list(self.coordinates.free.values()))
        adam.step()
        return float(losses.mean())

    def _represented(self, side: Side, chosen: Tensor) -> Tensor:
        sent = side.activations[chosen].to(self.device)
        return self.coordinates(sent.contiguous(memory_format=torch.channels_last) if sent.ndim == 4 else sent)

    def _ask(self, side: Side, represented: Tensor, chosen: Tensor, gradient: bool) -> Answer:
        worker = threading.current_thread()
        assert isinstance(worker, Worker)
        return worker.ask(Question(self.suffix, represented.detach(), side.labels[chosen].to(self.device), gradient))


def answer(questions: Sequence[Question]) -> list[Answer]:
    """Answer several at once, in one pass through their suffix; all of them want the gradient, or none does."""
    gradient, sizes = questions[0].gradient, [len(each.labels) for each in questions]
    given = torch.cat([each.represented for each in questions]).requires_grad_(gradient)
    labels = torch.cat([each.labels for each in questions])
    with torch.set_grad_enabled(gradient):
        losses = nn.functional.cross_entropy(questions[0].suffix(given), labels, reduction="none")
        parts = torch.split(losses, sizes)
        if not gradient:
            return [(part, None) for part in parts]
        (slopes,) = torch.autograd.grad(torch.stack([part.mean() for part in parts]).sum(), given)
    told = torch.split(losses.detach().cpu(), sizes)  # to the CPU at once: nobody waits for the device one by one
    return list(zip(told, torch.split(slopes, sizes), strict=True))


def answer_if_possible(questions: Sequence[Question]) -> list[Answer | Exception]:
    """Answer several at once; if that fails, each alone, so that a failure is the one's own."""
    try:
        return list(answer(questions))
    except Exception as error:
        if len(questions) == 1:
            return [error]
    return [each for question in questions for each in answer_if_possible([question])]


def passes(asking: Sequence[Worker]) -> Iterator[list[Worker]]:
    """Return who shares a pass: those that ask the same of the same suffix, of at most ``IMAGES`` images."""
    alike: dict[tuple[int, bool], list[Worker]] = {}
    for worker in asking:
        assert worker.question is not None
        alike.setdefault((id(worker.question.suffix), worker.question.gradient), []).append(worker)
    for workers in alike.values():
        each = max(1, IMAGES // max(len(w.question.labels) for w in workers if w.question is not None))
        yield from (workers[i : i + each] for i in range(0, len(workers), each))


@contextmanager
def shared() -> Iterator[None]:
    """Let descents share passes: by asking for them, and through one fused suffix for each receiver and cut."""
    own = fast.AnnealedRounds, measuring.fuse_suffix
    fast.AnnealedRounds, measuring.fuse_suffix = SharedRounds, cache(fuse_suffix)
    try:
        yield
    finally:
        fast.AnnealedRounds, measuring.fuse_suffix = own


def measure_together(trials: Sequence[Trial], activations: Activations) -> list[Measurement | Failure]:
    """Measure trials side by side; the results in their order."""
    workers = [Worker(partial(attempt, trial, activations)) for trial in trials]
    with undisturbed(), torch.random.fork_rng(), shared():
        for worker in workers:
            worker.start()
            worker.resume(activations.notes)
        while asking := [worker for worker in workers if worker.question is not None]:
            for some in passes(asking):
                found = answer_if_possible([worker.question for worker in some if worker.question is not None])
                for worker, told in zip(some, found, strict=True):
                    worker.resume(activations.notes, told)
    return [worker.result for worker in workers]


# --- its rate ---------------------------------------------------------------------------------------------------------


def samples(count: int, seed: int) -> Samples:
    """Images with a pattern of their class in noise, so that there is something to learn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=random)
    patterns = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = 0.5 * patterns[labels] + 0.5 * torch.rand(count, 3, 32, 32, generator=random)
    return Samples(f"patterns {seed}", images, labels, tuple("0123456789"))


def networks(width: int, device: torch.device, example: torch.Tensor) -> list[Network]:
    made = []
    for seed, name in enumerate("AB"):
        torch.manual_seed(seed)
        made.append(Network(resnet((2, 2, 2, 2), width).eval().to(device), example=example, name=name))
    return made


def trials(settings: argparse.Namespace) -> list[Trial]:
    fit, validation, score = (samples(n, s) for s, n in enumerate((settings.images, 1_000, settings.images), 1))
    a, b = networks(settings.width, torch.device(settings.device), fit.example)
    roles = {"fit_data": fit, "validation_data": validation, "score_data": score}
    seam = Seam.at(a, b, settings.at)
    return [Trial(seam, **roles, fit=Fast(steps=settings.steps), seed=seed) for seed in range(max(settings.together))]


def timed(some: list[Trial], activations: Activations, device: torch.device) -> tuple[float, list[Measurement]]:
    """Seconds, and what was measured."""
    begun = time.perf_counter()
    found = [measure(some[0], activations)] if len(some) == 1 else measure_together(some, activations)
    if device.type == "cuda":
        torch.cuda.synchronize()
    failed = [one for one in found if not isinstance(one, Measurement)]
    if failed:
        raise SystemExit(failed[0].error)
    return time.perf_counter() - begun, [one for one in found if isinstance(one, Measurement)]


def rates(settings: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every number of stitches together: medians over the repeats."""
    device, activations, plan = torch.device(settings.device), Activations(), trials(settings)
    timed(plan[:2], activations, device)  # activations, and kernels that are chosen once
    spent: dict[int, list[tuple[float, int]]] = {count: [] for count in settings.together}
    for _ in range(settings.repeats):
        for count in settings.together:
            seconds, found = timed(plan[:count], activations, device)
            spent[count].append((seconds, sum(one.steps for one in found)))
    rows = []
    for count, each in spent.items():
        seconds = statistics.median(seconds for seconds, _ in each)
        rows.append({"together": count, "seconds": seconds, "rate": count / seconds, "steps": each[0][1] / seconds})
    return rows


def off(settings: argparse.Namespace) -> list[float]:
    """Points by which the accuracy of stitches measured together differs from that alone."""
    activations, plan = Activations(), trials(settings)[:16]
    _, found = timed(plan, activations, torch.device(settings.device))
    alone = [measure(each, activations) for each in plan]
    pairs = zip(found, alone, strict=True)
    return [100 * abs(one.scores.accuracy.value - other.scores.accuracy.value) for one, other in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--at", default="layer2.0")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=Fast().steps)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    rows = rates(settings)
    name = torch.cuda.get_device_name() if settings.device.startswith("cuda") else settings.device
    print(f"ResNet-18, width {settings.width}, at {settings.at}, {settings.images:,} images, on {name}")
    print("together  seconds  stitches/s  steps/s  × one at a time")
    for row in rows:
        ratio = row["rate"] / rows[0]["rate"]
        print(f"{row['together']:8d}{row['seconds']:9.2f}{row['rate']:12.2f}{row['steps']:9.0f}{ratio:11.1f}")
    record: dict[str, Any] = {"device": name, "rows": rows}
    if settings.check:
        record["points off"] = off(settings)
        points = record["points off"]
        print(f"accuracy off by {statistics.fmean(points):.3f} points, {max(points):.3f} at most")
    if settings.out:
        settings.out.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

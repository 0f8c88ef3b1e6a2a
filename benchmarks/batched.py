"""A prototype: all stitches into one cut of a receiver are fitted side by side, with one pass through their suffix.

A small network leaves a GPU idle on a batch of 32 images. Here the stitches from every sender's cut, each at several
learning rates, take their steps together: what they give is stacked, goes through the frozen suffix in one pass, and
one pass back brings the gradients of all. All their parameters lie in one vector, so that a step of Adam is a handful
of operations however many stitches there are. Batches and rates of all steps are drawn beforehand and lie on the
device; nothing of a step is decided on the processor, so on a GPU one step is recorded as a CUDA graph and replayed.

What is fitted: the closed form of least squares, rescaled, then Adam with a cosine in the ``Coordinates`` of the
default fit. Of the closed form and the ends at all rates the one with the lowest validation loss is kept. Scores are
those of the receiver's own suffix, in float32.

This is no part of the package: there a trial gives the same bits in any company, and here passes with more images round
differently. It comes back, behind one function, if a measurement on a GPU admits it (``python -m benchmarks.gpu``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from suture import Trial
from suture.common.seeds import drawing, undisturbed
from suture.core.activations.cache import Activations
from suture.core.fused import fuse_suffix
from suture.fits import LeastSquares, Problem, Side
from suture.fits.coordinates import Coordinates, measure_layers
from suture.fits.descent import draw_batches
from suture.fits.suffix import choose_suffix

BETAS = (0.9, 0.99)
RIDGE = 1000.0  #: of the coordinates: one size for nearly all directions
CLOSED_FORM = 2048  #: images that the closed form and the coordinates are computed from, at most
WARM_UP = 3  #: steps before one is recorded; kernels are chosen in them
CHUNK = 2500  #: images of a pass that scores


@dataclass(frozen=True)
class Batched:
    """How stitches are fitted: so many steps of so many images, at these rates side by side.

    ``images`` bounds a pass; more stitches than fit into it are fitted one group after another. ``recorded`` says
    whether a GPU records a step and replays it.
    """

    steps: int = 400
    batch: int = 32
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    images: int = 16_384
    recorded: bool = True


@dataclass(frozen=True)
class Fitted:
    """The result of a stitch: accuracy as a fraction, the validation loss in nats, the rate (0 for the closed form)."""

    trial: Trial
    accuracy: float
    validation_loss: float
    rate: float


def measure_together(trials: Sequence[Trial], cache: Activations, settings: Batched) -> list[Fitted]:
    """Fit and score stitches into one cut of one receiver, on the same data; the results in the order of the trials."""
    each = max(1, settings.images // (settings.batch * len(settings.rates)))
    found = []
    with undisturbed(), drawing(trials[0].receiver.device, 0), torch.inference_mode(False):
        for start in range(0, len(trials), each):
            found += _Group(trials[start : start + each], cache, settings).measure()
    return found


class _Group:
    """Stitches that share every pass."""

    def __init__(self, trials: Sequence[Trial], cache: Activations, settings: Batched) -> None:
        first = trials[0]
        self.trials, self.cache, self.settings, self.device = trials, cache, settings, first.receiver.device
        self.roles = first.fit_data, first.validation_data, first.score_data
        for trial in trials:
            if (trial.receiver, trial.receiver_cut) != (first.receiver, first.receiver_cut):
                raise ValueError(f"{trial.where} and {first.where} do not share their suffix")
        self.own = first.receiver.after(first.receiver_cut)
        self.stitches = [self._closed_form(trial) for trial in trials]
        sent = self._sent(0)
        self.coordinates = [
            Coordinates(stitch, measure_layers(stitch, x[:CLOSED_FORM], RIDGE))
            for stitch, x in zip(self.stitches, sent, strict=True)
        ]
        cut = first.receiver.cuts.find(first.receiver_cut)
        with torch.no_grad():
            probe = self.stitches[0](sent[0][:256])
        self.suffix = choose_suffix(self.own, lambda dtype: fuse_suffix(first.receiver, cut, dtype), probe).run

    def measure(self) -> list[Fitted]:
        start, moves = self._vectors()
        ended = self._descend(start, moves)
        best = self._choose(start, ended)
        found = []
        for i, (trial, (validation, rate)) in enumerate(zip(self.trials, best, strict=True)):
            right = self._right(self.stitches[i], self._sent(2)[i], self.roles[2].labels.to(self.device))
            found.append(Fitted(trial, right, validation, rate))
        return found

    def _sent(self, role: int) -> list[Tensor]:
        found = (self.cache.at(trial.sender, trial.sender_cut, self.roles[role]) for trial in self.trials)
        return [x.to(self.device) for x in found]

    def _closed_form(self, trial: Trial) -> nn.Module:
        """Build the trial's stitch, without BatchNorms that add nothing to the family, and load the closed form."""
        family = replace(trial.family, batchnorm=False) if hasattr(trial.family, "batchnorm") else trial.family  # type: ignore[type-var]
        stitch = family.build(*trial.seam.shapes).to(self.device).eval()
        sides = []
        for samples in self.roles[:2]:
            some = samples.first(min(CLOSED_FORM, len(samples)))
            x = self.cache.at(trial.sender, trial.sender_cut, samples)[: len(some)].to(self.device)
            y = self.cache.at(trial.receiver, trial.receiver_cut, some).to(self.device)
            sides.append(Side(x, some.labels, lambda y=y: y, lambda: torch.empty(0)))  # type: ignore[misc]
        LeastSquares().fit(Problem(family, self.own, *sides, seed=0, where=trial.where), stitch)
        return stitch

    # --- all parameters as one vector: stitch by stitch, rate by rate, tensor by tensor -------------------------------

    def _vectors(self) -> tuple[Tensor, Tensor]:
        """Return where all stitches begin, and how far a step moves each number."""
        values, moves = [], []
        for coordinates in self.coordinates:
            for rate in self.settings.rates:
                for name, tensor in coordinates.free.items():
                    values.append(tensor.detach().flatten())
                    moves.append(torch.full_like(values[-1], rate * coordinates.steps[name]))
        self.shapes = [{name: free.shape for name, free in each.free.items()} for each in self.coordinates]
        self.sizes = [len(value) for value in values]
        return torch.cat(values), torch.cat(moves)

    def _take(self, vector: Tensor) -> list[list[dict[str, Tensor]]]:
        """Return the free parameters of every stitch at every rate."""
        parts = iter(vector.split(self.sizes))
        rates = range(len(self.settings.rates))
        return [[{name: next(parts).view(shape) for name, shape in own.items()} for _ in rates] for own in self.shapes]

    def _outputs(self, vector: Tensor, sent: Sequence[Tensor]) -> Tensor:
        """Return the outputs of all stitched networks, ``(stitches · rates, images, classes)``."""
        represented = []
        for coordinates, x, at_rates in zip(self.coordinates, sent, self._take(vector), strict=True):
            for free in at_rates:
                coordinates.free.update(free)
                represented.append(coordinates(x))
        out: Tensor = self.suffix(torch.cat(represented))
        return out.view(len(represented), -1, out.shape[-1])

    def _losses(self, vector: Tensor, sent: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the mean loss in nats of every stitch at every rate."""
        out = self._outputs(vector, sent)
        wanted = labels.expand(len(out), -1)
        losses = nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten(), reduction="none")
        return losses.view(wanted.shape).mean(1)

    # --- the descent --------------------------------------------------------------------------------------------------

    def _descend(self, start: Tensor, moves: Tensor) -> Tensor:
        """Take all steps from the start; return where they end."""
        steps, device, (first, second) = self.settings.steps, self.device, BETAS
        sent, labels = self._sent(0), self.roles[0].labels.to(device)
        drawn = draw_batches(len(labels), self.settings.batch, 0)
        order = torch.stack([next(drawn) for _ in range(steps)]).to(device)
        paces = []
        for step in range(1, steps + 1):
            corrections = math.sqrt(1 - second**step) / (1 - first**step)  # Adam's, of its two means
            paces.append(0.5 * (1 + math.cos(math.pi * (step - 1) / steps)) * corrections)
        pace = torch.tensor(paces, device=device)
        place = torch.zeros(1, dtype=torch.int64, device=device)
        vector = start.clone().requires_grad_()
        mean, square = torch.zeros_like(start), torch.zeros_like(start)

        def take_step() -> None:
            chosen = order.index_select(0, place)[0]  # order[place] would wait for the device
            given = [x.index_select(0, chosen) for x in sent]
            losses = self._losses(vector, given, labels.index_select(0, chosen))
            (gradient,) = torch.autograd.grad(losses.sum(), vector)
            with torch.no_grad():
                mean.lerp_(gradient, 1 - first)
                square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
                vector.sub_(moves * pace.index_select(0, place) * mean / (square.sqrt() + 1e-8))
                place.add_(1)

        repeat(take_step, steps, device, self.settings.recorded)
        return vector.detach()

    def _choose(self, start: Tensor, ended: Tensor) -> list[tuple[float, float]]:
        """Load the best parameters into every stitch; return their validation loss and their rate."""
        rates, labels = self.settings.rates, self.roles[1].labels.to(self.device)
        chunk = max(1, self.settings.images // (len(self.trials) * len(rates)))
        looks: list[list[tuple[float, float, dict[str, Tensor]]]] = [[] for _ in self.trials]
        for vector in (start, ended):
            total = torch.zeros(len(self.trials) * len(rates), device=self.device)
            with torch.no_grad():
                for some in torch.arange(len(labels), device=self.device).split(chunk):  # type: ignore[no-untyped-call]
                    total += self._losses(vector, [x[some] for x in self._sent(1)], labels[some]) * len(some)
            means = (total / len(labels)).view(len(self.trials), len(rates)).cpu().tolist()
            for i, at_rates in enumerate(self._take(vector)):
                for loss, rate, free in zip(means[i], rates, at_rates, strict=True):
                    looks[i].append((loss if math.isfinite(loss) else math.inf, rate if vector is ended else 0.0, free))
        found = []
        for coordinates, seen in zip(self.coordinates, looks, strict=True):
            loss, rate, free = min(seen, key=lambda look: look[0])
            own = dict(coordinates.stitch.named_parameters())
            with torch.no_grad():
                for name, made in coordinates.mean([free[name] for name in coordinates.free]).items():
                    own[name].copy_(made)
            found.append((loss, rate))
        return found

    def _right(self, stitch: nn.Module, sent: Tensor, labels: Tensor) -> float:
        """Return the share of images that the receiver's own suffix names right."""
        right = 0
        with torch.no_grad():
            for x, wanted in zip(sent.split(CHUNK), labels.split(CHUNK), strict=True):
                right += int((self.own(stitch(x.clone())).argmax(1) == wanted).sum())
        return right / len(labels)


def repeat(step: Callable[[], None], count: int, device: torch.device, recorded: bool) -> None:
    """Do a step so many times; on a GPU, if wanted, it is recorded once and replayed."""
    if device.type != "cuda" or not recorded or count <= WARM_UP:
        for _ in range(count):
            step()
        return
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(count - WARM_UP):
        graph.replay()

"""How long trials will take, before any has run: a range, from a few timed steps.

A trial consists of activations, steps of the descent, looks at the validation samples and the scoring. One step at a
few of the plan's seams is timed here, on random activations. Other seams lie between these, by the operations behind
their cut. The number of steps is the fit's own answer (``Fit.count_steps``): exact if it is fixed, a range if the fit
decides by itself when to end. That range is by far the larger part of the uncertainty.
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from suture.common.errors import SutureError
from suture.common.processor import half_precision
from suture.common.seeds import undisturbed
from suture.core.fused import fuse_suffix
from suture.core.network.network import Network
from suture.core.stitches.base import width
from suture.fits import Converged, Quick
from suture.fits.averaged import FIRST, GLANCE
from suture.fits.base import run_suffix
from suture.fits.steps import in_layout
from suture.measurement.trials.trial import Trial

SEAMS = 4  #: that are timed, spread over the cost of a step
WORK = 4e9  #: operations that are timed at once, at most: a large network is timed on fewer samples than a batch
REPEATS = 3  #: timed passes, after one that is not
FORWARD = 1 / 3  #: of the time of a step: one way of the three that its products go
LOOKED = 8  #: looks in a race, at ``GLANCE`` validation samples; after it there are two at all for each doubling
OWN = 0.5  #: seconds of a trial beside everything that is counted: reading, writing, closed forms, units of the arms
LEAST, MOST = 0.5, 1.6  #: times what is computed: other work on the machine, memory that is full, noise of the clock


def time_trials(trials: Sequence[Trial]) -> tuple[float, float] | None:
    """Return the least and the most seconds of one core that trials will probably take.

    ``None`` if the fit of one cannot count its steps, or a part of a network does not run on random activations.
    """
    counts = [trial.fit.count_steps(len(trials)) for trial in trials]
    if not trials or any(count is None for count in counts):
        return None
    try:
        batch = _time_batches(trials)
        forward = _time_forward(trials)
    except (SutureError, RuntimeError, ValueError, TypeError):
        return None
    ends = []
    for end in (0, 1):
        total = _count_activations(trials, every=bool(end)) * forward
        for trial, count in zip(trials, counts, strict=True):
            needs_none = isinstance(trial.fit, Converged | Quick) and is_last(trial)
            steps = 0.0 if count is None or needs_none else count[end]
            total += OWN + batch(trial) * (steps * _batch(trial) + _count_looked(trial, steps) * FORWARD)
        ends.append(total * (LEAST, MOST)[end])
    return ends[0], ends[1]


def _batch(trial: Trial) -> int:
    return min(getattr(trial.fit, "batch", 256), len(trial.fit_data))


def _count_looked(trial: Trial, steps: float) -> float:
    """Return how many samples pass the receiver without a way back: those that a fit looks at, and those scored."""
    doublings = max(math.log2(steps / FIRST), 0.0) if steps else 0.0
    held_out = len(trial.validation_data)
    return LOOKED * bool(steps) * min(held_out, GLANCE) + 2 * doublings * held_out + len(trial.score_data)


def is_last(trial: Trial) -> bool:
    """Return whether only pooling and a linear layer follow the seam, so that the default fits need no descent."""
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    later = (other for other in trial.receiver.cuts if other.index > cut.index)
    return all(math.prod(other.shape) == width(cut.shape) for other in later)


def _flops(network: Network) -> float:
    """Return the operations of a whole network, of one sample."""
    return float(network.cuts.place(len(network.cuts)).flops)


def _behind(trial: Trial) -> float:
    """Return the operations behind the receiver's cut, of one sample."""
    return _flops(trial.receiver) - trial.receiver.cuts.find(trial.receiver_cut).flops


def _time_batches(trials: Sequence[Trial]) -> Callable[[Trial], float]:
    """Time a step at a few seams; return a function from a trial to the seconds of a step, for each sample in it."""
    by_cost = {_behind(trial): trial for trial in reversed(trials)}
    costs = sorted(by_cost)
    chosen = sorted({costs[round(i)] for i in np.linspace(0, len(costs) - 1, min(SEAMS, len(costs)))})
    seconds = [_time_step(by_cost[cost]) for cost in chosen]
    return lambda trial: float(np.interp(_behind(trial), chosen, seconds))


def _time_step(trial: Trial) -> float:
    """Return the seconds that one sample takes in a step: through stitch and receiver, and back to the stitch."""
    receiver = trial.receiver
    cut, device = receiver.cuts.find(trial.receiver_cut), receiver.device
    rows = _rows(3 * _behind(trial), _batch(trial))
    with torch.random.fork_rng([]):
        stitch = trial.family.build(*trial.seam.shapes).to(device)
        sent = torch.rand(rows, *trial.seam.shapes[0]).to(device)
    stitch.eval()
    inputs = receiver.inputs_from(cut.index, trial.fit_data.images[:rows])
    suffix: nn.Module = receiver.after(cut)
    if inputs is None:
        # On random activations the fast types may disagree where they do not on real ones, so the fastest is taken.
        suffix = fuse_suffix(receiver, cut, half_precision(device) or torch.float32) or suffix
    free = [tensor for tensor in stitch.parameters() if tensor.requires_grad]

    moments = [(torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in free]
    chosen = torch.arange(rows)

    def step() -> None:
        with torch.set_grad_enabled(bool(free)):
            loss = run_suffix(suffix, stitch(in_layout(sent[chosen])), inputs).float().square().mean()
        found = torch.autograd.grad(loss, free, materialize_grads=True) if free else ()
        with torch.no_grad():  # Adam by hand, since torch's own loads its compiler, which takes seconds
            for tensor, (mean, square), gradient in zip(free, moments, found, strict=True):
                mean.lerp_(gradient, 0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                tensor.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)

    return _clock(step, device) / rows


def _time_forward(trials: Sequence[Trial]) -> float:
    """Return the seconds of an operation on the way to activations, by the network that has the most of them."""
    samples = {network: trial.score_data for trial in trials for network in (trial.receiver,)}
    network = max(samples, key=_flops)
    rows = _rows(_flops(network), 256)
    whole, images = network.whole(), samples[network].images[:rows]

    def run() -> None:
        with torch.no_grad():
            whole(images.to(network.device))

    return _clock(run, network.device) / rows / max(_flops(network), 1.0)


def _count_activations(trials: Sequence[Trial], every: bool) -> float:
    """Return the operations of all activations: each from the images on, or only the deepest of a network's."""
    needs = {need.key: need for trial in trials for need in (*trial.needs, *trial.streamed)}.values()
    cost: dict[tuple[str, str], list[float]] = {}
    for need in needs:
        flops = need.network.cuts.place(min(need.index, len(need.network.cuts))).flops
        held = cost.setdefault((need.network.fingerprint, need.samples.image_fingerprint), [])
        held.append(float(flops) * len(need.samples))
    return sum(sum(each) if every else max(each) for each in cost.values())


def _rows(flops: float, most: int) -> int:
    return int(np.clip(WORK / max(flops, 1.0), 1, max(most, 1)))


def _clock(run: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of a pass, the shortest of a few, on one core as a worker has it.

    On the processor these are its own seconds, whatever else the machine does.
    """
    taken, clock = [], time.process_time if device.type == "cpu" else time.perf_counter
    with undisturbed():
        for _ in range(1 + REPEATS):
            begun = clock()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(clock() - begun)
    return min(taken[1:])

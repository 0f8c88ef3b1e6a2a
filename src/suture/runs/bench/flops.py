"""How many floating-point operations a method takes at a seam.

Counted are matrix products and convolutions, a multiply-add as two: those of the frozen layers up to the cut where they
are run, of stitch and frozen suffix for every image evaluated, and of stitch and suffix forwards and backwards for
every image of a step. A frozen suffix has gradients of its inputs only, so backwards takes as much again as forwards;
the stitch has those of its weights too. Closed forms, norms, activation functions and the optimiser are not counted, so
what is reached of a machine's peak is, if anything, more than what is said.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from suture.core.activations.cache import Need
from suture.core.network.network import Network
from suture.measurement.trials.trial import Measurement, Trial
from suture.runs.bench.plain_loop import Plain, plain_stitch

_BATCH = 2  #: images that are counted with; a BatchNorm of one pixel takes no fewer


@dataclass(frozen=True)
class PerImage:
    """Operations for one image: of the sender's prefix, of stitch and suffix, and of these in a step of training."""

    prefix: int
    forward: int
    step: int


def per_image(trial: Trial, stitch: nn.Module) -> PerImage:
    """Count the operations at a trial's seam with a stitch; the stitch's parameters keep what they are."""
    sent, _ = trial.seam.shapes
    suffix = trial.receiver.after(trial.receiver_cut)
    prefix = trial.sender.cuts.find(trial.sender_cut).flops if isinstance(trial.sender, Network) else 0
    weights = [parameter for parameter in stitch.parameters() if parameter.requires_grad]
    given = torch.zeros(_BATCH, *sent, dtype=next((p.dtype for p in stitch.parameters()), torch.float32))
    given = given.to(trial.receiver.device)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        with FlopCounterMode(display=False) as forward:
            out = suffix(stitch.eval()(given))
        with FlopCounterMode(display=False) as backward:
            if weights:
                torch.autograd.grad(out.sum(), weights, allow_unused=True)
    once = forward.get_total_flops() // _BATCH
    return PerImage(prefix, once, once + backward.get_total_flops() // _BATCH)


def plain_flops(trial: Trial, settings: Plain) -> int:
    """Operations of the plain loop on a trial: the prefix runs again for every image, in training and evaluation."""
    with torch.random.fork_rng(devices=[]):
        cost = per_image(trial, plain_stitch(*trial.seam.shapes).to(trial.receiver.device))
    samples = len(trial.fit_data) + len(trial.validation_data)
    trained = settings.steps(samples) * settings.batch_of(samples)
    return trained * (cost.prefix + cost.step) + len(trial.score_data) * (cost.prefix + cost.forward)


def fitted_flops(measurement: Measurement) -> int | None:
    """Operations of a measurement: its steps, its points of the curve on validation data, and its evaluation.

    ``None`` where the fit took steps but has no ``batch`` that says of how many images.
    """
    trial = measurement.trial
    batch = getattr(trial.fit, "batch", None)
    if batch is None and measurement.steps:
        return None
    stitch = measurement.stitch.requires_grad_(True)
    cost = per_image(trial, stitch)
    stitch.requires_grad_(False)
    trained = measurement.steps * min(batch or 0, len(trial.fit_data))
    evaluated = len(measurement.curve) * len(trial.validation_data) + len(trial.score_data)
    return trained * cost.step + evaluated * cost.forward


def shared_flops(needs: Iterable[Need]) -> int:
    """Operations that computing activations once takes: each network, on each samples, up to the last cut asked for."""
    last: dict[tuple[str, str], Need] = {}
    for need in needs:
        if isinstance(need.network, Network):
            key = need.network.fingerprint, need.samples.image_fingerprint
            last[key] = max(last.get(key, need), need, key=lambda one: one.index)
    return sum(len(need.samples) * _through(need) for need in last.values())


def _through(need: Need) -> int:
    """For one image, from the input to what is needed."""
    network = need.network
    assert isinstance(network, Network)
    if need.index <= len(network.cuts):
        return tuple(network.cuts)[need.index - 1].flops
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.whole()(need.samples.images[:1].to(network.device))
    return int(counter.get_total_flops())

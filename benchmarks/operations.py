"""Count the floating-point operations that a method takes at a seam.

Counted are matrix products and convolutions, a multiply-add as two: those of the frozen layers up to the cut, if they
are run, of stitch and frozen suffix for every image evaluated, and of stitch and suffix forwards and backwards for
every image of a step. A frozen suffix has gradients of its inputs only, so backwards takes as much again as forwards;
the stitch has those of its weights too. Closed forms, norms, activation functions and the optimiser are not counted, so
the stated share of a machine's peak is, if anything, too low.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain_loop import Plain, plain_stitch
from suture.core.activations.cache import Need
from suture.core.network.network import Network
from suture.measurement.trials.trial import Measurement, Trial

_BATCH = 2  #: images that are counted with; a BatchNorm of one pixel takes no fewer


@dataclass(frozen=True)
class PerImage:
    """Operations for one image: of the sender's prefix, of stitch and suffix, and of these in a step of training."""

    prefix: int
    forward: int
    step: int


def per_image(trial: Trial, stitch: nn.Module) -> PerImage:
    """Count the operations at a trial's seam with a stitch, whose parameters stay unchanged."""
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
    """Return the operations of the plain loop on a trial: the prefix runs again for every image."""
    with torch.random.fork_rng(devices=[]):
        cost = per_image(trial, plain_stitch(*trial.seam.shapes).to(trial.receiver.device))
    samples = len(trial.fit_data)
    trained = settings.steps(samples) * settings.batch_of(samples)
    return trained * (cost.prefix + cost.step) + len(trial.score_data) * (cost.prefix + cost.forward)


def fitted_flops(measurement: Measurement) -> int | None:
    """Return the operations of a measurement: its steps, its validations, and its evaluation.

    ``None`` if the fit took steps but has no ``batch`` that says of how many images.
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
    """Return the operations of computing activations once: every network, on all samples, up to the last cut needed."""
    last: dict[tuple[str, str], Need] = {}
    for need in needs:
        if isinstance(need.network, Network):
            key = need.network.fingerprint, need.samples.image_fingerprint
            last[key] = max(last.get(key, need), need, key=lambda one: one.index)
    total = 0
    for need in last.values():
        network = need.network
        assert isinstance(network, Network)
        if need.index <= len(network.cuts):
            total += len(need.samples) * tuple(network.cuts)[need.index - 1].flops
        else:  # the network's outputs, which no cut counts
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                network.whole()(need.samples.images[:1].to(network.device))
            total += len(need.samples) * int(counter.get_total_flops())
    return total

"""Where a receiver names a class, if its own activations do not lead there.

A receiver that was never taught a class may hardly ever name it, whatever the closed form sends. Where it would name
it, all is far from its own activations, and from these the loss has no slope in that direction. So that place is sought
without a stitch: the one displacement ``v`` of the receiver's own activations ``y_i`` of the class at which its suffix
names it,

    min over v of  mean over samples i of the class:  loss(suffix(y_i + v), class)

A start for a descent on the task is the closed form to the receiver's own activations, those of the class displaced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from suture.fits.base import Problem, Side
from suture.fits.descent import differentiate

SAMPLES = 64  #: of the class, at most
STEPS = 600  #: at most; 300 were too few at a tuned seam
RATE = 0.1  #: of Adam, in units of each feature's deviation
DONE = 0.9  #: the share of the samples that is named, after which no more steps are taken
FOUND = 0.5  #: that share, below which a displacement does not count as found
MEASURED = 1024  #: samples whose deviations are taken
LEAST = 0.01  #: deviations below this share of the largest count as this


def find_displacements(problem: Problem, suffix: nn.Module, labels: Sequence[int]) -> tuple[dict[int, Tensor], int]:
    """Return the displacements ``(*receiver shape)`` that were found, by class, and how many steps the search took."""
    expected = problem.fit.expected()
    device = next(suffix.parameters(), expected).device
    deviations = expected[:MEASURED].float().std(0, correction=0).to(device)
    units = deviations.clamp(min=LEAST * float(deviations.max()))
    found, taken = dict[int, Tensor](), 0
    for label in labels:
        chosen = (problem.fit.labels[: len(expected)].cpu() == label).nonzero().flatten()[:SAMPLES]
        if not len(chosen):
            continue
        own, targets = expected[chosen].float().to(device), problem.fit.labels[chosen].to(device)
        free = torch.zeros_like(units, requires_grad=True)
        adam = torch.optim.Adam([free], lr=RATE)
        for step in range(STEPS + 1):
            outputs = problem.fit.run(suffix, own + free * units, chosen)
            named = float((outputs.argmax(1) == targets).double().mean())
            if named >= DONE or step == STEPS:
                break
            adam.zero_grad(set_to_none=True)
            differentiate(problem.task.loss(outputs, targets), [free], problem.where)
            adam.step()
        taken += step
        if named >= FOUND:
            found[label] = (free.detach() * units).to(expected)
    return found, taken


def displace(problem: Problem, by: Mapping[int, Tensor]) -> Problem:
    """Return the problem with the receiver's own activations of some classes displaced."""
    return replace(problem, fit=_displace(problem.fit, by), validation=_displace(problem.validation, by))


def _displace(side: Side, by: Mapping[int, Tensor]) -> Side:
    def expected() -> Tensor:
        own = side.expected()[:].clone()
        labels = side.labels[: len(own)].to(own.device)
        for label, displacement in by.items():
            own[labels == label] += displacement
        return own

    return replace(side, expected=expected)

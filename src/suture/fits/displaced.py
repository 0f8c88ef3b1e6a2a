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

from suture.common.scaling import deviation
from suture.common.seeds import generator
from suture.fits.base import Problem, Side
from suture.fits.descent import differentiate

SAMPLES = 64  #: of the class, at most
STEPS = 600  #: of each try, at most; where one was found at the tuned seams, 225 to 584 were enough
TRIES = 4  #: from no displacement, then from random ones: at a tuned receiver the first fails, half of these do not
RATE = 0.1  #: of Adam, in units of each feature's deviation
DONE = 0.9  #: the share of the samples that is named, after which no more steps are taken
FOUND = 0.5  #: that share, below which a displacement does not count as found
MEASURED = 1024  #: samples whose deviations are taken
LEAST = 0.01  #: deviations below this share of the largest count as this


def find_displacements(
    problem: Problem, suffix: nn.Module, labels: Sequence[int], device: torch.device
) -> tuple[dict[int, Tensor], int]:
    """Return the displacements ``(*receiver shape)`` that were found, by class, and how many steps the search took."""
    expected = problem.fit.expected()
    deviations = deviation(expected[:MEASURED].float()).to(device)
    units = deviations.clamp(min=LEAST * float(deviations.max()))
    found, taken = dict[int, Tensor](), 0
    for label in labels:
        chosen = (problem.fit.labels[: len(expected)].cpu() == label).nonzero().flatten()[:SAMPLES]
        if not len(chosen):
            continue
        own, random = expected[chosen].float().to(device), generator("displacement", problem.seed, label)
        for attempt in range(TRIES):
            drawn = torch.randn(units.shape, generator=random) if attempt else torch.zeros(units.shape)
            displacement, named, steps = _descend(problem, suffix, own, chosen, units, drawn.to(device))
            taken += steps
            if named >= FOUND:
                found[label] = displacement
                break
    return found, taken


def _descend(
    problem: Problem, suffix: nn.Module, own: Tensor, chosen: Tensor, units: Tensor, start: Tensor
) -> tuple[Tensor, float, int]:
    """Return a displacement of a class's own activations, the share of them that is named there, and the steps."""
    targets = problem.fit.labels[chosen].to(own.device)
    free = start.requires_grad_()
    adam = torch.optim.Adam([free], lr=RATE)
    for step in range(STEPS + 1):
        outputs = problem.fit.run(suffix, own + free * units, chosen)
        named = float((outputs.argmax(1) == targets).double().mean())
        if named >= DONE or step == STEPS:
            break
        adam.zero_grad(set_to_none=True)
        differentiate(problem.task.loss(outputs, targets), [free], problem.where)
        adam.step()
    return free.detach() * units, named, step


def displace(problem: Problem, by: Mapping[int, Tensor]) -> Problem:
    """Return the problem with the receiver's own activations of some classes displaced."""
    return replace(problem, fit=_displace(problem.fit, by), validation=_displace(problem.validation, by))


def _displace(side: Side, by: Mapping[int, Tensor]) -> Side:
    def expected() -> Tensor:
        own = side.expected()[:].clone()
        labels = side.labels[: len(own)].to(own.device)
        for label, displacement in by.items():
            own[labels == label] += displacement.to(own)
        return own

    return replace(side, expected=expected)

"""New starts for a descent that hardly ever predicts some class.

A receiver that was never taught a class may hardly ever name it, whatever the closed form sends. Where it would name
it, all is far from its own activations, and from these the loss has no slope in that direction. So that place is sought
without a stitch: the one displacement ``v`` of the receiver's own activations ``y_i`` of the class at which its suffix
names it,

    min over v of  mean over samples i of the class:  loss(suffix(y_i + v), class)

A start for a descent on the task is the closed form to the receiver's own activations, those of the class displaced. If
no such place is found, or the class stays lost, the next starts are random.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from suture.common.scaling import deviation
from suture.common.seeds import generator
from suture.core.stitches import AffineStitch
from suture.data.tasks import Classification
from suture.fits.averaged import Arm, Ground, Trail, settle
from suture.fits.base import Problem, Side, State
from suture.fits.descent import differentiate

SAMPLES = 64  #: of the class, at most
STEPS = 600  #: of each try, at most; where one was found at the tuned seams, 225 to 584 were enough
TRIES = 4  #: from no displacement, then from random ones: at a tuned receiver the first fails, half of these do not
RATE = 0.1  #: of Adam, in units of each feature's deviation
DONE = 0.9  #: the share of the samples that is named, after which no more steps are taken
FOUND = 0.5  #: that share, below which a displacement does not count as found
MEASURED = 1024  #: samples whose deviations are taken
LEAST = 0.01  #: deviations below this share of the largest count as this
LOST = 0.1  #: a class whose share of right images is below this share of all classes' is hardly ever named
DRAWS = 3  #: other starts, at most, while a class is lost
ABOVE = 2.0  #: times the share of the commonest class must be right, for that to be the stitch's doing
DESCENT_RATE = 0.1  #: of a descent from another start, in plain units
AGAIN = "a class was hardly ever named after the first descent: begun again at random"
DISPLACED = "a class was hardly ever named after the first descent: begun again where the receiver names it"
SOUGHT = f"a class is hardly ever named, from the closed form or from {DRAWS} other starts"
LOST_ALONE = "a class is hardly ever named, from the closed form; this family has no other start"

Draw = Callable[[int, Mapping[int, Tensor]], State]
"""Gives the parameters of another start: the closed form with some classes displaced, if any, else a random one."""


def begin_again(ground: Ground, trail: Trail, draw: Draw, cap: int, patience: int) -> tuple[Trail, str]:
    """Begin again while a class is lost, ``DRAWS`` times at most, after a first ``trail``.

    Returns the trail that led to the best look, ``ended`` if all did, and how its start was made, empty for the first.
    Adds notes to the ground's.
    """
    trails, how = [trail], [""]
    # A start is parameters alone: a rotation or a norm that a stitch keeps in buffers would stay that of the first.
    most = 0 if any(buffer.is_floating_point() for buffer in ground.stitch.buffers()) else DRAWS
    kept = 0
    while (lost := find_lost(ground)) and trails[-1].ended and len(trails) <= most:
        displacements: dict[int, Tensor] = {}
        if len(trails) == 1 and isinstance(ground.problem.family, AffineStitch):
            displacements, taken = find_displacements(ground.problem, ground.suffix, lost, ground.device)
            ground.steps += taken
        own = {name: tensor.detach().to(ground.device) for name, tensor in draw(len(trails) - 1, displacements).items()}
        start, before = ground.look(own, math.nan, 0), ground.best.kept
        ground.best.add(start)
        trails.append(settle(ground, Arm(ground, None, DESCENT_RATE, [start]), cap, patience))
        how.append("displaced" if displacements else "random")
        if ground.best.kept is not before:
            kept = len(trails) - 1
    ground.notes += {"": [], "displaced": [DISPLACED], "random": [AGAIN]}[how[kept]]
    ended = all(each.ended for each in trails)
    if lost and ended:
        ground.notes.append(SOUGHT if most else LOST_ALONE)
    return replace(trails[kept], ended=ended), how[kept]


def find_lost(ground: Ground) -> list[int]:
    """Return the classes that are hardly ever predicted, if the accuracy is above that of any constant answer."""
    problem = ground.problem
    if problem.task != Classification():
        return []
    wrong = ground.best.least.wrong
    labels = problem.validation.labels[: ground.held_out].cpu()
    counts = torch.bincount(labels)
    right = torch.bincount(labels, weights=1 - wrong.double()) / counts
    share = 1 - float(wrong.double().mean())
    if share < ABOVE * float(counts.max()) / len(labels):
        return []
    taught = torch.bincount(problem.fit.labels.cpu(), minlength=len(counts))[: len(counts)] > 0
    return [int(label) for label in ((counts > 0) & taught & (right < LOST * share)).nonzero()]


def find_displacements(
    problem: Problem, suffix: nn.Module, labels: Sequence[int], device: torch.device
) -> tuple[dict[int, Tensor], int]:
    """Return the displacements ``(*receiver shape)`` found, by class, and the number of steps of the search."""
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

"""The default fit: it finds what is planted, comes as near the best as a much longer run, and knows when.

Its coordinates have a file of their own. ``Quick`` is the same descent, cut short.
"""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from test_least_squares import Deep
from torch import Tensor, nn

from loops import each
from problems import SOME, built, matching, named, planted, problem, real, side, state, validated, validation_loss
from suture import Seam, Trial, measure
from suture.common.errors import FitError
from suture.core.stitches import Conv, Identity, Linear, Orthogonal, Shape, Stitch, StridedConv, UpsampledConv
from suture.core.stitches.base import Part
from suture.data.tasks import Regression
from suture.fits import (
    Converged,
    Fit,
    FitReport,
    LeastSquares,
    Problem,
    Quick,
    Random,
    TaskLoss,
    averaged,
    converged,
    restarts,
    steps,
)
from suture.fits.base import Gained
from suture.fits.coordinates import WHITE
from suture.fits.least_squares import accumulate_moments
from suture.fits.optimisers import Adam
from suture.fits.restarts import displace, find_displacements
from trained import bits, few_digits, hybrids, tensor_bits

SEAMS = [("conv", Conv()), ("norm", Conv(3)), ("embed", Linear()), ("hidden", Linear())]


def bent(shape: Shape, classes: int = 4) -> nn.Module:
    """A suffix that is not linear."""
    torch.manual_seed(1)
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(size, classes)).requires_grad_(False)


def posed(family: Stitch, sender: Shape, receiver: Shape, n: int = 300) -> Problem:
    """A planted stitch, noise on what the receiver shows of itself, and labels that only the stitch gets right."""
    random = torch.Generator().manual_seed(3)
    suffix = bent(receiver)
    x = torch.randn(n, *sender, generator=random) + 1
    with torch.no_grad():
        own = built(family, sender, receiver, seed=9).eval()(x)
        out = suffix(own)
        labels = (out - out.mean(0)).argmax(1)
        own = own + 0.5 * own.std() * torch.randn(own.shape, generator=random)
    parts = [side(x[part], labels[part], own[part]) for part in (slice(n // 2), slice(n // 2, n))]
    return problem(*parts, family, suffix)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every doubling of the steps seem to gain."""
    monkeypatch.setattr(averaged, "is_better", lambda *given: True)


def error(p, stitch):
    """The share of validation images that a stitched network names wrong."""
    with torch.no_grad():
        out = p.suffix(stitch.eval()(p.validation.activations))
    return float((out.argmax(1) != p.validation.labels).double().mean())


# --- its parts, by hand -----------------------------------------------------------------------------------------------


def ground(held: int = 150, tokens: tuple[int, ...] = ()) -> averaged.Ground:
    """A small problem that is not convex, with so many validation samples, and no step taken."""
    p = posed(Linear(), (*tokens, 6), (*tokens, 5), n=2 * held)
    return averaged.Ground(p, built(Linear(), (*tokens, 6), (*tokens, 5)).eval(), p.suffix, 64)


def look(wrong: int, loss: float, steps: int = 0, first: int = 0, n: int = 100) -> averaged.Look:
    """A look at which so many of ``n`` samples are wrong, from the ``first`` on."""
    at = torch.arange(n)
    return averaged.Look({}, (at >= first) & (at < first + wrong), loss, steps)


Told = dict[tuple[float | None, float, int], tuple[int, float]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[Told, list[tuple[float | None, float, int]]]:
    """Have arms take no steps, and see what they are told by units, rate and steps: wrong samples of 100, and loss.

    The list has the looks that were taken. What nobody told of is far worse.
    """
    known: Told = {}
    seen: list[tuple[float | None, float, int]] = []

    def see(arm: averaged.Arm, steps: int) -> averaged.Look:
        arm.ground.steps += steps - arm.taken
        arm.steps.taken = steps
        at = (arm.ridge, round(arm.rate, 4), steps)
        seen.append(at)
        found = look(*known.get(at, (90, 9.0)), arm.begun + steps)
        arm.seen = replace(found, state=arm.ground.start.state)
        return arm.seen

    def go_to(arm: averaged.Arm, steps: int) -> averaged.Look:
        arm.looks.append(see(arm, steps))
        arm.ground.best.add(arm.seen)
        return arm.seen

    monkeypatch.setattr(averaged.Arm, "go_to", go_to)
    monkeypatch.setattr(averaged.Arm, "glance", lambda arm: see(arm, averaged.FIRST))
    return known, seen


FLAT = (40, 1.0)


@each(
    ("looks", "ends"),
    [
        ({70: FLAT, 140: FLAT}, [70, 98]),  # halfway through a doubling nothing is better
        ({70: FLAT, 98: (40, 0.999), 140: (40, 0.996)}, [70, 98, 140]),  # something is, but too little in the end
        ({70: (30, 0.9), 98: (29, 0.95)}, [70, 98]),  # errors that fall while the loss rises do not count
        ({70: FLAT, 98: (30, 1.0), 140: (30, 1.0), 196: (30, 1.0)}, [70, 98, 140, 196]),  # while it does not rise, do
        ({70: FLAT, 98: (20, 0.8), 140: (20, 0.8), 196: (20, 0.9)}, [70, 98, 140, 196]),
    ],
)
def test_a_rate_is_done_with_after_a_doubling_that_gains_nothing_or_half_of_one_that_loses(told, looks, ends) -> None:
    known, seen = told
    known.clear()
    seen.clear()
    known |= {(None, 0.1, steps): given for steps, given in looks.items()}
    arm = averaged.Arm(ground(100), None, 0.1)
    assert averaged.exhaust(arm.ground, arm, 8960, 1)
    assert [steps for *_, steps in seen] == ends


def test_with_patience_every_doubling_but_the_last_is_waited_for_whole(told) -> None:
    known, seen = told
    known |= {(None, 0.1, steps): FLAT for steps in (70, 140, 280, 560)}
    arm = averaged.Arm(ground(100), None, 0.1)
    assert averaged.exhaust(arm.ground, arm, 8960, 3)
    assert [steps for *_, steps in seen] == [70, 140, 280, 392]


def test_a_lower_rate_follows_if_the_last_doubling_gained_too_much_to_claim(told) -> None:
    """From 40 to 30 wrong samples of 100: it goes on until what it gained last is little."""
    known, seen = told
    known |= {(None, 0.1, 70): FLAT, (None, 0.1, 98): (30, 1.1)}
    known |= {(None, 0.02, steps): (30, 1.1) for steps in (70, 98, 140, 196)}
    here = ground(100)
    way = averaged.settle(here, averaged.Arm(here, None, 0.1), 8960)
    assert way.ended
    assert [(rate, steps) for _, rate, steps in seen] == [(0.1, 70), (0.1, 98), (0.02, 70), (0.02, 98)]
    assert here.gained(way.looks).most < averaged.DONE
    known |= {(None, 0.1, 98): (40, 0.95), (None, 0.1, 140): (40, 0.9), (None, 0.1, 196): (41, 1.1)}
    seen.clear()
    assert averaged.settle(here, averaged.Arm(here, None, 0.1), 8960).looks[-1].steps == 196
    assert [steps for *_, steps in seen] == [70, 98, 140, 196]


def test_a_cap_ends_a_descent_that_would_go_on(told) -> None:
    known, seen = told
    known |= {(None, 0.1, steps): (80 - steps // 10, 90 / steps) for steps in (70, 98, 140, 196, 280, 392, 560)}
    arm = averaged.Arm(ground(100), None, 0.1)
    assert not averaged.settle(arm.ground, arm, 300).ended
    assert [steps for *_, steps in seen] == [70, 98, 140, 196, 280]


P, W = None, WHITE
BEHIND, NEARER, AHEAD = (60, 1.5), (45, 1.2), (41, 0.99)  #: of ``FLAT``


@each(
    ("ridge", "tokens", "slow", "taken", "loss"),
    [
        # from 1.5 to 1.45 in a doubling: in the six that are left not even 1.0
        (W, (3,), {70: BEHIND, 140: (59, 1.45)}, [70, 140], 1.0),
        (W, (3,), {70: BEHIND, 140: NEARER, 280: (44, 1.17)}, [70, 140, 280], 1.0),
        (W, (3,), {70: BEHIND, 140: NEARER, 280: AHEAD, 392: AHEAD}, [70, 140, 280, 392], 0.99),
        (W, (3,), {70: AHEAD, 98: (30, 0.8), 140: (30, 0.8)}, [70, 98, 140, 196], 0.8),
        (P, (3,), {}, [], 1.0),  # plain units have had their turn
        (W, (), {}, [], 1.0),  # into a vector
    ],
)
def test_into_tokens_a_slow_descent_goes_on_while_it_may_come_out_ahead(told, ridge, tokens, slow, taken, loss) -> None:
    known, seen = told
    known |= {(ridge, 0.1, 70): FLAT} | {(None, 0.01, steps): given for steps, given in slow.items()}
    here = ground(100, tokens)
    here.best = averaged.Best(look(90, 9.0))
    first = averaged.settle(here, averaged.Arm(here, ridge, 0.1), 8960)
    seen.clear()
    found = averaged.start_slowly(here, first, ridge, 8960, 1)
    assert [at for at in seen if at[:2] == (None, 0.01)] == [(None, 0.01, steps) for steps in taken]
    assert here.best.kept.loss == loss
    assert (found is first) == (loss == 1.0)
    assert found.ended


def test_a_slow_descent_that_its_cap_ended_on_its_way_leaves_no_claim(told) -> None:
    known, _ = told
    known |= {
        (W, 0.1, 70): FLAT,
        (None, 0.01, 70): (60, 1.5),
        (None, 0.01, 140): (60, 1.1),
        (None, 0.01, 280): (60, 0.9),
    }
    here = ground(100, (3,))
    here.best = averaged.Best(look(90, 9.0))
    first = averaged.settle(here, averaged.Arm(here, W, 0.1), 300)
    assert first.ended
    found = averaged.start_slowly(here, first, W, 300, 1)
    assert (found.looks, found.ended) == (first.looks, False)


def test_while_no_loss_is_finite_lower_rates_are_tried(told) -> None:
    table, _ = told
    table |= {(ridge, rate, 35): (100, math.inf) for ridge, rate in (*averaged.ARMS, (P, 0.0333), (W, 0.0333))}
    table |= {(P, 0.0111, 35): (50, 1.0), (P, 0.0037, 35): (50, 1.2)}
    found = averaged.race(ground(100))
    assert (found.ridge, round(found.rate, 4)) == (P, 0.0111)


@each(("carrier", "ridge"), [("large", None), ("small", WHITE)])
def test_it_goes_on_in_the_units_that_suit_where_the_labels_are(carrier, ridge) -> None:
    """Four directions vary by 1 and sixty by 0.003; the labels are in the large ones, or in four of the small."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    suffix = nn.Sequential(nn.Tanh(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
    x = torch.randn(1200, 64, generator=random) * torch.cat([torch.full((4,), 1.0), torch.full((60,), 0.003)])
    told = x[:, :4] if carrier == "large" else x[:, 4:8]
    labels = (told @ torch.randn(4, 4, generator=random)).argmax(1)
    own = torch.randn(1200, 16, generator=random)
    p = problem(*(side(x[part], labels[part], own[part]) for part in (slice(600), slice(600, 1200))), Linear(), suffix)
    chosen = averaged.race(averaged.Ground(p, built(Linear(), (64,), (16,)).eval(), suffix, 64))
    assert chosen.ridge == ridge


@each(
    ("looks", "kept"),
    [
        ([(400, 1.0), (300, 9.0)], 1),
        ([(300, 1.0), (400, 0.1)], 0),
        ([(400, 1.0), (400, 0.9)], 1),
        ([(400, 1.0), (410, 0.9)], 0),  # 10 of 1,000 are more than the deviation of as many
        ([(400, 1.0), (401, 0.9)], 1),
        ([(400, 1.0), (401, 0.9), (403, 0.8)], 1),  # the last is as good as the second, not as the least
        ([(400, 1.0), (401, 0.9), (390, 2.0)], 2),
        ([(400, 1.0), (401, 1.1), (400, 1.0)], 0),
    ],
)
def test_of_what_chance_does_not_tell_from_the_fewest_errors_the_least_loss_is_kept(looks, kept) -> None:
    """One error more has a deviation of one error, two have one of 1.4, three of 1.7."""
    made = [look(wrong, loss, n=1000) for wrong, loss in looks]
    assert averaged.find_best(made) is made[kept]


@each(
    ("constant", "looks", "kept"),
    [
        (1.0, [(440, 1.0), (400, 2.0)], 1),
        (0.46, [(440, 1.0), (400, 2.0)], 0),  # 60 of 1,000 are less than four deviations of 16: the loss decides
        (0.47, [(440, 1.0), (400, 2.0)], 1),
    ],
)
def test_the_loss_decides_alone_if_a_constant_errs_hardly_more(constant, looks, kept) -> None:
    made = [replace(look(wrong, loss, n=1000), constant=constant) for wrong, loss in looks]
    assert averaged.find_best(made) is made[kept]


def test_a_constant_errs_where_the_commonest_class_is_not() -> None:
    p = ground(100).problem
    labels = torch.tensor([2, 2, 2, 1, 0, 0, 0, 0])
    classes = replace(p, validation=replace(p.validation, labels=labels))
    assert averaged.err_always(classes, 8) == 0.5
    assert averaged.err_always(classes, 5) == pytest.approx(0.4)
    assert averaged.err_always(replace(classes, task=Regression()), 8) == 1


@each(
    ("looks", "gained"),
    [
        ([(50, 2.0, 0)], (0, 0)),
        ([(50, 2.0, 0), (40, 1.0, 35), (30, 0.9, 70)], (0.10, 0.0302)),  # 10 of 100 differ
        ([(50, 2.0, 0), (40, 1.0, 35), (45, 1.1, 70)], (-0.05, 0.0219)),
        ([(50, 2.0, 0), (40, 1.0, 35), (30, 0.9, 70), (30, 0.9, 140)], (0, 0)),
        ([(50, 2.0, 0), (40, 1.0, 35), (30, 0.9, 70), (30, 0.9, 120)], (0.10, 0.0302)),  # 60 steps are half of 120
    ],
)
def test_the_last_doubling_is_the_last_half_of_the_steps_and_its_error_that_of_pairs(looks, gained) -> None:
    found = ground(100).gained([look(*each) for each in looks])
    assert (found.value, found.error) == (pytest.approx(gained[0]), pytest.approx(gained[1], abs=1e-4))


@pytest.mark.slow
def test_a_fit_to_shuffled_labels_does_not_keep_the_closed_form() -> None:
    """All looks are equally wrong there, and one of them is the closed form, which still names classes."""
    p, stitch = real("conv", Conv())
    random = torch.Generator().manual_seed(0)
    fit, validation = (
        replace(each, labels=each.labels[torch.randperm(len(each.labels), generator=random)])
        for each in (p.fit, p.validation)
    )
    closed = copy.deepcopy(stitch)
    LeastSquares().fit(p, closed)
    Quick().fit(replace(p, fit=fit, validation=validation), stitch)
    assert validated(p, closed)[0] < 0.3
    assert validated(p, stitch)[0] > 0.75


def test_the_average_is_of_the_last_half_of_the_steps(monkeypatch) -> None:
    arm = averaged.Arm(ground(), None, 0.1)
    seen, step = [], steps.StaticSteps._step

    def noted(self, *given):
        step(self, *given)
        seen.append(self.coordinates.parameters())

    monkeypatch.setattr(steps.StaticSteps, "_step", noted)
    for taken in (35, 70, 140):
        found = arm.go_to(taken)
        last = seen[taken // 2 :]
        for name, mean in found.state.items():
            torch.testing.assert_close(mean, torch.stack([each[name].detach() for each in last]).mean(0))
    assert len(seen) == 140


# --- laws -------------------------------------------------------------------------------------------------------------


@each(("scale", "mean"), [(1.0, 0.0), (1e-3, 0.0), (1e3, 0.0), (1.0, 30.0), (1e-25, 0.0), (1e25, 0.0)])
def test_it_finds_what_is_planted_whatever_the_sender_s_units(scale, mean):
    p, stitch, accuracy = planted(n=300, scale=scale, mean=mean)
    report = Converged().fit(p, stitch)
    assert accuracy(stitch) > 0.95
    assert report.converged
    assert report.start == "closed form"
    assert report.validation_loss == pytest.approx(validation_loss(p, stitch), rel=1e-4)


@each(("family", "sender", "receiver"), SOME, ids=named, few=3)
def test_no_family_ends_with_more_errors_than_it_began(family, sender, receiver):
    p = posed(family, sender, receiver)
    start, stitch = (built(family, sender, receiver) for _ in range(2))
    Quick(steps=0).fit(p, start)
    Quick(steps=150).fit(p, stitch)
    ended, begun = ((error(p, each), validation_loss(p, each)) for each in (stitch, start))
    assert ended[0] < begun[0] or ended[1] <= begun[1] * (1 + 1e-4) + 1e-6
    assert not any(module.training for module in stitch.modules())


@pytest.mark.slow
@each(("cut", "family"), SEAMS[::2], ids=lambda given: str(given))
def test_a_much_longer_descent_by_other_means_is_not_better(cut, family):
    """Plain Adam at three rates, ten times as long, each with its best checkpoint chosen on the very images judged."""
    p, stitch = real(cut, family)
    report = Converged().fit(p, stitch)
    others = []
    for rate in (1e-2, 3e-3, 1e-3):
        other = built(family, *(tuple(t.shape[1:]) for t in (p.fit.activations, p.fit.expected())))
        TaskLoss(start=LeastSquares(), optimiser=Adam(lr=rate), steps=2000, check=100, patience=20).fit(p, other)
        others.append(error(p, other))
    images = 1 / len(p.validation.labels)
    assert report.converged
    assert error(p, stitch) <= min(others) + 2 * images


@pytest.mark.slow
def test_the_cap_changes_nothing_before_it(endless) -> None:
    """Looks and losses of a short cap are the first of those of a longer one."""
    curves = []
    for cap in (140, 1120, 2240):
        p, stitch = real("conv", Conv(), fit=300)
        curves.append(Converged(cap=cap).fit(p, stitch).curve)
    shortest, middle, longest = curves
    assert len(shortest) < len(middle) < len(longest)
    assert middle[: len(shortest)] == shortest
    assert longest[: len(middle)] == middle


class Trap(nn.Module):
    """Names three classes as it was taught, and a fourth only if its last feature is far below what it ever was."""

    def forward(self, a: Tensor) -> Tensor:
        last = a[:, 3:] / 6
        return torch.cat([torch.relu(a[:, :3] + last), 4 * torch.relu(-6 - last) - 6], 1)


def trapped(seed: int, suffix: nn.Module, size: float = 1.0) -> Problem:
    """Four classes that the sender tells apart; the receiver takes samples of the last for any of the others.

    The larger the sender's activations, the farther does a random start send them.
    """
    random = torch.Generator().manual_seed(0)
    sides = []
    for _ in range(2):
        labels = torch.randint(4, (600,), generator=random)
        spread = torch.rand(2, 600, 8, generator=random)
        x = size * (spread[0] + 4 * nn.functional.one_hot(labels, 4).repeat(1, 2) * spread[1])
        own = torch.zeros(600, 4)
        taken_for = torch.where(labels < 3, labels, torch.randint(3, (600,), generator=random))
        own[torch.arange(600), taken_for] = 2 + torch.rand(600, generator=random)
        own[:, 3] = torch.rand(600, generator=random)
        sides.append(side(x, labels, own))
    return problem(*sides, Linear(), suffix, seed)


@pytest.mark.slow
def test_a_class_that_is_hardly_ever_named_is_sought_from_another_start() -> None:
    """From the closed form no gradient leads to the fourth class; this draw of a random start has one."""
    found = {}
    for fit in (Quick(steps=1000), Converged(cap=2240)):
        p, stitch = trapped(2, Trap(), size=30), built(Linear(), (8,), (4,))
        report = fit.fit(p, stitch)
        with torch.no_grad():
            named = p.suffix(stitch(p.validation.activations)).argmax(1)
        found[fit] = error(p, stitch), int((named == 3).sum()), report.start, report.notes
    assert found[Quick(steps=1000)][1:] == (0, "closed form", ())
    assert found[Converged(cap=2240)][2:] == ("random", (restarts.AGAIN,))
    assert found[Converged(cap=2240)][0] < 0.03 < 0.2 < found[Quick(steps=1000)][0]


@pytest.mark.slow
def test_a_class_that_no_start_reaches_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver cannot name it; some random starts later, here two, the fit says so."""
    monkeypatch.setattr(restarts, "DRAWS", 2)

    class Mute(Trap):
        def forward(self, a: Tensor) -> Tensor:
            return super().forward(a) * torch.tensor([1, 1, 1, 0]) - 6 * torch.tensor([0, 0, 0, 1])

    p, stitch = trapped(2, Mute()), built(Linear(), (8,), (4,))
    report = Converged().fit(p, stitch)
    assert report.converged
    assert restarts.SOUGHT in report.notes
    assert sum(math.isnan(point.fit_loss) for point in report.curve) == 1 + restarts.DRAWS


class Slope(nn.Module):
    """Names the fourth class, too, if its last feature is below what it ever was; that is told by a slope."""

    def forward(self, a: Tensor) -> Tensor:
        return torch.cat([torch.relu(a[:, :3]), -a[:, 3:] - 8], 1)


@pytest.mark.slow
def test_where_a_receiver_names_a_class_is_found_if_there_is_a_slope() -> None:
    p = trapped(0, Slope())
    found, steps = find_displacements(p, p.suffix, [3], torch.device("cpu"))
    own = p.fit.expected()
    assert (p.suffix(own).argmax(1) != 3).all()
    assert (p.suffix(own + found[3]).argmax(1) == 3).double().mean() > 0.8
    assert found[3][3] < -1
    assert 0 < steps < restarts.STEPS
    displaced_to = displace(p, found).validation.expected()
    rows, target = p.validation.labels == 3, p.validation.expected()
    assert torch.equal(displaced_to[~rows], target[~rows])
    assert torch.equal(displaced_to[rows], target[rows] + found[3])
    p = trapped(0, Trap())
    assert find_displacements(p, p.suffix, [3], torch.device("cpu")) == ({}, restarts.TRIES * restarts.STEPS)


@pytest.fixture
def known_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "find_displacements", lambda *_: ({3: torch.tensor([0.0, 0.0, 0.0, -60.0])}, 7))


def test_the_first_other_start_is_where_the_receiver_names_the_class(known_place: None) -> None:
    """From where no random start comes, since the activations are small."""
    p, stitch = trapped(2, Trap()), built(Linear(), (8,), (4,))
    report = Converged(cap=2240).fit(p, stitch)
    assert (report.start, report.notes) == ("displaced", (restarts.DISPLACED,))
    assert error(p, stitch) < 0.05


@each(
    ("shares", "lost"),
    [
        ([0.9, 0.9, 0.9, 0.0], [3]),
        ([0.9, 0.9, 0.9, 0.05], [3]),
        ([0.9, 0.9, 0.9, 0.1], []),
        ([0.9, 0.9, 0.0, 0.0], []),  # no better than twice a constant
        ([1.0, 0.0, 0.0, 0.0], []),  # what shuffled pairs are left with
    ],
)
def test_a_class_counts_as_lost_beside_the_others(shares, lost) -> None:
    p = trapped(0, Trap())
    made = averaged.Ground(p, built(Linear(), (8,), (4,)).eval(), p.suffix, 64)
    labels = torch.arange(4).repeat_interleave(100)
    held = replace(p.validation, activations=p.validation.activations[:400], labels=labels)
    made.problem, made.held_out = replace(p, validation=held), 400
    wrong = torch.cat([torch.arange(100) >= round(100 * share) for share in shares])
    made.best = averaged.Best(averaged.Look({}, wrong, 0.5, 0))
    assert restarts.find_lost(made) == lost


@each(("family", "starts"), [(Linear(), restarts.DRAWS), (Orthogonal(), 0)], ids=str)
def test_a_stitch_with_buffers_has_no_other_start(monkeypatch, family, starts) -> None:
    """An orthogonal one keeps its rotation in one, which parameters of another start would not move."""
    monkeypatch.setattr(restarts, "find_lost", lambda _: [3])
    monkeypatch.setattr(restarts, "find_displacements", lambda *_: ({}, 0))
    monkeypatch.setattr(restarts, "settle", lambda ground, *_: averaged.Trail([ground.start], ended=True))
    p, drawn = trapped(0, nn.Linear(8, 4).requires_grad_(False)), []
    made = built(family, (8,), (8,)).eval()
    here = averaged.Ground(p, made, p.suffix, 64)
    own, first = dict(made.named_parameters()), averaged.Trail([here.start], ended=True)
    restarts.begin_again(here, first, lambda which, _: drawn.append(which) or own, 70, 1)
    assert drawn == list(range(starts))
    assert here.notes == [restarts.SOUGHT if starts else restarts.LOST_ALONE]


def test_a_fit_is_deepened_by_its_cap_and_its_patience_and_not_for_ever() -> None:
    fit: Fit | None = Converged(batch=64)
    found = []
    while isinstance(fit, Converged):
        assert fit.drawn_as == Converged(cap=70, batch=64)
        found.append((fit.cap, fit.patience))
        fit = fit.deepened()
    assert found == [(converged.CAP, 1), (4 * converged.CAP, 3), (16 * converged.CAP, 5)]
    assert Quick().deepened() is None


def test_the_same_problem_gives_the_same_bits_and_another_seed_others() -> None:
    found = []
    for seed in (0, 0, 1):
        p, stitch = real("conv", Conv(), fit=300)
        torch.rand(3)
        report = Quick(steps=100).fit(replace(p, seed=seed), stitch)
        found.append((state(stitch), repr(report)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


# --- the closed form --------------------------------------------------------------------------------------------------


def test_features_with_one_direction_and_the_rounding_of_float32_are_solved() -> None:
    """As behind the pooling of a network that learned one thing: the covariance is indefinite by its rounding."""
    random = torch.Generator().manual_seed(0)
    features, samples = 512, 3000
    along = torch.randn(samples, 1, generator=random) * torch.ones(1, features)
    p = matching(Linear(), along, torch.randn(samples, 4, generator=random) + along[:, :4], held=500)
    stitch = built(Linear(), (features,), (4,))
    known = accumulate_moments(p.fit.activations, p.fit.expected(), _part(stitch, p.fit.activations), torch.float32)
    assert float(torch.linalg.eigvalsh(known.xx)[0]) < 0
    indefinite = replace(known, xx=known.xx - 1e-4 * known.scale * torch.eye(features).double())
    weights = torch.stack(list(indefinite.regressions(converged.RIDGES)))
    torch.testing.assert_close(weights.sum(2), torch.ones_like(weights.sum(2)), rtol=0, atol=0.15)
    Quick(steps=0).fit(p, stitch)
    with torch.no_grad():
        out = stitch.eval()(along)
    torch.testing.assert_close(out, math.sqrt(2) * along[:, :4], rtol=0, atol=0.2)  # rescaled to the noisy variance


def _part(stitch: nn.Module, x: Tensor) -> Part:
    (part,) = Linear().parts(stitch, x)
    return part


@each(("family", "sender", "receiver"), SOME, ids=named)
def test_without_steps_it_is_the_closed_form(family, sender, receiver):
    random = torch.Generator().manual_seed(4)
    x = torch.randn(90, *sender, generator=random) + 0.5
    p = matching(family, x, torch.randn(90, *receiver, generator=random), held=30)
    wanted, stitch = (built(family, sender, receiver) for _ in range(2))
    LeastSquares(ridges=converged.RIDGES).fit(p, wanted)
    report = Quick(steps=0).fit(p, stitch)
    with torch.no_grad():
        out = wanted.eval()(x)
        torch.testing.assert_close(stitch(x), out, rtol=1e-3, atol=1e-3 * float(out.abs().max()))
    assert (report.steps, report.converged, report.curve) == (0, None, ())


@each(
    ("family", "sender", "receiver"),
    [
        (Conv(), (5, 3, 3), (4, 3, 3)),
        (StridedConv(batchnorm=True), (3, 4, 4), (4, 2, 2)),
        (UpsampledConv(batchnorm=True), (5, 2, 2), (4, 4, 4)),
    ],
    ids=named,
    few=1,
)
def test_batchnorms_that_add_nothing_change_nothing(family, sender, receiver):
    p = posed(family, sender, receiver)
    bare = replace(family, batchnorm=False)
    normed, plain = built(family, sender, receiver), built(bare, sender, receiver)
    assert any(isinstance(module, nn.BatchNorm2d) for module in normed.modules())
    reports = [Quick().fit(p, normed), Quick().fit(replace(p, family=bare), plain)]
    assert reports[0] == replace(reports[1], curve=reports[0].curve)
    x = p.validation.activations
    with torch.no_grad():
        out = plain(x)
        torch.testing.assert_close(normed(x), out, rtol=1e-3, atol=1e-4 * float(out.abs().max()))


@pytest.mark.slow
def test_a_batchnorm_that_adds_something_is_kept():
    p, stitch = real("conv", Conv(3))
    Quick().fit(p, stitch)
    assert any(isinstance(module, nn.BatchNorm2d) for module in stitch.modules())


# --- what it looks at -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nobody_else_s_random_numbers_are_taken():
    p, stitch = real("conv", Conv(), fit=300)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    Quick().fit(p, stitch)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.slow
def test_test_data_never_enter():
    a, b = hybrids()
    roles = few_digits()
    trials = [
        Trial(Seam.at(a, b, "transpose_2"), roles.fit, roles.validation, score)
        for score in (roles.score, roles.score.first(40))
    ]
    first, second = (measure(trial) for trial in trials)
    assert first.trial.fit == Converged()
    assert trials[0].key != trials[1].key
    assert [tensor_bits(t) for t in first.stitch.state_dict().values()] == [
        tensor_bits(t) for t in second.stitch.state_dict().values()
    ]
    assert (first.steps, first.curve) == (second.steps, second.curve)


@pytest.mark.slow
@each("cut", ["relu", "hidden"])
def test_a_trial_is_the_same_again(cut):
    a, b = hybrids()
    roles = few_digits()
    trial = Trial(Seam.at(a, b, cut), roles.fit, roles.validation, roles.score, fit=Converged(cap=280))
    assert bits(measure(trial)) == bits(measure(trial))


# --- when it stops ----------------------------------------------------------------------------------------------------


def test_a_fit_that_reaches_its_cap_says_so_and_how_much_it_gained(endless) -> None:
    p, stitch = real("conv", Conv(), fit=300)
    found = Converged(cap=150).fit(p, stitch)
    assert not found.converged
    assert found.gained is not None
    assert math.isfinite(found.gained.most)


def test_quick_cannot_say_whether_it_has_converged() -> None:
    p, stitch = real("conv", Conv(), fit=300)
    report = Quick(steps=150).fit(p, stitch)
    assert (report.steps, report.converged) == (150, None)
    assert report.gained is not None


@pytest.mark.slow
def test_a_fit_claims_to_have_converged_if_its_last_doubling_gained_less_than_half_a_point(monkeypatch) -> None:
    monkeypatch.setattr(averaged, "LITTLE", 0)
    for value, error, claimed in ((0.003, 0.001, True), (0.003, 0.002, False), (-0.01, 0.014, True)):
        monkeypatch.setattr(averaged.Ground, "gained", lambda *_, v=value, e=error: Gained(v, e))
        p, stitch = real("conv", Conv(), fit=300)
        report = Converged().fit(p, stitch)
        assert (report.converged, report.gained) == (claimed, Gained(value, error))


def test_labels_that_no_stitch_gets_right_leave_the_closed_form() -> None:
    p, stitch, _ = planted()
    wrong = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    closed = copy.deepcopy(stitch)
    Quick(steps=0).fit(wrong, closed)
    report = Converged().fit(wrong, stitch)
    assert report.converged
    assert error(p, stitch) <= error(p, closed)


def test_a_stitch_without_parameters_has_converged_by_definition() -> None:
    p, _, _ = planted()
    found = Converged().fit(replace(p, family=Identity()), nn.Identity())
    assert repr(found) == repr(FitReport(converged=True, gained=Gained(0.0, 0.0)))  # nan is not equal to itself


def test_a_loss_that_is_not_finite_is_named() -> None:
    p, stitch, _ = planted()

    class Broken(nn.Module):
        def forward(self, x):
            return x * math.nan

    with pytest.raises(FitError, match="validation loss of A → B at middle is not finite"):
        Converged().fit(replace(p, suffix=problem(p.fit, p.validation, Linear(), Broken()).suffix), stitch)


@each(
    ("fit", "settings", "message"),
    [
        (Converged, {"cap": 60}, "cap must be at least 70"),
        (Converged, {"patience": 0}, "patience must be at least 1"),
        (Converged, {"batch": 0}, "batch must be at least 1"),
        (Quick, {"steps": -1}, "steps must be at least 0"),
    ],
)
def test_settings_that_are_none_are_refused(fit: type[Fit], settings, message):
    with pytest.raises(FitError, match=message):
        fit(**settings)


@each("steps", [1, 69, 70, 141, 300], few=2)
def test_it_takes_no_more_steps_than_it_may(steps):
    p, stitch = real("conv", Conv(), fit=300)
    report = Quick(steps=steps).fit(p, stitch)
    assert 0 < report.steps <= steps
    assert [point.step for point in report.curve] == sorted({point.step for point in report.curve})
    assert report.curve[-1].step == report.steps


def test_few_samples_are_enough():
    p, stitch, _ = planted(n=12)
    report = Quick(steps=20).fit(p, stitch)
    assert report.steps > 0
    assert all(tensor.isfinite().all() for tensor in stitch.state_dict().values())


def test_a_family_without_a_closed_form_begins_at_random():
    p, _, accuracy = planted()
    torch.manual_seed(0)
    stitch = Deep().build((6,), (6,))
    before = accuracy(stitch)
    Quick(steps=600).fit(replace(p, family=Deep()), stitch)
    assert accuracy(stitch) > max(0.8, before)


# --- what it reads of the receiver ------------------------------------------------------------------------------------


@each(("shape", "samples"), [((4, 32, 32), 1024), ((4, 4, 4), 2048), ((64, 8), 1024), ((9,), 2**15)])
def test_a_map_of_many_positions_needs_few_samples(shape, samples):
    assert Quick().reads(shape) == samples


def test_it_is_given_no_more_of_the_receiver_s_activations_than_it_reads(monkeypatch):
    monkeypatch.setattr(converged, "SAMPLES", 64)
    monkeypatch.setattr(converged, "ROWS", 0)
    sender, receiver = hybrids()
    data = few_digits()
    trial = Trial(Seam.at(sender, receiver, "conv"), data.fit, data.validation, data.score, fit=Quick(steps=5))
    read = [need for need in trial.needs if need.network is receiver and need.index <= len(receiver.cuts)]
    assert {len(need.samples) for need in read} == {64, *map(len, (data.validation, data.score, trial.reference))}
    few = measure(trial)
    monkeypatch.setattr(Quick, "reads", lambda self, shape: math.inf)
    assert bits(measure(trial)) == bits(few)


class Writes(nn.Module):
    """A stitch that writes into what it reads."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x.sub_(1.0))


@dataclass(frozen=True)
class Writing(Stitch):
    joins = "vectors"

    def accepts(self, sender, receiver):
        return len(sender) == len(receiver) == 1

    def build(self, sender, receiver):
        return Writes(*sender, *receiver)


@each("fit", [Quick(steps=20), TaskLoss(start=Random(), steps=20)], ids=str)
def test_a_stitch_may_write_into_what_it_reads(fit):
    posed, _, _ = planted()
    before = [posed.fit.activations.clone(), posed.validation.activations.clone()]
    fit.fit(replace(posed, family=Writing()), Writing().build((6,), (6,)))
    assert torch.equal(posed.fit.activations, before[0])
    assert torch.equal(posed.validation.activations, before[1])

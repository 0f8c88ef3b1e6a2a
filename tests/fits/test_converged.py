"""The default fit: it finds what is planted, comes as near the best as a much longer run, and knows when.

Its coordinates have a file of their own. ``Quick`` is the same descent, cut short.
"""

import copy
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

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
    BestOf,
    Converged,
    Fit,
    FitReport,
    LeastSquares,
    Narrower,
    Problem,
    Quick,
    Random,
    TaskLoss,
    averaged,
    converged,
    displaced,
)
from suture.fits.coordinates import ALIKE, WHITE
from suture.fits.displaced import displace, find_displacements
from suture.fits.least_squares import accumulate_moments
from suture.fits.optimisers import Adam
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
    go_on = averaged.AveragedDescent._go_on
    monkeypatch.setattr(averaged.AveragedDescent, "_go_on", lambda *given: go_on(*given) or True)


def error(p, stitch):
    """The share of validation images that a stitched network names wrong."""
    with torch.no_grad():
        out = p.suffix(stitch.eval()(p.validation.activations))
    return float((out.argmax(1) != p.validation.labels).double().mean())


# --- its parts, by hand -----------------------------------------------------------------------------------------------


def descent(held: int = 150) -> averaged.AveragedDescent:
    """A descent on a small problem that is not convex, with so many validation samples."""
    p = posed(Linear(), (6,), (5,), n=2 * held)
    return averaged.AveragedDescent(p, built(Linear(), (6,), (5,)).eval(), p.suffix, 64, lambda _: {})


@each(
    ("caps", "looks", "ends"),
    [
        ([8960], "+-- --", [70, 140, 280, 140, 280]),
        ([8960], "--- --", [70, 140, 280, 140, 280]),  # the first look says nothing
        ([8960], "+-+-- --", [70, 140, 280, 560, 1120, 140, 280]),  # one that is better begins the count anew
        ([8960], "+-- +--", [70, 140, 280, 140, 280, 560]),
        ([140, 420, 8960], "+-- --", [70, 140, 280, 140, 280]),  # what was idle before a cap counts after it
    ],
)
def test_a_rate_is_done_with_after_two_idle_doublings_and_the_fit_after_a_lower_one(monkeypatch, caps, looks, ends):
    told, seen = iter(looks.replace(" ", "")), []

    def go_on(self: averaged.AveragedDescent, ahead: int, _: float) -> bool:
        self.step, self.taken, self.steps = self.step + ahead, self.taken + ahead, self.steps + ahead
        seen.append(self.look)
        assert self.step == self.look
        self.look *= 2
        return next(told) == "+"

    monkeypatch.setattr(averaged.AveragedDescent, "_go_on", go_on)
    report = FitReport()
    for cap in caps:
        made = descent()
        made.problem = replace(made.problem, begun=report.state)
        report = made.run(cap, 0.001)
    assert (seen, report.converged) == (ends, True)
    assert next(told, None) is None


def test_a_descent_whose_race_ended_with_its_rate_goes_on_at_a_lower_one():
    made = descent()
    made.begin(0.001)
    rate, taken, steps, made.idle = made.rate, made.taken, made.steps, averaged.IDLE
    ahead = averaged.BEGUN * averaged.FIRST
    made.run(taken + ahead, 0.001)
    assert made.rate == rate / averaged.LOWER
    assert (made.taken, made.steps) == (taken + ahead, steps + ahead)


@each(("carrier", "ridge"), [("large", ALIKE), ("small", WHITE)])
def test_it_goes_on_in_the_units_that_suit_where_the_labels_are(carrier, ridge):
    """Four directions vary by 1 and sixty by 0.003; the labels are in the large ones, or in four of the small."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    suffix = nn.Sequential(nn.Tanh(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
    x = torch.randn(1200, 64, generator=random) * torch.cat([torch.full((4,), 1.0), torch.full((60,), 0.003)])
    told = x[:, :4] if carrier == "large" else x[:, 4:8]
    labels = (told @ torch.randn(4, 4, generator=random)).argmax(1)
    own = torch.randn(1200, 16, generator=random)
    p = problem(*(side(x[part], labels[part], own[part]) for part in (slice(600), slice(600, 1200))), Linear(), suffix)
    made = []

    def make(ridge: float) -> averaged.AveragedDescent:
        made.append(averaged.AveragedDescent(p, built(Linear(), (64,), (16,)).eval(), suffix, 64, lambda _: {}, ridge))
        return made[-1]

    chosen = averaged.choose_units(make, 0.001)
    assert (chosen.ridge, [one.ridge for one in made]) == (ridge, [ALIKE, WHITE])
    assert chosen.best.least.error == min(one.best.least.error for one in made)
    assert chosen.steps == sum(one.curve[-1].step for one in made), "what the other took is counted"


class Racer:
    """A descent whose errors, of 100 images from the ``first``, and idle doublings by look are given."""

    def __init__(self, errors: str, idle: str, first: int) -> None:
        self.errors, self.idles, self.first = iter(errors.split()), iter(idle.split()), first
        self.coordinates = SimpleNamespace(rotated=True)
        self.look, self.steps, self.looks = averaged.FIRST, 0, 0

    def begin(self, tolerance: float) -> bool:
        for _ in range(averaged.BEGUN):
            self.double(tolerance)
        return True

    def double(self, tolerance: float) -> None:
        self.steps, self.look, self.looks = self.look, 2 * self.look, self.looks + 1
        wrong = (torch.arange(100) >= self.first) & (torch.arange(100) < self.first + int(next(self.errors)))
        self.best, self.idle = averaged.Best(averaged.Look({}, wrong, 1.0), 1.0), int(next(self.idles))


@each(
    ("one", "other", "idle", "looks", "chosen"),
    [
        ("50 40 30", "50 39 20", "0 0 0", 3, "other"),  # some 20 images differ, which would make 4 or 5 by chance
        ("50 40 20", "50 39 30", "0 0 0", 3, "one"),  # the one that was behind may win
        ("50 40", "50 30", "0 0", 2, "other"),
        ("50 40 40 40 40", "50 39 40 40 39", "0 0 0 0 0", 5, "other"),  # to 1,120 steps
        ("50 40 40", "50 39 39", "0 1 2", 3, "other"),  # a rate is done with
    ],
)
def test_units_race_while_chance_does_not_tell_their_errors_apart(one, other, idle, looks, chosen):
    made = {ALIKE: Racer(one, idle, 0), WHITE: Racer(other, idle, 10)}
    found = averaged.choose_units(made.__getitem__, 0.001)
    assert found is made[WHITE if chosen == "other" else ALIKE]
    assert [racer.looks for racer in made.values()] == [looks, looks]
    assert found.steps == 2 * averaged.FIRST * 2 ** (looks - 1)


@each(("righted", "wronged", "gained"), [(2, 0, True), (6, 4, False), (0, 0, False), (30, 4, True), (4, 30, False)])
def test_what_chance_would_gain_is_no_gain(monkeypatch, righted, wronged, gained):
    """The deviation of 6 better and 4 worse, of 100, is 3.2 points, of 2 better 1.4."""
    made = descent(100)
    before = torch.arange(100) < 40
    after = before.clone()
    after[:righted], after[40 : 40 + wronged] = False, True
    found = averaged.Look({}, after, 0.5)
    made.best, made.least_loss = averaged.Best(averaged.Look({}, before, 0.75), 0.0), 0.5
    monkeypatch.setattr(made, "_average", lambda ahead: ({}, 0.0))
    monkeypatch.setattr(made, "_look", lambda state: found)
    assert made._go_on(70, 0.001) == gained
    assert made.gains == [pytest.approx((righted - wronged) / 100)]
    assert (made.best.least is found) == (righted >= wronged)
    assert (made.best.kept is found) == (wronged < 30)


@each(("loss", "better"), [(0.6, True), (0.6951, False), (0.7, False), (0.9, False)])
def test_a_loss_that_falls_below_the_least_is_better_than_idle(monkeypatch, loss, better):
    made, wrong = descent(100), torch.arange(100) < 40
    made.best, made.least_loss = averaged.Best(averaged.Look({}, wrong, 0.8), 0.0), 0.7
    monkeypatch.setattr(made, "_average", lambda ahead: ({}, 0.0))
    monkeypatch.setattr(made, "_look", lambda state: averaged.Look({}, wrong, loss))
    assert made._go_on(70, 0.001) == better
    assert made.least_loss == min(loss, 0.7)


@each(
    ("looks", "kept"),
    [
        ([(400, 1.0), (300, 9.0)], 1),
        ([(300, 1.0), (400, 0.1)], 0),
        ([(400, 1.0), (400, 0.9)], 1),
        ([(400, 1.0), (410, 0.9)], 0),  # 10 of 1,000 are more than the deviation of as many
        ([(400, 1.0), (401, 0.9)], 1),
        ([(400, 1.0), (401, 0.9), (402, 0.8)], 1),  # the last is as good as the second, not as the least
        ([(400, 1.0), (401, 0.9), (390, 2.0)], 2),
        ([(400, 1.0), (401, 1.1), (400, 1.0)], 0),
    ],
)
def test_of_what_chance_does_not_tell_from_the_fewest_errors_the_least_loss_is_kept(looks, kept):
    """One error more has a deviation of one error, two have one of 1.4; a constant errs as often, or is none."""
    made = [averaged.Look({}, torch.arange(1000) < errors, nats) for errors, nats in looks]
    for constant in (0.0, 0.4):
        best = averaged.Best(made[0], constant)
        for look in made:
            best.add(look)
        assert best.kept is made[kept]


@each(
    ("constant", "looks", "kept"),
    [
        (0.9, [(400, 1.0), (401, 0.9)], 0),
        (0.9, [(400, 1.0), (399, 2.0)], 1),
        (0.9, [(400, 1.0), (400, 0.9)], 1),
        (0.46, [(401, 1.0), (400, 1.1)], 0),  # 60 of 1,000 are less than four deviations of 16
        (0.47, [(401, 1.0), (400, 1.1)], 1),
    ],
)
def test_the_fewest_errors_are_kept_if_a_constant_makes_clearly_more(constant, looks, kept):
    made = [averaged.Look({}, torch.arange(1000) < errors, nats) for errors, nats in looks]
    best = averaged.Best(made[0], constant)
    for look in made:
        best.add(look)
    assert best.kept is made[kept]


def test_a_constant_errs_where_the_commonest_class_is_not() -> None:
    p = descent(100).problem
    labels = torch.tensor([2, 2, 2, 1, 0, 0, 0, 0])
    classes = replace(p, validation=replace(p.validation, labels=labels))
    assert averaged.err_always(classes, 8) == 0.5
    assert averaged.err_always(classes, 5) == pytest.approx(0.4)
    assert averaged.err_always(replace(classes, task=Regression()), 8) == 0


def test_a_fit_to_shuffled_labels_does_not_keep_the_closed_form():
    """All looks are equally wrong there, and one of them is the closed form, which still names classes."""
    p, stitch = real("conv", Conv(), fit=300)
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


def test_the_average_is_of_every_step_and_the_rate_falls_by_the_root_of_the_steps(monkeypatch):
    made, seen, rates = descent(), [], []
    made.step, made.rate = 130, 0.1
    made.adam, take = made._adam(0.1), made._step

    def step(adam: torch.optim.Adam, chosen: Tensor) -> float:
        rates.append(adam.param_groups[0]["lr"])
        loss = take(adam, chosen)
        seen.append(made.coordinates.state())
        return loss

    monkeypatch.setattr(made, "_step", step)
    average, _ = made._average(40)
    for name, mean in average.items():
        torch.testing.assert_close(mean, torch.stack([each[name] for each in seen]).mean(0))
    whole = 0.1 * next(iter(made.coordinates.steps.values()))
    assert rates == pytest.approx([whole * min(1, math.sqrt(140 / at)) for at in range(131, 171)])


@each(
    ("losses", "turn", "times", "taken"),
    [
        ([1.0, 0.5, 0.46], False, 1, 0),  # falls by 8 % more: not worth it
        ([1.0, 0.5, 0.46, 0.46], True, 1, 0),  # nor is a lower one
        ([1.0, 0.9, 1.2, 0.5, 0.55], True, 1 / 3, 2),  # it falls at the first, and far more at a lower one
        ([1.0, 0.9, 1.2], False, 1, 0),
        ([1.0, 0.9, math.nan, 0.8, 0.7, 0.6], True, 1 / 27, 4),
        ([1.0, 0.5, 0.44, 0.4], True, 3, 1),  # a higher one is better: no lower one is tried
        ([1.0, 0.5, 0.4, 0.3, 0.2, 0.1], True, 81, 4),
        ([1.0, 2.0, 1.5, 0.9, 0.95], False, 1 / 9, 2),
        ([1.0, math.nan, 1.2, 1.1, 1.3], True, 1 / 9, 2),
        ([1.0, math.inf, math.inf], True, 1, 0),
    ],
)
def test_the_rate_is_the_one_by_which_the_loss_falls_farthest(monkeypatch, losses, turn, times, taken):
    made, told, ended = descent(), iter(losses), []
    made.rate, take = 0.1, made._losses
    monkeypatch.setattr(made, "_losses", lambda most: (torch.tensor([next(told)]), take(most)[1]))
    restore = made.coordinates.restore
    monkeypatch.setattr(made.coordinates, "restore", lambda state: ended.append(state) or restore(state))
    made._find_rate(4, turn)
    assert made.rate == pytest.approx(0.1 * times)
    assert (made.step, made.steps) == (35, 35 * (len(losses) - 1))
    assert next(told, None) is None
    assert made.adam.param_groups[0]["lr"] / next(iter(made.coordinates.steps.values())) == pytest.approx(made.rate)
    assert ended[-1] is ended[3 * taken + 2], "each attempt restores the start, its average, and its end"


# --- laws -------------------------------------------------------------------------------------------------------------


@each(("scale", "mean"), [(1.0, 0.0), (1e-3, 0.0), (1e3, 0.0), (1.0, 30.0), (1e-25, 0.0), (1e25, 0.0)])
def test_it_finds_what_is_planted_whatever_the_sender_s_units(scale, mean):
    p, stitch, accuracy = planted(n=300, scale=scale, mean=mean)
    report = Converged().fit(p, stitch)
    assert accuracy(stitch) > 0.95
    assert report.converged
    assert report.start == "closed form"
    assert report.validation_loss == pytest.approx(validation_loss(p, stitch), rel=1e-4)


@each(("family", "sender", "receiver"), SOME, ids=named)
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
    """Looks and losses of a short cap are the first of those of a longer one; the first cap is passed by the race."""
    curves = []
    for cap in (140, 2310, 4550):
        p, stitch = real("conv", Conv(), fit=300)
        curves.append(Converged(cap=cap).fit(p, stitch).curve)
    shortest, middle, longest = curves
    assert len(shortest) < len(middle) < len(longest)
    assert middle[: len(shortest)] == shortest
    assert longest[: len(middle)] == middle


@each(("cut", "family", "cap"), [("conv", Conv(), 140), ("hidden", Linear(), 280)])
def test_a_deepened_fit_is_one_that_ran_that_far_at_once(endless, cut, family, cap):
    """Bit for bit: stitch, curve, steps and what is left."""
    found = []
    for caps in ([cap, 560], [560]):
        begun = None
        for each_cap in caps:
            p, stitch = real(cut, family, fit=300)
            report = Converged(cap=each_cap).fit(replace(p, begun=begun), stitch)
            begun = report.state
        kept = {name: tensor.tolist() for name, tensor in (report.state or {}).items() if name != "curve"}  # has a nan
        found.append((state(stitch), repr(report), kept))
    assert found[0] == found[1]


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
    assert found[Converged(cap=2240)][2:] == ("random", (averaged.AGAIN,))
    assert found[Converged(cap=2240)][0] < 0.03 < 0.2 < found[Quick(steps=1000)][0]


def test_a_class_that_no_start_reaches_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver cannot name it; some random starts later, here two, the fit says so."""
    monkeypatch.setattr(averaged, "DRAWS", 2)

    class Mute(Trap):
        def forward(self, a: Tensor) -> Tensor:
            return super().forward(a) * torch.tensor([1, 1, 1, 0]) - 6 * torch.tensor([0, 0, 0, 1])

    p, stitch = trapped(2, Mute()), built(Linear(), (8,), (4,))
    report = Converged().fit(p, stitch)
    assert report.converged
    assert averaged.SOUGHT in report.notes
    assert sum(math.isnan(point.fit_loss) for point in report.curve) == 1 + averaged.DRAWS


class Slope(nn.Module):
    """Names the fourth class, too, if its last feature is below what it ever was; that is told by a slope."""

    def forward(self, a: Tensor) -> Tensor:
        return torch.cat([torch.relu(a[:, :3]), -a[:, 3:] - 8], 1)


def test_where_a_receiver_names_a_class_is_found_if_there_is_a_slope() -> None:
    p = trapped(0, Slope())
    found, steps = find_displacements(p, p.suffix, [3], torch.device("cpu"))
    own = p.fit.expected()
    assert (p.suffix(own).argmax(1) != 3).all()
    assert (p.suffix(own + found[3]).argmax(1) == 3).double().mean() > 0.8
    assert found[3][3] < -1
    assert 0 < steps < displaced.STEPS
    displaced_to = displace(p, found).validation.expected()
    rows, target = p.validation.labels == 3, p.validation.expected()
    assert torch.equal(displaced_to[~rows], target[~rows])
    assert torch.equal(displaced_to[rows], target[rows] + found[3])
    p = trapped(0, Trap())
    assert find_displacements(p, p.suffix, [3], torch.device("cpu")) == ({}, displaced.TRIES * displaced.STEPS)


@pytest.fixture
def known_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaged, "find_displacements", lambda *_: ({3: torch.tensor([0.0, 0.0, 0.0, -60.0])}, 7))


def test_the_first_other_start_is_where_the_receiver_names_the_class(known_place: None) -> None:
    """From where no random start comes, since the activations are small."""
    p, stitch = trapped(2, Trap()), built(Linear(), (8,), (4,))
    report = Converged(cap=2240).fit(p, stitch)
    assert (report.start, report.notes) == ("displaced", (averaged.DISPLACED,))
    assert error(p, stitch) < 0.05


@each(("cap", "draws"), [(420, 0), (560, 1)])
def test_a_displaced_start_is_deepened_to_the_same_bits(cap, draws, known_place):
    check_deepened(cap, 2, draws)


@each(("cap", "seed", "draws"), [(420, 2, 0), (560, 4, 1)])
def test_a_fit_that_began_again_is_deepened_to_the_same_bits(cap, seed, draws):
    check_deepened(cap, seed, draws)


def check_deepened(cap: int, seed: int, draws: int) -> None:
    """Check that a deepened fit is one that ran that far at once, whichever of its starts a cap falls into."""
    found = []
    for caps in ([cap, 2 * cap], [2 * cap]):
        begun = None
        for each_cap in caps:
            p, stitch = trapped(seed, Trap()), built(Linear(), (8,), (4,))
            report = Converged(cap=each_cap).fit(replace(p, begun=begun), stitch)
            begun = report.state
            if begun is not None and each_cap == cap:
                assert begun["numbers"][7] == draws
        kept = {name: tensor.tolist() for name, tensor in (report.state or {}).items() if name != "curve"}
        found.append((state(stitch), repr(report), kept))
    assert found[0] == found[1]


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
def test_a_class_counts_as_lost_beside_the_others(shares, lost):
    p = trapped(0, Trap())
    made = averaged.AveragedDescent(p, built(Linear(), (8,), (4,)).eval(), p.suffix, 64, lambda _: {})
    labels = torch.arange(4).repeat_interleave(100)
    held = replace(p.validation, activations=p.validation.activations[:400], labels=labels)
    made.problem, made.held_out = replace(p, validation=held), 400
    wrong = torch.cat([torch.arange(100) >= round(100 * share) for share in shares])
    made.best = averaged.Best(averaged.Look({}, wrong, 0.5), 0.0)
    assert made._lost() == lost


def test_a_stitch_with_buffers_has_no_other_start() -> None:
    """An orthogonal one keeps its rotation in one, which parameters of another start would not move."""
    p = trapped(0, Trap())
    for family, wanted in ((Linear(), averaged.DRAWS), (Orthogonal(), 0)):
        made = averaged.AveragedDescent(p, built(family, (8,), (8,)).eval(), p.suffix, 64, lambda _: {})
        assert made.most_draws == wanted


def test_what_an_earlier_start_kept_is_not_lost() -> None:
    """Of two looks at a start chance does not tell apart, the one of lower loss; a later start is worse, or better."""
    p = trapped(0, Trap())
    made = averaged.AveragedDescent(p, built(Linear(), (8,), (4,)).eval(), p.suffix, 64, lambda _: {})
    least = averaged.Look({}, (torch.arange(400) % 40 == 0).float(), 0.5)
    kept = averaged.Look({}, (torch.arange(400) % 36 == 1).float(), 0.4)  # one more is wrong, which may be chance
    made.constant = 0.0
    made.before = averaged.Best(least, 0.0)
    made.before.add(kept)
    for share, best in ((2, kept), (80, None)):
        later = averaged.Look({}, (torch.arange(400) % share == 1).float(), 0.3, draw=1)
        made.best = averaged.Best(later, 0.0)
        assert made._best_of_all().kept is (best or later)


def test_a_fit_is_deepened_by_its_cap_alone_and_not_for_ever() -> None:
    fit: Fit | None = Converged(tolerance=0.01)
    caps = []
    while isinstance(fit, Converged):
        assert (fit.tolerance, fit.drawn_as) == (0.01, Converged(cap=140))
        caps.append(fit.cap)
        fit = fit.deepened()
    assert caps == [converged.CAP, 4 * converged.CAP, 16 * converged.CAP]
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


def test_a_batchnorm_that_adds_something_is_kept():
    p, stitch = real("conv", Conv(3))
    Quick().fit(p, stitch)
    assert any(isinstance(module, nn.BatchNorm2d) for module in stitch.modules())


# --- what it looks at -------------------------------------------------------------------------------------------------


def test_nobody_else_s_random_numbers_are_taken():
    p, stitch = real("conv", Conv(), fit=300)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    Quick().fit(p, stitch)
    assert torch.equal(torch.rand(3), wanted)


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


def test_a_fit_that_reaches_its_cap_says_so_and_how_much_is_left(endless) -> None:
    p, stitch = real("conv", Conv(), fit=300)
    found = Converged(cap=150).fit(p, stitch)
    assert found.steps >= 140
    assert (found.steps - 140) % averaged.TRIED == 0, "those that other rates were tried for"
    assert not found.converged
    assert found.state is not None
    assert found.gap is not None
    assert 0 <= found.gap < 1


def test_quick_cannot_say_whether_it_has_converged() -> None:
    p, stitch = real("conv", Conv(), fit=300)
    report = Quick(steps=150).fit(p, stitch)
    assert (report.steps, report.converged) == (150, None)
    assert report.gap is not None


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
    assert Converged().fit(replace(p, family=Identity()), nn.Identity()) == FitReport(converged=True, gap=0.0)


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
        (Converged, {"cap": 100}, "cap must be at least 140"),
        (Converged, {"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
        (Converged, {"batch": 0}, "batch must be at least 1"),
        (Quick, {"steps": -1}, "steps must be at least 0"),
    ],
)
def test_settings_that_are_none_are_refused(fit: type[Fit], settings, message):
    with pytest.raises(FitError, match=message):
        fit(**settings)


def test_a_tolerance_too_small_for_the_validation_data_is_refused_wherever_the_fit_stands():
    small = Converged(tolerance=1e-6)
    for fit in (small, BestOf((small,)), TaskLoss(start=small), Narrower(Linear(), by=small)):
        with pytest.raises(FitError, match="tell no gain below one of them"):
            fit.check_validation(1000)


@each(
    ("gains", "left"),
    [
        ([0.1], None),
        ([0.08, 0.04], 0.04),
        ([0.04, 0.04], 0.12),
        ([0.04, -0.01], 0.0),
        ([-0.01, 0.02], 0.02),
    ],
)
def test_what_is_left_is_extrapolated_from_two_doublings(gains, left):
    found = averaged._extrapolate(gains)
    assert found == (None if left is None else pytest.approx(left))


@each("steps", [1, 69, 70, 141, 300])
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

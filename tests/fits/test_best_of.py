"""The best of several fits: the one of them that validates best, bit for bit as it is alone."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from loops import each
from problems import SOME, built, named, planted, problem, real, side, state, validated
from suture import Seam, Trial, measure
from suture.common.errors import FitError
from suture.common.hashing import identity
from suture.common.names import make
from suture.core.stitches import Conv, Identity, Linear
from suture.fits import (
    SGD,
    BestOf,
    Fit,
    FitReport,
    LeastSquares,
    MatchActivations,
    Problem,
    Random,
    SoftLabels,
    TaskLoss,
)
from suture.fits.best_of import PUBLISHED_START
from suture_papers import recipes
from trained import bits, few_digits, hybrids

EXACT = LeastSquares(ridges=(1e-8,))
RANDOM = replace(recipes.bansal2021, steps=40)
SHORT = TaskLoss(steps=6, check=3)


@dataclass(frozen=True)
class Blank(Fit):
    """Every parameter one number; counts as some steps."""

    value: float
    steps: int = 1

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        with torch.no_grad():
            for parameter in stitch.parameters():
                parameter.fill_(self.value)
        return FitReport(self.steps, converged=self.value > 0, notes=(f"all are {self.value}",))


@dataclass(frozen=True)
class Drawn(Fit):
    """A weight drawn from torch's global generator, which is left somewhere else."""

    scale: float = 1.0

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        with torch.no_grad():
            for parameter in stitch.parameters():
                parameter.copy_(self.scale * torch.randn(parameter.shape))
        return FitReport()


@dataclass(frozen=True)
class Failing(Fit):
    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        Blank(7.0).fit(problem, stitch)
        raise FitError("it fails")


def alone(fit: Fit, p: Problem, stitch: nn.Module) -> tuple[nn.Module, FitReport]:
    own = copy.deepcopy(stitch)
    return own, fit.fit(p, own)


def misled() -> tuple[Problem, nn.Module]:
    """The receiver's own activations, by which least squares goes, belong to other images."""
    p, stitch, _ = planted()
    own = p.fit.expected()
    other = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(1))]
    return replace(p, fit=replace(p.fit, expected=lambda: other)), stitch


@each("turn", [1, -1])
def test_it_keeps_the_closed_form_where_that_is_better(turn):
    p, stitch, _ = planted()
    wanted, _ = alone(EXACT, p, stitch)
    report = BestOf((EXACT, RANDOM)[::turn]).fit(p, stitch)
    assert report.kept == str(EXACT)
    assert state(stitch) == state(wanted)


@pytest.mark.slow
@each("turn", [1, -1])
def test_it_keeps_the_random_start_where_that_is_better(turn):
    p, stitch = misled()
    long = replace(RANDOM, steps=600)
    wanted, _ = alone(long, p, stitch)
    report = BestOf((EXACT, long)[::turn]).fit(p, stitch)
    assert report.kept == "bansal2021(steps=600)"
    assert state(stitch) == state(wanted)


@each(("cut", "family"), [("conv", Conv()), ("transpose_2", Linear()), ("hidden", Linear())])
def test_it_is_never_worse_on_validation_data_than_any_of_its_fits(cut, family):
    fits = (SHORT, LeastSquares(), replace(RANDOM, steps=8), MatchActivations(steps=8))
    p, stitch = real(cut, family, fit=300)
    losses = [validated(p, alone(fit, p, stitch)[0]) for fit in fits]
    report = BestOf(fits).fit(p, stitch)
    assert validated(p, stitch) == min(losses)
    assert report.kept == str(fits[losses.index(min(losses))])
    assert not stitch.training


def test_of_equals_the_first_is_kept():
    still = TaskLoss(start=Random(), optimiser=SGD(0.0), steps=2, patience=None, standardise=False)
    p, stitch, _ = planted()
    for fits in ((Random(), still), (still, Random())):
        assert BestOf(fits).fit(p, stitch).kept == str(fits[0])


def test_it_chooses_by_validation_data_and_by_nothing_else():
    """On the fit data, whose labels are others, the other would be kept."""
    p, stitch, _ = planted()
    p = replace(p, fit=replace(p.fit, labels=(p.fit.labels + 1) % 4))
    long = replace(RANDOM, steps=600)
    assert BestOf((long, EXACT)).fit(p, stitch).kept == str(EXACT)


def test_it_reports_the_steps_of_all_and_else_what_was_kept():
    p, stitch, _ = planted()
    _, kept = alone(SHORT, p, stitch)
    report = BestOf((Blank(-1.0, steps=3), SHORT, Blank(0.5, steps=40))).fit(p, stitch)
    assert report.validation_loss == pytest.approx(kept.validation_loss, rel=1e-4)
    loss = report.validation_loss
    wanted = replace(kept, steps=43 + kept.steps, kept=str(SHORT), validation_loss=loss)
    assert repr(report) == repr(wanted)  # which hold nan, so that == says nothing
    assert (kept.kept, len(kept.curve), kept.notes) == ("", 3, ())
    assert BestOf((Blank(0.5), Blank(math.nan))).fit(p, stitch).notes == ("all are 0.5",)


def test_every_fit_draws_what_it_draws_alone():
    p, stitch, _ = planted()
    torch.manual_seed(5)
    wanted, _ = alone(Drawn(), p, stitch)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    report = BestOf((Drawn(100.0), Drawn())).fit(p, stitch)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert report.kept == str(Drawn())
    assert state(stitch) == state(wanted)


def test_a_stitch_without_parameters_stays_as_it_is():
    p, _ = real("relu", Identity(), fit=200)
    report = BestOf((LeastSquares(), RANDOM)).fit(p, Identity().build((16,), (16,)))
    assert (report.steps, report.kept) == (0, "LeastSquares()")


@each(("family", "sender", "receiver"), SOME, ids=named)
def test_every_family_can_be_fitted_by_several(family, sender, receiver):
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn((60, *shape), generator=random) for shape in (sender, receiver))
    p = problem(*[side(x, y.flatten(1).argmax(1), y)] * 2, family, nn.Flatten())
    stitch = built(family, sender, receiver)
    held = {name: id(tensor) for name, tensor in stitch.named_parameters()}
    fits = (Random(), LeastSquares(), TaskLoss(steps=4, check=2))
    losses = [validated(p, alone(fit, p, stitch)[0]) for fit in fits]
    assert BestOf(fits).fit(p, stitch).kept == str(fits[losses.index(validated(p, stitch))])
    (errors, loss), (fewest, its_loss) = validated(p, stitch), min(losses)
    assert errors == fewest or loss < its_loss, "of two that chance does not tell apart, that with the lower loss"
    assert {name: id(tensor) for name, tensor in stitch.named_parameters()} == held, "changed in place"


def test_the_same_trial_gives_the_same_bits():
    a, b = hybrids()
    data = few_digits()
    fit = BestOf((SHORT, replace(RANDOM, steps=6)))
    one = Trial(Seam.at(a, b, "conv"), data.fit, data.validation, data.score, fit=fit)
    first, again = measure(one), measure(copy.copy(one))
    assert bits(first) == bits(again)
    assert first.steps >= 12


def test_where_one_fails_the_stitch_is_as_it_was():
    p, stitch, _ = planted()
    before = state(stitch)
    with pytest.raises(FitError, match="it fails"):
        BestOf((EXACT, Failing())).fit(p, stitch)
    assert state(stitch) == before


def test_what_is_not_finite_is_not_kept():
    p, stitch, _ = planted()
    assert BestOf((Blank(math.inf), Blank(-1.0))).fit(p, stitch).kept == str(Blank(-1.0))
    with pytest.raises(FitError, match="no fit of A → B at middle has a finite validation loss; try a smaller"):
        BestOf((Blank(math.nan), Blank(math.inf))).fit(p, stitch)


def test_the_best_of_the_best_says_which_fit_it_was():
    p, stitch, _ = planted()
    assert BestOf((Blank(-1.0), BestOf((Random(), EXACT)))).fit(p, stitch).kept == str(EXACT)


def test_it_reads_the_receiver_where_one_of_its_fits_does():
    assert BestOf().reads((4,)) > 0
    assert BestOf((Random(), EXACT)).reads((4,)) > 0
    assert BestOf((Random(), RANDOM)).reads((4,)) == 0


def test_fits_that_make_no_choice_are_refused():
    with pytest.raises(FitError, match=r"BestOf\(fits=\(\)\): name fits to choose from"):
        BestOf(())
    with pytest.raises(FitError, match=r"names bansal2021\(steps=40\) twice, .*; measure with more seeds"):
        BestOf((RANDOM, EXACT, copy.deepcopy(RANDOM)))


def test_it_says_what_it_is():
    assert str(BestOf()) == "BestOf()"
    assert str(BestOf((SHORT, RANDOM))) == "BestOf(fits=(TaskLoss(steps=6, check=3), bansal2021(steps=40)))"
    assert BestOf() == make("fit", "best-of")
    assert identity(BestOf((SHORT, RANDOM))) != identity(BestOf((RANDOM, SHORT))) != identity(BestOf())


def test_its_random_start_is_the_published_one():
    assert replace(PUBLISHED_START, steps=120_000) == recipes.bansal2021
    assert PUBLISHED_START in BestOf().fits


def test_soft_labels_are_judged_by_the_labels():
    p, stitch, _ = planted()
    soft = TaskLoss(steps=6, check=3, targets=SoftLabels())
    losses = [validated(p, alone(fit, p, stitch)[0]) for fit in (soft, Blank(0.0))]
    assert BestOf((Blank(0.0), soft)).fit(p, stitch).kept == str((soft, Blank(0.0))[losses.index(min(losses))])

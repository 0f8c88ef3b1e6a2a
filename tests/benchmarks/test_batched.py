"""The prototype that fits stitches side by side: what each gets is what it gets alone, to rounding."""

import pytest

from benchmarks import batched
from suture import Failure, Measurement, Seam, Trial, controls, measure
from suture.core.activations.cache import Activations
from suture.core.stitches import Conv, Identity
from suture.fits import Fast, Fit, LeastSquares
from trained import bits, convnets, few_digits


class Breaks(Fit):
    """A fit of the user's that fails."""

    def fit(self, problem, stitch):
        raise RuntimeError("it broke")


def trial(sender, **settings) -> Trial:
    data = few_digits()
    seam = Seam.at(sender, convnets()[1], "stage2.pool")
    return Trial(seam, data.fit, data.validation, data.score, **{"fit": Fast(steps=8)} | settings)


def test_stitches_fitted_side_by_side_are_those_of_each_alone(monkeypatch):
    c, d = convnets()
    trials = [trial(c), trial(d, seed=1), trial(c, stitch=Conv(kernel=3)), controls.untrained_sender(trial(c))]
    trials += [trial(d, stitch=Identity()), trial(c, fit=LeastSquares()), trial(c, fit=Breaks())]
    sizes, answer = [], batched.answer
    monkeypatch.setattr(batched, "answer", lambda questions: sizes.append(len(questions)) or answer(questions))
    *found, broken = batched.measure_together(trials, Activations())
    assert sizes
    assert set(sizes) == {4}, "four descend into one suffix, and take as many steps"
    assert isinstance(broken, Failure)
    assert "it broke" in broken.error
    for together in found:
        assert isinstance(together, Measurement)
        alone = measure(together.trial)
        assert together.scores.accuracy.value == pytest.approx(alone.scores.accuracy.value, abs=0.005)
        losses = [[point.validation_loss for point in each.curve] for each in (together, alone)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-3, nan_ok=True)
        assert (together.steps, together.receiver, together.notes) == (alone.steps, alone.receiver, alone.notes)
    assert [bits(found[i]) for i in (4, 5)] == [bits(measure(trials[i])) for i in (4, 5)], "nothing shared"

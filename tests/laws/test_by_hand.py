"""Suture gives the numbers of docs/by-hand.md, which uses nothing but plain PyTorch."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suture import Data, Network, Samples, curve, fits, measure, stitches
from suture_papers import recipes

PAGE = Path(__file__).parents[2] / "docs" / "by-hand.md"


@pytest.mark.slow
def test_suture_gives_the_numbers_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert program.count("\n") < 150
    page: dict = {"__name__": "by_hand"}
    threads = torch.get_num_threads()
    try:
        exec(compile(program, str(PAGE), "exec"), page)
    finally:
        torch.set_num_threads(threads)
    sender, receiver, direct, closed, descended, penalty, untrained, shuffled = map(
        float, re.findall(r"(-?\d+\.\d)(?: %| percentage)", capsys.readouterr().out)
    )

    images, labels, classes = page["images"], page["labels"], tuple("0123456789")
    fit, score = (Samples(name, images[page[name]], labels[page[name]], classes) for name in ("fit", "score"))
    data = Data("digits", fit, replace(score.first(100), images=score.images[:100].flip(3)), score)
    a, b, c = (Network(page[n], example=data.example, name=n) for n in ("sender", "receiver", "untrained"))
    by_closed_form = fits.LeastSquares(ridges=(1e-4,), rescale=False)
    by_descent = fits.TaskLoss(
        start=by_closed_form, optimiser=recipes.Adam(lr=1e-2), steps=60, batch=1000, patience=None, standardise=False
    )

    def measured(network: Network, stitch: stitches.Stitch, fit: fits.Fit, data: Data = data) -> object:
        (trial,) = curve(network, b, at=["3"], data=data, stitch=stitch, fit=fit, controls=())
        return measure(trial)

    plain = stitches.Conv(batchnorm=False)
    one = 100 / len(score) + 1e-9  # one image more or less is rounding

    def accuracy(found: object) -> float:
        return 100 * found.scores["accuracy"].value

    found = measured(a, plain, by_closed_form)
    assert accuracy(found) == pytest.approx(closed, abs=0.05)
    weight = page["closed_form"](page["sent"][page["fit"]], page["expected"][page["fit"]]).weight
    torch.testing.assert_close(next(found.stitch.parameters()), weight, rtol=1e-3, atol=1e-4)
    assert 100 * found.sender["accuracy"].value == pytest.approx(sender, abs=0.05)
    assert 100 * found.receiver["accuracy"].value == pytest.approx(receiver, abs=0.05)
    assert accuracy(measured(a, stitches.Identity(), fits.Random())) == pytest.approx(direct, abs=0.05)
    found = measured(a, plain, by_descent)
    assert accuracy(found) == pytest.approx(descended, abs=one)
    assert found.penalty.value == pytest.approx(penalty, abs=one)
    assert accuracy(measured(c, plain, by_descent)) == pytest.approx(untrained, abs=one)
    pairs = replace(data, fit=replace(fit, pairing=page["other"]))
    assert accuracy(measured(a, plain, by_descent, pairs)) == pytest.approx(shuffled, abs=3 * one)
    assert direct < 60 < untrained < closed < descended
    assert shuffled < 30

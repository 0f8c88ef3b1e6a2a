"""A network that is fed wrongly is warned of first, and none of its seams is called compatible.

Evidence. The receiver is a trained network whose normalisation is forgotten, so what is wrong is known, and so is that
the very same network, fed rightly, is not.
"""

import re
from functools import cache

import pytest
import torch
from torch import nn

from loops import each
from suture import Network, Preprocess, controls, curve, explain, run, stitch
from suture.common.errors import NetworkError
from suture.fits import Quick
from suture.measurement.scores.alone import find_doubts
from suture.reports.html import read, render
from suture.runs.progress import Silent
from trained import digits

RIGHT = Preprocess(mean=(0.3,), std=(0.35,))
FORGOTTEN, BLIND = Preprocess(mean=(0.9,), std=(0.1,)), Preprocess(std=(1e6,))


@cache
def trained(seed: int) -> nn.Module:
    """A small network that is right on about 95 % of the digits, if they are normalised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        model, data = nn.Sequential(nn.Flatten(), *layers), digits().training
        adam, x = torch.optim.Adam(model.parameters(), 1e-2), RIGHT(data.images.float() / 255)
        for _ in range(150):
            adam.zero_grad()
            nn.functional.cross_entropy(model(x), data.labels).backward()
            adam.step()
    return model.eval()


def network(name: str, preprocess: Preprocess = RIGHT, expected: object = None) -> Network:
    model, example = trained(ord(name)), digits().example
    return Network(model, example=example, name=name, preprocess=preprocess, expected_accuracy=expected)


def measured(b: Network, which: tuple = (controls.itself,)):
    return run(curve(network("A"), b, data=digits(), at=["3"], fit=Quick(70), controls=which))


@pytest.mark.slow
@each(
    ("preprocess", "expected", "said"),
    [
        (RIGHT, None, ""),
        (RIGHT, 0.95, ""),
        (RIGHT, {"digits/score": 0.95, "mnist/score": 1.0}, ""),
        (FORGOTTEN, None, "stitched to itself, B is more than 5 pp better than alone: its preprocessing"),
        (FORGOTTEN, 0.95, r"B alone is right on \d\d.\d% of the images, and 95.0% were expected: its preprocessing"),
        (FORGOTTEN, {"digits/score": 0.95}, "and 95.0% were expected"),
        (
            BLIND,
            None,
            r"B alone is right on \d+.\d% of the images, near chance \(10.\d%\), as untrained networks are: its",
        ),
        (FORGOTTEN, 0, ""),
        (BLIND, 0.0, ""),
    ],
)
def test_a_warning_comes_first_and_nothing_is_answered_at_such_a_seam(preprocess, expected, said):
    table = measured(network("B", preprocess, expected))
    told = explain(table)
    gained = [line for line in told.warnings if "better than B alone. Stitched to itself" in line]
    warned = [line for line in told.warnings if line.startswith("Warning: ") and line not in gained]
    assert bool(gained) == (preprocess is FORGOTTEN and expected == 0), "it is no doubt where it is meant"
    assert bool(warned) == bool(said)
    if said:
        assert any(re.search(said, line) for line in warned), warned
        assert told.warnings[: len(warned)] == tuple(warned)
    assert (not told.verdict) == (not told.answers) == bool(said), "nothing is answered at such a seam"


def test_controls_do_not_warn():
    table = measured(network("B"), controls.DEFAULT)
    assert table["receiver_score"].min() < 0.2, "the untrained receiver is weak, as it is meant to be"
    assert set(table["warning"]) == {""}


def test_a_measurement_says_so_first_and_keeps_it_in_its_notes(tmp_path):
    found = stitch(network("A"), network("B", BLIND), at="3", data=digits(), fit=Quick(0), controls=(controls.itself,))
    assert repr(found).startswith("Warning: B alone is right on")
    assert found.alone["sender"] > 0.9
    plan = curve(network("A"), network("B", BLIND), data=digits(), at=["3"], fit=Quick(0), controls=())
    run(plan, store=tmp_path / "s")
    page = render(read(tmp_path / "s"))
    assert page.index("Warning: B alone is right on") < page.index("<h1")


def test_a_warning_is_written_before_the_other_trials_are_waited_for():
    class Noting(Silent):
        said: tuple[str, ...] = ()

        def warn(self, said):
            self.said = (*self.said, said)

        def done(self, what, error):
            self.said = (*self.said, what)

    noted = Noting()
    fit = Quick(0)
    run(curve(network("A"), network("B", BLIND), data=digits(), at=["1", "3"], fit=fit, controls=()), progress=noted)
    first, *_ = [i for i, said in enumerate(noted.said) if said.startswith("Warning: B alone is right on ")]
    assert first < noted.said.index("A → B at 3")


def test_near_chance_depends_on_the_classes():
    """The commonest class is what guessing gets; a card is believed to five points and twice the standard error."""
    labels = {"control": "", "sender": "A", "receiver": "B", "sender_cut": "x", "receiver_cut": "x"}
    for right, chance, expected, warned in (
        (0.52, 0.5, None, True),
        (0.53, 0.5, None, False),
        (0.14, 0.1, None, True),
        (0.15, 0.1, None, False),
        (0.84, 0.1, 0.9, True),
        (0.85, 0.1, 0.9, False),
    ):
        alone = {"receiver": right, "chance": chance, "n": 10**6}
        assert bool(find_doubts(labels | {"receiver_expected": expected}, alone, {})) == warned, right
        assert not find_doubts(labels | {"receiver_expected": expected, "control": "untrained both"}, alone, {})


@each(("labels", "warned"), [({}, True), ({"judged_on": "d/score"}, False)])
def test_a_gain_on_other_samples_than_those_judged_on_is_no_sign(labels, warned):
    """Of a backdoor the stitched network is scored with the trigger, on which its carrier is wrong by design."""
    same = {"control": "itself", "sender": "A", "receiver": "A", "sender_cut": "x", "receiver_cut": "x"}
    alone, gained = {"receiver": 0.9, "chance": 0.1, "n": 100}, {"value": -40.0, "high": -30.0}
    assert bool(find_doubts(same | labels, alone, {"accuracy": {"penalty": gained}})) == warned


@pytest.mark.slow
@each(("which", "beside"), [((), "the control 'itself' would tell"), ((controls.itself,), "")])
def test_a_stitch_that_gains_much_is_warned_of_without_controls(which, beside):
    table = measured(network("B", FORGOTTEN), which)
    said = explain(table).warnings
    assert any(
        re.search(r"Warning: at 3 the stitched network is \d+\.\d points better than B alone", one) for one in said
    ) == (not which), "or the receiver stitched to itself says more"
    assert beside in " ".join(said)


def test_an_expected_accuracy_is_a_fraction():
    with pytest.raises(NetworkError, match=r"from 0 to 1, such as 0\.93"):
        network("B", expected=96.0)

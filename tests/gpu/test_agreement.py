"""A GPU gives what the processor gives, within a tolerance, on the same trials under the same keys.

Every fit, family, control, baseline, index and measure of complexity once; float32 and bfloat16; a network whose
gradients differ each time on CUDA. Accuracies may be 0.5 pp apart at a seam and, over ten seams or more, 0.05 pp in the
mean.

They may be farther apart after a few steps on a stitch with BatchNorms. What a norm takes out again has no gradient but
that of rounding, and Adam makes whole steps of it; they tell until the norm's running mean has followed. On one
processor, too, 3e-7 of noise on activations changes such a fit's accuracy by 0.3 pp after 40 steps, and one without
norms not at all. The default fit leaves norms out.

``SUTURE_DEVICE`` names the device: ``cuda`` by default; ``pretend`` computes on the processor and refuses what lies
elsewhere (see ``pretend``), so that these tests are tried where there is no GPU; and ``cpu`` tries the tests alone.
"""

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pandas as pd
import pretend
import pytest
import torch
from torch import Tensor, nn

import suture
from suture import Local, Network, Seam, Trial, controls
from suture.common.devices import find_device
from suture.common.errors import DeviceError, NetworkError
from suture.core.activations.cache import Activations, Need
from suture.core.stitches import (
    Conv,
    ConvLinear,
    Diagonal,
    FullLinear,
    Identity,
    Linear,
    LowRank,
    MapsToTokens,
    Orthogonal,
    Permutation,
    Stitch,
    StridedConv,
    TokensToMaps,
    TokensToTokens,
    TwoLayer,
    UpsampledConv,
)
from suture.core.stitches.registry import FAMILIES
from suture.data import Data, Samples
from suture.fits import (
    BestOf,
    Converged,
    LeastSquares,
    MatchActivations,
    Narrower,
    Quick,
    Random,
    SoftLabels,
    TaskLoss,
    suffix,
)
from suture.measurement.indices.registry import INDICES
from suture.measurement.scores import traits
from suture.measurement.scores.scores import Accuracy
from suture.measurement.trials import baselines
from suture_papers.complexity import CURVATURE, complexity
from suture_papers.recipes import RECIPES
from suture_papers.training import Recipe, train
from trained import convnets, digits, hybrid, hybrids, wrap

DEVICE = os.environ.get("SUTURE_DEVICE", "cuda")
SEAM, MEAN = 0.5, 0.05  #: pp that accuracies may be apart
NORMED = 3.0  #: the same after a few steps on a stitch with BatchNorms
UNLIKE = ["device", "seconds"]
ROUNDING = 1e-6
SEAMS = 10  #: from which on a mean is asked for
SHORT = TaskLoss(start=LeastSquares(), steps=40, check=20)
QUICK = Quick(steps=40)


def is_there() -> bool:
    if DEVICE == pretend.NAME:
        pretend.install()
        suffix.half_precision = lambda device: None  # both compute in float32, and so in the same bits
    try:
        find_device(DEVICE)
    except DeviceError:
        return False
    return True


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_there(), reason=f"there is no {DEVICE} here")]


@cache
def data() -> Data:
    """The digits, with as many mirrored ones to score as there are: enough for what only many images take."""
    known, new = digits().training, digits().score
    every = Samples(
        "every digit", torch.cat([known.images, new.images]).flip(3), torch.cat([known.labels, new.labels]), new.classes
    )
    return replace(digits(), score=every)


def agree(plan: Sequence[Trial], converged: bool = False, seam: float = SEAM) -> pd.DataFrame:
    """Measure a plan here and there, and compare, each seam within so many pp; the rows there.

    With ``converged`` only where both fits are: one that stops by itself before may stop elsewhere after the last bit
    of a loss, and then two fits of one processor, in float32 and in bfloat16, are up to 3 pp apart as well.
    """
    here, there = (suture.run(plan, on=Local(workers=1), device=device) for device in ("cpu", DEVICE))
    assert set(there["error"]) == set(here["error"]) == {""}
    assert list(there["trial"]) == list(here["trial"])
    assert set(there["device"]) == {find_device(DEVICE).type}
    if DEVICE in ("cpu", pretend.NAME):  # the same bits, wherever the tensors are said to be
        pd.testing.assert_frame_equal(there.drop(columns=UNLIKE), here.drop(columns=UNLIKE), rtol=ROUNDING)
    counted = (there["unit"] == "fraction") & (there["converged"] & here["converged"] | (not converged))
    apart = 100 * (there["stitched"] - here["stitched"])[counted]
    assert apart.abs().max() <= seam or not len(apart)
    assert len(apart) < SEAMS or seam > SEAM or abs(apart.mean()) <= MEAN
    return there


def seam_of(family: Stitch) -> Seam:
    """The first seam of our networks that a family joins, of two networks unless it is the identity."""
    (a, b), (c, d) = hybrids(), convnets()
    pairs = [(a, a)] if isinstance(family, Identity) else [(a, b), (c, b), (a, d), (c, d)]
    for sender, receiver in pairs:
        for start in sender.cuts:
            for end in receiver.cuts:
                if family.accepts(start.shape, end.shape):
                    return Seam(sender, receiver, start.name, end.name)
    raise AssertionError(f"no seam for {family}")


def trial(seam: Seam, **settings: object) -> Trial:
    return Trial(seam, data().fit, data().validation, data().score, **settings)


MEMBERS = [
    *(Identity(), Linear(), Conv(), Conv(3), LowRank(2), Orthogonal(), Permutation(), Diagonal(), StridedConv()),
    *(UpsampledConv(), ConvLinear(), FullLinear(), MapsToTokens(), TokensToMaps(), TokensToTokens()),
    TwoLayer(),
]


def test_families() -> None:
    assert {type(family) for family in MEMBERS} == set(FAMILIES.values())
    bare = [replace(one, batchnorm=False) if type(one) is Conv else one for one in MEMBERS]
    for fit in (LeastSquares(), SHORT, QUICK):
        agree([trial(seam_of(family), stitch=family, fit=fit) for family in bare], converged=fit is QUICK)


def test_fits() -> None:
    seam = seam_of(Conv())
    short = {"steps": 40, "check": 20}
    fits = [
        *(Random(), SHORT, TaskLoss(start=Random(), **short), MatchActivations(**short)),
        *(TaskLoss(targets=SoftLabels(), **short), BestOf((LeastSquares(), SHORT)), LeastSquares(rescale=False)),
        TaskLoss(start=Narrower(Diagonal()), **short),
        *(replace(recipe, steps=40) for recipe in RECIPES.values()),
    ]
    agree([trial(seam, fit=fit, stitch=Conv(batchnorm=False)) for fit in fits])
    agree([trial(seam, fit=fit, stitch=Conv()) for fit in fits], seam=NORMED)
    own = (Converged(), Quick())
    agree([trial(seam, fit=fit) for fit in own], converged=True)


def test_controls_and_baselines() -> None:
    every = (*controls.DEFAULT, baselines.linear_probe, baselines.fine_tuned, baselines.retrained, baselines.plugged)
    brief = [*every[:7]]
    for baseline in (baselines.fine_tuned, baselines.retrained):
        brief.append(lambda given, made=baseline: made(given, fit=TaskLoss(start=Random(), steps=40, check=20)))
    plan = suture.curve(*hybrids(), data=data(), at=["relu", "hidden"], fit=SHORT, controls=(*brief, every[-1]))
    rows = agree(plan, seam=NORMED)
    assert len(set(rows["control"])) == 1 + len(every)


def test_every_cut_by_the_default_fit() -> None:
    agree(suture.curve(*hybrids(), data=data(), controls=()), converged=True)
    agree(suture.curve(*convnets(), data=data(), at=["stage*.relu", "flatten"], controls=()), converged=True)


def test_scores_of_networks() -> None:
    bare = Conv(batchnorm=False)
    agree([trial(seam_of(bare), stitch=bare, scores=(Accuracy(), traits.FGSM(0.05)), fit=SHORT)])


def test_bfloat16() -> None:
    a, b = (wrap(copy.deepcopy(hybrid(seed)).to(torch.bfloat16), name) for seed, name in ((0, "A"), (1, "B")))
    agree(suture.curve(a, b, data=data(), at=["hidden"], fit=SHORT, controls=()))


class Unsteady(nn.Module):
    """Its gradients are added up in another order each time on CUDA: where images are enlarged and pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2.5, mode="bilinear")
        self.pool = nn.AdaptiveAvgPool2d(3)
        self.head = nn.Linear(72, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.up(self.conv(x).relu())).flatten(1))


def test_gradients_that_differ_each_time() -> None:
    a, b = (wrap(train(Unsteady, digits().fit, Recipe(epochs=4, batch=64), seed), str(seed)) for seed in (0, 1))
    agree(suture.curve(a, b, data=data(), at=["conv", "up"], stitch=Conv(batchnorm=False), fit=SHORT, controls=()))


def test_indices() -> None:
    settings = {"data": data(), "by": list(INDICES.values()), "sender_cuts": "relu", "receiver_cuts": "hidden"}
    settings |= {"samples": 200, "permutations": 19}
    here, there = (suture.compare(*hybrids(), device=device, **settings) for device in ("cpu", DEVICE))
    assert len(here) == len(INDICES)
    pd.testing.assert_frame_equal(there, here, rtol=1e-3, atol=1e-4)


def test_complexity() -> None:
    a, b = hybrids()
    stitched = suture.stitch(a, b, at="relu", data=data(), fit=QUICK, controls=()).stitched
    there = suture.Stitched(stitched.seam.to(DEVICE), copy.deepcopy(stitched.stitch).to(DEVICE), stitched.family)
    samples = data().score.first(100)
    for by in (None, CURVATURE):
        rows = [complexity(one, samples, by) for one in (stitched, there)]
        pd.testing.assert_frame_equal(*rows, rtol=2e-2)


def test_activations_stay_on_the_device_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    network = hybrids()[0].to(DEVICE)
    needs = [Need(network, data().score, index) for index in (1, 2, 3)]
    cache = Activations()
    assert cache.get(needs[0]).device == network.device
    monkeypatch.setattr("suture.core.activations.cache.free_memory", lambda device: 2 * needs[0].nbytes)
    if network.device.type != "cpu":
        assert cache.get(needs[1]).device == network.device
        cache = Activations()
        monkeypatch.setattr("suture.core.activations.cache.free_memory", lambda device: needs[0].nbytes)
        assert cache.get(needs[0]).device.type == "cpu"
    torch.testing.assert_close(cache.get(needs[2]).cpu(), Activations().get(replace(needs[2], network=hybrids()[0])))


def test_a_trial_whose_activations_do_not_fit_there_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suture.core.activations.cache.SHARE", 0.0)
    agree([trial(seam_of(Linear()), stitch=Linear(), fit=SHORT)])
    agree([trial(seam_of(Conv(3)), stitch=Conv(3), fit=QUICK)], converged=True)


def test_a_network_that_was_made_there_is_the_same() -> None:
    model = copy.deepcopy(hybrid(0))
    there = Network(model.to(DEVICE), example=digits().example)
    here = hybrids()[0]
    assert (there.device, there.fingerprint) == (find_device(DEVICE), here.fingerprint)
    assert there.untrained(3).fingerprint == here.untrained(3).fingerprint
    assert there.to("cpu").device.type == "cpu"
    assert here.to(DEVICE).to("cpu") is here


class Adding(nn.Module):
    """Adds many numbers into few places, on a GPU in another order each time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        many = x.flatten(1).repeat(1, 4096)
        places = (torch.arange(many.shape[1], device=x.device) % 8).expand(len(x), -1)
        return self.head(torch.zeros(len(x), 8, device=x.device).scatter_add(1, places, many.sin()))


@pytest.mark.skipif(DEVICE != "cuda", reason="elsewhere it adds in order")
def test_a_network_that_computes_something_else_each_time_is_refused() -> None:
    with pytest.raises(NetworkError, match="something else each time on cuda:0"):
        wrap(Adding(), "adding").to(DEVICE)


@pytest.mark.skipif(DEVICE == "cpu", reason="it takes two devices")
def test_networks_on_two_devices_are_refused() -> None:
    a, b = hybrids()
    with pytest.raises(NetworkError, match=r"A is on .*:0 and B on cpu; put both on one device"):
        suture.curve(a.to(DEVICE), b, data=data())
    with pytest.raises(NetworkError, match="A is on cpu and B on "):
        suture.compare(a, b.to(DEVICE), data=data())
    assert len(suture.compare(a, b.to(DEVICE), data=data(), device="cpu", cuts="hidden")) == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="the processor's memory is looked at elsewhere")
def test_too_little_memory_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = suture.curve(*hybrids(), data=data(), controls=())
    monkeypatch.setattr("suture.runs.forecast.free_memory", lambda device: 300_000)
    with pytest.raises(DeviceError, match=r"needs at least .* where 300 kB are free; of \d+ trials \d+ would fit"):
        suture.run(plan, device=DEVICE)
    monkeypatch.setattr("suture.common.devices.free_memory", lambda device: 1000)
    with pytest.raises(DeviceError, match=r"the weights of A needs .* 1\.0 kB are free"):
        wrap(hybrid(0), "A").to(DEVICE)

"""The laws of stitching, for every task: planted answers, identity, shuffled pairs, and what is refused."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import suture
from loops import each
from suture import Network, Seam, Trial, controls, measure
from suture.common.errors import DataError, FitError, LeftOut
from suture.core.stitches import Identity
from suture.data.roles import Data
from suture.data.samples import Samples
from suture.data.tasks import (
    IGNORED,
    Classification,
    DenseClassification,
    MultiLabel,
    NextToken,
    OwnOutputs,
    Regression,
    Task,
)
from suture.fits import Converged, LeastSquares, Logistic, MatchActivations, Random
from suture.measurement.scores import pooled
from suture.measurement.scores.pooled import MeanAveragePrecision, SampleLoss
from suture.measurement.scores.traits import Trait
from suture.measurement.trials.baselines import linear_probe
from suture.measurement.trials.measure import attempt
from suture.measurement.trials.trial import Measurement
from suture_papers import complexity

WIDTH, VOCABULARY, SIDE = 6, 9, 5


class Hidden(nn.Module):
    """Features, then a head behind a nonlinearity."""

    def __init__(self, features: nn.Module, head: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.features, self.act, self.head = features, act or nn.Tanh(), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.features(x)))


class Text(nn.Module):
    """Every token sees the mean of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = 2 * self.embed(ids)
        past = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.mix(torch.cat([x, past], 2))


def vectors(outputs: int) -> Hidden:
    features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, WIDTH))
    return Hidden(features, nn.Linear(WIDTH, outputs))


@dataclass(frozen=True)
class Case:
    task: Task
    model: Callable[[], Hidden]
    targets: Callable[[Tensor], Tensor | None]  #: from outputs
    classes: tuple[str, ...] = ()
    worst: float = 0.0  #: of the first score, beyond which shuffled pairs have collapsed
    ids: bool = False


def sampled(outputs: Tensor) -> Tensor:
    """Classes drawn as the outputs say, along dimension 1."""
    p = (2 * outputs).softmax(1).movedim(1, -1)
    drawn = torch.multinomial(p.flatten(0, -2), 1, generator=torch.Generator().manual_seed(0))
    return drawn.view(p.shape[:-1])


def some_ignored(targets: Tensor) -> Tensor:
    return targets.masked_fill(torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < 0.1, IGNORED)


THREE = ("a", "b", "c")
CASES = {
    "dense": Case(
        DenseClassification(),
        lambda: Hidden(nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 3, 1)),
        lambda out: some_ignored(sampled(out)),
        THREE,
        0.65,
    ),
    "next token": Case(NextToken(), lambda: Hidden(Text(), nn.Linear(WIDTH, VOCABULARY)), lambda out: None, ids=True),
    "multi-label": Case(MultiLabel(), lambda: vectors(3), lambda out: (out > out.mean(0)).long(), THREE, 0.7),
    "regression": Case(Regression(), lambda: vectors(2), lambda out: out, worst=0.2),
    "embeddings": Case(OwnOutputs(), lambda: vectors(8), lambda out: None, worst=0.9),
    "logits": Case(OwnOutputs("logits"), lambda: vectors(8), lambda out: None, worst=0.5),
}


def test_an_untrained_receivers_own_outputs_are_no_control() -> None:
    """They hardly vary, so that a bias copies them."""
    data, a, b = problem("embeddings")
    with pytest.warns(LeftOut, match="would be the untrained network's own outputs"):
        plan = suture.curve(a, b, data=data, fit="quick", controls=("untrained-receiver", "untrained-both", "itself"))
    assert {trial.control for trial in plan} == {"", "itself"}


def inputs(case: Case, n: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    if not case.ids:
        return torch.rand((n, 1, SIDE, SIDE), generator=random)
    steps = torch.randint(1, 3, (n, 8), generator=random)  # the next is one or two further on
    return (torch.randint(VOCABULARY, (n, 1), generator=random) + steps.cumsum(1)) % VOCABULARY


def turned(model: Hidden) -> Hidden:
    """The same function with rotated features: the nonlinearity undoes the rotation first."""
    last = [m for m in model.features.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]
    torch.manual_seed(7)
    way = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]
    with torch.no_grad():
        last.weight.copy_((way @ last.weight.flatten(1)).view_as(last.weight))
        last.bias.copy_(way @ last.bias)
    back: nn.Module = nn.Linear(WIDTH, WIDTH, bias=False)
    if isinstance(last, nn.Conv2d):
        back = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
    with torch.no_grad():
        back.weight.copy_(way.T.reshape(back.weight.shape))
    return Hidden(model.features, model.head, nn.Sequential(back, nn.Tanh())).eval()


def made(case: Case, seed: int = 0) -> Hidden:
    torch.manual_seed(seed)
    model = case.model().eval()
    with torch.no_grad():  # so that features and outputs tell samples apart
        for layer in (*model.features.modules(), model.head):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.mul_(3)
        if not case.ids:  # no class is commoner than another
            model.head.bias -= model(inputs(case, 100, 5)).transpose(0, 1).flatten(1).mean(1)
    if case.ids:  # a model of the text, a little trained
        ids, best = inputs(case, 300, 9), torch.optim.Adam(model.parameters(), 0.03)
        for _ in range(60):
            best.zero_grad()
            case.task.loss(model(ids), ids).backward()
            best.step()
    return model


def problem(name: str) -> tuple[Data, Network, Network]:
    case = CASES[name]
    model = made(case)
    parts = {}
    for i, (role, n) in enumerate((("fit", 300), ("validation", 150), ("score", 200))):
        x = inputs(case, n, i)
        with torch.no_grad():
            labels = case.targets(model(x))
        parts[role] = Samples(role, x, labels, case.classes, task=case.task)
    data = Data(name, **parts)
    a = Network(model, example=data.example, name="A")
    torch.manual_seed(0)
    b = Network(turned(made(case)), example=data.example, name="B")
    return data, a, b


def trial(name: str, **settings: object) -> Trial:
    data, a, b = problem(name)
    cut = [name for name in a.cuts.names if name.startswith("features")][-1]
    return Trial(
        Seam(a, b, cut, cut), data.fit, data.validation, data.score, **({"fit": Converged(cap=280)} | settings)
    )


@each("name", CASES)
def test_the_planted_receiver_is_the_sender_with_other_features(name):
    data, a, b = problem(name)
    assert torch.allclose(a(data.score.images), b(data.score.images), atol=1e-4)


@pytest.mark.slow
@each("name", CASES)
def test_a_planted_rotation_is_found_and_shuffled_pairs_collapse(name):
    planted = trial(name)
    found, itself, shuffled = (
        measure(each_) for each_ in (planted, controls.itself(planted), controls.shuffled_pairs(planted))
    )
    first = planted.scores[0]
    percent = 100 if first.unit == "fraction" else 1
    assert abs(float(found.penalty)) < 0.02 * percent, "a rotation is in the family"
    assert abs(float(itself.penalty)) < 0.02 * percent
    assert float(shuffled.penalty) > 0.05 * percent
    if CASES[name].worst:
        assert float(shuffled.scores[first.name]) < CASES[name].worst
    assert found.trial.task == CASES[name].task


def test_a_trait_of_a_pooled_score_is_pooled():
    score = MeanAveragePrecision()
    poor = trial("multi-label", fit=Random(), scores=(score, Trait("x", score)))  # what samples count leaves [0, 1]
    (found, of_trait) = measure(poor).scores.values()
    assert found.value == of_trait.value


@each("name", ["multi-label", "regression", "logits"])
def test_a_linear_probe_is_left_out_where_samples_have_no_class(name):
    data, a, b = problem(name)
    cut = [cut for cut in a.cuts.names if cut.startswith("features")][-1]
    with pytest.warns(LeftOut, match="linear probe is left out: it needs a class for each sample"):
        plan = suture.curve(a, b, data=data, at=[cut], controls=(linear_probe,))
    assert len(plan) == 1
    with pytest.raises(FitError, match=r"Logistic\(\) needs a class for each sample"):
        trial(name, fit=Logistic())


def test_what_needs_no_loss_is_measured_of_any_outputs():
    data, a, _ = problem("dense")
    table = complexity.complexity(
        a, data.score, by=[complexity.Parameters(), complexity.Flops(), complexity.GzipSize()]
    )
    assert table["value"].gt(0).all()


def test_as_many_tokens_as_classes_need_to_be_told_apart():
    """A network that names every token right is at 100 %, by itself and stitched, and guesses 1 in 5 of its tokens."""
    ids = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(300)])
    model = nn.Sequential(nn.Embedding(5, 5), nn.Linear(5, 5))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(5))
        model[1].weight.copy_(9 * torch.eye(5))

    def trial(task: Task, model: nn.Module = model) -> Trial:
        parts = [Samples(str(i), part, part, tuple("abcde"), task=task) for i, part in enumerate(ids.split(100))]
        network = Network(model, example=parts[0].example, name="A")
        return Trial(Seam.at(network, network, "0"), *parts, fit=LeastSquares())

    one = trial(DenseClassification("last"))
    found = measure(one)
    assert [card.accuracy.value for card in (found.scores, found.receiver, found.sender)] == [1, 1, 1]
    assert one.task.chance(one.score_data.labels) == 0.2
    for explicit in (pooled.PositionAccuracy(), Trait("x", pooled.PositionAccuracy())):
        assert measure(replace(one, scores=(explicit,))).receiver[explicit.name].value == 1
    with pytest.raises(DataError, match=r"outputs \(n, 5, 5\) either .* say which: task=DenseClassification\(classes="):
        trial(DenseClassification())
    with pytest.raises(DataError, match=r"need outputs \(n, 5, 5\), and these are \(n, 5, 6\)"):
        trial(DenseClassification("first"), nn.Sequential(model[0], nn.Linear(5, 6)))
    with pytest.raises(DataError, match=r"classes='middle'\): give 'first' or 'last'"):
        DenseClassification("middle")


@each(
    ("task", "targets", "answer", "chance"),
    [
        (Classification(), [0, 1, 1, 2, 1], [0, 1, 0], 3 / 5),
        (DenseClassification(), [[0, 1, 1, 1], [2, IGNORED, 1, 0]], [0, 1, 0], 4 / 7),
        (MultiLabel(), [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]], [0, 0, 0], (3 / 4 + 1 / 4) / 2),
        (NextToken(), [[3, 0, 0, 1], [3, 1, 2, IGNORED]], [0.4, 0.4, 0.2, 0], None),
        (Regression(), [[0.0], [1.0], [5.0]], [2], 0),
    ],
)
def test_chance_is_what_a_constant_answer_scores(task, targets, answer, chance):
    """The task's first score gives it to outputs that are the same for all samples; by hand, too."""
    targets, outputs = torch.tensor(targets), torch.tensor(answer, dtype=torch.float32)
    if chance is None:
        outputs, chance = outputs.log().clamp(min=-99), -(0.8 * math.log(0.4) + 0.2 * math.log(0.2))
    places = targets.shape if isinstance(task, DenseClassification | NextToken) else targets.shape[:1]
    scored = pooled.default_scores(task)[0].per_sample(outputs.expand(*places, -1), targets)
    assert task.chance(targets) == pytest.approx(chance)
    assert float(scored.mean()) == pytest.approx(chance)
    assert OwnOutputs().chance(targets) is None


@pytest.mark.slow
@each("name", [name for name, case in CASES.items() if not case.task.copies])
def test_a_network_that_guesses_is_warned_of_whatever_the_task(name):
    """Guessing is a head that reads nothing; the planted receiver, and a user's scores, are no cause."""
    data, a, _ = problem(name)
    blind = made(CASES[name])
    with torch.no_grad():
        blind.head.weight.zero_()
    blind = Network(blind, example=data.example, name="B")
    for receiver in (a, blind):
        seam = Seam(receiver, receiver, *[receiver.cuts[0].name] * 2)
        one = Trial(
            seam, data.fit, data.validation, data.score, stitch=Identity(), scores=(SampleLoss(CASES[name].task),)
        )
        assert any("near" in said for said in measure(one).warnings) == (receiver is blind)


@each("name", CASES, few=3)
def test_the_identity_gives_the_receivers_own_scores(name):
    data, a, _ = problem(name)
    for cut in a.cuts:
        one = Trial(Seam(a, a, cut, cut.name), data.fit, data.validation, data.score, stitch=Identity())
        found = measure(one)
        assert {k: v.value for k, v in found.scores.items()} == {k: v.value for k, v in found.receiver.items()}
        assert all(penalty.value == 0 for penalty in found.penalties.values() if penalty is not None)


@pytest.mark.slow
def test_a_curve_of_a_text_has_all_controls_but_those_of_classes():
    data, a, b = problem("next token")
    controls = ["itself", "untrained-sender", "shuffled-pairs", "clustered-noise"]
    with pytest.warns(LeftOut, match="clustered noise is left out: it needs a class for each sample"):
        plan = suture.curve(a, b, data=data, at=["features.mix"], fit=Converged(cap=140), controls=controls)
    table = suture.run(plan)
    assert set(table["task"]) == {"next token"}
    assert "clustered noise" not in set(table["control"])
    assert {"", "itself", "untrained sender", "shuffled pairs"} <= set(table["control"])
    assert list(dict.fromkeys(table["score"])) == ["loss", "perplexity"]


@each(
    ("labels", "task", "classes", "said"),
    [
        (torch.zeros(9, 4), MultiLabel(), THREE, "3 classes need"),
        (torch.full((9, 3), 2), MultiLabel(), THREE, "must be 0 or 1"),
        (torch.zeros(9, 2), Regression(), (), "is the same for all samples"),
        (torch.zeros(9, 2, dtype=torch.int64), Regression(), (), "finite floats"),
        (torch.zeros(9, dtype=torch.int64), DenseClassification(), THREE, "one for each position"),
        (torch.full((9, 4), IGNORED), DenseClassification(), THREE, "every position of a sample of .* is ignored"),
        (torch.full((9, 4), 3), DenseClassification(), THREE, "range from 3 to 3"),
        (torch.zeros(9, 4), NextToken(), (), "token ids"),
        (torch.zeros(9, 1, dtype=torch.int64), NextToken(), (), "at least 2"),
        (torch.zeros(9, 4, dtype=torch.int64), None, THREE, "name what they are: task="),
    ],
)
def test_targets_that_do_not_fit_the_task_are_refused(labels, task, classes, said):
    with pytest.raises(DataError, match=said):
        Samples("x", torch.rand(9, 1, 4, 4), labels, classes, **({} if task is None else {"task": task}))


def test_an_average_precision_of_no_labels_is_refused_before_any_work():
    data, a, b = problem("multi-label")
    none = replace(data.score, labels=torch.zeros_like(data.score.labels))
    for scores in (None, (MeanAveragePrecision(),)):
        with pytest.raises(DataError, match="score has no sample that 'mAP' selects, because none has a label"):
            Trial(Seam.at(a, b, a.cuts.names[0]), data.fit, data.validation, none, scores=scores)


class Scaled(nn.Module):
    """A network whose activations are so large at its cut, and no output for it."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.body, self.act, self.head, self.by = nn.Linear(SIDE**2, 4), nn.ReLU(), nn.Linear(4, 3), by

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.body(x.flatten(1)) * self.by) / self.by)


def test_activations_whose_squares_are_infinite_are_named():
    """Where a fit needs no squares it is none the worse for them."""
    x = torch.rand(90, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    parts = [Samples(f"d/{i}", part, torch.arange(30) % 3, THREE) for i, part in enumerate(x.split(30))]
    networks = []
    for name, by in (("A", 1.0), ("B", 1e20)):
        torch.manual_seed(0)
        networks.append(Network(Scaled(by), example=x[:3], name=name))
    for fit, said in (
        (MatchActivations(steps=9), "activations of B at act reach .*e.20, and their squares"),
        (Random(), ""),
    ):
        found = attempt(Trial(Seam(*networks, "act", "act"), *parts, fit=fit))
        assert (
            re.search(f"^FitError: A → B at act: the {said}", found.error) if said else isinstance(found, Measurement)
        )


def test_outputs_that_do_not_fit_the_targets_are_refused():
    for name, other in (("dense", "regression"), ("multi-label", "logits"), ("next token", None)):
        data, _, _ = problem(name)
        if other is None:
            data = Data("short", *(
                Samples(part.name, part.images, part.images.clamp(max=1) + VOCABULARY, task=NextToken())
                for part in (data.fit, data.validation, data.score)
            ))  # fmt: skip
        _, a, b = problem(other or name)
        cut = a.cuts[-1].name
        with pytest.raises(DataError, match="need outputs"):
            Trial(Seam(a, b, cut, cut), data.fit, data.validation, data.score)
